//! Lesson 3: rows of a program in place of files, and what the trained model makes of them.
//!
//! A `DataSource` gives rows of token ids by number. A number always stands for the same row: every rank reads its own rows, and a run that is
//! resumed reads on, without a word between them.
#![forbid(unsafe_code)]

use crossweave::{DataSource, Model, Team, Trainer};
use serde_json::json;
use std::error::Error;

/// Ids: the digits, and two signs.
const OR: u32 = 10;
const IS: u32 = 11;

/// The larger of two digits, for all hundred pairs: `7 or 8 = 8`.
struct Larger;

impl DataSource for Larger {
    /// Predictions of a row; its ids are one more.
    fn seq_len(&self) -> usize {
        4
    }

    fn rows(&self) -> u64 {
        100
    }

    /// A fixed shuffle, since a step takes rows that follow one another: 37 has no divisor in common with 100.
    fn row(&self, number: u64) -> Result<Vec<u32>, Box<dyn Error + Send + Sync>> {
        let n = (number * 37 % 100) as u32;
        let (a, b) = (n / 10, n % 10);
        Ok(vec![a, OR, b, IS, a.max(b)])
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let out = dir.path().join("run");
    let config = json!({
        "model": {"family": "gpt2", "n_layer": 2, "n_embd": 48, "n_head": 4, "n_positions": 4, "vocab_size": 12},
        "train_batch_size": 20,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.0}},
        "run": {"steps": 400, "out": out, "threads_per_rank": 1, "checkpoint_every": 0}
    });
    let trainer = Trainer::from_config(config)
        .ranks(Team::Threads(2))
        .data(Larger);
    let summary = trainer.run()?.ok_or("this process has rank 0")?;
    println!("{} steps, loss {:?}", summary.steps, summary.last);

    // The folder of the run has a model, which is opened without a config: the logits of the last position say which digit it takes for the larger.
    let rows = (0..100)
        .map(|n| Larger.row(n))
        .collect::<Result<Vec<_>, _>>();
    let rows = rows.map_err(|e| e.to_string())?;
    let asked: Vec<Vec<u32>> = rows.iter().map(|row| row[..4].to_vec()).collect();
    let logits = Model::open(&out)?.probe(&asked)?;
    let [_, positions, vocab] = logits.shape;
    let right = rows.iter().enumerate().filter(|(row, ids)| {
        let last = (row * positions + positions - 1) * vocab;
        let of = &logits.values[last..last + vocab];
        let likeliest = (0..vocab).max_by(|a, b| of[*a].total_cmp(&of[*b]));
        likeliest == Some(ids[4] as usize)
    });
    println!("right: {} of 100", right.count());
    Ok(())
}
