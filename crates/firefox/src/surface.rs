//! From a request to its handler, and from the handler's result to the answer.
//!
//! Requests are checked in this order: the path and its methods, the signature, the body and its type, parameters and
//! conditions, the stored data.

use std::sync::Arc;

use async_trait::async_trait;
use flatbed_http::{Answer, Client, Origin, Rejection, Reply, Request, Surface, spawn};
use flatbed_syncstorage::Uid;
use hyper::{Method, StatusCode, header};

use crate::error::{Failure, Result};
use crate::path::{Info, StoragePart, Target};
use crate::route::Route;
use crate::signed::SignedBody;
use crate::state::State;
use crate::{cors, info, records, reply, signed};

#[async_trait]
impl Surface for State {
    type Target = Target;
    type Label = Route;

    const PREFLIGHT: Route = Route::Preflight;

    fn target(&self, path: &str) -> (Target, Route) {
        let target = match self.inner(path) {
            "" => Target::Front,
            path => Target::parse(path),
        };
        let route = target.route();
        (target, route)
    }

    /// Returns false: no client is exempt from the limits of requests.
    fn is_open(&self) -> bool {
        false
    }

    /// Returns false: no request is authorised by a cookie.
    fn changes(_target: &Target, _method: &Method) -> bool {
        false
    }

    async fn answer(self: &Arc<Self>, mut request: Request, target: Target, origin: Origin<'_>) -> Answer {
        let page = request.headers.get(header::ORIGIN).cloned();
        if let Some(reply) = cors::preflight(&request) {
            request.skip_body().await;
            return Answer { reply, user: None };
        }
        let is_heartbeat = target.is_heartbeat();
        let mut user = None;
        let mut reply = match self.dispatch(request, target, &origin, &mut user).await {
            Ok(reply) => reply,
            Err(failure) => {
                if !failure.status.is_server_error() {
                    tracing::debug!(%failure, "a request to sync is refused");
                } else if let Some(passed_over) = self.failures.may_write() {
                    tracing::error!(%failure, passed_over, "a request to sync failed");
                }
                reply::failed(&failure)
            }
        };
        if !is_heartbeat && !reply.headers.contains_key(reply::TIMESTAMP) {
            reply = reply::with_times(reply, None, Some(self.store.now()));
        }
        cors::allow(page.as_ref(), &mut reply.headers);
        Answer { reply, user: user.map(|Uid(uid)| uid.to_string()) }
    }

    fn refused(&self, refused: &Rejection) -> Reply {
        reply::with_times(reply::failed(&Failure::from(refused)), None, Some(self.store.now()))
    }
}

impl State {
    async fn dispatch(
        self: &Arc<Self>,
        mut request: Request,
        target: Target,
        origin: &Origin<'_>,
        user: &mut Option<Uid>,
    ) -> Result<Reply> {
        let Some(methods) = target.methods() else {
            request.skip_body().await;
            // As in Mozilla's server, the token server has no JSON body for this.
            let is_token = target == Target::NoToken;
            return if is_token { Ok(reply::whole(StatusCode::NOT_FOUND, None)) } else { Err(Failure::not_found()) };
        };
        if !methods.contains(&request.method) {
            request.skip_body().await;
            return Ok(reply::method_not_allowed(methods));
        }
        match target {
            Target::Front => Ok(info::front(self, &request)),
            Target::Heartbeat => Ok(info::heartbeat(self).await),
            Target::LoadBalancerHeartbeat => Ok(info::load_balancer_heartbeat()),
            Target::Version => Ok(info::version(self)),
            Target::Of(_, StoragePart::Info(Info::Configuration)) => Ok(info::configuration(self)),
            Target::Token { application, version } => match &self.tokens {
                Some(tokens) => Ok(tokens.answer(self, &request, &application, &version).await),
                None => Ok(reply::whole(StatusCode::NOT_FOUND, None)),
            },
            Target::Of(uid, of) => {
                let signed = signed::check(self, &request, uid, &of);
                let signed = request.skip_if_refused(signed).await?;
                *user = Some(uid);
                origin.know();
                origin.admit(&uid.to_string())?;
                self.answer_user(request, uid, of, signed).await
            }
            Target::NoToken | Target::Nothing => Err(Failure::not_found()),
        }
    }

    /// A request that changes data continues when its client hangs up, so that a commit in flight is not dropped.
    async fn answer_user(
        self: &Arc<Self>,
        mut request: Request,
        uid: Uid,
        of: StoragePart,
        signed: SignedBody,
    ) -> Result<Reply> {
        if request.method == Method::GET {
            signed.check(self, &request, uid, b"")?;
            return match of {
                StoragePart::Info(what) => info::info(self, &request, uid, what).await,
                StoragePart::Collection(collection) => records::list(self, &request, uid, &collection).await,
                StoragePart::Object(collection, id) => records::get(self, &request, uid, &collection, &id).await,
                StoragePart::All => Err(Failure::not_found()),
            };
        }
        let state = self.clone();
        let (client, _there) = Client::new();
        request.client = Some(client);
        let task = spawn(async move {
            let method = request.method.clone();
            if method == Method::DELETE {
                signed.check(&state, &request, uid, b"")?;
                request.skip_body().await;
            }
            match of {
                StoragePart::All => records::delete_all(&state, &request, uid).await,
                StoragePart::Collection(collection) if method == Method::POST => {
                    records::post(&state, request, uid, &collection, &signed).await
                }
                StoragePart::Collection(collection) => records::delete_many(&state, &request, uid, &collection).await,
                StoragePart::Object(collection, id) if method == Method::PUT => {
                    records::put(&state, request, uid, &collection, id, &signed).await
                }
                StoragePart::Object(collection, id) => records::delete(&state, &request, uid, &collection, &id).await,
                StoragePart::Info(_) => Err(Failure::not_found()),
            }
        });
        task.await.unwrap_or_else(|error| Err(Failure::internal(format!("a handler failed: {error}"))))
    }
}
