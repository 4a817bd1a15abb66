//! The log: format and level.

use crate::api::logging;
use clap::ValueEnum;
use std::path::Path;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

/// The format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Plain text.
    Text,
    /// One JSON object per line, for log collectors.
    Json,
}

/// The options of a log whose level can change at run time.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Log level: error, warn, info, debug or trace; overridden by .level in the file logging.properties, which is in the
    /// directory of the configuration file
    #[arg(long, default_value = "info")]
    log_level: LevelFilter,
    /// Log format: plain text, or one JSON object per line
    #[arg(long, value_enum, default_value = "text")]
    log_format: Format,
}

impl Options {
    /// Starts the log of this process.
    #[must_use]
    pub fn begin(&self) -> LogLevel {
        begin(self.log_format, self.log_level)
    }
}

/// The log level, which can change at run time.
pub struct LogLevel {
    default: LevelFilter,
    handle: reload::Handle<LevelFilter, Registry>,
}

impl LogLevel {
    /// Creates a filter for log lines, and the handle of its level.
    #[must_use]
    pub fn new(default: LevelFilter) -> (reload::Layer<LevelFilter, Registry>, Self) {
        let (filter, handle) = reload::Layer::new(default);
        (filter, Self { default, handle })
    }

    /// Sets the level of the line `.level` in `logging.properties`, in the directory of the file `config`. Without such a line,
    /// it sets the default.
    pub fn follow(&self, config: &Path) {
        let properties =
            std::fs::read_to_string(config.with_file_name(logging::FILE)).unwrap_or_default();
        let level = logging::level(&properties)
            .0
            .and_then(|level| level.parse().ok())
            .unwrap_or(self.default);
        let Some(current) = self.handle.clone_current().filter(|it| *it != level) else {
            return;
        };
        // The more verbose of both levels lets the next line pass. `reload` fails only if the log no longer exists.
        let _ = self.handle.reload(level.max(current));
        tracing::info!("the log level changes from {current} to {level}");
        let _ = self.handle.reload(level);
    }
}

/// Starts the log of this process, which goes to standard error.
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

/// The layer that writes one JSON object per line. Lines of a reconcile have its VM and its id in `span`.
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

    /// The lines that `work` logs through this filter, as JSON.
    fn logged(filter: reload::Layer<LevelFilter, Registry>, work: impl FnOnce()) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber =
            tracing_subscriber::registry().with(json(move || writer.clone()).with_filter(filter));
        tracing::subscriber::with_default(subscriber, work);
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn each_line_of_a_reconcile_has_its_id_and_a_changed_level_takes_effect_immediately() {
        let (filter, handle) = reload::Layer::new(LevelFilter::INFO);
        let text = logged(filter, || {
            let span = tracing::error_span!("reconcile", vm = "a", id = "0f");
            span.in_scope(|| tracing::info!(size = 3, "done"));
            tracing::debug!("below the level");
            handle.reload(LevelFilter::DEBUG).unwrap();
            tracing::debug!("above the level");
        });
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
        assert_eq!(lines[1]["message"], "above the level");
    }

    #[test]
    fn change_to_a_level_that_hides_the_line_about_it_is_logged() {
        let dir = tempfile::tempdir().unwrap();
        let (filter, level) = LogLevel::new(LevelFilter::INFO);
        let text = logged(filter, || {
            for properties in [".level=WARNING", ".level=INFO"] {
                std::fs::write(dir.path().join("logging.properties"), properties).unwrap();
                level.follow(&dir.path().join("config.yaml"));
            }
        });
        assert!(text.contains("from info to warn"), "{text}");
        assert!(text.contains("from warn to info"), "{text}");
    }
}
