//! Builds and follows groups, and compares them with a recomputation.
#![cfg(test)]

mod full;
mod functions;
mod large;
mod long;
mod memory;
mod noted;
mod overflow;
mod purges;
mod recompute;
mod sections;
mod set_aside;
mod signatures;
mod taken_over;
mod together;
mod torture;
mod turns;
mod unnamed;
mod updater;
mod waiting;

use std::sync::Arc;

use flatbed_databases::handles::ReadHandle;
use flatbed_flatten::json::{Limits, parse};
use flatbed_operations::index::groups::groups_of;
use flatbed_store::error::{Error, Result, ViewFailure};
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use flatbed_testkit::{Storage, until, until_some};
use flatbed_views::group::steps::{GroupStanding, ReadStanding};
use flatbed_views::view::check::all_rows;
use flatbed_views::view::read::{OpenOutcome, View};
use flatbed_views::view::undo::{GroupReads, shown};
use functions::{Texts, emitted_by};

use crate::handle::{Database, Reader};
use crate::tests::fenced::{database, layer};
use crate::{AllDocsQuery, Edit, ViewUpdate};

type Row = (String, String, String);

struct ReadAll<'a> {
    view: &'a View,
    waits: Option<futures_util::future::BoxFuture<'static, Result<()>>>,
}

impl Operation for ReadAll<'_> {
    type Output = Vec<Row>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Vec<Row>> {
        match self.view.source.open(trx, true).await? {
            OpenOutcome::Wait(wait) => {
                self.waits = Some(wait);
                Ok(Vec::new())
            }
            OpenOutcome::Open(open) if open.progress.phase == 2 => {
                let (keys, (_, is_before)) = (open.instance.keys.view(open.group.number()), shown(&open.progress));
                all_rows(GroupReads { trx, keys: &keys, is_before }, open.tree).await
            }
            OpenOutcome::Open(_) => Ok(Vec::new()),
        }
    }
}

pub(super) async fn rows(reader: &Reader, design: &str, view: &str, update: ViewUpdate) -> Result<Vec<Row>> {
    loop {
        let view = reader.view(design, view, update).await?;
        loop {
            let mut read = ReadAll { view: &view, waits: None };
            match reader.read(&mut read).await {
                // The design document was swapped in between.
                Err(Error::View(ViewFailure::Changed)) => break,
                Err(error) => return Err(error),
                Ok(rows) => match read.waits {
                    None => return Ok(rows),
                    Some(wait) => match wait.await {
                        Err(Error::View(ViewFailure::Changed)) => break,
                        waited => waited?,
                    },
                },
            }
        }
    }
}

