//! Writes the verdicts of some documents, and the position behind them, in one transaction.

use flatbed_databases::document::body::{BODY_BYTES_MAX, Rows, begin_read};
use flatbed_databases::document::tree::info;
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_operations::index::channels;
use flatbed_operations::index::compiled::compile_within;
use flatbed_operations::index::maintainers::{Change, IndexContext, Maintainers};
use flatbed_operations::index::prepare::Preparations;
use flatbed_operations::write::winner::Bodies;
use flatbed_store::error::Result;
use flatbed_store::proto;
use flatbed_store::records::{Info, RevisionRecord};
use flatbed_store::seq::own_stamp;
use flatbed_store::transaction::{Attempt, Operation, Quiet, Transaction};
use foundationdb::options::{ConflictRangeType, MutationType};
use futures_util::future::try_join_all;
use prost::Message;

use crate::resync::judge::Answers;
use crate::resync::page::ScannedDocument;
use crate::resync::state::state_of;

/// The approximate bytes that a transaction writes. It ends behind the document that exceeds them.
const WRITTEN_BYTES_MAX: u64 = 400_000;

/// The documents that a transaction may write, whose infos it reads.
const WRITTEN_DOCUMENTS_MAX: usize = 200;

/// The approximate bytes of a document's other records.
const ROW_BYTES: u64 = 400;

pub(super) enum StepOutcome {
    /// The range is stored with this position.
    On(proto::ResyncRange),
    /// The first document has been edited since it was judged.
    Edited,
    /// The range belongs to another process, the function has changed, or the resync was stopped.
    Elsewhere,
}

/// Returns whether the judgement of a document changes what is stored of it.
pub(super) fn is_written(document: &ScannedDocument, answers: &Answers) -> bool {
    // Documents of a time without channels are entered.
    !answers.changed.is_empty() || document.info.routed.channels.is_none()
}

/// See the module.
pub(super) struct Step<'a> {
    pub(super) inner: &'a Inner,
    pub(super) name: &'a str,
    pub(super) number: u64,
    pub(super) first: &'a str,
    /// The range as it is stored.
    pub(super) stored: &'a proto::ResyncRange,
    /// The range as it is to be stored, without these documents.
    pub(super) next: proto::ResyncRange,
    pub(super) documents: &'a [ScannedDocument],
    pub(super) answers: &'a [Answers],
    pub(super) preparations: Preparations,
    /// True to skip the first document if it was edited again.
    pub(super) gives_up: bool,
}

impl Operation for Step<'_> {
    type Output = StepOutcome;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<StepOutcome> {
        self.preparations.make_up(self.inner).await?;
        let instance = self.inner.resolve_for_write(trx, self.name).await?;
        if !self.preparations.are_current(&instance) {
            self.preparations = Preparations::of(&instance);
        }
        let key = instance.keys.resync_range(self.first);
        let (range, state) = (trx.get(&key, false), state_of(trx, &instance, false));
        let (range, state) = (range.await?, state.await?);
        let range = range.map(|bytes| proto::ResyncRange::decode(&*bytes)).transpose()?;
        match range {
            Some(range) if range == *self.stored => {}
            // An earlier attempt has committed.
            Some(range)
                if range.run == self.next.run && (&range.owner, range.beats) == (&self.next.owner, self.next.beats) =>
            {
                return Ok(StepOutcome::On(range));
            }
            _ => return Ok(StepOutcome::Elsewhere),
        }
        let is_current = state.is_some_and(|state| state.run == self.next.run && !state.stopped);
        if !is_current || instance.channels() != self.number {
            return Ok(StepOutcome::Elsewhere);
        }
        let mut next = self.next.clone();
        let within = IndexContext { inner: self.inner, trx, instance: &instance };
        compile_within(&within).await?;
        let mut maintainers = Maintainers::of(&instance, &self.preparations);
        let mut left = WRITTEN_DOCUMENTS_MAX;
        let judged = self.documents.iter().zip(self.answers).map(|(found, answers)| {
            let is_written = is_written(found, answers);
            (found, answers, is_written)
        });
        let judged = judged.take_while(|(.., is_written)| {
            let has_room = left > 0 || !is_written;
            left = left.saturating_sub(usize::from(*is_written));
            has_room
        });
        let judged: Vec<_> = judged.collect();
        let infos = judged.iter().map(async |(found, _, is_written)| match is_written {
            true => info(trx, &instance.keys.document(&found.id), true).await,
            false => Ok(None),
        });
        let infos = try_join_all(infos).await?;
        let (mut written, mut user_version, mut passed) = (0, 0, 0);
        for ((found, answers, is_written), now) in judged.into_iter().zip(infos) {
            if written > WRITTEN_BYTES_MAX {
                break;
            }
            if is_written {
                let is_same = now.as_ref().is_some_and(|now| now.stamp == found.info.stamp);
                // A document with one leaf that was edited since was judged by the function then.
                let is_judged = now.as_ref().is_none_or(|now| now.leaf_count == 1) && found.leaves.len() == 1;
                let is_passed_over = self.gives_up && passed == 0;
                if !(is_same || is_judged || is_passed_over) {
                    break;
                }
                if is_same {
                    let rewritten = rewrite(&within, &mut maintainers, found, answers, user_version).await?;
                    written += rewritten.bytes + maintainers.excess();
                    user_version += u16::from(rewritten.is_moved);
                    next.changed += u64::from(rewritten.is_moved);
                    next.refused += answers.refused;
                }
            } else {
                next.refused += answers.refused;
            }
            next.documents += 1;
            next.done_until.clone_from(&found.id);
            passed += 1;
        }
        if passed == 0 {
            return Ok(StepOutcome::Edited);
        }
        self.preparations.check()?;
        maintainers.finish(&within, false).await?;
        trx.set(&key, &next.encode_to_vec());
        Ok(StepOutcome::On(next))
    }
}

