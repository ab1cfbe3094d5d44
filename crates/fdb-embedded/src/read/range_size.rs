//! Range sizes and split points: exact for small ranges, estimated for larger ones.
//!
//! On a cluster both are estimates from a sample of the keys, and neither depends on a transaction's read version or
//! its own writes.

use std::fs::File;
use std::path::Path;

use crate::base::error::{Error, Result};
use crate::disk::format;
use crate::disk::tree_sample::{SampleRange, sample};
use crate::read::snapshot::{ReadPoint, Versions};

/// The largest range that is read whole.
const EXACT_KEYS_MAX: usize = 100_000;
const EXACT_BYTES_MAX: usize = 256 << 20;
/// Keys read in one turn; other readers of the same state run between turns.
const KEYS_A_TURN: usize = 1_000;
/// Attempts with another state after the committer overtook the current one.
const ATTEMPTS: usize = 8;

/// The state that sizes are measured on.
#[derive(Clone, Copy)]
pub(crate) struct SizeSource<'m> {
    pub(crate) versions: &'m Versions,
    /// The data directory, whose file is sampled.
    pub(crate) dir: &'m Path,
}

/// Returns the bytes of the keys and values in `[begin, end)`.
pub(crate) fn size(source: SizeSource<'_>, begin: &[u8], end: &[u8]) -> Result<i64> {
    let mut size = 0.0;
    for_each(source, begin, end, EXACT_KEYS_MAX, || 0.0, &mut size, |size, _, bytes| *size += bytes)?;
    Ok(size as i64)
}

/// Returns keys that split `[begin, end)` into pieces of about `chunk_bytes`, which is positive; begin and end
/// included.
pub(crate) fn split_points(source: SizeSource<'_>, begin: &[u8], end: &[u8], chunk_bytes: i64) -> Result<Vec<Vec<u8>>> {
    let new = || Splitter::new(begin, chunk_bytes as f64);
    let mut splitter = new();
    for_each(source, begin, end, EXACT_KEYS_MAX, new, &mut splitter, Splitter::add)?;
    let mut points = splitter.points;
    points.push(end.to_vec());
    points.dedup();
    Ok(points)
}

/// Splits where FoundationDB's storage server does: a piece ends before the pair that would make it too large.
struct Splitter {
    points: Vec<Vec<u8>>,
    chunk_bytes: f64,
    /// Bytes since the last point.
    bytes: f64,
    /// True if the last point is itself larger than a piece, so that the next key is a point too.
    is_next_wanted: bool,
}

impl Splitter {
    fn new(begin: &[u8], chunk_bytes: f64) -> Splitter {
        Splitter { points: vec![begin.to_vec()], chunk_bytes, bytes: 0.0, is_next_wanted: false }
    }

    fn add(&mut self, key: &[u8], bytes: f64) {
        let is_last_point = self.points.last().is_some_and(|point| point == key);
        let crosses = self.bytes + bytes > self.chunk_bytes;
        if !is_last_point && (crosses || self.is_next_wanted) {
            self.points.push(key.to_vec());
            self.bytes = 0.0;
        }
        self.is_next_wanted = self.bytes == 0.0 && bytes > self.chunk_bytes;
        self.bytes += bytes;
    }
}

/// Calls `each` with keys of the range, ascending, and the bytes from each key to the next. Starts again with a `new`
/// state if the range turns out to be too large for an exact answer.
fn for_each<T>(
    source: SizeSource<'_>,
    begin: &[u8],
    end: &[u8],
    keys_max: usize,
    new: impl Fn() -> T,
    state: &mut T,
    mut each: impl FnMut(&mut T, &[u8], f64),
) -> Result<()> {
    if begin >= end || for_each_exact(source, begin, end, keys_max, |key, bytes| each(state, key, bytes))? {
        return Ok(());
    }
    let failed = |_| Error::IO_ERROR;
    let file = File::open(source.dir.join(format::DATA_FILE)).map_err(failed)?;
    for _ in 0..ATTEMPTS {
        *state = new();
        // The point keeps LMDB from reusing the pages of its state.
        let point = source.versions.acquire(false)?;
        let (transaction, clears) = point.snapshot.with(|stored| Ok((stored.txn.id(), stored.clears.clone())))?;
        let range = SampleRange { begin, end, clears: &clears };
        let sampled = sample(&file, transaction as u64, &range, &mut |key, bytes| each(state, key, bytes));
        if sampled.map_err(|_| Error::IO_ERROR)? {
            return Ok(());
        }
    }
    Err(Error::PROCESS_BEHIND)
}

