//! The ranks of one program: threads of this process, or this process as one of several. Whatever ends first is said once, and the
//! process ends with it.

use crate::parallel_bugs::bug::{Bug, Right};
use crate::parallel_bugs::judge::{SAYS, TOOK, WELL, WHERE};
use crate::parallel_bugs::rank::{Killed, On, Rank, WORLD, second};
use crate::parallel_bugs::{bugs, launch, right};
use crossweave_backend_cpu::CpuBackend;
use crossweave_backend_mpi::MpiBackend;
use crossweave_hal::{
    Bootstrap, Carrier, CheckerState, Device, HostName, HostServices, KvStore, Plugin, RawPlugin,
    Result, crash,
};
use crossweave_mesh::{
    Axis, JobStore, LateStore, Launch, Mesh, MeshOptions, Place, ProcessMap, Topology,
    checker_state, detect, rendezvous,
};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Long enough that only a verdict can end a wait.
pub const LONG: Duration = Duration::from_secs(900);
/// For processes to find each other on a busy machine.
const MEETING: Duration = Duration::from_secs(120);
/// How long the first failure leaves the others to say theirs: the cause is worth more than what follows from it.
const LAST_WORDS: Duration = Duration::from_millis(600);

/// One program of either kind.
#[derive(Clone, Copy)]
struct Program {
    ranks: u32,
    timeout: Duration,
    run: fn(&mut Rank) -> Result<()>,
}

fn find(name: &str) -> Program {
    let bug = |b: &Bug| Program {
        ranks: b.ranks,
        timeout: match b.timeout_ms {
            0 => LONG,
            ms => Duration::from_millis(ms),
        },
        run: b.program,
    };
    let right = |r: &Right| Program {
        ranks: r.ranks,
        timeout: LONG,
        run: r.program,
    };
    let hit = bugs::all().find(|b| b.name == name).map(bug);
    let hit = hit.or_else(|| right::RIGHT.iter().find(|r| r.name == name).map(right));
    hit.unwrap_or_else(|| panic!("no program {name:?} in the corpus"))
}

/// How a rank ended.
enum End {
    Well,
    /// With these words.
    Failed(String),
    /// Without a word.
    Died,
}

/// Runs the program of this name, and ends the process.
pub fn run(name: &str) {
    let program = find(name);
    // As the program does: before an abort the standard library's own looks up the lines of a whole backtrace, which takes seconds of a
    // busy machine while the process goes on.
    std::panic::set_hook(Box::new(|info| eprintln!("{info}")));
    match launch::family() {
        Some(family) => process(program, &family),
        None => threads(program),
    }
}

/// A rank of a program: four ranks are a grid.
fn place(ranks: u32, rank: u32) -> Place {
    let (dp, tp) = if ranks == 4 { (2, 2) } else { (ranks, 1) };
    let mesh = Topology::new(&[(Axis::Dp, dp), (Axis::Tp, tp)]).expect("a mesh");
    Place::new(mesh, rank).expect("a rank of it")
}

/// Joins the groups of a program.
fn join(
    device: &Device,
    boot: Arc<dyn Bootstrap>,
    rank: u32,
    p: Program,
    process: bool,
) -> Result<Rank> {
    let options = MeshOptions {
        timeout: Some(p.timeout),
        ..MeshOptions::default()
    };
    let sets: &[&[Axis]] = match p.ranks {
        4 => &[WORLD, &[Axis::Dp], &[Axis::Tp]],
        _ => &[WORLD],
    };
    let mut mesh = Mesh::new(device, &*boot, place(p.ranks, rank), sets, &options)?;
    mesh.join(device, &*boot, &second(), &options)?;
    Rank::new(device, mesh, boot, process)
}

/// One rank from its first op to its end.
fn body(mut r: Rank, p: Program) -> Result<()> {
    // Something all agree on comes first, as in any program.
    r.all_reduce(On::World, 4)?;
    r.sync()?;
    (p.run)(&mut r)?;
    r.close()
}

/// What a rank's program came to.
fn ended(rank: u32, result: std::result::Result<Result<()>, Box<dyn Any + Send>>) -> End {
    match result {
        Ok(Ok(())) => End::Well,
        Ok(Err(e)) => {
            // The checker's verdicts name their ranks themselves.
            let own = e.at != "checker";
            End::Failed(match own {
                true => format!("rank {rank}: {e}"),
                false => e.message,
            })
        }
        Err(p) if p.is::<Killed>() => End::Died,
        Err(p) => {
            let text = p.downcast_ref::<String>().cloned();
            let text = text.or_else(|| p.downcast_ref::<&str>().map(|s| s.to_string()));
            let text = text.unwrap_or_default();
            End::Failed(format!("rank {rank} panicked: {text}"))
        }
    }
}

/// Ids travel through the host's store.
struct Local(HostServices);

impl Bootstrap for Local {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.0.kv().set(key, value)
    }
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        self.0.kv().get(key, Some(timeout))
    }
}

