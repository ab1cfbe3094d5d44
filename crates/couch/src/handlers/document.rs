//! `/{db}/{doc}`

use flatbed_clock::Clock;
use flatbed_http::{Reply, ReplyBody, spawn};
use flatbed_layer::json::{self, Limits, Value};
use flatbed_layer::{
    AttachmentEdit, DESIGN, DocumentId, Edit, EditParts, Error as LayerError, GetOptions, NotFound, Reader, Refusal,
    RevId, check_partitioned_id,
};
use flatbed_service::{Read, Uploads, Write, Writer};
use hyper::{Method, StatusCode, header};

use crate::error::{Failure, Result, parse_rev};
use crate::handlers::partition::{refuse_in_partitioned, without_partition};
use crate::handlers::{local, open_revs, post_form, put_related};
use crate::json_out;
use crate::multipart::{self, accepts, is_kind};
use crate::query::{Query, encode, is_not_false, is_ok, parameters, revision, switch, text};
use crate::request::Request;
use crate::shown::attachments;
use flatbed_documents::{
    self as attached, AttachmentMember, AttachmentOptions, DocumentError, Form, HistoryError, ListOptions,
    MultipartRelated, attachment_edits, check_any_id, history_of, parse_revisions, read_document, related,
};

parameters! {
    /// The parameters of a read.
    struct ReadParameters {
        attachments: AttachmentOptions = attachments,
        rev: Option<RevId> = revision,
        /// True for `revs_info`, `conflicts` and `deleted_conflicts`.
        meta: bool = switch,
        revs: bool = switch,
        revs_info: bool = switch,
        conflicts: bool = switch,
        deleted_conflicts: bool = switch,
        local_seq: bool = switch,
        latest: bool = switch,
        open_revs: Option<String> = text,
    }
}

parameters! {
    /// The parameters of a write, besides `rev`, which a header may name too.
    pub(crate) struct WriteParameters {
        batch: bool = is_ok,
        /// False for replicated edits: the revisions in the request are stored as they are.
        new_edits: bool = is_not_false,
    }
}

pub(crate) async fn document(mut request: Box<Request>, name: &str, id: &str) -> Result<Reply> {
    // Each future is boxed, because callers would copy the largest one for every request.
    match request.method.as_str() {
        "PUT" => Box::pin(put(*request, name, id)).await,
        "DELETE" => Box::pin(delete(*request, name, id)).await,
        "POST" => Box::pin(post_form::post(*request, name, id)).await,
        "COPY" => {
            request.skip_body().await;
            Box::pin(copy(&request, name, id)).await
        }
        _ => Box::pin(get(&request, name, id)).await,
    }
}

/// Redirects `_design%2Fx` to `_design/x`.
pub(crate) fn redirect_design(request: &Request) -> Option<Reply> {
    const ENCODED: &str = "_design%2f";
    let path = request.uri.path_and_query()?.as_str();
    let at = path.to_ascii_lowercase().find(ENCODED)?;
    let (before, behind) = (path.get(..at)?, path.get(at + ENCODED.len()..)?);
    let mut reply = Reply {
        status: StatusCode::MOVED_PERMANENTLY,
        headers: Default::default(),
        body: ReplyBody::Full(None),
        held: None,
    };
    reply.header(header::LOCATION, &format!("{}{before}{DESIGN}/{behind}", request.base()));
    Some(reply)
}

/// Returns a read's result. In a partitioned database an id without a partition is 400, as in CouchDB, which finds no
/// shard for it.
async fn check_read<T>(database: &Reader, id: &str, read: attached::Result<T>) -> Result<T> {
    let is_missing = matches!(read, Err(DocumentError::Layer(LayerError::Refused(Refusal::DocumentNotFound(_)))));
    if is_missing && !id.contains(':') && !id.starts_with('_') && database.is_partitioned().await? {
        check_partitioned_id(id)?;
    }
    Ok(read?)
}

