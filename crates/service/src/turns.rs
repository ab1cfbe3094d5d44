//! Turns for CPU-bound work: a few run in parallel, the others wait in a queue that is fair by address and by
//! database.
//!
//! A turn is one slice of work. A request with more work queues again for each slice.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flatbed_network::Network;

/// The length of a turn. It ends at the first boundary between two documents after this time, or inside a document
/// after [`flatbed_mango::slice_steps`].
pub(crate) const SLICE: Duration = if cfg!(test) { Duration::ZERO } else { Duration::from_millis(20) };

/// The client and the database that cause the work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) address: Network,
    pub(crate) database: Arc<str>,
}

/// Hashes a client's network to the number that decides the client's turn in calls of functions.
pub(crate) fn client_number(address: Network) -> u64 {
    let mut hasher = DefaultHasher::new();
    address.hash(&mut hasher);
    hasher.finish()
}

/// A key of a ticket. Tickets have the database first, then the address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum TurnKey {
    Database(Arc<str>),
    Address(Network),
}

pub(crate) type Turns = flatbed_admission::Turns<TurnKey, 2>;

impl Origin {
    pub(crate) fn turn_keys(&self) -> [TurnKey; 2] {
        [TurnKey::Database(self.database.clone()), TurnKey::Address(self.address)]
    }
}

/// The timer of one turn.
#[derive(Debug)]
pub(crate) struct Slice(Instant);

impl Slice {
    pub(crate) fn begin() -> Slice {
        Slice(Instant::now())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.elapsed() >= SLICE
    }
}
