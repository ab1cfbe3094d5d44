//! The order of the network calls, and databases by cluster file. The state is process-wide, so this is one test, in a
//! program of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "tests and their helpers")]

#[path = "it/common.rs"]
#[allow(dead_code, reason = "the tests of `it` use the rest")]
mod common;

use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvError, Sender, TryRecvError, channel};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use common::{Database, Future};
use fdb_capi::*;
use fdb_embedded::{OpenOptions, SimulatedCluster};

static HOOKS: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn hook(parameter: *mut c_void) {
    HOOKS.fetch_add(parameter.addr(), Ordering::SeqCst);
}

/// Sends the id of the thread that runs it.
unsafe extern "C" fn tell_thread(_: *mut FDBFuture, parameter: *mut c_void) {
    // SAFETY: the parameter is the sender that `watch_with_callback` boxed for one callback.
    let sender = unsafe { Box::from_raw(parameter.cast::<Sender<ThreadId>>()) };
    sender.send(std::thread::current().id()).unwrap();
}

/// A waiting watch, the thread that runs its callback, and the callback's own parameter.
fn watch_with_callback(database: &Database) -> (Future, Receiver<ThreadId>, *mut Sender<ThreadId>) {
    let tr = database.transaction();
    let watch = tr.watch(b"watched");
    assert_eq!(tr.commit().wait(), 0);
    let (sender, called) = channel();
    let parameter = Box::into_raw(Box::new(sender));
    // SAFETY: the future is alive and the parameter is the callback's own.
    assert_eq!(unsafe { fdb_future_set_callback(watch.0, Some(tell_thread), parameter.cast()) }, 0);
    (watch, called, parameter)
}

fn create(path: &CStr) -> Result<Database, fdb_error_t> {
    let mut database = null_mut();
    // SAFETY: the path ends with a zero byte.
    match unsafe { fdb_create_database(path.as_ptr(), &mut database) } {
        0 => Ok(Database(database)),
        error => Err(error),
    }
}

fn set_option(option: i32, value: &[u8]) -> fdb_error_t {
    // SAFETY: the slice has its length.
    unsafe { fdb_network_set_option(option, value.as_ptr(), value.len() as i32) }
}

