//! (io) `vm-runner fetch`: brings one image from a web server into the image repository, whole or not at all.
//!
//! ```text
//! arguments -> address (pure) -> part: locked, what is there -> transfer -> FILE
//!                                                               ^    |
//!                                      answer (pure) <- client -+    +-> progress (standard output)
//! ```
//!
//! What always holds: `FILE` is never there in part; what has come is gone on with by the next process, if the server can
//! tell that it is of the same image; a signal ends it within a second.

mod address;
mod answer;
mod client;
mod part;
mod problem;
mod progress;
#[cfg(test)]
mod simulation;
mod transfer;

use crate::api::runner::fetch::{FetchOutcome, FetchReason, SCHEMES, is_sha256};
use crate::runner::harden::{self, FileAccess};
use crate::runner::start;
use address::Address;
use client::Client;
use part::{Claim, Part};
use problem::{Problem, size};
use progress::Teller;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use transfer::{Shared, Transfer};

/// Time for leaving the part in order when the fetch is given up.
const SAVE_TIME: Duration = Duration::from_millis(700);
/// How often is looked whether another process is done with the part.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What to fetch, as typed.
#[derive(clap::Args)]
pub struct Arguments {
    /// URL of the image.
    #[arg(long)]
    url: String,
    /// The file that it becomes; an absolute path.
    #[arg(long, value_parser = absolute)]
    to: PathBuf,
    /// Its SHA-256, as 64 hexadecimal digits.
    #[arg(long, value_name = "HEX", value_parser = checksum)]
    sha256: Option<String>,
    /// Size in bytes that it must not exceed.
    #[arg(long, value_name = "N")]
    max_bytes: Option<u64>,
    /// Seconds after which an unfinished fetch ends.
    #[arg(long, value_name = "SECONDS")]
    deadline: Option<u64>,
    /// Seconds without a byte after which a connection is closed.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    silence: u64,
    /// Schemes that are allowed for the URL and for redirects.
    #[arg(long, value_delimiter = ',', default_values = SCHEMES)]
    schemes: Vec<String>,
    /// A file with further certificate authorities in PEM; an absolute path.
    #[arg(long, value_name = "FILE", value_parser = absolute)]
    authorities: Option<PathBuf>,
}

fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let is_file = path.is_absolute() && path.file_name().is_some() && !text.ends_with('/');
    if is_file {
        Ok(path)
    } else {
        Err("give an absolute path of a file".to_owned())
    }
}

fn checksum(text: &str) -> Result<String, String> {
    if is_sha256(text) {
        Ok(text.to_ascii_lowercase())
    } else {
        Err("give 64 hexadecimal digits".to_owned())
    }
}

