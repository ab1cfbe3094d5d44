//! `/_session`: the client's identity, and cookie sessions.

use std::net::Ipv4Addr;

use flatbed_auth::session::{of_form, of_json};
use flatbed_auth::{AuthErrorKind, Credentials};
use flatbed_layer::json::{self, Limits, Object};
use flatbed_service::SignInError;
use hyper::http::uri::Authority;
use hyper::{Method, StatusCode, header};

use crate::error::{Failure, Result};
use crate::query::{Query, is_true};
use crate::reply::{Reply, failed, warn};
use crate::request::Request;
use crate::router::claims;
use crate::state::State;

/// The largest sign-in body in bytes.
const BODY_BYTES_MAX: usize = 64 * 1024;

pub(crate) async fn session(state: &State, mut request: Request) -> Result<Reply> {
    match request.method {
        Method::POST => begin(state, &mut request).await,
        Method::DELETE => {
            request.skip_body().await;
            let mut reply = Reply::json(StatusCode::OK, b"{\"ok\":true}".to_vec());
            send_on(&request, "next", &mut reply)?;
            reply.header(header::SET_COOKIE, &state.service.end_session(request.is_secure));
            Ok(reply)
        }
        _ => show(state, &request),
    }
}

fn show(state: &State, request: &Request) -> Result<Reply> {
    let principal = request.context.principal();
    let is_anonymous = principal.name.is_none() && !principal.is_admin;
    if is_anonymous && is_true(&request.query, "basic")? {
        return Err(Failure::unauthorized("Please login."));
    }
    Ok(Reply::object(StatusCode::OK, |object| {
        let mut context = object.bool("ok", true).object("userCtx");
        context.string_or_null("name", principal.name.as_deref());
        context.array("roles").strings(principal.roles.iter().map(String::as_str));
        context.end();
        let mut info = object.object("info");
        info.array("authentication_handlers").strings(state.service.authentication_handlers());
        if let Some(handler) = principal.signed_in.handler() {
            info.string("authenticated", handler);
        }
    }))
}

/// Returns the names of this machine that the page and the request use, if they differ: such as `localhost` and
/// `127.0.0.1`.
fn names_of_this_machine(request: &Request) -> Option<(String, String)> {
    let page = request.header(header::ORIGIN)?.split_once("://")?.1;
    let server = request.uri.authority().map(Authority::as_str).or(request.header(header::HOST))?;
    let (page, server) = (loopback_name(page)?, loopback_name(server)?);
    (page != server).then_some((page, server))
}

/// Returns the host of an authority if it is this machine.
fn loopback_name(authority: &str) -> Option<String> {
    let host = authority.parse::<Authority>().ok()?.host().to_ascii_lowercase();
    let is_loopback =
        ["localhost", "[::1]"].contains(&&*host) || host.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback());
    is_loopback.then_some(host)
}

/// Signs in with a name and a password and sets a cookie.
async fn begin(state: &State, request: &mut Request) -> Result<Reply> {
    let credentials = credentials(state, request).await?;
    if state.service.is_open() {
        // Without administrators every client is one, with any name and password, as with Basic authentication. There
        // is no session to sign, and a replicator without a cookie continues with its credentials.
        return Ok(Reply::object(StatusCode::OK, |object| {
            object.bool("ok", true).string_or_null("name", None);
            object.array("roles").strings(request.context.principal().roles.iter().map(String::as_str));
        }));
    }
    let auth = state.service.configuration().now();
    match state.service.begin_session(&credentials, &claims(request, &auth.auth)).await {
        Ok(begun) => {
            let out = Object::text(|object| {
                object.bool("ok", true).string_or_null("name", begun.principal.name.as_deref());
                object.array("roles").strings(begun.principal.roles.iter().map(String::as_str));
            });
            let mut reply = Reply::json(StatusCode::OK, out);
            send_on(request, "next", &mut reply)?;
            reply.header(header::SET_COOKIE, &begun.set_cookie);
            if let Some((page, server)) = names_of_this_machine(request) {
                let text = format!(
                    "The page is of {page} and the server was asked as {server}. Browsers take the two for different \
                     sites and send no session from one to the other: use one name for both."
                );
                warn(&mut reply, &text);
            }
            Ok(reply)
        }
        Err(SignInError::Refused(refused)) if refused.kind == AuthErrorKind::Unauthorized => {
            let mut reply = failed(&refused.into());
            send_on(request, "fail", &mut reply)?;
            reply.header(header::SET_COOKIE, &state.service.end_session(request.is_secure));
            Ok(reply)
        }
        Err(error) => Err(error.into()),
    }
}

async fn credentials(state: &State, request: &mut Request) -> Result<Credentials> {
    let kind = request.header(header::CONTENT_TYPE).unwrap_or_default().to_owned();
    let (is_form, is_json) =
        (kind.starts_with("application/x-www-form-urlencoded"), kind.starts_with("application/json"));
    if !is_form && !is_json {
        let reason = "Content-Type must be 'application/x-www-form-urlencoded' or 'application/json'";
        return request.refuse(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_content_type", reason)).await;
    }
    let body = request.read_small_body(BODY_BYTES_MAX, state.session_body_max).await?;
    if is_json {
        let value = json::parse(&body.bytes, &Limits::default()).map_err(|_| Failure::invalid_json())?;
        return Ok(of_json(&value)?);
    }
    let text = std::str::from_utf8(&body.bytes).map_err(|_| Failure::bad_request("The form is not UTF-8"))?;
    let form = Query::parse(Some(text.trim_end_matches(['\r', '\n'])))?;
    Ok(of_form(&form.all().collect::<Vec<_>>())?)
}

/// Redirects the browser to the path in `next`, if given.
fn send_on(request: &Request, name: &str, reply: &mut Reply) -> Result<()> {
    let Some(path) = request.query.get(name) else { return Ok(()) };
    if !path.starts_with('/') {
        return Err(Failure::bad_request("path must begin with a /."));
    }
    // As in CouchDB, decoded characters stay decoded, except spaces, control characters and non-ASCII characters, which
    // headers and URLs cannot contain.
    let encoded: String = path
        .bytes()
        .map(|byte| match byte {
            b'!'..=b'~' => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect();
    reply.status = StatusCode::FOUND;
    reply.header(header::LOCATION, &format!("{}{encoded}", request.base()));
    Ok(())
}
