//! The log: events of all crates to stderr or a file, as text or JSON.

use std::env;
use std::panic;
use std::sync::Arc;

use flatbed_http::REQUEST_TARGET;
use flatbed_layer::TRACE_TARGET;
use tokio::runtime::Handle;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    filter::Targets,
    fmt,
    layer::{Layer, SubscriberExt},
    reload,
    util::{SubscriberInitExt, TryInitError},
};

use crate::log_lines::OneLine;
use crate::log_sink::{LogFileError, LogSink};
use crate::otel::{self, Traces, TracesError};
use crate::redact::{Redact, RedactingLayer};
use crate::settings::{LogFormat, Settings};

/// The reason why logging cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    /// The process has a log already.
    #[error(transparent)]
    Twice(#[from] TryInitError),
    /// The log file cannot be opened.
    #[error(transparent)]
    File(#[from] LogFileError),
    /// Traces are requested and cannot be sent.
    #[error(transparent)]
    Traces(#[from] TracesError),
}

/// The log of the process. Dropping it, outside of `runtime`, sends the last traces.
pub(crate) struct Log {
    /// Sets the level of the log, or levels of targets.
    pub set_level: Arc<dyn Fn(&str) + Send + Sync>,
    /// The destination of its lines.
    pub sink: LogSink,
    _traces: Option<Traces>,
}

/// The environment variables that may name a receiver of traces.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

/// Starts the log of a command, to stderr. Starts traces, too, if the environment requests them; tasks of `runtime`
/// send them.
///
/// # Errors
/// [`LogError`].
pub(crate) fn start(settings: &Settings, runtime: &Handle) -> Result<Log, LogError> {
    start_with(settings, LogSink::stderr(), runtime)
}

/// Starts the log of a server as [`start`], to the log file if the settings have one. Commands beside the server do not
/// write to its file, which one process rotates. A line that belongs to a request carries its id.
///
/// # Errors
/// [`LogError`].
pub(crate) fn start_server(settings: &Settings, runtime: &Handle) -> Result<Log, LogError> {
    start_with(settings, LogSink::open(settings.log_file.as_ref())?, runtime)
}

fn start_with(settings: &Settings, sink: LogSink, runtime: &Handle) -> Result<Log, LogError> {
    // `Settings::resolve` has refused an invalid level.
    let targets: Targets = settings.log_level.parse().unwrap_or_default();
    let layer = fmt::layer().with_writer(sink.clone()).with_ansi(false);
    let layer = match settings.log_format {
        LogFormat::Text => layer.map_writer(OneLine).boxed(),
        LogFormat::Json => layer.json().flatten_event(true).with_span_list(false).boxed(),
    };
    let layer = match settings.redact {
        Redact::None => layer,
        how => RedactingLayer::new(layer, how).boxed(),
    };
    let targets = with_own(targets);
    let (filter, handle) = reload::Layer::new(targets);
    let layer = layer.with_filter(filter);
    let set_level = Arc::new(move |level: &str| match level.parse() {
        Ok(targets) => {
            // This fails only if the log is gone, at the process's end.
            let _ = handle.reload(with_own(targets));
        }
        Err(error) => tracing::error!(level, %error, "the log's level stays what it was"),
    });
    let (traced, traces) = traces_asked().map(|asked| otel::start(asked, runtime)).transpose()?.unzip();
    tracing_subscriber::registry().with(traced).with(layer).try_init()?;
    let log = Log { set_level, sink, _traces: traces };
    let unlogged = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if !tracing::enabled!(tracing::Level::ERROR) {
            return unlogged(panic);
        }
        let location = panic.location().map(tracing::field::display);
        let payload = panic.payload();
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or(payload.downcast_ref::<String>().map(String::as_str));
        tracing::error!(location, reason = text, "a panic");
    }));
    Ok(log)
}

/// Returns the environment variable that requests traces, if any.
fn traces_asked() -> Option<&'static str> {
    const EXPORTER: &str = "OTEL_TRACES_EXPORTER";
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|of| of.eq_ignore_ascii_case(value));
    if is("OTEL_SDK_DISABLED", "true") || is(EXPORTER, "none") {
        return None;
    }
    let named = ENDPOINTS.into_iter().find(|name| env::var_os(name).is_some_and(|url| !url.is_empty()));
    // Without a named receiver no traces are sent: each failed attempt would be logged.
    named.or(is(EXPORTER, "otlp").then_some(EXPORTER))
}

/// The target of the layer. Its level holds for the crates below it unless a setting names them.
const LAYER_TARGET: &str = "flatbed_layer";
const BELOW_LAYER: [&str; 4] = ["flatbed_databases", "flatbed_feeds", "flatbed_operations", "flatbed_views"];

/// Adds the targets of the crates below the layer, and those that no setting affects.
fn with_own(targets: Targets) -> Targets {
    let is_silent = targets.default_level().is_none_or(is_off) && targets.iter().all(|(_, level)| is_off(level));
    let of_requests = if is_silent { LevelFilter::OFF } else { LevelFilter::ERROR };
    let of = |wanted: &str| targets.iter().find(|(target, _)| *target == wanted).map(|(_, level)| level);
    let of_layer = of(LAYER_TARGET);
    let unnamed = BELOW_LAYER.into_iter().filter(|target| of(target).is_none());
    let below: Vec<(&str, LevelFilter)> =
        of_layer.map(|level| unnamed.map(|target| (target, level)).collect()).unwrap_or_default();
    let targets = targets.with_targets(below);
    targets.with_target(REQUEST_TARGET, of_requests).with_target(TRACE_TARGET, LevelFilter::OFF)
}

fn is_off(level: LevelFilter) -> bool {
    level == LevelFilter::OFF
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crates_below_the_layer_have_its_level() {
        let has_debug =
            |levels: &str, target: &str| with_own(levels.parse().unwrap()).would_enable(target, &tracing::Level::DEBUG);
        assert!(has_debug("info,flatbed_layer=debug", "flatbed_operations::write::purge"));
        assert!(!has_debug("info,flatbed_layer=debug,flatbed_views=info", "flatbed_views::group::updater"));
        assert!(!has_debug("info", "flatbed_operations::write::purge"));
    }
}
