//! Faults on demand, reproducible by seed.
//!
//! With a fault injector a commit may answer 1020, or 1021 with or without being applied, a read 1007 or 1009; answers
//! come late, and a watch fires late or without a change. All are what a FoundationDB cluster may do at any time.
//!
//! Each kind of call draws from a sequence of its own, so that what one kind does, however often, does not change what
//! happens to another. The n-th draw of a sequence follows from the seed and n alone.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use crate::shared::stats::{Counter, FaultCount};

/// How often faults happen, and the seed that decides which.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Buggify {
    /// Chance of a fault at each place that can have one, 0.0 to 1.0. The n-th read of a transaction fails with the n-th
    /// part of a quarter of it, so that transactions with many reads come to an end too.
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

/// FoundationDB's network options `client_buggify_*`, which may change at any time and hold for every engine that was
/// given them.
///
/// A place that can have a fault is active with one chance, drawn once, and fires with the other when it is active.
#[derive(Debug)]
pub struct ClientBuggify {
    is_enabled: AtomicBool,
    activated_percent: AtomicU8,
    fired_percent: AtomicU8,
    /// Which places are active is drawn anew after each change of its chance.
    drawing: AtomicU64,
}

/// What FoundationDB begins with, in percent.
const CLIENT_PERCENT_DEFAULT: u8 = 25;
/// The chance of an active place in FoundationDB's reads, which is not the option's.
const CLIENT_READ_CHANCE: f64 = 0.01;

impl ClientBuggify {
    /// Disabled, with FoundationDB's two chances of 25 %.
    #[allow(clippy::new_without_default, reason = "it stands in a static, which a trait's function cannot make")]
    pub const fn new() -> ClientBuggify {
        ClientBuggify {
            is_enabled: AtomicBool::new(false),
            activated_percent: AtomicU8::new(CLIENT_PERCENT_DEFAULT),
            fired_percent: AtomicU8::new(CLIENT_PERCENT_DEFAULT),
            drawing: AtomicU64::new(0),
        }
    }

    /// Options 80 (true) and 81 (false).
    pub fn enable(&self, is_enabled: bool) {
        self.is_enabled.store(is_enabled, Ordering::Relaxed);
    }

    /// Option 82: the chance that a place is active, 0 to 100; more counts as 100.
    pub fn set_activated_percent(&self, percent: u8) {
        self.activated_percent.store(percent.min(100), Ordering::Relaxed);
        self.drawing.fetch_add(1, Ordering::Relaxed);
    }

    /// Option 83: the chance that an active place fires, 0 to 100; more counts as 100.
    pub fn set_fired_percent(&self, percent: u8) {
        self.fired_percent.store(percent.min(100), Ordering::Relaxed);
    }

    fn chance(&self, seed: u64, place: Place) -> f64 {
        let percent = |percent: &AtomicU8| f64::from(percent.load(Ordering::Relaxed)) / 100.0;
        let drawing = self.drawing.load(Ordering::Relaxed);
        let drawn = mix(sequence(seed.wrapping_add(drawing), place).wrapping_sub(GAMMA));
        match place {
            _ if !is_below(drawn, percent(&self.activated_percent)) => 0.0,
            Place::Read => CLIENT_READ_CHANCE,
            _ => percent(&self.fired_percent),
        }
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadFault {
    /// 1007.
    TooOld,
    /// 1009.
    FutureVersion,
}

/// Where a fault may happen; each has a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Commit,
    CommitAnswer,
    Read,
    ReadVersion,
    ReadAnswer,
    SetWatch,
    FireWatch,
}

const PLACES: usize = 7;

/// What is counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    NotCommitted,
    UnknownNotApplied,
    UnknownApplied,
    TooOld,
    FutureVersion,
    LateCommit,
    LateRead,
    SpuriousWatch,
    LateWatch,
}

const KINDS: [&str; 9] = [
    "not_committed",
    "unknown_not_applied",
    "unknown_applied",
    "too_old",
    "future_version",
    "late_commit",
    "late_read",
    "spurious_watch",
    "late_watch",
];

/// A transaction's first read fails with this share of the chance.
const READ_SHARE: f64 = 0.25;

/// The engine's dice.
pub(crate) struct Faults {
    setting: Option<Buggify>,
    client: Option<&'static ClientBuggify>,
    seed: u64,
    draws: [AtomicU64; PLACES],
    counts: [Counter; KINDS.len()],
}

