//! Metrics of the console, in the OpenMetrics format. They are not those of controllers.

use crate::api::runner::viewer::Function;
use jiff::Timestamp;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The result of a login or an action without an error. Others are the reasons that the page gets.
pub const DONE: &str = "Done";

type Labels<const N: usize> = [(&'static str, &'static str); N];

/// The metrics of the console.
pub struct WebMetrics {
    registry: Registry,
    logins: Family<Labels<1>, Counter>,
    actions: Family<Labels<2>, Counter>,
    live: Gauge,
    consoles: Family<Labels<1>, Gauge>,
    settings_valid: Family<Labels<1>, Gauge>,
    last_news: Gauge,
}

impl Default for WebMetrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("vm_web");
        let (logins, actions) = (Family::default(), Family::default());
        let (live, consoles) = (Gauge::default(), Family::default());
        let (settings_valid, last_news) = (Family::default(), Gauge::default());
        let help = "Logins, by result: Done, or the reason of the rejection";
        registry.register("logins", help, Family::clone(&logins));
        let help = "Actions of users on VMs and pools, by action and result: Done, or the reason of the rejection";
        registry.register("actions", help, Family::clone(&actions));
        let help = "Open pages with the list of VMs";
        registry.register("live_lists", help, live.clone());
        let help = "Open screens and serial consoles, by function";
        registry.register("consoles", help, Family::clone(&consoles));
        let help = "Configuration: 1 if the newest version of the file is in use, 0 if the file cannot be used and the console \
                    continues with the previous configuration";
        registry.register("settings_valid", help, Family::clone(&settings_valid));
        let help = "Time of the last answer of the API server to the console, in seconds since 1970; without changes, the console sends a request every 10 s";
        registry.register("last_news_timestamp_seconds", help, last_news.clone());
        Self {
            registry,
            logins,
            actions,
            live,
            consoles,
            settings_valid,
            last_news,
        }
    }
}

impl WebMetrics {
    /// Counts a login. The result is [`DONE`], or the reason of the rejection.
    pub fn login(&self, result: &'static str) {
        self.logins.get_or_create(&[("result", result)]).inc();
    }

    /// Counts an action. The result is [`DONE`], or the reason of the rejection.
    pub fn action(&self, action: &'static str, result: &'static str) {
        let labels = [("action", action), ("result", result)];
        self.actions.get_or_create(&labels).inc();
    }

    /// Counts a console as long as the returned value exists.
    #[must_use]
    pub fn open_console(&self, function: Function) -> OpenConsole {
        let labels = [("function", function.into())];
        let consoles = self.consoles.get_or_create_owned(&labels);
        consoles.inc();
        OpenConsole(consoles)
    }

    /// The gauge of a configuration file that is in use.
    #[must_use]
    pub fn settings_valid(&self, file: &'static str) -> Gauge {
        let gauge = self.settings_valid.get_or_create_owned(&[("file", file)]);
        gauge.set(1);
        gauge
    }

    /// The text of `/metrics`, with this number of open lists and the time of the last news of the API server.
    #[must_use]
    pub fn text(&self, live: usize, last_news: Timestamp) -> String {
        self.last_news.set(last_news.as_second());
        self.live.set(i64::try_from(live).unwrap_or(i64::MAX));
        let mut text = String::new();
        // Writing into a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// An open console.
pub struct OpenConsole(Gauge);

impl Drop for OpenConsole {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consoles_are_counted_as_long_as_they_are_open() {
        let metrics = WebMetrics::default();
        let open = metrics.open_console(Function::Screen);
        let line = |count: u8| format!("vm_web_consoles{{function=\"Screen\"}} {count}\n");
        assert!(
            metrics.text(0, Timestamp::UNIX_EPOCH).contains(&line(1)),
            "{}",
            metrics.text(0, Timestamp::UNIX_EPOCH)
        );
        drop(open);
        assert!(metrics.text(0, Timestamp::UNIX_EPOCH).contains(&line(0)));
    }

    #[test]
    fn reference_of_the_console_lists_each_metric() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/web/reference.md");
        let page = std::fs::read_to_string(page).unwrap();
        // A metric with labels is served only with a sample.
        let metrics = WebMetrics::default();
        metrics.login(DONE);
        metrics.action("start", DONE);
        drop(metrics.open_console(Function::Screen));
        drop(metrics.settings_valid("config.yaml"));
        let text = metrics.text(0, Timestamp::UNIX_EPOCH);
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let mut count = 0;
        for (name, kind) in types.map(|line| line.split_once(' ').unwrap()) {
            let end = if kind == "counter" { "_total" } else { "" };
            assert!(page.contains(&format!("| `{name}{end}` |")), "{name}");
            count += 1;
        }
        assert_eq!(count, 6);
    }
}
