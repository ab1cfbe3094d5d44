//! The positions of view rows and index entries: their sort keys and their documents.

use std::cmp::Ordering;

use crate::error::Result;
use crate::keys::tuple::{TUPLE_BYTES, TUPLE_STRING, bad_key, put_text, take_bytes_at, take_text_at, under};

/// Separates a partition from the rest of an id.
const COLON: char = ':';

/// The positions of rows or entries: those of one partition, if keys begin with the partition, or all. Its methods
/// return bytes behind a prefix of the view or the index.
#[derive(Debug, Clone, Copy, Default)]
pub struct RowPlaces<'p>(pub Option<&'p str>);

/// The common, sorting part of the keys of rows and entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SortPlace {
    /// The part of the document's id before its first colon, if keys begin with the partition.
    pub partition: Option<String>,
    /// The sort form of the key, with its label if it was truncated.
    pub element: Vec<u8>,
    /// The document's id.
    pub id: String,
}

impl SortPlace {
    /// Parses sort form and document id at the start of a key. Returns them and the rest.
    pub fn take(key: &[u8]) -> Result<(SortPlace, &[u8])> {
        let (partition, rest) = match key.first() {
            Some(&TUPLE_STRING) => take_text_at(key).map(|(partition, rest)| (Some(partition), rest))?,
            _ => (None, key),
        };
        let (element, rest) = take_bytes_at(rest, TUPLE_BYTES)?;
        let (id, rest) = take_text_at(rest)?;
        let id = match &partition {
            Some(partition) if partition.contains(COLON) => return Err(bad_key()),
            Some(partition) => format!("{partition}{COLON}{id}"),
            None => id,
        };
        Ok((SortPlace { partition, element, id }, rest))
    }
}

/// Returns the sort form alone, of a key as [`SortPlace::take`] parses it, without parsing the rest.
pub(super) fn element_of(key: &[u8]) -> Result<Vec<u8>> {
    let rest = match key.first() {
        Some(&TUPLE_STRING) => take_text_at(key)?.1,
        _ => key,
    };
    take_bytes_at(rest, TUPLE_BYTES).map(|(element, _)| element)
}

/// The prefix of a key, as [`SortPlace::take`] parses it, that the keys of rows of the same group share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The length in bytes, from the start of the key.
    len: usize,
    /// True if the prefix contains the whole sort form.
    is_whole: bool,
}

/// The longest sort form that is examined without an allocation.
const SHORT_BYTES: usize = 128;

impl Head {
    /// Returns the prefix of a key. `common` returns how many bytes of the sort form the group shares; `None`: the form
    /// does not tell.
    pub fn of(key: &[u8], common: impl FnOnce(&[u8]) -> Option<usize>) -> Result<Option<Head>> {
        let before = match key.first() {
            Some(&TUPLE_STRING) => key.len() - take_text_at(key)?.1.len(),
            _ => 0,
        };
        let form = key.get(before..).unwrap_or_default();
        let (mut short, long);
        let element = match take_short(form, {
            short = [0; SHORT_BYTES];
            &mut short
        }) {
            Some(len) => short.get(..len).unwrap_or_default(),
            None => {
                long = take_bytes_at(form, TUPLE_BYTES)?.0;
                &long
            }
        };
        let Some(common) = common(element).and_then(|len| element.get(..len)) else { return Ok(None) };
        let is_whole = common.len() == element.len();
        // The string's code and, for a whole form, its terminator; each zero takes two bytes.
        let zeros = common.iter().filter(|byte| **byte == 0).count();
        Ok(Some(Head { len: before + 1 + common.len() + zeros + usize::from(is_whole), is_whole }))
    }

    /// Returns whether another key's row belongs to the group of this head's `own` key.
    pub fn is_also_of(self, own: &[u8], other: &[u8]) -> bool {
        let Some(head) = own.get(..self.len) else { return false };
        // `00 ff` is a zero of the form, and not its terminator.
        other.starts_with(head) && !(self.is_whole && other.get(self.len) == Some(&0xff))
    }
}

/// Copies a tuple byte string into a buffer, if it fits.
fn take_short(key: &[u8], room: &mut [u8; SHORT_BYTES]) -> Option<usize> {
    let (_, mut rest) = key.split_first().filter(|(first, _)| **first == TUPLE_BYTES)?;
    let mut len = 0;
    while let Some(at) = rest.iter().take(SHORT_BYTES).position(|byte| *byte == 0) {
        let (piece, behind) = rest.split_at_checked(at)?;
        room.get_mut(len..len + at)?.copy_from_slice(piece);
        len += at;
        match behind {
            [0, 0xff, behind @ ..] => {
                *room.get_mut(len)? = 0;
                (len, rest) = (len + 1, behind);
            }
            _ => return Some(len),
        }
    }
    None
}

