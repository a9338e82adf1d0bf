//! Attributes, items and slices of values.

use crate::budget::Budget;
use crate::error::{Result, fail};
use crate::ops::index_of;
use crate::value::{Missing, Object, PLACE, Text, Value};
use std::rc::Rc;

const STR: &[&str] = &[
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];
const MARKUP: &[&str] = &["escape", "striptags", "unescape"];
const LIST: &[&str] = &["copy", "count", "index"];
const LIST_CHANGES: &[&str] = &[
    "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort",
];
const DICT: &[&str] = &["copy", "fromkeys", "get", "items", "keys", "values"];
const DICT_CHANGES: &[&str] = &["clear", "pop", "popitem", "setdefault", "update"];
const TUPLE: &[&str] = &["count", "index"];
const INT: &[&str] = &[
    "as_integer_ratio",
    "bit_count",
    "bit_length",
    "conjugate",
    "from_bytes",
    "to_bytes",
];
const FLOAT: &[&str] = &[
    "as_integer_ratio",
    "conjugate",
    "fromhex",
    "hex",
    "is_integer",
];
const VIEW: &[&str] = &["isdisjoint", "mapping"];
/// Attributes that every object of Python has; the sandbox hides them.
const HIDDEN: &[&str] = &[
    "__class__",
    "__doc__",
    "__init__",
    "__dict__",
    "__eq__",
    "__ne__",
    "__lt__",
    "__le__",
    "__gt__",
    "__ge__",
    "__hash__",
    "__str__",
    "__repr__",
    "__new__",
    "__dir__",
    "__format__",
    "__getattribute__",
    "__setattr__",
    "__delattr__",
    "__reduce__",
    "__reduce_ex__",
    "__sizeof__",
    "__init_subclass__",
    "__subclasshook__",
    "__module__",
    "__len__",
    "__iter__",
    "__contains__",
    "__getitem__",
    "__add__",
    "__mul__",
    "__globals__",
];

fn hidden(of: &Value, name: &str) -> Value {
    Value::missing(format!(
        "access to attribute '{name}' of '{}' object is unsafe: a chat template cannot change lists and dicts, nor see what is Python's own",
        of.type_name()
    ))
}

/// A real attribute of a value, `None` where its type has none of this name.
#[inline(never)]
fn own(of: &Value, name: &str, budget: &Budget) -> Result<Option<Value>> {
    let method = |known: &[&str]| {
        known
            .contains(&name)
            .then(|| Object::Method(of.clone(), Text::fixed(name)))
    };
    let changes = match of {
        Value::List(_) => LIST_CHANGES.contains(&name),
        Value::Dict(_) => DICT_CHANGES.contains(&name),
        _ => false,
    };
    if changes || (HIDDEN.contains(&name) && !matches!(of, Value::Object(_))) {
        return Ok(Some(hidden(of, name)));
    }
    let found = match of {
        Value::Str(t) if t.is_markup() => method(STR).or_else(|| method(MARKUP)),
        Value::Str(_) => method(STR),
        Value::List(_) => method(LIST),
        Value::Tuple(s) if s.group && matches!(name, "grouper" | "list") => {
            return Ok(s.items.get(usize::from(name == "list")).cloned());
        }
        Value::Tuple(_) => method(TUPLE),
        Value::Dict(_) => method(DICT),
        Value::View(_) => method(VIEW),
        Value::Bool(_) | Value::Int(_) | Value::Big(_) => match name {
            "real" | "numerator" => return crate::ops::sign(false, of, budget).map(Some),
            "imag" => return Ok(Some(Value::Int(0))),
            "denominator" => return Ok(Some(Value::Int(1))),
            _ => method(INT),
        },
        Value::Float(_) => match name {
            "real" => return Ok(Some(of.clone())),
            "imag" => return Ok(Some(Value::Float(0.0))),
            _ => method(FLOAT),
        },
        Value::Range(r) => match name {
            "start" => return Ok(Some(Value::Int(r.start))),
            "stop" => return Ok(Some(Value::Int(r.stop))),
            "step" => return Ok(Some(Value::Int(r.step))),
            _ => method(TUPLE),
        },
        Value::Object(o) => return of_object(of, o, name, budget),
        _ => None,
    };
    found.map(|o| Value::object(o, budget)).transpose()
}

