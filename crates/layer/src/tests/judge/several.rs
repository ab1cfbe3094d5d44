//! Tests of `judge::several` with a whole layer.
#![cfg(test)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use flatbed_databases::asker::ReadPrincipal;
use flatbed_databases::document::edit::{Document, Edit};
use flatbed_databases::document::verdict::Verdict;
use flatbed_flatten::json::{Limits, Value, parse};
use flatbed_operations::judge::ask::{EditRequest, judge};
use flatbed_operations::judge::judgement::{Judge, Judgement, ProposedWrite, Room, Rule};
use flatbed_operations::judge::several::*;
use flatbed_operations::write::batch::resolved;
use flatbed_store::error::Refusal;
use futures_util::future::BoxFuture;

use crate::tests::fenced;

/// A function that assigns a channel to each document, and records the sizes of its batches.
#[derive(Clone, Default)]
struct Counts {
    asked: Arc<Mutex<Vec<usize>>>,
    is_full: Arc<AtomicBool>,
    /// Makes it omit the last answer.
    is_short: Arc<AtomicBool>,
}

impl Counts {
    fn say(write: ProposedWrite<'_>) -> Judgement {
        match write.edit.body.get("in") {
            Some(Value::String(channel)) => {
                Ok(Verdict { channels: [channel.to_string()].into(), ..Verdict::default() })
            }
            _ => Err(Refusal::Forbidden("it is in nothing".to_owned())),
        }
    }

    fn taken(&self) -> Vec<usize> {
        let mut asked = std::mem::take(&mut *self.asked.lock().unwrap());
        asked.sort_unstable();
        asked
    }
}

impl Judge for Counts {
    fn load(&self, _: &Document, _: &str) -> Arc<dyn Rule> {
        Arc::new(self.clone())
    }

    fn sync_function(&self, _: &str, _: &str) -> Option<Arc<dyn Rule>> {
        Some(Arc::new(self.clone()))
    }

    fn check_sync_function<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, std::result::Result<(), Refusal>> {
        Box::pin(async { Ok(()) })
    }

    fn caller(&self) -> u64 {
        0
    }

    fn try_room(&self, _: &str, bytes: usize) -> Option<Room> {
        (bytes <= 300 || !self.is_full.load(Ordering::Relaxed)).then(|| Box::new(()) as Room)
    }
}

impl Rule for Counts {
    fn judge<'a>(&'a self, write: ProposedWrite<'a>) -> BoxFuture<'a, Judgement> {
        self.asked.lock().unwrap().push(1);
        Box::pin(async move { Counts::say(write) })
    }

    fn judge_all<'a>(&'a self, writes: Vec<ProposedWrite<'a>>) -> BoxFuture<'a, Vec<Judgement>> {
        self.asked.lock().unwrap().push(writes.len());
        let count = writes.len() - usize::from(self.is_short.load(Ordering::Relaxed));
        Box::pin(async move { writes.into_iter().take(count).map(Counts::say).collect() })
    }
}

const COUNT: usize = 70;
const LARGE: usize = 5;
const DESIGN: usize = 10;
const REFUSED: usize = 20;

