//! Settings with a fixed section and key.

use flatbed_auth::session::SameSite;
use flatbed_auth::users::PublicFields;
use flatbed_auth::{ITERATIONS, ITERATIONS_MAX, lockout};
use flatbed_network::Blocks;

use super::super::password_rules::PasswordRules;
use super::super::settings::{DBS_INFO_MAX, PREFLIGHT_SECONDS_MAX, SESSION_SECONDS_MAX, UUIDS_MAX, UuidAlgorithm};
use super::{
    SettingError, SettingKey, bytes, capped, count, flag, header, levels, list, number, proxy_header, set, some,
};

/// Settings with a fixed section and key. [`apply`](super::apply) handles the others.
pub(crate) const KEYS: &[SettingKey] = &[
    SettingKey {
        section: "chttpd",
        key: "WWW-Authenticate",
        default: "",
        apply: |settings, text| {
            let fits = text.len() <= 500 && text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
            let challenge = fits.then(|| some(text)).ok_or(SettingError::Wrong("the value of a header, or empty"));
            set(&mut settings.auth.challenge, challenge)
        },
    },
    SettingKey {
        section: "chttpd",
        key: "admin_only_all_dbs",
        default: "true",
        apply: |settings, text| set(&mut settings.auth.admin_only_all_dbs, flag(text)),
    },
    SettingKey {
        section: "chttpd",
        key: "changes_timeout",
        default: "60000",
        apply: |settings, text| set(&mut settings.limits.feed_wait_ms, count(text)),
    },
    SettingKey {
        section: "chttpd",
        key: "decode_plus_to_space",
        default: "true",
        apply: |settings, text| set(&mut settings.keeps_plus, flag(text).map(|is_space| !is_space)),
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
        apply: |settings, text| set(&mut settings.limits.dbs_info, capped(text, 1..=DBS_INFO_MAX, "a number from 1")),
    },
    SettingKey {
        section: "chttpd",
        key: "max_http_request_size",
        default: "67108864",
        apply: |settings, text| set(&mut settings.limits.request_bytes, bytes(text)),
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
        section: "chttpd",
        key: "x_forwarded_host",
        default: "X-Forwarded-Host",
        apply: |settings, text| set(&mut settings.forwarding.host_header, proxy_header(text)),
    },
    SettingKey {
        section: "chttpd",
        key: "x_forwarded_proto",
        default: "X-Forwarded-Proto",
        apply: |settings, text| set(&mut settings.forwarding.proto_header, proxy_header(text)),
    },
    SettingKey {
        section: "chttpd",
        key: "x_forwarded_ssl",
        default: "X-Forwarded-Ssl",
        apply: |settings, text| set(&mut settings.forwarding.ssl_header, proxy_header(text)),
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
            let most = capped(text, ITERATIONS..=ITERATIONS_MAX, "a number from 600000, which new hashes have");
            set(&mut settings.auth.max_iterations, most)
        },
    },
    SettingKey {
        section: "chttpd_auth",
        key: "password_regexp",
        default: "[]",
        apply: |settings, text| {
            let wrong = SettingError::Wrong("a list of expressions such as [{\".{10,}\", \"REASON\"}, \"\\\\d\"]");
            set(&mut settings.auth.password_rules, PasswordRules::parse(text).ok_or(wrong))
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
            let seconds = capped(text, 1..=SESSION_SECONDS_MAX, "a number of seconds from 1");
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
            let mode = lockout::LockoutMode::named(text).ok_or(SettingError::Wrong("off, warn or enforce"));
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
            set(&mut settings.cors.max_age_s, capped(text, 0..=PREFLIGHT_SECONDS_MAX, "a number of seconds"))
        },
    },
    SettingKey {
        section: "cors",
        key: "methods",
        default: "",
        apply: |settings, text| {
            let method = |name: String| {
                let fits = name.len() <= 20 && name.bytes().all(|byte| byte.is_ascii_alphabetic());
                fits.then(|| name.to_ascii_uppercase()).ok_or(SettingError::Wrong("methods such as GET,PUT"))
            };
            set(&mut settings.cors.methods, list(text).into_iter().map(method).collect())
        },
    },
    SettingKey {
        section: "cors",
        key: "origins",
        default: "",
        apply: |settings, text| set(&mut settings.cors.origins, Ok(list(text))),
    },
    SettingKey {
        section: "couch_peruser",
        key: "database_prefix",
        default: "userdb-",
        apply: |settings, text| {
            let is_sign = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_$()+/-".contains(&byte);
            let fits = text.len() <= 100
                && text.starts_with(|first: char| first.is_ascii_lowercase())
                && text.bytes().all(is_sign);
            let prefix = fits.then(|| text.to_owned());
            set(&mut settings.per_user.database_prefix, prefix.ok_or(SettingError::Wrong("the beginning of a name")))
        },
    },
    SettingKey {
        section: "couch_peruser",
        key: "delete_dbs",
        default: "false",
        apply: |settings, text| set(&mut settings.per_user.deletes_databases, flag(text)),
    },
    SettingKey {
        section: "couch_peruser",
        key: "enable",
        default: "false",
        apply: |settings, text| set(&mut settings.per_user.is_enabled, flag(text)),
    },
    SettingKey {
        section: "couch_peruser",
        key: "q",
        default: "",
        apply: |settings, text| {
            let q = match text {
                "" => Ok(None),
                text => number(text, 1..=u16::MAX, "a number from 1 to 65535, or empty").map(Some),
            };
            set(&mut settings.per_user.q, q)
        },
    },
    SettingKey {
        section: "couchdb",
        key: "default_security",
        default: "admin_only",
        apply: |settings, text| {
            let opens = match text {
                "admin_only" => Ok(false),
                "admin_local" | "everyone" => Ok(true),
                _ => Err(SettingError::Wrong("admin_only, admin_local or everyone")),
            };
            set(&mut settings.opens_databases, opens)
        },
    },
    SettingKey {
        section: "couchdb",
        key: "maintenance_mode",
        default: "false",
        apply: |settings, text| {
            let status = match text {
                "false" => Ok(None),
                "true" => Ok(Some("maintenance_mode")),
                "nolb" => Ok(Some("nolb")),
                _ => Err(SettingError::Wrong("true, false or nolb")),
            };
            set(&mut settings.maintenance, status)
        },
    },
    SettingKey {
        section: "couchdb",
        key: "max_attachment_size",
        default: "1073741824",
        apply: |settings, text| set(&mut settings.limits.attachment_bytes, bytes(text)),
    },
    SettingKey {
        section: "couchdb",
        key: "max_document_size",
        default: "8000000",
        apply: |settings, text| set(&mut settings.limits.document_bytes, bytes(text)),
    },
    SettingKey {
        section: "couchdb",
        key: "max_partition_size",
        default: "0",
        apply: |settings, text| {
            // Less than 0 is no bound, too.
            let bytes = number(text, i64::MIN..=i64::MAX, "a number of bytes; 0 for no bound");
            set(&mut settings.limits.partition_bytes, bytes.map(|bytes| u64::try_from(bytes).unwrap_or(0)))
        },
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
        section: "mango",
        key: "default_limit",
        default: "25",
        apply: |settings, text| {
            let most = number(text, 0..=1_000_000_000, "a number up to 1000000000");
            set(&mut settings.limits.find_documents, most)
        },
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
    SettingKey {
        section: "query_server_config",
        key: "partition_query_limit",
        default: "infinity",
        apply: |settings, text| set(&mut settings.limits.partition_view_rows, count(text)),
    },
    SettingKey {
        section: "query_server_config",
        key: "query_limit",
        default: "infinity",
        apply: |settings, text| set(&mut settings.limits.view_rows, count(text)),
    },
    SettingKey {
        section: "replicator",
        key: "checkpoint_interval",
        default: "30000",
        apply: |settings, text| {
            let milliseconds = number(text, 1..=86_400_000, "a number of milliseconds from 1 to 86400000");
            set(&mut settings.replication.checkpoint_interval_ms, milliseconds)
        },
    },
    SettingKey {
        section: "replicator",
        key: "use_checkpoints",
        default: "true",
        apply: |settings, text| set(&mut settings.replication.use_checkpoints, flag(text)),
    },
    SettingKey {
        section: "uuids",
        key: "algorithm",
        default: "sequential",
        apply: |settings, text| {
            let algorithm = match text {
                "sequential" => Ok(UuidAlgorithm::Sequential),
                "random" => Ok(UuidAlgorithm::Random),
                "utc_random" => Ok(UuidAlgorithm::UtcRandom),
                "utc_id" => Ok(UuidAlgorithm::UtcId),
                "uuid_v7" => Ok(UuidAlgorithm::UuidV7),
                _ => Err(SettingError::Wrong("sequential, random, utc_random, utc_id or uuid_v7")),
            };
            set(&mut settings.uuids.algorithm, algorithm)
        },
    },
    SettingKey {
        section: "uuids",
        key: "max_count",
        default: "1000",
        apply: |settings, text| set(&mut settings.uuids.count_max, capped(text, 1..=UUIDS_MAX, "a number from 1")),
    },
    SettingKey {
        section: "uuids",
        key: "utc_id_suffix",
        default: "",
        apply: |settings, text| {
            let fits = text.len() <= 100 && text.bytes().all(|byte| byte.is_ascii_graphic());
            let suffix = fits.then(|| text.to_owned());
            let wrong = SettingError::Wrong("up to 100 printable ASCII characters without spaces");
            set(&mut settings.uuids.utc_id_suffix, suffix.ok_or(wrong))
        },
    },
];
