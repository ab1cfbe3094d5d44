//! Sign-in: by a session cookie, a proxy's assertion, a token, or a name and a password.
//!
//! The methods are tried in this order, as in CouchDB; the first that applies decides. Only a password that is not
//! remembered costs more than a memory lookup: passwords are checked one at a time, in a queue.

mod audit;
mod checks;
pub(crate) mod keys;
mod line;
pub(crate) mod users;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flatbed_auth::lockout::{Lockout, Verdict, locked_out};
use flatbed_auth::session::{Attributes, Secret, Session, cookie_in, issue};
use flatbed_auth::users::{Account, id_of};
use flatbed_auth::{
    AuthError, AuthMethod, CredentialCache, Credentials, Digest, Network, PasswordHash, Principal, SALT_BYTES, digest,
    jwt, proxy,
};
use flatbed_clock::Clock;
use flatbed_layer::json::{self, Limits, Value};
use flatbed_layer::{DatabaseSecurity, Edit, Gate, GetOptions, Layer, Refusal, RevId, SigningSecret, USERS, User};
use flatbed_metrics::Family;

use crate::accounts::{AccountLookup, Accounts, Freshness};
use crate::configuration::{AuthSettings, Configuration};
use crate::standing::{Claims, IdentifiedRequest, RightsBasis, SignInError, Standing};
use audit::{Audit, RefusalReason, SignInMethod};
pub use checks::CheckOptions;
use checks::{CheckOutcome, Checks};

/// The most credentials that are remembered as right.
const KNOWN_MAX: usize = 10_000;

/// The most tokens that are remembered as valid, and the longest time, in seconds.
const TOKENS_MAX: usize = 10_000;
const TOKENS_LIFETIME_S: u64 = 300;

/// The most password checks for one request: a second one if the account has changed since it was read.
const CHECKS_OF_ONE_MAX: usize = 2;

/// The longest name that is looked up, in bytes: no document id is longer.
const NAME_BYTES_MAX: usize = 2_048;

/// A session that has begun.
#[derive(Debug, Clone)]
pub struct NewSession {
    /// The signed-in principal.
    pub principal: Principal,
    /// The value of the answer's `set-cookie` header.
    pub set_cookie: String,
}

#[derive(Debug)]
pub(crate) struct SignIn {
    pub(crate) accounts: Arc<Accounts>,
    layer: OpaqueLayer,
    configuration: Configuration,
    known: Mutex<CredentialCache>,
    lockout: Arc<Mutex<LockoutState>>,
    checks: Checks,
    tokens: Mutex<jwt::TokenCache>,
    audit: Arc<Audit>,
}

/// A layer with a `Debug` implementation.
struct OpaqueLayer(Layer);

impl std::fmt::Debug for OpaqueLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Layer")
    }
}

