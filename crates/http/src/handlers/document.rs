//! `/{db}/{doc}`

use flatbed_layer::json::{self, Limits, Value};
use flatbed_layer::{Edit, EditParts, Error as LayerError, GetOptions, RevId};
use hyper::{Method, StatusCode, header};

use crate::error::{Failure, Result, parse_rev};
use crate::json_out;
use crate::query::{Query, encode};
use crate::reply::{Pages, Reply, ReplyBody};
use crate::request::Request;
use crate::server::State;

pub(crate) async fn document(state: &State, mut request: Request, name: &str, id: &str) -> Result<Reply> {
    match request.method.as_str() {
        "GET" | "HEAD" => get(state, &request, name, id).await,
        "PUT" => put(state, request, name, id).await,
        "DELETE" => delete(state, request, name, id).await,
        "POST" => {
            request.skip_body().await;
            post(&request)
        }
        "COPY" => {
            request.skip_body().await;
            Err(Failure::not_implemented("COPY"))
        }
        _ => {
            request.skip_body().await;
            Err(Failure::method("DELETE,GET,HEAD,POST,PUT,COPY"))
        }
    }
}

/// Forms with files, posted by a browser's page.
fn post(request: &Request) -> Result<Reply> {
    if !request.headers.contains_key(header::REFERER) {
        return Err(Failure::bad_request("Referer header required."));
    }
    let kind = request.header(header::CONTENT_TYPE).unwrap_or_default();
    if !kind.starts_with("multipart/form-data") {
        let reason = "Content-Type must be multipart/form-data";
        return Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_content_type", reason));
    }
    Err(Failure::not_implemented("Attachments"))
}

/// `_design%2Fx` is read as `_design/x`.
pub(crate) fn redirect_design(request: &Request) -> Option<Reply> {
    const ENCODED: &str = "_design%2f";
    let path = request.uri.path_and_query()?.as_str();
    let at = path.to_ascii_lowercase().find(ENCODED)?;
    let (before, behind) = (path.get(..at)?, path.get(at + ENCODED.len()..)?);
    let mut reply =
        Reply { status: StatusCode::MOVED_PERMANENTLY, headers: Default::default(), body: ReplyBody::Full(None) };
    reply.header(header::LOCATION, &format!("{}{before}_design/{behind}", request.base()));
    Some(reply)
}

/// Paths behind a document: no document has attachments yet.
pub(crate) async fn attachment(state: &State, mut request: Request, name: &str, id: &str) -> Result<Reply> {
    request.skip_body().await;
    if !matches!(request.method, Method::GET | Method::HEAD) {
        return Err(Failure::not_implemented("Attachments"));
    }
    let options = GetOptions { no_body: true, ..GetOptions::default() };
    state.layer.database(name).get(id, &options).await?;
    Err(Failure::not_found("Document is missing attachment"))
}

async fn get(state: &State, request: &Request, name: &str, id: &str) -> Result<Reply> {
    let query = &request.query;
    let database = state.layer.database(name);
    let meta = query.flag("meta")?;
    let options = GetOptions {
        rev: query.get("rev").map(parse_rev).transpose()?,
        revs: query.flag("revs")?,
        revs_info: meta || query.flag("revs_info")?,
        local_seq: query.flag("local_seq")?,
        latest: query.flag("latest")?,
        ..GetOptions::default()
    };
    if let Some(open_revs) = query.get("open_revs") {
        return open_revisions(database, state.replies.pages(), id, open_revs, query).await;
    }
    let document = database.get(id, &options).await?;
    let etag = etag(&document.rev);
    let tagged = !options.revs_info && !options.local_seq;
    if tagged && request.accepts_cached(&etag) {
        return Ok(Reply::not_modified(&etag));
    }
    let mut out = Vec::new();
    json_out::document(&document, &mut out);
    let mut reply = Reply::json(StatusCode::OK, out);
    if tagged {
        reply.header(header::ETAG, &etag);
    }
    Ok(reply)
}

