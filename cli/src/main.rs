//! The `crossweave` binary: the only crate that reads the environment and the command line, prints, and decides exit codes.
//!
//! Exit codes: 0 done, 1 an error that is printed, 2 a wrong command line, 101 a bug, 130 stopped by a signal; `conform` has its own.
#![forbid(unsafe_code)]

mod args;
mod asked;
mod backends;
mod checkpoints;
mod closing;
mod completions;
mod configs;
mod conform;
mod corpus_bar;
mod counts;
mod device_table;
mod error;
mod estimate_page;
mod estimates;
mod explain_page;
mod explains;
mod explore;
mod flight_page;
mod generate;
mod live;
mod man;
mod mesh;
mod new_plugin;
mod plan_page;
mod plan_text;
mod plans;
mod probes;
mod reductions;
mod replay;
mod reports;
mod say;
mod screen;
mod surroundings;
mod width;

use args::{Cli, Command};
use clap::Parser;
use crossweave::outputs::Outputs;
use crossweave::{
    self as train, backend, described, events, exports, figures, flight, gradients, infer, layers,
    outputs, ranks, stages, train_error, trained,
};
use crossweave_data::is_guarded;
use crossweave_hal::{HostMemory, crash};
use crossweave_job::{config_file, error as job_error};
use error::Result;
use figures::check;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::time::Duration;
use train_error::HOST_ROOM;

/// After a failure or a signal: for a reader that stands still.
const LAST_LINES: Duration = Duration::from_secs(2);

/// An abort for want of memory says what was asked for.
#[global_allocator]
static MEMORY: HostMemory = HostMemory;

fn main() -> ExitCode {
    refuse_writes_beyond_limits();
    std::panic::set_hook(Box::new(|info| {
        // The data layer catches these and names the file.
        if info.location().is_some_and(|l| is_guarded(l.file())) {
            return;
        }
        eprintln!("error: this is a bug of crossweave: {info}");
        eprintln!("       please report it with the command line and the config");
    }));
    let cli = Cli::parse();
    let outputs = Outputs::default();
    let done = std::panic::catch_unwind(AssertUnwindSafe(|| run(cli.command, &outputs)));
    outputs.release();
    say::flush(match &done {
        Ok(Ok(())) => None,
        _ => Some(LAST_LINES),
    });
    match done {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(e)) => {
            if !e.is_silent() {
                eprintln!("error: {e}");
            }
            ExitCode::from(e.exit_code())
        }
        Err(_) => ExitCode::from(101),
    }
}

/// Beyond `ulimit -f` the system ends a process by SIGXFSZ, in the middle of a file. With the signal held back, the write fails instead,
/// and the error names the file. Threads inherit this, so it comes first.
fn refuse_writes_beyond_limits() {
    #[cfg(unix)]
    {
        use nix::sys::signal::{SigSet, Signal};
        let mut set = SigSet::empty();
        set.add(Signal::SIGXFSZ);
        // It cannot fail; if it did, a limit would end the program as before.
        let _ = set.thread_block();
    }
}

fn run(command: Command, outputs: &Outputs) -> Result<()> {
    let mut around = surroundings::of_process()?;
    around.plugins.outputs = outputs.clone();
    backend::check_options(&around.plugins)?;
    match command {
        // Its processes meet first. What a plugin crashes by, the kit's own reports say.
        Command::Train(_) | Command::Conform(_) | Command::ConformChild { .. } => {}
        _ => crash::guard("crossweave", HOST_ROOM),
    }
    match command {
        Command::Train(a) => Ok(train::run(&a.request(around))?),
        Command::Explore(a) => explore::run(&a, around),
        Command::Probe(a) => probes::run(&a, &around),
        Command::Generate(a) => generate::run(&a, &around),
        Command::Backends(a) => backends::run(&a, &around),
        Command::NewPlugin(a) => new_plugin::run(&a, &around.plugins),
        Command::Config { action } => configs::run(action, &around),
        Command::Mesh { action } => mesh::run(&action),
        Command::Plan(a) => plans::run(&a, &around),
        Command::Explain(a) => explains::run(&a, &around),
        Command::Estimate(a) => estimates::run(&a, &around),
        Command::Replay(a) => replay::run(&a, &around.plugins),
        Command::Report(a) => reports::run(&a),
        Command::Flight(a) => flight_page::run(&a),
        Command::Checkpoint { action } => checkpoints::run(action, &around.caches),
        Command::Conform(a) => conform::run(&a, &around),
        Command::Completions { shell } => completions::run(shell),
        Command::Man { command } => man::run(&command),
        Command::ConformChild { job } => conform::child(&job, &around),
    }
}
