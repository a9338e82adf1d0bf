//! Values as text: Python's `str` and `repr`, and the escapes of HTML.

use crate::budget::Budget;
use crate::error::{Result, fail};
use crate::number::{digits, float_repr};
use crate::unicode::is_printable;
use crate::value::{Object, Seq, Value};
use std::borrow::Cow;

/// Bytes of text for which the budget is asked at once.
const PIECE: usize = 1024;

/// Text that is being written, of which every piece asks the budget first.
pub(crate) struct Writer<'a> {
    pub(crate) text: String,
    budget: &'a Budget,
    /// Up to which length there is room.
    room: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(budget: &'a Budget) -> Writer<'a> {
        Writer {
            text: String::new(),
            budget,
            room: 0,
        }
    }

    pub(crate) fn push(&mut self, part: &str) -> Result<()> {
        let len = self.text.len() + part.len();
        if len > self.room {
            let more = (len - self.room).max(PIECE);
            self.budget.fits(self.room + more)?;
            self.budget.scan(more)?;
            self.room += more;
        }
        self.text.push_str(part);
        Ok(())
    }

    /// The same characters so many times.
    pub(crate) fn repeat(&mut self, part: &str, times: usize) -> Result<()> {
        let len = part.len().saturating_mul(times);
        self.budget.fits(self.text.len().saturating_add(len))?;
        self.push(&part.repeat(times))
    }

    pub(crate) fn budget(&self) -> &'a Budget {
        self.budget
    }
}

/// Python's `str`: as a template prints a value.
#[inline(never)]
pub(crate) fn str_of<'v>(value: &'v Value, budget: &Budget) -> Result<Cow<'v, str>> {
    match value {
        Value::Str(t) => Ok(Cow::Borrowed(t.as_str())),
        Value::Undefined(_) => Ok(Cow::Borrowed("")),
        other => repr(other, budget).map(Cow::Owned),
    }
}

/// The beginning of a value's `repr`, for an error.
pub(crate) fn short(value: &Value) -> String {
    let text = match value {
        Value::Str(t) if t.as_str().len() > 60 => {
            let head: String = t.as_str().chars().take(40).collect();
            return format!("'{head}…'");
        }
        Value::Big(_) | Value::List(_) | Value::Tuple(_) | Value::Dict(_) | Value::View(_) => None,
        other => repr(other, &Budget::new(0)).ok(),
    };
    text.unwrap_or_else(|| format!("of type {}", value.type_name()))
}

/// Python's `repr`.
#[inline(never)]
pub(crate) fn repr(value: &Value, budget: &Budget) -> Result<String> {
    let mut out = Writer::new(budget);
    write_repr(&mut out, value)?;
    Ok(out.text)
}

fn write_repr(out: &mut Writer, value: &Value) -> Result<()> {
    out.budget.step(1)?;
    match value {
        Value::Undefined(_) => out.push("Undefined"),
        Value::None => out.push("None"),
        Value::Bool(true) => out.push("True"),
        Value::Bool(false) => out.push("False"),
        Value::Int(n) => out.push(&n.to_string()),
        Value::Big(n) => {
            let text = digits(n.get(), out.budget)?;
            out.push(&text)
        }
        Value::Float(f) => out.push(&float_repr(*f)),
        Value::Str(t) => {
            if t.is_markup() {
                out.push("Markup(")?;
            }
            write_quoted(out, t.as_str())?;
            out.push(if t.is_markup() { ")" } else { "" })
        }
        Value::List(s) => write_items(out, "[", s, "]"),
        Value::Tuple(s) => write_items(out, "(", s, if s.items.len() == 1 { ",)" } else { ")" }),
        Value::Dict(d) => {
            let pairs = d.pairs().iter().map(|(k, v)| (k, v));
            write_pairs(out, pairs)
        }
        Value::Range(r) => {
            out.push(&format!("range({}, {}", r.start, r.stop))?;
            if r.step != 1 {
                out.push(&format!(", {}", r.step))?;
            }
            out.push(")")
        }
        Value::View(v) => {
            out.push(v.name)?;
            write_items(out, "([", &v.items, "])")
        }
        Value::Iter(i) => no_text(i.name),
        Value::Object(o) => write_object(out, o),
    }
}

