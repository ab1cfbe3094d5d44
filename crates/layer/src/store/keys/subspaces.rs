//! Which subspaces a database's keys lie in.

use crate::store::keys::tuple::take_int;
use crate::store::keys::*;

/// The subspaces of {NS} by their first element: what a key belongs to follows from this table, and so does whether the
/// checker's walks over documents, by-seq and so on meet it, or a stray is looked for among them. `{NS}/0` and `{NS}/1` have
/// several keys of their own. A number is never given a second meaning.
const SUBSPACES: [(u64, Subspace); 12] = [
    (DOC, Subspace::Document),
    (BY_SEQ, Subspace::BySeq),
    (ALL_DOCS, Subspace::AllDocs),
    (BLOBS, Subspace::Blob),
    (STAGED, Subspace::Staged),
    (LOCAL, Subspace::Local),
    (ATTACHMENT_DATA, Subspace::AttachmentData),
    (ATTACHMENT_USES, Subspace::AttachmentUse),
    (PURGES, Subspace::Purge),
    (LEASES, Subspace::Lease),
    (RELEASED, Subspace::Released),
    (INDEXES, Subspace::Index),
];

/// A subspace of {NS}.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subspace {
    LastSeq,
    Counter,
    NextFieldId,
    FieldId,
    FieldName,
    Document,
    BySeq,
    AllDocs,
    Blob,
    Staged,
    Local,
    AttachmentData,
    AttachmentUse,
    Purge,
    Lease,
    Released,
    Index,
}

impl Subspace {
    /// Whether the checker meets each of its keys on a walk of its own; else they are looked at among the strays.
    pub(crate) fn is_walked(self) -> bool {
        match self {
            Subspace::Document | Subspace::BySeq | Subspace::AllDocs | Subspace::Blob | Subspace::Staged => true,
            Subspace::LastSeq | Subspace::Counter | Subspace::NextFieldId | Subspace::FieldId => false,
            Subspace::FieldName | Subspace::Local | Subspace::AttachmentData | Subspace::AttachmentUse => false,
            Subspace::Purge | Subspace::Lease | Subspace::Released | Subspace::Index => false,
        }
    }
}

impl Keys {
    /// Which subspace of {NS} a key lies in, for the checker; `None` for a place that this format does not have.
    pub(crate) fn subspace(&self, key: &[u8]) -> Option<Subspace> {
        let (first, rest) = take_int(key.strip_prefix(self.prefix.as_slice())?).ok()?;
        Some(match first {
            META => match take_int(rest).ok()? {
                (LAST_SEQ, []) => Subspace::LastSeq,
                (counter, []) if (1..=6).contains(&counter) => Subspace::Counter,
                _ => return None,
            },
            FIELDS => match take_int(rest).ok()? {
                (NEXT_ID, []) => Subspace::NextFieldId,
                (IDS, _) => Subspace::FieldId,
                (NAMES, _) => Subspace::FieldName,
                _ => return None,
            },
            first => SUBSPACES.iter().find(|(number, _)| *number == first)?.1,
        })
    }
}
