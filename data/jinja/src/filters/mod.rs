//! Jinja's filters, and `tojson` as transformers has it.

mod numbers;
mod seqs;
mod texts;

use crate::args::{Given, required};
use crate::budget::Budget;
use crate::cursor::len;
use crate::error::{Result, fail};
use crate::json::Style;
use crate::print::{Writer, escape, str_of};
use crate::value::Value;

/// Their names.
pub(crate) const NAMES: &[&str] = &[
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "filesizeformat",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "items",
    "map",
    "min",
    "max",
    "pprint",
    "random",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "urlize",
    "wordcount",
    "wordwrap",
    "xmlattr",
    "tojson",
];

/// Applies a filter.
#[inline(never)]
pub(crate) fn call(name: &str, value: Value, given: Given, budget: &Budget) -> Result<Value> {
    // Filters apply filters: `map`.
    budget.enter()?;
    let done = apply(name, value, given, budget);
    budget.leave();
    done
}

fn apply(name: &str, value: Value, given: Given, budget: &Budget) -> Result<Value> {
    match name {
        // It applies filters itself, and comes before what takes much of the stack.
        "map" => seqs::map(&value, given, budget),
        _ => plain(name, value, given, budget),
    }
}

#[inline(never)]
fn plain(name: &str, value: Value, given: Given, budget: &Budget) -> Result<Value> {
    match name {
        "default" | "d" => {
            let [default, boolean] = given.bind(name, ["default_value", "boolean"])?;
            let falsy = boolean.is_some_and(|b| b.truth()) && !value.truth();
            match (value.is_undefined() || falsy, default) {
                (false, _) => Ok(value),
                (true, Some(default)) => Ok(default),
                (true, None) => Value::text("", budget),
            }
        }
        "length" | "count" => {
            let _: [Option<Value>; 0] = given.plain(name, 0)?;
            match len(&value, budget)? {
                Some(n) => Ok(Value::int(n)),
                None => fail(format!(
                    "object of type '{}' has no len()",
                    value.type_name()
                )),
            }
        }
        "tojson" => to_json(&value, given, budget),
        "string" => {
            let _: [Option<Value>; 0] = given.plain(name, 0)?;
            match value {
                Value::Str(_) => Ok(value),
                other => Value::text(str_of(&other, budget)?.into_owned(), budget),
            }
        }
        "safe" => {
            let _: [Option<Value>; 0] = given.plain(name, 0)?;
            Value::marked(str_of(&value, budget)?.into_owned(), true, budget)
        }
        "e" | "escape" | "forceescape" => {
            let _: [Option<Value>; 0] = given.plain(name, 0)?;
            match &value {
                Value::Str(t) if t.is_markup() && name != "forceescape" => Ok(value),
                other => Value::marked(escape(&str_of(other, budget)?, budget)?, true, budget),
            }
        }
        "abs" | "int" | "float" | "round" | "filesizeformat" => {
            numbers::call(name, value, given, budget)
        }
        "lower" | "upper" | "title" | "capitalize" | "trim" | "replace" | "center" | "indent"
        | "truncate" | "wordcount" | "format" | "urlencode" | "xmlattr" => {
            texts::call(name, value, given, budget)
        }
        "pprint" | "random" | "striptags" | "urlize" | "wordwrap" => fail(format!(
            "filter '{name}' is not supported in chat templates here"
        )),
        _ if NAMES.contains(&name) => seqs::call(name, value, given, budget),
        _ => fail(format!("No filter named '{name}'")),
    }
}

fn to_json(value: &Value, given: Given, budget: &Budget) -> Result<Value> {
    let params = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [ascii, indent, separators, sorted] = given.bind("tojson", params)?;
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(Value::Str(t)) => Some(t.as_str().to_string()),
        Some(n) => {
            let n = usize::try_from(crate::ops::index_of(&n)?).unwrap_or(0);
            budget.room(n)?;
            Some(" ".repeat(n))
        }
    };
    let (item, key) = match separators {
        None | Some(Value::None) if indent.is_some() => (",".to_string(), ": ".to_string()),
        None | Some(Value::None) => (", ".to_string(), ": ".to_string()),
        Some(both) => match crate::cursor::items(&both, budget)?.as_slice() {
            [Value::Str(item), Value::Str(key)] => {
                (item.as_str().to_string(), key.as_str().to_string())
            }
            _ => return fail("tojson: separators are two strings"),
        },
    };
    let style = Style {
        indent,
        item,
        key,
        sorted: sorted.is_some_and(|s| s.truth()),
        ascii: ascii.is_some_and(|a| a.truth()),
    };
    let mut out = Writer::new(budget);
    style.write(&mut out, value, 0)?;
    Value::text(out.text, budget)
}

/// A parameter that must be given.
fn need(value: Option<Value>, of: &str, name: &str) -> Result<Value> {
    required(value, of, name)
}
