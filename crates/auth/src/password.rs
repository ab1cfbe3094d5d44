//! Hashes of passwords: PBKDF2, in CouchDB's own forms.

use std::fmt::Write;

use sha2::Sha256;

/// Iterations for new hashes.
const ITERATIONS: u32 = 50_000;

/// Hashes with more are refused: each attempt would cost too much.
const ITERATIONS_MAX: u32 = 10_000_000;

/// Shorter keys are refused.
const KEY_BYTES_MIN: usize = 16;

/// Bytes of a new hash's key.
const KEY_BYTES: usize = 32;

/// Random bytes that make the salt of a new hash.
pub const SALT_BYTES: usize = 16;

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
    /// Hashes a password. `random` makes the salt, and must be new for each hash. Takes as long as a check.
    pub fn new(password: &str, random: &[u8; SALT_BYTES]) -> Self {
        let salt = hex(random).into_bytes();
        let key = derive(true, password, &salt, ITERATIONS, KEY_BYTES);
        PasswordHash { sha256: true, key, salt, iterations: ITERATIONS }
    }

    /// A hash of no password: a check against it takes as long as one of a new hash, and fails.
    pub(crate) fn of_nothing() -> Self {
        PasswordHash { sha256: true, key: vec![0; KEY_BYTES], salt: Vec::new(), iterations: ITERATIONS }
    }

    /// Reads a hash from a configuration: CouchDB's `-pbkdf2:sha256-...` or the older `-pbkdf2-...` (SHA-1).
    ///
    /// # Errors
    /// [`InvalidHash`]: then it is a plain password.
    pub fn parse(text: &str) -> Result<Self, InvalidHash> {
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
        let key = unhex(key).filter(|key| key.len() >= KEY_BYTES_MIN).ok_or(InvalidHash)?;
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

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        // Writing to a String does not fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    let digits = text.as_bytes().chunks_exact(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hashes_come_back_from_their_text() {
        let hash = PasswordHash::new("secret", &[7; SALT_BYTES]);
        let text = hash.to_string();
        assert!(
            text.starts_with("-pbkdf2:sha256-") && text.ends_with(&format!(",{},50000", "07".repeat(16))),
            "{text}"
        );
        let read = PasswordHash::parse(&text).unwrap();
        assert_eq!(read, hash);
        assert!(read.verify("secret") && !read.verify("Secret") && !read.verify(""));
        assert_ne!(PasswordHash::new("secret", &[8; SALT_BYTES]), hash);
    }

    #[test]
    fn couchdbs_sha1_form_and_rfc_6070() {
        let text = "-pbkdf2-4b007901b765489abead49d926f721d065a429c1,salt,4096";
        let hash = PasswordHash::parse(text).unwrap();
        assert!(hash.verify("password") && !hash.verify("passwore"));
        assert_eq!(hash.to_string(), text);
    }

    /// The vector for SHA-256 that goes round beside RFC 6070's.
    #[test]
    fn sha256_form() {
        let key = "c5e478d59288c841aa530db6845c4c8d962893a001ce4e11a4963873aa98134a";
        let hash = PasswordHash::parse(&format!("-pbkdf2:sha256-{key},salt,4096")).unwrap();
        assert!(hash.verify("password") && !hash.verify("passwore"));
    }

    #[test]
    fn no_two_wrong_bytes_make_a_right_one() {
        let mut hash = PasswordHash::parse("-pbkdf2-4b007901b765489abead49d926f721d065a429c1,salt,4096").unwrap();
        hash.key[3] ^= 1;
        assert!(!hash.verify("password"));
        hash.key[9] ^= 1;
        assert!(!hash.verify("password"));
    }

    #[test]
    fn what_is_no_hash() {
        let key = "00112233445566778899aabbccddeeff";
        for text in ["", "secret", "-pbkdf2", "-pbkdf2-", "-pbkdf2-xx,salt,1", "-pbkdf2-4b,salt,1", "-pbkdf2:sha512-"] {
            assert_eq!(PasswordHash::parse(text), Err(InvalidHash), "{text}");
        }
        let with = |rest: &str| PasswordHash::parse(&format!("-pbkdf2-{key}{rest}"));
        for rest in [",s,0", ",s,10000001", ",s,x", ",s", "", ",s,1,", "0,s,1", "\u{e9},s,1", "0\u{20ac},s,1"] {
            assert_eq!(with(rest), Err(InvalidHash), "{rest}");
        }
        assert_eq!(PasswordHash::parse(&format!("-pbkdf2-{},s,1", &key[2..])), Err(InvalidHash));
        for rest in [",s,1", ",,1", ",s,10000000"] {
            assert!(with(rest).is_ok(), "{rest}");
        }
    }

    #[test]
    fn no_password_is_that_of_nothing() {
        let hash = PasswordHash::of_nothing();
        assert_eq!((hash.key.len(), hash.iterations), (KEY_BYTES, ITERATIONS));
        assert!(hash.sha256 && !hash.verify(""));
    }

    proptest! {
        #[test]
        fn texts_are_read_as_they_are_written(
            sha256: bool,
            key in prop::collection::vec(any::<u8>(), 16..40),
            salt in "[^,]{0,20}",
            iterations in 1..=ITERATIONS_MAX,
        ) {
            let hash = PasswordHash { sha256, key, salt: salt.into_bytes(), iterations };
            prop_assert_eq!(PasswordHash::parse(&hash.to_string()), Ok(hash));
        }

        #[test]
        fn no_text_panics(text in "(-pbkdf2(:sha256)?-)?\\PC{0,60}") {
            let _ = PasswordHash::parse(&text);
        }
    }
}
