//! Groups whose design documents define other groups than the record says.
#![cfg(test)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use flatbed_flatten::json::{Limits, parse};
use flatbed_operations::index::definitions::write_record;
use flatbed_operations::index::groups::{GROUPS_MAX, UNNAMED_KEPT_FOR_MS, groups_of, name_group};
use flatbed_operations::index::maintainers::IndexContext;
use flatbed_store::error::{Result, ViewFailure};
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use flatbed_store::view_definition::{GroupDefinition, Signature};
use flatbed_testkit::until;
use flatbed_views::group::attend::{AttendOutcome, attend_at};
use flatbed_views::group::updater::ensure;
use flatbed_views::view_updates::{GroupId, views};

use super::functions::Texts;
use super::{compare, define, mapped, put, violations};
use crate::handle::Database;
use crate::tests::fenced::database;

/// Gives the first group another signature, and a name.
struct Resign<'a> {
    db: &'a Database,
    signature: Signature,
    named_by: &'a str,
}

impl Operation for Resign<'_> {
    type Output = GroupId;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<GroupId> {
        let inner = &self.db.inner;
        let instance = inner.resolve_for_write(trx, &self.db.name).await?;
        let mut record = instance.record.clone();
        (record.indexes[0].definition, record.indexes[0].named_by) =
            (self.signature.to_vec(), vec![self.named_by.to_owned()]);
        let id = (record.namespace, record.indexes[0].number);
        write_record(&IndexContext { inner, trx, instance: &instance }, record)?;
        Ok(id)
    }
}

/// Follows such a group to the end. Returns the number of documents that name each group, and the failure.
async fn followed(db: &Database, named_by: &str) -> (Vec<usize>, Option<ViewFailure>) {
    // A signature that no definition has.
    let mut resign = Resign { db, signature: [9; 16], named_by };
    let id = transaction::write(&db.inner.db, &db.inner.metrics, &mut resign).await.unwrap();
    let state = views(&db.inner).group(id);
    // Not while the failure for lack of functions is recent.
    until("it may be retried", async || state.failure().is_none()).await;
    ensure(db, id);
    until("its task has ended", async || !state.is_running.load(Ordering::Acquire)).await;
    db.exists().await.unwrap();
    let instance = db.inner.cached("db").unwrap();
    (groups_of(&instance.record).map(|group| group.named_by.len()).collect(), state.last_failure())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_nothing_defines_is_named_anew_or_left() {
    let (db, _storage) = database().await;
    // No process follows it before.
    define(&db, "_design/v", &[("n", "n")]).await;
    flatbed_operations::view_runtime::run_views_by(&db.inner, Arc::new(Texts::default()));
    assert_eq!(followed(&db, "_design/v").await, (vec![0, 1], None));
    db.view_cleanup().await.unwrap();
    assert_eq!(followed(&db, "_design/none").await, (vec![1], Some(ViewFailure::Changed)));
}

struct LoseRows<'a> {
    db: &'a Database,
}

impl Operation for LoseRows<'_> {
    type Output = usize;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<usize> {
        let instance = self.db.inner.resolve_for_write(trx, &self.db.name).await?;
        let rows = instance.keys.view(instance.record.indexes[0].number).rows(0, &[], None);
        let page = trx.range(&rows, true).reverse(true).first(20).await?;
        page.iter().for_each(|row| trx.clear(row.key()));
        Ok(page.len())
    }
}

