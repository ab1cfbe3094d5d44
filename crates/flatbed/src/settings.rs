//! The settings of a server and where each comes from: the command line, else the environment, else the configuration
//! file, else a default.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    str::FromStr,
};

use flatbed_http::LimitError;
use flatbed_layer::{LayerOptions, ViewBounds};
use flatbed_replicator::Allowed;
use flatbed_service::configuration::Source;

use crate::gateway::GatewaySettings;
use crate::listening::Listening;
use crate::part::{self, NotBuilt};
use crate::redact::Redact;
use crate::syncstorage::SyncSettings;
use crate::worker::WorkerSettings;

/// A setting, known by one key everywhere: `cluster_file` in the file is `--cluster-file` on the command line and
/// `FLATBED_CLUSTER_FILE` in the environment.
pub(crate) struct Setting {
    /// The key in the file.
    pub key: &'static str,
    /// What the value is, for the help text.
    pub value: &'static str,
    /// One line for the help text.
    pub help: &'static str,
    /// Whether commands that only open the storage take it too.
    pub storage: bool,
}

/// All settings, in the order of the help text.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting {
        key: "cluster_file",
        value: "FILE",
        help: "FoundationDB cluster file; one that says embedded:NAME@DIRECTORY opens the embedded engine",
        storage: true,
    },
    Setting {
        key: "fdb_library",
        value: "PATH",
        help: "libfdb_c.so to load for a real cluster [where the system's loader finds it]",
        storage: true,
    },
    Setting {
        key: "data_dir",
        value: "DIR",
        help: "directory of the embedded engine, without a cluster file [flatbed-data]",
        storage: true,
    },
    Setting { key: "root", value: "NAME", help: "prefix of all keys, so that several share a cluster", storage: true },
    Setting {
        key: "listen",
        value: "ADDR",
        help: "where to serve, several with commas between them: host:port, https://host:port, unix:PATH[?mode=660] [127.0.0.1:5984]",
        storage: false,
    },
    Setting {
        key: "tls_certificate",
        value: "FILE",
        help: "PEM file of the certificate for https, with those that lead from it to an authority; read again when it changes",
        storage: false,
    },
    Setting { key: "tls_key", value: "FILE", help: "PEM file of its key", storage: false },
    Setting {
        key: "proxy_protocol_from",
        value: "ADDRS",
        help: "addresses, blocks such as 10.0.0.0/8, or unix, whose connections begin with the PROXY protocol",
        storage: false,
    },
    Setting {
        key: "forwarded_from",
        value: "ADDRS",
        help: "the same, of proxies whose headers say whom they speak for",
        storage: false,
    },
    Setting {
        key: "forwarded_header",
        value: "NAME",
        help: "the header that these write: x-forwarded-for or forwarded [x-forwarded-for]",
        storage: false,
    },
    Setting {
        key: "unlimited",
        value: "ADDRS",
        help: "clients that limits by address do not hold for [127.0.0.0/8,::1,unix]",
        storage: false,
    },
    Setting {
        key: "connections",
        value: "N",
        help: "connections at once, up to 1000000, as far as there are file descriptors for them and 512 more [20000]",
        storage: false,
    },
    Setting {
        key: "limits",
        value: "NAME=N,...",
        help: "what a client may do, such as requests_by_address=500,head_seconds=10",
        storage: false,
    },
    Setting { key: "console", value: "false", help: "serve no console at /_utils/ [true]", storage: false },
    Setting {
        key: "run_bytes",
        value: "N",
        help: "pack a new database's fields into runs of about N bytes, 0 to 60000; 0 is one key a field [8000]",
        storage: false,
    },
    Setting {
        key: "document_bytes_max",
        value: "N",
        help: "largest document, in bytes of JSON, up to 8000000 [8000000]",
        storage: false,
    },
    Setting {
        key: "database_bytes_max",
        value: "N",
        help: "bytes that a database may hold, documents, attachments and views; 0 is no bound [0]",
        storage: false,
    },
    Setting {
        key: "view_rows_max",
        value: "N",
        help: "rows that a document may have in the views of a design document, up to 200000 [50000]",
        storage: true,
    },
    Setting {
        key: "view_bytes_max",
        value: "N",
        help: "bytes that these rows may take, up to 64000000 [64000000]",
        storage: true,
    },
    Setting {
        key: "view_row_bytes_max",
        value: "N",
        help: "bytes of JSON that the key and value of one of them may have, up to 16000000 [8500000]",
        storage: true,
    },
    Setting {
        key: "local_bytes_max",
        value: "N",
        help: "bytes of a database's local documents together, of which clients without a name have an eighth [536870912]",
        storage: true,
    },
    Setting {
        key: "replication_ca",
        value: "FILE",
        help: "PEM file of certificates that replications, and jwks of [syncstorage], trust over https, beside Mozilla's authorities",
        storage: false,
    },
    Setting {
        key: "replication_allow",
        value: "LIST",
        help: "addresses, networks and hosts within that replications of users who are no administrators may reach too",
        storage: false,
    },
    Setting {
        key: "replication_jobs",
        value: "N",
        help: "replications that run, or wait to be retried, at once in this process, 4 of 5 at most of users who are no administrators [500]",
        storage: false,
    },
    Setting {
        key: "replication_user_jobs",
        value: "N",
        help: "the same of one user who is no administrator [20]",
        storage: false,
    },
    Setting {
        key: "replication_user_documents",
        value: "N",
        help: "unfinished documents of _replicator that such a user may have; a further one fails [100]",
        storage: false,
    },
    Setting {
        key: "worker",
        value: "true",
        help: "run jobs of the changes worker, documents of _worker, in this process; without a value, --worker [false]",
        storage: false,
    },
    Setting {
        key: "worker_files",
        value: "DIR",
        help: "directory that jobs write files and SQLite databases to; without it, they write none",
        storage: false,
    },
    Setting {
        key: "worker_secrets",
        value: "DIR",
        help: "directory of the secrets that jobs name as file:NAME",
        storage: false,
    },
    Setting {
        key: "worker_allow",
        value: "LIST",
        help: "addresses, networks and hosts within that jobs may reach beside the internet",
        storage: false,
    },
    Setting {
        key: "worker_jobs",
        value: "N",
        help: "jobs that run at once in this process, 1 to 1000 [100]",
        storage: false,
    },
    Setting {
        key: "worker_memory_mb",
        value: "N",
        help: "what these jobs may hold of documents, all together, in MB, 128 to 1048576 [512]",
        storage: false,
    },
    Setting {
        key: "worker_lease_seconds",
        value: "N",
        help: "a process that is silent for so long loses its jobs to another, 3 to 600 [15]",
        storage: false,
    },
    Setting {
        key: "syncstorage_listen",
        value: "ADDR",
        help: "where to serve Firefox Sync, as in --listen; without it or a path, it is not served",
        storage: false,
    },
    Setting {
        key: "syncstorage_path",
        value: "PATH",
        help: "a path of --listen to serve Firefox Sync at, such as /sync",
        storage: false,
    },
    Setting {
        key: "syncstorage_public_url",
        value: "URL",
        help: "what devices know it by, with a proxy's path, such as https://example.org/sync [as in Host]",
        storage: false,
    },
    Setting {
        key: "syncstorage_master_secret_file",
        value: "FILE",
        help: "file of the secret that its tokens are signed with, unless FLATBED_SYNCSTORAGE_MASTER_SECRET has it",
        storage: false,
    },
    Setting {
        key: "syncstorage_accounts",
        value: "ID,...",
        help: "Mozilla accounts that may sync, by the ids that the log tells of those refused; * is all",
        storage: false,
    },
    Setting {
        key: "syncstorage_first_users",
        value: "N",
        help: "the first that come may sync, up to so many users, 1000 at most [0]",
        storage: false,
    },
    Setting {
        key: "syncstorage_jwks",
        value: "URL",
        help: "URL or file of the keys that accounts sign with [https://oauth.accounts.firefox.com/v1/jwks]",
        storage: false,
    },
    Setting {
        key: "syncstorage_issuer",
        value: "TEXT",
        help: "what the accounts' tokens say has issued them [https://accounts.firefox.com]",
        storage: false,
    },
    Setting {
        key: "syncstorage_token_seconds",
        value: "N",
        help: "how long a token lasts, 60 to 86400 [3600]",
        storage: false,
    },
    Setting {
        key: "syncstorage_limits",
        value: "NAME=N,...",
        help: "what devices may send, such as max_post_records=100,quota_bytes=1000000000",
        storage: false,
    },
    Setting {
        key: "gateway_listen",
        value: "ADDR",
        help: "where to serve Sync Gateway's API to users, as in --listen; without it, it is not served",
        storage: false,
    },
    Setting {
        key: "admin_listen",
        value: "ADDR",
        help: "where to serve it to administrators: whoever can connect is one, so loopback addresses and unix sockets alone",
        storage: false,
    },
    Setting {
        key: "admin_listen_anywhere",
        value: "true",
        help: "take other addresses there, too, behind what keeps strangers out [false]",
        storage: false,
    },
    Setting { key: "log_format", value: "FORMAT", help: "text or json, to stderr [text]", storage: true },
    Setting {
        key: "log_level",
        value: "LEVEL",
        help: "error, warn, info, debug, trace, or a list such as info,flatbed_layer=debug [info]",
        storage: true,
    },
    Setting {
        key: "redact",
        value: "HOW",
        help: "names of users, ids of documents and what quotes them in the log: none, mark or hide [none]",
        storage: true,
    },
];

