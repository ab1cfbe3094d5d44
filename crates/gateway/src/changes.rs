//! `_changes`, in all its forms but one over WebSocket.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use flatbed_http::{Following, Memory, PagePermit, Pages, Reply, Sender, first_room, shrink, spawn};
use flatbed_layer::json::{self, Limits, Object, Value, name};
use flatbed_layer::{ChangeRow, ChangesPage, Documents, RevId, RowKind, Scope, Since};
use flatbed_service::{Feed, FeedQuery, Filter, Follow, Heartbeats, Read, Waited, json_out};
use hyper::{Method, header};

use crate::error::{Failure, Result};
use crate::query::Query;
use crate::reply::{self, Interrupted, page_bytes, uncached};
use crate::request::Request;
use crate::state::Gateway;

/// For how long a feed waits where it does not say, and at most.
const WAIT: Duration = Duration::from_secs(300);
const WAIT_MAX: Duration = Duration::from_secs(900);

/// No heartbeat comes more often.
const HEARTBEAT_MIN: Duration = Duration::from_secs(25);

/// Ids that a feed may be about.
const IDS_MAX: usize = 100_000;

/// Channels that a feed may be about. Each is a range of its own for whoever sees all.
const CHANNELS_MAX: usize = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Normal,
    Longpoll,
    Continuous,
}

/// What a feed is asked for, in its query or in its body. Of both the query counts.
#[derive(Debug)]
struct Asked {
    form: Form,
    since: Since,
    limit: Option<u64>,
    all_leaves: bool,
    include_docs: bool,
    active_only: bool,
    revocations: bool,
    scope: Scope,
    timeout: Duration,
    heartbeat: Option<Duration>,
}

/// Where a feed begins.
fn since(text: &str) -> Result<Since> {
    match text.trim_matches('"') {
        "" | "0" => Ok(Since::Beginning),
        text => Ok(Since::After(text.parse()?)),
    }
}

impl Asked {
    fn new(query: &Query, posted: &Value<'_>) -> Result<Asked> {
        let text = |name: &str| match query.get(name) {
            Some(text) => Some(text),
            None => posted.get(name).and_then(Value::as_str).filter(|text| !text.is_empty()),
        };
        let flag = |name: &str| query.flag(name) || posted.get(name) == Some(&Value::Bool(true));
        let number = |name: &str| match posted.get(name) {
            Some(Value::Number(number)) if query.get(name).is_none() => number.parse::<u64>().ok(),
            _ => query.number(name),
        };
        let wrong = |what: &str| Failure::bad_request(format!("Invalid JSON: {what}"));
        for name in ["limit", "heartbeat", "timeout"] {
            if !matches!(posted.get(name), None | Some(Value::Number(_) | Value::Null)) {
                return Err(wrong(name));
            }
        }
        if !matches!(posted.get("doc_ids"), None | Some(Value::Array(_) | Value::Null)) {
            return Err(wrong("doc_ids"));
        }
        for name in ["filter", "channels", "feed", "style"] {
            if !matches!(posted.get(name), None | Some(Value::String(_) | Value::Null)) {
                return Err(wrong(name));
            }
        }
        let form = match text("feed") {
            None | Some("normal") => Form::Normal,
            Some("longpoll") => Form::Longpoll,
            Some("continuous") => Form::Continuous,
            Some("websocket") => return Err(Failure::not_implemented("feed=websocket")),
            Some(_) => return Err(Failure::bad_request("Unknown feed type")),
        };
        let since = match (query.get("since"), posted.get("since")) {
            (Some(text), _) => since(text)?,
            (None, Some(Value::String(text))) => since(text)?,
            (None, Some(Value::Number(number))) => since(number)?,
            (None, None | Some(Value::Null)) => Since::Beginning,
            (None, Some(_)) => return Err(Failure::bad_request("Invalid sequence")),
        };
        let scope = match text("filter") {
            None => Scope::All,
            Some("_doc_ids") => Scope::Ids(doc_ids(query, posted)?),
            Some("sync_gateway/bychannel") => Scope::Channels(Arc::new(by_channel(text("channels"))?)),
            Some(_) => {
                return Err(Failure::bad_request("Unknown filter; try sync_gateway/bychannel or _doc_ids"));
            }
        };
        if matches!(scope, Scope::Ids(_)) && form != Form::Normal {
            return Err(Failure::bad_request("Filter '_doc_ids' is only valid for feed=normal replications"));
        }
        let timeout = number("timeout").map_or(WAIT, |wait| Duration::from_millis(wait).min(WAIT_MAX));
        let heartbeat = number("heartbeat").filter(|every| *every > 0);
        Ok(Asked {
            form,
            since,
            limit: number("limit").filter(|limit| *limit > 0),
            all_leaves: text("style") == Some("all_docs"),
            include_docs: flag("include_docs"),
            active_only: flag("active_only"),
            revocations: flag("revocations"),
            scope,
            timeout,
            heartbeat: heartbeat.map(|every| Duration::from_millis(every).clamp(HEARTBEAT_MIN, WAIT_MAX)),
        })
    }
}

