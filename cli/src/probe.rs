//! `crossweave probe`: what an import computes, as a file anyone can hold against their own reference.

use crate::args::{ProbeArgs, ProbeType};
use crate::backend::{choose, host};
use crate::error::{CliError, Result};
use crate::say::say;
use crate::{adapter, infer, trained, whole};
use crossweave_checkpoint::{Dtype, SafeFile, TensorOut, write_safetensors};
use crossweave_data::IGNORED;
use crossweave_engine::MicroBatch;
use crossweave_hal::DType;
use crossweave_nn::lora::is_adapter;
use crossweave_nn::{ModelSpec, Predicts};
use std::path::Path;

/// Token ids `[batch, seq]`.
struct Inputs {
    ids: Vec<i32>,
    batch: u64,
    seq: u64,
}

impl Inputs {
    /// The columns from `from` to before `to`.
    fn cut(&self, from: u64, to: u64) -> Vec<i32> {
        let rows = self.ids.chunks_exact(self.seq as usize);
        rows.flat_map(|r| &r[from as usize..to as usize])
            .copied()
            .collect()
    }
}

/// What the model reads, and what it is to predict.
struct Both {
    /// For the logits.
    read: Inputs,
    /// For the loss, `[batch, seq]`, with the labels.
    trained: Inputs,
    labels: Vec<i32>,
    /// Patches of the images, where there are some, and how many of them a row has.
    images: (Vec<f32>, u64),
}

/// The batch of a file, as a model of this kind has it.
fn batch(path: &Path, spec: &ModelSpec) -> Result<Both> {
    let vocab = spec.model().vocab;
    let read_as = |name: &str, ignored| read(path, name, vocab, ignored);
    let inputs = read_as("input_ids", false)?;
    let (b, t) = (inputs.batch, inputs.seq);
    let images = images(path, spec, &inputs)?;
    if spec.family().predicts() == Predicts::Next {
        let given = match spec.family().sees() {
            true => Some(read_as("labels", true)?),
            false => None,
        };
        let labels = given.as_ref().unwrap_or(&inputs);
        if (labels.batch, labels.seq) != (b, t) {
            return Err(unlike(path, labels, [b, t]));
        }
        let (ids, labels, seq) = (inputs.cut(0, t - 1), labels.cut(1, t), t - 1);
        let trained = Inputs { ids, batch: b, seq };
        return Ok(Both {
            read: inputs,
            trained,
            labels,
            images,
        });
    }
    let labels = read_as("labels", true)?;
    let fits = labels.batch == b && (labels.seq == t || spec.model().decoder.is_some());
    if !fits {
        return Err(unlike(path, &labels, [b, t]));
    }
    let Some(decoder) = &spec.model().decoder else {
        let (ids, seq) = (inputs.ids.clone(), t);
        let trained = Inputs { ids, batch: b, seq };
        return Ok(Both {
            read: inputs,
            trained,
            labels: labels.ids,
            images,
        });
    };
    // As in training: what the encoder reads, and behind it what the decoder reads.
    let (mut ids, mut all) = (vec![], vec![]);
    let rows = inputs.ids.chunks_exact(t as usize);
    for (read, written) in rows.zip(labels.ids.chunks_exact(labels.seq as usize)) {
        let start = decoder.tokens.map(|t| t as u32);
        let read = read.iter().map(|t| *t as u32).collect();
        let (row, targets) = crossweave_data::decoded(read, written.to_vec(), start);
        ids.extend(row.into_iter().map(|t| t as i32));
        all.extend(targets);
    }
    let seq = t + labels.seq;
    let one = |ids| Inputs { ids, batch: b, seq };
    Ok(Both {
        read: one(ids.clone()),
        trained: one(ids),
        labels: all,
        images,
    })
}

fn unlike(path: &Path, labels: &Inputs, [b, t]: [u64; 2]) -> CliError {
    CliError::refused(
        format!(
            "{}: labels are [{}, {}], and input_ids [{b}, {t}]",
            path.display(),
            labels.batch,
            labels.seq
        ),
        "give every token its label, -100 where it does not count; to an encoder's decoder, what it writes",
    )
}

