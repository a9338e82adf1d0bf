//! One safetensors file, trusted only as far as its header was proven against the file's real length.
//!
//! Layout: 8 bytes little-endian header length, the header as JSON, then the tensors' bytes without holes or overlaps.
//! No allocation is ever sized by a number that was not first compared with the length of the file on disk.

use crate::dtype::{Dtype, num_bytes, num_elements, parse_dtype, widen_to_f32};
use crate::error::{CheckpointError, MAX_NAME, Result};
use crate::files::read_at;
use crate::nearest::nearest;
use crossweave_files::clip;
use serde::Deserialize;
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The largest header accepted, as in the reference implementation of the format.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The largest number of tensors accepted in one file, ten times what models of a thousand experts keep in one.
pub const MAX_TENSORS: usize = 100_000;

/// Dims of a tensor; libraries stop at 64 or earlier.
const MAX_DIMS: usize = 64;

const RESTORE: &str = "fetch or export the file again; it is not what its writer wrote";
const CHUNK_BYTES: usize = 1 << 20;

/// Where a tensor lies: its type, its shape and its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Element type as stored.
    pub dtype: Dtype,
    /// Shape, outermost dim first.
    pub shape: Vec<usize>,
    /// The safetensors file that holds it.
    pub file: PathBuf,
    /// Its bytes, counted from the start of the file.
    pub range: Range<u64>,
}

impl TensorInfo {
    /// Number of elements (proven not to overflow when the file was opened).
    pub fn num_elements(&self) -> u64 {
        num_elements(&self.shape).unwrap_or(0)
    }

    /// Number of bytes stored.
    pub fn num_bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Elements in one index of the outermost dim (1 for a scalar).
    pub fn row_elements(&self) -> u64 {
        num_elements(self.shape.get(1..).unwrap_or(&[])).unwrap_or(0)
    }
}

/// An opened safetensors file. Reads are positional, so it may be shared between threads.
#[derive(Debug)]
pub struct SafeFile {
    path: PathBuf,
    file: File,
    len: u64,
    data_start: u64,
    tensors: BTreeMap<String, TensorInfo>,
    metadata: BTreeMap<String, String>,
}

impl SafeFile {
    /// Opens a file and proves its header: lengths, types, shapes, ranges, no overlap, no hole, no name twice.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let (file, len) =
            crossweave_files::open(path).map_err(CheckpointError::io("open", path))?;
        if len < 8 {
            return Err(CheckpointError::header(
                path,
                format!("truncated: {len} bytes, shorter than the 8-byte header length"),
                RESTORE,
            ));
        }
        let mut word = [0; 8];
        read_at(&file, &mut word, 0).map_err(CheckpointError::io("read", path))?;
        let header_len = u64::from_le_bytes(word);
        if header_len > MAX_HEADER_BYTES {
            return Err(CheckpointError::header(
                path,
                format!(
                    "the header claims {header_len} bytes, more than the {MAX_HEADER_BYTES} allowed"
                ),
                "check that this is a safetensors file (a .bin or .pt file must be converted first)",
            ));
        }
        if header_len > len - 8 {
            return Err(CheckpointError::header(
                path,
                format!("truncated: the header claims {header_len} bytes, the file holds {len}"),
                RESTORE,
            ));
        }
        let mut bytes = vec![0; header_len as usize];
        read_at(&file, &mut bytes, 8).map_err(CheckpointError::io("read the header of", path))?;
        let raw: RawHeader = serde_json::from_slice(&bytes).map_err(|e| {
            CheckpointError::header(
                path,
                format!("the header is not a safetensors header: {e}"),
                RESTORE,
            )
        })?;
        let tensors = prove(path, raw.entries, 8 + header_len, len)?;
        Ok(Self {
            path: path.to_path_buf(),
            file,
            len,
            data_start: 8 + header_len,
            tensors,
            metadata: raw.metadata,
        })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's length in bytes when it was opened.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Where the header ends.
    pub(crate) fn data_start(&self) -> u64 {
        self.data_start
    }

    /// Does the file hold no tensor?
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Every tensor by name.
    pub fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    /// The header's `__metadata__`.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// One tensor's place; an error names the nearest name.
    pub fn info(&self, name: &str) -> Result<&TensorInfo> {
        self.tensors
            .get(name)
            .ok_or_else(|| CheckpointError::UnknownTensor {
                path: self.path.clone(),
                tensor: name.to_string(),
                nearest: nearest(name, self.tensors.keys().map(String::as_str)),
            })
    }

    /// All bytes of a tensor, little-endian, row-major.
    pub fn read(&self, name: &str) -> Result<Vec<u8>> {
        let info = self.info(name)?;
        let mut out = vec![0; self.host_len(name, info.num_bytes())?];
        self.read_bytes(info.range.start, &mut out)?;
        Ok(out)
    }

