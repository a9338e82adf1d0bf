//! A Hugging Face model directory: `config.json` and one `model.safetensors` or an index with its shards.

use crate::error::{CheckpointError, Result};
use crate::export::left_aside;
use crate::files::read_json_bytes;
use crate::nearest::nearest;
use crate::safefile::{SafeFile, TensorInfo};
use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Files of a tokenizer, as the releases of transformers have named them.
pub const TOKENIZER_FILES: &[&str] = &[
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
];

/// Those of the named files that are in a folder, with their contents. Each is limited to 256 MiB.
///
/// # Errors
/// A file that is there and cannot be read.
pub fn named_files(dir: &Path, names: &[&str]) -> Result<Vec<(String, Vec<u8>)>> {
    names
        .iter()
        .map(|n| (n, dir.join(n)))
        .filter(|(_, p)| p.is_file())
        .map(|(n, p)| Ok((n.to_string(), read_json_bytes(&p)?)))
        .collect()
}

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// An opened model directory. Every file's header has been proven; tensor bytes are read on demand, by any thread.
#[derive(Debug)]
pub struct HfDir {
    /// The directory.
    pub path: PathBuf,
    /// `config.json` as it stands.
    pub config: Value,
    /// Every tensor of every file, by the file's own name for it.
    pub tensors: BTreeMap<String, TensorInfo>,
    /// Oddities that were tolerated, one sentence each.
    pub notes: Vec<String>,
    files: BTreeMap<PathBuf, SafeFile>,
    /// Tensors that are made of others, which lie one behind the other in them: those, which are no tensors of their own any more.
    stacks: BTreeMap<String, Vec<(String, TensorInfo)>>,
}

