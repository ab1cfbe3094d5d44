//! `_bulk_get`: revisions of many documents, always as `multipart/mixed`.

use std::collections::HashSet;

use flatbed_documents::{ATTS_SINCE_MAX, AttachmentOptions, header_text, parts, related, send};
use flatbed_http::{Memory, Pages, Reply, Sender, shrink, spawn};
use flatbed_layer::json::{Object, Value, name};
use flatbed_layer::{Document, GetOptions, GetOutcome, NotFound, Reader, Refusal, RevId};
use flatbed_service::Read;
use hyper::{StatusCode, header};

use crate::body::new_id;
use crate::bulk::{ENTRIES_MAX, too_many};
use crate::error::{Failure, Result};
use crate::reply::{self, Interrupted, page_bytes};
use crate::request::{Request, object, take};

/// The largest batch of documents in one read; the layer returns as many as fit.
const READ_AT_ONCE: usize = 100;

/// A parsed entry. It may be many times larger than its JSON, so it is built when its turn comes.
enum BulkGetEntry {
    Document {
        id: String,
        options: GetOptions,
        show: AttachmentOptions,
    },
    /// An entry with a malformed id, revision or `atts_since`.
    Malformed {
        id: String,
        rev: Option<String>,
    },
    /// An entry whose `rev` is no revision id, which counts as a missing revision.
    Missing {
        id: String,
        rev: String,
    },
}

impl BulkGetEntry {
    fn new(doc: &Value<'_>, revs: bool, data: bool) -> BulkGetEntry {
        let text = |name| doc.get(name).and_then(Value::as_str).filter(|text: &&str| !text.is_empty());
        let (id, rev) = (text("id"), text("rev"));
        let nonsense =
            || BulkGetEntry::Malformed { id: id.unwrap_or_default().to_owned(), rev: rev.map(str::to_owned) };
        let Some(id) = id.filter(|id| flatbed_layer::check_document_id(id).is_ok()) else { return nonsense() };
        if rev.is_none() && !matches!(doc.get("rev"), None | Some(Value::Null)) {
            return nonsense();
        }
        let since = match doc.get("atts_since") {
            Some(Value::Array(revs)) if revs.len() > ATTS_SINCE_MAX => return nonsense(),
            Some(Value::Array(revs)) if !revs.is_empty() => {
                Some(revs.iter().filter_map(|rev| rev.as_str()?.parse().ok()).collect::<HashSet<RevId>>())
            }
            _ => None,
        };
        let rev = match rev.map(|rev| (rev, rev.parse::<RevId>())) {
            None => None,
            Some((_, Ok(rev))) => Some(rev),
            Some((rev, Err(_))) => return BulkGetEntry::Missing { id: id.to_owned(), rev: rev.to_owned() },
        };
        // The client needs the revisions to tell which of its `atts_since` is an ancestor.
        let revs = revs || since.is_some();
        let options = GetOptions { rev, revs, ..GetOptions::default() };
        BulkGetEntry::Document {
            id: id.to_owned(),
            options,
            show: AttachmentOptions { data, since, ..AttachmentOptions::default() },
        }
    }
}

pub(crate) async fn bulk_get(mut request: Request, db: &str) -> Result<Reply> {
    let accept = request.header(header::ACCEPT).unwrap_or_default();
    if !accept.contains("multipart/") && !accept.contains("*/*") {
        return request.refuse(Failure::new(StatusCode::NOT_ACCEPTABLE, "Response is multipart")).await;
    }
    let body = request.json().await?;
    let Some(Value::Array(docs)) = take(object(&body.bytes)?, "docs") else {
        return Err(Failure::bad_request("missing 'docs' property"));
    };
    if docs.len() > ENTRIES_MAX {
        return Err(too_many());
    }
    let docs = docs.into_iter().map(Value::into_owned).collect();
    let (revs, data) = (request.query.flag("revs"), request.query.flag("attachments"));
    let database = request.context.database(db, Read).await?;
    database.exists().await?;
    let walk = BulkGet { database, docs, revs, data, outer: format!("--{}", new_id()?), _memory: body.memory };
    let (mut reply, mut sender) = reply::stream();
    reply.header(header::CONTENT_TYPE, &format!("multipart/mixed; boundary=\"{}\"", walk.outer));
    spawn(async move {
        if walk.write(&mut sender).await.is_ok() {
            let _ = sender.finish().await;
        }
    });
    Ok(reply)
}

struct BulkGet {
    database: Reader,
    docs: Vec<Value<'static>>,
    revs: bool,
    data: bool,
    /// The random boundary between documents.
    outer: String,
    _memory: Memory,
}

