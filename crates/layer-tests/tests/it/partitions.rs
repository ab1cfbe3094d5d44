//! Partitioned databases: valid ids, and the counters of partitions.

use std::collections::BTreeMap;

use crate::support::{Store, assert_clean, change, delete, put, snapshot};
use flatbed_layer::check::check_database;
use flatbed_layer::json::Value;
use flatbed_layer::{
    AllDocsQuery, CreateOptions, Database, Edit, Error, Invalid, PartitionInfo, Refusal, RevId, waits,
};

async fn partitioned(shards: Option<u32>) -> (Store, crate::support::Layer, Database) {
    let store = Store::new();
    let layer = store.layer().await;
    let options = CreateOptions { shards, partitioned: true, ..CreateOptions::default() };
    layer.create_database("db", &options).await.unwrap();
    let db = layer.database("db");
    (store, layer, db)
}

async fn info(db: &Database, partition: &str) -> PartitionInfo {
    db.partition_info(partition).await.unwrap().expect("partitions")
}

#[tokio::test]
async fn ids_name_their_partition() {
    let (_store, layer, db) = partitioned(None).await;
    for (id, what, reason) in [
        ("nopartition", Invalid::Id, "Doc id must be of form partition:id"),
        (":x", Invalid::Partition, "Partition must not be empty"),
        ("_x:x", Invalid::Id, "Only reserved document ids may start with underscore."),
        ("a:", Invalid::Id, "Document id must not be empty"),
        ("a:_x", Invalid::Id, "Only reserved document ids may start with underscore."),
    ] {
        match put(&db, id, None, "{}").await {
            Err(Error::Refused(refusal @ Refusal::InvalidDocument { what: found, .. })) => {
                assert_eq!((found, refusal.to_string().as_str()), (what, reason), "{id}");
            }
            other => panic!("{id}: {other:?}"),
        }
    }
    for id in ["a:b", "a:b:c", "_design/d", "é:é"] {
        put(&db, id, None, "{}").await.unwrap_or_else(|error| panic!("{id}: {error}"));
    }
    assert!(db.is_partitioned().await.unwrap() && db.info().await.unwrap().is_partitioned);
    assert_eq!(info(&db, "a").await.doc_count, 2);
    // Databases without partitions are unchanged.
    layer.create_database("other", &CreateOptions::default()).await.unwrap();
    let other = layer.database("other");
    put(&other, "nopartition", None, "{}").await.unwrap();
    assert_eq!(other.partition_info("a").await.unwrap(), None);
    let system = CreateOptions { partitioned: true, ..CreateOptions::default() };
    let refused = layer.create_database("_users", &system).await;
    assert!(matches!(refused, Err(Error::Refused(Refusal::InvalidSetting(_)))), "{refused:?}");
}

