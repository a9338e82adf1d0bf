//! The checker between processes, under the launchers of both MPI families: this binary starts itself under `mpirun`, and the test `worker`
//! is then one rank. Mistakes end on every rank with the sentence threads get; a family that is not installed is skipped with a line that
//! says so.

use crossweave_backend_cpu::CpuBackend;
use crossweave_backend_mpi::MpiBackend;
use crossweave_hal::{
    Bootstrap, Buffer, Carrier, CheckerState, Collective, CommOptions, Communicator, DType, Device,
    HostName, HostServices, KvStore, Plugin, RawPlugin, Reduce, Result, Stream, Tag,
};
use crossweave_mesh::{
    JobStore, LateStore, Launch, ProcessMap, checker_state_in, detect, rendezvous,
};
use crossweave_tests::system::{Signal, send_to_self};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Which role a worker plays.
const SCENE: &str = "CW_TEST_CHECKER_SCENE";
/// Where the ranks share their records.
const SHARED: &str = "CW_TEST_CHECKER_SHARED";
const SOON: Duration = Duration::from_secs(60);
const F: DType = DType::F32;
const SUM: Reduce = Reduce::Sum;

fn families() -> Vec<&'static str> {
    crossweave_tests::tools::mpi_families()
}

fn launch(family: &str, n: u32, scene: &str) -> Output {
    launch_in(Path::new("/dev/shm"), family, n, scene)
}

fn launch_in(shared: &Path, family: &str, n: u32, scene: &str) -> Output {
    // MPICH's launcher sometimes ends all ranks the moment one is killed, whatever its options: then nobody has spoken.
    let silenced = |t: &str| t.contains("Killed (signal 9)") && !t.contains("died without a word");
    let mut o = once(shared, family, n, scene);
    for _ in 0..9 {
        if family != "mpich" || !silenced(&text(&o)) {
            break;
        }
        o = once(shared, family, n, scene);
    }
    o
}

fn once(shared: &Path, family: &str, n: u32, scene: &str) -> Output {
    let mut c = Command::new(format!("mpirun.{family}"));
    c.env_clear();
    for name in ["PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH"] {
        if let Some(v) = std::env::var_os(name) {
            c.env(name, v);
        }
    }
    match family {
        "openmpi" => c
            .args(["--allow-run-as-root", "--oversubscribe"])
            .env("OMPI_MCA_btl", "self,vader")
            .env("OMPI_MCA_mpi_yield_when_idle", "1"),
        // Else the launcher may end the survivors before they have spoken.
        _ => c.arg("-disable-auto-cleanup"),
    };
    c.env(SHARED, shared);
    c.env(SCENE, scene).args(["-n", &n.to_string()]);
    c.arg(std::env::current_exe().expect("this program"));
    c.args([
        "tests::checker::worker",
        "--exact",
        "--nocapture",
        "--test-threads=1",
    ]);
    c.output().expect("mpirun starts")
}

fn text(o: &Output) -> String {
    let out = String::from_utf8_lossy(&o.stdout);
    format!(
        "{}\n{out}\n{}",
        o.status,
        String::from_utf8_lossy(&o.stderr)
    )
}

/// One process.
struct Rank {
    launch: Launch,
    mpi: Plugin,
    store: JobStore,
    board: CheckerState,
    device: Device,
    s: Stream,
    x: Buffer,
    timeout: Duration,
}

impl Bootstrap for Rank {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.store.set(key, value)
    }
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        self.store.get(key, Some(timeout))
    }
}

impl Rank {
    fn join(timeout: Duration) -> Rank {
        let launch = detect(|k| std::env::var(k).ok()).unwrap().unwrap();
        let late = LateStore::default();
        let host = HostServices::builder()
            .kv(Arc::new(late.clone()))
            .config("mpi.family", launch.launcher.family().unwrap())
            .build();
        let mpi = Plugin::new(RawPlugin::from_static::<MpiBackend>(&host).unwrap());
        let carrier = Carrier::open(&mpi).unwrap();
        let store = rendezvous(&carrier, &launch, "localhost", SOON, |_| {}).unwrap();
        late.bind(store.clone());
        let shared = std::env::var_os(SHARED).unwrap();
        let (rank, world) = (launch.rank, launch.world);
        let process_map = ProcessMap::single(rank, world);
        let near = HostName::named("localhost");
        let board =
            checker_state_in(Path::new(&shared), &store, &process_map, &near, SOON).unwrap();
        let host = HostServices::builder().config("cpu.threads", "1").build();
        let cpu = Plugin::new(RawPlugin::from_static::<CpuBackend>(&host).unwrap());
        let device = cpu.with_checker(&board).open(0).unwrap();
        device.carry(&carrier);
        device.set_rank(launch.rank);
        let s = device.stream("compute", 0).unwrap();
        let x = device.alloc_state(4096, Tag::Staging).unwrap();
        s.fill(x.all(), 0, 4).unwrap();
        Rank {
            launch,
            mpi,
            store,
            board,
            device,
            s,
            x,
            timeout,
        }
    }
    fn rank(&self) -> u32 {
        self.launch.rank
    }
    fn group(&self, name: &str) -> Communicator {
        let options = CommOptions {
            name: name.into(),
            timeout: Some(self.timeout),
        };
        Communicator::new(&self.device, self, self.rank(), self.launch.world, &options).unwrap()
    }
    #[track_caller]
    fn all_reduce(&self, c: &mut Communicator, tag: &'static str) -> Result<()> {
        c.all_reduce(&self.s, self.x.all(), F, SUM, tag)
    }
    fn sync(&self) -> Result<()> {
        self.s.sync(None)
    }
}

