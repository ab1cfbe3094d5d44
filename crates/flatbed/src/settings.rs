//! The settings of a server and their sources: the command line, else the environment, else the configuration file,
//! else a default.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    str::FromStr,
};

use flatbed_http::LimitError;
use flatbed_layer::{LayerOptions, ViewBounds};
use flatbed_replicator::AllowedAddresses;
use flatbed_service::configuration::Source;

use crate::gateway::GatewaySettings;
use crate::listening::ListenSettings;
use crate::log_sink::LogFileOptions;
use crate::part::{self, MissingPart};
use crate::redact::Redact;
use crate::syncstorage::SyncSettings;
use crate::worker::WorkerSettings;

/// A setting. It has one key everywhere: `cluster_file` in the file is `--cluster-file` on the command line and
/// `FLATBED_CLUSTER_FILE` in the environment.
pub(crate) struct Setting {
    /// The key in the file.
    pub key: &'static str,
    /// The placeholder of the value in the help text.
    pub value: &'static str,
    /// The line of the help text.
    pub help: &'static str,
    /// True if commands that only open the storage accept it too.
    pub storage: bool,
}

/// Makes the table. A row is `OF KEY = PLACEHOLDER: HELP`. `OF` is `storage` if commands that only open the storage
/// accept the setting too, else `server`.
macro_rules! settings {
    (@is_of_storage storage) => { true };
    (@is_of_storage server) => { false };
    ($($of:ident $key:literal = $value:literal: $help:literal;)+) => {
        /// All settings, in the order of the help text.
        pub(crate) const SETTINGS: &[Setting] = &[
            $(Setting { key: $key, value: $value, help: $help, storage: settings!(@is_of_storage $of) },)+
        ];
    };
}

