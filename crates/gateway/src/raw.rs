//! Inspection of a document by administrators: its revision tree, channels and grants.

use std::collections::BTreeSet;

use flatbed_channels::{Grant, GrantedItem, Grantee};
use flatbed_documents::{AttachmentOptions, Part, read_document};
use flatbed_http::{Pages, Reply, ReplyBody, TenantReply, first_room};
use flatbed_layer::json::Object;
use flatbed_layer::{GetOptions, Hash, NotFound, OpenRevs, Refusal, RevId, Verdict};
use flatbed_service::{Administer, json_out};
use hyper::{Method, StatusCode, header};
use sha1::{Digest, Sha1};

use crate::all_docs::write_access;
use crate::body::new_id;
use crate::error::{Failure, Result};
use crate::reply::{self, empty, json};
use crate::request::Request;

/// The largest number of edges in a shown tree; more are 413.
const EDGES_MAX: usize = 100_000;

fn missing() -> Failure {
    Refusal::DocumentNotFound(NotFound::Missing).into()
}

/// Handles `_revtree/{id}`: the revision tree in Graphviz' language.
pub(crate) async fn rev_tree(request: Request, name: &str, id: &str) -> Result<Reply> {
    let accept = request.header(header::ACCEPT).unwrap_or("*/*");
    let mut kinds = accept.split(',').map(|kind| kind.split(';').next().unwrap_or_default().trim());
    let accepts_text = kinds.any(|kind| matches!(kind, "*/*" | "text/*" | "text/plain"));
    flatbed_layer::check_document_id(id)?;
    let database = request.context.database(name, Administer).await?;
    let room = first_room(&Pages::new(true)).await?;
    let options = GetOptions { revs: true, no_body: true, ..GetOptions::default() };
    let mut edges: BTreeSet<(RevId, RevId)> = BTreeSet::new();
    let mut read = 0;
    loop {
        let (leaves, count) = database.open_revs(id, &OpenRevs::All, read, false, &options).await?;
        if count == 0 {
            return Err(missing());
        }
        if !accepts_text {
            return Err(Failure::new(StatusCode::NOT_ACCEPTABLE, "only text/plain available"));
        }
        read += leaves.len();
        let is_over = leaves.is_empty() || read >= count;
        for leaf in leaves.into_iter().flatten() {
            let line = leaf.revisions.unwrap_or_default();
            let pairs = line.windows(2).filter_map(|pair| match pair {
                [child, parent] => Some((parent.clone(), child.clone())),
                _ => None,
            });
            edges.extend(pairs);
            if edges.len() > EDGES_MAX {
                let reason = format!("The tree has more than {EDGES_MAX} revisions");
                return Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, reason));
            }
        }
        if is_over {
            break;
        }
    }
    let mut text = "digraph graphname{".to_owned();
    for (parent, child) in &edges {
        // Replicated revision ids may contain any text.
        let quoted = |rev: &RevId| rev.to_string().replace('\\', "\\\\").replace('"', "\\\"");
        text.push_str(&format!("\"{}\" -> \"{}\"; ", quoted(parent), quoted(child)));
    }
    text.push('}');
    let mut reply = empty(StatusCode::OK);
    reply.header(header::CONTENT_TYPE, "text/plain charset=utf-8");
    reply.body = ReplyBody::Full(Some(text.into()));
    Ok(TenantReply::of_body(Reply { held: room, ..reply }).into())
}

/// Returns a revision's author without the suffix that dates a user's name.
fn name_of(writer: &str) -> &str {
    let user = writer.rsplit_once(':').map(|(user, _)| user);
    user.filter(|user| !user.is_empty() && !user.contains(':')).unwrap_or(writer)
}

/// Handles `_raw/{id}/_channels`: the winner, its channels and its grants.
pub(crate) async fn channels(request: Request, name: &str, id: &str) -> Result<Reply> {
    flatbed_layer::check_document_id(id)?;
    let database = request.context.database(name, Administer).await?;
    let found = database.routings(&[id.to_owned()]).await?.into_iter().next().flatten();
    let routing = found.ok_or_else(missing)?;
    Ok(reply::object(StatusCode::OK, |object| {
        object.string("_id", id);
        json_out::rev(&routing.rev, object.place("_rev"));
        json_out::seq(&routing.seq, object.place("seq"));
        object.array("channels").strings(routing.verdict.channels.iter().map(String::as_str));
        write_access(&routing.verdict.grants, object);
        if let Some(at) = routing.verdict.expires_at_ms {
            object.number("expires_at_ms", at);
        }
        if let Some(writer) = &routing.verdict.writer {
            object.string("writer", name_of(writer));
        }
    }))
}

