//! `_all_docs`, streamed page by page.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use flatbed_channels::{Grant, GrantedItem, Grantee, HeldChannels, ROLE_PREFIX};
use flatbed_http::{Memory, Pages, Reply, Sender, shrink, spawn};
use flatbed_layer::json::{self, Limits, Object, Value, name};
use flatbed_layer::{AllDocsQuery, AllDocsRow, Conflicts, DocumentRouting, GetOptions, GetOutcome, Reader, Verdict};
use flatbed_service::{Read, Standing, json_out};
use hyper::{Method, StatusCode};

use crate::error::{Failure, Result};
use crate::reply::{self, Interrupted, page_bytes};
use crate::request::{Request, object, take};
use crate::session;
use crate::state::Gateway;

/// The largest batch of ids in one lookup; the layer returns as many as fit.
const KEYS_AT_ONCE: usize = 100;

/// The largest batch of documents in one lookup of revisions; a document may have thousands.
const REVISIONS_AT_ONCE: usize = 20;

/// The largest batch of documents in one lookup of routings.
const ROUTINGS_AT_ONCE: usize = 100;

/// The largest number of ids in a request; more are 413.
const KEYS_MAX: usize = 100_000;

struct Selection {
    walk: AllDocsQuery,
    keys: Option<Vec<String>>,
    told: RoutingOptions,
    /// True to include the revision ids of documents.
    revs: bool,
}

/// The routing members of rows.
struct RoutingOptions {
    channels: bool,
    access: bool,
    update_seq: bool,
    /// For a user: a reader with unrestricted access, which looks up only the rows that the user may see.
    by: Option<Reader>,
    /// For a user: the channels that the user has. Names of other channels are secret.
    only: Option<HeldChannels>,
}

impl RoutingOptions {
    /// Looks up the routings of rows. A document without one is absent from the result.
    async fn look_up<'r>(
        &self,
        database: &Reader,
        rows: impl Iterator<Item = &'r AllDocsRow>,
    ) -> flatbed_layer::Result<HashMap<String, DocumentRouting>> {
        let mut found = HashMap::new();
        if !(self.channels || self.access || self.update_seq) {
            return Ok(found);
        }
        let ids: Vec<String> = rows.map(|row| row.id.clone()).collect();
        let mut rest = &ids[..];
        while !rest.is_empty() {
            let part =
                self.by.as_ref().unwrap_or(database).routings(rest.get(..ROUTINGS_AT_ONCE).unwrap_or(rest)).await?;
            let count = part.len().max(1);
            let there = rest.iter().zip(part).filter_map(|(id, routing)| Some((id.clone(), routing?)));
            found.extend(there);
            rest = rest.get(count..).unwrap_or_default();
        }
        Ok(found)
    }
}

fn keys_of(list: Option<Value<'_>>, failure: &'static str) -> Result<Vec<String>> {
    let Some(Value::Array(keys)) = list else { return Err(Failure::bad_request(failure)) };
    if keys.len() > KEYS_MAX {
        return Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, format!("at most {KEYS_MAX} keys")));
    }
    let texts: Option<Vec<String>> = keys.iter().map(|key| key.as_str().map(str::to_owned)).collect();
    texts.ok_or_else(|| Failure::bad_request(failure))
}

