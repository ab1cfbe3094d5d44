//! The expected database after a kill, and the comparison with it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use fdb_embedded::{Engine, OpenOptions, RangeOptions};

use crate::common::{range, set};
use crate::plan::{Change, Id, Plan, PlanKind, hex, marker, progress, progress_value, register};

type Stamp = [u8; 10];

#[derive(Default)]
pub struct ChildReport {
    plans: HashMap<String, (Plan, i64)>,
    done: HashMap<String, (i64, Stamp)>,
    refused: BTreeSet<String>,
    /// The newest and the oldest version that the process reported.
    newest_version: i64,
    oldest_version: Option<i64>,
    pub opened: u64,
}

impl ChildReport {
    /// Parses the lines; the kill may cut the last one.
    pub fn read(text: &str) -> ChildReport {
        let mut told = ChildReport::default();
        let mut last_of_writer: HashMap<u64, i64> = HashMap::new();
        let lines = text.rsplit_once('\n').map_or("", |(whole, _)| whole).lines();
        for line in lines {
            let mut words = line.splitn(2, ' ');
            let (name, rest) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            match name {
                "open" => {
                    told.opened += 1;
                    told.saw(rest.parse().expect("a version"));
                }
                "plan" => {
                    let (read_version, plan) = rest.split_once(' ').expect("two parts");
                    let (read_version, plan): (i64, Plan) =
                        (read_version.parse().expect("a version"), plan.parse().expect("a plan"));
                    if read_version > 0 {
                        told.saw(read_version);
                        let committed = last_of_writer.get(&plan.id.writer).copied().unwrap_or_default();
                        assert!(read_version >= committed, "{plan} does not see the commit {committed} before it");
                    }
                    told.plans.insert(plan.id.text(), (plan, read_version));
                }
                "done" => {
                    let words: Vec<&str> = rest.split(' ').collect();
                    let [id, version, stamp] = words[..] else { panic!("{line}") };
                    let (plan, read_version) = told.plans[id];
                    let version: i64 = version.parse().expect("a version");
                    let stamp = stamp_of(stamp);
                    assert_eq!(stamp[..8], version.to_be_bytes(), "{line}: the stamp is of the commit version");
                    assert!(version > read_version, "{line}: read at {read_version}");
                    last_of_writer.insert(plan.id.writer, version);
                    told.saw(version);
                    told.done.insert(id.to_owned(), (version, stamp));
                }
                "refused" => {
                    told.refused.insert(rest.to_owned());
                }
                // Output of the test harness.
                _ => {}
            }
        }
        told
    }

    fn saw(&mut self, version: i64) {
        self.newest_version = self.newest_version.max(version);
        self.oldest_version = Some(self.oldest_version.map_or(version, |oldest| oldest.min(version)));
    }

    pub fn acknowledged(&self) -> usize {
        self.done.len()
    }
}

fn stamp_of(hex: &str) -> Stamp {
    let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).expect("a digit");
    std::array::from_fn(byte)
}

#[derive(Clone, Copy, Debug, Default)]
pub struct CheckCounts {
    pub acknowledged: u64,
    pub landed: u64,
    pub lost: u64,
    pub refused: u64,
    pub keys: u64,
    pub pending_clears: u64,
}

/// The database as it must be.
#[derive(Default)]
pub struct Model {
    state: BTreeMap<Vec<u8>, Vec<u8>>,
    newest_stamp: Stamp,
    newest_version: i64,
}

