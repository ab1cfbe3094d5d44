//! Purging: leaves are taken away as if they had never been.

use std::collections::HashSet;

use flatbed_flatten::json::Value;
use flatbed_revtree::RevId;
use foundationdb::Transaction;
use foundationdb::options::MutationType;
use prost::Message;

use crate::attachments;
use crate::body::{BODY_BYTES_MAX, Prepared, Rows, begin_read};
use crate::document::Edit;
use crate::document_write::DocumentWrite;
use crate::error::Result;
use crate::index::{Purged, maintainers};
use crate::instance::Instance;
use crate::keys::{Counter, DocumentKeys};
use crate::layer::Inner;
use crate::proto;
use crate::read::{info, page_of};
use crate::records::{BodyPlace, Info, RevisionRecord, revision_message};
use crate::transaction::{Attempt, Operation, Quiet};
use crate::tree::{Leaves, WholeTree};

/// See [`crate::Database::purge`].
pub(crate) struct Purge<'a> {
    inner: &'a Inner,
    name: &'a str,
    id: &'a str,
    revs: &'a [RevId],
    /// What an attempt took away whose commit may have happened.
    purged: Vec<RevId>,
}

impl<'a> Purge<'a> {
    pub(crate) fn new(inner: &'a Inner, name: &'a str, id: &'a str, revs: &'a [RevId]) -> Purge<'a> {
        Purge { inner, name, id, revs, purged: Vec::new() }
    }
}

impl Operation for Purge<'_> {
    type Output = Vec<RevId>;

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<Vec<RevId>> {
        let instance = self.inner.resolve_for_write(trx, self.name).await?;
        let keys = instance.keys.document(self.id);
        let before = info(trx, &keys, false).await?;
        let leaves = match &before {
            Some(_) => Leaves::read(trx, &keys).await?,
            None => Leaves::default(),
        };
        let whole = WholeTree::read(trx, &keys, leaves).await?;
        let mut after = whole.tree.clone();
        let mut purged: Vec<RevId> = Vec::new();
        for rev in self.revs {
            if after.remove(rev) {
                purged.push(rev.clone());
            }
        }
        let Some(old) = before.filter(|_| !purged.is_empty()) else {
            return Ok(if attempt.maybe_committed { self.purged.clone() } else { Vec::new() });
        };
        let mut maintainers = maintainers();
        if after.is_empty() {
            let (stored, superseded) = self.drop_document(trx, &instance, &keys, &old, &purged).await?;
            let gone = Purged {
                id: self.id,
                old: &old,
                stored_bytes_delta: -stored,
                superseded_bytes_delta: -superseded,
                user_version: 0,
            };
            for maintainer in &mut maintainers {
                maintainer.purged(trx, &instance, &gone)?;
            }
        } else {
            let body = Prepared::nothing();
            let edit = Edit {
                id: self.id.into(),
                parent: None,
                history: None,
                deleted: false,
                attachments: Vec::new(),
                body: Value::Null,
            };
            let rows = begin_read(trx, keys.body_rows()).finish(trx, BODY_BYTES_MAX).await?;
            let rows = Rows::new(rows, keys.body().len());
            let write = DocumentWrite {
                trx,
                instance: &instance,
                keys: &keys,
                edit: &edit,
                body: &body,
                token: &[0; 16],
                user_version: 0,
            };
            write.purge(whole, &after, &purged, &old, &rows, &mut maintainers).await?;
        }
        for maintainer in &mut maintainers {
            maintainer.finish(trx, &instance)?;
        }
        self.note(trx, &instance, &purged).await?;
        self.purged.clone_from(&purged);
        Ok(purged)
    }
}

impl Purge<'_> {
    /// Removes every key of the document. Returns the bytes that went: of all, and of superseded revisions.
    async fn drop_document(
        &self,
        trx: &Transaction,
        instance: &Instance,
        keys: &DocumentKeys,
        old: &Info,
        leaves: &[RevId],
    ) -> Result<(i64, i64)> {
        let leaves: HashSet<&RevId> = leaves.iter().collect();
        let records = keys.revisions();
        let prefix_bytes = records.begin.len();
        let (mut stored, mut superseded) = (0, 0);
        for page in begin_read(trx, records).finish(trx, BODY_BYTES_MAX).await? {
            for row in &page {
                let (rev, _) = crate::keys::take_rev(row.key().get(prefix_bytes..).unwrap_or_default())?;
                let record = RevisionRecord::decode(row.value())?;
                if record.body_dropped {
                    continue;
                }
                stored += record.stored_bytes as i64;
                if !leaves.contains(&rev) {
                    superseded += record.stored_bytes as i64;
                }
                if let BodyPlace::Blob(blob_id) = &record.place {
                    Quiet(trx).clear_range(&instance.keys.blob_rows(blob_id))?;
                }
            }
        }
        stored += attachments::drop_lists(trx, instance, keys, self.id, |_| true).await?;
        // With a conflict range on the info: an edit that is under way must see that the document has gone.
        let whole = keys.whole();
        trx.clear_range(&whole.begin, &whole.end);
        debug_assert!(old.leaf_count as usize <= leaves.len());
        Ok((stored, superseded))
    }

    /// Remembers the purge, and forgets those beyond the limit.
    async fn note(&self, trx: &Transaction, instance: &Instance, purged: &[RevId]) -> Result<()> {
        let quiet = Quiet(trx);
        // Read before a key is written here whose place is not known yet.
        let limit = match instance.record.purged_infos_limit {
            0 => crate::database::PURGED_INFOS_LIMIT,
            limit => limit,
        };
        // The newest of those that go is where the list is to begin.
        let range = instance.keys.purges();
        let limit = usize::try_from(limit).unwrap_or(usize::MAX).min(PURGES_LOOKED_AT_MAX);
        let kept = trx.get_range(&page_of(&range, limit, true), 1, true).await?;
        if kept.len() == limit
            && let Some(oldest) = kept.last()
        {
            let end = [oldest.key(), &[0]].concat();
            quiet.clear_range(&crate::keys::KeyRange { begin: range.begin, end })?;
        }
        let revisions = purged.iter().map(revision_message).collect();
        let record = proto::PurgeInfo { document_id: self.id.to_owned(), revisions };
        let key = instance.keys.purge_stamped(0);
        quiet.atomic(&key, &record.encode_to_vec(), MutationType::SetVersionstampedKey)?;
        quiet.atomic(&instance.keys.counter(Counter::Purges), &1_i64.to_le_bytes(), MutationType::Add)?;
        Ok(())
    }
}

/// However large the limit: one page of a range read. Beyond it nothing is forgotten.
const PURGES_LOOKED_AT_MAX: usize = 100_000;
