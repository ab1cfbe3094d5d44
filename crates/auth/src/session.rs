//! Sessions: the cookie `AuthSession`, in CouchDB's form.
//!
//! A cookie holds a name, the time of its creation, and an HMAC of both with the server's secret and the salt of the
//! user's password. A server with the secret can check it, and a new password ends all earlier sessions.

mod cookie;
mod form;
mod signing;

pub use cookie::{Attributes, SameSite, cookie_in};
pub use form::{of_form, of_json};
pub use signing::Secret;

use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use crate::error::AuthError;
pub(crate) use signing::MacAlgorithm;

/// The longest cookie, in bytes; longer ones are malformed.
const BYTES_MAX: usize = 4_096;

/// Without padding. Like CouchDB it ignores bits after the last byte.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::RequireNone)
        .with_decode_allow_trailing_bits(true),
);

/// Returns the cookie's value for a session that begins now: base64url of `NAME:TIME:HMAC`.
///
/// `salt` is that of the user's password hash, `now` is in seconds since 1970. A name with a colon is parsed as
/// another name or as none, so its sessions never verify.
pub fn issue(name: &str, salt: &str, secret: &Secret, now: u64) -> String {
    let mut text = format!("{name}:{now:X}").into_bytes();
    let mac = secret.sign(MacAlgorithm::NEW, salt, &text);
    text.push(b':');
    text.extend_from_slice(&mac);
    BASE64.encode(text)
}

/// The claims of a cookie.
#[derive(Clone, PartialEq, Eq)]
pub struct Session {
    name: String,
    /// The signed text: `NAME:TIME`.
    signed: Vec<u8>,
    /// When it was created, in seconds since 1970; `None` for an invalid number.
    made: Option<u64>,
    mac: Vec<u8>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("name", &self.name).field("made", &self.made).finish_non_exhaustive()
    }
}

/// A valid session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerifiedSession {
    /// Its end, in seconds since 1970.
    pub ends: u64,
    /// True if the answer must renew the cookie: more than a tenth of its time has passed, or an older secret signed
    /// it.
    pub renew: bool,
}

impl Session {
    /// Parses a cookie's value. `None` is anonymous: an empty value, or a name that no user can have.
    ///
    /// # Errors
    /// 400 for invalid base64url, other than three parts, or more than 4,096 bytes.
    pub fn parse(value: &str) -> Result<Option<Session>, AuthError> {
        if value.is_empty() {
            return Ok(None);
        }
        let malformed = || AuthError::bad_request("Malformed AuthSession cookie. Please clear your cookies.");
        if value.len() > BYTES_MAX {
            return Err(malformed());
        }
        let decoded = BASE64.decode(value).map_err(|_| malformed())?;
        let mut parts = decoded.splitn(3, |byte| *byte == b':');
        let (Some(name), Some(time), Some(mac)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(malformed());
        };
        let Ok(name) = std::str::from_utf8(name) else { return Ok(None) };
        let time_text = std::str::from_utf8(time).ok();
        let made = time_text.and_then(|text| u64::from_str_radix(text, 16).ok());
        let signed = [name.as_bytes(), b":", time].concat();
        Ok(Some(Session { name: name.to_owned(), signed, made, mac: mac.to_vec() }))
    }

    /// The claimed name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True if the session can be valid at `now` by its time. Otherwise no salt or secret makes it valid.
    pub fn is_in_time(&self, now: u64, timeout: u64) -> bool {
        self.made.is_some_and(|made| made.checked_add(timeout).is_some_and(|ends| now < ends))
    }

