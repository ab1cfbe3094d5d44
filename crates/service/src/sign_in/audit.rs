//! What is logged and counted of signing in: the target `audit`. Never a secret, and never once for each request of somebody who
//! is remembered.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use flatbed_clock::Clock;
use flatbed_metrics::{Counter, Labelled};
use tokio::time::Instant;

/// The target of the audit log.
pub(crate) const TARGET: &str = "audit";

/// Lines of refusals a second: what is beyond is counted in the next second's.
const REFUSALS_MAX: u32 = 20;

/// Characters of a name that are logged.
const NAME_SHOWN_MAX: usize = 200;

flatbed_metrics::labels! {
    /// How somebody signs in.
    pub(crate) enum Way: "way" {
        Basic = "basic",
        Session = "session",
        Cookie = "cookie",
        Jwt = "jwt",
        Proxy = "proxy",
    }
}

flatbed_metrics::labels! {
    /// Why somebody is refused.
    pub(crate) enum Why: "reason" {
        Wrong = "wrong",
        LockedOut = "locked_out",
        TooMany = "too_many",
        Document = "document",
        Token = "token",
    }
}

flatbed_metrics::metrics! {
    /// What is counted of signing in.
    pub(crate) struct SignIns {
        sign_ins: Labelled<Way, Counter> = "Sign-ins, by how: passwords that proved right, sessions begun and renewed, tokens verified; not requests of those who are remembered.",
        sign_ins_refused: Labelled<Why, Counter> = "Sign-ins refused, by why.",
        password_checks: Counter = "Passwords checked.",
        passwords_hashed: Counter = "New passwords of user documents hashed.",
    }
}

/// Lines of refusals within a second.
#[derive(Debug)]
struct Window {
    since: Instant,
    lines: u32,
    left_out: u64,
}

/// Writes the audit log.
#[derive(Debug)]
pub(crate) struct Audit {
    clock: Clock,
    window: Mutex<Window>,
    pub counts: SignIns,
}

impl Audit {
    pub(crate) fn new(clock: &Clock) -> Audit {
        let window = Window { since: clock.now(), lines: 0, left_out: 0 };
        Audit { clock: clock.clone(), window: Mutex::new(window), counts: SignIns::default() }
    }

    /// Somebody has shown who they are.
    pub(crate) fn signed_in(&self, way: Way, name: &str, peer: Option<IpAddr>) {
        use flatbed_metrics::Label;
        self.counts.sign_ins.of(way).add(1);
        // A proxy's word comes with each request.
        if way != Way::Proxy && way != Way::Cookie {
            tracing::info!(target: TARGET, name = shown(name), peer = peer.map(tracing::field::display), way = way.value(), "signed in");
        }
    }

    /// Somebody has not.
    pub(crate) fn refused(&self, why: Why, name: &str, peer: Option<IpAddr>) {
        use flatbed_metrics::Label;
        self.counts.sign_ins_refused.of(why).add(1);
        let Some(left_out) = self.line() else { return };
        tracing::warn!(target: TARGET, name = shown(name), peer = peer.map(tracing::field::display), reason = why.value(), left_out, "sign-in refused");
    }

    /// Whether there is room for a line, and how many were left out before it.
    fn line(&self) -> Option<u64> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        if self.clock.since(window.since) >= Duration::from_secs(1) {
            (window.since, window.lines) = (self.clock.now(), 0);
        }
        if window.lines >= REFUSALS_MAX {
            window.left_out += 1;
            return None;
        }
        window.lines += 1;
        Some(std::mem::take(&mut window.left_out))
    }
}

/// The beginning of a name, in which nothing is a line's end.
fn shown(name: &str) -> String {
    name.chars().take(NAME_SHOWN_MAX).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_few_lines_and_names_are_one() {
        let audit = Audit::new(&flatbed_clock::ManualClock::new().clock());
        let lines = (0..1_000).filter(|_| audit.line().is_some()).count();
        assert_eq!(lines, REFUSALS_MAX as usize);
        assert_eq!(audit.window.lock().unwrap().left_out as usize, 1_000 - lines);
        assert_eq!(shown("a\nb\u{1b}"), "a\\nb\\u{1b}");
        assert_eq!(shown(&"x".repeat(1_000)).len(), 200);
    }
}
