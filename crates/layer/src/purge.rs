//! Purging: leaves are taken away as if they had never been.

use std::borrow::Cow;
use std::collections::HashSet;

use flatbed_flatten::json::Value;
use flatbed_revtree::RevId;
use foundationdb::KeySelector;
use foundationdb::options::MutationType;
use prost::Message;

use crate::attachments;
use crate::body::{BODY_BYTES_MAX, Prepared, Rows, begin_read};
use crate::document::Edit;
use crate::document_write::DocumentWrite;
use crate::error::Result;
use crate::index::{Purged, maintainers};
use crate::instance::Instance;
use crate::keys::{Counter, DocumentKeys, KeyRange};
use crate::layer::Inner;
use crate::proto;
use crate::read::info;
use crate::records::{BodyPlace, RevisionRecord, revision_message};
use crate::transaction::{Attempt, Operation, Quiet, Transaction};
use crate::tree::{Leaves, WholeTree};

/// See [`crate::Database::purge`].
pub(crate) struct Purge<'a> {
    inner: &'a Inner,
    name: &'a str,
    id: &'a str,
    revs: &'a [RevId],
    /// What the last attempt took away.
    attempted: Vec<RevId>,
    /// What attempts took away whose commits may have happened.
    maybe_purged: Vec<RevId>,
}

impl<'a> Purge<'a> {
    pub(crate) fn new(inner: &'a Inner, name: &'a str, id: &'a str, revs: &'a [RevId]) -> Purge<'a> {
        Purge { inner, name, id, revs, attempted: Vec::new(), maybe_purged: Vec::new() }
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
        let last = std::mem::replace(&mut self.attempted, purged.clone());
        if attempt.after_unknown {
            self.maybe_purged.extend(last);
        }
        // A leaf that is there now was not taken away before, or has come again.
        let is_answered = |rev: &RevId| purged.contains(rev) || self.maybe_purged.contains(rev);
        let answer = self.revs.iter().filter(|rev| is_answered(rev)).cloned().collect();
        let Some(old) = before.filter(|_| !purged.is_empty()) else { return Ok(answer) };
        let forgotten = self.beyond_limit(trx, &instance).await?;
        let mut maintainers = maintainers();
        if after.is_empty() {
            let (stored, superseded) = self.drop_document(trx, &instance, &keys, &purged).await?;
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
                refused: None,
                leaves_max: usize::MAX,
            };
            write.purge(whole, &after, &purged, &old, &rows, &mut maintainers).await?;
        }
        for maintainer in &mut maintainers {
            maintainer.finish(trx, &instance)?;
        }
        if self.id.starts_with("_design/") && instance.record.rules > 0 {
            instance.change_rules(trx);
        }
        self.note(trx, &instance, &purged, forgotten.as_ref())?;
        Ok(answer)
    }
}

impl Purge<'_> {
    /// Removes every key of the document. Returns the bytes that went: of all, and of superseded revisions.
    async fn drop_document(
        &self,
        trx: &Transaction,
        instance: &Instance,
        keys: &DocumentKeys,
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
        Ok((stored, superseded))
    }

    /// Which purges are beyond the limit once another comes. To be asked before anything is written whose place only
    /// the commit decides.
    async fn beyond_limit(&self, trx: &Transaction, instance: &Instance) -> Result<Option<KeyRange>> {
        let limit = match instance.record.purged_infos_limit {
            0 => crate::database::PURGED_INFOS_LIMIT,
            limit => limit,
        };
        if limit > PURGES_COUNTED_MAX {
            return Ok(None);
        }
        let range = instance.keys.purges();
        // The newest of those that go: with the one that comes, as many as the limit says are behind it.
        let offset = 1 - i32::try_from(limit).unwrap_or(i32::MAX);
        let newest = trx.get_key(&KeySelector::new(Cow::Borrowed(&range.end), false, offset), true).await?;
        let end = [&newest[..], &[0]].concat();
        Ok((*newest >= *range.begin).then_some(KeyRange { begin: range.begin, end }))
    }

    /// Remembers the purge, and forgets older ones.
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
        let revisions = purged.iter().map(revision_message).collect();
        let record = proto::PurgeInfo { document_id: self.id.to_owned(), revisions, renewed: 0 };
        let key = instance.keys.purge_stamped(0);
        quiet.atomic(&key, &record.encode_to_vec(), MutationType::SetVersionstampedKey)?;
        quiet.atomic(&instance.keys.counter(Counter::Purges), &1_i64.to_le_bytes(), MutationType::Add)?;
        Ok(())
    }
}

/// With a limit above this nothing is forgotten: each purge counts back as far as the limit says.
const PURGES_COUNTED_MAX: u64 = 1_000_000;
