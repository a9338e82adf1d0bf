//! Megatron's `.idx`, version 1: where each token sequence of a `.bin` begins and how long it is.
//!
//! Little-endian: magic `MMIDIDX\0\0`, `u64` version 1, `u8` dtype code, `u64` sequences S, `u64` document boundaries D,
//! `i32[S]` lengths in tokens, `i64[S]` byte pointers into the `.bin`, `i64[D]` document boundaries in sequences
//! (from 0 to S). Nothing follows. Every field is held against the file lengths before anything is allocated, and
//! against its neighbours before anything is believed.

use crate::error::{DataError, Result};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
const HEADER: u64 = 9 + 8 + 1 + 8 + 8;
const FIX: &str =
    "make the dataset again, or delete it if it lies in the cache (it will be rebuilt)";

/// Integer type of the tokens of a `.bin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenType {
    /// Code 1.
    U8,
    /// Code 8: vocabularies below 65,500.
    U16,
    /// Code 3.
    I16,
    /// Code 4: larger vocabularies.
    I32,
    /// Code 5.
    I64,
}

impl TokenType {
    /// The type Megatron writes for a vocabulary of this size.
    pub fn for_vocab(vocab: usize) -> Self {
        if vocab < 65_500 {
            TokenType::U16
        } else {
            TokenType::I32
        }
    }

    /// Bytes of a token.
    pub fn size(self) -> u64 {
        match self {
            TokenType::U8 => 1,
            TokenType::U16 | TokenType::I16 => 2,
            TokenType::I32 => 4,
            TokenType::I64 => 8,
        }
    }

    fn code(self) -> u8 {
        match self {
            TokenType::U8 => 1,
            TokenType::I16 => 3,
            TokenType::I32 => 4,
            TokenType::I64 => 5,
            TokenType::U16 => 8,
        }
    }

    fn from_code(code: u8) -> std::result::Result<Self, String> {
        let all = [
            TokenType::U8,
            TokenType::U16,
            TokenType::I16,
            TokenType::I32,
            TokenType::I64,
        ];
        all.into_iter()
            .find(|t| t.code() == code)
            .ok_or_else(|| match code {
                2 | 6 | 7 => format!("dtype code {code} is not a type for token ids"),
                _ => format!("unknown dtype code {code}"),
            })
    }

    /// The id in the first [`TokenType::size`] bytes of `bytes`.
    pub(crate) fn decode(self, bytes: &[u8]) -> i64 {
        match (self, bytes) {
            (TokenType::U8, [a, ..]) => i64::from(*a),
            (TokenType::U16, [a, b, ..]) => i64::from(u16::from_le_bytes([*a, *b])),
            (TokenType::I16, [a, b, ..]) => i64::from(i16::from_le_bytes([*a, *b])),
            (TokenType::I32, [a, b, c, d, ..]) => i64::from(i32::from_le_bytes([*a, *b, *c, *d])),
            (TokenType::I64, [a, b, c, d, e, f, g, h, ..]) => {
                i64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, *h])
            }
            _ => -1,
        }
    }
}

/// Contents of an `.idx`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Index {
    pub(crate) tokens: TokenType,
    /// Tokens of each sequence.
    pub(crate) lengths: Vec<u32>,
    /// First byte of each sequence in the `.bin`.
    pub(crate) pointers: Vec<u64>,
    /// Sequence at which each document begins, and the number of sequences.
    pub(crate) documents: Vec<u64>,
}

impl Index {
    /// The index of a `.bin` whose sequences follow each other and are one document each.
    pub(crate) fn of_documents(tokens: TokenType, lengths: Vec<u32>) -> Self {
        let mut end = 0;
        let pointers = lengths.iter().map(|&n| {
            let start = end;
            end += u64::from(n) * tokens.size();
            start
        });
        Self {
            tokens,
            pointers: pointers.collect(),
            documents: (0..=lengths.len() as u64).collect(),
            lengths,
        }
    }

