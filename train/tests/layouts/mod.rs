//! Layouts of jobs, drawn over every axis there is: each is the config of a run, which trains as one rank does, holds and moves what `plan` says,
//! and has the bits of the plainest way to the same sums where these are promised. What rules of the axes forbid is refused by its key, by
//! `check`, `plan` and `train` alike. What fails is made smaller, and written as a config with the command.
//!
//! Some run with the suite. `cargo xtask fuzz-layouts --minutes N [--seed S]` draws for so long, and `--layouts N` so many, of which it writes
//! how often each axis and each two of them were seen into `tests/layouts.md`.

mod axes;
mod config;
mod counts;
mod draw;
mod held;

use counts::{Sweep, page};
use draw::{Draws, Layout, smaller};
use held::{Fault, Kind, Lab, written};
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

/// Draws layouts and holds each, with refusals between them, until there are so many or the time is over; those that fail are kept where all are
/// to be seen, and else the first is made smaller and ends it.
fn hold_all(seed: u64, most: u64, (limit, keep): (Option<Duration>, bool)) -> (Sweep, Draws) {
    let (mut lab, mut draws) = (Lab::new(seed), Draws::new(seed));
    let begun = Instant::now();
    let end = limit.map(|limit| begun + limit);
    let mut s = Sweep {
        seed,
        ..Sweep::default()
    };
    while s.layouts < most && end.is_none_or(|end| Instant::now() < end) {
        let l = draws.draw();
        let mut all = vec![(l, lab.hold(&l))];
        s.layouts += 1;
        if s.layouts.is_multiple_of(10) {
            let l = draws.refused();
            all.push((l, lab.refused(&l)));
            s.refused += 1;
        }
        for (l, held) in all {
            match held {
                Ok(()) => {}
                Err(f) if keep => {
                    let said = format!("{}: {:?}, {}", l.words(), f.kind, f.what);
                    println!("layout {} of seed {seed}: {said}", s.layouts);
                    s.failed.push(said);
                }
                Err(f) => panic!(
                    "layout {} of seed {seed}: {}",
                    s.layouts,
                    report(&mut lab, l, f)
                ),
            }
        }
    }
    s.seconds = begun.elapsed().as_secs_f64();
    (s.by_bits, s.planned) = (lab.by_bits, lab.planned);
    (s, draws)
}

/// A sample of layouts that differs from week to week would hide what fails in one: it is always the same.
#[test]
fn drawn_layouts_train_as_one_rank() {
    let (s, _) = hold_all(3, 24, (None, false));
    assert!(
        s.by_bits > 4 && s.planned > 8,
        "{} {}",
        s.by_bits,
        s.planned
    );
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
    let keep = most.is_some();
    let (s, draws) = hold_all(seed, most.unwrap_or(u64::MAX), (minutes, keep));
    let page = page(&s, &draws);
    println!("{page}");
    if keep {
        let to = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/layouts.md");
        std::fs::write(to, page).expect("a file");
    }
    assert!(s.failed.is_empty(), "{} fail", s.failed.len());
}