/// The lock-out state, with the settings that it counts by.
#[derive(Debug)]
struct LockoutState {
    by: flatbed_auth::lockout::LockoutOptions,
    lockout: Lockout,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SignIn {
    pub(crate) fn new(layer: Layer, configuration: Configuration, checks: CheckOptions) -> Self {
        let accounts = Accounts::new(layer.clone(), configuration.clone());
        let by = configuration.now().auth.lockout;
        let (checks, audit) = (Checks::new(checks, layer.clock()), Arc::new(Audit::new(layer.clock())));
        SignIn {
            accounts,
            layer: OpaqueLayer(layer),
            configuration,
            known: Mutex::new(CredentialCache::new(KNOWN_MAX)),
            lockout: Arc::new(Mutex::new(LockoutState { by, lockout: Lockout::new(by) })),
            checks,
            tokens: Mutex::new(jwt::TokenCache::new(TOKENS_MAX, TOKENS_LIFETIME_S)),
            audit,
        }
    }

    pub(crate) fn clock(&self) -> &Clock {
        self.layer.0.clock()
    }

    /// The current time, in seconds since 1970.
    fn now_s(&self) -> u64 {
        self.clock().unix_seconds()
    }

    pub(crate) fn families(&self) -> Vec<Family> {
        let mut families = self.audit.counts.families();
        let waiting = self.checks.waiting() as f64;
        families.push(Family::gauge("flatbed_password_checks_waiting", "Passwords that wait to be checked.", waiting));
        let kept = self.accounts.cached_count() as f64;
        families.push(Family::gauge("flatbed_accounts_cached", "Names whose accounts are held in memory.", kept));
        families
    }

    /// Identifies the principal of a request. Without administrators every client is one.
    pub(crate) async fn identify(&self, claims: &Claims<'_>) -> Result<IdentifiedRequest, SignInError> {
        if let Some(standing) = self.accounts.open() {
            return Ok(IdentifiedRequest { standing, set_cookie: None });
        }
        if let Some(value) = claims.cookie.and_then(cookie_in)
            && let Some(identified) = self.by_cookie(value, claims).await?
        {
            return Ok(identified);
        }
        let settings = self.configuration.now();
        if let Some(standing) = self.by_proxy(claims, &settings.auth).await? {
            return Ok(IdentifiedRequest { standing, set_cookie: None });
        }
        let Some(authorization) = claims.authorization else {
            return Ok(IdentifiedRequest { standing: Standing::anonymous(), set_cookie: None });
        };
        let standing = match self.by_token(authorization, claims).await? {
            Some(standing) => Some(standing),
            None => match Credentials::of_header(authorization)? {
                Some(credentials) => {
                    let found = self.by_password(&credentials, claims, SignInMethod::Basic).await?;
                    standing_of(&found, AuthMethod::Password)
                }
                None => None,
            },
        };
        Ok(IdentifiedRequest { standing: standing.unwrap_or_else(Standing::anonymous), set_cookie: None })
    }

    pub(crate) async fn begin_session(
        &self,
        credentials: &Credentials,
        claims: &Claims<'_>,
    ) -> Result<NewSession, SignInError> {
        let found = self.by_password(credentials, claims, SignInMethod::Session).await?;
        let Some(account) = &found.account else { return Err(AuthError::wrong_password().into()) };
        if !account.may_have_sessions() {
            let reason = "This user's password has no salt, without which there are no sessions: set it again.";
            return Err(AuthError::new(flatbed_auth::AuthErrorKind::Forbidden, reason).into());
        }
        let secrets = self.accounts.secrets(Freshness::Second).await?;
        let principal = account.principal(AuthMethod::Cookie);
        let set_cookie = self.cookie(account.name(), account.salt(), &secrets, claims.is_secure);
        Ok(NewSession { principal, set_cookie })
    }

    pub(crate) fn end_session(&self, is_secure: bool) -> String {
        self.attributes(is_secure).set_cookie("", self.now_s())
    }

    /// The enabled sign-in methods, in the order in which they are tried.
    pub(crate) fn handlers(&self) -> Vec<&'static str> {
        let auth = &self.configuration.now().auth;
        let has_proxy = !auth.proxy.peers.is_empty();
        let has_tokens = auth.jwt.values().any(|issuer| !issuer.keys.is_empty() || issuer.jwks_file.is_some());
        let all = [("cookie", true), ("proxy", has_proxy), ("jwt", has_tokens), ("default", true)];
        all.into_iter().filter(|(_, is_there)| *is_there).map(|(name, _)| name).collect()
    }

    /// Hashes a new password, in the queue of password checks. It counts as an attempt of the address, as a wrong
    /// password does, unless an administrator asks: an address that registers many users queues behind the others.
    pub(crate) async fn hash(
        &self,
        password: &str,
        salt: &str,
        peer: Option<IpAddr>,
        is_admin: bool,
    ) -> Result<PasswordHash, SignInError> {
        let (told, made) = tokio::sync::oneshot::channel();
        // A random key: two hashes of one password have different salts and must not share a result.
        let mut random = [0; SALT_BYTES];
        getrandom::fill(&mut random).map_err(|_| flatbed_layer::Error::NoRandomness)?;
        let key = digest_of("hash", &[&hex(&random)]);
        let (password, salt, audit) = (password.to_owned(), salt.to_owned(), Arc::clone(&self.audit));
        let work = move || {
            audit.counts.passwords_hashed.add(1);
            let _ = told.send(PasswordHash::salted(&password, &salt, flatbed_auth::ITERATIONS));
            if is_admin { CheckOutcome::Right } else { CheckOutcome::Wrong }
        };
        self.checks.ask(network(peer), key, work).await;
        made.await.map_err(|_| SignInError::TooMany)
    }

