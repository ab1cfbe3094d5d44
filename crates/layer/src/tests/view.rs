//! Compares groups with a model: documents with their rows.
#![cfg(test)]

mod label_tests;
mod large_tests;
mod page_tests;
mod partition_tests;
mod read_tests;
mod section_tests;

use std::collections::BTreeMap;

use flatbed_collate::reduce::Reducer;
use flatbed_databases::document::edit::partition_of;
use flatbed_flatten::json::{Value, parse};
use flatbed_store::error::Result;
use flatbed_store::keys::ViewPart;
use flatbed_store::proto;
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use flatbed_store::view_functions::EmittedRows;
use flatbed_store::waits::{self, Waits};
use flatbed_views::view::apply::{ApplyContext, ApplyResult, apply, write_rows};
use flatbed_views::view::build::{FOLLOWED, NodesPace, build_nodes};
use flatbed_views::view::check::{PAGE_KEYS, all_rows, check};
use flatbed_views::view::documents::LargeReadGate;
use flatbed_views::view::group::{Reduction, ViewGroup, ViewTree};
use flatbed_views::view::known::KnownNodes;
use flatbed_views::view::prepare::{EmittedDocument, PreparedDocument, prepare};
use flatbed_views::view::sections::SectionRule;
use flatbed_views::view::undo::GroupReads;
use flatbed_views::view::written::{ReduceAsk, ReduceInput, WrittenReduces, WrittenResult};
use flatbed_views::view_updates::KnowingGroups;
use futures_util::future::BoxFuture;
use proptest::prelude::*;
use prost::Message;

use crate::handle::Database;
use crate::tests::fenced::database;

/// A reduce that shows the number of rows and their identity: the total length of their texts.
pub(super) struct Lengths;

impl WrittenReduces for Lengths {
    fn reduce<'a>(&'a self, asks: &'a [ReduceAsk]) -> BoxFuture<'a, Result<Vec<Vec<WrittenResult>>>> {
        let answer = |ask: &ReduceAsk| {
            let length: usize = match &ask.input {
                ReduceInput::Rows(rows) => rows.iter().map(|row| row.key.len() + row.id.len() + row.value.len()).sum(),
                ReduceInput::Reductions(texts) => texts.iter().map(|text| text.parse::<usize>().unwrap()).sum(),
            };
            vec![Ok(length.to_string()); ask.functions.len()]
        };
        Box::pin(async move { Ok(asks.iter().map(answer).collect()) })
    }
}

pub(super) const NUMBER: u64 = 7;

pub(super) fn group() -> ViewGroup {
    group_in(false)
}

/// Returns the group of the tests in a database that is partitioned or not.
pub(super) fn group_in(is_partitioned: bool) -> ViewGroup {
    let built_in = |reducer| Reduction::BuiltIn(reducer);
    let trees = vec![
        ViewTree {
            raw_collation: false,
            reduces: vec![built_in(Reducer::Sum), Reduction::Written(0), built_in(Reducer::ApproxCountDistinct)],
        },
        ViewTree { raw_collation: false, reduces: Vec::new() },
        ViewTree {
            raw_collation: true,
            reduces: vec![built_in(Reducer::Count), built_in(Reducer::Sum), built_in(Reducer::Stats)],
        },
    ];
    ViewGroup::new(NUMBER, is_partitioned, trees).unwrap()
}

#[derive(Clone, Copy)]
pub(super) enum ViewWork<'a> {
    Apply(&'a [PreparedDocument]),
    Write(&'a [PreparedDocument]),
    Build,
}

pub(super) struct Step<'a> {
    pub db: &'a Database,
    pub group: &'a ViewGroup,
    pub known: &'a KnownNodes,
    pub todo: ViewWork<'a>,
}

