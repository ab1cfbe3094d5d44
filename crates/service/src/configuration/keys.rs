//! The names of settings, which are CouchDB's, and their parsers.

use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;

use flatbed_auth::jwt::{Algorithm, RolesClaim, required_claims};
use flatbed_auth::session::SameSite;
use flatbed_auth::users::PublicFields;
use flatbed_auth::{ITERATIONS, ITERATIONS_MAX, PasswordHash, lockout};
use flatbed_network::Blocks;

use super::settings::{JwtSettings, Settings};
use crate::sign_in::keys::keys_of;

/// The reason why a setting cannot be set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// There is no setting of that name.
    #[error("unknown_config_value")]
    Unknown,
    /// The setting belongs to the start of the server.
    #[error("it can be set where the server is started, and not here")]
    OnlyAtStart,
    /// The value is invalid.
    #[error("it must be {0}")]
    Wrong(&'static str),
}

type SettingResult = Result<(), SettingError>;

pub(crate) struct SettingKey {
    pub section: &'static str,
    pub key: &'static str,
    /// The value that is shown for an unset setting.
    pub default: &'static str,
    apply: fn(&mut Settings, &str) -> SettingResult,
}

/// Settings with a fixed section and key. [`apply`] handles the others.
pub(crate) const KEYS: &[SettingKey] = &[
    SettingKey {
        section: "chttpd",
        key: "admin_only_all_dbs",
        default: "true",
        apply: |settings, text| set(&mut settings.auth.admin_only_all_dbs, flag(text)),
    },
    SettingKey {
        section: "chttpd",
        key: "enable_cors",
        default: "false",
        apply: |settings, text| set(&mut settings.cors.is_enabled, flag(text)),
    },
    SettingKey {
        section: "chttpd",
        key: "max_db_number_for_dbs_info_req",
        default: "100",
        apply: |settings, text| set(&mut settings.limits.dbs_info, number(text, 1..=1_000, "a number from 1 to 1000")),
    },
    SettingKey {
        section: "chttpd",
        key: "require_valid_user",
        default: "false",
        apply: |settings, text| set(&mut settings.auth.require_valid_user, flag(text)),
    },
    SettingKey {
        section: "chttpd",
        key: "require_valid_user_except_for_up",
        default: "false",
        apply: |settings, text| set(&mut settings.auth.require_valid_user_except_for_up, flag(text)),
    },
    SettingKey {
        section: "chttpd",
        key: "secure_rewrites",
        default: "true",
        apply: |settings, text| set(&mut settings.insecure_rewrites, flag(text).map(|is_secure| !is_secure)),
    },
    SettingKey {
        section: "chttpd_auth",
        key: "allow_persistent_cookies",
        default: "true",
        apply: |settings, text| set(&mut settings.auth.allow_persistent_cookies, flag(text)),
    },
    SettingKey {
        section: "chttpd_auth",
        key: "cookie_domain",
        default: "",
        apply: |settings, text| {
            let is_domain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte));
            let domain = (text.len() <= 253 && is_domain(text)).then(|| some(text));
            set(&mut settings.auth.cookie_domain, domain.ok_or(SettingError::Wrong("a domain, or empty")))
        },
    },
    SettingKey {
        section: "chttpd_auth",
        key: "max_iterations",
        default: "2000000",
        apply: |settings, text| {
            // A lower bound would lock out users with hashes of this server, administrators among them.
            let most =
                number(text, ITERATIONS..=ITERATIONS_MAX, "a number from 600000, which new hashes have, to 2000000");
            set(&mut settings.auth.max_iterations, most)
        },
    },
    SettingKey {
        section: "chttpd_auth",
        key: "public_fields",
        default: "",
        apply: |settings, text| set(&mut settings.auth.public_fields, Ok(PublicFields::parse(text))),
    },
    SettingKey {
        section: "chttpd_auth",
        key: "same_site",
        default: "Lax",
        apply: |settings, text| {
            let named = if text.is_empty() { Some(None) } else { SameSite::named(text).map(Some) };
            set(&mut settings.auth.same_site, named.ok_or(SettingError::Wrong("None, Lax, Strict, or empty")))
        },
    },
    SettingKey {
        section: "chttpd_auth",
        key: "timeout",
        default: "600",
        apply: |settings, text| {
            let seconds = number(text, 1..=31_536_000, "a number of seconds from 1 to 31536000");
            set(&mut settings.auth.timeout_s, seconds)
        },
    },
    SettingKey {
        section: "chttpd_auth",
        key: "upgrade_hash_on_auth",
        default: "true",
        apply: |settings, text| set(&mut settings.auth.rehash, flag(text)),
    },
    SettingKey {
        section: "chttpd_auth",
        key: "x_auth_roles",
        default: "X-Auth-CouchDB-Roles",
        apply: |settings, text| set(&mut settings.auth.proxy.roles_header, header(text)),
    },
    SettingKey {
        section: "chttpd_auth",
        key: "x_auth_token",
        default: "X-Auth-CouchDB-Token",
        apply: |settings, text| set(&mut settings.auth.proxy.token_header, header(text)),
    },
    SettingKey {
        section: "chttpd_auth",
        key: "x_auth_username",
        default: "X-Auth-CouchDB-UserName",
        apply: |settings, text| set(&mut settings.auth.proxy.user_header, header(text)),
    },
    SettingKey {
        section: "chttpd_auth_lockout",
        key: "max_lifetime",
        default: "300000",
        apply: |settings, text| {
            let milliseconds = number(text, 1..=86_400_000, "a number of milliseconds from 1 to 86400000");
            set(&mut settings.auth.lockout.max_lifetime, milliseconds)
        },
    },
    SettingKey {
        section: "chttpd_auth_lockout",
        key: "max_objects",
        default: "10000",
        apply: |settings, text| {
            let most = number(text, 1..=1_000_000, "a number from 1 to 1000000");
            set(&mut settings.auth.lockout.max_objects, most)
        },
    },
    SettingKey {
        section: "chttpd_auth_lockout",
        key: "mode",
        default: "enforce",
        apply: |settings, text| {
            let mode = lockout::Mode::named(text).ok_or(SettingError::Wrong("off, warn or enforce"));
            set(&mut settings.auth.lockout.mode, mode)
        },
    },
    SettingKey {
        section: "chttpd_auth_lockout",
        key: "threshold",
        default: "5",
        apply: |settings, text| {
            set(&mut settings.auth.lockout.threshold, number(text, 1..=1_000_000, "a number from 1 to 1000000"))
        },
    },
    SettingKey {
        section: "cors",
        key: "credentials",
        default: "false",
        apply: |settings, text| set(&mut settings.cors.credentials, flag(text)),
    },
    SettingKey {
        section: "cors",
        key: "headers",
        default: "",
        apply: |settings, text| {
            set(&mut settings.cors.headers, list(text).into_iter().map(|name| header(&name)).collect())
        },
    },
    SettingKey {
        section: "cors",
        key: "max_age",
        default: "0",
        apply: |settings, text| {
            set(&mut settings.cors.max_age_s, number(text, 0..=86_400, "a number of seconds up to 86400"))
        },
    },
    SettingKey {
        section: "cors",
        key: "origins",
        default: "",
        apply: |settings, text| set(&mut settings.cors.origins, Ok(list(text))),
    },
    SettingKey {
        section: "couchdb",
        key: "users_db_security_editable",
        default: "false",
        apply: |settings, text| set(&mut settings.auth.users_db_security_editable, flag(text)),
    },
    SettingKey {
        section: "log",
        key: "level",
        default: "info",
        apply: |settings, text| set(&mut settings.log.level, levels(text)),
    },
    SettingKey {
        section: "proxy_auth",
        key: "peers",
        default: "",
        apply: |settings, text| {
            // A client without an address is no known proxy.
            let peers = text.parse::<Blocks>().ok().filter(|peers| !peers.contains(None));
            let wrong = SettingError::Wrong("addresses such as 10.0.0.1 or 10.0.0.0/8");
            set(&mut settings.auth.proxy.peers, peers.ok_or(wrong))
        },
    },
    SettingKey {
        section: "proxy_auth",
        key: "trusts_system_roles",
        default: "false",
        apply: |settings, text| set(&mut settings.auth.proxy.trusts_system_roles, flag(text)),
    },
];

