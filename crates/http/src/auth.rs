//! Administrators: Basic authentication against PBKDF2 hashes in CouchDB's own form.

mod checks;

use std::collections::{HashMap, VecDeque};
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use base64::Engine;
use hyper::StatusCode;
use sha2::{Digest, Sha256};

use crate::error::{Failure, Result};
use checks::{Checks, TooMany};

/// Iterations for new hashes.
const ITERATIONS: u32 = 50_000;

/// Hashes with more are refused: each attempt would cost too much.
const ITERATIONS_MAX: u32 = 10_000_000;

/// Credentials known to be right.
const CACHE_MAX: usize = 1_000;

/// Who makes a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The user's name; none for an anonymous one.
    pub name: Option<String>,
    /// Whether all is allowed.
    pub is_admin: bool,
}

/// A password's hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PasswordHash {
    sha256: bool,
    key: Vec<u8>,
    salt: Vec<u8>,
    iterations: u32,
}

/// The text is no hash in a form known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a password hash: -pbkdf2:sha256-HASH,SALT,ITERATIONS or -pbkdf2-HASH,SALT,ITERATIONS")]
pub struct InvalidHash;

impl PasswordHash {
    /// Hashes a password with a random salt.
    ///
    /// # Errors
    /// The system has no randomness to give.
    pub fn new(password: &str) -> std::io::Result<Self> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| std::io::Error::other(error.to_string()))?;
        let salt = hex(&random).into_bytes();
        let key = derive(true, password, &salt, ITERATIONS, 32);
        Ok(PasswordHash { sha256: true, key, salt, iterations: ITERATIONS })
    }

    /// Reads a hash from a configuration: CouchDB's `-pbkdf2:sha256-...` or `-pbkdf2-...` (SHA-1).
    ///
    /// # Errors
    /// [`InvalidHash`]: then it is a plain password.
    pub fn parse(text: &str) -> std::result::Result<Self, InvalidHash> {
        let (sha256, rest) = match (text.strip_prefix("-pbkdf2:sha256-"), text.strip_prefix("-pbkdf2-")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => return Err(InvalidHash),
        };
        let mut parts = rest.split(',');
        let (Some(key), Some(salt), Some(iterations), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(InvalidHash);
        };
        let key = unhex(key).filter(|key| key.len() >= 16).ok_or(InvalidHash)?;
        let iterations = iterations.parse().map_err(|_| InvalidHash)?;
        if iterations == 0 || iterations > ITERATIONS_MAX {
            return Err(InvalidHash);
        }
        Ok(PasswordHash { sha256, key, salt: salt.as_bytes().to_vec(), iterations })
    }

    /// Whether this is the password; takes as long as it takes to derive the key.
    pub fn verify(&self, password: &str) -> bool {
        let key = derive(self.sha256, password, &self.salt, self.iterations, self.key.len());
        // Every byte is looked at, whatever the first ones say.
        key.iter().zip(&self.key).fold(0, |different, (a, b)| different | (a ^ b)) == 0
    }
}

impl std::fmt::Display for PasswordHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.sha256 { "-pbkdf2:sha256-" } else { "-pbkdf2-" };
        write!(f, "{kind}{},{},{}", hex(&self.key), String::from_utf8_lossy(&self.salt), self.iterations)
    }
}

fn derive(sha256: bool, password: &str, salt: &[u8], iterations: u32, bytes: usize) -> Vec<u8> {
    let mut key = vec![0; bytes];
    // HMAC takes a key of any length, so this cannot fail.
    let _ = if sha256 {
        pbkdf2::pbkdf2::<hmac::Hmac<Sha256>>(password.as_bytes(), salt, iterations, &mut key)
    } else {
        pbkdf2::pbkdf2::<hmac::Hmac<sha1::Sha1>>(password.as_bytes(), salt, iterations, &mut key)
    };
    key
}

/// Those who may do everything.
#[derive(Debug)]
pub(crate) struct Admins {
    hashes: HashMap<String, PasswordHash>,
    known: Mutex<Known>,
    checks: Checks,
}

/// Digests of credentials that were right, oldest first.
#[derive(Debug, Default)]
struct Known {
    names: HashMap<[u8; 32], String>,
    order: VecDeque<[u8; 32]>,
}

