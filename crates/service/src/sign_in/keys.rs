//! The keys that verify tokens: from the settings, and from files, which are read again after a change.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use flatbed_auth::jwt::{
    Algorithm, JWKS_BYTES_MAX, KEYS_MAX, Key, KeyMaterial, KeySet, VerifiedBy, VerifiedToken, parse_jwks, verify,
};
use flatbed_auth::{AuthError, AuthErrorKind};
use flatbed_clock::Clock;
use tokio::time::Instant;

use crate::configuration::{JwtSettings, Settings};

/// The interval of checks for a changed file.
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(3);

/// The most issuers; a token may be verified against each.
const ISSUERS_MAX: usize = 16;

/// The most keys of one id and one algorithm.
const SAME_MAX: usize = 4;

/// The modification time and length of a file, which change with it.
type FileStamp = Option<(SystemTime, u64)>;

struct Issuer {
    name: String,
    keys: KeySet,
    skew_s: u64,
    /// The keys of the file's last readable version.
    of_file: Vec<Key>,
    stamp: FileStamp,
}

pub(crate) struct KeySnapshot {
    generation: u64,
    settings: Option<Arc<Settings>>,
    checked_at: Instant,
    issuers: Arc<Vec<Issuer>>,
}

pub(crate) struct TokenKeys {
    clock: Clock,
    now: RwLock<Arc<KeySnapshot>>,
    /// Locked by the reader of files.
    reading: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for TokenKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenKeys").finish_non_exhaustive()
    }
}

impl TokenKeys {
    pub(crate) fn new(clock: &Clock) -> TokenKeys {
        let none = KeySnapshot { generation: 0, settings: None, checked_at: clock.now(), issuers: Arc::default() };
        TokenKeys { clock: clock.clone(), now: RwLock::new(Arc::new(none)), reading: tokio::sync::Mutex::default() }
    }

    fn last(&self) -> Arc<KeySnapshot> {
        Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the keys of these settings, with files as of a few seconds ago, and whether they have changed.
    pub(crate) async fn now(&self, settings: &Arc<Settings>) -> (Arc<KeySnapshot>, bool) {
        let last = self.last();
        if last.is_of(settings, &self.clock) {
            return (last, false);
        }
        if settings.auth.jwt.is_empty() && last.issuers.is_empty() {
            return (last, false);
        }
        let _turn = self.reading.lock().await;
        let last = self.last();
        if last.is_of(settings, &self.clock) {
            return (last, false);
        }
        let (of, before) = (Arc::clone(settings), Arc::clone(&last));
        let read = tokio::task::spawn_blocking(move || read(&of, &before)).await;
        let Ok((issuers, is_changed)) = read else { return (last, false) };
        let now = Arc::new(KeySnapshot {
            generation: last.generation + u64::from(is_changed),
            settings: Some(Arc::clone(settings)),
            checked_at: self.clock.now(),
            issuers,
        });
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&now);
        (now, is_changed)
    }
}

impl KeySnapshot {
    fn is_of(&self, settings: &Arc<Settings>, clock: &Clock) -> bool {
        let same = self.settings.as_ref().is_some_and(|of| Arc::ptr_eq(of, settings));
        same && (clock.since(self.checked_at) < FILE_CHECK_INTERVAL
            || settings.auth.jwt.values().all(|issuer| issuer.jwks_file.is_none()))
    }

    /// A number that changes with the keys.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// True if there are no keys: then tokens are ignored.
    pub(crate) fn is_empty(&self) -> bool {
        self.issuers.iter().all(|issuer| issuer.keys.is_empty())
    }

    /// True if the key that verified a token still exists with the same settings: see [`KeySet::has`]. The name of
    /// the issuer does not matter.
    pub(crate) fn has(&self, by: &VerifiedBy) -> bool {
        self.issuers.iter().any(|issuer| issuer.keys.has(by, issuer.skew_s))
    }

    /// Verifies a token with the keys of each issuer in turn.
    pub(crate) fn verify(&self, token: &str, now_s: u64) -> Result<VerifiedToken, AuthError> {
        let mut refused = AuthError::new(AuthErrorKind::BadRequest, "Unknown kid");
        for issuer in self.issuers.iter().filter(|issuer| !issuer.keys.is_empty()) {
            match verify(token, &issuer.keys, now_s, issuer.skew_s) {
                Ok(verified) => return Ok(verified),
                Err(why) if why.reason == "Unknown kid" => {}
                Err(why) => refused = why,
            }
        }
        Err(refused)
    }
}

/// Reads all keys; returns whether they have changed.
fn read(settings: &Settings, before: &KeySnapshot) -> (Arc<Vec<Issuer>>, bool) {
    let of_before: HashMap<&str, &Issuer> = before.issuers.iter().map(|issuer| (&*issuer.name, issuer)).collect();
    let mut is_changed = false;
    let mut issuers = Vec::new();
    for (name, of) in settings.auth.jwt.iter().take(ISSUERS_MAX) {
        let was = of_before.get(&**name).copied();
        let issuer = read_issuer(name, of, was);
        is_changed |= was.is_none_or(|was| was.skew_s != issuer.skew_s || was.keys != issuer.keys);
        issuers.push(issuer);
    }
    if settings.auth.jwt.len() > ISSUERS_MAX {
        tracing::error!("more than {ISSUERS_MAX} issuers of tokens: the others are ignored");
    }
    is_changed |= issuers.len() != before.issuers.len();
    (Arc::new(issuers), is_changed)
}

