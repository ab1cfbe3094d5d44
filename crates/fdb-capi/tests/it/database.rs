//! Databases, tenants and unsupported calls.

use std::ffi::{CStr, c_char};
use std::ptr::{null, null_mut};

use crate::common::{Future, Tr, len, open};
use fdb_capi::*;

#[test]
fn database_options_are_checked_and_hold_for_transactions() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path());
    let set = |option, value: &[u8]| {
        // SAFETY: the database is open and the slice has its length.
        unsafe { fdb_database_set_option(database.0, option, value.as_ptr(), len(value)) }
    };
    assert_eq!(set(500, &20_000i64.to_le_bytes()), 0);
    assert_eq!(set(500, b"x"), 2006);
    assert_eq!(set(10, &1i64.to_le_bytes()), 0);
    assert_eq!(set(10, b""), 2006);
    assert_eq!(set(800, b""), 0);
    assert_eq!((set(-1, b""), set(4_711, b"")), (2007, 2007));
    assert_eq!(set(503, &40i64.to_le_bytes()), 0);
    let tr = database.transaction();
    tr.set(b"key", &[0; 100]);
    assert_eq!(tr.commit().wait(), 2101);
    // SAFETY: the transaction is alive.
    unsafe { fdb_transaction_reset(tr.0) };
    tr.set(b"key", &[0; 100]);
    assert_eq!(tr.commit().wait(), 2101);
    let other = open(dir.path());
    other.write(b"key", &[0; 100]);
}

#[test]
fn a_databases_defaults_hold_after_on_error() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path());
    // SAFETY: the database is open; the option has no value.
    assert_eq!(unsafe { fdb_database_set_option(database.0, 27, null(), 0) }, 0);
    let tr = database.transaction();
    let reads_own_write = || {
        tr.set(b"key", b"value");
        // SAFETY: the transaction is alive.
        Future(unsafe { fdb_transaction_get(tr.0, b"key".as_ptr(), 3, 1) }).value() != Ok(None)
    };
    assert!(!reads_own_write());
    // SAFETY: the transaction is alive.
    assert_eq!(Future(unsafe { fdb_transaction_on_error(tr.0, 1020) }).wait(), 0);
    assert!(!reads_own_write());
}

#[test]
fn a_tenant_opens_and_is_not_found_when_it_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path());
    let (mut tenant, mut tr) = (null_mut(), null_mut());
    // SAFETY: database and tenant are alive, and the tenant is destroyed once.
    unsafe {
        assert_eq!(fdb_database_open_tenant(database.0, b"t".as_ptr(), 1, &mut tenant), 0);
        assert_eq!(fdb_tenant_create_transaction(tenant, &mut tr), 0);
        assert_eq!(Future(fdb_tenant_get_id(tenant)).error(), 2131);
        fdb_tenant_destroy(tenant);
    }
    let tr = Tr(tr);
    tr.set(b"key", b"value");
    let futures = [tr.get(b"key"), tr.range(b"", b"\xff", 1), tr.watch(b"key"), tr.commit()];
    assert_eq!(futures.map(|future| future.error()), [2131; 4]);
    // SAFETY: the transaction is alive.
    let regardless = unsafe { [fdb_transaction_get_read_version(tr.0), fdb_transaction_get_approximate_size(tr.0)] };
    assert_eq!(regardless.map(|future| Future(future).error()), [0; 2]);
    assert_eq!(database.transaction().get(b"key").value(), Ok(None));
}

#[test]
fn what_is_not_offered_fails() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path());
    let tr = database.transaction();
    // SAFETY: database and transaction are alive; the other arguments are ignored.
    unsafe {
        let mut rebooted = -1;
        let future = Future(fdb_database_reboot_worker(database.0, null(), 0, 0, 0));
        assert_eq!((fdb_future_get_int64(future.0, &mut rebooted), rebooted), (0, 0));
        let uid = b"0123456789abcdef0123456789ABCDEF".as_ptr();
        assert_eq!(Future(fdb_database_create_snapshot(database.0, uid, 32, null(), 0)).error(), 2505);
        assert_eq!(Future(fdb_database_create_snapshot(database.0, uid, 31, null(), 0)).error(), 2509);
        assert_eq!(Future(fdb_database_force_recovery_with_data_loss(database.0, null(), 0)).error(), 2108);
        assert_eq!(Future(fdb_database_blobbify_range(database.0, null(), 0, null(), 0)).error(), 2000);
        let ranges = Future(fdb_transaction_get_blob_granule_ranges(tr.0, null(), 0, null(), 0, 1));
        assert_eq!(fdb_future_get_keyrange_array(ranges.0, null_mut(), null_mut()), 2000);
        let result = fdb_readbg_parse_delta_file(null(), 0, null(), null());
        assert_eq!(fdb_result_get_bg_mutations_array(result, null_mut(), null_mut()), 2000);
        fdb_result_destroy(result);
    }
}

