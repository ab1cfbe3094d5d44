//! Shared helpers: a store for each test, a server in this process, and a client that sends any header.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use flatbed_clock::Clock;
use flatbed_firefox::{Firefox, FirefoxOptions, PublicUrl, Secret, TokenOptions};
use flatbed_http::{Proxies, Server, Shell, ShellOptions, inside};
use flatbed_syncstorage::{Limits, Maintenance, MaintenanceOptions, Options as StoreOptions, Store};
use flatbed_testkit::Storage;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{HeaderMap, Request};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub const SECRET: &str = "a secret of the tests";

/// Reads the lines of a file of `tests/syncstorage`.
pub fn recorded(name: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/syncstorage").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[derive(Clone)]
pub struct Disk(Storage);

impl Disk {
    pub fn new() -> Disk {
        Disk(Storage::new())
    }

    /// Creates it with faults. `None` on a cluster.
    pub fn with_faults() -> Option<Disk> {
        Storage::with_faults().map(Disk)
    }

    pub async fn store(&self, limits: Limits) -> Store {
        self.store_by(limits, Clock::system()).await
    }

    pub async fn store_by(&self, limits: Limits, clock: Clock) -> Store {
        let options = StoreOptions { root: self.0.root.clone(), limits, clock };
        Store::open(self.0.fdb.clone(), options).await.unwrap()
    }
}

#[derive(Default)]
pub struct Options {
    pub limits: Limits,
    pub clock: Clock,
    pub proxies: Proxies,
    pub public_url: Option<PublicUrl>,
    /// The path under another server's listener.
    pub path: Option<String>,
    pub tokens: Option<TokenOptions>,
}

pub struct Running {
    pub address: SocketAddr,
    pub clock: Clock,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    maintenance: Arc<Maintenance>,
}

impl Running {
    pub async fn on(disk: &Disk, options: Options) -> Running {
        let (limits, clock) = (options.limits, options.clock);
        let store = disk.store_by(limits, clock.clone()).await;
        let shell = Shell::new(ShellOptions { proxies: options.proxies, ..ShellOptions::default() });
        let firefox = FirefoxOptions {
            version: "0.0.0".to_owned(),
            secret: Secret::new(SECRET),
            public_url: options.public_url,
            path: options.path.clone(),
            tokens: options.tokens,
        };
        let firefox = Firefox::new(firefox, store.clone());
        let listen = SocketAddr::from(([127, 0, 0, 1], 0)).into();
        let mut server = Server::bind(&[listen], shell, firefox, inside().1).await.unwrap();
        if let Some(path) = &options.path {
            server = beneath(server, path, store.clone()).await;
        }
        let address = server.addresses()[0];
        let (stop, stopped) = oneshot::channel::<()>();
        let maintenance = Arc::new(Maintenance::new(&store, MaintenanceOptions::default()).unwrap());
        maintenance.start();
        let task = tokio::spawn(async move {
            server.serve(async { drop(stopped.await) }, async {}).await;
        });
        Running { address, clock, stop, task, maintenance }
    }

    pub async fn stop(self) {
        drop(self.stop);
        self.task.await.unwrap();
        self.maintenance.stop().await;
    }
}

/// Mounts a server under a path of another one, which has no listener of its own and another secret, so that it refuses
/// every signature.
async fn beneath(server: Server<Firefox>, path: &str, store: Store) -> Server<Firefox> {
    let other = FirefoxOptions {
        version: "main".to_owned(),
        secret: Secret::new("another secret than the other one's"),
        public_url: None,
        path: None,
        tokens: None,
    };
    let (listen, shell) = (SocketAddr::from(([127, 0, 0, 1], 0)).into(), Shell::new(ShellOptions::default()));
    let main = Server::bind(&[listen], shell, Firefox::new(other, store), inside().1).await.unwrap();
    main.mount(path, server.as_mount())
}

#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    /// Returns a header's lines, joined by commas.
    pub fn header(&self, name: &str) -> Option<String> {
        let lines: Vec<&str> = self.headers.get_all(name).iter().map(|line| line.to_str().unwrap()).collect();
        (!lines.is_empty()).then(|| lines.join(", "))
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Sends one request on a connection of its own.
pub async fn send(address: SocketAddr, request: Request<Full<Bytes>>) -> Answer {
    Connection::open(address).await.send(request).await
}

/// A persistent connection.
pub struct Connection(SendRequest<Full<Bytes>>);

impl Connection {
    pub async fn open(address: SocketAddr) -> Connection {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(async move { drop(connection.await) });
        Connection(sender)
    }

    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Answer {
        self.0.ready().await.unwrap();
        let (parts, body) = self.0.send_request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }
}
