//! Firefox Sync as its devices use it: the mix of requests that a large deployment saw, a batch of 10,000 records until
//! its commit and its first read, and many records that expire at once beside other requests. Requests are signed with
//! Hawk, by tokens that the bench signs itself with the server's secret.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    fmt::Write,
    io,
    net::SocketAddr,
    path::Path,
    rc::Rc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE},
};
use bytes::Bytes;
use flatbed_client::{Connection, encode_segment};
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request,
    client::conn::http1::{self, SendRequest},
    header,
};
use hyper_util::rt::TokioIo;
use memchr::memmem;
use ring::hmac;
use serde_json::{Value, json};
use tokio::{
    net::TcpStream,
    task::{JoinSet, LocalSet},
};

use crate::{
    documents::mix,
    server::{Server, ServerError},
    stats::{cpu_s, median, own_cpu_s, percentiles, rounded},
    suite::MODEL,
};

const SECRET: &str = "the secret of flatbed-bench";
/// The salt of the tokens, in the token server's form.
const SALT: &str = "00ff7e";

/// The users of the mix, which also own the expiring records.
const USERS: u64 = 1_000;
/// The records of each user's history and bookmarks before the mix begins.
const HISTORY: u64 = 100;
const BOOKMARKS: u64 = 50;
/// The number of ids of a user from which the mix draws those that it writes to history.
const HISTORY_IDS: u64 = 2_000;

/// The records of a batch, in POSTs of the default limit, with payloads of 1 kB.
const BATCH_RECORDS: u64 = 10_000;
const POST_RECORDS: u64 = 100;

/// The other clients while records expire: connections that send a request of the mix and pause for a moment.
const OTHERS: usize = 8;
const PAUSE: Duration = Duration::from_millis(2);
/// The time for which they are measured before anything expires.
const BEFORE: Duration = Duration::from_secs(5);
/// The time limit for a server that sweeps nothing.
const SWEPT_MAX: Duration = Duration::from_secs(300);

/// The reason why there are no figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SyncError {
    /// The server did not start.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// A connection or a file failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A request failed.
    #[error(transparent)]
    Http(#[from] hyper::Error),
    /// A request that cannot be written.
    #[error(transparent)]
    Request(#[from] hyper::http::Error),
    /// The main listener did not answer.
    #[error(transparent)]
    Client(#[from] flatbed_client::Error),
    /// An unexpected answer.
    #[error("{target}: {status} {text}")]
    Status {
        /// The request's target.
        target: String,
        /// The answer's status.
        status: u16,
        /// The answer's text.
        text: String,
    },
    /// Records were not removed.
    #[error("only {swept} of {of} expired records were removed")]
    Swept {
        /// The number of removed records.
        swept: u64,
        /// The number of expired records.
        of: u64,
    },
}

type Result<T> = std::result::Result<T, SyncError>;

pub(crate) struct Options<'o> {
    /// Flatbed's binary.
    pub flatbed: &'o Path,
    pub directory: &'o Path,
    /// The duration of the mix, in seconds.
    pub seconds: u64,
    /// The batches to commit. The figures are medians.
    pub rounds: u64,
    /// The connections of the mix.
    pub workers: usize,
    /// The records that expire.
    pub expiring: u64,
}

fn sign(key: &[u8], parts: &[&[u8]]) -> hmac::Tag {
    let mut mac = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key));
    parts.iter().for_each(|part| mac.update(part));
    mac.sign()
}

/// Derives a key with HKDF and SHA-256, one hash long, as Mozilla's tokenlib does.
fn derive(salt: &[u8], info: &[&[u8]]) -> hmac::Tag {
    let pseudorandom = sign(salt, &[SECRET.as_bytes()]);
    sign(pseudorandom.as_ref(), &[&info.concat(), &[1]])
}

/// A user's credentials.
struct User {
    uid: u64,
    token: String,
    key: hmac::Key,
}

impl User {
    fn new(uid: u64) -> User {
        let text = json!({
            "node": "http://127.0.0.1", "fxa_kid": "0000000001234-qqo", "fxa_uid": format!("{uid:032x}"),
            "hashed_device_id": "2".repeat(32), "hashed_fxa_uid": "1".repeat(32), "expires": 4_102_444_800_u64,
            "uid": uid, "tokenserver_origin": "rust", "salt": SALT,
        });
        let mut token = text.to_string().into_bytes();
        let signing = derive(b"", &[b"services.mozilla.com/tokenlib/v1/signing"]);
        let signature = sign(signing.as_ref(), &[&token]);
        token.extend_from_slice(signature.as_ref());
        let token = URL_SAFE.encode(token);
        let key = derive(SALT.as_bytes(), &[b"services.mozilla.com/tokenlib/v1/derive/", token.as_bytes()]);
        User { uid, key: hmac::Key::new(hmac::HMAC_SHA256, URL_SAFE.encode(key).as_bytes()), token }
    }