impl Operation for Step<'_> {
    type Output = (ApplyResult, proto::ViewProgress, i64);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.db.inner.resolve_for_write(trx, &self.db.name).await?;
        let large_reads = LargeReadGate::open();
        let at = ApplyContext { trx, keys: &instance.keys, large_reads: &large_reads };
        let key = instance.keys.view(self.group.number()).progress();
        let found = trx.get(&key, false).await?;
        let mut progress = match found {
            Some(found) => proto::ViewProgress::decode(&*found)?,
            // Nodes are built level by level, of all rows.
            None => proto::ViewProgress { section_level: 0, ..self.group.begin()? },
        };
        let mut applied = ApplyResult::default();
        match self.todo {
            ViewWork::Apply(documents) => {
                applied = apply(&at, self.group, Some(&Lengths), self.known, &mut progress, documents).await?;
            }
            ViewWork::Write(documents) => {
                let sections = SectionRule::of(&progress)?;
                applied = write_rows(&at, self.group, Some(&Lengths), &sections, documents).await?;
            }
            ViewWork::Build => {
                build_nodes(&at, self.group, Some(&Lengths), &mut progress, &mut NodesPace::default()).await?;
            }
        }
        trx.set(&key, &progress.encode_to_vec());
        let bytes = trx.get_approximate_size().await?;
        assert!(bytes < 1_000_000, "{bytes} bytes in a transaction: {applied:?}");
        Ok((applied, progress, bytes))
    }
}

pub(super) async fn step(db: &Database, group: &ViewGroup, todo: ViewWork<'_>) -> (ApplyResult, proto::ViewProgress) {
    let (applied, progress, _) = sized_step(db, group, todo).await;
    (applied, progress)
}

pub(super) async fn sized_step(
    db: &Database,
    group: &ViewGroup,
    todo: ViewWork<'_>,
) -> (ApplyResult, proto::ViewProgress, i64) {
    step_knowing(db, group, &KnownNodes::new(&KnowingGroups::default()), todo).await
}

async fn step_knowing(
    db: &Database,
    group: &ViewGroup,
    known: &KnownNodes,
    todo: ViewWork<'_>,
) -> (ApplyResult, proto::ViewProgress, i64) {
    transaction::write(&db.inner.db, &db.inner.metrics, &mut Step { db, group, known, todo }).await.unwrap()
}

pub(super) type Model = BTreeMap<String, Vec<Vec<(String, String)>>>;

pub(super) fn prepared(group: &ViewGroup, documents: &Model) -> Vec<PreparedDocument> {
    let emitted = |rows: &Vec<(String, String)>| {
        let mut emitted = EmittedRows::default();
        rows.iter().for_each(|(key, value)| emitted.push(key, value));
        emitted
    };
    let document = |(id, trees): (&String, &Vec<Vec<(String, String)>>)| {
        prepare(
            group,
            EmittedDocument {
                id: id.clone(),
                trees: trees.iter().map(emitted).collect(),
                ..EmittedDocument::default()
            },
        )
    };
    documents.iter().map(document).collect()
}

pub(super) async fn follow(db: &Database, group: &ViewGroup, documents: &Model) -> Vec<ApplyResult> {
    follow_knowing(db, group, &KnownNodes::new(&KnowingGroups::default()), documents).await
}

/// Follows like [`follow`], with a cache of nodes.
async fn follow_knowing(db: &Database, group: &ViewGroup, known: &KnownNodes, documents: &Model) -> Vec<ApplyResult> {
    let documents = prepared(group, documents);
    let (mut rest, mut all) = (&documents[..], Vec::new());
    while !rest.is_empty() {
        let (applied, ..) = step_knowing(db, group, known, ViewWork::Apply(rest)).await;
        assert!(applied.rows_changed > 0 || applied.documents > 0 || applied.bytes > 0);
        assert!(!applied.is_full);
        rest = &rest[applied.documents..];
        all.push(applied);
    }
    all
}

pub(super) async fn build(db: &Database, group: &ViewGroup, documents: &Model) {
    let documents = prepared(group, documents);
    let mut rest = &documents[..];
    while !rest.is_empty() {
        // As many as a range of ids has.
        let (applied, _) = step(db, group, ViewWork::Write(&rest[..rest.len().min(300)])).await;
        rest = &rest[applied.documents..];
    }
    while step(db, group, ViewWork::Build).await.1.phase != FOLLOWED {}
}

