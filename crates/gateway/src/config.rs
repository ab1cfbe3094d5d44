//! Parses a database's configuration, at creation and in `_config`.

use flatbed_channels::{PrincipalKind, PrincipalRequest};
use flatbed_http::{Reply, TenantReply};
use flatbed_layer::json::{self, Value};
use flatbed_layer::{ChannelsOptions, CreateOptions, Error as LayerError, Refusal};
use flatbed_service::{Administer, Administration, Own};
use hyper::{Method, StatusCode, header};

use crate::error::{Failure, Result};
use crate::principals::{must_have_channels, put};
use crate::reply::{self, empty};
use crate::request::{Request, object};

/// The default sync function.
const DEFAULT_FUNCTION: &str = "function(doc){channel(doc.channels);}";

/// The largest number of users and of roles in a configuration.
const PRINCIPALS_MAX: usize = 100;

/// Members that are accepted and ignored, because they concern Couchbase buckets or Sync Gateway's internals.
const PASSED_OVER: &[&str] = &[
    "name",
    "server",
    "pool",
    "bucket",
    "username",
    "password",
    "use_views",
    "num_index_replicas",
    "enable_shared_bucket_access",
    "import_docs",
    "import_backup_old_rev",
    "cache",
    "unsupported",
    "deprecated",
    "delta_sync",
    "old_rev_expiry_seconds",
    "view_query_timeout_secs",
    "local_doc_expiry_secs",
    "compact_interval_days",
    "bucket_op_timeout_ms",
    "feed_type",
    "slow_query_warning_threshold",
    "rev_cache_size",
    "kv_tls_port",
    "sgreplicate_enabled",
    "sgreplicate_websocket_heartbeat_secs",
    "query_pagination_limit",
    "client_partition_window_secs",
    "certpath",
    "keypath",
    "cacertpath",
];

/// Members that would change behaviour and are not supported. A configuration with one is refused.
const NOT_YET: &[&str] = &[
    "allow_conflicts",
    "allow_empty_password",
    "session_cookie_name",
    "session_cookie_http_only",
    "session_cookie_secure",
    "send_www_authenticate_header",
    "serve_insecure_attachment_types",
    "import_filter",
    "user_xattr_key",
    "replications",
    "oidc",
    "event_handlers",
];

/// The supported part of a configuration.
#[derive(Debug, Default, PartialEq)]
struct Configuration {
    sync: Option<String>,
    revs_limit: Option<u64>,
    offline: Option<bool>,
    /// Names and JSON bodies.
    users: Vec<(String, Vec<u8>)>,
    roles: Vec<(String, Vec<u8>)>,
}

impl Configuration {
    fn parse(text: &[u8]) -> Result<Configuration> {
        let Value::Object(members) = object(text)? else { return Err(Failure::bad_request("Bad JSON")) };
        let mut configuration = Configuration::default();
        let wrong = |name: &str| Failure::bad_request(format!("Bad JSON: {name} is of another kind"));
        for (name, value) in members {
            match (&*name, value) {
                (_, Value::Null) => {}
                ("sync", Value::String(source)) => configuration.sync = Some(source.into_owned()),
                ("revs_limit", Value::Number(limit)) => {
                    configuration.revs_limit = Some(limit.parse().map_err(|_| wrong("revs_limit"))?);
                }
                ("offline", Value::Bool(offline)) => configuration.offline = Some(offline),
                ("users", Value::Object(users)) => configuration.users = principals(users)?,
                ("roles", Value::Object(roles)) => configuration.roles = principals(roles)?,
                (name @ ("sync" | "revs_limit" | "offline" | "users" | "roles"), _) => return Err(wrong(name)),
                (name, _) if PASSED_OVER.contains(&name) => {}
                (name, _) if NOT_YET.contains(&name) => {
                    return Err(Failure::not_implemented(&format!("{name} in a database's configuration")));
                }
                (name, _) => return Err(Failure::bad_request(format!("JSON Unknown Field: {name:?}"))),
            }
        }
        configuration.sync = configuration.sync.filter(|source| !source.trim().is_empty());
        Ok(configuration)
    }

    /// Applies all members but the sync function.
    async fn apply(&self, request: &Request, database: &Administration) -> Result<()> {
        if let Some(limit) = self.revs_limit {
            database.set_revs_limit(limit).await?;
        }
        for (role, body) in &self.roles {
            put(request, database, PrincipalKind::Role, PrincipalRequest::Put(role), body).await?;
        }
        for (user, body) in &self.users {
            put(request, database, PrincipalKind::User, PrincipalRequest::Put(user), body).await?;
        }
        if let Some(is_offline) = self.offline {
            database.set_offline(is_offline).await?;
        }
        Ok(())
    }
}

