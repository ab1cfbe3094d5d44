//! Finds the users of databases that have changed or lost a session since the last look, for long requests that
//! continue with the credentials of their start: first the databases, by the access versions, then their users.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use flatbed_channels::PrincipalKind;
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::{ACCESS_CELLS, AccessCell, BUCKETS, METADATA_VERSION, unpack_principal};
use flatbed_store::seq::{Seq, Stamp, VERSIONSTAMP_OFFSET, own_stamp};
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use flatbed_store::updated::stamp_of;
use futures_util::future::join_all;

use crate::limits::Limit;
use crate::server::Inner;

/// Changes of one database that are read; if there are more, all users count as changed.
const CHANGES_MAX: Limit<usize> = Limit::new(1_000, 4);

/// Buckets whose cells are read at once, at most 256 keys each.
const BUCKETS_AT_ONCE: usize = 32;

/// The access versions of all databases, as of one look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessState {
    /// A stamp behind every commit that the look saw, and before all later ones.
    stamp: Stamp,
    /// The newest change of each bucket that has one.
    buckets: BTreeMap<u8, Stamp>,
}

impl AccessState {
    /// Returns the position of this look in a database of this incarnation.
    pub fn position(&self, incarnation: u64) -> UsersPosition {
        UsersPosition(Seq::new(incarnation, self.stamp))
    }
}

/// A part of all databases, by the cells of their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessPart {
    /// The databases of a cell.
    Cell(AccessCell),
    /// The databases of a bucket.
    Bucket(u8),
}

/// The outcome of a look at the access versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessChanges {
    /// The start of the next look.
    pub state: AccessState,
    /// The parts in which access has changed since the known state. For a first look: all buckets.
    pub changed: Vec<AccessPart>,
}

/// Performs `Layer::access_changes` of the layer.
#[boxed]
pub async fn access_changes(
    inner: &Inner,
    known: Option<&AccessState>,
    wants: &(dyn Fn(u8) -> bool + Send + Sync),
) -> Result<AccessChanges> {
    transaction::read(&inner.db, &inner.metrics, &mut ReadAccess { inner, known, wants }).await
}

struct ReadAccess<'a> {
    inner: &'a Inner,
    known: Option<&'a AccessState>,
    /// Says whether the caller follows a database of this bucket. Called after the read version is known.
    wants: &'a (dyn Fn(u8) -> bool + Send + Sync),
}

impl Operation for ReadAccess<'_> {
    type Output = AccessChanges;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<AccessChanges> {
        let keys = &self.inner.keys;
        let (version, rows) = (trx.get_read_version(), trx.range(&keys.access_buckets(), true).all(BUCKETS));
        let metadata = trx.get(METADATA_VERSION, true).await?;
        let epoch = self.inner.learn(trx, metadata.as_deref().unwrap_or_default()).await?.epochs().now();
        let (stamp, mut buckets) = (stamp_behind(epoch, version.await?), BTreeMap::new());
        for row in rows.await?.iter() {
            buckets.insert(keys.access_bucket_parse(row.key())?, stamp_of(row.value())?);
        }
        let state = AccessState { stamp, buckets };
        let Some(known) = self.known else {
            return Ok(AccessChanges { state, changed: (0..=u8::MAX).map(AccessPart::Bucket).collect() });
        };
        let (mut changed, mut moved) = (Vec::new(), Vec::new());
        for bucket in 0..=u8::MAX {
            let (before, now) = (known.buckets.get(&bucket).copied(), state.buckets.get(&bucket).copied());
            if before == now || !(self.wants)(bucket) {
                continue;
            }
            match now {
                Some(now) if before.is_none_or(|before| before < now) => moved.push((bucket, before, now)),
                // The store was restored.
                _ => changed.push(AccessPart::Bucket(bucket)),
            }
        }
        for some in moved.chunks(BUCKETS_AT_ONCE) {
            let reads = some.iter().map(|(bucket, ..)| trx.range(&keys.access_cells(*bucket), true).all(ACCESS_CELLS));
            let reads: Vec<_> = reads.collect();
            for ((bucket, before, now), rows) in some.iter().zip(join_all(reads).await) {
                let mut newest: Option<Stamp> = None;
                for row in rows?.iter() {
                    let (cell, stamp) = (keys.access_cell_parse(row.key())?, stamp_of(row.value())?);
                    newest = newest.max(Some(stamp));
                    if before.is_none_or(|before| before < stamp) {
                        changed.push(AccessPart::Cell(cell));
                    }
                }
                // A renewal stamps the buckets alone.
                if newest != Some(*now) {
                    changed.push(AccessPart::Bucket(*bucket));
                }
            }
        }
        Ok(AccessChanges { state, changed })
    }
}

