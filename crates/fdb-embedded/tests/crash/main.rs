//! Kills a process with SIGKILL while it commits from several threads. All acknowledged commits must be found, all
//! others as a whole or not at all; versions grow, and no versionstamp is given twice.
//!
//! `FLATBED_CRASH_KILLS` is the number of kills (`make crash`: 300); `FLATBED_CRASH_SEED` decides the writes and the
//! moments.
//!
//! A program of its own, because the child is this program again, and because `make crash` runs it alone.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "tests and their helpers")]

#[path = "../children/mod.rs"]
mod children;
#[path = "../it/common.rs"]
#[allow(dead_code, reason = "the tests of `it` use the rest")]
mod common;

mod check;
mod plan;
mod writer;

use std::ffi::OsStr;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::channel;
use std::time::Duration;

use check::{CheckCounts, ChildReport, Model};
use flatbed_testkit::{PATIENCE, Random, number, pass_blocking};

const DIR: &str = "FDB_EMBEDDED_CRASH_DIR";
const RUN: &str = "FDB_EMBEDDED_CRASH_RUN";
const SEED: &str = "FLATBED_CRASH_SEED";
const KILLS: &str = "FLATBED_CRASH_KILLS";
const KILLS_DEFAULT: u64 = 6;
/// Further kills, while no commit was acknowledged before any kill.
const KILLS_MORE: u64 = 100;

/// The process that is killed; not a test of its own.
#[test]
fn child() {
    let (Ok(dir), Some(run), Some(seed)) = (std::env::var(DIR), number(RUN), number(SEED)) else { return };
    // The harness began a line.
    println!();
    if run == 0 {
        writer::reopen(Path::new(&dir));
    }
    writer::run(Path::new(&dir), run, seed);
}

enum Moment {
    /// After this time since the start, possibly while the process opens the directory.
    AfterStart(Duration),
    /// After this time since the process reported that it is open.
    AfterOpen(Duration),
}

/// Starts a process, kills it, and returns its output.
fn killed(dir: &Path, run: u64, seed: u64, moment: &Moment) -> ChildReport {
    let (run, seed) = (run.to_string(), seed.to_string());
    let variables = [(DIR, dir.as_os_str()), (RUN, OsStr::new(&run)), (SEED, OsStr::new(&seed))];
    let mut child = children::child(&variables).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a child");
    let (mut out, mut errors) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
    let (is_open, opened) = channel();
    let reader = std::thread::spawn(move || {
        let (mut bytes, mut piece, mut is_told) = (Vec::new(), [0; 1 << 16], false);
        loop {
            let count = out.read(&mut piece).expect("a pipe");
            bytes.extend_from_slice(&piece[..count]);
            if !is_told && bytes.windows(5).any(|five| five == b"open ") {
                is_told = true;
                // Not received if the kill has another moment.
                let _ = is_open.send(());
            }
            if count == 0 {
                return String::from_utf8(bytes).expect("text");
            }
        }
    });
    match moment {
        Moment::AfterStart(delay) => pass_blocking(*delay),
        Moment::AfterOpen(delay) => {
            opened.recv_timeout(PATIENCE).expect("the child opens");
            pass_blocking(*delay);
        }
    }
    child.kill().expect("a kill");
    let status = child.wait().expect("its end");
    let mut complaint = String::new();
    errors.read_to_string(&mut complaint).expect("text");
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(status.signal(), Some(9), "the child ended by itself: {complaint}");
    ChildReport::read(&reader.join().expect("its output"))
}

#[test]
fn what_was_acknowledged_outlives_a_kill() {
    if std::env::var_os(DIR).is_some() {
        return;
    }
    let kills = number(KILLS).unwrap_or(KILLS_DEFAULT);
    let seed = number(SEED).unwrap_or(1);
    eprintln!("again: {SEED}={seed} {KILLS}={kills} cargo test -p fdb-embedded --test crash -- --nocapture");
    let mut random = Random(seed);
    let dir = tempfile::tempdir().expect("a directory");
    let (mut model, mut sum, mut unopened) = (Model::default(), CheckCounts::default(), 0);
    for run in 1..=kills + KILLS_MORE {
        if run > kills && sum.acknowledged > 0 {
            break;
        }
        let moment = match random.below(5) {
            0 => Moment::AfterStart(Duration::from_micros(random.below(60_000))),
            _ => Moment::AfterOpen(Duration::from_micros(random.below(500_000))),
        };
        let told = killed(dir.path(), run, random.next(), &moment);
        unopened += u64::from(told.opened == 0);
        let found = model.check(dir.path(), run, &told, random.below(2) == 0);
        eprintln!("kill {run}: {found:?}");
        sum.acknowledged += told.acknowledged() as u64;
        sum.landed += found.landed;
        sum.lost += found.lost;
        sum.refused += found.refused;
        sum.pending_clears += u64::from(found.pending_clears > 0);
    }
    eprintln!(
        "{kills} kills, {unopened} of them before the directory was open: {} transactions acknowledged and there, {} not \
         acknowledged of which {} are there, {} refused; clears were pending after {}",
        sum.acknowledged,
        sum.landed + sum.lost,
        sum.landed,
        sum.refused,
        sum.pending_clears
    );
    assert!(sum.acknowledged > 0, "nothing was committed");
}

#[test]
fn a_kill_while_it_opens_leaves_all_or_nothing() {
    if std::env::var_os(DIR).is_some() {
        return;
    }
    let mut random = Random(7);
    for _ in 0..number(KILLS).unwrap_or(KILLS_DEFAULT).div_ceil(3) {
        let dir = tempfile::tempdir().expect("a directory");
        let data = dir.path().join("made").join("by it");
        let mut model = Model::default();
        for _ in 0..3 {
            let told = killed(&data, 0, 0, &Moment::AfterStart(Duration::from_micros(random.below(40_000))));
            model.check(&data, 0, &told, false);
        }
    }
}
