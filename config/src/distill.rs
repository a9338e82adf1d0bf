//! `distill`: a student learns from a teacher, which stays as it is.

use crate::resolve::Resolver;
use crate::settings::{Model, Settings};

impl Resolver<'_> {
    pub(crate) fn distill(&mut self, s: &Settings) {
        let Some(d) = &s.distill else {
            return;
        };
        if let Some(Model::Hf(m)) = &s.model
            && m.lora.is_some()
        {
            let what =
                "adapters are trained beside a model that stays, and a student is trained whole";
            self.error("distill", what, "remove it, or model.lora");
        }
        if let (Some(stop), Some(steps)) = (d.stop_step, s.run.steps)
            && stop >= steps
        {
            let what = format!("has no effect: the run ends after {steps} steps");
            self.warn("distill.stop_step", what, "remove it, or lower it");
        }
    }
}