impl<'p> RowPlaces<'p> {
    /// Returns the positions that include a document's.
    pub fn of(is_partitioned: bool, id: &'p str) -> RowPlaces<'p> {
        RowPlaces(id.split_once(COLON).filter(|_| is_partitioned).map(|(partition, _)| partition))
    }

    /// Returns the bytes before a sort form.
    fn begin(self) -> Vec<u8> {
        let mut key = Vec::with_capacity(64);
        if let Some(partition) = self.0 {
            put_text(&mut key, TUPLE_STRING, partition.as_bytes());
        }
        key
    }

    /// Returns the bounds of all rows; without an end they reach to the end of the tree.
    pub fn all(self) -> (Vec<u8>, Option<Vec<u8>>) {
        let begin = self.begin();
        let end = self.0.map(|_| under(&begin).end);
        (begin, end)
    }

    /// Returns the bytes that separate the rows with smaller sort forms from the others.
    pub fn before_element(self, element: &[u8]) -> Vec<u8> {
        let mut key = self.begin();
        put_text(&mut key, TUPLE_BYTES, element);
        key
    }

    /// Returns the bytes before the rows whose sort forms begin with the prefix or follow it.
    pub fn before_prefix(self, prefix: &[u8]) -> Vec<u8> {
        let mut key = self.before_element(prefix);
        // The tuple's terminator sorts before any other byte, and a zero of the element (00 ff) before a nonzero byte.
        key.pop();
        key
    }

    /// Returns the bytes behind all rows whose sort forms begin with the prefix.
    pub fn behind_prefix(self, prefix: &[u8]) -> Vec<u8> {
        let mut key = self.before_prefix(prefix);
        while key.pop_if(|byte| *byte == 0xff).is_some() {}
        // The code of the element's type is less than ff.
        if let Some(last) = key.last_mut() {
            *last += 1;
        }
        key
    }

    /// Returns the bytes behind all rows with this sort form.
    pub fn behind_element(self, element: &[u8]) -> Vec<u8> {
        let mut key = self.before_element(element);
        key.push(0xff);
        key
    }

    /// Returns the bytes before a document's rows among those with this sort form. The id may be any text.
    pub fn before_document(self, element: &[u8], id: &str) -> Vec<u8> {
        match self.begins(id) {
            Ordering::Less => self.before_element(element),
            Ordering::Equal => self.document(element, id),
            Ordering::Greater => self.behind_element(element),
        }
    }

    /// Returns the bytes behind a document's rows among those with this sort form.
    pub fn behind_document(self, element: &[u8], id: &str) -> Vec<u8> {
        let mut key = self.before_document(element, id);
        if self.begins(id).is_eq() {
            key.push(0xff);
        }
        key
    }

    /// Returns the prefix of a document's rows with this sort form. The id must begin with the partition.
    pub fn document(self, element: &[u8], id: &str) -> Vec<u8> {
        let mut key = self.before_element(element);
        let of_partition = self.0.map_or(0, |partition| partition.len() + COLON.len_utf8());
        put_text(&mut key, TUPLE_STRING, id.as_bytes().get(of_partition..).unwrap_or_default());
        key
    }

    /// Returns whether a text sorts before, among or behind the ids of the partition.
    fn begins(self, id: &str) -> Ordering {
        let Some(partition) = self.0 else { return Ordering::Equal };
        match id.strip_prefix(partition) {
            Some(rest) if rest.starts_with(COLON) => Ordering::Equal,
            Some(rest) => rest.bytes().next().cmp(&Some(COLON as u8)),
            None => id.cmp(partition),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn elements() -> impl Strategy<Value = Vec<u8>> {
        let bytes = prop::sample::select(vec![0, 0xff, 1, b'x']);
        prop_oneof![
            prop::collection::vec(bytes.clone(), 0..5),
            (prop::collection::vec(bytes, 0..3), 120..140_usize).prop_map(|(end, len)| [vec![b'x'; len], end].concat()),
        ]
    }

    proptest! {
        #[test]
        fn heads_tell_forms_that_begin_alike(
            (a, b) in (elements(), elements()), (of_a, of_b) in (prop::option::of("[ab]"), prop::option::of("[ab]")),
            common in 0..140_usize,
        ) {
            let common = common.min(a.len());
            let key = |partition: &Option<String>, element: &[u8]| {
                let mut key = RowPlaces(partition.as_deref()).begin();
                put_text(&mut key, TUPLE_BYTES, element);
                put_text(&mut key, TUPLE_STRING, b"d");
                key
            };
            let (key_a, key_b) = (key(&of_a, &a), key(&of_b, &b));
            let head = Head::of(&key_a, |element| {
                assert_eq!(element, a);
                Some(common)
            });
            let expected = of_a == of_b && if common == a.len() { a == b } else { b.starts_with(&a[..common]) };
            prop_assert_eq!(head.unwrap().unwrap().is_also_of(&key_a, &key_b), expected);
            prop_assert_eq!(Head::of(&key_a, |_| None).unwrap(), None);
            let before = RowPlaces(of_a.as_deref()).begin().len();
            prop_assert!(Head::of(&key_a[..before + 1], |_| Some(0)).is_err());
        }
    }
}
