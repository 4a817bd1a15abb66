//! (io) Receives an image from a user, in place of a download.
//!
//! | request | answer |
//! |---|---|
//! | `PUT` with `Content-Length` | stores the image; a stored part is discarded |
//! | `PUT` with `Content-Range` | stores the rest, which begins where the stored part ends |
//! | `HEAD` | `Content-Length` is that of the stored part |
//!
//! The server listens on the loopback address of the pod. Only `kubectl port-forward` leads there, so the right to it authenticates users.
//! After a broken connection it waits for the rest. Other failures are those of a download.

use crate::api::runner::fetch::FetchReason;
use crate::runner::fetch::answer::Validator;
use crate::runner::fetch::part::Part;
use crate::runner::fetch::problem::{Problem, size, task_failure};
use crate::runner::fetch::receiver::{Receiver, SharedPart, with_part};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, OwnedMutexGuard, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Maximum time for the last answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The version of each upload: nothing tells one image of a user from another one of the same size.
const VERSION: &str = "upload";

type End = Result<u64, Problem>;

/// The part with its lock, which the last connection does not release: nothing writes to a complete image.
type Locked = OwnedMutexGuard<Receiver>;

/// What all connections share.
#[derive(Clone)]
struct Upload {
    /// Held by the connection that sends the image.
    receiver: Arc<Mutex<Receiver>>,
    /// Its replacement stops the other connection.
    newest: Arc<Mutex<Option<oneshot::Sender<()>>>>,
    part: SharedPart,
    port: u16,
    end: mpsc::Sender<(End, Locked)>,
}

/// Waits until the image is complete. Returns its size in bytes.
pub async fn receive(port: u16, mut receiver: Receiver) -> End {
    let part = Arc::clone(&receiver.part);
    // The process before this one was killed before it could answer.
    if with_part(&part, |part| part.is_complete()).await?
        && let Some(bytes) = receiver.complete().await?
    {
        return Ok(bytes);
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
    let listener = listener.map_err(|error| {
        let message = format!(
            "the runner cannot listen on port {port}: {error}; report this as a bug of vm-runner"
        );
        Problem::new(FetchReason::Unknown, message)
    })?;
    tracing::info!("waiting for a PUT on port {port} of the loopback address");
    let (end, mut ended) = mpsc::channel(1);
    let upload = Upload {
        receiver: Arc::new(Mutex::new(receiver)),
        newest: Arc::default(),
        part,
        port,
        end,
    };
    let mut connections = JoinSet::new();
    let (end, _locked) = loop {
        tokio::select! {
            Some(end) = ended.recv() => break end,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve(stream, upload.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "the runner cannot accept a connection, and retries after 1 s");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            },
        }
    };
    let answered = async { while connections.join_next().await.is_some() {} };
    let _ = timeout(ANSWER_TIMEOUT, answered).await;
    // Those that wait for the lock.
    connections.shutdown().await;
    end
}

/// Serves one request.
async fn serve(stream: TcpStream, upload: Upload) {
    let service = service_fn(|request| {
        let upload = upload.clone();
        async move { Ok::<_, Infallible>(answer(request, &upload).await) }
    });
    let mut server = http1::Builder::new();
    let server = server.timer(TokioTimer::new()).keep_alive(false);
    let served = server.serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        tracing::info!("a connection has failed: {error}");
    }
}

async fn answer(request: Request<Incoming>, upload: &Upload) -> Response<String> {
    let answer = match *request.method() {
        Method::HEAD => stored(upload).await,
        Method::PUT => put(request, upload).await,
        _ => {
            let message = format!("send the image with {}", command(upload.port, None));
            Err((StatusCode::METHOD_NOT_ALLOWED, message))
        }
    };
    answer.unwrap_or_else(|(status, message)| {
        let mut response = Response::new(format!("{message}\n"));
        *response.status_mut() = status;
        response
    })
}

/// The command of a user, which sends the file or its rest.
fn command(port: u16, stored: Option<u64>) -> String {
    let rest = stored.map(|bytes| format!("-C {bytes} "));
    format!(
        "`curl {}-T FILE http://127.0.0.1:{port}/`",
        rest.unwrap_or_default()
    )
}

type Refusal = (StatusCode, String);

async fn stored(upload: &Upload) -> Result<Response<String>, Refusal> {
    let bytes = with_part(&upload.part, |part| part.bytes()).await;
    let bytes = bytes.map_err(|it| (StatusCode::INTERNAL_SERVER_ERROR, it.message))?;
    let mut response = Response::new(String::new());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes));
    Ok(response)
}

async fn put(request: Request<Incoming>, upload: &Upload) -> Result<Response<String>, Refusal> {
    let failed = |message| (StatusCode::INTERNAL_SERVER_ERROR, message);
    // The tunnel of kubectl does not tell the end of a connection, so the newest one goes on.
    let (sender, stop) = oneshot::channel();
    *upload.newest.lock().await = Some(sender);
    let mut receiver = Arc::clone(&upload.receiver).lock_owned().await;
    receiver.stop = Some(stop);
    let known = with_part(&receiver.part, |part| (part.bytes(), part.total())).await;
    let known = known.map_err(|it| failed(it.message))?;
    let place = place(request.headers(), known, upload.port)?;
    // A task of its own: a connection that ends drops this function, and the write that has begun must be the last one.
    let stored = tokio::spawn(store(
        receiver,
        place,
        request.into_body(),
        upload.end.clone(),
    ));
    let stored = stored.await.map_err(|error| failed(task_failure(&error)))?;
    let bytes = stored.map_err(|problem| {
        let status = match problem.reason {
            FetchReason::ServerUnreachable => StatusCode::REQUEST_TIMEOUT,
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        };
        (status, problem.message)
    })?;
    let message = format!("{} are stored; the VM takes them now\n", size(bytes));
    let mut response = Response::new(message);
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}