    /// The file's bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(
            HEADER as usize + self.lengths.len() * 12 + self.documents.len() * 8,
        );
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&1u64.to_le_bytes());
        out.push(self.tokens.code());
        out.extend_from_slice(&(self.lengths.len() as u64).to_le_bytes());
        out.extend_from_slice(&(self.documents.len() as u64).to_le_bytes());
        self.lengths
            .iter()
            .for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
        self.pointers
            .iter()
            .for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
        self.documents
            .iter()
            .for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
        out
    }

    /// Parses and checks `bytes`, the whole of `path`, against a `.bin` of `bin_len` bytes at `bin`.
    pub(crate) fn parse(bytes: &[u8], path: &Path, bin: &Path, bin_len: u64) -> Result<Self> {
        let file = Cursor { bytes, path };
        let len = bytes.len() as u64;
        if len < HEADER {
            return Err(file.bad(
                len,
                format!("{len} bytes, shorter than the {HEADER}-byte header"),
            ));
        }
        if !bytes.starts_with(MAGIC) {
            return Err(file.bad(
                0,
                "the magic is not MMIDIDX; this is no Megatron index".to_string(),
            ));
        }
        let version = file.u64(9);
        if version != 1 {
            return Err(file.bad(9, format!("version {version}, but only version 1 is known")));
        }
        let tokens = TokenType::from_code(bytes[17]).map_err(|reason| file.bad(17, reason))?;
        let (sequences, boundaries) = (file.u64(18), file.u64(26));
        let expected = sequences
            .checked_mul(12)
            .and_then(|n| boundaries.checked_mul(8).and_then(|m| n.checked_add(m)))
            .and_then(|n| n.checked_add(HEADER));
        match expected {
            Some(expected) if expected == len => {}
            Some(expected) if len > expected && len - expected == sequences => {
                return Err(file.bad(
                    expected,
                    "it has a mode per sequence: multimodal datasets are not text".into(),
                ));
            }
            _ => {
                let wish = expected.map_or("more than any file has".to_string(), |n| n.to_string());
                let reason = format!(
                    "{sequences} sequences and {boundaries} boundaries need {wish} bytes, the file has {len}"
                );
                return Err(file.bad(18, reason));
            }
        }
        let index = file.arrays(tokens, sequences as usize, boundaries as usize)?;
        let end = index.bytes();
        if end != bin_len {
            return Err(DataError::Corrupt {
                path: bin.into(),
                offset: bin_len.min(end),
                reason: format!(
                    "the file has {bin_len} bytes, but {} describes {end}",
                    path.display()
                ),
                fix: FIX.into(),
            });
        }
        Ok(index)
    }

    /// Bytes of the `.bin` this describes.
    fn bytes(&self) -> u64 {
        self.lengths.iter().map(|&n| u64::from(n)).sum::<u64>() * self.tokens.size()
    }
}

/// The bytes of an index, whose length has been checked before fields are read.
struct Cursor<'a> {
    bytes: &'a [u8],
    path: &'a Path,
}

