//! Compares reads of views with a model, and counts their waits.
#![cfg(test)]

use std::cmp::Ordering;
use std::sync::Arc;

use flatbed_collate::{Collation, cut_to_level};
use flatbed_databases::document::edit::partition_of;
use flatbed_flatten::json::{self, Value};
use flatbed_store::error::Result;
use flatbed_store::transaction::Transaction;
use flatbed_store::view_definition::GroupDefinition;
use flatbed_store::{proto, waits};
use flatbed_views::view::group::ViewGroup;
use flatbed_views::view::read::{OpenOutcome, OpenView, Select, View, ViewRange, ViewSource};
use flatbed_views::view::reduced::{Grouping, ReduceQuery};
use flatbed_views::view::rows::ViewQuery;
use futures_util::future::BoxFuture;
use proptest::prelude::*;
use prost::Message;

use crate::handle::Database;
use crate::tests::fenced::database;
use crate::tests::view::{Lengths, Model, batch, begin, build, follow, group, model_rows, numbered, value};

struct StoredView {
    db: Database,
    group: ViewGroup,
    tree: usize,
}

impl ViewSource for StoredView {
    fn open<'a>(&'a self, trx: &'a Transaction, _: bool) -> BoxFuture<'a, Result<OpenOutcome>> {
        Box::pin(async move {
            let instance = self.db.inner.resolve(trx, &self.db.name).await?;
            let found = trx.get(&instance.keys.view(self.group.number()).progress(), true).await?;
            let progress = proto::ViewProgress::decode(&*found.unwrap())?;
            let (group, tree) = (self.group.clone(), self.tree);
            Ok(OpenOutcome::Open(Box::new(OpenView {
                instance,
                group,
                tree,
                progress,
                written: Some(Arc::new(Lengths)),
            })))
        })
    }
}

fn view(db: &Database, tree: usize) -> View {
    view_of(db, group(), tree)
}

pub(super) fn view_of(db: &Database, group: ViewGroup, tree: usize) -> View {
    let design = value(r#"{"views":{"v":{"map":"function(doc){}"}}}"#);
    let definition = GroupDefinition::of_design(&design, false).unwrap().unwrap();
    let source = StoredView { db: db.clone(), group, tree };
    View {
        source: Arc::new(source),
        reader: (**db.reader()).clone(),
        definition: Arc::new(definition),
        view: 0,
        partition: None,
    }
}

pub(super) type Row = (String, String, String);

/// Returns all rows in the order of reading: rows of one document with one spelling of the key keep their order.
pub(super) fn in_order(mut rows: Vec<Row>, descending: bool) -> Vec<Row> {
    if descending {
        rows.reverse();
        let mut begin = 0;
        let runs: Vec<usize> = rows.chunk_by(|a, b| (&a.0, &a.1) == (&b.0, &b.1)).map(<[Row]>::len).collect();
        for run in runs {
            rows[begin..begin + run].reverse();
            begin += run;
        }
    }
    rows
}

struct ExpectedRows<'a> {
    collation: &'a Collation,
    rows: Vec<Row>,
    descending: bool,
}

impl ExpectedRows<'_> {
    fn compare(&self, row: &Row, key: &Value<'_>, id: Option<&str>) -> Ordering {
        let by_key = self.collation.compare(&value(&row.0), key);
        let order = by_key.then_with(|| id.map_or(Ordering::Equal, |id| row.1.as_str().cmp(id)));
        if self.descending { order.reverse() } else { order }
    }

    fn is_in(&self, row: &Row, range: &ViewRange) -> (bool, bool) {
        let begun = range
            .start
            .as_ref()
            .is_none_or(|key| self.compare(row, key, range.start_docid.as_deref()) != Ordering::Less);
        let not_over = range.end.as_ref().is_none_or(|key| {
            let order = self.compare(row, key, range.end_docid.as_deref());
            if range.exclusive_end { order == Ordering::Less } else { order != Ordering::Greater }
        });
        (begun, not_over)
    }

    fn select(&self, select: &Select) -> (Vec<Row>, u64) {
        match select {
            Select::Range(range) => {
                let rows = self.rows.iter().filter(|row| self.is_in(row, range) == (true, true)).cloned().collect();
                (rows, self.rows.iter().filter(|row| !self.is_in(row, range).0).count() as u64)
            }
            Select::Keys { keys, start_docid, end_docid, exclusive_end } => {
                let ranges = keys.iter().map(|key| ViewRange {
                    start: Some(key.clone()),
                    start_docid: start_docid.clone(),
                    end: Some(key.clone()),
                    end_docid: end_docid.clone(),
                    exclusive_end: *exclusive_end,
                });
                let found: Vec<(Vec<Row>, u64)> = ranges.map(|range| self.select(&Select::Range(range))).collect();
                let last = found.last().map_or(0, |(_, before)| *before);
                let rows: Vec<Row> = found.into_iter().flat_map(|(rows, _)| rows).collect();
                let place = |first: &Row| self.rows.iter().position(|row| row == first).unwrap() as u64;
                let before = rows.first().map_or(last, place);
                (rows, before)
            }
        }
    }

    fn groups(&self, select: &Select, grouping: Grouping) -> Vec<(Option<String>, Vec<Row>)> {
        let (rows, _) = self.select(select);
        let cut = |row: &Row| match grouping {
            Grouping::All => Value::Null,
            Grouping::Level(level) => cut_to_level(&value(&row.0), level),
            Grouping::Exact => value(&row.0),
        };
        let groups = rows.chunk_by(|a, b| self.collation.compare(&cut(a), &cut(b)).is_eq());
        groups
            .map(|rows| {
                // A group has the key of its first row.
                let mut ascending = rows.to_vec();
                if self.descending {
                    ascending = in_order(ascending, true);
                }
                let mut key = Vec::new();
                json::write(&cut(&ascending[0]), &mut key);
                let key = (grouping != Grouping::All).then(|| String::from_utf8(key).unwrap());
                (key, rows.to_vec())
            })
            .collect()
    }
}

