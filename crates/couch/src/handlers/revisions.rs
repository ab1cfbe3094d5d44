//! `_revs_diff`, `_missing_revs` and `_revs_limit`.

use std::borrow::Cow;

use flatbed_http::Reply;
use flatbed_layer::RevId;
use flatbed_layer::json::{Object, Value, name};
use flatbed_service::{Administer, Read};
use hyper::{Method, StatusCode};

use crate::error::{Failure, Result, parse_rev};
use crate::handlers::bulk::{ENTRIES_MAX, json_body, object, too_many};
use crate::handlers::partition::{refuse_in_partitioned, without_partition};
use crate::json_out;
use crate::reply::ok;
use crate::request::Request;

/// The largest batch of documents in one lookup.
const DOCUMENTS_AT_ONCE: usize = 100;

fn wanted((id, list): (Cow<'_, str>, Value<'_>)) -> Result<(String, Vec<RevId>)> {
    let invalid = || Failure::bad_request("The request body must be an object of arrays of revisions");
    let Value::Array(list) = list else { return Err(invalid()) };
    let revs = list.iter().map(|rev| parse_rev(rev.as_str().ok_or_else(invalid)?));
    Ok((id.into_owned(), revs.collect::<Result<_>>()?))
}

/// Looks up the requested revisions in batches. Calls `each` with a document's id, its missing revisions and their
/// possible ancestors.
async fn look_up(request: &mut Request, name: &str, mut each: impl FnMut(&str, &[RevId], &[RevId])) -> Result<()> {
    let body = json_body(request).await?;
    let Value::Object(members) = object(&body.bytes)? else { return Err(Failure::invalid_json()) };
    let count = |list: &Value<'_>| if let Value::Array(list) = list { list.len().max(1) } else { 1 };
    if members.iter().map(|(_, list)| count(list)).sum::<usize>() > ENTRIES_MAX {
        return Err(too_many("revisions"));
    }
    let database = request.context.database(name, Read).await?;
    if members.is_empty() {
        database.exists().await?;
    }
    refuse_in_partitioned(&database, without_partition(members.iter().map(|(id, _)| &**id))).await?;
    let mut members = members.into_iter();
    loop {
        let part = members.by_ref().take(DOCUMENTS_AT_ONCE).map(wanted).collect::<Result<Vec<_>>>()?;
        if part.is_empty() {
            return Ok(());
        }
        let missing = database.missing_revs(&part).await?;
        for ((id, _), (revs, ancestors)) in part.iter().zip(missing).filter(|(_, (revs, _))| !revs.is_empty()) {
            each(id, &revs, &ancestors);
        }
    }
}

pub(crate) async fn revs_diff(mut request: Request, name: &str) -> Result<Reply> {
    let mut out = Vec::new();
    let mut answer = Object::new(&mut out);
    look_up(&mut request, name, |id, revs, ancestors| {
        let mut document = answer.object(id);
        json_out::revs(revs, document.place(name!("missing")));
        if !ancestors.is_empty() {
            json_out::revs(ancestors, document.place(name!("possible_ancestors")));
        }
    })
    .await?;
    answer.end();
    Ok(Reply::json(StatusCode::OK, out))
}

pub(crate) async fn missing_revs(mut request: Request, name: &str) -> Result<Reply> {
    let mut out = Vec::new();
    let mut answer = Object::new(&mut out);
    let mut missing = answer.object("missing_revs");
    look_up(&mut request, name, |id, revs, _| json_out::revs(revs, missing.place(id))).await?;
    missing.end();
    answer.end();
    Ok(Reply::json(StatusCode::OK, out))
}

pub(crate) async fn revs_limit(mut request: Request, name: &str) -> Result<Reply> {
    if request.method != Method::PUT {
        request.skip_body().await;
        let limit = request.context.database(name, Read).await?.revs_limit().await?;
        return Ok(Reply::json(StatusCode::OK, limit.to_string().into_bytes()));
    }
    let body = request.read_body().await?;
    let text = std::str::from_utf8(&body.bytes).unwrap_or_default().trim();
    let limit = text.parse().map_err(|_| Failure::bad_request("Rev limit has to be an integer"))?;
    request.context.database(name, Administer).await?.set_revs_limit(limit).await?;
    Ok(ok(StatusCode::OK))
}
