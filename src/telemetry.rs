//! Logs: for people on a terminal, as JSON otherwise. They go to standard error; standard output is for answers. And, in a program
//! built with the feature `otlp`, the spans of requests for a collector.
//!
//! Keeps I6 and I13 by what is never logged in the first place; here only the noise of libraries is held back, which might quote
//! statements or requests.

use std::io::IsTerminal as _;

use tracing::Span;
use tracing_subscriber::layer::{Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry};

use crate::config::LogFormat;

#[cfg(feature = "otlp")]
mod traces;

/// What libraries say of their own business. A filter that names them beats this.
const QUIET: &str = "sqlx=warn,hyper=warn,hyper_util=warn,h2=warn,tower=warn,tower_http=warn,tokio_postgres=warn,\
                     tokio_util=warn,mio=warn,refinery_core=warn,refinery=warn,reqwest=warn";

type AnyLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// What must be kept as long as there is anything to tell. Dropped, it hands in what the collector has not had yet; that takes time,
/// and must not be done on a thread of the runtime's.
#[derive(Debug)]
#[must_use]
pub struct Telemetry {
    #[cfg(feature = "otlp")]
    _export: Option<traces::Export>,
}

/// Starts logging, once in a process; later calls change nothing. With a collector's URL, spans are exported to it.
///
/// # Errors
/// An exporter that cannot be made.
pub fn init(filter: &str, format: LogFormat, collector: Option<&str>) -> Result<Telemetry, String> {
    let human = match format {
        LogFormat::Auto => std::io::stderr().is_terminal(),
        LogFormat::Human => true,
        LogFormat::Json => false,
    };
    // Where a line of the log cannot be written, nor can word of that; trying would panic.
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).log_internal_errors(false);
    let log: AnyLayer = if human {
        log.with_ansi(std::io::stderr().is_terminal()).with_target(false).with_filter(self::filter(filter)).boxed()
    } else {
        log.json().flatten_event(true).with_current_span(false).with_filter(self::filter(filter)).boxed()
    };
    #[cfg(feature = "otlp")]
    let (layers, telemetry) = match collector {
        Some(url) => {
            let (layer, export) = traces::start(url)?;
            (vec![log, layer], Telemetry { _export: Some(export) })
        }
        None => (vec![log], Telemetry { _export: None }),
    };
    #[cfg(not(feature = "otlp"))]
    let (layers, telemetry) = (vec![log], Telemetry {});
    let started = tracing_subscriber::registry().with(layers).try_init();
    // Only a test binary starts it twice.
    if let Err(error) = started {
        tracing::debug!(%error, "logging was started before");
    }
    if cfg!(not(feature = "otlp")) && collector.is_some() {
        tracing::warn!("a collector of spans is set, but this program was built without the feature otlp");
    }
    Ok(telemetry)
}

/// A caller's place in its trace, from `traceparent` (W3C Trace Context).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller<'a> {
    /// 32 hexadecimal digits.
    pub trace_id: &'a str,
    /// 16 hexadecimal digits.
    pub parent_id: &'a str,
    /// Whether the caller records its trace.
    pub sampled: bool,
}

/// Puts a request's span below its caller's. Where spans are exported, one that has no caller begins a trace, and its log lines name it.
#[cfg_attr(not(feature = "otlp"), expect(unused_variables))]
pub(crate) fn place(span: &Span, caller: Option<Caller<'_>>) {
    #[cfg(feature = "otlp")]
    traces::place(span, caller);
}

/// Notes in a request's span, which is the current one, what it was answered.
#[cfg_attr(not(feature = "otlp"), expect(unused_variables))]
pub(crate) fn answered(status: u16, code: Option<&'static str>) {
    #[cfg(feature = "otlp")]
    traces::answered(&Span::current(), status, code);
}

fn filter(filter: &str) -> EnvFilter {
    // The settings have checked the text. Of two directives for one target the later one counts.
    EnvFilter::new(format!("{QUIET},{filter}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_quiet_unless_the_filter_names_them() {
        let quiet = filter("debug").to_string();
        assert!(quiet.contains("sqlx=warn") && quiet.contains("hyper=warn"), "{quiet}");
        let loud = filter("info,sqlx=debug").to_string();
        assert!(loud.contains("sqlx=debug") && !loud.contains("sqlx=warn"), "{loud}");
    }
}
