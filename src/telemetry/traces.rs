//! Spans for a collector: one for each request, in its caller's trace, and below it one for each transaction and each wait for a batch.
//!
//! They are exported in the background, in batches. A collector that is slow or away costs spans, never a request. Sampling, the size of
//! batches and the headers of the export are set by OpenTelemetry's own variables (`OTEL_TRACES_SAMPLER`, `OTEL_BSP_*`,
//! `OTEL_EXPORTER_OTLP_HEADERS`).
//!
//! Keeps I6 and I13: [`shape`] names everything that a span may tell.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceId, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_otlp::{Protocol, SpanExporter as OtlpExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use tracing::{Metadata, Span};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::Layer as _;

use super::{AnyLayer, Caller};

/// A request's span (`http::observe`).
const REQUEST: &str = "request";

/// A transaction's span (`db::stats`).
const TRANSACTION: &str = "transaction";

/// The span of a wait for a batch (`db::group`).
const BATCH: &str = "batch";

/// How long a collector may take to answer one export.
const EXPORT_MAX: Duration = Duration::from_secs(10);

/// How long the last spans may take when the program stops.
const FLUSH_MAX: Duration = Duration::from_secs(3);

/// The exporter. Dropped, it hands in what is left, within [`FLUSH_MAX`].
#[derive(Debug)]
pub(super) struct Export(SdkTracerProvider);

impl Drop for Export {
    fn drop(&mut self) {
        if let Err(error) = self.0.shutdown_with_timeout(FLUSH_MAX) {
            tracing::warn!(%error, "the last spans may not have reached the collector");
        }
    }
}

/// Starts exporting. Not to be called on a thread of the runtime's.
pub(super) fn start(collector: &str) -> Result<(AnyLayer, Export), String> {
    // Its roots are the system's, or those of SSL_CERT_FILE.
    let client = reqwest::blocking::Client::builder()
        .tls_backend_preconfigured(crate::db::client_config(None)?)
        .timeout(EXPORT_MAX)
        .build()
        .map_err(|error| error.to_string())?;
    let exporter = OtlpExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_timeout(EXPORT_MAX)
        .with_protocol(protocol()?)
        .with_endpoint(format!("{collector}/v1/traces"))
        .build()
        .map_err(|error| error.to_string())?;
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(Shaped { exporter, failing: AtomicBool::new(false) })
        .with_resource(resource())
        .build();
    let layer = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("fairledger"))
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_level(false)
        .with_tracked_inactivity(false)
        .with_filter(filter_fn(is_exported));
    Ok((layer.boxed(), Export(provider)))
}

/// That of the standard's variables; its default without them.
fn protocol() -> Result<Protocol, String> {
    for name in ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"] {
        match std::env::var(name).as_deref() {
            Err(_) | Ok("") => {}
            Ok("http/protobuf") => return Ok(Protocol::HttpBinary),
            Ok("http/json") => return Ok(Protocol::HttpJson),
            Ok(_) => return Err(format!("{name} must be http/protobuf or http/json")),
        }
    }
    Ok(Protocol::HttpBinary)
}

/// Who we are, unless the standard's variables say so.
fn resource() -> Resource {
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let named = std::env::var_os("OTEL_SERVICE_NAME").is_some()
        || std::env::var("OTEL_RESOURCE_ATTRIBUTES").is_ok_and(|attributes| attributes.contains("service.name="));
    let resource = Resource::builder().with_attribute(version);
    if named { resource.build() } else { resource.with_service_name("fairledger").build() }
}

/// These and nothing else, and no log line.
fn is_exported(metadata: &Metadata<'_>) -> bool {
    metadata.is_span()
        && metadata.target().starts_with("fairledger")
        && [REQUEST, TRANSACTION, BATCH].contains(&metadata.name())
}

pub(super) fn place(span: &Span, caller: Option<Caller<'_>>) {
    let parent = caller.and_then(|caller| {
        let trace_id = TraceId::from_hex(caller.trace_id).ok()?;
        let span_id = SpanId::from_hex(caller.parent_id).ok()?;
        let flags = if caller.sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
        Some(SpanContext::new(trace_id, span_id, flags, true, Default::default()))
    });
    match parent {
        // Fails only where no spans are exported.
        Some(parent) => drop(span.set_parent(Context::new().with_remote_span_context(parent))),
        None => {
            let context = span.context();
            let began = context.span().span_context().trace_id();
            if began != TraceId::INVALID {
                span.record("trace_id", began.to_string());
            }
        }
    }
}

pub(super) fn answered(span: &Span, status: u16, code: Option<&'static str>) {
    span.set_attribute("status", i64::from(status));
    if let Some(code) = code {
        span.set_attribute("code", code);
    }
}

/// Gives spans the names of OpenTelemetry's conventions before they are exported.
#[derive(Debug)]
struct Shaped<E> {
    exporter: E,
    /// Whether the last export failed: said once, not every few seconds.
    failing: AtomicBool,
}

impl<E: SpanExporter> SpanExporter for Shaped<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let exported = self.exporter.export(batch.into_iter().map(shape).collect()).await;
        match &exported {
            Ok(()) => {
                if self.failing.swap(false, Ordering::Relaxed) {
                    tracing::info!("spans reach the collector again");
                }
            }
            Err(error) => {
                if !self.failing.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%error, spans, "spans do not reach the collector, and are lost");
                }
            }
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// What leaves of a span: its name, its times, its place in the trace, and these attributes.
fn shape(mut span: SpanData) -> SpanData {
    let fields = std::mem::take(&mut span.attributes);
    let value = |name: &str| fields.iter().find(|field| field.key.as_str() == name).map(|field| &field.value);
    let text = |name: &str| value(name).map_or_else(String::new, Value::to_string);
    if span.name == REQUEST {
        span.span_kind = SpanKind::Server;
        span.name = format!("{} {}", text("method"), text("route")).into();
        let attributes = [
            ("method", "http.request.method"),
            ("route", "http.route"),
            ("status", "http.response.status_code"),
            ("code", "error.type"),
            ("request_id", "fairledger.request_id"),
        ];
        let given = |(name, key)| Some(KeyValue::new(key, value(name)?.clone()));
        span.attributes = attributes.into_iter().filter_map(given).collect();
        if matches!(value("status"), Some(Value::I64(500..))) {
            span.status = Status::error(text("code"));
        }
    } else {
        let transaction = span.name == TRANSACTION;
        span.name = text("name").into();
        if transaction {
            span.span_kind = SpanKind::Client;
            span.attributes = vec![KeyValue::new("db.system.name", "postgresql")];
        }
    }
    span
}
