//! What the layer counts.

use flatbed_metrics::{Counter, Gauge, Histogram, Key, Keyed};

/// An error code of FoundationDB's. There are some 300; those that a transaction meets are few.
#[derive(Debug)]
pub(crate) struct ErrorCode;

impl Key for ErrorCode {
    const NAME: &'static str = "code";
    const COUNT_MAX: usize = 32;
}

flatbed_metrics::metrics! {
    /// What one [`Layer`](crate::Layer) has counted since it was opened.
    pub(crate) struct Metrics {
        transactions: Counter = "Transactions begun.",
        commits: Counter = "Transactions committed.",
        commit_duration_seconds: Histogram = "How long commits that succeeded took.",
        retries: Keyed<ErrorCode> = "Attempts of a transaction that an error of FoundationDB's ended, by its code; nearly all are tried again.",
        conflicts: Counter = "Commits refused for a conflict (1020).",
        unknown_results: Counter = "Commits whose result was unknown (1021).",
        joint_commits: Counter = "Transactions committed that wrote documents of several requests.",
        joint_documents: Counter = "What became of documents in them: written or refused.",
        joint_unknown_results: Counter = "Commits of such transactions whose result was unknown (1021).",
        reads: Counter = "Reads of a single key.",
        range_reads: Counter = "Pages of ranges read, and key selectors resolved.",
        keys_read: Counter = "Keys in the answers of reads.",
        bytes_read: Counter = "Bytes of the keys read and their values.",
        keys_written: Counter = "Keys set, changed or cleared, and ranges cleared; in each attempt of a transaction.",
        bytes_written: Counter = "Bytes of the keys written and their values.",
        documents_written: Counter = "Document revisions committed.",
        documents_read: Counter = "Documents read.",
        document_conflicts: Counter = "Edits refused because their parent was not the current leaf.",
        mapping_hits: Counter = "Documents whose field names were all cached.",
        mapping_misses: Counter = "Documents with field names to look up or allocate.",
        field_ids_allocated: Counter = "Field ids allocated.",
        security_reads: Counter = "Times that `_security` was asked for and was not known as of the last second.",
        by_seq_reads: Counter = "Range reads of by-seq.",
        by_seq_rows: Counter = "Rows read from by-seq.",
        channel_reads: Counter = "Range reads of the indexes of channels by feeds.",
        channel_rows: Counter = "Entries of channels read by feeds.",
        selector_index_reads: Counter = "Range reads of selector indexes by feeds.",
        selector_index_rows: Counter = "Entries of selector indexes read by feeds.",
        selector_index_looks: Counter = "Rows of users' feeds of selector indexes that were looked up there, one by one.",
        selector_index_followers: Gauge = "Followers of changes that are sent what a selector index takes alone.",
        watches_set: Counter = "FoundationDB watches set by feeds.",
        watches_fired: Counter = "FoundationDB watches that fired.",
        safety_rereads: Counter = "Times that a feed read again without a watch having fired.",
        polls: Counter = "Times that databases without a watch were looked at together.",
        hub_rows: Counter = "Changes that were looked up once for all followers that are woken for their channels alone.",
        hub_wakes: Counter = "Followers woken because of a change that may be something for them.",
        tail_rows: Counter = "Rows that followers took from the memory they share.",
        tail_misses: Counter = "Times that a follower had to read by-seq itself, having lagged or wanting more than is shared.",
        blobs_staged: Counter = "Large bodies and attachments written ahead.",
        blobs_swept: Counter = "Broken uploads removed.",
        sweeps: Counter = "Looks for broken uploads in a database.",
        background_work: Counter = "Pieces of work in the background that were due and are done.",
        background_failures: Counter = "Pieces of work in the background that failed, and are done later.",
        resync_documents: Counter = "Documents that came to where their database's present sync function puts them.",
        resync_documents_changed: Counter = "Of these, such as are in other channels, give something else or end at another time.",
        resync_leaves_refused: Counter = "Revisions that a new sync function refused: they stay where they were.",
        resyncs_running: Gauge = "Databases whose documents this process brings to where their sync functions put them.",
        compactions: Counter = "Compactions begun.",
        compaction_failures: Counter = "Documents that a compaction passed over for an error.",
        indexes_built: Counter = "Indexes built to their end.",
        index_documents_entered: Counter = "Documents that builders have entered into indexes.",
        design_documents_left_out: Counter = "Times that a design document was written which defines more indexes or views than a database may have.",
        index_build_failures: Counter = "Times that a builder of an index failed; it is tried again.",
        view_documents_mapped: Counter = "Documents that were mapped for groups of views.",
        view_documents_failed: Counter = "Times that a map failed on a document, which has no rows of it.",
        view_documents_refused: Counter = "Documents that came to be in no view of a group since their rows are too many or too large.",
        view_groups_built: Counter = "Groups of views built for the first time, to their end.",
        view_update_failures: Counter = "Times that a group of views could not be followed.",
        view_updates_running: Gauge = "Groups of views that this process follows.",
        view_writes_waiting: Gauge = "Transactions with many rows of views that wait for their turn to write.",
        index_builds_running: Gauge = "Indexes that this process is building.",
        compactions_running: Gauge = "Compactions under way in this process.",
    }
}
