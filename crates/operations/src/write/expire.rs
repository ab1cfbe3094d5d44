//! Writes tombstones of expired documents.
//!
//! Tombstones are written in the order of expiry, in transactions of bounded size, several at once. A tombstone names
//! the expired revision, so a document with a newer revision is left alone. It is in the channels of the document, and
//! grants nothing.

use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_clock::LinePacer;
use flatbed_databases::document::edit::Edit;
use flatbed_databases::document::verdict::Verdict;
use flatbed_databases::handles::WriteHandle;
use flatbed_databases::instance::{Instance, InstanceId};
use flatbed_databases::server::Inner;
use flatbed_databases::slots::State;
use flatbed_flatten::json::Value;
use flatbed_revtree::{GENERATION_MAX, RevId};
use flatbed_store::error::{Error, Refusal, Result};
use flatbed_store::keys::{ChannelPart, KeyRange};
use flatbed_store::records::{Info, RevisionRecord};
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use futures_util::future::try_join_all;

use crate::index::prepare::Preparations;
use crate::judge::ask::JudgedEdit;
use crate::write::batch::{Item, PreparedEdits, Work, WriteBatch, prepare};

/// Documents that are examined at once. Each takes six reads here and as many for its tombstone, and other clients of a
/// cluster, at 50 µs for each read, wait behind them.
const LOOKED_AT: usize = 128;

/// Transactions that run at once.
const AT_ONCE: usize = 4;

pub struct ExpiredDocument {
    pub id: String,
    winner: RevId,
    /// Its channels, without grants.
    verdict: Verdict,
}

pub struct ExpiryPage {
    /// The database as of the page's read: its rules judge the tombstones.
    instance: Arc<Instance>,
    pub ended: Vec<ExpiredDocument>,
    /// The key behind the last examined one, if there may be more.
    behind: Option<Vec<u8>>,
}

pub struct ReadEnded<'a> {
    pub inner: &'a Inner,
    pub name: &'a str,
    /// The start in this instance; another instance is read from its beginning.
    pub begin: Option<&'a (InstanceId, Vec<u8>)>,
    pub until_s: u64,
}

impl Operation for ReadEnded<'_> {
    type Output = ExpiryPage;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<ExpiryPage> {
        let ReadEnded { inner, name, begin, until_s } = *self;
        let found = inner.resolve(trx, name).await?;
        let instance = &*found;
        if instance.channels() == 0 {
            return Ok(ExpiryPage { instance: found, ended: Vec::new(), behind: None });
        }
        let KeyRange { begin: first, end } = instance.keys.ends_until(until_s);
        let begin = begin.filter(|(of, _)| *of == instance.id()).map_or(first, |(_, key)| key.clone());
        let rows = trx.range(&KeyRange { begin, end }, true).page(LOOKED_AT).await?;
        let parts = rows.iter().map(|row| instance.keys.split_channels(row.key())).collect::<Result<Vec<_>>>();
        let behind = rows.rest.as_ref().map(|rest| rest.begin.clone());
        drop(rows);
        let reads = parts?.into_iter().map(|part| async move {
            let ChannelPart::End { second, id } = part else { return Ok(None) };
            let keys = instance.keys.document(&id);
            let Some(info) = trx.get(&keys.info(), true).await? else { return Ok(None) };
            let info = Info::decode(&info)?;
            let ends = info.routed.expires_at_ms.is_some_and(|at| at.div_ceil(1_000) == second);
            // The last generation has no successor for a tombstone. Such a document stays, hidden.
            if info.deleted || !ends || info.winner.generation() >= GENERATION_MAX {
                return Ok::<_, Error>(None);
            }
            let record = trx.get(&keys.revision(&info.winner), true).await?;
            let said = record.map(|record| RevisionRecord::decode(&record)).transpose()?;
            let said = said.map(|record| Verdict::decode(record.verdict)).unwrap_or_default();
            let verdict = Verdict { channels: said.channels, ..Verdict::default() };
            Ok(Some(ExpiredDocument { id, winner: info.winner, verdict }))
        });
        let ended = try_join_all(reads).await?.into_iter().flatten().collect();
        Ok(ExpiryPage { instance: found, ended, behind })
    }
}

