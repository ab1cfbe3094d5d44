//! One document's write within a transaction: its tree, its bodies, its records.
//!
//! The winner's body lies in the latest range, every other one in the range of its revision; so whoever changes the winner
//! moves bodies. The latest range and the info are what plain reads see.

use flatbed_flatten::etf::{AttachmentDigest, revision};
use flatbed_revtree::{Ancestry, Hash, Merged, RevId, Tree};
use foundationdb::options::MutationType;

use crate::document::attachments::{self, Attachment, AttachmentEdit, Resolve};
use crate::document::body::{self, BODY_BYTES_MAX, Prepared, Reading, Rows};
use crate::document::edit::{Edit, Updated};
use crate::document::staging;
use crate::document::tree::{
    Dropped, Leaf, Leaves, Replacement, WholeTree, are_too_large, decode_records, drop_revision, prune, put_leaf,
    winner,
};
use crate::document::verdict::Verdict;
use crate::error::{Error, Refusal, Result};
use crate::index::maintainers::{Change, Maintainers, Within};
use crate::instance::Instance;
use crate::layer::Inner;
use crate::store::keys::DocumentKeys;
use crate::store::records::{BodyPlace, Info, RevisionRecord};
use crate::store::room::Room;
use crate::store::seq::STAMP_BYTES;
use crate::store::transaction::{Quiet, Transaction};

/// Most revisions that wait beyond the limit to be dropped at once.
const STEMMED_AT_ONCE_MAX: u64 = 32;

/// The reads of what an edit supersedes, under way.
pub(crate) struct OldRead {
    leaves: Reading,
    body: Reading,
}

impl OldRead {
    pub(crate) fn begin(trx: &Transaction, keys: &DocumentKeys) -> OldRead {
        OldRead { leaves: body::begin_reading(trx, keys.leaves()), body: body::begin_reading(trx, keys.body_rows()) }
    }
}

/// What is written, and into what.
pub(crate) struct DocumentWrite<'a, 'e> {
    pub inner: &'a Inner,
    pub trx: &'a Transaction,
    pub instance: &'a Instance,
    pub keys: &'a DocumentKeys,
    pub edit: &'a Edit<'e>,
    pub body: &'a Prepared,
    /// Stands in the revision's record.
    pub token: &'a [u8; 16],
    /// Distinct among the documents of the transaction.
    pub user_version: u16,
    /// Why the edit is refused, if it would bring anything.
    pub refused: Option<&'a Refusal>,
    /// What else was said of it.
    pub verdict: &'a Verdict,
    /// No revision of another replica makes the document's leaves more than this.
    pub leaves_max: usize,
    /// What the transaction has left for dropping what nobody needs.
    pub room: &'a Room,
}

/// A path may change many branches at once; the records that it writes take at most this much. FoundationDB's bound
/// for a transaction is 10 MB.
const MERGE_BYTES_MAX: u64 = 6_000_000;

/// What is read at once of the records that lie beyond the limit of revisions, about.
const STEMMED_READ_MAX: u64 = 400_000;

/// What a revision of the only branch takes in a transaction that drops it with others, beside its list of attachments.
const STEMMED_REVISION_BYTES: u64 = 200;

/// Among so many bytes of lists a stub of another replica is looked for, about.
const LISTS_READ_MAX: u64 = 8_000_000;

/// And, where there are more, among the lists of so many of its ancestors, each of up to 90 kB.
const NEAR_ANCESTORS: usize = 32;

/// Records of former leaves that are asked for at once: a path may end as many branches as there are.
const SUPERSEDED_AT_ONCE: usize = 100;

/// What a revision brings beside its place in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Brings {
    Nothing,
    /// A leaf, with its body.
    Leaf,
    /// The body of a revision that others were built on already: it arrives after its children.
    OldBody,
}

