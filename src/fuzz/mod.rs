//! Looks for inputs that break what reads them: committed ones first, then changes of them, for a while.
//!
//! A target is a test whose check panics where something does not hold. `cargo test` tries the committed inputs
//! (`tests/fuzz/<target>/`) and changes them blindly for a moment. `make fuzz` has the compiler count which edges of the
//! program are run, keeps inputs that reach new ones, and takes longer:
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `FUZZ_SECONDS` | time for each target | 0.2; `make fuzz`: 5 |
//! | `FUZZ_SEED` | where random numbers begin | 1, so that what fails is what has changed; `make fuzz`: the time |
//! | `FUZZ_INPUT` | a file: nothing else is tried | |
//!
//! What always holds of a check besides what it says itself: it ends within [`Limits::time`], and never has more than
//! [`Limits::memory`] allocated. An input that fails is made smaller, kept in `.cache/fuzz`, and named with the command
//! that tries it again.

mod allocation;
mod coverage;
mod mutation;
#[cfg(test)]
mod tests;

use coverage::Coverage;
pub use mutation::Random;
use mutation::mutate;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What a check may take.
pub struct Limits {
    /// For one input; much longer, and the whole process is ended.
    pub time: Duration,
    /// Bytes for an input of that length, allocated at the same time.
    pub memory: fn(usize) -> usize,
}

impl Default for Limits {
    fn default() -> Self {
        // A value of one byte of JSON takes tens of bytes, and lists of them have room for twice as many.
        Self { time: Duration::from_secs(2), memory: |length| (1 << 16) + 512 * length }
    }
}

/// What is tried.
pub struct Target<'a> {
    /// Of its inputs' folder.
    pub name: &'a str,
    /// Texts that mean something to it.
    pub words: &'a [&'a str],
    /// What it may take.
    pub limits: Limits,
}

/// How long, from where, where to.
struct Plan {
    time: Duration,
    seed: u64,
    input: Option<PathBuf>,
    failures: PathBuf,
}

impl Plan {
    fn of_environment() -> Self {
        Self {
            time: Duration::from_secs_f64(number("FUZZ_SECONDS").unwrap_or(0.2)),
            seed: number("FUZZ_SEED").unwrap_or(1),
            input: std::env::var_os("FUZZ_INPUT").map(PathBuf::from),
            failures: Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/fuzz"),
        }
    }
}

fn number<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// What has come of it.
#[derive(Debug)]
struct Summary {
    runs: u64,
    edges: usize,
    inputs: usize,
}

/// Tries the target's inputs, then others until the time is over.
pub fn fuzz(target: &Target, check: impl Fn(&[u8])) {
    let plan = Plan::of_environment();
    match run(target, &plan, &check) {
        Ok(Summary { runs, edges, inputs }) => {
            let Target { name, .. } = target;
            println!("fuzz {name}: {runs} runs, {edges} edges by {inputs} inputs, FUZZ_SEED={}", plan.seed);
        }
        Err(failure) => panic!("{failure}"),
    }
}

fn run(target: &Target, plan: &Plan, check: &dyn Fn(&[u8])) -> Result<Summary, String> {
    if let Some(path) = &plan.input {
        let input = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        return try_input(target, check, &input).map(|()| Summary { runs: 1, edges: 0, inputs: 1 });
    }
    let watchdog = Watchdog::start(target, plan);
    let mut random = Random(plan.seed);
    let mut coverage = Coverage::default();
    let mut inputs = committed(target.name);
    let mut runs = 0;
    let mut attempt = |input: &[u8], coverage: &mut Coverage| {
        watchdog.look_at(input);
        coverage.forget_run();
        runs += 1;
        match try_input(target, check, input) {
            Ok(()) => Ok(coverage.is_new()),
            Err(why) => Err(failure(target, plan, check, input, &why)),
        }
    };
    for input in &inputs {
        attempt(input, &mut coverage)?;
    }
    let begin = Instant::now();
    while begin.elapsed() < plan.time {
        let input = mutate(&inputs, target.words, &mut random);
        if attempt(&input, &mut coverage)? {
            inputs.push(input);
        }
    }
    Ok(Summary { runs, edges: coverage.edges(), inputs: inputs.len() })
}

/// The inputs of the target's folder; there is always one.
fn committed(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz").join(name);
    let mut paths: Vec<_> =
        std::fs::read_dir(&folder).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let inputs: Vec<_> = paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
    if inputs.is_empty() { vec![Vec::new()] } else { inputs }
}

/// Why the input breaks it.
fn try_input(target: &Target, check: &dyn Fn(&[u8]), input: &[u8]) -> Result<(), String> {
    let begin = Instant::now();
    let (result, most) = allocation::most_during(|| catch_unwind(AssertUnwindSafe(|| check(input))));
    let took = begin.elapsed();
    if let Err(panic) = result {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        return Err(text.unwrap_or("it panics").to_owned());
    }
    let (time, memory) = (target.limits.time, (target.limits.memory)(input.len()));
    if took > time {
        return Err(format!("it takes {took:?}, more than {time:?}"));
    }
    if most > memory {
        return Err(format!("it allocates {most} bytes for {} of input, more than {memory}", input.len()));
    }
    Ok(())
}

/// Keeps the input, made as small as it becomes in a short while; says how it is tried again.
fn failure(target: &Target, plan: &Plan, check: &dyn Fn(&[u8]), input: &[u8], why: &str) -> String {
    let (mut input, mut why) = (input.to_vec(), why.to_owned());
    let begin = Instant::now();
    let mut part = input.len().div_ceil(2);
    while part > 0 && begin.elapsed() < Duration::from_secs(3) {
        let mut at = 0;
        while at < input.len() {
            let mut smaller = input.clone();
            smaller.drain(at..(at + part).min(input.len()));
            match try_input(target, check, &smaller) {
                Err(still) => (input, why) = (smaller, still),
                Ok(()) => at += part,
            }
        }
        part /= 2;
    }
    let path = keep(target.name, plan, &input);
    format!(
        "{why}\nfound with FUZZ_SEED={}; tried again by\n  FUZZ_INPUT={} cargo test --lib fuzz_{}\n{:?}",
        plan.seed,
        path.display(),
        target.name,
        String::from_utf8_lossy(&input),
    )
}

fn keep(name: &str, plan: &Plan, input: &[u8]) -> PathBuf {
    std::fs::create_dir_all(&plan.failures).unwrap();
    let path = plan.failures.join(format!("{name}-{:x}", plan.seed));
    std::fs::write(&path, input).unwrap();
    path
}

/// What is tried, and since when.
type Current = Mutex<Option<(Instant, Vec<u8>)>>;

/// Ends the process if an input is worked on for very long: no thread can be ended from outside.
struct Watchdog(Arc<Current>);

impl Watchdog {
    fn start(target: &Target, plan: &Plan) -> Self {
        let current: Arc<Current> = Arc::default();
        let weak = Arc::downgrade(&current);
        let (name, limit) = (target.name.to_owned(), target.limits.time * 15);
        let plan = Plan { input: None, failures: plan.failures.clone(), ..*plan };
        std::thread::spawn(move || {
            while let Some(current) = weak.upgrade() {
                if let Some((since, input)) = &*current.lock().unwrap()
                    && since.elapsed() > limit
                {
                    let path = keep(&name, &plan, input);
                    eprintln!("fuzz {name} does not end with FUZZ_INPUT={}", path.display());
                    std::process::abort();
                }
                drop(current);
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        Self(current)
    }

    fn look_at(&self, input: &[u8]) {
        *self.0.lock().unwrap() = Some((Instant::now(), input.to_vec()));
    }
}
