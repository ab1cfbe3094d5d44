//! Writing tombstones for documents whose time is over.
//!
//! They go in the order of their seconds, in transactions of bounded size, several at once. What was written with another revision since is
//! left alone: the tombstone names the one that has ended. It is in the channels that the document was in, and gives nothing.

use std::time::Duration;

use flatbed_flatten::json::Value;
use flatbed_revtree::RevId;
use futures_util::future::try_join_all;

use crate::document::edit::Edit;
use crate::document::verdict::Verdict;
use crate::error::{Error, Result};
use crate::handle::Database;
use crate::index::prepare::Preparations;
use crate::instance::Instance;
use crate::judge::ask::Judged;
use crate::layer::Inner;
use crate::store::keys::{ChannelPart, KeyRange};
use crate::store::records::{Info, RevisionRecord};
use crate::store::transaction::{self, Attempt, Operation, Transaction};
use crate::write::batch::{Cut, Work, WriteBatch, instance_of, prepare};

/// Documents that are looked at at once: six reads each, here and as they are written, which others wait behind on a cluster
/// whose server takes 50 µs for one.
const LOOKED_AT: usize = 128;

/// Transactions that are under way at once.
const AT_ONCE: usize = 4;

/// A document that has ended.
struct Ended {
    id: String,
    winner: RevId,
    /// Where it is.
    verdict: Verdict,
}

/// Documents that end first.
struct Page {
    ended: Vec<Ended>,
    /// Behind the last that was looked at, where there may be more; and how many that were.
    behind: Option<Vec<u8>>,
}

struct ReadEnded<'a> {
    inner: &'a Inner,
    instance: &'a Instance,
    begin: Option<&'a [u8]>,
    until_s: u64,
}

impl Operation for ReadEnded<'_> {
    /// `None`: the database is another one now.
    type Output = Option<Page>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Option<Page>> {
        let ReadEnded { inner, instance, begin, until_s } = *self;
        let KeyRange { begin: first, end } = instance.keys.ends_until(until_s);
        let range = KeyRange { begin: begin.map_or(first, <[u8]>::to_vec), end };
        let rows = trx.range(&range, true).page(LOOKED_AT);
        if inner.resolve(trx, &instance.name).await?.id() != instance.id() {
            return Ok(None);
        }
        let rows = rows.await?;
        let parts = rows.iter().map(|row| instance.keys.split_channels(row.key())).collect::<Result<Vec<_>>>();
        let behind = rows.rest.as_ref().map(|rest| rest.begin.clone());
        drop(rows);
        let reads = parts?.into_iter().map(|part| async move {
            let ChannelPart::End { second, id } = part else { return Ok(None) };
            let keys = instance.keys.document(&id);
            let Some(info) = trx.get(&keys.info(), true).await? else { return Ok(None) };
            let info = Info::decode(&info)?;
            let ends = info.routed.expires_at_ms.is_some_and(|at| at.div_ceil(1_000) == second);
            if info.deleted || !ends {
                return Ok::<_, Error>(None);
            }
            let record = trx.get(&keys.revision(&info.winner), true).await?;
            let said = record.map(|record| RevisionRecord::decode(&record)).transpose()?;
            let said = said.map(|record| Verdict::decode(record.verdict)).unwrap_or_default();
            let verdict = Verdict { channels: said.channels, ..Verdict::default() };
            Ok(Some(Ended { id, winner: info.winner, verdict }))
        });
        let ended = try_join_all(reads).await?.into_iter().flatten().collect();
        Ok(Some(Page { ended, behind }))
    }
}

/// Writes tombstones for what has ended by now, for about so long; whether it is through.
pub(crate) async fn expire(database: &Database, turn: Duration) -> Result<bool> {
    let inner = &*database.inner;
    let (until, until_s) = (inner.clock.now() + turn, inner.clock.unix_seconds());
    let instance = instance_of(inner, &database.name).await?;
    let mut begin: Option<Vec<u8>> = None;
    loop {
        if instance.channels() == 0 {
            return Ok(true);
        }
        let mut read = ReadEnded { inner, instance: &instance, begin: begin.as_deref(), until_s };
        let Some(Page { ended, behind }) = transaction::read(&inner.db, &inner.metrics, &mut read).await? else {
            return Ok(false);
        };
        let parts = ended.chunks(ended.len().div_ceil(AT_ONCE).max(1));
        try_join_all(parts.map(|part| bury(database, &instance, part))).await?;
        // What was not written is behind nobody's back: it is there when this is done the next time.
        match behind {
            Some(_) if inner.clock.now() >= until => return Ok(false),
            Some(behind) => begin = Some(behind),
            None => return Ok(true),
        }
    }
}

/// Writes the tombstones of some documents, those that are as they were found.
async fn bury(database: &Database, instance: &Instance, ended: &[Ended]) -> Result<()> {
    let inner = &*database.inner;
    let edit = |ended: &Ended| Edit {
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
    let Cut { batches, .. } = prepare(database, instance, &edits, &wanted).await?;
    let work = Work::new(inner);
    for mut items in batches {
        for item in &mut items {
            let verdict = ended.get(item.at()).map(|ended| ended.verdict.clone()).unwrap_or_default();
            item.judge(Judged { judgement: Ok(verdict), ..Judged::may() });
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
            // `None`: another function judges now, or the database is another one: the next time.
            let outcomes = transaction::write(&inner.db, &inner.metrics, &mut write).await?.unwrap_or_default();
            if outcomes.is_empty() {
                return Ok(());
            }
            let written = outcomes.iter().filter(|(_, outcome)| outcome.is_ok()).count();
            inner.metrics.documents_written.add(written as u64);
            let done: Vec<usize> = outcomes.iter().map(|(place, _)| *place).collect();
            let mut place = 0;
            items.retain(|_| {
                let is_left = !done.contains(&place);
                place += 1;
                is_left
            });
        }
    }
    Ok(())
}
