//! Fuzz targets: properties of the parsers of untrusted bytes.
//!
//! Each target takes any bytes. It panics if a parser violates a property, or allocates too much memory at the same time.
//! `fuzz/run` searches for such bytes. The unit test below replays the committed inputs, `fuzz/seeds/<target>/*`.
//!
//! This module is compiled for unit tests and for the feature `fuzzing`, which no released program has.

use crate::api::quantity::fuzzing::check_quantity;
use crate::runner::fuzzing::{
    check_config, check_desktop, check_guest, check_image, check_lines, check_qmp,
};

/// Messages of the agent of a desktop.
pub fn agent_desktop(input: &[u8]) {
    limit_memory(memory_of_json, input, check_desktop);
}

/// Replies of QEMU's guest agent.
pub fn agent_guest(input: &[u8]) {
    limit_memory(memory_of_json, input, check_guest);
}

/// Lines of an agent in the guest.
pub fn agent_lines(input: &[u8]) {
    limit_memory(memory_of_json, input, check_lines);
}

/// The runner's configuration file.
pub fn config(input: &[u8]) {
    limit_memory(memory_of_yaml, input, check_config);
}

/// The first bytes of images for disks.
pub fn image(input: &[u8]) {
    limit_memory(memory_of_json, input, check_image);
}

/// Messages of QMP.
pub fn qmp(input: &[u8]) {
    limit_memory(memory_of_json, input, check_qmp);
}

/// Sizes and CPU amounts.
pub fn quantity(input: &[u8]) {
    limit_memory(memory_of_json, input, |input| {
        check_quantity(input, |bytes| bytes.to_string())
    });
}

/// Bytes for an input of that length. One byte of JSON takes tens of bytes, and vectors have twice the capacity.
fn memory_of_json(length: usize) -> usize {
    (64 << 10) + 512 * length
}

/// Bytes for an input of that length. YAML repeats anchored values within the limits of its parser.
fn memory_of_yaml(length: usize) -> usize {
    (8 << 20) + 4096 * length
}

fn limit_memory(max: fn(usize) -> usize, input: &[u8], check: impl FnOnce(&[u8])) {
    let (used, max) = (
        allocation_counter::measure(|| check(input)).bytes_max,
        max(input.len()),
    );
    assert!(
        used <= max as u64,
        "{used} bytes allocated for {} bytes of input, the limit is {max}",
        input.len()
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;
    use std::time::{Duration, Instant};

    /// Thousands of times the expected time.
    const INPUT_TIME_MAX: Duration = Duration::from_secs(5);

    type Target = fn(&[u8]);

    fn targets() -> BTreeMap<String, Target> {
        let targets: [(&str, Target); 7] = [
            ("agent_desktop", agent_desktop),
            ("agent_guest", agent_guest),
            ("agent_lines", agent_lines),
            ("config", config),
            ("image", image),
            ("qmp", qmp),
            ("quantity", quantity),
        ];
        targets
            .map(|(name, target)| (name.to_owned(), target))
            .into()
    }

    /// Target and content of each committed input, by path.
    fn committed_inputs() -> BTreeMap<String, (String, Vec<u8>)> {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
        let folders = fs::read_dir(seeds)
            .unwrap()
            .map(|folder| folder.unwrap().path());
        let files = folders
            .flat_map(|folder| fs::read_dir(folder).unwrap())
            .map(|file| file.unwrap().path());
        let input = |path: &Path| {
            let target = path
                .parent()
                .unwrap()
                .file_name()
                .unwrap()
                .to_str()
                .unwrap();
            (
                path.display().to_string(),
                (target.to_owned(), fs::read(path).unwrap()),
            )
        };
        files.map(|path| input(&path)).collect()
    }

    #[test]
    fn committed_inputs_hold_all_properties() {
        let (targets, mut replayed) = (targets(), BTreeMap::new());
        for (path, (name, input)) in committed_inputs() {
            let target = targets
                .get(&name)
                .unwrap_or_else(|| panic!("{path}: no target has this name"));
            // The test's output shows the last line only if the test fails.
            println!("{path}");
            let begin = Instant::now();
            target(&input);
            assert!(
                begin.elapsed() < INPUT_TIME_MAX,
                "{path} takes {:?}",
                begin.elapsed()
            );
            replayed.insert(name, path);
        }
        let without_inputs: Vec<_> = targets
            .keys()
            .filter(|name| !replayed.contains_key(*name))
            .collect();
        assert!(
            without_inputs.is_empty(),
            "targets without a file in fuzz/seeds/<target>: {without_inputs:?}"
        );
    }

    #[test]
    #[should_panic(expected = "2048 bytes allocated for 1 bytes of input, the limit is 2047")]
    fn memory_above_the_limit_is_detected() {
        limit_memory(
            |_| 2047,
            b"x",
            |_| {
                let (one, other) = (
                    Vec::<u8>::with_capacity(1024),
                    Vec::<u8>::with_capacity(1024),
                );
                std::hint::black_box((one, other));
            },
        );
    }

    #[test]
    fn memory_freed_before_is_not_counted() {
        limit_memory(
            |_| 1024,
            b"x",
            |_| {
                for _ in 0..2 {
                    std::hint::black_box(Vec::<u8>::with_capacity(1024));
                }
            },
        );
    }
}
