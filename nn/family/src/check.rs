//! Values of keys held against their rows: an error names the key, the value, and what would do.

use crate::keys::{ACTIVATION_NAMES, ACTIVATIONS, ConfigError, IDS, Key, Kind, bad, gated, same};
use serde_json::Value;

impl Key {
    /// Holds a value against the row.
    ///
    /// # Errors
    /// Another type; out of range.
    pub fn check(&self, v: &Value) -> Result<(), ConfigError> {
        let bad = |what: String| bad(self.name, what);
        match self.kind {
            Kind::Int(most) => match v.as_u64() {
                Some(n) if n > most => bad(format!("{n} is more than the {most} allowed")),
                Some(n) if n >= 1 => Ok(()),
                _ => bad(format!("{v} is not a positive whole number")),
            },
            Kind::Count(most) => match v.as_u64() {
                Some(n) if n > most => bad(format!("{n} is more than the {most} allowed")),
                Some(_) => Ok(()),
                None => bad(format!("{v} is not a whole number from 0 on")),
            },
            Kind::Id => match v.as_i64() {
                Some(n) if n.unsigned_abs() <= IDS => Ok(()),
                _ => bad(format!("{v} is not a token id")),
            },
            Kind::Positive => match v.as_f64() {
                Some(x) if x > 0.0 && x.is_finite() => Ok(()),
                _ => bad(format!("{v} is not a positive number")),
            },
            Kind::Part => match v.as_f64() {
                Some(p) if p > 0.0 && p <= 1.0 => Ok(()),
                _ => bad(format!("{v} is not in (0, 1]")),
            },
            Kind::Probability => match v.as_f64() {
                Some(p) if (0.0..1.0).contains(&p) => Ok(()),
                _ => bad(format!("{v} is not a probability in [0, 1)")),
            },
            Kind::Factor => match v.as_f64() {
                Some(x) if x >= 0.0 && x.is_finite() => Ok(()),
                _ => bad(format!("{v} is not a number from 0 on")),
            },
            Kind::Numbers => match v.as_array() {
                Some(all) if all.iter().all(Value::is_u64) => Ok(()),
                _ => bad(format!("{v} is not a list of whole numbers from 0 on")),
            },
            Kind::Flag => match v {
                Value::Bool(_) => Ok(()),
                _ => bad(format!("{v} is not true or false")),
            },
            Kind::Activation => match v.as_str() {
                Some(a) if ACTIVATIONS.iter().any(|x| x.0 == a) => Ok(()),
                Some(a) => {
                    let names = ACTIVATION_NAMES.join(", ");
                    bad(format!("\"{a}\" is not available; available: {names}"))
                }
                None => bad(format!("{v} is not text")),
            },
            Kind::FeedForward => match v.as_str().and_then(gated) {
                Some(_) => Ok(()),
                None => {
                    let names = ACTIVATION_NAMES.join(", ");
                    bad(format!(
                        "{v} is not available; available: {names}, each with gated- before it too"
                    ))
                }
            },
            Kind::Scaling => match v {
                Value::Object(_) => Ok(()),
                _ => bad(format!("{v} is not an object")),
            },
            Kind::Layers => match v.as_array() {
                Some(all) if all.iter().all(Value::is_string) => Ok(()),
                _ => bad(format!("{v} is not a list of names")),
            },
            Kind::Classes(all) => match v.as_array().map(Vec::as_slice) {
                Some([Value::String(one)]) if all.contains(&one.as_str()) => Ok(()),
                _ => bad(format!(
                    "{v} is not available; available: {}",
                    all.join(", ")
                )),
            },
            Kind::Keys => match v {
                Value::Object(_) => Ok(()),
                _ => bad(format!("{v} is not an object")),
            },
            Kind::Place => match v.as_i64() {
                Some(_) => Ok(()),
                None => bad(format!("{v} is not a whole number; no other is available")),
            },
            Kind::Word(all) => match v.as_str() {
                Some(word) if all.contains(&word) => Ok(()),
                _ => bad(format!(
                    "{v} is not available; available: {}",
                    all.join(", ")
                )),
            },
            Kind::Bits => match v.as_array() {
                Some(all) if all.iter().all(|b| b.as_u64().is_some_and(|b| b < 2)) => Ok(()),
                _ => bad(format!("{v} is not a list of 0 and 1")),
            },
            Kind::Pattern => match (v.as_u64(), v.as_str()) {
                (Some(n), _) if (0..=IDS).contains(&n) => Ok(()),
                (_, Some(word)) if !word.is_empty() && word.chars().all(|c| "LG".contains(c)) => {
                    Ok(())
                }
                _ => bad(format!(
                    "{v} is neither a whole number nor a word of L and G"
                )),
            },
            Kind::Only(value) => match serde_json::from_str::<Value>(value) {
                Ok(one) if same(&one, v) => Ok(()),
                _ => bad(format!("{v} is not available; only {value} is")),
            },
        }
    }
}
