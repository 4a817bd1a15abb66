//! (io) `vm-runner fetch`: downloads one image from a web server into the image repository, completely or not at all.
//!
//! ```text
//! arguments -> address (pure) -> part: locked, resumed -> transfer -> FILE
//!                                                         ^    |
//!                                answer (pure) <- client -+    +-> progress (standard output)
//! ```
//!
//! `vm-runner import` can also wait for an `upload` in place of a transfer.
//!
//! Invariants: `FILE` never exists incomplete. The next process resumes an interrupted download if the server identifies
//! the version of the image. A signal ends the process within a second.

mod address;
mod address_policy;
mod answer;
mod client;
mod part;
pub mod problem;
mod progress;
mod receiver;
#[cfg(test)]
mod simulation;
mod transfer;
mod upload;

use crate::api::runner::fetch::{
    Checksum, ENV_PASSWORD, ENV_USERNAME, FetchOutcome, FetchReason, Phase, SCHEMES, key,
};
use crate::runner::harden::{self, Access, FileAccess};
use crate::runner::signals::ShutdownSignals;
use crate::runner::start;
use address::Address;
pub use address_policy::AddressPolicy;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use client::Client;
use http::HeaderValue;
use part::LockOutcome;
pub use part::Part;
pub use part::{Destination, Device, Header, existing_size};
use problem::{Problem, size, task_failure};
pub use progress::ProgressWriter;
use receiver::Receiver;
pub use receiver::{SharedPart, with_part};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use transfer::Transfer;

/// Maximum time for saving the partial download when the process is interrupted.
const SAVE_TIMEOUT: Duration = Duration::from_millis(700);
/// Interval between attempts to lock a partial download that another process has locked.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Where an image comes from.
#[derive(Clone, Copy)]
pub enum Origin {
    /// The server of the URL, whose addresses the policy restricts.
    Server(AddressPolicy),
    /// A user, who sends it to this port of the loopback address.
    Upload(u16),
}

/// The command-line arguments of `vm-runner fetch`.
#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("image").required(true)))]
pub struct Arguments {
    /// URL of the image.
    #[arg(long, group = "image")]
    url: Option<String>,
    /// Absolute path of the file to write the image to.
    #[arg(long, value_parser = absolute)]
    to: PathBuf,
    /// Expected SHA-256 of the image, as 64 hexadecimal digits.
    #[arg(long, value_name = "HEX", value_parser = sha256, conflicts_with = "sha512")]
    sha256: Option<String>,
    /// Expected SHA-512 of the image, as 128 hexadecimal digits.
    #[arg(long, value_name = "HEX", value_parser = sha512)]
    sha512: Option<String>,
    /// Maximum size of the image, in bytes.
    #[arg(long, value_name = "N")]
    max_bytes: Option<u64>,
    /// Maximum duration of the download, in seconds. The next call resumes an unfinished download.
    #[arg(long, value_name = "SECONDS")]
    deadline: Option<u64>,
    /// Maximum time without received data before the connection is closed, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    silence: u64,
    /// Allowed schemes of the URL and of redirects, separated by commas.
    #[arg(long, value_delimiter = ',', default_values = SCHEMES)]
    schemes: Vec<String>,
    /// Absolute path of a PEM file with additional certificate authorities.
    #[arg(long, value_name = "FILE", value_parser = absolute)]
    authorities: Option<PathBuf>,
}

impl Arguments {
    /// The file to write the image to.
    pub fn target(&self) -> &Path {
        &self.to
    }

    /// The key of URL, checksum and the target's volume, whose name can be empty.
    pub fn key(&self, volume: &str) -> String {
        let checksum = self.sha256.as_deref().or(self.sha512.as_deref());
        match volume {
            "" => key(self.url(), checksum),
            volume => key(&format!("{volume} {}", self.url()), checksum),
        }
    }

    fn url(&self) -> &str {
        self.url.as_deref().unwrap_or_default()
    }

    fn checksum(&self) -> Option<Checksum> {
        let sha256 = self.sha256.clone().map(Checksum::Sha256);
        sha256.or(self.sha512.clone().map(Checksum::Sha512))
    }

