//! Latencies, and the operating system's statistics of a process.

use std::{collections::HashMap, fs, path::Path};

use serde_json::{Value, json};

/// Returns percentiles of latencies in milliseconds; null if there are none.
pub(crate) fn percentiles(latencies_ms: &mut [f64]) -> Value {
    latencies_ms.sort_by(f64::total_cmp);
    let Some(last) = latencies_ms.len().checked_sub(1) else { return Value::Null };
    let at = |share: f64| rounded(latencies_ms[((latencies_ms.len() as f64 * share) as usize).min(last)], 1000.0);
    json!({ "min": at(0.0), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": at(1.0) })
}

/// Returns the median of some figures; not a number if there are none.
pub(crate) fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Rounds `value` to the nearest 1/`parts`.
pub(crate) fn rounded(value: f64, parts: f64) -> f64 {
    (value * parts).round() / parts
}

/// Returns the processor seconds of this process, without the servers that it started.
pub(crate) fn own_cpu_s() -> f64 {
    process_cpu_s(std::process::id()).unwrap_or_default()
}

/// Returns the processor seconds of a process and its descendants; 0 if it is gone.
pub(crate) fn cpu_s(pid: u32) -> f64 {
    family(pid).into_iter().filter_map(process_cpu_s).sum()
}

fn process_cpu_s(pid: u32) -> Option<f64> {
    // SAFETY: sysconf reads a constant of the system.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    let stat = stat_fields(pid)?;
    Some((stat.get(11)?.parse::<f64>().ok()? + stat.get(12)?.parse::<f64>().ok()?) / ticks)
}

/// The resident memory of a process and its descendants, in MB: its own allocations, and pages of mapped files
/// (LMDB's), which the kernel reclaims when it needs them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Resident {
    /// `RssAnon`.
    pub anonymous_mb: f64,
    /// `RssFile`.
    pub file_mb: f64,
    /// `VmHWM`: the greatest resident size of both kinds together.
    pub peak_mb: f64,
}

/// Reads the resident memory from `/proc`.
pub(crate) fn resident(pid: u32) -> Resident {
    let mut sum = Resident::default();
    for pid in family(pid) {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let mb = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
            line.split_whitespace().next().and_then(|kb| kb.parse::<f64>().ok()).unwrap_or_default() / 1024.0
        };
        sum.anonymous_mb += mb("RssAnon:");
        sum.file_mb += mb("RssFile:");
        sum.peak_mb += mb("VmHWM:");
    }
    sum
}

/// Returns the size of a directory on the disk, in MB of allocated blocks, so that sparse files count what they use.
pub(crate) fn disk_mb(directory: &Path) -> f64 {
    use std::os::unix::fs::MetadataExt;
    let mut blocks = 0_u64;
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(data) if data.is_dir() => directories.push(entry.path()),
                Ok(data) => blocks += data.blocks(),
                Err(_) => {}
            }
        }
    }
    blocks as f64 * 512.0 / 1e6
}

/// Returns the fields of `/proc/PID/stat` behind the name, which may contain spaces. The first is the state.
fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

fn family(pid: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let child = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        if let Some(child) = child
            && let Some(parent) = stat_fields(child).and_then(|stat| stat.get(1)?.parse().ok())
        {
            children.entry(parent).or_default().push(child);
        }
    }
    let mut members = vec![pid];
    let mut next = 0;
    while let Some(member) = members.get(next) {
        if let Some(children) = children.remove(member) {
            members.extend(children);
        }
        next += 1;
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_statistics() {
        let mut latencies: Vec<f64> = (0..100).rev().map(f64::from).collect();
        let found = percentiles(&mut latencies);
        assert_eq!((&found["min"], &found["p50"], &found["p99"]), (&json!(0.0), &json!(50.0), &json!(99.0)));
        assert_eq!(percentiles(&mut []), Value::Null);
    }

    #[test]
    fn this_process_is_seen() {
        assert!(resident(std::process::id()).anonymous_mb > 0.1);
        assert!(family(std::process::id()).contains(&std::process::id()));
    }
}
