//! Models: families whose parameter names and shapes are those of Hugging Face checkpoints, so that no
//! name map is needed.
//!
//! A model declares its units in run order (embedding, layers, head); it knows nothing of optimizers,
//! ranks or devices. **Invariant** (`docs/invariants.md`): its logits, loss and gradients equal those of
//! `transformers` in float64.
#![forbid(unsafe_code)]

pub mod gpt2;
mod hf;
pub mod llama;
pub mod lora;
pub mod rope;

pub use gpt2::Gpt2;
pub use hf::{ConfigError, ModelSpec};
pub use llama::Llama;
pub use lora::{Adapters, Lora, LoraError, Targets};

use crossweave_tensor::Builder;

/// A model: declares its units.
pub trait Model: Send + Sync {
    /// Declares units and parameters, with the adapters that are asked for; allocates nothing.
    fn declare(&self, b: &mut Builder, adapters: &mut Adapters);
    /// The same of the model alone.
    fn build(&self, b: &mut Builder) {
        self.declare(b, &mut Adapters::default());
    }
    /// Modules that PEFT adapts where nobody says which.
    fn lora_targets(&self) -> &'static [&'static str];
    /// Rows of the token embedding.
    fn vocab(&self) -> u64;
    /// Longest sequence.
    fn max_positions(&self) -> u64;
    /// `config.json` in the form `transformers` reads.
    fn hf_config(&self) -> serde_json::Value;
    /// Floating-point operations a trained token costs at sequence length `t`: 6 per matmul weight + 12 L d T for attention
    /// (PaLM's appendix B; no causal discount).
    fn flops_per_token(&self, t: u64) -> f64;
}
