//! Channels: the documents of a database that a user sees, and the order of their rows in a feed. Pure: no keys, no
//! I/O, no clock. design/channels.md describes storage.
//!
//! - [`Routing`]: the output of a sync function for a revision; [`moves`]: the effect of a change on the indexes of
//!   channels and on the state that is kept of the document.
//! - [`User`] and [`Role`] bodies as Sync Gateway's REST API has them: [`PrincipalUpdate`], [`PrincipalOutput`].
//! - [`HeldChannels`]: the channels of a user with their sequences, and what follows from them: the visible part of a
//!   revision ([`Sight`]) and a document's row in a feed ([`HeldChannels::row_of`]).
//! - [`Merge`]: the merge of a user's feed from the indexes of channels.
//! - [`Expiry`], [`require`]: the meaning of `_exp` and of a sync function's requirements.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod change;
mod codec;
mod expiry;
mod feed;
mod held;
mod name;
mod position;
mod principal;
pub mod require;
mod routing;
mod sight;

pub use change::{ChannelDeparture, DocumentState, Moves, moves};
pub use codec::{BadValue, ChannelEntry};
pub use expiry::{Expiry, InvalidExpiry};
pub use feed::{DocumentQuestion, FeedRow, FeedScope, LostChannel, Merge, MergeStep, ReadRange, RowKind, Source};
pub use held::{DirectGrant, HELD_MAX, HeldChannels, PERIODS_MAX, Period, Periods, RoleRows};
pub use name::{
    ALL, CHANNEL_BYTES_MAX, EVERYONE, GUEST, IllegalChannel, PRINCIPAL_BYTES_MAX, ROLE_PREFIX, check_channel,
    is_principal,
};
pub use position::{Position, Stamp};
pub use principal::{
    ADMIN_CHANNELS_MAX, ADMIN_ROLES_MAX, InvalidPrincipal, PrincipalKind, PrincipalOutput, PrincipalRequest,
    PrincipalUpdate, Role, User, UserOutput,
};
pub use routing::{Grant, GrantedItem, Grantee, ROUTING_ENTRIES_MAX, ROUTING_ROWS_BYTES_MAX, Routing, RoutingTooLarge};
pub use sight::Sight;
