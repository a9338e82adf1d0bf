//! Runs the statements of a template.
//!
//! What may run within itself is kept out of line, so that a level takes little of the stack.

use crate::args::Given;
use crate::ast::{Expr, For, LoopId, MacroId, Stmt, StmtKind, Target, Tree};
use crate::budget::Budget;
use crate::cursor::{Cursor, len};
use crate::error::{Result, fail};
use crate::looping::Loop;
use crate::parser::{CALLER, KWARGS, LOOP, VARARGS};
use crate::print::str_of;
use crate::scope::{Name, Scope};
use crate::value::{Object, Text, Value};
use std::rc::Rc;

/// Around what a `generation` block writes. They are no characters, so that a text has them only to deceive.
pub(crate) const OPEN: char = '\u{10fffe}';
pub(crate) const CLOSE: char = '\u{10ffff}';
/// Bytes that the variables which a macro keeps alive are counted as.
const CAPTURED: usize = 512;

/// The time now, by a format of `strftime`.
pub type Now<'a> = &'a dyn Fn(&str) -> std::result::Result<String, String>;

/// The ends of a statement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

/// A rendering.
pub(crate) struct Vm<'t> {
    pub(crate) tree: &'t Tree,
    pub(crate) budget: Budget,
    pub(crate) scope: Rc<Scope>,
    /// The text of the block to which filters are applied.
    pub(crate) piped: Option<Value>,
    now: Now<'t>,
    root: Rc<Scope>,
    out: String,
    /// Scopes that macros refer to, which are emptied at the end.
    captured: Vec<Rc<Scope>>,
}

