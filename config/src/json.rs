//! JSON (RFC 8259) where every key and value remembers its line and column, with what DeepSpeed's reader
//! (hjson) also accepts and people write: comments (`//`, `#`, `/* */`), a comma after the last element,
//! and keys without quotes.
//!
//! serde_json forgets where a value stood as soon as it is read, and keeps the last of two equal
//! keys. A config error has to say `file:line:col`, and a key given twice is nearly always a
//! mistake; hence this parser. It never panics: input of any bytes gives a tree or an error.

use crate::error::At;

/// Deepest nesting accepted; the deepest key of the schema lies six levels down.
pub const MAX_DEPTH: usize = 96;

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The value.
    pub value: Json,
    /// The place of its first character.
    pub at: At,
}

/// A member of an object: key, place of the key, value.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// The key, unescaped.
    pub key: String,
    /// The place of the key's opening quote.
    pub at: At,
    /// Its value.
    pub node: Node,
}

/// A JSON value. Numbers keep their text, so that no digit is lost before the schema says which
/// type is wanted.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number, as written; its f64 value is finite.
    Number(String),
    /// A string, unescaped.
    Text(String),
    /// An array.
    List(Vec<Node>),
    /// An object in the order of the file; keys are distinct.
    Object(Vec<Member>),
}

impl Json {
    /// The value in words, for "wanted …, got …".
    pub fn describe(&self) -> String {
        match self {
            Json::Null => "null".into(),
            Json::Bool(b) => format!("the boolean {b}"),
            Json::Number(n) => format!("the number {n}"),
            Json::Text(s) if s.chars().count() > 40 => {
                let head: String = s.chars().take(40).collect();
                format!("the string {head:?}…")
            }
            Json::Text(s) => format!("the string {s:?}"),
            Json::List(l) => format!("a list of {}", l.len()),
            Json::Object(_) => "an object".into(),
        }
    }

    /// The same value for serde_json, without places.
    pub fn plain(&self) -> serde_json::Value {
        use serde_json::Value;
        match self {
            Json::Null => Value::Null,
            Json::Bool(b) => Value::Bool(*b),
            Json::Number(n) => serde_json::from_str(n).unwrap_or(Value::Null),
            Json::Text(s) => Value::String(s.clone()),
            Json::List(l) => Value::Array(l.iter().map(|n| n.value.plain()).collect()),
            Json::Object(members) => Value::Object(
                members
                    .iter()
                    .map(|m| (m.key.clone(), m.node.value.plain()))
                    .collect(),
            ),
        }
    }
}

/// The reason for which a text is not JSON, and the place.
#[derive(Clone, Debug, PartialEq)]
pub struct Syntax {
    /// Place of the first character that cannot be read.
    pub at: At,
    /// The fault.
    pub what: String,
    /// The remedy.
    pub fix: String,
}

/// Reads one JSON document; anything but white space after it is an error.
pub fn parse(text: &str) -> Result<Node, Syntax> {
    let mut p = Parser {
        text,
        pos: 0,
        line: 1,
        col: 1,
    };
    if text.starts_with('\u{feff}') {
        return p.fail(
            "the file starts with a byte order mark",
            "save it as UTF-8 without one",
        );
    }
    p.space();
    let node = p.value(0)?;
    p.space();
    match p.peek() {
        None => Ok(node),
        Some(c) => p.fail(
            format!("{c:?} after the end of the document"),
            "a config is one JSON object; remove what follows it",
        ),
    }
}

struct Parser<'a> {
    text: &'a str,
    pos: usize,
    line: u32,
    col: u32,
}

