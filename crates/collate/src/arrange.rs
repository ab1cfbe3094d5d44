//! The order of a document's rows in one view.

use std::cmp::Ordering;
use std::collections::HashMap;

use flatbed_flatten::json::Value;

use crate::collation::Collation;
use crate::key::SortKey;

/// A row as ordered by [`arrange()`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrangedRow {
    /// Its index among the given rows.
    pub at: usize,
    /// The sort form of its key.
    pub sort_key: SortKey,
    /// The part of its key after the document's id.
    pub tail: Tail,
}

/// The position of a row among those of its document with equal keys: two numbers, nearly always both 0.
///
/// They depend on the document's rows alone, so a rebuilt index has the same ones, and they take a few bytes for
/// values of any size. An inserted or removed row shifts the later rows of its document and key.
///
/// A `descending` read reverses keys, documents and spellings, but not the rows of one spelling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Tail {
    /// The index among the keys that the collation treats as equal (`""` and `"\u0000"`): 0 for the first in raw
    /// order.
    pub spelling: u32,
    /// The index among the rows with exactly the same key: by the raw order of values, then by the order of emission.
    pub ordinal: u32,
}

/// A row: its index, its key, and the sort form of the key.
type Row<'r, 'k> = (usize, &'r Value<'k>, SortKey);

/// Sorts the rows of one document in one view by key, and rows with equal keys by value. `values` returns the values
/// of some rows, in the given order. It is called once for each key that several rows share, after the values of the
/// previous key are dropped. Takes O(n log n) comparisons.
pub fn arrange<'v>(
    collation: &Collation,
    keys: &[Value<'_>],
    values: impl Fn(&[usize]) -> Vec<Value<'v>>,
) -> Vec<ArrangedRow> {
    let raw = Collation::raw();
    let mut sorted: Vec<Row<'_, '_>> =
        keys.iter().enumerate().map(|(at, key)| (at, key, collation.sort_key(key))).collect();
    let by_key = |(_, a, a_sorted): &Row<'_, '_>, (_, b, b_sorted): &Row<'_, '_>| {
        let by_form = a_sorted.bytes().cmp(b_sorted.bytes());
        // Equal prefixes do not decide.
        if by_form.is_eq() && a_sorted.is_cut() { collation.compare(a, b) } else { by_form }
    };
    sorted.sort_by(|a, b| by_key(a, b).then_with(|| raw.compare(a.1, b.1)));
    for rows in sorted.chunk_by_mut(|a, b| by_key(a, b).is_eq() && raw.compare(a.1, b.1).is_eq()) {
        if rows.len() < 2 {
            continue;
        }
        let of_key: Vec<usize> = rows.iter().map(|(at, ..)| *at).collect();
        let values = values(&of_key);
        let values: HashMap<usize, Value<'v>> = of_key.into_iter().zip(values).collect();
        rows.sort_by(|(a, ..), (b, ..)| match (values.get(a), values.get(b)) {
            (Some(a), Some(b)) => raw.compare(a, b),
            _ => Ordering::Equal,
        });
    }
    let mut tails = Vec::with_capacity(sorted.len());
    let mut tail = Tail::default();
    let mut previous = None;
    for row in &sorted {
        tail = match previous {
            Some(previous) if by_key(previous, row).is_eq() => match raw.compare(previous.1, row.1) {
                Ordering::Equal => Tail { ordinal: tail.ordinal.saturating_add(1), ..tail },
                _ => Tail { spelling: tail.spelling.saturating_add(1), ordinal: 0 },
            },
            _ => Tail::default(),
        };
        tails.push(tail);
        previous = Some(row);
    }
    sorted.into_iter().zip(tails).map(|((at, _, sort_key), tail)| ArrangedRow { at, sort_key, tail }).collect()
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{Limits, parse};

    use super::*;

    fn value(text: &str) -> Value<'static> {
        parse(text.as_bytes(), &Limits::default()).unwrap().into_owned()
    }

    fn arranged(rows: &[(&str, &str)]) -> Vec<(usize, u32, u32)> {
        let (keys, values): (Vec<_>, Vec<_>) = rows.iter().map(|(key, row)| (value(key), value(row))).unzip();
        let arranged =
            arrange(&Collation::unicode().unwrap(), &keys, |rows| rows.iter().map(|at| values[*at].clone()).collect());
        arranged.into_iter().map(|row| (row.at, row.tail.spelling, row.tail.ordinal)).collect()
    }

    #[test]
    fn rows_of_one_key_lie_by_value() {
        let rows: Vec<_> = [r#""s""#, r#"{"a":1}"#, "[1]", "true", "null", "false", "2", "1", "1"]
            .into_iter()
            .map(|row| (r#""k""#, row))
            .collect();
        let expected: Vec<_> = [7, 8, 6, 5, 4, 3, 1, 2, 0].into_iter().zip(0..).map(|(at, to)| (at, 0, to)).collect();
        assert_eq!(arranged(&rows), expected);
    }

    #[test]
    fn keys_that_count_as_one_lie_by_their_bytes() {
        let rows = [("\"\u{e9}\"", "1"), (r#""e""#, "2"), ("\"e\u{301}\"", "3"), ("\"\u{e9}\"", "0")];
        assert_eq!(arranged(&rows), [(1, 0, 0), (2, 0, 0), (3, 1, 0), (0, 1, 1)]);
    }

    #[test]
    fn keys_that_are_cut_are_told_apart() {
        let long = |end: &str| format!("[\"{}\",{end}]", "a".repeat(5_000));
        let (one, two) = (long("1"), long("2"));
        assert_eq!(
            arranged(&[(&two, "0"), (&one, "1"), (&two, "1"), (&one, "0")]),
            [(3, 0, 0), (1, 0, 1), (0, 0, 0), (2, 0, 1)]
        );
    }

    #[test]
    fn no_rows_are_none() {
        assert!(arrange(&Collation::raw(), &[], |_| Vec::new()).is_empty());
    }

    #[test]
    fn values_are_read_only_for_equal_keys() {
        let keys = ["1", "4", "2", "1.0", "3", "4"].map(value);
        let asked = std::cell::RefCell::new(Vec::new());
        let arranged = arrange(&Collation::unicode().unwrap(), &keys, |rows| {
            asked.borrow_mut().push(rows.to_vec());
            rows.iter().map(|at| value(if *at == 0 { "true" } else { "false" })).collect()
        });
        assert_eq!(arranged.iter().map(|row| row.at).collect::<Vec<_>>(), [3, 0, 2, 4, 1, 5]);
        assert_eq!(*asked.borrow(), [[0, 3], [1, 5]], "the rows of one key together");
    }
}
