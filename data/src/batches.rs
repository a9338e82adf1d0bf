//! Batches by position: which sequences a step trains on is arithmetic on the number of sequences consumed so far.
//!
//! The global batch that follows `c` consumed sequences is sequences `c .. c + G`, whatever the number of ranks. Rank
//! `r` of `N` takes the contiguous share `c + r*G/N ..`, and its micro-batches follow each other in it; so micro-batch
//! `m` of one rank is what rank `m` of several would hold. A run resumes exactly from `c` alone.
//!
//! Ranks that are not equally fast may take shares that are not equally large ([`Batches::divided`]): then rank `r` with micro-batches of
//! `b_r` sequences takes what begins behind the shares of the ranks before it.

use crate::error::{DataError, Result};
use std::sync::Arc;

/// The label of a prediction that does not count in the loss, as PyTorch's cross entropy has it.
pub const IGNORED: i32 = -100;

/// A remark about a source that a user should read before training begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remark {
    /// As it should be.
    Note(String),
    /// Probably not as it was meant.
    Warning(String),
}

impl std::fmt::Display for Remark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Remark::Note(text) => write!(f, "note: {text}"),
            Remark::Warning(text) => write!(f, "warning: {text}"),
        }
    }
}

/// Rows of tokens by number. Shared by the ranks.
pub trait SequenceSource: Send + Sync {
    /// Tokens of a row. A row trains on `row_len() - 1` predictions: inputs lack its last token, labels its first.
    fn row_len(&self) -> usize;
    /// Different rows: of one pass over a corpus, or in all of a file of given batches.
    fn sequences(&self) -> u64;
    /// Rows of a global batch when the source prescribes them.
    fn fixed_batch(&self) -> Option<u64> {
        None
    }
    /// Fills `out`, of [`SequenceSource::row_len`] tokens, with a row.
    fn read(&self, sequence: u64, out: &mut [u32]) -> Result<()>;
    /// Returns true if some predictions do not count, or have labels that are not the next tokens.
    fn labelled(&self) -> bool {
        false
    }
    /// Fills `out`, of one fewer than `row`, with the labels of a row that was read: next tokens, or [`IGNORED`].
    fn labels(&self, _sequence: u64, row: &[u32], out: &mut [i32]) -> Result<()> {
        // Ids were held to a vocabulary far below 2^31 when they were read.
        let next = row.iter().skip(1);
        out.iter_mut().zip(next).for_each(|(l, t)| *l = *t as i32);
        Ok(())
    }
    /// Appends the patches of a row's images, where rows have images.
    fn images(&self, _sequence: u64, _out: &mut Vec<f32>) -> Result<()> {
        Ok(())
    }
    /// Predictions of a row that count.
    fn counted(&self, _sequence: u64) -> Result<u64> {
        Ok(self.row_len() as u64 - 1)
    }
    /// Returns true if a row may hold several texts that must not see each other.
    fn packed(&self) -> bool {
        false
    }
    /// Fills `out`, of [`SequenceSource::row_len`] numbers, with the cumulative lengths of the texts of a row without its last token: 0, the end
    /// of each text, and behind the last text its end again. What fills the row up is of no text.
    fn lengths(&self, _sequence: u64, out: &mut [i32]) -> Result<()> {
        let row = out.len().saturating_sub(1);
        out.fill(row as i32);
        out.iter_mut().take(1).for_each(|first| *first = 0);
        Ok(())
    }
    /// Returns true if rows may be filled up.
    fn padded(&self) -> bool {
        false
    }
    /// Predictions of a row from one token of a text to its next; what the row was filled up with has none.
    fn filled(&self, _sequence: u64) -> Result<u64> {
        Ok(self.row_len() as u64 - 1)
    }
    /// Takes out of a row that was read what the row itself says is to be predicted, beside its labels.
    fn silence(&self, _row: &mut [u32]) {}
    /// Returns the remarks that the user should read.
    fn remarks(&self) -> Vec<Remark> {
        vec![]
    }
}

