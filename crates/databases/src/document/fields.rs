//! The mapping of field names to ids, stored in FoundationDB and cached for each instance of a database.
//!
//! Ids are allocated in a separate transaction before a document uses them, and enter the cache only after its commit.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use flatbed_flatten::json::Value;
use flatbed_flatten::path::FIRST_FIELD_ID;
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::Keys;
use flatbed_store::proto;
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use foundationdb::FdbError;
use prost::Message;

use crate::instance::Instance;
use crate::server::Inner;

/// FoundationDB's error for a read version that is too old: the reader retries.
const TRANSACTION_TOO_OLD: i32 = 1007;

const ALLOCATED_AT_ONCE_MAX: usize = 256;

/// Byte length above which a name is stored literally in paths: its mapping key would cost more than it saves.
pub const FIELD_NAME_BYTES_MAX: usize = 512;

/// Names that one range reads: with usual lengths, one reply of the storage.
const NAMES_AT_ONCE: u64 = 1_000;

/// Names that one transaction reads, in concurrent ranges.
const LOADED_AT_ONCE: u64 = 16 * NAMES_AT_ONCE;

/// Names with consecutive ids.
pub struct NamesPage {
    pub names: Vec<String>,
    /// True if there are no more.
    pub are_all: bool,
}

/// Reads a bounded number of names from id `from`.
pub async fn load(trx: &Transaction, keys: &Keys, from: u64) -> Result<NamesPage> {
    // The first range is read beside the count, since it is usually the last.
    let next = async { next_id(trx.get(&keys.next_field_id(), true).await?.as_deref()) };
    let (next, mut names) = futures_util::try_join!(next, read_names(trx, keys, from, NAMES_AT_ONCE))?;
    let until = next.min(from + LOADED_AT_ONCE);
    let begin = from + names.len() as u64;
    let ranges = (begin..until).step_by(NAMES_AT_ONCE as usize);
    let reads = ranges.map(|begin| read_names(trx, keys, begin, NAMES_AT_ONCE.min(until - begin)));
    for more in futures_util::future::try_join_all(reads).await? {
        names.extend(more);
    }
    let read_to = from + names.len() as u64;
    if read_to < until {
        return Err(gap());
    }
    Ok(NamesPage { names, are_all: read_to >= next })
}

fn next_id(bytes: Option<&[u8]>) -> Result<u64> {
    bytes.map_or(Ok(FIRST_FIELD_ID), |bytes| Ok(proto::FieldId::decode(bytes)?.id))
}

fn gap() -> Error {
    Error::Corrupt("field ids have a gap".into())
}

/// Reads at most `most` consecutive names from id `from`.
async fn read_names(trx: &Transaction, keys: &Keys, from: u64, most: u64) -> Result<Vec<String>> {
    let range = keys.field_names_from(from);
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let rows = trx.range(&range, true).first(most).await?;
    let mut names = Vec::with_capacity(rows.len());
    for row in rows.iter() {
        if keys.field_name_id(row.key())? != from + names.len() as u64 {
            return Err(gap());
        }
        names.push(proto::FieldName::decode(row.value())?.name);
    }
    Ok(names)
}

/// Allocates ids for names that have none.
pub struct Allocate<'a> {
    pub inner: &'a Inner,
    /// The database.
    pub instance: &'a Instance,
    /// In the order of first use, without duplicates.
    pub names: &'a [String],
    /// The first id that the cache does not have.
    pub known_until: u64,
    /// Id limit of the database.
    pub ids_max: u64,
    /// Number of ids that the last attempt allocated.
    pub attempted: u64,
}

pub enum AllocationOutcome {
    /// The names behind the cache's end, and the number of new ids.
    Names(Vec<String>, u64),
    /// The cache lacks many names, which must be loaded first.
    Behind,
    /// The database was replaced.
    OtherInstance,
}

impl Operation for Allocate<'_> {
    type Output = AllocationOutcome;

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<Self::Output> {
        let found = self.inner.resolve_for_write(trx, &self.instance.name).await?;
        // A changed setting does not affect names.
        if found.id() != self.instance.id() {
            return Ok(AllocationOutcome::OtherInstance);
        }
        let keys = &self.instance.keys;
        // The next id is read with conflict: of two processes that allocate at once, one retries and finds the other's
        // names.
        let next_key = keys.next_field_id();
        let next = async { next_id(trx.get(&next_key, false).await?.as_deref()) };
        let entered = read_names(trx, keys, self.known_until, NAMES_AT_ONCE);
        let (next, mut entered) = futures_util::try_join!(next, entered)?;
        match next.saturating_sub(self.known_until) {
            behind if behind > NAMES_AT_ONCE => return Ok(AllocationOutcome::Behind),
            behind if behind != entered.len() as u64 => return Err(gap()),
            _ => {}
        }
        let known: HashSet<String> = entered.iter().cloned().collect();
        let mut free = (FIRST_FIELD_ID + self.ids_max).saturating_sub(next);
        let mut id = next;
        for name in self.names {
            if free == 0 {
                break;
            }
            if known.contains(name) {
                continue;
            }
            trx.set(&keys.field_id(name), &proto::FieldId { id }.encode_to_vec());
            trx.set(&keys.field_name(id), &proto::FieldName { name: name.clone() }.encode_to_vec());
            entered.push(name.clone());
            id += 1;
            free -= 1;
        }
        if id != next {
            trx.set(&next_key, &proto::FieldId { id }.encode_to_vec());
        }
        // If all names have ids, an earlier attempt may have committed.
        if id != next || !attempt.maybe_committed {
            self.attempted = id - next;
        }
        Ok(AllocationOutcome::Names(entered, self.attempted))
    }
}

