//! DeepSpeed's other spellings become the keys of the tables before these are consulted: field names of
//! its ZeRO section beside their aliases, and keys it deprecated; so do PEFT's names in `model.lora`.
//!
//! Source of the names: `deepspeed/runtime/zero/config.py` and `runtime/config.py` of DeepSpeed 0.19.

use crate::error::{At, Problem};
use crate::json::{Json, Member, Node};

/// A key, the name that the tables give it, and whether DeepSpeed calls it deprecated.
struct Name(&'static str, &'static str, bool);

const ROOT: &[Name] = &[Name("bfloat16", "bf16", true)];

const ZERO: &[Name] = &[
    Name("prefetch_bucket_size", "stage3_prefetch_bucket_size", false),
    Name(
        "param_persistence_threshold",
        "stage3_param_persistence_threshold",
        false,
    ),
    Name(
        "model_persistence_threshold",
        "stage3_model_persistence_threshold",
        false,
    ),
    Name("max_live_parameters", "stage3_max_live_parameters", false),
    Name("max_reuse_distance", "stage3_max_reuse_distance", false),
    Name(
        "gather_16bit_weights_on_model_save",
        "stage3_gather_16bit_weights_on_model_save",
        false,
    ),
    Name(
        "module_granularity_threshold",
        "stage3_module_granularity_threshold",
        false,
    ),
    Name(
        "use_all_reduce_for_fetch_params",
        "stage3_use_all_reduce_for_fetch_params",
        false,
    ),
    Name(
        "stage3_gather_fp16_weights_on_model_save",
        "stage3_gather_16bit_weights_on_model_save",
        true,
    ),
    Name(
        "gather_fp16_weights_on_model_save",
        "stage3_gather_16bit_weights_on_model_save",
        true,
    ),
    Name("allgather_sequential", "stage3_allgather_sequential", false),
    Name("allgather_size", "allgather_bucket_size", true),
    Name("cpu_offload_param", "cpu_offload_params", true),
];

const TENSOR_PARALLEL: &[Name] = &[
    Name("tensor_parallel", "tp", false),
    Name("replace_with_kernel_inject", "kernel_inject", false),
];

/// PEFT's `LoraConfig`.
const LORA: &[Name] = &[
    Name("lora_alpha", "alpha", false),
    Name("lora_dropout", "dropout", false),
    Name("use_rslora", "rslora", false),
];

/// What was renamed, and what cannot be.
#[derive(Default)]
pub struct Translated {
    pub warnings: Vec<Problem>,
    pub errors: Vec<Problem>,
}

/// Renames in place.
pub fn translate(file: &str, root: &mut Node) -> Translated {
    let mut out = Translator {
        file,
        said: Translated::default(),
    };
    let Json::Object(members) = &mut root.value else {
        return out.said;
    };
    out.rename(members, "", ROOT);
    if let Some(Json::Object(model)) = inside(members, "model")
        && let Some(Json::Object(lora)) = inside(model, "lora")
    {
        out.rename(lora, "model.lora", LORA);
    }
    if let Some(Json::Object(section)) = inside(members, "tensor_parallel") {
        out.rename(section, "tensor_parallel", TENSOR_PARALLEL);
        let size = section.iter().position(|m| m.key == "autotp_size");
        if let Some(size) = size.map(|i| section.remove(i)) {
            out.tensor_ranks(members, size);
        }
    }
    if let Some(zero) = members.iter_mut().find(|m| m.key == "zero_optimization") {
        // Before there were stages the section was a switch of what is stage 1 now.
        if let Json::Bool(on) = zero.node.value {
            let stage = Json::Number(u8::from(on).to_string());
            let what = format!(
                "a boolean is deprecated in DeepSpeed: read as {{\"stage\": {}}}",
                u8::from(on)
            );
            out.warn(&zero.node.at, "zero_optimization", what);
            let at = zero.node.at.clone();
            zero.node.value = Json::Object(vec![member("stage", stage, &at)]);
        }
        if let Json::Object(members) = &mut zero.node.value {
            out.rename(members, "zero_optimization", ZERO);
            out.offload(members);
        }
    }
    out.said
}

