//! `mainstay node`: one node of a replicated region, and `mainstay group`: asking a node about its group.

use crate::demo::orphan;
use crate::redis::{Connection, Said};
use crate::verdict::{UsageError, Verdict};
use crate::watch;
use anyhow::Context;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use mainstay::command_line::{address, log_to_standard_error_unless_told};
use mainstay_group::limits::Timing;
use mainstay_group::roles::{LossAction, Requirement};
use mainstay_node::gateway::GatewayTimes;
use mainstay_node::node::{Ended, Listening, run as run_node};
use mainstay_node::settings::{Arbiter, Entry, Settings, region, role};
use mainstay_replica::definition::Definition;
use mainstay_tls::{TlsClient, TlsError, TlsFiles, is_node_name};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How long a node may take to answer about its group.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Text for the end of the help of commands that say where a node stands.
const EXIT_CODES: &str = "Exit codes: 0 the node serves; 1 it does not, or `status` shows a region that lacks a required role; 2 the command line is wrong; 3 no node answers there";

/// `mainstay node`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mainstay node --dir n1 --init --region data:level=process --listen 127.0.0.1:7171 --resp 127.0.0.1:7371
  mainstay node --dir n2 --join 127.0.0.1:7171 --listen 127.0.0.1:7172 --resp 127.0.0.1:7372
  mainstay node --dir n3 --join 127.0.0.1:7171 --listen 127.0.0.1:7173 --resp 127.0.0.1:7373
  redis-cli -p 7372 set greeting hello; redis-cli -p 7373 get greeting
  kill -9 $(head -1 n1/journal/lock); redis-cli -p 7372 incr visits          two of three go on
  mainstay node --dir n1 --listen 127.0.0.1:7171 --resp 127.0.0.1:7371       comes back by itself
  mainstay group status 127.0.0.1:7372

Beyond one machine, with certificates (`mainstay cert --help`):
  mainstay node --dir n1 --init --listen 10.0.0.1:7171 --resp 10.0.0.1:7371 --tls certificates --name n1
  redis-cli -h 10.0.0.1 -p 7371 --tls --cacert certificates/ca.pem --cert certificates/app.pem --key certificates/app.key

Two nodes and an etcd:
  mainstay node --dir n1 --init --arbiter http://127.0.0.1:2379 --listen 127.0.0.1:7171 --resp 127.0.0.1:7371
  mainstay node --dir n2 --join 127.0.0.1:7171 --arbiter http://127.0.0.1:2379 --listen 127.0.0.1:7172 --resp 127.0.0.1:7372

A node that is killed or stopped stays a member until the others hear nothing of it, and comes back when it is started again. To take it out for
good: mainstay group leave ADDRESS.")]
pub(crate) struct Node {
    /// The node's directory, made if it is not there.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Begin a new group: once, at one node, with an empty directory.
    #[arg(long, conflicts_with = "join")]
    init: bool,
    /// Ask to be let in at these nodes; not needed any more once it was a member, unless all others have moved.
    #[arg(long, value_name = "ADDRESS:PORT", value_delimiter = ',', value_parser = address)]
    join: Vec<SocketAddr>,
    /// Where other nodes reach this one: a loopback address, unless there are certificates.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7171", value_parser = address)]
    listen: SocketAddr,
    /// Where clients of the Redis protocol reach it: the same.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7371", value_parser = address)]
    resp: SocketAddr,
    #[command(flatten)]
    certificates: Certificates,
    /// The etcd that decides which side goes on, so that a group of two survives the death of one: said with --init, and the same at every node.
    /// Endpoints: http:// on loopback; https:// with the certificates of --tls.
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    arbiter: Vec<String>,
    /// The region of a new group, said with --init and fixed for good; who joins takes it from the others: pattern=one-hop, shards=16, ack=majority (or all), level=disk (or process).
    #[arg(long, value_name = "NAME:SETTING=VALUE,…", requires = "init", conflicts_with = "join", default_value = "data", value_parser = region)]
    region: Definition,
    /// A role that this node offers, for regions that require it; more than once for more.
    #[arg(long, value_name = "NAME", value_parser = role)]
    role: Vec<String>,
    /// A role that some node must offer for the region of a new group to be used in full; more than once for more.
    #[arg(long, value_name = "NAME", requires = "init", value_parser = role)]
    require_role: Vec<String>,
    /// What becomes of the region while nobody offers a role that it requires: full, no matter; read-only; none, neither read nor written; reconnect,
    /// the same, and nodes that see the role go leave once and come back.
    #[arg(long, value_name = "ACTION", requires = "require_role", default_value = LossAction::default().name(),
          value_parser = PossibleValuesParser::new(LossAction::ALL.map(LossAction::name)).map(loss_action))]
    on_role_loss: LossAction,
    /// Connections of clients at the same time.
    #[arg(long, value_name = "COUNT", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    clients_max: u32,
    /// Go on with what is left of a region at level process after a power loss: acknowledged writes may be missing. Only where no node has more.
    #[arg(long)]
    accept_loss: bool,
    /// Hold back what is said to other nodes and native clients for so long, for measuring.
    #[arg(long, hide = true, value_name = "MICROSECONDS", default_value_t = 0)]
    link_delay_us: u64,
    /// Obey MAINSTAY.CUT, which cuts this node off from others.
    #[arg(long, hide = true)]
    allow_cuts: bool,
    /// End with this process.
    #[arg(long, hide = true)]
    parent: Option<u32>,
}

