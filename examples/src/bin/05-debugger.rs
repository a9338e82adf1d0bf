//! Lesson 5: several ranks under a debugger. The ranks of a job are threads of one process, named `rank 0`, `rank 1` and so on, so that one
//! debugger sees all of them: no launcher, no ports, no second window.
//!
//! The program trains on two ranks, and calls [`stop_here`] on the thread of one rank in one step: rank 1 in step 3, or those that are given.
//!
//! ```text
//! $ cargo build --release -p crossweave-examples --bin 05-debugger
//! $ gdb --args target/release/05-debugger 1 3
//! (gdb) break 05-debugger.rs:42            the line in `stop_here`; a line of your own block does as well. This profile keeps
//!                                          lines and no names, so that a break by name finds nothing
//! (gdb) run
//! Thread 5 "rank 1" hit Breakpoint 1       the rank that was asked for, before step 3; all other threads stand still too
//! (gdb) info threads                       each rank by its name
//! (gdb) backtrace                          from here through the rank's loop to the start of its thread
//! (gdb) thread apply all backtrace 8       where every rank is: rank 0 waits for rank 1 in a collective, or is about to
//! (gdb) continue
//! ```
//!
//! In lldb: `lldb -- target/release/05-debugger 1 3`, `breakpoint set --file 05-debugger.rs --line 42`, `run`, `thread list`, `bt all`, `continue`.
//! Variables, and breaks by name, come with `CARGO_PROFILE_RELEASE_DEBUG=full`.
//!
//! Values that lie on a device are not seen by a debugger. [`Trainer::read`] brings a parameter to the host between two steps, whole, whichever
//! ranks hold it; here the length of one is printed after each step, so that the step in which it goes wrong shows which to stop in.
#![forbid(unsafe_code)]

use crossweave::{DataSource, Team, Trainer};
use crossweave_examples::{Chain, config};
use std::error::Error;

/// Sequences of a step, over both ranks.
const BATCH: u64 = 4;

/// Rows that stop where a debugger is to look: each rank reads its own on its own thread, before it begins the step.
struct Stopping {
    rank: String,
    step: u64,
}

/// A function of its own, so that a breakpoint on it stops a rank before a step.
#[inline(never)]
fn stop_here(rank: &str, step: u64) {
    println!("{rank} is before step {step}");
}

impl DataSource for Stopping {
    fn seq_len(&self) -> usize {
        Chain.seq_len()
    }

    fn rows(&self) -> u64 {
        Chain.rows()
    }

    fn row(&self, number: u64) -> Result<Vec<u32>, Box<dyn Error + Send + Sync>> {
        let thread = std::thread::current();
        let step = number / BATCH + 1;
        // Of the rows of a step each rank reads the same number; the first of them is the one to stop at.
        if thread.name() == Some(&self.rank) && step == self.step && number.is_multiple_of(2) {
            stop_here(&self.rank, step);
        }
        Chain.row(number)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let rank = args.next().unwrap_or("1".into());
    let step = args.next().unwrap_or("3".into()).parse()?;
    let rank = format!("rank {rank}");
    let dir = tempfile::tempdir()?;
    let mut trainer = Trainer::from_config(config(&dir.path().join("run"), 5))
        // While a debugger holds one rank the others wait for it.
        .set("run.comm_timeout_s", 86400)
        .ranks(Team::Threads(2))
        .data(Stopping { rank, step });
    for _ in 0..trainer.steps()? {
        let record = trainer.step()?;
        let table = trainer.read("transformer.wte.weight")?;
        let length = table.iter().map(|v| v * v).sum::<f32>().sqrt();
        let (step, loss) = (record.step, record.loss);
        println!("step {step}  loss {loss:.4}  length of the embedding {length:.4}");
    }
    Ok(())
}
