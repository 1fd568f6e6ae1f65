//! The bytes of optimistic logging: stamps and control messages. Every number is a varint (LEB128).

use super::lives::Lives;
use crate::logging::Malformed;
use mainstay_types::codec::Reader;
pub(super) use mainstay_types::codec::put_varint as put_number;
use mainstay_types::determinant::Point;
use mainstay_types::id::{DeliveryIndex, Incarnation, NodeId};

const LIVES: u8 = 0x41;
const STABLE: u8 = 0x42;
const HURRY: u8 = 0x43;

/// What optimistic nodes tell each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// Where the lives of nodes began, each as it said itself in the newest of them; to be taken in together.
    Lives(Vec<(NodeId, Lives)>),
    /// The teller's journal is safe up to this point.
    Stable(Point),
    /// The teller holds an output until this point of the one who is told is stable.
    Hurry(Point),
}

impl Told {
    /// The bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Lives(tables) => {
                out.push(LIVES);
                put_tables(&mut out, tables.iter().map(|(node, lives)| (*node, lives)));
            }
            Self::Stable(point) => {
                out.push(STABLE);
                put_point(&mut out, *point);
            }
            Self::Hurry(point) => {
                out.push(HURRY);
                put_point(&mut out, *point);
            }
        }
        out
    }

    /// Reads what [`Self::encode`] wrote.
    pub(super) fn decode(from: NodeId, body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let told = match reader.u8()? {
            LIVES => Self::Lives(take_tables(from, &mut reader)?),
            STABLE => Self::Stable(take_point(&mut reader)?),
            HURRY => Self::Hurry(take_point(&mut reader)?),
            tag => return Err(Malformed::Tag { tag }),
        };
        ended(&reader)?;
        Ok(told)
    }
}

pub(super) fn take_number(reader: &mut Reader<'_>) -> Result<u64, Malformed> {
    Ok(reader.varint()?)
}

/// Reads the number of a node.
pub(super) fn take_node(reader: &mut Reader<'_>) -> Result<NodeId, Malformed> {
    let at = reader.position();
    u32::try_from(take_number(reader)?).map(NodeId).map_err(|_| Malformed::Number { at })
}

/// Writes a point.
pub(super) fn put_point(out: &mut Vec<u8>, point: Point) {
    put_number(out, point.incarnation.0);
    put_number(out, point.delivery.0);
}

/// Reads what [`put_point`] wrote.
pub(super) fn take_point(reader: &mut Reader<'_>) -> Result<Point, Malformed> {
    let incarnation = Incarnation(take_number(reader)?);
    Ok(Point { incarnation, delivery: DeliveryIndex(take_number(reader)?) })
}

/// Writes a node and its lives.
pub(super) fn put_lives(out: &mut Vec<u8>, node: NodeId, lives: &Lives) {
    put_number(out, u64::from(node.0));
    put_number(out, lives.starts().len() as u64);
    for &(life, after) in lives.starts() {
        put_point(out, Point { incarnation: life, delivery: after });
    }
}

/// Reads what [`put_lives`] wrote. Lives come in their order and each keeps more than the one before: else nobody wrote them.
pub(super) fn take_lives(from: NodeId, reader: &mut Reader<'_>) -> Result<(NodeId, Lives), Malformed> {
    let node = take_node(reader)?;
    let mut lives = Lives::default();
    for count in 0..take_number(reader)? {
        let Point { incarnation, delivery } = take_point(reader)?;
        lives.began(incarnation, delivery);
        if lives.starts().len() as u64 != count + 1 {
            return Err(Malformed::NeverReached { peer: from, what: "life", number: incarnation.0 });
        }
    }
    Ok((node, lives))
}

/// Writes the lives of several nodes.
pub(super) fn put_tables<'a>(out: &mut Vec<u8>, tables: impl ExactSizeIterator<Item = (NodeId, &'a Lives)>) {
    put_number(out, tables.len() as u64);
    for (node, lives) in tables {
        put_lives(out, node, lives);
    }
}

/// Reads what [`put_tables`] wrote.
pub(super) fn take_tables(from: NodeId, reader: &mut Reader<'_>) -> Result<Vec<(NodeId, Lives)>, Malformed> {
    (0..take_number(reader)?).map(|_| take_lives(from, reader)).collect()
}

/// Nothing may follow.
pub(super) fn ended(reader: &Reader<'_>) -> Result<(), Malformed> {
    match reader.rest().len() {
        0 => Ok(()),
        bytes => Err(Malformed::Trailing { bytes }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_back_and_longer_ones_are_refused() {
        for number in [0, 1, 127, 128, 300, 1 << 32, u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            put_number(&mut out, number);
            let mut reader = Reader::new(&out);
            assert_eq!(take_number(&mut reader), Ok(number));
            assert_eq!(ended(&reader), Ok(()));
        }
        let refused = Err(Malformed::Number { at: 0 });
        assert_eq!(take_number(&mut Reader::new(&[0xff; 10])), refused);
        assert_eq!(take_number(&mut Reader::new(&[0x80; 11])), refused);
        let mut two_past_64_bits = [0x80; 10];
        two_past_64_bits[9] = 2;
        assert_eq!(take_number(&mut Reader::new(&two_past_64_bits)), refused);
    }

    #[test]
    fn messages_read_back_and_every_cut_or_longer_one_is_refused() {
        let mut lives = Lives::default();
        for (life, after) in [(1, 0), (3, 700), (4, 90_000)] {
            lives.began(Incarnation(life), DeliveryIndex(after));
        }
        let point = Point { incarnation: Incarnation(3), delivery: DeliveryIndex(1 << 40) };
        for told in [
            Told::Lives(vec![(NodeId(200), lives), (NodeId(3), Lives::default())]),
            Told::Stable(point),
            Told::Hurry(point),
        ] {
            let mut bytes = told.encode();
            for length in 0..bytes.len() {
                assert!(matches!(Told::decode(NodeId(1), &bytes[..length]), Err(Malformed::Truncated(_))));
            }
            assert_eq!(Told::decode(NodeId(1), &bytes), Ok(told));
            bytes.push(0);
            assert_eq!(Told::decode(NodeId(1), &bytes), Err(Malformed::Trailing { bytes: 1 }));
        }
        assert_eq!(Told::decode(NodeId(1), &[9]), Err(Malformed::Tag { tag: 9 }));
    }

    #[test]
    fn lives_that_nobody_wrote_are_refused() {
        // Two lives of node 5: the second begins where the first did, then one that is older.
        for bytes in [[LIVES, 1, 5, 2, 1, 7, 2, 7], [LIVES, 1, 5, 2, 3, 7, 2, 9]] {
            assert!(matches!(Told::decode(NodeId(1), &bytes), Err(Malformed::NeverReached { .. })));
        }
    }
}
