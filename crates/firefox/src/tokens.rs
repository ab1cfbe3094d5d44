//! The token server: a device that has signed in at Mozilla's accounts gets a token for a storage here.
//!
//! The request is `GET /1.0/sync/1.5` with a bearer token that the accounts signed. The account's keys, as stated by
//! the token and the header `X-KeyID`, decide which user the account has (`flatbed_syncstorage::accounts`).

mod claims;
mod failure;
mod keys;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use flatbed_auth::jwt::token_in;
use flatbed_flatten::json::Object;
use flatbed_http::{Reply, Request};
use flatbed_syncstorage::accounts::{Accounts, Admission, Claim, Refusal};
use hyper::header::{self, HeaderName, HeaderValue};

use crate::key_id::{KeyId, fxa_kid};
use crate::metrics::{LogRateLimit, Metrics};
use crate::place::url_of;
use crate::query;
use crate::reply;
use crate::secret::{NewToken, hex};
use crate::state::State;

use claims::Claims;
use failure::TokenFailure;
use keys::{ClaimsError, Keys};
pub use keys::{Fetch, JwksOptions};

const SALT_BYTES: usize = 3;

/// The options of the token server.
#[derive(Debug)]
pub struct TokenOptions {
    /// The source of the accounts' keys.
    pub jwks: JwksOptions,
    /// The required `iss`.
    pub issuer: String,
    /// The accounts that may have a user.
    pub admission: Admission,
    /// The validity of a token.
    pub duration_seconds: u64,
}

#[derive(Debug)]
pub(crate) struct TokenServer {
    keys: Keys,
    issuer: String,
    admission: Admission,
    duration_seconds: u64,
    accounts: Accounts,
    metrics: Arc<Metrics>,
    sparing: LogRateLimit,
}

impl TokenServer {
    pub(crate) fn new(options: TokenOptions, accounts: Accounts, metrics: Arc<Metrics>) -> TokenServer {
        TokenServer {
            keys: Keys::new(options.jwks, metrics.clone()),
            issuer: options.issuer,
            admission: options.admission,
            duration_seconds: options.duration_seconds,
            accounts,
            metrics,
            sparing: LogRateLimit::default(),
        }
    }

    pub(crate) async fn answer(&self, state: &State, request: &Request, application: &str, version: &str) -> Reply {
        match self.token(state, request, application, version).await {
            Ok(reply) => {
                self.metrics.sync_tokens.add(1);
                reply
            }
            Err(failure) => {
                self.metrics.sync_tokens_refused.add(1);
                if let Some(passed_over) = self.sparing.may_write() {
                    let peer = request.peer.map(tracing::field::display);
                    tracing::warn!(peer, status = %failure.status, reason = failure.reason, passed_over, "no token is given");
                }
                failure.reply()
            }
        }
    }

