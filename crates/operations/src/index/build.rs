//! Builds an index: enters documents that were written before its definition, concurrently with writes.
//!
//! Writes maintain an index from its definition on. A builder walks over the documents in the order of their ids, and
//! hands each to the index's maintainer as if it had been written again. Its progress is a key of the index, which
//! every step reads with a conflict and no document write reads. A build therefore resumes wherever it ended, also
//! after a restore, since progress and entries are in one store, and two concurrent builders do no more than one. A
//! step conflicts with edits and purges of the documents that it enters, in both directions: the later of the two sees
//! the writes of the other.

pub mod tombstones;

use std::collections::VecDeque;

use flatbed_databases::document::body::Rows;
use flatbed_databases::document::latest::{begin_latest, read_range, whole_body};
use flatbed_databases::instance::Instance;
use flatbed_databases::limits::Limit;
use flatbed_databases::server::Inner;
use flatbed_store::error::{Error, Result};
use flatbed_store::proto;
use flatbed_store::records::Info;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use foundationdb::options::ConflictRangeType;
use futures_util::future::try_join_all;
use prost::Message;
use sha2::{Digest, Sha256};

use crate::index::compiled::compile_within;
use crate::index::definitions::{renew_worn_out, write_record};
use crate::index::kinds::indexes_of;
use crate::index::maintainers::{Change, IndexContext};
use crate::index::prepare::Preparations;

/// The most documents that a step enters. Tests have a small limit, so that there are several steps.
const STEP_DOCUMENTS_MAX: Limit<usize> = Limit::new(2_000, 10);

/// The documents of the first step, when their size is not known yet.
const FIRST_DOCUMENTS: Limit<usize> = Limit::new(250, 10);

const READS_AT_ONCE: usize = 16;

/// The approximate limit of entries and conflicts that a step writes, in bytes; one document may exceed it.
const WRITTEN_BYTES_MAX: u64 = 600_000;

/// The approximate limit of bodies that a step reads, in bytes.
const READ_BYTES_MAX: u64 = 3_000_000;

/// The approximate bytes that one range of documents reads: some replies.
const RANGE_BYTES: u64 = 300_000;

/// The size of a document's conflicts beside four times its key, in bytes.
const CONFLICTS_BYTES: u64 = 100;

/// Returns the last document of the initial walk that is in the index; `None`: none yet.
pub async fn progress(within: &IndexContext<'_>, number: u64, snapshot: bool) -> Result<Option<String>> {
    Ok(read_progress(within, number, snapshot).await?.map(|progress| progress.built_until))
}

async fn read_progress(within: &IndexContext<'_>, number: u64, snapshot: bool) -> Result<Option<proto::IndexProgress>> {
    let found = within.trx.get(&within.instance.keys.index_progress(number), snapshot).await?;
    Ok(found.map(|bytes| proto::IndexProgress::decode(&*bytes)).transpose()?)
}

fn noted_id(value: &[u8]) -> Result<String> {
    String::from_utf8(value.to_vec()).map_err(|_| Error::Corrupt("a noted id is not UTF-8".to_owned()))
}

pub fn unbuilt(record: proto::DatabaseRecord) -> impl Iterator<Item = proto::Index> {
    record.indexes.into_iter().filter(|index| !index.readable)
}

/// The size of the next step, derived from the last one.
#[derive(Debug, Clone, Copy)]
pub struct BuildPace {
    documents: usize,
    /// The mean bytes read for a document.
    average_bytes: u64,
}

impl Default for BuildPace {
    fn default() -> BuildPace {
        BuildPace { documents: FIRST_DOCUMENTS.get(), average_bytes: 1_000 }
    }
}

impl BuildPace {
    /// Adjusts the pace after a step that began with `begun` documents and entered `entered` of `bytes`.
    fn after(self, begun: usize, entered: usize, bytes: u64) -> BuildPace {
        let average_bytes = bytes.checked_div(entered as u64).unwrap_or(self.average_bytes).max(100);
        let by_bytes = usize::try_from(READ_BYTES_MAX / average_bytes).unwrap_or(usize::MAX);
        // Under concurrent writes steps shrink to the last committed size, and grow again.
        let documents = begun.saturating_mul(2).min(by_bytes).clamp(1, STEP_DOCUMENTS_MAX.get());
        BuildPace { documents, average_bytes }
    }

