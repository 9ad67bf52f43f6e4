//! What is logged: `TIDEGATE_LOG` says how much of our own, and dependencies are heard from `info` on.
//!
//! A database driver tells every statement with its parameters at `debug`: events' data and sealed values. So nobody but us
//! is heard below `info`, whatever the variable says.
//! Promises: no data of an event and no secret is in a log at any level.

use std::io::IsTerminal;

use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::settings::LogFormat;

/// What is logged when nothing is said about it.
const USUAL: &str = "info,tokio_postgres=warn";
/// How the names of our own crates begin.
const OWN: &str = "tidegate";

/// Logs to standard error from now on.
pub(super) fn start(format: LogFormat) {
    let filter = EnvFilter::try_from_env("TIDEGATE_LOG").unwrap_or_else(|_| EnvFilter::new(USUAL));
    // A second server in one process, as in tests, logs through the first one's subscriber.
    let _ = match format {
        LogFormat::Text => text(filter, std::io::stderr).try_init(),
        LogFormat::Json => json(filter, std::io::stderr).try_init(),
    };
}

fn text<W: Writer>(filter: EnvFilter, writer: W) -> impl Subscriber + Send + Sync {
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    tracing_subscriber::registry().with(filter).with(filter_fn(may_be_heard)).with(lines)
}

fn json<W: Writer>(filter: EnvFilter, writer: W) -> impl Subscriber + Send + Sync {
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).json().flatten_event(true);
    tracing_subscriber::registry().with(filter).with(filter_fn(may_be_heard)).with(lines)
}

/// Where lines go.
trait Writer: for<'w> MakeWriter<'w> + Send + Sync + 'static {}

impl<W: for<'w> MakeWriter<'w> + Send + Sync + 'static> Writer for W {}

fn may_be_heard(metadata: &Metadata<'_>) -> bool {
    *metadata.level() <= Level::INFO || metadata.target().starts_with(OWN)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is logged of what we and a driver say at every level.
    fn logged(format: LogFormat, filter: &str) -> String {
        let lines = Lines::default();
        let (filter, into) = (EnvFilter::new(filter), lines.clone());
        let writer = move || into.clone();
        let speak = || {
            tracing::trace!("own trace");
            tracing::debug!("own debug");
            tracing::trace!(target: "tokio_postgres::query", "driver trace LEAK");
            tracing::debug!(target: "tokio_postgres::query", "driver debug LEAK");
            tracing::info!(target: "tokio_postgres::connection", "driver info");
            tracing::warn!(target: "hyper", "driver warning");
        };
        match format {
            LogFormat::Text => tracing::subscriber::with_default(text(filter, writer), speak),
            LogFormat::Json => tracing::subscriber::with_default(json(filter, writer), speak),
        }
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn no_filter_makes_a_dependency_tell_what_it_works_on() {
        for format in [LogFormat::Text, LogFormat::Json] {
            for filter in ["trace", "debug,tokio_postgres=trace", "tokio_postgres::query=debug,trace"] {
                let log = logged(format, filter);
                assert!(!log.contains("LEAK"), "{filter}: {log}");
                assert!(log.contains("own debug") && log.contains("driver warning"), "{filter}: {log}");
            }
            assert!(!logged(format, USUAL).contains("driver info"));
            assert!(logged(format, "info").contains("driver info"));
        }
    }
}
