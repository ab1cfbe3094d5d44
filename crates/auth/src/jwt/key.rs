//! Keys, each for one algorithm, and sets of keys.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{RsaPublicKeyComponents, UnparsedPublicKey};

use super::algorithm::Algorithm;
use super::claims::Binding;
use super::der::{self, PublicKey};

/// The most keys of a set.
pub const KEYS_MAX: usize = 100;

/// The most keys of one id and one algorithm, and so the most signatures that one token costs.
pub(super) const TRIES_MAX: usize = 4;

/// The length of an RSA modulus, in bits.
const MODULUS_BITS: std::ops::RangeInclusive<usize> = 2_048..=8_192;

/// The reason why a key or a set of keys is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKey {
    /// The text has no known form.
    #[error("not a public key in PEM, a secret in base64 or a JWK set")]
    Text,
    /// The key does not fit the algorithm, such as a public key with HS256.
    #[error("the key is not one for its algorithm")]
    Algorithm,
    /// A secret that is shorter than the HMAC, a modulus below 2048 or above 8192 bits, or a point of another length.
    #[error("the key is too short or too long")]
    Size,
    /// More than [`KEYS_MAX`] keys.
    #[error("more than 100 keys")]
    TooMany,
    /// More than four keys have one id and one algorithm.
    #[error("more than four keys have the same id and algorithm")]
    SameId,
}

/// The material of a key. Public keys and secrets are different variants, so a public key never serves as an HMAC
/// secret.
#[derive(Clone, PartialEq, Eq)]
pub enum KeyMaterial {
    /// A secret, which also signs.
    Secret(Vec<u8>),
    /// Modulus and exponent of RSA, big-endian without leading zeros.
    Rsa(Vec<u8>, Vec<u8>),
    /// A point on P-256: 4, then both coordinates.
    P256(Vec<u8>),
    /// A point on P-384: 4, then both coordinates.
    P384(Vec<u8>),
    /// A public key of Ed25519.
    Ed25519(Vec<u8>),
}

impl std::fmt::Debug for KeyMaterial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            KeyMaterial::Secret(_) => "Secret(...)",
            KeyMaterial::Rsa(..) => "Rsa(...)",
            KeyMaterial::P256(_) => "P256(...)",
            KeyMaterial::P384(_) => "P384(...)",
            KeyMaterial::Ed25519(_) => "Ed25519(...)",
        })
    }
}

impl KeyMaterial {
    /// Parses a secret in base64, the form of CouchDB's settings `hmac:KID`.
    ///
    /// # Errors
    /// [`InvalidKey::Text`].
    pub fn secret(base64: &str) -> Result<KeyMaterial, InvalidKey> {
        STANDARD.decode(base64.trim()).map(KeyMaterial::Secret).map_err(|_| InvalidKey::Text)
    }

    /// Parses a public key in PEM, the form of CouchDB's settings `rsa:KID` and `ec:KID`, with line ends or `\n`.
    ///
    /// # Errors
    /// [`InvalidKey::Text`].
    pub fn pem(text: &str) -> Result<KeyMaterial, InvalidKey> {
        Ok(match der::public_key(text).ok_or(InvalidKey::Text)? {
            PublicKey::Rsa(modulus, exponent) => KeyMaterial::Rsa(modulus, exponent),
            PublicKey::P256(point) => KeyMaterial::P256(point),
            PublicKey::P384(point) => KeyMaterial::P384(point),
            PublicKey::Ed25519(key) => KeyMaterial::Ed25519(key),
        })
    }

    /// The algorithm of a key that names none.
    pub fn default_algorithm(&self) -> Algorithm {
        match self {
            KeyMaterial::Secret(_) => Algorithm::Hs256,
            KeyMaterial::Rsa(..) => Algorithm::Rs256,
            KeyMaterial::P256(_) => Algorithm::Es256,
            KeyMaterial::P384(_) => Algorithm::Es384,
            KeyMaterial::Ed25519(_) => Algorithm::EdDsa,
        }
    }
}

/// A key for tokens of one id, one algorithm and one issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    kid: Option<String>,
    algorithm: Algorithm,
    material: KeyMaterial,
    binding: Arc<Binding>,
}

