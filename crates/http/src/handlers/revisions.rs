//! Which revisions a database has, and how many it keeps: `_revs_diff`, `_missing_revs`, `_revs_limit`.

use flatbed_layer::RevId;
use flatbed_layer::json::Value;
use hyper::{Method, StatusCode};

use crate::error::{Failure, Result, parse_rev};
use crate::handlers::bulk::{json_body, object};
use crate::json_out;
use crate::reply::Reply;
use crate::request::Request;
use crate::server::State;

/// Documents and revisions as a request names them.
fn wanted(value: Value<'_>) -> Result<Vec<(String, Vec<RevId>)>> {
    let Value::Object(members) = value else { return Err(Failure::invalid_json()) };
    let invalid = || Failure::bad_request("The request body must be an object of arrays of revisions");
    let revs = |revs: Value<'_>| match revs {
        Value::Array(revs) => revs.iter().map(|rev| parse_rev(rev.as_str().ok_or_else(invalid)?)).collect(),
        _ => Err(invalid()),
    };
    members.into_iter().map(|(id, list)| Ok((id.into_owned(), revs(list)?))).collect()
}

pub(crate) async fn revs_diff(state: &State, mut request: Request, name: &str) -> Result<Reply> {
    let body = json_body(&mut request).await?;
    let wanted = wanted(object(&body.bytes)?)?;
    let database = state.layer.database(name);
    if wanted.is_empty() {
        database.exists().await?;
    }
    let missing = database.missing_revs(&wanted).await?;
    let mut out = b"{".to_vec();
    let mut written = 0;
    for ((id, _), (revs, ancestors)) in wanted.iter().zip(missing) {
        if revs.is_empty() {
            continue;
        }
        json_out::comma(written, &mut out);
        written += 1;
        json_out::string(id, &mut out);
        out.extend_from_slice(b":{\"missing\":");
        json_out::revs(&revs, &mut out);
        if !ancestors.is_empty() {
            out.extend_from_slice(b",\"possible_ancestors\":");
            json_out::revs(&ancestors, &mut out);
        }
        out.push(b'}');
    }
    out.push(b'}');
    Ok(Reply::json(StatusCode::OK, out))
}

pub(crate) async fn missing_revs(state: &State, mut request: Request, name: &str) -> Result<Reply> {
    let body = json_body(&mut request).await?;
    let wanted = wanted(object(&body.bytes)?)?;
    let database = state.layer.database(name);
    if wanted.is_empty() {
        database.exists().await?;
    }
    let missing = database.missing_revs(&wanted).await?;
    let mut out = b"{\"missing_revs\":{".to_vec();
    let mut written = 0;
    for ((id, _), (revs, _)) in wanted.iter().zip(missing) {
        if !revs.is_empty() {
            json_out::comma(written, &mut out);
            written += 1;
            json_out::string(id, &mut out);
            out.push(b':');
            json_out::revs(&revs, &mut out);
        }
    }
    out.extend_from_slice(b"}}");
    Ok(Reply::json(StatusCode::OK, out))
}

pub(crate) async fn revs_limit(state: &State, mut request: Request, name: &str) -> Result<Reply> {
    let database = state.layer.database(name);
    match request.method {
        Method::GET | Method::HEAD => {
            request.skip_body().await;
            Ok(Reply::json(StatusCode::OK, database.revs_limit().await?.to_string().into_bytes()))
        }
        Method::PUT => {
            let body = request.read_body().await?;
            let text = std::str::from_utf8(&body.bytes).unwrap_or_default().trim();
            let limit = text.parse().map_err(|_| Failure::bad_request("Rev limit has to be an integer"))?;
            database.set_revs_limit(limit).await?;
            Ok(Reply::ok(StatusCode::OK))
        }
        _ => {
            request.skip_body().await;
            Err(Failure::method("PUT,GET"))
        }
    }
}