/// The division of a global batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchShape {
    /// Sequences of a step over all ranks, `G`.
    pub global_batch: u64,
    /// Data-parallel ranks, `N`.
    pub ranks: u64,
    /// Micro-batches of a rank in a step.
    pub accumulation: u64,
}

/// `total` sequences in proportion to `weights`, at least one to each: by largest remainder, ties to the lower rank.
pub fn shares(total: u64, weights: &[f64]) -> Vec<u64> {
    // Weights may be too large to be added; by a power of two nothing is rounded.
    let most = weights.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let scale = f64::from_bits(most.to_bits() & f64::INFINITY.to_bits());
    let sum: f64 = weights.iter().map(|w| w / scale).sum();
    let exact = |w: &f64| total as f64 * (w / scale) / sum;
    let mut all: Vec<u64> = weights.iter().map(|w| (exact(w) as u64).max(1)).collect();
    // How much more a rank should have than it has.
    let lacks = |all: &[u64], r: usize| exact(&weights[r]) - all[r] as f64;
    while all.iter().sum::<u64>() < total {
        let most = (0..all.len()).reduce(|a, b| {
            if lacks(&all, b) > lacks(&all, a) {
                b
            } else {
                a
            }
        });
        match most {
            Some(r) => all[r] += 1,
            None => break,
        }
    }
    while all.iter().sum::<u64>() > total {
        let can = (0..all.len()).filter(|r| all[*r] > 1);
        match can.reduce(|a, b| {
            if lacks(&all, b) < lacks(&all, a) {
                b
            } else {
                a
            }
        }) {
            Some(r) => all[r] -= 1,
            None => break,
        }
    }
    all
}

/// A micro-batch of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenBatch {
    /// Sequences.
    pub rows: usize,
    /// Tokens of each, one more than there are predictions.
    pub columns: usize,
    /// `rows * columns` ids, row by row.
    pub tokens: Vec<u32>,
    /// Labels of the `rows * (columns - 1)` predictions where they are not simply the next tokens.
    pub labels: Option<Vec<i32>>,
    /// Cumulative lengths of the texts of each row, `rows * columns`, where a row may hold several: [`SequenceSource::lengths`].
    pub lengths: Option<Vec<i32>>,
    /// Patches of the rows' images, row by row; nothing where they have none.
    pub images: Vec<f32>,
}

impl TokenBatch {
    fn cut(&self, from: usize) -> Vec<u32> {
        self.tokens
            .chunks_exact(self.columns)
            .flat_map(|row| &row[from..from + self.columns - 1])
            .copied()
            .collect()
    }

    /// Every row without its last token: `[rows, columns - 1]`.
    pub fn inputs(&self) -> Vec<u32> {
        self.cut(0)
    }

    /// Returns the targets of the predictions, `[rows, columns - 1]`: every row without its first
    /// token, or the labels the source gives.
    pub fn labels(&self) -> Vec<i32> {
        match &self.labels {
            Some(labels) => labels.clone(),
            // Ids were held to a vocabulary far below 2^31 when they were read.
            None => self.cut(1).into_iter().map(|t| t as i32).collect(),
        }
    }
}

/// Hands out a source's rows as micro-batches.
#[derive(Clone)]
pub struct Batches {
    source: Arc<dyn SequenceSource>,
    shape: BatchShape,
    micro: u64,
    /// Sequences of each rank's micro-batch, where they are not `micro`.
    rows: Option<Arc<[u64]>>,
    end: End,
}

/// The end of the rows.
#[derive(Clone, Copy)]
enum End {
    /// Whatever the source has.
    Open,
    /// The first of so many rows.
    Again(u64),
    /// Behind so many rows, rows of which no prediction counts.
    Blank(u64),
}

