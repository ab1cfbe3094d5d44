//! The resources for work on a group.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flatbed_clock::Clock;
use flatbed_databases::handles::ReadHandle;
use flatbed_store::error::{Error, Result, ViewFailure};
use flatbed_store::view_definition::GroupDefinition;
use flatbed_store::view_functions::{FunctionFailure, GroupFunctions, ReduceInput, Reduction};
use futures_util::future::BoxFuture;

use crate::group::steps::ReadStanding;
use crate::view::group::{Bounds, ViewGroup};
use crate::view::known::KnownNodes;
use crate::view::written::{ReduceAsk, ReduceFailure, ReduceInput as Input, WrittenReduces, WrittenResult};
use crate::view_updates::memory::{MemoryPermit, UNIT_BYTES};
use crate::view_updates::{GroupId, GroupState, LoadedGroup, ViewTask, hex, views};

pub struct Job {
    pub reader: ReadHandle,
    pub id: GroupId,
    /// A design document that names it.
    pub design: String,
    pub loaded: Arc<LoadedGroup>,
    pub functions: Arc<dyn GroupFunctions>,
    pub written: JavascriptReduces,
    pub storage: ViewGroup,
    pub known: KnownNodes,
    pub state: Arc<GroupState>,
    /// The number of consecutive documents on which its functions exceeded a bound.
    pub breaches: AtomicUsize,
}

/// Counts a task that waits for a shared resource, until this is dropped.
struct ResourceWait<'a>(&'a AtomicUsize);

impl Drop for ResourceWait<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Job {
    /// Prepares the work on a group.
    ///
    /// # Errors
    /// [`FunctionFailure::NotRun`].
    pub fn new(
        reader: ReadHandle,
        id: GroupId,
        design: String,
        loaded: Arc<LoadedGroup>,
        state: Arc<GroupState>,
    ) -> Result<Job> {
        let functions = loaded.functions.clone().ok_or(ViewFailure::Function(FunctionFailure::NotRun))?;
        let bounds = Bounds { document: reader.inner.options.view_bounds, ..Bounds::default() };
        let storage = ViewGroup::of(id.1, &loaded.definition)?.bounded(bounds);
        let written = JavascriptReduces(Arc::clone(&functions));
        let (known, breaches) = (KnownNodes::new(&views(&reader.inner).knowing), AtomicUsize::new(0));
        Ok(Job { reader, id, design, loaded, functions, written, storage, known, state, breaches })
    }

    pub(super) fn definition(&self) -> &GroupDefinition {
        &self.loaded.definition
    }

    pub(super) fn number(&self) -> u64 {
        self.id.1
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.reader.inner.clock
    }

    pub(super) fn is_closing(&self) -> bool {
        self.reader.inner.is_closing()
    }

    /// Waits for a shared resource, such as memory or a turn. Returns it with the time waited.
    ///
    /// # Errors
    /// Those of `resource`.
    pub(super) async fn wait<T>(&self, resource: impl Future<Output = Result<T>>) -> Result<(T, Duration)> {
        let began = self.clock().now();
        self.state.resource_waits.fetch_add(1, Ordering::Relaxed);
        let _wait = ResourceWait(&self.state.resource_waits);
        let resource = resource.await?;
        Ok((resource, self.clock().since(began)))
    }

    pub fn is_waiting(&self) -> bool {
        self.state.resource_waits.load(Ordering::Relaxed) > 0
    }

    /// Waits for the permit to read the stored rows of one large document. A database has one, a process two. Returns
    /// it with the time waited.
    ///
    /// # Errors
    /// [`Error::ShuttingDown`].
    pub(super) async fn acquire_large_read(&self) -> Result<(MemoryPermit, Duration)> {
        self.wait(views(&self.reader.inner).large_reads.acquire(self.id.0, UNIT_BYTES)).await
    }

    /// Waits for the turn of a transaction that writes many rows. Databases take turns. Returns it with the time
    /// waited.
    ///
    /// # Errors
    /// [`Error::ShuttingDown`].
    pub(super) async fn acquire_row_write(&self) -> Result<(MemoryPermit, Duration)> {
        let inner = &*self.reader.inner;
        let views = views(inner);
        let turns = if self.storage.has_written_reduces() { &views.reduced_row_writes } else { &views.row_writes };
        let _waiting = inner.metrics.view_writes_waiting.hold();
        self.wait(turns.acquire(self.id.0, UNIT_BYTES)).await
    }

    pub(super) async fn is_wanted(&self) -> Result<bool> {
        let ReadHandle { inner, name, .. } = &self.reader;
        Ok(!self.is_closing() && self.reader.read(&mut ReadStanding { inner, name, id: self.id }).await?.is_some())
    }

    pub(super) fn task(&self, is_build: bool, total: u64) -> ViewTask {
        let now = self.clock().unix_ms();
        ViewTask {
            database: self.reader.name.to_string(),
            design_document: self.design.clone(),
            signature: hex(&self.definition().signature),
            is_build,
            changes_done: 0,
            total_changes: total,
            waiting: 0,
            started_at_ms: now,
            updated_at_ms: now,
        }
    }
}

/// The JavaScript reduces of a group, for its storage.
pub struct JavascriptReduces(pub Arc<dyn GroupFunctions>);

impl WrittenReduces for JavascriptReduces {
    fn reduce<'a>(&'a self, asks: &'a [ReduceAsk]) -> BoxFuture<'a, Result<Vec<Vec<WrittenResult>>>> {
        Box::pin(async move {
            // CouchDB passes the last row first.
            let rows: Vec<Vec<(&str, &str, &str)>> = asks
                .iter()
                .map(|ask| match &ask.input {
                    Input::Rows(rows) => rows.iter().rev().map(|row| (&*row.key, &*row.id, &*row.value)).collect(),
                    Input::Reductions(_) => Vec::new(),
                })
                .collect();
            let values: Vec<Vec<&str>> = asks
                .iter()
                .map(|ask| match &ask.input {
                    Input::Rows(_) => Vec::new(),
                    Input::Reductions(values) => values.iter().map(String::as_str).collect(),
                })
                .collect();
            let reductions: Vec<Reduction<'_>> = asks
                .iter()
                .zip(rows.iter().zip(&values))
                .map(|(ask, (rows, values))| Reduction {
                    functions: &ask.functions,
                    input: match &ask.input {
                        Input::Rows(_) => ReduceInput::Rows(rows),
                        Input::Reductions(_) => ReduceInput::Reductions(values),
                    },
                })
                .collect();
            let reduced = self.0.reduce(&reductions).await.map_err(|failure| Error::View(failure.into()))?;
            let of_one = |results: Vec<std::result::Result<String, FunctionFailure>>| {
                results.into_iter().map(|result| result.map_err(reduce_failure)).collect()
            };
            Ok(reduced.into_iter().map(of_one).collect())
        })
    }
}

fn reduce_failure(failure: FunctionFailure) -> ReduceFailure {
    let reason = failure.to_string();
    let error = match failure {
        FunctionFailure::Thrown { name, reason } => return ReduceFailure { error: name, reason },
        FunctionFailure::Compilation(_) => "compilation_error",
        FunctionFailure::TimedOut(_) => "timeout",
        FunctionFailure::OutOfResources(_)
        | FunctionFailure::TooMuch(_)
        | FunctionFailure::Busy(_)
        | FunctionFailure::NotRun => "internal_server_error",
    };
    ReduceFailure { error: error.to_owned(), reason }
}
