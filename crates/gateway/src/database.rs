//! `/{db}/`: creation and deletion, what is told of it, and documents posted to it.

use flatbed_http::Reply;
use flatbed_layer::json::{Object, Value};
use flatbed_layer::{CreateOptions, DatabaseInfo, Error as LayerError, NameRange, Refusal};
use flatbed_service::{Maintain, Own, Read};
use hyper::{Method, StatusCode};

use crate::document;
use crate::error::{Failure, Result};
use crate::reply::{empty, json};
use crate::request::{Request, object};
use crate::state::Gateway;

/// Names in a list of databases that are read at once.
const NAMES_AT_ONCE: usize = 1_000;

/// What a database's configuration may say that has a meaning here, or had one there and has none here.
const KNOWN: &[&str] = &[
    "name",
    "server",
    "pool",
    "bucket",
    "username",
    "password",
    "use_views",
    "num_index_replicas",
    "sync",
    "users",
    "roles",
    "revs_limit",
    "offline",
    "allow_conflicts",
    "allow_empty_password",
    "session_cookie_name",
    "session_cookie_http_only",
    "session_cookie_secure",
    "send_www_authenticate_header",
    "import_docs",
    "import_filter",
    "enable_shared_bucket_access",
    "cache",
    "unsupported",
    "deprecated",
    "delta_sync",
    "old_rev_expiry_seconds",
    "view_query_timeout_secs",
    "local_doc_expiry_secs",
    "compact_interval_days",
    "bucket_op_timeout_ms",
    "event_handlers",
    "feed_type",
    "oidc",
    "slow_query_warning_threshold",
    "rev_cache_size",
    "import_backup_old_rev",
    "kv_tls_port",
    "sgreplicate_enabled",
    "sgreplicate_websocket_heartbeat_secs",
    "replications",
    "serve_insecure_attachment_types",
    "query_pagination_limit",
    "user_xattr_key",
    "client_partition_window_secs",
    "certpath",
    "keypath",
    "cacertpath",
];

/// Those that change what a database does, and are not kept yet.
const NOT_YET: &[&str] = &[
    "sync",
    "users",
    "roles",
    "offline",
    "allow_conflicts",
    "allow_empty_password",
    "session_cookie_name",
    "session_cookie_http_only",
    "session_cookie_secure",
    "send_www_authenticate_header",
    "serve_insecure_attachment_types",
    "import_filter",
    "replications",
    "oidc",
    "event_handlers",
];

/// `GET /`
pub(crate) fn welcome(state: &Gateway) -> Reply {
    let text = Object::text(|object| {
        let version = format!("Flatbed/{}", state.version);
        if state.is_for_administrators() {
            object.bool("ADMIN", true);
        }
        object.string("couchdb", "Welcome");
        object.object("vendor").string("name", "Couchbase Sync Gateway").string("version", &state.version);
        object.string("version", &version);
    });
    json(StatusCode::OK, text)
}

/// `GET /_all_dbs`, those alone that have paths here.
pub(crate) async fn all(request: &Request) -> Result<Reply> {
    let databases = request.context.databases().await?;
    let mut range = NameRange { limit: Some(NAMES_AT_ONCE), ..NameRange::default() };
    let mut out = Vec::new();
    let mut names = flatbed_layer::json::Array::new(&mut out);
    loop {
        let page = databases.all_databases(&range).await?;
        let ordinary = page.iter().filter(|name| name.starts_with(|first: char| first.is_ascii_alphanumeric()));
        names.strings(ordinary.map(String::as_str));
        match page.last() {
            Some(last) if page.len() >= NAMES_AT_ONCE => range.start = Some(format!("{last}\0")),
            _ => break,
        }
    }
    names.end();
    Ok(json(StatusCode::OK, out))
}

/// A database that users may know of.
///
/// # Errors
/// 404: none has channels yet.
pub(crate) async fn must_be_public(_request: &Request, name: &str) -> Result<()> {
    Err(Failure::no_database(name))
}

pub(crate) async fn root(mut request: Request, name: &str) -> Result<Reply> {
    match request.method {
        Method::PUT => create(request, name).await,
        Method::DELETE => {
            request.skip_body().await;
            request.context.database(name, Own).await?.delete().await?;
            Ok(json(StatusCode::OK, b"{}".to_vec()))
        }
        Method::POST => document::post(request, name).await,
        Method::HEAD => {
            request.context.database(name, Read).await?.exists().await?;
            Ok(empty(StatusCode::OK))
        }
        _ => {
            let info = request.context.database(name, Read).await?.info().await?;
            Ok(json(StatusCode::OK, info_text(name, &info)))
        }
    }
}

async fn create(mut request: Request, name: &str) -> Result<Reply> {
    let body = request.body().await?;
    let Value::Object(members) = object(&body.bytes)? else { return Err(Failure::bad_request("Bad JSON")) };
    if let Some((unknown, _)) = members.iter().find(|(name, _)| !KNOWN.contains(&name.as_ref())) {
        return Err(Failure::bad_request(format!("JSON Unknown Field: {unknown:?}")));
    }
    if let Some((member, _)) = members.iter().find(|(name, _)| NOT_YET.contains(&name.as_ref())) {
        return Err(Failure::not_implemented(&format!("{member} in a database's configuration")));
    }
    let created = request.context.database(name, Own).await?.create(&CreateOptions::default()).await;
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
    Ok(empty(StatusCode::CREATED))
}

fn info_text(name: &str, info: &DatabaseInfo) -> Vec<u8> {
    Object::text(|object| {
        let seq = info.update_seq.to_string();
        object.string("db_name", name).string("update_seq", &seq).string("committed_update_seq", &seq);
        object.number("instance_start_time", info.created_at_ms.saturating_mul(1_000));
        object.bool("compact_running", info.is_compacting).number("purge_seq", 0).number("disk_format_version", 0);
        object.string("state", "Online");
    })
}

/// All writes are durable when they are answered: there is nothing left to do.
pub(crate) async fn ensure_full_commit(mut request: Request, name: &str) -> Result<Reply> {
    request.skip_body().await;
    let info = request.context.database(name, Read).await?.info().await?;
    let text = Object::text(|object| {
        object.number("instance_start_time", info.created_at_ms.saturating_mul(1_000)).bool("ok", true);
    });
    Ok(json(StatusCode::CREATED, text))
}

/// Asks for bodies of superseded revisions to be dropped, in the background: how many there are is not known when it is answered.
pub(crate) async fn compact(mut request: Request, name: &str) -> Result<Reply> {
    request.skip_body().await;
    request.context.database(name, Maintain).await?.compact().await?;
    Ok(json(StatusCode::OK, b"{\"revs\":0}".to_vec()))
}
