//! The replies of a cluster that each operation waits for, one after the other, and its reads and writes.
//!
//! The numbers must be exactly those of `waits.md` beside this file. design/performance.md defines its columns.
//! `FLATBED_WAITS=update cargo test -p flatbed-layer --test it waits::` writes the file, for a change that is meant to
//! change the numbers. The embedded engine answers when a simulated cluster would, by a clock that moves when the
//! runtime is idle, so the machine's speed does not matter. On a real cluster it does, so there the test compares reads
//! and writes, and not waits.

mod channels;

use std::sync::Arc;

use crate::support::{Layer, Open, Random, Store, create, delete, get, pages_are_full, put};
use fdb_embedded::VirtualClock;
use flatbed_layer::json::{Limits, parse};
use flatbed_layer::waits::{self, Path, Waits};
use flatbed_layer::{
    AllDocsQuery, AttachmentEdit, BackgroundOptions, ChangesQuery, Conflicts, CreateOptions, Database,
    DatabaseUpdatesQuery, Edit, Extras, FindOptions, GetOptions, LayerOptions, LocalDocument, NameRange, OpenRevs,
    RevId, Scope, Since, USERS, User, UserFence, WrittenRevision,
};
use flatbed_testkit::{is_quiet, metadata_version};
use foundationdb_sys::backend::{Embedded, embedded};

/// The table of waits, in Markdown.
const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/waits.md");

/// Documents of the databases that are scanned.
const DOCUMENTS: usize = 1_000;

/// The measurements, in the order of the table.
struct Table(Vec<(String, Waits)>);

impl Table {
    async fn row<T>(&mut self, name: &str, operation: impl Future<Output = T>) -> T {
        let (output, waits) = waits::count(operation).await;
        self.0.push((name.to_owned(), waits));
        output
    }

    /// Measures each page of a scan: the first two, the last, and the total.
    async fn walk<P>(&mut self, name: &str, mut next: impl AsyncFnMut() -> Option<P>) {
        let mut pages = Vec::new();
        let (_, all) = waits::count(async {
            loop {
                // An operation within another one is counted separately.
                let (page, waits) = waits::count(next()).await;
                if page.is_none() {
                    break;
                }
                pages.push(waits);
            }
        })
        .await;
        assert_eq!(all, Waits::default());
        let last = pages.len().saturating_sub(1);
        for (at, waits) in pages.iter().enumerate().filter(|(at, _)| *at < 2 || *at == last) {
            self.0.push((format!("{name}, page {} of {}", at + 1, pages.len()), *waits));
        }
    }

    fn markdown(&self) -> String {
        let mut text = String::from(
            "| operation | waits | GRV | reads | commits | ms | transactions | point reads | range reads | keys read | \
             bytes read | keys written | bytes written |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
        );
        for (name, waits) in &self.0 {
            let Path { read_versions, reads, commits } = waits.path;
            let ms = read_versions as f64 * 0.5 + reads as f64 + commits as f64 * 2.0;
            let numbers = [
                waits.path.depth().to_string(),
                read_versions.to_string(),
                reads.to_string(),
                commits.to_string(),
                ms.to_string(),
                waits.transactions.to_string(),
                waits.point_reads.to_string(),
                (waits.range_reads + waits.size_reads).to_string(),
                waits.keys_read.to_string(),
                waits.bytes_read.to_string(),
                waits.keys_written.to_string(),
                waits.bytes_written.to_string(),
            ];
            text.push_str(&format!("| {name} | {} |\n", numbers.join(" | ")));
        }
        text
    }
}

/// A runtime that moves the clock before it waits.
pub fn runtime(engine: Option<Embedded>, clock: &Arc<VirtualClock>) -> tokio::runtime::Runtime {
    let clock = Arc::clone(clock);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().on_thread_park(move || {
        engine.map(|engine| engine.advance(&clock));
    });
    builder.build().expect("a runtime")
}

