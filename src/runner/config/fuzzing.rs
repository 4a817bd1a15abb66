//! Fuzz target: the configuration file.

#![allow(clippy::unwrap_used)]

use crate::api::runner::config::ConfigFile;
use crate::runner::config::{ParsedConfig, failure_in_file, parse};
use crate::runner::failure::Invalid;
use crate::runner::spec::Spec;
use std::path::Path;

type Parse = fn(&str) -> Result<ParsedConfig, Invalid>;

/// An accepted file, printed again, is the same configuration. A rejected one has a message of one line with its key.
pub fn check_config(input: &[u8]) {
    check(input, parse);
}

fn check(input: &[u8], parse: Parse) {
    let text = String::from_utf8_lossy(input);
    match parse_and_validate(&text, parse) {
        Err(invalid) => {
            assert!(
                !invalid.key.is_empty() && !invalid.problem.is_empty(),
                "{invalid:?}"
            );
            let message = failure_in_file(Path::new("/config.yaml"), &invalid).message;
            assert!(
                message.starts_with("/config.yaml: ") && message.lines().count() == 1,
                "{message:?}"
            );
        }
        Ok((parsed, spec)) => {
            let printed = serde_json::to_string(&ConfigFile {
                runner: parsed.config.clone(),
            })
            .unwrap();
            let (parsed_again, spec_again) = parse_and_validate(&printed, parse).unwrap();
            assert_eq!(
                (&parsed_again.config, parsed_again.unknown),
                (&parsed.config, Vec::new())
            );
            assert_eq!(spec_again, spec);
            assert!(spec.differs_in_live_only(&spec_again));
            // Any result is valid; it must not panic.
            let _ = crate::runner::seed(&text);
        }
    }
}

/// The two steps of a start and of a reload.
fn parse_and_validate(text: &str, parse: Parse) -> Result<(ParsedConfig, Spec), Invalid> {
    let parsed = parse(text)?;
    let spec = Spec::from_config(&parsed.config)?;
    Ok((parsed, spec))
}

#[test]
#[should_panic(expected = "left == right")]
fn parser_that_changes_the_printed_configuration_is_detected() {
    let parse_json_differently = |text: &str| {
        let mut parsed = parse(text)?;
        parsed.config.guest_shutdown_stops &= !text.starts_with('{');
        Ok(parsed)
    };
    check(
        b"\"/Runner\": {guestShutdownStops: true, vm: {name: t}}",
        parse_json_differently,
    );
}
