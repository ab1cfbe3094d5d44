//! Checks whether a reader has lost rights, for answers that continue after their content was judged.

use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_store::error::Result;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use tokio::time::Instant;

use crate::asker::ReadPrincipal;
use crate::channels::holding::RightsRead;
use crate::handles::ReadHandle;
use crate::held::{HeldCache, HeldRights, RightsKey};
use crate::server::Inner;

/// Lifetime of a result: answers to one user share it.
const FOUND_WITHIN: Duration = Duration::from_millis(200);

impl ReadHandle {
    /// Performs `Reader::can_see_all` of the layer.
    pub fn can_see_all(&self) -> bool {
        *self.asker() == ReadPrincipal::All
            || self.inner.databases.get(self.name()).is_some_and(|it| it.instance.channels() == 0)
    }

    /// Performs `Reader::has_lost` of the layer.
    #[boxed]
    pub async fn has_lost(&self, since: Instant, judged_by: Option<&HeldRights>) -> Result<bool> {
        let judged = (since, judged_by);
        let known = self.known_by().and_then(|by| self.inner.state::<HeldCache>().lost(&by, judged, FOUND_WITHIN));
        if let Some((_, has_lost)) = known.filter(|(held, _)| self.asker().admitted(held).is_ok()) {
            return Ok(has_lost);
        }
        let find = &mut FindHeld { inner: &self.inner, name: self.name(), asker: self.asker() };
        let Some(found) = self.read_about(find).await? else { return Ok(false) };
        Ok(match (judged_by, found) {
            (Some(judged_by), CurrentRights { held, is_versions: true, .. }) => !judged_by.has_versions_of(&held),
            (Some(judged_by), CurrentRights { held, .. }) => judged_by.has_lost(&held),
            // A user who was removed from the cache has an unknown history.
            (None, CurrentRights { by, .. }) => {
                self.inner.state::<HeldCache>().lost(&by, judged, Duration::MAX).is_none_or(|(_, has_lost)| has_lost)
            }
        })
    }

    fn known_by(&self) -> Option<RightsKey> {
        let (name, found_as) = self.asker().principal()?;
        Some((self.inner.databases.get(self.name())?.instance.id(), name, found_as))
    }
}

struct FindHeld<'a> {
    inner: &'a Inner,
    name: &'a str,
    asker: &'a ReadPrincipal,
}

struct CurrentRights {
    /// The principal's key in the cache.
    by: RightsKey,
    held: Arc<HeldRights>,
    /// The rights are too large for the cache and unchanged, so `held` has only the versions.
    is_versions: bool,
}

impl Operation for FindHeld<'_> {
    /// `None`: they have no right that they could lose.
    type Output = Option<CurrentRights>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let FindHeld { inner, name, asker } = *self;
        let instance = inner.resolve(trx, name).await?;
        let by = asker.principal().filter(|_| instance.channels() > 0);
        let by = by.map(|(name, found_as)| (instance.id(), name, found_as));
        if !instance.closed().is_any()
            && !trx.is_pinned()
            && let Some(by) = &by
            && let Some(held) = inner.state::<HeldCache>().versions(by)
            && held.begin_fence(trx).holds().await?
        {
            inner.state::<HeldCache>().confirm(by, &held, trx.began());
            asker.admitted(&held)?;
            return Ok(Some(CurrentRights { by: by.clone(), held, is_versions: true }));
        }
        let held = RightsRead::begin(inner, trx, &instance, asker).held().await?;
        asker.admitted(&held)?;
        Ok(by.map(|by| CurrentRights { by, held, is_versions: false }))
    }
}
