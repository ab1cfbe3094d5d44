//! Dispatches a request to its handler and converts the result to an answer.

mod rights;
mod routes;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flatbed_auth::proxy;
use flatbed_documents::while_allowed;
use flatbed_http::{Answer, Client, InsidePrincipal, Origin, Rejection, Reply, Surface, spawn};
use flatbed_layer::{Error as LayerError, REPLICATOR, USERS};
use flatbed_replicator::Owner;
use flatbed_service::configuration::AuthSettings;
use flatbed_service::{
    AccessError, Administer, Claims, Context, IdentifiedRequest, Maintain, Read, ReadWhole, SignInError, Standing,
};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, StatusCode};

use crate::error::{Failure, Result};
use crate::handlers::document;
use crate::handlers::rewrite::{self, RewriteOutcome};
use crate::path::{DesignCall, InDatabase, Path, Target};
use crate::query::Query;
use crate::reply::failed;
use crate::request::Request;
use crate::rewriting::insecure;
use crate::route::Route;
use crate::state::State;

pub(crate) use rights::RequiredRight;
use routes::Effect;

/// The request header that chooses the challenge of a 401.
const WANTED_CHALLENGE: HeaderName = HeaderName::from_static("x-couchdb-www-authenticate");

const CHALLENGE: HeaderValue = HeaderValue::from_static("Basic realm=\"server\"");

/// The refusal of a rewrite to a replication or to a target that needs a server administrator. The author of a design
/// document administers only the database, but any user may follow the link.
const BEYOND_REWRITES: &str = "Rewrites do not lead to paths for server administrators or to new replications.";

/// The refusal of an update function that writes a replication document. Update functions write with the rights of the
/// client.
const BEYOND_UPDATES: &str = "Update functions do not begin replications.";

/// Timeout of the sign-in for targets that need no storage, such as `/_up`.
const IDENTIFIED_WITHIN: Duration = Duration::from_secs(1);

#[async_trait]
impl Surface for State {
    type Target = Path;
    type Label = Route;

    const PREFLIGHT: Route = Route::Preflight;

    const TAKES_METHOD_OVERRIDE: bool = true;
    const TELLS_BODY_TIME: bool = true;

    fn target(&self, path: &str) -> (Path, Route) {
        let target = self.parse_path(path);
        let route = target.as_ref().map_or(Route::Invalid, Target::route);
        (Path(target), route)
    }

    fn is_open(&self) -> bool {
        self.service.is_open()
    }

    fn changes(Path(target): &Path, method: &Method) -> bool {
        target.as_ref().map_or(!method.is_safe(), |target| target.changes(method))
    }

    fn begins_session(Path(target): &Path) -> bool {
        matches!(target, Ok(Target::Session))
    }

    async fn answer(
        self: &Arc<Self>,
        request: flatbed_http::Request,
        Path(target): Path,
        origin: Origin<'_>,
    ) -> Answer {
        let challenge = request.headers.get(WANTED_CHALLENGE).cloned();
        // A sign-in page shows errors itself. As in CouchDB, no challenge makes the browser open its own dialog.
        let signs_in = matches!(target, Ok(Target::Session)) && request.method == Method::POST;
        let (mut user, mut set_cookie) = (None, None);
        let peer = request.peer;
        let handled = async {
            let standing = if origin.is_inside {
                owner_standing(self, &origin).await?
            } else {
                let settings = self.service.configuration().now();
                let claims = claims(&request, &settings.auth);
                let identified = self.service.identify(&claims);
                let IdentifiedRequest { standing, set_cookie: renewed } = match &target {
                    Ok(Target::Up | Target::Welcome) => identify_within_timeout(identified).await?,
                    _ => identified.await?,
                };
                set_cookie = renewed;
                standing
            };
            if standing.principal().is_admin {
                origin.know();
            }
            user = standing.principal().name.clone();
            if let (false, Some(name)) = (standing.principal().is_admin, &user) {
                origin.admit(name)?;
            }
            let target = target?;
            let query = Query::parse(request.uri.query())?.with_bounds(self.query_bounds());
            let context = self.service.context(standing).from_peer(peer);
            let watch = context.rights_watch();
            // Boxed, because each level of calls would copy the request.
            let settings = self.service.configuration().now();
            let request = Box::new(Request::new(request, query, context, settings));
            let reply = run(self, request, target).await?;
            Ok(while_allowed(reply, watch))
        };
        let mut reply = handled.await.unwrap_or_else(|failure| failed(&self.health.tell(failure)));
        if reply.status == StatusCode::UNAUTHORIZED
            && !signs_in
            && let Some(challenge) = challenge.or_else(|| challenge_of(&self.service.configuration().now().auth))
        {
            reply.headers.insert(header::WWW_AUTHENTICATE, challenge);
        }
        if let Some(cookie) = set_cookie
            && !reply.headers.contains_key(header::SET_COOKIE)
        {
            reply.header(header::SET_COOKIE, &cookie);
        }
        Answer { reply, user }
    }

