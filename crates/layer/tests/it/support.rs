//! What the layer's tests share: a layer on the embedded engine in a temporary directory, or on the cluster named by
//! `FLATBED_CLUSTER_FILE` under a root of its own.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::neighbour;
use flatbed_layer::json::{Limits, parse};
use flatbed_layer::{
    Background, BackgroundOptions, ChangeRow, ChangesQuery, CreateOptions, Database, DatabaseUpdatesQuery, Edit,
    EditParts, Gate, GetOptions, Judge, LayerOptions, Refusal, Result, RevId, SecurityOf, ServerActor, Since, Updated,
    User, check,
};
use foundationdb::api::NetworkAutoStop;
use foundationdb_sys::backend::Embedded;

static NETWORK: OnceLock<NetworkAutoStop> = OnceLock::new();

/// Numbers that a seed decides (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next one, from 0 up to and without `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// A store of its own for one test; removed with it.
pub struct Store {
    pub fdb: Arc<foundationdb::Database>,
    pub root: Vec<u8>,
    /// Of databases that are created; each layer that is opened writes to another one.
    shards: Option<u32>,
    layers: AtomicU32,
    /// Removed with the store.
    _directory: Option<tempfile::TempDir>,
}

/// Faults with the share of short pages that `FLATBED_TEST_FAULTS=PROBABILITY,SEED[,SHORT_PAGES]` gives, or 0.3.
fn buggify(probability: f64, seed: u64) -> fdb_embedded::Buggify {
    let given = std::env::var("FLATBED_TEST_FAULTS").ok().map(|text| {
        fdb_embedded::Buggify::parse(&text).expect("FLATBED_TEST_FAULTS=PROBABILITY,SEED[,SHORT_PAGES]").short_pages
    });
    fdb_embedded::Buggify::new(probability, seed).with_short_pages(given.unwrap_or(0.3))
}

/// Whether pages of ranges are full, so that counts of reads can be compared. `FLATBED_FDB_BUGGIFY` cuts pages short.
pub fn pages_are_full() -> bool {
    std::env::var_os("FLATBED_FDB_BUGGIFY").is_none()
}

impl Store {
    pub fn new() -> Store {
        // SAFETY: foundationdb-sys stops the network when the process ends.
        NETWORK.get_or_init(|| unsafe { foundationdb::boot() });
        if let Ok(path) = std::env::var("FLATBED_CLUSTER_FILE") {
            let fdb = Arc::new(foundationdb::Database::from_path(&path).expect("the cluster file opens"));
            neighbour::begin_if_asked(&fdb);
            // A process has several stores. The name is short, as it is in every key.
            static STORES: AtomicU32 = AtomicU32::new(0);
            let now = std::time::UNIX_EPOCH.elapsed().expect("a clock").as_micros();
            let number = STORES.fetch_add(1, Ordering::Relaxed);
            let root = format!("test{now:x}{:x}-{number:x}", std::process::id()).into_bytes();
            return Store { fdb, root, shards: default_shards(), layers: AtomicU32::new(0), _directory: None };
        }
        let directory = tempfile::tempdir().expect("a temporary directory");
        let cluster_file = directory.path().join("embedded.cluster");
        std::fs::write(&cluster_file, "embedded:test@data\n").expect("written");
        let fdb = foundationdb::Database::from_path(cluster_file.to_str().expect("UTF-8")).expect("the engine opens");
        let fdb = Arc::new(fdb);
        neighbour::begin_if_asked(&fdb);
        Store {
            fdb,
            root: b"t".to_vec(),
            shards: default_shards(),
            layers: AtomicU32::new(0),
            _directory: Some(directory),
        }
    }

    /// On the embedded engine, with faults: conflicts, unknown results of commits, reads that come too late. `None`, and
    /// a line that says so, where a library answers: what needs the faults is skipped there.
    pub fn with_faults(probability: f64, seed: u64) -> Option<Store> {
        let Some(engine) = engine() else {
            println!("skipped: needs the embedded engine");
            return None;
        };
        let mut options = fdb_embedded::OpenOptions::default();
        options.buggify = Some(buggify(probability, seed));
        Some(Store::on(engine, options))
    }

