//! Views of a database, and the work of a process for all of them.

use std::sync::Arc;
use std::time::Duration;

use flatbed_operations::view_runtime;
use flatbed_store::error::Result;
use flatbed_store::view_functions::ViewFunctions;
use flatbed_views::group::attend;
use flatbed_views::group::info::{self, ViewGroupInfo};
use flatbed_views::group::source::{self, ViewUpdate};
use flatbed_views::view::read::View;
use flatbed_views::view_updates::{ViewTask, ViewWait, views};

use crate::handle::{Database, Layer, Reader};

/// The longest wait of a stopping process for the release of its groups.
const RELEASED_IN: Duration = Duration::from_secs(2);

impl Layer {
    /// Gives the layer the runtime of views' functions, once. Without it this process builds no groups.
    pub fn run_views_by(&self, functions: Arc<dyn ViewFunctions>) {
        view_runtime::run_views_by(&self.inner, functions);
    }

    /// Waits after [`Layer::shutdown`] until this process has released its groups of views, for at most 2 s. Another
    /// process waits 5 s before it takes over a group that is not released.
    pub async fn until_groups_released(&self) {
        let (views, clock) = (views(&self.inner), &self.inner.clock);
        let _ = clock.timeout(RELEASED_IN, views.followers.closed()).await;
    }

    /// Lists the groups of views that this process builds, or that catch up with many changes.
    pub fn view_tasks(&self) -> Vec<ViewTask> {
        views(&self.inner).tasks()
    }

    /// Returns the queries of this process that wait for views, by view: up to 500 of them, the longest first, and the
    /// number of further ones.
    pub fn view_waits(&self) -> (Vec<ViewWait>, u64) {
        views(&self.inner).waits()
    }
}

impl Reader {
    /// Returns a view of a design document, by its id (`_design/...`) and the view's name. It does not wait: the first
    /// page of a read waits for the requested freshness.
    ///
    /// If the group fails so that no page can be read, the first page returns the failure.
    ///
    /// # Errors
    /// [`Refusal::DocumentNotFound`](crate::Refusal::DocumentNotFound) of the design document,
    /// [`Error::View`](crate::Error::View).
    pub async fn view(&self, design: &str, name: &str, update: ViewUpdate) -> Result<View> {
        source::view(&self.handle, design, name, update).await
    }

    /// Returns a view from this process's cache, without a read; `None`: the design document is not cached, or has no
    /// such view. If it has changed since, the first page fails with
    /// [`ViewFailure::Changed`](crate::ViewFailure::Changed) or
    /// [`Error::DatabaseNotFound`](crate::Error::DatabaseNotFound), and the caller retries with [`Reader::view`].
    pub fn view_known(&self, design: &str, name: &str, update: ViewUpdate) -> Option<View> {
        source::view_known(&self.handle, design, name, update)
    }

    /// Returns the state of a design document's group (by its id, `_design/...`). A document without views has no rows,
    /// and neither has a group of fields that no query has used yet.
    ///
    /// # Errors
    /// [`Refusal::DocumentNotFound`](crate::Refusal::DocumentNotFound), [`Error::View`](crate::Error::View).
    pub async fn view_info(&self, design: &str) -> Result<ViewGroupInfo> {
        info::view_info(&self.handle, design).await
    }
}

impl Database {
    /// Drops the groups of views that no design document names.
    ///
    /// # Errors
    /// [`Error::DatabaseNotFound`](crate::Error::DatabaseNotFound), and those of the storage.
    pub async fn view_cleanup(&self) -> Result<()> {
        attend::view_cleanup(&self.handle).await
    }
}
