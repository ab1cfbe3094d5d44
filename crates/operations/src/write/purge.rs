//! Purge removes leaves without a trace.
//!
//! A document may exceed a transaction. First the data that only purged leaves have below them (bodies, records and
//! attachment lists of inner revisions) is dropped in as many transactions as it takes, as in a compaction. Then the
//! leaves go in one transaction, if they fit. Otherwise each transaction takes the worst leaves as a purge of their
//! own, so the winner goes with the last one. Readers see the document with all of its leaves, with fewer, or not at
//! all. If the process dies in between, the client's retry purges the rest.

use std::borrow::Cow;
use std::collections::HashSet;

use async_recursion::async_recursion as boxed;
use flatbed_databases::actor::Actor;
use flatbed_databases::document::attachments;
use flatbed_databases::document::body::{BODY_BYTES_MAX, Rows, begin_read};
use flatbed_databases::document::release;
use flatbed_databases::document::tree::{
    DroppedSizes, Leaves, WholeTree, decode_records, drop_revision, info, revision_bytes,
};
use flatbed_databases::handles::WriteHandle;
use flatbed_databases::instance::Instance;
use flatbed_databases::limits::Limit;
use flatbed_databases::server::Inner;
use flatbed_kit::CleanupBudget;
use flatbed_revtree::{DocumentId, RevId, Tree};
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::{Counter, DocumentKeys, KeyRange};
use flatbed_store::once::{Once, random_id};
use flatbed_store::proto;
use flatbed_store::records::{Info, RevisionRecord, revision_message};
use flatbed_store::transaction::{self, Attempt, NOT_COMMITTED, Operation, Quiet, Transaction};
use foundationdb::KeySelector;
use foundationdb::options::{ConflictRangeType, MutationType};
use prost::Message;

use crate::index::channels::{self, OldRouting};
use crate::index::compiled::compile_within;
use crate::index::groups::groups_of;
use crate::index::maintainers::{Change, IndexContext, Maintainers, PurgedDocument};
use crate::index::prepare::Preparations;
use crate::write::winner::{self, Bodies, BodyFacts};

/// Bytes of writes in one transaction, beside the body of a promoted leaf.
const PURGE_BYTES_MAX: u64 = 600_000;

/// Approximate bytes of a document's records that one transaction reads.
const RECORDS_BYTES_MAX: u64 = 1_000_000;

/// Byte limit of a record of a purge, which is the value of one key.
const RECORD_BYTES_MAX: usize = 90_000;

/// Leaves whose records are requested at once.
const LEAVES_AT_ONCE: usize = 100;

/// Retries of a purge of a document under continuous edits.
const EDITS_MAX: usize = 100;

/// Performs `Database::purge` of the layer.
#[boxed]
pub async fn purge(database: &WriteHandle, id: &str, revs: &[RevId]) -> Result<Vec<RevId>> {
    let (inner, name) = (&*database.inner, &*database.name);
    let (mut purged, mut from): (HashSet<RevId>, Option<PurgePosition>) = (HashSet::new(), None);
    let (mut edits, mut released) = (0, false);
    loop {
        let mut step = Purge::new(database, id, revs, from.clone())?;
        let done = transaction::write(&inner.db, &inner.metrics, &mut step).await?;
        released |= done.released;
        purged.extend(done.purged);
        let Some(next) = done.from else { break };
        if let Some(from) = &from
            && !next.stamp.is_empty()
            && from.stamp != next.stamp
        {
            edits += 1;
            if edits == EDITS_MAX {
                return Err(Error::Storage(foundationdb::FdbError::from_code(NOT_COMMITTED)));
            }
        }
        from = Some(next).filter(|next| !next.stamp.is_empty());
    }
    if released {
        let instance = crate::write::batch::instance_of(inner, name).await?;
        match release::drain(inner, &instance, Some(id)).await {
            // The database was deleted, and the attachments with it.
            Ok(_) | Err(Error::DatabaseNotFound) => {}
            // The purge is done; the sweeper frees the attachments.
            Err(error) => tracing::warn!(database = name, %error, "the sweeper will free the attachments of a purge"),
        }
    }
    Ok(revs.iter().filter(|rev| purged.contains(rev)).cloned().collect())
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurgePosition {
    /// The stamp of the document's last edit when the purge began with its records; empty: begin with the first record.
    stamp: Vec<u8>,
    /// The first record that was not examined.
    key: Vec<u8>,
}

/// The result of one transaction of a purge.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PurgeStep {
    /// The purged leaves.
    pub purged: Vec<RevId>,
    /// True if attachment lists were released, and their data must be freed.
    released: bool,
    /// The position, if there is more to do.
    pub from: Option<PurgePosition>,
}

