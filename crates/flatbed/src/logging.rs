//! The log: events of all crates to stderr, as text or JSON.

use tracing_subscriber::{
    filter::Targets,
    fmt,
    layer::{Layer, SubscriberExt},
    util::{SubscriberInitExt, TryInitError},
};

use crate::settings::{LogFormat, Settings};

/// Starts the log of this process as `settings` say.
///
/// # Errors
/// If the process has a log already.
pub fn start(settings: &Settings) -> Result<(), TryInitError> {
    // `Settings::resolve` has refused a level that does not parse.
    let targets: Targets = settings.log_level.parse().unwrap_or_default();
    let layer = fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    let layer = match settings.log_format {
        LogFormat::Text => layer.boxed(),
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(layer.with_filter(targets)).try_init()
}
