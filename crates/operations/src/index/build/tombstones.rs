//! Enters tombstones into an index that may have them. No index by id contains them, so a builder walks by-seq, one
//! bucket after the other, after all other documents are entered. Writers that delete a document or change a tombstone
//! already maintain the index by then.

use std::collections::VecDeque;

use flatbed_databases::document::latest::begin_latest;
use flatbed_databases::limits::Limit;
use flatbed_store::error::Result;
use flatbed_store::proto;
use flatbed_store::seq::Seq;
use prost::Message;

use crate::index::build::{
    CONFLICTS_BYTES, READ_BYTES_MAX, READS_AT_ONCE, Step, StepOutcome, WRITTEN_BYTES_MAX, conflict_in_both_directions,
};
use crate::index::kinds::DefinedIndex;
use crate::index::maintainers::{Change, IndexContext};

/// The most by-seq entries that a step reads. Tests have a small limit, so that there are several steps.
const STEP_ENTRIES_MAX: Limit<usize> = Limit::new(5_000, 10);

impl Step<'_> {
    /// Runs a step over tombstones, and enters at most `most`.
    pub(super) async fn tombstones(
        &mut self,
        within: &IndexContext<'_>,
        found: &DefinedIndex,
        mut progress: proto::IndexProgress,
        most: usize,
    ) -> Result<StepOutcome> {
        let IndexContext { trx, instance, .. } = *within;
        let number = usize::try_from(progress.bucket).unwrap_or(usize::MAX);
        let Some(bucket) = instance.buckets.all().get(number) else { return self.built(within) };
        // After a renewal the whole bucket is read again.
        let passed = progress.passed.parse::<Seq>().ok();
        let passed = passed.filter(|passed| instance.has_seq(passed));
        let range = bucket.by_seq_after(&passed.unwrap_or(Seq::zero(instance.incarnation())));
        let page = trx.range(&range, true).page(STEP_ENTRIES_MAX.get()).await?;
        let is_last = page.is_all();
        let mut entries = Vec::with_capacity(page.len());
        for row in &page {
            let entry = proto::SequenceEntry::decode(row.value())?;
            entries.push((bucket.by_seq_parse(row.key())?, Some(entry.document_id).filter(|_| entry.deleted)));
        }
        let mut maintainer = found.maintainer(&self.preparations);
        let ids: Vec<String> = entries.iter().filter_map(|(_, id)| id.clone()).take(most).collect();
        ids.iter().for_each(|id| maintainer.begin(within, id));
        let (mut waiting, mut reads) = (ids.iter(), VecDeque::new());
        let (mut read_bytes, mut written_bytes, mut is_cut, mut reached) = (0, 0, false, passed);
        for (seq, id) in &entries {
            let Some(id) = id else {
                reached = Some(*seq);
                continue;
            };
            while reads.len() < READS_AT_ONCE
                && let Some(id) = waiting.next()
            {
                reads.push_back(begin_latest(trx, instance, id));
            }
            let is_full = self.entered > 0 && (written_bytes > WRITTEN_BYTES_MAX || read_bytes > READ_BYTES_MAX);
            let Some(read) = reads.pop_front().filter(|_| !is_full) else {
                is_cut = true;
                break;
            };
            let keys = instance.keys.document(id);
            let info_key = keys.info();
            if let Some((info, rows)) = read.finish(trx, instance).await? {
                read_bytes += info.stored_bytes;
                written_bytes += found.kind.reserve(&found.index, id, None);
                let change = Change {
                    id,
                    keys: &keys,
                    old: Some(&info),
                    old_rows: Some(&rows),
                    new: &info,
                    brought: None,
                    judged: None,
                    rerouted: None,
                    leaves: &[],
                    stored_bytes_delta: 0,
                    superseded_bytes_delta: 0,
                    user_version: 0,
                };
                if let Some(later) = maintainer.document(within, &change)? {
                    later.await?;
                }
                self.entered += 1;
            }
            written_bytes += 4 * info_key.len() as u64 + CONFLICTS_BYTES;
            conflict_in_both_directions(trx, &info_key)?;
            reached = Some(*seq);
        }
        maintainer.finish(within)?;
        self.next_pace = self.pace.after(most, usize::try_from(self.entered).unwrap_or(usize::MAX), read_bytes);
        progress.documents += self.entered;
        self.entered_in_all = progress.documents;
        progress.passed = reached.map(|seq| seq.to_string()).unwrap_or_default();
        if is_last && !is_cut {
            (progress.bucket, progress.passed) = (progress.bucket + 1, String::new());
            if progress.bucket >= instance.buckets.all().len() as u64 {
                return self.built(within);
            }
        }
        // Written in any case, so that of two builders one conflicts.
        trx.set(&instance.keys.index_progress(self.number), &progress.encode_to_vec());
        Ok(StepOutcome::On)
    }
}