impl Cursor<'_> {
    fn u64(&self, at: usize) -> u64 {
        self.bytes[at..]
            .first_chunk()
            .map_or(0, |b| u64::from_le_bytes(*b))
    }

    fn bad(&self, offset: u64, reason: String) -> DataError {
        DataError::Corrupt {
            path: PathBuf::from(self.path),
            offset,
            reason,
            fix: FIX.into(),
        }
    }

    fn arrays(&self, tokens: TokenType, sequences: usize, boundaries: usize) -> Result<Index> {
        let lengths_at = HEADER as usize;
        let pointers_at = lengths_at + 4 * sequences;
        let documents_at = pointers_at + 8 * sequences;
        let (mut lengths, mut pointers) =
            (Vec::with_capacity(sequences), Vec::with_capacity(sequences));
        let mut end = 0u64;
        for i in 0..sequences {
            let at = lengths_at + 4 * i;
            let length = self.bytes[at..]
                .first_chunk()
                .map_or(-1, |b| i32::from_le_bytes(*b));
            let Ok(length) = u32::try_from(length) else {
                return Err(self.bad(at as u64, format!("sequence {i} has length {length}")));
            };
            let at = pointers_at + 8 * i;
            let pointer = self.u64(at);
            // Writers of this format lay sequences end to end, so any other pointer is damage.
            if pointer != end {
                let reason = format!(
                    "sequence {i} points to byte {}, but {end} bytes precede it",
                    pointer as i64
                );
                return Err(self.bad(at as u64, reason));
            }
            lengths.push(length);
            pointers.push(pointer);
            // At most 2^61 sequences of less than 2^31 tokens would be needed to overflow; the file cannot hold them.
            end += u64::from(length) * tokens.size();
        }
        let documents: Vec<u64> = (0..boundaries)
            .map(|i| self.u64(documents_at + 8 * i))
            .collect();
        if documents.first() != Some(&0) || documents.last() != Some(&(sequences as u64)) {
            let reason = format!("document boundaries must run from 0 to {sequences}");
            return Err(self.bad(documents_at as u64, reason));
        }
        if let Some(i) = documents.windows(2).position(|w| w[0] > w[1]) {
            let at = (documents_at + 8 * (i + 1)) as u64;
            return Err(self.bad(
                at,
                format!("document boundary {} is below the one before it", i + 1),
            ));
        }
        Ok(Index {
            tokens,
            lengths,
            pointers,
            documents,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(bytes: &[u8], bin_len: u64) -> Result<Index> {
        Index::parse(bytes, Path::new("x.idx"), Path::new("x.bin"), bin_len)
    }

    #[test]
    fn the_bytes_are_megatrons() {
        let index = Index::of_documents(TokenType::U16, vec![3, 2, 1]);
        let mut golden =
            b"MMIDIDX\0\0\x01\0\0\0\0\0\0\0\x08\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0".to_vec();
        for n in [3i32, 2, 1] {
            golden.extend(n.to_le_bytes());
        }
        for n in [0i64, 6, 10, 0, 1, 2, 3] {
            golden.extend(n.to_le_bytes());
        }
        assert_eq!(golden.len(), 102);
        assert_eq!(index.to_bytes(), golden);
        assert_eq!(parse(&golden, 12).unwrap(), index);
    }

    #[test]
    fn damage_is_named_with_its_place() {
        let good = Index::of_documents(TokenType::U16, vec![3, 2, 1]).to_bytes();
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            parse(&bytes, 12).unwrap_err().to_string()
        };
        for (error, place, word) in [
            (with(0, b'X'), "byte 0:", "magic"),
            (with(9, 2), "byte 9:", "version 2"),
            (with(17, 7), "byte 17:", "not a type for token ids"),
            (with(17, 99), "byte 17:", "unknown dtype"),
            (with(25, 0xff), "byte 18:", "sequences"),
            (with(33, 0x80), "byte 18:", "more than any file has"),
            (with(37, 0x80), "byte 34:", "length -"),
            (with(54, 7), "byte 54:", "points to byte 7"),
            (with(70, 1), "byte 70:", "run from 0"),
            (with(78, 3), "byte 86:", "below"),
            (
                parse(&good[..20], 12).unwrap_err().to_string(),
                "byte 20:",
                "header",
            ),
            (
                parse(&good[..101], 12).unwrap_err().to_string(),
                "byte 18:",
                "the file has 101",
            ),
        ] {
            assert!(
                error.contains("x.idx") && error.contains(place) && error.contains(word),
                "{error}"
            );
        }
        let error = parse(&good, 11).unwrap_err().to_string();
        assert!(
            error.contains("x.bin") && error.contains("has 11 bytes") && error.contains("fix:"),
            "{error}"
        );
        let mut modes = good.clone();
        modes.extend([0; 3]);
        assert!(
            parse(&modes, 12)
                .unwrap_err()
                .to_string()
                .contains("multimodal")
        );
    }

    #[test]
    fn ids_of_every_type_are_read() {
        assert_eq!(TokenType::U8.decode(&[200]), 200);
        assert_eq!(TokenType::U16.decode(&[0xff, 0xff]), 65_535);
        assert_eq!(TokenType::I16.decode(&[0xff, 0xff]), -1);
        assert_eq!(TokenType::I32.decode(&70_000i32.to_le_bytes()), 70_000);
        assert_eq!(TokenType::I64.decode(&(-3i64).to_le_bytes()), -3);
        assert_eq!(TokenType::for_vocab(65_499), TokenType::U16);
        assert_eq!(TokenType::for_vocab(65_500), TokenType::I32);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn random_damage_never_panics(cut in 0usize..103, flips in prop::collection::vec((0usize..102, any::<u8>()), 0..6)) {
            let mut bytes = Index::of_documents(TokenType::U16, vec![3, 2, 1]).to_bytes();
            for (at, byte) in flips {
                bytes[at] = byte;
            }
            bytes.truncate(cut);
            if let Ok(index) = parse(&bytes, 12) {
                // What is accepted describes exactly the file it came from.
                prop_assert_eq!(index.bytes(), 12);
                prop_assert_eq!(index.to_bytes(), bytes);
            }
        }
    }
}