impl Faults {
    /// With neither a setting nor the options enabled nothing happens. The options take the setting's seed, or one of
    /// their own that nobody knows, as FoundationDB's do.
    pub(crate) fn new(setting: Option<Buggify>, client: Option<&'static ClientBuggify>) -> Faults {
        let seed = setting.map_or_else(|| RandomState::new().hash_one(0u8), |setting| setting.seed);
        Faults { setting, client, seed, draws: Default::default(), counts: Default::default() }
    }

    /// The chance of a fault; `share` is the part of the setting's that holds here, and not of the options'.
    fn chance(&self, place: Place, share: f64) -> f64 {
        match (self.client, self.setting) {
            (Some(client), _) if client.is_enabled.load(Ordering::Relaxed) => client.chance(self.seed, place),
            (_, Some(setting)) => setting.probability * share,
            _ => 0.0,
        }
    }

    /// A number from the place's sequence, if a fault shall happen now.
    #[inline]
    fn roll(&self, place: Place, share: f64) -> Option<u64> {
        if self.setting.is_none() && self.client.is_none_or(|client| !client.is_enabled.load(Ordering::Relaxed)) {
            return None;
        }
        self.draw(place, share)
    }

    fn draw(&self, place: Place, share: f64) -> Option<u64> {
        let at = self.draws.get(place as usize)?.fetch_add(2, Ordering::Relaxed);
        let number = |at: u64| mix(sequence(self.seed, place).wrapping_add(at.wrapping_mul(GAMMA)));
        is_below(number(at), self.chance(place, share)).then(|| number(at.wrapping_add(1)))
    }

    fn count(&self, kind: Kind) {
        if let Some(count) = self.counts.get(kind as usize) {
            count.add(1);
        }
    }

    fn late(&self, place: Place, kind: Kind) -> Option<Duration> {
        let delay = delay(self.roll(place, 1.0)?);
        self.count(kind);
        Some(delay)
    }

    pub(crate) fn on_commit(&self) -> Option<CommitFault> {
        let (fault, kind) = match self.roll(Place::Commit, 1.0)? % 3 {
            0 => (CommitFault::NotCommitted, Kind::NotCommitted),
            1 => (CommitFault::UnknownNotApplied, Kind::UnknownNotApplied),
            _ => (CommitFault::UnknownApplied, Kind::UnknownApplied),
        };
        self.count(kind);
        Some(fault)
    }

    /// How late the answer of a commit shall come.
    pub(crate) fn on_commit_answer(&self) -> Option<Duration> {
        self.late(Place::CommitAnswer, Kind::LateCommit)
    }

    /// Whether a transaction's read shall fail; `nth` counts from 1.
    #[inline]
    pub(crate) fn on_read(&self, nth: u32) -> Option<ReadFault> {
        let choice = self.roll(Place::Read, READ_SHARE / f64::from(nth.max(1)))?;
        let (fault, kind) = match choice % 2 {
            0 => (ReadFault::TooOld, Kind::TooOld),
            _ => (ReadFault::FutureVersion, Kind::FutureVersion),
        };
        self.count(kind);
        Some(fault)
    }

    /// Whether asking for a read version shall answer 1009.
    #[inline]
    pub(crate) fn on_read_version(&self) -> bool {
        let happens = self.roll(Place::ReadVersion, READ_SHARE).is_some();
        if happens {
            self.count(Kind::FutureVersion);
        }
        happens
    }

    /// How late the answer of a read shall come.
    #[inline]
    pub(crate) fn on_read_answer(&self) -> Option<Duration> {
        self.late(Place::ReadAnswer, Kind::LateRead)
    }

    /// Whether a new watch shall fire soon without a change.
    pub(crate) fn on_watch(&self) -> Option<Duration> {
        self.late(Place::SetWatch, Kind::SpuriousWatch)
    }

    /// Whether a watch shall fire late.
    pub(crate) fn on_fire(&self) -> Option<Duration> {
        self.late(Place::FireWatch, Kind::LateWatch)
    }

    /// How often each kind happened.
    pub(crate) fn counts(&self) -> Vec<FaultCount> {
        let counts = KINDS.iter().zip(&self.counts);
        counts.map(|(&kind, count)| FaultCount { kind, count: count.get() }).collect()
    }
}

/// Mostly up to 5 ms; one in sixteen 50 to 200 ms, as a cluster's slowest answers are.
fn delay(choice: u64) -> Duration {
    let rest = choice / 16;
    Duration::from_micros(if choice.is_multiple_of(16) { 50_000 + rest % 150_000 } else { rest % 5_000 })
}

