//! Reads `_security` of a database, less than a second old and mostly without a transaction.

use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_databases::confirmed::{DatabaseSecurity, RecordState};
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::METADATA_VERSION;
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};

use crate::handle::Layer;

/// Age limit of an answer without a read.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(1);

impl Layer {
    /// Returns a database's `_security` as of less than a second ago: from the cache if a transaction of this process
    /// has since found that no record has changed, else after a read, which concurrent callers share. Equal values are
    /// shared while it does not change.
    ///
    /// # Errors
    /// [`DatabaseNotFound`](crate::Error::DatabaseNotFound), [`Storage`](crate::Error::Storage).
    #[boxed]
    pub async fn security(&self, name: &str) -> Result<Arc<DatabaseSecurity>> {
        let inner = &*self.inner;
        if let Some(security) = known(inner, name) {
            return Ok(security);
        }
        inner.metrics.security_reads.add(1);
        let came_us = inner.confirmed.us(inner.clock.now());
        if inner.confirmed.newest().is_confirmed(came_us, CONFIRMED_WITHIN) {
            // Only this database is unknown, or was cached before some record changed.
            return read(inner, name).await;
        }
        let mut failed = inner.confirmed.in_line.lock().await;
        if let Some(security) = known(inner, name) {
            return Ok(security);
        }
        let now_us = inner.confirmed.us(inner.clock.now());
        if inner.confirmed.newest().is_confirmed(now_us, CONFIRMED_WITHIN) {
            drop(failed);
            return read(inner, name).await;
        }
        // Waiting callers of a failed read return its error, and do not retry one after another.
        if let Some((began_us, error)) = &*failed
            && came_us <= *began_us
        {
            return Err(error.clone());
        }
        let found = read(inner, name).await;
        *failed = match &found {
            Err(error @ Error::Storage(_)) => Some((now_us, error.clone())),
            _ => None,
        };
        found
    }
}

impl Layer {
    /// Reads `_security` of each of these databases in one transaction, with the state of all records at its read
    /// version. `None` for a database that does not exist or that this program cannot open.
    ///
    /// # Errors
    /// [`Storage`](crate::Error::Storage).
    #[boxed]
    pub async fn securities(&self, names: &[Arc<str>]) -> Result<(RecordState, Vec<Option<Arc<DatabaseSecurity>>>)> {
        struct Securities<'a>(&'a Inner, &'a [Arc<str>]);
        impl Operation for Securities<'_> {
            type Output = (RecordState, Vec<Option<Arc<DatabaseSecurity>>>);
            async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
                let Securities(inner, names) = *self;
                let version = trx.get(METADATA_VERSION, true).await?;
                let state = RecordState::of(version.as_deref());
                let found = futures_util::future::join_all(names.iter().map(|name| inner.resolve(trx, name))).await;
                let of = |found: Result<Arc<Instance>>| match found {
                    Ok(instance) => Ok(Some(Arc::clone(&instance.security))),
                    Err(error @ Error::Storage(_)) => Err(error),
                    Err(_) => Ok(None),
                };
                Ok((state, found.into_iter().map(of).collect::<Result<_>>()?))
            }
        }
        let mut asked = Securities(&self.inner, names);
        transaction::read(&self.inner.db, &self.inner.metrics, &mut asked).await
    }
}

fn known(inner: &Inner, name: &str) -> Option<Arc<DatabaseSecurity>> {
    Some(Arc::clone(&inner.current_within(name, CONFIRMED_WITHIN)?.security))
}

/// Reads it in a transaction, which confirms all entries that are cached under the same value.
async fn read(inner: &Inner, name: &str) -> Result<Arc<DatabaseSecurity>> {
    struct Security<'a>(&'a Inner, &'a str);
    impl Operation for Security<'_> {
        type Output = Arc<DatabaseSecurity>;
        async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Arc<DatabaseSecurity>> {
            Ok(Arc::clone(&self.0.resolve(trx, self.1).await?.security))
        }
    }
    transaction::read(&inner.db, &inner.metrics, &mut Security(inner, name)).await
}

#[cfg(test)]
mod tests {
    use flatbed_clock::ManualClock;
    use flatbed_testkit::{is_quiet, metadata_version, start_neighbour, until};

    use super::*;
    use crate::CreateOptions;
    use crate::tests::fenced::{layer_at, open_at};

    fn reads(layer: &Layer) -> u64 {
        layer.inner.metrics.security_reads.get()
    }

    #[tokio::test]
    async fn it_is_read_once_and_confirmed_by_whatever_else_is_done() {
        let manual = ManualClock::new();
        let (layer, authority, _storage) = layer_at(&manual).await;
        let db = layer.database("db", authority.for_job("test"));
        let other = layer.database("other", authority.for_job("test"));
        other.create(&CreateOptions::default()).await.unwrap();
        db.set_security(b"{\"a\":1}").await.unwrap();
        other.exists().await.unwrap();
        let first = layer.security("db").await.unwrap();
        assert_eq!(first.bytes(), Some(b"{\"a\":1}".as_slice()));
        let (before, quiet) = (reads(&layer), metadata_version(&layer.inner.db).await);
        // Operations on another database confirm this one as well.
        for _ in 0..26 {
            other.exists().await.unwrap();
            assert!(Arc::ptr_eq(&layer.security("db").await.unwrap(), &first));
            manual.advance(Duration::from_millis(50));
        }
        assert_eq!(reads(&layer), before);
        // After a second without operations the next caller reads, for all.
        manual.advance(CONFIRMED_WITHIN);
        let transactions = layer.inner.metrics.storage().transactions.get();
        let all = futures_util::future::join_all((0..100).map(|_| layer.security("db"))).await;
        assert!(all.into_iter().all(|security| Arc::ptr_eq(&security.unwrap(), &first)));
        assert_eq!(layer.inner.metrics.storage().transactions.get(), transactions + 1);
        // The read of a missing database confirms the others as well.
        manual.advance(CONFIRMED_WITHIN);
        assert!(known(&layer.inner, "db").is_none());
        assert!(matches!(layer.security("none").await, Err(Error::DatabaseNotFound)));
        assert!(known(&layer.inner, "db").is_some() || !is_quiet(&layer.inner.db, &quiet).await);
        // Another setting leaves it unchanged.
        db.set_revs_limit(9).await.unwrap();
        assert!(Arc::ptr_eq(&layer.security("db").await.unwrap(), &first));
    }

