//! By-seq: the documents in the order of their last changes.

use std::collections::HashSet;

use flatbed_databases::instance::Instance;
use flatbed_revtree::{RevId, rank};
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::BucketKeys;
use flatbed_store::proto;
use flatbed_store::records::{Info, revision, revision_message};
use flatbed_store::seq::Seq;
use flatbed_store::transaction::{Quiet, Transaction};
use foundationdb::options::MutationType;
use prost::Message;

use crate::index::channels::{ChannelDepartures, RoutingChange};
use crate::index::maintainers::{Change, IndexContext, IndexMaintainer, PendingWork, PurgedDocument, is_of_document};
use crate::index::selector::selecting::{SelectorUpdates, entry_of_document};

/// A by-seq entry names up to this many leaves of a document; feed readers look up the leaves of other documents.
const LEAVES_IN_ENTRY_MAX: usize = 8;

/// Maintains exactly one entry per document, and one in each selector index that matches it; `last_seq` for watches;
/// and the mark that the database has changed.
pub struct BySeq {
    greatest_user_version: Option<u16>,
    selecting: SelectorUpdates,
}

impl BySeq {
    pub fn new(instance: &Instance) -> BySeq {
        BySeq { greatest_user_version: None, selecting: SelectorUpdates::of(instance) }
    }

    fn leave(&self, within: &IndexContext<'_>, old: &Info) -> Result<()> {
        let IndexContext { trx, instance, .. } = *within;
        let (quiet, seq) = (Quiet(trx), Seq::new(instance.incarnation(), old.stamp));
        quiet.clear(&entry_of(instance, old)?)?;
        // It may not have been there: only the old body would tell.
        self.selecting.numbers().try_for_each(|number| quiet.clear(&instance.keys.index_change(number, &seq)))
    }

    /// Writes the entries of a document's new state. `selected`: the numbers of the selector indexes that match it.
    fn enter(&mut self, within: &IndexContext<'_>, change: &Change<'_>, selected: Vec<u64>) -> Result<()> {
        let IndexContext { trx, instance, .. } = *within;
        let (quiet, new) = (Quiet(trx), change.new);
        let leaves = match change.leaves.len() {
            2..=LEAVES_IN_ENTRY_MAX => {
                let mut others: Vec<_> = change.leaves.iter().filter(|(_, rev)| *rev != new.winner).collect();
                others.sort_by(|a, b| rank(b.0, &b.1).cmp(&rank(a.0, &a.1)));
                others.into_iter().map(|(_, rev)| revision_message(rev)).collect()
            }
            _ => Vec::new(),
        };
        let entry = proto::SequenceEntry {
            document_id: change.id.to_owned(),
            winner: Some(revision_message(&new.winner)),
            deleted: new.deleted,
            leaf_count: new.leaf_count,
            leaves,
            channels: new.routed.channels.clone(),
            left: change.rerouted.and_then(RoutingChange::left),
            before: match (change.old, change.rerouted) {
                (Some(old), Some(rerouted)) if rerouted.has_left_before(&new.routed) => old.stamp.to_vec(),
                _ => Vec::new(),
            },
            expires_at_ms: new.ends_at_ms(),
            selected,
        };
        let (incarnation, epoch, user_version) = (instance.incarnation(), instance.epoch(), change.user_version);
        for number in &entry.selected {
            let key = instance.keys.index_change_stamped(*number, incarnation, epoch, user_version);
            quiet.atomic(&key, &entry_of_document(change.id, new), MutationType::SetVersionstampedKey)?;
        }
        let key = instance.buckets.own().by_seq_stamped(incarnation, epoch, user_version);
        quiet.atomic(&key, &entry.encode_to_vec(), MutationType::SetVersionstampedKey)?;
        self.greatest_user_version = self.greatest_user_version.max(Some(user_version));
        Ok(())
    }
}

impl IndexMaintainer for BySeq {
    fn begin(&mut self, within: &IndexContext<'_>, _: &str) {
        self.selecting.begin(within);
    }

