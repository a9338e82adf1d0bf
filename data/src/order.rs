//! The order of a training run as three arrays, as Megatron keeps them: documents, samples in them, and a shuffle.
//!
//! Epochs follow each other as one stream of documents, reordered each epoch; sample `j` is the `seq_len + 1` tokens from
//! `j * seq_len` on, so neighbours share one token and no token is lost between epochs. A sample belongs to the epoch it
//! begins in, and samples are shuffled within their epoch only. Hence what is sample `i` depends on the seed and the
//! corpus, never on how many samples are asked for: a longer run begins with the same batches.

use crate::error::{DataError, Result};
use crate::rng::{Rng, Tag};
use crate::split::View;

/// The order in which samples follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Documents and samples in a random order given by the seed, new in each epoch.
    Shuffled(u64),
    /// As in the corpus; one pass, for validation.
    Sequential,
}

impl Order {
    /// The order of source `i` of a mixture: sources that are equally long are shuffled each in its own way, and the first as alone.
    pub(crate) fn of_source(self, i: u64) -> Order {
        match self {
            Order::Shuffled(seed) => Order::Shuffled(seed ^ i.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
            Order::Sequential => Order::Sequential,
        }
    }
}

/// The arrays' sizes, known before they are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Epochs whose samples are complete.
    pub(crate) epochs: u64,
    /// Entries of the document index: one epoch more than `epochs` when the last sample runs into it.
    pub(crate) documents: u64,
    /// Samples.
    pub(crate) samples: u64,
}

/// The arrays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrays {
    /// Index into the view's pieces.
    pub(crate) documents: Vec<u32>,
    /// Position in `documents` and token within that piece at which each sample begins.
    pub(crate) samples: Vec<[u32; 2]>,
    /// Sample to take at each position of the run.
    pub(crate) shuffle: Vec<u32>,
}

/// First sample that begins in `epoch`.
fn first_sample(epoch: u64, tokens: u64, seq_len: u64) -> u128 {
    (u128::from(epoch) * u128::from(tokens)).div_ceil(u128::from(seq_len))
}

/// Sizes for at least `samples` samples.
pub(crate) fn extent(
    view: &View,
    order: Order,
    seq_len: u64,
    samples: u64,
    key: &str,
) -> Result<Extent> {
    let tokens = view.tokens;
    if seq_len == 0 {
        return Err(DataError::setting(
            "data.seq_len",
            "0 tokens are no sequence",
            "choose at least 1",
        ));
    }
    let needed = seq_len.saturating_add(1);
    if tokens < needed {
        return Err(DataError::TooFewTokens {
            key: key.into(),
            tokens,
            needed,
            seq_len,
        });
    }
    let pieces = view.pieces.len() as u64;
    let (epochs, passes, count) = match order {
        Order::Sequential => (1, 1, u128::from((tokens - 1) / seq_len)),
        Order::Shuffled(_) => {
            let wish = u128::from(samples.max(1));
            // Every epoch begins at least one sample, and `tokens / seq_len` of them on average.
            let mut epochs = ((wish - 1) * u128::from(seq_len) / u128::from(tokens) + 1)
                .min(u128::from(u64::MAX)) as u64;
            while first_sample(epochs, tokens, seq_len) < wish {
                epochs += 1;
            }
            (
                epochs,
                epochs.saturating_add(1),
                first_sample(epochs, tokens, seq_len),
            )
        }
    };
    let documents = u128::from(pieces) * u128::from(passes);
    let limit = u128::from(u32::MAX);
    if count > limit || documents > limit {
        let reason = format!(
            "{samples} samples need {epochs} epochs of {pieces} documents and {count} entries; 2^32 is the most"
        );
        return Err(DataError::setting(
            key,
            reason,
            "run fewer steps, or resume with another seed",
        ));
    }
    Ok(Extent {
        epochs,
        documents: documents as u64,
        samples: count as u64,
    })
}

