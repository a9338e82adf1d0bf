//! Numbers as Python computes, reads and prints them: integers of any size, and floats by `repr`.

use crate::budget::Budget;
use crate::error::{Result, fail};
use crate::value::{Big, Value};
use num_bigint::{BigInt, Sign};
use std::cmp::Ordering;

/// The longest integer; Python itself prints and reads none of more than 4,300 digits.
const MAX_BITS: u64 = 16_384;
/// The most digits that Python prints.
const MAX_DIGITS: usize = 4300;

/// An integer as a value.
pub(crate) fn int(n: BigInt, budget: &Budget) -> Result<Value> {
    if let Ok(n) = i64::try_from(&n) {
        return Ok(Value::Int(n));
    }
    if n.bits() > MAX_BITS {
        return fail(format!("an integer of more than {MAX_BITS} bits"));
    }
    budget.step(1 + n.bits() / 64)?;
    Ok(Value::Big(Big::new(n, budget)?))
}

/// The integer that a value is, booleans included.
pub(crate) fn big(value: &Value) -> Option<BigInt> {
    match value {
        Value::Bool(b) => Some(BigInt::from(*b)),
        Value::Int(n) => Some(BigInt::from(*n)),
        Value::Big(n) => Some(n.get().clone()),
        _ => None,
    }
}

/// The integer of 64 bits that a value is, booleans included.
pub(crate) fn small(value: &Value) -> Option<i64> {
    match value {
        Value::Bool(b) => Some(i64::from(*b)),
        Value::Int(n) => Some(*n),
        _ => None,
    }
}

/// A number as a float, as Python converts it.
pub(crate) fn float(value: &Value) -> Result<Option<f64>> {
    match value {
        Value::Float(f) => Ok(Some(*f)),
        Value::Big(n) => big_float(n.get()).map(Some),
        other => Ok(small(other).map(|n| n as f64)),
    }
}

fn big_float(n: &BigInt) -> Result<f64> {
    if n.bits() > 1100 {
        return fail("int too large to convert to float");
    }
    // Decimal text is read with correct rounding.
    match n.to_string().parse::<f64>() {
        Ok(f) if f.is_finite() => Ok(f),
        _ => fail("int too large to convert to float"),
    }
}

/// The integer part of a float.
pub(crate) fn truncated(f: f64, budget: &Budget) -> Result<Value> {
    if f.is_nan() {
        return fail("cannot convert float NaN to integer");
    }
    if f.is_infinite() {
        return fail("cannot convert float infinity to integer");
    }
    match f.abs() < 9e18 {
        true => Ok(Value::Int(f as i64)),
        false => int(whole(f), budget),
    }
}

/// The integer that a finite float without fraction is.
fn whole(f: f64) -> BigInt {
    format!("{:.0}", f.trunc()).parse().unwrap_or_default()
}

/// Decimal digits of an integer.
///
/// # Errors
/// More than Python prints.
pub(crate) fn digits(n: &BigInt, budget: &Budget) -> Result<String> {
    let words = n.bits() / 64;
    budget.step(1 + words * words / 8)?;
    let text = n.to_string();
    match text.trim_start_matches('-').len() <= MAX_DIGITS {
        true => Ok(text),
        false => fail(format!(
            "Exceeds the limit ({MAX_DIGITS} digits) for integer string conversion"
        )),
    }
}

/// Python's `repr` of a float: the fewest digits that are read back as the same number.
pub(crate) fn float_repr(f: f64) -> String {
    if f.is_nan() {
        return "nan".into();
    }
    if f.is_infinite() {
        return if f > 0.0 { "inf" } else { "-inf" }.into();
    }
    let text = format!("{f:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", mantissa),
    };
    let digits: String = mantissa.chars().filter(|c| *c != '.').collect();
    if !(-4..16).contains(&exponent) {
        let mark = if exponent < 0 { '-' } else { '+' };
        return format!("{sign}{mantissa}e{mark}{:02}", exponent.abs());
    }
    if exponent < 0 {
        let zeros = "0".repeat((-exponent - 1) as usize);
        return format!("{sign}0.{zeros}{digits}");
    }
    let point = exponent as usize + 1;
    match digits.len() > point {
        true => format!("{sign}{}.{}", &digits[..point], &digits[point..]),
        false => format!("{sign}{digits}{}.0", "0".repeat(point - digits.len())),
    }
}

