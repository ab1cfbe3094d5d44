//! HMACs with the server's secret.

use hmac::{Hmac, Mac};
use sha1::Sha1;
use sha2::Sha256;

/// A signature algorithm: CouchDB's setting `hash_algorithms` with its default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MacAlgorithm {
    Sha256,
    /// HMAC-SHA1, from servers before 3.4.
    Sha1,
}

impl MacAlgorithm {
    pub(crate) const NEW: MacAlgorithm = MacAlgorithm::Sha256;

    pub(crate) const ACCEPTED: [MacAlgorithm; 2] = [MacAlgorithm::Sha256, MacAlgorithm::Sha1];
}

/// The server's secret. Debug output hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(...)")
    }
}

impl Secret {
    /// A secret of at least 16 random bytes, or the text of CouchDB's setting `secret`. An empty secret also signs:
    /// the caller checks the length.
    pub fn new(bytes: Vec<u8>) -> Secret {
        Secret(bytes)
    }

    /// The secret's bytes, for storage.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Signs a text; the key is the secret followed by the salt.
    pub(crate) fn sign(&self, algorithm: MacAlgorithm, salt: &str, text: &[u8]) -> Vec<u8> {
        let key = [self.0.as_slice(), salt.as_bytes()].concat();
        match algorithm {
            MacAlgorithm::Sha256 => mac::<Hmac<Sha256>>(&key, text).map(|mac| mac.finalize().into_bytes().to_vec()),
            MacAlgorithm::Sha1 => mac::<Hmac<Sha1>>(&key, text).map(|mac| mac.finalize().into_bytes().to_vec()),
        }
        .unwrap_or_default()
    }

    /// Returns whether this is the HMAC of the text, in constant time.
    pub(crate) fn verify(&self, algorithm: MacAlgorithm, salt: &str, text: &[u8], tag: &[u8]) -> bool {
        let key = [self.0.as_slice(), salt.as_bytes()].concat();
        match algorithm {
            MacAlgorithm::Sha256 => mac::<Hmac<Sha256>>(&key, text).is_some_and(|mac| mac.verify_slice(tag).is_ok()),
            MacAlgorithm::Sha1 => mac::<Hmac<Sha1>>(&key, text).is_some_and(|mac| mac.verify_slice(tag).is_ok()),
        }
    }
}

/// HMAC takes a key of any length, so the result is never `None`.
fn mac<M: Mac + hmac::digest::KeyInit>(key: &[u8], text: &[u8]) -> Option<M> {
    let mut mac = <M as Mac>::new_from_slice(key).ok()?;
    mac.update(text);
    Some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hex::hex;

    #[test]
    fn signatures_are_hmacs_of_secret_and_salt() {
        // The second cases of RFC 2202 and RFC 4231, with the key in two parts.
        let (secret, text) = (Secret::new(b"Je".to_vec()), b"what do ya want for nothing?");
        assert_eq!(hex(&secret.sign(MacAlgorithm::Sha1, "fe", text)), "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79");
        let sha256 = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(hex(&secret.sign(MacAlgorithm::Sha256, "fe", text)), sha256);
        for algorithm in MacAlgorithm::ACCEPTED {
            let tag = secret.sign(algorithm, "fe", text);
            assert!(secret.verify(algorithm, "fe", text, &tag));
            assert!(!secret.verify(algorithm, "fe", text, &tag[1..]) && !secret.verify(algorithm, "fe", text, b""));
            assert!(!secret.verify(algorithm, "f", text, &tag) && !secret.verify(algorithm, "fe", b"", &tag));
        }
        assert_eq!(MacAlgorithm::NEW, MacAlgorithm::Sha256);
        assert_eq!(secret.as_bytes(), b"Je");
    }
}
