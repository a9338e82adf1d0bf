//! What a person sees while a run goes on: a bar on a terminal, plain lines anywhere else, be it beside the bar: `train … > log.txt`.

use crate::events::StepRecord;
use crate::say::{progress, say, tell};
use crossweave_report::moment::clock;
use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// A bar, or lines.
pub struct Live {
    bar: Option<ProgressBar>,
    /// Standard output is read as lines: there is no bar, or it is a file or a pipe beside the terminal that has the bar.
    lines: bool,
    /// Nothing but warnings is printed.
    quiet: bool,
    every: u64,
    steps: u64,
    /// Seconds a step takes, smoothed, for the lines' ETA.
    pace: Option<f64>,
    /// Tokens and seconds of the steps since the last line.
    since: (f64, f64),
}

impl Live {
    /// For `steps` steps of which `done` are done; lines come every `every` steps, and without that neither lines nor a bar.
    pub fn new(steps: u64, done: u64, every: Option<u64>) -> Live {
        let seen = every.is_some() && std::io::stderr().is_terminal();
        let bar = seen.then(|| {
            let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
            if let Ok(style) =
                ProgressStyle::with_template("{pos}/{len} {wide_bar:.cyan/blue} {msg}  eta {eta}")
            {
                bar.set_style(style);
            }
            bar.set_position(done);
            bar.reset_eta();
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Live {
            lines: every.is_some() && (bar.is_none() || !std::io::stdout().is_terminal()),
            quiet: every.is_none(),
            bar,
            every: every.unwrap_or(1).max(1),
            steps,
            pace: None,
            since: (0.0, 0.0),
        }
    }

    /// Whether a line is printed for this step where there is no bar.
    pub fn due(&self, step: u64) -> bool {
        step.is_multiple_of(self.every) || step == self.steps || step == 1
    }

    /// A step is done.
    pub fn step(&mut self, r: &StepRecord) {
        let seconds = r.step_ms / 1000.0;
        let pace = self.pace.map_or(seconds, |p| 0.9 * p + 0.1 * seconds);
        self.pace = Some(pace);
        let tokens = r.tokens_per_s * seconds;
        if let Some(bar) = &self.bar {
            let speed = HumanCount((tokens / pace.max(1e-9)) as u64);
            bar.set_position(r.step);
            bar.set_message(format!("loss {:.4}  {speed} tok/s", r.loss));
        }
        self.since = (self.since.0 + tokens, self.since.1 + seconds);
        if self.lines && self.due(r.step) {
            // Of all steps that the line stands for, not of the last alone.
            let (tokens, seconds) = std::mem::take(&mut self.since);
            let speed = HumanCount((tokens / seconds.max(1e-9)) as u64);
            let eta = pace * (self.steps.saturating_sub(r.step)) as f64;
            progress(format_args!(
                "step {:>6}/{}  loss {:.4}  lr {:.3e}  grad {:.3}{}  {speed} tok/s  eta {}",
                r.step,
                self.steps,
                r.loss,
                r.lr,
                r.grad_norm,
                scale(r),
                clock(eta)
            ));
        }
    }

    /// A validation is done.
    pub fn validation(&self, step: u64, loss: f64, ema: Option<f64>) {
        let ema = ema.map_or(String::new(), |ema| {
            format!("  of the averaged weights {ema:.4}")
        });
        self.say(&format!(
            "step {step:>6}/{}  validation loss {loss:.4}{ema}",
            self.steps
        ));
    }

    /// A warning that stays.
    pub fn warn(&self, warning: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("warning: {warning}")),
            None => tell(format_args!("warning: {warning}")),
        }
    }

    /// A line that stays.
    pub fn say(&self, line: &str) {
        match &self.bar {
            _ if self.quiet => {}
            // On a terminal with a bar, where lines appear in their places.
            Some(bar) if std::io::stdout().is_terminal() => bar.suspend(|| println!("{line}")),
            _ => say!("{line}"),
        }
    }

    /// Takes the bar away.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.end();
    }
}

/// The loss scale and the steps it has cost, in float16 runs.
fn scale(r: &StepRecord) -> String {
    match (r.loss_scale, r.skipped_steps) {
        (Some(scale), Some(skipped)) => format!("  scale {scale} (skipped {skipped})"),
        _ => String::new(),
    }
}
