//! `/{db}/`: creation and deletion, its information, and documents posted to it.

use flatbed_http::Reply;
use flatbed_layer::json::Object;
use flatbed_layer::{DatabaseInfo, Error as LayerError, NameRange};
use flatbed_service::{Maintain, Own, Read, Service, Standing};
use hyper::{Method, StatusCode, header};

use crate::error::{Failure, Result};
use crate::reply::{empty, json};
use crate::request::Request;
use crate::state::Gateway;
use crate::{config, document};

/// Names in a list of databases that are read at once.
const NAMES_AT_ONCE: usize = 1_000;

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

/// A database that users may know of: one that has channels. Whether there is another of the name is not theirs to know.
///
/// # Errors
/// 404, and those of the storage.
pub(crate) async fn must_be_public(service: &Service, name: &str) -> Result<()> {
    let context = service.context(Standing::of_server());
    let has_channels = match context.database(name, Read).await?.has_channels().await {
        Err(LayerError::DatabaseNotFound) => false,
        found => found?,
    };
    if has_channels { Ok(()) } else { Err(Failure::no_database(name)) }
}

pub(crate) async fn root(mut request: Request, name: &str) -> Result<Reply> {
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
