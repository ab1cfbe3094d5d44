//! Metrics of the jobs in this process.

use flatbed_metrics::{Counter, Family, Kind, Value};

use flatbed_worker::progress::{AttachmentCounts, Progress};

use crate::Dispatcher;

flatbed_metrics::metrics! {
    /// Counts of jobs that no longer run here, and counts that are not per job.
    pub(crate) struct Metrics {
        worker_delivered: Counter = "Documents that targets accepted.",
        worker_queued: Counter = "Queue entries written, for documents that targets refused.",
        worker_replayed: Counter = "Queue entries delivered by replays.",
        worker_outages: Counter = "Attempts that failed because of the state of a source or target.",
        worker_attachments: Counter = "Attachments fetched from sources.",
        worker_attachment_bytes: Counter = "Bytes of attachments fetched from sources.",
        worker_attachments_held: Counter = "Attachments not fetched, because the target has them with the same digest.",
        worker_attachments_failed: Counter = "Attachments that were missing, too large, or not as their document declares.",
        worker_dropped: Counter = "Waiting queue entries that expired, where jobs allow it.",
    }
}

impl Metrics {
    pub(crate) fn add(&self, progress: &Progress) {
        self.worker_delivered.add(progress.delivered());
        self.worker_queued.add(progress.queued());
        self.worker_replayed.add(progress.replayed());
        self.worker_outages.add(progress.outages());
        let AttachmentCounts { fetched, bytes, held, failed } = progress.attachments();
        self.worker_attachments.add(fetched);
        self.worker_attachment_bytes.add(bytes);
        self.worker_attachments_held.add(held);
        self.worker_attachments_failed.add(failed);
    }

    fn add_all(&self, of: &Metrics) {
        let pairs = [
            (&self.worker_delivered, &of.worker_delivered),
            (&self.worker_queued, &of.worker_queued),
            (&self.worker_replayed, &of.worker_replayed),
            (&self.worker_outages, &of.worker_outages),
            (&self.worker_attachments, &of.worker_attachments),
            (&self.worker_attachment_bytes, &of.worker_attachment_bytes),
            (&self.worker_attachments_held, &of.worker_attachments_held),
            (&self.worker_attachments_failed, &of.worker_attachments_failed),
            (&self.worker_dropped, &of.worker_dropped),
        ];
        for (sum, count) in pairs {
            sum.add(count.get());
        }
    }
}

pub(crate) const STATES: [&str; 4] = ["running", "failing", "halted", "waiting"];

impl Dispatcher {
    /// Returns the metrics of all jobs in this process.
    pub fn families(&self) -> Vec<Family> {
        let followed = self.followed();
        let sum = Metrics::default();
        sum.add_all(&self.metrics);
        followed.iter().for_each(|job| sum.add(&job.progress));
        let mut families = sum.families();
        let mut jobs = Family::new("flatbed_worker_jobs", "Enabled jobs, by their state in this process.", Kind::Gauge);
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
