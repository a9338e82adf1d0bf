//! Builds the wrong plugins and runs the kit on them; this binary is the kit's child too.

use crossweave_conform::expect::Expect;
use crossweave_conform::launch::{Launcher, Program, read_job};
use crossweave_conform::report::Status;
use crossweave_conform::{Effort, Level, Options, Report, Target};
use crossweave_hal::HostServices;
use crossweave_hal::loader::file_name;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A defect: its name, the case that must fail for it, and on how many ranks.
pub type Defect = (&'static str, &'static str);

/// The CPU back end with defects, as a library.
pub fn wrapped_cpu() -> PathBuf {
    let profile = crossweave_tests::built::plugins_and(&["crossweave-seeded"]);
    profile.join(file_name("seeded_cpu"))
}

/// The C plugin with one defect. `cc` is there: Rust links by it too.
pub fn c_plugin(dir: &Path, bug: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = dir.join(file_name(&format!("seeded_c_{}", bug.to_lowercase())));
    let mut cc = Command::new("cc");
    cc.args([
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-O1",
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
    ]);
    if !bug.is_empty() {
        cc.arg(format!("-DBUG_{bug}"));
    }
    cc.arg("-I").arg(here.join("../hal/include"));
    cc.arg("-o").arg(&out).arg(here.join("seeded/c/plugin.c"));
    let r = cc
        .output()
        .unwrap_or_else(|e| panic!("these tests need a C compiler, cc: {e}"));
    assert!(r.status.success(), "{}", String::from_utf8_lossy(&r.stderr));
    out
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

/// The kit names the defect: the case fails, and by the kit's judgement, not by a slip of the kit.
/// Answers what it says.
pub fn named(plugin: &Path, (bug, case): (&str, &str)) -> Result<String, String> {
    let mut o = options(plugin, bug, &[case]);
    // Some defects hang, and are named for it.
    o.limit = Some(Duration::from_secs(60));
    let r = run(&o);
    match r.cells.iter().find(|c| c.id == case) {
        Some(c) if c.status == Status::Fail && !c.note.contains("the kit panicked") => {
            Ok(c.note.clone())
        }
        Some(c) => Err(format!("{bug}: {case} is {} {}", c.status.word(), c.note)),
        None => Err(format!("{bug}: there is no case {case}")),
    }
}

/// Without a defect the same cases hold.
pub fn holds(plugin: &Path, defects: &[Defect]) {
    let mut only: Vec<&str> = defects.iter().map(|d| d.1).collect();
    only.sort();
    only.dedup();
    let r = run(&options(plugin, "", &only));
    assert_eq!(failures(&r), Vec::<String>::new(), "without a defect");
    assert_eq!(r.exit_code(), 0);
}

/// All of a list, with every one that got away.
pub fn all_named(plugin: &Path, defects: &[Defect]) {
    let lost: Vec<String> = defects
        .iter()
        .filter_map(|d| named(plugin, *d).err())
        .collect();
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