const DEFAULT_DATA_DIR: &str = "flatbed-data";
/// What a list of addresses is.
pub(crate) const ALLOWED: &str =
    "a list of addresses, networks such as 10.0.0.0/8 and names of hosts, with commas between";

impl Setting {
    /// `--cluster-file`, without the dashes in front.
    pub(crate) fn flag(&self) -> String {
        self.key.replace('_', "-")
    }

    /// `FLATBED_CLUSTER_FILE`.
    pub(crate) fn variable(&self) -> String {
        format!("FLATBED_{}", self.key.to_uppercase())
    }
}

/// A value and where it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The text of the value.
    pub text: String,
    /// For messages: `--listen`, `FLATBED_LISTEN`, `listen in flatbed.toml`.
    pub origin: String,
    /// What a relative path is relative to, if not the working directory.
    pub base: Option<PathBuf>,
}

/// The values that one source gives, by key.
pub(crate) type Layer = BTreeMap<&'static str, Found>;

/// Why the settings cannot be used. Each message stands alone and says what to change.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingsError {
    /// A value of the wrong form.
    #[error("{origin}: {text:?} is not {expected}")]
    Value {
        /// Where it was found.
        origin: String,
        /// The value.
        text: String,
        /// What it should be.
        expected: String,
    },
    /// A limit that there is not, or that it cannot be.
    #[error("{origin}: {error}")]
    Limit {
        /// Where it was found.
        origin: String,
        /// What is wrong with it.
        error: LimitError,
    },
    /// Two settings of one source that exclude each other.
    #[error("{first} and {second} exclude each other: give one of them")]
    Both {
        /// Where the first was found.
        first: String,
        /// Where the second was found.
        second: String,
    },
    /// A setting of a part that is not built.
    #[error(transparent)]
    Part(#[from] NotBuilt),
}

