//! Time and memory of a training step, beside the peer script on the same preset when `--peer-python`, `--peer-script` and `--peer-text` say where it is.
//!
//! `cargo run --release -p crossweave-benches --bin step -- --presets tiny --styles gpt2,llama --dtypes f32 --shapes 1x2,2x1 --steps 20`
//!
//! A shape is RANKSxTHREADS, with `zSTAGE` behind it where parameters, gradients or states are sharded: `2x1z3`. Peer modes are `eager`, `compile`,
//! `ddp`, `zero1`, `fsdp2`, and with `--peer-deepspeed SCRIPT` `ds0` to `ds3`; those of several ranks run on two, or as many as `@N` says (`ds3@4`).
//! What each stage costs over the same thing unsharded, ours and theirs, is printed behind them.
//!
//! Every measurement is a process of its own, so that one's memory is not another's; with a peer the two alternate A B A B and the ratio is of
//! the best medians, each taken over one process.

use crossweave_benches::options::{Options, Usage, program};
use crossweave_benches::presets::Preset;
use crossweave_benches::process::{Memory, cpu_seconds, load, mebibytes};
use crossweave_benches::{least, median};
use crossweave_engine::optimizers::{Adam, Optimizer, ParamGroups};
use crossweave_engine::{
    Axis, Devices, Engine, Links, MicroBatch, Place, Recompute, Units, ZeroSpec, ZeroStage,
    dry_run, prepare,
};
use crossweave_hal::{Bootstrap, DType, HostServices, KvStore, LocalKv, Plugin, RawPlugin};
use crossweave_job::spec::alone;
use crossweave_nn::units;
use crossweave_words::Size;
use serde_json::{Value, json};
use std::process::{Command, ExitCode};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const HELP: &str = "\
Time and memory of a training step on the CPU back end, each measurement in a process of its own.

  --presets tiny,small,gpt2    models
  --styles gpt2,llama          families
  --dtypes f32                 of f32, bf16, f16
  --shapes 1x2,2x1             RANKSxTHREADS, with zSTAGE behind it where states are sharded: 2x1z3
  --steps 20                   steps of a measurement; default: 20, 8 or 5 by the preset
  --rounds 2                   measurements of each, in turns; the best median counts
  --recompute none             none, selective or full

Beside PyTorch on the same preset:
  --peer-python PATH           its Python, with
  --peer-script PATH           the script that trains, and
  --peer-text PATH             the text it trains on
  --peer-deepspeed PATH        the script for the modes ds0 to ds3
  --peer-modes eager,compile,ddp    of eager, compile, ddp, zero1, fsdp2, ds0 to ds3; @N behind one says how many ranks

One measurement in this process, as JSON:
  --one                        do so, with
  --preset tiny                the model
  --style gpt2                 its family
  --dtype f32                  its type
  --shape 1x2                  ranks and threads
  --warmup 3                   steps before the clock starts
  --profile                    print where the back end's time goes

Example: step --presets tiny --styles gpt2,llama --dtypes f32 --shapes 1x2,2x1 --steps 20";

const PRESETS: [&str; 3] = ["tiny", "small", "gpt2"];
const STYLES: [&str; 2] = ["gpt2", "llama"];
const DTYPES: [&str; 3] = ["f32", "bf16", "f16"];
const RECOMPUTES: [&str; 3] = ["none", "selective", "full"];

fn main() -> ExitCode {
    program(HELP, 0, |mut o| match o.text("one") {
        Some(_) => one(o),
        None => all(o),
    })
}

/// Ranks, threads and stage of a shape.
fn shape_of(text: &str) -> Result<(u32, u32, ZeroStage), Usage> {
    let parse = |s: &str| s.parse::<u32>().ok().filter(|n| *n > 0);
    let (plain, stage) = text.split_once('z').unwrap_or((text, "0"));
    let stage = stage.parse().ok().and_then(ZeroStage::from_number);
    let sizes = plain
        .split_once('x')
        .and_then(|(r, t)| Some((parse(r)?, parse(t)?)));
    match (sizes, stage) {
        (Some((ranks, threads)), Some(stage)) => Ok((ranks, threads, stage)),
        _ => Err(Usage(format!(
            "shape {text:?}: wanted RANKSxTHREADS or RANKSxTHREADSzSTAGE, such as 2x1 or 2x1z3"
        ))),
    }
}

