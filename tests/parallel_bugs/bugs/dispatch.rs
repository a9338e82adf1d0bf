//! Exchanges of experts over ranks: numbers of rows, rows to the ranks of their experts and back, and the sums of gradients behind them, which go
//! over other ranks for experts, routers and the rest.

use crate::parallel_bugs::bug::{Bug, bug};
use crate::parallel_bugs::rank::{On, Rank};
use crossweave_hal::Result;

pub const BUGS: &[Bug] = &[
    bug!(numbers_of_rows_are_not_exchanged, 2, Mismatch, &[0, 1], &["all_to_all_v"], &["experts.there"], words: &["sends 24 elements", "expects 8"]),
    bug!(rows_go_to_the_experts_of_another_rank, 3, Mismatch, &[2], &["all_to_all_v"], &["experts.there"], words: &["16", "24"]),
    bug!(rank_without_tokens_skips_its_experts, 3, Missing, &[1], &["all_to_all"], &["experts.numbers"], words: &["about F1 layer 0", "about F2 layer 1"]),
    bug!(rank_without_rows_sends_nothing_back, 3, Missing, &[0], &["all_to_all_v", "all_reduce"], &["experts.back", "loss.of_experts"], words: &["about F2 layer 1"]),
    bug!(rows_come_back_by_the_numbers_they_went_by, 2, Mismatch, &[0, 1], &["all_to_all_v"], &["experts.back"], words: &["sends 8 elements", "expects 24"]),
    bug!(rows_of_two_layers_come_back_in_another_order, 2, Mismatch, &[0, 1], &["all_to_all_v"], &["experts.back"], words: &["about F1 layer 0", "about F2 layer 1", "not for the same"]),
    bug!(gradients_of_experts_over_all_data_ranks, 4, Mismatch, &[3], &["all_reduce"], &["gradients.wrong", "gradients.dense"], words: &["about gradients of experts", "about gradients of attention"]),
    bug!(gradients_of_a_router_are_not_summed, 4, Mismatch, &[2, 3], &["all_reduce"], &["gradients.along"], words: &["about gradients of gate", "about gradients of norm"]),
];

/// Elements of a row.
const WIDTH: u64 = 8;

/// The names of two layers, as plans have them.
const LAYERS: [&str; 2] = ["F1 layer 0", "F2 layer 1"];

/// Each rank gives the others the numbers of rows that come for their experts.
fn numbers(r: &mut Rank, layer: &str) -> Result<()> {
    r.about(On::World, layer)?;
    // @experts.numbers
    r.all_to_all(On::World, 2)
}

fn elements(rows: &[u64]) -> Vec<u64> {
    rows.iter().map(|n| n * WIDTH).collect()
}

fn there(r: &mut Rank, layer: &str, [send, recv]: [&[u64]; 2]) -> Result<()> {
    r.about(On::World, layer)?;
    // @experts.there
    r.all_to_all_v(On::World, &elements(send), &elements(recv))
}

fn back(r: &mut Rank, layer: &str, [send, recv]: [&[u64]; 2]) -> Result<()> {
    r.about(On::World, layer)?;
    // @experts.back
    r.all_to_all_v(On::World, &elements(send), &elements(recv))
}

/// The experts of a layer with the rows that go to each rank and come from it.
fn forward(r: &mut Rank, layer: &str, [send, recv]: [&[u64]; 2]) -> Result<()> {
    numbers(r, layer)?;
    there(r, layer, [send, recv])?;
    back(r, layer, [recv, send])
}

fn loss(r: &mut Rank) -> Result<()> {
    r.about(On::World, "F3 head")?;
    // @loss.of_experts
    r.all_reduce(On::World, 1)
}

/// Rows of two ranks for the experts of each, and those that come.
fn of_two(rank: u32) -> [&'static [u64]; 2] {
    match rank {
        0 => [&[2, 3], &[2, 1]],
        _ => [&[1, 4], &[3, 4]],
    }
}

/// Rows of three ranks: each has one for its own experts, two for those of the next and three for those of the one before.
fn of_three(rank: u32) -> [&'static [u64]; 2] {
    match rank {
        0 => [&[1, 2, 3], &[1, 3, 2]],
        1 => [&[3, 1, 2], &[2, 1, 3]],
        _ => [&[2, 3, 1], &[3, 2, 1]],
    }
}

