//! The handlers of a user's collections and records.

use std::fmt::Write;
use std::time::Duration;

use flatbed_flatten::json::{self, Object};
use flatbed_http::{CHUNK_BYTES, LITTLE_MAX, PagePermit, Pages, Reply, Request, Sender, first_room, shrink, spawn};
use flatbed_syncstorage::{CollectionName, List, Record, RecordId, Timestamp, Uid};
use hyper::{StatusCode, header};

use crate::condition::precondition;
use crate::error::Result;
use crate::object::{Form, PostedObjects};
use crate::query::Batch;
use crate::reply::StreamEnd;
use crate::signed::SignedBody;
use crate::state::State;
use crate::{accept, limits, object, query, reply};

/// The time limit for a body.
const BODY_MAX: Duration = Duration::from_secs(600);

pub(crate) async fn get(
    state: &State,
    request: &Request,
    uid: Uid,
    collection: &CollectionName,
    id: &RecordId,
) -> Result<Reply> {
    let condition = precondition(&request.headers)?;
    let mut room = first_room(&Pages::of_little()).await?;
    let little = state.store.get_if_small(uid, collection, id, condition, LITTLE_MAX).await?;
    let got = match little {
        Some(got) => got,
        None => {
            // Released first, so that no request holds room while it waits for more.
            drop(room);
            room = first_room(&Pages::new(true)).await?;
            state.store.get(uid, collection, id, condition).await?
        }
    };
    let record = got.record;
    let modified = record.modified;
    shrink(&mut room, record.payload.len() + CHUNK_BYTES);
    let reply = if reply::is_small(record.payload.len()) {
        let mut text = Vec::new();
        reply::write_record(&record, &mut text)?;
        Reply { held: room, ..reply::json(text) }
    } else {
        let (stream, mut sender) = stream(Form::Json);
        spawn(async move {
            let sent = reply::send_record(&record, &mut sender).await;
            drop(room);
            end(sent, sender).await;
        });
        stream
    };
    Ok(reply::with_times(reply, Some(modified), Some(got.now)))
}

/// Handles `GET storage/{collection}`.
pub(crate) async fn list(state: &State, request: &Request, uid: Uid, collection: &CollectionName) -> Result<Reply> {
    let query = query::listed(request.uri.query())?;
    let form = accept::form(request.header(header::ACCEPT))?;
    let condition = precondition(&request.headers)?;
    let pages = Pages::new(query.full);
    let mut room = first_room(&pages).await?;
    let mut list = state.store.list(uid, collection, &query, condition).await?;
    let (modified, now, count) = (list.modified(), list.now(), list.ids().len());
    let next_offset = list.next_offset().map(ToString::to_string);
    let reply = if query.full {
        let first = list.next().await?.unwrap_or_default();
        let bytes: usize = first.iter().map(|record| record.payload.len()).sum();
        shrink(&mut room, bytes + CHUNK_BYTES);
        if first.len() == count && reply::is_small(bytes) {
            let mut text = Vec::new();
            let mut rows = Rows::new(form);
            for record in &first {
                rows.before(&mut text);
                reply::write_record(record, &mut text)?;
                rows.after(&mut text);
            }
            rows.end(&mut text);
            Reply { held: room, ..whole(form, text) }
        } else {
            let (stream, mut sender) = stream(form);
            spawn(async move {
                let sent = send_all(list, first, room, &pages, form, &mut sender).await;
                end(sent, sender).await;
            });
            stream
        }
    } else {
        let mut text = Vec::new();
        let mut rows = Rows::new(form);
        for id in list.ids() {
            rows.before(&mut text);
            json::write_string(id.as_str(), &mut text);
            rows.after(&mut text);
        }
        rows.end(&mut text);
        shrink(&mut room, text.len() + CHUNK_BYTES);
        Reply { held: room, ..whole(form, text) }
    };
    let reply = reply::with_next_offset(reply::with_records(reply, count), next_offset);
    Ok(reply::with_times(reply, Some(modified), Some(now)))
}

/// The separators between the records of a list.
struct Rows {
    form: Form,
    is_first: bool,
}

impl Rows {
    fn new(form: Form) -> Rows {
        Rows { form, is_first: true }
    }