/// The order of two numbers, `None` where one is not a number. Exact: an integer is not rounded to a float.
pub(crate) fn compare(a: &Value, b: &Value) -> Option<Ordering> {
    match (a, b) {
        (Value::Float(x), Value::Float(y)) => x.partial_cmp(y),
        (Value::Float(x), other) => compare_float(*x, other),
        (other, Value::Float(y)) => compare_float(*y, other).map(Ordering::reverse),
        _ => match (small(a), small(b)) {
            (Some(x), Some(y)) => Some(x.cmp(&y)),
            _ => Some(big(a)?.cmp(&big(b)?)),
        },
    }
}

fn compare_float(f: f64, n: &Value) -> Option<Ordering> {
    if f.is_nan() {
        return None;
    }
    if f.is_infinite() {
        return Some(if f > 0.0 {
            Ordering::Greater
        } else {
            Ordering::Less
        });
    }
    let part = f.fract().partial_cmp(&0.0)?;
    let whole = match (f.abs() < 9e18, small(n)) {
        (true, Some(n)) => (f as i64).cmp(&n),
        _ => whole(f).cmp(&big(n)?),
    };
    Some(whole.then(part))
}

/// Arithmetic of integers: the quotient rounded down.
pub(crate) fn floor_div(a: &BigInt, b: &BigInt) -> BigInt {
    let (q, r) = (a / b, a % b);
    match r.sign() != Sign::NoSign && (r.sign() == Sign::Minus) != (b.sign() == Sign::Minus) {
        true => q - 1,
        false => q,
    }
}

/// `a / b` of integers, correctly rounded.
pub(crate) fn true_div(a: &BigInt, b: &BigInt) -> Result<f64> {
    if b.sign() == Sign::NoSign {
        return fail("division by zero");
    }
    // As many bits as rounding needs, and one that says whether anything is left.
    let shift = (b.bits() as i64 - a.bits() as i64 + 70).max(0) as u64;
    let scaled = a << shift;
    let mut q = &scaled / b;
    if &q * b != scaled {
        q = (q << 1u8)
            + if (a.sign() == Sign::Minus) != (b.sign() == Sign::Minus) {
                -1
            } else {
                1
            };
    } else {
        q <<= 1u8;
    }
    let f = big_float(&q)?;
    // In two steps, so that no power of two is too small.
    let half = (shift as i32 + 1) / 2;
    Ok(f * 2f64.powi(-half) * 2f64.powi(half - shift as i32 - 1))
}

/// `a ** b` of integers, `b` not negative.
pub(crate) fn power(a: &BigInt, b: &BigInt, budget: &Budget) -> Result<Value> {
    let trivial = a.bits() <= 1;
    let exponent = match u32::try_from(b) {
        Ok(b) => b,
        // 0, 1 and -1 have every power.
        Err(_) if trivial => 2 + u32::from(b % 2u8 != BigInt::from(0)),
        Err(_) => return fail(format!("an integer of more than {MAX_BITS} bits")),
    };
    if !trivial && (a.bits() - 1).saturating_mul(u64::from(exponent)) > MAX_BITS {
        return fail(format!("an integer of more than {MAX_BITS} bits"));
    }
    let words = (a.bits().saturating_mul(u64::from(exponent))).min(2 * MAX_BITS) / 64;
    budget.step(1 + words * words / 16)?;
    let exponent = if trivial {
        exponent.min(2 + exponent % 2)
    } else {
        exponent
    };
    int(a.pow(exponent), budget)
}

