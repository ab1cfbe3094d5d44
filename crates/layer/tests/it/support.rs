//! What the layer's tests share: a layer on the embedded engine in a temporary directory, or on the cluster named by
//! `FLATBED_CLUSTER_FILE` under a root of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fdb_embedded::VirtualClock;
use flatbed_clock::ManualClock;
use flatbed_layer::json::{Limits, parse};
use flatbed_layer::{
    Background, BackgroundOptions, ChangeRow, ChangesQuery, CreateOptions, Database, DatabaseUpdatesQuery, Edit,
    EditParts, Gate, GetOptions, Judge, LayerOptions, Refusal, Result, RevId, SecurityOf, ServerActor, Since, Updated,
    User, check,
};
use flatbed_testkit::{Faults, Storage, number, until_wanted};
pub use flatbed_testkit::{Random, pages_are_full, soon};

/// Storage of its own for one test, with the layers that it opens.
pub struct Store {
    pub storage: Storage,
    /// Of databases that are created; each layer that is opened writes to another one.
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

    /// With faults: conflicts, unknown results of commits, reads that come too late. `None` on a cluster.
    pub fn with_faults(probability: f64, seed: u64) -> Option<Store> {
        Storage::with(Faults::new(probability, seed)).map(Store::of)
    }

    /// With faults too, on what answers as late as a cluster by the machine's clock, with one server that works for all.
    pub fn as_a_cluster_with_faults(probability: f64, seed: u64) -> Option<Store> {
        Storage::as_a_cluster(Faults::new(probability, seed)).map(Store::of)
    }

    /// With a cluster's latencies by a clock that stands still until it is moved. `None` on a cluster.
    pub fn simulated(clock: &Arc<VirtualClock>) -> Option<Store> {
        Storage::simulated(clock, None).map(Store::of)
    }

    /// The same with faults, which follow from the seed alone as long as one thread calls.
    pub fn simulated_with_faults(clock: &Arc<VirtualClock>, probability: f64, seed: u64) -> Option<Store> {
        Storage::simulated(clock, Some(Faults::new(probability, seed))).map(Store::of)
    }

    /// With one server that works for each call, and answers that come soon otherwise. `None` on a cluster.
    pub fn slow() -> Option<Store> {
        Storage::slow().map(Store::of)
    }

    /// The same with databases of so many shards.
    pub fn sharded(self, shards: u32) -> Store {
        Store { shards: Some(shards), ..self }
    }

    /// A server's layer on the store; call it twice for two servers.
    pub async fn layer(&self) -> Layer {
        self.layer_with(LayerOptions::default()).await
    }

    /// The same, without anything in the background.
    pub async fn layer_alone(&self) -> Layer {
        let options = LayerOptions { root: self.root.clone(), ..LayerOptions::default() };
        Layer::open_alone(self.fdb.clone(), options, None).await.expect("the layer opens")
    }

    /// The same, with a clock that the test moves.
    pub async fn layer_alone_at(&self, manual: &ManualClock) -> Layer {
        let options = LayerOptions { root: self.root.clone(), clock: manual.clock(), ..LayerOptions::default() };
        Layer::open_alone(self.fdb.clone(), options, None).await.expect("the layer opens")
    }

    /// The same, with what judges writes.
    pub async fn layer_judged_by(&self, judge: impl Judge + 'static) -> Layer {
        let options = self.options(LayerOptions::default());
        Layer::open_judged(self.fdb.clone(), options, Some(Arc::new(judge))).await.expect("the layer opens")
    }

    /// The same, set up otherwise.
    pub async fn layer_with(&self, options: LayerOptions) -> Layer {
        let layer = Layer::open(self.fdb.clone(), self.options(options)).await.expect("the layer opens");
        Layer { shards: self.shards, ..layer }
    }

    fn options(&self, options: LayerOptions) -> LayerOptions {
        let shard = options.shard.or_else(|| Some(self.layers.fetch_add(1, Ordering::Relaxed)));
        LayerOptions { root: self.root.clone(), shard, ..options }
    }
}

