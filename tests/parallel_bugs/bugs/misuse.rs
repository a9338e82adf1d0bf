//! Calls that are wrong on one rank alone: aliased operands, an aborted communicator, work nobody waits for.

use crate::parallel_bugs::bug::{Bug, bug};
use crate::parallel_bugs::rank::{On, Rank, WORLD};
use crossweave_hal::{Collective, DType, Reduce, Result};

pub const BUGS: &[Bug] = &[
    bug!(operands_overlap, 2, Refused, &[1], &["all_gather"], &["overlap.1"], words: &["overlap"]),
    bug!(scatters_into_a_peers_slice, 3, Refused, &[2], &["reduce_scatter"], &["slice.2"], words: &["overlap"]),
    bug!(uses_an_aborted_group, 2, Refused, &[1], &["all_reduce"], &["aborted.1"], words: &["abort"]),
    bug!(
        aborts_while_others_wait,
        3,
        Ended,
        &[1],
        &["all_reduce"],
        &["aborts.02"]
    ),
    bug!(
        never_waited_for,
        2,
        Unwaited,
        &[0],
        &["all_reduce"],
        &["waited"]
    ),
    bug!(counts_of_another_world, 3, Refused, &[0], &["all_to_all_v"], &["rank_short.0"], words: &["3"]),
    bug!(peer_out_of_range, 2, Refused, &[1], &["send"], &["peer.1"], words: &["rank", "7"]),
    bug!(two_receives_into_one_place, 2, Refused, &[1], &["recv"], &["one_place.1"], words: &["writes bytes 0..32", "writes bytes 28..60"]),
    bug!(sends_what_it_receives_into, 2, Refused, &[0], &["send"], &["into_sent.0"], words: &["reads bytes 0..64", "writes bytes 0..64"]),
    bug!(sums_of_one_call_overlap, 2, Refused, &[1], &["all_reduce"], &["sums_overlap.1"], words: &["writes bytes 0..64", "writes bytes 60..124", "of one buffer"]),
    bug!(root_out_of_range, 2, Refused, &[1], &["broadcast"], &["far_root.1"], words: &["root", "2"]),
];

/// In place, but at another rank's place: bytes are read after they were written.
fn operands_overlap(r: &mut Rank) -> Result<()> {
    let one = r.rank == 1;
    let (mesh, stream, a, b) = r.parts();
    let group = mesh.group(WORLD)?;
    if one {
        let (send, recv) = (a.region(8, 64), a.region(0, 128));
        // @overlap.1
        group.all_gather(stream, send, recv, DType::F32, "corpus")?;
    } else {
        group.all_gather(
            stream,
            a.region(0, 64),
            b.region(0, 128),
            DType::F32,
            "corpus",
        )?;
    }
    r.sync()
}

/// A reduce_scatter in place keeps its result where this rank's slice is, not where another's is.
fn scatters_into_a_peers_slice(r: &mut Rank) -> Result<()> {
    let (rank, (mesh, stream, a, _)) = (u64::from(r.rank), r.parts());
    let group = mesh.group(WORLD)?;
    let slice = if rank == 2 { 0 } else { rank };
    let (send, recv) = (a.region(0, 192), a.region(64 * slice, 64));
    let (dtype, op) = (DType::F32, Reduce::Sum);
    // @slice.2
    group.reduce_scatter(stream, send, recv, dtype, op, "corpus")?;
    r.sync()
}

/// A clean-up that runs too early.
fn uses_an_aborted_group(r: &mut Rank) -> Result<()> {
    if r.rank == 1 {
        r.group(On::Second)?.abort_handle().abort()?;
        // @aborted.1
        r.all_reduce(On::Second, 8)?;
    }
    r.barrier(On::World)?;
    r.sync()
}

/// One gives up while the others wait; they must hear of it.
fn aborts_while_others_wait(r: &mut Rank) -> Result<()> {
    if r.rank == 1 {
        r.let_others_wait();
        return r.group(On::World)?.abort_handle().abort();
    }
    // @aborts.02
    r.all_reduce(On::World, 8)?;
    r.sync()
}

/// Work is enqueued on a second stream and its result never waited for.
fn never_waited_for(r: &mut Rank) -> Result<()> {
    r.about(On::Second, "sum")?;
    if r.rank == 0 {
        // @waited
        r.all_reduce_aside(On::Second, 8)?;
        return Ok(());
    }
    r.all_reduce_aside(On::Second, 8)?;
    r.side.sync(None)
}

/// Two messages for one place: which of them stays is chance.
fn two_receives_into_one_place(r: &mut Rank) -> Result<()> {
    let (rank, dtype) = (r.rank, DType::F32);
    let (mesh, stream, a, b) = r.parts();
    let group = mesh.group(WORLD)?;
    if rank == 0 {
        let part = |i: u64| Collective::Send {
            buf: a.region(i * 32, 32),
            dtype,
            peer: 1,
        };
        group.group(stream, &[part(0), part(1)], "corpus")?;
    } else {
        let part = |i: u64| Collective::Recv {
            buf: b.region(i * 28, 32),
            dtype,
            peer: 0,
        };
        let both = [part(0), part(1)];
        // @one_place.1
        group.group(stream, &both, "corpus")?;
    }
    r.sync()
}

/// An exchange in place: what leaves may be what has just come.
fn sends_what_it_receives_into(r: &mut Rank) -> Result<()> {
    let (peer, dtype, own) = (1 - r.rank, DType::F32, r.rank == 1);
    let (mesh, stream, a, b) = r.parts();
    let (buf, into) = (a.region(0, 64), if own { b } else { a }.region(0, 64));
    let both = [
        Collective::Send { buf, dtype, peer },
        Collective::Recv {
            buf: into,
            dtype,
            peer,
        },
    ];
    // @into_sent.0
    mesh.group(WORLD)?.group(stream, &both, "corpus")?;
    r.sync()
}

/// A bucket whose second tensor begins before the first has ended.
fn sums_of_one_call_overlap(r: &mut Rank) -> Result<()> {
    let next = if r.rank == 1 { 60 } else { 64 };
    let (mesh, stream, a, _) = r.parts();
    let sum = |at| Collective::AllReduce {
        buf: a.region(at, 64),
        dtype: DType::F32,
        op: Reduce::Sum,
    };
    let both = [sum(0), sum(next)];
    // @sums_overlap.1
    mesh.group(WORLD)?.group(stream, &both, "corpus")?;
    r.sync()
}

/// Counts of a job with a rank less.
fn counts_of_another_world(r: &mut Rank) -> Result<()> {
    let counts = [1, 1, 1];
    let used = if r.rank == 0 { &counts[..2] } else { &counts };
    // @rank_short.0
    r.all_to_all_v(On::World, used, used)?;
    r.sync()
}

/// A rank of the whole job where the rank of the group is wanted.
fn peer_out_of_range(r: &mut Rank) -> Result<()> {
    if r.rank == 1 {
        // @peer.1
        r.send(On::World, 8, 7)?;
    }
    r.barrier(On::World)?;
    r.sync()
}

/// The same of a root.
fn root_out_of_range(r: &mut Rank) -> Result<()> {
    let root = if r.rank == 1 { 2 } else { 0 };
    // @far_root.1
    r.broadcast(On::World, 8, root)?;
    r.sync()
}
