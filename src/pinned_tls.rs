//! TLS 1.3 between the web console and runners. Each side knows the key of the other side, and sends its own as a raw public key
//! (RFC 7250). So there are no certificates, names of hosts and ends of validity.

#![cfg_attr(
    not(all(feature = "runner", feature = "web")),
    allow(dead_code, reason = "each half has one side of the connections")
)]

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::ring::{default_provider, sign::any_eddsa_type};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

/// A public key: the DER encoding of a SubjectPublicKeyInfo, as text in base64.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey(Vec<u8>);

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64.encode(&self.0))
    }
}

impl FromStr for PublicKey {
    type Err = base64::DecodeError;

    /// Does not check the key: a key that is none matches no peer.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        BASE64.decode(text.trim()).map(Self)
    }
}

/// A key pair of algorithm Ed25519.
#[derive(Clone)]
pub struct KeyPair {
    pkcs8: Vec<u8>,
    key: Arc<CertifiedKey>,
}

impl KeyPair {
    /// A new key pair.
    ///
    /// # Errors
    /// The kernel has no random numbers.
    pub fn generate() -> Result<Self, Error> {
        let random = ring::rand::SystemRandom::new();
        let document = ring::signature::Ed25519KeyPair::generate_pkcs8(&random);
        let document = document.map_err(|_| Error::FailedToGetRandomBytes)?;
        Self::from_pkcs8(document.as_ref())
    }

    /// The key pair of a PKCS #8 document, in DER.
    ///
    /// # Errors
    /// The document has no private key of algorithm Ed25519.
    pub fn from_pkcs8(document: &[u8]) -> Result<Self, Error> {
        let signing = any_eddsa_type(&PrivatePkcs8KeyDer::from(document))?;
        let unusable = || Error::General("the key has no public part".to_owned());
        let public = signing.public_key().ok_or_else(unusable)?;
        let public = CertificateDer::from(public.as_ref().to_vec());
        Ok(Self {
            pkcs8: document.to_vec(),
            key: Arc::new(CertifiedKey::new(vec![public], signing)),
        })
    }

    /// The PKCS #8 document with the private key.
    #[must_use]
    pub fn pkcs8(&self) -> &[u8] {
        &self.pkcs8
    }

    /// The public key.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        let keys = self.key.cert.iter();
        PublicKey(keys.flat_map(|key| key.as_ref()).copied().collect())
    }
}

/// Accepts connections of peers with one of these keys.
///
/// # Errors
/// TLS 1.3 is not available.
pub fn acceptor(own: &KeyPair, peers: Vec<PublicKey>) -> Result<TlsAcceptor, Error> {
    let (provider, verifier) = verifier(peers);
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(
            own.key.clone(),
        )));
    // A resumed session would not check the key again.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// The encrypted stream of an accepted connection.
pub type Accepted<S> = server::TlsStream<S>;

/// Begins TLS with a peer that must have this key.
///
/// # Errors
/// The peer has another key, does not accept the own key, or the connection fails.
pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
    own: &KeyPair,
    peer: PublicKey,
    stream: S,
) -> std::io::Result<client::TlsStream<S>> {
    let (provider, verifier) = verifier(vec![peer]);
    let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]);
    let config = config.map_err(std::io::Error::other)?;
    let mut config = config
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
            own.key.clone(),
        )));
    config.enable_sni = false;
    config.resumption = Resumption::disabled();
    // The name is not sent and not checked.
    let name = ServerName::try_from("runner").map_err(std::io::Error::other)?;
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

fn verifier(peers: Vec<PublicKey>) -> (Arc<CryptoProvider>, Arc<Pinned>) {
    let provider = default_provider();
    let algorithms = provider.signature_verification_algorithms;
    (Arc::new(provider), Arc::new(Pinned { peers, algorithms }))
}

/// Accepts peers with one of these keys.
#[derive(Debug)]
struct Pinned {
    peers: Vec<PublicKey>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Pinned {
    fn check(&self, key: &CertificateDer<'_>) -> Result<(), Error> {
        let is_known = self.peers.iter().any(|peer| peer.0 == key.as_ref());
        let unknown = Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure);
        is_known.then_some(()).ok_or(unknown)
    }

    fn check_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
    }
}

/// TLS 1.2 is not offered.
fn no_tls12() -> Error {
    Error::General("only TLS 1.3 is supported".to_owned())
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(key).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, key, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(key).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, key, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    /// Whether the client can send a byte to the server.
    async fn connects(
        client: &KeyPair,
        expected: &KeyPair,
        server: &KeyPair,
        known: &[&KeyPair],
    ) -> bool {
        let (near, far) = duplex(4096);
        let known = known.iter().map(|key| key.public()).collect();
        let accepted = acceptor(server, known).unwrap().accept(far);
        let received = async {
            let mut stream = accepted.await?;
            stream.read_u8().await
        };
        let sent = async {
            let mut stream = connect(client, expected.public(), near).await?;
            stream.write_u8(1).await?;
            stream.flush().await?;
            Ok::<_, std::io::Error>(stream)
        };
        let (sent, received) = tokio::join!(sent, received);
        sent.is_ok() && received.is_ok()
    }

    #[tokio::test]
    async fn peers_connect_only_if_each_has_the_key_that_the_other_knows() {
        let [console, old, runner, other] = [(); 4].map(|()| KeyPair::generate().unwrap());
        assert!(connects(&console, &runner, &runner, &[&old, &console]).await);
        assert!(!connects(&console, &runner, &other, &[&console]).await);
        assert!(!connects(&other, &runner, &runner, &[&old, &console]).await);
        assert!(!connects(&console, &runner, &runner, &[]).await);
    }

    #[test]
    fn keys_survive_their_encoding() {
        let key = KeyPair::generate().unwrap();
        let read = KeyPair::from_pkcs8(key.pkcs8()).unwrap();
        assert_eq!(read.public(), key.public());
        assert_eq!(key.public().to_string().parse(), Ok(key.public()));
        assert!(KeyPair::from_pkcs8(b"x").is_err());
    }
}
