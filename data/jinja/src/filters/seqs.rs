//! Filters of sequences: choosing, ordering, grouping.

use super::need;
use crate::args::Given;
use crate::ast::Op;
use crate::attrs;
use crate::budget::Budget;
use crate::cursor::{Cursor, items};
use crate::error::{Result, fail};
use crate::ops::{binary, equal, index_of, order};
use crate::print::{Writer, str_of};
use crate::sorting::sorted;
use crate::testing;
use crate::value::{OVERHEAD, PLACE, Seq, Value};
use std::cmp::Ordering;

pub(super) fn call(name: &str, value: Value, given: Given, budget: &Budget) -> Result<Value> {
    match name {
        "first" | "last" | "list" | "reverse" | "items" => ends(name, &value, given, budget),
        "join" => join(&value, given, budget),
        "select" | "reject" => choose(&value, given, name == "select", false, budget),
        "selectattr" | "rejectattr" => choose(&value, given, name == "selectattr", true, budget),
        "sort" => sort(&value, given, budget),
        "dictsort" => dict_sort(&value, given, budget),
        "unique" => unique(&value, given, budget),
        "min" | "max" => extreme(&value, given, name == "max", budget),
        "sum" => sum(&value, given, budget),
        "batch" => batch(&value, given, budget),
        "slice" => slice(&value, given, budget),
        "groupby" => group(&value, given, budget),
        _ => {
            let [attr] = given.bind("attr", ["name"])?;
            attribute(&value, &need(attr, "attr", "name")?, budget)
        }
    }
}

/// `attr`: an attribute, and never an item.
fn attribute(value: &Value, name: &Value, budget: &Budget) -> Result<Value> {
    let name = crate::args::text_of(name, "attr")?;
    if let Value::Dict(_) = value {
        let empty = Value::Dict(std::rc::Rc::new(crate::dict::Dict::new()));
        let own = attrs::attr(&empty, &name, budget)?;
        // What an empty dict has, every dict has.
        return match own.is_undefined() {
            true => Ok(own),
            false => attrs::attr(value, &name, budget),
        };
    }
    attrs::attr(value, &name, budget)
}

fn lower(value: Value, budget: &Budget) -> Result<Value> {
    match &value {
        Value::Str(t) => Value::text(t.as_str().to_lowercase(), budget),
        _ => Ok(value),
    }
}

fn flag(value: Option<Value>) -> bool {
    value.is_some_and(|v| v.truth())
}

/// A value's part by a path, `default` where a step leads nowhere, and without case unless that counts.
fn key_of(value: &Value, path: Option<&Value>, cased: bool, budget: &Budget) -> Result<Value> {
    let key = match path {
        None | Some(Value::None) => value.clone(),
        Some(path) => attrs::path(value, path, budget)?,
    };
    match cased {
        true => Ok(key),
        false => lower(key, budget),
    }
}

fn ends(name: &str, value: &Value, given: Given, budget: &Budget) -> Result<Value> {
    let _: [Option<Value>; 0] = given.plain(name, 0)?;
    match name {
        "first" => {
            let first = Cursor::new(value)?.next(budget)?;
            Ok(first.unwrap_or_else(|| Value::missing("No first item, sequence was empty.")))
        }
        "last" => match value {
            Value::Iter(i) => fail(format!("'{}' object is not reversible", i.name)),
            Value::Str(t) => match t.as_str().chars().next_back() {
                Some(c) => Value::marked(c.to_string(), t.is_markup(), budget),
                None => Ok(Value::missing("No last item, sequence was empty.")),
            },
            other => {
                let last = items(other, budget)?.pop();
                Ok(last.unwrap_or_else(|| Value::missing("No last item, sequence was empty.")))
            }
        },
        "list" => Value::list(items(value, budget)?, budget),
        "reverse" => {
            if let Value::Str(t) = value {
                let text: String = t.as_str().chars().rev().collect();
                return Value::marked(text, t.is_markup(), budget);
            }
            let mut all = items(value, budget)?;
            all.reverse();
            let name = match value {
                Value::List(_) => "list_reverseiterator",
                Value::Range(_) => "range_iterator",
                Value::Dict(_) => "dict_reversekeyiterator",
                Value::View(_) => "dict_reverseiterator",
                // What has no order backwards becomes a list.
                Value::Iter(_) => return Value::list(all, budget),
                _ => "reversed",
            };
            Value::iter(name, all, budget)
        }
        _ => match value {
            Value::Undefined(_) => Value::iter("generator", vec![], budget),
            Value::Dict(d) => {
                let view = crate::methods::view(d, "items", budget)?;
                Value::iter("generator", items(&view, budget)?, budget)
            }
            _ => fail("Can only get item pairs from a mapping."),
        },
    }
}

