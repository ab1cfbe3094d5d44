//! The shared parts: two servers that die and restart, each with a clock of its own; a client.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use flatbed_clock::Clock;
use flatbed_firefox::hawk::HawkAuthority;
use flatbed_syncstorage::{Limits, Timestamp};
use flatbed_testkit::{self as testkit, PATIENCE, Random, Torture, WaitLoop, pass, within};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::signing::{Credentials, Signing, now};
use crate::support::{Answer, Disk, Options, Running, SECRET};

/// The time for which a read with a broken connection waits for its server's replacement.
const BROKEN: Duration = Duration::from_secs(2);

/// The largest error of a server's clock, in hundredths of a second.
const SKEW: u64 = 200;

/// Returns the machine's clock, in hundredths of a second.
pub fn clock() -> i64 {
    Timestamp::now(&Clock::system()).hundredths()
}

/// The address of a server until it dies.
#[derive(Debug, Clone, Copy)]
struct Slot {
    /// A unique number of the server.
    number: u64,
    address: SocketAddr,
    skew: i64,
}

pub struct World {
    disk: Arc<Disk>,
    limits: Limits,
    slots: [Mutex<Slot>; 2],
    pub torture: Torture,
}

/// A server that can be killed.
pub struct Mortal {
    server: testkit::Mortal<Running>,
    slot: Slot,
}

impl Mortal {
    async fn start(disk: &Arc<Disk>, limits: Limits, number: u64, random: &mut Random) -> Mortal {
        let skew = i64::try_from(random.below(SKEW)).unwrap() - i64::try_from(SKEW / 2).unwrap();
        let disk = disk.clone();
        let clock = Clock::system().skewed(skew * 10);
        let options = Options { limits, clock, ..Options::default() };
        let server = testkit::Mortal::start(1, async move { Running::on(&disk, options).await }).await;
        let slot = Slot { number, address: server.process().address, skew };
        Mortal { server, slot }
    }

    /// Kills it as a process is killed: no request is finished or answered, and none continues afterwards.
    pub async fn kill(self) {
        self.server.kill_and_wait().await;
    }
}

impl World {
    pub async fn start(disk: Disk, limits: Limits, random: &mut Random) -> (Arc<World>, Vec<Mortal>) {
        let disk = Arc::new(disk);
        let one = Mortal::start(&disk, limits, 0, random).await;
        let other = Mortal::start(&disk, limits, 1, random).await;
        let slots = [Mutex::new(one.slot), Mutex::new(other.slot)];
        let torture = Torture::new(["answers", "killed", "generations", "looks of readers"]);
        (Arc::new(World { disk, limits, slots, torture }), vec![one, other])
    }

    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    pub fn count(&self, what: &'static str) {
        self.torture.count(what);
    }

    fn slot(&self, at: usize) -> Slot {
        *self.slots[at].lock().unwrap()
    }

    /// Waits until another server replaces this one.
    async fn replaced(&self, at: usize, number: u64) {
        let mut waiting = WaitLoop::begin();
        while self.slot(at).number == number {
            waiting.pause("the server is replaced").await;
        }
    }

    /// Kills a server, and starts another one in its place.
    pub async fn replace(&self, at: usize, servers: &mut Vec<Mortal>, random: &mut Random) {
        let number = self.slot(at).number + 2;
        let old = servers.remove(at);
        old.kill().await;
        pass(Duration::from_millis(random.below(200))).await;
        let new = Mortal::start(&self.disk, self.limits, number, random).await;
        *self.slots[at].lock().unwrap() = new.slot;
        servers.insert(at, new);
        self.count("killed");
    }
}

#[derive(Debug, Clone)]
pub struct ApiRequest {
    pub method: &'static str,
    pub target: String,
    pub header: Option<(&'static str, String)>,
    pub body: Option<String>,
}

impl ApiRequest {
    pub fn get(target: impl Into<String>) -> ApiRequest {
        ApiRequest { method: "GET", target: target.into(), header: None, body: None }
    }
}

/// An answer, and the server's times before and after it.
#[derive(Debug)]
pub struct Timed {
    pub answer: Answer,
    pub from: i64,
    pub to: i64,
}

impl Timed {
    pub fn time(&self, name: &str) -> Option<i64> {
        let text = self.answer.header(name)?;
        let (whole, decimals) = text.split_once('.').unwrap_or_else(|| panic!("{name}: {text}"));
        assert_eq!(decimals.len(), 2, "{name}: {text}");
        Some(whole.parse::<i64>().unwrap() * 100 + decimals.parse::<i64>().unwrap())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.answer.body).unwrap()
    }
}

