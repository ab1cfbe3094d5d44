//! Conversions between the protobuf messages and the layer's types.

pub mod since;

use flatbed_clock::Clock;
use flatbed_revtree::{Ancestry, AncestrySegment, Hash, RevId};
use prost::Message;

use crate::error::{Error, Result};
use crate::keys::FORMAT_VERSION;
use crate::proto;
use crate::records::since::ChannelsSince;
use crate::seq::{Stamp, VERSIONSTAMP_OFFSET};

/// The offset of the sequence's versionstamp in an encoded `DocumentInfo`: behind the first field's tag, its length and
/// the epoch.
const INFO_STAMP_OFFSET: u32 = 2 + VERSIONSTAMP_OFFSET;

pub fn revision_message(rev: &RevId) -> proto::Revision {
    let (md5, text) = match rev.hash() {
        Hash::Md5(md5) => (md5.to_vec(), String::new()),
        Hash::Text(text) => (Vec::new(), text.to_string()),
    };
    proto::Revision { generation: rev.generation(), md5, text }
}

pub fn revision(message: Option<&proto::Revision>) -> Result<RevId> {
    let message = message.ok_or_else(|| Error::Corrupt("a record has no revision".into()))?;
    if message.md5.is_empty() {
        return RevId::from_parts(message.generation, &message.text).map_err(|_| bad("a revision"));
    }
    let md5 = message.md5.as_slice().try_into().map_err(|_| bad("a revision's hash"))?;
    Ok(RevId::new(message.generation, md5))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyPlace {
    /// Under the document: BODY for the winner, REVISION_BODIES for others.
    Rows,
    /// In a blob of this id, written before the document's transaction.
    Blob(Vec<u8>),
}

/// A document's info record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    pub stamp: Stamp,
    pub winner: RevId,
    pub deleted: bool,
    pub leaf_count: u32,
    pub place: BodyPlace,
    /// The bytes of the JSON text of the winner's body, and its attachments.
    pub external_bytes: u64,
    pub stored_bytes: u64,
    pub has_attachments: bool,
    /// The part of the external bytes that is decoded attachments.
    pub attachment_bytes: u64,
    /// The bucket of its by-seq entry.
    pub bucket: u32,
    pub routed: RecordedRouting,
}

/// The routing of a document's winner, as its info stores it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordedRouting {
    /// The channels that it is in; `None`: it has not been routed.
    pub channels: Option<proto::ChannelNames>,
    /// When it expires, in milliseconds of Unix time.
    pub expires_at_ms: Option<u64>,
    /// The number of channels that the document has left.
    pub left: u32,
    /// True if it grants channels or roles.
    pub gives: bool,
    /// The start of its stay in each channel.
    pub since: ChannelsSince,
}

/// Returns whether an expiry (0: never) has passed. Reads the clock only if there is an expiry.
pub fn is_over(expires_at_ms: u64, clock: &Clock) -> bool {
    expires_at_ms > 0 && expires_at_ms <= clock.unix_ms()
}

impl Info {
    /// Returns whether the document has expired at a time in milliseconds of Unix time, whether or not a tombstone is
    /// written.
    pub fn has_ended(&self, now_ms: u64) -> bool {
        self.routed.expires_at_ms.is_some_and(|at| at <= now_ms)
    }

    /// Returns the expiry in the form of its rows and entries; 0: never.
    pub fn ends_at_ms(&self) -> u64 {
        self.routed.expires_at_ms.unwrap_or(0)
    }

    /// Encodes its rows by id, of the database and of channels.
    pub fn by_id(&self) -> Vec<u8> {
        let (winner, expires_at_ms) = (Some(revision_message(&self.winner)), self.ends_at_ms());
        proto::AllDocsEntry { winner, expires_at_ms }.encode_to_vec()
    }

    /// Returns the info as it reads at that moment: an expired document is a tombstone without a body.
    pub fn read_at(self, now_ms: u64) -> Info {
        if !self.has_ended(now_ms) {
            return self;
        }
        Info {
            deleted: true,
            has_attachments: false,
            attachment_bytes: 0,
            place: BodyPlace::Rows,
            external_bytes: 0,
            stored_bytes: 0,
            ..self
        }
    }

