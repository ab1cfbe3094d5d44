//! A transaction as FoundationDB's documentation describes it, on a `BTreeMap`.

use std::collections::{BTreeMap, BTreeSet};

use super::plan::{Action, Limits, Read, Selector, Transaction, Write};
use super::ranges::{Ranges, key_after};

pub type Map = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Value(Option<Vec<u8>>),
    Key(Vec<u8>),
    Pairs(Vec<(Vec<u8>, Vec<u8>)>, bool),
    /// A FoundationDB error.
    Error(i32),
}

/// The end of the user keys.
const END: &[u8] = b"\xff";

/// Applies an atomic operation by its number; lengths as in the documentation.
fn atomic(code: i32, before: Option<&[u8]>, operand: &[u8]) -> Option<Vec<u8>> {
    let fitted = || {
        let mut value = before.unwrap_or_default().to_vec();
        value.resize(operand.len(), 0);
        value
    };
    let by_byte = |op: fn(u8, u8) -> u8| fitted().iter().zip(operand).map(|(a, b)| op(*a, *b)).collect();
    // Little-endian numbers of the operand's length.
    let is_less = |a: &[u8], b: &[u8]| a.iter().rev().lt(b.iter().rev());
    let set = Some(operand.to_vec());
    match code {
        2 => {
            let mut carry = 0;
            let digits = fitted().into_iter().zip(operand).map(|(a, b)| {
                let sum = u16::from(a) + u16::from(*b) + carry;
                carry = sum >> 8;
                sum as u8
            });
            Some(digits.collect())
        }
        6 => before.map_or(set, |_| Some(by_byte(|a, b| a & b))),
        7 => Some(by_byte(|a, b| a | b)),
        8 => Some(by_byte(|a, b| a ^ b)),
        9 => Some([before.unwrap_or_default(), operand].concat()),
        12 => {
            if is_less(operand, &fitted()) {
                Some(fitted())
            } else {
                set
            }
        }
        13 => before.map_or(set.clone(), |_| if is_less(&fitted(), operand) { Some(fitted()) } else { set }),
        16 => before.map_or(set.clone(), |before| if before < operand { Some(before.to_vec()) } else { set }),
        17 => before.map_or(set.clone(), |before| if before > operand { Some(before.to_vec()) } else { set }),
        20 => before.filter(|before| *before != operand).map(<[u8]>::to_vec),
        _ => panic!("no atomic operation has the number {code}"),
    }
}

/// Applies a write; stamped ones need the commit's stamp.
pub fn apply(map: &mut Map, write: &Write, stamp: [u8; 10]) {
    match write {
        Write::Set(key, value) => drop(map.insert(key.clone(), value.clone())),
        Write::Clear(key) => drop(map.remove(key)),
        Write::ClearRange(begin, end) => map.retain(|key, _| key < begin || key >= end),
        Write::Atomic { code, key, operand } => match atomic(*code, map.get(key).map(Vec::as_slice), operand) {
            Some(value) => drop(map.insert(key.clone(), value)),
            None => drop(map.remove(key)),
        },
        Write::StampKey { before, after, value } => {
            map.insert([before, &stamp[..], after].concat(), value.clone());
        }
        Write::StampValue { key, after } => {
            map.insert(key.clone(), [&stamp[..], after].concat());
        }
    }
}

/// The keys of a write's conflict; for a stamped key they need the commit's stamp.
pub fn written(write: &Write, stamp: Option<[u8; 10]>) -> Option<(Vec<u8>, Vec<u8>)> {
    let single = |key: &[u8]| Some((key.to_vec(), key_after(key)));
    match write {
        Write::Set(key, _) | Write::Clear(key) | Write::Atomic { key, .. } | Write::StampValue { key, .. } => {
            single(key)
        }
        Write::ClearRange(begin, end) => Some((begin.clone(), end.clone())),
        Write::StampKey { before, after, .. } => single(&[before, &stamp?[..], after].concat()),
    }
}