fn read_issuer(name: &str, settings: &JwtSettings, was: Option<&Issuer>) -> Issuer {
    let binding = Arc::new(settings.binding.clone());
    let (mut of_file, mut stamp) = was.map(|was| (was.of_file.clone(), was.stamp)).unwrap_or_default();
    match &settings.jwks_file {
        None => (of_file, stamp) = Default::default(),
        Some(path) => {
            // Keys contain their binding, so a changed binding needs new ones.
            let now = stamp_of(path);
            match read_file(path) {
                Ok(text) => match parse_jwks(&text, &binding) {
                    Ok(keys) => (of_file, stamp) = (keys, now),
                    Err(error) if stamp != now => {
                        tracing::error!(issuer = name, path = %path.display(), %error, "invalid JWK set: keeping the previous keys");
                        stamp = now;
                    }
                    Err(_) => {}
                },
                Err(error) if stamp != now || was.is_none() => {
                    tracing::error!(issuer = name, path = %path.display(), %error, "a JWK set cannot be read: keeping the previous keys");
                    stamp = now;
                }
                Err(_) => {}
            }
        }
    }
    let of_settings = settings.keys.iter().flat_map(|(id, text)| {
        let keys = keys_of(id, text, &binding);
        if keys.is_empty() {
            tracing::error!(issuer = name, id, "a key for tokens is invalid or too short: ignored");
        }
        keys
    });
    let is_taken = |key: &Key| settings.algorithms.is_empty() || settings.algorithms.contains(&key.algorithm());
    let mut same: HashMap<(Option<String>, Algorithm), usize> = HashMap::new();
    let all = of_settings.chain(of_file.iter().cloned()).filter(is_taken);
    let kept = all.filter(|key| {
        let count = same.entry((key.kid().map(str::to_owned), key.algorithm())).or_default();
        *count += 1;
        *count <= SAME_MAX
    });
    let keys: Vec<Key> = kept.take(KEYS_MAX).collect();
    Issuer {
        name: name.to_owned(),
        keys: KeySet::new(keys, 0).unwrap_or_default(),
        skew_s: settings.skew_s,
        of_file,
        stamp,
    }
}

fn stamp_of(path: &Path) -> FileStamp {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut text = Vec::new();
    // One byte more than the limit, so that a longer set is refused.
    std::fs::File::open(path)?.take(JWKS_BYTES_MAX as u64 + 1).read_to_end(&mut text)?;
    Ok(text)
}

