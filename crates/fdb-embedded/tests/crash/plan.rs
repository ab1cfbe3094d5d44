//! Transactions whose writes all follow from a line of text. The writer prints the line before it commits, and the
//! checker derives the expected writes from it.

use std::fmt::Write;
use std::str::FromStr;

use flatbed_testkit::Random;

use crate::children::bytes;

/// Longer values need overflow pages in LMDB.
pub const LARGE_BYTES: u64 = 100_000;
/// The keys of one transaction that fills a group, and the number of such transactions: 22,000 keys.
pub const PART_KEYS: u64 = 2_000;
pub const PARTS: u64 = 11;

/// The id of a transaction: the run, the writer, and the writer's attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    pub run: u64,
    pub writer: u64,
    pub number: u64,
}

impl Id {
    pub fn text(&self) -> String {
        format!("{:06x}/{:02x}/{:06x}", self.run, self.writer, self.number)
    }

    fn random(&self) -> Random {
        Random(self.run << 40 ^ self.writer << 32 ^ self.number)
    }
}

/// The kind of a transaction, beside the writes that all have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanKind {
    /// A few small keys, some of them longer than an LMDB key.
    Small,
    /// Keys of up to 100 kB, up to 1 MB in all.
    Large,
    /// Reads a register and writes its successor.
    Register { register: u64, read: u64 },
    /// Clears the writes of a writer's transactions of this run below a number.
    Forget { below: u64 },
    /// 2,000 keys of a group.
    Fill { group: u64, part: u64 },
    /// Clears a full group, and writes into the cleared range.
    Empty { group: u64 },
    /// Clears the remains of earlier runs, except groups, registers and counters.
    Prune,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    pub id: Id,
    pub kind: PlanKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Set(Vec<u8>, Vec<u8>),
    Add(Vec<u8>, u64),
    Clear(Vec<u8>, Vec<u8>),
    /// A key that ends with the versionstamp.
    StampKey(Vec<u8>, Vec<u8>),
    /// A value that is the versionstamp.
    StampValue(Vec<u8>),
}

pub fn marker(id: &Id) -> Vec<u8> {
    format!("m/{}", id.text()).into_bytes()
}

pub fn register(register: u64) -> Vec<u8> {
    format!("r/{register}").into_bytes()
}

pub fn progress(writer: u64) -> Vec<u8> {
    format!("g/{writer:02x}").into_bytes()
}

pub fn progress_value(group: u64, part: u64) -> Vec<u8> {
    [group.to_be_bytes(), part.to_be_bytes()].concat()
}

/// The next value of `r/...`.
pub fn register_after(id: &Id, read: u64) -> u64 {
    Random(read ^ id.random().next()).next()
}

fn group_key(writer: u64, group: u64, rest: &str) -> Vec<u8> {
    format!("b/{writer:02x}/{group:06x}/{rest}").into_bytes()
}

fn range_of(prefix: Vec<u8>) -> (Vec<u8>, Vec<u8>) {
    let end = [&prefix[..], &[0xff]].concat();
    (prefix, end)
}

