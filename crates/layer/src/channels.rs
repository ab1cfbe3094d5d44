//! Who sees what in a database that has channels: users and roles, what they have, and what documents give them. What lies where, and
//! who conflicts with whom: design/channels.md.
//!
//! - [`Asker`], [`HeldAt`]: on whose behalf one reads, and what they have as of the transaction that reads.
//! - [`Database::put_principal`](crate::Database::put_principal) and others: users and roles, as administrators make them;
//!   [`Reader::user_at`](crate::Reader::user_at), [`PrincipalSession`]: how users sign in.

mod changed;
pub(crate) mod grants;
pub(crate) mod holding;
mod losses;
mod principals;
mod sessions;
pub(crate) mod sweep;

pub use crate::asker::Asker;
pub use crate::held::HeldAt;
pub use changed::{UsersChanged, UsersPlace};
pub use flatbed_channels::{Kind, is_principal};
pub use principals::{ADMIN_NAMES_BYTES_MAX, Principal, PrincipalFound, PrincipalWrite, PrincipalWritten, SignsIn};
pub use sessions::{PrincipalAt, PrincipalSession, SessionHash};

mod tests;