/// Returns the keys of a setting, `KIND:KID`: one for each algorithm that it supports.
pub(crate) fn keys_of(id: &str, text: &str, binding: &Arc<flatbed_auth::jwt::Binding>) -> Vec<Key> {
    let (kind, kid) = id.split_once(':').unwrap_or(("", id));
    let material = if kind == "hmac" { KeyMaterial::secret(text) } else { KeyMaterial::pem(text) };
    let Ok(material) = material else { return Vec::new() };
    let fits = matches!(
        (kind, &material),
        ("hmac", KeyMaterial::Secret(_))
            | ("rsa", KeyMaterial::Rsa(..))
            | ("ec", KeyMaterial::P256(_) | KeyMaterial::P384(_) | KeyMaterial::Ed25519(_))
            | ("eddsa", KeyMaterial::Ed25519(_))
    );
    let algorithms = Algorithm::ALL.into_iter().filter(|_| fits);
    let key = |algorithm| Key::new(Some(kid.to_owned()), algorithm, material.clone(), Arc::clone(binding)).ok();
    algorithms.filter_map(key).collect()
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
    use flatbed_clock::ManualClock;

    use super::*;
    use crate::configuration::{Configuration, Source, Values};
    use crate::test_store::{TOKEN as OF_ANNA, with_key};

    /// RFC 7515, A.1: a token of 2011 with this key.
    const KEY: &str = "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow";
    const TOKEN: &str = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";

    fn settings(values: &[(&str, &str, &str)]) -> Arc<Settings> {
        let mut all = Values::default();
        for (section, key, text) in values {
            all.insert(section, key, text, Source::File).unwrap();
        }
        Configuration::new(all).now()
    }

    #[tokio::test]
    async fn keys_come_from_settings_and_from_files_that_change() {
        let manual = ManualClock::new();
        let keys = TokenKeys::new(&manual.clock());
        let none = settings(&[]);
        assert!(keys.now(&none).await.0.is_empty());
        let standard = STANDARD.encode(URL_SAFE_NO_PAD.decode(KEY).unwrap());
        let one = settings(&[("jwt_keys", "hmac:_default", &standard)]);
        let (now, is_changed) = keys.now(&one).await;
        assert!(is_changed && !now.is_empty());
        // The signature is valid, but the token has no subject.
        assert_eq!(now.verify(TOKEN, 1_300_819_379).unwrap_err().reason, "Token missing sub claim.");
        assert_eq!(now.verify(TOKEN, 1_300_819_381).unwrap_err().reason, "exp not in future");
        assert!(!keys.now(&one).await.1);
        // A new snapshot with equal keys is no change.
        let again = settings(&[("jwt_keys", "hmac:_default", &standard)]);
        assert_eq!((keys.now(&again).await.1, keys.now(&again).await.0.generation()), (false, now.generation()));
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("jwks.json");
        std::fs::write(&path, "nothing yet").unwrap();
        let file = settings(&[("jwt_auth", "jwks_file", path.to_str().unwrap())]);
        let (now, is_changed) = keys.now(&file).await;
        assert!(is_changed && now.is_empty());
        let set = format!(r#"{{"keys":[{{"kty":"oct","k":"{KEY}","alg":"HS256"}},{{"kty":"oct"}}]}}"#);
        std::fs::write(&path, set).unwrap();
        manual.advance(FILE_CHECK_INTERVAL);
        let (read, is_changed) = keys.now(&file).await;
        assert!(is_changed && read.generation() > now.generation());
        assert_eq!(read.verify(TOKEN, 1_300_819_379).unwrap_err().reason, "Token missing sub claim.");
        // An unreadable file leaves the earlier keys.
        std::fs::remove_file(&path).unwrap();
        manual.advance(FILE_CHECK_INTERVAL);
        let (kept, is_changed) = keys.now(&file).await;
        assert!(!is_changed && !kept.is_empty());
    }

    #[tokio::test]
    async fn a_token_rests_on_its_own_key_and_what_is_set_for_it() {
        const OWN: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
        const OTHER: &str = "b3RoZXJvdGhlcm90aGVyb3RoZXJvdGhlcm90aGVyb3RoZXI=";
        let keys = TokenKeys::new(&Clock::system());
        let by = keys.now(&with_key(&[]).now()).await.0.verify(OF_ANNA, 0).unwrap().by;
        for (is_there, further) in [
            (true, &[][..]),
            (true, &[("jwt_keys", "hmac:other", OTHER)]),
            (true, &[("jwt_keys:a", "hmac:k", OTHER), ("jwt_auth:a", "issuer", "a")]),
            (true, &[("jwt_auth", "algorithms", "HS256,ES256")]),
            (false, &[("jwt_keys", "hmac:k", OTHER)]),
            (false, &[("jwt_keys", "hmac:k", OTHER), ("jwt_keys:a", "hmac:k", OWN)]),
            (false, &[("jwt_auth", "algorithms", "ES256")]),
            (false, &[("jwt_auth", "audience", "a")]),
            (false, &[("jwt_auth", "issuer", "a")]),
            (false, &[("jwt_auth", "name_prefix", "a/")]),
            (false, &[("jwt_auth", "required_claims", "exp")]),
            (false, &[("jwt_auth", "roles_claim_name", "roles")]),
            (false, &[("jwt_auth", "roles_claim_path", "_couchdb.roles")]),
            (false, &[("jwt_auth", "skew", "1")]),
            (false, &[("jwt_auth", "trusts_system_roles", "true")]),
        ] {
            assert_eq!(keys.now(&with_key(further).now()).await.0.has(&by), is_there, "{further:?}");
            assert!(keys.now(&with_key(&[]).now()).await.0.has(&by));
        }
        assert!(!keys.now(&settings(&[])).await.0.has(&by));
    }

    /// The key of a file among other keys that come and go; then the key is removed.
    #[tokio::test]
    async fn a_token_rests_on_its_own_key_of_a_file() {
        let jwk = |kid: &str, k: &str| format!(r#"{{"kty":"oct","kid":"{kid}","k":"{k}","alg":"HS256"}}"#);
        let own = jwk("k", &URL_SAFE_NO_PAD.encode("0123456789abcdef0123456789abcdef"));
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("jwks.json");
        let values = [("jwt_auth", "jwks_file", path.to_str().unwrap()), ("jwt_auth", "required_claims", "")];
        let read = |of: &[&str]| {
            std::fs::write(&path, format!(r#"{{"keys":[{}]}}"#, of.join(","))).unwrap();
            settings(&values)
        };
        let keys = TokenKeys::new(&Clock::system());
        let by = keys.now(&read(&[&own])).await.0.verify(OF_ANNA, 0).unwrap().by;
        for (is_there, of) in [
            (true, &[&*jwk("other", KEY), &own, &jwk("k", KEY)][..]),
            (true, &[&own]),
            (false, &[&jwk("k", KEY)]),
            (false, &[]),
        ] {
            assert_eq!(keys.now(&read(of)).await.0.has(&by), is_there, "{of:?}");
        }
    }
}
