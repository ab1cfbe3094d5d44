//! On whose behalf one reads.

use std::sync::Arc;

use flatbed_channels::is_principal;

use crate::held::As;

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
}
