//! Batches given as they are: an integer tensor `[steps, B, T]` of a safetensors file, one batch a step, and beside it labels where not
//! every token counts, and images where the model reads some.

use crate::batches::{IGNORED, SequenceSource};
use crate::error::{DataError, Result};
use crate::images::Pixels;
use crate::objective::{Objective, decoded};
use crate::pairs::{self, Columns};
use crate::tensors::{Ids, header_of, tensor};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Token batches in a safetensors file. Row `s * B + b` is batch `b` of step `s`. Of a model that predicts the next token, inputs are a row
/// without its last token, labels a row without its first, of the tokens or of a tensor of their own. Where tokens were hidden, each has its
/// label in its own place; where an encoder reads the tokens, a decoder writes the labels and reads those before.
#[derive(Debug)]
pub struct GivenTokens {
    path: PathBuf,
    file: File,
    tokens: Ids,
    labels: Option<Ids>,
    pixels: Option<Pixels>,
    pairs: Option<pairs::Given>,
    objective: Objective,
    /// Predictions of each row that count, where there are labels.
    counted: Vec<u32>,
    steps: u64,
    batch: u64,
    row: u64,
    vocab: Option<usize>,
}

impl GivenTokens {
    /// Opens tensor `key` of `path`, and beside it the tensor of labels: `labels`, or one of the name `labels` where nothing is said.
    /// Checks every token and label against `vocab`.
    ///
    /// # Errors
    /// A damaged file, a tensor that is missing or not `[steps, B, T]` of integers, a token outside the vocabulary, a step of which
    /// nothing counts.
    pub fn open(
        path: &Path,
        key: &str,
        labels: Option<&str>,
        vocab: Option<usize>,
        objective: Objective,
    ) -> Result<Self> {
        let (file, header, data) = header_of(path)?;
        let (tokens, [steps, batch, row]) = tensor(path, &header, data, key, "data.key")?;
        if steps == 0 || batch == 0 || row < 2 {
            let reason = format!(
                "tensor \"{key}\" of {} has shape [{steps}, {batch}, {row}]",
                path.display()
            );
            return Err(DataError::setting(
                "data.tokens",
                reason,
                "give at least one step, one row and two tokens a row",
            ));
        }
        let found = header.info("labels").map(|_| "labels");
        let decoder = matches!(objective, Objective::SpanCorruption(_));
        let labels = match labels.or(found.filter(|name| *name != key)) {
            None if objective != Objective::Causal => {
                let images = matches!(objective, Objective::Captions(_));
                let reason = format!(
                    "{} has no tensor \"labels\", and {}",
                    path.display(),
                    match images {
                        true => "image tokens are not to be predicted",
                        false => "this model does not predict next tokens",
                    }
                );
                let fix = match decoder {
                    true => "give what the decoder writes, [steps, B, tokens]; -100 does not count",
                    false if images => {
                        "give every token its own label, -100 to those that do not count, image tokens among them"
                    }
                    false => {
                        "give every token that was hidden its label in its own place, -100 to the others"
                    }
                };
                return Err(DataError::setting("data.labels", reason, fix));
            }
            None => None,
            Some(name) => {
                let (ids, shape) = tensor(path, &header, data, name, "data.labels")?;
                let own = decoder && shape[2] > 0;
                if shape[..2] != [steps, batch] || !(own || shape[2] == row) {
                    let reason = format!(
                        "tensor \"{name}\" of {} has shape {shape:?}, and \"{key}\" has [{steps}, {batch}, {row}]",
                        path.display()
                    );
                    let fix = "give every token its own label, as transformers does: -100 where it does not count";
                    return Err(DataError::setting("data.labels", reason, fix));
                }
                Some(ids)
            }
        };
        let pixels = match objective {
            Objective::Captions(images) => {
                let pixels = Pixels::find(path, &header, data, [steps, batch], images)?;
                Some(pixels)
            }
            _ => None,
        };
        let pairs = match objective {
            Objective::MaskedLm(_) => {
                pairs::Given::find((&file, path), &header, data, [steps, batch, row])?
            }
            _ => None,
        };
        let mut this = Self {
            path: path.into(),
            file,
            tokens,
            labels,
            pixels,
            pairs,
            objective,
            counted: vec![],
            steps: steps as u64,
            batch: batch as u64,
            row: row as u64,
            vocab,
        };
        // Found now, a bad token costs nothing; found at its step, it would cost the steps before it.
        let mut out = vec![0; this.row_len()];
        for sequence in 0..this.sequences() {
            this.read(sequence, &mut out)?;
            if let Some(pixels) = &this.pixels {
                let (step, row) = (sequence / this.batch, sequence % this.batch);
                let place = format!("sample {sequence} (step {step}, row {row})");
                pixels.check(path, &place, &out)?;
            }
        }
        this.count()?;
        Ok(this)
    }

