//! Random numbers, and the seed and the duration of random work.

use std::str::FromStr;
use std::time::Duration;

/// A generator of random numbers (splitmix64). The numbers follow from the seed alone.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// Returns the next 64 bits.
    #[expect(clippy::should_implement_trait, reason = "the numbers have no end")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns true once in `bound` calls, on average.
    pub fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }

    /// Returns true `chance` times in a hundred, on average.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// Returns the index of one of `length` items. There must be one.
    pub fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap_or_default()
    }

    /// Returns a duration between two numbers of seconds.
    pub fn seconds(&mut self, from: f64, to: f64) -> Duration {
        Duration::from_secs_f64(from + (to - from) * self.below(1_000) as f64 / 1_000.0)
    }

    /// Returns one of `items`, which must not be empty.
    pub fn one_of<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.index(items.len())]
    }
}

/// Returns the seed of random work, `FLATBED_TEST_SEED` or `default`, and prints it.
///
/// # Panics
/// The variable is not a number.
pub fn seed(default: u64) -> u64 {
    let seed = number("FLATBED_TEST_SEED").unwrap_or(default);
    println!("FLATBED_TEST_SEED={seed}");
    seed
}

/// Returns the duration of a torture: `FLATBED_TEST_SECONDS`, or `default` seconds.
///
/// # Panics
/// The variable is not a number.
pub fn length(default: f64) -> Duration {
    Duration::from_secs_f64(number("FLATBED_TEST_SECONDS").unwrap_or(default))
}

/// Returns a number from the environment.
///
/// # Panics
/// The variable is set and not a number.
pub fn number<T: FromStr>(variable: &str) -> Option<T> {
    let text = std::env::var(variable).ok()?;
    let number = text.parse().ok();
    assert!(number.is_some(), "{variable} is not a number: {text}");
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_from_the_seed() {
        let drawn = |seed| {
            let mut random = Random(seed);
            [random.below(1_000), random.below(1_000), random.below(1_000)]
        };
        assert_eq!(drawn(7), drawn(7));
        assert_ne!(drawn(7), drawn(8));
    }

    #[test]
    fn each_item_is_drawn() {
        let (mut random, mut drawn) = (Random(1), [false; 3]);
        (0..100).for_each(|_| drawn[*random.one_of(&[0, 1, 2])] = true);
        assert_eq!(drawn, [true; 3]);
    }
}
