//! A full database gets no further rows.
#![cfg(test)]

use std::sync::Arc;

use flatbed_store::error::{Error, ViewFailure};

use crate::tests::fenced::layer_with;
use crate::tests::group::functions::Texts;
use crate::tests::group::{define, put, rows};
use crate::{LayerOptions, ViewUpdate};

#[tokio::test(flavor = "multi_thread")]
async fn a_view_of_a_full_database_is_not_built() {
    let options = LayerOptions { database_bytes_max: 1, ..LayerOptions::default() };
    let (layer, authority, _storage) = layer_with(options, None).await;
    flatbed_operations::view_runtime::run_views_by(&layer.inner, Arc::new(Texts::default()));
    let db = layer.database("db", authority.for_job("test"));
    put(&db, "d", Some(r#"{"n":1}"#)).await;
    define(&db, "_design/v", &[("n", "n")]).await;
    let built = rows(&db, "_design/v", "n", ViewUpdate::True).await;
    assert!(matches!(built, Err(Error::View(ViewFailure::DatabaseFull { bytes_max: 1 }))), "{built:?}");
    assert_eq!(layer.inner.metrics.view_documents_mapped.get(), 0);
}
