//! The subspaces of a database's keys.

use crate::error::Result;
use crate::keys::bucket::take_meta;
use crate::keys::tuple::{bad_key, behind, take_int};
use crate::keys::{
    ALL_DOCS, ATTACHMENT_DATA, ATTACHMENT_USES, BLOBS, BY_SEQ, CHANNELS, COMPACTED, DOC, FIELDS, IDS, INDEXES,
    KeyRange, Keys, LEASES, LOCAL, LOCAL_BYTES, META, NAMES, NEXT_ID, PARTITIONS, PRINCIPALS, PURGES, RELEASED,
    SHARDED, STAGED,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subspace {
    Meta,
    Fields,
    Documents,
    BySeq,
    AllDocs,
    Blobs,
    Staged,
    Locals,
    AttachmentData,
    AttachmentUses,
    Purges,
    Leases,
    Released,
    Indexes,
    Compacted,
    Buckets,
    Partitions,
    Channels,
    Principals,
    LocalBytes,
}

/// Each subspace with its first element and its name in counts. The owner of a key, the checker's traversal and its
/// counts follow from this table; a key outside of it is a stray. A number is never given a second meaning.
const SUBSPACES: [(Subspace, u64, &str); 20] = [
    (Subspace::Meta, META, "counters"),
    (Subspace::Fields, FIELDS, "fields"),
    (Subspace::Documents, DOC, "documents"),
    (Subspace::BySeq, BY_SEQ, "by_seq"),
    (Subspace::AllDocs, ALL_DOCS, "all_docs"),
    (Subspace::Blobs, BLOBS, "blobs"),
    (Subspace::Staged, STAGED, "staged"),
    (Subspace::Locals, LOCAL, "local_documents"),
    (Subspace::AttachmentData, ATTACHMENT_DATA, "attachment_data"),
    (Subspace::AttachmentUses, ATTACHMENT_USES, "attachment_uses"),
    (Subspace::Purges, PURGES, "purges"),
    (Subspace::Leases, LEASES, "leases"),
    (Subspace::Released, RELEASED, "released"),
    (Subspace::Indexes, INDEXES, "indexes"),
    (Subspace::Compacted, COMPACTED, "compacted"),
    (Subspace::Buckets, SHARDED, "buckets"),
    (Subspace::Partitions, PARTITIONS, "partitions"),
    (Subspace::Channels, CHANNELS, "channels"),
    (Subspace::Principals, PRINCIPALS, "principals"),
    (Subspace::LocalBytes, LOCAL_BYTES, "local_bytes"),
];

impl Subspace {
    pub fn all() -> impl DoubleEndedIterator<Item = Subspace> {
        SUBSPACES.iter().map(|(subspace, ..)| *subspace)
    }

    /// Returns the subspace's name in counts.
    pub fn name(self) -> &'static str {
        self.row().2
    }

    fn row(self) -> (Subspace, u64, &'static str) {
        // A test checks that each has a row.
        SUBSPACES.into_iter().find(|(subspace, ..)| *subspace == self).unwrap_or((self, u64::MAX, ""))
    }
}

impl Keys {
    pub fn subspace(&self, subspace: Subspace) -> KeyRange {
        let (_, first, _) = subspace.row();
        KeyRange { begin: self.one(first), end: self.one(first.saturating_add(1)) }
    }

    /// Returns the ranges between the subspaces, which must be empty.
    pub fn between_subspaces(&self) -> Vec<KeyRange> {
        let all = self.all();
        let ranges: Vec<KeyRange> = Subspace::all().map(|subspace| self.subspace(subspace)).collect();
        let begins = std::iter::once(&all.begin).chain(ranges.iter().map(|range| &range.end));
        let ends = ranges.iter().map(|range| &range.begin).chain([&all.end]);
        let gaps = begins.zip(ends).map(|(begin, end)| KeyRange { begin: begin.clone(), end: end.clone() });
        gaps.filter(|gap| gap.begin < gap.end).collect()
    }

