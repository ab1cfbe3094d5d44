//! Earlier samples of the counters, from which rates are computed.

use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::base::lock::lock;
use crate::shared::json::Object;
use crate::shared::stats::Stats;

/// The shortest period of a rate, once the engine is that old.
const RATES_TIME_MIN: Duration = Duration::from_secs(1);

pub(crate) struct Sample {
    pub(crate) at: Instant,
    pub(crate) stats: Stats,
    pub(crate) cpu: Option<Duration>,
}

impl Sample {
    fn new(at: Instant, stats: Stats, cpu: Option<Duration>) -> Sample {
        Sample { at, stats, cpu }
    }
}

/// The samples that rates are computed from.
pub(crate) struct Rates {
    /// The sample before the last, and the last one.
    samples: Mutex<(Sample, Sample)>,
}

impl Default for Rates {
    fn default() -> Self {
        let first = || Sample::new(Instant::now(), Stats::default(), cpu_time());
        Rates { samples: Mutex::new((first(), first())) }
    }
}

/// The counters now and at the begin of the period.
pub(crate) struct Span {
    pub(crate) seconds: f64,
    pub(crate) now: Sample,
    then: Stats,
    pub(crate) then_cpu: Option<Duration>,
}

impl Span {
    /// Spans from the last but one status reading that was a second after its predecessor until now.
    pub(crate) fn of(rates: &Rates, stats: impl Fn() -> Stats) -> Span {
        let mut samples = lock(&rates.samples);
        if samples.1.at.elapsed() >= RATES_TIME_MIN {
            let newest = Sample::new(Instant::now(), stats(), cpu_time());
            samples.0 = std::mem::replace(&mut samples.1, newest);
        }
        let now = Sample::new(Instant::now(), stats(), cpu_time());
        let then = &samples.0;
        Span {
            seconds: now.at.duration_since(then.at).as_secs_f64().max(0.001),
            now,
            then: then.stats.clone(),
            then_cpu: then.cpu,
        }
    }

    pub(crate) fn rate(&self, object: &mut Object<'_>, name: &str, count: impl Fn(&Stats) -> u64) {
        let (now, then) = (count(&self.now.stats), count(&self.then));
        object.object(name, |rate| {
            rate.unsigned("counter", now);
            rate.float("hz", now.saturating_sub(then) as f64 / self.seconds);
        });
    }
}

/// The processor time that this process has used.
fn cpu_time() -> Option<Duration> {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the call fills the struct if it returns 0.
    let usage = unsafe { (libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) == 0).then(|| usage.assume_init())? };
    let duration = |time: libc::timeval| {
        let micros = u32::try_from(time.tv_usec).ok()?;
        Some(Duration::new(u64::try_from(time.tv_sec).ok()?, micros.checked_mul(1_000)?))
    };
    duration(usage.ru_utime)?.checked_add(duration(usage.ru_stime)?)
}