/// Begins a group that needs no build: its nodes exist from the start.
pub(super) async fn begin(db: &Database, group: &ViewGroup) {
    while step(db, group, ViewWork::Build).await.1.phase != FOLLOWED {}
}

pub(super) fn value(text: &str) -> Value<'static> {
    parse(text.as_bytes(), &flatbed_flatten::json::Limits::default()).unwrap().into_owned()
}

pub(super) fn model_rows(group: &ViewGroup, tree: usize, model: &Model) -> Vec<(String, String, String)> {
    let mut rows: Vec<_> = model
        .iter()
        .flat_map(|(id, trees)| trees[tree].iter().map(|(key, value)| (key.clone(), id.clone(), value.clone())))
        .collect();
    let raw = flatbed_collate::Collation::raw();
    rows.sort_by(|a, b| {
        if group.is_partitioned() && partition_of(&a.1) != partition_of(&b.1) {
            return partition_of(&a.1).cmp(&partition_of(&b.1));
        }
        let by_key = group.collation(tree).compare(&value(&a.0), &value(&b.0));
        let by_spelling = || raw.compare(&value(&a.0), &value(&b.0));
        by_key.then_with(|| a.1.cmp(&b.1)).then_with(by_spelling).then_with(|| raw.compare(&value(&a.2), &value(&b.2)))
    });
    rows
}

pub(super) async fn violations(db: &Database, group: &ViewGroup) -> Vec<String> {
    let instance = flatbed_operations::write::batch::resolved(&db.inner, &db.name).await.unwrap();
    let (mut begin, mut all) = (Vec::new(), Vec::new());
    loop {
        let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
        let checked = check(&trx, &instance.keys, group, None, (begin, PAGE_KEYS)).await.unwrap();
        all.extend(checked.violations);
        match checked.next {
            Some(next) => begin = next,
            None => return all,
        }
    }
}

pub(super) async fn assert_is(db: &Database, group: &ViewGroup, model: &Model) {
    assert_eq!(violations(db, group).await, Vec::<String>::new());
    let instance = flatbed_operations::write::batch::resolved(&db.inner, &db.name).await.unwrap();
    let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
    for tree in 0..group.trees().len() {
        let keys = instance.keys.view(NUMBER);
        let rows = all_rows(GroupReads { trx: &trx, keys: &keys, is_before: false }, tree).await.unwrap();
        let expected = model_rows(group, tree, model);
        assert!(rows == expected, "tree {tree}: {} rows, {} expected", rows.len(), expected.len());
    }
}

/// Generates few distinct keys of all kinds, so that they coincide; some are too long for FoundationDB.
fn keys() -> impl Strategy<Value = String> {
    let long = |end: u32| format!("[\"{}\",{end}]", "a".repeat(5_000));
    prop_oneof![
        6 => (0..30_u32).prop_map(|n| n.to_string()),
        2 => (0..9_u32).prop_map(|n| format!("[{},{n}]", n % 3)),
        1 => Just("\"e\u{301}\"".to_owned()),
        1 => Just("\"\u{e9}\"".to_owned()),
        1 => (0..6_u32).prop_map(long),
    ]
}

fn values() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => (-5..100_i32).prop_map(|n| n.to_string()),
        1 => Just("0.1".to_owned()),
        // In parts: a number after spaces of any length.
        1 => (20_000..200_000_usize).prop_map(|spaces| format!("1{}", " ".repeat(spaces))),
    ]
}

pub(super) fn rows(most: usize) -> impl Strategy<Value = Vec<Vec<(String, String)>>> {
    prop::collection::vec(prop::collection::vec((keys(), values()), 0..most), 3)
}

pub(super) fn batch() -> impl Strategy<Value = Model> {
    batch_of((0..60_u32).prop_map(|n| format!("d{n}")))
}

