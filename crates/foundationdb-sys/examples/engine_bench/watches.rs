//! Ten thousand watches: their memory, and their cost for commits that touch none of their keys.

use std::future::Future;
use std::time::Duration;

use foundationdb::{Database, FdbResult};
use futures::FutureExt;
use futures::executor::block_on;

use crate::commits::{KeyPlacement, commits};
use crate::heap;
use crate::machine::status_bytes;
use crate::report::{Row, at_least, at_most, number, per_second};
use crate::setup::{Bench, key};

/// FoundationDB's default of the watch limit of a database.
const WATCHES: u64 = 10_000;

/// Creates a watch in a committed transaction, and polls it once, as a waiting task does.
async fn watch(database: &Database, number: u64) -> impl Future<Output = FdbResult<()>> + Unpin + use<> {
    let trx = database.create_trx().expect("a transaction");
    let mut watch = trx.watch(&key(number));
    trx.commit().await.expect("a commit");
    let waker = futures::task::noop_waker();
    let is_ready = watch.poll_unpin(&mut std::task::Context::from_waker(&waker)).is_ready();
    assert!(!is_ready, "the watch waits");
    watch
}

pub fn run(bench: &Bench) -> Vec<Row> {
    let keys = bench.settings.keys;
    let count = WATCHES.min(keys / 2);
    let set = || {
        let mut watches = Vec::with_capacity(count as usize);
        watches.extend((0..count).map(|number| block_on(watch(&bench.database, number))));
        watches
    };
    let resident = status_bytes("RssAnon");
    let (watches, bytes, blocks) = heap::left_by(set);
    let resident =
        resident.zip(status_bytes("RssAnon")).map_or(f64::NAN, |(before, after)| after as f64 - before as f64);
    drop(watches);
    let each = |total: f64| total / count as f64;
    let memory = each(bytes).max(each(resident));
    let found = format!(
        "{} bytes in {:.1} blocks; resident {} bytes",
        number(each(bytes)),
        each(blocks),
        number(each(resident))
    );

    let others = count..keys;
    let rate = |duration: Duration| commits(bench, 64, KeyPlacement::Together, others.clone(), duration);
    let mut with = |duration| {
        let watches = set();
        let rate = rate(duration);
        assert!(bench.stats().open_watches >= count, "no watch fired");
        drop(watches);
        rate
    };
    let mut without = |duration| rate(duration);
    let measured = bench.alternate(&mut [&mut with, &mut without]);
    let share = measured[1].share;
    vec![
        Row::new(format!("memory of a watch, {} watches, key of 32 and value of 100 bytes", number(count as f64)))
            .engine(found)
            .aim("1 kB", at_most(memory, 1_024.0)),
        Row::new("commits of 10 keys together, 64 in flight, with all watches set; other side: without any")
            .engine(per_second(measured[0].rate))
            .raw(per_second(measured[1].rate))
            .share(share)
            .aim("100 % (5 % of noise)", at_least(share, 0.95)),
    ]
}
