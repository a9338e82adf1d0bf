//! `optimizer` and `scheduler`: the parameter tables of each type.

use crate::schema::*;

const ADAM: Table = Table {
    doc: "parameters of Adam",
    overlay: None,
    fields: &[
        non_negative(
            "lr",
            "0.001",
            "learning rate; the maximum when a scheduler is given",
        )
        .deepspeed(),
        pair(
            "betas",
            "[0.9, 0.999]",
            "decay of the first and second moment",
        )
        .deepspeed(),
        positive("eps", "1e-8", "added to the root of the second moment").deepspeed(),
        non_negative(
            "weight_decay",
            "0.0",
            "weight decay (torch's AdamW default is 0.01, DeepSpeed's 0)",
        )
        .deepspeed(),
        word(
            "decay_on",
            &["all", "matrices"],
            "\"all\"",
            "what decays: every parameter as in DeepSpeed and torch, or only those with two or more dims",
        ),
        flag(
            "adam_w_mode",
            "true",
            "decoupled decay (AdamW); false adds the decay to the gradient (L2)",
        )
        .deepspeed(),
        flag(
            "bias_correction",
            "true",
            "divide the moments by 1 - beta^step",
        )
        .deepspeed(),
        ignored(
            "torch_adam",
            "there is one Adam; its mathematics is torch's",
        ),
        ignored("fused", "the update is always one fused kernel"),
        refused("amsgrad", "AMSGrad is not available"),
    ],
};

/// `optimizer`.
pub const OPTIMIZER: Typed = Typed {
    doc: "the optimizer; as in DeepSpeed \"Adam\" is AdamW unless adam_w_mode is false",
    cases: &[("AdamW", &ADAM), ("Adam", &ADAM)],
    missing: &[
        "Lion",
        "Lamb",
        "SGD",
        "Muon",
        "Adagrad",
        "Adafactor",
        "OneBitAdam",
        "ZeroOneAdam",
        "OneBitLamb",
        "MuAdam",
        "MuAdamW",
        "MuSGD",
    ],
};

const WARMUP_TYPE: Field = word(
    "warmup_type",
    &["log", "linear"],
    "\"log\"",
    "shape of the warm-up",
)
.deepspeed();
const WARMUP_MIN: Field = non_negative("warmup_min_lr", "0.0", "rate before warm-up").deepspeed();
const WARMUP_MAX: Field = non_negative(
    "warmup_max_lr",
    "0.001",
    "rate after warm-up; \"auto\" = optimizer.params.lr",
)
.deepspeed()
.auto();
const WARMUP_STEPS: Field = int("warmup_num_steps", 0, "1000", "steps of warm-up").deepspeed();
const TOTAL_STEPS: Field = int(
    "total_num_steps",
    1,
    "",
    "step at which the decay ends; \"auto\" or absent = run.steps",
)
.deepspeed()
.auto();

const WARMUP_LR: Table = Table {
    doc: "parameters of WarmupLR",
    overlay: None,
    fields: &[WARMUP_MIN, WARMUP_MAX, WARMUP_STEPS, WARMUP_TYPE],
};
const WARMUP_DECAY: Table = Table {
    doc: "parameters of WarmupDecayLR",
    overlay: None,
    fields: &[
        TOTAL_STEPS,
        WARMUP_MIN,
        WARMUP_MAX,
        WARMUP_STEPS,
        WARMUP_TYPE,
    ],
};
const WARMUP_COSINE: Table = Table {
    doc: "parameters of WarmupCosineLR: ratios of optimizer.params.lr",
    overlay: None,
    fields: &[
        TOTAL_STEPS,
        fraction("warmup_min_ratio", "0.0", "ratio before warm-up").deepspeed(),
        WARMUP_STEPS,
        fraction("cos_min_ratio", "0.0001", "ratio at the end").deepspeed(),
        WARMUP_TYPE,
    ],
};

const MAX_LR: Field = non_negative(
    "max_lr",
    "",
    "rate after warm-up; absent = optimizer.params.lr",
)
.megatron()
.auto();
const INIT_LR: Field = non_negative("init_lr", "0.0", "rate of the first update").megatron();
const MIN_LR: Field = non_negative("min_lr", "0.0", "rate at total_steps and after").megatron();
const WARM: Field = int("warmup_steps", 0, "0", "steps of linear warm-up").megatron();
const TOTAL: Field = int(
    "total_steps",
    1,
    "",
    "step at which min_lr is reached; \"auto\" or absent = run.steps",
)
.megatron()
.auto();

const CONSTANT: Table = Table {
    doc: "parameters of a constant rate after warm-up",
    overlay: None,
    fields: &[MAX_LR, INIT_LR, WARM],
};
const DECAY: Table = Table {
    doc: "parameters of warm-up and decay, as Megatron's",
    overlay: None,
    fields: &[MAX_LR, INIT_LR, MIN_LR, WARM, TOTAL],
};
const WSD: Table = Table {
    doc: "parameters of warm-up, stable, decay",
    overlay: None,
    fields: &[
        MAX_LR,
        INIT_LR,
        MIN_LR,
        WARM,
        TOTAL,
        int(
            "decay_steps",
            1,
            "",
            "last steps, during which the rate falls; absent = a tenth of total_steps",
        )
        .megatron()
        .auto(),
        word(
            "decay_style",
            &["linear", "cosine", "exponential", "minus_sqrt"],
            "\"exponential\"",
            "shape of the fall",
        )
        .megatron(),
    ],
};

/// `scheduler`.
pub const SCHEDULER: Typed = Typed {
    doc: "learning-rate schedule; absent = optimizer.params.lr throughout",
    cases: &[
        ("WarmupLR", &WARMUP_LR),
        ("WarmupDecayLR", &WARMUP_DECAY),
        ("WarmupCosineLR", &WARMUP_COSINE),
        ("constant", &CONSTANT),
        ("linear", &DECAY),
        ("cosine", &DECAY),
        ("inverse_sqrt", &DECAY),
        ("WSD", &WSD),
    ],
    missing: &["OneCycle", "LRRangeTest"],
};
