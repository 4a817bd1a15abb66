//! A web server with configurable responses: disconnections, stalls, wrong headers, redirections.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A request: its first line, and its headers in lower case.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Method, target and version.
    pub line: String,
    /// Names in lower case, and values.
    pub headers: Vec<(String, String)>,
    /// The number of previous requests.
    pub n: usize,
}

impl Request {
    /// The value of a header. The name is in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// The start of the requested range.
    #[must_use]
    pub fn start(&self) -> Option<usize> {
        self.header("range")?
            .strip_prefix("bytes=")?
            .strip_suffix('-')?
            .parse()
            .ok()
    }
}

/// A response.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// Names and values.
    pub headers: Vec<(String, String)>,
    /// The complete body.
    pub body: Vec<u8>,
    /// The number of bytes of the body after which the connection is closed.
    pub cut: Option<usize>,
    /// The number of bytes of the body after which the server stalls.
    pub stall: Option<usize>,
    /// The delay for each 64 KiB.
    pub pace: Duration,
    /// Whether the body is sent in chunks, without a length.
    pub chunked: bool,
}

impl Reply {
    /// A response with this body.
    #[must_use]
    pub fn new(status: u16, headers: &[(&str, &str)], body: Vec<u8>) -> Self {
        let headers = headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        Self {
            status,
            headers,
            body,
            cut: None,
            stall: None,
            pace: Duration::ZERO,
            chunked: false,
        }
    }

    /// A redirection to that URL.
    #[must_use]
    pub fn redirect(location: &str) -> Self {
        Self::new(302, &[("Location", location)], Vec::new())
    }

    /// The image with that entity tag, or the requested rest of it, as a correct server sends it.
    #[must_use]
    pub fn image(request: &Request, image: &[u8], tag: &str) -> Self {
        let is_same = request.header("if-range") == Some(tag);
        let size = image.len();
        match request.start().filter(|_| is_same) {
            Some(start) if start < size => {
                let range = format!("bytes {start}-{}/{size}", size - 1);
                Self::new(
                    206,
                    &[("ETag", tag), ("Content-Range", &range)],
                    image[start..].to_vec(),
                )
            }
            Some(_) => Self::new(
                416,
                &[("Content-Range", &format!("bytes */{size}"))],
                Vec::new(),
            ),
            None => Self::new(200, &[("ETag", tag)], image.to_vec()),
        }
    }
}

/// A server, which runs until the process exits.
pub struct Web {
    /// The port on the loopback interface.
    pub port: u16,
    requests: Arc<Mutex<Vec<Request>>>,
    served: Arc<AtomicU64>,
    secure: bool,
}

type Answer = dyn Fn(&Request) -> Reply + Send + Sync;

impl Web {
    /// A server without TLS.
    ///
    /// # Panics
    /// No port is free.
    pub fn start(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_as(None, answer)
    }

    /// A server for `localhost` with a certificate of that authority.
    ///
    /// # Panics
    /// No port is free.
    #[must_use]
    pub fn start_secure(
        authority: &Authority,
        answer: impl Fn(&Request) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::start_as(Some(authority.server()), answer)
    }

    fn start_as(
        tls: Option<Arc<rustls::ServerConfig>>,
        answer: impl Fn(&Request) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let web = Self {
            port: listener.local_addr().unwrap().port(),
            requests: Arc::default(),
            served: Arc::default(),
            secure: tls.is_some(),
        };
        let (requests, served, answer) = (
            Arc::clone(&web.requests),
            Arc::clone(&web.served),
            Arc::new(answer),
        );
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (requests, served, answer) = (
                    Arc::clone(&requests),
                    Arc::clone(&served),
                    Arc::clone(&answer),
                );
                let tls = tls.clone();
                thread::spawn(move || {
                    let stream = stream.unwrap();
                    match tls {
                        None => serve(stream, &requests, &served, answer.as_ref()),
                        Some(tls) => {
                            let connection = rustls::ServerConnection::new(tls).unwrap();
                            let stream = rustls::StreamOwned::new(connection, stream);
                            serve(stream, &requests, &served, answer.as_ref());
                        }
                    }
                });
            }
        });
        web
    }

    /// The URL of a path.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        let (scheme, host) = if self.secure {
            ("https", "localhost")
        } else {
            ("http", "127.0.0.1")
        };
        format!("{scheme}://{host}:{}{path}", self.port)
    }

    /// The requests so far.
    ///
    /// # Panics
    /// A connection's thread has panicked.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// The number of sent body bytes.
    #[must_use]
    pub fn served(&self) -> u64 {
        self.served.load(Ordering::SeqCst)
    }
}