fn principals(members: Vec<(std::borrow::Cow<'_, str>, Value<'_>)>) -> Result<Vec<(String, Vec<u8>)>> {
    if members.len() > PRINCIPALS_MAX {
        let reason = format!("at most {PRINCIPALS_MAX} users or roles in a configuration");
        return Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, reason));
    }
    Ok(members.into_iter().map(|(name, value)| (name.into_owned(), json::to_vec(&value))).collect())
}

pub(crate) async fn create(mut request: Request, name: &str) -> Result<Reply> {
    let body = request.body().await?;
    let mut configuration = Configuration::parse(&body.bytes)?;
    let sync = configuration.sync.take();
    let options = CreateOptions { channels: Some(ChannelsOptions { sync }), ..CreateOptions::default() };
    let created = request.context.database(name, Own).await?.create(&options).await;
    created.map_err(|error| match error {
        LayerError::DatabaseExists => {
            let reason = format!("Duplicate database name {name:?}");
            Failure::new(StatusCode::PRECONDITION_FAILED, reason)
        }
        LayerError::Refused(Refusal::IllegalDatabaseName(_)) => {
            Failure::bad_request(format!("Illegal database name: {name}"))
        }
        error => error.into(),
    })?;
    let database = request.context.database(name, Administer).await?;
    // A new database is online.
    configuration.offline = configuration.offline.filter(|is_offline| *is_offline);
    configuration.apply(&request, &database).await?;
    Ok(empty(StatusCode::CREATED))
}

/// Handles `_config`: applies the sync function and `revs_limit`.
pub(crate) async fn config(mut request: Request, name: &str) -> Result<Reply> {
    let database = request.context.database(name, Administer).await?;
    if request.method == Method::PUT {
        let body = request.body().await?;
        let configuration = Configuration::parse(&body.bytes)?;
        database.set_sync_function(configuration.sync.as_deref()).await?;
        configuration.apply(&request, &database).await?;
        return Ok(empty(StatusCode::CREATED));
    }
    must_have_channels(&database).await?;
    let function = database.sync_function().await?.unwrap_or_default();
    let revs_limit = database.revs_limit().await?;
    Ok(reply::object(StatusCode::OK, |object| {
        object.string("name", name).string("bucket", name);
        if let Some(source) = &function.source {
            object.string("sync", source);
        }
        object.number("revs_limit", revs_limit);
    }))
}

/// Handles `_config/sync`, the function's source. `DELETE` restores the default function.
pub(crate) async fn sync(mut request: Request, name: &str) -> Result<Reply> {
    let database = request.context.database(name, Administer).await?;
    match request.method {
        Method::PUT => {
            let body = request.body().await?;
            let source = std::str::from_utf8(&body.bytes);
            let source = source.map_err(|_| Failure::bad_request("The function is not UTF-8"))?.trim();
            database.set_sync_function(Some(source).filter(|source| !source.is_empty())).await?;
            Ok(empty(StatusCode::OK))
        }
        Method::DELETE => {
            request.skip_body().await;
            database.set_sync_function(None).await?;
            Ok(empty(StatusCode::OK))
        }
        _ => {
            must_have_channels(&database).await?;
            let function = database.sync_function().await?.unwrap_or_default();
            let source = function.source.unwrap_or_else(|| DEFAULT_FUNCTION.to_owned());
            let mut reply = reply::json(StatusCode::OK, source.into_bytes());
            reply.header(header::CONTENT_TYPE, "application/javascript");
            Ok(TenantReply::of_body(reply).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations() {
        let text = br#"{"server":"walrus:","use_views":true,"sync":"function(doc) {}","revs_limit":20,"users":{"a":{"password":"x"}}}"#;
        let found = Configuration::parse(text).unwrap();
        assert_eq!((found.sync.as_deref(), found.revs_limit), (Some("function(doc) {}"), Some(20)));
        assert_eq!(found.users, [("a".to_owned(), br#"{"password":"x"}"#.to_vec())]);
        assert_eq!(Configuration::parse(br#"{"sync":" "}"#).unwrap(), Configuration::default());
        for (text, status) in [
            ("[]", 400),
            ("{\"x", 400),
            (r#"{"bogus":1}"#, 400),
            (r#"{"sync":5}"#, 400),
            (r#"{"revs_limit":-1}"#, 400),
            (r#"{"users":[]}"#, 400),
            (r#"{"offline":1}"#, 400),
            (r#"{"session_cookie_name":"x"}"#, 501),
        ] {
            assert_eq!(Configuration::parse(text.as_bytes()).unwrap_err().status.as_u16(), status, "{text}");
        }
    }
}
