//! `model`: a Hugging Face folder, or a family with its dimensions under Hugging Face's names. The families and their keys are those of
//! `crossweave-family`; here they become tables.

use crate::json::{Json, Member};
use crate::schema::*;
use crossweave_family::{self as family, FAMILIES, Family, Fresh, Key, PRESETS};

const RECOMPUTE: Field = word(
    "recompute",
    &["none", "full", "selective"],
    "\"none\"",
    "activations recomputed in the backward pass instead of kept",
)
.free()
.words(&["gradient_checkpointing", "activation_checkpoint"]);

const SAVE_DTYPE: Field = word(
    "save_dtype",
    &["f32", "bf16", "f16"],
    "",
    "type of the weights in DIR/model; absent = f32, or with stage3_gather_16bit_weights_on_model_save the 16-bit type of the run",
)
.free()
.auto();

const INIT: Table = Table {
    doc: "initial weights: normal, biases 0, norm weights 1; each tensor is drawn from run.seed and its own name",
    overlay: None,
    fields: &[
        non_negative(
            "std",
            "0.02",
            "standard deviation of matrices and embeddings",
        ),
        flag(
            "scale_residual",
            "true",
            "divide by sqrt(2 x layers) for the projections that write into the residual stream",
        ),
    ],
};

/// A list without elements.
const NOTHING: Table = Table {
    doc: "no module",
    overlay: None,
    fields: &[],
};

/// Modules by name, or one pattern.
const TARGETS: Forms = Forms {
    doc: "modules that are adapted: a list of names (a module of that name, or whose name ends in .NAME), a regular expression for whole names, or \"all-linear\" (every linear layer but the head); absent = what PEFT chooses for the family, and the projections of queries and values for families it has no choice for; [] = none, beside target_parameters (docs/finetuning.md)",
    forms: &[
        Form {
            name: "pattern",
            kind: Kind::Text { empty: false },
        },
        Form {
            name: "names",
            kind: Kind::Texts,
        },
        Form {
            name: "none",
            kind: Kind::List(&NOTHING),
        },
    ],
    pick: |value| match value {
        Json::Text(_) => Ok(0),
        Json::List(all) if all.is_empty() => Ok(2),
        Json::List(_) => Ok(1),
        other => Err((
            format!("wanted names of modules, got {}", other.describe()),
            "write [\"q_proj\", \"v_proj\"], \"all-linear\" or a regular expression".into(),
        )),
    },
};

const LORA: Table = Table {
    doc: "LoRA: two small matrices beside each chosen linear layer are trained, and the model itself stays as it is (docs/finetuning.md)",
    overlay: None,
    fields: &[
        Field {
            kind: Kind::Int { min: 1, max: 65536 },
            ..int("r", 1, "8", "rank of the update")
        }
        .hf()
        .words(&["lora_r", "lora_rank"]),
        positive(
            "alpha",
            "8",
            "the update is multiplied by alpha / r (PEFT's lora_alpha)",
        )
        .names(&[Name::Also("lora_alpha")])
        .words(&["lora_alpha"])
        .hf(),
        probability(
            "dropout",
            "0.0",
            "dropout of what goes into the update (PEFT's lora_dropout)",
        )
        .names(&[Name::Also("lora_dropout")])
        .words(&["lora_dropout"])
        .hf(),
        flag(
            "rslora",
            "false",
            "the update is multiplied by alpha / sqrt(r) (PEFT's use_rslora)",
        )
        .names(&[Name::Also("use_rslora")])
        .hf(),
        forms("target_modules", &TARGETS, "")
            .hf()
            .words(&["lora_target_modules", "target_modules"]),
        texts(
            "target_parameters",
            "",
            "stacks of experts that are adapted: parameters of these names, or whose names end in .NAME, such as \"experts.down_proj\" (docs/finetuning.md)",
        )
        .example("[\"experts.gate_up_proj\", \"experts.down_proj\"]")
        .words(&["lora_target_parameters"])
        .hf(),
        refused(
            "modules_to_save",
            "modules that are trained whole beside adapters; nothing but adapters is trained",
        )
        .off("null")
        .hf(),
        refused("use_dora", "weight-decomposed adapters").hf(),
        refused(
            "layers_to_transform",
            "write the layers into target_modules as a regular expression",
        )
        .off("null")
        .hf(),
        refused("rank_pattern", "every adapter of a run has one rank")
            .off("{}")
            .hf(),
        refused("alpha_pattern", "every adapter of a run has one alpha")
            .off("{}")
            .hf(),
    ],
};

