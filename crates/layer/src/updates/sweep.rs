//! Takes creations and deletions out of the log that later ones have made meaningless.

use std::collections::HashSet;
use std::time::Duration;

use prost::Message;

use crate::error::Result;
use crate::keys::KeyRange;
use crate::layer::{Inner, now_ms};
use crate::proto;
use crate::read::page_of;
use crate::transaction::{self, Attempt, Operation, Quiet, Transaction};

/// Entries read in one transaction, and removed in one.
const PAGE_ENTRIES: usize = 1_000;

/// Deletions of names that are not in use again; older ones beyond this many are forgotten.
const DELETIONS_KEPT: usize = 100_000;

/// Removes entries that a later one of the same name supersedes, and that are older than `kept_for`: until then followers
/// see each. Returns how many. Several processes may do so at once.
///
/// It holds the names of all databases, and of as many deleted ones.
pub(crate) async fn sweep(inner: &Inner, kept_for: Duration) -> Result<u64> {
    let older_than_ms = now_ms().saturating_sub(kept_for.as_millis() as u64);
    let mut seen: HashSet<String> = HashSet::new();
    let (mut deletions, mut removed) = (0, 0);
    let mut rest = Some(inner.keys.database_events());
    while let Some(range) = rest {
        let mut page = Page { range: &range };
        let (entries, next) = transaction::read(&inner.db, &inner.metrics, &mut page).await?;
        let mut superseded = Vec::new();
        for (key, event) in entries {
            deletions += usize::from(event.deleted);
            let is_newest = seen.insert(event.name);
            let is_kept = is_newest && (!event.deleted || deletions <= DELETIONS_KEPT);
            if !is_kept && event.at_ms <= older_than_ms {
                superseded.push(key);
            }
        }
        if !superseded.is_empty() {
            transaction::write(&inner.db, &inner.metrics, &mut Remove { keys: &superseded }).await?;
            removed += superseded.len() as u64;
        }
        rest = next;
    }
    Ok(removed)
}

/// A page of the log from its end.
struct Page<'a> {
    range: &'a KeyRange,
}

impl Operation for Page<'_> {
    type Output = (Vec<(Vec<u8>, proto::DatabaseEvent)>, Option<KeyRange>);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let page = trx.get_range(&page_of(self.range, PAGE_ENTRIES, true), 1, true).await?;
        let more = page.more() || page.len() == PAGE_ENTRIES;
        let next = page.last().filter(|_| more);
        let next = next.map(|last| KeyRange { begin: self.range.begin.clone(), end: last.key().to_vec() });
        let entries = page.iter().map(|row| Ok((row.key().to_vec(), proto::DatabaseEvent::decode(row.value())?)));
        Ok((entries.collect::<Result<_>>()?, next))
    }
}

struct Remove<'a> {
    keys: &'a [Vec<u8>],
}

impl Operation for Remove<'_> {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<()> {
        let quiet = Quiet(trx);
        self.keys.iter().try_for_each(|key| quiet.clear(key))
    }
}
