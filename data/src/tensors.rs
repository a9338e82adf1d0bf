//! Tensors of integers in a safetensors file: its header, held against the file, and rows of a tensor as they are asked for.

use crate::atomic::read_at;
use crate::error::{DataError, Result};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use std::fs::File;
use std::path::Path;

/// The header is parsed in memory, so a damaged length must not ask for more than any real file has.
const MAX_HEADER: u64 = 100_000_000;
/// No file of batches comes near it, and a parser needs seconds for more.
const MAX_TENSORS: usize = 100_000;

/// A tensor of ids in the file.
#[derive(Debug)]
pub(crate) struct Ids {
    pub key: String,
    /// Its first byte.
    pub data: u64,
    pub dtype: Dtype,
    /// Columns.
    pub row: usize,
}

/// The file, what its header says, and where its data begin.
pub(crate) fn header_of(path: &Path) -> Result<(File, Metadata, u64)> {
    let corrupt = |offset: u64, reason: String| DataError::Corrupt {
        path: path.into(),
        offset,
        reason,
        fix: "write the safetensors file again".into(),
    };
    let (file, len) = crossweave_files::open(path).map_err(DataError::io("open", path))?;
    if len < 8 {
        return Err(corrupt(
            len,
            format!("{len} bytes, too short for a safetensors header"),
        ));
    }
    let mut size = [0; 8];
    read_at(&file, path, 0, &mut size)?;
    let size = u64::from_le_bytes(size);
    if size > MAX_HEADER || size > len - 8 {
        return Err(corrupt(
            0,
            format!("the header claims {size} bytes, the file has {len}"),
        ));
    }
    let mut header = vec![0; size as usize];
    read_at(&file, path, 8, &mut header)?;
    let named = count_of(&header, b"data_offsets");
    if named > MAX_TENSORS {
        return Err(corrupt(
            8,
            format!("the header lists {named} tensors, and {MAX_TENSORS} are the limit"),
        ));
    }
    let header: Metadata =
        serde_json::from_slice(&header).map_err(|e| corrupt(8, format!("bad header: {e}")))?;
    let data = 8 + size;
    let end = data + header.data_len() as u64;
    if end != len {
        return Err(corrupt(
            end.min(len),
            format!("the header describes {end} bytes, the file has {len}"),
        ));
    }
    Ok((file, header, data))
}

/// A tensor of integers with three dimensions. `setting` is the key of the config that names it.
pub(crate) fn tensor(
    path: &Path,
    header: &Metadata,
    data: u64,
    key: &str,
    setting: &str,
) -> Result<(Ids, [usize; 3])> {
    let Some(info) = header.info(key) else {
        let mut names: Vec<String> = header.tensors().into_keys().collect();
        names.sort();
        names.truncate(20);
        let reason = format!("{} has no tensor \"{key}\"", path.display());
        return Err(DataError::setting(
            setting,
            reason,
            format!("name one of: {}", names.join(", ")),
        ));
    };
    let [steps, batch, row] = info.shape[..] else {
        let reason = format!(
            "tensor \"{key}\" of {} has shape {:?}, not [steps, B, T]",
            path.display(),
            info.shape
        );
        return Err(DataError::setting(
            "data.tokens",
            reason,
            "give it three dimensions",
        ));
    };
    if width(info.dtype).is_none() {
        let reason = format!(
            "tensor \"{key}\" of {} is {:?}, not integers",
            path.display(),
            info.dtype
        );
        return Err(DataError::setting(
            "data.tokens",
            reason,
            "write it as I64, I32 or U16",
        ));
    }
    Ok((Ids::of(info, data, key, row), [steps, batch, row]))
}

impl Ids {
    /// A tensor by its entry in a header whose data begin at `data`.
    pub fn of(info: &TensorInfo, data: u64, key: &str, row: usize) -> Ids {
        Ids {
            key: key.into(),
            data: data + info.data_offsets.0 as u64,
            dtype: info.dtype,
            row,
        }
    }

    /// The values of a row.
    pub fn of_row(&self, (file, path): (&File, &Path), sequence: u64) -> Result<Vec<i64>> {
        let width = width(self.dtype).unwrap_or(1);
        let mut bytes = vec![0; self.row * width];
        let at = self.data + sequence * bytes.len() as u64;
        read_at(file, path, at, &mut bytes)?;
        let each = bytes.chunks_exact(width);
        Ok(each.map(|raw| value(self.dtype, raw)).collect())
    }
}

/// Returns the number of times that `word` stands in `text`.
fn count_of(text: &[u8], word: &[u8]) -> usize {
    text.windows(word.len()).filter(|w| *w == word).count()
}

/// Bytes of an integer type.
pub(crate) fn width(dtype: Dtype) -> Option<usize> {
    match dtype {
        Dtype::U8 | Dtype::I8 => Some(1),
        Dtype::U16 | Dtype::I16 => Some(2),
        Dtype::U32 | Dtype::I32 => Some(4),
        Dtype::U64 | Dtype::I64 => Some(8),
        _ => None,
    }
}

/// The value of little-endian `bytes`. A `u64` beyond `i64` saturates: it is no token id either way.
pub(crate) fn value(dtype: Dtype, bytes: &[u8]) -> i64 {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let unsigned = u64::from_le_bytes(wide);
    match dtype {
        Dtype::I8 => i64::from(unsigned as i8),
        Dtype::I16 => i64::from(unsigned as i16),
        Dtype::I32 => i64::from(unsigned as i32),
        Dtype::I64 => unsigned as i64,
        _ => i64::try_from(unsigned).unwrap_or(i64::MAX),
    }
}
