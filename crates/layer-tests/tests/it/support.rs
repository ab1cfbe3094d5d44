//! Helpers of the layer's tests: a layer on the embedded engine in a temporary directory, or on the cluster of
//! `FLATBED_CLUSTER_FILE` under its own root.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fdb_embedded::{KeyObserver, VirtualClock};
use flatbed_clock::ManualClock;
use flatbed_layer::json::{Limits, parse};
use flatbed_layer::{
    Background, BackgroundOptions, ChangeRow, ChangesQuery, CreateOptions, Database, DatabaseSecurity,
    DatabaseUpdatesQuery, Edit, EditParts, Gate, GetOptions, Judge, LayerOptions, Refusal, Result, RevId, ServerActor,
    Since, User, WrittenRevision, check,
};
use flatbed_testkit::{Faults, Storage, number, until_wanted};
pub use flatbed_testkit::{Random, pages_are_full, soon};
use foundationdb::options::MutationType;
use foundationdb::tuple::{Bytes, Versionstamp, pack_with_versionstamp};

/// The storage of one test, and its layers.
pub struct Store {
    pub storage: Storage,
    /// Shards of new databases; each layer writes to another one.
    shards: Option<u32>,
    layers: AtomicU32,
}

impl std::ops::Deref for Store {
    type Target = Storage;

    fn deref(&self) -> &Storage {
        &self.storage
    }
}

impl Store {
    pub fn new() -> Store {
        Store::of(Storage::new())
    }

    fn of(storage: Storage) -> Store {
        Store { storage, shards: default_shards(), layers: AtomicU32::new(0) }
    }

    /// Creates storage with faults: conflicts, unknown commit results, reads that come too late. `None` on a cluster.
    pub fn with_faults(probability: f64, seed: u64) -> Option<Store> {
        Storage::with(Faults::new(probability, seed)).map(Store::of)
    }

    /// As `with_faults`, with a cluster's latencies by the machine's clock and one storage server.
    pub fn as_a_cluster_with_faults(probability: f64, seed: u64) -> Option<Store> {
        Storage::as_a_cluster(Faults::new(probability, seed)).map(Store::of)
    }

    /// Creates storage with a cluster's latencies by a clock that the test moves. `None` on a cluster.
    pub fn simulated(clock: &Arc<VirtualClock>) -> Option<Store> {
        Storage::simulated(clock, None).map(Store::of)
    }

    /// As `simulated`, with faults that follow from the seed alone while only one thread calls.
    pub fn simulated_with_faults(clock: &Arc<VirtualClock>, probability: f64, seed: u64) -> Option<Store> {
        Storage::simulated(clock, Some(Faults::new(probability, seed))).map(Store::of)
    }

    /// Creates storage with one server that works for each call, and otherwise fast answers. `None` on a cluster.
    pub fn slow() -> Option<Store> {
        Storage::slow().map(Store::of)
    }

    /// Creates storage whose reads and writes an observer sees. `None` on a cluster.
    pub fn observed(observer: KeyObserver) -> Option<Store> {
        Storage::observed(observer).map(Store::of)
    }

    /// Sets the number of shards of new databases.
    pub fn sharded(self, shards: u32) -> Store {
        Store { shards: Some(shards), ..self }
    }

    /// Opens a server's layer on the store; a second call opens a second server.
    pub async fn layer(&self) -> Layer {
        self.layer_with(LayerOptions::default()).await
    }

    /// As `layer`, without background work.
    pub async fn layer_alone(&self) -> Layer {
        let options = LayerOptions { root: self.root.clone(), ..LayerOptions::default() };
        Layer::open_alone(self.fdb.clone(), options, None).await.expect("the layer opens")
    }

    /// As `layer_alone`, with a clock that the test moves.
    pub async fn layer_alone_at(&self, manual: &ManualClock) -> Layer {
        let options = LayerOptions { root: self.root.clone(), clock: manual.clock(), ..LayerOptions::default() };
        Layer::open_alone(self.fdb.clone(), options, None).await.expect("the layer opens")
    }

    /// As `layer`, with a judge.
    pub async fn layer_judged_by(&self, judge: impl Judge + 'static) -> Layer {
        let options = self.options(LayerOptions::default());
        Layer::open_judged(self.fdb.clone(), options, Some(Arc::new(judge))).await.expect("the layer opens")
    }

    /// As `layer`, with other options.
    pub async fn layer_with(&self, options: LayerOptions) -> Layer {
        let layer = Layer::open(self.fdb.clone(), self.options(options)).await.expect("the layer opens");
        Layer { shards: self.shards, ..layer }
    }

    fn options(&self, options: LayerOptions) -> LayerOptions {
        let shard = options.shard.or_else(|| Some(self.layers.fetch_add(1, Ordering::Relaxed)));
        LayerOptions { root: self.root.clone(), shard, ..options }
    }
}

