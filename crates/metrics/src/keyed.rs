//! Counts by numbers that are not known beforehand.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::family::{Family, Kind, Labels, Measure, Value};

/// What the numbers of a [`Keyed`] are.
pub trait Key {
    /// The label's name.
    const NAME: &'static str;
    /// How many different numbers are kept apart; all further ones are counted together as `other`.
    const COUNT_MAX: usize;
}

/// Counts by a number, such as an error's code: each that was met has a count, up to a bounded count of them. A number
/// takes the first free place and keeps it, so that counting walks over as few places as there are numbers.
#[derive(Debug)]
pub struct Keyed<K> {
    // No number is 0: that is a free place.
    places: Box<[(AtomicI32, AtomicU64)]>,
    other: AtomicU64,
    key: PhantomData<K>,
}

impl<K: Key> Default for Keyed<K> {
    fn default() -> Self {
        let places = (0..K::COUNT_MAX).map(|_| Default::default()).collect();
        Keyed { places, other: AtomicU64::default(), key: PhantomData }
    }
}

impl<K: Key> Keyed<K> {
    /// One more of `number`; 0 counts as `other`.
    pub fn count(&self, number: i32) {
        self.place(number).unwrap_or(&self.other).fetch_add(1, Ordering::Relaxed);
    }

    /// How many there were of `number`.
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
                // Another thread may take the place for the same number at this moment, or for another one.
                0 => key.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed).unwrap_or_else(|now| now),
                taken => taken,
            };
            (found == 0 || found == number).then_some(count)
        })
    }
}

impl<K: Key> Measure for Keyed<K> {
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
        let counts = Keyed::<Code>::default();
        for number in [1020, 1021, 1020, 7, 8, 9, 7, 0] {
            counts.count(number);
        }
        assert_eq!([1020, 1021, 7, 8, 0].map(|number| counts.get(number)), [2, 1, 2, 0, 0]);
        let family = Family::of("flatbed_x", "X.", &counts);
        assert_eq!(family.samples.len(), 4);
        assert_eq!((family.with("code", "other"), family.total()), (3, 8));
        let counts = Keyed::<Code>::default();
        assert!(Family::of("flatbed_x", "X.", &counts).samples.is_empty());
    }

    #[test]
    fn threads_that_meet_a_number_at_once_agree_on_its_place() {
        for _ in 0..200 {
            let counts = Keyed::<Code>::default();
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
