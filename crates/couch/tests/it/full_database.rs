//! A full database over HTTP.

use flatbed_layer::LayerOptions;
use serde_json::{Value, json};

use crate::support::{ServerOptions, Store};

#[tokio::test(flavor = "multi_thread")]
async fn writes_beyond_the_bound_are_insufficient_storage() {
    // A cluster estimates sizes from a sample.
    let Some(store) = Store::on_an_engine() else { return };
    let unbound = store.serve_database().await;
    // Random text, because bodies are compressed. The reserve is a quarter of the limit.
    let mut state = 1_u32;
    let letters = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b'0' + (state >> 26) as u8)
    });
    let text: String = letters.take(100_000).collect();
    let rev = unbound.ok("PUT", "/db/a", json!({ "text": text })).await["rev"].as_str().unwrap().to_owned();
    let small = unbound.ok("PUT", "/db/c", json!({})).await["rev"].as_str().unwrap().to_owned();
    let options = LayerOptions { database_bytes_max: 90_000, ..LayerOptions::default() };
    let bound = store.serve_on(store.layer_with(options).await, ServerOptions::default()).await;
    for (method, path, body) in [
        ("PUT", "/db/b", json!({})),
        ("POST", "/db", json!({})),
        ("POST", "/db/_bulk_docs", json!({"docs": [{"_id": "b"}]})),
        ("POST", "/db/_bulk_docs", json!({"docs": [{"_id": "b", "_rev": "1-a"}], "new_edits": false})),
        ("PUT", "/db/b/file", json!("data")),
        ("PUT", "/db/_design/d", json!({})),
    ] {
        let (status, answer) = bound.json(method, path, body).await;
        assert_eq!((status, &answer["error"]), (507, &json!("insufficient_storage")), "{method} {path}: {answer}");
        assert!(answer["reason"].as_str().unwrap().contains("90000 bytes"), "{answer}");
    }
    bound.ok("PUT", "/db/_local/l", json!({})).await;
    bound.ok("GET", "/db/a", Value::Null).await;

    // Deletions of a replicated batch are written.
    bound.ok("PUT", "/source", Value::Null).await;
    let ids = json!(["b", small.strip_prefix("1-").unwrap()]);
    let deletion = json!({"_id": "c", "_rev": "2-b", "_revisions": {"start": 2, "ids": ids}, "_deleted": true});
    let docs = json!([{"_id": "new", "_rev": "1-a"}, deletion]);
    bound.ok("POST", "/source/_bulk_docs", json!({"docs": docs, "new_edits": false})).await;
    let (status, answer) =
        bound.json("POST", "/_replicate", json!({"source": "source", "target": bound.url("db")})).await;
    assert!(status >= 500 && answer.to_string().contains("507"), "{status}: {answer}");
    assert_eq!(bound.json("GET", "/db/c", Value::Null).await.0, 404);
    assert_eq!(bound.json("GET", "/db/new", Value::Null).await.0, 404);

    bound.ok("DELETE", &format!("/db/a?rev={rev}"), Value::Null).await;
    bound.stop().await;
    unbound.stop().await;
}
