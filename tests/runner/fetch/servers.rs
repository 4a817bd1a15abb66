//! Responses of servers, and the servers that are contacted.

use super::{MIB, Repository, image};
use rustix::net::{AddressFamily, SocketType};
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};
use support::web::{Authority, Reply, Web, tunnel};

#[test]
fn server_error_is_reported_with_its_status() {
    for (status, reason, code) in [
        (404, "ServerRefused", 23),
        (403, "ServerRefused", 23),
        (500, "ServerFailed", 24),
        (503, "ServerFailed", 24),
        (429, "ServerFailed", 24),
    ] {
        let repository = Repository::new();
        let web = Web::start(move |_| Reply::new(status, &[], b"sorry".to_vec()));
        let end = repository.fetch(&["--url", &web.url("/a.iso?key=sesame")]);
        end.is(reason, code);
        assert!(
            end.message.contains(&status.to_string()) && end.message.contains("/a.iso"),
            "{}",
            end.message
        );
        assert_eq!(
            (web.requests().len(), repository.files().len()),
            (1, 0),
            "nothing is left behind"
        );
    }
}

#[test]
fn server_with_retry_after_is_retried_after_the_delay() {
    for status in [429, 503] {
        let repository = Repository::new();
        let web = Web::start(move |request| match request.n {
            0 => Reply::new(status, &[("Retry-After", "2")], Vec::new()),
            _ => Reply::image(request, b"an image", "\"one\""),
        });
        let begin = Instant::now();
        let end = repository.fetch(&["--url", &web.url("/a.iso")]);
        end.is("Fetched", 0);
        assert!(
            begin.elapsed() >= Duration::from_secs(2)
                && end.log.contains("as the server requests (Retry-After)"),
            "{}",
            end.log
        );
        assert_eq!(web.requests().len(), 2);
    }
    // Longer than this test waits.
    let repository = Repository::new();
    let web = Web::start(|_| Reply::new(503, &[("Retry-After", "86400")], Vec::new()));
    let end = repository.fetch(&["--url", &web.url("/a.iso")]);
    end.is("ServerFailed", 24);
    assert_eq!(web.requests().len(), 1);
}

#[test]
fn a_server_that_is_waited_for_does_not_hold_up_the_end() {
    let repository = Repository::new();
    let web = Web::start(|_| Reply::new(503, &[("Retry-After", "60")], Vec::new()));
    let url = web.url("/a.iso");
    let fetch = repository.start(&["--url", &url]);
    fetch.until("the first answer", || {
        web.requests().len() == 1 && fetch.read("log").contains("retries the download in 60 s")
    });
    fetch.signal("-TERM");
    fetch.end().is("Interrupted", 30);
    assert_eq!(
        web.requests().len(),
        1,
        "it has exited before the time for another try"
    );
    repository
        .fetch(&["--url", &url, "--deadline", "2"])
        .is("DeadlineExceeded", 29);
}

#[test]
fn response_that_is_not_an_image_is_rejected() {
    for (reply, text) in [
        (
            Reply::new(200, &[("Content-Encoding", "gzip")], vec![1; 100]),
            "compressed (gzip)",
        ),
        (
            Reply::new(200, &[("X-No-Length", "")], vec![1; 100]),
            "sends no Content-Length",
        ),
        (Reply::new(200, &[], Vec::new()), "is empty"),
        (Reply::new(302, &[], Vec::new()), "without a Location"),
        (
            Reply::new(206, &[("Content-Range", "bytes 5-9/10")], vec![1; 5]),
            "status 206",
        ),
    ] {
        let repository = Repository::new();
        let web = Web::start(move |_| reply.clone());
        let end = repository.fetch(&["--url", &web.url("/a.iso")]);
        end.is("ServerRefused", 23);
        assert!(end.message.contains(text), "{}", end.message);
        assert!(repository.files().is_empty());
    }
}