impl Batches {
    /// Batches to train on. `key` names the source in errors.
    ///
    /// # Errors
    /// More ranks than sequences; a global batch that does not divide; one that is not the given batches'.
    pub fn training(source: Arc<dyn SequenceSource>, shape: BatchShape, key: &str) -> Result<Self> {
        let BatchShape {
            global_batch,
            ranks,
            ..
        } = shape;
        let few = |sequences, of_what| {
            Err(DataError::MoreRanksThanSequences {
                key: key.into(),
                ranks,
                sequences,
                of_what,
            })
        };
        match source.fixed_batch() {
            Some(rows) if rows < ranks => return few(rows, "in each given batch"),
            Some(rows) if rows != global_batch => {
                let reason = format!(
                    "each given batch has {rows} rows, the configuration asks for {global_batch} a step"
                );
                let fix = format!("make micro-batch x accumulation x ranks equal to {rows}");
                return Err(DataError::setting(key, reason, fix));
            }
            _ => {}
        }
        if source.sequences() < ranks {
            return few(source.sequences(), "in the corpus");
        }
        if global_batch < ranks {
            return few(global_batch, "in a global batch");
        }
        Self::new(source, shape, End::Open)
    }

    /// Batches to evaluate on: the first `most` rows, each of them once. What they leave of the last global batch is filled with rows of
    /// which no prediction counts, so that the mean over what counts is the same for every global batch and division.
    ///
    /// # Errors
    /// A global batch that does not divide.
    pub fn evaluation(
        source: Arc<dyn SequenceSource>,
        shape: BatchShape,
        most: u64,
    ) -> Result<Self> {
        let rows = source.sequences().min(most);
        Self::new(source, shape, End::Blank(rows))
    }

    fn new(source: Arc<dyn SequenceSource>, shape: BatchShape, end: End) -> Result<Self> {
        let BatchShape {
            global_batch,
            ranks,
            accumulation,
        } = shape;
        let unit = ranks.saturating_mul(accumulation);
        if unit == 0 || global_batch == 0 || !global_batch.is_multiple_of(unit) {
            return Err(DataError::Uneven {
                global_batch,
                ranks,
                accumulation,
                unit,
            });
        }
        Ok(Self {
            source,
            shape,
            micro: global_batch / unit,
            rows: None,
            end,
        })
    }

    /// Returns the division of the global batch.
    pub fn shape(&self) -> BatchShape {
        self.shape
    }

    /// The same batches, begun again behind the last row.
    pub fn repeating(self) -> Self {
        let end = End::Again(self.source.sequences().max(1));
        Self { end, ..self }
    }

    /// The same global batches in uneven shares: rank `r` takes micro-batches of `rows[r]` sequences.
    ///
    /// # Errors
    /// A share of nothing; shares that are not one for each rank or do not add up to the even ones.
    pub fn divided(self, rows: &[u64]) -> Result<Self> {
        let (ranks, sum) = (self.shape.ranks, self.micro * self.shape.ranks);
        let right = rows.len() as u64 == ranks && rows.iter().all(|r| *r > 0);
        if !right || rows.iter().try_fold(0u64, |a, r| a.checked_add(*r)) != Some(sum) {
            let reason = format!("shares {rows:?} of {ranks} ranks are not {sum} sequences");
            let fix = "give each rank at least one sequence of a micro-batch";
            return Err(DataError::setting("train_batch_size", reason, fix));
        }
        Ok(Self {
            rows: Some(rows.into()),
            ..self
        })
    }

    /// Sequences of a micro-batch of `rank`.
    pub fn micro_batch(&self, rank: u64) -> u64 {
        let own = |rows: &Arc<[u64]>| rows.get(rank as usize).copied();
        self.rows.as_ref().and_then(own).unwrap_or(self.micro)
    }

    /// Number in its global batch of the first sequence of micro-batch `micro` of `rank`.
    pub fn first_of(&self, rank: u64, micro: u64) -> u64 {
        let before: u64 = match &self.rows {
            Some(rows) => rows.iter().take(rank as usize).sum(),
            None => rank * self.micro,
        };
        before * self.shape.accumulation + micro * self.micro_batch(rank)
    }