fn is_before(row: &Row, partition: &str, descending: bool) -> bool {
    let of_row = partition_of(&row.1).unwrap();
    if descending { of_row > partition } else { of_row < partition }
}

pub(super) async fn read(view: &View, query: ViewQuery) -> (Vec<Row>, u64, u64) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (mut rows, mut found, mut first) = (view.rows(query), Vec::new(), None);
    while let Some(page) = rows.next_page().await.unwrap() {
        first.get_or_insert((page.total_rows, page.before));
        found.extend(page.rows.into_iter().map(|row| (text(row.key), row.id, text(row.value))));
    }
    let (total, before) = first.unwrap();
    (found, total, before)
}

pub(super) async fn reduced(view: &View, query: ReduceQuery) -> Vec<(Option<String>, String)> {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (mut rows, mut found) = (view.reduce(query), Vec::new());
    while let Some(page) = rows.next_page().await.unwrap() {
        found.extend(page.rows.into_iter().map(|row| (row.key.map(text), text(row.value.unwrap()))));
    }
    found
}

fn keys() -> impl Strategy<Value = Value<'static>> {
    let long = |end: u32| value(&format!("[\"{}\",{end}]", "a".repeat(5_000)));
    prop_oneof![
        4 => (0..30_u32).prop_map(|n| value(&n.to_string())),
        2 => (0..9_u32).prop_map(|n| value(&format!("[{},{n}]", n % 3))),
        1 => (0..3_u32).prop_map(|n| value(&format!("[{n}]"))),
        1 => Just(value("\"e\u{301}\"")),
        1 => (0..8_u32).prop_map(long),
        1 => Just(value("{}")),
    ]
}

fn selections(ids: impl Strategy<Value = String> + Clone) -> impl Strategy<Value = Select> {
    let id = || prop::option::weighted(0.3, ids.clone());
    let range = (prop::option::of(keys()), prop::option::of(keys()), id(), id(), any::<bool>());
    let range = range.prop_map(|(start, end, start_docid, end_docid, exclusive_end)| {
        Select::Range(ViewRange { start, start_docid, end, end_docid, exclusive_end })
    });
    let several = (prop::collection::vec(keys(), 0..6), id(), id(), prop::bool::weighted(0.1));
    let several = several.prop_map(|(keys, start_docid, end_docid, exclusive_end)| Select::Keys {
        keys,
        start_docid,
        end_docid,
        exclusive_end,
    });
    prop_oneof![3 => range, 1 => several]
}

pub(super) type RecordedQuery = (usize, Select, bool, u64, Option<u64>, Grouping);

pub(super) fn asked(ids: impl Strategy<Value = String> + Clone) -> impl Strategy<Value = RecordedQuery> {
    let grouping = prop_oneof![Just(Grouping::All), (1..3_usize).prop_map(Grouping::Level), Just(Grouping::Exact),];
    let skip = prop_oneof![3 => Just(0), 2 => 0..60_u64];
    (0..3_usize, selections(ids), any::<bool>(), skip, prop::option::of(0..40_u64), grouping)
}

fn page_of<T>(all: Vec<T>, skip: u64, limit: Option<u64>) -> Vec<T> {
    all.into_iter().skip(skip as usize).take(limit.map_or(usize::MAX, |limit| limit as usize)).collect()
}

