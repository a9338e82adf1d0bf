//! JSON: values written as Python's `json.dumps` writes them, and rows read with every digit of their numbers kept.

use crate::budget::Budget;
use crate::dict::Dict;
use crate::error::{Result, fail};
use crate::number::{digits, float_repr};
use crate::ops::order;
use crate::print::Writer;
use crate::sorting::sorted;
use crate::value::{Big, Seq, Text, Value};
use num_bigint::BigInt;
use std::cmp::Ordering;
use std::rc::Rc;

/// The style in which `tojson` writes.
pub(crate) struct Style {
    /// The indentation of one level; `None` writes one line.
    pub(crate) indent: Option<String>,
    pub(crate) item: String,
    pub(crate) key: String,
    pub(crate) sorted: bool,
    pub(crate) ascii: bool,
}

impl Style {
    /// Writes a value.
    ///
    /// # Errors
    /// A value that is no JSON, or a limit.
    pub(crate) fn write(&self, out: &mut Writer, value: &Value, level: usize) -> Result<()> {
        out.budget().step(1)?;
        match value {
            Value::None => out.push("null"),
            Value::Bool(b) => out.push(if *b { "true" } else { "false" }),
            Value::Int(n) => out.push(&n.to_string()),
            Value::Big(n) => {
                let text = digits(n.get(), out.budget())?;
                out.push(&text)
            }
            Value::Float(f) => out.push(&json_float(*f)),
            Value::Str(t) => self.string(out, t.as_str()),
            Value::List(s) | Value::Tuple(s) => {
                let items = s.items.iter();
                self.all(out, ['[', ']'], level, items, |out, item| {
                    self.write(out, item, level + 1)
                })
            }
            Value::Dict(d) => {
                let mut pairs: Vec<&(Value, Value)> = d.pairs().iter().collect();
                if self.sorted {
                    let budget = out.budget();
                    pairs = sorted(pairs, &mut |a, b| {
                        Ok(order(&a.0, &b.0, "<", budget)? == Some(Ordering::Less))
                    })?;
                }
                self.all(out, ['{', '}'], level, pairs.into_iter(), |out, (k, v)| {
                    match k {
                        Value::Str(t) => self.string(out, t.as_str())?,
                        Value::None
                        | Value::Bool(_)
                        | Value::Int(_)
                        | Value::Big(_)
                        | Value::Float(_) => {
                            out.push("\"")?;
                            self.write(out, k, level)?;
                            out.push("\"")?;
                        }
                        other => {
                            return fail(format!(
                                "keys must be str, int, float, bool or None, not {}",
                                other.type_name()
                            ));
                        }
                    }
                    out.push(&self.key)?;
                    self.write(out, v, level + 1)
                })
            }
            other => fail(format!(
                "Object of type {} is not JSON serializable",
                other.type_name()
            )),
        }
    }

    fn all<T>(
        &self,
        out: &mut Writer,
        [open, close]: [char; 2],
        level: usize,
        items: impl ExactSizeIterator<Item = T>,
        mut write: impl FnMut(&mut Writer, T) -> Result<()>,
    ) -> Result<()> {
        let mut buffer = [0; 4];
        out.push(open.encode_utf8(&mut buffer))?;
        let any = items.len() > 0;
        for (i, item) in items.enumerate() {
            if i > 0 {
                out.push(&self.item)?;
            }
            self.line(out, level + 1)?;
            write(out, item)?;
        }
        if any {
            self.line(out, level)?;
        }
        out.push(close.encode_utf8(&mut buffer))
    }

    fn line(&self, out: &mut Writer, level: usize) -> Result<()> {
        match &self.indent {
            Some(indent) => {
                out.push("\n")?;
                out.repeat(indent, level)
            }
            None => Ok(()),
        }
    }