/// Every combination asked for, each in processes of its own.
fn all(mut o: Options) -> Fallible<()> {
    let presets = o.choices("presets", "tiny,small,gpt2", &PRESETS)?;
    let styles = o.choices("styles", "gpt2,llama", &STYLES)?;
    let dtypes = o.choices("dtypes", "f32", &DTYPES)?;
    let shapes = o.list("shapes", "1x2,2x1");
    shapes.iter().try_for_each(|s| shape_of(s).map(|_| ()))?;
    let steps = match o.number("steps", 0, 1)? {
        0 => None,
        n => Some(n.to_string()),
    };
    let rounds = o.number("rounds", 2, 1)?;
    let python = o.text("peer-python");
    let peer = match (&python, o.text("peer-script"), o.text("peer-text")) {
        (Some(p), Some(s), Some(t)) => Some(Peer {
            python: p.clone(),
            script: s,
            deepspeed: o.text("peer-deepspeed"),
            text: t,
        }),
        (None, ..) => None,
        _ => {
            let what = "--peer-python needs --peer-script and --peer-text";
            return Err(Usage(what.into()).into());
        }
    };
    let modes = o.list("peer-modes", "eager,compile,ddp");
    let recompute = o.choice("recompute", &RECOMPUTES)?;
    o.done()?;
    let me = std::env::current_exe()?;
    for p in &presets {
        let n = steps.clone().unwrap_or_else(|| {
            match p.as_str() {
                "tiny" => "20",
                "small" => "8",
                _ => "5",
            }
            .into()
        });
        for s in &styles {
            for d in &dtypes {
                let mut ours: Vec<(String, Vec<Value>)> = vec![];
                let mut theirs: Vec<(String, Vec<Value>)> = vec![];
                for _ in 0..rounds {
                    for shape in &shapes {
                        let mut c = Command::new(&me);
                        c.args(["--one", "on", "--preset", p, "--style", s, "--dtype", d]);
                        c.args(["--shape", shape, "--steps", &n, "--recompute", &recompute]);
                        add(&mut ours, shape, child(c)?);
                    }
                    if let Some(peer) = &peer {
                        for mode in &modes {
                            add(&mut theirs, mode, torch(peer, mode, p, s, d, &n)?);
                        }
                    }
                }
                for (label, v) in ours.iter().chain(&theirs) {
                    print_line(&format!("{p}/{s}/{d}/{label}"), v);
                }
                costs(&ours, |label| {
                    let (base, stage) = label.split_once('z')?;
                    (stage != "0").then(|| format!("{base}z0"))
                });
                costs(&theirs, |label| {
                    let (mode, ranks) = label.split_once('@').unwrap_or((label, "2"));
                    let base = match mode {
                        "zero1" | "fsdp2" => "ddp",
                        "ds1" | "ds2" | "ds3" => "ds0",
                        _ => return None,
                    };
                    Some(if label.contains('@') {
                        format!("{base}@{ranks}")
                    } else {
                        base.into()
                    })
                });
                ratios(&ours, &theirs);
            }
        }
    }
    Ok(())
}

fn add(to: &mut Vec<(String, Vec<Value>)>, label: &str, v: Value) {
    match to.iter_mut().find(|(l, _)| l == label) {
        Some((_, all)) => all.push(v),
        None => to.push((label.to_string(), vec![v])),
    }
}

fn figures(v: &[Value], key: &str) -> Vec<f64> {
    v.iter().filter_map(|v| v[key].as_f64()).collect()
}

fn print_line(label: &str, v: &[Value]) {
    let best = |k| least(&figures(v, k));
    println!(
        "{label:<28} ms {:>9.1} (least {:>9.1})  cpu ms {:>9.1}  tokens/s {:>8.0}  GFLOP/s {:>6.1}  RSS +{:>10}  {}",
        best("ms_median"),
        best("ms_min"),
        best("cpu_ms_step"),
        figures(v, "tokens_per_s").into_iter().fold(0.0, f64::max),
        figures(v, "gflops").into_iter().fold(0.0, f64::max),
        mebibytes(figures(v, "rss_delta_mib").into_iter().fold(0.0, f64::max)),
        v.last()
            .map_or(String::new(), |v| v["more"].as_str().unwrap_or("").into()),
    );
}

/// What every label that has a base (`of`) costs over it: median step, least step and processor time.
fn costs(all: &[(String, Vec<Value>)], of: impl Fn(&str) -> Option<String>) {
    for (label, v) in all {
        let base = of(label).and_then(|b| all.iter().find(|(l, _)| *l == b));
        if let Some((name, b)) = base {
            let ratio = |k: &str| least(&figures(v, k)) / least(&figures(b, k));
            println!(
                "  {label} over {name}: {:.3} by median step, {:.3} by least step, {:.3} by processor time",
                ratio("ms_median"),
                ratio("ms_min"),
                ratio("cpu_ms_step"),
            );
        }
    }
}

