//! Counts and logs killed processes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use flatbed_flatten::json::{self, Limits, Value};

use crate::Design;
use crate::figures::{FunctionFigures, KillCause};

const PACE: Duration = Duration::from_secs(60);

/// The most databases with a log line in the last interval. Beyond it no line is written.
const KNOWN_MAX: usize = 1_024;

#[derive(Debug, Default)]
pub(crate) struct KillReport {
    logged: Mutex<HashMap<Arc<str>, Instant>>,
}

impl KillReport {
    pub(crate) fn report(&self, figures: &FunctionFigures, design: &Design, cause: KillCause) {
        figures.function_processes_killed.of(cause).add(1);
        // The caller had gone, and the time was not over.
        if cause != KillCause::Stopped && self.is_due(&design.database, Instant::now()) {
            let (database, design_document) = (design.database(), id(design.text()).unwrap_or_default());
            tracing::warn!(database, design_document, ?cause, "the process of a function was killed");
        }
    }

    fn is_due(&self, database: &Arc<str>, now: Instant) -> bool {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        logged.retain(|_, at| now < *at + PACE);
        let is_due = logged.len() < KNOWN_MAX && !logged.contains_key(database);
        if is_due {
            logged.insert(database.clone(), now);
        }
        is_due
    }
}

/// Returns the id of a design document. The texts of views and sync functions have none.
fn id(text: &str) -> Option<String> {
    match json::parse(text.as_bytes(), &Limits::default()).ok()? {
        Value::Object(members) => members.into_iter().find_map(|(name, value)| match value {
            Value::String(id) if name == "_id" => Some(id.into_owned()),
            _ => None,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_is_logged_once_a_minute() {
        let (report, now) = (KillReport::default(), Instant::now());
        let [a, b] = ["a", "b"].map(Arc::from);
        assert!(report.is_due(&a, now) && !report.is_due(&a, now) && report.is_due(&b, now));
        assert!(report.is_due(&a, now + PACE));
    }

    #[test]
    fn a_design_document_is_named() {
        assert_eq!(id(r#"{"views":{},"_id":"_design/d"}"#).as_deref(), Some("_design/d"));
        assert_eq!((id("function () {}"), id(r#"{"lib":null}"#)), (None, None));
    }
}