pub fn is_stamped(action: &Action) -> bool {
    matches!(action, Action::Write { write: Write::StampKey { .. } | Write::StampValue { .. }, .. })
}

/// A key in order, without a value if the transaction's own operations left none. The client counts such a key when it
/// walks a selector's offset, and skips it in results.
type Item = (Vec<u8>, Option<Vec<u8>>);

pub struct Extent {
    pub begin: Vec<u8>,
    pub end: Vec<u8>,
    /// True if the conflict is exactly this; else at most this. The recorded answers check the exact rules for
    /// offsets.
    pub is_exact: bool,
    /// True if it is everything that the read depends on.
    pub is_covered: bool,
}

impl Extent {
    fn exactly(begin: Vec<u8>, end: Vec<u8>) -> Extent {
        Extent { begin, end, is_exact: true, is_covered: true }
    }
}

/// A transaction on a state of the database.
pub struct Modelled<'m> {
    plan: &'m Transaction,
    base: &'m Map,
    view: Map,
    /// Keys with own operations since the last clear.
    operated: BTreeSet<Vec<u8>>,
    /// Keys whose value the transaction itself determined.
    own: Ranges,
}

impl<'m> Modelled<'m> {
    pub fn new(plan: &'m Transaction, base: &'m Map) -> Modelled<'m> {
        Modelled { plan, base, view: base.clone(), operated: BTreeSet::new(), own: Ranges::default() }
    }

    pub fn write(&mut self, write: &Write) {
        apply(&mut self.view, write, [0; 10]);
        match write {
            Write::Set(key, _) | Write::StampValue { key, .. } => {
                self.operated.insert(key.clone());
                self.own.insert(key, &key_after(key));
            }
            Write::Atomic { key, .. } => drop(self.operated.insert(key.clone())),
            Write::Clear(_) | Write::ClearRange(..) => {
                let (begin, end) = written(write, None).expect("a range");
                self.operated.retain(|key| *key < begin || *key >= end);
                self.own.insert(&begin, &end);
            }
            Write::StampKey { .. } => {}
        }
    }

    fn items(&self, snapshot: bool) -> Vec<Item> {
        let is_blind = self.plan.read_your_writes_disabled || snapshot && self.plan.snapshot_ryw_disabled;
        if is_blind {
            return self.base.iter().map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
        }
        let keys: BTreeSet<_> = self.view.keys().chain(&self.operated).collect();
        keys.into_iter().map(|key| (key.clone(), self.view.get(key).cloned())).collect()
    }

    /// Returns the result of a read. A page of a range may end at any row if it sets `more`: `answered` decides,
    /// because the end depends on the earlier writes and reads of the transaction (`oracle_pages.rs` checks the exact
    /// ends).
    pub fn read(&self, read: &Read, snapshot: bool, answered: Option<&Answer>) -> (Answer, Extent) {
        let items = self.items(snapshot);
        match read {
            Read::Get(key) => {
                let value = items.into_iter().find(|(other, _)| other == key).and_then(|(_, value)| value);
                (Answer::Value(value), Extent::exactly(key.clone(), key_after(key)))
            }
            Read::GetKey(selector) => {
                let found = found_key(&items, selector);
                let base = base(selector);
                let extent = match selector.offset {
                    ..1 => Extent::exactly(found.clone(), base),
                    _ => Extent::exactly(base, key_after(&found)),
                };
                (Answer::Key(found), extent)
            }
            Read::GetRange { begin, end, limits, reverse } => {
                let (from, to) = (place(&items, begin), place(&items, end));
                let inside = items.get(from..to.max(from)).unwrap_or_default();
                let values = |(key, value): &Item| value.clone().map(|value| (key.clone(), value));
                let mut pairs: Vec<_> = inside.iter().filter_map(values).collect();
                if *reverse {
                    pairs.reverse();
                }
                let mut more = cut(&mut pairs, limits);
                if let Some(Answer::Pairs(page, true)) = answered
                    && (1..=pairs.len()).contains(&page.len())
                    && limits.has_bytes()
                {
                    more = true;
                    pairs.truncate(page.len());
                }
                let mut extent = extent(begin, end, &pairs, more, *reverse);
                if !extent.is_exact {
                    // FoundationDB's client conflicts over too little if an offset runs off an end or over keys
                    // without values, and if nothing was found.
                    let runs_off = |selector| !(1..items.len()).contains(&place(&items, selector));
                    let has_phantoms = items.iter().any(|(_, value)| value.is_none());
                    extent.is_covered = !(runs_off(begin) || runs_off(end) || has_phantoms || pairs.is_empty());
                }
                (Answer::Pairs(pairs, more), extent)
            }
        }
    }

    /// The part of a range that depends on stored pairs.
    pub fn dependent(&self, begin: &[u8], end: &[u8]) -> Ranges {
        match self.plan.read_your_writes_disabled {
            true => Ranges::from_iter([(begin.to_vec(), end.to_vec())]),
            false => self.own.missing(begin, end),
        }
    }
}