    async fn token(
        &self,
        state: &State,
        request: &Request,
        application: &str,
        version: &str,
    ) -> Result<Reply, TokenFailure> {
        let claims = self.claims(request).await?;
        let key_id = key_id(request)?;
        match (application, version) {
            ("sync", "1.5") => {}
            ("sync", _) => return Err(TokenFailure::unsupported(version, "Unsupported application version")),
            _ => return Err(TokenFailure::unsupported("application", "Unsupported application")),
        }
        let node = url_of(request, state.public_url(), state.mount(&request.uri))
            .ok_or_else(|| TokenFailure::bad_request("nothing says what this server is called"))?;
        let claim = Claim {
            account: claims.account,
            generation: claims.generation.filter(|generation| *generation != 0),
            keys_changed_at: Some(key_id.keys_changed_at).filter(|time| *time != 0),
            client_state: key_id.client_state,
        };
        let signed_in = match self.accounts.sign_in(&claim, &self.admission).await {
            Ok(Ok(signed_in)) => signed_in,
            Ok(Err(refusal)) => return Err(self.refuse(&claim, refusal)),
            Err(error) => return Err(TokenFailure::of_storage(&error)),
        };
        let asked_for = query::duration(request.uri.query()).filter(|asked_for| *asked_for <= self.duration_seconds);
        let duration = asked_for.unwrap_or(self.duration_seconds);
        let mut random = [0; SALT_BYTES];
        getrandom::fill(&mut random).map_err(|_| TokenFailure::internal("the system has no randomness"))?;
        let now = now();
        let (hashed_fxa_uid, hashed_device_id) = state.secret.hashed_ids(&claim.account);
        let (id, key) = state.secret.issue(&NewToken {
            node: &node,
            fxa_kid: &fxa_kid(signed_in.keys_changed_at, signed_in.generation, &claim.client_state),
            fxa_uid: &claim.account,
            hashed_fxa_uid: &hashed_fxa_uid,
            hashed_device_id: &hashed_device_id,
            expires: now + duration,
            uid: signed_in.uid.0,
            salt: &hex(&random),
        });
        let text = Object::text(|text| {
            text.string("id", &id)
                .string("key", &key)
                .number("uid", signed_in.uid.0)
                .string("api_endpoint", &format!("{node}/1.5/{}", signed_in.uid))
                .number("duration", duration)
                .string("hashed_fxa_uid", &hashed_fxa_uid)
                .string("hashalg", "sha256")
                .string("node_type", NODE_TYPE);
        });
        let mut reply = reply::json(text);
        reply.header(HeaderName::from_static("x-timestamp"), &now.to_string());
        reply.headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        Ok(reply)
    }

    /// Returns the claims of the bearer token, after checking its signature.
    async fn claims(&self, request: &Request) -> Result<Claims, TokenFailure> {
        let Some(authorization) = request.headers.get(header::AUTHORIZATION) else {
            return Err(TokenFailure::unauthorized("the request has no Authorization header"));
        };
        let text = authorization.to_str().ok().filter(|text| text.contains(' '));
        let text = text.ok_or_else(|| TokenFailure::unauthorized("the Authorization header has no token"))?;
        let token = token_in(text).ok_or_else(TokenFailure::scheme)?;
        let signed = self.keys.signed_claims(token).await.map_err(|unbelieved| match unbelieved {
            ClaimsError::Token(reason) => TokenFailure::credentials(reason),
            ClaimsError::NoKeys(reason) => TokenFailure::unavailable(reason),
        })?;
        Claims::read(&signed, &self.issuer, now()).map_err(TokenFailure::credentials)
    }

    /// Returns the answer to a refusal. The log names the account, so that an operator can admit it.
    fn refuse(&self, claim: &Claim, refusal: Refusal) -> TokenFailure {
        if refusal == Refusal::Closed {
            self.metrics.sync_accounts_refused.add(1);
            if let Some(passed_over) = self.sparing.may_write() {
                let account = claim.account.as_str();
                tracing::warn!(
                    account,
                    passed_over,
                    "an account is refused: to let it in, add it to accounts in [syncstorage]"
                );
            }
        }
        TokenFailure::refused(refusal)
    }
}

/// The storage type that Mozilla's server reports.
const NODE_TYPE: &str = "foundationdb";

/// Returns the id of the device's keys.
fn key_id(request: &Request) -> Result<KeyId, TokenFailure> {
    let Some(value) = request.headers.get("x-keyid") else { return Err(TokenFailure::no_key_id()) };
    let key_id = value.to_str().ok().and_then(KeyId::parse);
    let key_id = key_id.ok_or_else(|| TokenFailure::credentials("X-KeyID is not of its form"))?;
    if let Some(state) = request.headers.get("x-client-state") {
        let state = state.to_str().ok().filter(|state| {
            state.len() <= 2 * Claim::STATE_BYTES_MAX && state.bytes().all(|byte| byte.is_ascii_hexdigit())
        });
        let state = state.ok_or_else(TokenFailure::malformed_client_state)?;
        if !state.eq_ignore_ascii_case(&key_id.client_state_hex()) {
            return Err(TokenFailure::other_client_state());
        }
    }
    Ok(key_id)
}

/// Returns the seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
