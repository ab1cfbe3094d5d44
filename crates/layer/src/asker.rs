//! On whose behalf one reads.

use std::sync::Arc;

use flatbed_channels::is_principal;

use crate::error::Refusal;
use crate::held::{As, HeldAt};

/// On whose behalf one reads, in a database that may have channels.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Asker {
    /// Who sees all: administrators, and whoever may read in a database without channels.
    All,
    /// The user of the database of this name. Who is no more has nothing.
    Principal(Arc<str>),
    /// An account of the server, or the subject of a token: the user of the database that is tied to it. Where there is none, a
    /// member by `_security` has what everybody has, and others have nothing.
    Account {
        /// Its name.
        name: Arc<str>,
        /// Whether it is a member.
        is_member: bool,
    },
    /// Who has given no name: has nothing before an administrator lets them in.
    #[default]
    Guest,
}

impl Asker {
    /// The principal that is looked for, and as whom; `None`: nobody can be called so, or it does not matter.
    pub(crate) fn principal(&self) -> Option<(Arc<str>, As)> {
        let is_name = |name: &&Arc<str>| !name.is_empty() && is_principal(name);
        match self {
            Asker::All => None,
            Asker::Principal(name) => Some((Arc::clone(name), As::Principal)).filter(|(name, _)| is_name(&name)),
            Asker::Account { name, is_member } => {
                let found = As::Account { is_member: *is_member };
                Some((Arc::clone(name), found)).filter(|(name, _)| is_name(&name))
            }
            Asker::Guest => Some((Arc::from(""), As::Principal)),
        }
    }

    /// Whether they are let in at all, of whom this was found: users who are neither gone nor disabled, and members by `_security` of whom
    /// no user was made here.
    ///
    /// # Errors
    /// In the words of who judges `_security`.
    pub(crate) fn admitted(&self, held: &HeldAt) -> Result<(), Refusal> {
        match self {
            _ if held.is_there => Ok(()),
            Asker::All => Ok(()),
            // One who is disabled has been changed by somebody.
            Asker::Account { is_member: true, .. } if held.user_at.is_none() => Ok(()),
            Asker::Guest => Err(Refusal::Unauthorized("You are not authorized to access this db.".to_owned())),
            Asker::Principal(_) | Asker::Account { .. } => {
                Err(Refusal::Forbidden("You are not allowed to access this db.".to_owned()))
            }
        }
    }

    /// By what it is noted who has written a revision, and by nobody else's; empty: by nothing. Colons are in no user's name: a person of
    /// the database is their name and since when it is theirs, a member who is no user here stands behind a colon.
    pub(crate) fn writer(&self, held: &HeldAt) -> String {
        match self {
            Asker::Principal(name) | Asker::Account { name, .. } if held.is_there => format!("{name}:{}", held.person),
            Asker::Account { name, .. } => format!(":{name}"),
            Asker::Principal(_) | Asker::Guest | Asker::All => String::new(),
        }
    }
}
