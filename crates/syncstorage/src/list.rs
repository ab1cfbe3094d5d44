//! Lists of a collection's records.

mod entries;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{try_join_all, try_join3};
use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::keys::UserKeys;
use crate::layers::{LayeredRows, Layers, View};
use crate::model::{ListQuery, Precondition, Record};
use crate::names::{CollectionName, RecordId, Uid};
use crate::offset::Offset;
use crate::store::Inner;
use crate::timestamp::Timestamp;
use crate::transaction::{Trx, pause};
use crate::values::Row;
use crate::write::seen;
use entries::ListPlan;

/// The records of a chunk, and the payload bytes after which it is full.
const CHUNK_RECORDS: usize = 250;
const CHUNK_BYTES: usize = 1_000_000;

/// The largest collection, in records and within one reply of FoundationDB, that is read completely with the first
/// read. Most collections that are read from their beginning are small.
const WHOLE_RECORDS: usize = 100;

/// The time for which a list's records are read at its read version: FoundationDB keeps that for 5 s.
const PINNED_FOR: Duration = Duration::from_millis(3_500);

/// FoundationDB's `transaction_too_old`, and the pause before a read that failed otherwise is retried.
const TOO_OLD: i32 = 1007;
const PAUSE: Duration = Duration::from_millis(10);

/// A list of records. They are read in chunks, so that a list of any size takes bounded memory.
pub struct List {
    inner: Arc<Inner>,
    user: UserKeys,
    name: CollectionName,
    modified: Timestamp,
    now: Timestamp,
    ids: Vec<RecordId>,
    next_offset: Option<Offset>,
    /// The first chunk, read with the ids.
    first: Option<Vec<Record>>,
    /// The number of ids read.
    read: usize,
    is_full: bool,
    pinned: Option<(i64, Instant)>,
    /// The overlays of the collection when it was listed, and its state.
    layers: Layers,
    state: u64,
}

impl std::fmt::Debug for List {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("List").field("modified", &self.modified).field("ids", &self.ids.len()).finish_non_exhaustive()
    }
}

/// The result of the transaction that finds a list.
struct ListResult {
    modified: Timestamp,
    now: Timestamp,
    ids: Vec<RecordId>,
    next_offset: Option<Offset>,
    first: Vec<Record>,
    read: usize,
    version: Option<i64>,
    layers: Layers,
    state: u64,
}

impl Inner {
    /// `GET` of a collection.
    pub(crate) async fn list(
        self: &Arc<Self>,
        uid: Uid,
        name: &CollectionName,
        query: &ListQuery,
        condition: Precondition,
    ) -> Result<List> {
        if query.ids.as_ref().is_some_and(|ids| ids.len() > ListQuery::IDS_MAX) {
            return Err(Error::OutOfBounds("ids"));
        }
        let (user, wanted) = (self.keys.user(uid), ListPlan::new(query)?);
        let (wanted, keys) = (&wanted, &user);
        let begun = self.clock.now();
        let found = self
            .runner
            .read(move |trx| async move { self.list_in(&trx, keys, name, wanted, query.full, condition).await })
            .await?;
        let ListResult { modified, now, ids, next_offset, first, read, version, layers, state } = found;
        let pinned = version.map(|version| (version, begun));
        let (inner, name, is_full) = (self.clone(), name.clone(), query.full);
        let first = Some(first).filter(|first| !first.is_empty());
        Ok(List { inner, user, name, modified, now, ids, next_offset, first, read, is_full, pinned, layers, state })
    }

    async fn list_in(
        &self,
        trx: &Trx,
        user: &UserKeys,
        name: &CollectionName,
        wanted: &ListPlan,
        is_full: bool,
        condition: Precondition,
    ) -> Result<ListResult> {
        let keys = user.collection(name);
        // Issued before the overlays are known, which saves a round trip.
        let is_whole = is_full && wanted.is_from_the_beginning();
        let whole = async {
            match is_whole {
                true => trx.page(&keys.records(), WHOLE_RECORDS, false).await.map(Some),
                false => Ok(None),
            }
        };
        let ahead = async {
            match is_whole {
                true => Ok(None),
                false => wanted.first_page(trx, &keys).await.map(Some),
            }
        };
        let (ahead, (head, state), whole) = try_join3(ahead, seen(trx, user, &keys), whole).await?;
        let (now, state) = (head.now(self.now()), state.unwrap_or_default());
        condition.judge(state.modified, now)?;
        let layers = Layers::new(user, keys, &state);
        if let Some(page) = whole.filter(|page| page.rest.is_none() && layers.overlays.is_empty()) {
            let rows = page.rows.iter().map(|(key, value)| Ok((layers.keys.take_record(key)?, Row::decode(value)?)));
            let rows = rows.collect::<Result<Vec<_>>>()?;
            let (ids, next_offset) = wanted.among_rows(&rows, now);
            let mut rows: HashMap<RecordId, Row> = rows.into_iter().collect();
            let rows = ids.iter().filter_map(|id| Some((id, rows.remove(id)?)));
            let views = rows.map(|(id, base)| (id, layers.view(&LayeredRows { base: Some(base), staged: Vec::new() })));
            let (first, read) = records(trx, &layers, views.collect()).await?;
            let version = if read < ids.len() { Some(trx.version().await?) } else { None };
            let (modified, state) = (state.modified, state.state);
            return Ok(ListResult { modified, now, ids, next_offset, first, read, version, layers, state });
        }
        let ahead = match ahead {
            Some(ahead) => ahead,
            None => wanted.first_page(trx, &layers.keys).await?,
        };
        let (ids, next_offset) = wanted.find(trx, &layers, now, ahead).await?;
        let (mut first, mut read, mut version) = (Vec::new(), 0, None);
        if is_full && !ids.is_empty() {
            (first, read) = chunk(trx, &layers, now, &ids).await?;
            if read < ids.len() {
                version = Some(trx.version().await?);
            }
        }
        let (modified, state) = (state.modified, state.state);
        Ok(ListResult { modified, now, ids, next_offset, first, read, version, layers, state })
    }
}

