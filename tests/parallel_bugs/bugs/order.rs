//! Right ops in a wrong order: within a group, and across two groups, where each rank alone looks right.

use crate::parallel_bugs::bug::{Bug, bug};
use crate::parallel_bugs::rank::{On, Rank};
use crossweave_hal::Result;

pub const BUGS: &[Bug] = &[
    bug!(
        swapped_kinds,
        2,
        Mismatch,
        &[0, 1],
        &["all_reduce", "broadcast"],
        &["kinds.0", "kinds.1"]
    ),
    bug!(swapped_counts, 2, Mismatch, &[0, 1], &["all_reduce"], &["counts.0", "counts.1"], words: &["100", "200"]),
    bug!(
        overtakes,
        3,
        Mismatch,
        &[2],
        &["all_reduce", "all_gather"],
        &["overtakes.01", "overtakes.2"]
    ),
    bug!(from_a_hash_map, 4, Mismatch, &[3], &["all_reduce"], &["hash.012", "hash.3"], words: &["64", "128"]),
    bug!(
        two_groups_inverted,
        2,
        Deadlock,
        &[0, 1],
        &["all_reduce"],
        &["inverted.0", "inverted.1"]
    ),
    bug!(
        grid_inverted,
        4,
        Deadlock,
        &[0, 1, 2, 3],
        &["all_reduce"],
        &["grid.column", "grid.row"]
    ),
    bug!(
        gathers_and_sums_inverted,
        2,
        Deadlock,
        &[0, 1],
        &["all_gather", "all_reduce"],
        &["lanes.0", "lanes.1"]
    ),
];

/// The classic: a broadcast of the new weights before, and after, the sum of gradients.
fn swapped_kinds(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        // @kinds.0
        r.all_reduce(On::World, 100)?;
        r.broadcast(On::World, 100, 0)?;
    } else {
        // @kinds.1
        r.broadcast(On::World, 100, 0)?;
        r.all_reduce(On::World, 100)?;
    }
    r.sync()
}

/// Two buckets in another order: nothing hangs anywhere, and the sums are nonsense.
fn swapped_counts(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        // @counts.0
        r.all_reduce(On::World, 100)?;
        r.all_reduce(On::World, 200)?;
    } else {
        // @counts.1
        r.all_reduce(On::World, 200)?;
        r.all_reduce(On::World, 100)?;
    }
    r.sync()
}

/// One of three is an op ahead.
fn overtakes(r: &mut Rank) -> Result<()> {
    if r.rank == 2 {
        // @overtakes.2
        r.all_gather(On::World, 64)?;
        r.all_reduce(On::World, 64)?;
    } else {
        // @overtakes.01
        r.all_reduce(On::World, 64)?;
        r.all_gather(On::World, 64)?;
    }
    r.sync()
}

/// Parameters in the order of a hash map with a seed of its own on each rank.
fn from_a_hash_map(r: &mut Rank) -> Result<()> {
    let parameters = if r.rank == 3 { [128, 64] } else { [64, 128] };
    let [first, second] = parameters;
    if r.rank == 3 {
        // @hash.3
        r.all_reduce(On::World, first)?;
    } else {
        // @hash.012
        r.all_reduce(On::World, first)?;
    }
    r.all_reduce(On::World, second)?;
    r.sync()
}

/// Two communicators over the same ranks, taken in opposite order: each waits for the other's second op.
fn two_groups_inverted(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        // @inverted.0
        r.about(On::World, "sum")?.all_reduce(On::World, 64)?;
        r.about(On::Second, "sum")?.all_reduce(On::Second, 64)?;
    } else {
        // @inverted.1
        r.about(On::Second, "sum")?.all_reduce(On::Second, 64)?;
        r.about(On::World, "sum")?.all_reduce(On::World, 64)?;
    }
    r.sync()
}

/// Rows and columns of a grid: no two ranks contradict each other, the four together wait for ever.
fn grid_inverted(r: &mut Rank) -> Result<()> {
    if r.rank == 0 || r.rank == 3 {
        // @grid.column
        r.about(On::Column, "sum")?.all_reduce(On::Column, 64)?;
        r.about(On::Row, "sum")?.all_reduce(On::Row, 64)?;
    } else {
        // @grid.row
        r.about(On::Row, "sum")?.all_reduce(On::Row, 64)?;
        r.about(On::Column, "sum")?.all_reduce(On::Column, 64)?;
    }
    r.sync()
}

/// A gather of parameters and a sum of gradients, each on a communicator of its own but both on one stream.
fn gathers_and_sums_inverted(r: &mut Rank) -> Result<()> {
    for _ in 0..3 {
        r.about(On::Second, "gather")?.all_gather(On::Second, 64)?;
        r.about(On::World, "sum")?.all_reduce(On::World, 64)?;
    }
    if r.rank == 0 {
        // @lanes.0
        r.about(On::Second, "gather")?.all_gather(On::Second, 64)?;
        r.about(On::World, "sum")?.all_reduce(On::World, 64)?;
    } else {
        // @lanes.1
        r.about(On::World, "sum")?.all_reduce(On::World, 64)?;
        r.about(On::Second, "gather")?.all_gather(On::Second, 64)?;
    }
    r.sync()
}
