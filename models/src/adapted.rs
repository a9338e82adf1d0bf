//! What a run of adapters leaves: a folder that PEFT reads, or the model with the adapters merged into it; and the model under them, which
//! checkpoints name and do not hold.

use crate::adapter;
use crate::job_error::{JobError, Result};
use crate::model::{self, Source};
use crate::remembered::peft_config;
use crate::stacks;
use crossweave_checkpoint::{
    Checkpoint, CheckpointError, DEFAULT_SHARD_BYTES, Dtype, TensorOut, export_hf, write_f32,
};
use crossweave_nn::lora::is_adapter;
use crossweave_nn::{Targets, Tensors};
use crossweave_tensor::ParamDecl;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::io;
use std::path::Path;

/// The adapters' matrices of a model.
fn matrices(source: &Source) -> Vec<ParamDecl> {
    let all = source.units().into_iter().flat_map(|u| u.params);
    all.filter(|p| is_adapter(&p.name)).collect()
}

/// `adapter_config.json` of a model's adapters, as PEFT reads it; none without adapters.
pub fn config_of(source: &Source) -> Option<Value> {
    let lora = source.lora.as_ref()?;
    let folder = source.folder.as_ref()?.dir.path.clone();
    // A path that holds from any working directory of this machine.
    let base = std::fs::canonicalize(&folder).unwrap_or(folder);
    let targets = match &lora.targets {
        Targets::Pattern(p) => json!(p),
        Targets::Names(all) => json!(all),
        Targets::Family => json!(source.spec.family().lora),
        Targets::AllLinear => {
            // Of linear layers: stacks are no modules.
            let mut all = matrices(source);
            all.retain(|p| p.shape.dims().len() == 2);
            let of = |p: &ParamDecl| p.name.strip_suffix(".lora_A.weight").map(str::to_string);
            json!(all.iter().filter_map(of).collect::<Vec<_>>())
        }
    };
    let base = base.display().to_string();
    Some(peft_config(lora, &source.spec, &base, targets))
}

/// The model under adapters, as a checkpoint remembers it: its folder, and a hash of its weights. Null for other models.
pub fn base(source: &Source) -> Value {
    let (Some(folder), Some(print)) = (&source.folder, &source.fingerprint) else {
        return Value::Null;
    };
    let path = std::fs::canonicalize(&folder.dir.path);
    let path = path.unwrap_or_else(|_| folder.dir.path.clone());
    json!({"folder": path.display().to_string(), "fingerprint": print})
}

/// The model under a checkpoint's adapters, with those adapters to be filled in; none where the checkpoint holds a whole model.
///
/// # Errors
/// A model that has gone or changed.
pub fn of_checkpoint(from: &Checkpoint) -> Result<Option<Source>> {
    let (kept, adapters) = (&from.state()["base"], &from.state()["adapter_config"]);
    let Some(folder) = kept["folder"].as_str() else {
        return Ok(None);
    };
    let whose = from.path().display().to_string();
    let mut source = model::open_folder(Path::new(folder))?;
    source.adapt(
        adapter::lora_of(from.path(), adapters)?,
        &format!("{whose}: "),
    )?;
    check_base(&source, kept, &whose)?;
    Ok(Some(source))
}

/// Refuses another model than the one that `kept`, a checkpoint's, names.
///
/// # Errors
/// That.
pub fn check_base(source: &Source, kept: &Value, whose: &str) -> Result<()> {
    let (Some(folder), Some(now)) = (&source.folder, &source.fingerprint) else {
        return Ok(());
    };
    match kept["fingerprint"].as_str() {
        Some(then) if then != now => Err(JobError::refused(
            format!(
                "{whose}: {} holds other weights than the model that the adapters were trained on",
                folder.dir.path.display()
            ),
            "give back the model's folder as it was; checkpoints of adapters do not hold it",
        )),
        _ => Ok(()),
    }
}