/// Where the data lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StorageChoice {
    /// What the cluster file at this path says.
    ClusterFile(PathBuf),
    /// The embedded engine in this directory.
    DataDirectory(PathBuf),
}

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// A line of text an event.
    Text,
    /// A JSON object an event.
    Json,
}

/// Settings with their defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Cluster file or data directory.
    pub storage: StorageChoice,
    /// `libfdb_c.so`, where it is not to be looked for.
    pub fdb_library: Option<PathBuf>,
    /// The prefix of all keys, if not the layer's default.
    pub root: Option<String>,
    /// How the server is reached.
    pub listening: Listening,
    /// Whether the console is served.
    pub has_console: bool,
    /// `run_bytes` of new databases, if not the layer's default.
    pub run_bytes: Option<u32>,
    /// The largest document, if not the layer's default.
    pub document_bytes_max: Option<u64>,
    /// The bound of one database, in bytes. `None`: the layer's default.
    pub database_bytes_max: Option<u64>,
    /// Rows that a document may have in a group of views, if not the layer's default.
    pub view_rows_max: Option<usize>,
    /// What they may take, likewise.
    pub view_bytes_max: Option<u64>,
    /// What one of them may have, likewise.
    pub view_row_bytes_max: Option<usize>,
    /// The bound of a database's local documents, in bytes. `None`: the layer's default.
    pub local_bytes_max: Option<u64>,
    /// Certificates that replications trust, beside those that they trust anyhow.
    pub replication_ca: Option<PathBuf>,
    /// What replications of users may reach beside the internet.
    pub replication_allow: Allowed,
    /// The most replications of this process. `None`: the replicator's default.
    pub replication_jobs: Option<usize>,
    /// The most replications of one user. `None`: the replicator's default.
    pub replication_user_jobs: Option<usize>,
    /// The most unfinished documents of one user. `None`: the replicator's default.
    pub replication_user_documents: Option<usize>,
    /// Firefox Sync, if it is served.
    pub syncstorage: Option<SyncSettings>,
    /// Sync Gateway's API, if it is served.
    pub gateway: Option<GatewaySettings>,
    /// The changes worker.
    pub worker: WorkerSettings,
    /// Text or JSON.
    pub log_format: LogFormat,
    /// A level, or targets with levels.
    pub log_level: String,
    /// Where that was found, if anywhere.
    pub log_level_source: Option<Source>,
    /// What becomes of user data in the log.
    pub redact: Redact,
}

