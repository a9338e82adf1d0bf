//! Rows that a program hands in, in place of files.

use crate::batches::SequenceSource;
use crate::error::{DataError, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Rows of token ids by number, made or read by the program that trains. Every rank reads its own rows by their numbers, from several
/// threads at once, and a run that is continued reads on where it stopped; so a number always stands for the same row.
pub trait DataSource: Send + Sync {
    /// Predictions in a row, which has one token more.
    fn seq_len(&self) -> usize;

    /// Number of different rows, at least one. Behind the last of them the first comes again.
    fn rows(&self) -> u64;

    /// The `seq_len() + 1` ids of row `number`, counted from 0.
    ///
    /// # Errors
    /// Whatever keeps the row from being had; the run ends by it.
    fn row(
        &self,
        number: u64,
    ) -> std::result::Result<Vec<u32>, Box<dyn std::error::Error + Send + Sync>>;
}

/// Rows of a program, each held to its length and to the vocabulary.
#[derive(Clone)]
pub(crate) struct ProgramRows {
    source: Arc<dyn DataSource>,
    /// Predictions in a row, as the source said once.
    seq_len: usize,
    rows: u64,
    /// Ids of the model, where the config says how many.
    vocab: Option<u64>,
}

impl ProgramRows {
    /// # Errors
    /// A source without rows, or of rows without a prediction; one that panics.
    pub(crate) fn open(source: Arc<dyn DataSource>, vocab: Option<usize>) -> Result<ProgramRows> {
        let sizes = catch_unwind(AssertUnwindSafe(|| (source.seq_len(), source.rows())));
        let (seq_len, rows) = sizes.map_err(|_| fault(0, "the source panicked over its sizes"))?;
        if seq_len == 0 || rows == 0 {
            let why = format!("the source has {rows} rows of {seq_len} predictions");
            return Err(fault(0, why));
        }
        Ok(ProgramRows {
            source,
            seq_len,
            rows,
            vocab: vocab.map(|v| v as u64),
        })
    }

    /// Tokens of one pass.
    pub(crate) fn tokens(&self) -> u64 {
        self.rows.saturating_mul(self.row_len() as u64)
    }
}

fn fault(sample: u64, why: impl Into<String>) -> DataError {
    DataError::Row {
        sample,
        why: why.into(),
    }
}

impl SequenceSource for ProgramRows {
    fn row_len(&self) -> usize {
        self.seq_len + 1
    }

    fn sequences(&self) -> u64 {
        self.rows
    }

    fn read(&self, sequence: u64, out: &mut [u32]) -> Result<()> {
        let number = sequence % self.rows;
        let row = catch_unwind(AssertUnwindSafe(|| self.source.row(number)));
        let row = row.map_err(|_| fault(number, "the source panicked"))?;
        let row = row.map_err(|e| fault(number, format!("the source failed: {e}")))?;
        if row.is_empty() {
            let why = format!("the source has ended, and was to have {} rows", self.rows);
            return Err(fault(number, why));
        }
        if row.len() != out.len() {
            let why = format!("the row has {} ids, not {}", row.len(), out.len());
            return Err(fault(number, why));
        }
        // Ids of models are far below 2^31, beyond which they could not be held apart from labels that do not count.
        let limit = self.vocab.unwrap_or(i32::MAX as u64);
        if let Some(at) = row.iter().position(|id| u64::from(*id) >= limit) {
            let why = format!(
                "id {} at {at} is outside the vocabulary of {limit}",
                row[at]
            );
            return Err(fault(number, why));
        }
        out.copy_from_slice(&row);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two rows of three predictions; what each is comes from a function.
    struct Two(fn(u64) -> Vec<u32>);

    impl DataSource for Two {
        fn seq_len(&self) -> usize {
            3
        }
        fn rows(&self) -> u64 {
            2
        }
        fn row(
            &self,
            number: u64,
        ) -> std::result::Result<Vec<u32>, Box<dyn std::error::Error + Send + Sync>> {
            match number {
                0 => Ok(vec![0, 1, 2, 3]),
                _ => Ok((self.0)(number)),
            }
        }
    }

    #[test]
    fn rows_come_by_number_and_again() {
        let rows = ProgramRows::open(Arc::new(Two(|n| vec![n as u32; 4])), Some(4)).unwrap();
        let mut out = [0; 4];
        for (n, want) in [
            (0, [0, 1, 2, 3]),
            (1, [1; 4]),
            (2, [0, 1, 2, 3]),
            (5, [1; 4]),
        ] {
            rows.read(n, &mut out).unwrap();
            assert_eq!(out, want);
        }
    }

    #[test]
    fn a_row_that_is_none_is_named_by_its_number() {
        let cases: [(fn(u64) -> Vec<u32>, &str); 4] = [
            (|_| vec![], "has ended"),
            (|_| vec![1; 5], "has 5 ids, not 4"),
            (
                |_| vec![1, 2, 3, 4],
                "id 4 at 3 is outside the vocabulary of 4",
            ),
            (|_| panic!("planted"), "panicked"),
        ];
        for (row, words) in cases {
            let rows = ProgramRows::open(Arc::new(Two(row)), Some(4)).unwrap();
            let e = rows.read(3, &mut [0; 4]).unwrap_err().to_string();
            assert!(e.contains("sample 1") && e.contains(words), "{e}");
        }
    }
}
