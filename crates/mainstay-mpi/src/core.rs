//! The core of the shim in one process: objects, types, requests, and the log that is written or replayed.

mod requests;

use crate::call::{self, Call};
use crate::definition::Comm;
use crate::envelopes::{Envelopes, Post};
use crate::field::{Field, ObjectKind, Role};
use crate::objects::{FIRST_MADE, HandleStyle, Objects, Slots, UNKNOWN};
use crate::payload::Payload;
use crate::recording::Recording;
use crate::replaying::{Definitions, Halt, Replaying};
use crate::requests::{Region, Requests};
use crate::typemap::Typemap;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// What a core does with calls.
#[derive(Debug)]
pub enum Side {
    /// Writes them.
    Recording(Recording),
    /// Serves them.
    Replaying(Replaying, Slots),
}

/// What both sides know of MPI's objects.
#[derive(Debug, Default)]
pub struct Known {
    /// Handles and their numbers.
    pub objects: Objects,
    types: FxHashMap<u64, Arc<Typemap>>,
    comms: FxHashMap<u64, Comm>,
}

impl Definitions for Known {
    fn define_type(&mut self, id: u64, map: Typemap) {
        self.types.insert(id, Arc::new(map));
    }

    fn define_comm(&mut self, comm: Comm) {
        self.comms.insert(comm.id, comm);
    }

    fn define_fortran(&mut self, kind: ObjectKind, id: u64, fortran: i32) {
        if let Some(handle) = self.objects.handle(kind, id) {
            self.objects.set_fortran(kind, fortran, handle);
        }
    }
}

impl Known {
    fn map(&self, datatype: u64) -> Option<&Arc<Typemap>> {
        self.types.get(&self.objects.number(ObjectKind::Datatype, datatype)?)
    }

    fn region(&self, buffer: Buffer) -> Option<Region> {
        let map = Arc::clone(self.map(buffer.datatype)?);
        Some(Region { address: buffer.address, count: buffer.count, map })
    }

    /// What is known of a communicator.
    #[must_use]
    pub fn comm(&self, handle: u64) -> Option<&Comm> {
        self.comms.get(&self.objects.number(ObjectKind::Comm, handle)?)
    }
}

/// The core. Methods come in the order in which a call uses them; while recording none of them fails.
#[derive(Debug)]
pub struct Core {
    /// What is known.
    pub known: Known,
    /// What is done.
    pub side: Side,
    requests: Requests,
    /// Numbers of messages, while recording under the policy *sender*.
    envelopes: Option<Envelopes>,
    /// The current call is left out of the log.
    left_out: bool,
    /// Regions of the request that the current call makes.
    pending: Vec<Region>,
    source: Option<Region>,
    /// The current call uses a type that is not known, so that its data cannot be recorded.
    unknown_type: bool,
    /// Number of the current call.
    number: u64,
    style: HandleStyle,
}

/// Data in the program's memory.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    /// Where.
    pub address: u64,
    /// How many elements.
    pub count: u64,
    /// The handle of their type.
    pub datatype: u64,
}

impl Core {
    /// A core over a log that is open.
    #[must_use]
    pub fn new(known: Known, side: Side, style: HandleStyle) -> Self {
        let envelopes = match &side {
            Side::Recording(recording) if recording.payload() == Payload::Sender => {
                Some(Envelopes::default())
            }
            _ => None,
        };
        Self {
            known,
            side,
            requests: Requests::default(),
            envelopes,
            left_out: false,
            pending: Vec::new(),
            source: None,
            unknown_type: false,
            number: 0,
            style,
        }
    }

    /// What handles look like.
    #[must_use]
    pub fn style(&self) -> HandleStyle {
        self.style
    }

    /// Whether what goes in is written and nothing more is made of it.
    #[inline]
    #[must_use]
    pub fn records_plainly(&self) -> bool {
        self.envelopes.is_none() && matches!(self.side, Side::Recording(_))
    }

    /// A call begins.
    pub fn open(&mut self, call: &mut Call, name: &str) -> Result<(), Halt> {
        self.pending.clear();
        self.source = None;
        self.unknown_type = false;
        if let Some(envelopes) = &mut self.envelopes {
            envelopes.open();
        }
        match &mut self.side {
            Side::Recording(recording) => {
                // A clock is no part of an order.
                self.left_out = recording.payload() == Payload::None && !name.starts_with("MPI_");
                recording.enter(call.function);
                self.number = recording.calls() + 1;
                Ok(())
            }
            Side::Replaying(replaying, _) => {
                replaying.open(call, name, &mut self.known)?;
                self.number = replaying.calls();
                Ok(())
            }
        }
    }

