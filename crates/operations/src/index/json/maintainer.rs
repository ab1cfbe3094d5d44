//! Maintains a json index in the transactions that change documents.
//!
//! A document's entry follows from its body: the old entry from the old body, which the write reads anyway, and the new
//! entry from the new body. The maintainer therefore reads nothing, and writes only entries. The exception is a key
//! that does not fit: its label does not follow from the body. The label is stored with the document's other labels,
//! and found by a search.

use std::pin::Pin;
use std::sync::Arc;

use flatbed_collate::LabelPlace;
use flatbed_databases::document::body::Rows;
use flatbed_flatten::json::Value;
use flatbed_mango::Index;
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::RowPlaces;
use flatbed_store::proto;
use flatbed_store::records::Info;
use flatbed_store::transaction::Quiet;
use foundationdb::future::FdbSlice;

use crate::index::json::definition::{collation, compiled};
use crate::index::json::entry;
use crate::index::json::key::{Body, DocumentKey, KeyReader, catch_up, lacks_names};
use crate::index::json::pivots::{LEVELS, Pivots, height};
use crate::index::json::place::{EntrySearch, WrittenKeys};
use crate::index::maintainers::{Change, IndexContext, IndexMaintainer, NewRows, PendingWork, PurgedDocument};

/// Transaction bytes for clearing an old entry beyond those reserved, if a new entry replaces it. Nothing is reserved
/// for an index that the new document is not in.
const CLEARED_BYTES: u64 = 500;

type NextId = Pin<Box<dyn Future<Output = foundationdb::FdbResult<Option<FdbSlice>>> + Send + Sync>>;

pub struct JsonMaintainer {
    number: u64,
    /// An index that cannot be maintained refuses the write with this error.
    index: Result<Arc<Index>>,
    /// The number of names, read if this process may lack some.
    next_field_id: Option<NextId>,
    asked: bool,
    excess: u64,
    keyed: KeyReader,
    written: WrittenKeys,
    is_worn_out: bool,
    /// True if a builder enters long keys later.
    may_put_off: bool,
    has_put_off: bool,
}

impl JsonMaintainer {
    pub fn new(index: &proto::Index) -> JsonMaintainer {
        let (number, index) = (index.number, compiled(index));
        JsonMaintainer {
            number,
            index,
            next_field_id: None,
            asked: false,
            excess: 0,
            keyed: KeyReader::default(),
            written: WrittenKeys::new(),
            is_worn_out: false,
            may_put_off: false,
            has_put_off: false,
        }
    }

    async fn change(&mut self, within: &IndexContext<'_>, change: &Change<'_>) -> Result<()> {
        let index = self.index.clone()?;
        self.read_names(within).await?;
        let is_same = change.brought.is_none() && change.old.is_some_and(|old| old.winner == change.new.winner);
        let new = match change.new.deleted {
            true => None,
            false => self.new_key(within, &index, change).await?,
        };
        if is_same {
            // The builder hands over a document without a change.
            return match new {
                // In the order of ids each key might sort between the last two, and labels would run out of room in
                // every rebuild.
                Some(new) if self.may_put_off && new.sort_key.is_cut() => {
                    self.has_put_off = true;
                    Ok(())
                }
                Some(new) => {
                    self.excess += new.bytes() + change.id.len() as u64;
                    self.enter(within, &index, change.id, &new).await
                }
                None => Ok(()),
            };
        }
        let old = self.old_key(within, &index, change.id, change.old, change.old_rows).await?;
        self.replace(within, &index, change.id, old, new).await
    }

    async fn read_names(&mut self, within: &IndexContext<'_>) -> Result<()> {
        match self.next_field_id.take() {
            Some(read) => catch_up(within, read.await?.as_deref()).await,
            None => Ok(()),
        }
    }

    async fn replace(
        &mut self,
        within: &IndexContext<'_>,
        index: &Index,
        id: &str,
        old: Option<DocumentKey>,
        new: Option<DocumentKey>,
    ) -> Result<()> {
        let IndexContext { trx, instance, .. } = *within;
        if let (Some(old), Some(new)) = (&old, &new)
            && (&old.values, old.ends_at_ms) == (&new.values, new.ends_at_ms)
        {
            self.note(id, new, &new.entry_value());
            return Ok(());
        }
        let places = RowPlaces::of(index.is_partitioned(), id);
        match old {
            Some(old) if old.sort_key.is_cut() => {
                let place = instance.keys.index_of_document(self.number, id);
                if let Some(label) = trx.get(&place, true).await? {
                    let element = old.sort_key.with_label(Some(&label)).unwrap_or_default();
                    // Clears with a conflict: a transaction that has read the entry gives its label to others.
                    trx.clear(&self.cleared(within, places, (element.as_slice(), id), new.is_some()));
                    Quiet(trx).clear(&place)?;
                    let pivots = Pivots::new(&instance.keys, self.number, places, old.sort_key.bytes());
                    for level in 1..=LEVELS {
                        let pivot = pivots.key(level, &label);
                        self.excess += pivot.len() as u64;
                        Quiet(trx).clear(&pivot)?;
                    }
                }
            }
            Some(old) => {
                let stays = new.as_ref().is_some_and(|new| new.sort_key == old.sort_key);
                if !stays {
                    let key = self.cleared(within, places, (old.sort_key.bytes(), id), new.is_some());
                    Quiet(trx).clear(&key)?;
                }
            }
            None => {}
        }
        match new {
            Some(new) => self.enter(within, index, id, &new).await,
            None => Ok(()),
        }
    }