    /// Checks that a key of a subspace has the subspace's form.
    pub fn check(&self, subspace: Subspace, key: &[u8]) -> Result<()> {
        match subspace {
            Subspace::Meta => take_meta(behind(key, &self.one(META))).map(|_| ()),
            Subspace::Fields => match take_int(behind(key, &self.one(FIELDS)))? {
                (NEXT_ID, []) => Ok(()),
                (IDS, _) => self.field_id_name(key).map(drop),
                (NAMES, _) => self.field_name_id(key).map(drop),
                _ => Err(bad_key()),
            },
            Subspace::Documents => self.split_document(key).map(drop),
            Subspace::BySeq => self.bucket(0, 0).by_seq_parse(key).map(drop),
            Subspace::AllDocs => self.all_docs_id(key).map(drop),
            Subspace::Blobs => self.split_blob(key).map(drop),
            Subspace::Staged => self.staged_id(key).map(drop),
            Subspace::Locals => self.split_local(key).map(drop),
            Subspace::AttachmentData => self.attachment_digest(key).map(drop),
            Subspace::AttachmentUses => self.split_attachment_use(key).map(drop),
            Subspace::Purges => self.purge_stamp(key).map(drop),
            Subspace::Leases => self.lease_id(key).map(drop),
            Subspace::Released => self.split_released(key).map(drop),
            Subspace::Indexes => self.split_index(key).map(drop),
            Subspace::Compacted => {
                if key == self.compacted() {
                    Ok(())
                } else {
                    Err(bad_key())
                }
            }
            Subspace::Buckets => self.split_bucket(key).map(drop),
            Subspace::Partitions => self.bucket(0, 0).partition_parse(key).map(drop),
            Subspace::Channels => self.split_channels(key).map(drop),
            Subspace::Principals => self.split_principals(key).map(drop),
            Subspace::LocalBytes => self.split_local_bytes(key).map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::RowPlaces;
    use crate::keys::{Counter, RootKeys};
    use crate::seq::Seq;

    #[test]
    fn all_of_a_database_lies_in_the_table() {
        let keys = RootKeys::new(b"r").namespace(7);
        let all: Vec<Subspace> = Subspace::all().collect();
        for (at, subspace) in all.iter().enumerate() {
            assert_eq!(*subspace as usize, at, "the table has each once, in the order of the enum");
            assert_ne!(subspace.name(), "");
        }
        let ranges: Vec<_> = all.iter().map(|subspace| keys.subspace(*subspace)).collect();
        assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].begin));
        let gaps = keys.between_subspaces();
        assert_eq!(gaps.len(), 2, "before the first and behind the last");
        assert_eq!((&gaps[0].begin, &gaps[1].end), (&keys.all().begin, &keys.all().end));
        // Each key that is built belongs to one subspace.
        let rev = "1-a".parse().unwrap();
        let document = keys.document("d");
        let built = [
            (Subspace::Meta, keys.bucket(0, 0).last_seq()),
            (Subspace::Meta, keys.bucket(0, 0).counter(Counter::Purges)),
            (Subspace::BySeq, keys.bucket(0, 0).by_seq(&Seq::zero(1))),
            (Subspace::Buckets, keys.bucket(64, 63).last_seq()),
            (Subspace::Buckets, keys.bucket(64, 0).counter(Counter::Documents)),
            (Subspace::Buckets, keys.bucket(64, 63).by_seq(&Seq::zero(1))),
            (Subspace::Buckets, keys.bucket(64, 63).of_partition("p", Counter::Documents)),
            (Subspace::Partitions, keys.bucket(0, 0).of_partition("p", Counter::ExternalBytes)),
            (Subspace::Fields, keys.next_field_id()),
            (Subspace::Fields, keys.field_id("n")),
            (Subspace::Fields, keys.field_name(9)),
            (Subspace::Documents, document.info()),
            (Subspace::Documents, document.revision(&rev)),
            (Subspace::Documents, document.attachments(&rev)),
            (Subspace::AllDocs, keys.all_docs_entry("d")),
            (Subspace::Blobs, keys.blob(&[1])),
            (Subspace::Staged, keys.staged(&[1])),
            (Subspace::Locals, keys.local("l", 3)),
            (Subspace::AttachmentData, keys.attachment_data(&[0; 32])),
            (Subspace::AttachmentUses, keys.attachment_use(&[0; 32], "d")),
            (Subspace::Leases, keys.lease("l")),
            (Subspace::Released, keys.released("d", &[0; 16])),
            (Subspace::Indexes, keys.index_progress(1)),
            (Subspace::Compacted, keys.compacted()),
            (Subspace::Indexes, keys.index_entry(1, RowPlaces::default(), &[0], "d")),
            (Subspace::Indexes, keys.index_of_document(1, "d")),
            (Subspace::Indexes, keys.index_node(1, 2, &[0])),
            (Subspace::Channels, keys.channel_document("c", "d")),
            (Subspace::Channels, keys.sync_function()),
            (Subspace::Channels, keys.resync()),
            (Subspace::Channels, keys.resync_range("d")),
            (Subspace::Principals, keys.principal(flatbed_channels::PrincipalKind::Role, "r")),
            (Subspace::Principals, keys.gateway_session(&[0; 20])),
            (Subspace::LocalBytes, keys.local_bytes(None)),
            (Subspace::LocalBytes, keys.local_bytes(Some(""))),
        ];
        for (subspace, key) in built {
            let range = keys.subspace(subspace);
            assert!(range.begin <= key && key < range.end && keys.check(subspace, &key).is_ok(), "{subspace:?}");
        }
    }
}
