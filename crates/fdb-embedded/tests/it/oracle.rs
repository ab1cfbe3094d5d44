//! Replays the answers of a real FoundationDB 7.3 cluster to scripted transactions.
//!
//! A trace is JSON lines, one scenario per line: `{"name", "steps": [[operation, transaction, arguments...,
//! answer]]}`, with keys and values in hex. Each scenario starts on an empty key space under `oracle/`.
//! `FDB_ORACLE_TRACES` adds traces: paths separated by colons.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use fdb_embedded::{Completion, Engine, Error, KeySelector, OpenOptions, RangeOptions, Result, Transaction};
use flatbed_testkit::{PATIENCE, pass_blocking};
use serde_json::{Value, json};
use sha1::Digest;

const PREFIX: &[u8] = b"oracle/";
const END: &[u8] = b"oracle0";

/// A callback, and the receiver of its result.
fn promise<T: Send + 'static>() -> (Completion<T>, Receiver<Result<T>>) {
    let (sender, receiver) = channel();
    (Box::new(move |result| drop(sender.send(result))), receiver)
}

fn wait<T>(receiver: &Receiver<Result<T>>) -> Result<T> {
    receiver.recv_timeout(PATIENCE).expect("an answer")
}

fn unhex(value: &Value) -> Vec<u8> {
    let text = value.as_str().expect("hex");
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex")).collect()
}

fn hex_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Hex; a long value as its length and digest.
fn hex(bytes: &[u8]) -> Value {
    if bytes.len() <= 1000 {
        return json!(hex_of(bytes));
    }
    json!(format!("#{}:{}", bytes.len(), hex_of(&sha1::Sha1::digest(bytes))))
}

struct Selector(Vec<u8>, bool, i32);

impl Selector {
    fn of(value: &Value) -> Selector {
        let number = i32::try_from(value[2].as_i64().expect("offset")).expect("offset");
        Selector(unhex(&value[0]), value[1].as_bool().expect("or_equal"), number)
    }

    fn get(&self) -> KeySelector<'_> {
        KeySelector { key: &self.0, or_equal: self.1, offset: self.2 }
    }
}

/// Reads a range as the bindings do: call after call until nothing is left.
fn read_range(
    transaction: &Transaction,
    mut begin: Selector,
    mut end: Selector,
    options: &RangeOptions,
) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let (mut options, mut pairs) = (options.clone(), Vec::new());
    loop {
        let result = transaction.get_range(begin.get(), end.get(), &options)?;
        let count = result.pairs.len();
        pairs.extend(result.iter().map(|(key, value)| (key.to_vec(), value.to_vec())));
        let count_as_limit = i32::try_from(count).expect("a count");
        if count == 0 || !result.more || options.limit == count_as_limit {
            return Ok(pairs);
        }
        if options.limit > 0 {
            options.limit -= count_as_limit;
        }
        options.iteration += 1;
        let last = pairs[pairs.len() - 1].0.clone();
        if options.reverse {
            end = Selector(last, false, 1);
        } else {
            begin = Selector(last, true, 1);
        }
    }
}

struct Run<'e> {
    engine: &'e Engine,
    transactions: HashMap<String, Transaction>,
    watches: HashMap<String, (Option<fdb_embedded::WatchId>, Receiver<Result<()>>)>,
    stamps: HashMap<String, Receiver<Result<[u8; 10]>>>,
}

