//! Scans with documents: by ranges and document by document. Ranges, pages and replies have few bytes here, so that
//! each also ends within a document.
#![cfg(test)]

mod merged_ids;
mod purged_infos;

use std::collections::BTreeSet;

use flatbed_databases::document::attachments::AttachmentEdit;
use flatbed_databases::document::edit::{Conflicts, Document, Edit, EditParts, GetOptions};
use flatbed_databases::document::latest::read_range;
use flatbed_databases::server::CreateOptions;
use flatbed_flatten::json::{Limits, parse};
use flatbed_operations::read::all_docs::AllDocsQuery;
use flatbed_operations::write::batch::resolved;
use flatbed_store::transaction::{self, Attempt, Operation, Quiet, Transaction};
use proptest::prelude::*;

use crate::handle::Database;
use crate::tests::fenced::layer;

/// Ids of which some are prefixes of others or contain bytes that keys escape.
const IDS: [&str; 16] = [
    "a",
    "a\0",
    "a\0b",
    "a\u{1}",
    "aa",
    "ab",
    "b",
    "c",
    "_design/x",
    "_design/y",
    "d",
    "\u{e9}",
    "\u{ffff}",
    "\u{10000}",
    "e",
    "f",
];

#[derive(Debug, Clone)]
enum DocumentChange {
    Edit { members: usize, bytes: usize },
    Delete,
    Lose { members: usize, deleted: bool },
    Attach,
    Blob,
    Purge,
}

fn done() -> impl Strategy<Value = DocumentChange> {
    prop_oneof![
        6 => (0..12_usize, 0..300_usize).prop_map(|(members, bytes)| DocumentChange::Edit { members, bytes }),
        2 => Just(DocumentChange::Delete),
        2 => (0..5_usize, any::<bool>()).prop_map(|(members, deleted)| DocumentChange::Lose { members, deleted }),
        1 => Just(DocumentChange::Attach),
        1 => Just(DocumentChange::Purge),
        1 => Just(DocumentChange::Blob),
    ]
}

