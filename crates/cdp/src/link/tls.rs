//! TLS 1.3 with certificates of both sides.

use std::io;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};

use crate::nbd::tls::{encrypt, invalid, read_authorities, read_chain, read_key};
use crate::nbd::transport::Transport;

/// Certificates of one side, in the format PEM.
#[derive(Clone, Copy, Debug)]
pub struct LinkCertificates<'a> {
    /// Its certificate, and those between it and its authority.
    pub chain: &'a [u8],
    /// The private key of the first certificate.
    pub key: &'a [u8],
    /// Authorities; one of them must have signed the other side's certificate.
    pub authorities: &'a [u8],
}

/// Encrypts the connections of a sender.
#[derive(Clone, Debug)]
pub struct SenderTls(Arc<ClientConfig>);

impl SenderTls {
    /// Reads certificates.
    pub fn new(certificates: &LinkCertificates<'_>) -> io::Result<Self> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]);
        let builder = builder.map_err(|error| invalid("version of TLS", &error))?;
        let builder = builder.with_root_certificates(read_authorities(certificates.authorities)?);
        let (chain, key) = (read_chain(certificates.chain)?, read_key(certificates.key)?);
        let config = builder.with_client_auth_cert(chain, key).map_err(|error| invalid("certificate", &error))?;
        Ok(Self(Arc::new(config)))
    }

    /// Does the handshake with a receiver that must have a certificate for a name or address.
    pub(super) fn start(&self, below: Box<dyn Transport>, name: &str) -> io::Result<Box<dyn Transport>> {
        let name = ServerName::try_from(name.to_owned()).map_err(|error| invalid("name of the receiver", &error))?;
        let session = ClientConnection::new(Arc::clone(&self.0), name).map_err(io::Error::other)?;
        encrypt(below, session.into())
    }
}

/// Encrypts the connections of a receiver.
#[derive(Clone, Debug)]
pub struct ReceiverTls(Arc<ServerConfig>);

impl ReceiverTls {
    /// Reads certificates.
    pub fn new(certificates: &LinkCertificates<'_>) -> io::Result<Self> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let authorities = Arc::new(read_authorities(certificates.authorities)?);
        let verifier = WebPkiClientVerifier::builder_with_provider(authorities, Arc::clone(&provider)).build();
        let verifier = verifier.map_err(|error| invalid("authorities", &error))?;
        let builder = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]);
        let builder = builder.map_err(|error| invalid("version of TLS", &error))?;
        let (chain, key) = (read_chain(certificates.chain)?, read_key(certificates.key)?);
        let config = builder.with_client_cert_verifier(verifier).with_single_cert(chain, key);
        Ok(Self(Arc::new(config.map_err(|error| invalid("certificate", &error))?)))
    }

    /// Does the handshake with a sender.
    pub(super) fn start(&self, below: Box<dyn Transport>) -> io::Result<Box<dyn Transport>> {
        let session = ServerConnection::new(Arc::clone(&self.0)).map_err(io::Error::other)?;
        encrypt(below, session.into())
    }
}
