//! `_show` and `_update` functions, and helpers that `_list` and `_rewrite` share.

use std::hash::{DefaultHasher, Hash, Hasher};

use flatbed_http::{PagePermit, Pages, Reply, TenantReply, first_room, shrink};
use flatbed_layer::{Document, DocumentId, Error as LayerError, GetOptions, Reader, Refusal, RevId};
use flatbed_service::{Read, Uploads, Write};
use hyper::header::{self, HeaderName};
use hyper::{HeaderMap, Method, StatusCode};

use crate::error::{Failure, Result};
use crate::handlers::database::info_text;
use crate::handlers::document::edit_of;
use crate::handlers::local;
use crate::query::encode;
use crate::request::{Body, Request};
use crate::request_object::{FunctionBody, FunctionInput, request_object};
use crate::response;
use crate::state::State;
use flatbed_documents::{DocumentError, attachment_edits, read_document};

/// Revisions in the document that a function gets, as in CouchDB.
const REVISIONS_MAX: usize = 20;

/// The largest answer in bytes that is sent without waiting for memory.
const SMALL_BYTES: usize = 256 * 1024;

const NEW_REV: HeaderName = HeaderName::from_static("x-couch-update-newrev");
const ID: HeaderName = HeaderName::from_static("x-couch-id");

/// Handles `/{db}/_design/{ddoc}/_show/{show}` with an optional document id.
pub(crate) async fn show(
    state: &State,
    mut request: Request,
    name: &str,
    design: &str,
    rest: &[String],
) -> Result<TenantReply> {
    let [show, id @ ..] = rest else { return Err(invalid_path(&mut request, "show_error").await) };
    let body = body_of(&mut request).await?;
    let database = request.context.database(name, Read).await?;
    let functions = request.context.design_functions(&database, design).await?;
    let id = id_of(id);
    let FunctionDocument { document, room } = read_function_document(&database, id.as_deref()).await?;
    let tag = tag(&request, functions.rev(), document.as_ref());
    if request.accepts_cached(&tag) {
        return Ok(TenantReply::new(Reply::not_modified(&tag), &HeaderMap::new()));
    }
    let object = object(state, &request, &database, id.as_deref(), function_body(body.as_ref())).await?;
    let answer = functions.show(show, document.as_ref(), &object).await?;
    let mut reply = response::whole(answer, StatusCode::OK)?;
    reply.header(header::ETAG, &tag);
    reply.header(header::VARY, "Accept");
    drop((document, room));
    reserve_memory(state, reply).await
}

/// Handles `/{db}/_design/{ddoc}/_update/{update}` with an optional document id. Writes the function's document as if
/// the client had put it.
pub(crate) async fn update(
    state: &State,
    mut request: Request,
    name: &str,
    design: &str,
    rest: &[String],
) -> Result<TenantReply> {
    let [update, id @ ..] = rest else { return Err(invalid_path(&mut request, "update_error").await) };
    let body = body_of(&mut request).await?;
    let database = request.context.database(name, Write).await?;
    let functions = request.context.design_functions(&database, design).await?;
    let id = id_of(id);
    let FunctionDocument { document, room } = read_function_document(&database, id.as_deref()).await?;
    let object = object(state, &request, &database, id.as_deref(), function_body(body.as_ref())).await?;
    let (written, answer) = functions.update(update, document.as_ref(), &object).await?;
    drop((document, object, body, functions));
    let Some(text) = written else {
        drop(room);
        return reserve_memory(state, response::whole(answer, StatusCode::OK)?).await;
    };
    // Checks the reply before the write, because a refused reply must not write.
    let mut reply = response::whole(answer, StatusCode::CREATED)?;
    let text = request.generated_body(text.into()).await?;
    drop(room);
    let (mut edit, attachments) = edit_of(&text.bytes, None, true, database.clock())?;
    let rev = if DocumentId::of(&edit.id).is_local() {
        local::edit_one(&database, &edit).await?.rev
    } else {
        flatbed_layer::check_document_id(&edit.id)?;
        let mut uploads = Uploads::new(&database);
        edit.attachments = attachment_edits(&mut uploads, attachments, |_| None).await?;
        uploads.stage().await?;
        let rev = database.update(&edit).await?.rev;
        uploads.mark_taken();
        rev
    };
    reply.header(NEW_REV, &rev.to_string());
    reply.header(ID, &encode(&edit.id));
    reserve_memory(state, reply).await
}

