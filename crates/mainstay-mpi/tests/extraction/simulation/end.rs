//! Calls that end what others began: waits, cancels, and probes with what they find.

use super::*;

impl Simulation {
    /// Waits for or looks at some request, or forgets about a receive.
    pub(super) fn wait(&mut self, at: usize, thread: u16) {
        let mut active: Vec<u64> = {
            let requests = self.nodes[at].requests.iter();
            requests.filter(|request| request.going.is_some()).map(|request| request.handle).collect()
        };
        if active.is_empty() {
            return;
        }
        self.random.shuffle(&mut active);
        let chosen = active[0];
        let count = i64::try_from(active.len()).expect("few");
        let ready = |simulation: &Self, handle| simulation.ending(at, handle).is_some();
        match self.random.u8(..12) {
            0..4 => {
                let done = ready(self, chosen);
                let rank = &mut self.nodes[at].rank;
                rank.open("MPI_Test", thread);
                rank.result();
                rank.flag(done);
                if done {
                    self.finish_request(at, 0, chosen);
                }
                self.nodes[at].rank.close();
            }
            4..7 if ready(self, chosen) || self.random.u8(..) < 20 => {
                self.nodes[at].rank.open("MPI_Wait", thread);
                self.nodes[at].blocked = Some(Blocked::Wait(chosen));
                self.go_on(at);
            }
            7..9 if active.iter().any(|handle| ready(self, *handle)) => {
                self.nodes[at].rank.open("MPI_Waitany", thread);
                self.nodes[at].rank.numbers(&[(Role::Count, count)]);
                self.nodes[at].blocked = Some(Blocked::Any(active));
                self.go_on(at);
            }
            9..11 if active.iter().all(|handle| ready(self, *handle)) => {
                self.nodes[at].rank.open("MPI_Waitall", thread);
                self.nodes[at].rank.numbers(&[(Role::Count, count)]);
                self.nodes[at].blocked = Some(Blocked::All(active));
                self.go_on(at);
            }
            11 if self.random.u8(..) < 60 => {
                let requests = &mut self.nodes[at].requests;
                if let Some(place) =
                    requests.iter().position(|request| request.receives && !request.persistent)
                {
                    requests.remove(place);
                    self.reach("receive without an end");
                }
            }
            _ => {}
        }
    }

    pub(super) fn cancel(&mut self, at: usize, thread: u16) {
        let requests = self.nodes[at].requests.iter();
        let going: Vec<_> = requests.filter_map(|request| Some((request.handle, request.going?))).collect();
        let Some((handle, going)) = self.random.choice(going) else {
            return;
        };
        let rank = &mut self.nodes[at].rank;
        rank.open("MPI_Cancel", thread);
        rank.result();
        rank.close();
        match going {
            Going::Send(send) if self.network.send_progress(send) == Progress::Going => {
                self.network.cancel_send(send);
                // What became of it is not in the log before its end is.
                self.nodes[at].rank.open("MPI_Wait", thread);
                self.nodes[at].blocked = Some(Blocked::Wait(handle));
                self.go_on(at);
            }
            Going::Post(post) => self.network.cancel_post(post),
            Going::Send(_) | Going::Nobody => {}
        }
    }

    pub(super) fn probe(&mut self, at: usize, thread: u16) {
        let (comm, handle) = self.any_comm(at);
        let (numbers, peer, tag, nobody) = self.pattern(at, comm);
        if nobody {
            return;
        }
        let there = self.network.probe(at, comm, peer, tag).map(|message| self.status(at, comm, message));
        let arguments = [(Role::Peer, numbers.0), (Role::Tag, numbers.1)];
        let name = *self.random.choice(&["MPI_Iprobe", "MPI_Improbe", "MPI_Mprobe"]).expect("three");
        let rank = &mut self.nodes[at].rank;
        rank.open(name, thread);
        rank.numbers(&arguments);
        rank.object_in(ObjectKind::Comm, handle);
        if name == "MPI_Mprobe" {
            self.nodes[at].blocked = Some(Blocked::Probe(comm, peer, tag));
            self.go_on(at);
            return;
        }
        rank.result();
        rank.flag(there.is_some());
        if let Some(status) = there {
            if name == "MPI_Improbe" {
                self.find(at, comm, peer, tag);
            }
            self.nodes[at].rank.status(&status);
        }
        self.nodes[at].rank.close();
    }

    /// A matched probe takes the message.
    pub(super) fn find(&mut self, at: usize, comm: usize, peer: Option<usize>, tag: Option<i64>) {
        let message = self.network.take(at, comm, peer, tag).expect("a message that was probed");
        self.reach("matched probe");
        let node = &mut self.nodes[at];
        let handle = node.message_handles.make();
        node.rank.object_out(ObjectKind::Message, handle);
        node.found.push((handle, comm, message));
    }

