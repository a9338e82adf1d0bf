//! Sends and receives that do not fit: sizes, types, peers, circles, and messages nobody takes.

use crate::parallel_bugs::bug::{Bug, bug};
use crate::parallel_bugs::rank::{On, Rank};
use crossweave_hal::{DType, Result};

/// Elements beyond what any MPI sends without its receiver.
const LONG: u64 = 300_000;

pub const BUGS: &[Bug] = &[
    bug!(shorter_than_expected, 2, Mismatch, &[0, 1], &["sends", "receives"], &["size.0", "size.1"], words: &["100", "200"]),
    bug!(other_type, 2, Mismatch, &[0, 1], &["sends", "receives"], &["type.0", "type.1"], words: &["i32", "f32"]),
    bug!(two_messages_swapped, 2, Mismatch, &[0, 1], &["sends", "receives"], &["swapped.0", "swapped.1"], words: &["10", "20"]),
    bug!(
        both_receive_first,
        2,
        Deadlock,
        &[0, 1],
        &["recv"],
        &["first.0", "first.1"]
    ),
    bug!(
        ring_receives_first,
        3,
        Deadlock,
        &[0, 1, 2],
        &["recv"],
        &["ring"]
    ),
    bug!(
        both_send_first,
        2,
        Deadlock,
        &[0, 1],
        &["send"],
        &["send.0", "send.1"]
    ),
    bug!(
        send_against_sum,
        2,
        Deadlock,
        &[0, 1],
        &["send", "all_reduce"],
        &["against.0", "against.1"]
    ),
    bug!(
        circle_of_sum_and_receive,
        3,
        Deadlock,
        &[0, 1, 2],
        &["recv", "all_reduce"],
        &["circle.01", "circle.2"]
    ),
    bug!(from_the_wrong_rank, 3, Ended, &[1], &["recv"], &["wrong.2"]),
    bug!(one_receive_too_many, 2, Ended, &[0], &["recv"], &["many.1"]),
    bug!(
        nobody_receives,
        2,
        Unmatched,
        &[0, 1],
        &["send"],
        &["nobody.0"]
    ),
];

/// A header of another version.
fn shorter_than_expected(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        // @size.0
        r.send(On::World, 100, 1)?;
    } else {
        // @size.1
        r.recv(On::World, 200, 0)?;
    }
    r.sync()
}

/// As many bytes, of another type.
fn other_type(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        // @type.0
        r.send_as(On::World, 100, DType::I32, 1)?;
    } else {
        // @type.1
        r.recv(On::World, 100, 0)?;
    }
    r.sync()
}

/// Two tensors of a stage, received in the other order.
fn two_messages_swapped(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        // @swapped.0
        r.send(On::World, 10, 1)?;
        r.send(On::World, 20, 1)?;
    } else {
        // @swapped.1
        r.recv(On::World, 20, 0)?;
        r.recv(On::World, 10, 0)?;
    }
    r.sync()
}

/// Every rank waits to receive first.
fn both_receive_first(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        // @first.0
        r.recv(On::World, 64, 1)?;
        r.send(On::World, 64, 1)?;
    } else {
        // @first.1
        r.recv(On::World, 64, 0)?;
        r.send(On::World, 64, 0)?;
    }
    r.sync()
}

/// The same in a ring of three.
fn ring_receives_first(r: &mut Rank) -> Result<()> {
    let (next, before) = ((r.rank + 1) % 3, (r.rank + 2) % 3);
    // @ring
    r.recv(On::World, 64, before)?;
    r.send(On::World, 64, next)?;
    r.sync()
}

/// A pipeline's exchange of long activations as two sends followed by two receives.
fn both_send_first(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        // @send.0
        r.send(On::World, LONG, 1)?;
        r.recv(On::World, LONG, 1)?;
    } else {
        // @send.1
        r.send(On::World, LONG, 0)?;
        r.recv(On::World, LONG, 0)?;
    }
    r.sync()
}

/// One sends before the sum, the other receives after it.
fn send_against_sum(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        // @against.0
        r.send(On::World, LONG, 1)?;
        r.about(On::Second, "sum")?.all_reduce(On::Second, 64)?;
    } else {
        // @against.1
        r.about(On::Second, "sum")?.all_reduce(On::Second, 64)?;
        r.recv(On::World, LONG, 0)?;
    }
    r.sync()
}

/// Two wait for the third in a sum, which waits for a message one of them sends after it.
fn circle_of_sum_and_receive(r: &mut Rank) -> Result<()> {
    if r.rank == 2 {
        // @circle.2
        r.recv(On::World, 64, 1)?;
        r.about(On::Second, "sum")?.all_reduce(On::Second, 64)?;
    } else {
        // @circle.01
        r.about(On::Second, "sum")?.all_reduce(On::Second, 64)?;
        if r.rank == 1 {
            r.send(On::World, 64, 2)?;
        }
    }
    r.sync()
}

/// Rank 0 sends, rank 2 waits for rank 1, which has nothing to send.
fn from_the_wrong_rank(r: &mut Rank) -> Result<()> {
    match r.rank {
        0 => r.send(On::World, 8, 2)?,
        1 => {}
        _ => {
            // @wrong.2
            r.recv(On::World, 8, 1)?;
        }
    }
    r.sync()
}

/// One micro-batch more on the receiving stage.
fn one_receive_too_many(r: &mut Rank) -> Result<()> {
    if r.rank == 0 {
        r.send(On::World, 8, 1)?;
    } else {
        r.recv(On::World, 8, 0)?;
        // @many.1
        r.recv(On::World, 8, 0)?;
    }
    r.sync()
}

/// A message for a rank that has ended: small ones leave their sender without a receiver under MPI.
fn nobody_receives(r: &mut Rank) -> Result<()> {
    r.barrier(On::World)?;
    if r.rank == 0 {
        // @nobody.0
        r.send(On::World, 8, 1)?;
    }
    r.sync()
}