impl Plan {
    /// Returns all writes of the transaction, in order.
    pub fn changes(&self) -> Vec<Change> {
        let (id, mut random) = (&self.id, self.id.random());
        let own = |rest: &str| format!("t/{}/{rest}", id.text()).into_bytes();
        let mut changes = Vec::new();
        match self.kind {
            PlanKind::Small => {
                for part in 0..1 + random.below(10) {
                    let filler = if random.below(12) == 0 { "f".repeat(2_500) } else { String::new() };
                    let count = random.below(300);
                    changes.push(Change::Set(own(&format!("{filler}{part:04}")), bytes(&mut random, count)));
                }
            }
            PlanKind::Large => {
                let mut left = 1 + random.below(10 * LARGE_BYTES);
                for part in 0.. {
                    let count = left.min(random.below(LARGE_BYTES + 1));
                    changes.push(Change::Set(own(&format!("{part:04}")), bytes(&mut random, count)));
                    left -= count;
                    if left == 0 {
                        break;
                    }
                }
            }
            PlanKind::Register { register: at, read } => {
                changes.push(Change::Set(register(at), register_after(id, read).to_be_bytes().to_vec()));
                changes.push(Change::Set(own("register"), at.to_be_bytes().to_vec()));
            }
            PlanKind::Forget { below } => {
                let from = Id { number: 0, ..*id };
                let to = Id { number: below, ..*id };
                changes.push(Change::Clear(format!("t/{}", from.text()).into(), format!("t/{}", to.text()).into()));
                changes.push(Change::Set(own("forgotten"), below.to_be_bytes().to_vec()));
            }
            PlanKind::Fill { group, part } => {
                for number in 0..PART_KEYS {
                    let key = group_key(id.writer, group, &format!("{part:02x}/{number:05}"));
                    changes.push(Change::Set(key, bytes(&mut random, 20)));
                }
                changes.push(Change::Set(progress(id.writer), progress_value(group, part + 1)));
            }
            PlanKind::Empty { group } => {
                let (begin, end) = range_of(group_key(id.writer, group, ""));
                changes.push(Change::Set(group_key(id.writer, group, "05/00001"), b"hidden by the clear".to_vec()));
                changes.push(Change::Clear(begin, end));
                for _ in 0..random.below(20) {
                    let key = format!("{:02x}/{:05}", random.below(PARTS), random.below(PART_KEYS));
                    changes.push(Change::Set(group_key(id.writer, group, &key), b"after the clear".to_vec()));
                }
                // The old number was cleared, so this one starts at zero.
                changes.push(Change::Add(group_key(id.writer, group, "03/00003"), random.below(1_000)));
                let (begin, end) = range_of(group_key(id.writer, group, "07/001"));
                changes.push(Change::Clear(begin, end));
                changes.push(Change::Set(progress(id.writer), progress_value(group + 1, 0)));
            }
            PlanKind::Prune => {
                for kind in ["m", "s", "t"] {
                    let (begin, end) = (format!("{kind}/"), format!("{kind}/{:06x}/", id.run));
                    changes.push(Change::Clear(begin.into(), end.into()));
                }
                changes.push(Change::Set(b"pruned".to_vec(), id.run.to_be_bytes().to_vec()));
            }
        }
        changes.push(Change::Add(b"c/all".to_vec(), 1));
        changes.push(Change::Add(format!("c/{}", random.below(8)).into(), random.below(1 << 40)));
        changes.push(Change::StampKey(format!("s/{:06x}/", id.run).into(), id.text().into()));
        changes.push(Change::StampValue(marker(id)));
        changes
    }
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Id { run, writer, number } = self.id;
        let (name, a, b) = match self.kind {
            PlanKind::Small => ("small", 0, 0),
            PlanKind::Large => ("large", 0, 0),
            PlanKind::Register { register, read } => ("register", register, read),
            PlanKind::Forget { below } => ("forget", below, 0),
            PlanKind::Fill { group, part } => ("fill", group, part),
            PlanKind::Empty { group } => ("empty", group, 0),
            PlanKind::Prune => ("prune", 0, 0),
        };
        write!(f, "{run} {writer} {number} {name} {a} {b}")
    }
}

impl FromStr for Plan {
    type Err = ();

    fn from_str(text: &str) -> Result<Plan, ()> {
        let words: Vec<&str> = text.split(' ').collect();
        let [run, writer, number, name, a, b] = words[..] else { return Err(()) };
        let read = |word: &str| word.parse::<u64>().map_err(|_| ());
        let id = Id { run: read(run)?, writer: read(writer)?, number: read(number)? };
        let (a, b) = (read(a)?, read(b)?);
        let kind = match name {
            "small" => PlanKind::Small,
            "large" => PlanKind::Large,
            "register" => PlanKind::Register { register: a, read: b },
            "forget" => PlanKind::Forget { below: a },
            "fill" => PlanKind::Fill { group: a, part: b },
            "empty" => PlanKind::Empty { group: a },
            "prune" => PlanKind::Prune,
            _ => return Err(()),
        };
        Ok(Plan { id, kind })
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