/// Makes the arrays of an [`Extent`].
pub(crate) fn make(view: &View, order: Order, seq_len: u64, extent: Extent) -> Arrays {
    let pieces = view.pieces.len() as u32;
    let mut documents = Vec::with_capacity(extent.documents as usize);
    for epoch in 0..extent.documents / u64::from(pieces.max(1)) {
        let start = documents.len();
        documents.extend(0..pieces);
        if let Order::Shuffled(seed) = order {
            Rng::new(seed, Tag::Documents, epoch).shuffle(&mut documents[start..]);
        }
    }
    let mut samples = Vec::with_capacity(extent.samples as usize);
    let (mut begin, mut next) = (0u64, 0u64);
    'walk: for (position, &piece) in documents.iter().enumerate() {
        let end = begin + u64::from(view.pieces[piece as usize].len);
        while next < end {
            if samples.len() as u64 == extent.samples {
                break 'walk;
            }
            samples.push([position as u32, (next - begin) as u32]);
            next += seq_len;
        }
        begin = end;
    }
    let mut shuffle: Vec<u32> = (0..extent.samples as u32).collect();
    if let Order::Shuffled(seed) = order {
        for epoch in 0..extent.epochs {
            let at = |e| first_sample(e, view.tokens, seq_len) as usize;
            Rng::new(seed, Tag::Samples, epoch).shuffle(&mut shuffle[at(epoch)..at(epoch + 1)]);
        }
    }
    Arrays {
        documents,
        samples,
        shuffle,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::Piece;

    pub(crate) fn view(lengths: &[u32]) -> View {
        let piece = |(i, &len): (usize, &u32)| Piece {
            sequence: i as u32,
            start: 0,
            len,
        };
        let pieces = lengths.iter().enumerate().map(piece).collect();
        View {
            pieces,
            tokens: lengths.iter().map(|&n| u64::from(n)).sum(),
        }
    }

    fn arrays(lengths: &[u32], order: Order, seq_len: u64, samples: u64) -> (Extent, Arrays) {
        let view = view(lengths);
        let extent = extent(&view, order, seq_len, samples, "data.train").unwrap();
        (extent, make(&view, order, seq_len, extent))
    }

    #[test]
    fn sequential_samples_overlap_by_one_token() {
        let (extent, arrays) = arrays(&[3, 0, 5, 2], Order::Sequential, 3, 99);
        assert_eq!((extent.epochs, extent.samples), (1, 3));
        assert_eq!(arrays.documents, [0, 1, 2, 3]);
        // Samples begin at tokens 0, 3 and 6 of the stream; the last takes tokens 6..10.
        assert_eq!(arrays.samples, [[0, 0], [2, 0], [2, 3]]);
        assert_eq!(arrays.shuffle, [0, 1, 2]);
    }

    #[test]
    fn epochs_reorder_and_lose_nothing() {
        let lengths = [3, 4, 5, 6, 7];
        let (extent, arrays) = arrays(&lengths, Order::Shuffled(1), 4, 20);
        // 25 tokens an epoch: samples begin at 0, 4, 8 ... so epochs hold 7, 6, 6, 6 of them.
        assert_eq!(
            (extent.epochs, extent.samples, extent.documents),
            (4, 25, 25)
        );
        for epoch in arrays.documents.chunks(5) {
            let mut seen = epoch.to_vec();
            seen.sort_unstable();
            assert_eq!(seen, [0, 1, 2, 3, 4]);
        }
        assert_ne!(arrays.documents[..5], arrays.documents[5..10]);
        for (range, first) in [(0..7, 0), (7..13, 7), (13..19, 13), (19..25, 19)] {
            let mut part = arrays.shuffle[range.clone()].to_vec();
            part.sort_unstable();
            assert_eq!(
                part,
                (first..first + range.len() as u32).collect::<Vec<_>>()
            );
        }
        let mut token = 0;
        for [position, offset] in arrays.samples {
            let before: u32 = arrays.documents[..position as usize]
                .iter()
                .map(|&d| lengths[d as usize])
                .sum();
            assert_eq!(before + offset, token);
            token += 4;
        }
    }

    #[test]
    fn a_longer_run_begins_like_a_shorter_one() {
        let lengths: Vec<u32> = (1..40).collect();
        let (short_extent, short) = arrays(&lengths, Order::Shuffled(7), 16, 30);
        let (_, long) = arrays(&lengths, Order::Shuffled(7), 16, 500);
        let n = short_extent.samples as usize;
        assert_eq!(short.shuffle, long.shuffle[..n]);
        assert_eq!(short.samples, long.samples[..n]);
        assert_eq!(short.documents, long.documents[..short.documents.len()]);
        let (_, other) = arrays(&lengths, Order::Shuffled(8), 16, 30);
        assert_ne!(other.shuffle, short.shuffle);
    }

    #[test]
    fn too_little_and_too_much_are_errors() {
        let few = extent(&view(&[3, 2]), Order::Sequential, 5, 1, "data.train")
            .unwrap_err()
            .to_string();
        for part in ["data.train", "5 tokens", "needs 6", "fix:"] {
            assert!(few.contains(part), "{few}");
        }
        assert_eq!(
            extent(&view(&[6]), Order::Sequential, 5, 1, "k")
                .unwrap()
                .samples,
            1
        );
        for samples in [1 << 40, u64::MAX] {
            let many = extent(&view(&[6]), Order::Shuffled(0), 5, samples, "data.train")
                .unwrap_err()
                .to_string();
            assert!(many.contains("2^32"), "{many}");
        }
        assert!(extent(&view(&[6]), Order::Sequential, 0, 1, "k").is_err());
        assert!(extent(&view(&[]), Order::Sequential, u64::MAX, 1, "k").is_err());
    }
}
