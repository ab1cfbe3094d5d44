//! Checks that `_db_updates` agrees with the existing databases.

use std::collections::{HashMap, HashSet};

use flatbed_databases::server::Inner;
use flatbed_store::buckets::Buckets;
use flatbed_store::error::Result;
use flatbed_store::keys::{KeyRange, bucket_of};
use flatbed_store::proto;
use flatbed_store::seq::STAMP_BYTES;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use flatbed_store::updated::{newest_rows, stamp_of};
use prost::Message;

use crate::check::pages::{PageSize, read_page};
use crate::check::{PAGE_KEYS, Report, hex, run};

/// The number of databases checked in one transaction, each with two reads.
const PAGE_DATABASES: usize = 100;

pub(super) async fn check(inner: &Inner, report: &mut Report) -> Result<()> {
    let (size, size_of_databases) = (&PageSize::new(PAGE_KEYS), &PageSize::new(PAGE_DATABASES));
    let mut rest = Some(inner.keys.newest_updates());
    while let Some(range) = rest {
        rest = page(inner, report, size, NewestPage { inner, range: &range, size }).await?;
    }
    let mut rest = Some(inner.keys.databases_updated(0, u8::MAX));
    while let Some(range) = rest {
        let size = size_of_databases;
        rest = page(inner, report, size, UpdatedPage { inner, range: &range, size }).await?;
    }
    // Reads the log from its end: the newest entry of each name says whether the database exists. A new event during
    // the check makes the comparison with the names invalid.
    let before = run(inner, &mut LastEvent { inner }).await?;
    let mut found = Report::default();
    let mut seen = HashSet::new();
    let mut rest = Some(inner.keys.database_events());
    while let Some(range) = rest {
        rest = page(inner, &mut found, size, EventsPage { inner, range: &range, seen: &mut seen, size }).await?;
    }
    report.keys += found.keys;
    if run(inner, &mut LastEvent { inner }).await? == before {
        found.violations.into_iter().for_each(|violation| report.violation(violation));
    }
    Ok(())
}

type Page = (usize, Vec<String>, Option<KeyRange>);

async fn page(
    inner: &Inner,
    report: &mut Report,
    size: &PageSize,
    mut page: impl Operation<Output = Page>,
) -> Result<Option<KeyRange>> {
    let (keys, violations, next) = read_page(inner, size, &mut page).await?;
    report.keys += keys as u64;
    violations.into_iter().for_each(|violation| report.violation(violation));
    Ok(next)
}

struct NewestPage<'a> {
    inner: &'a Inner,
    range: &'a KeyRange,
    size: &'a PageSize,
}

impl Operation for NewestPage<'_> {
    type Output = Page;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Page> {
        let keys = &self.inner.keys;
        let page = trx.range(self.range, true).page(self.size.attempt()).await?;
        let is_wrong = |key: &[u8], value: &[u8]| keys.newest_update_bucket(key).is_err() || stamp_of(value).is_err();
        let wrong = page.iter().filter(|row| is_wrong(row.key(), row.value()));
        let violations = wrong.map(|row| format!("key {} is no bucket's newest change", hex(row.key()))).collect();
        Ok((page.len(), violations, page.rest))
    }
}

/// Checks that the stamp of a database's newest change equals its own `last_seq`.
struct UpdatedPage<'a> {
    inner: &'a Inner,
    range: &'a KeyRange,
    size: &'a PageSize,
}

impl Operation for UpdatedPage<'_> {
    type Output = Page;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Page> {
        let keys = &self.inner.keys;
        let newest: HashMap<Vec<u8>, Vec<u8>> = newest_rows(trx, keys).await?.into_iter().collect();
        let page = trx.range(self.range, true).page(self.size.attempt()).await?;
        let rows = page.to_vec();
        let mut violations = Vec::new();
        for (key, value) in &rows {
            let (Ok((name, shard)), Ok(stamp)) = (keys.database_updated_parse(key), stamp_of(value)) else {
                violations.push(format!("key {} is no database's newest change", hex(key)));
                continue;
            };
            let Some(record) = trx.get(&keys.database(&name), true).await? else {
                violations.push(format!("{name:?} is listed as changed, and there is no such database"));
                continue;
            };
            let record = proto::DatabaseRecord::decode(&*record)?;
            let buckets = Buckets::of_record(&keys.namespace(record.namespace), &record, self.inner.writer);
            let Some(bucket) = buckets.of(shard) else {
                violations.push(format!("{name:?} is listed as changed in shard {shard}, which it does not have"));
                continue;
            };
            let last_seq = trx.get(&bucket.last_seq(), true).await?;
            let last_seq = last_seq.as_deref().unwrap_or_default();
            if last_seq.get(..STAMP_BYTES - 2) != stamp.get(..STAMP_BYTES - 2) {
                violations.push(format!("{name:?} is listed as changed at {}, not at {}", hex(value), hex(last_seq)));
            }
            let newest = newest.get(&keys.newest_update(bucket_of(&name, shard)));
            if newest.is_none_or(|newest| value > newest) {
                violations.push(format!("{name:?} is listed as changed after the newest change of its bucket"));
            }
        }
        Ok((rows.len(), violations, page.rest))
    }
}

struct EventsPage<'a> {
    inner: &'a Inner,
    range: &'a KeyRange,
    seen: &'a mut HashSet<String>,
    size: &'a PageSize,
}

impl Operation for EventsPage<'_> {
    type Output = Page;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Page> {
        let keys = &self.inner.keys;
        let page = trx.range(self.range, true).reverse(true).page(self.size.attempt()).await?;
        let rows = page.to_vec();
        let mut violations = Vec::new();
        let mut new = HashSet::new();
        for (key, value) in &rows {
            let (Ok(_), Ok(event)) = (keys.database_event_stamp(key), proto::DatabaseEvent::decode(value.as_slice()))
            else {
                violations.push(format!("key {} is no creation or deletion", hex(key)));
                continue;
            };
            if self.seen.contains(&event.name) || !new.insert(event.name.clone()) {
                continue;
            }
            let is_there = trx.get(&keys.database(&event.name), true).await?.is_some();
            if is_there == event.deleted {
                let told = if event.deleted { "deleted" } else { "created" };
                violations.push(format!("{:?} is listed as {told}, and is not", event.name));
            }
        }
        // Last, since the attempt may be retried.
        self.seen.extend(new);
        Ok((rows.len(), violations, page.rest))
    }
}

struct LastEvent<'a> {
    inner: &'a Inner,
}

impl Operation for LastEvent<'_> {
    type Output = Option<Vec<u8>>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let range = self.inner.keys.database_events();
        let last = trx.range(&range, true).reverse(true).first(1).await?;
        Ok(last.first().map(|row| row.key().to_vec()))
    }
}
