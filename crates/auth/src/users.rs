//! The rules of user documents: those of the database `_users`.
//!
//! CouchDB has them in three places, and so are they here: what is done to a document before it is written
//! ([`before_update`]), what its validation function says ([`validate()`]), and who is shown what of it ([`read()`]). The order
//! of a write is that too: first the password, then the validation.

mod account;
mod read;
mod update;
mod validate;

pub use account::Account;
pub use read::{PublicFields, Seen, may_see_designs, read};
pub use update::{Prepared, Unhashed, before_update};
pub use validate::{Write, validate};

use crate::principal::{ADMIN_ROLE, Principal};
use crate::refused::Refused;
use crate::security::{Access, Security};

/// What a user document's id begins with; the name follows.
pub const ID_PREFIX: &str = "org.couchdb.user:";

/// The id of a user's document.
pub fn id_of(name: &str) -> String {
    format!("{ID_PREFIX}{name}")
}

/// The name in the id of a user document; `None` for the id of anything else.
pub fn name_in(id: &str) -> Option<&str> {
    id.strip_prefix(ID_PREFIX)
}

/// Who reads or writes a document of `_users`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Actor<'a> {
    /// Their name; none for an anonymous one.
    pub name: Option<&'a str>,
    /// Whether they are one of the server's administrators.
    pub is_server_admin: bool,
    /// Whether they are one of the server's or of the database's administrators.
    pub is_admin: bool,
}

impl<'a> Actor<'a> {
    /// Of a principal, under the `_security` of `_users`.
    pub fn new(principal: &'a Principal, security: &Security) -> Actor<'a> {
        let is_server_admin = principal.is_admin || principal.has_role(ADMIN_ROLE);
        Actor {
            name: principal.name.as_deref(),
            is_server_admin,
            is_admin: is_server_admin || security.access(principal) == Access::Admin,
        }
    }

    /// Whether the document is their own, by its id.
    fn owns(&self, id: &str) -> bool {
        self.name.is_some() && self.name == name_in(id)
    }
}

/// Whether the `_security` of `_users` may be set: only where the setting `users_db_security_editable` says so, also by
/// administrators. Asked before the new object is looked at.
///
/// # Errors
/// 403, as CouchDB's.
pub fn security_editable(is_editable: bool) -> Result<(), Refused> {
    if is_editable {
        return Ok(());
    }
    Err(Refused::forbidden("You can't edit the security object of the user database."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::principal::SignedIn;

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
        assert_eq!(is(&Principal::user("bob", [], SignedIn::Password)), (Some("bob".into()), false, false));
        assert_eq!(is(&Principal::user("anna", [], SignedIn::Password)), (Some("anna".into()), false, true));
        assert_eq!(is(&Principal::admin("root", SignedIn::Password)), (Some("root".into()), true, true));
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
