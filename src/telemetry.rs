//! Logs: for people on a terminal, as JSON otherwise. They go to standard error; standard output is for answers.
//!
//! Keeps I6 and I13 by what is never logged in the first place; here only the noise of libraries is held back, which might quote
//! statements or requests.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::LogFormat;

/// What libraries say of their own business. A filter that names them beats this.
const QUIET: &str = "sqlx=warn,hyper=warn,hyper_util=warn,h2=warn,tower=warn,tower_http=warn,tokio_postgres=warn,\
                     tokio_util=warn,mio=warn,refinery_core=warn,refinery=warn";

/// Starts logging, once in a process; later calls change nothing.
pub fn init(filter: &str, format: LogFormat) {
    let human = match format {
        LogFormat::Auto => std::io::stderr().is_terminal(),
        LogFormat::Human => true,
        LogFormat::Json => false,
    };
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(self::filter(filter));
    let started = if human {
        let layer = layer.with_ansi(std::io::stderr().is_terminal()).with_target(false);
        registry.with(layer).try_init()
    } else {
        registry.with(layer.json().flatten_event(true).with_current_span(false)).try_init()
    };
    // Only a test binary starts it twice.
    if let Err(error) = started {
        tracing::debug!(%error, "logging was started before");
    }
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
