//! Continuing a run: which checkpoint, and whether it is the same run.

use crate::job::Job;
use crate::job::open::Reads;
use crate::metrics;
use crate::model::Source;
use crate::request::{Continued, Request};
use crate::train_error::{Result, TrainError};
use crate::{adapted, described};
use crossweave_checkpoint::{Checkpoint, PublicKey, list, run_and_step};
use crossweave_config::{Resolved, may_change_on_resume};
use crossweave_data::Corpus;
use crossweave_models::remembered;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Where a run begins.
pub struct Resume {
    /// Optimizer steps done before.
    pub step: u64,
    /// State to begin from; `None` = starting values.
    pub checkpoint: Option<Checkpoint>,
    /// Folder whose metrics are continued.
    pub from: Option<PathBuf>,
    /// What the user should know.
    pub notes: Vec<String>,
}

impl Resume {
    /// A run from its beginning.
    pub fn fresh() -> Resume {
        Resume {
            step: 0,
            checkpoint: None,
            from: None,
            notes: vec![],
        }
    }
}

/// The run that a folder names, and the step where it is one of that run's checkpoints.
fn named(dir: &Path) -> (&Path, Option<u64>) {
    match run_and_step(dir) {
        Some((run, step)) => (run, Some(step)),
        None => (dir, None),
    }
}

/// Refuses a folder without a run, or one that is no checkpoint of a run.
///
/// # Errors
/// No such folder, or one that holds neither checkpoints nor a run's config; a checkpoint that is not there.
pub fn check_holds_run(dir: &Path) -> Result<()> {
    let (given, (dir, only)) = (dir, named(dir));
    let there = |step| list(dir).map(|l| l.into_iter().any(|f| f.step == step));
    if let Some(step) = only.filter(|_| dir.is_dir())
        && !there(step)?
    {
        let steps: Vec<String> = list(dir)?.iter().map(|f| f.step.to_string()).collect();
        return Err(TrainError::refused(
            format!("--resume {}: no such checkpoint", given.display()),
            match steps.is_empty() {
                true => format!("{} has none", dir.display()),
                false => format!("{} has those of steps {}", dir.display(), steps.join(", ")),
            },
        ));
    }
    if !dir.is_dir() || (!dir.join("config.json").is_file() && list(dir)?.is_empty()) {
        return Err(TrainError::refused(
            format!("--resume {}: holds no run (no config.json)", dir.display()),
            "name the output folder of `crossweave train`",
        ));
    }
    Ok(())
}

/// The beginning of a run of this job whose folder is `out`: at the newest checkpoint of the run that it continues, or at the one that is named.
///
/// # Errors
/// As [`find`].
pub fn begin(request: &Request, out: &Path, job: &Job, reads: &Reads) -> Result<Resume> {
    let dir = match &request.resume {
        Some(Continued::Run(dir)) => dir,
        Some(Continued::Own) if out.is_dir() && !list(out)?.is_empty() => out,
        _ => return Ok(Resume::fresh()),
    };
    find(dir, &job.resolved, &reads.corpus, &job.source, reads.steps)
}

/// The most checkpoints of which an error says what is wrong with each.
const NAMED: usize = 3;

/// The newest checkpoint of a run that opens and is trusted, and what is wrong with those that are newer; or the one of step `only`.
///
/// # Errors
/// A folder that cannot be listed; a checkpoint that is asked for and is not good.
fn newest(
    dir: &Path,
    only: Option<u64>,
    trusted: &dyn Fn(&Checkpoint) -> crossweave_checkpoint::Result<()>,
) -> Result<(Option<Checkpoint>, Vec<String>)> {
    let mut notes = vec![];
    let candidates = list(dir)?.into_iter().rev();
    for candidate in candidates.filter(|c| only.is_none_or(|step| c.step == step)) {
        let open = || -> Result<Checkpoint> {
            let c = Checkpoint::open(&candidate.path)?;
            trusted(&c)?;
            described::check(&c)?;
            Ok(c)
        };
        match open() {
            Ok(c) => return Ok((Some(c), notes)),
            Err(e) if only.is_some() => return Err(e),
            Err(e) => notes.push(format!(
                "checkpoint of step {} is passed over: {e}",
                candidate.step
            )),
        }
    }
    Ok((None, notes))
}

