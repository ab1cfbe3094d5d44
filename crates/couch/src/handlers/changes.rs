//! `_changes`, in all its forms.

mod filtered;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use flatbed_http::{CHUNK_BYTES, Handshake, PagePermit, Pages, Reply, Sender, first_room, shrink, spawn};
use flatbed_layer::json::Value;
use flatbed_layer::{
    ChangeRow, ChangesPage, ChangesQuery, DESIGN, Documents, Extras, Reader, RevId, RowKind, Scope, Seq, TailDocument,
    TailRow,
};
use flatbed_service::{Read, Selecting};
use hyper::Method;
use tokio::time::Instant;

use crate::attached::{self, Show};
use crate::error::{Failure, Result};
use crate::handlers::bulk::{object, take};
use crate::handlers::feed::{self, Feed, SeqInterval};
use crate::json_out;
use crate::query::Query;
use crate::reply::{Interrupted, page_bytes};
use crate::request::{Memory, Request};
use crate::shared_row::{self, Form};
use crate::state::State;
use filtered::{Came, Filtered, Function};

/// What a feed was asked for, beyond what the layer is asked.
struct Follow {
    feed: Feed,
    include_docs: bool,
    show: Show,
    form: Form,
    descending: bool,
    limit: Option<u64>,
    heartbeat: Option<Duration>,
    timeout: Duration,
}

pub(crate) async fn changes(state: &State, mut request: Request, name: &str) -> Result<Reply> {
    // What the ids take is reckoned to the request for as long as the feed lasts.
    let mut memory = Memory::default();
    let posted = match request.method {
        Method::GET | Method::HEAD => Value::Null,
        Method::POST => {
            if let Err(failure) = request.require_json() {
                request.skip_body().await;
                return Err(failure.into());
            }
            let body = request.read_body().await?;
            let value = if body.bytes.is_empty() { Value::Object(Vec::new()) } else { object(&body.bytes)? };
            memory = body.memory;
            value.into_owned()
        }
        _ => {
            request.skip_body().await;
            return Err(Failure::method("GET,POST,HEAD"));
        }
    };
    let feed = match request.query.get("feed") {
        Some("live") => Some(Feed::Continuous),
        name => Feed::named(name),
    };
    let unknown = || Failure::bad_request("Supported `feed` types: normal, continuous, live, longpoll, eventsource");
    let feed = feed.ok_or_else(unknown)?;
    let handshake = if feed == Feed::WebSocket { Some(Handshake::of(state.shell.cors(), &mut request)?) } else { None };
    let query = &request.query;
    let filter = filter(state, query, posted).await?;
    if let Scope::Ids(ids) = &filter.scope {
        memory = memory.keep(&request.memory, bytes_of_ids(ids))?;
    }
    let database = request.context.database(name, Read)?;
    let (include_docs, conflicts) = (query.flag("include_docs")?, query.flag("conflicts")?);
    let seen = if conflicts { Documents::WithConflicts } else { Documents::Yes };
    let documents = if include_docs { seen } else { Documents::No };
    let follow = Follow {
        feed,
        include_docs,
        show: Show::new(query)?,
        form: Form { all_leaves: all_leaves(query)?, documents },
        descending: query.flag("descending")?,
        limit: feed::not_negative(query, "limit")?,
        heartbeat: feed::heartbeat(query)?,
        timeout: feed::waits_for(feed::not_negative(query, "timeout")?),
    };
    let mut asked = ChangesQuery {
        since: feed::since(feed, query, request.header(feed::LAST_EVENT_ID))?,
        descending: follow.descending,
        limit: follow.limit,
        scope: filter.scope,
        extras: Extras { leaves: follow.form.all_leaves, documents },
    };
    let function = Function::of(state, &request, &database, follow.form.all_leaves).await?;
    if function.is_some() || filter.selecting.is_some() {
        // It sees documents, whatever the feed shows, and the limit is of what it lets through.
        asked.extras.documents = seen;
        asked.limit = follow.limit.filter(|limit| *limit == 0);
    }
    let seqs = SeqInterval::new(query, follow.limit)?;
    let mut etag = None;
    if feed == Feed::Normal {
        let tag = format!("\"{}\"", database.update_seq().await?);
        if request.accepts_cached(&tag) {
            return Ok(Reply::not_modified(&tag));
        }
        etag = Some(tag);
    }
    let pages = Pages::new(asked.extras.has_documents());
    let mut changes = Filtered::new(database.changes(asked), function, filter.selecting, follow.limit);
    // The first page is read before the answer begins: a database that is not there is a 404.
    let mut room = first_room(&pages).await?;
    let first = changes.next_page().await?;
    shrink(&mut room, bytes_of(&first));
    let (reply, sender) = feed.answer(etag.as_deref());
    let sender = sender.counted_as(state.feeds.follow(feed.kind()));
    let beaten = Instant::now();
    let mut writer = Writer { database, changes, follow, seqs, sender, pages, rows: 0, beaten, _memory: memory };
    spawn(async move {
        let done = if feed.is_list() { writer.list(first, room).await } else { writer.lines(first, room).await };
        if done.is_ok() {
            let _ = writer.sender.finish().await;
        }
    });
    Ok(match handshake {
        Some(handshake) => handshake.answer(reply),
        None => reply,
    })
}