/// Returns a stamp behind every commit of an epoch up to a read version, and before all later ones.
fn stamp_behind(epoch: u32, version: i64) -> Stamp {
    let mut stamp = own_stamp(epoch, u16::MAX);
    let version = u64::try_from(version).unwrap_or_default();
    let place = stamp.iter_mut().skip(VERSIONSTAMP_OFFSET as usize);
    place.zip(version.to_be_bytes()).for_each(|(byte, of)| *byte = of);
    stamp
}

/// The last sequence scanned in a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsersPosition(Seq);

impl UsersPosition {
    /// Returns the number that tells the database from others of its name.
    pub fn incarnation(&self) -> u64 {
        self.0.incarnation()
    }
}

/// The changes of users in one database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserChanges {
    /// The start of the next look.
    pub place: UsersPosition,
    /// Users by name; the guest's is empty. `None`: possibly all.
    pub names: Option<Vec<Arc<str>>>,
}

/// Performs `Layer::users_changed` of the layer.
#[boxed]
pub async fn users_changed(
    inner: &Inner,
    asked: &[(Arc<str>, Option<UsersPosition>)],
) -> Result<Vec<Option<UserChanges>>> {
    let mut look = ReadChanges { inner, asked };
    transaction::read(&inner.db, &inner.metrics, &mut look).await
}

struct ReadChanges<'a> {
    inner: &'a Inner,
    asked: &'a [(Arc<str>, Option<UsersPosition>)],
}

impl Operation for ReadChanges<'_> {
    type Output = Vec<Option<UserChanges>>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let version = trx.get_read_version().await?;
        let inner = self.inner;
        let looks = self.asked.iter().map(|(name, place)| look_at(inner, trx, name, *place, version));
        join_all(looks).await.into_iter().collect()
    }
}

async fn look_at(
    inner: &Inner,
    trx: &Transaction,
    name: &str,
    before: Option<UsersPosition>,
    version: i64,
) -> Result<Option<UserChanges>> {
    let instance = match inner.resolve(trx, name).await {
        Ok(instance) if instance.channels() > 0 => instance,
        Ok(_) => return Ok(None),
        Err(error @ Error::Storage(_)) => return Err(error),
        // The database does not exist, or this program cannot open it.
        Err(_) => return Ok(None),
    };
    let place = UsersPosition(Seq::new(instance.incarnation(), stamp_behind(instance.epoch(), version)));
    let all = Some(UserChanges { place, names: None });
    // A restore also reverts users, without a change.
    let is_same = |UsersPosition(before): &UsersPosition| {
        (before.incarnation(), before.epoch()) == (place.0.incarnation(), place.0.epoch()) && *before <= place.0
    };
    let Some(UsersPosition(before)) = before.filter(is_same) else { return Ok(all) };
    let range = instance.keys.changed_principals_after(&before);
    let rows = trx.range(&range, true).first(CHANGES_MAX.get()).await?;
    if rows.len() == CHANGES_MAX.get() {
        return Ok(all);
    }
    let mut names = Vec::new();
    for row in rows.iter() {
        let (kind, name) = unpack_principal(row.value())?;
        if kind == PrincipalKind::User {
            names.push(name.into());
        }
    }
    Ok(Some(UserChanges { place, names: Some(names) }))
}
