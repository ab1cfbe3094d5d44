//! Limits by address and by user, which may change while the server runs.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use flatbed_network::{Blocks, Network, Rate, Rates};
use hyper::StatusCode;

use crate::metrics::{Bound, Traffic};
use crate::peer::Peer;
use crate::rejection::{Rejection, Result};
use crate::shares::Sender;
use crate::turns::ClientNetwork;

const CLIENTS_MAX: usize = 65_536;

/// The limits of one client. An address is an IPv4 address or an IPv6 /64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections of an address; more are closed at once. 0: no limit.
    pub connections_by_address: usize,
    /// Connections of all addresses on which no head of a request has arrived, including
    /// [unlimited](crate::ShellOptions) clients. Beyond it the oldest one of the address with the most is closed.
    pub unfinished: usize,
    /// The same for one address.
    pub unfinished_by_address: usize,
    /// The rate of requests of an address; more get 429.
    pub requests_by_address: Rate,
    /// Concurrent requests of an address, including feeds; more get 429. 0: no limit.
    pub under_way_by_address: usize,
    /// Concurrent requests of all addresses, without feeds. Beyond it an address may still have an equal share, and at
    /// least one; more get 429. 0: no limit.
    pub under_way: usize,
    /// The rate of requests of a user from all addresses; more get 429.
    pub requests_by_user: Rate,
    /// Concurrent requests of a user, including feeds; more get 429. 0: no limit.
    pub under_way_by_user: usize,
    /// The percentage of the memory for arriving bodies that one address may use; more get 429.
    pub memory_percent_by_address: usize,
    /// The percentage of all connections that feeds of anonymous clients may use together.
    /// [Unlimited](crate::ShellOptions) clients are not counted.
    pub anonymous_feeds_percent: usize,
    /// The timeout of the steps before HTTP: the PROXY protocol and TLS.
    pub handshake_max: Duration,
    /// The timeout of a request's head.
    pub head_max: Duration,
    /// The longest idle time of an HTTP/1 connection between two requests; at least the timeout of a head.
    pub idle_max: Duration,
    /// The timeout between two pieces of a body.
    pub body_pause_max: Duration,
    /// The timeout of a whole body; a long body has more time.
    pub body_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections_by_address: 2_000,
            unfinished: 4_096,
            unfinished_by_address: 1_024,
            requests_by_address: Rate { per_second: 2_000, burst: 10_000 },
            under_way_by_address: 1_000,
            under_way: 2_048,
            requests_by_user: Rate { per_second: 5_000, burst: 20_000 },
            under_way_by_user: 5_000,
            memory_percent_by_address: 50,
            anonymous_feeds_percent: 50,
            handshake_max: Duration::from_secs(10),
            head_max: Duration::from_secs(30),
            idle_max: Duration::from_secs(120),
            body_pause_max: Duration::from_secs(30),
            body_max: Duration::from_secs(600),
        }
    }
}

type LimitSetter = (&'static str, RangeInclusive<u32>, fn(&mut Limits, u32));

const NAMES: &[LimitSetter] = &[
    ("connections_by_address", 0..=1_000_000, |limits, n| limits.connections_by_address = n as usize),
    ("unfinished_connections", 16..=100_000, |limits, n| limits.unfinished = n as usize),
    ("unfinished_connections_by_address", 1..=100_000, |limits, n| limits.unfinished_by_address = n as usize),
    ("requests_by_address", 0..=1_000_000, |limits, n| limits.requests_by_address.per_second = n),
    ("requests_by_address_burst", 1..=1_000_000, |limits, n| limits.requests_by_address.burst = n),
    ("under_way_by_address", 0..=1_000_000, |limits, n| limits.under_way_by_address = n as usize),
    ("under_way", 0..=1_000_000, |limits, n| limits.under_way = n as usize),
    ("requests_by_user", 0..=1_000_000, |limits, n| limits.requests_by_user.per_second = n),
    ("requests_by_user_burst", 1..=1_000_000, |limits, n| limits.requests_by_user.burst = n),
    ("under_way_by_user", 0..=1_000_000, |limits, n| limits.under_way_by_user = n as usize),
    ("memory_percent_by_address", 1..=100, |limits, n| limits.memory_percent_by_address = n as usize),
    ("anonymous_feeds_percent", 1..=100, |limits, n| limits.anonymous_feeds_percent = n as usize),
    ("handshake_seconds", 1..=600, |limits, n| limits.handshake_max = Duration::from_secs(n.into())),
    ("head_seconds", 1..=600, |limits, n| limits.head_max = Duration::from_secs(n.into())),
    ("idle_seconds", 1..=3_600, |limits, n| limits.idle_max = Duration::from_secs(n.into())),
    ("body_pause_seconds", 1..=3_600, |limits, n| limits.body_pause_max = Duration::from_secs(n.into())),
    ("body_seconds", 1..=86_400, |limits, n| limits.body_max = Duration::from_secs(n.into())),
];

/// The error of an invalid limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// No limit has this name.
    #[error("there is no limit {0:?}")]
    Unknown(String),
    /// The value is not a number, or out of range.
    #[error("{name} is a number from {least} to {most}")]
    Value {
        /// The name of the limit.
        name: &'static str,
        /// The smallest value.
        least: u32,
        /// The largest value.
        most: u32,
    },
}

