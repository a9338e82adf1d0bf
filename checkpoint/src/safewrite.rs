//! Writing a safetensors file as a stream: the header first, then each tensor's bytes as its provider gives them.
//!
//! No more than one provider's chunk is in memory at a time, and the BLAKE3 tree of the file is taken on the way.

use crate::dtype::{Dtype, num_bytes, num_elements};
use crate::error::{CheckpointError, Result};
use crate::hash::{Tree, TreeHasher};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

type Stream<'a> = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()> + 'a>;

/// A tensor to be written: name, type, shape, and a provider that is called once, when its turn comes.
pub struct TensorOut<'a> {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    stream: Stream<'a>,
}

impl std::fmt::Debug for TensorOut<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{} {:?} {:?}", self.name, self.dtype, self.shape)
    }
}

impl<'a> TensorOut<'a> {
    /// A tensor whose bytes (little-endian, row-major) are at hand, borrowed or owned.
    pub fn bytes(
        name: impl Into<String>,
        dtype: Dtype,
        shape: &[usize],
        bytes: impl Into<Cow<'a, [u8]>>,
    ) -> Self {
        let bytes = bytes.into();
        Self::stream(name, dtype, shape, move |out| out.write_all(&bytes))
    }

    /// A tensor whose bytes are produced when its turn comes, in as many writes as wanted. Bytes too few or too many
    /// are an error of the file's writer.
    pub fn stream(
        name: impl Into<String>,
        dtype: Dtype,
        shape: &[usize],
        provide: impl FnOnce(&mut dyn Write) -> io::Result<()> + 'a,
    ) -> Self {
        Self {
            name: name.into(),
            dtype,
            shape: shape.to_vec(),
            stream: Box::new(provide),
        }
    }

    /// An f32 tensor, converted as it is written: to F32, BF16, F16 or F64.
    pub fn from_f32(
        name: impl Into<String>,
        dtype: Dtype,
        shape: &[usize],
        values: impl Into<Cow<'a, [f32]>>,
    ) -> Self {
        let values = values.into();
        Self::stream(name, dtype, shape, move |out| {
            write_f32(out, dtype, &values)
        })
    }

    /// Bytes the tensor takes in a file; an error names what cannot be counted.
    pub fn num_bytes(&self) -> Result<u64> {
        num_elements(&self.shape)
            .and_then(|n| num_bytes(self.dtype, n))
            .ok_or_else(|| {
                CheckpointError::write(
                    &self.name,
                    format!(
                        "shape {:?} of {:?} is not a countable number of bytes",
                        self.shape, self.dtype
                    ),
                    "give a shape whose elements fill whole bytes",
                )
            })
    }
}

/// Writes f32 values as F32, BF16, F16 or F64, for providers of [`TensorOut::stream`].
///
/// # Errors
/// Another type; the writer's.
pub fn write_f32(out: &mut dyn Write, dtype: Dtype, values: &[f32]) -> io::Result<()> {
    for chunk in values.chunks(1 << 16) {
        let bytes: Vec<u8> = match dtype {
            Dtype::F32 => chunk.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Dtype::F64 => chunk
                .iter()
                .flat_map(|&v| f64::from(v).to_le_bytes())
                .collect(),
            Dtype::BF16 => chunk
                .iter()
                .flat_map(|&v| half::bf16::from_f32(v).to_le_bytes())
                .collect(),
            Dtype::F16 => chunk
                .iter()
                .flat_map(|&v| half::f16::from_f32(v).to_le_bytes())
                .collect(),
            other => {
                return Err(io::Error::other(format!("f32 is not written as {other:?}")));
            }
        };
        out.write_all(&bytes)?;
    }
    Ok(())
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Length of the file.
    pub bytes: u64,
    /// Its hash.
    pub tree: Tree,
}

/// Writes a safetensors file and syncs it. Tensors are laid out by decreasing alignment, then by name, as the reference
/// implementation does; providers are called in that order. On failure the file is left partial: write it in a folder
/// that is not yet visible under its name.
pub fn write_safetensors(
    path: &Path,
    mut tensors: Vec<TensorOut<'_>>,
    metadata: &[(&str, &str)],
) -> Result<Written> {
    tensors.sort_by(|a, b| b.dtype.cmp(&a.dtype).then_with(|| a.name.cmp(&b.name)));
    let mut header = Map::new();
    if !metadata.is_empty() {
        let entries = metadata
            .iter()
            .map(|(k, v)| (k.to_string(), Value::from(*v)));
        header.insert("__metadata__".into(), Value::Object(entries.collect()));
    }
    let mut at = 0u64;
    for t in &tensors {
        let end = t
            .num_bytes()?
            .checked_add(at)
            .ok_or_else(|| CheckpointError::write(&t.name, "the file overflows", "use shards"))?;
        let entry = json!({"dtype": t.dtype, "shape": t.shape, "data_offsets": [at, end]});
        if t.name == "__metadata__" || header.insert(t.name.clone(), entry).is_some() {
            return Err(CheckpointError::write(
                &t.name,
                "the name is taken",
                "give every tensor of a file its own name",
            ));
        }
        at = end;
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    // Data starts on a multiple of 8, so that a reader that maps the file has aligned tensors.
    text.resize(text.len().next_multiple_of(8), b' ');

    let total = at
        .checked_add(8 + text.len() as u64)
        .ok_or_else(|| CheckpointError::write("the file", "it overflows", "use shards"))?;
    let file = File::create(path).map_err(CheckpointError::io("create", path))?;
    let mut out = Hashing {
        inner: BufWriter::with_capacity(1 << 20, file),
        hash: TreeHasher::new(total),
        bytes: 0,
    };
    let start = out
        .write_all(&(text.len() as u64).to_le_bytes())
        .and_then(|()| out.write_all(&text));
    start.map_err(CheckpointError::io("write", path))?;
    for t in tensors {
        let expected = t.num_bytes()?;
        let before = out.bytes;
        (t.stream)(&mut out).map_err(CheckpointError::io("write", path))?;
        if out.bytes - before != expected {
            return Err(CheckpointError::write(
                &t.name,
                format!(
                    "its provider wrote {} bytes, {:?} {:?} takes {expected}",
                    out.bytes - before,
                    t.dtype,
                    t.shape
                ),
                "make the provider write exactly the tensor",
            ));
        }
    }
    let Hashing { inner, hash, bytes } = out;
    let file = inner
        .into_inner()
        .map_err(|e| CheckpointError::io("write", path)(e.into_error()))?;
    file.sync_all().map_err(CheckpointError::io("sync", path))?;
    // Each tensor came whole, so the promised length did too.
    let tree = hash.finish().ok_or_else(|| {
        CheckpointError::write("the file", "its length is not its tensors'", "report a bug")
    })?;
    Ok(Written { bytes, tree })
}

/// Bytes that are hashed and handed on at once, so that the second of the two finds them in the cache.
const STRIDE: usize = 256 << 10;

struct Hashing {
    inner: BufWriter<File>,
    hash: TreeHasher,
    bytes: u64,
}

impl Write for Hashing {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(&buf[..buf.len().min(STRIDE)])?;
        self.hash.update(&buf[..n]);
        self.bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