/// Writes a whole model: that under `source` with the updates added to its weights, one weight at a time. `read` gives an adapter's
/// matrix by name.
///
/// # Errors
/// An adapter of a head that is also the embedding; files that cannot be read; the disk.
pub fn merge(
    source: &Source,
    dir: &Path,
    config: &Value,
    dtype: Dtype,
    extra: &[(String, Vec<u8>)],
    read: &dyn Fn(&str) -> Result<Vec<f32>>,
) -> Result<()> {
    let (Some(lora), Some(folder)) = (&source.lora, &source.folder) else {
        return Err(JobError::refused(
            "no adapters to merge",
            "leave --merge out",
        ));
    };
    let all: Vec<ParamDecl> = source.units().into_iter().flat_map(|u| u.params).collect();
    let known = |name: &str| all.iter().find(|p| p.name == name);
    if known("lm_head.lora_A.weight").is_some() && known("lm_head.weight").is_none() {
        return Err(JobError::refused(
            "lm_head is the embedding too (tie_word_embeddings), and its adapter changes the head alone",
            "export the adapter itself, without --merge",
        ));
    }
    let form = match folder.stacked {
        true => &Tensors::PLAIN,
        false => &source.spec.family().tensors,
    };
    // The matrices of the weight that is written: its tensors come one after the other.
    let last: RefCell<Option<(String, [Vec<f32>; 2])>> = RefCell::new(None);
    let transposed = |module: &str| source.spec.family().fan_in_fan_out && module != "lm_head";
    let mut tensors = vec![];
    for p in all.iter().filter(|p| !is_adapter(&p.name)) {
        let shape: Vec<usize> = p.shape.dims().iter().map(|d| *d as usize).collect();
        let module = p.name.strip_suffix(".weight").unwrap_or(&p.name);
        let a = known(&format!("{module}.lora_A.weight"));
        let b = known(&format!("{module}.lora_B.weight"));
        let pair = a.zip(b);
        let last = &last;
        let by_column = transposed(module);
        let stored = folder.names.file_name(&p.name).unwrap_or(&p.name);
        for part in stacks::parts(form, &p.name, &shape) {
            let elements = part.elements;
            let stream = move |out: &mut dyn io::Write| {
                let failed = |e: JobError| io::Error::other(e.to_string());
                let own = |e: CheckpointError| io::Error::other(e.to_string());
                let w = folder.dir.read_elements_f32(stored, elements.clone());
                let mut w = w.map_err(own)?;
                if let Some((of_a, of_b)) = pair {
                    let mut last = last.borrow_mut();
                    let known = last.take().filter(|(name, _)| *name == of_a.name);
                    let (_, [a, b]) = last.insert(match known {
                        Some(known) => known,
                        None => {
                            let both = [read(&of_a.name), read(&of_b.name)];
                            let [a, b] = both.map(|m| m.map_err(failed));
                            (of_a.name.clone(), [a?, b?])
                        }
                    });
                    let [input, r] = [of_a, of_b].map(|p| p.shape.last() as usize);
                    let update = Update {
                        r,
                        input,
                        outputs: of_b.shape.dims()[of_b.shape.dims().len() - 2] as usize,
                        a,
                        b,
                        scale: lora.scale(),
                    };
                    update.add(&mut w, elements.start as usize / input, by_column);
                }
                write_f32(out, dtype, &w)?;
                Ok(())
            };
            tensors.push(TensorOut::stream(part.name, dtype, &part.shape, stream));
        }
    }
    Ok(export_hf(dir, config, tensors, DEFAULT_SHARD_BYTES, extra)?)
}

/// `scale B A`, row by row, of one expert after another where there are several.
struct Update<'a> {
    r: usize,
    input: usize,
    /// Rows of one expert.
    outputs: usize,
    a: &'a [f32],
    b: &'a [f32],
    scale: f64,
}

impl Update<'_> {
    /// Adds its rows from `first` on to `w [rows, in]`, or all of them to `[in, out]` where it lies by columns.
    fn add(&self, w: &mut [f32], first: usize, by_column: bool) {
        let rows = w.len() / self.input;
        let mut row = vec![0f64; self.input];
        let of_b = self.b.chunks_exact(self.r).skip(first).take(rows);
        for (o, b) in of_b.enumerate() {
            row.fill(0.0);
            let expert = (first + o) / self.outputs;
            let of_a = self.a.chunks_exact(self.input).skip(expert * self.r);
            for (x, a) in b.iter().zip(of_a) {
                let x = f64::from(*x) * self.scale;
                row.iter_mut()
                    .zip(a)
                    .for_each(|(s, a)| *s += x * f64::from(*a));
            }
            for (i, s) in row.iter().enumerate() {
                let at = if by_column {
                    i * rows + o
                } else {
                    o * self.input + i
                };
                w[at] = (f64::from(w[at]) + s) as f32;
            }
        }
    }
}