fn serve(
    stream: impl Read + Write,
    requests: &Mutex<Vec<Request>>,
    served: &AtomicU64,
    answer: &Answer,
) {
    let mut stream = BufReader::new(stream);
    let mut request = Request::default();
    loop {
        let mut line = String::new();
        // A client that does not trust the certificate disconnects.
        if stream.read_line(&mut line).unwrap_or_default() == 0 {
            return;
        }
        match line.trim().split_once(": ") {
            _ if line.trim().is_empty() => break,
            Some((name, value)) => request
                .headers
                .push((name.to_ascii_lowercase(), value.to_owned())),
            None => line.trim().clone_into(&mut request.line),
        }
    }
    {
        let mut requests = requests.lock().unwrap();
        request.n = requests.len();
        requests.push(request.clone());
    }
    let _ = send(stream.get_mut(), &answer(&request), served);
}

fn send(stream: &mut impl Write, reply: &Reply, served: &AtomicU64) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {} Text\r\nConnection: close\r\n", reply.status);
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let says = |name: &str| {
        reply
            .headers
            .iter()
            .any(|(key, _)| key.eq_ignore_ascii_case(name))
    };
    if reply.chunked {
        head.push_str("Transfer-Encoding: chunked\r\n");
    } else if !says("content-length") && !says("x-no-length") {
        head.push_str(&format!("Content-Length: {}\r\n", reply.body.len()));
    }
    write!(stream, "{head}\r\n")?;
    let most = reply
        .cut
        .or(reply.stall)
        .unwrap_or(reply.body.len())
        .min(reply.body.len());
    for piece in reply.body[..most].chunks(64 << 10) {
        if reply.chunked {
            write!(stream, "{:x}\r\n", piece.len())?;
        }
        stream.write_all(piece)?;
        if reply.chunked {
            write!(stream, "\r\n")?;
        }
        stream.flush()?;
        served.fetch_add(piece.len() as u64, Ordering::SeqCst);
        thread::sleep(reply.pace);
    }
    if reply.stall.is_some() {
        thread::sleep(Duration::from_secs(600));
    }
    if reply.chunked && reply.cut.is_none() {
        write!(stream, "0\r\n\r\n")?;
    }
    stream.flush()
}

/// Starts an HTTP CONNECT proxy. Returns its port and the requested targets.
pub fn tunnel() -> (u16, Arc<Mutex<Vec<String>>>) {
    tunnel_at("127.0.0.1")
}

/// The same at that address.
pub fn tunnel_at(address: &str) -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let (port, targets) = (
        listener.local_addr().unwrap().port(),
        Arc::new(Mutex::new(Vec::new())),
    );
    let seen = Arc::clone(&targets);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut client = stream.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                client.read_exact(&mut byte).unwrap();
                head.extend(byte);
            }
            let head = String::from_utf8(head).unwrap();
            let target = head.split(' ').nth(1).unwrap().to_owned();
            seen.lock().unwrap().push(head);
            let mut server = TcpStream::connect(target).unwrap();
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut from, &mut to));
            thread::spawn(move || std::io::copy(&mut server, &mut client));
        }
    });
    (port, targets)
}

/// A certificate authority of the test and a certificate for localhost, in a directory.
pub struct Authority<'a>(pub &'a Path);

impl<'a> Authority<'a> {
    /// Creates an authority and the certificate of a server in that directory.
    ///
    /// # Panics
    /// OpenSSL is not installed.
    pub fn make(dir: &'a Path) -> Self {
        let openssl = |arguments: &str| {
            let output = Command::new("openssl")
                .args(arguments.split(' '))
                .current_dir(dir)
                .output()
                .unwrap();
            assert!(
                output.status.success(),
                "openssl: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        };
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
        openssl(&format!(
            "req -x509 {key} -keyout ca.key -out ca.pem -subj /CN=test-ca -days 2"
        ));
        openssl(&format!(
            "req -x509 {key} -keyout server.key -out server.pem -subj /CN=localhost -days 2 -CA ca.pem -CAkey ca.key \
             -addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE"
        ));
        Self(dir)
    }

    fn server(&self) -> Arc<rustls::ServerConfig> {
        let chain = vec![CertificateDer::from_pem_file(self.0.join("server.pem")).unwrap()];
        let key = PrivateKeyDer::from_pem_file(self.0.join("server.key")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        Arc::new(
            builder
                .with_no_client_auth()
                .with_single_cert(chain, key)
                .unwrap(),
        )
    }
}