/// Experts of each layer.
const COUNTS: Forms = Forms {
    doc: "experts of a layer: a number for all, or one for each by commas (\"0,8,0,16\"), where a layer of 0 keeps its MLP",
    forms: &[
        Form {
            name: "number",
            kind: Kind::Int { min: 1, max: 65536 },
        },
        Form {
            name: "list",
            kind: Kind::Text { empty: false },
        },
    ],
    pick: |value| match value {
        Json::Number(_) => Ok(0),
        Json::Text(_) => Ok(1),
        other => Err((
            format!("wanted a number of experts, got {}", other.describe()),
            "write 8, or \"0,8\" for a number in each layer".into(),
        )),
    },
};

const MOE: Table = Table {
    doc: "experts in the place of MLPs: each token goes to some of them (docs/moe.md)",
    overlay: None,
    fields: &[
        forms("experts", &COUNTS, "").example("8").required(),
        int("top_k", 1, "2", "experts of a token"),
        int(
            "width",
            1,
            "",
            "inner width of an expert; absent = that of the MLP",
        )
        .auto(),
        flag(
            "normalize",
            "true",
            "the gates of a token are divided by their sum",
        ),
        flag(
            "residual",
            "false",
            "the MLP of a layer with experts stays beside them, and a softmax of a linear layer weighs both (Rajbhandari et al. 2022, PR-MoE)",
        )
        .words(&["use_residual"]),
        non_negative(
            "aux_loss_coef",
            "0.01",
            "factor of the loss that is least where experts have equally many tokens (Fedus et al. 2022), a sum over layers",
        ),
        word(
            "aux_loss_scope",
            &["sequence", "micro_batch"],
            "\"sequence\"",
            "tokens over which that loss is a mean: those of each sequence, which are the same however a batch is divided, or of a micro-batch",
        ),
        word(
            "aux_loss_tokens",
            &["all", "counted"],
            "\"all\"",
            "tokens in that loss: all, or those whose labels count, so that prompts and padding have no part in it",
        ),
        non_negative(
            "z_loss_coef",
            "0.0",
            "factor of the mean square of the log of the sum of exponentials of a token's scores (Zoph et al. 2022)",
        ),
        positive(
            "capacity_factor",
            "",
            "room of an expert over the choices that it would have if all had as many: it takes max(ceil(capacity_factor x top_k x tokens / experts), min_capacity), and what finds no room is dropped; absent = every token that chooses it",
        )
        .auto()
        .words(&["expert_capacity_factor", "moe_expert_capacity_factor", "train_capacity_factor", "moe_train_capacity_factor"]),
        int("min_capacity", 0, "0", "room that an expert has at least, in tokens")
            .words(&["moe_min_capacity"]),
        word(
            "capacity_scope",
            &["sequence", "micro_batch"],
            "\"sequence\"",
            "tokens that share an expert's room: those of each sequence, so that the same are dropped however a batch is divided, or all of a micro-batch",
        ),
        word(
            "priority",
            &["probs", "position"],
            "\"probs\"",
            "tokens that stay where an expert has no room for all: those of the largest probability, of equal ones the first, or the first",
        )
        .words(&["drop_policy", "token_drop_policy", "moe_token_drop_policy"]),
        flag(
            "renormalize",
            "false",
            "the gates that a token keeps are divided by their sum, as DeepSpeed does, so that they are 1 together whatever was dropped; else those of dropped choices are lost",
        ),
        refused(
            "eval_capacity_factor",
            "validation routes as a training step does, and text is continued without capacities",
        )
        .off("null"),
        refused("drop_tokens", "without capacity_factor no token is dropped").off("true"),
        refused("use_rts", "who stays is decided by priority, and not by lot"),
        refused("noisy_gate_policy", "routers see what the layer sees, without noise").off("null"),
        refused(
            "top2_2nd_expert_sampling",
            "the experts of a token are those of the largest probabilities",
        ),
    ],
};