    /// The files of a download, with these of its target.
    pub fn file_access(&self, target: Vec<(PathBuf, Access)>) -> Vec<(PathBuf, Access)> {
        let trusted = ["SSL_CERT_FILE", "SSL_CERT_DIR"]
            .into_iter()
            .filter_map(std::env::var_os)
            .map(PathBuf::from);
        // Access to the whole directory: in a ConfigMap volume the file is a link to another file of the directory.
        let additional = self
            .authorities
            .iter()
            .filter_map(|file| Some(file.parent()?.to_owned()));
        let trusted = trusted.chain(additional);
        FileAccess::of_fetch(target, trusted, &start::create_termination_file())
    }
}

fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let is_file = path.is_absolute() && path.file_name().is_some() && !text.ends_with('/');
    if is_file {
        Ok(path)
    } else {
        Err("not an absolute path of a file; use a path such as /images/debian.iso".to_owned())
    }
}

fn sha256(text: &str) -> Result<String, String> {
    hexadecimal(text, 64).ok_or_else(|| "not a SHA-256; use 64 hexadecimal digits".to_owned())
}

fn sha512(text: &str) -> Result<String, String> {
    hexadecimal(text, 128).ok_or_else(|| "not a SHA-512; use 128 hexadecimal digits".to_owned())
}

/// The digits in lower case.
fn hexadecimal(text: &str, length: usize) -> Option<String> {
    let is_valid = text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_valid.then(|| text.to_ascii_lowercase())
}

/// The user and the password for the host of the URL, from the environment.
fn credentials() -> Option<HeaderValue> {
    let user = std::env::var(ENV_USERNAME).ok()?;
    let password = std::env::var(ENV_PASSWORD).unwrap_or_default();
    let encoded = BASE64.encode(format!("{user}:{password}"));
    let mut header = HeaderValue::from_str(&format!("Basic {encoded}")).ok()?;
    header.set_sensitive(true);
    Some(header)
}

/// Downloads the image, and reports the outcome in the log, the termination message and the exit code.
pub fn run(arguments: Arguments) -> ExitCode {
    // The target directory may not exist yet; then access to its closest existing parent is allowed.
    let mut parents = arguments.to.ancestors().skip(1);
    let existing = parents.find(|folder| folder.is_dir());
    let folder = existing.unwrap_or(Path::new("/")).to_owned();
    let files = arguments.file_access(vec![(folder, Access::Manage)]);
    let part = OnceLock::new();
    let to = Destination::File(arguments.to.clone());
    // VMs with pods that run as another user must be able to read the image.
    execute(0o022, &files, async move || {
        supervise(
            &part,
            download(
                arguments,
                to,
                Origin::Server(AddressPolicy::Unrestricted),
                &part,
            ),
        )
        .await
    })
}

/// Runs `work` with these files and few other rights, and reports its outcome in the log, the termination message and the exit code.
pub fn execute(
    umask: u32,
    files: &[(PathBuf, Access)],
    work: impl AsyncFnOnce() -> FetchOutcome,
) -> ExitCode {
    // The log goes to standard error, because standard output has the progress.
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .init();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(umask));
    let outcome = match prepare(files) {
        Ok(runtime) => {
            let outcome = runtime.block_on(work());
            runtime.shutdown_background();
            outcome
        }
        Err(message) => FetchOutcome {
            reason: FetchReason::Unknown,
            message,
            bytes: 0,
        },
    };
    start::write_termination_message(&outcome.to_message());
    let FetchOutcome {
        reason,
        message,
        bytes,
    } = &outcome;
    let name: &'static str = reason.into();
    if reason.is_success() {
        tracing::info!(reason = name, bytes, "the image is complete");
    } else {
        tracing::error!(reason = name, bytes, "{message}");
    }
    ExitCode::from(reason.exit_code())
}

fn prepare(files: &[(PathBuf, Access)]) -> Result<tokio::runtime::Runtime, String> {
    harden::drop_privileges().map_err(|failure| failure.message)?;
    harden::confine_process(files).map_err(|failure| failure.message)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.map_err(|error| {
        format!("the runner cannot start its threads: {error}; raise the limit of processes of the pod (podPidsLimit of the \
            kubelet)")
    })
}