/// Revisions that one `open_revs` may name.
const OPEN_REVS_MAX: usize = 1_000;

async fn open_revisions(
    database: flatbed_layer::Database,
    pages: Pages,
    id: &str,
    wanted: &str,
    query: &Query,
) -> Result<Reply> {
    let (revs, latest) = (query.flag("revs")?, query.flag("latest")?);
    let mut asked = Vec::new();
    if wanted == "all" {
        let look = GetOptions { no_body: true, tombstone: true, ..GetOptions::default() };
        let leaf = database.get(id, &look).await?.rev;
        asked.push(GetOptions { rev: Some(leaf), revs, ..GetOptions::default() });
    } else {
        let list = json::parse(wanted.as_bytes(), &Limits::default()).map_err(|_| Failure::invalid_json())?;
        let Value::Array(list) = list else { return Err(Failure::invalid_json()) };
        if list.len() > OPEN_REVS_MAX {
            return Err(Failure::bad_request(format!("at most {OPEN_REVS_MAX} revisions")));
        }
        let mut seen = std::collections::HashSet::new();
        for rev in list {
            let rev = parse_rev(rev.as_str().ok_or_else(|| Failure::bad_request("Invalid rev format"))?)?;
            if seen.insert(rev.clone()) {
                asked.push(GetOptions { rev: Some(rev), revs, latest, ..GetOptions::default() });
            }
        }
        database.exists().await?;
    }
    let (reply, mut sender) = Reply::stream();
    let id = id.to_owned();
    tokio::spawn(async move {
        sender.buffer.push(b'[');
        for (at, options) in asked.iter().enumerate() {
            // One at a time: each may be a document of the largest size.
            let _room = pages.room().await;
            json_out::comma(at, &mut sender.buffer);
            match database.get(&id, options).await {
                Ok(document) => {
                    sender.buffer.extend_from_slice(b"{\"ok\":");
                    json_out::document(&document, &mut sender.buffer);
                }
                Err(LayerError::DocumentNotFound(_)) => {
                    sender.buffer.extend_from_slice(b"{\"missing\":");
                    let rev = options.rev.as_ref().map(RevId::to_string).unwrap_or_default();
                    json_out::string(&rev, &mut sender.buffer);
                }
                Err(error) => {
                    tracing::warn!(%error, "a list of revisions broke off");
                    return;
                }
            }
            sender.buffer.push(b'}');
            if sender.send_if_full().await.is_err() {
                return;
            }
        }
        sender.buffer.extend_from_slice(b"]\n");
        let _ = sender.finish().await;
    });
    Ok(reply)
}

/// An edit from a JSON text; `id`: from the path. The second part says whether a revision was named at all.
pub(crate) fn edit_of<'b>(bytes: &'b [u8], id: Option<&str>, query: &Query) -> Result<(Edit<'b>, bool)> {
    let value = json::parse(bytes, &Limits::default()).map_err(|_| Failure::invalid_json())?;
    if query.get("new_edits") == Some("false") {
        return Err(Failure::not_implemented("new_edits=false"));
    }
    edit_from(value, id)
}

/// As [`edit_of`], of a value that is parsed already.
pub(crate) fn edit_from<'b>(value: Value<'b>, id: Option<&str>) -> Result<(Edit<'b>, bool)> {
    let parts = EditParts::from_json(value)?;
    if matches!(&parts.attachments, Some(Value::Object(attachments)) if !attachments.is_empty()) {
        return Err(Failure::not_implemented("Attachments"));
    }
    let parent = match (parts.rev, &parts.revisions) {
        // Ancestors that the client names are checked as one revision: the newest.
        (None, Some(revisions)) => Some(newest_of(revisions)?),
        (rev, _) => rev,
    };
    let named = parent.is_some();
    let id = match (id, parts.id) {
        (Some(id), _) => id.to_owned().into(),
        (None, Some(id)) => {
            flatbed_layer::check_document_id(&id)?;
            id
        }
        (None, None) => "".into(),
    };
    Ok((Edit { id, parent, history: None, deleted: parts.deleted, body: parts.body }, named))
}

