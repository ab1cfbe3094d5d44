//! Random transactions against a model: versions of a `BTreeMap`, and a serial check of conflicts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use crate::common::{commit, open, promise, range, wait};
use fdb_embedded::{Engine, Error, KeySelector, OpenOptions, RangeOptions, Transaction};
use proptest::prelude::*;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Keys of all kinds: empty, prefixes of each other, longer than an LMDB key, different only past that.
fn keys() -> Vec<Vec<u8>> {
    let long = |len: usize, tail: &[u8]| [&vec![b'm'; len][..], tail].concat();
    let mut keys = vec![
        vec![],
        vec![0],
        b"a".to_vec(),
        b"a\0".to_vec(),
        b"b".to_vec(),
        long(1_980, b""),
        long(1_981, b""),
        long(1_981, b"\0"),
        long(1_982, b"x"),
        long(9_000, b"y"),
        long(9_999, b"z"),
        b"n".to_vec(),
        vec![0xfe; 4],
    ];
    keys.sort();
    keys
}

/// The time at which the records of a cleared range are removed, which no reader may notice.
#[derive(Clone, Copy, Debug)]
enum Clearing {
    AtOnce,
    /// Never: all records stay hidden.
    Pending,
    InBackground,
}

impl Clearing {
    fn options(self) -> OpenOptions {
        let mut options = OpenOptions::default();
        options.is_removal_paused = matches!(self, Clearing::Pending);
        options.clear_records_max = match self {
            Clearing::AtOnce => None,
            Clearing::Pending => Some(0),
            Clearing::InBackground => Some(1),
        };
        options
    }
}

#[derive(Clone, Debug)]
enum Action {
    Begin,
    Get(usize, bool),
    Range(usize, usize, bool),
    Select(usize, bool, i32),
    Set(usize, Vec<u8>),
    Clear(usize),
    ClearRange(usize, usize),
    Add(usize, u8),
    CompareAndClear(usize, u8),
    Commit,
    Reset,
}

fn action() -> impl Strategy<Value = Action> {
    let at = || 0..keys().len();
    prop_oneof![
        2 => Just(Action::Begin),
        4 => (at(), any::<bool>()).prop_map(|(k, s)| Action::Get(k, s)),
        3 => (at(), at(), any::<bool>()).prop_map(|(a, b, r)| Action::Range(a.min(b), a.max(b), r)),
        2 => (at(), any::<bool>(), -3i32..4).prop_map(|(k, e, o)| Action::Select(k, e, o)),
        5 => (at(), prop::collection::vec(0u8..3, 0..3)).prop_map(|(k, v)| Action::Set(k, v)),
        2 => at().prop_map(Action::Clear),
        2 => (at(), at()).prop_map(|(a, b)| Action::ClearRange(a.min(b), a.max(b))),
        3 => (at(), 0u8..3).prop_map(|(k, n)| Action::Add(k, n)),
        2 => (at(), 0u8..3).prop_map(|(k, n)| Action::CompareAndClear(k, n)),
        4 => Just(Action::Commit),
        1 => Just(Action::Reset),
    ]
}

/// A key's state in a transaction: whether a read of it depends on the stored value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Own {
    Untouched,
    Independent,
    Dependent,
}

struct Modelled {
    transaction: Transaction,
    /// The number of commits in its snapshot; fixed by the first read that its own writes do not answer.
    seen: Option<usize>,
    /// The snapshot with the own writes; without a snapshot, the own writes alone.
    view: Map,
    /// Changes to apply to the newest state at the commit.
    writes: Vec<Action>,
    own: Vec<Own>,
    read: BTreeSet<usize>,
    written: BTreeSet<usize>,
    /// True if `compare_and_clear` was used: the client counts such keys in selectors though they have no value.
    has_phantoms: bool,
}

fn apply(map: &mut Map, keys: &[Vec<u8>], action: &Action) {
    match action {
        Action::Set(k, value) => drop(map.insert(keys[*k].clone(), value.clone())),
        Action::Clear(k) => drop(map.remove(&keys[*k])),
        Action::ClearRange(a, b) => map.retain(|key, _| *key < keys[*a] || *key >= keys[*b]),
        Action::Add(k, n) => {
            let sum = map.get(&keys[*k]).and_then(|value| value.first()).copied().unwrap_or(0).wrapping_add(*n);
            map.insert(keys[*k].clone(), vec![sum]);
        }
        Action::CompareAndClear(k, n) if map.get(&keys[*k]).is_some_and(|value| *value == [*n]) => {
            map.remove(&keys[*k]);
        }
        _ => {}
    }
}

/// The segments of the key space that a range touches: `2 * at` is a key, `2 * at + 1` the gap after it.
fn inside(keys: &[Vec<u8>], begin: &[u8], end: &[u8]) -> Vec<usize> {
    let segment = |segment: &usize| {
        let key = &keys[segment / 2];
        let after = [&key[..], &[0]].concat();
        let next = keys.get(segment / 2 + 1).cloned().unwrap_or(b"\xff\xff".to_vec());
        let (from, to) = if segment.is_multiple_of(2) { (key.clone(), after) } else { (after, next) };
        from.as_slice().max(begin) < to.as_slice().min(end)
    };
    (0..2 * keys.len()).filter(segment).collect()
}

