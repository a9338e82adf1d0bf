//! Sequences of a fixed length out of documents of any length, in an order that follows from the seed alone.

use crate::batches::SequenceSource;
use crate::cache::{Hash, hex};
use crate::error::{DataError, Result};
use crate::indexed::IndexedDataset;
use crate::order::{Arrays, Order, extent, make};
use crate::order_store::{Description, load_or_make};
use crate::split::View;
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::Arc;

/// Samples of `seq_len + 1` tokens from a part of an indexed dataset.
#[derive(Debug)]
pub struct GptDataset {
    set: Arc<IndexedDataset>,
    view: Arc<View>,
    arrays: Arrays,
    seq_len: usize,
    vocab: Option<usize>,
    one_pass: u64,
}

/// A part of a dataset and the names errors and caches use for it.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) set: Arc<IndexedDataset>,
    pub(crate) view: Arc<View>,
    pub(crate) hash: Hash,
    /// Configuration key of the part.
    pub(crate) key: String,
    pub(crate) vocab: Option<usize>,
}

impl GptDataset {
    /// Loads the order of `samples` samples from `cache`, or makes and stores it.
    pub(crate) fn open(
        part: &Part,
        order: Order,
        seq_len: usize,
        samples: u64,
        cache: &Path,
    ) -> Result<Self> {
        let length = seq_len as u64;
        let extent = extent(&part.view, order, length, samples, &part.key)?;
        let mut pieces = Sha256::new();
        for p in &part.view.pieces {
            [p.sequence, p.start, p.len]
                .iter()
                .for_each(|n| pieces.update(n.to_le_bytes()));
        }
        let description = Description {
            format: "crossweave order 1".into(),
            corpus: hex(&part.hash),
            part: hex(&pieces.finalize()),
            order: format!("{order:?}"),
            seq_len: length,
            epochs: extent.epochs,
        };
        let arrays = load_or_make(cache, &description, extent, || {
            make(&part.view, order, length, extent)
        })?;
        let one_pass = (part.view.tokens - 1) / length;
        Ok(Self {
            set: part.set.clone(),
            view: part.view.clone(),
            arrays,
            seq_len,
            vocab: part.vocab,
            one_pass,
        })
    }

    /// Samples that can be read; at least as many as were asked for.
    pub fn samples(&self) -> u64 {
        self.arrays.shuffle.len() as u64
    }

    /// Fills `out`, of `seq_len + 1` tokens, with sample `i`.
    ///
    /// # Errors
    /// A sample past [`GptDataset::samples`], a token outside the vocabulary, or a file that can no longer be read.
    pub fn sample(&self, i: u64, out: &mut [u32]) -> Result<()> {
        let entry = usize::try_from(i)
            .ok()
            .and_then(|i| self.arrays.shuffle.get(i));
        let start = entry.and_then(|&j| self.arrays.samples.get(j as usize));
        let Some(&[position, mut offset]) = start.filter(|_| out.len() == self.seq_len + 1) else {
            return Err(self.bad(format!("sample {i} of {} tokens does not exist", out.len())));
        };
        let mut rest = out;
        for &piece in self
            .arrays
            .documents
            .get(position as usize..)
            .unwrap_or_default()
        {
            if rest.is_empty() {
                break;
            }
            let piece = self
                .view
                .pieces
                .get(piece as usize)
                .filter(|p| offset <= p.len);
            let piece =
                piece.ok_or_else(|| self.bad(format!("sample {i} begins outside a document")))?;
            let take = ((piece.len - offset) as usize).min(rest.len());
            let (now, later) = rest.split_at_mut(take);
            if take > 0 {
                self.set.read(
                    piece.sequence as usize,
                    piece.start + offset,
                    self.vocab,
                    now,
                )?;
            }
            (rest, offset) = (later, 0);
        }
        if rest.is_empty() {
            Ok(())
        } else {
            Err(self.bad(format!("sample {i} runs past the last document")))
        }
    }

    fn bad(&self, reason: String) -> DataError {
        let fix = "run no more steps than the order was made for, or delete the cached order";
        DataError::Corrupt {
            path: self.set.idx_path().into(),
            offset: 0,
            reason,
            fix: fix.into(),
        }
    }
}

impl SequenceSource for GptDataset {
    fn row_len(&self) -> usize {
        self.seq_len + 1
    }

    fn sequences(&self) -> u64 {
        self.one_pass
    }

    fn read(&self, sequence: u64, out: &mut [u32]) -> Result<()> {
        self.sample(sequence, out)
    }
}
