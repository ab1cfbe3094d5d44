//! The generated plans of the threads.

use proptest::prelude::*;
use proptest::sample::select;

/// Numbers of FoundationDB's options and mutations.
pub const NEXT_WRITE_NO_CONFLICT: u32 = 30;
pub const READ_YOUR_WRITES_DISABLE: u32 = 51;
pub const SNAPSHOT_RYW_DISABLE: u32 = 601;
pub const STAMP_KEY: i32 = 14;
pub const STAMP_VALUE: i32 = 15;
const ATOMIC_CODES: [i32; 10] = [2, 6, 7, 8, 9, 12, 13, 16, 17, 20];

/// The prefix of the keys with versionstamps.
pub const STAMPED: &[u8] = b"s";

pub const THREADS: usize = 4;

#[derive(Clone, Debug)]
pub struct Selector {
    pub key: Vec<u8>,
    pub or_equal: bool,
    pub offset: i32,
}

#[derive(Clone, Debug)]
pub struct Limits {
    pub rows: i32,
    pub target_bytes: i32,
    /// Streaming mode; in an iteration, that of the first call.
    pub mode: i32,
}

#[derive(Clone, Debug)]
pub enum Read {
    Get(Vec<u8>),
    GetKey(Selector),
    GetRange { begin: Selector, end: Selector, limits: Limits, reverse: bool },
}

#[derive(Clone, Debug)]
pub enum Write {
    Set(Vec<u8>, Vec<u8>),
    Clear(Vec<u8>),
    ClearRange(Vec<u8>, Vec<u8>),
    Atomic {
        code: i32,
        key: Vec<u8>,
        operand: Vec<u8>,
    },
    /// The stamp follows `before`; in a stamped value it is at the begin.
    StampKey {
        before: Vec<u8>,
        after: Vec<u8>,
        value: Vec<u8>,
    },
    StampValue {
        key: Vec<u8>,
        after: Vec<u8>,
    },
}

#[derive(Clone, Debug)]
pub enum Action {
    Read {
        read: Read,
        snapshot: bool,
    },
    /// `is_quiet`: without a write conflict.
    Write {
        write: Write,
        is_quiet: bool,
    },
    Conflict {
        begin: Vec<u8>,
        end: Vec<u8>,
        is_write: bool,
    },
    Pause,
}

#[derive(Clone, Debug)]
pub struct Transaction {
    pub read_your_writes_disabled: bool,
    pub snapshot_ryw_disabled: bool,
    /// Begins at the read version of an earlier transaction.
    pub reuses_version: bool,
    pub actions: Vec<Action>,
}

#[derive(Clone, Debug)]
pub struct Thread {
    pub transactions: Vec<Transaction>,
    /// The open transaction that takes each next step.
    pub turns: Vec<usize>,
}

/// Neighbours, prefixes of each other, and a key's successor.
pub fn keys() -> Vec<Vec<u8>> {
    [&b"a"[..], b"a\0", b"a\0\0", b"b", b"c", b"ca", b"cb", b"d", b"d\xff", b"e"].map(<[u8]>::to_vec).to_vec()
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    select(keys())
}

/// The bounds of ranges: keys, their successors, and both ends.
fn bound() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => key(),
        3 => key().prop_map(|key| [&key[..], &[0]].concat()),
        1 => Just(Vec::new()),
        1 => Just(STAMPED.to_vec()),
        1 => Just(b"\xff".to_vec()),
    ]
}

fn range() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    (bound(), bound()).prop_map(|(a, b)| (a.clone().min(b.clone()), a.max(b)))
}

/// Clears avoid the stamped keys, whose final keys are unknown before the commit.
fn clear_bound() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![6 => key(), 1 => Just(b"dd".to_vec()), 1 => Just(STAMPED.to_vec())]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    let byte = || prop_oneof![Just(0u8), Just(1), Just(255), any::<u8>()];
    prop_oneof![prop::collection::vec(byte(), 0..4), prop::collection::vec(byte(), 8)]
}

fn selector() -> impl Strategy<Value = Selector> {
    let offset = prop_oneof![4 => Just(1), 1 => -3i32..5];
    (bound(), any::<bool>(), offset).prop_map(|(key, or_equal, offset)| Selector { key, or_equal, offset })
}

fn limits() -> impl Strategy<Value = Limits> {
    let limits = |rows, target_bytes, mode| Limits { rows, target_bytes, mode };
    prop_oneof![
        3 => Just(limits(0, 0, -2)),
        3 => (1..5i32).prop_map(move |rows| limits(rows, 0, 0)),
        1 => (1..100i32).prop_map(move |bytes| limits(0, bytes, 0)),
        1 => (0..4i32, -1..5i32).prop_map(move |(rows, mode)| limits(rows, if mode == 0 { 60 } else { 0 }, mode)),
    ]
}

fn read() -> impl Strategy<Value = Read> {
    prop_oneof![
        4 => key().prop_map(Read::Get),
        1 => selector().prop_map(Read::GetKey),
        3 => (selector(), selector(), limits(), any::<bool>())
            .prop_map(|(begin, end, limits, reverse)| Read::GetRange { begin, end, limits, reverse }),
        2 => (range(), limits(), any::<bool>()).prop_map(|((begin, end), limits, reverse)| {
            let selector = |key| Selector { key, or_equal: false, offset: 1 };
            Read::GetRange { begin: selector(begin), end: selector(end), limits, reverse }
        }),
    ]
}

fn write() -> impl Strategy<Value = Write> {
    let clear_range = (clear_bound(), clear_bound());
    prop_oneof![
        6 => (key(), value()).prop_map(|(key, value)| Write::Set(key, value)),
        2 => key().prop_map(Write::Clear),
        2 => clear_range.prop_map(|(a, b)| Write::ClearRange(a.clone().min(b.clone()), a.max(b))),
        5 => (select(&ATOMIC_CODES[..]), key(), value())
            .prop_map(|(code, key, operand)| Write::Atomic { code, key, operand }),
        1 => (prop::collection::vec(0u8..3, 0..2), prop::collection::vec(0u8..3, 0..2), value())
            .prop_map(|(before, after, value)| Write::StampKey { before: [STAMPED, &before].concat(), after, value }),
        1 => (key(), prop::collection::vec(0u8..3, 0..2)).prop_map(|(key, after)| Write::StampValue { key, after }),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => (read(), prop::bool::weighted(0.3)).prop_map(|(read, snapshot)| Action::Read { read, snapshot }),
        6 => (write(), prop::bool::weighted(0.1)).prop_map(|(write, is_quiet)| Action::Write { write, is_quiet }),
        1 => (range(), any::<bool>()).prop_map(|((begin, end), is_write)| Action::Conflict { begin, end, is_write }),
        2 => Just(Action::Pause),
    ]
}

fn transaction() -> impl Strategy<Value = Transaction> {
    let option = || prop::bool::weighted(0.1);
    (option(), option(), option(), prop::collection::vec(action(), 1..10)).prop_map(
        |(read_your_writes_disabled, snapshot_ryw_disabled, reuses_version, actions)| Transaction {
            read_your_writes_disabled,
            snapshot_ryw_disabled,
            reuses_version,
            actions,
        },
    )
}

pub fn threads() -> impl Strategy<Value = Vec<Thread>> {
    let transactions = prop::collection::vec(transaction(), 1..25);
    let thread = (transactions, prop::collection::vec(0usize..8, 16))
        .prop_map(|(transactions, turns)| Thread { transactions, turns });
    prop::collection::vec(thread, THREADS)
}
