//! The keys of a database's own indexes.

use crate::error::Result;
use crate::keys::places::{RowPlaces, SortPlace};
use crate::keys::tuple::{
    TUPLE_BYTES, TUPLE_STRING, bad_key, behind, put_int, put_stamp, put_text, stamped, take_bytes_at, take_int,
    take_stamp, take_text, under,
};
use crate::keys::{INDEXES, KeyRange, Keys};
use crate::seq::Seq;

// Under {NS}/INDEXES/{index}.
const PROGRESS: u64 = 0;
const ENTRIES: u64 = 1;
const OF_DOCUMENT: u64 = 2;
const NODES: u64 = 3;
const LATER: u64 = 4;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexPart {
    Progress,
    /// The sort key, and the document's id.
    Entry(SortPlace),
    /// An entry of an index in commit order.
    Change(Seq),
    /// The document's id.
    OfDocument(String),
    /// A node, which summarizes a run of entries: its level, and the position where it begins, as the index's kind
    /// encodes it.
    Node(u64, Vec<u8>),
    /// A document that a builder enters last, by a hash.
    Later(Vec<u8>),
}

impl Keys {
    pub fn index(&self, number: u64) -> KeyRange {
        under(&self.two(INDEXES, number))
    }

    fn index_part(&self, number: u64, part: u64) -> Vec<u8> {
        let mut key = self.two(INDEXES, number);
        put_int(&mut key, part);
        key
    }

    pub fn index_progress(&self, number: u64) -> Vec<u8> {
        self.index_part(number, PROGRESS)
    }

    /// Returns the key at a [place](RowPlaces) among an index's entries.
    pub fn index_place(&self, number: u64, place: &[u8]) -> Vec<u8> {
        let mut key = self.index_part(number, ENTRIES);
        key.extend_from_slice(place);
        key
    }

    /// Returns the key of an index's entry: the sort key of its kind, and the document's id. `places`: those of the
    /// document.
    pub fn index_entry(&self, number: u64, places: RowPlaces<'_>, sorted_by: &[u8], id: &str) -> Vec<u8> {
        self.index_place(number, &places.document(sorted_by, id))
    }

    fn index_incarnation(&self, number: u64, incarnation: u64) -> Vec<u8> {
        let mut key = self.index_part(number, ENTRIES);
        put_int(&mut key, incarnation);
        key
    }

    /// Returns the key of an index's entry in commit order.
    pub fn index_change(&self, number: u64, seq: &Seq) -> Vec<u8> {
        let mut key = self.index_incarnation(number, seq.incarnation());
        put_stamp(&mut key, seq.stamp());
        key
    }

    /// Returns the key of such an entry for SET_VERSIONSTAMPED_KEY.
    pub fn index_change_stamped(&self, number: u64, incarnation: u64, epoch: u32, user_version: u16) -> Vec<u8> {
        stamped(self.index_incarnation(number, incarnation), epoch, user_version)
    }

    /// Returns the range of such entries behind a sequence, of its incarnation.
    pub fn index_changes_after(&self, number: u64, seq: &Seq) -> KeyRange {
        let mut begin = self.index_change(number, seq);
        begin.push(0);
        KeyRange { begin, end: under(&self.index_incarnation(number, seq.incarnation())).end }
    }

    /// Parses a key of such an entry into its sequence.
    pub fn index_change_seq(&self, key: &[u8]) -> Result<Seq> {
        match self.split_index(key)? {
            (_, IndexPart::Change(seq)) => Ok(seq),
            _ => Err(bad_key()),
        }
    }

    /// Returns the range of an index's entries whose sort key begins with these bytes.
    pub fn index_beginning(&self, number: u64, places: RowPlaces<'_>, sorted_by: &[u8]) -> KeyRange {
        let begin = self.index_place(number, &places.before_prefix(sorted_by));
        KeyRange { begin, end: self.index_place(number, &places.behind_prefix(sorted_by)) }
    }

    pub fn index_of_document(&self, number: u64, id: &str) -> Vec<u8> {
        let mut key = self.index_part(number, OF_DOCUMENT);
        put_text(&mut key, TUPLE_STRING, id.as_bytes());
        key
    }

    /// Returns the key of a node, which summarizes a run of an index's entries, such as a reduction of them. The nodes
    /// of one level are in the order of their first entries.
    pub fn index_node(&self, number: u64, level: u64, from: &[u8]) -> Vec<u8> {
        let mut key = self.index_part(number, NODES);
        put_int(&mut key, level);
        put_text(&mut key, TUPLE_BYTES, from);
        key
    }

    /// Returns the range of a level's nodes whose first entry begins with these bytes.
    pub fn index_nodes(&self, number: u64, level: u64, from: &[u8]) -> KeyRange {
        let mut begin = self.index_node(number, level, from);
        // Removes the terminator of the tuple element.
        begin.pop();
        let mut end = begin.clone();
        while end.pop_if(|byte| *byte == 0xff).is_some() {}
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        KeyRange { begin, end }
    }

    /// Returns the key of a document that a builder enters last.
    pub fn index_later(&self, number: u64, hash: &[u8]) -> Vec<u8> {
        let mut key = self.index_part(number, LATER);
        put_text(&mut key, TUPLE_BYTES, hash);
        key
    }

    /// Returns the range of all documents that a builder enters last.
    pub fn index_all_later(&self, number: u64) -> KeyRange {
        under(&self.index_part(number, LATER))
    }

    /// Parses a key of any index into the index's number.
    pub fn index_number(&self, key: &[u8]) -> Result<u64> {
        Ok(take_int(behind(key, &self.one(INDEXES)))?.0)
    }

    pub fn split_index(&self, key: &[u8]) -> Result<(u64, IndexPart)> {
        let (number, rest) = take_int(behind(key, &self.one(INDEXES)))?;
        let part = match take_int(rest)? {
            (PROGRESS, []) => IndexPart::Progress,
            (ENTRIES, rest) if matches!(rest, [TUPLE_STRING | TUPLE_BYTES, ..]) => match SortPlace::take(rest)? {
                (sorted, []) => IndexPart::Entry(sorted),
                _ => return Err(bad_key()),
            },
            (ENTRIES, rest) => {
                let (incarnation, rest) = take_int(rest)?;
                IndexPart::Change(Seq::new(incarnation, take_stamp(rest)?))
            }
            (OF_DOCUMENT, rest) => IndexPart::OfDocument(take_text(rest)?),
            (LATER, rest) => match take_bytes_at(rest, TUPLE_BYTES)? {
                (hash, []) => IndexPart::Later(hash),
                _ => return Err(bad_key()),
            },
            (NODES, rest) => {
                let (level, rest) = take_int(rest)?;
                match take_bytes_at(rest, TUPLE_BYTES)? {
                    (from, []) => IndexPart::Node(level, from),
                    _ => return Err(bad_key()),
                }
            }
            _ => return Err(bad_key()),
        };
        Ok((number, part))
    }
}
