//! The store's metrics.

use flatbed_kit::TransactionCounters;
use flatbed_metrics::{Counter, Family, Gauge};

pub(crate) fn transaction_families(counters: &TransactionCounters) -> Vec<Family> {
    vec![
        Family::of("flatbed_sync_reads", "Reads of a single key of Firefox Sync's.", &counters.reads),
        Family::of("flatbed_sync_range_reads", "Pages of ranges of Firefox Sync's read.", &counters.range_reads),
        Family::of(
            "flatbed_sync_keys_written",
            "Keys of Firefox Sync's set and cleared, and ranges cleared; in each attempt of a transaction.",
            &counters.keys_written,
        ),
        Family::of("flatbed_sync_commits", "Transactions of Firefox Sync's committed.", &counters.commits),
        Family::of(
            "flatbed_sync_retries",
            "Attempts of a transaction of Firefox Sync's that an error of FoundationDB's ended, by its code; nearly all are tried again.",
            &counters.retries,
        ),
    ]
}

flatbed_metrics::metrics! {
    /// The counters of one [`Store`](crate::Store) since it was opened, without those of its transactions.
    pub(crate) struct Metrics {
        sync_records_written: Counter = "Records of Firefox Sync's written, those of batches when these are committed.",
        sync_records_deleted: Counter = "Records of Firefox Sync's that clients deleted one by one or by their ids.",
        sync_batches_begun: Counter = "Batches of Firefox Sync's begun.",
        sync_batches_committed: Counter = "Batches of Firefox Sync's committed.",
        sync_batches_abandoned: Counter = "Batches and uploads of Firefox Sync's removed since they were not committed in time.",
        sync_records_resolved: Counter = "Records of batches that were looked at again before a commit, since the collection had changed.",
        sync_records_folded: Counter = "Records that were moved from committed batches of Firefox Sync's to their collections.",
        sync_folds: Counter = "Committed batches of Firefox Sync's folded to their end.",
        sync_fold_failures: Counter = "Times that folding a batch of Firefox Sync's failed; it is tried again.",
        sync_folds_waiting: Gauge = "Collections of Firefox Sync's with committed batches that this process is to fold.",
        sync_records_expired: Counter = "Records of Firefox Sync's removed after their time to live.",
        sync_sweep_failures: Counter = "Times that a sweep of Firefox Sync's failed; it is tried again.",
        sync_due_deferred: Counter = "Entries of Firefox Sync's due work that were put off after a failure.",
        sync_clock_ahead: Counter = "Writes of Firefox Sync's at which the user's last time was more than 60 s ahead of the clock.",
        sync_users_purged: Counter = "Users of Firefox Sync's whose data was removed.",
    }
}