/// One rank takes its own numbers for those that come.
fn numbers_of_rows_are_not_exchanged(r: &mut Rank) -> Result<()> {
    let [send, recv] = of_two(r.rank);
    numbers(r, LAYERS[0])?;
    there(r, LAYERS[0], [send, if r.rank == 1 { send } else { recv }])?;
    r.sync()
}

/// One rank takes the experts of rank 0 for those of rank 1, after it has given the true numbers.
fn rows_go_to_the_experts_of_another_rank(r: &mut Rank) -> Result<()> {
    let [send, recv] = of_three(r.rank);
    numbers(r, LAYERS[0])?;
    let send = if r.rank == 2 { &[3, 2, 1] } else { send };
    there(r, LAYERS[0], [send, recv])?;
    r.sync()
}

/// A rank whose micro-batch is empty leaves the layer out, whose experts are wanted by others.
fn rank_without_tokens_skips_its_experts(r: &mut Rank) -> Result<()> {
    if r.rank != 1 {
        forward(r, LAYERS[0], [&[2, 0, 2], &[2, 0, 2]])?;
    }
    forward(r, LAYERS[1], [&[1, 1, 1], &[1, 1, 1]])?;
    r.sync()
}

/// A rank to whose experts no row came has nothing to send, and forgets that rows come to it.
fn rank_without_rows_sends_nothing_back(r: &mut Rank) -> Result<()> {
    forward(r, LAYERS[0], of_three(r.rank))?;
    let [send, recv]: [&[u64]; 2] = match r.rank {
        0 => [&[0, 1, 1], &[0, 0, 0]],
        _ => [&[0, 1, 1], &[1, 1, 1]],
    };
    numbers(r, LAYERS[1])?;
    there(r, LAYERS[1], [send, recv])?;
    if r.rank != 0 {
        back(r, LAYERS[1], [recv, send])?;
    }
    loss(r)?;
    r.sync()
}

/// One rank sends as many rows back as it had sent, not as many as had come.
fn rows_come_back_by_the_numbers_they_went_by(r: &mut Rank) -> Result<()> {
    let [send, recv] = of_two(r.rank);
    numbers(r, LAYERS[0])?;
    there(r, LAYERS[0], [send, recv])?;
    let wrong = r.rank == 1;
    back(
        r,
        LAYERS[0],
        if wrong { [send, recv] } else { [recv, send] },
    )?;
    r.sync()
}

/// Rows of two layers are on their way at once, as many of each; one rank takes those of the second first.
fn rows_of_two_layers_come_back_in_another_order(r: &mut Rank) -> Result<()> {
    let rows: [&[u64]; 2] = [&[2, 2]; 2];
    for layer in LAYERS {
        numbers(r, layer)?;
        there(r, layer, rows)?;
    }
    for layer in [r.rank, 1 - r.rank] {
        back(r, LAYERS[layer as usize], rows)?;
    }
    r.sync()
}

/// Ranks of a row have different experts, and those of a column the same: one rank adds up gradients of experts over all, as it does others'.
fn gradients_of_experts_over_all_data_ranks(r: &mut Rank) -> Result<()> {
    let what = "gradients of experts";
    if r.rank == 3 {
        r.about(On::World, what)?;
        // @gradients.wrong
        r.all_reduce(On::World, 32)?;
    } else {
        r.about(On::Column, what)?.all_reduce(On::Column, 32)?;
    }
    r.about(On::World, "gradients of attention")?;
    // @gradients.dense
    r.all_reduce(On::World, 64)?;
    r.sync()
}

/// Ranks of a row have other tokens of the same micro-batch: what the router of one has learned of its own is left out of their sum.
fn gradients_of_a_router_are_not_summed(r: &mut Rank) -> Result<()> {
    for (what, n) in [("gate", 32), ("norm", 8)] {
        if (r.rank, what) != (2, "gate") {
            r.about(On::Row, &format!("gradients of {what}"))?;
            // @gradients.along
            r.all_reduce(On::Row, n)?;
        }
    }
    r.sync()
}
