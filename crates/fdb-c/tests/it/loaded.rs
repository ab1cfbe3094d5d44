//! The choice of a `libfdb_c.so` by a program of Flatbed's if the loader finds this one first, as in programs that
//! cargo runs.
//!
//! A process chooses its backend once, so each case is this program again.

use std::path::PathBuf;
use std::process::Command;

use foundationdb_sys::backend::{Backend, LoadError, embedded, select};

const CASE: &str = "FDB_C_TEST_CASE";

/// Cargo puts the library beside this test.
fn ours() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libfdb_c.so")
}

/// Runs a case in which the loader finds this library first. Returns its output.
fn run(case: &str, variables: &[(&str, PathBuf)]) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "loaded::child", "--nocapture"]).env(CASE, case);
    for variable in ["FLATBED_FDB_LIBRARY", "FLATBED_CLUSTER_FILE", "FDB_CLUSTER_FILE"] {
        child.env_remove(variable);
    }
    child.env("LD_LIBRARY_PATH", ours().parent().unwrap()).envs(variables.iter().map(|(name, value)| (name, value)));
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    println!("{case}: {text}");
    text
}

/// The code of the child; not a test of its own.
#[test]
fn child() {
    match std::env::var(CASE).as_deref() {
        Ok("found") => match select(Backend::Library(None)) {
            Err(LoadError::Missing { tried }) => println!("missing: {tried}"),
            // One of FoundationDB's is installed.
            other => println!("answer: {other:?}"),
        },
        Ok("named") => {
            select(Backend::Library(Some(ours()))).unwrap();
            println!("answer: {}", embedded().is_some());
        }
        Ok("chosen") => println!("answer: {}", embedded().is_some()),
        _ => {}
    }
}

#[test]
fn what_lies_in_the_way_is_no_clusters_client() {
    let text = run("found", &[]);
    let passed_over = text.contains("missing: libfdb_c.so: Flatbed's embedded engine, which reaches no cluster");
    assert!(passed_over || text.contains("answer: Ok(())") && PathBuf::from("/usr/lib/libfdb_c.so").exists(), "{text}");

    // The choice from the environment passes it over, too.
    let directory = tempfile::tempdir().unwrap();
    let cluster = directory.path().join("fdb.cluster");
    std::fs::write(&cluster, "test:id@127.0.0.1:4500\n").unwrap();
    let text = run("chosen", &[("FLATBED_CLUSTER_FILE", cluster.clone())]);
    let refused = text.contains("foundationdb: no libfdb_c.so found (libfdb_c.so: Flatbed's embedded engine");
    assert!(refused || PathBuf::from("/usr/lib/libfdb_c.so").exists(), "{text}");

    // A named library takes precedence over found ones; its engine is not that of this program.
    let text = run("chosen", &[("FLATBED_CLUSTER_FILE", cluster), ("FLATBED_FDB_LIBRARY", ours())]);
    assert!(text.contains("answer: false"), "{text}");
}

#[test]
fn a_library_that_is_named_is_taken() {
    let text = run("named", &[]);
    assert!(text.contains("answer: false"), "its pointers are not this program's: {text}");
}