impl Limits {
    /// Returns the names of all limits, as in settings.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, ..)| *name)
    }

    /// Sets a limit by its name.
    pub fn set(&mut self, name: &str, value: &str) -> std::result::Result<(), LimitError> {
        let found = NAMES.iter().find(|(found, ..)| *found == name);
        let Some((name, range, set)) = found else { return Err(LimitError::Unknown(name.to_owned())) };
        let value = value.parse().ok().filter(|value| range.contains(value));
        let wrong = LimitError::Value { name, least: *range.start(), most: *range.end() };
        set(self, value.ok_or(wrong)?);
        Ok(())
    }
}

#[derive(Debug, Default)]
struct AddressRequests {
    of: HashMap<ClientNetwork, RequestCount>,
    /// Without feeds.
    all: usize,
    /// The number of addresses that have other requests than feeds.
    asking: usize,
}

/// The requests of an address that are under way.
#[derive(Debug, Default, Clone, Copy)]
struct RequestCount {
    all: usize,
    feeds: usize,
}

impl RequestCount {
    fn without_feeds(self) -> usize {
        self.all - self.feeds
    }
}

/// Admits requests within the limits.
#[derive(Debug)]
pub(crate) struct Admission {
    limits: RwLock<Limits>,
    unlimited: Blocks,
    addresses: Rates,
    users: Rates,
    under_way: Mutex<HashMap<Arc<str>, usize>>,
    under_way_by_address: Mutex<AddressRequests>,
    traffic: Arc<Traffic>,
    began: Instant,
}

impl Admission {
    pub(crate) fn new(limits: Limits, unlimited: Blocks, traffic: Arc<Traffic>) -> Arc<Admission> {
        Arc::new(Admission {
            limits: RwLock::new(limits),
            unlimited,
            addresses: Rates::new(CLIENTS_MAX),
            users: Rates::new(CLIENTS_MAX),
            under_way: Mutex::default(),
            under_way_by_address: Mutex::default(),
            traffic,
            began: Instant::now(),
        })
    }