/// Writes tombstones for documents that expired by the later of now and `due_ms`, for about `turn`. Returns whether it
/// has finished. `None`: `due_ms` is more than `ahead` from now, because the clock was set back since the entry was
/// due. The entry stays: no document goes before its time, and none is forgotten.
#[boxed]
pub async fn expire(database: &WriteHandle, turn: Duration, due_ms: u64, ahead: Duration) -> Result<Option<bool>> {
    let inner = &*database.inner;
    let now_ms = inner.clock.unix_ms();
    if due_ms > now_ms.saturating_add(u64::try_from(ahead.as_millis()).unwrap_or(u64::MAX)) {
        return Ok(None);
    }
    let until_s = now_ms.max(due_ms) / 1_000;
    let until = inner.clock.now() + turn;
    let mut begin: Option<(InstanceId, Vec<u8>)> = None;
    loop {
        // The cached database may be older than a change of the rules or of the sync function: each page reads the
        // database with it.
        let mut read = ReadEnded { inner, name: &database.name, begin: begin.as_ref(), until_s };
        let ExpiryPage { instance, ended, behind } = transaction::read(&inner.db, &inner.metrics, &mut read).await?;
        let parts = ended.chunks(ended.len().div_ceil(AT_ONCE).max(1));
        let buried = try_join_all(parts.map(|part| bury(database, &instance, part))).await?;
        // If the rules have changed since, the same page is read again, with the documents that are left.
        let is_left = buried.contains(&BuryOutcome::Changed);
        if !is_left && behind.is_none() {
            return Ok(Some(true));
        }
        if inner.clock.now() >= until {
            return Ok(Some(false));
        }
        if let (false, Some(key)) = (is_left, behind) {
            begin = Some((instance.id(), key));
        }
    }
}

/// The outcome of writing tombstones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BuryOutcome {
    /// Each document has its tombstone, or a newer revision than the expired one, or cannot have a tombstone.
    All,
    /// Some tombstones were not written: the database's instance or its rules have changed.
    Changed,
}

/// Writes the tombstones of documents that are unchanged since they were read.
async fn bury(database: &WriteHandle, instance: &Instance, ended: &[ExpiredDocument]) -> Result<BuryOutcome> {
    let inner = &*database.inner;
    let edit = |ended: &ExpiredDocument| Edit {
        id: ended.id.clone().into(),
        parent: Some(ended.winner.clone()),
        history: None,
        deleted: true,
        expiry: None,
        attachments: Vec::new(),
        body: Value::Object(Vec::new()),
    };
    let edits: Vec<Edit<'static>> = ended.iter().map(edit).collect();
    let wanted: Vec<usize> = (0..edits.len()).collect();
    let PreparedEdits { batches, refused } = prepare(database, instance, &edits, &wanted).await?;
    // A retry would be refused again; the refusal must not hold up later documents.
    let log = |at: usize, refusal: &Refusal| {
        let Some(left_out) = inner.state::<ExpiryLines>().0.line(()) else { return };
        let (database, document) = (&*instance.name, ended.get(at).map_or("", |ended| ended.id.as_str()));
        tracing::warn!(database, document, %refusal, left_out, "an expired document cannot get a tombstone");
    };
    refused.iter().for_each(|(at, refusal)| log(*at, refusal));
    let work = Work::new(inner);
    for mut items in batches {
        for item in &mut items {
            let verdict = ended.get(item.at()).map(|ended| ended.verdict.clone()).unwrap_or_default();
            item.judge(JudgedEdit { judgement: Ok(verdict), ..JudgedEdit::may() });
        }
        while !items.is_empty() {
            let preparations = Preparations::of(instance);
            if preparations.are_wanted() {
                let asked: Vec<&Edit<'_>> = items.iter().filter_map(|item| edits.get(item.at())).collect();
                preparations.edits(inner, &asked).await?;
            }
            let mut write = WriteBatch {
                inner,
                instance,
                edits: &edits,
                items: &mut items,
                attempts: 0,
                work: &work,
                preparations,
                is_shared: false,
            };
            let Some(outcomes) = transaction::write(&inner.db, &inner.metrics, &mut write).await? else {
                return Ok(BuryOutcome::Changed);
            };
            let mut done = vec![false; items.len()];
            for (place, outcome) in outcomes {
                match outcome {
                    Ok(_) => inner.metrics.documents_written.add(1),
                    // The document has a newer revision.
                    Err(Refusal::Conflict) => {}
                    Err(refusal) => log(items.get(place).map_or(usize::MAX, Item::at), &refusal),
                }
                if let Some(done) = done.get_mut(place) {
                    *done = true;
                }
            }
            if !done.contains(&true) {
                return Ok(BuryOutcome::Changed);
            }
            let mut done = done.into_iter();
            items.retain(|_| done.next() != Some(true));
        }
    }
    Ok(BuryOutcome::All)
}

/// Limits log lines about expired documents that cannot be given tombstones.
struct ExpiryLines(LinePacer<()>);

impl State<Inner> for ExpiryLines {
    fn new_of(inner: &Inner) -> ExpiryLines {
        ExpiryLines(LinePacer::new(&inner.clock))
    }
}