/// With `FLATBED_TEST_SHARDS=4` the databases of every test have shards, except those of `waits`, which have other
/// figures.
fn default_shards() -> Option<u32> {
    number("FLATBED_TEST_SHARDS")
}

/// Admits all users, whatever `_security` says.
#[derive(Debug)]
pub struct Open;

impl Gate for Open {
    fn judge(&self, _: &DatabaseSecurity) -> std::result::Result<(), Refusal> {
        Ok(())
    }
}

/// A server's layer with the right to write as the server. Cheap to clone; background work ends with the last clone.
#[derive(Clone)]
pub struct Layer {
    layer: flatbed_layer::Layer,
    actor: ServerActor,
    shards: Option<u32>,
    _background: Option<Arc<Background>>,
}

impl std::ops::Deref for Layer {
    type Target = flatbed_layer::Layer;

    fn deref(&self) -> &flatbed_layer::Layer {
        &self.layer
    }
}

impl Layer {
    pub async fn open(fdb: Arc<foundationdb::Database>, options: LayerOptions) -> Result<Layer> {
        Layer::open_judged(fdb, options, None).await
    }

    async fn open_judged(
        fdb: Arc<foundationdb::Database>,
        options: LayerOptions,
        judge: Option<Arc<dyn Judge>>,
    ) -> Result<Layer> {
        let alone = Layer::open_alone(fdb, options, judge).await?;
        let background = alone.background(BackgroundOptions::default());
        background.start();
        Ok(Layer { _background: Some(Arc::new(background)), ..alone })
    }

    /// Opens a layer without background work.
    pub async fn open_alone(
        fdb: Arc<foundationdb::Database>,
        options: LayerOptions,
        judge: Option<Arc<dyn Judge>>,
    ) -> Result<Layer> {
        let (layer, authority) = flatbed_layer::Layer::open(fdb, options, judge).await?;
        Ok(Layer { layer, actor: authority.for_job("test"), shards: None, _background: None })
    }

    /// Returns its background work, which has not begun yet.
    pub fn background(&self, options: BackgroundOptions) -> Background {
        Background::new(&self.layer, self.actor.clone(), options).expect("randomness")
    }

    /// Returns the server's right to write.
    pub fn actor(&self) -> &ServerActor {
        &self.actor
    }

    /// Returns a counter of its metrics.
    pub fn counted(&self, name: &str) -> u64 {
        let family = self.metrics().into_iter().find(|family| family.name == name).expect("the family");
        match family.samples[0].value {
            flatbed_metrics::Value::Count(count) => count,
            _ => panic!("{name} is a counter"),
        }
    }

    /// Returns a database for writes of the server.
    pub fn database(&self, name: &str) -> Database {
        self.layer.database(name, self.actor.clone())
    }

    /// Returns a database for writes of a user of this name.
    pub fn written_by(&self, name: &str, user: &str) -> Database {
        self.layer.database(name, User { name: Some(user.to_owned()), ..User::default() }.through(Arc::new(Open)))
    }

    pub async fn create_database(&self, name: &str, options: &CreateOptions) -> Result<()> {
        let shards = options.shards.or(self.shards);
        self.database(name).create(&CreateOptions { shards, ..options.clone() }).await
    }

    pub async fn delete_database(&self, name: &str) -> Result<()> {
        self.database(name).delete().await
    }

    pub async fn sweep_broken_uploads(&self, broken_after: Duration) -> Result<u64> {
        self.layer.sweep_broken_uploads(&self.actor, broken_after).await
    }

    pub async fn sweep_database_updates(&self, kept_for: Duration) -> Result<u64> {
        self.layer.sweep_database_updates(&self.actor, kept_for).await
    }
}

/// Changes keys without the layer, and retries until the commit.
pub async fn change(fdb: &foundationdb::Database, change: impl Fn(&foundationdb::Transaction)) {
    let mut trx = fdb.create_trx().expect("a transaction");
    loop {
        change(&trx);
        match trx.commit().await {
            Ok(_) => return,
            Err(failed) => trx = failed.on_error().await.expect("an error that a retry mends"),
        }
    }
}

/// Logs a change of a database's record as the layer does, in a transaction of [`change`].
pub fn note_record_change(trx: &foundationdb::Transaction, root: &[u8], name: &str) {
    let key = pack_with_versionstamp(&(Bytes::from(root.to_vec()), 23, Versionstamp::incomplete(0), name));
    trx.atomic_op(&key, &[], MutationType::SetVersionstampedKey);
    trx.update_metadata_version();
}