fn base(selector: &Selector) -> Vec<u8> {
    if selector.or_equal { key_after(&selector.key) } else { selector.key.clone() }
}

/// The position of a selector's first key, walking its offset over all items.
fn place(items: &[Item], selector: &Selector) -> usize {
    let base = base(selector);
    let first = items.partition_point(|(key, _)| *key < base) as i64;
    (first + i64::from(selector.offset) - 1).clamp(0, items.len() as i64) as usize
}

fn found_key(items: &[Item], selector: &Selector) -> Vec<u8> {
    let has_value = |item: &&Item| item.1.is_some();
    let found = if selector.offset > 0 {
        items[place(items, selector)..].iter().find(has_value)
    } else {
        let above = Selector { offset: selector.offset + 1, ..selector.clone() };
        items[..place(items, &above)].iter().rev().find(has_value)
    };
    let off_the_end = if selector.offset > 0 { END.to_vec() } else { Vec::new() };
    found.map_or(off_the_end, |(key, _)| key.clone())
}

impl Limits {
    fn bytes(&self) -> Option<usize> {
        let mode_bytes = match self.mode {
            -2 | 4 => Some(80_000),
            -1 | 3 => Some(4_096),
            1 => Some(256),
            2 => Some(1_000),
            _ => None,
        };
        let given = (self.target_bytes > 0).then_some(self.target_bytes as usize);
        [mode_bytes, given].into_iter().flatten().min()
    }

    fn has_bytes(&self) -> bool {
        self.bytes().is_some()
    }
}

/// Cuts the pairs at their limits. Returns whether a limit was reached.
fn cut(pairs: &mut Vec<(Vec<u8>, Vec<u8>)>, limits: &Limits) -> bool {
    let bytes_max = limits.bytes().unwrap_or(usize::MAX);
    let rows_max = if limits.rows > 0 { limits.rows as usize } else { usize::MAX };
    let mut bytes = 0;
    let reached = pairs.iter().position(|(key, value)| {
        bytes += 8 + key.len() + value.len();
        bytes >= bytes_max
    });
    let count = reached.map_or(usize::MAX, |last| last + 1).min(rows_max);
    let is_reached = count <= pairs.len();
    pairs.truncate(count);
    is_reached
}

/// A range read depends on everything between its selectors, or up to the last pair if a limit ended it.
fn extent(begin: &Selector, end: &Selector, pairs: &[(Vec<u8>, Vec<u8>)], more: bool, reverse: bool) -> Extent {
    let (from, to) = (base(begin), base(end));
    if begin.offset == 1 && end.offset == 1 {
        if from >= to {
            return Extent::exactly(Vec::new(), Vec::new());
        }
        return match pairs.last().filter(|_| more) {
            Some((last, _)) if reverse => Extent::exactly(last.clone(), to),
            Some((last, _)) => Extent::exactly(from, key_after(last)),
            None => Extent::exactly(from, to),
        };
    }
    Extent { begin: Vec::new(), end: key_after(END), is_exact: false, is_covered: true }
}
