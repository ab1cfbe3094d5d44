//! What the tests share: waiting for callbacks.

// Each test program uses its part of this.
#![allow(dead_code)]

pub mod faults;

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use fdb_embedded::{Done, Engine, KeySelector, OpenOptions, RangeOptions, Result, Transaction};

/// A callback, and the end to wait for it at.
pub fn promise<T: Send + 'static>() -> (Done<T>, Receiver<Result<T>>) {
    let (sender, receiver) = channel();
    (Box::new(move |result| sender.send(result).unwrap_or_default()), receiver)
}

pub fn wait<T>(receiver: &Receiver<Result<T>>) -> Result<T> {
    receiver.recv_timeout(Duration::from_secs(30)).expect("an answer")
}

pub fn commit(transaction: &Transaction) -> Result<()> {
    let (done, answer) = promise();
    transaction.commit(done);
    wait(&answer)
}

pub fn on_error(transaction: &Transaction, code: i32) -> Result<()> {
    let (done, answer) = promise();
    transaction.on_error(code, done);
    wait(&answer)
}

pub fn open(dir: &std::path::Path) -> Engine {
    Engine::open(dir, OpenOptions::default()).expect("an engine")
}

/// Sets one key in a transaction of its own.
pub fn set(engine: &Engine, key: &[u8], value: &[u8]) {
    let transaction = engine.transaction();
    transaction.set(key, value);
    commit(&transaction).expect("a commit");
}

/// All pairs of a range, call after call.
pub fn range(
    transaction: &Transaction,
    begin: &[u8],
    end: &[u8],
    options: &RangeOptions,
) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let (mut pairs, mut options) = (Vec::new(), options.clone());
    let (mut begin, mut end) = ((begin.to_vec(), false), end.to_vec());
    loop {
        let from = KeySelector { key: &begin.0, or_equal: begin.1, offset: 1 };
        let page = transaction.get_range(from, KeySelector::first_greater_or_equal(&end), &options)?;
        pairs.extend(page.iter().map(|(key, value)| (key.to_vec(), value.to_vec())));
        let Some((last, _)) = pairs.last().filter(|_| page.more && options.limit == 0) else { return Ok(pairs) };
        if options.reverse {
            end.clone_from(last);
        } else {
            begin = (last.clone(), true);
        }
        options.iteration += 1;
    }
}

/// Numbers that follow from a seed (the generator is SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Less than `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn bytes(&mut self, count: u64) -> Vec<u8> {
        let words = (0..count.div_ceil(8)).flat_map(|_| self.next().to_le_bytes());
        words.take(count as usize).collect()
    }
}

/// Runs this test program again, with only its test `child`, and `variables` in its environment.
pub fn child(variables: &[(&str, &std::ffi::OsStr)]) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
    command.envs(variables.iter().copied()).stdin(std::process::Stdio::null());
    command
}
