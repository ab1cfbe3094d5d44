//! Finds the users of databases that have changed or lost a session since the last look, for long requests that
//! continue with the credentials of their start.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use flatbed_channels::PrincipalKind;
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::unpack_principal;
use flatbed_store::seq::{STAMP_BYTES, Seq};
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use futures_util::future::join_all;

use crate::limits::Limit;
use crate::server::Inner;

/// Changes of one database that are read; if there are more, all users count as changed.
const CHANGES_MAX: Limit<usize> = Limit::new(1_000, 4);

/// The last sequence scanned in a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsersPosition(Seq);

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
        let version = u64::try_from(trx.get_read_version().await?).unwrap_or_default();
        // Behind every commit of this read version, and before all later ones.
        let mut stamp = [0xff; STAMP_BYTES];
        stamp.iter_mut().zip(version.to_be_bytes()).for_each(|(byte, of)| *byte = of);
        let inner = self.inner;
        let looks = self.asked.iter().map(|(name, place)| look_at(inner, trx, name, *place, stamp));
        join_all(looks).await.into_iter().collect()
    }
}

async fn look_at(
    inner: &Inner,
    trx: &Transaction,
    name: &str,
    before: Option<UsersPosition>,
    stamp: [u8; STAMP_BYTES],
) -> Result<Option<UserChanges>> {
    let instance = match inner.resolve(trx, name).await {
        Ok(instance) if instance.channels() > 0 => instance,
        Ok(_) => return Ok(None),
        Err(error @ Error::Storage(_)) => return Err(error),
        // The database does not exist, or this program cannot open it.
        Err(_) => return Ok(None),
    };
    let place = UsersPosition(Seq::new(instance.incarnation(), stamp));
    let all = Some(UserChanges { place, names: None });
    // A restored database has another order of commits.
    let is_same = |before: &UsersPosition| before.0.incarnation() == instance.incarnation() && before.0 <= place.0;
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
