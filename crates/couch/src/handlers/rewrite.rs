//! `/{db}/_design/{ddoc}/_rewrite/...`: a design document redirects the request internally, with the client's rights.
//!
//! The author of the design document may have fewer rights than the client. So a rewrite function cannot set headers
//! that identify the client, and outside of its database it reaches only reads. Rules stay in their database unless a
//! server administrator sets `secure_rewrites = false`; then they reach any path with the client's method. The router
//! refuses targets that need a server administrator, with any setting.

use bytes::Bytes;
use flatbed_http::TenantReply;
use flatbed_javascript::{Response, members};
use flatbed_layer::json::{self, Limits, Value};
use flatbed_layer::{DESIGN, Reader};
use flatbed_service::{AnswerError, DesignFunctions, Read, Rewrites};
use hyper::http::uri::PathAndQuery;
use hyper::{Method, StatusCode, Uri};

use crate::credentials::identifies_client;
use crate::error::{Failure, Result};
use crate::handlers::answering::{body_of, function_body, invalid_path, reserve_memory};
use crate::query::{Query, encode};
use crate::request::Request;
use crate::request_object::{FunctionInput, request_object};
use crate::response;
use crate::rewriting::{insecure, joined, rewritten};
use crate::state::State;

/// The most rewrites of one request, as in CouchDB.
const REWRITES_MAX: usize = 100;

pub(crate) enum RewriteOutcome {
    Answer(Box<TenantReply>),
    Request(Box<Request>),
}

pub(crate) async fn rewrite(
    state: &State,
    mut request: Request,
    name: &str,
    design: &str,
    rest: &[String],
) -> Result<RewriteOutcome> {
    request.rewrites += 1;
    if request.rewrites > REWRITES_MAX {
        return request.refuse(Failure::bad_request("Exceeded rewrite recursion limit")).await;
    }
    let database = request.context.database(name, Read).await?;
    let functions = request.context.design_functions(&database, design).await?;
    let place = [name.to_owned(), DESIGN.to_owned(), design.to_owned()];
    match functions.rewrites().await? {
        Rewrites::None => Err(invalid_path(&mut request, "rewrite_error").await),
        Rewrites::Rules(rules) => {
            let method = if request.method == Method::HEAD { Method::GET } else { request.method.clone() };
            let is_secure = !state.service.configuration().now().insecure_rewrites;
            let path = rewritten(&rules, method.as_str(), rest, request.query.pairs(), is_secure)?;
            let may_leave = !is_secure || is_read(&request.method);
            go(request, &place, &path, may_leave)
        }
        Rewrites::Function => function(state, request, &functions, &database, &place).await,
    }
}

async fn function(
    state: &State,
    mut request: Request,
    functions: &DesignFunctions,
    database: &Reader,
    place: &[String; 3],
) -> Result<RewriteOutcome> {
    let body = body_of(&mut request).await?;
    let object =
        request_object(&request, &FunctionInput { body: function_body(body.as_ref()), ..FunctionInput::default() });
    let object = request.context.request_object(object, database).await?;
    let answer = functions.rewrite(&object, &mut request.rewrite_time).await?;
    drop(object);
    let Some(answer) = answer else {
        return Err(Failure::new(StatusCode::NOT_FOUND, "rewrite_error", "Invalid path."));
    };
    let Rewrite { code, method, path, query, headers, body: made } = Rewrite::parse(&answer)?;
    if let Some(code) = code {
        let body = made.map(Bytes::from).or(body.map(|body| body.bytes)).filter(|body| !body.is_empty());
        let reply = reserve_memory(state, response::rewritten(code, &headers, body)?).await?;
        return Ok(RewriteOutcome::Answer(Box::new(reply)));
    }
    let path = path.ok_or_else(|| wrong("Rewrite result must produce a new path."))?;
    let query =
        query.unwrap_or_else(|| request.query.pairs().map(|(name, value)| (name.into(), value.into())).collect());
    let pairs: Vec<String> = query.iter().map(|(name, value)| format!("{}={}", encode(name), encode(value))).collect();
    let path = if pairs.is_empty() { path } else { format!("{path}?{}", pairs.join("&")) };
    let is_other = method.as_ref().is_some_and(|method| *method != request.method);
    if let Some(method) = method {
        request.method = method;
    }
    let of_proxy = [request.context.proxy_headers(), request.base_headers()].concat();
    for (name, value) in response::request_headers(&headers)?.iter() {
        if !identifies_client(name, &of_proxy) {
            request.headers.insert(name, value.clone());
        }
    }
    match (made, body) {
        (Some(text), _) => {
            let body = request.generated_body(Bytes::from(text)).await?;
            request.replace_body(body);
        }
        (None, Some(body)) => request.replace_body(body),
        (None, None) => {}
    }
    let may_leave = !is_other && is_read(&request.method);
    go(request, place, &path, may_leave)
}

fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// Rewrites a request to a path relative to its design document. `may_leave`: the path may leave the database.
fn go(mut request: Request, place: &[String; 3], path: &str, may_leave: bool) -> Result<RewriteOutcome> {
    let path = joined(place, path);
    let database = format!("/{}", encode(&place[0]));
    let is_within = path.strip_prefix(&database).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?']));
    if !is_within && !may_leave {
        return Err(insecure());
    }
    if request.requested_path.is_none() {
        request.requested_path = Some(request.uri.path().to_owned());
    }
    go_to(&mut request, &path)?;
    Ok(RewriteOutcome::Request(Box::new(request)))
}

/// Replaces a request's path and query.
pub(crate) fn go_to(request: &mut Request, path: &str) -> Result<()> {
    let path: PathAndQuery = path.parse().map_err(|_| wrong("bad path"))?;
    let mut parts = std::mem::take(&mut request.uri).into_parts();
    parts.path_and_query = Some(path);
    request.uri = Uri::from_parts(parts).map_err(|_| wrong("bad path"))?;
    request.query = Query::parse(request.uri.query())?.with_bounds(request.query.bounds());
    Ok(())
}

fn wrong(reason: &str) -> Failure {
    Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "rewrite_error", reason)
}

#[derive(Debug, Default, PartialEq)]
struct Rewrite {
    code: Option<u16>,
    method: Option<Method>,
    path: Option<String>,
    query: Option<Vec<(String, String)>>,
    headers: Vec<(String, String)>,
    body: Option<String>,
}

impl Rewrite {
    /// Parses the result. Unknown members are ignored, as in CouchDB.
    fn parse(text: &str) -> Result<Rewrite> {
        let mut rewrite = Rewrite::default();
        for (name, value) in members(text).ok_or_else(|| wrong("bad rewrite"))? {
            let text = || string(value).ok_or_else(|| wrong(&format!("bad {name}")));
            match name.as_str() {
                "code" => {
                    let response = Response::parse(&format!("{{\"code\":{value}}}")).map_err(AnswerError::from)?;
                    let code = response.code.filter(|code| (200..600).contains(code));
                    rewrite.code = Some(code.ok_or_else(|| wrong("bad code"))?);
                }
                "method" => {
                    let method = text()?;
                    rewrite.method = Some(Method::from_bytes(method.as_bytes()).map_err(|_| wrong("bad method"))?);
                }
                "path" => rewrite.path = Some(text()?),
                "body" => rewrite.body = Some(text()?),
                "query" => rewrite.query = Some(strings("query", value)?),
                "headers" => rewrite.headers = strings("headers", value)?,
                _ => {}
            }
        }
        Ok(rewrite)
    }
}

fn strings(name: &str, value: &str) -> Result<Vec<(String, String)>> {
    let all = members(value).ok_or_else(|| wrong(&format!("bad {name}")))?;
    let pair = |(name, value): (String, &str)| {
        let text = string(value).ok_or_else(|| wrong(&format!("object key/value must be strings {name}")))?;
        Ok((name, text))
    };
    all.into_iter().map(pair).collect()
}

fn string(text: &str) -> Option<String> {
    match json::parse(text.as_bytes(), &Limits::default()) {
        Ok(Value::String(text)) => Some(text.into_owned()),
        _ => None,
    }
}