/// The patches of `pixel_values`, of a model that reads images, and the images of a row.
fn images(path: &Path, spec: &ModelSpec, inputs: &Inputs) -> Result<(Vec<f32>, u64)> {
    let Some(v) = &spec.model().vision else {
        return Ok((vec![], 0));
    };
    let file = SafeFile::open(path)?;
    let info = file.info("pixel_values")?;
    let [colours, side, _] = v.image;
    let shape: Vec<u64> = info.shape.iter().map(|d| *d as u64).collect();
    let row = match shape[..] {
        [b, c, h, w] if [b, c, h, w] == [inputs.batch, colours, side, side] => 1,
        [b, n, c, h, w] if [b, c, h, w] == [inputs.batch, colours, side, side] => n,
        _ => 0,
    };
    let refuse = |what: String, fix: String| {
        Err(CliError::refused(
            format!("{}: {what}", path.display()),
            fix,
        ))
    };
    if row == 0 || info.dtype != Dtype::F32 {
        return refuse(
            format!("pixel_values is {:?} {shape:?}", info.dtype),
            format!(
                "write it as f32 [{}, {colours}, {side}, {side}]",
                inputs.batch
            ),
        );
    }
    let wanted = row * v.features();
    let rows = inputs.ids.chunks_exact(inputs.seq as usize);
    for (i, ids) in rows.enumerate() {
        let found = ids.iter().filter(|t| **t as u64 == v.token).count() as u64;
        if found != wanted || ids.last().is_some_and(|t| *t as u64 == v.token) {
            return refuse(
                format!(
                    "row {i} of input_ids has {found} image tokens ({}), and its images have {wanted} features",
                    v.token
                ),
                "write the token once for each feature, with text behind the last".into(),
            );
        }
    }
    let bytes = file.read("pixel_values")?;
    let words = bytes.as_chunks::<4>().0.iter();
    let values: Vec<f32> = words.map(|b| f32::from_le_bytes(*b)).collect();
    Ok((crossweave_data::patches(&values, v.image), row))
}

/// Runs the command.
///
/// # Errors
/// Inputs that are damaged or outside the model; a folder that is neither a model's nor a run's; the device. Nothing is written then.
pub fn run(args: &ProbeArgs) -> Result<()> {
    let host = host(1, None, None);
    let plugin = choose(&args.backend, "cpu", &host)?;
    let mut source = trained::open(&args.model)?.source;
    let inputs = batch(&args.inputs, &source.spec)?;
    let (b, mut t) = (inputs.read.batch, inputs.read.seq);
    let longest = source.spec.model().positions;
    if source.spec.model().decoder.is_some() {
        let read = SafeFile::open(&args.inputs)?.info("input_ids")?.shape[1];
        source.reads(Some([read, t as usize - read]))?;
    }
    source.spec = source.spec.seeing(inputs.images.1);
    if t > longest {
        return Err(CliError::refused(
            format!(
                "{}: input_ids has sequences of {t} tokens, the model has {longest} positions",
                args.inputs.display()
            ),
            format!("give at most {longest} tokens"),
        ));
    }
    let compute = match args.dtype {
        ProbeType::F32 => DType::F32,
        ProbeType::Bf16 => DType::Bf16,
    };
    let counts = inputs.labels.iter().filter(|l| **l != IGNORED).count();
    if counts == 0 {
        return Err(CliError::refused(
            format!("{}: no label counts", args.inputs.display()),
            "give at least one that is not -100",
        ));
    }
    let trained = &inputs.trained;
    let mut trainer = infer::open(&source, &plugin, &host, compute, b, trained.seq)?;
    let images = &inputs.images.0;
    let logits = trainer.logits_of(&inputs.read.ids, images, [b, t])?;
    let (mut loss, mut grads) = trainer.loss_and_grads(&MicroBatch {
        tokens: &trained.ids,
        targets: &inputs.labels,
        images,
        first_sequence: 0,
    })?;
    // They are over all predictions.
    let all = inputs.labels.len();
    if counts < all {
        let factor = all as f64 / counts as f64;
        loss *= factor;
        let each = grads.iter_mut().flat_map(|(_, values)| values);
        each.for_each(|g| *g = (f64::from(*g) * factor) as f32);
    }
    t = logits.len() as u64 / (b * source.spec.model().vocab);
    let vocab = source.spec.model().vocab;
    let shape = [b as usize, t as usize, vocab as usize];
    let mut out = vec![
        TensorOut::from_f32("logits", Dtype::F32, &shape, logits),
        TensorOut::from_f32("loss", Dtype::F32, &[], vec![loss as f32]),
    ];
    let params = trainer.params();
    for (name, values) in grads {
        let resolved = source.folder.as_ref();
        let resolved = resolved.and_then(|f| f.names.file_name(&name));
        let file_name = match is_adapter(&name) {
            true => adapter::file_name(&name),
            false => resolved.unwrap_or(&name).to_string(),
        };
        let shape: Vec<usize> = params
            .iter()
            .find(|p| p.name == name)
            .map(|p| p.shape.dims().iter().map(|d| *d as usize).collect())
            .unwrap_or_default();
        let title = format!("grad.{file_name}");
        out.push(TensorOut::from_f32(title, Dtype::F32, &shape, values));
    }
    let count = out.len() - 2;
    write(&args.out, out)?;
    say!(
        "{}: loss {loss:.6}, logits [{b}, {t}, {vocab}], {count} gradients",
        args.out.display()
    );
    Ok(())
}