fn of_object(of: &Value, object: &Object, name: &str, budget: &Budget) -> Result<Option<Value>> {
    let known: &[&str] = match object {
        Object::Namespace(attrs) => {
            let attrs = attrs.borrow();
            budget.step(attrs.len() as u64 / 16)?;
            let found = attrs.iter().find(|a| a.0.as_str() == name);
            return Ok(found.map(|a| a.1.clone()));
        }
        Object::Loop(l) => match l.attr(name) {
            Some(value) => return Ok(Some(value)),
            None if matches!(
                name,
                "last" | "nextitem" | "length" | "revindex" | "revindex0"
            ) =>
            {
                return fail(format!("loop.{name} is not supported by this filter"));
            }
            None => &["changed", "cycle"],
        },
        Object::Cycler(items, at) => match name {
            "current" => return Ok(items.items.get(at.get()).cloned()),
            "items" => return Ok(Some(Value::Tuple(items.clone()))),
            "pos" => return Ok(Some(Value::int(at.get()))),
            _ => &["next", "reset"],
        },
        Object::Joiner(sep, used) => match name {
            "sep" => return Ok(Some(Value::Str(sep.clone()))),
            "used" => return Ok(Some(Value::Bool(used.get()))),
            _ => &[],
        },
        Object::Function("dict") => &["fromkeys"],
        Object::Macro(..)
            if matches!(
                name,
                "name" | "arguments" | "catch_kwargs" | "catch_varargs" | "caller"
            ) =>
        {
            return fail(format!("attribute '{name}' of a macro is not supported"));
        }
        _ => &[],
    };
    match known.contains(&name) {
        true => Value::object(Object::Method(of.clone(), Text::fixed(name)), budget).map(Some),
        false => Ok(None),
    }
}

fn missing(of: &Value, key: &Value) -> Value {
    // What is missing holds no value that holds others: it would be one more level than is counted.
    let key = match key {
        Value::Str(_) | Value::Int(_) => key.clone(),
        other => Value::from(other.type_name()),
    };
    Value::Undefined(Rc::new(Missing::Attr(of.type_name(), key)))
}

/// `of.name`: an attribute, else an item.
#[inline(never)]
pub(crate) fn attr(of: &Value, name: &Text, budget: &Budget) -> Result<Value> {
    if of.is_undefined() && HIDDEN.contains(&name.as_str()) {
        return Ok(hidden(of, name.as_str()));
    }
    of.defined()?;
    if let Value::Dict(d) = of
        && !DICT.contains(&name.as_str())
        && !name.as_str().starts_with("__")
        && let Some(value) = d.field(name.as_str())
        && !DICT_CHANGES.contains(&name.as_str())
    {
        return Ok(value.clone());
    }
    if let Some(value) = own(of, name.as_str(), budget)? {
        return Ok(value);
    }
    let key = Value::Str(name.clone());
    match of {
        Value::Dict(d) => Ok(d
            .get(&key, budget)?
            .cloned()
            .unwrap_or_else(|| missing(of, &key))),
        _ => Ok(missing(of, &key)),
    }
}

/// `of[key]`: an item, else an attribute.
#[inline(never)]
pub(crate) fn item(of: &Value, key: &Value, budget: &Budget) -> Result<Value> {
    budget.step(1)?;
    of.defined()?;
    let found = match of {
        Value::Dict(d) => match crate::dict::check_hash(key) {
            Ok(()) => d.get(key, budget)?.cloned(),
            Err(_) => None,
        },
        Value::List(s) | Value::Tuple(s) => place(key, s.items.len()).map(|at| s.items[at].clone()),
        Value::Range(r) => place(key, r.len).and_then(|at| r.get(at)).map(Value::Int),
        Value::Str(t) => match is_place(key) {
            true => {
                budget.scan(t.as_str().len())?;
                let ascii = t.as_str().is_ascii();
                let len = match ascii {
                    true => t.as_str().len(),
                    false => t.as_str().chars().count(),
                };
                let at = place(key, len);
                let c = at.and_then(|at| match ascii {
                    true => Some(char::from(t.as_str().as_bytes()[at])),
                    false => t.as_str().chars().nth(at),
                });
                c.map(|c| Value::marked(c.to_string(), t.is_markup(), budget))
                    .transpose()?
            }
            false => None,
        },
        _ => None,
    };
    if let Some(value) = found {
        return Ok(value);
    }
    if let Value::Str(name) = key
        && let Some(value) = own(of, name.as_str(), budget)?
    {
        return Ok(value);
    }
    Ok(missing(of, key))
}

fn is_place(key: &Value) -> bool {
    matches!(key, Value::Int(_) | Value::Bool(_) | Value::Big(_))
}

