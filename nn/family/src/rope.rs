//! Rotary positions (Su et al. 2021, arXiv 2104.09864) and the scalings of Hugging Face checkpoints (huggingface/transformers
//! `modeling_rope_utils.py`): how they are written in a `config.json`, and the angles they give.

use crate::keys::{Config, ConfigError, bad};
use serde_json::{Map, Value, json};
use std::f64::consts::PI;
use std::sync::Arc;

/// Rotation of queries and keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotary {
    /// Base of the frequencies.
    pub theta: f64,
    /// Elements of a head that rotate, the first ones.
    pub dim: u64,
    /// Neighbours are a pair, else element i and i + dim/2.
    pub interleaved: bool,
    /// Scaling.
    pub scaling: Scaling,
    /// Queries grow with their position.
    pub growth: Option<Growth>,
}

/// Queries are multiplied by `1 + beta ln(1 + floor(position / original))` (Llama 4's `llama_4_scaling_beta`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    /// Weight of the logarithm.
    pub beta: f64,
    /// Positions of which none is multiplied.
    pub original: f64,
}

/// The treatment of positions beyond the original length.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs)]
pub enum Scaling {
    /// Plain.
    #[default]
    None,
    /// Positions divided by `factor`.
    Linear { factor: f64 },
    /// The base grows with the sequence beyond the original length (NTK); plain up to it.
    Dynamic { factor: f64, original: u64 },
    /// Low frequencies divided, high ones kept, a ramp between by turns within the original length (Peng et al. 2023, arXiv 2309.00071).
    Yarn {
        factor: f64,
        original: f64,
        betas: [f64; 2],
        attention: f64,
        truncate: bool,
    },
    /// A factor for each frequency: one list within the original length, another beyond (Ding et al. 2024, arXiv 2402.13753).
    LongRope {
        short: Vec<f64>,
        long: Vec<f64>,
        original: u64,
        attention: f64,
    },
    /// Llama 3: as yarn, by wavelengths.
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original: f64,
    },
}

/// `cos` and `sin` `[positions, dim / 2]`, row-major.
pub type Tables = (Arc<[f32]>, Arc<[f32]>);

/// Kinds that are read.
const KINDS: &[&str] = &["default", "linear", "dynamic", "yarn", "longrope", "llama3"];

