//! A trained model, opened for probes and samples, without a config.

use crate::backend::{BackendChoice, choose, host};
use crate::infer::{self, Draw};
use crate::model::Source;
use crate::surroundings::Surroundings;
use crate::train_error::{Result, TrainError};
use crate::trained;
use crossweave_data::Tokenizer;
use crossweave_engine::Engine;
use crossweave_hal::DType;
use std::path::Path;

/// A model on one device, in f32.
///
/// What may be opened is a model's folder in the layout of Hugging Face, the folder of a run, or one of its checkpoints.
pub struct Model {
    source: Source,
    tokenizer: std::result::Result<Tokenizer, String>,
    engine: Engine,
}

/// Logits of rows of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Logits {
    /// Rows, tokens of a row, and ids of the vocabulary.
    pub shape: [usize; 3],
    /// The logits, row by row, token by token.
    pub values: Vec<f32>,
}

impl Model {
    /// Opens a model on the CPU.
    ///
    /// # Errors
    /// Nothing there; a folder that is neither a model's nor a run's, or is damaged; memory.
    pub fn open(folder: impl AsRef<Path>) -> Result<Model> {
        let cpu = BackendChoice {
            name: Some("cpu".into()),
            ..BackendChoice::default()
        };
        Model::open_on(folder.as_ref(), &cpu, &Surroundings::default())
    }

    /// Opens a model on the first device of a back end.
    ///
    /// # Errors
    /// As [`Model::open`]; a back end that is not there.
    pub fn open_on(folder: &Path, backend: &BackendChoice, around: &Surroundings) -> Result<Model> {
        let model = trained::open(folder, &around.caches)?;
        let services = host(&around.plugins, 1, None, None);
        let plugin = choose(backend, "cpu", &services, &around.plugins)?;
        let tokenizer = model.tokenizer(&around.caches);
        let engine = infer::open(&model.source, &plugin, &services, DType::F32, 1, 1)?;
        Ok(Model {
            source: model.source,
            tokenizer: tokenizer.map_err(|e| e.to_string()),
            engine,
        })
    }

    /// The logits of rows of tokens, all of one length.
    ///
    /// # Errors
    /// No rows, rows of several lengths or longer than the model's positions, ids outside its vocabulary; the device.
    pub fn probe(&mut self, rows: &[Vec<u32>]) -> Result<Logits> {
        let model = self.source.spec.model();
        let (vocab, positions) = (model.vocab, model.positions);
        let refused = |what: String| {
            let fix = "give rows of one length, of ids of the model's vocabulary";
            Err(TrainError::refused(what, fix))
        };
        let Some(first) = rows.first().filter(|r| !r.is_empty()) else {
            return refused("there is no row of tokens".into());
        };
        if let Some(at) = rows.iter().position(|r| r.len() != first.len()) {
            return refused(format!(
                "row {at} has {} tokens, and row 0 has {}",
                rows[at].len(),
                first.len()
            ));
        }
        if first.len() as u64 > positions {
            return refused(format!(
                "rows of {} tokens do not fit a model of {positions} positions",
                first.len()
            ));
        }
        let beyond = |r: &Vec<u32>| r.iter().copied().find(|id| u64::from(*id) >= vocab);
        if let Some(id) = rows.iter().find_map(beyond) {
            return refused(format!("id {id} is outside the vocabulary of {vocab}"));
        }
        let tokens: Vec<i32> = rows.iter().flatten().map(|id| *id as i32).collect();
        let (b, t) = (rows.len(), first.len());
        let heads = self.engine.logits_of(&tokens, &[], [b as u64, t as u64])?;
        let values = heads.into_iter().next().unwrap_or_default();
        Ok(Logits {
            shape: [b, t, vocab as usize],
            values,
        })
    }

    /// Continues a text: the continuation alone.
    ///
    /// # Errors
    /// A model without a tokenizer, or one that does not continue texts; a prompt that cannot be encoded; the device.
    pub fn generate(&mut self, prompt: &str, draw: Draw) -> Result<String> {
        infer::continues(&self.source)?;
        let tokenizer = self.tokenizer.as_ref().map_err(|e| {
            TrainError::refused(
                format!("the model has no tokenizer: {e}"),
                "copy the tokenizer's files beside its weights, or probe it with ids",
            )
        })?;
        infer::continue_text(&mut self.engine, &self.source, tokenizer, prompt, draw)
    }
}
