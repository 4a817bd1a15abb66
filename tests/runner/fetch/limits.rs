//! Limits of size, total size and time, and repositories that cannot be written.

use super::{MIB, Repository, image, sum};
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};
use support::web::{Reply, Web};

/// A server with that image, with or without a length.
fn web(image: Vec<u8>, chunked: bool) -> Web {
    Web::start(move |request| Reply {
        chunked,
        ..Reply::image(request, &image, "\"one\"")
    })
}

/// A volume of a few MiB as the repository.
struct Volume<'a>(&'a Repository);

impl<'a> Volume<'a> {
    fn of(repository: &'a Repository, options: &str) -> Self {
        let volume = Self(repository);
        volume.mount(options);
        volume
    }

    fn mount(&self, options: &str) {
        let mut command = Command::new("mount");
        command
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(self.0.path("images"));
        assert!(command.status().unwrap().success());
    }
}

impl Drop for Volume<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("--lazy")
            .arg(self.0.path("images"))
            .status();
    }
}

#[test]
fn image_above_the_size_limit_is_not_fetched() {
    let repository = Repository::new();
    let size = (3 * MIB).to_string();
    let large = web(image(3 * MIB + 1), false);
    let end = repository.fetch(&["--url", &large.url("/a.iso"), "--max-bytes", &size]);
    end.is("TooLarge", 25);
    assert!(
        end.message.contains("the maximum is 3.0 MiB") && repository.files().is_empty(),
        "{end:?}"
    );
    // An image without a declared size is counted.
    let endless = web(image(64 * MIB), true);
    let end = repository.fetch(&["--url", &endless.url("/a.iso"), "--max-bytes", &size]);
    end.is("TooLarge", 25);
    assert!(endless.served() < 32 * MIB as u64 && repository.files().is_empty());
    let fits = web(image(3 * MIB), false);
    repository
        .fetch(&["--url", &fits.url("/a.iso"), "--max-bytes", &size])
        .is("Fetched", 0);
}

#[test]
fn image_with_wrong_checksum_is_removed() {
    let repository = Repository::new();
    let image = image(MIB);
    let web = web(image.clone(), false);
    let end = repository.fetch(&["--url", &web.url("/a.iso"), "--sha256", &"0".repeat(64)]);
    end.is("ChecksumMismatch", 26);
    assert!(
        end.message.contains(&sum(&image)) && end.message.contains(&"0".repeat(64)),
        "{}",
        end.message
    );
    assert_eq!(
        (repository.files().len(), web.requests().len(), end.bytes),
        (0, 1, 0)
    );
}

#[test]
fn a_server_that_says_no_length_is_believed_by_the_sum() {
    let repository = Repository::new();
    let image = image(MIB);
    let body = image.clone();
    let web = Web::start(move |_| Reply::new(200, &[("X-No-Length", "")], body.clone()));
    repository
        .fetch(&["--url", &web.url("/a.iso"), "--sha256", &sum(&image)])
        .is("Fetched", 0);
    assert_eq!(fs::read(repository.file()).unwrap(), image);
}

#[test]
fn the_time_is_limited_and_the_next_fetch_goes_on() {
    let repository = Repository::new();
    let image = image(8 * MIB);
    let body = image.clone();
    let web = Web::start(move |request| {
        let pace = Duration::from_millis(if request.n == 0 { 50 } else { 0 });
        Reply {
            pace,
            ..Reply::image(request, &body, "\"one\"")
        }
    });
    let begin = Instant::now();
    let end = repository.fetch(&["--url", &web.url("/a.iso"), "--deadline", "3"]);
    let took = begin.elapsed().as_secs();
    end.is("DeadlineExceeded", 29);
    // Five times the configured time at most.
    assert!(
        (3..15).contains(&took) && end.bytes > 0 && end.message.contains("3 s"),
        "{took} s: {end:?}"
    );
    assert!(
        (1..=took as usize / 2 + 2).contains(&end.progress.len()),
        "a line in 2 s at most: {:?}",
        end.progress
    );
    repository
        .fetch(&["--url", &web.url("/a.iso"), "--deadline", "60"])
        .is("Fetched", 0);
    assert_eq!(web.requests()[1].start(), Some(end.bytes as usize));
    assert_eq!(fs::read(repository.file()).unwrap(), image);
}

