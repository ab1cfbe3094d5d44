//! `_session`: the client's identity, and sessions of users.

use std::time::Duration;

use flatbed_channels::{Expiry, GUEST, HeldChannels, PrincipalKind};
use flatbed_http::Reply;
use flatbed_layer::Seq;
use flatbed_layer::json::{Object, Value};
use flatbed_service::{
    Administer, RightsBasis, SignInError, Standing, UserClaims, UserSession, UserSignIn, UserSignInError,
};
use hyper::{Method, StatusCode, header};

use crate::error::{Failure, Result};
use crate::path::Resource;
use crate::reply::{self, empty, json};
use crate::request::{Request, object};
use crate::state::Gateway;

const COOKIE: &str = "SyncGatewaySession";

/// The default lifetime of a session.
const LASTS: Duration = Duration::from_secs(24 * 3_600);

/// The largest sign-in body in bytes.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// Timeout of the sign-in body, which needs no credentials.
const BODY_MAX: Duration = Duration::from_secs(30);

/// Returns the value of the session cookie.
fn id_in(cookies: Option<&str>) -> Option<&str> {
    let pairs = cookies?.split(';').filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(|(name, _)| *name == COOKIE).map(|(_, value)| value).next()
}

/// Returns the value of a `set-cookie` header. The cookie is hidden from scripts, and CORS gives other sites no access
/// here.
fn cookie(database: &str, id: &str, ends_at_ms: u64) -> String {
    format!("{COOKIE}={id}; Path=/{database}; Expires={}; HttpOnly; SameSite=Lax", http_date(ends_at_ms / 1_000))
}

fn http_date(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    // Formatted as `YYYY-MM-DDThh:mm:ssZ`.
    let date = Expiry::At(seconds).shown().unwrap_or_default();
    let part = |from: usize, to: usize| date.get(from..to).unwrap_or_default();
    let month = part(5, 7).parse::<usize>().ok().and_then(|month| MONTHS.get(month.checked_sub(1)?));
    let day = DAYS.get(usize::try_from(seconds / 86_400 % 7).unwrap_or_default());
    let (day, month) = (day.unwrap_or(&"Thu"), month.unwrap_or(&"Jan"));
    format!("{day}, {} {month} {} {} GMT", part(8, 10), part(0, 4), part(11, 19))
}

/// The client's standing at the users' port, and the cookie of a prolonged session.
pub(crate) struct ClientSignIn {
    pub standing: Standing,
    pub set_cookie: Option<String>,
}

/// Identifies the client.
pub(crate) async fn sign_in(
    gateway: &Gateway,
    request: &flatbed_http::Request,
    database: &str,
    of: &Resource,
) -> Result<ClientSignIn> {
    let session = id_in(request.header(header::COOKIE));
    let claims = UserClaims { authorization: request.header(header::AUTHORIZATION), session, peer: request.peer };
    let is_session = *of == Resource::Session && request.method != Method::DELETE;
    match gateway.service.identify_in(database, &claims).await {
        Ok(UserSignIn { standing, prolonged_until_ms }) => {
            let set_cookie = session.zip(prolonged_until_ms).map(|(id, ends)| cookie(database, id, ends));
            Ok(ClientSignIn { standing, set_cookie })
        }
        // `GET _session` may be anonymous.
        Err(UserSignInError::LoginRequired | UserSignInError::SessionInvalid) if is_session => {
            Ok(ClientSignIn { standing: Standing::anonymous(), set_cookie: None })
        }
        Err(error) => Err(error.into()),
    }
}

impl From<UserSignInError> for Failure {
    fn from(error: UserSignInError) -> Failure {
        match error {
            UserSignInError::LoginRequired => Failure::login_required(),
            UserSignInError::SessionInvalid => Failure::new(StatusCode::UNAUTHORIZED, error.to_string()),
            UserSignInError::Other(error) => error.into(),
        }
    }
}

/// Returns the name of the signed-in user; `None` if anonymous or guest.
pub(crate) fn name_of(standing: &Standing) -> Option<&str> {
    match standing.basis() {
        RightsBasis::Principal { name, .. } => Some(&**name).filter(|name| !name.is_empty()),
        _ => standing.principal().name.as_deref(),
    }
}

