//! Plans an edit: the change of its document's tree, and the attachments of the new revision. Nothing is written here,
//! and edits are refused here.

use flatbed_databases::document::attachments::{self, Attachment, ListRead, NewAttachments, Resolve, has_stubs};
use flatbed_databases::document::body::{BODY_BYTES_MAX, BoxedRangeRead, PreparedBody};
use flatbed_databases::document::edit::Edit;
use flatbed_databases::document::staging;
use flatbed_databases::document::tree::{Leaf, Leaves, Replacement, WholeTree, are_too_large};
use flatbed_databases::held::HeldRights;
use flatbed_databases::instance::Instance;
use flatbed_flatten::etf::{AttachmentDigest, revision};
use flatbed_revtree::{DocumentId, Hash, MergeOutcome, RevId, Tree};
use flatbed_store::database_name::DatabaseKind;
use flatbed_store::error::{Error, Refusal, Result};
use flatbed_store::keys::DocumentKeys;
use flatbed_store::records::{BodyPlace, Info, RevisionRecord};
use flatbed_store::transaction::Transaction;

use crate::read::over::ExpiredAncestors;
use crate::read::revision_records::Records;
use crate::read::viewer::is_seen;

/// Bytes of records that a path may write when it changes many branches at once. FoundationDB's limit of a transaction
/// is 10 MB.
const MERGE_BYTES_MAX: u64 = 6_000_000;

/// Approximate bytes of attachment lists that are searched for a stub of another replica.
const LISTS_READ_MAX: u64 = 8_000_000;

/// Ancestors whose lists, of up to 90 kB each, are searched if there are more bytes than that.
const NEAR_ANCESTORS: usize = 32;

/// The part of a revision beside its place in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contribution {
    Nothing,
    Leaf,
    /// The body of a revision with children: it arrives after them.
    OldBody,
}

/// The change of a tree.
pub enum Plan {
    /// A leaf gets a child, or the document its first revision (`None`).
    Grow {
        rev: RevId,
        parent: Option<Leaf>,
        /// The remaining leaves, as (deleted, revision).
        others: Vec<(bool, RevId)>,
        /// Ancestors between the parent and the revision, newest first.
        between: Vec<RevId>,
    },
    /// A path joins the tree somewhere, or adds ancestors.
    Merge {
        rev: RevId,
        brings: Contribution,
        /// Former leaves.
        superseded: Vec<RevId>,
        replacement: Replacement,
        after: Tree,
    },
}

pub enum EditPlan {
    /// No change: the revision exists, and the path adds no ancestor.
    Known(RevId),
    /// The tree changes; with the new revision's attachments.
    Change(Plan, NewAttachments),
}

fn digest_of(attachment: &Attachment) -> AttachmentDigest<'_> {
    AttachmentDigest { name: &attachment.name, content_type: &attachment.content_type, md5: attachment.md5 }
}

impl Plan {
    pub fn brings(&self) -> Contribution {
        match self {
            Plan::Grow { .. } => Contribution::Leaf,
            Plan::Merge { brings, .. } => *brings,
        }
    }

    fn grow(rev: RevId, parent: Leaf, leaves: Leaves, between: Vec<RevId>) -> Plan {
        let others = leaves.0.into_iter().filter(|leaf| leaf.rev != parent.rev);
        let others = others.map(|leaf| (leaf.deleted, leaf.rev)).collect();
        Plan::Grow { rev, parent: Some(parent), others, between }
    }
}

/// Plans one edit with reads of its transaction.
pub struct Planner<'a, 'e> {
    pub trx: &'a Transaction,
    pub instance: &'a Instance,
    pub keys: &'a DocumentKeys,
    pub edit: &'a Edit<'e>,
    pub body: &'a PreparedBody,
    /// The reason to refuse the edit, unless it would change nothing.
    pub refused: Option<&'a Refusal>,
    /// Limit of a document's leaves for revisions of other replicas.
    pub leaves_max: usize,
    /// The writer's rights in a database with channels: stubs may only name attachments of visible revisions.
    pub held: Option<&'a HeldRights>,
}