/// What a set takes in memory.
fn bytes_of_ids(ids: &HashSet<String>) -> usize {
    const EACH: usize = size_of::<String>() + 1;
    // What is allocated for a text is a multiple of 16.
    EACH * ids.capacity() / 7 * 8 + ids.iter().map(|id| id.len().next_multiple_of(16)).sum::<usize>()
}

/// What a page takes in memory.
fn bytes_of(page: &ChangesPage) -> usize {
    let leaves = page.rows.iter().map(|row| row.leaves.len() * size_of::<RevId>()).sum::<usize>();
    leaves + page_bytes(page.rows.len(), page.rows.iter().filter_map(|row| row.doc.as_ref()))
}

/// Whether `style` asks for all leaves.
fn all_leaves(query: &Query) -> Result<bool> {
    match query.get("style") {
        None | Some("" | "main_only") => Ok(false),
        Some("all_docs") => Ok(true),
        Some(_) => Err(Failure::bad_request("Supported `style` values: main_only, all_docs")),
    }
}

/// What a filter lets through, but for functions of design documents.
#[derive(Default)]
struct Filter {
    scope: Scope,
    selecting: Option<Selecting>,
}

/// The filter that the query names, with its arguments from there or from the posted object.
async fn filter(state: &State, query: &Query, posted: Value<'static>) -> Result<Filter> {
    match query.get("filter") {
        None | Some("") => Ok(Filter::default()),
        Some("_doc_ids") => {
            let ids = match take(posted, "doc_ids") {
                Some(ids) => Some(ids),
                None => query.json(&["doc_ids"])?,
            };
            Ok(Filter { scope: Scope::Ids(doc_ids(ids)?), ..Filter::default() })
        }
        Some(DESIGN) => Ok(Filter { scope: Scope::Designs, ..Filter::default() }),
        Some("_selector") => {
            let missing = || Failure::bad_request("Selector must be specified in POST payload");
            let selector = take(posted, "selector").ok_or_else(missing)?;
            Ok(Filter { selecting: Some(state.selectors.compile(selector).await?), ..Filter::default() })
        }
        Some("_view") => Ok(Filter::default()),
        Some(other) if other.starts_with('_') => Err(Failure::bad_request("unknown builtin filter name")),
        Some(_) => Ok(Filter::default()),
    }
}

fn doc_ids(ids: Option<Value<'static>>) -> Result<Arc<HashSet<String>>> {
    let Some(Value::Array(ids)) = ids else {
        return Err(Failure::bad_request("`doc_ids` filter parameter is not a list."));
    };
    let ids: Option<HashSet<String>> = ids.iter().map(|id| id.as_str().map(str::to_owned)).collect();
    let ids = ids.ok_or_else(|| Failure::bad_request("`doc_ids` filter parameter is not a list of doc ids."))?;
    Ok(Arc::new(ids))
}

impl Follow {
    /// How documents are shown, if they are.
    fn shows(&self) -> Option<&Show> {
        self.include_docs.then_some(&self.show)
    }
}

struct Writer {
    database: Reader,
    changes: Filtered,
    follow: Follow,
    seqs: SeqInterval,
    sender: Sender,
    pages: Pages,
    rows: u64,
    /// When there was a heartbeat last, or the client had all that there was.
    beaten: Instant,
    _memory: Memory,
}

/// How a wait for something new ended.
enum Waited {
    Shared(Vec<Arc<TailRow>>),
    Passed(Vec<ChangeRow>),
    ReadOn,
    TimedOut,
}

type Written = std::result::Result<(), Interrupted>;

