//! What a person sees of a run: notes and warnings as they come, a bar or lines of steps, the closing table; and how signals stop it.

use crate::closing;
use crate::corpus_bar::Bar;
use crate::events::{Closing, Event, Events};
use crate::live::Live;
use crate::say::{self, say};
use crate::train_error::{HOST_ROOM, Result, TrainError};
use crossweave_data::Progress;
use crossweave_hal::crash;
use crossweave_mesh::rank_words;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The streams of this process.
#[derive(Default)]
pub struct Screen {
    /// The bar or the lines of the steps, while rank 0 walks them.
    live: Mutex<Option<Live>>,
}

impl std::fmt::Debug for Screen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Screen").finish_non_exhaustive()
    }
}

impl Screen {
    // It is only drawn, so one that a panicking thread held is as good as any.
    fn live(&self) -> MutexGuard<'_, Option<Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with(&self, f: impl FnOnce(&mut Live)) {
        if let Some(live) = self.live().as_mut() {
            f(live);
        }
    }
}

impl Events for Screen {
    fn on(&self, event: Event<'_>) {
        match event {
            Event::Met(None) => crash::guard("crossweave train", HOST_ROOM),
            Event::Met(Some(here)) => crash::guard(&rank_words(&here), HOST_ROOM),
            Event::Note(text) => eprintln!("note: {text}"),
            Event::Warning(text) => eprintln!("warning: {text}"),
            Event::Remark(remark) => eprintln!("{remark}"),
            Event::Begun { steps, done, every } => {
                *self.live() = Some(Live::new(steps, done, every));
            }
            Event::Step(record) => self.with(|live| live.step(record)),
            Event::Breakdown(line) => self.with(|live| live.say(line)),
            Event::Validated { step, loss, ema } => {
                self.with(|live| live.validation(step, loss, ema))
            }
            Event::StepWarning(text) => self.with(|live| live.warn(text)),
            Event::Walked => *self.live() = None,
            Event::Closed(closing) => table(closing),
            Event::Failed(error) => {
                // In one piece: each is a call of the system that wakes the launcher, which may end this process before the next.
                let line = format!("error: {error}\n");
                eprint!("{line}");
            }
            Event::Killed => {
                // As the system does it when memory is short; where there are no signals an abort is the next best.
                #[cfg(unix)]
                let _ = nix::sys::signal::kill(
                    nix::unistd::Pid::this(),
                    nix::sys::signal::Signal::SIGKILL,
                );
                std::process::abort();
            }
            Event::Stuck(what) => {
                eprintln!("error: {what}");
                std::process::exit(1);
            }
            Event::Absent(e) => {
                eprintln!("error: {e}");
                std::process::exit(1);
            }
            // What happens besides is for programs.
            _ => {}
        }
    }

    /// The first interrupt asks the run to stop after its step and save; the second ends the process at once.
    fn start(&self, first: bool) -> Result<Arc<AtomicBool>> {
        say::begin();
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        let handler = move || {
            if asked.swap(true, Ordering::SeqCst) {
                std::process::exit(130);
            }
            if first {
                say::tell(format_args!(
                    "stopping after this step and saving a checkpoint (again: stop at once)"
                ));
            }
        };
        ctrlc::set_handler(handler).map_err(|e| {
            TrainError::refused(
                format!("cannot handle signals: {e}"),
                "start the program from a normal shell, or raise the limits of the process (ulimit -v and -d of memory, -u of threads)",
            )
        })?;
        Ok(stop)
    }

    fn corpus(&self) -> Box<dyn Progress> {
        Box::new(Bar::default())
    }
}

/// Prints the closing table and the sample.
fn table(closing: &Closing<'_>) {
    let rows = closing::rows(closing);
    let width = rows.iter().map(|(k, _)| k.len()).max().unwrap_or(0);
    say!();
    for (key, value) in rows {
        say!("  {key:<width$}  {value}");
    }
    if let Some(sample) = &closing.summary.sample {
        say!("\nsample:\n{sample}");
    }
}
