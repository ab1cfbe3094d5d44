//! `_changes`, in all its forms.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use flatbed_http::{CHUNK_BYTES, Handshake, PagePermit, Pages, Reply, Sender, first_room, shrink, spawn};
use flatbed_layer::json::Value;
use flatbed_layer::{
    ChangeRow, ChangesPage, DESIGN, Documents, FeedPosition, IndexName, Reader, RowKind, Scope, TailDocument, TailRow,
    check_channel,
};
use flatbed_service::{Context, FeedQuery, Filter, FilterFunction, FilterKind, Heartbeats, Projection, Read};
use hyper::Method;

use crate::error::{Failure, Result};
use crate::handlers::bulk::{json_body, object, take};
use crate::handlers::feed::{self, Feed, SeqInterval};
use crate::json_out;
use crate::query::{Query, parameters, switch};
use crate::reply::Interrupted;
use crate::request::{Memory, Request};
use crate::request_object::{FunctionInput, request_object};
use crate::shared_row::{self, Form};
use crate::shown::attachments;
use crate::state::State;
use flatbed_documents::{self as attached, AttachmentOptions, FeedOutput, FeedWait, feed_page_bytes, id_set_bytes};

/// Sync Gateway's filter by channels. It is no design function in a database with channels.
const BY_CHANNEL: &str = "sync_gateway/bychannel";

/// The largest number of channels in a filter; more are 400. Each is a range of its own for a reader with unrestricted
/// access.
const CHANNELS_MAX: usize = 1_000;

/// The most fields in `fields` of a filter by selector; more are 400. Each row looks up each field.
const FIELDS_MAX: usize = 1_000;

/// Prefix of a filter that names a selector index.
const INDEX: &str = "_index/";

parameters! {
    /// The parameters of every feed, besides `feed` and `filter`, which are parsed first, and `since`.
    struct ChangesParameters {
        active_only: bool = Query::flag,
        revocations: bool = Query::flag,
        include_docs: bool = switch,
        conflicts: bool = switch,
        attachments: AttachmentOptions = attachments,
        /// True for all leaves.
        style: bool = all_leaves,
        descending: bool = switch,
        limit: Option<u64> = feed::not_negative,
        heartbeat: Option<Duration> = feed::heartbeat,
        /// In milliseconds.
        timeout: Option<u64> = feed::not_negative,
    }
}

struct RowForm {
    feed: Feed,
    include_docs: bool,
    show: AttachmentOptions,
    form: Form,
    /// The fields of documents in the rows; `None`: all.
    fields: Option<Projection>,
}

pub(crate) async fn changes(state: &State, mut request: Request, name: &str) -> Result<Reply> {
    // The memory of `doc_ids` is charged to the request until the feed ends.
    let mut memory = Memory::default();
    let posted = if request.method == Method::POST {
        let body = json_body(&mut request).await?;
        let value = if body.bytes.is_empty() { Value::Object(Vec::new()) } else { object(&body.bytes)? };
        memory = body.memory;
        value.into_owned()
    } else {
        Value::Null
    };
    // As in CouchDB, parameter names are case-insensitive here, except those that only filters read.
    let query = request.query.lowered();
    let feed = match query.get("feed") {
        Some("live") => Some(Feed::Continuous),
        name => Feed::from_name(name),
    };
    let unknown = || Failure::bad_request("Supported `feed` types: normal, continuous, live, longpoll, eventsource");
    let feed = feed.ok_or_else(unknown)?;
    let handshake =
        if feed == Feed::WebSocket { Some(Handshake::of(&state.shell.cors(), &mut request)?) } else { None };
    let query = &query;
    let fields = fields(&request.context, name, query, &posted)?;
    let (mut scope, mut filter) = filter(&request.context, name, query, &request.query, posted).await?;
    if let Scope::Ids(ids) = &scope {
        memory = memory.keep(&request.memory, id_set_bytes(ids))?;
    }
    let database = request.context.database(name, Read).await?;
    let by_channels = query.get("filter") == Some(BY_CHANNEL) && database.has_channels().await?;
    if by_channels {
        scope = Scope::Channels(Arc::new(channels(&request.query)?));
    }
    let ChangesParameters {
        active_only,
        revocations,
        include_docs,
        conflicts,
        attachments: show,
        style: all_leaves,
        descending,
        limit,
        heartbeat,
        timeout,
    } = query.parameters()?;
    let filtered = if conflicts { Documents::WithConflicts } else { Documents::Yes };
    let documents = if include_docs { filtered } else { Documents::No };
    let shown = RowForm { feed, include_docs, show, form: Form { all_leaves, documents }, fields };
    let heartbeats = Heartbeats::new(heartbeat, request.context.clock());
    let timeout = feed::waits_for(query, timeout);
    let since = feed::since(feed, query, request.header(feed::LAST_EVENT_ID))?;
    if let Some(function) = if by_channels { None } else { function(&request, query.get("filter"))? } {
        filter = Filter::Function(function);
    }
    let follow = feed.follow();
    let asked = FeedQuery {
        since,
        descending,
        limit,
        scope,
        active_only,
        revocations,
        filter,
        all_leaves,
        documents,
        filtered,
        follow,
        timeout,
    };
    let mut changes = Box::pin(request.context.feed(&database, asked)).await?;
    let seqs = SeqInterval::new(query, limit)?;
    let mut etag = None;
    let newest = if feed == Feed::Normal { database.whole_update_seq().await? } else { None };
    if let Some(newest) = newest {
        let tag = format!("\"{newest}\"");
        if request.accepts_cached(&tag) {
            return Ok(Reply::not_modified(&tag));
        }
        etag = Some(tag);
    }
    let pages = Pages::new(changes.has_documents());
    // Read before the answer begins, so that a missing database is a 404.
    let mut room = first_room(&pages).await?;
    let read = changes.read_page().await?;
    // Before the filter's function, which may take seconds.
    shrink(&mut room, feed_page_bytes(&read));
    let first = changes.filter_page(read).await?;
    shrink(&mut room, feed_page_bytes(&first));
    let principal = request.context.principal();
    let has_name = principal.name.is_some() || principal.is_admin;
    let following = if changes.can_wait() { state.shell.follow(request.peer, has_name)? } else { None };
    let (reply, sender) = feed.answer(etag.as_deref());
    let sender = sender.with_counter(state.feeds.follow(feed.kind()));
    let output = FeedOutput::new(changes, sender, pages, heartbeats, feed.heartbeat(), following);
    let mut writer = Writer { database, output, shown, seqs, rows: 0, _memory: memory };
    spawn(async move {
        let done = if feed.is_list() { writer.list(first, room).await } else { writer.lines(first, room).await };
        feed.finish(writer.output.sender, done, writer.output.lost.map(Failure::from)).await;
    });
    Ok(match handshake {
        Some(handshake) => handshake.answer(reply),
        None => reply,
    })
}