#[test]
fn a_server_may_send_on_ten_times() {
    let image = image(MIB);
    for (hops, reason, code) in [(10, "Fetched", 0), (11, "ServerRefused", 23)] {
        let repository = Repository::new();
        let body = image.clone();
        let web = Web::start(move |request| match request.n {
            n if n < hops => Reply::redirect(["b.iso", "/c/d.iso", "?e", "../f.iso"][n % 4]),
            _ => Reply::image(request, &body, "\"one\""),
        });
        repository
            .fetch(&["--url", &web.url("/x/a.iso")])
            .is(reason, code);
        assert_eq!(web.requests().len(), 11);
        let lines: Vec<String> = web
            .requests()
            .into_iter()
            .take(5)
            .map(|request| request.line)
            .collect();
        let paths: Vec<&str> = lines
            .iter()
            .map(|line| line.split(' ').nth(1).unwrap())
            .collect();
        assert_eq!(
            paths,
            ["/x/a.iso", "/x/b.iso", "/c/d.iso", "/c/d.iso?e", "/f.iso"]
        );
    }
}

#[test]
fn redirect_to_a_disallowed_scheme_is_rejected() {
    let open = Web::start(|_| Reply::new(200, &[], vec![1; 10]));
    for location in [
        "file:///etc/passwd".to_owned(),
        "ftp://h/a".to_owned(),
        open.url("/a"),
    ] {
        let repository = Repository::new();
        let authority = Authority::make(repository.dir.path());
        let text = location.clone();
        let web = Web::start_secure(&authority, move |_| Reply::redirect(&text));
        let mut repository = Repository::new();
        repository.env.push((
            "SSL_CERT_FILE".to_owned(),
            authority.0.join("ca.pem").display().to_string(),
        ));
        let end = repository.fetch(&[
            "--url",
            &web.url("/a.iso"),
            "--schemes",
            "https,http,file,ftp",
        ]);
        end.is("SchemeNotAllowed", 20);
        assert!(end.message.contains(&location), "{}", end.message);
    }
    let repository = Repository::new();
    repository
        .fetch(&["--url", &open.url("/a.iso"), "--schemes", "https"])
        .is("SchemeNotAllowed", 20);
    assert!(open.requests().is_empty());
}

#[test]
fn url_with_password_is_rejected_and_no_secret_is_printed() {
    let web = Web::start(|_| Reply::new(404, &[], Vec::new()));
    for (url, reason, code) in [
        (
            format!("http://anna:sesame@127.0.0.1:{}/a.iso", web.port),
            "InvalidUrl",
            21,
        ),
        (web.url("/a.iso?signature=sesame"), "ServerRefused", 23),
        ("http://anna:sesame@/a.iso".to_owned(), "InvalidUrl", 21),
        (
            "ftp://anna:sesame@h/a.iso".to_owned(),
            "SchemeNotAllowed",
            20,
        ),
    ] {
        let end = Repository::new().fetch(&["--url", &url]);
        end.is(reason, code);
        assert!(!format!("{end:?}").contains("sesame"), "{end:?}");
    }
    assert_eq!(web.requests().len(), 1);
}

#[test]
fn only_trusted_servers_are_used() {
    let mut repository = Repository::new();
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::make(dir.path());
    let image = image(3 * MIB);
    let body = image.clone();
    let web = Web::start_secure(&authority, move |request| {
        Reply::image(request, &body, "\"one\"")
    });
    let end = repository.fetch(&["--url", &web.url("/a.iso")]);
    end.is("ServerUnreachable", 22);
    assert!(
        end.message.contains("UnknownIssuer") && end.message.contains("--authorities"),
        "{}",
        end.message
    );
    assert_eq!(web.requests().len(), 0);
    repository.env.push((
        "SSL_CERT_FILE".to_owned(),
        dir.path().join("ca.pem").display().to_string(),
    ));
    let other_name = web.url("/a.iso").replace("localhost", "127.0.0.1");
    let end = repository.fetch(&["--url", &other_name]);
    end.is("ServerUnreachable", 22);
    assert!(
        end.message.contains("not valid for name"),
        "{}",
        end.message
    );
    repository
        .fetch(&["--url", &web.url("/a.iso")])
        .is("Fetched", 0);
    assert_eq!(fs::read(repository.file()).unwrap(), image);
}

