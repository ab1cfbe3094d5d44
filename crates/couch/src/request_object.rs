//! CouchDB's request object, as functions of design documents are given it.

use flatbed_service::user_context;
use hyper::header::{AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION};

use crate::json_out;
use crate::query::decode;
use crate::request::Request;

/// The request as JSON text: what of CouchDB's request object is known here. Credentials are nobody's business.
pub(crate) fn request_object(request: &Request, database: &str, security: &[u8]) -> String {
    let mut out = b"{\"id\":null,".to_vec();
    json_out::member("method", request.method.as_str(), &mut out);
    let raw = request.uri.path_and_query().map_or("/", |path| path.as_str());
    out.push(b',');
    json_out::member("raw_path", raw, &mut out);
    let parts = request.uri.path().split('/').filter(|part| !part.is_empty());
    let parts: Vec<String> = parts.filter_map(|part| decode(part).ok()).collect();
    for name in ["requested_path", "path"] {
        out.push(b',');
        json_out::string(name, &mut out);
        out.extend_from_slice(b":[");
        for (at, part) in parts.iter().enumerate() {
            json_out::comma(at, &mut out);
            json_out::string(part, &mut out);
        }
        out.push(b']');
    }
    out.extend_from_slice(b",\"query\":");
    members(request.query.pairs(), &mut out);
    out.extend_from_slice(b",\"headers\":");
    let secret = [AUTHORIZATION, PROXY_AUTHORIZATION, COOKIE];
    let told = request.headers.iter().filter(|(name, _)| !secret.contains(name));
    members(told.filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?))), &mut out);
    out.extend_from_slice(b",\"form\":{},\"cookie\":{},\"userCtx\":");
    out.extend_from_slice(user_context(&request.context.user(), database).as_bytes());
    out.extend_from_slice(b",\"secObj\":");
    out.extend_from_slice(security);
    out.push(b'}');
    String::from_utf8_lossy(&out).into_owned()
}

fn members<'t>(pairs: impl Iterator<Item = (&'t str, &'t str)>, out: &mut Vec<u8>) {
    out.push(b'{');
    for (at, (name, text)) in pairs.enumerate() {
        json_out::comma(at, out);
        json_out::member(name, text, out);
    }
    out.push(b'}');
}
