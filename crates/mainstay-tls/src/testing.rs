//! Certificates for tests: an authority in memory, and files as nodes and clients have them.

use crate::TlsFiles;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
};
use std::net::IpAddr;
use std::path::Path;

/// The authority of a cluster.
#[derive(Debug)]
pub struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Another one than all before.
    ///
    /// # Panics
    /// When no key can be made.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "no authority is like another")]
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.distinguished_name.push(DnType::CommonName, "authority of the tests");
        let key = KeyPair::generate().expect("keys can be made");
        let pem = params.self_signed(&key).expect("it is signed").pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Files in `folder`, which is for this authority alone, that prove who has this name, at this address if there is one.
    ///
    /// # Panics
    /// When the folder cannot be written.
    #[must_use]
    pub fn files(&self, folder: &Path, name: &str, address: Option<IpAddr>) -> TlsFiles {
        self.write(folder, name, params(name, address))
    }

    /// The same, with a certificate that expired long ago.
    ///
    /// # Panics
    /// When the folder cannot be written.
    #[must_use]
    pub fn expired_files(&self, folder: &Path, name: &str, address: Option<IpAddr>) -> TlsFiles {
        let mut params = params(name, address);
        params.not_after = rcgen::date_time_ymd(2001, 1, 1);
        self.write(folder, name, params)
    }

    fn write(&self, folder: &Path, name: &str, params: CertificateParams) -> TlsFiles {
        let key = KeyPair::generate().expect("keys can be made");
        let certificate = params.signed_by(&key, &self.issuer).expect("it is signed");
        std::fs::create_dir_all(folder).expect("the folder can be written");
        let files = TlsFiles::in_directory(folder, name);
        for (path, text) in [
            (&files.authority, self.pem.clone()),
            (&files.certificate, certificate.pem()),
            (&files.key, key.serialize_pem()),
        ] {
            std::fs::write(path, text).expect("the folder can be written");
        }
        files
    }
}

fn params(name: &str, address: Option<IpAddr>) -> CertificateParams {
    let mut params = CertificateParams::new([name.to_owned()]).expect("it is a name");
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.subject_alt_names.extend(address.map(SanType::IpAddress));
    params
}
