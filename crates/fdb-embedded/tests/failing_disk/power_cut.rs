//! Power cuts: writes that were not synced are on the disk in part, or not at all.
//!
//! A child commits, and `faults.c` records its writes, syncs and renames. The test builds disks from the record as
//! they may be after any of its calls. Each must hold the state of all commits acknowledged by then, or of more.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use fdb_embedded::{Engine, OpenOptions, RangeOptions, Transaction};
use flatbed_testkit::{Random, number};

use crate::children::bytes;
use crate::common::{commit, open, range};
use crate::faults::Faults;
use crate::{command, output};

const SEED: &str = "FLATBED_CRASH_SEED";
const COMMITS: u64 = 40;
/// The unit that a disk writes atomically.
const SECTOR_BYTES: usize = 512;

type Pair = (Vec<u8>, Vec<u8>);
type State = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(number: u64, part: u64) -> Vec<u8> {
    format!("t/{number:03}/{part:04}").into_bytes()
}

/// The range that a commit clears, and the keys that it sets then.
fn writes(number: u64) -> (Option<Pair>, Vec<Pair>) {
    let mut random = Random(number);
    let cleared = (number % 4 == 3).then(|| (key(number - random.below(4), 0), key(number, 0)));
    let (count, length) = match number % 6 {
        0 => (1, 50_000),
        1 => (200, 100),
        _ => (3, 500),
    };
    let mut sets: Vec<_> = (0..count).map(|part| (key(number, part), bytes(&mut random, length))).collect();
    sets.push((b"newest".to_vec(), number.to_be_bytes().to_vec()));
    (cleared, sets)
}

/// The child, which closes and reopens the directory halfway.
pub fn commits(dir: &Path) {
    let mut numbers = 0..COMMITS;
    let acknowledged = dir.parent().and_then(Path::parent).expect("two parents").join("acknowledged");
    let mut acknowledged = fs::File::create(acknowledged).expect("a file");
    for _ in 0..2 {
        let mut options = OpenOptions::default();
        options.clear_records_max = Some(20);
        let engine = Engine::open(dir, options).expect("an engine");
        for number in numbers.by_ref().take(COMMITS as usize / 2) {
            let transaction: Transaction = engine.transaction();
            let (cleared, sets) = writes(number);
            cleared.iter().for_each(|(begin, end)| transaction.clear_range(begin, end));
            sets.iter().for_each(|(key, value)| transaction.set(key, value));
            commit(&transaction).expect("a commit");
            acknowledged.write_all(b".").expect("a write");
        }
    }
}

fn state_after(commits: u64) -> State {
    let mut state = State::new();
    for number in 0..commits {
        let (cleared, sets) = writes(number);
        if let Some((begin, end)) = cleared {
            state.retain(|key, _| *key < begin || *key >= end);
        }
        state.extend(sets);
    }
    state
}

enum Call {
    /// With whether the write is synced by itself.
    Write {
        path: PathBuf,
        offset: usize,
        bytes: Vec<u8>,
        is_synced: bool,
    },
    Truncate {
        path: PathBuf,
        bytes: usize,
    },
    Sync {
        path: PathBuf,
    },
    Rename {
        from: PathBuf,
        to: PathBuf,
    },
}

fn calls(record: &[u8]) -> Vec<Call> {
    let mut rest = record;
    let mut take = move |count: usize| {
        let (taken, after) = rest.split_at_checked(count)?;
        rest = after;
        Some(taken)
    };
    let mut calls = Vec::new();
    loop {
        let Some(kind) = take(1) else { return calls };
        let mut path = || {
            let length = u32::from_le_bytes(take(4).expect("a length").try_into().expect("four bytes"));
            PathBuf::from(String::from_utf8(take(length as usize).expect("a path").to_vec()).expect("text"))
        };
        let first = path();
        let second = (kind == b"r").then(&mut path);
        let mut number = || u64::from_le_bytes(take(8).expect("a number").try_into().expect("eight bytes")) as usize;
        calls.push(match (kind, second) {
            (b"w" | b"d", _) => {
                let (offset, length) = (number(), number());
                let bytes = take(length).expect("the bytes").to_vec();
                Call::Write { path: first, offset, bytes, is_synced: kind == b"d" }
            }
            (b"t", _) => Call::Truncate { path: first, bytes: number() },
            (b"s", _) => Call::Sync { path: first },
            (b"r", Some(to)) => Call::Rename { from: first, to },
            other => panic!("{other:?}"),
        });
    }
}

/// A change of a file's content, and whether it is on the disk for certain.
enum Change {
    Bytes(usize, Vec<u8>),
    Length(usize),
}

#[derive(Clone)]
enum NameChange {
    Made(PathBuf, usize),
    Moved(PathBuf, PathBuf, usize),
}

/// The certain and the possible content of a disk.
#[derive(Default)]
struct Disk {
    files: Vec<Vec<(Change, bool)>>,
    /// The names that programs see.
    names: HashMap<PathBuf, usize>,
    /// The names that are on the disk for certain, and those that may follow, in order.
    synced_names: HashMap<PathBuf, usize>,
    name_changes: Vec<NameChange>,
}

impl Disk {
    fn file(&mut self, path: &Path) -> usize {
        if let Some(&file) = self.names.get(path) {
            return file;
        }
        self.files.push(Vec::new());
        self.names.insert(path.to_owned(), self.files.len() - 1);
        self.name_changes.push(NameChange::Made(path.to_owned(), self.files.len() - 1));
        self.files.len() - 1
    }

