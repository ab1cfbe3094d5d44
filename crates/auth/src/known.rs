//! Credentials that were right before, so that a password is not checked anew with every request.

use std::collections::{HashMap, VecDeque};

use crate::credentials::Digest;

/// Digests of credentials that were right, with their names: the newest ones, up to a number. They are not forgotten
/// otherwise, since passwords do not change while a process runs.
#[derive(Debug)]
pub struct Known {
    max: usize,
    names: HashMap<Digest, String>,
    /// Oldest first.
    order: VecDeque<Digest>,
}

impl Known {
    /// Knows nobody yet, and at most `max` later.
    pub fn new(max: usize) -> Known {
        Known { max, names: HashMap::new(), order: VecDeque::new() }
    }

    /// The name that goes with these credentials.
    pub fn name(&self, digest: &Digest) -> Option<&str> {
        self.names.get(digest).map(String::as_str)
    }

    /// Remembers credentials that were right; those that came first are forgotten where there are too many.
    pub fn insert(&mut self, digest: Digest, name: String) {
        if self.names.insert(digest, name).is_none() {
            self.order.push_back(digest);
        }
        if self.order.len() > self.max
            && let Some(oldest) = self.order.pop_front()
        {
            self.names.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten() {
        let mut known = Known::new(2);
        for (byte, name) in [(1, "a"), (2, "b"), (1, "a")] {
            known.insert([byte; 32], name.to_owned());
        }
        assert_eq!([1, 2, 3].map(|byte| known.name(&[byte; 32])), [Some("a"), Some("b"), None]);
        known.insert([3; 32], "c".to_owned());
        assert_eq!([1, 2, 3].map(|byte| known.name(&[byte; 32])), [None, Some("b"), Some("c")]);
        assert_eq!((known.names.len(), known.order.len()), (2, 2));
    }
}
