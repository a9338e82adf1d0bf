//! Rows whose tokens are cut over ranks (context parallelism): which tokens of a row a rank has, and how its queries meet the keys of the
//! other ranks.

use crossweave_mesh::{Axis, AxisSet, Place};
use std::ops::Range;

/// The tokens of a row that each of the ranks has, along the axis that cuts rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Rank r has the r-th of equal pieces.
    #[default]
    Contiguous,
    /// Rank r of c has chunks r and 2c - 1 - r of 2c equal ones: under a causal mask all ranks then have as many pairs of query
    /// and key.
    ZigZag,
}

/// The way in which queries meet the keys and values of the other ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Meeting {
    /// Keys and values of all ranks are gathered, and gathered again for the backward.
    #[default]
    Gather,
    /// Tokens are exchanged for heads before attention and back behind it (DeepSpeed-Ulysses, Jacobs et al. 2023, arXiv 2309.14509).
    Heads,
    /// Keys and values go around a ring of ranks while queries stay (Liu et al. 2023, arXiv 2310.01889). Of the ranks along the axis `inner`
    /// consecutive ones are one place of the ring: they exchange tokens for heads first (Fang and Zhao 2024, arXiv 2405.07719).
    Ring {
        /// Ranks at a place of the ring; 1: a ring of all.
        inner: u32,
    },
}

impl Meeting {
    /// The number of consecutive ranks that exchange tokens for heads, among so many along the axis.
    pub fn exchange(self, ranks: u64) -> u64 {
        match self {
            Meeting::Gather => 1,
            Meeting::Heads => ranks,
            Meeting::Ring { inner } => u64::from(inner),
        }
    }

    /// The place on the ring of a rank at a place among so many, and the places that the ring has; one place where nothing goes round.
    pub fn on_ring(self, [at, ranks]: [u64; 2]) -> [u64; 2] {
        match self {
            Meeting::Ring { inner } => [at, ranks].map(|n| n / u64::from(inner.max(1))),
            Meeting::Gather | Meeting::Heads => [0, 1],
        }
    }
}

/// The cut of rows over the ranks of an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RowCut {
    /// Who has which tokens.
    pub layout: Layout,
    /// How attention meets the keys.
    pub meeting: Meeting,
    /// No query sees a later key.
    pub causal: bool,
}

impl RowCut {
    /// Pairs of query and key, of all heads, that the rank at a place among so many computes of a row of `tokens`: under a window (0: none), and within
    /// texts of these lengths one behind the other; what is behind the last sees nothing. Where ranks exchange heads each has a part of those of all.
    pub fn pairs(&self, place: [u64; 2], tokens: u64, texts: &[u64], window: u64) -> f64 {
        let inner = self.meeting.exchange(place[1]).max(1);
        let runs = self.layout.runs(place.map(|n| n / inner), tokens);
        let seen = |i: u64, text: &Range<u64>| {
            let end = if self.causal { i + 1 } else { text.end };
            let first = match window {
                0 => 0,
                window => (i + 1).saturating_sub(window),
            };
            (end - first.max(text.start)) as f64
        };
        let ends = texts.iter().scan(0, |at, n| {
            let text = *at..*at + n;
            *at = text.end;
            Some(text)
        });
        let here = |text: Range<u64>| -> f64 {
            let runs = runs.iter();
            let own = runs.flat_map(|[from, n]| from.max(text.start)..(from + n).min(text.end));
            own.map(|i| seen(i, &text)).sum()
        };
        ends.map(here).sum::<f64>() / inner as f64
    }
}

/// Consecutive tokens of a row: the first, and how many.
pub type Run = [u64; 2];

/// The tokens of a row that are here, in the order in which they lie here: one run or two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runs {
    all: [Run; 2],
}

impl Runs {
    /// `tokens` tokens, from the first on.
    pub fn whole(tokens: u64) -> Runs {
        Runs {
            all: [[0, tokens], [tokens, 0]],
        }
    }

    /// The runs, without empty ones behind the first.
    pub fn iter(&self) -> impl Iterator<Item = Run> + Clone + use<> {
        let all = self.all.into_iter().enumerate();
        all.filter(|(i, run)| *i == 0 || run[1] > 0)
            .map(|(_, run)| run)
    }

    /// The same with the place among the tokens that are here at which each begins.
    pub fn placed(&self) -> impl Iterator<Item = (u64, Run)> + Clone + use<> {
        let before = [0, self.all[0][1]];
        before.into_iter().zip(self.iter())
    }

    /// The one run that there is; none where there are two.
    pub fn one(&self) -> Option<Run> {
        (self.all[1][1] == 0).then_some(self.all[0])
    }

    /// The runs of `tokens` of the tokens that are here, from the one at place `from` on.
    pub fn part(&self, from: u64, tokens: u64) -> Runs {
        let first = self.all[0][1];
        let cut = |[at, len]: Run, before: u64| {
            let begin = from.saturating_sub(before).min(len);
            let end = (from + tokens).saturating_sub(before).min(len);
            [at + begin, end - begin]
        };
        match [cut(self.all[0], 0), cut(self.all[1], first)] {
            [[_, 0], only] => Runs {
                all: [only, [only[0] + only[1], 0]],
            },
            all => Runs { all },
        }
    }

