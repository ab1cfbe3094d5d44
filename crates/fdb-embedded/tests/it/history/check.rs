//! Replays recorded histories, one commit after the other.

use std::collections::BTreeMap;

use fdb_embedded::Error;

use super::model::{Answer, Map, Modelled, apply, written};
use super::plan::{Action, STAMPED, Write};
use super::ranges::Ranges;
use super::run::{Outcome, Record};

/// The age, in versions, from which a read version may be refused.
const AGE_MAX: i64 = 5_000_000;

#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub transactions: usize,
    pub committed: usize,
    pub conflicts: usize,
    pub too_old: usize,
    pub reads: usize,
    /// Committed transactions with another commit between their read and their own commit.
    pub overtaken: usize,
}

impl Counts {
    pub fn add(&mut self, other: Counts) {
        self.transactions += other.transactions;
        self.committed += other.committed;
        self.conflicts += other.conflicts;
        self.too_old += other.too_old;
        self.reads += other.reads;
        self.overtaken += other.overtaken;
    }
}

type Checked = Result<(), String>;

macro_rules! ensure {
    ($condition:expr, $($text:tt)*) => {
        if !$condition {
            return Err(format!($($text)*));
        }
    };
}

/// A commit in the order of versionstamps.
struct Commit {
    version: i64,
    writes: Ranges,
    /// The writes without a write conflict.
    quiet_writes: Ranges,
    state: Map,
}

/// Checks a whole history against the final database.
pub fn check(records: &[Record], left: &Map) -> Result<Counts, String> {
    let mut in_order = BTreeMap::new();
    for record in records {
        if let Outcome::Committed { version, stamp } = record.outcome {
            ensure!(stamp[..8] == version.to_be_bytes(), "version {version} has the stamp {stamp:?}");
            let earlier = in_order.insert(stamp, record);
            ensure!(earlier.is_none(), "the stamp {stamp:?} was given twice");
        }
    }
    let (mut commits, mut state) = (BTreeMap::new(), Map::new());
    for (stamp, record) in &in_order {
        let (mut writes, mut quiet_writes) = (Ranges::default(), Ranges::default());
        for (action, _) in &record.steps {
            match action {
                Action::Write { write, is_quiet } => {
                    apply(&mut state, write, *stamp);
                    // The engine ignores the option if the key is stamped.
                    let is_quiet = *is_quiet && !matches!(write, Write::StampKey { .. });
                    if let Some((begin, end)) = written(write, Some(*stamp)) {
                        if is_quiet { &mut quiet_writes } else { &mut writes }.insert(&begin, &end);
                    }
                }
                Action::Conflict { begin, end, is_write: true } => writes.insert(begin, end),
                _ => {}
            }
        }
        let version = i64::from_be_bytes(stamp[..8].try_into().map_err(|_| "a stamp is too short")?);
        commits.insert(*stamp, Commit { version, writes, quiet_writes, state: state.clone() });
    }
    ensure!(state == *left, "the commits leave {state:?}, but the database holds {left:?}");
    let mut counts = Counts { transactions: records.len(), ..Counts::default() };
    for record in records {
        check_one(record, &commits, &mut counts).map_err(|problem| format!("{problem}\nin {record:?}"))?;
    }
    Ok(counts)
}

fn state_after(commit: Option<(&[u8; 10], &Commit)>) -> Map {
    commit.map(|(_, commit)| commit.state.clone()).unwrap_or_default()
}