/// Fetches, and says how it ended: in the log, the termination message and the exit code.
pub fn run(arguments: Arguments) -> ExitCode {
    // Standard output is for the progress.
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .init();
    // VMs with other users read the image.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let outcome = match prepare(&arguments) {
        Ok(runtime) => {
            let outcome = runtime.block_on(supervise(arguments));
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
    if reason.is_success() {
        tracing::info!(?reason, bytes, "end");
    } else {
        tracing::error!(?reason, bytes, "{message}");
    }
    ExitCode::from(reason.exit_code())
}

fn prepare(arguments: &Arguments) -> Result<tokio::runtime::Runtime, String> {
    harden::drop_privileges().map_err(|failure| failure.message)?;
    // The folder may have to be made.
    let there = arguments
        .to
        .ancestors()
        .skip(1)
        .find(|folder| folder.is_dir())
        .unwrap_or(Path::new("/"));
    let trusted = ["SSL_CERT_FILE", "SSL_CERT_DIR"]
        .into_iter()
        .filter_map(std::env::var_os)
        .map(PathBuf::from);
    // All of the folder: in a volume the file is a link to another there.
    let given = arguments
        .authorities
        .iter()
        .filter_map(|file| Some(file.parent()?.to_owned()));
    let trusted = trusted.chain(given);
    harden::confine_process(&FileAccess::of_fetch(
        there,
        trusted,
        &start::create_termination_file(),
    ))
    .map_err(|failure| failure.message)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.map_err(|error| format!("no runtime: {error}"))
}

/// Ends the fetch when it is done, when its time is over or when it is asked to.
async fn supervise(arguments: Arguments) -> FetchOutcome {
    let part = OnceLock::new();
    let deadline = arguments.deadline;
    let end = tokio::select! {
        end = fetch(arguments, &part) => end,
        () = asked_to_end() => Err(Problem::new(FetchReason::Interrupted, "the fetch was asked to end; another one goes on")),
        () = over(deadline) => Err(late(deadline.unwrap_or_default())),
    };
    match end {
        Ok((reason, bytes)) => FetchOutcome {
            reason,
            message: String::new(),
            bytes,
        },
        Err(Problem {
            reason, message, ..
        }) => FetchOutcome {
            reason,
            message,
            bytes: left(part.get()).await,
        },
    }
}

async fn asked_to_end() {
    let (Ok(mut term), Ok(mut int)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        return std::future::pending().await;
    };
    tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
}

async fn over(deadline: Option<u64>) {
    match deadline {
        Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
        None => std::future::pending().await,
    }
}

fn late(seconds: u64) -> Problem {
    let message = format!(
        "not done within {seconds} s; give it more time, or an image that is nearer; another fetch goes on"
    );
    Problem::new(FetchReason::DeadlineExceeded, message)
}

/// Leaves the part so that another process can go on with it, if that can be; gives its size.
async fn left(part: Option<&Shared>) -> u64 {
    let Some(part) = part else { return 0 };
    let save = transfer::with(part, |part| {
        // A part that cannot be continued only occupies space.
        if part.bytes() == 0 || part.validator().is_none() {
            part.discard();
        }
        part.save_if_there().map(|()| part.bytes())
    });
    match tokio::time::timeout(SAVE_TIME, save).await {
        Ok(Ok(Ok(bytes))) => bytes,
        Ok(Ok(Err(problem)) | Err(problem)) => {
            tracing::warn!("{problem}");
            0
        }
        Err(_) => 0,
    }
}

async fn fetch(
    arguments: Arguments,
    ours: &OnceLock<Shared>,
) -> Result<(FetchReason, u64), Problem> {
    let address = Address::parse(&arguments.url, &arguments.schemes)?;
    let mut teller = Teller::default();
    let part = match claim(&arguments.to, arguments.sha256.is_some(), &mut teller).await? {
        Some(part) => Arc::clone(ours.get_or_init(|| part)),
        None => {
            return Ok((
                FetchReason::AlreadyThere,
                part::present(&arguments.to)?.unwrap_or_default(),
            ));
        }
    };
    let (bytes, total) = transfer::with(&part, |part| {
        part.resume().map(|()| (part.bytes(), part.total()))
    })
    .await??;
    match bytes {
        0 => tracing::info!("fetching {address} to {}", arguments.to.display()),
        _ => tracing::info!(
            "fetching {address} to {}, of which there are {}",
            arguments.to.display(),
            size(bytes)
        ),
    }
    teller.tell(bytes, total);
    let client = Client::new(
        arguments.schemes,
        Duration::from_secs(arguments.silence),
        arguments.authorities,
    );
    let mut transfer = Transfer::new(client, address, part);
    (transfer.max_bytes, transfer.sha256, transfer.teller) =
        (arguments.max_bytes, arguments.sha256, teller);
    transfer
        .run()
        .await
        .map(|bytes| (FetchReason::Fetched, bytes))
}

/// The part, once no other process has it; `None`: the file is there.
async fn claim(
    target: &Path,
    summed: bool,
    teller: &mut Teller,
) -> Result<Option<Shared>, Problem> {
    let mut waits = false;
    loop {
        let path = target.to_owned();
        let claim = tokio::task::spawn_blocking(move || {
            part::make_folder(&path)?;
            Part::claim(&path, summed)
        });
        match claim.await.map_err(|error| {
            Problem::new(FetchReason::Unknown, format!("a task has failed: {error}"))
        })?? {
            Claim::Ours(part) => return Ok(Some(Arc::new(Mutex::new(*part)))),
            Claim::There(bytes) => {
                teller.tell(bytes, Some(bytes));
                return Ok(None);
            }
            Claim::Others(bytes) => {
                if !std::mem::replace(&mut waits, true) {
                    tracing::info!(
                        "another process fetches {}; waiting for it",
                        target.display()
                    );
                }
                teller.tell(bytes, None);
                tokio::time::sleep(LOOK_EVERY).await;
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
            sha256: Some("A".repeat(64)),
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
            (arguments.url.as_str(), arguments.to.to_str()),
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
                sha256: Some("a".to_owned()),
                ..request.clone()
            },
        ] {
            assert!(typed(&wrong).is_err(), "{wrong:?}");
        }
    }
}
