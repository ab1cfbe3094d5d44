//! The list of replicator databases beside `_replicator` itself. The transactions that create and delete these
//! databases maintain it, and change one key that servers watch. The cost of following it depends only on the number of
//! these databases.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use flatbed_databases::server::Inner;
use flatbed_feeds::feed::changes::WaitOutcome;
use flatbed_feeds::feed::hub::SAFETY_REREAD;
use flatbed_feeds::feed::watches::arm;
use flatbed_store::error::Result;
use flatbed_store::keys::KeyRange;
use flatbed_store::transaction::{self, Attempt, Operation, Transaction, bounded};

use crate::handle::Layer;

const PAGE_NAMES_MAX: usize = 1_000;

/// Follows the replicator databases beside [`REPLICATOR`](crate::REPLICATOR): those that were created as such
/// ([`is_replicator_name`](crate::is_replicator_name)).
pub struct ReplicatorDatabases {
    inner: Arc<Inner>,
    /// The value of the watched key before the last read of the list.
    known: Vec<u8>,
}

impl Layer {
    /// Returns a follower of the replicator databases, without reading anything yet.
    pub fn replicator_databases(&self) -> ReplicatorDatabases {
        ReplicatorDatabases { inner: self.inner.clone(), known: Vec::new() }
    }
}

impl ReplicatorDatabases {
    /// Reads the current names, sorted. A database may be deleted, and created again as an ordinary one, before the
    /// caller opens it.
    ///
    /// # Errors
    /// [`Error::Storage`](crate::Error::Storage), [`Error::Corrupt`](crate::Error::Corrupt).
    #[boxed]
    pub async fn names(&mut self) -> Result<Vec<Arc<str>>> {
        let inner = &*self.inner;
        // Before the list, so that a change during the read of the list wakes the next wait.
        let state = transaction::read(&inner.db, &inner.metrics, &mut ReadState { inner }).await?;
        let mut names = Vec::new();
        let mut rest = Some(inner.keys.replicators());
        while let Some(range) = rest {
            let (page, next) = transaction::read(&inner.db, &inner.metrics, &mut ReadNames { inner, range }).await?;
            names.extend(page);
            rest = next;
        }
        self.known = state;
        Ok(names)
    }

    /// Waits until the names may differ from those last returned by [`ReplicatorDatabases::names`], or until the server
    /// stops.
    ///
    /// # Errors
    /// [`Error::Storage`](crate::Error::Storage).
    #[boxed]
    pub async fn wait(&self) -> Result<WaitOutcome> {
        let inner = &*self.inner;
        let key = inner.keys.replicators_changed();
        let mut closing = inner.closing.subscribe();
        loop {
            let (value, fired) = bounded(arm(inner, &key)).await?;
            if inner.is_closing() {
                return Ok(WaitOutcome::Shutdown);
            }
            if value != self.known {
                return Ok(WaitOutcome::MayHaveChanged);
            }
            tokio::select! {
                fired = fired => fired?,
                () = inner.clock.sleep(SAFETY_REREAD) => inner.metrics.safety_rereads.add(1),
                _ = closing.wait_for(|closing| *closing) => return Ok(WaitOutcome::Shutdown),
            }
        }
    }
}

struct ReadState<'a> {
    inner: &'a Inner,
}

impl Operation for ReadState<'_> {
    type Output = Vec<u8>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Vec<u8>> {
        let found = trx.get(&self.inner.keys.replicators_changed(), true).await?;
        Ok(found.as_deref().map(<[u8]>::to_vec).unwrap_or_default())
    }
}

struct ReadNames<'a> {
    inner: &'a Inner,
    range: KeyRange,
}

impl Operation for ReadNames<'_> {
    /// The names, and the range that is left.
    type Output = (Vec<Arc<str>>, Option<KeyRange>);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let page = trx.range(&self.range, true).page(PAGE_NAMES_MAX).await?;
        let mut names = Vec::new();
        for row in &page {
            names.push(self.inner.keys.replicator_name(row.key())?.into());
        }
        Ok((names, page.rest))
    }
}

#[cfg(test)]
mod tests {
    use flatbed_clock::ManualClock;
    use flatbed_store::proto;
    use flatbed_store::record_log::note_change;
    use flatbed_testkit::soon;
    use prost::Message;

    use super::*;
    use crate::tests::fenced::{layer_at, open_at};
    use crate::{ChannelsOptions, CreateOptions, DatabaseSecurity, Error, Refusal};

    async fn names(databases: &mut ReplicatorDatabases) -> Vec<String> {
        databases.names().await.unwrap().iter().map(|name| name.to_string()).collect()
    }

