//! `flatbed serve`: the storage, the layer and the HTTP server, from the settings to the last request.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use flatbed_auth::{PasswordHash, SALT_BYTES};
use flatbed_couch::{Couch, CouchOptions, server_header};
use flatbed_http::{BindError, Cors, InsidePrincipal, Listen, Server, Shell, ShellOptions, TlsError, inside};
use flatbed_javascript::{Runner, RunnerOptions};
use flatbed_layer::{Authority, Background, BackgroundOptions, Layer};
use flatbed_provision::{Provision, ProvisionOptions};
use flatbed_replicator::{Owner, Replicator, ReplicatorOptions, Tls};
use flatbed_service::configuration::{ADMINS, SettingError, Source, Values};
use flatbed_service::{Configuration, Functions, Service};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{
    config_file::{ConfigError, ConfigFile},
    gateway::{GatewayServer, GatewaySettings},
    listening::ListenSettings,
    log_sink::LogSink,
    notify::{ServiceState, notify},
    process,
    reload::{self, NewConfiguration, ReadConfiguration, Reload},
    renew,
    settings::Settings,
    storage::{Storage, StorageError},
    syncstorage::{FirefoxSync, SyncSettings},
    worker::{self, Connect, Worker},
};

/// The time that running requests have to end after a signal.
pub(crate) const DRAIN: Duration = Duration::from_secs(10);