/// `cpu_offload` and its company, and the sections that took their place.
const OFFLOADS: [(&str, &str); 3] = [
    ("cpu_offload", "offload_optimizer"),
    ("cpu_offload_params", "offload_param"),
    ("cpu_offload_use_pin_memory", "offload_optimizer.pin_memory"),
];

/// DeepSpeed's name of `mesh.tp`, where 0 is "no tensor parallelism".
const AUTOTP: &str = "tensor_parallel.autotp_size";

/// Other spellings under which the key of that path is read, with their sections.
pub fn other_names(path: &str) -> Vec<String> {
    let (section, key) = path.rsplit_once('.').unwrap_or(("", path));
    let root = ROOT.iter().filter(|n| section.is_empty() && n.1 == key);
    let mut all: Vec<String> = root.map(|n| n.0.to_string()).collect();
    if path == "mesh.tp" {
        all.push(AUTOTP.into());
    }
    if let Some(inner) = path.strip_prefix("zero_optimization.") {
        let renamed = ZERO.iter().filter(|n| n.1 == inner).map(|n| n.0);
        let moved = OFFLOADS.iter().filter(|o| o.1 == inner).map(|o| o.0);
        all.extend(
            renamed
                .chain(moved)
                .map(|n| format!("zero_optimization.{n}")),
        );
    }
    all
}

/// The path of today for one of those, with or without its section; in lower case.
pub fn current_name(path: &str) -> Option<String> {
    if let Some(n) = ROOT.iter().find(|n| n.0 == path) {
        return Some(n.1.to_string());
    }
    if AUTOTP == path || AUTOTP.ends_with(&format!(".{path}")) {
        return Some("mesh.tp".into());
    }
    let inner = path.strip_prefix("zero_optimization.").unwrap_or(path);
    let renamed = ZERO.iter().map(|n| (n.0, n.1)).chain(OFFLOADS);
    let hit = renamed.into_iter().find(|(old, _)| *old == inner);
    // A name may have been renamed twice.
    let new = hit.map(|(_, new)| {
        let again = OFFLOADS.iter().find(|o| o.0 == new);
        again.map_or(new, |o| o.1)
    });
    new.map(|n| format!("zero_optimization.{n}"))
}

/// Whether the key holds a remark and no setting: JSON has no comments, so people write `"_comment": "…"`.
pub fn is_remark(key: &str) -> bool {
    key.starts_with('_') || key.starts_with("//") || key.starts_with('#') || key == "comment"
}

fn inside<'a>(members: &'a mut [Member], key: &str) -> Option<&'a mut Json> {
    let found = members.iter_mut().find(|m| m.key == key)?;
    Some(&mut found.node.value)
}

fn member(key: &str, value: Json, at: &At) -> Member {
    Member {
        key: key.into(),
        at: at.clone(),
        node: Node {
            value,
            at: at.clone(),
        },
    }
}

struct Translator<'a> {
    file: &'a str,
    said: Translated,
}

