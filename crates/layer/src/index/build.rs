//! Enters into an index what was there before it was defined, beside the writes.
//!
//! Writes keep an index from its definition on. A builder walks over the documents in the order of their ids, and hands each
//! to the index's maintainer as if it had been written anew. The place that it has come to is a key of the index, which every
//! step reads with conflict and no write of a document reads: so it goes on wherever it was ended, after a restore too, since
//! place and entries lie in one store, and two builders at once do no more than one. A step conflicts with the edits and
//! purges of the documents that it enters, in both directions: whichever of the two comes second sees what the other wrote.

mod tombstones;

use std::collections::VecDeque;

use foundationdb::options::ConflictRangeType;
use futures_util::future::try_join_all;
use prost::Message;
use sha2::{Digest, Sha256};

use crate::document::body::Rows;
use crate::document::latest::{begin_latest, read_range, whole_body};
use crate::error::{Error, Result};
use crate::index::compiled::compile_within;
use crate::index::definitions::{renew_worn_out, write_record};
use crate::index::kinds::indexes_of;
use crate::index::maintainers::{Change, Within};
use crate::index::prepare::Preparations;
use crate::instance::Instance;
use crate::layer::Inner;
use crate::store::proto;
use crate::store::records::Info;
use crate::store::transaction::{Attempt, Operation, Transaction};

/// Documents that a step enters; tests have several steps with few.
const STEP_DOCUMENTS_MAX: usize = if cfg!(test) { 10 } else { 2_000 };

/// Of the first one, where it is not known how large documents are.
const FIRST_DOCUMENTS: usize = if cfg!(test) { 10 } else { 250 };

/// Of documents that are read one by one.
const READS_AT_ONCE: usize = 16;

/// What a step writes of entries and conflicts, about; one document may pass it.
const WRITTEN_BYTES_MAX: u64 = 600_000;

/// What a step reads of bodies, about.
const READ_BYTES_MAX: u64 = 3_000_000;

/// What is read as one range of documents, about: some replies.
const RANGE_BYTES: u64 = 300_000;

/// A document's conflicts take this much beside four times its key.
const CONFLICTS_BYTES: u64 = 100;

/// The last document that is in the index, of those from before; `None`: none is yet.
pub(crate) async fn progress(within: &Within<'_>, number: u64, snapshot: bool) -> Result<Option<String>> {
    Ok(read_progress(within, number, snapshot).await?.map(|progress| progress.built_until))
}

async fn read_progress(within: &Within<'_>, number: u64, snapshot: bool) -> Result<Option<proto::IndexProgress>> {
    let found = within.trx.get(&within.instance.keys.index_progress(number), snapshot).await?;
    Ok(found.map(|bytes| proto::IndexProgress::decode(&*bytes)).transpose()?)
}

/// The id of a document that was put off.
fn noted_id(value: &[u8]) -> Result<String> {
    String::from_utf8(value.to_vec()).map_err(|_| Error::Corrupt("an id that was noted is no text".to_owned()))
}

/// A database's indexes that are still to be built.
pub(crate) fn unbuilt(record: proto::DatabaseRecord) -> impl Iterator<Item = proto::Index> {
    record.indexes.into_iter().filter(|index| !index.readable)
}

/// How many documents the next step takes, by what the last one met.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    documents: usize,
    /// What a document takes that is read.
    average_bytes: u64,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { documents: FIRST_DOCUMENTS, average_bytes: 1_000 }
    }
}

impl Pace {
    /// After a step that was begun with so many, and has entered so many of so many bytes.
    fn after(self, begun: usize, entered: usize, bytes: u64) -> Pace {
        let average_bytes = bytes.checked_div(entered as u64).unwrap_or(self.average_bytes).max(100);
        let by_bytes = usize::try_from(READ_BYTES_MAX / average_bytes).unwrap_or(usize::MAX);
        // Where others write, steps are as small as went through last, and grow again.
        let documents = begun.saturating_mul(2).min(by_bytes).clamp(1, STEP_DOCUMENTS_MAX);
        Pace { documents, average_bytes }
    }

    /// Documents that are read as one range.
    fn of_range(self) -> usize {
        usize::try_from(RANGE_BYTES / self.average_bytes).unwrap_or(usize::MAX).max(1)
    }
}

/// What a step has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stepped {
    /// There is more to do.
    On,
    /// The index may be read.
    Built,
    /// The index is no longer there.
    Gone,
}

