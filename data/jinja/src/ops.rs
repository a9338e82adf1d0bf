//! Operators: arithmetic, comparison, and what is in what.

use crate::ast::{Cmp, Op};
use crate::budget::Budget;
use crate::cursor::Cursor;
use crate::error::{Result, fail};
use crate::number::{self, big, float, small};
use crate::value::{OVERHEAD, Object, PLACE, Seq, Value};
use num_bigint::{BigInt, Sign};
use std::cmp::Ordering;
use std::rc::Rc;

/// The integer of 64 bits that a number equals.
pub(crate) fn integer_of(value: &Value) -> Option<i64> {
    match value {
        Value::Float(f) if f.fract() == 0.0 && f.abs() < 9e18 => Some(*f as i64),
        other => small(other),
    }
}

fn is_number(value: &Value) -> bool {
    matches!(
        value,
        Value::Bool(_) | Value::Int(_) | Value::Big(_) | Value::Float(_)
    )
}

/// Takes the steps of comparing integers of more than 64 bits.
fn large(a: &Value, b: &Value, budget: &Budget) -> Result<()> {
    match matches!(a, Value::Big(_)) || matches!(b, Value::Big(_)) {
        true => budget.step(10),
        false => Ok(()),
    }
}

/// Python's `==`.
pub(crate) fn equal(a: &Value, b: &Value, budget: &Budget) -> Result<bool> {
    budget.step(1)?;
    Ok(match (a, b) {
        (Value::Str(x), Value::Str(y)) => {
            budget.scan(x.as_str().len().min(y.as_str().len()))?;
            x.as_str() == y.as_str()
        }
        (Value::List(x), Value::List(y)) | (Value::Tuple(x), Value::Tuple(y)) => {
            equal_items(x, y, budget)?
        }
        (Value::Dict(x), Value::Dict(y)) => {
            if x.len() != y.len() {
                return Ok(false);
            }
            for (key, value) in x.pairs() {
                match y.get(key, budget)? {
                    Some(other) if equal(value, other, budget)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (Value::Range(x), Value::Range(y)) => {
            let same_step = x.len < 2 || x.step == y.step;
            x.len == y.len && (x.len == 0 || (x.start == y.start && same_step))
        }
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::View(x), Value::View(y)) if x.name == y.name && x.name != "dict_values" => {
            if x.items.items.len() != y.items.items.len() {
                return Ok(false);
            }
            for item in &x.items.items {
                if !has(&y.items, item, budget)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::View(x), Value::View(y)) => Rc::ptr_eq(x, y),
        (Value::Iter(x), Value::Iter(y)) => Rc::ptr_eq(x, y),
        (Value::Object(x), Value::Object(y)) => match (&**x, &**y) {
            (Object::Function(f), Object::Function(g)) => f == g,
            (Object::Method(of, f), Object::Method(on, g)) => {
                f.as_str() == g.as_str() && equal(of, on, budget)?
            }
            _ => Rc::ptr_eq(x, y),
        },
        (a, b) if is_number(a) && is_number(b) => {
            large(a, b, budget)?;
            number::compare(a, b) == Some(Ordering::Equal)
        }
        _ => false,
    })
}

fn equal_items(x: &Rc<Seq>, y: &Rc<Seq>, budget: &Budget) -> Result<bool> {
    if Rc::ptr_eq(x, y) {
        return Ok(true);
    }
    if x.items.len() != y.items.len() {
        return Ok(false);
    }
    for (a, b) in x.items.iter().zip(&y.items) {
        if !equal(a, b, budget)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns true if an item is in a sequence.
pub(crate) fn has(seq: &Seq, item: &Value, budget: &Budget) -> Result<bool> {
    for other in &seq.items {
        if equal(other, item, budget)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The order of two values; `None` where one is not a number.
///
/// # Errors
/// Values that have no order in Python; `op` is the operator that asked.
pub(crate) fn order(a: &Value, b: &Value, op: &str, budget: &Budget) -> Result<Option<Ordering>> {
    budget.step(1)?;
    match (a, b) {
        (Value::Str(x), Value::Str(y)) => {
            budget.scan(x.as_str().len().min(y.as_str().len()))?;
            Ok(Some(x.as_str().cmp(y.as_str())))
        }
        (Value::List(x), Value::List(y)) | (Value::Tuple(x), Value::Tuple(y)) => {
            for (a, b) in x.items.iter().zip(&y.items) {
                if !equal(a, b, budget)? {
                    return order(a, b, op, budget);
                }
            }
            Ok(Some(x.items.len().cmp(&y.items.len())))
        }
        (a, b) if is_number(a) && is_number(b) => {
            large(a, b, budget)?;
            Ok(number::compare(a, b))
        }
        _ => {
            a.defined()?;
            b.defined()?;
            fail(format!(
                "'{op}' not supported between instances of '{}' and '{}'",
                a.type_name(),
                b.type_name()
            ))
        }
    }
}

/// A comparison.
#[inline(never)]
pub(crate) fn compare(op: Cmp, a: &Value, b: &Value, budget: &Budget) -> Result<bool> {
    let ordered =
        |sign: &str, fits: fn(Ordering) -> bool| Ok(order(a, b, sign, budget)?.is_some_and(fits));
    match op {
        Cmp::Eq => equal(a, b, budget),
        Cmp::Ne => Ok(!equal(a, b, budget)?),
        Cmp::Lt => ordered("<", Ordering::is_lt),
        Cmp::Le => ordered("<=", Ordering::is_le),
        Cmp::Gt => ordered(">", Ordering::is_gt),
        Cmp::Ge => ordered(">=", Ordering::is_ge),
        Cmp::In => contains(b, a, budget),
        Cmp::NotIn => Ok(!contains(b, a, budget)?),
    }
}

/// Python's `item in all`.
pub(crate) fn contains(all: &Value, item: &Value, budget: &Budget) -> Result<bool> {
    match all {
        Value::Str(text) => match item {
            Value::Str(part) => {
                budget.scan(text.as_str().len())?;
                Ok(text.as_str().contains(part.as_str()))
            }
            other => fail(format!(
                "'in <string>' requires string as left operand, not {}",
                other.type_name()
            )),
        },
        Value::List(s) | Value::Tuple(s) => has(s, item, budget),
        Value::Dict(d) => Ok(d.get(item, budget)?.is_some()),
        Value::Range(r) => Ok(integer_of(item).is_some_and(|n| {
            let (n, start, step) = (i128::from(n), i128::from(r.start), i128::from(r.step));
            let at = (n - start).div_euclid(step);
            (n - start) % step == 0 && at >= 0 && at < r.len as i128
        })),
        Value::View(v) => has(&v.items, item, budget),
        Value::None | Value::Bool(_) | Value::Int(_) | Value::Big(_) | Value::Float(_) => fail(
            format!("argument of type '{}' is not iterable", all.type_name()),
        ),
        _ => {
            let mut items = Cursor::new(all)?;
            while let Some(other) = items.next(budget)? {
                if equal(&other, item, budget)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }
}

fn unsupported<T>(op: &str, a: &Value, b: &Value) -> Result<T> {
    a.defined()?;
    b.defined()?;
    fail(format!(
        "unsupported operand type(s) for {op}: '{}' and '{}'",
        a.type_name(),
        b.type_name()
    ))
}

/// An operator of two operands.
#[inline(never)]
pub(crate) fn binary(op: Op, a: &Value, b: &Value, budget: &Budget) -> Result<Value> {
    if is_number(a) && is_number(b) {
        return arithmetic(op, a, b, budget);
    }
    match op {
        Op::Add => add(a, b, budget),
        Op::Mul => match (a, b) {
            (other, n) | (n, other) if small(n).is_some() => repeat(other, n, budget),
            (other, Value::Big(n)) | (Value::Big(n), other) => match n.get().sign() {
                Sign::Minus => repeat(other, &Value::Int(0), budget),
                _ if other.truth() => fail("cannot fit 'int' into an index-sized integer"),
                _ => repeat(other, &Value::Int(0), budget),
            },
            _ => unsupported("*", a, b),
        },
        Op::Mod => match a {
            Value::Str(text) => crate::format::percent(text, b, budget),
            _ => unsupported("%", a, b),
        },
        Op::Sub => match (a, b) {
            (Value::View(_), _) | (_, Value::View(_)) => {
                fail("sets, as '-' makes of the keys of a dict, are not supported")
            }
            _ => unsupported("-", a, b),
        },
        Op::Div => unsupported("/", a, b),
        Op::FloorDiv => unsupported("//", a, b),
        Op::Pow => unsupported("** or pow()", a, b),
    }
}

#[inline(never)]
fn add(a: &Value, b: &Value, budget: &Budget) -> Result<Value> {
    match (a, b) {
        (Value::Str(x), Value::Str(y)) => {
            // HTML that needs no escaping, joined to text, escapes the text.
            let markup = x.is_markup() || y.is_markup();
            let part = |t: &crate::value::Text| match markup && !t.is_markup() {
                true => crate::print::escape(t.as_str(), budget),
                false => Ok(t.as_str().to_string()),
            };
            budget.room(x.as_str().len() + y.as_str().len())?;
            let text = part(x)? + &part(y)?;
            Value::marked(text, markup, budget)
        }
        (Value::Str(_), _) => {
            b.defined()?;
            fail(format!(
                "can only concatenate str (not \"{}\") to str",
                b.type_name()
            ))
        }
        (Value::List(x), Value::List(y)) | (Value::Tuple(x), Value::Tuple(y)) => {
            budget.room((x.items.len() + y.items.len()) * PLACE)?;
            let all = x.items.iter().chain(&y.items).cloned().collect();
            match a {
                Value::List(_) => Value::list(all, budget),
                _ => Value::tuple(all, budget),
            }
        }
        _ => unsupported("+", a, b),
    }
}

/// A text or a sequence so many times.
#[inline(never)]
fn repeat(of: &Value, times: &Value, budget: &Budget) -> Result<Value> {
    let n = usize::try_from(small(times).unwrap_or(0)).unwrap_or(0);
    match of {
        Value::Str(t) => {
            budget.room(t.as_str().len().saturating_mul(n))?;
            Value::marked(t.as_str().repeat(n), t.is_markup(), budget)
        }
        Value::List(s) | Value::Tuple(s) => {
            let len = s.items.len().saturating_mul(n);
            budget.room(len.saturating_mul(PLACE).saturating_add(OVERHEAD))?;
            let mut items = Vec::with_capacity(len);
            if !s.items.is_empty() {
                (0..n).for_each(|_| items.extend(s.items.iter().cloned()));
            }
            match of {
                Value::List(_) => Value::list(items, budget),
                _ => Value::tuple(items, budget),
            }
        }
        other => unsupported("*", other, times),
    }
}

#[inline(never)]
fn arithmetic(op: Op, a: &Value, b: &Value, budget: &Budget) -> Result<Value> {
    if matches!(a, Value::Float(_)) || matches!(b, Value::Float(_)) {
        let (Some(x), Some(y)) = (float(a)?, float(b)?) else {
            return unsupported("arithmetic", a, b);
        };
        return float_arithmetic(op, x, y).map(Value::Float);
    }
    if let (Some(x), Some(y)) = (small(a), small(b)) {
        let quick = match op {
            Op::Add => x.checked_add(y),
            Op::Sub => x.checked_sub(y),
            Op::Mul => x.checked_mul(y),
            Op::FloorDiv if y > 0 => Some(x.div_euclid(y)),
            Op::Mod if y > 0 => Some(x.rem_euclid(y)),
            _ => None,
        };
        if let Some(n) = quick {
            return Ok(Value::Int(n));
        }
    }
    let (Some(x), Some(y)) = (big(a), big(b)) else {
        return unsupported("arithmetic", a, b);
    };
    let words = (x.bits() / 64 + 1) * (y.bits() / 64 + 1);
    budget.step(1 + words / 16)?;
    let zero = y.sign() == Sign::NoSign;
    match op {
        Op::Add => number::int(x + y, budget),
        Op::Sub => number::int(x - y, budget),
        Op::Mul => number::int(x * y, budget),
        Op::Div => number::true_div(&x, &y).map(Value::Float),
        Op::FloorDiv | Op::Mod if zero => fail("integer division or modulo by zero"),
        Op::FloorDiv => number::int(number::floor_div(&x, &y), budget),
        Op::Mod => number::int(&x - number::floor_div(&x, &y) * &y, budget),
        Op::Pow if y.sign() == Sign::Minus => {
            let (Some(x), Some(y)) = (float(a)?, float(b)?) else {
                return unsupported("**", a, b);
            };
            float_arithmetic(Op::Pow, x, y).map(Value::Float)
        }
        Op::Pow => number::power(&x, &y, budget),
    }
}

fn float_arithmetic(op: Op, x: f64, y: f64) -> Result<f64> {
    if y == 0.0 && matches!(op, Op::Div | Op::FloorDiv | Op::Mod) {
        return fail(match op {
            Op::Div => "float division by zero",
            _ => "float floor division or modulo by zero",
        });
    }
    Ok(match op {
        Op::Add => x + y,
        Op::Sub => x - y,
        Op::Mul => x * y,
        Op::Div => x / y,
        Op::FloorDiv => divided(x, y).0,
        Op::Mod => divided(x, y).1,
        Op::Pow => {
            if x == 0.0 && y < 0.0 {
                return fail("0.0 cannot be raised to a negative power");
            }
            if x < 0.0 && x.is_finite() && y.is_finite() && y.fract() != 0.0 {
                return fail("complex numbers are not supported");
            }
            let f = x.powf(y);
            if f.is_infinite() && x.is_finite() && y.is_finite() {
                return fail("Result too large");
            }
            f
        }
    })
}

/// Python's `divmod` of floats.
fn divided(x: f64, y: f64) -> (f64, f64) {
    let mut rest = x % y;
    let mut quotient = (x - rest) / y;
    if rest != 0.0 {
        if (y < 0.0) != (rest < 0.0) {
            rest += y;
            quotient -= 1.0;
        }
    } else {
        rest = 0f64.copysign(y);
    }
    let floor = match quotient != 0.0 {
        true => {
            let floor = quotient.floor();
            if quotient - floor > 0.5 {
                floor + 1.0
            } else {
                floor
            }
        }
        false => 0f64.copysign(x / y),
    };
    (floor, rest)
}

/// `-a` and `+a`.
#[inline(never)]
pub(crate) fn sign(minus: bool, a: &Value, budget: &Budget) -> Result<Value> {
    match a {
        Value::Float(f) => Ok(Value::Float(if minus { -f } else { *f })),
        other => match big(other) {
            Some(n) => number::int(if minus { -n } else { n }, budget),
            None => {
                a.defined()?;
                let op = if minus { '-' } else { '+' };
                fail(format!(
                    "bad operand type for unary {op}: '{}'",
                    a.type_name()
                ))
            }
        },
    }
}

/// A value that says a place or a count.
///
/// # Errors
/// No integer, or one that no length reaches.
pub(crate) fn index_of(value: &Value) -> Result<i64> {
    match (small(value), value) {
        (Some(n), _) => Ok(n),
        (None, Value::Big(n)) => Ok(if n.get().sign() == Sign::Minus {
            i64::MIN
        } else {
            i64::MAX
        }),
        (None, other) => {
            other.defined()?;
            fail(format!(
                "'{}' object cannot be interpreted as an integer",
                other.type_name()
            ))
        }
    }
}

/// The number as a [`BigInt`], for what counts in them.
pub(crate) fn big_of(value: &Value) -> Result<BigInt> {
    match big(value) {
        Some(n) => Ok(n),
        None => index_of(value).map(BigInt::from),
    }
}