fn all_leaves(query: &Query, name: &str) -> Result<bool> {
    match query.get(name) {
        None | Some("" | "main_only") => Ok(false),
        Some("all_docs") => Ok(true),
        Some(_) => Err(Failure::bad_request("Supported `style` values: main_only, all_docs")),
    }
}

/// Parses the documents in scope and the filter, with arguments from the query or the posted object. `function` handles
/// filters in design documents. `query` has lower-case names, `given` the client's spelling.
async fn filter(
    context: &Context,
    database: &str,
    query: &Query,
    given: &Query,
    posted: Value<'static>,
) -> Result<(Scope, Filter)> {
    let scope = match query.get("filter") {
        None | Some("" | "_view") => Scope::All,
        Some("_doc_ids") => {
            let ids = match take(posted, "doc_ids") {
                Some(ids) => Some(ids),
                None => given.json(&["doc_ids"])?,
            };
            Scope::Ids(doc_ids(ids)?)
        }
        Some(DESIGN) => Scope::Designs,
        Some("_selector") => {
            let missing = || Failure::bad_request("Selector must be specified in POST payload");
            let selector = take(posted, "selector").ok_or_else(missing)?;
            return Ok((Scope::All, Filter::Selector(context.selector(database, selector).await?)));
        }
        Some(other) if let Some(name) = other.strip_prefix(INDEX) => {
            let unnamed = || Failure::bad_request("`filter` must be of the form `_index/NAME` or `_index/DESIGN/NAME`");
            Scope::Selected(Arc::new(IndexName::parse(name).ok_or_else(unnamed)?))
        }
        Some(other) if other.starts_with('_') => return Err(Failure::bad_request("unknown builtin filter name")),
        Some(_) => Scope::All,
    };
    Ok((scope, Filter::None))
}

/// Reads the `fields` of a filter by selector. `None`: rows show all fields.
fn fields(context: &Context, database: &str, query: &Query, posted: &Value<'_>) -> Result<Option<Projection>> {
    if query.get("filter") != Some("_selector") {
        return Ok(None);
    }
    let fields = match posted.get("fields") {
        None => return Ok(None),
        Some(Value::Array(names)) if names.len() > FIELDS_MAX => {
            return Err(Failure::bad_request(format!("at most {FIELDS_MAX} fields in a filter")));
        }
        Some(names @ Value::Array(_)) => flatbed_mango::fields(names),
        Some(_) => return Err(Failure::bad_request("Selector error: fields must be JSON array")),
    };
    let fields = fields.map_err(|refused| Failure::bad_request(refused.reason))?;
    Ok(fields.map(|fields| context.projection(database, fields)))
}

