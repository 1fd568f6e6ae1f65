//! Certificates of a cluster's nodes and clients: loading, checking, and what each side of a connection demands.
//!
//! TLS 1.3 only; both sides show a certificate of the cluster's authority. Between nodes of a list each demands that the other's carries the
//! name that the list has for it; between nodes of a group, the address by which the group knows it. No session is resumed: a reconnect is
//! rare, and every one proves itself anew.

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use std::io;
use std::net::{IpAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where a certificate is. All three are PEM; `mainstay cert` makes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate of the cluster's authority.
    pub authority: PathBuf,
    /// The certificate of this node, or this client.
    pub certificate: PathBuf,
    /// The key to it.
    pub key: PathBuf,
}

impl TlsFiles {
    /// Those of `name` in a directory as `mainstay cert` makes it: `ca.pem`, `NAME.pem`, `NAME.key`.
    #[must_use]
    pub fn in_directory(directory: &Path, name: &str) -> Self {
        let file = |name: &str, kind: &str| directory.join(format!("{name}.{kind}"));
        Self { authority: file("ca", "pem"), certificate: file(name, "pem"), key: file(name, "key") }
    }
}

/// A certificate cannot be used. Nothing was started.
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
    /// Other nodes of the group would refuse the certificate.
    #[error(
        "{} does not carry {address}, where other nodes reach this one: make one with `mainstay cert node DIR NAME --address {address}`",
        path.display()
    )]
    Address {
        /// Which file.
        path: PathBuf,
        /// What it lacks.
        address: IpAddr,
    },
    /// Nodes would refuse the certificate of a client.
    #[error("{} would be refused by the nodes: {source}; make one with `mainstay cert client DIR NAME`", path.display())]
    Client {
        /// Which file.
        path: PathBuf,
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

/// Checks that the files prove a client to the nodes.
///
/// # Errors
/// [`TlsError`].
pub fn check_client_files(files: &TlsFiles) -> Result<(), TlsError> {
    TlsClient::load(files).map(drop)
}

/// What both sides of a connection are made from.
#[derive(Clone, Debug)]
pub struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    path: PathBuf,
    certificate: CertificateDer<'static>,
}

impl Tls {
    /// Reads the files of the node of this name, which must be one label of a host name, and checks them as its peers would.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn load(files: &TlsFiles, name: &str) -> Result<Self, TlsError> {
        let Loaded { provider, servers, clients, chain, key } = Loaded::read(files)?;
        let now = UnixTime::now();
        servers
            .verify_server_cert(&chain[0], &chain[1..], &server_name(name), &[], now)
            .map(drop)
            .and_then(|()| clients.verify_client_cert(&chain[0], &chain[1..], now).map(drop))
            .map_err(|source| TlsError::Unfit {
                path: files.certificate.clone(),
                name: name.to_owned(),
                source,
            })?;
        let of_key = |source| TlsError::Key { path: files.key.clone(), source };
        let certificate = chain[0].clone();
        let client = client_config(Arc::clone(&provider), servers, chain.clone(), key.clone_key());
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(VERSIONS)
            .expect(RING_HAS_TLS13)
            .with_client_cert_verifier(clients)
            .with_single_cert(chain, key)
            .map_err(of_key)?;
        server.send_tls13_tickets = 0;
        Ok(Self {
            client: client.map_err(of_key)?,
            server: Arc::new(server),
            path: files.certificate.clone(),
            certificate,
        })
    }

    /// Checks that the certificate carries the address by which a group knows this node.
    ///
    /// # Errors
    /// [`TlsError::Address`].
    pub fn check_address(&self, address: IpAddr) -> Result<(), TlsError> {
        match carries(&self.certificate, &ServerName::from(address)) {
            true => Ok(()),
            false => Err(TlsError::Address { path: self.path.clone(), address }),
        }
    }

    /// The side that dials the node of this name.
    ///
    /// # Errors
    /// Those of rustls; none is known.
    pub fn dial(&self, name: &str) -> Result<rustls::Connection, rustls::Error> {
        ClientConnection::new(Arc::clone(&self.client), server_name(name)).map(Into::into)
    }

    /// The side that accepts; whom it accepted is known once the preamble is there: see [`carries_name`].
    ///
    /// # Errors
    /// Those of rustls; none is known.
    pub fn accept(&self) -> Result<rustls::Connection, rustls::Error> {
        ServerConnection::new(Arc::clone(&self.server)).map(Into::into)
    }

    /// What a side that dials is made from.
    #[must_use]
    pub fn client(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.client)
    }

    /// What a side that accepts is made from.
    #[must_use]
    pub fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }
}

/// A client of nodes, which nobody dials.
#[derive(Clone, Debug)]
pub struct TlsClient(Arc<ClientConfig>);

impl TlsClient {
    /// Reads the files of a client, or of a node that acts as one, and checks them as nodes would.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn load(files: &TlsFiles) -> Result<Self, TlsError> {
        let Loaded { provider, servers, clients, chain, key } = Loaded::read(files)?;
        clients
            .verify_client_cert(&chain[0], &chain[1..], UnixTime::now())
            .map_err(|source| TlsError::Client { path: files.certificate.clone(), source })?;
        let config = client_config(provider, servers, chain, key);
        config.map(Self).map_err(|source| TlsError::Key { path: files.key.clone(), source })
    }

    /// Speaks TLS on a connection to a node, whose certificate must carry this address. That the node does not take this side's certificate
    /// is heard by the first read.
    ///
    /// # Errors
    /// Those of the connection, [`explained`].
    pub fn over(
        &self,
        mut socket: TcpStream,
        address: IpAddr,
    ) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
        let mut connection = self.connection(address).map_err(io::Error::other)?;
        connection.complete_io(&mut socket).map_err(explained)?;
        Ok(StreamOwned::new(connection, socket))
    }

    /// The same, for who looks after the bytes itself.
    ///
    /// # Errors
    /// Those of rustls; none is known.
    pub fn connection(&self, address: IpAddr) -> Result<ClientConnection, rustls::Error> {
        ClientConnection::new(Arc::clone(&self.0), ServerName::from(address))
    }
}

