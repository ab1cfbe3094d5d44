//! Enters documents with long keys at the end of a first build, in a random order.
//!
//! A label takes more bits if its key sorts between the last two keys, and eventually does not fit. Documents in the
//! order of ids, or of any fixed walk, may arrive in such an order in every rebuild. The tasks that build ranges
//! therefore only note the ids of such documents, under random bytes, and the process that builds the nodes enters them
//! first, in the order of these bytes. Labels are then as long as a random tree is deep: some dozens of bits.

use std::collections::HashSet;
use std::time::Duration;

use flatbed_databases::document::edit::Conflicts;
use flatbed_databases::document::latest::begin_latest;
use flatbed_databases::limits::Limit;
use flatbed_operations::read::get::latest_with_info;
use flatbed_store::error::{Error, Result};
use flatbed_store::seq::Seq;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use futures_util::future::join_all;
use sha2::{Digest, Sha256};

use crate::at_once::BatchPacer;
use crate::group::build::Outcome;
use crate::group::job::Job;
use crate::group::leases::{LeaseToken, WriteOutcome};
use crate::group::mapper::{DocumentToMap, MappedPart, map};
use crate::group::steps::{GroupContext, Step, Work, begin_standing, row_bytes};
use crate::view::apply::write_rows;
use crate::view::build::NODES;
use crate::view::known::new_mark;
use crate::view::prepare::PreparedDocument;
use crate::view::sections::SectionRule;

/// The number of documents read at once: each may have 8 MB, and is mapped as text.
const READ_AT_ONCE: Limit<usize> = Limit::new(4, 3);

pub(super) const NOTED_AT_ONCE: usize = 50;

pub(super) struct Note<'a> {
    pub lease: (&'a str, LeaseToken),
    pub ids: &'a [String],
}

impl Work for Note<'_> {
    type Output = WriteOutcome;

    async fn attempt(&mut self, within: &GroupContext<'_>) -> Result<Option<WriteOutcome>> {
        let (from, token) = &self.lease;
        if !within.holds(from, token).await? {
            return Ok(Some(WriteOutcome::Lost));
        }
        let keys = within.instance.keys.view(within.job.number());
        for id in self.ids {
            // The process's mark is random, and constant.
            let hash = Sha256::new_with_prefix(within.owner()).chain_update(id).finalize();
            within.trx.set(&keys.later(hash.get(..16).unwrap_or_default()), id.as_bytes());
        }
        Ok(Some(WriteOutcome::Documents(self.ids.len())))
    }
}

/// Enters all noted documents. `None`: all are entered.
pub(super) async fn enter(job: &Job) -> Result<Option<Outcome>> {
    loop {
        if job.is_closing() {
            return Ok(Some(Outcome::Elsewhere));
        }
        let (keys, mut documents): (Vec<_>, Vec<_>) =
            job.reader.read(&mut ReadLater { job }).await?.into_iter().unzip();
        if keys.is_empty() {
            return Ok(None);
        }
        let mut keys = keys.as_slice();
        'read: while !documents.is_empty() {
            let MappedPart { documents: mapped, rest: behind, permit: _permit, .. } = map(job, documents).await?;
            documents = behind;
            let mut rest = mapped.as_slice();
            while !rest.is_empty() {
                let mut pace = BatchPacer::new(&job.state.entered);
                let wrote = Step::run(job, Enter { keys, documents: rest, pace: &mut pace }).await?;
                pace.end();
                match wrote {
                    None => return Ok(Some(Outcome::Elsewhere)),
                    // Another process has entered them. The rest is read again.
                    Some(WriteOutcome::Lost) => break 'read,
                    Some(WriteOutcome::Full) => return Ok(Some(Outcome::Anew)),
                    Some(WriteOutcome::Documents(count)) => {
                        // They were counted when they were noted. The displayed progress advances here.
                        job.state.add_done(count as u64);
                        keys = keys.get(count..).unwrap_or_default();
                        rest = rest.get(count..).unwrap_or_default();
                    }
                }
            }
        }
    }
}