/// Finds the newest good checkpoint of the run in `dir`, or the one that `dir` is, and makes sure that it is of the run of this config.
///
/// # Errors
/// No such folder, or one without a run; a checkpoint that is named and cannot be read; another model, optimizer, schedule or corpus, by key; more steps done than asked for.
pub fn find(
    dir: &Path,
    now: &Resolved,
    corpus: &Corpus,
    source: &Source,
    steps: u64,
) -> Result<Resume> {
    check_holds_run(dir)?;
    let (dir, only) = named(dir);
    let record = dir.join("config.json");
    let key = now.settings.checkpoint.trust_key.as_ref();
    let key = key.map(|k| PublicKey::read(k.as_ref())).transpose()?;
    let trusted = |c: &Checkpoint| key.as_ref().map_or(Ok(()), |k| c.signed_by(k));
    let (found, mut notes) = newest(dir, only, &trusted)?;
    let Some(checkpoint) = found else {
        if !notes.is_empty() {
            // The newest say enough where a run has kept many.
            let more = match notes.len().saturating_sub(NAMED) {
                0 => String::new(),
                n => format!("; and {n} older"),
            };
            notes.truncate(NAMED);
            return Err(TrainError::refused(
                format!("--resume {}: {}{more}", dir.display(), notes.join("; ")),
                "restore a checkpoint from a copy, or start the run again in another folder",
            ));
        }
        let bytes = crossweave_files::read(&record, crossweave_files::TABLE)
            .map_err(TrainError::io("read", &record))?;
        if let Ok(before) = serde_json::from_slice::<Value>(&bytes) {
            same_run(&before, now, steps, dir)?;
        }
        notes.push(format!(
            "{} holds no checkpoint yet: the run starts again from step 0, with the same result",
            dir.display()
        ));
        return Ok(Resume {
            from: Some(dir.to_path_buf()),
            notes,
            ..Resume::fresh()
        });
    };
    let before = checkpoint.state();
    same_run(&before["config"], now, steps, dir)?;
    if let (Some(then), Some(today)) = (before["corpus"].as_str(), corpus.fingerprint().as_deref())
        && then != today
    {
        return Err(TrainError::refused(
            format!(
                "--resume {}: data.train: the corpus is not the one the run was trained on ({} now, {} then)",
                dir.display(),
                short(today),
                short(then)
            ),
            "restore the text and tokenizer, or start a new run",
        ));
    }
    adapted::check_base(
        source,
        &before["base"],
        &format!("--resume {}", dir.display()),
    )?;
    notes.extend(other_type(before, now));
    let step = checkpoint.step();
    if step > steps {
        return Err(TrainError::refused(
            format!(
                "run.steps: {steps} steps are asked, and {} has done {step} already",
                dir.display()
            ),
            format!("give --steps {step} or more"),
        ));
    }
    notes.push(format!("continuing {} from step {step}", dir.display()));
    let records = metrics::last_step(dir);
    if records.is_none_or(|last| last < step) {
        let what = match records {
            None => "is missing or empty".to_string(),
            Some(last) => format!("ends at step {last}"),
        };
        notes.push(format!(
            "{} {what}: records of the steps up to {step} are lost, and it goes on from step {}",
            dir.join(metrics::FILE).display(),
            step + 1
        ));
    }
    Ok(Resume {
        step,
        checkpoint: Some(checkpoint),
        from: Some(dir.to_path_buf()),
        notes,
    })
}

/// Says so where a run goes on in another type.
fn other_type(before: &Value, now: &Resolved) -> Option<String> {
    let then = before["config"]["run"]["dtype"].as_str()?;
    let today = serde_json::to_value(now.dtype).unwrap_or(Value::Null);
    let goes_on = today.as_str().unwrap_or("another type");
    (today != then)
        .then(|| format!("the run was trained in {then} so far and goes on in {goes_on}"))
}

fn short(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}

