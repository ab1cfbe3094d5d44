//! Access control of databases with channels: users and roles, the channels that they hold, and the grants of
//! documents. The keys and conflicts: design/channels.md.
//!
//! - [`ReadPrincipal`], [`HeldRights`]: the principal of a read, and its rights as of the transaction that reads.
//! - `Database::put_principal` and others: users and roles as administrators define them; `Reader::user_at`,
//!   [`PrincipalSession`]: sign-in of users.

pub mod changed;
pub mod grants;
pub mod holding;
pub mod losses;
pub mod principals;
pub mod sessions;
pub mod sweep;

pub use crate::asker::ReadPrincipal;
pub use crate::held::HeldRights;
pub use changed::{AccessChanges, AccessPart, AccessState, UserChanges, UsersPosition};
pub use flatbed_channels::{PrincipalKind, is_principal};
pub use flatbed_store::keys::AccessCell;
pub use principals::{
    ADMIN_NAMES_BYTES_MAX, Principal, PrincipalWithRights, PrincipalWrite, PrincipalWriteOutcome, SignsIn,
};
pub use sessions::{PrincipalSession, SessionHash, SignInUser};
