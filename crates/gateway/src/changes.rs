//! `_changes`, in all its forms.
//!
//! With `feed=websocket` the client first sends its options as a message, in the form of a `POST` body. As in Sync
//! Gateway, rows are sent as JSON arrays, an empty array says that the client is caught up, and heartbeats are empty
//! messages.

mod parameters;

use std::time::Duration;

use flatbed_documents::{FeedOutput, FeedWait, feed_page_bytes, gives_way, id_set_bytes};
use flatbed_http::{
    AnonymousFeed, CHUNK_BYTES, FREE_BYTES, Handshake, Heartbeat, Memory, PagePermit, Pages, Reply, Sender, first_room,
    message_room, shrink, spawn,
};
use flatbed_layer::json::{self, Limits, Object, Value, name};
use flatbed_layer::{ChangeRow, ChangesPage, Documents, RowKind, Scope, Since};
use flatbed_service::{Feed, FeedQuery, Filter, Heartbeats, Read, json_out};
use hyper::{Method, header};

use self::parameters::{FeedParameters, Form};
use crate::error::{Failure, Result};
use crate::reply::{self, Interrupted, uncached};
use crate::request::Request;
use crate::session::name_of;
use crate::state::Gateway;

/// The largest options message in bytes.
const OPTIONS_BYTES_MAX: usize = FREE_BYTES;

/// Timeout of the options message.
const OPTIONS_MAX: Duration = Duration::from_secs(10);

pub(crate) async fn changes(state: &Gateway, mut request: Request, name: &str) -> Result<Reply> {
    let mut memory = Memory::default();
    let posted = if request.method == Method::POST {
        let body = request.json().await?;
        let invalid = |reason: String| Failure::bad_request(format!("Invalid JSON: {reason}"));
        let value = json::parse(&body.bytes, &Limits::default()).map_err(|error| invalid(error.to_string()))?;
        if !matches!(value, Value::Object(_)) {
            return Err(invalid("it is no object".to_owned()));
        }
        memory = body.memory;
        value.into_owned()
    } else {
        Value::Null
    };
    let asked = FeedParameters::new(&request.query, &posted)?;
    drop(posted);
    if asked.form == Form::WebSocket {
        return Box::pin(over_websocket(state, request, name)).await;
    }
    let (reply, sender) = reply::stream();
    let begun = StartedFeed::new(&request, name, asked, memory).await?;
    let has_name = has_name(&request);
    let following = if begun.feed.can_wait() { state.shell.follow(request.peer, has_name)? } else { None };
    let mut reply = uncached(reply);
    if begun.form == Form::Continuous {
        reply.header(header::CONTENT_TYPE, "application/octet-stream");
    }
    let sender = if begun.form == Form::Continuous { sender.in_whole_pieces() } else { sender };
    spawn(async move { begun.write(sender, following).await });
    Ok(reply)
}

/// Returns whether the client is signed in, as an account of the server or a user of the database.
fn has_name(request: &Request) -> bool {
    request.context.principal().is_admin || name_of(request.context.standing()).is_some()
}

/// Handles `feed=websocket`. Checks what it can before the handshake; later errors become the close reason.
async fn over_websocket(state: &Gateway, mut request: Request, name: &str) -> Result<Reply> {
    let handshake = Handshake::of(&state.shell.cors(), &mut request)?;
    request.context.database(name, Read).await?.exists().await?;
    let following = state.shell.follow(request.peer, has_name(&request))?;
    // Reserved until the message is parsed.
    let memory = request.body.room_for(message_room(OPTIONS_BYTES_MAX))?;
    let (reply, opening) = handshake.open();
    let name = name.to_owned();
    spawn(async move {
        let said = opening.first_message(OPTIONS_BYTES_MAX, OPTIONS_MAX);
        let said = tokio::select! {
            said = said => said,
            () = gives_way(following.as_ref()) => None,
        };
        let Some((message, socket)) = said else { return };
        let begun = async {
            let parsed = json::parse(&message, &Limits::default());
            let message = parsed.map_err(|error| Failure::bad_request(format!("Invalid JSON: {error}")))?;
            let asked = FeedParameters::of_message(std::mem::take(&mut request.query), &message)?;
            StartedFeed::new(&request, &name, asked, Memory::default()).await
        };
        match Box::pin(begun).await {
            Ok(begun) => {
                drop((request, message, memory));
                let (lines, sender) = reply::stream();
                let sending = spawn(async move { begun.write(sender, following).await });
                socket.send(lines, Heartbeat::Message).await;
                // The feed ends when its client disconnects.
                let _ = sending.await;
            }
            Err(failure) => socket.refuse(&failure.reason).await,
        }
    });
    Ok(reply)
}

