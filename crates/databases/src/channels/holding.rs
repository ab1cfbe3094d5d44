//! Reads the rights of a principal as of a transaction.
//!
//! Rights are cached with the versions of the user and of each of their roles. Each transaction reads these versions
//! beside its other reads, and only if one differs the rights are read again. So a grant or revocation takes effect at
//! once in every process.

use std::collections::HashMap;
use std::sync::Arc;

use flatbed_channels::{DirectGrant, GrantedItem, HeldChannels, Periods, PrincipalKind, RoleRows, Stamp};
use flatbed_store::error::{Error, Refusal, Result};
use flatbed_store::keys::{KeyRange, Keys, PrincipalPart};
use flatbed_store::proto;
use flatbed_store::transaction::{BoxedPageRead, Transaction};
use futures_util::future::try_join;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use prost::Message;

use crate::asker::ReadPrincipal;
use crate::held::{HeldCache, HeldRights, RightsFence, RightsHolder, RightsKey, VersionRead};
use crate::instance::Instance;
use crate::server::Inner;

/// Rows of a user and the user's roles that are read; further ones, in the order of names, do not count.
const ROWS_MAX: usize = 100_000;

/// The smallest part of that limit for a user, or for one of many roles.
const ROWS_MIN: usize = 100;

/// Rows that are requested at once.
const PAGE_ROWS: usize = 5_000;

/// Roles that are read at once.
const ROLES_AT_ONCE: usize = 64;

/// A read of a principal's rights.
pub struct RightsRead<'a> {
    inner: &'a Inner,
    trx: &'a Transaction,
    instance: &'a Instance,
    state: RightsReadState,
}

enum RightsReadState {
    /// The database is closed to its users.
    Closed,
    /// No read is needed.
    Found(Arc<HeldRights>),
    /// The rights are cached with these versions.
    Remembered(RightsKey, Arc<HeldRights>, RightsFence),
    Unknown(RightsKey, UserReading),
}

/// A pending read of a user's own rows.
struct UserReading {
    record: VersionRead,
    version: VersionRead,
    periods: RowsReading,
}

/// A pending read of rows of a principal.
struct RowsReading(BoxedPageRead);

impl<'a> RightsRead<'a> {
    /// Requests the principal's rights, as snapshots; nothing if they are known.
    pub fn begin(
        inner: &'a Inner,
        trx: &'a Transaction,
        instance: &'a Instance,
        asker: &ReadPrincipal,
    ) -> RightsRead<'a> {
        let found = |held| RightsReadState::Found(Arc::new(held));
        let state = match (asker, asker.principal()) {
            _ if *asker != ReadPrincipal::All && instance.closed().is_any() => RightsReadState::Closed,
            // In a database without channels each member sees all documents.
            _ if instance.channels() == 0 => found(HeldRights::all()),
            (ReadPrincipal::All, _) => found(HeldRights::all()),
            (ReadPrincipal::Account { is_member: true, .. }, None) => found(HeldRights::everybody()),
            (_, None) => found(HeldRights::default()),
            (_, Some((name, found_as))) => {
                let by = (instance.id(), name, found_as);
                match inner.state::<HeldCache>().get(&by) {
                    Some(held) => {
                        let versions = held.begin_fence(trx);
                        RightsReadState::Remembered(by, held, versions)
                    }
                    None => {
                        let user = UserReading::begin(trx, &instance.keys, &by.1);
                        RightsReadState::Unknown(by, user)
                    }
                }
            }
        };
        RightsRead { inner, trx, instance, state }
    }

    /// Returns the cached rights of a principal: the caller must check their versions again.
    pub fn cached(inner: &Inner, instance: &Instance, asker: &ReadPrincipal) -> Option<Arc<HeldRights>> {
        let (name, found_as) = asker.principal()?;
        inner.state::<HeldCache>().get(&(instance.id(), name, found_as))
    }

    /// Waits for the rights: once if the cached ones are current, else once more for those of roles.
    pub async fn held(self) -> Result<Arc<HeldRights>> {
        let RightsRead { inner, trx, instance, state } = self;
        let (by, user) = match state {
            RightsReadState::Closed => return Err(Refusal::Closed.into()),
            RightsReadState::Found(held) => return Ok(held),
            RightsReadState::Remembered(by, held, versions) => {
                if versions.holds().await? {
                    if !trx.is_pinned() {
                        inner.state::<HeldCache>().confirm(&by, &held, trx.began());
                    }
                    return Ok(held);
                }
                let user = UserReading::begin(trx, &instance.keys, &by.1);
                (by, user)
            }
            RightsReadState::Unknown(by, user) => (by, user),
        };
        let held = Arc::new(read(trx, &instance.keys, &by, user).await?);
        // A read of a pinned past version must not enter the cache.
        if !trx.is_pinned() {
            inner.state::<HeldCache>().insert(by, &held, trx.began());
        }
        Ok(held)
    }
}