fn join(value: &Value, given: Given, budget: &Budget) -> Result<Value> {
    let [d, path] = given.bind("join", ["d", "attribute"])?;
    let sep = match &d {
        Some(d) => str_of(d, budget)?,
        None => "".into(),
    };
    let mut out = Writer::new(budget);
    let mut cursor = Cursor::new(value)?;
    let mut first = true;
    while let Some(item) = cursor.next(budget)? {
        if !std::mem::take(&mut first) {
            out.push(&sep)?;
        }
        let item = key_of(&item, path.as_ref(), true, budget)?;
        out.push(&str_of(&item, budget)?)?;
    }
    Value::text(out.text, budget)
}

#[inline(never)]
pub(super) fn map(value: &Value, given: Given, budget: &Budget) -> Result<Value> {
    if !value.truth() {
        return Value::iter("generator", vec![], budget);
    }
    let Given {
        mut positional,
        mut named,
    } = given;
    let mut out = Vec::new();
    if positional.is_empty() {
        let mut take = |name: &str| {
            let at = named.iter().position(|n| n.0.as_str() == name)?;
            Some(named.remove(at).1)
        };
        let Some(path) = take("attribute") else {
            return fail("map requires a filter argument");
        };
        let default = take("default").filter(|d| !matches!(d, Value::None));
        if let Some((name, _)) = named.first() {
            return fail(format!("Unexpected keyword argument '{}'", name.as_str()));
        }
        for item in items(value, budget)? {
            let found = key_of(&item, Some(&path), true, budget)?;
            out.push(match (&default, found.is_undefined()) {
                (Some(default), true) => default.clone(),
                _ => found,
            });
        }
        return Value::iter("generator", out, budget);
    }
    let name = positional.remove(0);
    let name = crate::args::text_of(&name, "map")?;
    for item in items(value, budget)? {
        budget.step(positional.len() as u64)?;
        let given = Given {
            positional: positional.clone(),
            named: named.clone(),
        };
        out.push(super::call(name.as_str(), item, given, budget)?);
    }
    Value::iter("generator", out, budget)
}

fn choose(
    value: &Value,
    given: Given,
    wanted: bool,
    by_attribute: bool,
    budget: &Budget,
) -> Result<Value> {
    if !value.truth() {
        return Value::iter("generator", vec![], budget);
    }
    let Given { positional, named } = given;
    let mut args = positional.into_iter();
    let path = match by_attribute {
        true => match args.next() {
            Some(path) => Some(path),
            None => return fail("Missing parameter for attribute name"),
        },
        false => None,
    };
    let test = args.next();
    let rest: Vec<Value> = args.collect();
    let mut out = Vec::new();
    for item in items(value, budget)? {
        budget.step(1 + rest.len() as u64)?;
        let key = key_of(&item, path.as_ref(), true, budget)?;
        let fits = match &test {
            None => key.truth(),
            Some(test) => {
                let test = crate::args::text_of(test, "the name of a test")?;
                let given = Given {
                    positional: rest.clone(),
                    named: named.clone(),
                };
                testing::call(test.as_str(), &key, given, budget)?
            }
        };
        if fits == wanted {
            out.push(item);
        }
    }
    Value::iter("generator", out, budget)
}