#[test]
fn each_kind_of_answer_comes_out() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path());
    for index in 0u8..20 {
        database.write(&[b'k', index], &[0; 100]);
    }
    let tr = database.transaction();
    // SAFETY: the handles are alive, and the futures outlive the use of their memory.
    unsafe {
        let (mut version, mut protocol, mut seconds) = (0, 0, -1.0);
        assert_eq!(fdb_future_get_int64(Future(fdb_transaction_get_read_version(tr.0)).0, &mut version), 0);
        assert!(version > 0);
        let future = Future(fdb_database_get_server_protocol(database.0, 0));
        assert_eq!((fdb_future_get_uint64(future.0, &mut protocol), protocol), (0, 0x0FDB_00B0_7300_0000));
        let changed = Future(fdb_database_get_server_protocol(database.0, protocol));
        assert!(!changed.is_ready());
        let future = Future(fdb_transaction_get_tag_throttled_duration(tr.0));
        assert_eq!((fdb_future_get_double(future.0, &mut seconds), seconds), (0, 0.0));

        let future = Future(fdb_transaction_get_key(tr.0, b"k".as_ptr(), 1, 0, 2, 0));
        let (mut key, mut length) = (null(), 0);
        assert_eq!(fdb_future_get_key(future.0, &mut key, &mut length), 0);
        assert_eq!(std::slice::from_raw_parts(key, length as usize), [b'k', 1]);

        let future = Future(fdb_transaction_get_range_split_points(tr.0, b"k".as_ptr(), 1, b"l".as_ptr(), 1, 500));
        let (mut keys, mut count) = (null(), 0);
        assert_eq!(fdb_future_get_key_array(future.0, &mut keys, &mut count), 0);
        let keys = std::slice::from_raw_parts(keys, count as usize).iter().map(|key| {
            let key = *key;
            std::slice::from_raw_parts(key.key, key.key_length as usize).to_vec()
        });
        let keys: Vec<Vec<u8>> = keys.collect();
        assert_eq!((keys.first().unwrap().as_slice(), keys.last().unwrap().as_slice()), (&b"k"[..], &b"l"[..]));
        assert!(keys.len() > 3 && keys.is_sorted(), "{keys:?}");

        let future = Future(fdb_transaction_get_addresses_for_key(tr.0, b"k".as_ptr(), 1));
        let (mut strings, mut count): (*mut *const c_char, i32) = (null_mut(), 0);
        assert_eq!(fdb_future_get_string_array(future.0, &mut strings, &mut count), 0);
        for &string in std::slice::from_raw_parts(strings, count as usize) {
            assert!(!CStr::from_ptr(string).to_bytes().is_empty());
        }

        let future = Future(fdb_database_get_client_status(database.0));
        assert_eq!(fdb_future_get_key(future.0, &mut key, &mut length), 0);
        assert!(std::slice::from_raw_parts(key, length as usize).starts_with(br#"{"Healthy":true,"#));
    }
}

#[test]
fn a_versionstamp_comes_with_the_commit() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path());
    let tr = database.transaction();
    tr.set(b"a", b"1");
    // SAFETY: the transaction is alive.
    let stamp = Future(unsafe { fdb_transaction_get_versionstamp(tr.0) });
    assert!(!stamp.is_ready());
    assert_eq!((tr.commit().wait(), stamp.wait()), (0, 0));
    let (mut key, mut length, mut version) = (null(), 0, 0);
    // SAFETY: future and transaction are alive.
    let stamp = unsafe {
        assert_eq!(fdb_future_get_key(stamp.0, &mut key, &mut length), 0);
        assert_eq!(fdb_transaction_get_committed_version(tr.0, &mut version), 0);
        std::slice::from_raw_parts(key, length as usize)
    };
    assert_eq!((stamp.len(), &stamp[..8]), (10, &version.to_be_bytes()[..]));
}
