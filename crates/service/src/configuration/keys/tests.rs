//! The names of settings and their parsers.

use super::*;
use crate::configuration::{Configuration, Source, Values};

#[test]
fn defaults_are_what_is_shown_for_them() {
    let mut settings = Settings::default();
    for key in KEYS {
        (key.apply)(&mut settings, key.default).unwrap_or_else(|error| panic!("{}: {error}", key.key));
        assert_eq!(settings, Settings::default(), "{}/{}", key.section, key.key);
        assert!(!is_closed(key.section), "{}", key.section);
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
        ("chttpd", "x_forwarded_host", ""),
        ("chttpd", "x_forwarded_host", "Origin"),
        ("chttpd", "x_forwarded_proto", "x y"),
        ("chttpd_auth", "timeout", "0"),
        ("chttpd_auth", "password_regexp", "[\"(\"]"),
        ("chttpd_auth", "cookie_domain", "a; Secure"),
        ("chttpd_auth", "same_site", "lax, Domain=x"),
        ("chttpd_auth", "max_iterations", "599999"),
        ("cors", "headers", "a,b c"),
        ("cors", "methods", "GET,P T"),
        ("chttpd", "WWW-Authenticate", "Basic\r\nx: y"),
        ("couchdb", "max_document_size", "999"),
        ("couchdb", "default_security", "nobody"),
        ("couchdb", "maintenance_mode", "yes"),
        ("couch_peruser", "database_prefix", "User-"),
        ("couch_peruser", "q", "0"),
        ("query_server_config", "query_limit", "0"),
        ("uuids", "algorithm", "uuid_v9"),
        ("uuids", "max_count", "0"),
        ("chttpd_auth", "timeout", "-1"),
        ("cors", "max_age", "1e9"),
        ("uuids", "utc_id_suffix", "a b"),
        ("couchdb", "max_attachment_size", "-1"),
        ("couchdb", "max_partition_size", "large"),
        ("chttpd", "max_http_request_size", "much"),
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
    for (section, key) in [("couchdb", "max_dbs_open"), ("jwt_auth", "x"), ("cors:a", "b"), ("mine", "key")] {
        assert_eq!(check(section, key, "x"), Err(SettingError::Unknown), "{section}/{key}");
        assert_eq!(check_stored(section, key, "x"), Ok(()), "{section}/{key}");
    }
}

#[test]
fn numbers_above_the_largest_one_count_as_it() {
    let mut settings = Settings::default();
    for text in ["1000000000", "99999999999999999999"] {
        for (section, key) in [
            ("chttpd", "max_db_number_for_dbs_info_req"),
            ("chttpd_auth", "max_iterations"),
            ("chttpd_auth", "timeout"),
            ("cors", "max_age"),
            ("couchdb", "max_attachment_size"),
            ("uuids", "max_count"),
        ] {
            assert_eq!(apply(&mut settings, section, key, text), Ok(()), "{section}/{key}");
        }
        assert_eq!((settings.limits.dbs_info, settings.auth.max_iterations), (1_000, 2_000_000));
        assert_eq!((settings.auth.timeout_s, settings.cors.max_age_s), (31_536_000, 86_400));
        assert_eq!(settings.uuids.count_max, 10_000);
    }
    assert_eq!(settings.limits.attachment_bytes, u64::MAX);
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
fn defaults_are_shown_under_each_name() {
    let shown = Configuration::new(Values::default()).now().shown();
    // Tools read members of this section without asking whether it exists.
    assert_eq!((shown["httpd"]["WWW-Authenticate"].as_str(), shown["httpd"]["enable_cors"].as_str()), ("", "false"));
    assert_eq!(
        (&shown["couch_httpd_auth"]["timeout"], &shown["chttpd_auth"]["timeout"]),
        (&"600".into(), &"600".into())
    );
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

#[test]
fn names_and_values_have_couchdbs_form() {
    for (section, key, what) in [("", "k", "section"), ("a[b", "k", "section"), ("s", "k]", "key"), ("s", "k\n", "key")]
    {
        assert_eq!(check_storable(section, key), Err(SettingError::Form(what)), "{section:?}/{key:?}");
    }
    assert_eq!(check_stored("s", "k", "a\nb"), Err(SettingError::Form("value")));
    assert_eq!(check_stored("s", "k", "[{nodelay, true}]\té"), Ok(()));
    assert_eq!(check_storable("query_servers", "javascript"), Err(SettingError::Closed));
    assert_eq!(check_storable("jwt_auth", "jwks_file"), Err(SettingError::OnlyAtStart));
}

#[test]
fn an_alias_leads_back_to_its_setting() {
    for key in KEYS {
        assert_eq!(canonical(key.section, key.key), (key.section, key.key));
        for section in aliases(key.section, key.key) {
            assert_eq!(canonical(section, key.key), (key.section, key.key), "{section}");
        }
    }
    assert_eq!(canonical("httpd", "port"), ("httpd", "port"));
}