impl Run<'_> {
    fn tr(&self, name: &str) -> &Transaction {
        &self.transactions[name]
    }

    fn commit(&self, name: &str) -> Result<()> {
        let (done, answer) = promise();
        self.tr(name).commit(done);
        wait(&answer)
    }

    fn stamp(&mut self, name: &str) {
        let (done, answer) = promise();
        self.tr(name).get_versionstamp(done);
        self.stamps.insert(name.to_owned(), answer);
    }

    /// Runs one step. Returns the answer in the trace's form; `recorded` is the cluster's.
    fn step(&mut self, op: &str, name: &str, args: &[Value], recorded: &Value) -> Result<Value> {
        let flag = |at: usize| args[at].as_bool().expect("a flag");
        let key = |at: usize| unhex(&args[at]);
        let null = Ok(Value::Null);
        match op {
            "new" => {
                self.transactions.insert(name.to_owned(), self.engine.transaction());
                null
            }
            "get_read_version" => Ok(json!(self.tr(name).get_read_version()? > 0)),
            "option" => {
                let number = args.get(1).map(|value| value.as_i64().expect("a number").to_le_bytes());
                let code = match args[0].as_str().expect("an option") {
                    "next_write_no_write_conflict_range" => 30,
                    "read_your_writes_disable" => 51,
                    "timeout" => 500,
                    "retry_limit" => 501,
                    "max_retry_delay" => 502,
                    "size_limit" => 503,
                    "snapshot_ryw_enable" => 600,
                    "snapshot_ryw_disable" => 601,
                    "access_system_keys" => 301,
                    "read_system_keys" => 302,
                    other => panic!("option {other}"),
                };
                self.tr(name).set_option(code, number.as_ref().map(|bytes| &bytes[..]))?;
                null
            }
            "get" => Ok(self.tr(name).get(&key(0), flag(1))?.map_or(Value::Null, |value| hex(&value))),
            "get_key" => {
                let found = self.tr(name).get_key(Selector::of(&args[0]).get(), flag(1))?;
                Ok(match found.as_slice() {
                    below if below < PREFIX => json!("<"),
                    above if above >= END => json!(">"),
                    inside => hex(inside),
                })
            }
            "get_range" => {
                let mode = match args[5].as_str().expect("a mode") {
                    "want_all" => -2,
                    "iterator" => -1,
                    "exact" => 0,
                    "small" => 1,
                    "medium" => 2,
                    "large" => 3,
                    "serial" => 4,
                    other => panic!("mode {other}"),
                };
                let limit = i32::try_from(args[2].as_i64().expect("a limit")).expect("a limit");
                let (reverse, snapshot) = (flag(3), flag(4));
                let options = RangeOptions { limit, mode, reverse, snapshot, ..RangeOptions::default() };
                let pairs = read_range(self.tr(name), Selector::of(&args[0]), Selector::of(&args[1]), &options)?;
                Ok(pairs.iter().map(|(key, value)| json!([hex(key), hex(value)])).collect())
            }
            "set" => {
                self.tr(name).set(&key(0), &key(1));
                null
            }
            "set_sized" => {
                let (key_bytes, value_bytes) = (args[0].as_i64().expect("bytes"), args[1].as_u64().expect("bytes"));
                let key = match usize::try_from(key_bytes) {
                    Ok(bytes) => [PREFIX, &vec![b'k'; bytes]].concat()[..bytes].to_vec(),
                    Err(_) => b"\xff/out".to_vec(),
                };
                self.tr(name).set(&key, &vec![b'v'; value_bytes as usize]);
                null
            }
            "fill" => {
                for at in 0..args[0].as_u64().expect("a count") {
                    let key = [PREFIX, at.to_string().as_bytes()].concat();
                    self.tr(name).set(&key, &vec![b'v'; args[1].as_u64().expect("bytes") as usize]);
                }
                null
            }
            "clear" => {
                self.tr(name).clear(&key(0));
                null
            }
            "clear_range" => {
                self.tr(name).clear_range(&key(0), &key(1));
                null
            }
            "atomic" => {
                let code = match args[0].as_str().expect("an operation") {
                    "add" => 2,
                    "bit_and" => 6,
                    "bit_or" => 7,
                    "bit_xor" => 8,
                    "append_if_fits" => 9,
                    "max" => 12,
                    "min" => 13,
                    "byte_min" => 16,
                    "byte_max" => 17,
                    "compare_and_clear" => 20,
                    other => panic!("operation {other}"),
                };
                self.tr(name).atomic_op(&key(1), &key(2), code);
                null
            }
            "stamp_key" => {
                let place = u32::try_from(key(0).len()).expect("a place").to_le_bytes();
                let raw = [&key(0)[..], &[0xff; 10], &key(1), &place].concat();
                self.tr(name).atomic_op(&raw, b"stamped", 14);
                self.stamp(name);
                null
            }
            "stamp_value" => {
                let raw = [&b"<"[..], &[0xff; 10], b">", &1u32.to_le_bytes()].concat();
                self.tr(name).atomic_op(&key(0), &raw, 15);
                self.stamp(name);
                null
            }
            "stamp_check" => {
                let stamp = wait(&self.stamps[name])?;
                let reader = self.engine.transaction();
                if flag(2) {
                    let value = reader.get(&key(0), false)?.unwrap_or_default();
                    return Ok(json!(value.get(1..11) == Some(&stamp[..])));
                }
                Ok(json!(reader.get(&[&key(0)[..], &stamp, &key(1)].concat(), false)?.is_some()))
            }
            "read_conflict" | "write_conflict" => {
                self.tr(name).add_conflict_range(&key(0), &key(1), op == "write_conflict")?;
                null
            }
            "commit" => self.commit(name).map(|()| json!("ok")),
            "committed_version" => {
                let version = self.tr(name).committed_version()?;
                Ok(if version > 0 { json!("set") } else { json!(version) })
            }
            "versionstamp_error" => {
                self.stamp(name);
                self.commit(name)?;
                Ok(json!(wait(&self.stamps[name])?.len()))
            }
            "on_error" => {
                let (done, answer) = promise();
                self.tr(name).on_error(i32::try_from(args[0].as_i64().expect("a code")).expect("a code"), done);
                wait(&answer).map(|()| json!("retry"))
            }
            "reset" => {
                self.tr(name).reset();
                null
            }
            "cancel" => {
                self.tr(name).cancel();
                null
            }
            "approximate_size_grows" => Ok(json!(self.tr(name).get_approximate_size()? > 0)),
            "watch" => {
                let (done, answer) = promise();
                let id = self.tr(name).watch(&key(1), done);
                self.watches.insert(args[0].as_str().expect("a name").to_owned(), (id, answer));
                null
            }
            "watch_state" => {
                // A watch that is recorded as fired is waited for.
                let patience = if recorded == "fired" { PATIENCE } else { Duration::from_millis(50) };
                let fired = self.watches[name].1.recv_timeout(patience).is_ok();
                Ok(json!(if fired { "fired" } else { "waiting" }))
            }
            "watch_cancel" => {
                if let (Some(id), _) = self.watches[name] {
                    self.engine.cancel_watch(id);
                }
                null
            }
            "sleep" => {
                pass_blocking(Duration::from_secs_f64(args[0].as_f64().expect("seconds")));
                null
            }
            "dump" => {
                let all = RangeOptions::default();
                let ends = (Selector(PREFIX.to_vec(), false, 1), Selector(END.to_vec(), false, 1));
                let pairs = read_range(&self.engine.transaction(), ends.0, ends.1, &all)?;
                let is_stamped = |value: &[u8]| {
                    value.windows(7).any(|part| part == b"stamped") || value.starts_with(b"<") && value.ends_with(b">")
                };
                let plain = pairs.iter().filter(|(_, value)| !is_stamped(value));
                Ok(plain.map(|(key, value)| json!([hex(key), hex(value)])).collect())
            }
            other => panic!("operation {other}"),
        }
    }
}

