//! How many documents to look up at once, when some are tiny and some have megabytes.

/// Documents of a batch, at most.
const COUNT_MAX: usize = 100;

/// Documents of the first batch, of which nothing is known yet.
const COUNT_FIRST: usize = 8;

/// What a batch's documents should take together, in bytes.
const BYTES_AIM: usize = 512 * 1024;

/// The size of the next batch, from what the last one took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchSize(usize);

impl BatchSize {
    /// For answers with bodies.
    pub(crate) fn cautious() -> Self {
        BatchSize(COUNT_FIRST)
    }

    /// For answers without.
    pub(crate) fn greatest() -> Self {
        BatchSize(COUNT_MAX)
    }

    /// Documents to look up now.
    pub(crate) fn count(self) -> usize {
        self.0
    }

    /// What the last batch of [`BatchSize::count`] documents took. Grows by doubling, shrinks at once.
    pub(crate) fn learn(&mut self, bytes: usize) {
        let fitting = BYTES_AIM.saturating_mul(self.0) / bytes.max(1);
        self.0 = fitting.min(2 * self.0).clamp(1, COUNT_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_documents() {
        let mut size = BatchSize::cautious();
        for _ in 0..10 {
            size.learn(1_000 * size.count());
        }
        assert_eq!(size.count(), COUNT_MAX);
        size.learn(8_000_000 * size.count());
        assert_eq!(size.count(), 1);
        size.learn(0);
        assert_eq!(size.count(), 2);
    }
}
