//! Builds the wrong plugins and runs the kit on them; this binary is the kit's child too.

use crossweave_conform::expect::Expect;
use crossweave_conform::launch::{Launcher, Program, read_job};
use crossweave_conform::report::Status;
use crossweave_conform::{Effort, Level, Options, Report, Target};
use crossweave_hal::HostServices;
use crossweave_hal::loader::file_name;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A defect: its name, the case that must fail for it, and on how many ranks.
pub type Defect = (&'static str, &'static str);

/// The CPU back end with defects, as a library.
pub fn wrapped_cpu() -> PathBuf {
    let profile = crossweave_tests::built::plugins_and(&["crossweave-seeded"]);
    profile.join(file_name("seeded_cpu"))
}

/// The C plugin with one defect.
pub fn c_plugin(dir: &Path, bug: &str) -> PathBuf {
    let define = (!bug.is_empty()).then(|| format!("-DBUG_{bug}"));
    let out = dir.join(file_name(&format!("seeded_c_{}", bug.to_lowercase())));
    compiled(&out, define.as_slice(), &["tests/seeded/c/plugin.c"])
}

/// The C example, reading late what a word names (`tests/seeded/c/late.c`); by no word it reads everything in time.
pub fn late_plugin(dir: &Path, what: &str) -> PathBuf {
    let example = |f: &str| format!("examples/c-plugin/src/{f}");
    let sources = ["device.c", "ops.c", "collectives.c"].map(example);
    let device = dir.join("device.o");
    // The example's entry is the inner one.
    let inner = ["-c", "-Dcrossweave_plugin_v1=inner"].map(String::from);
    compiled(&device, &inner, &[&sources[0]]);
    let define = match what {
        "" => vec![],
        w => vec![format!("-DLATE_{w}")],
    };
    let out = dir.join(file_name(&format!("seeded_late_{}", what.to_lowercase())));
    let device = device.display().to_string();
    let all = ["tests/seeded/c/late.c", &device, &sources[1], &sources[2]];
    compiled(&out, &define, &all)
}

/// Compiles sources of this tree. `cc` is there: Rust links by it too.
fn compiled(out: &Path, flags: &[String], sources: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut cc = Command::new("cc");
    cc.args([
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-O1",
        "-fwrapv",
        "-ffp-contract=off",
        "-fPIC",
        "-fvisibility=hidden",
        "-pthread",
        "-Ihal/include",
        "-Iexamples/c-plugin/src",
    ]);
    cc.current_dir(root).args(flags).arg("-o").arg(out);
    if !flags.iter().any(|f| f == "-c") {
        cc.arg("-shared");
    }
    cc.args(sources).arg("-lm");
    let r = cc
        .output()
        .unwrap_or_else(|e| panic!("these tests need a C compiler, cc: {e}"));
    assert!(r.status.success(), "{}", String::from_utf8_lossy(&r.stderr));
    out.to_path_buf()
}

/// What is run: `only` these patterns on two ranks, or everything up to a level.
pub fn options(plugin: &Path, bug: &str, only: &[&str]) -> Options {
    let mut config = BTreeMap::from([("cpu.devices".to_string(), "2".to_string())]);
    if !bug.is_empty() {
        config.insert("seeded.bug".into(), bug.into());
    }
    Options {
        target: Target::File(plugin.into()),
        config,
        layers: vec![],
        level: Level::Fault,
        profile: None,
        devices: vec![],
        ranks: vec![2],
        launcher: Launcher::Threads,
        only: only.iter().map(|p| p.to_string()).collect(),
        replay: None,
        seed: 0,
        expect: Expect::default(),
        effort: Effort::Default,
        budget: None,
        limit: None,
        jobs: Some(1),
        program: Program {
            path: std::env::current_exe().expect("this binary"),
            args: ["seeded::child", "--exact", "--ignored", "--nocapture"]
                .map(String::from)
                .to_vec(),
            launcher: None,
        },
    }
}

/// Runs the kit.
pub fn run(o: &Options) -> Report {
    o.run(&mut |_| ())
        .unwrap_or_else(|e| panic!("{}: {e}", o.target.text()))
}

/// What went wrong in a report, for messages.
pub fn failures(r: &Report) -> Vec<String> {
    let bad = r.cells.iter().filter(|c| c.status == Status::Fail);
    bad.map(|c| format!("{}: {}", c.id, c.note)).collect()
}