/// Ours over the best of theirs.
fn ratios(ours: &[(String, Vec<Value>)], theirs: &[(String, Vec<Value>)]) {
    if theirs.is_empty() {
        return;
    }
    let best = |of: &[(String, Vec<Value>)], k: &str| {
        least(
            &of.iter()
                .flat_map(|(_, v)| figures(v, k))
                .collect::<Vec<_>>(),
        )
    };
    let ratio = |k: &str| best(theirs, k) / best(ours, k);
    println!(
        "  ratio of speeds, ours over the best of theirs: {:.2} by median step, {:.2} by least step, {:.2} by processor time; memory {:.2}",
        ratio("ms_median"),
        ratio("ms_min"),
        ratio("cpu_ms_step"),
        1.0 / ratio("rss_delta_mib"),
    );
}

fn child(mut c: Command) -> Fallible<Value> {
    let out = c.output().map_err(|e| format!("{c:?}: {e}"))?;
    let text = String::from_utf8_lossy(&out.stdout);
    let Some(line) = text.lines().rev().find(|l| l.starts_with('{')) else {
        return Err(format!(
            "{c:?} printed no figures: {}",
            String::from_utf8_lossy(&out.stderr)
        )
        .into());
    };
    if let Some(profile) = text.split_once("profile\n") {
        println!("{}", profile.1.trim_end_matches(line).trim_end());
    }
    Ok(serde_json::from_str(line)?)
}

/// Where the peer's scripts are, and the text they train on.
struct Peer {
    python: String,
    script: String,
    deepspeed: Option<String>,
    text: String,
}

/// One run of a peer script.
fn torch(
    peer: &Peer,
    mode: &str,
    preset: &str,
    style: &str,
    dtype: &str,
    steps: &str,
) -> Fallible<Value> {
    let mut c = Command::new(&peer.python);
    let (mode, ranks) = mode.split_once('@').unwrap_or((mode, "2"));
    let stage = mode.strip_prefix("ds");
    let alone = matches!(mode, "eager" | "compile");
    if !alone {
        c.args(["-m", "torch.distributed.run", "--standalone"]);
        c.args(["--nproc-per-node", ranks]);
    }
    let script = match (stage, &peer.deepspeed) {
        (None, _) => &peer.script,
        (Some(_), Some(script)) => script,
        (Some(_), None) => return Err(format!("peer mode {mode:?} needs --peer-deepspeed").into()),
    };
    c.arg(script);
    let threads = if alone { "2" } else { "1" };
    let dtype = if dtype == "f32" { "fp32" } else { dtype };
    c.args(["--preset", preset, "--style", style, "--dtype", dtype]);
    c.args(["--text", &peer.text, "--steps", steps, "--threads", threads]);
    match (mode, stage) {
        ("eager", _) => {}
        ("compile", _) => {
            c.arg("--compile");
        }
        ("ddp" | "zero1" | "fsdp2", _) => {
            c.args(["--mode", mode]);
        }
        (_, Some(stage)) => {
            c.args(["--stage", stage]);
        }
        (m, _) => {
            return Err(format!(
                "peer mode {m:?}: must be eager, compile, ddp, zero1, fsdp2 or ds0 to ds3"
            )
            .into());
        }
    }
    c.env("OMP_WAIT_POLICY", "passive")
        .env("OMP_NUM_THREADS", threads)
        .env("DS_ACCELERATOR", "cpu");
    let mut v = child(c)?;
    // Ours is the memory of all ranks, so theirs must be.
    if let Some(ranks) = v["per_rank"].as_array() {
        let all = figures(ranks, "rss_delta_mib").iter().sum::<f64>();
        v["rss_delta_mib"] = json!(all);
    }
    Ok(v)
}

struct Boot(Arc<dyn KvStore>);
impl Bootstrap for Boot {
    fn set(&self, key: &str, value: &[u8]) -> crossweave_hal::Result<()> {
        self.0.set(key, value)
    }
    fn get(&self, key: &str, timeout: Duration) -> crossweave_hal::Result<Vec<u8>> {
        self.0.get(key, Some(timeout))
    }
}

fn links(boot: &Boot) -> Links<'_> {
    Links {
        timeout: Some(Duration::from_secs(300)),
        ..Links::new(boot)
    }
}

