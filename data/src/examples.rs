//! Examples as rows: one a row, cut or filled up to the length of a sample, with labels where a token counts.

use crate::batches::{IGNORED, Remark, SequenceSource};
use crate::error::{DataError, Result};
use crate::gpt::Part;
use crate::indexed::IndexedDataset;
use crate::order::Order;
use crate::rng::{Rng, Tag};
use std::sync::Arc;

/// The examples of a part of a dataset that have something to learn, in an order that follows from the seed alone: every epoch all of
/// them once, shuffled anew.
pub(crate) struct ExampleRows {
    part: Part,
    counts: Arc<IndexedDataset>,
    seq_len: usize,
    /// The token that fills a row up; it is never looked at.
    filler: u32,
    kept: Vec<Kept>,
    /// Index into `kept` of every sample.
    order: Vec<u32>,
    cut: u64,
    silent: u64,
}

#[derive(Clone, Copy)]
struct Kept {
    sequence: u32,
    /// Tokens that are used.
    len: u32,
    /// Predictions that count.
    counted: u32,
}

impl ExampleRows {
    /// At least `samples` rows, or all of them once.
    ///
    /// # Errors
    /// No example has a token that counts; more samples than can be numbered.
    pub(crate) fn open(
        part: &Part,
        counts: &Arc<IndexedDataset>,
        filler: u32,
        order: Order,
        seq_len: usize,
        samples: u64,
    ) -> Result<ExampleRows> {
        let mut this = ExampleRows {
            part: part.clone(),
            counts: counts.clone(),
            seq_len,
            filler,
            kept: vec![],
            order: vec![],
            cut: 0,
            silent: 0,
        };
        this.choose()?;
        let each = this.kept.len() as u64;
        if each == 0 {
            let reason = format!(
                "none of {} examples has a token that counts within its first {} tokens",
                part.view.pieces.len(),
                seq_len + 1
            );
            let fix = "raise data.seq_len, look at data.format and the template, or set data.loss_on to \"all\"";
            return Err(DataError::setting(&part.key, reason, fix));
        }
        let epochs = match order {
            Order::Sequential => 1,
            Order::Shuffled(_) => samples.div_ceil(each).max(1),
        };
        if epochs.saturating_mul(each) > u64::from(u32::MAX) {
            let reason = format!("{samples} samples of {each} examples; 2^32 is the most");
            return Err(DataError::setting(&part.key, reason, "run fewer steps"));
        }
        for epoch in 0..epochs {
            let start = this.order.len();
            this.order.extend(0..each as u32);
            if let Order::Shuffled(seed) = order {
                Rng::new(seed, Tag::Samples, epoch).shuffle(&mut this.order[start..]);
            }
        }
        Ok(this)
    }

    /// Reads which tokens count, and keeps the examples in which any does.
    fn choose(&mut self) -> Result<()> {
        let most = self.seq_len + 1;
        let mut marks = vec![0; most];
        for piece in &self.part.view.pieces {
            let len = (piece.len as usize).min(most);
            let marks = &mut marks[..len];
            self.counts
                .read(piece.sequence as usize, piece.start, None, marks)?;
            // The first token of a row is not predicted.
            let counted = marks.iter().skip(1).filter(|m| **m != 0).count() as u32;
            if counted == 0 {
                self.silent += 1;
                continue;
            }
            self.cut += u64::from(piece.len as usize > most);
            self.kept.push(Kept {
                sequence: piece.sequence,
                len: len as u32,
                counted,
            });
        }
        Ok(())
    }

    fn example(&self, sample: u64) -> Result<Kept> {
        let at = usize::try_from(sample).ok().and_then(|i| self.order.get(i));
        let kept = at.and_then(|i| self.kept.get(*i as usize)).copied();
        kept.ok_or_else(|| {
            DataError::setting(
                &self.part.key,
                format!("sample {sample} of the examples does not exist"),
                "run no more steps than the run was started for",
            )
        })
    }
}

impl SequenceSource for ExampleRows {
    fn row_len(&self) -> usize {
        self.seq_len + 1
    }

    fn sequences(&self) -> u64 {
        self.kept.len() as u64
    }

    fn read(&self, sequence: u64, out: &mut [u32]) -> Result<()> {
        let e = self.example(sequence)?;
        let (own, rest) = out.split_at_mut(e.len as usize);
        rest.fill(self.filler);
        let set = &self.part.set;
        set.read(e.sequence as usize, 0, self.part.vocab, own)
    }

    fn labelled(&self) -> bool {
        true
    }

    fn labels(&self, sequence: u64, row: &[u32], out: &mut [i32]) -> Result<()> {
        let e = self.example(sequence)?;
        let mut marks = vec![0; e.len as usize];
        self.counts.read(e.sequence as usize, 0, None, &mut marks)?;
        out.fill(IGNORED);
        for ((label, token), mark) in out.iter_mut().zip(&row[1..]).zip(&marks[1..]) {
            if *mark != 0 {
                *label = *token as i32;
            }
        }
        Ok(())
    }

    fn counted(&self, sequence: u64) -> Result<u64> {
        Ok(u64::from(self.example(sequence)?.counted))
    }

    fn remarks(&self) -> Vec<Remark> {
        let (key, all) = (&self.part.key, self.part.view.pieces.len());
        let mut said = vec![];
        if self.cut > 0 {
            said.push(Remark::Warning(format!(
                "{key}: {} of {all} examples have more than {} tokens and are cut there; fix: raise data.seq_len if that is too short",
                self.cut,
                self.seq_len + 1
            )));
        }
        if self.silent > 0 {
            said.push(Remark::Warning(format!(
                "{key}: {} of {all} examples are left out: no token of them counts in the loss within {} tokens; fix: look at them, raise data.seq_len, or set data.loss_on to \"all\"",
                self.silent,
                self.seq_len + 1
            )));
        }
        said
    }
}
