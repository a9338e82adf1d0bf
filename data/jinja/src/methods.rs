//! Methods of lists, dicts, numbers and the like. Those of strings have a file of their own.

use crate::args::{Given, unsupported};
use crate::budget::Budget;
use crate::cursor::items;
use crate::dict::Dict;
use crate::error::{Result, fail};
use crate::ops::{equal, index_of};
use crate::value::{Object, Seq, Value, View};
use std::rc::Rc;

/// Calls a method.
#[inline(never)]
pub(crate) fn call(of: &Value, name: &str, given: Given, budget: &Budget) -> Result<Value> {
    budget.step(1)?;
    match of {
        Value::Str(t) => crate::str_methods::call(t, name, given, budget),
        Value::List(s) | Value::Tuple(s) => of_seq(of, s, name, given, budget),
        Value::Dict(d) => of_dict(d, name, given, budget),
        Value::Range(_) => {
            let all = Seq::new(items(of, budget)?, budget)?;
            of_seq(of, &all, name, given, budget)
        }
        Value::View(v) if name == "isdisjoint" => {
            let [other] = given.plain("isdisjoint", 1)?;
            for item in items(&other.unwrap_or(Value::None), budget)? {
                if crate::ops::has(&v.items, &item, budget)? {
                    return Ok(Value::Bool(false));
                }
            }
            Ok(Value::Bool(true))
        }
        Value::Float(f) if name == "is_integer" => {
            let _: [Option<Value>; 0] = given.plain(name, 0)?;
            Ok(Value::Bool(f.is_finite() && f.fract() == 0.0))
        }
        Value::Bool(_) | Value::Int(_) | Value::Big(_) | Value::Float(_) if name == "conjugate" => {
            let _: [Option<Value>; 0] = given.plain(name, 0)?;
            crate::ops::sign(false, of, budget)
        }
        Value::Bool(_) | Value::Int(_) | Value::Big(_)
            if matches!(name, "bit_length" | "bit_count") =>
        {
            let _: [Option<Value>; 0] = given.plain(name, 0)?;
            let n = crate::ops::big_of(of)?;
            Ok(match name {
                "bit_length" => Value::Int(n.bits() as i64),
                _ => Value::Int(n.magnitude().count_ones() as i64),
            })
        }
        Value::Object(o) => of_object(o, name, given, budget),
        _ => unsupported(of, name),
    }
}

fn of_object(object: &Rc<Object>, name: &str, given: Given, budget: &Budget) -> Result<Value> {
    match (&**object, name) {
        (Object::Loop(l), "cycle") => l.cycle(&given.positional),
        (Object::Loop(l), "changed") => l.changed(given.positional, budget).map(Value::Bool),
        (Object::Cycler(all, at), "next") => {
            let value = all.items[at.get()].clone();
            at.set((at.get() + 1) % all.items.len());
            Ok(value)
        }
        (Object::Cycler(_, at), "reset") => {
            at.set(0);
            Ok(Value::None)
        }
        (Object::Function("dict"), "fromkeys") => from_keys(given, budget),
        _ => fail(format!(
            "method '{name}' is not supported in chat templates here"
        )),
    }
}

fn of_seq(of: &Value, seq: &Seq, name: &str, given: Given, budget: &Budget) -> Result<Value> {
    match name {
        "count" => {
            let [item] = given.plain(name, 1)?;
            let item = item.unwrap_or(Value::None);
            let mut n = 0;
            for other in &seq.items {
                n += i64::from(equal(other, &item, budget)?);
            }
            Ok(Value::Int(n))
        }
        "index" => {
            let [item, start, stop] = given.plain(name, 1)?;
            let item = item.unwrap_or(Value::None);
            let len = seq.items.len() as i64;
            let place = |v: Option<Value>, absent: i64| -> Result<i64> {
                let at = v.map_or(Ok(absent), |v| index_of(&v))?;
                Ok(if at < 0 {
                    at.saturating_add(len).max(0)
                } else {
                    at
                })
            };
            let (start, stop) = (place(start, 0)?, place(stop, i64::MAX)?);
            for (other, at) in seq.items.iter().zip(0i64..) {
                if at >= start && at < stop && equal(other, &item, budget)? {
                    return Ok(Value::Int(at));
                }
            }
            fail(format!(
                "{}.index(x): x not in {}",
                of.type_name(),
                of.type_name()
            ))
        }
        "copy" => {
            let _: [Option<Value>; 0] = given.plain(name, 0)?;
            Value::list(items(of, budget)?, budget)
        }
        _ => unsupported(of, name),
    }
}

fn of_dict(dict: &Rc<Dict>, name: &str, given: Given, budget: &Budget) -> Result<Value> {
    match name {
        "get" => {
            let [key, default] = given.plain(name, 1)?;
            let found = dict.get(&key.unwrap_or(Value::None), budget)?.cloned();
            Ok(found.or(default).unwrap_or(Value::None))
        }
        "items" | "keys" | "values" => {
            let _: [Option<Value>; 0] = given.plain(name, 0)?;
            view(dict, name, budget)
        }
        "copy" => {
            let _: [Option<Value>; 0] = given.plain(name, 0)?;
            budget.step(1)?;
            Ok(Value::Dict(dict.clone()))
        }
        "fromkeys" => from_keys(given, budget),
        _ => unsupported(&Value::Dict(dict.clone()), name),
    }
}

/// The keys, values or items of a dict, as Python calls them.
pub(crate) fn view(dict: &Dict, name: &str, budget: &Budget) -> Result<Value> {
    use crate::value::{OVERHEAD, PLACE};
    let each = if name == "items" {
        3 * PLACE + OVERHEAD
    } else {
        PLACE
    };
    budget.room(dict.len().saturating_mul(each))?;
    let mut all = Vec::with_capacity(dict.len());
    for (key, value) in dict.pairs() {
        all.push(match name {
            "keys" => key.clone(),
            "values" => value.clone(),
            _ => Value::tuple(vec![key.clone(), value.clone()], budget)?,
        });
    }
    let name = match name {
        "keys" => "dict_keys",
        "values" => "dict_values",
        _ => "dict_items",
    };
    let items = Seq::new(all, budget)?;
    Ok(Value::View(Rc::new(View { name, items })))
}

fn from_keys(given: Given, budget: &Budget) -> Result<Value> {
    let [keys, value] = given.plain("fromkeys", 1)?;
    let value = value.unwrap_or(Value::None);
    let keys = items(&keys.unwrap_or(Value::None), budget)?;
    let pairs = keys.into_iter().map(|k| (k, value.clone()));
    Ok(Value::Dict(Rc::new(Dict::of(pairs, budget)?)))
}
