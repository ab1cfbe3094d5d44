//! Limits of the times that a write begins again above its transaction, by reason.
//!
//! The runner of transactions repeats an attempt that conflicted. A write also begins again when what it was prepared
//! for has changed: the database, its rules, or the state that functions judged. Each reason has a limit, so that no
//! write goes on without end beside others that change the same things.

/// Retries of a write whose database was deleted and created again, or restored, meanwhile.
const REPLACED_MAX: u32 = 7;

/// Retries of edits whose rules or preparations changed meanwhile.
const CHANGED_MAX: u32 = 32;

/// Retries of an edit whose judged state, beside the rules, changed meanwhile; after that the writer waits.
const STALE_MAX: u32 = 3;

/// Counts the retries of one write or batch.
#[derive(Debug, Default)]
pub struct WriteRetries {
    replaced: u32,
    changed: u32,
    stale: u32,
}

impl WriteRetries {
    /// Counts a retry because the database was replaced, and returns whether it is allowed.
    pub(super) fn may_follow_database(&mut self) -> bool {
        may_repeat(&mut self.replaced, REPLACED_MAX)
    }

    /// Counts a retry because rules or preparations have changed, and returns whether it is allowed.
    pub(super) fn may_follow_rules(&mut self) -> bool {
        may_repeat(&mut self.changed, CHANGED_MAX)
    }

    /// Counts a retry because a judged state has changed, and returns whether it is allowed.
    pub(super) fn may_judge_again(&mut self) -> bool {
        may_repeat(&mut self.stale, STALE_MAX)
    }

    /// Begins the count of changed states anew, because all judged states were current.
    pub(super) fn note_current(&mut self) {
        self.stale = 0;
    }
}

fn may_repeat(count: &mut u32, most: u32) -> bool {
    *count = count.saturating_add(1);
    *count <= most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_limit_of_its_own() {
        let mut retries = WriteRetries::default();
        let allowed = |may: &mut dyn FnMut() -> bool| (0..100).take_while(|_| may()).count();
        assert_eq!(allowed(&mut || retries.may_follow_database()), 7);
        assert_eq!(allowed(&mut || retries.may_follow_rules()), 32);
        assert_eq!(allowed(&mut || retries.may_judge_again()), 3);
        assert!(!retries.may_judge_again());
        retries.note_current();
        assert!(retries.may_judge_again(), "consecutive changes count");
    }
}
