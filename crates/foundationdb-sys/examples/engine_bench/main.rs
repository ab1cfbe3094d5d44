//! Measures the embedded engine through the crate `foundationdb`, in alternation with plain LMDB.
//!
//! `cargo run --release --package foundationdb-sys --example engine_bench -- [OPTION]... [PART]...`; `--help` lists
//! both.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "a measurement ends where it fails")]

mod clear;
mod commits;
mod conflicts;
mod heap;
mod held;
mod late;
mod machine;
mod reads;
mod report;
mod setup;
mod watches;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::report::{Row, markdown};
use crate::setup::{Bench, Settings};

#[global_allocator]
static HEAP: heap::Counting = heap::Counting;

const HELP: &str = "engine_bench [OPTION]... [PART]...

Parts (default: all); a prefix selects all parts that begin with it:
  commits.64.together commits.64.apart commits.1.together commits.1.apart
  points.many points.ten points.snapshot   ranges.many ranges.one
  scan.pages scan.stream scan.tasks        watches
  conflicts.old conflicts.new conflicts.between clear
  held.none held.one held.always held.versions   late

Options:
  --directory DIR   directory of the data; it must be on a disk, because syncs are measured (default: in target)
  --seconds S       length of one round of one side (1)
  --rounds N        rounds of each side, alternating (5)
  --keys N          keys of the data set (1000000)
  --engine-alone    leave plain LMDB out, for a profile
  --output FILE     also write the table to FILE
  --append          append to FILE";

type Part = fn(&Bench) -> Vec<Row>;

struct Arguments {
    settings: Settings,
    directory: Option<PathBuf>,
    output: Option<PathBuf>,
    append: bool,
}

fn arguments() -> Result<Arguments, String> {
    let settings =
        Settings { round: Duration::from_secs(1), rounds: 5, keys: 1_000_000, parts: Vec::new(), engine_alone: false };
    let mut parsed = Arguments { settings, directory: None, output: None, append: false };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        let settings = &mut parsed.settings;
        match word.as_str() {
            "--help" => return Err(HELP.into()),
            "--directory" => parsed.directory = Some(value()?.into()),
            "--output" => parsed.output = Some(value()?.into()),
            // The program runs itself with this option.
            "--live-bytes" => {
                clear::print_live_bytes(Path::new(&value()?));
                std::process::exit(0);
            }
            "--append" => parsed.append = true,
            "--engine-alone" => settings.engine_alone = true,
            "--seconds" => {
                let seconds = value()?.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                settings.round = seconds.ok_or("--seconds needs a number")?;
            }
            "--rounds" => settings.rounds = value()?.parse().map_err(|_| "--rounds needs a number")?,
            "--keys" => settings.keys = value()?.parse().map_err(|_| "--keys needs a number")?,
            option if option.starts_with('-') => return Err(format!("{option} is not known\n\n{HELP}")),
            _ => settings.parts.push(word),
        }
    }
    parsed.settings.keys = parsed.settings.keys.max(1_000);
    Ok(parsed)
}

/// `bench` in cargo's target directory: on the project's disk, not in memory as `/tmp` may be.
fn default_directory() -> PathBuf {
    let program = std::env::current_exe().ok();
    let target = program.as_deref().and_then(|program| program.ancestors().nth(3)).map(Path::to_owned);
    target.unwrap_or_else(std::env::temp_dir).join("bench")
}

fn main() {
    let arguments = arguments().unwrap_or_else(|text| {
        eprintln!("{text}");
        std::process::exit(2);
    });
    let parent = arguments.directory.unwrap_or_else(default_directory);
    std::fs::create_dir_all(&parent).expect("a directory");
    let directory = tempfile::tempdir_in(&parent).expect("a directory");
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut head = machine::describe(directory.path(), cpus);
    let load = machine::load();
    let bench = Bench::open(arguments.settings, directory.path());
    let mut rows: Vec<Row> = Vec::new();
    let parts: [(&str, Part); 9] = [
        ("points", reads::points),
        ("ranges", reads::ranges),
        ("scan", reads::scan),
        ("commits", commits::run),
        ("held", held::run),
        ("watches", watches::run),
        ("late", late::run),
        ("conflicts", conflicts::run),
        // Last, because it removes plain LMDB's data.
        ("clear", clear::run),
    ];
    for (name, part) in parts {
        if bench.settings.wants_part(name) {
            eprintln!("{name} ...");
            rows.extend(part(&bench));
        }
    }
    head.push(format!("load average before {load}, at the end {}", machine::load()));
    let plural = if cpus == 1 { "one core" } else { "all cores" };
    let text = markdown(&format!("The engine beside plain LMDB, {plural}"), &head, &rows);
    println!("{text}");
    if let Some(path) = arguments.output {
        let mut options = std::fs::OpenOptions::new();
        options.create(true).write(true).append(arguments.append).truncate(!arguments.append);
        let mut file = options.open(path).expect("the output file");
        writeln!(file, "{text}").expect("written");
    }
}
