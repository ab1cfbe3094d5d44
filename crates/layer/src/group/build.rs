//! The first build of a group: rows of all documents by ranges of ids, some ranges at once, and then the nodes above them.
//!
//! Each range is marked in the transaction that ends it, and marks without a gap between them become the progress. So
//! who goes on after a builder that died maps no range twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::document::edit::{Conflicts, GetOptions};
use crate::error::{Error, Result};
use crate::group::job::Job;
use crate::group::mapper::{ToMap, map};
use crate::group::steps::{Merge, Nodes, Ranges, Step, WriteRows, Wrote};
use crate::read::all_docs::{AllDocs, AllDocsQuery, AllDocsRow};
use crate::read::get::Got;
use crate::store::proto::ViewProgress;

/// Documents of a range, and bytes of their bodies (one may pass it).
const RANGE_DOCUMENTS_MAX: usize = if cfg!(test) { 7 } else { 300 };
const RANGE_BYTES_MAX: usize = 400_000;

/// Between two times at which marks become progress.
const MERGED_EACH: Duration = if cfg!(test) { Duration::ZERO } else { Duration::from_secs(1) };

/// How a build ended.
pub(super) enum Outcome {
    /// The group can be followed, and read once it has been.
    Built,
    /// The group is gone, or another process works at it, or this one stops.
    Elsewhere,
    /// A row has no room: it must be begun anew.
    Anew,
}

/// Ranges at once: as many as there are processors, and some that wait for the storage.
fn ranges_at_once() -> usize {
    std::thread::available_parallelism().map_or(2, std::num::NonZero::get) + 2
}

/// Builds rows, or goes on with that.
pub(super) async fn build_rows(job: &Arc<Job>, progress: &ViewProgress) -> Result<Outcome> {
    let marks = job.reader.read(&mut Ranges { job }).await?;
    let mut ranges = Building::new(job, progress, marks);
    let mut total = AllDocs::new(job.reader.clone(), AllDocsQuery::default());
    let total = total.total_rows().await?;
    job.state.show(|| job.task(true, total));
    job.state.get_on(progress.documents);
    // The last id up to which ranges are begun, or were built before.
    let mut begun = ranges.until.clone();
    loop {
        let next = ranges.built.range(begun.clone()..).next().map(|(from, until)| (from.clone(), until.clone()));
        let end = next.as_ref().map(|(from, _)| from.clone());
        let query = AllDocsQuery {
            start: Some(begun.clone()).filter(|start| !start.is_empty()),
            end: end.clone(),
            include_docs: true,
            conflicts: Conflicts::All,
            ..AllDocsQuery::default()
        };
        let mut walk = AllDocs::new(job.reader.clone(), query);
        while let Some(page) = walk.next_page().await? {
            for range in cut(page) {
                let until = range.last().map(|row| row.id.clone()).unwrap_or_default();
                if let Some(outcome) = ranges.begin(range, &begun, &until).await? {
                    return Ok(outcome);
                }
                begun = until;
            }
        }
        let Some((from, until)) = next else { break };
        // Up to there nothing is left.
        if begun < from {
            ranges.built.insert(begun, from);
        }
        begun = until;
    }
    ranges.end().await
}

/// Builds the nodes above rows that are all there.
pub(super) async fn build_nodes(job: &Job) -> Result<Outcome> {
    loop {
        if job.is_closing() {
            return Ok(Outcome::Elsewhere);
        }
        match Step::run(job, Nodes).await? {
            None => return Ok(Outcome::Elsewhere),
            Some(true) => return Ok(Outcome::Built),
            Some(false) => job.state.get_on(0),
        }
    }
}

/// Cuts a page into ranges.
fn cut(page: Vec<AllDocsRow>) -> Vec<Vec<AllDocsRow>> {
    let (mut ranges, mut range, mut bytes) = (Vec::new(), Vec::new(), 0);
    for row in page {
        let more = row.doc.as_ref().map_or(0, |document| document.body.len());
        if !range.is_empty() && (range.len() >= RANGE_DOCUMENTS_MAX || bytes + more > RANGE_BYTES_MAX) {
            ranges.push(std::mem::take(&mut range));
            bytes = 0;
        }
        bytes += more;
        range.push(row);
    }
    ranges.extend(Some(range).filter(|range| !range.is_empty()));
    ranges
}

/// A range that has ended.
struct Range {
    from: String,
    until: String,
    documents: u64,
    /// `None`: another process builds, or the group is gone.
    wrote: Option<Wrote>,
}

/// The ranges of a build.
struct Building<'a> {
    job: &'a Arc<Job>,
    under_way: JoinSet<Result<Range>>,
    /// Those that are built behind `until`: the last id before each, and its last.
    built: BTreeMap<String, String>,
    /// Up to here there is no gap.
    until: String,
    /// Up to here it is progress.
    merged: String,
    merged_at: Instant,
    documents: u64,
}

