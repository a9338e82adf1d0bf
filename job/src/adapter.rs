//! Adapter folders as PEFT writes them (`adapter_config.json`, `adapter_model.safetensors`), as what a model starts from.

use crate::error::{JobError, Result};
use crate::stored_adapter::{PREFIX, Stored};
use crate::tokens;
use crossweave_checkpoint::{
    ADAPTER, ADAPTER_CONFIG, HfDir, SafeFile, is_readable_float, write_f32,
};
use crossweave_config as config;
use crossweave_nn::lora::is_adapter;
use crossweave_nn::{Lora, Targets};
use crossweave_tensor::{ParamDecl, UnitDecl};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// An opened adapter folder: every matrix that its config asks for is there.
pub struct Adapter {
    /// The folder.
    pub dir: PathBuf,
    file: SafeFile,
    /// Its matrices, by the engine's names.
    matrices: BTreeMap<String, Stored>,
}

impl Adapter {
    /// One matrix, by the engine's name.
    ///
    /// # Errors
    /// A file that cannot be read any more; no such matrix.
    pub fn read_f32(&self, name: &str) -> Result<Vec<f32>> {
        match self.matrices.get(name) {
            Some(m) => Ok(m.from_file(self.file.read_f32(&m.name)?)),
            None => Ok(self.file.read_f32(name)?),
        }
    }
}

/// Is it an adapter's folder, and no model's?
pub fn is_folder(dir: &Path) -> bool {
    let model = ["model.safetensors", "model.safetensors.index.json"];
    dir.join(ADAPTER_CONFIG).is_file() && !model.iter().any(|f| dir.join(f).exists())
}

/// The folder whose tokenizer goes with `dir`: of an adapter that has none, that of the model under it.
///
/// # Errors
/// A damaged `adapter_config.json`; a model that is not where it says.
pub fn words_folder(dir: &Path) -> Result<PathBuf> {
    if !is_folder(dir) || tokens::of_folder(dir)?.is_some() {
        return Ok(dir.to_path_buf());
    }
    base_folder(dir, &read_config(dir)?)
}

fn read_config(dir: &Path) -> Result<Value> {
    let path = dir.join(ADAPTER_CONFIG);
    let bytes = crossweave_files::read(&path, crossweave_files::TEXT)
        .map_err(JobError::io("read", &path))?;
    serde_json::from_slice(&bytes).map_err(|e| {
        JobError::refused(
            format!("{}: not JSON: {e}", path.display()),
            "restore it from where the adapter came from",
        )
    })
}

/// The model that the adapter sits on: where its config says, from here or from the adapter's folder.
fn base_folder(dir: &Path, config: &Value) -> Result<PathBuf> {
    let path = dir.join(ADAPTER_CONFIG);
    let Some(name) = config["base_model_name_or_path"]
        .as_str()
        .filter(|n| !n.is_empty())
    else {
        return Err(JobError::refused(
            format!("{}: base_model_name_or_path: missing", path.display()),
            "write the folder of the model that the adapter was trained on",
        ));
    };
    let places = [PathBuf::from(name), dir.join(name)];
    places.into_iter().find(|p| p.is_dir()).ok_or_else(|| {
        JobError::refused(
            format!(
                "{}: base_model_name_or_path: no folder {name}",
                path.display()
            ),
            "write the folder of the model that the adapter was trained on there (from the working directory, or from the adapter's folder)",
        )
    })
}

/// Whether a value of a key leaves what PEFT computes as it is, or is read by [`lora_of`]. `tests/oracles/peft_cases.py` holds all keys of PEFT's
/// `LoraConfig`, with values that change it and values that do not.
fn is_neutral(key: &str, v: &Value) -> bool {
    let unset = v.is_null();
    let off = unset || *v == Value::Bool(false);
    let empty = match v {
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
        _ => unset,
    };
    match key {
        "r" | "lora_alpha" | "lora_dropout" | "peft_type" | "target_modules"
        | "target_parameters" => true,
        "auto_mapping"
        | "base_model_name_or_path"
        | "inference_mode"
        | "peft_version"
        | "revision"
        | "task_type" => true,
        // PEFT corrects it by the layer.
        "fan_in_fan_out" => true,
        // Read only beside keys that are refused.
        "megatron_core" | "qalora_group_size" => true,
        // How weights begin, which are in the folder.
        "corda_config" | "eva_config" | "loftq_config" | "lora_ga_config" | "runtime_config" => {
            true
        }
        // Other ways to begin change the model under the adapter.
        "init_lora_weights" => {
            unset || v.is_boolean() || ["eva", "gaussian", "orthogonal"].iter().any(|w| v == w)
        }
        "bias" => unset || v == "none",
        "use_rslora" => unset || v.is_boolean(),
        "ensure_weight_tying" | "lora_bias" | "use_dora" | "use_qalora" => off,
        "alora_invocation_tokens"
        | "alpha_pattern"
        | "exclude_modules"
        | "layer_replication"
        | "layers_pattern"
        | "layers_to_transform"
        | "megatron_config"
        | "modules_to_save"
        | "rank_pattern" => empty,
        // Of these an empty value is one, with PEFT's defaults.
        "arrow_config"
        | "kasa_config"
        | "monteclora_config"
        | "trainable_token_indices"
        | "use_bdlora"
        | "velora_config" => unset,
        // Keys of a later PEFT.
        _ => off || empty,
    }
}