    /// Two runs of which the second follows on the first as one.
    fn joined(self) -> Runs {
        let [[from, a], [then, b]] = self.all;
        match from + a == then {
            true => Runs {
                all: [[from, a + b], [then + b, 0]],
            },
            false => self,
        }
    }
}

impl Layout {
    /// The tokens of a row of `tokens` that the rank at place `at` of `ranks` has. Both are whole numbers of chunks, which the caller has
    /// made sure of.
    pub fn runs(self, [at, ranks]: [u64; 2], tokens: u64) -> Runs {
        match self {
            Layout::Contiguous => {
                let each = tokens / ranks.max(1);
                Runs::whole(tokens).part(at * each, each)
            }
            Layout::ZigZag => {
                let chunk = tokens / (2 * ranks).max(1);
                let last = 2 * ranks - 1 - at;
                Runs {
                    all: [at, last].map(|i| [i * chunk, chunk]),
                }
                .joined()
            }
        }
    }

    /// Into how many equal pieces a row is cut for so many ranks.
    pub fn pieces(self, ranks: u64) -> u64 {
        match self {
            Layout::Contiguous => ranks,
            Layout::ZigZag => 2 * ranks,
        }
    }
}

/// The axes of a place whose ranks have the other tokens of its rows: context parallelism's, where it is longer than one.
pub fn cut_at(place: &Place) -> AxisSet {
    place.among(Axis::Cp).map_or(AxisSet::NONE, |g| g.axes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every token of a row is on one rank, and of zig-zag chunks the pairs under a causal mask are the same on all.
    #[test]
    fn ranks_have_each_token_once() {
        for layout in [Layout::Contiguous, Layout::ZigZag] {
            for ranks in 1..6 {
                let tokens = 12 * ranks;
                let mut owners = vec![0; tokens as usize];
                let mut pairs = vec![];
                for at in 0..ranks {
                    let runs = layout.runs([at, ranks], tokens);
                    let here: Vec<u64> = runs.iter().flat_map(|[f, n]| f..f + n).collect();
                    assert_eq!(here.len() as u64, tokens / ranks, "{layout:?} {at}/{ranks}");
                    here.iter().for_each(|t| owners[*t as usize] += 1);
                    pairs.push(here.iter().map(|t| t + 1).sum::<u64>());
                    for (from, n) in [(0, 12), (0, 5), (4, 6), (5, 7), (6, 6), (11, 1)] {
                        let part: Vec<u64> = runs
                            .part(from, n)
                            .iter()
                            .flat_map(|[f, n]| f..f + n)
                            .collect();
                        assert_eq!(part, here[from as usize..(from + n) as usize]);
                    }
                    let mut next = 0;
                    for (at, [_, n]) in runs.placed() {
                        assert_eq!(at, next);
                        next += n;
                    }
                    assert_eq!(next, tokens / ranks);
                }
                assert!(owners.iter().all(|n| *n == 1));
                let cut = RowCut {
                    layout,
                    causal: true,
                    ..RowCut::default()
                };
                let counted =
                    (0..ranks).map(|at| cut.pairs([at, ranks], tokens, &[tokens], 0) as u64);
                assert_eq!(counted.collect::<Vec<_>>(), pairs);
                if layout == Layout::ZigZag {
                    assert!(pairs.iter().all(|n| *n == pairs[0]), "{pairs:?}");
                }
            }
        }
    }

    /// Pairs of a row of several texts, one by one: a key is seen in the query's own text, not behind it, and not beyond the window.
    #[test]
    fn pairs_are_those_within_texts() {
        let texts: [&[u64]; 4] = [&[24], &[5, 0, 12, 7], &[1, 1, 18], &[6, 6, 6]];
        for (k, texts) in texts.into_iter().enumerate() {
            let text: Vec<usize> = (0..texts.len())
                .flat_map(|i| vec![i; texts[i] as usize])
                .collect();
            for (layout, window) in [(Layout::Contiguous, 0), (Layout::ZigZag, 4)] {
                let (causal, ranks) = (k % 2 == 0, 3);
                let cut = RowCut {
                    layout,
                    causal,
                    ..RowCut::default()
                };
                for at in 0..ranks {
                    let own = layout.runs([at, ranks], 24);
                    let queries = own.iter().flat_map(|[f, n]| f..f + n);
                    let sees = |q: u64, key: u64| {
                        let near = window == 0 || key + window > q;
                        text[q as usize] == text[key as usize] && near && (!causal || key <= q)
                    };
                    let end = text.len() as u64;
                    let queries = queries.filter(|q| *q < end);
                    let want = queries.flat_map(|q| (0..end).filter(move |k| sees(q, *k)));
                    let got = cut.pairs([at, ranks], 24, texts, window);
                    assert_eq!(got, want.count() as f64, "{texts:?} {cut:?} {at}");
                }
            }
        }
    }
}