const NO_LORA: Field = refused(
    "lora",
    "adapters sit on a model that exists; name its folder with {\"hf\": FOLDER}",
)
.off("null")
.own();

const A_PART: Table = Table {
    doc: "how a part of a model with a vision tower is trained",
    overlay: None,
    fields: &[
        flag(
            "train",
            "true",
            "false: it stays as it is, with no gradient and no optimizer state",
        ),
        positive(
            "lr_scale",
            "1.0",
            "its learning rate is the schedule's times this",
        ),
    ],
};

const PARTS: Table = Table {
    doc: "how the parts of a model with a vision tower are trained; a part that is not named is trained as the rest",
    overlay: None,
    fields: &[
        optional_section("vision", &A_PART),
        optional_section("projector", &A_PART),
        optional_section("language", &A_PART),
    ],
};

const HF: Table = Table {
    doc: "a model in Hugging Face layout, weights included",
    overlay: None,
    fields: &[
        text(
            "hf",
            "",
            "folder with config.json and safetensors, or \"org/name\" (\"org/name@revision\") of a model that `hf download` has put into the hub cache",
        ).example("\"models/gpt2\"").words(&["model_name_or_path", "pretrained_model", "model_name"])
        .required(),
        RECOMPUTE,
        SAVE_DTYPE,
        optional_section("lora", &LORA).words(&["peft", "peft_config", "lora_config"]),
        optional_section("parts", &PARTS),
        probability(
            "resid_pdrop",
            "",
            "dropout of residual branches; absent = its config.json",
        )
        .hf()
        .auto(),
        probability(
            "embd_pdrop",
            "",
            "dropout of embeddings; absent = its config.json",
        )
        .hf()
        .auto(),
        probability(
            "attn_pdrop",
            "",
            "dropout of attention weights; absent = its config.json",
        )
        .hf()
        .auto(),
    ],
};

const FAMILY: Field = word("family", NAMES, "", FAMILY_DOC).required();
const FAMILY_DOC: &str = "model_type of Hugging Face: what blocks the model has, and what keys";
const NAMES: &[&str] = &{
    let mut names = [""; FAMILIES.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = FAMILIES[i].name;
        i += 1;
    }
    names
};
const PRESET: Field = word("preset", &PRESET_NAMES, "", family::PRESETS_DOC);
const PRESET_NAMES: [&str; PRESETS.len()] = {
    let mut names = [""; PRESETS.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = PRESETS[i].name;
        i += 1;
    }
    names
};

/// The part of `transformers`' settings that a new model may ask for.
const ROPE_SCALING: Table = Table {
    doc: "scaling of rotary frequencies; absent = none",
    overlay: None,
    fields: &[
        word(
            "rope_type",
            &["default", "linear", "dynamic", "yarn", "llama3"],
            "",
            "the rule",
        )
        .required()
        .hf(),
        positive("factor", "", "how much longer sequences may get").hf(),
        positive(
            "low_freq_factor",
            "",
            "llama3: wavelengths longer than original / this are scaled (Llama 3 uses 1)",
        )
        .hf(),
        positive(
            "high_freq_factor",
            "",
            "llama3: wavelengths shorter than original / this are kept (Llama 3 uses 4)",
        )
        .hf(),
        int(
            "original_max_position_embeddings",
            1,
            "",
            "llama3, yarn: length the model was first trained for; absent = max_position_embeddings",
        )
        .hf(),
        positive("beta_fast", "", "yarn: turns above which frequencies are kept; absent = 32").hf(),
        positive("beta_slow", "", "yarn: turns below which they are divided; absent = 1").hf(),
        positive("attention_factor", "", "yarn: factor of cos and sin; absent = from factor").hf(),
        positive("mscale", "", "yarn: weighs the logarithm of factor in it").hf(),
        positive("mscale_all_dim", "", "yarn: the same of its divisor").hf(),
        flag("truncate", "", "yarn: the ramp begins and ends at whole frequencies; absent = true").hf(),
    ],
};