/// Values with their keys, in the order of the keys.
fn sorted_by(
    all: Vec<(Value, Value)>,
    reverse: bool,
    budget: &Budget,
) -> Result<Vec<(Value, Value)>> {
    sorted(all, &mut |a, b| {
        let (a, b) = if reverse { (b, a) } else { (a, b) };
        Ok(order(&a.0, &b.0, "<", budget)? == Some(Ordering::Less))
    })
}

fn sort(value: &Value, given: Given, budget: &Budget) -> Result<Value> {
    let params = ["reverse", "case_sensitive", "attribute"];
    let [reverse, cased, path] = given.bind("sort", params)?;
    let cased = flag(cased);
    let paths = match &path {
        Some(Value::Str(t)) => {
            let parts = t.as_str().split(',').map(|p| Value::text(p, budget));
            parts.collect::<Result<Vec<Value>>>()?
        }
        Some(other) => vec![other.clone()],
        None => vec![Value::None],
    };
    let mut all = Vec::new();
    for item in items(value, budget)? {
        let keys = paths.iter().map(|p| key_of(&item, Some(p), cased, budget));
        let keys = keys.collect::<Result<Vec<Value>>>()?;
        all.push((Value::list(keys, budget)?, item));
    }
    let all = sorted_by(all, flag(reverse), budget)?;
    Value::list(all.into_iter().map(|p| p.1).collect(), budget)
}

fn dict_sort(value: &Value, given: Given, budget: &Budget) -> Result<Value> {
    let params = ["case_sensitive", "by", "reverse"];
    let [cased, by, reverse] = given.bind("dictsort", params)?;
    let at = match by.as_ref().map(Value::as_str) {
        None | Some(Some("key")) => 0,
        Some(Some("value")) => 1,
        _ => return fail("You can only sort by either \"key\" or \"value\""),
    };
    value.defined()?;
    let Value::Dict(dict) = value else {
        return fail(format!(
            "'{}' object has no attribute 'items'",
            value.type_name()
        ));
    };
    let cased = flag(cased);
    budget.room(dict.len() * (3 * PLACE + OVERHEAD))?;
    let mut all = Vec::new();
    for (key, value) in dict.pairs() {
        let by = if at == 0 { key } else { value };
        let pair = Value::tuple(vec![key.clone(), value.clone()], budget)?;
        all.push((key_of(by, None, cased, budget)?, pair));
    }
    let all = sorted_by(all, flag(reverse), budget)?;
    Value::list(all.into_iter().map(|p| p.1).collect(), budget)
}

fn unique(value: &Value, given: Given, budget: &Budget) -> Result<Value> {
    let [cased, path] = given.bind("unique", ["case_sensitive", "attribute"])?;
    let cased = flag(cased);
    let mut seen = crate::dict::Dict::new();
    let mut out = Vec::new();
    for item in items(value, budget)? {
        let key = key_of(&item, path.as_ref(), cased, budget)?;
        if seen.get(&key, budget)?.is_none() {
            seen.insert(key, Value::None, budget)?;
            out.push(item);
        }
    }
    Value::iter("generator", out, budget)
}

fn extreme(value: &Value, given: Given, largest: bool, budget: &Budget) -> Result<Value> {
    let of = if largest { "max" } else { "min" };
    let [cased, path] = given.bind(of, ["case_sensitive", "attribute"])?;
    let cased = flag(cased);
    let mut best: Option<(Value, Value)> = None;
    for item in items(value, budget)? {
        let key = key_of(&item, path.as_ref(), cased, budget)?;
        let better = match &best {
            None => true,
            Some((other, _)) if largest => {
                order(&key, other, ">", budget)? == Some(Ordering::Greater)
            }
            Some((other, _)) => order(&key, other, "<", budget)? == Some(Ordering::Less),
        };
        if better {
            best = Some((key, item));
        }
    }
    Ok(best.map_or_else(
        || Value::missing("No aggregated item, sequence was empty."),
        |b| b.1,
    ))
}

