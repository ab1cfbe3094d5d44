//! Counting requests, and all figures in Prometheus' text form.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flatbed_layer::Metric;

/// What a request was for, as far as it is counted apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    Server,
    Database,
    Document,
    BulkDocs,
    BulkGet,
    AllDocs,
    Changes,
    Other,
}

const ROUTES: [(Route, &str); 8] = [
    (Route::Server, "server"),
    (Route::Database, "database"),
    (Route::Document, "document"),
    (Route::BulkDocs, "bulk_docs"),
    (Route::BulkGet, "bulk_get"),
    (Route::AllDocs, "all_docs"),
    (Route::Changes, "changes"),
    (Route::Other, "other"),
];

type Counts = Arc<dyn Fn() -> Vec<(&'static str, u64)> + Send + Sync>;

/// Where `/metrics` asks how many faults the storage injected on purpose; by default it has nobody to ask.
#[derive(Clone, Default)]
pub struct InjectedFaults(Option<Counts>);

impl InjectedFaults {
    /// `counts` answers each kind's name, in snake case, and how often it happened. It must not block.
    pub fn new(counts: impl Fn() -> Vec<(&'static str, u64)> + Send + Sync + 'static) -> InjectedFaults {
        InjectedFaults(Some(Arc::new(counts)))
    }

    pub(crate) fn prometheus(&self, out: &mut String) {
        let Some(counts) = &self.0 else { return };
        out.push_str("# HELP flatbed_faults_injected_total Faults that FLATBED_FDB_BUGGIFY injected, by kind.\n");
        out.push_str("# TYPE flatbed_faults_injected_total counter\n");
        for (kind, count) in counts() {
            // Writing to a String does not fail.
            let _ = writeln!(out, "flatbed_faults_injected_total{{kind=\"{kind}\"}} {count}");
        }
    }
}

impl std::fmt::Debug for InjectedFaults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("InjectedFaults").field(&self.0.is_some()).finish()
    }
}

/// Requests answered, by route and class of status.
#[derive(Debug, Default)]
pub(crate) struct Requests([[AtomicU64; 5]; ROUTES.len()]);

impl Requests {
    pub(crate) fn count(&self, route: Route, status: u16) {
        let class = usize::from(status / 100).clamp(1, 5) - 1;
        if let Some(count) = self.0.get(route as usize).and_then(|classes| classes.get(class)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// All of it as text.
    pub(crate) fn prometheus(&self, layer: &[Metric], is_storage_failed: bool) -> String {
        let mut out = String::new();
        out.push_str("# HELP flatbed_requests_total Requests answered, by route and class of status.\n");
        out.push_str("# TYPE flatbed_requests_total counter\n");
        for ((_, name), classes) in ROUTES.iter().zip(&self.0) {
            for (class, count) in classes.iter().enumerate() {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    // Writing to a String does not fail.
                    let _ =
                        writeln!(out, "flatbed_requests_total{{route=\"{name}\",status=\"{}xx\"}} {count}", class + 1);
                }
            }
        }
        let _ = writeln!(
            out,
            "# HELP flatbed_storage_failed Whether the storage takes no more writes before a restart.\n\
             # TYPE flatbed_storage_failed gauge\nflatbed_storage_failed {}",
            u8::from(is_storage_failed)
        );
        for Metric { name, help, value } in layer {
            let _ = writeln!(
                out,
                "# HELP flatbed_{name}_total {help}\n# TYPE flatbed_{name}_total counter\nflatbed_{name}_total {value}"
            );
        }
        out
    }
}