/// Decodes a stored version.
pub fn stamp_of(found: Option<&[u8]>) -> Result<Option<Stamp>> {
    let stamp = |bytes: &[u8]| bytes.try_into().map(Stamp);
    found.map(stamp).transpose().map_err(|_| Error::Corrupt("the version of a principal is not 16 bytes".into()))
}

impl UserReading {
    fn begin(trx: &Transaction, keys: &Keys, name: &str) -> UserReading {
        UserReading {
            record: Box::pin(trx.get(&keys.principal(PrincipalKind::User, name), true)),
            version: Box::pin(trx.get(&keys.principal_version(PrincipalKind::User, name), true)),
            periods: RowsReading::begin(trx, keys.periods_of(PrincipalKind::User, name)),
        }
    }
}

impl RowsReading {
    fn begin(trx: &Transaction, range: KeyRange) -> RowsReading {
        RowsReading(trx.range(&range, true).begin(Some(PAGE_ROWS)).boxed())
    }

    /// Returns at most `max` rows.
    async fn rows(self, trx: &Transaction, keys: &Keys, max: usize) -> Result<Vec<DirectGrant>> {
        let mut page = self.0.finish(trx).await?;
        let mut rows = Vec::new();
        loop {
            for row in &page {
                rows.push(row_of(keys, row.key(), row.value())?);
            }
            let Some(rest) = page.rest.filter(|_| rows.len() < max) else { break };
            page = trx.range(&rest, true).page(PAGE_ROWS).await?;
        }
        rows.truncate(max);
        Ok(rows)
    }
}

/// Reads the rights of a principal without the cache; `None`: the principal has no name.
#[cfg(feature = "test-hooks")]
pub async fn read_anew(trx: &Transaction, instance: &Instance, asker: &ReadPrincipal) -> Result<Option<HeldRights>> {
    let Some((name, found_as)) = asker.principal() else { return Ok(None) };
    let user = UserReading::begin(trx, &instance.keys, &name);
    read(trx, &instance.keys, &(instance.id(), name, found_as), user).await.map(Some)
}

/// Decodes a row of periods.
pub fn row_of(keys: &Keys, key: &[u8], value: &[u8]) -> Result<DirectGrant> {
    let PrincipalPart::Periods { what, .. } = keys.split_principals(key)? else {
        return Err(Error::Corrupt("a row of what a principal has is another one".into()));
    };
    Ok(DirectGrant { what, periods: periods_of(value)? })
}

/// Decodes stored periods.
pub fn periods_of(value: &[u8]) -> Result<Periods> {
    Periods::decode(value).map_err(|error| Error::Corrupt(error.to_string()))
}

