//! Helpers for tests of replications with owners: servers with an administrator, requests, user documents.

use std::pin::Pin;
use std::time::Duration;

use flatbed_auth::PasswordHash;
use flatbed_replicator::ReplicatorOptions;
use flatbed_testkit::until_wanted;
use serde_json::{Value, json};

pub use crate::support::ADMIN;
use crate::support::{Answer, Options, Running, ServerOptions};

/// Returns options with an administrator and short retry delays of replications.
pub fn options() -> Options {
    Options { server: ServerOptions::with_admin(), ..options_without_admin() }
}

/// Returns [`options`] without an administrator.
pub fn options_without_admin() -> Options {
    ReplicatorOptions { first_pause: Duration::from_millis(100), ..ReplicatorOptions::default() }.into()
}

/// Sends a request with these headers. Boxed, because debug builds place the future of each call in the test's own.
pub fn asked<'a>(
    server: &'a Running,
    who: &'a [(&'a str, &'a str)],
    method: &'a str,
    path: &'a str,
    body: Value,
) -> Pin<Box<dyn Future<Output = Answer> + Send + 'a>> {
    Box::pin(async move {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut client = server.connect().await;
        client.call(method, path, who, body.as_bytes()).await
    })
}

/// Sends a request as the administrator and asserts success.
pub async fn ok(server: &Running, method: &str, path: &str, body: Value) -> Value {
    let answer = asked(server, &[ADMIN], method, path, body).await;
    assert!(answer.status < 300, "{method} {path}: {answer:?}");
    answer.json()
}

/// Repeats a read as the administrator until `wanted` accepts the answer.
pub async fn until(server: &Running, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let look = async || asked(server, &[ADMIN], "GET", path, Value::Null).await.json();
    until_wanted(path, look, wanted).await
}

/// Returns a user document with the password's hash; the salt is the password.
pub fn user(name: &str, password: &str) -> Value {
    let members = PasswordHash::salted(password, password, 600_000).put_into(Vec::new());
    let text = flatbed_layer::json::to_vec(&flatbed_layer::json::Value::Object(members));
    let mut document: Value = serde_json::from_slice(&text).unwrap();
    document["name"] = json!(name);
    document["type"] = json!("user");
    document["roles"] = json!([]);
    document
}
