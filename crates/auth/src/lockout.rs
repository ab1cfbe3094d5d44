//! Lock-out: after too many wrong passwords for a name, further attempts are refused for a while.
//!
//! As in CouchDB, failures count by name, by the salt of the password, and by address. So an attacker does not lock
//! out a user at another address, and a new password starts at zero. The time begins with the first failure and is
//! not extended.

use std::collections::{HashMap, VecDeque};

use flatbed_network::Network;
use sha2::{Digest, Sha256};

use crate::error::AuthError;

/// The action after too many failures: the setting `mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LockoutMode {
    /// None; failures are not counted.
    Off,
    /// A log line.
    Warn,
    /// Further attempts are refused.
    #[default]
    Enforce,
}

impl LockoutMode {
    /// Parses the setting; `None` for another word, which CouchDB takes for `off`.
    pub fn from_name(text: &str) -> Option<LockoutMode> {
        match text {
            "off" => Some(LockoutMode::Off),
            "warn" => Some(LockoutMode::Warn),
            "enforce" => Some(LockoutMode::Enforce),
            _ => None,
        }
    }
}

/// The settings of CouchDB's `[chttpd_auth_lockout]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockoutOptions {
    /// The action.
    pub mode: LockoutMode,
    /// The number of failures that triggers the action.
    pub threshold: u32,
    /// The most pairs of names and addresses that are counted; the oldest are dropped.
    pub max_objects: usize,
    /// The duration, in milliseconds from the first failure.
    pub max_lifetime: u64,
}

/// CouchDB's defaults.
impl Default for LockoutOptions {
    fn default() -> LockoutOptions {
        LockoutOptions { mode: LockoutMode::Enforce, threshold: 5, max_objects: 10_000, max_lifetime: 300_000 }
    }
}

/// The decision about an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Checked.
    Allowed,
    /// Checked and logged: too many attempts have failed.
    Suspicious,
    /// Refused unchecked, with [`locked_out`].
    LockedOut,
}

/// The refusal of a locked-out attempt: CouchDB's 403.
pub fn locked_out() -> AuthError {
    AuthError::forbidden("Account is temporarily locked due to multiple authentication failures")
}

/// A digest of name, salt and address, whose size does not depend on the name.
type FailureKey = [u8; 32];

#[derive(Debug)]
struct Failures {
    count: u32,
    /// The time of the first failure, in milliseconds.
    since: u64,
}

/// Failures by name and address: at most [`LockoutOptions::max_objects`] times about 150 bytes.
#[derive(Debug)]
pub struct Lockout {
    options: LockoutOptions,
    failures: HashMap<FailureKey, Failures>,
    /// In the order of their first failures, which is the order in which they end. May hold removed keys.
    order: VecDeque<(FailureKey, u64)>,
}

impl Lockout {
    /// Creates an empty count.
    pub fn new(options: LockoutOptions) -> Lockout {
        Lockout { options, failures: HashMap::new(), order: VecDeque::new() }
    }

    /// Decides about an attempt at `now`, in milliseconds of a monotonic clock. `salt` is that of the password's
    /// hash, empty for a missing name: missing names are locked out like others.
    pub fn judge(&self, name: &str, salt: &str, network: Network, now: u64) -> Verdict {
        let found = self.failures.get(&key(name, salt, network)).filter(|found| !self.is_over(found.since, now));
        let is_over_threshold = found.is_some_and(|found| found.count >= self.options.threshold);
        match (is_over_threshold, self.options.mode) {
            (false, _) | (_, LockoutMode::Off) => Verdict::Allowed,
            (true, LockoutMode::Warn) => Verdict::Suspicious,
            (true, LockoutMode::Enforce) => Verdict::LockedOut,
        }
    }

    /// Counts a failed attempt. As in CouchDB, a successful one resets nothing.
    pub fn fail(&mut self, name: &str, salt: &str, network: Network, now: u64) {
        if self.options.mode == LockoutMode::Off || self.options.max_objects == 0 {
            return;
        }
        while let Some((key, since)) = self.order.front().copied()
            && self.is_over(since, now)
        {
            self.order.pop_front();
            self.failures.remove(&key);
        }
        let key = key(name, salt, network);
        if let Some(found) = self.failures.get_mut(&key) {
            found.count = found.count.saturating_add(1);
            return;
        }
        if self.failures.len() >= self.options.max_objects
            && let Some((oldest, _)) = self.order.pop_front()
        {
            self.failures.remove(&oldest);
        }
        self.failures.insert(key, Failures { count: 1, since: now });
        self.order.push_back((key, now));
    }

    fn is_over(&self, since: u64, now: u64) -> bool {
        now.saturating_sub(since) >= self.options.max_lifetime
    }
}

