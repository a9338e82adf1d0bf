//! Control flow that depends on the rank or on its data, where every rank must go the same way.

use crate::parallel_bugs::bug::{Bug, bug};
use crate::parallel_bugs::rank::{On, Rank};
use crossweave_hal::Result;

pub const BUGS: &[Bug] = &[
    bug!(
        only_rank_zero_validates,
        3,
        Extra,
        &[0],
        &["all_reduce", "all_gather"],
        &["validates.0", "validates.12"]
    ),
    bug!(
        loops_until_its_own_loss_is_low,
        2,
        Ended,
        &[1],
        &["all_reduce"],
        &["loss"]
    ),
    bug!(
        skips_the_update_on_nan,
        4,
        Missing,
        &[2],
        &["all_reduce", "all_gather"],
        &["nan.013", "nan.2"]
    ),
    bug!(
        shard_is_a_sample_short,
        3,
        Ended,
        &[2],
        &["reduce_scatter"],
        &["shard"]
    ),
    bug!(unused_parameter, 3, Missing, &[1], &["all_reduce"], &["unused.02", "unused.1"], words: &["64", "96"]),
    bug!(
        other_branch_of_a_match,
        4,
        Mismatch,
        &[0],
        &["all_gather", "broadcast"],
        &["match.0", "match.123"]
    ),
];

/// `if rank == 0 { validate() }`, and validation sums its loss over the ranks.
fn only_rank_zero_validates(r: &mut Rank) -> Result<()> {
    for _ in 0..2 {
        r.all_gather(On::World, 16)?;
    }
    if r.rank == 0 {
        // @validates.0
        r.all_reduce(On::World, 1)?;
    }
    for _ in 0..2 {
        // @validates.12
        r.all_gather(On::World, 16)?;
    }
    r.sync()
}

/// Each rank stops when its own loss is low enough: it should be the sum of all.
fn loops_until_its_own_loss_is_low(r: &mut Rank) -> Result<()> {
    let mut loss = if r.rank == 0 { 5.0 } else { 4.0 };
    while loss > 0.5 {
        // @loss
        r.all_reduce(On::World, 32)?;
        loss -= 1.0;
    }
    r.sync()
}

/// A rank whose gradient is not finite leaves out what the others do with theirs.
fn skips_the_update_on_nan(r: &mut Rank) -> Result<()> {
    let gradient = if r.rank == 2 { f32::NAN } else { 1.0 };
    if gradient.is_finite() {
        // @nan.013
        r.all_reduce(On::World, 32)?;
    }
    // @nan.2
    r.all_gather(On::World, 8)?;
    r.all_gather(On::World, 12)?;
    r.sync()
}

/// A data set that does not divide by the ranks.
fn shard_is_a_sample_short(r: &mut Rank) -> Result<()> {
    let samples = 17;
    let mine = samples / 3 + u32::from(r.rank < samples % 3);
    for _ in 0..mine {
        // @shard
        r.reduce_scatter(On::World, 16)?;
    }
    r.sync()
}

/// A branch of the model that one rank's data never takes: its gradient is never summed there.
fn unused_parameter(r: &mut Rank) -> Result<()> {
    if r.rank != 1 {
        // @unused.02
        r.all_reduce(On::World, 64)?;
    }
    // @unused.1
    r.all_reduce(On::World, 96)?;
    r.all_reduce(On::World, 128)?;
    r.sync()
}

/// A resumed rank believes that it has the weights already.
fn other_branch_of_a_match(r: &mut Rank) -> Result<()> {
    let resumed = r.rank == 0;
    match resumed {
        // @match.0
        true => r.all_gather(On::World, 16)?,
        // @match.123
        false => r.broadcast(On::World, 16, 0)?,
    }
    r.sync()
}