    fn signature(&self, method: &Method, target: &str, place: SocketAddr, nonce: u64) -> String {
        let ts = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let (host, port) = (place.ip(), place.port());
        let text = format!("hawk.1.header\n{ts}\n{nonce:x}\n{method}\n{target}\n{host}\n{port}\n\n\n");
        let mac = STANDARD.encode(hmac::sign(&self.key, text.as_bytes()));
        format!("Hawk id=\"{}\", ts=\"{ts}\", nonce=\"{nonce:x}\", mac=\"{mac}\"", self.token)
    }
}

/// A request without its signature.
struct DeviceRequest {
    method: Method,
    /// The path below `/1.5/{uid}/`.
    path: String,
    body: String,
}

impl DeviceRequest {
    fn new(method: Method, path: impl Into<String>, body: String) -> DeviceRequest {
        DeviceRequest { method, path: path.into(), body }
    }

    fn get(path: &str) -> DeviceRequest {
        DeviceRequest::new(Method::GET, path, String::new())
    }
}

/// A connection.
struct Device {
    sender: SendRequest<Full<Bytes>>,
    place: SocketAddr,
    nonce: u64,
}

impl Device {
    async fn open(place: SocketAddr) -> Result<Device> {
        let stream = TcpStream::connect(place).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            // The caller that waits for an answer gets the error.
            let _ = connection.await;
        });
        Ok(Device { sender, place, nonce: 0 })
    }

    async fn call(&mut self, user: &User, asked: DeviceRequest) -> Result<(u16, Bytes)> {
        self.nonce += 1;
        let DeviceRequest { method, path, body } = asked;
        let target = format!("/1.5/{}/{path}", user.uid);
        let signature = user.signature(&method, &target, self.place, self.nonce);
        let mut request = Request::builder()
            .method(method)
            .uri(target)
            .header(header::HOST, self.place.to_string())
            .header(header::AUTHORIZATION, signature);
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        self.sender.ready().await?;
        let answer = self.sender.send_request(request.body(Full::new(body.into()))?).await?;
        Ok((answer.status().as_u16(), answer.into_body().collect().await?.to_bytes()))
    }

    /// Sends a request, and checks that its answer is a 2xx without refused objects.
    async fn expect(&mut self, user: &User, asked: DeviceRequest) -> Result<Bytes> {
        let (target, is_post) = (format!("{} {}", asked.method, asked.path), asked.method == Method::POST);
        let (status, text) = self.call(user, asked).await?;
        if (200..300).contains(&status) && (!is_post || memmem::find(&text, b"\"failed\":{}").is_some()) {
            return Ok(text);
        }
        let text = String::from_utf8_lossy(&text).chars().take(300).collect();
        Err(SyncError::Status { target, status, text })
    }
}

/// Random letters, like those of ciphertexts.
struct Letters(String);

impl Letters {
    const COUNT: u64 = 64 * 1024;

    fn new() -> Letters {
        const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        Letters((0..2 * Self::COUNT).map(|at| char::from(ALPHABET[(mix(at) % 64) as usize])).collect())
    }

    fn some(&self, drawn: u64, count: usize) -> &str {
        let at = (mix(drawn) % Self::COUNT) as usize;
        self.0.get(at..at + count).unwrap_or_default()
    }

    /// Writes a record with a payload of some `bytes` that looks encrypted. `more`: further members.
    fn write(&self, out: &mut String, id: &str, drawn: u64, bytes: usize, more: &str) {
        const OTHER_BYTES: usize = 123;
        let (text, iv) = (self.some(drawn, bytes.saturating_sub(OTHER_BYTES)), self.some(drawn + 1, 22));
        let mac = self.some(drawn + 2, 64);
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            r#"{{"id":"{id}","payload":"{{\"ciphertext\":\"{text}\",\"IV\":\"{iv}==\",\"hmac\":\"{mac}\"}}"{more}}}"#
        );
    }

    fn record(&self, drawn: u64, bytes: usize) -> String {
        let mut text = String::with_capacity(bytes + 200);
        self.write(&mut text, "it", drawn, bytes, "");
        text.replacen("\"id\":\"it\",", "", 1)
    }

    fn list(&self, ids: impl Iterator<Item = String>, drawn: u64, bytes: usize, more: &str) -> String {
        let mut text = String::from("[");
        for (at, id) in ids.enumerate() {
            text.push_str(if at == 0 { "" } else { "," });
            self.write(&mut text, &id, drawn + 3 * at as u64, bytes, more);
        }
        text.push(']');
        text
    }
}