/// Runs the work until it ends or the process receives a request to stop. `part` is its partial download, which is saved then.
pub async fn supervise(
    part: &OnceLock<SharedPart>,
    work: impl Future<Output = Result<(FetchReason, u64), Problem>>,
) -> FetchOutcome {
    let end = match ShutdownSignals::receive() {
        Ok(mut signals) => tokio::select! {
            end = work => end,
            _ = signals.requested() => Err(Problem::new(
                FetchReason::Interrupted,
                "a signal has stopped the program",
            )),
        },
        Err(error) => Err(Problem::new(
            FetchReason::Unknown,
            format!(
                "the runner cannot install signal handlers: {error}; report this error as a bug of vm-runner"
            ),
        )),
    };
    match end {
        Ok((reason, bytes)) => FetchOutcome {
            reason,
            message: String::new(),
            bytes,
        },
        Err(problem) => problem.outcome(save_part(part.get()).await),
    }
}

/// Downloads the image, until the deadline. `part` becomes the partial download.
pub async fn download(
    arguments: Arguments,
    to: Destination,
    origin: Origin,
    part: &OnceLock<SharedPart>,
) -> Result<(FetchReason, u64), Problem> {
    let deadline = arguments.deadline;
    tokio::select! {
        end = fetch(arguments, to, origin, part) => end,
        () = deadline_expiry(deadline) => Err(deadline_exceeded(deadline.unwrap_or_default())),
    }
}

async fn deadline_expiry(deadline: Option<u64>) {
    match deadline {
        Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
        None => std::future::pending().await,
    }
}

fn deadline_exceeded(seconds: u64) -> Problem {
    let message = format!("the download has not finished within {seconds} s (--deadline)");
    Problem::new(FetchReason::DeadlineExceeded, message)
}

/// Saves the partial download so that another process can resume it, or removes it. Returns the saved bytes.
async fn save_part(part: Option<&SharedPart>) -> u64 {
    let Some(part) = part else { return 0 };
    let save = with_part(part, |part| {
        // A part that cannot be continued only occupies space.
        if part.bytes() == 0 || part.validator().is_none() {
            part.discard();
        }
        part.save_unsaved().map(|()| part.bytes())
    });
    match tokio::time::timeout(SAVE_TIMEOUT, save).await {
        Ok(Ok(Ok(bytes))) => bytes,
        Ok(Ok(Err(problem)) | Err(problem)) => {
            tracing::warn!("{problem}");
            0
        }
        Err(_) => 0,
    }
}

/// Position of the image on the device to which the partial download has been written.
pub fn offset(part: Option<&SharedPart>) -> u64 {
    let part = part.map(|part| part.lock());
    let part = part.map(|part| part.unwrap_or_else(PoisonError::into_inner).offset());
    part.unwrap_or_default()
}

/// Who sends an image.
enum Sender {
    Server(Box<Client>, Address),
    User(u16),
}

async fn fetch(
    arguments: Arguments,
    to: Destination,
    origin: Origin,
    locked: &OnceLock<SharedPart>,
) -> Result<(FetchReason, u64), Problem> {
    let silence = Duration::from_secs(arguments.silence);
    let (sender, place, phase) = match origin {
        Origin::Server(policy) => {
            let address = Address::parse(arguments.url(), &arguments.schemes)?;
            let (schemes, authorities) = (arguments.schemes.clone(), arguments.authorities.clone());
            let client = Client::new(schemes, policy, silence, authorities, credentials());
            let place = address.to_string();
            (
                Sender::Server(Box::new(client), address),
                place,
                Phase::Download,
            )
        }
        Origin::Upload(port) => (Sender::User(port), "the upload".to_owned(), Phase::Upload),
    };
    let checksum = arguments.checksum();
    let mut progress = ProgressWriter::new(phase);
    let part = match acquire_part(&to, checksum.as_ref(), &mut progress).await? {
        Some(part) => Arc::clone(locked.get_or_init(|| part)),
        None => {
            return Ok((
                FetchReason::AlreadyThere,
                part::existing_size(to.path())?.unwrap_or_default(),
            ));
        }
    };
    let (bytes, total) = with_part(&part, |part| {
        part.resume().map(|()| (part.bytes(), part.total()))
    })
    .await??;
    match bytes {
        0 => tracing::info!("{place} goes to {}", to.path().display()),
        _ => tracing::info!(
            "resuming {place} to {}; {} are already there",
            to.path().display(),
            size(bytes)
        ),
    }
    progress.write(bytes, total);
    let receiver = Receiver {
        part,
        progress,
        max_bytes: arguments.max_bytes,
        checksum,
        silence,
        origin: place,
        received: 0,
        is_resumed: false,
        stop: None,
    };
    let received = match sender {
        Sender::Server(client, address) => {
            let mut transfer = Transfer {
                client: *client,
                address,
                receiver,
            };
            transfer.run().await
        }
        Sender::User(port) => upload::receive(port, receiver).await,
    };
    received.map(|bytes| (FetchReason::Fetched, bytes))
}

