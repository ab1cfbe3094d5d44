//! What the settings are, typed. The texts that they are read from: `keys.rs`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use flatbed_auth::PasswordHash;
use flatbed_auth::jwt::{Algorithm, Binding};
use flatbed_auth::session::SameSite;
use flatbed_auth::users::PublicFields;
use flatbed_auth::{ITERATIONS_MAX, lockout, proxy};
use flatbed_network::Blocks;

use super::keys;
use super::values::{Source, Value, Values};

/// All settings that may change while a server runs. What is secret of them is in no debug output.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings {
    /// Those who may do everything, by name, with what their passwords are checked against: `[admins]`. Without any: everyone
    /// is one. A text that is no hash is a name that nobody signs in with.
    pub admins: BTreeMap<String, Option<PasswordHash>>,
    /// Who somebody is.
    pub auth: AuthSettings,
    /// Pages of other origins.
    pub cors: CorsSettings,
    /// How much somebody may ask for.
    pub limits: LimitSettings,
    /// What is logged.
    pub log: LogSettings,
    /// Whether rules of `rewrites` may lead out of their database, with any method: `[chttpd] secure_rewrites = false`.
    pub insecure_rewrites: bool,
    values: Values,
}

/// Who somebody is, and how they show it: `[chttpd_auth]` and its like. The defaults are CouchDB's but for `same_site` and
/// `max_iterations`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthSettings {
    /// Seconds that a session lasts.
    pub timeout_s: u64,
    /// Whether a session's cookie says when it ends, so that browsers keep it.
    pub allow_persistent_cookies: bool,
    /// Whether the anonymous are refused, whatever they ask for.
    pub require_valid_user: bool,
    /// The same, but for `/_up`.
    pub require_valid_user_except_for_up: bool,
    /// Whether the names of all databases are for administrators alone.
    pub admin_only_all_dbs: bool,
    /// Whether `_security` of `_users` may be changed.
    pub users_db_security_editable: bool,
    /// What everyone sees of user documents.
    pub public_fields: PublicFields,
    /// What is done about wrong passwords.
    pub lockout: lockout::Options,
    /// Whether a hash that is weaker than new ones is made anew once its password was right.
    pub rehash: bool,
    /// Hashes with more are refused unverified.
    pub max_iterations: u32,
    /// `SameSite` of a session's cookie.
    pub same_site: Option<SameSite>,
    /// `Domain` of a session's cookie.
    pub cookie_domain: Option<String>,
    /// Proxies that say who somebody is.
    pub proxy: ProxySettings,
    /// Tokens, by the name of whoever issues them; `""` is the one without a name, `[jwt_auth]` and `[jwt_keys]`. Others are
    /// `[jwt_auth:NAME]` and `[jwt_keys:NAME]`.
    pub jwt: BTreeMap<String, JwtSettings>,
}

impl AuthSettings {
    /// Whether the anonymous are refused, but for what is for everyone all the same.
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
            lockout: lockout::Options::default(),
            rehash: true,
            max_iterations: ITERATIONS_MAX,
            same_site: Some(SameSite::Lax),
            cookie_domain: None,
            proxy: ProxySettings::default(),
            jwt: BTreeMap::new(),
        }
    }
}

/// Proxies that say who somebody is: `[proxy_auth]`. The headers' names are CouchDB's, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxySettings {
    /// Who is believed; nobody, if it is empty.
    pub peers: Blocks,
    /// Whether they may give roles that begin with `_`.
    pub trusts_system_roles: bool,
    /// Where the name stands.
    pub user_header: String,
    /// Where roles stand.
    pub roles_header: String,
    /// Where the token stands.
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

/// Who issues tokens, and what they are like. Without a key and a file none are taken.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct JwtSettings {
    /// As in CouchDB's `[jwt_keys]`: `hmac:KID` with base64, `rsa:KID`, `ec:KID`, `eddsa:KID` with PEM (`\n` for line ends);
    /// `_default` for tokens without an id of a key.
    pub keys: BTreeMap<String, String>,
    /// A JWK set, which is read again when it changes.
    pub jwks_file: Option<PathBuf>,
    /// What the tokens must claim.
    pub binding: Binding,
    /// Which algorithms are taken; all, where it is empty.
    pub algorithms: Vec<Algorithm>,
    /// Seconds that clocks may differ by.
    pub skew_s: u64,
}

impl fmt::Debug for JwtSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<&String> = self.keys.keys().collect();
        f.debug_struct("JwtSettings").field("keys", &keys).field("binding", &self.binding).finish_non_exhaustive()
    }
}

/// Pages of other origins: `[cors]`, and whether it counts at all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CorsSettings {
    /// Whether they may call at all.
    pub is_enabled: bool,
    /// Which may; `*`: all.
    pub origins: Vec<String>,
    /// Whether credentials may be sent along.
    pub credentials: bool,
    /// Further header names that requests may have.
    pub headers: Vec<String>,
    /// Seconds that a browser may keep the answer to a preflight request.
    pub max_age_s: u32,
}

/// How much somebody may ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitSettings {
    /// Databases that `_dbs_info` is asked about at once.
    pub dbs_info: usize,
    /// Those that a server keeps to with its clients, by their names, as `[limits]` has them: numbers.
    pub of_clients: BTreeMap<String, String>,
}

impl Default for LimitSettings {
    fn default() -> Self {
        LimitSettings { dbs_info: 100, of_clients: BTreeMap::new() }
    }
}

/// What is logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// A level, or targets with levels: `info`, `info,flatbed_layer=debug`. Levels of CouchDB's that there are not are the
    /// nearest.
    pub level: String,
}

impl Default for LogSettings {
    fn default() -> Self {
        LogSettings { level: "info".to_owned() }
    }
}

impl Settings {
    /// What `values` say, and defaults for the rest.
    pub(crate) fn of(values: Values) -> Settings {
        let mut settings = Settings::default();
        for (section, key, value) in values.iter() {
            if let Err(error) = keys::apply(&mut settings, section, key, &value.text) {
                tracing::error!(section, key, %error, source = value.source.words(), "a setting does not fit: its default counts");
            }
        }
        settings.values = values;
        settings
    }

    /// The value of a setting, as it is set or by default; `None`: there is no such setting, or none of that name was set.
    pub fn value(&self, section: &str, key: &str) -> Option<Value> {
        let (section, key) = keys::canonical(section, key);
        let default =
            || keys::default(section, key).map(|text| Value { text: text.to_owned(), source: Source::Default });
        self.values.get(section, key).cloned().or_else(default)
    }

    /// All sections with what is in them, as it is shown: set or by default, and no secrets but administrators' hashes.
    pub fn shown(&self) -> BTreeMap<String, BTreeMap<String, String>> {
        let mut shown: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        for (section, key, text) in keys::defaults() {
            shown.entry(section.to_owned()).or_default().insert(key.to_owned(), text.to_owned());
        }
        for (section, key, value) in self.values.iter() {
            let text = keys::shown(section, key, &value.text).to_owned();
            shown.entry(section.to_owned()).or_default().insert(key.to_owned(), text);
        }
        shown
    }

    /// The value of a setting, as it is shown: see [`Settings::shown`].
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
