//! The keys of a group of views: rows, the rows of each document, nodes, values in parts, leases and sections of a first
//! build.

use crate::error::Result;
use crate::keys::places::{RowPlaces, SortPlace, element_of};
use crate::keys::tuple::{
    TUPLE_BYTES, TUPLE_STRING, bad_key, behind, put_int, put_text, take_bytes_at, take_int, take_text_at, under,
    with_int,
};
use crate::keys::{INDEXES, KeyRange, Keys};

// Under {NS}/INDEXES/{index}; 0 is the progress of any index.
const ROWS: u64 = 1;
const OF_DOCUMENT: u64 = 2;
const NODES: u64 = 3;
const PARTS: u64 = 4;
const LEASES: u64 = 5;
const UNDO: u64 = 6;
const STAGED: u64 = 7;
const LABELLED: u64 = 8;
const LATER: u64 = 9;
const REFUSED: u64 = 10;
const SET_ASIDE: u64 = 11;
const SECTIONS: u64 = 12;

/// The position of a lease's holder, behind the lease; and the beats of a section's holder, behind the section.
const PLACE: u64 = 1;

#[derive(Debug, Clone)]
pub struct ViewKeys {
    prefix: Vec<u8>,
}

/// The part of a row's key behind its tree.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowKey {
    /// In a partitioned group: the part of the document's id before its first colon.
    pub partition: Option<String>,
    /// The sort form of the row's key, with its label if it was truncated.
    pub element: Vec<u8>,
    pub id: String,
    pub spelling: u32,
    pub ordinal: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ViewPart {
    Progress,
    /// A tree, and the row's key.
    Row(u64, RowKey),
    /// A document, and the number of a part of its rows' record.
    OfDocument(String, u64),
    /// Tree, level, and the node's first position: the bytes of a row's key, or nothing.
    Node(u64, u64, Vec<u8>),
    /// A document, a blob's id and the number of a part.
    Part(String, Vec<u8>, u64),
    /// The value that another key had before the large document whose change is under way.
    Undo(Box<ViewPart>),
    /// A document and a blob's id: parts that may belong to no row.
    Staged(String, Vec<u8>),
    /// A document that a first build enters last, under a hash.
    Later(Vec<u8>),
    /// The number of documents that exceed a bound.
    Refused,
    SetAsideCount,
    /// The reason why the document of this id is set aside.
    SetAside(String),
    /// The id up to which ids are leased in the first build.
    Leased,
    /// A lease of the ids behind an id.
    Lease(String),
    /// The progress of a lease's holder.
    LeasePlace(String),
    /// A section of a tree whose nodes are to be built, under a hash.
    Section(Vec<u8>),
    /// The beats of a section's holder.
    SectionBeat(Vec<u8>),
}

impl RowKey {
    /// Creates the key of a document's row.
    pub fn of(is_partitioned: bool, element: Vec<u8>, id: String, (spelling, ordinal): (u32, u32)) -> RowKey {
        let partition = RowPlaces::of(is_partitioned, &id).0.map(str::to_owned);
        RowKey { partition, element, id, spelling, ordinal }
    }

    /// Returns the positions of the rows of its partition.
    pub fn places(&self) -> RowPlaces<'_> {
        RowPlaces(self.partition.as_deref())
    }

    /// Encodes the key as tuple elements, whose bytes sort as rows do.
    pub fn encode(&self) -> Vec<u8> {
        let mut key = self.places().document(&self.element, &self.id);
        put_int(&mut key, u64::from(self.spelling));
        put_int(&mut key, u64::from(self.ordinal));
        key
    }

    pub fn decode(key: &[u8]) -> Result<RowKey> {
        let (SortPlace { partition, element, id }, rest) = SortPlace::take(key)?;
        let (spelling, rest) = take_int(rest)?;
        let (ordinal, rest) = take_int(rest)?;
        let small = |number: u64| u32::try_from(number).map_err(|_| bad_key());
        if !rest.is_empty() {
            return Err(bad_key());
        }
        Ok(RowKey { partition, element, id, spelling: small(spelling)?, ordinal: small(ordinal)? })
    }

    /// Returns the sort form alone, with its label, from the bytes of a row's key.
    pub fn element_of(key: &[u8]) -> Result<Vec<u8>> {
        element_of(key)
    }

    /// Returns the range of the rows of the same spelling. A descending read keeps their order.
    pub fn of_spelling(&self) -> KeyRange {
        let mut begin = self.places().document(&self.element, &self.id);
        put_int(&mut begin, u64::from(self.spelling));
        under(&begin)
    }
}

