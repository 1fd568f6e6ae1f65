//! One rank as the shim drives it: every call goes into two cores, one that records under the policy *receiver* and one under
//! *sender*. The order of steps within a call is that of the generated shim.

use mainstay_mpi::call::Call;
use mainstay_mpi::compression::Compression;
use mainstay_mpi::core::{Buffer, Core, Known, Side};
use mainstay_mpi::definition::Comm;
use mainstay_mpi::ending::Ending;
use mainstay_mpi::envelopes::CANCELLED;
use mainstay_mpi::field::{ObjectKind, Role};
use mainstay_mpi::format::{FileHeader, Kind};
use mainstay_mpi::objects::HandleStyle;
use mainstay_mpi::payload::Payload;
use mainstay_mpi::recording::Recording;
use mainstay_mpi::replaying::Halt;
use mainstay_mpi::requests::RequestKind;
use mainstay_mpi::typemap::Typemap;
use std::path::Path;

pub(crate) const POLICIES: [(Payload, Compression); 2] =
    [(Payload::Receiver, Compression::None), (Payload::Sender, Compression::Zstandard)];
pub(crate) const COMM_NULL: u64 = 9;
pub(crate) const WORLD: u64 = 10;
pub(crate) const MESSAGE_NULL: u64 = 11;
pub(crate) const BYTE: u64 = 100;
/// Every other byte.
pub(crate) const SPARSE: u64 = 101;
pub(crate) const NOBODY: i64 = -2;
/// The handle of requests that are done when they are made, as Open MPI has it.
pub(crate) const SHARED: u64 = 1999;
pub(crate) const ANY: i64 = -1;

/// Names of the calls, by number.
const NAMES: [&str; 26] = [
    "MPI_Send",
    "MPI_Ssend",
    "MPI_Isend",
    "MPI_Issend",
    "MPI_Recv",
    "MPI_Irecv",
    "MPI_Sendrecv",
    "MPI_Sendrecv_replace",
    "MPI_Send_init",
    "MPI_Recv_init",
    "MPI_Start",
    "MPI_Startall",
    "MPI_Wait",
    "MPI_Test",
    "MPI_Waitany",
    "MPI_Waitall",
    "MPI_Cancel",
    "MPI_Iprobe",
    "MPI_Mprobe",
    "MPI_Improbe",
    "MPI_Mrecv",
    "MPI_Imrecv",
    "MPI_Comm_dup",
    "MPI_Comm_split",
    "MPI_Intercomm_create",
    "MPI_Comm_free",
];

/// What a call says when it is over, or when it makes a request.
pub(crate) struct Status {
    pub(crate) source: i64,
    pub(crate) tag: i64,
    pub(crate) bytes: u64,
}

impl Status {
    pub(crate) const CANCELLED: Self = Self { source: CANCELLED, tag: 7, bytes: 0 };
}

pub(crate) struct Rank {
    cores: Vec<(Core, Call)>,
    /// The call that is going on.
    name: &'static str,
}

impl Rank {
    pub(crate) fn new(
        folder: &Path,
        rank: usize,
        size: usize,
        policies: &[(Payload, Compression)],
        page_bytes: u32,
    ) -> Self {
        let cores = policies.iter().map(|&(payload, compression)| {
            let header =
                FileHeader { run: [9; 16], page_bytes, pages: 2, payload, compression, kept_pages: 0 };
            let directory = folder.join(payload.to_string());
            let name = mainstay_mpi::settings::rank_name(i64::try_from(rank).expect("few ranks"));
            let mut recording = Recording::create(&directory, &name, header, false).expect("a log");
            recording.write_texts(Kind::Names, NAMES.iter().copied());
            let mut known = Known::default();
            known.objects.predefine(ObjectKind::Comm, 0, COMM_NULL);
            known.objects.predefine(ObjectKind::Comm, 1, WORLD);
            known.objects.predefine(ObjectKind::Message, 0, MESSAGE_NULL);
            known.objects.predefine(ObjectKind::Datatype, 1, BYTE);
            let core = Core::new(known, Side::Recording(recording), HandleStyle::Integer);
            (core, Call::default())
        });
        let mut rank_of = Self { cores: cores.collect(), name: "" };
        let peers = (0..i64::try_from(size).expect("few ranks")).collect();
        rank_of.define_comm(WORLD, rank, peers, None);
        for (core, _) in &mut rank_of.cores {
            core.define_type(BYTE, Typemap::contiguous(1));
            core.define_type(SPARSE, Typemap { extent: 2, runs: vec![(0, 1)] });
        }
        rank_of
    }

