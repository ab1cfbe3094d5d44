//! All keys of the layer. Only this module and its submodules build or parse keys.
//!
//! Keys are FoundationDB tuples under one root. design/data-model.md draws them byte by byte.
#![warn(clippy::indexing_slicing)]

mod access;
mod bucket;
mod channels;
mod document;
mod index;
mod places;
mod principals;
mod record_changes;
mod root;
mod stored;
mod subspaces;
mod tuple;
mod updates;
mod view;
mod work;

use crate::error::Result;
use crate::seq::Stamp;

pub use access::{ACCESS_CELLS, AccessCell};
pub use bucket::BucketKeys;
pub use channels::ChannelPart;
use document::{ANCESTORS, ATTACHMENTS, BODY, INFO, LEAVES, REVISION_BODIES, REVISIONS};
pub use document::{DocumentKeys, DocumentPart, KeyPosition};
pub use flatbed_kit::{KeyRange, METADATA_VERSION};
pub use index::IndexPart;
pub use places::{Head, RowPlaces, SortPlace};
pub use principals::{PrincipalPart, SESSION_HASH_BYTES, changed_principal_at, pack_principal, unpack_principal};
pub use root::RootKeys;
pub use subspaces::Subspace;
use tuple::{
    TUPLE_BYTES, TUPLE_STRING, bad_key, behind, put_int, put_stamp, put_text, stamped, take_bytes_at, take_stamp,
    take_text, take_text_at, under, with_int,
};
pub use tuple::{take_int, take_rev};
pub use updates::{BUCKETS, bucket_of};
pub use view::{RowKey, ViewKeys, ViewPart};
pub use work::{DUE_PARTS, DueKey};

/// The most shards of a database: each page of a feed reads all of them.
pub const SHARDS_MAX: u32 = 64;

/// The format of everything under the root. Stores and databases of another format are refused.
pub const FORMAT_VERSION: u32 = 4;

// Under {NS}.
const META: u64 = 0;
const FIELDS: u64 = 1;
const DOC: u64 = 2;
const BY_SEQ: u64 = 3;
const ALL_DOCS: u64 = 4;
const BLOBS: u64 = 5;
const STAGED: u64 = 6;
const LOCAL: u64 = 7;
const ATTACHMENT_DATA: u64 = 8;
const ATTACHMENT_USES: u64 = 9;
const PURGES: u64 = 10;
const LEASES: u64 = 11;
const RELEASED: u64 = 12;
const INDEXES: u64 = 13;
const COMPACTED: u64 = 14;
const SHARDED: u64 = 15;
const PARTITIONS: u64 = 16;
const CHANNELS: u64 = 17;
const PRINCIPALS: u64 = 18;
const LOCAL_BYTES: u64 = 19;

// Under {NS}/META.
const LAST_SEQ: u64 = 0;

// Under {NS}/FIELDS.
const NEXT_ID: u64 = 0;
const IDS: u64 = 1;
const NAMES: u64 = 2;

/// The counters of a database; each is an 8-byte little-endian integer changed by atomic ADD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    Documents = 1,
    DeletedDocuments = 2,
    ExternalBytes = 3,
    StoredBytes = 4,
    /// The stored bytes of superseded bodies: those of revisions that are not leaves.
    SupersededBytes = 5,
    Purges = 6,
}

impl Counter {
    pub const ALL: [Counter; 6] = [
        Counter::Documents,
        Counter::DeletedDocuments,
        Counter::ExternalBytes,
        Counter::StoredBytes,
        Counter::SupersededBytes,
        Counter::Purges,
    ];
}

/// Keys of one database: everything under its {NS}.
#[derive(Debug, Clone)]
pub struct Keys {
    prefix: Vec<u8>,
}

impl Keys {
    pub fn all(&self) -> KeyRange {
        under(&self.prefix)
    }

    pub fn next_field_id(&self) -> Vec<u8> {
        self.two(FIELDS, NEXT_ID)
    }

    pub fn field_id(&self, name: &str) -> Vec<u8> {
        let mut key = self.two(FIELDS, IDS);
        put_text(&mut key, TUPLE_STRING, name.as_bytes());
        key
    }

