//! The keys of one document.

use flatbed_revtree::RevId;

use crate::keys::KeyRange;
use crate::keys::tuple::{put_int, put_rev, take_int, under, with_int};

// Under {NS}/DOC/{docid}.
pub(super) const INFO: u64 = 0;
pub(super) const BODY: u64 = 1;
pub(super) const LEAVES: u64 = 2;
pub(super) const REVISIONS: u64 = 3;
pub(super) const REVISION_BODIES: u64 = 4;
pub(super) const ANCESTORS: u64 = 5;
pub(super) const ATTACHMENTS: u64 = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DocumentPart {
    Info,
    Body,
    Leaf,
    Revision,
    RevisionBody,
    Ancestors,
    Attachments,
}

/// The position of a key relative to a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPosition {
    Before,
    Info,
    Body,
    /// Behind the latest body, within the document.
    Rest,
    Behind,
}

#[derive(Debug, Clone)]
pub struct DocumentKeys {
    pub(super) prefix: Vec<u8>,
}

impl DocumentKeys {
    /// Returns the position of some document's key relative to this document.
    pub fn beside(&self, key: &[u8]) -> KeyPosition {
        match key.strip_prefix(self.prefix.as_slice()).map(take_int) {
            // The id of another document continues with a NUL, which is not the code of an integer.
            None | Some(Err(_)) if *key < *self.prefix => KeyPosition::Before,
            None | Some(Err(_)) => KeyPosition::Behind,
            Some(Ok((INFO, _))) => KeyPosition::Info,
            Some(Ok((BODY, _))) => KeyPosition::Body,
            Some(Ok(_)) => KeyPosition::Rest,
        }
    }

    pub fn whole(&self) -> KeyRange {
        under(&self.prefix)
    }

    pub fn info(&self) -> Vec<u8> {
        with_int(&self.prefix, INFO)
    }

    /// Returns the range of info and latest body, which a read of the latest revision needs.
    pub fn latest(&self) -> KeyRange {
        KeyRange { begin: with_int(&self.prefix, INFO), end: with_int(&self.prefix, LEAVES) }
    }

    /// Returns the prefix of the latest body's rows; a row's path follows.
    pub fn body(&self) -> Vec<u8> {
        with_int(&self.prefix, BODY)
    }

    pub fn body_rows(&self) -> KeyRange {
        KeyRange { begin: with_int(&self.prefix, BODY), end: with_int(&self.prefix, LEAVES) }
    }

    pub fn leaf(&self, deleted: bool, rev: &RevId) -> Vec<u8> {
        let mut key = with_int(&self.prefix, LEAVES);
        put_int(&mut key, u64::from(!deleted));
        put_rev(&mut key, rev);
        key
    }

    pub fn leaves(&self) -> KeyRange {
        KeyRange { begin: with_int(&self.prefix, LEAVES), end: with_int(&self.prefix, REVISIONS) }
    }

    /// Returns the range of the leaves and the records of all revisions, which are adjacent.
    pub fn leaves_and_revisions(&self) -> KeyRange {
        KeyRange { begin: self.leaves().begin, end: self.revisions().end }
    }

    pub fn revision(&self, rev: &RevId) -> Vec<u8> {
        let mut key = with_int(&self.prefix, REVISIONS);
        put_rev(&mut key, rev);
        key
    }

    pub fn revisions(&self) -> KeyRange {
        KeyRange { begin: with_int(&self.prefix, REVISIONS), end: with_int(&self.prefix, REVISION_BODIES) }
    }

    /// Returns the first key of revision records of this generation; newer generations follow.
    pub fn revisions_from(&self, generation: u64) -> Vec<u8> {
        let mut key = with_int(&self.prefix, REVISIONS);
        put_int(&mut key, generation);
        key
    }

    /// Returns the prefix of a superseded revision's rows; a row's path follows.
    pub fn revision_body(&self, rev: &RevId) -> Vec<u8> {
        let mut key = with_int(&self.prefix, REVISION_BODIES);
        put_rev(&mut key, rev);
        key
    }

    pub fn revision_body_rows(&self, rev: &RevId) -> KeyRange {
        under(&self.revision_body(rev))
    }

    /// Returns the key of the segment of ancestors that begins with `newest`.
    pub fn ancestors(&self, newest: &RevId) -> Vec<u8> {
        let mut key = with_int(&self.prefix, ANCESTORS);
        put_rev(&mut key, newest);
        key
    }

    pub fn ancestor_segments(&self) -> KeyRange {
        KeyRange { begin: with_int(&self.prefix, ANCESTORS), end: with_int(&self.prefix, ANCESTORS + 1) }
    }

    /// Returns the key of the list of a revision's attachments.
    pub fn attachments(&self, rev: &RevId) -> Vec<u8> {
        let mut key = with_int(&self.prefix, ATTACHMENTS);
        put_rev(&mut key, rev);
        key
    }

    pub fn attachment_lists(&self) -> KeyRange {
        KeyRange { begin: with_int(&self.prefix, ATTACHMENTS), end: with_int(&self.prefix, ATTACHMENTS + 1) }
    }

    /// Returns the ranges of the records, bodies and sealed segments of revisions whose generation is at most
    /// `generation`.
    pub fn stemmed(&self, generation: u64) -> [KeyRange; 3] {
        [REVISIONS, REVISION_BODIES, ANCESTORS].map(|part| {
            let begin = with_int(&self.prefix, part);
            let mut end = begin.clone();
            put_int(&mut end, generation + 1);
            KeyRange { begin, end }
        })
    }
}
