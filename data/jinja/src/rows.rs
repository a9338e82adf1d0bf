//! Values as a caller reads and changes them: the messages of a row.

use crate::budget::Budget;
use crate::dict::Dict;
use crate::error::{Error, Result, fail};
use crate::value::{Missing, Seq, Text, Value};
use std::fmt;
use std::rc::Rc;

/// The kinds of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// Nothing, not even `null`.
    Undefined,
    /// `null`
    None,
    /// `true` or `false`
    Bool,
    /// An integer or a float.
    Number,
    /// A text.
    String,
    /// A list.
    Seq,
    /// An object.
    Map,
    /// A value that no row holds.
    Other,
}

impl fmt::Display for ValueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ValueKind::Undefined => "undefined",
            ValueKind::None => "null",
            ValueKind::Bool => "bool",
            ValueKind::Number => "number",
            ValueKind::String => "string",
            ValueKind::Seq => "list",
            ValueKind::Map => "object",
            ValueKind::Other => "no JSON",
        })
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Str(Text::fixed(text))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Str(Text::fixed(&text))
    }
}

impl From<bool> for Value {
    fn from(b: bool) -> Value {
        Value::Bool(b)
    }
}

impl From<i64> for Value {
    fn from(n: i64) -> Value {
        Value::Int(n)
    }
}

impl From<i32> for Value {
    fn from(n: i32) -> Value {
        Value::Int(i64::from(n))
    }
}

impl From<f64> for Value {
    fn from(f: f64) -> Value {
        Value::Float(f)
    }
}

impl From<()> for Value {
    fn from((): ()) -> Value {
        Value::None
    }
}

impl Default for Value {
    fn default() -> Value {
        Value::Undefined(Rc::new(Missing::Other("no value".into())))
    }
}

impl TryFrom<Value> for f64 {
    type Error = Error;

    fn try_from(value: Value) -> Result<f64> {
        match crate::number::float(&value)? {
            Some(f) if !matches!(value, Value::Bool(_)) => Ok(f),
            _ => fail(format!("a number is expected, not {}", value.kind())),
        }
    }
}

impl FromIterator<Value> for Value {
    fn from_iter<I: IntoIterator<Item = Value>>(items: I) -> Value {
        Value::List(Seq::fixed(items.into_iter().collect()))
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        crate::ops::equal(self, other, &Budget::unbounded()).unwrap_or(false)
    }
}

impl Value {
    /// A dict of these keys, in this order.
    pub fn from_pairs<K: Into<Value>, V: Into<Value>>(
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Value {
        let pairs = pairs.into_iter();
        let pairs = pairs.map(|(k, v)| (k.into(), v.into()));
        // Keys of rows are texts, and this budget has no end.
        let dict = Dict::of(pairs, &Budget::unbounded());
        Value::Dict(Rc::new(dict.unwrap_or_else(|_| Dict::new())))
    }

    /// The items of a list, or the keys of an object.
    ///
    /// # Errors
    /// A value that is neither.
    pub fn try_iter(&self) -> Result<std::vec::IntoIter<Value>> {
        match self {
            Value::List(_) | Value::Tuple(_) | Value::Dict(_) => {
                crate::cursor::items(self, &Budget::unbounded()).map(Vec::into_iter)
            }
            other => fail(format!(
                "a list or an object is expected, not {}",
                other.kind()
            )),
        }
    }

    /// The value of a field, undefined where an object has no such field.
    ///
    /// # Errors
    /// A value that is no object.
    pub fn get_attr(&self, name: &str) -> Result<Value> {
        match self {
            Value::Dict(d) => Ok(d.field(name).cloned().unwrap_or_default()),
            other => fail(format!("an object is expected, not {}", other.kind())),
        }
    }

    /// The value of a key, undefined where an object has no such key.
    ///
    /// # Errors
    /// A value that is no object, or a key that is none.
    pub fn get_item(&self, key: &Value) -> Result<Value> {
        match (self, key) {
            (Value::Dict(d), key) => {
                let found = d.get(key, &Budget::unbounded())?;
                Ok(found.cloned().unwrap_or_default())
            }
            (other, _) => fail(format!("an object is expected, not {}", other.kind())),
        }
    }

    /// The integer, if it is one of 64 bits.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Value::Int(n) => Some(*n),
            _ => None,
        }
    }

    /// Returns true if it is an integer of any size.
    pub fn is_integer(&self) -> bool {
        matches!(self, Value::Int(_) | Value::Big(_))
    }

    /// Returns true if it is `null`.
    pub fn is_none(&self) -> bool {
        matches!(self, Value::None)
    }

    /// Returns true if Python takes it for true.
    pub fn is_true(&self) -> bool {
        self.truth()
    }

    /// Returns its kind.
    pub fn kind(&self) -> ValueKind {
        match self {
            Value::Undefined(_) => ValueKind::Undefined,
            Value::None => ValueKind::None,
            Value::Bool(_) => ValueKind::Bool,
            Value::Int(_) | Value::Big(_) | Value::Float(_) => ValueKind::Number,
            Value::Str(_) => ValueKind::String,
            Value::List(_) | Value::Tuple(_) => ValueKind::Seq,
            Value::Dict(_) => ValueKind::Map,
            _ => ValueKind::Other,
        }
    }

    /// The bytes that it takes, roughly.
    pub(crate) fn input_size(&self) -> usize {
        match self {
            Value::Str(t) => t.as_str().len(),
            Value::List(s) | Value::Tuple(s) => s.items.iter().map(|i| i.input_size() + 4).sum(),
            Value::Dict(d) => {
                let pairs = d.pairs().iter();
                pairs
                    .map(|(k, v)| k.input_size() + v.input_size() + 4)
                    .sum()
            }
            Value::Big(n) => n.get().bits() as usize / 8,
            _ => 4,
        }
    }

    /// Returns true if a text in it has such a character.
    pub(crate) fn has_char(&self, is: fn(char) -> bool) -> bool {
        match self {
            Value::Str(t) => t.as_str().contains(is),
            Value::List(s) | Value::Tuple(s) => s.items.iter().any(|i| i.has_char(is)),
            Value::Dict(d) => {
                let mut pairs = d.pairs().iter();
                pairs.any(|(k, v)| k.has_char(is) || v.has_char(is))
            }
            _ => false,
        }
    }
}