    /// Counts what counts, and checks every label on the way.
    fn count(&mut self) -> Result<()> {
        let Some(labels) = &self.labels else {
            return Ok(());
        };
        let mut row = vec![0; self.row_len() - 1];
        let mut all = vec![];
        for sequence in 0..self.sequences() {
            SequenceSource::labels(self, sequence, &[], &mut row)?;
            all.push(row.iter().filter(|l| **l != IGNORED).count() as u32);
        }
        let steps = all.chunks(self.batch as usize);
        if let Some(step) = steps
            .map(|s| s.iter().all(|n| *n == 0))
            .position(|none| none)
        {
            let reason = format!(
                "no label of step {step} in \"{}\" of {} counts{}",
                labels.key,
                self.path.display(),
                match self.objective.predicts_next() {
                    true => " (the first of a row labels nothing)",
                    false => "",
                }
            );
            let fix = "leave the step out, or give it a label that is not -100";
            return Err(DataError::setting("data.labels", reason, fix));
        }
        if let Some(pairs) = &mut self.pairs {
            pairs.weigh(&all, self.batch as usize);
        }
        self.counted = all;
        Ok(())
    }

    /// Name of the tensor of labels.
    pub fn labels_key(&self) -> Option<&str> {
        self.labels.as_ref().map(|ids| ids.key.as_str())
    }

    /// Steps in the file.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Rows of each step, `B`.
    pub fn batch(&self) -> u64 {
        self.batch
    }

    /// Gives the values of a row of `ids` to `eat`, each with its column.
    fn row(
        &self,
        ids: &Ids,
        sequence: u64,
        mut eat: impl FnMut(usize, i64) -> Option<()>,
    ) -> Result<()> {
        let (step, row) = (sequence / self.batch, sequence % self.batch);
        if step >= self.steps {
            return Err(DataError::PastEnd {
                path: self.path.clone(),
                tensor: ids.key.clone(),
                step,
                steps: self.steps,
            });
        }
        let row_of = ids.of_row((&self.file, &self.path), sequence)?;
        for (column, id) in row_of.into_iter().enumerate() {
            eat(column, id).ok_or_else(|| DataError::TokenOutOfRange {
                path: self.path.clone(),
                place: format!("step {step}, row {row}, column {column} of \"{}\"", ids.key),
                token: id,
                vocab: self.vocab.map_or(1 << 32, |v| v as u64),
            })?;
        }
        Ok(())
    }

    /// A value as a token of the vocabulary.
    fn token(&self, id: i64) -> Option<u32> {
        let token = u32::try_from(id).ok();
        token.filter(|&t| self.vocab.is_none_or(|v| (t as usize) < v))
    }
}

impl SequenceSource for GivenTokens {
    fn row_len(&self) -> usize {
        // One more than there are predictions.
        match self.objective {
            Objective::MaskedLm(_) if self.pairs.is_none() => self.row as usize + 1,
            _ => self.columns().map_or(self.row as usize, |c| c.all() + 1),
        }
    }

    fn sequences(&self) -> u64 {
        self.steps * self.batch
    }

    fn fixed_batch(&self) -> Option<u64> {
        Some(self.batch)
    }

    fn read(&self, sequence: u64, out: &mut [u32]) -> Result<()> {
        if let Some(mut both) = self.both(sequence)? {
            both.0.push(0);
            out.copy_from_slice(&both.0);
            return Ok(());
        }
        self.tokens_of(sequence, out)
    }

    fn labelled(&self) -> bool {
        self.labels.is_some()
    }

