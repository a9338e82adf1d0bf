//! What an estimate is of: a preset, a number of parameters, a config file, or a Hugging Face folder of which only `config.json` is read.

use super::keys::KeysOverCp;
use super::parts::Part;
use super::presets::{PRESETS, Preset};
use super::routed::Routed;
use super::sums::OverTp;
use crate::{Estimation, count};
use crossweave_axes::{Axis, Topology};
use crossweave_config as config;
use crossweave_files as files;
use crossweave_job::error::{JobError, Result};
use crossweave_job::{Job, optimizer};
use crossweave_nn::{ModelSpec, units};
use crossweave_tensor::UnitDecl;
use crossweave_zero::estimate::{Accounting, Accumulation, ActivationCase, Offload, Shape, Tier};
use crossweave_zero::optim::StateName;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A model as the formulas need it.
pub struct Model {
    /// As it was named.
    pub name: String,
    /// Parameters as stated.
    pub params: u64,
    /// Parameters that a token does not go through: of experts that are not chosen for it.
    pub idle: u64,
    /// Parameters of each unit of the real model, where it is known.
    pub units: Vec<u64>,
    /// The same of its teacher, where it has one.
    pub teacher: Vec<u64>,
    /// Dimensions.
    pub shape: Shape,
    /// Tokens of the run, or those that a published model was trained on.
    pub tokens: Option<f64>,
}

/// The model, and what a config says of the job.
pub struct Subject {
    /// The model.
    pub model: Model,
    /// What the config says.
    pub wanted: Option<Wanted>,
    /// The mesh of a config, and what the ranks of each of its pipeline stages have of the model.
    pub mesh: Option<Topology>,
    /// See `mesh`.
    pub parts: Vec<Part>,
}

impl Subject {
    /// A model alone.
    fn of(model: Model) -> Subject {
        Subject {
            model,
            wanted: None,
            mesh: None,
            parts: vec![],
        }
    }

    /// The back end that a config names and its ranks, where no device is named and what is asked does not state the memory: then the
    /// figures are of the device which that back end has here.
    pub fn back_end(&self, what: &Estimation) -> Option<(&str, u64)> {
        let hardware = &what.machine;
        // A job that states the memory speaks of no device in particular.
        let of_config = hardware.device.is_none() && hardware.device_memory.is_none();
        let wanted = self.wanted.as_ref().filter(|_| of_config);
        wanted.map(|w| (&*w.backend, w.ranks))
    }
}

