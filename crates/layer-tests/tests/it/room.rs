//! Texts for validation are held in memory only while there is room for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::{Store, assert_clean, create, put, soon};
use flatbed_layer::{Document, Error, Judge, Judgement, NotJudged, ProposedWrite, Refusal, Room, Rule, Verdict};
use flatbed_testkit::until;
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;

const PAD_BYTES: usize = 1_000_000;

/// Room for the old and new texts of three such documents.
const ROOM_BYTES: usize = 3 * 3 * (PAD_BYTES + 1_000);

#[derive(Clone)]
struct Counting {
    room: Arc<Semaphore>,
    held: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    may_answer: Arc<Semaphore>,
    /// The number of times that the room was exceeded.
    lacked: Arc<AtomicUsize>,
    is_busy: bool,
}

impl Counting {
    fn new(is_busy: bool) -> Counting {
        let (held, most, lacked) = Default::default();
        let (room, may_answer) = (Arc::new(Semaphore::new(ROOM_BYTES)), Arc::new(Semaphore::new(0)));
        Counting { room, held, most, may_answer, lacked, is_busy }
    }
}

impl Judge for Counting {
    fn load(&self, _: &Document, _: &str) -> Arc<dyn Rule> {
        Arc::new(self.clone())
    }

    fn caller(&self) -> u64 {
        0
    }

    fn try_room(&self, database: &str, bytes: usize) -> Option<Room> {
        assert!(database.starts_with("db/"));
        let permit = self.room.clone().try_acquire_many_owned(u32::try_from(bytes).unwrap()).ok()?;
        Some(Box::new(permit))
    }

    fn room<'a>(&'a self, _: &'a str, bytes: usize) -> BoxFuture<'a, Result<Room, Refusal>> {
        self.lacked.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            if self.is_busy {
                return Err(Refusal::NotJudged { because: NotJudged::Busy, reason: "busy".into() });
            }
            let permit = self.room.clone().acquire_many_owned(u32::try_from(bytes).unwrap()).await.unwrap();
            Ok(Box::new(permit) as Room)
        })
    }
}

impl Rule for Counting {
    fn judge<'a>(&'a self, write: ProposedWrite<'a>) -> BoxFuture<'a, Judgement> {
        let bytes = write.old.map_or(0, |old| old.body.len());
        self.most.fetch_max(self.held.fetch_add(bytes, Ordering::Relaxed) + bytes, Ordering::Relaxed);
        Box::pin(async move {
            self.may_answer.acquire().await.expect("open").forget();
            self.held.fetch_sub(bytes, Ordering::Relaxed);
            Ok(Verdict::default())
        })
    }
}

#[tokio::test]
async fn small_edits_of_a_large_document_wait_for_room() {
    for is_busy in [false, true] {
        let store = Store::new();
        let counting = Counting::new(is_busy);
        let layer = store.layer_judged_by(counting.clone()).await;
        let own = create(&layer, "db", None).await;
        put(&own, "_design/v", None, r#"{"validate_doc_update":"function () {}"}"#).await.unwrap();
        let pad = format!("{{\"pad\":\"{}\"}}", "x".repeat(PAD_BYTES));
        let first = put(&own, "large", None, &pad).await.unwrap();
        let writers: Vec<_> = (0..20)
            .map(|n| {
                let (db, parent) = (layer.written_by("db", "anna"), first.clone());
                tokio::spawn(async move { put(&db, "large", Some(&parent), &format!("{{\"n\":{n}}}")).await })
            })
            .collect();
        let held = || counting.held.load(Ordering::Relaxed);
        until("there is no room", async || held() >= 3 * PAD_BYTES).await;
        until("the others want some", async || counting.lacked.load(Ordering::Relaxed) >= 17).await;
        counting.may_answer.add_permits(1_000);
        let mut results = Vec::new();
        for writer in writers {
            results.push(soon(writer).await.unwrap());
        }
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
        let busy =
            |result: &&_| matches!(result, Err(Error::Refused(Refusal::NotJudged { because: NotJudged::Busy, .. })));
        assert_eq!(results.iter().filter(busy).count(), if is_busy { 17 } else { 0 });
        assert!(counting.most.load(Ordering::Relaxed) < 4 * PAD_BYTES, "{:?}", counting.most);
        assert_clean(&layer, &own).await;
    }
}
