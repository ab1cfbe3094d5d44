//! The principal of a read.

use std::sync::Arc;

use flatbed_channels::is_principal;
use flatbed_store::error::Refusal;

use crate::held::{HeldRights, RightsHolder};

/// The principal of a read in a database that may have channels.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ReadPrincipal {
    /// Unrestricted access: administrators, and all readers of a database without channels.
    All,
    /// The database's user of this name. A deleted user has no rights.
    Principal(Arc<str>),
    /// An account of the server, or the subject of a token: the database's user that is tied to it. Without such a user
    /// a member by `_security` has the rights of everybody, and others have none.
    Account {
        /// The name.
        name: Arc<str>,
        /// True if it is a member.
        is_member: bool,
    },
    /// An anonymous reader: without rights until an administrator admits the guest.
    #[default]
    Guest,
}

impl ReadPrincipal {
    /// Returns the name and kind of the principal to look up; `None` if there can be none, or it does not matter.
    pub fn principal(&self) -> Option<(Arc<str>, RightsHolder)> {
        let is_name = |name: &&Arc<str>| !name.is_empty() && is_principal(name);
        match self {
            ReadPrincipal::All => None,
            ReadPrincipal::Principal(name) => {
                Some((Arc::clone(name), RightsHolder::Principal)).filter(|(name, _)| is_name(&name))
            }
            ReadPrincipal::Account { name, is_member } => {
                let found = RightsHolder::Account { is_member: *is_member };
                Some((Arc::clone(name), found)).filter(|(name, _)| is_name(&name))
            }
            ReadPrincipal::Guest => Some((Arc::from(""), RightsHolder::Principal)),
        }
    }

    /// Checks whether the principal with these rights is admitted: users who exist and are enabled, and members by
    /// `_security` without a user here.
    ///
    /// # Errors
    /// A refusal in the words of `_security`.
    pub fn admitted(&self, held: &HeldRights) -> Result<(), Refusal> {
        match self {
            _ if held.is_there => Ok(()),
            ReadPrincipal::All => Ok(()),
            // A disabled user has a record.
            ReadPrincipal::Account { is_member: true, .. } if held.user_at.is_none() => Ok(()),
            ReadPrincipal::Guest => Err(Refusal::Unauthorized("You are not authorized to access this db.".to_owned())),
            ReadPrincipal::Principal(_) | ReadPrincipal::Account { .. } => {
                Err(Refusal::Forbidden("You are not allowed to access this db.".to_owned()))
            }
        }
    }

    /// Returns the mark of a revision's writer, unique to the person; empty if there is none. User names have no colon:
    /// a user is marked by name and the start of their ownership of it, and a member who is not a user has a leading
    /// colon.
    pub fn writer(&self, held: &HeldRights) -> String {
        match self {
            ReadPrincipal::Principal(name) | ReadPrincipal::Account { name, .. } if held.is_there => {
                format!("{name}:{}", held.person)
            }
            ReadPrincipal::Account { name, .. } => format!(":{name}"),
            ReadPrincipal::Principal(_) | ReadPrincipal::Guest | ReadPrincipal::All => String::new(),
        }
    }
}
