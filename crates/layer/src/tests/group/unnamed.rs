//! Groups that no design document names any more.
#![cfg(test)]

use std::time::Duration;

use flatbed_operations::index::groups::{UNNAMED_KEPT_FOR_MS, groups_of};
use flatbed_store::due::rounded_ms;
use flatbed_store::transaction::Transaction;
use flatbed_views::group::attend::{AttendOutcome, attend_at};

use super::{compare, define, mapped, put};

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_has_named_for_a_day_goes_by_itself() {
    let (db, _storage) = mapped().await;
    put(&db, "a", Some(r#"{"n":1}"#)).await;
    define(&db, "_design/goes", &[("n", "n|_count")]).await;
    define(&db, "_design/stays", &[("n", "_id")]).await;
    compare(&db, "_design/goes", "n", "n").await;
    compare(&db, "_design/stays", "n", "_id").await;
    let since = async || -> Vec<u64> {
        db.exists().await.unwrap();
        groups_of(&db.inner.cached("db").unwrap().record).map(|group| group.unnamed_since_ms).collect()
    };
    let attend = async |now_ms: u64| attend_at(db.reader(), Duration::from_secs(20), now_ms, || ()).await.unwrap();
    assert_eq!(since().await, [0, 0]);
    put(&db, "_design/goes", None).await;
    let unnamed_since = since().await[0];
    assert!(unnamed_since > 0);
    let goes_at = unnamed_since + UNNAMED_KEPT_FOR_MS;
    for now_ms in [unnamed_since, goes_at - 1] {
        assert_eq!(attend(now_ms).await, AttendOutcome::Until(rounded_ms(goes_at)));
        assert_eq!(since().await, [unnamed_since, 0]);
    }
    assert_eq!(attend(goes_at + 1).await, AttendOutcome::Through);
    assert_eq!(since().await, [0]);
    let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
    let all = db.inner.cached("db").unwrap().keys.index(1);
    assert!(!trx.range(&all, true).any().await.unwrap());
    compare(&db, "_design/stays", "n", "_id").await;
}
