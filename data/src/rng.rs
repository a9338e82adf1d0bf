//! The one source of order: SplitMix64 seeds xoshiro256**, Lemire's method bounds it, Fisher–Yates shuffles.
//!
//! The algorithms are public domain (Blackman and Vigna, <https://prng.di.unimi.it>) and fixed here for good: the
//! order of a corpus is part of a run's identity, so it may not change with a library's version.
//! A stream is named by `(seed, tag, epoch)`: each word is folded into the SplitMix64 state in that order.

/// A deterministic stream of 64-bit words.
pub(crate) struct Rng {
    s: [u64; 4],
}

/// The purpose of a stream, so that two uses with the same seed do not share an order.
#[derive(Clone, Copy)]
pub(crate) enum Tag {
    /// Order of the documents within an epoch.
    Documents = 1,
    /// Order of the samples within an epoch.
    Samples = 2,
    /// Choice of validation documents.
    Split = 3,
    /// Order in which examples are put into rows.
    Packing = 4,
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Rng {
    /// The stream of `(seed, tag, epoch)`.
    pub(crate) fn new(seed: u64, tag: Tag, epoch: u64) -> Self {
        let mut state = seed;
        for word in [tag as u64, epoch] {
            state = splitmix(&mut state) ^ word;
        }
        Self {
            s: std::array::from_fn(|_| splitmix(&mut state)),
        }
    }

    fn next(&mut self) -> u64 {
        let s = &mut self.s;
        let out = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// Uniform in `0..bound` without bias; `bound` is at least 1.
    fn below(&mut self, bound: u64) -> u64 {
        let mut wide = u128::from(self.next()) * u128::from(bound);
        if (wide as u64) < bound {
            let threshold = bound.wrapping_neg() % bound;
            while (wide as u64) < threshold {
                wide = u128::from(self.next()) * u128::from(bound);
            }
        }
        (wide >> 64) as u64
    }

    /// Permutes `items` uniformly.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generators_give_their_published_words() {
        // SplitMix64 from seed 1234567, as in the reference implementation's widely used test vector.
        let mut state = 1_234_567;
        assert_eq!(splitmix(&mut state), 6_457_827_717_110_365_317);
        assert_eq!(splitmix(&mut state), 3_203_168_211_198_807_973);
        // xoshiro256** from state 1, 2, 3, 4.
        let mut rng = Rng { s: [1, 2, 3, 4] };
        assert_eq!(
            [rng.next(), rng.next(), rng.next()],
            [11_520, 0, 1_509_978_240]
        );
    }

    #[test]
    fn a_shuffle_is_a_permutation_and_streams_differ() {
        let order = |seed, tag, epoch| {
            let mut v: Vec<u32> = (0..100).collect();
            Rng::new(seed, tag, epoch).shuffle(&mut v);
            v
        };
        let a = order(1, Tag::Documents, 0);
        let mut sorted = a.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
        assert_eq!(a, order(1, Tag::Documents, 0));
        for other in [
            order(2, Tag::Documents, 0),
            order(1, Tag::Samples, 0),
            order(1, Tag::Documents, 1),
        ] {
            assert_ne!(a, other);
        }
    }

    #[test]
    fn bounded_words_are_even() {
        let mut rng = Rng::new(7, Tag::Split, 0);
        let mut counts = [0u32; 3];
        for _ in 0..30_000 {
            counts[rng.below(3) as usize] += 1;
        }
        assert!(
            counts.iter().all(|c| (9_500..10_500).contains(c)),
            "{counts:?}"
        );
    }
}