impl<'a> Building<'a> {
    fn new(job: &'a Arc<Job>, progress: &ViewProgress, marks: Vec<(String, String)>) -> Building<'a> {
        let (until, merged) = (progress.built_until.clone(), progress.built_until.clone());
        let built = marks.into_iter().filter(|(mark, _)| *mark > until).map(|(mark, from)| (from, mark)).collect();
        let under_way = JoinSet::new();
        let mut building = Building { job, under_way, built, until, merged, merged_at: Instant::now(), documents: 0 };
        building.advance();
        building
    }

    /// Takes in what is built without a gap.
    fn advance(&mut self) {
        while let Some(until) = self.built.remove(&self.until) {
            self.until = until;
        }
    }

    /// Begins a range; waits until there is room for it.
    async fn begin(&mut self, rows: Vec<AllDocsRow>, from: &str, until: &str) -> Result<Option<Outcome>> {
        while self.under_way.len() >= ranges_at_once() {
            if let Some(outcome) = self.ended().await? {
                return Ok(Some(outcome));
            }
        }
        if self.job.is_closing() {
            return Ok(Some(Outcome::Elsewhere));
        }
        let range = write(Arc::clone(self.job), rows, from.to_owned(), until.to_owned());
        self.under_way.spawn(range);
        Ok(None)
    }

    /// Waits until a range has ended.
    async fn ended(&mut self) -> Result<Option<Outcome>> {
        let Some(ended) = self.under_way.join_next().await else { return Ok(None) };
        let Range { from, until, documents, wrote } = ended.map_err(|_| Error::ShuttingDown)??;
        match wrote {
            None => return Ok(Some(Outcome::Elsewhere)),
            Some(Wrote::Full) => return Ok(Some(Outcome::Anew)),
            Some(Wrote::Documents(_)) => {}
        }
        self.job.state.get_on(documents);
        self.documents += documents;
        self.built.insert(from, until);
        self.advance();
        if self.until > self.merged && self.merged_at.elapsed() >= MERGED_EACH {
            return Ok((!self.merge(false).await?).then_some(Outcome::Elsewhere));
        }
        Ok(None)
    }

    /// Makes progress of what is built without a gap.
    async fn merge(&mut self, is_end: bool) -> Result<bool> {
        let merge = Merge { until: &self.until, documents: std::mem::take(&mut self.documents), is_end };
        let is_ours = Step::run(self.job, merge).await?.is_some();
        self.merged.clone_from(&self.until);
        self.merged_at = Instant::now();
        // Those who look whether this process is still at it see that it is.
        self.job.state.moved_to(0);
        Ok(is_ours)
    }

    /// All ranges are begun.
    async fn end(mut self) -> Result<Outcome> {
        while !self.under_way.is_empty() {
            if let Some(outcome) = self.ended().await? {
                return Ok(outcome);
            }
        }
        Ok(if self.merge(true).await? { Outcome::Built } else { Outcome::Elsewhere })
    }
}

/// Maps the documents of a range and writes their rows.
async fn write(job: Arc<Job>, rows: Vec<AllDocsRow>, from: String, until: String) -> Result<Range> {
    let documents = rows.len() as u64;
    let mut to_map: Vec<ToMap> = rows.into_iter().map(|row| ToMap { id: row.id, document: row.doc }).collect();
    if job.definition().options.local_seq {
        to_map = with_local_seq(&job, to_map).await?;
    }
    let prepared = map(&job, to_map).await?;
    let mut rest = prepared.as_slice();
    loop {
        let work = WriteRows { documents: rest, range: (&from, &until) };
        let wrote = Step::run(&job, work).await?;
        match wrote {
            Some(Wrote::Documents(count)) if count < rest.len() => rest = rest.get(count..).unwrap_or_default(),
            wrote => return Ok(Range { from, until, documents, wrote }),
        }
    }
}

/// Documents as they are, with where each stands: a walk does not say so.
pub(super) async fn with_local_seq(job: &Job, documents: Vec<ToMap>) -> Result<Vec<ToMap>> {
    let options = GetOptions { local_seq: true, conflicts: true, deleted_conflicts: true, ..GetOptions::default() };
    let ids: Vec<String> = documents.into_iter().map(|document| document.id).collect();
    let (mut read, mut from): (Vec<ToMap>, usize) = (Vec::with_capacity(ids.len()), 0);
    while let Some(rest) = ids.get(from..).filter(|rest| !rest.is_empty()) {
        let requests: Vec<_> = rest.iter().map(|id| (id.clone(), options.clone())).collect();
        let found = job.reader.get_many(&requests).await?;
        from += found.len().max(1);
        for (id, found) in rest.iter().zip(found) {
            let document = if let Got::Document(document) = found { Some(*document) } else { None };
            read.push(ToMap { id: id.clone(), document });
        }
    }
    Ok(read)
}
