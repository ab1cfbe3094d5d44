//! Futures, callbacks and their ownership, as a C program uses them.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvError, TryRecvError};

use crate::common::{Future, open};
use fdb_capi::*;

#[test]
fn a_read_is_ready_at_once_and_its_callback_comes_on_the_callers_thread() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path());
    let future = database.transaction().get(b"none");
    assert!(future.is_ready());
    let calls = future.callback();
    assert_eq!(calls.try_recv(), Ok((future.0.addr(), 0)));
    assert_eq!(calls.try_recv(), Err(TryRecvError::Disconnected));
    assert_eq!(future.value(), Ok(None));
}

#[test]
fn values_are_never_null_and_outlive_transaction_and_database() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path());
    database.write(b"empty", b"");
    database.write(b"full", b"value");
    let tr = database.transaction();
    let (empty, full, range, none) =
        (tr.get(b"empty"), tr.get(b"full"), tr.range(b"", b"\xff", 0), tr.range(b"x", b"y", 0));
    drop((tr, database));
    assert_eq!(empty.value(), Ok(Some(vec![])));
    assert_eq!(full.value(), Ok(Some(b"value".to_vec())));
    let pairs = vec![(b"empty".to_vec(), vec![]), (b"full".to_vec(), b"value".to_vec())];
    assert_eq!(range.pairs(), Ok((pairs, false)));
    assert_eq!(none.pairs(), Ok((vec![], false)));
}

#[test]
fn null_pointers_with_length_0_are_empty_keys() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path());
    let tr = database.transaction();
    // SAFETY: the C API accepts null with length 0 as an empty key.
    unsafe {
        fdb_transaction_set(tr.0, std::ptr::null(), 0, std::ptr::null(), 0);
        assert_eq!(Future(fdb_transaction_get(tr.0, std::ptr::null(), 0, 0)).value(), Ok(Some(vec![])));
        fdb_transaction_clear_range(tr.0, std::ptr::null(), 0, std::ptr::null(), 0);
        assert_eq!(fdb_transaction_add_conflict_range(tr.0, std::ptr::null(), 0, std::ptr::null(), 0, 0), 0);
    }
    assert_eq!(tr.commit().wait(), 0);
}

#[test]
fn a_commits_callbacks_come_once_each() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path());
    let tr = database.transaction();
    tr.set(b"a", b"1");
    let future = tr.commit();
    let (first, second) = (future.callback(), future.callback());
    for calls in [first, second] {
        assert_eq!(calls.recv(), Ok((future.0.addr(), 0)));
        assert_eq!(calls.recv(), Err(RecvError));
    }
    let mut version = 0;
    // SAFETY: the transaction is alive.
    assert_eq!(unsafe { fdb_transaction_get_committed_version(tr.0, &mut version) }, 0);
    assert!(version > 0);
}

#[test]
fn a_destroyed_transactions_commit_lands_and_its_future_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path());
    let mut futures = Vec::new();
    for index in 0u32..50 {
        let tr = database.transaction();
        tr.set(&index.to_be_bytes(), b"x");
        futures.push(tr.commit());
    }
    let reader = database.transaction();
    for future in &futures {
        assert_eq!(future.wait(), 0);
    }
    assert_eq!(reader.range(b"", b"\xff", 0).pairs().unwrap().0.len(), 50);
}

#[test]
fn a_destroyed_commit_future_answers_its_callback_once() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path());
    for _ in 0..50 {
        let tr = database.transaction();
        tr.set(b"a", b"1");
        let future = tr.commit();
        let calls = future.callback();
        drop(future);
        let (_, error) = calls.recv().unwrap();
        assert!(error == 0 || error == 1101, "{error}");
        assert_eq!(calls.recv(), Err(RecvError));
    }
}

#[test]
fn a_watch_fires_once() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path());
    let tr = database.transaction();
    let watch = tr.watch(b"key");
    assert_eq!(tr.commit().wait(), 0);
    drop(tr);
    let calls = watch.callback();
    assert!(!watch.is_ready());
    assert_eq!(watch.error(), 2002);
    assert_eq!(calls.try_recv(), Err(TryRecvError::Empty));
    database.write(b"other", b"1");
    assert!(!watch.is_ready());
    database.write(b"key", b"1");
    assert_eq!(calls.recv(), Ok((watch.0.addr(), 0)));
    watch.cancel();
    assert_eq!(watch.error(), 0);
}