    fn cleared(
        &mut self,
        within: &IndexContext<'_>,
        places: RowPlaces<'_>,
        (element, id): (&[u8], &str),
        is_replaced: bool,
    ) -> Vec<u8> {
        let key = within.instance.keys.index_entry(self.number, places, element, id);
        let reserved = if is_replaced { CLEARED_BYTES } else { 0 };
        self.excess += (2 * key.len() as u64).saturating_sub(reserved);
        key
    }

    async fn enter(&mut self, within: &IndexContext<'_>, index: &Index, id: &str, key: &DocumentKey) -> Result<()> {
        let IndexContext { trx, instance, .. } = *within;
        let (keys, places) = (&instance.keys, RowPlaces::of(index.is_partitioned(), id));
        let value = key.entry_value();
        if !key.sort_key.is_cut() {
            return Quiet(trx).set(&keys.index_entry(self.number, places, key.sort_key.bytes(), id), &value);
        }
        let place_key = keys.index_of_document(self.number, id);
        let (label, is_new) = match trx.get(&place_key, true).await? {
            Some(label) => (Some(label.to_vec()), false),
            None => {
                let place = self.place(within, (index, places), key).await?;
                // Entries that share a label also draw pivots, and lose them with the first entry that is removed.
                (place.label(), true)
            }
        };
        let Some(label) = label else {
            // Too many keys came each between the last two. A rebuild gives labels with room.
            self.is_worn_out = true;
            return Ok(());
        };
        if is_new {
            let pivots = Pivots::new(keys, self.number, places, key.sort_key.bytes());
            for level in 1..=height()? {
                let pivot = pivots.key(level, &label);
                self.excess += pivot.len() as u64;
                Quiet(trx).set(&pivot, b"")?;
            }
        }
        self.note(id, key, &value);
        let element = key.sort_key.with_label(Some(&label)).unwrap_or_default();
        trx.set(&keys.index_entry(self.number, places, &element, id), &value);
        Quiet(trx).set(&place_key, &label)
    }

    fn note(&mut self, id: &str, key: &DocumentKey, value: &[u8]) {
        if let (Value::Array(values), true) = (&key.values, entry::is_in_document(value)) {
            self.written.insert(id.to_owned(), values.clone());
        }
    }

    async fn place(
        &self,
        within: &IndexContext<'_>,
        (index, places): (&Index, RowPlaces<'_>),
        key: &DocumentKey,
    ) -> Result<LabelPlace> {
        let collation = collation()?;
        let among =
            EntrySearch { within, number: self.number, index, places, snapshot: false, written: Some(&self.written) };
        Box::pin(among.search(&key.sort_key, |other: &Value<'_>| collation.compare(&key.values, other))).await
    }
}

impl JsonMaintainer {
    async fn new_key(
        &mut self,
        within: &IndexContext<'_>,
        index: &Index,
        change: &Change<'_>,
    ) -> Result<Option<DocumentKey>> {
        let read;
        let body = match change.new_rows(within).await? {
            NewRows::Brought(body) => Body::Prepared(&body.rows),
            NewRows::Known(rows) => Body::Read(rows),
            NewRows::Read(rows) => {
                read = rows;
                Body::Read(&read)
            }
        };
        let key = self.keyed.key_of(within, index, (change.id, &change.new.winner), body).await?;
        Ok(key.map(|key| key.of(change.new)))
    }

    async fn old_key(
        &mut self,
        within: &IndexContext<'_>,
        index: &Index,
        id: &str,
        old: Option<&Info>,
        rows: Option<&Rows>,
    ) -> Result<Option<DocumentKey>> {
        match (old.filter(|old| !old.deleted), rows) {
            (None, _) => Ok(None),
            (Some(old), Some(rows)) => {
                let key = self.keyed.key_of(within, index, (id, &old.winner), Body::Read(rows)).await?;
                Ok(key.map(|key| key.of(old)))
            }
            (Some(_), None) => Err(Error::Corrupt(format!("the body of {id:?} was not read"))),
        }
    }
}

impl IndexMaintainer for JsonMaintainer {
    fn begin(&mut self, within: &IndexContext<'_>, _: &str) {
        if !std::mem::replace(&mut self.asked, true)
            && let Ok(index) = &self.index
            && lacks_names(within.instance, index)
        {
            self.next_field_id = Some(Box::pin(within.trx.get(&within.instance.keys.next_field_id(), true)));
        }
    }

    fn wants_old_body(&self) -> bool {
        true
    }

    fn document<'a>(&'a mut self, within: &'a IndexContext<'a>, change: &'a Change<'a>) -> Result<PendingWork<'a>> {
        Ok(Some(Box::pin(self.change(within, change))))
    }

    fn purged<'a>(
        &'a mut self,
        within: &'a IndexContext<'a>,
        purged: &'a PurgedDocument<'a>,
    ) -> Result<PendingWork<'a>> {
        Ok(Some(Box::pin(async move {
            let index = self.index.clone()?;
            self.read_names(within).await?;
            let old = self.old_key(within, &index, purged.id, Some(purged.old), purged.old_rows).await?;
            self.replace(within, &index, purged.id, old, None).await
        })))
    }

    fn excess(&mut self) -> u64 {
        std::mem::take(&mut self.excess)
    }

    fn may_put_off(&mut self) {
        self.may_put_off = true;
    }

    fn has_put_off(&mut self) -> bool {
        std::mem::take(&mut self.has_put_off)
    }

    fn is_worn_out(&self) -> Option<u64> {
        self.is_worn_out.then_some(self.number)
    }
}
