//! Values of a template: Python's, as far as a template can meet them. Their sizes are counted, their depth is bounded, and none can hold itself.

use crate::ast::MacroId;
use crate::budget::{Budget, Held, MAX_DEPTH};
use crate::dict::Dict;
use crate::error::{Result, fail};
use crate::looping::Loop;
use crate::scope::Scope;
use num_bigint::BigInt;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// Bytes that a text takes beside its characters, and any other value beside its items.
pub(crate) const OVERHEAD: usize = 80;
/// Bytes of a place in a list, with those of a small value that lies behind it.
pub(crate) const PLACE: usize = 48;
/// The deepest value that a namespace holds. A namespace itself counts as one level more, so that what holds one is bounded too.
const NAMESPACE_DEPTH: u16 = MAX_DEPTH / 2;

/// A value of a template.
#[derive(Clone)]
pub enum Value {
    /// A value that is not there, with the words for an error about it.
    Undefined(Rc<Missing>),
    /// `none`
    None,
    /// `true` or `false`
    Bool(bool),
    /// An integer of 64 bits.
    Int(i64),
    /// An integer of more bits; never one that [`Value::Int`] holds.
    Big(Rc<Big>),
    /// A floating-point number.
    Float(f64),
    /// A text.
    Str(Text),
    /// A list.
    List(Rc<Seq>),
    /// A tuple.
    Tuple(Rc<Seq>),
    /// A dict, in the order of insertion.
    Dict(Rc<Dict>),
    /// `range(…)`
    Range(Rc<Range>),
    /// The keys, values or items of a dict.
    View(Rc<View>),
    /// Values that can be gone through once: the result of `map`, `select`, `reversed` and the
    /// like.
    Iter(Rc<Iter>),
    /// A value that is no plain data: a namespace, a macro, a loop, a function.
    Object(Rc<Object>),
}

/// An integer of more than 64 bits.
pub struct Big {
    n: BigInt,
    _held: Held,
}

/// The reason for which a value is not there.
pub enum Missing {
    /// No variable of this name.
    Name(Arc<str>),
    /// A value of this type has no such attribute or element.
    Attr(&'static str, Value),
    /// Something else, in words.
    Other(String),
}

/// A text, shared.
#[derive(Clone)]
pub struct Text(Arc<TextBox>);

struct TextBox {
    text: Box<str>,
    /// True if it is marked as HTML that needs no escaping (`safe`, `escape`).
    markup: bool,
    _held: Held,
}

/// The items of a list or a tuple.
pub struct Seq {
    pub(crate) items: Vec<Value>,
    depth: u16,
    plain: bool,
    /// True if it is a pair of `groupby`, whose parts have names.
    pub(crate) group: bool,
    _held: Held,
}

/// `range(start, stop, step)`, of at most 100,000 numbers.
#[derive(Debug, PartialEq, Eq)]
pub struct Range {
    pub(crate) start: i64,
    pub(crate) stop: i64,
    pub(crate) step: i64,
    pub(crate) len: usize,
}

/// The keys, values or items of a dict.
pub struct View {
    pub(crate) name: &'static str,
    pub(crate) items: Rc<Seq>,
}

/// Values that are handed out once.
pub struct Iter {
    /// As Python calls its type.
    pub(crate) name: &'static str,
    pub(crate) items: Rc<Seq>,
    pub(crate) at: Cell<usize>,
}

/// The values that are no plain data.
pub enum Object {
    /// `namespace(…)`, whose attributes are assigned.
    Namespace(RefCell<Vec<(Text, Value)>>),
    /// A macro, or the body of a call block, with the variables around it.
    Macro(MacroId, Rc<Scope>),
    /// The variable `loop`.
    Loop(Loop),
    /// `cycler(…)` and its place.
    Cycler(Rc<Seq>, Cell<usize>),
    /// `joiner(…)` and whether it was called.
    Joiner(Text, Cell<bool>),
    /// A global function.
    Function(&'static str),
    /// A method of a value.
    Method(Value, Text),
}

impl Missing {
    pub(crate) fn words(&self) -> String {
        match self {
            Missing::Name(name) => format!("'{name}' is undefined"),
            Missing::Attr(of, name) => format!(
                "'{of}' has no attribute or element {}",
                crate::print::short(name)
            ),
            Missing::Other(words) => words.clone(),
        }
    }
}

impl Text {
    /// A text that no budget counts: of the template itself or of the messages.
    pub(crate) fn fixed(text: &str) -> Text {
        Text(Arc::new(TextBox {
            text: text.into(),
            markup: false,
            _held: Held::default(),
        }))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0.text
    }

