//! The text of a template to tokens, as Jinja's lexer cuts it with `trim_blocks` and `lstrip_blocks`.

use crate::error::{Error, Result, fail};
use crate::unicode::is_space;
use num_bigint::BigInt;

/// A token and its line.
pub(crate) struct Token {
    pub(crate) line: u32,
    pub(crate) kind: Lexeme,
}

/// The kinds of tokens.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Lexeme {
    /// Text between tags.
    Data(Box<str>),
    /// `{{`
    PrintBegin,
    /// `}}`
    PrintEnd,
    /// `{%`
    BlockBegin,
    /// `%}`
    BlockEnd,
    Name(Box<str>),
    Str(Box<str>),
    Int(BigInt),
    Float(f64),
    /// An operator, as it is written.
    Op(&'static str),
    /// The end of the template.
    End,
}

/// Operators, the longer ones first.
const OPERATORS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
    ">", "<", "=", ".", ":", "|", ",", ";",
];
/// The most digits that Python makes an integer of.
const MOST_DIGITS: usize = 4300;

/// The state of the lexer.
struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: u32,
    /// True if the text that was read last ended with the end of a line.
    line_starting: bool,
    out: Vec<Token>,
}

/// The tokens of a template whose ends of lines are `\n`.
///
/// # Errors
/// A text that Jinja's lexer refuses, with its line.
pub(crate) fn tokens(source: &str) -> Result<Vec<Token>> {
    let mut lexer = Lexer {
        source: source.strip_suffix('\n').unwrap_or(source),
        at: 0,
        line: 1,
        line_starting: true,
        out: Vec::new(),
    };
    let done = lexer.all();
    let line = lexer.line;
    done.map_err(|e| e.at(line))?;
    lexer.push(Lexeme::End);
    Ok(lexer.out)
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn push(&mut self, kind: Lexeme) {
        self.out.push(Token {
            line: self.line,
            kind,
        });
    }

    /// Goes on by `n` bytes, counting lines.
    fn skip(&mut self, n: usize) {
        let passed = &self.source[self.at..self.at + n];
        self.line += passed.bytes().filter(|b| *b == b'\n').count() as u32;
        self.line_starting = passed.ends_with('\n');
        self.at += n;
    }

    fn skip_space(&mut self) {
        let rest = self.rest();
        self.skip(rest.len() - rest.trim_start_matches(is_space).len());
    }

    fn all(&mut self) -> Result<()> {
        while self.at < self.source.len() {
            let rest = self.rest();
            let Some(found) = find_tag(rest) else {
                self.push(Lexeme::Data(rest.into()));
                self.skip(rest.len());
                return Ok(());
            };
            let opener = rest.as_bytes()[found + 1];
            self.data(found, opener != b'{');
            self.at += 2;
            self.sign();
            match opener {
                b'#' => self.comment()?,
                b'{' => {
                    self.push(Lexeme::PrintBegin);
                    self.inside(Lexeme::PrintEnd, "}}")?;
                }
                _ if self.raw()? => {}
                _ => {
                    self.push(Lexeme::BlockBegin);
                    self.inside(Lexeme::BlockEnd, "%}")?;
                }
            }
        }
        Ok(())
    }

    /// The text before a tag, stripped as the tag's sign or `lstrip_blocks` say.
    fn data(&mut self, len: usize, block: bool) {
        let text = &self.rest()[..len];
        let sign = self.source.as_bytes().get(self.at + len + 2);
        let mut kept = text;
        if sign == Some(&b'-') {
            kept = text.trim_end_matches(is_space);
        } else if sign != Some(&b'+') && block {
            let line = text.rfind('\n').map_or(0, |at| at + 1);
            if (line > 0 || self.line_starting) && text[line..].chars().all(is_space) {
                kept = &text[..line];
            }
        }
        if !kept.is_empty() {
            self.push(Lexeme::Data(kept.into()));
        }
        self.skip(len);
    }

    fn sign(&mut self) {
        if self.rest().starts_with(['-', '+']) {
            self.at += 1;
        }
        self.line_starting = false;
    }

    /// Behind the end of a block or comment: `sign` is what stood before it.
    fn trim(&mut self, sign: Option<char>) {
        self.line_starting = false;
        match sign {
            Some('-') => self.skip_space(),
            Some(_) => {}
            None if self.rest().starts_with('\n') => self.skip(1),
            None => {}
        }
    }

    fn comment(&mut self) -> Result<()> {
        let Some(end) = self.rest().find("#}") else {
            return fail("Missing end of comment tag");
        };
        let sign = self.rest()[..end].chars().next_back();
        self.skip(end + 2);
        self.trim(sign.filter(|c| matches!(c, '-' | '+')));
        Ok(())
    }

    /// A `raw` block, if this is one; the lexer stands behind `{%` and its sign.
    fn raw(&mut self) -> Result<bool> {
        let rest = self.rest().trim_start_matches(is_space);
        let Some(rest) = rest.strip_prefix("raw") else {
            return Ok(false);
        };
        let rest = rest.trim_start_matches(is_space);
        let stripped = rest.strip_prefix("-%}");
        let Some(body) = stripped.or_else(|| rest.strip_prefix("%}")) else {
            return Ok(false);
        };
        let body = match stripped {
            Some(body) => body.trim_start_matches(is_space),
            None => body,
        };
        self.skip(self.rest().len() - body.len());
        let mut from = 0;
        while let Some(at) = body[from..].find("{%").map(|at| at + from) {
            let inner = body[at + 2..].trim_start_matches(['-', '+']);
            let word = inner.trim_start_matches(is_space).strip_prefix("endraw");
            let end = word.map(|w| w.trim_start_matches(is_space));
            let sign = end.and_then(|e| e.chars().next().filter(|c| matches!(c, '-' | '+')));
            let close = end.map(|e| &e[sign.map_or(0, char::len_utf8)..]);
            if let Some(behind) = close.and_then(|c| c.strip_prefix("%}")) {
                self.data(at, true);
                self.skip(body.len() - at - behind.len());
                self.trim(sign);
                return Ok(true);
            }
            from = at + 2;
        }
        fail("Missing end of raw directive")
    }

    /// Reads the tokens of a tag, through its end.
    fn inside(&mut self, end: Lexeme, close: &str) -> Result<()> {
        let mut open: Vec<&'static str> = Vec::new();
        loop {
            let rest = self.rest();
            if open.is_empty() {
                let sign = rest.chars().next().filter(|c| matches!(c, '-' | '+'));
                // `+}}` is no end of an expression.
                let sign = sign.filter(|c| *c == '-' || end == Lexeme::BlockEnd);
                let behind = &rest[sign.map_or(0, char::len_utf8)..];
                if behind.starts_with(close) {
                    self.push(end.clone());
                    self.skip(rest.len() - behind.len() + close.len());
                    match end {
                        Lexeme::BlockEnd => self.trim(sign),
                        _ if sign.is_some() => self.skip_space(),
                        _ => self.line_starting = false,
                    }
                    return Ok(());
                }
            }
            let Some(c) = rest.chars().next() else {
                // The parser says what is missing.
                return Ok(());
            };
            if is_space(c) {
                self.skip_space();
            } else if c.is_ascii_digit() {
                self.number()?;
            } else if c.is_alphanumeric() || c == '_' {
                let word = |c: char| c.is_alphanumeric() || c == '_';
                let name = &rest[..rest.find(|c| !word(c)).unwrap_or(rest.len())];
                self.push(Lexeme::Name(name.into()));
                self.skip(name.len());
            } else if c == '"' || c == '\'' {
                self.string(c)?;
            } else {
                let Some(op) = OPERATORS.into_iter().find(|op| rest.starts_with(op)) else {
                    return fail(format!("unexpected char {c:?}"));
                };
                balance(&mut open, op)?;
                self.push(Lexeme::Op(op));
                self.skip(op.len());
            }
        }
    }

    fn number(&mut self) -> Result<()> {
        let rest = self.rest();
        let after_dot = self.source[..self.at].ends_with('.');
        let digits = |s: &str, ok: fn(&u8) -> bool| {
            // Underscores stand between digits only.
            let b = s.as_bytes();
            let mut n = 0;
            while n < b.len() {
                let at = n + usize::from(b[n] == b'_' && n > 0);
                match b.get(at).is_some_and(ok) {
                    true => n = at + 1,
                    false => break,
                }
            }
            n
        };
        let whole = digits(rest, u8::is_ascii_digit);
        let mut len = whole;
        if !after_dot {
            if let Some(tail) = rest[len..].strip_prefix('.') {
                let part = digits(tail, u8::is_ascii_digit);
                len += if part > 0 { 1 + part } else { 0 };
            }
            if let Some(tail) = rest[len..].strip_prefix(['e', 'E']) {
                let sign = usize::from(tail.starts_with(['+', '-']));
                let part = digits(&tail[sign..], u8::is_ascii_digit);
                len += if part > 0 { 1 + sign + part } else { 0 };
            }
        }
        if len > whole {
            let text = rest[..len].replace('_', "");
            let value = text.parse().map_err(|_| Error::new("invalid number"))?;
            self.push(Lexeme::Float(value));
            self.skip(len);
            return Ok(());
        }
        let prefixed = |letter: char, radix: u32, ok: fn(&u8) -> bool| {
            let tail = rest.strip_prefix('0')?;
            let tail = tail.strip_prefix([letter, letter.to_ascii_uppercase()])?;
            let lead = usize::from(tail.starts_with('_'));
            let part = digits(&tail[lead..], ok);
            (part > 0).then_some((2 + lead, 2 + lead + part, radix))
        };
        let hex = prefixed('x', 16, u8::is_ascii_hexdigit);
        let oct = || prefixed('o', 8, |b| (b'0'..=b'7').contains(b));
        let bin = || prefixed('b', 2, |b| matches!(b, b'0' | b'1'));
        let (from, to, radix) = hex.or_else(oct).or_else(bin).unwrap_or_else(|| {
            // A zero takes only zeros with it.
            let zeros = digits(rest, |b| *b == b'0');
            (0, if zeros > 0 { zeros } else { whole }, 10)
        });
        if to - from > MOST_DIGITS {
            return fail(format!("an integer of more than {MOST_DIGITS} digits"));
        }
        let text = rest[from..to].replace('_', "");
        match BigInt::parse_bytes(text.as_bytes(), radix) {
            Some(n) => self.push(Lexeme::Int(n)),
            None => return fail("invalid number"),
        }
        self.skip(to);
        Ok(())
    }

    fn string(&mut self, quote: char) -> Result<()> {
        let rest = self.rest();
        let (mut escaped, mut end) = (false, None);
        for (at, c) in rest.char_indices().skip(1) {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                c if c == quote => {
                    end = Some(at);
                    break;
                }
                _ => {}
            }
        }
        let Some(end) = end else {
            return fail(format!(
                "unexpected char {quote:?}: a string without an end"
            ));
        };
        self.push(Lexeme::Str(unescape(&rest[1..end])?.into()));
        self.skip(end + 1);
        Ok(())
    }
}

