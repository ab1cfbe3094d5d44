//! The mapping of field names to ids: kept in FoundationDB, cached here for one instance of a database.
//!
//! Ids are allocated in a transaction of their own before a document uses them, and enter the cache only after that
//! transaction is committed. They grow in the order in which names are first seen, without gaps, so that the cache is a
//! vector.

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

/// Longer names stand literally in paths: a mapping key would be too large for what it saves.
pub(crate) const FIELD_NAME_BYTES_MAX: usize = 512;

#[derive(Debug, Default)]
struct Table {
    names: Vec<Arc<str>>,
    /// The same as texts of members.
    members: Vec<Box<[u8]>>,
    // Looked up for every name of every document; seeded, since names come from outside.
    ids: HashMap<Arc<str>, u64, foldhash::fast::RandomState>,
}

/// What is known of a database's mapping. Entries are never removed nor changed while the instance lives.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    table: RwLock<Table>,
    /// Held while this process allocates, so that it does not conflict with itself.
    pub(crate) allocation: tokio::sync::Mutex<()>,
    /// Held while this process loads names, so that it does so once for all who miss some: the number of the last load that
    /// went through.
    pub(crate) loading: tokio::sync::Mutex<u64>,
    /// Loads that were begun.
    pub(crate) loads: AtomicU64,
}

impl Fields {
    /// A view for flattening one document; holds the cache's read lock, so never across an await, and never two in one
    /// thread: a writer that waits between them would stop both.
    pub(crate) fn view(&self) -> FieldsView<'_> {
        FieldsView(self.table.read().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// How many ids are known.
    pub(crate) fn len(&self) -> usize {
        self.view().len()
    }

    /// Enters `names`, whose ids follow one another from `first_id`. What is known already is left; a gap is not
    /// entered (the next load brings it).
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

/// The cache at one moment.
pub(crate) struct FieldsView<'f>(RwLockReadGuard<'f, Table>);

impl FieldsView<'_> {
    /// How many ids are known.
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

/// Names that are read as one range: of usual lengths they are one answer of the storage.
const NAMES_AT_ONCE: u64 = 1_000;

/// Names that are read in one transaction, their ranges all at once.
const LOADED_AT_ONCE: u64 = 16 * NAMES_AT_ONCE;

/// Names that follow one another.
pub(crate) struct Loaded {
    pub names: Vec<String>,
    /// There are no more.
    pub are_all: bool,
}

/// Reads names from id `from` up, a bounded number.
pub(crate) async fn load(trx: &Transaction, keys: &Keys, from: u64) -> Result<Loaded> {
    // The first come along with how many there are: mostly they are all.
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
    Ok(Loaded { names, are_all: read_to >= next })
}

fn next_id(bytes: Option<&[u8]>) -> Result<u64> {
    bytes.map_or(Ok(FIRST_FIELD_ID), |bytes| Ok(proto::FieldId::decode(bytes)?.id))
}

fn gap() -> Error {
    Error::Corrupt("field ids have a gap".into())
}

/// Reads up to so many names from id `from` up, as they follow one another.
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

/// Gives ids to names that have none.
pub(crate) struct Allocate<'a> {
    pub inner: &'a Inner,
    /// Whose names they are.
    pub instance: &'a Instance,
    /// In order of first sight, without duplicates.
    pub names: &'a [String],
    /// First id that the cache does not have.
    pub known_until: u64,
    /// No more ids than this for the database.
    pub ids_max: u64,
    /// How many ids the last attempt gave.
    pub attempted: u64,
}

/// What came of an allocation.
pub(crate) enum Allocated {
    /// Names from the cache's end on, and how many ids are new.
    Names(Vec<String>, u64),
    /// There are many names that the cache does not have: they are loaded first.
    Behind,
    /// The database is another one now.
    OtherInstance,
}

impl Operation for Allocate<'_> {
    type Output = Allocated;

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<Self::Output> {
        let found = self.inner.resolve_for_write(trx, &self.instance.name).await?;
        // A setting that was changed meanwhile changes nothing about names.
        if found.id() != self.instance.id() {
            return Ok(Allocated::OtherInstance);
        }
        let keys = &self.instance.keys;
        // The next id is read with conflict: of two processes that allocate at once, one begins again and finds the
        // other's names here.
        let next_key = keys.next_field_id();
        let next = async { next_id(trx.get(&next_key, false).await?.as_deref()) };
        let entered = read_names(trx, keys, self.known_until, NAMES_AT_ONCE);
        let (next, mut entered) = futures_util::try_join!(next, entered)?;
        match next.saturating_sub(self.known_until) {
            behind if behind > NAMES_AT_ONCE => return Ok(Allocated::Behind),
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
        // With none left to give, an earlier attempt was committed after all.
        if id != next || !attempt.maybe_committed {
            self.attempted = id - next;
        }
        Ok(Allocated::Names(entered, self.attempted))
    }
}