#[test]
fn cancelling_a_watch_ends_it_in_the_engine() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path());
    // SAFETY: the database is open as long as this test.
    let engine = unsafe { engine_of(database.0) };
    let tr = database.transaction();
    let (cancelled, destroyed) = (tr.watch(b"key"), tr.watch(b"key"));
    assert_eq!(tr.commit().wait(), 0);
    assert_eq!(engine.stats().open_watches, 2);
    let calls = [cancelled.callback(), destroyed.callback()];
    cancelled.cancel();
    assert_eq!((cancelled.is_ready(), cancelled.error()), (true, 1101));
    drop(destroyed);
    for calls in calls {
        assert_eq!(calls.recv().map(|call| call.1), Ok(1101));
        assert_eq!(calls.recv(), Err(RecvError));
    }
    assert_eq!(engine.stats().open_watches, 0);
    database.write(b"key", b"1");
    assert_eq!(cancelled.error(), 1101);
}

#[test]
fn a_watch_keeps_the_engine_beyond_its_database() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path());
    let tr = first.transaction();
    let watch = tr.watch(b"key");
    assert_eq!(tr.commit().wait(), 0);
    drop((tr, first));
    let second = open(dir.path());
    second.write(b"key", b"1");
    assert_eq!(watch.wait(), 0);
}

#[test]
fn released_memory_is_told_and_an_error_stays() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path());
    database.write(b"a", b"1");
    let tr = database.transaction();
    let (value, refused) = (tr.get(b"a"), tr.get(b"\xff\x01"));
    // SAFETY: the future is alive, and no memory from its getters is in use.
    let release = |future: &Future| unsafe { fdb_future_release_memory(future.0) };
    // Memory without a getter call is not released, and memory from two getter calls only by the second release.
    release(&value);
    assert_eq!((value.value(), value.value()), (Ok(Some(b"1".to_vec())), Ok(Some(b"1".to_vec()))));
    assert_eq!(value.pairs(), Err(2000));
    release(&value);
    assert_eq!(value.error(), 0);
    release(&value);
    assert_eq!((value.value(), value.pairs(), value.error()), (Err(1102), Err(1102), 1102));
    release(&value);
    release(&refused);
    assert_eq!((refused.value(), refused.error()), (Err(2004), 2004));
}

#[test]
fn a_getter_of_another_kind_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path());
    let future = database.transaction().get(b"a");
    let (mut number, mut truth) = (0, 0);
    // SAFETY: the future is alive.
    unsafe {
        assert_eq!(fdb_future_get_int64(future.0, &mut number), 2000);
        assert_eq!(fdb_future_get_bool(future.0, &mut truth), 2000);
        assert_eq!(fdb_future_set_callback(future.0, None, null_mut()), 2000);
    }
    assert_eq!(future.pairs(), Err(2000));
}

static BLOCKED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn wait_for_another(_: *mut FDBFuture, other: *mut c_void) {
    // SAFETY: the parameter is a future that the test keeps alive.
    let code = unsafe { fdb_future_block_until_ready(other.cast()) };
    BLOCKED.store(code as usize, Ordering::SeqCst);
}

#[test]
fn waiting_within_a_callback_of_the_engine_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path());
    let tr = database.transaction();
    let (fires, waits) = (tr.watch(b"fires"), tr.watch(b"waits"));
    assert_eq!(tr.commit().wait(), 0);
    // SAFETY: `waits` lives until after the callback.
    assert_eq!(unsafe { fdb_future_set_callback(fires.0, Some(wait_for_another), waits.0.cast()) }, 0);
    let done = fires.callback();
    database.write(b"fires", b"1");
    assert_eq!(done.recv().map(|call| call.1), Ok(0));
    assert_eq!(BLOCKED.load(Ordering::SeqCst), 2026);
}

unsafe extern "C" fn destroy(future: *mut FDBFuture, counter: *mut c_void) {
    // SAFETY: the counter is static; the future is destroyed only here.
    unsafe {
        (*counter.cast::<AtomicUsize>()).fetch_add(1, Ordering::SeqCst);
        fdb_future_destroy(future);
    }
}

#[test]
fn a_callback_may_destroy_its_future() {
    static DESTROYED: AtomicUsize = AtomicUsize::new(0);
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path());
    let counter = (&raw const DESTROYED).cast_mut().cast();
    let tr = database.transaction();
    tr.set(b"a", b"1");
    // SAFETY: each future is destroyed by its callback; `cancel` is the last use of the watch.
    unsafe {
        let read = fdb_transaction_get(tr.0, b"a".as_ptr(), 1, 0);
        assert_eq!(fdb_future_set_callback(read, Some(destroy), counter), 0);
        let watch = fdb_transaction_watch(tr.0, b"a".as_ptr(), 1);
        assert_eq!(fdb_future_set_callback(watch, Some(destroy), counter), 0);
        fdb_future_cancel(watch);
        assert_eq!(DESTROYED.load(Ordering::SeqCst), 2);
        assert_eq!(fdb_future_set_callback(fdb_transaction_commit(tr.0), Some(destroy), counter), 0);
    }
    drop((tr, database));
    // By now the engine is closed, or its committer still runs the callback.
    while DESTROYED.load(Ordering::SeqCst) < 3 {
        std::thread::yield_now();
    }
}
