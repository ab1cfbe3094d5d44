//! `/{db}/`: creates and deletes databases, shows their information, and takes posted documents.

use flatbed_http::Reply;
use flatbed_layer::json::Object;
use flatbed_layer::{ClosedReasons, DatabaseInfo, Error as LayerError, NameRange};
use flatbed_service::{Administer, Maintain, Own, Read, Service, Standing};
use hyper::{Method, StatusCode, header};

use crate::error::{Failure, Result};
use crate::path::{Administration, Resource};
use crate::reply::{self, empty, json};
use crate::request::Request;
use crate::state::Gateway;
use crate::{config, document};

/// The largest batch of names in one read.
const NAMES_AT_ONCE: usize = 1_000;

pub(crate) fn welcome(state: &Gateway) -> Reply {
    reply::object(StatusCode::OK, |object| {
        let version = format!("Flatbed/{}", state.version);
        if state.is_for_administrators() {
            object.bool("ADMIN", true);
        }
        object.string("couchdb", "Welcome");
        object.object("vendor").string("name", "Couchbase Sync Gateway").string("version", &state.version);
        object.string("version", &version);
    })
}

/// Lists the databases that this surface serves.
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

/// Returns 404 unless users may see a database, which must have channels. Users cannot tell other databases from
/// missing ones.
pub(crate) async fn must_be_public(service: &Service, name: &str) -> Result<()> {
    let context = service.context(Standing::of_server());
    let has_channels = match context.database(name, Read).await?.has_channels().await {
        Err(LayerError::DatabaseNotFound) => false,
        found => found?,
    };
    if has_channels { Ok(()) } else { Err(Failure::no_database(name)) }
}

/// Returns 503 unless a database is open. An offline database answers only reads of its information and the
/// administrators' requests that configure it or bring it online. During an exclusive resync users are refused.
pub(crate) async fn must_be_open(state: &Gateway, name: &str, of: &Resource, method: &Method) -> Result<()> {
    let ClosedReasons { is_resyncing, is_offline } = state.service.closed_reasons(name).await?;
    let tells = *of == Resource::Root && method.is_safe();
    let is_closed = match (state.is_for_administrators(), of) {
        (true, Resource::Administration(Administration::Offline | Administration::Online | Administration::Resync)) => {
            false
        }
        (true, Resource::Administration(Administration::Config | Administration::ConfigSync)) => {
            is_offline && method != Method::PUT
        }
        (true, Resource::Root) => is_offline && method == Method::POST,
        (true, _) => is_offline,
        (false, _) => is_resyncing && !is_offline || is_offline && !tells,
    };
    if is_closed { Err(Failure::closed()) } else { Ok(()) }
}

/// Handles `_offline` and `_online`. A requested delay is ignored: the change is complete when it is answered.
pub(crate) async fn set_offline(mut request: Request, name: &str, is_offline: bool) -> Result<Reply> {
    request.skip_body().await;
    request.context.database(name, Administer).await?.set_offline(is_offline).await?;
    Ok(empty(StatusCode::OK))
}

pub(crate) async fn root(state: &Gateway, mut request: Request, name: &str) -> Result<Reply> {
    match request.method {
        Method::PUT => config::create(request, name).await,
        Method::DELETE => {
            request.skip_body().await;
            request.context.database(name, Own).await?.delete().await?;
            let mut reply = json(StatusCode::OK, b"{}".to_vec());
            reply.header(header::CONTENT_TYPE, "text/plain; charset=utf-8");
            Ok(reply)
        }
        Method::POST => document::post(request, name).await,
        Method::HEAD | Method::GET if state.service.closed_reasons(name).await?.is_offline => {
            let context = state.service.context(Standing::of_server());
            let info = context.database(name, Read).await?.info().await?;
            Ok(json(StatusCode::OK, info_text(name, &info, true)))
        }
        Method::HEAD => {
            request.context.database(name, Read).await?.exists().await?;
            Ok(empty(StatusCode::OK))
        }
        _ => {
            let info = request.context.database(name, Read).await?.info().await?;
            Ok(json(StatusCode::OK, info_text(name, &info, false)))
        }
    }
}

fn info_text(name: &str, info: &DatabaseInfo, is_offline: bool) -> Vec<u8> {
    Object::text(|object| {
        // As recorded, an offline database shows no sequence.
        let seq = if is_offline { "0".to_owned() } else { info.update_seq.to_string() };
        object.string("db_name", name).string("update_seq", &seq).string("committed_update_seq", &seq);
        object.number("instance_start_time", info.created_at_ms.saturating_mul(1_000));
        object.bool("compact_running", info.is_compacting).number("purge_seq", 0).number("disk_format_version", 0);
        object.string("state", if is_offline { "Offline" } else { "Online" });
    })
}

/// Answers `_ensure_full_commit`. All answered writes are durable already.
pub(crate) async fn ensure_full_commit(mut request: Request, name: &str) -> Result<Reply> {
    request.skip_body().await;
    let info = request.context.database(name, Read).await?.info().await?;
    Ok(reply::object(StatusCode::CREATED, |object| {
        object.number("instance_start_time", info.created_at_ms.saturating_mul(1_000)).bool("ok", true);
    }))
}

/// Starts the removal of superseded revisions' bodies in the background, so the answer has no count.
pub(crate) async fn compact(mut request: Request, name: &str) -> Result<Reply> {
    request.skip_body().await;
    request.context.database(name, Maintain).await?.compact().await?;
    Ok(json(StatusCode::OK, b"{\"revs\":0}".to_vec()))
}
