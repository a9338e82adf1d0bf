//! A small model, and rows for it.

use crossweave::{DataSource, Team, Trainer};
use serde_json::{Value, json};
use std::path::Path;

pub type Row = Result<Vec<u32>, Box<dyn std::error::Error + Send + Sync>>;

/// Predictions of a row, and ids.
pub const SEQ: usize = 8;
pub const VOCAB: u64 = 16;

/// Rows by a function of their number.
pub struct Rows<F>(pub F);

impl<F: Fn(u64) -> Row + Send + Sync> DataSource for Rows<F> {
    fn seq_len(&self) -> usize {
        SEQ
    }
    fn rows(&self) -> u64 {
        64
    }
    fn row(&self, number: u64) -> Row {
        (self.0)(number)
    }
}

/// Counting up from the number, which a model learns at once.
pub fn counting(number: u64) -> Row {
    Ok((0..=SEQ as u64)
        .map(|i| ((number + i) % VOCAB) as u32)
        .collect())
}

/// The config: a model that a step of which takes a millisecond.
pub fn config(out: &Path, steps: u64) -> Value {
    json!({
        "model": {"family": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": SEQ, "vocab_size": VOCAB},
        "train_batch_size": 8,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        "zero_optimization": {"stage": 2},
        "run": {"steps": steps, "out": out, "threads_per_rank": 1, "checkpoint_every": 0}
    })
}

/// Trains it on counting rows.
pub fn trainer(out: &Path, steps: u64, ranks: u32) -> Trainer {
    Trainer::from_config(config(out, steps))
        .ranks(Team::Threads(ranks))
        .data(Rows(counting))
}

/// The bits of the losses of the steps that are left.
pub fn losses(trainer: &mut Trainer) -> Vec<u64> {
    let left = trainer.steps().unwrap() - trainer.done();
    let step = |_| trainer.step().unwrap().loss.to_bits();
    (0..left).map(step).collect()
}
