//! Fault injection, reproducible by seed.
//!
//! With a fault injector, commits and reads fail with retryable codes, a commit of unknown result may or may not be
//! applied, answers come late, pages of range reads are short, sizes are inexact, and watches fire late, without a
//! change or with an error. A FoundationDB cluster may do all of this at any time.
//!
//! Each kind of call draws from its own sequence, so the number of calls of one kind does not change the faults of
//! another. The n-th draw of a sequence depends on the seed and n alone.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use crate::base::error::{Error, Result};
use crate::shared::stats::{Counter, FaultCount};

/// The probabilities and the seed of injected faults.
///
/// | where | what | chance |
/// |---|---|---|
/// | commit | a quarter each 1020; 1021 and not applied; 1021 and applied; an eighth each 1007; 1042 | `probability` |
/// | answer of a commit, of a read | later: fifteen of sixteen within 5 ms, the rest 50 to 200 ms | `probability` |
/// | n-th read of a transaction | 1007, 1009 or 1037 | a quarter of it, divided by n |
/// | `get_read_version` | 1009 or 1078; 1051 with batch priority, 1213 or 1223 with a tag | a quarter of it |
/// | new watch | within 200 ms it fires without a change, or, one of four, ends with 1009 | `probability` |
/// | watch that fires | up to 200 ms late, and not at all if its key has its old value again by then | `probability` |
/// | page of a range or a mapped range | fewer rows than there are, with `more` set: a quarter have none, half one to three, the rest up to a thousand, below the limit | `short_pages` |
/// | sizes, split points | half to one and a half of the true size, or 0 below 3 MB; half of the points are missing | `probability` |
///
/// A short page is a read with a lower limit: it conflicts with its rows, and without rows it conflicts with nothing.
/// A late commit is on disk and visible before its answer.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Buggify {
    /// The probability of a fault at each place, 0.0 to 1.0. The n-th read of a transaction fails with a quarter of it
    /// divided by n, so that transactions with many reads complete too.
    pub probability: f64,
    /// Equal seeds give equal faults for equal sequences of calls.
    pub seed: u64,
    /// The probability that a range read returns fewer rows than it could, or none, with `more` set; 0.0 to 1.0.
    pub short_pages: f64,
}

impl Buggify {
    /// Faults with a probability, 0.0 to 1.0, and no short pages.
    pub fn new(probability: f64, seed: u64) -> Buggify {
        Buggify { probability, seed, short_pages: 0.0 }
    }

    /// Sets the probability of short pages, 0.0 to 1.0.
    #[must_use]
    pub fn with_short_pages(self, short_pages: f64) -> Buggify {
        Buggify { short_pages, ..self }
    }

    /// Parses `PROBABILITY,SEED` or `PROBABILITY,SEED,SHORT_PAGES`; `None` for any other text, and for a probability
    /// outside of 0 to 1. Without the third number short pages are those of [`Buggify::new`].
    pub fn parse(text: &str) -> Option<Buggify> {
        let mut parts = text.split(',').map(str::trim);
        let (probability, seed) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let mut buggify = Buggify::new(probability, seed);
        if let Some(short_pages) = parts.next() {
            buggify.short_pages = short_pages.parse().ok()?;
        }
        let is_chance = |chance: f64| (0.0..=1.0).contains(&chance);
        let is_valid = is_chance(buggify.probability) && is_chance(buggify.short_pages) && parts.next().is_none();
        is_valid.then_some(buggify)
    }
}

/// FoundationDB's network options `client_buggify_*`. They may change at any time, and apply to every engine that
/// shares this value.
///
/// A place that can have a fault is activated with one probability, drawn once, and fires with the other when it is
/// active.
#[derive(Debug)]
pub struct ClientBuggify {
    is_enabled: AtomicBool,
    activated_percent: AtomicU8,
    fired_percent: AtomicU8,
    /// The drawing of the active places; each change of its probability starts a new one.
    drawing: AtomicU64,
}

/// FoundationDB's default, in percent.
const CLIENT_PERCENT_DEFAULT: u8 = 25;
/// The probability of an active place in FoundationDB's reads, which ignores the option.
const CLIENT_READ_CHANCE: f64 = 0.01;