    fn before(&mut self, out: &mut Vec<u8>) {
        if self.form == Form::Json {
            out.push(if self.is_first { b'[' } else { b',' });
        }
        self.is_first = false;
    }

    fn after(&self, out: &mut Vec<u8>) {
        if self.form == Form::Newlines {
            out.push(b'\n');
        }
    }

    fn end(&self, out: &mut Vec<u8>) {
        match (self.form, self.is_first) {
            (Form::Json, true) => out.extend_from_slice(b"[]"),
            (Form::Json, false) => out.push(b']'),
            (Form::Newlines, _) => {}
        }
    }
}

fn kind(form: Form) -> header::HeaderValue {
    match form {
        Form::Json => reply::JSON,
        Form::Newlines => reply::NEWLINES,
    }
}

fn whole(form: Form, text: Vec<u8>) -> Reply {
    reply::whole(StatusCode::OK, Some((kind(form), text.into())))
}

fn stream(form: Form) -> (Reply, Sender) {
    let (stream, sender) = Reply::stream();
    let mut reply = reply::whole(StatusCode::OK, None);
    reply.headers.insert(header::CONTENT_TYPE, kind(form));
    reply.body = stream.body;
    (reply, sender)
}

/// Sends all records of a list. Some were read before the answer began. It holds one page, and reads the next one
/// meanwhile if there is room at once.
async fn send_all(
    mut list: List,
    first: Vec<Record>,
    room: PagePermit,
    pages: &Pages,
    form: Form,
    sender: &mut Sender,
) -> std::result::Result<(), StreamEnd> {
    let mut rows = Rows::new(form);
    let mut page = Some((first, room));
    while let Some((records, room)) = page.take() {
        let ahead = if list.has_more() { pages.try_room() } else { None };
        let sending = async {
            for record in records {
                rows.before(&mut sender.buffer);
                reply::send_record(&record, sender).await?;
                rows.after(&mut sender.buffer);
            }
            drop(room);
            Ok::<_, StreamEnd>(())
        };
        let reading = async {
            match ahead {
                Some(room) => Ok::<_, StreamEnd>(Some(next_page(&mut list, room).await)),
                None => Ok(None),
            }
        };
        // A read failure takes effect behind the records read before it.
        page = match tokio::try_join!(sending, reading)? {
            (_, Some(next)) => next?,
            _ if list.has_more() => {
                let room = sender.page_room(pages).await?;
                next_page(&mut list, room).await?
            }
            _ => None,
        };
    }
    rows.end(&mut sender.buffer);
    Ok(())
}

/// Reads the next page of a list. `room` is reserved for the largest page.
async fn next_page(list: &mut List, mut room: PagePermit) -> Result<Option<(Vec<Record>, PagePermit)>> {
    let Some(records) = list.next().await? else { return Ok(None) };
    shrink(&mut room, records.iter().map(|record| record.payload.len()).sum::<usize>() + CHUNK_BYTES);
    Ok(Some((records, room)))
}

/// Ends a stream. A failed stream is cut, so that its text stays incomplete.
async fn end(sent: std::result::Result<(), StreamEnd>, sender: Sender) {
    match sent {
        Ok(()) => drop(sender.finish().await),
        Err(StreamEnd::Gone) => {}
        Err(StreamEnd::Failed(failure)) => tracing::error!(%failure, "a list of sync's broke off"),
    }
}

pub(crate) async fn put(
    state: &State,
    mut request: Request,
    uid: Uid,
    collection: &CollectionName,
    id: RecordId,
    signed: &SignedBody,
) -> Result<Reply> {
    let (form, body) = body_of(state, &mut request, uid, signed).await?;
    let change = object::put(&body.bytes, form, collection.as_str(), id, state.store.limits())?;
    let condition = precondition(&request.headers)?;
    let written = state.store.put(uid, collection, change, condition).await?;
    drop(body);
    Ok(written_at(written.modified, written.modified.to_string()))
}