impl Translator<'_> {
    fn problem(&self, at: &At, path: &str, what: String, fix: &str) -> Problem {
        let (file, at) = (self.file.to_string(), at.clone());
        Problem {
            file,
            at,
            path: path.into(),
            what,
            fix: fix.into(),
        }
    }

    fn warn(&mut self, at: &At, path: &str, what: String) {
        let problem = self.problem(at, path, what, "write the newer form");
        self.said.warnings.push(problem);
    }

    fn rename(&mut self, members: &mut Vec<Member>, section: &str, names: &[Name]) {
        for Name(old, new, deprecated) in names {
            let Some(i) = members.iter().position(|m| m.key == *old) else {
                continue;
            };
            let path = if section.is_empty() {
                (*old).to_string()
            } else {
                format!("{section}.{old}")
            };
            let at = members[i].at.clone();
            if let Some(j) = members.iter().position(|m| m.key == *new) {
                // A `--set` is laid over the file, whichever name either uses.
                let (by_set, other) = (
                    matches!(at, At::Set(_)),
                    matches!(members[j].at, At::Set(_)),
                );
                if by_set == other {
                    let what = format!("{new:?} is given too, and they are one setting");
                    let problem = self.problem(&at, &path, what, "keep one of them");
                    self.said.errors.push(problem);
                }
                if by_set && !other {
                    members[j].node = members[i].node.clone();
                }
                members.remove(i);
                continue;
            }
            if *deprecated {
                self.warn(
                    &at,
                    &path,
                    format!("deprecated in DeepSpeed: read as {new:?}"),
                );
            }
            members[i].key = (*new).to_string();
        }
    }

    /// `tensor_parallel.autotp_size` as `mesh.tp`.
    fn tensor_ranks(&mut self, root: &mut Vec<Member>, size: Member) {
        let at = size.at.clone();
        let value = match &size.node.value {
            Json::Number(n) if n.parse::<f64>() == Ok(0.0) => Json::Number("1".into()),
            Json::Null => return,
            Json::Text(text) if text == "auto" => return,
            other => other.clone(),
        };
        if !matches!(value, Json::Number(_)) {
            let what = format!("wanted a whole number >= 0, got {}", value.describe());
            let problem = self.problem(&at, AUTOTP, what, "write e.g. 2, or remove it");
            return self.said.errors.push(problem);
        }
        let i = match root.iter().position(|m| m.key == "mesh") {
            Some(i) => i,
            None => {
                root.push(member("mesh", Json::Object(vec![]), &at));
                root.len() - 1
            }
        };
        let Json::Object(mesh) = &mut root[i].node.value else {
            // What is wrong with the section is said where it is read.
            return;
        };
        match mesh.iter_mut().find(|m| m.key == "tp") {
            None => mesh.push(member("tp", value, &size.node.at)),
            Some(own) if own.node.value == value => {}
            // A `--set` is laid over the file, whichever name either uses.
            Some(own) if matches!(own.at, At::Set(_)) != matches!(at, At::Set(_)) => {
                if matches!(at, At::Set(_)) {
                    own.node.value = value;
                }
            }
            Some(_) => {
                let what = "\"mesh.tp\" is given too, and they are one setting".to_string();
                let problem = self.problem(&at, AUTOTP, what, "keep one of them");
                self.said.errors.push(problem);
            }
        }
    }

    /// `cpu_offload` and its company, as the sections that took their place.
    fn offload(&mut self, members: &mut Vec<Member>) {
        let mut take = |key: &str| {
            let i = members
                .iter()
                .position(|m| m.key == key && matches!(m.node.value, Json::Bool(_)))?;
            let m = members.remove(i);
            Some((m.node.value == Json::Bool(true), m.at))
        };
        let pinned = take("cpu_offload_use_pin_memory");
        let olds = [
            ("cpu_offload", "offload_optimizer"),
            ("cpu_offload_params", "offload_param"),
        ];
        let taken = olds.map(|(old, new)| (old, new, take(old)));
        for (old, new, found) in taken {
            let Some((true, at)) = found else { continue };
            let path = format!("zero_optimization.{old}");
            if members.iter().any(|m| m.key == new) {
                self.warn(
                    &at,
                    &path,
                    format!("deprecated in DeepSpeed, and {new:?} is given: that is used"),
                );
                continue;
            }
            let mut section = vec![member("device", Json::Text("cpu".into()), &at)];
            if let Some((on, at)) = &pinned {
                section.push(member("pin_memory", Json::Bool(*on), at));
            }
            self.warn(
                &at,
                &path,
                format!("deprecated in DeepSpeed: read as \"{new}\": {{\"device\": \"cpu\"}}"),
            );
            members.push(member(new, Json::Object(section), &at));
        }
    }
}
