//! `GET /{db}/{doc}?open_revs=...`: several revisions of a document, as JSON or as `multipart/mixed`.

use flatbed_http::{Gone, Pages, Reply, Sender, first_room, shrink, spawn};
use flatbed_layer::json::{self, Limits, Object, Value, name};
use flatbed_layer::{Document, GetOptions, NotFound, OpenRevs, Reader, Refusal, RevId};
use hyper::header;

use crate::attached::{self, Show};
use crate::error::{Failure, Result, parse_rev};
use crate::json_out;
use crate::multipart;
use crate::related::related;
use crate::reply::{Interrupted, page_bytes};

/// Revisions that one `open_revs` may name.
const OPEN_REVS_MAX: usize = 1_000;

/// What is asked for.
pub(crate) struct Wanted<'a> {
    pub id: &'a str,
    /// `all`, or a list of revisions in JSON.
    pub revs: &'a str,
    pub options: GetOptions,
}

/// How documents of a list are shown.
pub(crate) struct Shown {
    pub show: Show,
    pub with_revisions: bool,
    pub form: Form,
}

/// The form of the list.
pub(crate) enum Form {
    Json,
    /// `multipart/mixed`, whose documents with attachments are `multipart/related`.
    Mixed {
        outer: String,
        inner: String,
    },
}

impl Form {
    /// With boundaries of its own.
    pub(crate) fn mixed() -> Result<Form> {
        Ok(Form::Mixed { outer: multipart::new_boundary()?, inner: multipart::new_boundary()? })
    }

    /// How the list begins.
    fn begin(&self) -> Vec<u8> {
        match self {
            Form::Json => b"[".to_vec(),
            Form::Mixed { outer, .. } => format!("--{outer}").into_bytes(),
        }
    }

    /// How it ends.
    fn end(&self) -> &'static [u8] {
        match self {
            Form::Json => b"]\n",
            Form::Mixed { .. } => b"--",
        }
    }
}

fn revs_of(wanted: &str) -> Result<OpenRevs> {
    if wanted == "all" {
        return Ok(OpenRevs::All);
    }
    let list = json::parse(wanted.as_bytes(), &Limits::default()).map_err(|_| Failure::invalid_json())?;
    let Value::Array(list) = list else { return Err(Failure::invalid_json()) };
    if list.len() > OPEN_REVS_MAX {
        return Err(Failure::bad_request(format!("at most {OPEN_REVS_MAX} revisions")));
    }
    let rev = |rev: &Value<'_>| parse_rev(rev.as_str().ok_or_else(|| Failure::bad_request("Invalid rev format"))?);
    Ok(OpenRevs::Some(list.iter().map(rev).collect::<Result<_>>()?))
}

pub(crate) async fn open_revs(database: Reader, wanted: Wanted<'_>, shown: Shown) -> Result<Reply> {
    let Wanted { id, revs, options } = wanted;
    let options = GetOptions { conflicts: false, deleted_conflicts: false, revs_info: false, rev: None, ..options };
    let revs = revs_of(revs)?;
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
                Err(Gone) => return,
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

/// The revision at this place of the list.
async fn one(
    database: &Reader,
    at: usize,
    revision: &std::result::Result<Document, RevId>,
    shown: &Shown,
    sender: &mut Sender,
) -> std::result::Result<(), Interrupted> {
    let out = &mut sender.buffer;
    match (&shown.form, revision) {
        (Form::Json, Ok(document)) => {
            json_out::comma(at, out);
            out.extend_from_slice(b"{\"ok\":");
            let parts = attached::parts(document, &shown.show, shown.with_revisions);
            attached::send(database, document, parts, sender).await?;
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
            attached::send(database, document, related.parts, sender).await?;
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

/// `{"missing":"..."}`
fn missing(rev: &RevId, out: &mut Vec<u8>) {
    json_out::rev(rev, Object::new(out).place(name!("missing")));
}