    /// Tokens of a row; predictions are one fewer.
    pub fn row_len(&self) -> usize {
        self.source.row_len()
    }

    /// Rows that one pass sees.
    pub fn used(&self) -> u64 {
        match self.end {
            End::Open => self.source.sequences(),
            End::Again(rows) | End::Blank(rows) => rows,
        }
    }

    /// Steps that see each of [`Batches::used`] rows.
    pub fn full_pass(&self) -> u64 {
        self.used().div_ceil(self.shape.global_batch).max(1)
    }

    /// Returns true if no prediction of micro-batch `micro` of `step` counts, whichever rank reads
    /// it.
    pub fn is_blank(&self, step: u64, micro: u64) -> bool {
        let before = step.saturating_mul(self.shape.global_batch);
        (0..self.shape.ranks).all(|r| {
            let first = before.saturating_add(self.first_of(r, micro));
            self.number(first).is_none()
        })
    }

    /// Micro-batch `micro` of `rank` in the global batch that follows `consumed` sequences.
    ///
    /// # Errors
    /// A rank or micro-batch outside the shape, the end of given batches, a token outside the vocabulary, a failed read.
    pub fn after(&self, consumed: u64, rank: u64, micro: u64) -> Result<TokenBatch> {
        let BatchShape {
            ranks,
            accumulation,
            ..
        } = self.shape;
        if rank >= ranks || micro >= accumulation {
            let reason = format!(
                "rank {rank}, micro-batch {micro} is outside {ranks} ranks x {accumulation} micro-batches"
            );
            return Err(DataError::setting(
                "train_batch_size",
                reason,
                "ask within the shape",
            ));
        }
        let first = consumed.saturating_add(self.first_of(rank, micro));
        let (rows, columns) = (self.micro_batch(rank) as usize, self.source.row_len());
        let mut tokens = vec![0; rows * columns];
        let each = columns - 1;
        let numbers: Vec<Option<u64>> = (0..rows as u64)
            .map(|i| self.number(first.saturating_add(i)))
            .collect();
        let labelled = self.source.labelled() || numbers.contains(&None);
        let mut labels = labelled.then(|| vec![IGNORED; rows * each]);
        let mut lengths = self.source.packed().then(|| vec![0; rows * columns]);
        let mut images = vec![];
        for (i, row) in tokens.chunks_exact_mut(columns).enumerate() {
            // A row that does not count is still a row that the model can read.
            let sequence = numbers[i].unwrap_or(0);
            self.source.read(sequence, row)?;
            self.source.images(sequence, &mut images)?;
            if let Some(lengths) = &mut lengths {
                let out = &mut lengths[i * columns..(i + 1) * columns];
                self.source.lengths(sequence, out)?;
            }
            match &mut labels {
                _ if numbers[i].is_none() => self.source.silence(row),
                Some(labels) => {
                    let out = &mut labels[i * each..(i + 1) * each];
                    self.source.labels(sequence, row, out)?;
                }
                None => {}
            }
        }
        Ok(TokenBatch {
            rows,
            columns,
            tokens,
            labels,
            lengths,
            images,
        })
    }

    /// Number in the source of a sequence; `None` where it does not count.
    fn number(&self, sequence: u64) -> Option<u64> {
        match self.end {
            End::Open => Some(sequence),
            End::Again(rows) => Some(sequence % rows),
            End::Blank(rows) => Some(sequence).filter(|s| *s < rows),
        }
    }

    /// Returns true if some predictions do not count.
    pub fn labelled(&self) -> bool {
        self.source.labelled()
    }

    /// Returns the remarks about the source that the user should read.
    pub fn remarks(&self) -> Vec<Remark> {
        self.source.remarks()
    }