async fn get(request: &Request, name: &str, id: &str) -> Result<Reply> {
    let database = request.context.database(name, Read).await?;
    let mut parameters: ReadParameters = request.query.parameters()?;
    let open_revs = parameters.open_revs.take();
    let (show, mut options) = parameters.into_options();
    let with_revisions = options.revs;
    options.revs |= show.since.is_some();
    if let Some(open_revs) = open_revs {
        refuse_in_partitioned(&database, without_partition(std::iter::once(id))).await?;
        let form = if accepts(&request.headers, "multipart/mixed") { open_revs::mixed()? } else { Form::Json };
        let wanted = open_revs::OpenRevsRequest { id, revs: &open_revs, options };
        let shown = ListOptions { show, with_revisions, form };
        return Box::pin(open_revs::open_revs(database, wanted, shown)).await;
    }
    if options.latest
        && let Some(rev) = options.rev.take()
    {
        // CouchDB returns the winner if it knows the named revision.
        let missing = database.missing_revs(&[(id.to_owned(), vec![rev])]).await?;
        if missing.iter().any(|(missing, _)| !missing.is_empty()) {
            return Err(Refusal::DocumentNotFound(NotFound::Missing).into());
        }
        options.tombstone = true;
    }
    // Their answers change while the revision stays.
    let varies = options.revs_info || options.local_seq;
    let (document, room) = check_read(&database, id, read_document(&database, id, options).await).await?;
    let etag = etag(&document.rev);
    let has_any = |revs: &Option<Vec<RevId>>| revs.as_ref().is_some_and(|revs| !revs.is_empty());
    let has_conflicts = has_any(&document.conflicts) || has_any(&document.deleted_conflicts);
    let tagged = !varies && !has_conflicts;
    if tagged && request.accepts_cached(&etag) {
        return Ok(Reply::not_modified(&etag));
    }
    let mut reply = if document.attachments.is_empty() || !(show.data || show.encoding) {
        let mut out = Vec::new();
        json_out::document(&document, &mut out);
        Reply { held: room, ..Reply::json(StatusCode::OK, out) }
    } else {
        let boundary = multipart::new_boundary()?;
        let as_related = show.data && accepts(&request.headers, "multipart/related");
        let related = as_related.then(|| related(&document, &show, with_revisions, &boundary));
        let (mut reply, mut sender) = Reply::stream();
        let (parts, end) = match related {
            Some(MultipartRelated { parts, has_data }) => {
                if has_data {
                    let kind = format!("multipart/related; boundary=\"{boundary}\"");
                    reply.header(header::CONTENT_TYPE, &kind);
                    reply.headers.remove(header::CACHE_CONTROL);
                }
                (parts, None)
            }
            None => (attached::parts(&document, &show, with_revisions), Some(b'\n')),
        };
        let length = attached::length(&document, &parts) + u64::from(end.is_some());
        reply.header(header::CONTENT_LENGTH, &length.to_string());
        if request.method == Method::GET {
            spawn(async move {
                let _room = room;
                if attached::send(&database, &document, parts, &mut sender).await.is_ok() {
                    sender.buffer.extend(end);
                    let _ = sender.finish().await;
                }
            });
        }
        reply
    };
    if tagged {
        reply.header(header::ETAG, &etag);
    }
    Ok(reply)
}

impl ReadParameters {
    fn into_options(self) -> (AttachmentOptions, GetOptions) {
        let ReadParameters { meta, rev, .. } = self;
        // CouchDB shows no conflicts for a named revision.
        let shows_conflicts = rev.is_none();
        let options = GetOptions {
            revs: self.revs,
            revs_info: meta || self.revs_info,
            conflicts: (meta || self.conflicts) && shows_conflicts,
            deleted_conflicts: (meta || self.deleted_conflicts) && shows_conflicts,
            local_seq: self.local_seq,
            latest: self.latest,
            rev,
            ..GetOptions::default()
        };
        (self.attachments, options)
    }
}

/// Parses an edit from JSON; `id` is the path's. The caller uploads the returned attachments.
pub(crate) fn edit_of<'b>(
    bytes: &'b [u8],
    id: Option<&str>,
    new_edits: bool,
    clock: &Clock,
) -> Result<(Edit<'b>, Vec<AttachmentMember<'b>>)> {
    let value = json::parse(bytes, &Limits::default()).map_err(|_| Failure::invalid_json())?;
    edit_from(value, id, new_edits, clock)
}

/// Parses an edit as [`edit_of`] does, without replicated revisions.
pub(crate) fn edit_of_client<'b>(
    bytes: &'b [u8],
    id: &str,
    clock: &Clock,
) -> Result<(Edit<'b>, Vec<AttachmentMember<'b>>)> {
    edit_of(bytes, Some(id), true, clock)
}

/// Parses an edit from a JSON value as [`edit_of`] does.
pub(crate) fn edit_from<'b>(
    value: Value<'b>,
    id: Option<&str>,
    new_edits: bool,
    clock: &Clock,
) -> Result<(Edit<'b>, Vec<AttachmentMember<'b>>)> {
    edit_of_parts(EditParts::from_json(value, clock)?, id, new_edits)
}

