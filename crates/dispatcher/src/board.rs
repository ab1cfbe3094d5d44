//! The jobs that the documents of `_worker` define.

use std::collections::BTreeMap;

use flatbed_worker::documents::{Connections, Description, Document, JOB, Job, Order, read};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::store::{Result, Store, text_of};

/// The range of ids of the documents that define jobs. Checkpoints and entries lie before it.
const BEGIN: &str = "inputs";
const END: &str = "tables_rdbms";

/// The most jobs of a database. Further ones are left out.
const JOBS_MAX: usize = 10_000;

#[derive(Debug, Clone)]
pub(crate) struct JobDefinition {
    pub(crate) name: String,
    pub(crate) is_enabled: bool,
    pub(crate) orders: Vec<Order>,
    /// The job with everything that it names, or the reason why it cannot run.
    pub(crate) description: std::result::Result<Description, String>,
    /// A hash of the description, to detect changes.
    pub(crate) fingerprint: String,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Board {
    pub(crate) jobs: BTreeMap<String, JobDefinition>,
    /// The objects that jobs can name.
    pub(crate) connections: Connections,
}

impl Board {
    pub(crate) async fn read(store: &Store) -> Result<Board> {
        let (mut connections, mut jobs) = (Connections::default(), Vec::<Job>::new());
        let mut faults = Vec::new();
        let take = |document: Value| {
            let id = text_of(&document, "_id").to_owned();
            match read(document.to_string().as_bytes()) {
                Ok(Document::Job(job)) if id == format!("{JOB}{}", job.id) && jobs.len() < JOBS_MAX => jobs.push(*job),
                Ok(Document::Job(_)) => faults.push(id),
                Ok(other) => connections.add(other),
                // An older program wrote it, by whose schema it was valid.
                Err(error) => {
                    tracing::warn!(document = id, %error, "a document of _worker cannot be read");
                }
            }
        };
        store.walk(BEGIN, END, take).await?;
        if let Some(id) = faults.first() {
            tracing::warn!(document = id, count = faults.len(), "jobs of _worker are left out");
        }
        let listed = |job: Job| {
            let description = connections.resolve(&job).map_err(|unresolved| unresolved.to_string());
            let hash = Sha256::digest(format!("{description:?}"));
            let fingerprint = hash.iter().take(16).fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
            let Job { id, name, is_enabled, orders, .. } = job;
            (id, JobDefinition { name, is_enabled, orders, description, fingerprint })
        };
        let jobs = jobs.into_iter().map(listed).collect();
        Ok(Board { jobs, connections })
    }
}
