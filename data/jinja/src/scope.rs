//! Variables: scopes within scopes, as loops, macros and blocks open them.

use crate::value::Value;
use std::cell::RefCell;
use std::rc::Rc;

/// A name of the template, by its place in the template's list of names.
pub(crate) type Name = u32;

/// The variables of one scope, and the scope around it.
#[derive(Default)]
pub struct Scope {
    vars: RefCell<Vec<(Name, Value)>>,
    around: Option<Rc<Scope>>,
}

impl Scope {
    /// A scope within another.
    pub(crate) fn within(around: &Rc<Scope>) -> Rc<Scope> {
        Rc::new(Scope {
            vars: RefCell::default(),
            around: Some(around.clone()),
        })
    }

    /// The value of a name here or around, and how many variables were looked at.
    pub(crate) fn get(&self, name: Name) -> (Option<Value>, usize) {
        let (mut at, mut seen) = (Some(self), 0);
        while let Some(scope) = at {
            seen += 1 + scope.vars.borrow().len();
            if let Some((_, value)) = scope.vars.borrow().iter().find(|v| v.0 == name) {
                return (Some(value.clone()), seen);
            }
            at = scope.around.as_deref();
        }
        (None, seen)
    }

    /// Returns the number of its variables.
    pub(crate) fn len(&self) -> usize {
        self.vars.borrow().len()
    }

    /// Sets a name here.
    pub(crate) fn set(&self, name: Name, value: Value) {
        let mut vars = self.vars.borrow_mut();
        match vars.iter_mut().find(|v| v.0 == name) {
            // What was there is dropped after the borrow ends.
            Some(var) => {
                let before = std::mem::replace(&mut var.1, value);
                drop(vars);
                drop(before);
            }
            None => vars.push((name, value)),
        }
    }

    /// Forgets its variables, so that a macro and the scope that holds it do not keep one another alive.
    pub(crate) fn clear(&self) {
        let vars = std::mem::take(&mut *self.vars.borrow_mut());
        drop(vars);
    }
}