/// The adapters that an `adapter_config.json` describes.
///
/// # Errors
/// What is not available, by key.
pub fn lora_of(file: &Path, c: &Value) -> Result<Lora> {
    let refuse = |key: &str, what: String, fix: &str| {
        JobError::refused(format!("{}: {key}: {what}", file.display()), fix)
    };
    let kind = c["peft_type"].as_str().unwrap_or("");
    if !kind.eq_ignore_ascii_case("lora") {
        let what = format!("{} is not available; LORA is", c["peft_type"]);
        return Err(refuse("peft_type", what, "give a LoRA adapter"));
    }
    let again = "merge the adapter into its model with PEFT, and give the merged model";
    for (key, v) in c.as_object().into_iter().flatten() {
        if !is_neutral(key, v) {
            return Err(refuse(key, format!("{v} is not available"), again));
        }
    }
    let number = |key: &str| {
        let good = |x: &f64| x.is_finite();
        let found = c[key].as_f64().filter(good);
        found.ok_or_else(|| refuse(key, format!("{} is not a number", c[key]), "restore it"))
    };
    let (r, alpha, dropout) = (
        number("r")?,
        number("lora_alpha")?,
        number("lora_dropout").or_else(|e| match c["lora_dropout"].is_null() {
            true => Ok(0.0),
            false => Err(e),
        })?,
    );
    if !(1.0..=65536.0).contains(&r) || r.fract() != 0.0 {
        return Err(refuse("r", format!("{r} is no rank"), "restore it"));
    }
    if !(0.0..1.0).contains(&dropout) {
        let what = format!("{dropout} is not in [0, 1)");
        return Err(refuse("lora_dropout", what, "restore it"));
    }
    let parameters: Vec<String> = match &c["target_parameters"] {
        Value::Null => vec![],
        all => serde_json::from_value(all.clone())
            .map_err(|e| refuse("target_parameters", e.to_string(), "write a list of names"))?,
    };
    let targets = match &c["target_modules"] {
        Value::String(s) => pattern_or_all(s),
        Value::Array(_) => Targets::Names(
            serde_json::from_value(c["target_modules"].clone())
                .map_err(|e| refuse("target_modules", e.to_string(), "write names"))?,
        ),
        // PEFT writes the modules that it has chosen: it has chosen none.
        Value::Null if !parameters.is_empty() => Targets::Names(vec![]),
        Value::Null => Targets::Family,
        other => {
            let what = format!("{other} is neither a list of names nor a regular expression");
            return Err(refuse("target_modules", what, "restore it"));
        }
    };
    let lora = Lora {
        r: r as u64,
        alpha,
        dropout,
        rslora: c["use_rslora"] == true,
        targets,
        parameters,
    };
    // A product's factor of 0 stands for 1 in the kernels' interface.
    if alpha == 0.0 {
        let what = format!("{alpha} switches the adapters off");
        return Err(refuse(
            "lora_alpha",
            what,
            "give the model under them, or restore it",
        ));
    }
    Ok(lora)
}

fn pattern_or_all(text: &str) -> Targets {
    match text.eq_ignore_ascii_case("all-linear") {
        true => Targets::AllLinear,
        false => Targets::Pattern(text.to_string()),
    }
}

/// The engine's form of `model.lora`.
pub fn of_config(l: &config::Lora) -> Lora {
    Lora {
        r: l.r,
        alpha: l.alpha,
        dropout: l.dropout,
        rslora: l.rslora,
        targets: match &l.target_modules {
            None => Targets::Family,
            Some(config::TargetModules::Pattern(text)) => pattern_or_all(text),
            Some(config::TargetModules::Names(all)) => Targets::Names(all.clone()),
        },
        parameters: l.target_parameters.clone(),
    }
}

/// What an adapter's folder says of itself.
pub struct Described {
    /// The adapters.
    pub lora: Lora,
    /// The folder of the model under them.
    pub base: PathBuf,
    /// The file that describes them.
    pub file: PathBuf,
}

/// Reads the `adapter_config.json` of a folder.
///
/// # Errors
/// A missing or damaged file; kinds of adapters that are not available; no model where it says.
pub fn describe(dir: &Path) -> Result<Described> {
    let path = dir.join(ADAPTER_CONFIG);
    let config = read_config(dir)?;
    let lora = lora_of(&path, &config)?;
    let base = base_folder(dir, &config)?;
    if is_folder(&base) {
        return Err(JobError::refused(
            format!(
                "{}: base_model_name_or_path: {} is an adapter itself",
                path.display(),
                base.display()
            ),
            "merge that one into its model first (`crossweave checkpoint export --merge`)",
        ));
    }
    Ok(Described {
        lora,
        base,
        file: path,
    })
}

