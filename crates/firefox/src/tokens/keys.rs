//! The public keys of the accounts: read when needed, and again from time to time.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use flatbed_auth::jwt::{Algorithm, Binding, KeySet, parse_jwks, signed_claims};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::metrics::Metrics;

/// The type of access tokens (RFC 9068).
const TYPE: &str = "at+jwt";

/// The time limit for reading the keys.
const FETCH_MAX: Duration = Duration::from_secs(10);

/// Reads the text of a JWK set, or returns why that failed.
pub type Fetch = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<Vec<u8>, String>> + Send>> + Send + Sync>;

/// The source of the keys, and the times of reading.
#[derive(Clone)]
pub struct JwksOptions {
    /// The function that reads them.
    pub fetch: Fetch,
    /// The age after which keys are read again.
    pub keep: Duration,
    /// The shortest time between two reads, whatever tokens come.
    pub pause: Duration,
    /// The age after which keys are invalid if they cannot be read again, so that an issuer's withdrawal of a key takes
    /// effect even if this server cannot learn of it. At least `keep`.
    pub last: Duration,
}

impl fmt::Debug for JwksOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwksOptions")
            .field("keep", &self.keep)
            .field("pause", &self.pause)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

/// The reason why a token has no trusted claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ClaimsError {
    /// The token is invalid.
    Token(String),
    /// No keys are available.
    NoKeys(String),
}

/// The accounts' keys.
#[derive(Debug)]
pub(super) struct Keys {
    options: JwksOptions,
    known: RwLock<KnownKeys>,
    /// Held by the task that reads the keys.
    reading: Mutex<Option<Instant>>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Clone, Default)]
struct KnownKeys {
    keys: Arc<KeySet>,
    read_at: Option<Instant>,
}

impl Keys {
    pub(super) fn new(options: JwksOptions, metrics: Arc<Metrics>) -> Keys {
        Keys { options, known: RwLock::default(), reading: Mutex::default(), metrics }
    }

