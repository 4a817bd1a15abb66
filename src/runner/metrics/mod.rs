//! (io) `/metrics` of one machine, in the text format of Prometheus.
//!
//! In: requests to a port. Out: what QEMU and the kernel count, with KubeVirt's names where the meaning is the same. What
//! always holds: a request is answered within two seconds, whatever QEMU does; then `vmoperator_qemu_answers` is 0 and
//! what only QEMU knows is left out.

mod gather;
mod text;

pub use gather::{Machine, Tap};

use super::qmp::Client;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Time for a request to arrive, and for its answer to be taken.
const EXCHANGE_TIME: Duration = Duration::from_secs(5);
/// Requests at the same time; a further one waits.
const AT_ONCE: usize = 4;
/// The longest request that is read.
const LONGEST_REQUEST: usize = 8 << 10;

/// Serves until the process ends. A port that cannot be had costs the metrics, not the machine.
pub async fn serve(port: u16, machine: Machine, monitor: Client) {
    let listener = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Ok(listener) => Ok(listener),
        // A node without IPv6.
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await,
    };
    let listener = match listener {
        Ok(listener) => listener,
        Err(error) => return tracing::warn!(port, %error, "there are no metrics"),
    };
    let (machine, places) = (Arc::new(machine), Arc::new(Semaphore::new(AT_ONCE)));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (machine, monitor) = (Arc::clone(&machine), monitor.clone());
                tokio::spawn(async move {
                    let _ = tokio::time::timeout(EXCHANGE_TIME, answer(stream, &machine, &monitor)).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "metrics");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn answer(mut stream: TcpStream, machine: &Machine, monitor: &Client) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if request.len() > LONGEST_REQUEST || stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let first = String::from_utf8_lossy(request.split(|byte| *byte == b'\r').next().unwrap_or_default()).into_owned();
    let mut words = first.split(' ');
    let (status, body) = match (words.next(), words.next()) {
        (Some("GET"), Some("/metrics")) => ("200 OK", gather::gather(machine, monitor).await),
        _ => ("404 Not Found", "only GET /metrics is here\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}
