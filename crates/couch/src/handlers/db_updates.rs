//! `_db_updates`: creations, deletions and changes of databases.

use flatbed_http::{Handshake, PagePermit, Pages, Reply, Sender, first_room, spawn};
use flatbed_layer::json::Object;
use flatbed_layer::{
    DatabaseUpdate, DatabaseUpdateKind, DatabaseUpdates, DatabaseUpdatesPage, DatabaseUpdatesQuery, WaitOutcome,
};
use flatbed_service::RightsWatch;
use tokio::time::{Duration, Instant};

use crate::error::{Failure, Result};
use crate::handlers::feed::{Feed, LAST_EVENT_ID, WAIT_MAX, between_heartbeats, since, waits_for, whole_number};
use crate::json_out;
use crate::metrics::FeedKind;
use crate::query::{Query, parameters, switch};
use crate::reply::Interrupted;
use crate::request::Request;
use crate::state::State;

parameters! {
    /// The parameters besides `feed` and `since`, which are parsed first.
    struct DbUpdatesParameters {
        descending: bool = switch,
        limit: Option<u64> = number,
        heartbeat: Option<Duration> = heartbeat,
        /// In milliseconds.
        timeout: Option<u64> = number,
    }
}

/// Handles `_db_updates`. The router admits administrators only.
pub(crate) async fn db_updates(state: &State, mut request: Request) -> Result<Reply> {
    let Some(feed) = Feed::from_name(request.query.get("feed")) else {
        return Err(Failure::bad_request("Supported `feed` types: normal, continuous, longpoll, eventsource"));
    };
    let handshake =
        if feed == Feed::WebSocket { Some(Handshake::of(&state.shell.cors(), &mut request)?) } else { None };
    let query = &request.query;
    let since = since(feed, query, request.header(LAST_EVENT_ID))?;
    let DbUpdatesParameters { descending, limit, heartbeat, timeout } = query.parameters()?;
    let asked = DatabaseUpdatesQuery { since, descending, limit };
    let timeout = waits_for(query, timeout);
    let mut etag = None;
    if feed == Feed::Normal {
        let tag = format!("\"{}\"", request.context.server().await?.newest_database_update().await?);
        if request.accepts_cached(&tag) {
            return Ok(Reply::not_modified(&tag));
        }
        etag = Some(tag);
    }
    let mut updates = request.context.server().await?.database_updates(asked);
    let pages = Pages::new(false);
    let room = first_room(&pages).await?;
    let first = updates.next_page().await?;
    if feed != Feed::Normal {
        // Followers of administrators are not bounded.
        let _ = state.shell.follow(request.peer, true)?;
    }
    let (reply, sender) = feed.answer(etag.as_deref());
    let sender = sender.with_counter(state.feeds.follow(FeedKind::DbUpdates));
    let (watch, lost) = (request.context.rights_watch(), None);
    let mut writer = Writer { updates, feed, asked, heartbeat, timeout, sender, pages, rows: 0, watch, lost };
    spawn(async move {
        let done = if feed.is_list() { writer.list(first, room).await } else { writer.lines(first, room).await };
        feed.finish(writer.sender, done, writer.lost).await;
    });
    Ok(match handshake {
        Some(handshake) => handshake.answer(reply),
        None => reply,
    })
}

fn number(query: &Query, name: &str) -> Result<Option<u64>> {
    whole_number(query, name, 0, |_| "invalid_integer".into())
}

fn heartbeat(query: &Query, name: &str) -> Result<Option<Duration>> {
    match query.get(name) {
        None | Some("false") => Ok(None),
        Some("true") => Ok(Some(WAIT_MAX)),
        Some(_) => Ok(number(query, name)?.map(between_heartbeats)),
    }
}

struct Writer {
    updates: DatabaseUpdates,
    feed: Feed,
    asked: DatabaseUpdatesQuery,
    heartbeat: Option<Duration>,
    timeout: Duration,
    sender: Sender,
    pages: Pages,
    rows: u64,
    watch: RightsWatch,
    /// The reason why the reader lost its rights.
    lost: Option<Failure>,
}

type WriteResult = std::result::Result<(), Interrupted>;

