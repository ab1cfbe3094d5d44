//! What all targets have in common: the job that fills them, how their whole state is read, and what may be done to them.

use serde_json::{Value, json};

use super::model::Rows;

/// What a target may suffer for some time. No document is to blame for any of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Refuses,
    Hangs,
    /// Its server is killed, and comes back.
    Killed,
    Revoked,
    /// A table is elsewhere for a while.
    Renamed,
    /// A table is dropped, and made again without its rows; the job is reset.
    Dropped,
    /// It says that its disk is full.
    Full,
    /// Somebody else holds what is to be written.
    Locked,
    /// It answers with such a status.
    Answers(u16),
    /// It takes what it is sent, and answers that it failed.
    Denies,
}

pub(super) trait Target: Send + Sync {
    /// Of its job.
    fn id(&self) -> &'static str;

    /// Its job's `output_type`, and the output.
    fn output(&self) -> (&'static str, Value);

    /// Whether it refuses what is heavy, as the document's fault.
    fn judges(&self) -> bool;

    /// It refuses no document any more.
    fn relents(&self);

    /// All that it has.
    fn rows(&self) -> Rows;

    /// Whether what it took is there whatever comes, and read in no time.
    fn keeps_what_it_has(&self) -> bool {
        false
    }

    /// What is wrong beside its rows.
    fn complaint(&self, _rows: usize) -> Option<String> {
        None
    }

    fn faults(&self) -> &'static [Fault];

    /// Begins or ends to suffer.
    fn suffers(&self, fault: Fault, is_on: bool);
}

/// The job that fills a target from the database `db`.
pub(super) fn job_of(target: &dyn Target, batch: usize) -> Value {
    let column = |name: &str, path: &str, kind: &str| json!({"name": name, "path": path, "type": kind});
    let orders = json!({"name": "orders", "primary_key": "k", "columns": [
        column("k", "$.k", "bigint"), column("id", "$._id", "varchar(40)"), column("n", "$.n", "bigint"),
        column("name", "$.name", "varchar(100)"), column("weight", "$.weight", "integer")]});
    let items = json!({"name": "items", "parent": "orders", "foreign_key": {"column": "k", "references": "k"}, "source_array": "$.items",
        "columns": [column("id", "$$._id", "varchar(40)"), column("name", "$", "varchar(100)")]});
    let (output_type, mut output) = target.output();
    output["id"] = "out".into();
    json!({"type": "job", "id": target.id(), "inputs": [{"id": "in", "source_type": "flatbed", "local": "db"}],
        "outputs": [output], "output_type": output_type,
        "mapping": {"source": {"match": {"t": "order"}}, "tables": [orders, items]},
        "system": {"processing": {"batch": batch}, "retry": {"backoff_base_seconds": 0.05, "backoff_max_seconds": 0.5}}})
}
