//! What the always-on checker costs: the same collectives on devices with it and without it, in windows that alternate, in one run.
//!
//! `cargo run --release -p crossweave-benches --bin checker -- --ranks 2 --kib 0,1,64,1024`
//!
//! `ask` is the time a rank's host takes to put a collective on its stream (nothing is waited for inside a window, of 64 or `--window`); `whole` is from there
//! until all of a window are done, per collective, with the one wait at its end. A round is a window of each kind, in turning order; what is printed are medians over
//! the rounds of the differences within one, and their mean over the ranks (who asks first pays more than who follows), since least times of whole windows lie apart by chance more than the checker costs; devices and memory are made anew
//! eight times in a run, since where a buffer lies costs more than the checker too. 0 KiB is a barrier. The device without the checker is what the off switch is for:
//! training has none. A second one without it says how far two equal devices are apart.

use crossweave_benches::options::{Options, Usage, program};
use crossweave_hal::{
    Bootstrap, Buffer, CommOptions, Communicator, DType, Device, HostServices, KvStore, LocalKv,
    Plugin, RawPlugin, Reduce, Stream, Tag,
};
use std::process::ExitCode;
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

struct Boot(Arc<dyn KvStore>);
impl Bootstrap for Boot {
    fn set(&self, key: &str, value: &[u8]) -> crossweave_hal::Result<()> {
        self.0.set(key, value)
    }
    fn get(&self, key: &str, timeout: Duration) -> crossweave_hal::Result<Vec<u8>> {
        self.0.get(key, Some(timeout))
    }
}

const HELP: &str = "\
What the always-on checker of collectives costs, between threads of this process.

  --ranks 2              ranks
  --kib 0,1,64,1024      sizes of the collective in KiB; 0 is a barrier
  --rounds 300           windows of each kind, in turning order
  --window 64            collectives of a window

Example: checker --ranks 2 --kib 0,1,64,1024";

fn main() -> ExitCode {
    program(HELP, 0, run)
}

fn run(mut o: Options) -> Fallible<()> {
    let ranks = o.number("ranks", 2, 1)? as u32;
    let rounds = o.number("rounds", 300, 1)? as usize;
    let sizes = o.list("kib", "0,1,64,1024");
    let calls = o.number("window", 64, 1)? as usize;
    o.done()?;
    let size = |s: &String| match s.parse::<u64>() {
        Ok(k) if k <= 1 << 20 => Ok(k << 10),
        _ => Err(Usage(format!(
            "--kib {s:?}: wanted whole numbers up to {}",
            1 << 20
        ))),
    };
    let sizes = sizes.iter().map(size).collect::<Result<Vec<_>, _>>()?;
    let kv: Arc<dyn KvStore> = Arc::new(LocalKv::default());
    let host = HostServices::builder()
        .config("cpu.devices", ranks.to_string())
        .config("cpu.threads", "1")
        .config("cpu.pin", "on")
        .build();
    let plugin = Plugin::new(RawPlugin::from_static::<crossweave_backend_cpu::CpuBackend>(&host)?);
    let barrier = Barrier::new(ranks as usize);
    // Of the size at hand, summed over the ranks.
    let figures = Mutex::default();
    let (sizes, barrier, plugin, kv, figures) = (&sizes, &barrier, &plugin, &kv, &figures);
    std::thread::scope(|s| {
        let all: Vec<_> = (0..ranks)
            .map(|r| {
                s.spawn(move || rank(r, ranks, plugin, kv, barrier, sizes, rounds, calls, figures))
            })
            .collect();
        all.into_iter()
            .try_for_each(|h| h.join().map_err(|_| "a rank panicked")?)
    })
}

/// How often devices and memory are made anew.
const EPOCHS: usize = 8;

/// One rank's device of one kind.
struct Side {
    device: Device,
    s: Stream,
    comm: Communicator,
}

impl Side {
    fn new(
        plugin: &Plugin,
        kv: &Arc<dyn KvStore>,
        rank: u32,
        ranks: u32,
        (name, epoch): (&str, usize),
    ) -> Fallible<Side> {
        let device = plugin.open(rank)?;
        if name != "checked" {
            device.without_checker();
        }
        let s = device.stream("bench", 0)?;
        let options = CommOptions {
            name: format!("{name} {epoch}"),
            timeout: Some(Duration::from_secs(60)),
        };
        let comm = Communicator::new(&device, &Boot(kv.clone()), rank, ranks, &options)?;
        Ok(Side { device, s, comm })
    }