/// Rank 1 differs from the two others.
fn differs(r: &Rank) -> Result<()> {
    let mut c = r.group("dp");
    r.all_reduce(&mut c, "loss")?;
    r.sync()?;
    match r.rank() {
        1 => c.broadcast(&r.s, r.x.all(), F, 0, "grad")?, // differs
        _ => c.all_reduce(&r.s, r.x.all(), F, SUM, "grad")?, // others
    }
    r.sync()
}

/// Rank 2 leaves out one of a loop.
fn missed(r: &Rank) -> Result<()> {
    let mut c = r.group("dp");
    for i in 0..4 {
        r.all_reduce(&mut c, "grad")?;
        if i != 2 || r.rank() != 2 {
            c.broadcast(&r.s, r.x.all(), F, 0, "loss")?; // missed
        }
        r.sync()?;
    }
    Ok(())
}

/// Everybody receives from the right first.
fn cycle(r: &Rank) -> Result<()> {
    let mut c = r.group("ring");
    let n = r.launch.world;
    let (right, left) = ((r.rank() + 1) % n, (r.rank() + n - 1) % n);
    let buf = r.x.all();
    let take = [Collective::Recv {
        buf,
        dtype: F,
        peer: right,
    }];
    c.group(&r.s, &take, "x")?; // cycle
    r.sync()?;
    let give = [Collective::Send {
        buf,
        dtype: F,
        peer: left,
    }];
    c.group(&r.s, &give, "x")?;
    r.sync()
}

/// Two groups in opposite orders.
fn inverted(r: &Rank) -> Result<()> {
    let (mut a, mut b) = (r.group("tp"), r.group("dp"));
    let (one, two) = if r.rank() == 0 {
        (&mut a, &mut b)
    } else {
        (&mut b, &mut a)
    };
    for group in [one, two] {
        r.all_reduce(group, "sum")?;
    }
    r.sync()
}

/// Rank 1 ends before the others.
fn early(r: &Rank) -> Result<()> {
    let mut c = r.group("dp");
    r.all_reduce(&mut c, "grad")?;
    r.sync()?;
    if r.rank() == 1 {
        return Ok(());
    }
    c.all_reduce(&r.s, r.x.all(), F, Reduce::Max, "loss")?; // early
    r.sync()
}

/// Rank 1 is busy for longer than the timeout.
fn late(r: &Rank) -> Result<()> {
    let mut c = r.group("dp");
    r.all_reduce(&mut c, "grad")?;
    r.sync()?;
    if r.rank() == 1 {
        std::thread::sleep(Duration::from_secs(15));
    }
    c.broadcast(&r.s, r.x.all(), F, 0, "loss")?; // late
    r.sync()
}

/// Rank 1 is killed inside a collective.
fn killed(r: &Rank) -> Result<()> {
    let mut c = r.group("dp");
    let board = r.board.clone();
    r.store.on_failure(move |f| {
        println!("reported: {f}; {}", board.last_call(f.ranks.start).unwrap())
    });
    r.all_reduce(&mut c, "grad")?; // killed
    r.sync()?;
    if r.rank() == 1 {
        send_to_self(Signal::SIGKILL);
    }
    c.broadcast(&r.s, r.x.all(), F, 0, "loss")?;
    let abort = c.abort_handle();
    while r.store.failure().is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    abort.abort()?;
    r.sync()
}

/// Slow ranks, small messages of any order, and a rank that is far ahead: nothing is wrong.
fn fine(r: &Rank) -> Result<()> {
    let mut c = r.group("dp");
    let n = r.launch.world;
    for i in 0..6 {
        if i % n == r.rank() {
            std::thread::sleep(Duration::from_millis(700));
        }
        r.all_reduce(&mut c, "grad")?;
        if i % 2 == 0 {
            r.sync()?;
        }
    }
    let (right, left) = ((r.rank() + 1) % n, (r.rank() + n - 1) % n);
    for _ in 0..50 {
        let ring = [
            Collective::Send {
                buf: r.x.region(0, 64),
                dtype: F,
                peer: right,
            },
            Collective::Recv {
                buf: r.x.region(64, 64),
                dtype: F,
                peer: left,
            },
        ];
        c.group(&r.s, &ring, "ring")?;
    }
    c.barrier(&r.s)?;
    r.sync()?;
    assert!(r.board.verdict().is_none());
    c.close()
}