/// The segments that a selector passes from its base to its result.
fn segments_to(keys: &[Vec<u8>], base: &[u8], found: &[u8], offset: i32) -> Vec<usize> {
    let after = [found, &[0]].concat();
    if offset > 0 { inside(keys, base, &after) } else { inside(keys, found, base) }
}

impl Modelled {
    fn new(engine: &Engine, keys: &[Vec<u8>]) -> Modelled {
        Modelled {
            transaction: engine.transaction(),
            seen: None,
            view: Map::new(),
            writes: Vec::new(),
            own: vec![Own::Untouched; 2 * keys.len()],
            read: BTreeSet::new(),
            written: BTreeSet::new(),
            has_phantoms: false,
        }
    }

    fn begin_reading(&mut self, history: &[(Map, BTreeSet<usize>)], keys: &[Vec<u8>]) {
        if self.seen.is_none() {
            self.seen = Some(history.len());
            self.view = history.last().map(|(map, _)| map.clone()).unwrap_or_default();
            for action in &self.writes {
                apply(&mut self.view, keys, action);
            }
        }
    }

    /// Records a read of these segments.
    fn look(&mut self, read: &[usize], history: &[(Map, BTreeSet<usize>)], keys: &[Vec<u8>]) {
        if read.iter().any(|&at| self.own[at] != Own::Independent) {
            self.begin_reading(history, keys);
        }
    }

    /// Resolves a selector. Returns its key and the segments that it passes.
    fn select(&self, selector: KeySelector<'_>, keys: &[Vec<u8>]) -> (Vec<u8>, Vec<usize>) {
        let base = if selector.or_equal { [selector.key, &[0]].concat() } else { selector.key.to_vec() };
        let all: Vec<_> = self.view.keys().collect();
        let first = all.partition_point(|key| **key < base) as i64;
        let found = match usize::try_from(first + i64::from(selector.offset) - 1) {
            Err(_) => Vec::new(),
            Ok(at) => all.get(at).map_or(vec![0xff], |key| key.to_vec()),
        };
        let segments = segments_to(keys, &base, &found, selector.offset);
        (found, segments)
    }

    fn depends_on(&mut self, read: impl IntoIterator<Item = usize>) {
        self.read.extend(read.into_iter().filter(|&at| self.own[at] != Own::Independent));
    }

    fn write(&mut self, keys: &[Vec<u8>], action: &Action) {
        let (touched, is_dependent) = match action {
            Action::Set(k, _) | Action::Clear(k) => (vec![2 * k], false),
            Action::ClearRange(a, b) => (inside(keys, &keys[*a], &keys[*b]), false),
            Action::Add(k, _) | Action::CompareAndClear(k, _) => (vec![2 * k], true),
            _ => return,
        };
        for at in touched {
            self.written.insert(at);
            self.own[at] = match (is_dependent, self.own[at]) {
                (false, _) | (true, Own::Independent) => Own::Independent,
                (true, _) => Own::Dependent,
            };
        }
        self.writes.push(action.clone());
        apply(&mut self.view, keys, action);
    }
}

