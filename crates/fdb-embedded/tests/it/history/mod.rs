//! Concurrent random transactions, recorded and replayed: every committed history is serializable in the order of its
//! versionstamps, and nothing is refused without a reason.
//!
//! Each case has an engine and four threads, each with three open transactions, over a few keys. For each transaction
//! the test checks that every read is that of a model at its read version, and that its conflict ranges are the
//! model's. If it was committed, no commit since its read version wrote into its read conflicts, and its reads without
//! `snapshot` would answer the same at the moment of its commit. If it was refused with 1020, such a write exists; with 1007, it was
//! too old. The final database is that of all commits in order.
//!
//! `FLATBED_HISTORY_CASES` is the number of cases, `FLATBED_HISTORY_SEED` their seed. A failure prints the seed of its
//! case, which gives the same plans; the scheduling of the threads is random.

mod check;
mod model;
mod plan;
mod ranges;
mod run;

use std::cell::Cell;
use std::time::Duration;

use self::check::Counts;
use self::model::Map;
use self::run::Record;
use fdb_embedded::{Engine, Error, RangeOptions};
use flatbed_testkit::{number, pass_blocking};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

const CASES: &str = "FLATBED_HISTORY_CASES";
const CASES_DEFAULT: u64 = 80;
const SEED: &str = "FLATBED_HISTORY_SEED";

fn content(engine: &Engine) -> Map {
    let all = crate::common::range(&engine.transaction(), b"", b"\xff", &RangeOptions::default());
    all.expect("the database").into_iter().collect()
}

fn case(plans: &[plan::Thread]) -> Result<Counts, String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let engine = crate::common::open(dir.path());
    let records: Vec<Record> = run::run(&engine, plans);
    check::check(&records, &content(&engine))
}

#[test]
fn concurrent_histories_are_serializable_and_nothing_is_refused_without_a_reason() {
    let cases = number(CASES).unwrap_or(CASES_DEFAULT);
    let first: u64 = number(SEED).unwrap_or_else(|| flatbed_testkit::seed(1));
    let total = Cell::new(Counts::default());
    for number in 0..cases {
        let seed = first.wrapping_add(number);
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        // Smaller plans would be scheduled differently, so the first failure is reported, with its transaction.
        let config = Config { cases: 1, max_shrink_iters: 0, failure_persistence: None, ..Config::default() };
        let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
        let result = runner.run(&plan::threads(), |plans| {
            let counts = case(&plans).map_err(TestCaseError::fail)?;
            let mut sum = total.get();
            sum.add(counts);
            total.set(sum);
            Ok(())
        });
        if let Err(TestError::Fail(reason, _) | TestError::Abort(reason)) = result {
            panic!("{SEED}={seed} {CASES}=1 makes these plans\n{reason}");
        }
    }
    let total = total.get();
    println!("{cases} cases from seed {first}: {total:?}");
    assert!(cases < 10 || (total.conflicts > 20 && total.overtaken > 100), "hardly anything ran at once: {total:?}");
}

#[test]
fn only_what_is_older_than_five_seconds_is_too_old() {
    const AGE_MAX: i64 = 5_000_000;
    let dir = tempfile::tempdir().unwrap();
    let engine = crate::common::open(dir.path());
    let now = || engine.transaction().get_read_version().unwrap();
    let readers: Vec<_> = (0..16u8).map(|number| (number, engine.transaction())).collect();
    for (number, reader) in &readers {
        reader.get(&[*number], false).unwrap();
    }
    let (mut committed, mut refused) = (0, 0);
    for (number, reader) in readers {
        // Half of them run while they are young, and their state becomes outdated all the time.
        pass_blocking(Duration::from_millis(if number == 10 { 2_000 } else { 350 }));
        crate::common::set(&engine, b"other", &[number]);
        let version = reader.get_read_version().unwrap();
        let before = now() - version;
        reader.set(b"k", &[number]);
        match crate::common::commit(&reader) {
            Ok(()) => {
                assert!(before <= AGE_MAX, "committed at an age of {before}");
                committed += 1;
            }
            Err(Error::TRANSACTION_TOO_OLD) => {
                let age = now() - version;
                assert!(age > AGE_MAX, "too old at an age of {age}");
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    println!("{committed} young ones were committed, {refused} old ones were not");
    assert!(refused > 0);
}