impl Settings {
    /// Takes each setting from the first of `layers` that has it.
    ///
    /// # Errors
    /// [`SettingsError`] for a value of the wrong form, for a cluster file beside a data directory in one layer, and for
    /// settings of parts that are not built.
    pub(crate) fn resolve(layers: &[Layer]) -> Result<Settings, SettingsError> {
        part::check_settings(layers)?;
        let first = |key: &str| layers.iter().find_map(|layer| layer.get(key));
        // As `layers` come: see `settle`.
        let sources = [Source::CommandLine, Source::Environment, Source::File];
        let source =
            |key: &str| sources.into_iter().zip(layers).find_map(|(source, layer)| layer.get(key).map(|_| source));
        let log_format = match first("log_format") {
            None => LogFormat::Text,
            Some(found) => match found.text.as_str() {
                "text" => LogFormat::Text,
                "json" => LogFormat::Json,
                _ => return Err(found.is_not("text or json")),
            },
        };
        let redact = match first("redact") {
            None => Redact::None,
            Some(found) => Redact::named(&found.text).ok_or_else(|| found.is_not("none, mark or hide"))?,
        };
        let root = first("root");
        if let Some(found) = root
            && (found.text.is_empty() || found.text.len() > 64 || !found.text.bytes().all(|b| b.is_ascii_graphic()))
        {
            return Err(found.is_not("a name of 1 to 64 printable ASCII characters"));
        }
        if let Some(found) = first("log_level")
            && found.text.parse::<tracing_subscriber::filter::Targets>().is_err()
        {
            return Err(found.is_not("a log level (error, warn, info, debug, trace) or a list of target=level"));
        }
        Ok(Settings {
            storage: storage(layers)?,
            fdb_library: first("fdb_library").map(Found::path),
            root: root.map(|found| found.text.clone()),
            listening: Listening::resolve(layers)?,
            has_console: first("console").map_or(Ok(cfg!(feature = "console")), Found::truth)?,
            run_bytes: first("run_bytes").map(|found| found.number(0..=60_000)).transpose()?,
            document_bytes_max: first("document_bytes_max").map(|found| found.number(1..=8_000_000)).transpose()?,
            database_bytes_max: first("database_bytes_max").map(|found| found.number(0..=1 << 60)).transpose()?,
            view_rows_max: first("view_rows_max").map(|found| found.number(1..=200_000)).transpose()?,
            view_bytes_max: first("view_bytes_max").map(|found| found.number(1..=64_000_000)).transpose()?,
            view_row_bytes_max: first("view_row_bytes_max").map(|found| found.number(1..=16_000_000)).transpose()?,
            local_bytes_max: first("local_bytes_max")
                .map(|found| found.number(1_000_000..=1_000_000_000_000))
                .transpose()?,
            replication_ca: first("replication_ca").map(Found::path),
            replication_allow: first("replication_allow")
                .map(|found| Allowed::parse(&found.text).map_err(|_| found.is_not(ALLOWED)))
                .transpose()?
                .unwrap_or_default(),
            replication_jobs: first("replication_jobs").map(|found| found.number(1..=10_000)).transpose()?,
            replication_user_jobs: first("replication_user_jobs").map(|found| found.number(1..=10_000)).transpose()?,
            replication_user_documents: first("replication_user_documents")
                .map(|found| found.number(1..=100_000))
                .transpose()?,
            syncstorage: SyncSettings::resolve(layers)?,
            gateway: GatewaySettings::resolve(layers)?,
            worker: WorkerSettings::resolve(layers)?,
            log_format,
            log_level: first("log_level").map_or("info", |found| &found.text).to_owned(),
            log_level_source: source("log_level"),
            redact,
        })
    }
}

