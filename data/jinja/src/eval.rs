//! The values of expressions.

use crate::args::Given;
use crate::ast::{Args, Const, Expr, Kind};
use crate::attrs;
use crate::cursor::items;
use crate::dict::Dict;
use crate::error::{Result, fail};
use crate::filters;
use crate::ops;
use crate::print::{Writer, str_of};
use crate::testing;
use crate::value::{Big, Object, Text, Value};
use crate::vm::Vm;
use std::rc::Rc;

impl<'t> Vm<'t> {
    /// The value of an expression.
    pub(crate) fn eval(&mut self, expr: &'t Expr) -> Result<Value> {
        // What cannot nest needs no account of its depth.
        match &expr.kind {
            Kind::Const(c) => return constant(c),
            Kind::Name(name) => {
                self.budget.step(1).map_err(|e| e.at(expr.line))?;
                return self.lookup(*name).map_err(|e| e.at(expr.line));
            }
            _ => {}
        }
        self.budget.enter().map_err(|e| e.at(expr.line))?;
        let value = self.value(expr);
        self.budget.leave();
        value.map_err(|e| e.at(expr.line))
    }

    #[inline(never)]
    fn value(&mut self, expr: &'t Expr) -> Result<Value> {
        match &expr.kind {
            Kind::Const(c) => constant(c),
            Kind::Name(name) => self.lookup(*name),
            Kind::List(all) => {
                let items = self.all(all)?;
                Value::list(items, &self.budget)
            }
            Kind::Tuple(all) => {
                let items = self.all(all)?;
                Value::tuple(items, &self.budget)
            }
            Kind::Dict(pairs) => self.dict(pairs),
            Kind::Not(e) => Ok(Value::Bool(!self.eval(e)?.truth())),
            Kind::Neg(e) => {
                let value = self.eval(e)?;
                ops::sign(true, &value, &self.budget)
            }
            Kind::Pos(e) => {
                let value = self.eval(e)?;
                ops::sign(false, &value, &self.budget)
            }
            Kind::Binary(op, both) => {
                let (a, b) = (self.eval(&both.0)?, self.eval(&both.1)?);
                ops::binary(*op, &a, &b, &self.budget)
            }
            Kind::And(all) => self.first(all, false),
            Kind::Or(all) => self.first(all, true),
            Kind::Concat(all) => self.concat(all),
            Kind::Compare(first, rest) => self.compare(first, rest),
            Kind::Cond(both, no) => match (self.eval(&both.1)?.truth(), no) {
                (true, _) => self.eval(&both.0),
                (false, Some(no)) => self.eval(no),
                (false, None) => Ok(Value::missing(
                    "the inline if-expression evaluated to false and no else section was defined",
                )),
            },
            Kind::Attr(of, name) => self.attr(of, name),
            Kind::Item(both) => self.item(&both.0, &both.1),
            Kind::Slice(_) => fail("a slice stands alone in its brackets"),
            Kind::Call(..) => self.eval_call(expr, None),
            Kind::Filter(of, name, args) => self.filter(of, name, args),
            Kind::Test(of, name, args) => self.test(of, name, args),
            Kind::Piped => Ok(self.piped.clone().unwrap_or(Value::None)),
        }
    }

    #[inline(never)]
    fn filter(&mut self, of: &'t Expr, name: &Text, args: &'t Args) -> Result<Value> {
        let value = self.eval(of)?;
        let given = self.arguments(args)?;
        filters::call(name.as_str(), value, given, &self.budget)
    }

    #[inline(never)]
    fn test(&mut self, of: &'t Expr, name: &Text, args: &'t Args) -> Result<Value> {
        let value = self.eval(of)?;
        let given = self.arguments(args)?;
        testing::call(name.as_str(), &value, given, &self.budget).map(Value::Bool)
    }

    #[inline(never)]
    fn all(&mut self, exprs: &'t [Expr]) -> Result<Vec<Value>> {
        let mut out = Vec::with_capacity(exprs.len());
        for expr in exprs {
            out.push(self.eval(expr)?);
        }
        Ok(out)
    }

