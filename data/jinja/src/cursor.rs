//! Going through what can be gone through: lists, texts by character, dicts by key, and what is handed out once.

use crate::budget::Budget;
use crate::dict::Dict;
use crate::error::{Result, fail};
use crate::value::{Iter, OVERHEAD, Object, PLACE, Range, Seq, Text, Value};
use std::rc::Rc;

/// A place in what is gone through.
pub(crate) enum Cursor {
    Empty,
    Seq(Rc<Seq>, usize),
    Chars(Text, usize),
    Keys(Rc<Dict>, usize),
    Range(Rc<Range>, usize),
    Iter(Rc<Iter>),
}

impl Cursor {
    /// # Errors
    /// A value that cannot be gone through.
    pub(crate) fn new(value: &Value) -> Result<Cursor> {
        Ok(match value {
            Value::Undefined(_) => Cursor::Empty,
            Value::List(s) | Value::Tuple(s) => Cursor::Seq(s.clone(), 0),
            Value::View(v) => Cursor::Seq(v.items.clone(), 0),
            Value::Str(t) => Cursor::Chars(t.clone(), 0),
            Value::Dict(d) => Cursor::Keys(d.clone(), 0),
            Value::Range(r) => Cursor::Range(r.clone(), 0),
            Value::Iter(i) => Cursor::Iter(i.clone()),
            Value::Object(o) if matches!(**o, Object::Loop(_)) => {
                return fail("going through the variable 'loop' is not supported");
            }
            other => {
                return fail(format!("'{}' object is not iterable", other.type_name()));
            }
        })
    }

    /// The next value.
    pub(crate) fn next(&mut self, budget: &Budget) -> Result<Option<Value>> {
        budget.step(1)?;
        Ok(match self {
            Cursor::Empty => None,
            Cursor::Seq(s, at) => {
                *at += 1;
                s.items.get(*at - 1).cloned()
            }
            Cursor::Keys(d, at) => {
                *at += 1;
                d.pairs().get(*at - 1).map(|p| p.0.clone())
            }
            Cursor::Range(r, at) => {
                *at += 1;
                r.get(*at - 1).map(Value::Int)
            }
            Cursor::Iter(i) => {
                let at = i.at.get();
                i.at.set(at + 1);
                i.items.items.get(at).cloned()
            }
            Cursor::Chars(t, at) => match t.as_str()[*at..].chars().next() {
                Some(c) => {
                    *at += c.len_utf8();
                    Some(Value::text(c.to_string(), budget)?)
                }
                None => None,
            },
        })
    }

    /// Returns the number of values that are left.
    fn left(&self) -> usize {
        match self {
            Cursor::Empty => 0,
            Cursor::Seq(s, at) => s.items.len().saturating_sub(*at),
            Cursor::Keys(d, at) => d.len().saturating_sub(*at),
            Cursor::Range(r, at) => r.len.saturating_sub(*at),
            Cursor::Iter(i) => i.items.items.len().saturating_sub(i.at.get()),
            Cursor::Chars(t, at) => t.as_str()[*at..].chars().count(),
        }
    }
}

/// Everything that a value can be gone through, as a list.
#[inline(never)]
pub(crate) fn items(value: &Value, budget: &Budget) -> Result<Vec<Value>> {
    let mut cursor = Cursor::new(value)?;
    let each = match cursor {
        Cursor::Chars(..) => PLACE + OVERHEAD,
        _ => PLACE,
    };
    let left = cursor.left();
    budget.room(left.saturating_mul(each))?;
    let mut all = Vec::with_capacity(left);
    while let Some(item) = cursor.next(budget)? {
        all.push(item);
    }
    Ok(all)
}

/// Python's `len`, `None` for what has none.
pub(crate) fn len(value: &Value, budget: &Budget) -> Result<Option<usize>> {
    Ok(match value {
        Value::Undefined(_) => Some(0),
        Value::Str(t) => {
            budget.scan(t.as_str().len())?;
            Some(t.as_str().chars().count())
        }
        Value::List(s) | Value::Tuple(s) => Some(s.items.len()),
        Value::View(v) => Some(v.items.items.len()),
        Value::Dict(d) => Some(d.len()),
        Value::Range(r) => Some(r.len),
        _ => None,
    })
}
