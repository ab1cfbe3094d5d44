//! Lists of a collection's records.

mod entries;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{try_join_all, try_join3};
use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::keys::UserKeys;
use crate::layers::{Found, Layers, View};
use crate::model::{ListQuery, Precondition, Record};
use crate::names::{CollectionName, RecordId, Uid};
use crate::offset::Offset;
use crate::store::Inner;
use crate::timestamp::Timestamp;
use crate::transaction::{Trx, pause};
use crate::values::Row;
use crate::write::seen;
use entries::Wanted;

/// Records that are read at once, and bytes of payloads after which a chunk is full.
const CHUNK_RECORDS: usize = 250;
const CHUNK_BYTES: usize = 1_000_000;

/// Of a collection of so many records, in one reply of FoundationDB's, all are read at once with the first question: most
/// collections that are read from their beginning are small.
const WHOLE_RECORDS: usize = 100;

/// For how long what a list found is read as of its state: FoundationDB has it for 5 s.
const PINNED_FOR: Duration = Duration::from_millis(3_500);

/// FoundationDB's `transaction_too_old`, and the pause before a read that failed otherwise is made again.
const TOO_OLD: i32 = 1007;
const PAUSE: Duration = Duration::from_millis(10);

/// What a list found. Its records are read in chunks, so that a list of any size takes a bounded memory.
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
    /// How many of the ids have been read.
    read: usize,
    is_full: bool,
    pinned: Option<(i64, Instant)>,
    /// What lay over the collection when it was found, and its state.
    layers: Layers,
    state: u64,
}

impl std::fmt::Debug for List {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("List").field("modified", &self.modified).field("ids", &self.ids.len()).finish_non_exhaustive()
    }
}

/// What one transaction found.
struct Listed {
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
        let (user, wanted) = (self.keys.user(uid), Wanted::new(query)?);
        let (wanted, keys) = (&wanted, &user);
        let begun = self.clock.now();
        let found = self
            .runner
            .read(move |trx| async move { self.list_in(&trx, keys, name, wanted, query.full, condition).await })
            .await?;
        let Listed { modified, now, ids, next_offset, first, read, version, layers, state } = found;
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
        wanted: &Wanted,
        is_full: bool,
        condition: Precondition,
    ) -> Result<Listed> {
        let keys = user.collection(name);
        // Asked for before it is known what lies over it, so that a list takes one round trip less.
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
            let views = rows.map(|(id, base)| (id, layers.view(&Found { base: Some(base), staged: Vec::new() })));
            let (first, read) = records(trx, &layers, views.collect()).await?;
            let version = if read < ids.len() { Some(trx.version().await?) } else { None };
            let (modified, state) = (state.modified, state.state);
            return Ok(Listed { modified, now, ids, next_offset, first, read, version, layers, state });
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
        Ok(Listed { modified, now, ids, next_offset, first, read, version, layers, state })
    }
}

impl List {
    /// The collection's time: X-Last-Modified.
    pub fn modified(&self) -> Timestamp {
        self.modified
    }

    /// How late it is: X-Weave-Timestamp.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// The ids, in order: as many as X-Weave-Records says, at most [`ListQuery::LIMIT_MAX`](crate::ListQuery::LIMIT_MAX).
    pub fn ids(&self) -> &[RecordId] {
        &self.ids
    }

    /// Where the next list goes on, if there are more: X-Weave-Next-Offset.
    pub fn next_offset(&self) -> Option<&Offset> {
        self.next_offset.as_ref()
    }

    /// Whether there may be further records.
    pub fn has_more(&self) -> bool {
        self.first.is_some() || self.is_full && self.read < self.ids.len()
    }

    /// The next records, about 1 MB of them or a single larger one; `None` at the end, and where only ids were asked for.
    /// All are as the list found them.
    ///
    /// # Errors
    /// [`Changed`](crate::Error::Changed) where that is not possible: the list is read for longer than some seconds, and the
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

    /// As of the version that the list was found at, as long as FoundationDB has it.
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

    /// As of now, if the collection is as the list found it.
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

/// Records of the first of some ids, and of how many of these: as many as a chunk holds.
async fn chunk(trx: &Trx, layers: &Layers, now: Timestamp, ids: &[RecordId]) -> Result<(Vec<Record>, usize)> {
    let ids: Vec<&RecordId> = ids.iter().take(CHUNK_RECORDS).collect();
    let found = layers.all_found(trx, &ids).await?;
    let views = ids.iter().zip(&found).map(|(id, found)| (*id, layers.live_view(found, now))).collect();
    records(trx, layers, views).await
}

/// Records of the first of some views, and of how many of these: as many as a chunk holds.
async fn records(trx: &Trx, layers: &Layers, views: Vec<(&RecordId, Option<View>)>) -> Result<(Vec<Record>, usize)> {
    let (mut bytes, mut read) = (0, 0);
    for (_, view) in &views {
        bytes += view.as_ref().map_or(0, |view| view.len as usize);
        if read > 0 && bytes > CHUNK_BYTES {
            break;
        }
        read += 1;
    }
    // Payloads that lie elsewhere are read at once.
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
