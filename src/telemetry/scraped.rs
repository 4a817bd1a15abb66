//! Metrics of single objects. They are computed for each scrape, because stored samples would take much memory.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

/// Labels of a sample.
pub type Labels<'a> = &'a [(&'static str, &'a str)];

/// Calls its argument for each sample.
type Source = Box<dyn Fn(&mut dyn FnMut(Labels<'_>, i64)) + Send + Sync>;

/// A gauge with a source of samples. Clones share the source.
#[derive(Clone)]
pub struct ScrapedGauge(Arc<Inner>);

struct Inner {
    name: &'static str,
    help: &'static str,
    source: RwLock<Option<Source>>,
}

impl ScrapedGauge {
    /// A gauge without a source.
    #[must_use]
    pub fn new(name: &'static str, help: &'static str) -> Self {
        let source = RwLock::default();
        Self(Arc::new(Inner { name, help, source }))
    }

    /// Sets the source of the samples. It replaces the previous one, which belongs to a previous configuration.
    pub fn set_source(
        &self,
        source: impl Fn(&mut dyn FnMut(Labels<'_>, i64)) + Send + Sync + 'static,
    ) {
        let mut current = self
            .0
            .source
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *current = Some(Box::new(source));
    }
}

impl fmt::Debug for ScrapedGauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name)
    }
}

impl Collector for ScrapedGauge {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let Inner { name, help, source } = &*self.0;
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        let mut result = Ok(());
        let mut sample = |labels: Labels<'_>, value: i64| {
            let encoded = metric
                .encode_family(&labels)
                .and_then(|encoder| ConstGauge::new(value).encode(encoder));
            if encoded.is_err() {
                result = encoded;
            }
        };
        let source = source.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(source) = source.as_ref() {
            source(&mut sample);
        }
        result
    }
}