    /// With faults too, on what answers as late as a cluster by the machine's clock, with one server that works for all.
    pub fn as_a_cluster_with_faults(probability: f64, seed: u64) -> Option<Store> {
        let mut cluster = fdb_embedded::SimulatedCluster::parse("1000,500,2000").expect("three latencies");
        cluster.has_server = true;
        let mut options = fdb_embedded::OpenOptions::default();
        options.simulated = Some(cluster);
        options.buggify = Some(buggify(probability, seed));
        Some(Store::on(engine()?, options))
    }

    /// On the embedded engine with a cluster's latencies (1 ms a read, 0.5 ms a read version, 2 ms a commit) by a clock
    /// that stands still until it is moved.
    pub fn simulated(engine: Embedded, clock: &Arc<fdb_embedded::VirtualClock>) -> Store {
        Store::on_clock(engine, clock, None)
    }

    /// The same with faults, which follow from the seed alone as long as one thread calls.
    pub fn simulated_with_faults(
        engine: Embedded,
        clock: &Arc<fdb_embedded::VirtualClock>,
        probability: f64,
        seed: u64,
    ) -> Store {
        Store::on_clock(engine, clock, Some(buggify(probability, seed)))
    }

    fn on_clock(
        engine: Embedded,
        clock: &Arc<fdb_embedded::VirtualClock>,
        faults: Option<fdb_embedded::Buggify>,
    ) -> Store {
        let mut cluster = fdb_embedded::SimulatedCluster::parse("1000,500,2000").expect("three latencies");
        cluster.clock = Some(Arc::clone(clock));
        let mut options = fdb_embedded::OpenOptions::default();
        options.simulated = Some(cluster);
        options.buggify = faults;
        Store::on(engine, options)
    }

    /// On the embedded engine with one server that works for each call, and answers that come soon otherwise.
    pub fn slow(engine: Embedded) -> Store {
        let mut cluster = fdb_embedded::SimulatedCluster::parse("100,50,200").expect("three latencies");
        cluster.has_server = true;
        let mut options = fdb_embedded::OpenOptions::default();
        options.simulated = Some(cluster);
        Store::on(engine, options)
    }

    fn on(engine: Embedded, options: fdb_embedded::OpenOptions) -> Store {
        // SAFETY: as in `new`.
        NETWORK.get_or_init(|| unsafe { foundationdb::boot() });
        let directory = tempfile::tempdir().expect("a temporary directory");
        let database = engine.open(directory.path(), options).expect("the engine opens");
        // SAFETY: the pointer is a database of what answers, and nobody else destroys it.
        let fdb = unsafe { foundationdb::Database::new_from_pointer(database) };
        Store {
            fdb: Arc::new(fdb),
            root: b"t".to_vec(),
            shards: default_shards(),
            layers: AtomicU32::new(0),
            _directory: Some(directory),
        }
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
    let given = std::env::var("FLATBED_TEST_SHARDS").ok()?;
    Some(given.parse().expect("FLATBED_TEST_SHARDS is a number"))
}

/// What only the embedded engine can do; `None` where a library answers.
pub fn engine() -> Option<Embedded> {
    foundationdb_sys::backend::embedded()
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
    let parts = EditParts::from_json(value)?;
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
    let mut report = check::check_database(db, |_| {}).await.expect("checked");
    for _ in 0..100 {
        if report.sums_compared {
            break;
        }
        // Work in the background has written meanwhile.
        tokio::time::sleep(Duration::from_millis(50)).await;
        report = check::check_database(db, |_| {}).await.expect("checked");
    }
    assert!(report.is_clean() && report.sums_compared, "{report:#?}");
    let report = check::check_namespaces(layer).await.expect("checked");
    assert!(report.is_clean(), "{report:#?}");
}

/// A bound for what should take milliseconds, so that a hang fails instead of hanging.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("not within a minute")
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
