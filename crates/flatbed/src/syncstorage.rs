//! Firefox Sync beside CouchDB's API: its settings, its server with a listener of its own, and `flatbed check
//! --syncstorage`.

use std::collections::HashMap;
use std::error::Error;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flatbed_firefox::{Firefox, FirefoxOptions, JwksOptions, PublicUrl, Secret, TokenOptions};
use flatbed_http::{Listen, Mount, Server, Shell, ShellOptions, inside};
use flatbed_metrics::{Family, Kind, Value};
use flatbed_syncstorage::accounts::{Accounts, Admission};
use flatbed_syncstorage::{Limits, Maintenance, MaintenanceOptions, Options, Store};
use foundationdb::Database;

use crate::jwks;
use crate::listening::{ListenAddress, ListenSettings, places};
use crate::output::say;
use crate::serve::ServeError;
use crate::settings::{Layer, SettingValue, Settings, SettingsError};
use crate::storage::Storage;

/// The environment variable of the secret. There is no option, since other users of the machine could read it.
pub(crate) const SECRET_VARIABLE: &str = "FLATBED_SYNCSTORAGE_MASTER_SECRET";

/// The URL of the keys of Mozilla's accounts.
const JWKS: &str = "https://oauth.accounts.firefox.com/v1/jwks";
const ISSUER: &str = "https://accounts.firefox.com";

/// The shortest secret, in bytes: a shorter one can be guessed.
const SECRET_BYTES_MIN: usize = 16;
const SECRET_BYTES_MAX: u64 = 4_096;

/// The memory for request bodies: a hundred of the largest.
const BODY_MEMORY_BYTES: usize = 256 * 1024 * 1024;

/// The bytes of a list's page: records of 1 MB together, or a larger one.
const PAGE_BYTES: usize = 4_000_000;