/// A setting of `[jwt_auth]`, or `[jwt_auth:NAME]`.
struct JwtKey {
    key: &'static str,
    apply: fn(&mut JwtSettings, &str) -> SettingResult,
}

const JWT_KEYS: &[JwtKey] = &[
    JwtKey {
        key: "algorithms",
        apply: |jwt, text| {
            let named = list(text).iter().map(|name| Algorithm::named(name)).collect::<Option<Vec<_>>>();
            set(&mut jwt.algorithms, named.ok_or(SettingError::Wrong("algorithms such as RS256,ES256")))
        },
    },
    JwtKey { key: "audience", apply: |jwt, text| set(&mut jwt.binding.audience, Ok(some(text))) },
    JwtKey { key: "issuer", apply: |jwt, text| set(&mut jwt.binding.issuer, Ok(some(text))) },
    JwtKey { key: "jwks_file", apply: |jwt, text| set(&mut jwt.jwks_file, Ok(some(text).map(Into::into))) },
    JwtKey { key: "name_prefix", apply: |jwt, text| set(&mut jwt.binding.name_prefix, Ok(text.to_owned())) },
    JwtKey {
        key: "required_claims",
        apply: |jwt, text| {
            let wrong = SettingError::Wrong("names of claims such as exp,jti, and {iss, \"ISSUER\"}");
            let (names, issuer) = required_claims(text).ok_or(wrong)?;
            (jwt.binding.required, jwt.binding.required_issuer) = (names, issuer);
            Ok(())
        },
    },
    JwtKey {
        key: "roles_claim_name",
        apply: |jwt, text| set(&mut jwt.binding.roles, Ok(RolesClaim::Named(text.to_owned()))),
    },
    JwtKey { key: "roles_claim_path", apply: |jwt, text| set(&mut jwt.binding.roles, Ok(RolesClaim::path(text))) },
    JwtKey {
        key: "skew",
        apply: |jwt, text| set(&mut jwt.skew_s, number(text, 0..=3_600, "a number of seconds up to 3600")),
    },
    JwtKey { key: "trusts_system_roles", apply: |jwt, text| set(&mut jwt.binding.trusts_system_roles, flag(text)) },
];

