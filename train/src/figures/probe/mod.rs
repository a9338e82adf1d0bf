//! What an import computes, as a file anyone can hold against their own reference: on one rank, or gathered from a mesh of them.

mod over;

use crate::backend::{BackendChoice, choose, host};
use crate::model::Source;
use crate::surroundings::Surroundings;
use crate::train_error::{Result, TrainError};
use crate::{infer, trained};
use crossweave_checkpoint::{Dtype, SafeFile, TensorOut};
use crossweave_data::{Columns, IGNORED, Pair, Remark, decoded, paired};
use crossweave_engine::MicroBatch;
use crossweave_hal::DType;
use crossweave_job::stored_adapter::Stored;
use crossweave_nn::lora::is_adapter;
use crossweave_nn::{ModelSpec, Predicts};
use crossweave_tensor::ParamDecl;
pub use over::{OverMesh, probe_over};
use std::path::{Path, PathBuf};

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
    /// What the columns of a row are, where they are not one text.
    columns: Option<Columns>,
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
            columns: None,
        });
    }
    let labels = read_as("labels", true)?;
    let fits = labels.batch == b && (labels.seq == t || spec.model().decoder.is_some());
    if !fits {
        return Err(unlike(path, &labels, [b, t]));
    }
    // As in training: what the encoder reads and behind it what the decoder reads, or a pair with what stands before it.
    let pairs = match &spec.model().decoder {
        Some(_) => None,
        None => pairs(path, &inputs, &labels)?,
    };
    let columns = match (&spec.model().decoder, &pairs) {
        (Some(_), _) => Columns::Both([t as usize, labels.seq as usize]),
        (None, Some(pairs)) => Columns::Pair(pairs.what),
        (None, None) => {
            let trained = Inputs {
                ids: inputs.ids.clone(),
                ..inputs
            };
            return Ok(Both {
                read: inputs,
                trained,
                labels: labels.ids,
                images,
                columns: None,
            });
        }
    };
    let (mut ids, mut all) = (vec![], vec![]);
    let rows = inputs.ids.chunks_exact(t as usize);
    for (i, (read, written)) in rows
        .zip(labels.ids.chunks_exact(labels.seq as usize))
        .enumerate()
    {
        let read: Vec<u32> = read.iter().map(|t| *t as u32).collect();
        let (row, targets) = match (&spec.model().decoder, &pairs) {
            (Some(d), _) => decoded(read, written.to_vec(), d.tokens.map(|t| t as u32)),
            (None, Some(p)) => paired((p.follows[i], p.weight), p.kinds(i), &read, written),
            (None, None) => (read, written.to_vec()),
        };
        ids.extend(row.into_iter().map(|t| t as i32));
        all.extend(targets);
    }
    let seq = columns.all() as u64;
    let one = |ids| Inputs { ids, batch: b, seq };
    Ok(Both {
        read: one(ids.clone()),
        trained: one(ids),
        labels: all,
        images,
        columns: Some(columns),
    })
}

/// What stands beside the tokens of pairs of texts.
struct Pairs {
    what: Pair,
    kinds: Vec<u32>,
    follows: Vec<i32>,
    /// How much an answer counts beside a token.
    weight: f32,
}

impl Pairs {
    fn kinds(&self, row: usize) -> &[u32] {
        let n = self.what.tokens;
        &self.kinds[row * n..(row + 1) * n]
    }
}

