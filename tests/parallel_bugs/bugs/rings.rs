//! Messages of attention over rows that ranks have cut: keys that go around a ring, their gradients beside them, and heads that ranks exchange.

use crate::parallel_bugs::bug::{Bug, bug};
use crate::parallel_bugs::rank::{On, Rank};
use crossweave_hal::Result;

pub const BUGS: &[Bug] = &[
    bug!(heads_exchanged_for_other_tokens, 3, Mismatch, &[1], &["all_to_all"], &["heads"], words: &["about F2 layer 1"]),
    bug!(exchange_of_heads_left_out, 3, Missing, &[2], &["all_to_all"], &["heads"], words: &["about F2 layer 1"]),
    bug!(
        step_of_a_ring_left_out,
        3,
        Ended,
        &[1],
        &["recv"],
        &["ring.pass"]
    ),
];

/// Elements of the keys and values of a rank.
const KEYS: u64 = 192;

/// The rank so many places ahead.
fn ahead(r: &Rank, by: u32) -> u32 {
    (r.rank + by) % 3
}

/// A step of the ring: to the next rank, from the one before.
fn pass(r: &mut Rank, n: u64) -> Result<()> {
    let (next, before) = (ahead(r, 1), ahead(r, 2));
    // @ring.pass
    r.exchange(On::World, n, next, before)
}

/// The heads of `n` elements for each rank.
fn heads(r: &mut Rank, layer: &str, n: u64) -> Result<()> {
    r.about(On::World, layer)?;
    // @heads
    r.all_to_all(On::World, n)
}

/// One rank has rows of another length.
fn heads_exchanged_for_other_tokens(r: &mut Rank) -> Result<()> {
    heads(r, "F1 layer 0", 64)?;
    heads(r, "F2 layer 1", if r.rank == 1 { 96 } else { 64 })?;
    r.sync()
}

/// One rank's values are not exchanged: queries, keys and values are three calls, and the result a fourth.
fn exchange_of_heads_left_out(r: &mut Rank) -> Result<()> {
    for layer in ["F1 layer 0", "F2 layer 1"] {
        let left_out = r.rank == 2 && layer.starts_with("F2");
        let calls = if left_out { 3 } else { 4 };
        for _ in 0..calls {
            heads(r, layer, 64)?;
        }
    }
    r.about(On::World, "F3 head")?.all_reduce(On::World, 8)?;
    r.sync()
}

/// One rank ends a step before the others.
fn step_of_a_ring_left_out(r: &mut Rank) -> Result<()> {
    for _ in 0..if r.rank == 1 { 1 } else { 2 } {
        pass(r, KEYS)?;
    }
    r.sync()
}
