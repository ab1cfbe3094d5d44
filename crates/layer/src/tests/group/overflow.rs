//! Reductions that do not fit into a value of the storage.
#![cfg(test)]

use super::{define, mapped, put, rows, violations};
use crate::handle::Reader;
use crate::{ReduceQuery, ViewUpdate};

/// Runs a query over all rows: returns the bytes of the result, or CouchDB's name of the error.
async fn reduced(reader: &Reader, view: &str) -> Result<usize, String> {
    let view = reader.view("_design/v", view, ViewUpdate::True).await.unwrap();
    let query = ReduceQuery { reduce: view.reduce_at().unwrap(), ..ReduceQuery::default() };
    let page = view.reduce(query).next_page().await.unwrap().unwrap();
    page.rows[0].value.clone().map(|value| value.len()).map_err(|failure| failure.error)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reduction_that_no_value_takes_fails_alone() {
    let (db, _storage) = mapped().await;
    let long = |n: usize| format!(r#"{{"k":1,"n":"{}"}}"#, "x".repeat(n));
    for n in 0..30 {
        put(&db, &format!("d{n:02}"), Some(&long(700 + n))).await;
    }
    let ranks: Vec<(String, String)> =
        (5..=16).flat_map(|n| ["top", "bottom"].map(|name| (format!("{name}{n}"), format!("k|_{name}_{n}")))).collect();
    let mut views = vec![("longest", "k|longest"), ("rows", "k|rows"), ("count", "k|_count"), ("none", "k")];
    views.extend(ranks.iter().map(|(name, map)| (&**name, &**map)));
    define(&db, "_design/v", &views).await;
    let overflow = Err("reduce_overflow_error".to_owned());
    for _ in 0..2 {
        // The cut of a node's rows decides which of the two are the largest in it: one fits where many others did
        // not.
        let largest = [reduced(&db, "top16").await, reduced(&db, "bottom16").await];
        assert!(largest.contains(&overflow), "{largest:?}");
        assert!(reduced(&db, "top5").await.is_ok_and(|bytes| bytes > 3_500));
        assert_eq!(reduced(&db, "longest").await, Ok(731));
        assert_eq!(reduced(&db, "count").await, Ok(2));
        put(&db, "d00", Some(&long(701))).await;
    }
    put(&db, "large", Some(&long(400_000))).await;
    for _ in 0..2 {
        assert_eq!(rows(&db, "_design/v", "none", ViewUpdate::True).await.unwrap().len(), 31);
        assert_eq!(reduced(&db, "longest").await, overflow);
        assert_eq!(reduced(&db, "rows").await, Ok(2));
        assert_eq!(reduced(&db, "count").await, Ok(2));
        assert_eq!(violations(&db).await, Vec::<String>::new());
        put(&db, "_design/v", None).await;
        db.view_cleanup().await.unwrap();
        define(&db, "_design/v", &views).await;
    }
    put(&db, "large", None).await;
    assert_eq!(reduced(&db, "longest").await, Ok(731));
    assert_eq!(violations(&db).await, Vec::<String>::new());
}