    /// Predictions that count in the global batches of `steps`, over all ranks.
    ///
    /// # Errors
    /// The end of given batches; a failed read.
    pub fn counted(&self, steps: std::ops::Range<u64>) -> Result<u64> {
        let g = self.shape.global_batch;
        let all = steps.start.saturating_mul(g)..steps.end.saturating_mul(g);
        let rows = all.map_while(|s| self.number(s));
        rows.map(|row| self.source.counted(row)).sum()
    }

    /// Returns true if rows may be filled up.
    pub fn padded(&self) -> bool {
        self.source.padded()
    }

    /// Predictions of the global batches of `steps` from one token of a text to its next, over all ranks: [`SequenceSource::filled`].
    ///
    /// # Errors
    /// The end of given batches.
    pub fn filled(&self, steps: std::ops::Range<u64>) -> Result<u64> {
        let g = self.shape.global_batch;
        let all = steps.start.saturating_mul(g)..steps.end.saturating_mul(g);
        let rows = all.map_while(|s| self.number(s));
        rows.map(|row| self.source.filled(row)).sum()
    }

    /// [`Batches::after`] for a run that had this global batch from its first step: `step` counts from 0.
    ///
    /// # Errors
    /// As [`Batches::after`].
    pub fn at_step(&self, step: u64, rank: u64, micro: u64) -> Result<TokenBatch> {
        self.after(step.saturating_mul(self.shape.global_batch), rank, micro)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Row `i` is `[i, i, i]`.
    struct Count(u64);
    impl SequenceSource for Count {
        fn row_len(&self) -> usize {
            3
        }
        fn sequences(&self) -> u64 {
            self.0
        }
        fn read(&self, sequence: u64, out: &mut [u32]) -> Result<()> {
            out.fill(sequence as u32);
            Ok(())
        }
    }

    fn step(batches: &Batches, step: u64) -> Vec<u32> {
        let BatchShape {
            ranks,
            accumulation,
            ..
        } = batches.shape();
        let micro =
            |r| (0..accumulation).flat_map(move |m| batches.at_step(step, r, m).unwrap().tokens);
        (0..ranks).flat_map(micro).collect()
    }

    #[test]
    fn every_division_gives_the_same_global_batch() {
        let global_batch = 72;
        let whole = Batches::training(
            Arc::new(Count(99)),
            BatchShape {
                global_batch,
                ranks: 1,
                accumulation: 1,
            },
            "k",
        )
        .unwrap();
        for ranks in [1, 2, 3, 4, 8] {
            for accumulation in [1, 3] {
                let shape = BatchShape {
                    global_batch,
                    ranks,
                    accumulation,
                };
                let batches = Batches::training(Arc::new(Count(99)), shape, "k").unwrap();
                for s in 0..5 {
                    assert_eq!(step(&batches, s), step(&whole, s));
                }
            }
        }
        assert_eq!(step(&whole, 2)[..4], [144, 144, 144, 145]);
    }

    #[test]
    fn micro_batches_of_one_rank_are_the_shares_of_several() {
        let make = |ranks, accumulation| {
            Batches::training(
                Arc::new(Count(99)),
                BatchShape {
                    global_batch: 8,
                    ranks,
                    accumulation,
                },
                "k",
            )
            .unwrap()
        };
        for m in 0..4 {
            assert_eq!(
                make(1, 4).at_step(3, 0, m).unwrap(),
                make(4, 1).at_step(3, m, 0).unwrap()
            );
        }
        // Resuming with half the batch goes on where the run stopped.
        assert_eq!(make(1, 1).after(5, 0, 0).unwrap().tokens[0], 5);
    }

    #[test]
    fn impossible_divisions_are_errors_with_numbers() {
        let error = |sequences, global_batch, ranks, accumulation| {
            let shape = BatchShape {
                global_batch,
                ranks,
                accumulation,
            };
            Batches::training(Arc::new(Count(sequences)), shape, "data.train")
                .err()
                .unwrap()
                .to_string()
        };
        let few = error(3, 8, 4, 1);
        for part in [
            "data.train",
            "4 ranks",
            "3 sequences",
            "in the corpus",
            "fix:",
        ] {
            assert!(few.contains(part), "{few}");
        }
        assert!(error(99, 2, 4, 1).contains("in a global batch"));
        assert!(error(99, 8, 3, 1).contains("multiple of 3"));
        assert!(error(99, 8, 2, 0).contains("does not divide"));
        let shape = BatchShape {
            global_batch: 4,
            ranks: 2,
            accumulation: 1,
        };
        let batches = Batches::training(Arc::new(Count(9)), shape, "k").unwrap();
        assert!(batches.at_step(0, 2, 0).is_err() && batches.at_step(0, 0, 1).is_err());
    }

    #[test]
    fn uneven_shares_are_the_same_global_batch() {
        let shape = BatchShape {
            global_batch: 24,
            ranks: 3,
            accumulation: 2,
        };
        let even = Batches::training(Arc::new(Count(99)), shape, "k").unwrap();
        let uneven = even.clone().divided(&[7, 1, 4]).unwrap();
        assert_eq!(step(&uneven, 3), step(&even, 3));
        assert_eq!(uneven.at_step(0, 1, 1).unwrap().tokens, [15, 15, 15]);
        assert_eq!((uneven.first_of(2, 1), uneven.micro_batch(0)), (20, 7));
        for wrong in [&[12, 0, 0][..], &[6, 6], &[4, 4, 5], &[u64::MAX, 1, 12]] {
            assert!(even.clone().divided(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn shares_follow_weights_and_nobody_gets_nothing() {
        assert_eq!(shares(8, &[3.0, 1.0]), [6, 2]);
        assert_eq!(shares(8, &[f64::MAX, f64::MAX]), [4, 4]);
        assert_eq!(shares(8, &[f64::MAX, 1.0]), [7, 1]);
        assert_eq!(shares(8, &[1.0, 1.0, 1.0]), [3, 3, 2]);
        assert_eq!(shares(4, &[1000.0, 1.0, 1.0]), [2, 1, 1]);
        assert_eq!(shares(3, &[1.0, 1e-9, 1e9]), [1, 1, 1]);
        for total in 3..40 {
            let all = shares(total, &[0.7, 2.9, 1.1]);
            assert_eq!(all.iter().sum::<u64>(), total);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn evaluation_reads_each_row_once_whatever_the_division(
            (rows, most) in (1u64..40, 1u64..60),
            (ranks, accumulation, micro) in (1u64..5, 1u64..4, 1u64..6),
        ) {
            let global_batch = micro * ranks * accumulation;
            let shape = BatchShape { global_batch, ranks, accumulation };
            let mut batches = Batches::evaluation(Arc::new(Count(rows)), shape, most).unwrap();
            if micro > 1 && ranks > 1 {
                let mut shares = vec![micro; ranks as usize];
                (shares[0], shares[1]) = (2 * micro - 1, 1);
                batches = batches.divided(&shares).unwrap();
            }
            let (mut seen, used) = (vec![], rows.min(most));
            prop_assert_eq!(batches.used(), used);
            for (s, m) in (0..batches.full_pass()).flat_map(|s| (0..accumulation).map(move |m| (s, m))) {
                let before = seen.len();
                for r in 0..ranks {
                    let b = batches.at_step(s, r, m).unwrap();
                    for (row, labels) in b.tokens.chunks(3).zip(b.labels().chunks(2)) {
                        if labels != [IGNORED; 2] {
                            prop_assert_eq!(labels, [row[1] as i32; 2]);
                            seen.push(u64::from(row[0]));
                        }
                    }
                }
                prop_assert_eq!(seen.len() == before, batches.is_blank(s, m));
            }
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..used).collect::<Vec<_>>());
            prop_assert_eq!(batches.counted(0..batches.full_pass()).unwrap(), 2 * used);
        }
    }
}
