//! A template as a tree. Every node is bounded in depth, so that walking and dropping it cannot exhaust the stack.

use crate::error::{Result, fail};
use crate::scope::Name;
use crate::value::Text;
use num_bigint::BigInt;

/// The place of a macro in [`Tree::macros`].
pub type MacroId = u32;
/// The place of a loop in [`Tree::loops`].
pub(crate) type LoopId = u32;

/// The depth to which an expression may nest: operators on the results of operators, calls within
/// arguments, and so on.
const MAX_DEPTH: u16 = 200;

/// A whole template.
#[derive(Default)]
pub(crate) struct Tree {
    pub(crate) body: Vec<Stmt>,
    pub(crate) macros: Vec<Macro>,
    pub(crate) loops: Vec<For>,
    /// Every name that it uses.
    pub(crate) names: Vec<Box<str>>,
    /// True if it has a `generation` block.
    pub(crate) marks: bool,
}

/// A statement and its line.
pub(crate) struct Stmt {
    pub(crate) line: u32,
    pub(crate) kind: StmtKind,
}

/// The statements of the language.
pub(crate) enum StmtKind {
    /// Text between tags.
    Data(Box<str>),
    /// `{{ … }}`
    Print(Expr),
    /// `if` and `elif` with their bodies, and the body of `else`.
    If(Vec<(Expr, Vec<Stmt>)>, Vec<Stmt>),
    /// A loop, by its place in the list.
    For(LoopId),
    /// `set` of an expression.
    Set(Target, Expr),
    /// `set` of a block, which may pass through filters (around [`Kind::Piped`]).
    SetBlock(Target, Option<Expr>, Vec<Stmt>),
    /// `with`
    With(Vec<(Target, Expr)>, Vec<Stmt>),
    /// A macro, by its place in the list.
    Macro(MacroId),
    /// A call with a block as `caller`, by the block's place among the macros.
    Call(Expr, MacroId),
    /// `filter` of a block.
    Filter(Expr, Vec<Stmt>),
    /// `generation`
    Generation(Vec<Stmt>),
    /// `block`, rendered in place.
    Block(Vec<Stmt>),
    /// `break`
    Break,
    /// `continue`
    Continue,
}

/// A loop.
pub(crate) struct For {
    pub(crate) line: u32,
    pub(crate) target: Target,
    pub(crate) iter: Expr,
    pub(crate) test: Option<Expr>,
    pub(crate) recursive: bool,
    pub(crate) body: Vec<Stmt>,
    pub(crate) otherwise: Vec<Stmt>,
}

/// A macro, or the body of a call block.
pub(crate) struct Macro {
    /// `None` for the body of a call block.
    pub(crate) name: Option<Name>,
    pub(crate) params: Vec<(Name, Option<Expr>)>,
    pub(crate) body: Vec<Stmt>,
    pub(crate) special: Special,
}

/// The special names that a macro uses, and therefore takes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Special {
    pub(crate) caller: bool,
    pub(crate) varargs: bool,
    pub(crate) kwargs: bool,
}

/// The target of an assignment.
pub(crate) enum Target {
    /// A variable.
    Name(Name),
    /// An attribute of a namespace.
    Attr(Name, Text),
    /// Several targets.
    Tuple(Vec<Target>),
}

/// An expression, its line, and how deep it is.
pub(crate) struct Expr {
    pub(crate) line: u32,
    depth: u16,
    pub(crate) kind: Kind,
}

/// A literal.
pub(crate) enum Const {
    None,
    Bool(bool),
    Int(i64),
    Big(BigInt),
    Float(f64),
    Str(Text),
}

/// An operator of two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Mod,
    Pow,
}

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cmp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}

/// The expressions of the language.
pub(crate) enum Kind {
    Const(Const),
    Name(Name),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Not(Box<Expr>),
    Neg(Box<Expr>),
    Pos(Box<Expr>),
    Binary(Op, Box<(Expr, Expr)>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Concat(Vec<Expr>),
    Compare(Box<Expr>, Vec<(Cmp, Expr)>),
    /// `yes if test else no`
    Cond(Box<(Expr, Expr)>, Option<Box<Expr>>),
    Attr(Box<Expr>, Text),
    Item(Box<(Expr, Expr)>),
    Slice(Box<[Option<Expr>; 3]>),
    Call(Box<Expr>, Args),
    Filter(Box<Expr>, Text, Args),
    Test(Box<Expr>, Text, Args),
    /// The text of the block to which filters are applied.
    Piped,
}

/// Arguments of a call.
#[derive(Default)]
pub(crate) struct Args {
    pub(crate) positional: Vec<Expr>,
    pub(crate) named: Vec<(Text, Expr)>,
    /// `*rest`
    pub(crate) rest: Option<Box<Expr>>,
    /// `**rest`
    pub(crate) named_rest: Option<Box<Expr>>,
}

impl Args {
    fn depth(&self) -> u16 {
        let named = self.named.iter().map(|n| &n.1);
        let rest = self.rest.iter().chain(&self.named_rest).map(|b| &**b);
        most(self.positional.iter().chain(named).chain(rest))
    }
}

fn most<'a>(exprs: impl IntoIterator<Item = &'a Expr>) -> u16 {
    exprs.into_iter().map(|e| e.depth).max().unwrap_or(0)
}

impl Expr {
    /// # Errors
    /// It would be too deep.
    pub(crate) fn new(line: u32, kind: Kind) -> Result<Expr> {
        let below = match &kind {
            Kind::Const(_) | Kind::Name(_) | Kind::Piped => 0,
            Kind::List(all)
            | Kind::Tuple(all)
            | Kind::And(all)
            | Kind::Or(all)
            | Kind::Concat(all) => most(all),
            Kind::Dict(pairs) => most(pairs.iter().flat_map(|(k, v)| [k, v])),
            Kind::Not(e) | Kind::Neg(e) | Kind::Pos(e) | Kind::Attr(e, _) => e.depth,
            Kind::Binary(_, both) | Kind::Item(both) => most([&both.0, &both.1]),
            Kind::Compare(first, rest) => first.depth.max(most(rest.iter().map(|r| &r.1))),
            Kind::Cond(both, no) => most(
                [&both.0, &both.1]
                    .into_iter()
                    .chain(no.iter().map(|n| &**n)),
            ),
            Kind::Slice(parts) => most(parts.iter().flatten()),
            Kind::Call(of, args) | Kind::Filter(of, _, args) | Kind::Test(of, _, args) => {
                of.depth.max(args.depth())
            }
        };
        if below >= MAX_DEPTH {
            return fail::<Expr>(format!("an expression of more than {MAX_DEPTH} levels"))
                .map_err(|e| e.at(line));
        }
        Ok(Expr {
            line,
            depth: below + 1,
            kind,
        })
    }
}
