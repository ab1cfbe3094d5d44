//! The registry of settings: what each setting of CouchDB does here.
//!
//! `keys/table.rs` has the settings with an effect, and `default_ini.rs` the names that CouchDB knows. This module
//! decides for any name which of the two applies, or which setting of Flatbed's does the work instead.

use flatbed_auth::ITERATIONS_MAX;
use flatbed_layer::ATTACHMENT_BYTES_MAX;

use super::default_ini::DEFAULT_INI;
use super::keys;
use super::settings::{
    DBS_INFO_MAX, DOCUMENT_BYTES_MAX, FEED_WAIT_MS_MAX, PREFLIGHT_SECONDS_MAX, REQUEST_BYTES_MAX, SESSION_SECONDS_MAX,
    UUIDS_MAX,
};

/// The effect of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingEffect<'s> {
    /// It takes effect.
    Implemented,
    /// It is another name of the setting with this section and key, which takes effect.
    Alias(&'s str, &'s str),
    /// It has no effect, because Flatbed always behaves as with this value.
    Fixed(&'static str),
    /// It has no effect; this setting of the server's start has it.
    AtStart(&'static str),
    /// It has no effect.
    Unused,
    /// It cannot be changed over HTTP, as in CouchDB.
    Closed,
}

/// Section, key and the value that Flatbed's behaviour has.
const FIXED: &[(&str, &str, &str)] = &[
    ("chttpd", "bulk_get_use_batches", "true"),
    ("chttpd", "scrub_json_request", "true"),
    ("chttpd", "server_header_versions", "true"),
    ("chttpd_auth", "authentication_db", "_users"),
    ("chttpd_auth", "iterations", "600000"),
    ("chttpd_auth", "password_scheme", "pbkdf2"),
    ("chttpd_auth", "pbkdf2_prf", "sha256"),
    ("chttpd_auth", "proxy_use_secret", "true"),
    ("chttpd_auth", "users_db_public", "false"),
    ("couchdb", "js_engine", "quickjs"),
    ("couchdb", "os_process_timeout", "5000"),
    ("couchdb", "single_node", "true"),
    ("log", "writer", "stderr"),
    ("query_server_config", "reduce_limit", "true"),
    ("replicator", "use_bulk_get", "true"),
    ("replicator", "verify_ssl_certificates", "true"),
];

/// Section, key and the setting of the server's start that does the same.
const AT_START: &[(&str, &str, &str)] = &[
    ("chttpd", "bind_address", "listen"),
    ("chttpd", "port", "listen"),
    ("couchdb", "database_dir", "data_dir"),
    ("couchdb", "view_index_dir", "data_dir"),
    ("httpd", "bind_address", "listen"),
    ("httpd", "port", "listen"),
    ("log", "file", "log_file"),
    ("replicator", "max_jobs", "replication_jobs"),
    ("replicator", "ssl_trusted_certificates_file", "replication_ca"),
    ("ssl", "cert_file", "tls_certificate"),
    ("ssl", "key_file", "tls_key"),
    ("ssl", "port", "listen"),
];

/// Section, key and the largest number that takes effect. A larger one is stored, and counts as this number.
const CAPPED: &[(&str, &str, u64)] = &[
    ("chttpd", "changes_timeout", FEED_WAIT_MS_MAX),
    ("chttpd", "max_db_number_for_dbs_info_req", DBS_INFO_MAX as u64),
    ("chttpd", "max_http_request_size", REQUEST_BYTES_MAX),
    ("chttpd_auth", "max_iterations", ITERATIONS_MAX as u64),
    ("chttpd_auth", "timeout", SESSION_SECONDS_MAX),
    ("cors", "max_age", PREFLIGHT_SECONDS_MAX as u64),
    ("couchdb", "max_attachment_size", ATTACHMENT_BYTES_MAX),
    ("couchdb", "max_document_size", DOCUMENT_BYTES_MAX),
    ("uuids", "max_count", UUIDS_MAX),
];

/// Returns the settings of `default.ini` of CouchDB 3.5.2: section, key and default, sorted.
pub fn couchdb_settings() -> &'static [(&'static str, &'static str, &'static str)] {
    DEFAULT_INI
}

/// Returns the effect of a setting.
pub fn effect<'s>(section: &'s str, key: &'s str) -> SettingEffect<'s> {
    if keys::is_closed(section) {
        return SettingEffect::Closed;
    }
    let (of, name) = keys::canonical(section, key);
    if keys::is_implemented(of, name) {
        let is_alias = (of, name) != (section, key);
        return if is_alias { SettingEffect::Alias(of, name) } else { SettingEffect::Implemented };
    }
    if let Some(value) = named(FIXED, of, name) {
        return SettingEffect::Fixed(value);
    }
    named(AT_START, of, name).map_or(SettingEffect::Unused, SettingEffect::AtStart)
}

