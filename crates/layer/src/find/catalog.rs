//! The indexes of a database that a query can choose from.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use flatbed_flatten::json::Value;
use flatbed_mango::{Catalog, Index, Plan, Refused};

use crate::error::Result;
use crate::handle::Reader;
use crate::index::compiled::{compile_all, uncompiled};
use crate::index::definitions::DefinitionRoom;
use crate::index::json::definition::{compiled, defined_by};
use crate::index::json::kind::NAME;
use crate::instance::{Instance, InstanceId};
use crate::layer::Inner;
use crate::store::features::is_outdated;
use crate::store::proto;
use crate::store::transaction::{Attempt, Operation, Transaction};

/// A database's indexes of Mango at one moment.
#[derive(Debug, Clone)]
pub struct JsonIndexes {
    of: InstanceId,
    all: Vec<Index>,
    /// The indexes that queries may read; `None`: all.
    readable: Option<Vec<Index>>,
    /// Each json index's number, and its index.
    numbers: Vec<(u64, Arc<Index>)>,
    room: DefinitionRoom,
    collation: &'static str,
    is_partitioned: bool,
}

impl JsonIndexes {
    /// `collation`: the order that can be read.
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

    /// All that are defined, with the index of all ids, in the order of lists.
    pub fn all(&self) -> &[Index] {
        &self.all
    }

    /// Those that can be read now, with the index of all ids.
    pub fn readable(&self) -> &[Index] {
        self.readable.as_ref().unwrap_or(&self.all)
    }

    /// Whether an index can be read now.
    pub fn is_readable(&self, index: &Index) -> bool {
        self.readable().contains(index)
    }

    /// Whether the database is partitioned.
    pub fn is_partitioned(&self) -> bool {
        self.is_partitioned
    }

    /// Whether the index of this view of a design document fits beside the others; an index beyond the limits is not kept.
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

    /// Plans a `_find` or `_count`. Where an answer without what was written last will do, an index that is still being built
    /// is chosen only if no other can be.
    ///
    /// # Errors
    /// As [`flatbed_mango::plan()`].
    pub fn plan<'i>(&'i self, database: &'i str, find: &flatbed_mango::Find) -> std::result::Result<Plan<'i>, Refused> {
        self.plan_unless(database, find, &|| false)
    }

    /// As [`JsonIndexes::plan`], for as long as `stop`, asked before each index, does not say otherwise.
    ///
    /// # Errors
    /// As [`flatbed_mango::plan_unless()`].
    pub fn plan_unless<'i>(
        &'i self,
        database: &'i str,
        find: &flatbed_mango::Find,
        stop: &dyn Fn() -> bool,
    ) -> std::result::Result<Plan<'i>, Refused> {
        let catalog = |indexes| Catalog { database, partitioned: self.is_partitioned(), indexes };
        if find.may_be_stale()
            && let Ok(plan) = flatbed_mango::plan_unless(find, &catalog(self.readable()), stop)
        {
            return Ok(plan);
        }
        flatbed_mango::plan_unless(find, &catalog(&self.all), stop)
    }

    /// The number of an index of these; `None` of that of all ids.
    pub(crate) fn number(&self, index: &Index) -> Option<u64> {
        self.numbers.iter().find(|(_, found)| **found == *index).map(|(number, _)| *number)
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
    type Output = Arc<Instance>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Arc<Instance>> {
        self.0.resolve(trx, self.1).await
    }
}

impl Reader {
    /// The database's json indexes as they are now.
    ///
    /// # Errors
    /// [`crate::Error::DatabaseNotFound`], and those of the storage.
    #[boxed]
    pub async fn json_indexes(&self) -> Result<Arc<JsonIndexes>> {
        let instance = self.read(&mut Look(&self.inner, &self.name)).await?;
        compile_all(&self.inner, &instance).await?;
        JsonIndexes::of(&instance, self.inner.collation).map(Arc::new)
    }

    /// The same as this process saw them last, without a read; `None`: it knows nothing of the database, or has to compile their
    /// filters first. A query that was planned with older ones is refused ([`crate::Refusal::IndexGone`]).
    pub fn json_indexes_known(&self) -> Option<Arc<JsonIndexes>> {
        let instance = self.inner.cached(&self.name)?;
        if uncompiled(&instance).next().is_some() {
            return None;
        }
        JsonIndexes::of(&instance, self.inner.collation).ok().map(Arc::new)
    }
}
