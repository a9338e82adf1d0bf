//! Pipeline schedules as they run beside what the play of their plans says: stages on threads whose launches of products sleep, so that stages that
//! share cores are as fast as stages of their own; and each schedule over 1F1B.
//!
//! `cargo run --release -p crossweave-benches --bin schedules -- [--stages 4] [--micro-batches 8] [--layers 14] [--ms 8] [--rounds 2]`

#![forbid(unsafe_code)]

use crossweave::backend::BackendChoice;
use crossweave::{Team, Trainer};
use crossweave_benches::Fallible;
use crossweave_benches::options::{Options, program};
use crossweave_benches::process::load;
use serde_json::json;
use std::path::Path;
use std::process::ExitCode;

const HELP: &str = "\
How long a step of each pipeline schedule takes, beside the play of its plans with the times that its units took.

  --stages N          pipeline stages, a thread each (default 4)
  --micro-batches N   micro-batches of a step, a multiple of the stages and twice them at least (default twice the stages)
  --layers N          transformer layers; with embedding and head a multiple of twice the stages is even (default 14)
  --ms T              milliseconds that each launch of a product sleeps; 0: the processor's own work alone (default 8)
  --width N           hidden size, a multiple of 16 (default 16)
  --tokens N          tokens of a sequence (default 16)
  --rounds N          runs of each schedule, of which the one that is nearest to its plan is printed (default 2)

Example: schedules --stages 8 --layers 30 --ms 4";

fn main() -> ExitCode {
    program(HELP, 0, run)
}

/// A job, but for its schedule.
struct Sizes {
    stages: u64,
    micro_batches: u64,
    layers: u64,
    width: u64,
    tokens: u64,
    ms: u64,
}

/// Milliseconds of a step as it ran and as its plans are played, from its first forward to its last backward, and the part of the first in which
/// stages are idle.
struct Found {
    ran: f64,
    played: f64,
    idle: f64,
}

impl Found {
    fn off(&self) -> f64 {
        self.ran / self.played - 1.0
    }
}

fn run(mut o: Options) -> Fallible<()> {
    let stages = o.number("stages", 4, 1)?;
    let sizes = Sizes {
        stages,
        micro_batches: o.number("micro-batches", 2 * stages, 1)?,
        layers: o.number("layers", 14, 1)?,
        width: o.number("width", 16, 16)?,
        tokens: o.number("tokens", 16, 2)?,
        ms: o.number("ms", 8, 0)?,
    };
    let rounds = o.number("rounds", 2, 1)?;
    o.done()?;
    println!(
        "{stages} stages, {} micro-batches, {} layers of {}, {} tokens, {} ms a product; load {:.1}",
        sizes.micro_batches,
        sizes.layers,
        sizes.width,
        sizes.tokens,
        sizes.ms,
        load()
    );
    println!("schedule          ran ms    played ms      off     idle   over 1f1b");
    let mut first = None;
    for schedule in ["1f1b", "gpipe", "interleaved", "zb-h1", "zbv", "dualpipev"] {
        let each = (0..rounds).map(|_| measure(schedule, &sizes));
        let each = each.collect::<Fallible<Vec<Found>>>()?;
        let near = each
            .iter()
            .min_by(|a, b| a.off().abs().total_cmp(&b.off().abs()));
        let Some(found) = near else { continue };
        let over = found.ran / *first.get_or_insert(found.ran);
        println!(
            "{schedule:<14} {:>9.1} {:>12.1} {:>+7.1} % {:>6.1} % {over:>9.3}",
            found.ran,
            found.played,
            100.0 * found.off(),
            100.0 * found.idle
        );
    }
    Ok(())
}

fn measure(schedule: &str, sizes: &Sizes) -> Fallible<Found> {
    let dir = tempfile::tempdir()?;
    let text = "a line of words, and another one beside it\n".repeat(400);
    std::fs::write(dir.path().join("text.txt"), text)?;
    let out = dir.path().join("run");
    let config = json!({
        "model": {"family": "llama", "hidden_size": sizes.width, "num_hidden_layers": sizes.layers, "num_attention_heads": sizes.width / 8,
            "max_position_embeddings": sizes.tokens},
        "data": {"train": dir.path().join("text.txt"), "tokenizer": "bytes", "validation_fraction": 0, "cache_dir": dir.path().join("cache")},
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": sizes.micro_batches,
        "mesh": {"pp": sizes.stages, "pp_schedule": schedule},
        "optimizer": {"type": "SGD", "params": {"lr": 0.001}},
        "run": {"steps": 3, "threads_per_rank": 1, "checkpoint_every": 0},
    });
    let slow = (sizes.ms > 0).then(|| format!("throttle=launch:matmul:{}ms", sizes.ms));
    let trainer = Trainer::from_config(config)
        .ranks(Team::Threads(sizes.stages as u32))
        .backend(BackendChoice {
            layers: slow.into_iter().collect(),
            ..BackendChoice::default()
        })
        .out(out.clone());
    trainer.run()?;
    of_run(&out)
}

/// The stages of a finished run and its plan of them, as its folder has both.
fn of_run(out: &Path) -> Fallible<Found> {
    let run = crossweave_report::read(out, None)?;
    let (ran, planned) = run.stages().ok_or("no step was watched")?;
    let planned = planned.ok_or("no step was planned")?;
    Ok(Found {
        ran: ran.computed() as f64 / 1e6,
        played: planned.computed() as f64 / 1e6,
        idle: ran.idle(),
    })
}