    /// The length of the JSON text of the winner's body, in bytes.
    pub fn text_bytes(&self) -> u64 {
        self.external_bytes.saturating_sub(self.attachment_bytes)
    }

    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let message = proto::DocumentInfo::decode(bytes)?;
        Ok(Info {
            stamp: message.sequence.as_slice().try_into().map_err(|_| bad("a document's sequence"))?,
            winner: revision(message.winner.as_ref())?,
            deleted: message.deleted,
            leaf_count: message.leaf_count,
            place: place(message.blob_id),
            external_bytes: message.external_bytes,
            stored_bytes: message.stored_bytes,
            has_attachments: message.attachments > 0,
            attachment_bytes: message.attachments.saturating_sub(1),
            bucket: message.bucket,
            routed: RecordedRouting {
                channels: message.channels,
                expires_at_ms: Some(message.expires_at_ms).filter(|at| *at > 0),
                left: message.left,
                gives: message.gives,
                since: ChannelsSince::decode(message.since_of, &message.since),
            },
        })
    }

    /// Encodes the operand of SET_VERSIONSTAMPED_VALUE: the record with the placeholder of the stamp at
    /// `INFO_STAMP_OFFSET`, then that offset (4 bytes little-endian). Of `self.stamp` only the epoch and the user
    /// version are used.
    pub fn encode_stamped(&self) -> Vec<u8> {
        let message = proto::DocumentInfo {
            sequence: self.stamp.to_vec(),
            winner: Some(revision_message(&self.winner)),
            deleted: self.deleted,
            leaf_count: self.leaf_count,
            blob_id: blob_id(&self.place),
            external_bytes: self.external_bytes,
            stored_bytes: self.stored_bytes,
            attachments: attachments(self.has_attachments, self.attachment_bytes),
            bucket: self.bucket,
            channels: self.routed.channels.clone(),
            expires_at_ms: self.routed.expires_at_ms.unwrap_or(0),
            left: self.routed.left,
            gives: self.routed.gives,
            since_of: self.routed.since.places(),
            since: self.routed.since.stamps(),
        };
        let mut out = Vec::with_capacity(message.encoded_len() + 4);
        // Encoding into a Vec cannot run out of room.
        message.encode_raw(&mut out);
        out.extend_from_slice(&INFO_STAMP_OFFSET.to_le_bytes());
        out
    }
}

/// The value of a document's row by id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ById {
    pub winner: RevId,
    /// 0: never.
    pub expires_at_ms: u64,
}

impl ById {
    pub fn decode(bytes: &[u8]) -> Result<ById> {
        let proto::AllDocsEntry { winner, expires_at_ms } = proto::AllDocsEntry::decode(bytes)?;
        Ok(ById { winner: revision(winner.as_ref())?, expires_at_ms })
    }

    /// Returns whether a row's document has expired.
    pub fn is_expired(bytes: &[u8], clock: &Clock) -> Result<bool> {
        match bytes {
            // The first field fills the message, so the second is absent.
            [0x0a, length, rest @ ..] if rest.len() == usize::from(*length) => Ok(false),
            _ => Ok(is_over(proto::AllDocsEntry::decode(bytes)?.expires_at_ms, clock)),
        }
    }
}

/// Encodes whether a record has attachments, and their bytes.
fn attachments(has_attachments: bool, bytes: u64) -> u64 {
    if has_attachments { bytes.saturating_add(1) } else { 0 }
}

#[derive(Debug, Clone, PartialEq)]
pub struct RevisionRecord {
    pub token: Vec<u8>,
    pub deleted: bool,
    /// The bytes of the JSON text of the body.
    pub external_bytes: u64,
    pub stored_bytes: u64,
    pub place: BodyPlace,
    pub body_dropped: bool,
    pub has_attachments: bool,
    /// As in [`Info`].
    pub attachment_bytes: u64,
    /// The verdict of the write.
    pub verdict: Option<proto::Verdict>,
}