/// Parses the edit of a `PUT`, with the revision of the query string or headers. With `new_edits=false` that revision
/// is stored, unless the body names one.
pub(crate) fn edit_put<'b>(
    bytes: &'b [u8],
    id: &str,
    request: &Request,
) -> Result<(Edit<'b>, Vec<AttachmentMember<'b>>)> {
    let value = json::parse(bytes, &Limits::default()).map_err(|_| Failure::invalid_json())?;
    let mut parts = EditParts::from_json(value, request.context.clock())?;
    let named = named_rev(request)?;
    if parts.rev.is_none() && parts.revisions.is_none() {
        parts.rev = named.clone();
    }
    let WriteParameters { new_edits, .. } = request.query.parameters()?;
    let (edit, written) = edit_of_parts(parts, Some(id), new_edits)?;
    let own = edit.history.as_ref().and_then(|history| history.first()).or(edit.parent.as_ref());
    if named.is_some_and(|named| own.is_some_and(|own| *own != named)) {
        return Err(differing_revs(request));
    }
    Ok((edit, written))
}

/// The refusal of a document whose revision differs from that of the query string or, without one there, of the
/// headers.
fn differing_revs(request: &Request) -> Failure {
    match rev_of_query(request) {
        Some(_) => Failure::bad_request("Document rev from request body and query string have different values"),
        None => differing_tag(),
    }
}

fn rev_of_query(request: &Request) -> Option<&str> {
    request.query.get("rev").filter(|rev| !rev.is_empty())
}

fn differing_tag() -> Failure {
    Failure::bad_request("Document rev and etag have different values")
}

fn edit_of_parts<'b>(
    mut parts: EditParts<'b>,
    id: Option<&str>,
    new_edits: bool,
) -> Result<(Edit<'b>, Vec<AttachmentMember<'b>>)> {
    let written = attached::parse_attachments(parts.attachments.take())?;
    let history = if new_edits { None } else { Some(history_of(&parts).map_err(history_failure)?) };
    let parent = match (parts.rev, &parts.revisions) {
        _ if !new_edits => None,
        // The newest revision of `_revisions` is the parent.
        (None, Some(revisions)) => parse_revisions(revisions).ok_or_else(invalid_revisions)?.into_iter().next(),
        (rev, _) => rev,
    };
    let id = match (id, parts.id) {
        (Some(id), _) => id.to_owned().into(),
        (None, Some(id)) => {
            check_any_id(&id)?;
            id
        }
        (None, None) => "".into(),
    };
    let attachments = Vec::new();
    Ok((
        Edit { expiry: parts.expiry, id, parent, history, deleted: parts.deleted, attachments, body: parts.body },
        written,
    ))
}

fn invalid_revisions() -> Failure {
    Failure::new(StatusCode::BAD_REQUEST, "doc_validation", "_revisions is not as CouchDB writes it")
}

fn history_failure(error: HistoryError) -> Failure {
    match error {
        HistoryError::Malformed => invalid_revisions(),
        HistoryError::Missing => {
            Failure::bad_request("When `new_edits: false`, the document needs `_rev` or `_revisions` specified")
        }
    }
}

/// Returns the revision that the query string or headers name.
pub(crate) fn named_rev(request: &Request) -> Result<Option<RevId>> {
    let query = rev_of_query(request);
    let header = request.header(header::IF_MATCH).map(|tag| tag.trim().trim_matches('"')).filter(|tag| !tag.is_empty());
    match (query, header) {
        (Some(query), Some(header)) if query != header => Err(differing_tag()),
        (Some(rev), _) | (None, Some(rev)) => parse_rev(rev).map(Some),
        (None, None) => Ok(None),
    }
}

async fn put(mut request: Request, name: &str, id: &str) -> Result<Reply> {
    request.skip_if_refused(flatbed_layer::check_document_id(id)).await?;
    if is_kind(request.header(header::CONTENT_TYPE).unwrap_or_default(), "multipart/related") {
        return Box::pin(put_related::put(request, name, id)).await;
    }
    let body = request.read_body().await?;
    let (mut edit, written) = edit_put(&body.bytes, id, &request)?;
    let mut uploads = Uploads::new(&request.context.database(name, Write).await?);
    edit.attachments = attachment_edits(&mut uploads, written, |_| None).await?;
    uploads.stage().await?;
    // Boxed, because thousands of requests may wait for a body and must not reserve space for this future.
    let reply = Box::pin(write_put(&request, name, &edit)).await?;
    if edit.history.is_none() {
        uploads.mark_taken();
    }
    Ok(reply)
}

/// Sets an edit's parent to the revision of the query string or headers.
pub(crate) fn name_parent(request: &Request, edit: &mut Edit<'_>) -> Result<()> {
    match (named_rev(request)?, &edit.parent) {
        (Some(named), Some(parent)) if named != *parent => return Err(differing_revs(request)),
        (Some(named), _) => edit.parent = Some(named),
        (None, _) => {}
    }
    Ok(())
}

