//! The special key space: modules, selectors, limits, and values.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::common::{commit, on_error, open, range, set};
use fdb_embedded::{Connection, Engine, Error, KeySelector, OpenOptions, RangeOptions, Result, Transaction};
use serde_json::Value;

fn keys(transaction: &Transaction, begin: &[u8], end: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    range(transaction, begin, end, &RangeOptions::default())
}

/// The begins and ends in the transaction module, without the prefix.
fn edges(transaction: &Transaction, part: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let begin = [b"\xff\xff/transaction/", part.as_bytes(), b"/"].concat();
    let found = keys(transaction, &begin, &[&begin[..], b"\xff\xff"].concat()).unwrap();
    found.into_iter().map(|(key, value)| (key[begin.len()..].to_vec(), value)).collect()
}

fn pairs(expected: &[(&[u8], &str)]) -> Vec<(Vec<u8>, Vec<u8>)> {
    expected.iter().map(|(key, value)| (key.to_vec(), value.as_bytes().to_vec())).collect()
}

fn status(engine: &Engine) -> Value {
    let text = engine.transaction().get(b"\xff\xff/status/json", false).unwrap().expect("a document");
    serde_json::from_slice(&text).expect("JSON in UTF-8")
}

#[test]
fn what_is_not_offered_has_its_code() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let (none, crosses) = (Err(Error::SPECIAL_KEYS_NO_MODULE_FOUND), Err(Error::SPECIAL_KEYS_CROSS_MODULE_READ));
    let get = |key: &[u8]| engine.transaction().get(key, false).map(|value| value.is_some());
    for key in [
        "cluster_id",
        "worker_interfaces/1.2.3.4:1",
        "tracing/token",
        "metrics/health/aggregate",
        "management/data_distribution/mode",
    ] {
        assert_eq!(get(&[b"\xff\xff/", key.as_bytes()].concat()), none, "{key}");
    }
    assert_eq!(get(b"\xff\xff"), none);
    assert_eq!(get(b"\xff\xff/unknown"), none);
    assert_eq!(get(b"\xff\xff\xff"), Err(Error::KEY_OUTSIDE_LEGAL_RANGE), "past the special keys");
    // A cluster of one process without any configuration has nothing there either.
    for key in [
        "error_message",
        "management/db_locked",
        "management/excluded/1.2.3.4",
        "global_config/a",
        "management/tenant/map/a",
    ] {
        assert_eq!(get(&[b"\xff\xff/", key.as_bytes()].concat()), Ok(false), "{key}");
    }
    let read = |begin: &[u8], end: &[u8]| keys(&engine.transaction(), begin, end).map(|found| found.len());
    assert_eq!(read(b"\xff\xff/management/", b"\xff\xff/management0").map(|_| true), none);
    assert_eq!(read(b"\xff\xff/management/excluded/", b"\xff\xff/management/excluded0"), Ok(0));
    assert_eq!(read(b"\xff\xff/u", b"\xff\xff/v"), none.map(|_| 0));
    assert_eq!(read(b"\xff\xff/status/json", b"\xff\xff/transaction0"), crosses);
    assert_eq!(read(b"\xff\xff", b"\xff\xff\xff"), crosses);
    assert_eq!(read(b"", b"\xff\xff\xff"), Err(Error::KEY_OUTSIDE_LEGAL_RANGE));
    let relaxed = engine.transaction();
    relaxed.set_option(713, None).unwrap();
    let told: Vec<_> = keys(&relaxed, b"\xff\xff", b"\xff\xff\xff").unwrap().into_iter().map(|(key, _)| key).collect();
    assert_eq!(told, [b"\xff\xff/connection_string".to_vec(), b"\xff\xff/status/json".to_vec()]);
    assert_eq!(relaxed.get(b"\xff\xff/unknown", false), Ok(None));
    assert_eq!(relaxed.get(b"\xff\xff/cluster_id", false), Err(Error::SPECIAL_KEYS_NO_MODULE_FOUND));
}