impl Rotary {
    /// Angle per position of each pair, in a sequence of `t` tokens.
    pub fn frequencies(&self, t: u64) -> Vec<f64> {
        let (n, dim) = (self.dim / 2, self.dim as f64);
        let by = |theta: f64| move |i: u64| theta.powf(-(2.0 * i as f64) / dim);
        let plain = (0..n).map(by(self.theta));
        match &self.scaling {
            Scaling::None => plain.collect(),
            Scaling::Linear { factor } => plain.map(|f| f / factor).collect(),
            Scaling::Dynamic { factor, original } => {
                let over = t.max(*original) as f64 / *original as f64;
                let grown = (factor * over - (factor - 1.0)).powf(dim / (dim - 2.0));
                (0..n).map(by(self.theta * grown)).collect()
            }
            Scaling::Yarn {
                factor,
                original,
                betas,
                truncate,
                ..
            } => {
                let at = |turns: f64| {
                    dim * (original / (turns * 2.0 * PI)).ln() / (2.0 * self.theta.ln())
                };
                let (mut low, mut high) = (at(betas[0]), at(betas[1]));
                if *truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let (low, mut high) = (low.max(0.0), high.min(dim - 1.0));
                if low == high {
                    high += 0.001;
                }
                let ramp = |i: usize| ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                plain
                    .enumerate()
                    .map(|(i, f)| f / factor * ramp(i) + f * (1.0 - ramp(i)))
                    .collect()
            }
            Scaling::LongRope {
                short,
                long,
                original,
                ..
            } => {
                let by = if t > *original { long } else { short };
                plain.zip(by).map(|(f, by)| f / by).collect()
            }
            Scaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original,
            } => plain
                .map(|f| {
                    let turns = original * f / (2.0 * PI);
                    if turns < *low_freq_factor {
                        f / factor
                    } else if turns > *high_freq_factor {
                        f
                    } else {
                        let smooth =
                            (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                })
                .collect(),
        }
    }

    /// Returns the factor of `cos` and `sin`.
    fn attention(&self) -> f64 {
        match self.scaling {
            Scaling::Yarn { attention, .. } | Scaling::LongRope { attention, .. } => attention,
            _ => 1.0,
        }
    }

    /// The longest sequence that takes the first tables, where longer ones take others.
    pub fn turning(&self) -> Option<u64> {
        match self.scaling {
            Scaling::LongRope { original, .. } => Some(original),
            _ => None,
        }
    }

    /// The tables of a sequence of `t` tokens.
    pub fn tables(&self, t: u64) -> Tables {
        let (f, by) = (self.frequencies(t), self.attention());
        let angle = |fun: fn(f64) -> f64| {
            (0..t)
                .flat_map(|p| f.iter().map(move |f| (fun(p as f64 * f) * by) as f32))
                .collect()
        };
        (angle(f64::cos), angle(f64::sin))
    }

    /// The tables of queries and those of keys, which are the same where nothing grows.
    pub fn both(&self, t: u64) -> [Tables; 2] {
        let keys = self.tables(t);
        let Some(g) = self.growth.filter(|g| t as f64 > g.original) else {
            return [keys.clone(), keys];
        };
        let pairs = (self.dim / 2) as usize;
        let by = |i: usize| 1.0 + g.beta * (1.0 + ((i / pairs) as f64 / g.original).floor()).ln();
        let grown = |table: &Arc<[f32]>| {
            let each = table.iter().enumerate();
            each.map(|(i, x)| (f64::from(*x) * by(i)) as f32).collect()
        };
        [(grown(&keys.0), grown(&keys.1)), keys]
    }
}

/// The rotation of a head of `dim` elements that a `config.json` states: 4.x writes `rope_theta` and `rope_scaling {rope_type or type, …}`,
/// 5.x `rope_parameters {rope_type, rope_theta, …}`, which [`crate::keys`] has made the former.
///
/// # Errors
/// A kind that is not available, a number that is missing or out of range, a key of another kind.
pub fn rotary(c: &Config, dim: u64) -> Result<Rotary, ConfigError> {
    let (key, theta) = ("rope_scaling", c.num(c.family.roles.rope[0])?);
    if dim < 2 || !dim.is_multiple_of(2) {
        let head = c.family.roles.head_dim;
        return bad(head, format!("{dim} is odd; rotary positions turn pairs"));
    }
    let (mut stretched, mut growth) = (theta, None);
    let scaling = match c.get(key) {
        None => Scaling::None,
        Some(Value::Object(map)) => {
            let o = Object { key, map };
            let found = scaling(c, &o, dim / 2)?;
            if o.num_or("rope_theta", theta)? != theta {
                let what = format!("{} beside {theta}: keep one", map["rope_theta"]);
                return bad(&o.name("rope_theta"), what);
            }
            if let Some(alpha) = alpha(c, &o)? {
                // A head of two elements has one frequency, which is 1 whatever the base.
                let n = dim.max(3) as f64;
                stretched = theta * alpha.powf(n / (n - 2.0));
            }
            growth = grows(c, &o)?;
            found
        }
        Some(v) => return bad(key, format!("{v} is not an object")),
    };
    if theta <= 1.0 {
        return bad(c.family.roles.rope[0], format!("{theta} must be above 1"));
    }
    Ok(Rotary {
        theta: stretched,
        dim,
        interleaved: false,
        scaling,
        growth,
    })
}

/// Reads the factor by which Hunyuan stretches the base, whatever the length of a sequence; its
/// files call it `dynamic`.
fn alpha(c: &Config, o: &Object<'_>) -> Result<Option<f64>, ConfigError> {
    if c.family.name != "hunyuan_v1_dense" {
        return Ok(None);
    }
    match o.num_or("alpha", 0.0)? {
        0.0 => Ok(None),
        a if a > 0.0 => Ok(Some(a)),
        a => bad(&o.name("alpha"), format!("{a} is not a positive number")),
    }
}

/// Reads the growth of the queries of Ministral 3.
fn grows(c: &Config, o: &Object<'_>) -> Result<Option<Growth>, ConfigError> {
    if c.family.name != "ministral3" {
        return Ok(None);
    }
    let longest = c.int(c.family.roles.positions)? as f64;
    let beta = o.need("llama_4_scaling_beta", o.kind()?)?;
    match o.num_or("original_max_position_embeddings", longest)? {
        original if original > 0.0 => Ok(Some(Growth { beta, original })),
        n => bad(
            &o.name("original_max_position_embeddings"),
            format!("{n} is not a positive number"),
        ),
    }
}

fn scaling(c: &Config, o: &Object<'_>, pairs: u64) -> Result<Scaling, ConfigError> {
    let kind = o.kind()?;
    // The first files of Phi-3 call it so, and its config class takes both for the same.
    let kind = match kind {
        "yarn" if c.family.name == "phi3" => "longrope",
        kind => kind,
    };
    let longest = c.int(c.family.roles.positions)? as f64;
    let factor = |o: &Object<'_>| -> Result<f64, ConfigError> {
        match o.need("factor", kind)? {
            f if f >= 1.0 => Ok(f),
            f => bad(&o.name("factor"), format!("{f} must be at least 1")),
        }
    };
    let original = || o.num_or("original_max_position_embeddings", longest);
    let (known, scaling): (&[&str], Scaling) = match kind {
        "default" => (&["original_max_position_embeddings"], Scaling::None),
        "linear" => (
            &["factor", "original_max_position_embeddings"],
            Scaling::Linear { factor: factor(o)? },
        ),
        "dynamic" if alpha(c, o)?.is_some() => (
            &[
                "factor",
                "original_max_position_embeddings",
                "beta_fast",
                "beta_slow",
                "mscale",
                "mscale_all_dim",
            ],
            Scaling::None,
        ),
        "dynamic" => (
            &["factor", "original_max_position_embeddings"],
            Scaling::Dynamic {
                factor: factor(o)?,
                original: longest as u64,
            },
        ),
        "yarn" => (
            &[
                "factor",
                "original_max_position_embeddings",
                "beta_fast",
                "beta_slow",
                "attention_factor",
                "mscale",
                "mscale_all_dim",
                "truncate",
            ],
            yarn(o, factor(o)?, original()?)?,
        ),
        // Its name in the first Phi-3 files.
        "longrope" | "su" => (
            &[
                "factor",
                "original_max_position_embeddings",
                "short_factor",
                "long_factor",
                "attention_factor",
            ],
            longrope(c, o, longest, pairs)?,
        ),
        "llama3" => (
            &[
                "factor",
                "original_max_position_embeddings",
                "low_freq_factor",
                "high_freq_factor",
            ],
            llama3(o, factor(o)?, original()?)?,
        ),
        other => {
            return bad(
                &o.name("rope_type"),
                format!(
                    "\"{other}\" is not available; available: {}",
                    KINDS.join(", ")
                ),
            );
        }
    };
    let more: &[&str] = match c.family.name {
        "ministral3" => &["llama_4_scaling_beta"],
        "hunyuan_v1_dense" if kind == "dynamic" => &["alpha"],
        _ => &[],
    };
    o.only(&[known, more].concat(), kind)?;
    Ok(scaling)
}