/// `FLATBED_TEST_SHARDS=4`: every test's databases have shards, whatever it is about (but `waits`, whose figures are others).
fn default_shards() -> Option<u32> {
    number("FLATBED_TEST_SHARDS")
}

/// Lets everyone write, whatever `_security` says.
#[derive(Debug)]
pub struct Open;

impl Gate for Open {
    fn judge(&self, _: &SecurityOf) -> std::result::Result<(), Refusal> {
        Ok(())
    }
}

/// A server's layer, with the right to write as the server. Cheap to clone; what it does in the background ends with the
/// last of them.
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

    /// One that does nothing in the background.
    pub async fn open_alone(
        fdb: Arc<foundationdb::Database>,
        options: LayerOptions,
        judge: Option<Arc<dyn Judge>>,
    ) -> Result<Layer> {
        let (layer, authority) = flatbed_layer::Layer::open(fdb, options, judge).await?;
        Ok(Layer { layer, actor: authority.for_job("test"), shards: None, _background: None })
    }

    /// Its work in the background, not begun yet.
    pub fn background(&self, options: BackgroundOptions) -> Background {
        Background::new(&self.layer, self.actor.clone(), options).expect("randomness")
    }

    /// The server's right to write.
    pub fn actor(&self) -> &ServerActor {
        &self.actor
    }

    /// A counter of its metrics.
    pub fn counted(&self, name: &str) -> u64 {
        let family = self.metrics().into_iter().find(|family| family.name == name).expect("the family");
        match family.samples[0].value {
            flatbed_metrics::Value::Count(count) => count,
            _ => panic!("{name} is a counter"),
        }
    }

    /// Written to as the server.
    pub fn database(&self, name: &str) -> Database {
        self.layer.database(name, self.actor.clone())
    }

    /// Written to by a user of this name.
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

/// Changes keys beside the layer, until it is committed.
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

pub async fn create(layer: &Layer, name: &str, run_bytes: Option<u32>) -> Database {
    layer.create_database(name, &CreateOptions { run_bytes, ..CreateOptions::default() }).await.expect("created");
    layer.database(name)
}

/// Writes `body` (JSON text) onto `parent`.
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
    db.update(&edit).await.map(|Updated { rev }| rev)
}

pub async fn delete(db: &Database, id: &str, parent: &RevId) -> Result<RevId> {
    put(db, id, Some(parent), r#"{"_deleted":true}"#).await
}

/// The latest body as `{...}`.
pub async fn get(db: &Database, id: &str) -> Result<String> {
    db.get(id, &GetOptions::default()).await.map(|document| braces(&document.body))
}

pub fn braces(members: &[u8]) -> String {
    format!("{{{}}}", std::str::from_utf8(members).expect("UTF-8"))
}

/// Everything on the feed from the beginning.
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

/// The checker must find nothing, neither in the database nor beside it.
pub async fn assert_clean(layer: &Layer, db: &Database) {
    let check = async || check::check_database(db, |_| {}).await.expect("checked");
    // Work in the background may write meanwhile.
    let report = until_wanted("the sums are compared", check, |report| report.sums_compared).await;
    assert!(report.is_clean(), "{report:#?}");
    let report = check::check_namespaces(layer).await.expect("checked");
    assert!(report.is_clean(), "{report:#?}");
}

/// All keys of the store's root with their values, as a backup has them.
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

/// All rows of a range, as a snapshot. `RangeOption::next_range` takes a reply without rows for the end, which it need not be.
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

/// Puts the root's keys back to what they were, as `fdbrestore` does: beside every layer that is open.
pub async fn put_back(store: &Store, rows: &[(Vec<u8>, Vec<u8>)]) {
    let begin = foundationdb::tuple::pack(&(foundationdb::tuple::Bytes::from(store.root.clone()),));
    let end = [begin.as_slice(), &[0xff]].concat();
    change(&store.fdb, |trx| trx.clear_range(&begin, &end)).await;
    for rows in rows.chunks(500) {
        change(&store.fdb, |trx| rows.iter().for_each(|(key, value)| trx.set(key, value))).await;
    }
}

/// Names and kinds of all rows of `_db_updates`.
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
