//! Trees in memory, compared with a walk over their rows.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::ops::Bound;
use std::pin::{Pin, pin};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use flatbed_rowtree::{
    Key, KeyRange, KnownNodes, NodeChanges, Parts, RowChange, Section, Shape, Summary, Tree, TreePage, build,
    build_section, change, count, cover, groups, nth,
};
use proptest::prelude::*;

/// A sum, and a digest of the rows' order: a reduction that depends on the rows alone.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sum {
    rows: u64,
    sum: u64,
    text: String,
}

impl Summary for Sum {
    fn rows(&self) -> u64 {
        self.rows
    }
}

/// A row: its value, and its declared size.
type Row = (u64, usize);

/// A change of the rows' number and sum.
type Delta = (i64, i64);

#[derive(Default)]
struct Memory {
    /// True if sums have no digest, so that they can be adjusted without other rows.
    is_counted: bool,
    rows: BTreeMap<Key, Row>,
    nodes: BTreeMap<(u8, Key), Sum>,
    height: u8,
    /// The most entries of a page.
    page_max: Option<usize>,
    read: AtomicUsize,
    reads: AtomicUsize,
    /// Advances when all pending reads are answered.
    tick: AtomicUsize,
    asked: AtomicUsize,
    calls: Mutex<usize>,
    /// The node cache; `None`: no cache.
    known: Option<Mutex<KnownNodes<Sum>>>,
    /// The cache's size in bytes.
    known_max: usize,
}

/// Completes once all concurrent reads are requested, so ticks count waits.
struct Answer<'a, T>(&'a Memory, Option<usize>, Option<T>);

impl<T: Unpin> Future for Answer<'_, T> {
    type Output = Result<T, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        context.waker().wake_by_ref();
        let now = self.0.tick.load(Ordering::Relaxed);
        let memory = self.0;
        let asked = *self.1.get_or_insert_with(|| {
            memory.asked.fetch_add(1, Ordering::Relaxed);
            now
        });
        if asked == now { Poll::Pending } else { Poll::Ready(Ok(self.2.take().unwrap())) }
    }
}

impl Memory {
    fn page<V: Clone>(
        &self,
        found: impl DoubleEndedIterator<Item = (Key, V)>,
        limit: usize,
        reverse: bool,
    ) -> TreePage<V> {
        let limit = self.page_max.map_or(limit, |max| limit.min(max));
        let mut entries: Vec<(Key, V)> = match reverse {
            false => found.take(limit + 1).collect(),
            true => found.rev().take(limit + 1).collect(),
        };
        let more = entries.len() > limit;
        entries.truncate(limit);
        self.read.fetch_add(entries.len(), Ordering::Relaxed);
        self.reads.fetch_add(1, Ordering::Relaxed);
        TreePage { entries, more }
    }

    fn run<T>(&self, future: impl Future<Output = Result<T, Infallible>>) -> (T, usize) {
        let begun = self.tick.load(Ordering::Relaxed);
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        loop {
            let asked = self.asked.load(Ordering::Relaxed);
            match future.as_mut().poll(&mut context) {
                Poll::Ready(Ok(done)) => return (done, self.tick.load(Ordering::Relaxed) - begun),
                Poll::Ready(Err(error)) => match error {},
                Poll::Pending if asked == self.asked.load(Ordering::Relaxed) => {
                    self.tick.fetch_add(1, Ordering::Relaxed);
                }
                Poll::Pending => {}
            };
        }
    }

    fn apply(&mut self, rows: Vec<RowChange<Row, Delta>>, done: NodeChanges<Sum>) {
        for row in rows {
            match row.new {
                Some(new) => self.rows.insert(row.key, new),
                None => self.rows.remove(&row.key),
            };
        }
        if let Some(known) = &self.known {
            let mut known = known.lock().unwrap();
            for (level, key, summary) in done.nodes.clone() {
                known.change(level, key, summary.map(|summary| (summary, 8)));
            }
            known.trim(self.known_max);
            assert!(known.bytes() <= self.known_max);
        }
        for (level, key, summary) in done.nodes {
            match summary {
                Some(summary) => self.nodes.insert((level, key), summary),
                None => self.nodes.remove(&(level, key)),
            };
        }
        self.height = done.height;
    }