fn llama3(o: &Object<'_>, factor: f64, original: f64) -> Result<Scaling, ConfigError> {
    let need = |key| o.need(key, "llama3");
    let (low_freq_factor, high_freq_factor) = (need("low_freq_factor")?, need("high_freq_factor")?);
    if high_freq_factor <= low_freq_factor {
        return bad(
            &o.name("high_freq_factor"),
            format!(
                "must be above low_freq_factor {low_freq_factor}, and it is {high_freq_factor}"
            ),
        );
    }
    Ok(Scaling::Llama3 {
        factor,
        low_freq_factor,
        high_freq_factor,
        original,
    })
}

fn yarn(o: &Object<'_>, factor: f64, original: f64) -> Result<Scaling, ConfigError> {
    let grown = |by: f64| match factor <= 1.0 {
        true => 1.0,
        false => 0.1 * by * factor.ln() + 1.0,
    };
    let (m, all) = (o.num_or("mscale", 0.0)?, o.num_or("mscale_all_dim", 0.0)?);
    let inferred = match m != 0.0 && all != 0.0 {
        true => grown(m) / grown(all),
        false => grown(1.0),
    };
    let beta = |key: &str, default: f64| -> Result<f64, ConfigError> {
        // transformers takes 0 for "not given".
        Ok(match o.num_or(key, default)? {
            0.0 => default,
            b => b,
        })
    };
    Ok(Scaling::Yarn {
        factor,
        original,
        betas: [beta("beta_fast", 32.0)?, beta("beta_slow", 1.0)?],
        attention: o.num_or("attention_factor", inferred)?,
        truncate: o.flag_or("truncate", true)?,
    })
}

