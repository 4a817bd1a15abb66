//! (client) Calls to services outside the cluster: only with leadership, and at a limited rate.

use crate::https::{HttpsClient, HttpsError};
use crate::k8s::leader::Leadership;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Time for one call. It also ends with the leadership.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The time for a call that begins now, or none if this process does not lead.
pub fn call_time(leadership: &Leadership) -> Option<Duration> {
    let left = leadership.remaining()?;
    Some(left.min(CALL_TIMEOUT))
}

/// A client that sends a request only while this process leads. The check is immediately before the request. A process that is suspended after
/// it, or that has to open a connection first, can still send the request after the end of its leadership.
#[derive(Clone, Debug)]
pub struct Gate {
    https: HttpsClient,
    leadership: Leadership,
}

impl Gate {
    /// A client of a process with that leadership.
    pub fn new(https: HttpsClient, leadership: Leadership) -> Self {
        Self { https, leadership }
    }

    /// Sends a request.
    ///
    /// # Errors
    /// This process does not lead, or the service does not answer in time.
    pub async fn send(
        &self,
        request: http::Request<Vec<u8>>,
    ) -> Result<http::Response<Vec<u8>>, HttpsError> {
        let Some(time) = call_time(&self.leadership) else {
            return Err(HttpsError::new(
                "this operator is not the leader, so it sends nothing",
            ));
        };
        self.https.send(request, time).await
    }
}

/// A limit of calls: `rate` per second, and up to `burst` at once after a time without calls.
#[derive(Debug)]
pub struct TokenBucket {
    rate: f64,
    burst: f64,
    tokens: f64,
    since: Instant,
}

impl TokenBucket {
    /// A full bucket.
    pub fn new(rate: f64, burst: f64) -> Self {
        Self {
            rate,
            burst,
            tokens: burst,
            since: Instant::now(),
        }
    }

    /// Waits until a call is allowed.
    pub async fn take(&mut self) {
        let now = Instant::now();
        let gained = now.duration_since(self.since).as_secs_f64() * self.rate;
        (self.tokens, self.since) = ((self.tokens + gained).min(self.burst) - 1.0, now);
        if self.tokens < 0.0 {
            sleep(Duration::from_secs_f64(-self.tokens / self.rate)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn calls_wait_after_the_burst() {
        let (mut bucket, began) = (TokenBucket::new(2.0, 3.0), Instant::now());
        let mut seconds = Vec::new();
        for _ in 0..5 {
            bucket.take().await;
            seconds.push(began.elapsed().as_secs_f64());
        }
        sleep(Duration::from_secs(60)).await;
        let later = Instant::now();
        for _ in 0..4 {
            bucket.take().await;
        }
        let expected = [0.0, 0.0, 0.0, 0.5, 1.0, 0.5];
        seconds.push(later.elapsed().as_secs_f64());
        let is_near = |(found, expected): (&f64, &f64)| (found - expected).abs() < 0.01;
        assert!(seconds.iter().zip(&expected).all(is_near), "{seconds:?}");
    }

    #[tokio::test]
    async fn nothing_is_sent_without_leadership_and_a_call_ends_with_it() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let send = async |leadership| {
            let gate = Gate::new(HttpsClient::new(b"").unwrap(), leadership);
            let request = http::Request::post(&url).body(Vec::new()).unwrap();
            gate.send(request).await.unwrap_err().to_string()
        };
        let error = send(Leadership::waiting()).await;
        assert!(error.contains("not the leader"), "{error}");
        let accepted = tokio::time::timeout(Duration::from_millis(100), listener.accept());
        accepted.await.unwrap_err();
        // The listener accepts the connection, and never answers.
        let began = Instant::now();
        let error = send(Leadership::leading_for(Duration::from_millis(300))).await;
        assert_eq!(error, "the server has not answered in time");
        assert!(began.elapsed() < Duration::from_secs(10));
    }
}
