//! Comparison of long strings by their weights.
//!
//! The library compares two strings in time quadratic in runs that it cannot split (marks, Thai vowels): a minute for
//! 240 kB. It writes weights in linear time. So a window of one string's weights is written, and the other's are
//! compared while they are written; if both continue, the next window follows.

use std::cmp::Ordering;

use icu_collator::{CollationKeySink, CollatorBorrowed};

/// The length in bytes from which strings are compared this way.
pub(crate) const LONG_BYTES: usize = 1_024;

/// The most weights kept: those of 8 MB of text have at most about ten windows.
const WINDOW_BYTES: usize = 16 << 20;

pub(crate) fn compare(collator: &CollatorBorrowed<'_>, a: &str, b: &str) -> Ordering {
    compare_in(collator, a, b, WINDOW_BYTES)
}

fn compare_in(collator: &CollatorBorrowed<'_>, a: &str, b: &str, window: usize) -> Ordering {
    let mut skipped = 0;
    loop {
        let mut kept = Window { skip: skipped, room: window, bytes: Vec::new() };
        let is_cut = collator.write_sort_key_to(a, &mut kept).is_err();
        let mut rest = Rest { skip: skipped, bytes: &kept.bytes, order: Ordering::Equal };
        let has_ended = collator.write_sort_key_to(b, &mut rest).is_ok();
        match (rest.order, has_ended, rest.bytes.is_empty()) {
            // The other string's weights equal the kept ones, or are a prefix of them.
            (Ordering::Equal, true, is_all) => {
                return if is_all && !is_cut { Ordering::Equal } else { Ordering::Greater };
            }
            // It continues after the window.
            (Ordering::Equal, false, _) if is_cut => skipped += window,
            (Ordering::Equal, false, _) => return Ordering::Less,
            (order, ..) => return order,
        }
    }
}

/// The sink needs no more weights.
struct Enough;

/// Keeps a window of the weights.
struct Window {
    skip: usize,
    room: usize,
    bytes: Vec<u8>,
}

impl CollationKeySink for Window {
    type Error = Enough;
    type State = ();
    type Output = ();

    fn write(&mut self, (): &mut (), bytes: &[u8]) -> Result<(), Enough> {
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        let bytes = bytes.get(skipped..).unwrap_or_default();
        let kept = bytes.len().min(self.room);
        self.room -= kept;
        self.bytes.extend_from_slice(bytes.get(..kept).unwrap_or_default());
        if kept < bytes.len() { Err(Enough) } else { Ok(()) }
    }

    fn finish(&mut self, (): ()) -> Result<(), Enough> {
        Ok(())
    }
}

/// Compares weights with the kept ones: `order` is that of the kept ones.
struct Rest<'w> {
    skip: usize,
    bytes: &'w [u8],
    order: Ordering,
}

impl CollationKeySink for Rest<'_> {
    type Error = Enough;
    type State = ();
    type Output = ();

    fn write(&mut self, (): &mut (), bytes: &[u8]) -> Result<(), Enough> {
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        for byte in bytes.get(skipped..).unwrap_or_default() {
            let Some((kept, behind)) = self.bytes.split_first() else { return Err(Enough) };
            self.order = kept.cmp(byte);
            if self.order.is_ne() {
                return Err(Enough);
            }
            self.bytes = behind;
        }
        Ok(())
    }

    fn finish(&mut self, (): ()) -> Result<(), Enough> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use icu_collator::CollatorPreferences;
    use icu_collator::options::CollatorOptions;
    use proptest::prelude::*;

    use super::*;
    use crate::collation::tests::strings;

    #[test]
    fn a_window_keeps_no_more_than_it_has_room_for() {
        let mut window = Window { skip: 2, room: 4, bytes: Vec::new() };
        assert!(window.write(&mut (), b"abcde").is_ok());
        assert!(window.write(&mut (), b"f").is_ok());
        assert!(window.write(&mut (), b"gh").is_err());
        assert_eq!(window.bytes, b"cdef");
    }

    /// The library alone takes minutes.
    #[test]
    fn long_strings_are_compared_in_linear_time() {
        // In quadratic time this exceeds the time limit of a test.
        let unicode = crate::Collation::unicode().unwrap();
        let value = |text: String| flatbed_flatten::json::Value::String(text.into());
        for text in ["\u{e40}", "\u{301}", "a"] {
            let (a, b) = (text.repeat(80_000), text.repeat(80_000) + "x");
            assert!(unicode.compare(&value(a), &value(b)).is_lt());
        }
    }

    proptest! {
        #[test]
        fn weights_compare_as_the_strings(a in strings(), b in strings(), begin in strings(), window in 1..12_usize) {
            let collator = CollatorBorrowed::try_new(CollatorPreferences::default(), CollatorOptions::default()).unwrap();
            for (a, b) in [(a.clone(), b.clone()), (format!("{begin}{a}"), format!("{begin}{b}")), (a.clone(), a + &begin)] {
                let expected = collator.compare(&a, &b);
                prop_assert_eq!(compare_in(&collator, &a, &b, window), expected);
                prop_assert_eq!(compare(&collator, &a, &b), expected);
                prop_assert_eq!(compare_in(&collator, &a, &a, window), Ordering::Equal);
            }
        }
    }
}
