//! Verdicts: the channels, grants and expiry that the rules give an accepted revision.
//!
//! A verdict is stored with the revision's record, because it cannot be computed again: it depends on the functions and
//! the user at that time, and a builder of an index has neither.

use std::collections::BTreeSet;

use flatbed_channels::{Grant, GrantedItem, Grantee, ROLE_PREFIX, Routing};
use flatbed_store::error::Refusal;
use flatbed_store::proto;

/// The verdict of an accepted edit, for indexes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The channels that the revision is in.
    pub channels: BTreeSet<String>,
    /// The channels that the document grants while this revision is its winner.
    pub grants: BTreeSet<Grant>,
    /// The expiry time in milliseconds of Unix time.
    pub expires_at_ms: Option<u64>,
    /// The user who wrote the revision, by the name in the database's channels. `None` for the guest, administrators
    /// and the server.
    pub writer: Option<String>,
}

impl From<Routing> for Verdict {
    /// Converts the result of a sync function; a second of Unix time becomes its first millisecond.
    fn from(Routing { channels, grants, expires_at }: Routing) -> Verdict {
        let expires_at_ms = expires_at.map(|second| second.saturating_mul(1_000));
        Verdict { channels, grants, expires_at_ms, writer: None }
    }
}

/// Limit of a revision's channels and grants, each of which is a row of some index.
const ENTRIES_MAX: usize = 1_000;

/// Byte limit of a verdict in a revision's record: a page of up to a thousand records is read at once.
const VERDICT_BYTES_MAX: u64 = 40_000;

/// Bytes of a channel or a grant beside its names.
const ENTRY_OVERHEAD: usize = 8;

impl Verdict {
    /// Combines the verdicts of two rules: all channels and grants of both, and the earlier expiry.
    pub fn and(mut self, other: Verdict) -> Verdict {
        self.channels.extend(other.channels);
        self.grants.extend(other.grants);
        self.writer = self.writer.or(other.writer);
        self.expires_at_ms = self.expires_at_ms.into_iter().chain(other.expires_at_ms).min();
        self
    }

    /// Returns whether it is empty: such a verdict is not stored.
    pub fn is_empty(&self) -> bool {
        self.channels.is_empty() && self.grants.is_empty() && self.expires_at_ms.is_none() && self.writer.is_none()
    }

    /// Returns the most bytes that it takes in a revision's record.
    pub fn bytes(&self) -> u64 {
        let channels = self.channels.iter().map(|channel| channel.len() + ENTRY_OVERHEAD);
        let grants = self.grants.iter().map(grant_bytes);
        let end = self.expires_at_ms.map_or(0, |_| 2 * ENTRY_OVERHEAD);
        let writer = self.writer.as_ref().map_or(0, |writer| writer.len() + ENTRY_OVERHEAD);
        (channels.chain(grants).sum::<usize>() + end + writer) as u64
    }

    /// Checks it against the limits.
    pub fn check(self) -> Result<Verdict, Refusal> {
        let (entries, bytes) = (self.channels.len() + self.grants.len(), self.bytes());
        if entries > ENTRIES_MAX || bytes > VERDICT_BYTES_MAX {
            return Err(Refusal::Forbidden(format!(
                "the revision has {entries} channels and grants of {bytes} bytes; {ENTRIES_MAX} of {VERDICT_BYTES_MAX} are allowed"
            )));
        }
        Ok(self)
    }

    pub fn encode(&self) -> Option<proto::Verdict> {
        (!self.is_empty()).then(|| proto::Verdict {
            channels: self.channels.iter().cloned().collect(),
            grants: self.grants.iter().map(encode_grant).collect(),
            expires_at_ms: self.expires_at_ms.map_or(0, |at| at.max(1)),
            writer: self.writer.clone().unwrap_or_default(),
        })
    }

    pub fn decode(stored: Option<proto::Verdict>) -> Verdict {
        let Some(stored) = stored else { return Verdict::default() };
        Verdict {
            channels: stored.channels.into_iter().collect(),
            grants: stored.grants.into_iter().map(decode_grant).collect(),
            expires_at_ms: Some(stored.expires_at_ms).filter(|at| *at > 0),
            writer: Some(stored.writer).filter(|writer| !writer.is_empty()),
        }
    }
}

/// Encodes a grant. The grantee is a text: user names have no colon, so they differ from prefixed role names.
fn encode_grant(grant: &Grant) -> proto::Grant {
    let to = match &grant.to {
        Grantee::User(name) => name.clone(),
        Grantee::Role(name) => format!("{ROLE_PREFIX}{name}"),
    };
    let (GrantedItem::Channel(what) | GrantedItem::Role(what)) = &grant.what;
    proto::Grant { to, channel: what.clone(), role: matches!(grant.what, GrantedItem::Role(_)) }
}

fn decode_grant(stored: proto::Grant) -> Grant {
    let to = match stored.to.strip_prefix(ROLE_PREFIX) {
        Some(role) => Grantee::Role(role.to_owned()),
        None => Grantee::User(stored.to),
    };
    Grant {
        to,
        what: if stored.role { GrantedItem::Role(stored.channel) } else { GrantedItem::Channel(stored.channel) },
    }
}

fn grant_bytes(grant: &Grant) -> usize {
    let to = match &grant.to {
        Grantee::User(name) => name.len(),
        Grantee::Role(name) => ROLE_PREFIX.len() + name.len(),
    };
    let (GrantedItem::Channel(what) | GrantedItem::Role(what)) = &grant.what;
    to + what.len() + 2 * ENTRY_OVERHEAD
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    fn verdict(entries: usize, name_bytes: usize) -> Verdict {
        let name = |number: usize| format!("{number:0name_bytes$}");
        let grant = |number| Grant {
            to: if number % 2 == 0 { Grantee::User(name(number)) } else { Grantee::Role(name(number)) },
            what: if number % 3 == 0 { GrantedItem::Channel(name(number)) } else { GrantedItem::Role(name(number)) },
        };
        Verdict {
            channels: (0..entries).map(name).collect(),
            grants: (0..entries).map(grant).collect(),
            expires_at_ms: Some(u64::MAX),
            writer: Some(name(7)),
        }
    }

    #[test]
    fn what_is_stored_is_read() {
        for (entries, name_bytes) in [(0, 1), (1, 5), (300, 30)] {
            let said = verdict(entries, name_bytes);
            let stored = said.encode().unwrap();
            assert!(stored.encoded_len() as u64 <= said.bytes(), "{entries} of {name_bytes} bytes");
            assert_eq!(Verdict::decode(Some(stored)), said);
        }
        assert_eq!((Verdict::default().encode(), Verdict::decode(None)), (None, Verdict::default()));
        // An expiry at the epoch is an expiry.
        let ended = Verdict { expires_at_ms: Some(0), ..Verdict::default() };
        assert_eq!(Verdict::decode(ended.encode()).expires_at_ms, Some(1));
    }

    #[test]
    fn what_is_too_large_is_refused() {
        assert!(verdict(500, 5).check().is_ok());
        assert!(matches!(verdict(501, 5).check(), Err(Refusal::Forbidden(reason)) if reason.contains("1002 channels")));
        assert!(verdict(100, 110).check().is_ok());
        assert!(verdict(100, 130).check().is_err());
    }
}
