//! Tests of `document::release` with a whole layer.
#![cfg(test)]

use flatbed_databases::document::release::*;
use flatbed_flatten::json::{Limits, parse};
use flatbed_store::transaction;
use tokio::time::Instant;

use crate::tests::fenced::database;
use crate::{AttachmentEdit, Database, Edit};

async fn data(db: &Database, text: String) -> AttachmentEdit {
    let mut upload = db.upload("x/y", false).await.unwrap();
    upload.write(text.as_bytes()).await.unwrap();
    AttachmentEdit::Data { content_type: "x/y".into(), revpos: None, data: upload.finish().await.unwrap() }
}

/// The document's lists exceed what an edit reads, so each trimmed list is queued.
#[tokio::test]
async fn one_walk_through_a_documents_lists_is_for_all_that_left_it() {
    let (db, _storage) = database().await;
    db.set_revs_limit(100).await.unwrap();
    let mut parent = None;
    for number in 0..130_u64 {
        let mut attachments = Vec::new();
        for at in 0..20 {
            let one = match number == 0 || at == number % 20 {
                true => data(&db, format!("{number} {at}")).await,
                false => AttachmentEdit::Stub { revpos: None },
            };
            attachments.push((format!("{}{at:02}", "a".repeat(100)), one));
        }
        let body = parse(b"{}", &Limits::default()).unwrap();
        let edit = Edit { expiry: None, id: "d".into(), parent, history: None, deleted: false, attachments, body };
        parent = Some(db.update(&edit).await.unwrap().rev);
    }
    let inner = &db.inner;
    let instance = flatbed_operations::write::batch::instance_of(inner, "db").await.unwrap();
    let left = async || {
        let mut next = NextEntries { inner, instance: &instance, range: &instance.keys.released_all() };
        transaction::read(&inner.db, &inner.metrics, &mut next).await.unwrap().map(|entries| entries.keys.len())
    };
    assert!(left().await >= Some(25), "{:?}", left().await);
    let before = inner.metrics.storage().transactions.get();
    // The time limit has passed, which is checked after some work.
    let (freed, is_through) = drain_until(inner, &instance, None, Some(Instant::now())).await.unwrap();
    assert!(freed > 0 && !is_through);
    let transactions = inner.metrics.storage().transactions.get() - before;
    assert!(transactions <= 6, "{transactions} transactions");
    assert_eq!(left().await, None);
    let report = crate::check::check_database(&db, |_| {}).await.unwrap();
    assert!(report.is_clean(), "{report:#?}");
}