    pub(crate) fn define_comm(
        &mut self,
        handle: u64,
        rank: usize,
        peers: Vec<i64>,
        locals: Option<Vec<i64>>,
    ) {
        let rank = i64::try_from(rank).expect("few ranks");
        let remote_size = locals.as_ref().map_or(0, |_| peers.len() as u64);
        let size = locals.as_ref().map_or(peers.len(), Vec::len) as u64;
        let locals = locals.unwrap_or_default();
        let comm = Comm { id: 0, rank, size, remote_size, peers, locals };
        self.cores.iter_mut().for_each(|(core, _)| core.define_comm(handle, comm.clone()));
    }

    fn each(&mut self, step: impl Fn(&mut Core, &mut Call, &str) -> Result<(), Halt>) {
        for (core, call) in &mut self.cores {
            step(core, call, self.name).expect("a recording never halts");
        }
    }

    pub(crate) fn open(&mut self, name: &'static str, thread: u16) {
        self.name = name;
        let function = NAMES.iter().position(|known| *known == name).expect("a name of ours");
        let function = u16::try_from(function).expect("few names");
        self.each(|core, call, name| {
            call.begin(function, thread);
            core.open(call, name)
        });
    }

    pub(crate) fn sends(&mut self, buffer: Buffer, overwritten: bool) {
        // SAFETY: buffers of the simulation live as long as it does, and a send's stays unchanged until it is done.
        self.each(|core, call, name| unsafe { core.in_sent(call, name, buffer, overwritten) });
    }

    pub(crate) fn source_of_start(&mut self, buffer: Buffer) {
        self.each(|core, _, _| {
            core.source(buffer);
            Ok(())
        });
    }

    /// Count, type, and by turns peers and tags, then the communicator.
    pub(crate) fn arguments(&mut self, buffer: Buffer, numbers: &[(Role, i64)], comm: Option<u64>) {
        self.each(|core, call, name| {
            core.in_number(call, name, Role::Count, i64::try_from(buffer.count).expect("short"))?;
            core.in_handle(call, name, ObjectKind::Datatype, buffer.datatype)
        });
        self.numbers(numbers);
        if let Some(comm) = comm {
            self.object_in(ObjectKind::Comm, comm);
        }
    }

    pub(crate) fn numbers(&mut self, numbers: &[(Role, i64)]) {
        for (role, value) in numbers {
            self.each(|core, call, name| core.in_number(call, name, *role, *value));
        }
    }

    pub(crate) fn object_in(&mut self, kind: ObjectKind, handle: u64) {
        self.each(|core, call, name| core.in_handle(call, name, kind, handle));
    }

    pub(crate) fn object_out(&mut self, kind: ObjectKind, handle: u64) {
        self.each(|core, call, name| core.out_handle(call, name, kind, handle).map(drop));
    }

    pub(crate) fn start(&mut self, handle: u64) {
        // SAFETY: as in `sends`.
        self.each(|core, call, name| unsafe { core.start(call, name, handle) });
    }

    pub(crate) fn result(&mut self) {
        self.each(|core, call, name| core.result(call, name, 0).map(drop));
    }

    pub(crate) fn flag(&mut self, flag: bool) {
        self.each(|core, call, name| {
            call.miss |= !flag;
            core.out(call, name, Some(&mut [u8::from(flag)]))
        });
    }

    pub(crate) fn request(&mut self, handle: u64, region: Option<Buffer>, persistent: bool) {
        let what = if persistent { RequestKind::Persistent } else { RequestKind::Once };
        self.each(|core, call, name| {
            if let Some(region) = region {
                core.region(region);
            }
            // SAFETY: as in `sends`.
            unsafe { core.request(call, name, Some(handle), what) }.map(drop)
        });
    }

    pub(crate) fn status(&mut self, status: &Status) {
        self.each(|core, call, name| {
            let mut raw = [0; 8];
            core.status(call, name, &mut raw, (status.source, status.tag, status.bytes)).map(drop)
        });
    }

    pub(crate) fn receives(&mut self, buffer: Buffer, status: &Status) {
        let bytes = status.bytes;
        // SAFETY: buffers of the simulation live as long as it does.
        self.each(|core, call, name| unsafe { core.out_message(call, name, buffer, bytes) });
    }

    pub(crate) fn done(&mut self, index: usize, handle: u64, null: bool, status: &Status) {
        self.status(status);
        let bytes = status.bytes;
        // SAFETY: as in `receives`.
        self.each(|core, call, name| unsafe {
            core.done(call, name, index as u64, handle, null, bytes).map(drop)
        });
    }

    pub(crate) fn close(&mut self) {
        // SAFETY: as in `receives`.
        self.each(|core, call, _| unsafe {
            core.close(call);
            Ok(())
        });
    }

    /// The process ends by itself; otherwise it was cut off.
    pub(crate) fn finish(self) {
        for (core, _) in self.cores {
            if let Side::Recording(mut recording) = core.side {
                assert_eq!(recording.finish(Ending::default()).stopped, None);
            }
        }
    }
}
