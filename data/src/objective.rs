//! What is to be predicted of a sample: the next token, tokens that are hidden (BERT's masked language modelling), or spans that are cut out
//! (T5's span corruption); and whether one text follows another (BERT's next-sentence prediction). A sample is corrupted when it is read.
//!
//! **Invariant**: what is hidden follows by philox from the seed and the number of the sample alone. That number counts through the epochs,
//! so every epoch hides other tokens, and neither ranks nor a restart change which.

use crate::batches::{IGNORED, Remark, SequenceSource};
use crate::error::{DataError, Result};
use crate::pairs::{Columns, Pair, paired};
use crate::philox::Words;
pub use crate::spec::{Masking, Objective, Pairs, Spans};
use crate::tokenizer::Tokenizer;
use std::sync::Arc;

/// Ids for spans behind a tokenizer's vocabulary that has none, as T5 has.
const SENTINELS: u32 = 100;

/// Tokens of a pair that are of neither text.
const ENDS: usize = 3;

/// An objective whose tokens have ids.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ids(Task);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Task {
    Causal,
    Masked {
        share: f64,
        mask: u32,
        words: u32,
        /// The token before the first text and that behind each, where samples are pairs of texts.
        pairs: Option<[u32; 2]>,
    },
    Spans {
        share: f64,
        mean: f64,
        first: u32,
        least: u32,
        start: u32,
        end: Option<u32>,
    },
}

/// Tokens of each part of a sample.
struct Parts {
    /// Cut out, in so many spans.
    noise: usize,
    spans: usize,
    /// The numbers of tokens that the encoder and the decoder read.
    both: [usize; 2],
}

/// Returns true if a token ends or begins a text of a pair.
fn marks(pairs: Option<[u32; 2]>, at: usize, second: usize, len: usize) -> bool {
    pairs.is_some() && (at == 0 || at + 1 == second || at + 1 == len)
}

impl Objective {
    /// Is a token predicted from those before it?
    pub fn predicts_next(self) -> bool {
        matches!(self, Objective::Causal | Objective::Captions(_))
    }
    /// Finds the ids that the objective needs. `limit`: the model's vocabulary, where it is fixed.
    ///
    /// # Errors
    /// An id outside of it; no tokenizer to choose one.
    pub fn ids(self, tokenizer: Option<&Tokenizer>, limit: Option<usize>) -> Result<Ids> {
        self.task(tokenizer, limit).map(Ids)
    }

    pub(crate) fn task(self, tokenizer: Option<&Tokenizer>, limit: Option<usize>) -> Result<Task> {
        let vocab = tokenizer.map(|t| t.vocab_size() as u32);
        let id = |key: &str, given: Option<u32>, names: &[&str], behind: u32| -> Result<u32> {
            let named = names.iter().find_map(|n| tokenizer?.id_of(n));
            let found = given.or(named).or(vocab.map(|v| v + behind));
            let Some(found) = found else {
                let reason = "the tokenizer is not known, so no token can be chosen";
                return Err(DataError::setting(key, reason, "give the id of a token"));
            };
            match limit.filter(|l| found as usize >= *l) {
                None => Ok(found),
                Some(l) => Err(DataError::setting(
                    key,
                    format!("token {found} is outside the model's vocabulary of {l}"),
                    format!(
                        "give a token below {l}, or raise model.vocab_size to {}",
                        found + 1
                    ),
                )),
            }
        };
        Ok(match self {
            Objective::Causal => Task::Causal,
            Objective::Captions(_) => {
                return Err(DataError::setting(
                    "data.train",
                    "this model reads images, which text does not have",
                    "give batches with pixel_values by data.tokens",
                ));
            }
            Objective::MaskedLm(m) => {
                let mask = id("data.mask_id", m.mask, &["[MASK]", "<mask>"], 0)?;
                let ends = |p: Pairs| -> Result<[u32; 2]> {
                    Ok([
                        id("data.cls_id", p.first, &["[CLS]", "<s>"], 1)?,
                        id("data.sep_id", p.end, &["[SEP]", "</s>"], 2)?,
                    ])
                };
                Task::Masked {
                    share: m.share,
                    mask,
                    words: vocab.unwrap_or(mask).max(1),
                    pairs: m.pairs.map(ends).transpose()?,
                }
            }
            Objective::SpanCorruption(s) => {
                let key = "data.sentinel_id";
                let first = id(key, s.first, &["<extra_id_0>"], SENTINELS - 1)?;
                Task::Spans {
                    share: s.share,
                    mean: s.mean,
                    first,
                    least: first.saturating_sub(SENTINELS - 1),
                    start: s.start,
                    end: tokenizer.and_then(Tokenizer::eod),
                }
            }
        })
    }
}

