//! `mainstay cert`: the authority of a cluster, and a certificate for each of its nodes.
//!
//! Everything is made in one folder, from which each node is given its three files; the authority's key stays there. Nothing is ever
//! overwritten: a second authority would lock all nodes out.

use crate::verdict::{UsageError, Verdict};
use anyhow::{Context, bail};
use mainstay_tls::{TlsError, TlsFiles, check_client_files, check_files, is_node_name};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use std::fs::OpenOptions;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The authority's certificate; its first line names the cluster.
const AUTHORITY: &str = "ca.pem";

/// The authority's key.
const AUTHORITY_KEY: &str = "ca.key";

/// What stands before the cluster's name in the first line of the authority's certificate.
const CLUSTER_MARK: &str = "# mainstay cluster ";

/// Certificates are valid from so long before they are made: clocks of machines differ.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(24 * 3600);

const DAY: Duration = Duration::from_secs(24 * 3600);

/// `mainstay cert`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Cert {
    /// Make the authority of a cluster: once, on a machine that is kept safe.
    #[command(after_help = "Examples:
  mainstay cert init shop-certificates --cluster shop
  mainstay cert node shop-certificates n1 --address 10.0.0.1

Whoever has DIR/ca.key can make a node of the cluster. No node needs it.")]
    Init(Init),
    /// Make a certificate and a key for one node, valid for its name.
    #[command(after_help = "Examples:
  mainstay cert node shop-certificates n1
  mainstay cert node shop-certificates n2 --address 10.0.0.2 --address n2.shop.example
  openssl x509 -in shop-certificates/n1.pem -noout -text           what is in it

NAME is the node's name in the list that all nodes of a cluster share: peers compare it. Nodes of a group (`mainstay node`) compare the
address: it is needed there, and may be the only one.
To renew a certificate, move the old files away, make new ones, and restart the node.")]
    Node(Node),
    /// Make a certificate and a key for a program that uses a region by the Redis protocol: no node takes it for another node.
    #[command(after_help = "Examples:
  mainstay cert client shop-certificates app
  redis-cli -h 10.0.0.1 -p 7371 --tls --cacert shop-certificates/ca.pem --cert shop-certificates/app.pem --key shop-certificates/app.key
  mainstay group status 10.0.0.1:7371 --tls shop-certificates --name app")]
    Client(Client),
}

/// `mainstay cert init`.
#[derive(Debug, clap::Args)]
pub(crate) struct Init {
    /// The folder to make it in; made if it is not there.
    dir: PathBuf,
    /// The name of the cluster: 1 to 63 of a-z, 0-9 and -.
    #[arg(long, value_name = "NAME")]
    cluster: String,
    /// How long the authority is valid, in days.
    #[arg(long, default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36500))]
    days: u32,
}

/// `mainstay cert node`.
#[derive(Debug, clap::Args)]
pub(crate) struct Node {
    /// The folder of `mainstay cert init`.
    dir: PathBuf,
    /// The node's name: 1 to 63 of a-z, 0-9 and -.
    name: String,
    /// An address of the node, to be carried by the certificate besides: an IP address, or a host name with a dot.
    #[arg(long, value_name = "HOST")]
    address: Vec<String>,
    /// How long the certificate is valid, in days; not longer than the authority's.
    #[arg(long, default_value_t = 730, value_parser = clap::value_parser!(u32).range(1..=36500))]
    days: u32,
}

/// `mainstay cert client`.
#[derive(Debug, clap::Args)]
pub(crate) struct Client {
    /// The folder of `mainstay cert init`.
    dir: PathBuf,
    /// The client's name, which no node has: 1 to 63 of a-z, 0-9 and -.
    name: String,
    /// How long the certificate is valid, in days; not longer than the authority's.
    #[arg(long, default_value_t = 730, value_parser = clap::value_parser!(u32).range(1..=36500))]
    days: u32,
}

/// Runs it.
///
/// # Errors
/// When a name cannot be used, a file is there already, or cannot be read or written.
pub(crate) fn run(cert: &Cert) -> anyhow::Result<Verdict> {
    match cert {
        Cert::Init(options) => init(options),
        Cert::Node(options) => node(options),
        Cert::Client(options) => client(options),
    }
}