fn threads(p: Program) {
    let host = HostServices::builder().config("cpu.threads", "1").build();
    let raw = RawPlugin::from_static::<CpuBackend>(&host).expect("the back end");
    let plugin = Plugin::new(raw);
    let waits = Arc::new(Mutex::new(vec![Instant::now(); p.ranks as usize]));
    let (tell, told): (Sender<(u32, End, Instant)>, Receiver<_>) = channel();
    let mut running = vec![];
    for rank in 0..p.ranks {
        let (plugin, host, tell, waits) =
            (plugin.clone(), host.clone(), tell.clone(), waits.clone());
        running.push(std::thread::spawn(move || {
            let whole = AssertUnwindSafe(|| {
                let device = plugin.open(0)?;
                let mut r = join(&device, Arc::new(Local(host)), rank, p, false)?;
                r.note_waits(&waits);
                body(r, p)
            });
            let end = ended(rank, catch_unwind(whole));
            let _ = tell.send((rank, end, Instant::now()));
        }));
    }
    drop(tell);
    let mut ends: Vec<(u32, End, Instant)> = vec![];
    let mut until: Option<Instant> = None;
    while ends.len() < p.ranks as usize {
        let left = until.map_or(LONG * 2, |u| u.saturating_duration_since(Instant::now()));
        let Ok(end) = told.recv_timeout(left) else {
            break;
        };
        if !matches!(end.1, End::Well) {
            until.get_or_insert(Instant::now() + LAST_WORDS);
        }
        ends.push(end);
    }
    let first = ends
        .iter()
        .filter(|e| matches!(e.1, End::Failed(_)))
        .map(|e| e.2)
        .min();
    let last = waits
        .lock()
        .expect("nobody panics here")
        .iter()
        .max()
        .copied();
    if let (Some(first), Some(last)) = (first, last) {
        println!(
            "{TOOK}{}",
            first.saturating_duration_since(last).as_micros()
        );
    }
    let died: Vec<u32> = ends
        .iter()
        .filter(|e| matches!(e.1, End::Died))
        .map(|e| e.0)
        .collect();
    for (_, end, _) in &ends {
        if let End::Failed(words) = end {
            let died = died
                .iter()
                .map(|r| format!("rank {r} died without a word; "));
            println!("{SAYS}{}{words}", died.collect::<String>());
        }
    }
    let well = ends.len() == p.ranks as usize && ends.iter().all(|e| matches!(e.1, End::Well));
    if well {
        running
            .into_iter()
            .for_each(|t| t.join().expect("it has ended"));
        println!("{WELL}");
    }
    std::process::exit(if well { 0 } else { 7 });
}

/// Ids travel through the job's store.
struct Remote(JobStore);

impl Bootstrap for Remote {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.0.set(key, value)
    }
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        self.0.get(key, Some(timeout))
    }
}

/// Every rank has ended well: who leaves MPI before that may wait for ever for one that has not.
fn all_well(store: &JobStore, place: &Launch) -> Result<()> {
    store.set(&format!("ended/{}", place.rank), b"")?;
    if place.rank == 0 {
        for r in 0..place.world {
            store.get(&format!("ended/{r}"), Some(MEETING))?;
        }
        store.set("done", b"")?;
    } else {
        store.get("done", Some(MEETING))?;
    }
    store.farewell(MEETING)
}

/// Where the news of another rank's end met this one: what it waited in.
fn met_in(board: &CheckerState, rank: u32) -> String {
    let flight = board.flight();
    let own = flight.ranks.iter().find(|r| r.rank == rank);
    let op = own.and_then(|r| r.ops.last());
    op.map_or(String::new(), |op| format!("{WHERE}{}", op.say()))
}

fn process(p: Program, family: &str) {
    let place = detect(|k| std::env::var(k).ok()).expect("launcher variables");
    let place = place.expect("a launcher has started this");
    let late = LateStore::default();
    let host = HostServices::builder()
        .kv(Arc::new(late.clone()))
        .config("mpi.family", family)
        .config("cpu.threads", "1")
        .build();
    let mpi = Plugin::new(RawPlugin::from_static::<MpiBackend>(&host).expect("MPI"));
    let carrier = Carrier::open(&mpi).expect("MPI carries");
    let store = rendezvous(&carrier, &place, "localhost", MEETING, |_| {});
    let store = store.expect("the processes meet");
    late.bind(store.clone());
    let process_map = ProcessMap::single(place.rank, place.world);
    let near = HostName::named("localhost");
    let board = checker_state(&store, &process_map, &near, MEETING).expect("a board");
    crash::guard(&format!("rank {}", place.rank), "more memory");
    let raw = RawPlugin::from_static::<CpuBackend>(&host).expect("the back end");
    let plugin = Plugin::new(raw).with_checker(&board);
    let rank = place.rank;
    let waits = Arc::new(Mutex::new(vec![Instant::now(); p.ranks as usize]));
    let whole = AssertUnwindSafe(|| {
        let device = plugin.open(0)?;
        device.carry(&carrier);
        let mut r = join(&device, Arc::new(Remote(store.clone())), rank, p, true)?;
        r.note_waits(&waits);
        let aborts = r.mesh.abort_handles();
        let seen = board.clone();
        store.on_failure(move |f| {
            // In one write: a launcher may end this process the moment it ends.
            println!("{SAYS}{f}{}", met_in(&seen, rank));
            // One that cannot be aborted has failed itself.
            for a in &aborts {
                let _ = a.release();
            }
            // A rank that is anywhere but in a collective does not hear of it.
            std::thread::spawn(|| {
                std::thread::sleep(3 * LAST_WORDS);
                std::process::exit(7);
            });
        });
        body(r, p)
    });
    let end = ended(rank, catch_unwind(whole));
    if let End::Failed(words) = &end {
        let mut words = words.clone();
        if store.failure().is_some() {
            // The news of another rank does not know where it met this one.
            words += &met_in(&board, rank);
        }
        let last = waits.lock().expect("nobody panics here")[rank as usize];
        println!("{TOOK}{}", last.elapsed().as_micros());
        println!("{SAYS}{words}");
        store.report(rank, &words, false);
    }
    let well = matches!(end, End::Well) && all_well(&store, &place).is_ok();
    if well {
        drop(carrier);
        mpi.shutdown().expect("an orderly end");
        if rank == 0 {
            println!("{WELL}");
        }
        std::process::exit(0);
    }
    // Launchers end everybody when the first process ends: the others may still be speaking.
    std::thread::sleep(LAST_WORDS);
    std::process::exit(7);
}
