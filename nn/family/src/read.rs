//! From a `config.json`, or the keys that a new model is given, to a family's keys: other names and forms of 4.x and 5.x become one, what
//! is absent takes `transformers`' default, and keys without a row are judged.

use crate::Family;
use crate::families::part_of;
use crate::keys::{Config, ConfigError, Fresh, Kind, bad, laid, same, scaled};
use crate::strangers::{self, unknown};
use serde_json::{Map, Value, json};

/// Keys that say nothing of the computation, in every family.
#[rustfmt::skip]
const HARMLESS: &[&str] = &[
    "model_type", "architectures", "torch_dtype", "dtype", "transformers_version", "use_cache", "_name_or_path", "auto_map",
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "mask_token_id", "unk_token_id",
    "decoder_start_token_id", "task_specific_params", "finetuning_task", "id2label", "label2id", "num_labels", "problem_type",
    "output_attentions", "output_hidden_states", "return_dict", "use_return_dict", "gradient_checkpointing", "tokenizer_class", "prefix",
    "_attn_implementation", "attn_implementation", "_attn_implementation_autoset", "_commit_hash", "torchscript", "use_bfloat16",
    "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "temperature", "top_k", "top_p",
    "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids",
    "num_return_sequences", "output_scores", "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id",
    "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "diversity_penalty",
    "tf_legacy_loss", "cache_implementation", "unsloth_fixed", "unsloth_version", "initializer_range", "initializer_factor", "init_std",
];

/// Rotary keys that 4.x writes beside the names that the family has for them.
fn beside(family: &Family) -> impl Iterator<Item = (&'static str, &'static str)> {
    let plain = ["rope_theta", "partial_rotary_factor"].into_iter();
    let both = plain.zip(family.roles.rope);
    both.filter(|(_, by)| family.key(by).is_some())
}

impl Config {
    /// Reads a `config.json`; what is absent or null takes `transformers`' default.
    ///
    /// # Errors
    /// A key that is not understood; a value of another type or out of range.
    pub fn of_hf(
        family: &'static Family,
        json: &Map<String, Value>,
    ) -> Result<Config, ConfigError> {
        let (mut map, mut none, mut strange) = (Map::new(), vec![], vec![]);
        let given = without_parameters(family, &strangers::own_names(family, json)?)?;
        strangers::says_enough(family, json, &given)?;
        for (name, value) in &given {
            match family.key(name) {
                Some(row) if value.is_null() && row.nullable => none.push(row.name),
                _ if value.is_null() => {}
                Some(row) => {
                    row.check(value)?;
                    map.insert(name.clone(), value.clone());
                }
                None if Config::is_quiet(family, name) => {}
                None if beside(family).any(|(plain, _)| plain == name) => {}
                None => strange.push((name, value)),
            }
        }
        let mut config = Config::of_values(family, map);
        config.fill(|row| match none.contains(&row.name) {
            true => "",
            false => row.default,
        });
        for (name, value) in strange {
            if strangers::unread(&config, name, value)? {
                config.unread.push(name.clone());
            }
        }
        strangers::drop_members(&mut config, json);
        config.read_parts()?;
        config.unread.sort();
        for (plain, by) in beside(family) {
            let own = config.get(by).filter(|_| family.key(plain).is_none());
            if let (Some(own), Some(v)) = (own, given.get(plain).filter(|v| !v.is_null()))
                && !same(own, v)
            {
                return bad(plain, format!("{v}, and {by} is {own}: keep {by} alone"));
            }
        }
        Ok(config)
    }

    /// Takes a new model's keys, which have been checked by their rows.
    ///
    /// # Errors
    /// As [`Config::of_hf`].
    pub fn of_new(
        family: &'static Family,
        given: &Map<String, Value>,
    ) -> Result<Config, ConfigError> {
        let mut map = Map::new();
        for (name, value) in given.iter().filter(|(_, v)| !v.is_null()) {
            match family.key(name) {
                Some(row) => row.check(value)?,
                None => return unknown(family, name, value),
            }
            map.insert(name.clone(), value.clone());
        }
        strangers::rewrite(family, &mut map);
        let mut config = Config::of_values(family, map);
        config.fill(|row| match row.fresh {
            Fresh::Same | Fresh::Unasked => row.default,
            Fresh::Other(value) => value,
            Fresh::Required | Fresh::Derived(_) => "",
        });
        Ok(config)
    }

