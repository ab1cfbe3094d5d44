//! Metrics of this process, under the names of Prometheus' own clients. They come from Linux's `/proc`; other systems
//! have none.

use std::{fs, sync::OnceLock};

use flatbed_metrics::{Family, Kind, Value};

/// The descriptors reserved for purposes other than client connections.
const DESCRIPTORS_KEPT: usize = 512;

/// Returns the metrics that can be read.
pub(crate) fn figures() -> Vec<Family> {
    let stat = fs::read_to_string("/proc/self/stat").ok();
    let stat = stat.as_deref().and_then(Stat::parse);
    let mut families = Vec::new();
    if let Some(stat) = &stat {
        let seconds = |ticks: u64| ticks as f64 / ticks_per_second();
        let mut cpu = Family::new("process_cpu_seconds", "Processor time used by all threads.", Kind::Counter);
        cpu.push(&[], Value::Number(seconds(stat.cpu_ticks)));
        families.push(cpu);
        if let Some(booted) = booted_at_seconds() {
            let help = "When the process began, in seconds of Unix time.";
            families.push(Family::gauge("process_start_time_seconds", help, booted + seconds(stat.started_ticks)));
        }
        families.push(Family::gauge("process_threads", "Threads.", stat.threads as f64));
        let virtual_bytes = stat.virtual_bytes as f64;
        families.push(Family::gauge(
            "process_virtual_memory_bytes",
            "Address space; the data file's is part of it.",
            virtual_bytes,
        ));
        let resident = stat.resident_pages as f64 * page_bytes();
        let help = "Memory that is resident, with what is mapped of the data file.";
        families.push(Family::gauge("process_resident_memory_bytes", help, resident));
    }
    if let Ok(descriptors) = fs::read_dir("/proc/self/fd") {
        // One of them is the directory that is being read.
        let open = descriptors.count().saturating_sub(1);
        families.push(Family::gauge("process_open_fds", "File descriptors open, one a connection.", open as f64));
    }
    if let Some(max) = descriptors_max() {
        families.push(Family::gauge("process_max_fds", "File descriptors that may be open.", max as f64));
    }
    families
}

/// The fields of `/proc/self/stat` (proc_pid_stat(5)).
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    cpu_ticks: u64,
    threads: u64,
    started_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    /// Parses the fields. The program's name, in parentheses, may contain anything, so fields are counted from its end.
    fn parse(text: &str) -> Option<Stat> {
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        // The first field behind the name is the third of all.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Stat {
            cpu_ticks: field(14)? + field(15)?,
            threads: field(20)?,
            started_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

fn booted_at_seconds() -> Option<f64> {
    // The kernel's own value may move by a second when the clock is set; this one must not.
    static BOOTED: OnceLock<Option<f64>> = OnceLock::new();
    *BOOTED.get_or_init(|| {
        let text = fs::read_to_string("/proc/stat").ok()?;
        text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
    })
}

fn ticks_per_second() -> f64 {
    // SAFETY: sysconf takes a plain value and answers one.
    unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64
}

fn page_bytes() -> f64 {
    // SAFETY: as above.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as f64
}

fn descriptors_max() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a value of this function's own.
    let done = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    (done == 0).then_some(limit.rlim_cur)
}

/// Raises the number of descriptors to the system's limit, as other servers do at their start: shells and service
/// managers give 1,024 for the sake of programs that use `select`. Returns the new limit.
pub(crate) fn raise_descriptors_max() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a value of this function's own.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return None;
    }
    let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
    // SAFETY: as above.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raised) } != 0 {
        tracing::warn!(error = %std::io::Error::last_os_error(), "the number of file descriptors cannot be raised");
    }
    descriptors_max()
}

/// Returns how many of the wanted connections the descriptors allow. Files, the storage and replications need some,
/// too.
pub(crate) fn connections_max(wanted: usize, descriptors: Option<u64>) -> usize {
    let descriptors = descriptors.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    wanted.min(descriptors.saturating_sub(DESCRIPTORS_KEPT).max(descriptors / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_behind_the_name() {
        let text = "7 (a) b (c) S 1 7 7 0 -1 4194304 90 0 1 0 250 50 0 0 20 0 9 0 12345 1000000 321 18446744073709551615 1 1 0";
        let expected =
            Stat { cpu_ticks: 300, threads: 9, started_ticks: 12_345, virtual_bytes: 1_000_000, resident_pages: 321 };
        assert_eq!(Stat::parse(text), Some(expected));
        assert_eq!(Stat::parse("7 (a) S 1"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn connections_leave_descriptors() {
        let most = raise_descriptors_max().expect("a limit");
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the pointer is to a value of this function's own.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) }, 0);
        assert_eq!((limit.rlim_cur, most), (limit.rlim_max, limit.rlim_max));
        for (descriptors, found) in [(None, 20_000), (Some(1 << 20), 20_000), (Some(4_096), 3_584), (Some(600), 300)] {
            assert_eq!(connections_max(20_000, descriptors), found, "{descriptors:?}");
        }
    }

    #[test]
    fn of_this_process() {
        let families = figures();
        for name in ["process_resident_memory_bytes", "process_open_fds", "process_start_time_seconds"] {
            assert!(flatbed_metrics::total(&families, name) > 0, "{name}");
        }
    }
}
