//! Tests that no write that began before a renewal commits after it.
#![cfg(test)]

use std::sync::Arc;

use flatbed_clock::ManualClock;
use flatbed_databases::document::fields::AllocationOutcome;
use flatbed_databases::instance::Instance;
use flatbed_flatten::json::{Limits, parse};
use flatbed_operations::write::batch::{Work, WriteBatch};
use flatbed_operations::write::compact::Compact;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use flatbed_testkit::Storage;

use crate::handle::Database;
use crate::renew::renew;
use crate::{Authority, CreateOptions, Edit, Error, Layer, LayerOptions};

pub(crate) async fn open(storage: &Storage, judge: Option<Arc<dyn crate::Judge>>) -> (Layer, Authority) {
    open_with(storage, LayerOptions::default(), judge).await
}

pub(crate) async fn open_at(storage: &Storage, manual: &ManualClock) -> (Layer, Authority) {
    open_with(storage, LayerOptions { clock: manual.clock(), ..LayerOptions::default() }, None).await
}

async fn open_with(
    storage: &Storage,
    options: LayerOptions,
    judge: Option<Arc<dyn crate::Judge>>,
) -> (Layer, Authority) {
    let options = LayerOptions { root: storage.root.clone(), ..options };
    Layer::open(Arc::clone(&storage.fdb), options, judge).await.unwrap()
}

/// Opens a layer with a database `db` on its own storage.
pub(crate) async fn layer() -> (Layer, Authority, Storage) {
    layer_judged_by(None).await
}

/// As `layer`, with a clock that the test moves.
pub(crate) async fn layer_at(manual: &ManualClock) -> (Layer, Authority, Storage) {
    layer_with(LayerOptions { clock: manual.clock(), ..LayerOptions::default() }, None).await
}

/// As `layer`, with a judge.
pub(crate) async fn layer_judged_by(judge: Option<Arc<dyn crate::Judge>>) -> (Layer, Authority, Storage) {
    layer_with(LayerOptions::default(), judge).await
}

/// As `layer`, with other options.
pub(crate) async fn layer_with(
    options: LayerOptions,
    judge: Option<Arc<dyn crate::Judge>>,
) -> (Layer, Authority, Storage) {
    let storage = Storage::new();
    let (layer, authority) = open_with(&storage, options, judge).await;
    layer.database("db", authority.for_job("test")).create(&CreateOptions::default()).await.unwrap();
    (layer, authority, storage)
}

pub(crate) async fn database() -> (Database, Storage) {
    let (layer, authority, storage) = layer().await;
    (layer.database("db", authority.for_job("test")), storage)
}

pub(crate) async fn give_channels(db: &Database) {
    let change = |record: &mut flatbed_store::proto::DatabaseRecord| {
        record.channels = 1;
        flatbed_store::features::name_features(record);
    };
    let (inner, name, once) = (&*db.inner, &*db.name, db.inner.once().unwrap());
    let mut operation = flatbed_databases::record_change::ChangeRecord { inner, name, actor: db.actor(), change, once };
    flatbed_store::transaction::write(&inner.db, &inner.metrics, &mut operation).await.unwrap();
}

/// Returns an actor of this name that every `_security` admits.
pub(crate) fn user(name: &str) -> crate::Actor {
    #[derive(Debug)]
    struct Open;

    impl crate::Gate for Open {
        fn judge(&self, _: &crate::DatabaseSecurity) -> std::result::Result<(), crate::Refusal> {
            Ok(())
        }
    }

    crate::User { name: Some(name.to_owned()), ..crate::User::default() }.through(Arc::new(Open))
}

async fn current(db: &Database) -> Arc<Instance> {
    db.exists().await.unwrap();
    flatbed_operations::write::batch::instance_of(&db.inner, &db.name).await.unwrap()
}

fn edit(id: &str) -> Edit<'_> {
    let body = parse(br#"{"a":1}"#, &Limits::default()).unwrap();
    Edit { expiry: None, id: id.into(), parent: None, history: None, deleted: false, attachments: Vec::new(), body }
}

async fn renewed(db: &Database) {
    renew(&db.inner.db, &db.inner.options.root, &db.inner.clock).await.unwrap();
}

/// Attempts the operation, renews the store, and checks that the commit fails.
async fn is_refused<O: Operation>(db: &Database, mut operation: O) {
    let inner = &db.inner;
    let trx = Transaction::begin(&inner.db, &inner.metrics).unwrap();
    assert!(operation.attempt(&trx, Attempt::default()).await.is_ok());
    renewed(db).await;
    assert!(trx.commit().await.is_err(), "another epoch has begun");
}