    fn attributes(&self, is_secure: bool) -> Attributes {
        let auth = &self.configuration.now().auth;
        Attributes {
            max_age: auth.allow_persistent_cookies.then_some(auth.timeout_s),
            is_secure,
            domain: auth.cookie_domain.clone(),
            same_site: auth.same_site,
        }
    }

    fn cookie(&self, name: &str, salt: &str, secrets: &[SigningSecret], is_secure: bool) -> String {
        let now = self.now_s();
        let Some(secret) = secrets.first() else { return self.end_session(is_secure) };
        let value = issue(name, salt, &Secret::new(secret.bytes.clone()), now);
        self.attributes(is_secure).set_cookie(&value, now)
    }

    /// Signs in by a session cookie; `None`: the session is invalid or has ended.
    async fn by_cookie(&self, value: &str, claims: &Claims<'_>) -> Result<Option<IdentifiedRequest>, SignInError> {
        let Some(session) = Session::parse(value)? else { return Ok(None) };
        if session.name().len() > NAME_BYTES_MAX || session.name().is_empty() {
            return Ok(None);
        }
        let came = self.clock().now();
        let timeout_s = self.configuration.now().auth.timeout_s;
        let mut fresh = Freshness::Second;
        for _ in 0..2 {
            let found = self.accounts.find(session.name(), fresh).await?;
            let secrets = self.accounts.secrets(fresh).await?;
            let (now, counting) = (self.now_s(), counting(&secrets, timeout_s, self.now_s()));
            let account = found.account.as_ref().filter(|account| account.may_have_sessions());
            if let Some(account) = account
                && let Some(verified) = session.verify(account.salt(), &counting, now, timeout_s)
            {
                let set_cookie = verified.renew.then(|| {
                    self.audit.signed_in(SignInMethod::Cookie, account.name(), claims.peer);
                    self.cookie(account.name(), account.salt(), &secrets, claims.is_secure)
                });
                let standing = found.standing(account, AuthMethod::Cookie);
                return Ok(Some(IdentifiedRequest { standing, set_cookie }));
            }
            // The session may be newer than the cached account or secrets. A session that has timed out needs no
            // fresh lookup.
            if !session.is_in_time(now, timeout_s) {
                return Ok(None);
            }
            fresh = Freshness::Since(came);
        }
        Ok(None)
    }

    async fn by_proxy(&self, claims: &Claims<'_>, auth: &AuthSettings) -> Result<Option<Standing>, SignInError> {
        let Some(claim) = &claims.proxy else { return Ok(None) };
        let is_named = claims.connection.is_some_and(|peer| auth.proxy.peers.contains(Some(peer)));
        if !is_named {
            return Ok(None);
        }
        let secrets = self.accounts.secrets(Freshness::Second).await?;
        let counting = counting(&secrets, auth.timeout_s, self.now_s());
        let found = proxy::authenticate(claim, is_named, &counting, auth.proxy.trusts_system_roles);
        Ok(found.map(|principal| {
            self.audit.signed_in(SignInMethod::Proxy, principal.name.as_deref().unwrap_or_default(), claims.peer);
            Standing::of_proxy(principal, &auth.proxy)
        }))
    }

    /// Signs in by a token, if there are keys.
    async fn by_token(&self, authorization: &str, claims: &Claims<'_>) -> Result<Option<Standing>, SignInError> {
        let Some(token) = jwt::token_in(authorization) else { return Ok(None) };
        let keys = self.accounts.keys().await;
        if keys.is_empty() {
            return Ok(None);
        }
        let (digest, generation, now) = (digest(token), keys.generation(), self.now_s());
        let known = lock(&self.tokens).get(&digest, generation, now).cloned();
        let verified = match known {
            Some(verified) => verified,
            None => {
                let verified = keys.verify(token, now).inspect_err(|_| {
                    self.audit.refused(RefusalReason::Token, "", claims.peer);
                })?;
                self.audit.signed_in(
                    SignInMethod::Jwt,
                    verified.principal.name.as_deref().unwrap_or_default(),
                    claims.peer,
                );
                lock(&self.tokens).insert(digest, verified.clone(), generation, now);
                verified
            }
        };
        let rests_on = RightsBasis::Token { ends: verified.ends, by: verified.by };
        Ok(Some(Standing::new(verified.principal, rests_on)))
    }

