//! Lesson 4: a loop of one's own. The program looks at each loss, ends the run by a rule that no key of the config has, saves, and goes on
//! later from what is saved.
#![forbid(unsafe_code)]

use crossweave::{Team, Trainer};
use crossweave_examples::{Chain, config};
use serde_json::Value;
use std::error::Error;
use std::path::Path;

/// Steps over which losses are averaged.
const WINDOW: usize = 10;

/// Returns true once the mean loss of the last `WINDOW` steps is no longer a tenth below that of the `WINDOW` before.
fn flat(losses: &[f64]) -> bool {
    let mut windows = losses.rchunks_exact(WINDOW);
    let mut mean = || Some(windows.next()?.iter().sum::<f64>());
    match (mean(), mean()) {
        (Some(last), Some(before)) => last > 0.9 * before,
        _ => false,
    }
}

fn trainer(config: Value) -> Trainer {
    Trainer::from_config(config)
        .ranks(Team::Threads(2))
        .data(Chain)
}

/// Trains until the losses are flat, and saves a checkpoint there: the steps done.
fn until_flat(out: &Path) -> Result<u64, Box<dyn Error>> {
    // The steps of the config are the most there can be.
    let mut trainer = trainer(config(out, 500));
    let mut losses = vec![];
    while trainer.done() < trainer.steps()? && !flat(&losses) {
        let record = trainer.step()?;
        losses.push(record.loss);
        if record.step.is_multiple_of(20) {
            println!("step {:3}  loss {:.4}", record.step, record.loss);
        }
    }
    let saved = trainer.save()?;
    println!("flat after {}: {}", trainer.done(), saved.display());
    Ok(trainer.done())
    // The trainer is dropped here: its ranks end, and nothing else is written.
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let out = dir.path().join("run");
    let done = until_flat(&out)?;

    // Another trainer, of another process if need be, continues the run in its folder: weights, moments and the place in the rows are those
    // that were saved. Twenty steps more, and then the end, which writes the model.
    let mut more = trainer(config(&out, done + 20)).resume(&out);
    more.start()?;
    assert_eq!(more.done(), done);
    let mut last = f64::INFINITY;
    while more.done() < more.steps()? {
        last = more.step()?.loss;
    }
    println!("step {:3}  loss {last:.4}", more.done());
    more.finish()?;
    assert!(out.join("model/model.safetensors").is_file());
    Ok(())
}