    /// The bytes of flat elements `elements` (row-major order) of a tensor.
    pub fn read_elements(&self, name: &str, elements: Range<u64>) -> Result<Vec<u8>> {
        let bytes = self.byte_range(name, &elements)?;
        let mut out = vec![0; self.host_len(name, bytes.end - bytes.start)?];
        self.read_bytes(bytes.start, &mut out)?;
        Ok(out)
    }

    /// Fills `out` with flat elements of a tensor from `start` on; `out.len()` must be whole elements.
    pub fn read_elements_into(&self, name: &str, start: u64, out: &mut [u8]) -> Result<()> {
        let bits = self.info(name)?.dtype.bitsize() as u64;
        let n = out.len() as u64 * 8 / bits;
        let bytes = self.byte_range(name, &(start..start.saturating_add(n)))?;
        if bytes.end - bytes.start != out.len() as u64 {
            return Err(self.refuse(
                name,
                format!("{} bytes are not whole elements of {bits} bits", out.len()),
            ));
        }
        self.read_bytes(bytes.start, out)
    }

    /// The bytes of rows `rows` (indices of the outermost dim) of a tensor.
    pub fn read_rows(&self, name: &str, rows: Range<usize>) -> Result<Vec<u8>> {
        self.read_elements(name, self.row_range(name, &rows)?)
    }

    /// A float tensor (F32, F16, BF16 or F64) as f32.
    pub fn read_f32(&self, name: &str) -> Result<Vec<f32>> {
        let n = self.info(name)?.num_elements();
        self.read_elements_f32(name, 0..n)
    }

    /// Rows of a float tensor as f32.
    pub fn read_rows_f32(&self, name: &str, rows: Range<usize>) -> Result<Vec<f32>> {
        self.read_elements_f32(name, self.row_range(name, &rows)?)
    }

    /// Flat elements of a float tensor as f32, converted through a buffer of 1 MiB.
    pub fn read_elements_f32(&self, name: &str, elements: Range<u64>) -> Result<Vec<f32>> {
        let dtype = self.info(name)?.dtype;
        let bytes = self.byte_range(name, &elements)?;
        if !crate::dtype::is_readable_float(dtype) {
            return Err(self.refuse(name, format!("{dtype:?} is not a float type read as f32")));
        }
        let mut out =
            Vec::with_capacity(self.host_len(name, (elements.end - elements.start).max(1))?);
        let mut buf = vec![0; CHUNK_BYTES.min((bytes.end - bytes.start) as usize)];
        let mut at = bytes.start;
        while at < bytes.end {
            let n = buf.len().min((bytes.end - at) as usize);
            self.read_bytes(at, &mut buf[..n])?;
            widen_to_f32(dtype, &buf[..n], &mut out);
            at += n as u64;
        }
        Ok(out)
    }

    /// Bytes of the file from `offset` on, whatever they are.
    pub(crate) fn read_bytes(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        read_at(&self.file, out, offset).map_err(CheckpointError::io("read", &self.path))
    }

    fn row_range(&self, name: &str, rows: &Range<usize>) -> Result<Range<u64>> {
        let info = self.info(name)?;
        let num_rows = *info
            .shape
            .first()
            .ok_or_else(|| self.refuse(name, "a scalar has no rows".into()))?;
        if rows.start > rows.end || rows.end > num_rows {
            return Err(self.refuse(
                name,
                format!("rows {}..{} of {num_rows}", rows.start, rows.end),
            ));
        }
        let row = info.row_elements();
        Ok(rows.start as u64 * row..rows.end as u64 * row)
    }

    /// Where flat elements of a tensor lie in the file.
    pub(crate) fn byte_range(&self, name: &str, elements: &Range<u64>) -> Result<Range<u64>> {
        let info = self.info(name)?;
        if elements.start > elements.end || elements.end > info.num_elements() {
            return Err(self.refuse(
                name,
                format!(
                    "elements {}..{} of {}",
                    elements.start,
                    elements.end,
                    info.num_elements()
                ),
            ));
        }
        match (
            num_bytes(info.dtype, elements.start),
            num_bytes(info.dtype, elements.end),
        ) {
            (Some(a), Some(b)) => Ok(info.range.start + a..info.range.start + b),
            _ => Err(self.refuse(
                name,
                format!(
                    "elements {}..{} of {:?} do not start and end on a byte",
                    elements.start, elements.end, info.dtype
                ),
            )),
        }
    }

    fn host_len(&self, name: &str, n: u64) -> Result<usize> {
        usize::try_from(n)
            .map_err(|_| self.refuse(name, "larger than this machine's addresses".into()))
    }

    fn refuse(&self, name: &str, reason: String) -> CheckpointError {
        CheckpointError::tensor(
            &self.path,
            name,
            reason,
            "ask for what the tensor's dtype and shape allow",
        )
    }
}

