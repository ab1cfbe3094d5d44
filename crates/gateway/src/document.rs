//! `/{db}/{id}`

use flatbed_channels::Expiry;
use flatbed_documents::{
    AttachmentMember, AttachmentOptions, Form, ListOptions, attachment_edits, check_any_id, open_revs, parts,
    read_document,
};
use flatbed_http::{Reply, spawn};
use flatbed_layer::json::{self, Limits, Object, Value};
use flatbed_layer::{Document, DocumentId, Edit, GetOptions, NotFound, OpenRevs, Refusal, RevId};
use flatbed_service::{Read, Standing, Uploads, Write, json_out};
use hyper::{Method, StatusCode, header};

use crate::body::{edit_of, new_id};
use crate::error::{Failure, Result};
use crate::request::{Request, object};
use crate::state::Gateway;
use crate::{local, reply};

pub(crate) async fn document(state: &Gateway, mut request: Request, name: &str, id: &str) -> Result<Reply> {
    request.skip_if_refused(flatbed_layer::check_document_id(id)).await?;
    match request.method {
        Method::PUT => put(request, name, id).await,
        Method::DELETE => delete(request, name, id).await,
        _ => get(state, request, name, id).await,
    }
}

fn accepts_json(request: &Request) -> bool {
    let Some(accept) = request.header(header::ACCEPT) else { return true };
    let kinds = accept.split(',').map(|kind| kind.split(';').next().unwrap_or_default().trim());
    kinds.into_iter().any(|kind| matches!(kind, "" | "*/*" | "application/*" | "application/json"))
}

fn missing() -> Failure {
    Refusal::DocumentNotFound(NotFound::Missing).into()
}

async fn get(state: &Gateway, request: Request, name: &str, id: &str) -> Result<Reply> {
    let query = &request.query;
    let database = request.context.database(name, Read).await?;
    let revs = query.flag("revs");
    let show = AttachmentOptions { data: query.flag("attachments"), ..AttachmentOptions::default() };
    if let Some(wanted) = query.get("open_revs") {
        let revs_of = revs_of(wanted)?;
        let form = if accepts_json(&request) { Form::Json } else { Form::Mixed { outer: new_id()?, inner: new_id()? } };
        let options = GetOptions { revs, ..GetOptions::default() };
        let shown = ListOptions { show, with_revisions: revs, form };
        return Ok(reply::plain(Box::pin(open_revs(database, id, revs_of, options, shown)).await?));
    }
    let rev = match query.get("rev") {
        // Anything that is no revision id counts as a missing revision.
        Some(rev) => Some(rev.parse::<RevId>().map_err(|_| missing())?),
        None => None,
    };
    let options = GetOptions { rev, revs, ..GetOptions::default() };
    let (mut document, room) = read_document(&database, id, options).await?;
    if let (Some(line), Some(limit)) = (&mut document.revisions, query.number("revs_limit")) {
        line.truncate(usize::try_from(limit).unwrap_or(usize::MAX).max(1));
    }
    if query.flag("show_exp") {
        show_end(state, name, &mut document).await?;
    }
    let tag = format!("\"{}\"", document.rev);
    if !accepts_json(&request) {
        let mut refused = reply::failed(&not_acceptable());
        refused.header(header::ETAG, &tag);
        return Ok(refused);
    }
    if request.accepts_cached(&tag) {
        return Ok(Reply::not_modified(&tag));
    }
    let has_data = show.data && !document.attachments.is_empty();
    let mut reply = if has_data && request.method == Method::GET {
        let parts = parts(&document, &show, revs);
        let (reply, mut sender) = reply::stream();
        spawn(async move {
            let _room = room;
            if flatbed_documents::send(&database, &document, parts, &mut sender).await.is_ok() {
                let _ = sender.finish().await;
            }
        });
        reply
    } else {
        let mut out = Vec::new();
        json_out::document(&document, &mut out);
        Reply { held: room, ..reply::json(StatusCode::OK, out) }
    };
    reply.header(header::ETAG, &tag);
    if request.method == Method::HEAD {
        reply.headers.remove(header::CONTENT_TYPE);
    }
    Ok(reply)
}

/// Adds `_exp`, the expiry date, to a document that the client may read.
async fn show_end(state: &Gateway, name: &str, document: &mut Document) -> Result<()> {
    let database = state.service.context(Standing::of_server()).database(name, Read).await?;
    let found = database.routings(std::slice::from_ref(&document.id)).await?.into_iter().next().flatten();
    let end = found.filter(|found| found.rev == document.rev).and_then(|found| found.verdict.expires_at_ms);
    if let Some(date) = end.and_then(|end| Expiry::At(end / 1_000).shown()) {
        let member = Object::members_text(|members| {
            members.string("_exp", &date);
        });
        if !document.body.is_empty() {
            document.body.push(b',');
        }
        document.body.extend_from_slice(&member);
    }
    Ok(())
}

