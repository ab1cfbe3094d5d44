//! Tests of `channels::sweep` with a whole layer.
#![cfg(test)]

use flatbed_databases::channels::sweep::*;
use flatbed_operations::write::batch::instance_of;
use flatbed_store::transaction::Transaction;
use flatbed_store::{proto, transaction};
use prost::Message;

use crate::CreateOptions;
use crate::tests::fenced::layer;

/// The namespaces of other databases lie between those of a deleted database and of its successor.
#[tokio::test]
async fn a_page_of_another_instance_takes_nothing_from_databases_between() {
    let (layer, authority, _storage) = layer().await;
    let [db, between] = ["db", "between"].map(|name| layer.database(name, authority.for_job("test")));
    let inner = &*layer.inner;
    db.exists().await.unwrap();
    let before = instance_of(inner, "db").await.unwrap();
    between.create(&CreateOptions::default()).await.unwrap();
    db.delete().await.unwrap();
    db.create(&CreateOptions::default()).await.unwrap();
    between.exists().await.unwrap();
    let session = instance_of(inner, "between").await.unwrap().keys.gateway_sessions().begin;
    let put = Transaction::begin(&inner.db, &inner.metrics).unwrap();
    put.set(&session, &proto::GatewaySession { ends_at_ms: 1, ..Default::default() }.encode_to_vec());
    put.commit().await.unwrap();
    let behind = Some((before.id(), before.keys.gateway_sessions().begin));
    let mut page = ReadSweptRows { inner, name: "db", of: SweptRows::Sessions, now_ms: 2, behind };
    let found = transaction::write(&inner.db, &inner.metrics, &mut page).await.unwrap();
    assert!(!found.is_left && found.behind.is_none());
    let look = Transaction::begin(&inner.db, &inner.metrics).unwrap();
    assert!(look.get(&session, true).await.unwrap().is_some());
}