    pub fn field_ids(&self) -> KeyRange {
        KeyRange { begin: self.two(FIELDS, IDS), end: self.two(FIELDS, IDS + 1) }
    }

    pub fn field_id_name(&self, key: &[u8]) -> Result<String> {
        take_text(behind(key, &self.two(FIELDS, IDS)))
    }

    pub fn field_name(&self, id: u64) -> Vec<u8> {
        let mut key = self.two(FIELDS, NAMES);
        put_int(&mut key, id);
        key
    }

    /// Returns the keys of the names of the ids from `id` up.
    pub fn field_names_from(&self, id: u64) -> KeyRange {
        KeyRange { begin: self.field_name(id), end: self.two(FIELDS, NAMES + 1) }
    }

    pub fn field_name_id(&self, key: &[u8]) -> Result<u64> {
        let (id, rest) = take_int(behind(key, &self.two(FIELDS, NAMES)))?;
        if rest.is_empty() { Ok(id) } else { Err(bad_key()) }
    }

    pub fn document(&self, id: &str) -> DocumentKeys {
        let mut prefix = Vec::with_capacity(self.prefix.len() + id.len() + 48);
        prefix.extend_from_slice(&self.prefix);
        put_int(&mut prefix, DOC);
        put_text(&mut prefix, TUPLE_STRING, id.as_bytes());
        DocumentKeys { prefix }
    }

