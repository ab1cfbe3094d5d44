//! Tests of `group::updater` with a whole layer.
#![cfg(test)]

use std::sync::atomic::Ordering;
use std::time::Duration;

use flatbed_clock::Clock;
use flatbed_store::error::{Error, ViewFailure};
use flatbed_store::view_bounds::bytes_by_default;
use flatbed_store::view_functions::FunctionFailure;
use flatbed_testkit::pass;
use flatbed_views::group::updater::*;
use flatbed_views::view_updates::{ViewUpdates, views};

use crate::ViewBounds;
use crate::tests::fenced::database;

#[tokio::test(flavor = "multi_thread")]
async fn what_is_never_written_is_not_tried_again() {
    let (db, _storage) = database().await;
    let (id, storage) = ((1, 1), |code| Error::Storage(foundationdb::FdbError::from_code(code)));
    let state = views(&db.inner).group(id);
    assert_eq!(handle_failure(&db, id, &state, storage(1007)), Some(PAUSE_MAX));
    assert_eq!(state.failure(), None);
    let busy = FunctionFailure::Busy("by others".to_owned());
    assert_eq!(handle_failure(&db, id, &state, Error::View(busy.into())), Some(PAUSE_BUSY_MAX));
    for code in NEVER_WRITTEN {
        let state = views(&db.inner).group((2, code as u64));
        assert_eq!(handle_failure(&db, id, &state, storage(code)), None);
        assert!(matches!(state.last_failure(), Some(ViewFailure::Stuck(_))));
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_sees_no_long_pause() {
    let clock = Clock::system();
    let state = ViewUpdates::new([0; 16], ViewBounds::default(), bytes_by_default(), &clock).group((1, 1));
    let began = clock.now();
    pause_after_failure(&clock, &state, PAUSE_MAX).await;
    assert!(clock.since(began) >= PAUSE_MAX, "no query waits");
    let (begins_after, tolerance) = (Duration::from_millis(200), Duration::from_millis(5));
    let begins = async {
        pass(begins_after).await;
        state.waiting.fetch_add(1, Ordering::AcqRel);
        state.waited_for.notify_one();
    };
    let began = clock.now();
    tokio::join!(pause_after_failure(&clock, &state, PAUSE_MAX), begins);
    let rested = clock.since(began);
    assert!((PAUSE_WAITED_FOR..PAUSE_WAITED_FOR + tolerance).contains(&rested), "{rested:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_fails_is_behind_until_it_follows_or_is_gone() {
    let (db, _storage) = database().await;
    let (views, id) = (views(&db.inner), (1, 1));
    let state = views.group(id);
    let is_behind = || (views.failing().len(), !views.lag().is_zero());
    handle_failure(&db, id, &state, Error::Storage(foundationdb::FdbError::from_code(1007)));
    assert_eq!(is_behind(), (1, true));
    state.is_through();
    assert_eq!(is_behind(), (0, false));
    handle_failure(&db, id, &state, Error::View(FunctionFailure::NotRun.into()));
    assert_eq!(is_behind(), (1, true));
    // The database has no such group.
    flatbed_views::group::attend::forget_gone(&db.inner).await.unwrap();
    assert_eq!(is_behind(), (0, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_long_ago_do_not_count() {
    let (db, _storage) = database().await;
    let state = views(&db.inner).group((1, 1));
    state.record_retried_failure("db", ViewFailure::Changed);
    assert!(state.is_retrying());
    state.is_through();
    assert!(!state.is_retrying());
}
