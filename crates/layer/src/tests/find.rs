//! Compares queries with a scan of all documents.
#![cfg(test)]

mod partition_tests;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use flatbed_databases::document::edit::{Edit, EditParts, GetOptions};
use flatbed_flatten::json::{Limits, Value, parse};
use flatbed_mango::{Bookmark, Find as Request, Index, compare};
use flatbed_operations::find::query::{FindOptions, QueryDocument};
use flatbed_store::error::{Error, Refusal, Result};
use flatbed_store::waits;
use flatbed_testkit::{Storage, until};

use crate::background::{Background, BackgroundOptions};
use crate::handle::{Database, Layer};
use crate::tests::fenced::layer;
use crate::{AllDocsQuery, RevId};

pub(super) fn json(text: &str) -> Value<'static> {
    parse(text.as_bytes(), &Limits::default()).unwrap().into_owned()
}

fn text(value: &Value<'_>) -> String {
    let mut out = Vec::new();
    crate::json::write(value, &mut out);
    String::from_utf8(out).unwrap()
}

pub(crate) async fn put(db: &Database, id: &str, parent: Option<RevId>, body: &str) -> Result<RevId> {
    let EditParts { deleted, body, .. } = EditParts::from_json(json(body), &flatbed_clock::Clock::system()).unwrap();
    let edit = Edit { expiry: None, id: id.into(), parent, history: None, deleted, attachments: Vec::new(), body };
    Ok(db.update(&edit).await?.rev)
}

pub(super) async fn put_all(db: &Database, documents: &[(String, String)]) {
    for some in documents.chunks(100) {
        let edits: Vec<_> = some
            .iter()
            .map(|(id, body)| {
                let body = EditParts::from_json(json(body), &flatbed_clock::Clock::system()).unwrap().body;
                Edit {
                    expiry: None,
                    id: id.into(),
                    parent: None,
                    history: None,
                    deleted: false,
                    attachments: Vec::new(),
                    body,
                }
            })
            .collect();
        for outcome in db.bulk_update(&edits).await.unwrap() {
            outcome.unwrap();
        }
    }
}

