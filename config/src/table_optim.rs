//! `optimizer` and `scheduler`: the parameter tables of each type.

use crate::json::{Json, Member};
use crate::schema::*;

const LR: Field = non_negative(
    "lr",
    "0.001",
    "learning rate; the maximum when a scheduler is given",
)
.deepspeed()
.trainer("5e-5")
.words(&["learning_rate", "lr"]);
const BETAS: Field = pair(
    "betas",
    "[0.9, 0.999]",
    "decay of the first and second moment",
)
.deepspeed()
.trainer("[0.9, 0.999]")
.words(&["adam_beta1", "adam_beta2", "beta1", "beta2"]);
const EPS: Field = positive("eps", "1e-8", "added to the root of the second moment")
    .deepspeed()
    .trainer("1e-8")
    .words(&["adam_epsilon"]);
const DECAY_RATE: Field = non_negative(
    "weight_decay",
    "0.0",
    "weight decay (torch's AdamW default is 0.01, DeepSpeed's 0)",
)
.deepspeed()
.trainer("0.0")
.words(&["weight_decay"]);
const DECAY_ON: Field = word(
    "decay_on",
    &["all", "matrices"],
    "\"all\"",
    "what decays: every parameter as in DeepSpeed and torch, or only those with two or more dims",
);
const ADAM_W_MODE: Field = flag(
    "adam_w_mode",
    "true",
    "decoupled decay (AdamW); false adds the decay to the gradient (L2); AdamW is always decoupled",
)
.deepspeed();
const BIAS_CORRECTION: Field = flag(
    "bias_correction",
    "true",
    "divide the moments by 1 - beta^step",
)
.deepspeed();

const SET_GRAD_NONE: Field = ignored(
    "set_grad_none",
    "gradients are written anew by every backward",
)
.off("true");
const FP32_STATES: Field =
    refused("fp32_optimizer_states", "optimizer states are float32").off("true");
const FOREACH: Field = ignored("foreach", "the update is always one fused kernel").off("null");
const MAXIMIZE: Field = refused("maximize", "a loss is minimised");
const DIFFERENTIABLE: Field = ignored(
    "differentiable",
    "nothing is differentiated through an update",
);

/// A table with the keys a run's optimizer has, and one with those an optimizer of a parameter group has: no rate of its own, which is
/// the schedule's times `lr_scale`, and no decay, which is the group's.
macro_rules! optimizer {
    ($name:ident, $of_group:ident, $doc:literal, [$($field:expr),* $(,)?], lr: $lr:expr, run: [$($run:expr),* $(,)?], overlay: $overlay:expr) => {
        const $name: Table = Table {
            doc: $doc,
            overlay: $overlay,
            fields: &[$lr, DECAY_RATE, DECAY_ON, $($field,)* $($run,)*],
        };
        const $of_group: Table = Table { doc: $doc, overlay: None, fields: &[$($field,)*] };
    };
}

