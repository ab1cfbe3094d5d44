//! Sync functions over HTTP.

use crate::support::{Running, ServerOptions, Store};
use serde_json::{Value, json};

const NULL: Value = Value::Null;

const FUNCTION: &str = "function (doc, old, meta) {
    if (doc.refuse) reject(doc.refuse, 'refused');
    if (doc.forbidden) throw({forbidden: JSON.stringify([doc, old, Object.keys(meta)])});
    if (doc.unauthorized) throw({unauthorized: 'who?'});
    if (doc.boom) throw 'boom';
    requireUser('nobody'); requireAdmin();
    for (var i = 0; i < (doc.many || 0); i++) channel('c' + i);
    channel(doc.channels);
}";

async fn refused(server: &Running, method: &str, path: &str, body: Value) -> (u16, String, String) {
    let (status, answer) = server.json(method, path, body).await;
    let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
    (status, text("error"), text("reason"))
}

fn answer(status: u16, error: &str, reason: &str) -> (u16, String, String) {
    (status, error.into(), reason.into())
}

#[tokio::test]
async fn a_function_answers_in_its_own_words() {
    let server = Store::new().serve(ServerOptions::default()).await;
    server.ok("PUT", "/db", json!({"sync": FUNCTION})).await;
    let rev = server.ok("PUT", "/db/a", json!({"channels": ["A"]})).await["rev"].as_str().expect("a rev").to_owned();
    for (body, told) in [
        (json!({"refuse": 418}), answer(418, "rejected", "refused")),
        (json!({"refuse": 404}), answer(404, "not_found", "refused")),
        (json!({"refuse": 503}), answer(503, "service_unavailable", "refused")),
        (json!({"unauthorized": 1}), answer(401, "unauthorized", "who?")),
        (json!({"boom": 1}), answer(500, "internal_server_error", "Exception in JS sync function")),
        (json!({"channels": "a,b"}), answer(500, "internal_server_error", "Exception in JS sync function")),
        // Not a conflict: a client without the right to write does not learn that the document exists.
        (json!({"_id": "a", "refuse": 403}), answer(403, "forbidden", "refused")),
        (json!({"_id": "a"}), answer(409, "conflict", "Document update conflict.")),
    ] {
        assert_eq!(refused(&server, "POST", "/db", body.clone()).await, told, "{body}");
    }
    let body = json!({"_rev": rev, "forbidden": 1, "_attachments": {"t": {"data": "aGk="}}, "_exp": 4_102_444_800_u64});
    let (status, _, reason) = refused(&server, "PUT", "/db/a", body).await;
    let seen: Value = serde_json::from_str(&reason).expect("JSON");
    assert_eq!(status, 403);
    assert_eq!(seen, json!([{"_id": "a", "_rev": rev, "forbidden": 1}, {"_id": "a", "channels": ["A"]}, []]));
    let (status, _, reason) = refused(&server, "PUT", "/db/many", json!({"many": 1_001})).await;
    assert!(status == 403 && reason.contains("1001 channels"), "{status} {reason}");
    server.ok("PUT", "/db/many", json!({"many": 300})).await;
    // Bulk edits, and replicated revisions.
    let docs = json!({"docs": [{"_id": "x"}, {"_id": "y", "refuse": 409}, {"_id": "z"}]});
    let rows = server.ok("POST", "/db/_bulk_docs", docs).await;
    assert_eq!(rows[1], json!({"id": "y", "error": "conflict", "reason": "refused"}));
    assert_eq!([&rows[0]["ok"], &rows[2]["ok"]], [true, true]);
    let docs =
        json!({"new_edits": false, "docs": [{"_id": "r", "_rev": "1-a", "refuse": 403}, {"_id": "s", "_rev": "1-a"}]});
    let rows = server.ok("POST", "/db/_bulk_docs", docs).await;
    assert_eq!(rows, json!([{"id": "r", "rev": "1-a", "error": "forbidden", "reason": "refused"}]));
    server.ok("PUT", "/db/_design/d", json!({"refuse": 403})).await;
    server.ok("PUT", "/db/_local/l", json!({"refuse": 403})).await;
    let (status, _, reason) = refused(&server, "PUT", "/db/e", json!({"_exp": "soon"})).await;
    assert!(status == 400 && reason.starts_with("Invalid expiry"), "{status} {reason}");
}

#[tokio::test]
async fn databases_with_channels_are_made() {
    let server = Store::new().serve(ServerOptions::default()).await;
    let broken = refused(&server, "PUT", "/broken", json!({"sync": "this is not a function"})).await;
    assert_eq!((broken.0, &*broken.1), (400, "compilation_error"));
    assert_eq!(server.json("GET", "/broken", NULL).await.0, 404);
    for body in [json!({"sync": 5}), json!({"channels": "yes"}), json!({"channels": false, "sync": "function () {}"})] {
        assert_eq!(refused(&server, "PUT", "/broken", body.clone()).await.1, "bad_request", "{body}");
    }
    assert_eq!(refused(&server, "PUT", "/_users", json!({"channels": true})).await.0, 400);
    server.ok("PUT", "/db", json!({"channels": true, "bucket": "b"})).await;
    let illegal = refused(&server, "PUT", "/db/a", json!({"channels": "a,b"})).await;
    assert_eq!(illegal, answer(400, "bad_request", "Illegal channel name \"a,b\""));
    server.ok("PUT", "/db/a", json!({"channels": "A", "_exp": 60})).await;
    server.ok("PUT", "/plain", json!({"anything": "else"})).await;
    assert_eq!(server.ok("GET", "/db", NULL).await["props"]["channels"], true);
    assert_eq!(server.ok("GET", "/plain", NULL).await["props"].get("channels"), None);
    server.ok("PUT", "/plain/a", json!({"channels": "a,b"})).await;
    let expiring = refused(&server, "PUT", "/plain/b", json!({"_exp": 60})).await;
    assert_eq!(expiring, answer(400, "doc_validation", "Bad special document member: _exp"));
}
