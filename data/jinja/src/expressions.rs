//! Expressions of a template, from its tokens, with Jinja's precedences.

use crate::ast::{Args, Cmp, Const, Expr, Kind, Op};
use crate::error::{Result, fail};
use crate::lexer::Lexeme;
use crate::parser::{MAX_NAMED, Parser, describe};
use crate::value::Text;
use num_bigint::BigInt;

// What calls itself is kept out of line, so that nesting takes little of the stack.
impl Parser {
    /// An expression, which may be a condition: `a if b else c`.
    pub(crate) fn expression(&mut self) -> Result<Expr> {
        self.deeper(|p| {
            let line = p.line();
            let mut yes = p.either()?;
            while p.skip_name("if") {
                let test = p.either()?;
                let no = match p.skip_name("else") {
                    true => Some(Box::new(p.expression()?)),
                    false => None,
                };
                yes = Expr::new(line, Kind::Cond(Box::new((yes, test)), no))?;
            }
            Ok(yes)
        })
    }

    /// An expression, or several with commas between them: a tuple.
    pub(crate) fn tuple(
        &mut self,
        conditions: bool,
        ends: &[&str],
        parentheses: bool,
    ) -> Result<Expr> {
        let line = self.line();
        let (mut all, mut several) = (Vec::new(), false);
        loop {
            let end = matches!(
                self.peek(),
                Lexeme::PrintEnd | Lexeme::BlockEnd | Lexeme::End
            ) || self.is_op(")")
                || matches!(self.peek(), Lexeme::Name(n) if ends.contains(&&**n));
            if end {
                break;
            }
            all.push(match conditions {
                true => self.expression()?,
                false => self.deeper(Parser::either)?,
            });
            match self.skip_op(",") {
                true => several = true,
                false => break,
            }
        }
        match (several, all.pop()) {
            (false, Some(one)) => Ok(one),
            (false, None) if !parentheses => self.unexpected("an expression"),
            (_, last) => {
                all.extend(last);
                Expr::new(line, Kind::Tuple(all))
            }
        }
    }

    #[inline(never)]
    fn either(&mut self) -> Result<Expr> {
        let line = self.line();
        let mut all = vec![self.both()?];
        while self.skip_name("or") {
            all.push(self.both()?);
        }
        one_or(line, all, Kind::Or)
    }

    #[inline(never)]
    fn both(&mut self) -> Result<Expr> {
        let line = self.line();
        let mut all = vec![self.negation()?];
        while self.skip_name("and") {
            all.push(self.negation()?);
        }
        one_or(line, all, Kind::And)
    }

    #[inline(never)]
    fn negation(&mut self) -> Result<Expr> {
        let line = self.line();
        if self.skip_name("not") {
            let inner = self.deeper(Parser::negation)?;
            return Expr::new(line, Kind::Not(Box::new(inner)));
        }
        self.comparison()
    }

