//! Sort keys: what of a JSON key stands in the key of a row.
//!
//! FoundationDB's keys have at most 10,000 bytes, and a document's id takes up to 4,100 of them. A form that is longer than
//! [`CUT_BYTES`] is cut, and a [label](crate::label) behind it says where among the keys with that beginning it stands:
//! who writes the row finds it by a [`Search`](crate::Search) among the rows that are there.

use flatbed_flatten::json::Value;

use crate::collation::Collation;
use crate::form;

/// The most bytes that a form may take in a tuple, where a zero takes two: a longer one is cut at the first place where
/// what comes before takes all of them, or all but one.
///
/// Whether a form is cut, and where, depends on its beginning alone. So what is cut begins with nothing that is not, and a
/// key's order among keys with other beginnings is that of the bytes.
pub const CUT_BYTES: usize = 4_096;

/// A byte above the first of every sort form: `[HIGHEST]` is above all keys.
pub const HIGHEST: u8 = 0xff;

/// The sort form of a JSON key, or the beginning of one that is too long.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SortKey {
    bytes: Vec<u8>,
    is_cut: bool,
}

impl SortKey {
    pub(crate) fn new(bytes: Vec<u8>, is_cut: bool) -> SortKey {
        SortKey { bytes, is_cut }
    }

    /// The form, or its beginning: at most [`CUT_BYTES`], zeros counted twice.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether it is a beginning alone, to which a label belongs.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// What stands in a row's key: the form, and the label where it is cut. `None` where there is a label too many or one
    /// too few.
    pub fn with_label(&self, label: Option<&[u8]>) -> Option<Vec<u8>> {
        match label {
            Some(label) if self.is_cut => Some([self.bytes(), label].concat()),
            None if !self.is_cut => Some(self.bytes.clone()),
            _ => None,
        }
    }
}

/// Takes apart what stands in a row's key: the form or its beginning, and the label, empty where the form is whole.
pub fn split(element: &[u8]) -> (&[u8], &[u8]) {
    split_within(element, CUT_BYTES)
}

pub(crate) fn split_within(element: &[u8], bytes_max: usize) -> (&[u8], &[u8]) {
    let mut stored = 0;
    let whole = element.iter().take_while(|byte| {
        let has_room = stored + 1 < bytes_max;
        stored += 1 + usize::from(**byte == 0);
        has_room
    });
    element.split_at_checked(whole.count()).unwrap_or((element, &[]))
}

/// What the keys of a group have in common: the beginning of a form up to, and without the end of, its array's first
/// `level` items. All of the form where it is no array or has no more items.
///
/// With `group_level` the rows of a group are those whose forms begin with it; behind them all is what begins with it and
/// [`HIGHEST`]. Where a group has fewer items than the level (`[1]` among `[1,2]` at level 2) it ends with the form's zero,
/// and so it is the group of that key alone. `None` where the form is cut before that: then the group is found by a
/// [`Search`](crate::Search) with the keys themselves, [`cut_to_level`].
pub fn group_prefix<'k>(collation: &Collation, element: &'k [u8], level: usize) -> Option<&'k [u8]> {
    let (form, label) = split(element);
    if form.first() != Some(&form::array_tag(collation)) {
        return label.is_empty().then_some(form);
    }
    let mut at = 1;
    for _ in 0..level {
        let rest = form.get(at..)?;
        if rest.first() == Some(&form::END) {
            return Some(form);
        }
        at += form::len(collation, rest)?;
    }
    // A whole form that ends here is the group of its own key, and that of longer ones.
    form.get(..at)
}

