//! What the requirements of a sync function mean: any of the names that are asked for is enough, and none of no names. An
//! administrator meets all of them, and is not asked.

use std::collections::BTreeSet;

use crate::held::Held;

/// Why `requireUser` refuses.
pub const WRONG_USER: &str = "sg wrong user";

/// Why `requireRole` refuses.
pub const MISSING_ROLE: &str = "sg missing role";

/// Why `requireAccess` refuses.
pub const MISSING_ACCESS: &str = "sg missing channel access";

/// Why `requireAdmin` refuses everybody else.
pub const NO_ADMINISTRATOR: &str = "sg admin required";

/// Who writes, to a sync function. An administrator is not described.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Writer {
    /// The name; the guest's is empty.
    pub name: String,
    /// By what it is noted that they wrote, which functions do not see; empty: by nothing.
    pub mark: String,
    /// Channels, those of roles among them.
    pub channels: BTreeSet<String>,
    /// Roles, whether they exist or not.
    pub roles: BTreeSet<String>,
}

impl Writer {
    /// A user with these channels and roles.
    pub fn new(name: impl Into<String>, held: &Held) -> Writer {
        let (channels, roles) = (held.channels(), held.roles());
        Writer {
            name: name.into(),
            mark: String::new(),
            channels: channels.map(|(name, _)| name.to_owned()).collect(),
            roles: roles.map(|(name, _)| name.to_owned()).collect(),
        }
    }

    /// `requireUser`
    ///
    /// # Errors
    /// [`WRONG_USER`]
    pub fn is_one_of(&self, names: &[&str]) -> Result<(), &'static str> {
        if names.contains(&&*self.name) { Ok(()) } else { Err(WRONG_USER) }
    }

    /// `requireRole`
    ///
    /// # Errors
    /// [`MISSING_ROLE`]
    pub fn has_role_of(&self, names: &[&str]) -> Result<(), &'static str> {
        if names.iter().any(|name| self.roles.contains(*name)) { Ok(()) } else { Err(MISSING_ROLE) }
    }

    /// `requireAccess`. Who has all channels by `*` has `*` and not each of them: as recorded.
    ///
    /// # Errors
    /// [`MISSING_ACCESS`]
    pub fn has_access_to_one_of(&self, names: &[&str]) -> Result<(), &'static str> {
        if names.iter().any(|name| self.channels.contains(*name)) { Ok(()) } else { Err(MISSING_ACCESS) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_is_enough_and_none_of_no_names() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let bob = Writer {
            name: "bob".into(),
            channels: set(&["!", "A", "*"]),
            roles: set(&["readers"]),
            ..Writer::default()
        };
        assert_eq!(bob.is_one_of(&["alice", "bob"]), Ok(()));
        assert_eq!(bob.is_one_of(&["alice"]), Err(WRONG_USER));
        assert_eq!(bob.is_one_of(&[]), Err(WRONG_USER));
        assert_eq!(bob.has_role_of(&["editors", "readers"]), Ok(()));
        assert_eq!(bob.has_role_of(&["role:readers"]), Err(MISSING_ROLE));
        assert_eq!(bob.has_role_of(&[]), Err(MISSING_ROLE));
        assert_eq!(bob.has_access_to_one_of(&["C", "A"]), Ok(()));
        assert_eq!(bob.has_access_to_one_of(&["!"]), Ok(()));
        assert_eq!(bob.has_access_to_one_of(&["*"]), Ok(()));
        assert_eq!(bob.has_access_to_one_of(&["B"]), Err(MISSING_ACCESS));
        let guest = Writer::default();
        assert_eq!(guest.is_one_of(&[""]), Ok(()));
        assert_eq!(guest.is_one_of(&["GUEST"]), Err(WRONG_USER));
    }
}