#[test]
fn operations_wait_as_often_as_the_table_says() {
    if !pages_are_full() {
        println!("pages are cut short: counts are not compared");
        return;
    }
    let clock = Arc::<VirtualClock>::default();
    // Beside a neighbour, as on a cluster, no number is exact.
    let has_neighbour = std::env::var_os("FLATBED_TEST_NEIGHBOUR").is_some();
    let engine = embedded().filter(|_| !has_neighbour);
    let measured = || {
        let simulated = engine.and_then(|_| Store::simulated(&clock));
        let store = simulated.unwrap_or_else(Store::new);
        let mut table = Table(Vec::new());
        runtime(engine, &clock).block_on(Box::pin(measure(&store, &mut table)));
        table.markdown()
    };
    let expected = std::fs::read_to_string(TABLE).expect("the table of waits");
    if engine.is_none() {
        // On a cluster the test takes time, in which cached entries may be evicted.
        let differs =
            |_: &u32| compare_on_a_cluster(&expected, &measured()).inspect_err(|row| println!("{row}")).is_err();
        assert_ne!((0..3).take_while(differs).count(), 3, "three times an operation read or wrote otherwise");
        return;
    }
    let measured = measured();
    if std::env::var("FLATBED_WAITS").is_ok_and(|mode| mode == "update") {
        std::fs::write(TABLE, measured).expect("written");
        return;
    }
    let differences: Vec<_> = expected
        .lines()
        .filter(|line| !measured.lines().any(|other| other == *line))
        .map(|line| format!("- {line}"))
        .chain(measured.lines().filter(|line| !expected.lines().any(|e| e == *line)).map(|line| format!("+ {line}")))
        .collect();
    assert!(
        expected == measured,
        "operations wait, read or write otherwise than {TABLE} says; where that is meant, \
         FLATBED_WAITS=update writes it:\n{}",
        differences.join("\n")
    );
}

/// Limit of the records that one transaction has in its caches.
const RECORDS_CACHED: u64 = 5;

/// Compares the figures that a cluster has in common with the table. Depths depend on the times of replies, bytes on
/// the length of the root's name, and pages on the servers. Other roots there change the metadata version, and each
/// transaction may then read cached records again: those of the root, of the database and of `_users`.
fn compare_on_a_cluster(expected: &str, measured: &str) -> Result<(), String> {
    println!("on a cluster waits, bytes and pages of ranges are not compared");
    let rows = |table: &str| -> Vec<Vec<String>> {
        let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect();
        // The number of pages, and of their rows, depends on the length of the root's name, too.
        table.lines().filter(|line| !line.contains(", page ")).map(cells).collect()
    };
    let (expected, measured) = (rows(expected), rows(measured));
    assert_eq!(expected.len(), measured.len(), "other operations");
    for (expected, measured) in expected.into_iter().zip(measured) {
        if expected[7] != measured[7] {
            println!("not compared, since transactions were tried again: {}", expected[1]);
            continue;
        }
        let number = |row: &[String], column: usize| row[column].parse::<u64>().unwrap_or_default();
        let anew = RECORDS_CACHED * number(&expected, 7);
        // Point reads and keys read.
        let is_near = [8, 10].into_iter().all(|column| {
            let expected = number(&expected, column);
            (expected..=expected + anew).contains(&number(&measured, column))
        });
        // Name and keys written.
        if !is_near || expected[1] != measured[1] || expected[12] != measured[12] {
            return Err(format!("expected {expected:?}, measured {measured:?}"));
        }
    }
    Ok(())
}

fn body(number: usize) -> String {
    format!(r#"{{"number":{number},"text":"{}","list":[1,2,3],"inner":{{"a":true,"b":null}}}}"#, "x".repeat(200))
}

fn edit(id: String, parent: Option<RevId>, text: &str) -> Edit<'_> {
    let body = flatbed_layer::json::parse(text.as_bytes(), &flatbed_layer::json::Limits::default()).expect("JSON");
    Edit { expiry: None, id: id.into(), parent, history: None, deleted: false, attachments: Vec::new(), body }
}

fn id(number: usize) -> String {
    format!("document-{number:05}")
}

