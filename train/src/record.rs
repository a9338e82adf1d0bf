//! `DIR/run.json`: what ran, when, where and how, for the report and for a reader who finds the folder later. Written when a run begins,
//! completed when it ends; a run that is resumed adds a session behind those before.

use crate::peak;
use crate::planned::Planned;
use crate::prepared::Run;
use crate::train_error::{Result, TrainError};
use crossweave_config::{Dtype, Model};
use crossweave_report::{RECORD, moment, whole};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::time::Duration;

/// Sessions that are kept; the first are forgotten.
const SESSIONS: usize = 50;

/// Begins the session. Of a run that continues another, `from` is where it was.
///
/// # Errors
/// A folder that cannot be written.
pub fn begin(run: &Run, from: Option<&Path>) -> Result<()> {
    let mut sessions = from.map_or(vec![], read);
    let keep = sessions.len().saturating_sub(SESSIONS - 1);
    sessions.drain(..keep);
    sessions.push(session(run));
    write(run, sessions)
}

/// Completes the session, with what was `planned`. `busy`: time in steps; `stopped`: a signal has ended it.
///
/// # Errors
/// A folder that cannot be written.
pub fn end(run: &Run, planned: &[Planned<'_>], stopped: bool, busy: Duration) -> Result<()> {
    let mut sessions = read(&run.out);
    // Somebody has taken the file away or changed it: then it is theirs.
    let Some(Value::Object(last)) = sessions.last_mut() else {
        return Ok(());
    };
    last.insert("ended".into(), moment::unix().into());
    let outcome = if stopped { "stopped" } else { "finished" };
    last.insert("outcome".into(), outcome.into());
    let planned: Vec<Value> = planned.iter().map(Planned::bytes).collect();
    last.insert("planned".into(), planned.into());
    if let Some((flops, how)) = peak::of(run, busy) {
        last.insert("peak".into(), json!({"flops": flops, "how": how}));
    }
    write(run, sessions)
}

/// The sessions in a folder; none where the file is not there or is not ours.
fn read(dir: &Path) -> Vec<Value> {
    let text = crossweave_files::read(&dir.join(RECORD), crossweave_files::TABLE);
    let file: Value = text
        .ok()
        .and_then(|t| serde_json::from_slice(&t).ok())
        .unwrap_or_default();
    match file.get("sessions") {
        Some(Value::Array(all)) => all.clone(),
        _ => vec![],
    }
}

fn write(run: &Run, sessions: Vec<Value>) -> Result<()> {
    run.check_claim()?;
    let path = run.out.join(RECORD);
    let file = json!({"program": "crossweave", "sessions": sessions});
    whole::write(&path, format!("{file:#}\n")).map_err(TrainError::io("write", &path))
}

fn session(run: &Run) -> Value {
    let (o, r) = (&run.origin, &run.job.resolved);
    let devices: Vec<Value> = run
        .computes
        .iter()
        .map(|c| {
            let names: Vec<&str> = c.machines.iter().map(|m| m.name.trim()).collect();
            let mut d = json!({"named": c.named, "version": c.version(), "devices": names, "ranks": c.ranks.len()});
            if c.is_cpu() {
                d["threads"] = peak::threads(run).into();
            }
            d
        })
        .collect();
    let zero = &r.settings.zero_optimization;
    let mut layout = json!({
        "ranks": run.job.ranks,
        "data_parallel": run.job.data_ranks(),
        "pipeline": run.layout.division.stages.as_ref().map_or(1, |s| s.runs.stages()),
        "zero_stage": zero.stage,
        "global_batch": r.batch.global,
        "micro_batch": r.batch.micro,
        "accumulation": r.batch.accumulation,
        "seq_len": run.job.tokens_per_row(),
    });
    if run.job.tensor_ranks() > 1 {
        layout["tensor_parallel"] = run.job.tensor_ranks().into();
    }
    let away = |o: Option<&str>| o.is_some_and(|d| d != "none");
    let mut offload = vec![];
    if away(zero.offload_optimizer.as_ref().map(|o| o.device.as_str())) {
        offload.push("optimizer");
    }
    if away(zero.offload_param.as_ref().map(|o| o.device.as_str())) {
        offload.push("parameters");
    }
    if !offload.is_empty() {
        layout["offload"] = offload.join(" and ").into();
    }
    let mut precision = Map::new();
    precision.insert("compute".into(), name(r.dtype).into());
    if r.dtype != Dtype::F32 {
        precision.insert("master".into(), "f32".into());
        precision.insert("accumulation".into(), name(r.accumulation()).into());
        if run.job.ranks > 1 {
            precision.insert("wire".into(), name(r.wire()).into());
        }
    }
    let mut whole = json!({
        "began": o.began,
        "date": moment::utc(o.began),
        "hosts": o.hosts,
        "processes": o.processes,
        "launcher": o.launcher,
        "version": env!("CARGO_PKG_VERSION"),
        "command": o.command,
        "devices": devices,
        "layout": layout,
        "model": {
            "name": model(&r.model),
            "parameters": run.layout.dry(0).params,
            "flops_per_token": run.job.source.spec.model().flops_per_token(run.job.tokens_per_row()),
        },
        "precision": precision,
        "steps": {"from": run.resume.step, "to": run.reads.steps},
        "set": o.set,
    });
    // Of the experts of a layer a token goes through some.
    let idle = run.job.source.spec.model().idle();
    if idle > 0 {
        let all = run.layout.dry(0).params;
        whole["model"]["active_parameters"] = all.saturating_sub(idle).into();
    }
    whole
}

fn name(dtype: Dtype) -> &'static str {
    crate::job::spec::compute_type(dtype).name()
}

fn model(m: &Model) -> String {
    match m {
        Model::Hf(m) => m.hf.clone(),
        // It has been resolved, so that its numbers fit.
        Model::New(m) => m.spec(None).map_or(m.family.clone(), |s| s.summary()),
    }
}
