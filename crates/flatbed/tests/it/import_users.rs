//! `flatbed import` of users who have tried the target.

use hyper::Method;
use serde_json::{Value, json};

use crate::support::{Server, ask, run, text};

const ANNA: &str = "/_users/org.couchdb.user:anna";

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_changed_on_both_sides_is_listed() {
    let directory = tempfile::tempdir().unwrap();
    let source = Server::start(&directory.path().join("source"));
    let target = Server::start(&directory.path().join("target"));
    let (mut one, mut other) = (source.connect().await, target.connect().await);
    ask(&mut one, Method::PUT, "/_users", &Value::Null).await;
    for name in ["anna", "bob"] {
        let user = json!({ "name": name, "password": "secret", "roles": [], "type": "user" });
        ask(&mut one, Method::PUT, &format!("/_users/org.couchdb.user:{name}"), &user).await;
    }
    let import = || run(&["import", &source.url.to_string(), "--to", &target.url.to_string()]);
    let moved = import();
    assert!(moved.status.success(), "{}", text(&moved));
    for connection in [&mut one, &mut other] {
        let mut user = ask(connection, Method::GET, ANNA, &Value::Null).await;
        user["password"] = "another".into();
        ask(connection, Method::PUT, ANNA, &user).await;
    }
    // Each further run says so, until the conflict is resolved.
    for _ in 0..2 {
        let moved = import();
        assert_eq!(moved.status.code(), Some(1), "{}", text(&moved));
        assert!(text(&moved).contains("_users: the user \"anna\" has changed on both sides"), "{}", text(&moved));
        assert!(!text(&moved).contains("bob"), "{}", text(&moved));
    }
    let user = ask(&mut other, Method::GET, &format!("{ANNA}?conflicts=true"), &Value::Null).await;
    let loser = user["_conflicts"][0].as_str().unwrap();
    ask(&mut other, Method::DELETE, &format!("{ANNA}?rev={loser}"), &Value::Null).await;
    let moved = import();
    assert!(moved.status.success(), "{}", text(&moved));
}
