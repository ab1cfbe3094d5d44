//! Writes the plan of one document in a transaction: its tree, bodies and records.

use flatbed_databases::document::attachments::{self, NewAttachments};
use flatbed_databases::document::body::{self, BODY_BYTES_MAX, BoxedRangeRead, PreparedBody, Rows};
use flatbed_databases::document::edit::{Edit, WrittenRevision};
use flatbed_databases::document::staging;
use flatbed_databases::document::tree::{DroppedSizes, Leaf, decode_records, drop_revision, prune, put_leaf};
use flatbed_databases::document::verdict::Verdict;
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_kit::CleanupBudget;
use flatbed_revtree::{Ancestry, RevId};
use flatbed_store::error::Result;
use flatbed_store::keys::DocumentKeys;
use flatbed_store::records::{BodyPlace, Info, RevisionRecord};
use flatbed_store::transaction::{Quiet, Transaction};
use foundationdb::options::MutationType;

use crate::index::channels;
use crate::index::maintainers::{Change, IndexContext, Maintainers};
use crate::write::plan::{Contribution, Plan};
use crate::write::winner::{self, Bodies, BodyFacts};

/// Revisions beyond the limit that are kept until they are dropped together.
const STEMMED_AT_ONCE_MAX: u64 = 32;

/// A planned edit, its document and its transaction.
pub struct DocumentWrite<'a, 'e> {
    pub inner: &'a Inner,
    pub trx: &'a Transaction,
    pub instance: &'a Instance,
    pub keys: &'a DocumentKeys,
    pub edit: &'a Edit<'e>,
    pub body: &'a PreparedBody,
    /// Identifies the edit in the revision's record.
    pub token: &'a [u8; 16],
    /// Unique among the documents of the transaction.
    pub user_version: u16,
    /// The channels and grants of the edit.
    pub verdict: &'a Verdict,
    /// The transaction's room for dropping revisions.
    pub room: &'a CleanupBudget,
}

/// Approximate bytes of records beyond the limit that are read at once.
const STEMMED_READ_MAX: u64 = 400_000;

/// Bytes that dropping a revision of the only branch takes in a transaction, without its list of attachments.
const STEMMED_REVISION_BYTES: u64 = 200;

/// Records of former leaves that are requested at once: a path may end as many branches as there are.
const SUPERSEDED_AT_ONCE: usize = 100;

/// The tree after the change.
struct GrownTree {
    rev: RevId,
    /// The contribution of `rev` to the tree.
    brings: Contribution,
    /// All leaves, as (deleted, revision).
    leaves: Vec<(bool, RevId)>,
    /// Former leaves.
    superseded: Vec<RevId>,
    trim: Trim,
}

/// The former leaves' bodies after the edit.
#[derive(Default)]
struct SupersededBodies {
    /// Bytes of the bodies that are kept.
    kept_bytes: i64,
    dropped: DroppedSizes,
}

/// Returns whether an edit of the only branch drops revisions beyond the limit. Not every edit of a long history does:
/// the oldest records and bodies lie on other pages than the newest, and each page costs as much as the edit itself. So
/// a branch may exceed its limit by a thirty-second part, at most [`STEMMED_AT_ONCE_MAX`]; readers see the limit.
fn is_stemmed_at(parent: &RevId, rev: &RevId, revs_limit: u64) -> bool {
    let step = (revs_limit / STEMMED_AT_ONCE_MAX).clamp(1, STEMMED_AT_ONCE_MAX);
    let steps = |rev: &RevId| rev.generation().saturating_sub(revs_limit) / step;
    steps(rev) > steps(parent)
}

/// The way to find revisions beyond the limit.
enum Trim {
    /// All revisions of the only branch up to a generation.
    Below(u64),
    /// Examines all branches.
    Prune,
    Nothing,
}

