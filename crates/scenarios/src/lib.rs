//! The start of whole servers for tests: several in one process, on one store. The tests of `couch` and those beside
//! this file use it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flatbed_auth::PasswordHash;
use flatbed_couch::{Couch, CouchOptions, server_header};
use flatbed_dispatcher::{Dispatcher, DispatcherOptions, check_document};
use flatbed_http::{
    BindError, Blocks, Cors, InsidePrincipal, Limits, Listen, Proxies, Server, Shell, ShellOptions, inside,
};
use flatbed_javascript::{Runner, RunnerOptions};
use flatbed_layer::check::check_database;
use flatbed_layer::{Background, BackgroundOptions, Database, LayerOptions, ServerActor};
use flatbed_outward::{AllowedAddresses, Network, Tls};
use flatbed_provision::{Provision, ProvisionOptions};
use flatbed_replicator::{Owner, Replicator, ReplicatorOptions};
use flatbed_service::configuration::{Source, Values};
use flatbed_service::{CheckOptions, Configuration, Functions, SelectorOptions, Service, ServiceOptions};
pub use flatbed_testkit::http::{Answer, Client};
pub use flatbed_testkit::soon;
use flatbed_testkit::{Faults, PATIENCE, Storage, engine, until, until_wanted};
use flatbed_worker::connect::Secrets;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A store of its own for one test.
pub struct Store(Storage);

impl Default for Store {
    fn default() -> Self {
        Store::new()
    }
}

impl Store {
    /// Makes a store without faults.
    pub fn new() -> Store {
        Store(Storage::new())
    }

    /// Makes a store on the engine with the faults of the environment; `None` on a cluster.
    pub fn with_faults() -> Option<Store> {
        Storage::with_faults().map(Store)
    }

    /// Like [`Store::with_faults`], on an engine with the latency of a cluster whose one server serves all
    /// transactions.
    pub fn as_a_cluster_with_faults() -> Option<Store> {
        Storage::as_a_cluster(Faults::of_environment()).map(Store)
    }

    /// Makes a store on an engine that no other test uses; `None` on a cluster.
    pub fn on_an_engine() -> Option<Store> {
        engine().map(|_| Store::new())
    }

    /// Returns the FoundationDB database below all layers of the store.
    pub fn database(&self) -> &foundationdb::Database {
        &self.0.fdb
    }

    /// Returns the first tuple element of all keys of the store.
    pub fn root(&self) -> &[u8] {
        &self.0.root
    }

    /// Opens a layer with the default options.
    pub async fn layer(&self) -> Layer {
        self.layer_with(LayerOptions::default()).await
    }

    /// Like [`Store::layer`], with other options.
    pub async fn layer_with(&self, options: LayerOptions) -> Layer {
        self.layer_running(RunnerOptions::default(), options).await
    }

    /// Like [`Store::layer`], with these options of the JavaScript runner.
    pub async fn layer_running(&self, functions: RunnerOptions, options: LayerOptions) -> Layer {
        let options = LayerOptions { root: self.0.root.clone(), ..options };
        let functions = Runner::new(functions).expect("threads");
        let judge = Arc::new(Functions::new(functions.clone()).with_worker_check(check_document));
        let (layer, authority) =
            flatbed_layer::Layer::open(self.0.fdb.clone(), options, Some(judge)).await.expect("the layer opens");
        Layer { layer, actor: authority.for_job("test"), functions }
    }

    /// Starts a server with a layer of its own; call it twice for two servers on one store.
    pub async fn serve(&self, options: impl Into<Options>) -> Running {
        self.serve_on(self.layer().await, options).await
    }

    /// Starts a server with the default options and creates the database `db`.
    pub async fn serve_database(&self) -> Running {
        let server = self.serve(ServerOptions::default()).await;
        server.ok("PUT", "/db", Value::Null).await;
        server
    }

    /// Like [`Store::serve`], on an existing layer.
    pub async fn serve_on(&self, layer: Layer, options: impl Into<Options>) -> Running {
        let Options { server, replicator, worker } = options.into();
        let server = ServerOptions { listen: vec![SocketAddr::from(([127, 0, 0, 1], 0)).into()], ..server };
        let server = bind(Options { server, replicator, worker }, layer).await.expect("a free port");
        let address = server.addresses()[0];
        let (stop, stopped) = oneshot::channel::<()>();
        Running { address, stop, task: serve(server, stopped), store: self.0.clone() }
    }
}

/// The setup of a server and of its replicator.
#[derive(Default)]
pub struct Options {
    /// The setup of the server.
    pub server: ServerOptions,
    /// The setup of the replicator.
    pub replicator: ReplicatorOptions,
    /// The setup of the worker; `None`: no jobs run.
    pub worker: Option<WorkerOptions>,
}

