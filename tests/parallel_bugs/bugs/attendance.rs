//! Ops that one rank leaves out or has too many of, and ops on a group other than the others'.

use crate::parallel_bugs::bug::{Bug, bug};
use crate::parallel_bugs::rank::{On, Rank};
use crossweave_hal::Result;
use crossweave_mesh::{Axis, Channel, GroupKey, MeshOptions, Part};
use std::time::Duration;

pub const BUGS: &[Bug] = &[
    bug!(
        one_left_out,
        2,
        Mismatch,
        &[0, 1],
        &["all_reduce", "broadcast"],
        &["left_out.0", "left_out.1"]
    ),
    bug!(
        one_of_three_left_out,
        3,
        Missing,
        &[1],
        &["all_reduce", "all_gather"],
        &["third.02", "third.1"]
    ),
    bug!(
        one_of_four_has_more,
        4,
        Extra,
        &[2],
        &["barrier", "all_reduce"],
        &["more.013", "more.2"]
    ),
    bug!(
        last_one_left_out,
        3,
        Ended,
        &[2],
        &["all_reduce"],
        &["last.01", "last.2"]
    ),
    bug!(
        one_too_many_at_the_end,
        3,
        Ended,
        &[1, 2],
        &["barrier"],
        &["extra.0", "extra.12"]
    ),
    bug!(
        column_left_out,
        4,
        Ended,
        &[3],
        &["all_reduce"],
        &["column.1", "column.3"]
    ),
    bug!(
        other_group,
        2,
        Deadlock,
        &[0, 1],
        &["all_reduce"],
        &["group.0", "group.1"]
    ),
    bug!(
        other_group_of_three,
        3,
        Deadlock,
        &[0, 1, 2],
        &["all_reduce"],
        &["group3.01", "group3.2"]
    ),
    bug!(not_a_member, 3, Refused, &[2], &[], &[], words: &["rank 2 joining group dp/tie", "none of its members, [0, 1]"]),
    bug!(never_joined, 2, Refused, &[1], &[], &[], words: &["rank 1 has no group pp/peers"]),
];

/// Validation skips the sum of the loss where there is nothing to validate.
fn one_left_out(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        // @left_out.0
        r.all_reduce(On::World, 1)?;
    }
    // @left_out.1
    r.broadcast(On::World, 64, 0)?;
    r.sync()
}

/// One of three is left out, long enough before the end that the rest of the order shows what is missing.
fn one_of_three_left_out(r: &mut Rank) -> Result<()> {
    r.barrier(On::World)?;
    if r.rank != 1 {
        // @third.02
        r.all_reduce(On::World, 10)?;
    }
    // @third.1
    r.all_gather(On::World, 20)?;
    r.reduce_scatter(On::World, 30)?;
    r.sync()
}

/// A barrier somebody added to print something.
fn one_of_four_has_more(r: &mut Rank) -> Result<()> {
    r.all_gather(On::World, 20)?;
    if r.rank == 2 {
        // @more.2
        r.barrier(On::World)?;
    }
    // @more.013
    r.all_reduce(On::World, 10)?;
    r.all_gather(On::World, 20)?;
    r.sync()
}

/// The loop of one rank is a step shorter: it is done, and the others wait.
fn last_one_left_out(r: &mut Rank) -> Result<()> {
    // @last.2
    r.all_reduce(On::World, 8)?;
    if r.rank != 2 {
        // @last.01
        r.all_reduce(On::World, 8)?;
    }
    r.sync()
}

/// Rank 0 says farewell with a barrier of its own.
fn one_too_many_at_the_end(r: &mut Rank) -> Result<()> {
    // @extra.12
    r.all_reduce(On::World, 8)?;
    if r.rank == 0 {
        // @extra.0
        r.barrier(On::World)?;
    }
    r.sync()
}

/// A rank of a grid takes part in its row and forgets its column.
fn column_left_out(r: &mut Rank) -> Result<()> {
    // @column.3
    r.all_reduce(On::Row, 8)?;
    if r.rank != 3 {
        // @column.1
        r.all_reduce(On::Column, 8)?;
    }
    r.sync()
}

/// Two communicators over the same ranks: each rank takes another one.
fn other_group(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        // @group.0
        r.about(On::World, "sum")?.all_reduce(On::World, 8)?;
    } else {
        // @group.1
        r.about(On::Second, "sum")?.all_reduce(On::Second, 8)?;
    }
    r.sync()
}

/// The same of three.
fn other_group_of_three(r: &mut Rank) -> Result<()> {
    if r.rank == 2 {
        // @group3.2
        r.about(On::Second, "sum")?.all_reduce(On::Second, 8)?;
    } else {
        // @group3.01
        r.about(On::World, "sum")?.all_reduce(On::World, 8)?;
    }
    r.sync()
}

/// A rank joins a group whose list of members lacks it.
fn not_a_member(r: &mut Rank) -> Result<()> {
    let options = MeshOptions {
        timeout: Some(Duration::from_secs(60)),
        ..MeshOptions::default()
    };
    let device = r.device.clone();
    let boot = r.boot.clone();
    let pair = GroupKey::over(Axis::Dp).part(Part::Tied(vec![0, 1]));
    r.mesh.join(&device, &*boot, &pair, &options)
}

/// A rank uses a group that nobody has made.
fn never_joined(r: &mut Rank) -> Result<()> {
    if r.rank == 1 {
        r.mesh.group(GroupKey::over(Axis::Pp).on(Channel::Peers))?;
    }
    r.barrier(On::World)?;
    r.sync()
}