settings! {
    storage "cluster_file" = "FILE":
        "FoundationDB cluster file; embedded:NAME@DIRECTORY in it opens the embedded engine";
    storage "fdb_library" = "PATH": "libfdb_c.so to load for a real cluster [where the system's loader finds it]";
    storage "data_dir" = "DIR": "directory of the embedded engine, without a cluster file [flatbed-data]";
    storage "root" = "NAME": "prefix of all keys, so that several share a cluster";
    server "listen" = "ADDR":
        "addresses to serve, separated by commas: host:port, https://host:port, unix:PATH[?mode=660] [127.0.0.1:5984]";
    server "tls_certificate" = "FILE": "PEM file of the certificate chain for https; reread when it changes";
    server "tls_key" = "FILE": "PEM file of its key";
    server "proxy_protocol_from" = "ADDRS":
        "addresses, blocks such as 10.0.0.0/8, or unix, whose connections begin with the PROXY protocol";
    server "forwarded_from" = "ADDRS": "the same, of proxies whose headers state the client";
    server "forwarded_header" = "NAME": "the header of these proxies: x-forwarded-for or forwarded [x-forwarded-for]";
    server "unlimited" = "ADDRS": "clients without limits by address [127.0.0.0/8,::1,unix]";
    server "connections" = "N": "most connections, up to 1000000, bounded by the file descriptors less 512 [20000]";
    server "limits" = "NAME=N,...": "limits of a client, such as requests_by_address=500,head_seconds=10";
    server "console" = "false": "serve no console at /_utils/ [true]";
    server "run_bytes" = "N":
        "pack a new database's fields into runs of about N bytes, 0 to 60000; 0 is one key a field [8000]";
    server "document_bytes_max" = "N": "largest document, in bytes of JSON, up to 8000000 [8000000]";
    server "database_bytes_max" = "N":
        "largest database, in bytes of documents, attachments and views; 0 is no limit [0]";
    storage "view_rows_max" = "N": "most rows of a document in the views of a design document, up to 200000 [50000]";
    storage "view_bytes_max" = "N": "most bytes of these rows, up to 64000000 [64000000]";
    storage "view_row_bytes_max" = "N":
        "most bytes of JSON in the key and value of one such row, up to 16000000 [8500000]";
    storage "local_bytes_max" = "N":
        "most bytes of a database's local documents, an eighth of them for anonymous clients [536870912]";
    server "database_cache_mb" = "N":
        "memory for databases held open, in MB, 16 to 1048576 [128 and 64 for each processor]";
    server "replication_ca" = "FILE":
        "PEM file of further authorities that replications and jwks of [syncstorage] trust, beside Mozilla's";
    server "replication_allow" = "LIST":
        "internal addresses, networks and hosts that replications of ordinary users may reach";
    server "replication_jobs" = "N":
        "most replications that run or wait for a retry in this process; ordinary users have at most 4 of 5 [500]";
    server "replication_user_jobs" = "N": "the same for one ordinary user [20]";
    server "replication_user_documents" = "N":
        "most unfinished _replicator documents of such a user; a further one fails [100]";
    server "worker" = "true":
        "run jobs of the changes worker, documents of _worker, in this process; without a value, --worker [false]";
    server "worker_files" = "DIR":
        "directory to which jobs write files and SQLite databases; without it they write none";
    server "worker_secrets" = "DIR": "directory of the secrets that jobs name as file:NAME";
    server "worker_allow" = "LIST": "internal addresses, networks and hosts that jobs may reach beside the internet";
    server "worker_jobs" = "N": "most jobs that run in this process, 1 to 1000 [100]";
    server "worker_memory_mb" = "N": "memory for the documents of these jobs together, in MB, 128 to 1048576 [512]";
    server "worker_lease_seconds" = "N": "silence after which a process loses its jobs to another, 3 to 600 [15]";
    server "syncstorage_listen" = "ADDR":
        "addresses to serve Firefox Sync, as in --listen; without it or a path, it is not served";
    server "syncstorage_path" = "PATH": "a path of --listen to serve Firefox Sync at, such as /sync";
    server "syncstorage_public_url" = "URL":
        "URL by which devices know it, with a proxy's path, such as https://example.org/sync [as in Host]";
    server "syncstorage_master_secret_file" = "FILE":
        "file of the secret that signs its tokens, unless FLATBED_SYNCSTORAGE_MASTER_SECRET has it";
    server "syncstorage_accounts" = "ID,...":
        "ids of the Mozilla accounts that may sync (the log has those of refused accounts); * is all";
    server "syncstorage_first_users" = "N": "the first accounts may sync, up to this number of users, at most 1000 [0]";
    server "syncstorage_jwks" = "URL":
        "URL or file of the accounts' signing keys [https://oauth.accounts.firefox.com/v1/jwks]";
    server "syncstorage_issuer" = "TEXT": "issuer in the accounts' tokens [https://accounts.firefox.com]";
    server "syncstorage_token_seconds" = "N": "validity of a token, 60 to 86400 [3600]";
    server "syncstorage_limits" = "NAME=N,...":
        "limits of devices' requests, such as max_post_records=100,quota_bytes=1000000000";
    server "gateway_listen" = "ADDR":
        "addresses to serve Sync Gateway's API to users, as in --listen; without it, it is not served";
    server "admin_listen" = "ADDR":
        "addresses to serve it to administrators, without authentication: loopback addresses and unix sockets only";
    server "admin_listen_anywhere" = "true": "allow other addresses there, if a firewall keeps strangers out [false]";
    server "log_file" = "FILE": "file for the log, which the server rotates; without it, the log goes to stderr";
    server "log_file_bytes" = "N": "size at which the log file is rotated; 0 leaves that to others [100000000]";
    server "log_files" = "N": "most log files, the current one included, 1 to 1000 [5]";
    storage "log_format" = "FORMAT": "text or json [text]";
    storage "log_level" = "LEVEL": "error, warn, info, debug, trace, or a list such as info,flatbed_layer=debug [info]";
    storage "redact" = "HOW":
        "redact user names, document ids and quotations of them in the log: none, mark or hide [none]";
}

const DEFAULT_DATA_DIR: &str = "flatbed-data";
/// The form of a list of addresses, for messages.
pub(crate) const ALLOWED: &str =
    "a list of addresses, networks such as 10.0.0.0/8 and names of hosts, with commas between";

impl Setting {
    /// Returns the option's name without dashes.
    pub(crate) fn flag(&self) -> String {
        self.key.replace('_', "-")
    }

    /// Returns the environment variable's name.
    pub(crate) fn variable(&self) -> String {
        format!("FLATBED_{}", self.key.to_uppercase())
    }
}

/// A value and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SettingValue {
    pub text: String,
    /// The source in messages: `--listen`, `FLATBED_LISTEN`, `listen in flatbed.toml`.
    pub origin: String,
    /// The directory that a relative path starts from; `None`: the working directory.
    pub base: Option<PathBuf>,
}

pub(crate) type Layer = BTreeMap<&'static str, SettingValue>;

/// The reason why the settings cannot be used. Each message stands alone and says what to change.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingsError {
    /// A value of the wrong form.
    #[error("{origin}: {text:?} is not {expected}")]
    Value {
        origin: String,
        /// The value.
        text: String,
        expected: String,
    },
    /// An unknown limit, or an invalid value of one.
    #[error("{origin}: {error}")]
    Limit {
        /// The source of the setting.
        origin: String,
        /// The defect.
        error: LimitError,
    },
    /// Two settings of one source that exclude each other.
    #[error("{first} and {second} exclude each other: give one of them")]
    Both {
        /// The source of the first.
        first: String,
        second: String,
    },
    #[error(transparent)]
    Part(#[from] MissingPart),
}

