use super::*;
use crate::api::runner::fetch::{Checksum, ImportRequest, Request, UploadRequest};
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
            ..ClaimIdentity::default()
        };
        let pod = PodIdentity {
            claims: [(self.disk().display().to_string(), claim)].into(),
            ..PodIdentity::default()
        };
        import(parsed(self.request(url).arguments()), pod, policy).await
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

fn parsed(arguments: Vec<String>) -> Arguments {
    let arguments = std::iter::once("vm-runner".to_owned()).chain(arguments);
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
    let arguments = parsed(vm.request("https://h/a.qcow2").arguments());
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
        import(
            parsed(request.arguments()),
            pod,
            AddressPolicy::Unrestricted,
        )
        .await
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
        let outcome = import(
            parsed(request.arguments()),
            pod,
            AddressPolicy::Unrestricted,
        )
        .await;
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

/// Sends the head of a request and these bytes to the port, which may not be open yet.
async fn send(port: u16, head: &str, body: &[u8]) -> tokio::net::TcpStream {
    use tokio::io::AsyncWriteExt;
    let mut stream = loop {
        match tokio::net::TcpStream::connect(("127.0.0.1", port)).await {
            Ok(stream) => break stream,
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
        }
    };
    let head = format!("{head}\r\nHost: a\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    // A refused body is not read.
    let _ = stream.write_all(body).await;
    stream
}

/// The answer to a whole request.
async fn ask(port: u16, head: &str, body: &[u8]) -> String {
    use tokio::io::AsyncReadExt;
    let (mut stream, mut answer) = (send(port, head, body).await, String::new());
    let _ = stream.read_to_string(&mut answer).await;
    answer
}

#[tokio::test]
async fn an_upload_continues_after_a_break_and_in_another_process() {
    let (vm, image) = (Vm::new(), image());
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let request = UploadRequest {
        to: vm.disk().display().to_string(),
        data: vm.0.path().join("data").display().to_string(),
        checksum: Some(Checksum::Sha512(crate::api::hex(&Sha512::digest(&image)))),
        format: Some("raw".to_owned()),
    };
    let start = || {
        let mut arguments = parsed(request.arguments());
        assert_eq!(arguments.listen, Some(8080));
        arguments.listen = Some(port);
        tokio::spawn(import(
            arguments,
            PodIdentity::default(),
            AddressPolicy::NoLocal,
        ))
    };
    let stored = async || {
        let answer = ask(port, "HEAD / HTTP/1.1", b"").await.to_lowercase();
        let (_, length) = answer.split_once("content-length: ").unwrap();
        length.lines().next().unwrap().parse::<usize>().unwrap()
    };
    let first = start();
    let put = format!("PUT / HTTP/1.1\r\nContent-Length: {}", image.len());
    drop(send(port, &put, &image[..200_000]).await);
    while stored().await < 200_000 {}
    // A connection that does not end, as behind the tunnel of kubectl.
    let silent = send(port, &put, &image[..100_000]).await;
    while stored().await != 0 {}
    let newest = send(port, &put, &image[..400_000]).await;
    while stored().await == 0 {}
    drop((silent, newest));
    while stored().await < 400_000 {}
    first.abort();
    let _ = first.await;

    let second = start();
    let rest = |from: usize| {
        let (length, total) = (image.len() - from, image.len());
        let range = format!("Content-Range: bytes {from}-{}/{total}", total - 1);
        format!("PUT / HTTP/1.1\r\nContent-Length: {length}\r\n{range}")
    };
    let answer = ask(port, &rest(300_000), &image[300_000..]).await;
    assert!(answer.starts_with("HTTP/1.1 409"), "{answer}");
    assert!(answer.contains("-C "), "{answer}");
    let from = stored().await;
    let answer = ask(port, &rest(from), &image[from..]).await;
    assert!(answer.starts_with("HTTP/1.1 201"), "{from}: {answer}");
    assert_eq!(second.await.unwrap().reason, FetchReason::Fetched);
    assert_eq!(fs::read(vm.disk()).unwrap(), image);
    assert_eq!(vm.files(), ["disk.img"]);

    fs::remove_file(vm.disk()).unwrap();
    fs::remove_dir_all(vm.0.path().join("data")).unwrap();
    fs::create_dir(vm.0.path().join("data")).unwrap();
    let wrong = start();
    let answer = ask(port, &put, &vec![1; image.len()]).await;
    assert!(
        answer.starts_with("HTTP/1.1 422") && answer.contains("SHA-512"),
        "{answer}"
    );
    assert_eq!(wrong.await.unwrap().reason, FetchReason::ChecksumMismatch);
    assert_eq!(vm.files(), [""; 0]);
}