/// `token_type_ids` and `next_sentence_label`, where the file has one of them.
fn pairs(path: &Path, inputs: &Inputs, labels: &Inputs) -> Result<Option<Pairs>> {
    let file = SafeFile::open(path)?;
    let (b, t) = (inputs.batch as usize, inputs.seq as usize);
    let refuse =
        |what: &str, fix: &str| TrainError::refused(format!("{}: {what}", path.display()), fix);
    let find = |name: &str, shape: &[usize]| -> Result<Option<Vec<i64>>> {
        let Ok(info) = file.info(name) else {
            return Ok(None);
        };
        if info.shape != shape {
            let what = format!("{name} has shape {:?}", info.shape);
            let fix = format!("give it the shape {shape:?}, or leave it out");
            return Err(refuse(&what, &fix));
        }
        integers(path, &file, name).map(Some)
    };
    let kinds = find("token_type_ids", &[b, t])?;
    let follows = find("next_sentence_label", &[b])?;
    if kinds.is_none() && follows.is_none() {
        return Ok(None);
    }
    let labelled = follows.is_some();
    let kinds = kinds.unwrap_or_else(|| vec![0; b * t]);
    let kinds: Option<Vec<u32>> = kinds.iter().map(|k| u32::try_from(*k).ok()).collect();
    let Some(kinds) = kinds else {
        return Err(refuse(
            "token_type_ids holds a kind below 0",
            "count kinds from 0",
        ));
    };
    let follows = follows.unwrap_or_else(|| vec![IGNORED.into(); b]);
    let good = |f: &i64| matches!(f, 0..=1) || *f == i64::from(IGNORED);
    if !follows.iter().all(good) {
        return Err(refuse(
            "next_sentence_label is not 0, 1 or -100 everywhere",
            "write 0 where the second text follows the first, 1 where it does not, and -100 where that is not to be predicted",
        ));
    }
    let follows: Vec<i32> = follows.iter().map(|f| *f as i32).collect();
    let count = |all: &[i32]| all.iter().filter(|l| **l != IGNORED).count();
    let weight = count(&labels.ids) as f32 / count(&follows).max(1) as f32;
    let most = kinds.iter().copied().max().unwrap_or(0);
    let what = Pair {
        tokens: t,
        kinds: most.saturating_add(1),
        labelled,
    };
    Ok(Some(Pairs {
        what,
        kinds,
        follows,
        weight,
    }))
}

