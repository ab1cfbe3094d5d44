//! The keys that the accounts sign with: read when they are needed, and again now and then.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use flatbed_auth::jwt::{Algorithm, Binding, KeySet, parse_jwks, signed_claims};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::metrics::Metrics;

/// The type of tokens that give access (RFC 9068).
const TYPE: &str = "at+jwt";

/// Who waits for keys waits no longer.
const FETCH_MAX: Duration = Duration::from_secs(10);

/// Reads a JWK set: its text, or why there is none.
pub type Fetch = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<Vec<u8>, String>> + Send>> + Send + Sync>;

/// Where keys are, and how often they are read.
#[derive(Clone)]
pub struct JwksOptions {
    /// Reads them.
    pub fetch: Fetch,
    /// Keys as old as this are read again.
    pub keep: Duration,
    /// They are read no more often than this, whatever tokens come.
    pub pause: Duration,
}

impl fmt::Debug for JwksOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwksOptions").field("keep", &self.keep).field("pause", &self.pause).finish_non_exhaustive()
    }
}

/// Why a token's claims are not to be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unbelieved {
    /// The token is no good.
    Token(String),
    /// There are no keys to tell by.
    NoKeys(String),
}

/// The keys.
#[derive(Debug)]
pub(super) struct Keys {
    options: JwksOptions,
    known: RwLock<Known>,
    /// Held by who reads them.
    reading: Mutex<Option<Instant>>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Clone, Default)]
struct Known {
    keys: Arc<KeySet>,
    read_at: Option<Instant>,
}

impl Keys {
    pub(super) fn new(options: JwksOptions, metrics: Arc<Metrics>) -> Keys {
        Keys { options, known: RwLock::default(), reading: Mutex::default(), metrics }
    }

    fn known(&self) -> Known {
        self.known.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The claims of a token that one of the keys has signed. Where none has, or the keys are old, they are read again.
    ///
    /// # Errors
    /// [`Unbelieved`].
    pub(super) async fn signed_claims(&self, token: &str) -> Result<Vec<u8>, Unbelieved> {
        let known = self.known();
        let verify = |keys: &KeySet| signed_claims(token, keys, TYPE).map_err(|refused| refused.reason.into_owned());
        let is_fresh = known.read_at.is_some_and(|read_at| read_at.elapsed() < self.options.keep);
        let verified = verify(&known.keys);
        // Only what names a key that is not there could be right with others: nobody makes this server ask with a token that
        // is wrong anyhow, and it asks now and then at most.
        let wants_others = verified.as_ref().is_err_and(|reason| reason == "Unknown kid");
        if is_fresh && !wants_others {
            return verified.map_err(Unbelieved::Token);
        }
        let verified = match self.read_again(known.read_at).await {
            Ok(keys) => verify(&keys),
            Err(reason) if known.read_at.is_none() => return Err(Unbelieved::NoKeys(reason)),
            // Those that are known stay right while others cannot be read.
            Err(_) => verified,
        };
        verified.map_err(Unbelieved::Token)
    }

    /// The keys as they are now; `seen` is when those were read that are not enough.
    async fn read_again(&self, seen: Option<Instant>) -> Result<Arc<KeySet>, String> {
        let mut tried = self.reading.lock().await;
        let known = self.known();
        if known.read_at != seen {
            return Ok(known.keys);
        }
        if tried.is_some_and(|tried| tried.elapsed() < self.options.pause) {
            return Err("the issuer's keys were read just now".to_owned());
        }
        *tried = Some(Instant::now());
        self.metrics.sync_jwks_reads.add(1);
        let read = match tokio::time::timeout(FETCH_MAX, (self.options.fetch)()).await {
            Ok(text) => text.and_then(|text| key_set(&text)),
            Err(_) => Err("nothing came in time".to_owned()),
        };
        match read {
            Ok(keys) => {
                let keys = Arc::new(keys);
                let read_at = Some(Instant::now());
                *self.known.write().unwrap_or_else(PoisonError::into_inner) = Known { keys: keys.clone(), read_at };
                Ok(keys)
            }
            Err(reason) => {
                self.metrics.sync_jwks_failures.add(1);
                tracing::error!(reason, "the keys of the accounts cannot be read");
                Err(format!("the issuer's keys cannot be read: {reason}"))
            }
        }
    }
}

/// Those of a JWK set that sign with RS256, as the accounts do: no other algorithm is taken.
fn key_set(text: &[u8]) -> Result<KeySet, String> {
    let keys = parse_jwks(text, &Arc::new(Binding::default())).map_err(|error| error.to_string())?;
    let keys: Vec<_> = keys.into_iter().filter(|key| key.algorithm() == Algorithm::Rs256).collect();
    if keys.is_empty() {
        return Err("there is no key for RS256 in it".to_owned());
    }
    KeySet::new(keys, 0).map_err(|error| error.to_string())
}
