//! `_user/` and `_role/`: administers a database's users and roles.

use flatbed_channels::{
    GUEST, InvalidPrincipal, PrincipalKind, PrincipalOutput, PrincipalRequest, PrincipalUpdate, Role, User, UserOutput,
};
use flatbed_http::Reply;
use flatbed_layer::Seq;
use flatbed_layer::channels::{PrincipalWithRights, PrincipalWrite, PrincipalWriteOutcome, SignsIn};
use flatbed_layer::json::{self, Array, Value};
use flatbed_service::{Administer, Administration};
use hyper::{Method, StatusCode, header};

use crate::error::{Failure, Result};
use crate::reply::{self, empty};
use crate::request::Request;

/// The largest number of names in a list, which bounds its time.
const NAMES_MAX: usize = 100_000;

impl From<InvalidPrincipal> for Failure {
    fn from(invalid: InvalidPrincipal) -> Failure {
        let status = StatusCode::from_u16(invalid.status()).unwrap_or(StatusCode::BAD_REQUEST);
        Failure::new(status, invalid.to_string())
    }
}

pub(crate) async fn all(mut request: Request, name: &str, kind: PrincipalKind) -> Result<Reply> {
    let database = request.context.database(name, Administer).await?;
    if request.method == Method::POST {
        let body = request.json().await?;
        let done = put(&request, &database, kind, PrincipalRequest::Post, &body.bytes).await;
        return done.map(|_| empty(StatusCode::CREATED));
    }
    must_have_channels(&database).await?;
    let mut out = Vec::new();
    let mut names = Array::new(&mut out);
    let (mut behind, mut count) = (None::<String>, 0);
    loop {
        let page = database.principals(kind, behind.as_deref()).await?;
        count += page.len();
        names.strings(page.iter().map(String::as_str).filter(|name| !name.is_empty()));
        match page.last() {
            Some(last) if count < NAMES_MAX => behind = Some(last.clone()),
            _ => break,
        }
    }
    names.end();
    Ok(reply::json(StatusCode::OK, out))
}

/// Checks that the database has channels; others have no users.
pub(crate) async fn must_have_channels(database: &Administration) -> Result<()> {
    if database.has_channels().await? {
        return Ok(());
    }
    Err(Failure::bad_request("The database has no channels: PUT its _config/sync"))
}

/// Maps `GUEST` to its internal name, the empty one.
fn inner(name: &str, kind: PrincipalKind) -> &str {
    if kind == PrincipalKind::User && name == GUEST { "" } else { name }
}

/// Handles `_user/{name}` and `_role/{name}`.
pub(crate) async fn one(mut request: Request, db: &str, kind: PrincipalKind, name: &str) -> Result<Reply> {
    let database = request.context.database(db, Administer).await?;
    match request.method {
        Method::PUT => {
            let body = request.json().await?;
            let written = put(&request, &database, kind, PrincipalRequest::Put(name), &body.bytes).await?;
            Ok(empty(match written {
                PrincipalWriteOutcome::Created if !inner(name, kind).is_empty() => StatusCode::CREATED,
                _ => StatusCode::OK,
            }))
        }
        Method::DELETE => {
            request.skip_body().await;
            if inner(name, kind).is_empty() {
                let reason = "The GUEST user cannot be deleted. Only disabled via an update.";
                return Err(Failure::new(StatusCode::METHOD_NOT_ALLOWED, reason));
            }
            match database.delete_principal(kind, name).await? {
                true => Ok(empty(StatusCode::OK)),
                false => Err(Failure::not_found("missing")),
            }
        }
        _ => {
            must_have_channels(&database).await?;
            let found = database.principal(kind, inner(name, kind)).await?;
            let mut reply = match found {
                Some(found) => reply::json(StatusCode::OK, text(&found, kind)),
                None if inner(name, kind).is_empty() => reply::json(StatusCode::OK, no_guest()),
                None => return Err(Failure::not_found("missing")),
            };
            if kind == PrincipalKind::Role {
                reply.header(header::CONTENT_TYPE, "text/plain; charset=utf-8");
            } else if request.method == Method::HEAD {
                reply.headers.remove(header::CONTENT_TYPE);
            }
            Ok(reply)
        }
    }
}

