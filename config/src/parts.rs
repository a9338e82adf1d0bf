//! `model.parts`: which parts of a model with a vision tower are trained, and at what rate.

use crate::settings::{Model, Part, Settings};

/// A key, what is wrong with it, and what to do.
pub(crate) type Fault = (String, &'static str, &'static str);

/// Returns the faults of `model.parts`.
pub(crate) fn faults(s: &Settings) -> Vec<Fault> {
    let mut out = vec![];
    let mut error = |path: &str, what, fix| out.push((path.to_string(), what, fix));
    let Some(Model::Hf(m)) = &s.model else {
        return vec![];
    };
    let Some(parts) = &m.parts else {
        return vec![];
    };
    let all = [&parts.vision, &parts.projector, &parts.language];
    let named = ["vision", "projector", "language"].into_iter().zip(all);
    let still = |p: &Part| !p.train;
    if all.iter().all(|p| p.as_ref().is_some_and(still)) {
        let what = "no part is trained";
        error("model.parts", what, "leave one of them out");
    }
    for (name, part) in named {
        if part.as_ref().is_some_and(|p| !p.train && p.lr_scale != 1.0) {
            let path = format!("model.parts.{name}.lr_scale");
            error(&path, "the part is not trained", "remove it, or train");
        }
    }
    if m.lora.is_some() {
        let what = "adapters are trained beside a model that stays whole";
        error("model.parts", what, "remove it, or model.lora");
    }
    if !s.optimizer.param_groups.is_empty() {
        let what = "optimizer.param_groups says too how parameters are trained";
        let fix = "write groups for the parts: \"vision_tower.*\", \"multi_modal_projector.*\", \"language_model.*\"";
        error("model.parts", what, fix);
    }
    out
}
