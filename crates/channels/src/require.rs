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
}