fn no_text<T>(name: &str) -> Result<T> {
    fail(format!(
        "a {name} is printed, whose text in Python is its place in memory: make a list of it with | list, or call it"
    ))
}

fn write_object(out: &mut Writer, object: &Object) -> Result<()> {
    match object {
        Object::Namespace(attrs) => {
            out.push("<Namespace ")?;
            let attrs = attrs.borrow();
            let names: Vec<Value> = attrs.iter().map(|a| Value::Str(a.0.clone())).collect();
            write_pairs(out, names.iter().zip(attrs.iter().map(|a| &a.1)))?;
            out.push(">")
        }
        Object::Loop(l) => {
            let (index, len) = l.shown(out.budget)?;
            out.push(&format!("<LoopContext {index}/{len}>"))
        }
        Object::Macro(..) => no_text("macro"),
        Object::Cycler(..) => no_text("cycler"),
        Object::Joiner(..) => no_text("joiner"),
        Object::Function(name) => no_text(&format!("function ({name})")),
        Object::Method(_, name) => no_text(&format!("method ({})", name.as_str())),
    }
}

fn write_items(out: &mut Writer, open: &str, seq: &Seq, close: &str) -> Result<()> {
    out.push(open)?;
    for (i, item) in seq.items.iter().enumerate() {
        if i > 0 {
            out.push(", ")?;
        }
        write_repr(out, item)?;
    }
    out.push(close)
}

fn write_pairs<'v>(
    out: &mut Writer,
    pairs: impl Iterator<Item = (&'v Value, &'v Value)>,
) -> Result<()> {
    out.push("{")?;
    for (i, (key, value)) in pairs.enumerate() {
        if i > 0 {
            out.push(", ")?;
        }
        write_repr(out, key)?;
        out.push(": ")?;
        write_repr(out, value)?;
    }
    out.push("}")
}

/// A string in quotes, as Python's `repr` writes it.
fn write_quoted(out: &mut Writer, text: &str) -> Result<()> {
    let quote = match text.contains('\'') && !text.contains('"') {
        true => '"',
        false => '\'',
    };
    out.budget.read(text)?;
    let mut buffer = [0; 4];
    out.push(quote.encode_utf8(&mut buffer))?;
    for c in text.chars() {
        match c {
            '\\' => out.push("\\\\")?,
            '\n' => out.push("\\n")?,
            '\r' => out.push("\\r")?,
            '\t' => out.push("\\t")?,
            c if c == quote => {
                out.push("\\")?;
                out.push(c.encode_utf8(&mut buffer))?;
            }
            c if is_printable(c) => out.push(c.encode_utf8(&mut buffer))?,
            c => {
                let code = match c as u32 {
                    n @ ..=0xff => format!("\\x{n:02x}"),
                    n @ ..=0xffff => format!("\\u{n:04x}"),
                    n => format!("\\U{n:08x}"),
                };
                out.push(&code)?;
            }
        }
    }
    out.push(quote.encode_utf8(&mut buffer))
}

/// Text with the special characters of HTML escaped, as markupsafe does it.
pub(crate) fn escape(text: &str, budget: &Budget) -> Result<String> {
    let mut out = Writer::new(budget);
    let mut rest = text;
    while let Some(at) = rest.find(['&', '<', '>', '"', '\'']) {
        out.push(&rest[..at])?;
        out.push(match rest.as_bytes()[at] {
            b'&' => "&amp;",
            b'<' => "&lt;",
            b'>' => "&gt;",
            b'"' => "&#34;",
            _ => "&#39;",
        })?;
        rest = &rest[at + 1..];
    }
    out.push(rest)?;
    Ok(out.text)
}