#[derive(Default)]
struct RewriteResult {
    bytes: u64,
    is_moved: bool,
}

async fn rewrite(
    within: &IndexContext<'_>,
    maintainers: &mut Maintainers,
    found: &ScannedDocument,
    answers: &Answers,
    user_version: u16,
) -> Result<RewriteResult> {
    let IndexContext { trx, instance, .. } = *within;
    let (keys, old) = (instance.keys.document(&found.id), &found.info);
    let mut rewritten = RewriteResult::default();
    let of_winner =
        answers.changed.iter().find(|(at, _)| found.leaves.get(*at).is_some_and(|(_, rev)| *rev == old.winner));
    // Before any record is written.
    let Some(before) = channels::before(within, &keys, Some(old)).await? else { return Ok(rewritten) };
    let place = found.leaves.iter().position(|(_, rev)| *rev == old.winner);
    let said = of_winner.map(|(_, said)| said).or_else(|| found.said.get(place?)).cloned().unwrap_or_default();
    let mut new = Info { bucket: instance.buckets.own_number(), ..old.clone() };
    new.stamp = own_stamp(instance.epoch(), user_version);
    let rerouted = before.change_routing_to(within, &found.id, Some(old), &mut new, Some(said.clone())).await?;
    if answers.changed.is_empty() && rerouted.is_same() {
        return Ok(rewritten);
    }
    let info_key = keys.info();
    let end = [&info_key[..], &[0]].concat();
    // Conflicts with concurrent edits in both directions.
    trx.add_conflict_range(&info_key, &end, ConflictRangeType::Read)?;
    trx.add_conflict_range(&info_key, &end, ConflictRangeType::Write)?;
    for (at, said) in &answers.changed {
        let (Some((_, rev)), Some(record)) = (found.leaves.get(*at), found.records.get(*at)) else { continue };
        let key = keys.revision(rev);
        // The record of a leaf is as it was while the document's info is.
        let record = RevisionRecord { verdict: said.encode(), ..record.clone() }.encode();
        rewritten.bytes += (key.len() + record.len()) as u64;
        Quiet(trx).set(&key, &record)?;
    }
    if rerouted.is_same() {
        return Ok(rewritten);
    }
    maintainers.begin(within, &found.id);
    let (mut old_rows, mut old_blob) = (None, None);
    if !instance.record.indexes.is_empty() {
        old_rows = Some(latest_rows(trx, instance, found).await?);
        if maintainers.want_old_body() {
            old_blob = Bodies { trx, instance, keys: &keys }.blob_rows(old).await?;
        }
    }
    trx.atomic_op(&info_key, &new.encode_stamped(), MutationType::SetVersionstampedValue);
    let change = Change {
        id: &found.id,
        keys: &keys,
        old: Some(old),
        old_rows: old_blob.as_ref().or(old_rows.as_ref()),
        new: &new,
        brought: None,
        judged: Some((&new.winner, &said)),
        rerouted: Some(&rerouted),
        leaves: &found.leaves,
        stored_bytes_delta: 0,
        superseded_bytes_delta: 0,
        user_version,
    };
    maintainers.document(within, &change).await?;
    rewritten.bytes += 10 * (info_key.len() as u64) + ROW_BYTES;
    rewritten.is_moved = true;
    Ok(rewritten)
}

/// Returns the rows of the latest body, read if the page lacks them.
async fn latest_rows(trx: &Transaction, instance: &Instance, found: &ScannedDocument) -> Result<Rows> {
    if let Some(whole) = &found.whole {
        return Ok(whole.body.clone());
    }
    let keys = instance.keys.document(&found.id);
    let rows = begin_read(trx, keys.body_rows()).finish(trx, BODY_BYTES_MAX).await?;
    Ok(Rows::new(rows, keys.body().len()))
}
