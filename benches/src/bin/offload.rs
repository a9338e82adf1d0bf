//! What offload costs and what it buys: step time of each kind, speed of the update and of the files beside their bounds, and the
//! largest model that trains under a fixed device memory without and with it.
//!
//! `cargo run --release -p crossweave-benches --bin offload -- --dir /somewhere --fio /usr/bin/fio`

use crossweave_backend_cpu::CpuBackend;
use crossweave_backend_null::Null;
use crossweave_benches::options::{Options, program};
use crossweave_benches::presets::Preset;
use crossweave_benches::process::load;
use crossweave_benches::{Fallible, files, least, median, update};
use crossweave_engine::optimizers::{Adam, Optimizer, ParamGroups};
use crossweave_engine::{
    Devices, Engine, FileSettings, Links, MicroBatch, OffloadDevice, OffloadSpec, OptimizerOffload,
    Recompute, Units, ZeroSpec, ZeroStage, dry_run, predict, prepare,
};
use crossweave_hal::{Bootstrap, DType, HostServices, KvStore, LocalKv, Plugin, RawPlugin};
use crossweave_job::spec::alone;
use crossweave_nn::units;
use crossweave_words::Size;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

const HELP: &str = "\
What offload costs and what it buys, on the CPU back end with one rank.

  --preset tiny     model of the step times: tiny, small or gpt2
  --rounds 5        steps of each kind, in turns
  --threads 2       threads of the device
  --mib 256         bytes of the update and of the file transfers
  --dir .           folder for files: its file system is the one measured
  --fio PATH        the program to compare file transfers with; else the one on PATH, else a plain loop
  --budget-mib 48   device memory of the largest trainable model
  --width 128       width of its layers
  --most 12         stop at so many times the layers that fit without offload

One step under the budget in this process, as JSON:
  --one KIND        what rests off the device, as the tables name it
  --layers 1        layers of the model

Example: offload --dir /mnt/nvme --mib 1024 --rounds 20";

/// What may rest off the device.
#[derive(Clone, Copy, PartialEq)]
struct Kind {
    name: &'static str,
    tier: Option<OffloadDevice>,
    params: bool,
    inputs: bool,
    recompute: Recompute,
}

const fn kind(name: &'static str, tier: Option<OffloadDevice>, params: bool) -> Kind {
    Kind {
        name,
        tier,
        params,
        inputs: false,
        recompute: Recompute::None,
    }
}

const KINDS: [Kind; 7] = [
    kind("none", None, false),
    kind("optimizer on host", Some(OffloadDevice::Host), false),
    kind("optimizer on nvme", Some(OffloadDevice::Nvme), false),
    kind(
        "optimizer and params on host",
        Some(OffloadDevice::Host),
        true,
    ),
    kind(
        "optimizer and params on nvme",
        Some(OffloadDevice::Nvme),
        true,
    ),
    Kind {
        recompute: Recompute::Full,
        ..kind("none, full recompute", None, false)
    },
    Kind {
        recompute: Recompute::Full,
        inputs: true,
        ..kind("cpu_checkpointing", None, false)
    },
];

fn main() -> ExitCode {
    program(HELP, 0, run)
}

