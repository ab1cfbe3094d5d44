//! A document that was changed in part by a process that went on to something else, or died: nothing else is entered before it is through.

use crate::document::edit::Conflicts;
use crate::document::latest::begin_latest;
use crate::error::Result;
use crate::group::job::Job;
use crate::group::mapper::ToMap;
use crate::group::purges::map_and_enter;
use crate::group::steps::EnteredPurges;
use crate::store::proto::ViewProgress;
use crate::store::seq::Seq;
use crate::store::transaction::{Attempt, Operation, Transaction};
use crate::view::large::under_way;

/// What came of it.
pub(super) enum Finished {
    /// No document is under way, and the group stands so.
    Stands(Box<ViewProgress>),
    /// It is gone, or another process works at it.
    Elsewhere,
    /// A row has no room: it must be begun anew.
    Anew,
}

/// Enters the document that is under way in a group, if there is one, as it is now. Its place does not move by that: whatever has
/// become of the document since comes again, in by-seq or in the log of purges.
pub(super) async fn finish(job: &Job, progress: ViewProgress) -> Result<Finished> {
    let Some(id) = under_way(&progress).map(str::to_owned) else { return Ok(Finished::Stands(Box::new(progress))) };
    let document = job.reader.read(&mut Read { job, id: &id }).await?;
    let as_before = EnteredPurges::as_before(&progress);
    map_and_enter(job, progress, vec![document], &as_before).await
}

struct Read<'a> {
    job: &'a Job,
    id: &'a str,
}

impl Operation for Read<'_> {
    type Output = ToMap;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<ToMap> {
        let inner = &self.job.reader.inner;
        let instance = inner.resolve(trx, &self.job.reader.name).await?;
        let read = begin_latest(trx, &instance, self.id);
        let found = read.document_with_info(trx, inner, &instance, self.id, Conflicts::All).await?;
        let document = found.map(|(info, mut document)| {
            document.local_seq = Some(Seq::new(instance.incarnation(), info.stamp));
            document
        });
        Ok(ToMap { id: self.id.to_owned(), document })
    }
}