#[tokio::test]
async fn every_kind_of_write_fails_where_another_epoch_has_begun() {
    let (db, _storage) = database().await;
    let inner = &*db.inner;
    for id in ["a", "purged"] {
        db.update(&edit(id)).await.unwrap();
    }
    let superseded = db.get("a", &crate::GetOptions::default()).await.unwrap().rev;
    db.update(&Edit { parent: Some(superseded), ..edit("a") }).await.unwrap();
    let edits = [edit("d")];
    let prepared = async || {
        let instance = current(&db).await;
        let mut batches =
            flatbed_operations::write::batch::prepare(&db.handle, &instance, &edits, &[0]).await.unwrap().batches;
        (instance, batches.pop().unwrap())
    };
    let work = Work::new(inner);
    let (instance, mut items) = prepared().await;
    is_refused(
        &db,
        WriteBatch {
            inner,
            instance: &instance,
            edits: &edits,
            items: &mut items,
            attempts: 0,
            work: &work,
            preparations: Default::default(),
            is_shared: false,
        },
    )
    .await;
    // After the renewal the write notices by itself that its preparation is outdated.
    let mut write = WriteBatch {
        inner,
        instance: &instance,
        edits: &edits,
        items: &mut items,
        attempts: 0,
        work: &work,
        preparations: Default::default(),
        is_shared: false,
    };
    let trx = Transaction::begin(&inner.db, &inner.metrics).unwrap();
    assert!(matches!(write.attempt(&trx, Attempt::default()).await, Ok(None)));

    let instance = current(&db).await;
    let names = ["new".to_owned()];
    let (known_until, ids_max) = (flatbed_flatten::path::FIRST_FIELD_ID + instance.fields.len() as u64, 100);
    let allocate = || flatbed_databases::document::fields::Allocate {
        inner,
        instance: &instance,
        names: &names,
        known_until,
        ids_max,
        attempted: 0,
    };
    is_refused(&db, allocate()).await;
    let trx = Transaction::begin(&inner.db, &inner.metrics).unwrap();
    assert!(matches!(allocate().attempt(&trx, Attempt::default()).await, Ok(AllocationOutcome::OtherInstance)));

    let ids = ["a".to_owned()];
    let instance = current(&db).await;
    is_refused(&db, Compact::new(inner, &instance, &ids, None)).await;
    let revs = [db.get("purged", &crate::GetOptions::default()).await.unwrap().rev];
    is_refused(&db, flatbed_operations::write::purge::Purge::new(&db.handle, "purged", &revs, None).unwrap()).await;
    let instance = current(&db).await;
    let rows = [(vec![0; 4], vec![1])];
    let blob_id = &[7; 16];
    let (created_at_ms, is_first, touches) = (1, true, false);
    let stage = flatbed_databases::document::staging::Stage {
        inner,
        instance: &instance,
        actor: db.actor(),
        blob_id,
        created_at_ms,
        rows: &rows,
        is_first,
        touches,
    };
    is_refused(&db, stage).await;
    assert_eq!(db.update(&edit("e")).await.unwrap().rev.generation(), 1);
    let report = crate::check::check_database(&db, |_| {}).await.unwrap();
    assert!(report.is_clean() && report.staged_uploads == 0, "{report:#?}");
}

/// A read as of an old version sees the old database, and does not change the cache.
#[tokio::test]
async fn caches_learn_nothing_from_the_past() {
    let (db, _storage) = database().await;
    let (inner, name) = (&db.inner, &*db.name);
    let resolved = async |version: Option<i64>| {
        let trx = Transaction::begin(&inner.db, &inner.metrics).unwrap();
        if let Some(version) = version {
            trx.set_read_version(version);
        }
        let found = inner.resolve(&trx, name).await.map(|instance| instance.id());
        (found, trx.get_read_version().await.unwrap())
    };
    let (before, version) = resolved(None).await;
    db.delete().await.unwrap();
    let (gone, _) = resolved(None).await;
    assert!(matches!(gone, Err(Error::DatabaseNotFound)));
    db.create(&CreateOptions::default()).await.unwrap();
    let (now, _) = resolved(None).await;
    let (before, now) = (before.unwrap(), now.unwrap());
    assert_ne!(before, now);
    let cached = || inner.cached(name).map(|instance| instance.id());
    assert_eq!(resolved(Some(version)).await.0.unwrap(), before);
    assert_eq!(cached(), Some(now));
}