/// Locks the partial download, and waits while another process has locked it. `None` if the complete file exists.
pub async fn acquire_part(
    to: &Destination,
    checksum: Option<&Checksum>,
    progress: &mut ProgressWriter,
) -> Result<Option<SharedPart>, Problem> {
    let mut waits = false;
    loop {
        let (target, checksum) = (to.clone(), checksum.cloned());
        let locking = tokio::task::spawn_blocking(move || {
            if let Destination::File(path) = &target {
                part::create_directory(path)?;
            }
            Part::acquire(&target, checksum.as_ref())
        });
        match locking
            .await
            .map_err(|error| Problem::new(FetchReason::Unknown, task_failure(&error)))??
        {
            LockOutcome::Locked(part) => return Ok(Some(Arc::new(Mutex::new(*part)))),
            LockOutcome::Complete(bytes) => {
                progress.write(bytes, Some(bytes));
                return Ok(None);
            }
            LockOutcome::LockedByOther(bytes) => {
                if !std::mem::replace(&mut waits, true) {
                    tracing::info!(
                        "another process is downloading {}; this process waits until the download has finished",
                        to.path().display()
                    );
                }
                progress.write(bytes, None);
                tokio::time::sleep(LOCK_POLL_INTERVAL).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::runner::fetch::Request;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(subcommand)]
        command: Command,
    }

    #[derive(clap::Subcommand)]
    enum Command {
        Fetch(Arguments),
    }

    #[test]
    fn the_operators_arguments_are_understood() {
        let request = Request {
            url: "https://h/a.iso?x=--to".to_owned(),
            to: "/images/a".to_owned(),
            checksum: Some(Checksum::Sha256("A".repeat(64))),
            max_bytes: Some(7),
            deadline: Some(8),
            schemes: vec!["https".to_owned(), "http".to_owned()],
            authorities: Some("/ca/ca.crt".to_owned()),
        };
        let typed = |request: &Request| {
            let arguments = std::iter::once("vm-runner".to_owned()).chain(request.arguments());
            Program::try_parse_from(arguments).map(
                |Program {
                     command: Command::Fetch(arguments),
                 }| arguments,
            )
        };
        let arguments = typed(&request).ok().unwrap();
        assert_eq!(
            (arguments.url(), arguments.to.to_str()),
            ("https://h/a.iso?x=--to", Some("/images/a"))
        );
        assert_eq!(
            (arguments.sha256, arguments.max_bytes, arguments.deadline),
            (Some("a".repeat(64)), Some(7), Some(8))
        );
        assert_eq!(arguments.schemes, ["https", "http"]);
        assert_eq!(
            arguments.authorities.as_deref(),
            Some(Path::new("/ca/ca.crt"))
        );
        for wrong in [
            Request {
                to: "images/a".to_owned(),
                ..request.clone()
            },
            Request {
                to: "/".to_owned(),
                ..request.clone()
            },
            Request {
                checksum: Some(Checksum::Sha256("a".to_owned())),
                ..request.clone()
            },
            Request {
                checksum: Some(Checksum::Sha512("a".repeat(64))),
                ..request.clone()
            },
        ] {
            assert!(typed(&wrong).is_err(), "{wrong:?}");
        }
    }
}
