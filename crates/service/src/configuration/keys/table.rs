//! Settings with a fixed section and key.

use flatbed_auth::session::SameSite;
use flatbed_auth::users::PublicFields;
use flatbed_auth::{ITERATIONS, ITERATIONS_MAX, lockout};
use flatbed_network::Blocks;

use super::super::password_rules::PasswordRules;
use super::super::settings::{DBS_INFO_MAX, PREFLIGHT_SECONDS_MAX, SESSION_SECONDS_MAX, UUIDS_MAX, UuidAlgorithm};
use super::{
    SettingError, SettingKey, bytes, capped, count, flag, header, levels, list, number, proxy_header, set_parsed, some,
};

/// Makes the table. A row is `KEY = DEFAULT => FIELD OF THE SETTINGS: PARSER`.
macro_rules! keys {
    ($($section:literal { $($key:literal = $default:literal => $($field:ident).+: $parse:expr;)+ })+) => {
        /// Settings with a fixed section and key. [`apply`](super::apply) handles the others.
        pub(crate) const KEYS: &[SettingKey] = &[$($(
            SettingKey {
                section: $section,
                key: $key,
                default: $default,
                apply: |settings, text| set_parsed(&mut settings.$($field).+, text, $parse),
            },
        )+)+];
    };
}

keys! {
    "chttpd" {
        "WWW-Authenticate" = "" => auth.challenge: |text| {
            let fits = text.len() <= 500 && text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
            fits.then(|| some(text)).ok_or(SettingError::Wrong("the value of a header, or empty"))
        };
        "admin_only_all_dbs" = "true" => auth.admin_only_all_dbs: flag;
        "changes_timeout" = "60000" => limits.feed_wait_ms: count;
        "decode_plus_to_space" = "true" => keeps_plus: |text| flag(text).map(|is_space| !is_space);
        "enable_cors" = "false" => cors.is_enabled: flag;
        "max_db_number_for_dbs_info_req" = "100" => limits.dbs_info:
            |text| capped(text, 1..=DBS_INFO_MAX, "a number from 1");
        "max_http_request_size" = "67108864" => limits.request_bytes: bytes;
        "require_valid_user" = "false" => auth.require_valid_user: flag;
        "require_valid_user_except_for_up" = "false" => auth.require_valid_user_except_for_up: flag;
        "secure_rewrites" = "true" => insecure_rewrites: |text| flag(text).map(|is_secure| !is_secure);
        "x_forwarded_host" = "X-Forwarded-Host" => forwarding.host_header: proxy_header;
        "x_forwarded_proto" = "X-Forwarded-Proto" => forwarding.proto_header: proxy_header;
        "x_forwarded_ssl" = "X-Forwarded-Ssl" => forwarding.ssl_header: proxy_header;
    }
    "chttpd_auth" {
        "allow_persistent_cookies" = "true" => auth.allow_persistent_cookies: flag;
        "cookie_domain" = "" => auth.cookie_domain: |text| {
            let is_domain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte));
            let domain = (text.len() <= 253 && is_domain(text)).then(|| some(text));
            domain.ok_or(SettingError::Wrong("a domain, or empty"))
        };
        "max_iterations" = "2000000" => auth.max_iterations: |text| {
            // A lower bound would lock out users with hashes of this server, administrators among them.
            capped(text, ITERATIONS..=ITERATIONS_MAX, "a number from 600000, which new hashes have")
        };
        "password_regexp" = "[]" => auth.password_rules: |text| {
            let wrong = SettingError::Wrong("a list of expressions such as [{\".{10,}\", \"REASON\"}, \"\\\\d\"]");
            PasswordRules::parse(text).ok_or(wrong)
        };
        "public_fields" = "" => auth.public_fields: |text| Ok(PublicFields::parse(text));
        "same_site" = "Lax" => auth.same_site: |text| {
            let named = if text.is_empty() { Some(None) } else { SameSite::from_name(text).map(Some) };
            named.ok_or(SettingError::Wrong("None, Lax, Strict, or empty"))
        };
        "timeout" = "600" => auth.timeout_s:
            |text| capped(text, 1..=SESSION_SECONDS_MAX, "a number of seconds from 1");
        "upgrade_hash_on_auth" = "true" => auth.rehash: flag;
        "x_auth_roles" = "X-Auth-CouchDB-Roles" => auth.proxy.roles_header: header;
        "x_auth_token" = "X-Auth-CouchDB-Token" => auth.proxy.token_header: header;
        "x_auth_username" = "X-Auth-CouchDB-UserName" => auth.proxy.user_header: header;
    }
    "chttpd_auth_lockout" {
        "max_lifetime" = "300000" => auth.lockout.max_lifetime:
            |text| number(text, 1..=86_400_000, "a number of milliseconds from 1 to 86400000");
        "max_objects" = "10000" => auth.lockout.max_objects:
            |text| number(text, 1..=1_000_000, "a number from 1 to 1000000");
        "mode" = "enforce" => auth.lockout.mode:
            |text| lockout::LockoutMode::from_name(text).ok_or(SettingError::Wrong("off, warn or enforce"));
        "threshold" = "5" => auth.lockout.threshold: |text| number(text, 1..=1_000_000, "a number from 1 to 1000000");
    }
    "cors" {
        "credentials" = "false" => cors.credentials: flag;
        "headers" = "" => cors.headers: |text| list(text).into_iter().map(|name| header(&name)).collect();
        "max_age" = "0" => cors.max_age_s: |text| capped(text, 0..=PREFLIGHT_SECONDS_MAX, "a number of seconds");
        "methods" = "" => cors.methods: |text| {
            let method = |name: String| {
                let fits = name.len() <= 20 && name.bytes().all(|byte| byte.is_ascii_alphabetic());
                fits.then(|| name.to_ascii_uppercase()).ok_or(SettingError::Wrong("methods such as GET,PUT"))
            };
            list(text).into_iter().map(method).collect()
        };
        "origins" = "" => cors.origins: |text| Ok(list(text));
    }
    "couch_peruser" {
        "database_prefix" = "userdb-" => per_user.database_prefix: |text| {
            let is_sign = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_$()+/-".contains(&byte);
            let fits = text.len() <= 100
                && text.starts_with(|first: char| first.is_ascii_lowercase())
                && text.bytes().all(is_sign);
            let prefix = fits.then(|| text.to_owned());
            prefix.ok_or(SettingError::Wrong("the beginning of a name"))
        };
        "delete_dbs" = "false" => per_user.deletes_databases: flag;
        "enable" = "false" => per_user.is_enabled: flag;
        "q" = "" => per_user.q: |text| match text {
            "" => Ok(None),
            text => number(text, 1..=u16::MAX, "a number from 1 to 65535, or empty").map(Some),
        };
    }
    "couchdb" {
        "default_security" = "admin_only" => opens_databases: |text| match text {
            "admin_only" => Ok(false),
            "admin_local" | "everyone" => Ok(true),
            _ => Err(SettingError::Wrong("admin_only, admin_local or everyone")),
        };
        "maintenance_mode" = "false" => maintenance: |text| match text {
            "false" => Ok(None),
            "true" => Ok(Some("maintenance_mode")),
            "nolb" => Ok(Some("nolb")),
            _ => Err(SettingError::Wrong("true, false or nolb")),
        };
        "max_attachment_size" = "1073741824" => limits.attachment_bytes: bytes;
        "max_document_size" = "8000000" => limits.document_bytes: bytes;
        "max_partition_size" = "0" => limits.partition_bytes: |text| {
            // Less than 0 is no bound, too.
            let bytes = number(text, i64::MIN..=i64::MAX, "a number of bytes; 0 for no bound");
            bytes.map(|bytes| u64::try_from(bytes).unwrap_or(0))
        };
        "users_db_security_editable" = "false" => auth.users_db_security_editable: flag;
    }
    "log" {
        "level" = "info" => log.level: levels;
    }
    "mango" {
        "default_limit" = "25" => limits.find_documents:
            |text| number(text, 0..=1_000_000_000, "a number up to 1000000000");
    }
    "proxy_auth" {
        "peers" = "" => auth.proxy.peers: |text| {
            // A client without an address is no known proxy.
            let peers = text.parse::<Blocks>().ok().filter(|peers| !peers.contains(None));
            let wrong = SettingError::Wrong("addresses such as 10.0.0.1 or 10.0.0.0/8");
            peers.ok_or(wrong)
        };
        "trusts_system_roles" = "false" => auth.proxy.trusts_system_roles: flag;
    }
    "query_server_config" {
        "partition_query_limit" = "infinity" => limits.partition_view_rows: count;
        "query_limit" = "infinity" => limits.view_rows: count;
    }
    "replicator" {
        "checkpoint_interval" = "30000" => replication.checkpoint_interval_ms:
            |text| number(text, 1..=86_400_000, "a number of milliseconds from 1 to 86400000");
        "use_checkpoints" = "true" => replication.use_checkpoints: flag;
    }
    "uuids" {
        "algorithm" = "sequential" => uuids.algorithm: |text| match text {
            "sequential" => Ok(UuidAlgorithm::Sequential),
            "random" => Ok(UuidAlgorithm::Random),
            "utc_random" => Ok(UuidAlgorithm::UtcRandom),
            "utc_id" => Ok(UuidAlgorithm::UtcId),
            "uuid_v7" => Ok(UuidAlgorithm::UuidV7),
            _ => Err(SettingError::Wrong("sequential, random, utc_random, utc_id or uuid_v7")),
        };
        "max_count" = "1000" => uuids.count_max: |text| capped(text, 1..=UUIDS_MAX, "a number from 1");
        "utc_id_suffix" = "" => uuids.utc_id_suffix: |text| {
            let fits = text.len() <= 100 && text.bytes().all(|byte| byte.is_ascii_graphic());
            let suffix = fits.then(|| text.to_owned());
            let wrong = SettingError::Wrong("up to 100 printable ASCII characters without spaces");
            suffix.ok_or(wrong)
        };
    }
}
