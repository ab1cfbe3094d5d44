//! The mapping of field names to ids, stored in FoundationDB and cached for each instance of a database.
//!
//! Ids are allocated in a separate transaction before a document uses them, and enter the cache only after its commit.
//! They are allocated in the order of first use, without gaps, so the cache is a vector.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, RwLock, RwLockReadGuard};

use flatbed_flatten::path::FIRST_FIELD_ID;
use flatbed_flatten::{FieldIds, FieldNames, member_text};
use prost::Message;

use crate::error::{Error, Result};
use crate::instance::Instance;
use crate::layer::Inner;
use crate::store::keys::Keys;
use crate::store::proto;
use crate::store::transaction::{Attempt, Operation, Transaction};

/// Byte length above which a name is stored literally in paths: its mapping key would cost more than it saves.
pub(crate) const FIELD_NAME_BYTES_MAX: usize = 512;

#[derive(Debug, Default)]
struct NameTable {
    names: Vec<Arc<str>>,
    /// The names as text of JSON members.
    members: Vec<Box<[u8]>>,
    // Looked up for each name of each document; seeded, since clients choose the names.
    ids: HashMap<Arc<str>, u64, foldhash::fast::RandomState>,
}

/// The cached mapping of a database. Entries are never removed or changed while the instance lives.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    table: RwLock<NameTable>,
    /// Held during an allocation, so that this process does not conflict with itself.
    pub(crate) allocation: tokio::sync::Mutex<()>,
    /// Held during a load, so that one load serves all callers: the number of the last completed load.
    pub(crate) loading: tokio::sync::Mutex<u64>,
    /// Number of loads that were begun.
    pub(crate) loads: AtomicU64,
}

impl Fields {
    /// Returns a view for flattening one document. It holds the cache's read lock, so it must not be held across an
    /// await, nor twice in a thread: a writer that waits between them would block both.
    pub(crate) fn view(&self) -> FieldsView<'_> {
        FieldsView(self.table.read().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Returns the number of known ids.
    pub(crate) fn len(&self) -> usize {
        self.view().len()
    }

    /// Adds `names` with consecutive ids from `first_id`. Known names are skipped; a name behind a gap is not added,
    /// and the next load adds it.
    pub(crate) fn enter(&self, first_id: u64, names: &[String]) {
        let mut table = self.table.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        for (id, name) in (first_id..).zip(names) {
            if id != FIRST_FIELD_ID + table.names.len() as u64 {
                continue;
            }
            let name: Arc<str> = name.as_str().into();
            table.names.push(name.clone());
            table.members.push(member_text(&name));
            table.ids.insert(name, id);
        }
    }
}

pub(crate) struct FieldsView<'f>(RwLockReadGuard<'f, NameTable>);

impl FieldsView<'_> {
    /// Returns the number of known ids.
    pub(crate) fn len(&self) -> usize {
        self.0.names.len()
    }
}

impl FieldIds for FieldsView<'_> {
    fn id_of(&self, name: &str) -> Option<u64> {
        self.0.ids.get(name).copied()
    }
}

impl FieldNames for FieldsView<'_> {
    fn name_of(&self, id: u64) -> Option<&str> {
        let at = usize::try_from(id.checked_sub(FIRST_FIELD_ID)?).ok()?;
        self.0.names.get(at).map(|name| &**name)
    }

    fn member_text_of(&self, id: u64) -> Option<&[u8]> {
        let at = usize::try_from(id.checked_sub(FIRST_FIELD_ID)?).ok()?;
        self.0.members.get(at).map(|text| &**text)
    }
}

/// Names that one range reads: with usual lengths, one reply of the storage.
const NAMES_AT_ONCE: u64 = 1_000;

/// Names that one transaction reads, in concurrent ranges.
const LOADED_AT_ONCE: u64 = 16 * NAMES_AT_ONCE;

/// Names with consecutive ids.
pub(crate) struct NamesPage {
    pub names: Vec<String>,
    /// True if there are no more.
    pub are_all: bool,
}

/// Reads a bounded number of names from id `from`.
pub(crate) async fn load(trx: &Transaction, keys: &Keys, from: u64) -> Result<NamesPage> {
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
pub(crate) struct Allocate<'a> {
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

pub(crate) enum AllocationOutcome {
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
