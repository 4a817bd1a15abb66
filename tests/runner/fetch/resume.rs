//! Received data is not downloaded twice, and never combined with data of another image.

use super::{MIB, Repository, image, sum};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};
use support::web::{Reply, Request, Web};

const PACE: Duration = Duration::from_millis(20);

/// A server. That function changes its first responses.
fn web(
    size: usize,
    change: impl Fn(&Request, &mut Reply) + Send + Sync + 'static,
) -> (Web, Vec<u8>) {
    let image = image(size);
    let body = image.clone();
    let web = Web::start(move |request| {
        let mut reply = Reply::image(request, &body, "\"one\"");
        change(request, &mut reply);
        reply
    });
    (web, image)
}

#[test]
fn an_image_is_fetched_once_and_found_ever_after() {
    let repository = Repository::new();
    let (web, image) = web(3 * MIB + 17, |_, _| {});
    let end = repository.fetch(&[
        "--url",
        &web.url("/a.iso"),
        "--sha256",
        &sum(&image).to_uppercase(),
    ]);
    end.is("Fetched", 0);
    assert_eq!((end.bytes, end.message.as_str()), (image.len() as u64, ""));
    assert_eq!(end.progress.first().unwrap()["bytes"], 0);
    assert_eq!(fs::read(repository.file()).unwrap(), image);
    assert_eq!(repository.files(), ["a.iso"]);
    assert_eq!(
        fs::metadata(repository.file())
            .unwrap()
            .permissions()
            .mode()
            & 0o777,
        0o644
    );
    assert_eq!(
        web.requests()[0].header("accept-encoding"),
        Some("identity")
    );
    assert_eq!(web.requests()[0].header("range"), None);
    let end = repository.fetch(&["--url", &web.url("/a.iso")]);
    end.is("AlreadyThere", 0);
    assert_eq!((end.bytes, web.requests().len()), (image.len() as u64, 1));
}

#[test]
fn interrupted_download_resumes_at_the_interruption() {
    let repository = Repository::new();
    let (web, image) = web(4 * MIB, |request, reply| {
        reply.cut = match request.n {
            0 => Some(MIB),
            1 => Some(2 * MIB),
            _ => None,
        }
    });
    let end = repository.fetch(&["--url", &web.url("/a.iso"), "--sha256", &sum(&image)]);
    end.is("Fetched", 0);
    assert_eq!(fs::read(repository.file()).unwrap(), image);
    let starts: Vec<_> = web.requests().iter().map(Request::start).collect();
    assert_eq!(starts, [None, Some(MIB), Some(3 * MIB)]);
    assert_eq!(web.served(), image.len() as u64);
}

#[test]
fn repeated_disconnects_end_the_download_and_retain_the_partial_file() {
    let repository = Repository::new();
    let (web, _) = web(4 * MIB, |_, reply| reply.cut = Some(MIB / 2));
    let begin = Instant::now();
    let end = repository.fetch(&["--url", &web.url("/a.iso")]);
    end.is("ServerUnreachable", 22);
    assert!(
        begin.elapsed() >= Duration::from_secs(7),
        "1, 2 and 4 s are between the tries"
    );
    assert_eq!((end.bytes, web.requests().len()), (2 * MIB as u64, 4));
    assert_eq!(repository.files(), ["a.iso.part", "a.iso.part.json"]);
    assert!(end.message.contains("/a.iso"), "{}", end.message);
}

#[test]
fn nothing_comes_twice_that_was_on_the_disk_when_the_program_was_killed() {
    let repository = Repository::new();
    let (web, image) = web(32 * MIB, |request, reply| {
        if request.n == 0 {
            reply.pace = PACE;
        }
    });
    let arguments = ["--url", &web.url("/a.iso"), "--sha256", &sum(&image)];
    let fetch = repository.start(&arguments);
    fetch.until("some of it", || web.served() > 20 * MIB as u64);
    assert_eq!(
        (fetch.status("NoNewPrivs:"), fetch.status("Seccomp:")),
        ("1".to_owned(), "2".to_owned())
    );
    let most: u64 = fetch.status("VmHWM:").parse().unwrap();
    assert!(most < 40 << 10, "{most} KiB of memory");
    fetch.signal("-KILL");
    fetch.end();
    assert!(!repository.file().exists());
    let before = web.served();
    let end = repository.fetch(&arguments);
    end.is("Fetched", 0);
    assert_eq!(fs::read(repository.file()).unwrap(), image);
    let start = web.requests()[1].start().unwrap();
    assert!(start >= 8 * MIB, "{start}");
    // The connection of the killed process may have received another piece.
    assert!(web.served() - before <= (image.len() - start + MIB) as u64);
    assert_eq!(end.progress[0]["bytes"], start);
    assert_eq!(end.progress[0]["total"], image.len());
}

