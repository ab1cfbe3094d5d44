//! Turns for processor-intensive work, fair by address.

use std::sync::Arc;

use flatbed_network::Network;

/// The unit by which connections are counted. All connections without an address are one unit.
pub(crate) type ClientNetwork = Option<Network>;

pub(crate) type Turns = flatbed_admission::Turns<ClientNetwork>;

/// A key by which tasks take turns for page memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum PageKey {
    Address(ClientNetwork),
    /// `None`: all anonymous clients, and administrators, whose requests are not counted.
    User(Option<Arc<str>>),
}

pub(crate) type PageTurns = flatbed_admission::Turns<PageKey, 2>;
