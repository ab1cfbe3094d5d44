//! Sort keys: the part of a JSON key that is stored in a row's key.
//!
//! FoundationDB's keys have at most 10,000 bytes, and a document's id takes up to 4,100 of them. A form longer than
//! [`CUT_BYTES`] is cut, and a [label](crate::label) after it gives its position among the keys with that prefix. The
//! writer of the row finds the label by a [`Search`](crate::Search) among the existing rows.

use flatbed_flatten::json::Value;

use crate::collation::Collation;
use crate::form;

/// The most bytes of a form in a tuple, where a zero takes two. A longer form is cut at the first place where its
/// prefix takes all of them, or all but one.
///
/// A form's prefix alone decides whether and where it is cut. So no whole form is a prefix of a cut one, and bytes
/// decide the order of keys with different prefixes.
pub const CUT_BYTES: usize = 4_096;

/// A byte above the first byte of every sort form: `[HIGHEST]` is above all keys.
pub const HIGHEST: u8 = 0xff;

/// The sort form of a JSON key, or the prefix of a form that is too long.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SortKey {
    bytes: Vec<u8>,
    is_cut: bool,
}

impl SortKey {
    pub(crate) fn new(bytes: Vec<u8>, is_cut: bool) -> SortKey {
        SortKey { bytes, is_cut }
    }

    /// The form, or its prefix: at most [`CUT_BYTES`], zeros counted twice.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns whether it is a prefix, which needs a label.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Returns the element of a row's key: the form, and the label if it is cut. `None` for a surplus or a missing
    /// label.
    pub fn with_label(&self, label: Option<&[u8]>) -> Option<Vec<u8>> {
        match label {
            Some(label) if self.is_cut => Some([self.bytes(), label].concat()),
            None if !self.is_cut => Some(self.bytes.clone()),
            _ => None,
        }
    }
}

/// Splits the element of a row's key into the form or its prefix, and the label, which is empty for a whole form.
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

/// Returns the common prefix of a group's keys: the form's beginning up to the end of its array's first `level` items,
/// without the array's terminator. The whole form if it is not an array or has no more items.
///
/// With `group_level` the rows of a group are those whose forms begin with it; the prefix with [`HIGHEST`] appended is
/// after them. The prefix of a group with fewer items than the level (`[1]` among `[1,2]` at level 2) ends with the
/// form's zero, so the group contains that key alone. `None` if the form is cut earlier: then a
/// [`Search`](crate::Search) with the keys themselves, [`cut_to_level`], finds the group.
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
    // A whole form that ends here is the group of its own key, and of longer ones.
    form.get(..at)
}

/// Returns the key of a group: an array's first `level` items, or any other key as it is.
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
        // The tags of the array and the string; the last zero must fit too.
        assert!(!key(0, CUT_BYTES - 6).is_cut());
        assert!(key(0, CUT_BYTES - 5).is_cut());
        assert_eq!(key(0, CUT_BYTES).bytes().len(), CUT_BYTES - 1);
        // Each empty array takes three bytes, one of them a zero.
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
        // The root's name and numbers before, the tuple's ends, the tail, and a document id of zeros.
        let others = 80 + 10 + stored_twice(2_048);
        assert!(CUT_BYTES + stored_twice(crate::label::LABEL_BYTES_MAX) + others < 10_000);
    }
}
