//! Collectives within the blocks of a model whose hidden states are cut by tokens: an input is gathered before the first products of attention
//! and of the MLP, and what ranks make of it is scattered behind the last.

use crate::parallel_bugs::bug::{Bug, bug};
use crate::parallel_bugs::rank::{On, Rank};
use crossweave_hal::Result;

pub const BUGS: &[Bug] = &[
    bug!(gather_of_a_block_left_out, 3, Missing, &[1], &["all_gather", "reduce_scatter"], &["block.gather", "block.scatter"], words: &["about F2 layer 1"]),
    bug!(scatter_of_a_block_left_out, 2, Mismatch, &[0, 1], &["reduce_scatter", "all_gather"], &["block.scatter", "block.gather"], words: &["about F1 layer 0", "about F2 layer 1"]),
    bug!(scatter_before_its_gather, 2, Mismatch, &[0, 1], &["all_gather", "reduce_scatter"], &["block.gather", "block.scatter"], words: &["about F2 layer 1"]),
    bug!(blocks_in_another_order, 2, Mismatch, &[0, 1], &["all_gather"], &["block.gather"], words: &["about F1 layer 0", "about F2 layer 1", "not for the same"]),
    bug!(block_sums_and_does_not_scatter, 3, Mismatch, &[2], &["reduce_scatter", "all_reduce"], &["block.scatter", "block.sum"], words: &["about F2 layer 1"]),
    bug!(gather_that_is_not_made_again, 2, Mismatch, &[0, 1], &["all_gather", "reduce_scatter"], &["back.again", "back.scatter"], words: &["about B2 layer 1"]),
];

/// Elements of the piece of a hidden state that a rank has.
const PIECE: u64 = 48;

/// The names of two layers, as plans have them.
const LAYERS: [&str; 2] = ["F1 layer 0", "F2 layer 1"];

fn gather(r: &mut Rank, layer: &str) -> Result<()> {
    r.about(On::World, layer)?;
    // @block.gather
    r.all_gather(On::World, PIECE)
}

fn scatter(r: &mut Rank, layer: &str) -> Result<()> {
    r.about(On::World, layer)?;
    // @block.scatter
    r.reduce_scatter(On::World, PIECE)
}

/// Attention and MLP of a layer.
fn forward(r: &mut Rank, layer: &str) -> Result<()> {
    for _ in 0..2 {
        gather(r, layer)?;
        scatter(r, layer)?;
    }
    Ok(())
}

/// One rank takes its own piece for the whole input of the MLP.
fn gather_of_a_block_left_out(r: &mut Rank) -> Result<()> {
    forward(r, LAYERS[0])?;
    let layer = LAYERS[1];
    gather(r, layer)?;
    scatter(r, layer)?;
    if r.rank != 1 {
        gather(r, layer)?;
    }
    scatter(r, layer)?;
    forward(r, LAYERS[0])?;
    r.sync()
}

/// One rank goes on with its own summand.
fn scatter_of_a_block_left_out(r: &mut Rank) -> Result<()> {
    gather(r, LAYERS[0])?;
    if r.rank == 0 {
        scatter(r, LAYERS[0])?;
    }
    forward(r, LAYERS[1])?;
    r.sync()
}

/// The two transitions of the MLP of one rank are exchanged.
fn scatter_before_its_gather(r: &mut Rank) -> Result<()> {
    forward(r, LAYERS[0])?;
    match r.rank {
        0 => {
            gather(r, LAYERS[1])?;
            scatter(r, LAYERS[1])?;
        }
        _ => {
            scatter(r, LAYERS[1])?;
            gather(r, LAYERS[1])?;
        }
    }
    r.sync()
}

/// Layers of one size run in another order: all sizes fit, and only what they are for does not.
fn blocks_in_another_order(r: &mut Rank) -> Result<()> {
    for layer in [r.rank, 1 - r.rank] {
        forward(r, LAYERS[layer as usize])?;
    }
    r.sync()
}

/// One rank was built without pieces of rows, and sums the whole hidden state.
fn block_sums_and_does_not_scatter(r: &mut Rank) -> Result<()> {
    forward(r, LAYERS[0])?;
    gather(r, LAYERS[1])?;
    if r.rank == 2 {
        // @block.sum
        r.all_reduce(On::World, 3 * PIECE)?;
    } else {
        scatter(r, LAYERS[1])?;
    }
    r.sync()
}

/// The backward gathers the input of the first products once more; one rank has kept it.
fn gather_that_is_not_made_again(r: &mut Rank) -> Result<()> {
    forward(r, LAYERS[1])?;
    r.about(On::World, "B2 layer 1")?;
    if r.rank == 0 {
        // @back.again
        r.all_gather(On::World, PIECE)?;
    }
    r.about(On::World, "B2 layer 1")?;
    // @back.scatter
    r.reduce_scatter(On::World, PIECE)?;
    r.sync()
}