    fn kept(&self, mut sum: Sum) -> Sum {
        if self.is_counted {
            sum.text.clear();
        }
        sum
    }

    /// Computes all nodes from the rows by `Shape` alone.
    fn expected(&self, shape: &Shape) -> (BTreeMap<(u8, Key), Sum>, u8) {
        let mut nodes = BTreeMap::new();
        if self.rows.is_empty() {
            return (nodes, 0);
        }
        for level in 1.. {
            let mut begin = Key::new();
            let mut all: BTreeMap<Key, Sum> = BTreeMap::new();
            for (key, row) in &self.rows {
                if shape.level(key, row.1) >= level {
                    begin.clone_from(key);
                }
                let one = sum_of([(key, row)]);
                let sum = all.get(&begin).map_or(one.clone(), |sum| join([sum, &one]));
                all.insert(begin.clone(), sum);
            }
            let is_root = all.keys().all(Vec::is_empty);
            nodes.extend(all.into_iter().map(|(key, sum)| ((level, key), self.kept(sum))));
            if is_root {
                return (nodes, level);
            }
        }
        unreachable!()
    }
}

fn sum_of<'a>(rows: impl IntoIterator<Item = (&'a Key, &'a Row)>) -> Sum {
    let mut sum = Sum { rows: 0, sum: 0, text: String::new() };
    for (key, (value, _)) in rows {
        sum = Sum { rows: sum.rows + 1, sum: sum.sum + value, text: format!("{}{}/", sum.text, key.last().unwrap()) };
    }
    sum
}

fn join<'a>(sums: impl IntoIterator<Item = &'a Sum>) -> Sum {
    let mut all = sum_of([]);
    for sum in sums {
        all = Sum { rows: all.rows + sum.rows, sum: all.sum + sum.sum, text: all.text + &sum.text };
    }
    all
}

impl Tree for Memory {
    type Row = Row;
    type Summary = Sum;
    type Delta = Delta;
    type Error = Infallible;

    fn value_bytes(&self, row: &Row) -> usize {
        row.1
    }

    async fn rows(&self, range: &KeyRange, limit: usize, reverse: bool) -> Result<TreePage<Row>, Infallible> {
        let end = range.end.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let found = self.rows.range((Bound::Included(range.begin.clone()), end)).map(|(key, row)| (key.clone(), *row));
        Answer(self, None, Some(self.page(found, limit, reverse))).await
    }

    async fn nodes(
        &self,
        level: u8,
        range: &KeyRange,
        limit: usize,
        reverse: bool,
    ) -> Result<TreePage<Sum>, Infallible> {
        let end = range.end.clone().map_or((level + 1, Key::new()), |end| (level, end));
        let found = self.nodes.range((level, range.begin.clone())..end);
        let found = found.map(|((_, key), sum)| (key.clone(), sum.clone()));
        Answer(self, None, Some(self.page(found, limit, reverse))).await
    }

    async fn summaries(&self, of: Vec<Parts<Row, Sum>>) -> Result<Vec<Sum>, Infallible> {
        *self.calls.lock().unwrap() += 1;
        assert!(!of.is_empty());
        let one = |parts| match parts {
            Parts::Rows(rows) => {
                assert!(!rows.is_empty());
                sum_of(rows.iter().map(|(key, row)| (key, row)))
            }
            Parts::Summaries(sums) => {
                assert!(!sums.is_empty());
                join(&sums)
            }
        };
        Ok(of.into_iter().map(one).map(|sum| self.kept(sum)).collect())
    }

    fn adjusted(&self, summary: &Sum, deltas: &[&Delta]) -> Option<Sum> {
        // Some summaries need their rows.
        adjusted(summary, deltas).filter(|after| self.is_counted && (after.rows == 0 || after.sum % 5 > 0))
    }

