//! The environment: the machine, the file system, the cost of a bare sync.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::report::microseconds;
use crate::setup::{Random, median};

fn line_of(path: &str, field: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(field))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn output_of(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or_else(|_| "unknown".into(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Reads a number of kB from `/proc/self/status`, in bytes.
pub fn status_bytes(field: &str) -> Option<u64> {
    let kilobytes = line_of("/proc/self/status", field)?;
    Some(kilobytes.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// Bytes and calls of this process's writes so far.
pub fn written() -> Option<(u64, u64)> {
    let field = |name| line_of("/proc/self/io", name)?.parse::<u64>().ok();
    Some((field("wchar")?, field("syscw")?))
}

fn file_system(directory: &Path) -> String {
    let Ok(directory) = directory.canonicalize() else { return "unknown".into() };
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let of_line = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let place = before.split(' ').nth(4)?.to_owned();
        Some((place, after.split(' ').next()?.to_owned()))
    };
    let mounts = mounts.lines().filter_map(of_line).filter(|(place, _)| directory.starts_with(place));
    // A later mount on the same place hides an earlier one.
    mounts.max_by_key(|(place, _)| place.len()).map_or_else(|| "unknown".into(), |(_, kind)| kind)
}

/// The median time of writing `bytes` and syncing them, inside of a file with allocated blocks.
fn sync_cost(directory: &Path, bytes: usize) -> f64 {
    let file = blocks(directory, "sync", 0);
    let (data, mut random) = (vec![0x5a; bytes], Random(1));
    let mut times = Vec::new();
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(300) || times.len() < 20 {
        let at = random.below(FILE_BYTES / 65_536) * 65_536;
        let begun = Instant::now();
        file.write_all_at(&data, at).expect("written");
        file.sync_data().expect("synced");
        times.push(begun.elapsed().as_secs_f64());
    }
    median(times)
}

const FILE_BYTES: u64 = 64 << 20;

/// Creates a file of written blocks and reopens it with `flags`.
fn blocks(directory: &Path, name: &str, flags: i32) -> File {
    let path = directory.join(name);
    if !path.exists() {
        let file = File::create(&path).expect("a file");
        let zeros = vec![0; 1 << 20];
        for at in (0..FILE_BYTES).step_by(1 << 20) {
            file.write_all_at(&zeros, at).expect("written");
        }
        file.sync_all().expect("synced");
    }
    OpenOptions::new().write(true).custom_flags(flags).open(&path).expect("the file")
}

/// The writes and syncs of an LMDB commit without LMDB: `writes` writes of `bytes` bytes in total at random offsets
/// and an fdatasync, then the meta page through a descriptor with `O_DSYNC`.
pub struct BareCommit {
    data: File,
    meta: File,
    pieces: Vec<Vec<u8>>,
    random: Random,
}

impl BareCommit {
    /// `bytes` and `calls` of one commit, including the meta page's.
    pub fn new(directory: &Path, bytes: u64, calls: u64) -> BareCommit {
        let calls = calls.saturating_sub(1).max(1);
        let piece = ((bytes / calls).div_ceil(4_096) * 4_096) as usize;
        let data = blocks(directory, "bare", 0);
        let meta = blocks(directory, "bare", libc::O_DSYNC);
        BareCommit { data, meta, pieces: vec![vec![0x5a; piece]; calls as usize], random: Random(2) }
    }

    pub fn run(&mut self) {
        for piece in &self.pieces {
            let room = (FILE_BYTES - piece.len() as u64) / 4_096;
            self.data.write_all_at(piece, 8_192 + self.random.below(room - 2) * 4_096).expect("written");
        }
        self.data.sync_data().expect("synced");
        // The bytes that LMDB writes of its meta page.
        self.meta.write_all_at(&[0x5a; 120], 16).expect("written");
    }
}

/// The machine's load, averaged over the last minute by the system.
pub fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().filter(|load| !load.is_empty()).unwrap_or("unknown").to_owned()
}

pub fn describe(directory: &Path, cpus: usize) -> Vec<String> {
    let model = line_of("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.into());
    let memory = line_of("/proc/meminfo", "MemTotal").and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    let memory = memory.map_or_else(|| "unknown".into(), |kilobytes| format!("{:.0} GB", kilobytes / 1e6));
    vec![
        format!("{}, {} of memory, {cpus} CPU(s) for this process, {}", model, memory, output_of("uname", &["-sr"])),
        format!(
            "commit {}, {}",
            output_of("git", &["rev-parse", "--short", "HEAD"]),
            output_of("date", &["-u", "+%F %R"])
        ),
        format!(
            "file system {}; fdatasync of 4 kB {}, of 64 kB {} (medians)",
            file_system(directory),
            microseconds(sync_cost(directory, 4_096)),
            microseconds(sync_cost(directory, 65_536)),
        ),
        "reads on one thread are measured by the CPU time of the process, everything else by elapsed time".into(),
    ]
}