/// A tensor of ids. `ignored`: [`IGNORED`] may stand among them.
fn read(path: &Path, name: &str, vocab: u64, ignored: bool) -> Result<Inputs> {
    let file = SafeFile::open(path)?;
    let info = file.info(name)?;
    let refuse = |what: String, fix: &str| {
        CliError::refused(format!("{}: {name} {what}", path.display()), fix)
    };
    let &[b, t] = &info.shape[..] else {
        let what = format!("has shape {:?}", info.shape);
        return Err(refuse(what, "give it the shape [B, T]"));
    };
    // Without labels the next token is one.
    if b == 0 || t < 2 - usize::from(ignored) {
        let what = format!("has shape [{b}, {t}]");
        return Err(refuse(
            what,
            "give at least one sequence of two tokens, so that there is a next token",
        ));
    }
    let bytes = file.read(name)?;
    let wide: Vec<i64> = match info.dtype {
        Dtype::I64 => bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|c| i64::from_le_bytes(*c))
            .collect(),
        Dtype::I32 => bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|c| i64::from(i32::from_le_bytes(*c)))
            .collect(),
        other => return Err(refuse(format!("is {other:?}"), "write it as I64")),
    };
    let good = |id: &i64| (0..vocab as i64).contains(id) || ignored && *id == i64::from(IGNORED);
    let bad = wide.iter().position(|id| !good(id));
    if let Some(at) = bad {
        let what = format!(
            "holds token {} at row {}, column {}, outside the vocabulary of {vocab}",
            wide[at],
            at / t,
            at % t
        );
        return Err(refuse(what, "tokenise with this model's tokenizer"));
    }
    Ok(Inputs {
        ids: wide.iter().map(|id| *id as i32).collect(),
        batch: b as u64,
        seq: t as u64,
    })
}

/// Written beside its place and moved there, so that a failure leaves nothing half done.
fn write(path: &Path, tensors: Vec<TensorOut<'_>>) -> Result<()> {
    CliError::not_a_file("--out", path)?;
    let partial = whole::beside(path);
    let done = write_safetensors(&partial, tensors, &[])
        .map_err(CliError::from)
        .and_then(|_| std::fs::rename(&partial, path).map_err(CliError::io("write", path)));
    if done.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    done
}