/// Returns the guest's JSON if it has never been configured.
fn no_guest() -> Vec<u8> {
    json::Object::text(|object| {
        object.string("name", GUEST);
        object.array("all_channels").end();
        object.bool("disabled", true);
    })
}

fn text(found: &PrincipalWithRights, kind: PrincipalKind) -> Vec<u8> {
    let PrincipalWithRights { principal, held } = found;
    let user =
        UserOutput { email: &principal.email, disabled: principal.is_disabled, admin_roles: &principal.admin_roles };
    PrincipalOutput {
        name: &principal.name,
        admin_channels: &principal.admin_channels,
        held,
        user: (kind == PrincipalKind::User).then_some(user),
    }
    .text()
}

/// Creates or changes a user or role.
pub(crate) async fn put(
    request: &Request,
    database: &Administration,
    kind: PrincipalKind,
    asked: PrincipalRequest<'_>,
    body: &[u8],
) -> Result<PrincipalWriteOutcome> {
    let update = PrincipalUpdate::parse(body)?;
    let name = update.name(asked, kind)?;
    must_have_channels(database).await?;
    let exists = database.principal(kind, &name).await?.is_some();
    let is_new = asked == PrincipalRequest::Post;
    let write = match kind {
        PrincipalKind::Role => {
            let Role { name, admin_channels } = update.role(asked, exists)?;
            PrincipalWrite {
                kind,
                name,
                email: String::new(),
                is_disabled: false,
                admin_channels,
                admin_roles: Default::default(),
                signs_in: None,
                is_new,
            }
        }
        PrincipalKind::User => {
            let is_account = json::parse(body, &json::Limits::default())
                .is_ok_and(|body| body.get("account") == Some(&Value::Bool(true)));
            let User { name, password, email, disabled, admin_channels, admin_roles } =
                update.user(asked, exists, !is_account)?;
            let signs_in = match (password, is_account) {
                (Some(_), true) => {
                    return Err(Failure::bad_request("A user has a password here or is an account, not both"));
                }
                (Some(password), false) => Some(SignsIn::Password(request.context.hash_password(&password).await?)),
                (None, true) => Some(SignsIn::Account),
                // The guest signs in without credentials.
                (None, false) if name.is_empty() => Some(SignsIn::Not),
                (None, false) => None,
            };
            let is_disabled = disabled;
            PrincipalWrite { kind, name, email, is_disabled, admin_channels, admin_roles, signs_in, is_new }
        }
    };
    match database.put_principal(&write).await? {
        PrincipalWriteOutcome::Exists => Err(InvalidPrincipal::Exists.into()),
        PrincipalWriteOutcome::NoPassword => Err(InvalidPrincipal::EmptyPassword.into()),
        written => Ok(written),
    }
}

/// Handles `_user/{name}/_channels`: the user's channels with their sequences, and roles.
pub(crate) async fn channels(request: Request, db: &str, name: &str) -> Result<Reply> {
    let database = request.context.database(db, Administer).await?;
    must_have_channels(&database).await?;
    let found = database.principal(PrincipalKind::User, inner(name, PrincipalKind::User)).await?;
    let PrincipalWithRights { held, .. } = found.ok_or_else(|| Failure::not_found("missing"))?;
    let incarnation = database.update_seq().await?.incarnation();
    Ok(reply::object(StatusCode::OK, |object| {
        object.string("name", name);
        let mut channels = object.object("all_channels");
        for (channel, since) in held.channels() {
            channels.string(channel, &Seq::new(incarnation, since.0).to_string());
        }
        channels.end();
        let mut roles = object.object("roles");
        for (role, since) in held.roles() {
            roles.string(role, &Seq::new(incarnation, since.0).to_string());
        }
    }))
}