    /// Parses a key of a document into the document's id, the part, and the rest of the key.
    pub fn split_document<'k>(&self, key: &'k [u8]) -> Result<(String, DocumentPart, &'k [u8])> {
        let (id, rest) = take_text_at(behind(key, &self.one(DOC)))?;
        let (part, rest) = take_int(rest)?;
        let part = match part {
            INFO => DocumentPart::Info,
            BODY => DocumentPart::Body,
            LEAVES => DocumentPart::Leaf,
            REVISIONS => DocumentPart::Revision,
            REVISION_BODIES => DocumentPart::RevisionBody,
            ANCESTORS => DocumentPart::Ancestors,
            ATTACHMENTS => DocumentPart::Attachments,
            _ => return Err(bad_key()),
        };
        Ok((id, part, rest))
    }

    pub fn all_docs(&self) -> KeyRange {
        KeyRange { begin: self.one(ALL_DOCS), end: self.one(ALL_DOCS + 1) }
    }

    pub fn all_docs_entry(&self, id: &str) -> Vec<u8> {
        let mut key = self.one(ALL_DOCS);
        put_text(&mut key, TUPLE_STRING, id.as_bytes());
        key
    }

    pub fn all_docs_id(&self, key: &[u8]) -> Result<String> {
        take_text(behind(key, &self.one(ALL_DOCS)))
    }

    pub fn blob(&self, blob_id: &[u8]) -> Vec<u8> {
        let mut key = self.one(BLOBS);
        put_text(&mut key, TUPLE_BYTES, blob_id);
        key
    }

    pub fn blob_rows(&self, blob_id: &[u8]) -> KeyRange {
        under(&self.blob(blob_id))
    }

    /// Parses a key of a blob into the blob's id and the path behind it.
    pub fn split_blob<'k>(&self, key: &'k [u8]) -> Result<(Vec<u8>, &'k [u8])> {
        take_bytes_at(behind(key, &self.one(BLOBS)), TUPLE_BYTES)
    }

    pub fn staged(&self, blob_id: &[u8]) -> Vec<u8> {
        let mut key = self.one(STAGED);
        put_text(&mut key, TUPLE_BYTES, blob_id);
        key
    }

    pub fn staged_all(&self) -> KeyRange {
        KeyRange { begin: self.one(STAGED), end: self.one(STAGED + 1) }
    }

    pub fn staged_id(&self, key: &[u8]) -> Result<Vec<u8>> {
        take_bytes_at(behind(key, &self.one(STAGED)), TUPLE_BYTES).map(|(id, _)| id)
    }

    pub fn attachment_data(&self, digest: &[u8]) -> Vec<u8> {
        let mut key = self.one(ATTACHMENT_DATA);
        put_text(&mut key, TUPLE_BYTES, digest);
        key
    }

    pub fn attachment_data_all(&self) -> KeyRange {
        KeyRange { begin: self.one(ATTACHMENT_DATA), end: self.one(ATTACHMENT_DATA + 1) }
    }

    pub fn attachment_digest(&self, key: &[u8]) -> Result<Vec<u8>> {
        take_bytes_at(behind(key, &self.one(ATTACHMENT_DATA)), TUPLE_BYTES).map(|(digest, _)| digest)
    }

    /// Returns the key whose presence records that a document has an attachment with the data of a digest.
    pub fn attachment_use(&self, digest: &[u8], id: &str) -> Vec<u8> {
        let mut key = self.one(ATTACHMENT_USES);
        put_text(&mut key, TUPLE_BYTES, digest);
        put_text(&mut key, TUPLE_STRING, id.as_bytes());
        key
    }

    /// Returns the range of all documents that have a digest's data.
    pub fn attachment_uses(&self, digest: &[u8]) -> KeyRange {
        let mut key = self.one(ATTACHMENT_USES);
        put_text(&mut key, TUPLE_BYTES, digest);
        under(&key)
    }

    pub fn attachment_uses_all(&self) -> KeyRange {
        KeyRange { begin: self.one(ATTACHMENT_USES), end: self.one(ATTACHMENT_USES + 1) }
    }

    /// Parses a key of [`Keys::attachment_uses_all`] into its digest and document id.
    pub fn split_attachment_use(&self, key: &[u8]) -> Result<(Vec<u8>, String)> {
        let (digest, rest) = take_bytes_at(behind(key, &self.one(ATTACHMENT_USES)), TUPLE_BYTES)?;
        Ok((digest, take_text(rest)?))
    }

    /// Returns the key of a queue entry: a list of attachments that left a document, see `document/release.rs` of the layer.
    pub fn released(&self, id: &str, token: &[u8; 16]) -> Vec<u8> {
        let mut key = self.one(RELEASED);
        put_text(&mut key, TUPLE_STRING, id.as_bytes());
        put_text(&mut key, TUPLE_BYTES, token);
        key
    }

    /// Returns the range of one document's entries.
    pub fn released_of(&self, id: &str) -> KeyRange {
        let mut key = self.one(RELEASED);
        put_text(&mut key, TUPLE_STRING, id.as_bytes());
        under(&key)
    }

    pub fn released_all(&self) -> KeyRange {
        KeyRange { begin: self.one(RELEASED), end: self.one(RELEASED + 1) }
    }

    /// Parses a key of [`Keys::released_all`] into its document id and token.
    pub fn split_released(&self, key: &[u8]) -> Result<(String, Vec<u8>)> {
        let (id, rest) = take_text_at(behind(key, &self.one(RELEASED)))?;
        Ok((id, take_bytes_at(rest, TUPLE_BYTES)?.0))
    }

    pub fn compacted(&self) -> Vec<u8> {
        self.one(COMPACTED)
    }

    /// Returns the key of a purge's record for SET_VERSIONSTAMPED_KEY.
    pub fn purge_stamped(&self, epoch: u32, user_version: u16) -> Vec<u8> {
        stamped(self.one(PURGES), epoch, user_version)
    }

    pub fn purge_stamp(&self, key: &[u8]) -> Result<Stamp> {
        take_stamp(behind(key, &self.one(PURGES)))
    }

    /// Returns the first key behind the record of a stamp.
    pub fn behind_purge(&self, stamp: &Stamp) -> Vec<u8> {
        let mut key = self.one(PURGES);
        put_stamp(&mut key, stamp);
        key.push(0);
        key
    }

    pub fn purges(&self) -> KeyRange {
        KeyRange { begin: self.one(PURGES), end: self.one(PURGES + 1) }
    }

    pub fn lease(&self, id: &str) -> Vec<u8> {
        let mut key = self.one(LEASES);
        put_text(&mut key, TUPLE_STRING, id.as_bytes());
        key
    }

    pub fn leases(&self) -> KeyRange {
        KeyRange { begin: self.one(LEASES), end: self.one(LEASES + 1) }
    }

    pub fn lease_id(&self, key: &[u8]) -> Result<String> {
        take_text(behind(key, &self.one(LEASES)))
    }

    pub fn local(&self, id: &str, part: u64) -> Vec<u8> {
        let mut key = self.one(LOCAL);
        put_text(&mut key, TUPLE_STRING, id.as_bytes());
        put_int(&mut key, part);
        key
    }

    pub fn local_parts(&self, id: &str) -> KeyRange {
        let mut key = self.one(LOCAL);
        put_text(&mut key, TUPLE_STRING, id.as_bytes());
        under(&key)
    }

    pub fn locals(&self) -> KeyRange {
        KeyRange { begin: self.one(LOCAL), end: self.one(LOCAL + 1) }
    }

    /// Returns the key of the counter of an owner's bytes of local documents, an 8-byte little-endian integer changed
    /// by atomic ADD. `None`: the database is the owner.
    pub fn local_bytes(&self, owner: Option<&str>) -> Vec<u8> {
        let mut key = self.one(LOCAL_BYTES);
        if let Some(owner) = owner {
            put_text(&mut key, TUPLE_STRING, owner.as_bytes());
        }
        key
    }

    pub fn split_local_bytes(&self, key: &[u8]) -> Result<Option<String>> {
        match behind(key, &self.one(LOCAL_BYTES)) {
            [] => Ok(None),
            rest => take_text(rest).map(Some),
        }
    }

    /// Parses a key of [`Keys::locals`] into its id and part.
    pub fn split_local(&self, key: &[u8]) -> Result<(String, u64)> {
        let (id, rest) = take_text_at(behind(key, &self.one(LOCAL)))?;
        match take_int(rest)? {
            (part, []) => Ok((id, part)),
            _ => Err(bad_key()),
        }
    }

    fn one(&self, subspace: u64) -> Vec<u8> {
        with_int(&self.prefix, subspace)
    }

    fn two(&self, subspace: u64, second: u64) -> Vec<u8> {
        let mut key = with_int(&self.prefix, subspace);
        put_int(&mut key, second);
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seq::Seq;
    use flatbed_revtree::RevId;
    use foundationdb::tuple::{Bytes, Versionstamp, pack};
    use proptest::prelude::*;

    fn keys() -> Keys {
        RootKeys::new(b"r").namespace(300)
    }

    #[test]
    fn keys_are_tuples() {
        let root = Bytes::from(b"r".to_vec());
        let document = keys().document("a\0é");
        assert_eq!(document.info(), pack(&(root.clone(), 3, 300, 2, "a\0é", 0)));
        let keys_of_root = RootKeys::new(b"r");
        assert_eq!(keys_of_root.replicators_changed(), pack(&(root.clone(), 22)));
        assert_eq!(keys_of_root.replicator("a/b"), pack(&(root.clone(), 22, "a/b")));
        let range = keys_of_root.replicators();
        assert!(keys_of_root.replicators_changed() < range.begin && range.begin < keys_of_root.replicator(""));
        assert!(keys_of_root.replicator("z") < range.end);
        assert_eq!(document.body(), pack(&(root.clone(), 3, 300, 2, "a\0é", 1)));
        let rev = RevId::new(70_000, [0; 16]);
        let hash = Bytes::from([0_u8; 16].to_vec());
        assert_eq!(document.leaf(false, &rev), pack(&(root.clone(), 3, 300, 2, "a\0é", 2, 1, 70_000, hash.clone())));
        let text: RevId = "2-xy".parse().unwrap();
        assert_eq!(document.revision(&text), pack(&(root.clone(), 3, 300, 2, "a\0é", 3, 2, "xy")));
        let stamp = Versionstamp::complete([7; 10], 9);
        let mut bytes = [7_u8; 16];
        bytes[..4].copy_from_slice(&300_u32.to_be_bytes());
        bytes[14..].copy_from_slice(&9_u16.to_be_bytes());
        let (seq, bucket) = (Seq::new(1, bytes), keys().bucket(64, 63));
        assert_eq!(keys().bucket(0, 0).by_seq(&seq), pack(&(root.clone(), 3, 300, 3, 1, 300, stamp.clone())));
        assert_eq!(bucket.by_seq(&seq), pack(&(root.clone(), 3, 300, 15, 63, 3, 1, 300, stamp)));
        assert_eq!(bucket.last_seq(), pack(&(root.clone(), 3, 300, 15, 63, 0, 0)));
        assert_eq!(bucket.counter(Counter::StoredBytes), pack(&(root, 3, 300, 15, 63, 0, 4)));
        assert_eq!(bucket.by_seq_parse(&bucket.by_seq(&seq)).unwrap(), seq);
        assert_eq!(keys().split_bucket(&bucket.by_seq(&seq)).unwrap(), (63, Subspace::BySeq));
        assert_eq!(keys().split_bucket(&bucket.last_seq()).unwrap(), (63, Subspace::Meta));
    }

    #[test]
    fn latest_is_info_and_body_alone() {
        let document = keys().document("d");
        let range = document.latest();
        let inside = |key: &[u8]| range.begin.as_slice() <= key && key < range.end.as_slice();
        assert!(inside(&document.info()) && inside(&document.body()));
        let mut row = document.body();
        row.extend_from_slice(&[0xff; 8]);
        assert!(inside(&row));
        assert!(!inside(&document.leaf(true, &RevId::new(1, [0; 16]))));
        assert!(!inside(&keys().document("d\0").info()) && !inside(&keys().document("").info()));
    }

    proptest! {
        #[test]
        fn what_is_put_is_taken(id in ".{0,40}", generation in 0..1_u64 << 53, hash in "[0-9a-f]{32}|.{1,50}") {
            let Ok(rev) = RevId::from_parts(generation, &hash) else { return Ok(()) };
            let keys = keys();
            let key = keys.document(&id).leaf(true, &rev);
            let (found, part, rest) = keys.split_document(&key).unwrap();
            prop_assert_eq!((found, part), (id.clone(), DocumentPart::Leaf));
            let (not_deleted, rest) = take_int(rest).unwrap();
            prop_assert_eq!(not_deleted, 0);
            prop_assert_eq!(take_rev(rest).unwrap(), (rev, &b""[..]));
            prop_assert_eq!(keys.all_docs_id(&keys.all_docs_entry(&id)).unwrap(), id.clone());
            let root = RootKeys::new(b"r");
            prop_assert_eq!(root.replicator_name(&root.replicator(&id)).unwrap(), id);
        }

        #[test]
        fn entries_of_indexes_are_taken(number in 1..1_u64 << 40, incarnation: u64, stamp: Stamp, form in prop::collection::vec(any::<u8>(), 0..9)) {
            let (keys, seq) = (keys(), Seq::new(incarnation, stamp));
            let key = keys.index_change(number, &seq);
            prop_assert_eq!(keys.split_index(&key).unwrap(), (number, IndexPart::Change(seq)));
            prop_assert_eq!(keys.index_change_seq(&key).unwrap(), seq);
            let behind = keys.index_changes_after(number, &seq);
            prop_assert!(behind.begin > key && behind.begin <= behind.end);
            for places in [RowPlaces::default(), RowPlaces(Some("p"))] {
                let entry = keys.index_entry(number, places, &form, "p:d");
                let part = keys.split_index(&entry).unwrap().1;
                let is_same = matches!(part, IndexPart::Entry(SortPlace { element, .. }) if element == form);
                prop_assert!(is_same);
                prop_assert!(keys.index_change_seq(&entry).is_err());
            }
        }

        #[test]
        fn foreign_keys_do_not_panic(key in proptest::collection::vec(any::<u8>(), 0..40)) {
            let keys = keys();
            let by_seq = [0, 4].map(|shards| keys.bucket(shards, 0).by_seq_parse(&key));
            let _ = (keys.split_document(&key), by_seq, keys.split_bucket(&key), keys.all_docs_id(&key));
            Subspace::all().for_each(|subspace| drop(keys.check(subspace, &key)));
            let _ = keys.split_index(&[&keys.index_place(1, b"")[..], &key].concat());
            let _ = RootKeys::new(b"r").replicator_name(&key);
            let _ = (keys.split_blob(&key), keys.staged_id(&key), keys.field_name_id(&key), take_rev(&key));
        }
    }
}
