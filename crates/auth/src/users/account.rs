//! Accounts: a user document, a configured administrator, or both.

use std::sync::Arc;

use flatbed_flatten::json::Value;

use super::validate::METRICS_ROLE;
use crate::error::AuthError;
use crate::password::PasswordHash;
use crate::principal::{ADMIN_ROLE, AuthMethod, Principal};

/// An account with which a user can sign in. Cheap to clone, but for the hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    name: String,
    roles: Arc<[String]>,
    hash: Option<PasswordHash>,
    /// True if the password alone does not suffice.
    has_totp: bool,
}

impl Account {
    /// Reads the account of a user document from its body without special members. Roles that begin with `_` are
    /// ignored, except for `_metrics`: no document may have them, and one that got there by other means makes no
    /// administrator.
    ///
    /// # Errors
    /// CouchDB's 401 if the document has conflicts; 403 as [`PasswordHash::of_document`].
    pub fn of_document(name: &str, body: &Value<'_>, has_conflicts: bool) -> Result<Account, AuthError> {
        if has_conflicts {
            return Err(AuthError::unauthorized(
                "User document conflicts must be resolved before the document is used for authentication purposes.",
            ));
        }
        let roles = match body.get("roles") {
            Some(Value::Array(roles)) => roles.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let roles = roles.into_iter().filter(|role| !role.starts_with('_') || *role == METRICS_ROLE);
        Ok(Account {
            name: name.to_owned(),
            roles: roles.map(str::to_owned).collect(),
            hash: PasswordHash::of_document(body)?,
            has_totp: body.get("totp").is_some(),
        })
    }

    /// The account of a configured administrator. A readable user document of the same name adds its roles; the
    /// password and the salt of sessions are the configuration's.
    pub fn of_admin(name: &str, hash: PasswordHash, document: Option<&Account>) -> Account {
        let further = document.into_iter().flat_map(|account| account.roles.iter().cloned());
        Account {
            name: name.to_owned(),
            roles: std::iter::once(ADMIN_ROLE.to_owned()).chain(further).collect(),
            hash: Some(hash),
            has_totp: false,
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The roles.
    pub fn roles(&self) -> &Arc<[String]> {
        &self.roles
    }

    /// True if some password could be right.
    pub fn may_sign_in(&self) -> bool {
        !self.has_totp && self.hash.is_some()
    }

    /// True if a session of this name can begin or continue: some password could be right, and there is a salt.
    /// Without a salt a session would be signed with the secret alone, as a proxy's assertion is.
    pub fn may_have_sessions(&self) -> bool {
        self.may_sign_in() && !self.salt().is_empty()
    }

    /// The hash that a password is checked against. If no password can be right (there is none, or the document
    /// requires a second factor, `totp`, which is not supported), it is the hash of nothing, which costs as much and
    /// fails.
    pub fn hash(&self) -> PasswordHash {
        self.hash.clone().filter(|_| !self.has_totp).unwrap_or_else(PasswordHash::of_nothing)
    }

    /// The salt that signs sessions; empty without a hash. Callers that verify a session check
    /// [`Account::may_have_sessions`] first.
    pub fn salt(&self) -> &str {
        self.hash.as_ref().map_or("", PasswordHash::salt)
    }

    /// The principal after a sign-in.
    pub fn principal(&self, signed_in: AuthMethod) -> Principal {
        Principal::user(self.name.clone(), self.roles.clone(), signed_in)
    }
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{Limits, parse};

    use super::*;
    use crate::error::AuthErrorKind;

    const SHA: &str = r#""password_sha":"04d13fd0aa6f0197cf2c999019a607c36c81eb9f","salt":"s""#;

    fn account(rest: &str) -> Result<Account, AuthError> {
        let text = format!("{{{SHA}{rest}}}");
        Account::of_document("anna", &parse(text.as_bytes(), &Limits::default()).unwrap(), false)
    }

    #[test]
    fn documents_are_accounts() {
        let found = account(r#","roles":["r",5,"_admin","_metrics","_x"]"#).unwrap();
        assert_eq!((found.name(), found.salt()), ("anna", "s"));
        assert!(found.hash().verify("test"));
        let principal = found.principal(AuthMethod::Cookie);
        assert_eq!((principal.name.as_deref(), principal.is_admin), (Some("anna"), false));
        assert_eq!((principal.roles.join("|").as_str(), principal.signed_in), ("r|_metrics", AuthMethod::Cookie));
        assert!(account(r#","roles":"r""#).unwrap().roles.is_empty());
        assert!(account("").unwrap().roles.is_empty());
    }

    #[test]
    fn without_a_hash_no_password_is_right() {
        let none = Account::of_document("anna", &Value::Object(Vec::new()), false).unwrap();
        assert_eq!((none.hash(), none.salt()), (PasswordHash::of_nothing(), ""));
        assert!(!none.may_have_sessions() && account("").unwrap().may_have_sessions());
        let unsalted = account(r#","salt":"""#).unwrap();
        assert!(!unsalted.may_have_sessions() && unsalted.salt().is_empty());
        let second = account(r#","totp":{"key":"x"}"#).unwrap();
        assert!(!second.may_have_sessions() && !second.may_sign_in() && unsalted.may_sign_in());
        assert_eq!((second.hash(), second.salt()), (PasswordHash::of_nothing(), "s"));
    }

    #[test]
    fn conflicts_are_solved_first() {
        let refused = Account::of_document("anna", &Value::Null, true).unwrap_err();
        assert_eq!(refused.kind, AuthErrorKind::Unauthorized);
        assert_eq!(
            refused.reason,
            "User document conflicts must be resolved before the document is used for authentication purposes."
        );
        let refused = account(r#","password_scheme":"pbkdf2","pbkdf2_prf":"x""#).unwrap_err();
        assert_eq!(refused, AuthError::forbidden("PRF is invalid"));
    }

    #[test]
    fn administrators_have_their_own_password() {
        let hash = PasswordHash::with_iterations("root", &[1; 16], 2);
        let document = account(r#","roles":["r"],"totp":{}"#).unwrap();
        let alone = Account::of_admin("anna", hash.clone(), None);
        let both = Account::of_admin("anna", hash.clone(), Some(&document));
        assert_eq!(
            (alone.principal(AuthMethod::Password), both.hash()),
            (Principal::admin("anna", AuthMethod::Password), hash.clone())
        );
        assert_eq!((&*both.roles, both.salt()), (&["_admin".to_owned(), "r".to_owned()][..], hash.salt()));
        assert!(both.principal(AuthMethod::Password).is_admin);
    }
}