/// The reason why the server cannot serve. Each message stands alone and says what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    /// The storage does not open.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The store cannot be opened.
    #[error("the storage cannot be used: {0}")]
    Layer(#[from] flatbed_layer::Error),
    /// The store was restored, and must be renewed first.
    #[error("the storage cannot be used: {reason}. With every Flatbed on it stopped: {command}")]
    Renew {
        /// The state that was found.
        reason: flatbed_layer::Error,
        command: String,
    },
    /// The configuration file cannot be used or written back.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An administrator's entry is neither a password nor a hash.
    #[error("{origin}: {reason}")]
    Admin {
        /// The place of the entry.
        origin: String,
        /// The defect.
        reason: &'static str,
    },
    /// Ignoring the stored administrators would make every client an administrator.
    #[error(
        "--ignore-stored-config leaves out the administrators that are stored: set FLATBED_ADMIN=name:password, or [admins] in the configuration file"
    )]
    NoAdmin,
    /// An invalid setting of the file.
    #[error("{section}/{key} in {}: {error}", .found_in.words())]
    Setting {
        section: String,
        key: String,
        found_in: Source,
        /// The defect.
        error: SettingError,
    },
    /// The certificates for replications cannot be read.
    #[error("replication_ca {path}: {reason}", path = .path.display())]
    Certificates {
        /// The file.
        path: PathBuf,
        /// The defect.
        reason: String,
    },
    /// The secret that signs Firefox Sync's tokens is missing or invalid.
    #[cfg(feature = "firefox")]
    #[error(
        "the secret of [syncstorage]: {0}. Set FLATBED_SYNCSTORAGE_MASTER_SECRET or master_secret_file, such as to what openssl rand -hex 32 prints"
    )]
    Secret(String),
    /// Firefox Sync's storage cannot be opened.
    #[cfg(feature = "firefox")]
    #[error("Firefox Sync's storage cannot be used: {0}")]
    Sync(#[from] flatbed_syncstorage::Error),
    /// The address would make every client that can connect an administrator.
    #[cfg(feature = "gateway")]
    #[error(
        "admin_listen: every client that can connect to {listen} would be an administrator. Listen on 127.0.0.1 or unix:PATH, or set admin_listen_anywhere = true if a firewall keeps strangers out"
    )]
    Administrators {
        /// The address.
        listen: String,
    },
    /// The server's certificate cannot be used.
    #[error("tls_certificate and tls_key: {0}")]
    Tls(#[from] TlsError),
    /// The address cannot be resolved.
    #[error("cannot listen on {listen}: {source}")]
    Address {
        /// The address as given.
        listen: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The address is in use, or would be open to everyone.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Threads for functions of design documents cannot be started.
    #[error("threads cannot be started: {0}")]
    Threads(io::Error),
    /// The worker cannot be assembled.
    #[cfg(feature = "worker")]
    #[error("the changes worker: {0}")]
    Worker(#[from] flatbed_dispatcher::StoreError),
    /// Signals or randomness are not available.
    #[error("the operating system refuses: {0}")]
    System(#[from] io::Error),
}

/// Reads the settings of all sources.
pub(crate) type ReadSettings = Arc<dyn Fn() -> Result<(Settings, Option<ConfigFile>), String> + Send + Sync>;

pub(crate) struct ServeInputs<'g> {
    pub config: Option<ConfigFile>,
    /// The environment.
    pub variables: &'g HashMap<String, String>,
    /// True if changes made by `_config` are ignored.
    pub ignores_stored: bool,
    /// Reads the settings again at SIGHUP.
    pub read: ReadSettings,
    /// The destination of the log.
    pub sink: LogSink,
}

fn replicator_bounds(settings: &Settings) -> ReplicatorOptions {
    let defaults = ReplicatorOptions::default();
    ReplicatorOptions {
        jobs_max: settings.replication_jobs.unwrap_or(defaults.jobs_max),
        user_jobs_max: settings.replication_user_jobs.unwrap_or(defaults.user_jobs_max),
        user_documents_max: settings.replication_user_documents.unwrap_or(defaults.user_documents_max),
        ..defaults
    }
}

/// Serves until SIGINT or SIGTERM, and then until running requests end. SIGHUP reloads the configuration.
///
/// # Errors
/// [`ServeError`], always before the first request.
pub(crate) async fn serve(
    settings: &Settings,
    ServeInputs { config, variables, ignores_stored, read, sink }: ServeInputs<'_>,
    set_log_level: Arc<dyn Fn(&str) + Send + Sync>,
) -> Result<(), ServeError> {
    let admin = variables.get("FLATBED_ADMIN").map(|text| EnvironmentAdmin::parse(text)).transpose()?;
    let secret = settings.syncstorage.as_ref().map(|sync| sync.secret(variables)).transpose()?;
    let cors = config.as_ref().map(|config| config.cors.clone()).unwrap_or_default();
    let mut made = MadeHashes::new();
    let values = values(settings, config, admin.as_ref(), &mut made)?;
    let tls = settings.replication_ca.as_deref().map(trusted).transpose()?.unwrap_or_default();
    let allowed = Arc::new(settings.replication_allow.clone());
    let replicator = ReplicatorOptions { tls: tls.clone(), allowed, ..replicator_bounds(settings) };
    let listening = &settings.listening;
    let listen = listening.listen().await?;
    let mut signals = Signals::new()?;

    let storage = tokio::select! {
        storage = Storage::open(settings) => storage?,
        () = signals.next() => return Ok(()),
    };
    let functions = Runner::new(RunnerOptions::default()).map_err(ServeError::Threads)?;
    functions.prepare();
    let judge = Arc::new(worker::judging(Functions::new(functions.clone())));
    let (layer, authority) = match Layer::open(storage.database(), settings.layer_options(), Some(judge)).await {
        Err(reason @ flatbed_layer::Error::StampsAhead { .. }) => {
            return Err(ServeError::Renew { reason, command: renew::command(settings) });
        }
        layer => layer?,
    };
    let descriptors = process::raise_descriptors_max();
    let surfaces = 1
        + usize::from(settings.syncstorage.as_ref().is_some_and(SyncSettings::has_listener))
        + settings.gateway.as_ref().map_or(0, GatewaySettings::servers);
    let wanted = listening.connections.unwrap_or(ShellOptions::default().connections_max);
    let connections_max = process::connections_max(surfaces * wanted, descriptors) / surfaces;
    let sync = match (&settings.syncstorage, secret) {
        (Some(sync), Some(secret)) => {
            Some(FirefoxSync::open((settings, sync), secret, storage.database(), connections_max).await?)
        }
        _ => None,
    };
    let background = Background::new(&layer, authority.for_job("background"), BackgroundOptions::default())?;
    let may_be_open = values.section(ADMINS).next().is_none();
    let configuration = Configuration::open(layer.clone(), values, ignores_stored).await?;
    if ignores_stored && may_be_open && configuration.has_stored_admins().await? {
        // The stored administrators keep strangers out, so they must not be ignored without a replacement.
        return Err(ServeError::NoAdmin);
    }
    configuration.on_change(move |settings| set_log_level(&settings.log.level));
    let (actor, options) = (authority.for_job("provision"), ProvisionOptions::default());
    let provision = Provision::new(layer.clone(), actor, configuration.clone(), options);
    provision.before_serving().await;
    let service = Service::new(layer.clone(), functions.clone(), configuration.clone());
    let gateway = match &settings.gateway {
        Some(gateway) => {
            let document_bytes_max = usize::try_from(layer.document_bytes_max()).unwrap_or(usize::MAX);
            GatewayServer::open((settings, gateway), &service, document_bytes_max, connections_max).await?
        }
        None => Vec::new(),
    };
    let of_functions = functions.clone();
    let mut figures = storage.figures().and(process::figures).and(move || of_functions.figures().families());
    let of_provision = provision.clone();
    figures = figures.and(move || of_provision.families());
    if let Some(sync) = &sync {
        figures = figures.and(sync.figures());
    }
    for server in &gateway {
        figures = figures.and(server.figures());
    }
    let couch = CouchOptions {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        health: storage.health(),
        figures,
        has_console: settings.has_console,
        ..CouchOptions::default()
    };
    let storage_of_jobs = (layer.clone(), authority.for_job("worker"));
    let worker = |connect| Worker::new(&settings.worker, (variables, tls, functions), storage_of_jobs, connect);
    let listen = (&listen[..], listening, connections_max);
    let (server, replicator, worker) =
        put_together(listen, cors, couch, replicator, worker, service, (&layer, &authority)).await?;
    let path = settings.syncstorage.as_ref().and_then(SyncSettings::path);
    let server = match (&sync, path) {
        (Some(sync), Some(path)) => server.mount(path, sync.mount()),
        _ => server,
    };
    if connections_max < wanted {
        tracing::warn!(connections_max, descriptors, "few file descriptors: the limit of connections is lowered");
    }
    storage.record_server(&server.listening());
    for listen in server.listening() {
        // On stdout, whatever the log's level: scripts that let the system choose the port read it here. Others may
        // have closed it.
        let _ = writeln!(io::stdout(), "Flatbed {} serves {listen} from {storage}", env!("CARGO_PKG_VERSION"));
        tracing::info!(%listen, %storage, "serving");
    }
    for listen in sync.iter().flat_map(FirefoxSync::listening) {
        // The reader of the first line may have closed the pipe.
        let _ = writeln!(io::stdout(), "Flatbed {} serves Firefox Sync on {listen}", env!("CARGO_PKG_VERSION"));
        tracing::info!(%listen, %storage, "serving Firefox Sync");
    }
    for server in &gateway {
        for listen in server.listening() {
            let _ =
                writeln!(io::stdout(), "Flatbed {} serves {} on {listen}", env!("CARGO_PKG_VERSION"), server.name());
            tracing::info!(%listen, %storage, "serving {}", server.name());
        }
    }
    if let Some(path) = path {
        let _ = writeln!(io::stdout(), "Flatbed {} serves Firefox Sync at {path}", env!("CARGO_PKG_VERSION"));
        tracing::info!(path, %storage, "serving Firefox Sync");
    }

    let listening = server.listening().into_iter();
    let listening = listening.chain(sync.iter().flat_map(FirefoxSync::listening));
    let listening = listening.chain(gateway.iter().flat_map(GatewayServer::listening));
    let certificates = reload::certificates(listening);
    let (read, log_file) = (reader(read, settings, admin, made), settings.log_file.clone());
    let mut reload = Reload { read, configuration, certificates, sink, log_file };
    notify(ServiceState::Ready);
    let (stop, stopped) = tokio::sync::watch::channel(());
    let stopped = StopSignal(stopped);
    let shutdown = async move {
        signals.next_with(&mut reload).await;
        notify(ServiceState::Stopping);
        drop((stop, reload));
        tracing::info!("stopping: running requests may end; a second signal stops at once");
        tokio::spawn(async move {
            signals.next().await;
            exit_at_once();
        });
    };
    let supervisor = replicator.start();
    background.start();
    let provisioning = provision.start();
    let stop_jobs = worker.start();
    let beside = async {
        // Jobs also write to this server's databases, so they stop first.
        stop_jobs.await;
        tokio::join!(replicator.stop(supervisor), background.stop(), provision.stop(provisioning));
        layer.shutdown();
    };
    let sync = async {
        if let Some(sync) = sync {
            sync.serve(stopped.stop()).await;
        }
    };
    let gateway = async {
        let mut serving = tokio::task::JoinSet::new();
        for server in gateway {
            serving.spawn(server.serve(stopped.stop()));
        }
        while serving.join_next().await.is_some() {}
    };
    tokio::join!(server.serve(shutdown, beside), sync, gateway);
    drop((replicator, worker, provision));
    layer.shutdown();
    layer.until_groups_released().await;
    drop(layer);
    storage.forget_server();
    storage.close();
    tracing::info!("stopped");
    Ok(())
}

/// Assembles the parts of a server. No other function does.
async fn put_together(
    (listen, listening, connections_max): (&[Listen], &ListenSettings, usize),
    cors: Cors,
    couch: CouchOptions,
    replicator: ReplicatorOptions,
    worker: impl FnOnce(Connect) -> Result<Worker, ServeError>,
    service: Service,
    (layer, authority): (&Layer, &Authority),
) -> Result<(Server<Couch>, Arc<Replicator>, Worker), ServeError> {
    // Replications reach this server's own databases through its handlers, and its handlers start replications.
    let (connect, inside) = inside();
    let connect = Arc::new(move |owner: &Owner| connect(InsidePrincipal::of(owner.clone())));
    let as_server = connect.clone();
    let worker = worker(Arc::new(move || as_server(&Owner::Server)))?;
    let couch = CouchOptions { figures: couch.figures.and(worker.figures()), ..couch };
    let (actor, accounts) = (authority.for_job("replicator"), service.accounts().clone());
    let replicator = Replicator::new(layer.clone(), actor, replicator, accounts, connect);
    let defaults = ShellOptions::default();
    let shell = Shell::new(ShellOptions {
        cors,
        server: server_header(&couch.version),
        document_bytes_max: usize::try_from(layer.document_bytes_max()).unwrap_or(usize::MAX),
        connections_max,
        drain: DRAIN,
        limits: listening.limits,
        unlimited: listening.unlimited.clone().unwrap_or(defaults.unlimited),
        proxies: listening.proxies.clone(),
        continue_trace: crate::otel::CONTINUE_TRACE,
        ..defaults
    });
    let couch = worker.with_api(Couch::new(couch, service, shell.clone(), replicator.clone()));
    let server = Server::bind(listen, shell, couch, inside).await?;
    Ok((server, replicator, worker))
}

/// Returns the TLS authorities of a PEM file.
pub(crate) fn trusted(path: &Path) -> Result<Tls, ServeError> {
    let failed = |reason: String| ServeError::Certificates { path: path.to_owned(), reason };
    let pem = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    Tls::with_authorities(&pem).map_err(|error| failed(error.to_string()))
}

/// The hashes of plain passwords that stay in the configuration file, by name. Each is made once, since sessions of an
/// administrator end with the hash.
type MadeHashes = BTreeMap<String, PasswordHash>;

/// Returns the values of `_config` at the start. Plain passwords of the file are hashed and written back, unless the
/// process may not write there.
fn values(
    settings: &Settings,
    config: Option<ConfigFile>,
    admin: Option<&EnvironmentAdmin>,
    made: &mut MadeHashes,
) -> Result<Values, ServeError> {
    let mut values = Values::default();
    let set = |values: &mut Values, section: &str, key: &str, text: &str, source: Source| {
        let wrong =
            |error| ServeError::Setting { section: section.to_owned(), key: key.to_owned(), found_in: source, error };
        values.insert(section, key, text, source).map_err(wrong)
    };
    if let Some(source) = settings.log_level_source {
        set(&mut values, "log", "level", &settings.log_level, source)?;
    }
    if let Some(mut config) = config {
        let mut new = BTreeMap::new();
        for (name, password) in &config.admins {
            let hash = match made.get(name).filter(|hash| hash.verify(password)) {
                Some(hash) => hash.clone(),
                None => {
                    let (hash, is_new) = hash(password, || format!("admins.{name} in the configuration file"))?;
                    if is_new {
                        new.insert(name.clone(), hash.to_string());
                        made.insert(name.clone(), hash.clone());
                    }
                    hash
                }
            };
            set(&mut values, ADMINS, name, &hash.to_string(), Source::File)?;
        }
        if !new.is_empty() {
            write_back(&mut config, &new)?;
        }
        let Cors { origins, credentials, headers, methods, max_age_seconds } = &config.cors;
        if !origins.is_empty() {
            for (section, key, text) in [
                ("chttpd", "enable_cors", "true".to_owned()),
                ("cors", "origins", origins.join(",")),
                ("cors", "credentials", credentials.to_string()),
                ("cors", "headers", headers.join(",")),
                ("cors", "methods", methods.join(",")),
                ("cors", "max_age", max_age_seconds.to_string()),
            ] {
                set(&mut values, section, key, &text, Source::File)?;
            }
        }
        for ((section, key), text) in &config.sections {
            set(&mut values, section, key, text, Source::File)?;
        }
    }
    if let Some(EnvironmentAdmin { name, hash }) = admin {
        set(&mut values, ADMINS, name, hash, Source::Environment)?;
    }
    Ok(values)
}

/// Writes hashes into the configuration file in place of the passwords. In a file that this process may not write the
/// passwords stay: the packages' service may not change its own configuration.
fn write_back(config: &mut ConfigFile, hashes: &BTreeMap<String, String>) -> Result<(), ServeError> {
    match config.write_back(hashes) {
        Err(error) if error.is_no_permission() => {
            let names = hashes.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let file = config.absolute_path();
            tracing::warn!(
                names,
                file = %file.display(),
                "passwords stay readable in the configuration file, which this user may not write: add administrators \
                 with `flatbed admin add` instead"
            );
            Ok(())
        }
        done => Ok(done?),
    }
}

/// Returns the reader of the configuration for a server that was started with these settings.
fn reader(
    read: ReadSettings,
    settings: &Settings,
    admin: Option<EnvironmentAdmin>,
    made: MadeHashes,
) -> ReadConfiguration {
    let (before, made) = (settings.texts.clone(), Mutex::new(made));
    Arc::new(move || -> Result<NewConfiguration, String> {
        let (settings, config) = read()?;
        let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
        let values = values(&settings, config, admin.as_ref(), &mut made).map_err(|error| error.to_string())?;
        Ok(NewConfiguration { values, changed: settings.changed_keys(&before), log_file: settings.log_file })
    })
}

/// The administrator that `FLATBED_ADMIN` names.
#[derive(Clone)]
struct EnvironmentAdmin {
    name: String,
    /// The hash of the password. It is made once, since sessions of the administrator end with it.
    hash: String,
}

impl EnvironmentAdmin {
    /// Parses `name:password`, or `name:hash`.
    fn parse(text: &str) -> Result<EnvironmentAdmin, ServeError> {
        let origin = || "FLATBED_ADMIN".to_owned();
        let (name, password) = text
            .split_once(':')
            .filter(|(name, password)| !name.is_empty() && !password.is_empty())
            .ok_or_else(|| ServeError::Admin { origin: origin(), reason: "it must be name:password" })?;
        Ok(EnvironmentAdmin { name: name.to_owned(), hash: hash(password, origin)?.0.to_string() })
    }
}

/// Returns `text` as a hash, or the hash of `text` as a password, and whether it was just computed.
fn hash(text: &str, origin: impl Fn() -> String) -> Result<(PasswordHash, bool), ServeError> {
    match PasswordHash::parse(text) {
        Ok(hash) => Ok((hash, false)),
        // A truncated hash must not become a password.
        Err(_) if text.starts_with("-pbkdf2") || text.starts_with("-hashed-") => Err(ServeError::Admin {
            origin: origin(),
            reason: "it looks like a hash and is none: write the password again",
        }),
        Err(_) => {
            let mut random = [0; SALT_BYTES];
            getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
            Ok((PasswordHash::new(text, &random), true))
        }
    }
}

/// The signal by which the additional servers stop.
struct StopSignal(tokio::sync::watch::Receiver<()>);

impl StopSignal {
    /// Resolves when they must stop.
    fn stop(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut stopped = self.0.clone();
        // The sender sends nothing; its drop is the signal.
        async move { while stopped.changed().await.is_ok() {} }
    }
}

/// The handlers of SIGINT and SIGTERM, which end the process, and of SIGHUP, which reloads a server's configuration.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    /// Installs the handlers. The signals then no longer end the process by themselves.
    pub(crate) fn new() -> io::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal that ends the process. SIGHUP is logged and ignored: this process has nothing to
    /// reload, or is not ready yet.
    pub(crate) async fn next(&mut self) {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => return,
                _ = self.terminate.recv() => return,
                Some(()) = self.hangup.recv() => tracing::info!("SIGHUP is ignored"),
            }
        }
    }

    /// Waits as [`Signals::next`], and reloads at each SIGHUP. A signal that ends the process also ends a reload.
    async fn next_with(&mut self, reload: &mut Reload) {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => return,
                _ = self.terminate.recv() => return,
                Some(()) = self.hangup.recv() => {
                    notify(ServiceState::Reloading);
                    tokio::select! {
                        () = reload.run() => notify(ServiceState::Ready),
                        _ = self.interrupt.recv() => return,
                        _ = self.terminate.recv() => return,
                    }
                }
            }
        }
    }
}

/// Exits without running destructors: those of a real libfdb_c must not run while its network thread does. Acknowledged
/// writes are on the disk.
fn exit_at_once() {
    // SAFETY: _exit ends the process and touches nothing of it.
    unsafe { libc::_exit(130) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values_of(admin: &str) -> Result<Values, ServeError> {
        let admin = EnvironmentAdmin::parse(admin)?;
        values(&Settings::resolve(&[]).unwrap(), None, Some(&admin), &mut MadeHashes::new())
    }

    #[test]
    fn administrators_of_the_environment() {
        let settings = Configuration::new(values_of("anna:a:b").unwrap()).now();
        assert!(settings.admins["anna"].as_ref().unwrap().verify("a:b"));
        for wrong in ["anna", ":a", "anna:", "anna:-pbkdf2-00", "anna:-hashed-00"] {
            assert!(matches!(values_of(wrong), Err(ServeError::Admin { .. })), "{wrong}");
        }
    }
}