impl Key {
    /// Creates a key for tokens with the id `kid`, or without an id.
    ///
    /// # Errors
    /// [`InvalidKey::Algorithm`], [`InvalidKey::Size`].
    pub fn new(
        kid: Option<String>,
        algorithm: Algorithm,
        material: KeyMaterial,
        binding: Arc<Binding>,
    ) -> Result<Key, InvalidKey> {
        let is_point = |point: &[u8], bytes: usize| point.len() == bytes && point.first() == Some(&4);
        let has_size = match (&material, algorithm) {
            (KeyMaterial::Secret(secret), _) => secret.len() >= algorithm.hmac_bytes().ok_or(InvalidKey::Algorithm)?,
            (KeyMaterial::Rsa(modulus, _), Algorithm::Rs256 | Algorithm::Rs384 | Algorithm::Rs512) => {
                MODULUS_BITS.contains(&bits(modulus))
            }
            (KeyMaterial::P256(point), Algorithm::Es256) => is_point(point, 65),
            (KeyMaterial::P384(point), Algorithm::Es384) => is_point(point, 97),
            (KeyMaterial::Ed25519(key), Algorithm::EdDsa) => key.len() == 32,
            _ => return Err(InvalidKey::Algorithm),
        };
        if !has_size {
            return Err(InvalidKey::Size);
        }
        Ok(Key { kid, algorithm, material, binding })
    }

    /// The id.
    pub fn kid(&self) -> Option<&str> {
        self.kid.as_deref()
    }

    /// The algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    pub(super) fn binding(&self) -> &Binding {
        &self.binding
    }

    pub(super) fn has_signed(&self, text: &[u8], signature: &[u8]) -> bool {
        match &self.material {
            KeyMaterial::Secret(secret) => self.algorithm.has_hmac(secret, text, signature),
            KeyMaterial::Rsa(n, e) => self
                .algorithm
                .rsa()
                .is_some_and(|parameters| RsaPublicKeyComponents { n, e }.verify(parameters, text, signature).is_ok()),
            KeyMaterial::P256(point) | KeyMaterial::P384(point) | KeyMaterial::Ed25519(point) => self
                .algorithm
                .of_point()
                .is_some_and(|algorithm| UnparsedPublicKey::new(algorithm, point).verify(text, signature).is_ok()),
        }
    }
}

/// Returns the bits of a big-endian number without leading zeros.
fn bits(number: &[u8]) -> usize {
    let Some(first) = number.first() else { return 0 };
    number.len() * 8 - first.leading_zeros() as usize
}

/// The key that verified a token, with all other input of the verification but the time. It is compared as a whole,
/// so that further members of a key or of its [`Binding`] count as well. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedBy {
    key: Arc<Key>,
    skew: u64,
}

impl VerifiedBy {
    pub(super) fn new(key: &Arc<Key>, skew: u64) -> VerifiedBy {
        VerifiedBy { key: Arc::clone(key), skew }
    }
}

/// Keys by id and algorithm.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeySet {
    keys: HashMap<(Option<String>, Algorithm), Vec<Arc<Key>>>,
    generation: u64,
}

impl KeySet {
    /// Creates a set. `generation` must differ from that of every other set that a [`super::TokenCache`] has seen.
    ///
    /// # Errors
    /// [`InvalidKey::TooMany`], [`InvalidKey::SameId`].
    pub fn new(keys: Vec<Key>, generation: u64) -> Result<KeySet, InvalidKey> {
        if keys.len() > KEYS_MAX {
            return Err(InvalidKey::TooMany);
        }
        let mut by_id: HashMap<_, Vec<Arc<Key>>> = HashMap::new();
        for key in keys {
            let same = by_id.entry((key.kid.clone(), key.algorithm)).or_default();
            if same.len() == TRIES_MAX {
                return Err(InvalidKey::SameId);
            }
            same.push(Arc::new(key));
        }
        Ok(KeySet { keys: by_id, generation })
    }

    /// True if there is no key: then tokens are ignored, as in CouchDB without its handler for them.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The number that the set was created with.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// True if the set has the key that verified a token, with the same binding and with the same `skew` in seconds.
    /// Other keys do not matter.
    pub fn has(&self, by: &VerifiedBy, skew: u64) -> bool {
        let same = self.keys.get(&(by.key.kid.clone(), by.key.algorithm));
        by.skew == skew && same.is_some_and(|same| same.contains(&by.key))
    }

    /// Returns at most [`TRIES_MAX`] keys. A token without an id matches keys without one and those with CouchDB's
    /// `_default`.
    pub(super) fn find(&self, kid: Option<&str>, algorithm: Algorithm) -> &[Arc<Key>] {
        let named = |kid: Option<&str>| self.keys.get(&(kid.map(str::to_owned), algorithm));
        let found = named(kid).or_else(|| if kid.is_none() { named(Some("_default")) } else { None });
        found.map_or(&[], Vec::as_slice)
    }
}
