//! Writes and reads of each key, and of the end of each range of keys.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use fdb_embedded::{KeyAccess, KeyObserver, METADATA_VERSION_KEY};

/// The first numbers of keys under a root, with their names.
const NAMES: [(u64, &str); 16] = [
    (0, "instance"),
    (1, "records of databases"),
    (2, "next namespace"),
    (DATA, "data"),
    (4, "log of databases"),
    (8, "marks of operations"),
    (10, "stamps of databases"),
    (11, "newest stamps"),
    (16, "leases of slices and builders"),
    (17, "due work"),
    (19, "secrets"),
    (20, "stored settings"),
    (21, "Firefox Sync"),
    (22, "replicator databases"),
    (23, "log of records"),
    (25, "access versions"),
];

/// The number of the data of all databases, under a root.
const DATA: u64 = 3;

/// The first numbers of keys of a database, with their names.
const NAMES_INSIDE: [&str; 20] = [
    "counters",
    "fields",
    "documents",
    "by_seq",
    "all_docs",
    "blobs",
    "staged",
    "local documents",
    "attachment data",
    "attachment uses",
    "purges",
    "leases",
    "released",
    "indexes and views",
    "compacted",
    "buckets",
    "partitions",
    "channels",
    "principals",
    "bytes of local documents",
];

thread_local! {
    static CALLER: Cell<u64> = const { Cell::new(0) };
}

/// A future whose reads and commits are those of a caller.
pub struct Called<'a, T>(pub u64, pub Pin<Box<dyn Future<Output = T> + 'a>>);

impl<T> Future for Called<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let before = CALLER.replace(self.0);
        let polled = self.1.as_mut().poll(context);
        CALLER.set(before);
        polled
    }
}

/// The databases that use a key or a range.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Owner {
    /// Only background work.
    #[default]
    Background,
    One(u64),
    Several,
}

impl Owner {
    fn add(&mut self, caller: u64) {
        *self = match (*self, caller) {
            (owner, 0) => owner,
            (Owner::Background, _) => Owner::One(caller),
            (Owner::One(owner), _) if owner == caller => *self,
            _ => Owner::Several,
        };
    }
}

#[derive(Debug, Clone, Default)]
struct KeyCount {
    count: u64,
    owner: Owner,
}

/// The end of the keys under a prefix.
#[derive(Debug, Default)]
struct RangeEnd {
    last: Vec<u8>,
    /// Writes behind all earlier keys, of this number.
    moves: u64,
    writes: u64,
    owner: Owner,
}

#[derive(Debug, Default)]
struct Counts {
    operations: u64,
    writes: HashMap<Vec<u8>, KeyCount>,
    reads: HashMap<Vec<u8>, KeyCount>,
    ends: HashMap<Vec<u8>, RangeEnd>,
}

/// A key or a range that receives too much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Heat {
    /// Writes of one key.
    Key,
    /// Writes behind all earlier keys of a range.
    End,
    /// Reads of one key, or of ranges that begin with it.
    Read,
}

impl Heat {
    /// Returns its name in the table of exceptions.
    pub fn name(self) -> &'static str {
        match self {
            Heat::Key => "key",
            Heat::End => "end",
            Heat::Read => "read",
        }
    }
}

/// A key or the end of a range that receives too much.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HotSpot {
    pub heat: Heat,
    /// The name of the subspace.
    pub keys: String,
    pub count: u64,
    pub key: String,
    /// False for at most its share: counts vary from run to run, and what comes near it has its row as well.
    pub is_hot: bool,
}

/// The counts of a store's keys.
#[derive(Clone, Default)]
pub struct Tally(Arc<Mutex<Counts>>);

impl Tally {
    /// Returns the observer that counts here.
    pub fn observer(&self) -> KeyObserver {
        let tally = self.clone();
        KeyObserver::new(|| CALLER.get(), move |caller, access| tally.count(caller, access))
    }

