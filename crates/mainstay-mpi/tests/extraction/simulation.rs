//! A random program on a few ranks. What each does next is drawn, as are the moments at which messages arrive.

mod begin;
mod comms;
mod end;

use crate::network::{Message, Mode, Network, Progress};
use crate::rank::{ANY, BYTE, COMM_NULL, MESSAGE_NULL, NOBODY, Rank, SHARED, SPARSE, Status, WORLD};
use mainstay_mpi::core::Buffer;
use mainstay_mpi::field::{ObjectKind, Role};
use std::collections::BTreeMap;
use std::path::Path;

/// Longest message and room for each, in bytes.
const ROOM_BYTES: usize = 40;
const TAGS: i64 = 3;

/// How often each thing happened: what never happens is not tested.
pub(crate) type Reached = BTreeMap<&'static str, u64>;

pub(crate) struct Simulation {
    random: fastrand::Rng,
    network: Network,
    nodes: Vec<Node>,
    /// Members of each communicator: one group, or two of an inter-communicator.
    comms: Vec<Vec<Vec<usize>>>,
    pub(crate) reached: Reached,
}

struct Node {
    rank: Rank,
    at: usize,
    comms: BTreeMap<usize, u64>,
    requests: Vec<Request>,
    found: Vec<(u64, usize, Message)>,
    blocked: Option<Blocked>,
    memory: Vec<Box<[u8]>>,
    comm_handles: Handles,
    request_handles: Handles,
    message_handles: Handles,
}

/// Handles, which MPI uses again as soon as it can.
struct Handles {
    free: Vec<u64>,
    next: u64,
}

impl Handles {
    fn make(&mut self) -> u64 {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }
}

#[derive(Clone, Copy)]
struct Request {
    /// In the simulation; `given` to the program.
    handle: u64,
    given: u64,
    persistent: bool,
    receives: bool,
    buffer: Buffer,
    comm: usize,
    /// In the world; `None` for any, or nobody.
    peer: Option<usize>,
    nobody: bool,
    tag: Option<i64>,
    going: Option<Going>,
}

#[derive(Clone, Copy)]
enum Going {
    Send(usize),
    Post(usize),
    Nobody,
}

enum Blocked {
    Send(usize),
    Receive(Going, usize, Buffer),
    Probe(usize, Option<usize>, Option<i64>),
    Wait(u64),
    Any(Vec<u64>),
    All(Vec<u64>),
}

impl Simulation {
    pub(crate) fn new(folder: &Path, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let size = random.usize(2..=4);
        for (payload, _) in crate::rank::POLICIES {
            std::fs::create_dir(folder.join(payload.to_string())).expect("a folder");
        }
        let handles = |next| Handles { free: Vec::new(), next };
        let nodes = (0..size).map(|at| Node {
            rank: Rank::new(folder, at, size, &crate::rank::POLICIES, 4096),
            at,
            comms: BTreeMap::from([(0, WORLD)]),
            requests: Vec::new(),
            found: Vec::new(),
            blocked: None,
            memory: Vec::new(),
            comm_handles: handles(1000),
            request_handles: handles(2000),
            message_handles: handles(3000),
        });
        Self {
            random,
            network: Network::default(),
            nodes: nodes.collect(),
            comms: vec![vec![(0..size).collect()]],
            reached: Reached::new(),
        }
    }

    pub(crate) fn ranks(&self) -> usize {
        self.nodes.len()
    }

    /// Runs so many steps, lets all arrive that is on its way, and ends or cuts off each rank. Whether a rank was left in a
    /// call that sends, and its message in no log.
    pub(crate) fn run(mut self, steps: usize) -> (Reached, bool) {
        for _ in 0..steps {
            if self.random.u8(..) < 80 {
                self.network.deliver(&mut self.random);
            } else if self.random.u8(..) < 6 && self.nodes.iter().all(|node| node.blocked.is_none()) {
                self.change_comms();
            } else {
                let at = self.random.usize(..self.nodes.len());
                if self.nodes[at].blocked.is_none() {
                    self.act(at);
                } else if !self.go_on(at) && self.random.bool() {
                    self.help(at);
                }
            }
        }
        loop {
            let delivered = self.network.deliver(&mut self.random);
            let mut went_on = false;
            for at in 0..self.nodes.len() {
                went_on |= self.nodes[at].blocked.is_some() && self.go_on(at);
            }
            if !delivered && !went_on {
                break;
            }
        }
        let mut unsaid = false;
        for node in self.nodes {
            unsaid |= matches!(node.blocked, Some(Blocked::Receive(_, 1, _) | Blocked::Send(_)));
            if node.blocked.is_none() && self.random.u8(..) < 180 {
                node.rank.finish();
            }
        }
        (self.reached, unsaid)
    }

