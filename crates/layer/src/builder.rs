//! Builds indexes in the background: enters documents that were written before an index was defined.
//!
//! The transaction that defines an index also notes that it is to be built (`index::definitions`), and one process
//! builds it as background work ([`crate::background`]). That a single process does it only saves work: two that build
//! an index at once leave it correct (`index::build`).

use std::collections::VecDeque;
use std::time::Duration;

use flatbed_databases::server::Inner;
use flatbed_operations::index::build::{BuildPace, Step, StepOutcome, unbuilt};
use flatbed_operations::index::definitions::reorder_alone;
use flatbed_operations::index::kinds::KINDS;
use flatbed_operations::index_builds::{IndexBuild, IndexBuilds};
use flatbed_operations::index_waits::IndexWaits;
use flatbed_store::error::{Error, Result};
use flatbed_store::features::is_outdated;
use flatbed_store::keys::Counter;
use flatbed_store::proto;
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};

/// Builds a database's indexes, or resumes, for up to `time`. Returns whether all are built; `None`: this process is
/// already building one of them.
///
/// # Errors
/// That of the last index that failed; the others are built nevertheless.
pub(crate) async fn build(inner: &Inner, name: &str, time: Duration) -> Result<Option<bool>> {
    let until = inner.clock.now() + time;
    let (namespace, total, indexes) = loop {
        match transaction::read(&inner.db, &inner.metrics, &mut ReadUnbuilt { inner, name }).await? {
            Some(unbuilt) => break unbuilt,
            None => reorder_alone(inner, name).await?,
        }
    };
    let begin = |index: proto::Index| {
        let (number, shown) = (index.number, IndexBuild::of(name, index, total, inner.clock.unix_ms()));
        // A process builds an index once at a time.
        let running = inner.state::<IndexBuilds>().begin(namespace, shown)?;
        Some((number, running, inner.metrics.index_builds_running.hold(), BuildPace::default()))
    };
    let Some(mut builds) = indexes.into_iter().map(begin).collect::<Option<VecDeque<_>>>() else { return Ok(None) };
    let mut failed = None;
    // The indexes take turns, one step each.
    while let Some((number, running, held, pace)) = builds.pop_front() {
        if inner.is_closing() || inner.clock.now() >= until {
            return Ok(Some(false));
        }
        let mut step = Step::new(inner, name, number, pace);
        match transaction::write(&inner.db, &inner.metrics, &mut step).await {
            Ok(stepped) => {
                inner.metrics.index_documents_entered.add(step.entered);
                running.set_entered(step.entered_in_all);
                inner.state::<IndexBuilds>().clear_failure(namespace, number);
                match stepped {
                    StepOutcome::On => builds.push_back((number, running, held, step.next_pace)),
                    StepOutcome::Built => {
                        inner.metrics.indexes_built.add(1);
                        inner.state::<IndexWaits>().is_built(name);
                    }
                    StepOutcome::Gone => {}
                }
            }
            Err(error @ Error::DatabaseNotFound) => return Err(error),
            Err(error) => {
                inner.metrics.index_build_failures.add(1);
                tracing::warn!(database = name, index = number, %error, "an index could not be built");
                inner.state::<IndexBuilds>().record_failure(namespace, number, &error.to_string());
                failed = Some(error);
            }
        }
    }
    failed.map_or(Ok(Some(true)), Err)
}

/// Reads a database's namespace, its number of documents, and its unreadable indexes; `None`: some must be replaced
/// first.
struct ReadUnbuilt<'a> {
    inner: &'a Inner,
    name: &'a str,
}

impl Operation for ReadUnbuilt<'_> {
    type Output = Option<(u64, u64, Vec<proto::Index>)>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.inner.resolve(trx, self.name).await?;
        if is_outdated(&instance.record, self.inner.collation) {
            return Ok(None);
        }
        let is_known = |index: &proto::Index| KINDS.iter().any(|kind| kind.name() == index.kind);
        let indexes: Vec<_> = unbuilt(instance.record.clone()).filter(is_known).collect();
        let total = match indexes.is_empty() {
            true => 0,
            false => instance.buckets.begin_count(trx, Counter::Documents).await?,
        };
        Ok(Some((instance.record.namespace, u64::try_from(total).unwrap_or_default(), indexes)))
    }
}
