//! The settings, typed. Their texts are parsed in `keys.rs`.

use std::collections::BTreeMap;
use std::fmt;
use std::iter;
use std::path::PathBuf;

use flatbed_auth::PasswordHash;
use flatbed_auth::jwt::{Algorithm, Binding};
use flatbed_auth::session::SameSite;
use flatbed_auth::users::PublicFields;
use flatbed_auth::{ITERATIONS_MAX, lockout, proxy};
use flatbed_layer::ATTACHMENT_BYTES_MAX;
use flatbed_network::Blocks;

use super::keys::{self, SettingError};
use super::password_rules::PasswordRules;
use super::registry;
use super::values::{Source, Value, Values};

/// All settings that may change at run time. Debug output omits secrets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings {
    /// The administrators of the server by name, with their password hashes: `[admins]`. Without any, every client is
    /// one. A value that is not a hash reserves a name without a sign-in.
    pub admins: BTreeMap<String, Option<PasswordHash>>,
    /// Authentication.
    pub auth: AuthSettings,
    /// Requests of pages of other origins.
    pub cors: CorsSettings,
    /// The limits for clients.
    pub limits: LimitSettings,
    /// The log.
    pub log: LogSettings,
    /// The ids that the server generates.
    pub uuids: UuidSettings,
    /// Replications.
    pub replication: ReplicationSettings,
    /// A database for each user.
    pub per_user: PerUserSettings,
    /// True if new databases are open to everyone until `_security` is set: `[couchdb] default_security`.
    pub opens_databases: bool,
    /// The status with which `/_up` answers 404, so that load balancers send no requests: `[couchdb]
    /// maintenance_mode`.
    pub maintenance: Option<&'static str>,
    /// True if a `+` in a path is no space: `[chttpd] decode_plus_to_space = false`.
    pub keeps_plus: bool,
    /// The headers of proxies that name the server's address: `[chttpd] x_forwarded_host` and related settings.
    pub forwarding: ForwardingSettings,
    /// True if rules of `rewrites` may leave their database, with any method: `[chttpd] secure_rewrites = false`.
    pub insecure_rewrites: bool,
    values: Values,
}

/// Authentication: `[chttpd_auth]` and related sections. The defaults are CouchDB's except for `same_site` and
/// `max_iterations`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthSettings {
    /// The lifetime of a session, in seconds.
    pub timeout_s: u64,
    /// True if a session's cookie has an expiry, so that browsers keep it.
    pub allow_persistent_cookies: bool,
    /// True if all anonymous requests are refused.
    pub require_valid_user: bool,
    /// True if all anonymous requests but `/_up` are refused.
    pub require_valid_user_except_for_up: bool,
    /// True if only administrators may list the names of databases.
    pub admin_only_all_dbs: bool,
    /// True if `_security` of `_users` may be changed.
    pub users_db_security_editable: bool,
    /// The fields of user documents that everyone sees.
    pub public_fields: PublicFields,
    /// The lock-out after wrong passwords.
    pub lockout: lockout::LockoutOptions,
    /// True if a weak hash is replaced after its password was right.
    pub rehash: bool,
    /// The rules for new passwords of user documents.
    pub password_rules: PasswordRules,
    /// The most iterations of a hash; a hash with more is refused unverified.
    pub max_iterations: u32,
    /// The attribute `SameSite` of a session's cookie.
    pub same_site: Option<SameSite>,
    /// The attribute `Domain` of a session's cookie.
    pub cookie_domain: Option<String>,
    /// The challenge of a 401, the header `WWW-Authenticate`; `None`: the request or `require_valid_user` decides.
    pub challenge: Option<String>,
    /// Trusted proxies.
    pub proxy: ProxySettings,
    /// Token settings by the name of the issuer; `""` is the unnamed one, `[jwt_auth]` and `[jwt_keys]`. Others are
    /// `[jwt_auth:NAME]` and `[jwt_keys:NAME]`.
    pub jwt: BTreeMap<String, JwtSettings>,
}

impl AuthSettings {
    /// True if anonymous requests are refused, except to public resources.
    pub(crate) fn wants_names(&self) -> bool {
        self.require_valid_user || self.require_valid_user_except_for_up
    }
}

impl Default for AuthSettings {
    fn default() -> Self {
        AuthSettings {
            timeout_s: 600,
            allow_persistent_cookies: true,
            require_valid_user: false,
            require_valid_user_except_for_up: false,
            admin_only_all_dbs: true,
            users_db_security_editable: false,
            public_fields: PublicFields::default(),
            lockout: lockout::LockoutOptions::default(),
            rehash: true,
            password_rules: PasswordRules::default(),
            max_iterations: ITERATIONS_MAX,
            same_site: Some(SameSite::Lax),
            cookie_domain: None,
            challenge: None,
            proxy: ProxySettings::default(),
            jwt: BTreeMap::new(),
        }
    }
}

/// Proxies that assert users: `[proxy_auth]`. The headers' names are CouchDB's, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxySettings {
    /// The addresses of trusted proxies; empty: none.
    pub peers: Blocks,
    /// True if they may assert roles that begin with `_`.
    pub trusts_system_roles: bool,
    /// The header with the name.
    pub user_header: String,
    /// The header with the roles.
    pub roles_header: String,
    /// The header with the token.
    pub token_header: String,
}

