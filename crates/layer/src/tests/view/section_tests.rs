//! Nodes built by sections, in any order, are those built level by level: key for key and byte for byte.
#![cfg(test)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fdb_embedded::VirtualClock;
use flatbed_collate::reduce::Reducer;
use flatbed_store::error::Result;
use flatbed_store::keys::{ViewKeys, ViewPart};
use flatbed_store::proto::{self, ViewProgress, ViewSection};
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use flatbed_store::waits::{self, Waits};
use flatbed_testkit::{Random, Storage};
use flatbed_views::view::apply::ApplyContext;
use flatbed_views::view::build::{FOLLOWED, NODES, NodesPace, SECTIONS, build_nodes};
use flatbed_views::view::documents::LargeReadGate;
use flatbed_views::view::group::{Reduction, ViewGroup, ViewTree};
use flatbed_views::view::sections::SectionRule;
use futures_util::future::join_all;
use proptest::prelude::*;
use prost::Message;

use super::{Lengths, Model, NUMBER, ViewWork, assert_is, batch, group, numbered, prepared, set, step};
use crate::handle::Database;
use crate::tests::fenced::database;

type Stored = Vec<(Vec<u8>, Vec<u8>)>;

async fn keys_of_group(db: &Database) -> ViewKeys {
    flatbed_operations::write::batch::resolved(&db.inner, &db.name).await.unwrap().keys.view(NUMBER)
}

/// Returns all keys of the group with their values.
async fn stored(db: &Database) -> Stored {
    let instance = flatbed_operations::write::batch::resolved(&db.inner, &db.name).await.unwrap();
    let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
    let all = flatbed_databases::document::body::begin_read(&trx, instance.keys.index(NUMBER));
    let pages = all.finish(&trx, 100_000_000).await.unwrap();
    pages.iter().flatten().map(|row| (row.key().to_vec(), row.value().to_vec())).collect()
}

async fn progress(db: &Database) -> ViewProgress {
    let key = keys_of_group(db).await.progress();
    let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
    ViewProgress::decode(&*trx.get(&key, true).await.unwrap().unwrap()).unwrap()
}

async fn set_progress(db: &Database, progress: &ViewProgress) {
    set(db, &keys_of_group(db).await.progress(), Some(&progress.encode_to_vec())).await;
}

/// Writes the rows of documents in a group whose sections have this level.
async fn write(db: &Database, group: &ViewGroup, level: u32, batches: &[&Model]) {
    write_with(db, group, &ViewProgress { section_level: level, ..group.begin().unwrap() }, batches).await;
}

async fn write_with(db: &Database, group: &ViewGroup, progress: &ViewProgress, batches: &[&Model]) {
    set_progress(db, progress).await;
    for batch in batches {
        let documents = prepared(group, batch);
        let mut rest = &documents[..];
        while !rest.is_empty() {
            rest = &rest[step(db, group, ViewWork::Write(&rest[..rest.len().min(300)])).await.0.documents..];
        }
    }
}

/// The next transaction of a section.
struct BuildNext<'a> {
    db: &'a Database,
    group: &'a ViewGroup,
    key: &'a [u8],
    pace: &'a mut NodesPace,
}

impl Operation for BuildNext<'_> {
    /// True if the section is complete.
    type Output = bool;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<bool> {
        let keys = self.db.inner.resolve_for_write(trx, &self.db.name).await?.keys.view(NUMBER);
        let mut progress = ViewProgress::decode(&*trx.get(&keys.progress(), false).await?.unwrap())?;
        let section = ViewSection::decode(&*trx.get(self.key, false).await?.unwrap())?;
        let rule = SectionRule::of(&progress)?;
        let built = rule.build((trx, &keys), self.group, Some(&Lengths), &section, self.pace).await?;
        built.write(trx)?;
        if let Some((height, rows, bytes)) = built.root {
            let tree = &mut progress.trees[section.tree as usize];
            *tree = proto::ViewTree { height, rows, bytes, ..*tree };
            trx.set(&keys.progress(), &progress.encode_to_vec());
        }
        match &built.next {
            Some(next) => trx.set(self.key, &next.encode_to_vec()),
            None => trx.clear(self.key),
        }
        let bytes = trx.get_approximate_size().await?;
        assert!(bytes < 1_000_000, "{bytes} bytes");
        Ok(built.next.is_none())
    }
}

/// The keys of the sections that are left.
async fn sections(db: &Database) -> Vec<Vec<u8>> {
    let keys = keys_of_group(db).await;
    let is_section = |key: &[u8]| matches!(keys.split(key), Ok(ViewPart::Section(_)));
    stored(db).await.into_iter().map(|(key, _)| key).filter(|key| is_section(key)).collect()
}

