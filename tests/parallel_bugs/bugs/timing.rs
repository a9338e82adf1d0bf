//! Ranks that come too late: only the timeout may end such a wait, and it says where the late rank is.

use crate::parallel_bugs::bug::{Bug, bug};
use crate::parallel_bugs::rank::{On, Rank};
use crossweave_hal::Result;
use std::time::{Duration, Instant};

pub const BUGS: &[Bug] = &[
    bug!(asleep, 2, Timeout, &[1], &["all_reduce"], &["asleep.0", "asleep.last"], timeout_ms: 5000),
    bug!(computes_for_ever, 3, Timeout, &[0], &["all_gather"], &["computes.12", "computes.last"], timeout_ms: 5000),
    bug!(sender_is_late, 2, Timeout, &[0], &["recv"], &["late.1", "late.last"], timeout_ms: 5000),
];

/// Long enough that only the timeout can end the others' wait.
const LONG: Duration = Duration::from_secs(60);

/// A file system that does not answer.
fn asleep(r: &mut Rank) -> Result<()> {
    // @asleep.last
    r.barrier(On::World)?;
    r.sync()?;
    if r.rank == 1 {
        std::thread::sleep(LONG);
    }
    // @asleep.0
    r.all_reduce(On::World, 8)?;
    r.sync()
}

/// A loop on the host that does not end in time.
fn computes_for_ever(r: &mut Rank) -> Result<()> {
    // @computes.last
    r.all_reduce(On::World, 8)?;
    r.sync()?;
    if r.rank == 0 {
        let began = Instant::now();
        while began.elapsed() < LONG {
            std::thread::yield_now();
        }
    }
    // @computes.12
    r.all_gather(On::World, 8)?;
    r.sync()
}

/// A message that comes late.
fn sender_is_late(r: &mut Rank) -> Result<()> {
    // @late.last
    r.barrier(On::World)?;
    r.sync()?;
    if r.rank == 0 {
        std::thread::sleep(LONG);
        r.send(On::World, 8, 1)?;
    } else {
        // @late.1
        r.recv(On::World, 8, 0)?;
    }
    r.sync()
}
