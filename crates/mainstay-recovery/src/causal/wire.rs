//! Bytes of causal logging: determinants in runs, batches of them, and the control messages.
//!
//! Numbers are LEB128 varints, differences zigzag; `docs/message-logging.md`, section Causal, has the layout. A run is a
//! stretch of one owner's consecutive deliveries: all that stands in it once is its owner, life, first index and time.

use crate::logging::Malformed;
use mainstay_types::codec::Reader;
pub(super) use mainstay_types::codec::put_varint;
use mainstay_types::determinant::Place;
use mainstay_types::id::{DeliveryIndex, Incarnation, Lsn, NodeId, Ssn};
use mainstay_types::time::Time;
use std::sync::Arc;

/// Longest journal record of an outside input that other nodes keep a copy of, in bytes. A longer one is not carried: its
/// owner's messages wait until its journal has it.
pub const INPUT_BYTES_MAX: usize = 4096;

/// Length from which a control message of determinants is followed by another instead of growing, in bytes.
pub(super) const CONTROL_BYTES_TARGET: usize = 64 * 1024;

/// First bytes of the control messages.
pub(super) mod tag {
    pub(in crate::causal) const HELD: u8 = 0x40;
    pub(in crate::causal) const CARRY: u8 = 0x41;
    pub(in crate::causal) const AGAIN: u8 = 0x42;
    pub(in crate::causal) const RETOLD: u8 = 0x43;
    pub(in crate::causal) const COVERED: u8 = 0x44;
    pub(in crate::causal) const RECOVERED: u8 = 0x45;
}

/// Leads an entry: a new run begins, an input, or (from here on) the sending node's id is added.
mod lead {
    pub(super) const RUN: u64 = 0;
    pub(super) const INPUT: u64 = 1;
    pub(super) const MESSAGE: u64 = 2;
}

/// What a delivery delivered, as other nodes need to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A message: its sender keeps the content.
    Message { from: NodeId, ssn: Ssn },
    /// An outside input with its journal record; `None` if that is too long to be carried.
    Input { end: Lsn, record: Option<Arc<[u8]>> },
}

impl What {
    /// Whether other nodes can hold it for its owner.
    pub(super) fn carried(&self) -> bool {
        !matches!(self, Self::Input { record: None, .. })
    }
}

/// The recorded place of one delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Determinant {
    /// The node that delivered.
    pub(super) owner: NodeId,
    pub(super) place: Place,
    pub(super) what: What,
}

/// What stands before the determinants of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// The batch follows on the one that ended here, in positions of the sender's determinant log.
    pub(super) from: u64,
    /// Everything up to here has been told with it.
    pub(super) to: u64,
    /// How far the sender has taken the receiver's own batches.
    pub(super) taken: u64,
    /// The sender's own deliveries up to this one are stable.
    pub(super) stable: DeliveryIndex,
}

impl Header {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.from);
        put_varint(out, self.to - self.from);
        put_varint(out, self.taken);
        put_varint(out, self.stable.0);
    }

    pub(super) fn take(peer: NodeId, reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let from = varint(reader)?;
        let length = varint(reader)?;
        let to = from.checked_add(length).ok_or(never(peer, "position", u64::MAX))?;
        let taken = varint(reader)?;
        Ok(Self { from, to, taken, stable: delivery(peer, reader)? })
    }
}

/// Writes determinants one behind the other; what a run shares is written once.
#[derive(Debug, Default)]
pub(super) struct RunWriter {
    run: Option<Run>,
}

#[derive(Debug)]
struct Run {
    owner: NodeId,
    life: Incarnation,
    next: DeliveryIndex,
    now: u64,
    ssn: u64,
}

