//! From `model` of a config, or a Hugging Face folder, to the units the engine runs and the weights they start from.

use crate::adapter::{self, Adapter};
use crate::error::{CliError, Result};
use crate::hub::{self, Part};
use crate::train::resume;
use crate::trained;
use crossweave_checkpoint::{Checkpoint, HfDir, Resolved as Names, Resolver};
use crossweave_config as config;
use crossweave_engine::{StateKind, Trainer, init_trained};
use crossweave_nn::lora::is_adapter;
use crossweave_nn::rope::RopeScaling;
use crossweave_nn::{Gpt2, Llama, Lora, ModelSpec};
use crossweave_tensor::{Builder, Init, UnitDecl};
use serde_json::Value;
use std::path::Path;

/// A Hugging Face folder whose every tensor has been matched with a parameter.
pub struct Folder {
    /// The folder.
    pub dir: HfDir,
    /// Which tensor is which parameter.
    pub names: Names,
}

/// A model ready to be built on any number of ranks.
pub struct Source {
    /// Family and dimensions.
    pub spec: ModelSpec,
    /// Where the weights come from; `None` = a checkpoint, else drawn from the seed.
    pub folder: Option<Folder>,
    /// The checkpoint of a run that the weights come from.
    pub checkpoint: Option<Checkpoint>,
    /// Starting deviations of a new model, which no checkpoint records.
    init: Option<config::Init>,
    /// What is trained instead of the folder's weights.
    pub lora: Option<Lora>,
    /// Where its values come from; `None` = drawn from the seed.
    pub adapter: Option<Adapter>,
    /// A hash of the folder's weights, where something is trained beside them.
    pub fingerprint: Option<String>,
}

fn key_error(file: &Path, e: &crossweave_nn::ConfigError) -> CliError {
    CliError::refused(
        format!("{}: {}: {}", file.display(), e.key, e.what),
        "give a config.json of a gpt2 or llama model with these features only",
    )
}

/// Opens a model folder.
///
/// # Errors
/// Missing or damaged files; a family or feature that is not available; names or shapes that do not match, all at once.
pub fn open_folder(dir: &Path) -> Result<Source> {
    if adapter::is_folder(dir) {
        let described = adapter::describe(dir)?;
        let mut source = open_folder(&described.base)?;
        source.adapt(described.lora, &described.key)?;
        source.adapter = Some(adapter::open(dir, &source.units())?);
        return Ok(source);
    }
    let dir = HfDir::open(dir)?;
    let file = dir.path.join("config.json");
    let spec = ModelSpec::from_hf(&dir.config).map_err(|e| key_error(&file, &e))?;
    // Declarations are only numbers, but a table of positions is made with them: a damaged size must not ask for one that no file
    // could have been trained with.
    if spec.model().max_positions() > 1 << 24 {
        return Err(CliError::refused(
            format!(
                "{}: {} positions cannot be real",
                file.display(),
                spec.model().max_positions()
            ),
            "restore config.json from the model's source",
        ));
    }
    let expected = units_of(&spec).into_iter().flat_map(|u| u.params).map(|p| {
        let shape = p.shape.dims().iter().map(|d| *d as usize).collect();
        (p.name, shape)
    });
    let (tied, embedding) = match &spec {
        ModelSpec::Gpt2(m) => (m.tie_word_embeddings, "transformer.wte.weight"),
        ModelSpec::Llama(m) => (m.tie_word_embeddings, "model.embed_tokens.weight"),
    };
    let mut resolver = Resolver::new(expected);
    if tied {
        resolver = resolver.tie("lm_head.weight", embedding);
    }
    let names = resolver.resolve(&dir)?;
    Ok(Source {
        spec,
        folder: Some(Folder { dir, names }),
        checkpoint: None,
        init: None,
        lora: None,
        adapter: None,
        fingerprint: None,
    })
}

/// The model of a run's checkpoint.
///
/// # Errors
/// A checkpoint that remembers no model.
pub fn of_checkpoint(checkpoint: Checkpoint) -> Result<Source> {
    Ok(Source {
        spec: trained::spec(&checkpoint)?,
        folder: None,
        checkpoint: Some(checkpoint),
        init: None,
        lora: None,
        adapter: None,
        fingerprint: None,
    })
}

