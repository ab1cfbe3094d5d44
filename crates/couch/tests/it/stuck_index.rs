//! JSON indexes that cannot be built. On an engine of its own, because the test breaks keys that it finds by a scan of
//! the store.

use std::time::{Duration, Instant};

use flatbed_layer::LayerOptions;
use flatbed_testkit::within;
use serde_json::{Value, json};

use crate::support::{ServerOptions, Store, soon};

/// The body of a document is damaged in storage, so every builder fails there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_of_an_index_that_cannot_be_built_are_answered_503() {
    // Shorter than the default of 30 s.
    const STUCK_MAX: Duration = Duration::from_secs(3);
    const LATER: u32 = 10;
    let Some(store) = Store::on_an_engine() else { return };
    let layer = store.layer_with(LayerOptions { index_stuck_max: STUCK_MAX, ..LayerOptions::default() }).await;
    let server = store.serve_on(layer, ServerOptions::default()).await;
    server.ok("PUT", "/db", Value::Null).await;
    server.ok("PUT", "/db/whole", json!({"n": 1})).await;
    server.ok("PUT", "/db/broken", json!({"n": "what is broken"})).await;
    let trx = store.database().create_trx().unwrap();
    let is_body = |value: &[u8]| value.windows(14).any(|part| part == b"what is broken");
    let mut begin = Vec::new();
    loop {
        let all = foundationdb::RangeOption::from((&begin[..], &b"\xff"[..]));
        let page = trx.get_range(&all, 1, true).await.unwrap();
        for row in page.iter().filter(|row| is_body(row.value())) {
            trx.set(row.key(), &[0xff; 3]);
        }
        // A short or empty page is not the last.
        if !page.more() {
            break;
        }
        begin = page.last().map_or(begin, |last| [last.key(), &[0]].concat());
    }
    trx.commit().await.unwrap();
    // The builder cannot fail before it exists.
    let began = Instant::now();
    server.ok("POST", "/db/_index", json!({"index": {"fields": ["n"]}, "ddoc": "i"})).await;
    let query = json!({"selector": {"n": {"$gt": 0}}, "use_index": "i"});
    let (status, answer) = soon(server.json("POST", "/db/_find", query.clone())).await;
    let waited = began.elapsed();
    assert_eq!((status, &answer["error"]), (503, &json!("service_unavailable")), "{answer}");
    assert!(answer["reason"].as_str().unwrap().starts_with("the index cannot be built now: "), "{answer}");
    assert!(waited >= STUCK_MAX, "{waited:?}");
    // Later queries do not wait that long again.
    let later = async {
        for _ in 0..LATER {
            assert_eq!(server.json("POST", "/db/_find", query.clone()).await.0, 503);
        }
    };
    within(STUCK_MAX * LATER, later).await.expect("later queries do not wait");
    let all = server.ok("POST", "/db/_find", json!({"selector": {"_id": "whole"}})).await;
    assert_eq!(all["docs"][0]["n"], 1);
    server.stop().await;
}