impl Planner<'_, '_> {
    /// Plans the edit of a document in its current state. Reads its leaves, and the list in which stubs are looked up,
    /// unless those reads were begun.
    ///
    /// # Errors
    /// [`Error::Refused`] for this edit alone.
    pub async fn plan(
        &self,
        info: Option<&Info>,
        leaves: Option<BoxedRangeRead>,
        list: Option<ListRead>,
    ) -> Result<EditPlan> {
        // With channels, a writer without the right must not learn what exists.
        let refused_first = self.refused.filter(|_| self.instance.channels() > 0);
        if let (Some(refusal), true) = (refused_first, self.held.is_some()) {
            return Err(refusal.clone().into());
        }
        let planned = match (&self.edit.history, refused_first) {
            (Some(path), _) => self.plan_history(path, info.is_some(), leaves).await,
            (None, Some(refusal)) => return Err(refusal.clone().into()),
            (None, None) => self.plan_edit(info, leaves, list).await,
        };
        let mut planned = match (planned, refused_first) {
            (Err(Error::Refused(_)), Some(refusal)) => return Err(refusal.clone().into()),
            (planned, _) => planned?,
        };
        let EditPlan::Change(plan, attached) = &mut planned else { return Ok(planned) };
        if let (Contribution::Leaf, Some(refusal)) = (plan.brings(), self.refused) {
            return Err(refusal.clone().into());
        }
        if plan.brings() != Contribution::Nothing {
            let body_is_there = match &self.body.place {
                BodyPlace::Blob(blob_id) => staging::is_staged(self.trx, &self.instance.keys, blob_id).await?,
                BodyPlace::Rows => true,
            };
            attached.check(self.trx, self.instance, &self.edit.attachments).await?;
            if !body_is_there {
                return Err(Refusal::UploadSwept.into());
            }
        }
        Ok(planned)
    }

    /// Plans an edit of a client: on a leaf, or the first one. It carries its attachments.
    async fn plan_edit(
        &self,
        info: Option<&Info>,
        leaves: Option<BoxedRangeRead>,
        list: Option<ListRead>,
    ) -> Result<EditPlan> {
        let parent = match (info, &self.edit.parent) {
            (None, parent) => parent.clone(),
            // A deleted document is created again on top of its tombstone.
            (Some(info), None)
                if (info.deleted || info.has_ended(self.trx.clock().unix_ms())) && !self.edit.deleted =>
            {
                Some(info.winner.clone())
            }
            (Some(info), Some(parent)) if *parent == info.winner || info.leaf_count > 1 => Some(parent.clone()),
            (Some(_), _) => return Err(Refusal::Conflict.into()),
        };
        let generation = parent.as_ref().map_or(0, RevId::generation) + 1;
        if generation > flatbed_revtree::GENERATION_MAX {
            return Err(Refusal::InvalidRevision.into());
        }
        let leaves = async {
            match info {
                Some(_) => self.leaves(leaves).await,
                None => Ok(Leaves::default()),
            }
        };
        let known = async {
            match (list, &parent) {
                (Some(list), _) => Ok(vec![list.await?]),
                (None, Some(parent)) if has_stubs(&self.edit.attachments) => {
                    Ok(vec![attachments::list(self.trx, self.keys, parent).await?])
                }
                _ => Ok(Vec::new()),
            }
        };
        let gives = async {
            match parent.as_ref().filter(|_| self.judges_stubs()) {
                Some(parent) => {
                    let record = self.trx.get(&self.keys.revision(parent), true).await?;
                    record.map_or(Ok(false), |record| Ok(self.allows_stub_of(&RevisionRecord::decode(&record)?)))
                }
                None => Ok(true),
            }
        };
        let (leaves, known, gives) = futures_util::try_join!(leaves, known, gives)?;
        let known = if gives { known } else { Vec::new() };
        let leaf = parent.as_ref().and_then(|parent| leaves.find(parent)).cloned();
        if let (Some(info), None) = (info, &leaf) {
            if leaves.find(&info.winner).is_none() {
                return Err(Error::Corrupt("a document's winner is not among its leaves".into()));
            }
            return Err(Refusal::Conflict.into());
        }
        let attached = self.attached(&known, generation)?;
        if info.is_none() && self.edit.parent.as_ref().is_some_and(|parent| !self.may_lack(parent)) {
            return Err(Refusal::Conflict.into());
        }
        let digests: Vec<_> = attached.iter().map(digest_of).collect();
        let hash = revision(
            parent.as_ref().map(|parent| (parent.generation(), parent.hash_bytes())),
            self.edit.deleted,
            &self.edit.body,
            &digests,
        );
        let rev = RevId::new(generation, hash);
        let Some(leaf) = leaf else {
            // A parent that does not exist becomes a missing ancestor.
            let between = parent.into_iter().collect();
            return Ok(EditPlan::Change(
                Plan::Grow { rev, parent: None, others: Vec::new(), between },
                attached.into(),
            ));
        };
        let is_known = match leaves.holds(&rev) {
            Some(is_known) => is_known,
            None => match leaves.whole_if_read(self.trx, self.keys).await? {
                Some(tree) => tree.contains(&rev),
                None => self.trx.get(&self.keys.revision(&rev), true).await?.is_some(),
            },
        };
        if is_known {
            // The same edit was replicated before, under the same name.
            return Err(Refusal::Conflict.into());
        }
        Ok(EditPlan::Change(Plan::grow(rev, leaf, leaves, Vec::new()), attached.into()))
    }