/// Returns an id of twelve letters, as Firefox's are.
fn id(kind: char, number: u64) -> String {
    format!("{kind}{number:011x}")
}

#[derive(Clone, Copy)]
enum Kind {
    Collections,
    PostTabs,
    PostHistory,
    MetaGlobal,
    Clients,
    Tabs,
    PostClients,
    Keys,
    History,
    PostBookmark,
    Quota,
    DeleteHistory,
}

/// The requests in each hundred: those of the deployment, and for its unknown rest the other requests of devices.
const MIX: &[(Kind, &str, u64)] = &[
    (Kind::Collections, "GET info/collections", 34),
    (Kind::PostTabs, "POST tabs, 1", 15),
    (Kind::PostHistory, "POST history, 10", 13),
    (Kind::MetaGlobal, "GET meta/global", 8),
    (Kind::Clients, "GET clients", 7),
    (Kind::Tabs, "GET tabs", 5),
    (Kind::PostClients, "POST clients, 1", 4),
    (Kind::Keys, "GET crypto/keys", 4),
    (Kind::History, "GET history, 10 newest", 4),
    (Kind::PostBookmark, "POST bookmarks, 1", 3),
    (Kind::Quota, "GET info/quota", 2),
    (Kind::DeleteHistory, "DELETE history, 1", 1),
];

fn drawn_kind(drawn: u64) -> (Kind, &'static str) {
    let mut left = drawn % 100;
    for (kind, name, share) in MIX {
        if left < *share {
            return (*kind, name);
        }
        left -= share;
    }
    (Kind::Collections, "GET info/collections")
}

/// The shared state of the devices.
struct World {
    place: SocketAddr,
    users: Vec<User>,
    letters: Letters,
}

impl World {
    fn user(&self, number: u64) -> &User {
        &self.users[(number % self.users.len() as u64) as usize]
    }

    fn asked(&self, kind: Kind, drawn: u64) -> DeviceRequest {
        const TTL: &str = ",\"ttl\":1814400";
        let letters = &self.letters;
        let one = |kind, among: u64| std::iter::once(id(kind, mix(drawn) % among));
        let post = |path: &str, body| DeviceRequest::new(Method::POST, path, body);
        match kind {
            Kind::Collections => DeviceRequest::get("info/collections"),
            Kind::PostTabs => post("storage/tabs", letters.list(one('t', 2), drawn, 1_000, TTL)),
            Kind::PostHistory => {
                let ids = (0..10).map(|at| id('h', mix(drawn + at) % HISTORY_IDS));
                // An id must not occur twice in a request.
                let mut ids: Vec<String> = ids.collect();
                ids.sort();
                ids.dedup();
                post("storage/history", letters.list(ids.into_iter(), drawn, 500, ""))
            }
            Kind::MetaGlobal => DeviceRequest::get("storage/meta/global"),
            Kind::Clients => DeviceRequest::get("storage/clients?full=1"),
            Kind::Tabs => DeviceRequest::get("storage/tabs?full=1"),
            Kind::PostClients => post("storage/clients", letters.list(one('c', 2), drawn, 400, TTL)),
            Kind::Keys => DeviceRequest::get("storage/crypto/keys"),
            Kind::History => DeviceRequest::get("storage/history?full=1&sort=newest&limit=10"),
            Kind::PostBookmark => post("storage/bookmarks", letters.list(one('b', BOOKMARKS), drawn, 500, "")),
            Kind::Quota => DeviceRequest::get("info/quota"),
            Kind::DeleteHistory => {
                let path = format!("storage/history?ids={}", id('h', mix(drawn) % HISTORY_IDS));
                DeviceRequest::new(Method::DELETE, path, String::new())
            }
        }
    }

