//! Security objects of databases: their members and administrators.

use std::borrow::Cow;
use std::collections::HashSet;

use flatbed_flatten::json::{Limits, Value, parse};

use crate::error::{AuthError, AuthErrorKind};
use crate::principal::{ADMIN_ROLE, Principal};

/// The security object of a database where none was set: access for administrators of the server only.
pub const DEFAULT: &str = r#"{"members":{"roles":["_admin"]},"admins":{"roles":["_admin"]}}"#;

/// A principal's access to a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// None.
    Nobody,
    /// Membership: reads all documents and writes all but design documents.
    Member,
    /// Administration of the server or of this database.
    Admin,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct PrincipalList {
    names: HashSet<String>,
    roles: HashSet<String>,
}

impl PrincipalList {
    fn parse(value: Option<&Value<'_>>) -> Result<PrincipalList, AuthError> {
        match value {
            None => Ok(PrincipalList::default()),
            Some(value @ Value::Object(_)) => Ok(PrincipalList {
                names: strings(value.get("names"), "names must be a JSON list of strings")?,
                roles: strings(value.get("roles"), "roles must be a JSON list of strings")?,
            }),
            Some(_) => Err(AuthError::bad_request("admins or members must be a JSON list of strings")),
        }
    }

    fn is_empty(&self) -> bool {
        self.names.is_empty() && self.roles.is_empty()
    }

    fn has(&self, principal: &Principal) -> bool {
        principal.roles.iter().any(|role| self.roles.contains(role))
            || principal.name.as_ref().is_some_and(|name| self.names.contains(name))
    }
}

fn strings(value: Option<&Value<'_>>, reason: &'static str) -> Result<HashSet<String>, AuthError> {
    let refused = || AuthError::bad_request(reason);
    match value {
        None => Ok(HashSet::new()),
        Some(Value::Array(items)) => {
            items.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(refused)).collect()
        }
        Some(_) => Err(refused()),
    }
}

/// The members and administrators in a security object. Other content is stored with the object and has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Security {
    admins: PrincipalList,
    members: PrincipalList,
}

/// The security of [`DEFAULT`].
impl Default for Security {
    fn default() -> Security {
        let group = || PrincipalList { names: HashSet::new(), roles: [ADMIN_ROLE.to_owned()].into() };
        Security { admins: group(), members: group() }
    }
}

impl Security {
    /// Returns the names of the administrators, sorted; those of the members if no administrator has a name.
    pub fn owner_names(&self) -> Vec<&str> {
        let of = if self.admins.names.is_empty() { &self.members } else { &self.admins };
        let mut names: Vec<&str> = of.names.iter().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// Parses a security object. Without `members`, `readers` is read, the name that CouchDB used earlier. Takes time
    /// and memory in proportion to the object.
    ///
    /// # Errors
    /// 400 for anything but an object, and for `admins`, `members` or their `names` and `roles` of a wrong type;
    /// CouchDB answers 500 `no_majority`.
    pub fn parse(object: &Value<'_>) -> Result<Security, AuthError> {
        if !matches!(object, Value::Object(_)) {
            return Err(AuthError::bad_request("the security object must be a JSON object"));
        }
        let members = object.get("members").or_else(|| object.get("readers"));
        Ok(Security { admins: PrincipalList::parse(object.get("admins"))?, members: PrincipalList::parse(members)? })
    }

    /// Parses the text of a security object.
    ///
    /// # Errors
    /// As [`Security::parse`]; 400 for invalid JSON.
    pub fn parse_text(text: &[u8]) -> Result<Security, AuthError> {
        let object = parse(text, &Limits::default()).map_err(|_| AuthError::bad_request("invalid UTF-8 JSON"))?;
        Security::parse(&object)
    }

    /// Returns a principal's access to the database. Administrators of the server administer it, and if the members
    /// have neither names nor roles, everyone is a member.
    pub fn access(&self, principal: &Principal) -> Access {
        if principal.is_admin || principal.has_role(ADMIN_ROLE) || self.admins.has(principal) {
            Access::Admin
        } else if self.members.is_empty() || self.members.has(principal) {
            Access::Member
        } else {
            Access::Nobody
        }
    }
}

fn for_whom(principal: &Principal) -> AuthErrorKind {
    if principal.name.is_none() { AuthErrorKind::Unauthorized } else { AuthErrorKind::Forbidden }
}

/// The refusal of a non-member: 401 without a name, 403 with one.
pub fn not_a_member(principal: &Principal) -> AuthError {
    let reason: Cow<'static, str> = match principal.name {
        None => "You are not authorized to access this db.".into(),
        Some(_) => "You are not allowed to access this db.".into(),
    };
    AuthError::new(for_whom(principal), reason)
}

/// The refusal to write a design document: 401 without a name, 403 with one.
pub fn not_its_admin(principal: &Principal) -> AuthError {
    AuthError::new(for_whom(principal), "You are not a db or server admin.")
}

/// The refusal of maintenance (`_compact`, `_view_cleanup`): 401.
pub fn not_an_admin() -> AuthError {
    AuthError::unauthorized("You are not a server or db admin.")
}