    /// Returns whether the first edit of a document may name this missing parent. CouchDB looks up the parent, and
    /// answers 409, if it validates: design documents, attachments, and databases with a `validate_doc_update`, such as
    /// `_users` and `_replicator`. Otherwise the parent becomes a missing ancestor; here only if its hash has the form
    /// that edits create.
    fn may_lack(&self, parent: &RevId) -> bool {
        matches!(parent.hash(), Hash::Md5(_))
            && self.edit.attachments.is_empty()
            && !DocumentId::of(&self.edit.id).is_design()
            && self.instance.record.rules == 0
            && DatabaseKind::of(&self.instance.name) == DatabaseKind::Ordinary
    }

    /// Returns whether stubs must be checked against the writer's rights: in a database with channels.
    fn judges_stubs(&self) -> bool {
        self.instance.channels() > 0 && has_stubs(&self.edit.attachments)
    }

    /// Returns whether stubs may name attachments of a revision: of an unexpired one that the writer sees.
    fn allows_stub_of(&self, record: &RevisionRecord) -> bool {
        !record.has_ended(self.trx.clock().unix_ms())
            && self.held.is_none_or(|held| held.has_all() || is_seen(held, record))
    }

    fn attached(&self, known: &[Vec<Attachment>], generation: u64) -> std::result::Result<Vec<Attachment>, Refusal> {
        let is_foreign = self.edit.history.is_some();
        Resolve { id: &self.edit.id, edits: &self.edit.attachments, known, generation, is_foreign }.run()
    }

    /// Returns the attachments of a revision of another replica: its stubs may name those of any existing revision.
    async fn attached_to(&self, path: &[RevId]) -> Result<Vec<Attachment>> {
        let (mut lists, are_all) = match has_stubs(&self.edit.attachments) {
            true => attachments::lists(self.trx, self.keys, LISTS_READ_MAX).await?,
            false => (Vec::new(), true),
        };
        if !are_all {
            // In the order of generations, the newest last; those matter most.
            let is_read = |rev: &RevId| lists.iter().any(|(other, _)| other == rev);
            let near: Vec<RevId> =
                path.iter().skip(1).take(NEAR_ANCESTORS).filter(|rev| !is_read(rev)).cloned().collect();
            let reads = near.into_iter().map(|rev| async {
                let list = attachments::list(self.trx, self.keys, &rev).await?;
                Ok::<_, Error>((rev, list))
            });
            lists.extend(futures_util::future::try_join_all(reads).await?);
        }
        if self.judges_stubs() {
            let (now_ms, asked) = (self.trx.clock().unix_ms(), |record: &RevisionRecord| self.allows_stub_of(record));
            let oldest = lists.iter().map(|(rev, _)| rev.generation()).min().unwrap_or(u64::MAX);
            let mut records = Records::read(self.trx, self.keys, oldest, now_ms, &asked).await?;
            records.complete(self.trx, self.keys, lists.iter().map(|(rev, _)| rev), now_ms, &asked).await?;
            let over = ExpiredAncestors::find(self.trx, self.keys, &records, oldest).await?;
            lists.retain(|(rev, _)| !over.holds(rev) && records.get(rev).is_some_and(|record| record.is_given));
        }
        // Ancestors first, the nearest before all.
        lists.sort_by_key(|(rev, _)| path.iter().position(|ancestor| ancestor == rev).unwrap_or(usize::MAX));
        let known: Vec<_> = lists.into_iter().map(|(_, list)| list).collect();
        Ok(self.attached(&known, path.first().map_or(0, RevId::generation))?)
    }