#[tokio::test]
async fn the_sizes_of_many_partitions_are_read_at_once() {
    let (_store, layer, db) = partitioned(None).await;
    layer.bound_sizes(8_000_000, 8_000_000, 1_000);
    put(&db, "p07:large", None, &format!(r#"{{"text":"{}"}}"#, "x".repeat(2_000))).await.unwrap();
    let edit = |at: usize| Edit {
        id: format!("p{at:02}:a").into(),
        parent: None,
        history: None,
        deleted: false,
        expiry: None,
        attachments: Vec::new(),
        body: Value::Object(Vec::new()),
    };
    let edits: Vec<Edit<'_>> = (0..60).map(edit).collect();
    let (outcomes, waits) = waits::count(db.bulk_update(&edits)).await;
    let outcomes = outcomes.unwrap();
    let refused = edits.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_err());
    assert_eq!(refused.map(|(edit, _)| &*edit.id).collect::<Vec<_>>(), ["p07:a"]);
    // Faults may begin transactions anew.
    assert!(waits.transactions < 30, "{waits:?}");
}

/// After writes, deletions and purges the counters equal a recount, and an empty partition leaves no keys.
#[tokio::test]
async fn counters_are_what_a_recount_gives() {
    for shards in [None, Some(3)] {
        let (store, layer, db) = partitioned(shards).await;
        let mut revs: BTreeMap<String, RevId> = BTreeMap::new();
        for n in 0..60 {
            let id = format!("p{}:{n}", n % 7);
            let rev = put(&db, &id, None, &format!("{{\"n\":\"{}\"}}", "x".repeat(n))).await.unwrap();
            revs.insert(id, rev);
        }
        put(&db, "_design/d", None, "{}").await.unwrap();
        for n in (0..60).step_by(3) {
            let id = format!("p{}:{n}", n % 7);
            let parent = revs.remove(&id).unwrap();
            let rev = match n % 2 {
                0 => put(&db, &id, Some(&parent), "{\"changed\":true}").await.unwrap(),
                _ => delete(&db, &id, &parent).await.unwrap(),
            };
            revs.insert(id, rev);
        }
        assert_clean(&layer, &db).await;
        let zero = info(&db, "p0").await;
        // 0, 7, ... 56, of which 0, 21 and 42 were changed or deleted.
        assert_eq!((zero.doc_count, zero.doc_del_count), (8, 1));
        assert!(zero.external_size_bytes > 0);
        for (id, rev) in revs.iter().filter(|(id, _)| id.starts_with("p0:")) {
            assert_eq!(db.purge(id, std::slice::from_ref(rev)).await.unwrap().len(), 1);
        }
        assert_eq!(info(&db, "p0").await, PartitionInfo::default());
        assert_clean(&layer, &db).await;
        // The checker finds a wrong counter.
        let (key, _) =
            snapshot(&store).await.into_iter().rfind(|(key, _)| key.windows(2).any(|two| two == b"p1")).unwrap();
        change(&store.fdb, |trx| trx.set(&key, &9_i64.to_le_bytes())).await;
        let report = check_database(&db, |_| {}).await.unwrap();
        assert!(report.violations.iter().any(|found| found.starts_with("partition \"p1\" counts ")), "{report:#?}");
    }
}

/// Queries of a partition return only its documents, through a partitioned index or by ids.
#[tokio::test]
async fn partitions_are_queried() {
    let (_store, layer, db) = partitioned(None).await;
    for n in 0..40 {
        put(&db, &format!("p{}:{n:02}", n % 4), None, &format!("{{\"n\":{n}}}")).await.unwrap();
    }
    let view = r#"{"map":{"fields":{"n":"asc"},"partial_filter_selector":{}},"reduce":"_count","options":{"def":{"fields":["n"]}}}"#;
    let design = format!(r#"{{"language":"query","views":{{"i":{view}}}}}"#);
    let found = async |selector: &str| -> Vec<String> {
        let body = format!(r#"{{"selector":{selector}}}"#);
        let body = flatbed_layer::json::parse(body.as_bytes(), &Default::default()).unwrap();
        let find = flatbed_mango::Find::parse(&body, Some("p1"), &|| false).unwrap();
        let indexes = db.json_indexes().await.unwrap();
        assert!(indexes.is_partitioned());
        let plan = indexes.plan("db", &find).unwrap();
        let options = flatbed_layer::FindOptions { limit: 100, ..Default::default() };
        let mut rows = db.find(&indexes, &plan, options);
        let mut ids = Vec::new();
        while let Some(page) = rows.next_page().await.unwrap() {
            ids.extend(page.into_iter().map(|row| row.id));
        }
        ids
    };
    let expected = ["p1:21", "p1:25", "p1:29", "p1:33", "p1:37"];
    assert_eq!(found(r#"{"n":{"$gt":20}}"#).await, expected, "by ids");
    assert_eq!(found(r#"{"_id":{"$gt":"q"}}"#).await, [""; 0]);
    let index = async || db.json_indexes().await.unwrap().all().iter().find(|index| index.name() == "i").cloned();
    put(&db, "_design/i", None, &design).await.unwrap();
    assert!(index().await.is_some_and(|index| index.is_partitioned()));
    let both = |partitioned: bool| format!("{{\"options\":{{\"partitioned\":{partitioned}}}}}");
    for partitioned in [true, false] {
        let user = layer.written_by("db", "anna");
        put(&user, &format!("_design/{partitioned}"), None, &both(partitioned)).await.unwrap();
    }
}

/// The number of rows before a scan of a partition equals that before it in a scan of all documents.
#[tokio::test]
async fn walks_of_partitions_know_what_is_before_them() {
    for shards in [None, Some(4)] {
        let (_store, layer, db) = partitioned(shards).await;
        let other = layer.written_by("db", "anna");
        // Partitions whose names are prefixes of others have ids before or behind theirs.
        let partitions = ["a", "a!", "a\0", "aa", "A", "\u{e9}", "\u{10ffff}", "\u{10ffff}\u{10ffff}", "none"];
        for (at, partition) in partitions.iter().take(8).enumerate() {
            for n in 0..=at {
                // The last id is above all possible ends.
                let rest = if n == at { "\u{10ffff}".repeat(4) } else { n.to_string() };
                put(&other, &format!("{partition}:{rest}"), None, "{}").await.unwrap();
            }
        }
        put(&other, "_design/x", None, "{}").await.unwrap();
        put(&other, "_design/y:z", None, "{}").await.unwrap();
        let gone = put(&other, "a:gone", None, "{}").await.unwrap();
        delete(&other, "a:gone", &gone).await.unwrap();
        let ids = async |query: AllDocsQuery| {
            let mut walk = db.all_docs(query);
            let (before, mut ids) = (walk.rows_before().await.unwrap(), Vec::new());
            while let Some(page) = walk.next_page().await.unwrap() {
                ids.extend(page.into_iter().map(|row| row.id));
            }
            (before, ids)
        };
        let (none, all) = ids(AllDocsQuery::default()).await;
        assert_eq!((none, all.len()), (Some(0), 38));
        for (at, id) in all.iter().enumerate() {
            for (descending, before) in [(false, at), (true, 37 - at)] {
                let start = Some(id.clone());
                let (found, _) = ids(AllDocsQuery { start, descending, ..AllDocsQuery::default() }).await;
                assert_eq!(found, Some(before as u64), "{id}");
            }
        }
        for partition in partitions {
            let prefix = format!("{partition}:");
            let starts = [
                None,
                Some(format!("{prefix}1")),
                Some(prefix.clone()),
                Some(format!("{partition};")),
                Some("0".to_owned()),
            ];
            for (descending, start) in
                [false, true].into_iter().flat_map(|way| starts.clone().map(|start| (way, start)))
            {
                let query = AllDocsQuery {
                    partition: Some(partition.to_owned()),
                    start,
                    descending,
                    ..AllDocsQuery::default()
                };
                let mut order = all.clone();
                if descending {
                    order.reverse();
                }
                let has_begun = |id: &String| match (&query.start, descending) {
                    (None, _) => true,
                    (Some(start), false) => id >= start,
                    (Some(start), true) => id <= start,
                };
                let wanted: Vec<_> =
                    order.iter().filter(|id| id.starts_with(&prefix) && has_begun(id)).cloned().collect();
                let place = query.start.clone();
                let (before, found) = ids(query).await;
                assert_eq!(found, wanted, "{partition:?} {place:?} {descending}");
                // An empty result also has a number of rows before it.
                if let Some(first) = wanted.first() {
                    let position = order.iter().position(|id| id == first).unwrap();
                    assert_eq!(before, Some(position as u64), "{partition:?} {place:?} {descending}");
                }
            }
        }
    }
}