    fn known(&self, level: u8, range: &KeyRange) -> Option<Vec<(Key, Sum)>> {
        let known = self.known.as_ref()?.lock().unwrap().get(level, range)?;
        let end = range.end.clone().map_or((level + 1, Key::new()), |end| (level, end));
        let stored = self.nodes.range((level, range.begin.clone())..end);
        assert_eq!(known, stored.map(|((_, key), sum)| (key.clone(), sum.clone())).collect::<Vec<_>>());
        Some(known)
    }

    fn learn(&self, level: u8, range: KeyRange, nodes: impl Iterator<Item = (Key, Sum)>) {
        let Some(known) = &self.known else { return };
        known.lock().unwrap().insert(level, range, nodes.map(|(key, sum)| (key, sum, 8)));
    }
}

fn adjusted(summary: &Sum, deltas: &[&Delta]) -> Option<Sum> {
    let mut sum = summary.clone();
    for (rows, value) in deltas {
        sum.rows = sum.rows.checked_add_signed(*rows).unwrap();
        sum.sum = sum.sum.checked_add_signed(*value).unwrap();
    }
    Some(sum)
}

fn shape() -> Shape {
    Shape::new((7, 11), 64)
}

/// Keys of two letters; the rows of one first letter form a group.
fn key() -> impl Strategy<Value = Key> {
    (0..12u8, 0..60u8).prop_map(|(first, second)| vec![first, second])
}

fn batch() -> impl Strategy<Value = Vec<(Key, Option<Row>)>> {
    let row = (0..1000u64, prop_oneof![4 => 0..20usize, 1 => 40..100usize]);
    prop_oneof![
        4 => prop::collection::vec((key(), prop::option::weighted(0.6, row.clone())), 0..40),
        // Removes runs of neighbours, so that levels disappear.
        1 => (0..12u8, 0..12u8).prop_map(|(from, to)| {
            (from..=to).flat_map(|first| (0..60).map(move |second| (vec![first, second], None))).collect()
        }),
    ]
}

fn changes(memory: &Memory, batch: Vec<(Key, Option<Row>)>) -> Vec<RowChange<Row, Delta>> {
    let batch: BTreeMap<Key, Option<Row>> = batch.into_iter().collect();
    let change = |(key, new): (Key, Option<Row>)| {
        let old = memory.rows.get(&key);
        let of = |row: Option<&Row>| (i64::from(row.is_some()), row.map_or(0, |row| row.0 as i64));
        let (before, after) = (of(old), of(new.as_ref()));
        let delta = (key[1] % 7 > 0).then_some((after.0 - before.0, after.1 - before.1));
        RowChange { old_bytes: old.map(|row| row.1), key, new, delta }
    };
    batch.into_iter().map(change).filter(|change| change.old_bytes.is_some() || change.new.is_some()).collect()
}

fn made(batches: Vec<Vec<(Key, Option<Row>)>>, page_max: Option<usize>) -> Memory {
    for known_max in [None, Some(2_000), Some(1 << 20)] {
        made_of(batches.clone(), page_max, true, known_max);
    }
    made_of(batches, page_max, false, None)
}

fn made_of(
    batches: Vec<Vec<(Key, Option<Row>)>>,
    page_max: Option<usize>,
    is_counted: bool,
    known_max: Option<usize>,
) -> Memory {
    let known = known_max.map(|_| Mutex::default());
    let mut memory =
        Memory { page_max, is_counted, known, known_max: known_max.unwrap_or_default(), ..Memory::default() };
    for batch in batches {
        let rows = changes(&memory, batch);
        let (done, _) = memory.run(change(&memory, &shape(), memory.height, rows.clone()));
        memory.apply(rows, done.clone());
        let (nodes, height) = memory.expected(&shape());
        assert_eq!(memory.height, height);
        assert_eq!(memory.nodes, nodes);
        assert_eq!(done.root, nodes.get(&(height, Key::new())).cloned());
    }
    memory
}