impl Admins {
    pub(crate) fn new(hashes: HashMap<String, PasswordHash>) -> Self {
        Admins { hashes, known: Mutex::default(), checks: Checks::new() }
    }

    /// Who stands behind an `authorization` header. Without administrators everyone is one.
    pub(crate) async fn authenticate(&self, authorization: Option<&str>) -> Result<Principal> {
        // Another scheme than Basic is no claim to be anybody here, as in CouchDB.
        let is_basic =
            |credentials: &&str| credentials.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("basic "));
        let Some(credentials) = authorization.filter(is_basic) else {
            return Ok(Principal { name: None, is_admin: self.hashes.is_empty() });
        };
        if self.hashes.is_empty() {
            return Ok(Principal { name: None, is_admin: true });
        }
        let digest: [u8; 32] = Sha256::digest(credentials.as_bytes()).into();
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).names.get(&digest).cloned();
        if let Some(name) = known {
            return Ok(Principal { name: Some(name), is_admin: true });
        }
        let wrong = || Failure::unauthorized("Name or password is incorrect.");
        let (name, password) = basic(credentials).ok_or_else(wrong)?;
        let (hash, exists) = (self.hash_for(&name), self.hashes.contains_key(&name));
        let right = self.checks.ask(digest, move || hash.verify(&password) && exists).await.map_err(|TooMany| {
            let reason = "Too many passwords are being checked";
            Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason)
        })?;
        if !right {
            return Err(wrong());
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.names.insert(digest, name.clone()).is_none() {
            known.order.push_back(digest);
        }
        if known.order.len() > CACHE_MAX
            && let Some(oldest) = known.order.pop_front()
        {
            known.names.remove(&oldest);
        }
        Ok(Principal { name: Some(name), is_admin: true })
    }

    /// What a name's password is checked against. For a name that there is not it is another's, always the same one, so
    /// that the check takes as long as of a name that there is.
    fn hash_for(&self, name: &str) -> PasswordHash {
        if let Some(hash) = self.hashes.get(name) {
            return hash.clone();
        }
        let mut all: Vec<_> = self.hashes.iter().collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        let digest = Sha256::digest(name.as_bytes());
        let place = digest.iter().fold(0, |sum: usize, byte| (sum << 8 ^ usize::from(*byte)) % all.len().max(1));
        let found = all.get(place).map(|(_, hash)| (*hash).clone());
        found.unwrap_or(PasswordHash { sha256: true, key: vec![0; 32], salt: Vec::new(), iterations: ITERATIONS })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }
}

