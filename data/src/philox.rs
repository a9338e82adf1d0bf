//! Philox4x32-10 (Salmon et al. 2011), the generator of the op table: words that follow from seed, stream and counter alone.

/// The block of a counter: four words.
fn block(seed: u64, stream: u64, counter: u64) -> [u32; 4] {
    let (mut a, mut b) = (counter as u32, (counter >> 32) as u32);
    let (mut c, mut d) = (stream as u32, (stream >> 32) as u32);
    let (mut k0, mut k1) = (seed as u32, (seed >> 32) as u32);
    for _ in 0..10 {
        let p = u64::from(a) * 0xD251_1F53;
        let q = u64::from(c) * 0xCD9E_8D57;
        let x = (q >> 32) as u32 ^ b ^ k0;
        let y = (p >> 32) as u32 ^ d ^ k1;
        (a, b, c, d) = (x, q as u32, y, p as u32);
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    [a, b, c, d]
}

/// The words of one stream, in order.
pub(crate) struct Words {
    seed: u64,
    stream: u64,
    taken: u64,
    last: [u32; 4],
}

impl Words {
    pub(crate) fn new(seed: u64, stream: u64) -> Words {
        let (taken, last) = (0, [0; 4]);
        Words {
            seed,
            stream,
            taken,
            last,
        }
    }

    fn next(&mut self) -> u32 {
        let lane = self.taken % 4;
        if lane == 0 {
            self.last = block(self.seed, self.stream, self.taken / 4);
        }
        self.taken += 1;
        self.last[lane as usize]
    }

    /// Uniform in `0..bound` without bias (Lemire 2019); `bound` is at least 1.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        let mut wide = u64::from(self.next()) * u64::from(bound);
        if (wide as u32) < bound {
            let threshold = bound.wrapping_neg() % bound;
            while (wide as u32) < threshold {
                wide = u64::from(self.next()) * u64::from(bound);
            }
        }
        (wide >> 32) as u32
    }

    /// The first `n` of `items` become a uniform choice of them, in random order.
    pub(crate) fn choose<T>(&mut self, items: &mut [T], n: usize) {
        for i in 0..n.min(items.len()) {
            let rest = (items.len() - i) as u32;
            items.swap(i, i + self.below(rest) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_those_of_the_known_answer_file_of_random123() {
        assert_eq!(
            block(0, 0, 0),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        let ones = u64::MAX;
        assert_eq!(
            block(ones, ones, ones),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
    }

    #[test]
    fn a_choice_is_even_and_streams_differ() {
        let mut counts = [0u32; 5];
        for stream in 0..20_000 {
            let mut items = [0usize, 1, 2, 3, 4];
            Words::new(7, stream).choose(&mut items, 2);
            items[..2].iter().for_each(|i| counts[*i] += 1);
        }
        assert!(
            counts.iter().all(|c| (7_700..8_300).contains(c)),
            "{counts:?}"
        );
    }
}
