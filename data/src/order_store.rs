//! The three order arrays on disk, as `.npy` files beside a description that holds their digests.
//!
//! The description is written last, so where it exists the arrays are whole; on a later start they are loaded, not made.

use crate::atomic::{AtomicFile, write_file};
use crate::cache::hex;
use crate::error::{DataError, Result};
use crate::order::{Arrays, Extent};
use crate::source::read_file;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// Everything the arrays follow from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Description {
    pub(crate) format: String,
    /// Hash of the dataset.
    pub(crate) corpus: String,
    /// Hash of the pieces of it that take part.
    pub(crate) part: String,
    pub(crate) order: String,
    pub(crate) seq_len: u64,
    pub(crate) epochs: u64,
}

/// The description's file: what, and the digests of the arrays' files.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    description: Description,
    sha256: [String; 3],
}

const NAMES: [&str; 3] = ["document_index", "sample_index", "shuffle_index"];
const FIX: &str = "delete the file; it will be made again";

fn file(folder: &Path, description: &Description, name: &str) -> PathBuf {
    let text = serde_json::to_vec(description).unwrap_or_default();
    folder.join(format!(
        "order-{}-{name}",
        &hex(&Sha256::digest(text))[..32]
    ))
}

/// Loads the arrays of `description`, or makes and stores them.
pub(crate) fn load_or_make(
    folder: &Path,
    description: &Description,
    extent: Extent,
    make: impl FnOnce() -> Arrays,
) -> Result<Arrays> {
    let record = file(folder, description, "description.json");
    if record.exists() {
        return load(folder, &record, description, extent);
    }
    let arrays = make();
    let mut sha256 = [const { String::new() }; 3];
    for (i, (values, shape)) in [
        (
            &arrays.documents[..],
            format!("{},", arrays.documents.len()),
        ),
        (
            arrays.samples.as_flattened(),
            format!("{}, 2", arrays.samples.len()),
        ),
        (&arrays.shuffle[..], format!("{},", arrays.shuffle.len())),
    ]
    .into_iter()
    .enumerate()
    {
        let path = file(folder, description, &format!("{}.npy", NAMES[i]));
        let (mut out, mut hasher) = (AtomicFile::create(&path)?, Sha256::new());
        let mut put = |bytes: &[u8]| {
            hasher.update(bytes);
            out.write(bytes)
        };
        put(&header(&shape))?;
        for part in values.chunks(1 << 16) {
            let bytes: Vec<u8> = part.iter().flat_map(|v| v.to_le_bytes()).collect();
            put(&bytes)?;
        }
        sha256[i] = hex(&hasher.finalize());
        out.commit()?;
    }
    let text = serde_json::to_vec_pretty(&Record {
        description: description.clone(),
        sha256,
    });
    write_file(
        &record,
        &text.map_err(|e| DataError::io("write", &record)(e.into()))?,
    )?;
    Ok(arrays)
}

fn load(folder: &Path, record: &Path, description: &Description, extent: Extent) -> Result<Arrays> {
    let corrupt = |path: &Path, offset: u64, reason: String| DataError::Corrupt {
        path: path.into(),
        offset,
        reason,
        fix: FIX.into(),
    };
    let parsed: Record = serde_json::from_slice(&read_file(record)?)
        .map_err(|e| corrupt(record, 0, format!("not a description: {e}")))?;
    if parsed.description != *description {
        return Err(corrupt(record, 0, "it describes another order".into()));
    }
    let read = |i: usize, shape: String, count: u64| {
        let path = file(folder, description, &format!("{}.npy", NAMES[i]));
        let bytes = read_file(&path)?;
        let header = header(&shape);
        let expected = header.len() as u64 + 4 * count;
        if bytes.len() as u64 != expected {
            let reason = format!("the file has {} bytes, not {expected}", bytes.len());
            return Err(corrupt(&path, expected.min(bytes.len() as u64), reason));
        }
        if !bytes.starts_with(&header) || hex(&Sha256::digest(&bytes)) != parsed.sha256[i] {
            return Err(corrupt(
                &path,
                0,
                format!("its digest is not the one in {}", record.display()),
            ));
        }
        let words = bytes[header.len()..].as_chunks::<4>().0.iter();
        Ok(words.map(|b| u32::from_le_bytes(*b)).collect::<Vec<u32>>())
    };
    Ok(Arrays {
        documents: read(0, format!("{},", extent.documents), extent.documents)?,
        samples: read(1, format!("{}, 2", extent.samples), 2 * extent.samples)?
            .as_chunks::<2>()
            .0
            .to_vec(),
        shuffle: read(2, format!("{},", extent.samples), extent.samples)?,
    })
}

/// NumPy's header, version 1.0, for little-endian `u32` in C order; padded so that the data begin at a multiple of 64.
fn header(shape: &str) -> Vec<u8> {
    let mut text = format!("{{'descr': '<u4', 'fortran_order': False, 'shape': ({shape}), }}");
    while !(10 + text.len() + 1).is_multiple_of(64) {
        text.push(' ');
    }
    text.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend_from_slice(&(text.len() as u16).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrays() -> (Description, Extent, Arrays) {
        let description = Description {
            format: "f".into(),
            corpus: "c".into(),
            part: "p".into(),
            order: "o".into(),
            seq_len: 4,
            epochs: 1,
        };
        let extent = Extent {
            epochs: 1,
            documents: 3,
            samples: 2,
        };
        (
            description,
            extent,
            Arrays {
                documents: vec![2, 0, 1],
                samples: vec![[0, 1], [2, 0]],
                shuffle: vec![1, 0],
            },
        )
    }

    #[test]
    fn arrays_are_made_once_and_read_by_numpy() {
        let dir = tempfile::tempdir().unwrap();
        let (description, extent, arrays) = arrays();
        let made = load_or_make(dir.path(), &description, extent, || arrays.clone()).unwrap();
        assert_eq!(made, arrays);
        let never = || -> Arrays { unreachable!("made twice") };
        assert_eq!(
            load_or_make(dir.path(), &description, extent, never).unwrap(),
            arrays
        );
        let bytes = std::fs::read(file(dir.path(), &description, "sample_index.npy")).unwrap();
        assert!(bytes.starts_with(b"\x93NUMPY\x01\x00\x76\x00{'descr': '<u4'"));
        assert_eq!((bytes.len(), bytes[127]), (128 + 16, b'\n'));
        let other = Description {
            seq_len: 5,
            ..description
        };
        assert_ne!(
            file(dir.path(), &other, "x"),
            file(dir.path(), &self::arrays().0, "x")
        );
    }

    #[test]
    fn damage_is_named() {
        for name in [
            "document_index.npy",
            "sample_index.npy",
            "shuffle_index.npy",
            "description.json",
        ] {
            let (description, extent, arrays) = arrays();
            for damage in [
                |b: &mut Vec<u8>| b.truncate(b.len() - 1),
                |b: &mut Vec<u8>| b[20] ^= 1,
                |b: &mut Vec<u8>| b.clear(),
            ] {
                let dir = tempfile::tempdir().unwrap();
                load_or_make(dir.path(), &description, extent, || arrays.clone()).unwrap();
                let path = file(dir.path(), &description, name);
                let mut bytes = std::fs::read(&path).unwrap();
                damage(&mut bytes);
                std::fs::write(&path, bytes).unwrap();
                let error = load_or_make(dir.path(), &description, extent, || arrays.clone())
                    .unwrap_err()
                    .to_string();
                assert!(
                    error.contains(name) && error.contains("delete the file"),
                    "{error}"
                );
            }
        }
    }
}