fn longrope(c: &Config, o: &Object<'_>, longest: f64, pairs: u64) -> Result<Scaling, ConfigError> {
    let list = |key: &str| -> Result<Vec<f64>, ConfigError> {
        let all = o.numbers(key)?;
        if all.len() as u64 != pairs || all.iter().any(|x| *x <= 0.0) {
            return bad(
                &o.name(key),
                format!(
                    "needs {pairs} positive numbers, one for each pair, and has {}",
                    all.len()
                ),
            );
        }
        Ok(all)
    };
    const ORIGINAL: &str = "original_max_position_embeddings";
    // Phi-3 keeps it beside the scaling, and that counts.
    let original = match c.has(ORIGINAL) {
        true => c.int(ORIGINAL)? as f64,
        false => o.num_or(ORIGINAL, longest)?,
    };
    let factor = o.num_or("factor", longest / original)?;
    let inferred = match factor <= 1.0 {
        true => 1.0,
        false => (1.0 + factor.ln() / original.ln()).sqrt(),
    };
    Ok(Scaling::LongRope {
        short: list("short_factor")?,
        long: list("long_factor")?,
        original: original as u64,
        attention: o.num_or("attention_factor", inferred)?,
    })
}

impl Rotary {
    /// Without scaling.
    pub fn plain(theta: f64, dim: u64) -> Rotary {
        Rotary {
            theta,
            dim,
            interleaved: false,
            scaling: Scaling::None,
            growth: None,
        }
    }
}

/// `rope_parameters` as 5.x writes them, from the keys of 4.x.
pub fn parameters(scaling: Option<&Value>, theta: &Value) -> Value {
    let mut all = match scaling {
        Some(Value::Object(map)) => map.clone(),
        _ => Map::new(),
    };
    if let Some(kind) = all.remove("type") {
        all.entry("rope_type").or_insert(kind);
    }
    all.entry("rope_type").or_insert(json!("default"));
    all.insert("rope_theta".into(), theta.clone());
    Value::Object(all)
}

/// An object within a `config.json`.
struct Object<'a> {
    /// Its key.
    key: &'a str,
    /// Its members.
    map: &'a Map<String, Value>,
}