    fn of_range(self) -> usize {
        usize::try_from(RANGE_BYTES / self.average_bytes).unwrap_or(usize::MAX).max(1)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepOutcome {
    On,
    Built,
    Gone,
}

/// A transaction of a builder. It knows only the index's number, and reads everything else.
pub struct Step<'a> {
    pub inner: &'a Inner,
    pub name: &'a str,
    pub number: u64,
    pub attempts: u32,
    pub preparations: Preparations,
    /// The documents that the last attempt entered.
    pub entered: u64,
    /// The documents entered, including those of earlier steps.
    pub entered_in_all: u64,
    pub pace: BuildPace,
    pub next_pace: BuildPace,
}

impl<'a> Step<'a> {
    pub fn new(inner: &'a Inner, name: &'a str, number: u64, pace: BuildPace) -> Step<'a> {
        let preparations = Preparations::default();
        Step { inner, name, number, attempts: 0, preparations, entered: 0, entered_in_all: 0, pace, next_pace: pace }
    }
}

impl Operation for Step<'_> {
    type Output = StepOutcome;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<StepOutcome> {
        self.entered = 0;
        self.preparations.make_up(self.inner).await?;
        // A committed earlier attempt shows in the progress, from which this one resumes.
        let instance = self.inner.resolve_for_write(trx, self.name).await?;
        if !self.preparations.are_current(&instance) {
            self.preparations = Preparations::of(&instance);
        }
        let within = IndexContext { inner: self.inner, trx, instance: &instance };
        let Some(found) = indexes_of(&instance).find(|found| found.index.number == self.number) else {
            return Ok(StepOutcome::Gone);
        };
        if found.index.readable {
            return Ok(StepOutcome::Built);
        }
        compile_within(&within).await?;
        // Documents under continuous writes are entered in smaller steps.
        let most = (self.pace.documents >> self.attempts.min(10)).max(1);
        self.attempts += 1;
        let progress = read_progress(&within, self.number, false).await?.unwrap_or_default();
        if progress.tombstones {
            return self.tombstones(&within, &found, progress, most).await;
        }
        let later = instance.keys.index_all_later(self.number);
        let mut range = if progress.later { later.clone() } else { instance.keys.all_docs() };
        if !progress.later && !progress.built_until.is_empty() {
            range.begin = [&instance.keys.all_docs_entry(&progress.built_until)[..], &[0]].concat();
        }
        let page = trx.range(&range, true).page(most).await?;
        let ids = if progress.later {
            page.iter().map(|row| noted_id(row.value())).collect::<Result<Vec<_>>>()?
        } else {
            page.iter().map(|row| instance.keys.all_docs_id(row.key())).collect::<Result<Vec<_>>>()?
        };
        // The maintainer begins its reads of all documents before anything is awaited.
        let mut maintainer = found.maintainer(&self.preparations);
        if !progress.later {
            maintainer.may_put_off();
        }
        ids.iter().for_each(|id| maintainer.begin(&within, id));
        let keys: Vec<&str> = ids.iter().map(String::as_str).collect();
        let known = match progress.later {
            // In no order.
            true => ids.iter().map(|_| None).collect(),
            false => read_known(trx, &instance, &keys, self.pace.of_range()).await?,
        };
        let unknown = known.iter().enumerate().filter(|(_, known)| known.is_none()).map(|(at, _)| at);
        let mut unknown = unknown.collect::<Vec<_>>().into_iter();
        let (mut known, mut reads) = (known.into_iter(), VecDeque::new());
        let (mut read_bytes, mut written_bytes, mut passed, mut entered) = (0, 0, 0, None);
        for id in &ids {
            if entered.is_some() && (written_bytes > WRITTEN_BYTES_MAX || read_bytes > READ_BYTES_MAX) {
                break;
            }
            let document = match known.next().flatten() {
                Some(Some((info, rows))) => Some(whole_body(trx, &instance, info, rows).await?),
                Some(None) => None,
                None => {
                    while reads.len() < READS_AT_ONCE
                        && let Some(id) = unknown.next().and_then(|at| ids.get(at))
                    {
                        reads.push_back(begin_latest(trx, &instance, id));
                    }
                    match reads.pop_front() {
                        Some(read) => read.finish(trx, &instance).await?,
                        None => None,
                    }
                }
            };
            passed += 1;
            let keys = instance.keys.document(id);
            let info_key = keys.info();
            written_bytes += 4 * info_key.len() as u64 + CONFLICTS_BYTES;
            if let Some((info, rows)) = document.filter(|(info, _)| !info.deleted) {
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
                if let Some(later) = maintainer.document(&within, &change)? {
                    later.await?;
                }
                written_bytes += maintainer.excess();
                self.entered += 1;
                if maintainer.has_put_off() {
                    // The process's mark is random, and constant.
                    let hash = Sha256::new_with_prefix(self.inner.process).chain_update(id).finalize();
                    let key = instance.keys.index_later(self.number, hash.get(..16).unwrap_or_default());
                    written_bytes += (key.len() + id.len()) as u64;
                    trx.set(&key, id.as_bytes());
                }
            }
            conflict_in_both_directions(trx, &info_key)?;
            entered = Some(id);
        }
        maintainer.finish(&within)?;
        if maintainer.is_worn_out().is_some() {
            // As on a write: the index is rebuilt, in another order.
            tracing::info!(database = &*instance.name, index = self.number, "an index has no room for a long key");
            renew_worn_out(&within, self.number)?;
            return Ok(StepOutcome::Gone);
        }
        self.next_pace = self.pace.after(most, passed, read_bytes);
        if !self.preparations.lacks_nothing() {
            // This failure does not make the next attempt smaller.
            self.attempts -= 1;
        }
        self.preparations.check()?;
        let is_last = passed == ids.len() && page.is_all();
        // Documents that were put off are already counted.
        let documents = progress.documents + if progress.later { 0 } else { self.entered };
        self.entered_in_all = documents;
        let key = instance.keys.index_progress(self.number);
        if progress.later {
            page.iter().take(passed).for_each(|row| trx.clear(row.key()));
        }
        if is_last && !progress.later && trx.range(&later, false).any().await? {
            let built_until = ids.last().cloned().unwrap_or(progress.built_until);
            let behind = proto::IndexProgress { built_until, later: true, documents, ..Default::default() };
            trx.set(&key, &behind.encode_to_vec());
            return Ok(StepOutcome::On);
        }
        if is_last && found.kind.has_tombstones() {
            let built_until = ids.last().cloned().unwrap_or(progress.built_until);
            let behind = proto::IndexProgress { built_until, documents, tombstones: true, ..Default::default() };
            trx.set(&key, &behind.encode_to_vec());
            return Ok(StepOutcome::On);
        }
        if is_last {
            return self.built(&within);
        }
        // Written in any case, so that of two builders one conflicts.
        let built_until = entered.filter(|_| !progress.later).cloned().unwrap_or(progress.built_until);
        let reached = proto::IndexProgress { built_until, later: progress.later, documents, ..Default::default() };
        trx.set(&key, &reached.encode_to_vec());
        Ok(StepOutcome::On)
    }
}