#[test]
fn worker() {
    let Ok(scene) = std::env::var(SCENE) else {
        // The ordinary test run: the others start this one under mpirun.
        return;
    };
    let timeout = if scene == "late" { 5 } else { 60 };
    let r = Rank::join(Duration::from_secs(timeout));
    let began = Instant::now();
    let end = match scene.as_str() {
        "differs" => differs(&r),
        "missed" => missed(&r),
        "cycle" => cycle(&r),
        "inverted" => inverted(&r),
        "early" => early(&r),
        "late" => late(&r),
        "killed" => killed(&r),
        _ => fine(&r),
    };
    if let Err(e) = end {
        println!(
            "verdict on {}: {e} [{:.1} s]",
            r.rank(),
            began.elapsed().as_secs_f64()
        );
        // A launcher ends all when one ends.
        std::thread::sleep(Duration::from_millis(1500));
        std::process::exit(7);
    }
    if scene != "fine" {
        std::thread::sleep(Duration::from_secs(8));
        std::process::exit(7);
    }
    let Rank {
        mpi,
        store,
        device,
        s,
        x,
        ..
    } = r;
    drop((s, x, device));
    store.farewell(SOON).unwrap();
    mpi.shutdown().unwrap();
}

/// File and line of a marked line of this file.
fn line(mark: &str) -> String {
    let text = include_str!("checker.rs");
    let mark = format!("// {mark}");
    let at = text.lines().position(|l| l.ends_with(&mark));
    format!("checker.rs:{}", at.expect("the mark is there") + 1)
}

#[test]
fn processes_end_with_the_sentence_threads_get() {
    let l = line;
    let scenes: [(&str, u32, Vec<String>); 7] = [
        (
            "differs",
            3,
            vec![
                "rank 1 calls broadcast of 1024 x f32 root 0".into(),
                "#2 of dp, where ranks 0 and 2 call all_reduce of 1024 x f32 sum".into(),
                l("differs"),
                l("others"),
            ],
        ),
        (
            "missed",
            3,
            vec![
                "rank 2 missed broadcast of 1024 x f32 root 0 (#6 of dp".into(),
                "which ranks 0 and 1 call".into(),
                l("missed"),
            ],
        ),
        (
            "cycle",
            3,
            vec![
                "deadlock of ranks 0, 1, 2".into(),
                "rank 0 waits in recv of 1024 x f32 from 1".into(),
                l("cycle"),
            ],
        ),
        (
            "inverted",
            2,
            vec![
                "deadlock of ranks 0 and 1".into(),
                "the groups dp and tp in different orders".into(),
            ],
        ),
        (
            "early",
            3,
            vec![
                "rank 1 has ended and never comes to all_reduce of 1024 x f32 max".into(),
                "its last call was all_reduce".into(),
                l("early"),
            ],
        ),
        (
            "late",
            2,
            vec![
                "rank 1 did not come to broadcast".into(),
                "its host is busy elsewhere".into(),
                l("late"),
            ],
        ),
        (
            "killed",
            3,
            vec![
                "reported: rank 1 died without a word".into(),
                "its last call was all_reduce of 1024 x f32 sum (#1 of dp".into(),
            ],
        ),
    ];
    for family in families() {
        for (scene, n, parts) in &scenes {
            // One of each kind under the second family: the checker is the same.
            if family != "openmpi" && !["differs", "inverted"].contains(scene) {
                continue;
            }
            let began = Instant::now();
            let o = launch(family, *n, scene);
            let t = text(&o);
            assert!(!o.status.success(), "{family} {scene}: {t}");
            for p in parts {
                assert!(
                    t.contains(p.as_str()),
                    "{family} {scene}: {p:?} not in: {t}"
                );
            }
            // Every rank that is still there and not busy gets the same sentence.
            let all = match *scene {
                "late" | "killed" => 1,
                "early" => 2,
                _ => *n as usize,
            };
            assert!(
                t.matches(parts[0].as_str()).count() >= all,
                "{family} {scene}: {t}"
            );
            println!("{family} {scene}: {:?}", began.elapsed());
            for line in t.lines().filter(|l| l.contains("verdict on")) {
                println!("    {line}");
            }
        }
    }
}

#[test]
fn right_programs_raise_no_alarm_and_leave_nothing_behind() {
    for family in families() {
        let shared = tempfile::tempdir().unwrap();
        let o = launch_in(shared.path(), family, 3, "fine");
        assert!(o.status.success(), "{family}: {}", text(&o));
        let left = std::fs::read_dir(shared.path()).unwrap().count();
        assert_eq!(left, 0, "{family}");
    }
}