    #[inline(never)]
    fn dict(&mut self, pairs: &'t [(Expr, Expr)]) -> Result<Value> {
        let mut all = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            all.push((self.eval(key)?, self.eval(value)?));
        }
        Ok(Value::Dict(Rc::new(Dict::of(all, &self.budget)?)))
    }

    /// The first value that is `wanted`, else the last.
    #[inline(never)]
    fn first(&mut self, all: &'t [Expr], wanted: bool) -> Result<Value> {
        let mut value = Value::None;
        for expr in all {
            value = self.eval(expr)?;
            if value.truth() == wanted {
                break;
            }
        }
        Ok(value)
    }

    #[inline(never)]
    fn concat(&mut self, all: &'t [Expr]) -> Result<Value> {
        let parts = self.all(all)?;
        let mut out = Writer::new(&self.budget);
        for part in &parts {
            out.push(&str_of(part, &self.budget)?)?;
        }
        Value::text(out.text, &self.budget)
    }

    #[inline(never)]
    fn compare(&mut self, first: &'t Expr, rest: &'t [(crate::ast::Cmp, Expr)]) -> Result<Value> {
        let mut left = self.eval(first)?;
        for (op, expr) in rest {
            let right = self.eval(expr)?;
            if !ops::compare(*op, &left, &right, &self.budget)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    #[inline(never)]
    fn attr(&mut self, of: &'t Expr, name: &Text) -> Result<Value> {
        let of = self.eval(of)?;
        if let Value::Object(object) = &of
            && let Object::Loop(state) = &**object
            && let Some(value) = self.loop_attr(state, name.as_str())?
        {
            return Ok(value);
        }
        attrs::attr(&of, name, &self.budget)
    }

    #[inline(never)]
    fn item(&mut self, of: &'t Expr, key: &'t Expr) -> Result<Value> {
        let of = self.eval(of)?;
        if let Kind::Slice(parts) = &key.kind {
            let mut values = [None, None, None];
            for (value, part) in values.iter_mut().zip(parts.iter()) {
                if let Some(part) = part {
                    *value = Some(self.eval(part)?);
                }
            }
            return attrs::slice(&of, values, &self.budget);
        }
        let key = self.eval(key)?;
        if let (Value::Object(object), Value::Str(name)) = (&of, &key)
            && let Object::Loop(state) = &**object
            && let Some(value) = self.loop_attr(state, name.as_str())?
        {
            return Ok(value);
        }
        attrs::item(&of, &key, &self.budget)
    }

    #[inline(never)]
    fn arguments(&mut self, args: &'t Args) -> Result<Given> {
        let mut given = Given::of(self.all(&args.positional)?);
        for (name, expr) in &args.named {
            given.named.push((name.clone(), self.eval(expr)?));
        }
        if let Some(rest) = &args.rest {
            let rest = self.eval(rest)?;
            given.positional.extend(items(&rest, &self.budget)?);
        }
        if let Some(rest) = &args.named_rest {
            let rest = self.eval(rest)?;
            let Value::Dict(dict) = &rest else {
                return fail(format!(
                    "argument after ** must be a mapping, not {}",
                    rest.type_name()
                ));
            };
            self.budget.room(dict.len() * crate::value::PLACE)?;
            for (key, value) in dict.pairs() {
                let Value::Str(key) = key else {
                    return fail("keywords must be strings");
                };
                if given.named.iter().any(|n| n.0.as_str() == key.as_str()) {
                    return fail("got multiple values for a keyword argument");
                }
                given.named.push((key.clone(), value.clone()));
                self.budget.step(given.named.len() as u64 / 8)?;
            }
        }
        Ok(given)
    }

    /// The result of a call, with the block of a call block as `caller`.
    #[inline(never)]
    pub(crate) fn eval_call(&mut self, expr: &'t Expr, caller: Option<Value>) -> Result<Value> {
        let Kind::Call(of, args) = &expr.kind else {
            return fail("expected call");
        };
        let of = self.eval(of)?;
        let mut given = self.arguments(args)?;
        if let Some(caller) = caller {
            given.named.push((Text::fixed("caller"), caller));
        }
        self.call(&of, given).map_err(|e| e.at(expr.line))
    }

    #[inline(never)]
    fn call(&mut self, of: &Value, given: Given) -> Result<Value> {
        of.defined()?;
        let Value::Object(object) = of else {
            return fail(format!("'{}' object is not callable", of.type_name()));
        };
        match &**object {
            Object::Macro(id, scope) => self.call_macro(*id, scope, given),
            Object::Loop(state) => {
                let [iter] = given.plain("loop", 1)?;
                self.recurse(state, &iter.unwrap_or(Value::None))
            }
            Object::Joiner(sep, used) => {
                let _: [Option<Value>; 0] = given.plain("joiner", 0)?;
                match used.replace(true) {
                    true => Ok(Value::Str(sep.clone())),
                    false => Value::text("", &self.budget),
                }
            }
            Object::Function("strftime_now") => {
                let [format] = given.bind("strftime_now", ["format"])?;
                let format = crate::args::required(format, "strftime_now", "format")?;
                let format = crate::args::text_of(&format, "strftime_now")?;
                self.now(format.as_str())
            }
            Object::Function(name) => crate::functions::call(name, given, &self.budget),
            Object::Method(of, name) => {
                crate::methods::call(of, name.as_str(), given, &self.budget)
            }
            Object::Namespace(_) | Object::Cycler(..) => {
                fail(format!("'{}' object is not callable", of.type_name()))
            }
        }
    }
}

fn constant(c: &Const) -> Result<Value> {
    Ok(match c {
        Const::None => Value::None,
        Const::Bool(b) => Value::Bool(*b),
        Const::Int(n) => Value::Int(*n),
        Const::Big(n) => Value::Big(Big::fixed(n.clone())),
        Const::Float(f) => Value::Float(*f),
        Const::Str(t) => Value::Str(t.clone()),
    })
}