/// `of`: the partition to read, and the prefix of its rows' ids.
pub(super) async fn compare(
    db: &Database,
    group: &ViewGroup,
    model: &Model,
    of: Option<(&str, &str)>,
    asked: RecordedQuery,
) {
    let (tree, select, descending, skip, limit, grouping) = asked;
    let all = in_order(model_rows(group, tree, model), descending);
    let (mut view, mut rows, mut rows_of_others) = (view_of(db, group.clone(), tree), all.clone(), 0);
    if let Some((partition, begin)) = of {
        view = view.of_partition(partition);
        // Ids of the partition are adjacent.
        let is_own = |row: &Row| row.1.starts_with(begin);
        rows_of_others = rows.iter().take_while(|row| is_before(row, partition, descending)).count() as u64;
        rows.retain(is_own);
    }
    let expected = ExpectedRows { collation: group.collation(tree), rows, descending };
    let query = ViewQuery { select: select.clone(), descending, skip, limit, ..ViewQuery::default() };
    let (found, total, before) = read(&view, query).await;
    let (rows, rows_before) = expected.select(&select);
    let rows = page_of(rows, skip, limit);
    assert!(found == rows, "{} rows, {} expected: {found:.200?} {rows:.200?}", found.len(), rows.len());
    let has_none = matches!(&select, Select::Keys { keys, .. } if keys.is_empty());
    let rows_before = if has_none { 0 } else { rows_of_others + rows_before };
    assert_eq!((total, before), (all.len() as u64, rows_before), "{of:?} {descending} {skip} {limit:?} {select:.300?}");
    if tree != 0 || matches!((&select, grouping), (Select::Keys { .. }, Grouping::All | Grouping::Level(_))) {
        return;
    }
    let groups = match &select {
        Select::Range(_) => expected.groups(&select, grouping),
        Select::Keys { keys, start_docid, end_docid, exclusive_end } => keys
            .iter()
            .flat_map(|key| {
                let one = Select::Keys {
                    keys: vec![key.clone()],
                    start_docid: start_docid.clone(),
                    end_docid: end_docid.clone(),
                    exclusive_end: *exclusive_end,
                };
                expected.groups(&one, grouping)
            })
            .collect(),
    };
    let lengths = groups.into_iter().map(|(key, rows)| {
        let length: usize = rows.iter().map(|(key, id, value)| key.len() + id.len() + value.len()).sum();
        (key, length.to_string())
    });
    let lengths = page_of(lengths.collect(), skip, limit);
    let query = ReduceQuery { select, reduce: 1, grouping, descending, skip, limit };
    let found = reduced(&view, query).await;
    assert!(found == lengths, "{found:.200?} {lengths:.200?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_read_is_what_the_model_has(
        model in batch(), asked in prop::collection::vec(asked((0..60_u32).prop_map(|n| format!("d{n}"))), 30..31),
        is_built: bool
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (db, _storage) = database().await;
            if is_built {
                build(&db, &group(), &model).await;
            } else {
                begin(&db, &group()).await;
                follow(&db, &group(), &model).await;
            }
            for asked in asked {
                compare(&db, &group(), &model, None, asked).await;
            }
        });
    }
}

#[tokio::test]
async fn readers_wait_for_little() {
    let (db, _storage) = database().await;
    let model = numbered(0..8_000);
    build(&db, &group(), &model).await;
    let view = view(&db, 0);
    db.exists().await.unwrap();
    let range = |start: &str, end: &str| {
        Select::Range(ViewRange { start: Some(value(start)), end: Some(value(end)), ..ViewRange::default() })
    };
    let some = |select: Select, skip, limit| ViewQuery { select, skip, limit: Some(limit), ..ViewQuery::default() };
    let mut depths = Vec::new();
    for (name, query) in [
        ("the first rows", some(Select::default(), 0, 25)),
        ("rows of a range", some(range("[3,3000]", "[3,5000]"), 0, 25)),
        ("rows far behind", some(Select::default(), 7_000, 25)),
    ] {
        let (page, waits) = waits::count(async { view.rows(query).next_page().await.unwrap().unwrap() }).await;
        assert_eq!((page.rows.len(), page.total_rows), (25, 8_000));
        depths.push((name, waits.path.depth(), waits.keys_read));
    }
    for (name, select, grouping, rows) in [
        ("all", Select::default(), Grouping::All, 1),
        ("a range", range("[3,3001]", "[7,4001]"), Grouping::All, 1),
        ("by a level", Select::default(), Grouping::Level(1), 6),
    ] {
        let query = ReduceQuery { select, grouping, ..ReduceQuery::default() };
        let (page, waits) = waits::count(async { view.reduce(query).next_page().await.unwrap().unwrap() }).await;
        assert_eq!(page.rows.len(), rows);
        depths.push((name, waits.path.depth(), waits.keys_read));
    }
    println!("{depths:?}");
    let most = [4, 8, 12, 4, 8, 20];
    assert!(depths.iter().zip(most).all(|((_, depth, _), most)| *depth <= most), "{depths:?}");
}
