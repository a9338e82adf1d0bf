//! Methods of strings, as Python's `str` has them.

use crate::args::{Given, text_of};
use crate::budget::Budget;
use crate::cursor::items;
use crate::error::{Result, fail};
use crate::ops::index_of;
use crate::print::Writer;
use crate::text::{self, Ends};
use crate::unicode::{is_alnum, is_alpha, is_digit, is_numeric, is_printable, is_space};
use crate::value::{OVERHEAD, PLACE, Text, Value};

/// A text and the mark that texts made of it get.
struct Of<'a> {
    text: &'a str,
    markup: bool,
    budget: &'a Budget,
}

impl Of<'_> {
    fn made(&self, text: impl Into<Box<str>>) -> Result<Value> {
        Value::marked(text, self.markup, self.budget)
    }

    fn list(&self, parts: Vec<&str>) -> Result<Value> {
        self.budget
            .room(self.text.len() + parts.len() * (PLACE + OVERHEAD))?;
        let all: Result<Vec<Value>> = parts.into_iter().map(|p| self.made(p)).collect();
        Value::list(all?, self.budget)
    }
}

/// Calls a method of a string.
#[inline(never)]
pub(crate) fn call(of: &Text, name: &str, given: Given, budget: &Budget) -> Result<Value> {
    if of.is_markup() {
        check_markup(name, &given)?;
    }
    budget.read(of.as_str())?;
    let of_text = Of {
        text: of.as_str(),
        markup: of.is_markup(),
        budget,
    };
    match name {
        "format" => crate::format::format(of.as_str(), &given, budget),
        "format_map" => {
            let [map] = given.plain(name, 1)?;
            let Some(Value::Dict(map)) = map else {
                return fail("format_map: a dict is expected");
            };
            let mut given = Given::default();
            for (key, value) in map.pairs() {
                if let Value::Str(key) = key {
                    given.named.push((key.clone(), value.clone()));
                }
            }
            crate::format::format(of.as_str(), &given, budget)
        }
        "split" | "rsplit" | "splitlines" | "partition" | "rpartition" => {
            parts(&of_text, name, given)
        }
        "count" | "find" | "rfind" | "index" | "rindex" | "startswith" | "endswith" => {
            search(&of_text, name, given)
        }
        "ljust" | "rjust" | "center" | "zfill" | "expandtabs" => padded(&of_text, name, given),
        "strip" | "lstrip" | "rstrip" | "removeprefix" | "removesuffix" | "replace" | "join"
        | "translate" => changed(&of_text, name, given),
        _ => plain(&of_text, name, given),
    }
}

/// # Errors
/// A method of marked text that escapes its arguments, with arguments that would change by it.
fn check_markup(name: &str, given: &Given) -> Result<()> {
    let special = |v: &Value| match v {
        Value::Str(t) => !t.is_markup() && t.as_str().contains(['&', '<', '>', '"', '\'']),
        Value::None | Value::Bool(_) | Value::Int(_) | Value::Big(_) | Value::Float(_) => false,
        _ => true,
    };
    let unlike = matches!(
        name,
        "format" | "format_map" | "escape" | "striptags" | "unescape" | "join"
    );
    match unlike || given.positional.iter().any(special) {
        true => fail(format!(
            "method '{name}' of a text that is marked as safe HTML escapes its arguments, which is not supported"
        )),
        false => Ok(()),
    }
}