impl HfDir {
    /// Opens a directory. `model.safetensors` wins over an index, as in transformers.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        if !path.is_dir() {
            return Err(CheckpointError::NotFound {
                path: path.to_path_buf(),
                reason: "no such model directory".into(),
                fix: match left_aside(path) {
                    Some(old) => format!(
                        "an export was killed while it replaced the model; rename {} back",
                        old.display()
                    ),
                    None => "name a directory with config.json and model.safetensors".into(),
                },
            });
        }
        let config = read_config(&path.join("config.json"))?;
        let mut notes = Vec::new();
        let (single, index) = (path.join(SINGLE), path.join(INDEX));
        let files = if single.exists() {
            if index.exists() {
                notes.push(format!("{INDEX} is ignored: {SINGLE} stands beside it"));
            }
            vec![SafeFile::open(&single)?]
        } else if index.exists() {
            open_shards(path, &index, &mut notes)?
        } else {
            return Err(no_weights(path));
        };
        let tensors = files
            .iter()
            .flat_map(|f| f.tensors().clone())
            .collect::<BTreeMap<_, _>>();
        let files = files
            .into_iter()
            .map(|f| (f.path().to_path_buf(), f))
            .collect();
        Ok(Self {
            path: path.to_path_buf(),
            config,
            tensors,
            notes,
            files,
            stacks: BTreeMap::new(),
        })
    }

    /// From now on `parts` are one tensor of a shape, in which they lie one behind the other.
    ///
    /// # Errors
    /// A part that is not there, or of another type than the first, or of another number of elements.
    pub fn stack(&mut self, name: &str, parts: &[String], shape: Vec<usize>) -> Result<()> {
        let infos = parts.iter().map(|p| self.info(p).cloned());
        let infos = infos.collect::<Result<Vec<TensorInfo>>>()?;
        let Some(first) = infos.first() else {
            return Ok(());
        };
        let each = shape.iter().product::<usize>() as u64 / infos.len() as u64;
        for (part, info) in parts.iter().zip(&infos) {
            if info.dtype != first.dtype || info.num_elements() != each {
                let (found, wanted) = (&info.shape, first.dtype);
                return Err(CheckpointError::tensor(
                    &self.path,
                    part,
                    format!(
                        "{found:?} of {:?}, and a part of `{name}` has {each} elements of {wanted:?}",
                        info.dtype
                    ),
                    "download or export the directory again",
                ));
            }
        }
        let whole = TensorInfo {
            shape,
            range: 0..infos.iter().map(TensorInfo::num_bytes).sum(),
            ..first.clone()
        };
        parts.iter().for_each(|p| _ = self.tensors.remove(p));
        self.tensors.insert(name.to_string(), whole);
        let parts = parts.iter().cloned().zip(infos).collect();
        self.stacks.insert(name.to_string(), parts);
        Ok(())
    }

    /// Elements of a tensor, as runs of tensors of the files.
    fn runs(&self, name: &str, elements: Range<u64>) -> Result<Vec<(&SafeFile, &str, Range<u64>)>> {
        let Some(parts) = self.stacks.get(name) else {
            let own = self.tensors.get_key_value(name);
            let (own, _) = own.ok_or_else(|| self.unknown(name))?;
            return Ok(vec![(self.file_of(name)?, own.as_str(), elements)]);
        };
        let all = self.info(name)?.num_elements();
        if elements.start > elements.end || elements.end > all {
            let reason = format!("elements {elements:?} of {all}");
            let fix = "read what is there";
            return Err(CheckpointError::tensor(&self.path, name, reason, fix));
        }
        let mut from = 0;
        let mut out = vec![];
        for (part, info) in parts {
            let to = from + info.num_elements();
            let here = elements.start.max(from)..elements.end.min(to);
            if here.start < here.end {
                let file = self
                    .files
                    .get(&info.file)
                    .ok_or_else(|| self.unknown(part))?;
                out.push((file, part.as_str(), here.start - from..here.end - from));
            }
            from = to;
        }
        Ok(out)
    }

    /// One tensor's place, by the file's own name; an error gives the nearest name.
    pub fn info(&self, name: &str) -> Result<&TensorInfo> {
        self.tensors.get(name).ok_or_else(|| self.unknown(name))
    }

    fn unknown(&self, name: &str) -> CheckpointError {
        CheckpointError::UnknownTensor {
            path: self.path.clone(),
            tensor: name.to_string(),
            nearest: nearest(name, self.tensors.keys().map(String::as_str)),
        }
    }

    /// All bytes of a tensor, little-endian, row-major.
    pub fn read(&self, name: &str) -> Result<Vec<u8>> {
        match self.stacks.contains_key(name) {
            true => self.read_elements(name, 0..self.info(name)?.num_elements()),
            false => self.file_of(name)?.read(name),
        }
    }

    /// A float tensor (F32, F16, BF16 or F64) as f32.
    pub fn read_f32(&self, name: &str) -> Result<Vec<f32>> {
        match self.stacks.contains_key(name) {
            true => self.read_elements_f32(name, 0..self.info(name)?.num_elements()),
            false => self.file_of(name)?.read_f32(name),
        }
    }

    /// The bytes of rows `rows` (indices of the outermost dim).
    pub fn read_rows(&self, name: &str, rows: Range<usize>) -> Result<Vec<u8>> {
        self.file_of(name)?.read_rows(name, rows)
    }

    /// Rows of a float tensor as f32.
    pub fn read_rows_f32(&self, name: &str, rows: Range<usize>) -> Result<Vec<f32>> {
        self.file_of(name)?.read_rows_f32(name, rows)
    }

    /// The bytes of flat elements `elements` (row-major order).
    pub fn read_elements(&self, name: &str, elements: Range<u64>) -> Result<Vec<u8>> {
        let runs = self.runs(name, elements)?.into_iter();
        let each = runs.map(|(file, part, run)| file.read_elements(part, run));
        Ok(each.collect::<Result<Vec<_>>>()?.concat())
    }

    /// Flat elements of a float tensor as f32.
    pub fn read_elements_f32(&self, name: &str, elements: Range<u64>) -> Result<Vec<f32>> {
        let runs = self.runs(name, elements)?.into_iter();
        let each = runs.map(|(file, part, run)| file.read_elements_f32(part, run));
        Ok(each.collect::<Result<Vec<_>>>()?.concat())
    }

    /// A hash by which sets of weights differ: of names, types and shapes of all tensors, and of up to three windows of 4 KiB of each.
    /// Not a proof of every byte: weights that were trained on differ nearly everywhere.
    pub fn fingerprint(&self) -> Result<String> {
        const WINDOW: u64 = 4096;
        let mut hash = blake3::Hasher::new();
        for (name, info) in &self.tensors {
            hash.update(format!("{name} {:?} {:?}\n", info.dtype, info.shape).as_bytes());
            let elements = info.num_elements();
            let each = WINDOW * elements / info.num_bytes().max(1);
            let each = each.clamp(1, elements.max(1)).min(elements);
            let last = elements - each;
            let mut starts = vec![0, last / 2, last];
            starts.dedup();
            for from in starts {
                hash.update(&self.read_elements(name, from..from + each)?);
            }
        }
        Ok(hash.finalize().to_hex().to_string())
    }

    /// The opened weight files, by path.
    pub fn files(&self) -> impl Iterator<Item = &SafeFile> {
        self.files.values()
    }

    /// Files that travel with the model and are not weights (tokenizer, vocabulary, generation settings), as
    /// (file name, bytes) for [`crate::export_hf`]. Each is limited to 256 MiB.
    pub fn companion_files(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let mut out = named_files(&self.path, TOKENIZER_FILES)?;
        out.extend(named_files(&self.path, &["generation_config.json"])?);
        Ok(out)
    }

    fn file_of(&self, name: &str) -> Result<&SafeFile> {
        let info = self.info(name)?;
        self.files
            .get(&info.file)
            .ok_or_else(|| CheckpointError::UnknownTensor {
                path: info.file.clone(),
                tensor: name.to_string(),
                nearest: None,
            })
    }
}