    /// The call is about to wait for others: says in what, for who looks at it from outside.
    pub fn wait(&mut self, call: &Call) {
        if let Side::Recording(recording) = &mut self.side {
            recording.wait(call);
        }
    }

    /// A number that goes in.
    pub fn in_number(&mut self, call: &mut Call, name: &str, role: Role, value: i64) -> Result<(), Halt> {
        if let Some(envelopes) = &mut self.envelopes {
            match role {
                Role::Peer => envelopes.peer(value),
                Role::Tag => envelopes.tag(value),
                Role::Number | Role::Count => {}
            }
        }
        self.input(call, name, &Field::Input(role, value))
    }

    /// A handle that goes in.
    pub fn in_handle(
        &mut self,
        call: &mut Call,
        name: &str,
        kind: ObjectKind,
        handle: u64,
    ) -> Result<(), Halt> {
        let objects = &mut self.known.objects;
        let id = match &self.side {
            Side::Recording(_) => objects.number_or_new(kind, handle),
            Side::Replaying(..) => objects.number(kind, handle).unwrap_or(UNKNOWN),
        };
        if let Some(envelopes) = &mut self.envelopes {
            match kind {
                ObjectKind::Comm => envelopes.comm(id),
                ObjectKind::Message => envelopes.message(handle),
                _ => {}
            }
        }
        self.input(call, name, &Field::Handle(kind, id))
    }

    /// Data that goes in: its length and checksum.
    ///
    /// # Safety
    /// The buffer must be readable.
    pub unsafe fn in_data(&mut self, call: &mut Call, name: &str, buffer: Buffer) -> Result<(), Halt> {
        let Some(map) = self.known.map(buffer.datatype) else {
            self.unknown_type = true;
            return Ok(());
        };
        // SAFETY: the caller's promise.
        unsafe { take(&mut self.side, call, name, (buffer.address, buffer.count, map)) }
    }

    /// The message of a send goes in. The call may overwrite it.
    ///
    /// # Safety
    /// The buffer must be readable, and stay so and unchanged until [`Core::close`] unless it is `overwritten`.
    pub unsafe fn in_sent(
        &mut self,
        call: &mut Call,
        name: &str,
        buffer: Buffer,
        overwritten: bool,
    ) -> Result<(), Halt> {
        if let Some(envelopes) = &mut self.envelopes
            && let Some(region) = self.known.region(buffer)
        {
            // SAFETY: the caller's promise.
            unsafe { envelopes.send(region, overwritten) };
        }
        // SAFETY: the caller's promise.
        unsafe { self.in_data(call, name, buffer) }
    }

    /// An array or text that goes in.
    pub fn in_bytes(&mut self, call: &mut Call, name: &str, bytes: &[u8]) -> Result<(), Halt> {
        self.input(call, name, &Field::Bytes(bytes.len() as u64, crc32c::crc32c(bytes)))
    }

    #[inline(always)]
    fn input(&mut self, call: &mut Call, name: &str, field: &Field<'_>) -> Result<(), Halt> {
        self.side.input(call, name, field)
    }

    /// The call failed, but what it was to send was sent.
    pub fn has_sent(&mut self) {
        if let Some(envelopes) = &mut self.envelopes {
            envelopes.has_sent();
        }
    }

    /// The receive failed; a message may have been lost to it: its post stays open.
    pub fn may_have_received(&mut self, call: &mut Call) {
        if let Some(envelopes) = &mut self.envelopes
            && let (_, Some(posted)) = envelopes.posted()
        {
            call.put(&posted);
        }
    }

    /// What the call returns.
    pub fn result(&mut self, call: &mut Call, name: &str, value: i64) -> Result<i64, Halt> {
        match &mut self.side {
            Side::Recording(_) => {
                call.put(&Field::Result(value));
                if let Some(envelopes) = &mut self.envelopes {
                    // SAFETY: what a call sends is promised until it is over.
                    unsafe { envelopes.put_sent(call, value, &mut self.requests) };
                }
                Ok(value)
            }
            Side::Replaying(replaying, _) => replaying.output(call, name, "a result", |field| match field {
                Field::Result(value) => Some(value),
                _ => None,
            }),
        }
    }

