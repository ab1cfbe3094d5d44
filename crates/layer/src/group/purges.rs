//! What is purged leaves nothing in by-seq: it is followed in the log of purges, which remembers the last ones.

use std::collections::BTreeSet;

use prost::Message;

use crate::at_once::Paced;
use crate::document::edit::Conflicts;
use crate::document::latest::begin_latest;
use crate::error::Result;
use crate::group::job::Job;
use crate::group::large::{Finished, finish};
use crate::group::mapper::{ToMap, map};
use crate::group::steps::{EnterPurged, Step};
use crate::store::keys::{Counter, KeyRange};
use crate::store::proto::{self, ViewProgress};
use crate::store::seq::Seq;
use crate::store::transaction::{Attempt, Operation, Transaction};

/// Records that are read at once, and documents of them.
const RECORDS_MAX: usize = if cfg!(test) { 5 } else { 200 };

/// Of a stamp, what all records of one purge have in common.
const COMMIT_BYTES: usize = 10;

/// What came of it.
pub(super) enum Outcome {
    /// The group has all purges that there were as it stood.
    Entered,
    /// It is gone, or another process works at it.
    Elsewhere,
    /// The log does not go back as far, or a row has no room: it must be begun anew.
    Anew,
}

/// Enters the documents that were purged since, as they are now: most of them are gone.
pub(super) async fn enter(job: &Job, progress: ViewProgress) -> Result<Outcome> {
    let mut stood = match finish(job, progress).await? {
        Finished::Stands(progress) => *progress,
        Finished::Elsewhere => return Ok(Outcome::Elsewhere),
        Finished::Anew => return Ok(Outcome::Anew),
    };
    loop {
        let mut read = Read { job, after: &stood.purge_stamp };
        let Purged { documents, commits, last, is_all, purges } = job.reader.read(&mut read).await?;
        let entered = i64::try_from(stood.purges).unwrap_or(i64::MAX).saturating_add(commits);
        if is_all && entered != purges || !is_all && commits == 0 {
            return Ok(Outcome::Anew);
        }
        let documents = map(job, documents).await?;
        let last = last.unwrap_or_else(|| stood.purge_stamp.clone());
        let mut rest = documents.as_slice();
        loop {
            let mut pace = Paced::new(&job.state.entered);
            let enter =
                EnterPurged { stood: &stood, documents: rest, purges: entered, purge_stamp: &last, pace: &mut pace };
            let Some((count, progress)) = Step::run(job, enter).await? else { return Ok(Outcome::Elsewhere) };
            pace.end();
            let Some(count) = count else { return Ok(Outcome::Anew) };
            stood = progress;
            rest = rest.get(count..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
        }
        if is_all {
            return Ok(Outcome::Entered);
        }
    }
}

/// What was purged since, a part of it, and the documents as they are.
struct Purged {
    documents: Vec<ToMap>,
    /// How many purges those are.
    commits: i64,
    /// The stamp of the last one.
    last: Option<Vec<u8>>,
    is_all: bool,
    /// The counter of purges.
    purges: i64,
}

struct Read<'a> {
    job: &'a Job,
    after: &'a [u8],
}

impl Operation for Read<'_> {
    type Output = Purged;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Purged> {
        let inner = &self.job.reader.inner;
        let instance = inner.resolve(trx, &self.job.reader.name).await?;
        let purges = instance.buckets.begin_count(trx, Counter::Purges);
        let KeyRange { mut begin, end } = instance.keys.purges();
        if !self.after.is_empty() {
            begin = instance.keys.behind_purge(self.after);
        }
        // So many as there are: those of the last commit are left out, and of fewer that may be all.
        let rows = trx.range(&KeyRange { begin, end }, true).first(RECORDS_MAX).await?;
        let is_all = rows.len() < RECORDS_MAX;
        let mut records = Vec::with_capacity(rows.len());
        for row in rows.iter() {
            records.push((instance.keys.purge_stamp(row.key())?, proto::PurgeInfo::decode(row.value())?.document_id));
        }
        let commit = |stamp: &[u8]| stamp.get(..COMMIT_BYTES).unwrap_or_default().to_vec();
        if !is_all && let Some(cut) = records.last().map(|(stamp, _)| commit(stamp)) {
            // The last one may have more records.
            records.retain(|(stamp, _)| commit(stamp) != cut);
        }
        let commits: BTreeSet<Vec<u8>> = records.iter().map(|(stamp, _)| commit(stamp)).collect();
        let last = records.last().map(|(stamp, _)| stamp.to_vec());
        let ids: BTreeSet<String> = records.into_iter().map(|(_, id)| id).collect();
        let reads: Vec<_> = ids.iter().map(|id| begin_latest(trx, &instance, id)).collect();
        let mut documents = Vec::with_capacity(ids.len());
        for (id, read) in ids.iter().zip(reads) {
            let found = read.document_with_info(trx, inner, &instance, id, Conflicts::All).await?;
            let document = found.map(|(info, mut document)| {
                document.local_seq = Some(Seq::new(instance.incarnation(), info.stamp));
                document
            });
            documents.push(ToMap { id: id.clone(), document });
        }
        Ok(Purged { documents, commits: commits.len() as i64, last, is_all, purges: purges.await? })
    }
}
