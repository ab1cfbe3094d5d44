//! Tests of `read::purged_infos` with a whole layer.
#![cfg(test)]

use flatbed_flatten::json::{Limits, parse};
use flatbed_operations::read::purged_infos::*;
use flatbed_revtree::RevId;

use crate::tests::fenced::database;
use crate::{Database, Edit};

/// Writes a new document.
async fn put(db: &Database, id: &str) -> RevId {
    let body = parse(br#"{"a":1}"#, &Limits::default()).unwrap();
    let (parent, history, attachments) = (None, None, Vec::new());
    let edit = Edit { expiry: None, id: id.into(), parent, history, deleted: false, attachments, body };
    db.update(&edit).await.unwrap();
    db.get(id, &Default::default()).await.unwrap().rev
}

#[tokio::test]
async fn purges_are_shown_in_pages_oldest_first() {
    let (db, _storage) = database().await;
    assert_eq!(db.purged_infos(None).await.unwrap(), PurgedInfos::default());
    let mut purged = Vec::new();
    for n in 0..8 {
        let id = format!("d{}", n % 5);
        let revs = vec![put(&db, &id).await];
        assert_eq!(db.purge(&id, &revs).await.unwrap(), revs);
        purged.push(PurgedInfo { id, revs });
    }
    let (mut shown, mut from) = (Vec::new(), None);
    loop {
        let page = db.purged_infos(from.as_ref()).await.unwrap();
        assert!(page.infos.len() <= RECORDS_MAX.get());
        shown.extend(page.infos);
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    assert_eq!(shown, purged);
    // A position of another instance is ignored.
    let elsewhere = PurgeLogPosition(b"elsewhere".to_vec());
    assert_eq!(db.purged_infos(Some(&elsewhere)).await.unwrap(), db.purged_infos(None).await.unwrap());
    db.delete().await.unwrap();
    assert!(matches!(db.purged_infos(None).await, Err(crate::Error::DatabaseNotFound)));
}