fn body(members: usize, bytes: usize) -> String {
    let members: Vec<_> = (0..members).map(|n| format!(r#""m{n}":"{}""#, "x".repeat(bytes))).collect();
    format!("{{{}}}", members.join(","))
}

async fn put(db: &Database, id: &str, text: &str, change: impl FnOnce(Edit<'_>) -> Edit<'_>) {
    let parent = db.get(id, &GetOptions::default()).await.ok().map(|document| document.rev);
    let parts =
        EditParts::from_json(parse(text.as_bytes(), &Limits::default()).unwrap(), &flatbed_clock::Clock::system())
            .unwrap();
    let EditParts { deleted, body, .. } = parts;
    let edit = Edit { expiry: None, id: id.into(), parent, history: None, deleted, attachments: Vec::new(), body };
    db.update(&change(edit)).await.unwrap();
}

async fn apply(db: &Database, number: usize, id: &str, done: &DocumentChange) {
    let is_there = || async { db.get(id, &GetOptions::default()).await.ok() };
    match *done {
        DocumentChange::Edit { members, bytes } => put(db, id, &body(members, bytes), |edit| edit).await,
        DocumentChange::Delete if is_there().await.is_some() => put(db, id, r#"{"_deleted":true}"#, |edit| edit).await,
        DocumentChange::Lose { members, deleted } => {
            let history = Some(vec![format!("1-{number:032x}").parse().unwrap()]);
            put(db, id, &body(members, 9), |edit| Edit { parent: None, history, deleted, ..edit }).await;
        }
        DocumentChange::Attach => {
            let mut upload = db.upload("text/plain", false).await.unwrap();
            upload.write(id.as_bytes()).await.unwrap();
            let data = upload.finish().await.unwrap();
            let data = AttachmentEdit::Data { content_type: "text/plain".into(), revpos: None, data };
            put(db, id, "{}", |edit| Edit { attachments: vec![("a".into(), data)], ..edit }).await;
        }
        DocumentChange::Blob => {
            // Texts that hardly compress.
            let text = (0..14_000).map(|n| format!("{:032x}", n * 7_919_usize.pow(3))).collect::<String>();
            put(db, id, &format!(r#"{{"x":"{text}"}}"#), |edit| edit).await;
        }
        DocumentChange::Purge => {
            if let Some(document) = is_there().await {
                db.purge(id, &[document.rev]).await.unwrap();
            }
        }
        DocumentChange::Delete => {}
    }
}

/// Reads a scan in pages.
async fn walked(db: &Database, query: &AllDocsQuery) -> Vec<Document> {
    let mut walk = db.all_docs(query.clone());
    let mut rows = Vec::new();
    while let Some(page) = walk.next_page().await.unwrap() {
        assert!(!page.is_empty());
        rows.extend(page.into_iter().map(|row| {
            let document = row.doc.expect("a document that is not deleted");
            assert_eq!((&row.id, &row.rev), (&document.id, &document.rev));
            document
        }));
    }
    rows
}

async fn expected(db: &Database, ids: &BTreeSet<&str>, query: &AllDocsQuery) -> Vec<Document> {
    let mut found = Vec::new();
    let (low, high) = if query.descending { (&query.end, &query.start) } else { (&query.start, &query.end) };
    for id in ids {
        let is_end = query.end.as_deref() == Some(*id) && query.exclusive_end;
        if low.as_deref().is_some_and(|low| *id < low) || high.as_deref().is_some_and(|high| *id > high) || is_end {
            continue;
        }
        let options = GetOptions { conflicts: query.conflicts != Conflicts::No, ..GetOptions::default() };
        found.extend(db.get(id, &options).await.ok());
    }
    if query.descending {
        found.reverse();
    }
    let limit = query.limit.map_or(usize::MAX, |limit| limit as usize);
    found.into_iter().skip(query.skip as usize).take(limit).collect()
}

async fn compare(run_bytes: u32, all: &[(usize, DocumentChange)], queries: &[AllDocsQuery]) {
    let (layer, authority, _storage) = layer().await;
    let db = layer.database("walked", authority.for_job("test"));
    db.create(&CreateOptions { run_bytes: Some(run_bytes), ..CreateOptions::default() }).await.unwrap();
    let mut ids = BTreeSet::new();
    for (number, (id, done)) in all.iter().enumerate() {
        ids.insert(IDS[*id]);
        apply(&db, number, IDS[*id], done).await;
    }
    for query in queries {
        let (walked, expected) = (walked(&db, query).await, expected(&db, &ids, query).await);
        let of = |documents: &[Document]| documents.iter().map(|document| document.id.clone()).collect::<Vec<_>>();
        assert_eq!(of(&walked), of(&expected), "{query:?}");
        assert!(walked == expected, "{query:?}");
    }
}

fn query() -> impl Strategy<Value = AllDocsQuery> {
    let id = || prop::option::weighted(0.3, (0..IDS.len()).prop_map(|at| IDS[at].to_owned()));
    (id(), id(), any::<[bool; 3]>(), 0..4_u64, prop::option::of(0..9_u64)).prop_map(
        |(start, end, [exclusive_end, descending, conflicts], skip, limit)| AllDocsQuery {
            start,
            end,
            exclusive_end,
            partition: None,
            descending,
            include_docs: true,
            conflicts: conflicts.into(),
            skip,
            limit,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn a_walk_shows_what_documents_are(
        all in prop::collection::vec((0..IDS.len(), done()), 0..60),
        queries in prop::collection::vec(query(), 6),
        in_runs: bool,
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(compare(if in_runs { 500 } else { 0 }, &all, &queries));
    }
}

/// Reads what one range of all documents reads.
async fn whole_range(db: &Database) -> (usize, usize, bool) {
    let instance = resolved(&db.inner, &db.name).await.unwrap();
    let mut ids = Vec::new();
    let mut walk = db.all_docs(AllDocsQuery::default());
    while let Some(page) = walk.next_page().await.unwrap() {
        ids.extend(page.into_iter().map(|row| row.id));
    }
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
    let range = read_range(&trx, &instance, &ids).await.unwrap();
    (range.found.len(), ids.len(), range.share.is_small(range.found.len()))
}

#[tokio::test]
async fn histories_and_tombstones_are_passed_over_document_by_document() {
    let (layer, authority, _storage) = layer().await;
    let server = authority.for_job("test");
    let create = async |name: &str| {
        let db = layer.database(name, server.clone());
        db.create(&CreateOptions::default()).await.unwrap();
        db
    };
    let plain = create("plain").await;
    let histories = create("histories").await;
    let tombstones = create("tombstones").await;
    for number in 0..10 {
        let id = format!("d{number:03}");
        put(&plain, &id, &body(2, 20), |edit| edit).await;
        put(&histories, &id, &body(2, 20), |edit| edit).await;
        for _ in 0..if number % 4 == 0 { 60 } else { 0 } {
            put(&histories, &id, &body(2, 20), |edit| edit).await;
        }
        put(&tombstones, &id, &body(2, 20), |edit| edit).await;
        for gone in 0..9 {
            let id = format!("{id}/{gone}");
            put(&tombstones, &id, &body(2, 20), |edit| edit).await;
            put(&tombstones, &id, r#"{"_deleted":true}"#, |edit| edit).await;
        }
    }
    assert_eq!(whole_range(&plain).await, (10, 10, false));
    for db in [&plain, &histories, &tombstones] {
        let query = AllDocsQuery { include_docs: true, ..AllDocsQuery::default() };
        let ids: Vec<String> = (0..10).map(|number| format!("d{number:03}")).collect();
        let ids = ids.iter().map(String::as_str).collect();
        assert!(walked(db, &query).await == expected(db, &ids, &query).await);
    }
    for db in [&histories, &tombstones] {
        let (read, all, is_small) = whole_range(db).await;
        assert!(read < all && is_small, "{read} of {all}");
    }
}

/// Writes a key.
struct Put(Vec<u8>);

impl Operation for Put {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> crate::Result<()> {
        Quiet(trx).set(&self.0, b"x")
    }
}

/// Reads all keys of a document, page by page.
async fn all_stored_keys(db: &Database, id: &str) -> Vec<crate::StoredKey> {
    let (mut keys, mut after) = (Vec::new(), None);
    loop {
        let page = db.stored_keys(id, after.as_deref()).await.unwrap();
        keys.extend(page.keys);
        after = page.next;
        if after.is_none() {
            return keys;
        }
    }
}

/// Fields without a name, as in a partly restored store, are shown by their numbers, and the rest of the document with
/// them.
#[tokio::test]
async fn what_has_no_name_is_shown_by_its_number() {
    let (layer, authority, _storage) = layer().await;
    let db = layer.database("unnamed", authority.for_job("test"));
    db.create(&CreateOptions { run_bytes: Some(0), ..CreateOptions::default() }).await.unwrap();
    put(&db, "a", r#"{"customer":{"city":"Bern"}}"#, |edit| edit).await;
    let keys = all_stored_keys(&db, "a").await;
    let at = |name: &str| keys.iter().position(|key| key.form.ends_with(name)).unwrap();
    let city = at("/ city");
    assert_eq!(keys[city].form, r#"{NS} / 2 / "a" / 1 / customer / city"#);
    // The last byte of the key is the number of `city`.
    let mut unnamed = keys[city].key.clone();
    *unnamed.last_mut().unwrap() = 0x7f;
    transaction::write(&db.inner.db, &db.inner.metrics, &mut Put(unnamed.clone())).await.unwrap();
    let shown = all_stored_keys(&db, "a").await;
    assert_eq!(shown.len(), keys.len() + 1);
    let form = r#"{NS} / 2 / "a" / 1 / customer / field 127"#.to_owned();
    assert!(shown.contains(&crate::StoredKey { key: unnamed, form, what: "body", value_bytes: 1 }), "{shown:?}");
}