/// A feed with its first page.
struct StartedFeed {
    form: Form,
    feed: Feed,
    pages: Pages,
    room: PagePermit,
    first: ChangesPage,
    left: u64,
    last_seq: String,
    heartbeats: Heartbeats,
    memory: Memory,
}

impl StartedFeed {
    /// Reads the first page before the answer begins, so that a missing database is a 404.
    async fn new(request: &Request, name: &str, asked: FeedParameters, mut memory: Memory) -> Result<StartedFeed> {
        let FeedParameters {
            form,
            since,
            limit,
            all_leaves,
            include_docs,
            active_only,
            revocations,
            scope,
            timeout,
            heartbeat,
        } = asked;
        if let Scope::Ids(ids) = &scope {
            memory = memory.keep(&request.memory, id_set_bytes(ids))?;
        }
        let last_seq = match &since {
            Since::After(place) => place.to_string(),
            Since::Beginning | Since::Now => "0".to_owned(),
        };
        let database = request.context.database(name, Read).await?;
        let documents = if include_docs { Documents::Yes } else { Documents::No };
        let asked = FeedQuery {
            since,
            descending: false,
            limit,
            scope,
            active_only,
            revocations,
            filter: Filter::None,
            all_leaves,
            documents,
            filtered: Documents::No,
            follow: form.follow(),
            timeout,
        };
        let mut feed = Box::pin(request.context.feed(&database, asked)).await?;
        let pages = Pages::new(feed.has_documents());
        let mut room = first_room(&pages).await?;
        let first = feed.next_page().await?;
        shrink(&mut room, feed_page_bytes(&first));
        let left = limit.unwrap_or(u64::MAX);
        // A normal feed has none.
        let heartbeat = heartbeat.filter(|_| form != Form::Normal);
        let heartbeats = Heartbeats::new(heartbeat, request.context.clock());
        Ok(StartedFeed { form, feed, pages, room, first, left, last_seq, heartbeats, memory })
    }

    async fn write(self, sender: Sender, following: Option<AnonymousFeed>) {
        let StartedFeed { form, feed, pages, room, first, left, last_seq, heartbeats, memory } = self;
        let output = FeedOutput::new(feed, sender, pages, heartbeats, b"\n", following);
        let mut writer = Writer { output, form, left, rows: 0, is_caught_up: false, last_seq, _memory: memory };
        let done = writer.write(first, room).await;
        let _ = match (done, writer.output.lost) {
            (Ok(()), _) => writer.output.sender.finish().await,
            (Err(_), Some(error)) => writer.output.sender.refuse(Failure::from(error).reason).await,
            (Err(_), None) => Ok(()),
        };
    }
}

struct Writer {
    output: FeedOutput,
    form: Form,
    /// The rest of the limit, in rows.
    left: u64,
    rows: u64,
    /// True if the client has been told that it is caught up.
    is_caught_up: bool,
    /// The sequence of the last row, or of the feed's start.
    last_seq: String,
    _memory: Memory,
}

enum FeedRest {
    Pages,
    Nothing,
}

type WriteResult = std::result::Result<(), Interrupted>;

impl Writer {
    async fn write(&mut self, first: ChangesPage, room: PagePermit) -> WriteResult {
        let is_list = self.form.is_list();
        if is_list {
            self.output.sender.buffer.extend_from_slice(b"{\"results\":[");
        }
        self.all_rows(first, room).await?;
        if is_list {
            self.output.sender.buffer.extend_from_slice(b"\n],\n");
            json_out::member("last_seq", &self.last_seq, &mut self.output.sender.buffer);
            self.output.sender.buffer.extend_from_slice(b"}\n");
        }
        Ok(())
    }

