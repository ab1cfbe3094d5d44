//! The layer's counters and gauges.

use flatbed_feeds::feed::hub::Followers;
use flatbed_metrics::Family;
use flatbed_operations::index_waits::IndexWaits;
use flatbed_views::view_updates::views;

use crate::handle::Layer;

impl Layer {
    /// Returns all metrics. Cheap enough to be called every second.
    pub fn metrics(&self) -> Vec<Family> {
        let mut families = self.inner.metrics.families();
        let Followers { followers, behind, lag, by_channels, held } = self.followers();
        let (rows_held, most_rows_held) = views(&self.inner).rows_memory.usage();
        let gauges = [
            ("flatbed_tail_followers", "Followers of changes that wait for new ones.", followers as f64),
            ("flatbed_tail_followers_behind", "Of these, those that read by-seq themselves again.", behind as f64),
            (
                "flatbed_tail_lag_seconds",
                "For how long the oldest change has been waiting that a follower has not taken from shared memory.",
                lag.as_secs_f64(),
            ),
            (
                "flatbed_hub_channel_followers",
                "Followers of changes that are woken for what lies in their channels alone.",
                by_channels as f64,
            ),
            (
                "flatbed_hub_channels",
                "Channels, users and roles for which these are woken, each counted once for each follower.",
                held as f64,
            ),
            (
                "flatbed_views_lag_seconds",
                "For how long the group of views that is furthest behind has been so, of those that this process follows.",
                views(&self.inner).lag().as_secs_f64(),
            ),
            (
                "flatbed_view_queries_waiting",
                "Queries that wait until their view is up to date.",
                views(&self.inner).waiting() as f64,
            ),
            (
                "flatbed_view_groups_failing",
                "Groups of views that failed when this process was to follow them last.",
                views(&self.inner).failing().values().map(Vec::len).sum::<usize>() as f64,
            ),
            (
                "flatbed_view_rows_memory_bytes",
                "Memory of emitted rows until they are written, in bytes.",
                rows_held as f64,
            ),
            (
                "flatbed_view_rows_memory_max_bytes",
                "The maximum of flatbed_view_rows_memory_bytes since the process began.",
                most_rows_held as f64,
            ),
            (
                "flatbed_view_documents_left",
                "Documents that the first builds of views at which this process works have left, about.",
                views(&self.inner).left() as f64,
            ),
            (
                "flatbed_index_queries_waiting",
                "Queries that wait until their json index is built.",
                self.inner.state::<IndexWaits>().count() as f64,
            ),
            (
                "flatbed_index_documents_left",
                "Documents that the builds of indexes under way in this process have left, about.",
                self.index_builds().iter().map(|build| build.total.saturating_sub(build.entered)).sum::<u64>() as f64,
            ),
            ("flatbed_databases_cached", "Databases that are held in memory.", self.databases_cached() as f64),
            (
                "flatbed_database_cache_bytes",
                "Bytes of the databases that are held in memory, as estimated.",
                self.inner.databases.bytes() as f64,
            ),
        ];
        families.extend(gauges.map(|(name, help, value)| Family::gauge(name, help, value)));
        families
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::fenced::layer;

    const LISTED: &str = include_str!("../../../docs/metrics.md");

    /// design/http.md lists all metrics for operators.
    #[tokio::test]
    async fn all_families_are_listed() {
        let (layer, _, _storage) = layer().await;
        let families = layer.metrics();
        let missing: Vec<_> =
            families.iter().map(|family| family.name).filter(|name| !LISTED.contains(&format!("`{name}"))).collect();
        assert!(missing.is_empty(), "not in docs/metrics.md: {missing:?}");
    }
}
