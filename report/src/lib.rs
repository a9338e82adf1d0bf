//! The files a run leaves behind, as one HTML page that needs no network, and as TensorBoard event files; two runs side by side on
//! one page. What a run records for its report is declared here, and read without any crate that runs one.
//!
//! The page is read years later and sent around by mail, so everything is inside it: plots are
//! SVG drawn here, style and script are inlined, fonts are the reader's own.
#![forbid(unsafe_code)]

mod charts;
mod compare;
mod facts;
mod fold;
mod html;
pub mod moment;
mod page;
mod read;
mod stages;
mod tfevents;
mod times;
mod watched;
pub mod whole;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

pub use fold::listed;
pub use read::{RECORD, Run};
pub use tfevents::EventWriter;
pub use times::StepTime;
pub use watched::{UnitTimes, Watched};

/// Why no report can be made: which file, where in it, what is wrong and what to do.
#[derive(Debug)]
pub struct ReportError {
    /// The file that cannot be used.
    pub file: PathBuf,
    /// Line in it, from 1; 0 when the whole file is meant.
    pub line: usize,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub fix: String,
}

impl fmt::Display for ReportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        write!(f, ": {}; fix: {}", self.what, self.fix)
    }
}

impl std::error::Error for ReportError {}

/// Reads a run; `peak`: operations a second that the device of each rank can reach, in place of what the run has recorded.
///
/// # Errors
/// When there are no metrics, or a file is there but cannot be understood.
pub fn read(dir: &Path, peak: Option<f64>) -> Result<Run, ReportError> {
    let mut run = Run::read(dir)?;
    if let Some(each) = peak {
        run.facts.with_peak(each);
    }
    Ok(run)
}

/// Writes the page of a run, from `metrics.jsonl`, `ledger.json`, `config.json` and `run.json` of its folder. What is missing (a run that
/// was killed has no ledger) is left out with a note.
///
/// # Errors
/// A file that cannot be written.
pub fn write_page(run: &Run, path: &Path) -> Result<(), ReportError> {
    whole::write(path, page::render(run)).map_err(|e| cannot_write(path, &e))
}

/// Writes the page that sets two runs side by side.
///
/// # Errors
/// A file that cannot be written.
pub fn write_comparison(a: &Run, b: &Run, path: &Path) -> Result<(), ReportError> {
    whole::write(path, compare::render(a, b)).map_err(|e| cannot_write(path, &e))
}

/// Writes the event files of a run, dated from when its config was written.
///
/// # Errors
/// As [`write_events`].
pub fn events(dir: &Path) -> Result<PathBuf, ReportError> {
    let began = std::fs::metadata(dir.join("config.json"))
        .and_then(|m| m.modified())
        .ok()
        .and_then(|t| t.duration_since(UNIX_EPOCH).ok())
        .map_or(0.0, |d| d.as_secs_f64());
    write_events(dir, began)
}

/// Writes TensorBoard event files of `dir`'s metrics into `DIR/tensorboard`; returns the file's
/// path. `start` is the wall-clock time, in seconds since 1970, the first step is dated at; later
/// steps follow by their `step_ms`.
///
/// # Errors
/// As [`read()`] and [`write_page`].
pub fn write_events(dir: &Path, start: f64) -> Result<PathBuf, ReportError> {
    let run = Run::read(dir)?;
    let folder = dir.join("tensorboard");
    let path = folder.join(tfevents::file_name(start));
    let write = || -> std::io::Result<()> {
        std::fs::create_dir_all(&folder)?;
        let mut bytes = vec![];
        let mut events = EventWriter::new(&mut bytes, start)?;
        let mut clock = start;
        let mut validations = run.validations.iter().peekable();
        for s in &run.steps {
            clock += s.step_ms.unwrap_or(0.0) / 1000.0;
            let scalars = [
                ("train/loss", s.loss),
                ("train/lr", s.lr),
                ("train/grad_norm", s.grad_norm),
                ("speed/tokens_per_s", s.tokens_per_s),
                ("speed/step_ms", s.step_ms),
                ("experts/aux_loss", s.routers[0]),
                ("experts/load_min", s.routers[1]),
                ("experts/load_max", s.routers[2]),
                ("experts/drops", s.routers[3]),
                ("speed/attention_over_mean", s.attention_over_mean),
            ];
            for (tag, value) in scalars {
                if let Some(value) = value {
                    events.scalar(s.step, clock, tag, value as f32)?;
                }
            }
            while let Some(v) = validations.next_if(|v| v.step <= s.step) {
                events.scalar(v.step, clock, "validation/loss", v.loss as f32)?;
            }
        }
        for v in validations {
            events.scalar(v.step, clock, "validation/loss", v.loss as f32)?;
        }
        events.finish()?;
        whole::write(&path, bytes)
    };
    write().map_err(|e| cannot_write(&path, &e))?;
    Ok(path)
}

fn cannot_write(path: &Path, e: &std::io::Error) -> ReportError {
    ReportError {
        file: path.to_path_buf(),
        line: 0,
        what: format!("cannot be written: {e}"),
        fix: "check the folder's permissions and the free space of the disk".into(),
    }
}

#[cfg(test)]
mod tests;
