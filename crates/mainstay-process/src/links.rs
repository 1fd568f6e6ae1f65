//! A node's share of the cluster: what it has sent and not been released from, what it has received, and its logging protocol.
//!
//! All of it is changed by deliveries in a first run as in a replay, so that a replay re-creates the volatile sender log (Johnson and
//! Zwaenepoel 1987; Zhao 2014, section 2.3.2), and all of it is part of every checkpoint.

use crate::config::{Cluster, Config};
use crate::handler::RequestId;
use crate::record::delivery::Delivery;
use crate::record::prefix::Prefix;
use crate::recover::RecoverError;
use mainstay_channel::channel::Channel;
use mainstay_channel::hello::{Declared, Identity};
use mainstay_channel::limits::Limits;
use mainstay_journal::open::OpenReport;
use mainstay_recovery::logging::{Logging, Malformed, Source};
use mainstay_recovery::policy::Policy;
use mainstay_recovery::protocol::protocol_among;
use mainstay_types::codec::{Reader, Truncated, put_bytes};
use mainstay_types::determinant::{Place, Point};
use mainstay_types::id::{DeliveryIndex, Generation, Incarnation, Lsn, NodeId, Ssn};
use mainstay_types::rules::Rule;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The sender log and the protocol, with the names of the other nodes.
#[derive(Debug)]
pub(crate) struct Links {
    pub(crate) nodes: Vec<NodeId>,
    /// Bytes of a message's body, at most.
    pub(crate) message_bytes_max: usize,
    pub(crate) policies: BTreeMap<NodeId, Policy>,
    pub(crate) channel: Channel,
    pub(crate) logging: Box<dyn Logging>,
    /// Whether outside inputs travel to other nodes, record and all.
    carries_inputs: bool,
    nothing: Arc<[u8]>,
}

/// A checkpoint's share of the cluster cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinksError {
    /// It ends too early.
    #[error(transparent)]
    Truncated(#[from] Truncated),
    /// The sender log.
    #[error(transparent)]
    Channel(#[from] mainstay_channel::RestoreError),
    /// The protocol's bookkeeping.
    #[error(transparent)]
    Logging(#[from] Malformed),
}

impl Links {
    /// The share of a node whose last checkpoint says `saved` (empty: it has none), in the life that `report` opened.
    pub(crate) fn recover(
        cluster: &Cluster,
        config: &Config,
        report: &OpenReport,
        saved: &[u8],
    ) -> Result<Self, RecoverError> {
        let policy = config.policy;
        let nodes: Vec<NodeId> = cluster.others.keys().copied().collect();
        let incarnation = Incarnation(report.generation.0);
        let identity = Identity { cluster: cluster.id, node: cluster.me, store: report.store, incarnation };
        let [code, failures_max] = policy.code();
        // A message is journaled by its receiver as a request is, and pages are checked for those.
        let longest = u32::try_from(config.limits.body_bytes_max).unwrap_or(u32::MAX);
        let message_bytes_max = cluster.links.message_bytes_max.min(longest);
        let limits = Limits { message_bytes_max, ..cluster.links };
        let declared = Declared { policy: code, failures_max, version: config.version };
        let channel = Channel::new(identity, declared, &nodes, limits);
        let among: Vec<(NodeId, Policy)> =
            cluster.others.iter().map(|(&node, &policy)| (node, policy)).collect();
        let logging = protocol_among(policy, cluster.me, &among)?;
        let mut links = Self {
            nodes,
            message_bytes_max: message_bytes_max as usize,
            policies: cluster.others.clone(),
            channel,
            logging,
            carries_inputs: matches!(policy, Policy::Causal { .. }),
            nothing: Arc::from([]),
        };
        if !saved.is_empty() {
            links.restore(saved)?;
        }
        if !report.sealed && !report.created {
            links.channel.began_with_a_crash();
        }
        if policy.collects() {
            links.channel.collect();
        }
        if policy.rolls_back() || !config.rules.keep(Rule::OrphansRollBack) {
            links.channel.let_orphans_roll_back();
        }
        Ok(links)
    }

    /// Tells the protocol of a delivery that is about to be executed.
    pub(crate) fn delivered(
        &mut self,
        delivery: &Delivery,
        prefix: &Prefix,
        life: Generation,
        end: Lsn,
        journaled: bool,
    ) {
        let life = Incarnation(life.0);
        let place = Place { delivery: prefix.delivery, life, now: prefix.now, seed: prefix.seed };
        let source = match delivery {
            Delivery::Message { from, ssn, origin, stamp, .. } => {
                self.channel.delivered(*from, *ssn, *origin);
                self.logging
                    .replaying(*from, *ssn, stamp)
                    .expect("a stamp is checked before its message is taken in");
                let end = journaled.then_some(end);
                Source::Message { from: *from, ssn: *ssn, origin: *origin, end }
            }
            _ if self.carries_inputs => Source::Local { end, record: input_record(delivery, prefix) },
            _ => Source::Local { end, record: Arc::clone(&self.nothing) },
        };
        self.logging.delivered(place, &source);
    }

    /// Keeps a message that the delivery `at` of `life` emitted.
    pub(crate) fn emit(&mut self, to: NodeId, life: Generation, at: DeliveryIndex, body: Vec<u8>) -> Ssn {
        let mut stamp = Vec::new();
        self.logging.stamp(&mut stamp);
        let origin = Point { incarnation: Incarnation(life.0), delivery: at };
        self.channel.append(to, origin, stamp, body.into_boxed_slice())
    }

    /// Lets every message leave that the history replayed so far emitted: it was recovered, so that whatever they waited for has come. Another
    /// node that recovers at the same time may need them for its own replay.
    pub(crate) fn release_recovered(&mut self) {
        for &node in &self.nodes {
            let last = self.channel.appended(node);
            self.channel.release(node, last);
        }
    }

    pub(crate) fn save(&self) -> Vec<u8> {
        let (mut channel, mut logging, mut out) = (Vec::new(), Vec::new(), Vec::new());
        self.channel.save(&mut channel);
        self.logging.save(&mut logging);
        put_bytes(&mut out, &channel);
        put_bytes(&mut out, &logging);
        out
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), LinksError> {
        let mut reader = Reader::new(bytes);
        self.channel.restore(reader.bytes()?)?;
        self.logging.restore(reader.bytes()?)?;
        Ok(())
    }
}

/// Kind and payload, as the journal has them: what another node gives back when this journal is lost.
fn input_record(delivery: &Delivery, prefix: &Prefix) -> Arc<[u8]> {
    let mut record = delivery.kind().0.to_le_bytes().to_vec();
    delivery.put_head(prefix, &mut record);
    record.extend_from_slice(delivery.tail());
    record.into()
}

/// A message or late answer that a delivery led to, for the composer to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Emitted {
    pub(crate) to: NodeId,
    pub(crate) ssn: Ssn,
}

/// A request that this delivery answered, taken by an earlier one.
#[derive(Clone, Debug)]
pub(crate) struct LateAnswer {
    pub(crate) request: RequestId,
    pub(crate) answer: Arc<crate::handler::Answer>,
    pub(crate) expires: Option<mainstay_types::time::Time>,
}
