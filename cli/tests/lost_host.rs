//! A run that goes on without a lost host: `examples/launch/again.sh` over imitated hosts, one of which loses its power and comes back.
//!
//! The long run takes a count of losses and a seed: CROSSWEAVE_RESTARTS=25 CROSSWEAVE_SEED=1, with `--ignored of_many_lost_hosts`. Each is two starts: one
//! without the host, and one with it again.

use crate::common;
use crate::hosts::Hosts;
use common::mpi::{families, plugin};
use common::{Scratch, records};
use crossweave_tests::system::{Signal, send};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A job that does not end by then never will, on any machine.
const HUNG: Duration = Duration::from_secs(600);

/// `examples/launch/again.sh` on three hosts, one of which loses its power and comes back: the run goes on over two, then over three again, until
/// it is asked to stop, and has the bits of an undisturbed one. It is asked behind the last of these, so that no speed of the machine ends it before.
#[test]
fn a_run_goes_on_without_a_lost_host_and_takes_it_back() {
    goes_on(&[(3, "power")]);
}

/// The second or the third of three hosts is lost, by its power or its link, again and again.
#[test]
#[ignore = "half a minute for each loss: CROSSWEAVE_RESTARTS=25 CROSSWEAVE_SEED=1"]
fn of_many_lost_hosts_every_one_is_taken_back() {
    let number = |name: &str, or: u64| {
        let text = std::env::var(name).ok();
        text.map_or(or, |t| t.parse().expect("a number"))
    };
    let (count, mut dice) = (
        number("CROSSWEAVE_RESTARTS", 3),
        number("CROSSWEAVE_SEED", 1),
    );
    let mut roll = || {
        dice = dice
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (dice >> 33) as usize % 2
    };
    let losses: Vec<(u32, &str)> = (0..count)
        .map(|_| ([2, 3][roll()], ["power", "cut"][roll()]))
        .collect();
    goes_on(&losses);
}

fn is_save(name: &std::ffi::OsStr) -> bool {
    name.to_str().is_some_and(|name| name.starts_with("step-"))
}

/// Plays one run to which these hosts are lost in these ways, one after the other, and come back.
fn goes_on(losses: &[(u32, &str)]) {
    plugin();
    if !families().contains(&"openmpi") {
        return;
    }
    let Some(hosts) = Hosts::up(3, &[]) else {
        return;
    };
    let s = Scratch::of_hosts();
    let settings = [
        "run.heartbeat_s=1.5",
        "run.checkpoint_every=25",
        "run.canonical_shards=6",
        "train_batch_size=6",
        "run.validate_every=100000",
    ];
    let sets = settings.iter().flat_map(|set| ["--set", *set]);
    let sets: Vec<String> = sets.map(String::from).collect();
    let words: Vec<&str> = sets.iter().map(String::as_str).collect();
    let script = Hosts::script().display().to_string();
    let on: String = (1..=3).map(|i| format!("10.77.0.{i} slots=1\n")).collect();
    s.write("on", on);
    let again = Hosts::script().with_file_name("../../../examples/launch/again.sh");
    let mut c = Command::new("bash");
    c.args([&script, "run", "1", "bash"]).arg(again);
    c.arg("config.json").args(&sets);
    c.args(["--set", "run.steps=1000000"]);
    let net = "10.77.0.0/24";
    for (name, value) in [
        ("HOSTS_PREFIX", hosts.prefix.as_str()),
        ("HOSTS", "on"),
        ("OUT", "out"),
        ("MIN", "2"),
        ("EVERY", "1"),
        ("RSH", &format!("bash {script} reach")),
        ("MPIRUN", "mpirun.openmpi"),
        ("CROSSWEAVE", env!("CARGO_BIN_EXE_crossweave")),
        ("CROSSWEAVE_CACHE", &s.path("cache").display().to_string()),
        ("OMPI_MCA_plm_rsh_agent", &format!("{script} agent")),
        ("OMPI_MCA_btl", "tcp,self"),
        ("OMPI_MCA_btl_tcp_if_include", net),
        ("OMPI_MCA_oob_tcp_if_include", net),
        ("OMPI_MCA_oob_tcp_keepalive_time", "2"),
        ("OMPI_MCA_oob_tcp_keepalive_intvl", "1"),
        ("OMPI_MCA_oob_tcp_keepalive_probes", "2"),
        ("OMPI_MCA_mpi_yield_when_idle", "1"),
        ("OMPI_MCA_odls_base_sigkill_timeout", "4"),
        (
            "OMPI_MCA_orte_tmpdir_base",
            &s.dir.path().display().to_string(),
        ),
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ] {
        c.env(name, value);
    }
    let file = std::fs::File::create(s.path("said")).expect("a file");
    c.current_dir(s.dir.path())
        .env_remove("CROSSWEAVE_PLUGIN_PATH");
    c.stdout(file.try_clone().expect("a file")).stderr(file);
    let mut child = c.stdin(Stdio::null()).spawn().expect("bash starts");
    let text = || std::fs::read_to_string(s.path("said")).unwrap_or_default();
    let mut until = |what: &str, ready: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !ready() {
            let ended = child.try_wait().expect("ours").is_some() && !ready();
            assert!(!ended && began.elapsed() < HUNG, "{what}: {}", text());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let steps = || match s.path("out/metrics.jsonl").is_file() {
        true => records(&s.path("out")).len(),
        false => 0,
    };
    // A save is written while steps go on.
    let saved = || {
        let all = std::fs::read_dir(s.path("out/checkpoints")).ok();
        all.is_some_and(|mut all| all.any(|e| e.is_ok_and(|e| is_save(&e.file_name()))))
    };
    until("begins", &|| steps() > 30 && saved());
    for (host, how) in losses {
        let host = host.to_string();
        let without = || text().matches("on 2 of 3 hosts, from step-").count();
        let back = || text().matches("on 3 of 3 hosts").count();
        let (once, before) = (without(), back());
        hosts.call(&[how, &host], &[]).expect("a host");
        until("goes on", &|| without() > once);
        let lost = steps();
        until("trains", &|| steps() > lost + 5);
        hosts.call(&["mend", &host], &[]).expect("a host");
        until("takes it back", &|| back() > before);
        let returned = steps();
        until("trains again", &|| steps() > returned + 30);
        println!("{how} of host {host}: {} steps", steps());
    }
    let owner = std::fs::read_to_string(s.path("out/owner.lock")).expect("an owner");
    let owner: serde_json::Value = serde_json::from_str(&owner).expect("JSON");
    let pid = owner["pid"].as_u64().expect("a process");
    send(Signal::SIGINT, u32::try_from(pid).expect("a process"));
    let status = child.wait().expect("ours");
    assert_eq!(status.code(), Some(130), "{}", text());
    // A few steps more, of threads, end both.
    let done = records(&s.path("out"))
        .last()
        .and_then(|r| r["step"].as_u64());
    let last = format!("run.steps={}", done.expect("steps") + 3);
    for more in [
        &["--out", "whole"][..],
        &["--out", "out", "--resume", "auto"],
    ] {
        let job = ["train", "config.json", "--ranks", "3", "--set", &last];
        s.ok(&[&job[..], more, &words].concat());
    }
    common::same(&s.path("whole"), &s.path("out"));
}