/// The source of the accounts' keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Jwks {
    Url(String),
    File(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SyncSettings {
    pub places: Vec<ListenAddress>,
    /// Its path on CouchDB's listeners.
    pub path: Option<String>,
    /// The URL by which clients know it.
    pub public_url: Option<PublicUrl>,
    /// The file of the secret. The environment may have it instead.
    pub master_secret_file: Option<PathBuf>,
    /// The accounts that may have a user. If there are none, there is no token server.
    pub admission: Admission,
    /// The source of the accounts' keys.
    pub jwks: Jwks,
    pub issuer: String,
    /// The validity of a token, in seconds.
    pub token_seconds: u64,
    /// The limits of clients' requests.
    pub limits: Limits,
}

impl SyncSettings {
    /// Takes each setting from the first of `layers` that has it. `None`: Firefox Sync is not served.
    ///
    /// # Errors
    /// [`SettingsError`] for a value of the wrong form, and for settings without a listener.
    pub(crate) fn resolve(layers: &[Layer]) -> Result<Option<SyncSettings>, SettingsError> {
        let first = |key: &str| layers.iter().find_map(|layer| layer.get(key));
        let (listen, path) = (first("syncstorage_listen"), first("syncstorage_path"));
        if listen.is_none() && path.is_none() {
            let other = layers.iter().flat_map(|layer| layer.iter()).find(|(key, _)| key.starts_with("syncstorage_"));
            return match other {
                Some((_, found)) => Err(found.is_not("of any use without syncstorage_listen or syncstorage_path")),
                None => Ok(None),
            };
        }
        if let Some(path) = path.filter(|path| !is_path(&path.text)) {
            return Err(path.is_not("a path such as /sync"));
        }
        let public_url = first("syncstorage_public_url")
            .map(|found| {
                found.text.parse().map_err(|error: flatbed_firefox::InvalidUrl| found.is_not(error.to_string()))
            })
            .transpose()?;
        let jwks = match first("syncstorage_jwks") {
            None => Jwks::Url(JWKS.to_owned()),
            Some(found) if found.text.contains("://") => {
                if !jwks::is_url(&found.text) {
                    return Err(found.is_not("a URL with https:// or http://, or a file"));
                }
                Jwks::Url(found.text.clone())
            }
            Some(found) => Jwks::File(found.path()),
        };
        let mut admission = Admission::default();
        if let Some(found) = first("syncstorage_accounts") {
            for account in found.text.split(',').map(str::trim).filter(|account| !account.is_empty()) {
                match account {
                    "*" => admission.everyone = true,
                    account => drop(admission.accounts.insert(account.to_owned())),
                }
            }
        }
        if let Some(found) = first("syncstorage_first_users") {
            admission.first_users = found.number(0..=Admission::FIRST_USERS_MAX)?;
        }
        let mut limits = Limits::default();
        // One by one, so that a limit on the command line keeps the other limits of the file.
        for found in layers.iter().rev().filter_map(|layer| layer.get("syncstorage_limits")) {
            for limit in found.text.split(',').map(str::trim).filter(|limit| !limit.is_empty()) {
                set_limit(&mut limits, limit).ok_or_else(|| found.is_not(LIMITS_FORM))?;
            }
        }
        Ok(Some(SyncSettings {
            places: listen.map(places).transpose()?.unwrap_or_default(),
            path: path.map(|path| path.text.clone()),
            public_url,
            master_secret_file: first("syncstorage_master_secret_file").map(SettingValue::path),
            admission,
            jwks,
            issuer: first("syncstorage_issuer").map_or(ISSUER, |found| &found.text).to_owned(),
            token_seconds: first("syncstorage_token_seconds")
                .map(|found| found.number(60..=86_400))
                .transpose()?
                .unwrap_or(3_600),
            limits,
        }))
    }

    /// Returns the secret of the environment or of its file.
    ///
    /// # Errors
    /// [`ServeError::Secret`] if it is missing or invalid.
    pub(crate) fn secret(&self, variables: &HashMap<String, String>) -> Result<Secret, ServeError> {
        let text = match (variables.get(SECRET_VARIABLE).filter(|text| !text.is_empty()), &self.master_secret_file) {
            (Some(text), _) => text.clone(),
            (None, Some(path)) => read_secret(path)?,
            (None, None) => return Err(ServeError::Secret("there is none".to_owned())),
        };
        let text = text.trim();
        if text.len() < SECRET_BYTES_MIN {
            return Err(ServeError::Secret(format!("it has fewer than {SECRET_BYTES_MIN} characters")));
        }
        Ok(Secret::new(text))
    }

    /// Returns whether it has a listener of its own.
    pub(crate) fn has_listener(&self) -> bool {
        !self.places.is_empty()
    }

    /// Returns its path on CouchDB's listeners.
    pub(crate) fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    fn has_token_server(&self) -> bool {
        self.admission != Admission::default()
    }
}

/// Returns whether a path may be Firefox Sync's: plain segments, the first of which does not look like one of CouchDB's
/// own.
fn is_path(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let is_segment = |segment: &str| {
        !segment.is_empty() && segment.bytes().all(is_plain) && !segment.bytes().all(|byte| byte == b'.')
    };
    text.strip_prefix('/').is_some_and(|rest| !rest.starts_with('_') && rest.split('/').all(is_segment))
}

const LIMITS_FORM: &str = "a list of limits such as max_post_records=100,quota_bytes=1000000000: max_post_records (up to 400), \
                           max_post_bytes, max_record_payload_bytes and max_request_bytes (up to 16000000), max_total_records \
                           (up to 100000), max_total_bytes (up to 1000000000), quota_bytes";

fn set_limit(limits: &mut Limits, limit: &str) -> Option<()> {
    let (name, value) = limit.split_once('=')?;
    let value: u64 = value.trim().parse().ok()?;
    let up_to = |max: u32| u32::try_from(value).ok().filter(|value| (1..=max).contains(value));
    match name.trim() {
        "max_post_records" => limits.max_post_records = up_to(Limits::POST_RECORDS_MAX)?,
        "max_post_bytes" => limits.max_post_bytes = up_to(16_000_000)?,
        "max_record_payload_bytes" => limits.max_record_payload_bytes = up_to(16_000_000)?,
        "max_request_bytes" => limits.max_request_bytes = up_to(16_000_000)?,
        "max_total_records" => limits.max_total_records = up_to(100_000)?,
        "max_total_bytes" => limits.max_total_bytes = up_to(1_000_000_000)?,
        "quota_bytes" => {
            limits.quota_bytes = Some(value).filter(|bytes| *bytes > 0);
            limits.max_quota_limit = u32::try_from(value).ok().filter(|bytes| *bytes > 0).unwrap_or(u32::MAX);
        }
        _ => return None,
    }
    Some(())
}

fn read_secret(path: &Path) -> Result<String, ServeError> {
    let failed = |reason: String| ServeError::Secret(format!("{}: {reason}", path.display()));
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| failed(error.to_string()))?;
    file.take(SECRET_BYTES_MAX).read_to_string(&mut text).map_err(|error| failed(error.to_string()))?;
    Ok(text)
}

