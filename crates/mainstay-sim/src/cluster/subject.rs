//! What a simulated cluster is put around: the handler of each node, what is asked of it, and how a run is judged.

use crate::cluster::setup::{Rates, Setup};
use crate::cluster::world::ClusterWorld;
use crate::properties::Violation;
use crate::random::Random;
use mainstay_process::event::Identity;
use mainstay_process::handler::Handler;
use mainstay_types::id::NodeId;
use mainstay_types::time::Time;
use std::any::Any;

/// A service to be simulated on several nodes.
pub(crate) trait Subject {
    /// Nodes, policies, limits, and how often what goes wrong.
    fn setup(&self, random: &mut Random) -> Setup;

    /// The handler of a node, as every life of it begins with it.
    fn handler(&self, node: NodeId) -> Box<dyn Hosted>;

    /// What a client asks for as call `number`; `None` when nothing more is to be asked.
    fn call(&self, number: u64, nodes: &[NodeId], rates: &Rates, random: &mut Random) -> Option<Asked>;

    /// A read: of which node, and its body; `None`: nobody reads.
    fn read(&self, nodes: &[NodeId], random: &mut Random) -> Option<(NodeId, Vec<u8>)>;

    /// The body of a call for people.
    fn show(&self, body: &[u8]) -> String;

    /// Compares a run that has come to rest with one without failures.
    fn judge(&self, world: &ClusterWorld) -> Result<(), Violation>;
}

/// Something that a client asks for.
pub(crate) struct Asked {
    pub(crate) home: NodeId,
    pub(crate) body: Vec<u8>,
    pub(crate) identity: Identity,
    /// How often it is asked for again once it is answered.
    pub(crate) again: u32,
}

/// The handler of a node, whichever it is.
pub(crate) trait Hosted: Handler + Any {
    /// Requests that are taken and not answered.
    fn open(&self) -> usize;

    /// When the next timer is due; `None`: there is none that is worth waiting for once all is at rest.
    fn next_timer(&self) -> Option<Time>;
}

/// A node's handler as the one that it is known to be.
///
/// # Panics
/// When it is another.
pub(crate) fn known<H: Hosted>(handler: &dyn Hosted) -> &H {
    (handler as &dyn Any).downcast_ref().expect("a subject meets its own handlers only")
}
