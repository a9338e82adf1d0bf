//! A family with its numbers: from a `config.json` and back, in the forms that transformers 4.x and 5.x read.

use crate::desc::Model;
use crate::keys::{Config, ConfigError, Derive, Fresh, Kind, bad};
use crate::moe::{KEY, Moe};
use crate::rope::parameters;
use crate::strangers::{not_available, warning};
use crate::{Family, OUTERS, Outer, family};
use serde_json::{Map, Value, json};

/// A model, described.
#[derive(Clone, Debug)]
pub struct ModelSpec {
    config: Config,
    model: Model,
    /// Experts that the family does not have.
    moe: Option<Moe>,
}

impl PartialEq for ModelSpec {
    fn eq(&self, other: &ModelSpec) -> bool {
        self.config.family.name == other.config.family.name && self.model == other.model
    }
}

impl ModelSpec {
    /// Reads a `config.json`.
    ///
    /// # Errors
    /// A family that is not there; a key that is not understood; numbers that fit no model.
    pub fn from_hf(config: &Value) -> Result<ModelSpec, ConfigError> {
        let Value::Object(map) = config else {
            return bad("(root)", "not a JSON object");
        };
        let name = match map.get("model_type") {
            Some(Value::String(name)) => name.as_str(),
            Some(Value::Null) | None => "",
            Some(v) => return bad("model_type", format!("{v} is not text")),
        };
        if let Some(outer) = OUTERS.iter().find(|o| o.name == name) {
            return ModelSpec::part_of(outer, map);
        }
        let Some(family) = family(name) else {
            return Err(not_available(name, map));
        };
        let mut map = map.clone();
        let moe = match map.remove(KEY).filter(|v| !v.is_null()) {
            Some(v) => match serde_json::from_value::<Moe>(v) {
                Ok(moe) => Some(moe),
                Err(e) => return bad(KEY, e.to_string()),
            },
            None => None,
        };
        let spec = Config::of_hf(family, &map).and_then(ModelSpec::of);
        let spec = spec.map_err(|e| ModelSpec::as_written(e, family, &map))?;
        match moe {
            Some(moe) => spec.with_moe(&moe).map_err(|e| ConfigError {
                key: format!("{KEY}{}", e.key.strip_prefix("moe").unwrap_or_default()),
                ..e
            }),
            None => Ok(spec),
        }
    }

    /// The same with experts in the place of MLPs.
    ///
    /// # Errors
    /// As [`Moe::apply`].
    pub fn with_moe(&self, moe: &Moe) -> Result<ModelSpec, ConfigError> {
        let mut spec = self.clone();
        moe.apply(self.config.family.name, &mut spec.model)?;
        spec.moe = Some(moe.clone());
        Ok(spec)
    }

    /// The part of a model that is read.
    fn part_of(outer: &Outer, map: &Map<String, Value>) -> Result<ModelSpec, ConfigError> {
        let (part, family) = (outer.part, outer.family);
        let Some(Value::Object(inner)) = map.get(part) else {
            return bad(part, "missing: it holds the keys of the model that is read");
        };
        if let Some(kind) = inner.get("model_type").filter(|k| *k != family.name) {
            let what = format!("{kind} is not available; only {:?} is", family.name);
            return bad(&format!("{part}.model_type"), what);
        }
        let within = |e: ConfigError| ConfigError {
            key: format!("{part}.{}", e.key),
            ..e
        };
        let spec = Config::of_hf(family, inner).and_then(ModelSpec::of);
        let spec = spec.map_err(|e| within(ModelSpec::as_written(e, family, inner)));
        let mut spec = spec?;
        let tied = "tie_word_embeddings";
        if let Some(Value::Bool(outside)) = map.get(tied)
            && *outside != spec.model.head.tied
        {
            let what = format!(
                "{outside}, and {part}.{tied} is {}: let them agree",
                spec.model.head.tied
            );
            return bad(tied, what);
        }
        let quiet = |name: &&String| {
            let name = name.as_str();
            [part, tied].contains(&name)
                || outer.quiet.contains(&name)
                || Config::is_quiet(family, name)
        };
        let unread = map.keys().filter(|name| !quiet(name)).cloned();
        let inner = std::mem::take(&mut spec.config.unread);
        let inner = inner.into_iter().map(|name| format!("{part}.{name}"));
        spec.config.unread = inner.chain(unread).collect();
        Ok(spec)
    }