impl Settings {
    /// What of them concerns the document layer.
    pub(crate) fn layer_options(&self) -> LayerOptions {
        let defaults = LayerOptions::default();
        LayerOptions {
            root: self.root.as_ref().map_or(defaults.root, |root| root.as_bytes().to_vec()),
            document_bytes_max: self.document_bytes_max.unwrap_or(defaults.document_bytes_max),
            database_bytes_max: self.database_bytes_max.unwrap_or(defaults.database_bytes_max),
            local_bytes_max: self.local_bytes_max.unwrap_or(defaults.local_bytes_max),
            default_run_bytes: self.run_bytes.unwrap_or(defaults.default_run_bytes),
            view_bounds: ViewBounds {
                rows: self.view_rows_max.unwrap_or(defaults.view_bounds.rows),
                bytes: self.view_bytes_max.unwrap_or(defaults.view_bounds.bytes),
                row_bytes: self.view_row_bytes_max.unwrap_or(defaults.view_bounds.row_bytes),
            },
            ..defaults
        }
    }
}

impl Found {
    /// The path that it is.
    pub(crate) fn path(&self) -> PathBuf {
        self.relative(Path::new(&self.text))
    }

    /// A path that stands in it.
    pub(crate) fn relative(&self, path: &Path) -> PathBuf {
        self.base.as_deref().unwrap_or(Path::new("")).join(path)
    }

    /// A number within bounds.
    pub(crate) fn number<N>(&self, range: RangeInclusive<N>) -> Result<N, SettingsError>
    where
        N: FromStr + PartialOrd + fmt::Display,
    {
        self.text
            .parse()
            .ok()
            .filter(|number| range.contains(number))
            .ok_or_else(|| self.is_not(format!("a number from {} to {}", range.start(), range.end())))
    }

    /// Yes or no.
    pub(crate) fn truth(&self) -> Result<bool, SettingsError> {
        match self.text.as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(self.is_not("true or false")),
        }
    }

    /// That it is not what it should be.
    pub(crate) fn is_not(&self, expected: impl Into<String>) -> SettingsError {
        SettingsError::Value { origin: self.origin.clone(), text: self.text.clone(), expected: expected.into() }
    }
}

/// A cluster file and a data directory are two answers to one question: the source that comes first decides, so that
/// `--data-dir` overrides a `FLATBED_CLUSTER_FILE`.
fn storage(layers: &[Layer]) -> Result<StorageChoice, SettingsError> {
    for layer in layers {
        return Ok(match (layer.get("cluster_file"), layer.get("data_dir")) {
            (Some(cluster_file), Some(data_dir)) => {
                let (first, second) = (cluster_file.origin.clone(), data_dir.origin.clone());
                return Err(SettingsError::Both { first, second });
            }
            (Some(cluster_file), None) => StorageChoice::ClusterFile(cluster_file.path()),
            (None, Some(data_dir)) => StorageChoice::DataDirectory(data_dir.path()),
            (None, None) => continue,
        });
    }
    Ok(StorageChoice::DataDirectory(PathBuf::from(DEFAULT_DATA_DIR)))
}

/// The settings that the environment's variables give; an empty variable counts as not set.
pub(crate) fn from_environment(variables: &HashMap<String, String>) -> Layer {
    SETTINGS
        .iter()
        .filter_map(|setting| {
            let origin = setting.variable();
            let text = variables.get(&origin).filter(|text| !text.is_empty())?.clone();
            Some((setting.key, Found { text, origin, base: None }))
        })
        .collect()
}

#[cfg(test)]
mod tests;
