//! A `.bin/.idx` pair on disk: opened only when both files agree, read by position so that ranks may share it.

use crate::atomic::read_at;
use crate::error::{DataError, Result};
use crate::index_file::{Index, TokenType};
use crossweave_files as files;
use std::fs::File;
use std::path::{Path, PathBuf};

/// A Megatron dataset. Tokens stay on disk; lengths and positions are in memory (12 bytes a sequence).
#[derive(Debug)]
pub struct IndexedDataset {
    bin: PathBuf,
    idx: PathBuf,
    file: File,
    index: Index,
    tokens: u64,
}

/// `prefix.bin` and `prefix.idx`; a prefix that already ends in either is taken without it.
pub(crate) fn pair(prefix: &Path) -> (PathBuf, PathBuf) {
    let stem = match prefix.extension().and_then(|e| e.to_str()) {
        Some("bin" | "idx") => prefix.with_extension(""),
        _ => prefix.to_path_buf(),
    };
    let with = |suffix: &str| {
        let mut name = stem.clone().into_os_string();
        name.push(suffix);
        PathBuf::from(name)
    };
    (with(".bin"), with(".idx"))
}

impl IndexedDataset {
    /// Opens `prefix.bin` and `prefix.idx` and checks every field of the index.
    ///
    /// # Errors
    /// A missing, truncated or inconsistent file, named with the byte at which it goes wrong.
    pub fn open(prefix: &Path) -> Result<Self> {
        let (bin, idx) = pair(prefix);
        let bytes =
            files::read(&idx, files::BULK).map_err(DataError::io("read the index", &idx))?;
        let (file, bin_len) = files::open(&bin).map_err(DataError::io("open", &bin))?;
        let index = Index::parse(&bytes, &idx, &bin, bin_len)?;
        let tokens = bin_len / index.tokens.size();
        Ok(Self {
            bin,
            idx,
            file,
            index,
            tokens,
        })
    }

    /// Number of sequences; one a document unless the writer split documents into sentences.
    pub fn sequences(&self) -> usize {
        self.index.lengths.len()
    }

    /// Number of documents.
    pub fn documents(&self) -> usize {
        self.index.documents.len().saturating_sub(1)
    }

    /// Number of tokens.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Integer type on disk.
    pub fn token_type(&self) -> TokenType {
        self.index.tokens
    }

    /// Tokens of sequence `i`; `None` past the end.
    pub fn length(&self, i: usize) -> Option<u32> {
        self.index.lengths.get(i).copied()
    }

    /// Sequence at which document `d` begins; for `d == documents()` the number of sequences.
    pub(crate) fn document_start(&self, d: usize) -> Option<u64> {
        self.index.documents.get(d).copied()
    }

    /// The `.bin` file.
    pub fn bin_path(&self) -> &Path {
        &self.bin
    }

    /// The `.idx` file.
    pub fn idx_path(&self) -> &Path {
        &self.idx
    }

    /// Reads `out.len()` tokens of `sequence` from its token `start` on.
    ///
    /// # Errors
    /// A range outside the sequence, an id outside `0..vocab`, or a file that can no longer be read.
    pub fn read(
        &self,
        sequence: usize,
        start: u32,
        vocab: Option<usize>,
        out: &mut [u32],
    ) -> Result<()> {
        let fits = |n: u32| u64::from(start) + out.len() as u64 <= u64::from(n);
        let (Some(&pointer), true) = (
            self.index.pointers.get(sequence),
            self.length(sequence).is_some_and(fits),
        ) else {
            return Err(DataError::Corrupt {
                path: self.idx.clone(),
                offset: 0,
                reason: format!(
                    "tokens {start}..{} of sequence {sequence} do not exist",
                    start as usize + out.len()
                ),
                fix:
                    "delete the sample index beside it in the cache; it belongs to another dataset"
                        .into(),
            });
        };
        let size = self.index.tokens.size() as usize;
        let mut bytes = vec![0; out.len() * size];
        read_at(
            &self.file,
            &self.bin,
            pointer + u64::from(start) * size as u64,
            &mut bytes,
        )?;
        for (i, (token, raw)) in out.iter_mut().zip(bytes.chunks_exact(size)).enumerate() {
            let id = self.index.tokens.decode(raw);
            *token = match u32::try_from(id) {
                Ok(t) if vocab.is_none_or(|v| (t as usize) < v) => t,
                _ => {
                    return Err(DataError::TokenOutOfRange {
                        path: self.bin.clone(),
                        place: format!("sequence {sequence}, token {}", start as usize + i),
                        token: id,
                        vocab: vocab.map_or(1 << 32, |v| v as u64),
                    });
                }
            };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, bin: &[u8], index: &Index) -> PathBuf {
        let prefix = dir.join("d.v1");
        let (b, i) = pair(&prefix);
        std::fs::write(b, bin).unwrap();
        std::fs::write(i, index.to_bytes()).unwrap();
        prefix
    }

    #[test]
    fn tokens_are_read_by_position() {
        let dir = tempfile::tempdir().unwrap();
        let golden = [1u8, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0];
        let prefix = write(
            dir.path(),
            &golden,
            &Index::of_documents(TokenType::U16, vec![3, 2, 1]),
        );
        for path in [prefix.clone(), pair(&prefix).0, pair(&prefix).1] {
            let set = IndexedDataset::open(&path).unwrap();
            assert_eq!((set.sequences(), set.documents(), set.tokens()), (3, 3, 6));
            let mut two = [0; 2];
            set.read(0, 1, Some(4), &mut two).unwrap();
            assert_eq!(two, [2, 3]);
            set.read(1, 0, None, &mut two).unwrap();
            assert_eq!(two, [4, 5]);
            assert!(set.read(2, 0, None, &mut two).is_err());
            assert!(set.read(3, 0, None, &mut two).is_err());
            assert!(set.read(0, u32::MAX, None, &mut two).is_err());
            let error = set.read(1, 0, Some(5), &mut two).unwrap_err().to_string();
            for part in [
                "d.v1.bin",
                "token 5",
                "sequence 1, token 1",
                "vocabulary of 5",
                "fix:",
            ] {
                assert!(error.contains(part), "{error}");
            }
        }
    }

    #[test]
    fn a_missing_or_short_pair_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let prefix = write(
            dir.path(),
            &[0; 12],
            &Index::of_documents(TokenType::I32, vec![1, 1, 1]),
        );
        let (bin, idx) = pair(&prefix);
        IndexedDataset::open(&prefix).unwrap();
        std::fs::write(&bin, [0; 11]).unwrap();
        let error = IndexedDataset::open(&prefix).unwrap_err().to_string();
        assert!(
            error.contains("d.v1.bin") && error.contains("11 bytes"),
            "{error}"
        );
        std::fs::remove_file(&bin).unwrap();
        assert!(
            IndexedDataset::open(&prefix)
                .unwrap_err()
                .to_string()
                .contains("d.v1.bin")
        );
        std::fs::remove_file(&idx).unwrap();
        assert!(
            IndexedDataset::open(&prefix)
                .unwrap_err()
                .to_string()
                .contains("d.v1.idx")
        );
    }
}