/// How the tree changes.
enum Plan {
    /// The revision is there, and nothing new is said of its ancestors.
    Known(RevId),
    /// A leaf gets a child (`None`: the document its first revision).
    Grow {
        rev: RevId,
        parent: Option<Leaf>,
        /// The leaves that stay, as (deleted, revision).
        others: Vec<(bool, RevId)>,
        /// Ancestors between the parent and the revision, newest first.
        between: Vec<RevId>,
    },
    /// A path joined the tree somewhere, or brought more of its past.
    Merge {
        rev: RevId,
        brings: Brings,
        /// Leaves that are no longer leaves.
        superseded: Vec<RevId>,
        replacement: Replacement,
        after: Tree,
    },
}

/// A plan and the attachments of the new revision.
type Planned = (Plan, Vec<Attachment>);

fn digest_of(attachment: &Attachment) -> AttachmentDigest<'_> {
    AttachmentDigest { name: &attachment.name, content_type: &attachment.content_type, md5: attachment.md5 }
}

impl Plan {
    fn brings(&self) -> Brings {
        match self {
            Plan::Known(_) => Brings::Nothing,
            Plan::Grow { .. } => Brings::Leaf,
            Plan::Merge { brings, .. } => *brings,
        }
    }

    fn grow(rev: RevId, parent: Leaf, leaves: Leaves, between: Vec<RevId>) -> Plan {
        let others = leaves.0.into_iter().filter(|leaf| leaf.rev != parent.rev);
        let others = others.map(|leaf| (leaf.deleted, leaf.rev)).collect();
        Plan::Grow { rev, parent: Some(parent), others, between }
    }
}

/// The tree after the change.
struct Grown {
    rev: RevId,
    /// What `rev` is.
    brings: Brings,
    /// As (deleted, revision).
    leaves: Vec<(bool, RevId)>,
    /// Leaves that are no longer leaves.
    superseded: Vec<RevId>,
    trim: Trim,
}

/// What became of the bodies of leaves that are no longer leaves.
#[derive(Default)]
struct Superseded {
    /// Bytes of those that are kept.
    kept_bytes: i64,
    dropped: Dropped,
}

/// Whether an edit of the only branch drops what lies beyond the limit of revisions. Not every edit of a long history
/// does: the oldest records and bodies lie on other pages than the newest, and each page costs as much as the edit itself.
/// A branch may so have a thirty-second part of its limit more, [`STEMMED_AT_ONCE_MAX`] at most; readers see the limit.
fn is_stemmed_at(parent: &RevId, rev: &RevId, revs_limit: u64) -> bool {
    let step = (revs_limit / STEMMED_AT_ONCE_MAX).clamp(1, STEMMED_AT_ONCE_MAX);
    let steps = |rev: &RevId| rev.generation().saturating_sub(revs_limit) / step;
    steps(rev) > steps(parent)
}

/// How what lies beyond the limit of revisions is found.
enum Trim {
    /// The only branch there is: everything up to a generation.
    Below(u64),
    /// By a look at all branches.
    Prune,
    Nothing,
}