#[test]
fn no_special_key_can_be_written_but_tenants_which_are_disabled() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let check = |allows: bool, write: &dyn Fn(&Transaction), expected: Result<()>| {
        let transaction = engine.transaction();
        if allows {
            transaction.set_option(714, None).unwrap();
        }
        write(&transaction);
        assert_eq!(commit(&transaction), expected);
    };
    let (disabled, none) = (Err(Error::SPECIAL_KEYS_WRITE_DISABLED), Err(Error::SPECIAL_KEYS_NO_WRITE_MODULE_FOUND));
    let key = b"\xff\xff/management/excluded/1.2.3.4";
    check(false, &|tr| tr.set(key, b""), disabled);
    check(true, &|tr| tr.set(key, b""), none);
    check(true, &|tr| tr.clear(key), none);
    check(true, &|tr| tr.set(b"\xff\xff/management/tenant/map/a", b""), Err(Error::TENANTS_DISABLED));
    check(true, &|tr| tr.clear_range(key, b"\xff\xff/management0"), none);
    check(false, &|tr| tr.clear_range(key, key), disabled);
    check(true, &|tr| tr.clear_range(key, key), Ok(()));
    check(true, &|tr| tr.clear_range(key, b"\xff\xff\xffx"), Err(Error::KEY_OUTSIDE_LEGAL_RANGE));
    let tenant = b"\xff\xff/management/tenant/map/one";
    check(false, &|tr| tr.set(tenant, b""), disabled);
    check(true, &|tr| tr.set(tenant, b""), Err(Error::TENANTS_DISABLED));
    check(true, &|tr| tr.clear(tenant), Err(Error::TENANTS_DISABLED));
    check(true, &|tr| tr.clear_range(tenant, b"\xff\xff/x"), Err(Error::SPECIAL_KEYS_CROSS_MODULE_CLEAR));
    check(true, &|tr| tr.clear_range(key, tenant), Err(Error::SPECIAL_KEYS_CROSS_MODULE_CLEAR));
    check(true, &|tr| tr.set(b"\xff\xff\xff", b""), Err(Error::KEY_OUTSIDE_LEGAL_RANGE));
    check(true, &|tr| tr.atomic_op(key, b"", 2), Err(Error::KEY_OUTSIDE_LEGAL_RANGE));
}

#[test]
fn a_transaction_tells_its_conflict_ranges() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let transaction = engine.transaction();
    transaction.add_conflict_range(b"foo", b"foo\0", false).unwrap();
    transaction.add_conflict_range(b"bar/", b"bar0", false).unwrap();
    transaction.set(b"w", b"");
    transaction.atomic_op(b"v\0\0\0\0\0\0\0\0\0\0\x01\0\0\0", b"", 14);
    let read = pairs(&[(b"bar/", "1"), (b"bar0", "0"), (b"foo", "1"), (b"foo\0", "0")]);
    assert_eq!(edges(&transaction, "read_conflict_range"), read);
    let stamped: &[(&[u8], &str)] = &[
        (b"v\0\0\0\0\0\0\0\0\0\0", "1"),
        (b"v\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\0", "0"),
        (b"w", "1"),
        (b"w\0", "0"),
    ];
    assert_eq!(edges(&transaction, "write_conflict_range"), pairs(stamped));
    let prefix = b"\xff\xff/transaction/read_conflict_range/";
    let walk = |begin: KeySelector<'_>, end: KeySelector<'_>, limit, reverse| {
        let options = RangeOptions { limit, reverse, ..RangeOptions::default() };
        let found = transaction.get_range(begin, end, &options).unwrap();
        (found.iter().map(|(key, _)| key[prefix.len()..].to_vec()).collect::<Vec<_>>(), found.more)
    };
    let (first, last) = (&[prefix, &b"bar/"[..]].concat()[..], &[prefix, &b"g"[..]].concat()[..]);
    let (from, to) = (KeySelector::first_greater_or_equal(first), KeySelector::first_greater_or_equal(last));
    assert_eq!(walk(from, to, 2, false), (vec![b"bar/".to_vec(), b"bar0".to_vec()], true));
    assert_eq!(walk(from, to, 1, true), (vec![b"foo\0".to_vec()], true));
    let third = KeySelector { offset: 3, ..from };
    assert_eq!(walk(third, to, 0, false), (vec![b"foo".to_vec(), b"foo\0".to_vec()], false));
    let before = KeySelector { offset: -1, ..to };
    assert_eq!(walk(from, before, 0, false), (vec![b"bar/".to_vec(), b"bar0".to_vec()], false));
}

