//! From the keys of a new model to its description.

use crate::settings::NewModel;
use crossweave_family::{ConfigError, ModelSpec};
use serde_json::Value;

impl NewModel {
    /// Rows of the embedding; `None` = the tokenizer's vocabulary.
    pub fn vocab_size(&self) -> Option<u64> {
        self.keys.get("vocab_size").and_then(Value::as_u64)
    }

    /// The model that the keys describe, with so many rows of the embedding where they give none.
    ///
    /// # Errors
    /// Numbers that contradict each other.
    pub fn spec(&self, vocab: Option<u64>) -> Result<ModelSpec, ConfigError> {
        let Some(family) = crossweave_family::family(&self.family.to_ascii_lowercase()) else {
            return Err(ConfigError {
                key: "family".into(),
                what: format!("{:?} is not available", self.family),
            });
        };
        let mut keys = self.keys.clone();
        if let (None, Some(vocab)) = (self.vocab_size(), vocab) {
            keys.insert("vocab_size".into(), vocab.into());
        }
        let mut spec = ModelSpec::new(family, &keys)?;
        if let Some(moe) = &self.moe {
            spec = spec.with_moe(moe)?;
        }
        Ok(spec.with_init(self.init.std, self.init.scale_residual))
    }
}