/// Reads the next documents in their current state: writes since the build began follow in by-seq, and purges in the
/// log.
struct ReadLater<'a> {
    job: &'a Job,
}

impl Operation for ReadLater<'_> {
    /// With the keys of their notes.
    type Output = Vec<(Vec<u8>, DocumentToMap)>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let inner = &self.job.reader.inner;
        let instance = inner.resolve(trx, &self.job.reader.name).await?;
        let noted = instance.keys.view(self.job.number()).all_later();
        let page = trx.range(&noted, true).page(READ_AT_ONCE.get()).await?;
        let id = |value: &[u8]| {
            String::from_utf8(value.to_vec()).map_err(|_| Error::Corrupt("a noted id is not UTF-8".to_owned()))
        };
        let noted = page.iter().map(|row| Ok((row.key().to_vec(), id(row.value())?))).collect::<Result<Vec<_>>>()?;
        // A document noted by two processes is entered once at a time.
        let mut seen = HashSet::new();
        let noted: Vec<_> = noted.into_iter().filter(|(_, id)| seen.insert(id.clone())).collect();
        let reads: Vec<_> = noted.iter().map(|(_, id)| begin_latest(trx, &instance, id)).collect();
        let mut read_documents = Vec::with_capacity(noted.len());
        for ((key, id), read) in noted.iter().zip(reads) {
            let found = latest_with_info(read, trx, inner, &instance, id, Conflicts::All).await?;
            let document = found.map(|(info, mut document)| {
                document.local_seq = Some(Seq::new(instance.incarnation(), info.stamp));
                document
            });
            read_documents.push((key.clone(), DocumentToMap { id: id.clone(), document }));
        }
        Ok(read_documents)
    }
}

struct Enter<'a, 'p> {
    keys: &'a [Vec<u8>],
    documents: &'a [PreparedDocument],
    pace: &'a mut BatchPacer<'p>,
}

impl Work for Enter<'_, '_> {
    type Output = WriteOutcome;

    async fn attempt(&mut self, within: &GroupContext<'_>) -> Result<Option<WriteOutcome>> {
        let GroupContext { job, trx, instance, .. } = *within;
        let (progress, ..) = begin_standing(trx, instance, job.number(), true).await?;
        // Any process with mapped documents may enter them, as in following. If only the holder could, processes could
        // take the group from each other forever without entering anything. The notes show that no other process has
        // entered them.
        let is_at_it =
            |progress: &flatbed_store::proto::ViewProgress| progress.phase == NODES && progress.building.is_none();
        let Some(mut progress) = progress.filter(is_at_it) else { return Ok(None) };
        let documents = self.pace.attempt(self.documents);
        let noted = self.keys.iter().take(documents.len()).map(|key| trx.get(key, false));
        for noted in join_all(noted.collect::<Vec<_>>()).await {
            if noted?.is_none() {
                return Ok(Some(WriteOutcome::Lost));
            }
        }
        let sections = SectionRule::of(&progress)?;
        let applied = write_rows(&within.at(), &job.storage, Some(&job.written), &sections, documents).await?;
        #[cfg(feature = "test-hooks")]
        let applied = {
            let lacks_room =
                crate::view_updates::views(&job.reader.inner).lacks_room.load(std::sync::atomic::Ordering::Relaxed);
            crate::view::apply::ApplyResult { is_full: applied.is_full || lacks_room, ..applied }
        };
        if applied.is_full {
            return Ok(Some(WriteOutcome::Full));
        }
        self.keys.iter().take(applied.documents).for_each(|key| trx.clear(key));
        progress.holder = within.owner().to_vec();
        // Shows other processes that the group makes progress.
        progress.nodes_mark = new_mark()?;
        within.write(&progress);
        Ok(Some(WriteOutcome::Documents(applied.documents)))
    }

    fn bytes(&self) -> usize {
        row_bytes(self.documents)
    }

    fn record_wait(&mut self, time: Duration) {
        self.pace.record_wait(time);
    }

    fn is_of_holder(&self) -> bool {
        true
    }
}
