//! Where rows of views and entries of indexes lie: what they are sorted by, and whose they are.

use std::cmp::Ordering;

use crate::error::Result;
use crate::store::keys::tuple::{TUPLE_BYTES, TUPLE_STRING, bad_key, put_text, take_bytes_at, take_text_at, under};

/// Between a partition and the rest of an id.
const COLON: char = ':';

/// Where rows lie, or entries: those of one partition, where their keys begin with it, or all where they do not. What is made
/// of it are bytes behind a prefix of the view's or the index's.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RowPlaces<'p>(pub Option<&'p str>);

/// What the keys of rows and of entries have in common, which sorts them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sorted {
    /// Where keys begin with it: what the id begins with, up to its first colon.
    pub partition: Option<String>,
    /// The sort form of the key, with its label if it was cut.
    pub element: Vec<u8>,
    /// The document's id.
    pub id: String,
}

impl Sorted {
    /// Takes it from the beginning of a key.
    pub(crate) fn take(key: &[u8]) -> Result<(Sorted, &[u8])> {
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
        Ok((Sorted { partition, element, id }, rest))
    }
}

/// The sort form alone, of a key as [`Sorted::take`] takes it: without looking at the rest.
pub(crate) fn element_of(key: &[u8]) -> Result<Vec<u8>> {
    let rest = match key.first() {
        Some(&TUPLE_STRING) => take_text_at(key)?.1,
        _ => key,
    };
    take_bytes_at(rest, TUPLE_BYTES).map(|(element, _)| element)
}

impl<'p> RowPlaces<'p> {
    /// Those that a document's are among.
    pub(crate) fn of(is_partitioned: bool, id: &'p str) -> RowPlaces<'p> {
        RowPlaces(id.split_once(COLON).filter(|_| is_partitioned).map(|(partition, _)| partition))
    }

    /// What stands before a sort form.
    fn begin(self) -> Vec<u8> {
        let mut key = Vec::with_capacity(64);
        if let Some(partition) = self.0 {
            put_text(&mut key, TUPLE_STRING, partition.as_bytes());
        }
        key
    }

    /// All rows from the first place to the last; no end: to the end of the tree.
    pub(crate) fn all(self) -> (Vec<u8>, Option<Vec<u8>>) {
        let begin = self.begin();
        let end = self.0.map(|_| under(&begin).end);
        (begin, end)
    }

    /// The bytes before which all rows lie whose sort forms are before this one, and none of the others.
    pub(crate) fn before_element(self, element: &[u8]) -> Vec<u8> {
        let mut key = self.begin();
        put_text(&mut key, TUPLE_BYTES, element);
        key
    }

    /// The same for those that begin with it, or are behind it.
    pub(crate) fn before_prefix(self, prefix: &[u8]) -> Vec<u8> {
        let mut key = self.before_element(prefix);
        // The tuple's end sorts before any other byte, a zero of the element (00 ff) before what is no zero.
        key.pop();
        key
    }

    /// Behind all rows whose sort forms begin with this.
    pub(crate) fn behind_prefix(self, prefix: &[u8]) -> Vec<u8> {
        let mut key = self.before_prefix(prefix);
        while key.pop_if(|byte| *byte == 0xff).is_some() {}
        // The type of the element is less than ff.
        if let Some(last) = key.last_mut() {
            *last += 1;
        }
        key
    }

    /// Behind all rows with this sort form.
    pub(crate) fn behind_element(self, element: &[u8]) -> Vec<u8> {
        let mut key = self.before_element(element);
        key.push(0xff);
        key
    }

    /// Before the rows of a document among those with this sort form. Any text may stand for its id.
    pub(crate) fn before_document(self, element: &[u8], id: &str) -> Vec<u8> {
        match self.begins(id) {
            Ordering::Less => self.before_element(element),
            Ordering::Equal => self.document(element, id),
            Ordering::Greater => self.behind_element(element),
        }
    }

    /// Behind them.
    pub(crate) fn behind_document(self, element: &[u8], id: &str) -> Vec<u8> {
        let mut key = self.before_document(element, id);
        if self.begins(id).is_eq() {
            key.push(0xff);
        }
        key
    }

    /// Where the rows of a document lie that have this sort form; its id must begin with the partition.
    pub(crate) fn document(self, element: &[u8], id: &str) -> Vec<u8> {
        let mut key = self.before_element(element);
        let of_partition = self.0.map_or(0, |partition| partition.len() + COLON.len_utf8());
        put_text(&mut key, TUPLE_STRING, id.as_bytes().get(of_partition..).unwrap_or_default());
        key
    }

    /// Whether a text is before, among or behind what ids of the partition begin with.
    fn begins(self, id: &str) -> Ordering {
        let Some(partition) = self.0 else { return Ordering::Equal };
        match id.strip_prefix(partition) {
            Some(rest) if rest.starts_with(COLON) => Ordering::Equal,
            Some(rest) => rest.bytes().next().cmp(&Some(COLON as u8)),
            None => id.cmp(partition),
        }
    }
}
