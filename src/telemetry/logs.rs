//! The log: its form, and its level.

use crate::api::logging;
use crate::api::vm::names;
use clap::ValueEnum;
use std::path::Path;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

/// The form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Lines for people.
    Text,
    /// An object per line, for collectors.
    Json,
}

/// The level of the log, which can change.
pub struct LogLevel {
    default: LevelFilter,
    handle: reload::Handle<LevelFilter, Registry>,
}

impl LogLevel {
    /// A level, and the filter that it is the level of.
    #[must_use]
    pub fn new(default: LevelFilter) -> (reload::Layer<LevelFilter, Registry>, Self) {
        let (filter, handle) = reload::Layer::new(default);
        (filter, Self { default, handle })
    }

    /// Sets the level of the line `.level` in the file `logging.properties` beside that file, else the default.
    pub fn follow(&self, config: &Path) {
        let properties =
            std::fs::read_to_string(config.with_file_name(names::LOGGING_FILE)).unwrap_or_default();
        let level = logging::level(&properties)
            .0
            .and_then(|level| level.parse().ok())
            .unwrap_or(self.default);
        if self
            .handle
            .clone_current()
            .is_some_and(|current| current != level)
        {
            // It fails only in a process that has no log any more.
            let _ = self.handle.reload(level);
            tracing::info!(%level, "the level of the log has changed");
        }
    }
}

/// Writes the log of this process to its standard error.
#[must_use]
pub fn begin(format: Format, default: LevelFilter) -> LogLevel {
    let (filter, level) = LogLevel::new(default);
    let layer = match format {
        Format::Text => fmt::layer()
            .with_ansi(false)
            .with_writer(std::io::stderr)
            .boxed(),
        Format::Json => json(std::io::stderr),
    };
    tracing_subscriber::registry()
        .with(layer.with_filter(filter))
        .init();
    level
}

/// An object per line. Lines of a reconcile have its VM and its id in `span`.
fn json<W>(writer: W) -> Box<dyn Layer<Registry> + Send + Sync>
where
    W: for<'a> fmt::MakeWriter<'a> + Send + Sync + 'static,
{
    fmt::layer()
        .json()
        .flatten_event(true)
        .with_span_list(false)
        .with_writer(writer)
        .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    #[test]
    fn the_level_follows_the_file_beside_the_configuration_and_returns_to_the_default() {
        let dir = tempfile::tempdir().unwrap();
        let (_filter, level) = LogLevel::new(LevelFilter::INFO);
        for (properties, expected) in [
            (".level=FINE", LevelFilter::DEBUG),
            (".level=LOUD", LevelFilter::INFO),
            ("handlers=a\n.level = WARNING", LevelFilter::WARN),
            ("x=y", LevelFilter::INFO),
        ] {
            std::fs::write(dir.path().join("logging.properties"), properties).unwrap();
            level.follow(&dir.path().join("config.yaml"));
            assert_eq!(level.handle.clone_current(), Some(expected), "{properties}");
        }
        level.follow(Path::new("/nowhere/config.yaml"));
        assert_eq!(level.handle.clone_current(), Some(LevelFilter::INFO));
    }

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn each_line_of_a_reconcile_has_its_id_and_a_changed_level_holds_at_once() {
        let lines = Lines::default();
        let writer = lines.clone();
        let (filter, handle) = reload::Layer::new(LevelFilter::INFO);
        let subscriber =
            tracing_subscriber::registry().with(json(move || writer.clone()).with_filter(filter));
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::error_span!("reconcile", vm = "a", id = "0f");
            span.in_scope(|| tracing::info!(size = 3, "done"));
            tracing::debug!("not told");
            handle.reload(LevelFilter::DEBUG).unwrap();
            tracing::debug!("told");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert_eq!(
            (&lines[0]["message"], &lines[0]["size"], &lines[0]["level"]),
            (&"done".into(), &3.into(), &"INFO".into())
        );
        assert_eq!(
            (&lines[0]["span"]["vm"], &lines[0]["span"]["id"]),
            (&"a".into(), &"0f".into())
        );
        assert_eq!(lines[1]["message"], "told");
    }
}
