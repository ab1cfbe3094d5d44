//! Who reads in a database that has channels, and what they see of its documents.
//!
//! What somebody does not see must be answered as what never was, and after as many answers of the storage. So what decides is read
//! first, and is the same for both: the info of a document, the records of the revisions that are named, and the versions of who asks.
//! Bodies are read of what is seen alone. Where it is not plain then (a revision of which the feed may have said that the
//! document left with it, a leaf beside a winner that is hidden), one read more follows, whether there is anything or not.

use std::sync::Arc;

use flatbed_channels::{ALL, Left, Stamp};
use flatbed_revtree::{DocumentId, RevId};
use futures_util::future::try_join_all;

use crate::asker::Asker;
use crate::channels::holding::Holding;
use crate::document::body::begin_read;
use crate::document::edit::Document;
use crate::error::{Error, Refusal, Result};
use crate::handle::only_for_administrators;
use crate::held::HeldAt;
use crate::instance::Instance;
use crate::layer::Inner;
use crate::read::get::plain;
use crate::store::keys::DocumentKeys;
use crate::store::records::{Info, RevisionRecord};
use crate::store::transaction::Transaction;

/// Who has no more channels than this has those looked up that a document has left, one by one; for others all are gone through.
const CHANNELS_ASKED_MAX: usize = 100;

/// Bytes of these that are gone through, about: what is behind them is as if the feed had not said it.
const LEFT_BYTES_MAX: u64 = 1_000_000;

/// Whether what somebody reads in a database goes through their eyes.
pub(crate) fn is_judged(instance: &Instance, asker: &Asker) -> bool {
    *asker != Asker::All && instance.channels() > 0
}

/// Who may see a part of a database.
pub(crate) struct Viewer {
    pub held: Arc<HeldAt>,
}

/// One of whom it is being found out what they have.
pub(crate) struct Coming<'a> {
    holding: Holding<'a>,
    asker: &'a Asker,
}

impl<'a> Coming<'a> {
    /// Asks for it, beside what the caller asks for.
    pub(crate) fn begin(
        inner: &'a Inner,
        trx: &'a Transaction,
        instance: &'a Instance,
        asker: &'a Asker,
    ) -> Coming<'a> {
        Coming { holding: Holding::begin(inner, trx, instance, asker), asker }
    }

    /// Waits for it.
    ///
    /// # Errors
    /// [`Refusal::Forbidden`], [`Refusal::Unauthorized`]: they are neither a member nor a user of the database.
    pub(crate) async fn viewer(self) -> Result<Viewer> {
        let held = self.holding.held().await?;
        self.asker.admitted(&held)?;
        Ok(Viewer { held })
    }
}

/// Design documents are for administrators, whether there are any or not.
pub(crate) fn check_id(id: &str) -> std::result::Result<(), Refusal> {
    if DocumentId::of(id).is_design() { Err(only_for_administrators()) } else { Ok(()) }
}

/// Whether a revision is seen by who has this.
pub(crate) fn is_seen(held: &HeldAt, record: &RevisionRecord) -> bool {
    let verdict = record.verdict.as_ref();
    held.sees(verdict.into_iter().flat_map(|verdict| verdict.channels.iter().map(String::as_str)))
}

impl Viewer {
    /// Whether they see a revision.
    pub(crate) fn sees(&self, record: &RevisionRecord) -> bool {
        is_seen(&self.held, record)
    }

    /// Whether they have written it.
    pub(crate) fn wrote(&self, record: &RevisionRecord, asker: &Asker) -> bool {
        let writer = record.verdict.as_ref().map_or("", |verdict| verdict.writer.as_str());
        !writer.is_empty() && writer == asker.writer(&self.held)
    }

    /// Whether they see a document's winner; `None`: the info does not name all of its channels.
    fn sees_named(&self, info: &Info) -> Option<bool> {
        if self.held.has_all() {
            return Some(true);
        }
        match &info.routed.channels {
            // It has not been entered in channels: nobody sees it but administrators.
            None => Some(false),
            Some(names) if names.are_elsewhere => None,
            Some(names) => Some(self.held.sees(names.names.iter().map(String::as_str))),
        }
    }

    /// Whether the feed tells whoever sees a document's winner of it now: what came with a channel has no tombstones.
    pub(crate) fn is_told_of(&self, info: &Info, now_ms: u64) -> bool {
        let named = info.routed.channels.iter().filter(|names| !names.are_elsewhere);
        let mut channels = named.flat_map(|names| names.names.iter().map(String::as_str)).chain([ALL]);
        let is_there = !info.deleted && !info.has_ended(now_ms);
        is_there || channels.any(|channel| self.held.since(channel).is_some_and(|since| since <= Stamp(info.stamp)))
    }

    /// Whether they see a document's winner. Waits where it is in more channels than its info names.
    pub(crate) async fn sees_winner(&self, trx: &Transaction, keys: &DocumentKeys, info: &Info) -> Result<bool> {
        match self.sees_named(info) {
            Some(sees) => Ok(sees),
            None => {
                let record = trx.get(&keys.revision(&info.winner), true).await?;
                Ok(record.map(|record| RevisionRecord::decode(&record)).transpose()?.is_some_and(|it| self.sees(&it)))
            }
        }
    }

    /// The same of several, of those that are there.
    pub(crate) async fn see_winners(
        &self,
        trx: &Transaction,
        infos: impl IntoIterator<Item = Option<(&DocumentKeys, &Info)>>,
    ) -> Result<Vec<bool>> {
        let asked = infos.into_iter().map(|found| async move {
            match found {
                Some((keys, info)) => self.sees_winner(trx, keys, info).await,
                None => Ok(false),
            }
        });
        try_join_all(asked).await
    }

    /// The channels that a document has left of which the feed has told them.
    pub(crate) async fn removals(&self, trx: &Transaction, instance: &Instance, id: &str) -> Result<Removals> {
        let decode = |value: &[u8]| Left::decode(value).map_err(|error| Error::Corrupt(error.to_string()));
        let keys = &instance.keys;
        let mut removals = Removals(Vec::new());
        let mut tell = |channel: &str, left: Left| {
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
        let (pages, _) = begin_read(trx, keys.left_of(id)).up_to(trx, LEFT_BYTES_MAX).await?;
        for row in pages.iter().flat_map(|page| page.iter()) {
            tell(&keys.left_channel(row.key())?, decode(row.value())?);
        }
        Ok(removals)
    }
}

/// With which revisions a document has left what somebody sees.
pub(crate) struct Removals(Vec<Left>);

impl Removals {
    /// What is shown of a revision that is not seen, where the document left with it.
    pub(crate) fn shown(&self, id: &str, rev: &RevId) -> Option<Document> {
        let text = rev.to_string();
        let left = self.0.iter().find(|left| left.rev == text)?;
        Some(plain(id, rev.clone(), left.deleted, b"\"_removed\":true".to_vec()))
    }
}
