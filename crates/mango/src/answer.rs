//! The members of a `_find` answer beside its documents.

use flatbed_flatten::json::{self, Value};

use crate::choose::is_named;
use crate::find::Find;
use crate::index::Index;
use crate::listing::design_id;
use crate::options::{number, object, text};

/// The ratio of documents read to documents answered above which the answer has a warning.
const SCAN_RATIO: u64 = 10;

/// The cost of a query.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ExecutionStats {
    /// The number of index rows read.
    pub keys_examined: u64,
    /// The number of documents read.
    pub docs_examined: u64,
    /// The number of documents answered.
    pub results_returned: u64,
    /// The duration, in milliseconds.
    pub time_ms: f64,
}

impl ExecutionStats {
    /// Returns the JSON of answers. `quorum`: the request had an `r` of more than 1.
    pub fn to_json(&self, quorum: bool) -> Value<'static> {
        let (docs, quorum_docs) = if quorum { (0, self.docs_examined) } else { (self.docs_examined, 0) };
        let time = if self.time_ms.is_finite() { self.time_ms } else { 0.0 };
        object([
            ("total_keys_examined", number(self.keys_examined)),
            ("total_docs_examined", number(docs)),
            ("total_quorum_docs_examined", number(quorum_docs)),
            ("results_returned", number(self.results_returned)),
            ("execution_time_ms", Value::Number(format!("{time:.3}").into())),
        ])
    }
}

/// Returns the warnings of an answer, one a line; `None`: no warning.
pub fn warning(find: &Find, index: &Index, stats: &ExecutionStats) -> Option<String> {
    let mut warnings = Vec::new();
    match find.use_index.as_slice() {
        _ if is_named(find, index) => {}
        [ddoc] => {
            let ddoc = design_id(ddoc);
            warnings.push(format!("{ddoc} was not used because it does not contain a valid index for this query."));
        }
        [ddoc, name] => {
            let ddoc = design_id(ddoc);
            warnings.push(format!("{ddoc}, {name} was not used because it is not a valid index for this query."));
        }
        _ => {}
    }
    if index.is_all_docs() {
        warnings.push("No matching index found, create an index to optimize query time.".to_owned());
    }
    if stats.docs_examined > SCAN_RATIO.saturating_mul(stats.results_returned.max(1)) {
        warnings.push(
            "The number of documents examined is high in proportion to the number of results returned. \
             Consider adding a more specific index to improve this."
                .to_owned(),
        );
    }
    (!warnings.is_empty()).then(|| warnings.join("\n"))
}

/// The beginning of a `_find` answer. The first document follows behind `\r\n`, the others behind `,\r\n`.
pub const HEAD: &str = "{\"docs\":[";

/// Writes the end of the answer, behind the documents.
pub fn write_tail(members: &[(&str, Value<'_>)], out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n]");
    for (name, value) in members {
        out.extend_from_slice(b",\r\n");
        json::write(&text(name), out);
        out.extend_from_slice(b": ");
        json::write(value, out);
    }
    out.extend_from_slice(b"}\r\n");
}

/// Returns the members behind the documents, for [`write_tail`].
pub fn tail(find: &Find, index: &Index, bookmark: &str, stats: &ExecutionStats) -> Vec<(&'static str, Value<'static>)> {
    let mut members = vec![("bookmark", text(bookmark))];
    if find.execution_stats {
        members.push(("execution_stats", stats.to_json(find.r > 1)));
    }
    if let Some(warning) = warning(find, index, stats) {
        members.push(("warning", Value::String(warning.into())));
    }
    members
}

/// Returns the answer of a `_count`.
pub fn count_answer(find: &Find, index: &Index, count: u64, stats: &ExecutionStats) -> Value<'static> {
    let mut members = vec![("count", number(count))];
    members.extend(tail(find, index, "", stats).into_iter().filter(|(name, _)| *name != "bookmark"));
    Value::Object(members.into_iter().map(|(name, value)| (name.into(), value)).collect())
}
