//! Filters that make texts.

use super::need;
use crate::args::{Given, text_of};
use crate::ast::Op;
use crate::budget::Budget;
use crate::cursor::{items, len};
use crate::error::{Result, fail};
use crate::ops::{binary, index_of};
use crate::print::{Writer, escape, str_of};
use crate::text::{self, Ends};
use crate::unicode::is_alnum;
use crate::value::{Text, Value};

pub(super) fn call(name: &str, value: Value, given: Given, budget: &Budget) -> Result<Value> {
    match name {
        "indent" => indent(&value, given, budget),
        "truncate" => truncate(value, given, budget),
        "urlencode" => {
            let _: [Option<Value>; 0] = given.plain(name, 0)?;
            url_encode(&value, budget)
        }
        "xmlattr" => xml_attributes(&value, given, budget),
        "format" => {
            let text = soft(&value, budget)?;
            let operands = match (given.positional.is_empty(), given.named.is_empty()) {
                (false, false) => {
                    return fail("can't handle positional and keyword arguments at the same time");
                }
                (_, true) => Value::tuple(given.positional, budget)?,
                (true, false) => {
                    let named = given.named.into_iter().map(|(k, v)| (Value::Str(k), v));
                    Value::Dict(std::rc::Rc::new(crate::dict::Dict::of(named, budget)?))
                }
            };
            binary(Op::Mod, &Value::Str(text), &operands, budget)
        }
        _ => simple(name, &value, given, budget),
    }
}

/// A value as text; marked text stays marked.
fn soft(value: &Value, budget: &Budget) -> Result<Text> {
    match value {
        Value::Str(t) => Ok(t.clone()),
        other => match Value::text(str_of(other, budget)?.into_owned(), budget)? {
            Value::Str(t) => Ok(t),
            _ => fail("no text"),
        },
    }
}

fn simple(name: &str, value: &Value, given: Given, budget: &Budget) -> Result<Value> {
    let text = soft(value, budget)?;
    let (t, markup) = (text.as_str(), text.is_markup());
    budget.read(t)?;
    match name {
        "trim" => {
            let [chars] = given.bind(name, ["chars"])?;
            let chars = match &chars {
                None | Some(Value::None) => None,
                Some(chars) => Some(text_of(chars, name)?),
            };
            let chars = chars.as_ref().map(Text::as_str);
            budget.scan(t.len().saturating_mul(chars.map_or(0, str::len)))?;
            Value::marked(text::strip(t, chars, Ends::Both), markup, budget)
        }
        "replace" => {
            let [old, new, count] = given.bind(name, ["old", "new", "count"])?;
            let (old, new) = (need(old, name, "old")?, need(new, name, "new")?);
            let count = match count {
                None | Some(Value::None) => None,
                Some(count) => usize::try_from(index_of(&count)?).ok(),
            };
            let (old, new) = (str_of(&old, budget)?, str_of(&new, budget)?);
            Value::text(text::replace(t, &old, &new, count, budget)?, budget)
        }
        "center" => {
            let [width] = given.bind(name, ["width"])?;
            let width = width.unwrap_or(Value::Int(80));
            Value::marked(
                text::pad(t, &width, ' ', Ends::Both, budget)?,
                markup,
                budget,
            )
        }
        _ => {
            let _: [Option<Value>; 0] = given.plain(name, 0)?;
            if name == "wordcount" {
                let words = t.split(|c| !(is_alnum(c) || c == '_'));
                return Ok(Value::int(words.filter(|w| !w.is_empty()).count()));
            }
            let made = match name {
                "lower" => t.to_lowercase(),
                "upper" => t.to_uppercase(),
                "capitalize" => text::capitalize(t),
                _ => title(t),
            };
            Value::marked(made, markup, budget)
        }
    }
}

/// Words with a large first letter, by the filter's own rule of words.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut first = true;
    let mut word = String::new();
    let begins = |c: char| matches!(c, '-' | '(' | '{' | '[' | '<') || crate::unicode::is_space(c);
    for c in text.chars() {
        if begins(c) {
            out += &word.to_lowercase();
            word.clear();
            out.push(c);
            first = true;
        } else if std::mem::take(&mut first) {
            out.extend(c.to_uppercase());
        } else {
            word.push(c);
        }
    }
    out + &word.to_lowercase()
}

fn indent(value: &Value, given: Given, budget: &Budget) -> Result<Value> {
    let [width, first, blank] = given.bind("indent", ["width", "first", "blank"])?;
    let [first, blank] = [first, blank].map(|v| v.is_some_and(|v| v.truth()));
    let by = match width {
        None => "    ".to_string(),
        Some(Value::Str(t)) => t.as_str().to_string(),
        Some(n) => {
            let n = usize::try_from(index_of(&n)?).unwrap_or(0);
            budget.room(n)?;
            " ".repeat(n)
        }
    };
    let text = text_of(value, "indent")?;
    if text.is_markup() && by.contains(['&', '<', '>', '"', '\'']) {
        return fail(
            "indent of a text that is marked as safe HTML escapes what it is indented by, which is not supported",
        );
    }
    budget.room(text.as_str().len() + 1)?;
    let whole = text.as_str().to_string() + "\n";
    let mut out = Writer::new(budget);
    for (i, line) in text::lines(&whole, false).into_iter().enumerate() {
        if i > 0 {
            out.push("\n")?;
        }
        if match i {
            0 => first,
            _ => blank || !line.is_empty(),
        } {
            out.push(&by)?;
        }
        out.push(line)?;
    }
    Value::marked(out.text, text.is_markup(), budget)
}

