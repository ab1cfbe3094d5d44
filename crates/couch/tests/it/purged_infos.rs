//! `_purged_infos`: the recorded purges.

use serde_json::{Value, json};

use crate::support::Store;

const NULL: Value = Value::Null;

#[tokio::test]
async fn purges_that_are_remembered_are_shown() {
    let server = Store::new().serve_database().await;
    let shown = async || server.ok("GET", "/db/_purged_infos", NULL).await;
    assert_eq!(shown().await, json!({"purged_infos": []}));
    let purge = async |id: &str| {
        let rev = server.ok("PUT", &format!("/db/{id}"), json!({})).await["rev"].clone();
        let purged = server.ok("POST", "/db/_purge", json!({ (id): [rev] })).await;
        assert_eq!(purged["purged"][id], json!([rev]));
        json!({"id": id, "revs": [rev]})
    };
    let mut purged = Vec::new();
    for id in ["a", "b", "a.b", "a"] {
        purged.push(purge(id).await);
    }
    assert_eq!(shown().await, json!({"purged_infos": purged}));
    server.ok("POST", "/db/_purge", json!({"a": ["1-b"], "none": ["1-b"]})).await;
    assert_eq!(shown().await, json!({"purged_infos": purged}));
    server.ok("PUT", "/db/_purged_infos_limit", json!(2)).await;
    let last = purge("c").await;
    assert_eq!(shown().await, json!({"purged_infos": [purged[3], last]}));
    for (method, path, status) in [("POST", "/db/_purged_infos", 405), ("GET", "/none/_purged_infos", 404)] {
        assert_eq!(server.json(method, path, NULL).await.0, status, "{method} {path}");
    }
}