/// Returns the user's name for the log and for limits.
pub(crate) fn user_of(standing: &Standing, database: &str) -> Option<String> {
    match standing.basis() {
        RightsBasis::Principal { name, .. } if name.is_empty() => None,
        RightsBasis::Principal { name, .. } => Some(format!("{database}/{name}")),
        _ => standing.principal().name.clone(),
    }
}

/// Formats the answer about a user; `None` is anonymous. Channels that the user has through a role are omitted.
async fn text(gateway: &Gateway, database: &str, name: Option<&str>, is_guest: bool) -> Result<Vec<u8>> {
    let context = gateway.service.context(Standing::of_server());
    let of = context.database(database, Administer).await?;
    let found = match (name, is_guest) {
        (None, false) => None,
        (name, _) => of.principal(PrincipalKind::User, name.unwrap_or_default()).await?,
    };
    let incarnation = of.update_seq().await?.incarnation();
    Ok(Object::text(|object| {
        object.array("authentication_handlers").string("default").string("cookie");
        object.bool("ok", true);
        let mut user = object.object("userCtx");
        let mut channels = user.object("channels");
        if let Some(found) = found.iter().find(|found| !found.principal.is_disabled) {
            for (channel, since) in found.held.own() {
                channels.string(channel, &Seq::new(incarnation, since.0).to_string());
            }
        }
        channels.end();
        user.string_or_null("name", name);
    }))
}

/// Returns the channels of the user or guest. Accounts of the server have none.
pub(crate) async fn channels_of(gateway: &Gateway, request: &Request, database: &str) -> Result<HeldChannels> {
    let RightsBasis::Principal { name, .. } = request.context.standing().basis() else {
        return Ok(HeldChannels::default());
    };
    let of = gateway.service.context(Standing::of_server()).database(database, Administer).await?;
    let found = of.principal(PrincipalKind::User, name).await?.filter(|found| !found.principal.is_disabled);
    Ok(found.map(|found| found.held).unwrap_or_default())
}

/// Returns the answer about an anonymous client.
pub(crate) fn anonymous() -> Reply {
    reply::object(StatusCode::OK, |object| {
        object.array("authentication_handlers").string("default").string("cookie");
        object.bool("ok", true);
        let mut user = object.object("userCtx");
        user.object("channels").end();
        user.null("name");
    })
}

/// Handles `_session` at the users' port.
pub(crate) async fn of_users(gateway: &Gateway, mut request: Request, database: &str) -> Result<Reply> {
    let standing = request.context.standing().clone();
    let name = name_of(&standing).map(str::to_owned);
    match request.method {
        Method::POST => begin(gateway, &mut request, database, name).await,
        Method::DELETE => {
            request.skip_body().await;
            let Some(id) = id_in(request.header(header::COOKIE)) else {
                return Err(Failure::not_found("no session"));
            };
            gateway.service.end_user_session(database, id).await?;
            let mut reply = empty(StatusCode::OK);
            reply.header(header::SET_COOKIE, &format!("{COOKIE}=; Expires={}", http_date(0)));
            Ok(reply)
        }
        _ => {
            let is_guest = matches!(standing.basis(), RightsBasis::Principal { name, .. } if name.is_empty());
            Ok(json(StatusCode::OK, text(gateway, database, name.as_deref(), is_guest).await?))
        }
    }
}