    /// Nanoseconds a collective: to ask for it, and until it is done.
    fn window(&mut self, b: &Buffer, barrier: &Barrier, calls: usize) -> Fallible<(f64, f64)> {
        barrier.wait();
        let start = Instant::now();
        for _ in 0..calls {
            match b.bytes() {
                4 => self.comm.barrier(&self.s)?,
                _ => self
                    .comm
                    .all_reduce(&self.s, b.all(), DType::F32, Reduce::Sum, "bench")?,
            }
        }
        let asked = start.elapsed();
        self.s.sync(None)?;
        let done = start.elapsed();
        barrier.wait();
        let each = |t: Duration| t.as_nanos() as f64 / calls as f64;
        Ok((each(asked), each(done)))
    }
}

fn rank(
    rank: u32,
    ranks: u32,
    plugin: &Plugin,
    kv: &Arc<dyn KvStore>,
    barrier: &Barrier,
    sizes: &[u64],
    rounds: usize,
    calls: usize,
    figures: &Mutex<[f64; 8]>,
) -> Fallible<()> {
    for bytes in sizes {
        // Long collectives need fewer windows for a steady middle.
        let rounds = (rounds as u64).min(200_000_000 / (bytes + 1)).max(24) as usize;
        let mut all: Vec<[(f64, f64); 3]> = vec![];
        for epoch in 0..EPOCHS {
            let side = |name| Side::new(plugin, kv, rank, ranks, (name, epoch + *bytes as usize));
            let mut sides = [side("checked")?, side("unchecked")?, side("control")?];
            let room = |s: &Side| -> Fallible<Buffer> {
                let b = s.device.alloc_state((*bytes).max(4), Tag::Comm)?;
                s.s.fill(b.all(), 0, 4)?;
                Ok(b)
            };
            let buffers = [room(&sides[0])?, room(&sides[1])?, room(&sides[2])?];
            for round in 0..rounds / EPOCHS {
                let mut times = [(0.0, 0.0); 3];
                for turn in 0..3 {
                    let which = (round + turn) % 3;
                    times[which] = sides[which].window(&buffers[which], barrier, calls)?;
                }
                all.push(times);
            }
        }
        let of = |f: &dyn Fn(&[(f64, f64); 3]) -> f64| median(all.iter().map(f).collect());
        let own = [
            of(&|t| t[1].0),
            of(&|t| t[0].0 - t[1].0),
            of(&|t| t[1].1),
            of(&|t| t[0].1 - t[1].1),
            of(&|t| 100.0 * (t[0].1 / t[1].1 - 1.0)),
            of(&|t| t[2].0 - t[1].0),
            of(&|t| t[2].1 - t[1].1),
            of(&|t| 100.0 * (t[2].1 / t[1].1 - 1.0)),
        ];
        if let Ok(mut sums) = figures.lock() {
            for (sum, x) in sums.iter_mut().zip(own) {
                *sum += x / f64::from(ranks);
            }
        }
        barrier.wait();
        if rank == 0 {
            let mut figures = figures.lock().map_err(|_| "a rank panicked")?;
            let [
                ask,
                more_ask,
                whole,
                more,
                percent,
                c_ask,
                c_whole,
                c_percent,
            ] = std::mem::take(&mut *figures);
            println!(
                "{ranks} ranks, {:>10}: ask {ask:>6.0} ns without, {:>6.0} ns with; whole {whole:>9.0} ns without, {:>9.0} ns ({percent:>+6.2} %) \
                 with; another without: {:>6.0} ns; {:>9.0} ns ({c_percent:>+6.2} %)",
                crossweave_words::Size(*bytes),
                // Medians of differences: beside what they are differences of they are times.
                (ask + more_ask).max(0.0),
                (whole + more).max(0.0),
                (ask + c_ask).max(0.0),
                (whole + c_whole).max(0.0),
            );
        }
        barrier.wait();
    }
    Ok(())
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}