    /// An error of a key that the file has within `rope_parameters` only names it there.
    fn as_written(e: ConfigError, family: &Family, map: &Map<String, Value>) -> ConfigError {
        let (first, rest) = e.key.split_at(e.key.find('.').unwrap_or(e.key.len()));
        let beside = map.get(first).is_some_and(|v| !v.is_null());
        let within = |v: &&Value| !v.is_null() && !beside;
        let key = match first {
            "rope_scaling" => format!("rope_parameters{rest}"),
            _ if first == family.roles.rope[0] => "rope_parameters.rope_theta".to_string(),
            _ if first == family.roles.rope[1] => {
                "rope_parameters.partial_rotary_factor".to_string()
            }
            _ => return e,
        };
        match map.get("rope_parameters").filter(within) {
            Some(_) => ConfigError { key, ..e },
            None => e,
        }
    }

    /// A new model, from the keys that a config gives of it.
    ///
    /// # Errors
    /// As [`ModelSpec::from_hf`].
    pub fn new(
        family: &'static Family,
        given: &Map<String, Value>,
    ) -> Result<ModelSpec, ConfigError> {
        let mut spec = ModelSpec::of(Config::of_new(family, given)?)?;
        let width = spec.model.width;
        let derived = spec.model.stack.layers.first().map(|l| {
            let (a, mlp) = (&l.attention.1, l.mlp.1.width);
            let (kv_heads, head_dim) = (a.kv_heads, a.head_dim);
            move |what: Derive| match what {
                Derive::Width => width,
                Derive::KvHeads => kv_heads,
                Derive::HeadDim => head_dim,
                Derive::Mlp => mlp,
            }
        });
        // A reader would take another value for what is absent.
        for row in family.keys() {
            if let (Fresh::Derived(what), Some(of)) = (row.fresh, &derived)
                && !spec.config.has(row.name)
            {
                let value = json!(of(what));
                spec.config.map.insert(row.name.to_string(), value);
            }
        }
        Ok(spec)
    }

    fn of(config: Config) -> Result<ModelSpec, ConfigError> {
        let model = (config.family.build)(&config)?;
        let moe = None;
        Ok(ModelSpec { config, model, moe })
    }

    /// The same with another value of a key.
    ///
    /// # Errors
    /// A key that the family does not have; a value out of range.
    pub fn with(&self, key: &str, value: Value) -> Result<ModelSpec, ConfigError> {
        let mut config = self.config.clone();
        match config.family.key(key) {
            Some(row) => row.check(&value)?,
            None => {
                return bad(
                    key,
                    format!("the {} family has no such key", config.family.name),
                );
            }
        }
        config.map.insert(key.to_string(), value);
        let spec = ModelSpec::of(config)?;
        match &self.moe {
            Some(moe) => spec.with_moe(moe),
            None => Ok(spec),
        }
    }

    /// The same over rows of which an encoder reads the first `read` tokens.
    pub fn reading(&self, read: u64) -> ModelSpec {
        let mut spec = self.clone();
        if let Some(d) = &mut spec.model.decoder {
            d.read = read;
        }
        spec
    }

    /// The same over rows of `read` tokens with a kind each, and with whether one text follows the other where that is `labelled`.
    pub fn pairing(&self, read: u64, labelled: bool) -> ModelSpec {
        let mut spec = self.clone();
        if let Some(kinds) = &mut spec.model.stack.embed.kinds {
            kinds.read = read;
        }
        if let Some(pair) = &mut spec.model.head.pair {
            pair.labelled = labelled;
        }
        spec
    }

    /// The same with a head that says whether one text follows another, where a class of the family has one.
    pub fn answering(&self) -> Option<ModelSpec> {
        let Kind::Classes(all) = self.config.family.key("architectures")?.kind else {
            return None;
        };
        let of = |class| self.with("architectures", json!([class])).ok();
        let each = all.iter().filter_map(of);
        let mut spec = each.into_iter().find(|s| s.model.head.pair.is_some())?;
        spec.model.init = self.model.init;
        Some(spec)
    }

    /// The same over rows of so many images each.
    pub fn seeing(&self, images: u64) -> ModelSpec {
        let mut spec = self.clone();
        if let Some(v) = &mut spec.model.vision {
            v.images = images;
        }
        spec
    }