    #[inline(never)]
    fn comparison(&mut self) -> Result<Expr> {
        let line = self.line();
        let first = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let op = match self.peek() {
                Lexeme::Op("==") => Cmp::Eq,
                Lexeme::Op("!=") => Cmp::Ne,
                Lexeme::Op("<") => Cmp::Lt,
                Lexeme::Op("<=") => Cmp::Le,
                Lexeme::Op(">") => Cmp::Gt,
                Lexeme::Op(">=") => Cmp::Ge,
                Lexeme::Name(n) if &**n == "in" => Cmp::In,
                Lexeme::Name(n) if &**n == "not" && is_in(self.second()) => {
                    self.next();
                    Cmp::NotIn
                }
                _ => break,
            };
            self.next();
            rest.push((op, self.sum()?));
        }
        match rest.is_empty() {
            true => Ok(first),
            false => Expr::new(line, Kind::Compare(Box::new(first), rest)),
        }
    }

    fn sum(&mut self) -> Result<Expr> {
        self.chain(Parser::concat, |op| match op {
            "+" => Some(Op::Add),
            "-" => Some(Op::Sub),
            _ => None,
        })
    }

    #[inline(never)]
    fn concat(&mut self) -> Result<Expr> {
        let line = self.line();
        let mut all = vec![self.product()?];
        while self.skip_op("~") {
            all.push(self.product()?);
        }
        one_or(line, all, Kind::Concat)
    }

    fn product(&mut self) -> Result<Expr> {
        self.chain(Parser::power, |op| match op {
            "*" => Some(Op::Mul),
            "/" => Some(Op::Div),
            "//" => Some(Op::FloorDiv),
            "%" => Some(Op::Mod),
            _ => None,
        })
    }

    fn power(&mut self) -> Result<Expr> {
        self.chain(
            |p| p.unary(true),
            |op| match op {
                "**" => Some(Op::Pow),
                _ => None,
            },
        )
    }

    /// Operands with operators of one precedence between them, from left to right.
    #[inline(never)]
    fn chain(
        &mut self,
        operand: impl Fn(&mut Parser) -> Result<Expr>,
        op_of: impl Fn(&str) -> Option<Op>,
    ) -> Result<Expr> {
        let line = self.line();
        let mut left = operand(self)?;
        loop {
            let op = match self.peek() {
                Lexeme::Op(op) => op_of(op),
                _ => None,
            };
            let Some(op) = op else {
                return Ok(left);
            };
            self.next();
            let right = operand(self)?;
            left = Expr::new(line, Kind::Binary(op, Box::new((left, right))))?;
        }
    }

    #[inline(never)]
    fn unary(&mut self, filters: bool) -> Result<Expr> {
        let line = self.line();
        let node = if self.skip_op("-") {
            let inner = self.deeper(|p| p.unary(false))?;
            Expr::new(line, Kind::Neg(Box::new(inner)))?
        } else if self.skip_op("+") {
            let inner = self.deeper(|p| p.unary(false))?;
            Expr::new(line, Kind::Pos(Box::new(inner)))?
        } else {
            self.primary()?
        };
        let node = self.postfix(node)?;
        match filters {
            true => self.filters(node, false),
            false => Ok(node),
        }
    }

    #[inline(never)]
    fn primary(&mut self) -> Result<Expr> {
        let line = self.line();
        let kind = match self.next() {
            Lexeme::Name(name) => match &*name {
                "true" | "True" => Kind::Const(Const::Bool(true)),
                "false" | "False" => Kind::Const(Const::Bool(false)),
                "none" | "None" => Kind::Const(Const::None),
                _ => Kind::Name(self.read_name(&name)),
            },
            Lexeme::Str(text) => {
                let mut all = String::from(text);
                while let Lexeme::Str(_) = self.peek() {
                    if let Lexeme::Str(more) = self.next() {
                        all.push_str(&more);
                    }
                }
                Kind::Const(Const::Str(Text::fixed(&all)))
            }
            Lexeme::Int(n) => Kind::Const(int(n)),
            Lexeme::Float(f) => Kind::Const(Const::Float(f)),
            Lexeme::Op("(") => {
                let inner = self.tuple(true, &[], true)?;
                self.expect_op(")")?;
                return Ok(inner);
            }
            Lexeme::Op("[") => {
                let mut items = Vec::new();
                while !self.is_op("]") {
                    items.push(self.expression()?);
                    if !self.skip_op(",") {
                        break;
                    }
                }
                self.expect_op("]")?;
                Kind::List(items)
            }
            Lexeme::Op("{") => {
                let mut pairs = Vec::new();
                while !self.is_op("}") {
                    let key = self.expression()?;
                    self.expect_op(":")?;
                    pairs.push((key, self.expression()?));
                    if !self.skip_op(",") {
                        break;
                    }
                }
                self.expect_op("}")?;
                Kind::Dict(pairs)
            }
            other => return fail(format!("unexpected {}", describe(&other))),
        };
        Expr::new(line, kind).map_err(|e| e.at(line))
    }

    /// Attributes, items and calls of what stands before.
    #[inline(never)]
    fn postfix(&mut self, mut node: Expr) -> Result<Expr> {
        loop {
            let line = self.line();
            if self.skip_op(".") {
                node = match self.next() {
                    Lexeme::Name(name) => {
                        Expr::new(line, Kind::Attr(Box::new(node), Text::fixed(&name)))?
                    }
                    Lexeme::Int(n) => {
                        let index = Expr::new(line, Kind::Const(int(n)))?;
                        Expr::new(line, Kind::Item(Box::new((node, index))))?
                    }
                    _ => return fail("expected name or number"),
                };
            } else if self.skip_op("[") {
                let index = self.subscript(line)?;
                node = Expr::new(line, Kind::Item(Box::new((node, index))))?;
            } else if self.is_op("(") {
                let args = self.arguments()?;
                node = Expr::new(line, Kind::Call(Box::new(node), args))?;
            } else {
                return Ok(node);
            }
        }
    }

    #[inline(never)]
    fn subscript(&mut self, line: u32) -> Result<Expr> {
        let mut all = Vec::new();
        while !self.is_op("]") {
            if !all.is_empty() {
                self.expect_op(",")?;
            }
            let mut parts = [None, None, None];
            let mut slice = false;
            if !self.is_op(":") {
                parts[0] = Some(self.expression()?);
            }
            for part in &mut parts[1..] {
                if !self.skip_op(":") {
                    break;
                }
                slice = true;
                if !(self.is_op(":") || self.is_op("]") || self.is_op(",")) {
                    *part = Some(self.expression()?);
                }
            }
            all.push(match (slice, parts) {
                (false, [Some(index), _, _]) => index,
                (_, parts) => Expr::new(line, Kind::Slice(Box::new(parts)))?,
            });
        }
        self.expect_op("]")?;
        match (all.len(), all.pop()) {
            (1, Some(one)) => Ok(one),
            (_, last) => {
                all.extend(last);
                Expr::new(line, Kind::Tuple(all))
            }
        }
    }

    /// Arguments in parentheses.
    #[inline(never)]
    fn arguments(&mut self) -> Result<Args> {
        self.expect_op("(")?;
        let mut args = Args::default();
        let mut first = true;
        while !self.is_op(")") {
            if !std::mem::take(&mut first) {
                self.expect_op(",")?;
                if self.is_op(")") {
                    break;
                }
            }
            let ended = args.named_rest.is_some();
            let named =
                matches!(self.peek(), Lexeme::Name(_)) && matches!(self.second(), Lexeme::Op("="));
            let fits = if self.skip_op("*") {
                let fits = args.rest.is_none() && !ended;
                args.rest = Some(Box::new(self.expression()?));
                fits
            } else if self.skip_op("**") {
                args.named_rest = Some(Box::new(self.expression()?));
                !ended
            } else if named {
                let name = self.expect_name()?;
                self.expect_op("=")?;
                if args.named.len() >= MAX_NAMED {
                    return fail(format!("more than {MAX_NAMED} arguments with names"));
                }
                let twice = args.named.iter().any(|(n, _)| n.as_str() == &*name);
                args.named.push((Text::fixed(&name), self.expression()?));
                !ended && !twice
            } else {
                args.positional.push(self.expression()?);
                args.rest.is_none() && !ended && args.named.is_empty()
            };
            if !fits {
                return fail("invalid syntax for function call expression");
            }
        }
        self.expect_op(")")?;
        Ok(args)
    }

    /// Filters and tests of what stands before; `inline` where the first filter has no `|`.
    pub(crate) fn filters(&mut self, mut node: Expr, inline: bool) -> Result<Expr> {
        let mut inline = inline;
        let block = matches!(node.kind, Kind::Piped);
        loop {
            let line = self.line();
            if inline || self.skip_op("|") {
                inline = false;
                let name = self.dotted()?;
                let args = match self.is_op("(") {
                    true => self.arguments()?,
                    false => Args::default(),
                };
                node = Expr::new(line, Kind::Filter(Box::new(node), name, args))?;
            } else if !block && self.skip_name("is") {
                node = self.test(node, line)?;
            } else if !block && self.is_op("(") {
                let args = self.arguments()?;
                node = Expr::new(line, Kind::Call(Box::new(node), args))?;
            } else {
                return Ok(node);
            }
        }
    }

    fn dotted(&mut self) -> Result<Text> {
        let mut name = String::from(self.expect_name()?);
        while self.skip_op(".") {
            name = format!("{name}.{}", self.expect_name()?);
        }
        Ok(Text::fixed(&name))
    }

    #[inline(never)]
    fn test(&mut self, node: Expr, line: u32) -> Result<Expr> {
        let negated = self.skip_name("not");
        let name = self.dotted()?;
        let mut args = Args::default();
        if self.is_op("(") {
            args = self.arguments()?;
        } else {
            let operand = match self.peek() {
                Lexeme::Name(n) if &**n == "is" => {
                    return fail("You cannot chain multiple tests with is");
                }
                Lexeme::Name(n) => !matches!(&**n, "else" | "or" | "and"),
                Lexeme::Str(_) | Lexeme::Int(_) | Lexeme::Float(_) => true,
                Lexeme::Op(op) => matches!(*op, "[" | "{"),
                _ => false,
            };
            if operand {
                let node = self.deeper(|p| {
                    let node = p.primary()?;
                    p.postfix(node)
                })?;
                args.positional.push(node);
            }
        }
        let test = Expr::new(line, Kind::Test(Box::new(node), name, args))?;
        match negated {
            true => Expr::new(line, Kind::Not(Box::new(test))),
            false => Ok(test),
        }
    }
}

fn is_in(kind: &Lexeme) -> bool {
    matches!(kind, Lexeme::Name(n) if &**n == "in")
}

fn int(n: BigInt) -> Const {
    match i64::try_from(&n) {
        Ok(n) => Const::Int(n),
        Err(_) => Const::Big(n),
    }
}

fn one_or(line: u32, mut all: Vec<Expr>, kind: fn(Vec<Expr>) -> Kind) -> Result<Expr> {
    match (all.len(), all.pop()) {
        (1, Some(one)) => Ok(one),
        (_, last) => {
            all.extend(last);
            Expr::new(line, kind(all))
        }
    }
}
