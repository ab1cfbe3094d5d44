//! Turns for processor-intensive work, fair by address.

use flatbed_network::Network;

/// The unit by which connections are counted. All connections without an address are one unit.
pub(crate) type ClientNetwork = Option<Network>;

pub(crate) type Turns = flatbed_admission::Turns<ClientNetwork>;
