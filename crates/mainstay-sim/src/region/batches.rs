//! How much comes together before a copy is drained. A node drains behind all that it was told at once: between two drains there may be messages of several
//! members and clients, records that became safe, ticks, and the steps of a view change.

use crate::random::Random;

/// When copies of one run are drained.
pub(crate) struct Batches {
    /// Events behind which more comes before the copy is drained, of a thousand; 0: none.
    more_per_mille: u64,
    /// Apart from the world's, so that runs in which nothing comes together are what they were.
    random: Random,
}

impl Batches {
    /// In half of the runs something comes together; in none of the seeds of regions that are kept in `seeds.txt`.
    pub(crate) fn draw(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x6261_7463_6865_7300);
        let more_per_mille = if random.chance(500) { random.between(200, 950) } else { 0 };
        Self { more_per_mille, random }
    }

    /// Whether more comes before the copy is drained.
    pub(crate) fn more(&mut self) -> bool {
        self.more_per_mille > 0 && self.random.chance(self.more_per_mille)
    }

    /// For how long more comes, at most `most_ns`.
    pub(crate) fn pause_ns(&mut self, most_ns: u64) -> u64 {
        self.random.below(most_ns)
    }
}