/// Builds the nodes as servers do, but the sections in an order that the seed decides, and some transactions without
/// their commit. Returns the number of sections.
async fn build_by_sections(db: &Database, group: &ViewGroup, seed: u64) -> usize {
    let mut progress = step(db, group, ViewWork::Build).await.1;
    while progress.phase == NODES && progress.building.is_none() {
        progress = step(db, group, ViewWork::Build).await.1;
    }
    let count = sections(db).await.len();
    if progress.phase == SECTIONS {
        let (mut random, mut pace) = (Random(seed), NodesPace::default());
        loop {
            let left = sections(db).await;
            if left.is_empty() {
                break;
            }
            let key = &left[random.below(left.len() as u64) as usize];
            let mut next = BuildNext { db, group, key, pace: &mut pace };
            if random.below(5) == 0 {
                let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
                next.attempt(&trx, Attempt::default()).await.unwrap();
                continue;
            }
            transaction::write(&db.inner.db, &db.inner.metrics, &mut next).await.unwrap();
        }
        let progress = self::progress(db).await;
        set_progress(db, &ViewProgress { phase: NODES, building: Some(Default::default()), ..progress }).await;
    }
    build_rest(db, group).await;
    count
}

async fn remove_nodes_alone(db: &Database) {
    let keys = keys_of_group(db).await;
    let is_node = |key: &[u8]| matches!(keys.split(key), Ok(ViewPart::Node(_, level, _)) if level > 0);
    let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
    stored(db).await.iter().filter(|(key, _)| is_node(key)).for_each(|(key, _)| trx.clear(key));
    assert!(trx.commit().await.is_ok());
}

/// Removes all nodes, so that they are built again level by level.
async fn remove_nodes(db: &Database) {
    remove_nodes_alone(db).await;
    let mut progress = progress(db).await;
    (progress.phase, progress.section_level, progress.building) = (NODES, 0, None);
    progress.trees.iter_mut().for_each(|tree| (tree.height, tree.rows, tree.bytes) = (0, 0, 0));
    set_progress(db, &progress).await;
}

async fn build_rest(db: &Database, group: &ViewGroup) {
    while step(db, group, ViewWork::Build).await.1.phase != FOLLOWED {}
}

/// Returns the stored keys without what only says how they were built.
fn without_level(mut stored: Stored) -> Stored {
    let mut progress = ViewProgress::decode(&*stored[0].1).unwrap();
    progress.section_level = 0;
    stored[0].1 = progress.encode_to_vec();
    stored
}

async fn compare_builds(level: u32, batches: &[&Model], seed: u64) -> usize {
    let (db, _storage) = database().await;
    let group = group();
    write(&db, &group, level, batches).await;
    let mut model = Model::new();
    batches.iter().for_each(|batch| model.extend((*batch).clone()));
    let count = build_by_sections(&db, &group, seed).await;
    assert_is(&db, &group, &model).await;
    let by_sections = without_level(stored(&db).await);
    remove_nodes(&db).await;
    build_rest(&db, &group).await;
    let by_levels = without_level(stored(&db).await);
    assert_eq!(by_sections.len(), by_levels.len());
    assert!(by_sections == by_levels, "other nodes or heights");
    count
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]

    /// Documents are written twice, as after a lost lease: rows that begin sections go, come and change their size.
    #[test]
    fn sections_in_any_order_make_the_same_nodes(
        first in batch(),
        second in batch(),
        more in 0..400_u32,
        level in 1..4_u32,
        seed: u64,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let more = numbered(0..more);
            compare_builds(level, &[&first, &more, &second], seed).await;
        });
    }
}

#[tokio::test]
async fn many_rows_have_many_sections() {
    let count = compare_builds(1, &[&numbered(0..1_500)], 3).await;
    assert!(count > 60, "{count}");
    let count = compare_builds(2, &[&numbered(0..3_000)], 4).await;
    assert!((6..100).contains(&count), "{count}");
    // No row begins a section: the holder builds all nodes.
    assert_eq!(compare_builds(9, &[&numbered(0..100)], 5).await, 0);
}

fn is_row(keys: &ViewKeys, key: &[u8]) -> bool {
    matches!(keys.split(key), Ok(ViewPart::Row(..) | ViewPart::OfDocument(..)))
}

/// The next step of a holder.
struct HolderStep<'a> {
    db: &'a Database,
    group: &'a ViewGroup,
    pace: &'a mut NodesPace,
}

impl Operation for HolderStep<'_> {
    type Output = bool;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<bool> {
        let instance = self.db.inner.resolve_for_write(trx, &self.db.name).await?;
        let key = instance.keys.view(NUMBER).progress();
        let mut progress = ViewProgress::decode(&*trx.get(&key, false).await?.unwrap())?;
        let large_reads = LargeReadGate::open();
        let at = ApplyContext { trx, keys: &instance.keys, large_reads: &large_reads };
        let is_built = build_nodes(&at, self.group, Some(&Lengths), &mut progress, self.pace).await?;
        trx.set(&key, &progress.encode_to_vec());
        Ok(is_built)
    }
}

