//! A device that behaves as Firefox does: its first reads, keys, clients, bookmarks in batches of thousands, tabs that
//! expire, history by pages; and two devices that write at once.

use std::time::Duration;

use bytes::Bytes;
use flatbed_clock::{Clock, ManualClock};
use flatbed_firefox::hawk::HawkAuthority;
use hyper::Request;
use serde_json::{Value, json};

use crate::signing::{Credentials, Signing};
use crate::support::{Answer, Connection, Disk, Options, Running, SECRET};

struct Device {
    connection: Connection,
    credentials: Credentials,
    /// The server's clock.
    clock: Clock,
    place: HawkAuthority,
    root: String,
    /// The latest `X-Last-Modified` that this device has seen of the collection, as it is sent back.
    seen: String,
}

/// Returns the seconds since 1970.
fn seconds(clock: &Clock) -> i64 {
    clock.unix_seconds().try_into().unwrap()
}

impl Device {
    async fn of(server: &Running, uid: u64) -> Device {
        Device {
            connection: Connection::open(server.address).await,
            credentials: Credentials::new(SECRET, uid, seconds(&server.clock) + 3_600),
            clock: server.clock.clone(),
            place: HawkAuthority { host: server.address.ip().to_string(), port: server.address.port() },
            root: format!("/1.5/{uid}"),
            seen: "0".to_owned(),
        }
    }

    async fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&Value>) -> Answer {
        let target = format!("{}{path}", self.root);
        let body = body.map(Value::to_string);
        let signing = Signing {
            method,
            target: &target,
            place: self.place.clone(),
            at: seconds(&self.clock),
            ext: "",
            body: body.as_ref().map(|body| ("application/json", body.as_bytes())),
        };
        let mut request = Request::builder()
            .method(method)
            .uri(&target)
            .header("host", format!("{}:{}", self.place.host, self.place.port))
            .header("authorization", signing.sign(&self.credentials).text());
        if !headers.iter().any(|(name, _)| *name == "accept") {
            request = request.header("accept", "application/json;q=0.9,*/*;q=0.2");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        self.connection.send(request.body(Bytes::from(body.unwrap_or_default()).into()).unwrap()).await
    }

    async fn get(&mut self, path: &str) -> Answer {
        let answer = self.send("GET", path, &[], None).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer
    }

    async fn put(&mut self, path: &str, payload: &str) -> Answer {
        self.send("PUT", path, &[], Some(&json!({"payload": payload}))).await
    }

    /// Uploads records as Firefox does: a hundred a request, in one batch, unless another device has written since.
    async fn upload(&mut self, collection: &str, records: &[Value]) -> Result<String, u16> {
        let path = format!("/storage/{collection}");
        let mut batch = None;
        let mut chunks = records.chunks(100).peekable();
        while let Some(chunk) = chunks.next() {
            let query = match (&batch, chunks.peek()) {
                (None, None) => String::new(),
                (None, Some(_)) => "?batch=true".to_owned(),
                (Some(id), Some(_)) => format!("?batch={id}"),
                (Some(id), None) => format!("?batch={id}&commit=true"),
            };
            let seen = self.seen.clone();
            let headers = [("x-if-unmodified-since", seen.as_str())];
            let answer = self.send("POST", &format!("{path}{query}"), &headers, Some(&chunk.into())).await;
            match answer.status {
                202 => {
                    assert_eq!(answer.json()["failed"], json!({}));
                    batch = Some(answer.json()["batch"].as_str().unwrap().to_owned());
                }
                200 => {
                    assert_eq!(answer.json()["failed"], json!({}));
                    self.seen = answer.header("x-last-modified").unwrap();
                }
                status => return Err(status),
            }
        }
        Ok(self.seen.clone())
    }

    /// Downloads the records newer than the last seen ones by pages, unless another device writes meanwhile.
    async fn download(&mut self, collection: &str, limit: usize) -> Result<Vec<Value>, u16> {
        let mut records = Vec::new();
        let (mut offset, mut until) = (String::new(), None::<String>);
        loop {
            let path = format!("/storage/{collection}?full=1&newer={}&limit={limit}&sort=oldest{offset}", self.seen);
            let condition = until.clone();
            let headers: Vec<(&str, &str)> = condition.iter().map(|time| ("x-if-unmodified-since", &**time)).collect();
            let answer = self.send("GET", &path, &headers, None).await;
            if answer.status != 200 {
                return Err(answer.status);
            }
            let page = answer.json();
            let page = page.as_array().unwrap();
            assert_eq!(answer.header("x-weave-records").unwrap(), page.len().to_string());
            records.extend(page.iter().cloned());
            until = answer.header("x-last-modified");
            match answer.header("x-weave-next-offset") {
                Some(next) => offset = format!("&offset={next}"),
                None => break,
            }
        }
        self.seen = until.unwrap();
        Ok(records)
    }
}