/// The setup of the worker's jobs.
#[derive(Default)]
pub struct WorkerOptions {
    /// The directory that jobs may write into.
    pub files: Option<std::path::PathBuf>,
    /// The secrets that jobs may name.
    pub secrets: Secrets,
    /// The addresses that jobs may reach besides the internet.
    pub allow: &'static str,
}

impl From<WorkerOptions> for Options {
    fn from(worker: WorkerOptions) -> Options {
        Options { worker: Some(worker), ..Options::default() }
    }
}

impl From<ServerOptions> for Options {
    fn from(server: ServerOptions) -> Options {
        Options { server, ..Options::default() }
    }
}

impl From<ReplicatorOptions> for Options {
    fn from(replicator: ReplicatorOptions) -> Options {
        Options { replicator, ..Options::default() }
    }
}

/// A listening server with its background services.
pub struct BoundServer {
    server: Server<Couch>,
    replicator: Arc<Replicator>,
    /// The worker, if jobs run.
    dispatcher: Option<Arc<Dispatcher>>,
    provision: Arc<Provision>,
    layer: Layer,
    runs_background: bool,
}

impl BoundServer {
    /// Returns the addresses of the listeners.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.server.addresses()
    }
}

/// Assembles a server, as the program does.
pub async fn bind(options: impl Into<Options>, layer: Layer) -> Result<BoundServer, BindError> {
    let Options { server: options, replicator, worker } = options.into();
    let (connect, inside) = inside();
    let connect = Arc::new(move |owner: &Owner| connect(InsidePrincipal::of(owner.clone())));
    let (as_server, runs) = (connect.clone(), worker.is_some());
    let WorkerOptions { files, secrets, allow } = worker.unwrap_or_default();
    let network = Network::default().bounded(Arc::new(AllowedAddresses::parse(allow).expect("a list")));
    let connect_as_server = Arc::new(move || as_server(&Owner::Server));
    let dispatcher = DispatcherOptions::new(secrets, files, network, Tls::default(), connect_as_server);
    let dispatcher =
        DispatcherOptions { lease: Duration::from_secs(6), ..dispatcher }.with_functions(layer.functions.clone());
    let dispatcher = Dispatcher::new(layer.layer.clone(), layer.actor.clone(), dispatcher).expect("an address");
    let mut values = Values::default();
    for (name, hash) in &options.admins {
        values.insert("admins", name, &hash.to_string(), Source::File).expect("a hash");
    }
    if !options.cors.origins.is_empty() {
        let cors = &options.cors;
        for (section, key, text) in [
            ("chttpd", "enable_cors", "true".to_owned()),
            ("cors", "origins", cors.origins.join(",")),
            ("cors", "credentials", cors.credentials.to_string()),
            ("cors", "headers", cors.headers.join(",")),
            ("cors", "max_age", cors.max_age_seconds.to_string()),
        ] {
            values.insert(section, key, &text, Source::File).expect("it fits");
        }
    }
    for (section, key, text) in &options.settings {
        values.insert(section, key, text, Source::File).expect("it fits");
    }
    let configuration = Configuration::open(layer.layer.clone(), values, false).await;
    let (functions, configuration) = (layer.functions.clone(), configuration.expect("it opens"));
    let provision = Provision::new(layer.layer.clone(), layer.actor.clone(), configuration.clone(), options.provision);
    provision.before_serving().await;
    let of_service = ServiceOptions { checks: options.checks, selectors: options.selectors };
    let service = Service::with_options(layer.layer.clone(), functions, configuration, of_service);
    let accounts = service.accounts().clone();
    let replicator = Replicator::new(layer.layer.clone(), layer.actor.clone(), replicator, accounts, connect);
    let shell = Shell::new(ShellOptions {
        cors: options.cors,
        server: server_header(env!("CARGO_PKG_VERSION")),
        body_bytes_max: options.body_bytes_max,
        body_memory_bytes: options.body_memory_bytes,
        document_bytes_max: usize::try_from(layer.document_bytes_max()).expect("it fits"),
        connections_max: options.connections_max,
        limits: options.limits,
        unlimited: options.unlimited,
        proxies: options.proxies,
        stall_max: options.stall_max,
        half_closed_max: options.half_closed_max,
        // A slow machine takes long to read the initial state.
        room_max: PATIENCE,
        ..ShellOptions::default()
    });
    let (of_jobs, of_provision) = (dispatcher.clone(), provision.clone());
    let figures = CouchOptions::default().figures.and(move || of_jobs.families());
    let figures = figures.and(move || of_provision.families());
    let session_body_max = options.session_body_max;
    let options_of_couch = CouchOptions { figures, session_body_max, ..CouchOptions::default() };
    let couch = Couch::new(options_of_couch, service, shell.clone(), replicator.clone());
    let couch = couch.with_worker(dispatcher.clone());
    let server = Server::bind(&options.listen, shell, couch, inside).await?;
    let (dispatcher, runs_background) = (runs.then_some(dispatcher), options.runs_background);
    Ok(BoundServer { server, replicator, dispatcher, provision, layer, runs_background })
}