impl Keys {
    pub fn view(&self, number: u64) -> ViewKeys {
        ViewKeys { prefix: self.two(INDEXES, number) }
    }
}

impl ViewKeys {
    fn tree(&self, part: u64, tree: usize) -> Vec<u8> {
        let mut key = with_int(&self.prefix, part);
        put_int(&mut key, tree as u64);
        key
    }

    /// Returns the key of the group's progress.
    pub fn progress(&self) -> Vec<u8> {
        with_int(&self.prefix, 0)
    }

    /// Returns the key of a row. With an empty `row` it is the tree's first position.
    pub fn row(&self, tree: usize, row: &[u8]) -> Vec<u8> {
        let mut key = self.tree(ROWS, tree);
        key.extend_from_slice(row);
        key
    }

    /// Returns the range of the rows between two positions; without an `end`, to the end of the tree.
    pub fn rows(&self, tree: usize, begin: &[u8], end: Option<&[u8]>) -> KeyRange {
        range(self.tree(ROWS, tree), begin, end)
    }

    /// Returns the length of the prefix of a row's key, in bytes.
    pub fn row_prefix(&self, tree: usize) -> usize {
        self.tree(ROWS, tree).len()
    }

    /// Returns the key of the first part of a document's rows' record.
    pub fn of_document(&self, id: &str) -> Vec<u8> {
        let mut key = with_int(&self.prefix, OF_DOCUMENT);
        put_text(&mut key, TUPLE_STRING, id.as_bytes());
        key
    }

    /// Returns the range of these records of all documents.
    pub fn of_documents(&self) -> KeyRange {
        under(&with_int(&self.prefix, OF_DOCUMENT))
    }

    /// Returns the key of a further part, from 1 on.
    pub fn of_document_part(&self, id: &str, part: u64) -> Vec<u8> {
        let mut key = self.of_document(id);
        put_int(&mut key, part);
        key
    }

    /// Returns the range of all parts but the first.
    pub fn of_document_rest(&self, id: &str) -> KeyRange {
        KeyRange { begin: self.of_document_part(id, 0), end: under(&self.of_document(id)).end }
    }

    /// Returns the key of a node. `from`: the bytes of a row's key, or nothing.
    pub fn node(&self, tree: usize, level: u8, from: &[u8]) -> Vec<u8> {
        let mut key = self.tree(NODES, tree);
        put_int(&mut key, u64::from(level));
        key.extend_from_slice(from);
        key
    }

    /// Returns the range of a level's nodes between two positions; without an `end`, to the end of the level.
    pub fn nodes(&self, tree: usize, level: u8, begin: &[u8], end: Option<&[u8]>) -> KeyRange {
        range(self.node(tree, level, &[]), begin, end)
    }

    /// Returns the key of a part of a key and value that are too large for their row.
    pub fn part(&self, id: &str, blob_id: &[u8], part: u64) -> Vec<u8> {
        let mut key = self.parts(id, blob_id).begin;
        put_int(&mut key, part);
        key
    }

    pub fn parts(&self, id: &str, blob_id: &[u8]) -> KeyRange {
        let mut key = with_int(&self.prefix, PARTS);
        put_text(&mut key, TUPLE_STRING, id.as_bytes());
        put_text(&mut key, TUPLE_BYTES, blob_id);
        under(&key)
    }

    /// Returns the key of the id up to which ids are leased in the first build.
    pub fn leased(&self) -> Vec<u8> {
        with_int(&self.prefix, LEASES)
    }

    /// Returns the key of a lease of the ids behind `from`.
    pub fn lease(&self, from: &str) -> Vec<u8> {
        let mut key = self.leased();
        put_text(&mut key, TUPLE_STRING, from.as_bytes());
        key
    }

    /// Returns the key of the progress of that lease's holder.
    pub fn lease_place(&self, from: &str) -> Vec<u8> {
        with_int(&self.lease(from), PLACE)
    }

    /// Returns the range of all leases with their progress, preceded by the key of [`ViewKeys::leased`].
    pub fn leases(&self) -> KeyRange {
        KeyRange { begin: self.leased(), end: with_int(&self.prefix, LEASES + 1) }
    }

