//! The log and the counters of sign-in: the target `audit`. It contains no secrets, and no line per request of a
//! remembered client.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use flatbed_clock::Clock;
use flatbed_metrics::{Counter, LabelledMetrics};
use tokio::time::Instant;

pub(crate) const TARGET: &str = "audit";

/// The most lines of refusals per second; the next line has the number of omitted ones.
const REFUSALS_MAX: u32 = 20;

/// The most logged characters of a name.
const NAME_SHOWN_MAX: usize = 200;

flatbed_metrics::labels! {
    pub(crate) enum SignInMethod: "way" {
        Basic = "basic",
        Session = "session",
        Cookie = "cookie",
        Jwt = "jwt",
        Proxy = "proxy",
    }
}

flatbed_metrics::labels! {
    /// The reason of a refused sign-in.
    pub(crate) enum RefusalReason: "reason" {
        Wrong = "wrong",
        LockedOut = "locked_out",
        TooMany = "too_many",
        Document = "document",
        Token = "token",
    }
}

flatbed_metrics::metrics! {
    pub(crate) struct SignIns {
        sign_ins: LabelledMetrics<SignInMethod, Counter> = "Sign-ins by method: right passwords, sessions begun and renewed, verified tokens; without requests of remembered clients.",
        sign_ins_refused: LabelledMetrics<RefusalReason, Counter> = "Refused sign-ins by reason.",
        password_checks: Counter = "Passwords checked.",
        passwords_hashed: Counter = "New passwords of user documents hashed.",
    }
}

#[derive(Debug)]
struct RefusalWindow {
    since: Instant,
    lines: u32,
    left_out: u64,
}

#[derive(Debug)]
pub(crate) struct Audit {
    clock: Clock,
    window: Mutex<RefusalWindow>,
    pub counts: SignIns,
}

impl Audit {
    pub(crate) fn new(clock: &Clock) -> Audit {
        let window = RefusalWindow { since: clock.now(), lines: 0, left_out: 0 };
        Audit { clock: clock.clone(), window: Mutex::new(window), counts: SignIns::default() }
    }

    pub(crate) fn signed_in(&self, way: SignInMethod, name: &str, peer: Option<IpAddr>) {
        use flatbed_metrics::Label;
        self.counts.sign_ins.of(way).add(1);
        // A proxy's assertion comes with each request.
        if way != SignInMethod::Proxy && way != SignInMethod::Cookie {
            tracing::info!(target: TARGET, name = escaped_name(name), peer = peer.map(tracing::field::display), way = way.value(), "signed in");
        }
    }

    pub(crate) fn refused(&self, why: RefusalReason, name: &str, peer: Option<IpAddr>) {
        use flatbed_metrics::Label;
        self.counts.sign_ins_refused.of(why).add(1);
        let Some(left_out) = self.line() else { return };
        tracing::warn!(target: TARGET, name = escaped_name(name), peer = peer.map(tracing::field::display), reason = why.value(), left_out, "sign-in refused");
    }

    /// Returns the number of omitted lines before this one, if it may be written.
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

/// Returns the beginning of a name, with control characters escaped.
fn escaped_name(name: &str) -> String {
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
        assert_eq!(escaped_name("a\nb\u{1b}"), "a\\nb\\u{1b}");
        assert_eq!(escaped_name(&"x".repeat(1_000)).len(), 200);
    }
}
