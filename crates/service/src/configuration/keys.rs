//! The names of settings, which are CouchDB's, and their parsers.

mod table;

use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;

use flatbed_auth::PasswordHash;
use flatbed_auth::jwt::{Algorithm, RolesClaim, required_claims};

use super::settings::{JwtSettings, Settings};
use crate::sign_in::keys::keys_of;

pub(crate) use table::KEYS;

/// The reason why a setting cannot be set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// There is no setting of that name.
    #[error("unknown_config_value")]
    Unknown,
    /// The setting belongs to the start of the server.
    #[error("it can be set where the server is started, and not here")]
    OnlyAtStart,
    /// The section cannot be changed over HTTP, as in CouchDB.
    #[error("Config section blacklisted for modification over HTTP API.")]
    Closed,
    /// The section, the key or the value has a form that CouchDB refuses, too.
    #[error("Invalid configuration {0}")]
    Form(&'static str),
    /// The value is invalid.
    #[error("it must be {0}")]
    Wrong(&'static str),
}

type SettingResult = Result<(), SettingError>;

/// A setting with an effect.
pub(crate) struct SettingKey {
    pub section: &'static str,
    pub key: &'static str,
    /// The value that is shown for an unset setting.
    pub default: &'static str,
    apply: fn(&mut Settings, &str) -> SettingResult,
}

/// A setting of `[jwt_auth]`, or `[jwt_auth:NAME]`.
struct JwtKey {
    key: &'static str,
    apply: fn(&mut JwtSettings, &str) -> SettingResult,
}

const JWT_KEYS: &[JwtKey] = &[
    JwtKey {
        key: "algorithms",
        apply: |jwt, text| {
            let named = list(text).iter().map(|name| Algorithm::from_name(name)).collect::<Option<Vec<_>>>();
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

/// Values that are shown for CouchDB's own tools. Setting them has no effect.
const FACTS: &[(&str, &str, &str)] = &[("couchdb", "single_node", "true")];

pub(crate) fn default(section: &str, key: &str) -> Option<&'static str> {
    defaults().find(|(of, name, _)| (*of, *name) == (section, key)).map(|(_, _, text)| text)
}

/// Returns section, key and text of all settings that exist without being set.
pub(crate) fn defaults() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    FACTS.iter().copied().chain(KEYS.iter().map(|key| (key.section, key.key, key.default)))
}

/// CouchDB's word for a limit that is none.
pub(crate) const INFINITY: &str = "infinity";

const HIDDEN: &str = "***";

/// Settings of CouchDB's with secrets. They have no effect here, but a tool may store them.
const SECRETS: &[(&str, &str)] =
    &[("chttpd_auth", "secret"), ("nouveau", "ssl_password"), ("replicator", "password"), ("ssl", "password")];

/// CouchDB's sections that name its code. CouchDB does not change them over HTTP.
const CLOSED: &[&str] = &[
    "daemons",
    "external",
    "feature_flags",
    "httpd_db_handlers",
    "httpd_design_handlers",
    "httpd_global_handlers",
    "native_query_servers",
    "os_daemons",
    "query_servers",
];

/// The keys that CouchDB has moved from `[httpd]` to `[chttpd]`. It reads both sections.
const MOVED: &[&str] = &[
    "WWW-Authenticate",
    "allow_jsonp",
    "changes_timeout",
    "config_whitelist",
    "enable_cors",
    "enable_xframe_options",
    "max_http_request_size",
    "max_uri_length",
    "rewrite_limit",
    "secure_rewrites",
    "x_forwarded_host",
    "x_forwarded_proto",
    "x_forwarded_ssl",
];

/// The keys of `[chttpd]` that older versions of CouchDB had in `[chttpd_auth]` and `[couch_httpd_auth]`.
const OF_VALID_USERS: &[&str] = &["require_valid_user", "require_valid_user_except_for_up"];

/// Returns a value as administrators see it. Like CouchDB, this shows the hashes of administrators' passwords.
pub(crate) fn shown<'t>(section: &str, key: &str, text: &'t str) -> &'t str {
    let is_key = named(section, "jwt_keys").is_some() && key.starts_with("hmac:");
    let is_secret = is_key || SECRETS.contains(&(section, key));
    if is_secret { HIDDEN } else { text }
}

/// True if a value may be logged: it is neither secret nor unknown.
pub(crate) fn is_loggable(section: &str, key: &str) -> bool {
    KEYS.iter().any(|found| (found.section, found.key) == (section, key)) || named(section, "jwt_auth").is_some()
}

/// Checks whether a setting can be stored at all.
///
/// # Errors
/// [`SettingError::Closed`]; [`SettingError::Form`]; [`SettingError::OnlyAtStart`].
pub(crate) fn check_storable(section: &str, key: &str) -> SettingResult {
    if is_closed(section) {
        return Err(SettingError::Closed);
    }
    let fits = |name: &str| !name.is_empty() && !name.contains(['[', ']']) && is_printable(name);
    for (name, what) in [(section, "section"), (key, "key")] {
        if !fits(name) {
            return Err(SettingError::Form(what));
        }
    }
    // Only users who can log in to the machine choose the files that a server reads.
    let is_of_files = named(section, "jwt_auth").is_some() && key == "jwks_file";
    if is_of_files { Err(SettingError::OnlyAtStart) } else { Ok(()) }
}

