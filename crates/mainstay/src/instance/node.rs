//! A node: which types of instances a program hosts, and the server made of them.

use crate::cluster::{Cluster, ClusterError};
use crate::command_line;
use crate::instance::Instance;
use crate::instance::address::{Address, is_type_name};
use crate::instance::handler::{Facts, NodeHandler};
use crate::instance::hosted::{Hosted, Instances};
use crate::instance::placement::Placement;
use crate::replay::NotReplayed;
use crate::server::Server;
use crate::typed::check;
use mainstay_process::handler::AnyHandler;
use mainstay_runtime::replay::replay;
use mainstay_runtime::service::{Check, Service, Unfit, start};
use mainstay_runtime::settings::Settings;
use mainstay_types::id::NodeId;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

/// The number of a node that stands alone.
const ALONE: NodeId = NodeId(1);

/// The types of instances that a program hosts. Every node of a cluster runs the same program with the same types; where each instance
/// lives is a function of its address and of the list of nodes.
pub struct Node {
    pub(crate) name: String,
    version: u32,
    pub(crate) types: Vec<HostedType>,
}

/// One type, as the node hosts it.
pub(crate) struct HostedType {
    pub(crate) name: &'static str,
    pub(crate) make: fn() -> Box<dyn Hosted>,
    pub(crate) placement: Placement,
    pub(crate) check_command: fn() -> Check,
    pub(crate) check_query: fn() -> Check,
}

impl Node {
    /// A program of this name, which hosts no type yet. A directory belongs to one name.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), version: 1, types: Vec::new() }
    }

    /// The version of all handlers together: to be raised whenever one would answer, tell or emit anything else for the same history.
    #[must_use]
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Hosts a type whose instances are spread over all nodes by a hash of their addresses.
    ///
    /// # Panics
    /// When the type's name cannot be one, or is hosted already: a bug in the service.
    #[must_use]
    pub fn host<I: Instance>(self) -> Self {
        self.place::<I>(Placement::Hashed)
    }

    /// Hosts a type whose instances all live on one node.
    ///
    /// # Panics
    /// As [`Self::host`].
    #[must_use]
    pub fn host_on<I: Instance>(self, node: u32) -> Self {
        self.place::<I>(Placement::On(NodeId(node)))
    }

    /// Hosts a type whose instances live where `choose` says, given a key and the numbers of all nodes in ascending order. It must say the same on
    /// every node and for ever: an instance is looked for where it says.
    ///
    /// # Panics
    /// As [`Self::host`].
    #[must_use]
    pub fn host_by<I: Instance>(
        self,
        choose: impl Fn(&str, &[NodeId]) -> NodeId + Send + Sync + 'static,
    ) -> Self {
        self.place::<I>(Placement::By(Arc::new(choose)))
    }

    fn place<I: Instance>(mut self, placement: Placement) -> Self {
        let name = I::TYPE;
        assert!(is_type_name(name), "`{name}` is no name of a type: 1 to 63 of a-z, 0-9 and -");
        assert!(self.types.iter().all(|hosted| hosted.name != name), "the type `{name}` is hosted twice");
        self.types.push(HostedType {
            name,
            make: || Box::new(Instances::<I>::default()),
            placement,
            check_command: check::<I::Command>,
            check_query: check::<I::Query>,
        });
        self
    }

    /// A server with default settings, as [`Server::new`] has them: a node that stands alone, until [`Server::cluster`] says otherwise.
    #[must_use]
    pub fn server(self) -> Server<Self> {
        let Self { name, version, types } = self;
        let types = Arc::new(types);
        let types_again = Arc::clone(&types);
        let start = move |settings| {
            let facts = facts(&settings, &types)?;
            let check_command = check_each(&facts, &types, |hosted| hosted.check_command);
            let check_query = check_each(&facts, &types, |hosted| hosted.check_query);
            let make = Box::new(move || Box::new(NodeHandler::new(Arc::clone(&facts), &types)) as AnyHandler);
            Ok(start(settings, Service { make, check_command, check_query })?)
        };
        let mut server =
            Server::hosting(name, version, start, move |settings, replayed, followed, watcher| {
                let facts = facts(settings, &types_again)?;
                if let Some(followed) = &followed {
                    lives_here(&facts, &followed.address)?;
                }
                let make = || -> AnyHandler {
                    Box::new(NodeHandler::new(Arc::clone(&facts), &types_again).following(followed.clone()))
                };
                Ok(replay(settings, &make, replayed, watcher)?)
            });
        server.settings_mut().ingress.addressed = true;
        server
    }

    /// Runs it as a program: takes the flags from the command line and the environment, serves until SIGTERM or SIGINT.
    pub fn serve(self) -> ExitCode {
        command_line::node::serve(self.server(), std::env::args_os())
    }

    /// [`Self::serve`] with other arguments than the program's own; the first one is its name.
    pub fn serve_from(self, arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
        command_line::node::serve(self.server(), arguments)
    }
}

impl Server<Node> {
    /// The cluster that this node is one of.
    #[must_use]
    pub fn cluster(mut self, cluster: Cluster) -> Self {
        self.set_cluster(cluster);
        self
    }
}

/// Whether an instance to be followed can be one of this node's.
fn lives_here(facts: &Facts, address: &Address) -> Result<(), NotReplayed> {
    let why = match facts.node_of(address) {
        Some(node) if node == facts.me => return Ok(()),
        Some(node) => format!("it lives on {node}, this is {}", facts.me),
        None => format!("the types are {:?}", facts.type_names()),
    };
    Err(NotReplayed::NoSuchProcess { process: address.to_string(), why })
}

fn facts(settings: &Settings, types: &[HostedType]) -> Result<Arc<Facts>, ClusterError> {
    let process = &settings.process;
    let (me, nodes, of_links) = match &process.cluster {
        None => (ALONE, vec![ALONE], u32::MAX),
        Some(cluster) => {
            let mut nodes: Vec<NodeId> = cluster.others.keys().copied().chain([cluster.me]).collect();
            nodes.sort_unstable();
            (cluster.me, nodes, cluster.links.message_bytes_max)
        }
    };
    for hosted in types {
        if let Placement::On(node) = hosted.placement
            && !nodes.contains(&node)
        {
            return Err(ClusterError::PlacedNowhere { type_name: hosted.name, node, listed: nodes });
        }
    }
    Ok(Arc::new(Facts {
        me,
        nodes,
        placements: types.iter().map(|hosted| (hosted.name, hosted.placement.clone())).collect(),
        message_bytes_max: process.limits.body_bytes_max.min(of_links as usize),
    }))
}

/// Asked before anything is logged: is it addressed to a type that is hosted, and to an instance of this node, and is it what that takes?
fn check_each(facts: &Arc<Facts>, types: &[HostedType], of: fn(&HostedType) -> fn() -> Check) -> Check {
    let facts = Arc::clone(facts);
    let checks: BTreeMap<&'static str, Check> =
        types.iter().map(|hosted| (hosted.name, of(hosted)())).collect();
    Box::new(move |body| {
        let (to, body) = Address::take(body).expect("the ingress puts the address ahead of what it hands on");
        let (Some(check), Some(node)) = (checks.get(to.type_name.as_str()), facts.node_of(&to)) else {
            return Err(Unfit::NoSuchType { hosted: facts.type_names() });
        };
        if node != facts.me {
            return Err(Unfit::Elsewhere { node });
        }
        check(body)
    })
}