impl Parser<'_> {
    fn at(&self) -> At {
        At::File {
            line: self.line,
            col: self.col,
        }
    }

    fn fail<T>(&self, what: impl Into<String>, fix: impl Into<String>) -> Result<T, Syntax> {
        Err(Syntax {
            at: self.at(),
            what: what.into(),
            fix: fix.into(),
        })
    }

    fn peek(&self) -> Option<char> {
        self.text.get(self.pos..)?.chars().next()
    }

    fn bump(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.pos += c.len_utf8();
        if c == '\n' {
            self.line = self.line.saturating_add(1);
            self.col = 1;
        } else {
            self.col = self.col.saturating_add(1);
        }
        Some(c)
    }

    /// Skips white space and comments. A comment that is never closed stays for the caller to refuse.
    fn space(&mut self) {
        loop {
            let rest = self.text.get(self.pos..).unwrap_or_default();
            let comment = if rest.starts_with('#') || rest.starts_with("//") {
                rest.find('\n').unwrap_or(rest.len())
            } else if rest.starts_with("/*") {
                rest.find("*/").map_or(0, |end| end + 2)
            } else {
                usize::from(rest.starts_with([' ', '\t', '\n', '\r']))
            };
            if comment == 0 {
                return;
            }
            let end = self.pos + comment;
            while self.pos < end {
                self.bump();
            }
        }
    }

    fn value(&mut self, depth: usize) -> Result<Node, Syntax> {
        let at = self.at();
        let value = match self.peek() {
            None => {
                return self.fail(
                    "the file ends where a value was expected",
                    "the file is empty or cut short; write the missing value",
                );
            }
            Some('{' | '[') if depth >= MAX_DEPTH => {
                return self.fail(
                    format!("nested deeper than {MAX_DEPTH} levels"),
                    "no config key lies that deep",
                );
            }
            Some('{') => self.object(depth)?,
            Some('[') => self.list(depth)?,
            Some('"') => Json::Text(self.string()?),
            Some('-' | '0'..='9') => self.number()?,
            Some('/') => {
                return self.fail(
                    "a comment that is never closed",
                    "close it with */, or use //",
                );
            }
            Some('\'') => return self.fail("JSON strings stand in double quotes", "use \"…\""),
            Some(c) if c.is_ascii_alphabetic() => self.word()?,
            Some(c) => {
                return self.fail(
                    format!("{c:?} where a value was expected"),
                    "write a value: a number, \"text\", true, false, null, [ or {",
                );
            }
        };
        Ok(Node { value, at })
    }

    fn word(&mut self) -> Result<Json, Syntax> {
        let rest = &self.text[self.pos..];
        let end = rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(rest.len());
        let word = rest[..end].to_string();
        let value = match word.as_str() {
            "true" => Json::Bool(true),
            "false" => Json::Bool(false),
            "null" => Json::Null,
            "True" | "False" | "None" => {
                return self.fail(
                    format!("{word} is Python, not JSON"),
                    "write true, false or null",
                );
            }
            "NaN" | "Infinity" => {
                return self.fail(
                    format!("{word} is not a JSON number"),
                    "write a finite number",
                );
            }
            _ => {
                return self.fail(format!("the bare word {word}"), "put text in double quotes");
            }
        };
        for _ in word.chars() {
            self.bump();
        }
        Ok(value)
    }

    fn number(&mut self) -> Result<Json, Syntax> {
        let (start, here) = (self.pos, (self.line, self.col));
        if self.peek() == Some('-') {
            self.bump();
        }
        match self.peek() {
            Some('0') => {
                self.bump();
                if matches!(self.peek(), Some('0'..='9')) {
                    return self.fail("a number with a leading zero", "drop the zero");
                }
            }
            _ => self.digits()?,
        }
        if self.peek() == Some('.') {
            self.bump();
            self.digits()?;
        }
        if matches!(self.peek(), Some('e' | 'E')) {
            self.bump();
            if matches!(self.peek(), Some('+' | '-')) {
                self.bump();
            }
            self.digits()?;
        }
        let text = &self.text[start..self.pos];
        if !text.parse::<f64>().is_ok_and(f64::is_finite) {
            (self.line, self.col) = here;
            return self.fail(
                format!("{text} is too large for any number"),
                "write a smaller one",
            );
        }
        Ok(Json::Number(text.to_string()))
    }

    fn digits(&mut self) -> Result<(), Syntax> {
        if !matches!(self.peek(), Some('0'..='9')) {
            return self.fail("a number that lacks digits here", "write 0.5, -1 or 1e-3");
        }
        while matches!(self.peek(), Some('0'..='9')) {
            self.bump();
        }
        Ok(())
    }

    fn string(&mut self) -> Result<String, Syntax> {
        let (opened, mut out) = (self.at(), String::new());
        self.bump();
        loop {
            match self.peek() {
                None => {
                    return Err(Syntax {
                        at: opened,
                        what: "a string that is never closed".into(),
                        fix: "close it with \"".into(),
                    });
                }
                Some('"') => {
                    self.bump();
                    return Ok(out);
                }
                Some('\\') => out.push(self.escape()?),
                Some(c) if (c as u32) < 0x20 => {
                    return self.fail(
                        format!("the control character U+{:04X} in a string", c as u32),
                        "close the string on its line, or write \\n, \\t or \\u00XX",
                    );
                }
                Some(c) => {
                    out.push(c);
                    self.bump();
                }
            }
        }
    }

    fn escape(&mut self) -> Result<char, Syntax> {
        let start = (self.line, self.col);
        self.bump();
        let simple = match self.peek() {
            Some('"') => '"',
            Some('\\') => '\\',
            Some('/') => '/',
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('u') => {
                self.bump();
                let high = self.hex4()?;
                let code = if (0xD800..0xDC00).contains(&high) {
                    let pair = self.text[self.pos..].starts_with("\\u");
                    if pair {
                        self.bump();
                        self.bump();
                    }
                    let low = if pair { self.hex4()? } else { 0 };
                    if !(0xDC00..0xE000).contains(&low) {
                        (self.line, self.col) = start;
                        return self.fail("half of a surrogate pair", "write both halves");
                    }
                    0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)
                } else {
                    high
                };
                return match char::from_u32(code) {
                    Some(c) => Ok(c),
                    None => {
                        (self.line, self.col) = start;
                        self.fail("half of a surrogate pair", "write both halves")
                    }
                };
            }
            _ => {
                return self.fail(
                    "an unknown escape in a string",
                    "write \\\\ for a backslash",
                );
            }
        };
        self.bump();
        Ok(simple)
    }

    fn hex4(&mut self) -> Result<u32, Syntax> {
        let mut code = 0;
        for _ in 0..4 {
            match self.peek().and_then(|c| c.to_digit(16)) {
                Some(d) => code = code * 16 + d,
                None => return self.fail("\\u needs four hex digits", "write e.g. \\u00e9"),
            }
            self.bump();
        }
        Ok(code)
    }

    fn list(&mut self, depth: usize) -> Result<Json, Syntax> {
        let (opened, mut items) = (self.at(), Vec::new());
        self.bump();
        self.space();
        if self.peek() == Some(']') {
            self.bump();
            return Ok(Json::List(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            if self.next_or_close(']', &opened)? {
                return Ok(Json::List(items));
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json, Syntax> {
        let (opened, mut members) = (self.at(), Vec::<Member>::new());
        let mut seen = std::collections::BTreeMap::<String, At>::new();
        self.bump();
        self.space();
        if self.peek() == Some('}') {
            self.bump();
            return Ok(Json::Object(members));
        }
        loop {
            let at = self.at();
            let key = match self.peek() {
                Some('"') => self.string()?,
                Some(c) if c.is_ascii_alphabetic() || c == '_' => self.bare_key(),
                None => return self.unclosed(&opened),
                Some(_) => {
                    return self.fail("a key was expected", "keys stand in double quotes");
                }
            };
            if let Some(first) = seen.insert(key.clone(), at.clone()) {
                let line = match first {
                    At::File { line, .. } => line,
                    _ => 0,
                };
                return Err(Syntax {
                    at,
                    what: format!("the key {key:?} is given twice, first on line {line}"),
                    fix: "keep one of them".into(),
                });
            }
            self.space();
            if self.peek() != Some(':') {
                return self.fail(
                    format!("no ':' after the key {key:?}"),
                    "write \"key\": value",
                );
            }
            self.bump();
            self.space();
            let node = self.value(depth + 1)?;
            members.push(Member { key, at, node });
            if self.next_or_close('}', &opened)? {
                return Ok(Json::Object(members));
            }
        }
    }

    /// A key without quotes, as hjson has them.
    fn bare_key(&mut self) -> String {
        let mut key = String::new();
        while let Some(c) = self.peek()
            && (c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
        {
            key.push(c);
            self.bump();
        }
        key
    }

    /// After an element: true at the closing bracket, false after a comma with more to come.
    fn next_or_close(&mut self, close: char, opened: &At) -> Result<bool, Syntax> {
        self.space();
        match self.peek() {
            Some(c) if c == close => {
                self.bump();
                Ok(true)
            }
            Some(',') => {
                self.bump();
                self.space();
                let last = self.peek() == Some(close);
                if last {
                    self.bump();
                }
                Ok(last)
            }
            None => self.unclosed(opened),
            Some(c) => self.fail(
                format!("{c:?} where ',' or '{close}' was expected"),
                "separate elements by commas",
            ),
        }
    }

    fn unclosed<T>(&self, opened: &At) -> Result<T, Syntax> {
        let from = match opened {
            At::File { line, col } => format!("{line}:{col}"),
            _ => String::new(),
        };
        self.fail(
            format!("the file ends inside what was opened at {from}"),
            "the file is cut short; close the bracket",
        )
    }
}
