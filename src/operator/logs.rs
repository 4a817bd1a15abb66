//! The operator's log: its form, and its level, which follows the ConfigMap while the operator runs.

use clap::ValueEnum;
use std::sync::{Mutex, PoisonError};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

/// How the log looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Lines for people.
    Text,
    /// An object a line, for collectors.
    Json,
}

/// Sets the level of a log that is written already.
type Set = Box<dyn Fn(LevelFilter) + Send + Sync>;

/// The level of the log.
pub struct LogLevel {
    set: Set,
    /// What holds where the ConfigMap says nothing.
    default: LevelFilter,
    current: Mutex<LevelFilter>,
}

impl LogLevel {
    /// A level that is told to `set` when it changes.
    #[must_use]
    pub fn new(default: LevelFilter, set: Set) -> Self {
        Self { set, default, current: Mutex::new(default) }
    }

    /// Takes in the ConfigMap's `logging.properties`.
    pub fn follow(&self, properties: Option<&str>) {
        let wanted = properties.and_then(level).unwrap_or(self.default);
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if *current != wanted {
            *current = wanted;
            (self.set)(wanted);
            tracing::info!(level = %wanted, "the log has another level");
        }
    }
}

impl Default for LogLevel {
    /// Of an operator that writes no log of its own.
    fn default() -> Self {
        Self::new(LevelFilter::INFO, Box::new(|_| {}))
    }
}

/// Writes the log of this process to its standard error.
#[must_use]
pub fn begin(format: Format, level: LevelFilter) -> LogLevel {
    let (filter, handle) = reload::Layer::new(level);
    let layer = match format {
        Format::Text => fmt::layer().with_ansi(false).with_writer(std::io::stderr).boxed(),
        Format::Json => json(std::io::stderr),
    };
    tracing_subscriber::registry().with(layer.with_filter(filter)).init();
    // It fails when the process has no log any more.
    LogLevel::new(level, Box::new(move |level| drop(handle.reload(level))))
}

/// An object a line. What a reconcile says has its VM and its id under `span`.
fn json<W>(writer: W) -> Box<dyn Layer<Registry> + Send + Sync>
where
    W: for<'a> fmt::MakeWriter<'a> + Send + Sync + 'static,
{
    fmt::layer().json().flatten_event(true).with_span_list(false).with_writer(writer).boxed()
}

/// The level that a properties file of Java's logging gives to everything: `.level=FINE`. None if it says nothing of it.
fn level(properties: &str) -> Option<LevelFilter> {
    let lines = properties.lines().rev().filter_map(|line| line.split_once('='));
    let (_, value) = lines.into_iter().find(|(key, _)| key.trim() == ".level")?;
    match value.trim() {
        "OFF" => Some(LevelFilter::OFF),
        "SEVERE" => Some(LevelFilter::ERROR),
        "WARNING" => Some(LevelFilter::WARN),
        "INFO" => Some(LevelFilter::INFO),
        "CONFIG" | "FINE" => Some(LevelFilter::DEBUG),
        "FINER" | "FINEST" | "ALL" => Some(LevelFilter::TRACE),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::io::Write;
    use std::sync::Arc;

    #[test]
    fn the_level_is_that_of_the_references_file() {
        let of_reference = "handlers=java.util.logging.ConsoleHandler\n.level = FINE\norg.jdrupes.level=FINEST\n";
        for (properties, expected) in [
            (of_reference, Some(LevelFilter::DEBUG)),
            (".level=WARNING", Some(LevelFilter::WARN)),
            (".level=FINER\n.level=INFO", Some(LevelFilter::INFO)),
            (".level=LOUD", None),
            ("#.level=ALL\nx=y", None),
        ] {
            assert_eq!(level(properties), expected, "{properties}");
        }
    }

    #[test]
    fn the_level_changes_only_where_it_is_another_and_falls_back_to_the_default() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let level = LogLevel::new(LevelFilter::INFO, {
            let told = told.clone();
            Box::new(move |level| told.lock().unwrap().push(level))
        });
        for properties in [Some("x=y"), Some(".level=FINE"), Some(".level=FINE"), None] {
            level.follow(properties);
        }
        assert_eq!(*told.lock().unwrap(), [LevelFilter::DEBUG, LevelFilter::INFO]);
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
        let subscriber = tracing_subscriber::registry().with(json(move || writer.clone()).with_filter(filter));
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::error_span!("reconcile", vm = "a", id = "0f");
            span.in_scope(|| tracing::info!(size = 3, "done"));
            tracing::debug!("not told");
            handle.reload(LevelFilter::DEBUG).unwrap();
            tracing::debug!("told");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert_eq!(
            (&lines[0]["message"], &lines[0]["size"], &lines[0]["level"]),
            (&"done".into(), &3.into(), &"INFO".into())
        );
        assert_eq!((&lines[0]["span"]["vm"], &lines[0]["span"]["id"]), (&"a".into(), &"0f".into()));
        assert_eq!(lines[1]["message"], "told");
    }
}
