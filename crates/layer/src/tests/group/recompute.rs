//! The checker maps documents again: its violations, and the documents that it skips.
#![cfg(test)]

use std::sync::Arc;

use flatbed_store::transaction::Transaction;

use super::functions::Texts;
use super::{compare, define, mapped, put, standing};
use crate::check::check_database;
use crate::{Layer, ViewUpdate};

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_compared_with_what_maps_emit_now() {
    let (db, _storage) = mapped().await;
    for n in 0..250 {
        let hidden = if n == 123 { r#","hidden":true"# } else { "" };
        put(&db, &format!("d{n:03}"), Some(&format!(r#"{{"n":{}{hidden}}}"#, n % 7))).await;
    }
    put(&db, "gone", Some(r#"{"n":1}"#)).await;
    put(&db, "throws", Some(r#"{"n":1,"throws":1}"#)).await;
    define(&db, "_design/v", &[("n", "n|_sum"), ("t", "throws:n")]).await;
    compare(&db, "_design/v", "n", "n").await;
    put(&db, "gone", None).await;
    compare(&db, "_design/v", "n", "n").await;
    let report = check_database(&db, |_| {}).await.unwrap();
    assert_eq!(
        (report.violations, report.mapped),
        (Vec::new(), 252),
        "251 and the design document, that is not mapped"
    );
    // Maps that emit less make rows appear superfluous.
    let (other, others) = Layer::open(db.inner.db.clone(), db.inner.options.clone(), None).await.unwrap();
    other.run_views_by(Arc::new(Texts::passing_over("hidden")));
    let theirs = other.database("db", others.for_job("test"));
    let report = check_database(&theirs, |_| {}).await.unwrap();
    let number = standing(&db).await.group.number;
    let other_rows = format!("group {number} has other rows of \"d123\" than its maps emit");
    assert_eq!(report.violations, [other_rows]);
    // No process is notified of this.
    let instance = db.inner.cached("db").unwrap();
    let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
    trx.clear(&instance.keys.document("d007").info());
    assert!(trx.commit().await.is_ok());
    let report = check_database(&db, |_| {}).await.unwrap();
    let orphans = format!("group {number} has rows of \"d007\", which does not exist");
    assert!(report.violations.contains(&orphans), "{:?}", report.violations);
}

#[tokio::test(flavor = "multi_thread")]
async fn written_reduces_are_compared_with_what_they_say_now() {
    let (db, _storage) = mapped().await;
    for n in 0..250 {
        put(&db, &format!("d{n:03}"), Some(&format!(r#"{{"n":{n}}}"#))).await;
    }
    define(&db, "_design/v", &[("n", "n|written")]).await;
    compare(&db, "_design/v", "n", "n").await;
    assert_eq!(check_database(&db, |_| {}).await.unwrap().violations, [""; 0]);
    let (other, others) = Layer::open(db.inner.db.clone(), db.inner.options.clone(), None).await.unwrap();
    other.run_views_by(Arc::new(Texts::miscounting()));
    let theirs = other.database("db", others.for_job("test"));
    let violations = check_database(&theirs, |_| {}).await.unwrap().violations;
    assert!(!violations.is_empty() && violations.iter().all(|it| it.contains("made anew it is")), "{violations:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_group_does_not_have_yet_is_passed_over() {
    let (db, _storage) = mapped().await;
    for n in 0..20 {
        put(&db, &format!("d{n:03}"), Some(r#"{"n":1}"#)).await;
    }
    define(&db, "_design/v", &[("n", "n")]).await;
    compare(&db, "_design/v", "n", "n").await;
    // No process follows these.
    db.inner.closing.send_replace(true);
    let (other, others) = Layer::open(db.inner.db.clone(), db.inner.options.clone(), None).await.unwrap();
    let theirs = other.database("db", others.for_job("test"));
    for n in 15..30 {
        put(&theirs, &format!("d{n:03}"), Some(r#"{"n":2}"#)).await;
    }
    put(&theirs, "d000", None).await;
    let (checking, jobs) = Layer::open(db.inner.db.clone(), db.inner.options.clone(), None).await.unwrap();
    checking.run_views_by(Arc::new(Texts::default()));
    let checked = checking.database("db", jobs.for_job("test"));
    let report = check_database(&checked, |_| {}).await.unwrap();
    assert_eq!((report.violations, report.mapped), (Vec::new(), 15), "14 documents and the design document");
    let rows = super::rows(&checked, "_design/v", "n", ViewUpdate::False).await.unwrap();
    assert_eq!(rows.len(), 20, "it has not been followed");
}