/// The largest number of revisions in one `open_revs`.
const OPEN_REVS_MAX: usize = 1_000;

fn revs_of(wanted: &str) -> Result<OpenRevs> {
    if wanted == "all" {
        return Ok(OpenRevs::All);
    }
    let bad = || Failure::bad_request("bad open_revs");
    let Ok(Value::Array(list)) = json::parse(wanted.as_bytes(), &Limits::default()) else { return Err(bad()) };
    if list.len() > OPEN_REVS_MAX {
        return Err(bad());
    }
    let rev = |rev: &Value<'_>| rev.as_str().and_then(|rev| rev.parse::<RevId>().ok()).ok_or_else(bad);
    Ok(OpenRevs::Some(list.iter().map(rev).collect::<Result<_>>()?))
}

fn not_acceptable() -> Failure {
    Failure::new(StatusCode::NOT_ACCEPTABLE, "only application/json available")
}

/// Returns the revision that the query string or headers name.
pub(crate) fn named_rev(request: &Request) -> Result<Option<RevId>> {
    let header = request.header(header::IF_MATCH).map(|tag| tag.trim().trim_matches('"')).filter(|tag| !tag.is_empty());
    let rev = request.query.get("rev").or(header).map(str::parse::<RevId>).transpose();
    rev.map_err(|_| Refusal::InvalidRevision.into())
}

async fn put(mut request: Request, name: &str, id: &str) -> Result<Reply> {
    let body = request.json().await?;
    let new_edits = request.query.get("new_edits") != Some("false");
    let (mut edit, written) = edit_of(object(&body.bytes)?, Some(id), new_edits, request.context.clock())?;
    if new_edits && edit.parent.is_none() {
        edit.parent = named_rev(&request)?;
    }
    let (rev, mut reply) = upload_and_write(&request, name, &mut edit, written).await?;
    reply.status = StatusCode::CREATED;
    if new_edits {
        reply.header(header::ETAG, &format!("\"{rev}\""));
    }
    Ok(reply)
}

async fn delete(mut request: Request, name: &str, id: &str) -> Result<Reply> {
    request.skip_body().await;
    let parent = named_rev(&request)?;
    let body = Value::Object(Vec::new());
    let edit =
        Edit { id: id.into(), parent, history: None, deleted: true, expiry: None, attachments: Vec::new(), body };
    Ok(write(&request, name, &edit).await?.1)
}

/// Creates a document with the id of its body or a generated one.
pub(crate) async fn post(mut request: Request, name: &str) -> Result<Reply> {
    let body = request.json().await?;
    let (mut edit, written) = edit_of(object(&body.bytes)?, None, true, request.context.clock())?;
    if edit.id.is_empty() {
        edit.id = new_id()?.into();
    }
    check_any_id(&edit.id)?;
    if DocumentId::of(&edit.id).is_local() {
        return Err(Failure::bad_request("Invalid doc ID"));
    }
    let (rev, mut reply) = upload_and_write(&request, name, &mut edit, written).await?;
    reply.header(header::LOCATION, &edit.id);
    reply.header(header::ETAG, &format!("\"{rev}\""));
    Ok(reply)
}

/// Uploads the attachments and writes the edit.
async fn upload_and_write(
    request: &Request,
    name: &str,
    edit: &mut Edit<'_>,
    written: Vec<AttachmentMember<'_>>,
) -> Result<(RevId, Reply)> {
    let database = request.context.database(name, Write).await?;
    let mut uploads = Uploads::new(&database);
    edit.attachments = attachment_edits(&mut uploads, written, |_| None).await?;
    uploads.stage().await?;
    let done = write(request, name, edit).await?;
    // A replicated revision may be known already, and then its uploads are unused.
    if edit.history.is_none() {
        uploads.mark_taken();
    }
    Ok(done)
}

/// Writes an edit and answers `{"id","ok","rev"}`.
pub(crate) async fn write(request: &Request, name: &str, edit: &Edit<'_>) -> Result<(RevId, Reply)> {
    let names_parent = edit.parent.is_some() || edit.history.is_some();
    let database = request.context.database(name, Write).await?;
    let written = database.update(edit).await;
    let rev = written.map_err(|error| Failure::of_write(error, names_parent))?.rev;
    Ok((rev.clone(), local::written(StatusCode::OK, &edit.id, &rev.to_string())))
}
