//! What stands in a row beside one text: the part of a decoder, or, of a pair of texts, the kind of every token and whether the second text
//! follows the first. Of given batches these are the tensors `token_type_ids` and `next_sentence_label`, named as in `transformers`.

use crate::atomic::read_at;
use crate::batches::IGNORED;
use crate::error::{DataError, Result};
use crate::tensors::{Ids, value, width};
use safetensors::tensor::Metadata;
use std::fs::File;
use std::path::Path;

/// Words of a row before the kinds of a pair's tokens: whether its second text follows the first (0), does not (1) or is not to be predicted
/// ([`IGNORED`]), and the bits of an f32, how much that counts beside a token.
const WORDS: usize = 2;

/// The meaning of the columns of a row, where these are not one text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    /// Tokens that an encoder reads, and behind them those that its decoder reads.
    Both([usize; 2]),
    /// A pair of texts.
    Pair(Pair),
}

/// A row of two texts: `WORDS`, the kinds of its tokens, and these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Tokens, of both texts and around them.
    pub tokens: usize,
    /// Kinds of token.
    pub kinds: u32,
    /// It is known whether the second text follows the first.
    pub labelled: bool,
}

impl Columns {
    /// All of them.
    pub fn all(self) -> usize {
        match self {
            Columns::Both([read, written]) => read + written,
            Columns::Pair(pair) => WORDS + 2 * pair.tokens,
        }
    }
    /// Takes the answer of a pair out of its row.
    pub(crate) fn silence(self, row: &mut [u32]) {
        if let (Columns::Pair(_), Some(answer)) = (self, row.first_mut()) {
            *answer = IGNORED as u32;
        }
    }
    /// Tokens of the longest text that a model reads.
    pub fn longest(self) -> usize {
        match self {
            Columns::Both([read, written]) => read.max(written),
            Columns::Pair(pair) => pair.tokens,
        }
    }
}

/// A pair and its labels as a row. `answer`: the label of the pair, and its weight.
pub fn paired(
    (follows, weight): (i32, f32),
    kinds: &[u32],
    tokens: &[u32],
    labels: &[i32],
) -> (Vec<u32>, Vec<i32>) {
    let mut row = vec![follows as u32, weight.to_bits()];
    row.extend(kinds);
    let mut all = vec![IGNORED; row.len()];
    row.extend(tokens);
    all.extend(labels);
    (row, all)
}

/// Pairs of given batches.
#[derive(Debug)]
pub(crate) struct Given {
    kinds: Option<Ids>,
    /// The answers, row by row, to the question if the second text follows the first; unset where
    /// no row says.
    follows: Option<Vec<i32>>,
    /// The weight of a row's answer beside a token, for each step: by this, it is the mean over the
    /// rows of a step whose answer is known.
    pub weights: Vec<f32>,
    pub what: Pair,
}

const KINDS: &str = "token_type_ids";
const FOLLOWS: &str = "next_sentence_label";

impl Given {
    /// Finds them in a file of `steps` batches, if there are any.
    pub fn find(
        (file, path): (&File, &Path),
        header: &Metadata,
        data: u64,
        [steps, batch, row]: [usize; 3],
    ) -> Result<Option<Given>> {
        let find = |name, shape: &[usize]| -> Result<Option<Ids>> {
            let Some(info) = header.info(name) else {
                return Ok(None);
            };
            if info.shape != shape || width(info.dtype).is_none() {
                let reason = format!(
                    "tensor \"{name}\" of {} is {:?} {:?}",
                    path.display(),
                    info.dtype,
                    info.shape
                );
                let fix = format!("write it as I64 {shape:?}, or leave it out");
                return Err(DataError::setting("data.tokens", reason, fix));
            }
            Ok(Some(Ids::of(info, data, name, row)))
        };
        let kinds = find(KINDS, &[steps, batch, row])?;
        let follows = find(FOLLOWS, &[steps, batch])?;
        if kinds.is_none() && follows.is_none() {
            return Ok(None);
        }
        let out_of = |name: &str, at: String, found: i64, fix: &str| {
            let path = path.display();
            let reason = format!("tensor \"{name}\" of {path} holds {found} at {at}");
            Err(DataError::setting("data.tokens", reason, fix))
        };
        let mut most = 0;
        for s in 0..steps * batch * usize::from(kinds.is_some()) {
            let Some(ids) = &kinds else { break };
            for (column, kind) in ids.of_row((file, path), s as u64)?.into_iter().enumerate() {
                let Some(kind) = u32::try_from(kind).ok().filter(|k| *k < u32::MAX) else {
                    let at = format!("step {}, row {}, column {column}", s / batch, s % batch);
                    return out_of(KINDS, at, kind, "kinds of token count from 0");
                };
                most = most.max(kind);
            }
        }
        let mut answers = vec![];
        if let Some(ids) = &follows {
            let each = width(ids.dtype).unwrap_or(1);
            let mut bytes = vec![0; steps * batch * each];
            read_at(file, path, ids.data, &mut bytes)?;
            for (s, raw) in bytes.chunks_exact(each).enumerate() {
                answers.push(match value(ids.dtype, raw) {
                    -100 => IGNORED,
                    known @ 0..=1 => known as i32,
                    other => {
                        let at = format!("step {}, row {}", s / batch, s % batch);
                        let fix = "write 0 where the second text follows the first, 1 where it does not, and -100 where that is not to be predicted";
                        return out_of(FOLLOWS, at, other, fix);
                    }
                });
            }
        }
        let what = Pair {
            tokens: row,
            kinds: most + 1,
            labelled: follows.is_some(),
        };
        Ok(Some(Given {
            kinds,
            follows: follows.is_some().then_some(answers),
            weights: vec![],
            what,
        }))
    }

    /// Takes into account how many labels of each row of tokens count, `batch` rows a step.
    pub fn weigh(&mut self, counted: &[u32], batch: usize) {
        let Some(answers) = &self.follows else {
            return;
        };
        let steps = counted.chunks(batch).zip(answers.chunks(batch));
        let weight = |(tokens, answers): (&[u32], &[i32])| {
            let known = answers.iter().filter(|a| **a != IGNORED).count();
            let tokens: u64 = tokens.iter().map(|n| u64::from(*n)).sum();
            tokens as f32 / known.max(1) as f32
        };
        self.weights = steps.map(weight).collect();
    }

    /// A row of tokens and labels with what stands beside them.
    pub fn row(
        &self,
        file: (&File, &Path),
        [sequence, batch]: [u64; 2],
        tokens: &[u32],
        labels: &[i32],
    ) -> Result<(Vec<u32>, Vec<i32>)> {
        let kinds = match &self.kinds {
            // They were held to 32 bits when the file was opened.
            Some(ids) => ids
                .of_row(file, sequence)?
                .iter()
                .map(|k| *k as u32)
                .collect(),
            None => vec![0; tokens.len()],
        };
        let follows = self.follows.as_ref().and_then(|f| f.get(sequence as usize));
        let weight = self.weights.get((sequence / batch) as usize);
        let answer = (*follows.unwrap_or(&IGNORED), *weight.unwrap_or(&0.0));
        Ok(paired(answer, &kinds, tokens, labels))
    }
}