/// Most keys of a family's table.
const MOST: usize = 48;

/// The keys of one table.
struct Keys {
    fields: [Field; MOST],
    n: usize,
}

const EMPTY: Field = flag("", "", "");
const UNIT: Range = Range {
    min: 0.0,
    max: 1.0,
    min_in: true,
    max_in: false,
};
const PART: Range = Range {
    min: 0.0,
    max: 1.0,
    min_in: false,
    max_in: true,
};
const FROM_ZERO: Range = Range {
    min_in: true,
    ..ABOVE_ZERO
};
const ABOVE_ZERO: Range = Range {
    min: 0.0,
    max: f64::INFINITY,
    min_in: false,
    max_in: false,
};

const fn field(k: &Key) -> Field {
    let text = match k.fresh {
        Fresh::Other(text) => text,
        Fresh::Same | Fresh::Required | Fresh::Unasked => k.default,
        Fresh::Derived(_) => "",
    };
    let default = match k.fresh {
        Fresh::Required => Default::Required,
        _ if text.is_empty() => Default::Absent,
        _ => Default::Json(text),
    };
    let kind = match k.kind {
        family::Kind::Int(most) => Kind::Int { min: 1, max: most },
        family::Kind::Count(most) => Kind::Int { min: 0, max: most },
        family::Kind::Id => Kind::Int {
            min: 0,
            max: family::keys::IDS,
        },
        family::Kind::Positive => Kind::Float(ABOVE_ZERO),
        family::Kind::Factor => Kind::Float(FROM_ZERO),
        family::Kind::Part => Kind::Float(PART),
        family::Kind::Probability => Kind::Float(UNIT),
        family::Kind::Flag => Kind::Bool,
        family::Kind::Activation => Kind::Word(family::keys::ACTIVATION_NAMES),
        family::Kind::FeedForward => Kind::Text { empty: false },
        family::Kind::Scaling => Kind::Section(&ROPE_SCALING),
        // A word needs kinds of layers, which only folders have.
        family::Kind::Pattern => Kind::Int {
            min: 1,
            max: family::keys::IDS,
        },
        // Of folders only.
        family::Kind::Layers
        | family::Kind::Bits
        | family::Kind::Numbers
        | family::Kind::Classes(_)
        | family::Kind::Keys
        | family::Kind::Place
        | family::Kind::Word(_)
        | family::Kind::Only(_) => Kind::Texts,
    };
    Field {
        key: k.name,
        kind,
        auto: match default {
            Default::Absent => Auto::Solved,
            _ => Auto::Default,
        },
        default,
        doc: k.doc,
        source: Source::HuggingFace,
        ..EMPTY
    }
}

const fn keys(family: &Family) -> Keys {
    let mut all = Keys {
        fields: [EMPTY; MOST],
        n: 3,
    };
    (all.fields[0], all.fields[1], all.fields[2]) = (FAMILY, PRESET, NO_LORA);
    let (mut g, mut i) = (0, 0);
    while g < family.keys.len() {
        let group = family.keys[g];
        if i == group.len() {
            (g, i) = (g + 1, 0);
            continue;
        }
        if !matches!(group[i].fresh, Fresh::Unasked) {
            all.fields[all.n] = field(&group[i]);
            all.n += 1;
        }
        i += 1;
    }
    let last = [
        section("init", &INIT),
        RECOMPUTE,
        SAVE_DTYPE,
        optional_section("moe", &MOE),
    ];
    let [init, recompute, save_dtype, moe] = last;
    (
        all.fields[all.n],
        all.fields[all.n + 1],
        all.fields[all.n + 2],
        all.fields[all.n + 3],
    ) = (init, recompute, save_dtype, moe);
    all.n += 4;
    all
}

