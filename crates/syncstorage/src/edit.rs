//! The effects of writes on a collection, inside their transaction.

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::keys::{BlobId, CollectionKeys, Due, SortKey, UserKeys};
use crate::layers::{LayeredRows, Layers, PART_BYTES, View};
use crate::limits::Limits;
use crate::names::{BatchId, CollectionName, RecordId};
use crate::timestamp::Timestamp;
use crate::transaction::Trx;
use crate::values::{Collection, Head, Payload, Row};

/// The largest payload inside a record's row, in bytes. Larger ones are cut into parts.
pub(crate) const INLINE_BYTES_MAX: usize = 8_000;

pub(crate) struct Edit<'a> {
    pub trx: &'a Trx,
    pub user: &'a UserKeys,
    pub name: &'a CollectionName,
    pub layers: Layers,
    pub state: Collection,
    /// The state as read; `None`: the collection does not exist.
    before: Option<Collection>,
}

/// A change of a record, in the form that a transaction writes.
#[derive(Debug, Clone)]
pub(crate) struct PreparedChange {
    pub id: RecordId,
    pub payload: Option<Payload>,
    /// A large payload that this transaction writes.
    pub parts: Option<Bytes>,
    pub sortindex: Option<i32>,
    pub ttl: Option<u32>,
}

impl<'a> Edit<'a> {
    pub(crate) fn new(
        trx: &'a Trx,
        user: &'a UserKeys,
        name: &'a CollectionName,
        before: Option<Collection>,
    ) -> Edit<'a> {
        let state = before.clone().unwrap_or_default();
        let layers = Layers::new(user, user.collection(name), &state);
        Edit { trx, user, name, layers, state, before }
    }

    pub(crate) fn keys(&self) -> &CollectionKeys {
        &self.layers.keys
    }

    pub(crate) fn added_bytes(&self) -> i64 {
        self.state.bytes as i64 - self.before.as_ref().map_or(0, |before| before.bytes) as i64
    }

    /// Fails if writers must wait for a batch that is about to be committed.
    pub(crate) fn wait_for_hold(&self, own: Option<BatchId>, now: Timestamp) -> Result<()> {
        let is_held = self.state.hold.is_some_and(|hold| Some(hold.batch) != own && hold.until > now);
        if is_held { Err(Error::Busy) } else { Ok(()) }
    }

    /// Changes a record at a time. As the API specifies, omitted members stay, and only payload and sortindex move the
    /// record's time. An expired record counts as missing.
    pub(crate) async fn change(&mut self, change: &PreparedChange, found: &LayeredRows, at: Timestamp) -> Result<()> {
        let old = self.layers.live_view(found, at);
        let expires = match (change.ttl, &old) {
            (Some(ttl), _) => Some(at.after_seconds(ttl)),
            (None, old) => old.as_ref().and_then(|old| old.expires),
        };
        let sortindex = change.sortindex.or(old.as_ref().and_then(|old| old.sortindex));
        let is_moved = change.payload.is_some() || change.sortindex.is_some();
        let modified = old.as_ref().map_or(at, |old| if is_moved { at } else { old.modified });
        let payload = match (&change.payload, old) {
            (Some(payload), _) => payload.clone(),
            (None, Some(View { payload, .. })) => self.layers.payload(self.trx, &change.id, payload).await?,
            (None, None) => Payload::Inline(Bytes::new()),
        };
        if let (Some(parts), Some(blob)) = (&change.parts, payload.blob()) {
            put_parts(self.trx, self.keys(), blob, parts)?;
        }
        self.put(&change.id, found, Row { modified, sortindex, expires, payload })
    }

    /// Writes a record in place of what was found, if anything.
    pub(crate) fn put(&mut self, id: &RecordId, found: &LayeredRows, row: Row) -> Result<()> {
        self.take_away(id, found, Some(&row))?;
        put_row(self.trx, self.keys(), id, found.base.as_ref(), &row)?;
        self.state.count += 1;
        self.state.bytes += row.payload.len();
        if let Some(expires) = row.expires {
            self.state.earliest = self.state.earliest.min(expires);
        }
        Ok(())
    }

    pub(crate) fn remove(&mut self, id: &RecordId, found: &LayeredRows) -> Result<()> {
        self.take_away(id, found, None)?;
        if let Some(base) = &found.base {
            self.trx.clear_quietly(&self.keys().record(id))?;
            clear_entries(self.trx, self.keys(), id, base, None)?;
        }
        Ok(())
    }

    /// Removes the found record from the overlays and the counts, with its large payloads that `row` does not keep.
    fn take_away(&mut self, id: &RecordId, found: &LayeredRows, row: Option<&Row>) -> Result<()> {
        if let Some(view) = self.layers.view(found) {
            self.state.count = self.state.count.saturating_sub(1);
            self.state.bytes = self.state.bytes.saturating_sub(view.len);
        }
        for (layer, staged) in &found.staged {
            let (_, keys) = self.layers.overlays.get(*layer).ok_or(Error::Corrupt("an overlay"))?;
            self.trx.clear_quietly(&keys.staged_record(id))?;
            self.trx.clear_quietly(&keys.sortindex(SortKey::of(staged.final_sortindex()), id))?;
            if staged.payload.is_some() {
                self.trx.clear_quietly(&keys.payload(id))?;
            }
        }
        let stays = row.and_then(|row| row.payload.blob());
        for blob in found.blobs().filter(|blob| Some(*blob) != stays) {
            self.trx.clear_range_quietly(&self.keys().blob(blob))?;
        }
        Ok(())
    }

    /// Writes the collection's state and the user's clock.
    pub(crate) fn finish(mut self, mut head: Head, number: u64, at: Timestamp) -> Result<()> {
        if self.before.is_none() {
            head.collections = head.collections.saturating_add(1);
            if head.collections > Limits::COLLECTIONS_MAX {
                return Err(Error::TooMany("collections"));
            }
        }
        (self.state.modified, self.state.state, self.state.hold) = (at, number, None);
        let (trx, user) = (self.trx, self.user);
        self.save()?;
        save_head(trx, user, head, number, at);
        Ok(())
    }

    /// Writes the collection's state alone, and the first expiry of its records.
    pub(crate) fn save(self) -> Result<()> {
        let noted = self.before.as_ref().map_or(Timestamp::MAX, |before| before.earliest);
        note_earliest(self.trx, self.user, self.name, noted, self.state.earliest)?;
        self.trx.set(self.keys().state(), &self.state.encode());
        Ok(())
    }
}