fn range() -> impl Strategy<Value = KeyRange> {
    (prop::option::of(key()), prop::option::of(key()))
        .prop_map(|(begin, end)| KeyRange { begin: begin.unwrap_or_default(), end })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn nodes_are_those_of_the_rows_whatever_was_written(
        batches in prop::collection::vec(batch(), 1..12),
        page_max in prop::option::of(1..5usize),
    ) {
        made(batches, page_max);
    }

    #[test]
    fn what_is_built_is_what_changes_make(rows in batch(), more in batch(), limit in 1..50usize) {
        let memory = made(vec![rows, more], None);
        let mut built = Memory { rows: memory.rows.clone(), ..Memory::default() };
        for level in 1.. {
            let mut begin = Key::new();
            let (mut parts, mut is_root) = (0, false);
            loop {
                let (done, _) = built.run(build(&built, &shape(), level, begin, limit));
                parts += 1;
                is_root |= done.is_root;
                // Twice, as after a commit of unknown result.
                for (key, sum) in done.nodes {
                    prop_assert_eq!(built.nodes.insert((level, key), sum), None);
                }
                match done.next {
                    Some(next) => begin = next,
                    None => break,
                }
            }
            let nodes = built.nodes.keys().filter(|(made, _)| *made == level).count();
            prop_assert!(parts <= nodes.max(1));
            if is_root || built.rows.is_empty() {
                built.height = if built.rows.is_empty() { 0 } else { level };
                break;
            }
        }
        prop_assert_eq!(&built.nodes, &memory.nodes);
        prop_assert_eq!(built.height, memory.height);
    }

    /// Builders work at sections in any order, a part each in turn, and die: a part may be built twice. The levels
    /// above are built last.
    #[test]
    fn what_is_built_by_sections_is_what_changes_make(
        rows in batch(),
        more in batch(),
        level in 1..4u8,
        turns in prop::collection::vec((any::<prop::sample::Index>(), 1..50usize, prop::bool::weighted(0.2)), 1..200),
        page_max in prop::option::of(1..5usize),
    ) {
        let memory = made(vec![rows, more], None);
        let mut built = Memory { rows: memory.rows.clone(), page_max, ..Memory::default() };
        let begins = built.rows.iter().filter(|(key, row)| shape().level(key, row.1) >= level);
        let begins: Vec<Key> = std::iter::once(Key::new()).chain(begins.map(|(key, _)| key.clone())).collect();
        let ends: Vec<Option<Key>> = begins.iter().skip(1).cloned().map(Some).chain([None]).collect();
        let section = |begin: &Key| (Section { level, begin: begin.clone(), end: None }, 1, begin.clone());
        let mut left: Vec<_> = begins.iter().map(section).collect();
        let mut height = 0;
        for turn in 0.. {
            if left.is_empty() {
                break;
            }
            let (index, limit, is_lost) = turns[turn % turns.len()];
            let at = index.index(left.len());
            let (section, at_level, begin) = &mut left[at];
            let (done, _) = built.run(build_section(&built, &shape(), *at_level, section, begin.clone(), limit));
            let is_root = done.is_root && !done.nodes.is_empty();
            for (key, sum) in done.nodes {
                built.nodes.insert((*at_level, key), sum);
            }
            if is_lost && turn < turns.len() {
                continue;
            }
            section.end = done.end;
            match done.next {
                Some(next) => *begin = next,
                None => {
                    let place = begins.iter().position(|begin| *begin == section.begin).unwrap();
                    prop_assert_eq!(&section.end, &ends[place]);
                    (*at_level, *begin) = (*at_level + 1, section.begin.clone());
                    if is_root {
                        prop_assert_eq!(begins.len(), 1);
                        height = *at_level - 1;
                    }
                    if is_root || *at_level > level {
                        left.swap_remove(at);
                    }
                }
            }
        }
        let mut above = level;
        while height == 0 && !built.rows.is_empty() {
            above += 1;
            let mut next = Some(Key::new());
            while let Some(begin) = next {
                let (done, _) = built.run(build(&built, &shape(), above, begin, 20));
                built.nodes.extend(done.nodes.into_iter().map(|(key, sum)| ((above, key), sum)));
                height = if done.is_root { above } else { 0 };
                next = done.next;
            }
        }
        prop_assert_eq!(&built.nodes, &memory.nodes);
        prop_assert_eq!(height, memory.height);
    }

    #[test]
    fn ranges_are_what_their_rows_are(
        batches in prop::collection::vec(batch(), 1..5),
        range in range(),
        page_max in prop::option::of(1..5usize),
    ) {
        let memory = made(batches, page_max);
        let within: Vec<(&Key, &Row)> = memory.rows.iter().filter(|(key, _)| range.contains(key)).collect();
        let expected = (!within.is_empty()).then(|| sum_of(within.iter().copied()));
        let (found, _) = memory.run(cover(&memory, &shape(), memory.height, &range));
        prop_assert_eq!(found, expected);
        let (rows, _) = memory.run(count(&memory, &shape(), memory.height, &range));
        prop_assert_eq!(rows, within.len() as u64);
    }

    #[test]
    fn a_row_is_found_by_its_number(batches in prop::collection::vec(batch(), 1..4)) {
        let memory = made(batches, None);
        for (number, key) in memory.rows.keys().enumerate() {
            let (found, _) = memory.run(nth(&memory, memory.height, number as u64));
            prop_assert_eq!(found.as_ref(), Some(key));
        }
        prop_assert_eq!(memory.run(nth(&memory, memory.height, memory.rows.len() as u64)).0, None);
    }

    #[test]
    fn groups_are_what_their_rows_are(
        batches in prop::collection::vec(batch(), 1..5),
        range in range(),
        limit in 1..15usize,
    ) {
        let memory = made(batches, None);
        let mut expected: Vec<(Key, Sum)> = Vec::new();
        for (key, row) in memory.rows.iter().filter(|(key, _)| range.contains(key)) {
            let one = sum_of([(key, row)]);
            match expected.last_mut() {
                Some((first, sum)) if first[0] == key[0] => *sum = join([&*sum, &one]),
                _ => expected.push((key.clone(), one)),
            }
        }
        for reverse in [false, true] {
            let (mut found, mut rest) = (Vec::new(), range.clone());
            loop {
                let together = |a: &[u8], b: &[u8]| a[0] == b[0];
                let (page, _) = memory.run(groups(&memory, &shape(), memory.height, &rest, limit, reverse, together));
                prop_assert!(page.groups.len() <= limit);
                prop_assert!(page.next.is_none() || page.groups.len() == limit);
                for group in page.groups {
                    let row = group.first_row.map(|row| (group.first.clone(), row));
                    prop_assert!(row.is_none_or(|(key, row)| memory.rows.get(&key) == Some(&row)));
                    found.push((group.first, group.summary));
                }
                match page.next {
                    Some(next) if reverse => rest.end = Some(next),
                    Some(next) => rest.begin = next,
                    None => break,
                }
            }
            if reverse {
                found.reverse();
            }
            prop_assert_eq!(&found, &expected);
        }
    }
}