async fn read(trx: &Transaction, keys: &Keys, by: &RightsKey, user: UserReading) -> Result<HeldRights> {
    let (_, name, found_as) = by;
    let (record, version) = try_join(user.record, user.version).await?;
    let version = stamp_of(version.as_deref())?;
    let mut found = HeldRights {
        versions: vec![(PrincipalKind::User, Arc::clone(name), version)],
        keys: vec![keys.principal_version(PrincipalKind::User, name)],
        ..HeldRights::default()
    };
    let record = record.map(|record| proto::Principal::decode(&*record)).transpose()?;
    let record = record.filter(|record| record.exists && (*found_as == RightsHolder::Principal || record.account));
    let Some(record) = record else {
        if *found_as == (RightsHolder::Account { is_member: true }) {
            found.held = HeldChannels::everybody();
        }
        return Ok(found);
    };
    found.user_at = stamp_of(Some(&record.changed))?;
    if record.disabled {
        return Ok(found);
    }
    (found.is_there, found.person) = (true, record.person);
    let (held, of_roles) = held_of_user(trx, keys, user.periods).await?;
    found.held = held;
    for (role, version) in of_roles {
        found.keys.push(keys.principal_version(PrincipalKind::Role, &role));
        found.versions.push((PrincipalKind::Role, role, version));
    }
    Ok(found)
}

/// Returns the rights of a user, and the versions of the user's roles.
async fn held_of_user(
    trx: &Transaction,
    keys: &Keys,
    periods: RowsReading,
) -> Result<(HeldChannels, Vec<(Arc<str>, Option<Stamp>)>)> {
    let rows = periods.rows(trx, keys, ROWS_MAX).await?;
    let names: Vec<Arc<str>> = rows.iter().filter_map(|row| role_of(&row.what).map(Arc::from)).collect();
    let max = (ROWS_MAX / names.len().max(1)).max(ROWS_MIN);
    let of_roles = stream::iter(names.into_iter().map(|role| read_role(trx, keys, role, max)));
    let of_roles: Vec<_> = of_roles.buffered(ROLES_AT_ONCE).try_collect().await?;
    let mut versions = Vec::with_capacity(of_roles.len());
    let mut by_role = HashMap::with_capacity(of_roles.len());
    for (role, version, rows) in of_roles {
        versions.push((Arc::clone(&role), version));
        by_role.insert(role, rows);
    }
    Ok((HeldChannels::of(rows, |role| by_role.get(role).cloned()), versions))
}

fn role_of(what: &GrantedItem) -> Option<&str> {
    match what {
        GrantedItem::Role(role) => Some(role),
        GrantedItem::Channel(_) => None,
    }
}

/// Reads a role's version, and the channels that it gives.
async fn read_role(
    trx: &Transaction,
    keys: &Keys,
    role: Arc<str>,
    max: usize,
) -> Result<(Arc<str>, Option<Stamp>, RoleRows)> {
    let version = trx.get(&keys.principal_version(PrincipalKind::Role, &role), true);
    let rows = RowsReading::begin(trx, keys.periods_of(PrincipalKind::Role, &role));
    let (version, rows) = try_join(async { Ok(version.await?) }, rows.rows(trx, keys, max)).await?;
    Ok((role, stamp_of(version.as_deref())?, role_rows(rows)))
}

/// Returns what a role gives by its rows; an existing role has a row in which it holds itself.
pub fn role_rows(rows: Vec<DirectGrant>) -> RoleRows {
    let mut of_role = RoleRows::default();
    for DirectGrant { what, periods } in rows {
        match what {
            GrantedItem::Role(_) => of_role.exists = periods,
            GrantedItem::Channel(name) => of_role.channels.push((name, periods)),
        }
    }
    of_role
}

/// Returns the rights of a user for an administrator, disabled or not.
pub async fn held_by_user(trx: &Transaction, keys: &Keys, name: &str) -> Result<HeldChannels> {
    let periods = RowsReading::begin(trx, keys.periods_of(PrincipalKind::User, name));
    Ok(held_of_user(trx, keys, periods).await?.0)
}

/// Returns the rights of a role for an administrator who looks at the role.
pub async fn held_by_role(trx: &Transaction, keys: &Keys, role: &str) -> Result<HeldChannels> {
    let rows = RowsReading::begin(trx, keys.periods_of(PrincipalKind::Role, role)).rows(trx, keys, ROWS_MAX).await?;
    Ok(HeldChannels::of(rows.into_iter().filter(|row| role_of(&row.what).is_none()), |_| None))
}