fn bookmark(number: usize) -> Value {
    json!({"id": format!("b{number:011}"), "payload": format!("{{\"ciphertext\":\"{}\"}}", "x".repeat(number % 300)), "sortindex": number})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_sync_and_a_second_device() {
    let (disk, clock) = (Disk::new(), ManualClock::new());
    let server = Running::on(&disk, Options { clock: clock.clock(), ..Options::default() }).await;
    let mut first = Device::of(&server, 71).await;

    // The storage is empty: the device creates the keys.
    assert_eq!(first.get("/info/collections").await.json(), json!({}));
    assert_eq!(first.get("/info/configuration").await.json()["max_post_records"], 100);
    assert_eq!(first.send("GET", "/storage/meta/global", &[], None).await.status, 404);
    assert_eq!(first.send("DELETE", "/storage", &[], None).await.status, 200);
    let meta = json!({"payload": "{\"syncID\":\"abc\",\"storageVersion\":5}"});
    let condition = [("x-if-unmodified-since", "0")];
    assert_eq!(first.send("PUT", "/storage/meta/global", &condition, Some(&meta)).await.status, 200);
    assert_eq!(first.send("PUT", "/storage/meta/global", &condition, Some(&meta)).await.status, 412);
    assert_eq!(first.put("/storage/crypto/keys", "{\"ciphertext\":\"k\",\"IV\":\"BBBB\"}").await.status, 200);
    let ttl = json!([{"id": "clientaaaaaa", "payload": "{\"name\":\"one\"}", "ttl": 1_814_400}]);
    assert_eq!(first.send("POST", "/storage/clients", &[], Some(&ttl)).await.status, 200);

    // Thousands of bookmarks, in batches that are never half visible.
    let bookmarks: Vec<Value> = (0..2_345).map(bookmark).collect();
    first.seen = "0".to_owned();
    let time = first.upload("bookmarks", &bookmarks).await.unwrap();
    let collections = first.get("/info/collections").await.json();
    assert_eq!(collections["bookmarks"].as_f64(), time.parse().ok());
    assert_eq!(first.get("/info/collection_counts").await.json()["bookmarks"], 2_345);
    let bytes: usize = bookmarks.iter().map(|bookmark| bookmark["payload"].as_str().unwrap().len()).sum();
    let usage = first.get("/info/collection_usage").await.json()["bookmarks"].as_f64().unwrap();
    assert_eq!(usage, bytes as f64 / 1_024.0);

    // Another device reads them all, by pages and at once.
    let mut second = Device::of(&server, 71).await;
    assert_eq!(second.get("/storage/meta/global").await.json()["payload"], meta["payload"]);
    let mut found = second.download("bookmarks", 1_000).await.unwrap();
    assert_eq!(found.len(), 2_345);
    let whole = second.get("/storage/bookmarks?full=1&sort=index").await.json();
    assert_eq!(whole[0]["sortindex"], 2_344);
    assert_eq!(whole.as_array().unwrap().len(), 2_345);
    found.sort_by_key(|record| record["id"].as_str().unwrap().to_owned());
    for (found, given) in found.iter().zip(&bookmarks) {
        assert_eq!((&found["id"], &found["payload"]), (&given["id"], &given["payload"]));
        assert_eq!(found["modified"].as_f64(), time.parse().ok());
    }

    // Both write: a device that has not seen the other's changes gets 412, reads them, and writes again.
    first.seen.clone_from(&time);
    assert_eq!(second.seen, time);
    second.upload("bookmarks", &[bookmark(0), bookmark(9_001)]).await.unwrap();
    assert_eq!(first.upload("bookmarks", &(0..150).map(bookmark).collect::<Vec<_>>()).await, Err(412));
    assert_eq!(first.upload("bookmarks", &[bookmark(5)]).await, Err(412));
    let news = first.download("bookmarks", 1_000).await.unwrap();
    assert_eq!(news.len(), 2);
    first.upload("bookmarks", &(0..150).map(bookmark).collect::<Vec<_>>()).await.unwrap();
    assert_eq!(second.download("bookmarks", 100).await.unwrap().len(), 150);

    // Without changes one small request suffices.
    let seen = second.get("/info/collections").await.header("x-last-modified").unwrap();
    let again = second.send("GET", "/info/collections", &[("x-if-modified-since", &seen)], None).await;
    assert_eq!((again.status, again.body.len()), (304, 0));

    // Tabs that expire, and history by pages of ids.
    let tabs = json!([{"id": "clientaaaaaa", "payload": "{\"tabs\":[]}", "ttl": 6}]);
    assert_eq!(first.send("POST", "/storage/tabs", &[], Some(&tabs)).await.status, 200);
    assert_eq!(second.get("/storage/tabs").await.json(), json!(["clientaaaaaa"]));
    let history: Vec<Value> =
        (0..250).map(|number| json!({"id": format!("h{number:04}"), "payload": "x".repeat(500)})).collect();
    first.seen = "0".to_owned();
    first.upload("history", &history).await.unwrap();
    clock.advance(Duration::from_secs(7));
    assert_eq!(second.get("/storage/tabs").await.json(), json!([]));
    let ids = second.get("/storage/history?sort=oldest").await.json();
    assert_eq!(ids.as_array().unwrap().len(), 250);
    let wanted: Vec<&str> = ids.as_array().unwrap().iter().take(100).map(|id| id.as_str().unwrap()).collect();
    let some = second.get(&format!("/storage/history?full=1&ids={}", wanted.join(","))).await.json();
    assert_eq!(some.as_array().unwrap().len(), 100);

    // A reset removes everything, and times continue.
    let answer = first.send("DELETE", "/storage", &[], None).await;
    assert_eq!((answer.status, answer.json()), (200, Value::Null));
    assert_eq!(second.get("/info/collections").await.json(), json!({}));
    let again = second.put("/storage/meta/global", "again").await;
    let times = [again.header("x-last-modified").unwrap(), seen].map(|time| time.parse::<f64>().unwrap());
    assert!(times[0] > times[1], "{times:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_within_one_step_have_times_of_their_own() {
    let disk = Disk::new();
    let (one, other) = (Running::on(&disk, Options::default()).await, Running::on(&disk, Options::default()).await);
    let mut devices = [Device::of(&one, 72).await, Device::of(&other, 72).await];
    let mut times = Vec::new();
    for round in 0..20 {
        for device in &mut devices {
            let answer = device.put(&format!("/storage/forms/f{round}"), "x").await;
            assert_eq!(answer.status, 200);
            times.push(answer.header("x-last-modified").unwrap().parse::<f64>().unwrap());
        }
    }
    assert!(times.is_sorted_by(|one, next| one < next), "{times:?}");
    one.stop().await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_payloads_come_back_as_they_are() {
    let disk = Disk::new();
    let server = Running::on(&disk, Options::default()).await;
    let mut device = Device::of(&server, 73).await;
    // Six times as long when escaped.
    let payload = "\u{1}\u{20ac}\"\\".repeat(40_000);
    let body = json!([{"id": "a", "payload": payload}, {"id": "b", "payload": "x".repeat(2_000_000)}]);
    let answer = device.send("POST", "/storage/addons", &[], Some(&body)).await;
    assert_eq!(answer.json()["success"], json!(["a", "b"]));
    for id in ["c", "d", "e"] {
        assert_eq!(device.put(&format!("/storage/addons/{id}"), &"y".repeat(1_500_000)).await.status, 200);
    }
    assert_eq!(device.get("/storage/addons/a").await.json()["payload"], payload);
    let all = device.get("/storage/addons?full=1&sort=oldest").await.json();
    let lengths: Vec<usize> = all.as_array().unwrap().iter().map(|it| it["payload"].as_str().unwrap().len()).collect();
    assert_eq!(lengths, [payload.len(), 2_000_000, 1_500_000, 1_500_000, 1_500_000]);
    let lines = device.send("GET", "/storage/addons?full=1", &[("accept", "application/newlines")], None).await;
    assert_eq!(lines.body.iter().filter(|byte| **byte == b'\n').count(), 5);
    server.stop().await;
}