impl Writer {
    /// Writes a normal or longpoll feed: one JSON object.
    async fn list(&mut self, first: DatabaseUpdatesPage, mut room: PagePermit) -> WriteResult {
        self.sender.buffer.extend_from_slice(b"{\"results\":[\n");
        let mut page = first;
        loop {
            for row in &page.rows {
                if self.rows > 0 {
                    self.sender.buffer.extend_from_slice(b",\r\n");
                }
                self.rows += 1;
                self.sender.count_row();
                write_row(row, &mut self.sender.buffer);
                self.sender.count_row();
                self.sender.send_if_full().await?;
            }
            if page.at_end {
                let waits = self.feed == Feed::Longpoll && self.rows == 0 && !self.is_done();
                // Sends the head before the wait, so that the client sees the connection.
                if !waits || !self.wait(&mut room).await? {
                    break;
                }
            }
            page = self.next_page(&mut room).await?;
        }
        self.sender.buffer.extend_from_slice(b"\n],\n");
        json_out::member("last_seq", &page.last_seq.to_string(), &mut self.sender.buffer);
        self.sender.buffer.extend_from_slice(b"}\n");
        Ok(())
    }

    /// Writes a feed with one row per line until the client disconnects.
    async fn lines(&mut self, first: DatabaseUpdatesPage, mut room: PagePermit) -> WriteResult {
        let events = self.feed == Feed::EventSource;
        let mut page = first;
        let mut begins = self.feed.begins_with_newline();
        loop {
            for row in &page.rows {
                self.rows += 1;
                self.sender.count_row();
                let out = &mut self.sender.buffer;
                if events {
                    out.extend_from_slice(b"data: ");
                }
                write_row(row, out);
                out.push(b'\n');
                if events {
                    out.extend_from_slice(format!("id: \"{}\"\n\n", row.seq).as_bytes());
                }
                self.sender.count_row();
                self.sender.send_if_full().await?;
            }
            if page.at_end {
                if self.is_done() {
                    break;
                }
                if std::mem::take(&mut begins) && self.rows == 0 {
                    self.sender.buffer.push(b'\n');
                }
                if !self.wait(&mut room).await? {
                    break;
                }
            }
            page = self.next_page(&mut room).await?;
        }
        if !events {
            self.sender.buffer.push(b'{');
            json_out::member("last_seq", &page.last_seq.to_string(), &mut self.sender.buffer);
            self.sender.buffer.extend_from_slice(b"}\n");
        }
        Ok(())
    }

    /// Returns true if the feed must end.
    fn is_done(&self) -> bool {
        self.asked.descending || self.asked.limit.is_some_and(|limit| self.rows >= limit)
    }

    async fn next_page(&mut self, room: &mut PagePermit) -> std::result::Result<DatabaseUpdatesPage, Interrupted> {
        if room.is_none() {
            *room = self.sender.page_room(&self.pages).await?;
        }
        Ok(self.updates.next_page().await?)
    }

    /// Flushes and waits for more; false on timeout or shutdown. With heartbeats there is no timeout.
    async fn wait(&mut self, room: &mut PagePermit) -> std::result::Result<bool, Interrupted> {
        self.sender.flush().await?;
        drop(room.take());
        let deadline = Instant::now() + self.timeout;
        loop {
            let until = self.heartbeat.map_or(deadline, |beat| Instant::now() + beat);
            tokio::select! {
                refused = self.watch.lost() => {
                    self.lost = Some(refused.into());
                    return Err(Interrupted);
                }
                waited = self.updates.wait() => return Ok(waited == WaitOutcome::MayHaveChanged),
                () = tokio::time::sleep_until(until) => {
                    if self.heartbeat.is_none() {
                        return Ok(false);
                    }
                }
                () = self.sender.wait_until_gone() => return Err(Interrupted),
            }
            self.sender.buffer.extend_from_slice(self.feed.heartbeat());
            self.sender.flush().await?;
        }
    }
}

fn write_row(row: &DatabaseUpdate, out: &mut Vec<u8>) {
    let kind = match row.kind {
        DatabaseUpdateKind::Created => "created",
        DatabaseUpdateKind::Updated => "updated",
        DatabaseUpdateKind::Deleted => "deleted",
    };
    let mut object = Object::new(out);
    json_out::seq(&row.seq, object.string("db_name", &row.name).string("type", kind).place("seq"));
}
