//! Steps of calls that make, start, wait for or free requests.

use super::{Buffer, Core, Side, fill, promise, take};
use crate::call::Call;
use crate::field::{Field, ObjectKind};
use crate::replaying::{Halt, Replaying};
use crate::requests::{Filled, Request, RequestKind};

impl Core {
    /// The call will wait for a request.
    pub fn await_request(&self, call: &mut Call, handle: u64) {
        if let Side::Recording(_) = self.side {
            Field::Made(self.age(handle)).encode(&mut call.awaited);
        }
    }

    /// A request goes in whose number the log must have.
    pub fn in_request(&mut self, call: &mut Call, name: &str, handle: u64) -> Result<(), Halt> {
        let made = self.age(handle);
        match &mut self.side {
            Side::Recording(_) => {
                call.put(&Field::Made(made));
                Ok(())
            }
            Side::Replaying(replaying, _) => {
                replaying.output(call, name, "a request that goes in", |field| match field {
                    Field::Made(_) => Some(()),
                    _ => None,
                })
            }
        }
    }

    /// How many calls ago a request was made; 0 where that is not known.
    fn age(&self, handle: u64) -> u64 {
        self.requests.of(handle).map_or(0, |request| self.number - request.made)
    }

    /// A piece of memory that the request which this call makes will fill.
    pub fn region(&mut self, buffer: Buffer) {
        match self.known.region(buffer) {
            Some(region) => self.pending.push(region),
            None => self.unknown_type = true,
        }
    }

    /// What the persistent request which this call makes will send.
    pub fn source(&mut self, buffer: Buffer) {
        match self.known.region(buffer) {
            Some(region) => self.source = Some(region),
            None => self.unknown_type = true,
        }
    }

    /// A request that this call makes: its handle here, `None` for the null request.
    ///
    /// # Safety
    /// As for [`Core::out_data`], for the regions of one that is [`RequestKind::Over`].
    pub unsafe fn request(
        &mut self,
        call: &mut Call,
        name: &str,
        handle: Option<u64>,
        what: RequestKind,
    ) -> Result<Option<u64>, Halt> {
        let (mut regions, source) = (std::mem::take(&mut self.pending), self.source.take());
        let persistent = what == RequestKind::Persistent;
        let whole = matches!(what, RequestKind::Whole | RequestKind::Over);
        if whole {
            // MPI may be done with nothing at once, too.
            regions.retain(|region| region.count > 0 && region.map.bytes() > 0);
        }
        let mut request = Request {
            made: self.number,
            regions,
            source,
            persistent,
            whole,
            active: !persistent,
            ..Request::default()
        };
        let (null, over) = match &mut self.side {
            Side::Recording(_) => {
                call.put(&Field::Request(handle.is_none()));
                (handle.is_none(), what == RequestKind::Over)
            }
            Side::Replaying(replaying, _) => {
                let null = replaying.output(call, name, "a request", |field| match field {
                    Field::Request(null) => Some(null),
                    _ => None,
                })?;
                (null, whole && Replaying::data_comes(call))
            }
        };
        if over {
            for region in std::mem::take(&mut request.regions) {
                // SAFETY: the caller's promise.
                unsafe { fill(&mut self.side, call, name, region.memory(), u64::MAX)? };
            }
        }
        if let Some(envelopes) = &mut self.envelopes {
            if persistent {
                request.envelope = envelopes.envelope_first();
            } else if request.regions.is_empty() {
                request.sent = envelopes.last_sent();
            } else if !whole {
                let (post, posted) = envelopes.posted();
                request.post = post;
                if let Some(posted) = posted {
                    call.put(&posted);
                }
            }
        }
        let handle = match &mut self.side {
            Side::Recording(_) => handle,
            Side::Replaying(..) if null => None,
            Side::Replaying(_, slots) => {
                let (handle, fortran) = slots.make();
                self.known.objects.set_fortran(ObjectKind::Request, fortran, handle);
                Some(handle)
            }
        };
        if let Some(handle) = handle {
            self.requests.post(handle, request);
        }
        Ok(handle)
    }

    /// A persistent request is started: what it sends goes in.
    ///
    /// # Safety
    /// The buffer of the request must be readable.
    pub unsafe fn start(&mut self, call: &mut Call, name: &str, handle: u64) -> Result<(), Halt> {
        self.in_request(call, name, handle)?;
        let Some(request) = self.requests.start(handle) else {
            return Ok(());
        };
        let (source, envelope) = (request.source.clone(), request.envelope);
        let nobody = source.is_none() && request.regions.is_empty();
        match (&mut self.envelopes, source) {
            (_, None) if nobody => {}
            (None, None) => {}
            // SAFETY: the caller's promise.
            (None, Some(source)) => unsafe { take(&mut self.side, call, name, source.memory())? },
            (Some(envelopes), None) => {
                let (post, posted) = envelopes.started(envelope);
                request.post = post;
                call.put(&posted);
            }
            (Some(envelopes), Some(source)) => {
                call.put(&Field::To(envelope));
                envelopes.send_again(source.clone(), handle);
                // SAFETY: the caller's promise.
                unsafe { take(&mut self.side, call, name, source.memory())? };
            }
        }
        Ok(())
    }

    /// A request is freed by the program.
    pub fn forget(&mut self, handle: u64) {
        if let Side::Replaying(_, slots) = &mut self.side
            && self.requests.of(handle).is_some()
        {
            slots.give_back(handle);
        }
        self.requests.forget(handle);
    }

    /// The request at place `index` of the call's array is done, with a message of `bytes` (all of a collective's regions are
    /// filled). `null` says whether its handle is null now; so does what is returned.
    ///
    /// # Safety
    /// As for [`Core::out_data`], for the regions of the request.
    pub unsafe fn done(
        &mut self,
        call: &mut Call,
        name: &str,
        index: u64,
        handle: u64,
        null: bool,
        bytes: u64,
    ) -> Result<bool, Halt> {
        let made = self.age(handle);
        let null = match &mut self.side {
            Side::Recording(_) => {
                call.put(&Field::Done(index, null, made));
                null
            }
            Side::Replaying(replaying, slots) => {
                let null = replaying.output(call, name, "a request that is done", |field| match field {
                    Field::Done(place, null, _) if place == index => Some(null),
                    _ => None,
                })?;
                if null && self.requests.of(handle).is_some() {
                    slots.give_back(handle);
                }
                null
            }
        };
        let Filled { regions, whole, post, sent } = self.requests.done(handle, null);
        let limit = if whole { u64::MAX } else { bytes };
        if let Some(envelopes) = &mut self.envelopes
            && !whole
        {
            match &regions[..] {
                [] => envelopes.send_done(sent).into_iter().for_each(|field| call.put(&field)),
                [region] if envelopes.came() => {
                    // SAFETY: the caller's promise.
                    unsafe { promise(call, post, region, limit) };
                    return Ok(null);
                }
                _ => call.put(&Field::Withdrawn(post.number)),
            }
        }
        for region in regions {
            // SAFETY: the caller's promise.
            unsafe { fill(&mut self.side, call, name, region.memory(), limit)? };
        }
        Ok(null)
    }
}
