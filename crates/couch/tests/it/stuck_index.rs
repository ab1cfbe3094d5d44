//! Json indexes that cannot be built: on an engine of its own, as what is broken there is looked for in all that it has.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{ServerOptions, Store, soon};

/// A document whose body is broken in storage: no builder gets past it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_of_an_index_that_cannot_be_built_are_answered_503() {
    let Some(store) = Store::on_an_engine() else { return };
    let server = store.serve(ServerOptions::default()).await;
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
        // A short or empty reply is not the end.
        if !page.more() {
            break;
        }
        begin = page.last().map_or(begin, |last| [last.key(), &[0]].concat());
    }
    trx.commit().await.unwrap();
    server.ok("POST", "/db/_index", json!({"index": {"fields": ["n"]}, "ddoc": "i"})).await;
    let asked = Instant::now();
    let query = json!({"selector": {"n": {"$gt": 0}}, "use_index": "i"});
    let mut client = server.connect().await;
    client.send("POST", "/db/_find", &[], query.to_string().as_bytes()).await;
    let answer = soon(client.answer(false)).await;
    let first = asked.elapsed();
    let (status, answer): (u16, Value) = (answer.status, serde_json::from_str(&answer.body).unwrap());
    assert_eq!((status, &answer["error"]), (503, &json!("service_unavailable")), "{answer}");
    assert!(answer["reason"].as_str().unwrap().starts_with("the index cannot be built now: "), "{answer}");
    assert!(first >= Duration::from_secs(25), "{first:?}");
    // Whoever asks then does not wait as long again.
    let asked = Instant::now();
    assert_eq!(server.json("POST", "/db/_find", query).await.0, 503);
    let second = asked.elapsed();
    assert!(second < first, "{second:?}, and before {first:?}");
    let all = server.ok("POST", "/db/_find", json!({"selector": {"_id": "whole"}})).await;
    assert_eq!(all["docs"][0]["n"], 1);
    server.stop().await;
}