#[test]
fn insufficient_space_is_reported_before_the_download() {
    let repository = Repository::new();
    let volume = Volume::of(&repository, "size=4m");
    let image = image(6 * MIB);
    let web = web(image.clone(), false);
    let arguments = ["--url", &web.url("/a.iso"), "--sha256", &sum(&image)];
    let end = repository.fetch(&arguments);
    end.is("RepositoryFull", 28);
    assert!(
        end.message.contains("images/fetched has ")
            && end.message.contains("the image needs 6.0 MiB"),
        "{}",
        end.message
    );
    assert!(repository.files().is_empty());
    volume.mount("remount,size=12m");
    repository.fetch(&arguments).is("Fetched", 0);
    assert_eq!(fs::read(repository.file()).unwrap(), image);
}

#[test]
fn full_repository_retains_the_partial_download() {
    let repository = Repository::new();
    let volume = Volume::of(&repository, "size=4m");
    let image = image(6 * MIB);
    let web = web(image.clone(), true);
    let arguments = ["--url", &web.url("/a.iso"), "--sha256", &sum(&image)];
    let end = repository.fetch(&arguments);
    end.is("RepositoryFull", 28);
    assert!(end.message.contains("no free space"), "{}", end.message);
    assert!(!repository.file().exists());
    volume.mount("remount,size=12m");
    repository.fetch(&arguments).is("Fetched", 0);
    assert_eq!(fs::read(repository.file()).unwrap(), image);
    assert_eq!(repository.files(), ["a.iso"]);
}

#[test]
fn repository_of_another_user_is_reported_with_uid_path_and_remedy() {
    let repository = Repository::new();
    let web = web(image(MIB), false);
    let end = repository
        .start_as(107, &["--url", &web.url("/a.iso")])
        .end();
    end.is("RepositoryNotWritable", 27);
    let folder = repository.path("images/fetched").display().to_string();
    for text in [
        folder.as_str(),
        "uid 107",
        "Permission denied",
        "chown -R 107:107",
    ] {
        assert!(end.message.contains(text), "{text:?} in {}", end.message);
    }
    assert!(web.requests().is_empty());
    std::os::unix::fs::chown(repository.path("images"), Some(107), Some(107)).unwrap();
    repository
        .start_as(107, &["--url", &web.url("/a.iso")])
        .end()
        .is("Fetched", 0);
}

#[test]
fn read_only_repository_is_reported() {
    let repository = Repository::new();
    let _volume = Volume::of(&repository, "size=4m,ro");
    let web = web(image(MIB), false);
    let end = repository.fetch(&["--url", &web.url("/a.iso")]);
    end.is("RepositoryNotWritable", 27);
    assert!(end.message.contains("read-only volume"), "{}", end.message);
}

#[test]
fn wrong_arguments_are_explained() {
    for wrong in [
        &["--url", "http://h/a", "--sha256", "abc"][..],
        &[],
        &["--url", "http://h/a", "--max-bytes", "1Gi"],
    ] {
        let end = Repository::new().fetch(wrong);
        assert_eq!(end.code, Some(2), "{end:?}");
        assert!(end.log.contains("error:"), "{}", end.log);
    }
}

#[test]
fn nothing_outside_of_the_repository_can_be_written() {
    let repository = Repository::new();
    let body = image(4 * MIB);
    let web = Web::start(move |request| Reply {
        pace: Duration::from_millis(50),
        ..Reply::image(request, &body, "\"one\"")
    });
    let url = web.url("/a.iso");
    let fetch = repository.start(&["--url", &url]);
    fetch.until("a part", || web.served() > MIB as u64);
    // Another program that may write there replaces the directory.
    fs::create_dir(repository.path("outside")).unwrap();
    fs::rename(
        repository.path("images/fetched"),
        repository.path("outside/fetched"),
    )
    .unwrap();
    std::os::unix::fs::symlink("../outside/fetched", repository.path("images/fetched")).unwrap();
    let end = fetch.end();
    if end.log.contains("kernel has no Landlock") {
        return;
    }
    assert_ne!(end.code, Some(0), "{end:#?}");
    assert!(!repository.path("outside/fetched/a.iso").exists());
}