/// Defects of which a wait has no end: the kit's limit names them, which is short for them, because a wait that does not end
/// fails no sooner.
const ENDLESS: &[&str] = &[
    "enqueue_waits",
    "HANGS",
    "wait_value_wants_equality",
    "comm_timeout_ignored",
];
/// The limit of a case with an endless wait, and of every other one.
pub const LIMITS: [Duration; 2] = [Duration::from_secs(4), Duration::from_secs(60)];
/// The same with training sizes.
const BIG_LIMIT: Duration = Duration::from_secs(600);
/// Kits at work at once: most defects are waited for, not computed.
const AT_ONCE: usize = 4;

/// The least effort that has the trials of a case.
fn effort(case: &str) -> Effort {
    match case.ends_with(".sizes")
        || case.ends_with(".residues")
        || case.starts_with("coll.all_reduce.f32.sum.")
    {
        true => Effort::Default,
        false => Effort::Quick,
    }
}

/// These cases alone, on the numbers of ranks that they name.
fn narrow(plugin: &Path, bug: &str, only: &[&str], effort: Effort) -> Options {
    let mut o = options(plugin, bug, only);
    let of = |case: &str| case.rsplit_once(".r")?.1.parse().ok();
    let ranks: BTreeSet<u32> = only.iter().filter_map(|c| of(c)).collect();
    if !ranks.is_empty() {
        o.ranks = ranks.into_iter().collect();
    }
    o.effort = effort;
    o
}

/// The kit names the defect: the case fails, and by the kit's judgement, not by a slip of the kit nor, unless the defect is
/// one that has no end, because it takes too long. Answers what it says.
pub fn named(plugin: &Path, defect: (&str, &str)) -> Result<String, String> {
    named_at(plugin, defect, effort(defect.1))
}

/// The same at an effort of the caller's.
pub fn named_at(
    plugin: &Path,
    (bug, case): (&str, &str),
    effort: Effort,
) -> Result<String, String> {
    let endless = ENDLESS.contains(&bug);
    let mut o = narrow(plugin, bug, &[case], effort);
    o.limit = Some(match effort {
        Effort::Big => BIG_LIMIT,
        _ => LIMITS[usize::from(!endless)],
    });
    let began = Instant::now();
    let r = run(&o);
    println!("{bug}: {:.1} s", began.elapsed().as_secs_f64());
    let slip =
        |note: &str| note.contains("the kit panicked") || note.starts_with("hung") && !endless;
    match r.cells.iter().find(|c| c.id == case) {
        Some(c) if c.status == Status::Fail && !slip(&c.note) => Ok(c.note.clone()),
        Some(c) => Err(format!("{bug}: {case} is {} {}", c.status.word(), c.note)),
        None => Err(format!("{bug}: there is no case {case}")),
    }
}

/// Without a defect the same cases hold.
pub fn holds(plugin: &Path, defects: &[Defect]) {
    let mut only: Vec<&str> = defects.iter().map(|d| d.1).collect();
    only.sort();
    only.dedup();
    for e in [Effort::Quick, Effort::Default] {
        let some: Vec<&str> = only.iter().copied().filter(|c| effort(c) == e).collect();
        if some.is_empty() {
            continue;
        }
        let r = run(&narrow(plugin, "", &some, e));
        assert_eq!(failures(&r), Vec::<String>::new(), "without a defect");
        assert_eq!(r.exit_code(), 0);
        for c in &r.cells {
            let judged = matches!(c.status, Status::Pass | Status::Refused);
            assert!(judged, "{} is {} {}", c.id, c.status.word(), c.note);
        }
    }
}

/// All of a list, with every one that got away. `plugin` gives the one with a defect.
pub fn all_named(defects: &[Defect], plugin: &(dyn Fn(&str) -> PathBuf + Sync)) {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut lost = vec![];
        while let Some((bug, case)) = defects.get(next.fetch_add(1, Relaxed)) {
            lost.extend(named(&plugin(bug), (bug, case)).err());
        }
        lost
    };
    let lost: Vec<String> = std::thread::scope(|s| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| s.spawn(worker)).collect();
        workers
            .into_iter()
            .flat_map(|w| w.join().expect("a worker"))
            .collect()
    });
    assert_eq!(lost, Vec::<String>::new(), "defects that were not named");
}

/// The kit's child.
pub fn serve_child() {
    let Some(job) = std::env::args()
        .next_back()
        .filter(|a| a.ends_with(".json"))
    else {
        return;
    };
    let job = read_job(Path::new(&job)).expect("a job");
    let linked = |name: &str| match name {
        "cpu" => Some(crossweave_backend_cpu::entry()),
        "null" => Some(crossweave_backend_null::entry()),
        _ => None,
    };
    let around = |raw, _: &str, _: &HostServices| Ok(raw);
    crossweave_conform::child::serve(&job, &linked, &around, None).expect("a pipe");
}