#[test]
fn the_network_is_set_up_run_and_stopped_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("fdb.cluster");
    std::fs::write(&file, "# test\nembedded:test@data\n").unwrap();
    let path = CString::new(file.to_str().unwrap()).unwrap();

    assert_eq!(fdb_setup_network(), 2200);
    assert_eq!(create(&path).err(), Some(2200));
    assert_eq!(fdb_select_api_version_impl(730, 720), 2202);
    assert_eq!(fdb_select_api_version_impl(740, 740), 2203);
    assert_eq!(fdb_select_api_version_impl(700, 730), 2203);
    assert_eq!(fdb_select_api_version_impl(710, fdb_get_max_api_version()), 0);
    assert_eq!(fdb_select_api_version_impl(730, 730), 2201);

    // SAFETY: no other thread of this process accesses the environment now.
    unsafe { std::env::set_var("FDB_NETWORK_OPTION_TRACE_FORMAT", "text") };
    assert_eq!((set_option(30, b""), fdb_setup_network()), (2022, 2022));
    // SAFETY: as above.
    unsafe { std::env::set_var("FDB_NETWORK_OPTION_TRACE_FORMAT", "json") };
    assert_eq!(set_option(30, b""), 0);
    assert_eq!(set_option(31, b"1"), 2006);
    assert_eq!(set_option(60, b"x"), 2006);
    assert_eq!(set_option(82, &101u64.to_le_bytes()), 2006);
    assert_eq!(set_option(82, &25u64.to_le_bytes()), 0);
    assert_eq!(set_option(12_345, b""), 2007);

    assert_eq!(fdb_run_network(), 2008);
    assert_eq!(fdb_stop_network(), 2008);
    // SAFETY: the hook only counts.
    assert_eq!(unsafe { fdb_add_network_thread_completion_hook(Some(hook), null_mut()) }, 2008);
    assert_eq!(create(&path).err(), Some(2008));
    assert_eq!(fdb_setup_network(), 0);
    assert_eq!(fdb_setup_network(), 2009);
    assert_eq!((set_option(60, b""), set_option(63, b"/var/lib"), set_option(64, b"")), (2007, 2007, 2007));
    // Callbacks that are due before the network runs wait for it.
    let database = create(&path).unwrap();
    let (watch, called, _) = watch_with_callback(&database);
    watch.cancel();
    assert_eq!((watch.error(), called.try_recv()), (1101, Err(TryRecvError::Empty)));
    let add_hook = |weight: usize| {
        // SAFETY: the hook only counts; its parameter is a number.
        unsafe { fdb_add_network_thread_completion_hook(Some(hook), std::ptr::without_provenance_mut(weight)) }
    };
    assert_eq!((add_hook(1), add_hook(10)), (0, 0));

    let network = std::thread::spawn(|| fdb_run_network());
    let network_thread = network.thread().id();
    assert_eq!(called.recv(), Ok(network_thread));
    let (watch, called, _) = watch_with_callback(&database);
    watch.cancel();
    assert_eq!(called.recv(), Ok(network_thread));
    let (_watch, called, _) = watch_with_callback(&database);
    database.write(b"watched", b"1");
    assert_eq!(called.recv(), Ok(network_thread));
    database.write(b"key", b"value");
    assert!(dir.path().join("data").is_dir());
    assert_eq!(create(&path).unwrap().transaction().get(b"key").value(), Ok(Some(b"value".to_vec())));
    assert_eq!(create(c"does/not/exist").err(), Some(1515));
    for (text, code) in [("embedded:test", 2104), ("desc:id@127.0.0.1:4500", 2104)] {
        let text = CString::new(text).unwrap();
        let mut other = null_mut();
        // SAFETY: the string ends with a zero byte.
        assert_eq!(unsafe { fdb_create_database_from_connection_string(text.as_ptr(), &mut other) }, code);
    }

    // A simulated cluster's answers come from the network thread, in the order of their due times.
    let mut cluster = SimulatedCluster::parse("400000,200000,0").unwrap();
    cluster.has_server = true;
    let mut options = OpenOptions::default();
    options.simulated = Some(cluster);
    let simulated = Database(open_embedded(&dir.path().join("simulated"), options).unwrap());
    let (slow, quick, begun) = (simulated.transaction(), simulated.transaction(), Instant::now());
    let is_past = |ms| Instant::now() >= begun + Duration::from_millis(ms);
    let (sender, called) = channel();
    let asked = [slow.get(b"key"), quick.get(b"\xff/metadataVersion")];
    for future in &asked {
        let sender: *mut Sender<ThreadId> = Box::into_raw(Box::new(sender.clone()));
        // SAFETY: the future is alive and the parameter is the callback's own.
        assert_eq!(unsafe { fdb_future_set_callback(future.0, Some(tell_thread), sender.cast()) }, 0);
    }
    assert_eq!(called.recv(), Ok(network_thread));
    assert!(asked[1].is_ready() && is_past(200));
    assert_eq!(called.recv(), Ok(network_thread));
    assert!(asked[0].is_ready() && is_past(600));
    // The end of the transaction ends its pending reads.
    let late = slow.get(b"key");
    drop(slow);
    assert_eq!(late.error(), 1025);
    drop((asked, late, quick, simulated));

    // The options switch faults on and off in an open database.
    let commit = || {
        let tr = database.transaction();
        tr.set(b"key", b"value");
        tr.commit().wait()
    };
    let all = 100u64.to_le_bytes();
    assert_eq!((set_option(82, &all), set_option(83, &all), set_option(80, b"")), (0, 0, 0));
    for _ in 0..20 {
        let error = commit();
        assert!([1007, 1020, 1021, 1042].contains(&error), "{error}");
    }
    assert_eq!(set_option(81, b""), 0);
    assert!((0..20).all(|_| commit() == 0));

    assert_eq!(HOOKS.load(Ordering::SeqCst), 0);
    assert_eq!(fdb_stop_network(), 0);
    assert_eq!(network.join().unwrap(), 0);
    assert_eq!(HOOKS.load(Ordering::SeqCst), 11);
    assert_eq!((fdb_run_network(), fdb_setup_network(), fdb_stop_network()), (2025, 2009, 0));
    assert_eq!((add_hook(100), HOOKS.load(Ordering::SeqCst)), (0, 111));
    assert_eq!(database.transaction().get(b"key").value(), Ok(Some(b"value".to_vec())));
    // The callback thread has ended; futures still complete.
    let (watch, called, parameter) = watch_with_callback(&database);
    database.write(b"watched", b"2");
    assert_eq!((watch.wait(), called.try_recv()), (0, Err(TryRecvError::Empty)));
    drop(watch);
    // SAFETY: the callback is not called again, and no other code takes the box.
    drop(unsafe { Box::from_raw(parameter) });
    assert_eq!(called.recv(), Err(RecvError));
}

#[test]
fn errors_have_texts_and_predicates() {
    let text = |code| {
        // SAFETY: the texts end with a zero byte and live as long as the process.
        unsafe { CStr::from_ptr(fdb_get_error(code)) }.to_str().unwrap()
    };
    assert_eq!(text(0), "Success");
    assert_eq!(text(1020), "Transaction not committed due to conflict with another transaction");
    assert_eq!((text(-5), text(30_001), text(29_999)), (text(4000), text(4000), "UNKNOWN_ERROR"));
    assert_eq!(text(2136), "Tenants have been disabled in the cluster");
    assert_eq!(fdb_get_error(1020), fdb_get_error(1020));
    assert_eq!((fdb_error_predicate(50_000, 1020), fdb_error_predicate(50_001, 1020)), (1, 0));
}
