//! Programs that look wrong and are right. A checker that complains about one of these is worse than none.

use crate::parallel_bugs::bug::{Right, right};
use crate::parallel_bugs::rank::{On, Rank, WORLD};
use crossweave_hal::{Collective, DType, Reduce, Result};
use std::time::Duration;

pub const RIGHT: &[Right] = &[
    right!(slow_rank, 3),
    right!(first_rank_prepares_alone, 2),
    right!(other_lines_same_words, 2),
    right!(own_subgroup_only, 4),
    right!(ends_before_the_others, 4),
    right!(two_streams_in_any_order, 2),
    right!(both_ways_at_once, 3),
    right!(uneven_splits_and_empty_pieces, 3),
    right!(other_offsets_and_buffers, 2),
    right!(weights_of_their_own, 3),
    right!(longer_than_the_ring, 2),
    right!(enqueued_far_ahead, 2),
    right!(one_call_reads_twice, 2),
    right!(messages_to_oneself_and_nobody, 2),
    right!(many_messages_in_order, 2),
];

/// A rank is late by far more than any step takes; nobody may complain.
fn slow_rank(r: &mut Rank) -> Result<()> {
    for _ in 0..3 {
        if r.rank == 1 {
            std::thread::sleep(Duration::from_millis(250));
        }
        r.all_reduce(On::World, 64)?;
        r.sync()?;
    }
    Ok(())
}

/// Rank 0 turns text into tokens while the others already wait for its word.
fn first_rank_prepares_alone(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        std::thread::sleep(Duration::from_millis(900));
    }
    r.broadcast(On::World, 1000, 0)?;
    r.sync()
}

/// The same ops from other lines, which say that they are. Barriers need no words.
fn other_lines_same_words(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        r.about(On::World, "loss")?.all_reduce(On::World, 64)?;
        r.barrier(On::World)?;
        r.about(On::World, "text")?.all_gather(On::World, 8)?;
    } else {
        let n = 32 * 2;
        r.about(On::World, "loss")?.all_reduce(On::World, n)?;
        r.barrier(On::World)?;
        for _ in 0..1 {
            r.about(On::World, "text")?.all_gather(On::World, n / 8)?;
        }
    }
    r.sync()
}

/// One row of a grid works for itself.
fn own_subgroup_only(r: &mut Rank) -> Result<()> {
    if r.rank < 2 {
        for _ in 0..5 {
            r.all_reduce(On::Row, 64)?;
        }
    }
    r.sync()?;
    r.barrier(On::World)?;
    r.sync()
}

/// Ranks that are not needed any more end while the others go on.
fn ends_before_the_others(r: &mut Rank) -> Result<()> {
    r.all_reduce(On::World, 64)?;
    r.sync()?;
    if r.rank >= 2 {
        return Ok(());
    }
    std::thread::sleep(Duration::from_millis(200));
    for _ in 0..5 {
        r.all_reduce(On::Row, 64)?;
    }
    r.sync()
}

/// Two communicators on two streams: their order differs from rank to rank, and neither waits for the other.
fn two_streams_in_any_order(r: &mut Rank) -> Result<()> {
    for _ in 0..10 {
        for first in [r.rank == 0, r.rank != 0] {
            match first {
                true => r.all_reduce(On::World, 64)?,
                false => r.all_reduce_aside(On::Second, 64)?,
            }
        }
    }
    r.sync()?;
    r.side.sync(None)
}

/// A ring in which everybody sends first, as one group: that is what groups are for.
fn both_ways_at_once(r: &mut Rank) -> Result<()> {
    let (next, before) = ((r.rank + 1) % 3, (r.rank + 2) % 3);
    for _ in 0..4 {
        r.exchange(On::World, 300_000, next, before)?;
    }
    r.sync()
}

/// Counts that differ from rank to rank and fit all the same, some of them nothing.
fn uneven_splits_and_empty_pieces(r: &mut Rank) -> Result<()> {
    let (me, ranks) = (u64::from(r.rank), 0..3u64);
    let send: Vec<u64> = ranks.clone().map(|to| (me + 2 * to) % 3 * 10).collect();
    let recv: Vec<u64> = ranks.map(|from| (from + 2 * me) % 3 * 10).collect();
    r.all_to_all_v(On::World, &send, &recv)?;
    r.all_gather_v(On::World, &[7, 0, 1])?;
    r.sync()
}

/// Where the bytes lie is each rank's own business.
fn other_offsets_and_buffers(r: &mut Rank) -> Result<()> {
    let other = r.rank == 1;
    let (mesh, stream, a, b) = r.parts();
    let group = mesh.group(WORLD)?;
    let buf = if other {
        b.region(4096, 256)
    } else {
        a.region(0, 256)
    };
    group.all_reduce(stream, buf, DType::F32, Reduce::Sum, "corpus")?;
    r.sync()
}

/// Each rank scales its part by its own number of samples before the sum.
fn weights_of_their_own(r: &mut Rank) -> Result<()> {
    let weight = [0.5, 0.25, 0.25][r.rank as usize];
    r.all_reduce_as(On::World, 64, DType::F32, Reduce::PremulSum(weight))?;
    r.sync()
}

/// More ops than any record of them holds.
fn longer_than_the_ring(r: &mut Rank) -> Result<()> {
    for i in 0..1200 {
        r.all_reduce(On::World, 4)?;
        if i % 100 == 0 {
            r.sync()?;
        }
    }
    r.sync()
}

/// One rank's host is hundreds of ops ahead of the other's.
fn enqueued_far_ahead(r: &mut Rank) -> Result<()> {
    for _ in 0..300 {
        if r.rank == 1 {
            std::thread::sleep(Duration::from_micros(500));
        }
        r.all_reduce(On::World, 16)?;
    }
    r.sync()
}

/// Members of one call that read the same, or lie side by side.
fn one_call_reads_twice(r: &mut Rank) -> Result<()> {
    let (peer, dtype) = (1 - r.rank, DType::F32);
    let (mesh, stream, a, b) = r.parts();
    let send = Collective::Send {
        buf: a.region(0, 64),
        dtype,
        peer,
    };
    let recv = |at| Collective::Recv {
        buf: b.region(at, 64),
        dtype,
        peer,
    };
    let all = [send, recv(64), send, recv(0)];
    mesh.group(WORLD)?.group(stream, &all, "corpus")?;
    r.sync()
}

/// A stage that is its own neighbour, and a group without members.
fn messages_to_oneself_and_nobody(r: &mut Rank) -> Result<()> {
    let me = r.rank;
    r.exchange(On::World, 64, me, me)?;
    let (mesh, stream, _, _) = r.parts();
    let none: [Collective<'_>; 0] = [];
    mesh.group(WORLD)?.group(stream, &none, "corpus")?;
    r.barrier(On::World)?;
    r.sync()
}

/// Messages of many lengths, each for its own receive.
fn many_messages_in_order(r: &mut Rank) -> Result<()> {
    for n in [1, 1000, 3, 100_000, 17] {
        if r.rank == 0 {
            r.send(On::World, n, 1)?;
            r.recv(On::World, n + 1, 1)?;
        } else {
            r.recv(On::World, n, 0)?;
            r.send(On::World, n + 1, 0)?;
        }
    }
    r.sync()
}
