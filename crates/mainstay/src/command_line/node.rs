//! The flags that a node has besides those of every service: which node it is, and of which cluster.

use crate::cluster::Cluster;
use crate::command_line::{self, Flags, run_or_replay, set, show_defaults};
use crate::instance::Node;
use crate::server::Server;
use clap::{CommandFactory, Parser};
use mainstay_recovery::policy::Policy;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

/// Where the help has the flags of this file.
const CLUSTER: &str = "Cluster";

/// Flags of a node. What is not given stays as the server has it.
#[derive(Clone, Debug, Parser)]
#[command(disable_help_subcommand = true)]
pub struct NodeFlags {
    /// Those of every service.
    #[command(flatten)]
    pub service: Flags,
    /// Which node of --nodes this one is; its default directory has the number in its name
    #[arg(long, help_heading = CLUSTER, value_name = "NUMBER", env = "MAINSTAY_NODE", requires = "nodes")]
    pub node: Option<u32>,
    /// All nodes, the same list on each: NUMBER=HOST:PORT, or NUMBER=HOST:PORT/POLICY for one that has a policy of its own; with --places the
    /// address may be left out
    #[arg(long, help_heading = CLUSTER, value_name = "LIST", env = "MAINSTAY_NODES", value_delimiter = ',', requires = "node")]
    pub nodes: Vec<Listed>,
    /// Where to listen for the other nodes [default: the address in --nodes]
    #[arg(long, help_heading = CLUSTER, value_name = "ADDRESS:PORT", env = "MAINSTAY_NODE_LISTEN", requires = "node", value_parser = super::address)]
    pub node_listen: Option<SocketAddr>,
    /// Take a place in a replicated region, by the addresses at which some of its nodes listen for others (`mainstay node --listen`): the
    /// others find this one there, wherever it listens, and of a directory and its copies one is the node
    #[arg(long, help_heading = CLUSTER, value_name = "ADDRESS:PORT", env = "MAINSTAY_PLACES", value_delimiter = ',', requires = "node",
        value_parser = super::address)]
    pub places: Vec<SocketAddr>,
    /// The name of that region
    #[arg(long, help_heading = CLUSTER, value_name = "NAME", env = "MAINSTAY_PLACES_REGION", requires = "places", default_value = "data")]
    pub places_region: String,
    /// Take the place of a copy of this directory, which is gone for good with all that only it had
    #[arg(long, help_heading = CLUSTER, requires = "places")]
    pub take_place: bool,
    /// The cluster's name: nodes of another one are refused [default: the program's name]
    #[arg(long, help_heading = CLUSTER, value_name = "NAME", env = "MAINSTAY_CLUSTER", requires = "node")]
    pub cluster: Option<String>,
    /// TLS between nodes, with ca.pem, nNUMBER.pem and nNUMBER.key of this directory, as `mainstay cert` makes them [default: plain text, on
    /// loopback only]
    #[arg(long, help_heading = CLUSTER, value_name = "DIRECTORY", env = "MAINSTAY_TLS", requires = "node")]
    pub tls: Option<PathBuf>,
    /// Keep so many bytes of messages that one other node pins in memory, more in a file that goes with this process [default: 16 MiB]
    #[arg(long, help_heading = CLUSTER, value_name = "BYTES", env = "MAINSTAY_SENDER_LOG_MEMORY_BYTES", requires = "node")]
    pub sender_log_memory_bytes: Option<u64>,
    /// Let that file grow to so many bytes for one other node; at both limits new requests are refused [default: 256 MiB]
    #[arg(long, help_heading = CLUSTER, value_name = "BYTES", env = "MAINSTAY_SENDER_LOG_SPILL_BYTES", requires = "node")]
    pub sender_log_spill_bytes: Option<u64>,
    /// Requests that wait while a blocking snapshot is taken; more are refused [default: 1024]
    #[arg(long, help_heading = CLUSTER, value_name = "COUNT", env = "MAINSTAY_BLOCKED_REQUESTS_MAX", requires = "node")]
    pub blocked_requests_max: Option<usize>,
    /// Go on by itself after so many seconds in which nobody asked to stay blocked [default: 10]
    #[arg(long, help_heading = CLUSTER, value_name = "SECONDS", env = "MAINSTAY_BLOCK_SECONDS", requires = "node",
        value_parser = clap::value_parser!(u64).range(1..))]
    pub block_seconds: Option<u64>,
}

/// An entry of the list of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its number.
    pub number: u32,
    /// Where the others reach it: `host:port`; empty if it says that itself.
    pub address: String,
    /// Its policy, if it has one of its own.
    pub policy: Option<Policy>,
}

impl FromStr for Listed {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let form = || format!("`{given}` is no NUMBER=HOST:PORT, NUMBER=HOST:PORT/POLICY or NUMBER");
        let (place, policy) = match given.trim().split_once('/') {
            Some((place, policy)) => (place, Some(policy.parse().map_err(|error| format!("{error}"))?)),
            None => (given.trim(), None),
        };
        let (number, address) = match place.split_once('=') {
            Some((number, address)) if is_host_and_port(address) => (number, address),
            Some(_) => return Err(form()),
            None => (place, ""),
        };
        let number = number.parse().map_err(|_| form())?;
        Ok(Self { number, address: address.to_owned(), policy })
    }
}

fn is_host_and_port(address: &str) -> bool {
    let parts = address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
    matches!(parts, Some((host, 1..)) if !host.is_empty())
}