/// The place of the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StorageChoice {
    /// The cluster, or the engine, that this cluster file names.
    ClusterFile(PathBuf),
    /// The embedded engine in this directory.
    DataDirectory(PathBuf),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// A line of text for each event.
    Text,
    /// A JSON object for each event.
    Json,
}

/// The settings, with defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Cluster file or data directory.
    pub storage: StorageChoice,
    /// The path of `libfdb_c.so`; `None`: the system's loader finds it.
    pub fdb_library: Option<PathBuf>,
    /// The prefix of all keys; `None`: the layer's default.
    pub root: Option<String>,
    pub listening: ListenSettings,
    /// True if the console is served.
    pub has_console: bool,
    /// `run_bytes` of new databases; `None`: the layer's default.
    pub run_bytes: Option<u32>,
    /// The largest document, in bytes; `None`: the layer's default.
    pub document_bytes_max: Option<u64>,
    /// The limit of one database, in bytes; `None`: the layer's default.
    pub database_bytes_max: Option<u64>,
    /// The most rows of a document in a view group; `None`: the layer's default.
    pub view_rows_max: Option<usize>,
    /// The bytes of these rows; `None`: the layer's default.
    pub view_bytes_max: Option<u64>,
    /// The bytes of one such row; `None`: the layer's default.
    pub view_row_bytes_max: Option<usize>,
    /// The limit of a database's local documents, in bytes; `None`: the layer's default.
    pub local_bytes_max: Option<u64>,
    /// The memory of the cache of databases, in bytes; `None`: the layer's default.
    pub database_cache_bytes: Option<u64>,
    /// Additional certificates that replications trust.
    pub replication_ca: Option<PathBuf>,
    /// Addresses beside the internet that users' replications may reach.
    pub replication_allow: AllowedAddresses,
    /// The most replications of this process. `None`: the replicator's default.
    pub replication_jobs: Option<usize>,
    /// The most replications of one user. `None`: the replicator's default.
    pub replication_user_jobs: Option<usize>,
    /// The most unfinished documents of one user. `None`: the replicator's default.
    pub replication_user_documents: Option<usize>,
    /// Firefox Sync; `None`: it is not served.
    pub syncstorage: Option<SyncSettings>,
    /// Sync Gateway's API; `None`: it is not served.
    pub gateway: Option<GatewaySettings>,
    pub worker: WorkerSettings,
    /// The log file; `None`: stderr.
    pub log_file: Option<LogFileOptions>,
    /// Text or JSON.
    pub log_format: LogFormat,
    /// A level, or targets with levels.
    pub log_level: String,
    pub log_level_source: Option<Source>,
    /// The treatment of user data in the log.
    pub redact: Redact,
    /// The texts of the settings that are set, by key.
    pub texts: BTreeMap<&'static str, String>,
}

impl Settings {
    /// Takes each setting from the first of `layers` that has it.
    ///
    /// # Errors
    /// [`SettingsError`] for a value of the wrong form, for both a cluster file and a data directory in one layer, and
    /// for settings of parts that are not built.
    pub(crate) fn resolve(layers: &[Layer]) -> Result<Settings, SettingsError> {
        part::check_settings(layers)?;
        let first = |key: &str| layers.iter().find_map(|layer| layer.get(key));
        // In the order of `layers`: see `settle`.
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
            Some(found) => Redact::from_name(&found.text).ok_or_else(|| found.is_not("none, mark or hide"))?,
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
            fdb_library: first("fdb_library").map(SettingValue::path),
            root: root.map(|found| found.text.clone()),
            listening: ListenSettings::resolve(layers)?,
            has_console: first("console").map_or(Ok(cfg!(feature = "console")), SettingValue::parse_bool)?,
            run_bytes: first("run_bytes").map(|found| found.number(0..=60_000)).transpose()?,
            document_bytes_max: first("document_bytes_max").map(|found| found.number(1..=8_000_000)).transpose()?,
            database_bytes_max: first("database_bytes_max").map(|found| found.number(0..=1 << 60)).transpose()?,
            view_rows_max: first("view_rows_max").map(|found| found.number(1..=200_000)).transpose()?,
            view_bytes_max: first("view_bytes_max").map(|found| found.number(1..=64_000_000)).transpose()?,
            view_row_bytes_max: first("view_row_bytes_max").map(|found| found.number(1..=16_000_000)).transpose()?,
            local_bytes_max: first("local_bytes_max")
                .map(|found| found.number(1_000_000..=1_000_000_000_000))
                .transpose()?,
            database_cache_bytes: first("database_cache_mb")
                .map(|found| found.number::<u64>(16..=1 << 20))
                .transpose()?
                .map(|mb| mb << 20),
            replication_ca: first("replication_ca").map(SettingValue::path),
            replication_allow: first("replication_allow")
                .map(|found| AllowedAddresses::parse(&found.text).map_err(|_| found.is_not(ALLOWED)))
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
            log_file: log_file(layers)?,
            log_format,
            log_level: first("log_level").map_or("info", |found| &found.text).to_owned(),
            log_level_source: source("log_level"),
            redact,
            texts: texts(layers),
        })
    }

    /// Returns the keys whose texts differ from those of `before`.
    pub(crate) fn changed_keys(&self, before: &BTreeMap<&'static str, String>) -> Vec<&'static str> {
        SETTINGS.iter().map(|setting| setting.key).filter(|key| self.texts.get(key) != before.get(key)).collect()
    }
}

