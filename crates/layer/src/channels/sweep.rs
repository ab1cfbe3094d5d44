//! Removes what nobody asks for any longer: sessions that have ended, and that principals changed, of which followers have heard.

use prost::Message;
use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::instance::Instance;
use crate::layer::Inner;
use crate::store::due::{self, Kind};
use crate::store::keys::changed_principal_at;
use crate::store::proto;
use crate::store::transaction::{self, Attempt, Operation, Transaction};

/// For how long it is kept which principals have changed, in milliseconds: nobody who follows is behind by nearly as much.
pub(crate) const KEPT_FOR_MS: u64 = 60 * 60 * 1_000;

/// Rows that one transaction looks at.
const PAGE_ROWS: usize = 2_000;

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Swept {
    /// There is nothing left.
    All,
    /// What is left is not old enough.
    Some,
    /// The time is over.
    Unfinished,
}

/// Notes in a transaction that a database is to be swept, an hour later.
pub(super) fn note(trx: &Transaction, instance: &Instance) -> Result<()> {
    due::mark(trx, &instance.root, Kind::Principals, &instance.name, due::after_ms(trx.clock(), KEPT_FOR_MS))
}

/// Sweeps a database, until then.
pub(crate) async fn sweep(inner: &Inner, name: &str, until: Instant) -> Result<Swept> {
    sweep_as_of(inner, name, inner.clock.unix_ms(), until).await
}

pub(super) async fn sweep_as_of(inner: &Inner, name: &str, now_ms: u64, until: Instant) -> Result<Swept> {
    let mut is_left = false;
    for of in [Of::Changes, Of::Sessions] {
        let mut page = Page { inner, name, of, now_ms, behind: Vec::new() };
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
            page.behind = behind;
        }
    }
    Ok(if is_left { Swept::Some } else { Swept::All })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Changes,
    Sessions,
}

struct Page<'a> {
    inner: &'a Inner,
    name: &'a str,
    of: Of,
    now_ms: u64,
    /// The last row of the page before.
    behind: Vec<u8>,
}

struct Found {
    is_left: bool,
    /// The last row of the page; `None`: there are none behind it that go.
    behind: Option<Vec<u8>>,
}

impl Operation for Page<'_> {
    type Output = Found;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Found> {
        let instance = self.inner.resolve_for_write(trx, self.name).await?;
        let mut range = match self.of {
            Of::Changes => instance.keys.changed_principals_all(),
            Of::Sessions => instance.keys.gateway_sessions(),
        };
        if !self.behind.is_empty() {
            range.begin = [&self.behind[..], &[0]].concat();
        }
        // A session that is prolonged meanwhile conflicts; who changes conflicts with nobody.
        let rows = trx.range(&range, self.of == Of::Changes).page(PAGE_ROWS).await?;
        let before_ms = self.now_ms.saturating_sub(KEPT_FOR_MS);
        let (mut is_left, mut is_over) = (false, false);
        for row in &rows {
            let goes = match self.of {
                Of::Changes => changed_principal_at(row.value())? < before_ms,
                Of::Sessions => proto::GatewaySession::decode(row.value())?.ends_at_ms <= self.now_ms,
            };
            if goes {
                trx.clear(row.key());
            } else {
                is_left = true;
                // They lie in the order of time, but for renewals, which begin anew.
                is_over = self.of == Of::Changes;
            }
        }
        let behind = rows.last().filter(|_| !rows.is_all() && !is_over).map(|row| row.key().to_vec());
        Ok(Found { is_left, behind })
    }
}