impl Model {
    /// Opens the directory of a process that was killed in its run `run`, and compares. `is_paused`: without removing
    /// pending clears.
    pub fn check(&mut self, dir: &Path, run: u64, told: &ChildReport, is_paused: bool) -> CheckCounts {
        let mut options = OpenOptions::default();
        options.is_removal_paused = is_paused;
        let engine = Engine::open(dir, options).expect("it opens");
        let files: BTreeSet<_> =
            dir.read_dir().expect("a directory").map(|entry| entry.expect("an entry").file_name()).collect();
        assert_eq!(files, ["data.mdb", "engine.lock", "lock.mdb"].map(Into::into).into(), "files in the directory");
        if let Some(oldest) = told.oldest_version {
            assert!(oldest >= self.newest_version, "a version went back from {} to {oldest}", self.newest_version);
        }
        if let Some(oldest) = told.done.values().map(|(version, _)| *version).min() {
            assert!(oldest > self.newest_version, "commit {oldest} comes after {}", self.newest_version);
        }
        self.newest_version = self.newest_version.max(told.newest_version);

        let transaction = engine.transaction();
        let read_version = transaction.get_read_version().expect("a version");
        assert!(read_version >= self.newest_version, "{read_version} comes after {}", self.newest_version);
        self.newest_version = read_version;

        let mut found = CheckCounts { refused: told.refused.len() as u64, ..CheckCounts::default() };
        let all = |reverse| {
            let options = RangeOptions { reverse, ..RangeOptions::default() };
            range(&transaction, b"", b"\xff", &options).expect("a range")
        };
        let pairs = all(false);
        let mut backwards = all(true);
        backwards.reverse();
        assert!(pairs == backwards, "read both ways");

        // The transactions found, in the order of their stamps.
        let prefix = format!("m/{run:06x}/").into_bytes();
        let mut there: BTreeMap<Stamp, Plan> = BTreeMap::new();
        for (key, stamp) in pairs.iter().filter(|(key, _)| key.starts_with(&prefix)) {
            let id = String::from_utf8_lossy(&key[2..]).into_owned();
            let (plan, _) = told.plans.get(&id).unwrap_or_else(|| panic!("{id} was not committed by any writer"));
            let stamp: Stamp = stamp[..].try_into().expect("a stamp");
            assert!(!told.refused.contains(&id), "{plan} was refused, but is in the database");
            assert!(stamp > self.newest_stamp, "{plan}: stamp {} is not above those of earlier runs", hex(&stamp));
            let twice = there.insert(stamp, *plan);
            assert_eq!(twice, None, "stamp {} was given twice", hex(&stamp));
            match told.done.get(&id) {
                Some((_, told)) => assert_eq!(hex(told), hex(&stamp), "{plan}"),
                None => found.landed += 1,
            }
        }
        for id in told.done.keys() {
            let key = [b"m/", id.as_bytes()].concat();
            assert!(pairs.binary_search_by(|(other, _)| other.cmp(&key)).is_ok(), "{id} was acknowledged, and is lost");
        }
        found.acknowledged = told.done.len() as u64;
        found.lost = told.plans.len() as u64 - found.refused - there.len() as u64;
        for (stamp, plan) in &there {
            self.apply(plan, *stamp);
            self.newest_stamp = *stamp;
        }
        self.compare(&pairs);
        found.keys = pairs.len() as u64;
        found.pending_clears = engine.stats().pending_clears;

        // The database accepts writes.
        let value = run.to_be_bytes();
        set(&engine, b"checked", &value);
        self.state.insert(b"checked".to_vec(), value.to_vec());
        self.newest_version = self.newest_version.max(engine.stats().last_committed_version);
        found
    }

    fn apply(&mut self, plan: &Plan, stamp: Stamp) {
        let Id { writer, .. } = plan.id;
        let now = |key: Vec<u8>| self.state.get(&key).cloned();
        match plan.kind {
            PlanKind::Register { register: at, read } => {
                let found =
                    now(register(at)).map_or(0, |value| u64::from_be_bytes(value.try_into().expect("a number")));
                assert_eq!(found, read, "{plan} read an overwritten value");
            }
            PlanKind::Fill { group, part } => {
                let found = now(progress(writer)).unwrap_or_else(|| progress_value(0, 0));
                assert_eq!(found, progress_value(group, part), "{plan} read an old state");
            }
            _ => {}
        }
        for change in plan.changes() {
            match change {
                Change::Set(key, value) => drop(self.state.insert(key, value)),
                Change::Add(key, number) => {
                    let mut before = self.state.get(&key).cloned().unwrap_or_default();
                    before.resize(8, 0);
                    let before = u64::from_le_bytes(before.try_into().expect("eight bytes"));
                    self.state.insert(key, before.wrapping_add(number).to_le_bytes().to_vec());
                }
                Change::Clear(begin, end) => {
                    let inside: Vec<_> = self.state.range(begin..end).map(|(key, _)| key.clone()).collect();
                    inside.iter().for_each(|key| drop(self.state.remove(key)));
                }
                Change::StampKey(prefix, value) => drop(self.state.insert([&prefix[..], &stamp].concat(), value)),
                Change::StampValue(key) => drop(self.state.insert(key, stamp.to_vec())),
            }
        }
        assert!(self.state.contains_key(&marker(&plan.id)));
    }

    fn compare(&self, pairs: &[(Vec<u8>, Vec<u8>)]) {
        let mut expected = self.state.iter();
        for (key, value) in pairs {
            let (expected_key, expected_value) = expected.next().unwrap_or_else(|| panic!("{} is too much", text(key)));
            assert_eq!(text(key), text(expected_key), "an unexpected key, or a missing one");
            assert!(
                value == expected_value,
                "{}: {} bytes instead of {}",
                text(key),
                value.len(),
                expected_value.len()
            );
        }
        assert_eq!(expected.next().map(|(key, _)| text(key)), None, "missing");
    }
}

fn text(key: &[u8]) -> String {
    key.escape_ascii().to_string()
}