    async fn by_password(
        &self,
        credentials: &Credentials,
        claims: &Claims<'_>,
        way: SignInMethod,
    ) -> Result<AccountLookup, SignInError> {
        let Credentials { name, password } = credentials;
        let (came, digest) = (self.clock().now(), digest_of("password", &[name, password]));
        let iterations_max = self.configuration.now().auth.max_iterations;
        let mut found = if name.len() > NAME_BYTES_MAX {
            AccountLookup { account: None, refused: None, rev: None, born: None, is_admin: false, setting: None }
        } else {
            self.accounts.find(name, Freshness::Second).await?.within_iterations(iterations_max)
        };
        for _ in 0..CHECKS_OF_ONE_MAX {
            let hash = found.account.as_ref().map_or_else(PasswordHash::of_nothing, Account::hash);
            if found.account.is_some() && lock(&self.known).is_right(&digest, name, &hash) {
                if way == SignInMethod::Session {
                    self.audit.signed_in(way, name, claims.peer);
                }
                return Ok(found);
            }
            match self.check(credentials, digest, &hash, network(claims.peer)).await {
                CheckOutcome::Right if found.account.is_some() => {
                    self.audit.signed_in(way, name, claims.peer);
                    self.rehash(&found, &hash, password);
                    lock(&self.known).insert(digest, name.clone(), hash);
                    return Ok(found);
                }
                CheckOutcome::Right | CheckOutcome::Wrong => {}
                CheckOutcome::LockedOut => {
                    self.audit.refused(RefusalReason::LockedOut, name, claims.peer);
                    return Err(locked_out().into());
                }
                CheckOutcome::NoRoom => {
                    self.audit.refused(RefusalReason::TooMany, name, claims.peer);
                    return Err(SignInError::TooMany);
                }
            }
            if name.len() > NAME_BYTES_MAX {
                break;
            }
            // Another process may have changed the account less than a second ago.
            let now = self.accounts.find(name, Freshness::Since(came)).await?.within_iterations(iterations_max);
            let is_same = now.account.as_ref().map(Account::hash) == found.account.as_ref().map(Account::hash);
            found = now;
            if is_same {
                break;
            }
        }
        if let Some(refused) = found.refused {
            self.audit.refused(RefusalReason::Document, name, claims.peer);
            return Err(refused.into());
        }
        self.audit.refused(RefusalReason::Wrong, name, claims.peer);
        Err(AuthError::wrong_password().into())
    }

    /// Checks a password when its turn comes, unless the address is locked out by then.
    async fn check(
        &self,
        credentials: &Credentials,
        digest: Digest,
        hash: &PasswordHash,
        network: Network,
    ) -> CheckOutcome {
        let options = self.configuration.now().auth.lockout;
        let Credentials { name, password } = credentials.clone();
        let (hash, checks, lockout) = (hash.clone(), self.checks.clone(), Arc::clone(&self.lockout));
        let audit = Arc::clone(&self.audit);
        {
            let mut counted = lock(&lockout);
            if counted.by != options {
                *counted = LockoutState { by: options, lockout: Lockout::new(options) };
            }
            if counted.lockout.judge(&name, hash.salt(), network, checks.now_ms()) == Verdict::LockedOut {
                return CheckOutcome::LockedOut;
            }
        }
        let key = [digest.as_slice(), hash.salt().as_bytes()].concat();
        let key = digest_of("check", &[&hex(&key), &format!("{network:?}")]);
        let work = move || {
            // Other attempts may have failed while this one waited.
            let verdict = lock(&lockout).lockout.judge(&name, hash.salt(), network, checks.now_ms());
            match verdict {
                Verdict::LockedOut => return CheckOutcome::LockedOut,
                Verdict::Suspicious => {
                    tracing::warn!(target: audit::TARGET, ?network, "too many wrong passwords for a name from this address");
                }
                Verdict::Allowed => {}
            }
            audit.counts.password_checks.add(1);
            if hash.verify_evenly(&password) {
                return CheckOutcome::Right;
            }
            lock(&lockout).lockout.fail(&name, hash.salt(), network, checks.now_ms());
            CheckOutcome::Wrong
        };
        self.checks.ask(network, key, work).await
    }