/// Methods without arguments.
fn plain(of: &Of, name: &str, given: Given) -> Result<Value> {
    let t = of.text;
    let all = |fits: fn(char) -> bool| Value::Bool(!t.is_empty() && t.chars().all(fits));
    let value = match name {
        "upper" => of.made(t.to_uppercase()),
        "lower" => of.made(t.to_lowercase()),
        "title" => of.made(text::title(t)),
        "capitalize" => of.made(text::capitalize(t)),
        "swapcase" => of.made(text::swapcase(t)),
        "casefold" => of.made(crate::unicode::casefold(t)),
        "isalnum" => Ok(all(is_alnum)),
        "isalpha" => Ok(all(is_alpha)),
        "isascii" => Ok(Value::Bool(t.is_ascii())),
        "isdecimal" => Ok(all(|c| crate::unicode::decimal_of(c).is_some())),
        "isdigit" => Ok(all(is_digit)),
        "isnumeric" => Ok(all(is_numeric)),
        "isspace" => Ok(all(is_space)),
        "isprintable" => Ok(Value::Bool(t.chars().all(is_printable))),
        "isidentifier" => {
            let first = t.chars().next().is_some_and(|c| c == '_' || is_alpha(c));
            let word = |c: char| c == '_' || c.is_alphanumeric();
            Ok(Value::Bool(first && t.chars().all(word)))
        }
        "islower" => Ok(Value::Bool(text::has_case(t, false))),
        "isupper" => Ok(Value::Bool(text::has_case(t, true))),
        "istitle" => Ok(Value::Bool(text::is_title(t))),
        _ => return crate::args::unsupported(&Value::text("", of.budget)?, name),
    };
    let _: [Option<Value>; 0] = given.plain(name, 0)?;
    of.budget.room(3 * t.len())?;
    value
}

fn parts(of: &Of, name: &str, given: Given) -> Result<Value> {
    match name {
        "splitlines" => {
            let [keep] = given.bind(name, ["keepends"])?;
            let parts = text::lines(of.text, keep.is_some_and(|k| k.truth()));
            of.list(parts)
        }
        "split" | "rsplit" => {
            let [sep, most] = given.bind(name, ["sep", "maxsplit"])?;
            let most = most.map_or(Ok(-1), |m| index_of(&m))?;
            let most = usize::try_from(most).unwrap_or(usize::MAX - 1);
            let right = name == "rsplit";
            let parts = match &sep {
                None | Some(Value::None) => match right {
                    true => text::rsplit_space(of.text, most),
                    false => text::split_space(of.text, most),
                },
                Some(sep) => {
                    let sep = text_of(sep, name)?;
                    of.budget.scan(sep.as_str().len())?;
                    if sep.as_str().is_empty() {
                        return fail("empty separator");
                    }
                    let n = of.text.matches(sep.as_str()).take(most).count() + 1;
                    of.budget.room(n * (PLACE + OVERHEAD))?;
                    match right {
                        true => {
                            let mut parts: Vec<&str> =
                                of.text.rsplitn(most + 1, sep.as_str()).collect();
                            parts.reverse();
                            parts
                        }
                        false => of.text.splitn(most + 1, sep.as_str()).collect(),
                    }
                }
            };
            of.list(parts)
        }
        _ => {
            let [sep] = given.plain(name, 1)?;
            let sep = text_of(&sep.unwrap_or(Value::None), name)?;
            of.budget.scan(sep.as_str().len())?;
            if sep.as_str().is_empty() {
                return fail("empty separator");
            }
            let found = match name {
                "partition" => of.text.split_once(sep.as_str()),
                _ => of.text.rsplit_once(sep.as_str()),
            };
            let parts = match (found, name) {
                (Some((before, behind)), _) => [before, sep.as_str(), behind],
                (None, "partition") => [of.text, "", ""],
                (None, _) => ["", "", of.text],
            };
            let all: Result<Vec<Value>> = parts.into_iter().map(|p| of.made(p)).collect();
            Value::tuple(all?, of.budget)
        }
    }
}

fn search(of: &Of, name: &str, given: Given) -> Result<Value> {
    let [part, start, end] = given.plain(name, 1)?;
    let part = part.unwrap_or(Value::None);
    let window = text::window(of.text, start.as_ref(), end.as_ref(), of.budget)?;
    if matches!(name, "startswith" | "endswith") {
        let fits = |p: &Value| -> Result<bool> {
            let p = text_of(p, name)?;
            Ok(window.is_some_and(|(w, _)| match name {
                "startswith" => w.starts_with(p.as_str()),
                _ => w.ends_with(p.as_str()),
            }))
        };
        if let Value::Tuple(all) = &part {
            for p in &all.items {
                of.budget.step(1)?;
                if fits(p)? {
                    return Ok(Value::Bool(true));
                }
            }
            return Ok(Value::Bool(false));
        }
        return fits(&part).map(Value::Bool);
    }
    let part = text_of(&part, name)?;
    of.budget.scan(part.as_str().len())?;
    let found = text::find(window, part.as_str(), name.starts_with('r'));
    Ok(match (name, found) {
        ("count", _) => {
            let n = window.map_or(0, |(w, _)| w.matches(part.as_str()).count());
            Value::int(n)
        }
        (_, Some(at)) => Value::int(at),
        ("find" | "rfind", None) => Value::Int(-1),
        _ => return fail("substring not found"),
    })
}