    fn string(&self, out: &mut Writer, text: &str) -> Result<()> {
        if self.ascii {
            out.budget().read(text)?;
        }
        out.push("\"")?;
        let mut plain = 0;
        for (at, c) in text.char_indices() {
            let short = match c {
                '"' => "\\\"",
                '\\' => "\\\\",
                '\n' => "\\n",
                '\r' => "\\r",
                '\t' => "\\t",
                '\x08' => "\\b",
                '\x0c' => "\\f",
                c if c < ' ' || (self.ascii && (!c.is_ascii() || c == '\x7f')) => "",
                _ => continue,
            };
            out.push(&text[plain..at])?;
            plain = at + c.len_utf8();
            if !short.is_empty() {
                out.push(short)?;
                continue;
            }
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                out.push(&format!("\\u{unit:04x}"))?;
            }
        }
        out.push(&text[plain..])?;
        out.push("\"")
    }
}

fn json_float(f: f64) -> String {
    match f {
        f if f.is_nan() => "NaN".into(),
        f if f.is_infinite() => if f > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        f => float_repr(f),
    }
}

/// A place at which a text is no JSON, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonError {
    /// The byte.
    pub at: usize,
    /// The reason, in words.
    pub reason: String,
}

/// The depth to which the JSON of a row may nest.
const MAX_LEVELS: usize = 128;
/// The most digits of an integer, as in Python.
const MAX_DIGITS: usize = 4300;