const LIMITS: &str = "limits";

/// The names and ranges of these limits. A test of the surface that applies them compares the two.
pub(crate) const LIMIT_NAMES: &[(&str, RangeInclusive<u32>)] = &[
    ("connections_by_address", 0..=1_000_000),
    ("unfinished_connections", 16..=100_000),
    ("unfinished_connections_by_address", 1..=100_000),
    ("requests_by_address", 0..=1_000_000),
    ("requests_by_address_burst", 1..=1_000_000),
    ("under_way_by_address", 0..=1_000_000),
    ("under_way", 0..=1_000_000),
    ("requests_by_user", 0..=1_000_000),
    ("requests_by_user_burst", 1..=1_000_000),
    ("under_way_by_user", 0..=1_000_000),
    ("memory_percent_by_address", 1..=100),
    ("anonymous_feeds_percent", 1..=100),
    ("handshake_seconds", 1..=600),
    ("head_seconds", 1..=600),
    ("idle_seconds", 1..=3_600),
    ("body_pause_seconds", 1..=3_600),
    ("body_seconds", 1..=86_400),
];

/// CouchDB's own sections. Only the keys of this program are accepted in them, so that no setting is stored without
/// an effect.
const SECTIONS: &[&str] = &[
    "admins",
    "attachments",
    "bt_engine_cache",
    "chttpd",
    "chttpd_auth",
    "chttpd_auth_cache",
    "chttpd_auth_lockout",
    "cluster",
    "cors",
    "couch_httpd_auth",
    "couch_passwords_cache",
    "couch_peruser",
    "couchdb",
    "couchdb_engines",
    "csp",
    "custodian",
    "daemons",
    "disk_monitor",
    "dreyfus",
    "fabric",
    "feature_flags",
    "global_changes",
    "httpd",
    "indexers",
    "ioq",
    "ioq.bypass",
    "jwt_auth",
    "jwt_keys",
    "ken",
    "limits",
    "log",
    "mango",
    "mem3",
    "native_query_servers",
    "nouveau",
    "prometheus",
    "process_priority",
    "proxy_auth",
    "purge",
    "query_server_config",
    "query_servers",
    "replicator",
    "replicator.shares",
    "reshard",
    "rexi",
    "smoosh",
    "ssl",
    "stats",
    "uuids",
    "vendor",
    "vhosts",
    "view_compaction",
    "view_updater",
    "view_upgrade",
    "x_frame_options",
];

/// Values that cannot be set, for CouchDB's own tools.
const FACTS: &[(&str, &str, &str)] = &[("couchdb", "single_node", "true")];

pub(crate) fn default(section: &str, key: &str) -> Option<&'static str> {
    defaults().find(|(of, name, _)| (*of, *name) == (section, key)).map(|(_, _, text)| text)
}