fn key(name: &str, salt: &str, network: Network) -> FailureKey {
    let mut hash = Sha256::new();
    match network {
        Network::V4(address) => hash.update([[4].as_slice(), &address.octets()].concat()),
        Network::V6(bits) => hash.update([[6].as_slice(), &bits.to_be_bytes()].concat()),
    }
    hash.update((name.len() as u64).to_be_bytes());
    hash.update(name.as_bytes());
    hash.update(salt.as_bytes());
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HERE: Network = Network::V6(1);
    const THERE: Network = Network::V6(2);

    fn failed(lockout: &mut Lockout, name: &str, network: Network, times: usize, now: u64) {
        for _ in 0..times {
            lockout.fail(name, "salt", network, now);
        }
    }

    #[test]
    fn five_failures_lock_out_for_five_minutes() {
        let mut lockout = Lockout::new(LockoutOptions::default());
        failed(&mut lockout, "anna", HERE, 4, 1_000);
        assert_eq!(lockout.judge("anna", "salt", HERE, 1_000), Verdict::Allowed);
        failed(&mut lockout, "anna", HERE, 1, 200_000);
        assert_eq!(lockout.judge("anna", "salt", HERE, 200_000), Verdict::LockedOut);
        // The time runs from the first failure; later ones do not extend it.
        failed(&mut lockout, "anna", HERE, 10, 300_999);
        assert_eq!(lockout.judge("anna", "salt", HERE, 300_999), Verdict::LockedOut);
        assert_eq!(lockout.judge("anna", "salt", HERE, 301_000), Verdict::Allowed);
        failed(&mut lockout, "anna", HERE, 1, 301_000);
        assert_eq!(lockout.judge("anna", "salt", HERE, 301_000), Verdict::Allowed);
        failed(&mut lockout, "anna", HERE, 4, 301_001);
        assert_eq!(lockout.judge("anna", "salt", HERE, 600_999), Verdict::LockedOut);
        let refused = locked_out();
        assert_eq!(
            refused.to_string(),
            "forbidden: Account is temporarily locked due to multiple authentication failures"
        );
        let options = LockoutOptions::default();
        assert_eq!((options.mode, options.threshold), (LockoutMode::Enforce, 5));
        assert_eq!((options.max_objects, options.max_lifetime), (10_000, 300_000));
    }

    #[test]
    fn nobody_locks_another_out() {
        let mut lockout = Lockout::new(LockoutOptions::default());
        failed(&mut lockout, "anna", HERE, 100, 0);
        assert_eq!(lockout.judge("anna", "salt", HERE, 0), Verdict::LockedOut);
        for (name, salt, network) in [
            ("anna", "salt", THERE),
            ("anna", "salt", Network::V4([0, 0, 0, 1].into())),
            ("bob", "salt", HERE),
            ("anna", "new", HERE),
            ("annas", "alt", HERE),
        ] {
            assert_eq!(lockout.judge(name, salt, network, 0), Verdict::Allowed, "{name} {salt} {network:?}");
        }
    }

    #[test]
    fn modes() {
        let with = |mode| {
            let mut lockout = Lockout::new(LockoutOptions { mode, threshold: 1, ..LockoutOptions::default() });
            failed(&mut lockout, "anna", HERE, 1, 0);
            (lockout.judge("anna", "salt", HERE, 0), lockout.failures.len())
        };
        assert_eq!(with(LockoutMode::Off), (Verdict::Allowed, 0));
        assert_eq!(with(LockoutMode::Warn), (Verdict::Suspicious, 1));
        assert_eq!(with(LockoutMode::Enforce), (Verdict::LockedOut, 1));
        let named = ["off", "warn", "enforce", "Off", ""].map(LockoutMode::from_name);
        assert_eq!(named, [Some(LockoutMode::Off), Some(LockoutMode::Warn), Some(LockoutMode::Enforce), None, None]);
    }

    #[test]
    fn memory_is_bounded() {
        let mut lockout = Lockout::new(LockoutOptions { max_objects: 3, threshold: 1, ..LockoutOptions::default() });
        let locked = |lockout: &Lockout, now| {
            ["a", "b", "c", "d"].map(|name| lockout.judge(name, "salt", HERE, now) == Verdict::LockedOut)
        };
        for (now, name) in ["a", "b", "c"].into_iter().enumerate() {
            failed(&mut lockout, name, HERE, 1, now as u64);
        }
        assert_eq!(locked(&lockout, 2), [true, true, true, false]);
        failed(&mut lockout, "d", HERE, 1, 3);
        assert_eq!(locked(&lockout, 3), [false, true, true, true]);
        // Ended counts are dropped first.
        failed(&mut lockout, "a", HERE, 1, 300_002);
        assert_eq!((lockout.failures.len(), lockout.order.len()), (2, 2));
        assert_eq!(locked(&lockout, 300_002), [true, false, false, true]);
        let mut none = Lockout::new(LockoutOptions { max_objects: 0, ..LockoutOptions::default() });
        failed(&mut none, "a", HERE, 9, 0);
        assert_eq!((none.failures.len(), none.order.len()), (0, 0));
    }

    proptest! {
        /// Compared with a list of failures that is never cleaned up.
        #[test]
        fn as_a_model_has_it(attempts in prop::collection::vec((0..3_usize, 0..2_usize, 0..60u64, any::<bool>()), 0..60)) {
            let options = LockoutOptions { threshold: 3, max_lifetime: 100, ..LockoutOptions::default() };
            let mut lockout = Lockout::new(options);
            let mut firsts: HashMap<(usize, usize), (u64, u32)> = HashMap::new();
            let mut now = 0;
            for (name, network, later, fails) in attempts {
                now += later;
                let (text, at) = (["a", "b", "c"][name], [HERE, THERE][network]);
                let entry = firsts.get(&(name, network)).copied().filter(|(since, _)| now - since < 100);
                let expected = if entry.is_some_and(|(_, count)| count >= 3) { Verdict::LockedOut } else { Verdict::Allowed };
                prop_assert_eq!(lockout.judge(text, "salt", at, now), expected);
                if fails {
                    lockout.fail(text, "salt", at, now);
                    let (since, count) = entry.unwrap_or((now, 0));
                    firsts.insert((name, network), (since, count + 1));
                }
            }
            prop_assert_eq!(lockout.failures.len(), lockout.order.len());
        }
    }
}