/// Refuses a config that would not continue the run of `before` (resolved settings).
fn same_run(before: &Value, now: &Resolved, steps: u64, dir: &Path) -> Result<()> {
    if !before.is_object() {
        return Err(TrainError::refused(
            format!(
                "--resume {}: the run's record (its newest checkpoint's manifest, or config.json) holds no config",
                dir.display()
            ),
            "restore it from a copy, or remove that checkpoint to resume from the one before",
        ));
    }
    let after = serde_json::to_value(&now.settings).unwrap_or(Value::Null);
    let mut differences = vec![];
    compare("", before, &after, &mut differences);
    // The model under adapters may have moved; that it is the same is seen by its weights.
    if after["model"]["lora"].is_object() {
        differences.retain(|d| d.0 != "model.hf");
    }
    // Another type explains every other difference below it.
    let kind = differences.iter().find(|d| d.0 == "optimizer.type");
    if let Some((key, then, today)) = kind.or(differences.first()) {
        return Err(TrainError::refused(
            format!(
                "--resume {}: {key} is {today}, and the run was trained with {then}",
                dir.display()
            ),
            format!("set it back with --set {key}={then}, or start a new run in another folder"),
        ));
    }
    // Rates are compared themselves: many schedules take their length from run.steps.
    let Some(then) = remembered::resolved(before) else {
        return Ok(());
    };
    let differs = (0..steps).find(|n| then.schedule.lr(*n) != now.schedule.lr(*n));
    if let Some(n) = differs {
        let before_steps = then.settings.run.steps.unwrap_or(0);
        return Err(TrainError::refused(
            format!(
                "--resume {}: the learning rate of step {} would be {:e} and was to be {:e}: the schedule depends on run.steps \
                 ({before_steps} then, {steps} now) or its parameters changed",
                dir.display(),
                n + 1,
                now.schedule.lr(n),
                then.schedule.lr(n)
            ),
            format!(
                "keep --steps {before_steps}, or state the schedule's length in scheduler.params from the start"
            ),
        ));
    }
    Ok(())
}

/// Keys whose values differ, those left out that may change: `(key, then, now)`.
fn compare(path: &str, then: &Value, now: &Value, out: &mut Vec<(String, String, String)>) {
    if then == now {
        return;
    }
    let (Value::Object(a), Value::Object(b)) = (then, now) else {
        if may_change_on_resume(path) {
            return;
        }
        let show = |v: &Value| match v {
            Value::Null => "absent".to_string(),
            v => v.to_string(),
        };
        out.push((path.to_string(), show(then), show(now)));
        return;
    };
    let mut keys: Vec<&String> = a.keys().chain(b.keys()).collect();
    keys.sort();
    keys.dedup();
    for key in keys {
        let inner = match path {
            "" => key.clone(),
            path => format!("{path}.{key}"),
        };
        let at = |m: &serde_json::Map<String, Value>| m.get(key).cloned().unwrap_or(Value::Null);
        compare(&inner, &at(a), &at(b), out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossweave_config::Config;
    use serde_json::json;

    fn keys(then: Value, now: Value) -> Vec<String> {
        let mut out = vec![];
        compare("", &then, &now, &mut out);
        out.into_iter().map(|(k, _, _)| k).collect()
    }

    #[test]
    fn only_what_changes_the_result_is_a_difference() {
        let then = json!({"run": {"steps": 10, "seed": 1, "generate": {"tokens": 3}}, "mesh": {"dp": 1, "tp": 1}});
        let now = json!({"run": {"steps": 20, "seed": 1, "generate": {"tokens": 0}}, "mesh": {"dp": 4, "tp": 1}});
        assert!(keys(then.clone(), now).is_empty());
        // A run from before there were graphs.
        let now =
            json!({"run": {"steps": 10, "seed": 1, "graphs": "on"}, "mesh": {"dp": 1, "tp": 1}});
        assert!(keys(then.clone(), now).is_empty());
        let now = json!({"run": {"steps": 10, "seed": 2}, "mesh": {"dp": 1, "tp": 1}, "model": {"n_embd": 8}});
        assert_eq!(keys(then, now), ["model", "run.seed"]);
    }

    /// Rates of both are compared on the ranks of either, whatever axes these are on.
    #[test]
    fn another_length_is_another_schedule_on_every_mesh() {
        let run = |mesh: &Value, steps: u64| {
            let config = json!({
                "model": {"family": "llama", "num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "max_position_embeddings": 16},
                "data": {"train": "none.txt", "tokenizer": "bytes"},
                "run": {"steps": steps}, "mesh": mesh, "train_batch_size": 8,
                "optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
                "scheduler": {"type": "cosine", "params": {"min_lr": 1e-3}},
            });
            let config = Config::load("a.json", config.to_string(), &[]).unwrap();
            config.resolve(4).unwrap()
        };
        for mesh in [
            json!({}),
            json!({"tp": 2}),
            json!({"cp": 2}),
            json!({"cp": 2, "tp": 2}),
        ] {
            let before = serde_json::to_value(run(&mesh, 4).settings).unwrap();
            let goes_on = |steps| same_run(&before, &run(&mesh, steps), steps, Path::new("a"));
            goes_on(4).unwrap();
            let e = goes_on(8).unwrap_err().to_string();
            assert!(
                e.contains("the schedule depends on run.steps (4 then, 8 now)"),
                "{mesh}: {e}"
            );
        }
    }
}
