//! The indexes of a database that a query can choose from.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use flatbed_databases::handles::ReadHandle;
use flatbed_databases::instance::{Instance, InstanceId};
use flatbed_databases::server::Inner;
use flatbed_flatten::json::Value;
use flatbed_mango::{Catalog, Index, MangoError, Plan};
use flatbed_store::error::Result;
use flatbed_store::features::is_outdated;
use flatbed_store::proto;
use flatbed_store::transaction::{Attempt, Operation, Transaction};

use crate::index::compiled::{compile_all, uncompiled};
use crate::index::definitions::DefinitionRoom;
use crate::index::json::definition::{compiled, defined_by};
use crate::index::json::kind::NAME;

/// A snapshot of a database's Mango indexes.
#[derive(Debug, Clone)]
pub struct JsonIndexes {
    of: InstanceId,
    all: Vec<Index>,
    /// The indexes that queries may read; `None`: all.
    readable: Option<Vec<Index>>,
    numbers: Vec<(u64, Arc<Index>)>,
    room: DefinitionRoom,
    collation: &'static str,
    is_partitioned: bool,
}

impl JsonIndexes {
    /// `collation`: the order that this program can read.
    fn of(instance: &Instance, collation: &'static str) -> Result<JsonIndexes> {
        let (indexes, is_partitioned) = (&instance.record.indexes, instance.record.partitioned);
        let mut all = vec![Index::all_docs()];
        let (mut numbers, is_outdated) = (Vec::new(), is_outdated(&instance.record, collation));
        let is_readable = |entry: &proto::Index| entry.readable && !is_outdated;
        for entry in json_indexes(indexes) {
            let index = compiled(entry)?;
            all.push(Index::clone(&index));
            numbers.push((entry.number, index));
        }
        all.sort_by(Index::compare);
        let readable = match json_indexes(indexes).all(is_readable) {
            true => None,
            false => {
                let mut readable = vec![Index::all_docs()];
                let of_entries = json_indexes(indexes).zip(&numbers).filter(|(entry, _)| is_readable(entry));
                readable.extend(of_entries.map(|(_, (_, index))| Index::clone(index)));
                readable.sort_by(Index::compare);
                Some(readable)
            }
        };
        let (of, room) = (instance.id(), DefinitionRoom::of(&instance.record));
        Ok(JsonIndexes { of, all, readable, numbers, room, collation, is_partitioned })
    }

    /// Returns all defined indexes and the index of all ids, in listing order.
    pub fn all(&self) -> &[Index] {
        &self.all
    }

    /// Returns the readable indexes, including the index of all ids.
    pub fn readable(&self) -> &[Index] {
        self.readable.as_ref().unwrap_or(&self.all)
    }

    /// Returns whether an index is readable now.
    pub fn is_readable(&self, index: &Index) -> bool {
        self.readable().contains(index)
    }

    /// Returns whether the database is partitioned.
    pub fn is_partitioned(&self) -> bool {
        self.is_partitioned
    }

    /// Returns whether the index of this design document's view fits into the record. An index beyond the limits is not
    /// kept.
    pub fn has_room_for(&self, design_id: &str, body: &Value<'_>, view: &str) -> bool {
        let Some(map) = body.get("views").and_then(|views| views.get(view)) else { return true };
        let member = |name: &str, value: Value<'static>| Value::Object(vec![(name.to_owned().into(), value)]);
        let mut members = vec![
            ("language".into(), Value::String("query".into())),
            ("views".into(), member(view, map.clone().into_owned())),
        ];
        members.extend(body.get("options").map(|options| ("options".into(), options.clone().into_owned())));
        let defined = defined_by(&Value::Object(members), self.is_partitioned, self.collation, &|| false);
        let mut room = self.room;
        defined.iter().all(|definition| room.take(definition.len(), design_id.len()))
    }

    /// Plans a `_find` or `_count`. If the answer may lack recent writes, an index under construction is chosen only if
    /// no other is usable.
    ///
    /// # Errors
    /// As [`flatbed_mango::plan()`].
    pub fn plan<'i>(
        &'i self,
        database: &'i str,
        find: &flatbed_mango::Find,
    ) -> std::result::Result<Plan<'i>, MangoError> {
        self.plan_unless(database, find, &|| false)
    }

    /// Like [`JsonIndexes::plan`], and stops when `stop` returns true before an index.
    ///
    /// # Errors
    /// As [`flatbed_mango::plan_unless()`].
    pub fn plan_unless<'i>(
        &'i self,
        database: &'i str,
        find: &flatbed_mango::Find,
        stop: &dyn Fn() -> bool,
    ) -> std::result::Result<Plan<'i>, MangoError> {
        let catalog = |indexes| Catalog { database, partitioned: self.is_partitioned(), indexes };
        if find.may_be_stale()
            && let Ok(plan) = flatbed_mango::plan_unless(find, &catalog(self.readable()), stop)
        {
            return Ok(plan);
        }
        flatbed_mango::plan_unless(find, &catalog(&self.all), stop)
    }

    /// Returns the number of an index; `None` for the index of all ids.
    pub fn number(&self, index: &Index) -> Option<u64> {
        self.numbers.iter().find(|(_, found)| **found == *index).map(|(number, _)| *number)
    }

    /// Returns whether they belong to this database. A database that reuses a name also reuses numbers.
    pub fn are_of(&self, instance: &Instance) -> bool {
        self.of == instance.id()
    }

    pub fn are_those_of(&self, instance: &Instance) -> bool {
        let now = json_indexes(&instance.record.indexes).map(|index| index.number);
        now.eq(self.numbers.iter().map(|(number, _)| *number))
    }
}

fn json_indexes(indexes: &[proto::Index]) -> impl Iterator<Item = &proto::Index> {
    indexes.iter().filter(|index| index.kind == NAME)
}

struct ReadIndexes<'a>(&'a Inner, &'a str);

impl Operation for ReadIndexes<'_> {
    type Output = Arc<Instance>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Arc<Instance>> {
        self.0.resolve(trx, self.1).await
    }
}

/// Performs `Reader::json_indexes` of the layer.
#[boxed]
pub async fn read_indexes(database: &ReadHandle) -> Result<Arc<JsonIndexes>> {
    let instance = database.read(&mut ReadIndexes(&database.inner, &database.name)).await?;
    compile_all(&database.inner, &instance).await?;
    JsonIndexes::of(&instance, database.inner.collation).map(Arc::new)
}

/// Performs `Reader::json_indexes_known` of the layer.
pub fn known_indexes(database: &ReadHandle) -> Option<Arc<JsonIndexes>> {
    let instance = database.inner.cached(&database.name)?;
    if uncompiled(&instance).next().is_some() {
        return None;
    }
    JsonIndexes::of(&instance, database.inner.collation).ok().map(Arc::new)
}