#[test]
fn configured_authorities_are_trusted_besides_the_system_authorities() {
    let mut repository = Repository::new();
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let servers: Vec<Web> = dirs
        .iter()
        .map(|dir| {
            Web::start_secure(&Authority::make(dir.path()), |request| {
                Reply::image(request, b"an image", "\"one\"")
            })
        })
        .collect();
    repository.env.push((
        "SSL_CERT_FILE".to_owned(),
        dirs[0].path().join("ca.pem").display().to_string(),
    ));
    // The layout of a Secret volume: a link to a link.
    let volume = repository.path("authorities");
    fs::create_dir_all(volume.join("..1")).unwrap();
    fs::copy(dirs[1].path().join("ca.pem"), volume.join("..1/ca.crt")).unwrap();
    symlink("..1", volume.join("..data")).unwrap();
    symlink("..data/ca.crt", volume.join("ca.crt")).unwrap();
    let file = volume.join("ca.crt").display().to_string();
    let fetch = |server: &Web, options: &[&str]| {
        let _ = fs::remove_file(repository.file());
        repository.fetch(&[&["--url", &server.url("/a.iso")], options].concat())
    };
    fetch(&servers[1], &[]).is("ServerUnreachable", 22);
    for server in &servers {
        fetch(server, &["--authorities", &file]).is("Fetched", 0);
    }
    fs::write(volume.join("..1/ca.crt"), "no certificate").unwrap();
    let end = fetch(&servers[0], &["--authorities", &file]);
    end.is("ServerUnreachable", 22);
    assert!(
        end.message
            .contains("ca.crt contains no certificate in PEM format"),
        "{}",
        end.message
    );
    fs::remove_file(volume.join("..1/ca.crt")).unwrap();
    let end = fetch(&servers[0], &["--authorities", &file]);
    end.is("ServerUnreachable", 22);
    assert!(end.message.contains(&file), "{}", end.message);
}

#[test]
fn unreachable_server_is_named() {
    // A reserved port without a listener.
    let silent = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&silent, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let free = SocketAddrV4::try_from(rustix::net::getsockname(&silent).unwrap())
        .unwrap()
        .port();
    for (url, text) in [
        (
            format!("http://127.0.0.1:{free}/a.iso"),
            "Connection refused",
        ),
        ("http://nobody.invalid/a.iso".to_owned(), "nobody.invalid"),
        (
            format!("https://127.0.0.1:{free}/a.iso"),
            "Connection refused",
        ),
    ] {
        let repository = Repository::new();
        let end = repository.fetch(&["--url", &url]);
        end.is("ServerUnreachable", 22);
        assert!(end.message.contains(text), "{}", end.message);
        assert!(repository.files().is_empty());
    }
}

#[test]
fn silent_server_times_out_and_received_bytes_are_retained() {
    for stall in [None, Some(MIB)] {
        let repository = Repository::new();
        let image = image(2 * MIB);
        let web = Web::start(move |request| {
            if stall.is_none() {
                std::thread::sleep(Duration::from_secs(600));
            }
            let mut reply = Reply::image(request, &image, "\"one\"");
            // The second request receives nothing new, so there is no third one.
            reply.stall = if request.n == 0 { stall } else { Some(0) };
            reply
        });
        let begin = Instant::now();
        let end = repository.fetch(&["--url", &web.url("/a.iso"), "--silence", "2"]);
        end.is("ServerUnreachable", 22);
        assert!(
            end.message.contains("has sent no data for 2 s"),
            "{}",
            end.message
        );
        assert_eq!(end.bytes, stall.unwrap_or_default() as u64);
        assert!(begin.elapsed() >= Duration::from_secs(2));
        assert_eq!(web.requests().len(), if stall.is_some() { 2 } else { 1 });
    }
}