impl Ids {
    /// Ids that a model must have.
    pub fn vocab(&self) -> usize {
        self.0.vocab()
    }
    /// Returns the meaning of the columns of a sample of `len` tokens, where these are not one
    /// text.
    pub fn columns(&self, len: usize) -> Option<Columns> {
        self.0.columns(len)
    }
}

impl Task {
    /// Ids there must be.
    pub(crate) fn vocab(&self) -> usize {
        match self {
            Task::Causal => 0,
            Task::Masked { mask, pairs, .. } => {
                let ends = pairs.iter().flatten();
                ends.fold(*mask, |most, id| most.max(*id)) as usize + 1
            }
            Task::Spans { first, start, .. } => (*first).max(*start) as usize + 1,
        }
    }

    /// Returns the meaning of the columns of a sample of `len` tokens, where these are not one
    /// text.
    pub(crate) fn columns(&self, len: usize) -> Option<Columns> {
        match self {
            Task::Spans { .. } => Some(Columns::Both(self.parts(len).both)),
            Task::Masked { pairs: Some(_), .. } => Some(Columns::Pair(Pair {
                tokens: len,
                kinds: 2,
                labelled: true,
            })),
            _ => None,
        }
    }

    fn parts(&self, len: usize) -> Parts {
        match *self {
            Task::Causal => Parts {
                noise: 0,
                spans: 0,
                both: [len, 0],
            },
            Task::Masked { share, pairs, .. } => {
                let most = len.saturating_sub(if pairs.is_some() { ENDS } else { 0 });
                let columns = self.columns(len).map_or(len, |c| c.all());
                Parts {
                    noise: ((share * len as f64).round() as usize).clamp(1, most.max(1)),
                    spans: 0,
                    both: [columns, 0],
                }
            }
            Task::Spans {
                share, mean, end, ..
            } => {
                // As T5's random_spans_noise_mask.
                let most = len.saturating_sub(1).max(1);
                let noise = ((share * len as f64).round() as usize).clamp(1, most);
                let spans = ((noise as f64 / mean).round() as usize).max(1);
                let spans = spans.min(noise).min((len - noise).max(1));
                let end = usize::from(end.is_some());
                Parts {
                    noise,
                    spans,
                    both: [len - noise + spans + end, noise + spans + end],
                }
            }
        }
    }

    /// The source with its samples of `len` tokens corrupted. `stream` is one for training and another for validation.
    ///
    /// # Errors
    /// Samples too short to hide something and leave something; more spans than there are tokens to stand for them.
    pub(crate) fn over(
        self,
        inner: Arc<dyn SequenceSource>,
        len: usize,
        seed: u64,
        stream: u64,
    ) -> Result<Arc<dyn SequenceSource>> {
        if self == Task::Causal {
            return Ok(inner);
        }
        let parts = self.parts(len);
        if len < 2 {
            let reason = format!("of a sample of {len} tokens none can be hidden and read");
            return Err(DataError::setting("data.seq_len", reason, "raise it"));
        }
        if let Task::Masked { pairs: Some(_), .. } = self {
            if len < ENDS + 2 {
                let reason =
                    format!("two texts and {ENDS} tokens around them do not fit into {len}");
                return Err(DataError::setting("data.seq_len", reason, "raise it"));
            }
            if inner.sequences() < 2 {
                let reason =
                    "the text is one sample, and what does not follow a text is of another";
                let fix = "give more text, or shorten data.seq_len";
                return Err(DataError::setting("data.next_sentence", reason, fix));
            }
        }
        if let Task::Spans { first, least, .. } = self
            && parts.spans > (first - least) as usize + 1
        {
            let reason = format!(
                "samples of {len} tokens have {} spans, and {} tokens stand for spans",
                parts.spans,
                first - least + 1
            );
            let fix = "shorten the samples, or raise data.mean_noise_span_length";
            return Err(DataError::setting("data.seq_len", reason, fix));
        }
        Ok(Arc::new(Corrupted {
            inner,
            task: self,
            len,
            parts,
            seed,
            stream,
        }))
    }
}

/// A source whose samples are corrupted.
struct Corrupted {
    inner: Arc<dyn SequenceSource>,
    task: Task,
    /// Tokens of a sample.
    len: usize,
    parts: Parts,
    seed: u64,
    stream: u64,
}

