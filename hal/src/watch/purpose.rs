//! The purpose of a collective, as 32 bits that all its ranks compute alike: a step of the plan and a line of the
//! program, or words that the caller gives.
//!
//! All layers of a transformer have equal shapes, so only the purpose shows that one rank's sum of one layer met
//! another rank's sum of the next.

/// A plan step, or words that a caller gave: where this rank's records have its name, and what the ranks compare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purpose {
    number: u16,
    digest: u32,
    /// One more than the step's number in the plan; 0 where it has none.
    plan: u32,
}

/// Numbers of plan steps beyond are shown as this one: a record has 24 bits for them.
const MOST_STEPS: u32 = (1 << 24) - 2;

/// Marks the number of words that a caller gave.
const WORDS: u16 = 1 << 15;

impl Purpose {
    /// Step `at` of the plan; `number` is 0 where its name is not kept.
    pub(super) fn of_step(number: u16, at: u32, meets: &str) -> Purpose {
        let digest = digest(&[meets.as_bytes()]);
        let plan = at.min(MOST_STEPS) + 1;
        Purpose {
            number,
            digest,
            plan,
        }
    }
    /// Words of a caller.
    pub(super) fn of_words(number: u16, words: &str) -> Purpose {
        let digest = digest(&[b"about", words.as_bytes()]);
        let number = number | WORDS;
        Purpose {
            number,
            digest,
            plan: 0,
        }
    }
    #[inline]
    pub(super) fn pack(self) -> [u64; 2] {
        let name = u64::from(self.number) | u64::from(self.digest) << 32;
        [name, u64::from(self.plan)]
    }
    #[inline]
    pub(super) fn unpack([name, plan]: [u64; 2]) -> Purpose {
        Purpose {
            number: name as u16,
            digest: (name >> 32) as u32,
            plan: plan as u32,
        }
    }
    /// As it stands in a record.
    #[inline]
    pub(super) fn number(self) -> u16 {
        self.number
    }
    /// One more than the step's number in the plan; 0 where it has none.
    #[inline]
    pub(super) fn plan(self) -> u32 {
        self.plan
    }
    /// Did a caller give words?
    #[inline]
    pub(super) fn given(self) -> bool {
        self.number & WORDS != 0
    }
    /// With a line of the program, or a tag; alone where a caller gave words.
    #[inline]
    pub(super) fn at(self, line: u32) -> u32 {
        match self.given() {
            true => self.digest,
            false => self.digest.wrapping_mul(0x9e37_79b1) ^ line,
        }
    }
}

/// Splits a number in a record: where the name is, and whether a caller gave it.
pub(super) fn named(number: u16) -> (u16, bool) {
    (number & !WORDS, number & WORDS != 0)
}

/// The same on every rank, in every process: FNV-1a over the parts, folded.
pub(super) fn digest(parts: &[&[u8]]) -> u32 {
    let step = |h: u64, b: &u8| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3);
    // What no text holds ends each part.
    let part = |h: u64, p: &&[u8]| step(p.iter().fold(h, step), &0xff);
    let h = super::collective_record::mix(parts.iter().fold(0xcbf2_9ce4_8422_2325, part));
    (h as u32).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_for_themselves_and_steps_with_their_line() {
        let (step, words) = (Purpose::of_step(3, 8, "rs4"), Purpose::of_words(4, "rs4"));
        assert_ne!(step.at(1), step.at(2));
        assert_eq!(words.at(1), words.at(2));
        assert_ne!(step.at(0), words.at(0));
        assert_ne!(Purpose::of_step(3, 8, "rs5").at(1), step.at(1));
        // Where it stands in a rank's own records is that rank's affair.
        assert_eq!(Purpose::of_step(9, 1, "rs4").at(1), step.at(1));
        assert_eq!(Purpose::unpack(words.pack()), words);
        assert_eq!(Purpose::default().at(7), 7);
    }
}
