//! Several sources as one, each with its share of the samples: which source gives the next sample, and the number of that sample within it.
//!
//! The shares are kept by the rule of R. Tijdeman, "The chairman assignment problem" (Discrete Mathematics 32, 1980): after any number
//! of samples no source is a whole sample away from its weight's part of them, however many sources there are. (Megatron's blend takes the
//! source that lags most, for which there is no such proof.) What sample `i` is does not depend on how many samples are asked for, so a
//! longer run begins like a shorter one.

use crate::batches::{Remark, SequenceSource};
use crate::error::{DataError, Result};
use std::sync::Arc;

/// The source of each sample.
#[derive(Debug)]
pub(crate) struct Blend {
    /// Source of each sample.
    source: Vec<u16>,
    /// Number of each sample within its source.
    index: Vec<u32>,
    /// Samples of each source.
    counts: Vec<u64>,
}

/// Weights as parts of one.
pub(crate) fn shares(weights: &[f64]) -> Vec<f64> {
    // Weights may be too large to be added.
    let most = weights.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let sum: f64 = weights.iter().map(|w| w / most).sum();
    weights.iter().map(|w| w / most / sum).collect()
}

impl Blend {
    /// The first `samples` samples. `key` names the mixture in errors.
    ///
    /// # Errors
    /// A weight that is no positive number; more sources or samples than can be numbered.
    pub(crate) fn new(weights: &[f64], samples: u64, key: &str) -> Result<Blend> {
        for (i, w) in weights.iter().enumerate() {
            if !(w.is_finite() && *w > 0.0) {
                return Err(DataError::setting(
                    &format!("{key}[{i}].weight"),
                    format!("{w} is no weight"),
                    "give a number above 0, or remove the source",
                ));
            }
        }
        if weights.is_empty() || weights.len() > usize::from(u16::MAX) {
            let reason = format!("a mixture of {} sources", weights.len());
            return Err(DataError::setting(
                key,
                reason,
                "name at least one source, and at most 65,535",
            ));
        }
        if samples > u64::from(u32::MAX) {
            let reason = format!("{samples} samples of a mixture; 2^32 is the most");
            return Err(DataError::setting(key, reason, "run fewer steps"));
        }
        let mut blend = Blend {
            source: vec![],
            index: vec![],
            counts: vec![0; weights.len()],
        };
        blend.source.reserve_exact(samples as usize);
        blend.index.reserve_exact(samples as usize);
        let all: Vec<usize> = (0..weights.len()).collect();
        blend.draw(&all, weights, samples, None);
        Ok(blend)
    }

    /// All `rows` of each source once: by the weights while every source has some left, then by the weights of those that have.
    ///
    /// # Errors
    /// As [`Blend::new`].
    pub(crate) fn once(weights: &[f64], rows: &[u64], key: &str) -> Result<Blend> {
        let all = rows.iter().fold(0u64, |a, n| a.saturating_add(*n));
        if all > u64::from(u32::MAX) {
            let reason = format!("{all} samples of a mixture; 2^32 is the most");
            return Err(DataError::setting(key, reason, "give fewer files"));
        }
        let mut blend = Blend::new(weights, 0, key)?;
        loop {
            let left = |s: &usize| blend.counts[*s] < rows[*s];
            let sources: Vec<usize> = (0..rows.len()).filter(left).collect();
            if sources.is_empty() {
                return Ok(blend);
            }
            blend.draw(&sources, weights, all, Some(rows));
        }
    }

