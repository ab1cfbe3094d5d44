//! Administrators: Basic authentication against PBKDF2 hashes in CouchDB's own form.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use base64::Engine;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::error::{Failure, Result};

/// Iterations for new hashes.
const ITERATIONS: u32 = 50_000;

/// Hashes with more are refused: each attempt would cost too much.
const ITERATIONS_MAX: u32 = 10_000_000;

/// Credentials known to be right.
const CACHE_MAX: usize = 1_000;

/// Checks of passwords that run at once.
const CHECKS_AT_ONCE: usize = 2;

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
    checks: Semaphore,
}

/// Digests of credentials that were right, oldest first.
#[derive(Debug, Default)]
struct Known {
    names: HashMap<[u8; 32], String>,
    order: VecDeque<[u8; 32]>,
}

impl Admins {
    pub(crate) fn new(hashes: HashMap<String, PasswordHash>) -> Self {
        Admins { hashes, known: Mutex::default(), checks: Semaphore::new(CHECKS_AT_ONCE) }
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
        let hash = self.hashes.get(&name).cloned();
        // Few at once: a flood of wrong passwords must not take all cores.
        let _permit = self.checks.acquire().await.map_err(|_| wrong())?;
        let right = tokio::task::spawn_blocking(move || match hash {
            Some(hash) => hash.verify(&password),
            // As long as for a name that exists.
            None => {
                derive(true, &password, b"0", ITERATIONS, 32);
                false
            }
        });
        if !right.await.unwrap_or(false) {
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

    #[tokio::test]
    async fn basic_authentication() {
        let admins = Admins::new([("admin".to_owned(), PasswordHash::new("pass:word").unwrap())].into());
        let encode = |text: &str| format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(text));
        for _ in 0..2 {
            let found = admins.authenticate(Some(&encode("admin:pass:word"))).await.unwrap();
            assert_eq!(found, Principal { name: Some("admin".into()), is_admin: true });
        }
        for wrong in [encode("admin:pass"), encode("other:pass:word"), encode("x"), "Basic !".into()] {
            assert_eq!(admins.authenticate(Some(&wrong)).await.unwrap_err().status, 401);
        }
        for other in ["Bearer x", "Basic: x", "Basic", ""] {
            assert!(!admins.authenticate(Some(other)).await.unwrap().is_admin, "{other}");
        }
        assert!(!admins.authenticate(None).await.unwrap().is_admin);
        assert!(Admins::new(HashMap::new()).authenticate(None).await.unwrap().is_admin);
    }
}