fn newest_of(revisions: &Value<'_>) -> Result<RevId> {
    let invalid = || Failure::new(StatusCode::BAD_REQUEST, "doc_validation", "_revisions is not as CouchDB writes it");
    let start = match revisions.get("start") {
        Some(Value::Number(start)) => start.parse().map_err(|_| invalid())?,
        _ => return Err(invalid()),
    };
    let Some(Value::Array(ids)) = revisions.get("ids") else { return Err(invalid()) };
    let newest = ids.first().and_then(Value::as_str).ok_or_else(invalid)?;
    RevId::from_parts(start, newest).map_err(|_| invalid())
}

/// The revision that the request's line and headers name.
fn named_rev(request: &Request) -> Result<Option<RevId>> {
    let query = request.query.get("rev").filter(|rev| !rev.is_empty());
    let header = request.header(header::IF_MATCH).map(|tag| tag.trim().trim_matches('"')).filter(|tag| !tag.is_empty());
    match (query, header) {
        (Some(query), Some(header)) if query != header => {
            Err(Failure::bad_request("Document rev and etag have different values"))
        }
        (Some(rev), _) | (None, Some(rev)) => parse_rev(rev).map(Some),
        (None, None) => Ok(None),
    }
}

async fn put(state: &State, mut request: Request, name: &str, id: &str) -> Result<Reply> {
    if let Err(error) = flatbed_layer::check_document_id(id) {
        request.skip_body().await;
        return Err(error.into());
    }
    let batch = request.query.get("batch") == Some("ok");
    let body = request.read_body().await?;
    let (mut edit, _) = edit_of(&body.bytes, Some(id), &request.query)?;
    match (named_rev(&request)?, &edit.parent) {
        (Some(named), Some(parent)) if named != *parent => {
            return Err(Failure::bad_request("Document rev from request body and query string have different values"));
        }
        (Some(named), _) => edit.parent = Some(named),
        (None, _) => {}
    }
    let mut reply = write_one(state, name, &edit, batch).await?;
    if !batch {
        let location = format!("{}/{}/{}", request.base(), encode(name), encode(id));
        reply.header(header::LOCATION, &location);
    }
    Ok(reply)
}

/// Writes an edit: 201 with its tag, 202 when the client asked for a batch (it is as durable all the same).
pub(crate) async fn write_one(state: &State, name: &str, edit: &Edit<'_>, batch: bool) -> Result<Reply> {
    let updated = state.layer.database(name).update(edit).await?;
    if batch {
        let mut out = b"{\"ok\":true,\"id\":".to_vec();
        json_out::string(&edit.id, &mut out);
        out.push(b'}');
        return Ok(Reply::json(StatusCode::ACCEPTED, out));
    }
    let mut out = Vec::with_capacity(100);
    json_out::written(&edit.id, &updated.rev, &mut out);
    let mut reply = Reply::json(StatusCode::CREATED, out);
    reply.header(header::ETAG, &etag(&updated.rev));
    Ok(reply)
}

async fn delete(state: &State, mut request: Request, name: &str, id: &str) -> Result<Reply> {
    request.skip_body().await;
    let parent = named_rev(&request)?;
    // 404 comes before 409, as in CouchDB.
    let look = GetOptions { no_body: true, ..GetOptions::default() };
    state.layer.database(name).get(id, &look).await?;
    let edit = Edit { id: id.into(), parent, history: None, deleted: true, body: Value::Object(Vec::new()) };
    if edit.parent.is_none() {
        return Err(LayerError::Conflict.into());
    }
    let batch = request.query.get("batch") == Some("ok");
    let mut reply = write_one(state, name, &edit, batch).await?;
    if !batch {
        reply.status = StatusCode::OK;
    }
    Ok(reply)
}

fn etag(rev: &RevId) -> String {
    format!("\"{rev}\"")
}