/// Returns section, key and text of all settings that exist without being set.
pub(crate) fn defaults() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    FACTS.iter().copied().chain(KEYS.iter().map(|key| (key.section, key.key, key.default)))
}

const HIDDEN: &str = "***";

/// Returns a value as administrators see it. Like CouchDB, this shows the hashes of administrators' passwords.
pub(crate) fn shown<'t>(section: &str, key: &str, text: &'t str) -> &'t str {
    let is_secret = named(section, "jwt_keys").is_some() && key.starts_with("hmac:");
    if is_secret { HIDDEN } else { text }
}

/// True if a value may be logged: it is neither secret nor unknown.
pub(crate) fn is_loggable(section: &str, key: &str) -> bool {
    KEYS.iter().any(|found| (found.section, found.key) == (section, key)) || named(section, "jwt_auth").is_some()
}

/// Checks whether a setting can be stored at all.
///
/// # Errors
/// [`SettingError::OnlyAtStart`]; [`SettingError::Wrong`] for an empty section or key.
pub(crate) fn check_storable(section: &str, key: &str) -> SettingResult {
    // Only users who can log in to the machine choose the files that a server reads.
    let is_of_files = named(section, "jwt_auth").is_some() && key == "jwks_file";
    let is_fact = FACTS.iter().any(|(of, name, _)| (*of, *name) == (section, key));
    match (is_of_files || is_fact, section.is_empty() || key.is_empty()) {
        (true, _) => Err(SettingError::OnlyAtStart),
        (_, true) => Err(SettingError::Wrong("named")),
        _ => Ok(()),
    }
}

pub(crate) fn check_admin_name(name: &str) -> SettingResult {
    let fits = !name.is_empty() && !name.contains(':') && !name.chars().any(char::is_control);
    if fits { Ok(()) } else { Err(SettingError::Wrong("of a name without colons and control characters")) }
}

/// Resolves earlier names of CouchDB and other aliases.
pub(crate) fn canonical<'n>(section: &'n str, key: &'n str) -> (&'n str, &'n str) {
    match (section, key) {
        ("httpd", "enable_cors" | "secure_rewrites") => ("chttpd", key),
        ("couch_httpd_auth" | "chttpd_auth", "require_valid_user" | "require_valid_user_except_for_up") => {
            ("chttpd", key)
        }
        ("couch_httpd_auth", _) => ("chttpd_auth", key),
        _ => (section, key),
    }
}

/// Returns the name after the section's colon, `""` without one; `None` for another section.
fn named<'s>(section: &'s str, kind: &str) -> Option<&'s str> {
    let rest = section.strip_prefix(kind)?;
    if rest.is_empty() { Some("") } else { rest.strip_prefix(':').filter(|name| !name.is_empty()) }
}

pub(crate) fn is_known(section: &str) -> bool {
    KEYS.iter().any(|key| key.section == section)
        || named(section, "jwt_auth").is_some()
        || named(section, "jwt_keys").is_some()
}

/// True for a section with keys of the user's choice, which have no effect here.
fn is_free(section: &str) -> bool {
    let kind = section.split_once(':').map_or(section, |(kind, _)| kind);
    !SECTIONS.contains(&kind)
}

/// Sets a value in the settings.
///
/// # Errors
/// [`SettingError`]: the settings stay unchanged, except that an administrator with an invalid hash exists without a
/// sign-in.
pub(crate) fn apply(settings: &mut Settings, section: &str, key: &str, text: &str) -> SettingResult {
    if let Some(found) = KEYS.iter().find(|found| (found.section, found.key) == (section, key)) {
        return (found.apply)(settings, text);
    }
    if section == LIMITS {
        let (name, range) = LIMIT_NAMES.iter().find(|(name, _)| *name == key).ok_or(SettingError::Unknown)?;
        number(text, range.clone(), "a number that the limit may be")?;
        settings.limits.of_clients.insert((*name).to_owned(), text.to_owned());
        return Ok(());
    }
    if section == "admins" {
        let hash = PasswordHash::parse(text);
        let is_hash = hash.is_ok();
        settings.admins.insert(key.to_owned(), hash.ok());
        return if is_hash { Ok(()) } else { Err(SettingError::Wrong("the hash of a password")) };
    }
    if let Some(issuer) = named(section, "jwt_auth") {
        let found = JWT_KEYS.iter().find(|found| found.key == key).ok_or(SettingError::Unknown)?;
        return (found.apply)(settings.auth.jwt.entry(issuer.to_owned()).or_default(), text);
    }
    if let Some(issuer) = named(section, "jwt_keys") {
        let kind = key.split_once(':').map(|(kind, _)| kind);
        if !matches!(kind, Some("hmac" | "rsa" | "ec" | "eddsa")) {
            return Err(SettingError::Wrong("named hmac:ID, rsa:ID, ec:ID or eddsa:ID"));
        }
        if keys_of(key, text, &Arc::default()).is_empty() {
            let what =
                "a secret in base64, as long as the HMAC, or a public key in PEM, of the kind that it is named by";
            return Err(SettingError::Wrong(what));
        }
        let issuer = settings.auth.jwt.entry(issuer.to_owned()).or_default();
        issuer.keys.insert(key.to_owned(), text.to_owned());
        return Ok(());
    }
    if is_free(section) { Ok(()) } else { Err(SettingError::Unknown) }
}