/// Checks whether a value can be stored under this name, with or without an effect.
///
/// # Errors
/// [`SettingError::Form`]; [`SettingError::Wrong`] for a value that its setting does not accept.
pub(crate) fn check_stored(section: &str, key: &str, text: &str) -> SettingResult {
    // Keys in PEM may have line ends.
    if named(section, "jwt_keys").is_none() && !is_printable(text) {
        return Err(SettingError::Form("value"));
    }
    match check(section, key, text) {
        Err(SettingError::Unknown) => Ok(()),
        checked => checked,
    }
}

pub(crate) fn is_closed(section: &str) -> bool {
    CLOSED.contains(&section)
}

fn is_printable(text: &str) -> bool {
    !text.contains(|sign: char| sign.is_control() && sign != '\t')
}

pub(crate) fn check_admin_name(name: &str) -> SettingResult {
    let fits = !name.is_empty() && !name.contains(':') && !name.chars().any(char::is_control);
    if fits { Ok(()) } else { Err(SettingError::Wrong("of a name without colons and control characters")) }
}

/// Resolves earlier names of CouchDB and other aliases.
pub(crate) fn canonical<'n>(section: &'n str, key: &'n str) -> (&'n str, &'n str) {
    match section {
        "httpd" if MOVED.contains(&key) => ("chttpd", key),
        "couch_httpd_auth" | "chttpd_auth" if OF_VALID_USERS.contains(&key) => ("chttpd", key),
        "couch_httpd_auth" => ("chttpd_auth", key),
        _ => (section, key),
    }
}

/// Returns the other sections that a setting is read from. Tools look for a value where they have set it.
pub(crate) fn aliases(section: &str, key: &str) -> &'static [&'static str] {
    match section {
        "chttpd" if MOVED.contains(&key) => &["httpd"],
        "chttpd" if OF_VALID_USERS.contains(&key) => &["chttpd_auth", "couch_httpd_auth"],
        "chttpd_auth" => &["couch_httpd_auth"],
        _ => &[],
    }
}

/// True for the [canonical] name of a setting that has an effect.
pub(crate) fn is_implemented(section: &str, key: &str) -> bool {
    KEYS.iter().any(|found| (found.section, found.key) == (section, key))
        || (section == LIMITS && LIMIT_NAMES.iter().any(|(name, _)| *name == key))
        || section == "admins"
        || (named(section, "jwt_auth").is_some() && JWT_KEYS.iter().any(|found| found.key == key))
        || named(section, "jwt_keys").is_some()
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
    Err(SettingError::Unknown)
}

pub(crate) fn check(section: &str, key: &str, text: &str) -> SettingResult {
    apply(&mut Settings::default(), section, key, text)
}

fn set<T>(place: &mut T, value: Result<T, SettingError>) -> SettingResult {
    *place = value?;
    Ok(())
}

fn set_parsed<T>(place: &mut T, text: &str, parse: impl Fn(&str) -> Result<T, SettingError>) -> SettingResult {
    set(place, parse(text))
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

pub(crate) fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// As [`number`], but a larger number counts as the largest one: the defaults of CouchDB and the values of set-up tools
/// must be accepted. The registry has the settings, so that the answer warns.
fn capped<N: FromStr + PartialOrd + Copy>(
    text: &str,
    range: RangeInclusive<N>,
    what: &'static str,
) -> Result<N, SettingError> {
    let most = *range.end();
    match text.parse::<N>() {
        Ok(found) if found > most => Ok(most),
        // The type has no such number.
        Err(_) if is_digits(text) => Ok(most),
        _ => number(text, range, what),
    }
}

/// Parses a limit of bytes. The least one leaves room for the request that changes it.
fn bytes(text: &str) -> Result<u64, SettingError> {
    if text == INFINITY {
        return Ok(u64::MAX);
    }
    capped(text, 1_000..=u64::MAX, "a number of bytes from 1000, or infinity")
}

/// Parses a number from 1; `None`: no bound.
fn count(text: &str) -> Result<Option<u64>, SettingError> {
    if text == INFINITY {
        return Ok(None);
    }
    number(text, 1..=u64::MAX, "a number from 1, or infinity").map(Some)
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

/// Parses the name of a header that proxies set, and that pages of other origins cannot set: pages would otherwise
/// choose the address that the server takes for its own.
fn proxy_header(text: &str) -> Result<String, SettingError> {
    let name = header(text)?;
    if name.starts_with("x-") { Ok(name) } else { Err(SettingError::Wrong("the name of a header that begins with X-")) }
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests;