/// The model a config asks for; `vocab` is the tokenizer's, taken where the config gives none.
///
/// # Errors
/// As [`open_folder`]; a vocabulary nobody knows.
pub fn of_config(model: &config::Model, vocab: Option<u64>) -> Result<Source> {
    let vocab_of = |given: Option<u64>| {
        given.or(vocab).ok_or_else(|| {
            CliError::refused(
                "model.vocab_size: not given, and there is no tokenizer to take it from",
                "add \"vocab_size\" to \"model\"",
            )
        })
    };
    match model {
        config::Model::Hf(m) => {
            let mut source = open_folder(&hub::folder(&m.hf, "model.hf", Part::Model)?)?;
            match (&m.lora, &source.adapter) {
                (Some(_), Some(a)) => {
                    return Err(CliError::refused(
                        format!(
                            "model.lora: {} is an adapter, whose own adapter_config.json says what is trained",
                            a.dir.display()
                        ),
                        "remove model.lora to train that adapter on, or name the model's folder to begin a new one",
                    ));
                }
                (Some(l), None) => {
                    source.adapt(adapter::of_config(l), "model.lora.target_modules")?;
                }
                (None, _) => {}
            }
            match &mut source.spec {
                ModelSpec::Gpt2(g) => {
                    g.embd_pdrop = m.embd_pdrop.unwrap_or(g.embd_pdrop);
                    g.resid_pdrop = m.resid_pdrop.unwrap_or(g.resid_pdrop);
                    g.attn_pdrop = m.attn_pdrop.unwrap_or(g.attn_pdrop);
                }
                ModelSpec::Llama(l) => {
                    l.attention_dropout = m.attn_pdrop.unwrap_or(l.attention_dropout);
                    for (key, p) in [("embd_pdrop", m.embd_pdrop), ("resid_pdrop", m.resid_pdrop)] {
                        if p.unwrap_or(0.0) > 0.0 {
                            return Err(CliError::refused(
                                format!("model.{key}: the llama family has no such dropout"),
                                "remove it",
                            ));
                        }
                    }
                }
            }
            Ok(source)
        }
        config::Model::New(config::NewModel::Gpt2(m)) => {
            let spec = ModelSpec::Gpt2(Gpt2 {
                vocab_size: vocab_of(m.vocab_size)?,
                n_positions: m.n_positions,
                n_embd: m.n_embd,
                n_layer: m.n_layer,
                n_head: m.n_head,
                n_inner: m.n_inner.unwrap_or(4 * m.n_embd),
                activation: activation(&m.activation_function)?,
                layer_norm_epsilon: m.layer_norm_epsilon,
                embd_pdrop: m.embd_pdrop,
                resid_pdrop: m.resid_pdrop,
                attn_pdrop: m.attn_pdrop,
                tie_word_embeddings: m.tie_word_embeddings,
                scale_attn_weights: true,
                scale_attn_by_inverse_layer_idx: false,
                initializer_range: m.init.std as f32,
            });
            finish(spec, &m.init)
        }
        config::Model::New(config::NewModel::Llama(m)) => {
            if m.hidden_act != "silu" {
                return Err(CliError::refused(
                    format!(
                        "model.hidden_act: {:?} is not available for llama",
                        m.hidden_act
                    ),
                    "set it to \"silu\"",
                ));
            }
            let heads = m.num_attention_heads;
            let spec = ModelSpec::Llama(Llama {
                vocab_size: vocab_of(m.vocab_size)?,
                hidden_size: m.hidden_size,
                // Resolved settings always hold these three.
                intermediate_size: m.intermediate_size.unwrap_or(4 * m.hidden_size),
                num_key_value_heads: m.num_key_value_heads.unwrap_or(heads),
                head_dim: m.head_dim.unwrap_or(m.hidden_size / heads.max(1)),
                num_hidden_layers: m.num_hidden_layers,
                num_attention_heads: heads,
                max_position_embeddings: m.max_position_embeddings,
                rms_norm_eps: m.rms_norm_eps,
                rope_theta: m.rope_theta,
                rope_scaling: rope(m.rope_scaling.as_ref())?,
                attention_bias: m.attention_bias,
                mlp_bias: m.mlp_bias,
                attention_dropout: m.attention_dropout,
                tie_word_embeddings: m.tie_word_embeddings,
                initializer_range: m.init.std as f32,
            });
            finish(spec, &m.init)
        }
    }
}

fn finish(spec: ModelSpec, init: &config::Init) -> Result<Source> {
    spec.validate().map_err(|e| {
        CliError::refused(
            format!("model.{}: {}", e.key, e.what),
            "change one of the two",
        )
    })?;
    Ok(Source {
        spec,
        folder: None,
        checkpoint: None,
        init: Some(init.clone()),
        lora: None,
        adapter: None,
        fingerprint: None,
    })
}

fn activation(name: &str) -> Result<crossweave_tensor::Activation> {
    let value = serde_json::json!({"model_type": "gpt2", "activation_function": name});
    match ModelSpec::from_hf(&value) {
        Ok(ModelSpec::Gpt2(m)) => Ok(m.activation),
        Ok(ModelSpec::Llama(_)) => Err(CliError::refused("not a gpt2 model", "report this")),
        Err(e) => Err(CliError::refused(
            format!("model.activation_function: {}", e.what),
            "name one that is available",
        )),
    }
}

fn rope(r: Option<&config::RopeScaling>) -> Result<RopeScaling> {
    let Some(r) = r else {
        return Ok(RopeScaling::None);
    };
    Ok(match r.rope_type.as_str() {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: r.factor },
        "llama3" => RopeScaling::Llama3 {
            factor: r.factor,
            low_freq_factor: r.low_freq_factor,
            high_freq_factor: r.high_freq_factor,
            original_max_position_embeddings: r.original_max_position_embeddings as f64,
        },
        other => {
            return Err(CliError::refused(
                format!("model.rope_scaling.rope_type: {other:?} is not available"),
                "use default, linear or llama3",
            ));
        }
    })
}

