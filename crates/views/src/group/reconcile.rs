//! Removes the rows of purged documents without the log of purges, for a group whose position the log no longer covers.
//!
//! A document that was purged and written again has a newer position in by-seq, as has one that lost only some leaves.
//! The group therefore misses only purges of whole documents: those that it has and the database does not. Purges
//! during the walk are in the log behind the position that was read first. Queries with `update=false` read the group
//! meanwhile.

use std::time::Duration;

use flatbed_databases::limits::Limit;
use flatbed_store::error::Result;
use flatbed_store::keys::{Counter, KeyRange, ViewPart};
use flatbed_store::proto::ViewProgress;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use futures_util::future::join_all;

use crate::group::job::Job;
use crate::group::large::LargeOutcome;
use crate::group::mapper::DocumentToMap;
use crate::group::purges::map_and_enter;
use crate::group::steps::EnteredPurges;

/// The approximate number of documents that a transaction looks up.
const PAGE: Limit<usize> = Limit::new(500, 4);

/// The interval at which the progress is written if nothing is to be entered, so that other processes see that this one
/// works.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// Removes the rows of all documents that no longer exist. No large document of the group may be partly changed.
pub async fn reconcile(job: &Job, progress: ViewProgress) -> Result<LargeOutcome> {
    let (database, group, clock) = (&*job.reader.name, job.number(), job.clock());
    tracing::info!(
        database,
        group,
        "the log of purges is truncated past its position: a group of views is compared with the documents"
    );
    // Takes the group over before the log's end is read: from here on, documents that another process read before are
    // refused. If another process takes the group over later, the next step here finds another holder, and the group is
    // compared once more.
    let as_before = EnteredPurges::as_before(&progress);
    let (mut stood, mut said_at) = match map_and_enter(job, progress, Vec::new(), &as_before).await? {
        LargeOutcome::Stands(progress) => (*progress, clock.now()),
        other => return Ok(other),
    };
    let (purges, stamp) = job.reader.read(&mut LogEnd { job }).await?;
    let mut begin: Option<Vec<u8>> = None;
    loop {
        if job.is_closing() {
            return Ok(LargeOutcome::Elsewhere);
        }
        let (gone, rest) = job.reader.read(&mut FindGone { job, begin: begin.as_deref() }).await?;
        if !gone.is_empty() || clock.since(said_at) >= HEARTBEAT_INTERVAL {
            let gone = gone.into_iter().map(|id| DocumentToMap { id, document: None }).collect();
            // The purges count as entered when all documents have been looked up.
            match map_and_enter(job, stood, gone, &as_before).await? {
                LargeOutcome::Stands(progress) => stood = *progress,
                other => return Ok(other),
            }
            said_at = clock.now();
        }
        if rest.is_none() {
            break;
        }
        begin = rest;
    }
    map_and_enter(job, stood, Vec::new(), &EnteredPurges { purges, stamp, drained: None }).await
}

struct LogEnd<'a> {
    job: &'a Job,
}

impl Operation for LogEnd<'_> {
    type Output = (i64, Vec<u8>);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.job.reader.inner.resolve(trx, &self.job.reader.name).await?;
        let purges = instance.buckets.begin_count(trx, Counter::Purges);
        let log = instance.keys.purges();
        let last = trx.range(&log, true).reverse(true).first(1).await?;
        let stamp = last.first().map(|row| instance.keys.purge_stamp(row.key())).transpose()?;
        let stamp = stamp.map(|stamp| stamp.to_vec()).unwrap_or_default();
        Ok((purges.await?, stamp))
    }
}

struct FindGone<'a> {
    job: &'a Job,
    /// The page's first key; `None`: the first document.
    begin: Option<&'a [u8]>,
}

impl Operation for FindGone<'_> {
    type Output = (Vec<String>, Option<Vec<u8>>);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.job.reader.inner.resolve(trx, &self.job.reader.name).await?;
        let view = instance.keys.view(self.job.number());
        let KeyRange { mut begin, end } = view.of_documents();
        if let Some(from) = self.begin {
            begin = from.to_vec();
        }
        let page = trx.range(&KeyRange { begin, end }, true).page(PAGE.get()).await?;
        let mut ids = Vec::with_capacity(page.len());
        for row in &page {
            if let ViewPart::OfDocument(id, 0) = view.split(row.key())? {
                ids.push(id);
            }
        }
        let infos = join_all(ids.iter().map(|id| trx.get(&instance.keys.document(id).info(), true))).await;
        let mut gone = Vec::new();
        for (id, info) in ids.into_iter().zip(infos) {
            if info?.is_none() {
                gone.push(id);
            }
        }
        Ok((gone, page.rest.map(|rest| rest.begin)))
    }
}
