//! Password hashes in all of CouchDB's forms.
//!
//! A hash is stored as in CouchDB: hexadecimal digits that are compared as text, and any text as the salt. It comes
//! from the configuration's `[admins]` ([`PasswordHash::parse`]) or from a user document
//! ([`PasswordHash::of_document`]).

mod config;
mod document;
mod prf;

pub use config::InvalidHash;
pub use prf::Prf;

use subtle::ConstantTimeEq;

use crate::hex::hex;

/// The iterations of new hashes, as in CouchDB 3.5.
pub const ITERATIONS: u32 = 600_000;

/// The most iterations; a hash with more is refused unverified, since an attempt would cost too much.
pub const ITERATIONS_MAX: u32 = 2_000_000;

const NEW_PRF: Prf = Prf::Sha256;

/// The longest salt of a document, in bytes: it is stored in sessions and in cached credentials. CouchDB's have 32.
const SALT_BYTES_MAX: usize = 1_024;

/// The random bytes in the salt of a new hash.
pub const SALT_BYTES: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HashScheme {
    /// `simple`: SHA-1 of the password and the salt.
    Simple,
    Pbkdf2(Prf, u32),
    /// `simple+pbkdf2`: PBKDF2 of the digits of a `simple` hash, which an operator can compute without the password.
    SimplePbkdf2(Prf, u32),
}

impl HashScheme {
    fn digits(self) -> usize {
        match self {
            HashScheme::Simple => Prf::Sha1.bytes() * 2,
            HashScheme::Pbkdf2(prf, _) | HashScheme::SimplePbkdf2(prf, _) => prf.bytes() * 2,
        }
    }

    /// The iterations that a new hash has in addition.
    fn iterations_left(self) -> u32 {
        match self {
            HashScheme::Simple => ITERATIONS,
            HashScheme::Pbkdf2(_, iterations) | HashScheme::SimplePbkdf2(_, iterations) => {
                ITERATIONS.saturating_sub(iterations)
            }
        }
    }

    /// Derives the digits of a password's hash, in time proportional to the iterations.
    fn hash(self, password: &str, salt: &str) -> String {
        match self {
            HashScheme::Simple => hex(&prf::sha1(password.as_bytes(), salt.as_bytes())),
            HashScheme::Pbkdf2(prf, iterations) => hex(&prf.derive(password.as_bytes(), salt.as_bytes(), iterations)),
            HashScheme::SimplePbkdf2(prf, iterations) => {
                let simple = HashScheme::Simple.hash(password, salt);
                hex(&prf.derive(simple.as_bytes(), salt.as_bytes(), iterations))
            }
        }
    }
}

/// The hash of a password.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash {
    scheme: HashScheme,
    /// As many as the scheme derives.
    digits: String,
    salt: String,
}

impl std::fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PasswordHash").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}

impl PasswordHash {
    /// Hashes a password with PBKDF2-SHA256 and [`ITERATIONS`]. `random` becomes the salt and must be new for each
    /// hash. Takes as long as a check: some tenths of a second.
    pub fn new(password: &str, random: &[u8; SALT_BYTES]) -> PasswordHash {
        PasswordHash::salted(password, &hex(random), ITERATIONS)
    }

    /// As [`PasswordHash::new`] with another number of iterations, clamped to 1 to [`ITERATIONS_MAX`].
    pub fn with_iterations(password: &str, random: &[u8; SALT_BYTES], iterations: u32) -> PasswordHash {
        PasswordHash::salted(password, &hex(random), iterations)
    }

    /// As [`PasswordHash::with_iterations`] with an existing salt, which may be any text.
    pub fn salted(password: &str, salt: &str, iterations: u32) -> PasswordHash {
        let scheme = HashScheme::Pbkdf2(NEW_PRF, iterations.clamp(1, ITERATIONS_MAX));
        PasswordHash { scheme, digits: scheme.hash(password, salt), salt: salt.to_owned() }
    }

    /// A hash that matches no password, for missing names. A check against it takes as long as one of a new hash.
    pub fn of_nothing() -> PasswordHash {
        let scheme = HashScheme::Pbkdf2(NEW_PRF, ITERATIONS);
        PasswordHash { scheme, digits: "-".repeat(scheme.digits()), salt: String::new() }
    }

