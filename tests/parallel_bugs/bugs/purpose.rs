//! Ops of one kind, size and type for another tensor: nothing but what they are for distinguishes them. Layers of a transformer are like that.

use crate::parallel_bugs::bug::{Bug, bug};
use crate::parallel_bugs::rank::{On, Rank, WORLD};
use crossweave_hal::{Collective, DType, Reduce, Result};

pub const BUGS: &[Bug] = &[
    bug!(two_sums_swapped, 2, Mismatch, &[0, 1], &["all_reduce"], &["sums.first", "sums.second"], words: &["not for the same", "about()"]),
    bug!(layers_from_a_hash_map, 3, Mismatch, &[2], &["all_reduce"], &["layers"], words: &["about layer 0", "about layer 1", "not for the same"]),
    bug!(steps_of_a_plan_swapped, 3, Mismatch, &[1], &["reduce_scatter"], &["steps"], words: &["step 7 rs3", "step 8 rs4"]),
    bug!(gathers_of_two_layers_swapped, 4, Mismatch, &[3], &["all_gather"], &["gathers"], words: &["about layer 0", "about layer 1"]),
    bug!(messages_of_one_size_swapped, 2, Mismatch, &[0, 1], &["sends", "receives"], &["one_size.0", "one_size.1"], words: &["about values", "about moments", "not for the same"]),
    bug!(micro_batches_swapped, 2, Mismatch, &[0, 1], &["sends", "receives"], &["micro.0", "micro.1"], words: &["step 3 a2.0>1", "step 1 a2.1<0"]),
    bug!(tags_swapped, 2, Mismatch, &[0, 1], &["sends", "receives"], &["tags.0", "tags.1"], words: &["tag values", "tag moments"]),
    bug!(lines_that_say_nothing, 2, Mismatch, &[0, 1], &["broadcast"], &["lines.0", "lines.1"], words: &["about()"]),
    bug!(members_of_one_call_swapped, 2, Mismatch, &[0, 1], &["all_reduce"], &["one_call"], words: &["[all_reduce of 8 x f32 sum, all_reduce of 16 x f32 sum]", "[all_reduce of 16 x f32 sum, all_reduce of 8 x f32 sum]"]),
];

fn first(r: &mut Rank) -> Result<()> {
    // @sums.first
    r.all_reduce(On::World, 64)
}

fn second(r: &mut Rank) -> Result<()> {
    // @sums.second
    r.all_reduce(On::World, 64)
}

/// Two gradients of one size, each summed by a line of its own.
fn two_sums_swapped(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        first(r)?;
        second(r)?;
    } else {
        second(r)?;
        first(r)?;
    }
    r.sync()
}

/// The layers of this rank, in the order of a hash map with a seed of its own.
fn order(swapped: bool) -> [u32; 2] {
    if swapped { [1, 0] } else { [0, 1] }
}

/// One line for all layers, which differ by name alone.
fn layers_from_a_hash_map(r: &mut Rank) -> Result<()> {
    for layer in order(r.rank == 2) {
        r.about(On::World, &format!("layer {layer}"))?;
        // @layers
        r.all_reduce(On::World, 64)?;
    }
    r.sync()
}

/// A schedule of one rank reduces a unit before another.
fn steps_of_a_plan_swapped(r: &mut Rank) -> Result<()> {
    let steps = [(7, "rs3"), (8, "rs4")];
    let steps = steps.map(|(at, name)| r.device.plan_step(at, name, name));
    for step in order(r.rank == 1) {
        r.device.at_step(steps[step as usize]);
        // @steps
        r.reduce_scatter(On::World, 64)?;
    }
    r.sync()
}

/// Parameters are gathered for the wrong layer.
fn gathers_of_two_layers_swapped(r: &mut Rank) -> Result<()> {
    for layer in order(r.rank == 3) {
        r.about(On::World, &format!("layer {layer}"))?;
        // @gathers
        r.all_gather(On::World, 64)?;
    }
    r.sync()
}

/// Two tensors of a stage, received in the other order.
fn messages_of_one_size_swapped(r: &mut Rank) -> Result<()> {
    let names = ["values", "moments"];
    for i in order(r.rank == 1) {
        r.about(On::World, names[i as usize])?;
        if r.rank == 0 {
            // @one_size.0
            r.send(On::World, 10, 1)?;
        } else {
            // @one_size.1
            r.recv(On::World, 10, 0)?;
        }
    }
    r.sync()
}

/// A stage takes micro-batch 1 for micro-batch 0. The plans number their steps each in its own way.
fn micro_batches_swapped(r: &mut Rank) -> Result<()> {
    let names = match r.rank {
        0 => [(3, "a2.0>1"), (4, "a2.1>1")],
        _ => [(0, "a2.0<0"), (1, "a2.1<0")],
    };
    let meets = ["a2.0", "a2.1"];
    let steps = [0, 1].map(|i| r.device.plan_step(names[i].0, names[i].1, meets[i]));
    for mb in order(r.rank == 1) {
        r.device.at_step(steps[mb as usize]);
        if r.rank == 0 {
            // @micro.0
            r.send(On::World, 10, 1)?;
        } else {
            // @micro.1
            r.recv(On::World, 10, 0)?;
        }
    }
    r.sync()
}

/// What the tags of messages say is compared where nothing else is said.
fn tags_swapped(r: &mut Rank) -> Result<()> {
    let tags = ["values", "moments"];
    for i in order(r.rank == 1) {
        let (send, tag, dtype) = (r.rank == 0, tags[i as usize], DType::F32);
        let (mesh, stream, a, b) = r.parts();
        let group = mesh.group(WORLD)?;
        if send {
            let (buf, peer) = (a.region(0, 40), 1);
            // @tags.0
            group.group(stream, &[Collective::Send { buf, dtype, peer }], tag)?;
        } else {
            let (buf, peer) = (b.region(0, 40), 0);
            // @tags.1
            group.group(stream, &[Collective::Recv { buf, dtype, peer }], tag)?;
        }
    }
    r.sync()
}

/// Two branches that may be meant to meet, and do not say so.
fn lines_that_say_nothing(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        // @lines.0
        r.broadcast(On::World, 64, 0)?;
    } else {
        // @lines.1
        r.broadcast(On::World, 64, 0)?;
    }
    r.sync()
}

/// The members of a call are matched in their order.
fn members_of_one_call_swapped(r: &mut Rank) -> Result<()> {
    let sizes = if r.rank == 0 { [32, 64] } else { [64, 32] };
    let (mesh, stream, a, b) = r.parts();
    let sum = |buf| Collective::AllReduce {
        buf,
        dtype: DType::F32,
        op: Reduce::Sum,
    };
    let both = [sum(a.region(0, sizes[0])), sum(b.region(0, sizes[1]))];
    // @one_call
    mesh.group(WORLD)?.group(stream, &both, "corpus")?;
    r.sync()
}
