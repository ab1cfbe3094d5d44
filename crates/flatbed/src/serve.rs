//! `flatbed serve`: the storage, the layer and the HTTP server, from the settings to the last request.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use flatbed_auth::{PasswordHash, SALT_BYTES};
use flatbed_couch::{Couch, CouchOptions, server_header};
use flatbed_http::{BindError, Cors, Listen, OnBehalf, Server, Shell, ShellOptions, TlsError, inside};
use flatbed_javascript::{Runner, RunnerOptions};
use flatbed_layer::{Authority, Background, BackgroundOptions, Layer};
use flatbed_replicator::{Owner, Replicator, ReplicatorOptions, Tls};
use flatbed_service::configuration::{ADMINS, SettingError, Source, Values};
use flatbed_service::{Configuration, Functions, Service};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{
    config_file::{ConfigError, ConfigFile},
    gateway::{GatewayServer, GatewaySettings},
    listening::Listening,
    process, renew,
    settings::Settings,
    storage::{Storage, StorageError},
    syncstorage::{FirefoxSync, SyncSettings},
    worker::{self, Connect, Worker},
};

/// How long running requests may take to end once a signal has come.
pub(crate) const DRAIN: Duration = Duration::from_secs(10);

/// Why the server does not serve. Each message stands alone and says what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    /// The storage does not open.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The layer does not open what the storage holds.
    #[error("the storage cannot be used: {0}")]
    Layer(#[from] flatbed_layer::Error),
    /// What the storage holds was restored, and must be renewed first.
    #[error("the storage cannot be used: {reason}. With every Flatbed on it stopped: {command}")]
    Renew {
        /// What is found.
        reason: flatbed_layer::Error,
        /// What to do.
        command: String,
    },
    /// The configuration file cannot be used or written back.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An administrator's entry that is neither a password nor a hash.
    #[error("{origin}: {reason}")]
    Admin {
        /// Where it was found.
        origin: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Everyone would be an administrator where there were some.
    #[error(
        "--ignore-stored-config leaves out the administrators that are stored: set FLATBED_ADMIN=name:password, or [admins] in the configuration file"
    )]
    NoAdmin,
    /// A setting of the file that does not fit.
    #[error("{section}/{key} in {}: {error}", .found_in.words())]
    Setting {
        /// Its section.
        section: String,
        /// Its key.
        key: String,
        /// Where it was found.
        found_in: Source,
        /// What is wrong with it.
        error: SettingError,
    },
    /// The certificates that replications are to trust cannot be read.
    #[error("replication_ca {path}: {reason}", path = .path.display())]
    Certificates {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// What Firefox Sync's tokens are signed with is not to be had.
    #[cfg(feature = "firefox")]
    #[error(
        "the secret of [syncstorage]: {0}. Set FLATBED_SYNCSTORAGE_MASTER_SECRET or master_secret_file, such as to what openssl rand -hex 32 prints"
    )]
    Secret(String),
    /// Firefox Sync's storage does not open.
    #[cfg(feature = "firefox")]
    #[error("Firefox Sync's storage cannot be used: {0}")]
    Sync(#[from] flatbed_syncstorage::Error),
    /// Whoever can connect there is an administrator.
    #[cfg(feature = "gateway")]
    #[error(
        "admin_listen: whoever can connect to {listen} would be an administrator. Listen on 127.0.0.1 or unix:PATH, or say admin_listen_anywhere = true if something else keeps strangers out"
    )]
    Administrators {
        /// Where it would listen.
        listen: String,
    },
    /// The server's own certificate cannot be used.
    #[error("tls_certificate and tls_key: {0}")]
    Tls(#[from] TlsError),
    /// The address means nothing to the system.
    #[error("cannot listen on {listen}: {source}")]
    Address {
        /// As it was given.
        listen: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The address is taken, or would be open to everyone.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The system has no threads for functions of design documents.
    #[error("threads cannot be started: {0}")]
    Threads(io::Error),
    /// The worker is not put together.
    #[cfg(feature = "worker")]
    #[error("the changes worker: {0}")]
    Worker(#[from] flatbed_dispatcher::StoreError),
    /// Signals or randomness are not to be had.
    #[error("the operating system refuses: {0}")]
    System(#[from] io::Error),
}

/// What a server is started with beside its settings.
pub(crate) struct Given<'g> {
    /// The configuration file.
    pub config: Option<ConfigFile>,
    /// The environment.
    pub variables: &'g HashMap<String, String>,
    /// Nothing counts that `_config` has changed.
    pub ignores_stored: bool,
}

/// Returns the replicator's options with the limits of the settings.
fn replicator_bounds(settings: &Settings) -> ReplicatorOptions {
    let defaults = ReplicatorOptions::default();
    ReplicatorOptions {
        jobs_max: settings.replication_jobs.unwrap_or(defaults.jobs_max),
        user_jobs_max: settings.replication_user_jobs.unwrap_or(defaults.user_jobs_max),
        user_documents_max: settings.replication_user_documents.unwrap_or(defaults.user_documents_max),
        ..defaults
    }
}

/// Serves until SIGINT or SIGTERM, and then until running requests are done.
///
/// # Errors
/// [`ServeError`], all of them before the first request is taken.
pub(crate) async fn serve(
    settings: &Settings,
    Given { config, variables, ignores_stored }: Given<'_>,
    set_log_level: Arc<dyn Fn(&str) + Send + Sync>,
) -> Result<(), ServeError> {
    let admin = variables.get("FLATBED_ADMIN").map(String::as_str);
    let secret = settings.syncstorage.as_ref().map(|sync| sync.secret(variables)).transpose()?;
    let cors = config.as_ref().map(|config| config.cors.clone()).unwrap_or_default();
    let values = values(settings, config, admin)?;
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
        Err(reason @ (flatbed_layer::Error::Renewing | flatbed_layer::Error::StampsAhead { .. })) => {
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
        // Whoever keeps others out by what is stored must not be left out with it.
        return Err(ServeError::NoAdmin);
    }
    configuration.on_change(move |settings| set_log_level(&settings.log.level));
    let service = Service::new(layer.clone(), functions.clone(), configuration);
    let gateway = match &settings.gateway {
        Some(gateway) => {
            let document_bytes_max = usize::try_from(layer.document_bytes_max()).unwrap_or(usize::MAX);
            GatewayServer::open((settings, gateway), &service, document_bytes_max, connections_max).await?
        }
        None => Vec::new(),
    };
    let of_functions = functions.clone();
    let mut figures = storage.figures().and(process::figures).and(move || of_functions.figures().families());
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
        tracing::warn!(connections_max, descriptors, "there are few file descriptors: so many connections are served");
    }
    for listen in server.listening() {
        // On stdout and whatever the log's level: scripts that took port 0 read it here.
        println!("Flatbed {} serves {listen} from {storage}", env!("CARGO_PKG_VERSION"));
        tracing::info!(%listen, %storage, "serving");
    }
    for listen in sync.iter().flat_map(FirefoxSync::listening) {
        // Who reads the first line may have gone by now.
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

    let (stop, stopped) = tokio::sync::watch::channel(());
    let stopped = Stopped(stopped);
    let shutdown = async move {
        signals.next().await;
        drop(stop);
        tracing::info!("stopping: running requests may end; a second signal stops at once");
        tokio::spawn(async move {
            signals.next().await;
            exit_at_once();
        });
    };
    let supervisor = replicator.start();
    background.start();
    let stop_jobs = worker.start();
    let beside = async {
        // Jobs write to this server's databases, too.
        stop_jobs.await;
        tokio::join!(replicator.stop(supervisor), background.stop());
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
    drop((replicator, worker));
    layer.shutdown();
    drop(layer);
    storage.close();
    tracing::info!("stopped");
    Ok(())
}

/// The one place where the parts of a server meet.
async fn put_together(
    (listen, listening, connections_max): (&[Listen], &Listening, usize),
    cors: Cors,
    couch: CouchOptions,
    replicator: ReplicatorOptions,
    worker: impl FnOnce(Connect) -> Result<Worker, ServeError>,
    service: Service,
    (layer, authority): (&Layer, &Authority),
) -> Result<(Server<Couch>, Arc<Replicator>, Worker), ServeError> {
    // Replications reach this server's own databases through its handlers, and its handlers ask for replications.
    let (connect, inside) = inside();
    let connect = Arc::new(move |owner: &Owner| connect(OnBehalf::of(owner.clone())));
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

/// Whom to trust over TLS, by a PEM file.
pub(crate) fn trusted(path: &Path) -> Result<Tls, ServeError> {
    let failed = |reason: String| ServeError::Certificates { path: path.to_owned(), reason };
    let pem = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    Tls::with_authorities(&pem).map_err(|error| failed(error.to_string()))
}

/// What this process is started with of what `_config` has. Plain passwords of the file are hashed and written back.
fn values(settings: &Settings, config: Option<ConfigFile>, admin: Option<&str>) -> Result<Values, ServeError> {
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
            let (hash, is_new) = hash(password, || format!("admins.{name} in the configuration file"))?;
            if is_new {
                new.insert(name.clone(), hash.to_string());
            }
            set(&mut values, ADMINS, name, &hash.to_string(), Source::File)?;
        }
        if !new.is_empty() {
            config.write_back(&new)?;
        }
        let Cors { origins, credentials, headers, max_age_seconds } = &config.cors;
        if !origins.is_empty() {
            for (section, key, text) in [
                ("chttpd", "enable_cors", "true".to_owned()),
                ("cors", "origins", origins.join(",")),
                ("cors", "credentials", credentials.to_string()),
                ("cors", "headers", headers.join(",")),
                ("cors", "max_age", max_age_seconds.to_string()),
            ] {
                set(&mut values, section, key, &text, Source::File)?;
            }
        }
        for ((section, key), text) in &config.sections {
            set(&mut values, section, key, text, Source::File)?;
        }
    }
    if let Some(admin) = admin {
        let origin = || "FLATBED_ADMIN".to_owned();
        let (name, password) = admin
            .split_once(':')
            .filter(|(name, password)| !name.is_empty() && !password.is_empty())
            .ok_or_else(|| ServeError::Admin { origin: origin(), reason: "it must be name:password" })?;
        set(&mut values, ADMINS, name, &hash(password, origin)?.0.to_string(), Source::Environment)?;
    }
    Ok(values)
}

/// The hash that `text` is, or that of the password that it is; and whether it was made just now.
fn hash(text: &str, origin: impl Fn() -> String) -> Result<(PasswordHash, bool), ServeError> {
    match PasswordHash::parse(text) {
        Ok(hash) => Ok((hash, false)),
        // A hash that was cut off must not become a password.
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

/// What the servers beside the first one learn that it stops from.
struct Stopped(tokio::sync::watch::Receiver<()>);

impl Stopped {
    /// Resolves when they are to stop.
    fn stop(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut stopped = self.0.clone();
        // Its sender says nothing, and goes.
        async move { while stopped.changed().await.is_ok() {} }
    }
}

/// SIGINT and SIGTERM, which end the process, and SIGHUP, which does not.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    /// From now on they end the process no longer by themselves.
    pub(crate) fn new() -> io::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal that ends the process. A SIGHUP is logged and ignored: certificates and keys are read again when
    /// their files change, and settings change over HTTP, so nothing has to be reloaded.
    pub(crate) async fn next(&mut self) {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => return,
                _ = self.terminate.recv() => return,
                Some(()) = self.hangup.recv() => {
                    tracing::info!("SIGHUP is ignored: certificates and keys are read again whenever their files change");
                }
            }
        }
    }
}

/// Without running destructors: those of a real libfdb_c must not meet its network thread while that still runs. What
/// was acknowledged is on the disk.
fn exit_at_once() {
    // SAFETY: _exit ends the process and touches nothing of it.
    unsafe { libc::_exit(130) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values_of(admin: &str) -> Result<Values, ServeError> {
        values(&Settings::resolve(&[]).unwrap(), None, Some(admin))
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