    /// Returns the key of the value that a key of the group had before.
    pub fn undo(&self, key: &[u8]) -> Vec<u8> {
        let mut undo = with_int(&self.prefix, UNDO);
        undo.extend_from_slice(behind(key, &self.prefix));
        undo
    }

    /// Returns the key that an undo belongs to, without parsing either.
    pub fn undone(&self, undo: &[u8]) -> Vec<u8> {
        [&self.prefix[..], behind(undo, &with_int(&self.prefix, UNDO))].concat()
    }

    pub fn undos(&self) -> KeyRange {
        KeyRange { begin: with_int(&self.prefix, UNDO), end: with_int(&self.prefix, UNDO + 1) }
    }

    /// Returns the key of the mark of parts that may belong to no row.
    pub fn staged(&self, id: &str, blob_id: &[u8]) -> Vec<u8> {
        let mut key = self.staged_of(id).begin;
        put_text(&mut key, TUPLE_BYTES, blob_id);
        key
    }

    /// Returns the range of a document's marks.
    pub fn staged_of(&self, id: &str) -> KeyRange {
        let mut key = with_int(&self.prefix, STAGED);
        put_text(&mut key, TUPLE_STRING, id.as_bytes());
        under(&key)
    }

    /// Returns the range of the marks of all documents.
    pub fn all_staged(&self) -> KeyRange {
        KeyRange { begin: with_int(&self.prefix, STAGED), end: with_int(&self.prefix, STAGED + 1) }
    }

    /// Returns a key without a value. Two transactions that give labels to long keys with a common prefix conflict on
    /// it.
    pub fn labelled(&self, tree: usize, hash: &[u8]) -> Vec<u8> {
        let mut key = self.tree(LABELLED, tree);
        put_text(&mut key, TUPLE_BYTES, hash);
        key
    }

    /// Returns the key of a document that a first build enters last, under a hash.
    pub fn later(&self, hash: &[u8]) -> Vec<u8> {
        let mut key = with_int(&self.prefix, LATER);
        put_text(&mut key, TUPLE_BYTES, hash);
        key
    }

    /// Returns the range of all documents that a first build enters last.
    pub fn all_later(&self) -> KeyRange {
        KeyRange { begin: with_int(&self.prefix, LATER), end: with_int(&self.prefix, LATER + 1) }
    }

    /// Returns the key of the counter of documents that exceed a bound and have no rows.
    pub fn refused(&self) -> Vec<u8> {
        with_int(&self.prefix, REFUSED)
    }

    /// Returns the key of the counter of documents set aside. They have no rows, because a function broke its bound on
    /// them.
    pub fn set_aside_count(&self) -> Vec<u8> {
        with_int(&self.prefix, SET_ASIDE)
    }

    /// Returns the key of the reason why a document is set aside, a UTF-8 text.
    pub fn set_aside(&self, id: &str) -> Vec<u8> {
        let mut key = self.set_aside_count();
        put_text(&mut key, TUPLE_STRING, id.as_bytes());
        key
    }

    /// Returns the range of all documents set aside, without the counter.
    pub fn all_set_aside(&self) -> KeyRange {
        let count = self.set_aside_count();
        KeyRange { begin: [&count[..], &[0]].concat(), end: under(&count).end }
    }

    /// Returns the key of a section of a tree whose nodes are to be built, under a hash of its begin.
    pub fn section(&self, hash: &[u8]) -> Vec<u8> {
        let mut key = with_int(&self.prefix, SECTIONS);
        put_text(&mut key, TUPLE_BYTES, hash);
        key
    }

    /// Returns the key of the beats of that section's holder.
    pub fn section_beat(&self, hash: &[u8]) -> Vec<u8> {
        with_int(&self.section(hash), PLACE)
    }

    /// Returns the range of all sections and their beats.
    pub fn sections(&self) -> KeyRange {
        KeyRange { begin: with_int(&self.prefix, SECTIONS), end: with_int(&self.prefix, SECTIONS + 1) }
    }