/// Notes a write in the user's clock, and sets the store's shown time.
pub(crate) fn save_head(trx: &Trx, user: &UserKeys, mut head: Head, number: u64, at: Timestamp) {
    head.note(number, at);
    head.shown = at;
    trx.set(&user.head(), &head.encode());
}

/// Notes when the first record of a collection expires.
pub(crate) fn note_earliest(
    trx: &Trx,
    user: &UserKeys,
    name: &CollectionName,
    before: Timestamp,
    earliest: Timestamp,
) -> Result<()> {
    if before == earliest {
        return Ok(());
    }
    if before < Timestamp::MAX {
        trx.clear_quietly(&user.due(before, &Due::Expiry(name.clone())))?;
    }
    if earliest < Timestamp::MAX {
        trx.set_quietly(&user.due(earliest, &Due::Expiry(name.clone())), &[])?;
    }
    Ok(())
}

/// Writes a record and its entries. `old` is the row at its place.
pub(crate) fn put_row(trx: &Trx, keys: &CollectionKeys, id: &RecordId, old: Option<&Row>, row: &Row) -> Result<()> {
    if let Some(old) = old {
        clear_entries(trx, keys, id, old, Some(row))?;
    }
    trx.set_quietly(&keys.record(id), &row.encode())?;
    let expires = row.expires.map(|expires| expires.hundredths().to_be_bytes());
    let expires = expires.as_ref().map_or(&[][..], |bytes| bytes);
    trx.set_quietly(&keys.modified(row.modified, id), expires)?;
    let modified = row.modified.hundredths().to_be_bytes();
    trx.set_quietly(&keys.sortindex(SortKey::of(row.sortindex), id), &[&modified, expires].concat())?;
    if let Some(expires) = row.expires {
        trx.set_quietly(&keys.expiry(expires, id), &(row.payload.len() as u32).to_be_bytes())?;
    }
    Ok(())
}

/// Clears the entries of a record, except those that are about to be written again.
fn clear_entries(trx: &Trx, keys: &CollectionKeys, id: &RecordId, old: &Row, new: Option<&Row>) -> Result<()> {
    if new.is_none_or(|new| new.modified != old.modified) {
        trx.clear_quietly(&keys.modified(old.modified, id))?;
    }
    if new.is_none_or(|new| new.sortindex != old.sortindex) {
        trx.clear_quietly(&keys.sortindex(SortKey::of(old.sortindex), id))?;
    }
    if let Some(expires) = old.expires
        && new.is_none_or(|new| new.expires != old.expires)
    {
        trx.clear_quietly(&keys.expiry(expires, id))?;
    }
    Ok(())
}

pub(crate) fn put_parts(trx: &Trx, keys: &CollectionKeys, blob: BlobId, payload: &Bytes) -> Result<()> {
    for (number, part) in (0..).zip(payload.chunks(PART_BYTES)) {
        trx.set_quietly(&keys.blob_part(blob, number), part)?;
    }
    Ok(())
}