/// What a config says of a job, as the estimator's words have it.
pub struct Wanted {
    /// Ranks, of the command line or of the mesh.
    pub ranks: u64,
    /// ZeRO stage.
    pub stage: u8,
    /// Bytes per parameter.
    pub accounting: (Accounting, &'static str),
    /// Where states rest.
    pub offload: Offload,
    /// Sequences of a micro-batch on a rank.
    pub batch: u64,
    /// Micro-batches of a step, and how their gradients are reduced.
    pub accumulation: Accumulation,
    /// What is kept for the backward.
    pub keep: (ActivationCase, &'static str),
    /// Hidden states are cut by tokens over `mesh.tp`.
    pub cuts_tokens: bool,
    /// What ranks that share layers gather and sum of hidden states.
    pub over_tp: Option<OverTp>,
    /// The traffic of keys and values over `mesh.cp`.
    pub keys_over_cp: Option<KeysOverCp>,
    /// The layers with experts.
    pub routed: Option<Routed>,
    /// The back end it names.
    pub backend: String,
}

/// What a text names.
pub enum Named {
    /// A model.
    Model(Box<Subject>),
    /// The file of a config, which is not read here.
    Config(PathBuf),
}

/// What `text` names.
///
/// # Errors
/// Nothing; a folder without a model that is known.
pub fn named(text: &str) -> Result<Named> {
    let model = |model| Ok(Named::Model(Box::new(Subject::of(model))));
    if let Some(p) = PRESETS.iter().find(|p| p.name.eq_ignore_ascii_case(text)) {
        return model(Model {
            name: text.to_string(),
            params: p.params,
            idle: 0,
            units: preset_units(p),
            teacher: vec![],
            shape: p.shape,
            tokens: Some(p.tokens),
        });
    }
    if let Ok(params) = count(text) {
        return model(Model {
            name: text.to_string(),
            params,
            idle: 0,
            units: vec![],
            teacher: vec![],
            shape: Shape::of_params(params),
            tokens: None,
        });
    }
    let path = Path::new(text);
    let file = match path.is_dir() {
        true => path.join("config.json"),
        false => path.to_path_buf(),
    };
    if !file.exists() {
        return Err(unknown(text, path, &file));
    }
    let bytes = files::read(&file, files::TEXT).map_err(JobError::io("read", &file))?;
    // Of a Hugging Face model, or a config of this program (a run's folder has one too, with every key).
    match serde_json::from_slice::<Value>(&bytes) {
        Ok(v) if v["model_type"].is_string() => model(of_folder(text, &file, &v)?),
        _ => Ok(Named::Config(file)),
    }
}

fn unknown(text: &str, path: &Path, file: &Path) -> JobError {
    if path.is_dir() {
        return JobError::refused(
            format!("{}: not there", file.display()),
            "name a Hugging Face folder (with its config.json), a run's folder, or a config file",
        );
    }
    let looks_like_a_path = text.contains(['/', '\\']) || text.ends_with(".json");
    if looks_like_a_path {
        return JobError::refused(
            format!("{text}: no such file or folder"),
            "name a config file, a Hugging Face folder, a preset such as gpt2-xl, or a number of parameters such as 7.5B",
        );
    }
    let known: Vec<_> = PRESETS.iter().map(|p| p.name).collect();
    let fix = match crossweave_config::nearest(text, known.iter().copied()) {
        Some(near) => format!(
            "did you mean {near:?}? A number of parameters (7.5B, 1T), a config file and a Hugging Face folder are taken too"
        ),
        None => format!(
            "name one of {}; or a number of parameters (7.5B, 1T), a config file, a Hugging Face folder",
            known.join(", ")
        ),
    };
    JobError::refused(format!("{text}: no model of that name"), fix)
}

/// From the very declarations that would be trained.
fn of_spec(name: &str, spec: &ModelSpec, seq: Option<u64>) -> Model {
    let (units, m) = (units_of(spec), spec.model());
    let layers = &m.stack.layers;
    let shape = Shape {
        layers: m.layers().count() as u64,
        hidden: m.width,
        heads: layers.first().map_or(1, |l| l.attention.1.heads),
        vocab: m.vocab,
        seq: m.positions,
    };
    Model {
        name: name.to_string(),
        params: units.iter().sum(),
        idle: m.idle(),
        units,
        teacher: vec![],
        shape: Shape {
            seq: seq.unwrap_or(shape.seq),
            ..shape
        },
        tokens: None,
    }
}

fn of_folder(name: &str, file: &Path, v: &Value) -> Result<Model> {
    let spec = ModelSpec::from_hf(v).map_err(|e| {
        JobError::refused(
            format!("{}: {}: {}", file.display(), e.key, e.what),
            "give the config.json of a model that is available; of any other, its number of parameters",
        )
    })?;
    // Declarations are only numbers, but a table of positions is made of them: a damaged size must not ask for what no file could have been
    // trained with.
    let (positions, vocab) = (spec.model().positions, spec.model().vocab);
    if positions > 1 << 24 || vocab > 1 << 28 {
        return Err(JobError::refused(
            format!(
                "{}: {positions} positions and a vocabulary of {vocab} cannot be real",
                file.display()
            ),
            "restore config.json from the model's source",
        ));
    }
    Ok(of_spec(name, &spec, None))
}

/// What a config says of its job; `parts`: what the ranks of each pipeline stage have of the model ([`crate::parts`]).
///
/// # Errors
/// A config that is wrong.
pub fn of_job(name: &str, job: Job, parts: Vec<Part>) -> Result<Subject> {
    let ranks = job.ranks.into();
    let cuts_tokens = job.cuts_tokens(&job.place(0))?;
    let Job {
        resolved,
        source,
        seq_len: seq,
        ..
    } = job;
    let s = &resolved.settings;
    let zero = &s.zero_optimization;
    let tier = |device: Option<&String>| match device.map(String::as_str) {
        Some("cpu" | "host") => Tier::Host,
        Some("nvme") => Tier::Nvme,
        _ => Tier::Device,
    };
    let keep = resolved.model.recompute();
    let wanted = Wanted {
        ranks,
        stage: zero.stage as u8,
        accounting: accounting(&resolved)?,
        offload: Offload {
            optimizer: tier(zero.offload_optimizer.as_ref().map(|o| &o.device)),
            param: tier(zero.offload_param.as_ref().map(|o| &o.device)),
        },
        batch: resolved.batch.micro,
        accumulation: Accumulation {
            micro_batches: resolved.batch.accumulation,
            // As `RankSpec::reduces_each` chooses: pipeline stages and canonical sums keep whole gradients.
            reduce_each: match zero.reduce_gradients.as_str() {
                "step" => false,
                "micro_batch" => true,
                _ => s.mesh.pp <= 1 && s.run.canonical_shards.is_none(),
            },
            keep_gathered: !zero.reshard_after_forward,
            leaves: tier(zero.offload_optimizer.as_ref().map(|o| &o.device)) != Tier::Device,
        },
        keep: match keep {
            // The attention of this engine never stores scores.
            config::Recompute::None => (ActivationCase::Flash, "flash"),
            config::Recompute::Selective => (ActivationCase::Selective, "selective"),
            config::Recompute::Full => (ActivationCase::Recompute, "inputs"),
        },
        cuts_tokens,
        over_tp: (resolved.mesh.length(Axis::Tp) > 1).then(|| {
            let tp = resolved.mesh.length(Axis::Tp).into();
            let in_parts = s.activation_checkpointing.partition_activations && !cuts_tokens;
            let how = [cuts_tokens, source.lora.is_some(), in_parts];
            OverTp::of(source.spec.model(), tp, how)
        }),
        keys_over_cp: (resolved.mesh.length(Axis::Cp) > 1)
            .then(|| KeysOverCp::of(&resolved, source.spec.model())),
        routed: Routed::of(source.spec.model()),
        backend: s.run.backend.clone(),
    };
    let teacher = source.teacher.as_ref();
    let mut model = Model {
        teacher: teacher.map_or(vec![], |t| units_of(&t.spec)),
        ..of_spec(name, &source.spec, Some(seq))
    };
    if source.own.is_some() {
        model.units = source.units().iter().map(params_of).collect();
        model.params = model.units.iter().sum();
        model.idle = 0;
    }
    Ok(Subject {
        model,
        wanted: Some(wanted),
        mesh: Some(resolved.mesh),
        parts,
    })
}

/// Bytes per parameter, by compute type, type of the summed gradients and optimizer.
///
/// # Errors
/// As [`crossweave_job::optimizer::groups`].
fn accounting(r: &config::Resolved) -> Result<(Accounting, &'static str)> {
    let (base, name) = match (r.dtype, r.settings.data_types.grad_accum_dtype.as_str()) {
        (config::Dtype::F32, _) => (Accounting::FP32, "fp32"),
        (_, "fp32") => (Accounting::MIXED_F32_GRADS, "mixed-f32-grads"),
        _ => (Accounting::MIXED, "mixed"),
    };
    // Bytes for each element of a matrix large enough for any form of state; rows and columns of it are none.
    const SIDE: u64 = 1 << 20;
    let groups = optimizer::groups(&r.settings)?;
    let states = groups.base.states(&[SIDE, SIDE]);
    let of = |name: StateName| {
        let own = states.iter().filter(|s| s.name == name);
        own.map(|s| s.bytes() / s.numel).sum::<u64>()
    };
    let (moment1, moment2) = (of(StateName::Moment1), of(StateName::Moment2));
    let a = Accounting {
        moment1,
        moment2,
        ema: of(StateName::Ema),
        ..base
    };
    Ok((a, if a == base { name } else { "the config's" }))
}

fn units_of(spec: &ModelSpec) -> Vec<u64> {
    units(spec.model()).iter().map(params_of).collect()
}

fn params_of(unit: &UnitDecl) -> u64 {
    unit.params.iter().map(|p| p.shape.numel()).sum()
}

/// Parameters of each unit, counted from the declarations of the very model that would be trained.
fn preset_units(p: &Preset) -> Vec<u64> {
    let spec = ModelSpec::from_hf(&p.config());
    // The presets are rows of this program; a test reads all of them.
    spec.map_or(vec![], |spec| units_of(&spec))
}
