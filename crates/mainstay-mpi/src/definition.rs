//! Records that define what later calls mean: communicators, Fortran's numbers, names, and how the program was started.

use crate::field::ObjectKind;
use crate::varint::{Bytes, put_bytes, put_signed, put_unsigned};

/// Most entries of one definition.
const ENTRIES_MAX: usize = 1 << 24;

/// Who is in a communicator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comm {
    /// Its number.
    pub id: u64,
    /// Our rank in it.
    pub rank: i64,
    /// Ranks in our group.
    pub size: u64,
    /// Ranks in the other group; 0 unless it is an inter-communicator.
    pub remote_size: u64,
    /// Ranks in the world of those that a peer's number means, in its order; empty where they could not be found out.
    pub peers: Vec<i64>,
    /// The same of our group; only of an inter-communicator.
    pub locals: Vec<i64>,
}

impl Comm {
    /// Writes the body of its record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_unsigned(out, self.id);
        put_signed(out, self.rank);
        put_unsigned(out, self.size);
        put_unsigned(out, self.remote_size);
        let locals = (self.remote_size > 0).then_some(&self.locals);
        for ranks in [&self.peers].into_iter().chain(locals) {
            put_unsigned(out, ranks.len() as u64);
            ranks.iter().for_each(|rank| put_signed(out, *rank));
        }
    }

    /// Reads the body; `None` if it is none.
    #[must_use]
    pub fn decode(body: &[u8]) -> Option<Self> {
        let mut bytes = Bytes::new(body);
        let (id, rank) = (bytes.unsigned()?, bytes.signed()?);
        let (size, remote_size) = (bytes.unsigned()?, bytes.unsigned()?);
        let peers = ranks(&mut bytes)?;
        let locals = if remote_size > 0 { ranks(&mut bytes)? } else { Vec::new() };
        Some(Self { id, rank, size, remote_size, peers, locals })
    }
}

/// Writes Fortran's numbers of predefined objects: kind, number in the log, Fortran's number.
pub fn encode_fortran(entries: &[(ObjectKind, u64, i32)], out: &mut Vec<u8>) {
    put_unsigned(out, entries.len() as u64);
    for (kind, id, fortran) in entries {
        out.push(*kind as u8);
        put_unsigned(out, *id);
        put_signed(out, i64::from(*fortran));
    }
}

/// Reads them; `None` if the body is none.
#[must_use]
pub fn decode_fortran(body: &[u8]) -> Option<Vec<(ObjectKind, u64, i32)>> {
    let mut bytes = Bytes::new(body);
    (0..count(&mut bytes)?)
        .map(|_| {
            let kind = ObjectKind::from_byte(bytes.byte()?)?;
            Some((kind, bytes.unsigned()?, i32::try_from(bytes.signed()?).ok()?))
        })
        .collect()
}

/// Writes texts one after the other: names by number, or keys and values by turns.
pub fn encode_texts<'a>(texts: impl ExactSizeIterator<Item = &'a str>, out: &mut Vec<u8>) {
    put_unsigned(out, texts.len() as u64);
    for text in texts {
        put_bytes(out, text.as_bytes());
    }
}

/// Reads them; `None` if the body is none.
#[must_use]
pub fn decode_texts(body: &[u8]) -> Option<Vec<String>> {
    let mut bytes = Bytes::new(body);
    (0..count(&mut bytes)?).map(|_| bytes.text().map(str::to_owned)).collect()
}

fn ranks(bytes: &mut Bytes<'_>) -> Option<Vec<i64>> {
    (0..count(bytes)?).map(|_| bytes.signed()).collect()
}

fn count(bytes: &mut Bytes<'_>) -> Option<usize> {
    let count = usize::try_from(bytes.unsigned()?).ok()?;
    // An entry takes a byte at least, so that a damaged count cannot ask for memory.
    (count <= ENTRIES_MAX && count <= bytes.rest().len()).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn definitions_are_read_back() {
        let within = Comm {
            id: 70_000,
            rank: 2,
            size: 4,
            remote_size: 0,
            peers: vec![3, 1, 0, 2],
            locals: Vec::new(),
        };
        let between = Comm { id: 3, rank: 0, size: 2, remote_size: 2, peers: vec![4, 5], locals: vec![3, 1] };
        let mut body = Vec::new();
        for comm in [within, between] {
            body.clear();
            comm.encode(&mut body);
            assert_eq!(Comm::decode(&body), Some(comm));
            assert_eq!(Comm::decode(&body[..body.len() - 1]), None);
        }

        let numbers = vec![(ObjectKind::Comm, 0, 0), (ObjectKind::Datatype, 12, -5)];
        body.clear();
        encode_fortran(&numbers, &mut body);
        assert_eq!(decode_fortran(&body), Some(numbers));

        body.clear();
        encode_texts(["MPI_Send", "", "MPI_Recv"].into_iter(), &mut body);
        assert_eq!(decode_texts(&body), Some(vec!["MPI_Send".into(), String::new(), "MPI_Recv".into()]));
    }

    proptest! {
        #[test]
        fn any_bytes_are_definitions_or_refused(body: Vec<u8>) {
            let _ = (Comm::decode(&body), decode_fortran(&body), decode_texts(&body));
        }
    }
}
