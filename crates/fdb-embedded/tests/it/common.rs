//! Shared helpers: waiting for callbacks.

use std::sync::mpsc::{Receiver, channel};

use fdb_embedded::{Completion, Engine, KeySelector, OpenOptions, RangeOptions, Result, Transaction};
use flatbed_testkit::PATIENCE;

/// A callback, and the receiver of its result.
pub fn promise<T: Send + 'static>() -> (Completion<T>, Receiver<Result<T>>) {
    let (sender, receiver) = channel();
    (Box::new(move |result| sender.send(result).unwrap_or_default()), receiver)
}

pub fn wait<T>(receiver: &Receiver<Result<T>>) -> Result<T> {
    receiver.recv_timeout(PATIENCE).expect("an answer")
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

/// Reads all pairs of a range, page by page.
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
        if !page.more || options.limit != 0 {
            return Ok(pairs);
        }
        match pairs.last() {
            Some((last, _)) if options.reverse => end.clone_from(last),
            Some((last, _)) => begin = (last.clone(), true),
            None => {}
        }
        options.iteration += 1;
    }
}