    /// `is_done`: the call returned before the power cut.
    fn call(&mut self, call: &Call, is_done: bool) {
        match call {
            Call::Write { path, offset, bytes, is_synced } => {
                let file = self.file(path);
                self.files[file].push((Change::Bytes(*offset, bytes.clone()), *is_synced && is_done));
            }
            Call::Truncate { path, bytes } => {
                let file = self.file(path);
                self.files[file].push((Change::Length(*bytes), false));
            }
            Call::Rename { from, to } => {
                let file = self.names.remove(from).expect("it was there");
                self.names.insert(to.clone(), file);
                self.name_changes.push(NameChange::Moved(from.clone(), to.clone(), file));
            }
            Call::Sync { .. } if !is_done => {}
            Call::Sync { path } => match self.names.get(path) {
                Some(&file) => self.files[file].iter_mut().for_each(|(_, is_synced)| *is_synced = true),
                None => {
                    // A directory.
                    for change in std::mem::take(&mut self.name_changes) {
                        let (NameChange::Made(name, _) | NameChange::Moved(_, name, _)) = &change;
                        if name.parent() == Some(path) {
                            rename(&mut self.synced_names, &change);
                        } else {
                            self.name_changes.push(change);
                        }
                    }
                }
            },
        }
    }

    /// Writes the files as they may be after the power cut.
    fn write_out(&self, base: &Path, to: &Path, random: &mut Random) {
        let mut names = self.synced_names.clone();
        let certain = random.below(self.name_changes.len() as u64 + 1) as usize;
        self.name_changes[..certain].iter().for_each(|change| rename(&mut names, change));
        // All or nothing of the unsynced changes, or some of them, torn at sectors.
        let luck = random.below(4);
        let mut is_lucky = || match luck {
            0 => true,
            1 => false,
            _ => random.below(2) == 0,
        };
        for (name, file) in names {
            let mut content: Vec<u8> = Vec::new();
            for (change, is_synced) in &self.files[file] {
                match change {
                    Change::Bytes(offset, bytes) => {
                        let mut at = 0;
                        while at < bytes.len() {
                            let sector_end = (offset + at + 1).next_multiple_of(SECTOR_BYTES) - offset;
                            let end = sector_end.min(bytes.len());
                            if *is_synced || is_lucky() {
                                content.resize(content.len().max(offset + end), 0);
                                content[offset + at..offset + end].copy_from_slice(&bytes[at..end]);
                            }
                            at = end;
                        }
                    }
                    Change::Length(length) if *is_synced || is_lucky() => content.resize(*length, 0),
                    Change::Length(_) => {}
                }
            }
            let path = to.join(name.strip_prefix(base).expect("below it"));
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, content).expect("a file");
        }
    }
}

fn rename(names: &mut HashMap<PathBuf, usize>, change: &NameChange) {
    match change {
        NameChange::Made(name, file) => drop(names.insert(name.clone(), *file)),
        NameChange::Moved(from, to, file) => {
            names.remove(from);
            names.insert(to.clone(), *file);
        }
    }
}

#[test]
fn what_was_acknowledged_outlives_a_power_cut() {
    let dir = tempfile::tempdir().expect("a directory");
    let base = dir.path().canonicalize().expect("it is there").join("base");
    fs::create_dir(&base).expect("a directory");
    let (data, record) = (base.join("made").join("data"), dir.path().join("record"));
    let mut command = command("power", &data);
    output(Faults::on(&base).load(command.env("FAULTS_RECORD", &record)));
    let calls = calls(&fs::read(record).expect("a record"));
    assert!(calls.len() > 3 * COMMITS as usize, "{} calls", calls.len());

    let is_note = |call: &Call| matches!(call, Call::Write { path, .. } if path.ends_with("acknowledged"));
    let first = calls.iter().position(is_note).expect("an acknowledged commit");
    for made in [base.clone(), base.join("made"), data.clone()] {
        let is_synced = calls[..first].iter().any(|call| matches!(call, Call::Sync { path } if *path == made));
        assert!(is_synced, "the entries of {} were not synced before the first commit", made.display());
    }

    // The number of disks for each point of the record.
    let disks = number::<u64>("FLATBED_CRASH_KILLS").unwrap_or_default().clamp(1, 10);
    let seed = number(SEED).unwrap_or(1);
    eprintln!("again: {SEED}={seed} cargo test -p fdb-embedded --test failing_disk power -- --nocapture");
    // In memory if possible: the disks are many, and their syncs do not matter.
    let memory = Path::new("/dev/shm");
    let places = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let (mut random, mut acknowledged, mut beyond) = (Random(seed), 0, 0);
    for (at, call) in calls.iter().enumerate() {
        for _ in 0..disks {
            let mut cut = Disk::default();
            calls[..at].iter().for_each(|call| cut.call(call, true));
            cut.call(call, false);
            let place = tempfile::tempdir_in(&places).expect("a directory");
            cut.write_out(&base, place.path(), &mut random);
            let engine = open(&place.path().join("made").join("data"));
            let pairs = range(&engine.transaction(), b"", b"\xff", &RangeOptions::default()).expect("a range");
            let found: State = pairs.into_iter().collect();
            let newest =
                found.get(&b"newest"[..]).map(|value| u64::from_be_bytes(value[..].try_into().expect("a number")));
            let commits = newest.map_or(0, |newest| newest + 1);
            assert!(
                commits >= acknowledged && commits <= acknowledged + 1,
                "call {at}: {acknowledged}, found {commits}"
            );
            assert!(found == state_after(commits), "call {at}: not the state after {commits} commits");
            beyond += u64::from(commits > acknowledged);
        }
        acknowledged += u64::from(is_note(call));
    }
    assert_eq!(acknowledged, COMMITS);
    eprintln!("{} disks, {beyond} of them with a commit that was never acknowledged", calls.len() as u64 * disks);
}