    /// Returns whether this is the password. The time does not depend on how much of it is right.
    pub fn verify(&self, password: &str) -> bool {
        let digits = self.scheme.hash(password, &self.salt);
        digits.as_bytes().ct_eq(self.digits.as_bytes()).into()
    }

    /// As [`PasswordHash::verify`], and never faster than a check of a new hash: it adds the iterations that a weaker
    /// hash lacks. So the time does not distinguish a name with an old hash from a missing name.
    pub fn verify_evenly(&self, password: &str) -> bool {
        let is_right = self.verify(password);
        let left = self.scheme.iterations_left();
        if left > 0 {
            std::hint::black_box(NEW_PRF.derive(password.as_bytes(), self.salt.as_bytes(), left));
        }
        is_right
    }

    /// The salt, which is part of the key that signs a session's cookie.
    pub fn salt(&self) -> &str {
        &self.salt
    }

    /// The iterations of a check; 1 for `simple`.
    pub fn iterations(&self) -> u32 {
        match self.scheme {
            HashScheme::Simple => 1,
            HashScheme::Pbkdf2(_, iterations) | HashScheme::SimplePbkdf2(_, iterations) => iterations,
        }
    }

    /// True if the hash is weaker than a new one: `simple` or `simple+pbkdf2`, SHA-1 or SHA-224, or fewer iterations.
    /// A stronger hash is kept.
    pub fn needs_rehash(&self) -> bool {
        match self.scheme {
            HashScheme::Pbkdf2(prf, iterations) => prf < NEW_PRF || iterations < ITERATIONS,
            HashScheme::Simple | HashScheme::SimplePbkdf2(..) => true,
        }
    }