    async fn all_rows(&mut self, mut page: ChangesPage, mut room: PagePermit) -> WriteResult {
        loop {
            self.rows(&std::mem::take(&mut page.rows)).await?;
            if page.at_end {
                match self.until_more(&mut room).await? {
                    FeedRest::Pages => {}
                    FeedRest::Nothing => return Ok(()),
                }
            }
            if self.left == 0 {
                return Ok(());
            }
            (room, page) = self.output.next_page(room).await?;
        }
    }

    /// Follows until there are pages to read or the feed ends.
    async fn until_more(&mut self, room: &mut PagePermit) -> std::result::Result<FeedRest, Interrupted> {
        loop {
            if self.left == 0 || !self.output.feed.can_wait() || (self.form == Form::Longpoll && self.rows > 0) {
                return Ok(FeedRest::Nothing);
            }
            if self.form == Form::WebSocket && !self.is_caught_up {
                self.output.sender.buffer.extend_from_slice(b"[]\n");
                self.is_caught_up = true;
            }
            // Sends the head before the wait, so that the client sees the connection.
            self.output.sender.flush().await?;
            drop(room.take());
            match self.output.wait().await? {
                FeedWait::Shared(rows) => {
                    let rows: Vec<ChangeRow> = rows.iter().map(|row| self.output.feed.shown(row)).collect();
                    self.rows(&rows).await?;
                }
                FeedWait::Passed(rows) => self.rows(&rows).await?,
                FeedWait::ReadOn => return Ok(FeedRest::Pages),
                FeedWait::Over => return Ok(FeedRest::Nothing),
            }
        }
    }

    async fn rows(&mut self, rows: &[ChangeRow]) -> WriteResult {
        self.output.mark_judged().await?;
        // A WebSocket message is an array of the rows that are sent at once.
        let mut is_open = false;
        for row in rows {
            // Sync Gateway does not list design documents.
            let is_hidden = row.id.starts_with('_') && row.kind != RowKind::User;
            if is_hidden {
                continue;
            }
            if self.left == 0 {
                break;
            }
            self.left -= 1;
            match self.form {
                Form::Normal | Form::Longpoll => {
                    self.output.sender.buffer.extend_from_slice(if self.rows > 0 { b",\n" } else { b"\n" });
                }
                Form::Continuous => {}
                Form::WebSocket => self.output.sender.buffer.push(if is_open { b',' } else { b'[' }),
            }
            is_open = true;
            self.rows += 1;
            self.output.sender.count_row();
            write_row(row, &mut self.output.sender.buffer);
            match self.form {
                Form::Normal | Form::Longpoll => {}
                Form::Continuous => self.output.sender.buffer.push(b'\n'),
                Form::WebSocket if self.output.sender.buffer.len() >= CHUNK_BYTES => {
                    self.output.sender.buffer.extend_from_slice(b"]\n");
                    is_open = false;
                }
                Form::WebSocket => {}
            }
            self.last_seq = row.place().to_string();
            self.output.sender.send_if_full().await?;
        }
        if self.form == Form::WebSocket && is_open {
            self.output.sender.buffer.extend_from_slice(b"]\n");
        }
        if !self.form.is_list() {
            self.output.sender.flush().await?;
        }
        Ok(())
    }
}

fn write_row(row: &ChangeRow, out: &mut Vec<u8>) {
    let mut open = Object::new(out);
    json_out::place(&row.place(), open.place(name!("seq")));
    open.string(name!("id"), &row.id);
    if row.deleted {
        open.bool(name!("deleted"), true);
    }
    if row.kind == RowKind::Revoked {
        open.bool(name!("revoked"), true);
    }
    if !row.removed.is_empty() {
        open.array(name!("removed")).strings(row.removed.iter().map(String::as_str));
    }
    if let Some(document) = &row.doc {
        json_out::document(document, open.place(name!("doc")));
    }
    let mut changes = open.array(name!("changes"));
    for rev in &row.leaves {
        json_out::rev(rev, changes.object().place(name!("rev")));
    }
    changes.end();
}