    /// Runs `work` for each number below `count`, on this many connections.
    async fn each<W>(self: &Rc<Self>, workers: usize, count: u64, work: W) -> Result<()>
    where
        W: AsyncFn(&World, &mut Device, u64) -> Result<()> + 'static,
    {
        let (next, work, local) = (Rc::new(Cell::new(0)), Rc::new(work), LocalSet::new());
        let mut tasks = JoinSet::new();
        for _ in 0..workers {
            let (world, next, work) = (self.clone(), next.clone(), work.clone());
            let mut device = Device::open(self.place).await?;
            let loops = async move {
                while next.get() < count {
                    work(&world, &mut device, next.replace(next.get() + 1)).await?;
                }
                Ok::<_, SyncError>(())
            };
            tasks.spawn_local_on(loops, &local);
        }
        let ended = local.run_until(async {
            while let Some(ended) = tasks.join_next().await {
                ended.map_err(io::Error::other)??;
            }
            Ok(())
        });
        ended.await
    }

    /// Writes each user's data before the measurements.
    async fn fill(self: &Rc<Self>, workers: usize) -> Result<()> {
        let fill = async |world: &World, device: &mut Device, number: u64| {
            let (user, letters) = (world.user(number), &world.letters);
            for name in ["meta/global", "crypto/keys"] {
                let body = letters.record(number, 600);
                device.expect(user, DeviceRequest::new(Method::PUT, format!("storage/{name}"), body)).await?;
            }
            let lists = [('c', "clients", 2, 400), ('t', "tabs", 2, 1_000), ('h', "history", HISTORY, 500)];
            for (kind, name, count, bytes) in lists.into_iter().chain([('b', "bookmarks", BOOKMARKS, 500)]) {
                let body = letters.list((0..count).map(|at| id(kind, at)), number, bytes, "");
                device.expect(user, DeviceRequest::new(Method::POST, format!("storage/{name}"), body)).await?;
            }
            Ok(())
        };
        self.each(workers, USERS, fill).await
    }

    /// Runs the mix on this many connections, until it is over. Returns the latencies of each kind in milliseconds with
    /// the moments of their ends, and the number of requests that got 503.
    async fn mix(
        self: &Rc<Self>,
        workers: usize,
        pause: Option<Duration>,
        over: Rc<Cell<Instant>>,
    ) -> Result<MixResult> {
        let seen = Rc::new(RefCell::new(MixResult::default()));
        let into = seen.clone();
        let one = async move |world: &World, device: &mut Device, number: u64| {
            while Instant::now() < over.get() {
                let number = number + into.borrow_mut().next() * 1_000;
                let (kind, name) = drawn_kind(mix(number) >> 8);
                let asked = world.asked(kind, number);
                let target = asked.path.clone();
                let started = Instant::now();
                let (status, text) = device.call(world.user(mix(number + 1) >> 8), asked).await?;
                let ended = Instant::now();
                let latency_ms = (ended - started).as_secs_f64() * 1e3;
                match status {
                    200..300 => into.borrow_mut().answers.push((name, latency_ms, ended)),
                    503 => into.borrow_mut().refused += 1,
                    _ => {
                        let text = String::from_utf8_lossy(&text).chars().take(300).collect();
                        return Err(SyncError::Status { target, status, text });
                    }
                }
                if let Some(pause) = pause {
                    tokio::time::sleep(pause).await;
                }
            }
            Ok(())
        };
        self.each(workers, workers as u64, one).await?;
        Ok(seen.take())
    }
}

