//! What a call means among ranks: sends, receives, waits and collectives, read from its name and fields.

use crate::field::{Field, ObjectKind, Role};

/// What kind of call it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A send: blocking, making a request, or making one that is started later.
    Send(Begins),
    /// A receive.
    Receive(Begins),
    /// A receive of a message that was matched before; matches nothing itself.
    ReceiveMatched(Begins),
    /// A send and a receive in one.
    SendReceive,
    /// Looks for a message; with `true` it waits for one, without it polls.
    Probe(bool),
    /// The same, and takes the message from the others.
    MatchedProbe(bool),
    /// Waits for, or polls, one or all of its requests.
    WaitAll(bool),
    /// Waits for, or polls, any of its requests.
    WaitAny(bool),
    /// Starts requests.
    Start,
    /// Takes requests back.
    Cancel,
    /// Gives a request up.
    Free,
    /// A collective over a communicator.
    Collective(Begins),
    /// The end of MPI, a collective over all ranks.
    Finalize,
    /// Something else.
    Other,
}

/// Whether what a call begins ends with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begins {
    /// It ends with the call.
    Blocking,
    /// It ends when its request is done.
    Request,
    /// It begins when its request is started.
    Persistent,
}

/// Collectives by their blocking names. Not those over a part of a communicator.
const COLLECTIVES: [&str; 25] = [
    "Barrier",
    "Bcast",
    "Gather",
    "Gatherv",
    "Scatter",
    "Scatterv",
    "Allgather",
    "Allgatherv",
    "Alltoall",
    "Alltoallv",
    "Alltoallw",
    "Reduce",
    "Allreduce",
    "Reduce_scatter",
    "Reduce_scatter_block",
    "Scan",
    "Exscan",
    "Comm_dup",
    "Comm_dup_with_info",
    "Comm_create",
    "Comm_split",
    "Comm_split_type",
    "Cart_create",
    "Cart_sub",
    "Graph_create",
];

impl Class {
    /// The class of a function by its name, with or without `MPI_`.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let name = name.strip_prefix("MPI_").unwrap_or(name);
        // The same with large counts.
        let name = name.strip_suffix("_c").unwrap_or(name);
        match name {
            "Send" | "Bsend" | "Ssend" | "Rsend" => Self::Send(Begins::Blocking),
            "Isend" | "Ibsend" | "Issend" | "Irsend" => Self::Send(Begins::Request),
            "Send_init" | "Bsend_init" | "Ssend_init" | "Rsend_init" => Self::Send(Begins::Persistent),
            "Recv" => Self::Receive(Begins::Blocking),
            "Irecv" => Self::Receive(Begins::Request),
            "Recv_init" => Self::Receive(Begins::Persistent),
            "Mrecv" => Self::ReceiveMatched(Begins::Blocking),
            "Imrecv" => Self::ReceiveMatched(Begins::Request),
            "Sendrecv" | "Sendrecv_replace" => Self::SendReceive,
            "Probe" => Self::Probe(true),
            "Iprobe" => Self::Probe(false),
            "Mprobe" => Self::MatchedProbe(true),
            "Improbe" => Self::MatchedProbe(false),
            "Wait" | "Waitall" => Self::WaitAll(true),
            "Test" | "Testall" => Self::WaitAll(false),
            "Waitany" | "Waitsome" => Self::WaitAny(true),
            "Testany" | "Testsome" => Self::WaitAny(false),
            "Start" | "Startall" => Self::Start,
            "Cancel" => Self::Cancel,
            "Request_free" => Self::Free,
            "Finalize" => Self::Finalize,
            _ if COLLECTIVES.contains(&name) => Self::Collective(Begins::Blocking),
            _ => match name.strip_prefix('I') {
                // Ibcast is Bcast.
                Some(rest) if is_collective_in_lower_case(rest) => Self::Collective(Begins::Request),
                _ => Self::Other,
            },
        }
    }

    /// Whether a call that found nothing says that the rank polls.
    #[must_use]
    pub fn polls(self) -> bool {
        matches!(
            self,
            Self::Probe(false) | Self::MatchedProbe(false) | Self::WaitAll(false) | Self::WaitAny(false)
        )
    }
}

fn is_collective_in_lower_case(rest: &str) -> bool {
    COLLECTIVES.iter().any(|name| {
        let (first, others) = name.split_at(1);
        rest.strip_prefix(&first.to_ascii_lowercase()) == Some(others)
    })
}

/// Begins the name of a library in logs of programs that use it through the MPI standard's binary interface.
const STANDARD_ABI: &str = "MPI standard ABI";

/// What an MPI calls nobody and anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wildcards {
    /// `MPI_ANY_SOURCE`.
    pub any_source: i64,
    /// `MPI_ANY_TAG`.
    pub any_tag: i64,
}

impl Wildcards {
    /// Those of an MPI by what it calls itself.
    #[must_use]
    pub fn of(library: &str) -> Self {
        // MPICH and its family have them the other way round: -1 is MPI_PROC_NULL there.
        let (any_source, any_tag) = if library.starts_with(STANDARD_ABI) {
            (-1, -2)
        } else if library.contains("Open MPI") {
            (-1, -1)
        } else {
            (-2, -1)
        };
        Self { any_source, any_tag }
    }
}