impl Default for ProxySettings {
    fn default() -> Self {
        ProxySettings {
            peers: Blocks::default(),
            trusts_system_roles: false,
            user_header: proxy::USER_HEADER.to_owned(),
            roles_header: proxy::ROLES_HEADER.to_owned(),
            token_header: proxy::TOKEN_HEADER.to_owned(),
        }
    }
}

/// JWT issuer and claim settings. Without a key and a file no token is accepted.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct JwtSettings {
    /// As in CouchDB's `[jwt_keys]`: `hmac:KID` with base64, `rsa:KID`, `ec:KID`, `eddsa:KID` with PEM (`\n` for line
    /// ends); `_default` for tokens without an id of a key.
    pub keys: BTreeMap<String, String>,
    /// The path of a JWK set, which is read again after a change.
    pub jwks_file: Option<PathBuf>,
    /// The required claims.
    pub binding: Binding,
    /// The accepted algorithms; empty: all.
    pub algorithms: Vec<Algorithm>,
    /// The tolerated clock skew, in seconds.
    pub skew_s: u64,
}

impl fmt::Debug for JwtSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<&String> = self.keys.keys().collect();
        f.debug_struct("JwtSettings").field("keys", &keys).field("binding", &self.binding).finish_non_exhaustive()
    }
}

/// Requests of pages of other origins: `[cors]`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CorsSettings {
    /// True if CORS is enabled.
    pub is_enabled: bool,
    /// The allowed origins; `*`: all.
    pub origins: Vec<String>,
    /// True if credentials may be sent.
    pub credentials: bool,
    /// Further allowed request headers.
    pub headers: Vec<String>,
    /// The allowed methods; empty: all.
    pub methods: Vec<String>,
    /// The time for which a browser may cache the answer to a preflight request, in seconds.
    pub max_age_s: u32,
}

/// The largest document that a server can accept, in bytes.
pub(super) const DOCUMENT_BYTES_MAX: u64 = 8_000_000;

/// The longest wait of a feed for changes, in milliseconds.
pub(super) const FEED_WAIT_MS_MAX: u64 = 60_000;

/// The longest session, in seconds: a year.
pub(super) const SESSION_SECONDS_MAX: u64 = 31_536_000;

/// The longest time for which a browser may cache the answer to a preflight request, in seconds: a day.
pub(super) const PREFLIGHT_SECONDS_MAX: u32 = 86_400;

/// The most databases in one `_dbs_info`.
pub(super) const DBS_INFO_MAX: usize = 1_000;

/// The most ids in one `_uuids`.
pub(super) const UUIDS_MAX: u64 = 10_000;

/// The largest request body that a server accepts, in bytes.
pub(super) const REQUEST_BYTES_MAX: u64 = 64 << 20;

/// The limits for clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitSettings {
    /// The most databases in one `_dbs_info`.
    pub dbs_info: usize,
    /// The largest document, in bytes. The limit of the server's start counts if it is smaller; so for the others.
    pub document_bytes: u64,
    /// The largest attachment, in bytes.
    pub attachment_bytes: u64,
    /// The size of a partition from which it takes no documents, in bytes; 0: none.
    pub partition_bytes: u64,
    /// The largest request body that is no attachment, in bytes.
    pub request_bytes: u64,
    /// The largest `limit` of a query of rows; `None`: any.
    pub view_rows: Option<u64>,
    /// The same within a partition.
    pub partition_view_rows: Option<u64>,
    /// The longest wait of a feed for changes and the default of its `timeout`, in milliseconds; `None`: the server's
    /// own bound.
    pub feed_wait_ms: Option<u64>,
    /// The `limit` of a `_find` without one.
    pub find_documents: u64,
    /// The limits of `[limits]` by name, as numbers. The server's shell applies them.
    pub of_clients: BTreeMap<String, String>,
}

impl Default for LimitSettings {
    fn default() -> Self {
        LimitSettings {
            dbs_info: 100,
            document_bytes: DOCUMENT_BYTES_MAX,
            attachment_bytes: ATTACHMENT_BYTES_MAX,
            partition_bytes: 0,
            request_bytes: REQUEST_BYTES_MAX,
            view_rows: None,
            partition_view_rows: None,
            feed_wait_ms: Some(FEED_WAIT_MS_MAX),
            find_documents: 25,
            of_clients: BTreeMap::new(),
        }
    }
}

/// The algorithm that generates ids, by CouchDB's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UuidAlgorithm {
    /// A random prefix and a counter that grows by random steps.
    #[default]
    Sequential,
    /// 128 random bits.
    Random,
    /// The time in microseconds and 72 random bits.
    UtcRandom,
    /// The time in microseconds and [`UuidSettings::utc_id_suffix`].
    UtcId,
    /// Version 7 of RFC 9562: the time in milliseconds and 74 random bits.
    UuidV7,
}