fn truncate(value: Value, given: Given, budget: &Budget) -> Result<Value> {
    let params = ["length", "killwords", "end", "leeway"];
    let [length, kill, end, leeway] = given.bind("truncate", params)?;
    let number = |v: Option<Value>, absent: i64| match v {
        None | Some(Value::None) => Ok(absent),
        Some(v) => index_of(&v),
    };
    let (length, leeway) = (number(length, 255)?, number(leeway, 5)?);
    let end = match end {
        None => Text::fixed("..."),
        Some(end) => text_of(&end, "truncate")?,
    };
    let tail = end.as_str().chars().count() as i64;
    if length < tail {
        return fail(format!("expected length >= {tail}, got {length}"));
    }
    if leeway < 0 {
        return fail(format!("expected leeway >= 0, got {leeway}"));
    }
    let Some(size) = len(&value, budget)? else {
        return fail(format!(
            "object of type '{}' has no len()",
            value.type_name()
        ));
    };
    if size as i64 <= length.saturating_add(leeway) {
        return Ok(value);
    }
    let text = text_of(&value, "truncate")?;
    let keep = text.as_str().char_indices().nth((length - tail) as usize);
    let mut kept = keep.map_or(text.as_str(), |(at, _)| &text.as_str()[..at]);
    if !kill.is_some_and(|k| k.truth()) {
        kept = kept.rsplit_once(' ').map_or(kept, |(words, _)| words);
    }
    let kept = Value::marked(kept, text.is_markup(), budget)?;
    binary(Op::Add, &kept, &Value::Str(end), budget)
}

fn quote(out: &mut Writer, text: &str, query: bool) -> Result<()> {
    out.budget().scan(text.len().saturating_mul(8))?;
    for b in text.bytes() {
        match b {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => {
                out.push(char::from(b).encode_utf8(&mut [0; 4]))?;
            }
            b'/' if !query => out.push("/")?,
            b' ' if query => out.push("+")?,
            b => out.push(&format!("%{b:02X}"))?,
        }
    }
    Ok(())
}

fn url_encode(value: &Value, budget: &Budget) -> Result<Value> {
    let mut out = Writer::new(budget);
    let pairs = match value {
        Value::Dict(d) => d.pairs().to_vec(),
        Value::List(_)
        | Value::Tuple(_)
        | Value::View(_)
        | Value::Iter(_)
        | Value::Range(_)
        | Value::Undefined(_) => {
            let mut pairs = Vec::new();
            for pair in items(value, budget)? {
                match items(&pair, budget)?.as_slice() {
                    [k, v] => pairs.push((k.clone(), v.clone())),
                    _ => return fail("urlencode: pairs of a key and a value are expected"),
                }
            }
            pairs
        }
        other => {
            quote(&mut out, &str_of(other, budget)?, false)?;
            return Value::text(out.text, budget);
        }
    };
    for (i, (key, value)) in pairs.iter().enumerate() {
        if i > 0 {
            out.push("&")?;
        }
        quote(&mut out, &str_of(key, budget)?, true)?;
        out.push("=")?;
        quote(&mut out, &str_of(value, budget)?, true)?;
    }
    Value::text(out.text, budget)
}

fn xml_attributes(value: &Value, given: Given, budget: &Budget) -> Result<Value> {
    let [space] = given.bind("xmlattr", ["autospace"])?;
    value.defined()?;
    let Value::Dict(dict) = value else {
        return fail(format!(
            "'{}' object has no attribute 'items'",
            value.type_name()
        ));
    };
    let mut out = Writer::new(budget);
    for (key, value) in dict.pairs() {
        if matches!(value, Value::None | Value::Undefined(_)) {
            continue;
        }
        let key = text_of(key, "xmlattr")?;
        let bad = |c: char| matches!(c, '/' | '>' | '=') || c.is_ascii_whitespace() || c == '\x0b';
        if key.as_str().contains(bad) {
            return fail("Invalid character in attribute name");
        }
        if !out.text.is_empty() || space.as_ref().is_none_or(Value::truth) {
            out.push(" ")?;
        }
        let written = |v: &Value| match v {
            Value::Str(t) if t.is_markup() => Ok(t.as_str().to_string()),
            other => escape(&str_of(other, budget)?, budget),
        };
        out.push(&written(&Value::Str(key))?)?;
        out.push("=\"")?;
        out.push(&written(value)?)?;
        out.push("\"")?;
    }
    Value::text(out.text, budget)
}
