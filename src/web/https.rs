//! Requests to providers of OpenID Connect.

use crate::https::HttpsClient;
pub use crate::https::HttpsError as HttpError;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Time for one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Sends a request, without following redirects. Servers have a certificate of a public authority, or of one in the PEM file. The file is read
/// for each request, because it is seldom needed and can change.
///
/// # Errors
/// The server does not answer in time, or its certificate is not trusted, or its answer is too long.
pub async fn send(
    authorities: Arc<Path>,
    request: http::Request<Vec<u8>>,
) -> Result<http::Response<Vec<u8>>, HttpError> {
    let unusable = |error: &dyn std::fmt::Display| {
        HttpError::new(format!("cannot use {}: {error}", authorities.display()))
    };
    let pem = match std::fs::read(&*authorities) {
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        read => read.map_err(|error| unusable(&error))?,
    };
    let client = HttpsClient::new(&pem).map_err(|error| unusable(&error))?;
    client.send(request, REQUEST_TIMEOUT).await
}