pub(super) fn design(maps: &[&str]) -> String {
    let view =
        |(at, map): (usize, &&str)| format!(r#""i{at}":{{"map":{map},"reduce":"_count","options":{{"def":{{}}}}}}"#);
    let views: Vec<_> = maps.iter().enumerate().map(view).collect();
    format!(r#"{{"language":"query","views":{{{}}}}}"#, views.join(","))
}

pub(super) async fn built(db: &Database) {
    until("the indexes are built", async || {
        let indexes = db.json_indexes().await.unwrap();
        indexes.all().len() == indexes.readable().len()
    })
    .await;
}

pub(super) async fn with_background() -> (Layer, Background, Database, Storage) {
    with_background_of("db").await
}

pub(super) async fn with_background_of(name: &str) -> (Layer, Background, Database, Storage) {
    let (layer, authority, storage) = layer().await;
    let look_every = std::time::Duration::from_millis(20);
    let options = BackgroundOptions { look_every, ..BackgroundOptions::default() };
    let background = Background::new(&layer, authority.for_job("test"), options).unwrap();
    background.start();
    let db = layer.database(name, authority.for_job("test"));
    (layer, background, db, storage)
}

pub(super) async fn assert_clean(db: &Database) {
    let report = crate::check::check_database(db, |_| {}).await.unwrap();
    assert!(report.is_clean(), "{report:#?}");
}

async fn everything(db: &Database) -> Vec<(String, Value<'static>)> {
    let mut walk = db.all_docs(AllDocsQuery { include_docs: true, ..AllDocsQuery::default() });
    let mut all = Vec::new();
    while let Some(rows) = walk.next_page().await.unwrap() {
        for document in rows.into_iter().filter_map(|row| row.doc).filter(|doc| !doc.id.starts_with("_design/")) {
            let body = String::from_utf8(document.body).unwrap();
            let comma = if body.is_empty() { "" } else { "," };
            let special =
                format!(r#""_id":{},"_rev":"{}""#, text(&Value::String(document.id.clone().into())), document.rev);
            all.push((document.id, json(&format!("{{{special}{comma}{body}}}"))));
        }
    }
    all
}

/// Runs a query with bookmarks in pages of `limit`, and returns ids in order with the rows examined for the last page.
async fn ask(db: &Database, request: &str, limit: u64) -> Vec<(String, Value<'static>)> {
    let mut asked = json(request);
    let (mut answers, mut bookmark): (Vec<_>, Option<String>) = (Vec::new(), None);
    loop {
        let Value::Object(members) = &mut asked else { panic!() };
        members.retain(|(name, _)| name != "limit" && name != "bookmark");
        members.push(("limit".into(), Value::Number(limit.to_string().into())));
        members.extend(bookmark.clone().map(|bookmark| ("bookmark".into(), Value::String(bookmark.into()))));
        let find = Request::parse(&asked, None, &|| false).unwrap();
        let indexes = db.json_indexes().await.unwrap();
        let plan = indexes.plan("db", &find).unwrap();
        let options =
            FindOptions { limit, skip: find.skip, exact_stats: answers.len() % 2 == 0, ..FindOptions::default() };
        let mut query = db.find(&indexes, &plan, options);
        let mut page = Vec::new();
        while let Some(rows) = query.next_page().await.unwrap() {
            assert!(!rows.is_empty());
            for row in rows {
                let document = match row.document {
                    QueryDocument::Covered(document) => {
                        assert!(plan.covering);
                        document
                    }
                    QueryDocument::Whole(document) => {
                        assert!(!plan.covering && document.id == row.id);
                        json(&format!("{{{}}}", String::from_utf8(document.body).unwrap()))
                    }
                };
                page.push((row.id, document));
            }
        }
        assert!(page.len() as u64 <= limit);
        assert_eq!(query.stats().results_returned, page.len() as u64);
        assert!(query.stats().keys_examined >= page.len() as u64);
        bookmark = Some(Bookmark::of_answer(query.last(), bookmark.as_deref()));
        let is_last = (page.len() as u64) < limit;
        answers.extend(page);
        if is_last {
            return answers;
        }
    }
}

/// Returns the ids that a query must answer, by a scan.
pub(super) async fn expected(db: &Database, request: &str) -> Vec<String> {
    let find = Request::parse(&json(request), None, &|| false).unwrap();
    let indexes = db.json_indexes().await.unwrap();
    let plan = indexes.plan("db", &find).unwrap();
    let key = |document: &Value<'_>| match plan.index.is_all_docs() {
        true => Some(Value::Array(Vec::new())),
        false => plan.index.key(document, &|| false).unwrap().map(Value::Array),
    };
    let prefix = find.partition.as_ref().map(|partition| format!("{partition}:")).unwrap_or_default();
    let everything = everything(db).await.into_iter().filter(|(id, _)| id.starts_with(&prefix));
    let selected = everything.filter(|(_, document)| find.selector.matches(document));
    let mut rows: Vec<_> = selected.filter_map(|(id, document)| Some((key(&document)?, id))).collect();
    rows.sort_by(|a, b| compare(&a.0, &b.0).then_with(|| a.1.cmp(&b.1)));
    if plan.reverse {
        rows.reverse();
    }
    rows.into_iter().map(|(_, id)| id).collect()
}

pub(super) async fn assert_answers(db: &Database, requests: &[&str], used: &str) {
    for request in requests {
        let find = Request::parse(&json(request), None, &|| false).unwrap();
        let indexes = db.json_indexes().await.unwrap();
        let plan = indexes.plan("db", &find).unwrap();
        assert_eq!(plan.index.name(), used, "{request}");
        let wanted = expected(db, request).await;
        for limit in [1_000, 4] {
            let ids: Vec<_> = ask(db, request, limit).await.into_iter().map(|(id, _)| id).collect();
            assert_eq!(ids, wanted, "{request} by {limit}");
        }
        let options = FindOptions { limit: u64::MAX, counts: true, ..FindOptions::default() };
        let mut query = db.find(&indexes, &plan, options);
        assert_eq!(query.next_page().await.unwrap(), None, "{request}");
        assert_eq!(query.stats().results_returned, wanted.len() as u64, "{request}");
        let options = FindOptions { skip: 3, limit: 4, ..FindOptions::default() };
        let mut query = db.find(&indexes, &plan, options);
        let mut ids = Vec::new();
        while let Some(rows) = query.next_page().await.unwrap() {
            ids.extend(rows.into_iter().map(|row| row.id));
        }
        assert_eq!(ids, wanted.iter().skip(3).take(4).cloned().collect::<Vec<_>>(), "{request}");
    }
}

const VALUES: [&str; 16] = [
    "null",
    "false",
    "true",
    "-1",
    "0",
    "1",
    "2.5",
    "1e3",
    r#""a""#,
    r#""B""#,
    r#""b""#,
    r#""\u0000z""#,
    "[]",
    "[1,2]",
    r#"{"x":1}"#,
    r#"{"x":{"y":[3]}}"#,
];

pub(super) fn documents(count: usize) -> Vec<(String, String)> {
    let body = |n: usize| {
        let mut members = vec![format!(r#""n":{n}"#)];
        if !n.is_multiple_of(7) {
            members.push(format!(r#""a":{}"#, VALUES[n * 5 % 16]));
        }
        if !n.is_multiple_of(5) {
            members.push(format!(r#""b":{{"c":{}}}"#, VALUES[n * 3 % 11]));
        }
        format!("{{{}}}", members.join(","))
    };
    (0..count).map(|n| (format!("d{:03}", n * 37 % 1_000), body(n))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_are_answered_as_all_documents_say() {
    let (_layer, background, db, _storage) = with_background().await;
    put_all(&db, &documents(60)).await;
    let maps = [
        r#"{"fields":{"a":"asc"}}"#,
        r#"{"fields":{"b.c":"asc","a":"asc"}}"#,
        r#"{"fields":{"n":"asc"},"partial_filter_selector":{"a":{"$type":"number"}}}"#,
    ];
    let rev = put(&db, "_design/i", None, &design(&maps)).await.unwrap();
    put_all(&db, &documents(90).split_off(60)).await;
    built(&db).await;
    put_all(&db, &documents(120).split_off(90)).await;
    assert_clean(&db).await;
    let of_a = [
        r#"{"selector":{"a":{"$gt":null}}}"#,
        r#"{"selector":{"a":{"$gte":1,"$lt":"b"}}}"#,
        r#"{"selector":{"a":{"$gte":1,"$lt":"b"}},"sort":[{"a":"desc"}]}"#,
        r#"{"selector":{"a":{"$in":["a",1,true,[1,2]]}}}"#,
        r#"{"selector":{"a":{"$in":["a",1,true,[1,2]]}},"sort":[{"a":"desc"}]}"#,
        r#"{"selector":{"a":{"$eq":{"x":1}}}}"#,
        r#"{"selector":{"a":"a","n":{"$gt":20}}}"#,
        r#"{"selector":{"a":{"$gt":0},"n":{"$mod":[2,1]}}}"#,
        r#"{"selector":{"$or":[{"a":"a"},{"a":{"$gt":true,"$lt":2}}]}}"#,
        r#"{"selector":{"a":{"$exists":true}},"fields":["_id","a"]}"#,
        r#"{"selector":{"a":{"$gt":0,"$ne":1}},"fields":["a"],"sort":[{"a":"desc"}]}"#,
    ];
    assert_answers(&db, &of_a, "i0").await;
    let of_both = [
        r#"{"selector":{"b.c":"a","a":{"$gt":null}}}"#,
        r#"{"selector":{"b.c":{"$gt":0},"a":{"$exists":true}},"sort":["b.c","a"]}"#,
        r#"{"selector":{"b.c":{"$in":["a",0,null]},"a":{"$in":[1,"b"]}},"use_index":["i","i1"]}"#,
    ];
    assert_answers(&db, &of_both, "i1").await;
    let partial = [r#"{"selector":{"n":{"$gt":10},"a":{"$type":"number"}},"use_index":["i","i2"]}"#];
    assert_answers(&db, &partial, "i2").await;
    let of_ids = [
        r#"{"selector":{"n":{"$lt":50}}}"#,
        r#"{"selector":{"_id":{"$gte":"d1","$lt":"d5"}}}"#,
        r#"{"selector":{"_id":{"$gte":"d1","$lt":"d5"}},"sort":[{"_id":"desc"}]}"#,
        r#"{"selector":{"_id":{"$in":["d000","d037","d999"]}}}"#,
        r#"{"selector":{"b":{"c":1}}}"#,
        r#"{"selector":{"_rev":{"$gt":"1-8"}}}"#,
        r#"{"selector":{"none":{"$exists":false}}}"#,
    ];
    assert_answers(&db, &of_ids, "_all_docs").await;
    let nothing = r#"{"selector":{"a":{"$gt":3,"$lt":1}}}"#;
    assert_eq!(ask(&db, nothing, 10).await, []);
    // A removed index, and one that was replaced.
    let find = Request::parse(&json(of_a[0]), None, &|| false).unwrap();
    let indexes = db.json_indexes().await.unwrap();
    let plan = indexes.plan("db", &find).unwrap();
    let begun = FindOptions { limit: u64::MAX, ..FindOptions::default() };
    let mut under_way = db.find(&indexes, &plan, begun.clone());
    under_way.next_page().await.unwrap().unwrap();
    put(&db, "_design/i", Some(rev), &design(&maps[1..])).await.unwrap();
    let mut late = db.find(&indexes, &plan, begun);
    assert!(matches!(late.next_page().await, Err(Error::Refused(Refusal::IndexGone))));
    let ended = loop {
        match under_way.next_page().await {
            Ok(Some(_)) => {}
            ended => break ended,
        }
    };
    assert!(matches!(ended, Err(Error::Refused(Refusal::IndexGone)) | Ok(None)), "{:?}", ended.map(drop));
    background.stop().await;
    assert_clean(&db).await;
}

/// All databases use the same index numbers: a plan is not valid for the next database of the same name.
#[tokio::test(flavor = "multi_thread")]
async fn plans_are_not_carried_out_on_another_database_of_the_same_name() {
    let (_layer, background, db, _storage) = with_background().await;
    put(&db, "_design/i", None, &design(&[r#"{"fields":{"a":"asc"},"partial_filter_selector":{}}"#])).await.unwrap();
    built(&db).await;
    let find = Request::parse(&json(r#"{"selector":{"a":2}}"#), None, &|| false).unwrap();
    let known = db.json_indexes_known().unwrap();
    // Another process creates it again, with an index on another field.
    let (other, others) = Layer::open(db.inner.db.clone(), db.inner.options.clone(), None).await.unwrap();
    let theirs = other.database("db", others.for_job("test"));
    theirs.delete().await.unwrap();
    theirs.create(&crate::CreateOptions::default()).await.unwrap();
    put(&theirs, "_design/i", None, &design(&[r#"{"fields":{"b":"asc"},"partial_filter_selector":{}}"#]))
        .await
        .unwrap();
    put(&theirs, "x", None, r#"{"a":1,"b":2}"#).await.unwrap();
    built(&theirs).await;
    let plan = known.plan("db", &find).unwrap();
    let mut late = db.find(&known, &plan, FindOptions { limit: 10, ..FindOptions::default() });
    assert!(matches!(late.next_page().await, Err(Error::Refused(Refusal::IndexGone))));
    assert_eq!(ask(&db, r#"{"selector":{"a":2}}"#, 10).await, []);
    background.stop().await;
}

/// Keys with a common prefix longer than a stored key, written out of order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_do_not_fit_are_found_in_order() {
    let (_layer, background, db, _storage) = with_background().await;
    let long =
        |n: usize| format!("{}{:03}{}", "x".repeat(4_100), n, "y".repeat(if n.is_multiple_of(5) { 7_000 } else { 0 }));
    let body = |n: usize| format!(r#"{{"a":"{}","n":{n}}}"#, long(n));
    let all: Vec<_> = (0..20).map(|n| (format!("l{:02}", n * 7 % 20), body(n * 23 % 17))).collect();
    put_all(&db, &all[..8]).await;
    put(&db, "_design/i", None, &design(&[r#"{"fields":{"a":"asc"}}"#, r#"{"fields":{"a":"asc","n":"asc"}}"#]))
        .await
        .unwrap();
    put_all(&db, &all[8..15]).await;
    built(&db).await;
    put_all(&db, &all[15..]).await;
    assert_clean(&db).await;
    let (from, to) = (long(5), long(12));
    let requests = [
        r#"{"selector":{"a":{"$gt":null}}}"#.to_owned(),
        r#"{"selector":{"a":{"$gt":null}},"sort":[{"a":"desc"}]}"#.to_owned(),
        format!(r#"{{"selector":{{"a":{{"$gte":"{from}","$lt":"{to}"}}}}}}"#),
        format!(r#"{{"selector":{{"a":{{"$gt":"{from}","$lte":"{to}"}}}}}}"#),
        format!(r#"{{"selector":{{"a":"{from}"}}}}"#),
        format!(r#"{{"selector":{{"a":{{"$gt":"{}"}}}}}}"#, long(9).replace("009", "0090")),
        format!(r#"{{"selector":{{"a":{{"$gte":"{from}"}}}},"fields":["a"]}}"#),
    ];
    let requests: Vec<&str> = requests.iter().map(String::as_str).collect();
    assert_answers(&db, &requests, "i0").await;
    let both = format!(r#"{{"selector":{{"a":"{from}","n":{{"$gt":3}}}}}}"#);
    assert_answers(&db, &[&both], "i1").await;
    for (at, (id, _)) in all.iter().enumerate() {
        let rev = db.get(id, &GetOptions::default()).await.unwrap().rev;
        match at % 4 {
            0 => drop(put(&db, id, Some(rev), &body(at)).await.unwrap()),
            1 => drop(put(&db, id, Some(rev), r#"{"a":"short","n":1}"#).await.unwrap()),
            2 => drop(put(&db, id, Some(rev), r#"{"_deleted":true}"#).await.unwrap()),
            _ => drop(db.purge(id, &[rev]).await.unwrap()),
        }
    }
    assert_clean(&db).await;
    assert_answers(&db, &requests, "i0").await;
    background.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_that_is_being_built_is_waited_for_unless_it_need_not_be() {
    let (layer, authority, _storage) = layer().await;
    let db = layer.database("db", authority.for_job("test"));
    put_all(&db, &documents(40)).await;
    put(&db, "_design/i", None, &design(&[r#"{"fields":{"a":"asc"}}"#])).await.unwrap();
    let indexes = db.json_indexes().await.unwrap();
    assert_eq!((indexes.all().len(), indexes.readable().len()), (2, 1));
    let more = |bytes: usize| {
        let filter = format!(r#"{{"x":{{"$in":["{}"]}}}}"#, "x".repeat(bytes));
        json(&design(&[&format!(r#"{{"fields":{{"b":"asc"}},"partial_filter_selector":{filter}}}"#)]))
    };
    assert!(indexes.has_room_for("_design/more", &more(10), "i0"));
    assert!(indexes.has_room_for("_design/more", &more(14_000), "i0"));
    assert!(db.json_indexes_known().is_some());
    let lazy = r#"{"selector":{"a":{"$gt":1}},"update":false}"#;
    let find = |request: &str| Request::parse(&json(request), None, &|| false).unwrap();
    assert!(indexes.plan("db", &find(lazy)).unwrap().index.is_all_docs());
    let sorted = r#"{"selector":{"a":{"$gt":1}},"update":false,"sort":["a"]}"#;
    assert!(!indexes.plan("db", &find(sorted)).unwrap().index.is_all_docs());
    let asked = ask(&db, r#"{"selector":{"a":{"$gt":1}}}"#, 100);
    let mut asked = std::pin::pin!(asked);
    let wait = std::time::Duration::from_millis(300);
    assert!(tokio::time::timeout(wait, &mut asked).await.is_err(), "no process builds it");
    let background = Background::new(&layer, authority.for_job("test"), BackgroundOptions::default()).unwrap();
    background.start();
    let answered: Vec<_> = asked.await.into_iter().map(|(id, _)| id).collect();
    assert_eq!(answered, expected(&db, r#"{"selector":{"a":{"$gt":1}}}"#).await);
    background.stop().await;
    let lists = |index: &Index| index.ddoc().map(str::to_owned);
    assert_eq!(
        db.json_indexes().await.unwrap().all().iter().map(lists).collect::<Vec<_>>(),
        [None, Some("_design/i".into())]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_that_wait_for_an_index_are_shown() {
    let (layer, authority, _storage) = layer().await;
    let db = layer.database("db", authority.for_job("test"));
    put(&db, "a", None, r#"{"n":1}"#).await.unwrap();
    put(&db, "_design/d", None, &design(&[r#"{"fields":{"n":"asc"},"partial_filter_selector":{}}"#])).await.unwrap();
    let find = Request::parse(&json(r#"{"selector":{"n":1}}"#), None, &|| false).unwrap();
    let indexes = db.json_indexes().await.unwrap();
    let plan = indexes.plan("db", &find).unwrap();
    let mut queries: Vec<_> = (0..2).map(|_| db.find(&indexes, &plan, FindOptions::default())).collect();
    for query in &mut queries {
        for _ in 0..2 {
            assert_eq!(query.read_page().await.unwrap().map(|rows| rows.len()), Some(0));
        }
    }
    let (waits, others) = layer.index_waits();
    let [wait] = &waits[..] else { panic!("{waits:?}") };
    assert_eq!((wait.waiting, others, &wait.build), (2, 0, &None));
    assert_eq!((&*wait.database, &*wait.design_document, &*wait.name), ("db", "_design/d", "i0"));
    queries.pop();
    assert_eq!(layer.index_waits().0[0].waiting, 1);
    drop(queries);
    assert_eq!(layer.index_waits(), (Vec::new(), 0));
}

/// For callers that wait outside of the read, as queries that take a turn do.
#[tokio::test(flavor = "multi_thread")]
async fn who_has_waited_for_an_index_reads_without_another_wait() {
    let (layer, authority, _storage) = layer().await;
    let db = layer.database("db", authority.for_job("test"));
    put(&db, "a", None, r#"{"n":1}"#).await.unwrap();
    put(&db, "_design/d", None, &design(&[r#"{"fields":{"n":"asc"},"partial_filter_selector":{}}"#])).await.unwrap();
    let find = Request::parse(&json(r#"{"selector":{"n":1}}"#), None, &|| false).unwrap();
    let indexes = db.json_indexes().await.unwrap();
    let plan = indexes.plan("db", &find).unwrap();
    let mut query = db.find(&indexes, &plan, FindOptions { limit: 10, ..FindOptions::default() });
    assert_eq!(query.read_page().await.unwrap().map(|rows| rows.len()), Some(0));
    assert!(!query.wait().await.unwrap());
    let background = Background::new(&layer, authority.for_job("test"), BackgroundOptions::default()).unwrap();
    background.round().await.unwrap();
    while !query.wait().await.unwrap() {}
    let (page, waited) = waits::count(query.read_page()).await;
    assert_eq!((page.unwrap().map(|rows| rows.len()), waited.transactions), (Some(1), 1));
    assert_eq!(layer.index_waits(), (Vec::new(), 0));
}

/// In tests a slice is one matched document.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_ends_where_others_wait() {
    let (layer, authority, _storage) = layer().await;
    let db = layer.database("db", authority.for_job("test"));
    let documents: Vec<_> = (0..5).map(|n| (format!("d{n}"), format!(r#"{{"n":{n}}}"#))).collect();
    put_all(&db, &documents).await;
    let find = Request::parse(&json(r#"{"selector":{"n":{"$gt":1}}}"#), None, &|| false).unwrap();
    let indexes = db.json_indexes().await.unwrap();
    let plan = indexes.plan("db", &find).unwrap();
    let pages = async |has_waiters: bool| {
        let has_waiters: Option<Arc<dyn Fn() -> bool + Send + Sync>> = Some(Arc::new(move || has_waiters));
        let options = FindOptions { limit: 100, is_alone: true, has_waiters, ..FindOptions::default() };
        let mut query = db.find(&indexes, &plan, options);
        let mut pages = Vec::new();
        while let Some(rows) = query.read_page().await.unwrap() {
            pages.push(rows.len());
        }
        (pages, query.stats().keys_examined)
    };
    assert_eq!(pages(true).await, (vec![0, 0, 1, 1, 1], 5));
    let (alone, examined) = pages(false).await;
    assert!(alone.len() < 5, "{alone:?}");
    assert_eq!((alone.iter().sum::<usize>(), examined), (3, 5));
}

/// Also a page without matches, since reads hold the turn. Here the time limit is zero.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_is_read_for_long_ends_where_others_wait() {
    let (_layer, _background, db, _storage) = with_background().await;
    put(&db, "_design/d", None, &design(&[r#"{"fields":{"n":"asc"}}"#])).await.unwrap();
    let documents: Vec<_> = (0..5).map(|n| (format!("d{n}"), format!(r#"{{"n":{n}}}"#))).collect();
    put_all(&db, &documents).await;
    built(&db).await;
    let find = Request::parse(&json(r#"{"selector":{"n":{"$gt":1}}}"#), None, &|| false).unwrap();
    let indexes = db.json_indexes().await.unwrap();
    let plan = indexes.plan("db", &find).unwrap();
    assert!(plan.residual.is_none() && !plan.covering);
    for (has_waiters, most) in [(true, 1), (false, 3)] {
        let asked: Option<Arc<dyn Fn() -> bool + Send + Sync>> = Some(Arc::new(move || has_waiters));
        let options = FindOptions { limit: 100, is_alone: true, has_waiters: asked, ..FindOptions::default() };
        let mut query = db.find(&indexes, &plan, options);
        let mut pages = Vec::new();
        while let Some(rows) = query.read_page().await.unwrap() {
            pages.push(rows.len());
        }
        assert_eq!((pages.iter().sum::<usize>(), pages.iter().max()), (3, Some(&most)), "{pages:?}");
    }
}

/// A match ends its page inside a document, and the next page resumes it. The limit is one of work: about a million
/// steps.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_ends_inside_a_document_where_others_wait() {
    let (layer, authority, _storage) = layer().await;
    let db = layer.database("db", authority.for_job("test"));
    // Each regular expression takes 1.6 million steps on 100 kB.
    let large = |last: &str| format!(r#"{{"n":1,"a":"{}{last}"}}"#, "b".repeat(100_000));
    let documents = [("d0", "c"), ("d1", "x"), ("d2", "c")].map(|(id, last)| (id.to_owned(), large(last)));
    put_all(&db, &documents).await;
    let conditions = (0..5).map(|n| format!(r#"{{"a":{{"$regex":"x{n}"}}}}"#)).collect::<Vec<_>>().join(",");
    let selector = format!(r#"{{"selector":{{"$or":[{conditions},{{"a":{{"$regex":"bc"}}}}]}}}}"#);
    let find = Request::parse(&json(&selector), None, &|| false).unwrap();
    let indexes = db.json_indexes().await.unwrap();
    let plan = indexes.plan("db", &find).unwrap();
    let query = |has_waiters: bool| {
        let has_waiters: Option<Arc<dyn Fn() -> bool + Send + Sync>> = Some(Arc::new(move || has_waiters));
        db.find(&indexes, &plan, FindOptions { limit: 100, is_alone: true, has_waiters, ..FindOptions::default() })
    };
    for (has_waiters, pages) in [(true, 24..=34), (false, 1..=4)] {
        let (mut query, mut ids, mut read) = (query(has_waiters), Vec::new(), 0);
        while let Some(rows) = query.read_page().await.unwrap() {
            ids.extend(rows.into_iter().map(|row| row.id));
            read += 1;
        }
        assert_eq!((ids.join(" "), query.stats().keys_examined), ("d0 d2".to_owned(), 3));
        assert!(pages.contains(&read), "{read}");
    }
    // A document that has changed meanwhile is matched from its beginning. Its third condition begins after 5 million
    // steps.
    let mut query = query(true);
    for _ in 0..5 {
        assert_eq!(query.read_page().await.unwrap(), Some(Vec::new()));
    }
    let rev = db.get("d0", &GetOptions::default()).await.unwrap().rev;
    put(&db, "d0", Some(rev), &large("x2")).await.unwrap();
    let mut ids = Vec::new();
    while let Some(rows) = query.read_page().await.unwrap() {
        ids.extend(rows.into_iter().map(|row| row.id));
    }
    assert_eq!(ids, ["d0", "d2"]);
}

/// Its match takes nine slices.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_changes_between_all_slices_is_passed() {
    let (layer, authority, _storage) = layer().await;
    let db = layer.database("db", authority.for_job("test"));
    let large = |n: usize| format!(r#"{{"n":{n},"a":"{}c"}}"#, "b".repeat(100_000));
    put_all(&db, &[("d".to_owned(), large(0))]).await;
    let conditions = (0..5).map(|n| format!(r#"{{"a":{{"$regex":"x{n}"}}}}"#)).collect::<Vec<_>>().join(",");
    let selector = format!(r#"{{"selector":{{"$or":[{conditions},{{"a":{{"$regex":"bc"}}}}]}}}}"#);
    let find = Request::parse(&json(&selector), None, &|| false).unwrap();
    let indexes = db.json_indexes().await.unwrap();
    let plan = indexes.plan("db", &find).unwrap();
    let has_waiters: Option<Arc<dyn Fn() -> bool + Send + Sync>> = Some(Arc::new(|| true));
    let options = FindOptions { limit: 100, is_alone: true, has_waiters, ..FindOptions::default() };
    let mut query = db.find(&indexes, &plan, options);
    let mut pages = Vec::new();
    while let Some(rows) = query.read_page().await.unwrap() {
        pages.push(rows.len());
        assert!(pages.len() < 30, "the match begins again for ever");
        let rev = db.get("d", &GetOptions::default()).await.unwrap().rev;
        put(&db, "d", Some(rev), &large(pages.len())).await.unwrap();
    }
    // The first match, one that pauses again, and one that does not.
    let passed = pages.iter().position(|rows| *rows == 1);
    assert_eq!((passed, query.stats().keys_examined), (Some(2), 1), "{pages:?}");
}

/// The runtime here has one thread: the other task runs only if the query yields. The hook records how often it has
/// run.
#[tokio::test]
async fn a_match_without_turns_yields_inside_a_document() {
    let (layer, authority, _storage) = layer().await;
    let db = layer.database("db", authority.for_job("test"));
    put_all(&db, &[("d".to_owned(), format!(r#"{{"a":"{}c"}}"#, "b".repeat(100_000)))]).await;
    let conditions = (0..5).map(|n| format!(r#"{{"a":{{"$regex":"x{n}"}}}}"#)).collect::<Vec<_>>().join(",");
    let selector = format!(r#"{{"selector":{{"$or":[{conditions},{{"a":{{"$regex":"bc"}}}}]}}}}"#);
    let find = Request::parse(&json(&selector), None, &|| false).unwrap();
    let indexes = db.json_indexes().await.unwrap();
    let plan = indexes.plan("db", &find).unwrap();
    let (runs, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(BTreeSet::new())));
    let other = tokio::spawn({
        let runs = runs.clone();
        async move {
            loop {
                runs.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
            }
        }
    });
    let stop: Arc<dyn Fn() -> bool + Send + Sync> = Arc::new({
        let seen = seen.clone();
        move || {
            seen.lock().unwrap().insert(runs.load(Ordering::SeqCst));
            false
        }
    });
    let mut query = db.find(&indexes, &plan, FindOptions { limit: 1, stop: Some(stop), ..FindOptions::default() });
    let page = query.next_page().await.unwrap().unwrap();
    other.abort();
    assert_eq!(page.len(), 1);
    // It has ten slices.
    let seen = seen.lock().unwrap().len();
    assert!(seen > 7, "{seen}");
}