/// Keeps what is open, and refuses what closes something else.
fn balance(open: &mut Vec<&'static str>, op: &'static str) -> Result<()> {
    match op {
        "{" => open.push("}"),
        "(" => open.push(")"),
        "[" => open.push("]"),
        "}" | ")" | "]" => match open.pop() {
            None => return fail(format!("unexpected '{op}'")),
            Some(wanted) if wanted != op => {
                return fail(format!("unexpected '{op}', expected '{wanted}'"));
            }
            Some(_) => {}
        },
        _ => {}
    }
    Ok(())
}

/// Returns the place at which the next tag begins.
fn find_tag(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let pairs = bytes.windows(2);
    let mut tags = pairs.enumerate();
    tags.find(|(_, w)| w[0] == b'{' && matches!(w[1], b'{' | b'%' | b'#'))
        .map(|(at, _)| at)
}

/// A string's text, by Python's rules of escapes.
fn unescape(text: &str) -> Result<String> {
    if !text.contains('\\') {
        return Ok(text.to_string());
    }
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let Some(c) = rest.chars().next() else {
            return fail("\\ at end of string");
        };
        rest = &rest[c.len_utf8()..];
        let simple = match c {
            // The line goes on.
            '\n' => continue,
            '\\' | '\'' | '"' => Some(c),
            'a' => Some('\x07'),
            'b' => Some('\x08'),
            'f' => Some('\x0c'),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'v' => Some('\x0b'),
            _ => None,
        };
        if let Some(c) = simple {
            out.push(c);
            continue;
        }
        let (digits, radix) = match c {
            'x' => (2, 16),
            'u' => (4, 16),
            'U' => (8, 16),
            '0'..='7' => {
                let more = rest
                    .bytes()
                    .take(2)
                    .take_while(|b| (b'0'..=b'7').contains(b));
                let len = more.count();
                let code = u32::from_str_radix(&format!("{c}{}", &rest[..len]), 8);
                out.extend(code.ok().and_then(char::from_u32));
                rest = &rest[len..];
                continue;
            }
            'N' => return fail("\\N{…} in a string is not supported: write the character itself"),
            c if !c.is_ascii() => {
                // Jinja escapes it before Python reads the backslash as an escaped one.
                out.push('\\');
                out.push_str(&match c as u32 {
                    n @ ..=0xff => format!("x{n:02x}"),
                    n @ ..=0xffff => format!("u{n:04x}"),
                    n => format!("U{n:08x}"),
                });
                continue;
            }
            c => {
                out.push('\\');
                out.push(c);
                continue;
            }
        };
        let code = rest
            .get(..digits)
            .filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        let Some(code) = code else {
            return fail(format!("truncated \\{c} escape in a string"));
        };
        let Some(c) = u32::from_str_radix(code, radix)
            .ok()
            .and_then(char::from_u32)
        else {
            return fail(format!("\\{c}{code} in a string is no character"));
        };
        out.push(c);
        rest = &rest[digits..];
    }
    out.push_str(rest);
    Ok(out)
}