impl RunWriter {
    /// Appends one determinant.
    pub(super) fn put(&mut self, owner: NodeId, place: &Place, what: &What, out: &mut Vec<u8>) {
        let follows = self
            .run
            .as_ref()
            .is_some_and(|run| run.owner == owner && run.life == place.life && run.next == place.delivery);
        if !follows {
            put_varint(out, lead::RUN);
            put_varint(out, u64::from(owner.0));
            put_varint(out, place.life.0);
            put_varint(out, place.delivery.0);
            out.extend_from_slice(&place.now.0.to_le_bytes());
            self.run = Some(Run { owner, life: place.life, next: place.delivery, now: place.now.0, ssn: 0 });
        }
        let run = self.run.as_mut().expect("a run was begun above");
        match what {
            What::Message { from, ssn } => {
                put_varint(out, lead::MESSAGE + u64::from(from.0));
                put_place(place, run, out);
                put_difference(out, run.ssn, ssn.0);
                run.ssn = ssn.0;
            }
            What::Input { end, record } => {
                let record = record.as_ref().expect("an input that is not carried is never written");
                put_varint(out, lead::INPUT);
                put_place(place, run, out);
                put_varint(out, end.0);
                put_varint(out, record.len() as u64);
                out.extend_from_slice(record);
            }
        }
        run.next = run.next.next();
    }
}

fn put_place(place: &Place, run: &mut Run, out: &mut Vec<u8>) {
    put_difference(out, run.now, place.now.0);
    run.now = place.now.0;
    out.extend_from_slice(&place.seed.to_le_bytes());
}

/// Reads all determinants to the end of `reader` into `into`.
///
/// # Errors
/// [`Malformed`]; `into` is then not to be used.
pub(super) fn take_runs(
    peer: NodeId,
    reader: &mut Reader<'_>,
    cluster: u64,
    into: &mut Vec<Determinant>,
) -> Result<(), Malformed> {
    let mut run: Option<Run> = None;
    while !reader.rest().is_empty() {
        let lead = varint(reader)?;
        if lead == lead::RUN {
            let owner = node(peer, varint(reader)?, cluster)?;
            let life = Incarnation(varint(reader)?);
            let next = delivery(peer, reader)?;
            run = Some(Run { owner, life, next, now: reader.u64()?, ssn: 0 });
            continue;
        }
        let run = run.as_mut().ok_or(Malformed::Tag { tag: lead.to_le_bytes()[0] })?;
        let now = run.now.wrapping_add(difference(reader)?);
        run.now = now;
        let place = Place { delivery: run.next, life: run.life, now: Time(now), seed: reader.u64()? };
        let what = if lead == lead::INPUT {
            let end = Lsn(varint(reader)?);
            let length = varint(reader)?;
            if length > INPUT_BYTES_MAX as u64 {
                return Err(never(peer, "input length", length));
            }
            let length = usize::try_from(length).expect("an input's length was limited above");
            What::Input { end, record: Some(reader.take(length)?.into()) }
        } else {
            run.ssn = run.ssn.wrapping_add(difference(reader)?);
            // The sender may be under another policy: any node.
            let from = u32::try_from(lead - lead::MESSAGE).map_err(|_| never(peer, "node", lead))?;
            What::Message { from: NodeId(from), ssn: Ssn(run.ssn) }
        };
        into.push(Determinant { owner: run.owner, place, what });
        run.next = DeliveryIndex(run.next.0.checked_add(1).ok_or(never(peer, "delivery", u64::MAX))?);
    }
    Ok(())
}

fn node(peer: NodeId, number: u64, cluster: u64) -> Result<NodeId, Malformed> {
    match u32::try_from(number) {
        Ok(id) if id < u64::BITS && cluster & (1 << id) != 0 => Ok(NodeId(id)),
        _ => Err(never(peer, "node", number)),
    }
}

pub(super) fn never(peer: NodeId, what: &'static str, number: u64) -> Malformed {
    Malformed::NeverReached { peer, what, number }
}

pub(super) fn varint(reader: &mut Reader<'_>) -> Result<u64, Malformed> {
    Ok(reader.varint()?)
}

/// The index of a delivery. The greatest number is none: no delivery could follow on it.
pub(super) fn delivery(peer: NodeId, reader: &mut Reader<'_>) -> Result<DeliveryIndex, Malformed> {
    match varint(reader)? {
        u64::MAX => Err(never(peer, "delivery", u64::MAX)),
        index => Ok(DeliveryIndex(index)),
    }
}

/// Nothing may follow on the last field.
pub(super) fn ended(reader: &Reader<'_>) -> Result<(), Malformed> {
    match reader.rest().len() {
        0 => Ok(()),
        bytes => Err(Malformed::Trailing { bytes }),
    }
}

