//! Models with experts that the estimator knows by name: their parameters, and how many fewer than the standard one. What ranks hold of experts is
//! not estimated, since none are trained here.

use crate::counts::show_count;
use crossweave_zero::estimate::PUBLISHED;
use serde_json::{Value, json};

/// The counts of a model of that name.
pub fn figures(name: &str) -> Option<Value> {
    let of = |name: &str| PUBLISHED.iter().find(|p| p.0.eq_ignore_ascii_case(name));
    let (name, model, published, standard) = of(name)?;
    let whole = of(standard)?.1.params() as f64;
    Some(json!({
        "model": {"name": name, "params": model.params(), "published": published, "layers": model.shape.layers, "hidden": model.shape.hidden},
        "dense": model.dense(),
        "experts": {"layers": model.experts, "params": model.sparse(), "residual": model.residual},
        "standard": {"name": standard, "params": whole, "times": whole / model.params() as f64},
    }))
}

/// The same for people.
pub fn text(v: &Value) -> String {
    let count = |v: &Value| show_count(v.as_f64().unwrap_or(0.0));
    let kind = match v["experts"]["residual"].as_bool() {
        Some(true) => "beside their MLP",
        _ => "in place of their MLP",
    };
    format!(
        "{}: {} parameters in {} layers x {} ({} published)\n  dense {}, experts {}: layers with {} of them, {kind}\n  {:.2} times fewer than {} ({})\nExperts are counted only: none are trained here.",
        v["model"]["name"].as_str().unwrap_or(""),
        v["model"]["params"],
        v["model"]["layers"],
        v["model"]["hidden"],
        count(&v["model"]["published"]),
        count(&v["dense"]),
        count(&v["experts"]["params"]),
        v["experts"]["layers"],
        v["standard"]["times"].as_f64().unwrap_or(0.0),
        v["standard"]["name"].as_str().unwrap_or(""),
        count(&v["standard"]["params"]),
    )
}