fn named(list: &[(&'static str, &'static str, &'static str)], section: &str, key: &str) -> Option<&'static str> {
    list.iter().find(|(of, name, _)| (*of, *name) == (section, key)).map(|(_, _, value)| *value)
}

/// True if a stored value does nothing: the setting is unknown, or Flatbed behaves otherwise.
pub(super) fn is_unused(section: &str, key: &str, text: &str) -> bool {
    match effect(section, key) {
        SettingEffect::Implemented | SettingEffect::Alias(..) => false,
        SettingEffect::Fixed(value) => value != text.trim(),
        SettingEffect::AtStart(_) | SettingEffect::Unused | SettingEffect::Closed => true,
    }
}

/// Returns the warning about a value that is stored, but does nothing or less than it says.
pub fn warning(section: &str, key: &str, text: &str) -> Option<String> {
    let text = text.trim();
    let unused =
        is_unused(section, key, text).then(|| format!("{section}/{key} is stored and has no effect in Flatbed"));
    match effect(section, key) {
        SettingEffect::Fixed(value) => unused.map(|unused| format!("{unused}, which behaves as with {value}")),
        SettingEffect::AtStart(name) => {
            unused.map(|unused| format!("{unused}; set {name} where the server is started"))
        }
        SettingEffect::Implemented | SettingEffect::Alias(..) => {
            let (of, name) = keys::canonical(section, key);
            let (_, _, most) = CAPPED.iter().find(|(section, key, _)| (*section, *key) == (of, name))?;
            let is_within = !keys::is_digits(text) || text.parse::<u64>().is_ok_and(|number| number <= *most);
            let is_beyond = text == keys::INFINITY || !is_within;
            is_beyond.then(|| format!("{section}/{key} is stored, and counts as {most} in Flatbed, its largest value"))
        }
        SettingEffect::Unused | SettingEffect::Closed => unused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn couchdbs_settings_are_sorted_and_named_once() {
        let names: Vec<_> = couchdb_settings().iter().map(|(section, key, _)| (section, key)).collect();
        assert!(names.is_sorted_by(|one, other| one < other) && names.len() > 300, "{}", names.len());
    }

    #[test]
    fn what_a_setting_does() {
        for (section, key, expected) in [
            ("chttpd", "enable_cors", SettingEffect::Implemented),
            ("httpd", "enable_cors", SettingEffect::Alias("chttpd", "enable_cors")),
            ("couch_httpd_auth", "timeout", SettingEffect::Alias("chttpd_auth", "timeout")),
            ("chttpd_auth", "require_valid_user", SettingEffect::Alias("chttpd", "require_valid_user")),
            ("couch_httpd_auth", "iterations", SettingEffect::Fixed("600000")),
            ("ssl", "port", SettingEffect::AtStart("listen")),
            ("couchdb", "max_dbs_open", SettingEffect::Unused),
            ("mine", "key", SettingEffect::Unused),
            ("query_servers", "javascript", SettingEffect::Closed),
            ("jwt_auth:a", "issuer", SettingEffect::Implemented),
            ("limits", "head_seconds", SettingEffect::Implemented),
        ] {
            assert_eq!(effect(section, key), expected, "{section}/{key}");
        }
    }

    #[test]
    fn only_a_value_without_its_effect_has_a_warning() {
        for (section, key, text) in [
            ("chttpd", "enable_cors", "true"),
            ("httpd", "enable_cors", "true"),
            ("chttpd_auth", "proxy_use_secret", "true"),
            ("couchdb", "single_node", " true "),
            ("couchdb", "max_document_size", "8000000"),
            ("couch_httpd_auth", "max_iterations", "2000000"),
        ] {
            assert_eq!(warning(section, key, text), None, "{section}/{key}");
        }
        for (section, key, text, expected) in [
            ("couchdb", "max_dbs_open", "5", "couchdb/max_dbs_open is stored and has no effect in Flatbed"),
            (
                "chttpd_auth",
                "proxy_use_secret",
                "false",
                "chttpd_auth/proxy_use_secret is stored and has no effect in Flatbed, which behaves as with true",
            ),
            (
                "httpd",
                "max_http_request_size",
                "4294967296",
                "httpd/max_http_request_size is stored, and counts as 67108864 in Flatbed, its largest value",
            ),
            (
                "chttpd_auth",
                "timeout",
                "99999999999999999999999",
                "chttpd_auth/timeout is stored, and counts as 31536000 in Flatbed, its largest value",
            ),
            (
                "couchdb",
                "max_attachment_size",
                "infinity",
                "couchdb/max_attachment_size is stored, and counts as 1073741824 in Flatbed, its largest value",
            ),
            (
                "chttpd",
                "port",
                "80",
                "chttpd/port is stored and has no effect in Flatbed; set listen where the server is started",
            ),
        ] {
            assert_eq!(warning(section, key, text).as_deref(), Some(expected));
        }
    }
}