/// Plays a scenario. Returns the first difference.
fn play(engine: &Engine, scenario: &Value) -> Option<String> {
    let cleaner = engine.transaction();
    cleaner.clear_range(PREFIX, END);
    let (done, answer) = promise();
    cleaner.commit(done);
    wait(&answer).expect("clearing");
    let mut run = Run { engine, transactions: HashMap::new(), watches: HashMap::new(), stamps: HashMap::new() };
    for (at, step) in scenario["steps"].as_array().expect("steps").iter().enumerate() {
        let step = step.as_array().expect("a step");
        let (recorded, call) = step.split_last().expect("a step");
        let (op, name) = (call[0].as_str().expect("an operation"), call[1].as_str().expect("a name"));
        let answered = match run.step(op, name, &call[2..], recorded) {
            Ok(answer) => answer,
            Err(Error(code)) => json!({ "error": code }),
        };
        if answered != *recorded {
            let name = &scenario["name"];
            return Some(format!("{name} step {at} {call:?}: recorded {recorded}, answered {answered}"));
        }
    }
    None
}

/// Replays the scenarios of a trace for which `is_meant` holds, given their position in the file and their name.
fn replay(path: &Path, options: OpenOptions, is_meant: impl Fn(usize, &str) -> bool) {
    let text = std::fs::read_to_string(path).expect("a trace");
    let dir = tempfile::tempdir().expect("a directory");
    let engine = Engine::open(dir.path(), options).expect("an engine");
    engine.set_default_option(500, Some(&120_000i64.to_le_bytes())).expect("an option");
    let started = Instant::now();
    let mut differences = Vec::new();
    let mut count = 0;
    for (place, line) in text.lines().enumerate() {
        let scenario: Value = serde_json::from_str(line).expect("JSON");
        if !is_meant(place, scenario["name"].as_str().expect("a name")) {
            continue;
        }
        differences.extend(play(&engine, &scenario));
        count += 1;
    }
    println!("{}: {count} scenarios in {:?}", path.display(), started.elapsed());
    assert!(count > 0, "an empty trace");
    let shown = differences.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
    assert!(differences.is_empty(), "{} of {count} scenarios differ:\n{shown}", differences.len());
}

fn committed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/bindings/oracle").join(name)
}

#[test]
fn scripted_corners() {
    replay(&committed("scripted.jsonl"), OpenOptions::default(), |_, _| true);
}

/// A few seconds of scenarios, including all that once differed. `make test-oracle` replays all.
fn is_in_short_form(place: usize, name: &str) -> bool {
    place < 341 || name == "random-1724"
}

#[test]
fn random_transactions() {
    replay(&committed("random-1000.jsonl"), OpenOptions::default(), is_in_short_form);
}

/// Cleared records stay on disk, hidden: no answer may reveal them.
#[test]
fn random_transactions_over_pending_clears() {
    let mut options = OpenOptions::default();
    options.clear_records_max = Some(0);
    options.is_removal_paused = true;
    replay(&committed("random-1000.jsonl"), options, is_in_short_form);
}

#[test]
fn further_traces() {
    for path in std::env::var("FDB_ORACLE_TRACES").unwrap_or_default().split(':').filter(|path| !path.is_empty()) {
        replay(Path::new(path), OpenOptions::default(), |_, _| true);
    }
}