    /// Adds `samples` samples of some sources by their weights, or fewer where one of them comes to the end of its rows.
    fn draw(&mut self, of: &[usize], weights: &[f64], samples: u64, rows: Option<&[u64]>) {
        let weights: Vec<f64> = of.iter().map(|s| weights[*s]).collect();
        let shares = shares(&weights);
        let mut given = vec![0u64; of.len()];
        // Tijdeman's bound on how far a source may be from its part.
        let slack = 1.0 / (2.0 * (of.len() as f64) - 2.0).max(1.0);
        for n in 1..=samples {
            let lag = |s: usize| shares[s] * n as f64 - given[s] as f64;
            // Of the sources that may be given a sample already, the one that must have it soonest.
            let due = |s: usize| (1.0 - slack - lag(s)) / shares[s];
            let mut next: Option<(f64, usize)> = None;
            for s in 0..shares.len() {
                if lag(s) >= slack && next.is_none_or(|(soonest, _)| due(s) < soonest) {
                    next = Some((due(s), s));
                }
            }
            // One source always may; a rounding could hide it, and then it is the one that lags most.
            let s = next.map_or_else(
                || (0..shares.len()).fold(0, |a, b| if lag(b) > lag(a) { b } else { a }),
                |(_, s)| s,
            );
            given[s] += 1;
            let source = of[s];
            self.source.push(source as u16);
            self.index.push(self.counts[source] as u32);
            self.counts[source] += 1;
            if rows.is_some_and(|rows| self.counts[source] == rows[source]) {
                return;
            }
        }
    }

    /// Samples that each source gives.
    pub(crate) fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Source of a sample, and its number there.
    fn at(&self, sample: u64) -> Option<(usize, u64)> {
        let i = usize::try_from(sample).ok()?;
        Some((
            usize::from(*self.source.get(i)?),
            u64::from(*self.index.get(i)?),
        ))
    }
}

/// The samples of several sources, by their weights.
pub(crate) struct Mixture {
    pub(crate) blend: Blend,
    pub(crate) parts: Vec<Arc<dyn SequenceSource>>,
    /// Each row of every source is a sample once, as in a validation set.
    pub(crate) once: bool,
    /// The keys, names and weights (as parts of one) of the sources, for a report.
    pub(crate) names: Vec<(String, f64)>,
    pub(crate) key: String,
}

impl Mixture {
    fn place(&self, sample: u64) -> Result<(&dyn SequenceSource, u64)> {
        let found = self.blend.at(sample);
        let part = found.and_then(|(s, i)| Some((self.parts.get(s)?, i)));
        let Some((part, i)) = part else {
            return Err(DataError::setting(
                &self.key,
                format!("sample {sample} of the mixture does not exist"),
                "run no more steps than the run was started for",
            ));
        };
        Ok((&**part, i))
    }
}

impl SequenceSource for Mixture {
    fn row_len(&self) -> usize {
        self.parts.first().map_or(0, |p| p.row_len())
    }

    fn sequences(&self) -> u64 {
        self.parts.iter().map(|p| p.sequences()).sum()
    }

    fn read(&self, sequence: u64, out: &mut [u32]) -> Result<()> {
        let (part, i) = self.place(sequence)?;
        part.read(i, out)
    }

    fn labelled(&self) -> bool {
        self.parts.iter().any(|p| p.labelled())
    }

    fn labels(&self, sequence: u64, row: &[u32], out: &mut [i32]) -> Result<()> {
        let (part, i) = self.place(sequence)?;
        part.labels(i, row, out)
    }

    fn packed(&self) -> bool {
        self.parts.iter().any(|p| p.packed())
    }

    fn lengths(&self, sequence: u64, out: &mut [i32]) -> Result<()> {
        let (part, i) = self.place(sequence)?;
        part.lengths(i, out)
    }

    fn padded(&self) -> bool {
        self.parts.iter().any(|p| p.padded())
    }

    fn filled(&self, sequence: u64) -> Result<u64> {
        let (part, i) = self.place(sequence)?;
        part.filled(i)
    }

    fn counted(&self, sequence: u64) -> Result<u64> {
        let (part, i) = self.place(sequence)?;
        part.counted(i)
    }