/// Hashes a name as Sync Gateway does for redaction: SHA-1 of salt and name, in hexadecimal digits.
fn hash_of(name: &str, salt: &str) -> String {
    let digest = Sha1::new().chain_update(salt).chain_update(name).finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Hashes the text of a revision id that a replica chose; MD5 hashes stay.
fn redacted_rev(rev: &RevId, salt: &str) -> String {
    match rev.hash() {
        Hash::Md5(_) => rev.to_string(),
        Hash::Text(text) => format!("{}-{}", rev.generation(), hash_of(text, salt)),
    }
}

/// Replaces the names of channels, users and roles with hashes.
fn redacted(verdict: &Verdict, salt: &str) -> Verdict {
    let hash = |name: &str| hash_of(name, salt);
    let grant = |Grant { to, what }: &Grant| Grant {
        to: match to {
            Grantee::User(name) => Grantee::User(hash(name)),
            Grantee::Role(name) => Grantee::Role(hash(name)),
        },
        what: match what {
            GrantedItem::Channel(name) => GrantedItem::Channel(hash(name)),
            GrantedItem::Role(name) => GrantedItem::Role(hash(name)),
        },
    };
    Verdict {
        channels: verdict.channels.iter().map(|name| hash(name)).collect(),
        grants: verdict.grants.iter().map(grant).collect(),
        expires_at_ms: verdict.expires_at_ms,
        writer: verdict.writer.as_deref().map(|writer| hash(name_of(writer))),
    }
}

/// Handles `_raw/{id}`: the winner, which may be a tombstone, with a member `_sync`. Sync Gateway shows its storage
/// format there; this server shows the revision, sequence, channels and grants. With `redact=true` all text chosen by
/// users is hashed, so that the answer can be passed on.
pub(crate) async fn raw(request: Request, name: &str, id: &str) -> Result<Reply> {
    let query = &request.query;
    let is_redacted = query.flag("redact");
    if is_redacted && query.flag("include_doc") {
        let reason = "redact and include_doc cannot be true at the same time. If you want to redact you must specify include_doc=false";
        return Err(Failure::bad_request(reason));
    }
    let include_doc = !is_redacted && query.get("include_doc") != Some("false");
    let salt = match (is_redacted, query.get("salt")) {
        (true, Some(salt)) => Some(salt.to_owned()),
        // A random salt prevents guessing of hashed names.
        (true, None) => Some(new_id()?),
        (false, _) => None,
    };
    flatbed_layer::check_document_id(id)?;
    let database = request.context.database(name, Administer).await?;
    let found = database.routings(&[id.to_owned()]).await?.into_iter().next().flatten();
    let mut routing = found.ok_or_else(missing)?;
    if let Some(salt) = &salt {
        routing.verdict = redacted(&routing.verdict, salt);
    }
    let options = GetOptions {
        rev: Some(routing.rev.clone()),
        tombstone: true,
        revs: true,
        no_body: !include_doc,
        ..GetOptions::default()
    };
    let (document, room) = read_document(&database, id, options).await?;
    let mut out = Vec::new();
    if include_doc {
        for part in flatbed_documents::parts(&document, &AttachmentOptions::default(), true) {
            match part {
                Part::Text(text) => out.extend_from_slice(&text),
                Part::Body => out.extend_from_slice(&document.body),
                Part::Data(_) | Part::Stored(_) => {}
            }
        }
        // Removes the closing brace, because `_sync` follows.
        if out.last() == Some(&b'}') {
            out.pop();
        }
    }
    let mut text = if include_doc { Object::reopen(&mut out) } else { Object::new(&mut out) };
    let mut sync = text.object("_sync");
    match &salt {
        Some(salt) => drop(sync.string("rev", &redacted_rev(&routing.rev, salt))),
        None => json_out::rev(&routing.rev, sync.place("rev")),
    }
    json_out::seq(&routing.seq, sync.place("sequence"));
    sync.array("channels").strings(routing.verdict.channels.iter().map(String::as_str));
    write_access(&routing.verdict.grants, &mut sync);
    if let Some(at) = routing.verdict.expires_at_ms {
        sync.number("expires_at_ms", at);
    }
    if let Some(writer) = &routing.verdict.writer {
        sync.string("writer", name_of(writer));
    }
    sync.end();
    text.end();
    let mut reply = json(StatusCode::OK, out);
    if request.method == Method::HEAD {
        reply.headers.remove(header::CONTENT_TYPE);
    }
    Ok(Reply { held: room, ..reply })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_hashed() {
        let grant = |to, what| Grant { to, what };
        let verdict = Verdict {
            channels: ["A".to_owned()].into(),
            grants: [
                grant(Grantee::User("anna".to_owned()), GrantedItem::Channel("B".to_owned())),
                grant(Grantee::Role("cooks".to_owned()), GrantedItem::Role("waiters".to_owned())),
            ]
            .into(),
            expires_at_ms: Some(1),
            writer: Some("anna:7".to_owned()),
        };
        let found = redacted(&verdict, "salt");
        let shown = format!("{found:?}");
        for name in ["\"A\"", "\"B\"", "anna", "cooks", "waiters"] {
            assert!(!shown.contains(name), "{shown}");
        }
        // printf saltanna | sha1sum
        assert_eq!(found.writer.as_deref(), Some("d0daa2e92be249c259a1b90be88df8cd961bdd5a"));
        assert!(
            found
                .grants
                .iter()
                .any(|grant| grant.to == Grantee::User("d0daa2e92be249c259a1b90be88df8cd961bdd5a".to_owned()))
        );
        assert_ne!(redacted(&verdict, "other"), found);
        assert_eq!(found.expires_at_ms, Some(1));
    }

    #[test]
    fn revisions_of_replicas_are_hashed() {
        let shown = |rev: &str| redacted_rev(&rev.parse().expect("a revision"), "salt");
        assert_eq!(shown("3-anna"), "3-d0daa2e92be249c259a1b90be88df8cd961bdd5a");
        assert_eq!(shown("3-28390acbb2afb09d34e8e35d2d2211ad"), "3-28390acbb2afb09d34e8e35d2d2211ad");
    }
}