fn init(Init { dir, cluster, days }: &Init) -> anyhow::Result<Verdict> {
    check_name(cluster, "cluster")?;
    let (certificate, key) = (dir.join(AUTHORITY), dir.join(AUTHORITY_KEY));
    let why = "a second authority would lock the nodes of the first one out; take another folder";
    refuse_existing(&[&certificate, &key], why)?;
    let mut folder = std::fs::DirBuilder::new();
    folder
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .with_context(|| format!("{} cannot be made", dir.display()))?;

    let params = valid_for(authority_params(cluster), *days)?;
    let pair = KeyPair::generate().context("no key can be made")?;
    let pem = params.self_signed(&pair).context("the authority's certificate cannot be made")?.pem();
    write_both([(&key, pair.serialize_pem()), (&certificate, format!("{CLUSTER_MARK}{cluster}\n{pem}"))])?;
    println!("The authority of cluster `{cluster}`, valid for {days} days:");
    println!("  {}   its certificate, for every node", certificate.display());
    println!("  {}   its key: keep it here, safe and backed up; it goes to no node", key.display());
    println!("\nThen, for each node: mainstay cert node {} NAME", dir.display());
    Ok(Verdict::Clean)
}

fn node(Node { dir, name, address, days }: &Node) -> anyhow::Result<Verdict> {
    check_name(name, "node")?;
    // A node dials some of its peers, and is dialled by others.
    let uses = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let certified = Certified { name, names: subject_names(name, address)?, uses, days: *days };
    let files = certified.make(dir, |files| check_files(files, name))?;
    println!(
        "Node `{name}` of cluster `{}`, valid for {days} days. Copy to the machine of `{name}`, and to no other:",
        cluster_of(&files.authority)?
    );
    print_files(&files, "node");
    Ok(Verdict::Clean)
}

fn client(Client { dir, name, days }: &Client) -> anyhow::Result<Verdict> {
    check_name(name, "client")?;
    // Names of nodes have no dot.
    let names = subject_names(&format!("{name}.client"), &[])?;
    let certified = Certified { name, names, uses: vec![ExtendedKeyUsagePurpose::ClientAuth], days: *days };
    let files = certified.make(dir, check_client_files)?;
    println!(
        "Client `{name}` of cluster `{}`, valid for {days} days. Copy to where it runs:",
        cluster_of(&files.authority)?
    );
    print_files(&files, "client");
    Ok(Verdict::Clean)
}

fn print_files(files: &TlsFiles, whose: &str) {
    println!("  {}   the authority's certificate, the same for all", files.authority.display());
    println!("  {}   the {whose}'s certificate", files.certificate.display());
    println!("  {}   the {whose}'s key: readable by the {whose} only (chmod 600)", files.key.display());
}

/// What a certificate says.
struct Certified<'a> {
    name: &'a str,
    names: Vec<SanType>,
    uses: Vec<ExtendedKeyUsagePurpose>,
    days: u32,
}

impl Certified<'_> {
    /// Makes it, with a key; `check` does what those do whom it will be shown.
    fn make(
        self,
        dir: &Path,
        check: impl FnOnce(&TlsFiles) -> Result<(), TlsError>,
    ) -> anyhow::Result<TlsFiles> {
        let files = TlsFiles::in_directory(dir, self.name);
        let TlsFiles { authority, certificate, key } = &files;
        let authority_key = dir.join(AUTHORITY_KEY);
        refuse_existing(&[certificate, key], "to renew a certificate, move the old files away first")?;
        let cluster = cluster_of(authority)?;
        let issuer = Issuer::new(authority_params(&cluster), read_key(&authority_key)?);
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::OrganizationName, format!("mainstay cluster {cluster}"));
        params.distinguished_name.push(DnType::CommonName, self.name);
        params.subject_alt_names = self.names;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = self.uses;
        let params = valid_for(params, self.days)?;
        let pair = KeyPair::generate().context("no key can be made")?;
        let signed = params.signed_by(&pair, &issuer).context("the certificate cannot be made")?;
        write_both([(key, pair.serialize_pem()), (certificate, signed.pem())])?;
        // Finds an authority whose files do not belong together.
        if let Err(error) = check(&files) {
            for path in [certificate, key] {
                std::fs::remove_file(path).with_context(|| format!("{} should go again", path.display()))?;
            }
            return Err(error).context(format!(
                "{} and {} do not belong together, or no longer vouch for anybody; nothing was kept",
                authority.display(),
                authority_key.display()
            ));
        }
        Ok(files)
    }
}