fn check(clearing: Clearing, actions: Vec<(usize, Action)>) -> Result<(), TestCaseError> {
    let keys = keys();
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(dir.path(), clearing.options()).unwrap();
    let mut history: Vec<(Map, BTreeSet<usize>)> = Vec::new();
    let mut open: Vec<Modelled> = (0..3).map(|_| Modelled::new(&engine, &keys)).collect();
    for (which, action) in actions {
        let modelled = &mut open[which];
        match &action {
            Action::Begin => {
                modelled.begin_reading(&history, &keys);
                modelled.transaction.get_read_version().unwrap();
            }
            Action::Get(k, snapshot) => {
                modelled.look(&[2 * k], &history, &keys);
                let found = modelled.transaction.get(&keys[*k], *snapshot).unwrap();
                prop_assert_eq!(found.as_ref(), modelled.view.get(&keys[*k]));
                if !snapshot {
                    modelled.depends_on([2 * k]);
                }
            }
            Action::Range(a, b, reverse) => {
                let segments = inside(&keys, &keys[*a], &keys[*b]);
                modelled.look(&segments, &history, &keys);
                let options = RangeOptions { reverse: *reverse, ..RangeOptions::default() };
                let found = range(&modelled.transaction, &keys[*a], &keys[*b], &options).unwrap();
                let view = modelled.view.range(keys[*a].clone()..keys[*b].clone());
                let mut expected: Vec<_> = view.map(|(key, value)| (key.clone(), value.clone())).collect();
                if *reverse {
                    expected.reverse();
                }
                prop_assert_eq!(found, expected);
                modelled.depends_on(segments);
            }
            Action::Select(k, or_equal, offset) => {
                let selector = KeySelector { key: &keys[*k], or_equal: *or_equal, offset: *offset };
                if modelled.has_phantoms {
                    modelled.begin_reading(&history, &keys);
                    modelled.transaction.get_read_version().unwrap();
                }
                let (_, segments) = modelled.select(selector, &keys);
                modelled.look(&segments, &history, &keys);
                let found = modelled.transaction.get_key(selector, false).unwrap();
                let (expected, _) = modelled.select(selector, &keys);
                if !modelled.has_phantoms {
                    prop_assert_eq!(&found, &expected);
                }
                let base = if *or_equal { [&keys[*k][..], &[0]].concat() } else { keys[*k].clone() };
                modelled.depends_on(segments_to(&keys, &base, &found, *offset));
            }
            Action::Set(k, value) => modelled.transaction.set(&keys[*k], value),
            Action::Clear(k) => modelled.transaction.clear(&keys[*k]),
            Action::ClearRange(a, b) => modelled.transaction.clear_range(&keys[*a], &keys[*b]),
            Action::Add(k, n) => modelled.transaction.atomic_op(&keys[*k], &[*n], 2),
            Action::CompareAndClear(k, n) => {
                modelled.has_phantoms = true;
                modelled.transaction.atomic_op(&keys[*k], &[*n], 20);
            }
            Action::Reset => {
                modelled.transaction.reset();
                *modelled = Modelled::new(&engine, &keys);
            }
            Action::Commit => {
                let since = &history[modelled.seen.unwrap_or(history.len())..];
                let is_read_only = modelled.written.is_empty();
                let conflicts = since.iter().any(|(_, written)| !written.is_disjoint(&modelled.read)) && !is_read_only;
                let expected = if conflicts { Err(Error::NOT_COMMITTED) } else { Ok(()) };
                prop_assert_eq!(commit(&modelled.transaction), expected);
                if !conflicts && !is_read_only {
                    let mut map = history.last().map(|(map, _)| map.clone()).unwrap_or_default();
                    for action in &modelled.writes {
                        apply(&mut map, &keys, action);
                    }
                    history.push((map, modelled.written.clone()));
                }
                *modelled = Modelled::new(&engine, &keys);
            }
        }
        modelled.write(&keys, &action);
    }
    let all = range(&engine.transaction(), b"", b"\xff", &RangeOptions::default()).unwrap();
    let expected: Vec<_> = history.last().map(|(map, _)| map.clone()).unwrap_or_default().into_iter().collect();
    prop_assert_eq!(all, expected);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn interleaved_transactions_answer_as_the_model(
        clearing in prop::sample::select(vec![Clearing::AtOnce, Clearing::Pending, Clearing::InBackground]),
        actions in prop::collection::vec((0usize..3, action()), 1..120)
    ) {
        check(clearing, actions)?;
    }
}

/// The reads and writes of committed transactions by versionstamp.
type Committed = BTreeMap<[u8; 10], (Vec<(u8, Option<Vec<u8>>)>, Vec<(u8, Vec<u8>)>)>;

#[test]
fn concurrent_transactions_are_serializable_in_the_order_of_their_stamps() {
    const THREADS: u64 = 4;
    const COMMITS: u64 = 300;
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let committed: Arc<Mutex<Committed>> = Arc::default();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (engine, committed) = (&engine, Arc::clone(&committed));
            scope.spawn(move || {
                let mut seed = thread + 1;
                let mut random = move |below: u64| {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (seed >> 33) % below
                };
                for number in 0..COMMITS {
                    let transaction = engine.transaction();
                    loop {
                        let (mut reads, mut writes) = (BTreeMap::new(), BTreeMap::new());
                        for _ in 0..1 + random(3) {
                            let key = random(12) as u8;
                            reads.entry(key).or_insert_with(|| transaction.get(&[key], false).unwrap());
                        }
                        for _ in 0..1 + random(3) {
                            let key = random(12) as u8;
                            let value = [thread.to_le_bytes(), number.to_le_bytes()].concat();
                            transaction.set(&[key], &value);
                            writes.insert(key, value);
                        }
                        let (done, stamp) = promise();
                        transaction.get_versionstamp(done);
                        match commit(&transaction) {
                            Ok(()) => {
                                let entry = (reads.into_iter().collect(), writes.into_iter().collect());
                                let earlier = committed.lock().unwrap().insert(wait(&stamp).unwrap(), entry);
                                assert!(earlier.is_none(), "a versionstamp was given twice");
                                break;
                            }
                            Err(Error(code)) => crate::common::on_error(&transaction, code).unwrap(),
                        }
                    }
                }
            });
        }
    });
    let mut state: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
    let committed = committed.lock().unwrap();
    assert_eq!(committed.len() as u64, THREADS * COMMITS);
    for (stamp, (reads, writes)) in committed.iter() {
        for (key, value) in reads {
            assert_eq!(state.get(key), value.as_ref(), "a stale read of {key} at {stamp:?}");
        }
        state.extend(writes.iter().cloned());
    }
    let stats = engine.stats();
    assert!(stats.conflicts > 0, "nothing ever conflicted");
    assert!(stats.batches <= stats.commits);
}
