//! Removes expired sessions, and old records of changed principals that all followers have read.

use async_recursion::async_recursion as boxed;
use flatbed_store::due::{self, DueKind};
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::changed_principal_at;
use flatbed_store::proto;
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use prost::Message;
use tokio::time::Instant;

use crate::instance::{Instance, InstanceId};
use crate::server::Inner;

/// The retention of records of changed principals, in milliseconds: far longer than any follower is behind.
pub const KEPT_FOR_MS: u64 = 60 * 60 * 1_000;

const PAGE_ROWS: usize = 2_000;

/// The outcome of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swept {
    /// Nothing is left.
    All,
    /// The rest is not old enough.
    Some,
    /// The time limit was reached.
    Unfinished,
}

/// Schedules a sweep of a database in an hour, in the transaction that makes it due.
pub(super) fn note(trx: &Transaction, instance: &Instance) -> Result<()> {
    due::mark(trx, &instance.root, DueKind::Principals, &instance.name, due::after_ms(trx.clock(), KEPT_FOR_MS))
}

#[boxed]
pub async fn sweep(inner: &Inner, name: &str, until: Instant) -> Result<Swept> {
    sweep_as_of(inner, name, inner.clock.unix_ms(), until).await
}

pub async fn sweep_as_of(inner: &Inner, name: &str, now_ms: u64, until: Instant) -> Result<Swept> {
    let mut is_left = false;
    for of in [SweptRows::Changes, SweptRows::Sessions] {
        let mut page = ReadSweptRows { inner, name, of, now_ms, behind: None };
        loop {
            let found = match transaction::write(&inner.db, &inner.metrics, &mut page).await {
                Err(Error::DatabaseNotFound) => return Ok(Swept::All),
                found => found?,
            };
            is_left |= found.is_left;
            let Some(behind) = found.behind else { break };
            if inner.clock.now() >= until {
                return Ok(Swept::Unfinished);
            }
            page.behind = Some(behind);
        }
    }
    Ok(if is_left { Swept::Some } else { Swept::All })
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SweptRows {
    Changes,
    Sessions,
}

pub struct ReadSweptRows<'a> {
    pub inner: &'a Inner,
    pub name: &'a str,
    pub of: SweptRows,
    pub now_ms: u64,
    /// The last row of the previous page and its instance. Another instance has other keys, and is read from its
    /// beginning.
    pub behind: Option<(InstanceId, Vec<u8>)>,
}

pub struct SweepPage {
    pub is_left: bool,
    /// The last row of the page and its instance; `None`: no further row is to be removed.
    pub behind: Option<(InstanceId, Vec<u8>)>,
}

impl Operation for ReadSweptRows<'_> {
    type Output = SweepPage;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<SweepPage> {
        let instance = self.inner.resolve_for_write(trx, self.name).await?;
        let mut range = match self.of {
            SweptRows::Changes => instance.keys.changed_principals_all(),
            SweptRows::Sessions => instance.keys.gateway_sessions(),
        };
        if let Some((of, behind)) = &self.behind
            && *of == instance.id()
        {
            range.begin = [&behind[..], &[0]].concat();
        }
        // A session that is prolonged meanwhile conflicts; changes of principals conflict with nothing.
        let rows = trx.range(&range, self.of == SweptRows::Changes).page(PAGE_ROWS).await?;
        let before_ms = self.now_ms.saturating_sub(KEPT_FOR_MS);
        let (mut is_left, mut is_over) = (false, false);
        for row in &rows {
            let goes = match self.of {
                SweptRows::Changes => changed_principal_at(row.value())? < before_ms,
                SweptRows::Sessions => proto::GatewaySession::decode(row.value())?.ends_at_ms <= self.now_ms,
            };
            if goes {
                trx.clear(row.key());
            } else {
                is_left = true;
                // The rows are in the order of time, except for prolonged sessions.
                is_over = self.of == SweptRows::Changes;
            }
        }
        let behind = rows.last().filter(|_| !rows.is_all() && !is_over).map(|row| (instance.id(), row.key().to_vec()));
        Ok(SweepPage { is_left, behind })
    }
}