impl BulkGet {
    async fn write(&self, sender: &mut Sender) -> std::result::Result<(), Interrupted> {
        let pages = Pages::new(true);
        let mut rest = &self.docs[..];
        while !rest.is_empty() {
            let mut room = sender.page_room(&pages).await?;
            let part = rest.get(..READ_AT_ONCE).unwrap_or(rest);
            let wanted: Vec<BulkGetEntry> =
                part.iter().map(|doc| BulkGetEntry::new(doc, self.revs, self.data)).collect();
            let requests = wanted.iter().filter_map(|wanted| match wanted {
                BulkGetEntry::Document { id, options, .. } => Some((id.clone(), options.clone())),
                BulkGetEntry::Malformed { .. } | BulkGetEntry::Missing { .. } => None,
            });
            let requests: Vec<(String, GetOptions)> = requests.collect();
            let found = if requests.is_empty() { Vec::new() } else { self.database.get_many(&requests).await? };
            let documents = found.iter().filter_map(|got| match got {
                GetOutcome::Document(document) => Some(&**document),
                GetOutcome::Missing(_) | GetOutcome::Several => None,
            });
            shrink(&mut room, page_bytes(found.len(), documents));
            let (mut found, mut done) = (found.into_iter(), 0);
            for wanted in wanted {
                match wanted {
                    BulkGetEntry::Malformed { id, rev } => {
                        let failure = Failure::bad_request("Invalid doc/rev ID in _bulk_get");
                        self.failed(&id, rev.as_deref(), &failure, sender);
                    }
                    BulkGetEntry::Missing { id, rev } => self.missing(&id, Some(&rev), NotFound::Missing, sender),
                    BulkGetEntry::Document { id, options, show } => {
                        let rev = options.rev.map(|rev| rev.to_string());
                        match found.next() {
                            // The layer returned fewer documents than requested; the next round reads the rest.
                            None => break,
                            Some(GetOutcome::Document(document)) => self.document(&document, &show, sender).await?,
                            Some(GetOutcome::Missing(reason)) => self.missing(&id, rev.as_deref(), reason, sender),
                            // Impossible: the request names one revision or the winner.
                            Some(GetOutcome::Several) => self.missing(&id, rev.as_deref(), NotFound::Missing, sender),
                        }
                    }
                }
                done += 1;
                sender.send_if_full().await?;
            }
            rest = rest.get(done.max(1)..).unwrap_or_default();
        }
        sender.buffer.extend_from_slice(format!("\r\n--{}--\r\n", self.outer).as_bytes());
        Ok(())
    }

    async fn document(
        &self,
        document: &Document,
        show: &AttachmentOptions,
        sender: &mut Sender,
    ) -> std::result::Result<(), Interrupted> {
        let outer = &self.outer;
        let inner = format!("--{}", new_id().map_err(|_| Interrupted)?);
        let related = if show.data { Some(related(document, show, self.revs, &inner)) } else { None };
        match related.filter(|related| related.has_data) {
            Some(related) => {
                let head = format!(
                    "\r\n--{outer}\r\nX-Doc-Id: {}\r\nX-Rev-Id: {}\r\nContent-Type: multipart/related; boundary=\"{inner}\"\r\n\r\n",
                    header_text(&document.id),
                    header_text(&document.rev.to_string()),
                );
                sender.buffer.extend_from_slice(head.as_bytes());
                send(&self.database, document, related.parts, sender).await
            }
            None => {
                let head = format!("\r\n--{outer}\r\nContent-Type: application/json\r\n\r\n");
                sender.buffer.extend_from_slice(head.as_bytes());
                send(&self.database, document, parts(document, show, self.revs), sender).await
            }
        }
    }

    fn missing(&self, id: &str, rev: Option<&str>, reason: NotFound, sender: &mut Sender) {
        self.failed(id, rev, &Refusal::DocumentNotFound(reason).into(), sender);
    }

    fn failed(&self, id: &str, rev: Option<&str>, failure: &Failure, sender: &mut Sender) {
        let out = &mut sender.buffer;
        let head = format!("\r\n--{}\r\nContent-Type: application/json; error=\"true\"\r\n\r\n", self.outer);
        out.extend_from_slice(head.as_bytes());
        let mut object = Object::new(out);
        object.string(name!("error"), &failure.row_error()).string(name!("id"), id);
        object.string(name!("reason"), &failure.reason);
        if let Some(rev) = rev {
            object.string(name!("rev"), rev);
        }
        object.number(name!("status"), failure.status.as_u16().into());
    }
}