pub struct Purge<'a> {
    inner: &'a Inner,
    name: &'a str,
    actor: &'a Actor,
    id: &'a str,
    revs: &'a [RevId],
    from: Option<PurgePosition>,
    once: Once,
    /// The result of each attempt that wrote something.
    attempted: Vec<PurgeStep>,
    preparations: Preparations,
}

impl<'a> Purge<'a> {
    pub fn new(
        database: &'a WriteHandle,
        id: &'a str,
        revs: &'a [RevId],
        from: Option<PurgePosition>,
    ) -> Result<Purge<'a>> {
        let (attempted, preparations) = Default::default();
        let (inner, name, actor) = (&*database.inner, &*database.name, database.actor());
        Ok(Purge { inner, name, actor, id, revs, from, once: inner.once()?, attempted, preparations })
    }
}

impl Operation for Purge<'_> {
    type Output = PurgeStep;

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<PurgeStep> {
        self.preparations.make_up(self.inner).await?;
        let (instance, writer) = self.inner.resolve_for(trx, self.name, self.actor).await?;
        if !self.preparations.are_current(&instance) {
            self.preparations = Preparations::of(&instance);
        }
        if let Some(number) = self.once.happened(trx, attempt).await? {
            return Ok(self.attempted.get(number as usize).cloned().unwrap_or_default());
        }
        writer.admitted(trx, &instance).await?;
        let keys = instance.keys.document(self.id);
        let Some(old) = info(trx, &keys, false).await? else { return Ok(PurgeStep::default()) };
        let leaves = Leaves::read(trx, &keys).await?;
        // If no leaf stays the tree is not needed, and it may be too large to read.
        let whole = match leaves.0.iter().all(|leaf| self.revs.contains(&leaf.rev)) {
            true => WholeTree::of_leaves(leaves),
            false => WholeTree::read(trx, &keys, leaves).await?,
        };
        let mut wanted: Vec<&RevId> = self.revs.iter().filter(|rev| whole.tree.branch(rev).is_some()).collect();
        wanted.sort_unstable();
        wanted.dedup();
        if wanted.is_empty() {
            return Ok(PurgeStep::default());
        }
        let step = self.step(trx, &instance, &keys, &old, whole, &wanted).await?;
        self.once.mark(trx);
        self.attempted.push(step.clone());
        Ok(step)
    }
}

