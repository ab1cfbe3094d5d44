//! Injected faults: by seed, of every kind, and none that breaks a guarantee.

use crate::common::{commit, on_error, promise, set, wait};
use fdb_embedded::{Buggify, Engine, Error, OpenOptions, Result, Stats};

fn open(dir: &std::path::Path, probability: f64, seed: u64) -> Engine {
    let mut options = OpenOptions::default();
    options.buggify = Some(Buggify::new(probability, seed));
    Engine::open(dir, options).unwrap()
}

fn count(stats: &Stats, kind: &str) -> u64 {
    stats.faults.iter().find(|fault| fault.kind == kind).expect("a kind").count
}

/// Adds 1 to `n`, and collects the codes of the errors.
fn add_one(engine: &Engine, errors: &mut Vec<i32>) {
    let transaction = engine.transaction();
    loop {
        let result = transaction.get_read_version().and_then(|_| transaction.get(b"n", false)).and_then(|_| {
            transaction.atomic_op(b"n", &1u64.to_le_bytes(), 2);
            commit(&transaction)
        });
        let Err(error) = result else { return };
        errors.push(error.0);
        on_error(&transaction, error.0).unwrap();
    }
}

#[test]
fn equal_seeds_give_equal_faults_to_equal_calls() {
    let run = |seed| {
        let dir = tempfile::tempdir().unwrap();
        let engine = open(dir.path(), 0.3, seed);
        let mut errors = Vec::new();
        for _ in 0..40 {
            add_one(&engine, &mut errors);
        }
        (errors, engine.stats().faults)
    };
    let first = run(1);
    assert_eq!(run(1), first);
    assert_ne!(run(2), first);
}

#[test]
fn every_kind_comes_and_breaks_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), 0.3, 42);
    let mut errors = Vec::new();
    for _ in 0..100 {
        add_one(&engine, &mut errors);
    }
    let unknown = errors.iter().filter(|error| **error == Error::COMMIT_UNKNOWN_RESULT.0).count() as u64;
    let mut kinds = errors;
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds, [1007, 1009, 1020, 1021, 1037, 1042, 1078]);
    let value = loop {
        if let Ok(value) = engine.transaction().get(b"n", false) {
            break u64::from_le_bytes(value.unwrap().try_into().unwrap());
        }
    };
    let stats = engine.stats();
    assert_eq!(value, 100 + count(&stats, "unknown_applied"), "exactly the commits counted as applied are applied");
    assert_eq!(unknown, count(&stats, "unknown_applied") + count(&stats, "unknown_not_applied"));
    assert_eq!(stats.faults.iter().map(|fault| fault.count).sum::<u64>(), stats.faults_injected);
    let status: serde_json::Value = serde_json::from_str(&engine.status_json()).unwrap();
    assert_eq!(status["cluster"]["embedded"]["faults"]["late_commit"], count(&stats, "late_commit"));
    assert!(count(&stats, "late_commit") > 10);
}

#[test]
fn a_late_answer_holds_up_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    for seed in 0..50u64 {
        let engine = open(dir.path(), 1.0, seed);
        let transaction = engine.transaction();
        transaction.set(b"seed", &seed.to_le_bytes());
        let (done, answer) = promise();
        transaction.commit(done);
        // A third of the commits is applied, and some of their answers come late enough to be overtaken.
        loop {
            let stats = engine.stats();
            match answer.try_recv() {
                Ok(_) => break,
                Err(_) if stats.commits > 0 && count(&stats, "late_commit") > 0 => return,
                Err(_) => std::thread::yield_now(),
            }
        }
    }
    panic!("no commit was seen before its answer");
}

#[test]
fn watches_fire_late_or_without_a_change_and_always() {
    let dir = tempfile::tempdir().unwrap();
    let watch = |engine: &Engine| loop {
        let transaction = engine.transaction();
        let (done, answer) = promise();
        let result: Result<()> = match transaction.watch(b"k", done) {
            Some(_) => commit(&transaction),
            None => Err(Error::COMMIT_UNKNOWN_RESULT),
        };
        if result.is_ok() {
            return answer;
        }
    };
    {
        let engine = open(dir.path(), 1.0, 3);
        // A transaction that only watches has no commit to fail.
        let ends: Vec<_> = (0..20).map(|_| wait(&watch(&engine))).collect();
        let (fired, failed): (Vec<_>, Vec<_>) = ends.into_iter().partition(Result::is_ok);
        assert!(!failed.is_empty() && failed.iter().all(|end| *end == Err(Error::FUTURE_VERSION)), "{failed:?}");
        let stats = engine.stats();
        let counts = (count(&stats, "spurious_watch"), count(&stats, "watch_error"));
        assert_eq!(counts, (fired.len() as u64, failed.len() as u64));
    }
    let engine = open(dir.path(), 0.5, 4);
    for round in 0..20u64 {
        let fired = watch(&engine);
        let mut errors = Vec::new();
        add_one(&engine, &mut errors);
        loop {
            let transaction = engine.transaction();
            transaction.set(b"k", &round.to_le_bytes());
            if commit(&transaction).is_ok() {
                break;
            }
        }
        let end = wait(&fired);
        assert!(end == Ok(()) || end == Err(Error::FUTURE_VERSION), "a change is noticed, however late: {end:?}");
    }
    let stats = engine.stats();
    assert!(count(&stats, "late_watch") > 0 && count(&stats, "spurious_watch") > 0, "{stats:?}");
}

#[test]
fn nothing_happens_unasked() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(dir.path(), OpenOptions::default()).unwrap();
    set(&engine, b"k", b"v");
    assert_eq!(engine.stats().faults_injected, 0);
}