/// Writes documents in one request, and returns their revisions.
async fn bulk(db: &Database, bodies: &[String], parents: Option<&[RevId]>) -> Vec<RevId> {
    bulk_from(db, 0, bodies, parents).await
}

/// As `bulk`, beginning with the number `first`.
pub async fn bulk_from(db: &Database, first: usize, bodies: &[String], parents: Option<&[RevId]>) -> Vec<RevId> {
    let parent = |number: usize| parents.map(|parents| parents[number].clone());
    let edits: Vec<_> =
        bodies.iter().enumerate().map(|(number, body)| edit(id(first + number), parent(number), body)).collect();
    let written = db.bulk_update(&edits).await.expect("written");
    written.into_iter().map(|result| result.expect("written").rev).collect()
}

async fn measure(store: &Store, table: &mut Table) {
    let layer = store.layer_alone().await;
    databases(&layer, table).await;
    documents(&layer, table).await;
    let revs = walks(&layer, table).await;
    replication(&layer, &revs, table).await;
    attachments(&layer, table).await;
    compaction(&layer, &revs, table).await;
    another_process(store, &layer, table).await;
    updates(&layer, table).await;
    together(store, table).await;
    shards(store, table).await;
    queries(&layer, table).await;
    fenced(&layer, table).await;
    channels::measure(&layer, table).await;
}