    /// Plans a revision of another replica.
    async fn plan_history(&self, path: &[RevId], exists: bool, leaves: Option<BoxedRangeRead>) -> Result<EditPlan> {
        let Some((rev, ancestors)) = path.split_first() else { return Err(Refusal::InvalidRevision.into()) };
        let leaves = if exists { self.leaves(leaves).await? } else { Leaves::default() };
        let mut below = leaves.0.iter().filter_map(|leaf| {
            let at = ancestors.iter().position(|ancestor| *ancestor == leaf.rev)?;
            Some((leaf, at))
        });
        if let (Some((parent, at)), None) = (below.next(), below.next()) {
            let between = ancestors.get(..at).unwrap_or_default();
            let is_all_known = (ancestors.len() - at - 1) as u64 <= parent.ancestry.len();
            // A branch that was cut off above the parent may have them already.
            let mut new = std::iter::once(rev).chain(between);
            if is_all_known && new.all(|rev| leaves.holds(rev) == Some(false)) {
                let records = leaves.0.iter().map(|leaf| (&leaf.rev, leaf.ancestry.recent.as_slice()));
                if are_too_large(records) {
                    return Err(Refusal::TooManyLeaves { leaves_max: self.leaves_max }.into());
                }
                let (parent, between) = (parent.clone(), between.to_vec());
                let plan = Plan::grow(rev.clone(), parent, leaves, between);
                return Ok(EditPlan::Change(plan, self.attached_to(path).await?.into()));
            }
        }
        if leaves.find(rev).is_some_and(|leaf| ancestors.len() as u64 <= leaf.ancestry.len()) {
            return Ok(EditPlan::Known(rev.clone()));
        }
        let Some(whole) = WholeTree::read_if_small(self.trx, self.keys, leaves).await? else {
            return Err(Refusal::TooManyLeaves { leaves_max: self.leaves_max }.into());
        };
        let mut after = whole.tree.clone();
        let brings = match after.merge(path, self.edit.deleted) {
            MergeOutcome::New => Contribution::Leaf,
            MergeOutcome::Known if self.is_wanted(rev, &after).await? => Contribution::OldBody,
            MergeOutcome::Known => Contribution::Nothing,
        };
        if brings == Contribution::Nothing && after == whole.tree {
            return Ok(EditPlan::Known(rev.clone()));
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
        if brings == Contribution::Nothing {
            return Ok(EditPlan::Change(plan, NewAttachments::default()));
        }
        Ok(EditPlan::Change(plan, self.attached_to(path).await?.into()))
    }

    /// Returns whether the body of a revision in the tree is kept. It is not a leaf, its body is absent, and the next
    /// compaction removes it again. As in CouchDB nothing refuses it; a body that a function forbids is ignored.
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

    async fn leaves(&self, reading: Option<BoxedRangeRead>) -> Result<Leaves> {
        match reading {
            Some(reading) => Leaves::decode(self.keys, &reading.finish(self.trx, BODY_BYTES_MAX).await?),
            None => Leaves::read(self.trx, self.keys).await,
        }
    }
}