/// The refusal of server administration: 401.
pub fn not_a_server_admin() -> AuthError {
    AuthError::unauthorized("You are not a server admin.")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::principal::AuthMethod;

    fn access(object: &str, principal: &Principal) -> Access {
        Security::parse_text(object.as_bytes()).unwrap().access(principal)
    }

    fn user(name: &str, roles: &[&str]) -> Principal {
        let roles: Vec<String> = roles.iter().map(|role| (*role).to_owned()).collect();
        Principal::user(name, roles, AuthMethod::Password)
    }

    #[test]
    fn new_databases_are_closed() {
        assert_eq!(Security::parse_text(DEFAULT.as_bytes()), Ok(Security::default()));
        for principal in [Principal::anonymous(), user("anna", &["r"])] {
            assert_eq!(access(DEFAULT, &principal), Access::Nobody);
        }
        for admin in [Principal::nameless_admin(), Principal::admin("root", AuthMethod::Cookie)] {
            assert_eq!(access(DEFAULT, &admin), Access::Admin);
        }
        let flagged = Principal { is_admin: true, ..user("root", &[]) };
        assert_eq!(access(DEFAULT, &flagged), Access::Admin);
        let unflagged = Principal { is_admin: false, ..user("root", &["_admin"]) };
        assert_eq!(access("{}", &unflagged), Access::Admin);
    }

    /// As recorded for an outsider, a member and an administrator.
    #[test]
    fn names_and_roles_decide() {
        let object = r#"{"admins":{"names":[],"roles":["boss"]},"members":{"names":["named"],"roles":["team"]}}"#;
        assert_eq!(access(object, &Principal::anonymous()), Access::Nobody);
        assert_eq!(access(object, &user("out", &["other"])), Access::Nobody);
        assert_eq!(access(object, &user("named", &[])), Access::Member);
        assert_eq!(access(object, &user("mem", &["x", "team"])), Access::Member);
        assert_eq!(access(object, &user("adm", &["boss"])), Access::Admin);
        // Names do not match roles, nor roles names.
        assert_eq!(access(object, &user("boss", &["named"])), Access::Nobody);
        assert_eq!(
            access(r#"{"admins":{"names":["anna"]},"members":{"names":["x"]}}"#, &user("anna", &[])),
            Access::Admin
        );
    }

    #[test]
    fn without_members_all_are() {
        for object in [
            "{}",
            r#"{"admins":{"names":["x"]}}"#,
            r#"{"members":{}}"#,
            r#"{"members":{"names":[],"roles":[]}}"#,
            r#"{"members":{},"readers":{"names":["a"]}}"#,
            r#"{"extra":{"names":["a"]}}"#,
        ] {
            for principal in [Principal::anonymous(), user("anna", &[])] {
                assert_eq!(access(object, &principal), Access::Member, "{object}");
            }
        }
        for object in
            [r#"{"members":{"names":["a"]}}"#, r#"{"members":{"roles":["a"]}}"#, r#"{"readers":{"names":["a"]}}"#]
        {
            assert_eq!(access(object, &Principal::anonymous()), Access::Nobody, "{object}");
        }
        assert_eq!(access(r#"{"readers":{"names":["a"]}}"#, &user("a", &[])), Access::Member);
    }

    #[test]
    fn objects_that_are_refused() {
        let (names, roles) = ("names must be a JSON list of strings", "roles must be a JSON list of strings");
        let groups = "admins or members must be a JSON list of strings";
        for (object, reason) in [
            ("[]", "the security object must be a JSON object"),
            ("\"x\"", "the security object must be a JSON object"),
            ("null", "the security object must be a JSON object"),
            ("{\"admins\":", "invalid UTF-8 JSON"),
            (r#"{"admins":"x"}"#, groups),
            (r#"{"admins":[]}"#, groups),
            (r#"{"admins":null}"#, groups),
            (r#"{"readers":[]}"#, groups),
            (r#"{"members":1}"#, groups),
            (r#"{"admins":{"names":"x"}}"#, names),
            (r#"{"admins":{"names":[1]}}"#, names),
            (r#"{"members":{"names":{"a":1}}}"#, names),
            (r#"{"admins":{"roles":[null]}}"#, roles),
            (r#"{"members":{"roles":["r",2]}}"#, roles),
        ] {
            let refused = Security::parse_text(object.as_bytes()).unwrap_err();
            assert_eq!((refused.kind, &*refused.reason), (AuthErrorKind::BadRequest, reason), "{object}");
        }
        // Ignored members may have any value.
        assert!(Security::parse_text(r#"{"members":{"names":["é"],"other":1},"readers":5}"#.as_bytes()).is_ok());
    }

    #[test]
    fn refusals_are_as_recorded() {
        let (nobody, anna) = (Principal::anonymous(), user("anna", &[]));
        let told = |refused: AuthError| (refused.kind.status(), refused.reason.into_owned());
        assert_eq!(told(not_a_member(&nobody)), (401, "You are not authorized to access this db.".into()));
        assert_eq!(told(not_a_member(&anna)), (403, "You are not allowed to access this db.".into()));
        assert_eq!(told(not_its_admin(&nobody)), (401, "You are not a db or server admin.".into()));
        assert_eq!(told(not_its_admin(&anna)), (403, "You are not a db or server admin.".into()));
        assert_eq!(told(not_an_admin()), (401, "You are not a server or db admin.".into()));
        assert_eq!(told(not_a_server_admin()), (401, "You are not a server admin.".into()));
    }

    proptest! {
        #[test]
        fn a_further_name_never_takes_administration_away(
            names in prop::collection::vec("[a-d]", 0..3),
            roles in prop::collection::vec("[a-d]", 0..3),
            more in "[a-d]",
            who in "[a-d]",
            has in prop::collection::vec("[a-d]", 0..3),
        ) {
            let principal = Principal::user(who, has, AuthMethod::Jwt);
            let admins = |names: &[String]| format!(r#"{{"admins":{{"names":{names:?},"roles":{roles:?}}}}}"#);
            let before = access(&admins(&names), &principal);
            let mut further = names.clone();
            further.push(more);
            prop_assert!(access(&admins(&further), &principal) >= before);
        }

        #[test]
        fn no_text_panics(text in "(\\{\"(admins|members|readers)\":)?\\PC{0,30}") {
            let _ = Security::parse_text(text.as_bytes());
        }
    }
}
