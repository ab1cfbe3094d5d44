//! Rows of documents that are gone, found without the log of purges: for a group that was away for longer than the log says.
//!
//! A document that was purged and is there again has a newer place in by-seq, as has one that lost a leaf and kept others. So only
//! documents that are gone are missed, and those are the ones that the group has and the database has not. What is purged while the
//! group is walked stands in the log behind the place that was read first. The group is read as it is meanwhile.

use std::time::Duration;

use futures_util::future::join_all;

use crate::error::Result;
use crate::group::job::Job;
use crate::group::large::Finished;
use crate::group::mapper::{ToMap, map};
use crate::group::purges::enter_documents;
use crate::group::steps::{EnteredPurges, purges_of};
use crate::store::keys::{Counter, KeyRange, ViewPart};
use crate::store::proto::ViewProgress;
use crate::store::transaction::{Attempt, Operation, Transaction};

/// Documents that are looked at in a transaction, about.
const PAGE: usize = if cfg!(test) { 4 } else { 500 };

/// Between two times at which others see that this process works, where there is nothing to be entered.
const BEATS: Duration = Duration::from_secs(1);

/// Takes the rows of all documents away that are gone. No document of the group is under way.
pub(super) async fn reconcile(job: &Job, progress: ViewProgress) -> Result<Finished> {
    let (database, group, clock) = (&*job.reader.name, job.number(), job.clock());
    tracing::info!(database, group, "the log of purges lacks some: a group of views is compared with the documents");
    // Takes the group over before the log's end is read: documents that another process has read before that are refused from here on.
    // If another process enters any after it, the next step here finds another holder, and the group is compared once more.
    let as_before = EnteredPurges { purges: purges_of(&progress), stamp: progress.purge_stamp.clone(), drained: None };
    let (mut stood, mut said_at) = match enter_documents(job, progress, &[], &as_before).await? {
        Finished::Stands(progress) => (*progress, clock.now()),
        other => return Ok(other),
    };
    let (purges, stamp) = job.reader.read(&mut LogEnd { job }).await?;
    let mut begin: Option<Vec<u8>> = None;
    loop {
        if job.is_closing() {
            return Ok(Finished::Elsewhere);
        }
        let (gone, rest) = job.reader.read(&mut Gone { job, begin: begin.as_deref() }).await?;
        if !gone.is_empty() || clock.since(said_at) >= BEATS {
            let gone = gone.into_iter().map(|id| ToMap { id, document: None }).collect();
            let documents = map(job, gone).await?;
            // The purges are in when all has been looked at.
            match enter_documents(job, stood, &documents, &as_before).await? {
                Finished::Stands(progress) => stood = *progress,
                other => return Ok(other),
            }
            said_at = clock.now();
        }
        if rest.is_none() {
            break;
        }
        begin = rest;
    }
    enter_documents(job, stood, &[], &EnteredPurges { purges, stamp, drained: None }).await
}

/// Reads how many purges there were, and the stamp of the last.
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
        let stamp = stamp.unwrap_or_default().to_vec();
        Ok((purges.await?, stamp))
    }
}

/// Looks for documents that the group has and the database has not.
struct Gone<'a> {
    job: &'a Job,
    /// Where the page begins; `None`: with the first document.
    begin: Option<&'a [u8]>,
}

impl Operation for Gone<'_> {
    /// Their ids, and where to go on.
    type Output = (Vec<String>, Option<Vec<u8>>);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.job.reader.inner.resolve(trx, &self.job.reader.name).await?;
        let view = instance.keys.view(self.job.number());
        let KeyRange { mut begin, end } = view.of_documents();
        if let Some(from) = self.begin {
            begin = from.to_vec();
        }
        let page = trx.range(&KeyRange { begin, end }, true).page(PAGE).await?;
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
