//! Changes of a user document before it is written: the password becomes a hash.

use std::borrow::Cow;

use flatbed_flatten::json::Value;

use super::Actor;
use crate::erlang::term;
use crate::error::AuthError;
use crate::hex::hex;
use crate::password::{ITERATIONS, PasswordHash, SALT_BYTES};

type Members<'a> = Vec<(Cow<'a, str>, Value<'a>)>;

/// The document to write.
#[derive(Debug, Clone, PartialEq)]
pub enum PreparedDocument<'a> {
    /// The document as it was sent, without a password.
    AsIs(Value<'a>),
    /// A document whose password must be hashed first, which takes some tenths of a second.
    Hash(UnhashedDocument<'a>),
}

/// A document with its password.
#[derive(Clone, PartialEq)]
pub struct UnhashedDocument<'a> {
    password: String,
    salt: String,
    members: Members<'a>,
}

impl std::fmt::Debug for UnhashedDocument<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UnhashedDocument").finish_non_exhaustive()
    }
}

impl<'a> UnhashedDocument<'a> {
    /// The password and the salt, for a caller that hashes them itself and calls [`UnhashedDocument::with`].
    pub fn to_hash(&self) -> (&str, &str) {
        (&self.password, &self.salt)
    }

    /// Hashes the password and returns the body to write. Takes as long as a check.
    pub fn hash(self) -> Value<'a> {
        self.hash_with(ITERATIONS)
    }

    fn hash_with(self, iterations: u32) -> Value<'a> {
        let hash = PasswordHash::salted(&self.password, &self.salt, iterations);
        self.with(&hash)
    }

    /// Returns the body to write, with the hash of [`UnhashedDocument::to_hash`].
    pub fn with(self, hash: &PasswordHash) -> Value<'a> {
        Value::Object(hash.put_into(self.members))
    }
}