impl Step<'_> {
    fn built(&self, within: &IndexContext<'_>) -> Result<StepOutcome> {
        let mut record = within.instance.record.clone();
        let is_it = |index: &&mut proto::Index| index.number == self.number;
        record.indexes.iter_mut().filter(is_it).for_each(|index| index.readable = true);
        within.trx.clear(&within.instance.keys.index_progress(self.number));
        write_record(within, record)?;
        Ok(StepOutcome::Built)
    }
}

/// Conflicts with writers of the document, and with readers of its old state.
fn conflict_in_both_directions(trx: &Transaction, info_key: &[u8]) -> Result<()> {
    let end = [info_key, &[0]].concat();
    trx.add_conflict_range(info_key, &end, ConflictRangeType::Read)?;
    trx.add_conflict_range(info_key, &end, ConflictRangeType::Write)?;
    Ok(())
}

/// A document that was read; `None`: no document has the id.
type ReadDocument = Option<(Info, Rows)>;

/// Reads documents as concurrent ranges of `of_range` each; `None` for those that were left out.
async fn read_known(
    trx: &Transaction,
    instance: &Instance,
    ids: &[&str],
    of_range: usize,
) -> Result<Vec<Option<ReadDocument>>> {
    let reads = ids.chunks(of_range).map(|part| async move {
        let found = read_range(trx, instance, part).await?.found;
        let mut known: Vec<Option<ReadDocument>> = found.into_iter().map(Some).collect();
        known.resize_with(part.len(), || None);
        Ok::<_, Error>(known)
    });
    Ok(try_join_all(reads).await?.into_iter().flatten().collect())
}