    /// Returns the replacement of a weaker hash after its password was right: a new hash **with the same salt**. So
    /// two servers compute the same hash, and sessions stay valid. Takes as long as a check.
    pub fn rehash(&self, password: &str) -> PasswordHash {
        PasswordHash::salted(password, &self.salt, ITERATIONS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(scheme: HashScheme, password: &str, salt: &str) -> PasswordHash {
        PasswordHash { scheme, digits: scheme.hash(password, salt), salt: salt.to_owned() }
    }

    #[test]
    fn new_ones_are_of_sha256_with_600000_iterations() {
        let new = PasswordHash::new("secret", &[7; SALT_BYTES]);
        assert_eq!(new.scheme, HashScheme::Pbkdf2(Prf::Sha256, 600_000));
        assert_eq!((new.salt(), new.digits.len()), ("07".repeat(16).as_str(), 64));
        assert!(!new.needs_rehash());
        assert_eq!((new.iterations(), hash(HashScheme::Simple, "x", "s").iterations()), (600_000, 1));
        assert_eq!(hash(HashScheme::SimplePbkdf2(Prf::Sha1, 7), "x", "s").iterations(), 7);
        // The output of Python's `hashlib.pbkdf2_hmac`.
        assert_eq!(new.digits, "d3c24918d3ea9228b2c4fcaba1449969414578632bd65595ba51531fc33635d2");
    }

    #[test]
    fn iterations_stay_in_their_range() {
        let scheme = |iterations| PasswordHash::with_iterations("", &[0; SALT_BYTES], iterations).scheme;
        assert_eq!(scheme(0), HashScheme::Pbkdf2(Prf::Sha256, 1));
        assert_eq!(scheme(2), HashScheme::Pbkdf2(Prf::Sha256, 2));
        assert_eq!((ITERATIONS, ITERATIONS_MAX), (600_000, 2_000_000));
    }

    #[test]
    fn the_password_alone_is_right() {
        for scheme in [HashScheme::Simple, HashScheme::Pbkdf2(Prf::Sha512, 3), HashScheme::SimplePbkdf2(Prf::Sha256, 3)]
        {
            let right = hash(scheme, "secret", "salt");
            assert_eq!(right.digits.len(), scheme.digits(), "{scheme:?}");
            assert!(right.verify("secret"), "{scheme:?}");
            assert!(!right.verify("Secret") && !right.verify("") && !right.verify("secretsalt"), "{scheme:?}");
            // Digits are compared as text, as in CouchDB.
            let upper = PasswordHash { digits: right.digits.to_uppercase(), ..right.clone() };
            assert!(!upper.verify("secret"), "{scheme:?}");
        }
        // The value in CouchDB's own test.
        let simple = HashScheme::Simple.hash("0123456789", "salt");
        assert_eq!(
            HashScheme::SimplePbkdf2(Prf::Sha256, 5).hash("0123456789", "salt"),
            HashScheme::Pbkdf2(Prf::Sha256, 5).hash(&simple, "salt")
        );
    }

    #[test]
    fn weak_hashes_are_not_checked_faster() {
        let left = |scheme: HashScheme| scheme.iterations_left();
        assert_eq!(left(HashScheme::Simple), 600_000);
        assert_eq!(left(HashScheme::Pbkdf2(Prf::Sha1, 10)), 599_990);
        assert_eq!(left(HashScheme::SimplePbkdf2(Prf::Sha256, 599_999)), 1);
        assert_eq!([600_000, 600_001].map(|iterations| left(HashScheme::Pbkdf2(Prf::Sha256, iterations))), [0, 0]);
        let weak = hash(HashScheme::Simple, "p", "s");
        let least = std::time::Instant::now() + std::time::Duration::from_millis(20);
        assert!(weak.verify_evenly("p") && !weak.verify_evenly("q"));
        // 1,200,000 iterations take longer than this on any machine; without them it is microseconds.
        assert!(std::time::Instant::now() > least);
    }

    #[test]
    fn no_two_wrong_digits_make_a_right_one() {
        let right = hash(HashScheme::Pbkdf2(Prf::Sha1, 2), "password", "salt");
        let with = |places: &[usize]| {
            let mut digits = right.digits.clone().into_bytes();
            for at in places {
                digits[*at] ^= 1;
            }
            PasswordHash { digits: String::from_utf8(digits).unwrap(), ..right.clone() }
        };
        assert!(with(&[]).verify("password"));
        assert!(!with(&[3]).verify("password") && !with(&[3, 9]).verify("password"));
    }

    #[test]
    fn weaker_ones_are_hashed_anew_with_their_salt() {
        let needs = |scheme| hash(scheme, "p", "s").needs_rehash();
        assert!(needs(HashScheme::Simple) && needs(HashScheme::SimplePbkdf2(Prf::Sha512, 1)));
        let strong = |prf, iterations| PasswordHash {
            scheme: HashScheme::Pbkdf2(prf, iterations),
            digits: String::new(),
            salt: String::new(),
        };
        for prf in [Prf::Sha1, Prf::Sha224] {
            assert!(strong(prf, 2_000_000).needs_rehash(), "{prf:?}");
        }
        for prf in [Prf::Sha256, Prf::Sha384, Prf::Sha512] {
            assert!(strong(prf, 599_999).needs_rehash(), "{prf:?}");
            assert!(!strong(prf, 600_000).needs_rehash(), "{prf:?}");
            assert!(!strong(prf, 600_001).needs_rehash(), "{prf:?}");
        }
        let anew = hash(HashScheme::Simple, "p", "any salt").rehash("p");
        assert_eq!((anew.scheme, anew.salt()), (HashScheme::Pbkdf2(Prf::Sha256, 600_000), "any salt"));
        assert_eq!(anew.digits, "a7d76a5e4b0895eca827940ef2f3cf4fc199baf69bf4536660ce3c81adfd522d");
    }

    #[test]
    fn no_password_is_that_of_nothing() {
        let nothing = PasswordHash::of_nothing();
        assert_eq!(nothing.scheme, HashScheme::Pbkdf2(Prf::Sha256, 600_000));
        assert_eq!(nothing.digits.len(), 64);
        // No check derives these digits.
        assert!(nothing.digits.bytes().all(|byte| byte == b'-'));
    }

    #[test]
    fn hashes_are_not_shown() {
        let shown = format!("{:?}", hash(HashScheme::Simple, "p", "grain"));
        assert!(shown.contains("Simple") && !shown.contains("grain"), "{shown}");
    }
}