/// Writes an edit as [`write_one`] does, with a `location` header. A deletion answers 200.
pub(crate) async fn write_put(request: &Request, name: &str, edit: &Edit<'_>) -> Result<Reply> {
    let WriteParameters { batch, .. } = request.query.parameters()?;
    let mut reply = write_one(&request.context.database(name, Write).await?, edit, batch).await?;
    if !batch {
        let location = format!("{}/{}/{}", request.base(), encode(name), encode(&edit.id));
        reply.header(header::LOCATION, &location);
        if edit.deleted {
            reply.status = StatusCode::OK;
        }
    }
    Ok(reply)
}

/// Writes an edit and answers 201 with its `ETag`, or 202 if the client requested a batch, which is equally durable.
pub(crate) async fn write_one(database: &Writer, edit: &Edit<'_>, batch: bool) -> Result<Reply> {
    let updated = database.update(edit).await?;
    if batch {
        return Ok(Reply::object(StatusCode::ACCEPTED, |object| {
            object.bool("ok", true).string("id", &edit.id);
        }));
    }
    Ok(written(&edit.id, &updated.rev))
}

fn written(id: &str, rev: &RevId) -> Reply {
    let mut out = Vec::with_capacity(100);
    json_out::written(id, rev, &mut out);
    let mut reply = Reply::json(StatusCode::CREATED, out);
    reply.header(header::ETAG, &etag(rev));
    reply
}

pub(crate) struct Destination {
    /// A document's id, with the prefix `_local/` for a local document.
    id: String,
    onto: Option<RevId>,
}

fn is_absolute(place: &str) -> bool {
    let scheme = place.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)))
}

impl Destination {
    /// Parses the header `Destination`; 400 if it is missing or names no document.
    pub(crate) fn of(request: &Request) -> Result<Destination> {
        let destination = request.headers.get("destination").and_then(|value| value.to_str().ok());
        let destination =
            destination.ok_or_else(|| Failure::bad_request("Destination header is mandatory for COPY."))?;
        // The target must be in this database.
        if is_absolute(destination) {
            return Err(Failure::bad_request("Destination URL must be relative."));
        }
        let (target, query) = destination.split_once('?').unwrap_or((destination, ""));
        let id = crate::query::decode(target)?;
        check_any_id(&id)?;
        let onto = revision(&Query::parse(Some(query))?, "rev")?;
        Ok(Destination { id, onto })
    }

    /// Writes the copy. `body` is JSON text without braces. Local documents have no attachments.
    pub(crate) async fn write(
        self,
        request: &Request,
        name: &str,
        members: &[u8],
        attachments: Vec<(String, AttachmentEdit)>,
    ) -> Result<Reply> {
        let text = [b"{", members, b"}"].concat();
        let body = json::parse(&text, &Limits::default()).map_err(|_| Failure::invalid_json())?;
        let Destination { id, onto } = self;
        let edit = Edit { expiry: None, id: id.into(), parent: onto, history: None, deleted: false, attachments, body };
        let database = request.context.database(name, Write).await?;
        let mut reply = if DocumentId::of(&edit.id).is_local() {
            written(&edit.id, &local::edit_one(&database, &edit).await?.rev)
        } else {
            write_one(&database, &edit, false).await?
        };
        let location = format!("{}/{}/{}", request.base(), encode(name), encode(&edit.id));
        reply.header(header::LOCATION, &location);
        Ok(reply)
    }
}

async fn copy(request: &Request, name: &str, id: &str) -> Result<Reply> {
    let destination = Destination::of(request)?;
    let database = request.context.database(name, Read).await?;
    let rev = revision(&request.query, "rev")?;
    let source = database.get(id, &GetOptions { rev, ..GetOptions::default() }).await?;
    let copied = source.attachments.into_iter();
    let attachments = copied.map(|attachment| (attachment.name.clone(), AttachmentEdit::Copy(attachment))).collect();
    destination.write(request, name, &source.body, attachments).await
}

async fn delete(mut request: Request, name: &str, id: &str) -> Result<Reply> {
    request.skip_body().await;
    let parent = named_rev(&request)?;
    // As in CouchDB, 404 takes precedence over 409.
    let look = GetOptions { no_body: true, ..GetOptions::default() };
    let database = request.context.database(name, Read).await?;
    check_read(&database, id, database.get(id, &look).await.map_err(DocumentError::from)).await?;
    let edit = Edit {
        expiry: None,
        id: id.into(),
        parent,
        history: None,
        deleted: true,
        attachments: Vec::new(),
        body: Value::Object(Vec::new()),
    };
    if edit.parent.is_none() {
        return Err(Refusal::Conflict.into());
    }
    let WriteParameters { batch, .. } = request.query.parameters()?;
    let mut reply = write_one(&request.context.database(name, Write).await?, &edit, batch).await?;
    if !batch {
        reply.status = StatusCode::OK;
    }
    Ok(reply)
}

fn etag(rev: &RevId) -> String {
    format!("\"{rev}\"")
}
