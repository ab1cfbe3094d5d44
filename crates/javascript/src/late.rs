//! Functions that reach their deadlines without having had the processor for half of the time.
//!
//! Such a call alone says nothing about its function: other work may have used the processor. But a server may never
//! get half a processor, because of a quota or of other machines on the same hardware. So the processor time of these
//! calls is added up by function.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Design;

/// The most functions that are remembered. Beyond it the one whose last late call is oldest is forgotten.
const FUNCTIONS_MAX: usize = 1_024;

/// The time for which a function is remembered after its last late call.
const REMEMBERED_FOR: Duration = Duration::from_secs(600);

/// A call that had the processor for less than this part of its time limit does not count. A function that is short
/// where the processor is free has no further calls that count.
const PART_MIN: u32 = 100;

/// The late calls of functions, by database and text of the design document.
#[derive(Debug, Default)]
pub(crate) struct LateCalls {
    functions: HashMap<(Arc<str>, u64), LateFunction>,
}

#[derive(Debug)]
struct LateFunction {
    ran: Duration,
    last: Instant,
}

impl LateCalls {
    /// Adds a call that reached its deadline after `ran` of processor time. Returns true if the late calls of its
    /// function have together used the processor for the time limit of this call.
    pub(crate) fn add(&mut self, design: &Design, ran: Duration, time_max: Duration, now: Instant) -> bool {
        if ran < time_max / PART_MIN {
            return false;
        }
        self.functions.retain(|_, function| now < function.last + REMEMBERED_FOR);
        let key = (design.database.clone(), design.hash);
        let before = self.functions.remove(&key).map_or(Duration::ZERO, |function| function.ran);
        if self.functions.len() >= FUNCTIONS_MAX
            && let Some(oldest) = self.functions.iter().min_by_key(|(_, function)| function.last).map(|(key, _)| key)
        {
            let oldest = oldest.clone();
            self.functions.remove(&oldest);
        }
        let ran = before.saturating_add(ran);
        self.functions.insert(key, LateFunction { ran, last: now });
        ran >= time_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(2);
    const TENTH: Duration = Duration::from_millis(200);

    #[test]
    fn a_function_is_to_blame_once_its_late_calls_have_used_the_time_of_one() {
        let (mut late, now) = (LateCalls::default(), Instant::now());
        let design = Design::new("db/1", "function () {}");
        let others = [Design::new("db/2", "function () {}"), Design::new("db/1", "function () { }")];
        let blames: Vec<bool> = (0..12).map(|_| late.add(&design, TENTH, LIMIT, now)).collect();
        let expected: Vec<bool> = (1..=12).map(|calls| calls >= 10).collect();
        assert_eq!(blames, expected);
        for other in &others {
            assert!(!late.add(other, TENTH, LIMIT, now), "another database or revision");
        }
    }

    #[test]
    fn a_function_that_hardly_ran_is_never_to_blame() {
        let (mut late, now) = (LateCalls::default(), Instant::now());
        let design = Design::new("db/1", "function () {}");
        let short = LIMIT / PART_MIN - Duration::from_millis(1);
        assert!((0..1_000).all(|_| !late.add(&design, short, LIMIT, now)));
        assert!(late.functions.is_empty());
    }

    #[test]
    fn functions_are_forgotten_by_age_and_by_number() {
        let (mut late, now) = (LateCalls::default(), Instant::now());
        let design = |n: usize| Design::new(format!("db/{n}"), "function () {}");
        assert!(!late.add(&design(0), LIMIT / 2, LIMIT, now));
        assert!(!late.add(&design(0), LIMIT / 2, LIMIT, now + REMEMBERED_FOR), "it was too long ago");
        let after = |n: usize| now + REMEMBERED_FOR + Duration::from_micros(n as u64);
        for n in 1..=FUNCTIONS_MAX {
            assert!(!late.add(&design(n), LIMIT / 2, LIMIT, after(n)));
        }
        assert_eq!(late.functions.len(), FUNCTIONS_MAX);
        assert!(!late.add(&design(0), LIMIT / 2, LIMIT, after(FUNCTIONS_MAX + 1)), "the oldest was forgotten");
        assert!(late.add(&design(FUNCTIONS_MAX), LIMIT / 2, LIMIT, after(FUNCTIONS_MAX + 2)));
    }
}