/// The channels of a filter.
fn by_channel(channels: Option<&str>) -> Result<BTreeSet<String>> {
    let channels = channels.ok_or_else(|| Failure::bad_request("Missing 'channels' filter parameter"))?;
    let mut named = BTreeSet::new();
    for channel in channels.split(',') {
        flatbed_layer::check_channel(channel).map_err(|illegal| Failure::bad_request(illegal.to_string()))?;
        named.insert(channel.to_owned());
        if named.len() > CHANNELS_MAX {
            return Err(Failure::bad_request(format!("at most {CHANNELS_MAX} channels in a filter")));
        }
    }
    Ok(named)
}

fn doc_ids(query: &Query, posted: &Value<'_>) -> Result<Arc<HashSet<String>>> {
    let missing = || Failure::bad_request("Missing 'doc_ids' filter parameter");
    let read;
    let list = match (query.get("doc_ids"), posted.get("doc_ids")) {
        (Some(text), _) => match json::parse(text.as_bytes(), &Limits::default()) {
            Ok(list) => {
                read = list;
                &read
            }
            // Not as JSON: with commas between them.
            Err(_) => {
                let ids: HashSet<String> = text.split(',').map(str::to_owned).collect();
                return Ok(Arc::new(ids));
            }
        },
        (None, Some(list)) => list,
        (None, None) => return Err(missing()),
    };
    let Value::Array(list) = list else { return Err(missing()) };
    if list.is_empty() && query.get("doc_ids").is_none() {
        return Err(Failure::bad_request("Empty doc_ids list"));
    }
    if list.is_empty() || list.len() > IDS_MAX {
        return Err(missing());
    }
    let ids: Option<HashSet<String>> = list.iter().map(|id| id.as_str().map(str::to_owned)).collect();
    Ok(Arc::new(ids.ok_or_else(missing)?))
}

/// What a set takes in memory.
fn bytes_of_ids(ids: &HashSet<String>) -> usize {
    const EACH: usize = size_of::<String>() + 1;
    EACH * ids.capacity() / 7 * 8 + ids.iter().map(|id| id.len().next_multiple_of(16)).sum::<usize>()
}

/// What a page takes in memory.
pub(crate) fn bytes_of(page: &ChangesPage) -> usize {
    let leaves = page.rows.iter().map(|row| row.leaves.len() * size_of::<RevId>()).sum::<usize>();
    leaves + page_bytes(page.rows.len(), page.rows.iter().filter_map(|row| row.doc.as_ref()))
}

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
    let Asked { form, since, limit, all_leaves, include_docs, active_only, revocations, scope, timeout, heartbeat } =
        Asked::new(&request.query, &posted)?;
    drop(posted);
    if let Scope::Ids(ids) = &scope {
        memory = memory.keep(&request.memory, bytes_of_ids(ids))?;
    }
    let begins = match &since {
        Since::After(place) => place.to_string(),
        Since::Beginning | Since::Now => "0".to_owned(),
    };
    let database = request.context.database(name, Read).await?;
    let follow = match form {
        Form::Normal => Follow::No,
        Form::Longpoll => Follow::UntilFirst,
        Form::Continuous => Follow::On,
    };
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
        follow,
        timeout,
    };
    let mut feed = Box::pin(request.context.feed(&database, asked)).await?;
    let pages = Pages::new(feed.has_documents());
    // The first page is read before the answer begins: a database that is not there is a 404.
    let mut room = first_room(&pages).await?;
    let first = feed.next_page().await?;
    shrink(&mut room, bytes_of(&first));
    let principal = request.context.principal();
    let has_name = principal.name.is_some() || principal.is_admin;
    let following = if feed.goes_on() { state.shell.follow(request.peer, has_name)? } else { None };
    let (mut reply, sender) = reply::stream();
    if form == Form::Continuous {
        reply.header(header::CONTENT_TYPE, "application/octet-stream");
    }
    let mut writer = Writer {
        feed,
        form,
        left: limit.unwrap_or(u64::MAX),
        sender,
        pages,
        rows: 0,
        last_seq: begins,
        heartbeats: Heartbeats::new(heartbeat),
        following,
        _memory: memory,
    };
    spawn(async move {
        if writer.write(first, room).await.is_ok() {
            let _ = writer.sender.finish().await;
        }
    });
    Ok(uncached(reply))
}

