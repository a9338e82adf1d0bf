//! The files of `examples/launch` as they stand, under the launchers that are installed and stand-ins for those that are not, and what is
//! said to processes that Slurm has started and not connected.

use crate::common;
use common::mpi::{families, plugin, text};
use common::{Scratch, same};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn program() -> &'static str {
    env!("CARGO_BIN_EXE_crossweave")
}

/// A port that nobody listens on.
fn port() -> String {
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    free.local_addr().expect("its number").port().to_string()
}

/// A launch file with the words behind it, in the scratch folder, where the stand-ins are found first.
fn file(s: &Scratch, name: &str, args: &[&str]) -> Command {
    let stand_ins = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/launchers");
    let given = std::env::var_os("PATH").unwrap_or_default();
    let path = std::iter::once(stand_ins).chain(std::env::split_paths(&given));
    let mut c = Command::new("bash");
    c.arg(root().join("examples/launch").join(name))
        .args(args)
        .current_dir(s.dir.path())
        .env("PATH", std::env::join_paths(path).expect("a path"))
        .env("CROSSWEAVE", program())
        .env("CROSSWEAVE_CACHE", s.path("cache"))
        .env_remove("CROSSWEAVE_PLUGIN_PATH")
        .env("MASTER_PORT", port())
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
        .env("OMPI_MCA_btl", "self,vader")
        .env("OMPI_MCA_mpi_yield_when_idle", "1");
    c
}

/// What sbatch sets in the script itself.
fn in_sbatch(c: &mut Command) -> &mut Command {
    c.env("SLURM_JOB_ID", "4711")
        .env("SLURM_JOB_NAME", "demo")
        .env("SLURM_JOB_NODELIST", "localhost")
        .env("SLURM_NTASKS", "2")
        .env("SLURM_NPROCS", "2")
        .env("SLURM_PROCID", "0")
        .env("SLURM_LOCALID", "0")
        .env("SLURM_NODEID", "0")
}

fn ok(c: &mut Command) -> String {
    let o = c.output().expect("bash starts");
    assert!(o.status.success(), "{c:?}: {}", text(&o));
    text(&o)
}

/// Two threads of one process: what two processes must come to.
fn reference(s: &Scratch) -> PathBuf {
    s.ok(&["train", "config.json", "--ranks", "2", "--out", "threads"]);
    s.path("threads")
}

#[test]
fn every_launch_file_trains_to_the_bits_of_threads() {
    plugin();
    let (s, families) = (Scratch::new(), families());
    let threads = reference(&s);
    let mut tried = vec!["again.sh"];
    let mut run = |name: &'static str, with: &str, own: &dyn Fn(&mut Command)| {
        tried.push(name);
        let out = format!("{name}-{with}");
        let mut c = file(&s, name, &["config.json", "--out", &out]);
        own(&mut c);
        ok(&mut c);
        same(&threads, &s.path(&out));
    };
    if families.contains(&"openmpi") {
        run("openmpi.sh", "", &|c| {
            c.env("MPIRUN", "mpirun.openmpi");
        });
    }
    if families.contains(&"openmpi") {
        // It names the folder itself.
        let mut c = file(&s, "again.sh", &["config.json"]);
        c.env("MPIRUN", "mpirun.openmpi").env("OUT", "again");
        c.env("RSH", "true").env("EVERY", "0.2");
        assert!(ok(&mut c).contains("on 1 of 1 hosts, from the start"));
        same(&threads, &s.path("again"));
        // A config that is wrong is not tried again.
        let wrong = ["config.json", "--set", "optimizer.params.lr=-1"];
        let mut c = file(&s, "again.sh", &wrong);
        c.env("MPIRUN", "mpirun.openmpi").env("OUT", "wrong");
        let o = c.env("RSH", "true").env("EVERY", "0.2").output();
        let o = o.expect("bash starts");
        assert_eq!(o.status.code(), Some(1), "{}", text(&o));
        assert_eq!(text(&o).matches("again.sh: ").count(), 1, "{}", text(&o));
    }
    if families.contains(&"mpich") {
        run("mpich.sh", "", &|c| {
            c.env("MPIRUN", "mpirun.mpich");
        });
        run("loop.sh", "", &|_| {});
        run("torchrun.sh", "", &|_| {});
    }
    // Those for Slurm name their folder themselves, and started again go on in it.
    let mut slurm = |name: &'static str, with: &str, own: &dyn Fn(&mut Command)| {
        tried.push(name);
        let runs = s.path("runs");
        let _ = std::fs::remove_dir_all(&runs);
        for steps in ["5", "8"] {
            // A schedule of the whole run whatever the first part is.
            let mut c = file(&s, name, &["config.json", "--steps", steps]);
            own(in_sbatch(&mut c));
            let said = ok(&mut c);
            assert!(
                said.contains(&format!("{steps} of {steps}")),
                "{with}: {said}"
            );
        }
        same(&threads, &runs.join("demo"));
    };
    if families.contains(&"openmpi") {
        slurm("slurm.sbatch", "pmix", &|_| {});
    }
    if families.contains(&"mpich") {
        slurm("slurm.sbatch", "pmi2", &|c| {
            c.env("MPI", "pmi2");
        });
        slurm("slurm-no-pmi.sbatch", "variables", &|_| {});
    }
    if families.len() == 2 {
        for entry in std::fs::read_dir(root().join("examples/launch")).expect("the folder") {
            let name = entry.expect("an entry").file_name();
            let name = name.to_string_lossy();
            if name.ends_with(".sh") || name.ends_with(".sbatch") {
                assert!(tried.iter().any(|t| *t == name), "{name} was not tried");
            }
        }
    }
}

