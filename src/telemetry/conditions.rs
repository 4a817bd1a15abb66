//! The metric of the conditions of all VMs. It is computed for each scrape, because stored samples would take much memory.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

/// Labels of a sample: namespace, name, type and status.
pub type ConditionLabels<'a> = [(&'static str, &'a str); 4];

/// Calls its argument for each condition.
type Source = Box<dyn Fn(&mut dyn FnMut(&ConditionLabels<'_>)) + Send + Sync>;

/// The conditions of all VMs.
#[derive(Clone, Default)]
pub struct ConditionMetric(Arc<RwLock<Option<Source>>>);

impl ConditionMetric {
    /// Sets the source of the samples. It replaces the previous one, which belongs to a previous configuration.
    pub fn set_source(
        &self,
        source: impl Fn(&mut dyn FnMut(&ConditionLabels<'_>)) + Send + Sync + 'static,
    ) {
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        *current = Some(Box::new(source));
    }
}

impl fmt::Debug for ConditionMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConditionMetric")
    }
}

impl Collector for ConditionMetric {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let help = "1 for each condition of each VM, by its status; Accelerated is left out if emulation is configured";
        let mut metric =
            encoder.encode_descriptor("vm_condition", help, None, MetricType::Gauge)?;
        let mut result = Ok(());
        let mut sample = |labels: &ConditionLabels<'_>| {
            let encoded = metric
                .encode_family(labels)
                .and_then(|encoder| ConstGauge::new(1_i64).encode(encoder));
            if encoded.is_err() {
                result = encoded;
            }
        };
        let source = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(source) = source.as_ref() {
            source(&mut sample);
        }
        result
    }
}
