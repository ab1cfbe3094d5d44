//! The reads of a user's store, except lists.

use futures_util::future::{try_join_all, try_join3};

use crate::error::{Error, Result};
use crate::keys::UserKeys;
use crate::layers::{Layers, base_rows};
use crate::model::{GetResult, Info, Precondition, Quota, Record};
use crate::names::{CollectionName, RecordId, Uid};
use crate::store::Inner;
use crate::timestamp::Timestamp;
use crate::transaction::Trx;
use crate::values::{Collection, Head, StagedRow};
use crate::write::{head, state};

const PAGE_ROWS: usize = 1_000;

/// The collections whose expired records are counted at once.
const LOOKED_INTO_AT_ONCE: usize = 20;

/// A number of records, and the bytes of their payloads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub count: u64,
    pub bytes: u64,
}

impl Inner {
    /// Answers `info/collections`.
    pub(crate) async fn times_of(&self, uid: Uid, condition: Precondition) -> Result<Info<Timestamp>> {
        let user = &self.keys.user(uid);
        self.runner
            .read(move |trx| async move {
                let (head, states) = self.overview(&trx, user).await?;
                let (modified, now) = (head.shown, head.now(self.now()));
                condition.judge(modified, now)?;
                let collections = states.into_iter().map(|(name, state)| (name, state.modified)).collect();
                Ok(Info { modified, now, collections })
            })
            .await
    }

    /// Answers `info/collection_counts` and `info/collection_usage`. Collections without records are left out.
    pub(crate) async fn sizes_of(&self, uid: Uid, condition: Precondition) -> Result<Info<Size>> {
        let user = &self.keys.user(uid);
        self.runner
            .read(move |trx| async move {
                let (head, states) = self.overview(&trx, user).await?;
                let (modified, now) = (head.shown, head.now(self.now()));
                condition.judge(modified, now)?;
                let sizes = sizes(&trx, user, &states, now).await?;
                let names = states.into_iter().map(|(name, _)| name);
                let collections = names.zip(sizes).filter(|(_, size)| size.count > 0).collect();
                Ok(Info { modified, now, collections })
            })
            .await
    }

    /// Answers `info/quota`.
    pub(crate) async fn quota_of(&self, uid: Uid, condition: Precondition) -> Result<Quota> {
        let user = &self.keys.user(uid);
        self.runner
            .read(move |trx| async move {
                let (head, states) = self.overview(&trx, user).await?;
                let (modified, now) = (head.shown, head.now(self.now()));
                condition.judge(modified, now)?;
                let used_bytes = self.used_bytes(&trx, user, &states, now).await?;
                Ok(Quota { modified, now, used_bytes, limit_bytes: self.limits.quota_bytes })
            })
            .await
    }

    pub(crate) async fn used_bytes(
        &self,
        trx: &Trx,
        user: &UserKeys,
        states: &[(CollectionName, Collection)],
        now: Timestamp,
    ) -> Result<u64> {
        let sizes = sizes(trx, user, states, now).await?;
        Ok(sizes.iter().map(|size| size.bytes).sum())
    }

    /// Reads the user's clock and the states of all collections, by name.
    async fn overview(&self, trx: &Trx, user: &UserKeys) -> Result<(Head, Vec<(CollectionName, Collection)>)> {
        let (mut range, mut found, mut states) = (user.head_and_collections(), None, Vec::new());
        let head_key = user.head();
        loop {
            let page = trx.page(&range, PAGE_ROWS, false).await?;
            for (key, value) in &page.rows {
                if *key == head_key {
                    found = Some(Head::decode(value)?);
                } else {
                    states.push((user.take_collection(key)?, Collection::decode(value)?));
                }
            }
            match page.rest {
                Some(rest) => range = rest,
                None => break,
            }
        }
        states.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok((found.unwrap_or_default(), states))
    }

    /// Answers `GET` of a record. `None`: the payload exceeds the limit in bytes, and is not read.
    pub(crate) async fn get_one(
        &self,
        uid: Uid,
        name: &CollectionName,
        id: &RecordId,
        condition: Precondition,
        bytes_max: u64,
    ) -> Result<Option<GetResult>> {
        let user = &self.keys.user(uid);
        self.runner
            .read(move |trx| async move {
                let keys = user.collection(name);
                let ids = [id];
                let reads = try_join3(head(&trx, user, true), state(&trx, &keys, true), base_rows(&trx, &keys, &ids));
                let (head, state, rows) = reads.await?;
                let now = head.now(self.now());
                let layers = Layers::new(user, keys, &state.unwrap_or_default());
                let found = layers.found(&trx, &[id], rows).await?.pop().unwrap_or_default();
                let view = layers.live_view(&found, now);
                condition.judge(view.as_ref().map_or(Timestamp::ZERO, |view| view.modified), now)?;
                let view = view.ok_or(Error::NotFound { now })?;
                if view.len > bytes_max {
                    return Ok(None);
                }
                let payload = layers.bytes(&trx, id, view.payload).await?;
                let (modified, sortindex, expires) = (view.modified, view.sortindex, view.expires);
                Ok(Some(GetResult { now, record: Record { id: id.clone(), modified, payload, sortindex, expires } }))
            })
            .await
    }
}