pub(crate) struct FirefoxSync {
    server: Server<Firefox>,
    maintenance: Maintenance,
    figures: Arc<dyn Fn() -> Vec<Family> + Send + Sync>,
}

impl FirefoxSync {
    /// Opens its storage, and binds its addresses.
    ///
    /// # Errors
    /// [`ServeError`].
    pub(crate) async fn open(
        (settings, sync): (&Settings, &SyncSettings),
        secret: Secret,
        database: Arc<Database>,
        connections_max: usize,
    ) -> Result<FirefoxSync, ServeError> {
        let root = settings.layer_options().root;
        let options = Options { root, limits: sync.limits, ..Options::default() };
        let store = Store::open(database, options).await?;
        let listening = ListenSettings { places: sync.places.clone(), ..settings.listening.clone() };
        let listen: Vec<Listen> = listening.listen().await?;
        let defaults = ShellOptions::default();
        let shell = Shell::new(ShellOptions {
            server: format!("Flatbed/{}", env!("CARGO_PKG_VERSION")),
            body_bytes_max: usize::try_from(sync.limits.max_request_bytes).unwrap_or(usize::MAX),
            body_memory_bytes: BODY_MEMORY_BYTES,
            document_bytes_max: PAGE_BYTES.max(sync.limits.max_record_payload_bytes as usize),
            connections_max,
            drain: crate::serve::DRAIN,
            limits: listening.limits,
            unlimited: listening.unlimited.clone().unwrap_or(defaults.unlimited.clone()),
            proxies: listening.proxies.clone(),
            continue_trace: crate::otel::CONTINUE_TRACE,
            ..defaults
        });
        let tokens = sync.has_token_server().then(|| TokenOptions {
            jwks: jwks_options(settings, &sync.jwks),
            issuer: sync.issuer.clone(),
            admission: sync.admission.clone(),
            duration_seconds: sync.token_seconds,
        });
        let firefox = FirefoxOptions {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            secret,
            public_url: sync.public_url.clone(),
            path: sync.path.clone(),
            tokens,
        };
        let maintenance = Maintenance::new(&store, MaintenanceOptions::default())?;
        let firefox = Firefox::new(firefox, store);
        let of_surface = firefox.figures();
        let of_shell = shell.clone();
        let figures = Arc::new(move || {
            let mut families = of_surface();
            families.extend(of_shell.families().into_iter().chain(memory(&of_shell)).map(labelled));
            families
        });
        let (_, inside) = inside();
        let server = Server::bind(&listen, shell, firefox, inside).await?;
        Ok(FirefoxSync { server, maintenance, figures })
    }

    /// Returns its mount at a path of CouchDB's listeners.
    pub(crate) fn mount(&self) -> Mount {
        self.server.as_mount()
    }

    /// Returns its addresses.
    pub(crate) fn listening(&self) -> Vec<Listen> {
        self.server.listening()
    }

