//! The process that is killed: threads that commit, and print their plans and the acknowledged commits.
//!
//! Each line of the output is written at once: `open VERSION`, `plan READ_VERSION PLAN`, `done PLAN_ID VERSION STAMP`
//! and `refused PLAN_ID`.

use std::io::Write;
use std::path::Path;

use fdb_embedded::{Engine, Error, OpenOptions, Transaction};
use flatbed_testkit::Random;

use crate::common::{commit, open, promise, wait};
use crate::plan::{Change, Id, PARTS, Plan, PlanKind, hex, progress, progress_value, register};

const ADD: i32 = 2;
const STAMP_KEY: i32 = 14;
const STAMP_VALUE: i32 = 15;
/// The numbers of threads with mixed work, and of threads that fill and empty groups.
const MIXED: u64 = 5;
const GROUPS: u64 = 2;
const REGISTERS: u64 = 4;

fn tell(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush()).expect("the checker reads");
}

/// Commits until the process is killed.
pub fn run(dir: &Path, run: u64, seed: u64) {
    let engine = open(dir);
    tell(&format!("open {}", engine.transaction().get_read_version().expect("a version")));
    std::thread::scope(|scope| {
        for writer in 0..MIXED + GROUPS {
            let mut this = Writer { engine: &engine, id: Id { run, writer, number: 0 }, random: Random(seed ^ writer) };
            scope.spawn(move || if writer < MIXED { this.mixed() } else { this.groups() });
        }
    });
}

pub fn reopen(dir: &Path) {
    loop {
        let engine = Engine::open(dir, OpenOptions::default()).expect("an engine");
        tell(&format!("open {}", engine.transaction().get_read_version().expect("a version")));
    }
}

struct Writer<'e> {
    engine: &'e Engine,
    id: Id,
    random: Random,
}

impl Writer<'_> {
    fn mixed(&mut self) {
        if self.id.writer == 0 && self.random.below(3) == 0 {
            self.commit(&self.engine.transaction(), PlanKind::Prune);
        }
        loop {
            let transaction = self.engine.transaction();
            let kind = match self.random.below(100) {
                0..3 => PlanKind::Large,
                3..30 => {
                    let register = self.random.below(REGISTERS);
                    PlanKind::Register { register, read: self.read(&transaction, register) }
                }
                30..36 => PlanKind::Forget { below: self.id.number },
                _ => PlanKind::Small,
            };
            // With a read version the commit can conflict or become too old, and shows that versions grow.
            if self.random.below(3) == 0 {
                transaction.get_read_version().expect("a version");
            }
            self.commit(&transaction, kind);
        }
    }

    fn groups(&mut self) {
        loop {
            let transaction = self.engine.transaction();
            let read = transaction.get(&progress(self.id.writer), false).expect("a read");
            let read = read.unwrap_or_else(|| progress_value(0, 0));
            let number = |at| u64::from_be_bytes(read[at..at + 8].try_into().expect("eight bytes"));
            let (group, part) = (number(0), number(8));
            self.commit(
                &transaction,
                if part < PARTS { PlanKind::Fill { group, part } } else { PlanKind::Empty { group } },
            );
        }
    }

    fn read(&self, transaction: &Transaction, at: u64) -> u64 {
        let value = transaction.get(&register(at), false).expect("a read");
        value.map_or(0, |value| u64::from_be_bytes(value.try_into().expect("eight bytes")))
    }

    fn commit(&mut self, transaction: &Transaction, kind: PlanKind) {
        let plan = Plan { id: self.id, kind };
        self.id.number += 1;
        let read_version = match kind {
            // These kinds have read, so they have a read version.
            PlanKind::Register { .. } | PlanKind::Fill { .. } | PlanKind::Empty { .. } => {
                transaction.get_read_version().expect("a version")
            }
            _ => 0,
        };
        for change in plan.changes() {
            match change {
                Change::Set(key, value) => transaction.set(&key, &value),
                Change::Add(key, number) => transaction.atomic_op(&key, &number.to_le_bytes(), ADD),
                Change::Clear(begin, end) => transaction.clear_range(&begin, &end),
                Change::StampKey(prefix, value) => {
                    let place = (prefix.len() as u32).to_le_bytes();
                    transaction.atomic_op(&[&prefix[..], &[0; 10], &place].concat(), &value, STAMP_KEY);
                }
                Change::StampValue(key) => transaction.atomic_op(&key, &[0; 14], STAMP_VALUE),
            }
        }
        let (done, stamp) = promise();
        transaction.get_versionstamp(done);
        tell(&format!("plan {read_version} {plan}"));
        match commit(transaction) {
            Ok(()) => {
                let version = transaction.committed_version().expect("a version");
                tell(&format!("done {} {version} {}", plan.id.text(), hex(&wait(&stamp).expect("a stamp"))));
            }
            Err(Error::NOT_COMMITTED | Error::TRANSACTION_TOO_OLD) => tell(&format!("refused {}", plan.id.text())),
            Err(error) => panic!("{plan}: {error:?}"),
        }
    }
}