/// What proves to others who this is, and encrypts.
#[derive(Debug, clap::Args)]
pub(crate) struct Certificates {
    /// TLS, with ca.pem, NAME.pem and NAME.key of this directory, as `mainstay cert` makes them [default: plain text, on loopback only].
    #[arg(long, value_name = "DIR", requires = "name")]
    tls: Option<PathBuf>,
    /// Whose certificate to show.
    #[arg(long, value_name = "NAME", requires = "tls", value_parser = certified_name)]
    name: Option<String>,
}

impl Certificates {
    fn files(&self) -> Option<(TlsFiles, String)> {
        let (directory, name) = (self.tls.as_ref()?, self.name.clone()?);
        Some((TlsFiles::in_directory(directory, &name), name))
    }

    /// What asks nodes in this name.
    ///
    /// # Errors
    /// When the certificate is of no use.
    pub(crate) fn asking(&self) -> Result<Asking, TlsError> {
        let tls = self.files().map(|(files, _)| TlsClient::load(&files)).transpose()?;
        Ok(Asking { tls })
    }
}

fn certified_name(given: &str) -> Result<String, String> {
    match is_node_name(given) {
        true => Ok(given.to_owned()),
        false => Err("no name that `mainstay cert` gives: 1 to 63 of a-z, 0-9 and -".to_owned()),
    }
}

/// Runs a node until it is stopped.
///
/// # Errors
/// When it cannot start, or its disk fails.
pub(crate) fn run(node: &Node) -> anyhow::Result<Verdict> {
    if let Some(parent) = node.parent {
        orphan::die_with(parent)?;
    }
    log_to_standard_error_unless_told("warn,mainstay_node=info");
    let requirement = Requirement { roles: node.require_role.clone(), loss: node.on_role_loss };
    let entry = match node.init {
        true => Entry::Begin(vec![Definition { requirement, ..node.region.clone() }]),
        false => Entry::Join(node.join.clone()),
    };
    let certified = node.certificates.files();
    let arbiter = match node.arbiter.is_empty() {
        true => None,
        false => Some(Arbiter::at(&node.arbiter, certified.is_some())?),
    };
    let mut settings = Settings {
        directory: node.dir.clone(),
        listen: node.listen,
        resp: node.resp,
        entry,
        timing: Timing::default(),
        gateway: GatewayTimes::default(),
        clients_max: node.clients_max as usize,
        accept_loss: node.accept_loss,
        link_delay: Duration::from_micros(node.link_delay_us),
        certified,
        roles: node.role.clone(),
        arbiter,
        allow_cuts: node.allow_cuts,
    };
    loop {
        let mut listens = None;
        let ended = run_node(&settings, |at| {
            announce(&node.dir, at);
            listens = Some(at);
        })?;
        match ended {
            Ended::Stopped => {
                println!("stopped; this node is a member still, start it again or let the others go on");
                return Ok(Verdict::Clean);
            }
            Ended::Left => {
                println!("left the group for good");
                return Ok(Verdict::Clean);
            }
            Ended::Reconnects => {
                let at = listens.expect("a node that has served has listened");
                (settings.listen, settings.resp, settings.entry) =
                    (at.nodes, at.clients, Entry::Join(Vec::new()));
            }
        }
    }
}

fn loss_action(name: String) -> LossAction {
    LossAction::ALL.into_iter().find(|action| action.name() == name).expect("only these are possible")
}

fn announce(directory: &std::path::Path, at: Listening) {
    let mut out = io::stdout();
    // Nobody may be listening; the node serves all the same.
    let _ = writeln!(
        out,
        "node {}: other nodes reach it at {}, clients at {} (redis-cli -p {})",
        directory.display(),
        at.nodes,
        at.clients,
        at.clients.port()
    );
    let _ = out.flush();
}

/// `mainstay group`: what a node knows of its group.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Group {
    /// Say where a node stands: its view, its members, its regions.
    #[command(after_help = EXIT_CODES)]
    Status(Asked),
    /// Say in a sentence whether a node serves, and if not, which side does and why.
    #[command(after_help = EXIT_CODES)]
    Explain(Asked),
    /// Show where nodes stand, live, until it is interrupted.
    Watch(watch::Watch),
    /// Take a node out of its group for good: no node starts with its directory again.
    Leave(Asked),
}

