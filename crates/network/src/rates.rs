//! Rate limits per client: token buckets in a table of fixed size.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The slots of a set, of which a client occupies one.
const WAYS: usize = 4;

type Micros = u64;

/// A client's rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// The sustained rate per second; 0: unlimited.
    pub per_second: u32,
    /// The burst after a long pause; treated as at least 1.
    pub burst: u32,
}

/// A client's bucket: the time at which it is full again. A full or empty slot belongs to no client.
#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    who: u64,
    full_at: Micros,
}

/// The buckets of many clients in fixed memory. When a set is full, its fullest bucket is evicted, and that client
/// begins with a full one. A keyed 64-bit hash identifies clients.
pub struct Rates {
    hasher: RandomState,
    sets: Box<[Mutex<[Bucket; WAYS]>]>,
}

impl fmt::Debug for Rates {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Rates").field("places", &(self.sets.len() * WAYS)).finish_non_exhaustive()
    }
}

impl Rates {
    /// Creates a table for about this many concurrent clients.
    pub fn new(clients: usize) -> Rates {
        let sets = clients.div_ceil(WAYS).max(1);
        Rates { hasher: RandomState::new(), sets: (0..sets).map(|_| Mutex::default()).collect() }
    }

    /// Takes `cost` tokens of a client at `now`, measured from a fixed origin.
    ///
    /// # Errors
    /// The rate is exceeded: the time to wait. Nothing was taken.
    pub fn take(&self, who: impl Hash, cost: u32, rate: Rate, now: Duration) -> Result<(), Duration> {
        if rate.per_second == 0 {
            return Ok(());
        }
        let each = 1_000_000.0 / f64::from(rate.per_second);
        let cost = (each * f64::from(cost)) as Micros;
        let room = (each * f64::from(rate.burst.max(1))) as Micros;
        // 0 is the time at which all buckets are full.
        let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX / 2).saturating_add(1);
        let who = self.hasher.hash_one(who);
        let Some(set) = usize::try_from(who % self.sets.len() as u64).ok().and_then(|at| self.sets.get(at)) else {
            return Ok(());
        };
        let mut set = set.lock().unwrap_or_else(PoisonError::into_inner);
        let known = set.iter_mut().position(|bucket| bucket.who == who);
        let fullest = || set.iter().enumerate().min_by_key(|(_, bucket)| bucket.full_at).map(|(at, _)| at);
        let Some(at) = known.or_else(fullest) else { return Ok(()) };
        let Some(bucket) = set.get_mut(at) else { return Ok(()) };
        let full_at = if known.is_some() { bucket.full_at.max(now) } else { now };
        let full_at = full_at.saturating_add(cost);
        match full_at.saturating_sub(now).checked_sub(room.max(cost)) {
            None | Some(0) => {
                *bucket = Bucket { who, full_at };
                Ok(())
            }
            Some(wait) => Err(Duration::from_micros(wait)),
        }
    }

    /// Returns whether a client lacks a token, without taking one.
    pub fn is_spent(&self, who: impl Hash, rate: Rate, now: Duration) -> bool {
        if rate.per_second == 0 {
            return false;
        }
        let each = 1_000_000.0 / f64::from(rate.per_second);
        let room = (each * f64::from(rate.burst.max(1))) as Micros;
        let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX / 2).saturating_add(1);
        let who = self.hasher.hash_one(who);
        let Some(set) = usize::try_from(who % self.sets.len() as u64).ok().and_then(|at| self.sets.get(at)) else {
            return false;
        };
        let set = set.lock().unwrap_or_else(PoisonError::into_inner);
        let known = set.iter().find(|bucket| bucket.who == who);
        known.is_some_and(|bucket| bucket.full_at.max(now).saturating_add(each as Micros) > now + room)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RATE: Rate = Rate { per_second: 10, burst: 5 };

    fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn a_burst_and_then_a_rate() {
        let rates = Rates::new(1_000);
        for _ in 0..5 {
            assert_eq!(rates.take("anna", 1, RATE, at(0)), Ok(()));
        }
        assert_eq!(rates.take("anna", 1, RATE, at(0)), Err(at(100)));
        assert!(rates.is_spent("anna", RATE, at(99)) && !rates.is_spent("anna", RATE, at(100)));
        assert!(
            !rates.is_spent("ben", RATE, at(0)) && !rates.is_spent("anna", Rate { per_second: 0, burst: 1 }, at(0))
        );
        assert_eq!(rates.take("anna", 1, RATE, at(40)), Err(at(60)));
        assert_eq!(rates.take("ben", 5, RATE, at(40)), Ok(()));
        assert_eq!(rates.take("anna", 1, RATE, at(100)), Ok(()));
        assert_eq!(rates.take("anna", 1, RATE, at(100)), Err(at(100)));
        // A client that rests regains one burst and no more.
        let all = (0..100).filter(|_| rates.take("anna", 1, RATE, at(60_000)).is_ok()).count();
        assert_eq!(all, 5);
    }

    #[test]
    fn what_costs_more_than_a_burst_has_its_turn() {
        let rates = Rates::new(10);
        assert_eq!(rates.take(1, 20, RATE, at(0)), Ok(()));
        assert_eq!(rates.take(1, 20, RATE, at(1_999)), Err(at(1)));
        assert_eq!(rates.take(1, 20, RATE, at(2_000)), Ok(()));
    }

    #[test]
    fn no_bound() {
        let rates = Rates::new(10);
        assert!((0..1_000).all(|_| rates.take(1, 1, Rate { per_second: 0, burst: 0 }, at(0)).is_ok()));
        assert_eq!(rates.take(1, 1, Rate { per_second: 1, burst: 0 }, at(0)), Ok(()));
        assert_eq!(rates.take(1, 1, Rate { per_second: 1, burst: 0 }, at(0)), Err(at(1_000)));
    }

    #[test]
    fn who_has_done_most_is_remembered_among_many() {
        let rates = Rates::new(64);
        assert_eq!(format!("{rates:?}"), "Rates { places: 64, .. }");
        while rates.take("attacker", 1, RATE, at(0)).is_ok() {}
        for other in 0..10_000 {
            assert_eq!(rates.take(other, 1, RATE, at(1)), Ok(()));
        }
        assert!(rates.take("attacker", 1, RATE, at(2)).is_err());
    }

    proptest! {
        /// Over any time span, at most a burst plus the rate is taken.
        #[test]
        fn never_more_than_the_rate(steps in prop::collection::vec((0..400_u64, 1..4_u32), 1..200)) {
            let rates = Rates::new(4);
            let (mut now, mut taken) = (0, Vec::new());
            for (pause, cost) in steps {
                now += pause;
                if rates.take(7, cost, RATE, at(now)).is_ok() {
                    taken.push((now, u64::from(cost)));
                }
            }
            for (from, &(begin, _)) in taken.iter().enumerate() {
                let mut sum = 0;
                for &(end, cost) in &taken[from..] {
                    sum += cost;
                    prop_assert!(sum * 100 <= 500 + (end - begin), "{sum} in {} ms", end - begin);
                }
            }
        }
    }
}