/// Serves the result of [`bind`] until it is stopped.
pub fn serve(bound: BoundServer, stopped: oneshot::Receiver<()>) -> JoinHandle<()> {
    let BoundServer { server, replicator, dispatcher, provision, layer, runs_background } = bound;
    tokio::spawn(async move {
        let stopped = async { drop(stopped.await) };
        let supervisor = replicator.start();
        let background = Background::new(&layer.layer, layer.actor.clone(), BackgroundOptions::default());
        let background = background.expect("randomness");
        if runs_background {
            background.start();
        }
        let provisioning = provision.start();
        let jobs = dispatcher.map(|dispatcher| (dispatcher.start(), dispatcher));
        let beside = async {
            if let Some((jobs, dispatcher)) = jobs {
                dispatcher.stop(jobs).await;
            }
            replicator.stop(supervisor).await;
            background.stop().await;
            provision.stop(provisioning).await;
            layer.shutdown();
        };
        server.serve(stopped, beside).await;
    })
}

/// A server's layer, with write access as the server. Cheap to clone.
#[derive(Clone)]
pub struct Layer {
    layer: flatbed_layer::Layer,
    /// The server as the author of writes.
    pub actor: ServerActor,
    /// The JavaScript runner.
    pub functions: Runner,
}

impl std::ops::Deref for Layer {
    type Target = flatbed_layer::Layer;

    fn deref(&self) -> &flatbed_layer::Layer {
        &self.layer
    }
}

impl Layer {
    /// The database, with write access as the server.
    pub fn database(&self, name: &str) -> Database {
        self.layer.database(name, self.actor.clone())
    }
}

/// The header that signs the administrator of [`ServerOptions::with_admin`] in.
pub const ADMIN: (&str, &str) = ("authorization", "Basic YWRtaW46cGFzc3dvcmQ=");

/// The setup of a server without its background services.
#[derive(Clone)]
pub struct ServerOptions {
    /// The listeners; [`Store::serve`] replaces them by a free port.
    pub listen: Vec<Listen>,
    /// The administrators and their passwords.
    pub admins: HashMap<String, PasswordHash>,
    /// The origins that browsers may send requests from.
    pub cors: Cors,
    /// Most bytes of one request body.
    pub body_bytes_max: usize,
    /// The memory of all request bodies, in bytes.
    pub body_memory_bytes: usize,
    /// Most connections at once.
    pub connections_max: usize,
    /// The limits of one client address.
    pub limits: Limits,
    /// The addresses without limits.
    pub unlimited: Blocks,
    /// The trusted proxies.
    pub proxies: Proxies,
    /// The time after which a client that reads nothing is disconnected.
    pub stall_max: Duration,
    /// The time after which the request of a client that has ended its side ends, if nothing is sent.
    pub half_closed_max: Duration,
    /// The setup of password checks.
    pub checks: CheckOptions,
    /// The setup of selectors.
    pub selectors: SelectorOptions,
    /// The time within which the body of `POST /_session` must arrive.
    pub session_body_max: Duration,
    /// Further entries of the configuration file: section, key, value.
    pub settings: Vec<(String, String, String)>,
    /// True if background work runs.
    pub runs_background: bool,
    /// The databases that the server creates by itself; by default none of the system's own.
    pub provision: ProvisionOptions,
}

impl Default for ServerOptions {
    fn default() -> Self {
        let options = ShellOptions::default();
        let ShellOptions {
            cors, body_bytes_max, body_memory_bytes, connections_max, stall_max, half_closed_max, ..
        } = options;
        let (limits, unlimited, proxies) = (options.limits, options.unlimited, options.proxies);
        ServerOptions {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 5984)).into()],
            admins: HashMap::new(),
            cors,
            body_bytes_max,
            body_memory_bytes,
            connections_max,
            limits,
            unlimited,
            proxies,
            stall_max,
            half_closed_max,
            checks: CheckOptions::default(),
            selectors: SelectorOptions::default(),
            session_body_max: CouchOptions::default().session_body_max,
            settings: Vec::new(),
            runs_background: true,
            provision: ProvisionOptions { has_system_databases: false, ..ProvisionOptions::default() },
        }
    }
}