/// Which node.
#[derive(Debug, clap::Args)]
pub(crate) struct Asked {
    /// Where clients reach the node.
    #[arg(value_name = "ADDRESS:PORT", value_parser = address)]
    pub(crate) node: SocketAddr,
    #[command(flatten)]
    certificates: Certificates,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Asks.
///
/// # Errors
/// When the node does not answer.
pub(crate) fn ask(group: &Group) -> anyhow::Result<Verdict> {
    match group {
        Group::Status(asked) => {
            let status = asked.status()?;
            match asked.json {
                true => println!("{}", serde_json::to_string_pretty(&status)?),
                false => print!("{}", in_words(&status)),
            }
            let lacks = |region: &serde_json::Value| {
                region["roles_missing"].as_array().is_some_and(|roles| !roles.is_empty())
            };
            let restricted = status["regions"].as_array().into_iter().flatten().any(lacks);
            Ok(if status["serves"] == true && !restricted { Verdict::Clean } else { Verdict::Wrong })
        }
        Group::Explain(asked) => {
            let explanation = asked.tell(b"MAINSTAY.EXPLAIN")?;
            match asked.json {
                true => println!("{}", serde_json::json!({ "explanation": explanation })),
                false => println!("{explanation}"),
            }
            Ok(if explanation.starts_with("serves:") { Verdict::Clean } else { Verdict::Wrong })
        }
        Group::Watch(watch) => watch::run(watch),
        Group::Leave(asked) => {
            let status = asked.status()?;
            if status["members"].as_array().is_some_and(|members| members.len() == 1) {
                let explanation =
                    "it is the only member: stop it instead, nobody else has its data".to_owned();
                return Err(UsageError { explanation }.into());
            }
            let said = asked.tell(b"MAINSTAY.LEAVE")?;
            match asked.json {
                true => println!("{}", serde_json::json!({ "leaving": said == "OK" })),
                false => println!("{} is leaving; it ends when the others have agreed", asked.node),
            }
            Ok(Verdict::Clean)
        }
    }
}

impl Asked {
    fn status(&self) -> anyhow::Result<serde_json::Value> {
        self.certificates.asking()?.status(self.node)
    }

    fn tell(&self, command: &[u8]) -> anyhow::Result<String> {
        self.certificates.asking()?.tell(self.node, command)
    }

    /// What the node says to these words.
    ///
    /// # Errors
    /// When it does not answer.
    pub(crate) fn say(&self, words: &[&[u8]]) -> anyhow::Result<Said> {
        self.certificates.asking()?.say(self.node, words)
    }
}

/// Asks nodes, by TLS where there is a certificate to show.
#[derive(Debug)]
pub(crate) struct Asking {
    tls: Option<TlsClient>,
}

impl Asking {
    /// Where a node stands.
    ///
    /// # Errors
    /// When it does not answer.
    pub(crate) fn status(&self, node: SocketAddr) -> anyhow::Result<serde_json::Value> {
        Ok(serde_json::from_str(&self.tell(node, b"MAINSTAY.STATUS")?)?)
    }

    fn tell(&self, node: SocketAddr, command: &[u8]) -> anyhow::Result<String> {
        self.say(node, &[command])?.text()
    }

    fn say(&self, node: SocketAddr, words: &[&[u8]]) -> anyhow::Result<Said> {
        let opened = match &self.tls {
            None => Connection::open(node, ANSWER_TIMEOUT),
            Some(tls) => Connection::open_tls(node, ANSWER_TIMEOUT, tls),
        };
        let mut connection = opened.with_context(|| format!("no node answers at {node}"))?;
        connection.ask(words).with_context(|| format!("the node at {node} broke off"))
    }
}

/// Where a node without certificates stands.
///
/// # Errors
/// When it does not answer.
pub(crate) fn status(node: SocketAddr) -> anyhow::Result<serde_json::Value> {
    Asking { tls: None }.status(node)
}

/// The words of a list, with commas.
fn names(list: &serde_json::Value) -> String {
    let words = list.as_array().into_iter().flatten().filter_map(serde_json::Value::as_str);
    words.collect::<Vec<_>>().join(", ")
}

fn in_words(status: &serde_json::Value) -> String {
    let word = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let view = match (status["view"].as_u64(), status["cluster"].as_str()) {
        (_, None) => "in no group yet".to_owned(),
        (Some(0), Some(group)) => format!("in no view of group {group}"),
        (_, Some(group)) => format!("view {} of group {group}", status["view"]),
    };
    let mut text = format!("{}\n{view}\n", word(&status["explanation"]));
    for member in status["members"].as_array().into_iter().flatten() {
        let me = if member["me"] == true { ", this node" } else { "" };
        let roles = match names(&member["roles"]) {
            none if none.is_empty() => none,
            roles => format!(", offers {roles}"),
        };
        text.push_str(&format!("  {} since view {}{roles}{me}\n", word(&member["address"]), member["born"]));
    }
    for region in status["regions"].as_array().into_iter().flatten() {
        text.push_str(&format!(
            "region {}: {} keys, {} shards, {}, acknowledged by {}, level {}\n",
            word(&region["name"]),
            region["keys"],
            region["shards"],
            word(&region["pattern"]),
            word(&region["acknowledged_by"]),
            word(&region["level"])
        ));
        let requires = names(&region["requires"]);
        if !requires.is_empty() {
            let loss = word(&region["on_role_loss"]);
            text.push_str(&format!("  requires {requires}; access without: {loss}\n"));
        }
    }
    text.push_str(&format!("{} bytes of journal are read at the next start\n", status["journal_bytes"]));
    text
}
