//! The processor time that calls of databases used lately.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// A call that ends by itself after less processor time is short.
pub(crate) const SHORT: Duration = Duration::from_millis(100);

/// The processor time of calls without an end, in a row, that makes their database slow.
const STOPPED_MAX: Duration = SHORT;

/// With this many databases in `recent`, those of `older` are forgotten.
const GENERATION_MAX: usize = 8_192;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallEnd {
    /// By itself.
    Whole,
    /// The pool or the caller stopped it, or its time was over.
    Stopped,
    /// It ran no function: for example, it only compiled them.
    NothingRan,
}

#[derive(Debug, Clone, Copy)]
struct CallRecord {
    /// True if the last call was short.
    is_short: bool,
    /// The processor time of the calls without an end since the last one with an end.
    stopped: Duration,
}

/// The last calls of databases. Two generations bound the number of databases: those that were not called for long are
/// forgotten first.
#[derive(Debug, Default)]
pub(crate) struct CallRecords {
    recent: HashMap<Arc<str>, CallRecord>,
    older: HashMap<Arc<str>, CallRecord>,
}

impl CallRecords {
    /// Returns true if the last call of a database was short.
    pub(crate) fn is_short(&self, database: &str) -> bool {
        self.find(database).is_some_and(|record| record.is_short)
    }

    fn find(&self, database: &str) -> Option<CallRecord> {
        self.recent.get(database).or_else(|| self.older.get(database)).copied()
    }

    /// Adds a call. Returns true if it makes its database slow.
    pub(crate) fn add(&mut self, database: &Arc<str>, ran: Duration, end: CallEnd) -> bool {
        let before = self.find(database);
        let (was_short, stopped) = before.map_or((false, Duration::ZERO), |record| (record.is_short, record.stopped));
        let stopped = match end {
            CallEnd::NothingRan => return false,
            CallEnd::Whole => Duration::ZERO,
            CallEnd::Stopped => stopped + ran,
        };
        let is_slow = stopped >= STOPPED_MAX;
        let is_short = ran < SHORT && !is_slow && (was_short || end == CallEnd::Whole);
        let stopped = if is_slow { Duration::ZERO } else { stopped };
        if self.recent.len() >= GENERATION_MAX && !self.recent.contains_key(database) {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(database.clone(), CallRecord { is_short, stopped });
        is_slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_database_is_short_after_a_call_that_ended_soon() {
        let mut records = CallRecords::default();
        let database = Arc::from("a");
        for (ran, end, is_short) in [
            (MS, CallEnd::NothingRan, false),
            (MS, CallEnd::Stopped, false),
            (MS, CallEnd::Whole, true),
            (MS, CallEnd::Stopped, true),
            (SHORT, CallEnd::Whole, false),
            (SHORT - MS, CallEnd::Whole, true),
        ] {
            assert!(!records.add(&database, ran, end), "{ran:?} {end:?}");
            assert_eq!(records.is_short("a"), is_short, "{ran:?} {end:?}");
        }
        assert!(!records.is_short("b"));
    }

    #[test]
    fn calls_that_are_stopped_again_and_again_make_their_database_slow() {
        let mut records = CallRecords::default();
        let database = Arc::from("a");
        records.add(&database, MS, CallEnd::Whole);
        let slow: Vec<bool> = (0..6).map(|_| records.add(&database, 40 * MS, CallEnd::Stopped)).collect();
        assert_eq!(slow, [false, false, true, false, false, true]);
        assert!(!records.is_short("a"));
        assert!(!records.add(&database, 90 * MS, CallEnd::Stopped));
        records.add(&database, MS, CallEnd::Whole);
        assert!(!records.add(&database, 90 * MS, CallEnd::Stopped), "one has ended");
    }

    #[test]
    fn databases_that_were_not_called_for_long_are_forgotten_first() {
        let mut records = CallRecords::default();
        let name = |n: usize| Arc::<str>::from(format!("db{n}"));
        for n in 0..3 * GENERATION_MAX {
            records.add(&name(n), MS, CallEnd::Whole);
            records.add(&name(0), MS, CallEnd::Whole);
        }
        assert!(records.recent.len() <= GENERATION_MAX && records.older.len() <= GENERATION_MAX);
        assert!(records.is_short("db0") && !records.is_short("db1"));
    }
}