pub(super) fn batch_of(ids: impl Strategy<Value = String>) -> impl Strategy<Value = Model> {
    let trees = prop_oneof![4 => rows(5), 1 => Just(vec![Vec::new(); 3])];
    prop::collection::btree_map(ids, trees, 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_changes_are_those_of_the_model(first in batch(), batches in prop::collection::vec((batch(), 0..2_usize), 1..6), is_built: bool) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (db, _storage) = database().await;
            let group = group();
            if is_built {
                build(&db, &group, &first).await;
            } else {
                begin(&db, &group).await;
                follow(&db, &group, &first).await;
            }
            // Two followers that alternate: the cache of one is outdated by the other.
            let knowing = KnowingGroups::default();
            let known = [KnownNodes::new(&knowing), KnownNodes::new(&knowing)];
            let mut model = first;
            assert_is(&db, &group, &model).await;
            for (batch, turn) in batches {
                follow_knowing(&db, &group, &known[turn], &batch).await;
                model.extend(batch);
                assert_is(&db, &group, &model).await;
                let again = follow(&db, &group, &model).await;
                assert!(again.iter().all(|applied| applied.rows_changed == 0 && applied.bytes == 0));
            }
            let gone: Model = model.keys().map(|id| (id.clone(), vec![Vec::new(); 3])).collect();
            follow_knowing(&db, &group, &known[0], &gone).await;
            assert_is(&db, &group, &Model::new()).await;
            assert_eq!(keys_of(&db).await, 1, "its progress alone");
        });
    }
}

pub(super) async fn keys_of(db: &Database) -> usize {
    let instance = flatbed_operations::write::batch::resolved(&db.inner, &db.name).await.unwrap();
    let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
    let pages = flatbed_databases::document::body::begin_read(&trx, instance.keys.index(NUMBER))
        .finish(&trx, 100_000_000)
        .await;
    pages.unwrap().iter().map(|page| page.len()).sum()
}

/// Returns documents with one row each, whose key and value are the document's number.
pub(super) fn numbered(numbers: impl Iterator<Item = u32>) -> Model {
    numbers
        .map(|n| {
            let row = || vec![(format!("[{},{n}]", n % 10), n.to_string())];
            (format!("doc-{n:07}"), vec![row(), row(), row()])
        })
        .collect()
}

pub(super) async fn counted(db: &Database, group: &ViewGroup, documents: &Model) -> (Vec<ApplyResult>, Waits) {
    waits::count(follow(db, group, documents)).await
}

/// Summaries that need no other rows cost one node per level.
#[tokio::test]
async fn numbers_cost_few_keys() {
    let (db, _storage) = database().await;
    let trees = vec![ViewTree { raw_collation: false, reduces: vec![Reduction::BuiltIn(Reducer::Sum)] }];
    let group = ViewGroup::new(NUMBER, false, trees).unwrap();
    build(&db, &group, &numbered(0..8_000)).await;
    for step in [1, 37] {
        let changed = (0..200).map(|n| n * step % 8_000);
        let documents = changed.map(|n| {
            let row = (format!("[{},{n}]", n % 10), (n + step).to_string());
            (format!("doc-{n:07}"), vec![vec![row]])
        });
        let (applied, waits) = counted(&db, &group, &documents.collect()).await;
        assert_eq!(applied.iter().map(|applied| applied.rows_changed).sum::<u64>(), 200);
        println!("{} keys, {} reads, depth {}", waits.keys_read, waits.range_reads, waits.path.depth());
        assert!(waits.keys_read < 200 * 20, "{waits:?}");
    }
    assert_eq!(violations(&db, &group).await, Vec::<String>::new());
}

/// A document with more rows than a transaction changes, and with more bytes: by following and by a first build.
#[tokio::test]
async fn large_documents_take_several_transactions() {
    let (db, _storage) = database().await;
    let group = group();
    let large = |rows: u32, bytes: usize| {
        let row = |n: u32| (format!("[{},{n}]", n % 10), format!("{n}{}", " ".repeat(bytes)));
        let trees = vec![(0..rows).map(row).collect(), vec![row(7)], Vec::new()];
        ("large".to_owned(), trees)
    };
    let mut model = Model::from([large(150, 10)]);
    build(&db, &group, &model).await;
    assert_is(&db, &group, &model).await;
    let others = |n: u32| (format!("small{n}"), vec![vec![("1".to_owned(), n.to_string())]; 3]);
    for (id, trees) in [large(170, 20), large(4, 40_000), large(2, 200_000), large(0, 0)] {
        let batch: Model = (0..5).map(others).chain([(id, trees)]).collect();
        let applied = follow(&db, &group, &batch).await;
        assert!(applied.iter().all(|applied| applied.rows_changed <= 70), "{applied:?}");
        model.extend(batch);
        assert_is(&db, &group, &model).await;
    }
}