impl List {
    /// Returns the collection's time: X-Last-Modified.
    pub fn modified(&self) -> Timestamp {
        self.modified
    }

    /// Returns the user's time: X-Weave-Timestamp.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Returns the ids in order. Their number is X-Weave-Records, at most
    /// [`ListQuery::LIMIT_MAX`](crate::ListQuery::LIMIT_MAX).
    pub fn ids(&self) -> &[RecordId] {
        &self.ids
    }

    /// Returns the offset of the next list, if there are more records: X-Weave-Next-Offset.
    pub fn next_offset(&self) -> Option<&Offset> {
        self.next_offset.as_ref()
    }

    /// Returns whether further records may follow.
    pub fn has_more(&self) -> bool {
        self.first.is_some() || self.is_full && self.read < self.ids.len()
    }

    /// Returns the next records, about 1 MB or a single larger one; `None` at the end, and if only ids were requested.
    /// All are in the state of the list.
    ///
    /// # Errors
    /// [`Changed`](crate::Error::Changed) if that is impossible: the list takes longer than some seconds, and the
    /// collection was written meanwhile.
    pub async fn next(&mut self) -> Result<Option<Vec<Record>>> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        while self.is_full && self.read < self.ids.len() {
            let rest = self.ids.get(self.read..).unwrap_or_default();
            let (records, read) = match self.read_pinned(rest).await? {
                Some(found) => found,
                None => self.read_now(rest).await?,
            };
            self.read += read;
            if !records.is_empty() {
                return Ok(Some(records));
            }
        }
        Ok(None)
    }

    /// Reads at the list's read version. `None`: FoundationDB no longer has it.
    async fn read_pinned(&self, ids: &[RecordId]) -> Result<Option<(Vec<Record>, usize)>> {
        let Some((version, since)) = self.pinned else { return Ok(None) };
        while self.inner.clock.since(since) < PINNED_FOR {
            let (layers, now) = (&self.layers, self.now);
            let read = self.inner.runner.read_once(move |trx| async move {
                trx.pin(version);
                chunk(&trx, layers, now, ids).await
            });
            match read.await {
                Ok(found) => return Ok(Some(found)),
                Err(Error::Storage(error)) if error.code() == TOO_OLD => break,
                Err(Error::Storage(error)) if error.is_retryable() => pause(PAUSE).await,
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Reads the current records, if the collection is unchanged since the list.
    async fn read_now(&self, ids: &[RecordId]) -> Result<(Vec<Record>, usize)> {
        let (user, name, now, seen_state) = (&self.user, &self.name, self.now, self.state);
        self.inner
            .runner
            .read(move |trx| async move {
                let keys = user.collection(name);
                let (_, state) = seen(&trx, user, &keys).await?;
                let state = state.unwrap_or_default();
                if state.state != seen_state {
                    return Err(Error::Changed);
                }
                chunk(&trx, &Layers::new(user, keys, &state), now, ids).await
            })
            .await
    }
}

/// Reads the records of the first ids, and returns how many ids they are: as many as fit a chunk.
async fn chunk(trx: &Trx, layers: &Layers, now: Timestamp, ids: &[RecordId]) -> Result<(Vec<Record>, usize)> {
    let ids: Vec<&RecordId> = ids.iter().take(CHUNK_RECORDS).collect();
    let found = layers.all_found(trx, &ids).await?;
    let views = ids.iter().zip(&found).map(|(id, found)| (*id, layers.live_view(found, now))).collect();
    records(trx, layers, views).await
}

/// Reads the records of the first views, and returns how many views they are: as many as fit a chunk.
async fn records(trx: &Trx, layers: &Layers, views: Vec<(&RecordId, Option<View>)>) -> Result<(Vec<Record>, usize)> {
    let (mut bytes, mut read) = (0, 0);
    for (_, view) in &views {
        bytes += view.as_ref().map_or(0, |view| view.len as usize);
        if read > 0 && bytes > CHUNK_BYTES {
            break;
        }
        read += 1;
    }
    // Payloads outside of the rows are read in parallel.
    let views: Vec<_> = views.into_iter().take(read).filter_map(|(id, view)| Some((id, view?))).collect();
    let mut beside = layers.beside(trx, &views).await?;
    let records = views.into_iter().enumerate().map(|(at, (id, view))| (beside.remove(&at), id, view));
    let records = records.map(|(beside, id, view)| async move {
        let payload = match beside {
            Some(payload) => payload,
            None => layers.bytes(trx, id, view.payload).await?,
        };
        let (modified, sortindex, expires) = (view.modified, view.sortindex, view.expires);
        Ok::<_, Error>(Record { id: id.clone(), modified, payload, sortindex, expires })
    });
    Ok((try_join_all(records).await?, read))
}
