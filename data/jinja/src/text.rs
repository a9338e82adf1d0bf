//! What Python's methods of strings compute, over plain text.

use crate::budget::Budget;
use crate::error::{Result, fail};
use crate::ops::index_of;
use crate::unicode::{is_line_end, is_space, is_titlecase, title_of};
use crate::value::Value;

/// The ends of a text that are stripped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    Left,
    Right,
    Both,
}

/// Without these characters, or without white space, at the ends.
pub(crate) fn strip<'a>(text: &'a str, chars: Option<&str>, ends: Ends) -> &'a str {
    let gone = |c: char| match chars {
        Some(chars) => chars.contains(c),
        None => is_space(c),
    };
    let mut text = text;
    if ends != Ends::Right {
        text = text.trim_start_matches(gone);
    }
    if ends != Ends::Left {
        text = text.trim_end_matches(gone);
    }
    text
}

/// `split` at white space, of at most so many cuts.
pub(crate) fn split_space(text: &str, most: usize) -> Vec<&str> {
    let (mut out, mut rest) = (Vec::new(), text.trim_start_matches(is_space));
    while !rest.is_empty() {
        if out.len() == most {
            out.push(rest);
            break;
        }
        let end = rest.find(is_space).unwrap_or(rest.len());
        out.push(&rest[..end]);
        rest = rest[end..].trim_start_matches(is_space);
    }
    out
}

/// `rsplit` at white space.
pub(crate) fn rsplit_space(text: &str, most: usize) -> Vec<&str> {
    let (mut out, mut rest) = (Vec::new(), text.trim_end_matches(is_space));
    while !rest.is_empty() {
        if out.len() == most {
            out.push(rest);
            break;
        }
        let last = rest.char_indices().rfind(|(_, c)| is_space(*c));
        let start = last.map_or(0, |(at, c)| at + c.len_utf8());
        out.push(&rest[start..]);
        rest = rest[..start].trim_end_matches(is_space);
    }
    out.reverse();
    out
}

/// The lines of a text, by all ends of lines that Python knows.
pub(crate) fn lines(text: &str, keep: bool) -> Vec<&str> {
    let (mut out, mut start) = (Vec::new(), 0);
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if !is_line_end(c) {
            continue;
        }
        let mut end = at + c.len_utf8();
        if c == '\r' && chars.peek().is_some_and(|n| n.1 == '\n') {
            chars.next();
            end += 1;
        }
        out.push(&text[start..if keep { end } else { at }]);
        start = end;
    }
    if start < text.len() {
        out.push(&text[start..]);
    }
    out
}

/// The first letter large, the others small.
pub(crate) fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => title_of(first) + &lower_behind(text, first.len_utf8()),
        None => String::new(),
    }
}

/// The rest of a text in small letters; a sigma at its end knows what stands before it.
fn lower_behind(text: &str, at: usize) -> String {
    match text.is_ascii() {
        true => text[at..].to_ascii_lowercase(),
        false => {
            let first: String = text[..at].to_lowercase();
            text.to_lowercase().split_off(first.len())
        }
    }
}

/// Every word with a large first letter, by Python's rule of words: what stands behind a letter is small.
pub(crate) fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        match (inside, c.is_ascii()) {
            (true, _) => out.extend(c.to_lowercase()),
            (false, true) => out.push(c.to_ascii_uppercase()),
            (false, false) => out += &title_of(c),
        }
        inside = is_cased(c);
    }
    out
}

fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase() || is_titlecase(c)
}

/// Large letters small, and small ones large.
pub(crate) fn swapcase(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if c.is_uppercase() => out.extend(c.to_lowercase()),
            c if c.is_lowercase() => out.extend(c.to_uppercase()),
            c => out.push(c),
        }
    }
    out
}

/// Returns true if some letter has a case, and every one this.
pub(crate) fn has_case(text: &str, upper: bool) -> bool {
    let mut cased = false;
    for c in text.chars() {
        let (right, wrong) = match upper {
            true => (c.is_uppercase(), c.is_lowercase()),
            false => (c.is_lowercase(), c.is_uppercase()),
        };
        if wrong || is_titlecase(c) {
            return false;
        }
        cased |= right;
    }
    cased
}

/// Python's `istitle`.
pub(crate) fn is_title(text: &str) -> bool {
    let (mut cased, mut inside) = (false, false);
    for c in text.chars() {
        if c.is_uppercase() || is_titlecase(c) {
            if inside {
                return false;
            }
            (cased, inside) = (true, true);
        } else if c.is_lowercase() {
            if !inside {
                return false;
            }
            cased = true;
        } else {
            inside = false;
        }
    }
    cased
}