impl DocumentWrite<'_, '_> {
    /// Writes a plan for a document: `info` is its current info, and `old_body` the latest range if there is an info.
    pub async fn write(
        self,
        plan: Plan,
        attached: &NewAttachments,
        info: Option<Info>,
        old_body: Option<BoxedRangeRead>,
        maintainers: &mut Maintainers,
    ) -> Result<WrittenRevision> {
        // Before records are cleared.
        let before = channels::before(&self.within(), self.keys, info.as_ref()).await?;
        let grown = self.change_tree(plan)?;
        let mut added_bytes = 0;
        if grown.brings != Contribution::Nothing {
            added_bytes = self.body.stored_bytes as i64;
            if let BodyPlace::Blob(blob_id) = &self.body.place {
                staging::take(self.trx, &self.instance.keys, blob_id);
            }
            added_bytes += attachments::put(
                self.trx,
                self.instance,
                self.keys,
                &self.edit.id,
                &grown.rev,
                attached,
                &self.edit.attachments,
            );
        }
        let old_rows = match (&info, old_body) {
            (Some(_), Some(rows)) => {
                Some(Rows::new(rows.finish(self.trx, BODY_BYTES_MAX).await?, self.keys.body().len()))
            }
            _ => None,
        };
        let mut new = self.place_bodies(&grown, attached, info.as_ref(), old_rows.as_ref()).await?;
        let judged = (grown.brings != Contribution::Nothing).then_some((&grown.rev, self.verdict));
        let of_winner = judged.filter(|(rev, _)| **rev == new.winner).map(|(_, verdict)| verdict);
        let rerouted = match before {
            Some(before) => {
                let (within, id) = (&self.within(), &self.edit.id);
                Some(before.change_routing(within, id, self.keys, info.as_ref(), &mut new, of_winner).await?)
            }
            None => None,
        };
        // Before it may be dropped.
        let old_blob = match &info {
            Some(info) if maintainers.want_old_body() => self.bodies().blob_rows(info).await?,
            _ => None,
        };
        let superseded = self.supersede(&grown, info.as_ref()).await?;
        let dropped = match grown.trim {
            Trim::Below(generation) => self.stem(generation).await?,
            Trim::Prune => {
                let revs_limit = self.instance.revs_limit();
                prune(self.trx, self.instance, self.keys, &self.edit.id, revs_limit, self.room).await?
            }
            Trim::Nothing => DroppedSizes::default(),
        };
        added_bytes -= dropped.body_bytes + dropped.attachment_bytes;
        added_bytes -= superseded.dropped.body_bytes + superseded.dropped.attachment_bytes;
        // The one write with a conflict range: two edits of a document conflict here.
        self.trx.atomic_op(&self.keys.info(), &new.encode_stamped(), MutationType::SetVersionstampedValue);
        let change = Change {
            id: &self.edit.id,
            old: info.as_ref(),
            keys: self.keys,
            old_rows: old_blob.as_ref().or(old_rows.as_ref()),
            new: &new,
            brought: Some(self.body).filter(|_| grown.brings == Contribution::Leaf && new.winner == grown.rev),
            judged,
            rerouted: rerouted.as_ref(),
            leaves: &grown.leaves,
            stored_bytes_delta: added_bytes,
            superseded_bytes_delta: superseded.kept_bytes - dropped.body_bytes,
            user_version: self.user_version,
        };
        maintainers.document(&self.within(), &change).await?;
        Ok(WrittenRevision { rev: grown.rev })
    }