    pub(crate) fn is_markup(&self) -> bool {
        self.0.markup
    }

    pub(crate) fn is(&self, other: &Text) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Big {
    /// An integer that no budget counts: of the messages.
    pub(crate) fn fixed(n: BigInt) -> Rc<Big> {
        Rc::new(Big {
            n,
            _held: Held::default(),
        })
    }

    pub(crate) fn new(n: BigInt, budget: &Budget) -> Result<Rc<Big>> {
        let held = budget.hold(OVERHEAD + n.bits() as usize / 8)?;
        Ok(Rc::new(Big { n, _held: held }))
    }

    pub(crate) fn get(&self) -> &BigInt {
        &self.n
    }
}

impl Seq {
    /// A sequence that no budget counts: of the messages.
    pub(crate) fn fixed(items: Vec<Value>) -> Rc<Seq> {
        Seq::of(items, Held::default())
    }

    fn of(items: Vec<Value>, held: Held) -> Rc<Seq> {
        Rc::new(Seq {
            depth: 1 + items.iter().map(Value::depth).max().unwrap_or(0),
            plain: items.iter().all(Value::is_plain),
            items,
            group: false,
            _held: held,
        })
    }

    pub(crate) fn new(items: Vec<Value>, budget: &Budget) -> Result<Rc<Seq>> {
        let held = budget.hold(items.len() * PLACE + OVERHEAD)?;
        let seq = Seq::of(items, held);
        check_depth(seq.depth)?;
        Ok(seq)
    }

    /// A pair of `groupby`.
    pub(crate) fn group(items: Vec<Value>, budget: &Budget) -> Result<Rc<Seq>> {
        let mut seq = Seq::new(items, budget)?;
        if let Some(seq) = Rc::get_mut(&mut seq) {
            seq.group = true;
        }
        Ok(seq)
    }

    pub(crate) fn depth(&self) -> u16 {
        self.depth
    }
}

/// # Errors
/// A value deeper than any may be.
pub(crate) fn check_depth(depth: u16) -> Result<()> {
    match depth <= MAX_DEPTH {
        true => Ok(()),
        false => fail(format!(
            "the template nests values more than {MAX_DEPTH} levels deep"
        )),
    }
}

impl Range {
    /// # Errors
    /// A step of 0, or more numbers than Jinja's sandbox allows.
    pub(crate) fn new(start: i64, stop: i64, step: i64) -> Result<Range> {
        const MOST: i128 = 100_000;
        let (from, to, by) = (i128::from(start), i128::from(stop), i128::from(step));
        let len = match by {
            0 => return fail("range() arg 3 must not be zero"),
            1.. => (to - from + by - 1).div_euclid(by).max(0),
            _ => (from - to - by - 1).div_euclid(-by).max(0),
        };
        match usize::try_from(len) {
            Ok(len) if len as i128 <= MOST => Ok(Range {
                start,
                stop,
                step,
                len,
            }),
            _ => fail(format!(
                "range of {len} numbers: Jinja's sandbox allows {MOST}"
            )),
        }
    }

    pub(crate) fn get(&self, i: usize) -> Option<i64> {
        // Wrapping: the sum lies between start and stop, whatever the product is.
        let steps = self.step.wrapping_mul(i as i64);
        (i < self.len).then(|| self.start.wrapping_add(steps))
    }
}

impl Value {
    /// Makes a value that is not there because of these words.
    pub(crate) fn missing(words: impl Into<String>) -> Value {
        Value::Undefined(Rc::new(Missing::Other(words.into())))
    }

    pub(crate) fn int(n: usize) -> Value {
        Value::Int(i64::try_from(n).unwrap_or(i64::MAX))
    }

    pub(crate) fn text(text: impl Into<Box<str>>, budget: &Budget) -> Result<Value> {
        Value::marked(text, false, budget)
    }

    /// A text with or without the mark of HTML that needs no escaping.
    pub(crate) fn marked(
        text: impl Into<Box<str>>,
        markup: bool,
        budget: &Budget,
    ) -> Result<Value> {
        let text: Box<str> = text.into();
        let held = budget.hold(text.len() + OVERHEAD)?;
        Ok(Value::Str(Text(Arc::new(TextBox {
            text,
            markup,
            _held: held,
        }))))
    }

    pub(crate) fn list(items: Vec<Value>, budget: &Budget) -> Result<Value> {
        Ok(Value::List(Seq::new(items, budget)?))
    }

    pub(crate) fn tuple(items: Vec<Value>, budget: &Budget) -> Result<Value> {
        Ok(Value::Tuple(Seq::new(items, budget)?))
    }

