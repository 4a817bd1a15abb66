//! Date, commit and machine of a measurement, in the format of `print_table` of `tests/bench/lib.sh`.

use std::path::Path;
use std::process::Command;

/// Prints them below the results of that command.
pub fn print(command: &str) {
    let machine = format!(
        "{} × {}, {}, Linux {}",
        cpus(),
        processor(),
        memory(),
        read("/proc/sys/kernel/osrelease").trim()
    );
    println!(
        "{command}: {}, commit {}, on {machine}, {}",
        output_of("date", &["--utc", "+%F"]),
        commit(),
        system()
    );
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn output_of(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        .unwrap_or_default()
}

/// The commit, and whether the sources differ from it.
fn commit() -> String {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .display()
        .to_string();
    let git = |arguments: &[&str]| output_of("git", &[&["-C", &repository], arguments].concat());
    let changed = if git(&["status", "--porcelain", "--untracked-files=no"]).is_empty() {
        ""
    } else {
        " and changes"
    };
    format!("{}{changed}", git(&["rev-parse", "--short", "HEAD"]))
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(0, std::num::NonZero::get)
}

fn processor() -> String {
    let all = read("/proc/cpuinfo");
    let name = all.lines().find_map(|line| {
        line.strip_prefix("model name")?
            .split_once(": ")
            .map(|(_, name)| name)
    });
    name.unwrap_or("processors").to_owned()
}

fn memory() -> String {
    let all = read("/proc/meminfo");
    let kib = all.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?
            .split_whitespace()
            .next()?
            .parse::<f64>()
            .ok()
    });
    format!("{:.0} GiB", kib.unwrap_or_default() / 1024.0 / 1024.0)
}

fn system() -> String {
    let all = read("/etc/os-release");
    let name = all
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.unwrap_or_default().trim_matches('"').to_owned()
}