#[derive(Default)]
struct MixResult {
    count: u64,
    answers: Vec<(&'static str, f64, Instant)>,
    refused: u64,
}

impl MixResult {
    fn next(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    fn latencies(&self, from: Instant, to: Instant) -> Value {
        let among = self.answers.iter().filter(|(_, _, ended)| (from..to).contains(ended));
        let mut all_ms: Vec<f64> = among.map(|(_, latency_ms, _)| *latency_ms).collect();
        json!({"requests": all_ms.len(), "ms": percentiles(&mut all_ms)})
    }

    fn by_kind(&self) -> Value {
        let mut kinds: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (name, latency_ms, _) in &self.answers {
            kinds.entry(name).or_default().push(*latency_ms);
        }
        kinds.iter_mut().map(|(name, all_ms)| ((*name).to_owned(), percentiles(all_ms))).collect()
    }
}

async fn measure_mix(world: &Rc<World>, server: &Server, options: &Options<'_>) -> Result<Value> {
    let cpu = || (own_cpu_s(), server.pid().map_or(0.0, cpu_s));
    let (started, before) = (Instant::now(), cpu());
    let over = started + Duration::from_secs(options.seconds);
    let seen = world.mix(options.workers, None, Rc::new(Cell::new(over))).await?;
    let (seconds, after) = (started.elapsed().as_secs_f64(), cpu());
    Ok(json!({
        "workers": options.workers,
        "per_s": rounded(seen.answers.len() as f64 / seconds, 1.0),
        "refused": seen.refused,
        "ms": seen.latencies(started, Instant::now())["ms"],
        "client_cores": rounded((after.0 - before.0) / seconds, 100.0),
        "server_cores": rounded((after.1 - before.1) / seconds, 100.0),
        "kinds": seen.by_kind(),
    }))
}

/// Measures batches, each of a user without any of its records.
async fn measure_batches(world: &Rc<World>, rounds: u64) -> Result<Value> {
    let mut found: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let mut device = Device::open(world.place).await?;
    for round in 0..rounds {
        let user = User::new(USERS + 1 + round);
        let (started, mut batch) = (Instant::now(), "true".to_owned());
        let (mut committed_ms, mut begun) = (0.0, started);
        let posts = BATCH_RECORDS / POST_RECORDS;
        for post in 0..posts {
            let commit = if post + 1 == posts { "&commit=true" } else { "" };
            let ids = (0..POST_RECORDS).map(|at| id('n', post * POST_RECORDS + at));
            let body = world.letters.list(ids, round + post, 1_000, "");
            let path = format!("storage/bookmarks?batch={batch}{commit}");
            begun = Instant::now();
            let answer = device.expect(&user, DeviceRequest::new(Method::POST, path, body)).await?;
            committed_ms = begun.elapsed().as_secs_f64() * 1e3;
            let answer: Value = serde_json::from_slice(&answer).map_err(io::Error::other)?;
            if let Some(begun) = answer["batch"].as_str() {
                batch = encode_segment(begun);
            }
        }
        let first = device.expect(&user, DeviceRequest::get("storage/bookmarks?full=1&sort=newest&limit=100")).await?;
        let read_ms = begun.elapsed().as_secs_f64() * 1e3;
        let all_begun = Instant::now();
        let all = device.expect(&user, DeviceRequest::get("storage/bookmarks?full=1")).await?;
        let all_ms = all_begun.elapsed().as_secs_f64() * 1e3;
        let rows = |text: &[u8]| memmem::find_iter(text, b"\"modified\":").count() as u64;
        if (rows(&first), rows(&all)) != (100, BATCH_RECORDS) {
            let text = format!("{} and {} records", rows(&first), rows(&all));
            return Err(SyncError::Status { target: "storage/bookmarks".to_owned(), status: 200, text });
        }
        let upload_s = (begun - started).as_secs_f64();
        for (name, figure) in
            [("upload_s", upload_s), ("commit_ms", committed_ms), ("first_read_ms", read_ms), ("all_ms", all_ms)]
        {
            found.entry(name).or_default().push(figure);
        }
    }
    let mut figures = json!({"records": BATCH_RECORDS, "rounds": rounds});
    for (name, all) in &mut found {
        figures[*name] = json!(rounded(median(all), 1000.0));
    }
    Ok(figures)
}

/// Returns how many records the server has removed after their expiry.
async fn removed(server: &Server) -> Result<u64> {
    let answer = Connection::open(&server.url).await?.call(Method::GET, "/metrics", Bytes::new()).await?;
    // Not `text()`, which is for messages and truncates.
    let text = String::from_utf8_lossy(&answer.body);
    let line = text.lines().find(|line| line.starts_with("flatbed_sync_records_expired"));
    Ok(line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).unwrap_or_default() as u64)
}

/// Measures the expiry of records of all users at one moment, and its effect on other requests.
async fn measure_expiry(world: &Rc<World>, server: &Server, workers: usize, expiring: u64) -> Result<Value> {
    let started = Instant::now();
    // Late enough for all writes, if the server writes 15,000 records per second.
    let due = started + Duration::from_secs(10 + expiring / 15_000);
    let posts = expiring.div_ceil(POST_RECORDS);
    let fill = async move |world: &World, device: &mut Device, post: u64| {
        let ttl_s = due.saturating_duration_since(Instant::now()).as_secs().max(1);
        let ids = (post * POST_RECORDS..expiring.min((post + 1) * POST_RECORDS)).map(|number| id('f', number));
        let body = world.letters.list(ids, post, 300, &format!(",\"ttl\":{ttl_s}"));
        device.expect(world.user(post), DeviceRequest::new(Method::POST, "storage/forms", body)).await.map(drop)
    };
    let removed_before = removed(server).await?;
    world.each(workers, posts, fill).await?;
    let written_s = started.elapsed().as_secs_f64();
    let others_from = Instant::now();
    let over = Rc::new(Cell::new(others_from + 2 * SWEPT_MAX + Duration::from_secs(expiring / 100)));
    let watch = async {
        let (mut begun, mut last, mut swept) = (None, Instant::now(), 0);
        let mut heard = others_from;
        while swept < expiring {
            tokio::time::sleep(Duration::from_millis(250)).await;
            let now = removed(server).await? - removed_before;
            if now > swept {
                begun = begun.or(Some(last));
                heard = Instant::now();
            }
            if heard.max(due).elapsed() > SWEPT_MAX {
                over.set(last);
                return Err(SyncError::Swept { swept: now, of: expiring });
            }
            (swept, last) = (now, Instant::now());
        }
        over.set(last);
        Ok((begun.unwrap_or(others_from), last))
    };
    let (seen, watched) = tokio::join!(world.mix(OTHERS, Some(PAUSE), over.clone()), watch);
    let ((begun, ended), seen) = (watched?, seen?);
    let swept_s = (ended - begun).as_secs_f64();
    Ok(json!({
        "records": expiring,
        "written_s": rounded(written_s, 10.0),
        "removed_s": rounded(swept_s, 10.0),
        "removed_per_s": rounded(expiring as f64 / swept_s, 1.0),
        "others": OTHERS,
        "refused": seen.refused,
        "before": seen.latencies(begun - BEFORE.min(begun - others_from), begun),
        "while": seen.latencies(begun, ended),
    }))
}

/// Measures everything against a server of its own, on the embedded engine or with the simulated cluster's time.
/// Returns one JSON object.
async fn measure(options: &Options<'_>, is_model: bool) -> Result<Value> {
    let place = Server::free_address()?;
    let listen = place.to_string();
    let mut variables = vec![("FLATBED_SYNCSTORAGE_LISTEN", &*listen), ("FLATBED_SYNCSTORAGE_MASTER_SECRET", SECRET)];
    if is_model {
        variables.extend_from_slice(MODEL);
    }
    let server = Server::flatbed_with(options.flatbed, &options.directory.join("data"), &variables).await?;
    let world = Rc::new(World { place, users: (1..=USERS).map(User::new).collect(), letters: Letters::new() });
    world.fill(options.workers).await?;
    let mix = measure_mix(&world, &server, options).await?;
    let batch = measure_batches(&world, options.rounds).await?;
    let expiry = match options.expiring {
        0 => Value::Null,
        expiring => measure_expiry(&world, &server, options.workers, expiring).await?,
    };
    server.stop().await?;
    Ok(json!({"load": "sync", "users": USERS, "model": is_model, "mix": mix, "batch": batch, "expiry": expiry}))
}

/// Measures everything twice, on the embedded engine and with the simulated cluster's time, and prints a line for each.
pub(crate) async fn run(options: &Options<'_>) -> Result<()> {
    for is_model in [false, true] {
        match std::fs::remove_dir_all(options.directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        std::fs::create_dir_all(options.directory)?;
        println!("{}", measure(options, is_model).await?);
    }
    std::fs::remove_dir_all(options.directory)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_a_hundred() {
        assert_eq!(MIX.iter().map(|(_, _, share)| share).sum::<u64>(), 100);
        let counts = (0..100).map(|drawn| drawn_kind(drawn).1).filter(|name| *name == "POST tabs, 1").count();
        assert_eq!(counts, 15);
    }

    #[test]
    fn records_are_json_of_their_size() {
        let letters = Letters::new();
        let list: Value =
            serde_json::from_str(&letters.list((0..3).map(|at| id('h', at)), 7, 500, ",\"ttl\":9")).unwrap();
        for record in list.as_array().unwrap() {
            assert_eq!(record["ttl"], 9);
            let payload = record["payload"].as_str().unwrap();
            assert_eq!(payload.len(), 500);
            assert!(serde_json::from_str::<Value>(payload).is_ok());
        }
        assert_eq!(list[2]["id"], "h00000000002");
        let one: Value = serde_json::from_str(&letters.record(1, 600)).unwrap();
        assert_eq!(one.as_object().unwrap().len(), 1);
    }
}
