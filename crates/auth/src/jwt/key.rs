//! Keys, each for one algorithm, and sets of them.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{RsaPublicKeyComponents, UnparsedPublicKey};

use super::algorithm::Algorithm;
use super::claims::Binding;
use super::der::{self, PublicKey};

/// Keys of a set.
pub const KEYS_MAX: usize = 100;

/// Keys of one id and one algorithm: signatures that a token may cost.
pub(super) const TRIES_MAX: usize = 4;

/// Bits of a modulus.
const MODULUS_BITS: std::ops::RangeInclusive<usize> = 2_048..=8_192;

/// Why something is no key, or no set of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKey {
    /// The text is no key in a form known here.
    #[error("not a public key in PEM, a secret in base64 or a JWK set")]
    Text,
    /// The key is not of the kind that the algorithm signs with: a public key with HS256, for one.
    #[error("the key is not one for its algorithm")]
    Algorithm,
    /// A secret that is shorter than the HMAC, a modulus below 2048 or above 8192 bits, a point of another length.
    #[error("the key is too short or too long")]
    Size,
    /// More than [`KEYS_MAX`] keys.
    #[error("more than 100 keys")]
    TooMany,
    /// More than four keys have one id and one algorithm.
    #[error("more than four keys have the same id and algorithm")]
    SameId,
}

/// What a signature is verified with. No public key is of a variant that an HMAC takes, whatever its text.
#[derive(Clone, PartialEq, Eq)]
pub enum Material {
    /// What an HMAC is made with, too.
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

impl std::fmt::Debug for Material {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Material::Secret(_) => "Secret(...)",
            Material::Rsa(..) => "Rsa(...)",
            Material::P256(_) => "P256(...)",
            Material::P384(_) => "P384(...)",
            Material::Ed25519(_) => "Ed25519(...)",
        })
    }
}

impl Material {
    /// A secret in base64, as CouchDB's settings `hmac:KID` have it.
    ///
    /// # Errors
    /// [`InvalidKey::Text`].
    pub fn secret(base64: &str) -> Result<Material, InvalidKey> {
        STANDARD.decode(base64.trim()).map(Material::Secret).map_err(|_| InvalidKey::Text)
    }

    /// A public key in PEM, as CouchDB's settings `rsa:KID` and `ec:KID` have it, with `\n` for line ends or not.
    ///
    /// # Errors
    /// [`InvalidKey::Text`].
    pub fn pem(text: &str) -> Result<Material, InvalidKey> {
        Ok(match der::public_key(text).ok_or(InvalidKey::Text)? {
            PublicKey::Rsa(modulus, exponent) => Material::Rsa(modulus, exponent),
            PublicKey::P256(point) => Material::P256(point),
            PublicKey::P384(point) => Material::P384(point),
            PublicKey::Ed25519(key) => Material::Ed25519(key),
        })
    }

    /// The algorithm that is meant where none is named.
    pub fn default_algorithm(&self) -> Algorithm {
        match self {
            Material::Secret(_) => Algorithm::Hs256,
            Material::Rsa(..) => Algorithm::Rs256,
            Material::P256(_) => Algorithm::Es256,
            Material::P384(_) => Algorithm::Es384,
            Material::Ed25519(_) => Algorithm::EdDsa,
        }
    }
}

/// A key: for tokens of one id, one algorithm, one issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    kid: Option<String>,
    algorithm: Algorithm,
    material: Material,
    binding: Arc<Binding>,
}

impl Key {
    /// A key for tokens that name `kid`, or name none.
    ///
    /// # Errors
    /// [`InvalidKey::Algorithm`], [`InvalidKey::Size`].
    pub fn new(
        kid: Option<String>,
        algorithm: Algorithm,
        material: Material,
        binding: Arc<Binding>,
    ) -> Result<Key, InvalidKey> {
        let is_point = |point: &[u8], bytes: usize| point.len() == bytes && point.first() == Some(&4);
        let has_size = match (&material, algorithm) {
            (Material::Secret(secret), _) => secret.len() >= algorithm.hmac_bytes().ok_or(InvalidKey::Algorithm)?,
            (Material::Rsa(modulus, _), Algorithm::Rs256 | Algorithm::Rs384 | Algorithm::Rs512) => {
                MODULUS_BITS.contains(&bits(modulus))
            }
            (Material::P256(point), Algorithm::Es256) => is_point(point, 65),
            (Material::P384(point), Algorithm::Es384) => is_point(point, 97),
            (Material::Ed25519(key), Algorithm::EdDsa) => key.len() == 32,
            _ => return Err(InvalidKey::Algorithm),
        };
        if !has_size {
            return Err(InvalidKey::Size);
        }
        Ok(Key { kid, algorithm, material, binding })
    }

    /// The id that tokens name.
    pub fn kid(&self) -> Option<&str> {
        self.kid.as_deref()
    }

    /// The one algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    pub(super) fn binding(&self) -> &Binding {
        &self.binding
    }

    pub(super) fn has_signed(&self, text: &[u8], signature: &[u8]) -> bool {
        match &self.material {
            Material::Secret(secret) => self.algorithm.has_hmac(secret, text, signature),
            Material::Rsa(n, e) => self
                .algorithm
                .rsa()
                .is_some_and(|parameters| RsaPublicKeyComponents { n, e }.verify(parameters, text, signature).is_ok()),
            Material::P256(point) | Material::P384(point) | Material::Ed25519(point) => self
                .algorithm
                .of_point()
                .is_some_and(|algorithm| UnparsedPublicKey::new(algorithm, point).verify(text, signature).is_ok()),
        }
    }
}

/// Of a number that is big-endian and has no leading zeros.
fn bits(number: &[u8]) -> usize {
    let Some(first) = number.first() else { return 0 };
    number.len() * 8 - first.leading_zeros() as usize
}

/// A key that has verified a token, with all else that its verdict depends on, but for the time. It is compared as a whole:
/// whatever comes to belong to a key, or to its [`Binding`], is compared, too. Cheap to clone.
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

/// Keys, by what tokens name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeySet {
    keys: HashMap<(Option<String>, Algorithm), Vec<Arc<Key>>>,
    generation: u64,
}

impl KeySet {
    /// These keys. `generation` is another number than that of every other set that a [`super::Memory`] has seen.
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

    /// Whether there is none: then tokens are not looked at, as in CouchDB without its handler for them.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The number that the set was made with.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether the very key that has verified a token is here, bound as it was then, where clocks may differ by `skew`
    /// seconds: what other keys there are means nothing.
    pub fn has(&self, by: &VerifiedBy, skew: u64) -> bool {
        let same = self.keys.get(&(by.key.kid.clone(), by.key.algorithm));
        by.skew == skew && same.is_some_and(|same| same.contains(&by.key))
    }

    /// At most [`TRIES_MAX`]. A token without an id is one for keys without, and those with CouchDB's `_default`.
    pub(super) fn find(&self, kid: Option<&str>, algorithm: Algorithm) -> &[Arc<Key>] {
        let named = |kid: Option<&str>| self.keys.get(&(kid.map(str::to_owned), algorithm));
        let found = named(kid).or_else(|| if kid.is_none() { named(Some("_default")) } else { None });
        found.map_or(&[], Vec::as_slice)
    }
}
