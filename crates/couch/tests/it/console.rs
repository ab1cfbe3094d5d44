//! The console's files and their route.

use serde_json::{Value, json};

use crate::support::{ServerOptions, Store};

#[tokio::test]
async fn files_are_cached_until_they_change() {
    let server = Store::new().serve(ServerOptions::default()).await;
    let bare = server.call("GET", "/_utils", "").await;
    assert_eq!((bare.status, bare.header("location")), (301, Some("_utils/")));
    for file in flatbed_console::files() {
        let path = format!("/_utils/{}", file.path);
        let found = server.call("GET", &path, "").await;
        assert_eq!((found.status, found.header("content-type")), (200, Some(file.content_type)), "{path}");
        assert_eq!(found.body.as_bytes(), file.bytes, "{path}");
        assert_eq!(found.header("etag"), Some(file.etag.as_str()));
        assert_eq!(found.header("content-security-policy"), Some(flatbed_console::CONTENT_SECURITY_POLICY));
        assert_eq!(found.header("x-content-type-options"), Some("nosniff"));
        for name in ["cross-origin-opener-policy", "cross-origin-resource-policy"] {
            assert_eq!(found.header(name), Some("same-origin"), "{name}");
        }
    }
    for (method, path, status) in [
        ("GET", "/_utils/none", 404),
        ("GET", "/_utils/pages/", 404),
        ("GET", "/_utils/../_utils/x", 404),
        ("GET", "/%5futils/main.js", 404),
        ("PUT", "/_utils/main.js", 405),
        ("HEAD", "/_utils/main.js", 200),
    ] {
        assert_eq!(server.call(method, path, "").await.status, status, "{method} {path}");
    }
}

#[tokio::test]
async fn the_keys_of_a_document() {
    let server = Store::new().serve_database().await;
    server.ok("PUT", "/db/a%2Fb", json!({"n": {"m": 1}})).await;
    let page = server.ok("GET", "/db/_raw_keys?id=a%2Fb", Value::Null).await;
    let keys = page["keys"].as_array().unwrap();
    let what: Vec<&str> = keys.iter().map(|key| key["what"].as_str().unwrap()).collect();
    assert_eq!(what, ["info", "body", "leaf", "revision", "by_seq", "all_docs"], "{page}");
    assert_eq!((&keys[0]["form"], &page["next"]), (&json!("{NS} / 2 / \"a/b\" / 0"), &Value::Null));
    assert!(keys.iter().all(|key| key["value_bytes"].is_u64() && key["key"].as_str().unwrap().len() > 10));
    let last = keys[3]["key"].as_str().unwrap();
    let behind = server.ok("GET", &format!("/db/_raw_keys?id=a%2Fb&after={last}"), Value::Null).await;
    assert_eq!(behind, json!({"keys": [], "next": null}));
    assert_eq!(server.ok("GET", "/db/_raw_keys?id=none", Value::Null).await["keys"], json!([]));
    let long = "x".repeat(9_000);
    assert_eq!(server.ok("GET", &format!("/db/_raw_keys?id={long}"), Value::Null).await["keys"], json!([]));
    for (method, path, status) in [
        ("GET", "/db/_raw_keys", 400),
        ("GET", "/db/_raw_keys?id=a&after=0g", 400),
        ("GET", "/none/_raw_keys?id=a", 404),
        ("DELETE", "/db/_raw_keys?id=a", 405),
    ] {
        assert_eq!(server.call(method, path, "").await.status, status, "{method} {path}");
    }
}
