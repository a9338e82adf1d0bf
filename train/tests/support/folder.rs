//! What the folder of a run holds, as values: its records, its ledger and its model.

use serde_json::Value;
use std::path::Path;

/// The records of steps and validations, in the order in which they were written.
pub fn records(run: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).expect("metrics");
    text.lines()
        .map(|l| serde_json::from_str(l).expect("an object"))
        .collect()
}

/// Step, loss, learning rate, gradient norm, validation loss.
pub type Figures = (u64, Option<f64>, Option<f64>, Option<f64>, Option<f64>);

/// Everything in the records that is no clock, by record.
pub fn figures(run: &Path) -> Vec<Figures> {
    records(run)
        .iter()
        .map(|r| {
            let f = |k: &str| r[k].as_f64();
            let step = r["step"].as_u64().expect("a step");
            (step, f("loss"), f("lr"), f("grad_norm"), f("val_loss"))
        })
        .collect()
}

/// The loss of each step.
pub fn losses(run: &Path) -> Vec<f64> {
    records(run)
        .iter()
        .filter_map(|r| r["loss"].as_f64())
        .collect()
}

/// Bytes of the exported model's weights.
pub fn model_bytes(run: &Path) -> Vec<u8> {
    std::fs::read(run.join("model/model.safetensors")).expect("a model")
}

/// Asserts that two runs are the same in every bit: records but for clocks, and the model.
pub fn same(a: &Path, b: &Path) {
    assert_eq!(figures(a), figures(b));
    assert!(model_bytes(a) == model_bytes(b), "the models differ");
}

/// A JSON file.
pub fn open_json(path: &Path) -> Value {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&bytes).expect("JSON")
}

/// The ledgers of all ranks, with what is the job's.
pub fn ledger(run: &Path) -> Value {
    open_json(&run.join("ledger.json"))
}

/// Copies a folder with all that is in it.
pub fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for e in std::fs::read_dir(from).unwrap().flatten() {
        let to = to.join(e.file_name());
        match e.file_type().unwrap().is_dir() {
            true => copy_dir(&e.path(), &to),
            false => drop(std::fs::copy(e.path(), to).unwrap()),
        }
    }
}
