//! SIGHUP: reads the configuration file and the certificates again, and opens the log file again.
//!
//! Each of the three is independent: an invalid one is refused with a line in the log, and its previous state stays.
//! Files of JWK sets are read again with the configuration, because it makes a new snapshot of the settings.

use std::sync::Arc;

use flatbed_http::{Listen, Tls};
use flatbed_service::Configuration;
use flatbed_service::configuration::Values;

use crate::log_sink::{LogFileOptions, LogSink};

/// The configuration as it was read again.
pub(crate) struct NewConfiguration {
    pub values: Values,
    /// The keys of the settings that differ from those of the start.
    pub changed: Vec<&'static str>,
    pub log_file: Option<LogFileOptions>,
}

/// Reads the configuration of all sources, or returns the reason why it is refused.
pub(crate) type ReadConfiguration = Arc<dyn Fn() -> Result<NewConfiguration, String> + Send + Sync>;

/// Settings that a reload applies. The sections of `_config` and the administrators are values of the
/// [`Configuration`] and apply, too.
const APPLIED: [&str; 4] = ["log_file", "log_file_bytes", "log_files", "log_level"];

/// The parts of a server that a reload changes.
pub(crate) struct Reload {
    pub read: ReadConfiguration,
    pub configuration: Configuration,
    pub certificates: Vec<Arc<Tls>>,
    pub sink: LogSink,
    /// The log file of the configuration in use.
    pub log_file: Option<LogFileOptions>,
}

impl Reload {
    /// Reloads everything. Requests continue meanwhile.
    pub(crate) async fn run(&mut self) {
        tracing::info!("SIGHUP: the configuration, the certificates and the log file are reloaded");
        if let Err(reason) = self.reload_configuration().await {
            tracing::error!(reason, "the new configuration is refused; the previous one stays in use");
        }
        // After the configuration, which may name another file.
        match self.sink.reopen(self.log_file.as_ref()) {
            Ok(()) => tracing::info!("the log is open again"),
            Err(error) => tracing::error!(%error, "the log stays where it is"),
        }
        for tls in &self.certificates {
            let tls = Arc::clone(tls);
            let reloaded = tokio::task::spawn_blocking(move || tls.reload().map_err(|error| error.to_string())).await;
            if let Err(reason) = reloaded.unwrap_or_else(|error| Err(error.to_string())) {
                tracing::error!(reason, "the new certificate is invalid; the previous one stays in use");
            }
        }
    }

    async fn reload_configuration(&mut self) -> Result<(), String> {
        let read = Arc::clone(&self.read);
        // Passwords of the file are hashed, which takes a while.
        let read = tokio::task::spawn_blocking(move || read()).await;
        let NewConfiguration { values, changed, log_file } = read.unwrap_or_else(|error| Err(error.to_string()))?;
        self.configuration.replace_fixed(values).await;
        let later: Vec<&str> = changed.into_iter().filter(|key| !APPLIED.contains(key)).collect();
        if !later.is_empty() {
            tracing::warn!("these settings have changed and take effect after a restart: {}", later.join(", "));
        }
        self.log_file = log_file;
        Ok(())
    }
}

/// Returns the certificates of these listeners.
pub(crate) fn certificates(listening: impl IntoIterator<Item = Listen>) -> Vec<Arc<Tls>> {
    let of_listen = |listen| match listen {
        Listen::Https(_, tls) => Some(tls),
        Listen::Http(_) | Listen::Unix(..) => None,
    };
    listening.into_iter().filter_map(of_listen).collect()
}
