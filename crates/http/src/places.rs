//! Places for connections, with a reserve for clients without limits by address.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::doorway::Doorway;
use crate::limits::Admission;

const RESERVED: usize = 64;

const WAITING: usize = 64;

/// The interval at which a waiting connection makes room.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Places {
    of_all: Arc<Semaphore>,
    reserved: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    counts: (u32, u32),
}

#[derive(Debug)]
pub(crate) enum PlaceGrant {
    Place(OwnedSemaphorePermit),
    /// The connection may wait for a place.
    Waits(QueuedConnection),
    Nothing,
}

/// A connection that waits for a place; leaves the queue when dropped.
#[derive(Debug)]
pub(crate) struct QueuedConnection {
    places: Arc<Places>,
    _permit: OwnedSemaphorePermit,
}

impl Places {
    /// `count`: all places, including the reserved ones.
    pub(crate) fn new(count: usize) -> Arc<Places> {
        let count = u32::try_from(count.min(Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        let reserved = (count / 16).min(RESERVED as u32);
        let semaphore = |count| Arc::new(Semaphore::new(count as usize));
        Arc::new(Places {
            of_all: semaphore(count - reserved),
            reserved: semaphore(reserved),
            waiting: semaphore(WAITING as u32),
            counts: (count - reserved, reserved),
        })
    }

    pub(crate) fn take(self: &Arc<Self>, is_reserved: bool) -> PlaceGrant {
        let take = |places: &Arc<Semaphore>| places.clone().try_acquire_owned().ok();
        let place = take(&self.of_all).or_else(|| take(&self.reserved).filter(|_| is_reserved));
        match (place, take(&self.waiting)) {
            (Some(place), _) => PlaceGrant::Place(place),
            (None, Some(permit)) => PlaceGrant::Waits(QueuedConnection { places: self.clone(), _permit: permit }),
            (None, None) => PlaceGrant::Nothing,
        }
    }

    pub(crate) async fn are_all_free(&self) {
        let (of_all, reserved) = self.counts;
        let _ = tokio::join!(self.of_all.acquire_many(of_all), self.reserved.acquire_many(reserved));
    }
}

impl QueuedConnection {
    /// Closes the least useful connections until a place is free. Returns `None` after the timeout of a head.
    pub(crate) async fn for_place(self, doorway: &Doorway, admission: &Admission) -> Option<OwnedSemaphorePermit> {
        let mut place = std::pin::pin!(self.places.of_all.clone().acquire_owned());
        let place = async {
            loop {
                doorway.make_room(1, &admission.limits());
                if let Ok(place) = tokio::time::timeout(RETRY_INTERVAL, place.as_mut()).await {
                    // The semaphore is never closed.
                    return place.ok();
                }
            }
        };
        tokio::time::timeout(admission.limits().head_max, place).await.ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_leave_some() {
        let places = Places::new(80);
        let is_place = |found: &PlaceGrant| matches!(found, PlaceGrant::Place(_));
        let strangers: Vec<_> = (0..75).map(|_| places.take(false)).collect();
        assert!(strangers.iter().all(is_place));
        let waiting: Vec<_> = (0..WAITING).map(|_| places.take(false)).collect();
        assert!(waiting.iter().all(|found| matches!(found, PlaceGrant::Waits(_))));
        assert!(matches!(places.take(false), PlaceGrant::Nothing));
        let reserved: Vec<_> = (0..5).map(|_| places.take(true)).collect();
        assert!(reserved.iter().all(is_place));
        assert!(matches!(places.take(true), PlaceGrant::Nothing));
        drop(strangers);
        assert!(is_place(&places.take(false)) && is_place(&places.take(true)));
    }
}