/// Handles `POST storage/{collection}`, with or without a batch.
pub(crate) async fn post(
    state: &State,
    mut request: Request,
    uid: Uid,
    collection: &CollectionName,
    signed: &SignedBody,
) -> Result<Reply> {
    let (form, body) = body_of(state, &mut request, uid, signed).await?;
    let limits = state.store.limits();
    let PostedObjects { changes, failed } = object::post(&body.bytes, form, collection.as_str(), limits)?;
    limits::judge(limits, &request.headers)?;
    let batch = query::batch(request.uri.query())?;
    let condition = precondition(&request.headers)?;
    let success: Vec<RecordId> = changes.iter().map(|change| change.id.clone()).collect();
    let store = &state.store;
    let reply = match batch {
        Batch::None | Batch::Commit(_) => {
            let written = match batch {
                Batch::Commit(batch) => store.commit_batch(uid, collection, batch, changes, condition).await?,
                _ => store.post(uid, collection, changes, condition).await?,
            };
            let time = written.modified.to_string();
            written_at(written.modified, posted("modified", time.as_bytes(), &success, &failed))
        }
        Batch::Begin | Batch::Append(_) => {
            let staged = match batch {
                Batch::Append(batch) => store.append_batch(uid, collection, batch, changes, condition).await?,
                _ => store.begin_batch(uid, collection, changes, condition).await?,
            };
            let id = format!("\"{}\"", staged.batch);
            let mut reply = reply::json(posted("batch", id.as_bytes(), &success, &failed));
            reply.status = StatusCode::ACCEPTED;
            reply::with_times(reply, Some(staged.modified), Some(staged.now))
        }
    };
    drop(body);
    Ok(reply)
}

/// Writes the answer to a POST. It begins with the member `name`.
fn posted(name: &'static str, value: &[u8], success: &[RecordId], failed: &[(String, String)]) -> Vec<u8> {
    Object::text(|text| {
        text.raw(name, value);
        let mut ids = text.array("success");
        ids.strings(success.iter().map(RecordId::as_str));
        ids.end();
        let mut reasons = text.object("failed");
        for (id, reason) in failed {
            reasons.string(id.as_str(), reason);
        }
        reasons.end();
    })
}

/// Returns the answer to a write, with its time.
fn written_at(modified: Timestamp, body: impl Into<bytes::Bytes>) -> Reply {
    reply::with_times(reply::json(body), Some(modified), Some(modified))
}

/// Returns the body and its format, after checking its signature.
async fn body_of(
    state: &State,
    request: &mut Request,
    uid: Uid,
    signed: &SignedBody,
) -> Result<(Form, flatbed_http::Body)> {
    let form = Form::of(request.header(header::CONTENT_TYPE));
    let form = request.skip_if_refused(form).await?;
    let bytes_max = usize::try_from(state.store.limits().max_request_bytes).unwrap_or(usize::MAX);
    let body = request.read_small_body(bytes_max, BODY_MAX).await?;
    signed.check(state, request, uid, &body.bytes)?;
    Ok((form, body))
}

pub(crate) async fn delete(
    state: &State,
    request: &Request,
    uid: Uid,
    collection: &CollectionName,
    id: &RecordId,
) -> Result<Reply> {
    let condition = precondition(&request.headers)?;
    let deleted = state.store.delete_record(uid, collection, id, condition).await?;
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write!(text, "{{\"modified\":{}}}", deleted.modified);
    Ok(reply::with_times(reply::json(text), Some(deleted.before), Some(deleted.now)))
}

/// Handles `DELETE storage/{collection}`, for some ids or all.
pub(crate) async fn delete_many(
    state: &State,
    request: &Request,
    uid: Uid,
    collection: &CollectionName,
) -> Result<Reply> {
    let query = query::listed(request.uri.query())?;
    let condition = precondition(&request.headers)?;
    if let Some(ids) = &query.ids {
        let written = state.store.delete_records(uid, collection, ids, condition).await?;
        return Ok(written_at(written.modified, written.modified.to_string()));
    }
    let deleted = state.store.delete_collection(uid, collection, condition).await?;
    let reply = reply::json(deleted.modified.to_string());
    Ok(reply::with_times(reply, Some(deleted.before), Some(deleted.now)))
}

/// Handles `DELETE storage`, and of the user's root.
pub(crate) async fn delete_all(state: &State, request: &Request, uid: Uid) -> Result<Reply> {
    let condition = precondition(&request.headers)?;
    let deleted = state.store.delete_all(uid, condition).await?;
    Ok(reply::with_times(reply::json("null"), Some(deleted.before), Some(deleted.now)))
}