#[test]
fn a_server_that_lies_about_the_length_leaves_no_image() {
    let repository = Repository::new();
    let web = Web::start(|request| {
        let body = if request.n == 0 {
            vec![1; MIB]
        } else {
            Vec::new()
        };
        Reply::new(200, &[("Content-Length", "2097152")], body)
    });
    repository
        .fetch(&["--url", &web.url("/a.iso")])
        .is("ServerUnreachable", 22);
    assert!(
        repository.files().is_empty(),
        "a part without its description is discarded"
    );
    // More bytes than the declared size.
    let web = Web::start(|request| match request.n {
        0 => Reply {
            cut: Some(MIB),
            ..Reply::new(200, &[("ETag", "\"one\"")], vec![1; 2 * MIB])
        },
        _ => {
            let headers = [
                ("ETag", "\"one\""),
                ("Content-Range", "bytes 1048576-2097151/2097152"),
            ];
            Reply {
                chunked: true,
                ..Reply::new(206, &headers, vec![1; 3 * MIB])
            }
        }
    });
    repository
        .fetch(&["--url", &web.url("/a.iso")])
        .is("ServerRefused", 23);
    assert!(repository.files().is_empty());
}

#[test]
fn chunks_without_a_length_are_taken_and_cut_ones_are_not() {
    let image = image(3 * MIB);
    for cut in [None, Some(MIB)] {
        let repository = Repository::new();
        let body = image.clone();
        let web = Web::start(move |_| Reply {
            chunked: true,
            cut,
            ..Reply::new(200, &[], body.clone())
        });
        let end = repository.fetch(&["--url", &web.url("/a.iso")]);
        match cut {
            None => assert_eq!(fs::read(repository.file()).unwrap(), image),
            Some(_) => end.is("ServerUnreachable", 22),
        }
        assert_eq!(repository.file().exists(), cut.is_none());
    }
}

#[test]
fn proxies_are_asked_where_the_environment_names_them() {
    let mut repository = Repository::new();
    let image = image(MIB);
    let body = image.clone();
    let proxy = Web::start(move |request| Reply::image(request, &body, "\"one\""));
    let open = format!("http://anna:sesame@127.0.0.1:{}", proxy.port);
    repository.env.push(("http_proxy".to_owned(), open));
    let end = repository.fetch(&["--url", "http://images.invalid/a.iso"]);
    end.is("Fetched", 0);
    assert!(!format!("{end:?}").contains("sesame"));
    let request = &proxy.requests()[0];
    assert_eq!(request.line, "GET http://images.invalid/a.iso HTTP/1.1");
    assert_eq!(
        (
            request.header("host"),
            request.header("proxy-authorization").is_some()
        ),
        (Some("images.invalid"), true)
    );
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::make(dir.path());
    let web = Web::start_secure(&authority, |request| {
        Reply::image(request, b"an image", "\"one\"")
    });
    let (port, targets) = tunnel();
    fs::remove_file(repository.file()).unwrap();
    repository.env.push((
        "https_proxy".to_owned(),
        format!("http://anna:sesame@127.0.0.1:{port}"),
    ));
    repository.env.push((
        "SSL_CERT_FILE".to_owned(),
        dir.path().join("ca.pem").display().to_string(),
    ));
    repository
        .fetch(&["--url", &web.url("/a.iso")])
        .is("Fetched", 0);
    let targets = targets.lock().unwrap();
    assert!(
        targets[0].starts_with("CONNECT localhost:")
            && targets[0].contains("Proxy-Authorization: Basic "),
        "{targets:?}"
    );
    assert_eq!(
        web.requests()[0].header("proxy-authorization"),
        None,
        "that is the proxy's alone"
    );
}
