//! Hashes in the configuration's `[admins]`.

use super::{HashScheme, PasswordHash, Prf};

/// The text is not a hash in a known form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a password hash: -pbkdf2:PRF-HASH,SALT,ITERATIONS, -pbkdf2-HASH,SALT,ITERATIONS or -hashed-HASH,SALT")]
pub struct InvalidHash;

impl PasswordHash {
    /// Parses a hash of a configuration in one of CouchDB's forms: `-pbkdf2:PRF-HASH,SALT,ITERATIONS` with the PRF
    /// `sha`, `sha224`, `sha256`, `sha384` or `sha512`; `-pbkdf2-HASH,SALT,ITERATIONS` (SHA-1); `-hashed-HASH,SALT`
    /// (`simple`). The hash has the length of the function's output, in digits of either case; a salt has no comma.
    ///
    /// # Errors
    /// [`InvalidHash`]: the text is a plain password.
    pub fn parse(text: &str) -> Result<PasswordHash, InvalidHash> {
        let (scheme, rest) = if let Some(rest) = text.strip_prefix("-hashed-") {
            (HashScheme::Simple, rest)
        } else if let Some(rest) = text.strip_prefix("-pbkdf2-") {
            iterated(Prf::Sha1, rest)?
        } else {
            let (prf, rest) = text.strip_prefix("-pbkdf2:").and_then(|rest| rest.split_once('-')).ok_or(InvalidHash)?;
            iterated(Prf::from_name(prf).ok_or(InvalidHash)?, rest)?
        };
        let (digits, salt) = rest.split_once(',').ok_or(InvalidHash)?;
        let is_whole = digits.len() == scheme.digits() && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        if !is_whole || salt.contains(',') {
            return Err(InvalidHash);
        }
        Ok(PasswordHash { scheme, digits: digits.to_ascii_lowercase(), salt: salt.to_owned() })
    }
}

/// Splits off the trailing number of iterations; returns the scheme and the rest.
fn iterated(prf: Prf, text: &str) -> Result<(HashScheme, &str), InvalidHash> {
    let (rest, iterations) = text.rsplit_once(',').ok_or(InvalidHash)?;
    if !iterations.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(InvalidHash);
    }
    let iterations: u32 = iterations.parse().map_err(|_| InvalidHash)?;
    if iterations == 0 || iterations > prf.iterations_max() {
        return Err(InvalidHash);
    }
    Ok((HashScheme::Pbkdf2(prf, iterations), rest))
}