optimizer!(ADAM, ADAM_GROUP, "parameters of Adam", [BETAS, EPS, ADAM_W_MODE, BIAS_CORRECTION], lr: LR, run: [
    flag("torch_adam", "", "torch's AdamW: weight_decay is 0.01 where it is not given; the update is the same").deepspeed(),
    ignored("fused", "the update is always one fused kernel"),
    FOREACH,
    SET_GRAD_NONE,
    FP32_STATES,
    MAXIMIZE,
    ignored("capturable", "run.graphs says whether steps are replayed as graphs of the device"),
    DIFFERENTIABLE,
    refused("amsgrad", "AMSGrad is not available"),
], overlay: Some(torch_adam));
/// As [`ADAM`], decoupled whatever `adam_w_mode` says.
const ADAM_W: Table = Table {
    overlay: Some(torch_adam_w),
    ..ADAM
};
optimizer!(LION, LION_GROUP, "parameters of Lion", [
    pair("betas", "[0.9, 0.999]", "weight of the momentum in the update, and its decay").deepspeed().trainer("[0.9, 0.999]"),
], lr: LR, run: [SET_GRAD_NONE, FP32_STATES], overlay: None);
optimizer!(LAMB, LAMB_GROUP, "parameters of LAMB", [
    BETAS,
    EPS,
    BIAS_CORRECTION,
    positive("max_coeff", "10.0", "largest ratio of a parameter's norm to its update's").deepspeed(),
    non_negative("min_coeff", "0.01", "smallest ratio").deepspeed(),
], lr: LR, run: [
    refused("max_grad_norm", "gradients are clipped by gradient_clipping").off("0.0"),
    refused("eps_inside_sqrt", "eps is added to the root"),
    refused("amsgrad", "AMSGrad is not available"),
], overlay: None);
optimizer!(SGD, SGD_GROUP, "parameters of SGD", [
    probability("momentum", "0.0", "decay of the momentum; 0 keeps none").deepspeed(),
    fraction("dampening", "0.0", "part of the gradient left out of the momentum").deepspeed(),
    flag("nesterov", "false", "look ahead: gradient + momentum times the buffer").deepspeed(),
], lr: LR, run: [
    MAXIMIZE,
    FOREACH,
    DIFFERENTIABLE,
    ignored("fused", "the update is always one fused kernel"),
], overlay: None);
optimizer!(ADAFACTOR, ADAFACTOR_GROUP, "parameters of Adafactor, as transformers'", [
    pair("eps", "[1e-30, 0.001]", "added to the squared gradient, and the least parameter scale").hf(),
    positive("clip_threshold", "1.0", "largest root mean square of an update").hf(),
    negative("decay_rate", "-0.8", "beta2 = 1 - step^decay_rate").hf(),
    probability("beta1", "", "decay of a first moment; absent = none is kept").hf(),
    flag("scale_parameter", "true", "steps in proportion to the parameter's root mean square").hf(),
    flag("relative_step", "true", "the rate is min(1e-2, 1/sqrt(step)); then lr and scheduler are not given").hf(),
    flag("warmup_init", "false", "with relative_step: 1e-6 * step instead of 1e-2").hf(),
], lr: non_negative("lr", "", "learning rate, with relative_step false").hf(), run: [], overlay: None);
optimizer!(MUON, MUON_GROUP, "parameters of Muon", [
    probability("momentum", "0.95", "decay of the momentum").deepspeed(),
    flag("nesterov", "true", "look ahead before orthogonalising").deepspeed(),
    Field {
        kind: Kind::Int { min: 1, max: u32::MAX as u64 },
        ..int("ns_steps", 1, "5", "Newton-Schulz iterations").deepspeed()
    },
    word(
        "scale_mode",
        &["shape_scaling", "spectral", "unit_rms_norm"],
        "\"shape_scaling\"",
        "scale of a matrix's update: sqrt(max(1, rows/cols)), sqrt(max(rows, cols)), sqrt(rows/cols)",
    )
    .megatron(),
    positive("extra_scale_factor", "1.0", "further factor; 0.2 with spectral gives updates of AdamW's size").megatron(),
], lr: non_negative("lr", "0.02", "learning rate; the maximum when a scheduler is given").deepspeed().trainer("5e-5"), run: [
    positive("muon_lr", "", "rate of the matrices; absent = lr").deepspeed(),
    positive("adam_lr", "", "rate of vectors, embeddings and the head, which AdamW updates; absent = lr, or 0.0003 where that is not given either").deepspeed(),
    pair("betas", "[0.9, 0.95]", "AdamW's decay of the first and second moment").deepspeed().trainer("[0.9, 0.999]"),
    positive("eps", "1e-10", "added to the root of AdamW's second moment").deepspeed().trainer("1e-8"),
    flag("adam_w_mode", "true", "AdamW's decay is decoupled; false adds it to the gradient (L2)").deepspeed(),
    BIAS_CORRECTION,
    ignored("ns_method", "both methods of DeepSpeed iterate the same polynomial, and differ in the order of products alone").off("\"gram\""),
    ignored("torch_adam", "there is one Adam; its mathematics is torch's"),
    FP32_STATES,
], overlay: Some(muon));

/// Returns true if the key is given as this switch.
fn switched(members: &[Member], key: &str, on: bool) -> bool {
    let mut all = members.iter();
    all.any(|m| m.key == key && m.node.value == Json::Bool(on))
}