    #[tokio::test]
    async fn those_that_are_made_so_are_listed_as_long_as_they_are_there() {
        let manual = ManualClock::new();
        let (layer, authority, storage) = layer_at(&manual).await;
        let (elsewhere, _its) = open_at(&storage, &manual).await;
        let mut databases = elsewhere.replicator_databases();
        assert_eq!(names(&mut databases).await, [""; 0]);
        let of = |name: &str| layer.database(name, authority.for_job("test"));
        for name in ["_replicator", "a", "a/b"] {
            of(name).create(&CreateOptions::default()).await.unwrap();
        }
        for name in ["z/_replicator", "a/b/_replicator"] {
            of(name).create(&CreateOptions::default()).await.unwrap();
            assert_eq!(soon(databases.wait()).await.unwrap(), WaitOutcome::MayHaveChanged);
            assert!(layer.security(name).await.unwrap().is_replicator());
            assert!(names(&mut databases).await.contains(&name.to_owned()));
        }
        assert_eq!(names(&mut databases).await, ["a/b/_replicator", "z/_replicator"]);
        assert!(!layer.security("a/b").await.unwrap().is_replicator());
        of("z/_replicator").delete().await.unwrap();
        assert_eq!(soon(databases.wait()).await.unwrap(), WaitOutcome::MayHaveChanged);
        assert_eq!(names(&mut databases).await, ["a/b/_replicator"]);
        // Changed settings do not change the kind of database.
        of("a/b/_replicator").set_revs_limit(7).await.unwrap();
        of("a/b/_replicator").set_security(b"{}").await.unwrap();
        let security: Arc<DatabaseSecurity> = elsewhere.security("a/b/_replicator").await.unwrap();
        assert!(security.is_replicator());
        elsewhere.shutdown();
        assert_eq!(soon(databases.wait()).await.unwrap(), WaitOutcome::Shutdown);
    }

    #[tokio::test]
    async fn they_have_neither_partitions_nor_channels() {
        let manual = ManualClock::new();
        let (layer, authority, _storage) = layer_at(&manual).await;
        let database = layer.database("a/_replicator", authority.for_job("test"));
        let channels = Some(ChannelsOptions { sync: None });
        for options in [
            CreateOptions { partitioned: true, ..CreateOptions::default() },
            CreateOptions { channels, ..CreateOptions::default() },
        ] {
            let refused = database.create(&options).await;
            assert!(matches!(refused, Err(Error::Refused(Refusal::InvalidSetting(_)))), "{refused:?}");
        }
        database.create(&CreateOptions::default()).await.unwrap();
        let refused = database.set_sync_function(None).await;
        assert!(matches!(refused, Err(Error::Refused(Refusal::InvalidSetting(_)))), "{refused:?}");
    }

    #[tokio::test]
    async fn one_is_not_read_as_an_ordinary_one() {
        let manual = ManualClock::new();
        let (layer, authority, _storage) = layer_at(&manual).await;
        layer.reader("db").as_ordinary().exists().await.unwrap();
        let reader = layer.reader("a/_replicator");
        assert!(matches!(reader.as_ordinary().exists().await, Err(Error::DatabaseNotFound)));
        layer.database("a/_replicator", authority.for_job("test")).create(&CreateOptions::default()).await.unwrap();
        reader.exists().await.unwrap();
        let refused = reader.as_ordinary().get("d", &Default::default()).await;
        assert!(matches!(refused, Err(Error::Refused(Refusal::Forbidden(_)))));
    }

    /// A database of an earlier version is not marked, whatever its name, and is not listed.
    #[tokio::test]
    async fn one_from_before_is_an_ordinary_one() {
        let manual = ManualClock::new();
        let (layer, authority, _storage) = layer_at(&manual).await;
        let database = layer.database("a/_replicator", authority.for_job("test"));
        layer.database("b", authority.for_job("test")).create(&CreateOptions::default()).await.unwrap();
        let inner = &layer.inner;
        let (from, to) = (inner.keys.database("b"), inner.keys.database("a/_replicator"));
        let trx = Transaction::begin(&inner.db, &inner.metrics).unwrap();
        let record = trx.get(&from, false).await.unwrap().unwrap().to_vec();
        assert!(proto::DatabaseRecord::decode(record.as_slice()).unwrap().features.is_empty());
        trx.set(&to, &record);
        trx.clear(&from);
        for name in ["a/_replicator", "b"] {
            note_change(&trx, &inner.keys, name).unwrap();
        }
        trx.commit().await.unwrap();
        database.exists().await.unwrap();
        assert!(!layer.security("a/_replicator").await.unwrap().is_replicator());
        assert_eq!(names(&mut layer.replicator_databases()).await, [""; 0]);
        database.delete().await.unwrap();
        database.create(&CreateOptions::default()).await.unwrap();
        assert!(layer.security("a/_replicator").await.unwrap().is_replicator());
    }
}
