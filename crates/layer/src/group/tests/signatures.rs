//! Groups whose design documents define others than the record says.
#![cfg(test)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::define;
use super::functions::Texts;
use crate::error::{Result, ViewFailure};
use crate::fenced::database;
use crate::group::updater::ensure;
use crate::handle::Database;
use crate::index::definitions::write_record;
use crate::index::groups::groups_of;
use crate::index::maintainers::Within;
use crate::store::transaction::{self, Attempt, Operation, Transaction};
use crate::view_updates::GroupId;

/// Gives the only group a signature that nothing has, and names.
struct Resign<'a> {
    db: &'a Database,
    named_by: &'a str,
}

impl Operation for Resign<'_> {
    type Output = GroupId;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<GroupId> {
        let inner = &self.db.inner;
        let instance = inner.resolve_for_write(trx, &self.db.name).await?;
        let mut record = instance.record.clone();
        (record.indexes[0].definition, record.indexes[0].named_by) = (vec![9; 16], vec![self.named_by.to_owned()]);
        let id = (record.namespace, record.indexes[0].number);
        write_record(&Within { inner, trx, instance: &instance }, record);
        Ok(id)
    }
}

/// Lets such a group be followed, to the end of that; by how many documents groups are named then, and what failed.
async fn followed(db: &Database, named_by: &str) -> (Vec<usize>, Option<ViewFailure>) {
    let id = transaction::write(&db.inner.db, &db.inner.metrics, &mut Resign { db, named_by }).await.unwrap();
    let state = db.inner.views.group(id);
    // Not while it is said to have failed for want of functions.
    let until = tokio::time::Instant::now() + Duration::from_secs(20);
    while state.failure().is_some() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ensure(db, id);
    while state.is_running.load(Ordering::Acquire) {
        assert!(tokio::time::Instant::now() < until, "its task does not end");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    db.exists().await.unwrap();
    let instance = db.inner.cached("db").unwrap();
    (groups_of(&instance.record).map(|group| group.named_by.len()).collect(), state.failure())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_nothing_defines_is_named_anew_or_left() {
    let (db, _directory) = database().await;
    // Nobody follows it before.
    define(&db, "_design/v", &[("n", "n")]).await;
    db.inner.views.run_by(Arc::new(Texts::default()));
    assert_eq!(followed(&db, "_design/v").await, (vec![0, 1], None));
    db.view_cleanup().await.unwrap();
    assert_eq!(followed(&db, "_design/none").await, (vec![1], Some(ViewFailure::Changed)));
}
