//! A write that others may overwrite takes effect once, under faults and with writers at two servers: no value returns
//! after another has replaced it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::support::{Store, create};
use flatbed_layer::{Database, LocalDocument};

const WRITERS: usize = 6;

/// The values that were read, each once for as long as it was current.
#[derive(Default)]
struct Seen {
    all: HashSet<u64>,
    last: u64,
}

impl Seen {
    fn see(&mut self, what: &str, value: u64) {
        if value != self.last {
            assert!(self.all.insert(value), "{what}: {value} came back after {}", self.last);
            self.last = value;
        }
    }
}

fn number(text: &[u8]) -> u64 {
    std::str::from_utf8(text).unwrap().trim_start_matches("\"n\":").parse().unwrap()
}

async fn write(db: Database, next: Arc<AtomicU64>, writes: u64) {
    for _ in 0..writes {
        let value = next.fetch_add(1, Ordering::Relaxed);
        let body = format!("\"n\":{value}").into_bytes();
        match value % 3 {
            0 => db.put_local(&LocalDocument { id: "l".into(), revision: 1, body }).await.unwrap(),
            1 => db.set_security(format!("{value}").as_bytes()).await.unwrap(),
            _ => db.set_revs_limit(value).await.unwrap(),
        }
    }
}

async fn look(db: &Database, seen: &mut [Seen; 3]) {
    if let Some(local) = db.get_local("l").await.unwrap() {
        seen[0].see("the local document", number(&local.body));
    }
    if let Some(security) = db.security().await.unwrap() {
        seen[1].see("_security", number(&security));
    }
    seen[2].see("_revs_limit", db.revs_limit().await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_value_comes_back_after_another_has_taken_its_place() {
    // A cluster has its own faults.
    let store = Store::with_faults(0.3, 7).unwrap_or_else(Store::new);
    let layers = [store.layer().await, store.layer().await];
    let db = create(&layers[0], "db", None).await;
    // Above the default of `_revs_limit`, below its limit.
    let next = Arc::new(AtomicU64::new(2_000));
    let is_done = Arc::new(AtomicBool::new(false));
    let looks = {
        let (db, is_done) = (layers[1].database("db"), Arc::clone(&is_done));
        tokio::spawn(async move {
            let mut seen: [Seen; 3] = Default::default();
            while !is_done.load(Ordering::Relaxed) {
                look(&db, &mut seen).await;
            }
            look(&db, &mut seen).await;
            seen
        })
    };
    let writers: Vec<_> = (0..WRITERS)
        .map(|number| tokio::spawn(write(layers[number % 2].database("db"), Arc::clone(&next), 60)))
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    is_done.store(true, Ordering::Relaxed);
    let seen = looks.await.unwrap();
    assert!(seen.iter().all(|seen| seen.all.len() > 5));
    crate::support::assert_clean(&layers[0], &db).await;
}
