//! Examples as rows: one a row or as many as fit, cut or filled up to the length of a sample, with labels where a token counts.

use crate::batches::{IGNORED, Remark, SequenceSource};
use crate::error::{DataError, Result};
use crate::gpt::Part;
use crate::indexed::IndexedDataset;
use crate::order::Order;
use crate::packing::Packing;
use crate::rng::{Rng, Tag};
use std::sync::Arc;

/// Examples of a part of a dataset, and how they become rows.
#[derive(Clone)]
pub(crate) struct ExampleSet {
    pub(crate) part: Part,
    /// A mark for each of their tokens: it counts where that is not 0.
    pub(crate) counts: Arc<IndexedDataset>,
    /// The token that fills a row up; it is never looked at.
    pub(crate) filler: u32,
    /// A row holds as many as fit.
    pub(crate) packed: bool,
    /// One that is longer than a row is an error, and not cut.
    pub(crate) refuse_long: bool,
}

/// The examples that have something to learn, in rows whose order follows from the seed alone: every epoch all of them once, shuffled anew.
pub(crate) struct ExampleRows {
    set: ExampleSet,
    seq_len: usize,
    kept: Vec<Kept>,
    /// Indices into `kept` of every row.
    packing: Packing,
    /// Row of every sample.
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
    /// No example has a token that counts; one is longer than a row and must not be cut; more samples than can be numbered.
    pub(crate) fn open(
        set: &ExampleSet,
        order: Order,
        seq_len: usize,
        samples: u64,
    ) -> Result<ExampleRows> {
        let mut this = ExampleRows {
            set: set.clone(),
            seq_len,
            kept: vec![],
            packing: Packing::default(),
            order: vec![],
            cut: 0,
            silent: 0,
        };
        this.choose()?;
        if this.kept.is_empty() {
            let reason = format!(
                "none of {} examples has a token that counts within its first {} tokens",
                set.part.view.pieces.len(),
                seq_len + 1
            );
            let fix = "raise data.seq_len, look at data.format and the template, or set data.loss_on to \"all\"";
            return Err(DataError::setting(&set.part.key, reason, fix));
        }
        this.packing = match set.packed {
            // No more examples are kept than there are pieces, which are numbered so.
            false => Packing::single(this.kept.len() as u32),
            true => {
                let lengths: Vec<u32> = this.kept.iter().map(|k| k.len).collect();
                Packing::best_fit(&lengths, seq_len as u32 + 1)
            }
        };
        let each = this.packing.rows();
        let epochs = match order {
            Order::Sequential => 1,
            Order::Shuffled(_) => samples.div_ceil(each).max(1),
        };
        if epochs.saturating_mul(each) > u64::from(u32::MAX) {
            let rows = if set.packed { "rows" } else { "examples" };
            let reason = format!("{samples} samples of {each} {rows}; 2^32 is the most");
            return Err(DataError::setting(&set.part.key, reason, "run fewer steps"));
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
        // Number and tokens of the first that is too long.
        let mut long = None;
        for (i, piece) in self.set.part.view.pieces.iter().enumerate() {
            let len = (piece.len as usize).min(most);
            let marks = &mut marks[..len];
            self.set
                .counts
                .read(piece.sequence as usize, piece.start, None, marks)?;
            let too_long = piece.len as usize > most;
            if too_long {
                long.get_or_insert((i + 1, piece.len));
            }
            // The first token of a row is not predicted.
            let counted = marks.iter().skip(1).filter(|m| **m != 0).count() as u32;
            if counted == 0 {
                self.silent += 1;
                continue;
            }
            self.cut += u64::from(too_long);
            self.kept.push(Kept {
                sequence: piece.sequence,
                len: len as u32,
                counted,
            });
        }
        match long.filter(|_| self.set.refuse_long) {
            Some((number, tokens)) => {
                let pieces = &self.set.part.view.pieces;
                let longer = pieces.iter().filter(|p| p.len as usize > most).count();
                let reason = format!(
                    "{longer} of {} examples of {} have more than {most} tokens, the first is example {number} with {tokens}",
                    pieces.len(),
                    self.set.part.key
                );
                let fix = "raise data.seq_len, shorten them, or set data.on_long to \"cut\"";
                Err(DataError::setting("data.on_long", reason, fix))
            }
            None => Ok(()),
        }
    }

    /// The examples of a sample.
    fn examples(&self, sample: u64) -> Result<impl Iterator<Item = Kept> + '_> {
        let at = usize::try_from(sample).ok().and_then(|i| self.order.get(i));
        let row = at.ok_or_else(|| {
            DataError::setting(
                &self.set.part.key,
                format!("sample {sample} of the examples does not exist"),
                "run no more steps than the run was started for",
            )
        })?;
        let row = self.packing.row(*row).iter();
        Ok(row.map(|example| self.kept[*example as usize]))
    }
}

