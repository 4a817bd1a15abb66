//! The log of a test.

use tempfile::NamedTempFile;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::{DefaultGuard, set_default};

/// The log of this thread at all levels. All tasks of the test must run on it.
pub struct Log {
    file: NamedTempFile,
    _default: DefaultGuard,
}

impl Log {
    pub fn start() -> Self {
        let file = NamedTempFile::new().unwrap();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(LevelFilter::TRACE)
            .with_ansi(false)
            .with_writer(file.reopen().unwrap());
        Self {
            file,
            _default: set_default(subscriber.finish()),
        }
    }

    pub fn text(&self) -> String {
        std::fs::read_to_string(self.file.path()).unwrap()
    }
}