/// The step of the SplitMix64 generator (Steele, Lea, Flood 2014).
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// The generator's output function.
fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(GAMMA);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Where the sequence of a place begins.
fn sequence(seed: u64, place: Place) -> u64 {
    mix(mix(seed) ^ place as u64)
}

fn is_below(number: u64, chance: f64) -> bool {
    ((number >> 11) as f64) < chance * (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(probability: f64, seed: u64) -> Faults {
        Faults::new(Some(Buggify { probability, seed }), None)
    }

    fn commits(faults: &Faults) -> Vec<Option<CommitFault>> {
        (0..200).map(|_| faults.on_commit()).collect()
    }

    #[test]
    fn the_text_form() {
        assert_eq!(Buggify::parse("0.25, 7"), Some(Buggify { probability: 0.25, seed: 7 }));
        for bad in ["", "1", "2,1", "-0.1,1", "x,1", "0.1,x", "NaN,1", "0.1,-1", "0.1,1,2"] {
            assert_eq!(Buggify::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn equal_seeds_give_equal_faults() {
        let of = |seed| commits(&faults(0.3, seed));
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        assert!((30..90).contains(&of(1).iter().flatten().count()));
    }

    #[test]
    fn one_kind_of_call_does_not_disturb_another() {
        let (alone, beside) = (faults(0.3, 1), faults(0.3, 1));
        for _ in 0..77 {
            beside.on_read(1);
            beside.on_read_answer();
            beside.on_watch();
        }
        assert_eq!(commits(&alone), commits(&beside));
    }

    #[test]
    fn each_kind_is_counted() {
        let faults = faults(0.5, 1);
        for _ in 0..400 {
            let _ = (faults.on_commit(), faults.on_commit_answer(), faults.on_read(1), faults.on_read_version());
            let _ = (faults.on_read_answer(), faults.on_watch(), faults.on_fire());
        }
        let counts = faults.counts();
        assert!(counts.iter().all(|count| count.count > 0), "{counts:?}");
        assert!(counts.iter().map(|count| count.count).sum::<u64>() < 1_400);
    }

    #[test]
    fn a_transaction_with_many_reads_comes_to_its_end() {
        let faults = faults(0.5, 1);
        let fails = || (1..=1_000).any(|nth| faults.on_read(nth).is_some());
        let failed = (0..1_000).filter(|_| fails()).count();
        assert!((450..750).contains(&failed), "{failed}");
    }

    #[test]
    fn delays_have_a_tail() {
        let delays: Vec<Duration> = (0..1_600).map(|at| delay(mix(at))).collect();
        let long = delays.iter().filter(|delay| **delay >= Duration::from_millis(50)).count();
        let short = delays.iter().filter(|delay| **delay < Duration::from_millis(5)).count();
        assert!((50..150).contains(&long) && long + short == 1_600, "{long} {short}");
        assert!(delays.iter().all(|delay| *delay < Duration::from_millis(200)));
    }

    #[test]
    fn the_client_options_hold_at_once() {
        static OPTIONS: ClientBuggify = ClientBuggify::new();
        let faults = Faults::new(Some(Buggify { probability: 0.0, seed: 1 }), Some(&OPTIONS));
        let happens = || commits(&faults).iter().flatten().count();
        assert_eq!(happens(), 0);
        OPTIONS.enable(true);
        OPTIONS.set_activated_percent(100);
        OPTIONS.set_fired_percent(100);
        assert_eq!(happens(), 200);
        OPTIONS.set_fired_percent(50);
        assert!((60..140).contains(&happens()));
        OPTIONS.set_activated_percent(0);
        assert_eq!(happens(), 0);
        OPTIONS.set_activated_percent(100);
        let reads = (0..10_000).filter(|_| faults.on_read(1).is_some()).count();
        assert!((50..200).contains(&reads), "a read fails in one of a hundred, whatever the option: {reads}");
        OPTIONS.enable(false);
        assert_eq!(happens(), 0);
    }

    #[test]
    fn which_places_are_active_is_drawn_anew() {
        static OPTIONS: ClientBuggify = ClientBuggify::new();
        let places = [Place::Commit, Place::CommitAnswer, Place::ReadVersion, Place::ReadAnswer, Place::SetWatch];
        let mut drawings = std::collections::BTreeSet::new();
        for _ in 0..40 {
            OPTIONS.set_activated_percent(50);
            drawings.insert(places.map(|place| OPTIONS.chance(3, place) > 0.0));
        }
        assert!(drawings.len() > 10, "{drawings:?}");
    }
}
