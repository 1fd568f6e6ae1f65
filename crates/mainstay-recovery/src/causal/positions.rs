//! Where the determinant of a delivery stands in the log, by owner and delivery.
//!
//! Owners deliver one after the other and what is known of them is nearly without holes, so that one node of the tree serves
//! [`CHUNK`] deliveries: a tree of single deliveries is five levels deep at 100,000, and each step to the next level misses the
//! caches. Price: a delivery known without its neighbours takes 8 x [`CHUNK`] bytes.

use mainstay_types::id::{DeliveryIndex, NodeId};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Deliveries of one owner that stand together.
const CHUNK: usize = 32;

/// See the page. No position is 0.
#[derive(Debug, Default)]
pub(super) struct Positions {
    chunks: BTreeMap<(NodeId, u64), Chunk>,
    known: usize,
}

/// Positions of neighbouring deliveries, 0 where there is none.
#[derive(Debug, Default)]
struct Chunk {
    positions: [u64; CHUNK],
    known: usize,
}

fn place(delivery: DeliveryIndex) -> (u64, usize) {
    (delivery.0 / CHUNK as u64, (delivery.0 % CHUNK as u64) as usize)
}

impl Positions {
    /// How many there are.
    pub(super) fn known(&self) -> usize {
        self.known
    }

    pub(super) fn get(&self, owner: NodeId, delivery: DeliveryIndex) -> Option<u64> {
        let (chunk, at) = place(delivery);
        self.chunks.get(&(owner, chunk)).map(|chunk| chunk.positions[at]).filter(|&position| position != 0)
    }

    /// # Panics
    /// If the position is 0, or the delivery has one.
    pub(super) fn insert(&mut self, owner: NodeId, delivery: DeliveryIndex, position: u64) {
        let (chunk, at) = place(delivery);
        let chunk = self.chunks.entry((owner, chunk)).or_default();
        assert!(position != 0 && chunk.positions[at] == 0, "each delivery stands in one position");
        chunk.positions[at] = position;
        chunk.known += 1;
        self.known += 1;
    }

    /// # Panics
    /// If the delivery has no position.
    pub(super) fn remove(&mut self, owner: NodeId, delivery: DeliveryIndex) {
        let (number, at) = place(delivery);
        let chunk = self.chunks.get_mut(&(owner, number)).expect("only what is known is removed");
        assert!(chunk.positions[at] != 0, "only what is known is removed");
        chunk.positions[at] = 0;
        chunk.known -= 1;
        self.known -= 1;
        if chunk.known == 0 {
            self.chunks.remove(&(owner, number));
        }
    }

    /// Deliveries of `owner` and their positions, in the order of the deliveries.
    pub(super) fn range(
        &self,
        owner: NodeId,
        deliveries: RangeInclusive<DeliveryIndex>,
    ) -> impl Iterator<Item = (DeliveryIndex, u64)> + '_ {
        // A range whose end is before its beginning holds nothing; a tree does not take it.
        let (first, last) = (*deliveries.start(), *deliveries.end());
        let chunks = (first <= last)
            .then(|| self.chunks.range((owner, place(first).0)..=(owner, place(last).0)))
            .into_iter()
            .flatten();
        let known = chunks.flat_map(|(&(_, number), chunk)| {
            let before = number * CHUNK as u64;
            let positions = chunk.positions.into_iter().enumerate().filter(|&(_, position)| position != 0);
            positions.map(move |(at, position)| (DeliveryIndex(before + at as u64), position))
        });
        known.filter(move |(delivery, _)| deliveries.contains(delivery))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beside the tree of single deliveries that it stands for.
    #[test]
    fn it_is_a_map_of_deliveries_in_order() {
        let mut random = 1_u64;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let (mut positions, mut model) = (Positions::default(), BTreeMap::new());
        for position in 1..=4000 {
            let owner = NodeId(draw(3) as u32);
            let delivery = match draw(50) {
                0 => DeliveryIndex(u64::MAX - draw(3)),
                _ => DeliveryIndex(draw(200)),
            };
            assert_eq!(positions.get(owner, delivery), model.get(&(owner, delivery)).copied());
            if model.remove(&(owner, delivery)).is_some() {
                positions.remove(owner, delivery);
            } else {
                model.insert((owner, delivery), position);
                positions.insert(owner, delivery, position);
            }
            assert_eq!(positions.known(), model.len());
            let (first, last) = (DeliveryIndex(draw(200)), DeliveryIndex(draw(220)));
            let found: Vec<_> = positions.range(owner, first..=last).collect();
            let expected: Vec<_> = match first <= last {
                true => model.range((owner, first)..=(owner, last)).map(|(&(_, at), &to)| (at, to)).collect(),
                false => Vec::new(),
            };
            assert_eq!(found, expected);
        }
        let everything: usize = (0..3)
            .map(|owner| positions.range(NodeId(owner), DeliveryIndex(0)..=DeliveryIndex(u64::MAX)).count())
            .sum();
        assert_eq!(everything, model.len());
    }
}