pub async fn create(layer: &Layer, name: &str, run_bytes: Option<u32>) -> Database {
    layer.create_database(name, &CreateOptions { run_bytes, ..CreateOptions::default() }).await.expect("created");
    layer.database(name)
}

/// Writes `body` (JSON text) on top of `parent`.
pub async fn put(db: &Database, id: &str, parent: Option<&RevId>, body: &str) -> Result<RevId> {
    let value = parse(body.as_bytes(), &Limits::default()).expect("JSON");
    let parts = EditParts::from_json(value, &flatbed_clock::Clock::system())?;
    let edit = Edit {
        expiry: None,
        id: id.into(),
        parent: parent.cloned(),
        history: None,
        deleted: parts.deleted,
        attachments: Vec::new(),
        body: parts.body,
    };
    db.update(&edit).await.map(|WrittenRevision { rev }| rev)
}

pub async fn delete(db: &Database, id: &str, parent: &RevId) -> Result<RevId> {
    put(db, id, Some(parent), r#"{"_deleted":true}"#).await
}

/// Reads the latest body as `{...}`.
pub async fn get(db: &Database, id: &str) -> Result<String> {
    db.get(id, &GetOptions::default()).await.map(|document| braces(&document.body))
}

pub fn braces(members: &[u8]) -> String {
    format!("{{{}}}", std::str::from_utf8(members).expect("UTF-8"))
}

/// Reads the feed from the beginning to its end.
pub async fn all_changes(db: &Database) -> Vec<ChangeRow> {
    let mut changes = db.changes(ChangesQuery { since: Since::Beginning, ..ChangesQuery::default() });
    let mut rows = Vec::new();
    loop {
        let page = changes.next_page().await.expect("a page");
        rows.extend(page.rows);
        if page.at_end {
            return rows;
        }
    }
}

/// Checks that the checker finds no fault, in the database or elsewhere.
pub async fn assert_clean(layer: &Layer, db: &Database) {
    let check = async || check::check_database(db, |_| {}).await.expect("checked");
    // Background work may write meanwhile.
    let report = until_wanted("the sums are compared", check, |report| report.sums_compared).await;
    assert!(report.is_clean(), "{report:#?}");
    let report = check::check_namespaces(layer).await.expect("checked");
    assert!(report.is_clean(), "{report:#?}");
}

/// Reads all keys of the store's root with their values, as a backup has them.
pub async fn snapshot(store: &Store) -> Vec<(Vec<u8>, Vec<u8>)> {
    let begin = foundationdb::tuple::pack(&(foundationdb::tuple::Bytes::from(store.root.clone()),));
    let end = [begin.as_slice(), &[0xff]].concat();
    let mut trx = store.fdb.create_trx().expect("a transaction");
    loop {
        match rows_between(&trx, &begin, &end).await {
            Ok(rows) => return rows,
            Err(error) => trx = trx.on_error(error).await.expect("an error that a retry mends"),
        }
    }
}

/// Reads all rows of a range, as a snapshot. `RangeOption::next_range` takes a reply without rows for the end, which it
/// need not be.
pub async fn rows_between(
    trx: &foundationdb::Transaction,
    begin: &[u8],
    end: &[u8],
) -> foundationdb::FdbResult<Vec<(Vec<u8>, Vec<u8>)>> {
    let (mut begin, mut rows) = (begin.to_vec(), Vec::new());
    loop {
        let page = trx.get_range(&foundationdb::RangeOption::from((begin.as_slice(), end)), 1, true).await?;
        rows.extend(page.iter().map(|row| (row.key().to_vec(), row.value().to_vec())));
        if !page.more() {
            return Ok(rows);
        }
        if let Some(last) = page.last() {
            begin = [last.key(), &[0]].concat();
        }
    }
}

/// Restores the root's keys, as `fdbrestore` does, beside open layers.
pub async fn put_back(store: &Store, rows: &[(Vec<u8>, Vec<u8>)]) {
    let begin = foundationdb::tuple::pack(&(foundationdb::tuple::Bytes::from(store.root.clone()),));
    let end = [begin.as_slice(), &[0xff]].concat();
    change(&store.fdb, |trx| trx.clear_range(&begin, &end)).await;
    for rows in rows.chunks(500) {
        change(&store.fdb, |trx| rows.iter().for_each(|(key, value)| trx.set(key, value))).await;
    }
}

/// Returns names and kinds of all rows of `_db_updates`.
pub async fn update_names(layer: &Layer) -> Vec<String> {
    let mut updates = layer.database_updates(DatabaseUpdatesQuery::default());
    let mut names = Vec::new();
    loop {
        let page = updates.next_page().await.expect("a page");
        names.extend(page.rows.iter().map(|row| format!("{} {:?}", row.name, row.kind)));
        if page.at_end {
            return names;
        }
    }
}
