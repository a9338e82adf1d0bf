//! Formatting: `'%s' % …`, `str.format`, and Python's mini-language of format specifications.

use crate::args::Given;
use crate::attrs;
use crate::budget::Budget;
use crate::error::{Result, fail};
use crate::number::{self, float_repr};
use crate::print::{Writer, repr, str_of};
use crate::text::{Ends, pad};
use crate::value::{Text, Value};

/// The most digits behind the point.
const MAX_PRECISION: usize = 5000;

/// A number in pieces: its sign, its prefix (`0x`), and its digits.
struct Digits {
    sign: &'static str,
    prefix: &'static str,
    text: String,
}

/// A format specification of Python, as `>10.2f`.
#[derive(Clone, Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    zero: bool,
    width: usize,
    group: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

impl Spec {
    /// With zeros in front, and the sign or fill as wanted.
    fn number(&self, digits: &Digits, budget: &Budget) -> Result<String> {
        let plus = match (digits.sign, self.sign) {
            ("", Some('+')) => "+",
            ("", Some(' ')) => " ",
            (sign, _) => sign,
        };
        let head = format!("{plus}{}", digits.prefix);
        let zeros = self.zero && self.align.is_none_or(|a| a == '=');
        let fill = self.fill.unwrap_or(if zeros { '0' } else { ' ' });
        let align = self.align.unwrap_or(if zeros { '=' } else { '>' });
        if align == '=' {
            let width = Value::int(self.width.saturating_sub(head.len()));
            return Ok(head + &pad(&digits.text, &width, fill, Ends::Left, budget)?);
        }
        self.aligned(&(head + &digits.text), fill, align, budget)
    }

    fn aligned(&self, text: &str, fill: char, align: char, budget: &Budget) -> Result<String> {
        let width = Value::int(self.width);
        let ends = match align {
            '<' => Ends::Right,
            '>' => Ends::Left,
            _ => {
                // `^` rounds the other way than `str.center`.
                let gap = self.width.saturating_sub(text.chars().count());
                budget.room(text.len().saturating_add(gap.saturating_mul(4)))?;
                let fill = fill.to_string();
                let left = gap / 2;
                return Ok(fill.repeat(left) + text + &fill.repeat(gap - left));
            }
        };
        pad(text, &width, fill, ends, budget)
    }
}

fn int_digits(value: &Value, kind: char, spec: &Spec, budget: &Budget) -> Result<Digits> {
    let n = crate::ops::big_of(value)?;
    let minus = n.sign() == num_bigint::Sign::Minus;
    let magnitude = n.magnitude();
    budget.step(1 + n.bits() / 64)?;
    let (prefix, text) = match kind {
        'b' => ("0b", magnitude.to_str_radix(2)),
        'o' => ("0o", magnitude.to_str_radix(8)),
        'x' => ("0x", magnitude.to_str_radix(16)),
        'X' => ("0X", magnitude.to_str_radix(16).to_uppercase()),
        _ => {
            let text = number::digits(&n, budget)?;
            ("", text.trim_start_matches('-').to_string())
        }
    };
    Ok(Digits {
        sign: if minus { "-" } else { "" },
        prefix: if spec.alternate { prefix } else { "" },
        text,
    })
}

/// A float by `e`, `f`, `g` or `%`; `None` as kind is `repr`, or `g` with a digit behind the point.
fn float_digits(f: f64, kind: Option<char>, spec: &Spec, budget: &Budget) -> Result<Digits> {
    let precision = spec.precision.unwrap_or(6);
    if precision > MAX_PRECISION {
        return fail(format!("a precision of more than {MAX_PRECISION} digits"));
    }
    budget.room(precision + 400)?;
    budget.step(precision as u64 / 4)?;
    let sign = if f.is_sign_negative() && !f.is_nan() {
        "-"
    } else {
        ""
    };
    let f = f.abs();
    let lower = kind.map(|k| k.to_ascii_lowercase());
    let dot = |text: String| match spec.alternate && !text.contains('.') {
        true => text + ".",
        false => text,
    };
    let mut text = match lower {
        _ if !f.is_finite() => float_repr(f).replace('-', ""),
        Some('f') => dot(format!("{f:.precision$}")),
        Some('%') => dot(format!("{:.precision$}", f * 100.0)),
        Some('e') => exponent(&format!("{f:.precision$e}"), spec.alternate),
        Some(_) => general(f, precision, spec.alternate),
        None => match spec.precision {
            None => float_repr(f),
            Some(precision) => {
                let text = general_with(f, precision, false, true);
                match text.contains(['.', 'e']) {
                    true => text,
                    false => text + ".0",
                }
            }
        },
    };
    if kind.is_some_and(|k| k.is_ascii_uppercase()) {
        text = text.to_uppercase();
    }
    if kind == Some('%') {
        text.push('%');
    }
    Ok(Digits {
        sign,
        prefix: "",
        text,
    })
}