    fn images(&self, sequence: u64, out: &mut Vec<f32>) -> Result<()> {
        match &self.pixels {
            Some(pixels) => pixels.read(&self.file, &self.path, sequence, out),
            None => Ok(()),
        }
    }

    fn labels(&self, sequence: u64, row: &[u32], out: &mut [i32]) -> Result<()> {
        if let Some(both) = self.both(sequence)? {
            out.copy_from_slice(&both.1);
            return Ok(());
        }
        let Some(labels) = &self.labels else {
            let next = row.iter().skip(1);
            out.iter_mut().zip(next).for_each(|(l, t)| *l = *t as i32);
            return Ok(());
        };
        // Of the next token: a label stands in its own column, and is predicted from the one before.
        let before = usize::from(self.objective.predicts_next());
        self.labels_of(labels, sequence, |column, label| {
            if let Some(to) = column.checked_sub(before).and_then(|i| out.get_mut(i)) {
                *to = label;
            }
        })
    }

    fn silence(&self, row: &mut [u32]) {
        if let Some(columns) = self.columns() {
            columns.silence(row);
        }
    }

    fn counted(&self, sequence: u64) -> Result<u64> {
        let all = self.row - 1;
        Ok(match self.labels {
            Some(_) => self
                .counted
                .get(sequence as usize)
                .map_or(0, |n| u64::from(*n)),
            None => all,
        })
    }
}

impl GivenTokens {
    /// Fills `out` with the tokens of a row, as many as there are.
    fn tokens_of(&self, sequence: u64, out: &mut [u32]) -> Result<()> {
        self.row(&self.tokens, sequence, |column, id| {
            let token = self.token(id)?;
            if let Some(to) = out.get_mut(column) {
                *to = token;
            }
            Some(())
        })
    }

    fn labels_of(
        &self,
        labels: &Ids,
        sequence: u64,
        mut eat: impl FnMut(usize, i32),
    ) -> Result<()> {
        self.row(labels, sequence, |column, id| {
            let label = match id {
                -100 => IGNORED,
                id => self.token(id)? as i32,
            };
            eat(column, label);
            Some(())
        })
    }

    /// A row with its labels in their columns, where it is not one text.
    fn both(&self, sequence: u64) -> Result<Option<(Vec<u32>, Vec<i32>)>> {
        let (Some(_), Some(labels)) = (self.columns(), &self.labels) else {
            return Ok(None);
        };
        let mut read = vec![0; self.tokens.row];
        self.tokens_of(sequence, &mut read)?;
        let mut written = vec![0; labels.row];
        self.labels_of(labels, sequence, |column, label| {
            if let Some(to) = written.get_mut(column) {
                *to = label;
            }
        })?;
        Ok(match (&self.pairs, self.objective) {
            (Some(pairs), _) => {
                let file = (&self.file, self.path.as_path());
                Some(pairs.row(file, [sequence, self.batch], &read, &written)?)
            }
            (_, Objective::SpanCorruption(s)) => Some(decoded(read, written, [s.start, s.fill])),
            _ => None,
        })
    }

    /// Images of a row, where rows have images.
    pub fn images_of_a_row(&self) -> Option<u64> {
        self.pixels.as_ref().map(Pixels::of_a_row)
    }