impl DocumentWrite<'_, '_> {
    /// Writes the document; `old` is needed where there is an `info`, and read here if it was not begun.
    pub(crate) async fn write(
        self,
        info: Option<Info>,
        old: Option<OldRead>,
        maintainers: &mut Maintainers,
    ) -> Result<Updated> {
        let old = match (&info, old) {
            (Some(_), None) => Some(OldRead::begin(self.trx, self.keys)),
            (_, old) => old,
        };
        let (old_leaves, old_body) = old.map_or((None, None), |old| (Some(old.leaves), Some(old.body)));
        let (plan, attached) = match &self.edit.history {
            Some(path) => self.plan_history(path, info.is_some(), old_leaves).await?,
            None => self.plan_edit(info.as_ref(), old_leaves).await?,
        };
        if let Plan::Known(rev) = plan {
            return Ok(Updated { rev });
        }
        if let (Brings::Leaf, Some(refusal)) = (plan.brings(), self.refused) {
            return Err(refusal.clone().into());
        }
        if plan.brings() != Brings::Nothing {
            // All that may refuse the edit comes before the first write.
            let body_is_there = match &self.body.place {
                BodyPlace::Blob(blob_id) => staging::is_staged(self.trx, &self.instance.keys, blob_id).await?,
                BodyPlace::Rows => true,
            };
            attachments::check(self.trx, self.instance, &attached, &self.edit.attachments).await?;
            if !body_is_there {
                return Err(Refusal::UploadSwept.into());
            }
        }
        let grown = self.change_tree(plan)?;
        let mut added_bytes = 0;
        if grown.brings != Brings::Nothing {
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
                &attached,
                &self.edit.attachments,
            )
            .await?;
        }
        let old_rows = match (&info, old_body) {
            (Some(_), Some(rows)) => {
                Some(Rows::new(rows.finish(self.trx, BODY_BYTES_MAX).await?, self.keys.body().len()))
            }
            _ => None,
        };
        let new = self.place_bodies(&grown, info.as_ref(), old_rows.as_ref()).await?;
        // Before it may be dropped.
        let old_blob = match &info {
            Some(info) if maintainers.want_old_body() => self.blob_rows(info).await?,
            _ => None,
        };
        let superseded = self.supersede(&grown, info.as_ref()).await?;
        let dropped = match grown.trim {
            Trim::Below(generation) => self.stem(generation).await?,
            Trim::Prune => {
                let revs_limit = self.instance.revs_limit();
                prune(self.trx, self.instance, self.keys, &self.edit.id, revs_limit, self.room).await?
            }
            Trim::Nothing => Dropped::default(),
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
            brought: Some(self.body).filter(|_| grown.brings == Brings::Leaf && new.winner == grown.rev),
            judged: (grown.brings != Brings::Nothing).then_some((&grown.rev, self.verdict)),
            leaves: &grown.leaves,
            stored_bytes_delta: added_bytes,
            superseded_bytes_delta: superseded.kept_bytes - dropped.body_bytes,
            user_version: self.user_version,
        };
        maintainers.document(&self.within(), &change).await?;
        Ok(Updated { rev: grown.rev })
    }

    fn within(&self) -> Within<'_> {
        Within { inner: self.inner, trx: self.trx, instance: self.instance }
    }

    /// The winner's body, if it lies in a blob.
    async fn blob_rows(&self, info: &Info) -> Result<Option<Rows>> {
        match &info.place {
            BodyPlace::Blob(blob_id) => {
                Ok(Some(Box::pin(body::read_rows(self.trx, self.instance.keys.blob_rows(blob_id))).await?))
            }
            BodyPlace::Rows => Ok(None),
        }
    }

    /// Takes leaves away; others are left. What only they had below them has gone already, or goes with the caller, who
    /// drops what the leaves themselves have too: `dropped`, altogether.
    pub(crate) async fn purge(
        self,
        after: &Tree,
        dropped: &Dropped,
        old: &Info,
        old_rows: &Rows,
        maintainers: &mut Maintainers,
    ) -> Result<()> {
        let leaves = after.branches().into_iter().map(|branch| (branch.deleted, branch.leaf.clone())).collect();
        let old_blob = if maintainers.want_old_body() { self.blob_rows(old).await? } else { None };
        let (rev, superseded) = (old.winner.clone(), Vec::new());
        let grown = Grown { rev, brings: Brings::Nothing, leaves, superseded, trim: Trim::Nothing };
        let new = self.place_bodies(&grown, Some(old), None).await?;
        self.trx.atomic_op(&self.keys.info(), &new.encode_stamped(), MutationType::SetVersionstampedValue);
        let change = Change {
            id: &self.edit.id,
            old: Some(old),
            keys: self.keys,
            old_rows: old_blob.as_ref().or(Some(old_rows)),
            new: &new,
            brought: None,
            judged: None,
            leaves: &grown.leaves,
            stored_bytes_delta: -(dropped.body_bytes + dropped.attachment_bytes),
            superseded_bytes_delta: -dropped.superseded_bytes,
            user_version: self.user_version,
        };
        maintainers.document(&self.within(), &change).await?;
        Ok(())
    }

    /// An edit of a client: on a leaf, or the first. Its attachments come with it.
    async fn plan_edit(&self, info: Option<&Info>, leaves: Option<Reading>) -> Result<Planned> {
        let parent = match (info, &self.edit.parent) {
            // A name that no edit gives is nobody's revision.
            (None, Some(parent)) if matches!(parent.hash(), Hash::Text(_)) => return Err(Refusal::Conflict.into()),
            (None, parent) => parent.clone(),
            // A document that was deleted is created again on top of its tombstone.
            (Some(info), None) if info.deleted && !self.edit.deleted => Some(info.winner.clone()),
            (Some(info), Some(parent)) if *parent == info.winner || info.leaf_count > 1 => Some(parent.clone()),
            (Some(_), _) => return Err(Refusal::Conflict.into()),
        };
        let generation = parent.as_ref().map_or(0, RevId::generation) + 1;
        if generation > flatbed_revtree::GENERATION_MAX {
            return Err(Refusal::InvalidRevision.into());
        }
        let leaves = match info {
            Some(_) => self.leaves(leaves).await?,
            None => Leaves::default(),
        };
        let leaf = parent.as_ref().and_then(|parent| leaves.find(parent)).cloned();
        if let (Some(info), None) = (info, &leaf) {
            if leaves.find(&info.winner).is_none() {
                return Err(Error::Corrupt("a document's winner is not among its leaves".into()));
            }
            return Err(Refusal::Conflict.into());
        }
        let known = match &parent {
            Some(parent) if self.has_stubs() => vec![attachments::list(self.trx, self.keys, parent).await?],
            _ => Vec::new(),
        };
        let attached = self.attached(&known, generation)?;
        let digests: Vec<_> = attached.iter().map(digest_of).collect();
        let hash = revision(
            parent.as_ref().map(|parent| (parent.generation(), parent.hash_bytes())),
            self.edit.deleted,
            &self.edit.body,
            &digests,
        );
        let rev = RevId::new(generation, hash);
        let Some(leaf) = leaf else {
            // CouchDB takes a first edit that names a parent nobody has: the parent becomes a missing ancestor.
            let between = parent.into_iter().collect();
            return Ok((Plan::Grow { rev, parent: None, others: Vec::new(), between }, attached));
        };
        let is_known = match leaves.holds(&rev) {
            Some(is_known) => is_known,
            None => match leaves.whole_if_read(self.trx, self.keys).await? {
                Some(tree) => tree.contains(&rev),
                None => self.trx.get(&self.keys.revision(&rev), true).await?.is_some(),
            },
        };
        if is_known {
            // The same edit came by replication before, under the same name.
            return Err(Refusal::Conflict.into());
        }
        Ok((Plan::grow(rev, leaf, leaves, Vec::new()), attached))
    }

    fn has_stubs(&self) -> bool {
        self.edit.attachments.iter().any(|(_, edit)| matches!(edit, AttachmentEdit::Stub { .. }))
    }

    fn attached(&self, known: &[Vec<Attachment>], generation: u64) -> std::result::Result<Vec<Attachment>, Refusal> {
        let is_foreign = self.edit.history.is_some();
        Resolve { id: &self.edit.id, edits: &self.edit.attachments, known, generation, is_foreign }.run()
    }

    /// The attachments of a revision of another replica: its stubs may mean those of any revision that is there.
    async fn attached_to(&self, path: &[RevId]) -> Result<Vec<Attachment>> {
        let (mut lists, are_all) = match self.has_stubs() {
            true => attachments::lists(self.trx, self.keys, LISTS_READ_MAX).await?,
            false => (Vec::new(), true),
        };
        if !are_all {
            // They are in the order of generations, and the newest count most.
            let is_read = |rev: &RevId| lists.iter().any(|(other, _)| other == rev);
            let near: Vec<RevId> =
                path.iter().skip(1).take(NEAR_ANCESTORS).filter(|rev| !is_read(rev)).cloned().collect();
            let reads = near.into_iter().map(|rev| async {
                let list = attachments::list(self.trx, self.keys, &rev).await?;
                Ok::<_, Error>((rev, list))
            });
            lists.extend(futures_util::future::try_join_all(reads).await?);
        }
        // Ancestors first, the nearest before all.
        lists.sort_by_key(|(rev, _)| path.iter().position(|ancestor| ancestor == rev).unwrap_or(usize::MAX));
        let known: Vec<_> = lists.into_iter().map(|(_, list)| list).collect();
        Ok(self.attached(&known, path.first().map_or(0, RevId::generation))?)
    }

    /// A revision of another replica.
    async fn plan_history(&self, path: &[RevId], exists: bool, leaves: Option<Reading>) -> Result<Planned> {
        let Some((rev, ancestors)) = path.split_first() else { return Err(Refusal::InvalidRevision.into()) };
        let leaves = if exists { self.leaves(leaves).await? } else { Leaves::default() };
        let mut below = leaves.0.iter().filter_map(|leaf| {
            let at = ancestors.iter().position(|ancestor| *ancestor == leaf.rev)?;
            Some((leaf, at))
        });
        if let (Some((parent, at)), None) = (below.next(), below.next()) {
            let between = ancestors.get(..at).unwrap_or_default();
            let is_all_known = (ancestors.len() - at - 1) as u64 <= parent.ancestry.len();
            // A branch that was cut off above the parent may hold them already.
            let mut new = std::iter::once(rev).chain(between);
            if is_all_known && new.all(|rev| leaves.holds(rev) == Some(false)) {
                let records = leaves.0.iter().map(|leaf| (&leaf.rev, leaf.ancestry.recent.as_slice()));
                if are_too_large(records) {
                    return Err(Refusal::TooManyLeaves { leaves_max: self.leaves_max }.into());
                }
                let (parent, between) = (parent.clone(), between.to_vec());
                let plan = Plan::grow(rev.clone(), parent, leaves, between);
                return Ok((plan, self.attached_to(path).await?));
            }
        }
        if leaves.find(rev).is_some_and(|leaf| ancestors.len() as u64 <= leaf.ancestry.len()) {
            return Ok((Plan::Known(rev.clone()), Vec::new()));
        }
        let Some(whole) = WholeTree::read_if_small(self.trx, self.keys, leaves).await? else {
            return Err(Refusal::TooManyLeaves { leaves_max: self.leaves_max }.into());
        };
        let mut after = whole.tree.clone();
        let brings = match after.merge(path, self.edit.deleted) {
            Merged::New => Brings::Leaf,
            Merged::Known if self.is_wanted(rev, &after).await? => Brings::OldBody,
            Merged::Known => Brings::Nothing,
        };
        if brings == Brings::Nothing && after == whole.tree {
            return Ok((Plan::Known(rev.clone()), Vec::new()));
        }
        let gone = whole.tree.branches().into_iter().filter(|branch| after.branch(&branch.leaf).is_none());
        let superseded = gone.map(|branch| branch.leaf.clone()).collect();
        let grows = after.len() > whole.tree.len();
        let replacement = whole.replacement(self.keys, &after, self.instance.revs_limit())?;
        let branches = after.branches();
        let records = branches.iter().map(|branch| (&branch.leaf, branch.ancestors.as_slice()));
        if grows && after.len() > self.leaves_max || replacement.bytes() > MERGE_BYTES_MAX || are_too_large(records) {
            return Err(Refusal::TooManyLeaves { leaves_max: self.leaves_max }.into());
        }
        let plan = Plan::Merge { rev: rev.clone(), brings, superseded, replacement, after };
        if brings == Brings::Nothing {
            return Ok((plan, Vec::new()));
        }
        Ok((plan, self.attached_to(path).await?))
    }

    /// Whether the body of a revision that is in the tree is kept: it is no leaf, its body is not there, and the next
    /// compaction takes it away. As in CouchDB nothing refuses it; what a function forbids is passed over.
    async fn is_wanted(&self, rev: &RevId, tree: &Tree) -> Result<bool> {
        if self.instance.record.leaves_only || self.refused.is_some() || tree.branch(rev).is_some() {
            return Ok(false);
        }
        let revs_limit = self.instance.revs_limit();
        if !tree.branches_over(rev).any(|branch| branch.leaf.generation() - rev.generation() < revs_limit) {
            return Ok(false);
        }
        match self.trx.get(&self.keys.revision(rev), true).await? {
            None => Ok(true),
            Some(record) => Ok(RevisionRecord::decode(&record)?.body_dropped),
        }
    }

    async fn leaves(&self, reading: Option<Reading>) -> Result<Leaves> {
        match reading {
            Some(reading) => Leaves::decode(self.keys, &reading.finish(self.trx, BODY_BYTES_MAX).await?),
            None => Leaves::read(self.trx, self.keys).await,
        }
    }

    /// Writes leaves and segments.
    fn change_tree(&self, plan: Plan) -> Result<Grown> {
        let revs_limit = self.instance.revs_limit();
        match plan {
            Plan::Known(rev) => {
                let (leaves, superseded) = (Vec::new(), Vec::new());
                Ok(Grown { rev, brings: Brings::Nothing, leaves, superseded, trim: Trim::Nothing })
            }
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
                    // It looks at all branches, so not at every edit.
                    (Some(_), false) if sealed.is_empty() => Trim::Nothing,
                    (Some(_), false) => Trim::Prune,
                };
                let leaf = Leaf { rev: rev.clone(), deleted: self.edit.deleted, ancestry };
                put_leaf(self.trx, self.keys, &leaf, sealed)?;
                let mut leaves = others;
                leaves.push((self.edit.deleted, rev.clone()));
                let superseded = parent.into_iter().map(|leaf| leaf.rev).collect();
                Ok(Grown { rev, brings: Brings::Leaf, leaves, superseded, trim })
            }
            Plan::Merge { rev, brings, superseded, replacement, after } => {
                let is_long = after.branches().iter().any(|branch| branch.ancestors.len() as u64 >= revs_limit);
                replacement.write(self.trx)?;
                let leaves = after.branches().into_iter().map(|branch| (branch.deleted, branch.leaf.clone())).collect();
                let trim = if is_long { Trim::Prune } else { Trim::Nothing };
                Ok(Grown { rev, brings, leaves, superseded, trim })
            }
        }
    }

    /// Writes the new revision's body and record, and puts the winner's body into the latest range. Returns the info.
    async fn place_bodies(&self, grown: &Grown, old: Option<&Info>, old_rows: Option<&Rows>) -> Result<Info> {
        let has_attachments = !self.edit.attachments.is_empty();
        let (deleted, best) =
            winner(&grown.leaves).ok_or_else(|| Error::Corrupt("a document without a leaf".into()))?;
        let mut stamp = [0xff; STAMP_BYTES];
        stamp[10..].copy_from_slice(&self.user_version.to_be_bytes());
        let leaf_count = u32::try_from(grown.leaves.len()).unwrap_or(u32::MAX);
        let mut info = Info {
            stamp,
            winner: best.clone(),
            deleted: *deleted,
            leaf_count,
            place: self.body.place.clone(),
            external_bytes: self.body.external_bytes,
            stored_bytes: self.body.stored_bytes,
            has_attachments,
        };
        let quiet = Quiet(self.trx);
        let is_new_winner = grown.brings == Brings::Leaf && *best == grown.rev;
        if let Some(old) = old.filter(|old| old.winner != *best) {
            // Cleared first, or fields that the new winner lacks would come back.
            quiet.clear_range(&self.keys.body_rows())?;
            self.put_rows(self.keys.revision_body(&old.winner), old_rows.into_iter().flat_map(Rows::iter))?;
        }
        if grown.brings != Brings::Nothing {
            let rows = self.body.rows.iter().map(|(path, value)| (path.as_slice(), value.as_slice()));
            let prefix = if is_new_winner { self.keys.body() } else { self.keys.revision_body(&grown.rev) };
            self.put_rows(prefix, rows)?;
            let record = RevisionRecord {
                token: self.token.to_vec(),
                deleted: self.edit.deleted,
                external_bytes: self.body.external_bytes,
                stored_bytes: self.body.stored_bytes,
                place: self.body.place.clone(),
                body_dropped: false,
                has_attachments,
                verdict: self.verdict.encode(),
            };
            quiet.set(&self.keys.revision(&grown.rev), &record.encode())?;
        }
        match old {
            _ if is_new_winner => {}
            Some(old) if old.winner == *best => {
                (info.place, info.has_attachments) = (old.place.clone(), old.has_attachments);
                (info.external_bytes, info.stored_bytes) = (old.external_bytes, old.stored_bytes);
            }
            _ => self.promote(best, &mut info).await?,
        }
        Ok(info)
    }

    fn put_rows<'r>(&self, prefix: Vec<u8>, rows: impl Iterator<Item = (&'r [u8], &'r [u8])>) -> Result<()> {
        let prefix_bytes = prefix.len();
        let mut key = prefix;
        for (path, value) in rows {
            key.truncate(prefix_bytes);
            key.extend_from_slice(path);
            Quiet(self.trx).set(&key, value)?;
        }
        Ok(())
    }

    /// A leaf that was not the winner comes up: its body moves into the latest range.
    async fn promote(&self, rev: &RevId, info: &mut Info) -> Result<()> {
        let missing = || Error::Corrupt(format!("leaf {rev} has no record"));
        let record = self.trx.get(&self.keys.revision(rev), true).await?.ok_or_else(missing)?;
        let record = RevisionRecord::decode(&record)?;
        if record.place == BodyPlace::Rows {
            let range = self.keys.revision_body_rows(rev);
            let rows = body::read_rows(self.trx, range.clone()).await?;
            self.put_rows(self.keys.body(), rows.iter())?;
            Quiet(self.trx).clear_range(&range)?;
        }
        (info.place, info.has_attachments) = (record.place, record.has_attachments);
        (info.external_bytes, info.stored_bytes) = (record.external_bytes, record.stored_bytes);
        Ok(())
    }

    /// Counts the bodies of former leaves, or drops them where the database keeps those of leaves only: one
    /// in any case, others of a path that ends many branches as far as there is room. Compaction drops the rest.
    async fn supersede(&self, grown: &Grown, old: Option<&Info>) -> Result<Superseded> {
        let mut superseded = Superseded::default();
        if grown.brings == Brings::OldBody {
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

    /// Drops what the only branch has up to a generation, the oldest first and as much as there is room for.
    async fn stem(&self, last: u64) -> Result<Dropped> {
        let mut dropped = Dropped::default();
        if self.room.is_empty() {
            return Ok(dropped);
        }
        let [records, _, _] = self.keys.stemmed(last);
        let (pages, mut is_whole) = body::begin_read(self.trx, records).up_to(self.trx, STEMMED_READ_MAX).await?;
        let (mut up_to, mut listed) = (None, Vec::new());
        for (rev, record) in decode_records(self.keys, &pages)? {
            if self.room.is_empty() {
                is_whole = false;
                break;
            }
            // Rows go by range; a blob is one more.
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
