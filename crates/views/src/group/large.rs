//! Completes a document that a process changed in part before it stopped. No other document is entered before that.

use flatbed_databases::document::edit::Conflicts;
use flatbed_databases::document::latest::begin_latest;
use flatbed_operations::read::get::latest_with_info;
use flatbed_store::error::Result;
use flatbed_store::proto::ViewProgress;
use flatbed_store::seq::Seq;
use flatbed_store::transaction::{Attempt, Operation, Transaction};

use crate::group::job::Job;
use crate::group::mapper::DocumentToMap;
use crate::group::purges::map_and_enter;
use crate::group::steps::EnteredPurges;
use crate::view::large::under_way;

pub enum LargeOutcome {
    Stands(Box<ViewProgress>),
    Elsewhere,
    /// A row's label does not fit: the group must be rebuilt.
    Anew,
}

/// Enters the current state of the partly changed document of a group, if any. The group's position does not move:
/// later changes of the document follow in by-seq or in the log of purges.
pub(super) async fn finish(job: &Job, progress: ViewProgress) -> Result<LargeOutcome> {
    let Some(id) = under_way(&progress).map(str::to_owned) else { return Ok(LargeOutcome::Stands(Box::new(progress))) };
    let document = job.reader.read(&mut ReadLarge { job, id: &id }).await?;
    let as_before = EnteredPurges::as_before(&progress);
    map_and_enter(job, progress, vec![document], &as_before).await
}

struct ReadLarge<'a> {
    job: &'a Job,
    id: &'a str,
}

impl Operation for ReadLarge<'_> {
    type Output = DocumentToMap;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<DocumentToMap> {
        let inner = &self.job.reader.inner;
        let instance = inner.resolve(trx, &self.job.reader.name).await?;
        let read = begin_latest(trx, &instance, self.id);
        let found = latest_with_info(read, trx, inner, &instance, self.id, Conflicts::All).await?;
        let document = found.map(|(info, mut document)| {
            document.local_seq = Some(Seq::new(instance.incarnation(), info.stamp));
            document
        });
        Ok(DocumentToMap { id: self.id.to_owned(), document })
    }
}