    /// Returns a function that reads its metrics.
    pub(crate) fn figures(&self) -> impl Fn() -> Vec<Family> + Send + Sync + 'static {
        let figures = self.figures.clone();
        move || figures()
    }

    /// Serves until `shutdown` resolves, and then until running requests end.
    pub(crate) async fn serve(self, shutdown: impl Future<Output = ()>) {
        self.maintenance.start();
        let maintenance = self.maintenance;
        self.server.serve(shutdown, async { maintenance.stop().await }).await;
    }
}

/// Adds the label that distinguishes this surface's metrics from those of CouchDB's.
fn labelled(family: Family) -> Family {
    family.labelled("surface", "syncstorage")
}

fn memory(shell: &Shell<flatbed_firefox::Route>) -> [Family; 2] {
    let mut used =
        Family::new("flatbed_memory_used_bytes", "Memory that bodies of requests and answers hold.", Kind::Gauge);
    let mut limit = Family::new("flatbed_memory_limit_bytes", "What they may hold at most together.", Kind::Gauge);
    for (part, usage) in shell.memory() {
        used.push(&[("part", part.into())], Value::Count(usage.used as u64));
        limit.push(&[("part", part.into())], Value::Count(usage.limit as u64));
    }
    [used, limit]
}

/// The time for which keys stay valid if they cannot be read again.
const KEYS_LAST: Duration = Duration::from_secs(86_400);

/// Returns the options of the keys' reads. A file is cheap to read and may change at any time; a URL's content seldom
/// changes.
fn jwks_options(settings: &Settings, jwks: &Jwks) -> JwksOptions {
    let (fetch, keep, pause) = match jwks {
        Jwks::File(path) => (jwks::from_file(path), 10, 2),
        Jwks::Url(url) => (jwks::from_url(url, settings.replication_ca.as_deref()), 3_600, 30),
    };
    JwksOptions { fetch, keep: Duration::from_secs(keep), pause: Duration::from_secs(pause), last: KEYS_LAST }
}

/// Checks the stored data of Firefox Sync, and prints each problem on a line, and a summary.
///
/// Returns whether there is no problem.
///
/// # Errors
/// If the storage cannot be opened or read.
pub(crate) async fn check(settings: &Settings) -> Result<bool, Box<dyn Error>> {
    let storage = Storage::open(settings).await?;
    let found = check_in(storage.database(), settings).await?;
    storage.close();
    Ok(found.unwrap_or(true))
}