    fn refused(&self, refused: &Rejection) -> Reply {
        failed(&refused.clone().into())
    }
}

/// Returns the challenge of a 401. With `require_valid_user` it has one, so that browsers ask for a password.
fn challenge_of(settings: &AuthSettings) -> Option<HeaderValue> {
    let set = settings.challenge.as_deref().and_then(|text| HeaderValue::from_str(text).ok());
    set.or_else(|| settings.require_valid_user.then_some(CHALLENGE))
}

/// Returns the current standing of the user on whose behalf a replication runs.
async fn owner_standing(state: &State, origin: &Origin<'_>) -> Result<Standing> {
    let gone =
        || Failure::new(StatusCode::UNAUTHORIZED, "unauthorized", "The owner of this replication no longer exists.");
    let owner = origin.on_behalf.and_then(InsidePrincipal::downcast_ref::<Owner>).ok_or_else(gone)?;
    owner.now(state.service.accounts()).await?.ok_or_else(gone)
}

/// Signs in the client, with a timeout for `/_up`: it answers even if the storage cannot identify the client.
async fn identify_within_timeout(
    identified: impl Future<Output = std::result::Result<IdentifiedRequest, SignInError>>,
) -> std::result::Result<IdentifiedRequest, SignInError> {
    let anonymous = || Ok(IdentifiedRequest { standing: Standing::anonymous(), set_cookie: None });
    match tokio::time::timeout(IDENTIFIED_WITHIN, identified).await {
        Err(_) | Ok(Err(SignInError::Layer(_))) => anonymous(),
        Ok(done) => done,
    }
}

pub(crate) fn claims<'r>(request: &'r flatbed_http::Request, settings: &AuthSettings) -> Claims<'r> {
    let text = |name: &str| request.headers.get(name).and_then(|value| value.to_str().ok());
    let names = &settings.proxy;
    let proxy = text(&names.user_header).filter(|_| !names.peers.is_empty()).map(|name| proxy::Claim {
        name,
        roles: text(&names.roles_header),
        token: text(&names.token_header),
    });
    Claims {
        authorization: request.header(header::AUTHORIZATION),
        cookie: request.header(header::COOKIE),
        proxy,
        peer: request.peer,
        connection: request.sender,
        is_secure: request.is_secure,
    }
}

/// Runs the handler. A writing request continues when its client disconnects, so that a commit in flight is not
/// dropped. A handler with much work watches the request's `client`.
async fn run(state: &Arc<State>, mut request: Box<Request>, target: Target) -> Result<Reply> {
    if target.only_reads(&request.method) {
        return dispatch(state, request, target).await;
    }
    let state = state.clone();
    let (client, _there) = Client::new();
    request.client = Some(client);
    let task = spawn(async move { dispatch(&state, request, target).await });
    task.await.unwrap_or_else(|error| Err(LayerError::of_task(error).into()))
}

/// Runs a request that a rewrite, a partition or a list has changed. Its new target needs its own right.
pub(crate) fn redispatch(
    state: &Arc<State>,
    request: Request,
    target: Target,
) -> Pin<Box<dyn Future<Output = Result<Reply>> + Send + '_>> {
    Box::pin(run(state, Box::new(request), target))
}

async fn dispatch(state: &Arc<State>, mut request: Box<Request>, mut target: Target) -> Result<Reply> {
    let allowed = refuse_anonymous(state, &request, &target);
    request.skip_if_refused(allowed).await?;
    loop {
        let allowed = check_access(&request, &target).await;
        request.skip_if_refused(allowed).await?;
        let reads = matches!(request.method, Method::GET | Method::HEAD);
        if let Target::EncodedDesign(plain) = target {
            if let Some(redirect) = reads.then(|| document::redirect_design(&request)).flatten() {
                return Ok(redirect);
            }
            target = *plain;
        }
        let Target::Database(name, InDatabase::DesignCall { design, kind: DesignCall::Rewrite, rest }) = &target else {
            return target.handle(state, request).await;
        };
        // A loop instead of a recursion: a request may be rewritten a hundred times.
        match Box::pin(rewrite::rewrite(state, *request, &name.text, design, rest)).await? {
            RewriteOutcome::Answer(reply) => return Ok((*reply).into()),
            RewriteOutcome::Request(next) => request = next,
        }
        target = state.parse_path(request.uri.path())?;
        // The shell checks only direct requests to `_session` for forms of other sites, which could sign the user in
        // under another name, so no rewrite may lead there.
        if matches!(target, Target::Session) && !request.method.is_safe() {
            return request.refuse(insecure()).await;
        }
        // A link on another site can reach this target.
        if request.is_foreign && target.changes(&request.method) {
            return Err(Rejection::foreign().into());
        }
        if request.client.is_none() && !matches!(request.method, Method::GET | Method::HEAD) {
            return redispatch(state, *request, target).await;
        }
    }
}

