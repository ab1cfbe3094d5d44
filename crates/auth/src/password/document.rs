//! Hashes in user documents.

use std::borrow::Cow;

use flatbed_flatten::json::Value;

use super::{HashScheme, PasswordHash, Prf, SALT_BYTES_MAX};
use crate::error::AuthError;

const ITERATIONS_DEFAULT: u32 = 10_000;

/// The members that belong to a password in any scheme, and are replaced with it.
pub(crate) const PASSWORD_MEMBERS: [&str; 8] =
    ["derived_key", "iterations", "password", "password_scheme", "password_sha", "preserve_salt", "pbkdf2_prf", "salt"];

impl PasswordHash {
    /// Reads the hash of a user document's body by CouchDB's rules: the defaults are `simple` for `password_scheme`,
    /// `sha` for `pbkdf2_prf`, 10,000 for `iterations`, and an empty `salt`. `None`: no password is right, since
    /// there is no hash, or one that no password derives, or its salt is longer than 1,024 bytes.
    ///
    /// # Errors
    /// CouchDB's, for too few iterations, for more than [`Prf::iterations_max`], and for an unknown PRF.
    pub fn of_document(body: &Value<'_>) -> Result<Option<PasswordHash>, AuthError> {
        let text = |name: &str, default: &'static str| body.get(name).map_or(Some(default), Value::as_str);
        let (Some(scheme), Some(salt)) = (text("password_scheme", "simple"), text("salt", "")) else {
            return Ok(None);
        };
        if salt.len() > SALT_BYTES_MAX {
            return Ok(None);
        }
        let (scheme, digits) = match scheme {
            "simple" => (HashScheme::Simple, "password_sha"),
            "pbkdf2" | "simple+pbkdf2" => {
                let prf = text("pbkdf2_prf", "sha").and_then(Prf::from_name);
                let prf = prf.ok_or_else(|| AuthError::forbidden("PRF is invalid"))?;
                let Some(iterations) = iterations(body.get("iterations"), prf.iterations_max())? else {
                    return Ok(None);
                };
                let made = if scheme == "pbkdf2" { HashScheme::Pbkdf2 } else { HashScheme::SimplePbkdf2 };
                (made(prf, iterations), "derived_key")
            }
            _ => return Ok(None),
        };
        let digits = body.get(digits).and_then(Value::as_str).filter(|digits| digits.len() == scheme.digits());
        Ok(digits.map(|digits| PasswordHash { scheme, digits: digits.to_owned(), salt: salt.to_owned() }))
    }

    /// The hash as members of a user document, in CouchDB's order, on which the document's revision depends.
    pub fn members(&self) -> Vec<(&'static str, Value<'static>)> {
        let text = |text: &str| Value::String(Cow::Owned(text.to_owned()));
        let simple = |scheme: &str| ("password_scheme", text(scheme));
        let salt = ("salt", text(&self.salt));
        let iterated = |scheme, prf: Prf, iterations: u32| {
            vec![
                simple(scheme),
                ("pbkdf2_prf", text(prf.name())),
                salt.clone(),
                ("iterations", Value::Number(Cow::Owned(iterations.to_string()))),
                ("derived_key", text(&self.digits)),
            ]
        };
        match self.scheme {
            HashScheme::Simple => vec![simple("simple"), salt.clone(), ("password_sha", text(&self.digits))],
            HashScheme::Pbkdf2(prf, iterations) => iterated("pbkdf2", prf, iterations),
            HashScheme::SimplePbkdf2(prf, iterations) => iterated("simple+pbkdf2", prf, iterations),
        }
    }

    /// Replaces the hash in a user document's body. As in CouchDB its members come first and the others keep their
    /// order, so that one password and one salt make one revision at all servers.
    pub fn put_into<'a>(&self, body: Vec<(Cow<'a, str>, Value<'a>)>) -> Vec<(Cow<'a, str>, Value<'a>)> {
        let members = self.members().into_iter().map(|(name, value)| (Cow::Borrowed(name), value));
        members.chain(body.into_iter().filter(|(name, _)| !PASSWORD_MEMBERS.contains(&&**name))).collect()
    }
}