impl<'t> Vm<'t> {
    pub(crate) fn new(tree: &'t Tree, budget: Budget, root: Rc<Scope>, now: Now<'t>) -> Vm<'t> {
        Vm {
            tree,
            budget,
            scope: root.clone(),
            piped: None,
            now,
            root,
            out: String::new(),
            captured: Vec::new(),
        }
    }

    /// The text of the whole template.
    pub(crate) fn render(mut self) -> Result<String> {
        let done = self.run(&self.tree.body);
        for scope in &self.captured {
            scope.clear();
        }
        self.root.clear();
        done.map(|_| self.out)
    }

    /// The time now.
    pub(crate) fn now(&self, format: &str) -> Result<Value> {
        match (self.now)(format) {
            Ok(text) => Value::text(text, &self.budget),
            Err(why) => fail(why),
        }
    }

    fn emit(&mut self, text: &str) -> Result<()> {
        self.budget.take(text.len())?;
        self.out.push_str(text);
        Ok(())
    }

    /// The text that a part of the template writes.
    fn capture(&mut self, part: impl FnOnce(&mut Vm<'t>) -> Result<()>) -> Result<Value> {
        let around = std::mem::take(&mut self.out);
        let done = part(self);
        let text = std::mem::replace(&mut self.out, around);
        self.budget.give(text.len());
        done?;
        Value::text(text, &self.budget)
    }

    /// Runs a part in another scope.
    pub(crate) fn in_scope<T>(
        &mut self,
        scope: Rc<Scope>,
        part: impl FnOnce(&mut Vm<'t>) -> Result<T>,
    ) -> Result<T> {
        let around = std::mem::replace(&mut self.scope, scope);
        let done = part(self);
        self.scope = around;
        done
    }

    #[inline(never)]
    fn run(&mut self, body: &'t [Stmt]) -> Result<Flow> {
        for stmt in body {
            self.budget.enter().map_err(|e| e.at(stmt.line))?;
            let flow = self.statement(stmt);
            self.budget.leave();
            match flow.map_err(|e| e.at(stmt.line))? {
                Flow::Next => {}
                other => return Ok(other),
            }
        }
        Ok(Flow::Next)
    }

    fn run_all(&mut self, body: &'t [Stmt]) -> Result<()> {
        self.run(body).map(|_| ())
    }

    fn statement(&mut self, stmt: &'t Stmt) -> Result<Flow> {
        match &stmt.kind {
            StmtKind::Data(text) => self.emit(text)?,
            StmtKind::Print(expr) => self.print(expr)?,
            StmtKind::If(arms, otherwise) => {
                for (test, body) in arms {
                    if self.eval(test)?.truth() {
                        return self.run(body);
                    }
                }
                return self.run(otherwise);
            }
            StmtKind::For(id) => {
                let iter = self.eval(&self.tree.loops[*id as usize].iter)?;
                self.repeat(*id, &iter, 0, self.scope.clone())?;
            }
            StmtKind::Set(target, expr) => {
                let value = self.eval(expr)?;
                self.assign(target, value)?;
            }
            StmtKind::SetBlock(target, filter, body) => {
                let value = self.block_value(filter.as_ref(), body)?;
                self.assign(target, value)?;
            }
            StmtKind::With(vars, body) => self.with(vars, body)?,
            StmtKind::Macro(id) => self.define(*id)?,
            StmtKind::Call(call, id) => self.call_block(call, *id)?,
            StmtKind::Filter(filter, body) => {
                let value = self.block_value(Some(filter), body)?;
                self.emit_value(&value)?;
            }
            StmtKind::Generation(body) => self.generation(body)?,
            StmtKind::Block(body) => {
                // A block sees what the whole template sees, and no loop around it.
                let inner = Scope::within(&self.root);
                self.run_in(inner, body)?;
            }
            StmtKind::Break => return Ok(Flow::Break),
            StmtKind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    #[inline(never)]
    fn print(&mut self, expr: &'t Expr) -> Result<()> {
        let value = self.eval(expr)?;
        self.emit_value(&value)
    }

    #[inline(never)]
    fn emit_value(&mut self, value: &Value) -> Result<()> {
        match value {
            Value::Str(t) => self.emit(t.as_str()),
            other => {
                let text = str_of(other, &self.budget)?.into_owned();
                self.emit(&text)
            }
        }
    }

    #[inline(never)]
    fn run_in(&mut self, scope: Rc<Scope>, body: &'t [Stmt]) -> Result<()> {
        self.in_scope(scope, |vm| vm.run_all(body))
    }

    /// Returns the text that a block writes, through its filters.
    #[inline(never)]
    fn block_value(&mut self, filter: Option<&'t Expr>, body: &'t [Stmt]) -> Result<Value> {
        let inner = Scope::within(&self.scope);
        let text = self.capture(|vm| vm.run_in(inner, body))?;
        match filter {
            Some(filter) => self.pipe(filter, text),
            None => Ok(text),
        }
    }

    #[inline(never)]
    fn generation(&mut self, body: &'t [Stmt]) -> Result<()> {
        let mut mark = [0; 4];
        self.emit(OPEN.encode_utf8(&mut mark))?;
        self.run_in(Scope::within(&self.scope), body)?;
        self.emit(CLOSE.encode_utf8(&mut mark))
    }

    #[inline(never)]
    fn pipe(&mut self, filter: &'t Expr, text: Value) -> Result<Value> {
        let before = self.piped.replace(text);
        let done = self.eval(filter);
        self.piped = before;
        done
    }

    #[inline(never)]
    fn with(&mut self, vars: &'t [(Target, Expr)], body: &'t [Stmt]) -> Result<()> {
        let inner = Scope::within(&self.scope);
        for (target, expr) in vars {
            let value = self.eval(expr)?;
            self.in_scope(inner.clone(), |vm| vm.assign(target, value))?;
        }
        self.in_scope(inner, |vm| vm.run_all(body))
    }

    #[inline(never)]
    fn define(&mut self, id: MacroId) -> Result<()> {
        let scope = self.scope.clone();
        if !self
            .captured
            .iter()
            .rev()
            .take(8)
            .any(|s| Rc::ptr_eq(s, &scope))
        {
            self.budget.take(CAPTURED)?;
            self.captured.push(scope.clone());
        }
        let made = Value::object(Object::Macro(id, scope), &self.budget)?;
        if let Some(name) = self.tree.macros[id as usize].name {
            self.scope.set(name, made);
        }
        Ok(())
    }

    #[inline(never)]
    fn call_block(&mut self, call: &'t Expr, id: MacroId) -> Result<()> {
        let caller = Value::object(Object::Macro(id, self.scope.clone()), &self.budget)?;
        let value = self.eval_call(call, Some(caller))?;
        self.emit_value(&value)
    }

    /// Assigns a value to a name, to an attribute of a namespace, or its parts to several targets.
    #[inline(never)]
    pub(crate) fn assign(&mut self, target: &'t Target, value: Value) -> Result<()> {
        match target {
            Target::Name(name) => {
                self.budget.step(self.scope.len() as u64 / 64)?;
                self.scope.set(*name, value);
            }
            Target::Attr(name, attr) => self.assign_attr(*name, attr, value)?,
            Target::Tuple(all) => {
                let mut items = match Cursor::new(&value) {
                    Ok(items) => items,
                    Err(_) => {
                        value.defined()?;
                        return fail(format!(
                            "cannot unpack non-iterable {} object",
                            value.type_name()
                        ));
                    }
                };
                let wanted = all.len();
                let mut got = Vec::with_capacity(wanted);
                while let Some(item) = items.next(&self.budget)? {
                    if got.len() == wanted {
                        return fail(format!("too many values to unpack (expected {wanted})"));
                    }
                    got.push(item);
                }
                if got.len() < wanted {
                    return fail(format!(
                        "not enough values to unpack (expected {wanted}, got {})",
                        got.len()
                    ));
                }
                for (target, item) in all.iter().zip(got) {
                    self.budget.enter()?;
                    let done = self.assign(target, item);
                    self.budget.leave();
                    done?;
                }
            }
        }
        Ok(())
    }

    fn assign_attr(&mut self, name: Name, attr: &Text, value: Value) -> Result<()> {
        if let Value::Object(object) = self.lookup(name)?
            && let Object::Namespace(attrs) = &*object
        {
            check_attr(attr.as_str())?;
            value.check_for_namespace(attr.as_str())?;
            let mut attrs = attrs.borrow_mut();
            self.budget.step(attrs.len() as u64 / 16)?;
            let before = match attrs.iter_mut().find(|a| a.0.as_str() == attr.as_str()) {
                Some(place) => Some(std::mem::replace(&mut place.1, value)),
                None => {
                    attrs.push((attr.clone(), value));
                    None
                }
            };
            drop(attrs);
            drop(before);
            return Ok(());
        }
        fail("cannot assign attribute on non-namespace object")
    }

    /// The value of a name; undefined where it has none.
    pub(crate) fn lookup(&self, name: Name) -> Result<Value> {
        let (found, seen) = self.scope.get(name);
        self.budget.step(seen as u64 / 64)?;
        Ok(found.unwrap_or_else(|| {
            let name = self.tree.names[name as usize].as_ref();
            Value::Undefined(Rc::new(crate::value::Missing::Name(name.into())))
        }))
    }

    /// A loop over `iter`.
    #[inline(never)]
    fn repeat(&mut self, id: LoopId, iter: &Value, depth0: usize, scope: Rc<Scope>) -> Result<()> {
        let node: &'t For = &self.tree.loops[id as usize];
        let at = |e: crate::error::Error| e.at(node.line);
        let length = match node.test {
            Some(_) => None,
            None => len(iter, &self.budget)?,
        };
        let state = Loop::new(id, scope.clone(), depth0, iter, length).map_err(at)?;
        let value = Value::object(Object::Loop(state), &self.budget)?;
        let Value::Object(object) = &value else {
            return Ok(());
        };
        let Object::Loop(state) = &**object else {
            return Ok(());
        };
        let mut any = false;
        while let Some(item) = self.advance(state).map_err(at)? {
            any = true;
            let inner = Scope::within(&scope);
            inner.set(LOOP, value.clone());
            let flow = self.in_scope(inner, |vm| {
                vm.assign(&node.target, item).map_err(at)?;
                vm.run(&node.body)
            })?;
            if flow == Flow::Break {
                break;
            }
        }
        match any {
            true => Ok(()),
            false => self.run_in(Scope::within(&scope), &node.otherwise),
        }
    }

    /// A recursive loop that calls itself with other values.
    #[inline(never)]
    pub(crate) fn recurse(&mut self, state: &Loop, iter: &Value) -> Result<Value> {
        if !self.tree.loops[state.node as usize].recursive {
            return fail("The loop must have the 'recursive' marker to be called recursively.");
        }
        let (id, depth, scope) = (state.node, state.depth0 + 1, state.scope.clone());
        self.budget.enter()?;
        let done = self.capture(|vm| vm.repeat(id, iter, depth, scope));
        self.budget.leave();
        done
    }

    /// Goes to a loop's next value.
    #[inline(never)]
    fn advance(&mut self, state: &Loop) -> Result<Option<Value>> {
        let ahead = state.place.after.borrow_mut().take();
        let next = match ahead {
            Some(next) => next,
            None => self.fetch(state)?,
        };
        if let Some(value) = &next {
            let place = &state.place;
            place.index.set(place.index.get() + 1);
            let before = place.current.replace(Some(value.clone()));
            *place.before.borrow_mut() = before;
        }
        Ok(next)
    }

    /// The next value of a loop's source that fits its condition.
    #[inline(never)]
    fn fetch(&mut self, state: &Loop) -> Result<Option<Value>> {
        let node: &'t For = &self.tree.loops[state.node as usize];
        if let Some(taken) = state.taken.borrow_mut().as_mut() {
            return Ok(taken.pop_front());
        }
        loop {
            let item = state.source.borrow_mut().next(&self.budget)?;
            let (Some(item), Some(test)) = (&item, &node.test) else {
                return Ok(item);
            };
            let inner = Scope::within(&state.scope);
            let fits = self.in_scope(inner, |vm| {
                vm.assign(&node.target, item.clone())?;
                vm.eval(test)
            })?;
            if fits.truth() {
                return Ok(Some(item.clone()));
            }
        }
    }

    /// The attributes of `loop` for which values are taken ahead; `None` for others.
    #[inline(never)]
    pub(crate) fn loop_attr(&mut self, state: &Loop, name: &str) -> Result<Option<Value>> {
        let index = state.place.index.get();
        Ok(Some(match name {
            "last" | "nextitem" => {
                if state.place.after.borrow().is_none() {
                    let next = self.fetch(state)?;
                    *state.place.after.borrow_mut() = Some(next);
                }
                match (name, state.place.after.borrow().clone().flatten()) {
                    ("last", next) => Value::Bool(next.is_none()),
                    (_, Some(value)) => value,
                    (_, None) => Value::missing("there is no next item"),
                }
            }
            "length" => Value::int(self.loop_length(state)?),
            "revindex" => Value::int((self.loop_length(state)? + 1).saturating_sub(index)),
            "revindex0" => Value::int(self.loop_length(state)?.saturating_sub(index)),
            _ => return Ok(None),
        }))
    }

    fn loop_length(&mut self, state: &Loop) -> Result<usize> {
        if let Some(length) = state.place.length.get() {
            return Ok(length);
        }
        let mut left = std::collections::VecDeque::new();
        while let Some(item) = self.fetch(state)? {
            left.push_back(item);
        }
        let ahead = matches!(*state.place.after.borrow(), Some(Some(_)));
        let length = left.len() + state.place.index.get() + usize::from(ahead);
        *state.taken.borrow_mut() = Some(left);
        state.place.length.set(Some(length));
        Ok(length)
    }

    /// Calls a macro.
    #[inline(never)]
    pub(crate) fn call_macro(
        &mut self,
        id: MacroId,
        scope: &Rc<Scope>,
        given: Given,
    ) -> Result<Value> {
        let node = &self.tree.macros[id as usize];
        let shown = node.name.map_or("caller", |n| &self.tree.names[n as usize]);
        let Given {
            positional,
            mut named,
        } = given;
        self.budget
            .step((node.params.len() * (1 + named.len())) as u64 / 16)?;
        let inner = Scope::within(scope);
        let mut values = positional.into_iter();
        let explicit = node.params.iter().any(|p| p.0 == CALLER);
        for (param, default) in &node.params {
            let name = &*self.tree.names[*param as usize];
            let value = match values.next() {
                Some(value) => Some(value),
                None => take_named(&mut named, name),
            };
            let value = match (value, default) {
                (Some(value), _) => value,
                (None, Some(default)) => self.in_scope(inner.clone(), |vm| vm.eval(default))?,
                (None, None) => Value::missing(format!("parameter '{name}' was not provided")),
            };
            inner.set(*param, value);
        }
        if node.special.caller && !explicit {
            let caller = take_named(&mut named, "caller");
            inner.set(
                CALLER,
                caller.unwrap_or_else(|| Value::missing("No caller defined")),
            );
        }
        if node.special.kwargs {
            let pairs = named.into_iter().map(|(name, v)| (Value::Str(name), v));
            let dict = crate::dict::Dict::of(pairs, &self.budget)?;
            inner.set(KWARGS, Value::Dict(Rc::new(dict)));
        } else if let Some((name, _)) = named.first() {
            return fail(format!(
                "macro '{shown}' takes no keyword argument '{}'",
                name.as_str()
            ));
        }
        let rest: Vec<Value> = values.collect();
        if node.special.varargs {
            inner.set(VARARGS, Value::tuple(rest, &self.budget)?);
        } else if !rest.is_empty() {
            return fail(format!(
                "macro '{shown}' takes not more than {} argument(s)",
                node.params.len()
            ));
        }
        self.capture(|vm| vm.in_scope(inner, |vm| vm.run_all(&node.body)))
    }
}

fn take_named(named: &mut Vec<(Text, Value)>, name: &str) -> Option<Value> {
    let at = named.iter().position(|n| n.0.as_str() == name)?;
    Some(named.remove(at).1)
}

/// # Errors
/// A name that transformers keeps from namespaces.
pub(crate) fn check_attr(name: &str) -> Result<()> {
    match name.starts_with('_') {
        true => fail(format!(
            "Chat templates cannot store underscore-prefixed attributes on a namespace, but got '{name}'"
        )),
        false => Ok(()),
    }
}
