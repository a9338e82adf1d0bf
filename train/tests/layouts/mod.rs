//! Layouts of jobs, drawn over every axis there is: each is the config of a run, which trains as one rank does, holds and moves what `plan` says,
//! and has the bits of the plainest way to the same sums where these are promised. What rules of the axes forbid is refused by its key, by
//! `check`, `plan` and `train` alike. What fails is made smaller, and written as a config with the command.
//!
//! Some run with the suite. `cargo xtask fuzz-layouts --minutes N [--seed S]` draws for so long, and `--layouts N` so many, of which it writes
//! how often each axis and each two of them were seen into `tests/layouts.md`; with `--log FILE` together with those of a run before. `--faults` seeds faults
//! into a copy of the sources, and holds that each is caught (`xtask/src/faults.rs`).

mod axes;
mod config;
mod counts;
mod draw;
mod held;
mod log;

use counts::page;
use draw::{Draws, Layout, smaller};
use held::{Fault, Kind, Lab, written};
use log::{Line, Log};
use std::path::Path;
use std::time::{Duration, Instant};

/// Runs for which a smaller layout that still fails is looked for.
const SHRINKS: u32 = 60;

/// Makes a layout that fails smaller while it fails in the same way.
fn shrunk(lab: &mut Lab, mut l: Layout, mut fault: Fault) -> (Layout, Fault) {
    let mut left = if fault.kind == Kind::Hung { 3 } else { SHRINKS };
    'smaller: loop {
        for less in smaller(&l) {
            if left == 0 {
                return (l, fault);
            }
            left -= 1;
            match lab.hold(&less) {
                Err(f) if f.kind == fault.kind => {
                    (l, fault) = (less, f);
                    continue 'smaller;
                }
                _ => {}
            }
        }
        return (l, fault);
    }
}

