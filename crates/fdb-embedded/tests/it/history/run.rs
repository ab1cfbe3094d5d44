//! Runs the plans on an engine, each thread with several open transactions, and records everything.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use fdb_embedded::{Engine, Error, KeySelector, RangeOptions, Result};
use flatbed_testkit::{PATIENCE, pass_blocking};

use super::model::{Answer, is_stamped};
use super::plan::{
    Action, NEXT_WRITE_NO_CONFLICT, READ_YOUR_WRITES_DISABLE, Read, SNAPSHOT_RYW_DISABLE, STAMP_KEY, STAMP_VALUE,
    Selector, Thread, Transaction, Write,
};
use super::ranges::Ranges;

/// Open transactions of a thread.
const OPEN: usize = 3;

#[derive(Clone, Copy, Debug)]
pub enum Outcome {
    Committed {
        version: i64,
        stamp: [u8; 10],
    },
    /// Nothing was written.
    ReadOnly,
    /// The error, and a version above every one that the commit was checked against.
    Refused {
        error: Error,
        before: i64,
    },
}

#[derive(Clone, Debug)]
pub struct Record {
    pub plan: Transaction,
    /// Actions, with the answers of reads.
    pub steps: Vec<(Action, Option<Answer>)>,
    /// `None`: nothing was read, and no version was set.
    pub read_version: Option<i64>,
    /// As reported by the transaction itself.
    pub read_conflicts: Ranges,
    pub write_conflicts: Ranges,
    pub outcome: Outcome,
}

struct Running<'p> {
    plan: &'p Transaction,
    transaction: fdb_embedded::Transaction,
    next: usize,
    /// The requested read version.
    requested: Option<i64>,
    has_read: bool,
    steps: Vec<(Action, Option<Answer>)>,
}

struct Committing {
    record: Record,
    transaction: fdb_embedded::Transaction,
    answer: Receiver<(Result<()>, i64)>,
    stamp: Receiver<Result<[u8; 10]>>,
}

fn selector(selector: &Selector) -> KeySelector<'_> {
    KeySelector { key: &selector.key, or_equal: selector.or_equal, offset: selector.offset }
}

fn read(transaction: &fdb_embedded::Transaction, read: &Read, snapshot: bool) -> Answer {
    let answer = match read {
        Read::Get(key) => transaction.get(key, snapshot).map(Answer::Value),
        Read::GetKey(of) => transaction.get_key(selector(of), snapshot).map(Answer::Key),
        Read::GetRange { begin, end, limits, reverse } => {
            let (limit, target_bytes, mode) = (limits.rows, limits.target_bytes, limits.mode);
            let options = RangeOptions { limit, target_bytes, mode, iteration: 1, snapshot, reverse: *reverse };
            transaction.get_range(selector(begin), selector(end), &options).map(|result| {
                let pairs = result.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
                Answer::Pairs(pairs, result.more)
            })
        }
    };
    answer.unwrap_or_else(|error| Answer::Error(error.0))
}

/// An operand with ten bytes for a versionstamp after `before`, and their offset at the end.
fn with_stamp(before: &[u8], after: &[u8]) -> Vec<u8> {
    [before, &[0xff; 10], after, &(before.len() as u32).to_le_bytes()].concat()
}

fn write(transaction: &fdb_embedded::Transaction, write: &Write) {
    match write {
        Write::Set(key, value) => transaction.set(key, value),
        Write::Clear(key) => transaction.clear(key),
        Write::ClearRange(begin, end) => transaction.clear_range(begin, end),
        Write::Atomic { code, key, operand } => transaction.atomic_op(key, operand, *code),
        Write::StampKey { before, after, value } => {
            transaction.atomic_op(&with_stamp(before, after), value, STAMP_KEY);
        }
        Write::StampValue { key, after } => transaction.atomic_op(key, &with_stamp(b"", after), STAMP_VALUE),
    }
}

/// The ranges in a special key range of a transaction: "1" at each begin, "0" at each end.
fn shown(transaction: &fdb_embedded::Transaction, name: &str) -> Ranges {
    let prefix = [b"\xff\xff/transaction/", name.as_bytes(), b"/"].concat();
    let end = [&prefix[..prefix.len() - 1], b"0"].concat();
    let pairs =
        crate::common::range(transaction, &prefix, &end, &RangeOptions::default()).expect("the transaction's ranges");
    let keys: Vec<_> = pairs.iter().map(|(key, _)| key[prefix.len()..].to_vec()).collect();
    keys.chunks(2).map(|edges| (edges[0].clone(), edges[1].clone())).collect()
}

