//! Mango indexes: `_index` and paths beneath it.

use std::borrow::Cow;

use flatbed_http::Reply;
use flatbed_layer::json::Value;
use flatbed_mango::{IndexRequest, Listing, bulk_delete_answer, find_index, parse_bulk_delete};
use flatbed_service::{QueryError, Read, Write};
use hyper::{Method, StatusCode};

use crate::error::{Failure, Result};
use crate::handlers::mango::{answer, body_of};
use crate::reply::ok;
use crate::request::Request;

/// The largest number of design documents in one `_bulk_delete`; each is one edit.
const BULK_DELETE_MAX: usize = 1_000;

pub(crate) async fn indexes(mut request: Request, name: &str) -> Result<Reply> {
    if request.method == Method::POST {
        let (body, _memory) = body_of(&mut request).await?;
        let parse = |body: &Value<'_>, stop: &dyn Fn() -> bool| IndexRequest::parse(body, stop);
        let wanted = request.context.read_query(name, body, parse).await?;
        let created = request.context.database(name, Write).await?.create_index(&wanted).await?;
        return Ok(answer(&wanted.answer(created)));
    }
    let listing = Listing::parse(request.query.pairs()).map_err(QueryError::Refused)?;
    let indexes = request.context.database(name, Read).await?.json_indexes().await?;
    Ok(answer(&listing.answer(indexes.all())))
}

pub(crate) async fn index(mut request: Request, name: &str, ddoc: &str, kind: &str, index: &str) -> Result<Reply> {
    request.skip_body().await;
    let indexes = request.context.database(name, Read).await?.json_indexes().await?;
    let found = find_index(indexes.all(), ddoc, kind, index).map_err(QueryError::Refused)?;
    let missing = || Failure::not_found("missing");
    let ddoc = found.ddoc().ok_or_else(missing)?;
    let database = request.context.database(name, Write).await?;
    if !database.delete_indexes(ddoc, |found| found.name() == index).await? {
        return Err(missing());
    }
    Ok(ok(StatusCode::OK))
}

pub(crate) async fn bulk_delete(mut request: Request, name: &str) -> Result<Reply> {
    let (body, _memory) = body_of(&mut request).await?;
    let ddocs = parse_bulk_delete(&body).map_err(QueryError::Refused)?;
    if ddocs.len() > BULK_DELETE_MAX {
        let reason = format!("at most {BULK_DELETE_MAX} design documents in a request");
        return Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", reason));
    }
    let database = request.context.database(name, Write).await?;
    database.exists().await?;
    let mut deleted = Vec::with_capacity(ddocs.len());
    for ddoc in ddocs {
        let outcome = match database.delete_indexes(&ddoc, |_| true).await {
            Ok(true) => Ok(()),
            Ok(false) => Err("not_found"),
            Err(error) => Err(match Failure::from(error).error {
                Cow::Borrowed(error) => error,
                Cow::Owned(_) => "unknown_error",
            }),
        };
        deleted.push((ddoc, outcome));
    }
    Ok(answer(&bulk_delete_answer(&deleted)))
}
