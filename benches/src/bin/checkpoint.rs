//! Saving and loading against a plain file of as many bytes, written and synced, read back.
//!
//! `cargo run --release -p crossweave-benches --bin checkpoint -- --mib 512 --ranks 2 --dir /somewhere`
//!
//! The plain file is the bound: what a save takes longer is hashing and the manifest. Reads come from the page cache, so they show
//! the cost of verification and not of the disk. Each line is the least of `--rounds`, taken in turns.

use crossweave_benches::options::{Options, program};
use crossweave_checkpoint::{Checkpoint, Dtype, Patience, Proof, Writer, session};
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const HELP: &str = "\
Saving and loading a checkpoint against a plain file of as many bytes.

  --mib 512       MiB of the checkpoint
  --ranks 2       ranks that write it
  --rounds 3      saves and loads, in turns; the least time counts
  --dir .         folder for files: its file system is the one measured

Example: checkpoint --mib 512 --ranks 2 --dir /mnt/nvme";

fn main() -> ExitCode {
    program(HELP, 0, run)
}

fn timed(best: &mut f64, work: impl FnOnce() -> Fallible<()>) -> Fallible<()> {
    let began = Instant::now();
    work()?;
    *best = best.min(began.elapsed().as_secs_f64());
    Ok(())
}

fn run(mut o: Options) -> Fallible<()> {
    let bytes = (o.number("mib", 512, 1)? << 20) as usize;
    let ranks = o.number("ranks", 2, 1)? as usize;
    let rounds = o.number("rounds", 3, 1)?;
    let dir = o.text("dir").unwrap_or_else(|| ".".into());
    o.done()?;
    let dir = Path::new(&dir).join(format!(".checkpoint-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let done = measure(&dir, bytes, ranks, rounds);
    std::fs::remove_dir_all(&dir)?;
    done
}

fn measure(dir: &Path, bytes: usize, ranks: usize, rounds: u64) -> Fallible<()> {
    let data: Vec<u8> = (0..bytes).map(|i| (i * 31 + i / 4099) as u8).collect();
    let names = [
        "plain file, written and synced",
        "checkpoint saved",
        "plain file read",
        "checkpoint opened and verified whole",
        "half of it read by another layout, verified",
    ];
    let mut best = [f64::INFINITY; 5];
    let plain = dir.join("plain");
    let mut out = vec![0; bytes];
    for round in 1..=rounds {
        timed(&mut best[0], || {
            let mut f = std::fs::File::create(&plain)?;
            f.write_all(&data)?;
            Ok(f.sync_all()?)
        })?;
        timed(&mut best[1], || save(dir, round, ranks, &data))?;
        timed(&mut best[2], || {
            Ok(std::fs::File::open(&plain)?.read_exact(&mut out)?)
        })?;
        timed(&mut best[3], || {
            Checkpoint::open(dir)?;
            Ok(())
        })?;
        timed(&mut best[4], || {
            let c = Checkpoint::open_as(dir, Proof::AsRead)?;
            let n = bytes as u64 / 4;
            c.logical_range("state", n / 4..n / 4 + n / 2)?;
            Ok(())
        })?;
    }
    println!(
        "{}, {ranks} ranks, least of {rounds}",
        crossweave_words::Size(bytes as u64)
    );
    for (i, (name, s)) in names.iter().zip(best).enumerate() {
        let moved = bytes as f64 / if i == 4 { 2.0 } else { 1.0 };
        println!("{name:44} {:8.3} s  {:6.2} GB/s", s, moved / s / 1e9);
    }
    Ok(())
}

/// Every rank writes its part at once, as in a run.
fn save(dir: &Path, step: u64, ranks: usize, data: &[u8]) -> Fallible<()> {
    let id = session(dir)?;
    let n = (data.len() / 4).div_ceil(ranks);
    let rank = |r: usize| -> Fallible<()> {
        let writer = Writer::join(dir, step, ranks, &id, r == 0)?;
        let (from, to) = (
            (r * n).min(data.len() / 4),
            ((r + 1) * n).min(data.len() / 4),
        );
        let mut rank = writer.rank(r)?;
        rank.put("flat", Dtype::F32, &[to - from], &data[4 * from..4 * to]);
        let (at, len) = (from as u64, (to - from) as u64);
        rank.owns("state", Dtype::F32, &[data.len() / 4], at, len, "flat", 0)?;
        rank.finish()?;
        if r == 0 {
            let patience = Patience {
                timeout: Duration::from_secs(600),
                failed: &|| false,
                claim: None,
            };
            writer.commit_when(serde_json::Value::Null, &patience)?;
        }
        Ok(())
    };
    let rank = &rank;
    std::thread::scope(|s| {
        let all: Vec<_> = (0..ranks).map(|r| s.spawn(move || rank(r))).collect();
        all.into_iter()
            .try_for_each(|t| t.join().map_err(|_| "a rank panicked")?)
    })?;
    if step > 1 {
        std::fs::remove_dir_all(
            dir.join("checkpoints")
                .join(crossweave_checkpoint::step_dir(step - 1)),
        )?;
    }
    Ok(())
}
