//! Global functions: Jinja's, and those that transformers adds.

use crate::args::{Given, required};
use crate::budget::Budget;
use crate::cursor::items;
use crate::dict::Dict;
use crate::error::{Result, fail};
use crate::ops::index_of;
use crate::print::str_of;
use crate::value::{Object, Range, Seq, Value};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Their names.
pub(crate) const NAMES: [&str; 8] = [
    "range",
    "dict",
    "namespace",
    "cycler",
    "joiner",
    "lipsum",
    "raise_exception",
    "strftime_now",
];

/// Calls a global function.
#[inline(never)]
pub(crate) fn call(name: &str, given: Given, budget: &Budget) -> Result<Value> {
    match name {
        "range" => range(given),
        "dict" => Ok(Value::Dict(Rc::new(dict(given, budget)?))),
        "namespace" => namespace(given, budget),
        "cycler" => {
            if !given.named.is_empty() {
                return fail("cycler() takes no keyword arguments");
            }
            if given.positional.is_empty() {
                return fail("at least one item has to be provided");
            }
            let items = Seq::new(given.positional, budget)?;
            Value::object(Object::Cycler(items, Cell::new(0)), budget)
        }
        "joiner" => {
            let [sep] = given.bind("joiner", ["sep"])?;
            let sep = match sep {
                None => Value::text(", ", budget)?,
                Some(sep) => sep,
            };
            let sep = crate::args::text_of(&sep, "joiner")?;
            Value::object(Object::Joiner(sep, Cell::new(false)), budget)
        }
        "raise_exception" => {
            let [message] = given.bind("raise_exception", ["message"])?;
            let message = required(message, "raise_exception", "message")?;
            fail(str_of(&message, budget)?)
        }
        other => fail(format!(
            "function {other}() is not supported: its result is another one in every rendering"
        )),
    }
}

fn range(given: Given) -> Result<Value> {
    let [first, second, third]: [Option<Value>; 3] = given.plain("range", 1)?;
    let number = |v: Option<Value>, absent: i64| v.map_or(Ok(absent), |v| index_of(&v));
    let range = match second {
        None => Range::new(0, number(first, 0)?, 1)?,
        Some(_) => Range::new(number(first, 0)?, number(second, 0)?, number(third, 1)?)?,
    };
    Ok(Value::Range(Rc::new(range)))
}

/// Python's `dict(pairs, **named)`.
pub(crate) fn dict(given: Given, budget: &Budget) -> Result<Dict> {
    let Given { positional, named } = given;
    if positional.len() > 1 {
        return fail(format!(
            "dict expected at most 1 argument, got {}",
            positional.len()
        ));
    }
    let mut all = Vec::new();
    match positional.first() {
        None => {}
        Some(Value::Dict(d)) => {
            budget.room(d.len() * crate::value::PLACE)?;
            all.extend(d.pairs().iter().cloned());
        }
        Some(other) => {
            other.defined()?;
            for pair in items(other, budget)? {
                let parts = items(&pair, budget)?;
                let [key, value] = parts.as_slice() else {
                    return fail(format!(
                        "dictionary update sequence element has length {}; 2 is required",
                        parts.len()
                    ));
                };
                all.push((key.clone(), value.clone()));
            }
        }
    }
    all.extend(named.into_iter().map(|(k, v)| (Value::Str(k), v)));
    Dict::of(all, budget)
}

fn namespace(given: Given, budget: &Budget) -> Result<Value> {
    let made = dict(given, budget)?;
    let mut attrs = Vec::with_capacity(made.len());
    for (key, value) in made.pairs() {
        let Value::Str(name) = key else {
            return fail("the attributes of a namespace have names that are no strings");
        };
        crate::vm::check_attr(name.as_str())?;
        value.check_for_namespace(name.as_str())?;
        attrs.push((name.clone(), value.clone()));
    }
    Value::object(Object::Namespace(RefCell::new(attrs)), budget)
}