fn padded(of: &Of, name: &str, given: Given) -> Result<Value> {
    if name == "expandtabs" {
        let [size] = given.bind(name, ["tabsize"])?;
        let size = size.map_or(Ok(8), |s| index_of(&s))?;
        let size = usize::try_from(size).unwrap_or(0);
        return of.made(text::expand_tabs(of.text, size, of.budget)?);
    }
    if name == "zfill" {
        let [width] = given.plain(name, 1)?;
        return of.made(text::zfill(
            of.text,
            &width.unwrap_or(Value::None),
            of.budget,
        )?);
    }
    let [width, fill] = given.plain(name, 1)?;
    let fill = match &fill {
        None => ' ',
        Some(fill) => {
            let fill = text_of(fill, name)?;
            let mut chars = fill.as_str().chars();
            match (chars.next(), chars.next()) {
                (Some(c), None) => c,
                _ => return fail("The fill character must be exactly one character long"),
            }
        }
    };
    let ends = match name {
        "ljust" => Ends::Right,
        "rjust" => Ends::Left,
        _ => Ends::Both,
    };
    let width = width.unwrap_or(Value::None);
    of.made(text::pad(of.text, &width, fill, ends, of.budget)?)
}

fn changed(of: &Of, name: &str, given: Given) -> Result<Value> {
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = given.plain(name, 0)?;
            let chars = match &chars {
                None | Some(Value::None) => None,
                Some(chars) => Some(text_of(chars, name)?),
            };
            let ends = match name {
                "lstrip" => Ends::Left,
                "rstrip" => Ends::Right,
                _ => Ends::Both,
            };
            let chars = chars.as_ref().map(Text::as_str);
            let each = chars.map_or(0, str::len);
            of.budget.scan(of.text.len().saturating_mul(each))?;
            of.made(text::strip(of.text, chars, ends))
        }
        "removeprefix" | "removesuffix" => {
            let [part] = given.plain(name, 1)?;
            let part = text_of(&part.unwrap_or(Value::None), name)?;
            let kept = match name {
                "removeprefix" => of.text.strip_prefix(part.as_str()),
                _ => of.text.strip_suffix(part.as_str()),
            };
            of.made(kept.unwrap_or(of.text))
        }
        "replace" => {
            let [old, new, count] = given.plain(name, 2)?;
            let old = text_of(&old.unwrap_or(Value::None), name)?;
            let new = text_of(&new.unwrap_or(Value::None), name)?;
            let count = count.map_or(Ok(-1), |c| index_of(&c))?;
            let count = usize::try_from(count).ok();
            of.made(text::replace(
                of.text,
                old.as_str(),
                new.as_str(),
                count,
                of.budget,
            )?)
        }
        "translate" => {
            let [table] = given.plain(name, 1)?;
            match &table {
                Some(Value::Dict(table)) => of.made(text::translate(of.text, table, of.budget)?),
                _ => fail("translate: a dict of numbers of characters is expected"),
            }
        }
        _ => {
            let [all] = given.plain(name, 1)?;
            let mut out = Writer::new(of.budget);
            for (i, item) in items(&all.unwrap_or(Value::None), of.budget)?
                .iter()
                .enumerate()
            {
                let Value::Str(item) = item else {
                    return fail(format!(
                        "sequence item {i}: expected str instance, {} found",
                        item.type_name()
                    ));
                };
                if i > 0 {
                    out.push(of.text)?;
                }
                out.push(item.as_str())?;
            }
            of.made(out.text)
        }
    }
}