struct RawHeader {
    entries: Vec<(String, RawTensor)>,
    metadata: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct RawTensor {
    dtype: String,
    #[serde(deserialize_with = "dims")]
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// A shape, read no further than a shape can be.
fn dims<'de, D: serde::Deserializer<'de>>(d: D) -> std::result::Result<Vec<u64>, D::Error> {
    struct V;
    impl<'de> Visitor<'de> for V {
        type Value = Vec<u64>;
        fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
            f.write_str("a list of dims")
        }
        fn visit_seq<A: SeqAccess<'de>>(
            self,
            mut list: A,
        ) -> std::result::Result<Vec<u64>, A::Error> {
            let mut out = Vec::new();
            while let Some(dim) = list.next_element()? {
                if out.len() == MAX_DIMS {
                    return Err(A::Error::custom(format!(
                        "a shape of more than {MAX_DIMS} dims"
                    )));
                }
                out.push(dim);
            }
            Ok(out)
        }
    }
    d.deserialize_seq(V)
}

// A map would silently keep the last of two equal names; the list keeps both, so that they can be refused.
impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = RawHeader;
            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<RawHeader, A::Error> {
                let mut out = RawHeader {
                    entries: Vec::new(),
                    metadata: BTreeMap::new(),
                };
                while let Some(key) = map.next_key::<String>()? {
                    if key == "__metadata__" {
                        out.metadata = map
                            .next_value::<Option<BTreeMap<String, String>>>()?
                            .unwrap_or_default();
                    } else if out.entries.len() == MAX_TENSORS {
                        let e = format!("more than {MAX_TENSORS} tensors");
                        return Err(A::Error::custom(e));
                    } else {
                        let tensor = map.next_value().map_err(|e| {
                            let name = clip(&key, MAX_NAME);
                            A::Error::custom(format!("tensor `{name}`: bad header entry: {e}"))
                        })?;
                        out.entries.push((key, tensor));
                    }
                }
                Ok(out)
            }
        }
        d.deserialize_map(V)
    }
}

fn prove(
    path: &Path,
    entries: Vec<(String, RawTensor)>,
    data_start: u64,
    file_len: u64,
) -> Result<BTreeMap<String, TensorInfo>> {
    let data_len = file_len - data_start;
    let mut tensors = BTreeMap::new();
    for (name, raw) in entries {
        let fail = |reason: String| CheckpointError::tensor(path, &name, reason, RESTORE);
        let dtype = parse_dtype(&raw.dtype)
            .ok_or_else(|| fail(format!("unknown dtype `{}`", clip(&raw.dtype, MAX_NAME))))?;
        let (start, end) = raw.data_offsets;
        let shape: Option<Vec<usize>> = raw.shape.iter().map(|&d| d.try_into().ok()).collect();
        let expected = shape
            .as_deref()
            .and_then(num_elements)
            .and_then(|n| num_bytes(dtype, n))
            .ok_or_else(|| {
                fail(format!(
                    "shape {:?} of {dtype:?} is not a countable number of bytes",
                    raw.shape
                ))
            })?;
        if start > end {
            return Err(fail(format!("offsets {start}..{end} run backwards")));
        }
        if end > data_len {
            return Err(fail(format!(
                "offsets {start}..{end} lie outside the {data_len} bytes of data (truncated file?)"
            )));
        }
        if end - start != expected {
            return Err(fail(format!(
                "offsets {start}..{end} hold {} bytes, but shape {:?} of {dtype:?} needs {expected}",
                end - start,
                raw.shape
            )));
        }
        let info = TensorInfo {
            dtype,
            shape: shape.unwrap_or_default(),
            file: path.to_path_buf(),
            range: data_start + start..data_start + end,
        };
        if tensors.insert(name.clone(), info).is_some() {
            return Err(CheckpointError::tensor(
                path,
                &name,
                "appears twice in the header",
                RESTORE,
            ));
        }
    }
    let mut order: Vec<(&String, &Range<u64>)> =
        tensors.iter().map(|(n, i)| (n, &i.range)).collect();
    order.sort_by_key(|(_, r)| (r.start, r.end));
    let mut at = data_start;
    let mut before = "the header";
    for (name, range) in order {
        if range.start != at {
            let what = if range.start < at {
                "overlaps"
            } else {
                "leaves a hole after"
            };
            return Err(CheckpointError::tensor(
                path,
                name,
                format!(
                    "bytes {}..{} {what} `{before}`, which ends at {at}",
                    range.start, range.end
                ),
                RESTORE,
            ));
        }
        at = range.end;
        before = name;
    }
    if at != file_len {
        return Err(CheckpointError::header(
            path,
            format!("the tensors end at byte {at}, the file at {file_len}"),
            RESTORE,
        ));
    }
    Ok(tensors)
}