#[tokio::test]
async fn a_batch_waits_for_its_documents_and_each_level() {
    let (db, _storage) = database().await;
    let group = group();
    build(&db, &group, &numbered((0..3_000).map(|n| n * 2))).await;
    let (applied, waits) = counted(&db, &group, &numbered((0..20).map(|n| n * 301 + 1))).await;
    assert_eq!(applied.len(), 1);
    let trees = step(&db, &group, ViewWork::Apply(&[])).await.1.trees;
    let height = trees.iter().map(|tree| tree.height).max().unwrap();
    let is_exact = flatbed_store::waits::are_exact();
    assert!(!is_exact || waits.path.depth() <= 5 + u64::from(height), "{waits:?} height {trees:?}");
    assert_eq!(violations(&db, &group).await, Vec::<String>::new());
}

#[tokio::test]
async fn the_checker_finds_what_is_broken() {
    let (db, _storage) = database().await;
    let group = group();
    let mut model = numbered(0..300);
    model.insert("large".to_owned(), vec![vec![("1".to_owned(), format!("1{}", " ".repeat(30_000)))]; 3]);
    build(&db, &group, &model).await;
    let instance = flatbed_operations::write::batch::resolved(&db.inner, &db.name).await.unwrap();
    let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
    let pages = flatbed_databases::document::body::begin_read(&trx, instance.keys.index(NUMBER))
        .finish(&trx, 100_000_000)
        .await;
    let pages = pages.unwrap();
    let all: Vec<(Vec<u8>, Vec<u8>)> =
        pages.iter().flatten().map(|row| (row.key().to_vec(), row.value().to_vec())).collect();
    let view = instance.keys.view(NUMBER);
    let mut kinds = std::collections::BTreeSet::new();
    for (key, value) in &all {
        // One of each kind, and of each level of nodes.
        let kind = match view.split(key).unwrap() {
            ViewPart::Progress | ViewPart::Refused | ViewPart::Undo(_) | ViewPart::Staged(..) => continue,
            ViewPart::SetAsideCount | ViewPart::SetAside(_) => continue,
            ViewPart::Leased | ViewPart::Lease(_) | ViewPart::LeasePlace(_) | ViewPart::Later(_) => continue,
            ViewPart::Section(_) | ViewPart::SectionBeat(_) => continue,
            ViewPart::Row(..) => (1, 0),
            ViewPart::OfDocument(..) => (2, 0),
            ViewPart::Node(_, level, _) => (3, level),
            ViewPart::Part(..) => (4, 0),
        };
        if !kinds.insert(kind) {
            continue;
        }
        set(&db, key, None).await;
        assert!(!violations(&db, &group).await.is_empty(), "{kind:?} is gone");
        set(&db, key, Some(value.as_slice())).await;
    }
    assert!(kinds.len() >= 6, "{kinds:?}");
    let stray = view.row(0, &[&all[1].0[view.row_prefix(0)..all[1].0.len() - 1], &[0x15, 9]].concat());
    set(&db, &stray, Some(all[1].1.as_slice())).await;
    assert!(!violations(&db, &group).await.is_empty(), "a row that no document has");
    set(&db, &stray, None).await;
    assert_is(&db, &group, &model).await;
}

pub(super) async fn set(db: &Database, key: &[u8], value: Option<&[u8]>) {
    let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
    match value {
        Some(value) => trx.set(key, value),
        None => trx.clear(key),
    }
    assert!(trx.commit().await.is_ok());
}