impl<'p> Running<'p> {
    fn new(engine: &Engine, plan: &'p Transaction, earlier: Option<i64>) -> Running<'p> {
        let transaction = engine.transaction();
        let set = |code| transaction.set_option(code, None).expect("an option");
        if plan.read_your_writes_disabled {
            set(READ_YOUR_WRITES_DISABLE);
        }
        if plan.snapshot_ryw_disabled {
            set(SNAPSHOT_RYW_DISABLE);
        }
        let requested = earlier.filter(|_| plan.reuses_version);
        if let Some(version) = requested {
            transaction.set_read_version(version);
        }
        Running { plan, transaction, next: 0, requested, has_read: false, steps: Vec::new() }
    }

    /// Runs the next action; false if none is left.
    fn step(&mut self) -> bool {
        let Some(action) = self.plan.actions.get(self.next) else { return false };
        self.next += 1;
        // A transaction cannot read the keys that it stamped.
        let is_unreadable = self.steps.iter().any(|(action, _)| is_stamped(action));
        let answer = match action {
            Action::Read { .. } | Action::Conflict { is_write: false, .. } if is_unreadable => return true,
            Action::Read { read: of, snapshot } => {
                self.has_read = true;
                Some(read(&self.transaction, of, *snapshot))
            }
            Action::Write { write: of, is_quiet } => {
                if *is_quiet {
                    self.transaction.set_option(NEXT_WRITE_NO_CONFLICT, None).expect("an option");
                }
                write(&self.transaction, of);
                None
            }
            Action::Conflict { begin, end, is_write } => {
                self.transaction.add_conflict_range(begin, end, *is_write).expect("a range");
                None
            }
            Action::Pause => {
                pass_blocking(Duration::from_micros(300));
                None
            }
        };
        self.steps.push((action.clone(), answer));
        true
    }

    fn commit(self, engine: &Engine) -> Committing {
        let Running { plan, transaction, requested, has_read, steps, .. } = self;
        let read_version = requested.or_else(|| has_read.then(|| transaction.get_read_version().expect("a version")));
        let outcome = Outcome::ReadOnly;
        let (read_conflicts, write_conflicts) =
            (shown(&transaction, "read_conflict_range"), shown(&transaction, "write_conflict_range"));
        let record = Record { plan: plan.clone(), steps, read_version, read_conflicts, write_conflicts, outcome };
        let (done, stamp) = crate::common::promise();
        transaction.get_versionstamp(done);
        let (sender, answer) = channel();
        let engine = engine.clone();
        transaction.commit(Box::new(move |result| {
            // Refused commits answer after their batch is readable.
            let before = if result.is_err() { engine.transaction().get_read_version().unwrap_or(0) } else { 0 };
            drop(engine);
            sender.send((result, before)).unwrap_or_default();
        }));
        Committing { record, transaction, answer, stamp }
    }
}

impl Committing {
    fn finish(self) -> Record {
        let (result, before) = self.answer.recv_timeout(PATIENCE).expect("an answer");
        let stamp = crate::common::wait(&self.stamp);
        let outcome = match result {
            Err(error) => Outcome::Refused { error, before },
            Ok(()) => match self.transaction.committed_version().expect("a version") {
                -1 => Outcome::ReadOnly,
                version => Outcome::Committed { version, stamp: stamp.expect("a stamp") },
            },
        };
        Record { outcome, ..self.record }
    }
}

fn thread(engine: &Engine, plan: &Thread) -> Vec<Record> {
    let mut plans = plan.transactions.iter();
    let mut turns = plan.turns.iter().cycle();
    let mut open: VecDeque<Running<'_>> = VecDeque::new();
    let mut committing = Vec::new();
    let mut earlier = None;
    loop {
        while open.len() < OPEN
            && let Some(plan) = plans.next()
        {
            open.push_back(Running::new(engine, plan, earlier));
        }
        let Some(turn) = turns.next().filter(|_| !open.is_empty()) else { break };
        let at = turn % open.len();
        if !open[at].step()
            && let Some(running) = open.remove(at)
        {
            let commit = running.commit(engine);
            earlier = commit.record.read_version.or(earlier);
            committing.push(commit);
        }
    }
    committing.into_iter().map(Committing::finish).collect()
}

pub fn run(engine: &Engine, plans: &[Thread]) -> Vec<Record> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = plans.iter().map(|plan| scope.spawn(|| thread(engine, plan))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a thread")).collect()
    })
}
