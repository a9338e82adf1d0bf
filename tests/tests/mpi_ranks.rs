//! Ranks that are processes of this binary: how a test starts them under `mpirun`, as scenes of the test `worker`, and what each has.

use super::mpi_algorithms::chosen;
use crossweave_backend_cpu::CpuBackend;
use crossweave_backend_mpi::MpiBackend;
use crossweave_hal::{
    Bootstrap, Carrier, CommOptions, Communicator, Device, HostServices, KvStore, Plugin,
    RawPlugin, Result,
};
use crossweave_hosts::KEY;
use crossweave_mesh::{JobStore, LateStore, Launch, detect, rendezvous};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

/// Which role a worker plays.
pub(super) const SCENE: &str = "CW_TEST_MPI_SCENE";
/// The folder where workers leave their results.
pub(super) const OUT: &str = "CW_TEST_MPI_OUT";
pub(super) const SOON: Duration = Duration::from_secs(60);

pub(super) fn families() -> Vec<&'static str> {
    crossweave_tests::tools::mpi_families()
}

/// Is the whole matrix asked for?
pub(super) fn every() -> bool {
    std::env::var("CROSSWEAVE_MATRIX").is_ok_and(|v| v == "all")
}

/// Runs a scene on `n` ranks.
pub(super) fn launch(family: &str, n: u32, scene: &str, out: &Path) -> Output {
    // MPICH's launcher sometimes ends all ranks the moment one is killed (or, of those that it ends, names another), whatever its options, or
    // ends itself when it writes to the one that is gone: then nobody has spoken.
    let ended = [
        "Killed (signal 9)",
        "Terminated (signal 15)",
        "signal: 13 (SIGPIPE)",
    ];
    let silenced =
        |t: &str| ended.iter().any(|e| t.contains(e)) && !t.contains("died without a word");
    let mut o = once(family, n, scene, out);
    for _ in 0..9 {
        if family != "mpich" || !silenced(&text(&o)) {
            break;
        }
        o = once(family, n, scene, out);
    }
    o
}

pub(super) fn once(family: &str, n: u32, scene: &str, out: &Path) -> Output {
    let mut c = Command::new(format!("mpirun.{family}"));
    c.env_clear();
    for name in ["PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH"] {
        if let Some(v) = std::env::var_os(name) {
            c.env(name, v);
        }
    }
    if family == "openmpi" {
        c.args(["--allow-run-as-root", "--oversubscribe"]);
        // No network is asked for, and waiting ranks leave the cores to the others.
        c.env("OMPI_MCA_btl", "self,vader")
            .env("OMPI_MCA_mpi_yield_when_idle", "1");
    }
    if scene.starts_with("killed") {
        // Else the launcher may end the survivors before they have said who died.
        match family {
            "mpich" => c.arg("-disable-auto-cleanup"),
            _ => c.env("OMPI_MCA_orte_enable_recovery", "1"),
        };
    }
    c.env(SCENE, scene)
        .env(OUT, out)
        .args(["-n", &n.to_string()]);
    c.arg(std::env::current_exe().expect("this program"));
    c.args([
        "tests::mpi::worker",
        "--exact",
        "--nocapture",
        "--test-threads=1",
    ]);
    c.output().expect("mpirun starts")
}

pub(super) fn text(o: &Output) -> String {
    let out = String::from_utf8_lossy(&o.stdout);
    format!(
        "{}\n{out}\n{}",
        o.status,
        String::from_utf8_lossy(&o.stderr)
    )
}

pub(super) struct Rank {
    pub(super) launch: Launch,
    pub(super) carrier: Carrier,
    pub(super) mpi: Plugin,
    pub(super) store: JobStore,
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
    pub(super) fn join() -> Rank {
        let launch = detect(|k| std::env::var(k).ok()).unwrap().unwrap();
        let late = LateStore::default();
        // A scene on hosts says each rank's; without one all are on the same. Behind them are the algorithms of sums.
        let scene = std::env::var(SCENE).unwrap_or_default();
        let hosts = scene.split(':').nth(1).unwrap_or("");
        let host = hosts.split(',').nth(launch.rank as usize).unwrap_or("");
        let host = HostServices::builder()
            .kv(Arc::new(late.clone()))
            .config("mpi.host", host)
            .config(KEY, chosen(&scene, launch.rank))
            .config("mpi.family", launch.launcher.family().unwrap())
            // Short messages, so that long vectors go as several.
            .config("mpi.longest_message", "50000")
            .build();
        let mpi = Plugin::new(RawPlugin::from_static::<MpiBackend>(&host).unwrap());
        let carrier = Carrier::open(&mpi).unwrap();
        let store = rendezvous(&carrier, &launch, "localhost", SOON, |_| {}).unwrap();
        late.bind(store.clone());
        Rank {
            launch,
            carrier,
            mpi,
            store,
        }
    }
    pub(super) fn device(&self) -> Device {
        let d = cpu().open(0).unwrap();
        d.carry(&self.carrier);
        d
    }
    pub(super) fn comm(&self, device: &Device, name: &str, timeout: Duration) -> Communicator {
        let options = CommOptions {
            name: name.into(),
            timeout: Some(timeout),
        };
        Communicator::new(device, self, self.launch.rank, self.launch.world, &options).unwrap()
    }
    pub(super) fn end(self) {
        self.store.farewell(SOON).unwrap();
        self.mpi.shutdown().unwrap();
    }
}

pub(super) fn cpu() -> Plugin {
    let host = HostServices::builder().config("cpu.threads", "1").build();
    Plugin::new(RawPlugin::from_static::<CpuBackend>(&host).unwrap())
}