/// Reads a document's iterations; `None` if they are no whole number.
fn iterations(value: Option<&Value<'_>>, most: u32) -> Result<Option<u32>, AuthError> {
    let text = match value {
        None => return Ok(Some(ITERATIONS_DEFAULT)),
        Some(Value::Number(text)) => text,
        Some(_) => return Ok(None),
    };
    let digits = text.strip_prefix('-').unwrap_or(text);
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Ok(None);
    }
    if digits.len() < text.len() || text == "0" {
        return Err(AuthError::forbidden("Iteration count is too low for this server"));
    }
    // A number beyond the type is also beyond the limit.
    match text.parse() {
        Ok(iterations) if iterations <= most => Ok(Some(iterations)),
        _ => Err(AuthError::forbidden("Iteration count is too high for this server")),
    }
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{Limits, parse, to_string};
    use proptest::prelude::*;

    use super::*;
    use crate::error::AuthErrorKind;

    fn of(text: &str) -> Result<Option<PasswordHash>, AuthError> {
        PasswordHash::of_document(&parse(text.as_bytes(), &Limits::default()).unwrap())
    }

    fn scheme(text: &str) -> Option<HashScheme> {
        of(text).unwrap().map(|hash| hash.scheme)
    }

    /// Documents recorded with a CouchDB, all with the password "test".
    #[test]
    fn recorded_documents() {
        for text in [
            r#"{"name":"e","password_scheme":"pbkdf2","iterations":10,"derived_key":"12ed68e47d78f1217f4d71a0a952a37ef0692387","salt":"1112283cf988a34f124200a050d308a1","roles":[]}"#,
            r#"{"password_scheme":"simple","password_sha":"04d13fd0aa6f0197cf2c999019a607c36c81eb9f","salt":"s"}"#,
            r#"{"password_scheme":"pbkdf2","pbkdf2_prf":"sha256","iterations":10,"derived_key":"9c93da09e6ead44f97240a282d306906a0eeee53731879e77f2f1237d86f25b9","salt":"abc"}"#,
        ] {
            let hash = of(text).unwrap().unwrap();
            assert!(hash.verify("test") && !hash.verify("no"), "{text}");
            assert!(hash.needs_rehash());
        }
    }

    #[test]
    fn what_is_left_out_has_couchdbs_defaults() {
        let sha = "0".repeat(40);
        assert_eq!(scheme(&format!(r#"{{"password_sha":"{sha}"}}"#)), Some(HashScheme::Simple));
        let found = of(&format!(r#"{{"password_scheme":"pbkdf2","derived_key":"{sha}"}}"#)).unwrap().unwrap();
        assert_eq!((found.scheme, found.salt()), (HashScheme::Pbkdf2(Prf::Sha1, 10_000), ""));
        let both = format!(r#"{{"password_scheme":"simple+pbkdf2","derived_key":"{sha}","iterations":1}}"#);
        assert_eq!(scheme(&both), Some(HashScheme::SimplePbkdf2(Prf::Sha1, 1)));
    }

    #[test]
    fn without_a_hash_nobody_signs_in() {
        let sha = "0".repeat(40);
        for text in [
            "{}".to_owned(),
            "[]".to_owned(),
            r#"{"password":null}"#.to_owned(),
            r#"{"password_sha":"x","salt":"y"}"#.to_owned(),
            format!(r#"{{"password_sha":"{sha}0"}}"#),
            format!(r#"{{"password_sha":"{sha}","salt":5}}"#),
            format!(r#"{{"password_sha":"{sha}","password_scheme":null}}"#),
            format!(r#"{{"password_sha":"{sha}","password_scheme":"md5"}}"#),
            r#"{"password_sha":5}"#.to_owned(),
            format!(r#"{{"password_scheme":"pbkdf2","password_sha":"{sha}"}}"#),
            format!(r#"{{"password_scheme":"pbkdf2","derived_key":"{sha}","iterations":"10"}}"#),
            format!(r#"{{"password_scheme":"pbkdf2","derived_key":"{sha}","iterations":10.0}}"#),
            format!(r#"{{"password_scheme":"pbkdf2","derived_key":"{sha}","pbkdf2_prf":"sha256"}}"#),
        ] {
            assert_eq!(of(&text), Ok(None), "{text}");
        }
    }

    #[test]
    fn salts_have_bounds() {
        let sha = "0".repeat(40);
        let with = |bytes: usize| of(&format!(r#"{{"password_sha":"{sha}","salt":"{}"}}"#, "s".repeat(bytes)));
        assert!(matches!((with(1_024), with(1_025)), (Ok(Some(_)), Ok(None))));
    }

    #[test]
    fn iterations_have_bounds() {
        let sha = "0".repeat(40);
        let with = |n: &str| of(&format!(r#"{{"password_scheme":"pbkdf2","derived_key":"{sha}","iterations":{n}}}"#));
        for n in ["1", "600000", "2000000"] {
            assert_eq!(with(n).unwrap().unwrap().scheme, HashScheme::Pbkdf2(Prf::Sha1, n.parse().unwrap()));
        }
        for (n, word) in
            [("0", "low"), ("-0", "low"), ("-5", "low"), ("2000001", "high"), ("99999999999999999999", "high")]
        {
            let refused = with(n).unwrap_err();
            assert_eq!(refused.kind, AuthErrorKind::Forbidden);
            assert_eq!(refused.reason, format!("Iteration count is too {word} for this server"), "{n}");
        }
        let long = "0".repeat(128);
        let sha512 = |n: u32| {
            of(&format!(
                r#"{{"password_scheme":"pbkdf2","pbkdf2_prf":"sha512","derived_key":"{long}","iterations":{n}}}"#
            ))
        };
        assert!(sha512(1_000_000).unwrap().is_some() && sha512(1_000_001).is_err());
        for prf in [r#""md5""#, "5", r#""SHA""#] {
            let text = format!(r#"{{"password_scheme":"pbkdf2","derived_key":"{sha}","pbkdf2_prf":{prf}}}"#);
            assert_eq!(of(&text), Err(AuthError::forbidden("PRF is invalid")), "{prf}");
        }
    }

    fn put(hash: &PasswordHash, text: &str) -> String {
        let Value::Object(members) = parse(text.as_bytes(), &Limits::default()).unwrap() else { panic!("{text}") };
        to_string(&Value::Object(hash.put_into(members)))
    }

    #[test]
    fn a_hash_stands_before_the_other_members() {
        let old = r#"{"name":"n","salt":"old","password":"p","email":"e","iterations":1,"derived_key":"k","preserve_salt":true,"password_sha":"x","pbkdf2_prf":"sha","password_scheme":"simple","roles":[]}"#;
        let scheme = HashScheme::Pbkdf2(Prf::Sha256, 7);
        let hash = PasswordHash { scheme, digits: "ab".repeat(32), salt: "s".to_owned() };
        let key = "ab".repeat(32);
        assert_eq!(
            put(&hash, old),
            format!(
                r#"{{"password_scheme":"pbkdf2","pbkdf2_prf":"sha256","salt":"s","iterations":7,"derived_key":"{key}","name":"n","email":"e","roles":[]}}"#
            )
        );
        let simple = PasswordHash { scheme: HashScheme::Simple, digits: "00".repeat(20), salt: "s".to_owned() };
        let sha = "00".repeat(20);
        assert_eq!(
            put(&simple, r#"{"a":1}"#),
            format!(r#"{{"password_scheme":"simple","salt":"s","password_sha":"{sha}","a":1}}"#)
        );
    }

    proptest! {
        #[test]
        fn documents_are_read_as_they_are_written(
            prf in prop::sample::select(Prf::ALL.to_vec()),
            kind in 0..3,
            byte: u8,
            salt in "\\PC{0,20}",
            iterations in 1..=1_000_000_u32,
        ) {
            let scheme = match kind {
                0 => HashScheme::Simple,
                1 => HashScheme::Pbkdf2(prf, iterations),
                _ => HashScheme::SimplePbkdf2(prf, iterations),
            };
            let hash = PasswordHash { scheme, digits: format!("{byte:02x}").repeat(scheme.digits() / 2), salt };
            let text = put(&hash, "{}");
            prop_assert_eq!(of(&text), Ok(Some(hash)));
        }
    }
}
