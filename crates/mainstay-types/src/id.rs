//! Identities: numbers that look alike and must never be mixed up, each a type of its own.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The number after this one.
            ///
            /// # Panics
            /// When the number space is used up, which no deployment reaches.
            #[must_use]
            #[inline]
            pub fn next(self) -> Self {
                Self(self.0.checked_add(1).expect("identity numbers are never used up"))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

number! {
    /// A log sequence number: the byte address of a record in the endless logical journal. It never goes back within
    /// one life; after a repair that cut a tail it may, and then the [`Generation`] is another one.
    Lsn(u64), ""
}

impl Lsn {
    /// The first byte of the journal.
    pub const ZERO: Self = Self(0);

    /// This address moved forward by `bytes`.
    ///
    /// # Panics
    /// Past 2^64 bytes.
    #[inline]
    #[must_use]
    pub fn plus(self, bytes: u64) -> Self {
        Self(self.0.checked_add(bytes).expect("a journal never reaches 2^64 bytes"))
    }
}

number! {
    /// The life of a journal: raised, durably, at every opening. A record's checksum covers it, so that bytes of a
    /// previous life never parse as the present one.
    Generation(u64), "g"
}

number! {
    /// One process of a type, by key. A process with a single state is instance 0.
    InstanceId(u64), "i"
}

number! {
    /// One life of a process, between two crashes. Equal to the journal's generation of that life.
    Incarnation(u64), "n"
}

number! {
    /// The place of a delivery in a process's history: the first is 1, replay gives the same numbers again.
    DeliveryIndex(u64), "d"
}

number! {
    /// A client, as numbered by the server. Numbers are issued in order and never reused.
    ClientId(u64), "c"
}

number! {
    /// One thread of a client: it has at most one request outstanding.
    ThreadId(u32), "t"
}

number! {
    /// The place of a request among its thread's requests; the first is 1.
    Sequence(u64), "s"
}

number! {
    /// An output to the outside world, numbered in the order in which the handler emitted it; the first is 1.
    OutputId(u64), "o"
}

number! {
    /// A node of a cluster: its place in the cluster's static list. A node is one operating-system process with one journal,
    /// and one failure domain.
    NodeId(u32), "node "
}

number! {
    /// A send sequence number: the place of a message among all from one node to one other, in the order in which the
    /// sender's deliveries emitted them; the first is 1 and there are no gaps.
    Ssn(u64), "m"
}

/// The identity of a directory that holds a journal: drawn once, when the directory is made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StoreId(pub [u8; 16]);

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The identity of a cluster: nodes of another one are refused. Drawn once, when its list of nodes is written, or made from a name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClusterId(pub [u8; 16]);

impl ClusterId {
    /// The identity that belongs to a name: its XXH3 hash. It keeps clusters apart that were mixed up, not attackers out;
    /// that is what certificates are for.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self(xxhash_rust::xxh3::xxh3_128(name.as_bytes()).to_le_bytes())
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