    /// An output parameter; `None` for one that the caller did not want.
    pub fn out(&mut self, call: &mut Call, name: &str, memory: Option<&mut [u8]>) -> Result<(), Halt> {
        match &mut self.side {
            Side::Recording(_) => {
                call.put(&Field::Output(memory.as_deref().unwrap_or_default()));
                Ok(())
            }
            Side::Replaying(replaying, _) => replaying.output(call, name, "an output", |field| {
                match (field, memory) {
                    (Field::Output([]), None) => Some(()),
                    // A text may be shorter than the room for it.
                    (Field::Output(bytes), Some(memory)) if bytes.len() <= memory.len() => {
                        memory[..bytes.len()].copy_from_slice(bytes);
                        Some(())
                    }
                    _ => None,
                }
            }),
        }
    }

    /// An object that comes out: its handle here.
    pub fn out_handle(
        &mut self,
        call: &mut Call,
        name: &str,
        kind: ObjectKind,
        handle: u64,
    ) -> Result<u64, Halt> {
        let objects = &mut self.known.objects;
        match &mut self.side {
            Side::Recording(_) => {
                let id = objects.number_or_new(kind, handle);
                call.put(&Field::Object(kind, id));
                if let Some(envelopes) = &mut self.envelopes
                    && kind == ObjectKind::Message
                    && id >= FIRST_MADE
                {
                    call.put(&envelopes.probed(handle));
                }
                Ok(handle)
            }
            Side::Replaying(replaying, slots) => {
                let id = replaying.output(call, name, "an object", |field| match field {
                    Field::Object(of, id) if of == kind => Some(id),
                    _ => None,
                })?;
                Ok(objects.handle(kind, id).unwrap_or_else(|| {
                    let (handle, fortran) = slots.make();
                    objects.serve(kind, id, handle);
                    objects.set_fortran(kind, fortran, handle);
                    handle
                }))
            }
        }
    }

    /// Data that came out, at most `limit` bytes.
    ///
    /// # Safety
    /// While recording the buffer must be readable up to `limit`, and stay unchanged until [`Core::close`]; while replaying it
    /// must be writable.
    pub unsafe fn out_data(
        &mut self,
        call: &mut Call,
        name: &str,
        buffer: Buffer,
        limit: u64,
    ) -> Result<(), Halt> {
        let Some(map) = self.known.map(buffer.datatype) else {
            self.unknown_type = true;
            return Ok(());
        };
        // SAFETY: the caller's promise.
        unsafe { fill(&mut self.side, call, name, (buffer.address, buffer.count, map), limit) }
    }

    /// The message of a receive that blocks came out, at most `limit` bytes. Its status stands before it.
    ///
    /// # Safety
    /// As for [`Core::out_data`].
    pub unsafe fn out_message(
        &mut self,
        call: &mut Call,
        name: &str,
        buffer: Buffer,
        limit: u64,
    ) -> Result<(), Halt> {
        if let Some(envelopes) = &mut self.envelopes
            && let Some(region) = self.known.region(buffer)
        {
            let post = envelopes.blocking();
            if envelopes.came() {
                // SAFETY: the caller's promise.
                unsafe { promise(call, post, &region, limit) };
                return Ok(());
            }
            call.put(&Field::Withdrawn(post.number));
        }
        // SAFETY: the caller's promise.
        unsafe { self.out_data(call, name, buffer, limit) }
    }

    /// A status that comes out, with source, tag and bytes while recording; the bytes of its message.
    pub fn status(
        &mut self,
        call: &mut Call,
        name: &str,
        raw: &mut [u8],
        says: (i64, i64, u64),
    ) -> Result<u64, Halt> {
        match &mut self.side {
            Side::Recording(recording) => {
                let (source, tag, bytes) = says;
                if let Some(envelopes) = &mut self.envelopes {
                    envelopes.status(source);
                }
                let raw = if recording.payload() == Payload::None { &[] } else { &*raw };
                call.put(&Field::Status(source, tag, bytes, raw));
                Ok(bytes)
            }
            Side::Replaying(replaying, _) => replaying.output(call, name, "a status", |field| match field {
                Field::Status(_, _, bytes, logged) if logged.len() == raw.len() => {
                    raw.copy_from_slice(logged);
                    Some(bytes)
                }
                _ => None,
            }),
        }
    }

    /// The call is over.
    ///
    /// # Safety
    /// Data that was handed to [`Core::out_data`] and [`Core::done`] must still be there.
    pub unsafe fn close(&mut self, call: &mut Call) {
        match &mut self.side {
            Side::Recording(_) if self.left_out => {}
            Side::Recording(recording) if self.unknown_type => {
                recording.write_unhandled(call.function, call.thread);
            }
            // SAFETY: the caller's promise.
            Side::Recording(recording) => unsafe { recording.write(call) },
            Side::Replaying(replaying, _) => replaying.close(&mut self.known),
        }
    }