/// Where the bytes of a request belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    first: u64,
    /// Size of the image in bytes.
    total: u64,
}

/// The place of a request for a stored part with this length and size of the whole.
fn place(
    headers: &HeaderMap,
    (stored, whole): (u64, Option<u64>),
    port: u16,
) -> Result<Place, Refusal> {
    let refused = |status, message: String| Err((status, message));
    let text = |name: HeaderName| headers.get(name).and_then(|it| it.to_str().ok());
    if text(header::CONTENT_ENCODING).is_some_and(|it| it != "identity") {
        let message = "Content-Encoding is not supported; send the file as it is";
        return refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, message.to_owned());
    }
    let Some(length) = text(header::CONTENT_LENGTH).and_then(|it| it.parse().ok()) else {
        let message = format!(
            "the length is missing; send a file, not a pipe, with {}",
            command(port, None)
        );
        return refused(StatusCode::LENGTH_REQUIRED, message);
    };
    if length == 0 {
        return refused(StatusCode::BAD_REQUEST, "the file is empty".to_owned());
    }
    let Some(range) = text(header::CONTENT_RANGE) else {
        let (first, total) = (0, length);
        return Ok(Place { first, total });
    };
    let Some(place) = parse(range, length) else {
        let message = format!(
            "Content-Range {range:?} is not supported; send the whole rest, as {} does",
            command(port, Some(stored))
        );
        return refused(StatusCode::BAD_REQUEST, message);
    };
    if place.first == 0 || (place.first == stored && Some(place.total) == whole) {
        return Ok(place);
    }
    let message = match whole {
        Some(whole) if whole != place.total => format!(
            "the stored part belongs to a file of {whole} bytes, and this one has {}; send all of it with {}",
            place.total,
            command(port, None)
        ),
        _ => format!(
            "{stored} bytes are stored; continue there with {}",
            command(port, Some(stored))
        ),
    };
    refused(StatusCode::CONFLICT, message)
}

/// `bytes FIRST-LAST/TOTAL` of a request with all bytes from the first one on.
fn parse(range: &str, length: u64) -> Option<Place> {
    let (range, total) = range.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    let total = total.parse().ok()?;
    let is_rest = first.checked_add(length) == Some(total) && last.checked_add(1) == Some(total);
    is_rest.then_some(Place { first, total })
}

/// Stores the bytes, and ends the import unless the rest can follow.
async fn store(
    mut receiver: Locked,
    place: Place,
    body: Incoming,
    end: mpsc::Sender<(End, Locked)>,
) -> End {
    let stored = receive_body(&mut receiver, place, body).await;
    match &stored {
        Err(problem) if problem.reason == FetchReason::ServerUnreachable => {
            tracing::warn!("{problem}; the runner waits for the rest");
        }
        stored => _ = end.try_send((stored.clone(), receiver)),
    }
    stored
}

async fn receive_body(receiver: &mut Receiver, place: Place, body: Incoming) -> End {
    let Place { first, total } = place;
    if first == 0 {
        receiver.check_size(total).await?;
        with_part(&receiver.part, move |part| {
            let version = Validator::ETag(VERSION.to_owned());
            // The discarded part makes room.
            part.begin(Some(version), Some(total))?;
            part.check_free_space(total)
        })
        .await??;
    }
    tracing::info!("receiving {} from byte {first} on", size(total));
    let received = receiver.receive(body).await;
    with_part(&receiver.part, Part::save_unsaved).await??;
    received?;
    let bytes = receiver.complete().await?;
    bytes.ok_or_else(|| Problem::new(FetchReason::Interrupted, "the upload was discarded"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(headers: &[(HeaderName, &str)], known: (u64, Option<u64>)) -> Result<Place, u16> {
        let headers = headers.iter().cloned();
        let headers = headers.map(|(name, value)| (name, value.parse().unwrap()));
        place(&headers.collect(), known, 1).map_err(|(status, _)| status.as_u16())
    }

    #[test]
    fn a_request_is_the_whole_image_or_the_rest_of_the_stored_one() {
        use header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, TRANSFER_ENCODING};
        let (first, total) = (0, 9);
        assert_eq!(
            of(&[(CONTENT_LENGTH, "9")], (5, Some(8))),
            Ok(Place { first, total })
        );
        let rest =
            |length, range, known| of(&[(CONTENT_LENGTH, length), (CONTENT_RANGE, range)], known);
        let part = (4, Some(9));
        assert_eq!(
            rest("5", "bytes 4-8/9", part),
            Ok(Place { first: 4, total })
        );
        assert_eq!(rest("9", "bytes 0-8/9", part), Ok(Place { first, total }));
        for (length, range, status) in [
            // Another place, another size, a hole at the end, and wrong sums.
            ("6", "bytes 3-8/9", 409),
            ("6", "bytes 4-9/10", 409),
            ("4", "bytes 4-7/9", 400),
            ("5", "bytes 4-9/9", 400),
            ("5", "bytes 4-8/*", 400),
            ("5", "bytes 18446744073709551615-8/9", 400),
        ] {
            assert_eq!(rest(length, range, part), Err(status), "{range}");
        }
        assert_eq!(rest("5", "bytes 4-8/9", (4, None)), Err(409));
        assert_eq!(of(&[(TRANSFER_ENCODING, "chunked")], part), Err(411));
        assert_eq!(of(&[(CONTENT_LENGTH, "0")], part), Err(400));
        assert_eq!(
            of(&[(CONTENT_LENGTH, "9"), (CONTENT_ENCODING, "gzip")], part),
            Err(415)
        );
    }
}