fn check_one(record: &Record, commits: &BTreeMap<[u8; 10], Commit>, counts: &mut Counts) -> Checked {
    check_writes(record)?;
    // Without reads, the read conflicts depend on the transaction alone.
    let seen = record.read_version.and_then(|read| commits.iter().rev().find(|(_, commit)| commit.version <= read));
    let at_read_version = replay(record, &state_after(seen));
    let is_too_old = matches!(record.outcome, Outcome::Refused { error: Error::TRANSACTION_TOO_OLD, .. });
    if !is_too_old {
        check_reads(record, &at_read_version)?;
        counts.reads += at_read_version.iter().filter(|step| step.answer.is_some()).count();
    }
    let read_version = record.read_version.unwrap_or(i64::MAX);
    let since = |until: &[u8; 10]| {
        let earlier = commits.range::<[u8; 10], _>(..until);
        earlier.filter(|(_, commit)| commit.version > read_version).map(|(_, commit)| commit).collect::<Vec<_>>()
    };
    let conflicts = |commit: &&Commit| commit.writes.overlap(&record.read_conflicts);
    match record.outcome {
        Outcome::Committed { version, stamp } => {
            counts.committed += 1;
            let since = since(&stamp);
            counts.overtaken += usize::from(!since.is_empty());
            let missed = since.iter().copied().find(conflicts);
            ensure!(
                missed.is_none(),
                "committed in spite of a conflict with {:?}",
                missed.map(|commit| &commit.writes)
            );
            let age = record.read_version.map_or(0, |read| version - read);
            ensure!(age <= AGE_MAX + 1_000_000, "committed at an age of {age}");
            // Its conflicting reads still hold at its commit, unless a transaction wrote without conflict.
            if !since.iter().any(|commit| commit.quiet_writes.overlap(&record.read_conflicts)) {
                let at_commit = replay(record, &state_after(commits.range(..stamp).next_back()));
                for (((action, _), before), now) in record.steps.iter().zip(&at_read_version).zip(&at_commit) {
                    let is_free = matches!(action, Action::Read { snapshot: true, .. }) || !before.is_covered;
                    ensure!(
                        is_free || before.answer == now.answer,
                        "{action:?} answered {:?}, but {:?} at its commit",
                        before.answer,
                        now.answer
                    );
                }
            }
        }
        Outcome::ReadOnly => {
            ensure!(record.write_conflicts.is_empty(), "a transaction with writes was not written");
        }
        Outcome::Refused { error: Error::NOT_COMMITTED, before } => {
            counts.conflicts += 1;
            let mut until = [0xff; 10];
            until[..8].copy_from_slice(&before.to_be_bytes());
            ensure!(since(&until).iter().any(conflicts), "refused without a conflict");
        }
        Outcome::Refused { error: Error::TRANSACTION_TOO_OLD, before } => {
            counts.too_old += 1;
            let age = record.read_version.map_or(0, |read| before - read);
            ensure!(age > AGE_MAX, "too old at an age of {age}");
        }
        Outcome::Refused { error, .. } => return Err(format!("refused with {error:?}")),
    }
    Ok(())
}

/// A step as the model predicts it.
struct Replayed {
    /// `None` if the step is no read.
    answer: Option<Answer>,
    /// The read conflicts, at least and at most.
    conflicts: (Ranges, Ranges),
    /// True if these are everything that a read depends on.
    is_covered: bool,
}

fn replay(record: &Record, state: &Map) -> Vec<Replayed> {
    let mut modelled = Modelled::new(&record.plan, state);
    let mut replayed = Vec::new();
    for (action, answered) in &record.steps {
        let (mut answer, mut conflicts, mut is_covered) = (None, Default::default(), true);
        match action {
            Action::Read { read, snapshot } => {
                let (expected, extent) = modelled.read(read, *snapshot, answered.as_ref());
                answer = Some(expected);
                is_covered = extent.is_covered;
                if !snapshot {
                    let at_most = modelled.dependent(&extent.begin, &extent.end);
                    conflicts = (if extent.is_exact { at_most.clone() } else { Ranges::default() }, at_most);
                }
            }
            Action::Write { write, .. } => modelled.write(write),
            Action::Conflict { begin, end, is_write: false } => {
                let dependent = modelled.dependent(begin, end);
                conflicts = (dependent.clone(), dependent);
            }
            Action::Conflict { is_write: true, .. } | Action::Pause => {}
        }
        replayed.push(Replayed { answer, conflicts, is_covered });
    }
    replayed
}

/// Checks every read against the state, and the conflict ranges against the reads and writes.
fn check_reads(record: &Record, replayed: &[Replayed]) -> Checked {
    let (mut least, mut most) = (Ranges::default(), Ranges::default());
    for ((action, answer), model) in record.steps.iter().zip(replayed) {
        ensure!(*answer == model.answer, "{action:?} answered {answer:?} and not {:?}", model.answer);
        least.insert_all(&model.conflicts.0);
        most.insert_all(&model.conflicts.1);
    }
    let found = &record.read_conflicts;
    ensure!(least.is_within(found), "the read conflicts {found:?} lack some of {least:?}");
    ensure!(found.is_within(&most), "the read conflicts {found:?} are more than {most:?}");
    Ok(())
}

fn check_writes(record: &Record) -> Checked {
    let (mut least, mut most) = (Ranges::default(), Ranges::default());
    for (action, _) in &record.steps {
        match action {
            // The stamped key shows as the range of its possible values.
            Action::Write { write: Write::StampKey { .. }, .. } => most.insert(STAMPED, b"t"),
            Action::Write { write, is_quiet: false } => {
                if let Some((begin, end)) = written(write, None) {
                    least.insert(&begin, &end);
                }
            }
            Action::Conflict { begin, end, is_write: true } => least.insert(begin, end),
            _ => {}
        }
    }
    most.insert_all(&least);
    let found = &record.write_conflicts;
    ensure!(least.is_within(found) && found.is_within(&most), "the write conflicts {found:?} are not {least:?}");
    Ok(())
}