impl Purge<'_> {
    async fn step(
        &self,
        trx: &Transaction,
        instance: &Instance,
        keys: &DocumentKeys,
        old: &Info,
        whole: WholeTree,
        wanted: &[&RevId],
    ) -> Result<PurgeStep> {
        let mut after = whole.tree.clone();
        wanted.iter().for_each(|rev| {
            after.remove(rev);
        });
        let room = CleanupBudget::new(PURGE_BYTES_MAX);
        let (mut dropped, mut listed) = (DroppedSizes::default(), Vec::new());
        // The data that only purged leaves have below them.
        let mut range = keys.revisions();
        if let Some(from) = self.from.as_ref().filter(|from| from.stamp == old.stamp) {
            range.begin.clone_from(&from.key);
        }
        let (pages, is_whole) = begin_read(trx, range).read_up_to(trx, RECORDS_BYTES_MAX).await?;
        let mut next = None;
        {
            let kept = after.revisions();
            for (rev, record) in decode_records(keys, &pages)? {
                if kept.contains(&rev) || whole.tree.branch(&rev).is_some() {
                    continue;
                }
                if room.is_empty() {
                    next = Some(keys.revision(&rev));
                    break;
                }
                drop_revision(trx, instance, keys, &rev, &record, &room, &mut listed, &mut dropped).await?;
                Quiet(trx).clear(&keys.revision(&rev))?;
            }
        }
        if next.is_none() && !is_whole {
            next = pages.iter().rev().find_map(|page| page.last()).map(|last| [last.key(), &[0]].concat());
        }
        dropped.superseded_bytes = dropped.body_bytes;
        if let Some(key) = next {
            return self.prepared(trx, instance, keys, old, dropped, &listed, &room, key).await;
        }
        // Worst first: the winner goes with the last.
        let mut leaves: Vec<RevId> = Vec::with_capacity(wanted.len());
        for branch in whole.tree.branches().into_iter().rev() {
            if wanted.binary_search(&&branch.leaf).is_ok() {
                leaves.push(branch.leaf.clone());
            }
        }
        let within = IndexContext { inner: self.inner, trx, instance };
        compile_within(&within).await?;
        let mut maintainers = Maintainers::of(instance, &self.preparations);
        // Before it is dropped.
        let bodies = Bodies { trx, instance, keys };
        let old_blob = if maintainers.want_old_body() { bodies.blob_rows(old).await? } else { None };
        let before = channels::before(&within, keys, Some(old)).await?;
        let mut purged: Vec<RevId> = Vec::new();
        for some in leaves.chunks(LEAVES_AT_ONCE) {
            if !purged.is_empty() && room.is_empty() {
                break;
            }
            let records: Vec<_> = some.iter().map(|rev| trx.get(&keys.revision(rev), true)).collect();
            for (rev, record) in some.iter().zip(records) {
                if !purged.is_empty() && room.is_empty() {
                    break;
                }
                let record = record.await?.ok_or_else(|| Error::Corrupt(format!("leaf {rev} has no record")))?;
                let record = RevisionRecord::decode(&record)?;
                room.take(revision_bytes(keys.revision(rev).len()) / 2 + rev.hash_bytes().len() as u64);
                drop_revision(trx, instance, keys, rev, &record, &room, &mut listed, &mut dropped).await?;
                purged.push(rev.clone());
            }
        }
        let is_last = purged.len() == leaves.len();
        let forgotten = self.beyond_limit(trx, instance).await?;
        dropped.attachment_bytes = attachments::drop_lists(trx, instance, keys, self.id, &listed, &room).await?;
        maintainers.begin(&within, self.id);
        if is_last && after.is_empty() {
            let old_rows = match old_blob {
                None if maintainers.want_old_body() && !old.deleted => {
                    let rows = begin_read(trx, keys.body_rows()).finish(trx, BODY_BYTES_MAX).await?;
                    Some(Rows::new(rows, keys.body().len()))
                }
                read => read,
            };
            // With a conflict range on the info: a concurrent edit must see that the document was removed.
            let all = keys.whole();
            trx.clear_range(&all.begin, &all.end);
            let rerouted = before.map(OldRouting::goes);
            let gone = PurgedDocument {
                id: self.id,
                old,
                old_rows: old_rows.as_ref(),
                rerouted: rerouted.as_ref(),
                stored_bytes_delta: -(dropped.body_bytes + dropped.attachment_bytes),
                superseded_bytes_delta: -dropped.superseded_bytes,
                user_version: 0,
            };
            maintainers.purged(&within, &gone).await?;
        } else {
            let mut after = whole.tree.clone();
            purged.iter().for_each(|rev| {
                after.remove(rev);
            });
            purged.iter().try_for_each(|rev| Quiet(trx).clear(&keys.revision(rev)))?;
            let before = (old, old_blob, before);
            self.leaves(&within, keys, before, whole, &after, &dropped, &mut maintainers).await?;
        }
        self.preparations.check()?;
        let changes_rules = DocumentId::of(self.id).is_design() && instance.record.rules > 0;
        maintainers.finish(&within, changes_rules).await?;
        self.note(trx, instance, &purged, forgotten.as_ref())?;
        // Begins with the first record, since the stamp of this commit is not known yet.
        let from = (!is_last).then(|| PurgePosition { stamp: Vec::new(), key: Vec::new() });
        Ok(PurgeStep { purged, released: !listed.is_empty(), from })
    }

    /// Ends a transaction that has dropped data below the leaves.
    #[expect(clippy::too_many_arguments, reason = "what the transaction has gathered")]
    async fn prepared(
        &self,
        trx: &Transaction,
        instance: &Instance,
        keys: &DocumentKeys,
        old: &Info,
        dropped: DroppedSizes,
        listed: &[(RevId, foundationdb::future::FdbSlice)],
        room: &CleanupBudget,
        key: Vec<u8>,
    ) -> Result<PurgeStep> {
        let attached = attachments::drop_lists(trx, instance, keys, self.id, listed, room).await?;
        let deltas = [
            (Counter::StoredBytes, -dropped.body_bytes - attached),
            (Counter::SupersededBytes, -dropped.superseded_bytes),
        ];
        for (counter, delta) in deltas.into_iter().filter(|(_, delta)| *delta != 0) {
            instance.buckets.add(trx, counter, delta)?;
        }
        // As in a compaction, a concurrent one must not subtract the same bytes from the counters.
        let info_key = keys.info();
        let end = [&info_key[..], &[0]].concat();
        trx.add_conflict_range(&info_key, &end, ConflictRangeType::Write)?;
        let from = Some(PurgePosition { stamp: old.stamp.to_vec(), key });
        Ok(PurgeStep { purged: Vec::new(), released: !listed.is_empty(), from })
    }

    /// Writes the document without the purged leaves; `dropped` sums up their data.
    #[expect(clippy::too_many_arguments, reason = "what the transaction has gathered")]
    async fn leaves(
        &self,
        within: &IndexContext<'_>,
        keys: &DocumentKeys,
        (old, old_blob, before): (&Info, Option<Rows>, Option<OldRouting>),
        whole: WholeTree,
        after: &Tree,
        dropped: &DroppedSizes,
        maintainers: &mut Maintainers,
    ) -> Result<()> {
        let IndexContext { trx, instance, .. } = *within;
        let rows = begin_read(trx, keys.body_rows()).finish(trx, BODY_BYTES_MAX).await?;
        let rows = Rows::new(rows, keys.body().len());
        whole.replacement(keys, after, instance.revs_limit())?.write(trx)?;
        let leaves: Vec<_> = after.branches().into_iter().map(|branch| (branch.deleted, branch.leaf.clone())).collect();
        let bodies = Bodies { trx, instance, keys };
        let (_, best) = winner::best(&leaves)?;
        let described = if *best == old.winner {
            BodyFacts::kept(old)
        } else {
            bodies.clear_latest()?;
            bodies.promote(best).await?
        };
        let mut new = winner::info(&leaves, described, 0, instance)?;
        let rerouted = match before {
            Some(before) => Some(before.change_routing(within, self.id, keys, Some(old), &mut new, None).await?),
            None => None,
        };
        // With a conflict range, so that a concurrent edit retries.
        trx.atomic_op(&keys.info(), &new.encode_stamped(), MutationType::SetVersionstampedValue);
        let change = Change {
            id: self.id,
            old: Some(old),
            keys,
            old_rows: old_blob.as_ref().or(Some(&rows)),
            new: &new,
            brought: None,
            judged: None,
            rerouted: rerouted.as_ref(),
            leaves: &leaves,
            stored_bytes_delta: -(dropped.body_bytes + dropped.attachment_bytes),
            superseded_bytes_delta: -dropped.superseded_bytes,
            user_version: 0,
        };
        maintainers.document(within, &change).await
    }

    /// The records to remove when another purge is added: those beyond the limit. While groups of views may need them,
    /// only the oldest of those, and only if the log takes too many bytes. Must be called before the first write with a
    /// versionstamp in its key.
    async fn beyond_limit(&self, trx: &Transaction, instance: &Instance) -> Result<Option<KeyRange>> {
        let limit = instance.purged_infos_limit();
        if limit > PURGES_COUNTED_MAX {
            return Ok(None);
        }
        let range = instance.keys.purges();
        let is_followed = groups_of(&instance.record).next().is_some();
        if is_followed {
            let [lot, ..] = random_id()?;
            if !lot.is_multiple_of(SIZED_ONE_IN.get()) {
                return Ok(None);
            }
        }
        let bytes = is_followed.then(|| trx.get_estimated_range_size_bytes(&range.begin, &range.end));
        // The newest record to remove: together with the new one, as many as the limit follow it.
        let offset = 1 - i32::try_from(limit).unwrap_or(i32::MAX);
        let newest = trx.get_key(&KeySelector::new(Cow::Borrowed(&range.end), false, offset), true).await?;
        if *newest < *range.begin {
            return Ok(None);
        }
        let mut end = [&newest[..], &[0]].concat();
        if let Some(bytes) = bytes {
            if bytes.await? <= LOG_BYTES_MAX.get() {
                return Ok(None);
            }
            let behind = KeySelector::new(Cow::Borrowed(&range.begin), false, 1 + FORGOTTEN_AT_ONCE.get());
            end = end.min(trx.get_key(&behind, true).await?.to_vec());
        }
        Ok(Some(KeyRange { begin: range.begin, end }))
    }

    /// Records the purge in as many records as its revisions need, and removes older ones.
    fn note(
        &self,
        trx: &Transaction,
        instance: &Instance,
        purged: &[RevId],
        forgotten: Option<&KeyRange>,
    ) -> Result<()> {
        let quiet = Quiet(trx);
        if let Some(forgotten) = forgotten {
            quiet.clear_range(forgotten)?;
        }
        for (number, revs) in (0..).zip(cut(purged, RECORD_BYTES_MAX - self.id.len())) {
            let revisions = revs.iter().map(revision_message).collect();
            let record = proto::PurgeInfo { document_id: self.id.to_owned(), revisions };
            let key = instance.keys.purge_stamped(instance.epoch(), number);
            quiet.atomic(&key, &record.encode_to_vec(), MutationType::SetVersionstampedKey)?;
        }
        instance.buckets.add(trx, Counter::Purges, 1)
    }
}

/// Splits revisions into runs of at most `bytes_max` bytes each.
pub fn cut(mut revs: &[RevId], bytes_max: usize) -> impl Iterator<Item = &[RevId]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |rev: &&RevId| {
            // The message's overhead and the generation.
            bytes += rev.hash_bytes().len() + 24;
            bytes <= bytes_max
        };
        let count = revs.iter().take_while(fits).count().max(1).min(revs.len());
        let (run, rest) = revs.split_at(count);
        revs = rest;
        (!run.is_empty()).then_some(run)
    })
}

/// Limit of the database above which no record is removed: each purge counts back as far as the limit.
const PURGES_COUNTED_MAX: u64 = 1_000_000;

/// The approximate limit of the log of purges of a database with groups of views, in bytes: some 500,000 purges. Beyond
/// it the oldest records are removed, and groups that lack them are compared with the documents.
const LOG_BYTES_MAX: Limit<i64> = Limit::new(64_000_000, 50_000);

/// Number of records that are then removed at once.
const FORGOTTEN_AT_ONCE: Limit<i32> = Limit::new(1_000, 10);

/// One purge in this many, chosen at random, reads the estimated size of the log of a database with groups.
const SIZED_ONE_IN: Limit<u8> = Limit::new(16, 1);
