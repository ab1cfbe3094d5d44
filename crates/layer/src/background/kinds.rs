//! The work for each kind of due work.

use std::time::Duration;

use flatbed_databases::actor::ServerActor;
use flatbed_databases::channels::sweep::{self, KEPT_FOR_MS, Swept};
use flatbed_databases::document::staging;
use flatbed_feeds::updates;
use flatbed_jobs::Backoff;
use flatbed_operations::write::compact;
use flatbed_operations::write::expire::expire;
use flatbed_store::due::{self, DueKind};
use flatbed_store::error::Result;
use flatbed_store::keys::DueKey;
use flatbed_views::group::attend::{AttendOutcome, attend};

use crate::background::list::DueEntry;
use crate::background::seats::Seat;
use crate::builder;
use crate::handle::Layer;
use crate::resync::resync;
use crate::sweeper::{self, KEPT_FOR};

/// The backoff of attachment lists that could not be freed because their documents are edited continuously.
const RELEASED_LEFT_FOR_MS: u64 = 10 * 60 * 1_000;

#[derive(Debug)]
pub(super) enum Outcome {
    Done,
    /// The work is done, and other work has become due.
    Due(DueKey),
    Unfinished,
    /// This process is already doing it and will report the outcome; or it is no longer due.
    Elsewhere,
}

/// The least time until groups of views that have not followed yet are checked again. Their followers go on meanwhile.
const GROUPS_LEFT_FOR_MS: u64 = 15 * 1_000;

/// The time for which a task waits for groups of views, without a seat, before it lists the check again: most groups
/// follow at once.
const GROUPS_AWAITED_FOR: Duration = Duration::from_secs(2);

/// Does the due work, for about `turn` if it takes long. `ahead`: work that becomes due within this time is done now.
/// `seat`: given up while the work only waits for others.
pub(super) async fn work(
    layer: &Layer,
    actor: &ServerActor,
    entry: &DueEntry,
    turn: Duration,
    ahead: Duration,
    seat: &mut Option<Seat>,
) -> Result<Outcome> {
    let (inner, clock, name) = (&layer.inner, layer.clock(), entry.key.name.as_str());
    Ok(match DueKind::of(entry.key.kind) {
        Some(DueKind::Superseded) => match compact::is_due(inner, name).await? {
            true => Outcome::Due(due::key_of(DueKind::Compaction, name, 0)),
            false => Outcome::Done,
        },
        Some(DueKind::Compaction) => of_part(compact::compact(inner, name, turn).await?),
        Some(DueKind::Indexes) => of_part(builder::build(inner, name, turn).await?),
        Some(DueKind::Uploads) => {
            let broken_after = inner.options.uploads_broken_after;
            let swept = staging::sweep_database(inner, name, broken_after, Some(clock.now() + turn)).await?;
            if swept.is_over {
                return Ok(Outcome::Unfinished);
            }
            let released = swept.is_released_left.then(|| due::after_ms(clock, RELEASED_LEFT_FOR_MS));
            let broken_after = u64::try_from(broken_after.as_millis()).unwrap_or(u64::MAX);
            let oldest = swept.oldest_ms.map(|since| due::rounded_ms(since.saturating_add(broken_after)));
            match released.into_iter().chain(oldest).min() {
                Some(at_ms) => Outcome::Due(due::key_of(DueKind::Uploads, name, at_ms)),
                None => Outcome::Done,
            }
        }
        Some(DueKind::Marks) => {
            sweeper::sweep_marks(inner, KEPT_FOR).await?;
            sweeper::sweep_record_log(inner).await?;
            match sweeper::are_marks_left(inner).await? {
                true => {
                    Outcome::Due(due::key_of(DueKind::Marks, name, due::after_ms(clock, KEPT_FOR.as_millis() as u64)))
                }
                false => Outcome::Done,
            }
        }
        Some(DueKind::Events) => {
            updates::sweep(inner, KEPT_FOR).await?;
            Outcome::Done
        }
        Some(DueKind::Views) => {
            let reader = layer.reader(name);
            let attended = attend(&reader.handle, GROUPS_AWAITED_FOR, || drop(seat.take())).await?;
            let again = |at_ms| Outcome::Due(due::key_of(DueKind::Views, name, at_ms));
            match attended {
                // Commits that rely on the entry may follow until its time.
                _ if entry.listed_for_ms() > clock.unix_ms() => Outcome::Elsewhere,
                AttendOutcome::Through => Outcome::Done,
                AttendOutcome::Until(at_ms) => again(at_ms),
                AttendOutcome::Unfinished => {
                    let at_ms = clock.unix_ms().saturating_add(GROUPS_LEFT_FOR_MS);
                    again(due::rounded_to(at_ms, GROUPS_LEFT_FOR_MS))
                }
                AttendOutcome::Elsewhere => Outcome::Elsewhere,
            }
        }
        Some(DueKind::Resync) => of_part(resync(&layer.reader(name), turn).await?),
        Some(DueKind::Expiry) => {
            let database = layer.database(name, actor.clone());
            of_part(expire(&database.handle, turn, entry.listed_for_ms(), ahead).await?)
        }
        Some(DueKind::Principals) => match sweep::sweep(inner, name, clock.now() + turn).await? {
            Swept::All => Outcome::Done,
            Swept::Some => Outcome::Due(due::key_of(DueKind::Principals, name, due::after_ms(clock, KEPT_FOR_MS))),
            Swept::Unfinished => Outcome::Unfinished,
        },
        None => Outcome::Unfinished,
    })
}

/// Returns whether processes without the slice's lease take part in work of a kind.
pub(super) fn is_shared(kind: u64) -> bool {
    DueKind::of(kind) == Some(DueKind::Resync)
}

/// Takes part in work of a slice of another process, which reports the outcome. Returns whether this process has done
/// some of it.
pub(super) async fn help(layer: &Layer, entry: &DueEntry, turn: Duration) -> Result<bool> {
    match DueKind::of(entry.key.kind) {
        Some(DueKind::Resync) => Ok(resync(&layer.reader(&entry.key.name), turn).await? == Some(false)),
        _ => Ok(false),
    }
}

/// Returns the outcome of long work. `is_through`: whether it has finished; `None`: this process is already doing it,
/// or it is no longer due.
fn of_part(is_through: Option<bool>) -> Outcome {
    match is_through {
        Some(true) => Outcome::Done,
        Some(false) => Outcome::Unfinished,
        None => Outcome::Elsewhere,
    }
}

pub(super) fn backoff_of(kind: u64) -> Backoff {
    match DueKind::of(kind) {
        // Queries wait for it.
        Some(DueKind::Indexes) => Backoff { first: Duration::from_secs(1), max: Duration::from_secs(30) },
        Some(DueKind::Resync) => Backoff { first: Duration::from_secs(5), max: Duration::from_secs(5 * 60) },
        // A document on which the storage fails blocks the others of its page, whose channels and grants stay
        // meanwhile.
        Some(DueKind::Expiry) => Backoff { first: Duration::from_secs(60), max: Duration::from_secs(10 * 60) },
        Some(DueKind::Views) => Backoff { first: Duration::from_secs(1), max: Duration::from_secs(5 * 60) },
        _ => Backoff { first: Duration::from_secs(60), max: Duration::from_secs(8 * 60 * 60) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tombstones_do_not_rest_for_hours() {
        let [expiry, compaction] = [DueKind::Expiry, DueKind::Compaction].map(|kind| backoff_of(kind as u64).max);
        assert_eq!(expiry, Duration::from_secs(600));
        assert!(compaction > expiry);
    }
}