pub(crate) fn check(section: &str, key: &str, text: &str) -> SettingResult {
    apply(&mut Settings::default(), section, key, text)
}

fn set<T>(place: &mut T, value: Result<T, SettingError>) -> SettingResult {
    *place = value?;
    Ok(())
}

fn flag(text: &str) -> Result<bool, SettingError> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(SettingError::Wrong("true or false")),
    }
}

fn number<N: FromStr + PartialOrd>(
    text: &str,
    range: RangeInclusive<N>,
    what: &'static str,
) -> Result<N, SettingError> {
    text.parse().ok().filter(|number| range.contains(number)).ok_or(SettingError::Wrong(what))
}

/// Parses log levels, with or without targets; a level of CouchDB's becomes the nearest one.
fn levels(text: &str) -> Result<String, SettingError> {
    let level = |text: &str| {
        Some(match text {
            "trace" | "debug" | "info" | "warn" | "error" | "off" => text.to_owned(),
            "notice" => "info".to_owned(),
            "warning" => "warn".to_owned(),
            "err" | "critical" | "crit" | "alert" | "emergency" | "emerg" => "error".to_owned(),
            "none" => "off".to_owned(),
            _ => return None,
        })
    };
    let is_target = |text: &str| {
        let is_of_path = |byte: u8| byte.is_ascii_alphanumeric() || b"_:".contains(&byte);
        !text.is_empty() && text.bytes().all(is_of_path)
    };
    let part = |part: &str| match part.trim().split_once('=') {
        None => level(part.trim()),
        Some((target, of_target)) => Some(target)
            .filter(|target| is_target(target))
            .and_then(|target| Some(format!("{target}={}", level(of_target)?))),
    };
    let parts: Option<Vec<String>> = text.split(',').map(part).collect();
    let wrong = SettingError::Wrong("a log level (error, warn, info, debug, trace) or a list of target=level");
    parts.filter(|_| text.len() <= 1_000).map(|parts| parts.join(",")).ok_or(wrong)
}