    fn remarks(&self) -> Vec<Remark> {
        let mut all = vec![];
        let total: u64 = self.blend.counts.iter().sum();
        for (part, ((name, share), count)) in self
            .parts
            .iter()
            .zip(self.names.iter().zip(&self.blend.counts))
        {
            if !self.once {
                let passes = *count as f64 / part.sequences().max(1) as f64;
                all.push(Remark::Note(format!(
                    "{name}: {:.2} % of the samples, {count} of {total}, {passes:.2} epochs",
                    100.0 * share
                )));
            }
            all.extend(part.remarks());
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn order(weights: &[f64], samples: u64) -> Vec<u16> {
        Blend::new(weights, samples, "data.train").unwrap().source
    }

    /// Returns the largest distance of a source from its part.
    fn worst(weights: &[f64], samples: u64) -> f64 {
        let (shares, mut counts) = (shares(weights), vec![0u64; weights.len()]);
        let mut worst = 0f64;
        for (n, s) in order(weights, samples).into_iter().enumerate() {
            counts[usize::from(s)] += 1;
            for (share, count) in shares.iter().zip(&counts) {
                worst = worst.max((share * (n + 1) as f64 - *count as f64).abs());
            }
        }
        worst
    }

    #[test]
    fn every_beginning_follows_the_weights() {
        assert_eq!(order(&[1.0, 1.0], 6), [0, 1, 0, 1, 0, 1]);
        assert_eq!(order(&[3.0], 3), [0, 0, 0]);
        let blend = Blend::new(&[0.7, 0.3], 1000, "k").unwrap();
        assert_eq!(blend.counts(), [700, 300]);
        assert_eq!(blend.at(999).map(|(_, i)| i < 700), Some(true));
        assert_eq!(blend.at(1000), None);
        // Weights of any size are the same shares.
        assert_eq!(order(&[7e300, 3e300], 99), order(&[0.7, 0.3], 99));
        // One heavy source and many light ones.
        let mut uneven: Vec<f64> = (0..40).map(|i| 1.0 / f64::from(i + 1)).collect();
        uneven.push(30.0);
        assert!(worst(&uneven, 20_000) < 1.0);
    }

    #[test]
    fn a_longer_run_begins_like_a_shorter_one() {
        let weights = [5.0, 0.01, 2.5, 2.49];
        assert_eq!(order(&weights, 300), order(&weights, 5000)[..300]);
    }

    #[test]
    fn a_set_gives_each_row_once_and_follows_the_weights_while_it_can() {
        let rows = [3, 40, 0, 7];
        let weights = [3.0, 1.0, 5.0, 1.0];
        let blend = Blend::once(&weights, &rows, "data.validation").unwrap();
        assert_eq!(blend.counts(), rows);
        let mut each = vec![0; 4];
        for (s, i) in (0..50).map(|n| blend.at(n).unwrap()) {
            assert_eq!(i, each[s]);
            each[s] += 1;
        }
        assert_eq!(each, rows);
        // Without the empty source the first runs out when it has given three of five.
        assert_eq!(blend.source[..5].iter().filter(|s| **s == 0).count(), 3);
        assert_eq!(blend.at(50), None);
        assert!(Blend::once(&weights, &[u64::MAX; 4], "k").is_err());
    }

    #[test]
    fn weights_that_are_none_are_named() {
        for (i, bad) in [0.0, -1.0, f64::NAN, f64::INFINITY].into_iter().enumerate() {
            let mut weights = vec![1.0; i + 1];
            weights.push(bad);
            let e = Blend::new(&weights, 9, "data.train")
                .unwrap_err()
                .to_string();
            assert!(e.contains(&format!("data.train[{}].weight", i + 1)), "{e}");
        }
        assert!(Blend::new(&[], 9, "k").is_err());
        assert!(
            Blend::new(&[1.0], 1 << 40, "k")
                .unwrap_err()
                .to_string()
                .contains("2^32")
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]
        #[test]
        fn no_source_is_a_sample_away(weights in prop::collection::vec(1e-4f64..1.0, 1..24)) {
            let off = worst(&weights, 3000);
            prop_assert!(off < 1.0, "{off} with {weights:?}");
        }
    }
}