impl NodeFlags {
    /// A server with these settings.
    #[must_use]
    pub fn apply(self, mut server: Server<Node>) -> Server<Node> {
        if let Some(me) = self.node {
            let cluster = self.nodes.into_iter().fold(Cluster::new(me), |cluster, listed| {
                let Listed { number, address, policy } = listed;
                match policy {
                    Some(policy) => cluster.node_under(number, address, policy),
                    None => cluster.node(number, address),
                }
            });
            let cluster = match self.places {
                servers if servers.is_empty() => cluster,
                servers => cluster.places(servers, self.places_region),
            };
            let cluster = if self.take_place { cluster.take_place() } else { cluster };
            let cluster = self.cluster.into_iter().fold(cluster, Cluster::named);
            let cluster = self.node_listen.into_iter().fold(cluster, Cluster::listen);
            let cluster =
                self.sender_log_memory_bytes.into_iter().fold(cluster, Cluster::sender_log_memory_bytes);
            let cluster =
                self.sender_log_spill_bytes.into_iter().fold(cluster, Cluster::sender_log_spill_bytes);
            server = server.cluster(self.tls.iter().fold(cluster, Cluster::tls_in)).limits(|limits| {
                set(&mut limits.blocked_requests_max, self.blocked_requests_max);
                set(&mut limits.block_max, self.block_seconds.map(Duration::from_secs));
            });
        }
        self.service.apply(server)
    }
}

/// The flags, with every policy: a node has others to talk to.
fn command() -> clap::Command {
    NodeFlags::command().mut_arg("policy", |arg| {
        arg.value_parser(|given: &str| given.parse::<Policy>().map_err(|error| error.to_string()))
    })
}

/// Runs a node as a program; the first argument is its name.
pub(crate) fn serve(server: Server<Node>, arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let policy = server.settings().process.policy;
    let command = show_defaults(command(), &server)
        .mut_arg("policy", |arg| {
            let help = format!(
                "How crashes are survived: immediate, deferred, sender-based, hybrid, causal (or causal:2, for two nodes down at once), \
                 optimistic [default: {policy}; in a cluster {}]",
                Policy::FOR_CLUSTERS
            );
            arg.help(help).help_heading(CLUSTER)
        })
        .after_help(AFTER_HELP);
    match command_line::parse::<NodeFlags, Node>(command, &server, arguments) {
        Ok((flags, replay)) => run_or_replay(flags.apply(server), replay),
        Err(code) => code,
    }
}

const AFTER_HELP: &str = "\
Examples:
  Two nodes on one machine:
    ... --node 1 --nodes 1=127.0.0.1:7171,2=127.0.0.1:7172 --listen 127.0.0.1:7070
    ... --node 2 --nodes 1=127.0.0.1:7171,2=127.0.0.1:7172 --listen 127.0.0.1:7072
  Two nodes that find each other in a region, wherever they listen (a `mainstay node` listens at 127.0.0.1:7171):
    ... --node 1 --nodes 1,2 --places 127.0.0.1:7171
    ... --node 2 --nodes 1,2 --places 127.0.0.1:7171 --listen 127.0.0.1:7072
  Call an instance; 421 and the header Mainstay-Node name the node that has it:
    curl -H 'Idempotency-Key: order-1' -d '{...}' http://127.0.0.1:7070/call/TYPE/KEY
  Read:       curl -X POST http://127.0.0.1:7070/query/TYPE/KEY
  Health:     curl http://127.0.0.1:7070/health

Exit codes: 0 stopped cleanly, 1 ended otherwise, 2 wrong flags or list of nodes, 3 directory, address, disk or certificate cannot be used.";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches;

    #[test]
    fn an_entry_of_the_list_is_a_number_an_address_and_perhaps_a_policy() {
        let listed = |given: &str| given.parse::<Listed>();
        let entry =
            |number, address: &str, policy| Ok(Listed { number, address: address.to_owned(), policy });
        assert_eq!(listed("1=127.0.0.1:7171"), entry(1, "127.0.0.1:7171", None));
        assert_eq!(listed(" 2=[::1]:7172"), entry(2, "[::1]:7172", None));
        assert_eq!(listed("3=host:1/causal:2"), entry(3, "host:1", Some(Policy::Causal { f: 2 })));
        assert_eq!(listed("4"), entry(4, "", None));
        assert_eq!(listed("5/causal:2"), entry(5, "", Some(Policy::Causal { f: 2 })));
        for no in ["", "1=", "x=a:1", "1=a", "1=:7", "1=a:0", "1=a:70000", "1=a:1/eager", "-1=a:1"] {
            assert!(listed(no).is_err(), "{no}");
        }
    }

    #[test]
    fn a_node_without_a_list_and_a_list_without_a_node_are_refused() {
        let given = |flags: &[&str]| {
            let matches = command().try_get_matches_from([&["shop"], flags].concat())?;
            NodeFlags::from_arg_matches(&matches)
        };
        assert!(given(&["--node", "1"]).is_err());
        assert!(given(&["--nodes", "1=127.0.0.1:7171"]).is_err());
        assert!(given(&["--tls", "certificates"]).is_err());
        assert!(given(&["--policy", "eager"]).is_err());
        let node = ["--node", "1", "--nodes", "1=127.0.0.1:7171,2=127.0.0.1:7172"];
        assert!(given(&[node.as_slice(), &["--block-seconds", "0"]].concat()).is_err());
        let chosen = ["--policy", "hybrid", "--block-seconds", "3", "--blocked-requests-max", "7"];
        let flags = given(&[node.as_slice(), &chosen].concat());
        let server = flags.expect("these are flags").apply(Node::named("shop").server());
        assert_eq!(server.settings().process.policy, Policy::Hybrid);
        let limits = server.settings().process.limits;
        assert_eq!((limits.block_max, limits.blocked_requests_max), (Duration::from_secs(3), 7));
        assert_eq!(server.settings().directory, PathBuf::from("shop-n1.mainstay"));
    }
}
