//! Answers delivered when a cluster would have sent them, by a clock that the test moves.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{Database, Future};
use fdb_capi::*;
use fdb_embedded::{Buggify, OpenOptions, SimulatedCluster, VirtualClock};

fn open(dir: &Path, has_server: bool, clock: Option<Arc<VirtualClock>>) -> Database {
    let mut cluster = SimulatedCluster::parse("1000,500,2000").unwrap();
    cluster.has_server = has_server;
    cluster.clock = clock;
    let mut options = OpenOptions::default();
    options.simulated = Some(cluster);
    Database(open_embedded(dir, options).unwrap())
}

/// Moves the clock until the future is ready. Returns the microseconds since `since`.
fn ready_after(clock: &VirtualClock, since: Duration, future: &Future) -> u128 {
    while !future.is_ready() {
        assert!(clock.advance(), "nothing is under way");
    }
    (clock.now() - since).as_micros()
}

#[test]
fn latencies_are_those_of_a_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::<VirtualClock>::default();
    let database = open(dir.path(), false, Some(Arc::clone(&clock)));
    let tr = database.transaction();
    tr.set(b"key", b"value");
    let own = tr.get(b"key");
    assert!(own.is_ready(), "its own writes answer it");
    // A commit without a read needs a read version too.
    let commit = tr.commit();
    assert_eq!(ready_after(&clock, Duration::ZERO, &commit), 2500);
    assert_eq!(commit.error(), 0);
    assert!(!clock.advance());

    let tr = database.transaction();
    let begun = clock.now();
    let (one, two) = (tr.get(b"key"), tr.range(b"", b"\xff", 0));
    assert!(!one.is_ready() && !two.is_ready());
    assert_eq!(ready_after(&clock, begun, &one), 1500);
    assert!(!two.is_ready(), "one at a time");
    assert_eq!(ready_after(&clock, begun, &two), 1500);
    assert_eq!(one.value(), Ok(Some(b"value".to_vec())));
    let three = tr.get(b"other");
    assert_eq!(ready_after(&clock, begun, &three), 2500);
    tr.set(b"key", b"new");
    let commit = tr.commit();
    assert_eq!(ready_after(&clock, begun, &commit), 4500);

    // The value that comes with the read version, and an empty commit.
    let tr = database.transaction();
    let begun = clock.now();
    let metadata = tr.get(b"\xff/metadataVersion");
    assert_eq!(ready_after(&clock, begun, &metadata), 500);
    assert_eq!(tr.commit().wait(), 0);
    assert_eq!((clock.now() - begun).as_micros(), 500);
}

/// A runtime that waits for one answer would wait for ever if the clock only moved to another.
#[test]
fn the_clock_is_moved_to_an_answer_that_somebody_waits_for() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::<VirtualClock>::default();
    let database = open(dir.path(), false, Some(Arc::clone(&clock)));
    let tr = database.transaction();
    let reads: Vec<_> = (0..3u8).map(|number| tr.get(&[number])).collect();
    let calls = reads[1].callback();
    assert!(advance(&clock));
    assert_eq!(calls.try_recv().map(|call| call.1), Ok(0));
    assert_eq!(reads.iter().map(Future::is_ready).collect::<Vec<_>>(), [true, true, false]);
    assert!(!advance(&clock), "the third answer has no callback");
    assert!(reads[2].is_ready());
}

