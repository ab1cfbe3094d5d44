//! A store of format 1 is used as it is: see `store::upgrade`.
//!
//! What differs from format 2 is made of a store of today: segments of ancestors lie under generations, and nothing names them.
#![cfg(test)]

use flatbed_flatten::json::{Limits, parse};
use prost::Message;

use crate::check::check_database;
use crate::document::edit::GetOptions;
use crate::store::keys::{Counter, DocumentPart, KeyRange, METADATA_VERSION, Subspace, take_int, take_rev};
use crate::store::proto;
use crate::store::transaction::{self, Attempt, Operation, Transaction};
use crate::{Authority, Database, Edit, Error, Layer, Result, RevId};

fn edit(id: &str, parent: Option<RevId>, deleted: bool) -> Edit<'_> {
    let body = parse(br#"{"a":1}"#, &Limits::default()).unwrap();
    Edit { expiry: None, id: id.into(), parent, history: None, deleted, attachments: Vec::new(), body }
}

/// Edits a document so many times; all its revisions, newest first.
async fn edit_times(db: &Database, id: &str, mut revs: Vec<RevId>, times: usize) -> Vec<RevId> {
    for _ in 0..times {
        let rev = db.update(&edit(id, revs.first().cloned(), false)).await.unwrap().rev;
        revs.insert(0, rev);
    }
    revs
}

/// Makes of the store under a layer's root one of format 1.
struct Downgrade<'a>(&'a Layer);

impl Operation for Downgrade<'_> {
    type Output = usize;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<usize> {
        let keys = &self.0.inner.keys;
        let mut instance = proto::Instance::decode(&*trx.get(&keys.instance(), false).await?.expect("a root"))?;
        (instance.format_version, instance.features, instance.renewal) = (1, Vec::new(), Vec::new());
        trx.set(&keys.instance(), &instance.encode_to_vec());
        let record_key = keys.database("db");
        let mut record = proto::DatabaseRecord::decode(&*trx.get(&record_key, false).await?.expect("a database"))?;
        record.format_version = 1;
        trx.set(&record_key, &record.encode_to_vec());
        let keys = keys.namespace(record.namespace);
        let mut unnamed = 0;
        for (key, value) in all(trx, keys.subspace(Subspace::Documents)).await? {
            let (id, part, rest) = keys.split_document(&key)?;
            match part {
                DocumentPart::Leaf => {
                    let leaf = proto::Leaf { sealed: None, ..proto::Leaf::decode(&*value)? };
                    trx.set(&key, &leaf.encode_to_vec());
                }
                DocumentPart::Ancestors => {
                    let segment = proto::AncestorSegment { next: None, ..proto::AncestorSegment::decode(&*value)? };
                    trx.clear(&key);
                    let key = keys.document(&id).unnamed_ancestors(take_rev(rest)?.0.generation());
                    trx.set(&key, &segment.encode_to_vec());
                    unnamed += 1;
                }
                _ => {}
            }
        }
        trx.clear(&keys.bucket(0, 0).counter(Counter::SupersededBytes));
        trx.update_metadata_version();
        Ok(unnamed)
    }
}

async fn all(trx: &Transaction, range: KeyRange) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    Ok(trx.range(&range, true).all(1_000_000).await?.to_vec())
}

/// The formats of the root and of the database, and how many segments lie under keys of either format.
struct Look<'a>(&'a Layer);

impl Operation for Look<'_> {
    type Output = (u32, u32, [usize; 2]);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let keys = &self.0.inner.keys;
        let instance = proto::Instance::decode(&*trx.get(&keys.instance(), true).await?.expect("a root"))?;
        let record = trx.get(&keys.database("db"), true).await?.expect("a database");
        let record = proto::DatabaseRecord::decode(&*record)?;
        let keys = keys.namespace(record.namespace);
        let mut segments = [0, 0];
        for (key, _) in all(trx, keys.subspace(Subspace::Documents)).await? {
            if let (_, DocumentPart::Ancestors, rest) = keys.split_document(&key)? {
                segments[usize::from(!take_int(rest)?.1.is_empty())] += 1;
            }
        }
        Ok((instance.format_version, record.format_version, segments))
    }
}

async fn look(layer: &Layer) -> (u32, u32, [usize; 2]) {
    transaction::read(&layer.inner.db, &layer.inner.metrics, &mut Look(layer)).await.unwrap()
}

/// Opens the store again, as another process.
async fn reopen(layer: &Layer) -> (Layer, Authority) {
    Layer::open(layer.inner.db.clone(), layer.inner.options.clone(), None).await.unwrap()
}

async fn revisions(db: &Database, id: &str, rev: Option<&RevId>) -> Vec<RevId> {
    let options = GetOptions { revs: true, rev: rev.cloned(), tombstone: true, ..GetOptions::default() };
    db.get(id, &options).await.unwrap().revisions.expect("asked for")
}

async fn assert_clean(db: &Database) {
    let report = check_database(db, |_| ()).await.unwrap();
    assert_eq!(report.violations, Vec::<String>::new());
}

