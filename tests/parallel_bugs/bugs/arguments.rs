//! The same op with other arguments: counts, types, reductions, roots, splits. Most of these are silent wrong numbers in MPI.

use crate::parallel_bugs::bug::{Bug, bug};
use crate::parallel_bugs::rank::{On, Rank};
use crossweave_hal::{DType, Reduce, Result};

pub const BUGS: &[Bug] = &[
    bug!(count_of_two, 2, Mismatch, &[0, 1], &["all_reduce"], &["count2.0", "count2.1"], words: &["1000", "999"]),
    bug!(count_of_four, 4, Mismatch, &[2], &["all_reduce"], &["count4.013", "count4.2"], words: &["500", "501"]),
    bug!(two_against_two, 4, Mismatch, &[0, 1, 2, 3], &["all_reduce"], &["tie.01", "tie.23"], words: &["64", "65"]),
    bug!(dtype, 2, Mismatch, &[0, 1], &["all_reduce"], &["dtype.0", "dtype.1"], words: &["f32", "i32"]),
    bug!(dtype_of_one_size, 3, Mismatch, &[1], &["all_reduce"], &["half.02", "half.1"], words: &["bf16", "f16"]),
    bug!(dtype_of_the_same_bytes, 2, Mismatch, &[0, 1], &["all_gather"], &["bytes.0", "bytes.1"], words: &["f32", "bf16"]),
    bug!(reduction, 2, Mismatch, &[0, 1], &["all_reduce"], &["reduction.0", "reduction.1"], words: &["sum", "max"]),
    bug!(mean_against_sum, 3, Mismatch, &[0], &["all_reduce"], &["mean.0", "mean.12"], words: &["avg", "sum"]),
    bug!(
        root_of_broadcast,
        2,
        Mismatch,
        &[0, 1],
        &["broadcast"],
        &["root.0", "root.1"]
    ),
    bug!(
        root_of_reduce,
        3,
        Mismatch,
        &[2],
        &["reduce"],
        &["reduce.01", "reduce.2"]
    ),
    bug!(splits, 2, Mismatch, &[0, 1], &["all_to_all_v"], &["splits"], words: &["sends 3 elements", "expects 2"]),
    bug!(lengths_of_a_gather, 3, Mismatch, &[1], &["all_gather_v"], &["lengths.02", "lengths.1"], words: &["counts [4, 4, 4]", "counts [4, 4, 3]"]),
    bug!(count_of_reduce_scatter, 2, Mismatch, &[0, 1], &["reduce_scatter"], &["scatter.0", "scatter.1"], words: &["32", "48"]),
    bug!(count_of_all_to_all, 4, Mismatch, &[1], &["all_to_all"], &["a2a.023", "a2a.1"], words: &["16", "24"]),
    bug!(
        sum_against_scatter,
        2,
        Mismatch,
        &[0, 1],
        &["all_reduce", "reduce_scatter"],
        &["stage.0", "stage.1"]
    ),
    bug!(
        gather_against_all_to_all,
        3,
        Mismatch,
        &[1],
        &["all_gather", "all_to_all"],
        &["moe.02", "moe.1"]
    ),
];

/// The last batch is short on one rank.
fn count_of_two(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        // @count2.0
        r.all_reduce(On::World, 1000)?;
    } else {
        // @count2.1
        r.all_reduce(On::World, 999)?;
    }
    r.sync()
}

/// The same of four: the one is to blame, not the three.
fn count_of_four(r: &mut Rank) -> Result<()> {
    if r.rank == 2 {
        // @count4.2
        r.all_reduce(On::World, 501)?;
    } else {
        // @count4.013
        r.all_reduce(On::World, 500)?;
    }
    r.sync()
}

/// Nobody is in the majority.
fn two_against_two(r: &mut Rank) -> Result<()> {
    if r.rank < 2 {
        // @tie.01
        r.all_reduce(On::World, 64)?;
    } else {
        // @tie.23
        r.all_reduce(On::World, 65)?;
    }
    r.sync()
}

