//! CouchDB's request object, the argument of functions of design documents.

use flatbed_layer::json::{self, Limits, Object};
use hyper::Method;
use hyper::header::CONTENT_TYPE;

use crate::credentials::is_credential;
use crate::query::decode;
use crate::request::Request;

/// Parameters that functions get as parsed JSON.
const JSON_PARAMETERS: [&str; 4] = ["key", "startkey", "endkey", "descending"];

/// The members of the request object that only show, list, update and rewrite functions get.
#[derive(Debug, Default)]
pub(crate) struct FunctionInput<'t> {
    pub id: Option<&'t str>,
    /// A new random id.
    pub uuid: Option<&'t str>,
    /// The database's figures as JSON, as in `GET /{db}`.
    pub info: Option<&'t [u8]>,
    pub body: FunctionBody<'t>,
}

/// The request's body, as a function sees it.
#[derive(Debug, Default)]
pub(crate) enum FunctionBody<'t> {
    #[default]
    Hidden,
    None,
    Text(&'t [u8]),
    /// The body's text, which is JSON; the function gets the parsed value.
    Json(&'t [u8]),
}

/// Writes the request object as JSON text, without credentials. The caller appends the user context and the database's
/// `_security`.
pub(crate) fn request_object(request: &Request, input: &FunctionInput<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut object = Object::new(&mut out);
    let raw = request.uri.path_and_query().map_or("/", |path| path.as_str());
    // CouchDB does not tell functions of HEAD.
    let method = if request.method == Method::HEAD { "GET" } else { request.method.as_str() };
    object.string_or_null("id", input.id).string("method", method).string("raw_path", raw);
    let path = request.uri.path();
    for (name, path) in [("requested_path", request.requested_path.as_deref().unwrap_or(path)), ("path", path)] {
        let parts = path.split('/').filter(|part| !part.is_empty());
        let parts: Vec<String> = parts.filter_map(|part| decode(part).ok()).collect();
        object.array(name).strings(parts.iter().map(String::as_str));
    }
    query(request, object.object("query"));
    headers(request, object.object("headers"));
    if let Some(uuid) = input.uuid {
        object.string("uuid", uuid);
    }
    if let Some(info) = input.info {
        object.raw("info", info);
    }
    let mut form = object.object("form");
    let is_form =
        request.header(CONTENT_TYPE).is_some_and(|kind| kind.starts_with("application/x-www-form-urlencoded"));
    if let FunctionBody::Text(body) = input.body
        && is_form
        && matches!(request.method, Method::POST | Method::PUT)
    {
        let body = String::from_utf8_lossy(body);
        for pair in body.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if let (Ok(name), Ok(value)) = (decode(name), decode(value)) {
                form.string(name.as_str(), &value);
            }
        }
    }
    form.end();
    match input.body {
        FunctionBody::Hidden => {}
        // CouchDB's value.
        FunctionBody::None => drop(object.string("body", "undefined")),
        FunctionBody::Text(text) => drop(object.string("body", &String::from_utf8_lossy(text))),
        FunctionBody::Json(text) => drop(object.raw("body", text)),
    }
    object.string("peer", &peer(request)).raw("cookie", b"{}");
    object.end();
    out
}

fn peer(request: &Request) -> String {
    request.peer.map_or_else(|| "127.0.0.1".to_owned(), |peer| peer.to_string())
}

fn query(request: &Request, mut object: Object<'_>) {
    for (name, text) in request.query.pairs() {
        let is_json = JSON_PARAMETERS.contains(&name) && json::parse(text.as_bytes(), &Limits::default()).is_ok();
        if is_json {
            object.raw(name, text.as_bytes());
        } else {
            object.string(name, text);
        }
    }
}

/// Writes header names capitalised as CouchDB does, such as `Content-Type`, and joins repeated values.
fn headers(request: &Request, mut object: Object<'_>) {
    let of_proxy = request.context.proxy_headers();
    for name in request.headers.keys().filter(|name| !is_credential(name, &of_proxy)) {
        let values: Vec<&str> = request.headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
        if !values.is_empty() {
            object.string(capitalized(name.as_str()).as_str(), &values.join(", "));
        }
    }
}

fn capitalized(name: &str) -> String {
    let mut is_first = true;
    name.chars()
        .map(|letter| {
            let shown = if is_first { letter.to_ascii_uppercase() } else { letter };
            is_first = letter == '-';
            shown
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_headers_are_couchdbs() {
        for (name, expected) in [("accept", "Accept"), ("content-type", "Content-Type"), ("x-my-own", "X-My-Own")] {
            assert_eq!(capitalized(name), expected);
        }
    }
}
