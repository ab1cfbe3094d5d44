//! Tokens and signatures as a client makes them.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flatbed_firefox::Secret;
use flatbed_firefox::hawk::{HawkAuthority, Header, SignedRequest, payload_hash};
use ring::hmac;

/// Returns the seconds since 1970.
pub fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().try_into().unwrap()
}

/// A token and its key.
#[derive(Debug, Clone)]
pub struct Credentials {
    pub id: String,
    pub key: String,
}

impl Credentials {
    /// Creates them for a user, with an expiry in seconds since 1970.
    pub fn new(secret: &str, uid: u64, expires: i64) -> Credentials {
        let secret = Secret::new(secret);
        let text = format!(r#"{{"uid":{uid},"node":"http://localhost","expires":{expires},"salt":"abcdef"}}"#);
        let id = secret.id_of(text.as_bytes());
        let key = secret.key_of(&id, "abcdef");
        Credentials { id, key }
    }
}

#[derive(Debug, Clone)]
pub struct Signing<'s> {
    pub method: &'s str,
    pub target: &'s str,
    pub place: HawkAuthority,
    /// The time of signing, in seconds since 1970.
    pub at: i64,
    pub ext: &'s str,
    /// Type and body, if signed.
    pub body: Option<(&'s str, &'s [u8])>,
}

#[derive(Debug, Clone)]
pub struct Parts {
    pub id: String,
    pub ts: String,
    pub nonce: String,
    pub hash: String,
    pub ext: String,
    pub mac: String,
}

impl Signing<'_> {
    pub fn sign(&self, credentials: &Credentials) -> Parts {
        let hash = self.body.map_or_else(String::new, |(kind, body)| STANDARD.encode(payload_hash(kind, body)));
        let mut parts = Parts {
            id: credentials.id.clone(),
            ts: self.at.to_string(),
            nonce: "n0nce".to_owned(),
            hash,
            ext: self.ext.to_owned(),
            mac: String::new(),
        };
        let signed = SignedRequest { method: self.method, target: self.target, place: &self.place };
        let key = hmac::Key::new(hmac::HMAC_SHA256, credentials.key.as_bytes());
        let text = parts.header().normalized(&signed);
        parts.mac = STANDARD.encode(hmac::sign(&key, text.as_bytes()));
        parts
    }
}

impl Parts {
    fn header(&self) -> Header<'_> {
        Header { id: &self.id, ts: &self.ts, nonce: &self.nonce, hash: &self.hash, ext: &self.ext, mac: &self.mac }
    }

    pub fn text(&self) -> String {
        let Parts { id, ts, nonce, hash, ext, mac } = self;
        let parts = [("id", id), ("ts", ts), ("nonce", nonce), ("hash", hash), ("ext", ext), ("mac", mac)];
        let parts = parts.into_iter().filter(|(_, value)| !value.is_empty());
        format!("Hawk {}", parts.map(|(name, value)| format!("{name}=\"{value}\"")).collect::<Vec<_>>().join(", "))
    }
}
