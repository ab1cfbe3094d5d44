//! The log: events of all crates to stderr, as text or JSON.

use std::panic;

use flatbed_http::REQUEST_TARGET;
use flatbed_layer::TRACE_TARGET;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    filter::Targets,
    fmt,
    layer::{Layer, SubscriberExt},
    util::{SubscriberInitExt, TryInitError},
};

use crate::settings::{LogFormat, Settings};

/// Starts the log of this process as `settings` say. A line that belongs to a request carries its id.
///
/// # Errors
/// If the process has a log already.
pub fn start(settings: &Settings) -> Result<(), TryInitError> {
    // `Settings::resolve` has refused a level that does not parse.
    let targets: Targets = settings.log_level.parse().unwrap_or_default();
    let layer = fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    let layer = match settings.log_format {
        LogFormat::Text => layer.boxed(),
        LogFormat::Json => layer.json().flatten_event(true).with_span_list(false).boxed(),
    };
    let is_silent = targets.default_level().is_none_or(off) && targets.iter().all(|(_, level)| off(level));
    let of_requests = if is_silent { LevelFilter::OFF } else { LevelFilter::ERROR };
    let targets = targets.with_target(REQUEST_TARGET, of_requests).with_target(TRACE_TARGET, LevelFilter::OFF);
    let layer = layer.with_filter(targets);
    tracing_subscriber::registry().with(layer).try_init()?;
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
    Ok(())
}

fn off(level: LevelFilter) -> bool {
    level == LevelFilter::OFF
}