/// Files that were read, and who verifies others by their authority.
struct Loaded {
    provider: Arc<rustls::crypto::CryptoProvider>,
    servers: Arc<WebPkiServerVerifier>,
    clients: Arc<dyn ClientCertVerifier>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Loaded {
    fn read(TlsFiles { authority, certificate, key }: &TlsFiles) -> Result<Self, TlsError> {
        let of_authority = |source| TlsError::Authority { path: authority.clone(), source };
        let of_verifier = |source| TlsError::Verifier { path: authority.clone(), source };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        for root in certificates(authority)? {
            roots.add(root).map_err(of_authority)?;
        }
        let roots = Arc::new(roots);
        let servers = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .build()
            .map_err(of_verifier)?;
        let clients = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .build()
            .map_err(of_verifier)?;
        let chain = certificates(certificate)?;
        warn_of_readable(key);
        let key = PrivateKeyDer::from_pem_file(key).map_err(|source| TlsError::File {
            path: key.clone(),
            kind: "private key",
            source,
        })?;
        Ok(Self { provider, servers, clients, chain, key })
    }
}

fn client_config(
    provider: Arc<rustls::crypto::CryptoProvider>,
    servers: Arc<WebPkiServerVerifier>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ClientConfig>, rustls::Error> {
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(VERSIONS)
        .expect(RING_HAS_TLS13)
        .with_webpki_verifier(servers)
        .with_client_auth_cert(chain, key)?;
    client.resumption = Resumption::disabled();
    Ok(Arc::new(client))
}

const VERSIONS: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];

const RING_HAS_TLS13: &str = "the provider has cipher suites of TLS 1.3";

/// Whether the certificate that the other side has shown carries this name.
#[must_use]
pub fn carries_name(tls: &rustls::Connection, name: &str) -> bool {
    let shown = tls.peer_certificates().and_then(<[_]>::first);
    shown.is_some_and(|certificate| carries(certificate, &server_name(name)))
}

/// Whether a certificate carries this address.
#[must_use]
pub fn carries_address(certificate: &CertificateDer<'_>, address: IpAddr) -> bool {
    carries(certificate, &ServerName::from(address))
}

fn carries(certificate: &CertificateDer<'_>, name: &ServerName<'_>) -> bool {
    let parsed = ParsedCertificate::try_from(certificate);
    parsed.is_ok_and(|parsed| rustls::client::verify_server_name(&parsed, name).is_ok())
}

/// What to do about an error of TLS, to be put behind it; empty where nothing better is known than the error.
#[must_use]
pub fn remedy(error: &rustls::Error) -> &'static str {
    use rustls::{AlertDescription, CertificateError, Error};
    match error {
        Error::InvalidMessage(_) => ": the other seems to use plain text",
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)
        | Error::AlertReceived(AlertDescription::UnknownCA | AlertDescription::DecryptError) => {
            ": its certificate is not of this cluster's authority"
        }
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => ": another node is at this address, or has another's certificate",
        Error::AlertReceived(AlertDescription::BadCertificate) => {
            ": the other expected another node here: the certificate must carry what it dialled"
        }
        Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. })
        | Error::AlertReceived(AlertDescription::CertificateExpired) => {
            ": make a new one with `mainstay cert node`"
        }
        Error::NoCertificatesPresented | Error::AlertReceived(AlertDescription::CertificateRequired) => {
            ": show a certificate of the cluster, made by `mainstay cert`"
        }
        _ => "",
    }
}

/// Whether these are all that a side has said which expects TLS and heard plain text: one alert (RFC 8446, 5.1 and 6).
#[must_use]
pub fn is_alert(bytes: &[u8]) -> bool {
    matches!(bytes, [0x15, 3, _, 0, 2, _, _])
}

/// The same error, with what to do about it where it is one of TLS.
#[must_use]
pub fn explained(error: io::Error) -> io::Error {
    match error.downcast::<rustls::Error>() {
        Ok(source) => io::Error::other(format!("TLS: {source}{}", remedy(&source))),
        Err(error) => error,
    }
}

/// Whether a node may have this name: one label of a host name (RFC 1123) in lower case. A certificate may carry the
/// addresses of its node besides, which are IP addresses or have a dot: so none can pass for another node's name.
#[must_use]
pub fn is_node_name(name: &str) -> bool {
    let fit = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&name.len())
        && name.bytes().all(fit)
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.bytes().all(|byte| byte.is_ascii_digit())
        && name != "localhost"
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
        tracing::warn!(key = %key.display(), mode, "others may read this key: chmod 600 it");
    }
}

#[cfg(feature = "testing")]
pub mod testing;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_label_and_never_an_address() {
        for name in ["a", "n1", "node-7", "1a"] {
            assert!(is_node_name(name), "{name}");
        }
        for name in ["", "-a", "a-", "A", "a.b", "10", "::1", "a_b", "*", "localhost", &"a".repeat(64)] {
            assert!(!is_node_name(name), "{name}");
        }
    }
}