    pub(crate) fn iter(name: &'static str, items: Vec<Value>, budget: &Budget) -> Result<Value> {
        Ok(Value::Iter(Rc::new(Iter {
            name,
            items: Seq::new(items, budget)?,
            at: Cell::new(0),
        })))
    }

    pub(crate) fn object(object: Object, budget: &Budget) -> Result<Value> {
        // The few bytes of an object live as long as a statement, or in a variable of it.
        budget.step(1)?;
        let value = Value::Object(Rc::new(object));
        check_depth(value.depth())?;
        Ok(value)
    }

    /// Returns the number of levels that it nests; 0 for a value that holds nothing.
    pub(crate) fn depth(&self) -> u16 {
        match self {
            Value::List(s) | Value::Tuple(s) => s.depth,
            Value::Dict(d) => d.depth(),
            Value::View(v) => 1 + v.items.depth,
            Value::Iter(i) => 1 + i.items.depth,
            Value::Object(o) => match &**o {
                Object::Namespace(_) => 1 + NAMESPACE_DEPTH,
                Object::Cycler(items, _) => 1 + items.depth,
                Object::Method(of, _) => 1 + of.depth(),
                Object::Loop(l) => 1 + l.depth(),
                _ => 1,
            },
            _ => 0,
        }
    }

    /// Returns true if it is data only: nothing that can be assigned to, or that holds variables.
    /// Only such values go into a namespace, hence nothing ever holds itself.
    pub(crate) fn is_plain(&self) -> bool {
        match self {
            Value::List(s) | Value::Tuple(s) => s.plain,
            Value::Dict(d) => d.is_plain(),
            Value::View(v) => v.items.plain,
            Value::Iter(i) => i.items.plain,
            Value::Object(o) => match &**o {
                Object::Cycler(items, _) => items.plain,
                Object::Method(of, _) => of.is_plain(),
                Object::Joiner(..) | Object::Function(_) => true,
                Object::Namespace(_) | Object::Macro(..) | Object::Loop(_) => false,
            },
            _ => true,
        }
    }

    /// # Errors
    /// A value that a namespace cannot hold.
    pub(crate) fn check_for_namespace(&self, name: &str) -> Result<()> {
        if !self.is_plain() {
            return fail(format!(
                "attribute {name:?} of a namespace is assigned a {}: a namespace holds data only, so that nothing can hold itself",
                self.type_name()
            ));
        }
        match self.depth() <= NAMESPACE_DEPTH {
            true => Ok(()),
            false => fail(format!(
                "attribute {name:?} of a namespace is assigned a value of more than {NAMESPACE_DEPTH} levels"
            )),
        }
    }

    /// Returns true if it is not there.
    pub fn is_undefined(&self) -> bool {
        matches!(self, Value::Undefined(_))
    }

    /// The name of its type in Python.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) | Value::Big(_) => "int",
            Value::Float(_) => "float",
            Value::Str(t) if t.is_markup() => "Markup",
            Value::Str(_) => "str",
            Value::List(_) => "list",
            Value::Tuple(_) => "tuple",
            Value::Dict(_) => "dict",
            Value::Range(_) => "range",
            Value::View(v) => v.name,
            Value::Iter(i) => i.name,
            Value::Object(o) => match &**o {
                Object::Namespace(_) => "Namespace",
                Object::Macro(..) => "Macro",
                Object::Loop(_) => "LoopContext",
                Object::Cycler(..) => "Cycler",
                Object::Joiner(..) => "Joiner",
                Object::Function(_) => "function",
                Object::Method(..) => "method",
            },
        }
    }

    /// The text, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Str(t) => Some(t.as_str()),
            _ => None,
        }
    }

    /// # Errors
    /// It is not there.
    pub(crate) fn defined(&self) -> Result<()> {
        match self {
            Value::Undefined(m) => fail(m.words()),
            _ => Ok(()),
        }
    }

    /// Returns true if Python takes it for true.
    pub(crate) fn truth(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(b) => *b,
            Value::Int(n) => *n != 0,
            Value::Big(_) => true,
            Value::Float(f) => *f != 0.0,
            Value::Str(t) => !t.as_str().is_empty(),
            Value::List(s) | Value::Tuple(s) => !s.items.is_empty(),
            Value::Dict(d) => !d.is_empty(),
            Value::Range(r) => r.len > 0,
            Value::View(v) => !v.items.items.is_empty(),
            Value::Iter(_) | Value::Object(_) => true,
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match crate::print::repr(self, &Budget::new(0)) {
            Ok(text) => f.write_str(&text),
            Err(_) => write!(f, "<{}>", self.type_name()),
        }
    }
}
