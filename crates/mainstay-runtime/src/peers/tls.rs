//! A node's certificate and its cluster's authority: loading, checking, and what each side of a connection demands.
//!
//! TLS 1.3 only; both sides show a certificate of the cluster's authority, and each demands that the other's carries the name that the
//! list of nodes has for it. No session is resumed: a reconnect is rare, and every one proves itself anew.

use crate::peers::settings::TlsFiles;
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What both sides of a connection are made from.
pub(super) struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

/// A node's certificate cannot be used. Nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or is not PEM of the right kind.
    #[error("{} holds no usable {kind}: {source}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What it should hold.
        kind: &'static str,
        /// Why.
        source: pem::Error,
    },
    /// The authority's certificate is none.
    #[error("{} is no certificate of an authority: {source}", path.display())]
    Authority {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// The authority cannot vouch for anybody.
    #[error("{} cannot vouch for anybody: {source}", path.display())]
    Verifier {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: rustls::server::VerifierBuilderError,
    },
    /// The key does not belong to the certificate, or is of an unknown kind.
    #[error("{} does not go with the certificate: {source}", path.display())]
    Key {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// Peers would refuse the certificate.
    #[error("{} would be refused by the peers of `{name}`: {source}; make one with `mainstay cert node DIR {name}`", path.display())]
    Unfit {
        /// Which file.
        path: PathBuf,
        /// This node's name.
        name: String,
        /// Why.
        source: rustls::Error,
    },
}

/// Checks that the files prove a node of this name to its peers.
///
/// # Errors
/// [`TlsError`].
pub fn check_files(files: &TlsFiles, name: &str) -> Result<(), TlsError> {
    Tls::load(files, name).map(drop)
}

impl Tls {
    pub(super) fn load(files: &TlsFiles, name: &str) -> Result<Self, TlsError> {
        let TlsFiles { authority, certificate, key } = files;
        let of_authority = |source| TlsError::Authority { path: authority.clone(), source };
        let of_verifier = |source| TlsError::Verifier { path: authority.clone(), source };
        let of_key = |source| TlsError::Key { path: key.clone(), source };

        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        for root in certificates(authority)? {
            roots.add(root).map_err(of_authority)?;
        }
        let roots = Arc::new(roots);
        let server_verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .build()
                .map_err(of_verifier)?;
        let client_verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .build()
            .map_err(of_verifier)?;

        let chain = certificates(certificate)?;
        let name_shown = server_name(name);
        let now = UnixTime::now();
        server_verifier
            .verify_server_cert(&chain[0], &chain[1..], &name_shown, &[], now)
            .map(drop)
            .and_then(|()| client_verifier.verify_client_cert(&chain[0], &chain[1..], now).map(drop))
            .map_err(|source| TlsError::Unfit { path: certificate.clone(), name: name.to_owned(), source })?;

        warn_of_readable(key);
        let private_key = PrivateKeyDer::from_pem_file(key).map_err(|source| TlsError::File {
            path: key.clone(),
            kind: "private key",
            source,
        })?;
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(VERSIONS)
            .expect(RING_HAS_TLS13)
            .with_webpki_verifier(server_verifier)
            .with_client_auth_cert(chain.clone(), private_key.clone_key())
            .map_err(of_key)?;
        client.resumption = Resumption::disabled();
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(VERSIONS)
            .expect(RING_HAS_TLS13)
            .with_client_cert_verifier(client_verifier)
            .with_single_cert(chain, private_key)
            .map_err(of_key)?;
        server.send_tls13_tickets = 0;
        Ok(Self { client: Arc::new(client), server: Arc::new(server) })
    }

    /// The side that dials the node of this name.
    pub(super) fn dial(&self, name: &str) -> Result<rustls::Connection, rustls::Error> {
        ClientConnection::new(Arc::clone(&self.client), server_name(name)).map(Into::into)
    }

    /// The side that accepts; whom it accepted is known once the preamble is there: see [`carries_name`].
    pub(super) fn accept(&self) -> Result<rustls::Connection, rustls::Error> {
        ServerConnection::new(Arc::clone(&self.server)).map(Into::into)
    }
}

const VERSIONS: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];

const RING_HAS_TLS13: &str = "the provider has cipher suites of TLS 1.3";

/// Whether the certificate that the other side has shown carries this name.
pub(super) fn carries_name(tls: &rustls::Connection, name: &str) -> bool {
    let shown = tls.peer_certificates().and_then(<[_]>::first);
    let parsed = shown.and_then(|certificate| ParsedCertificate::try_from(certificate).ok());
    parsed.is_some_and(|parsed| rustls::client::verify_server_name(&parsed, &server_name(name)).is_ok())
}

fn server_name(name: &str) -> ServerName<'static> {
    ServerName::try_from(name.to_owned()).expect("names of nodes were checked to be labels of host names")
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unusable = |source| TlsError::File { path: path.to_owned(), kind: "certificate", source };
    let all: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).map_err(unusable)?.collect();
    match all.map_err(unusable)? {
        none if none.is_empty() => Err(unusable(pem::Error::NoItemsFound)),
        some => Ok(some),
    }
}

fn warn_of_readable(key: &Path) {
    let Ok(metadata) = std::fs::metadata(key) else { return };
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let mode = format!("{mode:o}");
        tracing::warn!(key = %key.display(), mode, "others may read this node's key: chmod 600 it");
    }
}