#[test]
fn a_fetch_that_is_asked_to_end_does_so_at_once_and_loses_nothing() {
    let repository = Repository::new();
    // The server stalls in the middle, for longer than this test waits for the exit.
    let (web, image) = web(8 * MIB, |request, reply| {
        if request.n == 0 {
            (reply.pace, reply.stall) = (PACE, Some(4 * MIB));
        }
    });
    let fetch = repository.start(&["--url", &web.url("/a.iso"), "--silence", "600"]);
    let part = repository.path("images/fetched/a.iso.part");
    fetch.until("some of it", || {
        fs::metadata(&part).is_ok_and(|part| part.len() > MIB as u64)
    });
    fetch.signal("-TERM");
    let end = fetch.end();
    end.is("Interrupted", 30);
    assert!(end.bytes > MIB as u64, "{end:?}");
    repository
        .fetch(&["--url", &web.url("/a.iso")])
        .is("Fetched", 0);
    assert_eq!(web.requests()[1].start(), Some(end.bytes as usize));
    assert_eq!(fs::read(repository.file()).unwrap(), image);
}

#[test]
fn changed_image_is_fetched_from_the_start() {
    let repository = Repository::new();
    let (old, new) = (
        image(3 * MIB),
        image(3 * MIB).iter().rev().copied().collect::<Vec<u8>>(),
    );
    let body = new.clone();
    let web = Web::start(move |request| {
        let mut reply = match request.n {
            0 => Reply::image(request, &old, "\"old\""),
            _ => Reply::image(request, &body, "\"new\""),
        };
        reply.cut = (request.n == 0).then_some(2 * MIB);
        reply
    });
    repository
        .fetch(&["--url", &web.url("/a.iso")])
        .is("Fetched", 0);
    assert_eq!(web.requests()[1].header("if-range"), Some("\"old\""));
    assert_eq!(fs::read(repository.file()).unwrap(), new);
}

#[test]
fn a_server_that_knows_no_ranges_is_asked_for_all() {
    for tag in [Some("\"one\""), Some("W/\"weak\""), None] {
        let repository = Repository::new();
        let image = image(3 * MIB);
        let body = image.clone();
        let web = Web::start(move |request| {
            let mut reply = Reply::new(200, &[], body.clone());
            reply
                .headers
                .extend(tag.map(|tag| ("ETag".to_owned(), tag.to_owned())));
            reply.cut = (request.n == 0).then_some(2 * MIB);
            reply
        });
        repository
            .fetch(&["--url", &web.url("/a.iso")])
            .is("Fetched", 0);
        assert_eq!(
            web.requests()[1].start().is_some(),
            tag == Some("\"one\""),
            "only a strong tag identifies the image"
        );
        assert_eq!(fs::read(repository.file()).unwrap(), image, "{tag:?}");
    }
}

#[test]
fn a_date_of_change_tells_as_well_as_a_tag() {
    let repository = Repository::new();
    let image = image(3 * MIB);
    let body = image.clone();
    let changed = "Sun, 06 Nov 1994 08:49:37 GMT";
    let web = Web::start(move |request| {
        let mut reply = Reply::image(request, &body, changed);
        reply.headers[0].0 = "Last-Modified".to_owned();
        reply.headers.push((
            "Date".to_owned(),
            "Mon, 07 Nov 1994 08:49:37 GMT".to_owned(),
        ));
        reply.cut = (request.n == 0).then_some(2 * MIB);
        reply
    });
    repository
        .fetch(&["--url", &web.url("/a.iso")])
        .is("Fetched", 0);
    assert_eq!(web.requests()[1].header("if-range"), Some(changed));
    assert_eq!(
        (fs::read(repository.file()).unwrap(), web.served()),
        (image, 3 * MIB as u64)
    );
}

#[test]
fn a_wrong_answer_for_the_rest_is_not_put_behind_the_part() {
    let repository = Repository::new();
    let (web, image) = web(3 * MIB, |request, reply| match request.n {
        0 => reply.cut = Some(2 * MIB),
        1 => {
            let size = 3 * MIB;
            *reply = Reply::new(
                206,
                &[("Content-Range", &format!("bytes 0-{}/{size}", size - 1))],
                vec![0; size],
            );
        }
        _ => {}
    });
    repository
        .fetch(&["--url", &web.url("/a.iso")])
        .is("Fetched", 0);
    assert_eq!(web.requests()[2].start(), None);
    assert_eq!(fs::read(repository.file()).unwrap(), image);
}

