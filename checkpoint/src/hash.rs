//! BLAKE3 of a file with the inner nodes of its tree kept, so that any part of the file is proven without reading the rest.
//!
//! BLAKE3 is a Merkle tree. Cut at a power of two, a file's chunks are whole subtrees: their chaining values are enough to prove
//! a chunk that is read alone, and together they give the file's ordinary BLAKE3 hash (what `b3sum` prints).

use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root,
};
use serde::{Deserialize, Serialize};

/// No chunk is smaller, so that reading a few elements reads at most this much.
const MIN_CHUNK_BYTES: u64 = 1 << 20;
/// No file has more chunks, so that manifests stay small whatever the model.
const MAX_CHUNKS: u64 = 1024;

/// The hash of a file, and what proves its chunks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// BLAKE3 of the file, lower-case hexadecimal.
    pub hash: String,
    /// Bytes of a chunk, a power of two; the last one may be shorter.
    pub chunk_bytes: u64,
    /// Chaining value of each chunk, in hexadecimal. A file of one chunk has none: its hash says all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chunks: Vec<String>,
}

impl Tree {
    /// Holds the numbers against each other and against the file's length: the chunks must give the hash. The error is a reason.
    pub(crate) fn check(&self, bytes: u64) -> Result<(), String> {
        if !self.chunk_bytes.is_power_of_two() || self.chunk_bytes < 1024 {
            return Err(format!(
                "chunks of {} bytes are no power of two",
                self.chunk_bytes
            ));
        }
        // What a chunk proves is read whole: none is larger than the file, or than the smallest there are.
        if self.chunk_bytes / 2 >= bytes.max(MIN_CHUNK_BYTES) {
            return Err(format!(
                "chunks of {} bytes in a file of {bytes}",
                self.chunk_bytes
            ));
        }
        let expected = match num_chunks(bytes, self.chunk_bytes) {
            1 => 0,
            n => n,
        };
        if self.chunks.len() as u64 != expected {
            return Err(format!(
                "{} chunk hashes for {bytes} bytes in chunks of {}",
                self.chunks.len(),
                self.chunk_bytes
            ));
        }
        if expected == 0 {
            return Ok(());
        }
        let values = self
            .chunks
            .iter()
            .map(|c| unhex(c).ok_or_else(|| format!("`{c}` is no hash")))
            .collect::<Result<Vec<_>, _>>()?;
        match root(&values, self.chunk_bytes, bytes) == self.hash {
            true => Ok(()),
            false => Err("its chunk hashes do not give its hash".into()),
        }
    }

    /// Number of chunks of a file of `bytes`; at least one.
    pub(crate) fn num_chunks(&self, bytes: u64) -> u64 {
        num_chunks(bytes, self.chunk_bytes)
    }

    /// Are these the bytes of chunk `index`?
    pub(crate) fn proves(&self, index: u64, bytes: &[u8]) -> bool {
        match self.chunks.get(index as usize) {
            Some(expected) => {
                *expected == hex(&value_of(index * self.chunk_bytes, bytes).finalize_non_root())
            }
            None => index == 0 && blake3::hash(bytes).to_hex().as_str() == self.hash,
        }
    }
}

fn num_chunks(bytes: u64, chunk: u64) -> u64 {
    bytes.div_ceil(chunk).max(1)
}

fn value_of(offset: u64, bytes: &[u8]) -> blake3::Hasher {
    let mut h = blake3::Hasher::new();
    h.set_input_offset(offset).update(bytes);
    h
}

/// The whole file's hash from its chunks' values.
fn root(values: &[ChainingValue], chunk: u64, bytes: u64) -> String {
    let left = left_subtree_len(bytes);
    let (a, b) = values.split_at((left / chunk) as usize);
    let (a, b) = (inner(a, chunk, left), inner(b, chunk, bytes - left));
    merge_subtrees_root(&a, &b, Mode::Hash).to_hex().to_string()
}

fn inner(values: &[ChainingValue], chunk: u64, bytes: u64) -> ChainingValue {
    if let [one] = values {
        return *one;
    }
    let left = left_subtree_len(bytes);
    let (a, b) = values.split_at((left / chunk) as usize);
    merge_subtrees_non_root(
        &inner(a, chunk, left),
        &inner(b, chunk, bytes - left),
        Mode::Hash,
    )
}