async fn are_named(db: &Database) -> Vec<(u64, bool)> {
    db.exists().await.unwrap();
    let instance = db.inner.cached("db").unwrap();
    groups_of(&instance.record).map(|group| (group.number, !group.named_by.is_empty())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_of_a_program_from_before_is_built_anew_and_goes() {
    let (db, _storage) = mapped().await;
    for n in 0..40 {
        put(&db, &format!("d{n:02}"), Some(&format!(r#"{{"n":{n}}}"#))).await;
    }
    define(&db, "_design/v", &[("n", "n|_sum")]).await;
    compare(&db, "_design/v", "n", "n").await;
    let body = parse(br#"{"views":{"n":{"map":"n","reduce":"_sum"}}}"#, &Limits::default()).unwrap();
    let definition = GroupDefinition::of_design(&body, false).unwrap().expect("a group");
    let signature = definition.signature_before();
    assert_ne!(signature, definition.signature);
    let (fdb, metrics) = (&db.inner.db, &db.inner.metrics);
    assert_eq!(transaction::write(fdb, metrics, &mut LoseRows { db: &db }).await.unwrap(), 20);
    let found = violations(&db).await;
    assert!(found.len() >= 20, "the checker finds lost rows: {found:?}");
    transaction::write(fdb, metrics, &mut Resign { db: &db, signature, named_by: "_design/v" }).await.unwrap();
    assert_eq!(are_named(&db).await, [(1, true)]);

    // A query finds the new group, and waits until it is built. Further ones find it at once.
    compare(&db, "_design/v", "n", "n").await;
    assert_eq!(are_named(&db).await, [(1, false), (2, true)]);
    assert_eq!(violations(&db).await, Vec::<String>::new());
    let built = metrics.view_groups_built.get();
    put(&db, "new", Some(r#"{"n":7}"#)).await;
    compare(&db, "_design/v", "n", "n").await;
    assert_eq!(metrics.view_groups_built.get(), built);

    // The older program names its own group again, and this one reverts that.
    transaction::write(fdb, metrics, &mut NameFirst { db: &db }).await.unwrap();
    assert_eq!(are_named(&db).await, [(1, true), (2, false)]);
    compare(&db, "_design/v", "n", "n").await;
    assert_eq!((are_named(&db).await, metrics.view_groups_built.get()), (vec![(1, false), (2, true)], built));

    let later = db.inner.clock.unix_ms() + UNNAMED_KEPT_FOR_MS + 1;
    assert_eq!(attend_at(db.reader(), Duration::from_secs(20), later, || ()).await.unwrap(), AttendOutcome::Through);
    assert_eq!(are_named(&db).await, [(2, true)]);
    let trx = Transaction::begin(fdb, metrics).unwrap();
    let all = db.inner.cached("db").unwrap().keys.index(1);
    assert!(!trx.range(&all, true).any().await.unwrap());
    compare(&db, "_design/v", "n", "n").await;
    assert_eq!(violations(&db).await, Vec::<String>::new());
}

/// Makes the design document name the first group, as a program with its signature does.
struct NameFirst<'a> {
    db: &'a Database,
}

impl Operation for NameFirst<'_> {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<()> {
        let inner = &self.db.inner;
        let instance = inner.resolve_for_write(trx, &self.db.name).await?;
        let mut record = instance.record.clone();
        let signature = Signature::try_from(record.indexes[0].definition.as_slice()).unwrap();
        name_group(&mut record, "_design/v", Some(&signature), 1);
        write_record(&IndexContext { inner, trx, instance: &instance }, record)?;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_that_are_left_make_room() {
    let (db, _storage) = mapped().await;
    put(&db, "d", Some(r#"{"n":1}"#)).await;
    define(&db, "_design/v", &[("n", "n")]).await;
    compare(&db, "_design/v", "n", "n").await;
    transaction::write(&db.inner.db, &db.inner.metrics, &mut Fill { db: &db }).await.unwrap();
    let named = are_named(&db).await;
    assert!(named.len() == GROUPS_MAX && named.iter().all(|(_, is_named)| *is_named));
    compare(&db, "_design/v", "n", "n").await;
    let named = are_named(&db).await;
    assert_eq!((named.len(), named[0], named[GROUPS_MAX - 1]), (GROUPS_MAX, (2, true), (GROUPS_MAX as u64 + 1, true)));
}

/// Makes the most groups possible, all of them named; the first one's signature is not that of its design document.
struct Fill<'a> {
    db: &'a Database,
}

impl Operation for Fill<'_> {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<()> {
        let inner = &self.db.inner;
        let instance = inner.resolve_for_write(trx, &self.db.name).await?;
        let mut record = instance.record.clone();
        for number in 0..GROUPS_MAX as u16 - 1 {
            let mut signature = [7; 16];
            signature[..2].copy_from_slice(&number.to_be_bytes());
            name_group(&mut record, &format!("_design/{number}"), Some(&signature), 1);
        }
        record.indexes[0].definition = vec![9; 16];
        write_record(&IndexContext { inner, trx, instance: &instance }, record)?;
        Ok(())
    }
}