/// Bytes of message data, and their CRC-32C where the log has it.
pub type Digest = (u64, Option<u32>);

/// Something that a call ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// Source, tag and bytes as the status says.
    pub status: Option<(i64, i64, u64)>,
    /// Place in the call's array and how many calls ago the request was made.
    pub done: Option<(u64, u64)>,
    /// What came.
    pub received: Option<Digest>,
}

/// The fields of a call, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// What is sent.
    pub data: Option<Digest>,
    /// Peers in order: destination before source.
    pub peers: Vec<i64>,
    /// Tags in the same order.
    pub tags: Vec<i64>,
    /// The communicator, by its number in the log.
    pub comm: Option<u64>,
    /// The last plain number before the communicator: a collective's root, if it has one.
    pub root: Option<i64>,
    /// What was returned; `None` of a call that has not.
    pub result: Option<i64>,
    /// Whether a request was made that is not null.
    pub made_request: bool,
    /// Requests that went in: how many calls ago they were made, and what they send, if they are started to send.
    pub requests: Vec<(u64, Option<Digest>)>,
    /// What ended.
    pub completions: Vec<Completion>,
}

impl Parsed {
    /// Sorts the fields. `with_crc`: what came is read for its checksum.
    pub fn of<'a>(fields: impl Iterator<Item = Field<'a>>, with_crc: bool) -> Self {
        let mut parsed = Self::default();
        for field in fields {
            parsed.take(field, with_crc);
        }
        parsed
    }

    fn take(&mut self, field: Field<'_>, with_crc: bool) {
        match field {
            Field::Data(bytes, crc) => self.leaves(bytes, Some(crc)),
            Field::Length(bytes) => self.leaves(bytes, None),
            Field::Input(Role::Peer, peer) => self.peers.push(peer),
            Field::Input(Role::Tag, tag) => self.tags.push(tag),
            Field::Input(Role::Number, number) if self.comm.is_none() => self.root = Some(number),
            Field::Handle(ObjectKind::Comm, id) => self.comm = Some(id),
            Field::Result(result) => self.result = Some(result),
            Field::Request(null) => self.made_request = !null,
            Field::Made(calls) => self.requests.push((calls, None)),
            Field::Status(source, tag, bytes, _) => {
                let status = Some((source, tag, bytes));
                self.completions.push(Completion { status, ..Completion::default() });
            }
            Field::Done(index, _, made) => self.completion().done = Some((index, made)),
            Field::Received(data) => {
                let completion = self.completion();
                let (bytes, crc) = completion.received.unwrap_or((0, Some(0)));
                let crc = crc.filter(|_| with_crc).map(|crc| crc32c::crc32c_append(crc, data));
                completion.received = Some((bytes + data.len() as u64, crc));
            }
            Field::Promised(_, _, bytes, crc) => self.completion().received = Some((bytes, Some(crc))),
            Field::Omitted(bytes) => self.completion().received = Some((bytes, None)),
            _ => {}
        }
    }

    fn leaves(&mut self, bytes: u64, crc: Option<u32>) {
        match self.requests.last_mut() {
            Some(request) => request.1 = Some((bytes, crc)),
            None => self.data = Some((bytes, crc)),
        }
    }

    fn completion(&mut self) -> &mut Completion {
        if self.completions.is_empty() {
            self.completions.push(Completion::default());
        }
        self.completions.last_mut().expect("there is one by now")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_classes() {
        assert_eq!(Class::of("MPI_Irsend"), Class::Send(Begins::Request));
        assert_eq!(Class::of("MPI_Iallreduce"), Class::Collective(Begins::Request));
        assert_eq!(Class::of("MPI_Ibarrier"), Class::Collective(Begins::Request));
        assert_eq!(Class::of("MPI_Isend_c"), Class::Send(Begins::Request));
        assert_eq!(Class::of("MPI_Ialltoallv_c"), Class::Collective(Begins::Request));
        assert_eq!(Class::of("MPI_Init"), Class::Other);
        assert_eq!(Class::of("MPI_Comm_rank"), Class::Other);
        assert!(Class::of("MPI_Testany").polls() && !Class::of("MPI_Waitany").polls());
    }

    #[test]
    fn wildcards_are_those_of_the_binary_interface() {
        let of = |library| (Wildcards::of(library).any_source, Wildcards::of(library).any_tag);
        assert_eq!(of("Open MPI v4.1.4"), (-1, -1));
        assert_eq!(of("MPICH Version: 5.0.2"), (-2, -1));
        assert_eq!(of("MPI standard ABI; MPICH Version: 5.0.2"), (-1, -2));
    }

    #[test]
    fn a_wait_for_two_requests_has_two_completions() {
        let fields = [
            Field::Input(Role::Count, 2),
            Field::Result(0),
            Field::Status(3, 9, 4, b""),
            Field::Done(0, true, 5),
            Field::Received(b"data"),
            Field::Status(0, 0, 0, b""),
            Field::Done(1, true, 0),
        ];
        let parsed = Parsed::of(fields.into_iter(), true);
        assert_eq!(parsed.completions.len(), 2);
        assert_eq!(parsed.completions[0].done, Some((0, 5)));
        assert_eq!(parsed.completions[0].received, Some((4, Some(crc32c::crc32c(b"data")))));
        assert_eq!(parsed.completions[1].received, None);
    }
}