/// Hashes a file as it is written. Its length is given in advance, because the size of a chunk follows from it.
pub(crate) struct TreeHasher {
    bytes: u64,
    chunk: u64,
    at: u64,
    current: blake3::Hasher,
    done: Vec<ChainingValue>,
}

impl TreeHasher {
    /// For a file of `bytes`.
    pub(crate) fn new(bytes: u64) -> Self {
        let chunk = bytes
            .div_ceil(MAX_CHUNKS)
            .next_power_of_two()
            .max(MIN_CHUNK_BYTES);
        Self {
            bytes,
            chunk,
            at: 0,
            current: blake3::Hasher::new(),
            done: Vec::new(),
        }
    }

    /// Takes the next bytes.
    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.chunk - self.at % self.chunk;
            let n = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
            self.current.update(&bytes[..n]);
            self.at += n as u64;
            bytes = &bytes[n..];
            // The last chunk stays open: alone in its file it is the root, which is finalised otherwise.
            if self.at.is_multiple_of(self.chunk) && self.at < self.bytes {
                self.close();
                self.current.set_input_offset(self.at);
            }
        }
    }

    fn close(&mut self) {
        self.done.push(self.current.finalize_non_root());
        self.current = blake3::Hasher::new();
    }

    /// The tree; `None` when other than the promised number of bytes came.
    pub(crate) fn finish(mut self) -> Option<Tree> {
        if self.at != self.bytes {
            return None;
        }
        if num_chunks(self.bytes, self.chunk) == 1 {
            return Some(Tree {
                hash: self.current.finalize().to_hex().to_string(),
                chunk_bytes: self.chunk,
                chunks: Vec::new(),
            });
        }
        self.close();
        Some(Tree {
            hash: root(&self.done, self.chunk, self.bytes),
            chunk_bytes: self.chunk,
            chunks: self.done.iter().map(|c| hex(c)).collect(),
        })
    }
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The bytes that `text` spells in hexadecimal, if it spells exactly `N`.
pub(crate) fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut out = [0; N];
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    for (o, pair) in out.iter_mut().zip(text.as_bytes().chunks(2)) {
        *o = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_gives_the_ordinary_hash_and_proves_each_chunk() {
        let mib = 1usize << 20;
        for len in [0, 1, mib - 1, mib, mib + 1, 2 * mib, 5 * mib + 77, 8 * mib] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
            let mut h = TreeHasher::new(len as u64);
            for part in bytes.chunks(100_003) {
                h.update(part);
            }
            let tree = h.finish().unwrap();
            assert_eq!(tree.hash, blake3::hash(&bytes).to_hex().as_str(), "{len}");
            assert_eq!(tree.check(len as u64), Ok(()));
            let n = tree.num_chunks(len as u64);
            assert_eq!(n, (len.div_ceil(mib)).max(1) as u64);
            let chunk = |i: u64| &bytes[i as usize * mib..len.min((i as usize + 1) * mib)];
            for i in 0..n {
                assert!(tree.proves(i, chunk(i)), "{len}: {i}");
                let mut bad = chunk(i).to_vec();
                if let Some(b) = bad.last_mut() {
                    *b ^= 1;
                    assert!(!tree.proves(i, &bad), "{len}: {i}");
                }
                assert!(n == 1 || !tree.proves((i + 1) % n, chunk(i)), "{len}: {i}");
            }
            assert!(!tree.proves(n, &[]));
            let mut bad = tree.clone();
            if let Some(c) = bad.chunks.first_mut() {
                *c = c.chars().rev().collect();
                assert!(bad.check(len as u64).is_err());
            }
            bad.chunks.push("é".repeat(32));
            assert!(bad.check(len as u64).is_err());
        }
        assert!(TreeHasher::new(3).finish().is_none());
    }

    #[test]
    fn a_large_file_has_a_bounded_number_of_chunks() {
        let h = TreeHasher::new(3 << 40);
        assert!(h.chunk.is_power_of_two() && (3u64 << 40).div_ceil(h.chunk) <= MAX_CHUNKS);
    }
}
