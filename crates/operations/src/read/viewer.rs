//! The reader of a database with channels, and the documents that they may see.
//!
//! A hidden document must be answered like an absent one, and after as many replies of the storage. So the reads that
//! decide come first, and are the same for both: the document's info, the records of named revisions, and the versions
//! of the principal. Only visible bodies are read. The first reads do not decide if the feed may have reported that
//! the document left with the revision, or if a leaf stands beside a hidden winner. One further read then follows for
//! both.

use std::sync::Arc;

use flatbed_channels::{ALL, ChannelDeparture, Stamp};
use flatbed_databases::asker::ReadPrincipal;
use flatbed_databases::channels::holding::RightsRead;
use flatbed_databases::document::body::begin_read;
use flatbed_databases::document::edit::Document;
use flatbed_databases::handles::only_for_administrators;
use flatbed_databases::held::HeldRights;
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_revtree::{DocumentId, RevId};
use flatbed_store::error::{Error, Refusal, Result};
use flatbed_store::keys::DocumentKeys;
use flatbed_store::records::{Info, RevisionRecord};
use flatbed_store::transaction::Transaction;
use futures_util::future::try_join_all;

use crate::read::get::plain;

/// Channels up to which departures are looked up one by one; for a reader with more, the document's departures are
/// scanned.
const CHANNELS_ASKED_MAX: usize = 100;

/// Approximate bytes of departures to scan: further ones count as not reported by the feed.
const LEFT_BYTES_MAX: u64 = 1_000_000;

/// Returns whether a principal's reads of a database are restricted.
pub fn is_judged(instance: &Instance, asker: &ReadPrincipal) -> bool {
    *asker != ReadPrincipal::All && instance.channels() > 0
}

/// A restricted reader.
pub struct Viewer {
    pub held: Arc<HeldRights>,
}

/// A viewer whose rights are being read.
pub struct PendingViewer<'a> {
    holding: RightsRead<'a>,
    asker: &'a ReadPrincipal,
}

impl<'a> PendingViewer<'a> {
    /// Requests the rights, beside the caller's reads.
    pub fn begin(
        inner: &'a Inner,
        trx: &'a Transaction,
        instance: &'a Instance,
        asker: &'a ReadPrincipal,
    ) -> PendingViewer<'a> {
        PendingViewer { holding: RightsRead::begin(inner, trx, instance, asker), asker }
    }

    /// Waits for the rights.
    ///
    /// # Errors
    /// [`Refusal::Forbidden`], [`Refusal::Unauthorized`]: the principal is neither a member nor a user of the database.
    pub async fn viewer(self) -> Result<Viewer> {
        let held = self.holding.held().await?;
        self.asker.admitted(&held)?;
        Ok(Viewer { held })
    }
}

/// Refuses design documents, which are for administrators, existing or not.
pub fn check_id(id: &str) -> std::result::Result<(), Refusal> {
    if DocumentId::of(id).is_design() { Err(only_for_administrators()) } else { Ok(()) }
}

/// Returns whether the holder of these rights sees a revision.
pub fn is_seen(held: &HeldRights, record: &RevisionRecord) -> bool {
    let verdict = record.verdict.as_ref();
    held.can_see(verdict.into_iter().flat_map(|verdict| verdict.channels.iter().map(String::as_str)))
}

impl Viewer {
    pub fn can_see(&self, record: &RevisionRecord) -> bool {
        is_seen(&self.held, record)
    }

    pub fn has_written(&self, record: &RevisionRecord, asker: &ReadPrincipal) -> bool {
        let writer = record.verdict.as_ref().map_or("", |verdict| verdict.writer.as_str());
        !writer.is_empty() && writer == asker.writer(&self.held)
    }

    /// Returns whether the reader sees a document's winner; `None` if the info does not name all of its channels.
    fn can_see_named(&self, info: &Info) -> Option<bool> {
        if self.held.has_all() {
            return Some(true);
        }
        match &info.routed.channels {
            // It was not routed to channels: only administrators see it.
            None => Some(false),
            Some(names) if names.are_elsewhere => None,
            Some(names) => Some(self.held.can_see(names.names.iter().map(String::as_str))),
        }
    }

    /// Returns whether the feed shows the winner to a reader who sees it: tombstones do not come with a granted
    /// channel.
    pub fn is_reported(&self, info: &Info, now_ms: u64) -> bool {
        let named = info.routed.channels.iter().filter(|names| !names.are_elsewhere);
        let mut channels = named.flat_map(|names| names.names.iter().map(String::as_str)).chain([ALL]);
        let is_there = !info.deleted && !info.has_ended(now_ms);
        is_there || channels.any(|channel| self.held.since(channel).is_some_and(|since| since <= Stamp(info.stamp)))
    }

    /// Returns whether the reader sees a document's winner. Waits if it is in more channels than its info names.
    pub async fn can_see_winner(&self, trx: &Transaction, keys: &DocumentKeys, info: &Info) -> Result<bool> {
        match self.can_see_named(info) {
            Some(sees) => Ok(sees),
            None => {
                let record = trx.get(&keys.revision(&info.winner), true).await?;
                Ok(record
                    .map(|record| RevisionRecord::decode(&record))
                    .transpose()?
                    .is_some_and(|it| self.can_see(&it)))
            }
        }
    }

    /// As `can_see_winner`, for several documents that exist.
    pub async fn see_winners(
        &self,
        trx: &Transaction,
        infos: impl IntoIterator<Item = Option<(&DocumentKeys, &Info)>>,
    ) -> Result<Vec<bool>> {
        let asked = infos.into_iter().map(|found| async move {
            match found {
                Some((keys, info)) => self.can_see_winner(trx, keys, info).await,
                None => Ok(false),
            }
        });
        try_join_all(asked).await
    }

    /// Returns the reader's departures of a document that the feed has reported.
    pub async fn removals(&self, trx: &Transaction, instance: &Instance, id: &str) -> Result<Removals> {
        let decode = |value: &[u8]| ChannelDeparture::decode(value).map_err(|error| Error::Corrupt(error.to_string()));
        let keys = &instance.keys;
        let mut removals = Removals(Vec::new());
        let mut tell = |channel: &str, left: ChannelDeparture| {
            if self.held.since(channel).is_some_and(|since| left.seq > since) {
                removals.0.push(left);
            }
        };
        if self.held.channels().count() <= CHANNELS_ASKED_MAX {
            let reads = self.held.channels().map(|(channel, _)| (channel, trx.get(&keys.left(id, channel), true)));
            for (channel, read) in reads.collect::<Vec<_>>() {
                if let Some(value) = read.await? {
                    tell(channel, decode(&value)?);
                }
            }
            return Ok(removals);
        }
        let (pages, _) = begin_read(trx, keys.left_of(id)).read_up_to(trx, LEFT_BYTES_MAX).await?;
        for row in pages.iter().flat_map(|page| page.iter()) {
            tell(&keys.left_channel(row.key())?, decode(row.value())?);
        }
        Ok(removals)
    }
}

/// The revisions with which a document left the reader's channels.
pub struct Removals(Vec<ChannelDeparture>);

impl Removals {
    /// Returns the document that stands for an invisible revision with which the document left.
    pub fn shown(&self, id: &str, rev: &RevId) -> Option<Document> {
        let text = rev.to_string();
        let left = self.0.iter().find(|left| left.rev == text)?;
        Some(plain(id, rev.clone(), left.deleted, b"\"_removed\":true".to_vec()))
    }
}