/// Rust's exponent as C writes it: with a sign and two digits.
fn exponent(text: &str, dot: bool) -> String {
    let (mantissa, e) = text.split_once('e').unwrap_or((text, "0"));
    let e: i32 = e.parse().unwrap_or(0);
    let point = if dot && !mantissa.contains('.') {
        "."
    } else {
        ""
    };
    let mark = if e < 0 { '-' } else { '+' };
    format!("{mantissa}{point}e{mark}{:02}", e.abs())
}

/// C's `%g`.
fn general(f: f64, precision: usize, alternate: bool) -> String {
    general_with(f, precision, alternate, false)
}

/// C's `%g`; with `short` the exponent form begins one digit earlier, so that a digit fits behind the point.
fn general_with(f: f64, precision: usize, alternate: bool, short: bool) -> String {
    let precision = precision.max(1);
    let text = format!("{f:.*e}", precision - 1);
    let e: i32 = text
        .split_once('e')
        .and_then(|t| t.1.parse().ok())
        .unwrap_or(0);
    let most = precision as i32 - i32::from(short);
    let cut = |text: &str| match text.contains('.') && !alternate {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text.to_string(),
    };
    if e >= -4 && e < most {
        let places = (precision as i32 - 1 - e).max(0) as usize;
        return cut(&format!("{f:.places$}"));
    }
    let mantissa = text.split_once('e').map_or("", |t| t.0);
    exponent(&format!("{}e{e}", cut(mantissa)), alternate)
}

/// Digits with a separator between groups of three (four for other bases than ten).
fn grouped(text: &str, mark: char, size: usize) -> String {
    let (whole, rest) = text.split_at(text.find(['.', 'e', 'E', '%']).unwrap_or(text.len()));
    let mut out = String::new();
    for (i, c) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i).is_multiple_of(size) {
            out.push(mark);
        }
        out.push(c);
    }
    out + rest
}

/// `format(value, spec)` of Python.
fn formatted(value: &Value, spec: &str, budget: &Budget) -> Result<String> {
    if spec.is_empty() {
        return Ok(str_of(value, budget)?.into_owned());
    }
    let parsed = parse_spec(spec)?;
    let unknown = |kind: char| {
        fail(format!(
            "Unknown format code '{kind}' for object of type '{}'",
            value.type_name()
        ))
    };
    match value {
        Value::Str(t) => {
            if let Some(kind) = parsed.kind.filter(|k| *k != 's') {
                return unknown(kind);
            }
            if parsed.sign.is_some()
                || parsed.group.is_some()
                || parsed.alternate
                || parsed.align == Some('=')
            {
                return fail(
                    "a sign, a separator, '=' or '#' is not allowed in a format of a string",
                );
            }
            let text = cut(t.as_str(), parsed.precision);
            let fill = parsed.fill.unwrap_or(if parsed.zero { '0' } else { ' ' });
            parsed.aligned(text, fill, parsed.align.unwrap_or('<'), budget)
        }
        Value::Bool(_) | Value::Int(_) | Value::Big(_) => match parsed.kind {
            None | Some('d' | 'n' | 'b' | 'o' | 'x' | 'X') => {
                if parsed.precision.is_some() {
                    return fail("Precision not allowed in integer format specifier");
                }
                let kind = parsed.kind.unwrap_or('d');
                let mut digits = int_digits(value, kind, &parsed, budget)?;
                if let Some(mark) = parsed.group {
                    let size = if kind == 'd' { 3 } else { 4 };
                    check_group(&parsed, mark, kind)?;
                    budget.room(2 * digits.text.len())?;
                    digits.text = grouped(&digits.text, mark, size);
                }
                parsed.number(&digits, budget)
            }
            Some('c') => fail("format 'c' is not supported"),
            Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') => {
                let f = number::float(value)?.unwrap_or(0.0);
                float_formatted(f, &parsed, budget)
            }
            Some(kind) => unknown(kind),
        },
        Value::Float(f) => match parsed.kind {
            None | Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') => {
                float_formatted(*f, &parsed, budget)
            }
            Some('n') => fail("format 'n' is not supported"),
            Some(kind) => unknown(kind),
        },
        other => fail(format!(
            "unsupported format string passed to {}.__format__",
            other.type_name()
        )),
    }
}

