//! The indexes of a database that a query can choose from.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use flatbed_mango::{Catalog, Index, Plan, Refused};

use crate::error::Result;
use crate::handle::Reader;
use crate::index::definitions::has_room;
use crate::index::json::definition::{DEFINITION_BYTES_MAX, compiled};
use crate::index::json::kind::NAME;
use crate::instance::{Instance, InstanceId};
use crate::layer::Inner;
use crate::store::features::is_outdated;
use crate::store::proto;
use crate::store::transaction::{Attempt, Operation, Transaction};

/// The longest id of a design document that defines an index here.
const DESIGN_ID_BYTES_MAX: usize = 2_048;

/// A database's indexes of Mango at one moment.
#[derive(Debug, Clone)]
pub struct JsonIndexes {
    of: InstanceId,
    all: Vec<Index>,
    readable: Vec<Index>,
    /// Each json index's number, and its index.
    numbers: Vec<(u64, Index)>,
    has_room: bool,
    is_partitioned: bool,
}

impl JsonIndexes {
    /// `collation`: the order that can be read.
    fn of(instance: &Instance, collation: &str) -> Result<JsonIndexes> {
        let (indexes, is_partitioned) = (&instance.record.indexes, instance.record.partitioned);
        let (mut all, mut readable) = (vec![Index::all_docs()], vec![Index::all_docs()]);
        let (mut numbers, is_outdated) = (Vec::new(), is_outdated(&instance.record, collation));
        for entry in json_indexes(indexes) {
            let index = compiled(entry)?;
            numbers.push((entry.number, Index::clone(&index)));
            all.push(Index::clone(&index));
            if entry.readable && !is_outdated {
                readable.push(Index::clone(&index));
            }
        }
        all.sort_by(Index::compare);
        readable.sort_by(Index::compare);
        let (of, has_room) = (instance.id(), has_room(&instance.record, DEFINITION_BYTES_MAX, DESIGN_ID_BYTES_MAX));
        Ok(JsonIndexes { of, all, readable, numbers, has_room, is_partitioned })
    }

    /// All that are defined, with the index of all ids, in the order of lists.
    pub fn all(&self) -> &[Index] {
        &self.all
    }

    /// Those that can be read now, with the index of all ids.
    pub fn readable(&self) -> &[Index] {
        &self.readable
    }

    /// Whether an index can be read now.
    pub fn is_readable(&self, index: &Index) -> bool {
        self.readable.contains(index)
    }

    /// Whether the database is partitioned.
    pub fn is_partitioned(&self) -> bool {
        self.is_partitioned
    }

    /// Whether an index of any size that is kept can be defined beside these: what goes beyond is passed over.
    pub fn has_room(&self) -> bool {
        self.has_room
    }

    /// Plans a `_find` or `_count`. Where an answer without what was written last will do, an index that is still being built
    /// is chosen only if no other can be.
    ///
    /// # Errors
    /// As [`flatbed_mango::plan()`].
    pub fn plan<'i>(&'i self, database: &'i str, find: &flatbed_mango::Find) -> std::result::Result<Plan<'i>, Refused> {
        let catalog = |indexes| Catalog { database, partitioned: self.is_partitioned(), indexes };
        if find.may_be_stale()
            && let Ok(plan) = flatbed_mango::plan(find, &catalog(&self.readable))
        {
            return Ok(plan);
        }
        flatbed_mango::plan(find, &catalog(&self.all))
    }

    /// The number of an index of these; `None` of that of all ids.
    pub(crate) fn number(&self, index: &Index) -> Option<u64> {
        self.numbers.iter().find(|(_, found)| found == index).map(|(number, _)| *number)
    }

    /// Whether they are of this database, and not of another one that had its name: numbers are the same in all.
    pub(crate) fn are_of(&self, instance: &Instance) -> bool {
        self.of == instance.id()
    }

    /// Whether the database has the same ones.
    pub(crate) fn are_those_of(&self, instance: &Instance) -> bool {
        let now = json_indexes(&instance.record.indexes).map(|index| index.number);
        now.eq(self.numbers.iter().map(|(number, _)| *number))
    }
}

fn json_indexes(indexes: &[proto::Index]) -> impl Iterator<Item = &proto::Index> {
    indexes.iter().filter(|index| index.kind == NAME)
}

struct Look<'a>(&'a Inner, &'a str);

impl Operation for Look<'_> {
    type Output = JsonIndexes;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<JsonIndexes> {
        JsonIndexes::of(&*self.0.resolve(trx, self.1).await?, self.0.collation)
    }
}

impl Reader {
    /// The database's json indexes as they are now.
    ///
    /// # Errors
    /// [`crate::Error::DatabaseNotFound`], and those of the storage.
    #[boxed]
    pub async fn json_indexes(&self) -> Result<Arc<JsonIndexes>> {
        self.read(&mut Look(&self.inner, &self.name)).await.map(Arc::new)
    }

    /// The same as this process saw them last, without a read; `None`: it knows nothing of the database. A query that was
    /// planned with older ones is refused ([`crate::Refusal::IndexGone`]).
    pub fn json_indexes_known(&self) -> Option<Arc<JsonIndexes>> {
        JsonIndexes::of(&*self.inner.cached(&self.name)?, self.inner.collation).ok().map(Arc::new)
    }
}