/// The defaults that an overlay lays under the keys that are not given.
type Laid = Option<(String, Vec<(&'static str, String)>)>;

/// torch's AdamW, which DeepSpeed takes for `torch_adam`, has a decay of its own.
fn torch_adam_w(members: &[Member]) -> Laid {
    let on = switched(members, "torch_adam", true);
    on.then(|| ("torch_adam".into(), vec![("weight_decay", "0.01".into())]))
}

/// Without decoupling it is torch's Adam, which has none.
fn torch_adam(members: &[Member]) -> Laid {
    torch_adam_w(members).filter(|_| !switched(members, "adam_w_mode", false))
}

/// The rate of DeepSpeed's auxiliary Adam where no rate is given at all.
fn muon(members: &[Member]) -> Laid {
    let given = members
        .iter()
        .any(|m| ["lr", "adam_lr"].contains(&m.key.as_str()));
    (!given).then(|| ("Muon".into(), vec![("adam_lr", "0.0003".into())]))
}

const GROUP_OPTIMIZER: Typed = Typed {
    doc: "another optimizer for these parameters; its rate is the schedule's times lr_scale",
    cases: &[
        ("AdamW", &ADAM_GROUP),
        ("Adam", &ADAM_GROUP),
        ("AdamW8bit", &ADAM_GROUP),
        ("Lion", &LION_GROUP),
        ("Lamb", &LAMB_GROUP),
        ("SGD", &SGD_GROUP),
        ("Adafactor", &ADAFACTOR_GROUP),
        ("Muon", &MUON_GROUP),
    ],
    extra: &[],
    missing: MISSING,
    words: &[],
    resume_params: None,
};

const PARAM_GROUP: Table = Table {
    doc: "parameters by name that are updated otherwise; the first group that matches wins",
    overlay: None,
    fields: &[
        texts(
            "match",
            "",
            "patterns of parameter names: * stands for any characters, ? for one; each must match something",
        )
        .required(),
        non_negative("lr_scale", "1.0", "times the schedule's rate"),
        non_negative("weight_decay", "", "weight decay; absent = optimizer.params.weight_decay"),
        flag("frozen", "false", "never updated: no gradient, no state"),
        typed("optimizer", &GROUP_OPTIMIZER, ""),
    ],
};

const MISSING: &[&str] = &[
    "Adagrad",
    "OneBitAdam",
    "ZeroOneAdam",
    "OneBitLamb",
    "MuAdam",
    "MuAdamW",
    "MuSGD",
];

/// `optimizer`.
pub const OPTIMIZER: Typed = Typed {
    doc: "the optimizer; as in DeepSpeed \"Adam\" is AdamW unless adam_w_mode is false",
    cases: &[
        ("AdamW", &ADAM_W),
        ("Adam", &ADAM),
        ("FusedAdam", &ADAM),
        ("DeepSpeedCPUAdam", &ADAM),
        ("AdamW8bit", &ADAM),
        ("Adam8bit", &ADAM),
        ("Lion", &LION),
        ("FusedLion", &LION),
        ("DeepSpeedCPULion", &LION),
        ("Lamb", &LAMB),
        ("FusedLamb", &LAMB),
        ("SGD", &SGD),
        ("Adafactor", &ADAFACTOR),
        ("Muon", &MUON),
    ],
    extra: &[
        list("param_groups", &PARAM_GROUP),
        ignored("legacy_fusion", "the update is always one fused kernel"),
    ],
    missing: MISSING,
    words: &[
        "optim",
        "optimizer_name",
        "optimizer_type",
        "optimizer.name",
    ],
    resume_params: None,
};

const WARMUP_TYPE: Field = word(
    "warmup_type",
    &["log", "linear"],
    "\"log\"",
    "shape of the warm-up",
)
.deepspeed();
const WARMUP_MIN: Field = non_negative("warmup_min_lr", "0.0", "rate before warm-up")
    .deepspeed()
    .trainer("0.0");
const WARMUP_MAX: Field = non_negative(
    "warmup_max_lr",
    "",
    "rate after warm-up; \"auto\" or absent = optimizer.params.lr",
)
.deepspeed()
.auto();
const DECAY_MAX: Field = non_negative(
    "warmup_max_lr",
    "0.001",
    "rate after warm-up; \"auto\" = optimizer.params.lr",
)
.deepspeed()
.auto();
const WARMUP_STEPS: Field = int("warmup_num_steps", 0, "1000", "steps of warm-up")
    .deepspeed()
    .trainer("0")
    .words(&[
        "warmup_ratio",
        "warmup_iters",
        "lr_warmup_iters",
        "warmup_steps",
        "scheduler.warmup",
    ]);
const TOTAL_STEPS: Field = int(
    "total_num_steps",
    1,
    "",
    "step at which the decay ends; \"auto\" or absent = run.steps",
)
.deepspeed()
.auto();

const LAST_BATCH: Field = ignored(
    "last_batch_iteration",
    "where a schedule goes on is the checkpoint's step",
)
.off("-1");

const WARMUP_LR: Table = Table {
    doc: "parameters of WarmupLR",
    overlay: None,
    fields: &[
        WARMUP_MIN,
        WARMUP_MAX,
        WARMUP_STEPS,
        WARMUP_TYPE,
        LAST_BATCH,
    ],
};
const WARMUP_DECAY: Table = Table {
    doc: "parameters of WarmupDecayLR",
    overlay: None,
    fields: &[
        TOTAL_STEPS,
        WARMUP_MIN,
        DECAY_MAX,
        WARMUP_STEPS,
        WARMUP_TYPE,
        LAST_BATCH,
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
        LAST_BATCH,
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
const MIN_LR: Field = non_negative("min_lr", "0.0", "rate at total_steps and after")
    .megatron()
    .words(&["min_lr"]);
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

const ONE_CYCLE: Table = Table {
    doc: "parameters of OneCycle: up, down, then decay; the momentum moves the other way",
    overlay: None,
    fields: &[
        non_negative("cycle_min_lr", "", "rate at both ends of the cycle")
            .deepspeed()
            .required(),
        non_negative("cycle_max_lr", "", "rate at its top")
            .deepspeed()
            .required(),
        non_negative(
            "decay_lr_rate",
            "0.0",
            "fall of the rate per decay_step_size",
        )
        .deepspeed(),
        int("cycle_first_step_size", 1, "2000", "steps up").deepspeed(),
        int(
            "cycle_second_step_size",
            1,
            "",
            "steps down; absent = as up",
        )
        .deepspeed(),
        int("cycle_first_stair_count", 0, "0", "stairs up; 0 = none").deepspeed(),
        int(
            "cycle_second_stair_count",
            0,
            "",
            "stairs down; absent = as up",
        )
        .deepspeed(),
        int("decay_step_size", 0, "0", "steps of one decay; 0 = none").deepspeed(),
        flag(
            "cycle_momentum",
            "true",
            "move beta1 against the rate; beta2 is 0.99 then",
        )
        .deepspeed(),
        probability("cycle_min_mom", "0.8", "beta1 at the top").deepspeed(),
        probability("cycle_max_mom", "0.9", "beta1 at both ends").deepspeed(),
        non_negative("decay_mom_rate", "0.0", "rise of beta1 per decay_step_size").deepspeed(),
        LAST_BATCH,
    ],
};
const RANGE_TEST: Table = Table {
    doc: "parameters of LRRangeTest: the rate rises without end, to find where training breaks",
    overlay: None,
    fields: &[
        positive("lr_range_test_min_lr", "0.001", "first rate").deepspeed(),
        int("lr_range_test_step_size", 1, "2000", "steps of one rise").deepspeed(),
        non_negative(
            "lr_range_test_step_rate",
            "1.0",
            "rise in multiples of the first rate",
        )
        .deepspeed(),
        flag(
            "lr_range_test_staircase",
            "false",
            "rise at once instead of evenly",
        )
        .deepspeed(),
        LAST_BATCH,
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
        ("OneCycle", &ONE_CYCLE),
        ("LRRangeTest", &RANGE_TEST),
    ],
    extra: &[],
    missing: &[],
    words: &[
        "lr_scheduler_type",
        "lr_decay_style",
        "scheduler_type",
        "scheduler.name",
    ],
    // What they make, the rates, is compared itself: many schedules take their length from run.steps.
    resume_params: Some(Resume::Free),
};
