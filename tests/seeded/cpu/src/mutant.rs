//! Mutants of the op table, by rule: `param:OP:FIELD:HOW` changes a field of the struct that an op is prepared with, `launch:OP:FIELD:HOW`
//! one of the struct that it is launched with. HOW is `previous` (the field of the call before), `cached` (of the first call with the
//! same operands), `default` (0), `f32`, `f16` or `bf16` (a number in that type), or `low` (the low half of an integer).

use crate::ops::Asked;
use crate::results::bf16;
use crossweave_abi::Layout;
use crossweave_abi::op;
use crossweave_plugin::{OpRequest, Result};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// A field and how it is wrong.
struct Mutant<'a> {
    kind: &'static str,
    at: usize,
    how: &'a str,
}

/// Structs of earlier calls: of the one before by op, and the first by op and operands.
#[derive(Default)]
pub struct Earlier {
    last: Mutex<HashMap<(bool, u32), Vec<u8>>>,
    first: Mutex<HashMap<Vec<i64>, Vec<u8>>>,
}

/// What is done with the structs of these names that ops are prepared with.
macro_rules! structs {
    ($($name:ident)*) => {
        /// The params of any op as they came.
        pub fn params(o: &OpRequest<'_>) -> Result<Vec<u8>> {
            Ok(match op::spec(o.id).map_or("", |s| s.params) {
                $( stringify!($name) => o.params::<op::$name>()?.as_bytes().to_vec(), )*
                _ => o.params::<op::ProgramParams>()?.as_bytes().to_vec(),
            })
        }
    };
}
structs! { NoParams FillParams IotaParams KindParams AxpbyParams ClampParams ReduceParams DimParams MatmulParams IndexParams PhiloxParams
NormParams XentParams AttentionParams AttentionExtParams RopeParams AdamwParams DropoutParams }

impl<'a> Mutant<'a> {
    fn parse(bug: &'a str, call: &str, id: u32) -> Option<Mutant<'a>> {
        let words: Vec<&str> = bug.split(':').collect();
        let [kind, name, field, how] = words[..] else {
            return None;
        };
        let spec = op::by_name(name).filter(|s| s.id == id && kind == call)?;
        let of = match call {
            "param" => spec.params,
            _ => spec.dynamic,
        };
        let field = op::fields_of(of).0.iter().find(|f| f.0 == field)?;
        Some(Mutant {
            kind: field.1,
            at: field.2,
            how,
        })
    }

    /// Changes the field; `earlier` is a struct of a call before.
    fn apply(&self, bytes: &mut [u8], earlier: Option<&Vec<u8>>) {
        let size = match self.kind {
            "u32" => 4,
            _ => 8,
        };
        let field = self.at..self.at + size;
        let Some(now) = bytes.get(field.clone()) else {
            return;
        };
        let mut word = [0; 8];
        word[..size].copy_from_slice(now);
        let word = u64::from_ne_bytes(word);
        let number = f64::from_bits(word);
        let other = match (self.kind, self.how) {
            (_, "default") => 0,
            ("f64", "f32") => f64::from(number as f32).to_bits(),
            ("f64", "f16") => f16(number).to_bits(),
            ("f64", "bf16") => f64::from(bf16(number as f32)).to_bits(),
            ("u32", "low") => word & 0xFFFF,
            ("u64" | "i64", "low") => word & 0xFFFF_FFFF,
            (_, "previous" | "cached") => match earlier.and_then(|e| e.get(field.clone())) {
                Some(was) => return bytes[field].copy_from_slice(was),
                None => word,
            },
            _ => word,
        };
        bytes[field].copy_from_slice(&other.to_ne_bytes()[..size]);
    }
}

/// In f16, as a number.
fn f16(v: f64) -> f64 {
    let least = 2f64.powi(-24);
    let step = match v.abs() {
        a if a < 2f64.powi(-14) => least,
        a => 2f64.powi(a.log2().floor() as i32 - 10),
    };
    match (v / step).round_ties_even() * step {
        r if r.is_finite() && r.abs() > 65_504.0 => f64::INFINITY.copysign(v),
        r if v.is_finite() => r,
        _ => v,
    }
}

/// A number for each choice of operands, by which first calls are found again.
fn key(id: u32, operands: &[Layout]) -> Vec<i64> {
    let mut key = vec![i64::from(id)];
    for l in operands {
        key.extend([i64::from(l.dtype), i64::from(l.rank)]);
        key.extend(l.shape);
        key.extend(l.stride);
    }
    key
}

impl Earlier {
    /// A struct with its field changed, if the defect is one of this op.
    fn changed(
        &self,
        bug: &str,
        call: &str,
        id: u32,
        operands: &[Layout],
        bytes: &[u8],
    ) -> Option<Vec<u8>> {
        let mutant = Mutant::parse(bug, call, id)?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        let before = last.insert((call == "param", id), bytes.to_vec());
        let earlier = match mutant.how {
            "cached" => Some(
                first
                    .entry(key(id, operands))
                    .or_insert(bytes.to_vec())
                    .clone(),
            ),
            _ => before,
        };
        let mut other = bytes.to_vec();
        mutant.apply(&mut other, earlier.as_ref());
        Some(other)
    }

    /// What the back end is asked instead.
    pub fn asked(&self, bug: &str, o: &OpRequest<'_>) -> Result<Option<Asked>> {
        if !bug.starts_with("param:") {
            return Ok(None);
        }
        let other = self.changed(bug, "param", o.id, o.operands, &params(o)?);
        Ok(other.map(|mut p| {
            // A caller's struct may be longer; these bytes are ours.
            let size = p.len() as u32;
            p[..4].copy_from_slice(&size.to_ne_bytes());
            (o.operands.to_vec(), p)
        }))
    }

    /// The struct that it gets instead at a launch.
    pub fn given(&self, bug: &str, id: u32, operands: &[Layout], bytes: &[u8]) -> Option<Vec<u8>> {
        self.changed(bug, "launch", id, operands, bytes)
    }

    /// Another defect begins.
    pub fn forget(&self) {
        self.last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        self.first
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}
