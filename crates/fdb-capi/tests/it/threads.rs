//! Futures and transactions used, cancelled and destroyed from many threads.

use std::sync::Arc;

use crate::common::{Tr, open};
use fdb_capi::*;

/// Adds one to a counter in a retry loop. Returns the number of attempts.
fn increment(tr: &Tr) -> usize {
    for tries in 1.. {
        let count = tr.get(b"counter").value().map(|value| value.map_or(0, |value| u64_of(&value)));
        let error = match count {
            Ok(count) => {
                tr.set(b"counter", &(count + 1).to_le_bytes());
                tr.commit().wait()
            }
            Err(error) => error,
        };
        if error == 0 {
            return tries;
        }
        // SAFETY: the transaction is alive.
        let retry = crate::common::Future(unsafe { fdb_transaction_on_error(tr.0, error) });
        assert_eq!(retry.wait(), 0, "after {error}");
    }
    unreachable!("the loop ends with a commit");
}

fn u64_of(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().unwrap())
}

#[test]
fn concurrent_increments_are_all_counted() {
    let dir = tempfile::tempdir().unwrap();
    let database = Arc::new(open(dir.path()));
    let threads = (0..4).map(|_| {
        let database = Arc::clone(&database);
        std::thread::spawn(move || (0..10).for_each(|_| assert!(increment(&database.transaction()) > 0)))
    });
    for thread in threads.collect::<Vec<_>>() {
        thread.join().unwrap();
    }
    let value = database.transaction().get(b"counter").value().unwrap().unwrap();
    assert_eq!(u64_of(&value), 40);
}

#[test]
fn many_threads_wait_for_cancel_and_fire_one_watch() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path());
    for round in 0u32..20 {
        let tr = database.transaction();
        let watch = tr.watch(b"key");
        assert_eq!(tr.commit().wait(), 0);
        let calls = watch.callback();
        let errors = std::thread::scope(|scope| {
            let waiters: Vec<_> = (0..3).map(|_| scope.spawn(|| watch.wait())).collect();
            scope.spawn(|| database.write(b"key", &round.to_be_bytes()));
            scope.spawn(|| watch.cancel());
            waiters.into_iter().map(|waiter| waiter.join().unwrap()).collect::<Vec<_>>()
        });
        let (_, error) = calls.recv().unwrap();
        assert!(error == 0 || error == 1101, "{error}");
        assert!(errors.iter().all(|&other| other == error), "{errors:?}, the callback {error}");
        assert!(calls.recv().is_err());
    }
}

#[test]
fn futures_are_destroyed_elsewhere_while_they_are_completed() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path());
    for index in 0u32..100 {
        let tr = database.transaction();
        tr.set(&index.to_be_bytes(), b"x");
        let future = tr.commit();
        let calls = future.callback();
        let other = std::thread::spawn(move || drop(future));
        drop(tr);
        assert!(calls.recv().is_ok() && calls.recv().is_err());
        other.join().unwrap();
    }
}
