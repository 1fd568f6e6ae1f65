//! The flags of level peers: which region keeps the log, and under what name.

use super::address;
use crate::cluster::TlsFiles;
use clap::Args;
use mainstay_runtime::keep::{KeepSettings, KeepWay};
use mainstay_runtime::settings::Settings;
use mainstay_types::level::Level;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Where the help has them.
const KEEPING: &str = "Level peers";

/// Flags of level peers.
#[derive(Clone, Debug, Args)]
pub struct KeepFlags {
    /// Have a replicated region keep the log and the checkpoints, by the addresses at which some of its nodes listen for others
    /// (`mainstay node --listen`), and answer at level peers: when this machine is lost with its disk, the same command with an empty directory
    /// brings the service back elsewhere
    #[arg(long, help_heading = KEEPING, value_name = "ADDRESS:PORT", env = "MAINSTAY_KEEP", value_delimiter = ',', value_parser = address)]
    pub keep: Vec<SocketAddr>,
    /// The name of that region
    #[arg(long, help_heading = KEEPING, value_name = "NAME", env = "MAINSTAY_KEEP_REGION", requires = "keep", default_value = "data")]
    pub keep_region: String,
    /// Whose log it is there: one process at a time; started with an empty directory, it takes over [default: the service's name; of a node
    /// CLUSTER/NUMBER]
    #[arg(long, help_heading = KEEPING, value_name = "NAME", env = "MAINSTAY_KEEP_AS", requires = "keep")]
    pub keep_as: Option<String>,
    /// TLS to the region's nodes, with ca.pem, NAME.pem and NAME.key of this directory, as `mainstay cert client` makes them [default: plain
    /// text, on loopback only]
    #[arg(long, help_heading = KEEPING, value_name = "DIRECTORY", env = "MAINSTAY_KEEP_TLS", requires = "keep", requires = "keep_tls_name")]
    pub keep_tls: Option<PathBuf>,
    /// The NAME of that certificate
    #[arg(long, help_heading = KEEPING, value_name = "NAME", env = "MAINSTAY_KEEP_TLS_NAME", requires = "keep_tls")]
    pub keep_tls_name: Option<String>,
    /// Begin under a name that the region does not know: without, a name that is mistyped is refused
    #[arg(long, help_heading = KEEPING, requires = "keep")]
    pub keep_new: bool,
    /// Keep this directory though the region has lost what it kept of it, or never had all; only if no other has been this process since
    #[arg(long, help_heading = KEEPING, requires = "keep", conflicts_with = "keep_new")]
    pub keep_anew: bool,
    /// Leave level peers with this directory, which must be the last one: the region forgets whose the log was, and the service is at the level that
    /// is given
    #[arg(long, help_heading = KEEPING, requires = "keep", conflicts_with_all = ["keep_new", "keep_anew"])]
    pub keep_leave: bool,
    /// Bytes of the log that may wait for the region; then requests are answered 503
    #[arg(long, help_heading = KEEPING, value_name = "BYTES", env = "MAINSTAY_UNKEPT_BYTES_MAX", requires = "keep")]
    pub unkept_bytes_max: Option<u64>,
}

impl KeepFlags {
    /// Level peers unless another level was `given`, which is then refused at the start.
    pub(super) fn apply(self, settings: &mut Settings, given: Option<Level>) {
        if self.keep.is_empty() {
            return;
        }
        let way = match () {
            () if self.keep_new => KeepWay::New,
            () if self.keep_anew => KeepWay::Anew,
            () if self.keep_leave => KeepWay::Leave,
            () => KeepWay::Known,
        };
        if way != KeepWay::Leave {
            settings.process.level = given.unwrap_or(Level::Peers);
        }
        super::set(&mut settings.process.limits.unkept_bytes_max, self.unkept_bytes_max);
        let files = self.keep_tls.as_deref().zip(self.keep_tls_name.as_deref());
        settings.keep = Some(KeepSettings {
            servers: self.keep,
            region: self.keep_region,
            name: self.keep_as.unwrap_or_default(),
            tls: files.map(|(directory, name)| TlsFiles::in_directory(directory, name)),
            way,
        });
    }
}