pub(crate) async fn all_docs(state: &Gateway, mut request: Request, name: &str) -> Result<Reply> {
    let mut memory = Memory::default();
    let keys = if request.method == Method::POST {
        let body = request.json().await?;
        let keys = keys_of(take(object(&body.bytes)?, "keys"), "Bad/missing keys")?;
        memory = body.memory;
        Some(keys)
    } else if let Some(keys) = request.query.get("keys") {
        Some(keys_of(json::parse(keys.as_bytes(), &Limits::default()).ok(), "Bad keys")?)
    } else {
        None
    };
    let query = &request.query;
    let is_admin = request.context.principal().is_admin;
    let told = RoutingOptions {
        channels: query.flag("channels"),
        // Grants are visible to administrators only, so the parameter of others is ignored.
        access: query.flag("access") && is_admin,
        update_seq: query.flag("update_seq"),
        by: match is_admin {
            true => None,
            false => Some(state.service.context(Standing::of_server()).database(name, Read).await?),
        },
        only: if is_admin || !query.flag("channels") {
            None
        } else {
            Some(session::channels_of(state, &request, name).await?)
        },
    };
    let walk = AllDocsQuery {
        start: query.text("startkey"),
        end: query.text("endkey"),
        include_docs: query.flag("include_docs"),
        limit: query.number("limit").filter(|limit| *limit > 0),
        ..AllDocsQuery::default()
    };
    let database = request.context.database(name, Read).await?;
    database.exists().await?;
    let (reply, mut sender) = reply::stream();
    if request.method == Method::HEAD {
        return Ok(reply);
    }
    let pages = Pages::new(walk.include_docs);
    let selection = Selection { revs: query.flag("revs") && walk.include_docs, walk, keys, told };
    spawn(async move {
        let _memory = memory;
        if write(&database, selection, &pages, &mut sender).await.is_ok() {
            let _ = sender.finish().await;
        }
    });
    Ok(reply)
}

async fn write(
    database: &Reader,
    selection: Selection,
    pages: &Pages,
    sender: &mut Sender,
) -> std::result::Result<(), Interrupted> {
    let update_seq = database.update_seq().await?;
    let include_docs = selection.walk.include_docs;
    sender.buffer.extend_from_slice(b"{\"rows\":[");
    let mut rows = 0_u64;
    if let Some(keys) = selection.keys {
        let mut rest = keys.get(..limit_of(&selection.walk, keys.len())).unwrap_or(&keys);
        while !rest.is_empty() {
            let mut room = sender.page_room(pages).await?;
            let chunk = rest.get(..KEYS_AT_ONCE).unwrap_or(rest);
            let found = database.all_docs_keys(chunk, include_docs, Conflicts::No).await?;
            shrink(&mut room, page_bytes(found.len(), found.iter().flatten().filter_map(|row| row.doc.as_ref())));
            let told = selection.told.look_up(database, found.iter().flatten()).await?;
            // The layer returned fewer rows than requested; the next round reads the rest.
            let count = found.len().max(1);
            for (key, row) in chunk.iter().zip(found) {
                let mut row = row.filter(|row| !row.deleted);
                if selection.revs {
                    add_revisions(database, row.as_mut_slice()).await?;
                }
                separator(&mut rows, &mut sender.buffer);
                match row {
                    Some(row) => write_row(&row, &selection.told, told.get(&row.id), sender),
                    None => {
                        let mut row = Object::new(&mut sender.buffer);
                        row.string(name!("key"), key).string(name!("error"), "not_found");
                        row.number(name!("status"), 404);
                    }
                }
                sender.send_if_full().await?;
            }
            rest = rest.get(count..).unwrap_or_default();
        }
    } else {
        let mut walk = database.all_docs(selection.walk);
        loop {
            let mut room = sender.page_room(pages).await?;
            let Some(page) = sender.unless_gone(walk.next_page()).await?? else { break };
            shrink(&mut room, page_bytes(page.len(), page.iter().filter_map(|row| row.doc.as_ref())));
            let told = sender.unless_gone(selection.told.look_up(database, page.iter())).await??;
            let mut page: Vec<AllDocsRow> = page.into_iter().filter(|row| !row.id.starts_with('_')).collect();
            for some in page.chunks_mut(REVISIONS_AT_ONCE) {
                if selection.revs {
                    sender.unless_gone(add_revisions(database, some)).await??;
                }
                for row in some {
                    separator(&mut rows, &mut sender.buffer);
                    write_row(row, &selection.told, told.get(&row.id), sender);
                    // Frees the revisions, which may be larger than the document.
                    row.doc = None;
                    sender.send_if_full().await?;
                }
            }
        }
    }
    sender.buffer.extend_from_slice(b"\n],\"total_rows\":");
    json_out::number(rows, &mut sender.buffer);
    sender.buffer.extend_from_slice(b",\"update_seq\":");
    json_out::seq(&update_seq, &mut sender.buffer);
    sender.buffer.extend_from_slice(b"}\n");
    Ok(())
}

