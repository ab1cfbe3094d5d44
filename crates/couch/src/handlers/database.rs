//! `/{db}`: creates and deletes databases, shows their figures, and takes posted documents.

use flatbed_http::Reply;
use flatbed_layer::json::{self, Limits, Object, Value};
use flatbed_layer::{ChannelsOptions, CreateOptions, DatabaseInfo, DatabaseKind, DocumentId, is_replicator_name};
use flatbed_service::{Own, Read, Uploads, Write};
use hyper::{Method, StatusCode, header};

use crate::error::{Failure, Result};
use crate::handlers::document::{WriteParameters, edit_of, write_one};
use crate::path::METRICS;
use crate::query::{Query, encode, parameters};
use crate::reply::ok;
use crate::request::Request;
use crate::state::State;
use flatbed_documents::attachment_edits;

pub(crate) async fn root(state: &State, mut request: Request, name: &str) -> Result<Reply> {
    match request.method {
        Method::PUT => create(state, request, name).await,
        Method::DELETE => {
            if request.query.get("rev").is_some() {
                let reason = "You tried to DELETE a database with a ?=rev parameter. \
                              Did you mean to DELETE a document instead?";
                return Err(Failure::bad_request(reason));
            }
            request.context.database(name, Own).await?.delete().await?;
            Ok(ok(StatusCode::OK))
        }
        Method::GET => {
            Ok(Reply::json(StatusCode::OK, info_text(name, &request.context.database(name, Read).await?.info().await?)))
        }
        Method::HEAD => {
            request.context.database(name, Read).await?.exists().await?;
            Ok(Reply::json(StatusCode::OK, Vec::new()))
        }
        Method::POST => post(state, request, name).await,
        _ => request.refuse(Failure::method("DELETE,GET,HEAD,POST")).await,
    }
}

/// The `_security` of new databases if they are open to everyone.
const OPEN: &[u8] = b"{}";

/// True if the database of this name is none of the server's own, which stay closed.
fn is_ordinary(name: &str) -> bool {
    DatabaseKind::of(name) == DatabaseKind::Ordinary && !is_replicator_name(name)
}

parameters! {
    /// CouchDB's parameters of a new database.
    struct CouchdbParameters {
        partitioned: bool = parse_partitioned,
        /// The number of shards: stored and shown, without effect.
        q: Option<u16> = hint,
        n: Option<u16> = hint,
    }
}

parameters! {
    /// Flatbed's parameters of a new database.
    struct OwnParameters {
        /// True if bodies are kept for leaves only.
        revision_bodies: bool = parse_leaves_only,
        run_bytes: Option<u32> = setting,
        field_ids_max: Option<u32> = setting,
        shards: Option<u32> = setting,
    }
}

fn parse_partitioned(query: &Query, name: &str) -> Result<bool> {
    match query.get(name) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(Failure::bad_request("Invalid `partitioned` parameter")),
    }
}

fn hint(query: &Query, name: &str) -> Result<Option<u16>> {
    match query.get(name).map(str::parse::<u16>) {
        None => Ok(None),
        Some(Ok(hint @ 1..)) => Ok(Some(hint)),
        Some(_) => Err(Failure::bad_request(format!("The `{name}` value should be a positive integer."))),
    }
}

fn parse_leaves_only(query: &Query, name: &str) -> Result<bool> {
    match query.get(name) {
        None | Some("until_compaction") => Ok(false),
        Some("leaves_only") => Ok(true),
        Some(_) => Err(Failure::bad_request("`revision_bodies` is until_compaction or leaves_only")),
    }
}

fn setting(query: &Query, name: &str) -> Result<Option<u32>> {
    let too_large = |_| Failure::bad_request(format!("`{name}` is too large"));
    query.number(name)?.map(u32::try_from).transpose().map_err(too_large)
}

async fn create(state: &State, mut request: Request, name: &str) -> Result<Reply> {
    let body = request.read_body().await?;
    let CouchdbParameters { partitioned, q: hinted_shards, n: _ignored } = request.query.parameters()?;
    if name == METRICS {
        let reason = format!("`{METRICS}` is a path of the server and cannot be a database's name.");
        return Err(Failure::new(StatusCode::BAD_REQUEST, "illegal_database_name", reason));
    }
    let OwnParameters { revision_bodies: leaves_only, run_bytes, field_ids_max, shards } =
        request.query.parameters()?;
    let channels = channels_of(&body.bytes)?;
    let is_open = is_ordinary(name) && state.service.configuration().now().opens_databases;
    let security = is_open.then(|| OPEN.to_vec());
    let options =
        CreateOptions { run_bytes, field_ids_max, leaves_only, shards, hinted_shards, partitioned, channels, security };
    request.context.database(name, Own).await?.create(&options).await?;
    let mut reply = ok(StatusCode::CREATED);
    reply.header(header::LOCATION, &format!("{}/{}", request.base(), encode(name)));
    Ok(reply)
}