impl ClientBuggify {
    /// Disabled, with FoundationDB's two probabilities of 25 %.
    #[allow(clippy::new_without_default, reason = "it stands in a static, which a trait's function cannot make")]
    pub const fn new() -> ClientBuggify {
        ClientBuggify {
            is_enabled: AtomicBool::new(false),
            activated_percent: AtomicU8::new(CLIENT_PERCENT_DEFAULT),
            fired_percent: AtomicU8::new(CLIENT_PERCENT_DEFAULT),
            drawing: AtomicU64::new(0),
        }
    }

    /// Sets options 80 (true) and 81 (false).
    pub fn enable(&self, is_enabled: bool) {
        self.is_enabled.store(is_enabled, Ordering::Relaxed);
    }

    /// Sets option 82: the probability that a place is active, 0 to 100; more counts as 100.
    pub fn set_activated_percent(&self, percent: u8) {
        self.activated_percent.store(percent.min(100), Ordering::Relaxed);
        self.drawing.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets option 83: the probability that an active place fires, 0 to 100; more counts as 100.
    pub fn set_fired_percent(&self, percent: u8) {
        self.fired_percent.store(percent.min(100), Ordering::Relaxed);
    }

    fn chance(&self, seed: u64, place: FaultPlace) -> f64 {
        let percent = |percent: &AtomicU8| f64::from(percent.load(Ordering::Relaxed)) / 100.0;
        let drawing = self.drawing.load(Ordering::Relaxed);
        let drawn = mix(sequence(seed.wrapping_add(drawing), place).wrapping_sub(GAMMA));
        match place {
            _ if !is_below(drawn, percent(&self.activated_percent)) => 0.0,
            FaultPlace::Read => CLIENT_READ_CHANCE,
            // FoundationDB's client has no such section, and its Python and Node bindings stop at a page without rows.
            FaultPlace::Page | FaultPlace::Size => 0.0,
            _ => percent(&self.fired_percent),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitFault {
    /// Nothing is written, and the error is that of a cluster that does not commit now.
    Refused(Error),
    /// 1021, and nothing is written.
    UnknownNotApplied,
    /// 1021, and everything is written.
    UnknownApplied,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WatchFault {
    pub(crate) after: Duration,
    /// A result of `Ok` fires the watch without a change; an error ends it with 1009.
    pub(crate) result: Result<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultPlace {
    Commit,
    CommitAnswer,
    Read,
    ReadVersion,
    ReadAnswer,
    SetWatch,
    FireWatch,
    Page,
    Size,
}

const PLACES: usize = 9;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultKind {
    NotCommitted,
    UnknownNotApplied,
    UnknownApplied,
    TooOld,
    FutureVersion,
    LateCommit,
    LateRead,
    SpuriousWatch,
    LateWatch,
    WatchError,
    ProcessBehind,
    MemoryLimit,
    Throttled,
    ShortPage,
    EmptyPage,
    RoughSize,
    UnnoticedChange,
}

const KINDS: [&str; 17] = [
    "not_committed",
    "unknown_not_applied",
    "unknown_applied",
    "too_old",
    "future_version",
    "late_commit",
    "late_read",
    "spurious_watch",
    "late_watch",
    "watch_error",
    "process_behind",
    "memory_limit",
    "throttled",
    "short_page",
    "empty_page",
    "rough_size",
    "unnoticed_change",
];

/// The share of the probability for a transaction's first read.
const READ_SHARE: f64 = 0.25;

pub(crate) struct Faults {
    setting: Option<Buggify>,
    client: Option<&'static ClientBuggify>,
    seed: u64,
    draws: [AtomicU64; PLACES],
    counts: [Counter; KINDS.len()],
}

impl Faults {
    /// Creates the generator. Without a setting and without enabled options it injects nothing. The options use the
    /// setting's seed, or a random one, as FoundationDB's do.
    pub(crate) fn new(setting: Option<Buggify>, client: Option<&'static ClientBuggify>) -> Faults {
        let seed = setting.map_or_else(|| RandomState::new().hash_one(0u8), |setting| setting.seed);
        Faults { setting, client, seed, draws: Default::default(), counts: Default::default() }
    }

    /// The probability of a fault; `share` applies to the setting's probability, not to the options'.
    fn chance(&self, place: FaultPlace, share: f64) -> f64 {
        match (self.client, self.setting) {
            (Some(client), _) if client.is_enabled.load(Ordering::Relaxed) => client.chance(self.seed, place),
            (_, Some(setting)) if place == FaultPlace::Page => setting.short_pages,
            (_, Some(setting)) => setting.probability * share,
            _ => 0.0,
        }
    }

    /// Draws a number from the place's sequence if a fault is to happen now.
    #[inline]
    fn roll(&self, place: FaultPlace, share: f64) -> Option<u64> {
        if self.setting.is_none() && self.client.is_none_or(|client| !client.is_enabled.load(Ordering::Relaxed)) {
            return None;
        }
        self.draw(place, share)
    }

    fn draw(&self, place: FaultPlace, share: f64) -> Option<u64> {
        let at = self.draws.get(place as usize)?.fetch_add(2, Ordering::Relaxed);
        let number = |at: u64| mix(sequence(self.seed, place).wrapping_add(at.wrapping_mul(GAMMA)));
        is_below(number(at), self.chance(place, share)).then(|| number(at.wrapping_add(1)))
    }

    fn count(&self, kind: FaultKind) {
        if let Some(count) = self.counts.get(kind as usize) {
            count.add(1);
        }
    }

    fn late(&self, place: FaultPlace, kind: FaultKind) -> Option<Duration> {
        let delay = delay(self.roll(place, 1.0)?);
        self.count(kind);
        Some(delay)
    }

    fn error(&self, kind: FaultKind, error: Error) -> Error {
        self.count(kind);
        error
    }

    pub(crate) fn on_commit(&self) -> Option<CommitFault> {
        let choice = self.roll(FaultPlace::Commit, 1.0)?;
        Some(match choice % 8 {
            0 | 1 => CommitFault::Refused(self.error(FaultKind::NotCommitted, Error::NOT_COMMITTED)),
            2 | 3 => {
                self.count(FaultKind::UnknownNotApplied);
                CommitFault::UnknownNotApplied
            }
            4 | 5 => {
                self.count(FaultKind::UnknownApplied);
                CommitFault::UnknownApplied
            }
            6 => CommitFault::Refused(self.error(FaultKind::TooOld, Error::TRANSACTION_TOO_OLD)),
            _ => CommitFault::Refused(self.error(FaultKind::MemoryLimit, Error::COMMIT_PROXY_MEMORY_LIMIT_EXCEEDED)),
        })
    }

    pub(crate) fn on_commit_answer(&self) -> Option<Duration> {
        self.late(FaultPlace::CommitAnswer, FaultKind::LateCommit)
    }

    /// Returns the error of a transaction's read; `nth` counts from 1.
    #[inline]
    pub(crate) fn on_read(&self, nth: u32) -> Option<Error> {
        let choice = self.roll(FaultPlace::Read, READ_SHARE / f64::from(nth.max(1)))?;
        Some(match choice % 3 {
            0 => self.error(FaultKind::TooOld, Error::TRANSACTION_TOO_OLD),
            1 => self.error(FaultKind::FutureVersion, Error::FUTURE_VERSION),
            _ => self.error(FaultKind::ProcessBehind, Error::PROCESS_BEHIND),
        })
    }

    /// Returns the error of a read version. A cluster throttles transactions of low priority and those with tags.
    #[inline]
    pub(crate) fn on_read_version(&self, is_batch: bool, has_tags: bool) -> Option<Error> {
        let choice = self.roll(FaultPlace::ReadVersion, READ_SHARE)?;
        Some(match choice % 4 {
            0 if is_batch => self.error(FaultKind::Throttled, Error::BATCH_TRANSACTION_THROTTLED),
            1 if has_tags && (choice / 4).is_multiple_of(2) => self.error(FaultKind::Throttled, Error::TAG_THROTTLED),
            1 if has_tags => self.error(FaultKind::Throttled, Error::PROXY_TAG_THROTTLED),
            2 => self.error(FaultKind::MemoryLimit, Error::GRV_PROXY_MEMORY_LIMIT_EXCEEDED),
            _ => self.error(FaultKind::FutureVersion, Error::FUTURE_VERSION),
        })
    }

    /// Returns the most rows of a page, fewer than its limit; 0 for an empty page. A quarter of such pages are empty,
    /// half have at most one to three rows, the rest up to a thousand.
    #[inline]
    pub(crate) fn on_page(&self, limit: Option<u32>) -> Option<u32> {
        let choice = self.roll(FaultPlace::Page, 1.0)?;
        let (kind, rest) = (choice % 4, choice / 4);
        let rows = match kind {
            0 => 0,
            1 | 2 => 1 + rest % 3,
            _ => 1 + rest % 1_000,
        };
        Some((rows as u32).min(limit.map_or(u32::MAX, |limit| limit.saturating_sub(1))))
    }

    /// Counts a page that a fault cut to `rows`.
    pub(crate) fn count_page(&self, rows: usize) {
        self.count(if rows == 0 { FaultKind::EmptyPage } else { FaultKind::ShortPage });
    }

    /// Returns a cluster's estimate of a size: 0 for small ranges, which have no key in its sample, and up to half
    /// more or less for others.
    pub(crate) fn on_size(&self, bytes: i64) -> i64 {
        /// FoundationDB calls smaller estimates inexact.
        const EXACT_FROM_BYTES: i64 = 3_000_000;
        let Some(choice) = self.roll(FaultPlace::Size, 1.0) else { return bytes };
        self.count(FaultKind::RoughSize);
        if bytes < EXACT_FROM_BYTES && choice.is_multiple_of(2) {
            return 0;
        }
        (bytes as f64 * (0.5 + ((choice / 2) % 1_000) as f64 / 1_000.0)) as i64
    }

    /// Removes some points between the first and the last, as if they were missing in the sample.
    pub(crate) fn on_split_points(&self, points: &mut Vec<Vec<u8>>) {
        let Some(choice) = self.roll(FaultPlace::Size, 1.0) else { return };
        self.count(FaultKind::RoughSize);
        let (mut at, last) = (0u64, points.len().saturating_sub(1) as u64);
        points.retain(|_| {
            let is_end = at == 0 || at == last;
            let is_kept = is_end || mix(choice.wrapping_add(at)).is_multiple_of(2);
            at += 1;
            is_kept
        });
    }

    #[inline]
    pub(crate) fn on_read_answer(&self) -> Option<Duration> {
        self.late(FaultPlace::ReadAnswer, FaultKind::LateRead)
    }

    /// Returns the fault of a new watch: three of four fire without a change, the others end with 1009.
    pub(crate) fn on_watch(&self) -> Option<WatchFault> {
        let choice = self.roll(FaultPlace::SetWatch, 1.0)?;
        let result = match choice % 4 {
            0 => Err(self.error(FaultKind::WatchError, Error::FUTURE_VERSION)),
            _ => {
                self.count(FaultKind::SpuriousWatch);
                Ok(())
            }
        };
        Some(WatchFault { after: delay(choice / 4), result })
    }

    /// Returns the delay of a firing watch.
    pub(crate) fn on_fire(&self) -> Option<Duration> {
        self.late(FaultPlace::FireWatch, FaultKind::LateWatch)
    }

    /// Counts a watch whose key had its old value again before it fired late.
    pub(crate) fn count_unnoticed(&self) {
        self.count(FaultKind::UnnoticedChange);
    }

    pub(crate) fn counts(&self) -> Vec<FaultCount> {
        let counts = KINDS.iter().zip(&self.counts);
        counts.map(|(&kind, count)| FaultCount { kind, count: count.get() }).collect()
    }
}

/// Mostly up to 5 ms; one in sixteen 50 to 200 ms, like a cluster's slowest answers.
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

fn sequence(seed: u64, place: FaultPlace) -> u64 {
    mix(mix(seed) ^ place as u64)
}

fn is_below(number: u64, chance: f64) -> bool {
    ((number >> 11) as f64) < chance * (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(probability: f64, seed: u64) -> Faults {
        Faults::new(Some(Buggify::new(probability, seed)), None)
    }

    fn commits(faults: &Faults) -> Vec<Option<CommitFault>> {
        (0..200).map(|_| faults.on_commit()).collect()
    }

    #[test]
    fn the_text_form() {
        let buggify = |probability, short_pages| Some(Buggify { probability, seed: 7, short_pages });
        assert_eq!(Buggify::parse("0.25, 7"), buggify(0.25, 0.0));
        assert_eq!(Buggify::parse("0,7"), buggify(0.0, 0.0));
        assert_eq!(Buggify::parse("0.25,7, 0.5"), buggify(0.25, 0.5));
        assert_eq!(Buggify::parse("0,7,0.3"), buggify(0.0, 0.3), "short pages alone");
        for bad in
            ["", "1", "2,1", "-0.1,1", "x,1", "0.1,x", "NaN,1", "0.1,-1", "0.1,1,2", "0.1,1,", "0.1,1,NaN", "0,1,0,0"]
        {
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
            beside.on_page(None);
            beside.on_size(1);
        }
        assert_eq!(commits(&alone), commits(&beside));
    }

    #[test]
    fn each_kind_is_counted() {
        let faults = Faults::new(Some(Buggify::new(0.5, 1).with_short_pages(0.3)), None);
        for _ in 0..400 {
            let _ = (faults.on_commit(), faults.on_commit_answer(), faults.on_read(1));
            let _ = (faults.on_read_answer(), faults.on_watch(), faults.on_fire(), faults.on_size(1));
            let _ = faults.on_read_version(true, true);
            faults.count_unnoticed();
            if let Some(rows) = faults.on_page(None) {
                faults.count_page(rows as usize);
            }
        }
        let counts = faults.counts();
        assert!(counts.iter().all(|count| count.count > 0), "{counts:?}");
        assert!(counts.iter().map(|count| count.count).sum::<u64>() < 2_400);
    }

    #[test]
    fn a_transaction_with_many_reads_comes_to_its_end() {
        let faults = faults(0.5, 1);
        let fails = || (1..=1_000).any(|nth| faults.on_read(nth).is_some());
        let failed = (0..1_000).filter(|_| fails()).count();
        assert!((450..750).contains(&failed), "{failed}");
    }

    #[test]
    fn pages_are_short_at_their_own_chance_and_below_their_limit() {
        let faults = Faults::new(Some(Buggify::new(0.0, 1).with_short_pages(0.3)), None);
        let pages = |limit| (0..1_000).filter_map(|_| faults.on_page(limit)).collect::<Vec<_>>();
        let all = pages(None);
        assert!((250..350).contains(&all.len()), "{}", all.len());
        for rows in [0, 1, 2, 3] {
            assert!(all.iter().filter(|page| **page == rows).count() > 20, "{rows} rows");
        }
        assert!(all.iter().any(|rows| *rows > 500));
        assert_eq!(pages(Some(2)).iter().max(), Some(&1));
        assert_eq!(pages(Some(1)).iter().max(), Some(&0));
        assert!(commits(&faults).iter().all(Option::is_none), "nothing else happens");
    }

    #[test]
    fn throttling_is_for_those_who_may_be_throttled() {
        let faults = faults(1.0, 1);
        let errors = |is_batch, has_tags| {
            let drawn = (0..400).filter_map(|_| faults.on_read_version(is_batch, has_tags));
            drawn.map(|error| error.0).collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(errors(false, false), [1009, 1078].into());
        assert_eq!(errors(true, false), [1009, 1051, 1078].into());
        assert_eq!(errors(false, true), [1009, 1078, 1213, 1223].into());
    }

    #[test]
    fn estimates_are_rough_and_split_points_keep_their_ends() {
        let faults = faults(1.0, 1);
        let sizes: Vec<i64> = (0..100).map(|_| faults.on_size(10_000)).collect();
        assert!(sizes.contains(&0) && sizes.iter().any(|size| *size > 12_000), "{sizes:?}");
        assert!((0..100).all(|_| faults.on_size(100_000_000) >= 50_000_000));
        let points: Vec<Vec<u8>> = (0..100u8).map(|point| vec![point]).collect();
        let mut fewer = points.clone();
        faults.on_split_points(&mut fewer);
        assert!((20..80).contains(&fewer.len()) && fewer.is_sorted(), "{fewer:?}");
        assert_eq!((fewer.first(), fewer.last()), (points.first(), points.last()));
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
        let faults = Faults::new(Some(Buggify::new(0.0, 1)), Some(&OPTIONS));
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
        assert!((0..1_000).all(|_| faults.on_page(None).is_none()), "bindings end at a page without rows");
        let reads = (0..10_000).filter(|_| faults.on_read(1).is_some()).count();
        assert!((50..200).contains(&reads), "a read fails in one of a hundred, whatever the option: {reads}");
        OPTIONS.enable(false);
        assert_eq!(happens(), 0);
    }

    #[test]
    fn which_places_are_active_is_drawn_anew() {
        static OPTIONS: ClientBuggify = ClientBuggify::new();
        let places = [
            FaultPlace::Commit,
            FaultPlace::CommitAnswer,
            FaultPlace::ReadVersion,
            FaultPlace::ReadAnswer,
            FaultPlace::SetWatch,
        ];
        let mut drawings = std::collections::BTreeSet::new();
        for _ in 0..40 {
            OPTIONS.set_activated_percent(50);
            drawings.insert(places.map(|place| OPTIONS.chance(3, place) > 0.0));
        }
        assert!(drawings.len() > 10, "{drawings:?}");
    }
}
