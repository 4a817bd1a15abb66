use super::*;
use crate::api::runner::fetch::{Checksum, ImportRequest, Request};
use crate::api::runner::identity::ClaimIdentity;
use clap::Parser;
use sha2::{Digest, Sha512};
use std::fs;
use support::web::{Reply, Web};

#[derive(Parser)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Import(Arguments),
}

/// A VM's runner data and the volume of its disk.
struct Vm(tempfile::TempDir);

impl Vm {
    fn new() -> Self {
        let vm = Self(tempfile::tempdir().unwrap());
        for name in ["data", "disk"] {
            fs::create_dir(vm.0.path().join(name)).unwrap();
        }
        vm
    }

    fn disk(&self) -> PathBuf {
        self.0.path().join("disk/disk.img")
    }

    fn request(&self, url: &str) -> ImportRequest {
        ImportRequest {
            data: self.0.path().join("data").display().to_string(),
            format: None,
            fetch: Request {
                url: url.to_owned(),
                to: self.disk().display().to_string(),
                checksum: None,
                max_bytes: Some(1 << 20),
                deadline: Some(60),
                schemes: vec!["http".to_owned()],
                authorities: None,
            },
        }
    }

    async fn import(&self, url: &str, uid: &str, policy: AddressPolicy) -> FetchOutcome {
        let claim = ClaimIdentity {
            name: "vm-system-disk".to_owned(),
            uid: uid.to_owned(),
            imported: false,
            may_overwrite: false,
        };
        let pod = PodIdentity {
            claims: [(self.disk().display().to_string(), claim)].into(),
            ..PodIdentity::default()
        };
        import(parsed(&self.request(url)), pod, policy).await
    }

    async fn import_reason(&self, url: &str, uid: &str) -> FetchReason {
        let outcome = self.import(url, uid, AddressPolicy::Unrestricted).await;
        assert_eq!(outcome.message.is_empty(), outcome.reason.is_success());
        outcome.reason
    }

    /// Names of the files of the volume.
    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path().join("disk")).unwrap();
        let name = |entry: std::io::Result<fs::DirEntry>| {
            entry.unwrap().file_name().into_string().unwrap()
        };
        entries.map(name).collect()
    }
}

fn parsed(request: &ImportRequest) -> Arguments {
    let arguments = std::iter::once("vm-runner".to_owned()).chain(request.arguments());
    let Command::Import(arguments) = Program::try_parse_from(arguments).ok().unwrap().command;
    arguments
}

/// A raw image of several chunks of a download.
fn image() -> Vec<u8> {
    let mut image = vec![7; 600_000];
    image[510..512].copy_from_slice(&[0x55, 0xaa]);
    image
}

fn server(image: Vec<u8>) -> Web {
    Web::start(move |request| Reply::image(request, &image, "\"one\""))
}

#[test]
fn the_operators_arguments_are_understood() {
    let vm = Vm::new();
    let arguments = parsed(&vm.request("https://h/a.qcow2"));
    assert_eq!(arguments.data, vm.0.path().join("data"));
    assert_eq!(arguments.fetch.target(), vm.disk());
}

#[tokio::test]
async fn a_blank_disk_is_filled_once() {
    let (vm, web) = (Vm::new(), server(image()));
    fs::write(vm.disk(), "").unwrap();
    assert_eq!(
        vm.import_reason(&web.url("/a"), "one").await,
        FetchReason::Fetched
    );
    assert_eq!(fs::read(vm.disk()).unwrap(), image());
    assert_eq!(vm.files(), ["disk.img"]);
    // Another URL and another PVC: a restored backup. The earlier process has left a file.
    fs::write(vm.0.path().join("disk/disk.img.import"), "x").unwrap();
    assert_eq!(
        vm.import_reason("http://none/b", "two").await,
        FetchReason::AlreadyThere
    );
    assert_eq!(
        (vm.files(), web.requests().len()),
        (vec!["disk.img".to_owned()], 1)
    );
    fs::remove_file(vm.disk()).unwrap();
    assert_eq!(
        vm.import_reason(&web.url("/a"), "two").await,
        FetchReason::DataMissing
    );
    assert_eq!(
        vm.import_reason(&web.url("/a"), "three").await,
        FetchReason::Fetched
    );
}

#[tokio::test]
async fn a_disk_with_unknown_contents_is_not_changed() {
    let (vm, web) = (Vm::new(), server(image()));
    fs::write(vm.disk(), "x").unwrap();
    let outcome = vm
        .import(&web.url("/a"), "one", AddressPolicy::Unrestricted)
        .await;
    assert_eq!(outcome.reason, FetchReason::DiskNotEmpty);
    assert!(
        outcome.message.contains("delete PVC \"vm-system-disk\""),
        "{outcome:?}"
    );
    assert_eq!(
        (fs::read(vm.disk()).unwrap(), web.requests().len()),
        (b"x".to_vec(), 0)
    );
}