    #[tokio::test]
    async fn what_another_process_changes_is_seen_within_a_second() {
        let manual = ManualClock::new();
        let (layer, authority, storage) = layer_at(&manual).await;
        let (elsewhere, its) = open_at(&storage, &manual).await;
        let db = layer.database("db", authority.for_job("test"));
        let there = elsewhere.database("db", its.for_job("test"));
        assert_eq!(layer.security("db").await.unwrap().bytes(), None);
        there.set_security(b"{}").await.unwrap();
        // Another request may have read it earlier.
        manual.advance(CONFIRMED_WITHIN);
        let seen = layer.security("db").await.unwrap();
        assert_eq!(seen.bytes(), Some(b"{}".as_slice()));
        // A database that was deleted and created again has another `_security`, even if it is equal.
        there.delete().await.unwrap();
        there.create(&CreateOptions::default()).await.unwrap();
        there.set_security(b"{}").await.unwrap();
        db.exists().await.unwrap();
        let another = layer.security("db").await.unwrap();
        assert!(another.bytes() == seen.bytes() && another.incarnation() != seen.incarnation());
        there.delete().await.unwrap();
        manual.advance(CONFIRMED_WITHIN);
        assert!(matches!(layer.security("db").await, Err(Error::DatabaseNotFound)));
        assert!(matches!(layer.security("none").await, Err(Error::DatabaseNotFound)));
    }

    #[tokio::test]
    async fn many_are_looked_at_together() {
        let manual = ManualClock::new();
        let (layer, authority, _storage) = layer_at(&manual).await;
        let db = layer.database("db", authority.for_job("test"));
        let names: [Arc<str>; 2] = ["db".into(), "none".into()];
        let fdb = &layer.inner.db;
        let quiet = metadata_version(fdb).await;
        let (state, found) = layer.securities(&names).await.unwrap();
        assert!(found[0].as_ref().is_some_and(|security| security.bytes().is_none()) && found[1].is_none());
        assert!(layer.securities(&names).await.unwrap().0 == state || !is_quiet(fdb, &quiet).await);
        // The read of the sign-in state confirms it, too.
        manual.advance(CONFIRMED_WITHIN);
        assert!(known(&layer.inner, "db").is_none());
        assert!(layer.sign_in_state().await.unwrap().1 == state || !is_quiet(fdb, &quiet).await);
        // It was just confirmed.
        let before = reads(&layer);
        assert!(Arc::ptr_eq(&layer.security("db").await.unwrap(), found[0].as_ref().unwrap()));
        assert!(reads(&layer) == before || !is_quiet(fdb, &quiet).await);
        db.set_security(b"{}").await.unwrap();
        let quiet = metadata_version(fdb).await;
        let (next, found) = layer.securities(&names).await.unwrap();
        assert_ne!(next, state);
        assert!(layer.sign_in_state().await.unwrap().1 == next || !is_quiet(fdb, &quiet).await);
        assert!(found[0].as_ref().is_some_and(|security| security.bytes() == Some(b"{}")));
    }

    /// A change of another root changes nothing: the log of this root has no entry.
    #[tokio::test]
    async fn a_neighbour_does_not_have_it_read_again() {
        let manual = ManualClock::new();
        let (layer, _authority, _storage) = layer_at(&manual).await;
        let fdb = &layer.inner.db;
        let mut quiet = metadata_version(fdb).await;
        let first = layer.security("db").await.unwrap();
        start_neighbour(fdb);
        let before = reads(&layer);
        for _ in 0..20 {
            until("the neighbour changes its record", async || !is_quiet(fdb, &quiet).await).await;
            quiet = metadata_version(fdb).await;
            assert!(matches!(layer.security("none").await, Err(Error::DatabaseNotFound)));
            assert!(Arc::ptr_eq(&layer.security("db").await.unwrap(), &first));
            manual.advance(CONFIRMED_WITHIN / 10);
        }
        // A missing database is read each time, which confirms the other one.
        assert_eq!(reads(&layer) - before, 20);
    }

    #[tokio::test]
    async fn the_past_confirms_nothing() {
        let manual = ManualClock::new();
        let (layer, _authority, _storage) = layer_at(&manual).await;
        let inner = &layer.inner;
        let trx = Transaction::begin(&inner.db, &inner.metrics).unwrap();
        inner.resolve(&trx, "db").await.unwrap();
        let version = trx.get_read_version().await.unwrap();
        manual.advance(CONFIRMED_WITHIN);
        assert!(known(inner, "db").is_none());
        let past = Transaction::begin(&inner.db, &inner.metrics).unwrap();
        past.set_read_version(version);
        inner.resolve(&past, "db").await.unwrap();
        assert!(known(inner, "db").is_none());
        // Nor does a transaction that began then and continues.
        inner.resolve(&trx, "db").await.unwrap();
        assert!(known(inner, "db").is_none());
        layer.security("db").await.unwrap();
        assert!(known(inner, "db").is_some());
    }
}