/// One measurement in this process.
fn one(mut o: Options) -> Fallible<()> {
    let preset = o.choice("preset", &PRESETS)?;
    let style = o.choice("style", &STYLES)?;
    let p = Preset::find(&preset, &style)?;
    let dtype = match o.choice("dtype", &DTYPES)?.as_str() {
        "bf16" => DType::Bf16,
        "f16" => DType::F16,
        _ => DType::F32,
    };
    let shape = o.text("shape").unwrap_or("1x2".into());
    let (ranks, threads, stage) = shape_of(&shape)?;
    let steps = o.number("steps", 20, 1)? as usize;
    let warmup = o.number("warmup", 3, 0)?;
    let profile = o.text("profile").is_some();
    let recompute = match o.choice("recompute", &RECOMPUTES)?.as_str() {
        "selective" => Recompute::Selective,
        "full" => Recompute::Full,
        _ => Recompute::None,
    };
    o.done()?;
    let warm = (warmup as usize).min(steps.saturating_sub(1));

    let memory = Memory::start();
    let kv: Arc<dyn KvStore> = Arc::new(LocalKv::default());
    let host = HostServices::builder()
        .config("cpu.devices", ranks.to_string())
        .config("cpu.threads", threads.to_string())
        .config("cpu.profile", if profile { "on" } else { "off" })
        .kv(kv.clone())
        .build();
    let plugin = Plugin::new(RawPlugin::from_static::<crossweave_backend_cpu::CpuBackend>(&host)?);
    let null = Plugin::new(RawPlugin::from_static::<crossweave_backend_null::Null>(
        &host,
    )?);
    let barrier = Barrier::new(ranks as usize);
    let rank = |rank: u32| -> Fallible<Value> {
        let units = units(p.model().model());
        let batch = p.batch / ranks as u64;
        let dry = dry_run(&null.open(0)?, &units, dtype, batch, p.seq)?;
        let mut spec = alone(dtype, (batch, p.seq), false);
        spec.place = Place::on(&[(Axis::Dp, ranks)], rank)?;
        (spec.seed, spec.recompute) = (1, recompute);
        spec.optim = ParamGroups {
            decay_all: true,
            ..ParamGroups::all(
                Optimizer::Adam(Adam {
                    betas: [0.9, 0.95],
                    eps: 1e-8,
                    ..Default::default()
                }),
                0.1,
            )
        };
        spec.zero = ZeroSpec {
            stage,
            ..Default::default()
        };
        let device = plugin.open(rank)?;
        let units = Units::new(units, &spec.place, &spec.optim)?;
        let lowered = prepare(&device, &spec, &units, &dry)?;
        let boot = Boot(kv.clone());
        let mut t = Engine::new(Devices::one(&device), lowered, units, links(&boot))?;
        t.init()?;
        let (mut times, mut loss, mut cpu) = (vec![], f64::NAN, 0.0);
        let n = (batch * p.seq) as usize;
        let mut x = 0x9e37_79b9_7f4a_7c15u64 ^ rank as u64;
        for s in 0..steps {
            if s == warm {
                barrier.wait();
                cpu = cpu_seconds();
            }
            let start = Instant::now();
            let ids: Vec<i32> = (0..n + 1)
                .map(|_| {
                    x = x
                        .wrapping_mul(6364136223846793005)
                        .wrapping_add(1442695040888963407);
                    ((x >> 33) % p.vocab) as i32
                })
                .collect();
            let batch = MicroBatch {
                tokens: &ids[..n],
                targets: &ids[1..],
                lengths: &[],
                images: &[],
                first_sequence: rank as u64 * batch,
            };
            t.step(&[batch], 1e-3)?;
            // Like the peer, which reads its loss in every step. (The command line reads it one step late.)
            loss = t.metrics()?.ok_or("a step without figures")?.loss;
            times.push(start.elapsed().as_secs_f64());
        }
        barrier.wait();
        let cpu = (cpu_seconds() - cpu) / (steps - warm) as f64;
        let kept = &times[warm..];
        let (med, tokens) = (median(kept), (p.batch * p.seq) as f64);
        let ledger = t.ledger();
        let tags = &ledger.memory.tags;
        let peaks = tags
            .iter()
            .filter(|(_, t)| t.peak >> 20 > 0)
            .map(|(k, t)| format!("{k} {}", Size(t.peak)));
        let more = format!(
            "load {:.1}, allocs after step 2: {}, reserved {} a rank, peaks: {}",
            load(),
            ledger.device_allocs_after_step_2,
            Size(ledger.memory.reserved.peak),
            peaks.collect::<Vec<_>>().join(", "),
        );
        if profile && rank == 0 {
            println!(
                "profile\n{}",
                String::from_utf8_lossy(&device.attr("profile")?)
            );
        }
        Ok(json!({
            "preset": p.name, "style": p.style(), "ranks": ranks, "threads": threads, "loss": loss,
            "ms_median": med * 1e3, "ms_min": least(kept) * 1e3, "cpu_ms_step": cpu * 1e3,
            "tokens_per_s": tokens / med, "gflops": p.flops() / med / 1e9, "rss_delta_mib": memory.peak_mib(), "more": more,
        }))
    };
    let out = std::thread::scope(|s| {
        let rank = &rank;
        let all: Vec<_> = (0..ranks)
            .map(|r| s.spawn(move || rank(r)))
            .collect::<Vec<_>>();
        all.into_iter().map(|h| h.join()).collect::<Vec<_>>()
    });
    for (r, line) in out.into_iter().enumerate() {
        let line = line.map_err(|_| format!("rank {r} panicked"))??;
        if r == 0 {
            println!("{line}");
        }
    }
    Ok(())
}
