//! The pseudorandom functions of PBKDF2.

use hmac::Hmac;
use sha1::Sha1;
use sha2::{Digest, Sha224, Sha256, Sha384, Sha512};

/// The hash function inside PBKDF2's HMAC, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Prf {
    /// SHA-1, the only one of CouchDB before 3.4.
    Sha1,
    /// SHA-224
    Sha224,
    /// SHA-256, for new hashes.
    Sha256,
    /// SHA-384
    Sha384,
    /// SHA-512
    Sha512,
}

impl Prf {
    pub(super) const ALL: [Prf; 5] = [Prf::Sha1, Prf::Sha224, Prf::Sha256, Prf::Sha384, Prf::Sha512];

    /// CouchDB's name.
    pub fn name(self) -> &'static str {
        match self {
            Prf::Sha1 => "sha",
            Prf::Sha224 => "sha224",
            Prf::Sha256 => "sha256",
            Prf::Sha384 => "sha384",
            Prf::Sha512 => "sha512",
        }
    }

    /// Returns the function with this name of CouchDB's.
    pub fn from_name(name: &str) -> Option<Prf> {
        Prf::ALL.into_iter().find(|prf| prf.name() == name)
    }

    /// The most iterations, which bound the cost of a check. Functions with words of 64 bits take twice as long.
    pub fn iterations_max(self) -> u32 {
        match self {
            Prf::Sha1 | Prf::Sha224 | Prf::Sha256 => super::ITERATIONS_MAX,
            Prf::Sha384 | Prf::Sha512 => super::ITERATIONS_MAX / 2,
        }
    }

    /// The length of derived keys, in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Prf::Sha1 => 20,
            Prf::Sha224 => 28,
            Prf::Sha256 => 32,
            Prf::Sha384 => 48,
            Prf::Sha512 => 64,
        }
    }

    pub(super) fn derive(self, password: &[u8], salt: &[u8], iterations: u32) -> Vec<u8> {
        let mut key = vec![0; self.bytes()];
        // HMAC takes a key of any length, so none of these can fail.
        let _ = match self {
            Prf::Sha1 => pbkdf2::pbkdf2::<Hmac<Sha1>>(password, salt, iterations, &mut key),
            Prf::Sha224 => pbkdf2::pbkdf2::<Hmac<Sha224>>(password, salt, iterations, &mut key),
            Prf::Sha256 => pbkdf2::pbkdf2::<Hmac<Sha256>>(password, salt, iterations, &mut key),
            Prf::Sha384 => pbkdf2::pbkdf2::<Hmac<Sha384>>(password, salt, iterations, &mut key),
            Prf::Sha512 => pbkdf2::pbkdf2::<Hmac<Sha512>>(password, salt, iterations, &mut key),
        };
        key
    }
}

pub(super) fn sha1(first: &[u8], second: &[u8]) -> Vec<u8> {
    Sha1::new().chain_update(first).chain_update(second).finalize().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hex::hex;

    /// The output of Python's `hashlib.pbkdf2_hmac`; the first value is RFC 6070's.
    #[test]
    fn keys_are_those_of_pbkdf2() {
        let keys = [
            (Prf::Sha1, "4b007901b765489abead49d926f721d065a429c1"),
            (Prf::Sha224, "218c453bf90635bd0a21a75d172703ff6108ef603f65bb821aedade1"),
            (Prf::Sha256, "c5e478d59288c841aa530db6845c4c8d962893a001ce4e11a4963873aa98134a"),
            (
                Prf::Sha384,
                "559726be38db125bc85ed7895f6e3cf574c7a01c080c3447db1e8a76764deb3c307b94853fbe424f6488c5f4f1289626",
            ),
            (
                Prf::Sha512,
                "d197b1b33db0143e018b12f3d1d1479e6cdebdcc97c5c0f87f6902e072f457b5143f30602641b3d55cd335988cb36b84376060ecd532e039b742a239434af2d5",
            ),
        ];
        for (prf, key) in keys {
            assert_eq!(hex(&prf.derive(b"password", b"salt", 4096)), key, "{prf:?}");
            assert_eq!(key.len(), prf.bytes() * 2);
        }
    }

    #[test]
    fn names_are_couchdbs() {
        assert_eq!(Prf::ALL.map(Prf::name), ["sha", "sha224", "sha256", "sha384", "sha512"]);
        for prf in Prf::ALL {
            assert_eq!(Prf::from_name(prf.name()), Some(prf));
        }
        for name in ["", "sha1", "SHA256", "md5", "sha3_256"] {
            assert_eq!(Prf::from_name(name), None, "{name}");
        }
    }

    #[test]
    fn simple_is_sha1_of_password_and_salt() {
        // The example of FIPS 180-2, in two parts.
        assert_eq!(hex(&sha1(b"a", b"bc")), "a9993e364706816aba3e25717850c26c9cd0d89d");
    }
}
