//! Turns for CPU-bound work: a few run in parallel, the others wait in a queue that is fair by client and by database.
//!
//! A turn is one slice of work. A request with more work queues again for each slice.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flatbed_auth::security::Security;
use flatbed_network::Network;

/// The length of a turn. It ends at the first boundary between two documents after this time, or inside a document
/// after [`flatbed_mango::slice_steps`].
pub(crate) const SLICE: Duration = if cfg!(test) { Duration::ZERO } else { Duration::from_millis(20) };

/// The client whose turn a request uses: the signed-in user, at any address, else the network.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum TurnClient {
    User(Arc<str>),
    Network(Network),
}

impl TurnClient {
    pub(crate) fn of(user: Option<&str>, address: Network) -> TurnClient {
        user.map_or(TurnClient::Network(address), |name| TurnClient::User(name.into()))
    }

    /// Hashes the client to the number that decides its turn in calls of functions.
    pub(crate) fn number(&self) -> u64 {
        number_of(self)
    }
}

/// Returns the number of a database's owner, by which its calls of functions take turns: databases with the same names
/// of administrators, or else of members, have one. `None`: no names.
pub(crate) fn owner_number(security: &Security) -> Option<u64> {
    let names = security.owner_names();
    (!names.is_empty()).then(|| number_of(&names))
}

fn number_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The client and the database that cause the work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) client: TurnClient,
    pub(crate) database: Arc<str>,
}

/// A key of a ticket. Tickets have the database first, then the client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum TurnKey {
    Database(Arc<str>),
    Client(TurnClient),
}

pub(crate) type Turns = flatbed_admission::Turns<TurnKey, 2>;

impl Origin {
    #[cfg(test)]
    pub(crate) fn at(address: [u8; 4], database: &str) -> Origin {
        let client = TurnClient::of(None, std::net::IpAddr::from(address).into());
        Origin { client, database: database.into() }
    }

    pub(crate) fn turn_keys(&self) -> [TurnKey; 2] {
        [TurnKey::Database(self.database.clone()), TurnKey::Client(self.client.clone())]
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

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn a_user_is_one_client_at_all_addresses() {
        let addresses = [1, 2].map(|n| Network::from(IpAddr::from([10, 0, 0, n])));
        let [user, elsewhere] = addresses.map(|address| TurnClient::of(Some("anna"), address).number());
        let [one, other] = addresses.map(|address| TurnClient::of(None, address).number());
        let another = TurnClient::of(Some("bob"), Network::from(IpAddr::from([10, 0, 0, 1]))).number();
        assert_eq!(user, elsewhere);
        assert!(user != another && one != other && user != one);
    }

    #[test]
    fn databases_with_the_same_names_in_their_security_have_one_owner() {
        let of = |text: &str| owner_number(&Security::parse_text(text.as_bytes()).unwrap_or_default());
        let anna = of(r#"{"admins":{"names":["anna","bob"]}}"#);
        assert!(anna.is_some());
        assert_eq!(of(r#"{"admins":{"names":["bob","anna"],"roles":["r"]},"members":{"names":["eva"]}}"#), anna);
        assert_ne!(of(r#"{"admins":{"names":["annab","ob"]}}"#), anna);
        let member = of(r#"{"admins":{"names":[],"roles":["r"]},"members":{"names":["anna"]}}"#);
        assert!(member.is_some() && member != anna);
        assert_eq!(of(r#"{"members":{"names":["anna"]}}"#), member);
        for without in ["{}", r#"{"admins":{"names":[]}}"#, r#"{"members":{"roles":["anna"]}}"#, "no JSON"] {
            assert_eq!(of(without), None, "{without}");
        }
        assert_eq!(owner_number(&Security::default()), None);
    }
}
