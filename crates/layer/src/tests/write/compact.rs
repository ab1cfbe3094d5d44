//! Tests of `write::compact::transaction` with a whole layer.
#![cfg(test)]

use flatbed_databases::document::tree::info;
use flatbed_flatten::json::{Limits, parse};
use flatbed_operations::write::compact::transaction::*;
use flatbed_store::transaction;
use flatbed_store::transaction::Transaction;

use crate::tests::fenced::database;
use crate::{Database, Edit};

async fn write_line(db: &Database, id: &str, generations: std::ops::RangeInclusive<u64>) {
    for generation in generations {
        let history = (1..=generation).rev().map(|at| format!("{at}-a").parse().unwrap()).collect();
        let body = parse(br#"{"a":1}"#, &Limits::default()).unwrap();
        let (history, attachments) = (Some(history), Vec::new());
        let edit = Edit { expiry: None, id: id.into(), parent: None, history, deleted: false, attachments, body };
        db.update(&edit).await.unwrap();
    }
}

async fn compact_from(db: &Database, ids: &[String], mut from: Option<CompactPosition>) {
    loop {
        let instance = flatbed_operations::write::batch::instance_of(&db.inner, &db.name).await.unwrap();
        let mut compact = Compact::new(&db.inner, &instance, ids, from);
        let done = transaction::write(&db.inner.db, &db.inner.metrics, &mut compact).await.unwrap();
        from = done.from;
        if from.is_none() {
            return;
        }
    }
}

#[tokio::test]
async fn a_limit_that_is_lowered_in_the_middle_of_a_document_leaves_no_record_without_its_place() {
    let (db, _storage) = database().await;
    let ids = ["d".to_owned()];
    write_line(&db, "d", 1..=150).await;
    compact_from(&db, &ids, None).await;
    // The state that an interrupted compaction leaves, with the limit of that time.
    let keys = flatbed_operations::write::batch::instance_of(&db.inner, "db").await.unwrap().keys.document("d");
    let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
    let stamp = info(&trx, &keys, true).await.unwrap().expect("a document").stamp;
    let key = keys.revision(&"120-a".parse().unwrap());
    db.set_revs_limit(3).await.unwrap();
    compact_from(&db, &ids, Some(CompactPosition { stamp, revs_limit: crate::REVS_LIMIT, key })).await;
    let report = crate::check::check_database(&db, |_| {}).await.unwrap();
    assert!(report.is_clean(), "{report:#?}");
}
