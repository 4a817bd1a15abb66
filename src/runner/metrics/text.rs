//! (pure) Samples, as Prometheus reads them.

use crate::api::vm_metrics::{self, Figure};
use std::fmt::Write;

/// Text in the making: each metric's samples stand together.
pub struct Text {
    common: String,
    text: String,
}

impl Text {
    /// A text whose samples all have these labels.
    pub fn new(common: &[(&str, &str)]) -> Self {
        Self { common: labels(common), text: String::new() }
    }

    /// Samples of one of the [figures](vm_metrics::ALL); of none, where there are none.
    pub fn samples(&mut self, name: &str, samples: &[(Vec<(&str, String)>, f64)]) {
        let Some(Figure { name, kind, what, .. }) = vm_metrics::figure(name).filter(|_| !samples.is_empty()) else {
            return;
        };
        // Writing to a string cannot fail.
        let _ = write!(self.text, "# HELP {name} {what}\n# TYPE {name} {}\n", kind.as_str());
        for (own, value) in samples {
            let own: Vec<(&str, &str)> = own.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let own = labels(&own);
            let comma = if own.is_empty() || self.common.is_empty() { "" } else { "," };
            let _ = writeln!(self.text, "{name}{{{}{comma}{own}}} {value}", self.common);
        }
    }

    /// The text.
    pub fn finish(self) -> String {
        self.text
    }
}

/// One value without labels of its own.
pub fn one(value: Option<f64>) -> Vec<(Vec<(&'static str, String)>, f64)> {
    value.map(|value| (Vec::new(), value)).into_iter().collect()
}

fn labels(labels: &[(&str, &str)]) -> String {
    let label = |(name, value): &(&str, &str)| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("{name}=\"{value}\"")
    };
    labels.iter().map(label).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_all_labels_and_what_is_unknown_is_left_out() {
        let mut text = Text::new(&[("name", "a\"b"), ("namespace", "n")]);
        text.samples("kubevirt_vmi_storage_iops_read_total", &[(vec![("drive", "/dev/x".to_owned())], 3.0)]);
        text.samples("vmoperator_accelerated", &one(Some(0.5)));
        text.samples("vmoperator_qemu_answers", &one(None));
        let expected = "# HELP kubevirt_vmi_storage_iops_read_total Reads.\n\
                        # TYPE kubevirt_vmi_storage_iops_read_total counter\n\
                        kubevirt_vmi_storage_iops_read_total{name=\"a\\\"b\",namespace=\"n\",drive=\"/dev/x\"} 3\n\
                        # HELP vmoperator_accelerated 1 if the processor runs the guest, 0 if it is emulated.\n\
                        # TYPE vmoperator_accelerated gauge\nvmoperator_accelerated{name=\"a\\\"b\",namespace=\"n\"} 0.5\n";
        assert_eq!(text.finish(), expected);
    }
}
