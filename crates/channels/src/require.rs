//! The requirements of a sync function. Any of the given names suffices, and an empty list refuses. Administrators
//! are not checked.

use std::collections::BTreeSet;

use crate::held::HeldChannels;

/// The reason of `requireUser`.
pub const WRONG_USER: &str = "sg wrong user";

/// The reason of `requireRole`.
pub const MISSING_ROLE: &str = "sg missing role";

/// The reason of `requireAccess`.
pub const MISSING_ACCESS: &str = "sg missing channel access";

/// The reason of `requireAdmin`, for all other writers.
pub const NO_ADMINISTRATOR: &str = "sg admin required";

/// The writer of a document, for a sync function. An administrator has none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Writer {
    /// The name; empty for the guest.
    pub name: String,
    /// A mark that records the writer and is hidden from functions; empty: none.
    pub mark: String,
    /// The channels, with those of roles.
    pub channels: BTreeSet<String>,
    /// The roles, existing or not.
    pub roles: BTreeSet<String>,
}

impl Writer {
    /// A user with these channels and roles.
    pub fn new(name: impl Into<String>, held: &HeldChannels) -> Writer {
        let (channels, roles) = (held.channels(), held.roles());
        Writer {
            name: name.into(),
            mark: String::new(),
            channels: channels.map(|(name, _)| name.to_owned()).collect(),
            roles: roles.map(|(name, _)| name.to_owned()).collect(),
        }
    }

    /// `requireUser`
    pub fn is_one_of(&self, names: &[&str]) -> Result<(), &'static str> {
        if names.contains(&&*self.name) { Ok(()) } else { Err(WRONG_USER) }
    }

    /// `requireRole`
    pub fn has_role_of(&self, names: &[&str]) -> Result<(), &'static str> {
        if names.iter().any(|name| self.roles.contains(*name)) { Ok(()) } else { Err(MISSING_ROLE) }
    }

    /// `requireAccess`. As recorded, a writer with `*` has the channel `*`, not each channel.
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