#[test]
fn a_launch_file_without_a_config_says_so() {
    let s = Scratch::new();
    for entry in std::fs::read_dir(root().join("examples/launch")).expect("the folder") {
        let name = entry.expect("an entry").file_name();
        let name = name.to_str().expect("a name");
        if !(name.ends_with(".sh") || name.ends_with(".sbatch")) {
            continue;
        }
        let o = file(&s, name, &[]).output().expect("bash starts");
        assert!(!o.status.success(), "{name}");
        assert!(text(&o).contains("name a config: "), "{name}: {}", text(&o));
    }
}

/// The Slurm script requeues a job that has lost a rank, but none with a wrong config, and none that was restarted too often.
#[test]
fn slurm_gets_a_run_back_that_has_lost_a_rank_and_no_other() {
    plugin();
    if !families().contains(&"openmpi") {
        return;
    }
    let s = Scratch::new();
    let reference = reference(&s);
    let queued = || std::fs::read_to_string(s.path("requeued")).unwrap_or_default();
    let job = |args: &[&str], vars: &[(&str, &str)]| {
        let mut c = file(&s, "slurm.sbatch", &[&["config.json"], args].concat());
        let o = in_sbatch(&mut c).envs(vars.iter().copied()).output();
        o.expect("bash starts")
    };
    let wrong = job(&["--set", "optimizer.params.lr=-1"], &[]);
    assert_eq!((wrong.status.success(), queued()), (false, String::new()));
    let fault = r#"faults=[{"rank": 1, "kind": "stall", "step": 5}]"#;
    let stalls = ["--set", fault, "--set", "run.comm_timeout_s=1"];
    let lost = job(&stalls, &[]);
    assert!(!lost.status.success(), "{}", text(&lost));
    assert_eq!(queued(), "4711\n", "{}", text(&lost));
    // Not for ever.
    let last = job(&stalls, &[("SLURM_RESTART_COUNT", "20")]);
    assert_eq!((last.status.success(), &*queued()), (false, "4711\n"));
    let well = job(&[], &[]);
    assert!(well.status.success(), "{}", text(&well));
    assert_eq!(queued(), "4711\n");
    same(&reference, &s.path("runs/demo"));
}

/// torchrun with a range of machines starts a run again on those that are left, and it goes on to the bits of an undisturbed one.
#[test]
fn torchrun_goes_on_with_the_machines_that_are_left() {
    plugin();
    if !families().contains(&"mpich") {
        return;
    }
    let s = Scratch::new();
    // The first start loses a rank behind its first save.
    let fault = r#"faults=[{"rank": 3, "kind": "stall", "step": 5}]"#;
    let program = program();
    let lines = [
        "#!/bin/sh",
        "[ \"$TORCHELASTIC_RESTART_COUNT\" -gt 0 ] || set -- \"$@\" --set \"$FAULT\"",
        &format!("exec '{program}' \"$@\""),
    ];
    s.write("once", lines.join("\n"));
    let run = std::fs::metadata(s.path("once")).map(|m| m.permissions());
    let mut run = run.expect("a file");
    std::os::unix::fs::PermissionsExt::set_mode(&mut run, 0o755);
    std::fs::set_permissions(s.path("once"), run).expect("ours");
    let sets = [
        "--set",
        "mesh.elastic=[\"dp\"]",
        "--set",
        "run.canonical_shards=4",
        "--set",
        "run.comm_timeout_s=2",
    ];
    let job = [
        "config.json",
        "--out",
        "run",
        "--resume",
        "auto",
        "--take-over",
    ];
    let mut c = file(&s, "torchrun.sh", &[&job[..], &sets].concat());
    c.env("NNODES", "1:2")
        .env("RESTARTS", "1")
        .env("FAULT", fault);
    let said = ok(c.env("CROSSWEAVE", s.path("once")));
    for part in ["rank 3", "8 of 8"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let job = ["train", "config.json", "--ranks", "4", "--out", "whole"];
    s.ok(&[&job[..], &sets].concat());
    same(&s.path("whole"), &s.path("run"));
}

/// A process as srun starts it, without anything that connects it to the others.
fn task(s: &Scratch, rank: &str, of: &str, args: &[&str]) -> Output {
    let mut c = s.command(args);
    c.env("SLURM_JOB_ID", "7")
        .env("SLURM_STEP_ID", "0")
        .env("SLURM_NTASKS", "2")
        .env("SLURM_STEP_NUM_TASKS", of)
        .env("SLURM_PROCID", rank)
        .env("SLURM_LOCALID", rank);
    c.output().expect("the binary runs")
}

#[test]
fn processes_that_srun_has_not_connected_are_told_once_how_to() {
    let s = Scratch::new();
    let args = ["train", "config.json", "--out", "run"];
    let first = task(&s, "0", "2", &args);
    let said = text(&first);
    assert_eq!(first.status.code(), Some(1), "{said}");
    for part in [
        "error: srun has started 2 processes",
        "srun --mpi=pmix",
        "srun --mpi=pmi2",
        "MASTER_ADDR",
        "slurm-no-pmi.sbatch",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let second = task(&s, "1", "2", &args);
    assert_eq!(second.status.code(), Some(1));
    assert!(second.stderr.is_empty() && second.stdout.is_empty());
    assert!(!s.path("run").exists());
    // A step of one task, and a job script around no step, are runs of one process.
    let alone = task(&s, "0", "1", &args);
    assert!(alone.status.success(), "{}", text(&alone));
    let mut c = s.command(&["train", "config.json", "--out", "script"]);
    let script = in_sbatch(&mut c).output().expect("the binary runs");
    assert!(script.status.success(), "{}", text(&script));
    same(&s.path("run"), &s.path("script"));
}