fn run(mut o: Options) -> Fallible<()> {
    let preset = o.choice("preset", &["tiny", "small", "gpt2"])?;
    let (rounds, threads) = (o.number("rounds", 5, 1)?, o.number("threads", 2, 1)?);
    let bytes = o.number("mib", 256, 8)? << 20;
    let budget = o.number("budget-mib", 48, 1)? << 20;
    let (width, most) = (o.number("width", 128, 1)?, o.number("most", 12, 1)?);
    let (fio, one) = (o.text("fio"), o.text("one"));
    let layers = o.number("layers", 1, 1)?;
    let parent = PathBuf::from(o.text("dir").unwrap_or_else(|| ".".into()));
    o.done()?;
    let limit = if one.is_some() { budget } else { u64::MAX };
    let dir = parent.join(format!(".offload-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let go = || -> Fallible<()> {
        let b = Bench::new(threads, limit, &dir)?;
        if let Some(name) = one {
            let k = deep_kinds().into_iter().find(|k| k.name == name);
            println!(
                "{}",
                b.train(&deep(width, layers), k.ok_or("no such kind")?)?
            );
            return Ok(());
        }
        println!(
            "load {:.1}, {threads} threads, {}",
            load(),
            parent.display()
        );
        b.step_times(&Preset::find(&preset, "gpt2")?, rounds)?;
        update::bandwidth(&b.cpu.open(0)?, bytes, threads)?;
        files::transfers(&b.cpu.open(0)?, &dir, bytes, fio.as_deref())?;
        b.largest(budget, width, most, threads, &parent)
    };
    let done = go();
    std::fs::remove_dir_all(&dir)?;
    done
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

/// Devices and a folder.
struct Bench {
    cpu: Plugin,
    null: Plugin,
    dir: PathBuf,
}

/// A deep model of narrow layers, one short sequence a step: what is needed at once is small beside the whole.
fn deep(width: u64, layers: u64) -> Preset {
    Preset {
        name: "deep",
        llama: false,
        layers,
        d: width,
        heads: 4,
        seq: 64,
        vocab: 256,
        batch: 1,
    }
}

/// Kinds of the largest model: all recompute, so that the state is what differs.
fn deep_kinds() -> [Kind; 3] {
    let deep = |k: usize, inputs| Kind {
        recompute: Recompute::Full,
        inputs,
        ..KINDS[k]
    };
    [deep(0, false), deep(3, true), deep(4, true)]
}

fn parameters(p: &Preset) -> u64 {
    let units = units(p.model().model());
    let all = units.iter().flat_map(|u| &u.params);
    all.map(|p| p.shape.numel()).sum()
}

impl Bench {
    fn new(threads: u64, limit: u64, dir: &Path) -> Fallible<Bench> {
        let mut host = HostServices::builder()
            .config("cpu.threads", threads.to_string())
            .kv(Arc::new(LocalKv::default()));
        if limit < u64::MAX {
            host = host.config("cpu.memory_bytes", limit.to_string());
        }
        let host = host.build();
        Ok(Bench {
            cpu: Plugin::new(RawPlugin::from_static::<CpuBackend>(&host)?),
            null: Plugin::new(RawPlugin::from_static::<Null>(&host)?),
            dir: dir.into(),
        })
    }

    fn engine(&self, p: &Preset, k: Kind, plugin: &Plugin) -> Fallible<Engine> {
        let units = units(p.model().model());
        let dry = dry_run(&self.null.open(0)?, &units, DType::F32, p.batch, p.seq)?;
        let device = plugin.open(0)?;
        // A rehearsal opens no files, and nothing computes on its memory.
        let rehearsal = plugin.name() != self.cpu.name();
        let host = match rehearsal {
            true => device.clone(),
            false => plugin.open(0)?,
        };
        let optimizer = k.tier.map(|tier| OptimizerOffload {
            tier: if rehearsal { OffloadDevice::Host } else { tier },
            ratio: 1.0,
            delayed: false,
            grad_f32: true,
            pin: false,
            group: None,
        });
        let mut spec = alone(DType::F32, (p.batch, p.seq), false);
        (spec.seed, spec.recompute) = (1, k.recompute);
        spec.optim = ParamGroups::all(Optimizer::Adam(Adam::default()), 0.1);
        spec.zero = ZeroSpec {
            stage: ZeroStage::Three,
            bucket_bytes: 1 << 20,
            ..Default::default()
        };
        spec.offload = (k.tier.is_some() || k.inputs).then_some(OffloadSpec {
            optimizer,
            params: k.params,
            activations: k.inputs,
            folder: self.dir.clone(),
            files: FileSettings::default(),
        });
        let boot = Boot(Arc::new(LocalKv::default()));
        let units = Units::new(units, &spec.place, &spec.optim)?;
        let lowered = prepare(&device, &spec, &units, &dry)?;
        let devices = Devices {
            host,
            ..Devices::one(&device)
        };
        let mut t = Engine::new(devices, lowered, units, Links::new(&boot))?;
        t.init()?;
        Ok(t)
    }

    fn step_times(&self, p: &Preset, rounds: u64) -> Fallible<()> {
        let mut all = vec![];
        for k in KINDS {
            all.push((self.engine(p, k, &self.cpu)?, vec![]));
        }
        let n = (p.batch * p.seq) as usize;
        let ids: Vec<i32> = (0..=n)
            .map(|i| (i * 31 % p.vocab as usize) as i32)
            .collect();
        for round in 0..rounds + 2 {
            for (t, times) in &mut all {
                let began = Instant::now();
                step(t, &ids)?;
                // What the host does behind the step belongs to its price.
                t.settle_offload()?;
                if round >= 2 {
                    times.push(1e3 * began.elapsed().as_secs_f64());
                }
            }
        }
        println!(
            "\nstep time, preset {}, stage 3, median of {rounds}",
            p.name
        );
        println!("{:32} {:>9} {:>9}  over", "", "ms", "least ms");
        for (k, (_, times)) in KINDS.iter().zip(&all) {
            let base = if k.recompute == Recompute::Full { 5 } else { 0 };
            let (ms, over) = (median(times), median(times) / median(&all[base].1));
            let (name, base) = (k.name, KINDS[base].name);
            println!(
                "{name:32} {ms:9.2} {:9.2}  {over:.3} x {base}",
                least(times)
            );
        }
        Ok(())
    }

    /// One step under the limit this process has.
    fn train(&self, p: &Preset, k: Kind) -> Fallible<Value> {
        let mut t = self.engine(p, k, &self.cpu)?;
        let n = (p.batch * p.seq) as usize;
        let loss = step(&mut t, &vec![1; n + 1])?;
        t.settle_offload()?;
        Ok(json!({"loss": loss, "reserved": t.ledger().memory.reserved.peak}))
    }

    /// Device bytes by rehearsal on the null device.
    fn predicted(&self, p: &Preset, k: Kind) -> Fallible<u64> {
        let mut t = self.engine(p, k, &self.null)?;
        Ok(predict(&mut t)?.steady.reserved.peak)
    }

    fn largest(
        &self,
        budget: u64,
        width: u64,
        most: u64,
        threads: u64,
        dir: &Path,
    ) -> Fallible<()> {
        println!(
            "\nlargest model of width {width} under {} of device memory",
            Size(budget)
        );
        println!("{:32} layers     params  predicted   measured  ratio", "");
        let me = std::env::current_exe()?;
        let mut without = (0, 0);
        for k in deep_kinds() {
            let cap = if without.0 == 0 {
                512
            } else {
                most * without.0
            };
            let fits =
                |l: u64| -> Fallible<bool> { Ok(self.predicted(&deep(width, l), k)? <= budget) };
            let (mut low, mut high) = (0, 1);
            while high <= cap && fits(high)? {
                (low, high) = (high, (2 * high).min(if high < cap { cap } else { cap + 1 }));
            }
            while high - low > 1 && low < cap {
                let mid = (low + high) / 2;
                if fits(mid)? { low = mid } else { high = mid }
            }
            // The proof: a step in a process whose device has no more. The plan's laws may ask for a little more than is used.
            let (layers, got) = loop {
                if low == 0 {
                    let why =
                        "not one layer fits; raise --budget-mib (a pool takes 32 MiB at once)";
                    return Err(format!("{}: {why}", k.name).into());
                }
                let sizes = [
                    ("layers", low),
                    ("width", width),
                    ("budget-mib", budget >> 20),
                ];
                let mut c = Command::new(&me);
                c.args(["--one", k.name]);
                for (key, n) in sizes.into_iter().chain([("threads", threads)]) {
                    c.args([format!("--{key}"), n.to_string()]);
                }
                let out = c.arg("--dir").arg(dir).output()?;
                match out.status.success() {
                    true => break (low, serde_json::from_slice::<Value>(&out.stdout)?),
                    false => eprintln!(
                        "{} layers: {}",
                        low,
                        String::from_utf8_lossy(&out.stderr).trim()
                    ),
                }
                low -= (low / 32).max(1);
            };
            let p = deep(width, layers);
            let params = parameters(&p);
            if without.0 == 0 {
                without = (layers, params);
            }
            println!(
                "{:32} {layers:6} {params:10} {:>10} {:>10} {:6.2}{}",
                k.name,
                Size(self.predicted(&p, k)?),
                Size(got["reserved"].as_u64().unwrap_or(0)),
                params as f64 / without.1 as f64,
                if layers == cap {
                    "  at least: stopped by --most"
                } else {
                    ""
                },
            );
        }
        Ok(())
    }
}

/// A step on `ids`, its loss read.
fn step(t: &mut Engine, ids: &[i32]) -> Fallible<f64> {
    let n = ids.len() - 1;
    let batch = MicroBatch {
        tokens: &ids[..n],
        targets: &ids[1..],
        lengths: &[],
        images: &[],
        first_sequence: 0,
    };
    t.step(&[batch], 1e-3)?;
    Ok(t.metrics()?.ok_or("a step without figures")?.loss)
}
