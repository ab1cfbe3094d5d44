//! What those who judge a write say of a revision that may be written.
//!
//! It is stored with the revision's record. It cannot be asked for again: it rests on the functions and the user of that
//! time, and a builder of an index has neither.

use std::collections::BTreeSet;

use crate::error::Refusal;
use crate::store::proto;

/// What an edit that may be made means to those who keep indexes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The channels that the revision is in.
    pub channels: BTreeSet<String>,
    /// Whom the document, while this revision is its winner, lets into which channels.
    pub grants: BTreeSet<Grant>,
    /// When the document goes, in milliseconds of Unix time.
    pub expires_at_ms: Option<u64>,
}

/// A channel that a document lets somebody into.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grant {
    /// A user's name, or a role with what whoever says so puts before roles.
    pub to: String,
    /// The channel.
    pub channel: String,
}

/// Channels and grants of a revision. Each is a row of some index.
const ENTRIES_MAX: usize = 1_000;

/// What a verdict may take in a revision's record: a page of records is read at once, of up to a thousand revisions.
const VERDICT_BYTES_MAX: u64 = 40_000;

/// What a channel or a grant takes beside its names.
const ENTRY_OVERHEAD: usize = 8;

impl Verdict {
    /// What two rules say together: all channels and grants of both, and the earlier end.
    pub(crate) fn and(mut self, other: Verdict) -> Verdict {
        self.channels.extend(other.channels);
        self.grants.extend(other.grants);
        self.expires_at_ms = self.expires_at_ms.into_iter().chain(other.expires_at_ms).min();
        self
    }

    /// Whether it says nothing: of such a revision nothing is stored.
    pub(crate) fn is_empty(&self) -> bool {
        self.channels.is_empty() && self.grants.is_empty() && self.expires_at_ms.is_none()
    }

    /// What it takes in a revision's record at most.
    pub(crate) fn bytes(&self) -> u64 {
        let channels = self.channels.iter().map(|channel| channel.len() + ENTRY_OVERHEAD);
        let grants = self.grants.iter().map(|grant| grant.to.len() + grant.channel.len() + 2 * ENTRY_OVERHEAD);
        let end = self.expires_at_ms.map_or(0, |_| 2 * ENTRY_OVERHEAD);
        (channels.chain(grants).sum::<usize>() + end) as u64
    }

    /// Whether it can be stored.
    pub(crate) fn check(self) -> Result<Verdict, Refusal> {
        let (entries, bytes) = (self.channels.len() + self.grants.len(), self.bytes());
        if entries > ENTRIES_MAX || bytes > VERDICT_BYTES_MAX {
            return Err(Refusal::Forbidden(format!(
                "the revision has {entries} channels and grants of {bytes} bytes; {ENTRIES_MAX} of {VERDICT_BYTES_MAX} are allowed"
            )));
        }
        Ok(self)
    }

    pub(crate) fn encode(&self) -> Option<proto::Verdict> {
        let grant = |grant: &Grant| proto::Grant { to: grant.to.clone(), channel: grant.channel.clone() };
        (!self.is_empty()).then(|| proto::Verdict {
            channels: self.channels.iter().cloned().collect(),
            grants: self.grants.iter().map(grant).collect(),
            expires_at_ms: self.expires_at_ms.map_or(0, |at| at.max(1)),
        })
    }

    pub(crate) fn decode(stored: Option<proto::Verdict>) -> Verdict {
        let Some(stored) = stored else { return Verdict::default() };
        let grant = |grant: proto::Grant| Grant { to: grant.to, channel: grant.channel };
        Verdict {
            channels: stored.channels.into_iter().collect(),
            grants: stored.grants.into_iter().map(grant).collect(),
            expires_at_ms: Some(stored.expires_at_ms).filter(|at| *at > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    fn verdict(entries: usize, name_bytes: usize) -> Verdict {
        let name = |number: usize| format!("{number:0name_bytes$}");
        let grant = |number| Grant { to: name(number), channel: name(number) };
        Verdict {
            channels: (0..entries).map(name).collect(),
            grants: (0..entries).map(grant).collect(),
            expires_at_ms: Some(u64::MAX),
        }
    }

    #[test]
    fn what_is_stored_is_read() {
        for (entries, name_bytes) in [(0, 0), (1, 5), (300, 30)] {
            let said = verdict(entries, name_bytes);
            let stored = said.encode().unwrap();
            assert!(stored.encoded_len() as u64 <= said.bytes(), "{entries} of {name_bytes} bytes");
            assert_eq!(Verdict::decode(Some(stored)), said);
        }
        assert_eq!((Verdict::default().encode(), Verdict::decode(None)), (None, Verdict::default()));
        // What ends with the epoch has an end.
        let ended = Verdict { expires_at_ms: Some(0), ..Verdict::default() };
        assert_eq!(Verdict::decode(ended.encode()).expires_at_ms, Some(1));
    }

    #[test]
    fn what_is_too_large_is_refused() {
        assert!(verdict(500, 5).check().is_ok());
        assert!(matches!(verdict(501, 5).check(), Err(Refusal::Forbidden(reason)) if reason.contains("1002 channels")));
        assert!(verdict(100, 120).check().is_ok());
        assert!(verdict(100, 130).check().is_err());
    }
}
