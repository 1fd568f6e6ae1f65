//! Requests that are on their way: where their results will be found when they are done.

use crate::envelopes::{Envelope, Post};
use crate::typemap::Typemap;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// A piece of the program's memory that a request fills.
#[derive(Clone, Debug)]
pub struct Region {
    /// Where.
    pub address: u64,
    /// How many elements.
    pub count: u64,
    /// Of which type, as it was when the request was made.
    pub map: Arc<Typemap>,
}

impl Region {
    /// Address, number of elements and type.
    #[must_use]
    pub fn memory(&self) -> (u64, u64, &Typemap) {
        (self.address, self.count, &self.map)
    }
}

/// What a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// A message, once.
    Once,
    /// It can be started again.
    Persistent,
    /// It fills its regions to their ends, as a collective does, and not as far as a message goes.
    Whole,
    /// The same, and it has done so already.
    Over,
}

/// A request.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Number of the call that made it.
    pub made: u64,
    /// What it fills; nothing for a send.
    pub regions: Vec<Region>,
    /// What it sends each time it is started; only of a persistent send.
    pub source: Option<Region>,
    /// Whether it can be started again.
    pub persistent: bool,
    /// Whether it fills its regions to their ends, as a collective does, and not as far as a message goes.
    pub whole: bool,
    /// Whether it is on its way.
    pub active: bool,
    /// Its post, of a receive under the policy *sender*.
    pub post: Post,
    /// What it takes, or whom it goes to, of a persistent request under that policy.
    pub envelope: Envelope,
    /// The number of its send under that policy.
    pub sent: Option<u64>,
}

/// What a request that is done has filled.
#[derive(Clone, Debug, Default)]
pub struct Filled {
    /// The memory.
    pub regions: Vec<Region>,
    /// Whether to its end.
    pub whole: bool,
    /// The post of the receive.
    pub post: Post,
    /// The number of the send.
    pub sent: Option<u64>,
}

/// Requests by handle.
///
/// While recording, Open MPI and MPICH use one handle for many requests that are already done: sends, receives from nobody,
/// collectives of one rank. Of those the last is kept, and nothing has to be known about them: they have no regions, as what a
/// collective filled at once is logged where it is made ([`RequestKind::Over`]).
#[derive(Debug, Default)]
pub struct Requests(FxHashMap<u64, Request>);

impl Requests {
    /// Takes note of a request.
    pub fn post(&mut self, handle: u64, request: Request) {
        self.0.insert(handle, request);
    }

    /// A persistent request is started again.
    pub fn start(&mut self, handle: u64) -> Option<&mut Request> {
        let request = self.0.get_mut(&handle)?;
        request.active = true;
        Some(request)
    }

    /// The persistent send of a request has this number.
    pub fn sent(&mut self, handle: u64, number: u64) {
        if let Some(request) = self.0.get_mut(&handle) {
            request.sent = Some(number);
        }
    }

    /// What is known of a request.
    #[must_use]
    pub fn of(&self, handle: u64) -> Option<&Request> {
        self.0.get(&handle)
    }

    /// A request is done: what it filled. `null` says that its handle is no more.
    pub fn done(&mut self, handle: u64, null: bool) -> Filled {
        let Some(request) = self.0.get_mut(&handle) else {
            return Filled::default();
        };
        let active = std::mem::take(&mut request.active);
        let (whole, post, sent) = (request.whole, request.post, request.sent);
        if null {
            let request = self.0.remove(&handle).unwrap_or_default();
            let regions = if active { request.regions } else { Vec::new() };
            return Filled { regions, whole, post, sent };
        }
        let regions = if active { request.regions.clone() } else { Vec::new() };
        Filled { regions, whole, post, sent }
    }

    /// A request is freed by the program.
    pub fn forget(&mut self, handle: u64) {
        self.0.remove(&handle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive() -> Region {
        Region { address: 64, count: 1, map: Arc::new(Typemap::contiguous(8)) }
    }

    #[test]
    fn a_persistent_request_fills_only_while_it_is_started() {
        let mut requests = Requests::default();
        requests.post(5, Request { regions: vec![receive()], persistent: true, ..Request::default() });
        assert_eq!(requests.done(5, false).regions.len(), 0, "a wait for an inactive request");
        for _ in 0..2 {
            assert!(requests.start(5).is_some());
            assert_eq!(requests.done(5, false).regions.len(), 1);
        }
        requests.forget(5);
        assert!(requests.of(5).is_none());
    }

    #[test]
    fn a_request_of_one_use_is_gone_when_done_and_an_unknown_one_fills_nothing() {
        let mut requests = Requests::default();
        requests.post(5, Request { regions: vec![receive()], active: true, ..Request::default() });
        assert_eq!(requests.done(5, true).regions.len(), 1);
        assert_eq!(requests.done(5, true).regions.len(), 0);
    }
}