/// The form in a configuration. CouchDB has none for `simple+pbkdf2`, which no configuration can contain either.
impl std::fmt::Display for PasswordHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (digits, salt) = (&self.digits, &self.salt);
        match self.scheme {
            HashScheme::Simple => write!(f, "-hashed-{digits},{salt}"),
            HashScheme::Pbkdf2(Prf::Sha1, iterations) => write!(f, "-pbkdf2-{digits},{salt},{iterations}"),
            HashScheme::Pbkdf2(prf, iterations) => write!(f, "-pbkdf2:{}-{digits},{salt},{iterations}", prf.name()),
            HashScheme::SimplePbkdf2(prf, iterations) => {
                write!(f, "-simple+pbkdf2:{}-{digits},{salt},{iterations}", prf.name())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::password::SALT_BYTES;

    #[test]
    fn hashes_come_back_from_their_text() {
        let hash = PasswordHash::with_iterations("secret", &[7; SALT_BYTES], 40);
        let text = hash.to_string();
        assert!(text.starts_with("-pbkdf2:sha256-") && text.ends_with(&format!(",{},40", "07".repeat(16))), "{text}");
        let read = PasswordHash::parse(&text).unwrap();
        assert_eq!(read, hash);
        assert!(read.verify("secret") && !read.verify("Secret") && !read.verify(""));
        assert_ne!(PasswordHash::with_iterations("secret", &[8; SALT_BYTES], 40), hash);
    }

    #[test]
    fn couchdbs_forms() {
        let sha1 = "4b007901b765489abead49d926f721d065a429c1,salt,4096";
        let sha256 = "c5e478d59288c841aa530db6845c4c8d962893a001ce4e11a4963873aa98134a,salt,4096";
        for (text, is_as_written) in [
            (format!("-pbkdf2-{sha1}"), true),
            (format!("-pbkdf2:sha-{sha1}"), false),
            (format!("-pbkdf2-{}", sha1.replace('b', "B")), false),
            (format!("-pbkdf2:sha256-{sha256}"), true),
        ] {
            let hash = PasswordHash::parse(&text).unwrap();
            assert!(hash.verify("password") && !hash.verify("passwore"), "{text}");
            assert_eq!(hash.to_string() == text, is_as_written, "{text}");
            assert_eq!(hash.salt(), "salt");
        }
        // The recorded user document of this password and salt.
        let simple = PasswordHash::parse("-hashed-04d13fd0aa6f0197cf2c999019a607c36c81eb9f,s").unwrap();
        assert!(simple.verify("test") && !simple.verify("tests"));
        assert_eq!(simple.to_string(), "-hashed-04d13fd0aa6f0197cf2c999019a607c36c81eb9f,s");
    }

    #[test]
    fn what_is_no_hash() {
        let key = "4b007901b765489abead49d926f721d065a429c1";
        for text in ["", "secret", "-pbkdf2", "-pbkdf2-", "-pbkdf2-xx,salt,1", "-pbkdf2-4b,salt,1", "-pbkdf2:sha512-"] {
            assert_eq!(PasswordHash::parse(text), Err(InvalidHash), "{text}");
        }
        let with = |rest: &str| PasswordHash::parse(&format!("-pbkdf2-{key}{rest}"));
        for rest in
            [",s,0", ",s,2000001", ",s,x", ",s,+1", ",s,", ",s", "", ",s,1,", "0,s,1", "\u{e9},s,1", ",s,t,1", ",1"]
        {
            assert_eq!(with(rest), Err(InvalidHash), "{rest}");
        }
        for (from, to) in [("4b", ""), ("4b", "+b"), ("4b", "xb")] {
            let text = format!("-pbkdf2-{},s,1", key.replace(from, to));
            assert_eq!(PasswordHash::parse(&text), Err(InvalidHash), "{text}");
        }
        for rest in [",s,1", ",,1", ",s,2000000", ",\u{e9} s,1"] {
            assert!(with(rest).is_ok(), "{rest}");
        }
        for text in [format!("-hashed-{key}"), format!("-hashed-{key},s,1"), format!("-hashed-{key}0,s")] {
            assert_eq!(PasswordHash::parse(&text), Err(InvalidHash), "{text}");
        }
        for prf in ["sha1", "sha256", "md5", ""] {
            let text = format!("-pbkdf2:{prf}-{key},s,1");
            assert_eq!(PasswordHash::parse(&text), Err(InvalidHash), "{text}");
        }
    }

    proptest! {
        #[test]
        fn texts_are_read_as_they_are_written(
            prf in prop::sample::select(Prf::ALL.to_vec()),
            is_simple: bool,
            byte: u8,
            salt in "[^,]{0,20}",
            iterations in 1..=1_000_000_u32,
        ) {
            let scheme = if is_simple { HashScheme::Simple } else { HashScheme::Pbkdf2(prf, iterations) };
            let hash = PasswordHash { scheme, digits: format!("{byte:02x}").repeat(scheme.digits() / 2), salt };
            prop_assert_eq!(PasswordHash::parse(&hash.to_string()), Ok(hash));
        }

        #[test]
        fn no_text_panics(text in "(-pbkdf2(:sha(256)?)?-|-hashed-)?[0-9a-f]{0,44}\\PC{0,20}(,[0-9]{0,10})?") {
            let _ = PasswordHash::parse(&text);
        }
    }
}