#[test]
fn one_server_works_for_all() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::<VirtualClock>::default();
    let database = open(dir.path(), true, Some(Arc::clone(&clock)));
    let tr = database.transaction();
    for number in 0..100u8 {
        tr.set(&[number], &[0; 1000]);
    }
    // 100 keys of 13 µs take less than the commit's latency; another 300 take longer.
    let commit = tr.commit();
    assert_eq!(ready_after(&clock, Duration::ZERO, &commit), 2500);
    let (tr, begun) = (database.transaction(), clock.now());
    for number in 0..300u16 {
        tr.set(&number.to_be_bytes(), b"");
    }
    let commit = tr.commit();
    assert_eq!(ready_after(&clock, begun, &commit), 170 + 300 * 13);

    // About 80 kB in one range: beside 44 µs the time at 200 MB/s. Until then the server serves no other call.
    let (one, other, begun) = (database.transaction(), database.transaction(), clock.now());
    let ranges: Vec<_> = (0..4).map(|_| one.range(&[0], &[100], 0)).collect();
    let point = other.get(&[0]);
    let bytes = ranges.iter().map(|range| {
        ready_after(&clock, begun, range);
        range.pairs().unwrap().0.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() as u128
    });
    let bytes = bytes.collect::<Vec<_>>();
    assert!(bytes[0] > 50_000, "{bytes:?}");
    let work = 170 + bytes.iter().map(|bytes| 44 + bytes / 200).sum::<u128>();
    assert_eq!((clock.now() - begun).as_micros(), work);
    // It has its read version then, and is read after it.
    assert_eq!(ready_after(&clock, begun, &point), work + 170 + 1000);
    let (tr, begun) = (database.transaction(), clock.now());
    assert_eq!(ready_after(&clock, begun, &tr.get(b"x")), 1500);
}

#[test]
fn by_the_machines_clock_nothing_comes_too_early() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path(), true, None);
    for number in 0..20 {
        let (tr, due) = (database.transaction(), Instant::now() + Duration::from_micros(1500));
        let read = tr.get(b"key");
        assert_eq!(read.wait(), 0);
        assert!(Instant::now() >= due, "a read comes too early");
        tr.set(b"key", &[number]);
        let due = Instant::now() + Duration::from_micros(2000);
        assert_eq!(tr.commit().wait(), 0);
        assert!(Instant::now() >= due, "a commit comes too early");
    }
}

#[test]
fn what_ends_a_transaction_ends_answers_under_way() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::<VirtualClock>::default();
    let database = open(dir.path(), false, Some(Arc::clone(&clock)));
    let tr = database.transaction();
    let read = tr.get(b"key");
    // SAFETY: the transaction is alive.
    unsafe { fdb_transaction_cancel(tr.0) };
    assert_eq!(read.wait(), 1025);
    // A commit in flight is applied, and answered as ended.
    let tr = database.transaction();
    tr.set(b"key", b"value");
    let commit = tr.commit();
    // SAFETY: as above.
    unsafe { fdb_transaction_reset(tr.0) };
    assert_eq!(commit.wait(), 1025);
    while clock.advance() {}
    let tr = database.transaction();
    let (read, begun) = (tr.get(b"key"), clock.now());
    assert_eq!(ready_after(&clock, begun, &read), 1500);
    assert_eq!(read.value(), Ok(Some(b"value".to_vec())));
}

#[test]
fn faults_come_on_top() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = OpenOptions::default();
    options.simulated = Some(SimulatedCluster::parse("300,200,400").unwrap());
    options.buggify = Some(Buggify::new(0.3, 5));
    options.pending_read_every = Some(1);
    let database = Database(open_embedded(dir.path(), options).unwrap());
    let mut codes = BTreeSet::new();
    for number in 0..150u8 {
        let (tr, due) = (database.transaction(), Instant::now() + Duration::from_micros(500));
        let read = tr.get(b"key").wait();
        assert!(read != 0 || Instant::now() >= due, "a read comes too early");
        codes.insert(read);
        tr.set(b"key", &[number]);
        let due = Instant::now() + Duration::from_micros(400);
        let commit = tr.commit().wait();
        // A failed read fails the commit at once.
        assert!(read != 0 || Instant::now() >= due, "a commit comes too early");
        codes.insert(commit);
    }
    assert!([0, 1009, 1020, 1021].iter().all(|code| codes.contains(code)), "{codes:?}");
}
