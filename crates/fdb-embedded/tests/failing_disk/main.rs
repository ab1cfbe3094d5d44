//! Disks that are full, late to report it, broken, truncated or foreign. Each gives an error with advice, and no
//! acknowledged commit is lost.
//!
//! Faults that would harm this process run in a child: this test program again, running `child` with a role. It is a
//! program of its own for that reason, and because `make crash` runs it alone.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "tests and their helpers")]

#[path = "../children/mod.rs"]
mod children;
#[path = "../it/common.rs"]
#[allow(dead_code, reason = "the tests of `it` use the rest")]
mod common;

mod damage;
mod faults;
mod files;
mod full;
mod io_errors;
mod power_cut;
mod refused;
mod sources;

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use fdb_embedded::{Engine, OpenOptions, Restore, backup, check_data_file};

const ROLE: &str = "FDB_EMBEDDED_TEST_ROLE";
const DIR: &str = "FDB_EMBEDDED_TEST_DIR";

/// The code of the children; not a test of its own.
#[test]
fn child() {
    let (Ok(role), Ok(dir)) = (std::env::var(ROLE), std::env::var(DIR)) else { return };
    let dir = Path::new(&dir);
    // The harness began a line.
    println!();
    match role.as_str() {
        "open" => match Engine::open(dir, OpenOptions::default()) {
            Ok(engine) => println!("opened, {} keys", files::all(&engine)),
            Err(error) => println!("refused {} {error}", error.code()),
        },
        "check" => match check_data_file(dir, |_| ()) {
            Ok(checked) => println!("checked {} records", checked.records),
            Err(error) => println!("not checked: {error}"),
        },
        "backup" => match backup(dir, &dir.with_file_name("out"), |_| ()) {
            Ok(bytes) => println!("copied {bytes} bytes"),
            Err(error) => println!("not copied: {error}"),
        },
        "restore" => match Restore::begin(dir, &dir.with_file_name("new"), |_| ()) {
            Ok(_) => println!("copied"),
            Err(error) => println!("not copied: {error}"),
        },
        "commits" => io_errors::commits(dir),
        "file size" => full::under_a_limit_of_file_size(dir),
        "address space" => refused::under_a_limit_of_address_space(dir),
        "clock" => refused::with_another_clock(dir),
        "power" => power_cut::commits(dir),
        other => panic!("role {other}"),
    }
}

fn command(role: &str, dir: &Path) -> Command {
    children::child(&[(ROLE, OsStr::new(role)), (DIR, dir.as_os_str())])
}

/// Runs a child until it exits by itself. Returns its output.
fn output(command: &mut Command) -> String {
    let output = command.output().expect("a child");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{:?}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    text
}

fn line<'t>(text: &'t str, beginning: &str) -> &'t str {
    let found = text.lines().find_map(|line| line.strip_prefix(beginning));
    found.unwrap_or_else(|| panic!("no line begins with {beginning:?}: {text}"))
}
