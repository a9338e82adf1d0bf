//! Which pieces of a dataset are for training and which are held back.
//!
//! A view is a list of pieces of sequences, so that a corpus that is one long document can be split too.

use crate::error::{DataError, Result};
use crate::indexed::IndexedDataset;
use crate::rng::{Rng, Tag};
use crate::spec::Validation;

/// The choice of validation documents must not follow the run's seed: runs that differ in seed alone are compared on it.
const SPLIT_SEED: u64 = 0;

/// Consecutive tokens of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Piece {
    pub(crate) sequence: u32,
    pub(crate) start: u32,
    pub(crate) len: u32,
}

/// A part of a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) tokens: u64,
}

impl View {
    fn of(pieces: Vec<Piece>) -> Self {
        Self {
            tokens: pieces.iter().map(|p| u64::from(p.len)).sum(),
            pieces,
        }
    }

    /// Everything.
    pub(crate) fn whole(set: &IndexedDataset) -> Result<Self> {
        Ok(Self::of(pieces(set)?))
    }
}

fn pieces(set: &IndexedDataset) -> Result<Vec<Piece>> {
    let count = u32::try_from(set.sequences()).map_err(|_| {
        let reason = format!(
            "{} holds {} sequences, more than 2^32",
            set.idx_path().display(),
            set.sequences()
        );
        DataError::setting(
            "data.train",
            reason,
            "join short documents, or split the dataset",
        )
    })?;
    let piece = |sequence: u32| {
        Some(Piece {
            sequence,
            start: 0,
            len: set.length(sequence as usize)?,
        })
    };
    Ok((0..count).filter_map(piece).collect())
}

/// The training view, and the validation view if `validation` asks for one of the same dataset. `whole`: no document may be cut, as
/// each is an example.
pub(crate) fn split(
    set: &IndexedDataset,
    validation: &Validation,
    whole: bool,
) -> Result<(View, Option<View>)> {
    match validation {
        Validation::None | Validation::Source(_) => Ok((View::whole(set)?, None)),
        Validation::Fraction(f) if *f == 0.0 => Ok((View::whole(set)?, None)),
        Validation::Fraction(f) if f.is_finite() && *f > 0.0 && *f < 1.0 => match whole {
            true => examples_by_fraction(set, *f),
            false => by_fraction(set, *f),
        },
        Validation::Fraction(f) => Err(DataError::setting(
            "data.validation_fraction",
            format!("{f} is no share"),
            "choose a number from 0 up to 1",
        )),
        Validation::Split(text) => by_split(set, text),
    }
}

/// Takes whole documents in random order until the share is reached; the last one gives its tail only.
fn by_fraction(set: &IndexedDataset, fraction: f64) -> Result<(View, Option<View>)> {
    let all = pieces(set)?;
    let mut wanted = (set.tokens() as f64 * fraction).round() as u64;
    let mut order: Vec<usize> = (0..all.len()).collect();
    Rng::new(SPLIT_SEED, Tag::Split, 0).shuffle(&mut order);
    let mut taken = vec![0u32; all.len()];
    for i in order {
        let take = u64::from(all[i].len).min(wanted) as u32;
        taken[i] = take;
        wanted -= u64::from(take);
        if wanted == 0 {
            break;
        }
    }
    let (mut train, mut valid) = (Vec::new(), Vec::new());
    for (piece, take) in all.into_iter().zip(taken) {
        let keep = piece.len - take;
        if keep > 0 {
            train.push(Piece { len: keep, ..piece });
        }
        if take > 0 {
            valid.push(Piece {
                start: piece.start + keep,
                len: take,
                ..piece
            });
        }
    }
    Ok((View::of(train), Some(View::of(valid))))
}

/// Takes whole examples in random order, as near to the share of all of them as whole ones go, and at least one.
fn examples_by_fraction(set: &IndexedDataset, fraction: f64) -> Result<(View, Option<View>)> {
    let all = pieces(set)?;
    if all.len() < 2 {
        let reason = format!("{} example cannot be divided", all.len());
        let fix = "set it to 0, or name examples to validate on as data.validation";
        return Err(DataError::setting("data.validation_fraction", reason, fix));
    }
    let wanted = ((all.len() as f64 * fraction).round() as usize).clamp(1, all.len() - 1);
    let mut order: Vec<usize> = (0..all.len()).collect();
    Rng::new(SPLIT_SEED, Tag::Split, 0).shuffle(&mut order);
    let mut held = vec![false; all.len()];
    order[..wanted].iter().for_each(|i| held[*i] = true);
    let part = |held_back: bool| {
        let of = all.iter().zip(&held).filter(|(_, h)| **h == held_back);
        View::of(of.map(|(p, _)| *p).collect())
    };
    Ok((part(false), Some(part(true))))
}

