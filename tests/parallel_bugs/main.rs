//! A corpus of parallel bugs: programs whose ranks do not fit together, and the verdict each must get; beside them programs that look
//! wrong and are right. Every one runs as a program of its own, on threads and in processes under both MPI families. See README.md.

mod bug;
mod bugs;
mod judge;
mod launch;
mod rank;
mod right;
mod world;

use bug::Where;
use launch::{Run, families};

/// The ordinary test run does nothing here; as a child, this is one program (see `launch.rs`).
#[test]
fn child() {
    if let Some(name) = launch::asked() {
        world::run(&name);
    }
}

#[test]
fn every_marker_stands_above_a_call_and_every_name_is_unique() {
    let mut names: Vec<&str> = bugs::all().map(|b| b.name).collect();
    names.extend(right::RIGHT.iter().map(|r| r.name));
    let bugs = bugs::all().count();
    assert!(bugs >= 40 && right::RIGHT.len() >= 8, "{bugs} bugs");
    names.sort_unstable();
    for pair in names.windows(2) {
        assert_ne!(pair[0], pair[1]);
    }
    for b in bugs::all() {
        for site in b.verdict.sites {
            judge::line(site);
        }
    }
}

#[test]
fn every_bug_on_threads_is_named() {
    let all = bugs::all().filter(|b| b.runs == Where::Both);
    let runs: Vec<Run> = all.map(Run::on_threads).collect();
    judge::all(runs, launch::BUSY);
}

/// What ranks compare is the same on threads and in processes; that it reaches other processes is asked with a sample.
#[test]
fn bugs_of_each_kind_and_file_in_processes_of_open_mpi_are_named() {
    if families().contains(&"openmpi") {
        let runs = bugs::sample().into_iter().map(|b| Run::under("openmpi", b));
        judge::all(runs.collect(), launch::WAITING);
    }
}

#[test]
#[ignore = "minutes: cargo test --release -p crossweave-tests --test suite -- --ignored every_bug_in_processes"]
fn every_bug_in_processes_of_every_mpi_is_named() {
    for family in families() {
        let runs = bugs::but_crashes().map(|b| Run::under(family, b));
        judge::all(runs.collect(), launch::BUSY);
    }
}

#[test]
fn bugs_of_each_kind_in_processes_of_mpich_are_named() {
    if !families().contains(&"mpich") {
        return;
    }
    let mut kinds = vec![];
    let mut runs = vec![];
    for b in bugs::all() {
        // What ranks compare is the same everywhere; that its texts reach other processes is asked of both families.
        if !kinds.contains(&b.verdict.kind) || bugs::PURPOSE.iter().any(|p| p.name == b.name) {
            kinds.push(b.verdict.kind);
            runs.push(Run::under("mpich", b));
        }
    }
    judge::all(runs, launch::BUSY);
}

/// As a kill is, whatever handles the signal.
#[test]
fn every_crash_in_processes_is_named() {
    for family in families() {
        let all = bugs::crashes::BUGS.iter();
        let runs = all.map(|b| Run::under(family, b)).collect();
        judge::all(runs, launch::WAITING);
    }
}

#[test]
fn right_programs_on_threads_end_in_silence() {
    judge::silent(right::RIGHT.iter().map(Run::right_on_threads).collect());
}

#[test]
fn right_programs_in_processes_end_in_silence() {
    for family in families() {
        let all = right::RIGHT.iter();
        judge::silent(all.map(|r| Run::right_under(family, r)).collect());
    }
}