    fn counts(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an operation.
    pub fn operation(&self) {
        self.counts().operations += 1;
    }

    fn count(&self, caller: u64, access: KeyAccess<'_>) {
        let counts = &mut *self.counts();
        match access {
            KeyAccess::Read(key) | KeyAccess::ReadRange(key, _) => {
                counts.reads.entry(key.to_vec()).or_default().add(caller)
            }
            KeyAccess::Write(key) => counts.write(caller, key),
            KeyAccess::ClearRange(begin, end) => [begin, end].into_iter().for_each(|key| counts.write(caller, key)),
        }
    }

    /// Ends a phase: later counts begin at nothing. Prints its hottest prefixes, and returns the keys and ends of ranges
    /// outside of a single database that received more than one access in ten times `share` operations; none if that is 0. The key that comes with the read version may be read by all.
    pub fn end(&self, phase: &str, share: u64) -> Vec<HotSpot> {
        let counts = &mut *self.counts();
        let operations = std::mem::take(&mut counts.operations);
        let (writes, reads) = (std::mem::take(&mut counts.writes), std::mem::take(&mut counts.reads));
        println!("{phase}: {operations} operations");
        print_hottest("writes", &writes);
        print_hottest("reads", &reads);
        let is_near = |count: u64| count.saturating_mul(10 * share) > operations;
        let is_hot = |count: u64| count.saturating_mul(share) > operations;
        let mut spots = Vec::new();
        for (heat, keys) in [(Heat::Key, &writes), (Heat::Read, &reads)] {
            let hot = keys.iter().filter(|(key, found)| {
                is_near(found.count)
                    && is_shared(key, found.owner)
                    && !(heat == Heat::Read && *key == METADATA_VERSION_KEY)
            });
            spots.extend(hot.map(|(key, found)| spot(heat, key, found.count, is_hot(found.count))));
        }
        for (prefix, end) in &mut counts.ends {
            let (moves, writes) = (std::mem::take(&mut end.moves), std::mem::take(&mut end.writes));
            if is_near(moves) && is_moving(moves, writes) && is_shared(prefix, end.owner) {
                spots.push(spot(Heat::End, prefix, moves, is_hot(moves)));
            }
        }
        spots.sort();
        for group in spots.chunk_by(|one, other| (one.heat, &one.keys) == (other.heat, &other.keys)) {
            if let Some(HotSpot { heat, keys, count, key, .. }) = group.iter().max_by_key(|spot| spot.count) {
                println!("  hot: {} of {keys}: {}, the hottest {key}: {count}", heat.name(), group.len());
            }
        }
        spots
    }

    /// Ends a phase in a single database. Returns the keys that received more than one write in `share` operations.
    pub fn end_inside(&self, phase: &str, share: u64) -> Vec<HotSpot> {
        let counts = &mut *self.counts();
        let operations = std::mem::take(&mut counts.operations);
        let writes = std::mem::take(&mut counts.writes);
        let reads = std::mem::take(&mut counts.reads);
        println!("{phase}: {operations} operations");
        print_hottest("writes", &writes);
        print_hottest("reads", &reads);
        let hot = writes.iter().filter(|(_, found)| found.count.saturating_mul(share) > operations);
        let mut spots: Vec<_> = hot.map(|(key, found)| spot(Heat::Key, key, found.count, true)).collect();
        spots.sort();
        spots
    }
}

impl KeyCount {
    fn add(&mut self, caller: u64) {
        self.count += 1;
        self.owner.add(caller);
    }
}

impl Counts {
    fn write(&mut self, caller: u64, key: &[u8]) {
        self.writes.entry(key.to_vec()).or_default().add(caller);
        // Prefixes within a single database are left out.
        let most = if number(key, 1) == Some(DATA) { 2 } else { usize::MAX };
        for end in ends(key).into_iter().take(most) {
            let prefix = &key[..end];
            let range = match self.ends.get_mut(prefix) {
                Some(range) => range,
                None => self.ends.entry(prefix.to_vec()).or_default(),
            };
            range.owner.add(caller);
            range.writes += 1;
            if key > &range.last[..] {
                range.moves += 1;
                range.last = key.to_vec();
            }
        }
    }
}

fn spot(heat: Heat, key: &[u8], count: u64, is_hot: bool) -> HotSpot {
    HotSpot { heat, keys: name(key), count, key: text(key), is_hot }
}

/// Returns whether more writes are behind all earlier keys than random keys have, whose maximum changes some ln(n) times.
fn is_moving(moves: u64, writes: u64) -> bool {
    moves as f64 > 4.0 + 3.0 * (writes.max(1) as f64).ln()
}

fn is_shared(key: &[u8], owner: Owner) -> bool {
    !is_inside(key) && owner == Owner::Several
}

/// Returns whether a key or prefix is a single database's.
fn is_inside(key: &[u8]) -> bool {
    number(key, 1) == Some(DATA) && ends(key).len() > 2
}

/// Prints the prefixes with the most accesses, and the hottest key of each.
fn print_hottest(what: &str, keys: &HashMap<Vec<u8>, KeyCount>) {
    const PRINTED: usize = 10;
    let mut prefixes = BTreeMap::<String, (u64, u64, &[u8])>::new();
    for (key, found) in keys {
        let (count, hottest, at) = prefixes.entry(name(key)).or_default();
        *count += found.count;
        if found.count > *hottest {
            (*hottest, *at) = (found.count, key.as_slice());
        }
    }
    let mut prefixes: Vec<_> = prefixes.into_iter().collect();
    prefixes.sort_by_key(|(_, (count, ..))| std::cmp::Reverse(*count));
    for (name, (count, hottest, key)) in prefixes.into_iter().take(PRINTED) {
        println!("  {what} {count:>8} {name}; {hottest} of {}", text(key));
    }
}

/// Returns the name of a key's subspace.
fn name(key: &[u8]) -> String {
    let named = |number: u64| NAMES.iter().find(|(other, _)| *other == number).map_or("unknown", |(_, name)| name);
    match (number(key, 1), number(key, 3)) {
        (None, _) => text(key),
        (Some(DATA), Some(inside)) => {
            let inside = usize::try_from(inside).ok().and_then(|inside| NAMES_INSIDE.get(inside));
            format!("a database's {}", inside.unwrap_or(&"unknown keys"))
        }
        (Some(outside), _) => named(outside).to_owned(),
    }
}

/// Returns the ends of a key's elements. An element that is no tuple's extends to the end.
fn ends(key: &[u8]) -> Vec<usize> {
    let (mut ends, mut at) = (Vec::new(), 0);
    while let Some(&code) = key.get(at) {
        let rest = &key[at + 1..];
        let len = match code {
            0x00 => Some(0),
            0x01 | 0x02 => {
                let is_end = |at: &usize| rest[*at] == 0 && rest.get(at + 1) != Some(&0xff);
                (0..rest.len()).find(is_end).map(|end| end + 1)
            }
            0x0c..=0x1c => Some(usize::from(code.abs_diff(0x14))),
            0x21 => Some(8),
            0x30 => Some(16),
            0x33 => Some(12),
            _ => None,
        };
        at = len.map_or(key.len(), |len| at + 1 + len).min(key.len());
        ends.push(at);
    }
    ends
}

/// Returns the element at a place, if it is a number.
fn number(key: &[u8], place: usize) -> Option<u64> {
    let ends = ends(key);
    let (begin, end) = (place.checked_sub(1).map_or(Some(&0), |before| ends.get(before))?, ends.get(place)?);
    let element = &key[*begin..*end];
    let (code, bytes) = element.split_first()?;
    let is_number = (0x14..=0x1c).contains(code) && bytes.len() == usize::from(code - 0x14);
    is_number.then(|| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// Returns a key as text, without its root.
fn text(key: &[u8]) -> String {
    let ends = ends(key);
    if key.first() != Some(&1) {
        return key.escape_ascii().to_string();
    }
    let mut text = String::from("{root}");
    for place in 1..ends.len() {
        match number(key, place) {
            Some(number) => write!(text, "/{number}"),
            None => write!(text, "/{}", key[ends[place - 1]..ends[place]].escape_ascii()),
        }
        .expect("a text takes all");
    }
    text
}

#[test]
fn keys_are_divided_into_elements() {
    let key = |tail: &[u8]| [b"\x01fb\x00", tail].concat();
    let inside = key(b"\x15\x03\x16\x01\x00\x15\x02\x02d\x00\xffx\x00\x14");
    assert_eq!(ends(&inside).len(), 6);
    assert_eq!(text(&inside), "{root}/3/256/2/\\x02d\\x00\\xffx\\x00/0");
    assert!(is_inside(&inside) && is_inside(&inside[..9]) && !is_inside(&inside[..6]));
    assert_eq!(name(&inside), "a database's documents");
    assert_eq!(name(b"\xff/metadataVersion"), text(b"\xff/metadataVersion"));
    let stamped = key(b"\x15\x04\x33ABCDEFGHIJKL");
    assert_eq!((ends(&stamped).len(), number(&stamped, 1)), (3, Some(4)));
}

#[test]
fn a_hot_key_a_moving_end_and_a_hot_read_are_seen() {
    let key = |number: u8, tail: &[u8]| [b"\x01t\x00\x15", &[number][..], tail].concat();
    let tally = Tally::default();
    for number in 1..=100_u8 {
        tally.operation();
        let caller = u64::from(number);
        tally.count(caller, KeyAccess::Write(&key(11, b"")));
        tally.count(caller, KeyAccess::Write(&key(17, &[0x15, number])));
        tally.count(caller, KeyAccess::Read(&key(9, b"")));
        // Each database's own keys, in the order of a hash, and a counter of one database.
        tally.count(caller, KeyAccess::Write(&key(10, &[0x15, number.wrapping_mul(158)])));
        tally.count(5, KeyAccess::Write(&key(3, b"\x15\x07\x14")));
    }
    let found: Vec<_> = tally.end("test", 10).into_iter().map(|spot| (spot.heat, spot.key, spot.count)).collect();
    let expected = [
        (Heat::Key, "{root}/11".to_owned(), 100),
        (Heat::End, "{root}/17".to_owned(), 100),
        (Heat::End, "{root}".to_owned(), 101),
        (Heat::Read, "{root}/9".to_owned(), 100),
    ];
    assert_eq!(found, expected);
    assert!(tally.end("nothing", 10).is_empty());
}
