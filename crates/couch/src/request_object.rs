//! CouchDB's request object, as functions of design documents are given it.

use flatbed_layer::json::Object;
use hyper::header::{AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION};

use crate::query::decode;
use crate::request::Request;

/// The request as JSON text: what of CouchDB's request object is known here. Who asks and the database's `_security` come
/// behind it. Credentials are nobody's business.
pub(crate) fn request_object(request: &Request) -> Vec<u8> {
    let mut out = Vec::new();
    let mut object = Object::new(&mut out);
    let raw = request.uri.path_and_query().map_or("/", |path| path.as_str());
    object.null("id").string("method", request.method.as_str()).string("raw_path", raw);
    let parts = request.uri.path().split('/').filter(|part| !part.is_empty());
    let parts: Vec<String> = parts.filter_map(|part| decode(part).ok()).collect();
    for name in ["requested_path", "path"] {
        object.array(name).strings(parts.iter().map(String::as_str));
    }
    members(request.query.pairs(), object.object("query"));
    let secret = [AUTHORIZATION, PROXY_AUTHORIZATION, COOKIE];
    let told = request.headers.iter().filter(|(name, _)| !secret.contains(name));
    members(told.filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?))), object.object("headers"));
    object.raw("form", b"{}").raw("cookie", b"{}");
    object.end();
    out
}

fn members<'t>(pairs: impl Iterator<Item = (&'t str, &'t str)>, mut object: Object<'_>) {
    for (name, text) in pairs {
        object.string(name, text);
    }
}