fn float_formatted(f: f64, spec: &Spec, budget: &Budget) -> Result<String> {
    let mut digits = float_digits(f, spec.kind, spec, budget)?;
    if let Some(mark) = spec.group {
        check_group(spec, mark, 'd')?;
        digits.text = grouped(&digits.text, mark, 3);
    }
    spec.number(&digits, budget)
}

fn check_group(spec: &Spec, mark: char, kind: char) -> Result<()> {
    if spec.zero && spec.width > 0 {
        return fail("a format with zeros in front and separators is not supported");
    }
    match mark == ',' && kind != 'd' {
        true => fail(format!("Cannot specify ',' with '{kind}'.")),
        false => Ok(()),
    }
}

fn cut(text: &str, most: Option<usize>) -> &str {
    let end = most.and_then(|most| text.char_indices().nth(most));
    end.map_or(text, |(at, _)| &text[..at])
}

fn parse_spec(text: &str) -> Result<Spec> {
    let mut spec = Spec::default();
    let chars: Vec<char> = text.chars().collect();
    let is_align = |at: usize| chars.get(at).copied().filter(|c| "<>=^".contains(*c));
    let mut at = 0;
    if let Some(align) = is_align(1) {
        (spec.fill, spec.align, at) = (Some(chars[0]), Some(align), 2);
    } else if let Some(align) = is_align(0) {
        (spec.align, at) = (Some(align), 1);
    }
    let mut take = |set: &str| {
        let c = chars.get(at).copied().filter(|c| set.contains(*c));
        at += usize::from(c.is_some());
        c
    };
    spec.sign = take("+- ");
    if take("z").is_some() {
        return fail("format 'z' is not supported");
    }
    spec.alternate = take("#").is_some();
    spec.zero = take("0").is_some();
    let mut digits = || {
        let mut text = String::new();
        while let Some(c) = take("0123456789") {
            text.push(c);
        }
        text
    };
    let width = digits();
    spec.width = size(&width)?.unwrap_or(0);
    spec.group = take(",_");
    if take(".").is_some() {
        let mut text = String::new();
        while let Some(c) = take("0123456789") {
            text.push(c);
        }
        spec.precision = size(&text)?;
        if spec.precision.is_none() {
            return fail("Format specifier missing precision");
        }
    }
    spec.kind = chars.get(at).copied();
    match chars.len() > at + 1 {
        true => fail("Invalid format specifier"),
        false => Ok(spec),
    }
}

fn size(digits: &str) -> Result<Option<usize>> {
    match (digits.is_empty(), digits.parse::<u32>()) {
        (true, _) => Ok(None),
        (_, Ok(n)) => Ok(Some(n as usize)),
        (_, Err(_)) => fail("Too many decimal digits in format string"),
    }
}

/// The order by which `str.format` takes its arguments: counted, or by the numbers that fields
/// give.
enum Order {
    Unknown,
    Automatic(usize),
    Manual,
}

/// `str.format`
pub(crate) fn format(text: &str, given: &Given, budget: &Budget) -> Result<Value> {
    let mut order = Order::Unknown;
    let out = format_level(text, given, &mut order, 2, budget)?;
    Value::text(out, budget)
}

