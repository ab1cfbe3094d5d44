//! Who makes a request.

use std::sync::Arc;

/// The role of those who may do everything.
pub const ADMIN_ROLE: &str = "_admin";

/// How somebody has shown who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SignedIn {
    /// Not at all: a name and a role that nobody had to prove, or none.
    #[default]
    Not,
    /// A name and a password in an `authorization` header.
    Password,
    /// The cookie of a session.
    Cookie,
    /// A JSON Web Token.
    Jwt,
    /// A proxy that is trusted has said so.
    Proxy,
}

impl SignedIn {
    /// What CouchDB calls it in `info.authenticated` of `/_session`.
    pub fn handler(self) -> Option<&'static str> {
        match self {
            SignedIn::Not => None,
            SignedIn::Password => Some("default"),
            SignedIn::Cookie => Some("cookie"),
            SignedIn::Jwt => Some("jwt"),
            SignedIn::Proxy => Some("proxy"),
        }
    }
}

/// Who makes a request. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The user's name; none for an anonymous one.
    pub name: Option<String>,
    /// Whether all is allowed: whether `_admin` is among the roles.
    pub is_admin: bool,
    /// The user's roles, as their user document or their token has them.
    pub roles: Arc<[String]>,
    /// How they have shown who they are.
    pub signed_in: SignedIn,
}

impl Principal {
    /// Nobody in particular, without any role.
    pub fn anonymous() -> Principal {
        Principal { name: None, is_admin: false, roles: Arc::default(), signed_in: SignedIn::Not }
    }

    /// Who may do everything and has no name: everyone where no administrator is set, and the server itself.
    pub fn nameless_admin() -> Principal {
        Principal { is_admin: true, roles: [ADMIN_ROLE.to_owned()].into(), ..Principal::anonymous() }
    }

    /// One of the server's administrators, without further roles.
    pub fn admin(name: impl Into<String>, signed_in: SignedIn) -> Principal {
        Principal::user(name, [ADMIN_ROLE.to_owned()], signed_in)
    }

    /// A user with these roles; with `_admin` among them, an administrator.
    pub fn user(name: impl Into<String>, roles: impl Into<Arc<[String]>>, signed_in: SignedIn) -> Principal {
        let roles = roles.into();
        let is_admin = roles.iter().any(|role| role == ADMIN_ROLE);
        Principal { name: Some(name.into()), is_admin, roles, signed_in }
    }

    /// Whether they have this role.
    pub fn has_role(&self, role: &str) -> bool {
        self.roles.iter().any(|found| found == role)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn administrators_are_those_with_the_role() {
        let anonymous = Principal::anonymous();
        assert_eq!((anonymous.name.as_deref(), anonymous.is_admin, anonymous.roles.len()), (None, false, 0));
        let nameless = Principal::nameless_admin();
        assert_eq!((nameless.name.as_deref(), nameless.is_admin), (None, true));
        assert!(nameless.has_role("_admin") && !nameless.has_role("admin"));
        let admin = Principal::admin("root", SignedIn::Cookie);
        assert_eq!((admin.name.as_deref(), admin.is_admin), (Some("root"), true));
        assert_eq!((&*admin.roles, admin.signed_in), (&["_admin".to_owned()][..], SignedIn::Cookie));
        let anna = Principal::user("anna", ["admin".to_owned(), "_admins".to_owned()], SignedIn::Jwt);
        assert_eq!((anna.name.as_deref(), anna.is_admin, anna.signed_in), (Some("anna"), false, SignedIn::Jwt));
        assert!(Principal::user("a", ["x".to_owned(), "_admin".to_owned()], SignedIn::Proxy).is_admin);
    }

    #[test]
    fn handlers_have_couchdbs_names() {
        let all = [SignedIn::Not, SignedIn::Password, SignedIn::Cookie, SignedIn::Jwt, SignedIn::Proxy];
        let names = all.map(SignedIn::handler);
        assert_eq!(names, [None, Some("default"), Some("cookie"), Some("jwt"), Some("proxy")]);
        assert_eq!(SignedIn::default(), SignedIn::Not);
    }
}