fn sum(value: &Value, given: Given, budget: &Budget) -> Result<Value> {
    let [path, start] = given.bind("sum", ["attribute", "start"])?;
    let mut total = start.unwrap_or(Value::Int(0));
    if let Value::Str(_) = total {
        return fail("sum() can't sum strings [use ''.join(seq) instead]");
    }
    for item in items(value, budget)? {
        let item = key_of(&item, path.as_ref(), true, budget)?;
        total = binary(Op::Add, &total, &item, budget)?;
    }
    Ok(total)
}

fn batch(value: &Value, given: Given, budget: &Budget) -> Result<Value> {
    let [count, fill] = given.bind("batch", ["linecount", "fill_with"])?;
    let count = need(count, "batch", "linecount")?;
    // A count that is no integer is never reached.
    let count = crate::ops::integer_of(&count).unwrap_or(-1);
    let fill = fill.filter(|f| !matches!(f, Value::None));
    let mut out = Vec::new();
    let mut row: Vec<Value> = Vec::new();
    for item in items(value, budget)? {
        if row.len() as i64 == count {
            out.push(Value::list(std::mem::take(&mut row), budget)?);
        }
        row.push(item);
    }
    if !row.is_empty() {
        if let Some(fill) = fill {
            let gap = usize::try_from(count)
                .unwrap_or(0)
                .saturating_sub(row.len());
            budget.room(gap.saturating_mul(PLACE))?;
            row.extend(std::iter::repeat_n(fill, gap));
        }
        out.push(Value::list(row, budget)?);
    }
    Value::iter("generator", out, budget)
}

fn slice(value: &Value, given: Given, budget: &Budget) -> Result<Value> {
    let [slices, fill] = given.bind("slice", ["slices", "fill_with"])?;
    let slices = index_of(&need(slices, "slice", "slices")?)?;
    let all = items(value, budget)?;
    if slices == 0 {
        return fail("integer division or modulo by zero");
    }
    let slices = usize::try_from(slices).unwrap_or(0);
    budget.room(slices.saturating_mul(PLACE + OVERHEAD))?;
    let fill = fill.filter(|f| !matches!(f, Value::None));
    let (each, extra) = match slices {
        0 => (0, 0),
        n => (all.len() / n, all.len() % n),
    };
    let mut out = Vec::with_capacity(slices);
    let mut at = 0;
    for i in 0..slices {
        let end = at + each + usize::from(i < extra);
        let mut part = all[at..end].to_vec();
        at = end;
        if i >= extra {
            part.extend(fill.clone());
        }
        out.push(Value::list(part, budget)?);
    }
    Value::iter("generator", out, budget)
}

fn group(value: &Value, given: Given, budget: &Budget) -> Result<Value> {
    let params = ["attribute", "default", "case_sensitive"];
    let [path, default, cased] = given.bind("groupby", params)?;
    let path = need(path, "groupby", "attribute")?;
    let default = default.filter(|d| !matches!(d, Value::None));
    let cased = flag(cased);
    let key_of = |item: &Value| -> Result<Value> {
        let found = key_of(item, Some(&path), true, budget)?;
        Ok(match (&default, found.is_undefined()) {
            (Some(default), true) => default.clone(),
            _ => found,
        })
    };
    let mut all = Vec::new();
    for item in items(value, budget)? {
        let key = key_of(&item)?;
        let key = if cased { key } else { lower(key, budget)? };
        all.push((key, item));
    }
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (key, item) in sorted_by(all, false, budget)? {
        match groups.last_mut() {
            Some((last, members)) if equal(last, &key, budget)? => members.push(item),
            _ => groups.push((key, vec![item])),
        }
    }
    let mut out = Vec::with_capacity(groups.len());
    for (key, members) in groups {
        // Without case the first item's own key names the group.
        let shown = match (cased, members.first()) {
            (false, Some(first)) => key_of(first)?,
            _ => key,
        };
        let members = Value::list(members, budget)?;
        out.push(Value::Tuple(Seq::group(vec![shown, members], budget)?));
    }
    Value::list(out, budget)
}
