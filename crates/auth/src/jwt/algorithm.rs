//! Signature algorithms of tokens.

use hmac::{Hmac, Mac};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, RsaParameters, VerificationAlgorithm,
};
use sha2::{Sha256, Sha384, Sha512};

/// An algorithm of RFC 7518 or RFC 8037. `none` is missing on purpose, and ES512 because `ring` lacks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// HMAC with SHA-256.
    Hs256,
    /// HMAC with SHA-384.
    Hs384,
    /// HMAC with SHA-512.
    Hs512,
    /// RSA, PKCS #1 1.5, with SHA-256.
    Rs256,
    /// RSA, PKCS #1 1.5, with SHA-384.
    Rs384,
    /// RSA, PKCS #1 1.5, with SHA-512.
    Rs512,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// ECDSA on P-384 with SHA-384.
    Es384,
    /// Ed25519
    EdDsa,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Algorithm; 9] = [
        Algorithm::Hs256,
        Algorithm::Hs384,
        Algorithm::Hs512,
        Algorithm::Rs256,
        Algorithm::Rs384,
        Algorithm::Rs512,
        Algorithm::Es256,
        Algorithm::Es384,
        Algorithm::EdDsa,
    ];

    /// The name in a token's `alg`.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Hs256 => "HS256",
            Algorithm::Hs384 => "HS384",
            Algorithm::Hs512 => "HS512",
            Algorithm::Rs256 => "RS256",
            Algorithm::Rs384 => "RS384",
            Algorithm::Rs512 => "RS512",
            Algorithm::Es256 => "ES256",
            Algorithm::Es384 => "ES384",
            Algorithm::EdDsa => "EdDSA",
        }
    }

    /// Returns the algorithm of this exact name.
    pub fn from_name(name: &str) -> Option<Algorithm> {
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// True if the key that verifies can also sign.
    pub fn is_hmac(self) -> bool {
        self.hmac_bytes().is_some()
    }

    /// The bytes of the HMAC, which are the shortest secret.
    pub(super) fn hmac_bytes(self) -> Option<usize> {
        match self {
            Algorithm::Hs256 => Some(32),
            Algorithm::Hs384 => Some(48),
            Algorithm::Hs512 => Some(64),
            _ => None,
        }
    }

    pub(super) fn rsa(self) -> Option<&'static RsaParameters> {
        match self {
            Algorithm::Rs256 => Some(&RSA_PKCS1_2048_8192_SHA256),
            Algorithm::Rs384 => Some(&RSA_PKCS1_2048_8192_SHA384),
            Algorithm::Rs512 => Some(&RSA_PKCS1_2048_8192_SHA512),
            _ => None,
        }
    }

    /// The verification with the bytes of a public key that is a point.
    pub(super) fn of_point(self) -> Option<&'static dyn VerificationAlgorithm> {
        match self {
            Algorithm::Es256 => Some(&ECDSA_P256_SHA256_FIXED),
            Algorithm::Es384 => Some(&ECDSA_P384_SHA384_FIXED),
            Algorithm::EdDsa => Some(&ED25519),
            _ => None,
        }
    }

    /// Returns whether `tag` is the HMAC of a text; false for other algorithms.
    pub(super) fn has_hmac(self, secret: &[u8], text: &[u8], tag: &[u8]) -> bool {
        match self {
            Algorithm::Hs256 => is_hmac_of::<Hmac<Sha256>>(secret, text, tag),
            Algorithm::Hs384 => is_hmac_of::<Hmac<Sha384>>(secret, text, tag),
            Algorithm::Hs512 => is_hmac_of::<Hmac<Sha512>>(secret, text, tag),
            _ => false,
        }
    }
}

fn is_hmac_of<M: Mac + hmac::digest::KeyInit>(secret: &[u8], text: &[u8], tag: &[u8]) -> bool {
    let Ok(mut mac) = <M as Mac>::new_from_slice(secret) else { return false };
    mac.update(text);
    mac.verify_slice(tag).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_exact() {
        let names = Algorithm::ALL.map(Algorithm::name);
        assert_eq!(names.join(" "), "HS256 HS384 HS512 RS256 RS384 RS512 ES256 ES384 EdDSA");
        for algorithm in Algorithm::ALL {
            assert_eq!(Algorithm::from_name(algorithm.name()), Some(algorithm));
            let kinds =
                [algorithm.is_hmac(), algorithm.rsa().is_some(), algorithm.of_point().is_some()].map(usize::from);
            assert_eq!(kinds.iter().sum::<usize>(), 1, "{algorithm:?}");
        }
        for name in ["none", "None", "NONE", "", "hs256", "ES512", "PS256", "HS1", "eddsa"] {
            assert_eq!(Algorithm::from_name(name), None, "{name}");
        }
        let bytes = [Algorithm::Hs256, Algorithm::Hs384, Algorithm::Hs512].map(Algorithm::hmac_bytes);
        assert_eq!(bytes, [Some(32), Some(48), Some(64)]);
    }
}
