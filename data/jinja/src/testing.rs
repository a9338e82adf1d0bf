//! Jinja's tests: `x is defined` and the like.

use crate::args::{Given, required};
use crate::ast::{Cmp, Op};
use crate::budget::Budget;
use crate::cursor::Cursor;
use crate::error::{Result, fail};
use crate::ops;
use crate::print::str_of;
use crate::text::has_case;
use crate::value::{Object, Value};
use std::rc::Rc;

/// Their names.
const NAMES: &[&str] = &[
    "odd",
    "even",
    "divisibleby",
    "defined",
    "undefined",
    "filter",
    "test",
    "none",
    "boolean",
    "false",
    "true",
    "integer",
    "float",
    "lower",
    "upper",
    "string",
    "mapping",
    "number",
    "sequence",
    "iterable",
    "callable",
    "sameas",
    "escaped",
    "in",
    "==",
    "eq",
    "equalto",
    "!=",
    "ne",
    ">",
    "gt",
    "greaterthan",
    "ge",
    ">=",
    "<",
    "lt",
    "lessthan",
    "<=",
    "le",
];

/// Returns true if a test holds.
#[inline(never)]
pub(crate) fn call(name: &str, value: &Value, given: Given, budget: &Budget) -> Result<bool> {
    if let Some(op) = comparison(name) {
        let [other] = given.plain(name, 1)?;
        let other = other.unwrap_or(Value::None);
        return match op {
            // `x is in y`
            Cmp::In => ops::contains(&other, value, budget),
            op => ops::compare(op, value, &other, budget),
        };
    }
    match name {
        "divisibleby" => {
            let [num] = given.bind(name, ["num"])?;
            let num = required(num, name, "num")?;
            return rest_is(value, &num, 0, budget);
        }
        "sameas" => {
            let [other] = given.bind(name, ["other"])?;
            return same(value, &required(other, name, "other")?);
        }
        _ => {}
    }
    let _: [Option<Value>; 0] = given.plain(name, 0)?;
    Ok(match name {
        "odd" => rest_is(value, &Value::Int(2), 1, budget)?,
        "even" => rest_is(value, &Value::Int(2), 0, budget)?,
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_) | Value::Big(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => matches!(
            value,
            Value::Bool(_) | Value::Int(_) | Value::Big(_) | Value::Float(_)
        ),
        "lower" => has_case(&str_of(value, budget)?, false),
        "upper" => has_case(&str_of(value, budget)?, true),
        "string" => matches!(value, Value::Str(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        "sequence" => matches!(
            value,
            Value::Undefined(_)
                | Value::Str(_)
                | Value::List(_)
                | Value::Tuple(_)
                | Value::Dict(_)
                | Value::Range(_)
        ),
        "iterable" => match value {
            Value::Object(o) => matches!(**o, Object::Loop(_)),
            other => Cursor::new(other).is_ok(),
        },
        "callable" => match value {
            Value::Object(o) => !matches!(**o, Object::Namespace(_) | Object::Cycler(..)),
            other => other.is_undefined(),
        },
        "escaped" => matches!(value, Value::Str(t) if t.is_markup()),
        "filter" => named(value, crate::filters::NAMES)?,
        "test" => named(value, NAMES)?,
        _ => return fail(format!("No test named '{name}'")),
    })
}

fn named(value: &Value, names: &[&str]) -> Result<bool> {
    crate::dict::check_hash(value)?;
    Ok(value.as_str().is_some_and(|v| names.contains(&v)))
}

fn comparison(name: &str) -> Option<Cmp> {
    Some(match name {
        "==" | "eq" | "equalto" => Cmp::Eq,
        "!=" | "ne" => Cmp::Ne,
        ">" | "gt" | "greaterthan" => Cmp::Gt,
        ">=" | "ge" => Cmp::Ge,
        "<" | "lt" | "lessthan" => Cmp::Lt,
        "<=" | "le" => Cmp::Le,
        "in" => Cmp::In,
        _ => return None,
    })
}

fn rest_is(value: &Value, by: &Value, wanted: i64, budget: &Budget) -> Result<bool> {
    let rest = ops::binary(Op::Mod, value, by, budget)?;
    ops::equal(&rest, &Value::Int(wanted), budget)
}

/// Python's `is`, as far as it does not depend on where CPython puts a value.
fn same(a: &Value, b: &Value) -> Result<bool> {
    Ok(match (a, b) {
        (Value::None, Value::None) => true,
        (Value::Bool(x), Value::Bool(y)) => x == y,
        (Value::Int(x), Value::Int(y)) if x != y => false,
        // CPython keeps one copy of each of these.
        (Value::Int(x), Value::Int(_)) if (-5..=256).contains(x) => true,
        (Value::Str(x), Value::Str(y)) if x.is(y) => true,
        (Value::Str(x), Value::Str(y)) if x.as_str() != y.as_str() => false,
        (Value::List(x), Value::List(y)) | (Value::Tuple(x), Value::Tuple(y)) => Rc::ptr_eq(x, y),
        (Value::Dict(x), Value::Dict(y)) => Rc::ptr_eq(x, y),
        (Value::Object(x), Value::Object(y)) => Rc::ptr_eq(x, y),
        (Value::Undefined(x), Value::Undefined(y)) => Rc::ptr_eq(x, y),
        _ if std::mem::discriminant(a) != std::mem::discriminant(b) => false,
        _ => {
            return fail(format!(
                "sameas of two values of type {}: whether they are one object depends on Python; compare them by ==",
                a.type_name()
            ));
        }
    })
}