/// The ids that the server generates: `[uuids]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UuidSettings {
    /// The algorithm.
    pub algorithm: UuidAlgorithm,
    /// The end of ids by [`UuidAlgorithm::UtcId`].
    pub utc_id_suffix: String,
    /// The most ids in one `_uuids`.
    pub count_max: u64,
}

impl Default for UuidSettings {
    fn default() -> Self {
        UuidSettings { algorithm: UuidAlgorithm::default(), utc_id_suffix: String::new(), count_max: 1_000 }
    }
}

/// The options of replications that do not name them: `[replicator]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicationSettings {
    /// The interval of checkpoints, in milliseconds.
    pub checkpoint_interval_ms: u64,
    /// True if checkpoints are read and written.
    pub use_checkpoints: bool,
}

impl Default for ReplicationSettings {
    fn default() -> Self {
        ReplicationSettings { checkpoint_interval_ms: 30_000, use_checkpoints: true }
    }
}

/// A database for each user: `[couch_peruser]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PerUserSettings {
    /// True if each account gets a database.
    pub is_enabled: bool,
    /// True if the database is deleted with its account.
    pub deletes_databases: bool,
    /// The beginning of the databases' names; the name in hexadecimal digits follows.
    pub database_prefix: String,
    /// The `q` of new databases; `None`: that of other databases.
    pub q: Option<u16>,
}

impl Default for PerUserSettings {
    fn default() -> Self {
        PerUserSettings { is_enabled: false, deletes_databases: false, database_prefix: "userdb-".to_owned(), q: None }
    }
}

/// The headers, in lower case, in which proxies name the address that the client requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardingSettings {
    /// The header with the host.
    pub host_header: String,
    /// The header with the scheme.
    pub proto_header: String,
    /// The header that is `on` over TLS.
    pub ssl_header: String,
}

impl Default for ForwardingSettings {
    fn default() -> Self {
        let [host_header, proto_header, ssl_header] =
            ["x-forwarded-host", "x-forwarded-proto", "x-forwarded-ssl"].map(str::to_owned);
        ForwardingSettings { host_header, proto_header, ssl_header }
    }
}

/// The log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// A level, or targets with levels: `info`, `info,flatbed_layer=debug`. CouchDB's other levels become the nearest
    /// one.
    pub level: String,
}

impl Default for LogSettings {
    fn default() -> Self {
        LogSettings { level: "info".to_owned() }
    }
}

impl Settings {
    /// Parses `values`, with defaults for the rest.
    pub(crate) fn of(values: Values) -> Settings {
        let mut settings = Settings::default();
        for (section, key, value) in values.iter() {
            match keys::apply(&mut settings, section, key, &value.text) {
                // A stored setting of any name is accepted.
                Ok(()) | Err(SettingError::Unknown) => {}
                Err(error) => {
                    tracing::error!(section, key, %error, source = value.source.words(), "invalid setting: using its default");
                }
            }
        }
        settings.values = values;
        settings
    }

    /// Returns the value of a setting, set or by default; `None`: the setting does not exist, or a freely named one
    /// is not set.
    pub fn value(&self, section: &str, key: &str) -> Option<Value> {
        let (section, key) = keys::canonical(section, key);
        let default =
            || keys::default(section, key).map(|text| Value { text: text.to_owned(), source: Source::Default });
        self.values.get(section, key).cloned().or_else(default)
    }

    /// Returns all sections with their values, set or by default, as administrators see them: without secrets except
    /// for administrators' hashes. A value is also in the sections that have another name of its setting.
    pub fn shown(&self) -> BTreeMap<String, BTreeMap<String, String>> {
        let mut shown: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        let mut show = |section: &str, key: &str, text: &str| {
            for section in iter::once(section).chain(keys::aliases(section, key).iter().copied()) {
                shown.entry(section.to_owned()).or_default().insert(key.to_owned(), text.to_owned());
            }
        };
        for (section, key, text) in keys::defaults() {
            show(section, key, text);
        }
        for (section, key, value) in self.values.iter() {
            show(section, key, keys::shown(section, key, &value.text));
        }
        shown
    }

    /// Returns the sections of [`Settings::shown`] with the values that are set and have no effect.
    pub fn shown_unused(&self) -> BTreeMap<String, BTreeMap<String, String>> {
        let mut shown: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        for (section, key, value) in self.unused() {
            let text = keys::shown(section, key, &value.text).to_owned();
            shown.entry(section.to_owned()).or_default().insert(key.to_owned(), text);
        }
        shown
    }

    /// The values that are set and have no effect.
    pub(super) fn unused(&self) -> impl Iterator<Item = (&str, &str, &Value)> {
        self.values.iter().filter(|(section, key, value)| registry::is_unused(section, key, &value.text))
    }

    /// Returns one value of [`Settings::shown`].
    pub fn shown_value(&self, section: &str, key: &str) -> Option<String> {
        let (section, key) = keys::canonical(section, key);
        let set = self.values.get(section, key).map(|value| keys::shown(section, key, &value.text));
        set.or_else(|| keys::default(section, key)).map(str::to_owned)
    }

    /// The values that are set, as texts.
    pub fn values(&self) -> &Values {
        &self.values
    }
}