    /// Makes a config of these values, and nothing else.
    fn of_values(family: &'static Family, map: Map<String, Value>) -> Config {
        let given = family.keys().map(|k| k.name);
        let given = given.filter(|k| map.contains_key(*k)).collect();
        let unread = vec![];
        Config {
            family,
            map,
            given,
            unread,
        }
    }

    /// Does the key say nothing of the computation in any family, or in this one?
    pub(crate) fn is_quiet(family: &Family, name: &str) -> bool {
        let mut harmless = HARMLESS.iter().copied().chain(family.harmless.split(' '));
        harmless.any(|h| h == name)
    }

    /// Finds what of the keys of its parts is not read.
    fn read_parts(&mut self) -> Result<(), ConfigError> {
        for row in self.family.keys().filter(|k| k.kind == Kind::Keys) {
            let (Some(family), Some(Value::Object(inner))) =
                (part_of(row.name), self.map.get(row.name))
            else {
                continue;
            };
            // Of another family it is an error of the model's own.
            if inner.get("model_type").is_none_or(|t| t == family.name) {
                let within = |e: ConfigError| ConfigError {
                    key: format!("{}.{}", row.name, e.key),
                    ..e
                };
                let inner = Config::of_hf(family, inner).map_err(within)?;
                let names = inner.unread.iter().map(|n| format!("{}.{n}", row.name));
                self.unread.extend(names.collect::<Vec<_>>());
            }
        }
        Ok(())
    }
}

/// 5.x keeps the rotary settings in `rope_parameters`; here they become the keys of 4.x, which every family's rows have. A non-empty
/// `rope_scaling` beside it counts for more, in `transformers` too.
fn without_parameters(
    family: &Family,
    json: &Map<String, Value>,
) -> Result<Map<String, Value>, ConfigError> {
    let mut out = json.clone();
    let Some(given) = out.remove("rope_parameters").filter(|v| !v.is_null()) else {
        return one_original(family, out);
    };
    let [theta, part] = family.roles.rope;
    if family.key(theta).is_none() {
        return unknown(family, "rope_parameters", &given);
    }
    let Value::Object(mut p) = given else {
        return bad("rope_parameters", format!("{given} is not an object"));
    };
    if p.values().any(Value::is_object) {
        return (family.nested)(out, p);
    }
    strangers::flat(family)?;
    for (inner, name) in [("rope_theta", theta), ("partial_rotary_factor", part)] {
        let whole = family.key(name).is_none() && p.get(inner) == Some(&json!(1.0));
        let Some(v) = p.remove(inner).filter(|v| !v.is_null() && !whole) else {
            continue;
        };
        laid(&mut out, name, v)?;
    }
    let kind = p.get("rope_type").or(p.get("type")).and_then(Value::as_str);
    let scaled_if_absent = family
        .key("rope_scaling")
        .is_some_and(|k| !k.default.is_empty());
    if matches!(kind, None | Some("default")) && !scaled_if_absent {
        return Ok(out);
    }
    scaled(out, Value::Object(p))
}

/// Reads the length at which `longrope` begins to take its other list: 4.x reads it beside
/// `rope_scaling`, else from the longest sequence; 5.x reads it within. What they would read
/// differently is refused.
fn one_original(
    family: &Family,
    out: Map<String, Value>,
) -> Result<Map<String, Value>, ConfigError> {
    const ORIGINAL: &str = "original_max_position_embeddings";
    let (scaling, longest) = (&out.get("rope_scaling"), out.get(family.roles.positions));
    let inner = |key: &str| scaling.and_then(|s| s.get(key));
    let long = |key: &&str| inner(key).and_then(Value::as_str) == Some("longrope");
    let within = inner(ORIGINAL).filter(|v| !v.is_null() && family.key(ORIGINAL).is_none());
    match within {
        Some(v)
            if ["rope_type", "type"].iter().any(long) && longest.is_none_or(|l| !same(l, v)) =>
        {
            bad(
                "rope_scaling",
                format!(
                    "{ORIGINAL} {v}: transformers 4.x takes {} instead and 5.x this; write the scaling as rope_parameters if {v} is meant",
                    family.roles.positions
                ),
            )
        }
        _ => Ok(out),
    }
}