/// Does the same with an open database. `None`: this program has no Firefox Sync.
///
/// # Errors
/// If the storage cannot be read.
pub(crate) async fn check_in(database: Arc<Database>, settings: &Settings) -> Result<Option<bool>, Box<dyn Error>> {
    let began = Instant::now();
    let options = Options { root: settings.layer_options().root, ..Options::default() };
    let store = Store::open(database, options).await?;
    let found = store.check().await?;
    let accounts = Accounts::new(&store).check().await?;
    for text in found.texts.iter().chain(&accounts.texts) {
        say!("{text}");
    }
    let verdict = match found.problems + accounts.problems {
        0 => "clean".to_owned(),
        count => format!("{count} violations"),
    };
    let passed_over = match found.passed_over {
        0 => String::new(),
        users => format!(", {users} users passed over because they were written to meanwhile"),
    };
    say!(
        "syncstorage: {verdict}; {} accounts, {} users, {} collections, {} records, {} open batches in {:.1} s{passed_over}",
        accounts.accounts,
        found.users,
        found.collections,
        found.records,
        found.batches,
        began.elapsed().as_secs_f64()
    );
    Ok(Some(found.problems + accounts.problems == 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(values: &[(&'static str, &str)]) -> Result<Option<SyncSettings>, SettingsError> {
        let found = |(key, text): &(&'static str, &str)| {
            (*key, SettingValue { text: (*text).to_owned(), origin: format!("{key} in x"), base: Some("etc".into()) })
        };
        SyncSettings::resolve(&[values.iter().map(found).collect()])
    }

    const LISTEN: (&str, &str) = ("syncstorage_listen", "127.0.0.1:8000");

    #[test]
    fn closed_unless_it_is_set() {
        assert_eq!(resolve(&[]).unwrap(), None);
        let sync = resolve(&[LISTEN]).unwrap().unwrap();
        assert!(!sync.has_token_server());
        assert_eq!(sync.limits, Limits::default());
        assert!(matches!(sync.secret(&HashMap::new()), Err(ServeError::Secret(_))));
        let variables = |text: &str| HashMap::from([(SECRET_VARIABLE.to_owned(), text.to_owned())]);
        assert!(sync.secret(&variables("fifteen letters")).is_err() && sync.secret(&variables("")).is_err());
        assert!(sync.secret(&variables("sixteen letters.")).is_ok());
    }

    #[test]
    fn all_of_it() {
        let sync = resolve(&[
            LISTEN,
            ("syncstorage_public_url", "https://a.example/sync"),
            ("syncstorage_master_secret_file", "secret"),
            ("syncstorage_accounts", "0123, 4567"),
            ("syncstorage_first_users", "3"),
            ("syncstorage_jwks", "keys.json"),
            ("syncstorage_issuer", "i"),
            ("syncstorage_token_seconds", "60"),
            ("syncstorage_limits", "max_post_records=400, quota_bytes=5000000000"),
        ]);
        let sync = sync.unwrap().unwrap();
        assert_eq!(sync.master_secret_file, Some("etc/secret".into()));
        assert_eq!(sync.jwks, Jwks::File("etc/keys.json".into()));
        let accounts = ["0123", "4567"].map(str::to_owned).into();
        assert_eq!(sync.admission, Admission { accounts, first_users: 3, everyone: false });
        assert_eq!((sync.limits.max_post_records, sync.limits.quota_bytes), (400, Some(5_000_000_000)));
        assert_eq!((sync.places.len(), sync.path), (1, None));
        let mounted = resolve(&[("syncstorage_path", "/apps/sync")]).unwrap().unwrap();
        assert_eq!((mounted.places.len(), mounted.path.as_deref()), (0, Some("/apps/sync")));
        assert!(resolve(&[LISTEN, ("syncstorage_accounts", "*")]).unwrap().unwrap().admission.everyone);
    }

    #[test]
    fn a_secret_lies_in_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        std::fs::write(&path, "a secret of some length\n").unwrap();
        let sync = resolve(&[LISTEN, ("syncstorage_master_secret_file", path.to_str().unwrap())]).unwrap().unwrap();
        let secret = sync.secret(&HashMap::new()).unwrap();
        assert_eq!(secret.id_of(b"x"), Secret::new("a secret of some length").id_of(b"x"));
        std::fs::remove_file(path).unwrap();
        assert!(sync.secret(&HashMap::new()).is_err());
    }

    #[test]
    fn refused() {
        for (values, message) in [
            (&[("syncstorage_first_users", "1")][..], "without syncstorage_listen"),
            (&[("syncstorage_path", "sync")], "a path such as"),
            (&[("syncstorage_path", "/")], "a path such as"),
            (&[("syncstorage_path", "/_sync")], "a path such as"),
            (&[("syncstorage_path", "/a/")], "a path such as"),
            (&[LISTEN, ("syncstorage_path", "/a/..")], "a path such as"),
            (&[LISTEN, ("syncstorage_path", "/a%2Fb")], "a path such as"),
            (&[("syncstorage_listen", "x")], "host:port"),
            (&[LISTEN, ("syncstorage_public_url", "a.example")], "not a URL"),
            (&[LISTEN, ("syncstorage_first_users", "1001")], "a number from 0 to 1000"),
            (&[LISTEN, ("syncstorage_jwks", "ftp://x")], "https:// or http://"),
            (&[LISTEN, ("syncstorage_token_seconds", "1")], "a number from 60"),
            (&[LISTEN, ("syncstorage_limits", "max_post_records=401")], "up to 400"),
            (&[LISTEN, ("syncstorage_limits", "max_post_bytes=0")], "a list of limits"),
            (&[LISTEN, ("syncstorage_limits", "x=1")], "a list of limits"),
        ] {
            let error = resolve(values).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
