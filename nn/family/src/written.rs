//! What this program writes of a model in a `config.json`, held against what a file says that it is said to have written: it may say nothing
//! else than the model does.

use crate::ModelSpec;
use crate::keys::{ConfigError, bad};
use serde_json::{Map, Value};

/// The keys that name tokens of the vocabulary; they are those of the run, and none of the model's own.
pub const TOKEN_IDS: [&str; 3] = ["bos_token_id", "eos_token_id", "pad_token_id"];

/// Bytes of a value that a message quotes.
const QUOTED: usize = 60;

/// Returns true if the value of one of [`TOKEN_IDS`] names a token of a vocabulary of `vocab`,
/// several or none; -1 stands for no padding.
pub fn is_token(key: &str, value: &Value, vocab: u64) -> bool {
    let one = |v: &Value| v.as_u64().is_some_and(|id| id < vocab);
    match value {
        Value::Null => true,
        Value::Array(all) => !all.is_empty() && all.iter().all(one),
        v => one(v) || key == "pad_token_id" && v.as_i64() == Some(-1),
    }
}

impl ModelSpec {
    /// Holds a `config.json` that this program is said to have written against what it writes of this model, which is the one that the
    /// file describes. What the file leaves out is as the model has it.
    ///
    /// # Errors
    /// The first key that says something else, or that is written of no such model.
    pub fn check_written(&self, given: &Value) -> Result<(), ConfigError> {
        let own = self.hf_config();
        let (Some(given), Some(own)) = (given.as_object(), own.as_object()) else {
            return bad("config.json", "no object");
        };
        let vocab = self.model().vocab;
        let (mut given, mut own) = (given.clone(), own.clone());
        for key in TOKEN_IDS {
            let value = given.remove(key).unwrap_or_default();
            own.remove(key);
            if !is_token(key, &value, vocab) {
                let what = format!("{} is none of the model's {vocab} tokens", quoted(&value));
                return bad(key, what);
            }
        }
        check_same("", &given, &own)
    }
}

/// Holds each value of `given` against that of `own`, the same key of what this program writes.
///
/// # Errors
/// The first that differs, by its path behind `path`.
pub fn check_same(
    path: &str,
    given: &Map<String, Value>,
    own: &Map<String, Value>,
) -> Result<(), ConfigError> {
    for (key, given) in given {
        let key: String = key.chars().take(QUOTED).collect();
        let path = match path {
            "" => key.clone(),
            _ => format!("{path}.{key}"),
        };
        match (given, own.get(&key)) {
            (_, None) => return bad(&path, "nothing that is written of the model it describes"),
            (Value::Object(given), Some(Value::Object(own))) => check_same(&path, given, own)?,
            (given, Some(own)) if equal(given, own) => {}
            (given, Some(own)) => {
                let [given, own] = [given, own].map(quoted);
                let what = format!("{given}, and the model it describes has {own}");
                return bad(&path, what);
            }
        }
    }
    Ok(())
}

fn quoted(value: &Value) -> String {
    let text = value.to_string();
    match text.chars().count() > QUOTED {
        true => text.chars().take(QUOTED).chain("...".chars()).collect(),
        false => text,
    }
}

/// Returns true if two values are the same; 1 is 1.0 too.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let same = |(k, a): (&String, &Value)| b.get(k).is_some_and(|b| equal(a, b));
            a.len() == b.len() && a.iter().all(same)
        }
        _ => crate::keys::same(a, b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A text that is written of a model describes that model: of every public text, of every
    /// preset.
    #[test]
    fn what_is_written_of_a_model_is_what_is_asked_of_it() {
        let all: Value =
            serde_json::from_str(include_str!("../../../tests/oracles/configs.json")).unwrap();
        let mut held = 0;
        for one in all.as_array().unwrap() {
            let Ok(spec) = ModelSpec::from_hf(&one["config"]) else {
                continue;
            };
            let written = spec.hf_config();
            let again = ModelSpec::from_hf(&written)
                .unwrap_or_else(|e| panic!("{}: {}: {}", one["source"], e.key, e.what));
            again
                .check_written(&written)
                .unwrap_or_else(|e| panic!("{}: {e}", one["source"]));
            held += 1;
        }
        assert!(held > 50, "{held}");
    }

    /// Each key of it, drawn to say something else, is named.
    #[test]
    fn a_key_that_says_something_else_is_named() {
        let all: Value =
            serde_json::from_str(include_str!("../../../tests/oracles/configs.json")).unwrap();
        let mut drawn = 0;
        for one in all.as_array().unwrap() {
            let Ok(spec) = ModelSpec::from_hf(&one["config"]) else {
                continue;
            };
            let written = spec.hf_config();
            for (key, value) in written.as_object().unwrap() {
                let others = [
                    json!("evil"),
                    json!(1u64 << 40),
                    json!(["EvilForCausalLM"]),
                    json!({"evil": 1}),
                    json!(-7),
                ];
                for other in others.into_iter().filter(|o| o != value) {
                    let mut forged = written.clone();
                    forged[key] = other;
                    // The model that the forged text describes, where it describes one.
                    let Ok(other) = ModelSpec::from_hf(&forged) else {
                        continue;
                    };
                    match other.check_written(&forged) {
                        Err(e) => {
                            assert!(!e.key.is_empty() && !e.what.is_empty(), "{key}: {e}");
                            drawn += 1;
                        }
                        // Another model altogether is known by its tensors.
                        Ok(()) => assert!(
                            other.hf_config()[key] != *value,
                            "{}: {key} is {}, and passes",
                            one["source"],
                            forged[key]
                        ),
                    }
                }
            }
            let mut forged = written.clone();
            forged["evil"] = json!(1);
            if let Ok(spec) = ModelSpec::from_hf(&forged) {
                assert!(spec.check_written(&forged).is_err());
            }
        }
        assert!(drawn > 500, "{drawn}");
    }

    #[test]
    fn tokens_lie_in_the_vocabulary() {
        for (key, value, good) in [
            ("eos_token_id", json!(63), true),
            ("eos_token_id", json!(64), false),
            ("eos_token_id", json!(1u64 << 40), false),
            ("eos_token_id", json!([1, 2]), true),
            ("eos_token_id", json!([1, 99]), false),
            ("eos_token_id", json!([]), false),
            ("eos_token_id", json!("x"), false),
            ("eos_token_id", json!(1.5), false),
            ("bos_token_id", json!(-1), false),
            ("pad_token_id", json!(-1), true),
            ("pad_token_id", Value::Null, true),
        ] {
            assert_eq!(is_token(key, &value, 64), good, "{key}: {value}");
        }
    }
}
