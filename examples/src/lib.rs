//! Numbered lessons: each a short program under `src/bin/`, run by this package's tests. Here is what they share: rows to train on, and a config
//! of a small model for them.
#![forbid(unsafe_code)]

use crossweave::DataSource;
use serde_json::{Value, json};
use std::error::Error;
use std::path::Path;

/// Token ids of [`Chain`].
pub const VOCAB: u32 = 32;

/// Rows in which each token decides the next, t -> 5t + 7 (mod 32), so that a model can come to a loss of nearly 0. Row `n` begins with `n`.
pub struct Chain;

impl DataSource for Chain {
    fn seq_len(&self) -> usize {
        32
    }

    fn rows(&self) -> u64 {
        VOCAB.into()
    }

    fn row(&self, number: u64) -> Result<Vec<u32>, Box<dyn Error + Send + Sync>> {
        let first = number as u32 % VOCAB;
        let next = |t: &u32| Some((5 * t + 7) % VOCAB);
        Ok(std::iter::successors(Some(first), next).take(33).collect())
    }
}

/// A model of one block for those rows, trained in `steps` steps of 4 rows by AdamW and ZeRO-2. The run's files go to `out`.
pub fn config(out: &Path, steps: u64) -> Value {
    json!({
        "model": {"family": "gpt2", "n_layer": 1, "n_embd": 48, "n_head": 4, "n_positions": 32, "vocab_size": VOCAB},
        "train_batch_size": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.0}},
        "zero_optimization": {"stage": 2},
        "run": {"steps": steps, "out": out, "threads_per_rank": 1, "checkpoint_every": 0}
    })
}