fn basic(credentials: &str) -> Option<(String, String)> {
    let (scheme, encoded) = credentials.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = base64::engine::general_purpose::STANDARD.decode(encoded.trim()).ok()?;
    let text = String::from_utf8(decoded).ok()?;
    // RFC 7617 has none in either. HMAC takes a key with NULs behind it for the key without.
    if text.contains(|character: char| character.is_ascii_control()) {
        return None;
    }
    let (name, password) = text.split_once(':')?;
    Some((name.to_owned(), password.to_owned()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        // Writing to a String does not fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_come_back_from_their_text() {
        let hash = PasswordHash::new("secret").unwrap();
        let read = PasswordHash::parse(&hash.to_string()).unwrap();
        assert_eq!(read, hash);
        assert!(read.verify("secret") && !read.verify("Secret") && !read.verify(""));
    }

    #[test]
    fn couchdbs_sha1_form_and_rfc_6070() {
        let hash = PasswordHash::parse("-pbkdf2-4b007901b765489abead49d926f721d065a429c1,salt,4096").unwrap();
        assert!(hash.verify("password") && !hash.verify("passwore"));
        for text in
            ["", "secret", "-pbkdf2-xx,salt,1", "-pbkdf2-4b,salt,1", "-pbkdf2-00112233445566778899aabbccddeeff,s,0"]
        {
            assert_eq!(PasswordHash::parse(text), Err(InvalidHash), "{text}");
        }
    }

    /// A hash that takes a while to check, and its password.
    fn slow() -> Admins {
        let hash = PasswordHash { iterations: 40_000, ..PasswordHash::new("password").unwrap() };
        let key = derive(true, "password", &hash.salt, hash.iterations, 32);
        Admins::new([("admin".to_owned(), PasswordHash { key, ..hash })].into())
    }

    fn encode(text: &str) -> String {
        format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(text))
    }

    /// Threads of this process that have a name.
    fn threads(name: &str) -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|found| found.trim() == name).count()
    }

    #[test]
    fn clients_that_hang_up_start_no_further_checks() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().thread_name("checks").build().unwrap();
        runtime.block_on(async {
            let admins = slow();
            for attempt in 0..60 {
                let wrong = encode(&format!("admin:wrong{attempt}"));
                let asked = admins.authenticate(Some(&wrong));
                // It hangs up.
                let _ = tokio::time::timeout(std::time::Duration::from_millis(2), asked).await;
            }
            assert!(threads("checks") <= 2, "{} threads check passwords", threads("checks"));
            // They are not waited for either.
            assert!(admins.authenticate(Some(&encode("admin:password"))).await.is_ok());
        });
    }

    #[tokio::test]
    async fn few_wait_and_equal_ones_share_a_check() {
        let admins = slow();
        let (right, other) = (encode("admin:password"), encode("nobody:password"));
        let wrong: Vec<String> = (0..40).map(|attempt| encode(&format!("admin:wrong{attempt}"))).collect();
        let same = (0..100).map(|at| admins.authenticate(Some(if at % 2 == 0 { &right } else { &other })));
        let different = wrong.iter().map(|wrong| admins.authenticate(Some(wrong)));
        let (same, different) =
            futures_util::future::join(futures_util::future::join_all(same), futures_util::future::join_all(different))
                .await;
        for (at, answer) in same.into_iter().enumerate() {
            assert_eq!(answer.map_err(|failure| failure.status.as_u16()).err(), [None, Some(401)][at % 2], "{at}");
        }
        let statuses: Vec<u16> = different.into_iter().map(|answer| answer.unwrap_err().status.as_u16()).collect();
        assert_eq!(statuses.iter().filter(|status| **status == 401).count(), 14, "{statuses:?}");
        assert_eq!(statuses.iter().filter(|status| **status == 503).count(), 26, "{statuses:?}");
    }

    #[test]
    fn unknown_names_are_checked_against_a_hash_that_there_is() {
        let sha1 = PasswordHash::parse("-pbkdf2-4b007901b765489abead49d926f721d065a429c1,salt,4096").unwrap();
        let admins = Admins::new([("a".to_owned(), sha1.clone())].into());
        assert_eq!(admins.hash_for("b"), sha1);
        let sha256 = PasswordHash::new("x").unwrap();
        let admins = Admins::new([("a".to_owned(), sha1.clone()), ("b".to_owned(), sha256.clone())].into());
        assert_eq!(admins.hash_for("a"), sha1);
        let found: Vec<_> = (0..50).map(|n| admins.hash_for(&format!("name{n}"))).collect();
        assert!(found.contains(&sha1) && found.contains(&sha256));
        assert_eq!(found, (0..50).map(|n| admins.hash_for(&format!("name{n}"))).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn basic_authentication() {
        let admins = Admins::new([("admin".to_owned(), PasswordHash::new("pass:word").unwrap())].into());
        for _ in 0..2 {
            let found = admins.authenticate(Some(&encode("admin:pass:word"))).await.unwrap();
            assert_eq!(found, Principal { name: Some("admin".into()), is_admin: true });
        }
        for wrong in [encode("admin:pass"), encode("other:pass:word"), encode("x"), "Basic !".into()] {
            assert_eq!(admins.authenticate(Some(&wrong)).await.unwrap_err().status, 401);
        }
        for control in ["\0", "\n", "\x1f", "\x7f"] {
            for wrong in [format!("admin:pass:word{control}"), format!("admin{control}:pass:word")] {
                assert_eq!(admins.authenticate(Some(&encode(&wrong))).await.unwrap_err().status, 401, "{wrong:?}");
            }
        }
        for other in ["Bearer x", "Basic: x", "Basic", ""] {
            assert!(!admins.authenticate(Some(other)).await.unwrap().is_admin, "{other}");
        }
        assert!(!admins.authenticate(None).await.unwrap().is_admin);
        assert!(Admins::new(HashMap::new()).authenticate(None).await.unwrap().is_admin);
    }
}
