//! The cost of a resync, by the model of a storage server: what a document costs decides how many go in a second.

use std::sync::Arc;

use crate::support::{Layer, Store, assert_clean, pages_are_full};
use flatbed_layer::json::{Limits, Value, parse};
use flatbed_layer::waits::{Waits, count};
use flatbed_layer::{
    BackgroundOptions, CreateOptions, Database, Document, Edit, Judge, Judgement, LayerOptions, ProposedWrite, Refusal,
    Rule, Verdict,
};
use futures_util::future::BoxFuture;

const DOCUMENTS: usize = 2_000;

/// A sync function for each text: it puts a document into the channel that the member of this name has.
struct Functions;

struct ByMember(String);

impl Judge for Functions {
    fn load(&self, _: &Document, _: &str) -> Arc<dyn Rule> {
        Arc::new(ByMember(String::new()))
    }

    fn sync_function(&self, _: &str, source: &str) -> Option<Arc<dyn Rule>> {
        Some(Arc::new(ByMember(source.to_owned())))
    }

    fn check_sync_function<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(async { Ok(()) })
    }

    fn caller(&self) -> u64 {
        0
    }
}

impl Rule for ByMember {
    fn judge<'a>(&'a self, write: ProposedWrite<'a>) -> BoxFuture<'a, Judgement> {
        Box::pin(async move {
            let channels = match write.edit.body.get(&self.0) {
                Some(Value::String(channel)) => [channel.to_string()].into(),
                _ => Default::default(),
            };
            Ok(Verdict { channels, ..Verdict::default() })
        })
    }
}

/// Writes documents of some 300 bytes.
async fn fill(db: &Database) {
    let text = format!(r#"{{"one":"A","two":"B","text":"{}"}}"#, "0123456789abcdef".repeat(16));
    for batch in (0..DOCUMENTS).collect::<Vec<_>>().chunks(500) {
        let edits = batch.iter().map(|number| Edit {
            expiry: None,
            id: format!("doc{number:06}").into(),
            parent: None,
            history: None,
            deleted: false,
            attachments: Vec::new(),
            body: parse(text.as_bytes(), &Limits::default()).unwrap(),
        });
        assert!(db.bulk_update(&edits.collect::<Vec<_>>()).await.unwrap().iter().all(Result::is_ok));
    }
}

/// Returns the microseconds of the model's server: `crates/fdb-embedded/src/shared/simulation.rs`.
fn server_us(waits: &Waits) -> u64 {
    let points = waits.point_reads + waits.size_reads;
    170 * waits.transactions + 13 * waits.keys_written + 44 * waits.range_reads + 18 * points + waits.bytes_read / 200
}

/// A server resyncs 20,000 documents a second if one costs it 50 µs.
#[tokio::test]
async fn a_document_costs_the_server_a_part_of_a_read() {
    let store = Store::new();
    let options = LayerOptions { root: store.root.clone(), ..LayerOptions::default() };
    let layer = Layer::open_alone(store.fdb.clone(), options, Some(Arc::new(Functions))).await.unwrap();
    layer.create_database("db", &CreateOptions::default()).await.unwrap();
    let db = layer.database("db");
    fill(&db).await;
    let mut costs = Vec::new();
    for function in ["one", "two", "three", "four"] {
        db.set_sync_function(Some(function)).await.unwrap();
        let (done, waits) = count(layer.background(BackgroundOptions::default()).round()).await;
        assert_eq!((done.unwrap(), db.resync_state().await.unwrap()), (1, None));
        costs.push((server_us(&waits) / DOCUMENTS as u64, waits));
        assert_clean(&layer, &db).await;
    }
    if pages_are_full() {
        let [(entered, _), (moved, _), (removed, _), (kept, waits)] = &costs[..] else { panic!("{costs:?}") };
        assert!(*kept <= 12 && *entered <= 160 && *moved <= 220 && *removed <= 160, "{costs:#?}");
        // The resync, its range and its lease: no document, and no page.
        assert!(waits.keys_written <= 16 && waits.point_reads < 60, "{waits:?}");
    }
}