struct Writer {
    feed: Feed,
    form: Form,
    /// How many rows may come.
    left: u64,
    sender: Sender,
    pages: Pages,
    rows: u64,
    /// Of the last row, or where the feed began.
    last_seq: String,
    heartbeats: Heartbeats,
    /// Where it is one of those of strangers, which are bounded together.
    following: Option<Following>,
    _memory: Memory,
}

/// What came of a wait, behind its heartbeats.
enum Came {
    Rows(Vec<ChangeRow>),
    ReadOn,
    Over,
}

/// What is behind the end of what there was.
enum More {
    Pages,
    Nothing,
}

type Written = std::result::Result<(), Interrupted>;

impl Writer {
    async fn write(&mut self, first: ChangesPage, room: PagePermit) -> Written {
        let is_list = self.form != Form::Continuous;
        if is_list {
            self.sender.buffer.extend_from_slice(b"{\"results\":[");
        }
        self.all_rows(first, room).await?;
        if is_list {
            self.sender.buffer.extend_from_slice(b"\n],\n");
            json_out::member("last_seq", &self.last_seq, &mut self.sender.buffer);
            self.sender.buffer.extend_from_slice(b"}\n");
        }
        Ok(())
    }

    async fn all_rows(&mut self, mut page: ChangesPage, mut room: PagePermit) -> Written {
        loop {
            self.rows(&std::mem::take(&mut page.rows)).await?;
            if page.at_end {
                match self.until_more(&mut room).await? {
                    More::Pages => {}
                    More::Nothing => return Ok(()),
                }
            }
            if self.left == 0 {
                return Ok(());
            }
            (room, page) = self.next_page(room).await?;
        }
    }

    /// Sends what comes behind the last page, until there are pages again.
    async fn until_more(&mut self, room: &mut PagePermit) -> std::result::Result<More, Interrupted> {
        loop {
            if self.left == 0 || !self.feed.goes_on() || (self.form == Form::Longpoll && self.rows > 0) {
                return Ok(More::Nothing);
            }
            // The client learns that it is connected, before it waits.
            self.sender.flush().await?;
            drop(room.take());
            match self.wait().await? {
                Came::Rows(rows) => self.rows(&rows).await?,
                Came::ReadOn => return Ok(More::Pages),
                Came::Over => return Ok(More::Nothing),
            }
        }
    }

    /// The next page, and room for it, once that of the last is given back.
    async fn next_page(&mut self, room: PagePermit) -> std::result::Result<(PagePermit, ChangesPage), Interrupted> {
        drop(room);
        let Writer { feed, pages, sender, heartbeats, form, .. } = self;
        let gone = sender.watch();
        let mut next = Box::pin(async {
            let mut room = gone.page_room(pages).await?;
            let page = feed.next_page().await?;
            shrink(&mut room, bytes_of(&page));
            Ok::<_, Interrupted>((room, page))
        });
        loop {
            tokio::select! {
                biased;
                () = heartbeats.due(), if *form != Form::Normal => {}
                next = &mut next => return next,
                () = sender.closed() => return Err(Interrupted),
            }
            sender.buffer.push(b'\n');
            sender.flush().await?;
            heartbeats.sent();
        }
    }

