//! The rows that begin nodes, and their levels.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;

/// The most levels of nodes below the root: a node of the last level covers 4 billion of the first.
pub const LEVELS_MAX: u8 = 9;

/// The mean number of a level's nodes in one of the next, as a number of bits: 16.
const FANOUT_BITS: u32 = 4;

/// The rule that decides which rows begin nodes.
///
/// A row begins a node of level 1 with a probability that grows with its size, so that a node has a mean of
/// [`node_bytes`](Shape::new) of rows, whether they are many or large. One in 16 of those rows begins a node of level
/// 2, and so on. A keyed hash (SipHash-2-4) of the row's key decides, so a client that does not know the secret cannot
/// choose keys that make a node large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    secret: (u64, u64),
    node_bytes: u64,
}

impl Shape {
    /// `secret`: drawn once for a tree, and stored with it. `node_bytes`: the mean bytes of rows, keys included, in a
    /// node of level 1. It is stored too, because a tree cannot be read with another value.
    pub fn new(secret: (u64, u64), node_bytes: u32) -> Shape {
        Shape { secret, node_bytes: u64::from(node_bytes).max(1) }
    }

    /// Returns the highest level at which a row begins a node; 0: none.
    ///
    /// `value_bytes` is the size of the row's value.
    pub fn level(&self, key: &[u8], value_bytes: usize) -> u8 {
        let hash = self.hash(key);
        // The lower half of the hash decides level 1, the upper half the levels above, so they are independent.
        let bytes = (key.len() as u64).saturating_add(value_bytes as u64);
        if (hash & 0xffff_ffff) * self.node_bytes >= bytes.min(self.node_bytes) << 32 {
            return 0;
        }
        self.node_level(key)
    }

    /// Returns the highest level of a row that is known to begin a node.
    pub fn node_level(&self, key: &[u8]) -> u8 {
        let above = (self.hash(key) >> 32) as u32;
        1 + (above.trailing_zeros() / FANOUT_BITS) as u8
    }

    fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(self.secret.0, self.secret.1);
        hasher.write(key);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { secret: (1, 2), node_bytes: 4096 };

    fn key(n: u32) -> Vec<u8> {
        n.to_be_bytes().repeat(8)
    }

    #[test]
    fn nodes_have_their_bytes_in_the_mean() {
        for value_bytes in [0, 100, 1000, 10_000] {
            let begun = (0..100_000).filter(|n| SHAPE.level(&key(*n), value_bytes) > 0).count() as f64;
            let wanted = 100_000.0 * f64::min(1.0, (32.0 + value_bytes as f64) / 4096.0);
            assert!((begun / wanted - 1.0).abs() < 0.1, "{value_bytes}: {begun}, {wanted}");
        }
    }

    #[test]
    fn one_of_sixteen_goes_up() {
        let mut levels = [0; LEVELS_MAX as usize + 1];
        (0..200_000).for_each(|n| levels[SHAPE.node_level(&key(n)) as usize] += 1);
        assert_eq!(levels[0], 0);
        for level in 1..4 {
            let share = f64::from(levels[level]) / f64::from(levels[level..].iter().sum::<i32>());
            assert!((share - 15.0 / 16.0).abs() < 0.02, "{level}: {share}");
        }
    }

    #[test]
    fn what_begins_a_node_by_its_size_begins_the_same_above() {
        for n in 0..2000 {
            let level = SHAPE.level(&key(n), 100);
            assert!(level == 0 || level == SHAPE.node_level(&key(n)));
            assert!(SHAPE.level(&key(n), 5000) == SHAPE.node_level(&key(n)));
        }
    }

    /// Stored trees depend on these values: a change makes them unreadable.
    #[test]
    fn the_shape_stays() {
        let levels: Vec<u8> = (0..400).map(|n| SHAPE.level(&key(n), 500)).filter(|level| *level > 0).collect();
        assert_eq!(
            levels.iter().map(|level| level.to_string()).collect::<String>(),
            "11111111112111111111111111111111111111111111111211111111111"
        );
    }
}