/// Megatron's rule: weights to shares, shares to document ranges whose ends are rounded.
fn by_split(set: &IndexedDataset, text: &str) -> Result<(View, Option<View>)> {
    const KEY: &str = "data.split";
    let bad = |reason: String| {
        DataError::setting(
            KEY,
            reason,
            "write up to three weights, for example \"969,30,1\"",
        )
    };
    let weights: Vec<f64> = text
        .split([',', '/'])
        .map(|w| {
            w.trim()
                .parse()
                .ok()
                .filter(|w: &f64| w.is_finite() && *w >= 0.0)
        })
        .collect::<Option<_>>()
        .ok_or_else(|| bad(format!("{text:?} is not a list of weights")))?;
    let sum: f64 = weights.iter().sum();
    if weights.len() > 3 || sum <= 0.0 {
        return Err(bad(format!(
            "{text:?} has {} weights with sum {sum}",
            weights.len()
        )));
    }
    let documents = set.documents();
    let (mut ends, mut so_far) = ([documents; 3], 0.0);
    for (end, weight) in ends.iter_mut().zip(&weights) {
        so_far += weight / sum;
        *end = ((so_far * documents as f64).round() as usize).min(documents);
    }
    let all = pieces(set)?;
    let range = |from: usize, to: usize| {
        let at = |d| set.document_start(d).map_or(all.len(), |s| s as usize);
        View::of(all.get(at(from)..at(to)).unwrap_or_default().to_vec())
    };
    let (train, valid) = (range(0, ends[0]), range(ends[0], ends[1]));
    let wants_validation = weights.get(1).is_some_and(|w| *w > 0.0);
    for (name, view, wanted) in [
        ("training", &train, true),
        ("validation", &valid, wants_validation),
    ] {
        if wanted && view.pieces.is_empty() {
            let reason = format!("{text:?} leaves none of {documents} documents for {name}");
            return Err(DataError::setting(
                KEY,
                reason,
                "change the weights, or use `data.validation_fraction`, which cuts documents",
            ));
        }
    }
    Ok((train, wants_validation.then_some(valid)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index_file::{Index, TokenType};
    use crate::indexed::pair;

    fn set(lengths: &[u32], documents: Option<Vec<u64>>) -> (tempfile::TempDir, IndexedDataset) {
        let dir = tempfile::tempdir().unwrap();
        let (bin, idx) = pair(&dir.path().join("d"));
        let mut index = Index::of_documents(TokenType::U16, lengths.to_vec());
        index.documents = documents.unwrap_or(index.documents);
        std::fs::write(bin, vec![0; 2 * lengths.iter().sum::<u32>() as usize]).unwrap();
        std::fs::write(idx, index.to_bytes()).unwrap();
        let set = IndexedDataset::open(&dir.path().join("d")).unwrap();
        (dir, set)
    }

    #[test]
    fn a_fraction_is_exact_and_disjoint() {
        let lengths: Vec<u32> = (1..=50).collect();
        let (_dir, set) = set(&lengths, None);
        let total = set.tokens();
        for f in [0.01, 0.1, 0.5, 0.99] {
            let (train, valid) = split(&set, &Validation::Fraction(f), false).unwrap();
            let valid = valid.unwrap();
            assert_eq!(valid.tokens, (total as f64 * f).round() as u64);
            assert_eq!(train.tokens + valid.tokens, total);
            let mut all: Vec<Piece> = train.pieces.iter().chain(&valid.pieces).copied().collect();
            all.sort();
            let mut seen = vec![0; lengths.len()];
            for p in all {
                assert_eq!(p.start, seen[p.sequence as usize]);
                seen[p.sequence as usize] += p.len;
            }
            assert_eq!(seen, lengths);
        }
        let whole = split(&set, &Validation::Fraction(0.0), false).unwrap();
        assert_eq!((whole.0.tokens, whole.1), (total, None));
        for f in [-0.1, 1.0, f64::NAN] {
            assert!(
                split(&set, &Validation::Fraction(f), false)
                    .unwrap_err()
                    .to_string()
                    .contains("data.validation_fraction")
            );
        }
    }

    #[test]
    fn one_document_is_cut() {
        let (_dir, set) = set(&[1000], None);
        let (train, valid) = split(&set, &Validation::Fraction(0.1), false).unwrap();
        assert_eq!(
            train.pieces,
            [Piece {
                sequence: 0,
                start: 0,
                len: 900
            }]
        );
        assert_eq!(
            valid.unwrap().pieces,
            [Piece {
                sequence: 0,
                start: 900,
                len: 100
            }]
        );
    }

    #[test]
    fn a_split_is_megatrons() {
        let (_dir, set) = set(&[2; 1000], None);
        let count = |text: &str| {
            let (train, valid) = split(&set, &Validation::Split(text.into()), false).unwrap();
            (
                train.pieces.len(),
                valid.map(|v| (v.pieces[0].sequence, v.pieces.len())),
            )
        };
        assert_eq!(count("969,30,1"), (969, Some((969, 30))));
        assert_eq!(count("9, 1"), (900, Some((900, 100))));
        assert_eq!(count("100,0,0"), (1000, None));
        assert_eq!(count("1"), (1000, None));
        for text in ["", "a,b", "1,-1", "0,0", "1,2,3,4", "1,nan"] {
            let error = split(&set, &Validation::Split(text.into()), false)
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("data.split") && error.contains("969,30,1"),
                "{error}"
            );
        }
    }

    #[test]
    fn documents_of_several_sequences_stay_whole() {
        let (_dir, two) = set(&[1, 2, 3, 4], Some(vec![0, 3, 4]));
        let (train, valid) = split(&two, &Validation::Split("1,1".into()), false).unwrap();
        assert_eq!((train.tokens, valid.unwrap().tokens), (6, 4));
        let (_dir, one) = set(&[5], None);
        let error = split(&one, &Validation::Split("969,30,1".into()), false)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("none of 1 documents for validation")
                && error.contains("validation_fraction"),
            "{error}"
        );
    }
}