/// So many numbers of at least 1 that add up to `total`, each way as likely as another.
fn segments(words: &mut Words, total: usize, n: usize) -> Vec<usize> {
    let mut cuts: Vec<usize> = (1..total).collect();
    words.choose(&mut cuts, n - 1);
    cuts.truncate(n - 1);
    cuts.sort_unstable();
    cuts.push(total);
    let mut from = 0;
    cuts.into_iter()
        .map(|to| to - std::mem::replace(&mut from, to))
        .collect()
}

impl Corrupted {
    /// Makes a pair of texts of a row: where the second begins, and whether it follows the first. Of half of all pairs it does; else it is the
    /// beginning of another sample.
    fn pair(
        &self,
        words: &mut Words,
        sequence: u64,
        row: &mut [u32],
        [first, end]: [u32; 2],
    ) -> Result<(usize, bool)> {
        let text = self.len - ENDS;
        let long = 1 + words.below((text - 1) as u32) as usize;
        let follows = words.below(2) == 0;
        if !follows {
            let all = self.inner.sequences().min(u64::from(u32::MAX)) as u32;
            let drawn = u64::from(words.below(all));
            let mut other = vec![0; self.inner.row_len()];
            self.inner.read(drawn, &mut other)?;
            if other[..self.len] == *row || drawn == sequence {
                // A sample is not its own stranger.
                self.inner.read((drawn + 1) % u64::from(all), &mut other)?;
            }
            row[long..text].copy_from_slice(&other[..text - long]);
        }
        // What is written is behind what is read.
        row.copy_within(long..text, long + 2);
        row.copy_within(..long, 1);
        (row[0], row[long + 1], row[self.len - 1]) = (first, end, end);
        Ok((long + 2, follows))
    }

    /// Inputs and labels of a sample, of the same length.
    fn sample(&self, sequence: u64) -> Result<(Vec<u32>, Vec<i32>)> {
        let mut row = vec![0; self.inner.row_len()];
        self.inner.read(sequence, &mut row)?;
        row.truncate(self.len);
        let mut words = Words::new(self.seed, sequence ^ self.stream << 63);
        Ok(match self.task {
            Task::Causal => (row, vec![]),
            Task::Masked {
                mask,
                words: all,
                pairs,
                ..
            } => {
                let (mut second, mut follows) = (0, true);
                if let Some(ends) = pairs {
                    (second, follows) = self.pair(&mut words, sequence, &mut row, ends)?;
                }
                let mut labels = vec![IGNORED; self.len];
                let places = 0..self.len;
                let mut places: Vec<usize> = places
                    .filter(|at| !marks(pairs, *at, second, self.len))
                    .collect();
                words.choose(&mut places, self.parts.noise);
                for at in places.into_iter().take(self.parts.noise) {
                    // Ids were held to a vocabulary far below 2^31 when they were read.
                    labels[at] = row[at] as i32;
                    match words.below(10) {
                        0..8 => row[at] = mask,
                        8 => row[at] = words.below(all),
                        _ => {}
                    }
                }
                if pairs.is_none() {
                    return Ok((row, labels));
                }
                let kinds: Vec<u32> = (0..self.len).map(|at| u32::from(at >= second)).collect();
                // As many predictions count for each pair.
                let answer = (i32::from(!follows), self.parts.noise as f32);
                paired(answer, &kinds, &row, &labels)
            }
            Task::Spans {
                first, start, end, ..
            } => {
                let Parts { noise, spans, .. } = self.parts;
                let kept = segments(&mut words, self.len - noise, spans);
                let cut = segments(&mut words, noise, spans);
                let (mut read, mut written, mut at) = (vec![], vec![], 0);
                for (i, (keep, cut)) in kept.into_iter().zip(cut).enumerate() {
                    let sentinel = first - i as u32;
                    read.extend(&row[at..at + keep]);
                    read.push(sentinel);
                    written.push(sentinel);
                    written.extend(&row[at + keep..at + keep + cut]);
                    at += keep + cut;
                }
                read.extend(end);
                written.extend(end);
                let written = written.into_iter().map(|t| t as i32).collect();
                decoded(read, written, [start; 2])
            }
        })
    }
}

/// Joins what an encoder reads and a decoder writes to one row: what the encoder reads and, behind
/// it, what the decoder reads; with the labels of both. `begin`: the token that the decoder begins
/// with, and what it reads in place of a label that does not count.
pub fn decoded(read: Vec<u32>, written: Vec<i32>, begin: [u32; 2]) -> (Vec<u32>, Vec<i32>) {
    let [start, fill] = begin;
    let (mut row, mut labels) = (read, vec![]);
    labels.resize(row.len(), IGNORED);
    row.push(start);
    let before = written.iter().take(written.len().saturating_sub(1));
    row.extend(before.map(|t| u32::try_from(*t).unwrap_or(fill)));
    labels.extend(written);
    (row, labels)
}