    pub(super) fn receive_found(&mut self, at: usize, thread: u16) {
        let count = self.nodes[at].found.len();
        if count == 0 {
            return;
        }
        let chosen = self.random.usize(..count);
        let (handle, comm, message) = self.nodes[at].found.remove(chosen);
        let buffer = self.buffer(at, ROOM_BYTES);
        let later = self.random.bool();
        let status = self.status(at, comm, &message);
        let node = &mut self.nodes[at];
        node.message_handles.free.push(handle);
        node.rank.open(if later { "MPI_Imrecv" } else { "MPI_Mrecv" }, thread);
        node.rank.arguments(buffer, &[], None);
        node.rank.object_in(ObjectKind::Message, handle);
        node.rank.result();
        node.rank.object_out(ObjectKind::Message, MESSAGE_NULL);
        if later {
            let made = node.request_handles.make();
            node.rank.request(made, Some(buffer), false);
            let going = Some(Going::Post(self.network.post_of(at, comm, message)));
            node.requests.push(Request {
                handle: made,
                given: made,
                persistent: false,
                receives: true,
                buffer,
                comm,
                peer: None,
                nobody: false,
                tag: None,
                going,
            });
        } else {
            write(buffer, &message.data);
            node.rank.status(&status);
            node.rank.receives(buffer, &status);
        }
        self.nodes[at].rank.close();
    }

    /// What the end of an active request says; `None` while there is no end.
    pub(super) fn ending(&self, at: usize, handle: u64) -> Option<Status> {
        let request = self.nodes[at].requests.iter().find(|request| request.handle == handle)?;
        let progress = match request.going? {
            Going::Send(send) => self.network.send_progress(send),
            Going::Post(post) => self.network.post_progress(post),
            Going::Nobody => Progress::Done,
        };
        match (progress, request.going?) {
            (Progress::Going, _) => None,
            (Progress::Cancelled, _) => Some(Status::CANCELLED),
            (Progress::Done, Going::Post(post)) => {
                Some(self.status(at, request.comm, self.network.got(post)))
            }
            (Progress::Done, Going::Nobody) if request.receives => {
                Some(Status { source: NOBODY, tag: ANY, bytes: 0 })
            }
            // The status of a send says nothing.
            (Progress::Done, _) => Some(Status { source: 1, tag: 77, bytes: 5 }),
        }
    }

    pub(super) fn finish_request(&mut self, at: usize, index: usize, handle: u64) {
        let status = self.ending(at, handle).expect("a request that is done");
        let node = &mut self.nodes[at];
        let place = node.requests.iter().position(|request| request.handle == handle).expect("a request");
        let request = &mut node.requests[place];
        match request.going.take() {
            Some(Going::Post(post)) if self.network.post_progress(post) == Progress::Done => {
                write(request.buffer, &self.network.got(post).data);
            }
            Some(Going::Post(_)) => *self.reached.entry("cancelled receive").or_default() += 1,
            Some(Going::Send(send)) if self.network.send_progress(send) == Progress::Cancelled => {
                *self.reached.entry("cancelled send").or_default() += 1;
            }
            _ => {}
        }
        let (persistent, given) = (request.persistent, request.given);
        node.rank.done(index, given, !persistent, &status);
        if given == SHARED {
            *self.reached.entry("shared handle").or_default() += 1;
        }
        if !persistent {
            node.requests.remove(place);
            node.request_handles.free.push(handle);
        }
    }

    /// The call that a rank is in goes on, if it can. Whether it ended.
    pub(super) fn go_on(&mut self, at: usize) -> bool {
        let Some(blocked) = self.nodes[at].blocked.take() else {
            return false;
        };
        let done = match &blocked {
            Blocked::Send(send) => self.network.send_progress(*send) != Progress::Going,
            Blocked::Receive(Going::Post(post), ..) => self.network.post_progress(*post) == Progress::Done,
            Blocked::Receive(..) => true,
            Blocked::Probe(comm, peer, tag) => self.network.probe(at, *comm, *peer, *tag).is_some(),
            Blocked::Wait(handle) => self.ending(at, *handle).is_some(),
            Blocked::Any(handles) => handles.iter().any(|handle| self.ending(at, *handle).is_some()),
            Blocked::All(handles) => handles.iter().all(|handle| self.ending(at, *handle).is_some()),
        };
        if !done {
            self.nodes[at].blocked = Some(blocked);
            return false;
        }
        self.nodes[at].rank.result();
        match blocked {
            Blocked::Send(_) => {}
            Blocked::Receive(Going::Post(post), _, buffer) => {
                let message = self.network.got(post).clone();
                write(buffer, &message.data);
                let comm = self.network.comm_of(post);
                let status = self.status(at, comm, &message);
                self.nodes[at].rank.status(&status);
                self.nodes[at].rank.receives(buffer, &status);
            }
            Blocked::Receive(..) => {
                let status = Status { source: NOBODY, tag: ANY, bytes: 0 };
                self.nodes[at].rank.status(&status);
            }
            Blocked::Probe(comm, peer, tag) => {
                let message = self.network.probe(at, comm, peer, tag).expect("a message that is there");
                let status = self.status(at, comm, message);
                self.find(at, comm, peer, tag);
                self.nodes[at].rank.status(&status);
            }
            Blocked::Wait(handle) => self.finish_request(at, 0, handle),
            Blocked::Any(handles) => {
                let index = handles.iter().position(|handle| self.ending(at, *handle).is_some());
                let index = index.expect("one is done");
                self.finish_request(at, index, handles[index]);
            }
            Blocked::All(handles) => {
                for (index, handle) in handles.into_iter().enumerate() {
                    self.finish_request(at, index, handle);
                }
            }
        }
        self.nodes[at].rank.close();
        true
    }
}
