//! Channels: which documents of a database a user sees, and in which order a feed tells of them. Pure: no keys, no I/O, no
//! clock. What lies where, who reads and writes it: design/channels.md.
//!
//! - [`Routing`]: what a sync function says of a revision; [`moves`] is what the change from one to another does to a
//!   channel's index and to what is kept of the document.
//! - [`User`] and [`Role`] bodies as Sync Gateway's REST API has them: [`PrincipalUpdate`], [`PrincipalShown`].
//! - [`Held`]: the channels that a user has, each since when, and what follows from them: what is seen of a revision
//!   ([`Sight`]), which row of a feed a document is ([`Held::row_of`]).
//! - [`Merge`]: the feed of a user, put together from the indexes of channels.
//! - [`Expiry`], [`require`]: what `_exp` and the requirements of a sync function mean.
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

pub use change::{DocumentState, Left, Moves, moves};
pub use codec::{BadValue, Entry};
pub use expiry::{Expiry, InvalidExpiry};
pub use feed::{Asked, FeedRow, FeedScope, Lost, Merge, RowKind, Source, Step, Want};
pub use held::{HELD_MAX, Held, OwnRow, PERIODS_MAX, Period, Periods, RoleRows};
pub use name::{
    ALL, CHANNEL_BYTES_MAX, EVERYONE, GUEST, IllegalChannel, PRINCIPAL_BYTES_MAX, ROLE_PREFIX, check_channel,
    is_principal,
};
pub use position::{Position, Stamp};
pub use principal::{
    ADMIN_CHANNELS_MAX, ADMIN_ROLES_MAX, InvalidPrincipal, Kind, PrincipalShown, PrincipalUpdate, Request, Role, User,
    UserShown,
};
pub use routing::{Given, Grant, Grantee, ROUTING_ENTRIES_MAX, ROUTING_ROWS_BYTES_MAX, Routing, TooMuch};
pub use sight::Sight;