/// Reads one JSON value, as Python's `json.loads` does: integers of any size whole, `NaN` and `Infinity` as floats, the last of
/// equal keys. Of the outermost object no key may be given twice.
///
/// # Errors
/// A text that is no JSON, with its place.
pub fn read(text: &str) -> std::result::Result<Value, JsonError> {
    let mut reader = Reader { text, at: 0 };
    reader.space();
    let value = reader.value(0)?;
    reader.space();
    match reader.at == text.len() {
        true => Ok(value),
        false => Err(reader.wrong("characters behind the value")),
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn wrong(&self, reason: impl Into<String>) -> JsonError {
        JsonError {
            at: self.at,
            reason: reason.into(),
        }
    }

    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn next(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.next(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, word: &str) -> bool {
        let is = self.rest().starts_with(word);
        self.at += if is { word.len() } else { 0 };
        is
    }

    fn value(&mut self, level: usize) -> std::result::Result<Value, JsonError> {
        if level > MAX_LEVELS {
            return Err(self.wrong(format!(
                "more than {MAX_LEVELS} levels of lists and objects"
            )));
        }
        match self.next() {
            Some(b'{') => self.object(level),
            Some(b'[') => self.array(level),
            Some(b'"') => Ok(Value::Str(Text::fixed(&self.string()?))),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => {
                let words = [
                    ("null", Value::None),
                    ("true", Value::Bool(true)),
                    ("false", Value::Bool(false)),
                    ("NaN", Value::Float(f64::NAN)),
                    ("Infinity", Value::Float(f64::INFINITY)),
                ];
                match words.into_iter().find(|(word, _)| self.take(word)) {
                    Some((_, value)) => Ok(value),
                    None if self.rest().is_empty() => {
                        Err(self.wrong("the text ends within a value"))
                    }
                    None => Err(self.wrong("expected value")),
                }
            }
        }
    }

    fn object(&mut self, level: usize) -> std::result::Result<Value, JsonError> {
        self.at += 1;
        let mut dict = Dict::new();
        // What a row holds is the user's, and only as large as the row.
        let budget = Budget::unbounded();
        self.space();
        while !self.take("}") {
            if !dict.is_empty() && !self.take(",") {
                return Err(self.wrong("expected `,` or `}`"));
            }
            self.space();
            if self.next() != Some(b'"') {
                return Err(self.wrong("a key must be a string"));
            }
            let key = Value::Str(Text::fixed(&self.string()?));
            self.space();
            if !self.take(":") {
                return Err(self.wrong("expected `:`"));
            }
            self.space();
            if level == 0 && dict.get(&key, &budget).is_ok_and(|v| v.is_some()) {
                return Err(self.wrong("a field that is given twice"));
            }
            let value = self.value(level + 1)?;
            dict.insert(key, value, &budget)
                .map_err(|e| self.wrong(e.to_string()))?;
            self.space();
        }
        Ok(Value::Dict(Rc::new(dict)))
    }

    fn array(&mut self, level: usize) -> std::result::Result<Value, JsonError> {
        self.at += 1;
        let mut items = Vec::new();
        self.space();
        while !self.take("]") {
            if !items.is_empty() && !self.take(",") {
                return Err(self.wrong("expected `,` or `]`"));
            }
            self.space();
            items.push(self.value(level + 1)?);
            self.space();
        }
        Ok(Value::List(Seq::fixed(items)))
    }

    fn string(&mut self) -> std::result::Result<String, JsonError> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = self.rest();
            let plain = rest
                .bytes()
                .take_while(|b| *b >= b' ' && !matches!(b, b'"' | b'\\'));
            let len = plain.count();
            out.push_str(&rest[..len]);
            self.at += len;
            match self.next() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    self.at += 1;
                    out.push(self.escaped()?);
                }
                Some(_) => return Err(self.wrong("a control character in a string")),
                None => return Err(self.wrong("the text ends within a string")),
            }
        }
    }

    fn escaped(&mut self) -> std::result::Result<char, JsonError> {
        let Some(c) = self.next() else {
            return Err(self.wrong("the text ends within a string"));
        };
        self.at += 1;
        Ok(match c {
            b'"' | b'\\' | b'/' => char::from(c),
            b'b' => '\x08',
            b'f' => '\x0c',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.unit()?;
                if !(0xd800..0xdc00).contains(&first) {
                    return char::from_u32(first)
                        .ok_or_else(|| self.wrong("half of a surrogate pair"));
                }
                let second = match self.take("\\u") {
                    true => self.unit()?,
                    false => 0,
                };
                let code = (0xdc00..0xe000)
                    .contains(&second)
                    .then(|| 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00));
                let c = code.and_then(char::from_u32);
                return c.ok_or_else(|| self.wrong("half of a surrogate pair"));
            }
            _ => {
                self.at -= 1;
                return Err(self.wrong("an escape that JSON does not have"));
            }
        })
    }

    fn unit(&mut self) -> std::result::Result<u32, JsonError> {
        let code = self
            .rest()
            .get(..4)
            .filter(|c| c.bytes().all(|b| b.is_ascii_hexdigit()));
        match code.and_then(|c| u32::from_str_radix(c, 16).ok()) {
            Some(unit) => {
                self.at += 4;
                Ok(unit)
            }
            None => Err(self.wrong("four hexadecimal digits are expected behind \\u")),
        }
    }

    fn number(&mut self) -> std::result::Result<Value, JsonError> {
        let start = self.at;
        if self.take("-") && self.take("Infinity") {
            return Ok(Value::Float(f64::NEG_INFINITY));
        }
        let digits = |reader: &mut Self| {
            let from = reader.at;
            while matches!(reader.next(), Some(b'0'..=b'9')) {
                reader.at += 1;
            }
            reader.at - from
        };
        let lead = self.next();
        let whole = digits(self);
        if whole == 0 || (lead == Some(b'0') && whole > 1) {
            return Err(self.wrong("invalid number"));
        }
        let mut float = false;
        if self.take(".") {
            float = true;
            if digits(self) == 0 {
                return Err(self.wrong("invalid number"));
            }
        }
        if self.take("e") || self.take("E") {
            float = true;
            let _ = self.take("+") || self.take("-");
            if digits(self) == 0 {
                return Err(self.wrong("invalid number"));
            }
        }
        let text = &self.text[start..self.at];
        if float {
            let value = text.parse().map_err(|_| self.wrong("invalid number"))?;
            return Ok(Value::Float(value));
        }
        if let Ok(n) = text.parse::<i64>() {
            return Ok(Value::Int(n));
        }
        if whole > MAX_DIGITS {
            return Err(self.wrong(format!("an integer of more than {MAX_DIGITS} digits")));
        }
        let n: BigInt = text.parse().map_err(|_| self.wrong("invalid number"))?;
        Ok(Value::Big(Big::fixed(n)))
    }
}