/// Prepares a document of `_users` for a write; `body` has no special members. `random` becomes the salt of a new
/// password, unless an administrator writes a document with `"preserve_salt": true` and a salt, as a rehash does.
///
/// # Errors
/// 404 for another user's document; an anonymous actor may write any document here, and [`super::validate()`] judges
/// it. 403 for a password or a salt that is no text.
pub fn before_update<'a>(
    id: &str,
    body: Value<'a>,
    actor: &Actor<'_>,
    random: &[u8; SALT_BYTES],
) -> Result<PreparedDocument<'a>, AuthError> {
    if !actor.is_admin && actor.name.is_some() && !actor.owns(id) {
        return Err(AuthError::not_found());
    }
    let password = match body.get("password") {
        None | Some(Value::Null) => return Ok(PreparedDocument::AsIs(body)),
        Some(Value::String(password)) => password.clone().into_owned(),
        Some(other) => return Err(AuthError::forbidden(format!("Password value of '{}' is invalid.", term(other)))),
    };
    // Sessions stay valid with the salt. A user's new password must end them.
    let keeps = actor.is_admin && body.get("preserve_salt") == Some(&Value::Bool(true));
    let kept = body.get("salt").filter(|_| keeps);
    let salt = match kept {
        None => hex(random),
        Some(Value::String(salt)) => salt.clone().into_owned(),
        Some(other) => return Err(AuthError::forbidden(format!("Salt value of '{}' is invalid.", term(other)))),
    };
    let Value::Object(members) = body else { return Ok(PreparedDocument::AsIs(body)) };
    Ok(PreparedDocument::Hash(UnhashedDocument { password, salt, members }))
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{Limits, parse, to_string};

    use super::*;

    const ADMIN: Actor<'static> = Actor { name: Some("root"), is_server_admin: true, is_admin: true };
    const ID: &str = "org.couchdb.user:anna";

    fn prepare<'a>(text: &'a str, actor: &Actor<'_>, id: &str) -> Result<PreparedDocument<'a>, AuthError> {
        before_update(id, parse(text.as_bytes(), &Limits::default()).unwrap(), actor, &[0xab; 16])
    }

    fn hashed(text: &str) -> Value<'static> {
        match prepare(text, &ADMIN, ID).unwrap() {
            PreparedDocument::Hash(unhashed) => unhashed.hash_with(3).into_owned(),
            PreparedDocument::AsIs(body) => panic!("{body:?}"),
        }
    }

    #[test]
    fn a_password_becomes_a_hash() {
        let text = r#"{"name":"anna","password":"secret","salt":"s","roles":["r"],"type":"user","email":"a@x"}"#;
        let found = hashed(text);
        let hash = PasswordHash::of_document(&found).unwrap().unwrap();
        assert!(hash.verify("secret") && !hash.verify("s"));
        assert_eq!(hash.salt(), "ab".repeat(16));
        let Value::Object(members) = &found else { panic!() };
        let names: Vec<&str> = members.iter().map(|(name, _)| &**name).collect();
        // As recorded.
        let expected = "password_scheme pbkdf2_prf salt iterations derived_key name roles type email";
        assert_eq!(names.join(" "), expected);
        let PreparedDocument::Hash(unhashed) = prepare(text, &ADMIN, ID).unwrap() else { panic!() };
        assert_eq!(unhashed.to_hash(), ("secret", "ab".repeat(16).as_str()));
        assert!(!format!("{unhashed:?}").contains("secret"));
        let new = PasswordHash::new("secret", &[0xab; 16]);
        assert_eq!(unhashed.clone().with(&new), unhashed.hash());
    }

    #[test]
    fn an_empty_password_is_one() {
        let hash = PasswordHash::of_document(&hashed(r#"{"password":""}"#)).unwrap().unwrap();
        assert!(hash.verify(""));
    }

    #[test]
    fn a_salt_is_kept_where_the_document_asks_for_it() {
        let salt = |text: &str| {
            let found = hashed(text);
            assert_eq!(found.get("preserve_salt"), None);
            found.get("salt").and_then(Value::as_str).unwrap().to_owned()
        };
        assert_eq!(salt(r#"{"password":"p","salt":"s","preserve_salt":true}"#), "s");
        assert_eq!(salt(r#"{"password":"p","preserve_salt":true}"#), "ab".repeat(16));
        // Users who write their own documents end their sessions.
        let anna = Actor { name: Some("anna"), is_server_admin: false, is_admin: false };
        let own = prepare(r#"{"password":"p","salt":"s","preserve_salt":true}"#, &anna, ID).unwrap();
        let PreparedDocument::Hash(unhashed) = own else { panic!() };
        assert_eq!(unhashed.to_hash().1, "ab".repeat(16));
        for not in ["false", "null", "1", "\"true\""] {
            assert_eq!(salt(&format!(r#"{{"password":"p","salt":"s","preserve_salt":{not}}}"#)), "ab".repeat(16));
        }
    }

    #[test]
    fn without_a_password_nothing_changes() {
        for text in [r#"{"a":1,"preserve_salt":true,"salt":5}"#, r#"{"password":null,"derived_key":"x"}"#, "{}"] {
            let PreparedDocument::AsIs(body) = prepare(text, &ADMIN, ID).unwrap() else { panic!("{text}") };
            assert_eq!(to_string(&body), text);
        }
    }

    #[test]
    fn what_is_no_password() {
        for (text, reason) in [
            (r#"{"password":5}"#, "Password value of '5' is invalid."),
            (r#"{"password":false}"#, "Password value of 'false' is invalid."),
            (r#"{"password":["x"]}"#, "Password value of '[...]' is invalid."),
            (r#"{"password":"p","salt":5,"preserve_salt":true}"#, "Salt value of '5' is invalid."),
        ] {
            assert_eq!(prepare(text, &ADMIN, ID), Err(AuthError::forbidden(reason)), "{text}");
        }
    }

    #[test]
    fn others_documents_are_not_there() {
        let actor = |name, is_admin| Actor { name, is_server_admin: false, is_admin };
        for (actor, id, is_allowed) in [
            (actor(Some("anna"), false), ID, true),
            (actor(Some("bob"), false), ID, false),
            (actor(Some("anna"), false), "notauser", false),
            (actor(Some("anna"), false), "_design/x", false),
            (actor(None, false), ID, true),
            (actor(None, false), "_design/x", true),
            (actor(Some("bob"), true), ID, true),
        ] {
            let found = prepare("{}", &actor, id);
            assert_eq!(found.is_ok(), is_allowed, "{actor:?} {id}");
            assert!(is_allowed || found == Err(AuthError::not_found()));
        }
    }
}