fn units_of(spec: &ModelSpec) -> Vec<UnitDecl> {
    let mut b = Builder::default();
    spec.model().build(&mut b);
    b.finish()
}

impl Source {
    /// Width of the residual stream.
    pub fn width(&self) -> u64 {
        match &self.spec {
            ModelSpec::Gpt2(m) => m.n_embd,
            ModelSpec::Llama(m) => m.hidden_size,
        }
    }

    /// The units, declared anew (each rank owns its blocks).
    pub fn units(&self) -> Vec<UnitDecl> {
        // Its targets were found when it was asked for.
        let adapted = self.lora.as_ref();
        let adapted = adapted.and_then(|l| l.units(self.spec.model()).ok());
        let mut units = adapted.unwrap_or_else(|| units_of(&self.spec));
        let Some(init) = &self.init else {
            return units;
        };
        // The families themselves scale as GPT-2 does and Llama does not; the config may say otherwise.
        let (layers, last) = match &self.spec {
            ModelSpec::Gpt2(m) => (m.n_layer, ["c_proj.weight", "c_proj.weight"]),
            ModelSpec::Llama(m) => (m.num_hidden_layers, ["o_proj.weight", "down_proj.weight"]),
        };
        let std = if init.scale_residual {
            init.std / (2.0 * layers as f64).sqrt()
        } else {
            init.std
        };
        for p in units.iter_mut().flat_map(|u| &mut u.params) {
            if last.iter().any(|end| p.name.ends_with(end)) {
                p.init = Init::Normal(std as f32);
            }
        }
        units
    }

    /// Gives a rank its starting values.
    ///
    /// # Errors
    /// A tensor that cannot be read; the device.
    pub fn start(&self, trainer: &mut Trainer) -> Result<()> {
        if let Some(checkpoint) = &self.checkpoint {
            self.start_base(trainer)?;
            return resume::weights(trainer, checkpoint);
        }
        if self.folder.is_none() {
            return Ok(trainer.init()?);
        }
        if self.lora.is_some() {
            init_trained(trainer)?;
        }
        self.load(trainer)?;
        for p in trainer.params() {
            if let Some(adapter) = &self.adapter
                && is_adapter(&p.name)
                && trainer.holds(&p.name)
            {
                trainer.load(&p.name, StateKind::Value, &adapter.read_f32(&p.name)?)?;
            }
        }
        Ok(trainer.publish()?)
    }

    /// Gives a rank what no checkpoint holds: the model under the adapters.
    ///
    /// # Errors
    /// As [`Source::start`].
    pub fn start_base(&self, trainer: &mut Trainer) -> Result<()> {
        match self.lora {
            Some(_) => self.load(trainer),
            None => Ok(()),
        }
    }

    /// The folder's weights.
    fn load(&self, trainer: &mut Trainer) -> Result<()> {
        let Some(folder) = &self.folder else {
            return Ok(());
        };
        let wanted = trainer.params().into_iter();
        for p in wanted.filter(|p| !is_adapter(&p.name)) {
            // Another pipeline stage reads it.
            if !trainer.holds(&p.name) {
                continue;
            }
            // Every parameter was resolved when the folder was opened.
            let name = folder.names.file_name(&p.name).unwrap_or(&p.name);
            trainer.load(&p.name, StateKind::Value, &folder.dir.read_f32(name)?)?;
        }
        Ok(())
    }

    /// From now on adapters are trained, and the weights stay. `key` names the targets in messages.
    ///
    /// # Errors
    /// Targets that are not there; weights that cannot be read.
    pub fn adapt(&mut self, lora: Lora, key: &str) -> Result<()> {
        lora.units(self.spec.model())
            .map_err(|e| CliError::refused(format!("{key}: {}", e.what), e.fix))?;
        self.lora = Some(lora);
        let folder = self.folder.as_ref();
        self.fingerprint = folder.map(|f| f.dir.fingerprint()).transpose()?;
        Ok(())
    }

    /// `config.json` of the trained model: what the family writes, with the special tokens of the folder it came from.
    pub fn hf_config(&self, eod: Option<u32>) -> Value {
        let mut config = self.spec.model().hf_config();
        let from = self.folder.as_ref().map(|f| &f.dir.config);
        for key in ["bos_token_id", "eos_token_id", "pad_token_id"] {
            let value = match from {
                // A folder that names none gets those of the run.
                Some(c) => match c.get(key) {
                    Some(Value::Null) | None if key != "pad_token_id" => eod.map(Value::from),
                    told => told.cloned(),
                },
                None if key == "pad_token_id" => None,
                None => eod.map(Value::from),
            };
            if let Some(value) = value {
                config[key] = value;
            }
        }
        config
    }
}