fn read_config(path: &Path) -> Result<Value> {
    if !path.exists() {
        return Err(CheckpointError::NotFound {
            path: path.to_path_buf(),
            reason: "the model directory has no config.json".into(),
            fix: "name a directory that transformers' save_pretrained wrote".into(),
        });
    }
    let fix = "restore config.json from the model's source";
    let config: Value = serde_json::from_slice(&read_json_bytes(path)?)
        .map_err(|e| CheckpointError::json(path, &e, "not JSON", fix))?;
    if !config.is_object() {
        return Err(CheckpointError::Json {
            path: path.to_path_buf(),
            line: 1,
            column: 1,
            reason: "a model config is a JSON object".into(),
            fix: fix.into(),
        });
    }
    Ok(config)
}

fn no_weights(path: &Path) -> CheckpointError {
    let pickled = ["pytorch_model.bin", "pytorch_model.bin.index.json"]
        .into_iter()
        .find(|n| path.join(n).exists());
    CheckpointError::NotFound {
        path: path.to_path_buf(),
        reason: match pickled {
            Some(n) => format!(
                "holds {n} but neither {SINGLE} nor {INDEX}; pickled weights can run code and are not read"
            ),
            None => format!("holds neither {SINGLE} nor {INDEX}"),
        },
        fix: match pickled {
            Some(_) => {
                "load it in transformers and save it with save_pretrained(dir, safe_serialization=True)"
            }
            None => "name a directory that transformers' save_pretrained wrote",
        }
        .into(),
    }
}

fn open_shards(dir: &Path, index_path: &Path, notes: &mut Vec<String>) -> Result<Vec<SafeFile>> {
    let again =
        "download or export the directory again, so that the index and its shards belong together";
    let index: Index = serde_json::from_slice(&read_json_bytes(index_path)?).map_err(|e| {
        CheckpointError::json(index_path, &e, "not a safetensors index", again.to_string())
    })?;
    let fail = |tensor: &str, shard: &str, reason: String| CheckpointError::Index {
        index: index_path.to_path_buf(),
        tensor: tensor.to_string(),
        shard: shard.to_string(),
        reason,
        fix: again.to_string(),
    };
    let mut home: BTreeMap<&str, &str> = BTreeMap::new();
    for (tensor, shard) in &index.weight_map.0 {
        if Path::new(shard).file_name() != Some(shard.as_ref())
            || shard.contains(['/', '\\', ':', '\0'])
        {
            return Err(fail(
                tensor,
                shard,
                "a shard is a plain file name in the same directory".into(),
            ));
        }
        if home.insert(tensor, shard).is_some() {
            return Err(fail(
                tensor,
                shard,
                "the index lists the tensor twice".into(),
            ));
        }
    }
    if home.is_empty() {
        return Err(fail(
            "(none)",
            "(none)",
            "the weight_map of the index is empty".into(),
        ));
    }
    let shards: BTreeSet<&str> = home.values().copied().collect();
    let mut files = Vec::new();
    for shard in shards {
        let path = dir.join(shard);
        if !path.exists() {
            let (first, n) = (
                home.iter().find(|(_, s)| **s == shard),
                home.values().filter(|s| **s == shard).count(),
            );
            let tensor = first.map_or("", |(t, _)| *t);
            return Err(fail(
                tensor,
                shard,
                format!("the shard is missing; {n} tensors are in it"),
            ));
        }
        files.push(SafeFile::open(&path)?);
    }
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    for file in &files {
        let shard = file
            .path()
            .file_name()
            .and_then(|n| n.to_str())
            .unwrap_or_default();
        for name in file.tensors().keys() {
            if let Some(other) = seen.insert(name, shard) {
                return Err(fail(
                    name,
                    shard,
                    format!("the tensor is stored in {other} as well"),
                ));
            }
            match home.get(name.as_str()) {
                Some(h) if *h != shard => {
                    return Err(fail(
                        name,
                        h,
                        format!("the tensor is stored in {shard} instead"),
                    ));
                }
                Some(_) => {}
                // transformers loads every tensor of the shards it opens, listed or not; so do we.
                None => notes.push(format!(
                    "{shard} holds `{name}`, which {INDEX} does not list"
                )),
            }
        }
    }
    if let Some((tensor, shard)) = home.iter().find(|(t, _)| !seen.contains_key(*t)) {
        return Err(fail(
            tensor,
            shard,
            "the shard does not hold this tensor".into(),
        ));
    }
    Ok(files)
}

#[derive(Deserialize)]
struct Index {
    weight_map: WeightMap,
}

// A list, so that a name listed twice is seen (a map keeps the last).
struct WeightMap(Vec<(String, String)>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = WeightMap;
            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("an object from tensor names to shard file names")
            }
            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<WeightMap, A::Error> {
                let mut out = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    out.push(pair);
                }
                Ok(WeightMap(out))
            }
        }
        d.deserialize_map(V)
    }
}