    /// The extent of a type in bytes, 0 if it is not known.
    #[must_use]
    pub fn extent(&self, datatype: u64) -> i64 {
        self.known.map(datatype).map_or(0, |map| map.extent)
    }

    /// Adds `blocklength` elements of a type, from `offset` on, to the runs of one that is being made. Whether the type is known.
    #[must_use]
    pub fn add_piece(&self, runs: &mut Typemap, datatype: u64, blocklength: u64, offset: i64) -> bool {
        let Some(map) = self.known.map(datatype) else {
            return false;
        };
        for (at, length) in map.runs(blocklength, u64::MAX) {
            runs.push(offset.wrapping_add(at), length as u64);
        }
        true
    }

    /// A new type. At replay the runs are those of the program that runs now (a type may hold addresses), the extent is what
    /// MPI said then.
    pub fn define_type(&mut self, handle: u64, map: Typemap) {
        match &mut self.side {
            Side::Recording(recording) => {
                let id = self.known.objects.number_or_new(ObjectKind::Datatype, handle);
                recording.write_type(id, &map);
                self.known.define_type(id, map);
            }
            Side::Replaying(..) => {
                if let Some(id) = self.known.objects.number(ObjectKind::Datatype, handle) {
                    let extent = self.extent(handle);
                    self.known.define_type(id, Typemap { extent, ..map });
                }
            }
        }
    }

    /// A communicator.
    pub fn define_comm(&mut self, handle: u64, comm: Comm) {
        if let Side::Recording(recording) = &mut self.side {
            let id = self.known.objects.number_or_new(ObjectKind::Comm, handle);
            let comm = Comm { id, ..comm };
            recording.write_comm(&comm);
            if let Some(envelopes) = &mut self.envelopes {
                envelopes.define_comm(id);
            }
            self.known.define_comm(comm);
        }
    }
}

/// Memory of the program: address, how many elements, of which type.
type Memory<'a> = (u64, u64, &'a Typemap);

impl Side {
    #[inline(always)]
    fn input(&mut self, call: &mut Call, name: &str, field: &Field<'_>) -> Result<(), Halt> {
        match self {
            Self::Recording(_) => {
                call.put(field);
                Ok(())
            }
            Self::Replaying(replaying, _) => replaying.input(call, name, field),
        }
    }
}

/// Data that goes in: its length and checksum.
///
/// # Safety
/// The memory must be readable.
unsafe fn take(side: &mut Side, call: &mut Call, name: &str, memory: Memory<'_>) -> Result<(), Halt> {
    let (address, count, map) = memory;
    if let Side::Recording(recording) = side
        && recording.payload() == Payload::None
    {
        call.put(&Field::Length(map.bytes().saturating_mul(count)));
        return Ok(());
    }
    // SAFETY: the caller's promise.
    let (bytes, crc) = unsafe { call::digest(address, count, map, u64::MAX) };
    side.input(call, name, &Field::Data(bytes, crc))
}

/// Puts the data of the program's memory into the log, or the log's into the memory.
///
/// # Safety
/// As for [`Core::out_data`].
unsafe fn fill(
    side: &mut Side,
    call: &mut Call,
    name: &str,
    memory: Memory<'_>,
    limit: u64,
) -> Result<(), Halt> {
    let (address, count, map) = memory;
    match side {
        Side::Recording(recording) if recording.payload() == Payload::None => {
            call.put(&Field::Omitted(map.bytes().saturating_mul(count).min(limit)));
            Ok(())
        }
        Side::Recording(_) => {
            // SAFETY: the caller's promise.
            unsafe { call.put_received(address, count, map, limit) };
            Ok(())
        }
        Side::Replaying(replaying, _) => {
            let room = map.bytes().saturating_mul(count);
            replaying.output(call, name, "data", |field| match field {
                Field::Received(data) if data.len() as u64 <= room => {
                    // SAFETY: the caller's promise.
                    unsafe { call::scatter(address, count, map, data) };
                    Some(())
                }
                _ => None,
            })
        }
    }
}

/// Says which message came, whose bytes its sender's log has.
///
/// # Safety
/// The region must be readable up to `limit` bytes.
unsafe fn promise(call: &mut Call, post: Post, region: &Region, limit: u64) {
    // SAFETY: the caller's promise.
    let (bytes, crc) = unsafe { call::digest(region.address, region.count, &region.map, limit) };
    call.put(&Field::Promised(post.number, post.comm, bytes, crc));
}