/// Parses the channel options of a new database: `{"sync": "function (doc) {...}"}` or `{"channels": true}`. A body
/// that is no object is ignored, as in CouchDB.
fn channels_of(body: &[u8]) -> Result<Option<ChannelsOptions>> {
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Ok(None);
    }
    let body = json::parse(body, &Limits::default()).map_err(|_| Failure::invalid_json())?;
    let sync = match body.get("sync") {
        None | Some(Value::Null) => None,
        Some(Value::String(source)) => Some(source.to_string()),
        Some(_) => return Err(Failure::bad_request("`sync` must be a string.")),
    };
    match body.get("channels") {
        None | Some(Value::Null) => Ok(sync.map(|source| ChannelsOptions { sync: Some(source) })),
        Some(Value::Bool(true)) => Ok(Some(ChannelsOptions { sync })),
        Some(Value::Bool(false)) if sync.is_none() => Ok(None),
        Some(_) => Err(Failure::bad_request("`channels` must be true, or false without `sync`.")),
    }
}

pub(crate) fn info_text(name: &str, info: &DatabaseInfo) -> Vec<u8> {
    Object::text(|object| {
        object.string("instance_start_time", &(info.created_at_ms / 1000).to_string()).string("db_name", name);
        object.string("purge_seq", &info.purge_seq.to_string()).string("update_seq", &info.update_seq.to_string());
        let mut sizes = object.object("sizes");
        sizes.number("file", info.file_size_bytes).number("external", info.external_size_bytes);
        sizes.number("active", info.active_size_bytes);
        sizes.end();
        let mut props = object.object("props");
        if info.is_partitioned {
            props.bool("partitioned", true);
        }
        if info.has_channels {
            props.bool("channels", true);
        }
        props.number("run_bytes", info.run_bytes.into());
        props.end();
        object.number("doc_del_count", info.doc_del_count).number("doc_count", info.doc_count);
        object.number("disk_format_version", 8).bool("compact_running", info.is_compacting);
        let shards = info.hinted_shards.unwrap_or(info.shards);
        object.object("cluster").number("q", shards.into()).number("n", 1).number("w", 1).number("r", 1);
    })
}

/// Creates a document with the id of its body or a generated one.
async fn post(state: &State, mut request: Request, name: &str) -> Result<Reply> {
    let allowed = request.require_json();
    request.skip_if_refused(allowed).await?;
    let WriteParameters { batch, new_edits } = request.query.parameters()?;
    let body = request.read_body().await?;
    let (mut edit, written) = edit_of(&body.bytes, None, new_edits, request.context.clock())?;
    let database = request.context.database(name, Write).await?;
    let mut uploads = Uploads::new(&database);
    edit.attachments = attachment_edits(&mut uploads, written, |_| None).await?;
    uploads.stage().await?;
    if edit.id.is_empty() {
        edit.id = state.next_uuid()?.into();
        // As in CouchDB, `_rev` is ignored, because no document has the generated id.
        edit.parent = None;
    }
    if DocumentId::of(&edit.id).is_local() {
        let updated = crate::handlers::local::edit_one(&database, &edit).await?;
        let mut out = Vec::new();
        crate::json_out::written(&edit.id, &updated.rev, &mut out);
        return Ok(Reply::json(StatusCode::CREATED, out));
    }
    let mut reply = write_one(&database, &edit, batch).await?;
    if edit.history.is_none() {
        uploads.mark_taken();
    }
    if !batch {
        let location = format!("{}/{}/{}", request.base(), encode(name), encode(&edit.id));
        reply.header(header::LOCATION, &location);
    }
    reply.headers.remove(header::ETAG);
    Ok(reply)
}

/// Answers `_ensure_full_commit`. All answered writes are durable already.
pub(crate) async fn ensure_full_commit(mut request: Request, name: &str) -> Result<Reply> {
    request.skip_body().await;
    let created_at_ms = request.context.database(name, Read).await?.created_at_ms().await?;
    Ok(Reply::object(StatusCode::CREATED, |object| {
        object.bool("ok", true).string("instance_start_time", &(created_at_ms / 1000).to_string());
    }))
}