/// `int(text, base)` of Python.
pub(crate) fn parse_int(text: &str, base: u32) -> Option<BigInt> {
    let text = text.trim_matches(crate::unicode::is_space);
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let prefix = |radix: u32| match radix {
        2 => ["0b", "0B"],
        8 => ["0o", "0O"],
        _ => ["0x", "0X"],
    };
    let of = |radix: u32| {
        let both = prefix(radix);
        both.iter().find_map(|p| digits.strip_prefix(p))
    };
    let (radix, digits) = match base {
        0 => match [2, 8, 16].into_iter().find_map(|r| Some((r, of(r)?))) {
            Some(found) => found,
            None if digits.starts_with('0') && !digits.trim_matches(['0', '_']).is_empty() => {
                return None;
            }
            None => (10, digits),
        },
        2 | 8 | 16 => (base, of(base).unwrap_or(digits)),
        2..=36 => (base, digits),
        _ => return None,
    };
    if digits.len() > 2 * MAX_DIGITS {
        return None;
    }
    // One underscore may stand between digits, and behind a prefix.
    let prefixed = digits.len() < text.trim_start_matches(['-', '+']).len();
    let digits = match prefixed {
        true => digits.strip_prefix('_').unwrap_or(digits),
        false => digits,
    };
    let bad = digits.is_empty()
        || digits.starts_with('_')
        || digits.ends_with('_')
        || digits.contains("__")
        || digits.len() > MAX_DIGITS;
    let plain: String = digits.chars().filter(|c| *c != '_').map(decimal).collect();
    let right = plain.bytes().all(|b| b.is_ascii_alphanumeric());
    (!bad && right).then(|| BigInt::parse_bytes(format!("{sign}{plain}").as_bytes(), radix))?
}

/// A decimal digit of any script as ASCII.
fn decimal(c: char) -> char {
    match crate::unicode::decimal_of(c) {
        Some(d) => char::from(b'0' + d),
        None => c,
    }
}

/// `float(text)` of Python.
pub(crate) fn parse_float(text: &str) -> Option<f64> {
    let text = text.trim_matches(crate::unicode::is_space);
    let unsigned = text.trim_start_matches(['+', '-']);
    if text.len() - unsigned.len() > 1 {
        return None;
    }
    let minus = text.starts_with('-');
    let signed = |f: f64| if minus { -f } else { f };
    match unsigned.to_ascii_lowercase().as_str() {
        "inf" | "infinity" => return Some(signed(f64::INFINITY)),
        "nan" => return Some(f64::NAN),
        _ => {}
    }
    let chars: Vec<char> = unsigned.chars().map(decimal).collect();
    let digit = |at: usize| chars.get(at).is_some_and(char::is_ascii_digit);
    let mut plain = String::new();
    for (at, c) in chars.iter().enumerate() {
        match c {
            '_' if at > 0 && digit(at - 1) && digit(at + 1) => {}
            '0'..='9' | '.' | 'e' | 'E' | '+' | '-' => plain.push(*c),
            _ => return None,
        }
    }
    // Rust takes what Python takes, but for a sign in front, which is gone already.
    match plain.starts_with(['+', '-']) {
        true => None,
        false => plain.parse().ok().map(signed),
    }
}

/// `round(f, places)` of Python: half to even on the exact value.
pub(crate) fn round_float(f: f64, places: i64) -> f64 {
    if !f.is_finite() || places > 340 {
        return f;
    }
    if places >= 0 {
        return format!("{f:.*}", places as usize).parse().unwrap_or(f);
    }
    if places < -310 {
        return 0.0 * f;
    }
    let unit = BigInt::from(10).pow(places.unsigned_abs() as u32);
    let more = f.fract() != 0.0;
    let rounded = round_to(&whole(f.abs()), &unit, more);
    let back: f64 = rounded.to_string().parse().unwrap_or(f);
    back.copysign(f)
}

/// `round(n, -places)` of an integer.
pub(crate) fn round_int(n: &BigInt, places: u32) -> BigInt {
    let unit = BigInt::from(10).pow(places.min(MAX_DIGITS as u32 + 800));
    let magnitude = BigInt::from(n.magnitude().clone());
    let rounded = round_to(&magnitude, &unit, false);
    if n.sign() == Sign::Minus {
        -rounded
    } else {
        rounded
    }
}

/// The multiple of `unit` next to `n`; `more` where a fraction follows.
fn round_to(n: &BigInt, unit: &BigInt, more: bool) -> BigInt {
    let (q, r) = (n / unit, n % unit);
    let up = match (r * 2u8).cmp(unit) {
        Ordering::Greater => true,
        Ordering::Less => false,
        Ordering::Equal => more || &q % 2u8 != BigInt::from(0),
    };
    (if up { q + 1 } else { q }) * unit
}