/// A client with a connection to each server.
pub struct Client {
    world: Arc<World>,
    credentials: Credentials,
    pub uid: u64,
    connections: [Option<(u64, SendRequest<Full<Bytes>>)>; 2],
}

impl Client {
    pub fn new(world: &Arc<World>, uid: u64) -> Client {
        let credentials = Credentials::new(SECRET, uid, now() + 100_000);
        Client { world: world.clone(), credentials, uid, connections: [None, None] }
    }

    /// Sends a request to one of the servers, once. `None`: the connection broke because the server was killed, or the
    /// server answered 503. The request may then have been executed, but does not continue.
    pub async fn ask(&mut self, asked: &ApiRequest, random: &mut Random) -> Option<Timed> {
        let (at, slot) = self.connect(random).await;
        let request = self.request(asked, slot);
        let from = clock() + slot.skew;
        let connection = &mut self.connections[at].as_mut().unwrap().1;
        let answer = timeout(PATIENCE, send(connection, request)).await;
        let answer = answer.unwrap_or_else(|_| panic!("user {}: no answer to {asked:?}", self.uid));
        let Some(answer) = answer else {
            self.connections[at] = None;
            // A killed server breaks a connection, and is replaced when it is gone. A storage failure amid a list also
            // breaks it, since the part already sent cannot be taken back.
            let replaced = self.world.replaced(at, slot.number);
            if asked.method == "GET" {
                within(BROKEN, replaced).await;
            } else {
                replaced.await;
            }
            self.world.count("broken");
            return None;
        };
        if answer.status == 503 {
            self.world.count("503");
            return None;
        }
        self.world.count("answers");
        Some(Timed { answer, from, to: clock() + slot.skew })
    }

    async fn connect(&mut self, random: &mut Random) -> (usize, Slot) {
        let mut waiting = WaitLoop::begin();
        loop {
            let at = usize::from(random.one_in(2));
            let slot = self.world.slot(at);
            if self.connections[at].as_ref().is_some_and(|(number, _)| *number == slot.number) {
                return (at, slot);
            }
            if let Some(connection) = connect(slot.address).await {
                self.connections[at] = Some((slot.number, connection));
                return (at, slot);
            }
            waiting.pause("a server takes a connection").await;
        }
    }

    /// Sends a read until it is answered.
    pub async fn read(&mut self, asked: &ApiRequest, random: &mut Random) -> Timed {
        for _ in 0..200 {
            if let Some(answer) = self.ask(asked, random).await {
                return answer;
            }
        }
        panic!("user {}: never answered: {asked:?}", self.uid);
    }

    fn request(&self, asked: &ApiRequest, slot: Slot) -> Request<Full<Bytes>> {
        let place = HawkAuthority { host: slot.address.ip().to_string(), port: slot.address.port() };
        let target = format!("/1.5/{}{}", self.uid, asked.target);
        let host = slot.address.to_string();
        let body = asked.body.as_ref().map(|body| ("application/json", body.as_bytes()));
        let signing = Signing { method: asked.method, target: &target, place, at: now(), ext: "", body };
        let signed = signing.sign(&self.credentials).text();
        let mut request =
            Request::builder().method(asked.method).uri(&target).header("host", host).header("authorization", signed);
        if let Some((name, value)) = &asked.header {
            request = request.header(*name, value);
        }
        if asked.body.is_some() {
            request = request.header("content-type", "application/json");
        }
        request.body(Bytes::from(asked.body.clone().unwrap_or_default()).into()).unwrap()
    }
}

async fn connect(address: SocketAddr) -> Option<SendRequest<Full<Bytes>>> {
    let stream = TcpStream::connect(address).await.ok()?;
    stream.set_nodelay(true).ok()?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
    tokio::spawn(async move { drop(connection.await) });
    Some(sender)
}

async fn send(connection: &mut SendRequest<Full<Bytes>>, request: Request<Full<Bytes>>) -> Option<Answer> {
    connection.ready().await.ok()?;
    let (parts, body) = connection.send_request(request).await.ok()?.into_parts();
    let body = body.collect().await.ok()?.to_bytes();
    Some(Answer { status: parts.status.as_u16(), headers: parts.headers, body })
}