/// Measures the cost of checking a user's rights at the commit.
async fn fenced(layer: &Layer, table: &mut Table) {
    let db = create(layer, "fenced", None).await;
    let users = create(layer, USERS, None).await;
    let rev = put(&users, "org.couchdb.user:anna", None, "{}").await.unwrap();
    put(&db, "names", None, r#"{"n":0}"#).await.unwrap();
    let fence = Some(UserFence { name: "anna".to_owned(), rev: Some(rev) });
    let user = User { name: Some("anna".to_owned()), fence, ..User::default() };
    let anna = (**layer).database("fenced", user.through(Arc::new(Open)));
    let rev = table.row("a new document, by a user", put(&anna, "d", None, r#"{"n":7}"#)).await.unwrap();
    table.row("an edit, by a user", put(&anna, "d", Some(&rev), r#"{"n":8}"#)).await.unwrap();
    let local = LocalDocument { id: "l".into(), revision: 1, body: Vec::new() };
    table.row("a local document is written, by a user", anna.put_local(&local)).await.unwrap();
}

/// Measures the cost of a json index for writes, and queries that use it.
async fn queries(layer: &Layer, table: &mut Table) {
    let db = create(layer, "queries", None).await;
    let documents =
        |from: usize| -> Vec<String> { (from..from + 100).map(|n| format!(r#"{{"n":{n},"text":"t"}}"#)).collect() };
    bulk(&db, &documents(0), None).await;
    let view = r#"{"map":{"fields":{"n":"asc"}},"reduce":"_count","options":{"def":{}}}"#;
    put(&db, "_design/i", None, &format!(r#"{{"language":"query","views":{{"i":{view}}}}}"#)).await.unwrap();
    let background = layer.background(BackgroundOptions::default());
    while db.json_indexes().await.unwrap().readable().len() < 2 {
        background.round().await.unwrap();
    }
    let rev = table.row("a new document, one json index", put(&db, "d", None, r#"{"n":7}"#)).await.unwrap();
    table.row("an edit, one json index", put(&db, "d", Some(&rev), r#"{"n":8}"#)).await.unwrap();
    for (name, request) in [
        ("`_find` of 25 by a json index", r#"{"selector":{"n":{"$gt":10}}}"#),
        ("the same of fields that it has", r#"{"selector":{"n":{"$gt":10}},"fields":["n"]}"#),
        ("`_find` of 4 values", r#"{"selector":{"n":{"$in":[4,30,90,31]}}}"#),
    ] {
        let request = parse(request.as_bytes(), &Limits::default()).unwrap();
        let find = flatbed_mango::Find::parse(&request, None, &|| false).unwrap();
        let read = async {
            let indexes = db.json_indexes_known().unwrap();
            let plan = indexes.plan("queries", &find).unwrap();
            let options = FindOptions { limit: 25, ..FindOptions::default() };
            db.find(&indexes, &plan, options).next_page().await.unwrap().unwrap().len()
        };
        assert!(table.row(name, read).await >= 4);
    }
}

/// Measures the cost of shards: documents of four processes, each in its own bucket.
async fn shards(store: &Store, table: &mut Table) {
    let mut layers = Vec::new();
    for shard in 0..4 {
        let options = LayerOptions { root: store.root.clone(), shard: Some(shard), ..LayerOptions::default() };
        layers.push(Layer::open_alone(store.fdb.clone(), options, None).await.unwrap());
    }
    for shards in [4, 64] {
        let name = format!("shards{shards}");
        let options = CreateOptions { shards: Some(shards), ..CreateOptions::default() };
        layers[0].create_database(&name, &options).await.unwrap();
        for (number, layer) in layers.iter().enumerate() {
            let db = layer.database(&name);
            put(&db, &format!("names{number}"), None, &body(0)).await.unwrap();
            let (bodies, ids): (Vec<_>, Vec<_>) =
                (0..250).map(|at| (body(at), format!("document-{number}-{at:03}"))).unzip();
            let edits: Vec<_> = ids.iter().zip(&bodies).map(|(id, body)| edit(id.clone(), None, body)).collect();
            assert!(db.bulk_update(&edits).await.unwrap().iter().all(Result::is_ok));
        }
        let (here, there) = (layers[0].database(&name), layers[1].database(&name));
        let rev =
            table.row(&format!("a new document, {shards} shards"), put(&here, "d", None, &body(1))).await.unwrap();
        let row = format!("an edit of it in another process, {shards} shards");
        table.row(&row, put(&there, "d", Some(&rev), &body(2))).await.unwrap();
        table.row(&format!("`GET /{{db}}`, {shards} shards"), here.info()).await.unwrap();
        let mut changes = here.changes(ChangesQuery::default());
        let mut at_end = false;
        table
            .walk(&format!("`_changes` of 1,000, {shards} shards"), async || {
                if at_end {
                    return None;
                }
                let page = changes.next_page().await.unwrap();
                at_end = page.at_end;
                Some(page)
            })
            .await;
        let mut changes = here.changes(ChangesQuery { limit: Some(10), ..ChangesQuery::default() });
        let row = format!("`_changes?limit=10` of 1,000, {shards} shards");
        table.row(&row, changes.next_page()).await.unwrap();
        let since = Since::after(layers[3].newest_database_update().await.unwrap());
        for layer in &layers {
            let db = layer.database(&name);
            put(&db, &format!("later{}", db.update_seq().await.unwrap()), None, &body(3)).await.unwrap();
        }
        let query = DatabaseUpdatesQuery { since, ..DatabaseUpdatesQuery::default() };
        let mut updates = layers[0].database_updates(query);
        let row = format!("`_db_updates` after changes in 4 of {shards} shards");
        assert_eq!(table.row(&row, updates.next_page()).await.unwrap().rows.len(), 1);
        let background = layers[0].background(BackgroundOptions::default());
        for _ in 0..2 {
            here.compact().await.unwrap();
            background.round().await.unwrap();
        }
        here.compact().await.unwrap();
        let row = format!("a compaction with nothing to do, {shards} shards");
        assert_eq!(table.row(&row, background.round()).await.unwrap(), 1);
    }
}

async fn databases(layer: &Layer, table: &mut Table) {
    let options = CreateOptions::default();
    table.row("a database is created", layer.create_database("one", &options)).await.unwrap();
    let one = layer.database("one");
    table.row("its first document", put(&one, "d", None, r#"{"a":1}"#)).await.unwrap();
    table.row("`GET /{db}`", one.info()).await.unwrap();
    table.row("and once more within a minute", one.info()).await.unwrap();
    table.row("`_security` read", one.security()).await.unwrap();
    table.row("`_security` written", one.set_security(b"{}")).await.unwrap();
    table.row("`_all_dbs`", layer.all_databases(&NameRange::default())).await.unwrap();
    table.row("a database is deleted", layer.delete_database("one")).await.unwrap();
}

async fn documents(layer: &Layer, table: &mut Table) {
    let db = create(layer, "documents", None).await;
    put(&db, "names", None, &body(0)).await.unwrap();
    let first = table.row("a new document", put(&db, "d", None, &body(1))).await.unwrap();
    table.row("a new document with a new name in it", put(&db, "e", None, r#"{"new":1}"#)).await.unwrap();
    table.row("a document is read", get(&db, "d")).await.unwrap();
    let conflicts = GetOptions { conflicts: true, ..GetOptions::default() };
    table.row("a document is read with its conflicts", db.get("d", &conflicts)).await.unwrap();
    table.row("a document that is not there", get(&db, "none")).await.unwrap_err();
    let second = table.row("an edit", put(&db, "d", Some(&first), &body(2))).await.unwrap();
    table.row("an edit of an old revision, refused", put(&db, "d", Some(&first), &body(3))).await.unwrap_err();
    let old = GetOptions { rev: Some(first), ..GetOptions::default() };
    table.row("an old revision is read", db.get("d", &old)).await.unwrap();
    let text = body(4);
    let both = async {
        let ours = edit("d".into(), Some(second.clone()), &text);
        tokio::join!(db.update(&ours), db.bulk_update(std::slice::from_ref(&ours)))
    };
    let (one, _) = table.row("two equal edits at once, of which one begins anew", both).await;
    let third = one.unwrap().rev;
    table.row("a document is deleted", delete(&db, "d", &third)).await.unwrap();

    for branch in 0..20 {
        let rev = format!("1-{branch:032x}").parse().unwrap();
        let text = body(branch);
        db.update(&Edit { history: Some(vec![rev]), ..edit("leaves".into(), None, &text) }).await.unwrap();
    }
    let winner = db.get("leaves", &GetOptions::default()).await.unwrap().rev;
    table.row("an edit of a document with 20 leaves", put(&db, "leaves", Some(&winner), &body(5))).await.unwrap();
    table
        .row("`open_revs=all` of 20 leaves", {
            let db = &db;
            async move { db.open_revs("leaves", &OpenRevs::All, 0, false, &GetOptions::default()).await }
        })
        .await
        .unwrap();
    table.row("a leaf of 20 is purged", db.purge("leaves", &[format!("1-{:032x}", 3).parse().unwrap()])).await.unwrap();

    let mut line: Vec<RevId> = Vec::new();
    for generation in 1..=150 {
        let rev: RevId = format!("{generation}-{:032x}", 7).parse().unwrap();
        let (history, text) = (Some(vec![rev.clone()]), body(generation));
        db.update(&Edit { history, ..edit("joined".into(), None, &text) }).await.unwrap();
        line.insert(0, rev);
    }
    line.insert(0, format!("151-{:032x}", 7).parse().unwrap());
    let text = body(151);
    let joins = Edit { history: Some(line), ..edit("joined".into(), None, &text) };
    table.row("a path that ends 150 branches", db.update(&joins)).await.unwrap();

    let mut random = Random(1);
    let text: String = (0..2_000_000).map(|_| char::from(b'a' + random.below(26) as u8)).collect();
    let large = format!(r#"{{"text":"{text}"}}"#);
    let rev = table.row("a document of 2 MB", put(&db, "large", None, &large)).await.unwrap();
    table.row("a document of 2 MB is read", get(&db, "large")).await.unwrap();
    table.row("a document of 2 MB is deleted", delete(&db, "large", &rev)).await.unwrap();

    let local = |text: &'static [u8]| LocalDocument { id: "l".into(), revision: 1, body: text.into() };
    table.row("a local document is written", db.put_local(&local(b"\"a\":1"))).await.unwrap();
    table.row("a local document is read", db.get_local("l")).await.unwrap();
    table.row("local documents are listed", db.list_local(None, false)).await.unwrap();
    table.row("a local document is deleted", db.delete_local("l")).await.unwrap();
}

/// Measures a server that runs four transactions of single writes at once, of any duration.
async fn together(store: &Store, table: &mut Table) {
    let options = LayerOptions { single_writes_at_once: Some(4), ..LayerOptions::default() };
    let db = create(&store.layer_with(options).await, "together", None).await;
    put(&db, "names", None, &body(0)).await.unwrap();
    let bodies: Vec<_> = (0..64).map(|number| (id(number), body(number))).collect();
    let singles = futures_util::future::join_all(bodies.iter().map(|(id, body)| put(&db, id, None, body)));
    let written = table.row("64 new documents, written by 64 clients at once", singles).await;
    assert!(written.iter().all(|rev| rev.is_ok()), "{written:?}");
}

/// Leaves a database `walked` of [`DOCUMENTS`] documents, and returns their revisions.
async fn walks(layer: &Layer, table: &mut Table) -> Vec<RevId> {
    let db = create(layer, "walked", None).await;
    put(&db, "names", None, &body(0)).await.unwrap();
    let bodies: Vec<_> = (0..DOCUMENTS).map(body).collect();
    let first = table.row("a bulk of 1,000 new documents", bulk(&db, &bodies, None)).await;
    let revs = table.row("a bulk of 1,000 edits", bulk(&db, &bodies, Some(&first))).await;

    table
        .row("`_all_docs`, its total", async { db.all_docs(AllDocsQuery::default()).total_rows().await })
        .await
        .unwrap();
    let mut walk = db.all_docs(AllDocsQuery::default());
    table.walk("`_all_docs` of 1,000", async || walk.next_page().await.unwrap()).await;
    let mut walk = db.all_docs(AllDocsQuery { include_docs: true, ..AllDocsQuery::default() });
    table.walk("`_all_docs` with documents of 1,000", async || walk.next_page().await.unwrap()).await;
    let limited = AllDocsQuery { include_docs: true, limit: Some(10), skip: 500, ..AllDocsQuery::default() };
    let mut walk = db.all_docs(limited);
    table.walk("`_all_docs?skip=500&limit=10` with documents", async || walk.next_page().await.unwrap()).await;
    let keys: Vec<_> = (0..100).map(|number| id(number * 7)).collect();
    table.row("`_all_docs` of 100 keys", db.all_docs_keys(&keys, false, Conflicts::No)).await.unwrap();
    table.row("`_all_docs` of 100 keys with documents", db.all_docs_keys(&keys, true, Conflicts::No)).await.unwrap();
    let requests: Vec<_> = keys.iter().map(|id| (id.clone(), GetOptions::default())).collect();
    table.row("`_bulk_get` of 100", db.get_many(&requests)).await.unwrap();

    let with_documents = ChangesQuery { extras: Extras::DOCUMENTS, ..ChangesQuery::default() };
    let by_ids = ChangesQuery { scope: Scope::Ids(Arc::new(keys.into_iter().collect())), ..ChangesQuery::default() };
    for (name, query) in [
        ("`_changes` of 1,000", ChangesQuery::default()),
        ("`_changes?style=all_docs` of 1,000", ChangesQuery { extras: Extras::LEAVES, ..ChangesQuery::default() }),
        ("`_changes` with documents of 1,000", with_documents.clone()),
        ("`_changes?descending=true` of 1,000", ChangesQuery { descending: true, ..ChangesQuery::default() }),
        ("`_changes` of 100 ids", by_ids),
    ] {
        let mut changes = db.changes(query);
        let mut at_end = false;
        table
            .walk(name, async || {
                if at_end {
                    return None;
                }
                let page = changes.next_page().await.unwrap();
                at_end = page.at_end;
                Some(page)
            })
            .await;
    }
    let mut changes = db.changes(ChangesQuery { limit: Some(10), ..ChangesQuery::default() });
    table.row("`_changes?limit=10` of 1,000", changes.next_page()).await.unwrap();
    table.row("`_changes?limit=10` of 1,000, its `pending`", changes.pending()).await.unwrap();
    revs
}

async fn replication(layer: &Layer, revs: &[RevId], table: &mut Table) {
    let db = layer.database("walked");
    let known: Vec<_> = (0..100).map(|number| (id(number), vec![revs[number].clone()])).collect();
    let unknown: Vec<_> = (0..100).map(|number| (id(number), vec!["9-a".parse().unwrap()])).collect();
    table.row("`_revs_diff` of 100 known revisions", db.missing_revs(&known)).await.unwrap();
    table.row("`_revs_diff` of 100 unknown revisions", db.missing_revs(&unknown)).await.unwrap();
    let copy = create(layer, "replica", None).await;
    put(&copy, "names", None, &body(0)).await.unwrap();
    let bodies: Vec<_> = (0..100).map(body).collect();
    let edits: Vec<_> = bodies
        .iter()
        .enumerate()
        .map(|(number, body)| {
            let history = vec![revs[number].clone(), format!("1-{number:032x}").parse().unwrap()];
            Edit { history: Some(history), ..edit(id(number), None, body) }
        })
        .collect();
    table.row("`_bulk_docs` of 100 with `new_edits=false`", copy.bulk_update(&edits)).await.unwrap();
}

async fn attachments(layer: &Layer, table: &mut Table) {
    let db = create(layer, "attachments", None).await;
    put(&db, "names", None, &body(0)).await.unwrap();
    // As `_attachments` in a document's JSON: small ones are staged together.
    let with_data = async {
        let (mut list, mut small) = (Vec::new(), Vec::new());
        for number in 0..200 {
            let mut upload = db.upload("text/plain", false).await?;
            upload.write(format!("data {number:05}").as_bytes()).await?;
            let (data, unstaged) = upload.complete().await?;
            small.extend(unstaged);
            let content_type = "text/plain".to_owned();
            list.push((format!("a{number:03}"), AttachmentEdit::Data { content_type, revpos: None, data }));
        }
        db.stage(&small).await?;
        let text = body(0);
        db.update(&Edit { attachments: list, ..edit("many".into(), None, &text) }).await
    };
    let WrittenRevision { rev } = table.row("a document with 200 attachments of 10 bytes", with_data).await.unwrap();
    let text = body(1);
    let stubs = (0..200).map(|number| (format!("a{number:03}"), AttachmentEdit::Stub { revpos: None })).collect();
    let stubs = Edit { attachments: stubs, ..edit("many".into(), Some(rev), &text) };
    table.row("an edit with 200 stubs", db.update(&stubs)).await.unwrap();
    table.row("a document with 200 attachments is read", get(&db, "many")).await.unwrap();
    let one = async {
        let mut reader = db.attachment("many", None, "a100").await?;
        while reader.next().await?.is_some() {}
        Ok::<_, flatbed_layer::Error>(())
    };
    table.row("an attachment of 10 bytes is read", one).await.unwrap();
    let large = async {
        let mut upload = db.upload("image/png", false).await?;
        for _ in 0..100 {
            upload.write(&[7; 100_000]).await?;
        }
        upload.finish().await
    };
    let data = table.row("10 MB are uploaded", large).await.unwrap();
    let data = AttachmentEdit::Data { content_type: "image/png".into(), revpos: None, data };
    let large = Edit { attachments: vec![("large".into(), data)], ..edit("large".into(), None, "{}") };
    table.row("and become an attachment", db.update(&large)).await.unwrap();
    let all = async {
        let mut reader = db.attachment("large", None, "large").await?;
        while reader.next().await?.is_some() {}
        Ok::<_, flatbed_layer::Error>(())
    };
    table.row("an attachment of 10 MB is read", all).await.unwrap();
}

/// Measures the compaction of `walked`, whose documents have one superseded revision each.
async fn compaction(layer: &Layer, revs: &[RevId], table: &mut Table) {
    let db = layer.database("walked");
    let background = layer.background(BackgroundOptions::default());
    background.round().await.unwrap();
    table.row("a compaction is asked for", db.compact()).await.unwrap();
    assert_eq!(table.row("1,000 documents are compacted", background.round()).await.unwrap(), 1);
    db.compact().await.unwrap();
    assert_eq!(table.row("and once more, with nothing to do", background.round()).await.unwrap(), 1);
    assert_eq!(table.row("nothing is due", background.round()).await.unwrap(), 0);
    assert_eq!(db.info().await.unwrap().superseded_size_bytes, 0);
    let next = edit(id(0), Some(revs[0].clone()), "{}");
    table.row("an edit after it", db.update(&next)).await.unwrap();
}

async fn another_process(store: &Store, layer: &Layer, table: &mut Table) {
    let db = create(layer, "named", None).await;
    let members: Vec<_> = (0..4_096).map(|number| format!(r#""name{number:04}":{number}"#)).collect();
    let text = format!("{{{}}}", members.join(","));
    let rev = table.row("a document with 4,096 new names", put(&db, "d", None, &text)).await.unwrap();
    put(&db, "small", None, r#"{"name0001":1}"#).await.unwrap();
    let other = table.row("a layer is opened", store.layer_alone()).await;
    table.row("its first read, of a database of 4,096 names", get(&other.database("named"), "small")).await.unwrap();
    let other = store.layer_alone().await;
    let db = other.database("named");
    let first = put(&db, "e", None, r#"{"name0002":2}"#);
    table.row("its first write, to such a database", first).await.unwrap();
    table.row("an edit of a document with 4,096 names", put(&db, "d", Some(&rev), &text)).await.unwrap();
    assert!(matches!(db.get("d", &GetOptions::default()).await, Ok(document) if document.body.len() > 4_096));
}

async fn updates(layer: &Layer, table: &mut Table) {
    let mut at_end = false;
    let mut updates = layer.database_updates(DatabaseUpdatesQuery::default());
    table
        .walk("`_db_updates`", async || {
            if at_end {
                return None;
            }
            let page = updates.next_page().await.unwrap();
            at_end = page.at_end;
            Some(page)
        })
        .await;
    table.row("the newest of all databases' updates", layer.newest_database_update()).await.unwrap();
}

/// Totals are those of the process, also outside of counted operations.
#[tokio::test]
async fn the_process_counts_in_metrics() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    put(&db, "d", None, r#"{"a":1}"#).await.unwrap();
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

/// Creations of databases cause no waits for others: cached entries stay valid, here and at other servers. A deletion
/// invalidates them.
#[tokio::test]
async fn creations_cost_other_databases_no_wait() {
    let store = Store::new();
    let (layer, other) = (store.layer().await, store.layer().await);
    let db = create(&layer, "db", None).await;
    let mut rev = put(&db, "d", None, &body(1)).await.unwrap();
    let known = other.database("db");
    get(&known, "d").await.unwrap();
    let quiet = metadata_version(&store.fdb).await;
    let mut measured = Vec::new();
    for number in 0..10 {
        let text = body(number);
        let (written, edit) = waits::count(put(&db, "d", Some(&rev), &text)).await;
        rev = written.unwrap();
        let (read, got) = waits::count(get(&known, "d")).await;
        assert_eq!(read.unwrap(), text);
        measured.push((edit, got));
        let creating = if number % 2 == 0 { &layer } else { &other };
        let options = CreateOptions::default();
        let (created, creation) = waits::count(creating.create_database(&format!("new{number}"), &options)).await;
        created.unwrap();
        assert!(creation.path.depth() <= 3, "{creation:?}");
    }
    // The first ones may fill caches. If other roots' records change, each may.
    if pages_are_full() && is_quiet(&store.fdb, &quiet).await {
        let (edit, got) = measured[1];
        assert_eq!((edit.path.depth(), got.path.depth()), (3, 2));
        assert!(measured[1..].iter().all(|(other, another)| other.path == edit.path && another.path == got.path));
        assert!(measured[1..].iter().all(|(other, _)| other.point_reads == edit.point_reads));
    }
    other.delete_database("new0").await.unwrap();
    let (read, got) = waits::count(get(&known, "d")).await;
    read.unwrap();
    assert_eq!(got.path.depth(), 3, "its record is read again");
}