/// Tabs as spaces up to the next column of a multiple of `size`.
pub(crate) fn expand_tabs(text: &str, size: usize, budget: &Budget) -> Result<String> {
    let tabs = text.bytes().filter(|b| *b == b'\t').count();
    budget.room(text.len().saturating_add(tabs.saturating_mul(size)))?;
    let (mut out, mut column) = (String::new(), 0usize);
    for c in text.chars() {
        match c {
            '\t' => {
                if size > 0 {
                    let n = size - column % size;
                    out.push_str(&" ".repeat(n));
                    column += n;
                }
            }
            '\n' | '\r' => {
                out.push(c);
                column = 0;
            }
            c => {
                out.push(c);
                column += 1;
            }
        }
    }
    Ok(out)
}

/// With every `old` as `new`, or so many of them.
pub(crate) fn replace(
    text: &str,
    old: &str,
    new: &str,
    count: Option<usize>,
    budget: &Budget,
) -> Result<String> {
    budget.scan(text.len() + old.len())?;
    let count = count.unwrap_or(usize::MAX);
    let found = text.matches(old).take(count).count();
    budget.room(text.len().saturating_add(found.saturating_mul(new.len())))?;
    Ok(text.replacen(old, new, count))
}

/// Filled up to a width in characters.
pub(crate) fn pad(
    text: &str,
    width: &Value,
    fill: char,
    ends: Ends,
    budget: &Budget,
) -> Result<String> {
    let width = usize::try_from(index_of(width)?).unwrap_or(0);
    budget.scan(text.len())?;
    let gap = width.saturating_sub(text.chars().count());
    budget.room(
        text.len()
            .saturating_add(gap.saturating_mul(fill.len_utf8())),
    )?;
    let left = match ends {
        Ends::Left => gap,
        Ends::Right => 0,
        // As CPython rounds it.
        Ends::Both => gap / 2 + (gap & width & 1),
    };
    let fill = fill.to_string();
    Ok(fill.repeat(left) + text + &fill.repeat(gap - left))
}

/// Zeros between the sign and the digits.
pub(crate) fn zfill(text: &str, width: &Value, budget: &Budget) -> Result<String> {
    let (sign, rest) = match text.chars().next() {
        Some(c @ ('+' | '-')) => (c.to_string(), &text[1..]),
        _ => (String::new(), text),
    };
    let inner = index_of(width)?.saturating_sub(sign.len() as i64);
    Ok(sign + &pad(rest, &Value::Int(inner), '0', Ends::Left, budget)?)
}

/// A part of a text between two places in characters, with its first place; `None` where nothing can be found in it.
pub(crate) fn window<'a>(
    text: &'a str,
    start: Option<&Value>,
    end: Option<&Value>,
    budget: &Budget,
) -> Result<Option<(&'a str, usize)>> {
    budget.scan(text.len())?;
    let given = |v: Option<&Value>| match v {
        None | Some(Value::None) => Ok(None),
        Some(v) => index_of(v).map(Some),
    };
    let (start, end) = (given(start)?, given(end)?);
    if start.is_none() && end.is_none() {
        return Ok(Some((text, 0)));
    }
    let len = text.chars().count() as i64;
    let clamp = |at: i64| {
        if at < 0 {
            at.saturating_add(len).max(0)
        } else {
            at
        }
    };
    let (start, end) = (
        clamp(start.unwrap_or(0)),
        clamp(end.unwrap_or(len)).min(len),
    );
    if start > end {
        return Ok(None);
    }
    let place = |n: i64| {
        let found = text.char_indices().nth(n as usize);
        found.map_or(text.len(), |(at, _)| at)
    };
    Ok(Some((&text[place(start)..place(end)], start as usize)))
}

/// The place in characters of a part, from the left or the right.
pub(crate) fn find(window: Option<(&str, usize)>, part: &str, right: bool) -> Option<usize> {
    let (text, first) = window?;
    let at = if right {
        text.rfind(part)
    } else {
        text.find(part)
    }?;
    Some(first + text[..at].chars().count())
}

/// Characters replaced by a dict of their numbers.
pub(crate) fn translate(text: &str, table: &crate::dict::Dict, budget: &Budget) -> Result<String> {
    let mut out = crate::print::Writer::new(budget);
    for c in text.chars() {
        let mut buffer = [0; 4];
        match table.get(&Value::Int(i64::from(c as u32)), budget)? {
            None => out.push(c.encode_utf8(&mut buffer))?,
            Some(Value::None) => {}
            Some(Value::Str(t)) => out.push(t.as_str())?,
            Some(other) => {
                let code = u32::try_from(index_of(other)?)
                    .ok()
                    .and_then(char::from_u32);
                match code {
                    Some(c) => out.push(c.encode_utf8(&mut buffer))?,
                    None => return fail("character mapping must be in range(0x110000)"),
                }
            }
        }
    }
    Ok(out.text)
}