/// The model under adapters: its folder, and the name there of the tensor that PEFT calls so.
pub struct Base<'a> {
    /// The folder.
    pub dir: &'a HfDir,
    /// The tensor's name in the folder, by its name in the model; `None` = the model has none of that name.
    pub file_name: &'a dyn Fn(&str) -> Option<String>,
}

/// Elements that are compared at once.
const PART: u64 = 1 << 22;

impl Base<'_> {
    /// What is wrong with a tensor that stands beside the adapters, where it is a weight of the model itself: PEFT writes those of an
    /// embedding or head that is adapted (`lm_head.base_layer.weight`), or that `save_embedding_layers` asks for. They must be the model's
    /// own. `None` = it is no weight of the model.
    fn differs(&self, file: &SafeFile, name: &str) -> Result<Option<Option<String>>> {
        let model = name.strip_prefix(PREFIX).unwrap_or(name);
        let model = model.replace(".base_layer.", ".");
        let Some(own) = (self.file_name)(&model) else {
            return Ok(None);
        };
        let there = &file.tensors()[name];
        let here = self.dir.info(&own)?;
        if there.shape != here.shape {
            return Ok(Some(Some(format!(
                "{name} has shape {:?}, and {model} of the model under the adapter has {:?}: its vocabulary was resized",
                there.shape, here.shape
            ))));
        }
        if !is_readable_float(there.dtype) {
            let what = format!("{name} is {:?}, which is no float", there.dtype);
            return Ok(Some(Some(what)));
        }
        let total: u64 = there.shape.iter().map(|d| *d as u64).product();
        let mut at = 0;
        while at < total {
            let part = at..total.min(at + PART);
            at = part.end;
            let mut rounded = vec![];
            let ours = self.dir.read_elements_f32(&own, part.clone())?;
            write_f32(&mut rounded, there.dtype, &ours)
                .map_err(JobError::io("read", file.path()))?;
            if rounded != file.read_elements(name, part)? {
                return Ok(Some(Some(format!(
                    "{name} holds other weights than {model} of the model under the adapter: it was trained beside the adapter"
                ))));
            }
        }
        Ok(Some(None))
    }
}

/// Opens the weights of an adapter's folder, which must be those of the adapters of `units`. Weights of `base` itself that stand beside them are
/// read over where they are the same.
///
/// # Errors
/// Missing or damaged files; matrices that do not fit the model, by name.
pub fn open(dir: &Path, units: &[UnitDecl], base: &Base<'_>) -> Result<Adapter> {
    let weights = dir.join(ADAPTER);
    if !weights.exists() && dir.join("adapter_model.bin").exists() {
        return Err(JobError::refused(
            format!(
                "{}: pickled weights can run code and are not read",
                dir.display()
            ),
            "load it with PEFT and save it with save_pretrained(dir, safe_serialization=True)",
        ));
    }
    let file = SafeFile::open(&weights)?;
    let all: Vec<ParamDecl> = units.iter().flat_map(|u| u.params.clone()).collect();
    let wanted = all.iter().filter(|p| is_adapter(&p.name));
    let matrices: BTreeMap<String, Stored> = wanted
        .map(|p| (p.name.clone(), Stored::of(&all, p)))
        .collect();
    let mut wrong = vec![];
    for Stored { name, shape, .. } in matrices.values() {
        match file.tensors().get(name) {
            None => wrong.push(format!("{name} is missing")),
            Some(info) if info.shape != *shape => wrong.push(format!(
                "{name} has shape {:?}, and the model and r ask for {shape:?}",
                info.shape
            )),
            Some(info) if !is_readable_float(info.dtype) => {
                wrong.push(format!("{name} is {:?}, which is no float", info.dtype))
            }
            Some(_) => {}
        }
    }
    let known = |n: &String| matrices.values().any(|m| m.name == **n);
    for name in file.tensors().keys().filter(|n| !known(n)) {
        match base.differs(&file, name)? {
            None => wrong.push(format!("{name} belongs to no adapter of the config")),
            Some(None) => {}
            Some(Some(what)) => {
                return Err(JobError::refused(
                    format!("{}: {what}", weights.display()),
                    "merge the adapter into its model with PEFT, and give the merged model",
                ));
            }
        }
    }
    if let [first, rest @ ..] = &wrong[..] {
        let more = match rest.len() {
            0 => String::new(),
            n => format!(" (and {n} more)"),
        };
        return Err(JobError::refused(
            format!("{}: {first}{more}", weights.display()),
            "give the adapter's own adapter_config.json, and the model it was trained on",
        ));
    }
    Ok(Adapter {
        dir: dir.to_path_buf(),
        file,
        matrices,
    })
}