    /// Parses a key of the group.
    pub fn split(&self, key: &[u8]) -> Result<ViewPart> {
        let (part, rest) = take_int(behind(key, &self.prefix))?;
        Ok(match part {
            0 if rest.is_empty() => ViewPart::Progress,
            ROWS => {
                let (tree, rest) = take_int(rest)?;
                ViewPart::Row(tree, RowKey::decode(rest)?)
            }
            OF_DOCUMENT => match take_text_at(rest)? {
                (id, []) => ViewPart::OfDocument(id, 0),
                (id, rest) => match take_int(rest)? {
                    (part, []) if part > 0 => ViewPart::OfDocument(id, part),
                    _ => return Err(bad_key()),
                },
            },
            NODES => {
                let (tree, rest) = take_int(rest)?;
                let (level, from) = take_int(rest)?;
                if !from.is_empty() {
                    RowKey::decode(from)?;
                }
                ViewPart::Node(tree, level, from.to_vec())
            }
            PARTS => {
                let (id, rest) = take_text_at(rest)?;
                let (blob_id, rest) = take_bytes_at(rest, TUPLE_BYTES)?;
                match take_int(rest)? {
                    (part, []) => ViewPart::Part(id, blob_id, part),
                    _ => return Err(bad_key()),
                }
            }
            UNDO => match take_int(rest)? {
                (ROWS | NODES, _) => ViewPart::Undo(Box::new(self.split(&[&self.prefix[..], rest].concat())?)),
                _ => return Err(bad_key()),
            },
            STAGED => {
                let (id, rest) = take_text_at(rest)?;
                match take_bytes_at(rest, TUPLE_BYTES)? {
                    (blob_id, []) => ViewPart::Staged(id, blob_id),
                    _ => return Err(bad_key()),
                }
            }
            LATER => match take_bytes_at(rest, TUPLE_BYTES)? {
                (hash, []) => ViewPart::Later(hash),
                _ => return Err(bad_key()),
            },
            REFUSED if rest.is_empty() => ViewPart::Refused,
            SET_ASIDE if rest.is_empty() => ViewPart::SetAsideCount,
            SET_ASIDE => match take_text_at(rest)? {
                (id, []) => ViewPart::SetAside(id),
                _ => return Err(bad_key()),
            },
            SECTIONS => match take_bytes_at(rest, TUPLE_BYTES)? {
                (hash, []) => ViewPart::Section(hash),
                (hash, rest) => match take_int(rest)? {
                    (PLACE, []) => ViewPart::SectionBeat(hash),
                    _ => return Err(bad_key()),
                },
            },
            LEASES if rest.is_empty() => ViewPart::Leased,
            LEASES => match take_text_at(rest)? {
                (from, []) => ViewPart::Lease(from),
                (from, rest) => match take_int(rest)? {
                    (PLACE, []) => ViewPart::LeasePlace(from),
                    _ => return Err(bad_key()),
                },
            },
            _ => return Err(bad_key()),
        })
    }
}

