//! Tests of `view_updates` with a whole layer.
#![cfg(test)]

use std::sync::Arc;

use flatbed_clock::Clock;
use flatbed_store::error::ViewFailure;
use flatbed_store::view_bounds::ViewBounds;
use flatbed_views::view_updates::*;

#[test]
fn what_is_stuck_is_tried_again_less_and_less_often() {
    let views = ViewUpdates::new(
        [0; 16],
        ViewBounds::default(),
        flatbed_store::view_bounds::bytes_by_default(),
        &Clock::system(),
    );
    let state = views.group((0, 0));
    let pause = |failure: &ViewFailure| {
        state.give_up("db", failure.clone());
        let failed = lock(&state.failure).clone();
        failed.map(|(_, pause, _)| pause.as_secs())
    };
    let stuck = ViewFailure::Stuck("no room".to_owned());
    let pauses: Vec<_> = (0..40).filter_map(|_| pause(&stuck)).collect();
    assert_eq!((&pauses[..7], pauses[39]), (&[1, 2, 4, 8, 16, 30, 30][..], 30));
    assert_eq!(state.failure(), Some(stuck.clone()));
    assert_eq!(pause(&ViewFailure::Changed), Some(1));
    // It is rebuilt, and progresses, each time.
    state.moved_to(7);
    assert_eq!((state.failure(), pause(&stuck)), (None, Some(30)));
    state.is_through();
    assert_eq!(pause(&stuck), Some(1));
}

#[test]
fn a_group_that_is_tried_in_vain_for_long_fails() {
    let manual = flatbed_clock::ManualClock::new();
    let views = ViewUpdates::new(
        [0; 16],
        ViewBounds::default(),
        flatbed_store::view_bounds::bytes_by_default(),
        &manual.clock(),
    );
    let state = views.group((0, 0));
    for failure in [None, None, Some(ViewFailure::Changed)] {
        state.record_retried_failure("db", ViewFailure::Changed);
        assert_eq!(state.failure(), failure);
        manual.advance(STUCK_MAX / 2);
    }
}

#[tokio::test]
async fn a_renewal_takes_the_versions_of_before_with_it() {
    let (db, _storage) = crate::tests::fenced::database().await;
    let state = views(&db.inner).group((1, 1));
    // A version from before the renewal: the state was restored into another cluster.
    state.moved_to(i64::MAX);
    let before = *state.moved.borrow();
    crate::renew::renew(&db.inner.db, &db.inner.options.root, &db.inner.clock).await.unwrap();
    db.exists().await.unwrap();
    // Waiting queries wake, and see the versions that follow.
    assert_eq!(*state.moved.borrow(), GroupMoves { drained: 0, ended: before.ended + 1 });
    state.moved_to(7);
    assert_eq!(state.moved.borrow().drained, 7);
}

#[test]
fn groups_that_nobody_uses_are_forgotten() {
    let views = ViewUpdates::new(
        [0; 16],
        ViewBounds::default(),
        flatbed_store::view_bounds::bytes_by_default(),
        &Clock::system(),
    );
    let used = views.group((0, 0));
    flatbed_databases::limits::lower();
    (1..10 * IDLE_MAX.get() as u64).for_each(|number| drop(views.group((0, number))));
    assert!(lock(&views.groups).len() <= 2 * IDLE_MAX.get());
    assert!(Arc::ptr_eq(&used, &views.group((0, 0))));
}
