//! (pure) Samples, as Prometheus reads them.

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

    /// A metric that only grows.
    pub fn counter(&mut self, name: &str, help: &str, samples: &[(Vec<(&str, String)>, f64)]) {
        self.metric(name, help, "counter", samples);
    }

    /// A metric that goes up and down.
    pub fn gauge(&mut self, name: &str, help: &str, samples: &[(Vec<(&str, String)>, f64)]) {
        self.metric(name, help, "gauge", samples);
    }

    fn metric(&mut self, name: &str, help: &str, kind: &str, samples: &[(Vec<(&str, String)>, f64)]) {
        if samples.is_empty() {
            return;
        }
        // Writing to a string cannot fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
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
        text.counter("bytes_total", "Bytes.", &[(vec![("drive", "/dev/x".to_owned())], 3.0)]);
        text.gauge("up", "Up.", &one(Some(0.5)));
        text.gauge("unknown", "Unknown.", &one(None));
        let expected = "# HELP bytes_total Bytes.\n# TYPE bytes_total counter\n\
                        bytes_total{name=\"a\\\"b\",namespace=\"n\",drive=\"/dev/x\"} 3\n\
                        # HELP up Up.\n# TYPE up gauge\nup{name=\"a\\\"b\",namespace=\"n\"} 0.5\n";
        assert_eq!(text.finish(), expected);
    }
}