    /// Returns the meaning of the columns of a row, where these are not one text.
    pub fn columns(&self) -> Option<Columns> {
        match (self.objective, &self.labels, &self.pairs) {
            (Objective::SpanCorruption(_), Some(labels), _) => {
                Some(Columns::Both([self.tokens.row, labels.row]))
            }
            (_, Some(_), Some(pairs)) => Some(Columns::Pair(pairs.what)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batches::{BatchShape, Batches};
    use proptest::prelude::*;
    use safetensors::Dtype;
    use safetensors::tensor::TensorView;
    use std::sync::Arc;

    fn bytes(dtype: Dtype, shape: &[usize], values: &[i64]) -> Vec<u8> {
        let width = dtype.bitsize() / 8;
        let raw: Vec<u8> = values
            .iter()
            .flat_map(|v| v.to_le_bytes()[..width].to_vec())
            .collect();
        let other = [0u8; 4];
        let views = [
            (
                "input_ids",
                TensorView::new(dtype, shape.to_vec(), &raw).unwrap(),
            ),
            (
                "other",
                TensorView::new(Dtype::F32, vec![1], &other).unwrap(),
            ),
        ];
        safetensors::serialize(views, None).unwrap()
    }

    fn open(bytes: &[u8], key: &str, vocab: Option<usize>) -> Result<GivenTokens> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.safetensors");
        std::fs::write(&path, bytes).unwrap();
        GivenTokens::open(&path, key, None, vocab, Objective::Causal)
    }

    #[test]
    fn one_batch_a_step_split_over_ranks() {
        let values: Vec<i64> = (0..2 * 4 * 3).collect();
        for dtype in [Dtype::I64, Dtype::I32, Dtype::U16, Dtype::U8] {
            let given =
                Arc::new(open(&bytes(dtype, &[2, 4, 3], &values), "input_ids", Some(24)).unwrap());
            assert_eq!((given.steps(), given.batch(), given.row_len()), (2, 4, 3));
            let shape = BatchShape {
                global_batch: 4,
                ranks: 2,
                accumulation: 2,
            };
            let batches = Batches::training(given, shape, "data.tokens").unwrap();
            let batch = batches.at_step(1, 1, 0).unwrap();
            assert_eq!(
                (batch.rows, batch.columns, &batch.tokens[..]),
                (1, 3, &[18, 19, 20][..])
            );
            assert_eq!(
                (batch.inputs(), batch.labels()),
                (vec![18, 19], vec![19, 20])
            );
            let error = batches.at_step(2, 0, 0).unwrap_err().to_string();
            assert!(
                error.contains("step 2")
                    && error.contains("2 steps")
                    && error.contains("input_ids"),
                "{error}"
            );
        }
    }

    #[test]
    fn the_batch_must_be_the_files() {
        let given =
            Arc::new(open(&bytes(Dtype::I64, &[1, 4, 2], &[0; 8]), "input_ids", None).unwrap());
        let error = |global_batch, ranks| {
            let shape = BatchShape {
                global_batch,
                ranks,
                accumulation: 1,
            };
            Batches::training(given.clone(), shape, "data.tokens")
                .err()
                .unwrap()
                .to_string()
        };
        assert!(
            error(8, 1).contains("4 rows") && error(8, 1).contains("8"),
            "{}",
            error(8, 1)
        );
        assert!(
            error(8, 8).contains("8 ranks") && error(8, 8).contains("4 sequences"),
            "{}",
            error(8, 8)
        );
    }

    #[test]
    fn bad_tokens_and_tensors_are_placed() {
        let file = bytes(Dtype::I64, &[2, 2, 2], &[0, 1, 2, 3, 4, 5, 6, 7]);
        let error = open(&file, "input_ids", Some(7)).unwrap_err().to_string();
        for part in [
            "t.safetensors",
            "token 7",
            "step 1, row 1, column 1",
            "vocabulary of 7",
            "fix:",
        ] {
            assert!(error.contains(part), "{error}");
        }
        let negative = bytes(Dtype::I32, &[1, 1, 2], &[0, -100]);
        assert!(
            open(&negative, "input_ids", None)
                .unwrap_err()
                .to_string()
                .contains("token -100")
        );
        let error = open(&file, "tokens", None).unwrap_err().to_string();
        assert!(
            error.contains("\"tokens\"") && error.contains("input_ids, other"),
            "{error}"
        );
        assert!(
            open(&file, "other", None)
                .unwrap_err()
                .to_string()
                .contains("shape [1]")
        );
        assert!(open(&bytes(Dtype::I64, &[4, 2], &[0; 8]), "input_ids", None).is_err());
        assert!(open(&bytes(Dtype::I64, &[4, 2, 1], &[0; 8]), "input_ids", None).is_err());
        assert!(open(&bytes(Dtype::I64, &[0, 2, 4], &[]), "input_ids", None).is_err());
        let floats = bytes(Dtype::F32, &[1, 1, 2], &[0, 0]);
        assert!(
            open(&floats, "input_ids", None)
                .unwrap_err()
                .to_string()
                .contains("F32")
        );
    }

    /// Two tensors of I64.
    fn labelled(shape: &[usize], tokens: &[i64], label_shape: &[usize], labels: &[i64]) -> Vec<u8> {
        let raw =
            |values: &[i64]| -> Vec<u8> { values.iter().flat_map(|v| v.to_le_bytes()).collect() };
        let (a, b) = (raw(tokens), raw(labels));
        let view = |shape: &[usize], raw| TensorView::new(Dtype::I64, shape.to_vec(), raw).unwrap();
        let views = [
            ("input_ids", view(shape, &a)),
            ("labels", view(label_shape, &b)),
        ];
        safetensors::serialize(views, None).unwrap()
    }

    #[test]
    fn labels_beside_tokens_say_what_counts() {
        let tokens: Vec<i64> = (0..12).collect();
        let labels = [-100, 1, -100, -100, 4, 9, -100, -100, -100, -100, 10, -100];
        let shape = [2, 2, 3];
        let file = labelled(&shape, &tokens, &shape, &labels);
        let given = Arc::new(open(&file, "input_ids", Some(12)).unwrap());
        assert_eq!(given.labels_key(), Some("labels"));
        let of = BatchShape {
            global_batch: 2,
            ranks: 1,
            accumulation: 1,
        };
        let batches = Batches::training(given, of, "data.tokens").unwrap();
        assert!(batches.labelled());
        let batch = batches.at_step(0, 0, 0).unwrap();
        assert_eq!(batch.inputs(), [0, 1, 3, 4]);
        // The first label of a row labels nothing, and a label need not be the token.
        assert_eq!(batch.labels(), [1, -100, 4, 9]);
        assert_eq!(
            batches.at_step(1, 0, 0).unwrap().labels(),
            [-100, -100, 10, -100]
        );
        assert_eq!(
            (
                batches.counted(0..1).unwrap(),
                batches.counted(0..2).unwrap()
            ),
            (3, 4)
        );
        // Without them every next token counts.
        let plain = bytes(Dtype::I64, &shape, &tokens);
        let plain = Arc::new(open(&plain, "input_ids", None).unwrap());
        let batches = Batches::training(plain, of, "data.tokens").unwrap();
        assert!(!batches.labelled());
        assert_eq!(batches.at_step(0, 0, 0).unwrap().labels(), [1, 2, 4, 5]);

        let refused = |file: &[u8], words: &[&str]| {
            let e = open(file, "input_ids", Some(12)).unwrap_err().to_string();
            assert!(words.iter().all(|w| e.contains(w)), "{e}");
        };
        let other = [12, -100, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];
        refused(
            &labelled(&shape, &tokens, &shape, &other),
            &["token 12", "step 0, row 0, column 0 of \"labels\""],
        );
        let minus = [-1, -100, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];
        refused(&labelled(&shape, &tokens, &shape, &minus), &["token -1"]);
        let silent = [1, 1, 1, 1, 1, 1, 3, -100, -100, 3, -100, -100];
        refused(
            &labelled(&shape, &tokens, &shape, &silent),
            &["data.labels", "no label of step 1"],
        );
        refused(
            &labelled(&shape, &tokens, &[2, 3, 2], &labels),
            &["data.labels", "[2, 3, 2]", "[2, 2, 3]"],
        );
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.safetensors");
        std::fs::write(&path, &file).unwrap();
        let named = GivenTokens::open(&path, "input_ids", Some("lables"), None, Objective::Causal)
            .unwrap_err();
        assert!(named.to_string().contains("data.labels"), "{named}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn damage_is_an_error_and_never_a_panic(cut in 1usize..300, at in 0usize..300, byte: u8) {
            let good = bytes(Dtype::I64, &[2, 2, 3], &[1; 12]);
            let short = &good[..good.len() - 1 - cut % (good.len() - 1)];
            let error = open(short, "input_ids", Some(10)).unwrap_err().to_string();
            prop_assert!(error.contains("t.safetensors") && error.contains("corrupt at byte"), "{}", error);
            let mut flipped = good.clone();
            let at = at % flipped.len();
            flipped[at] = byte;
            if let Ok(given) = open(&flipped, "input_ids", Some(10)) {
                prop_assert_eq!(given.steps() * given.batch() * given.row_len() as u64, 12);
            }
        }
    }
}
