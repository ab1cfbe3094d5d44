//! Counters by a number that is not known at compile time.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::family::{Family, Kind, Labels, Measure, Value};

/// The kind of number of a [`KeyedCounter`].
pub trait Key {
    /// The label's name.
    const NAME: &'static str;
    /// The largest number of distinct values; further ones count as `other`.
    const COUNT_MAX: usize;
}

/// Counters by a number such as an error code, with a bounded number of series. A number takes the first free slot and
/// keeps it, so a lookup scans at most as many slots as there are numbers.
#[derive(Debug)]
pub struct KeyedCounter<K> {
    // Zero marks a free slot.
    places: Box<[(AtomicI32, AtomicU64)]>,
    other: AtomicU64,
    key: PhantomData<K>,
}

impl<K: Key> Default for KeyedCounter<K> {
    fn default() -> Self {
        let places = (0..K::COUNT_MAX).map(|_| Default::default()).collect();
        KeyedCounter { places, other: AtomicU64::default(), key: PhantomData }
    }
}

impl<K: Key> KeyedCounter<K> {
    /// Counts `number`; 0 counts as `other`.
    pub fn count(&self, number: i32) {
        self.place(number).unwrap_or(&self.other).fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the count of `number`.
    pub fn get(&self, number: i32) -> u64 {
        let found = self.places.iter().find(|(key, _)| number != 0 && key.load(Ordering::Relaxed) == number);
        found.map_or(0, |(_, count)| count.load(Ordering::Relaxed))
    }

    fn place(&self, number: i32) -> Option<&AtomicU64> {
        if number == 0 {
            return None;
        }
        self.places.iter().find_map(|(key, count)| {
            let found = match key.load(Ordering::Relaxed) {
                // Another thread may take the slot concurrently, for the same number or another.
                0 => key.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed).unwrap_or_else(|now| now),
                taken => taken,
            };
            (found == 0 || found == number).then_some(count)
        })
    }
}

impl<K: Key> Measure for KeyedCounter<K> {
    const KIND: Kind = Kind::Counter;

    fn measure(&self, labels: &mut Labels, family: &mut Family) {
        let met = self.places.iter().map(|(key, count)| (key.load(Ordering::Relaxed), count));
        for (number, count) in met.take_while(|(number, _)| *number != 0) {
            labels.push((K::NAME, number.to_string().into()));
            family.push(labels, Value::Count(count.load(Ordering::Relaxed)));
            labels.pop();
        }
        let other = self.other.load(Ordering::Relaxed);
        if other > 0 {
            labels.push((K::NAME, "other".into()));
            family.push(labels, Value::Count(other));
            labels.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Code;

    impl Key for Code {
        const NAME: &'static str = "code";
        const COUNT_MAX: usize = 3;
    }

    #[test]
    fn what_finds_no_place_is_counted_together() {
        let counts = KeyedCounter::<Code>::default();
        for number in [1020, 1021, 1020, 7, 8, 9, 7, 0] {
            counts.count(number);
        }
        assert_eq!([1020, 1021, 7, 8, 0].map(|number| counts.get(number)), [2, 1, 2, 0, 0]);
        let family = Family::of("flatbed_x", "X.", &counts);
        assert_eq!(family.samples.len(), 4);
        assert_eq!((family.with("code", "other"), family.total()), (3, 8));
        let counts = KeyedCounter::<Code>::default();
        assert!(Family::of("flatbed_x", "X.", &counts).samples.is_empty());
    }

    #[test]
    fn threads_that_meet_a_number_at_once_agree_on_its_place() {
        for _ in 0..200 {
            let counts = KeyedCounter::<Code>::default();
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let counts = &counts;
                    scope.spawn(move || (0..3).for_each(|at| counts.count(1 + (at + thread) % 3)));
                }
            });
            assert_eq!([1, 2, 3].map(|number| counts.get(number)), [4, 4, 4]);
        }
    }
}