/// Calls `each` for every single pair; false if there are too many.
fn for_each_exact(
    source: SizeSource<'_>,
    begin: &[u8],
    end: &[u8],
    keys_max: usize,
    mut each: impl FnMut(&[u8], f64),
) -> Result<bool> {
    let ReadPoint { snapshot, .. } = source.versions.acquire(false)?;
    let (mut keys, mut bytes) = (0, 0);
    let mut from = begin.to_vec();
    loop {
        let last = snapshot.with(|stored| {
            let failed = |_| Error::IO_ERROR;
            let mut pairs = stored.ascend(&from).map_err(failed)?;
            let mut last = None;
            for at in 0..KEYS_A_TURN {
                let Some((key, value)) = pairs.next().map_err(failed)?.filter(|(key, _)| key.as_ref() < end) else {
                    return Ok(None);
                };
                let pair_bytes = key.len() + value.len();
                (keys, bytes) = (keys + 1, bytes + pair_bytes);
                if keys > keys_max || bytes > EXACT_BYTES_MAX {
                    break;
                }
                each(&key, pair_bytes as f64);
                if at + 1 == KEYS_A_TURN {
                    last = Some(key.into_owned());
                }
            }
            Ok(Some(last))
        })?;
        match last {
            None => return Ok(true),
            Some(None) => return Ok(false),
            Some(Some(mut key)) => {
                key.push(0);
                from = key;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::{Engine, OpenOptions};

    fn commit(engine: &Engine, write: impl FnOnce(&crate::Transaction)) {
        let transaction = engine.transaction();
        write(&transaction);
        let (sender, receiver) = channel();
        transaction.commit(Box::new(move |result| sender.send(result).unwrap_or_default()));
        receiver.recv().unwrap().unwrap();
    }

    fn source(engine: &Engine) -> SizeSource<'_> {
        SizeSource { versions: &engine.core().versions, dir: &engine.core().dir }
    }

    /// Fills an engine with sizes that vary along the keys, some values on overflow pages, some keys in buckets.
    fn fill(engine: &Engine, keys: usize) {
        for from in (0..keys).step_by(5_000) {
            commit(engine, |transaction| {
                for number in from..(from + 5_000).min(keys) {
                    let long = if number % 1_000 == 0 { 2_500 } else { 0 };
                    let key = [format!("{number:07}").into_bytes(), vec![b'k'; long]].concat();
                    let value_bytes = if number % 500 == 0 { 9_000 } else { 20 + number % 90 };
                    transaction.set(&key, &vec![b'v'; value_bytes]);
                }
            });
        }
    }

    fn estimate(source: SizeSource<'_>, begin: &[u8], end: &[u8], keys_max: usize) -> f64 {
        let mut size = 0.0;
        for_each(source, begin, end, keys_max, || 0.0, &mut size, |size, _, bytes| *size += bytes).unwrap();
        size
    }

    fn key(number: usize) -> Vec<u8> {
        format!("{number:07}").into_bytes()
    }

    #[test]
    fn an_estimate_is_near_and_small_ranges_are_exact() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::open(dir.path(), OpenOptions::default()).unwrap();
        fill(&engine, 40_000);
        let all = source(&engine);
        for (from, to) in [(0, 40_000), (5_000, 35_000), (1_234, 9_876), (39_000, 39_990), (17, 45)] {
            let exact = estimate(all, &key(from), &key(to), usize::MAX);
            let estimated = estimate(all, &key(from), &key(to), 0);
            assert!((estimated / exact - 1.0).abs() < 0.2, "{from} to {to}: {estimated} for {exact}");
            assert_eq!(size(all, &key(from), &key(to)), Ok(exact as i64));
        }
        assert_eq!(estimate(all, b"x", b"y", 0), 0.0);
        assert_eq!(estimate(all, b"y", b"x", 0), 0.0);
        // Hidden records do not count, though they are still stored.
        let hidden = Engine::open(&dir.path().join("hidden"), {
            let mut options = OpenOptions::default();
            (options.clear_records_max, options.is_removal_paused) = (Some(10), true);
            options
        });
        let hidden = hidden.unwrap();
        fill(&hidden, 40_000);
        commit(&hidden, |transaction| transaction.clear_range(&key(10_000), &key(30_000)));
        let (exact, estimated) =
            (estimate(source(&hidden), b"", b"\xff", usize::MAX), estimate(source(&hidden), b"", b"\xff", 0));
        assert!((estimated / exact - 1.0).abs() < 0.2, "{estimated} for {exact}");
    }

    #[test]
    fn pieces_are_about_as_large_as_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::open(dir.path(), OpenOptions::default()).unwrap();
        fill(&engine, 40_000);
        let source = source(&engine);
        for keys_max in [0, usize::MAX] {
            let new = || Splitter::new(b"", 100_000.0);
            let mut splitter = new();
            for_each(source, b"", b"\xff", keys_max, new, &mut splitter, Splitter::add).unwrap();
            let points = splitter.points;
            assert!(points.is_sorted_by(|a, b| a < b));
            let total = estimate(source, b"", b"\xff", usize::MAX);
            let pieces: Vec<_> =
                points.windows(2).map(|ends| estimate(source, &ends[0], &ends[1], usize::MAX)).collect();
            assert!((pieces.len() as f64) > total / 150_000.0, "{} pieces of {total}", pieces.len());
            assert!(pieces.iter().all(|&piece| piece < 160_000.0), "{pieces:?}");
        }
    }

    #[test]
    fn points_are_those_of_a_storage_server() {
        // The example of FoundationDB's own tests, in which every key has been sampled.
        let sizes: [(&[u8], f64); 8] = [
            (b"A", 200.0),
            (b"Absolute", 800.0),
            (b"Apple", 1_000.0),
            (b"Bah", 20.0),
            (b"Banana", 80.0),
            (b"Bob", 200.0),
            (b"But", 100.0),
            (b"Cat", 300.0),
        ];
        let points = |chunk_bytes: f64| {
            let mut splitter = Splitter::new(b"A", chunk_bytes);
            sizes.iter().filter(|(key, _)| *key < &b"C"[..]).for_each(|(key, bytes)| splitter.add(key, *bytes));
            splitter.points.split_off(1)
        };
        assert_eq!(points(600.0), [b"Absolute".to_vec(), b"Apple".to_vec(), b"Bah".to_vec()]);
        assert_eq!(points(2_000.0), [b"Bah".to_vec()]);
        assert_eq!(points(10_000.0), [b""; 0]);
    }
}