/// A count of samples as an integer here and a float there.
fn dtype(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        // @dtype.0
        r.all_reduce_as(On::World, 10, DType::F32, Reduce::Sum)?;
    } else {
        // @dtype.1
        r.all_reduce_as(On::World, 10, DType::I32, Reduce::Sum)?;
    }
    r.sync()
}

/// Two 16-bit floats: no length gives it away.
fn dtype_of_one_size(r: &mut Rank) -> Result<()> {
    if r.rank == 1 {
        // @half.1
        r.all_reduce_as(On::World, 10, DType::F16, Reduce::Sum)?;
    } else {
        // @half.02
        r.all_reduce_as(On::World, 10, DType::Bf16, Reduce::Sum)?;
    }
    r.sync()
}

/// As many bytes of another type.
fn dtype_of_the_same_bytes(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        // @bytes.0
        r.all_gather_as(On::World, 32, DType::F32)?;
    } else {
        // @bytes.1
        r.all_gather_as(On::World, 64, DType::Bf16)?;
    }
    r.sync()
}

/// The bug PyTorch's own checker lets through: both ranks get a mix of sums and maxima.
fn reduction(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        // @reduction.0
        r.all_reduce_as(On::World, 64, DType::F32, Reduce::Sum)?;
    } else {
        // @reduction.1
        r.all_reduce_as(On::World, 64, DType::F32, Reduce::Max)?;
    }
    r.sync()
}

/// One rank divides, the others do not.
fn mean_against_sum(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        // @mean.0
        r.all_reduce_as(On::World, 64, DType::F32, Reduce::Avg)?;
    } else {
        // @mean.12
        r.all_reduce_as(On::World, 64, DType::F32, Reduce::Sum)?;
    }
    r.sync()
}

/// Each rank believes itself the source.
fn root_of_broadcast(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        // @root.0
        r.broadcast(On::World, 64, 0)?;
    } else {
        // @root.1
        r.broadcast(On::World, 64, 1)?;
    }
    r.sync()
}

/// Two send their part to rank 0, one keeps it for itself.
fn root_of_reduce(r: &mut Rank) -> Result<()> {
    if r.rank == 2 {
        // @reduce.2
        r.reduce(On::World, 64, 2)?;
    } else {
        // @reduce.01
        r.reduce(On::World, 64, 0)?;
    }
    r.sync()
}

/// Rank 0 sends three, rank 1 expects two.
fn splits(r: &mut Rank) -> Result<()> {
    let (send, recv) = match r.rank {
        0 => ([1, 3], [1, 1]),
        _ => ([1, 1], [2, 1]),
    };
    // @splits
    r.all_to_all_v(On::World, &send, &recv)?;
    r.sync()
}

/// Ranks disagree about how much rank 2 gives.
fn lengths_of_a_gather(r: &mut Rank) -> Result<()> {
    if r.rank == 1 {
        // @lengths.1
        r.all_gather_v(On::World, &[4, 4, 3])?;
    } else {
        // @lengths.02
        r.all_gather_v(On::World, &[4, 4, 4])?;
    }
    r.sync()
}

/// Padding is counted on one rank only.
fn count_of_reduce_scatter(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        // @scatter.0
        r.reduce_scatter(On::World, 32)?;
    } else {
        // @scatter.1
        r.reduce_scatter(On::World, 48)?;
    }
    r.sync()
}

/// Another capacity of the experts.
fn count_of_all_to_all(r: &mut Rank) -> Result<()> {
    if r.rank == 1 {
        // @a2a.1
        r.all_to_all(On::World, 24)?;
    } else {
        // @a2a.023
        r.all_to_all(On::World, 16)?;
    }
    r.sync()
}

/// ZeRO stage 1 on one rank, stage 2 on the other.
fn sum_against_scatter(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        // @stage.0
        r.all_reduce(On::World, 64)?;
    } else {
        // @stage.1
        r.reduce_scatter(On::World, 32)?;
    }
    r.sync()
}

/// A dense layer on two ranks where the third has experts.
fn gather_against_all_to_all(r: &mut Rank) -> Result<()> {
    if r.rank == 1 {
        // @moe.1
        r.all_to_all(On::World, 16)?;
    } else {
        // @moe.02
        r.all_gather(On::World, 16)?;
    }
    r.sync()
}
