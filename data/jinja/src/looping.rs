//! The variable `loop`: where a loop stands, and what comes next.

use crate::ast::LoopId;
use crate::budget::Budget;
use crate::cursor::Cursor;
use crate::error::{Result, fail};
use crate::scope::Scope;
use crate::value::{Seq, Value};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// A loop that runs.
pub struct Loop {
    pub(crate) node: LoopId,
    /// The variables around the loop.
    pub(crate) scope: Rc<Scope>,
    /// The number of loops of the same kind around it: recursive ones.
    pub(crate) depth0: usize,
    /// The values that it goes through, before the loop's own condition.
    pub(crate) source: RefCell<Cursor>,
    /// The values that were taken from the source already, to count it.
    pub(crate) taken: RefCell<Option<VecDeque<Value>>>,
    pub(crate) place: Place,
    /// The values of the last call of `changed`.
    changed: RefCell<Option<Rc<Seq>>>,
    items_depth: u16,
}

/// The place of a loop among its values.
#[derive(Default)]
pub(crate) struct Place {
    /// The number of values that were taken; the first is that of index 1.
    pub(crate) index: Cell<usize>,
    /// The number of values, where that is known.
    pub(crate) length: Cell<Option<usize>>,
    pub(crate) before: RefCell<Option<Value>>,
    pub(crate) current: RefCell<Option<Value>>,
    /// The value after the current one, where it was asked for: `Some(None)` at the end.
    pub(crate) after: RefCell<Option<Option<Value>>>,
}

impl Loop {
    /// A loop over `iter`, of so many values where that is known.
    pub(crate) fn new(
        node: LoopId,
        scope: Rc<Scope>,
        depth0: usize,
        iter: &Value,
        length: Option<usize>,
    ) -> Result<Loop> {
        let place = Place::default();
        place.length.set(length);
        Ok(Loop {
            node,
            scope,
            depth0,
            source: RefCell::new(Cursor::new(iter)?),
            taken: RefCell::new(None),
            place,
            changed: RefCell::new(None),
            items_depth: iter.depth(),
        })
    }

    /// Returns the depth of the values that it holds.
    pub(crate) fn depth(&self) -> u16 {
        let changed = self.changed.borrow();
        self.items_depth
            .max(changed.as_ref().map_or(0, |c| c.depth()))
    }

    /// Its index and length, for printing it.
    ///
    /// # Errors
    /// The length is not known.
    pub(crate) fn shown(&self, budget: &Budget) -> Result<(usize, usize)> {
        budget.step(1)?;
        match self.place.length.get() {
            Some(length) => Ok((self.place.index.get(), length)),
            None => fail("the variable 'loop' of a loop of unknown length is printed"),
        }
    }

    /// The attributes that need nothing to be taken; `None` for others.
    pub(crate) fn attr(&self, name: &str) -> Option<Value> {
        let index = self.place.index.get();
        Some(match name {
            "index" => Value::int(index),
            "index0" => Value::int(index.saturating_sub(1)),
            "first" => Value::Bool(index == 1),
            "depth" => Value::int(self.depth0 + 1),
            "depth0" => Value::int(self.depth0),
            "previtem" => match self.place.before.borrow().clone() {
                Some(value) => value,
                None => Value::missing("there is no previous item"),
            },
            _ => return None,
        })
    }

    /// One of the values, by the index.
    pub(crate) fn cycle(&self, values: &[Value]) -> Result<Value> {
        match values.len() {
            0 => fail("no items for cycling given"),
            n => Ok(values[self.place.index.get().saturating_sub(1) % n].clone()),
        }
    }

    /// Returns true if it is called for the first time, or with other values than the last time.
    pub(crate) fn changed(&self, values: Vec<Value>, budget: &Budget) -> Result<bool> {
        for value in &values {
            value.check_for_namespace("changed")?;
        }
        let values = Seq::new(values, budget)?;
        let before = self.changed.borrow().clone();
        let same = match before {
            Some(before) => {
                crate::ops::equal(&Value::Tuple(before), &Value::Tuple(values.clone()), budget)?
            }
            None => false,
        };
        *self.changed.borrow_mut() = Some(values);
        Ok(!same)
    }
}