impl Writer {
    /// One JSON object: what is there, or for longpoll what comes first.
    async fn list(&mut self, first: ChangesPage, mut room: PagePermit) -> Written {
        self.sender.buffer.extend_from_slice(b"{\"results\":[\n");
        let mut page = first;
        let mut deadline = Instant::now() + self.follow.timeout;
        loop {
            self.rows(&std::mem::take(&mut page.rows)).await?;
            let wait = self.follow.feed == Feed::Longpoll && self.rows == 0 && !self.is_done();
            if page.at_end {
                if !wait {
                    break;
                }
                // The client learns that it is connected, before it waits.
                self.sender.flush().await?;
                drop(room.take());
                match self.wait(&mut deadline).await? {
                    Waited::TimedOut => break,
                    Waited::Shared(rows) => {
                        self.shared(rows).await?;
                        break;
                    }
                    Waited::Passed(rows) => {
                        self.rows(&rows).await?;
                        break;
                    }
                    Waited::ReadOn => {}
                }
            }
            (room, page) = self.next_page(room).await?;
        }
        drop(room);
        let pending = self.pending().await?;
        self.sender.buffer.extend_from_slice(b"\n],\n");
        self.tail(pending);
        self.sender.buffer.extend_from_slice(b"}\n");
        Ok(())
    }