#[tokio::test]
async fn format_one_is_read_and_written_on() {
    let (layer, authority, _storage) = crate::fenced::layer().await;
    let db = layer.database("db", authority.for_job("test"));
    let long = edit_times(&db, "long", Vec::new(), 300).await;
    let short = edit_times(&db, "short", Vec::new(), 3).await;
    let mut gone = edit_times(&db, "gone", Vec::new(), 140).await;
    gone.insert(0, db.update(&edit("gone", gone.first().cloned(), true)).await.unwrap().rev);
    let merged = edit_times(&db, "merged", Vec::new(), 200).await;
    let unnamed = transaction::write(&layer.inner.db, &layer.inner.metrics, &mut Downgrade(&layer)).await.unwrap();
    assert!(unnamed > 12, "{unnamed}");

    // Another process finds it. It upgrades the root, and reading alone leaves the database as it is.
    let (layer, authority) = reopen(&layer).await;
    assert_eq!(look(&layer).await, (3, 1, [unnamed, 0]));
    let db = layer.database("db", authority.for_job("test"));
    for (id, expected) in [("long", &long), ("short", &short), ("gone", &gone), ("merged", &merged)] {
        assert_eq!(&revisions(&db, id, None).await, expected, "{id}");
    }
    assert_clean(&db).await;
    assert_eq!(look(&layer).await, (3, 1, [unnamed, 0]));
    let foreign: RevId = "7-x".parse().unwrap();
    let missing = db.missing_revs(&[("long".to_owned(), vec![long[250].clone(), foreign.clone()])]).await.unwrap();
    assert_eq!(missing[0].0, [foreign]);

    // Edits seal further ancestors, which name those that are there.
    let long = edit_times(&db, "long", long, 100).await;
    assert_eq!(revisions(&db, "long", None).await, long);
    let gone = edit_times(&db, "gone", gone, 1).await;
    assert_eq!(revisions(&db, "gone", None).await, gone);
    assert_clean(&db).await;

    // A branch that forks from sealed ancestors, and its leaf edited.
    let fork: RevId = "52-fork".parse().unwrap();
    let history = [std::slice::from_ref(&fork), &merged[149..]].concat();
    let other = Edit { history: Some(history.clone()), ..edit("merged", None, false) };
    db.bulk_update(&[other]).await.unwrap().remove(0).unwrap();
    assert_eq!(revisions(&db, "merged", Some(&fork)).await, history);
    assert_eq!(revisions(&db, "merged", None).await, merged);
    assert_clean(&db).await;
    let merged = edit_times(&db, "merged", merged, 70).await;
    assert_eq!(revisions(&db, "merged", None).await, merged);
    assert_clean(&db).await;

    // Ancestors beyond a limit go, wherever they lie.
    db.set_revs_limit(20).await.unwrap();
    for (id, revs) in [("long", long), ("gone", gone)] {
        let revs = edit_times(&db, id, revs, 3).await;
        let shown = revisions(&db, id, None).await;
        assert_eq!(shown, revs[..shown.len()], "{id}");
        assert!(shown.len() <= 20 + flatbed_revtree::ANCESTORS_INLINE_MAX, "{id}: {}", shown.len());
    }
    edit_times(&db, "merged", merged, 70).await;
    assert_clean(&db).await;
    let (_, _, [unnamed, named]) = look(&layer).await;
    assert!(unnamed <= 8 && named <= 8, "{unnamed} and {named}");
}

#[tokio::test]
async fn who_writes_to_an_older_database_upgrades_it_once_for_all() {
    let (layer, _authority, _storage) = crate::fenced::layer().await;
    transaction::write(&layer.inner.db, &layer.inner.metrics, &mut Downgrade(&layer)).await.unwrap();
    let version = async || {
        let trx = Transaction::begin(&layer.inner.db, &layer.inner.metrics).unwrap();
        trx.get(METADATA_VERSION, true).await.unwrap().expect("a version").to_vec()
    };
    let before = version().await;
    let servers = [reopen(&layer).await, reopen(&layer).await];
    let wrote = async |(layer, authority): &(Layer, Authority), id: &str| {
        layer.database("db", authority.for_job("test")).update(&edit(id, None, false)).await
    };
    let (one, other) = futures_util::future::join(wrote(&servers[0], "a"), wrote(&servers[1], "b")).await;
    assert!(one.is_ok() && other.is_ok(), "{one:?} {other:?}");
    assert_eq!(look(&layer).await.1, 2);
    // By this every process knows that it has to read the record again.
    let after = version().await;
    assert_ne!(before, after);
    wrote(&servers[0], "c").await.unwrap();
    assert_eq!(version().await, after, "once is enough");
}

#[tokio::test]
async fn what_has_no_format_or_a_newer_one_is_refused() {
    let (layer, _authority, _storage) = crate::fenced::layer().await;
    for (format_version, is_newer) in [(0, false), (4, true)] {
        let trx = Transaction::begin(&layer.inner.db, &layer.inner.metrics).unwrap();
        let key = layer.inner.keys.database("db");
        let bytes = trx.get(&key, false).await.unwrap().expect("a database");
        let record = proto::DatabaseRecord { format_version, ..proto::DatabaseRecord::decode(&*bytes).unwrap() };
        trx.set(&key, &record.encode_to_vec());
        trx.update_metadata_version();
        trx.commit().await.unwrap();
        let refused = layer.reader("db").info().await.unwrap_err();
        assert_eq!(matches!(refused, Error::FormatTooNew { .. }), is_newer, "{refused}");
        assert_eq!(matches!(refused, Error::Corrupt(_)), !is_newer, "{refused}");
    }
}