/// Writes by how much `value` differs from `before`, small in both directions.
fn put_difference(out: &mut Vec<u8>, before: u64, value: u64) {
    let difference = value.wrapping_sub(before).cast_signed();
    put_varint(out, ((difference << 1) ^ (difference >> 63)).cast_unsigned());
}

fn difference(reader: &mut Reader<'_>) -> Result<u64, Malformed> {
    let zigzag = varint(reader)?;
    Ok((zigzag >> 1) ^ (zigzag & 1).wrapping_neg())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: NodeId = NodeId(1);
    const CLUSTER: u64 = 0b1111;

    fn message(owner: u32, index: u64, from: u32, ssn: u64) -> Determinant {
        Determinant {
            owner: NodeId(owner),
            place: Place {
                delivery: DeliveryIndex(index),
                life: Incarnation(2),
                now: Time(1_795_000_000_000_000_000 + index * 20_000),
                seed: index.wrapping_mul(0x9E37_79B9_7F4A_7C15),
            },
            what: What::Message { from: NodeId(from), ssn: Ssn(ssn) },
        }
    }

    fn encode(all: &[Determinant]) -> Vec<u8> {
        let (mut out, mut writer) = (Vec::new(), RunWriter::default());
        for one in all {
            writer.put(one.owner, &one.place, &one.what, &mut out);
        }
        out
    }

    fn samples() -> Vec<Determinant> {
        let mut all =
            vec![message(0, 7, 1, 900), message(0, 8, 1, 901), message(2, 3, 0, 1), message(0, 9, 3, 5)];
        all[1].what = What::Input { end: Lsn(4096), record: Some(b"request".as_slice().into()) };
        all[2].place.now = Time(0);
        all
    }

    #[test]
    fn runs_read_back_and_every_cut_is_refused_or_shorter() {
        let all = samples();
        let bytes = encode(&all);
        let mut read = Vec::new();
        take_runs(PEER, &mut Reader::new(&bytes), CLUSTER, &mut read).unwrap();
        assert_eq!(read, all);
        for cut in 0..bytes.len() {
            let mut part = Vec::new();
            if take_runs(PEER, &mut Reader::new(&bytes[..cut]), CLUSTER, &mut part).is_ok() {
                assert!(part.len() < all.len() && part[..] == all[..part.len()], "cut at {cut}");
            }
        }
    }

    #[test]
    fn numbers_read_back_and_longer_ones_are_refused() {
        for value in [0, 1, 127, 128, 300, u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            put_difference(&mut out, 5, value);
            let mut reader = Reader::new(&out);
            assert_eq!(varint(&mut reader), Ok(value));
            assert_eq!(difference(&mut reader).map(|by| by.wrapping_add(5)), Ok(value));
        }
        let mut long = [0xff; 10];
        long[9] = 2;
        assert!(varint(&mut Reader::new(&long)).is_err());
        assert!(varint(&mut Reader::new(&[0xff; 11])).is_err());
    }

    #[test]
    fn an_owner_outside_the_cluster_and_an_entry_before_any_run_are_refused() {
        let bytes = encode(&[message(0, 7, 1, 900)]);
        let read = |bytes: &[u8], cluster| take_runs(PEER, &mut Reader::new(bytes), cluster, &mut Vec::new());
        assert_eq!(read(&bytes, 0b1110), Err(never(PEER, "node", 0)));
        assert_eq!(read(&bytes, 0b0001), Ok(()));
        assert!(matches!(read(&[5, 1, 1], CLUSTER), Err(Malformed::Tag { tag: 5 })));
    }

    /// 25 bytes for a message's determinant that travels alone (after a header of 4 to 12 bytes), 13 for each further one
    /// of its run: 8 of the seed, 3 of the time, the sender, and the number's difference.
    #[test]
    fn determinants_are_as_small_as_the_page_says() {
        let run: Vec<_> = (0..100).map(|at| message(0, 5000 + at, 1, 900 + at)).collect();
        let (one, all) = (encode(&run[..1]).len(), encode(&run).len());
        assert_eq!(one, 25);
        assert_eq!((all - one) / 99, 13);
    }
}