#[test]
fn corrupt_partial_file_is_detected_by_checksum_and_fetched_again() {
    let repository = Repository::new();
    let (web, image) = web(3 * MIB, |_, _| {});
    let file = |name: &str| repository.path("images/fetched").join(name);
    fs::create_dir(repository.path("images/fetched")).unwrap();
    fs::write(file("a.iso.part"), vec![7; MIB]).unwrap();
    fs::write(
        file("a.iso.part.json"),
        format!(r#"{{"bytes":{MIB},"validator":{{"eTag":"\"one\""}}}}"#),
    )
    .unwrap();
    repository
        .fetch(&["--url", &web.url("/a.iso"), "--sha256", &sum(&image)])
        .is("Fetched", 0);
    let starts: Vec<_> = web.requests().iter().map(Request::start).collect();
    assert_eq!(starts, [Some(MIB), None]);
    assert_eq!(fs::read(repository.file()).unwrap(), image);
    assert_eq!(repository.files(), ["a.iso"]);
}

#[test]
fn a_part_that_is_whole_needs_no_byte() {
    let repository = Repository::new();
    let (web, image) = web(MIB, |_, _| {});
    let file = |name: &str| repository.path("images/fetched").join(name);
    fs::create_dir(repository.path("images/fetched")).unwrap();
    fs::write(file("a.iso.part"), &image).unwrap();
    let record = format!(r#"{{"bytes":{MIB},"total":{MIB},"validator":{{"eTag":"\"one\""}}}}"#);
    fs::write(file("a.iso.part.json"), record).unwrap();
    repository
        .fetch(&["--url", &web.url("/a.iso")])
        .is("Fetched", 0);
    assert_eq!(fs::read(repository.file()).unwrap(), image);
    assert!(web.requests().is_empty());
}

#[test]
fn a_part_that_is_longer_than_the_image_is_thrown_away() {
    let repository = Repository::new();
    let (web, image) = web(MIB, |_, _| {});
    let file = |name: &str| repository.path("images/fetched").join(name);
    fs::create_dir(repository.path("images/fetched")).unwrap();
    fs::write(file("a.iso.part"), vec![7; 2 * MIB]).unwrap();
    let record = format!(
        r#"{{"bytes":{},"validator":{{"eTag":"\"one\""}}}}"#,
        2 * MIB
    );
    fs::write(file("a.iso.part.json"), record).unwrap();
    repository
        .fetch(&["--url", &web.url("/a.iso")])
        .is("Fetched", 0);
    assert_eq!(fs::read(repository.file()).unwrap(), image);
    let starts: Vec<_> = web.requests().iter().map(Request::start).collect();
    assert_eq!(starts, [Some(2 * MIB), None]);
}

#[test]
fn concurrent_fetches_download_the_image_once() {
    let repository = Repository::new();
    let (web, image) = web(4 * MIB, |_, reply| reply.pace = PACE);
    let arguments = ["--url", &web.url("/a.iso")];
    let first = repository.start(&arguments);
    first.until("some of it", || web.served() > 0);
    let second = repository.start(&arguments);
    second.until("it waits", || {
        second
            .read("log")
            .contains("another process is downloading")
    });
    first.end().is("Fetched", 0);
    second.end().is("AlreadyThere", 0);
    assert_eq!(
        (web.requests().len(), repository.files()),
        (1, vec!["a.iso".to_owned()])
    );
    assert_eq!(fs::read(repository.file()).unwrap(), image);
}

#[test]
fn waiting_process_continues_when_the_first_is_killed() {
    let repository = Repository::new();
    let (web, image) = web(20 * MIB, |request, reply| {
        if request.n == 0 {
            reply.pace = PACE;
        }
    });
    let arguments = ["--url", &web.url("/a.iso")];
    let first = repository.start(&arguments);
    first.until("some of it", || web.served() > 12 * MIB as u64);
    let second = repository.start(&arguments);
    second.until("it waits", || {
        second
            .read("log")
            .contains("another process is downloading")
    });
    first.signal("-KILL");
    second.end().is("Fetched", 0);
    assert!(web.requests()[1].start().unwrap() >= 8 * MIB);
    assert_eq!(fs::read(repository.file()).unwrap(), image);
}