#[test]
fn conflicting_keys_are_told_until_the_next_conflict() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let conflict = |transaction: &Transaction, key: &[u8]| {
        transaction.set_option(712, None).unwrap();
        transaction.get(key, false).unwrap();
        transaction.get(b"calm", false).unwrap();
        set(&engine, key, b"");
        transaction.set(b"mine", b"");
        assert_eq!(commit(transaction), Err(Error::NOT_COMMITTED));
    };
    let transaction = engine.transaction();
    conflict(&transaction, b"a");
    let told = pairs(&[(b"a", "1"), (b"a\0", "0")]);
    assert_eq!(edges(&transaction, "conflicting_keys"), told);
    on_error(&transaction, 1020).unwrap();
    assert_eq!(edges(&transaction, "conflicting_keys"), told, "after on_error");
    transaction.set(b"mine", b"");
    commit(&transaction).unwrap();
    transaction.reset();
    assert_eq!(edges(&transaction, "conflicting_keys"), told, "after a commit and a reset");
    conflict(&transaction, b"b");
    assert_eq!(edges(&transaction, "conflicting_keys"), pairs(&[(b"b", "1"), (b"b\0", "0")]));
}

#[test]
fn the_way_to_the_engine_is_told() {
    let dir = tempfile::tempdir().unwrap();
    // Quotes, a line break and invalid UTF-8, as a path may contain them.
    let data = dir.path().join(std::ffi::OsStr::from_bytes(b"da\"ta\\\n\xff"));
    let engine = Engine::open(&data, OpenOptions::default()).unwrap();
    let get = |engine: &Engine, key: &[u8]| engine.transaction().get(key, false).unwrap();
    let string = |name: &[u8]| [b"embedded:", name, b"@", engine.directory().as_os_str().as_bytes()].concat();
    assert_eq!(get(&engine, b"\xff\xff/connection_string"), Some(string(b"flatbed")));
    assert_eq!(get(&engine, b"\xff\xff/cluster_file_path"), None);
    let cluster_file = Some(PathBuf::from("some/\"fdb\".cluster"));
    let named = engine.with_connection(Connection { cluster_file, name: "main".into() });
    assert_eq!(get(&named, b"\xff\xff/connection_string"), Some(string(b"main")));
    assert_eq!(get(&named, b"\xff\xff/cluster_file_path"), Some(b"some/\"fdb\".cluster".to_vec()));
    let document = status(&named);
    assert_eq!(document["client"]["cluster_file"]["path"], "some/\"fdb\".cluster");
    assert_eq!(document["cluster"]["embedded"]["directory"], engine.directory().to_string_lossy().as_ref());
}

#[test]
fn the_status_is_true() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    for number in 0..10u8 {
        set(&engine, &[number], &[7; 100]);
    }
    let reader = engine.transaction();
    assert_eq!(keys(&reader, b"", b"\xff").map(|found| found.len()), Ok(10));
    reader.get(&[3], false).unwrap();
    let document = status(&engine);
    let at = |path: &str| document.pointer(path).unwrap_or_else(|| panic!("no {path} in {document:#}")).clone();
    let count = |path: &str| at(path).as_u64().unwrap_or_else(|| panic!("{path} is no count"));
    assert_eq!(at("/client/database_status"), serde_json::json!({"available": true, "healthy": true}));
    assert_eq!(at("/cluster/recovery_state/name"), "fully_recovered");
    assert_eq!(at("/cluster/configuration/redundancy_mode"), "single");
    assert_eq!(at("/cluster/data/state/name"), "healthy");
    assert_eq!(count("/cluster/workload/transactions/committed/counter"), 10);
    assert_eq!(count("/cluster/workload/operations/writes/counter"), 10);
    assert_eq!(count("/cluster/workload/bytes/written/counter"), 10 * 101);
    assert_eq!(count("/cluster/workload/bytes/read/counter"), 11 * 101);
    assert_eq!(count("/cluster/workload/keys/read/counter"), 11);
    assert!(at("/cluster/workload/transactions/committed/hz").as_f64() > Some(0.0));
    assert!(count("/cluster/data/total_disk_used_bytes") >= 4_096);
    assert!(count("/client/timestamp") > 1_700_000_000);
    let processes = at("/cluster/processes");
    let processes: Vec<_> = processes.as_object().unwrap().values().collect();
    let [process] = processes.as_slice() else { panic!("{processes:?}") };
    assert_eq!(process["messages"], serde_json::json!([]));
    assert!(process["disk"]["free_bytes"].as_u64() <= process["disk"]["total_bytes"].as_u64());
    assert!(process["roles"].as_array().unwrap().iter().any(|role| role["role"] == "storage"));
    assert_eq!(at("/cluster/embedded/open_watches"), 0);
    assert_eq!(at("/cluster/embedded/failure"), Value::Null);
    assert!(count("/cluster/embedded/conflict_ranges") >= 10);
    assert!(count("/cluster/embedded/map_bytes") >= count("/cluster/embedded/data_bytes"));
    assert!(count("/cluster/embedded/open_snapshots") >= 1);
}