    fn reach(&mut self, what: &'static str) {
        *self.reached.entry(what).or_default() += 1;
    }

    /// Ranks of the world that a peer's number means.
    fn peers(&self, comm: usize, of: usize) -> &[usize] {
        let groups = &self.comms[comm];
        groups.iter().find(|group| groups.len() == 1 || !group.contains(&of)).expect("another group")
    }

    fn peer_number(&self, comm: usize, of: usize, world: usize) -> i64 {
        let at = self.peers(comm, of).iter().position(|peer| *peer == world).expect("a member");
        i64::try_from(at).expect("few ranks")
    }

    fn status(&self, at: usize, comm: usize, message: &Message) -> Status {
        let source = self.peer_number(comm, at, message.source);
        Status { source, tag: message.tag, bytes: message.data.len() as u64 }
    }

    fn any_comm(&mut self, at: usize) -> (usize, u64) {
        let comms: Vec<_> = self.nodes[at].comms.iter().map(|(comm, handle)| (*comm, *handle)).collect();
        self.random.choice(comms).expect("the world is never freed")
    }

    /// Memory for a message of `bytes`, with or without holes.
    fn buffer(&mut self, at: usize, bytes: usize) -> Buffer {
        let mut memory: Box<[u8]> = (0..2 * ROOM_BYTES).map(|_| self.random.u8(..)).collect();
        let address = memory.as_mut_ptr() as u64;
        self.nodes[at].memory.push(memory);
        let datatype = if self.random.bool() { BYTE } else { SPARSE };
        Buffer { address, count: bytes as u64, datatype }
    }

    /// Source (or nobody, or any) and tag (or any) of a receive: the number in the call, and what it means.
    fn pattern(&mut self, at: usize, comm: usize) -> ((i64, i64), Option<usize>, Option<i64>, bool) {
        let peers = self.peers(comm, at).to_vec();
        let number = self.random.usize(..peers.len());
        let nobody = self.random.u8(..) < 8;
        let (source, peer) = match self.random.u8(..) {
            _ if nobody => (NOBODY, None),
            0..100 => (ANY, None),
            _ => (i64::try_from(number).expect("few"), Some(peers[number])),
        };
        let tag = (self.random.u8(..) >= 90).then(|| self.random.i64(0..TAGS));
        if !nobody && (peer.is_none() || tag.is_none()) {
            self.reach("wildcard");
        }
        ((source, tag.unwrap_or(ANY)), peer, tag, nobody)
    }

    fn destination(&mut self, at: usize, comm: usize) -> (i64, Option<usize>, i64) {
        let peers = self.peers(comm, at).to_vec();
        let number = self.random.usize(..peers.len());
        let tag = self.random.i64(0..TAGS);
        if self.random.u8(..) < 5 {
            return (NOBODY, None, tag);
        }
        (i64::try_from(number).expect("few"), Some(peers[number]), tag)
    }

    /// Puts a message on its way.
    fn send(
        &mut self,
        at: usize,
        to: Option<usize>,
        comm: usize,
        tag: i64,
        mode: Mode,
        from: Buffer,
    ) -> Going {
        let Some(to) = to else {
            return Going::Nobody;
        };
        let data = read(from);
        Going::Send(self.network.send(to, comm, mode, Message { send: 0, source: at, tag, data }))
    }

    fn post(&mut self, request: &Request, at: usize) -> Going {
        if request.nobody {
            return Going::Nobody;
        }
        Going::Post(self.network.post(at, request.comm, request.peer, request.tag))
    }
}

fn places(buffer: Buffer) -> impl Iterator<Item = *mut u8> {
    let step = if buffer.datatype == SPARSE { 2 } else { 1 };
    (0..buffer.count).map(move |place| (buffer.address + place * step) as *mut u8)
}

fn read(buffer: Buffer) -> Vec<u8> {
    // SAFETY: the buffer is memory of a node, as long as the simulation lives.
    places(buffer).map(|at| unsafe { at.read() }).collect()
}

fn write(buffer: Buffer, data: &[u8]) {
    for (at, byte) in places(buffer).zip(data) {
        // SAFETY: as in `read`.
        unsafe { at.write(*byte) };
    }
}
