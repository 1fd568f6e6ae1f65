//! Which message is which, under the policy *sender*: the numbers that a rank's log gives to its receives, its sends and its
//! communicators. By them `matching` finds in the sender's log what the receiver's leaves out.

use crate::call::{self, Call};
use crate::field::Field;
use crate::requests::{Region, Requests};
use std::collections::HashMap;

/// The source in the status of a request that was cancelled.
pub const CANCELLED: i64 = i32::MIN as i64;

/// A receive that was posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Post {
    /// Its place among all posts of this rank. A matched probe is the post of what it found, each start of a persistent
    /// receive is one.
    pub number: u64,
    /// Place of its communicator's record among all such records of this log.
    pub comm: u64,
}

/// Who a message goes to, or comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Envelope {
    /// Place of the communicator's record.
    pub comm: u64,
    /// The other rank, as in the call.
    pub peer: i64,
    /// The tag, as in the call.
    pub tag: i64,
}

/// The numbers so far, and what the current call said.
#[derive(Debug, Default)]
pub struct Envelopes {
    posts: u64,
    sends: u64,
    comms: u64,
    /// Place of the latest record of each communicator, by its number.
    places: HashMap<u64, u64>,
    /// Messages that a matched probe found, by handle.
    messages: HashMap<u64, Post>,
    call: CallSays,
}

#[derive(Debug, Default)]
struct CallSays {
    comm: u64,
    /// The first peer and tag; of a send and receive in one the last, too.
    peers: (Option<i64>, i64),
    tags: (Option<i64>, i64),
    matched: Option<Post>,
    outgoing: Vec<Outgoing>,
    last_sent: Option<u64>,
    /// What is sent was sent, though the call failed.
    has_sent: bool,
    source: i64,
}

/// What the call sends, until it has.
#[derive(Debug)]
struct Outgoing {
    region: Region,
    /// Of what the call may overwrite.
    copy: Option<Vec<u8>>,
    /// The persistent request that is started.
    request: Option<u64>,
}

impl Envelopes {
    /// A call begins.
    pub fn open(&mut self) {
        self.call = CallSays::default();
    }

    /// A communicator goes in.
    pub fn comm(&mut self, id: u64) {
        self.call.comm = self.places.get(&id).copied().unwrap_or(u64::MAX);
    }

    /// A communicator is described.
    pub fn define_comm(&mut self, id: u64) {
        self.places.insert(id, self.comms);
        self.comms += 1;
    }

    /// A peer goes in.
    pub fn peer(&mut self, peer: i64) {
        self.call.peers = (self.call.peers.0.or(Some(peer)), peer);
    }

    /// A tag goes in.
    pub fn tag(&mut self, tag: i64) {
        self.call.tags = (self.call.tags.0.or(Some(tag)), tag);
    }

    /// A message that a probe found goes in.
    pub fn message(&mut self, handle: u64) {
        self.call.matched = self.messages.remove(&handle);
    }

    /// A message comes out of a probe: it is this rank's now.
    pub fn probed(&mut self, handle: u64) -> Field<'static> {
        let post = self.next_post();
        self.messages.insert(handle, post);
        // Its source and tag are in the status behind.
        Field::Posted(post.number, Envelope { comm: post.comm, peer: -1, tag: -1 })
    }

    /// A status says where a message came from.
    pub fn status(&mut self, source: i64) {
        self.call.source = source;
    }

    /// Whether a message came, by the last status. No rank is negative: neither nobody nor [`CANCELLED`].
    #[must_use]
    pub fn came(&self) -> bool {
        self.call.source >= 0
    }

    /// The post of a receive that blocks.
    pub fn blocking(&mut self) -> Post {
        self.call.matched.take().unwrap_or_else(|| self.next_post())
    }

    /// A request for a receive is made; its post, and what the log says of it. A message that was probed is posted already.
    pub fn posted(&mut self) -> (Post, Option<Field<'static>>) {
        if let Some(post) = self.call.matched.take() {
            return (post, None);
        }
        let envelope = self.envelope_last();
        let post = self.next_post();
        (post, Some(Field::Posted(post.number, envelope)))
    }

    /// A persistent receive is started.
    pub fn started(&mut self, envelope: Envelope) -> (Post, Field<'static>) {
        let post = Post { number: self.posts, comm: envelope.comm };
        self.posts += 1;
        (post, Field::Posted(post.number, envelope))
    }

    /// Who the call sends to.
    #[must_use]
    pub fn envelope_first(&self) -> Envelope {
        let CallSays { comm, peers, tags, .. } = self.call;
        Envelope { comm, peer: peers.0.unwrap_or(-1), tag: tags.0.unwrap_or(-1) }
    }

    fn envelope_last(&self) -> Envelope {
        Envelope { comm: self.call.comm, peer: self.call.peers.1, tag: self.call.tags.1 }
    }

    /// The call sends this, and may overwrite it.
    ///
    /// # Safety
    /// The region must be readable.
    pub unsafe fn send(&mut self, region: Region, overwritten: bool) {
        // SAFETY: the caller's promise.
        let copy = overwritten.then(|| unsafe { call::gather(region.address, region.count, &region.map) });
        self.call.outgoing.push(Outgoing { region, copy, request: None });
    }

    /// The call starts a persistent send.
    pub fn send_again(&mut self, region: Region, request: u64) {
        self.call.outgoing.push(Outgoing { region, copy: None, request: Some(request) });
    }

    /// What the call was to send is sent, though it failed.
    pub fn has_sent(&mut self) {
        self.call.has_sent = true;
    }

    /// The call has sent what it was to send, unless it failed: the data goes into the log.
    ///
    /// # Safety
    /// What was handed to [`Envelopes::send`] and [`Envelopes::send_again`] must be readable, and stay so and unchanged until the
    /// call is written.
    pub unsafe fn put_sent(&mut self, call: &mut Call, result: i64, requests: &mut Requests) {
        for Outgoing { region, copy, request } in self.call.outgoing.drain(..) {
            // MPI_SUCCESS is 0 in every MPI.
            if result != 0 && !self.call.has_sent {
                continue;
            }
            match copy {
                Some(copy) => call.put(&Field::Sent(&copy)),
                // SAFETY: the caller's promise.
                None => unsafe { call.put_sent(region.address, region.count, &region.map) },
            }
            if let Some(request) = request {
                requests.sent(request, self.sends);
            }
            self.call.last_sent = Some(self.sends);
            self.sends += 1;
        }
    }

    /// The number of the call's send, for the request that it makes.
    #[must_use]
    pub fn last_sent(&self) -> Option<u64> {
        self.call.last_sent
    }

    /// A request is done that is no receive: what the log says if it was a send that was cancelled.
    #[must_use]
    pub fn send_done(&self, sent: Option<u64>) -> Option<Field<'static>> {
        sent.filter(|_| self.call.source == CANCELLED).map(Field::Retracted)
    }

    fn next_post(&mut self) -> Post {
        self.posts += 1;
        Post { number: self.posts - 1, comm: self.call.comm }
    }
}
