//! Reads answered later and from another thread, and the events that end them before.

use std::ffi::c_void;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvError, Sender, TryRecvError, channel};

use crate::common::{Database, Future, Tr};
use fdb_capi::*;
use fdb_embedded::{Buggify, OpenOptions};

fn open(dir: &Path, every: Option<u32>, buggify: Option<Buggify>) -> Database {
    let mut options = OpenOptions::default();
    options.pending_read_every = every;
    options.buggify = buggify;
    Database(open_embedded(dir, options).unwrap())
}

struct Stop {
    tell: Sender<bool>,
    go_on: Receiver<()>,
}

unsafe extern "C" fn stop(_: *mut FDBFuture, parameter: *mut c_void) {
    // SAFETY: the parameter is the box that `stop_engine` made for one callback.
    let stop = unsafe { Box::from_raw(parameter.cast::<Stop>()) };
    let is_engines = std::thread::current().name() == Some("fdb-timer");
    stop.tell.send(is_engines).unwrap();
    if is_engines {
        let _ = stop.go_on.recv();
    }
}

/// Blocks the engine's thread in a callback while it lives, so that no answer is delivered.
struct Stopped {
    _go_on: Sender<()>,
    _read: Future,
    _tr: Tr,
}

fn stop_engine(database: &Database) -> Stopped {
    loop {
        let ((tell, is_stopped), (go_on, may_go_on)) = (channel(), channel());
        let tr = database.transaction();
        let read = tr.get(b"stop");
        let parameter = Box::into_raw(Box::new(Stop { tell, go_on: may_go_on })).cast();
        // SAFETY: the future is alive, and `stop` takes the parameter.
        assert_eq!(unsafe { fdb_future_set_callback(read.0, Some(stop), parameter) }, 0);
        // The answer may have come before the callback was set, which then ran here.
        if is_stopped.recv().unwrap() {
            return Stopped { _go_on: go_on, _read: read, _tr: tr };
        }
    }
}

fn set_timeout(tr: &Tr, timeout_ms: i64) {
    let value = timeout_ms.to_le_bytes();
    // SAFETY: the transaction is alive and the value has its length.
    assert_eq!(unsafe { fdb_transaction_set_option(tr.0, 500, value.as_ptr(), 8) }, 0);
}

#[test]
fn a_pending_read_is_answered_once_and_keeps_its_memory() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path(), Some(1), None);
    database.write(b"key", b"value");
    let tr = database.transaction();
    let stopped = stop_engine(&database);
    let (value, range) = (tr.get(b"key"), tr.range(b"", b"\xff", 0));
    assert!(!value.is_ready() && !range.is_ready());
    assert_eq!((value.error(), value.value()), (2002, Err(2002)));
    let (first, second) = (value.callback(), value.callback());
    assert_eq!(first.try_recv(), Err(TryRecvError::Empty));
    drop(stopped);
    for calls in [first, second] {
        assert_eq!(calls.recv(), Ok((value.0.addr(), 0)));
        assert_eq!(calls.recv(), Err(RecvError));
    }
    assert_eq!(range.wait(), 0);
    drop((tr, database));
    assert_eq!(value.value(), Ok(Some(b"value".to_vec())));
    assert_eq!(range.pairs(), Ok((vec![(b"key".to_vec(), b"value".to_vec())], false)));
}

#[test]
fn a_pending_read_sees_what_was_there_when_it_was_called() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path(), Some(1), None);
    let tr = database.transaction();
    let stopped = stop_engine(&database);
    let before = tr.get(b"key");
    tr.set(b"key", b"own");
    let after = tr.get(b"key");
    drop(stopped);
    assert_eq!((before.wait(), before.value()), (0, Ok(None)));
    assert_eq!((after.wait(), after.value()), (0, Ok(Some(b"own".to_vec()))));
}

#[test]
fn a_pending_read_may_be_cancelled_and_destroyed() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path(), Some(1), None);
    let tr = database.transaction();
    let stopped = stop_engine(&database);
    let (cancelled, destroyed) = (tr.get(b"key"), tr.range(b"", b"\xff", 0));
    let calls = [cancelled.callback(), destroyed.callback()];
    cancelled.cancel();
    assert_eq!((cancelled.is_ready(), cancelled.error()), (true, 1101));
    drop(destroyed);
    drop(stopped);
    for calls in calls {
        assert_eq!(calls.recv().map(|call| call.1), Ok(1101));
        assert_eq!(calls.recv(), Err(RecvError));
    }
    assert_eq!(tr.get(b"key").wait(), 0);
    assert_eq!(cancelled.error(), 1101);
}

