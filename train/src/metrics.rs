//! `DIR/metrics.jsonl`: one object a step, and one a validation, each written whole as soon as it is known.

use crate::train_error::{Result, TrainError};
use crossweave_report::whole;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Name of the file.
pub const FILE: &str = "metrics.jsonl";

/// Record of one validation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ValRecord {
    /// Step it ran after.
    pub step: u64,
    /// Mean cross-entropy over the predictions of the sequences held back that count; nats per token.
    pub val_loss: f64,
    /// The same with the moving average of the weights, where one is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ema_val_loss: Option<f64>,
}

/// The last step the metrics in `dir` have a record of; none where the file is not there or holds no record.
pub fn last_step(dir: &Path) -> Option<u64> {
    let text = crossweave_files::read(&dir.join(FILE), crossweave_files::BULK).ok()?;
    let text = String::from_utf8_lossy(&text);
    let step = |line: &str| serde_json::from_str::<Value>(line).ok()?["step"].as_u64();
    text.lines().rev().find_map(step)
}

/// Work behind the newest checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LostWork {
    /// Optimizer steps.
    pub steps: u64,
    /// Seconds that these steps took.
    pub seconds: f64,
    /// Tokens that they were trained on.
    pub tokens: u64,
}

/// What the metrics in `dir` have behind step `saved`, which is trained again after a resume from there.
pub fn behind(dir: &Path, saved: u64) -> LostWork {
    let text = crossweave_files::read(&dir.join(FILE), crossweave_files::BULK).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let (mut lost, mut before) = (LostWork::default(), 0);
    for line in text.lines() {
        let Ok(record) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        let (Some(step), Some(tokens)) = (record["step"].as_u64(), record["tokens"].as_u64())
        else {
            continue;
        };
        if step > saved {
            lost.steps += 1;
            lost.seconds += record["step_ms"].as_f64().unwrap_or(0.0) / 1e3;
            lost.tokens += tokens.saturating_sub(before);
        }
        before = tokens;
    }
    lost
}

/// The open file.
pub struct Metrics {
    file: File,
    path: PathBuf,
}

impl Metrics {
    /// Opens `out/metrics.jsonl` with the records of `from` that `wanted(step, is a validation)` keeps: what a killed run wrote
    /// beyond its checkpoint is dropped, since it is computed again.
    ///
    /// # Errors
    /// Files that cannot be read or written.
    pub fn open(
        out: &Path,
        from: Option<&Path>,
        wanted: &dyn Fn(u64, bool) -> bool,
    ) -> Result<Metrics> {
        let path = out.join(FILE);
        let mut kept = String::new();
        if let Some(from) = from.map(|f| f.join(FILE)).filter(|f| f.is_file()) {
            let bytes = crossweave_files::read(&from, crossweave_files::BULK)
                .map_err(TrainError::io("read", &from))?;
            kept = keep(&String::from_utf8_lossy(&bytes), wanted);
        }
        whole::write(&path, kept).map_err(TrainError::io("write", &path))?;
        let file = OpenOptions::new()
            .append(true)
            .open(&path)
            .map_err(TrainError::io("open", &path))?;
        Ok(Metrics { file, path })
    }

    /// Appends a record.
    ///
    /// # Errors
    /// A disk that is full.
    pub fn write(&mut self, record: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(record)
            .map_err(|e| TrainError::io("write", &self.path)(e.into()))?;
        line.push(b'\n');
        // One write a line, so that a killed run leaves at most one line unfinished.
        self.file
            .write_all(&line)
            .map_err(TrainError::io("write", &self.path))
    }

    /// Makes what was written last through a loss of power.
    ///
    /// # Errors
    /// A disk that fails.
    pub fn sync(&self) -> Result<()> {
        self.file
            .sync_data()
            .map_err(TrainError::io("write", &self.path))
    }
}

/// The complete lines of the records that are wanted.
fn keep(text: &str, wanted: &dyn Fn(u64, bool) -> bool) -> String {
    let complete = text.rfind('\n').map_or("", |end| &text[..=end]);
    complete
        .split_inclusive('\n')
        .filter(|line| {
            let record: Option<Value> = serde_json::from_str(line).ok();
            record.is_some_and(|r| {
                let validation = r.get("val_loss").is_some();
                r["step"].as_u64().is_some_and(|s| wanted(s, validation))
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_beyond_the_checkpoint_and_torn_lines_are_dropped() {
        let text = "{\"step\":1}\n{\"step\":2}\n{\"step\":2,\"val_loss\":1.0}\n{\"step\":3}\n{\"st";
        let want = "{\"step\":1}\n{\"step\":2}\n{\"step\":2,\"val_loss\":1.0}\n";
        assert_eq!(keep(text, &|s, _| s <= 2), want);
        assert_eq!(keep(text, &|_, v| v), "{\"step\":2,\"val_loss\":1.0}\n");
        assert_eq!(keep("", &|_, _| true), "");
    }
}
