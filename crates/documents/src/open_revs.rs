//! Several revisions of a document, as JSON or as `multipart/mixed`.

use flatbed_http::{ClientGone, Pages, Reply, Sender, first_room, shrink, spawn};
use flatbed_layer::json::{Object, name};
use flatbed_layer::{Document, GetOptions, NotFound, OpenRevs, Reader, Refusal, RevId};
use flatbed_service::json_out;
use hyper::header;

use crate::attached::{AttachmentOptions, parts, send};
use crate::error::Result;
use crate::interrupted::{Interrupted, page_bytes};
use crate::related::related;

/// The form of the documents in the list.
pub struct ListOptions {
    /// The options for attachments.
    pub show: AttachmentOptions,
    /// True to include `_revisions`.
    pub with_revisions: bool,
    /// The form of the list.
    pub form: Form,
}

/// The form of a list of revisions.
pub enum Form {
    /// A JSON array.
    Json,
    /// `multipart/mixed`, where documents with attachments are `multipart/related`.
    Mixed {
        /// The random boundary between documents.
        outer: String,
        /// The random boundary between a document and its attachments.
        inner: String,
    },
}

impl Form {
    fn begin(&self) -> Vec<u8> {
        match self {
            Form::Json => b"[".to_vec(),
            Form::Mixed { outer, .. } => format!("--{outer}").into_bytes(),
        }
    }

    fn end(&self) -> &'static [u8] {
        match self {
            Form::Json => b"]\n",
            Form::Mixed { .. } => b"--",
        }
    }
}

/// Streams several revisions of a document.
///
/// # Errors
/// 404 if all revisions are requested and the document does not exist; 503 without memory; the layer's errors.
pub async fn open_revs(
    database: Reader,
    id: &str,
    revs: OpenRevs,
    options: GetOptions,
    shown: ListOptions,
) -> Result<Reply> {
    let options = GetOptions { conflicts: false, deleted_conflicts: false, revs_info: false, rev: None, ..options };
    let pages = Pages::new(true);
    let mut room = first_room(&pages).await?;
    let (mut found, mut count) = database.open_revs(id, &revs, 0, false, &options).await?;
    shrink(&mut room, bytes_of(&found));
    if count == 0 && revs == OpenRevs::All {
        return Err(Refusal::DocumentNotFound(NotFound::Missing).into());
    }
    let (mut reply, mut sender) = Reply::stream();
    if let Form::Mixed { outer, .. } = &shown.form {
        reply.header(header::CONTENT_TYPE, &format!("multipart/mixed; boundary=\"{outer}\""));
        reply.headers.remove(header::CACHE_CONTROL);
    }
    let id = id.to_owned();
    spawn(async move {
        let mut room = room;
        sender.buffer.extend(shown.form.begin());
        let mut written = 0;
        loop {
            for revision in &found {
                if one(&database, written, revision, &shown, &mut sender).await.is_err() {
                    return;
                }
                written += 1;
            }
            if written >= count || found.is_empty() {
                break;
            }
            found.clear();
            drop(room);
            room = match sender.page_room(&pages).await {
                Ok(room) => room,
                Err(ClientGone) => return,
            };
            (found, count) = match database.open_revs(&id, &revs, written, false, &options).await {
                Ok(more) => more,
                Err(error) => {
                    tracing::warn!(%error, "a list of revisions broke off");
                    return;
                }
            };
            shrink(&mut room, bytes_of(&found));
        }
        sender.buffer.extend_from_slice(shown.form.end());
        let _ = sender.finish().await;
    });
    Ok(reply)
}

fn bytes_of(found: &[std::result::Result<Document, RevId>]) -> usize {
    page_bytes(found.len(), found.iter().flatten())
}

/// Sends the revision at this index of the list.
async fn one(
    database: &Reader,
    at: usize,
    revision: &std::result::Result<Document, RevId>,
    shown: &ListOptions,
    sender: &mut Sender,
) -> std::result::Result<(), Interrupted> {
    let out = &mut sender.buffer;
    match (&shown.form, revision) {
        (Form::Json, Ok(document)) => {
            json_out::comma(at, out);
            out.extend_from_slice(b"{\"ok\":");
            let parts = parts(document, &shown.show, shown.with_revisions);
            send(database, document, parts, sender).await?;
            sender.buffer.push(b'}');
        }
        (Form::Json, Err(rev)) => {
            json_out::comma(at, out);
            missing(rev, out);
        }
        (Form::Mixed { outer, inner }, Ok(document)) => {
            let related = related(document, &shown.show, shown.with_revisions, inner);
            let head = match related.has_data {
                true => format!("\r\nContent-Type: multipart/related; boundary=\"{inner}\"\r\n\r\n"),
                false => "\r\nContent-Type: application/json\r\n\r\n".to_owned(),
            };
            out.extend_from_slice(head.as_bytes());
            send(database, document, related.parts, sender).await?;
            sender.buffer.extend_from_slice(format!("\r\n--{outer}").as_bytes());
        }
        (Form::Mixed { outer, .. }, Err(rev)) => {
            out.extend_from_slice(b"\r\nContent-Type: application/json; error=\"true\"\r\n\r\n");
            missing(rev, out);
            out.extend_from_slice(format!("\r\n--{outer}").as_bytes());
        }
    }
    Ok(sender.send_if_full().await?)
}

/// Writes `{"missing":"..."}`.
fn missing(rev: &RevId, out: &mut Vec<u8>) {
    json_out::rev(rev, Object::new(out).place(name!("missing")));
}