impl RevisionRecord {
    /// Returns whether the revision has expired at a time in milliseconds of Unix time, whether or not it is still a
    /// leaf.
    pub fn has_ended(&self, now_ms: u64) -> bool {
        let ends_at_ms = self.verdict.as_ref().map_or(0, |verdict| verdict.expires_at_ms);
        !self.deleted && ends_at_ms > 0 && ends_at_ms <= now_ms
    }

    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let message = proto::RevisionInfo::decode(bytes)?;
        Ok(RevisionRecord {
            token: message.token,
            deleted: message.deleted,
            external_bytes: message.external_bytes,
            stored_bytes: message.stored_bytes,
            place: place(message.blob_id),
            body_dropped: message.body_dropped,
            has_attachments: message.attachments > 0,
            attachment_bytes: message.attachments.saturating_sub(1),
            verdict: message.verdict,
        })
    }

    pub fn encode(&self) -> Vec<u8> {
        proto::RevisionInfo {
            token: self.token.clone(),
            deleted: self.deleted,
            external_bytes: self.external_bytes,
            stored_bytes: self.stored_bytes,
            blob_id: blob_id(&self.place),
            body_dropped: self.body_dropped,
            attachments: attachments(self.has_attachments, self.attachment_bytes),
            verdict: self.verdict.clone(),
        }
        .encode_to_vec()
    }
}

/// Encodes the value of a LEAVES key. The revision in the key is one generation above the first ancestor.
pub fn encode_ancestry(ancestry: &Ancestry) -> Vec<u8> {
    let (ancestors_md5, ancestors_text) = hashes(&ancestry.recent);
    let sealed = ancestry.sealed.as_ref().map(revision_message);
    proto::Leaf { ancestors_md5, ancestors_text, sealed_count: ancestry.sealed_count, sealed }.encode_to_vec()
}

pub fn decode_ancestry(leaf: &RevId, bytes: &[u8]) -> Result<Ancestry> {
    let message = proto::Leaf::decode(bytes)?;
    let newest = leaf.generation().checked_sub(1);
    let recent = revisions(newest, &message.ancestors_md5, &message.ancestors_text)?;
    let sealed = message.sealed.as_ref().map(|newest| revision(Some(newest))).transpose()?;
    if sealed.is_some() != (message.sealed_count > 0) {
        return Err(bad("ancestors"));
    }
    Ok(Ancestry { recent, sealed, sealed_count: message.sealed_count })
}

pub fn encode_segment(sealed: &AncestrySegment) -> Vec<u8> {
    let (ancestors_md5, ancestors_text) = hashes(&sealed.revisions);
    let next = sealed.next.as_ref().map(revision_message);
    proto::AncestorSegment { ancestors_md5, ancestors_text, next }.encode_to_vec()
}

pub fn decode_segment(newest: &RevId, bytes: &[u8]) -> Result<AncestrySegment> {
    let message = proto::AncestorSegment::decode(bytes)?;
    let revisions = revisions(Some(newest.generation()), &message.ancestors_md5, &message.ancestors_text)?;
    if revisions.first() != Some(newest) {
        return Err(bad("ancestors"));
    }
    let next = message.next.as_ref().map(|next| revision(Some(next))).transpose()?;
    Ok(AncestrySegment { revisions, next })
}

/// Checks that a record's format is the one that this program reads.
pub fn check_format(what: &str, found: u32) -> Result<()> {
    let known = FORMAT_VERSION;
    match found {
        0 => Err(Error::Corrupt(format!("{what} has no format"))),
        FORMAT_VERSION => Ok(()),
        _ if found < known => Err(Error::FormatTooOld { what: what.to_owned(), found, known }),
        _ => Err(Error::FormatTooNew { what: what.to_owned(), found, known }),
    }
}

fn hashes(revisions: &[RevId]) -> (Vec<u8>, Vec<String>) {
    let all_md5 = revisions.iter().all(|rev| matches!(rev.hash(), Hash::Md5(_)));
    if all_md5 {
        (revisions.iter().flat_map(|rev| rev.hash_bytes().iter().copied()).collect(), Vec::new())
    } else {
        (Vec::new(), revisions.iter().map(RevId::hash_text).collect())
    }
}

fn revisions(newest: Option<u64>, md5: &[u8], text: &[String]) -> Result<Vec<RevId>> {
    let generation =
        |at: usize| newest.and_then(|newest| newest.checked_sub(at as u64)).ok_or_else(|| bad("ancestors"));
    if !md5.len().is_multiple_of(16) || !(md5.is_empty() || text.is_empty()) {
        return Err(bad("ancestors"));
    }
    let from_md5 = md5.chunks_exact(16).enumerate().map(|(at, hash)| {
        let hash = hash.try_into().map_err(|_| bad("ancestors"))?;
        Ok(RevId::new(generation(at)?, hash))
    });
    let from_text = text
        .iter()
        .enumerate()
        .map(|(at, hash)| RevId::from_parts(generation(at)?, hash).map_err(|_| bad("ancestors")));
    from_md5.chain(from_text).collect()
}

