//! `distill`: a student learns from a teacher, which stays as it is.

use crate::resolve::Resolver;
use crate::schema::*;
use crate::settings::{Model, Settings};
use serde::{Deserialize, Serialize};

/// `distill`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distill {
    /// Folder of the teacher.
    pub teacher: String,
    /// Weight of the teacher's part of the loss.
    pub alpha: f64,
    /// What both logits are divided by.
    pub temperature: f64,
    /// Steps in which the teacher is heard; `None` = all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_step: Option<u64>,
}

/// The table of `distill`.
pub(crate) const DISTILL: Table = Table {
    doc: "knowledge distillation: the loss is (1 - alpha) CE + alpha temperature^2 KL(softmax(t / temperature) || softmax(s / temperature)) of the teacher's logits t and the student's s (docs/finetuning.md)",
    overlay: None,
    fields: &[
        text(
            "teacher",
            "",
            "folder of the teacher in Hugging Face layout, or \"org/name\" of a model that `hf download` has put into the hub cache; its vocabulary must be the student's",
        )
        .required(),
        Field {
            kind: Kind::Float(Range {
                min: 0.0,
                max: 1.0,
                min_in: false,
                max_in: true,
            }),
            ..positive("alpha", "0.5", "weight of the teacher's part of the loss")
        },
        positive(
            "temperature",
            "1.0",
            "what both logits are divided by before they are compared",
        ),
        int(
            "stop_step",
            1,
            "",
            "the teacher is heard in so many steps from the first, and the loss is CE alone behind them; absent = in all",
        )
        .auto(),
    ],
};

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
