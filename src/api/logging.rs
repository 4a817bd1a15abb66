//! (pure) The logging configuration of the Java VM-Operator, in the syntax of Java properties.
//!
//! The line `.level=…` sets the log level of the whole program. All other lines configure loggers of the Java program and
//! have no effect.

/// File name of the logging configuration in the ConfigMaps of the operator and of VMs.
pub const FILE: &str = "logging.properties";

/// The log level, if a line sets it, and the lines without effect. The last line with a level has precedence, as in Java.
#[must_use]
pub fn level(properties: &str) -> (Option<&'static str>, Vec<&str>) {
    let (mut level, mut others) = (None, Vec::new());
    for line in properties.lines().map(str::trim) {
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        let (key, value) = line.split_once(['=', ':', ' ', '\t']).unwrap_or((line, ""));
        let value = value.trim_start_matches([' ', '\t', '=', ':']);
        match from_java(value).filter(|_| key.trim() == ".level") {
            Some(known) => level = Some(known),
            None => others.push(line),
        }
    }
    (level, others)
}

/// The log level that corresponds to a level of Java. The lowest level is `error`, which `OFF` maps to.
fn from_java(level: &str) -> Option<&'static str> {
    match level {
        "OFF" | "SEVERE" => Some("error"),
        "WARNING" => Some("warn"),
        "INFO" => Some("info"),
        "CONFIG" | "FINE" => Some("debug"),
        "FINER" | "FINEST" | "ALL" => Some("trace"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_level_is_parsed_and_other_lines_are_returned() {
        for (text, wanted) in [
            ("", None),
            (".level=FINE", Some("debug")),
            (".level = WARNING\n", Some("warn")),
            (".level:SEVERE", Some("error")),
            (".level=FINEST\n.level=INFO", Some("info")),
            ("# .level=FINE\n! .level=FINE", None),
        ] {
            assert_eq!(level(text), (wanted, vec![]), "{text:?}");
        }
        let text = "handlers=java.util.logging.ConsoleHandler\n.level=FINE\norg.jgrapes.level=FINER\n.level=LOUD";
        assert_eq!(level(text).0, Some("debug"));
        let others = [
            "handlers=java.util.logging.ConsoleHandler",
            "org.jgrapes.level=FINER",
            ".level=LOUD",
        ];
        assert_eq!(level(text).1, others);
    }
}
