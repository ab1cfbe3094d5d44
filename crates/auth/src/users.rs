//! The rules of user documents, the documents of `_users`.
//!
//! As in CouchDB there are three: the change of a document before it is written ([`before_update`]), its validation
//! ([`validate()`]), and its visibility ([`read()`]). A write hashes the password first and validates then.

mod account;
mod read;
mod update;
mod validate;

pub use account::Account;
pub use read::{PublicFields, VisibleDocument, may_see_designs, read};
pub use update::{PreparedDocument, UnhashedDocument, before_update};
pub use validate::{Write, validate};

use crate::error::AuthError;
use crate::principal::{ADMIN_ROLE, Principal};
use crate::security::{Access, Security};

/// The prefix of a user document's id; the name follows.
pub const ID_PREFIX: &str = "org.couchdb.user:";

/// Returns the id of a user's document.
pub fn id_of(name: &str) -> String {
    format!("{ID_PREFIX}{name}")
}

/// Returns the name in the id of a user document; `None` for other ids.
pub fn name_in(id: &str) -> Option<&str> {
    id.strip_prefix(ID_PREFIX)
}

/// A reader or writer of documents of `_users`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Actor<'a> {
    /// The name; `None` for an anonymous actor.
    pub name: Option<&'a str>,
    /// True for an administrator of the server.
    pub is_server_admin: bool,
    /// True for an administrator of the server or of the database.
    pub is_admin: bool,
}

impl<'a> Actor<'a> {
    /// The actor of a principal, under the `_security` of `_users`.
    pub fn new(principal: &'a Principal, security: &Security) -> Actor<'a> {
        let is_server_admin = principal.is_admin || principal.has_role(ADMIN_ROLE);
        Actor {
            name: principal.name.as_deref(),
            is_server_admin,
            is_admin: is_server_admin || security.access(principal) == Access::Admin,
        }
    }

    fn owns(&self, id: &str) -> bool {
        self.name.is_some() && self.name == name_in(id)
    }
}

/// Checks whether the `_security` of `_users` may be set, before the new object is parsed. It may only with the
/// setting `users_db_security_editable`, even by administrators.
///
/// # Errors
/// CouchDB's 403.
pub fn security_editable(is_editable: bool) -> Result<(), AuthError> {
    if is_editable {
        return Ok(());
    }
    Err(AuthError::forbidden("You can't edit the security object of the user database."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::principal::AuthMethod;

    #[test]
    fn names_stand_in_ids() {
        assert_eq!(id_of("anna"), "org.couchdb.user:anna");
        assert_eq!(name_in("org.couchdb.user:anna"), Some("anna"));
        assert_eq!((name_in("org.couchdb.user:"), name_in("anna"), name_in("_design/_auth")), (Some(""), None, None));
    }

    #[test]
    fn actors_are_judged_by_roles_and_security() {
        let security = Security::parse_text(br#"{"admins":{"names":["anna"]}}"#).unwrap();
        let is = |principal: &Principal| {
            let actor = Actor::new(principal, &security);
            (actor.name.map(str::to_owned), actor.is_server_admin, actor.is_admin)
        };
        assert_eq!(is(&Principal::anonymous()), (None, false, false));
        assert_eq!(is(&Principal::user("bob", [], AuthMethod::Password)), (Some("bob".into()), false, false));
        assert_eq!(is(&Principal::user("anna", [], AuthMethod::Password)), (Some("anna".into()), false, true));
        assert_eq!(is(&Principal::admin("root", AuthMethod::Password)), (Some("root".into()), true, true));
        assert_eq!(is(&Principal::nameless_admin()), (None, true, true));
    }

    #[test]
    fn own_documents_are_those_of_the_name() {
        let actor = |name| Actor { name, is_server_admin: false, is_admin: false };
        assert!(actor(Some("anna")).owns("org.couchdb.user:anna"));
        assert!(!actor(Some("anna")).owns("org.couchdb.user:bob") && !actor(Some("anna")).owns("anna"));
        assert!(!actor(None).owns("org.couchdb.user:") && !actor(None).owns("_design/x"));
    }

    #[test]
    fn the_security_of_users_is_closed_by_default() {
        assert_eq!(security_editable(true), Ok(()));
        let refused = security_editable(false).unwrap_err();
        assert_eq!(refused.to_string(), "forbidden: You can't edit the security object of the user database.");
    }
}