    pub(crate) fn limits(&self) -> Limits {
        *self.limits.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_limits(&self, limits: Limits) {
        *self.limits.write().unwrap_or_else(PoisonError::into_inner) = limits;
    }

    pub(crate) fn bounds(&self, peer: &Peer) -> bool {
        !self.unlimited.contains(peer.ip())
    }

    pub(crate) fn sender(&self, peer: &Peer) -> Option<Sender> {
        let percent = self.limits().memory_percent_by_address;
        (percent < 100 && self.bounds(peer)).then(|| Sender { who: who(peer), percent, traffic: self.traffic.clone() })
    }

    /// Admits a request of an address. It counts until the result is dropped. Returns `None` for clients without
    /// limits.
    ///
    /// # Errors
    /// 429 if a limit is reached.
    pub(crate) fn ask(self: &Arc<Self>, peer: &Peer) -> Result<Option<AddressRequest>> {
        if !self.bounds(peer) {
            return Ok(None);
        }
        let (who, limits) = (who(peer), self.limits());
        let taken = self.addresses.take(who, 1, limits.requests_by_address, self.began.elapsed());
        taken.map_err(|wait| self.too_many(Bound::RequestsByAddress, "of this address", wait))?;
        let mut under_way = self.under_way_by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let count = under_way.of.get(&who).copied().unwrap_or_default();
        let has_too_many = limits.under_way_by_address > 0 && count.all >= limits.under_way_by_address;
        let briefly = count.without_feeds();
        // An address that only follows feeds leaves its part to the others.
        let has_its_part = || briefly > 0 && briefly >= limits.under_way / under_way.asking.max(1);
        if has_too_many || (limits.under_way > 0 && under_way.all >= limits.under_way && has_its_part()) {
            return Err(self.too_many(Bound::RequestsByAddress, "of this address are under way", Duration::ZERO));
        }
        under_way.of.entry(who).or_default().all += 1;
        under_way.all += 1;
        under_way.asking += usize::from(briefly == 0);
        Ok(Some(AddressRequest { of: self.clone(), who, is_feed: AtomicBool::new(false) }))
    }

    /// Admits a request of a user. It counts until the result is dropped.
    ///
    /// # Errors
    /// 429 if a limit is reached.
    pub(crate) fn ask_as(self: &Arc<Self>, user: &str) -> Result<UserRequest> {
        let limits = self.limits();
        let taken = self.users.take(user, 1, limits.requests_by_user, self.began.elapsed());
        taken.map_err(|wait| self.too_many(Bound::RequestsByUser, "of this user", wait))?;
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        let user = match under_way.get_key_value(user) {
            Some((user, _)) => user.clone(),
            None => Arc::from(user),
        };
        let count = under_way.entry(user.clone()).or_default();
        if limits.under_way_by_user > 0 && *count >= limits.under_way_by_user {
            return Err(self.too_many(Bound::RequestsByUser, "of this user are under way", Duration::ZERO));
        }
        *count += 1;
        Ok(UserRequest { of: self.clone(), user })
    }

    fn too_many(&self, bound: Bound, whose: &str, wait: Duration) -> Rejection {
        self.traffic.refused.of(bound).add(1);
        let seconds = wait.as_millis().div_ceil(1_000).max(1);
        let mut refused =
            Rejection::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", format!("Too many requests {whose}."));
        refused.retry_after_seconds = Some(u32::try_from(seconds).unwrap_or(u32::MAX));
        refused
    }
}

#[derive(Debug)]
pub(crate) struct UserRequest {
    of: Arc<Admission>,
    user: Arc<str>,
}

impl UserRequest {
    pub(crate) fn user(&self) -> &Arc<str> {
        &self.user
    }
}

impl Drop for UserRequest {
    fn drop(&mut self) {
        let mut under_way = self.of.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = under_way.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                under_way.remove(&self.user);
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct AddressRequest {
    of: Arc<Admission>,
    who: ClientNetwork,
    is_feed: AtomicBool,
}

impl AddressRequest {
    pub(crate) fn who(&self) -> ClientNetwork {
        self.who
    }

    /// Marks the request as a feed, which may last as long as its client likes.
    pub(crate) fn follows(&self) {
        if self.is_feed.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut under_way = self.of.under_way_by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let under_way = &mut *under_way;
        under_way.all -= 1;
        if let Some(count) = under_way.of.get_mut(&self.who) {
            count.feeds += 1;
            under_way.asking -= usize::from(count.without_feeds() == 0);
        }
    }
}

impl Drop for AddressRequest {
    fn drop(&mut self) {
        let mut under_way = self.of.under_way_by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let under_way = &mut *under_way;
        let is_feed = self.is_feed.load(Ordering::Relaxed);
        under_way.all -= usize::from(!is_feed);
        if let Some(count) = under_way.of.get_mut(&self.who) {
            count.all -= 1;
            count.feeds -= usize::from(is_feed);
            under_way.asking -= usize::from(!is_feed && count.without_feeds() == 0);
            if count.all == 0 {
                under_way.of.remove(&self.who);
            }
        }
    }
}

pub(crate) fn who(peer: &Peer) -> ClientNetwork {
    peer.ip().map(Network::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(limits: Limits) -> Arc<Admission> {
        Admission::new(limits, "127.0.0.0/8,unix".parse().unwrap(), Arc::default())
    }

    fn peer(address: &str) -> Peer {
        Peer::new(format!("{address}:80").parse().unwrap(), false)
    }

    #[test]
    fn addresses_have_a_rate() {
        let rate = Rate { per_second: 1, burst: 2 };
        let admission = admission(Limits { requests_by_address: rate, ..Limits::default() });
        for _ in 0..100 {
            assert!(admission.ask(&peer("127.0.0.1")).is_ok());
            assert!(admission.ask(&Peer { address: None, is_secure: false }).is_ok());
        }
        assert!(admission.ask(&peer("[2001:db8::1]")).is_ok() && admission.ask(&peer("[2001:db8::2]")).is_ok());
        let refused = admission.ask(&peer("[2001:db8::3]")).unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.retry_after_seconds), (429, Some(1)));
        assert!(admission.ask(&peer("192.0.2.1")).is_ok());
        admission.set_limits(Limits::default());
        assert!(admission.ask(&peer("[2001:db8::3]")).is_ok());
    }

    #[test]
    fn addresses_have_so_many_under_way() {
        let admission = admission(Limits { under_way_by_address: 2, ..Limits::default() });
        let one = admission.ask(&peer("192.0.2.1")).unwrap();
        let _two = admission.ask(&peer("192.0.2.1")).unwrap();
        assert_eq!(admission.ask(&peer("192.0.2.1")).unwrap_err().status.as_u16(), 429);
        assert!(admission.ask(&peer("127.0.0.1")).unwrap().is_none());
        let other = admission.ask(&peer("192.0.2.2")).unwrap();
        drop((one, other));
        assert!(admission.ask(&peer("192.0.2.1")).is_ok());
        let under_way = admission.under_way_by_address.lock().unwrap();
        assert_eq!((under_way.of.len(), under_way.all), (1, 1));
    }

    #[test]
    fn addresses_have_equal_parts_of_what_is_under_way() {
        let admission = admission(Limits { under_way: 8, ..Limits::default() });
        let ask = |address: &str| admission.ask(&peer(address)).map(Option::unwrap);
        let mut held: Vec<_> = (0..8).map(|_| ask("192.0.2.1").unwrap()).collect();
        assert_eq!(ask("192.0.2.1").unwrap_err().status.as_u16(), 429);
        held.extend((0..4).map(|_| ask("192.0.2.2").unwrap()));
        assert!(ask("192.0.2.2").is_err() && ask("192.0.2.1").is_err());
        for n in 3..100 {
            held.push(ask(&format!("192.0.2.{n}")).unwrap());
        }
        held.iter().for_each(AddressRequest::follows);
        held.extend((0..8).map(|_| ask("192.0.2.1").unwrap()));
        assert!(ask("192.0.2.1").is_err());
        drop(held);
        let under_way = admission.under_way_by_address.lock().unwrap();
        assert_eq!((under_way.of.len(), under_way.all), (0, 0));
    }

    #[test]
    fn feeds_do_not_count_in_the_part_of_an_address() {
        let admission = admission(Limits { under_way: 8, ..Limits::default() });
        let ask = |address: &str| admission.ask(&peer(address)).map(Option::unwrap);
        let feeds: Vec<_> = (0..20).map(|_| ask("192.0.2.1").unwrap()).inspect(AddressRequest::follows).collect();
        let others: Vec<_> = (0..8).map(|_| ask("192.0.2.2").unwrap()).collect();
        assert!(ask("192.0.2.2").is_err());
        let own: Vec<_> = (0..4).map(|_| ask("192.0.2.1").unwrap()).collect();
        assert!(ask("192.0.2.1").is_err());
        drop((feeds, others, own));
        let under_way = admission.under_way_by_address.lock().unwrap();
        assert_eq!((under_way.of.len(), under_way.all, under_way.asking), (0, 0, 0));
    }

    #[test]
    fn addresses_that_only_follow_feeds_take_no_part_from_others() {
        let admission = admission(Limits { under_way: 8, ..Limits::default() });
        let ask = |address: &str| admission.ask(&peer(address)).map(Option::unwrap);
        let feeds: Vec<_> = (10..30).map(|n| ask(&format!("192.0.2.{n}")).unwrap()).collect();
        feeds.iter().for_each(AddressRequest::follows);
        let many: Vec<_> = (0..8).map(|_| ask("192.0.2.1").unwrap()).collect();
        let few: Vec<_> = (0..4).map(|_| ask("192.0.2.2").unwrap()).collect();
        assert!(ask("192.0.2.2").is_err() && ask("192.0.2.1").is_err());
        drop((feeds, many, few));
        let under_way = admission.under_way_by_address.lock().unwrap();
        assert_eq!((under_way.of.len(), under_way.all, under_way.asking), (0, 0, 0));
    }

    #[test]
    fn limits_have_names() {
        let mut limits = Limits::default();
        for name in Limits::names() {
            limits.set(name, "77").unwrap();
        }
        let second = Duration::from_secs(77);
        let rate = Rate { per_second: 77, burst: 77 };
        let all = Limits {
            connections_by_address: 77,
            unfinished: 77,
            unfinished_by_address: 77,
            requests_by_address: rate,
            under_way_by_address: 77,
            under_way: 77,
            requests_by_user: rate,
            under_way_by_user: 77,
            memory_percent_by_address: 77,
            anonymous_feeds_percent: 77,
            handshake_max: second,
            head_max: second,
            idle_max: second,
            body_pause_max: second,
            body_max: second,
        };
        assert_eq!(limits, all);
        assert!(matches!(limits.set("memory_percent_by_address", "101"), Err(LimitError::Value { most: 100, .. })));
        assert!(matches!(limits.set("requests_by_user", "-1"), Err(LimitError::Value { .. })));
        assert_eq!(limits.set("x", "1"), Err(LimitError::Unknown("x".into())));
        assert_eq!(limits, all);
    }

    #[test]
    fn users_have_so_many_under_way() {
        let admission = admission(Limits { under_way_by_user: 2, ..Limits::default() });
        let one = admission.ask_as("anna").unwrap();
        let _two = admission.ask_as("anna").unwrap();
        let refused = admission.ask_as("anna").unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.retry_after_seconds), (429, Some(1)));
        let ben = admission.ask_as("ben").unwrap();
        drop((one, ben));
        assert!(admission.ask_as("anna").is_ok());
        assert_eq!(admission.under_way.lock().unwrap().len(), 1);
    }
}
