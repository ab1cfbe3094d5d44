//! Groups that no design document names any more.
#![cfg(test)]

use std::sync::Arc;
use std::time::Duration;

use super::functions::Texts;
use super::{compare, define, put};
use crate::index::groups::{UNNAMED_KEPT_FOR_MS, groups_of};
use crate::store::transaction::{Transaction, page_of};
use crate::{Background, BackgroundOptions};

/// Nobody asks for that: a process sees to it once the time has come, and not before.
#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_has_named_for_long_goes_by_itself() {
    let (layer, authority, _directory) = crate::fenced::layer().await;
    layer.run_views_by(Arc::new(Texts::default()));
    let db = layer.database("db", authority.for_job("test"));
    put(&db, "a", Some(r#"{"n":1}"#)).await;
    define(&db, "_design/goes", &[("n", "n|_count")]).await;
    define(&db, "_design/stays", &[("n", "_id")]).await;
    compare(&db, "_design/goes", "n", "n").await;
    compare(&db, "_design/stays", "n", "_id").await;
    let since = async || -> Vec<u64> {
        db.exists().await.unwrap();
        groups_of(&db.inner.cached("db").unwrap().record).map(|group| group.unnamed_since_ms).collect()
    };
    assert_eq!(since().await, [0, 0]);
    put(&db, "_design/goes", None).await;
    let named_until = since().await[0];
    assert!(named_until > 0);
    // What is due is looked at long before, too.
    let options = BackgroundOptions { ahead: Duration::from_secs(48 * 60 * 60), ..BackgroundOptions::default() };
    let background = Background::new(&layer, authority.for_job("test"), options).unwrap();
    let now_ms = || std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
    while since().await.len() == 2 {
        assert!(now_ms() < named_until + UNNAMED_KEPT_FOR_MS + 20_000, "it stays");
        background.round().await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(now_ms() >= named_until + UNNAMED_KEPT_FOR_MS, "it goes too soon");
    assert_eq!(since().await, [0]);
    // Its rows too.
    let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
    let all = db.inner.cached("db").unwrap().keys.index(1);
    assert!(trx.get_range(&page_of(&all, 1, false), 1, true).await.unwrap().is_empty());
    compare(&db, "_design/stays", "n", "_id").await;
}
