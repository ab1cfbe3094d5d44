//! The changes worker: its settings and its assembly.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use flatbed_couch::Couch;
pub(crate) use flatbed_dispatcher::Connect;
use flatbed_dispatcher::{Dispatcher, DispatcherOptions, Server, check_document};
use flatbed_javascript::Runner;
use flatbed_layer::ServerActor;
use flatbed_metrics::Family;
use flatbed_outward::{AllowedAddresses, Network, Tls};
use flatbed_service::Functions;
use flatbed_worker::connect::Secrets;
use flatbed_worker::memory::{MEMORY_BYTES, MEMORY_BYTES_MIN, Memory};
use flatbed_worker::secret::ENV_PREFIX;

use crate::serve::ServeError;
use crate::settings::{ALLOWED, Layer, SETTINGS, SettingValue, SettingsError};

/// The default number of jobs at once.
const JOBS_MAX: usize = 100;

/// The default time after which another process takes a job over.
const LEASE: Duration = Duration::from_secs(15);

/// The settings of jobs in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkerSettings {
    /// True if jobs run in this process.
    pub runs: bool,
    /// The directory to which they write files.
    pub files: Option<PathBuf>,
    pub secrets: Option<PathBuf>,
    /// Addresses beside the internet that they may reach.
    pub allow: AllowedAddresses,
    /// The most jobs at once.
    pub jobs: usize,
    /// The memory for documents of all jobs, in bytes.
    pub memory: usize,
    /// The silence after which a process loses its jobs.
    pub lease: Duration,
}

impl WorkerSettings {
    /// Takes each setting from the first of `layers` that has it.
    ///
    /// # Errors
    /// [`SettingsError`] for a value of the wrong form.
    pub(crate) fn resolve(layers: &[Layer]) -> Result<WorkerSettings, SettingsError> {
        let first = |key: &str| layers.iter().find_map(|layer| layer.get(key));
        let runs = match first("worker") {
            None => false,
            Some(found) => match found.text.as_str() {
                "true" => true,
                "false" => false,
                _ => return Err(found.is_not("true or false")),
            },
        };
        let allow =
            first("worker_allow").map(|found| AllowedAddresses::parse(&found.text).map_err(|_| found.is_not(ALLOWED)));
        let jobs = first("worker_jobs").map(|found| found.number(1..=1_000)).transpose()?;
        let memory =
            first("worker_memory_mb").map(|found| found.number(MEMORY_BYTES_MIN >> 20..=1 << 20)).transpose()?;
        let lease = first("worker_lease_seconds").map(|found| found.number(3..=600)).transpose()?;
        Ok(WorkerSettings {
            runs,
            files: first("worker_files").map(SettingValue::path),
            secrets: first("worker_secrets").map(SettingValue::path),
            allow: allow.transpose()?.unwrap_or_default(),
            jobs: jobs.unwrap_or(JOBS_MAX),
            memory: memory.map_or(MEMORY_BYTES, |megabytes| megabytes << 20),
            lease: lease.map_or(LEASE, Duration::from_secs),
        })
    }

    /// Returns the dispatcher's options. Jobs see only their own environment variables, and trust the same TLS
    /// authorities as replications.
    fn options(&self, variables: &HashMap<String, String>, tls: Tls, connect: Connect) -> DispatcherOptions {
        let (secrets, network) = self.reach(variables);
        let options = DispatcherOptions::new(secrets, self.files.clone(), network, tls, connect);
        DispatcherOptions { jobs_max: self.jobs, lease: self.lease, memory: Memory::new(self.memory), ..options }
    }

    /// Returns the options of a process that keeps its jobs at another server, which defines the permitted silence.
    pub(crate) fn for_remote_server(
        &self,
        variables: &HashMap<String, String>,
        tls: Tls,
        server: &Server,
    ) -> DispatcherOptions {
        let (secrets, network) = self.reach(variables);
        let options = DispatcherOptions::for_remote_server(secrets, self.files.clone(), network, tls, server);
        DispatcherOptions { jobs_max: self.jobs, memory: Memory::new(self.memory), ..options }
    }