    fn document<'a>(&'a mut self, within: &'a IndexContext<'a>, change: &'a Change<'a>) -> Result<PendingWork<'a>> {
        if let Some(old) = change.old {
            self.leave(within, old)?;
        }
        if self.selecting.is_empty() {
            self.enter(within, change, Vec::new())?;
            return Ok(None);
        }
        Ok(Some(Box::pin(async move {
            let selected = self.selecting.selected(within, change).await?;
            self.enter(within, change, selected)
        })))
    }

    fn purged<'a>(
        &'a mut self,
        within: &'a IndexContext<'a>,
        purged: &'a PurgedDocument<'a>,
    ) -> Result<PendingWork<'a>> {
        self.leave(within, purged.old)?;
        self.greatest_user_version = self.greatest_user_version.max(Some(purged.user_version));
        Ok(None)
    }

    fn finish(&mut self, within: &IndexContext<'_>) -> Result<()> {
        let IndexContext { trx, instance, .. } = *within;
        let Some(last) = self.greatest_user_version else { return Ok(()) };
        instance.touch(trx, last)
    }
}

pub fn entry_of(instance: &Instance, info: &Info) -> Result<Vec<u8>> {
    let bucket = instance.buckets.of(info.bucket);
    let bucket = bucket.ok_or_else(|| Error::Corrupt(format!("a document stands in bucket {}", info.bucket)))?;
    Ok(bucket.by_seq(&Seq::new(instance.incarnation(), info.stamp)))
}

pub async fn check_document(
    trx: &Transaction,
    instance: &Instance,
    id: &str,
    info: &Info,
    leaves: &HashSet<RevId>,
    left: &ChannelDepartures,
) -> Result<Option<String>> {
    let seq = Seq::new(instance.incarnation(), info.stamp);
    let Ok(key) = entry_of(instance, info) else {
        return Ok(Some(format!("its by-seq entry at {seq} should be in bucket {}", info.bucket)));
    };
    let entry = trx.get(&key, true).await?;
    Ok(match entry.as_deref().map(proto::SequenceEntry::decode) {
        Some(Ok(entry))
            if entry.document_id == id
                && entry.deleted == info.deleted
                && entry.leaf_count == info.leaf_count
                && has_leaves(&entry, leaves)
                && entry.channels == info.routed.channels
                && entry.expires_at_ms == info.ends_at_ms()
                && revision(entry.winner.as_ref()).is_ok_and(|rev| rev == info.winner) =>
        {
            left.compare(info, &entry).map(|wrong| format!("its by-seq entry at {seq} {wrong}"))
        }
        Some(_) => Some(format!("its by-seq entry at {seq} is not its own")),
        None => Some(format!("it has no by-seq entry at {seq}")),
    })
}

fn has_leaves(entry: &proto::SequenceEntry, leaves: &HashSet<RevId>) -> bool {
    let named: Result<HashSet<RevId>> =
        entry.winner.iter().chain(&entry.leaves).map(|leaf| revision(Some(leaf))).collect();
    let names_all = (2..=LEAVES_IN_ENTRY_MAX).contains(&leaves.len());
    if names_all { named.is_ok_and(|named| named == *leaves) } else { entry.leaves.is_empty() }
}

/// Checks that an entry is at its document's sequence, in the bucket that its document names.
pub async fn check_entry(
    trx: &Transaction,
    instance: &Instance,
    bucket: &BucketKeys,
    key: &[u8],
    value: &[u8],
) -> Result<Option<String>> {
    let (seq, id) = match (bucket.by_seq_parse(key), proto::SequenceEntry::decode(value)) {
        (Ok(seq), Ok(entry)) => (seq, entry.document_id),
        _ => return Ok(Some("cannot be read".into())),
    };
    let is_own = |info: &Info| {
        seq.incarnation() == instance.incarnation() && entry_of(instance, info).is_ok_and(|own| own == key)
    };
    is_of_document(trx, instance, &id, is_own).await
}