/// Returns the sizes of collections. Only a few collections with expired records are read at once.
async fn sizes(
    trx: &Trx,
    user: &UserKeys,
    states: &[(CollectionName, Collection)],
    now: Timestamp,
) -> Result<Vec<Size>> {
    let mut sizes = Vec::with_capacity(states.len());
    for states in states.chunks(LOOKED_INTO_AT_ONCE) {
        let found = states.iter().map(|(name, state)| size(trx, user, name, state, now));
        sizes.extend(try_join_all(found).await?);
    }
    Ok(sizes)
}

/// Returns a collection's size: its counts without expired records.
pub(crate) async fn size(
    trx: &Trx,
    user: &UserKeys,
    name: &CollectionName,
    state: &Collection,
    now: Timestamp,
) -> Result<Size> {
    let all = Size { count: state.count, bytes: state.bytes };
    if state.earliest_of_all() > now {
        return Ok(all);
    }
    let layers = Layers::new(user, user.collection(name), state);
    let mut gone = if state.earliest > now { Size::default() } else { gone_base(trx, &layers, now).await? };
    for (layer, (overlay, _)) in layers.overlays.iter().enumerate() {
        if overlay.earliest <= now {
            gone = gone.plus(gone_overlay(trx, &layers, layer, now).await?);
        }
    }
    let less = |all: u64, gone: u64| all.checked_sub(gone).ok_or(Error::Corrupt("more has expired than there is"));
    Ok(Size { count: less(all.count, gone.count)?, bytes: less(all.bytes, gone.bytes)? })
}

/// Returns the size of the collection's own records that have expired and that no overlay covers.
async fn gone_base(trx: &Trx, layers: &Layers, now: Timestamp) -> Result<Size> {
    let (mut range, mut gone) = (layers.keys.expired(now), Size::default());
    loop {
        let page = trx.page(&range, PAGE_ROWS, false).await?;
        let mut entries = Vec::with_capacity(page.rows.len());
        for (key, value) in &page.rows {
            let len = value.as_ref().try_into().map_err(|_| Error::Corrupt("an entry by expiry"))?;
            entries.push((layers.keys.take_expiry(key)?.1, u64::from(u32::from_be_bytes(len))));
        }
        gone = gone.plus(uncovered(trx, layers, 0, entries).await?);
        match page.rest {
            Some(rest) => range = rest,
            None => return Ok(gone),
        }
    }
}

async fn gone_overlay(trx: &Trx, layers: &Layers, layer: usize, now: Timestamp) -> Result<Size> {
    let Some((overlay, keys)) = layers.overlays.get(layer) else { return Ok(Size::default()) };
    let (mut range, mut gone) = (keys.staged(), Size::default());
    loop {
        let page = trx.page(&range, PAGE_ROWS, false).await?;
        let mut entries = Vec::new();
        for (key, value) in &page.rows {
            let staged = StagedRow::decode(value)?;
            if staged.final_expires(overlay.modified).is_some_and(|expires| expires <= now) {
                entries.push((keys.take_staged(key)?, staged.final_len()));
            }
        }
        gone = gone.plus(uncovered(trx, layers, layer + 1, entries).await?);
        match page.rest {
            Some(rest) => range = rest,
            None => return Ok(gone),
        }
    }
}

/// Returns the size of the records that the overlays from number `layer` on do not cover.
async fn uncovered(trx: &Trx, layers: &Layers, layer: usize, entries: Vec<(RecordId, u64)>) -> Result<Size> {
    let (ids, lens): (Vec<_>, Vec<_>) = entries.into_iter().unzip();
    let are_covered = layers.are_covered(trx, layer, &ids).await?;
    let lens = lens.into_iter().zip(are_covered).filter(|(_, is_covered)| !is_covered);
    Ok(lens.fold(Size::default(), |size, (len, _)| size.plus(Size { count: 1, bytes: len })))
}

impl Size {
    fn plus(self, other: Size) -> Size {
        Size { count: self.count + other.count, bytes: self.bytes + other.bytes }
    }
}
