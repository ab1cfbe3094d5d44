//! Traces over OTLP, as `http/protobuf`: requests and their transactions. They are configured by the standard
//! environment variables (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER`, `OTEL_BSP_*` and
//! so on).

use std::{env, time::Duration};

use async_trait::async_trait;
use flatbed_http::ContinueTrace;
use flatbed_layer::TRACE_TARGET;
use opentelemetry::{Key, propagation::TextMapPropagator, trace::TracerProvider};
use opentelemetry_http::{Bytes, HeaderExtractor, HttpClient, HttpError, Request, Response, hyper::HyperClient};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithHttpConfig};
use opentelemetry_sdk::{Resource, propagation::TraceContextPropagator, trace::SdkTracerProvider};
use tokio::runtime::Handle;
use tracing::{Span, Subscriber, level_filters::LevelFilter};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::{filter::Targets, layer::Layer, registry::LookupSpan};

/// The time limit for sending, whatever `OTEL_EXPORTER_OTLP_TIMEOUT` allows. Spans that cannot be sent are dropped.
const SEND_MAX: Duration = Duration::from_secs(10);

/// Makes a request's span part of the trace that the request names.
pub(crate) const CONTINUE_TRACE: Option<ContinueTrace> = Some(continue_trace);

/// The reason why traces cannot be sent. Each message stands alone and says what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TracesError {
    /// The endpoint needs TLS.
    #[error("{0}: there is no TLS in this program; give a collector on this machine, with http://")]
    Tls(&'static str),
    /// An environment variable is invalid.
    #[error("traces cannot be sent: {0}")]
    Exporter(#[from] ExporterBuildError),
}

/// Sends the remaining spans when it is dropped, which must not happen on one of Tokio's threads.
pub(crate) struct Traces(SdkTracerProvider);

impl Drop for Traces {
    fn drop(&mut self) {
        if let Err(error) = self.0.shutdown() {
            tracing::warn!(%error, "the last traces could not be sent");
        }
    }
}

/// Starts to collect spans, as the environment variable `asked` requests. Tasks of `runtime` send them.
///
/// # Errors
/// [`TracesError`].
pub(crate) fn start<S>(asked: &'static str, runtime: &Handle) -> Result<(impl Layer<S> + use<S>, Traces), TracesError>
where
    S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
{
    if env::var(asked).is_ok_and(|url| url.trim().starts_with("https:")) {
        return Err(TracesError::Tls(asked));
    }
    let client =
        RuntimeClient { client: HyperClient::with_default_connector(SEND_MAX, None), runtime: runtime.clone() };
    let exporter = SpanExporter::builder().with_http().with_http_client(client).build()?;
    let mut resource = Resource::builder().build();
    let name = resource.get(&Key::from_static_str("service.name"));
    if name.is_none_or(|name| name.as_str().starts_with("unknown_service")) {
        resource = Resource::builder().with_service_name("flatbed").build();
    }
    let provider = SdkTracerProvider::builder().with_resource(resource).with_batch_exporter(exporter).build();
    let layer = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("flatbed"))
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        .with_filter(Targets::new().with_target(TRACE_TARGET, LevelFilter::INFO));
    Ok((layer, Traces(provider)))
}

/// Makes a request's span part of the trace that its `traceparent` names, if it has one.
fn continue_trace(span: &Span, headers: &hyper::HeaderMap) {
    if headers.contains_key("traceparent") {
        let parent = TraceContextPropagator::new().extract(&HeaderExtractor(headers));
        // It fails for a span without a subscriber.
        let _ = span.set_parent(parent);
    }
}

/// Runs the SDK's requests on the runtime: the SDK sends from a thread of its own, outside of Tokio.
#[derive(Debug)]
struct RuntimeClient {
    client: HyperClient,
    runtime: Handle,
}

#[async_trait]
impl HttpClient for RuntimeClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        self.runtime.spawn(async move { client.send_bytes(request).await }).await?
    }
}