/// Begins a session for a name and password, or for the signed-in user.
async fn begin(gateway: &Gateway, request: &mut Request, database: &str, own: Option<String>) -> Result<Reply> {
    request.check_json().await?;
    let body = request.read_small_body(BODY_BYTES_MAX, BODY_MAX).await?;
    let (mut standing, mut name) = (request.context.standing().clone(), own);
    if !(body.bytes.is_empty() && name.is_some()) {
        let value = object(&body.bytes)?;
        let member = |member: &str| match value.get(member) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.to_string())),
            Some(_) => Err(Failure::bad_request(format!("Bad JSON: {member} must be a string"))),
        };
        let (given, password) = (member("name")?, member("password")?);
        if given.is_some() || name.is_none() {
            let wrong = || Failure::new(StatusCode::UNAUTHORIZED, "Invalid login");
            let given = given.filter(|name| !name.is_empty() && !name.contains(':')).ok_or_else(wrong)?;
            let credentials = format!("{given}:{}", password.unwrap_or_default());
            let authorization = format!("Basic {}", flatbed_documents::base64(credentials.as_bytes()));
            let claims = UserClaims { authorization: Some(&authorization), session: None, peer: request.peer };
            let found = gateway.service.identify_in(database, &claims).await;
            let found = found.map_err(|error| match error {
                UserSignInError::Other(SignInError::Refused(_)) => wrong(),
                error => error.into(),
            })?;
            standing = found.standing;
            name = name_of(&standing).map(str::to_owned);
        }
    }
    let name = name.ok_or_else(Failure::login_required)?;
    let context = gateway.service.context(standing).from_peer(request.peer);
    let UserSession { id, ends_at_ms } = context
        .begin_user_session(database, &name, LASTS)
        .await?
        .ok_or_else(|| Failure::new(StatusCode::UNAUTHORIZED, "Invalid login"))?;
    let mut reply = json(StatusCode::OK, text(gateway, database, Some(&name), false).await?);
    reply.header(header::SET_COOKIE, &cookie(database, &id, ends_at_ms));
    Ok(reply)
}

/// Handles `POST _session` at the administrators' port: begins a session for any user.
pub(crate) async fn begin_for(mut request: Request, database: &str) -> Result<Reply> {
    let body = request.json().await?;
    let value = object(&body.bytes)?;
    let name = match value.get("name") {
        None | Some(Value::Null) => "",
        Some(Value::String(name)) => name,
        Some(_) => return Err(Failure::bad_request("Bad JSON: name must be a string")),
    };
    if name.is_empty() || name == GUEST {
        return Err(Failure::bad_request("Invalid or missing user name"));
    }
    let lasts = match value.get("ttl") {
        None | Some(Value::Null) => LASTS,
        Some(Value::Number(seconds)) => match seconds.parse() {
            Ok(seconds @ 1_u64..) => Duration::from_secs(seconds),
            _ => return Err(Failure::bad_request("Invalid or missing ttl")),
        },
        Some(_) => return Err(Failure::bad_request("Bad JSON: ttl must be a number")),
    };
    let begun = request.context.begin_user_session(database, name, lasts).await?;
    let UserSession { id, ends_at_ms } = begun.ok_or_else(|| Failure::not_found(format!("No such user {name:?}")))?;
    Ok(reply::object(StatusCode::OK, |object| {
        object.string("session_id", &id);
        object.string("expires", &Expiry::At(ends_at_ms / 1_000).shown().unwrap_or_default());
        object.string("cookie_name", COOKIE);
    }))
}

/// Handles `_session/{id}` at the administrators' port, and beneath a user.
pub(crate) async fn one(
    gateway: &Gateway,
    mut request: Request,
    database: &str,
    id: &str,
    of: Option<&str>,
) -> Result<Reply> {
    request.skip_body().await;
    let found = request.context.user_session(database, id).await?;
    let found = found.filter(|(name, _)| of.is_none_or(|of| of == name));
    let (name, _) = found.ok_or_else(|| Failure::not_found("missing"))?;
    if request.method == Method::DELETE {
        gateway.service.end_user_session(database, id).await?;
        return Ok(empty(StatusCode::OK));
    }
    Ok(json(StatusCode::OK, text(gateway, database, Some(&name), false).await?))
}

/// Handles `_user/{name}/_session` at the administrators' port: ends all of a user's sessions.
pub(crate) async fn end_all(mut request: Request, database: &str, name: &str) -> Result<Reply> {
    request.skip_body().await;
    let database = request.context.database(database, Administer).await?;
    database.end_principal_sessions(name).await?;
    Ok(empty(StatusCode::OK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(http_date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(http_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(http_date(4_102_444_800), "Fri, 01 Jan 2100 00:00:00 GMT");
    }

    #[test]
    fn cookies() {
        assert_eq!(id_in(Some("a=b; SyncGatewaySession=x; SyncGatewaySession=y")), Some("x"));
        let made = "SyncGatewaySession=x; Path=/db; Expires=Sun, 06 Nov 1994 08:49:37 GMT; HttpOnly; SameSite=Lax";
        assert_eq!(cookie("db", "x", 784_111_777_000), made);
        assert_eq!((id_in(Some("NotSyncGatewaySession=x; SyncGatewaySession")), id_in(None)), (None, None));
    }
}