/// Equal whenever the authority signs, since its name is what its certificates refer to.
fn authority_params(cluster: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::OrganizationName, format!("mainstay cluster {cluster}"));
    params.distinguished_name.push(DnType::CommonName, "authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn valid_for(mut params: CertificateParams, days: u32) -> anyhow::Result<CertificateParams> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock stands before 1970")?;
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(CLOCK_DIFFERENCE);
    params.not_after = epoch + now + DAY * days;
    Ok(params)
}

fn subject_names(name: &str, addresses: &[String]) -> anyhow::Result<Vec<SanType>> {
    let dns = |name: &str| -> anyhow::Result<SanType> {
        Ok(SanType::DnsName(name.try_into().with_context(|| format!("`{name}` is no host name"))?))
    };
    let mut names = vec![dns(name)?];
    for address in addresses {
        if let Ok(ip) = address.parse::<IpAddr>() {
            names.push(SanType::IpAddress(ip));
            continue;
        }
        let fit = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        let labels = || address.split('.');
        // A name without a dot could be another node's.
        if labels().count() < 2 || labels().any(|label| label.is_empty() || !label.bytes().all(fit)) {
            let explanation = format!(
                "`{address}` is neither an IP address nor a host name with a dot (n1.shop.example); leave ports out"
            );
            return Err(UsageError { explanation }.into());
        }
        names.push(dns(address)?);
    }
    Ok(names)
}

fn check_name(name: &str, what: &str) -> anyhow::Result<()> {
    if is_node_name(name) && name != "ca" {
        return Ok(());
    }
    let explanation = format!(
        "`{name}` is no name for a {what}: 1 to 63 of a-z, 0-9 and -, neither first nor last a -, not digits alone, \
         neither `localhost` nor `ca`"
    );
    Err(UsageError { explanation }.into())
}

fn refuse_existing(paths: &[&Path], why: &str) -> anyhow::Result<()> {
    match paths.iter().find(|path| path.symlink_metadata().is_ok()) {
        Some(path) => bail!("{} is there already, and nothing is overwritten: {why}", path.display()),
        None => Ok(()),
    }
}

fn cluster_of(authority: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(authority).with_context(|| {
        format!("{} cannot be read; `mainstay cert init` makes the authority", authority.display())
    })?;
    let cluster = text.lines().next().and_then(|line| line.strip_prefix(CLUSTER_MARK));
    match cluster {
        Some(cluster) => Ok(cluster.to_owned()),
        None => bail!(
            "{} was not made by `mainstay cert init`: its first line must be `{CLUSTER_MARK}NAME`",
            authority.display()
        ),
    }
}

fn read_key(path: &Path) -> anyhow::Result<KeyPair> {
    let pem = std::fs::read_to_string(path)
        .with_context(|| format!("{} cannot be read: only who has it can make nodes", path.display()))?;
    KeyPair::from_pem(&pem).with_context(|| format!("{} is no private key", path.display()))
}

/// Writes a key and its certificate, readable by their owner only; neither stays without the other.
fn write_both(files: [(&PathBuf, String); 2]) -> anyhow::Result<()> {
    let mut written: Vec<&PathBuf> = Vec::new();
    for (path, text) in &files {
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let outcome = opened.and_then(|mut file| {
            written.push(path);
            file.write_all(text.as_bytes()).and_then(|()| file.sync_all())
        });
        if let Err(error) = outcome {
            for path in written {
                // They are ours, and of no use.
                let _ = std::fs::remove_file(path);
            }
            return Err(error)
                .with_context(|| format!("{} cannot be written; nothing was kept", path.display()));
        }
    }
    Ok(())
}