/// The place that an index means, counted from the end where it is negative.
fn place(key: &Value, len: usize) -> Option<usize> {
    let at = match key {
        Value::Int(n) => *n,
        Value::Bool(b) => i64::from(*b),
        _ => return None,
    };
    let at = if at < 0 {
        at.checked_add(len as i64)?
    } else {
        at
    };
    usize::try_from(at).ok().filter(|at| *at < len)
}

/// The first place, how many, and how far apart: a slice of so many items.
fn slice_places(parts: [Option<Value>; 3], len: usize) -> Result<(i64, usize, i64)> {
    let given = |v: Option<Value>| match v {
        None | Some(Value::None) => Ok(None),
        Some(v) => index_of(&v).map(Some).or_else(|e| match v {
            Value::Undefined(_) => Err(e),
            _ => fail("slice indices must be integers or None or have an __index__ method"),
        }),
    };
    let [start, stop, step] = parts;
    let (start, stop, step) = (given(start)?, given(stop)?, given(step)?.unwrap_or(1));
    if step == 0 {
        return fail("slice step cannot be zero");
    }
    let len = len as i64;
    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let clamp = |at: i64| {
        let at = if at < 0 { at.saturating_add(len) } else { at };
        at.clamp(low, high)
    };
    let start = start.map_or(if step > 0 { low } else { high }, clamp);
    let stop = stop.map_or(if step > 0 { high } else { low }, clamp);
    let gap = if step > 0 { stop - start } else { start - stop };
    let count = match gap > 0 {
        true => (gap as u64 - 1) / step.unsigned_abs() + 1,
        false => 0,
    };
    Ok((start, count as usize, step))
}

/// `of[start:stop:step]`
#[inline(never)]
pub(crate) fn slice(of: &Value, parts: [Option<Value>; 3], budget: &Budget) -> Result<Value> {
    of.defined()?;
    match of {
        Value::Str(t) => {
            let text = t.as_str();
            budget.scan(text.len())?;
            let part = match text.is_ascii() {
                true => {
                    let (start, count, step) = slice_places(parts, text.len())?;
                    budget.room(count)?;
                    let at =
                        |i: usize| char::from(text.as_bytes()[(start + step * i as i64) as usize]);
                    match step {
                        1 => text[start as usize..start as usize + count].to_string(),
                        _ => (0..count).map(at).collect(),
                    }
                }
                false => {
                    budget.room(text.len().saturating_mul(4))?;
                    let chars: Vec<char> = text.chars().collect();
                    let (start, count, step) = slice_places(parts, chars.len())?;
                    let at = |i: usize| chars[(start + step * i as i64) as usize];
                    (0..count).map(at).collect()
                }
            };
            Value::marked(part, t.is_markup(), budget)
        }
        Value::List(s) | Value::Tuple(s) => {
            let (start, count, step) = slice_places(parts, s.items.len())?;
            budget.room(count * PLACE)?;
            let at = |i: usize| s.items[(start + step * i as i64) as usize].clone();
            let items = (0..count).map(at).collect();
            match of {
                Value::List(_) => Value::list(items, budget),
                _ => Value::tuple(items, budget),
            }
        }
        Value::Range(r) => {
            let (start, count, step) = slice_places(parts, r.len)?;
            let at = |i: i64| r.start.wrapping_add(r.step.wrapping_mul(i));
            let by = r.step.saturating_mul(step);
            let stop = at(start).saturating_add(by.saturating_mul(count as i64));
            let part = crate::value::Range::new(at(start), stop, by)?;
            Ok(Value::Range(Rc::new(part)))
        }
        Value::Dict(_) => fail("unhashable type: 'slice'"),
        other => fail(format!(
            "'{}' object is not subscriptable",
            other.type_name()
        )),
    }
}

/// A value by a path of attributes with dots between them, as filters take it: numbers are places.
pub(crate) fn path(of: &Value, path: &Value, budget: &Budget) -> Result<Value> {
    let Value::Str(text) = path else {
        return item(of, path, budget);
    };
    let mut at = of.clone();
    for part in text.as_str().split('.') {
        let digits = !part.is_empty() && part.chars().all(crate::unicode::is_digit);
        let key = match digits {
            true => match crate::number::parse_int(part, 10) {
                Some(n) => crate::number::int(n, budget)?,
                None => return fail("a path of attributes with a number that Python cannot read"),
            },
            false => Value::text(part, budget)?,
        };
        at = item(&at, &key, budget)?;
    }
    Ok(at)
}