    /// Replaces a weaker hash after its password was right, when the queue is empty.
    fn rehash(&self, found: &AccountLookup, hash: &PasswordHash, password: &str) {
        let Some(rev) = found.rev.clone().filter(|_| !found.is_admin) else { return };
        let Some(account) = &found.account else { return };
        if !hash.needs_rehash() || !self.configuration.now().auth.rehash {
            return;
        }
        let (hash, password, name) = (hash.clone(), password.to_owned(), account.name().to_owned());
        let (layer, runtime) = (self.layer.0.clone(), tokio::runtime::Handle::current());
        self.checks.run_later(move || {
            let new = hash.rehash(&password);
            runtime.spawn(async move {
                if let Err(error) = write_rehashed(&layer, &name, rev, &hash, &new).await {
                    tracing::debug!(%error, "a password was not rehashed");
                }
            });
        });
    }
}

/// Allows the write of a new hash, whatever `_security` says: the client has proved the password.
#[derive(Debug)]
struct RehashGate;

impl Gate for RehashGate {
    fn judge(&self, _: &DatabaseSecurity) -> Result<(), Refusal> {
        Ok(())
    }
}

/// Replaces a weaker hash in the revision that was read. Does nothing if that is no longer the winner.
async fn write_rehashed(
    layer: &Layer,
    name: &str,
    rev: RevId,
    old: &PasswordHash,
    new: &PasswordHash,
) -> flatbed_layer::Result<()> {
    let id = id_of(name);
    let document = layer.reader(USERS).get(&id, &GetOptions::default()).await?;
    let text = [b"{".as_slice(), &document.body, b"}"].concat();
    let body = json::parse(&text, &Limits::default());
    let Ok(body @ Value::Object(_)) = body else { return Ok(()) };
    let is_old = PasswordHash::of_document(&body).ok().flatten().as_ref() == Some(old);
    // The edit would drop attachments, which user documents do not have.
    if document.rev != rev || !is_old || !document.attachments.is_empty() {
        return Ok(());
    }
    let Value::Object(members) = body else { return Ok(()) };
    let body = Value::Object(new.put_into(members));
    let edit = Edit {
        expiry: None,
        id: id.into(),
        parent: Some(rev),
        history: None,
        deleted: false,
        attachments: Vec::new(),
        body,
    };
    let user = User { name: None, roles: vec![flatbed_auth::ADMIN_ROLE.to_owned()], ..User::default() };
    layer.database(USERS, user.through(Arc::new(RehashGate))).update(&edit).await.map(drop)
}

fn standing_of(found: &AccountLookup, signed_in: AuthMethod) -> Option<Standing> {
    Some(found.standing(found.account.as_ref()?, signed_in))
}

/// Returns the secrets that are still valid: the one that signs, and earlier ones until the last session that they
/// signed has ended.
fn counting(secrets: &[SigningSecret], timeout_s: u64, now_s: u64) -> Vec<Secret> {
    let now_ms = now_s.saturating_mul(1_000);
    let counts = |secret: &&SigningSecret| {
        let until = secret.retired_at_ms.map(|at| at.saturating_add(timeout_s.saturating_mul(1_000)));
        until.is_none_or(|until| now_ms < until)
    };
    secrets.iter().filter(counts).map(|secret| Secret::new(secret.bytes.clone())).collect()
}

/// Returns a client's network, for turns and lock-out. All clients without an address share one.
pub(crate) fn network(peer: Option<IpAddr>) -> Network {
    Network::from(peer.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)))
}

/// Hashes a list of texts without ambiguity.
fn digest_of(what: &str, texts: &[&str]) -> Digest {
    let mut all = what.to_owned();
    for text in texts {
        all.push_str(&format!("\0{}\0{text}", text.len()));
    }
    digest(&all)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