/// The costs promised by the design, for a tree of 200,000 rows in 1,000 groups.
#[test]
fn costs_are_those_of_the_depth() {
    let shape = Shape::new((7, 11), 16 * 20);
    let mut memory = Memory::default();
    let key = |number: u64| [&(number / 200).to_be_bytes()[4..], &number.to_be_bytes()].concat();
    memory.rows = (0..200_000).map(|number| (key(number), (number, 8))).collect();
    // Digests of all rows would take the test's time.
    for level in 1.. {
        let (done, _) = memory.run(build(&Counts(&memory), &shape, level, Key::new(), 1 << 40));
        memory.nodes.extend(done.nodes.into_iter().map(|(key, sum)| ((level, key), sum)));
        if done.is_root {
            memory.height = level;
            break;
        }
    }
    assert_eq!(memory.height, 5);
    let counts = Counts(&memory);
    let (mut parts, mut next) = (0, Some(Key::new()));
    while let Some(begin) = next {
        next = memory.run(build(&counts, &shape, 1, begin, 1_000)).0.next;
        parts += 1;
    }
    assert!(parts <= 205, "{parts}");

    let (mut read_most, mut waits_most, mut read_all) = (0, 0, 0);
    for begin in (1..200_000).step_by(1_001) {
        memory.read.store(0, Ordering::Relaxed);
        let range = KeyRange { begin: key(begin), end: Some(key(begin + (200_000 - begin) * 9 / 10)) };
        let (found, waits) = memory.run(count(&counts, &shape, memory.height, &range));
        assert_eq!(found, (200_000 - begin) * 9 / 10);
        let read = memory.read.load(Ordering::Relaxed);
        (read_most, waits_most, read_all) = (read_most.max(read), waits_most.max(waits), read_all + read);
    }
    println!("a range: {waits_most} waits at most, {read_most} entries, {} in the mean", read_all / 200);
    assert!(waits_most <= 3 && read_most <= 1_300, "{waits_most} {read_most}");

    memory.read.store(0, Ordering::Relaxed);
    let (found, waits) = memory.run(nth(&counts, memory.height, 180_000));
    assert_eq!(found, Some(key(180_000)));
    let read = memory.read.load(Ordering::Relaxed);
    println!("a row by its number: {waits} waits, {read} entries");
    assert!(waits == 5 && read <= 500, "{waits} {read}");

    memory.read.store(0, Ordering::Relaxed);
    let together = |a: &[u8], b: &[u8]| a[..4] == b[..4];
    let (found, waits) = memory.run(groups(&counts, &shape, memory.height, &KeyRange::all(), 2_000, false, together));
    assert!(found.groups.len() == 1_000 && found.groups.iter().all(|group| group.summary.rows == 200));
    let read = memory.read.load(Ordering::Relaxed);
    println!("1,000 groups: {waits} waits, {read} entries");
    assert!(waits <= 16 && read <= 60_000, "{waits} {read}");

    // If the deltas suffice, no row is read.
    for (rows, delta, reads_most, waits_wanted) in [(1, None, 5, 5), (500, None, 800, 5), (500, Some((0, 0)), 250, 4)] {
        memory.reads.store(0, Ordering::Relaxed);
        let rows: Vec<RowChange<Row, Delta>> = (0..rows)
            .map(|n| RowChange { key: key(n * 399 + 7), old_bytes: Some(8), new: Some((0, 8)), delta })
            .collect();
        let read_before = memory.read.load(Ordering::Relaxed);
        let changed = rows.len();
        let (done, waits) = memory.run(change(&counts, &shape, memory.height, rows));
        let reads = memory.reads.load(Ordering::Relaxed);
        let read = memory.read.load(Ordering::Relaxed) - read_before;
        println!("{changed} rows changed: {waits} waits, {reads} reads, {read} entries, {} nodes", done.nodes.len());
        assert!(waits == waits_wanted && reads <= reads_most, "{waits} {reads}");
    }
}