/// Parses the name of a design document's function in `filter`, if it is one.
fn function(request: &Request, filter: Option<&str>) -> Result<Option<FilterFunction>> {
    let (is_view, name) = match filter {
        Some("_view") => (true, request.query.get("view").unwrap_or_default()),
        Some(name) if !name.is_empty() && !name.starts_with('_') => (false, name),
        _ => return Ok(None),
    };
    let parts: Vec<&str> = name.split('/').filter(|part| !part.is_empty()).collect();
    let &[design, name] = &parts[..] else {
        return Err(Failure::bad_request(match is_view {
            true if parts.is_empty() => "`view` filter parameter is not provided.",
            true => "`view` must be of the form `designname/viewname`",
            false => "`filter` must be of the form `designname/filtername`",
        }));
    };
    let kind = if is_view {
        FilterKind::View
    } else {
        FilterKind::Filter { request: request_object(request, &FunctionInput::default()) }
    };
    Ok(Some(FilterFunction { design: design.to_owned(), name: name.to_owned(), kind }))
}

fn channels(query: &Query) -> Result<BTreeSet<String>> {
    let names = query.get("channels").unwrap_or_default();
    if names.is_empty() {
        return Err(Failure::bad_request("Missing 'channels' filter parameter"));
    }
    let name = |name: &str| match check_channel(name) {
        Ok(()) => Ok(name.to_owned()),
        Err(illegal) => Err(Failure::bad_request(illegal.to_string())),
    };
    let names: BTreeSet<String> = names.split(',').map(name).collect::<Result<_>>()?;
    match names.len() {
        ..=CHANNELS_MAX => Ok(names),
        _ => Err(Failure::bad_request(format!("at most {CHANNELS_MAX} channels in a filter"))),
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

impl RowForm {
    fn shows(&self) -> Option<&AttachmentOptions> {
        self.include_docs.then_some(&self.show)
    }
}

struct Writer {
    database: Reader,
    output: FeedOutput,
    shown: RowForm,
    seqs: SeqInterval,
    rows: u64,
    _memory: Memory,
}

type WriteResult = std::result::Result<(), Interrupted>;

impl Writer {
    /// Writes a normal or longpoll feed: one JSON object.
    async fn list(&mut self, first: ChangesPage, mut room: PagePermit) -> WriteResult {
        self.output.sender.buffer.extend_from_slice(b"{\"results\":[\n");
        let mut page = first;
        loop {
            self.rows(&std::mem::take(&mut page.rows)).await?;
            if page.at_end {
                if !self.output.feed.can_wait() {
                    break;
                }
                // Sends the head before the wait, so that the client sees the connection.
                self.output.sender.flush().await?;
                drop(room.take());
                match self.output.wait().await? {
                    FeedWait::Shared(rows) => {
                        self.shared(rows).await?;
                        break;
                    }
                    FeedWait::Passed(rows) => {
                        self.rows(&rows).await?;
                        break;
                    }
                    FeedWait::ReadOn => {}
                    FeedWait::Over => break,
                }
            }
            (room, page) = self.output.next_page(room).await?;
        }
        drop(room);
        let pending = Box::pin(self.output.feed.pending()).await?;
        self.output.sender.buffer.extend_from_slice(b"\n],\n");
        self.tail(pending);
        self.output.sender.buffer.extend_from_slice(b"}\n");
        Ok(())
    }

    /// Writes a feed with one row per line until the client disconnects or a limit is reached.
    async fn lines(&mut self, first: ChangesPage, mut room: PagePermit) -> WriteResult {
        let events = self.shown.feed == Feed::EventSource;
        let mut page = first;
        let mut begins = self.shown.feed.begins_with_newline();
        'pages: loop {
            // Frees the page's rows before the wait.
            self.rows(&std::mem::take(&mut page.rows)).await?;
            if page.at_end {
                self.output.sender.flush().await?;
                drop(room.take());
                if std::mem::take(&mut begins) && self.rows == 0 && self.output.feed.can_wait() {
                    self.output.sender.mark_heartbeat();
                    self.output.sender.buffer.push(b'\n');
                    self.output.sender.flush().await?;
                }
                loop {
                    if !self.output.feed.can_wait() {
                        break 'pages;
                    }
                    match self.output.wait().await? {
                        FeedWait::Shared(rows) => self.shared(rows).await?,
                        FeedWait::Passed(rows) => {
                            self.rows(&rows).await?;
                            self.output.sender.flush().await?;
                        }
                        FeedWait::ReadOn => break,
                        FeedWait::Over => break 'pages,
                    }
                }
            }
            (room, page) = self.output.next_page(room).await?;
        }
        drop(room);
        if !events {
            let pending = Box::pin(self.output.feed.pending()).await?;
            self.output.sender.buffer.push(b'{');
            self.tail(pending);
            self.output.sender.buffer.extend_from_slice(b"}\n\n");
        }
        Ok(())
    }

    async fn rows(&mut self, rows: &[ChangeRow]) -> WriteResult {
        self.output.mark_judged().await?;
        for row in rows {
            self.rows += 1;
            self.output.sender.count_row();
            self.begin_row();
            let place = row.place();
            let shown = self.seqs.shows().then_some(&place);
            write_row(&self.database, row, shown, &self.shown, &mut self.output.sender).await?;
            self.end_row(&place);
            self.output.sender.send_if_full().await?;
        }
        Ok(())
    }

    /// Writes rows that many followers share.
    async fn shared(&mut self, rows: Vec<Arc<TailRow>>) -> WriteResult {
        self.output.mark_judged().await?;
        let is_single = rows.len() == 1;
        for row in rows {
            self.rows += 1;
            self.output.sender.count_row();
            let has_attachments =
                matches!(&row.document, TailDocument::Read { document, .. } if !document.attachments.is_empty());
            let shows_data = self.shown.show.data || self.shown.show.encoding;
            let shows_seq = self.seqs.shows();
            let shows_more = (has_attachments && shows_data) || self.shown.fields.is_some();
            if !shows_seq || (self.shown.include_docs && shows_more) {
                let row = self.output.feed.shown(&row);
                self.begin_row();
                let place = row.place();
                let shown = shows_seq.then_some(&place);
                write_row(&self.database, &row, shown, &self.shown, &mut self.output.sender).await?;
                self.end_row(&place);
                continue;
            }
            let line = shared_row::line(&row, self.shown.form);
            if is_single
                && matches!(self.shown.feed, Feed::Continuous | Feed::WebSocket)
                && self.output.sender.buffer.is_empty()
            {
                return Ok(self.output.sender.send_shared(line).await?);
            }
            self.begin_row();
            self.output.sender.buffer.extend_from_slice(line.strip_suffix(b"\n").unwrap_or(&line));
            self.end_row(&row.row.place());
        }
        if self.shown.feed != Feed::Longpoll {
            self.output.sender.flush().await?;
        }
        Ok(())
    }

    fn begin_row(&mut self) {
        let out = &mut self.output.sender.buffer;
        match self.shown.feed {
            Feed::Normal | Feed::Longpoll if self.rows > 1 => out.extend_from_slice(b",\r\n"),
            Feed::EventSource => out.extend_from_slice(b"data: "),
            _ => {}
        }
    }

    fn end_row(&mut self, place: &FeedPosition) {
        let out = &mut self.output.sender.buffer;
        match self.shown.feed {
            Feed::Normal | Feed::Longpoll => {}
            Feed::Continuous | Feed::WebSocket => out.push(b'\n'),
            Feed::EventSource => out.extend_from_slice(format!("\nid: \"{place}\"\n\n").as_bytes()),
        }
    }

    /// `"last_seq":...,"pending":...`
    fn tail(&mut self, pending: u64) {
        let last_seq = self.output.feed.last_seq().map_or_else(|| "0".to_owned(), |place| place.to_string());
        let out = &mut self.output.sender.buffer;
        json_out::member("last_seq", &last_seq, out);
        out.extend_from_slice(b",\"pending\":");
        json_out::number(pending, out);
    }
}

async fn write_row(
    database: &Reader,
    row: &ChangeRow,
    place: Option<&FeedPosition>,
    shown: &RowForm,
    sender: &mut Sender,
) -> WriteResult {
    shared_row::open(row, place, &row.leaves, &mut sender.buffer);
    match (row.kind, shown.shows()) {
        // The stub of a lost document only says that it is lost.
        (RowKind::Lost | RowKind::Revoked, Some(_)) if let Some(document) = &row.doc => {
            sender.buffer.extend_from_slice(b",\"doc\":");
            json_out::document(document, &mut sender.buffer);
        }
        (RowKind::Changed, Some(show)) => {
            sender.buffer.extend_from_slice(b",\"doc\":");
            match &row.doc {
                Some(document) if let Some(fields) = &shown.fields => {
                    let text = Box::pin(fields.of(document)).await.map_err(Failure::from)?;
                    sender.write(&text).await?;
                }
                Some(document) if document.attachments.is_empty() && document.body.len() <= CHUNK_BYTES => {
                    json_out::document(document, &mut sender.buffer);
                }
                document => Box::pin(attached::send_or_null(database, document.as_ref(), show, sender)).await?,
            }
        }
        (RowKind::Changed, None) | (RowKind::Lost | RowKind::Revoked | RowKind::User, _) => {}
    }
    sender.buffer.push(b'}');
    Ok(())
}
