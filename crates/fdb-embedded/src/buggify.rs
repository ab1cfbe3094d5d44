//! Faults on demand, reproducible by seed.
//!
//! With a fault injector a commit may answer 1020, or 1021 with or without being applied, a read 1007, and a watch may
//! fire without a change or late. All are answers that a FoundationDB cluster may give at any time.

use std::sync::Mutex;
use std::time::Duration;

use crate::snapshot::lock;
use crate::stats::Counter;

/// How often faults happen, and the seed that decides which.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Buggify {
    /// Chance of a fault at each place that can have one, 0.0 to 1.0.
    pub probability: f64,
    /// Equal seeds give equal faults to equal sequences of calls.
    pub seed: u64,
}

impl Buggify {
    /// From `PROBABILITY,SEED`; `None` where that is not what the text is, or the probability is not within 0 and 1.
    pub fn parse(text: &str) -> Option<Buggify> {
        let (probability, seed) = text.split_once(',')?;
        let (probability, seed) = (probability.trim().parse().ok()?, seed.trim().parse().ok()?);
        (0.0..=1.0).contains(&probability).then_some(Buggify { probability, seed })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitFault {
    /// 1020 without a conflict.
    NotCommitted,
    /// 1021, and nothing is written.
    UnknownNotApplied,
    /// 1021, and everything is written.
    UnknownApplied,
}

/// The engine's dice.
pub(crate) struct Faults {
    setting: Option<Buggify>,
    state: Mutex<u64>,
    pub(crate) injected: Counter,
}

impl Faults {
    pub(crate) fn new(setting: Option<Buggify>) -> Faults {
        let seed = setting.map_or(0, |setting| setting.seed);
        Faults { setting, state: Mutex::new(seed), injected: Counter::default() }
    }

    /// A number from the seed's sequence, if a fault shall happen now.
    fn roll(&self) -> Option<u64> {
        let setting = self.setting?;
        let mut state = lock(&self.state);
        let chance = split_mix(&mut state);
        let choice = split_mix(&mut state);
        let happens = ((chance >> 11) as f64) < setting.probability * (1u64 << 53) as f64;
        if happens {
            self.injected.add(1);
        }
        happens.then_some(choice)
    }

    pub(crate) fn on_commit(&self) -> Option<CommitFault> {
        const FAULTS: [CommitFault; 3] =
            [CommitFault::NotCommitted, CommitFault::UnknownNotApplied, CommitFault::UnknownApplied];
        self.roll().map(|choice| FAULTS[(choice % 3) as usize])
    }

    /// Whether a read shall answer 1007.
    pub(crate) fn on_read(&self) -> bool {
        self.roll().is_some()
    }

    /// Whether a new watch shall fire soon without a change.
    pub(crate) fn on_watch(&self) -> Option<Duration> {
        self.roll().map(late)
    }

    /// Whether a watch shall fire late.
    pub(crate) fn on_fire(&self) -> Option<Duration> {
        self.roll().map(late)
    }
}

/// Up to a fifth of a second.
fn late(choice: u64) -> Duration {
    Duration::from_millis(choice % 200)
}

/// The SplitMix64 generator (Steele, Lea, Flood 2014).
pub(crate) fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form() {
        assert_eq!(Buggify::parse("0.25, 7"), Some(Buggify { probability: 0.25, seed: 7 }));
        for bad in ["", "1", "2,1", "-0.1,1", "x,1", "0.1,x", "NaN,1"] {
            assert_eq!(Buggify::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn equal_seeds_give_equal_faults() {
        let faults = |seed| {
            let faults = Faults::new(Some(Buggify { probability: 0.3, seed }));
            (0..200).map(|_| faults.on_commit()).collect::<Vec<_>>()
        };
        assert_eq!(faults(1), faults(1));
        assert_ne!(faults(1), faults(2));
        assert!((30..90).contains(&faults(1).iter().flatten().count()));
    }
}
