//! The credentials in an `authorization` header.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use sha2::Sha256;

use crate::error::AuthError;

/// A digest that identifies credentials.
pub type Digest = [u8; 32];

/// Returns the digest of an `authorization` header as it was sent.
pub fn digest(authorization: &str) -> Digest {
    sha2::Digest::finalize(<Sha256 as sha2::Digest>::new_with_prefix(authorization.as_bytes())).into()
}

/// A name with a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user's name; may be empty.
    pub name: String,
    /// The password as it was typed.
    pub password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Reads a header as CouchDB does. A header without the exact prefix `Basic `, or without a colon, is anonymous;
    /// so is the name `_` with the password `_`, which makes a browser forget a password.
    ///
    /// # Errors
    /// 400 for invalid base64, which may contain white space; 401 for invalid UTF-8 and control characters, as for
    /// any wrong password.
    pub fn of_header(authorization: &str) -> Result<Option<Credentials>, AuthError> {
        let Some(encoded) = authorization.strip_prefix("Basic ") else { return Ok(None) };
        let encoded: String = encoded.split_ascii_whitespace().collect();
        let decoded = BASE64.decode(encoded);
        let decoded = decoded.map_err(|_| AuthError::bad_request("Authorization header has invalid base64 value"))?;
        if !decoded.contains(&b':') || decoded == b"_:_" {
            return Ok(None);
        }
        let text = String::from_utf8(decoded).map_err(|_| AuthError::wrong_password())?;
        // RFC 7617 allows none in either. HMAC treats a key with trailing NULs as the key without them.
        if text.contains(|character: char| character.is_ascii_control()) {
            return Err(AuthError::wrong_password());
        }
        Ok(text
            .split_once(':')
            .map(|(name, password)| Credentials { name: name.to_owned(), password: password.to_owned() }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encode(text: impl AsRef<[u8]>) -> String {
        format!("Basic {}", BASE64.encode(text))
    }

    #[test]
    fn names_end_at_the_first_colon() {
        for (text, name, password) in
            [("admin:pass:word", "admin", "pass:word"), (":", "", ""), ("\u{e4}:\u{fc}", "\u{e4}", "\u{fc}")]
        {
            let found = Credentials::of_header(&encode(text)).unwrap().unwrap();
            assert_eq!((found.name.as_str(), found.password.as_str()), (name, password));
        }
        // The example of RFC 7617.
        let found = Credentials::of_header("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==").unwrap().unwrap();
        assert_eq!((found.name.as_str(), found.password.as_str()), ("Aladdin", "open sesame"));
    }

    #[test]
    fn headers_as_couchdb_reads_them() {
        let found = |header: &str| match Credentials::of_header(header) {
            Ok(Some(found)) => format!("{}:{}", found.name, found.password),
            Ok(None) => "nobody".to_owned(),
            Err(refused) => refused.to_string(),
        };
        for (header, expected) in [
            ("Basic YWRtaW46cGFzc3dvcmQ=", "admin:password"),
            ("Basic  YWRtaW46 cGFzc3dvcmQ=", "admin:password"),
            ("basic YWRtaW46cGFzc3dvcmQ=", "nobody"),
            ("Basic ", "nobody"),
            ("Basic YWRtaW4=", "nobody"),
            ("Basic Xzpf", "nobody"),
            ("Bearer abc", "nobody"),
            ("Basic", "nobody"),
            ("", "nobody"),
            ("Basic Og==", ":"),
            ("Basic nocolon", "bad_request: Authorization header has invalid base64 value"),
            ("Basic !!!", "bad_request: Authorization header has invalid base64 value"),
        ] {
            assert_eq!(found(header), expected, "{header}");
        }
        assert_eq!(found(&encode("a:b:c")), "a:b:c");
        let wrong = "unauthorized: Name or password is incorrect.";
        for text in [b"a:\xff".as_slice(), b"a:\0", b"a\x7f:", b"\n:", b"a:\x1f"] {
            assert_eq!(found(&encode(text)), wrong, "{text:?}");
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        let shown = format!("{:?}", Credentials { name: "anna".into(), password: "secret".into() });
        assert!(shown.contains("anna") && !shown.contains("secret"), "{shown}");
    }

    #[test]
    fn digests_are_sha_256_of_the_header() {
        // The example of FIPS 180-2.
        let hex: String = digest("abc").iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_found(name in "[^:\\x00-\\x1f\\x7f]{0,20}", password in "[^\\x00-\\x1f\\x7f]{0,20}") {
            let header = encode(format!("{name}:{password}"));
            let found = Credentials::of_header(&header).unwrap();
            // This pair makes a browser forget a password.
            let expected = (name != "_" || password != "_").then_some(Credentials { name, password });
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn no_header_panics(header in "(Basic )?\\PC{0,40}") {
            let _ = Credentials::of_header(&header);
        }
    }
}