    fn known(&self) -> KnownKeys {
        self.known.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the claims of a token that one of the keys signed. Reads the keys again if none did, or if they are old.
    ///
    /// # Errors
    /// [`ClaimsError`].
    pub(super) async fn signed_claims(&self, token: &str) -> Result<Vec<u8>, ClaimsError> {
        let known = self.known();
        let verify = |keys: &KeySet| signed_claims(token, keys, TYPE).map_err(|refused| refused.reason.into_owned());
        let is_younger = |than: Duration| known.read_at.is_some_and(|read_at| read_at.elapsed() < than);
        let verified = verify(&known.keys);
        // Only a token that names an unknown key could be valid with other keys. A token that is invalid anyhow causes
        // no read, and reads are limited in frequency.
        let wants_others = verified.as_ref().is_err_and(|reason| reason == "Unknown kid");
        if is_younger(self.options.keep) && !wants_others {
            return verified.map_err(ClaimsError::Token);
        }
        let may_last = is_younger(self.options.last);
        // A token that the known keys can verify does not wait for a read.
        let read = match self.reading.try_lock() {
            Ok(turn) => self.read_again(turn, known.read_at).await,
            Err(_) if may_last && !wants_others => return verified.map_err(ClaimsError::Token),
            Err(_) => self.read_again(self.reading.lock().await, known.read_at).await,
        };
        let verified = match read {
            Ok(keys) => verify(&keys),
            // Known keys stay valid for a while when they cannot be read again.
            Err(_) if may_last => verified,
            Err(reason) => return Err(ClaimsError::NoKeys(reason)),
        };
        verified.map_err(ClaimsError::Token)
    }

    /// Reads the keys again, unless another task has. `seen`: when the insufficient keys were read.
    async fn read_again(
        &self,
        mut tried: MutexGuard<'_, Option<Instant>>,
        seen: Option<Instant>,
    ) -> Result<Arc<KeySet>, String> {
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
                *self.known.write().unwrap_or_else(PoisonError::into_inner) = KnownKeys { keys: keys.clone(), read_at };
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

/// Returns the keys of a JWK set that sign with RS256, as the accounts do. Other algorithms are refused.
fn key_set(text: &[u8]) -> Result<KeySet, String> {
    let keys =
        parse_jwks(text, &Arc::new(Binding::default())).map_err(|_| "it is no JWK set, or one of too many keys")?;
    let keys: Vec<_> = keys.into_iter().filter(|key| key.algorithm() == Algorithm::Rs256).collect();
    if keys.is_empty() {
        return Err("there is no key for RS256 in it".to_owned());
    }
    KeySet::new(keys, 0).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use ring::rand::SystemRandom;
    use ring::rsa::PublicKeyComponents;
    use ring::signature::{KeyPair, RSA_PKCS1_SHA256, RsaKeyPair};

    use super::*;

    const ACCOUNTS: &[u8] = include_bytes!("../../tests/data/accounts.pk8");
    const STRANGER: &[u8] = include_bytes!("../../tests/data/stranger.pk8");

    /// Returns a set of one key.
    fn jwks(kid: &str, key: &[u8]) -> Vec<u8> {
        let key = RsaKeyPair::from_pkcs8(key).unwrap();
        let PublicKeyComponents { n, e } = PublicKeyComponents::<Vec<u8>>::from(key.public_key());
        let (n, e) = (URL_SAFE_NO_PAD.encode(n), URL_SAFE_NO_PAD.encode(e));
        format!(r#"{{"keys":[{{"kty":"RSA","use":"sig","alg":"RS256","kid":"{kid}","n":"{n}","e":"{e}"}}]}}"#)
            .into_bytes()
    }

    fn token(kid: &str, key: &[u8]) -> String {
        let header = format!(r#"{{"alg":"RS256","typ":"at+jwt","kid":"{kid}"}}"#);
        let text = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode("{}"));
        let key = RsaKeyPair::from_pkcs8(key).unwrap();
        let mut signature = vec![0; key.public().modulus_len()];
        key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text.as_bytes(), &mut signature).unwrap();
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    /// The published keys, the delay of their reads, and the number of reads.
    #[derive(Default)]
    struct Issuer {
        text: RwLock<Option<Vec<u8>>>,
        delay: RwLock<Duration>,
        reads: AtomicUsize,
    }

    impl Issuer {
        fn publishing(text: Vec<u8>) -> Arc<Issuer> {
            Arc::new(Issuer { text: RwLock::new(Some(text)), ..Issuer::default() })
        }

        fn set(&self, text: Option<Vec<u8>>, delay: Duration) {
            *self.text.write().unwrap() = text;
            *self.delay.write().unwrap() = delay;
        }

        fn reads(&self) -> usize {
            self.reads.load(Ordering::Relaxed)
        }

        fn keys(self: &Arc<Self>) -> Arc<Keys> {
            let issuer = self.clone();
            let fetch: Fetch = Arc::new(move || {
                issuer.reads.fetch_add(1, Ordering::Relaxed);
                let (text, delay) = (issuer.text.read().unwrap().clone(), *issuer.delay.read().unwrap());
                Box::pin(async move {
                    flatbed_testkit::pass(delay).await;
                    text.ok_or_else(|| "unreachable".to_owned())
                })
            });
            let options = JwksOptions { fetch, keep: seconds(3_600), pause: seconds(30), last: seconds(86_400) };
            Arc::new(Keys::new(options, Arc::new(Metrics::default())))
        }
    }

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    async fn is_right(keys: &Keys, token: &str) -> Result<bool, ()> {
        match keys.signed_claims(token).await {
            Ok(_) => Ok(true),
            Err(ClaimsError::Token(_)) => Ok(false),
            Err(ClaimsError::NoKeys(_)) => Err(()),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_issuer_that_cannot_be_reached() {
        let issuer = Issuer::publishing(jwks("a", ACCOUNTS));
        let keys = issuer.keys();
        let (token, other) = (token("a", ACCOUNTS), token("b", STRANGER));
        assert_eq!((is_right(&keys, &token).await, issuer.reads()), (Ok(true), 1));
        issuer.set(None, Duration::ZERO);
        // While the keys are young they are not read again.
        tokio::time::advance(seconds(3_599)).await;
        assert_eq!((is_right(&keys, &token).await, issuer.reads()), (Ok(true), 1));
        // Then reads fail, at most one in each pause. A token of no known key is invalid.
        tokio::time::advance(seconds(1)).await;
        for _ in 0..5 {
            assert_eq!(is_right(&keys, &token).await, Ok(true));
            assert_eq!(is_right(&keys, &other).await, Ok(false));
        }
        assert_eq!(issuer.reads(), 2);
        // The known keys do not stay valid for ever.
        tokio::time::advance(seconds(86_400 - 3_600)).await;
        assert_eq!(is_right(&keys, &token).await, Err(()));
        assert_eq!(is_right(&keys, &other).await, Err(()));
        assert_eq!(issuer.reads(), 3);
        // A successful read takes effect at once.
        issuer.set(Some(jwks("b", STRANGER)), Duration::ZERO);
        tokio::time::advance(seconds(30)).await;
        assert_eq!(is_right(&keys, &other).await, Ok(true));
        assert_eq!(is_right(&keys, &token).await, Ok(false));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_who_is_known_waits_for_an_issuer_that_hangs() {
        let issuer = Issuer::publishing(jwks("a", ACCOUNTS));
        let keys = issuer.keys();
        let (known, unknown) = (token("a", ACCOUNTS), token("b", STRANGER));
        assert_eq!(is_right(&keys, &known).await, Ok(true));
        issuer.set(Some(jwks("b", STRANGER)), seconds(1_000));
        tokio::time::advance(seconds(3_600)).await;
        // A request waits for the read, up to the time limit.
        let begun = Instant::now();
        let first = tokio::spawn({
            let (keys, known) = (keys.clone(), known.clone());
            async move { is_right(&keys, &known).await }
        });
        tokio::task::yield_now().await;
        for _ in 0..100 {
            assert_eq!(is_right(&keys, &known).await, Ok(true));
        }
        let now = Instant::now();
        assert_eq!(now, begun);
        // A token with an unknown key waits for the end of the read, and starts no other.
        assert_eq!(is_right(&keys, &unknown).await, Ok(false));
        let now = Instant::now();
        assert_eq!((now, first.await.unwrap(), issuer.reads()), (begun + FETCH_MAX, Ok(true), 2));
        // A request that is dropped releases the lock.
        tokio::time::advance(seconds(30)).await;
        let gone = tokio::time::timeout(seconds(1), keys.signed_claims(&unknown)).await;
        assert!(gone.is_err());
        issuer.set(Some(jwks("b", STRANGER)), Duration::ZERO);
        tokio::time::advance(seconds(30)).await;
        assert_eq!(is_right(&keys, &unknown).await, Ok(true));
    }

    #[test]
    fn what_is_no_set() {
        let set = |keys: &str| key_set(format!(r#"{{"keys":[{keys}]}}"#).as_bytes());
        assert!(set("").is_err() && key_set(b"[]").is_err() && key_set(b"").is_err());
        // Keys of other algorithms are refused.
        assert!(set(r#"{"kty":"oct","k":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA","kid":"a"}"#).is_err());
        let good = String::from_utf8(jwks("a", ACCOUNTS)).unwrap();
        let good = good.strip_prefix(r#"{"keys":["#).unwrap().strip_suffix("]}").unwrap();
        assert!(set(good).is_ok());
        assert!(set(&good.replace("RS256", "RS512")).is_err());
        let padding = " ".repeat(flatbed_auth::jwt::JWKS_BYTES_MAX);
        assert!(set(&format!("{good}{padding}")).is_err());
        assert!(set(&vec![good; flatbed_auth::jwt::KEYS_MAX + 1].join(",")).is_err());
    }
}
