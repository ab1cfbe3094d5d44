//! Credentials of users. Cookies and tokens are built here from their documented formats.

use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};

use super::model::{HMAC_KEYS, user_name};

/// The prefix of a 65-byte P-256 point in a SubjectPublicKeyInfo.
const EC_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proof {
    Nothing,
    Basic { user: usize, password: String },
    Session { user: usize, salt: String, cookie: String },
    Token { user: usize, roles: Vec<usize>, key: usize, number: usize, token: String },
    Proxy { user: usize, roles: Vec<usize>, token: String },
}

impl Proof {
    pub fn basic(user: usize, password: &str) -> Proof {
        Proof::Basic { user, password: password.to_owned() }
    }

    /// Returns a session of an account with this salt.
    pub fn session(secret: &[u8], user: usize, salt: &str) -> Proof {
        let mut text = format!("{}:{:X}", user_name(user), now_s()).into_bytes();
        let key = hmac::Key::new(hmac::HMAC_SHA256, &[secret, salt.as_bytes()].concat());
        let mac = hmac::sign(&key, &text);
        text.push(b':');
        text.extend_from_slice(mac.as_ref());
        Proof::Session { user, salt: salt.to_owned(), cookie: BASE64_URL_SAFE_NO_PAD.encode(text) }
    }

    pub fn token(keys: &Keys, key: usize, number: usize, user: usize, roles: Vec<usize>) -> Proof {
        let claims = json!({ "sub": user_name(user), "exp": now_s() + 36_000, "_couchdb.roles": names_of(&roles) });
        let token = keys.0[key][number].sign(key, &claims);
        Proof::Token { user, roles, key, number, token }
    }

    pub fn proxy(secret: &[u8], user: usize, roles: Vec<usize>) -> Proof {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let mac = hmac::sign(&key, user_name(user).as_bytes());
        let token = mac.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        Proof::Proxy { user, roles, token }
    }

    pub fn headers(&self) -> Vec<(&'static str, String)> {
        match self {
            Proof::Nothing => Vec::new(),
            Proof::Basic { user, password } => vec![("authorization", basic(&user_name(*user), password))],
            Proof::Session { cookie, .. } => vec![("cookie", format!("AuthSession={cookie}"))],
            Proof::Token { token, .. } => vec![("authorization", format!("Bearer {token}"))],
            Proof::Proxy { user, roles, token } => vec![
                ("x-auth-couchdb-username", user_name(*user)),
                ("x-auth-couchdb-roles", names_of(roles).join(",")),
                ("x-auth-couchdb-token", token.clone()),
            ],
        }
    }
}

pub fn basic(name: &str, password: &str) -> String {
    format!("Basic {}", BASE64_STANDARD.encode(format!("{name}:{password}")))
}

fn names_of(roles: &[usize]) -> Vec<String> {
    roles.iter().map(|role| format!("r{role}")).collect()
}

fn now_s() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or(Duration::ZERO).as_secs()
}

/// All versions of each token key.
pub struct Keys(Vec<Vec<Key>>);

enum Key {
    Secret(Vec<u8>),
    Ec(Box<EcdsaKeyPair>),
}

impl Keys {
    /// Makes one version of each key.
    pub fn new(count: usize) -> Keys {
        Keys((0..count).map(|key| vec![Key::new(key, 0)]).collect())
    }

    /// Adds a version of a key, and returns its number.
    pub fn replace(&mut self, key: usize) -> usize {
        let number = self.0[key].len();
        self.0[key].push(Key::new(key, number));
        number
    }

    /// Returns the name of a key in the settings, and its value.
    pub fn setting(&self, key: usize, number: usize) -> (String, String) {
        match &self.0[key][number] {
            Key::Secret(secret) => (format!("hmac:k{key}"), BASE64_STANDARD.encode(secret)),
            Key::Ec(pair) => {
                let der = [&EC_PREFIX, pair.public_key().as_ref()].concat();
                let pem = format!(
                    "-----BEGIN PUBLIC KEY-----\\n{}\\n-----END PUBLIC KEY-----\\n",
                    BASE64_STANDARD.encode(der)
                );
                (format!("ec:k{key}"), pem)
            }
        }
    }
}

impl Key {
    fn new(key: usize, number: usize) -> Key {
        if key < HMAC_KEYS {
            return Key::Secret(format!("a secret of thirty-two bytes at least, {key} {number}").into_bytes());
        }
        let random = SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).expect("randomness");
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random);
        Key::Ec(Box::new(pair.expect("a key")))
    }

    fn sign(&self, key: usize, claims: &Value) -> String {
        let algorithm = if matches!(self, Key::Secret(_)) { "HS256" } else { "ES256" };
        let header = json!({ "alg": algorithm, "typ": "JWT", "kid": format!("k{key}") });
        let text = [header, claims.clone()].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part.to_string())).join(".");
        let signature = match self {
            Key::Secret(secret) => {
                hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), text.as_bytes()).as_ref().to_vec()
            }
            Key::Ec(pair) => pair.sign(&SystemRandom::new(), text.as_bytes()).expect("signed").as_ref().to_vec(),
        };
        format!("{text}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
    }
}