/// Reads the revision ids of the rows' documents.
async fn add_revisions(database: &Reader, rows: &mut [AllDocsRow]) -> flatbed_layer::Result<()> {
    let mut rest = rows;
    while !rest.is_empty() {
        let asked = rest.iter().map(|row| {
            let options = GetOptions { rev: Some(row.rev.clone()), revs: true, no_body: true, ..GetOptions::default() };
            (row.id.clone(), options)
        });
        let found = database.get_many(&asked.collect::<Vec<_>>()).await?;
        // The layer returned fewer documents than requested; the next round reads the rest.
        let count = found.len().clamp(1, rest.len());
        for (row, found) in rest.iter_mut().zip(found) {
            if let (Some(doc), GetOutcome::Document(found)) = (&mut row.doc, found) {
                doc.revisions = found.revisions;
            }
        }
        rest = rest.get_mut(count..).unwrap_or_default();
    }
    Ok(())
}

fn limit_of(walk: &AllDocsQuery, count: usize) -> usize {
    walk.limit.map_or(count, |limit| usize::try_from(limit).unwrap_or(usize::MAX).min(count))
}

fn separator(rows: &mut u64, out: &mut Vec<u8>) {
    out.extend_from_slice(if *rows > 0 { b",\n" } else { b"\n" });
    *rows += 1;
}

fn write_row(row: &AllDocsRow, told: &RoutingOptions, routing: Option<&DocumentRouting>, sender: &mut Sender) {
    // The document may have changed after the row was read.
    let routing = routing.filter(|routing| routing.rev == row.rev);
    let mut open = Object::new(&mut sender.buffer);
    open.string(name!("key"), &row.id).string(name!("id"), &row.id);
    let mut value = open.object(name!("value"));
    json_out::rev(&row.rev, value.place(name!("rev")));
    if let Some(routing) = routing {
        let Verdict { channels, grants, .. } = &routing.verdict;
        let is_told = |channel: &&str| told.only.as_ref().is_none_or(|held| held.can_see([*channel]));
        let mut channels = channels.iter().map(String::as_str).filter(is_told).peekable();
        if told.channels && channels.peek().is_some() {
            value.array(name!("channels")).strings(channels);
        }
        if told.access && !grants.is_empty() {
            write_access(grants, &mut value);
        }
    }
    value.end();
    if let Some(document) = &row.doc {
        json_out::document(document, open.place(name!("doc")));
    }
    if let Some(routing) = routing.filter(|_| told.update_seq) {
        json_out::seq(&routing.seq, open.place(name!("update_seq")));
    }
}

/// Writes the channels and roles granted to each user and role.
pub(crate) fn write_access(grants: &BTreeSet<Grant>, value: &mut Object<'_>) {
    let mut given: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for Grant { to, what } in grants {
        let (to, what) = match (to, what) {
            (Grantee::User(name), GrantedItem::Channel(channel)) => (name.clone(), channel),
            (Grantee::Role(name), GrantedItem::Channel(channel)) => (format!("{ROLE_PREFIX}{name}"), channel),
            // Sync Gateway writes a user's role grant under the user's name with the role prefix.
            (Grantee::User(name) | Grantee::Role(name), GrantedItem::Role(role)) => {
                (format!("{ROLE_PREFIX}{name}"), role)
            }
        };
        given.entry(to).or_default().push(what);
    }
    if given.is_empty() {
        return;
    }
    let mut access = value.object(name!("access"));
    for (to, what) in given {
        access.array(to.as_str()).strings(what);
    }
}