    /// A line a row, for as long as the client reads.
    async fn lines(&mut self, first: ChangesPage, mut room: PagePermit) -> Written {
        let events = self.follow.feed == Feed::EventSource;
        let mut page = first;
        'pages: loop {
            // Nothing of a page is kept while nothing happens.
            self.rows(&std::mem::take(&mut page.rows)).await?;
            if page.at_end {
                self.sender.flush().await?;
                drop(room.take());
                loop {
                    if self.is_done() {
                        break 'pages;
                    }
                    let mut deadline = Instant::now() + self.follow.timeout;
                    match self.wait(&mut deadline).await? {
                        Waited::TimedOut => break 'pages,
                        Waited::Shared(rows) => self.shared(rows).await?,
                        Waited::Passed(rows) => {
                            self.rows(&rows).await?;
                            self.sender.flush().await?;
                        }
                        Waited::ReadOn => break,
                    }
                }
            }
            (room, page) = self.next_page(room).await?;
        }
        drop(room);
        if !events {
            let pending = self.pending().await?;
            self.sender.buffer.push(b'{');
            self.tail(pending);
            self.sender.buffer.extend_from_slice(b"}\n\n");
        }
        Ok(())
    }

    /// Nothing further can come: who goes down from the newest change does not come by later ones.
    fn is_done(&self) -> bool {
        self.follow.descending || self.follow.limit.is_some_and(|limit| self.rows >= limit)
    }

    /// The next page, and room for it, once that of the last is given back. A client that asked for heartbeats gets them also while
    /// much is read that a filter does not pass, while others read, and while the storage does not answer.
    async fn next_page(&mut self, room: PagePermit) -> std::result::Result<(PagePermit, ChangesPage), Interrupted> {
        let Writer { changes, pages, sender, follow, beaten, .. } = self;
        // A follower mostly waits, and has room for this only while it reads.
        drop(room);
        let gone = sender.watch();
        let mut next = Box::pin(async {
            let mut room = gone.page_room(pages).await?;
            let page = changes.next_page().await?;
            shrink(&mut room, bytes_of(&page));
            Ok((room, page))
        });
        loop {
            let beat = async {
                match follow.heartbeat {
                    Some(beat) => tokio::time::sleep_until(*beaten + beat).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // Pages that come at once must not keep it from being due.
                biased;
                () = beat => {}
                next = &mut next => return next,
                // What a filter is at, it is at for the client.
                () = sender.closed() => return Err(Interrupted),
            }
            sender.buffer.extend_from_slice(follow.feed.heartbeat());
            sender.flush().await?;
            *beaten = Instant::now();
        }
    }

    /// What a limit has left unread; without one all is read.
    async fn pending(&mut self) -> std::result::Result<u64, Interrupted> {
        if self.follow.limit.is_none() || self.follow.descending {
            return Ok(0);
        }
        Ok(Box::pin(self.changes.pending()).await?)
    }

    async fn rows(&mut self, rows: &[ChangeRow]) -> Written {
        for row in rows {
            self.rows += 1;
            self.sender.count_row();
            self.begin_row();
            let seq = self.seqs.shows().then_some(&row.seq);
            write_row(&self.database, row, seq, self.follow.shows(), &mut self.sender).await?;
            self.end_row(&row.seq);
            self.sender.send_if_full().await?;
        }
        Ok(())
    }

    /// Rows that many followers are sent.
    async fn shared(&mut self, rows: Vec<Arc<TailRow>>) -> Written {
        let is_single = rows.len() == 1;
        for row in rows {
            self.rows += 1;
            self.sender.count_row();
            let has_attachments =
                matches!(&row.document, TailDocument::Read { document, .. } if !document.attachments.is_empty());
            let shows_data = self.follow.show.data || self.follow.show.encoding;
            let shows_seq = self.seqs.shows();
            if !shows_seq || (self.follow.include_docs && has_attachments && shows_data) {
                let row = self.changes.shown(&row);
                self.begin_row();
                let seq = shows_seq.then_some(&row.seq);
                write_row(&self.database, &row, seq, self.follow.shows(), &mut self.sender).await?;
                self.end_row(&row.seq);
                continue;
            }
            let line = shared_row::line(&row, self.follow.form);
            if is_single
                && matches!(self.follow.feed, Feed::Continuous | Feed::WebSocket)
                && self.sender.buffer.is_empty()
            {
                return Ok(self.sender.send_shared(line).await?);
            }
            self.begin_row();
            self.sender.buffer.extend_from_slice(line.strip_suffix(b"\n").unwrap_or(&line));
            self.end_row(&row.row.seq);
        }
        if self.follow.feed != Feed::Longpoll {
            self.sender.flush().await?;
        }
        Ok(())
    }

    /// What stands before a row.
    fn begin_row(&mut self) {
        let out = &mut self.sender.buffer;
        match self.follow.feed {
            Feed::Normal | Feed::Longpoll if self.rows > 1 => out.extend_from_slice(b",\r\n"),
            Feed::EventSource => out.extend_from_slice(b"data: "),
            _ => {}
        }
    }

    /// What stands behind a row.
    fn end_row(&mut self, seq: &Seq) {
        let out = &mut self.sender.buffer;
        match self.follow.feed {
            Feed::Normal | Feed::Longpoll => {}
            Feed::Continuous | Feed::WebSocket => out.push(b'\n'),
            Feed::EventSource => out.extend_from_slice(format!("\nid: \"{seq}\"\n\n").as_bytes()),
        }
    }

    /// `"last_seq":...,"pending":...`
    fn tail(&mut self, pending: u64) {
        let last_seq = self.changes.last_seq().map_or_else(|| "0".to_owned(), |seq| seq.to_string());
        let out = &mut self.sender.buffer;
        json_out::member("last_seq", &last_seq, out);
        out.extend_from_slice(b",\"pending\":");
        json_out::number(pending, out);
    }

    /// Waits for something new, sending heartbeats; with heartbeats there is no timeout. The server's end is one too.
    async fn wait(&mut self, deadline: &mut Instant) -> std::result::Result<Waited, Interrupted> {
        loop {
            // A client that does not read holds nothing that is read for it.
            self.sender.ready().await?;
            self.beaten = Instant::now();
            let beat = self.follow.heartbeat;
            let until = beat.map_or(*deadline, |beat| self.beaten + beat);
            tokio::select! {
                came = self.changes.follow() => return Ok(match came? {
                    Came::Shared(rows) => Waited::Shared(rows),
                    Came::Passed(rows) => Waited::Passed(rows),
                    Came::ReadOn => Waited::ReadOn,
                    Came::Shutdown => Waited::TimedOut,
                }),
                () = tokio::time::sleep_until(until) => {
                    if beat.is_none() {
                        return Ok(Waited::TimedOut);
                    }
                }
                () = self.sender.closed() => return Err(Interrupted),
            }
            self.sender.buffer.extend_from_slice(self.follow.feed.heartbeat());
            self.sender.flush().await?;
        }
    }
}

async fn write_row(
    database: &Reader,
    row: &ChangeRow,
    seq: Option<&Seq>,
    show: Option<&Show>,
    sender: &mut Sender,
) -> Written {
    shared_row::open(row, seq, &row.leaves, &mut sender.buffer);
    match (row.kind, show) {
        (RowKind::Changed, Some(show)) => {
            sender.buffer.extend_from_slice(b",\"doc\":");
            match &row.doc {
                Some(document) if document.attachments.is_empty() && document.body.len() <= CHUNK_BYTES => {
                    json_out::document(document, &mut sender.buffer);
                }
                document => Box::pin(attached::send_or_null(database, document.as_ref(), show, sender)).await?,
            }
        }
        // Which document is lost is all that there is to say.
        (RowKind::Changed, None) | (RowKind::Lost, _) => {}
    }
    sender.buffer.push(b'}');
    Ok(())
}