    fn within(&self) -> IndexContext<'_> {
        IndexContext { inner: self.inner, trx: self.trx, instance: self.instance }
    }

    fn bodies(&self) -> Bodies<'_> {
        Bodies { trx: self.trx, instance: self.instance, keys: self.keys }
    }

    /// Writes leaves and segments.
    fn change_tree(&self, plan: Plan) -> Result<GrownTree> {
        let revs_limit = self.instance.revs_limit();
        match plan {
            Plan::Grow { rev, parent, others, between } => {
                let mut ancestry = Ancestry::default();
                let mut sealed = Vec::new();
                let steps = parent.as_ref().map(|leaf| leaf.rev.clone()).into_iter().chain(between.into_iter().rev());
                if let Some(leaf) = &parent {
                    Quiet(self.trx).clear(&self.keys.leaf(leaf.deleted, &leaf.rev))?;
                    ancestry = leaf.ancestry.clone();
                }
                for step in steps {
                    let (longer, segment) = ancestry.extend(step);
                    ancestry = longer;
                    sealed.extend(segment);
                }
                let trim = match (rev.generation().checked_sub(revs_limit), others.is_empty()) {
                    (None | Some(0), _) => Trim::Nothing,
                    (Some(last), true) => match &parent {
                        Some(parent) if !is_stemmed_at(&parent.rev, &rev, revs_limit) => Trim::Nothing,
                        _ => Trim::Below(last),
                    },
                    // Pruning examines all branches, so not every edit does it.
                    (Some(_), false) if sealed.is_empty() => Trim::Nothing,
                    (Some(_), false) => Trim::Prune,
                };
                let leaf = Leaf { rev: rev.clone(), deleted: self.edit.deleted, ancestry };
                put_leaf(self.trx, self.keys, &leaf, sealed)?;
                let mut leaves = others;
                leaves.push((self.edit.deleted, rev.clone()));
                let superseded = parent.into_iter().map(|leaf| leaf.rev).collect();
                Ok(GrownTree { rev, brings: Contribution::Leaf, leaves, superseded, trim })
            }
            Plan::Merge { rev, brings, superseded, replacement, after } => {
                let is_long = after.branches().iter().any(|branch| branch.ancestors.len() as u64 >= revs_limit);
                replacement.write(self.trx)?;
                let leaves = after.branches().into_iter().map(|branch| (branch.deleted, branch.leaf.clone())).collect();
                let trim = if is_long { Trim::Prune } else { Trim::Nothing };
                Ok(GrownTree { rev, brings, leaves, superseded, trim })
            }
        }
    }

    /// Writes the new revision's body and record, and the winner's body into the latest range. Returns the info.
    async fn place_bodies(
        &self,
        grown: &GrownTree,
        attached: &NewAttachments,
        old: Option<&Info>,
        old_rows: Option<&Rows>,
    ) -> Result<Info> {
        let has_attachments = !self.edit.attachments.is_empty();
        let attachment_bytes = attached.bytes();
        let bodies = self.bodies();
        let (_, best) = winner::best(&grown.leaves)?;
        let is_new_winner = grown.brings == Contribution::Leaf && *best == grown.rev;
        if let Some(old) = old.filter(|old| old.winner != *best) {
            bodies.clear_latest()?;
            bodies.put_rows(self.keys.revision_body(&old.winner), old_rows.into_iter().flat_map(Rows::iter))?;
        }
        if grown.brings != Contribution::Nothing {
            let rows = self.body.rows.iter().map(|(path, value)| (path.as_slice(), value.as_slice()));
            let prefix = if is_new_winner { self.keys.body() } else { self.keys.revision_body(&grown.rev) };
            bodies.put_rows(prefix, rows)?;
            let record = RevisionRecord {
                token: self.token.to_vec(),
                deleted: self.edit.deleted,
                external_bytes: self.body.external_bytes,
                stored_bytes: self.body.stored_bytes,
                place: self.body.place.clone(),
                body_dropped: false,
                has_attachments,
                attachment_bytes,
                verdict: self.verdict.encode(),
            };
            Quiet(self.trx).set(&self.keys.revision(&grown.rev), &record.encode())?;
        }
        let described = match old {
            _ if is_new_winner => BodyFacts::of(self.body, has_attachments, attachment_bytes),
            Some(old) if old.winner == *best => BodyFacts::kept(old),
            _ => bodies.promote(best).await?,
        };
        winner::info(&grown.leaves, described, self.user_version, self.instance)
    }

    /// Counts the bodies of former leaves, or drops them if the database keeps only bodies of leaves: always one, and
    /// of a path that ends many branches as many as there is room for. Compaction drops the rest.
    async fn supersede(&self, grown: &GrownTree, old: Option<&Info>) -> Result<SupersededBodies> {
        let mut superseded = SupersededBodies::default();
        if grown.brings == Contribution::OldBody {
            superseded.kept_bytes += self.body.stored_bytes as i64;
        }
        let mut listed = Vec::new();
        let keeps = |rev: &RevId| !self.instance.record.leaves_only && old.is_some_and(|old| old.winner == *rev);
        for (part, revs) in grown.superseded.chunks(SUPERSEDED_AT_ONCE).enumerate() {
            let read = |rev: &RevId| (!keeps(rev)).then(|| self.trx.get(&self.keys.revision(rev), true));
            let reads: Vec<_> = revs.iter().map(read).collect();
            for (at, (rev, record)) in revs.iter().zip(reads).enumerate() {
                let Some(record) = record else {
                    superseded.kept_bytes += old.map_or(0, |old| old.stored_bytes as i64);
                    continue;
                };
                let Some(record) = record.await? else { continue };
                let mut record = RevisionRecord::decode(&record)?;
                let is_first = (part, at) == (0, 0);
                if !self.instance.record.leaves_only || !is_first && self.room.is_empty() {
                    superseded.kept_bytes += record.stored_bytes as i64;
                    continue;
                }
                let (listed, dropped) = (&mut listed, &mut superseded.dropped);
                drop_revision(self.trx, self.instance, self.keys, rev, &record, self.room, listed, dropped).await?;
                record.body_dropped = true;
                Quiet(self.trx).set(&self.keys.revision(rev), &record.encode())?;
            }
        }
        let (id, room) = (&self.edit.id, self.room);
        let lists = attachments::drop_lists(self.trx, self.instance, self.keys, id, &listed, room);
        superseded.dropped.attachment_bytes += lists.await?;
        Ok(superseded)
    }

    /// Drops the only branch's revisions up to a generation, oldest first and as many as there is room for.
    async fn stem(&self, last: u64) -> Result<DroppedSizes> {
        let mut dropped = DroppedSizes::default();
        if self.room.is_empty() {
            return Ok(dropped);
        }
        let [records, _, _] = self.keys.stemmed(last);
        let (pages, mut is_whole) = body::begin_read(self.trx, records).read_up_to(self.trx, STEMMED_READ_MAX).await?;
        let (mut up_to, mut listed) = (None, Vec::new());
        for (rev, record) in decode_records(self.keys, &pages)? {
            if self.room.is_empty() {
                is_whole = false;
                break;
            }
            // Rows go by a range clear; a blob takes one more.
            self.room.take(STEMMED_REVISION_BYTES);
            if !record.body_dropped {
                dropped.body_bytes += record.stored_bytes as i64;
                if let BodyPlace::Blob(blob_id) = &record.place {
                    Quiet(self.trx).clear_range(&self.instance.keys.blob_rows(blob_id))?;
                }
                if record.has_attachments
                    && let Some(list) = self.trx.get(&self.keys.attachments(&rev), true).await?
                {
                    self.room.take(attachments::list_bytes(self.keys.revision(&rev).len(), &list));
                    listed.push((rev.clone(), list));
                }
            }
            up_to = Some(rev.generation());
        }
        // One branch has one revision of each generation.
        let Some(up_to) = (if is_whole { Some(last) } else { up_to }) else { return Ok(dropped) };
        for range in self.keys.stemmed(up_to) {
            Quiet(self.trx).clear_range(&range)?;
        }
        let (id, room) = (&self.edit.id, self.room);
        let lists = attachments::drop_lists(self.trx, self.instance, self.keys, id, &listed, room);
        dropped.attachment_bytes = lists.await?;
        Ok(dropped)
    }
}