fn place(blob_id: Vec<u8>) -> BodyPlace {
    if blob_id.is_empty() { BodyPlace::Rows } else { BodyPlace::Blob(blob_id) }
}

fn blob_id(place: &BodyPlace) -> Vec<u8> {
    match place {
        BodyPlace::Rows => Vec::new(),
        BodyPlace::Blob(id) => id.clone(),
    }
}

fn bad(what: &str) -> Error {
    Error::Corrupt(format!("{what} cannot be read"))
}

/// Decodes a counter; an absent one is 0.
pub fn decode_counter(bytes: Option<&[u8]>) -> Result<i64> {
    let Some(bytes) = bytes else { return Ok(0) };
    let bytes = bytes.try_into().map_err(|_| Error::Corrupt("a counter is not 8 bytes".into()))?;
    Ok(i64::from_le_bytes(bytes))
}

impl proto::DatabaseRecord {
    /// Sets `_security`. Functions see it, so verdicts under the old one become invalid.
    pub fn set_security(&mut self, security: &[u8]) {
        if self.security != security {
            self.security = security.to_vec();
            self.rules += u64::from(self.rules > 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_stamp_stands_where_it_is_written() {
        let info = Info {
            stamp: [0xee; 16],
            winner: "3-28390acbb2afb09d34e8e35d2d2211ad".parse().unwrap(),
            deleted: true,
            leaf_count: 1,
            place: BodyPlace::Blob(vec![9; 16]),
            external_bytes: 7,
            stored_bytes: 8,
            has_attachments: true,
            attachment_bytes: 5,
            bucket: 63,
            routed: RecordedRouting {
                channels: Some(proto::ChannelNames { names: vec!["A".into(), "B".into()], are_elsewhere: false }),
                expires_at_ms: Some(9),
                left: 2,
                gives: true,
                since: ChannelsSince::decode(vec![2, 0], &[7; 16]),
            },
        };
        let mut operand = info.encode_stamped();
        assert_eq!((&operand[2..18], INFO_STAMP_OFFSET), (&[0xee; 16][..], 6));
        assert_eq!(operand.split_off(operand.len() - 4), INFO_STAMP_OFFSET.to_le_bytes());
        assert_eq!(Info::decode(&operand).unwrap(), info);
    }

    /// 0: there are none; else their bytes plus 1.
    #[test]
    fn attachments_are_their_bytes_and_one() {
        let of = |attachments| proto::RevisionInfo { attachments, ..proto::RevisionInfo::default() }.encode_to_vec();
        let read = |attachments| {
            let record = RevisionRecord::decode(&of(attachments)).unwrap();
            assert_eq!(record.encode(), of(attachments));
            (record.has_attachments, record.attachment_bytes)
        };
        assert_eq!([0, 1, 6].map(read), [(false, 0), (true, 0), (true, 5)]);
    }

    proptest! {
        #[test]
        fn ancestries_round_trip(hashes in proptest::collection::vec("[0-9a-f]{32}|[a-z]{1,9}", 0..70), sealed: bool) {
            let leaf = RevId::from_parts(100, "x").unwrap();
            let recent = hashes.iter().enumerate();
            let recent = recent.map(|(i, hash)| RevId::from_parts(99 - i as u64, hash).unwrap()).collect();
            let (sealed_count, next) = (u64::from(sealed), sealed.then(|| RevId::from_parts(9, "y").unwrap()));
            let ancestry = Ancestry { recent, sealed: next, sealed_count };
            prop_assert_eq!(decode_ancestry(&leaf, &encode_ancestry(&ancestry)).unwrap(), ancestry);
        }

        #[test]
        fn foreign_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let leaf = RevId::from_parts(1, "x").unwrap();
            let _ = (Info::decode(&bytes), RevisionRecord::decode(&bytes), decode_ancestry(&leaf, &bytes));
        }
    }
}
