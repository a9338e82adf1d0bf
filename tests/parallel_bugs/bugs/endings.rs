//! Ranks that end before their time: by returning, by an error, by a panic, by `kill -9`.

use crate::parallel_bugs::bug::{Bug, Where, bug};
use crate::parallel_bugs::rank::{On, Rank};
use crossweave_hal::{Error, Result};

pub const BUGS: &[Bug] = &[
    bug!(
        returns_early,
        2,
        Ended,
        &[1],
        &["all_reduce"],
        &["early.0", "early.1"]
    ),
    bug!(returns_an_error, 3, Failed, &[1], &["all_reduce"], &["error.02"], words: &["batch 7 cannot be read"]),
    bug!(error_in_a_row, 4, Failed, &[3], &["all_reduce"], &["row"], words: &["no such expert"]),
    bug!(panics, 3, Failed, &[2], &["all_gather"], &["panics.01"], words: &["panicked"]),
    bug!(killed, 2, Failed, &[1], &["all_reduce"], &["killed.0"], words: &["without a word"]),
    bug!(killed_while_all_wait, 4, Failed, &[2], &["broadcast"], &["all_wait"], words: &["without a word"]),
    bug!(killed_sender, 2, Failed, &[0], &["recv"], &["sender.1"], words: &["without a word"]),
    bug!(exits_with_success, 2, Failed, &[1], &["all_reduce"], &["exits.0"], runs: Where::Processes),
];

/// A condition that is true on one rank only ends its program in the middle.
fn returns_early(r: &mut Rank) -> Result<()> {
    for step in 0..4 {
        // @early.1
        r.all_reduce(On::World, 8)?;
        if step == 1 && r.rank == 1 {
            return r.sync();
        }
        // @early.0
        r.broadcast(On::World, 8, 0)?;
    }
    r.sync()
}

/// An error that one rank handles, the others cannot know of.
fn returns_an_error(r: &mut Rank) -> Result<()> {
    if r.rank == 1 {
        r.let_others_wait();
        return Err(Error::invalid("data", "batch 7 cannot be read"));
    }
    // @error.02
    r.all_reduce(On::World, 8)?;
    r.sync()
}

/// The failed rank is in the group of one other rank only; the error must reach all.
fn error_in_a_row(r: &mut Rank) -> Result<()> {
    if r.rank == 3 {
        r.let_others_wait();
        return Err(Error::invalid("route", "no such expert"));
    }
    // @row
    r.all_reduce(On::Row, 8)?;
    r.sync()
}

/// An assertion in the model's code.
fn panics(r: &mut Rank) -> Result<()> {
    if r.rank == 2 {
        r.let_others_wait();
        let lengths = [1, 2];
        let at = r.rank as usize;
        assert!(at < lengths.len(), "index {at} of {}", lengths.len());
    }
    // @panics.01
    r.all_gather(On::World, 8)?;
    r.sync()
}

/// The system takes a rank's memory, and the rank with it.
fn killed(r: &mut Rank) -> Result<()> {
    if r.rank == 1 {
        r.let_others_wait();
        r.kill()?;
    }
    // @killed.0
    r.all_reduce(On::World, 8)?;
    r.sync()
}

/// The same of four, in a broadcast from the one that is gone.
fn killed_while_all_wait(r: &mut Rank) -> Result<()> {
    if r.rank == 2 {
        r.let_others_wait();
        r.kill()?;
    }
    // @all_wait
    r.broadcast(On::World, 8, 2)?;
    r.sync()
}

/// The one who should have sent is gone.
fn killed_sender(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        r.let_others_wait();
        r.kill()?;
    }
    // @sender.1
    r.recv(On::World, 8, 0)?;
    r.sync()
}

/// A library calls `exit(0)`. A thread that does takes all ranks with it, so this is a bug between processes only.
fn exits_with_success(r: &mut Rank) -> Result<()> {
    if r.rank == 1 {
        r.let_others_wait();
        std::process::exit(0);
    }
    // @exits.0
    r.all_reduce(On::World, 8)?;
    r.sync()
}
