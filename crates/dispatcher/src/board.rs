//! What documents of `_worker` say is to be done.

use std::collections::BTreeMap;

use flatbed_worker::documents::{Connections, Description, Document, JOB, Job, Order, read};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::store::{Result, Store, text_of};

/// Ids of the documents that jobs are made of lie between these; checkpoints and entries before.
const BEGIN: &str = "inputs";
const END: &str = "tables_rdbms";

/// Jobs of a database; of more the first are run.
const JOBS_MAX: usize = 10_000;

/// A job as its documents have it.
#[derive(Debug, Clone)]
pub(crate) struct Listed {
    /// What people call it.
    pub(crate) name: String,
    /// Whether it is to run.
    pub(crate) is_enabled: bool,
    /// What is to be done besides.
    pub(crate) orders: Vec<Order>,
    /// With all that it names, or why it cannot run.
    pub(crate) description: std::result::Result<Description, String>,
    /// What tells this description from another.
    pub(crate) fingerprint: String,
}

/// All jobs, by id.
#[derive(Debug, Clone, Default)]
pub(crate) struct Board {
    /// The jobs.
    pub(crate) jobs: BTreeMap<String, Listed>,
    /// What they name.
    pub(crate) connections: Connections,
}

impl Board {
    /// Reads them.
    ///
    /// # Errors
    /// Those of the database.
    pub(crate) async fn read(store: &Store) -> Result<Board> {
        let (mut connections, mut jobs) = (Connections::default(), Vec::<Job>::new());
        let mut faults = Vec::new();
        let take = |document: Value| {
            let id = text_of(&document, "_id").to_owned();
            match read(document.to_string().as_bytes()) {
                Ok(Document::Job(job)) if id == format!("{JOB}{}", job.id) && jobs.len() < JOBS_MAX => jobs.push(*job),
                Ok(Document::Job(_)) => faults.push(id),
                Ok(other) => connections.add(other),
                // It was written by an older program, by whose schema it was right.
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
            (id, Listed { name, is_enabled, orders, description, fingerprint })
        };
        let jobs = jobs.into_iter().map(listed).collect();
        Ok(Board { jobs, connections })
    }
}