pub(crate) async fn invalid_path(request: &mut Request, error: &'static str) -> Failure {
    request.skip_body().await;
    Failure::new(StatusCode::NOT_FOUND, error, "Invalid path.")
}

/// Joins the segments of an id, which may have slashes.
fn id_of(segments: &[String]) -> Option<String> {
    if segments.is_empty() { None } else { Some(segments.join("/")) }
}

/// Reads an optional body. An empty body without `content-length` counts as none.
pub(crate) async fn body_of(request: &mut Request) -> Result<Option<Body>> {
    if matches!(request.method, Method::GET | Method::HEAD) {
        request.skip_body().await;
        return Ok(None);
    }
    let has_length = request.headers.contains_key(header::CONTENT_LENGTH);
    let body = request.read_body().await?;
    Ok(Some(body).filter(|body| has_length || !body.bytes.is_empty()))
}

pub(crate) fn function_body(body: Option<&Body>) -> FunctionBody<'_> {
    body.map_or(FunctionBody::None, |body| FunctionBody::Text(&body.bytes))
}

pub(crate) async fn object(
    state: &State,
    request: &Request,
    database: &Reader,
    id: Option<&str>,
    body: FunctionBody<'_>,
) -> Result<String> {
    let info = info_text(database.name(), &database.info().await?);
    let uuid = state.next_uuid()?;
    let input = FunctionInput { id, uuid: Some(&uuid), info: Some(&info), body };
    Ok(request.context.request_object(request_object(request, &input), database).await?)
}

struct FunctionDocument {
    document: Option<Document>,
    room: PagePermit,
}

/// Reads a function's document; `None` if it is missing or deleted.
async fn read_function_document(database: &Reader, id: Option<&str>) -> Result<FunctionDocument> {
    let Some(id) = id else {
        database.exists().await?;
        return Ok(FunctionDocument { document: None, room: None });
    };
    let options = GetOptions { revs: true, conflicts: true, ..GetOptions::default() };
    match read_document(database, id, options).await {
        Ok((mut document, room)) => {
            if let Some(revisions) = &mut document.revisions {
                revisions.truncate(REVISIONS_MAX);
            }
            Ok(FunctionDocument { document: Some(document), room })
        }
        Err(DocumentError::Layer(LayerError::Refused(Refusal::DocumentNotFound(_)))) => {
            Ok(FunctionDocument { document: None, room: None })
        }
        Err(error) => Err(error.into()),
    }
}

/// Attaches a memory reservation to a reply. Large replies wait for memory; if too many wait, answers 503.
pub(crate) async fn reserve_memory(state: &State, mut reply: TenantReply) -> Result<TenantReply> {
    let bytes = reply.whole_bytes();
    if bytes > SMALL_BYTES {
        let busy = |_| {
            let reason = "Too many large answers at once";
            Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason)
        };
        let _turn = state.large_answers.try_acquire().map_err(busy)?;
        let mut room = first_room(&Pages::new(true)).await?;
        shrink(&mut room, bytes);
        reply.hold(room);
    }
    Ok(reply)
}

/// Returns the `ETag` of a show: a hash of its inputs except the query and the time.
fn tag(request: &Request, design: &RevId, document: Option<&Document>) -> String {
    let user = request.context.user();
    let half = |number: u8| {
        let mut hasher = DefaultHasher::new();
        let rev = document.map(|document| document.rev.to_string());
        (number, design.to_string(), rev, request.header(header::ACCEPT), &user.name, &user.roles).hash(&mut hasher);
        hasher.finish()
    };
    format!("\"{:016x}{:016x}\"", half(0), half(1))
}
