//! Principals.

use std::sync::Arc;

/// The role that may do everything.
pub const ADMIN_ROLE: &str = "_admin";

/// The sign-in method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum AuthMethod {
    /// None: a principal without a proof, or anonymous.
    #[default]
    Not,
    /// A name and a password in an `authorization` header.
    Password,
    /// The cookie of a session.
    Cookie,
    /// A JSON Web Token.
    Jwt,
    /// The assertion of a trusted proxy.
    Proxy,
}

impl AuthMethod {
    /// CouchDB's name in `info.authenticated` of `/_session`.
    pub fn handler(self) -> Option<&'static str> {
        match self {
            AuthMethod::Not => None,
            AuthMethod::Password => Some("default"),
            AuthMethod::Cookie => Some("cookie"),
            AuthMethod::Jwt => Some("jwt"),
            AuthMethod::Proxy => Some("proxy"),
        }
    }
}

/// The user who makes a request. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The user's name; `None` for an anonymous user.
    pub name: Option<String>,
    /// True if `_admin` is among the roles, which allows everything.
    pub is_admin: bool,
    /// The roles from the user document or the token.
    pub roles: Arc<[String]>,
    /// The sign-in method.
    pub signed_in: AuthMethod,
}

impl Principal {
    /// An anonymous user without roles.
    pub fn anonymous() -> Principal {
        Principal { name: None, is_admin: false, roles: Arc::default(), signed_in: AuthMethod::Not }
    }

    /// An administrator without a name: any client of a server without administrators, and the server itself.
    pub fn nameless_admin() -> Principal {
        Principal { is_admin: true, roles: [ADMIN_ROLE.to_owned()].into(), ..Principal::anonymous() }
    }

    /// An administrator of the server, without further roles.
    pub fn admin(name: impl Into<String>, signed_in: AuthMethod) -> Principal {
        Principal::user(name, [ADMIN_ROLE.to_owned()], signed_in)
    }

    /// A user with these roles; an administrator, if `_admin` is one of them.
    pub fn user(name: impl Into<String>, roles: impl Into<Arc<[String]>>, signed_in: AuthMethod) -> Principal {
        let roles = roles.into();
        let is_admin = roles.iter().any(|role| role == ADMIN_ROLE);
        Principal { name: Some(name.into()), is_admin, roles, signed_in }
    }

    /// True if the principal has this role.
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
        let admin = Principal::admin("root", AuthMethod::Cookie);
        assert_eq!((admin.name.as_deref(), admin.is_admin), (Some("root"), true));
        assert_eq!((&*admin.roles, admin.signed_in), (&["_admin".to_owned()][..], AuthMethod::Cookie));
        let anna = Principal::user("anna", ["admin".to_owned(), "_admins".to_owned()], AuthMethod::Jwt);
        assert_eq!((anna.name.as_deref(), anna.is_admin, anna.signed_in), (Some("anna"), false, AuthMethod::Jwt));
        assert!(Principal::user("a", ["x".to_owned(), "_admin".to_owned()], AuthMethod::Proxy).is_admin);
    }

    #[test]
    fn handlers_have_couchdbs_names() {
        let all = [AuthMethod::Not, AuthMethod::Password, AuthMethod::Cookie, AuthMethod::Jwt, AuthMethod::Proxy];
        let names = all.map(AuthMethod::handler);
        assert_eq!(names, [None, Some("default"), Some("cookie"), Some("jwt"), Some("proxy")]);
        assert_eq!(AuthMethod::default(), AuthMethod::Not);
    }
}
