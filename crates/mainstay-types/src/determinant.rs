//! Determinants: where in a node's history a delivery stands, and which message it delivered.

use crate::codec::{Reader, Truncated};
use crate::id::{DeliveryIndex, Incarnation, NodeId, Ssn};
use crate::time::Time;
use serde::{Deserialize, Serialize};

/// A moment in one node's history: the state interval begun by one delivery of one life (Strom and Yemini 1985).
///
/// Indices go on across lives; a life that lost its tail gives indices again, and then its incarnation tells them apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Point {
    /// The life in which the delivery was first executed.
    pub incarnation: Incarnation,
    /// The delivery.
    pub delivery: DeliveryIndex,
}

/// What a receiver decided when it delivered something: the receive number (RSN) with everything else that the handler saw
/// of the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Place {
    /// Its receive number.
    pub delivery: DeliveryIndex,
    /// The life in which it was first delivered.
    pub life: Incarnation,
    /// The recorded time.
    pub now: Time,
    /// Seed of the handler's randomness.
    pub seed: u64,
}

impl Place {
    /// Encoded length, in bytes.
    pub const BYTES: usize = 32;

    /// Appends the encoding: four little-endian words.
    #[inline]
    pub fn put(&self, out: &mut Vec<u8>) {
        for word in [self.delivery.0, self.life.0, self.now.0, self.seed] {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }

    /// Reads what [`Self::put`] wrote.
    ///
    /// # Errors
    /// [`Truncated`] at the end.
    #[inline]
    pub fn take(from: &mut Reader<'_>) -> Result<Self, Truncated> {
        Ok(Self {
            delivery: DeliveryIndex(from.u64()?),
            life: Incarnation(from.u64()?),
            now: Time(from.u64()?),
            seed: from.u64()?,
        })
    }
}

impl Point {
    /// Encoded length, in bytes.
    pub const BYTES: usize = 16;

    /// Appends the encoding: two little-endian words.
    #[inline]
    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.incarnation.0.to_le_bytes());
        out.extend_from_slice(&self.delivery.0.to_le_bytes());
    }

    /// Reads what [`Self::put`] wrote.
    ///
    /// # Errors
    /// [`Truncated`] at the end.
    #[inline]
    pub fn take(from: &mut Reader<'_>) -> Result<Self, Truncated> {
        Ok(Self { incarnation: Incarnation(from.u64()?), delivery: DeliveryIndex(from.u64()?) })
    }
}

/// Which message: unique in the cluster, the same in a replay of its sender.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct MessageId {
    /// Its sender.
    pub from: NodeId,
    /// Its receiver.
    pub to: NodeId,
    /// Its number on that link.
    pub ssn: Ssn,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_points_read_back() {
        let place = Place { delivery: DeliveryIndex(3), life: Incarnation(2), now: Time(9), seed: 7 };
        let point = Point { incarnation: Incarnation(2), delivery: DeliveryIndex(3) };
        let mut bytes = Vec::new();
        place.put(&mut bytes);
        point.put(&mut bytes);
        assert_eq!(bytes.len(), Place::BYTES + Point::BYTES);
        let mut reader = Reader::new(&bytes);
        assert_eq!((Place::take(&mut reader), Point::take(&mut reader)), (Ok(place), Ok(point)));
    }
}