const KEYS: &[Keys; FAMILIES.len()] = &{
    let mut all = [const {
        Keys {
            fields: [EMPTY; MOST],
            n: 0,
        }
    }; FAMILIES.len()];
    let mut i = 0;
    while i < FAMILIES.len() {
        all[i] = keys(FAMILIES[i]);
        i += 1;
    }
    all
};

const TABLES: &[Table; FAMILIES.len()] = &{
    const NONE: Table = Table {
        doc: "",
        overlay: Some(preset),
        fields: &[],
    };
    let mut all = [NONE; FAMILIES.len()];
    let mut i = 0;
    while i < FAMILIES.len() {
        all[i].fields = KEYS[i].fields.split_at(KEYS[i].n).0;
        all[i].doc = FAMILIES[i].doc;
        i += 1;
    }
    all
};

const FORMS: &[Form; FAMILIES.len() + 1] = &{
    const FOLDER: Form = Form {
        name: "Hugging Face folder",
        kind: Kind::Section(&HF),
    };
    let mut all = [FOLDER; FAMILIES.len() + 1];
    let mut i = 0;
    while i < FAMILIES.len() {
        all[i + 1] = Form {
            name: FAMILIES[i].name,
            kind: Kind::Section(&TABLES[i]),
        };
        i += 1;
    }
    all
};

/// `model`.
pub const MODEL: Forms = Forms {
    doc: "the model: {\"hf\": FOLDER} or {\"family\": NAME, ...}",
    forms: FORMS,
    pick,
};

fn member<'a>(members: &'a [Member], key: &str) -> Option<&'a Json> {
    members.iter().find(|m| m.key == key).map(|m| &m.node.value)
}

fn pick(value: &Json) -> Result<usize, (String, String)> {
    let how = "write {\"hf\": FOLDER} or {\"family\": \"gpt2\", \"preset\": \"tiny\"}";
    let Json::Object(members) = value else {
        return Err((
            format!("wanted an object, got {}", value.describe()),
            how.into(),
        ));
    };
    let names = NAMES.join(", ");
    match (member(members, "hf"), member(members, "family")) {
        (Some(_), Some(_)) => Err((
            "both hf and family are given".into(),
            "keep hf to load a folder, or family to start a new model".into(),
        )),
        (Some(_), None) => Ok(0),
        (None, Some(Json::Text(name))) => {
            let at = NAMES.iter().position(|n| n.eq_ignore_ascii_case(name));
            at.map(|i| i + 1).ok_or_else(|| {
                let near = crate::suggest::nearest(name, NAMES.iter().copied());
                (
                    format!("model.family wanted one of {names}, got {name:?}"),
                    match near {
                        Some(near) => format!("did you mean {near:?}?"),
                        None => "write one of them".into(),
                    },
                )
            })
        }
        (None, Some(other)) => Err((
            format!(
                "model.family wanted one of {names}, got {}",
                other.describe()
            ),
            how.into(),
        )),
        (None, None) => {
            let keys = members.iter().map(|m| m.key.as_str());
            let near = keys
                .filter_map(|k| crate::suggest::nearest(k, ["hf", "family"]).map(|n| (k, n)))
                .next();
            Err((
                match near {
                    Some((key, name)) => format!(
                        "neither hf nor family is given; unknown key {key:?}, did you mean {name:?}?"
                    ),
                    None => "neither hf nor family is given".into(),
                },
                how.into(),
            ))
        }
    }
}

/// Values of the preset that is given, for the family that is.
fn preset(members: &[Member]) -> Option<(String, Vec<(&'static str, String)>)> {
    let text = |key: &str| match member(members, key) {
        Some(Json::Text(text)) => Some(text.to_ascii_lowercase()),
        _ => None,
    };
    let (preset, family) = (text("preset")?, family::family(&text("family")?)?);
    let mut dims = *PRESETS.iter().find(|p| p.name == preset)?;
    if let Some(Json::Number(n)) = member(members, family.roles.heads) {
        dims.heads = n.parse().unwrap_or(dims.heads);
    }
    Some((format!("preset {preset}"), family.preset(&dims)))
}
