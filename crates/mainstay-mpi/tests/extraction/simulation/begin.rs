//! Calls that send, post receives, and make and start requests.

use super::*;

impl Simulation {
    pub(super) fn act(&mut self, at: usize) {
        let thread = self.random.u16(..3);
        match self.random.u8(..100) {
            0..26 => self.send_now(at, thread),
            26..40 => self.receive_now(at, thread),
            40..46 => self.send_and_receive(at, thread),
            46..60 => self.receive_later(at, thread),
            60..66 => self.persistent(at, thread),
            66..72 => self.start(at, thread),
            72..90 => self.wait(at, thread),
            90..93 => self.cancel(at, thread),
            93..98 => self.probe(at, thread),
            _ => self.receive_found(at, thread),
        }
    }

    /// Lets another rank send what a rank waits for, so that not all end up waiting.
    pub(super) fn help(&mut self, at: usize) {
        let wanted = match &self.nodes[at].blocked {
            Some(Blocked::Receive(Going::Post(post), ..)) => Some(self.network.wanted(*post)),
            Some(Blocked::Probe(comm, peer, tag)) => Some((*comm, *peer, *tag)),
            Some(Blocked::Wait(handle)) => {
                let mut requests = self.nodes[at].requests.iter();
                let request = requests.find(|request| request.handle == *handle && request.receives);
                request.map(|request| (request.comm, request.peer, request.tag))
            }
            _ => None,
        };
        let Some((comm, source, tag)) = wanted else {
            return;
        };
        let peers = self.peers(comm, at).to_vec();
        let source = source.or_else(|| self.random.choice(peers)).expect("a peer");
        let helper = &self.nodes[source];
        if let (None, Some(&handle)) = (&helper.blocked, helper.comms.get(&comm)) {
            let number = self.peer_number(comm, source, at);
            let tag = tag.unwrap_or_else(|| self.random.i64(0..TAGS));
            self.send_to(source, 0, (comm, handle), (number, Some(at), tag));
        }
    }

    pub(super) fn send_now(&mut self, at: usize, thread: u16) {
        let comm = self.any_comm(at);
        let destination = self.destination(at, comm.0);
        self.send_to(at, thread, comm, destination);
    }

    pub(super) fn send_to(
        &mut self,
        at: usize,
        thread: u16,
        (comm, handle): (usize, u64),
        (number, to, tag): (i64, Option<usize>, i64),
    ) {
        let bytes = self.random.usize(..=ROOM_BYTES);
        let buffer = self.buffer(at, bytes);
        let (name, mode) = match self.random.u8(..30) {
            0..15 => ("MPI_Send", Mode::Eager),
            15 => ("MPI_Ssend", Mode::Matched),
            16..24 => ("MPI_Isend", Mode::Eager),
            24..29 => ("MPI_Isend", Mode::Arrived),
            _ => ("MPI_Issend", Mode::Matched),
        };
        let rank = &mut self.nodes[at].rank;
        rank.open(name, thread);
        if to.is_some() {
            rank.sends(buffer, false);
        }
        rank.arguments(buffer, &[(Role::Peer, number), (Role::Tag, tag)], Some(handle));
        let going = self.send(at, to, comm, tag, mode, buffer);
        let node = &mut self.nodes[at];
        match (name, going) {
            ("MPI_Ssend", Going::Send(send)) => node.blocked = Some(Blocked::Send(send)),
            ("MPI_Send" | "MPI_Ssend", _) => {
                node.rank.result();
                node.rank.close();
            }
            _ => {
                let handle = node.request_handles.make();
                let given = if to.is_none() || mode == Mode::Eager { SHARED } else { handle };
                node.rank.result();
                node.rank.request(given, None, false);
                node.rank.close();
                node.requests.push(Request {
                    handle,
                    given,
                    persistent: false,
                    receives: false,
                    buffer,
                    comm,
                    peer: to,
                    nobody: to.is_none(),
                    tag: Some(tag),
                    going: Some(going),
                });
            }
        }
    }

    /// Mostly what has arrived, so that not all wait for ever.
    pub(super) fn receive_now(&mut self, at: usize, thread: u16) {
        let (comm, handle) = self.any_comm(at);
        let (numbers, peer, tag, nobody) = self.pattern(at, comm);
        let there = self.network.probe(at, comm, peer, tag).is_some();
        if !there && !nobody && self.random.u8(..) < 240 {
            return;
        }
        let buffer = self.buffer(at, ROOM_BYTES);
        let rank = &mut self.nodes[at].rank;
        rank.open("MPI_Recv", thread);
        rank.arguments(buffer, &[(Role::Peer, numbers.0), (Role::Tag, numbers.1)], Some(handle));
        let going = if nobody { Going::Nobody } else { Going::Post(self.network.post(at, comm, peer, tag)) };
        self.nodes[at].blocked = Some(Blocked::Receive(going, 0, buffer));
        self.go_on(at);
    }