/// The key of a group: with a group level an array's first items, all of any other key.
pub fn cut_to_level<'v>(key: &Value<'v>, level: usize) -> Value<'v> {
    match key {
        Value::Array(items) => Value::Array(items.iter().take(level).cloned().collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{Limits, parse};
    use proptest::prelude::*;

    use super::*;
    use crate::collation::tests::values;

    fn both() -> [Collation; 2] {
        [Collation::unicode().unwrap(), Collation::raw()]
    }

    proptest! {
        #[test]
        fn groups_are_what_begins_alike(
            keys in prop::collection::vec(prop::collection::vec(values(), 0..4).prop_map(Value::Array), 2..6),
            level in 0..4_usize,
        ) {
            for collation in both() {
                let elements: Vec<_> = keys.iter().map(|key| collation.whole_form(key)).collect();
                for (key, element) in keys.iter().zip(&elements) {
                    let prefix = group_prefix(&collation, element, level).unwrap();
                    let group = cut_to_level(key, level);
                    for (other, other_element) in keys.iter().zip(&elements) {
                        let is_member = collation.compare(&cut_to_level(other, level), &group).is_eq();
                        prop_assert_eq!(other_element.starts_with(prefix), is_member);
                        let is_behind = collation.compare(&cut_to_level(other, level), &group).is_gt();
                        prop_assert_eq!(other_element.as_slice() > [prefix, &[HIGHEST]].concat().as_slice(), is_behind);
                    }
                }
            }
        }
    }

    #[test]
    fn prefixes_of_groups() {
        let unicode = Collation::unicode().unwrap();
        let prefix = |text: &str, level| {
            let form = unicode.whole_form(&parse(text.as_bytes(), &Limits::default()).unwrap());
            group_prefix(&unicode, &form, level).map(<[u8]>::to_vec)
        };
        assert_eq!(prefix("[0,null]", 0), Some(vec![0x40]));
        assert_eq!(prefix("[0,null]", 1), Some(vec![0x40, 0x21]));
        assert_eq!(prefix("[0,null]", 2), Some(vec![0x40, 0x21, 0x10]));
        assert_eq!(prefix("[0,null]", 3), Some(vec![0x40, 0x21, 0x10, 0]));
        assert_eq!(prefix("[]", 1), Some(vec![0x40, 0]));
        assert_eq!(prefix("true", 1), Some(vec![0x12]));
        assert_eq!(prefix("{}", 1), Some(vec![0x50, 0]));
        assert_eq!(group_prefix(&unicode, &[], 1), Some([].as_slice()));
    }

    #[test]
    fn groups_of_keys_that_are_cut() {
        let raw = Collation::raw();
        let long = Value::String("x".repeat(5_000).into());
        let element = |key: &Value<'_>| raw.sort_key(key).with_label(Some(&[7; 8])).unwrap();
        let behind = element(&Value::Array(vec![Value::Null, long.clone()]));
        assert_eq!(group_prefix(&raw, &behind, 1), Some([0x50, 0x31].as_slice()));
        assert_eq!(group_prefix(&raw, &behind, 2), None);
        assert_eq!(group_prefix(&raw, &element(&long), 1), None);
        assert_eq!(group_prefix(&raw, &element(&Value::Array(vec![long])), 1), None);
    }

    #[test]
    fn where_forms_are_cut() {
        let raw = Collation::raw();
        let key = |zeros: usize, letters: usize| {
            let text = "x".repeat(letters);
            let items = (0..zeros).map(|_| Value::Array(Vec::new())).chain([Value::String(text.into())]);
            raw.sort_key(&Value::Array(items.collect()))
        };
        // The tags of the array and the string; before the last zero there must be room.
        assert!(!key(0, CUT_BYTES - 6).is_cut());
        assert!(key(0, CUT_BYTES - 5).is_cut());
        assert_eq!(key(0, CUT_BYTES).bytes().len(), CUT_BYTES - 1);
        // Each empty array takes three bytes, of which one is a zero.
        assert_eq!(key(2_000, 0).bytes().len(), 2_731);
        let cut = key(0, CUT_BYTES);
        assert_eq!(cut.with_label(None), None);
        assert_eq!(cut.with_label(Some(&[1])).unwrap().len(), CUT_BYTES);
        assert_eq!(key(0, 1).with_label(Some(&[1])), None);
        assert_eq!(key(0, 1).with_label(None).unwrap(), [0x50, 0x60, b'x', 0, 0]);
    }

    #[test]
    fn a_row_fits_into_a_key() {
        let stored_twice = |bytes: usize| 2 * bytes;
        // The root's name and numbers before, tuples' ends, the tail, and a document's id of zeros alone.
        let others = 80 + 10 + stored_twice(2_048);
        assert!(CUT_BYTES + stored_twice(crate::label::LABEL_BYTES_MAX) + others < 10_000);
    }
}