    /// Verifies the session at `now`, in seconds since 1970, with a lifetime of `timeout` seconds. `salt` is that of
    /// the user's current hash; `secrets` are the current one and earlier ones that are still valid. An invalid
    /// session is anonymous, not an error.
    pub fn verify(&self, salt: &str, secrets: &[Secret], now: u64, timeout: u64) -> Option<VerifiedSession> {
        let ends = self.made?.checked_add(timeout)?;
        if now >= ends {
            return None;
        }
        let at = secrets.iter().position(|secret| {
            MacAlgorithm::ACCEPTED.into_iter().any(|algorithm| secret.verify(algorithm, salt, &self.signed, &self.mac))
        })?;
        // Tenths, so that nothing is rounded.
        let left = u128::from(ends - now) * 10;
        Some(VerifiedSession { ends, renew: at > 0 || left < u128::from(timeout) * 9 })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::error::AuthErrorKind;

    const NOW: u64 = 0x5F00_0000;

    fn secret(text: &str) -> Secret {
        Secret::new(text.as_bytes().to_vec())
    }

    fn parsed(value: &str) -> Session {
        Session::parse(value).unwrap().unwrap()
    }

    /// Made with Python's `hmac` and `base64`, with the secret "the secret" and the salt "a salt".
    const SHA256: &str = "YW5uYTo1RjAwMDAwMDpbTWr00OIBPhzqmpGS5Lu6yqAT2FGE4r81qJ-720sEzQ";
    const SHA1: &str = "YW5uYTo1RjAwMDAwMDpAzkQhBdJURBlIuuQLs7M-l4wvEA";

    #[test]
    fn cookies_are_couchdbs() {
        assert_eq!(issue("anna", "a salt", &secret("the secret"), NOW), SHA256);
        let decoded = BASE64.decode(SHA256).unwrap();
        assert_eq!((decoded.len(), decoded.get(..14)), (4 + 1 + 8 + 1 + 32, Some(&b"anna:5F000000:"[..])));
        for cookie in [SHA256, SHA1] {
            let session = parsed(cookie);
            assert_eq!((session.name(), session.made), ("anna", Some(NOW)));
            let verified = session.verify("a salt", &[secret("the secret")], NOW, 600);
            assert_eq!(verified, Some(VerifiedSession { ends: NOW + 600, renew: false }));
        }
    }

    #[test]
    fn secret_and_salt_and_name_and_time_are_signed() {
        let cookie = issue("anna", "salt", &secret("secret"), NOW);
        let is_right =
            |session: &Session, salt: &str, key: &str| session.verify(salt, &[secret(key)], NOW, 600).is_some();
        let session = parsed(&cookie);
        assert!(is_right(&session, "salt", "secret"));
        assert!(!is_right(&session, "salt2", "secret") && !is_right(&session, "salt", "secret2"));
        assert_eq!(session.verify("salt", &[], NOW, 600), None);
        let decoded = BASE64.decode(&cookie).unwrap();
        for at in 0..decoded.len() {
            let mut other = decoded.clone();
            other[at] ^= 1;
            let found = Session::parse(&BASE64.encode(other));
            assert!(!matches!(found, Ok(Some(session)) if is_right(&session, "salt", "secret")), "{at}");
        }
        let cut = BASE64.encode(&decoded[..decoded.len() - 1]);
        assert!(!is_right(&parsed(&cut), "salt", "secret"));
        assert!(!is_right(&parsed(&BASE64.encode("anna:5F000000:")), "salt", "secret"));
    }

    #[test]
    fn sessions_end() {
        let session = parsed(&issue("anna", "s", &secret("k"), NOW));
        let at = |now| session.verify("s", &[secret("k")], now, 600).map(|verified| verified.renew);
        assert_eq!((at(NOW + 599), at(NOW + 600), at(NOW + 601)), (Some(true), None, None));
        // A tenth of its time: 60 s.
        assert_eq!((at(NOW), at(NOW + 60), at(NOW + 61)), (Some(false), Some(false), Some(true)));
        // Another server's clock is behind.
        assert_eq!(at(NOW - 5), Some(false));
        assert_eq!(session.verify("s", &[secret("k")], NOW, 0), None);
        let verified = |timeout| session.verify("s", &[secret("k")], NOW + 1, timeout).map(|found| found.renew);
        assert_eq!((verified(9), verified(10), verified(11)), (Some(true), Some(false), Some(false)));
        let last = parsed(&issue("anna", "s", &secret("k"), u64::MAX));
        assert_eq!(last.verify("s", &[secret("k")], NOW, 600), None);
    }

    #[test]
    fn an_older_secret_counts_and_is_replaced() {
        let session = parsed(&issue("anna", "s", &secret("old"), NOW));
        let (old, new) = (secret("old"), secret("new"));
        assert_eq!(
            session.verify("s", &[new.clone(), old], NOW, 600),
            Some(VerifiedSession { ends: NOW + 600, renew: true })
        );
        assert_eq!(session.verify("s", &[new], NOW, 600), None);
    }

    #[test]
    fn malformed_cookies() {
        for cookie in ["nonsense", "!!!", "YWRtaW46NUY6=", "YWRtaW4", "YTpi", "a", "YWRtaW46NUY", "YTpi\u{e9}", " "] {
            let refused = Session::parse(cookie).unwrap_err();
            assert_eq!(refused.kind, AuthErrorKind::BadRequest, "{cookie}");
            assert_eq!(refused.reason, "Malformed AuthSession cookie. Please clear your cookies.");
        }
        assert_eq!(Session::parse(""), Ok(None));
        // "admin:5F:", and a valid cookie with one more character.
        let short = parsed("YWRtaW46NUY6");
        assert_eq!((short.name(), short.made, short.mac.len()), ("admin", Some(0x5f), 0));
        assert_eq!(Session::parse(&BASE64.encode(b"\xff:5F:x")), Ok(None));
        for time in ["", "x", "-5", " 5", "FFFFFFFFFFFFFFFFF", "\u{e9}"] {
            let session = parsed(&BASE64.encode(format!("a:{time}:mac")));
            assert_eq!((session.made, session.verify("", &[secret("k")], NOW, 600)), (None, None), "{time}");
        }
        // A MAC may contain colons.
        assert_eq!(parsed(&BASE64.encode("a:5F:m:a:c")).mac, b"m:a:c");
        let long = BASE64.encode(format!("a:5F:{}", "x".repeat(3_067)));
        assert_eq!(long.len(), 4_096);
        assert!(Session::parse(&long).is_ok());
        assert!(Session::parse(&BASE64.encode(format!("a:5F:{}", "x".repeat(3_068)))).is_err());
    }

    #[test]
    fn what_signs_is_not_shown() {
        let shown = format!("{:?} {:?}", secret("geheim"), parsed(&BASE64.encode("a:5F:geheim")));
        assert!(!shown.contains("geheim") && !shown.contains("103") && shown.contains("\"a\""), "{shown}");
    }

    proptest! {
        #[test]
        fn what_was_issued_is_verified(name in "[^:]{0,20}", salt in "\\PC{0,20}", key in "\\PC{0,20}", made in 0..1u64 << 40, age in 0..600u64) {
            let session = parsed(&issue(&name, &salt, &secret(&key), made));
            prop_assert_eq!(session.name(), name.as_str());
            let verified = session.verify(&salt, &[secret(&key)], made + age, 600);
            prop_assert_eq!(verified, Some(VerifiedSession { ends: made + 600, renew: age > 60 }));
        }

        #[test]
        fn no_value_panics(value in "[A-Za-z0-9_=-]{0,60}") {
            if let Ok(Some(session)) = Session::parse(&value) {
                prop_assert_eq!(session.verify("", &[secret("k")], NOW, u64::MAX), None);
            }
        }
    }
}
