//! The common interface of all targets: the job that fills a target, the read of its state, and its faults.

use serde_json::{Value, json};

use super::model::Rows;

/// A fault that a target suffers for some time. No document is to blame for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Refuses,
    Hangs,
    /// Its server is killed and restarted.
    Killed,
    Revoked,
    /// A table is renamed for a while.
    Renamed,
    /// A table is dropped and created again empty; the job is reset.
    Dropped,
    /// It reports a full disk.
    Full,
    /// Another client locks the data.
    Locked,
    /// It answers with this status.
    Answers(u16),
    /// It accepts data, and answers that it failed.
    Denies,
}

pub(super) trait Target: Send + Sync {
    fn id(&self) -> &'static str;

    /// Returns its job's `output_type`, and the output.
    fn output(&self) -> (&'static str, Value);

    /// Returns whether it refuses heavy documents, as the documents' fault.
    fn judges(&self) -> bool;

    /// It refuses no document any more.
    fn relents(&self);

    /// Returns its whole content.
    fn rows(&self) -> Rows;

    /// Returns whether accepted data stays whatever happens, and can be read quickly.
    fn keeps_what_it_has(&self) -> bool {
        false
    }

    /// Returns a defect other than in its rows.
    fn complaint(&self, _rows: usize) -> Option<String> {
        None
    }

    fn faults(&self) -> &'static [Fault];

    /// Starts or ends a fault.
    fn suffers(&self, fault: Fault, is_on: bool);
}

/// Returns the job that fills a target from the database `db`.
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