fn range(prefix: Vec<u8>, begin: &[u8], end: Option<&[u8]>) -> KeyRange {
    let end = match end {
        Some(end) => [&prefix[..], end].concat(),
        None => under(&prefix).end,
    };
    KeyRange { begin: [&prefix[..], begin].concat(), end }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::RootKeys;
    use foundationdb::tuple::{Bytes, pack};
    use proptest::prelude::*;

    fn keys() -> Keys {
        RootKeys::new(b"r").namespace(300)
    }

    fn row_key(element: &[u8], id: &str, spelling: u32, ordinal: u32) -> RowKey {
        RowKey::of(false, element.to_vec(), id.to_owned(), (spelling, ordinal))
    }

    #[test]
    fn keys_are_tuples() {
        let (root, element) = (Bytes::from(b"r".to_vec()), Bytes::from(vec![0x40, 0, 9]));
        let view = keys().view(7);
        let row = row_key(&[0x40, 0, 9], "d\0", 0, 300).encode();
        assert_eq!(view.row(2, &row), pack(&(root.clone(), 3, 300, 13, 7, 1, 2, element.clone(), "d\0", 0, 300)));
        let of_partition = RowKey::of(true, vec![0x40, 0, 9], "p\0:d:e".to_owned(), (0, 300)).encode();
        let packed = pack(&(root.clone(), 3, 300, 13, 7, 1, 2, "p\0", element.clone(), "d:e", 0, 300));
        assert_eq!(view.row(2, &of_partition), packed);
        assert_eq!(view.node(2, 3, &row), pack(&(root.clone(), 3, 300, 13, 7, 3, 2, 3, element, "d\0", 0, 300)));
        assert_eq!(view.of_document_part("d", 1), pack(&(root.clone(), 3, 300, 13, 7, 2, "d", 1)));
        let blob_id = Bytes::from(vec![5]);
        assert_eq!(view.part("d", &[5], 1), pack(&(root.clone(), 3, 300, 13, 7, 4, "d", blob_id, 1)));
        let undo = view.undo(&view.row(2, &row));
        assert_eq!(undo, pack(&(root.clone(), 3, 300, 13, 7, 6, 1, 2, Bytes::from(vec![0x40, 0, 9]), "d\0", 0, 300)));
        assert_eq!(view.undone(&undo), view.row(2, &row));
        assert_eq!(view.staged("d", &[5]), pack(&(root.clone(), 3, 300, 13, 7, 7, "d", Bytes::from(vec![5]))));
        assert_eq!(view.leased(), pack(&(root.clone(), 3, 300, 13, 7, 5)));
        assert_eq!(view.lease("d"), pack(&(root.clone(), 3, 300, 13, 7, 5, "d")));
        assert_eq!(view.lease_place("d"), pack(&(root.clone(), 3, 300, 13, 7, 5, "d", 1)));
        assert_eq!(view.section_beat(&[5]), pack(&(root, 3, 300, 13, 7, 12, Bytes::from(vec![5]), 1)));
        assert_eq!(view.progress(), keys().index_progress(7));
    }

    fn elements() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop_oneof![0..2_u8, 254..=255_u8], 0..4)
    }

    fn partitioned_ids() -> impl Strategy<Value = (String, String)> {
        ("[ab\u{0}\u{10ffff}]{1,2}", "[ab:\u{0}\u{10ffff}]{0,3}")
    }

    proptest! {
        #[test]
        fn what_is_put_is_taken(element in prop::collection::vec(0..4_u8, 0..6), id in "(.{0,9}|[a:\u{0}]{0,9})", spelling: u32, ordinal: u32, is_partitioned: bool) {
            let row = RowKey::of(is_partitioned, element.clone(), id.clone(), (spelling, ordinal));
            prop_assert_eq!(RowKey::decode(&row.encode()).unwrap(), row.clone());
            prop_assert_eq!(RowKey::element_of(&row.encode()).unwrap(), element.clone());
            let view = keys().view(7);
            let parts = [
                (view.row(1, &row.encode()), ViewPart::Row(1, row.clone())),
                (view.node(1, 2, &row.encode()), ViewPart::Node(1, 2, row.encode())),
                (view.node(1, 2, &[]), ViewPart::Node(1, 2, Vec::new())),
                (view.of_document(&id), ViewPart::OfDocument(id.clone(), 0)),
                (view.of_document_part(&id, 3), ViewPart::OfDocument(id.clone(), 3)),
                (view.part(&id, &element, 3), ViewPart::Part(id.clone(), element.clone(), 3)),
                (view.undo(&view.row(1, &row.encode())), ViewPart::Undo(Box::new(ViewPart::Row(1, row.clone())))),
                (view.undo(&view.node(1, 0, &[])), ViewPart::Undo(Box::new(ViewPart::Node(1, 0, Vec::new())))),
                (view.staged(&id, &element), ViewPart::Staged(id.clone(), element.clone())),
                (view.later(&element), ViewPart::Later(element.clone())),
                (view.refused(), ViewPart::Refused),
                (view.set_aside_count(), ViewPart::SetAsideCount),
                (view.set_aside(&id), ViewPart::SetAside(id.clone())),
                (view.leased(), ViewPart::Leased),
                (view.lease(&id), ViewPart::Lease(id.clone())),
                (view.lease_place(&id), ViewPart::LeasePlace(id.clone())),
                (view.section(&element), ViewPart::Section(element.clone())),
                (view.section_beat(&element), ViewPart::SectionBeat(element.clone())),
                (view.progress(), ViewPart::Progress),
            ];
            for (key, part) in parts {
                prop_assert_eq!(view.split(&key).unwrap(), part);
            }
            let all_set_aside = view.all_set_aside();
            prop_assert!(view.set_aside_count() < all_set_aside.begin && all_set_aside.begin <= view.set_aside(&id));
            prop_assert!(view.set_aside(&id) < all_set_aside.end);
            let leases = view.leases();
            prop_assert!(leases.begin <= view.leased() && view.leased() < view.lease(""));
            prop_assert!(view.lease(&id) < view.lease_place(&id) && view.lease_place(&id) < leases.end);
            let sections = view.sections();
            prop_assert!(sections.begin < view.section(&element) && view.section(&element) < view.section_beat(&element));
            prop_assert!(view.section_beat(&element) < sections.end && view.all_set_aside().end <= sections.begin);
            let rest = view.of_document_rest(&id);
            prop_assert!(rest.begin <= view.of_document_part(&id, 1) && view.of_document_part(&id, 1) < rest.end);
            let next = view.of_document(&[&id, "\u{1}"].concat());
            prop_assert!(view.of_document(&id) < rest.begin && rest.end <= next);
        }

        #[test]
        fn places_are_in_order(
            a in elements(), b in elements(), ids: [char; 2],
            numbers: [u32; 2]
        ) {
            let [one, two] = ids.map(|id| id.to_string());
            let (row, other) = (row_key(&a, &one, numbers[0], 1), row_key(&b, &two, numbers[1], 0));
            prop_assert_eq!(row.cmp(&other), row.encode().cmp(&other.encode()));
            let is_before = |place: Vec<u8>| row.encode() < place;
            let places = RowPlaces::default();
            prop_assert_eq!(is_before(places.before_element(&b)), a < b);
            prop_assert_eq!(is_before(places.behind_element(&b)), a <= b);
            prop_assert_eq!(is_before(places.before_prefix(&b)), a < b && !a.starts_with(&b));
            prop_assert_eq!(is_before(places.behind_prefix(&b)), a < b || a.starts_with(&b));
            prop_assert_eq!(is_before(places.before_document(&b, &two)), (&a, &one) < (&b, &two));
            prop_assert_eq!(is_before(places.behind_document(&b, &two)), (&a, &one) <= (&b, &two));
            let range = other.of_spelling();
            let is_in = range.begin <= row.encode() && row.encode() < range.end;
            prop_assert_eq!(is_in, (a, one, row.spelling) == (b, two, other.spelling));
        }

        #[test]
        fn places_of_partitions_are_exact(
            a in elements(), b in elements(), ids in [partitioned_ids(), partitioned_ids()],
            partition in "[ab\u{0}\u{10ffff}]{1,2}", any_id in "[ab:;\u{0}\u{10ffff}]{0,4}", numbers: [u32; 2]
        ) {
            let [one, two] = ids.map(|(partition, rest)| format!("{partition}:{rest}"));
            let row = RowKey::of(true, a.clone(), one.clone(), (numbers[0], 1));
            let other = RowKey::of(true, b.clone(), two.clone(), (numbers[1], 0));
            prop_assert_eq!(row.cmp(&other), row.encode().cmp(&other.encode()));
            let of = row.partition.clone().unwrap();
            let places = RowPlaces(Some(&partition));
            // Whatever the partition, its positions divide its own rows as in a group without partitions, and no
            // others.
            let is_before = |place: Vec<u8>, among: bool| {
                prop_assert_eq!(row.encode() < place, if of == partition { among } else { of < partition });
                Ok(())
            };
            let (begin, end) = places.all();
            is_before(begin, false)?;
            is_before(end.unwrap(), true)?;
            is_before(places.before_element(&b), a < b)?;
            is_before(places.behind_element(&b), a <= b)?;
            is_before(places.before_prefix(&b), a < b && !a.starts_with(&b))?;
            is_before(places.behind_prefix(&b), a < b || a.starts_with(&b))?;
            for id in [&two, &any_id, &partition, &format!("{partition}:"), &format!("{partition}:a")] {
                is_before(places.before_document(&b, id), (&a, &one) < (&b, id))?;
                is_before(places.behind_document(&b, id), (&a, &one) <= (&b, id))?;
            }
        }

        #[test]
        fn foreign_keys_do_not_panic(key in prop::collection::vec(any::<u8>(), 0..60)) {
            let view = keys().view(7);
            let _ = (view.split(&key), view.split(&[view.progress(), key.clone()].concat()), RowKey::decode(&key), RowKey::element_of(&key));
        }
    }
}