impl ServerOptions {
    /// Returns the default options with the administrator `admin`, whose password is `password`.
    pub fn with_admin() -> ServerOptions {
        ServerOptions::guarded_by("admin", "password")
    }

    /// Returns the default options with an administrator whose password is checked fast.
    pub fn guarded_by(name: &str, password: &str) -> ServerOptions {
        let hash = PasswordHash::with_iterations(password, &[1; 16], 1);
        ServerOptions { admins: [(name.to_owned(), hash)].into(), ..ServerOptions::default() }
    }
}

/// A running server and its store; it runs until [`Running::stop`].
pub struct Running {
    /// The address of its listener.
    pub address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    /// Keeps the store until the server has ended.
    store: Storage,
}

impl Running {
    /// Opens a connection.
    pub async fn connect(&self) -> Client {
        Client::to(self.address).await
    }

    /// Sends one request on a connection of its own.
    pub async fn call(&self, method: &str, path: &str, body: &str) -> Answer {
        self.connect().await.call(method, path, &[], body.as_bytes()).await
    }

    /// Sends one request with JSON or, for `null`, without a body.
    pub async fn json(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        // Boxed: a test's future holds those of all its calls, and debug builds lay each of them out on the stack.
        let answer = Box::pin(self.call(method, path, &body)).await;
        (answer.status, serde_json::from_str(&answer.body).unwrap_or(Value::Null))
    }

    /// Like [`Running::json`], for a request that must succeed.
    pub async fn ok(&self, method: &str, path: &str, body: Value) -> Value {
        let (status, answer) = self.json(method, path, body).await;
        assert!(status < 300, "{method} {path}: {status} {answer}");
        answer
    }

    /// Returns the URL of a database.
    pub fn url(&self, database: &str) -> String {
        format!("http://{}/{database}", self.address)
    }

    /// Repeats a read of a path until its answer is as wanted.
    pub async fn until(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        until_wanted(path, async || self.json("GET", path, Value::Null).await.1, wanted).await
    }

    /// Returns a figure of `/metrics`, selected with its labels.
    pub async fn figure(&self, name: &str) -> u64 {
        figure(&self.call("GET", "/metrics", "").await.body, name)
    }

    /// Waits until this many feeds of any kind are answered: each has read its first page.
    pub async fn until_followed(&self, feeds: u64) {
        let count = |line: &str| line.strip_prefix("flatbed_followers{")?.rsplit(' ').next()?.parse::<u64>().ok();
        let followers = async || self.call("GET", "/metrics", "").await.body.lines().filter_map(count).sum::<u64>();
        until_wanted("feeds are answered", followers, |found| *found == feeds).await;
    }

    /// Returns the store, for further servers and layers.
    pub fn store(&self) -> Store {
        Store(self.store.clone())
    }

    /// Stops the server once its database `db` has no staged upload and the checker has found no fault in it.
    pub async fn stop_clean(self) {
        let database = self.store().layer().await.database("db");
        // Refused uploads are removed after the answer.
        let is_swept = async || check_database(&database, |_| {}).await.unwrap().staged_uploads == 0;
        until("nothing is staged", is_swept).await;
        let report = check_database(&database, |_| {}).await.unwrap();
        assert!(report.is_clean(), "{report:?}");
        self.stop().await;
    }

    /// Tells the server to end, without waiting for it.
    pub fn begin_to_stop(self) -> JoinHandle<()> {
        let _ = self.stop.send(());
        self.task
    }

    /// Stops the server and waits for its end.
    pub async fn stop(self) {
        let Running { stop, task, store: _store, .. } = self;
        let _ = stop.send(());
        soon(task).await.expect("the server ends");
    }
}

/// Returns the value of the header `authorization` for a name and a password.
pub fn basic(name: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{name}:{password}")))
}

/// Returns a figure of a text of `/metrics`, selected with its labels.
pub fn figure(metrics: &str, name: &str) -> u64 {
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name}: {metrics}"))
}

/// Waits until the last change counts. A server may use the former state for a second; later requests must see the new
/// one.
pub async fn within_a_second(what: &str, mut counts: impl AsyncFnMut() -> bool) {
    let late = Instant::now() + Duration::from_secs(1);
    let look = async || {
        let is_late = Instant::now() > late;
        let is_so = counts().await;
        assert!(is_so || !is_late, "still not after a second: {what}");
        is_so
    };
    until(what, look).await;
}