    pub(super) fn send_and_receive(&mut self, at: usize, thread: u16) {
        let (comm, handle) = self.any_comm(at);
        let (to_number, to, sent_tag) = self.destination(at, comm);
        let (numbers, peer, tag, nobody) = self.pattern(at, comm);
        if self.network.probe(at, comm, peer, tag).is_none() && !nobody && self.random.u8(..) < 220 {
            return;
        }
        let from = self.buffer(at, ROOM_BYTES);
        let replace = self.random.bool();
        let into = if replace { from } else { self.buffer(at, ROOM_BYTES) };
        let rank = &mut self.nodes[at].rank;
        rank.open(if replace { "MPI_Sendrecv_replace" } else { "MPI_Sendrecv" }, thread);
        if to.is_some() {
            rank.sends(from, replace);
        }
        rank.arguments(from, &[(Role::Peer, to_number), (Role::Tag, sent_tag)], None);
        rank.arguments(into, &[(Role::Peer, numbers.0), (Role::Tag, numbers.1)], Some(handle));
        self.send(at, to, comm, sent_tag, Mode::Eager, from);
        let going = if nobody { Going::Nobody } else { Going::Post(self.network.post(at, comm, peer, tag)) };
        self.nodes[at].blocked = Some(Blocked::Receive(going, 1, into));
        self.go_on(at);
    }

    pub(super) fn receive_later(&mut self, at: usize, thread: u16) {
        let (comm, handle) = self.any_comm(at);
        let (numbers, peer, tag, nobody) = self.pattern(at, comm);
        let buffer = self.buffer(at, ROOM_BYTES);
        let made = self.nodes[at].request_handles.make();
        let given = if nobody { SHARED } else { made };
        let mut request = Request {
            handle: made,
            given,
            persistent: false,
            receives: true,
            buffer,
            comm,
            peer,
            nobody,
            tag,
            going: None,
        };
        let rank = &mut self.nodes[at].rank;
        rank.open("MPI_Irecv", thread);
        rank.arguments(buffer, &[(Role::Peer, numbers.0), (Role::Tag, numbers.1)], Some(handle));
        rank.result();
        rank.request(given, (!nobody).then_some(buffer), false);
        rank.close();
        request.going = Some(self.post(&request, at));
        self.nodes[at].requests.push(request);
    }

    pub(super) fn persistent(&mut self, at: usize, thread: u16) {
        let (comm, handle) = self.any_comm(at);
        let made = self.nodes[at].request_handles.make();
        let receives = self.random.bool();
        let bytes = if receives { ROOM_BYTES } else { self.random.usize(..=ROOM_BYTES) };
        let buffer = self.buffer(at, bytes);
        let (numbers, peer, tag, nobody) = if receives {
            self.pattern(at, comm)
        } else {
            let (number, to, tag) = self.destination(at, comm);
            ((number, tag), to, Some(tag), to.is_none())
        };
        let rank = &mut self.nodes[at].rank;
        rank.open(if receives { "MPI_Recv_init" } else { "MPI_Send_init" }, thread);
        if !receives && !nobody {
            rank.source_of_start(buffer);
        }
        rank.arguments(buffer, &[(Role::Peer, numbers.0), (Role::Tag, numbers.1)], Some(handle));
        rank.result();
        rank.request(made, (receives && !nobody).then_some(buffer), true);
        rank.close();
        let persistent = true;
        self.nodes[at].requests.push(Request {
            handle: made,
            given: made,
            persistent,
            receives,
            buffer,
            comm,
            peer,
            nobody,
            tag,
            going: None,
        });
    }

    pub(super) fn start(&mut self, at: usize, thread: u16) {
        let node = &mut self.nodes[at];
        let idle: Vec<usize> =
            (0..node.requests.len()).filter(|at| node.requests[*at].going.is_none()).collect();
        if idle.is_empty() {
            return;
        }
        let together = idle.len() > 1 && self.random.bool();
        let started = if together { &idle[..] } else { &idle[..1] };
        node.rank.open(if together { "MPI_Startall" } else { "MPI_Start" }, thread);
        if together {
            node.rank.numbers(&[(Role::Count, i64::try_from(started.len()).expect("few"))]);
        }
        for place in started {
            let request = self.nodes[at].requests[*place];
            if !request.receives {
                let bytes: Vec<u8> = (0..request.buffer.count).map(|_| self.random.u8(..)).collect();
                write(request.buffer, &bytes);
            }
            self.nodes[at].rank.start(request.handle);
            let going = if request.receives {
                self.reach("persistent receive");
                self.post(&request, at)
            } else {
                let mode = if self.random.bool() { Mode::Eager } else { Mode::Arrived };
                self.reach("persistent send");
                self.send(at, request.peer, request.comm, request.tag.unwrap_or(0), mode, request.buffer)
            };
            self.nodes[at].requests[*place].going = Some(going);
        }
        self.nodes[at].rank.result();
        self.nodes[at].rank.close();
    }
}