struct Counts<'a>(&'a Memory);

impl Tree for Counts<'_> {
    type Row = Row;
    type Summary = Sum;
    type Delta = Delta;
    type Error = Infallible;

    fn value_bytes(&self, row: &Row) -> usize {
        row.1
    }

    async fn rows(&self, range: &KeyRange, limit: usize, reverse: bool) -> Result<TreePage<Row>, Infallible> {
        self.0.rows(range, limit, reverse).await
    }

    async fn nodes(
        &self,
        level: u8,
        range: &KeyRange,
        limit: usize,
        reverse: bool,
    ) -> Result<TreePage<Sum>, Infallible> {
        self.0.nodes(level, range, limit, reverse).await
    }

    async fn summaries(&self, of: Vec<Parts<Row, Sum>>) -> Result<Vec<Sum>, Infallible> {
        let one = |parts: Parts<Row, Sum>| match parts {
            Parts::Rows(rows) => Sum { rows: rows.len() as u64, ..sum_of([]) },
            Parts::Summaries(sums) => Sum { rows: sums.iter().map(|sum| sum.rows).sum(), ..sum_of([]) },
        };
        Ok(of.into_iter().map(one).collect())
    }

    fn adjusted(&self, summary: &Sum, deltas: &[&Delta]) -> Option<Sum> {
        adjusted(summary, deltas)
    }
}
