//! The keys of `distill`.

use crate::schema::*;

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
