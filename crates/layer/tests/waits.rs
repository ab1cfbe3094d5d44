//! How many answers of a cluster each operation waits for, one after the other, and what it reads and writes.

use flatbed_layer::waits::{self, Path};
use support::{create, get, put};

mod support;

#[tokio::test]
async fn an_operations_waits_are_counted() {
    let store = support::Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let rev = put(&db, "d", None, r#"{"a":1}"#).await.unwrap();
    get(&db, "d").await.unwrap();

    let (read, waits) = waits::count(get(&db, "d")).await;
    read.unwrap();
    assert_eq!(waits.transactions, 1);
    assert_eq!(waits.path, Path { read_versions: 1, reads: 1, commits: 0 });
    assert_eq!((waits.commits, waits.keys_written), (0, 0));
    assert!(waits.keys_read >= 2 && waits.bytes_read > 0, "{waits:?}");

    let (written, waits) = waits::count(put(&db, "d", Some(&rev), r#"{"a":2}"#)).await;
    written.unwrap();
    assert_eq!((waits.transactions, waits.commits, waits.path.commits), (1, 1, 1));
    assert!(waits.keys_written > 0 && waits.bytes_written > waits.keys_written, "{waits:?}");

    // What is not an operation is in the process's totals all the same.
    let total = |name: &str| {
        let family = layer.metrics().into_iter().find(|family| family.name == name).expect("the family");
        match family.samples[0].value {
            flatbed_metrics::Value::Count(count) => count,
            _ => panic!("{name} is a counter"),
        }
    };
    let names = ["flatbed_range_reads", "flatbed_keys_read", "flatbed_bytes_read", "flatbed_keys_written"];
    let before = names.map(total);
    get(&db, "d").await.unwrap();
    put(&db, "e", None, "{}").await.unwrap();
    for (name, before) in names.into_iter().zip(before) {
        assert!(total(name) > before, "{name}");
    }
}
