//! One connection for each pair and direction: in order, late, and lost with what is under way on it.

use super::world::{Next, World};
use crate::group::setup::{BEAT_NS, machine};
use crate::reach::Reach;
use crate::region::clients::Ask;
use mainstay_region::message::Body;
use mainstay_replica::message::Message;
use mainstay_types::id::ClientId;

/// Who is at one end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum End {
    Node(usize),
    Client(usize),
}

/// A connection: when the last message arrives, and how often it broke.
#[derive(Clone, Copy, Default)]
pub(crate) struct Link {
    arrives_ns: u64,
    pub(crate) broke: u64,
}

impl World {
    pub(crate) fn send(&mut self, from: End, to: End, message: &Message) {
        let mut bytes = Vec::new();
        message.put(&mut bytes);
        let (places, now_ns) = ((self.place(from), self.place(to)), self.now_ns);
        let cut = self.cuts.iter().filter(|cut| {
            cut.from >> places.0 & 1 == 1 && cut.to >> places.1 & 1 == 1 && places.0 != places.1
        });
        let until_ns = cut.map(|cut| cut.until_ns).filter(|&until_ns| until_ns > now_ns).max();
        let breaks = self.faulty && self.random.below(1_000_000) < self.setup.breaks_per_million;
        let stands = until_ns.is_some() && self.random.coin();
        if breaks || (until_ns.is_some() && !stands) {
            self.links.entry((from, to)).or_default().broke += 1;
            self.reached.hit(Reach::ConnectionBroken);
            return;
        }
        let late = self.faulty && self.random.chance(self.setup.late_per_mille);
        let mut delay_ns = self.random.below(if late { 30 * BEAT_NS } else { BEAT_NS / 20 });
        // What was sent into a cut that is not noticed arrives behind it.
        delay_ns += until_ns.map_or(0, |until_ns| until_ns - now_ns);
        let link = self.links.entry((from, to)).or_default();
        link.arrives_ns = (now_ns + delay_ns).max(link.arrives_ns + 1);
        let (after_ns, broke) = (link.arrives_ns - now_ns, link.broke);
        self.schedule(after_ns, Next::Deliver { from, to, bytes, broke });
    }

    /// Which machine it is at, for cuts.
    fn place(&self, end: End) -> usize {
        match end {
            End::Node(machine) => machine,
            End::Client(client) => client % self.nodes.len(),
        }
    }

    pub(crate) fn deliver(&mut self, from: End, to: End, bytes: &[u8], broke: u64) {
        if self.links.get(&(from, to)).is_some_and(|link| link.broke != broke) {
            self.reached.hit(Reach::FramesLost);
            return;
        }
        let message = Message::parse(bytes, &self.setup.limits).expect("what a node sends reads back");
        match to {
            End::Node(at) => self.hears(at, message),
            End::Client(at) => {
                if let Message::Answer { from, client, message, .. } = message
                    && self.clients[at].has(client)
                {
                    self.with_client(at, |client, scene| client.hears(from, message, scene));
                }
            }
        }
    }

    /// All connections with a node that ended are broken.
    pub(crate) fn disconnect(&mut self, at: usize) {
        for ((from, to), link) in &mut self.links {
            if *from == End::Node(at) || *to == End::Node(at) {
                link.broke += 1;
            }
        }
    }

    pub(crate) fn count(&mut self, body: &Body) {
        let reach = match body {
            Body::Acknowledged(done) if done.iter().any(|done| done.duplicate) => Reach::AnsweredFromTable,
            Body::Forwarded { retry: true, .. } => Reach::RetriedElsewhere,
            Body::Image { .. } => Reach::ImageSent,
            Body::Answer { found: Err(mainstay_region::message::Refusal::NoLease), .. } => {
                Reach::ReadRefusedWithoutLease
            }
            _ => return,
        };
        self.reached.hit(reach);
    }

    /// Does what a client asks for.
    pub(crate) fn asked(&mut self, at: usize, ask: Ask) {
        let nodes = self.nodes.len();
        match ask {
            Ask::Send(client, to, message) => {
                let (cluster, region, message) = (self.cluster, self.region_of(at), *message);
                let message = Message::Request { cluster, region, client, message };
                self.send(End::Client(at), End::Node(machine(to.address)), &message);
            }
            Ask::Gone(_) => {
                let mut random = self.random.clone();
                self.random.draw();
                let links = self.links.iter_mut().filter(|((from, _), _)| *from == End::Client(at));
                links.filter(|_| random.coin()).for_each(|(_, link)| link.broke += 1);
            }
            Ask::View => {
                let asked = self.random.index(nodes);
                let view = self.nodes[asked].running.as_ref().and_then(|node| node.view().cloned());
                if let Some(view) = view {
                    let after_ns = self.random.below(BEAT_NS / 10);
                    self.schedule(after_ns, Next::View { client: at, view });
                }
            }
        }
    }

    pub(crate) fn client_at(&self, client: ClientId) -> Option<usize> {
        self.clients.iter().position(|other| other.has(client))
    }
}
