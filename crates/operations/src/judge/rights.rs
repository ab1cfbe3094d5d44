//! The rights of authors in a database with channels: as its sync function sees them, and verified when the write
//! commits.

use std::collections::HashMap;
use std::sync::Arc;

use flatbed_channels::require::Writer;
use flatbed_databases::asker::ReadPrincipal;
use flatbed_databases::channels::holding::RightsRead;
use flatbed_databases::handles::{ReadHandle, WriteHandle};
use flatbed_databases::held::{HeldRights, RightsFence};
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_store::error::{Refusal, Result};
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};

/// Returns the author's access; `None`: unrestricted. Cached access is enough, since the write's own transaction
/// verifies it ([`Fences`]). `is_anew`: the cached access was outdated.
pub async fn held(
    database: &ReadHandle,
    instance: &Instance,
    asker: &ReadPrincipal,
    is_anew: bool,
) -> Result<Option<Arc<HeldRights>>> {
    struct ReadRights<'a>(&'a Inner, &'a Instance, &'a ReadPrincipal);
    impl Operation for ReadRights<'_> {
        type Output = Arc<HeldRights>;
        async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Arc<HeldRights>> {
            RightsRead::begin(self.0, trx, self.1, self.2).held().await
        }
    }
    let inner = &*database.inner;
    if *asker == ReadPrincipal::All {
        return Ok(None);
    }
    if instance.closed().is_any() {
        return Err(Refusal::Closed.into());
    }
    if let Some(held) = RightsRead::cached(inner, instance, asker).filter(|_| !is_anew) {
        return Ok(Some(held));
    }
    // If another database has taken its place, the write begins again.
    transaction::read(&inner.db, &inner.metrics, &mut ReadRights(inner, instance, asker)).await.map(Some)
}

/// Returns the author for a sync function. A member by `_security` who is no user of the database gets a name that no
/// user has.
///
/// # Errors
/// The author is unknown here: a guest without access, a user who is deleted or disabled, an account that is neither a
/// user nor a member.
pub fn writer(asker: &ReadPrincipal, held: &HeldRights) -> std::result::Result<Arc<Writer>, Refusal> {
    asker.admitted(held)?;
    let name = match asker {
        ReadPrincipal::Principal(name) | ReadPrincipal::Account { name, .. } if held.is_there => name.to_string(),
        ReadPrincipal::Account { name, .. } => format!(":{name}"),
        ReadPrincipal::Principal(_) | ReadPrincipal::Guest | ReadPrincipal::All => String::new(),
    };
    Ok(held.as_writer(name, asker.writer(held)))
}

/// Checks with cached access whether a client may upload data for documents that are judged later.
///
/// # Errors
/// As of [`writer`].
pub async fn admitted(database: &WriteHandle, instance: &Instance) -> Result<()> {
    let asker = database.asker();
    if instance.channels() > 0
        && let Some(held) = held(database, instance, asker, false).await?
        && writer(asker, &held).is_err()
    {
        let held = self::held(database, instance, asker, true).await?;
        held.map_or(Ok(()), |held| writer(asker, &held).map(drop))?;
    }
    Ok(())
}

pub struct Fences {
    reads: Vec<(usize, RightsFence)>,
    are_same: HashMap<usize, bool>,
}

impl Fences {
    /// Begins to read the version of each author's access once.
    pub fn begin<'h>(trx: &Transaction, held: impl Iterator<Item = &'h Arc<HeldRights>>) -> Fences {
        let mut fences = Fences { reads: Vec::new(), are_same: HashMap::new() };
        for held in held {
            let place = Arc::as_ptr(held).addr();
            if fences.are_same.insert(place, false).is_none() {
                fences.reads.push((place, held.begin_fence(trx)));
            }
        }
        fences
    }

    pub async fn arrived(mut self) -> Result<Fences> {
        for (place, read) in std::mem::take(&mut self.reads) {
            self.are_same.insert(place, read.holds().await?);
        }
        Ok(self)
    }

    pub fn is_same(&self, held: &Arc<HeldRights>) -> bool {
        self.are_same.get(&Arc::as_ptr(held).addr()).is_some_and(|is_same| *is_same)
    }
}
