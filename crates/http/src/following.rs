//! Limits the feeds of anonymous clients, which may last forever and occupy connections.
//!
//! All of them together may use a fraction of all connections. Beyond it, the newest feed of the
//! address with the most feeds ends in favour of an address with at least two fewer; other new feeds are refused.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::StatusCode;
use tokio::sync::Notify;

use crate::doorway::Group;
use crate::metrics::{Bound, Traffic};
use crate::rejection::{Rejection, Result};
use crate::turns::ClientNetwork;

#[derive(Debug)]
pub(crate) struct Followers {
    state: Mutex<FollowersState>,
    traffic: Arc<Traffic>,
}

#[derive(Debug, Default)]
struct FollowersState {
    next: u64,
    open: HashMap<u64, (ClientNetwork, Arc<Notify>)>,
    of: HashMap<Group, BTreeSet<u64>>,
    most: BTreeSet<(usize, Group)>,
}

/// A feed in progress; ends when dropped.
#[derive(Debug)]
pub struct AnonymousFeed {
    of: Arc<Followers>,
    number: u64,
    gives_way: Arc<Notify>,
}

impl FollowersState {
    fn change(&mut self, who: ClientNetwork, change: impl Fn(&mut BTreeSet<u64>) -> bool) {
        for group in Group::of(who) {
            let of = self.of.entry(group).or_default();
            let before = group.weight(of.len());
            change(of);
            let now = group.weight(of.len());
            if of.is_empty() {
                self.of.remove(&group);
            }
            if now != before {
                self.most.remove(&(before, group));
                if now > 0 {
                    self.most.insert((now, group));
                }
            }
        }
    }

    fn weight(&self, who: ClientNetwork) -> usize {
        let weight = |group: Group| self.of.get(&group).map_or(0, |of| group.weight(of.len()));
        Group::of(who).map(weight).max().unwrap_or(0)
    }

    fn remove(&mut self, number: u64) -> Option<Arc<Notify>> {
        let (who, gives_way) = self.open.remove(&number)?;
        self.change(who, |of| of.remove(&number));
        Some(gives_way)
    }

    /// Ends the newest feed of the group with the most feeds if that is at least two more than this address has.
    /// Returns false otherwise.
    fn make_room_for(&mut self, who: ClientNetwork) -> bool {
        let least = self.weight(who) + 2;
        let most = self.most.last().filter(|(weight, _)| *weight >= least).map(|(_, group)| *group);
        let newest = most.and_then(|most| self.of.get(&most)?.last().copied());
        let gives_way = newest.and_then(|newest| self.remove(newest));
        gives_way.map(|feed| feed.notify_one()).is_some()
    }
}

impl Followers {
    pub(crate) fn new(traffic: Arc<Traffic>) -> Arc<Followers> {
        Arc::new(Followers { state: Mutex::default(), traffic })
    }

    fn state(&self) -> MutexGuard<'_, FollowersState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a feed. `most`: the limit of all feeds.
    ///
    /// # Errors
    /// 429 if no feed of another address can end.
    pub(crate) fn follow(self: &Arc<Self>, who: ClientNetwork, most: usize) -> Result<AnonymousFeed> {
        let mut state = self.state();
        if state.open.len() >= most.max(1) {
            self.traffic.refused.of(Bound::AnonymousFeeds).add(1);
            if !state.make_room_for(who) {
                let reason = "Too many anonymous feeds, most of them from this address.";
                return Err(Rejection::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", reason));
            }
        }
        state.next += 1;
        let (number, gives_way) = (state.next, Arc::<Notify>::default());
        state.open.insert(number, (who, gives_way.clone()));
        state.change(who, |of| of.insert(number));
        Ok(AnonymousFeed { of: self.clone(), number, gives_way })
    }
}

impl AnonymousFeed {
    /// Resolves when the feed must end in favour of another address.
    pub async fn gives_way(&self) {
        self.gives_way.notified().await;
    }
}

impl Drop for AnonymousFeed {
    fn drop(&mut self) {
        self.of.state().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(address: &str) -> ClientNetwork {
        Some(address.parse::<std::net::IpAddr>().unwrap().into())
    }

    fn is_to_end(feed: &AnonymousFeed) -> bool {
        let mut gives_way = std::pin::pin!(feed.gives_way());
        gives_way.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_ready()
    }

    #[test]
    fn the_newest_of_whoever_has_most_gives_way() {
        let followers = Followers::new(Arc::default());
        let follow = |address| followers.follow(who(address), 6);
        let mut one: Vec<_> = (0..6).map(|_| follow("192.0.2.1").unwrap()).collect();
        assert_eq!(follow("192.0.2.1").unwrap_err().status.as_u16(), 429);
        let two = follow("192.0.2.2").unwrap();
        assert!(is_to_end(&one[5]) && !one[..5].iter().any(is_to_end));
        drop(one.pop());
        let others = [follow("192.0.2.2").unwrap(), follow("192.0.2.3").unwrap()];
        assert!(is_to_end(&one[4]) && is_to_end(&one[3]) && !one[..3].iter().any(is_to_end));
        assert!(follow("192.0.2.2").is_err() && follow("192.0.2.1").is_err());
        let fourth = follow("192.0.2.4").unwrap();
        assert!(is_to_end(&one[2]));
        assert!(["192.0.2.1", "192.0.2.3", "192.0.2.4"].iter().all(|address| follow(address).is_err()));
        assert!(follow("192.0.2.5").is_ok_and(|_| is_to_end(&others[0]) || is_to_end(&one[1])));
        drop((one, two, others, fourth));
        let state = followers.state();
        assert!(state.open.is_empty() && state.of.is_empty() && state.most.is_empty());
    }

    #[test]
    fn a_site_of_ipv6_counts_as_few_addresses() {
        let followers = Followers::new(Arc::default());
        let follow = |address: &str| followers.follow(who(address), 16);
        let site: Vec<_> = (0..16).map(|n| follow(&format!("2001:db8:1:{n:x}::1")).unwrap()).collect();
        assert!(follow("2001:db8:1:77::1").is_err());
        assert!(follow("2001:db8:2::1").is_ok());
        assert!(is_to_end(&site[15]) && !is_to_end(&site[14]));
    }
}
