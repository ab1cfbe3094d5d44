//! Requests of strangers and of broken clients.

use std::io::Write;

use bytes::Bytes;
use flatbed_firefox::PublicUrl;
use flatbed_firefox::hawk::HawkAuthority;
use flatbed_testkit::soon;
use hyper::Request;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::signing::{Credentials, Signing, now};
use crate::support::{Answer, Disk, Options, Running, SECRET, send};

/// In seconds.
const HOUR: i64 = 3_600;

/// Sends a signed request; `body` may differ from the signed one.
async fn signed(
    server: &Running,
    uid: u64,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Vec<u8>,
) -> Answer {
    let target = format!("/1.5/{uid}{path}");
    let place = HawkAuthority { host: server.address.ip().to_string(), port: server.address.port() };
    let signing = Signing { method, target: &target, place, at: now(), ext: "", body: None };
    let authorization = signing.sign(&Credentials::new(SECRET, uid, now() + HOUR)).text();
    let mut request = Request::builder().method(method).uri(&target).header("host", server.address.to_string());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    send(server.address, request.header("authorization", authorization).body(Bytes::from(body).into()).unwrap()).await
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_are_bounded() {
    let disk = Disk::new();
    let server = Running::on(&disk, Options::default()).await;
    let json = ("content-type", "application/json");
    let compressed = [json, ("content-encoding", "gzip")];
    let statuses = async |headers: &[(&str, &str)], body: Vec<u8>| {
        let answer = signed(&server, 1, "PUT", "/storage/tabs/a", headers, body).await;
        (answer.status, answer.json().as_u64().unwrap_or_default())
    };
    assert_eq!(statuses(&compressed, gzip(br#"{"payload":"x"}"#)).await.0, 200);
    // A body of 40 kB that expands to 40 MB.
    assert_eq!(statuses(&compressed, gzip(&vec![b' '; 40_000_000])).await, (413, 17));
    assert_eq!(statuses(&compressed, b"no gzip".to_vec()).await, (400, 0));
    assert_eq!(statuses(&[json, ("content-encoding", "br")], b"{}".to_vec()).await, (415, 0));
    assert_eq!(statuses(&[json], vec![b'['; 1_000_000]).await, (400, 8));
    assert_eq!(statuses(&[json], br#"{"payload":"\ud800"}"#.to_vec()).await, (400, 8));
    assert_eq!(statuses(&[json], b"{\"payload\":\"\xff\"}".to_vec()).await, (400, 8));
    let many = format!("[{}1]", "{\"id\":\"a\"},".repeat(200_000));
    let answer = signed(&server, 1, "POST", "/storage/tabs", &[json], many.into_bytes()).await;
    assert_eq!((answer.status, answer.json()), (400, json!(8)));
    server.stop().await;
}

/// An unsigned request is refused before its body is read, even if the body never arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_bodies_are_not_waited_for() {
    let disk = Disk::new();
    let server = Running::on(&disk, Options::default()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /1.5/1/storage/tabs HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n[]        ";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 4_096];
    let read = soon(stream.read(&mut answer)).await.unwrap();
    assert!(answer[..read].starts_with(b"HTTP/1.1 401 "), "{}", String::from_utf8_lossy(&answer[..read]));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_never_see_each_other() {
    let disk = Disk::new();
    let server = Running::on(&disk, Options::default()).await;
    let json = [("content-type", "application/json")];
    for uid in [1, 11] {
        let body = format!(r#"{{"payload":"of {uid}"}}"#).into_bytes();
        assert_eq!(signed(&server, uid, "PUT", "/storage/tabs/a", &json, body).await.status, 200);
    }
    assert_eq!(signed(&server, 1, "DELETE", "", &[], Vec::new()).await.status, 200);
    assert_eq!(signed(&server, 1, "GET", "/storage/tabs/a", &[], Vec::new()).await.status, 404);
    assert_eq!(signed(&server, 11, "GET", "/storage/tabs/a", &[], Vec::new()).await.json()["payload"], "of 11");
    let batch = signed(&server, 11, "POST", "/storage/tabs?batch=true", &json, br#"[{"id":"b"}]"#.to_vec()).await;
    let batch = format!("/storage/tabs?batch={}&commit=true", batch.json()["batch"].as_str().unwrap());
    assert_eq!(signed(&server, 1, "POST", &batch, &json, b"[]".to_vec()).await.status, 400);
    assert_eq!(signed(&server, 11, "POST", &batch, &json, b"[]".to_vec()).await.status, 200);
    server.stop().await;
}

/// A signature for the public URL is valid, whether or not a proxy removed its path; a signature for `Host` is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_signed_is_the_public_url() {
    let disk = Disk::new();
    let public_url: PublicUrl = "https://Example.org/sync".parse().unwrap();
    let server = Running::on(&disk, Options { public_url: Some(public_url), ..Options::default() }).await;
    let ask = async |signed: &str, host: &str, port: u16, sent: &str| {
        let place = HawkAuthority { host: host.to_owned(), port };
        let signing = Signing { method: "GET", target: signed, place, at: now(), ext: "", body: None };
        let authorization = signing.sign(&Credentials::new(SECRET, 5, now() + HOUR)).text();
        let request = Request::get(sent).header("host", "127.0.0.1").header("authorization", authorization);
        send(server.address, request.body(Bytes::new().into()).unwrap()).await.status
    };
    let path = "/1.5/5/info/collections";
    let public = format!("/sync{path}");
    assert_eq!(ask(&public, "example.org", 443, path).await, 200);
    assert_eq!(ask(&public, "example.org", 443, &public).await, 200);
    assert_eq!(ask(path, "example.org", 443, path).await, 401);
    assert_eq!(ask(&public, "example.org", 80, path).await, 401);
    assert_eq!(ask(path, "127.0.0.1", 80, path).await, 401);
    server.stop().await;
}

/// Under a path of another surface's listener the signature covers the requested path, and no other path leads here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_a_path_of_another_surface() {
    let disk = Disk::new();
    let options = |public_url: Option<&str>| Options {
        path: Some("/sync".to_owned()),
        public_url: public_url.map(|url| url.parse::<PublicUrl>().unwrap()),
        ..Options::default()
    };
    let path = "/1.5/5/info/collections";
    for public_url in
        [None, Some("https://example.org/sync"), Some("https://example.org/deep/sync"), Some("https://example.org")]
    {
        let server = Running::on(&disk, options(public_url)).await;
        let ask = async |signed: &str, public: bool, sent: &str| {
            let own = HawkAuthority { host: server.address.ip().to_string(), port: server.address.port() };
            let place = if public { HawkAuthority { host: "example.org".to_owned(), port: 443 } } else { own };
            let signing = Signing { method: "GET", target: signed, place, at: now(), ext: "", body: None };
            let authorization = signing.sign(&Credentials::new(SECRET, 5, now() + HOUR)).text();
            let request = Request::get(sent).header("host", server.address.to_string());
            let request = request.header("authorization", authorization).body(Bytes::new().into()).unwrap();
            send(server.address, request).await.status
        };
        let mounted = format!("/sync{path}");
        let prefix = public_url.map_or("/sync", |url| url.strip_prefix("https://example.org").unwrap());
        let right = format!("{prefix}{path}");
        assert_eq!(ask(&right, public_url.is_some(), &mounted).await, 200, "{public_url:?}");
        assert_eq!(ask(&right, public_url.is_none(), &mounted).await, 401, "{public_url:?}");
        assert_eq!(ask("/other/1.5/5/info/collections", public_url.is_some(), &mounted).await, 401, "{public_url:?}");
        // Paths of the other surface.
        for sent in
            [path, "/synced/1.5/5/info/collections", "/%73ync/1.5/5/info/collections", "/x/sync/1.5/5/info/collections"]
        {
            let status = ask(&right, public_url.is_some(), sent).await;
            assert!(matches!(status, 401 | 404), "{public_url:?} {sent}: {status}");
        }
        let get = async |sent: &str| {
            let request = Request::get(sent).header("host", "a").body(Bytes::new().into()).unwrap();
            send(server.address, request).await
        };
        let (front, other) = (get("/sync/__version__").await, get("/__version__").await);
        assert_eq!((front.status, &front.json()["version"]), (200, &json!("0.0.0")));
        assert_eq!((other.status, &other.json()["version"]), (200, &json!("main")));
        for sent in ["/sync", "/sync/", "/sync?x"] {
            assert_eq!(get(sent).await.status, 200, "{sent}");
        }
        server.stop().await;
    }
}

/// Only configured proxies may state the host that a request was sent to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwarding_headers_of_strangers_count_for_nothing() {
    let disk = Disk::new();
    let server = Running::on(&disk, Options::default()).await;
    let target = "/1.5/5/info/collections";
    let place = HawkAuthority { host: "example.com".to_owned(), port: 443 };
    let signing = Signing { method: "GET", target, place, at: now(), ext: "", body: None };
    let authorization = signing.sign(&Credentials::new(SECRET, 5, now() + HOUR)).text();
    for headers in [
        &[("x-forwarded-host", "example.com"), ("x-forwarded-proto", "https")][..],
        &[("forwarded", "host=example.com;proto=https")],
    ] {
        let mut request = Request::get(target).header("host", "a").header("authorization", &authorization);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        assert_eq!(send(server.address, request.body(Bytes::new().into()).unwrap()).await.status, 401);
    }
    server.stop().await;
}