#[test]
fn what_ends_a_transaction_ends_its_pending_reads() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path(), Some(1), None);
    let (cancelled, reset, destroyed) = (database.transaction(), database.transaction(), database.transaction());
    let stopped = stop_engine(&database);
    let reads = [cancelled.get(b"key"), reset.get(b"key"), destroyed.get(b"key")];
    // SAFETY: the transactions are alive.
    unsafe {
        fdb_transaction_cancel(cancelled.0);
        fdb_transaction_reset(reset.0);
    }
    drop(destroyed);
    let calls = reads.each_ref().map(Future::callback);
    drop(stopped);
    for calls in calls {
        assert_eq!(calls.recv().map(|call| call.1), Ok(1025));
        assert_eq!(calls.recv(), Err(RecvError));
    }
    assert_eq!(reset.get(b"key").wait(), 0);
    assert_eq!(cancelled.get(b"key").wait(), 1025);
}

#[test]
fn a_commit_is_answered_after_the_reads_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path(), Some(1), None);
    let (writes, reads) = (database.transaction(), database.transaction());
    let _stopped = stop_engine(&database);
    let (first, second) = (writes.get(b"key"), reads.get(b"key"));
    assert!(!first.is_ready() && !second.is_ready());
    writes.set(b"key", b"value");
    let (written, read) = (writes.commit(), reads.commit());
    assert_eq!((written.wait(), first.is_ready(), first.value()), (0, true, Ok(None)));
    assert_eq!((read.wait(), second.is_ready(), second.value()), (0, true, Ok(None)));
}

#[test]
fn the_first_look_finds_it_pending_however_long_ago_the_call_was() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path(), Some(1), None);
    let tr = database.transaction();
    let (looked_at, called_back) = (tr.get(b"key"), tr.get(b"key"));
    // Another read passes through the engine's thread, and these two do not.
    assert_eq!(tr.get(b"key").wait(), 0);
    assert!(!looked_at.is_ready());
    while !looked_at.is_ready() {
        std::thread::yield_now();
    }
    assert_eq!(called_back.callback().recv(), Ok((called_back.0.addr(), 0)));
}

#[test]
fn a_small_share_of_reads_is_pending_without_faults() {
    for (every, expected) in [(None, 3), (Some(0), 0), (Some(1), 1_000), (Some(2), 500)] {
        let dir = tempfile::tempdir().unwrap();
        let database = open(dir.path(), every, None);
        let tr = database.transaction();
        assert!((0..1_000).all(|_| tr.get(b"key").wait() == 0));
        // SAFETY: the database is open.
        assert_eq!(unsafe { engine_of(database.0) }.stats().pending_reads, expected, "{every:?}");
    }
}

#[test]
fn late_answers_meet_timeouts() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path(), None, Some(Buggify::new(1.0, 5)));
    let reads: Vec<(Tr, Future)> = (0..300)
        .map(|at| {
            let tr = database.transaction();
            if at % 2 == 0 {
                set_timeout(&tr, 20);
            }
            let read = tr.get(b"key");
            if at % 2 == 1 {
                set_timeout(&tr, 20);
            }
            (tr, read)
        })
        .collect();
    let errors: Vec<fdb_error_t> = reads.iter().map(|(_, read)| read.wait()).collect();
    assert!(errors.iter().all(|error| [0, 1007, 1009, 1031, 1037].contains(error)), "{errors:?}");
    for parity in 0..2 {
        let mut of_parity = errors.iter().skip(parity).step_by(2);
        assert!(of_parity.any(|error| *error == 1031), "one in sixteen is later than 50 ms");
    }
    let patient: Vec<(Tr, Future)> = (0..100)
        .map(|_| {
            let tr = database.transaction();
            let read = tr.get(b"key");
            (tr, read)
        })
        .collect();
    assert!(patient.iter().all(|(_, read)| read.wait() != 1031));
}

#[test]
fn a_database_that_closes_answers_what_is_pending() {
    let dir = tempfile::tempdir().unwrap();
    let reads: Vec<Future> = {
        let database = open(dir.path(), Some(1), Some(Buggify::new(1.0, 6)));
        (0..50).map(|_| database.transaction().get(b"key")).collect()
    };
    for read in reads {
        assert!([0, 1007, 1009, 1025, 1037].contains(&read.wait()), "{}", read.error());
    }
}
