//! What administrators see of a document beside its text: its tree of revisions, the channels that it is in.

use std::collections::BTreeSet;

use flatbed_documents::{Part, Show};
use flatbed_http::{Pages, Reply, ReplyBody, first_room};
use flatbed_layer::json::Object;
use flatbed_layer::{GetOptions, NotFound, OpenRevs, Refusal, RevId};
use flatbed_service::{Administer, json_out};
use hyper::{Method, StatusCode, header};

use crate::all_docs::write_access;
use crate::error::{Failure, Result};
use crate::read;
use crate::reply::{empty, json};
use crate::request::Request;

/// Edges of a tree that is shown.
const EDGES_MAX: usize = 100_000;

fn missing() -> Failure {
    Refusal::DocumentNotFound(NotFound::Missing).into()
}

/// `_revtree/{id}`: a graph of the revisions, in the language of Graphviz.
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
        // Those of other replicas may be any text.
        let quoted = |rev: &RevId| rev.to_string().replace('\\', "\\\\").replace('"', "\\\"");
        text.push_str(&format!("\"{}\" -> \"{}\"; ", quoted(parent), quoted(child)));
    }
    text.push('}');
    let mut reply = empty(StatusCode::OK);
    reply.header(header::CONTENT_TYPE, "text/plain charset=utf-8");
    reply.body = ReplyBody::Full(Some(text.into()));
    Ok(Reply { held: room, ..reply })
}

/// The name of who has written a revision, of what is noted of them: behind it stands since when a user's name has been theirs.
fn name_of(writer: &str) -> &str {
    let user = writer.rsplit_once(':').map(|(user, _)| user);
    user.filter(|user| !user.is_empty() && !user.contains(':')).unwrap_or(writer)
}

/// `_raw/{id}/_channels`: the winner, the channels that it is in, and whom it lets in.
pub(crate) async fn channels(request: Request, name: &str, id: &str) -> Result<Reply> {
    flatbed_layer::check_document_id(id)?;
    let database = request.context.database(name, Administer).await?;
    let found = database.routings(&[id.to_owned()]).await?.into_iter().next().flatten();
    let routing = found.ok_or_else(missing)?;
    let text = Object::text(|object| {
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
    });
    Ok(json(StatusCode::OK, text))
}

/// `_raw/{id}`: the winner, be it a tombstone, and beside its members as `_sync` what is kept of it. Another shape than the recorded one,
/// which was how a bucket keeps it: here it is where the document stands, its revisions, its channels and whom it lets in.
pub(crate) async fn raw(request: Request, name: &str, id: &str) -> Result<Reply> {
    let query = &request.query;
    let include_doc = query.get("include_doc") != Some("false");
    if query.flag("redact") {
        if query.flag("include_doc") {
            let reason = "redact and include_doc cannot be true at the same time. If you want to redact you must specify include_doc=false";
            return Err(Failure::bad_request(reason));
        }
        return Err(Failure::not_implemented("redact"));
    }
    flatbed_layer::check_document_id(id)?;
    let database = request.context.database(name, Administer).await?;
    let found = database.routings(&[id.to_owned()]).await?.into_iter().next().flatten();
    let routing = found.ok_or_else(missing)?;
    let options = GetOptions {
        rev: Some(routing.rev.clone()),
        tombstone: true,
        revs: true,
        no_body: !include_doc,
        ..GetOptions::default()
    };
    let (document, room) = read::document(&database, id, options).await?;
    let mut out = Vec::new();
    if include_doc {
        for part in flatbed_documents::parts(&document, &Show::default(), true) {
            match part {
                Part::Text(text) => out.extend_from_slice(&text),
                Part::Body => out.extend_from_slice(&document.body),
                Part::Data(_) | Part::Stored(_) => {}
            }
        }
        // It goes on.
        if out.last() == Some(&b'}') {
            out.pop();
        }
    }
    let mut text = if include_doc { Object::reopen(&mut out) } else { Object::new(&mut out) };
    let mut sync = text.object("_sync");
    json_out::rev(&routing.rev, sync.place("rev"));
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