    /// Other dropouts of embeddings, residual branches and attention weights, where given.
    ///
    /// # Errors
    /// One above 0 that the family does not have; the index of it.
    pub fn with_dropout(&self, given: [Option<f64>; 3]) -> Result<ModelSpec, (usize, ConfigError)> {
        let mut spec = self.clone();
        let names = self.config.family.roles.dropout;
        for (i, (name, p)) in names.into_iter().zip(given).enumerate() {
            match p {
                Some(p) if !name.is_empty() => {
                    spec = spec.with(name, json!(p)).map_err(|e| (i, e))?;
                }
                Some(p) if p > 0.0 => {
                    let what =
                        format!("the {} family has no such dropout", self.config.family.name);
                    return Err((
                        i,
                        ConfigError {
                            key: String::new(),
                            what,
                        },
                    ));
                }
                _ => {}
            }
        }
        Ok(spec)
    }

    /// Memory for so many times the rows that come to a rank's experts where all get as many ([`crate::desc::Experts::room`]).
    pub fn with_room(&self, times: f64) -> ModelSpec {
        let mut spec = self.clone();
        let layers = spec.model.stack.layers.iter_mut();
        layers
            .filter_map(|l| l.experts.as_mut())
            .for_each(|e| e.room = times);
        spec
    }

    /// Other starting deviations: `std`, and of what writes into the residual stream `std / sqrt(2 layers)` where `scaled`.
    pub fn with_init(&self, std: f64, scaled: bool) -> ModelSpec {
        let mut spec = self.clone();
        let layers = spec.model.stack.layers.len() as f64;
        spec.model.init.std = std;
        spec.model.init.residual = if scaled {
            std / (2.0 * layers).sqrt()
        } else {
            std
        };
        if spec.config.has("initializer_range") {
            let range = json!(std);
            spec.config.map.insert("initializer_range".into(), range);
        }
        spec
    }

    /// `llama, 4 blocks of 256 with 4/2 heads`.
    pub fn summary(&self) -> String {
        let layers = &self.model.stack.layers;
        let heads = layers.first().map_or(String::new(), |l| {
            let (q, kv) = (l.attention.1.heads, l.attention.1.kv_heads);
            match q == kv {
                true => q.to_string(),
                false => format!("{q}/{kv}"),
            }
        });
        let (name, width) = (self.config.family.name, self.model.width);
        format!(
            "{name}, {} blocks of {width} with {heads} heads",
            layers.len()
        )
    }

    /// Returns a warning about keys that the class of `transformers` does not read; `None` where
    /// there are none.
    pub fn warning(&self) -> Option<String> {
        warning(&self.config)
    }
    /// Keys that the class of `transformers` does not read.
    pub fn unread(&self) -> &[String] {
        &self.config.unread
    }
    /// The family.
    pub fn family(&self) -> &'static Family {
        self.config.family
    }
    /// The description.
    pub fn model(&self) -> &Model {
        &self.model
    }
    /// Its keys.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// `config.json` in a form that transformers 4.x and 5.x read alike.
    pub fn hf_config(&self) -> Value {
        let family = self.config.family;
        let mut out = Map::new();
        out.insert("architectures".into(), json!([family.architecture]));
        out.extend(self.config.hf());
        for (key, value) in [
            ("torch_dtype", json!("float32")),
            ("use_cache", json!(true)),
            ("bos_token_id", Value::Null),
            ("eos_token_id", Value::Null),
        ] {
            out.insert(key.into(), value);
        }
        (family.export)(&self.config, &mut out);
        if let Some(moe) = &self.moe {
            out.insert(KEY.into(), json!(moe));
        }
        Value::Object(out)
    }
}

impl Config {
    /// Returns these keys as a `config.json` has them.
    pub(crate) fn hf(&self) -> Map<String, Value> {
        let family = self.family;
        let mut out = Map::new();
        out.insert("model_type".into(), json!(family.name));
        for row in family.keys() {
            match self.get(row.name) {
                Some(value) => _ = out.insert(row.name.into(), value.clone()),
                // Classes ask whether there is such an attribute: a null where absent says the same would be one.
                None if row.default.is_empty() => {}
                None => _ = out.insert(row.name.into(), Value::Null),
            }
        }
        let [theta, part] = family.roles.rope;
        if let Some(theta) = self.get(theta) {
            let mut p = parameters(self.get("rope_scaling"), theta);
            if let Some(part) = self.get(part) {
                p["partial_rotary_factor"] = part.clone();
            }
            out.insert("rope_parameters".into(), p);
        }
        out
    }
}
