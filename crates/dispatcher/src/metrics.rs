//! What is counted of jobs in this process.

use flatbed_metrics::{Counter, Family, Kind, Value};

use flatbed_worker::progress::Progress;

use crate::Dispatcher;

flatbed_metrics::metrics! {
    /// What jobs have done that run here no longer, and what no job counts for itself.
    pub(crate) struct Metrics {
        worker_delivered: Counter = "Documents that targets of jobs took.",
        worker_queued: Counter = "Entries of queues written, for documents that a target refused.",
        worker_replayed: Counter = "Entries of queues delivered at last.",
        worker_outages: Counter = "Tries that failed by the state of a job's source or target.",
        worker_dropped: Counter = "Entries that waited and went by themselves, as their jobs say.",
    }
}

/// The states of a job in this process.
pub(crate) const STATES: [&str; 4] = ["running", "failing", "halted", "waiting"];

impl Dispatcher {
    /// Figures of the jobs, whichever of them run here.
    pub fn families(&self) -> Vec<Family> {
        let followed = self.followed();
        // What those have counted that run here no longer, and those that do.
        let (sum, gone) = (Metrics::default(), &self.metrics);
        sum.worker_dropped.add(gone.worker_dropped.get());
        let of = |count: fn(&Progress) -> u64| followed.iter().map(|job| count(&job.progress)).sum::<u64>();
        sum.worker_delivered.add(gone.worker_delivered.get() + of(Progress::delivered));
        sum.worker_queued.add(gone.worker_queued.get() + of(Progress::queued));
        sum.worker_replayed.add(gone.worker_replayed.get() + of(Progress::replayed));
        sum.worker_outages.add(gone.worker_outages.get() + of(Progress::outages));
        let mut families = sum.families();
        let mut jobs =
            Family::new("flatbed_worker_jobs", "Jobs that are to run, by what they do in this process.", Kind::Gauge);
        for state in STATES {
            let count = followed.iter().filter(|job| job.state() == state).count();
            jobs.push(&[("state", state.into())], Value::Count(count as u64));
        }
        families.push(jobs);
        let here = || followed.iter().filter(|job| job.claim.is_ours());
        let rows: u64 = here().map(|job| job.progress.lag().rows).sum();
        let seconds = here().map(|job| job.progress.lag().seconds).max().unwrap_or(0);
        let help = "Rows of feeds that jobs of this process have not delivered yet.";
        families.push(Family::gauge("flatbed_worker_lag_rows", help, rows as f64));
        let help = "For how long the job of this process that is furthest behind has been so.";
        families.push(Family::gauge("flatbed_worker_lag_seconds", help, seconds as f64));
        families
    }
}