fn format_level(
    text: &str,
    given: &Given,
    order: &mut Order,
    levels: u8,
    budget: &Budget,
) -> Result<String> {
    if levels == 0 {
        return fail("Max string recursion exceeded");
    }
    let mut out = Writer::new(budget);
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        out.push(&rest[..at])?;
        let brace = &rest[at..at + 1];
        rest = &rest[at + 1..];
        if let Some(behind) = rest.strip_prefix(brace) {
            out.push(brace)?;
            rest = behind;
            continue;
        }
        if brace == "}" {
            return fail("Single '}' encountered in format string");
        }
        let Some(end) = closing(rest) else {
            return fail("expected '}' before end of string");
        };
        let (field, behind) = (&rest[..end], &rest[end + 1..]);
        rest = behind;
        let cut = field_end(field);
        let (name, tail) = field.split_at(cut);
        let (conversion, spec) = match tail.strip_prefix('!') {
            Some(tail) => match tail.split_once(':') {
                Some((c, spec)) => (c, spec),
                None => (tail, ""),
            },
            None => ("", tail.strip_prefix(':').unwrap_or("")),
        };
        let value = field_value(name, given, order, budget)?;
        let value = match conversion {
            "" if !tail.starts_with('!') => value,
            "s" => Value::text(str_of(&value, budget)?.into_owned(), budget)?,
            "r" => Value::text(repr(&value, budget)?, budget)?,
            "a" => Value::text(ascii(&repr(&value, budget)?, budget)?, budget)?,
            _ => return fail("Unknown conversion specifier"),
        };
        let spec = match spec.contains(['{', '}']) {
            true => format_level(spec, given, order, levels - 1, budget)?,
            false => spec.to_string(),
        };
        let shown = formatted(&value, &spec, budget)?;
        out.push(&shown)?;
    }
    out.push(rest)?;
    Ok(out.text)
}

/// Returns the place of the brace that closes a field.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut bracket) = (0usize, false);
    for (at, c) in text.char_indices() {
        match c {
            '[' if depth == 0 => bracket = true,
            ']' => bracket = false,
            '{' if !bracket => depth += 1,
            '}' if !bracket && depth == 0 => return Some(at),
            '}' if !bracket => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Returns the end of the name of a field.
fn field_end(field: &str) -> usize {
    let mut bracket = false;
    for (at, c) in field.char_indices() {
        match c {
            '[' => bracket = true,
            ']' => bracket = false,
            '!' | ':' if !bracket => return at,
            _ => {}
        }
    }
    field.len()
}

fn field_value(name: &str, given: &Given, order: &mut Order, budget: &Budget) -> Result<Value> {
    let end = name.find(['.', '[']).unwrap_or(name.len());
    let (first, mut rest) = name.split_at(end);
    let digits = !first.is_empty() && first.bytes().all(|b| b.is_ascii_digit());
    let mut value = if first.is_empty() || digits {
        let at = match (order.next(first.is_empty())?, first.parse::<usize>()) {
            (Some(at), _) | (None, Ok(at)) => at,
            (None, Err(_)) => return fail("Too many decimal digits in format string"),
        };
        match given.positional.get(at) {
            Some(value) => value.clone(),
            None => {
                return fail(format!(
                    "Replacement index {at} out of range for positional args tuple"
                ));
            }
        }
    } else {
        match given.named.iter().find(|n| n.0.as_str() == first) {
            Some((_, value)) => value.clone(),
            None => return fail(format!("format: no argument named '{first}'")),
        }
    };
    while !rest.is_empty() {
        budget.step(1)?;
        if let Some(tail) = rest.strip_prefix('.') {
            let end = tail.find(['.', '[']).unwrap_or(tail.len());
            if end == 0 {
                return fail("Empty attribute in format string");
            }
            value = attrs::attr(&value, &Text::fixed(&tail[..end]), budget)?;
            rest = &tail[end..];
        } else if let Some(tail) = rest.strip_prefix('[') {
            let Some((key, behind)) = tail.split_once(']') else {
                return fail("Missing ']' in format string");
            };
            if key.is_empty() {
                return fail("Empty attribute in format string");
            }
            let key = match key.bytes().all(|b| b.is_ascii_digit()) {
                true => Value::Int(key.parse().unwrap_or(i64::MAX)),
                false => Value::text(key, budget)?,
            };
            value = attrs::item(&value, &key, budget)?;
            rest = behind;
        } else {
            return fail("Only '.' or '[' may follow ']' in format field specifier");
        }
    }
    Ok(value)
}

impl Order {
    /// The place of the next argument without a number; `None` for one with a number.
    fn next(&mut self, automatic: bool) -> Result<Option<usize>> {
        match (&self, automatic) {
            (Order::Unknown, true) => {
                *self = Order::Automatic(1);
                Ok(Some(0))
            }
            (Order::Automatic(n), true) => {
                let n = *n;
                *self = Order::Automatic(n + 1);
                Ok(Some(n))
            }
            (Order::Unknown | Order::Manual, false) => {
                *self = Order::Manual;
                Ok(None)
            }
            _ => fail("cannot switch between automatic and manual field numbering"),
        }
    }
}

/// `repr` with what is not ASCII escaped.
fn ascii(text: &str, budget: &Budget) -> Result<String> {
    let mut out = Writer::new(budget);
    for c in text.chars() {
        match c as u32 {
            ..=0x7f => out.push(c.encode_utf8(&mut [0; 4]))?,
            n @ ..=0xff => out.push(&format!("\\x{n:02x}"))?,
            n @ ..=0xffff => out.push(&format!("\\u{n:04x}"))?,
            n => out.push(&format!("\\U{n:08x}"))?,
        }
    }
    Ok(out.text)
}

/// The arguments of `%`, and how many were used.
struct Operands<'a> {
    all: &'a Value,
    used: usize,
}

impl Operands<'_> {
    fn next(&mut self) -> Result<Value> {
        let at = self.used;
        self.used += 1;
        let value = match self.all {
            Value::Tuple(all) => all.items.get(at).cloned(),
            other => (at == 0).then(|| other.clone()),
        };
        match value {
            Some(value) => Ok(value),
            None => fail("not enough arguments for format string"),
        }
    }

    fn number(&mut self) -> Result<i64> {
        match self.next()? {
            value @ (Value::Int(_) | Value::Bool(_)) => crate::ops::index_of(&value),
            _ => fail("* wants int"),
        }
    }
}