impl SequenceSource for ExampleRows {
    fn row_len(&self) -> usize {
        self.seq_len + 1
    }

    fn sequences(&self) -> u64 {
        self.packing.rows()
    }

    fn read(&self, sequence: u64, out: &mut [u32]) -> Result<()> {
        let (part, mut rest) = (&self.set.part, out);
        for e in self.examples(sequence)? {
            let (own, behind) = rest.split_at_mut(e.len as usize);
            part.set.read(e.sequence as usize, 0, part.vocab, own)?;
            rest = behind;
        }
        rest.fill(self.set.filler);
        Ok(())
    }

    fn labelled(&self) -> bool {
        true
    }

    fn labels(&self, sequence: u64, row: &[u32], out: &mut [i32]) -> Result<()> {
        out.fill(IGNORED);
        let (mut begin, mut marks) = (0, vec![]);
        for e in self.examples(sequence)? {
            marks.resize(e.len as usize, 0);
            self.set
                .counts
                .read(e.sequence as usize, 0, None, &mut marks)?;
            // The first token of an example is not predicted.
            for (i, _) in marks.iter().enumerate().skip(1).filter(|(_, m)| **m != 0) {
                out[begin + i - 1] = row[begin + i] as i32;
            }
            begin += marks.len();
        }
        Ok(())
    }

    fn counted(&self, sequence: u64) -> Result<u64> {
        Ok(self.examples(sequence)?.map(|e| u64::from(e.counted)).sum())
    }

    fn packed(&self) -> bool {
        self.set.packed
    }

    fn lengths(&self, sequence: u64, out: &mut [i32]) -> Result<()> {
        let ends = self.examples(sequence)?.scan(0, |end, e| {
            *end += e.len as usize;
            // The last token of a row is no input.
            Some((*end).min(self.seq_len) as i32)
        });
        let mut last = 0;
        let mut ends = std::iter::once(0).chain(ends);
        for length in out {
            last = ends.next().unwrap_or(last);
            *length = last;
        }
        Ok(())
    }

    fn padded(&self) -> bool {
        true
    }

    fn filled(&self, sequence: u64) -> Result<u64> {
        let examples = self.examples(sequence)?;
        Ok(examples.map(|e| u64::from(e.len) - 1).sum())
    }

    fn remarks(&self) -> Vec<Remark> {
        let (key, all) = (&self.set.part.key, self.set.part.view.pieces.len());
        let mut said = vec![];
        if self.set.packed {
            let tokens: u64 = self.kept.iter().map(|k| u64::from(k.len)).sum();
            let (rows, room) = (self.packing.rows(), self.seq_len as u64 + 1);
            said.push(Remark::Note(format!(
                "{key}: {} examples are packed into {rows} rows of {} tokens, which are {:.1} % full (data.pack)",
                self.kept.len(),
                self.seq_len,
                100.0 * tokens as f64 / (rows * room) as f64
            )));
        }
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
