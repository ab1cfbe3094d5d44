//! The master secret, and the tokens that it signs.
//!
//! A token names the storage that it opens, and its expiry. It is self-contained: no part of it is stored. Its id,
//! which each request carries, is the text with its signature. The key that signs requests is derived from the id, so a
//! server needs only the secret to check a request.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE;
use flatbed_flatten::json::{Limits, Object, Value, parse_unique};
use ring::hmac;

const SIGNING_INFO: &[u8] = b"services.mozilla.com/tokenlib/v1/signing";
const DERIVE_INFO: &[u8] = b"services.mozilla.com/tokenlib/v1/derive/";
const HASHING_INFO: &[u8] = b"flatbed/syncstorage/hashed-ids";

/// The bytes of a SHA-256 hash.
const HASH_BYTES: usize = 32;

/// The longest token id, in bytes. This program's have some 600.
pub const TOKEN_ID_BYTES_MAX: usize = 4_096;

/// Derives a key: HKDF (RFC 5869) with SHA-256, with one hash as output.
fn derive(secret: &[u8], salt: &[u8], info: &[&[u8]]) -> [u8; HASH_BYTES] {
    let sign = |key: &[u8], parts: &[&[u8]]| {
        let mut mac = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key));
        parts.iter().for_each(|part| mac.update(part));
        mac.sign()
    };
    let pseudorandom = sign(salt, &[secret]);
    let mut out = [0; HASH_BYTES];
    let derived = sign(pseudorandom.as_ref(), &[&info.concat(), &[1]]);
    out.copy_from_slice(derived.as_ref());
    out
}

/// The secret that signs tokens. The storage and the token server share it.
pub struct Secret {
    secret: Vec<u8>,
    signing: hmac::Key,
    hashing: Vec<u8>,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(...)")
    }
}

/// The fields of a token that a server needs.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// The user whose storage it opens.
    pub uid: u64,
    /// Its expiry, in seconds since 1970.
    pub expires: f64,
    /// The salt of its key.
    pub salt: String,
}

/// The fields of a new token.
#[derive(Debug, Clone)]
pub struct NewToken<'t> {
    /// The URL of the server that it is for.
    pub node: &'t str,
    /// The id of the account's keys.
    pub fxa_kid: &'t str,
    /// The account's id.
    pub fxa_uid: &'t str,
    /// A pseudonym of the account, for statistics.
    pub hashed_fxa_uid: &'t str,
    /// A pseudonym of a device. Mozilla's tokens no longer name one.
    pub hashed_device_id: &'t str,
    /// Its expiry, in seconds since 1970.
    pub expires: u64,
    /// The user whose storage it opens.
    pub uid: u64,
    /// Six hexadecimal digits.
    pub salt: &'t str,
}

impl Secret {
    /// Creates a secret of the text's bytes, without decoding them.
    pub fn new(text: &str) -> Secret {
        let secret = text.as_bytes().to_vec();
        let signing = hmac::Key::new(hmac::HMAC_SHA256, &derive(&secret, b"", &[SIGNING_INFO]));
        let hashing = derive(&secret, b"", &[HASHING_INFO]).to_vec();
        Secret { secret, signing, hashing }
    }

    /// Returns a token's id: its text and the signature.
    pub fn id_of(&self, text: &[u8]) -> String {
        let mut signed = text.to_vec();
        signed.extend_from_slice(hmac::sign(&self.signing, text).as_ref());
        URL_SAFE.encode(signed)
    }

    /// Returns the key that signs requests with a token. The key is a text, whose bytes are used.
    pub fn key_of(&self, id: &str, salt: &str) -> String {
        URL_SAFE.encode(derive(&self.secret, salt.as_bytes(), &[DERIVE_INFO, id.as_bytes()]))
    }

    /// Returns the token of an id; `None` if this secret has not signed it, or if a field is missing.
    pub fn open(&self, id: &str) -> Option<Token> {
        if id.len() > TOKEN_ID_BYTES_MAX {
            return None;
        }
        let signed = URL_SAFE.decode(id).ok()?;
        let (text, signature) = signed.split_at_checked(signed.len().checked_sub(HASH_BYTES)?)?;
        hmac::verify(&self.signing, text, signature).ok()?;
        let token = parse_unique(text, &Limits { depth_max: 8 }).ok()?;
        let number = |name: &str| match token.get(name) {
            Some(Value::Number(number)) => Some(&**number),
            _ => None,
        };
        let expires = number("expires")?.parse().ok().filter(|expires: &f64| expires.is_finite())?;
        let text = |name: &str| token.get(name).and_then(Value::as_str);
        text("node")?;
        Some(Token { uid: number("uid")?.parse().ok()?, expires, salt: text("salt")?.to_owned() })
    }

    /// Returns a new token's id and key.
    pub fn issue(&self, token: &NewToken<'_>) -> (String, String) {
        let text = Object::text(|text| {
            text.string("node", token.node)
                .string("fxa_kid", token.fxa_kid)
                .string("fxa_uid", token.fxa_uid)
                .string("hashed_device_id", token.hashed_device_id)
                .string("hashed_fxa_uid", token.hashed_fxa_uid)
                .number("expires", token.expires)
                .number("uid", token.uid)
                .string("tokenserver_origin", "rust")
                .string("salt", token.salt);
        });
        let id = self.id_of(&text);
        let key = self.key_of(&id, token.salt);
        (id, key)
    }

    /// Returns the pseudonyms of an account and of an unnamed device.
    pub fn hashed_ids(&self, fxa_uid: &str) -> (String, String) {
        hashed_ids(&self.hashing, fxa_uid)
    }
}

/// Returns the pseudonyms under another secret.
pub fn hashed_ids(secret: &[u8], fxa_uid: &str) -> (String, String) {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let hash = |text: &str| {
        let half = hmac::sign(&key, text.as_bytes());
        hex(half.as_ref().get(..HASH_BYTES / 2).unwrap_or_default())
    };
    let account = hash(fxa_uid);
    let device = hash(&format!("{account}none"));
    (account, device)
}

/// Encodes bytes in lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from_digit(digit.into(), 16).unwrap_or_default());
        }
        text
    })
}
