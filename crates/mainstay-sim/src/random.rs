//! The only source of chance in the simulator: xoshiro256++ (Blackman and Vigna 2019), seeded by SplitMix64.

/// A stream of numbers that depends on its seed alone.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// The stream of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut split = SplitMix(seed);
        Self { state: std::array::from_fn(|_| split.draw()) }
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let drawn = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        drawn
    }

    /// A number below `limit`, which is not zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        u64::try_from((u128::from(self.draw()) * u128::from(limit)) >> 64)
            .expect("the product's upper half is below the limit")
    }

    /// An index below `limit`, which is not zero.
    pub fn index(&mut self, limit: usize) -> usize {
        usize::try_from(self.below(limit as u64)).expect("it is below a usize")
    }

    /// A number from `from` up to and including `to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// True `per_mille` times in a thousand.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// One of `these`, which are not none.
    ///
    /// # Panics
    /// When there is none.
    pub fn pick<'a, T>(&mut self, these: &'a [T]) -> &'a T {
        &these[self.index(these.len())]
    }

    /// True every other time.
    pub fn coin(&mut self) -> bool {
        self.draw() >> 63 == 1
    }
}

/// SplitMix64 (Steele, Lea and Flood 2014). Also what a process derives a handler's randomness with, so that the model
/// can draw the same from the recorded seed.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix(pub(crate) u64);

impl SplitMix {
    pub(crate) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_that_of_the_published_generators() {
        let mut split = SplitMix(1_234_567);
        assert_eq!([split.draw(), split.draw()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
        let mut random = Random { state: [1, 2, 3, 4] };
        assert_eq!([random.draw(), random.draw()], [41_943_041, 58_720_359]);
    }

    #[test]
    fn draws_stay_within_their_bounds() {
        let mut random = Random::new(7);
        assert!((0..1000).all(|_| (3..=5).contains(&random.between(3, 5))));
        assert!((0..100).all(|_| random.below(1) == 0));
    }
}