/// Runs the steps of a holder from the sections, or from the rows if there are none, to the end.
async fn hold(db: &Database, group: &ViewGroup, pace: usize) {
    let mut pace = NodesPace::of(pace);
    let mut step = HolderStep { db, group, pace: &mut pace };
    while !transaction::write(&db.inner.db, &db.inner.metrics, &mut step).await.unwrap() {}
}

/// Builds sections with several builders at once.
async fn build_at_once(db: &Database, group: &ViewGroup, sections: Vec<Vec<u8>>, (builders, pace): (usize, usize)) {
    let left = Mutex::new(sections);
    let build = async || {
        let mut pace = NodesPace::of(pace);
        loop {
            let Some(key) = left.lock().unwrap().pop() else { return };
            let mut next = BuildNext { db, group, key: &key, pace: &mut pace };
            while !transaction::write(&db.inner.db, &db.inner.metrics, &mut next).await.unwrap() {}
        }
    };
    join_all((0..builders).map(|_| build())).await;
}

/// Counts the build of 24,000 rows of 100 bytes as a server reads and writes them, in the time of a simulated cluster:
/// level by level, by one builder of sections, and by eight.
#[test]
fn sections_cost_a_few_transactions_each_and_are_built_at_once() {
    const PACE: usize = 2_000;
    let clock = Arc::<VirtualClock>::default();
    let Some(storage) = Storage::simulated(&clock, None).filter(|_| waits::are_exact()) else { return };
    let runtime = {
        let (engine, clock) = (flatbed_testkit::engine(), Arc::clone(&clock));
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().on_thread_park(move || {
            engine.map(|engine| engine.advance(&clock));
        });
        builder.build().unwrap()
    };
    let measured = runtime.block_on(async {
        let (layer, authority) = crate::tests::fenced::open(&storage, None).await;
        let db = layer.database("db", authority.for_job("test"));
        db.create(&crate::CreateOptions::default()).await.unwrap();
        let trees = vec![ViewTree { raw_collation: false, reduces: vec![Reduction::BuiltIn(Reducer::Sum)] }];
        let group = ViewGroup::new(NUMBER, false, trees).unwrap();
        let row = |n: u32| (format!("d{n:05}"), vec![vec![(n.to_string(), format!("{}{n}", " ".repeat(60)))]]);
        let mut progress = ViewProgress { section_level: 3, ..group.begin().unwrap() };
        // The same sections in each run.
        (progress.trees[0].secret_0, progress.trees[0].secret_1) = (1, 2);
        write_with(&db, &group, &progress, &[&(0..24_000).map(row).collect()]).await;
        while step(&db, &group, ViewWork::Build).await.1.phase != SECTIONS {}
        let keys = keys_of_group(&db).await;
        let (begun, count) = (stored(&db).await, sections(&db).await.len());
        let mut measured = Vec::new();
        for builders in [1, 8] {
            remove_nodes_alone(&db).await;
            let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
            begun.iter().filter(|(key, _)| !is_row(&keys, key)).for_each(|(key, value)| trx.set(key, value));
            assert!(trx.commit().await.is_ok());
            let left = sections(&db).await;
            let began = clock.now();
            let (_, waits) = waits::count(build_at_once(&db, &group, left, (builders, PACE))).await;
            measured.push((waits, clock.now() - began));
            assert!(sections(&db).await.is_empty());
        }
        let progress = self::progress(&db).await;
        set_progress(&db, &ViewProgress { phase: NODES, building: Some(Default::default()), ..progress }).await;
        let (_, above) = waits::count(hold(&db, &group, PACE)).await;
        remove_nodes(&db).await;
        let began = clock.now();
        let (_, waits) = waits::count(hold(&db, &group, PACE)).await;
        (count as u64, measured, above, (waits, clock.now() - began))
    });
    let (count, measured, above, (by_levels, by_levels_in)) = measured;
    let line = |name: &str, waits: &Waits, time: Duration| {
        println!(
            "{name}: {} transactions, {} range reads, {} keys read, {} written, {time:?}",
            waits.transactions, waits.range_reads, waits.keys_read, waits.keys_written
        );
    };
    line("by levels", &by_levels, by_levels_in);
    line(&format!("{count} sections, one builder"), &measured[0].0, measured[0].1);
    line("eight builders", &measured[1].0, measured[1].1);
    line("above", &above, Duration::ZERO);
    assert!((4..30).contains(&count), "{count} sections");
    for (waits, _) in &measured {
        // The last part of each level is short, and writes the section.
        assert!(waits.transactions <= by_levels.transactions + 4 * count, "{waits:?} {by_levels:?}");
        assert!(waits.keys_written <= by_levels.keys_written + waits.transactions, "{waits:?} {by_levels:?}");
    }
    assert!(above.transactions <= 4, "{above:?}");
    assert!(measured[1].1 * 3 < measured[0].1, "{:?} {:?}", measured[1].1, measured[0].1);
}