    fn reach(&self, variables: &HashMap<String, String>) -> (Secrets, Network) {
        // The settings' own variables have the same prefix.
        let is_setting = |name: &str| SETTINGS.iter().any(|setting| setting.variable() == name);
        let is_ours = |(name, _): &(&String, &String)| name.starts_with(ENV_PREFIX) && !is_setting(name);
        let variables = variables.iter().filter(is_ours).map(|(name, value)| (name.clone(), value.clone())).collect();
        let secrets = Secrets { directory: self.secrets.clone(), variables };
        (secrets, Network::default().bounded(Arc::new(self.allow.clone())))
    }
}

/// Adds the functions that judge documents of `_worker`.
pub(crate) fn judging(functions: Functions) -> Functions {
    functions.with_worker_check(check_document)
}

/// The changes worker of a server. Its API shows and controls jobs even if they do not run in this process.
pub(crate) struct Worker {
    dispatcher: Arc<Dispatcher>,
    runs: bool,
}

impl Worker {
    /// Creates the worker. `connect` makes its connections to the server itself.
    ///
    /// # Errors
    /// [`ServeError::Worker`].
    pub(crate) fn new(
        settings: &WorkerSettings,
        (variables, tls, functions): (&HashMap<String, String>, Tls, Runner),
        (layer, actor): (flatbed_layer::Layer, ServerActor),
        connect: Connect,
    ) -> Result<Worker, ServeError> {
        let options = settings.options(variables, tls, connect).with_functions(functions);
        Ok(Worker { dispatcher: Dispatcher::new(layer, actor, options)?, runs: settings.runs })
    }

    /// Adds the worker's API to CouchDB's.
    pub(crate) fn with_api(&self, couch: Couch) -> Couch {
        couch.with_worker(self.dispatcher.clone())
    }

    /// Its metrics, read at each call.
    pub(crate) fn figures(&self) -> impl Fn() -> Vec<Family> + Send + Sync + 'static {
        let dispatcher = self.dispatcher.clone();
        move || dispatcher.families()
    }

    /// Starts jobs if they run in this process. The future ends them, each after its current batch.
    pub(crate) fn start(&self) -> impl Future<Output = ()> + 'static {
        let (dispatcher, jobs) = (self.dispatcher.clone(), self.runs.then(|| self.dispatcher.start()));
        async move {
            if let Some(jobs) = jobs {
                dispatcher.stop(jobs).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(values: &[(&'static str, &str)]) -> Result<WorkerSettings, SettingsError> {
        let found = |(key, text): &(&'static str, &str)| {
            (*key, SettingValue { text: (*text).to_owned(), origin: format!("{key} in x"), base: None })
        };
        WorkerSettings::resolve(&[values.iter().map(found).collect()])
    }

    #[test]
    fn jobs_run_where_it_is_said() {
        let closed = resolve(&[]).unwrap();
        assert!(!closed.runs && closed.files.is_none() && closed.secrets.is_none());
        assert!(!closed.allow.has_address("127.0.0.1".parse().unwrap()));
        let open = [
            ("worker", "true"),
            ("worker_files", "f"),
            ("worker_allow", "127.0.0.1"),
            ("worker_jobs", "7"),
            ("worker_memory_mb", "200"),
            ("worker_lease_seconds", "3"),
        ];
        let open = resolve(&open).unwrap();
        assert!(open.runs && open.allow.has_address("127.0.0.1".parse().unwrap()));
        assert_eq!((open.files, open.jobs, open.lease.as_secs(), open.memory), (Some("f".into()), 7, 3, 200 << 20));
        for (key, text) in [
            ("worker", "yes"),
            ("worker_memory_mb", "100"),
            ("worker_jobs", "0"),
            ("worker_lease_seconds", "1"),
            ("worker_allow", "a b"),
        ] {
            assert!(resolve(&[(key, text)]).unwrap_err().to_string().contains("is not"), "{key}");
        }
    }
}
