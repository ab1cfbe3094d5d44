//! Tests of `write::purge` with a whole layer.
#![cfg(test)]

use flatbed_flatten::json::{Limits, parse};
use flatbed_revtree::RevId;
use flatbed_store::transaction::Transaction;

use crate::Edit;
use crate::handle::Database;
use crate::tests::fenced::database;

async fn replicate(db: &Database, id: &str, path: Vec<RevId>) {
    let body = parse(br#"{"a":1}"#, &Limits::default()).unwrap();
    let (history, attachments) = (Some(path), Vec::new());
    db.update(&Edit { expiry: None, id: id.into(), parent: None, history, deleted: false, attachments, body })
        .await
        .unwrap();
}

fn line(generations: u64, hash: &str) -> Vec<RevId> {
    (1..=generations).rev().map(|at| format!("{at}-{hash}").parse().unwrap()).collect()
}

/// Its sealed ancestors take 70 MB; their content does not matter, because no reader reads so much.
#[tokio::test]
async fn a_document_whose_tree_is_too_large_to_be_read_is_purged() {
    let (db, _storage) = database().await;
    for hash in ["a", "b"] {
        replicate(&db, "d", line(100, hash)).await;
    }
    let keys = flatbed_operations::write::batch::instance_of(&db.inner, "db").await.unwrap().keys.document("d");
    for part in 0..70 {
        let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
        for at in 0..11 {
            let rev: RevId = format!("{}-x{at}", part + 1).parse().unwrap();
            trx.set(&keys.ancestors(&rev), &[7; 95_000]);
        }
        trx.commit().await.unwrap();
    }
    let all = [line(100, "a").swap_remove(0), line(100, "b").swap_remove(0)];
    assert_eq!(db.purge("d", &all).await.unwrap(), all);
    let report = crate::check::check_database(&db, |_| {}).await.unwrap();
    assert!(report.is_clean() && report.documents == 0, "{report:#?}");
}