/// `text % operands`
pub(crate) fn percent(text: &Text, operands: &Value, budget: &Budget) -> Result<Value> {
    if text.is_markup() {
        return fail(
            "% of a text that is marked as safe HTML escapes its arguments, which is not supported",
        );
    }
    let mut args = Operands {
        all: operands,
        used: 0,
    };
    let mut out = Writer::new(budget);
    let mut rest = text.as_str();
    while let Some(at) = rest.find('%') {
        out.push(&rest[..at])?;
        rest = &rest[at + 1..];
        budget.step(1)?;
        let mut named = None;
        if let Some(tail) = rest.strip_prefix('(') {
            let (mut depth, mut end) = (1usize, None);
            for (at, c) in tail.char_indices() {
                match c {
                    '(' => depth += 1,
                    ')' => depth -= 1,
                    _ => {}
                }
                if depth == 0 {
                    end = Some(at);
                    break;
                }
            }
            let Some(end) = end else {
                return fail("incomplete format key");
            };
            let Value::Dict(dict) = operands else {
                return fail("format requires a mapping");
            };
            let key = Value::text(&tail[..end], budget)?;
            match dict.get(&key, budget)? {
                Some(value) => named = Some(value.clone()),
                None => return fail(format!("format: no key '{}'", &tail[..end])),
            }
            rest = &tail[end + 1..];
        }
        let spec;
        (spec, rest) = percent_spec(rest, &mut args)?;
        let Some(kind) = spec.kind else {
            return fail("incomplete format");
        };
        if kind == '%' {
            out.push("%")?;
            continue;
        }
        let by_name = named.is_some();
        let value = match named {
            Some(value) => value,
            None => args.next()?,
        };
        if by_name {
            args.used = args.used.max(1);
        }
        let shown = percent_one(&value, kind, &spec, budget)?;
        out.push(&shown)?;
    }
    out.push(rest)?;
    let left = match operands {
        Value::Tuple(all) => args.used < all.items.len(),
        Value::Dict(_) | Value::List(_) | Value::Range(_) => false,
        _ => args.used == 0,
    };
    match left {
        true => fail("not all arguments converted during string formatting"),
        false => Value::text(out.text, budget),
    }
}