    /// Waits for something new, sending heartbeats.
    async fn wait(&mut self) -> std::result::Result<Came, Interrupted> {
        loop {
            // A client that does not read holds nothing that is read for it.
            self.sender.ready().await?;
            tokio::select! {
                waited = self.feed.wait(&mut self.heartbeats) => match waited? {
                    Waited::Shared(rows) => {
                        return Ok(Came::Rows(rows.iter().map(|row| self.feed.shown(row)).collect()));
                    }
                    Waited::Passed(rows) => return Ok(Came::Rows(rows)),
                    Waited::ReadOn => return Ok(Came::ReadOn),
                    Waited::Over => return Ok(Came::Over),
                    Waited::Heartbeat => {}
                },
                () = self.sender.closed() => return Err(Interrupted),
                // As at the end of its time: its client asks again, and may be refused then.
                () = gives_way(self.following.as_ref()) => return Ok(Came::Over),
            }
            self.sender.buffer.push(b'\n');
            self.sender.flush().await?;
        }
    }

    async fn rows(&mut self, rows: &[ChangeRow]) -> Written {
        for row in rows {
            // Design documents are no documents here.
            let is_hidden = row.id.starts_with('_') && row.kind != RowKind::User;
            if is_hidden {
                continue;
            }
            if self.left == 0 {
                break;
            }
            self.left -= 1;
            let is_list = self.form != Form::Continuous;
            if is_list {
                self.sender.buffer.extend_from_slice(if self.rows > 0 { b",\n" } else { b"\n" });
            }
            self.rows += 1;
            self.sender.count_row();
            write_row(row, &mut self.sender.buffer);
            if !is_list {
                self.sender.buffer.push(b'\n');
            }
            self.last_seq = row.place().to_string();
            self.sender.send_if_full().await?;
        }
        if self.form == Form::Continuous {
            self.sender.flush().await?;
        }
        Ok(())
    }
}

async fn gives_way(following: Option<&Following>) {
    match following {
        Some(following) => following.gives_way().await,
        None => std::future::pending().await,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(query: &str, posted: &str) -> std::result::Result<Asked, String> {
        let posted = json::parse(posted.as_bytes(), &Limits::default()).unwrap();
        Asked::new(&Query::parse(Some(query)).unwrap(), &posted).map_err(|failure| failure.reason)
    }

    #[test]
    fn what_is_asked_for() {
        let found = asked("limit=3&style=all_docs&timeout=99999999&heartbeat=1", r#"{"limit":7,"include_docs":true}"#);
        let found = found.unwrap();
        assert_eq!((found.limit, found.all_leaves, found.include_docs), (Some(3), true, true));
        assert_eq!((found.timeout, found.heartbeat), (WAIT_MAX, Some(HEARTBEAT_MIN)));
        for limit in ["limit=abc", "limit=-1", "limit=0", "limit="] {
            assert_eq!(asked(limit, "null").unwrap().limit, None);
        }
        for (query, posted, reason) in [
            ("feed=bogus", "null", "Unknown feed type"),
            ("filter=bogus", "null", "Unknown filter; try sync_gateway/bychannel or _doc_ids"),
            ("filter=sync_gateway/bychannel", "null", "Missing 'channels' filter parameter"),
            ("filter=sync_gateway/bychannel&channels=A,,B", "null", "Illegal channel name \"\""),
            ("filter=_doc_ids&doc_ids=[]", "null", "Missing 'doc_ids' filter parameter"),
            ("filter=_doc_ids", r#"{"doc_ids":[1]}"#, "Missing 'doc_ids' filter parameter"),
            ("since=abc", "null", "Invalid sequence"),
            ("since=now", "null", "Invalid sequence"),
            ("", r#"{"since":true}"#, "Invalid sequence"),
            ("", r#"{"limit":"x"}"#, "Invalid JSON: limit"),
            ("", r#"{"channels":["A"]}"#, "Invalid JSON: channels"),
        ] {
            assert_eq!(asked(query, posted).unwrap_err(), reason);
        }
        let many = (0..=CHANNELS_MAX).map(|at| at.to_string()).collect::<Vec<_>>().join(",");
        let failure = asked(&format!("filter=sync_gateway/bychannel&channels={many}"), "null").unwrap_err();
        assert_eq!(failure, "at most 1000 channels in a filter");
        let found = asked("filter=sync_gateway/bychannel&channels=B,A,B&revocations=true", "null").unwrap();
        assert_eq!(found.scope, Scope::Channels(Arc::new(["A", "B"].map(str::to_owned).into())));
        assert!(found.revocations);
        let ids = asked("filter=_doc_ids&doc_ids=a,b", "null").unwrap().scope;
        assert_eq!(ids, Scope::Ids(Arc::new(["a", "b"].map(str::to_owned).into())));
    }
}