impl Settings {
    pub(crate) fn layer_options(&self) -> LayerOptions {
        let defaults = LayerOptions::default();
        LayerOptions {
            root: self.root.as_ref().map_or(defaults.root, |root| root.as_bytes().to_vec()),
            document_bytes_max: self.document_bytes_max.unwrap_or(defaults.document_bytes_max),
            database_bytes_max: self.database_bytes_max.unwrap_or(defaults.database_bytes_max),
            local_bytes_max: self.local_bytes_max.unwrap_or(defaults.local_bytes_max),
            database_cache_bytes: self.database_cache_bytes.unwrap_or(defaults.database_cache_bytes),
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

impl SettingValue {
    pub(crate) fn path(&self) -> PathBuf {
        self.relative(Path::new(&self.text))
    }

    /// Resolves a path relative to the setting's base.
    pub(crate) fn relative(&self, path: &Path) -> PathBuf {
        self.base.as_deref().unwrap_or(Path::new("")).join(path)
    }

    /// Parses a number within bounds.
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

    pub(crate) fn parse_bool(&self) -> Result<bool, SettingsError> {
        match self.text.as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(self.is_not("true or false")),
        }
    }

    pub(crate) fn is_not(&self, expected: impl Into<String>) -> SettingsError {
        SettingsError::Value { origin: self.origin.clone(), text: self.text.clone(), expected: expected.into() }
    }
}

/// Chooses between a cluster file and a data directory: the first source with either decides, so that `--data-dir`
/// overrides `FLATBED_CLUSTER_FILE`.
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

/// Settings whose texts in several sources count together.
const MERGED: [&str; 2] = ["limits", "syncstorage_limits"];

/// Returns the texts that count.
fn texts(layers: &[Layer]) -> BTreeMap<&'static str, String> {
    let mut texts: BTreeMap<&'static str, String> = BTreeMap::new();
    for (key, value) in layers.iter().flatten() {
        let text = texts.entry(*key);
        if MERGED.contains(key) {
            let text = text.or_default();
            text.push_str(&value.text);
            text.push(',');
        } else {
            text.or_insert_with(|| value.text.clone());
        }
    }
    texts
}

/// Returns the log file, if there is one.
fn log_file(layers: &[Layer]) -> Result<Option<LogFileOptions>, SettingsError> {
    let first = |key: &str| layers.iter().find_map(|layer| layer.get(key));
    let (bytes, files) = (first("log_file_bytes"), first("log_files"));
    let Some(path) = first("log_file") else {
        return match bytes.or(files) {
            Some(found) => Err(found.is_not("of any use without log_file")),
            None => Ok(None),
        };
    };
    if path.text.is_empty() {
        return Err(path.is_not("the path of a file"));
    }
    Ok(Some(LogFileOptions {
        path: path.path(),
        bytes_max: bytes.map_or(Ok(100_000_000), |found| found.number(0..=1 << 40))?,
        files_max: files.map_or(Ok(5), |found| found.number(1..=1_000))?,
    }))
}

/// Returns the settings in the environment. An empty variable counts as not set.
pub(crate) fn from_environment(variables: &HashMap<String, String>) -> Layer {
    SETTINGS
        .iter()
        .filter_map(|setting| {
            let origin = setting.variable();
            let text = variables.get(&origin).filter(|text| !text.is_empty())?.clone();
            Some((setting.key, SettingValue { text, origin, base: None }))
        })
        .collect()
}

#[cfg(test)]
mod tests;