/// The report of a layout that fails: the fault, the smallest layout that fails so, and the commands to run it.
fn report(lab: &mut Lab, l: Layout, fault: Fault) -> String {
    let first = format!("{:?}: {}\n  {}", fault.kind, fault.what, l.words());
    let (least, why) = match fault.kind {
        Kind::Allowed => (l, fault),
        _ => shrunk(lab, l, fault),
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("layout");
    let commands = written(&least, lab, &folder);
    format!(
        "{first}\nthe smallest that fails so:\n  {}\n{:?}: {}\n{commands}",
        least.words(),
        why.kind,
        why.what
    )
}

fn given(name: &str) -> Option<u64> {
    let given = std::env::var(name).ok()?;
    Some(
        given
            .parse()
            .unwrap_or_else(|_| panic!("{name} is a number")),
    )
}

/// The layouts to draw, and when to stop.
struct Ask {
    seed: u64,
    most: u64,
    limit: Option<Duration>,
    /// Choices that every layout has.
    always: Layout,
    /// Failures are noted and do not end the sweep.
    keep: bool,
}

/// Holds a layout, or one that breaks a rule, and returns its line of the log.
fn held(lab: &mut Lab, l: &Layout, seed: u64, refused: bool) -> (Line, Result<(), Fault>) {
    let (begun, before) = (Instant::now(), [lab.by_bits, lab.planned]);
    let held = match refused {
        false => lab.hold(l),
        true => lab.refused(l),
    };
    let line = Line {
        seed,
        seconds: begun.elapsed().as_secs_f64(),
        by_bits: lab.by_bits - before[0],
        planned: lab.planned - before[1],
        refused,
        words: l.words(),
        fault: String::new(),
    };
    (line.with(&held), held)
}

/// Draws layouts and holds each, with refusals between them, until there are so many or the time is over, behind those that a log has; those that
/// fail are kept where all are to be seen, and else the first is made smaller and ends it. What failed before is held once more.
fn hold_all(ask: &Ask, log: &mut Log) -> Draws {
    let seed = ask.seed;
    let (mut lab, mut draws) = (Lab::new(seed), Draws::new(seed, ask.always));
    for line in &mut log.lines {
        if !line.fault.is_empty() {
            let mut lab = Lab::new(line.seed);
            *line = held(&mut lab, &line.layout(), line.seed, line.refused).0;
            println!(
                "again, of seed {}: {}: {:?}",
                line.seed, line.words, line.fault
            );
        }
        if !line.refused {
            draws.took(line.layout());
        }
    }
    log.write();
    let end = ask.limit.map(|limit| Instant::now() + limit);
    let mut n = 0;
    while n < ask.most && end.is_none_or(|end| Instant::now() < end) {
        n += 1;
        let mut all = vec![(draws.draw(), false)];
        if n.is_multiple_of(10) {
            all.push((draws.refused(), true));
        }
        for (l, refused) in all {
            let (line, held) = held(&mut lab, &l, seed, refused);
            let at = format!("layout {n} of seed {seed}");
            log.push(line);
            match held {
                Ok(()) => {}
                Err(f) if ask.keep => println!("{at}: {}: {:?}, {}", l.words(), f.kind, f.what),
                Err(f) => panic!("{at}: {}", report(&mut lab, l, f)),
            }
        }
    }
    draws
}

/// Draws until a fault that was seeded into the sources is caught, and says how.
fn catch_seeded_fault(ask: &Ask) {
    let (mut lab, mut draws) = (Lab::new(ask.seed), Draws::new(ask.seed, ask.always));
    for n in 1..=ask.most {
        let l = draws.draw();
        let (line, held) = held(&mut lab, &l, ask.seed, false);
        if let Err(f) = held {
            println!("caught\t{n}\t{:?}\t{}\t{}", f.kind, line.words, line.fault);
            return;
        }
    }
    println!("missed\t{}", ask.most);
}

/// A sample of layouts that differs from week to week would hide what fails in one: it is always the same.
#[test]
fn drawn_layouts_train_as_one_rank() {
    let ask = Ask {
        seed: 3,
        most: 24,
        limit: None,
        always: Layout::plain(),
        keep: false,
    };
    let mut log = Log::default();
    hold_all(&ask, &mut log);
    let sum = |of: &dyn Fn(&Line) -> u64| log.lines.iter().map(of).sum::<u64>();
    let [by_bits, planned] = [sum(&|l| l.by_bits), sum(&|l| l.planned)];
    assert!(by_bits > 2 && planned > 4, "{by_bits} {planned}");
}

/// What the sweeps found, each made smaller: experts that ranks share at stage 0, whose other parameters are one rank's, beside a host that updates;
/// adapters of a layer that is frozen as a whole, whose base alone comes from the host.
#[test]
fn layouts_that_have_failed_hold() {
    let mut lab = Lab::new(1);
    for words in [
        "experts 4, tp 2, etp 1, offload host",
        "adapters chosen, groups frozen, zero 3, offload parameters",
    ] {
        if let Err(f) = lab.hold(&Layout::parse(words)) {
            panic!("{words}: {f:?}");
        }
    }
}

#[test]
#[ignore = "minutes: cargo xtask fuzz-layouts"]
fn sweep() {
    let seed = given("CROSSWEAVE_SEED").unwrap_or(1);
    if let Ok(words) = std::env::var("CROSSWEAVE_LAYOUT") {
        let (l, mut lab) = (Layout::parse(&words), Lab::new(seed));
        if let Some(rule) = l.broken() {
            panic!("it breaks a rule of {:?}: {}", rule.axes, rule.key);
        }
        if let Err(f) = lab.hold(&l) {
            panic!("{}", report(&mut lab, l, f));
        }
        return;
    }
    let minutes = given("CROSSWEAVE_MINUTES").map(|m| Duration::from_secs(60 * m));
    let most = given("CROSSWEAVE_LAYOUTS");
    let ask = Ask {
        seed,
        most: most.unwrap_or(u64::MAX),
        limit: minutes,
        always: Layout::parse(&std::env::var("CROSSWEAVE_ONLY").unwrap_or_default()),
        keep: most.is_some(),
    };
    if std::env::var_os("CROSSWEAVE_FAULT").is_some() {
        return catch_seeded_fault(&ask);
    }
    let file = std::env::var_os("CROSSWEAVE_LOG");
    let mut log = Log::open(file.as_ref().map(Path::new));
    let draws = hold_all(&ask, &mut log);
    let page = page(&log.lines, &draws);
    println!("{page}");
    if ask.keep {
        let to = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/layouts.md");
        std::fs::write(to, page).expect("a file");
    }
    let failed = log.lines.iter().filter(|l| !l.fault.is_empty()).count();
    assert!(failed == 0, "{failed} fail");
}
