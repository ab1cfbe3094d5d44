//! Long keys in the worst order, in a first build.
#![cfg(test)]

use std::sync::atomic::Ordering;

use flatbed_store::error::{Error, ViewFailure};
use flatbed_store::keys::RowKey;
use flatbed_store::transaction::Transaction;
use flatbed_testkit::{soon, until_some};
use flatbed_views::group::steps::GroupStanding;
use flatbed_views::view_updates::views;

use super::{compare, mapped, put, rows, standing, violations};
use crate::ViewUpdate;

/// In the order of ids each key sorts between the last two. Documents are entered in another order, so labels stay
/// short, however many there are.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_build_enters_long_keys_in_no_order() {
    let (db, _storage) = mapped().await;
    for n in 0..110 {
        let key = format!("{}{}{}", "x".repeat(4_200), "01".repeat(n / 2), "1".repeat(n % 2));
        put(&db, &format!("d{n:04}"), Some(&format!(r#"{{"k":"{key}","n":{n}}}"#))).await;
        if n % 10 == 0 {
            put(&db, &format!("d{n:04}-short"), Some(r#"{"k":"short"}"#)).await;
        }
    }
    put(&db, "_design/v", Some(r#"{"views":{"v":{"map":"k","reduce":"_count"}},"options":{"collation":"raw"}}"#)).await;
    assert_eq!(soon(rows(&db, "_design/v", "v", ViewUpdate::True)).await.unwrap().len(), 121);
    compare(&db, "_design/v", "v", "k").await;
    assert_eq!(violations(&db).await, Vec::<String>::new());
    let standing = standing(&db).await;
    let keys = standing.instance.keys.view(standing.group.number);
    let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
    let mut longest = 0;
    for row in trx.range(&keys.rows(0, &[], None), true).all(10_000).await.unwrap().iter() {
        let element = RowKey::element_of(&row.key()[keys.row_prefix(0)..]).unwrap();
        longest = longest.max(flatbed_collate::split(&element).1.len());
    }
    assert!((8..=16).contains(&longest), "{longest} bytes");
    put(&db, "d0007", Some(r#"{"k":"short"}"#)).await;
    put(&db, "new", Some(&format!(r#"{{"k":"{}"}}"#, "x".repeat(4_300)))).await;
    compare(&db, "_design/v", "v", "k").await;
    assert_eq!(violations(&db).await, Vec::<String>::new());
}

/// After two consecutive builds without room the group fails, and it is built once it has room.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_without_room_fails_after_two_builds() {
    let (db, _storage) = mapped().await;
    let lacks_room = |lacks: bool| views(&db.inner).lacks_room.store(lacks, Ordering::Relaxed);
    lacks_room(true);
    for n in 0..3 {
        put(&db, &format!("d{n}"), Some(&format!(r#"{{"k":"{}{n}"}}"#, "x".repeat(4_200)))).await;
    }
    put(&db, "_design/v", Some(r#"{"views":{"v":{"map":"k"}},"options":{"collation":"raw"}}"#)).await;
    let asked = || soon(rows(&db, "_design/v", "v", ViewUpdate::True));
    match asked().await {
        Err(Error::View(ViewFailure::Stuck(reason))) => assert!(reason.contains("built anew"), "{reason}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(db.inner.metrics.view_groups_built.get(), 0);
    lacks_room(false);
    let built = async || match asked().await {
        Err(Error::View(ViewFailure::Stuck(_))) => None,
        rows => Some(rows.unwrap()),
    };
    assert_eq!(until_some("it finds room", built).await.len(), 3);
    compare(&db, "_design/v", "v", "k").await;
    assert_eq!(violations(&db).await, Vec::<String>::new());
}

/// The progress of a build advances while documents with long keys are entered, which were counted when they were
/// noted.
#[tokio::test(flavor = "multi_thread")]
async fn a_build_gets_on_with_long_keys() {
    let (db, _storage) = mapped().await;
    for n in 0..9 {
        put(&db, &format!("d{n}"), Some(&format!(r#"{{"k":"{}{n}"}}"#, "x".repeat(4_200)))).await;
    }
    put(&db, "_design/v", Some(r#"{"views":{"v":{"map":"k"}},"options":{"collation":"raw"}}"#)).await;
    assert_eq!(soon(rows(&db, "_design/v", "v", ViewUpdate::True)).await.unwrap().len(), 9);
    let GroupStanding { instance, group, .. } = standing(&db).await;
    let state = views(&db.inner).group((instance.record.namespace, group.number));
    let shown = state.most_shown.load(Ordering::Relaxed);
    assert!(shown > 10, "{shown}");
}