impl Object<'_> {
    fn member(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|v| !v.is_null())
    }
    /// The whole name of a member.
    fn name(&self, name: &str) -> String {
        format!("{}.{name}", self.key)
    }
    /// The kind of scaling, which the first files call by another name.
    ///
    /// # Errors
    /// Something else than a word.
    fn kind(&self) -> Result<&str, ConfigError> {
        Ok(match self.text("rope_type")? {
            Some(kind) => kind,
            None => self.text("type")?.unwrap_or("default"),
        })
    }
    /// A finite number.
    ///
    /// # Errors
    /// Something else.
    fn num_or(&self, name: &str, default: f64) -> Result<f64, ConfigError> {
        match self.member(name) {
            None => Ok(default),
            Some(v) => match v.as_f64().filter(|x| x.is_finite()) {
                Some(x) => Ok(x),
                None => bad(&self.name(name), format!("{v} is not a finite number")),
            },
        }
    }
    /// A number that a kind needs.
    ///
    /// # Errors
    /// Absent, or something else.
    fn need(&self, name: &str, kind: &str) -> Result<f64, ConfigError> {
        match self.member(name) {
            Some(_) => self.num_or(name, 0.0),
            None => bad(
                &self.name(name),
                format!("missing for rope_type \"{kind}\""),
            ),
        }
    }
    /// A switch.
    ///
    /// # Errors
    /// Something else.
    fn flag_or(&self, name: &str, default: bool) -> Result<bool, ConfigError> {
        match self.member(name) {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(v) => bad(&self.name(name), format!("{v} is not true or false")),
        }
    }
    /// A word.
    ///
    /// # Errors
    /// Something else.
    fn text(&self, name: &str) -> Result<Option<&str>, ConfigError> {
        match self.member(name) {
            None => Ok(None),
            Some(v) => match v.as_str() {
                Some(s) => Ok(Some(s)),
                None => bad(&self.name(name), format!("{v} is not text")),
            },
        }
    }
    /// A list of numbers.
    ///
    /// # Errors
    /// Something else.
    fn numbers(&self, name: &str) -> Result<Vec<f64>, ConfigError> {
        let list = self.member(name).and_then(Value::as_array);
        let all = list.map(|l| l.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>());
        match all.flatten() {
            Some(all) => Ok(all),
            None => bad(&self.name(name), "a list of numbers is needed"),
        }
    }
    /// Nothing but these keys, and those every kind has.
    ///
    /// # Errors
    /// Another one.
    fn only(&self, known: &[&str], kind: &str) -> Result<(), ConfigError> {
        let all = |n: &str| ["rope_type", "type", "rope_theta"].contains(&n) || known.contains(&n);
        match self.map.iter().find(|(n, v)| !v.is_null() && !all(n)) {
            None => Ok(()),
            Some((n, v)) => bad(
                &self.name(n),
                format!("{v}: not a setting of rope_type \"{kind}\"; remove it"),
            ),
        }
    }
}

/// Export of a family whose class in 4.x reads a scaling under its first name `type` and takes no member beside those of the first files.
pub fn typed_scaling(_: &Config, out: &mut Map<String, Value>) {
    const ORIGINAL: &str = "original_max_position_embeddings";
    let beside = out.get(ORIGINAL).cloned();
    let Some(Value::Object(scaling)) = out.get_mut("rope_scaling") else {
        return;
    };
    if let Some(kind) = scaling.remove("rope_type") {
        scaling.insert("type".into(), kind);
    }
    if beside.is_some() && scaling.get(ORIGINAL) == beside.as_ref() {
        scaling.remove(ORIGINAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(scaling: Scaling) -> Vec<f64> {
        let (theta, dim, interleaved) = (5e5, 128, false);
        Rotary {
            theta,
            dim,
            interleaved,
            scaling,
            growth: None,
        }
        .frequencies(16)
    }

    #[test]
    fn llama3_keeps_fast_pairs_and_slows_the_slowest() {
        let (a, b) = (
            plain(Scaling::None),
            plain(Scaling::Llama3 {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original: 8192.0,
            }),
        );
        assert_eq!(a[0], b[0]);
        assert!((b[63] - a[63] / 8.0).abs() < 1e-18);
        assert!(a.iter().zip(&b).all(|(a, b)| b <= a && *b >= a / 8.0));
    }
}