/// Refuses a request without the right that its path needs, before a handler parses it. Also refuses a rewrite to a
/// replication or to a target that needs a server administrator, and an update function that would begin a replication.
/// Handlers check the right a second time when they open a database.
async fn check_access(request: &Request, target: &Target) -> Result<()> {
    let name = target.database().unwrap_or_default();
    let (needed, is_replicator) = match target.may_be_replicator() {
        None => (target.needs(&request.method, false), false),
        Some(name) => {
            let is_replicator = request.context.asks_for_replications(name).await?;
            let needed = target.needs(&request.method, is_replicator);
            // A missing database counts as a replicator database. If that changes the needed right, a refusal would
            // tell an ordinary database from a missing one, so the right to read is checked first.
            if !request.context.principal().is_admin && needed != target.needs(&request.method, !is_replicator) {
                authorize(RequiredRight::Member, name, &request.context).await?;
            }
            (needed, is_replicator)
        }
    };
    authorize(needed, name, &request.context).await?;
    // A replication runs with the rights of the user who requests it.
    let is_for_replications = match target {
        Target::Replicate => true,
        Target::Database(name, _) => is_replicator || name.text == REPLICATOR,
        _ => is_replicator,
    };
    let begins_replication = is_for_replications && target.changes(&request.method);
    if request.rewrites > 0 && (needed == RequiredRight::ServerAdmin || begins_replication) {
        return Err(Failure::new(StatusCode::FORBIDDEN, "forbidden", BEYOND_REWRITES));
    }
    if begins_replication && target.effect() == Effect::Writes {
        return Err(Failure::new(StatusCode::FORBIDDEN, "forbidden", BEYOND_UPDATES));
    }
    Ok(())
}

/// Refuses a request without a right. `name`: the database, if the right is for one.
async fn authorize(needed: RequiredRight, name: &str, context: &Context) -> Result<()> {
    match needed {
        RequiredRight::Nothing => {}
        RequiredRight::User => {
            let principal = context.principal();
            if principal.name.is_none() && !principal.is_admin {
                return Err(Failure::unauthorized("You are not an authenticated user"));
            }
        }
        RequiredRight::Metrics => context.metrics().await?,
        RequiredRight::Databases => drop(context.databases().await?),
        RequiredRight::ServerAdmin => drop(context.server().await?),
        RequiredRight::Member => drop(context.database(name, Read).await?),
        RequiredRight::Whole => drop(context.database(name, ReadWhole).await?),
        RequiredRight::Admin => drop(context.database(name, Administer).await?),
        RequiredRight::Maintainer => drop(context.database(name, Maintain).await?),
        RequiredRight::UserViews => {
            drop(context.database(USERS, Read).await?);
            if let Err(AccessError::Refused(_)) = context.database(USERS, Administer).await {
                let reason = "Only administrators can view design docs in the users database.";
                return Err(Failure::new(StatusCode::FORBIDDEN, "forbidden", reason));
            }
        }
        RequiredRight::Hidden => {
            drop(context.database(name, Read).await?);
            if let Err(AccessError::Refused(_)) = context.database(name, Administer).await {
                return Err(Failure::not_found("missing"));
            }
        }
    }
    Ok(())
}

/// Refuses anonymous requests with `require_valid_user`. Signing in remains possible.
fn refuse_anonymous(state: &State, request: &Request, target: &Target) -> Result<()> {
    let principal = request.context.principal();
    if principal.name.is_some() || principal.is_admin {
        return Ok(());
    }
    let settings = state.service.configuration().now();
    let (all, but_up) = (settings.auth.require_valid_user, settings.auth.require_valid_user_except_for_up);
    let is_wanted = match target {
        Target::Session if request.method == Method::POST => false,
        // The console has a sign-in page and contains no data.
        Target::Utils => false,
        Target::Up => all && !but_up,
        _ => all || but_up,
    };
    if is_wanted { Err(Failure::unauthorized("Authentication required.")) } else { Ok(()) }
}