/// A transaction of a builder. All that it knows of the index it reads: only the number is its own.
pub(crate) struct Step<'a> {
    pub inner: &'a Inner,
    pub name: &'a str,
    pub number: u64,
    /// How many there have been.
    pub attempts: u32,
    pub preparations: Preparations,
    /// Documents that the last attempt has entered.
    pub entered: u64,
    /// Documents that were entered before, too.
    pub entered_in_all: u64,
    pub pace: Pace,
    /// For the step behind it.
    pub next_pace: Pace,
}

impl<'a> Step<'a> {
    pub(crate) fn new(inner: &'a Inner, name: &'a str, number: u64, pace: Pace) -> Step<'a> {
        let preparations = Preparations::default();
        Step { inner, name, number, attempts: 0, preparations, entered: 0, entered_in_all: 0, pace, next_pace: pace }
    }
}

impl Operation for Step<'_> {
    type Output = Stepped;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Stepped> {
        self.entered = 0;
        self.preparations.make_up(self.inner).await?;
        // An earlier attempt that was committed is seen by the place: this one goes on from there.
        let instance = self.inner.resolve_for_write(trx, self.name).await?;
        if !self.preparations.fit(&instance) {
            self.preparations = Preparations::of(&instance);
        }
        let within = Within { inner: self.inner, trx, instance: &instance };
        let Some(found) = indexes_of(&instance).find(|found| found.index.number == self.number) else {
            return Ok(Stepped::Gone);
        };
        if found.index.readable {
            return Ok(Stepped::Built);
        }
        compile_within(&within).await?;
        // Documents that others write all the time are entered with fewer others.
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
        // What a document has in the index is asked for before anything is awaited, of all.
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
                    // The process's mark is random, and stays.
                    let hash = Sha256::new_with_prefix(self.inner.views.owner).chain_update(id).finalize();
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
            // As where a write finds it so: it is begun anew, in another order.
            tracing::info!(database = &*instance.name, index = self.number, "an index has no room for a long key");
            renew_worn_out(&within, self.number)?;
            return Ok(Stepped::Gone);
        }
        self.next_pace = self.pace.after(most, passed, read_bytes);
        if !self.preparations.lacks_nothing() {
            // That does not make the next attempt smaller.
            self.attempts -= 1;
        }
        self.preparations.check()?;
        let is_last = passed == ids.len() && page.is_all();
        // What was put off was counted then.
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
            return Ok(Stepped::On);
        }
        if is_last && found.kind.has_tombstones() {
            let built_until = ids.last().cloned().unwrap_or(progress.built_until);
            let behind = proto::IndexProgress { built_until, documents, tombstones: true, ..Default::default() };
            trx.set(&key, &behind.encode_to_vec());
            return Ok(Stepped::On);
        }
        if is_last {
            return Ok(self.built(&within));
        }
        // It is written in any case: of two builders one fails.
        let built_until = entered.filter(|_| !progress.later).cloned().unwrap_or(progress.built_until);
        let reached = proto::IndexProgress { built_until, later: progress.later, documents, ..Default::default() };
        trx.set(&key, &reached.encode_to_vec());
        Ok(Stepped::On)
    }
}

impl Step<'_> {
    /// The index may be read.
    fn built(&self, within: &Within<'_>) -> Stepped {
        let mut record = within.instance.record.clone();
        let is_it = |index: &&mut proto::Index| index.number == self.number;
        record.indexes.iter_mut().filter(is_it).for_each(|index| index.readable = true);
        within.trx.clear(&within.instance.keys.index_progress(self.number));
        write_record(within, record);
        Stepped::Built
    }
}

/// Nobody may write the document meanwhile, nor have read what it had before.
fn conflict_in_both_directions(trx: &Transaction, info_key: &[u8]) -> Result<()> {
    let end = [info_key, &[0]].concat();
    trx.add_conflict_range(info_key, &end, ConflictRangeType::Read)?;
    trx.add_conflict_range(info_key, &end, ConflictRangeType::Write)?;
    Ok(())
}

/// A document that was read; `None` where no document has the id.
type Read = Option<(Info, Rows)>;

/// Reads documents as ranges of so many, all at once; `None` of those that were left out.
async fn read_known(
    trx: &Transaction,
    instance: &Instance,
    ids: &[&str],
    of_range: usize,
) -> Result<Vec<Option<Read>>> {
    let reads = ids.chunks(of_range).map(|part| async move {
        let found = read_range(trx, instance, part).await?.found;
        let mut known: Vec<Option<Read>> = found.into_iter().map(Some).collect();
        known.resize_with(part.len(), || None);
        Ok::<_, Error>(known)
    });
    Ok(try_join_all(reads).await?.into_iter().flatten().collect())
}
