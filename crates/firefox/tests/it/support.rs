//! What the tests share: a store of their own, a server in this process, and a client that sends any header.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use flatbed_firefox::{Firefox, FirefoxOptions, PublicUrl, Secret, TokenOptions};
use flatbed_http::{Proxies, Server, Shell, ShellOptions, inside};
use flatbed_syncstorage::{Clock, Limits, Maintenance, MaintenanceOptions, Options as StoreOptions, Store};
use foundationdb::api::NetworkAutoStop;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{HeaderMap, Request};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

static NETWORK: OnceLock<NetworkAutoStop> = OnceLock::new();

/// What all servers of the tests sign with.
pub const SECRET: &str = "a secret of the tests";

/// The lines of a file of `tests/syncstorage`.
pub fn recorded(name: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/syncstorage").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A store of its own for one test: the embedded engine in a temporary directory, or a root of its own on the cluster that
/// `FLATBED_CLUSTER_FILE` names.
pub struct Disk {
    fdb: Arc<foundationdb::Database>,
    root: Vec<u8>,
    _directory: Option<tempfile::TempDir>,
}

impl Disk {
    pub fn new() -> Disk {
        // SAFETY: foundationdb-sys stops the network when the process ends.
        NETWORK.get_or_init(|| unsafe { foundationdb::boot() });
        let open = |path: &str| Arc::new(foundationdb::Database::from_path(path).unwrap());
        if let Ok(path) = std::env::var("FLATBED_CLUSTER_FILE") {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
            return Disk { fdb: open(&path), root: format!("firefox-test-{now}").into_bytes(), _directory: None };
        }
        let directory = tempfile::tempdir().unwrap();
        let cluster_file = directory.path().join("embedded.cluster");
        std::fs::write(&cluster_file, "embedded:test@data\n").unwrap();
        Disk { fdb: open(cluster_file.to_str().unwrap()), root: b"t".to_vec(), _directory: Some(directory) }
    }

    /// On the embedded engine, with faults: conflicts, unknown results of commits, reads that come too late. `None` where a
    /// library answers. `FLATBED_TEST_FAULTS=PROBABILITY,SEED[,SHORT_PAGES]` says which.
    pub fn with_faults() -> Option<Disk> {
        let Some(engine) = foundationdb_sys::backend::embedded() else {
            println!("skipped: needs the embedded engine");
            return None;
        };
        // SAFETY: as in `new`.
        NETWORK.get_or_init(|| unsafe { foundationdb::boot() });
        let faults = std::env::var("FLATBED_TEST_FAULTS").unwrap_or_else(|_| "0.02,1,0.3".to_owned());
        println!("FLATBED_TEST_FAULTS={faults}");
        let mut options = fdb_embedded::OpenOptions::default();
        options.buggify = Some(fdb_embedded::Buggify::parse(&faults).unwrap());
        let directory = tempfile::tempdir().unwrap();
        let database = engine.open(directory.path(), options).unwrap();
        // SAFETY: the pointer is a database of what answers, and nobody else destroys it.
        let fdb = Arc::new(unsafe { foundationdb::Database::new_from_pointer(database) });
        Some(Disk { fdb, root: b"t".to_vec(), _directory: Some(directory) })
    }

    pub async fn store(&self, limits: Limits) -> Store {
        self.store_by(limits, Clock::system()).await
    }

    /// With a clock of its own.
    pub async fn store_by(&self, limits: Limits, clock: Clock) -> Store {
        let options = StoreOptions { root: self.root.clone(), limits, clock };
        Store::open(self.fdb.clone(), options).await.unwrap()
    }
}

/// How a server is set up.
#[derive(Default)]
pub struct Options {
    pub limits: Limits,
    pub clock: Clock,
    pub proxies: Proxies,
    pub public_url: Option<PublicUrl>,
    /// Under this path of another server's listener.
    pub path: Option<String>,
    pub tokens: Option<TokenOptions>,
}

/// A server.
pub struct Running {
    pub address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    maintenance: Arc<Maintenance>,
}

impl Running {
    pub async fn on(disk: &Disk, options: Options) -> Running {
        let store = disk.store_by(options.limits, options.clock).await;
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
        Running { address, stop, task, maintenance }
    }

    pub async fn stop(self) {
        drop(self.stop);
        self.task.await.unwrap();
        self.maintenance.stop().await;
    }
}

/// Puts a server under a path of another one, which has no listener of its own and another secret: what comes to that one
/// is never signed as it must be.
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

/// An answer.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    /// A header's lines, with commas between them.
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

/// A connection that is kept.
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
