//! What `crossweave plan` predicts for a pipeline: each stage's ranks by themselves, and what holds for all of them.

use crossweave_engine::PipelineSpec;
use crossweave_plan::Facts;
use serde_json::{Value, json};

/// Says in the figures of a stage which one it is, what it runs, and how many micro-batches it has in flight.
pub fn name(figures: &mut Value, spec: &PipelineSpec, stage: u32, facts: &Facts) {
    let stage = stage as usize;
    let units = spec.stages[stage].clone();
    let unit = |u: u32| facts.units[u as usize].name.as_str();
    let flying = spec
        .order
        .in_flight(spec.stages.len(), stage, facts.micro_batches);
    figures["stage_of_pipeline"] = json!(stage);
    figures["units"] = json!([units.start, units.end]);
    figures["micro_batches_in_flight"] = json!(flying);
    figures["runs"] = json!(format!(
        "units {} to {} ({} to {}), {flying} micro-batches in flight",
        units.start,
        units.end - 1,
        unit(units.start),
        unit(units.end - 1),
    ));
}

/// The whole of a pipeline from the figures of its stages: those of the fullest stage in front, all of them behind.
pub fn join(
    spec: &PipelineSpec,
    micro_batches: u64,
    (ranks, params): (u64, u64),
    stages: Vec<Value>,
) -> Value {
    let p = spec.stages.len() as u64;
    let bytes = |v: &Value| v["memory"]["total"]["peak"].as_u64().unwrap_or(0);
    let mut fullest = 0;
    for (k, v) in stages.iter().enumerate() {
        if bytes(v) > bytes(&stages[fullest]) {
            fullest = k;
        }
    }
    let mut all = stages.get(fullest).cloned().unwrap_or_default();
    all["ranks"] = json!(ranks);
    all["params"] = json!(params);
    all["pipeline"] = json!({
        "stages": p,
        "data_parallel_ranks": ranks / p.max(1),
        "schedule": spec.order.name(),
        "micro_batches": micro_batches,
        "fullest_stage": fullest,
        "bubble_fraction": (p - 1) as f64 / (micro_batches + p - 1) as f64,
        "bubble_formula": "(P-1)/(m+P-1), with equal stages",
        "traffic_formula": "B T d elements forward and as many backward, per micro-batch and boundary",
    });
    all["stages"] = json!(stages);
    all
}

/// The same for people.
pub fn line(v: &Value) -> String {
    format!(
        "{} stages of {} ranks each, {}, {} micro-batches: idle {:.1} % of the time by (P-1)/(m+P-1); stage {} is the fullest",
        v["stages"],
        v["data_parallel_ranks"],
        v["schedule"].as_str().unwrap_or(""),
        v["micro_batches"],
        100.0 * v["bubble_fraction"].as_f64().unwrap_or(0.0),
        v["fullest_stage"],
    )
}
