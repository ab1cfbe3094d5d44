//! The stub of traces in a build without the feature `otel`.

use flatbed_http::ContinueTrace;
use tokio::runtime::Handle;
use tracing_subscriber::layer::Identity;

pub(crate) use crate::part::MissingPart as TracesError;
use crate::part::TRACES;

/// No request's span becomes part of another trace.
pub(crate) const CONTINUE_TRACE: Option<ContinueTrace> = None;

/// Running traces: no value exists.
pub(crate) enum Traces {}

/// Refuses to send traces, which the environment variable `asked` requests.
///
/// # Errors
/// [`TracesError`], always.
pub(crate) fn start(asked: &'static str, _: &Handle) -> Result<(Identity, Traces), TracesError> {
    Err(TRACES.not_built(asked))
}
