//! Starting `crossweave` as several processes, under the launchers of both MPI families or by torchrun's variables. A family that is not
//! installed is skipped with a line that says so; CI installs both.

use super::Scratch;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The launchers there are.
pub fn families() -> Vec<&'static str> {
    crossweave_tests::tools::mpi_families()
}

/// The plugin beside the program, built when it is not there yet.
pub fn plugin() {
    crossweave_tests::built::plugins();
}

/// `crossweave args` on `n` ranks.
pub fn mpirun(s: &Scratch, family: &str, n: u32, args: &[&str]) -> Command {
    launcher(s, family, n, &[], args)
}

/// As `mpirun`, with options of the launcher's own.
pub fn launcher(s: &Scratch, family: &str, n: u32, own: &[&str], args: &[&str]) -> Command {
    let mut c = Command::new(format!("mpirun.{family}"));
    c.args(own);
    c.current_dir(s.dir.path())
        .env("CROSSWEAVE_CACHE", s.path("cache"));
    c.env_remove("CROSSWEAVE_PLUGIN_PATH");
    if family == "openmpi" {
        c.args(["--allow-run-as-root", "--oversubscribe"]);
        // No network is asked for, and waiting ranks leave the cores to the others.
        c.env("OMPI_MCA_btl", "self,vader")
            .env("OMPI_MCA_mpi_yield_when_idle", "1")
            // One second is what it leaves survivors to say who died, too little on a busy machine.
            .env("OMPI_MCA_odls_base_sigkill_timeout", "4");
    }
    c.args(["-n", &n.to_string()]);
    c.arg(env!("CARGO_BIN_EXE_crossweave")).args(args);
    c
}

pub fn text(o: &Output) -> String {
    let out = String::from_utf8_lossy(&o.stdout);
    format!(
        "{}\n{out}\n{}",
        o.status,
        String::from_utf8_lossy(&o.stderr)
    )
}

pub fn ok(mut c: Command) -> String {
    let o = c.output().expect("mpirun starts");
    assert!(o.status.success(), "{c:?}: {}", text(&o));
    text(&o)
}

/// `crossweave args` as `n` processes that know each other by torchrun's variables alone, as a shell loop would start them.
pub fn torch_style(s: &Scratch, n: u32, args: &[&str]) -> Vec<Child> {
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = free.local_addr().expect("its number").port();
    drop(free);
    let start = |rank: u32| {
        let mut c = s.command(args);
        c.env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("WORLD_SIZE", n.to_string())
            .env("LOCAL_WORLD_SIZE", n.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        c.spawn().expect("the binary runs")
    };
    // The last first: nobody needs rank 0 to be there already.
    let mut all: Vec<Child> = (0..n).rev().map(start).collect();
    all.reverse();
    all
}

pub fn wait_for(what: &str, mut ready: impl FnMut() -> bool) {
    let began = Instant::now();
    while !ready() {
        assert!(
            began.elapsed() < Duration::from_secs(300),
            "{what} took too long"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Plays a scene in which a rank is killed until its survivors have had the time to speak, and to leave what `left` looks for. MPICH's
/// launcher sometimes ends all ranks the moment a signal ends one, whatever its options, or ends itself over a survivor it was answering, and UCX
/// beneath it ends a survivor that was reading the dead one's memory, who then has the time to say who died but may not get to leave
/// anything; then the scene is played again. So it is where a survivor needs longer on a busy machine than the 4 s that Open MPI's launcher
/// is asked to leave it.
pub fn played(
    family: &str,
    scene: impl Fn(u32) -> Output,
    left: impl Fn(u32) -> bool,
) -> (u32, Output) {
    let mut last = 0;
    loop {
        let o = scene(last);
        let said = text(&o);
        let cut = !said.contains("died without a word") || !left(last);
        let ways = ["(signal ", "process_vm_readv", "[mpiexec@"];
        let ended = ways.iter().any(|w| said.contains(w));
        let again = match family {
            "mpich" => cut && ended,
            _ => !left(last),
        };
        if last == 9 || !again {
            return (last, o);
        }
        last += 1;
    }
}

/// The process that is rank `rank` of the job under `launcher`.
pub fn process_of(launcher: u32, rank: u32) -> Option<u32> {
    let variables = [
        format!("OMPI_COMM_WORLD_RANK={rank}"),
        format!("PMI_RANK={rank}"),
    ];
    let program = std::fs::canonicalize(env!("CARGO_BIN_EXE_crossweave")).ok()?;
    let parent = |pid: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?
            .1
            .split_whitespace()
            .nth(1)?
            .parse()
            .ok()
    };
    let ours = |pid: u32| {
        let mut up = pid;
        while let Some(p) = parent(up).filter(|p| *p > 1) {
            if p == launcher {
                return true;
            }
            up = p;
        }
        false
    };
    std::fs::read_dir("/proc")
        .ok()?
        .flatten()
        .find_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
            let environ = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
            let is = |v: &[u8]| variables.iter().any(|w| w.as_bytes() == v);
            let right = exe == program && environ.split(|b| *b == 0).any(is) && ours(pid);
            right.then_some(pid)
        })
}