#[tokio::test]
async fn a_final_failure_leaves_neither_files_nor_a_record() {
    let (vm, web) = (Vm::new(), server(b"<!DOCTYPE html>".to_vec()));
    let outcome = vm
        .import(&web.url("/a"), "one", AddressPolicy::Unrestricted)
        .await;
    assert_eq!(
        (outcome.reason, outcome.bytes),
        (FetchReason::FormatNotSupported, 0)
    );
    assert!(vm.files().is_empty());
    // Contents of others are not those of the import.
    fs::write(vm.disk(), "x").unwrap();
    assert_eq!(
        vm.import_reason(&web.url("/a"), "one").await,
        FetchReason::DiskNotEmpty
    );
}

#[tokio::test]
async fn a_temporary_failure_retains_the_download_of_the_same_image_only() {
    let (vm, complete) = (Vm::new(), image());
    let web = Web::start(move |request| Reply {
        stall: (request.line.contains("/a") && request.start().is_none()).then_some(300_000),
        ..Reply::image(request, &complete, "\"one\"")
    });
    let stopped = async |path: &str| {
        let mut request = vm.request(&web.url(path));
        request.fetch.deadline = Some(1);
        let pod = PodIdentity::default();
        import(parsed(&request), pod, AddressPolicy::Unrestricted).await
    };
    let outcome = stopped("/a").await;
    assert_eq!(outcome.reason, FetchReason::DeadlineExceeded);
    assert!(outcome.bytes > 0 && vm.files().len() == 2, "{outcome:?}");
    // The next process receives the rest.
    let outcome = stopped("/a").await;
    assert_eq!(outcome.reason, FetchReason::Fetched, "{outcome:?}");
    assert!(web.requests()[1].start().is_some());
    assert_eq!(fs::read(vm.disk()).unwrap(), image());
    // The part of another URL is removed.
    let vm = Vm::new();
    let part =
        vm.0.path()
            .join("disk/disk.img.0123456789abcdef.download.part");
    fs::write(part, "x").unwrap();
    assert_eq!(
        vm.import_reason(&web.url("/b"), "").await,
        FetchReason::Fetched
    );
    assert_eq!(vm.files(), ["disk.img"]);
}

#[tokio::test]
async fn addresses_of_the_pod_are_refused_as_target_of_a_url() {
    let (vm, web) = (Vm::new(), server(image()));
    for host in ["127.0.0.1", "localhost", "[::1]", "127.1"] {
        let url = format!("http://{host}:{}/a", web.port);
        let outcome = vm.import(&url, "one", AddressPolicy::NoLocal).await;
        assert_eq!(outcome.reason, FetchReason::AddressRefused, "{outcome:?}");
        assert!(outcome.message.contains(host), "{outcome:?}");
    }
    assert!(web.requests().is_empty() && vm.files().is_empty());
}

#[tokio::test]
async fn a_second_import_does_not_touch_locked_runner_data() {
    let vm = Vm::new();
    let mut locks = DirectoryLocks::default();
    locks
        .acquire(&vm.0.path().join("data"), "dataDir")
        .await
        .unwrap();
    tokio::time::pause();
    assert_eq!(
        vm.import_reason("http://none/a", "one").await,
        FetchReason::DiskInUse
    );
    assert!(vm.files().is_empty());
    assert_eq!(fs::read_dir(vm.0.path().join("data")).unwrap().count(), 0);
}

#[tokio::test]
async fn the_checksum_and_the_format_of_the_user_count() {
    let (vm, web) = (Vm::new(), server(b"no disk image".to_vec()));
    let end = async |checksum: String, format: &str| {
        let mut request = vm.request(&web.url("/a"));
        request.fetch.checksum = Checksum::parse(&checksum);
        request.format = Some(format.to_owned());
        let pod = PodIdentity::default();
        let outcome = import(parsed(&request), pod, AddressPolicy::Unrestricted).await;
        (outcome.reason, outcome.message)
    };
    let sum = crate::api::hex(&Sha512::digest(b"no disk image"));
    let (reason, message) = end(format!("sha512:{}", "0".repeat(128)), "raw").await;
    assert_eq!(reason, FetchReason::ChecksumMismatch);
    assert!(message.contains(&sum), "{message}");
    let (reason, _) = end(format!("sha512:{sum}"), "qcow2").await;
    assert_eq!(reason, FetchReason::FormatNotSupported);
    let (reason, message) = end(format!("sha512:{sum}"), "raw").await;
    assert_eq!(reason, FetchReason::Fetched, "{message}");
    assert_eq!(fs::read(vm.disk()).unwrap(), b"no disk image");
}
