//! (pure) Logging as the reference configures it, in Java's properties syntax: what of it has a meaning here.
//!
//! The line `.level=…` sets the level of the whole runner. Handlers, formats and levels of single loggers are about a
//! program that is not here.

/// The level that the lines give, if they do, and the lines without effect. The last level counts, as in Java.
#[must_use]
pub fn level(properties: &str) -> (Option<&'static str>, Vec<&str>) {
    let (mut level, mut others) = (None, Vec::new());
    for line in properties.lines().map(str::trim) {
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        let (key, value) = line.split_once(['=', ':', ' ', '\t']).unwrap_or((line, ""));
        let value = value.trim_start_matches([' ', '\t', '=', ':']);
        match of_java(value).filter(|_| key.trim() == ".level") {
            Some(known) => level = Some(known),
            None => others.push(line),
        }
    }
    (level, others)
}

/// What one of Java's levels is here. Nothing is quieter than errors.
fn of_java(level: &str) -> Option<&'static str> {
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
    fn the_level_of_everything_is_read_and_the_rest_is_named() {
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
