//! Tests of `record_change` with a whole layer.
#![cfg(test)]

use flatbed_databases::record_change::*;
use flatbed_store::error::{Error, Refusal};
use flatbed_store::proto;

use crate::tests::fenced::database;

#[tokio::test]
async fn a_setting_for_which_the_record_has_no_room() {
    let (db, _storage) = database().await;
    let fill = |bytes: usize| ChangeRecord {
        inner: &db.inner,
        name: "db",
        actor: db.actor(),
        change: move |record: &mut proto::DatabaseRecord| {
            let named_by = (0..bytes / 1_000).map(|name| format!("{name:01000}")).collect();
            let kind = flatbed_operations::index::groups::VIEW.to_owned();
            record.indexes = vec![proto::Index { kind, number: 1, named_by, ..proto::Index::default() }];
        },
        once: db.inner.once().unwrap(),
    };
    let write = async |mut change: ChangeRecord<'_, _>| {
        flatbed_store::transaction::write(&db.inner.db, &db.inner.metrics, &mut change).await
    };
    let (half, small) = (vec![b' '; 50_000], b"{}".as_slice());
    write(fill(40_000)).await.unwrap();
    db.set_security(&half).await.unwrap();
    db.set_security(small).await.unwrap();
    write(fill(48_000)).await.unwrap();
    let refused = db.set_security(&half).await;
    assert!(matches!(refused, Err(Error::Refused(Refusal::InvalidSetting(_)))), "{refused:?}");
    assert_eq!(db.security().await.unwrap().as_deref(), Some(small));
    // A change that makes it smaller is always accepted.
    write(fill(94_000)).await.unwrap();
    db.set_revs_limit(7).await.unwrap();
    db.set_security(b"").await.unwrap();
}