/// Writes a document on its last revision; a body of `None` deletes it.
pub(super) async fn put(db: &Database, id: &str, body: Option<&str>) {
    loop {
        let parent = db.get(id, &Default::default()).await.ok().map(|document| document.rev);
        if body.is_none() && parent.is_none() {
            return;
        }
        let value = parse(body.unwrap_or("{}").as_bytes(), &Limits::default()).unwrap();
        let edit = Edit {
            expiry: None,
            id: id.to_owned().into(),
            parent,
            history: None,
            deleted: body.is_none(),
            attachments: Vec::new(),
            body: value,
        };
        match db.update(&edit).await {
            Ok(_) => return,
            Err(Error::Refused(crate::Refusal::Conflict)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

pub(super) async fn define(db: &Database, design: &str, maps: &[(&str, &str)]) {
    let views: Vec<String> = maps
        .iter()
        .map(|(name, map)| match map.split_once('|') {
            Some((map, reduce)) => format!(r#""{name}":{{"map":"{map}","reduce":"{reduce}"}}"#),
            None => format!(r#""{name}":{{"map":"{map}"}}"#),
        })
        .collect();
    put(db, design, Some(&format!(r#"{{"views":{{{}}}}}"#, views.join(",")))).await;
}

pub(super) async fn recomputed(reader: &Reader, map: &str) -> Vec<Row> {
    let mut walk = reader.all_docs(AllDocsQuery { include_docs: true, ..AllDocsQuery::default() });
    let mut all = Vec::new();
    while let Some(page) = walk.next_page().await.unwrap() {
        for row in page.into_iter().filter(|row| !row.id.starts_with("_design/")) {
            let mut text = Vec::new();
            crate::text::document(&row.doc.unwrap(), &mut text);
            let rows = emitted_by(map, &text).unwrap_or_default();
            all.extend(rows.into_iter().map(|(key, value)| (key, row.id.clone(), value)));
        }
    }
    sorted(all)
}

/// Sorts by text: other tests check the order.
pub(super) fn sorted(mut rows: Vec<Row>) -> Vec<Row> {
    rows.sort();
    rows
}

/// Compares a view with a recomputation, in a database without writers.
pub(super) async fn compare(reader: &Reader, design: &str, view: &str, map: &str) {
    let found = sorted(rows(reader, design, view, ViewUpdate::True).await.unwrap());
    assert_eq!(found, recomputed(reader, map).await, "{design} {view}");
}

pub(super) async fn violations(reader: &Reader) -> Vec<String> {
    crate::check::check_database(reader, |_| {}).await.unwrap().violations
}

async fn standing(reader: &ReadHandle) -> GroupStanding {
    let ReadHandle { inner, name, .. } = reader;
    let instance = flatbed_operations::write::batch::resolved(inner, name).await.unwrap();
    let number = groups_of(&instance.record).next().expect("a group").number;
    reader.read(&mut ReadStanding { inner, name, id: (instance.record.namespace, number) }).await.unwrap().unwrap()
}

async fn mapped() -> (Database, Storage) {
    let (db, storage) = database().await;
    flatbed_operations::view_runtime::run_views_by(&db.inner, Arc::new(Texts::default()));
    (db, storage)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_says_whether_it_is_waited_for() {
    let (db, _storage) = mapped().await;
    put(&db, "d", Some(r#"{"n":1}"#)).await;
    define(&db, "_design/v", &[("n", "n")]).await;
    let view = db.view("_design/v", "n", ViewUpdate::True).await.unwrap();
    for is_new in [true, false] {
        let mut rows = view.rows(crate::ViewQuery::default());
        let (mut page, mut has_waited) = (Box::pin(rows.next_page()), view.is_waiting());
        let page = std::future::poll_fn(|context| {
            let polled = page.as_mut().poll(context);
            has_waited |= view.is_waiting();
            polled
        });
        assert_eq!(page.await.unwrap().unwrap().rows.len(), 1);
        assert_eq!((has_waited, view.is_waiting()), (is_new, false));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_is_built_and_has_every_write_before_it_is_asked() {
    let (db, _storage) = mapped().await;
    for n in 0..60 {
        put(&db, &format!("d{n:02}"), Some(&format!(r#"{{"n":{}}}"#, n % 7))).await;
    }
    put(&db, "gone", Some("{}")).await;
    put(&db, "gone", None).await;
    define(&db, "_design/v", &[("n", "n|_sum"), ("id", "_id"), ("none", "none")]).await;
    compare(&db, "_design/v", "n", "n").await;
    compare(&db, "_design/v", "id", "_id").await;
    assert_eq!(rows(&db, "_design/v", "none", ViewUpdate::True).await.unwrap(), []);
    for round in 0..40 {
        put(&db, &format!("d{:02}", round % 20), Some(&format!(r#"{{"n":{round}}}"#))).await;
        put(&db, &format!("d{:02}", 20 + round), None).await;
        compare(&db, "_design/v", "n", "n").await;
    }
    let before = db.inner.metrics.view_documents_mapped.get();
    compare(&db, "_design/v", "id", "_id").await;
    assert_eq!(db.inner.metrics.view_documents_mapped.get(), before);
    assert_eq!(violations(&db).await, Vec::<String>::new());
    let info = db.view_info("_design/v").await.unwrap();
    assert!(info.is_built && info.pending == 0 && info.rows > 0 && info.signature.len() == 32, "{info:?}");
    assert!(
        db.view("_design/v", "other", ViewUpdate::True)
            .await
            .is_err_and(|error| { matches!(error, Error::View(ViewFailure::Missing)) })
    );
    let missing = db.view("_design/w", "n", ViewUpdate::True).await.map(drop);
    assert!(matches!(missing, Err(Error::Refused(crate::Refusal::DocumentNotFound(_)))));
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_design_documents_share_a_group_and_what_nobody_names_goes_with_a_cleanup() {
    let (db, _storage) = mapped().await;
    put(&db, "a", Some(r#"{"n":1}"#)).await;
    define(&db, "_design/a", &[("n", "n")]).await;
    compare(&db, "_design/a", "n", "n").await;
    define(&db, "_design/b", &[("n", "n")]).await;
    let before = db.inner.metrics.view_documents_mapped.get();
    compare(&db, "_design/b", "n", "n").await;
    assert_eq!(db.inner.metrics.view_documents_mapped.get(), before, "it is the same group");
    put(&db, "_design/a", None).await;
    define(&db, "_design/b", &[("n", "_id")]).await;
    compare(&db, "_design/b", "n", "_id").await;
    let numbers = async || {
        db.exists().await.unwrap();
        let instance = db.inner.cached("db").unwrap();
        groups_of(&instance.record).map(|group| (group.number, group.named_by.len())).collect::<Vec<_>>()
    };
    assert_eq!(numbers().await, [(1, 0), (2, 1)]);
    // The first group still exists, and follows the later changes.
    put(&db, "b", Some(r#"{"n":2}"#)).await;
    define(&db, "_design/b", &[("n", "n")]).await;
    compare(&db, "_design/b", "n", "n").await;
    assert_eq!(numbers().await, [(1, 1), (2, 0)]);
    db.view_cleanup().await.unwrap();
    assert_eq!(numbers().await, [(1, 1)]);
    let instance = db.inner.cached("db").unwrap();
    let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
    let all = instance.keys.index(2);
    assert!(!trx.range(&all, true).any().await.unwrap());
    compare(&db, "_design/b", "n", "n").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_that_fail_lose_their_rows_or_say_why_there_are_none() {
    let (db, _storage) = mapped().await;
    for id in ["a", "b", "c"] {
        put(&db, id, Some(r#"{"n":1}"#)).await;
    }
    put(&db, "t", Some(r#"{"n":1,"throws":true}"#)).await;
    put(&db, "h", Some(r#"{"n":1,"heavy":true}"#)).await;
    define(&db, "_design/v", &[("n", "n"), ("t", "throws:n"), ("h", "heavy:n")]).await;
    let ids = async |view: &str| -> Vec<String> {
        let rows = rows(&db, "_design/v", view, ViewUpdate::True).await.unwrap();
        sorted(rows).into_iter().map(|(_, id, _)| id).collect()
    };
    // A document that exceeds a bound is in no view.
    assert_eq!(ids("n").await, ["a", "b", "c", "t"]);
    assert_eq!(ids("t").await, ["a", "b", "c"]);
    assert_eq!(ids("h").await, ["a", "b", "c", "t"]);
    assert_eq!(db.inner.metrics.view_documents_failed.get(), 2);
    define(&db, "_design/broken", &[("n", "broken")]).await;
    for _ in 0..2 {
        let failed = rows(&db, "_design/broken", "n", ViewUpdate::True).await.unwrap_err();
        assert!(
            matches!(failed, Error::View(ViewFailure::Function(crate::FunctionFailure::Compilation(_)))),
            "{failed}"
        );
    }
    define(&db, "_design/fatal", &[("n", "fatal:n")]).await;
    assert_eq!(rows(&db, "_design/fatal", "n", ViewUpdate::True).await.unwrap().len(), 5);
    put(&db, "f", Some(r#"{"n":1,"fatal":true}"#)).await;
    let failed = rows(&db, "_design/fatal", "n", ViewUpdate::True).await.unwrap_err();
    assert!(matches!(failed, Error::View(ViewFailure::Function(crate::FunctionFailure::Thrown { .. }))), "{failed}");
    // Existing rows are readable, and the group continues once the document is repaired.
    assert_eq!(rows(&db, "_design/fatal", "n", ViewUpdate::False).await.unwrap().len(), 5);
    put(&db, "f", None).await;
    let mended = async || rows(&db, "_design/fatal", "n", ViewUpdate::True).await.ok();
    assert_eq!(until_some("it is retried", mended).await.len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_that_break_bounds_on_one_document_after_the_other_end_the_build() {
    let (db, _storage) = mapped().await;
    for n in 0..12 {
        put(&db, &format!("d{n:02}"), Some(&format!(r#"{{"n":1,"some{}":1,"heavy":1}}"#, n % 3))).await;
    }
    define(&db, "_design/v", &[("h", "heavy:n")]).await;
    for _ in 0..3 {
        let failed = rows(&db, "_design/v", "h", ViewUpdate::True).await.unwrap_err();
        assert!(
            matches!(failed, Error::View(ViewFailure::Function(crate::FunctionFailure::OutOfResources(_)))),
            "{failed}"
        );
    }
    let metrics = &db.inner.metrics;
    assert!(metrics.view_documents_failed.get() <= 12, "it is not retried so soon");
    // Fewer of them are set aside.
    for n in 3..12 {
        put(&db, &format!("d{n:02}"), Some(r#"{"n":1}"#)).await;
    }
    define(&db, "_design/w", &[("h", "heavy:n"), ("n", "n")]).await;
    assert_eq!(rows(&db, "_design/w", "h", ViewUpdate::True).await.unwrap().len(), 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn purges_are_followed() {
    let (db, _storage) = mapped().await;
    define(&db, "_design/v", &[("n", "n|_count")]).await;
    for n in 0..30 {
        put(&db, &format!("d{n:02}"), Some(r#"{"n":1}"#)).await;
    }
    compare(&db, "_design/v", "n", "n").await;
    let purge = async |n: usize| {
        let id = format!("d{n:02}");
        let rev = db.get(&id, &Default::default()).await.unwrap().rev;
        assert_eq!(db.purge(&id, &[rev]).await.unwrap().len(), 1);
    };
    for n in 0..12 {
        purge(n).await;
    }
    compare(&db, "_design/v", "n", "n").await;
    let secret = standing(&db).await.progress.unwrap().trees[0].secret_0;
    purge(12).await;
    compare(&db, "_design/v", "n", "n").await;
    assert_eq!(standing(&db).await.progress.unwrap().trees[0].secret_0, secret, "it followed");
    assert_eq!(violations(&db).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_builder_that_dies_is_followed_by_another_that_goes_on() {
    let (layer, authority, _storage) = layer().await;
    let db = layer.database("db", authority.for_job("test"));
    for n in 0..200 {
        put(&db, &format!("d{n:03}"), Some(&format!(r#"{{"n":{}}}"#, n % 11))).await;
    }
    let slow = Arc::new(Texts::stopping_after(80));
    layer.run_views_by(slow.clone());
    define(&db, "_design/v", &[("n", "n|_stats")]).await;
    let asked = tokio::spawn({
        let reader = db.reader().clone();
        async move { rows(&reader, "_design/v", "n", ViewUpdate::True).await }
    });
    until("documents are built", async || {
        let progress =
            if db.reader().view_info("_design/v").await.is_ok() { standing(&db).await.progress } else { None };
        progress.is_some_and(|progress| progress.documents > 0)
    })
    .await;
    // A query that polls does not wait for a moment.
    until("the query waits", async || {
        let tasks = layer.view_tasks();
        assert!(tasks.len() == 1 && tasks[0].is_build, "{tasks:?}");
        tasks[0].waiting == 1
    })
    .await;
    let (other, others) = crate::Layer::open(db.inner.db.clone(), db.inner.options.clone(), None).await.unwrap();
    let mapping = Arc::new(Texts::default());
    other.run_views_by(mapping.clone());
    let theirs = other.database("db", others.for_job("test"));
    compare(&theirs, "_design/v", "n", "n").await;
    assert!(mapping.mapped() < 190, "it went on: {}", mapping.mapped());
    let answered = sorted(asked.await.unwrap().unwrap());
    assert_eq!(answered, recomputed(&theirs, "n").await, "queries at the first process are answered, too");
    slow.go_on();
    put(&db, "new", Some(r#"{"n":7}"#)).await;
    compare(&db, "_design/v", "n", "n").await;
    assert_eq!(violations(&theirs).await, Vec::<String>::new());
}