fn header(text: &str) -> Result<String, SettingError> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let fits = (1..=100).contains(&text.len()) && text.bytes().all(is_token);
    if fits { Ok(text.to_ascii_lowercase()) } else { Err(SettingError::Wrong("the name of a header")) }
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::{Configuration, Source, Values};

    #[test]
    fn defaults_are_what_is_shown_for_them() {
        let mut settings = Settings::default();
        for key in KEYS {
            (key.apply)(&mut settings, key.default).unwrap_or_else(|error| panic!("{}: {error}", key.key));
            assert_eq!(settings, Settings::default(), "{}/{}", key.section, key.key);
            assert!(SECTIONS.contains(&key.section), "{}", key.section);
        }
    }

    #[test]
    fn the_most_binding_source_counts() {
        let mut values = Values::default();
        values.insert("chttpd_auth", "timeout", "7", Source::File).unwrap();
        values.insert("chttpd_auth", "timeout", "8", Source::Stored).unwrap();
        values.insert("couch_httpd_auth", "allow_persistent_cookies", "false", Source::Stored).unwrap();
        let settings = Configuration::new(values).now();
        assert_eq!((settings.auth.timeout_s, settings.auth.allow_persistent_cookies), (7, false));
        assert_eq!(settings.value("chttpd_auth", "timeout").unwrap().source, Source::File);
        let default = settings.value("httpd", "enable_cors").unwrap();
        assert_eq!((default.text.as_str(), default.source), ("false", Source::Default));
        assert_eq!(settings.value("chttpd_auth", "none"), None);
    }

    /// A secret of 34 bytes, and a public key of Ed25519.
    const SECRET: &str = "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0IHNlY3JldA==";
    const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAu1MA6QTOEjYsG4eeKrufSsHLbCem+BnChCiPI+u7x9w=\n-----END PUBLIC KEY-----";

    #[test]
    fn texts_that_do_not_fit() {
        for (section, key, text) in [
            ("chttpd", "require_valid_user", "yes"),
            ("chttpd", "secure_rewrites", "off"),
            ("chttpd_auth", "timeout", "0"),
            ("chttpd_auth", "cookie_domain", "a; Secure"),
            ("chttpd_auth", "same_site", "lax, Domain=x"),
            ("chttpd_auth", "max_iterations", "2000001"),
            ("chttpd_auth", "max_iterations", "599999"),
            ("cors", "headers", "a,b c"),
            ("proxy_auth", "peers", "everyone"),
            ("proxy_auth", "peers", "10.0.0.1,unix"),
            ("jwt_keys", "kid", "x"),
            ("jwt_keys", "rsa:k", "public"),
            ("jwt_keys", "rsa:k", PUBLIC),
            ("jwt_keys", "hmac:k", "c2VjcmV0"),
            ("jwt_keys", "hmac:k", PUBLIC),
            ("log", "level", "loud"),
            ("log", "level", "flatbed_layer"),
            ("log", "level", "a b=info"),
            ("jwt_auth:a", "algorithms", "none"),
            ("jwt_auth", "required_claims", "exp {iss, \"a\"}"),
            ("jwt_auth", "required_claims", "{aud, \"a\"}"),
        ] {
            assert!(matches!(check(section, key, text), Err(SettingError::Wrong(_))), "{section}/{key}");
        }
        for (section, key) in [("couchdb", "max_dbs_open"), ("ssl", "key_file"), ("jwt_auth", "x"), ("cors:a", "b")] {
            assert_eq!(check(section, key, "x"), Err(SettingError::Unknown), "{section}/{key}");
        }
        assert_eq!(check("mine", "key", "x"), Ok(()));
    }

    #[test]
    fn levels_of_couchdb() {
        for (text, level) in
            [("warning", "warn"), ("none", "off"), ("info, flatbed_layer=debug", "info,flatbed_layer=debug")]
        {
            let mut settings = Settings::default();
            apply(&mut settings, "log", "level", text).unwrap();
            assert_eq!(settings.log.level, level);
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let mut values = Values::default();
        values.insert("jwt_keys:a", "hmac:k", SECRET, Source::File).unwrap();
        values.insert("jwt_keys", "eddsa:k", PUBLIC, Source::File).unwrap();
        let settings = Configuration::new(values).now();
        assert_eq!(settings.shown()["jwt_keys:a"]["hmac:k"], "***");
        assert_eq!(settings.shown_value("jwt_keys:a", "hmac:k").as_deref(), Some("***"));
        assert_eq!(settings.shown_value("jwt_keys", "eddsa:k").as_deref(), Some(PUBLIC));
        assert_eq!(settings.shown()["couchdb"]["single_node"], "true");
        assert!(!format!("{settings:?}").contains(SECRET));
        assert!(!is_loggable("admins", "anna") && !is_loggable("jwt_keys", "hmac:k") && is_loggable("log", "level"));
    }

    #[test]
    fn an_administrator_without_a_hash_keeps_the_server_closed() {
        let mut values = Values::default();
        assert!(values.insert("admins", "anna", "secret", Source::Stored).is_err());
        values.insert_unchecked("admins", "anna", "-pbkdf2-cut", Source::Stored);
        assert_eq!(Configuration::new(values).now().admins.get("anna"), Some(&None));
    }

    #[test]
    fn issuers_are_kept_apart() {
        let mut values = Values::default();
        for (section, key, text) in [
            ("jwt_auth", "issuer", "a"),
            ("jwt_auth:b", "issuer", "b"),
            ("jwt_auth:b", "algorithms", "ES256,EdDSA"),
            ("jwt_keys:b", "hmac:k", SECRET),
        ] {
            values.insert(section, key, text, Source::File).unwrap();
        }
        let jwt = &Configuration::new(values).now().auth.jwt;
        assert_eq!(jwt[""].binding.issuer.as_deref(), Some("a"));
        assert_eq!((jwt["b"].binding.issuer.as_deref(), jwt["b"].keys.len()), (Some("b"), 1));
        assert_eq!(jwt["b"].algorithms, [Algorithm::Es256, Algorithm::EdDsa]);
    }
}