impl SequenceSource for Corrupted {
    fn row_len(&self) -> usize {
        // One more than there are predictions; nobody looks at the last.
        self.parts.both[0] + self.parts.both[1] + 1
    }

    fn sequences(&self) -> u64 {
        self.inner.sequences()
    }

    fn fixed_batch(&self) -> Option<u64> {
        self.inner.fixed_batch()
    }

    fn read(&self, sequence: u64, out: &mut [u32]) -> Result<()> {
        let (mut row, _) = self.sample(sequence)?;
        row.push(0);
        out.copy_from_slice(&row);
        Ok(())
    }

    fn labelled(&self) -> bool {
        true
    }

    fn labels(&self, sequence: u64, _: &[u32], out: &mut [i32]) -> Result<()> {
        out.copy_from_slice(&self.sample(sequence)?.1);
        Ok(())
    }

    fn counted(&self, _: u64) -> Result<u64> {
        Ok(match self.task {
            Task::Spans { .. } => self.parts.both[1],
            _ => self.parts.noise,
        } as u64)
    }

    fn silence(&self, row: &mut [u32]) {
        if let Some(columns) = self.task.columns(self.len) {
            columns.silence(row);
        }
    }

    fn remarks(&self) -> Vec<Remark> {
        self.inner.remarks()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row `i` counts from `100 i`.
    struct Count;
    impl SequenceSource for Count {
        fn row_len(&self) -> usize {
            41
        }
        fn sequences(&self) -> u64 {
            1000
        }
        fn read(&self, sequence: u64, out: &mut [u32]) -> Result<()> {
            for (i, t) in out.iter_mut().enumerate() {
                *t = 100 * sequence as u32 + i as u32;
            }
            Ok(())
        }
    }

    fn over(task: Task, seed: u64, stream: u64) -> Arc<dyn SequenceSource> {
        task.over(Arc::new(Count), 40, seed, stream).unwrap()
    }

    fn sample(s: &Arc<dyn SequenceSource>, i: u64) -> (Vec<u32>, Vec<i32>) {
        let (mut row, mut labels) = (vec![0; s.row_len()], vec![0; s.row_len() - 1]);
        s.read(i, &mut row).unwrap();
        s.labels(i, &row, &mut labels).unwrap();
        let counted = labels.iter().filter(|l| **l != IGNORED).count() as u64;
        assert_eq!(s.counted(i).unwrap(), counted);
        row.pop();
        (row, labels)
    }

    const MASKED: Task = Task::Masked {
        share: 0.15,
        mask: 1_000_000,
        words: 50,
        pairs: None,
    };

    #[test]
    fn of_fifteen_in_a_hundred_eight_in_ten_are_masked() {
        let s = over(MASKED, 3, 0);
        let (mut masked, mut other, mut same) = (0, 0, 0);
        for i in 0..1000 {
            let (row, labels) = sample(&s, i);
            let mut chosen = 0;
            for (at, (token, label)) in row.iter().zip(labels).enumerate() {
                let plain = 100 * i as u32 + at as u32;
                if label == IGNORED {
                    assert_eq!(*token, plain);
                    continue;
                }
                assert_eq!(label, plain as i32);
                chosen += 1;
                match *token {
                    1_000_000 => masked += 1,
                    t if t == plain => same += 1,
                    t => {
                        assert!(t < 50);
                        other += 1;
                    }
                }
            }
            assert_eq!(chosen, 6);
        }
        assert!((4_680..4_920).contains(&masked), "{masked}");
        assert!((500..700).contains(&other) && (500..700).contains(&same));
    }

    #[test]
    fn of_pairs_half_follow_and_half_are_of_another_sample() {
        let (first, end) = (2_000_000, 2_000_001);
        let pairs = Some([first, end]);
        let Task::Masked {
            share, mask, words, ..
        } = MASKED
        else {
            unreachable!()
        };
        let task = Task::Masked {
            share,
            mask,
            words,
            pairs,
        };
        assert_eq!(task.vocab(), 2_000_002);
        let columns = task.columns(40).unwrap();
        assert_eq!((columns.all(), columns.longest()), (82, 40));
        let s = over(task, 3, 0);
        let (mut following, mut lengths) = (0, std::collections::BTreeSet::new());
        for i in 0..1000 {
            let (row, labels) = sample(&s, i);
            assert_eq!(row.len(), columns.all());
            let (beside, tokens) = row.split_at(42);
            assert!(labels[..42].iter().all(|l| *l == IGNORED));
            let seen = tokens.iter().zip(&labels[42..]);
            let seen = seen.map(|(t, l)| if *l == IGNORED { *t } else { *l as u32 });
            let seen: Vec<u32> = seen.collect();
            assert_eq!(f32::from_bits(beside[1]), 6.0);
            let second = beside[2..].iter().position(|k| *k == 1).unwrap();
            assert!(beside[2 + second..].iter().all(|k| *k == 1));
            // What stands around the texts is not hidden.
            assert_eq!(
                [tokens[0], tokens[second - 1], tokens[39]],
                [first, end, end]
            );
            let long = second - 2;
            lengths.insert(long);
            let plain = |from: u32, n: usize| (from..).take(n).collect::<Vec<_>>();
            assert_eq!(seen[1..=long], plain(100 * i as u32, long));
            let (rest, n) = (&seen[second..39], 37 - long);
            let follows = *rest == plain(100 * i as u32 + long as u32, n);
            assert_eq!(beside[0], u32::from(!follows));
            following += u32::from(follows);
            if !follows {
                let other = rest[0];
                assert!(other % 100 == 0 && other != 100 * i as u32, "{other}");
                assert_eq!(*rest, plain(other, n));
            }
        }
        assert!((440..560).contains(&following), "{following}");
        assert_eq!(lengths.len(), 36);
        let refused = |inner, len| {
            let e = task.over(inner, len, 0, 0).err().unwrap();
            e.to_string()
        };
        assert!(refused(Arc::new(Count), 4).contains("data.seq_len"));
        struct One;
        impl SequenceSource for One {
            fn row_len(&self) -> usize {
                41
            }
            fn sequences(&self) -> u64 {
                1
            }
            fn read(&self, _: u64, out: &mut [u32]) -> Result<()> {
                out.fill(1);
                Ok(())
            }
        }
        assert!(refused(Arc::new(One), 40).contains("data.next_sentence"));
    }

    #[test]
    fn what_is_hidden_follows_from_seed_sample_and_side_alone() {
        let all = |seed, stream| {
            let s = over(MASKED, seed, stream);
            (0..20).map(|i| sample(&s, i)).collect::<Vec<_>>()
        };
        assert_eq!(all(1, 0), all(1, 0));
        assert_ne!(all(1, 0), all(2, 0));
        assert_ne!(all(1, 0), all(1, 1));
    }

    #[test]
    fn what_is_read_and_written_is_the_sample() {
        let task = Task::Spans {
            share: 0.15,
            mean: 3.0,
            first: 900_009,
            least: 900_000,
            start: 7,
            end: Some(1),
        };
        assert_eq!(task.columns(40), Some(Columns::Both([37, 9])));
        let s = over(task, 5, 0);
        let mut places = std::collections::BTreeSet::new();
        // Tokens of row 0 could be the end.
        for i in 1..200 {
            let (row, labels) = sample(&s, i);
            let (read, fed) = row.split_at(37);
            assert!(labels[..37].iter().all(|l| *l == IGNORED));
            let written: Vec<u32> = labels[37..].iter().map(|l| *l as u32).collect();
            assert_eq!((fed[0], &fed[1..]), (7, &written[..8]));
            assert_eq!((read[36], written[8]), (1, 1));
            // Each sentinel of what is read stands for what follows it in what is written.
            let mut whole = vec![];
            for t in &read[..36] {
                match written.iter().position(|w| w == t && *t >= 900_000) {
                    Some(at) => {
                        places.insert(whole.len());
                        let span = written[at + 1..].iter();
                        whole.extend(span.take_while(|w| (100..900_000).contains(*w)));
                    }
                    None => whole.push(*t),
                }
            }
            let plain: Vec<u32> = (0..40).map(|k| 100 * i as u32 + k).collect();
            assert_eq!(whole, plain);
        }
        assert!(places.len() > 20, "{places:?}");
    }

    #[test]
    fn samples_that_need_more_sentinels_than_there_are_are_refused() {
        let task = Task::Spans {
            share: 0.5,
            mean: 1.0,
            first: 9,
            least: 0,
            start: 0,
            end: None,
        };
        let e = task.over(Arc::new(Count), 40, 0, 0).err().unwrap();
        assert!(e.to_string().contains("20 spans"), "{e}");
    }
}