fn unlike(path: &Path, labels: &Inputs, [b, t]: [u64; 2]) -> TrainError {
    TrainError::refused(
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
        Err(TrainError::refused(
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

/// What is probed.
#[derive(Clone, Debug)]
pub struct Probe {
    /// A model's folder, a run's, a checkpoint's, or a name in the hub cache.
    pub model: PathBuf,
    /// A safetensors file with `input_ids` `[B, T]`.
    pub inputs: PathBuf,
    /// The type in which parameters and activations are computed.
    pub compute: DType,
    /// Which back end computes.
    pub backend: BackendChoice,
}

/// What a probe has shown.
pub struct Probed {
    /// The mean loss over the labels that count, in nats.
    pub loss: f64,
    /// The shape of the logits: batch, tokens, vocabulary.
    pub logits: [u64; 3],
    /// Parameters whose gradients are there.
    pub gradients: usize,
    /// Logits, loss and gradients under the names of the model's files.
    pub tensors: Vec<TensorOut<'static>>,
}

/// Computes logits, loss and gradients. `remark` gets what is remarkable about the model.
///
/// # Errors
/// Inputs that are damaged or outside the model; a folder that is neither a model's nor a run's; the device.
pub fn probe(what: &Probe, around: &Surroundings, remark: impl Fn(&Remark)) -> Result<Probed> {
    let host = host(&around.plugins, 1, None, None);
    let plugin = choose(&what.backend, "cpu", &host, &around.plugins)?;
    let Asked {
        source,
        inputs,
        counts,
    } = Asked::open(what, around, remark)?;
    let (b, trained) = (inputs.read.batch, &inputs.trained);
    let mut engine = infer::open(&source, &plugin, &host, what.compute, b, trained.seq)?;
    let images = &inputs.images.0;
    let shape = [b, inputs.read.seq];
    let heads = engine.logits_of(&inputs.read.ids, images, shape)?;
    let (mut loss, mut grads) = engine.loss_and_grads(&MicroBatch {
        tokens: &trained.ids,
        targets: &inputs.labels,
        lengths: &[],
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
    let found = Found {
        params: engine.params(),
        heads,
        loss,
        grads,
    };
    Ok(found.probed(&source, inputs.read.batch))
}

/// A model and what it is to read.
struct Asked {
    source: Source,
    inputs: Both,
    /// Labels that count.
    counts: usize,
}

/// What a forward and a backward have given.
struct Found {
    /// The model's parameters.
    params: Vec<ParamDecl>,
    /// Logits, and the answers of a second head.
    heads: Vec<Vec<f32>>,
    loss: f64,
    /// By the names of parameters.
    grads: Vec<(String, Vec<f32>)>,
}

impl Asked {
    /// Opens both.
    ///
    /// # Errors
    /// Inputs that are damaged or outside the model; a folder that is neither a model's nor a run's.
    fn open(what: &Probe, around: &Surroundings, remark: impl Fn(&Remark)) -> Result<Asked> {
        let model = trained::open(&what.model, &around.caches)?;
        model.remarks.iter().for_each(remark);
        let mut source = model.source;
        let inputs = batch(&what.inputs, &source.spec)?;
        let positions = source.spec.model().positions;
        let longest = inputs
            .columns
            .map_or(inputs.read.seq, |c| c.longest() as u64);
        source.reads(inputs.columns)?;
        source.spec = source.spec.seeing(inputs.images.1);
        if longest > positions {
            return Err(TrainError::refused(
                format!(
                    "{}: input_ids has sequences of {longest} tokens, the model has {positions} positions",
                    what.inputs.display()
                ),
                format!("give at most {positions} tokens"),
            ));
        }
        let counts = inputs.labels.iter().filter(|l| **l != IGNORED).count();
        if counts == 0 {
            return Err(TrainError::refused(
                format!("{}: no label counts", what.inputs.display()),
                "give at least one that is not -100",
            ));
        }
        Ok(Asked {
            source,
            inputs,
            counts,
        })
    }
}

impl Found {
    /// The same under the names of the model's files; `b` rows were read.
    fn probed(self, source: &Source, b: u64) -> Probed {
        let mut heads = self.heads.into_iter();
        let (logits, answers) = (heads.next().unwrap_or_default(), heads.next());
        let vocab = source.spec.model().vocab;
        let t = logits.len() as u64 / (b * vocab);
        let shape = [b as usize, t as usize, vocab as usize];
        let mut out = vec![
            TensorOut::from_f32("logits", Dtype::F32, &shape, logits),
            TensorOut::from_f32("loss", Dtype::F32, &[], vec![self.loss as f32]),
        ];
        if let Some(answers) = answers {
            let shape = [b as usize, 2];
            let name = "seq_relationship_logits";
            out.push(TensorOut::from_f32(name, Dtype::F32, &shape, answers));
        }
        let before = out.len();
        for (name, values) in self.grads {
            let resolved = source.folder.as_ref();
            let resolved = resolved.and_then(|f| f.names.file_name(&name));
            let param = self.params.iter().find(|p| p.name == name);
            let (file_name, shape, values) = match param.filter(|_| is_adapter(&name)) {
                Some(p) => {
                    let stored = Stored::of(&self.params, p);
                    let values = stored.to_file(values);
                    (stored.name, stored.shape, values)
                }
                None => {
                    let dims = param.map_or(&[][..], |p| p.shape.dims());
                    let shape = dims.iter().map(|d| *d as usize).collect();
                    (resolved.unwrap_or(&name).to_string(), shape, values)
                }
            };
            let title = format!("grad.{file_name}");
            out.push(TensorOut::from_f32(title, Dtype::F32, &shape, values));
        }
        Probed {
            loss: self.loss,
            logits: [b, t, vocab],
            gradients: out.len() - before,
            tensors: out,
        }
    }
}

/// A tensor of ids. `ignored`: [`IGNORED`] may stand among them.
fn read(path: &Path, name: &str, vocab: u64, ignored: bool) -> Result<Inputs> {
    let file = SafeFile::open(path)?;
    let info = file.info(name)?;
    let refuse = |what: String, fix: &str| {
        TrainError::refused(format!("{}: {name} {what}", path.display()), fix)
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
    let wide = integers(path, &file, name)?;
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

/// The values of a tensor of integers.
fn integers(path: &Path, file: &SafeFile, name: &str) -> Result<Vec<i64>> {
    let bytes = file.read(name)?;
    Ok(match file.info(name)?.dtype {
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
        other => {
            return Err(TrainError::refused(
                format!("{}: {name} is {other:?}", path.display()),
                "write it as I64",
            ));
        }
    })
}
