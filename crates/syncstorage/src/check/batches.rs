//! The check of open batches.

use crate::batch::count_deltas;
use crate::check::collection::staged;
use crate::check::{PAGE_ROWS, UserCheck, UserState};
use crate::error::Result;
use crate::layers::Layers;
use crate::names::{BatchId, RecordId};
use crate::store::Inner;
use crate::transaction::Page;
use crate::values::{Batch, StagedPayload};

impl Inner {
    pub(super) async fn check_batch(
        &self,
        known: &UserState,
        batch: BatchId,
        record: &Batch,
        look: &mut UserCheck,
    ) -> Result<()> {
        let user = &known.user;
        let what = format!("user {}, the batch {batch} in {}", user.uid(), record.collection);
        let state = known.states.iter().find(|(name, _)| *name == record.collection);
        let state = state.map(|(_, state)| state.clone()).unwrap_or_default();
        let (keys, layers) = (user.batch(batch), Layers::new(user, user.collection(&record.collection), &state));
        let mut sums = Batch { records: 0, bytes: 0, count_delta: 0, bytes_delta: 0, ..record.clone() };
        let (mut range, mut pointed_at) = (keys.staged(), 0);
        loop {
            let Page { rows, rest } = self.one_page(&range, PAGE_ROWS).await?;
            let edits = staged(&keys, &rows)?;
            for (id, edit) in &edits {
                sums.records += 1;
                sums.bytes += edit.payload.map_or(0, StagedPayload::len);
                count_deltas(&mut sums, None, edit);
                if edit.kept_expires().is_some_and(|expires| expires < record.kept_earliest) {
                    look.note(format!("{what}, {id}: what it keeps expires before the first one"));
                }
                if let Some(StagedPayload::Blob { id: blob, len }) = edit.payload {
                    pointed_at += 1;
                    self.check_blob(&what, &layers.keys, id, blob, u64::from(len), look).await?;
                }
            }
            if record.seen == Some(state.state) {
                let ids: Vec<&RecordId> = edits.iter().map(|(id, _)| id).collect();
                let found = self.found_at(&layers, &ids).await?;
                for ((id, edit), found) in edits.iter().zip(&found) {
                    let (exists, len) = layers.view(found).map_or((false, 0), |view| (true, view.len));
                    let stored = (edit.beneath.exists, u64::from(edit.beneath.len));
                    look.same(format_args!("{what}, {id}: what it lies upon"), stored, (exists, len));
                }
            }
            self.check_staged(&what, &keys, &edits, look).await?;
            match rest {
                Some(rest) => range = rest,
                None => break,
            }
        }
        let (mut blobs, mut last) = (0, None);
        self.walk(layers.keys.blobs_of(batch.0), |key, _| {
            let (blob, _) = layers.keys.take_blob(key)?;
            let is_ahead = record.ahead.iter().any(|ahead| (ahead.next..=ahead.last()).contains(&blob.number));
            if last.replace(blob) != Some(blob) && !is_ahead {
                blobs += 1;
            }
            Ok(())
        })
        .await?;
        look.same(format_args!("{what}: large payloads"), blobs, pointed_at);
        let of = |batch: &Batch| (batch.records, batch.bytes, batch.count_delta, batch.bytes_delta);
        look.same(format_args!("{what}: what it counts"), of(record), of(&sums));
        Ok(())
    }
}
