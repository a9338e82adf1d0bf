//! Filters that make numbers.

use super::need;
use crate::args::Given;
use crate::ast::Op;
use crate::budget::Budget;
use crate::error::{Error, Result, fail};
use crate::number::{self, big, small};
use crate::ops::{binary, index_of, sign};
use crate::value::Value;
use num_bigint::BigInt;

pub(super) fn call(name: &str, value: Value, given: Given, budget: &Budget) -> Result<Value> {
    match name {
        "abs" => {
            let _: [Option<Value>; 0] = given.plain(name, 0)?;
            match &value {
                Value::Float(f) => Ok(Value::Float(f.abs())),
                other => match big(other) {
                    Some(n) => number::int(BigInt::from(n.magnitude().clone()), budget),
                    None => sign(false, other, budget),
                },
            }
        }
        "int" => {
            let [default, base] = given.bind(name, ["default", "base"])?;
            let default = default.unwrap_or(Value::Int(0));
            let base = base.map_or(Ok(10), |b| index_of(&b))?;
            to_int(&value, default, base, budget)
        }
        "float" => {
            let [default] = given.bind(name, ["default"])?;
            let default = default.unwrap_or(Value::Float(0.0));
            to_float(&value, budget).map(|f| f.map_or(default, Value::Float))
        }
        "round" => round(&value, given, budget),
        _ => file_size(&value, given, budget),
    }
}

/// `float(value)`, `None` where Python raises what the filters catch.
fn to_float(value: &Value, budget: &Budget) -> Result<Option<f64>> {
    value.defined()?;
    match value {
        Value::Str(t) => {
            budget.scan(t.as_str().len().saturating_mul(16))?;
            Ok(number::parse_float(t.as_str()))
        }
        other => number::float(other),
    }
}

fn to_int(value: &Value, default: Value, base: i64, budget: &Budget) -> Result<Value> {
    value.defined()?;
    match value {
        Value::Float(f) if f.is_nan() => return Ok(default),
        Value::Float(f) => return number::truncated(*f, budget),
        Value::Str(t) => {
            budget.scan(t.as_str().len().saturating_mul(16))?;
            let whole = u32::try_from(base)
                .ok()
                .and_then(|b| number::parse_int(t.as_str(), b));
            if let Some(n) = whole {
                return number::int(n, budget);
            }
            return match number::parse_float(t.as_str()) {
                Some(f) if f.is_finite() => number::truncated(f, budget),
                _ => Ok(default),
            };
        }
        _ => {}
    }
    match big(value) {
        Some(n) => number::int(n, budget),
        None => Ok(default),
    }
}

fn round(value: &Value, given: Given, budget: &Budget) -> Result<Value> {
    let [precision, method] = given.bind("round", ["precision", "method"])?;
    let precision = precision.unwrap_or(Value::Int(0));
    let method = match &method {
        None => "common",
        Some(Value::Str(t)) => match t.as_str() {
            "common" => "common",
            "ceil" => "ceil",
            "floor" => "floor",
            _ => return fail("method must be common, ceil or floor"),
        },
        Some(_) => return fail("method must be common, ceil or floor"),
    };
    value.defined()?;
    if method == "common" {
        let places = match precision {
            // `round(x, None)` is an integer.
            Value::None => None,
            other => Some(index_of(&other)?),
        };
        return match (value, places) {
            (Value::Float(f), None) => number::truncated(number::round_float(*f, 0), budget),
            (Value::Float(f), Some(places)) => budget
                .step(10)
                .map(|()| Value::Float(number::round_float(*f, places))),
            (other, places) => match big(other) {
                Some(n) if places.is_none_or(|p| p >= 0) => number::int(n, budget),
                Some(n) => {
                    let places = places.unwrap_or(0).unsigned_abs().min(5100) as u32;
                    budget.step(1000)?;
                    number::int(number::round_int(&n, places), budget)
                }
                None => fail(format!(
                    "type {} doesn't define __round__ method",
                    value.type_name()
                )),
            },
        };
    }
    let unit = binary(Op::Pow, &Value::Int(10), &precision, budget)?;
    let scaled = binary(Op::Mul, value, &unit, budget)?;
    let whole = match &scaled {
        Value::Float(f) if f.is_finite() => {
            let f = if method == "ceil" {
                f.ceil()
            } else {
                f.floor()
            };
            number::truncated(f, budget)?
        }
        Value::Float(_) => return fail("cannot convert a float that is not finite to integer"),
        other if big(other).is_some() => sign(false, other, budget)?,
        other => return fail(format!("must be real number, not {}", other.type_name())),
    };
    binary(Op::Div, &whole, &unit, budget)
}

fn file_size(value: &Value, given: Given, budget: &Budget) -> Result<Value> {
    let [binary] = given.bind("filesizeformat", ["binary"])?;
    let binary = binary.is_some_and(|b| b.truth());
    let bytes = need(
        to_float(value, budget)?.map(Value::Float),
        "filesizeformat",
        "a number",
    );
    let bytes = match bytes {
        Ok(Value::Float(f)) => f,
        _ => return fail("filesizeformat: a number is expected"),
    };
    let base = if binary { 1024f64 } else { 1000f64 };
    if bytes == 1.0 {
        return Value::text("1 Byte", budget);
    }
    if bytes < base {
        let whole = number::truncated(bytes, budget)?;
        let n = small(&whole).ok_or_else(|| Error::new("filesizeformat: a size is expected"))?;
        return Value::text(format!("{n} Bytes"), budget);
    }
    if !bytes.is_finite() {
        return fail("filesizeformat: a size is expected");
    }
    let mut unit = base;
    let last = "KMGTPEZY".len() - 1;
    for (i, letter) in "KMGTPEZY".chars().enumerate() {
        unit *= base;
        if bytes < unit || i == last {
            let prefix = match (binary, letter) {
                (true, c) => format!("{c}iB"),
                (false, 'K') => "kB".to_string(),
                (false, c) => format!("{c}B"),
            };
            return Value::text(format!("{:.1} {prefix}", base * bytes / unit), budget);
        }
    }
    fail("filesizeformat: a size is expected")
}