/// Flags, width, precision and kind behind a `%`, and what follows them.
fn percent_spec<'a>(text: &'a str, args: &mut Operands) -> Result<(Spec, &'a str)> {
    let mut spec = Spec::default();
    let mut rest = text;
    while let Some(c) = rest.chars().next().filter(|c| "#0- +".contains(*c)) {
        match c {
            '#' => spec.alternate = true,
            '0' => spec.zero = true,
            '-' => spec.align = Some('<'),
            '+' => spec.sign = Some('+'),
            _ => spec.sign = spec.sign.or(Some(' ')),
        }
        rest = &rest[1..];
    }
    let mut sized = |rest: &mut &'a str| -> Result<(Option<usize>, bool)> {
        if let Some(tail) = rest.strip_prefix('*') {
            *rest = tail;
            let n = args.number()?;
            return Ok((Some(n.unsigned_abs() as usize), n < 0));
        }
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let n = size(&rest[..end])?;
        *rest = &rest[end..];
        Ok((n, false))
    };
    let (width, left) = sized(&mut rest)?;
    spec.width = width.unwrap_or(0);
    if left {
        spec.align = Some('<');
    }
    if let Some(tail) = rest.strip_prefix('.') {
        rest = tail;
        let (precision, negative) = sized(&mut rest)?;
        spec.precision = Some(if negative { 0 } else { precision.unwrap_or(0) });
    }
    rest = rest.strip_prefix(['h', 'l', 'L']).unwrap_or(rest);
    spec.kind = rest.chars().next();
    rest = &rest[spec.kind.map_or(0, char::len_utf8)..];
    if spec.align.is_some() {
        spec.zero = false;
    }
    Ok((spec, rest))
}

fn percent_one(value: &Value, kind: char, spec: &Spec, budget: &Budget) -> Result<String> {
    let aligned = |text: &str| spec.aligned(text, ' ', spec.align.unwrap_or('>'), budget);
    match kind {
        's' => aligned(cut(&str_of(value, budget)?, spec.precision)),
        'r' => aligned(cut(&repr(value, budget)?, spec.precision)),
        'a' => aligned(cut(&ascii(&repr(value, budget)?, budget)?, spec.precision)),
        'c' => match value {
            Value::Str(t) if t.as_str().chars().count() == 1 => aligned(t.as_str()),
            Value::Int(n) => match u32::try_from(*n).ok().and_then(char::from_u32) {
                Some(c) => aligned(&c.to_string()),
                None => fail("%c arg not in range(0x110000)"),
            },
            _ => fail("%c requires int or char"),
        },
        'd' | 'i' | 'u' | 'o' | 'x' | 'X' => {
            let whole = match value {
                Value::Float(f) if matches!(kind, 'd' | 'i' | 'u') => {
                    number::truncated(*f, budget)?
                }
                Value::Bool(_) | Value::Int(_) | Value::Big(_) => value.clone(),
                other => {
                    other.defined()?;
                    let wanted = match kind {
                        'o' | 'x' | 'X' => "an integer",
                        _ => "a real number",
                    };
                    return fail(format!(
                        "%{kind} format: {wanted} is required, not {}",
                        other.type_name()
                    ));
                }
            };
            let mut digits = int_digits(&whole, kind, spec, budget)?;
            if let Some(least) = spec.precision {
                digits.text = pad(&digits.text, &Value::int(least), '0', Ends::Left, budget)?;
            }
            spec.number(&digits, budget)
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            let f = match (number::float(value)?, value) {
                (Some(f), _) => f,
                (None, other) => {
                    other.defined()?;
                    return fail(format!("must be real number, not {}", other.type_name()));
                }
            };
            let digits = float_digits(f, Some(kind), spec, budget)?;
            spec.number(&digits, budget)
        }
        other => fail(format!("unsupported format character '{other}'")),
    }
}