impl Instance {
    /// Caches the ids of the names in `bodies`, and allocates missing ones up to the limit of the database. Names
    /// without an id are stored literally.
    pub async fn prepare_names<'b, 'v: 'b>(
        &self,
        inner: &Inner,
        bodies: impl Iterator<Item = &'b Value<'v>> + Send + Clone,
    ) -> Result<()> {
        let unknown = |instance: &Instance| {
            let view = instance.fields.view();
            let mut seen = HashSet::new();
            let mut unknown: Vec<String> = Vec::new();
            let room = (instance.record.field_ids_max as usize).saturating_sub(view.len());
            for body in bodies.clone() {
                for name in flatbed_flatten::unknown_names(body, &view) {
                    if unknown.len() == room {
                        return unknown;
                    }
                    if name.len() <= FIELD_NAME_BYTES_MAX && seen.insert(name.to_owned()) {
                        unknown.push(name.to_owned());
                    }
                }
            }
            unknown
        };
        if unknown(self).is_empty() {
            inner.metrics.mapping_hits.add(1);
            return Ok(());
        }
        inner.metrics.mapping_misses.add(1);
        let _alone = self.fields.allocation.lock().await;
        // Each round looks again: another task or server may have allocated the same names.
        loop {
            // Before the look: names that another task adds later come with the allocation's own load.
            let known_until = FIRST_FIELD_ID + self.fields.len() as u64;
            let mut names = unknown(self);
            names.truncate(ALLOCATED_AT_ONCE_MAX);
            if names.is_empty() {
                return Ok(());
            }
            let mut allocate = Allocate {
                inner,
                instance: self,
                names: &names,
                known_until,
                ids_max: u64::from(self.record.field_ids_max),
                attempted: 0,
            };
            let done = transaction::write(&inner.db, &inner.metrics, &mut allocate).await?;
            let (entered, allocated) = match done {
                AllocationOutcome::Names(entered, allocated) => (entered, allocated),
                // The transaction that writes the documents notices as well, and the write starts again.
                AllocationOutcome::OtherInstance => return Ok(()),
                AllocationOutcome::Behind => {
                    self.reload_names(inner).await?;
                    continue;
                }
            };
            inner.metrics.field_ids_allocated.add(allocated);
            if entered.is_empty() {
                return Ok(());
            }
            self.fields.enter(known_until, &entered);
            inner.databases.weigh(&self.name, &self.fields);
        }
    }

    /// Loads the names that other processes have allocated, in as many transactions as needed; names stay cached if a
    /// later transaction fails. Concurrent callers share a load, but only one that began after their call: an earlier
    /// one may have read before the missing names existed, or may have been dropped.
    pub async fn reload_names(&self, inner: &Inner) -> Result<()> {
        struct Load<'a>(&'a Inner, &'a Instance, u64);
        impl transaction::Operation for Load<'_> {
            type Output = Option<NamesPage>;
            async fn attempt(
                &mut self,
                trx: &transaction::Transaction,
                _: transaction::Attempt,
            ) -> Result<Option<NamesPage>> {
                let Load(inner, instance, from) = *self;
                let names = load(trx, &instance.keys, from);
                let (found, names) = futures_util::try_join!(inner.resolve(trx, &instance.name), names)?;
                Ok((found.id() == instance.id()).then_some(names))
            }
        }
        let begun_before = self.fields.loads.load(Ordering::Relaxed);
        let mut gone_through = self.fields.loading.lock().await;
        if *gone_through > begun_before {
            return Ok(());
        }
        let number = self.fields.loads.fetch_add(1, Ordering::Relaxed) + 1;
        loop {
            let from = FIRST_FIELD_ID + self.fields.len() as u64;
            let loaded = transaction::read(&inner.db, &inner.metrics, &mut Load(inner, self, from)).await?;
            // The caller has read a state that was replaced: it must retry.
            let loaded = loaded.ok_or(Error::Storage(FdbError::from_code(TRANSACTION_TOO_OLD)))?;
            self.fields.enter(from, &loaded.names);
            inner.databases.weigh(&self.name, &self.fields);
            if loaded.are_all {
                *gone_through = number;
                return Ok(());
            }
        }
    }
}
