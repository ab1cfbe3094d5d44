//! Tests on storage: the embedded engine, or the cluster named by `FLATBED_CLUSTER_FILE`.

mod ahead;
mod background;
mod batches;
mod concurrent;
mod costs;
mod expiry;
mod lists;
mod model;
mod random;
pub(crate) mod support;
mod sweeping;
mod writes;