fn texts() -> Vec<(String, String)> {
    let text = |n| {
        let id = if n == DESIGN { "_design/d".to_owned() } else { format!("doc{n}") };
        let text = "x".repeat(if n == LARGE { SMALL_BYTES } else { 10 });
        let member = if n == REFUSED { "no" } else { "in" };
        (id, format!(r#"{{"{member}":"C{n}","text":"{text}"}}"#))
    };
    (0..COUNT).map(text).collect()
}

fn edit((id, text): &(String, String)) -> Edit<'_> {
    Edit {
        expiry: None,
        id: id.as_str().into(),
        parent: None,
        history: None,
        deleted: false,
        attachments: Vec::new(),
        body: parse(text.as_bytes(), &Limits::default()).unwrap(),
    }
}

fn expected() -> Vec<Judgement> {
    let judgement = |n| match n {
        DESIGN => Ok(Verdict::default()),
        REFUSED => Err(Refusal::Forbidden("it is in nothing".to_owned())),
        _ => Ok(Verdict { channels: [format!("C{n}")].into(), ..Verdict::default() }),
    };
    (0..COUNT).map(judgement).collect()
}

fn not_asked(told: &[Judgement]) -> Vec<usize> {
    let expected = expected();
    let is_other = |n: &usize| told[*n] != expected[*n];
    (0..COUNT).filter(is_other).inspect(|n| assert_eq!(told[*n], Err(not_routed()))).collect()
}

#[tokio::test]
async fn validators_are_asked_together_about_what_no_earlier_one_has_refused() {
    let counts = Counts::default();
    let (layer, authority, _storage) = fenced::layer_judged_by(Some(Arc::new(counts.clone()))).await;
    let server = layer.database("db", authority.for_job("test"));
    for id in ["_design/a", "_design/b"] {
        let design = (id.to_owned(), r#"{"validate_doc_update":"function () {}"}"#.to_owned());
        server.update(&edit(&design)).await.unwrap();
    }
    server.exists().await.unwrap();
    let db = layer.database("db", fenced::user("anna"));
    let instance = resolved(&db.inner, "db").await.unwrap();
    let texts = texts();
    let edits: Vec<Edit<'_>> = texts.iter().map(edit).collect();
    let asked: Vec<EditRequest<'_, '_>> = edits.iter().map(|edit| EditRequest { edit, upon: None }).collect();
    let told = async || -> Vec<Judgement> {
        let judged = judge(&db.handle, &instance, &asked, (0, COUNT), false).await.unwrap();
        judged.into_iter().map(|judged| judged.judgement).collect()
    };
    counts.taken();
    assert_eq!(told().await, expected());
    // Each of the two has 70 in batches of 32 but the design document, and the second one has none that is refused.
    // The large edit goes alone.
    assert_eq!(counts.taken(), [1, 1, 6, 6, 29, 30, 32, 32]);
    counts.is_full.store(true, Ordering::Relaxed);
    assert_eq!(told().await.len(), COUNT);
    assert_eq!(counts.taken(), [1; 2 * 69 - 1]);
    counts.is_full.store(false, Ordering::Relaxed);
    // An edit without the answer of one of them is not written.
    counts.is_short.store(true, Ordering::Relaxed);
    assert_eq!(not_asked(&told().await), [30, 31, 62, 63, 68, 69]);
}

#[tokio::test]
async fn small_ones_are_asked_about_together_and_each_has_its_own_answer() {
    let counts = Counts::default();
    let (layer, authority, _storage) = fenced::layer_judged_by(Some(Arc::new(counts.clone()))).await;
    let server = layer.database("db", authority.for_job("test"));
    fenced::give_channels(&server).await;
    server.set_sync_function(Some("function")).await.unwrap();
    let db = layer.database("db", fenced::user("anna")).asked_by(ReadPrincipal::All);
    let instance = resolved(&db.inner, "db").await.unwrap();
    let texts = texts();
    let edits: Vec<Edit<'_>> = texts.iter().map(edit).collect();
    let asked: Vec<EditRequest<'_, '_>> = edits.iter().map(|edit| EditRequest { edit, upon: None }).collect();
    let told = async || -> Vec<Judgement> {
        let judged = judge(&db.handle, &instance, &asked, (0, asked.len()), false).await.unwrap();
        judged.into_iter().map(|judged| judged.judgement).collect()
    };
    counts.taken();
    assert_eq!(told().await, expected());
    // The last of 70 in batches of 32; the first batch has the large edit and the one without a function.
    assert_eq!(counts.taken(), [1, 6, 30, 32]);
    // Without room for a batch each edit goes alone.
    counts.is_full.store(true, Ordering::Relaxed);
    assert_eq!(told().await.len(), 70);
    assert_eq!(counts.taken(), [1; 69]);
    counts.is_full.store(false, Ordering::Relaxed);
    // An edit without an answer is not written.
    counts.is_short.store(true, Ordering::Relaxed);
    assert_eq!(not_asked(&told().await), [31, 63, 69]);
}
