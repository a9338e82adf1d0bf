//! A template that was read, and what it writes.

use crate::ast::Tree;
use crate::budget::Budget;
use crate::error::{Result, fail};
use crate::functions;
use crate::parser::parse;
use crate::scope::Scope;
use crate::value::{Object, Value};
use crate::vm::{CLOSE, Now, OPEN, Vm};
use std::ops::Range;
use std::rc::Rc;

/// A template.
pub struct Template {
    tree: Tree,
}

/// The text that a template wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// The bytes of it that `generation` blocks wrote.
    pub spans: Vec<Range<usize>>,
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// A text that is no template: the reason, and the line.
    pub fn new(source: &str) -> Result<Template> {
        // Jinja reads every end of a line as one character.
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        Ok(Template {
            tree: parse(&source)?,
        })
    }

    /// Returns true if it has `generation` blocks.
    pub fn marks(&self) -> bool {
        self.tree.marks
    }

    /// The text that it writes with these variables. The budget of steps and bytes grows with the size of the variables.
    ///
    /// # Errors
    /// Values that the template or Python refuses, or a limit, with the line.
    pub fn render(&self, vars: &[(&str, Value)], now: Now<'_>) -> Result<Rendered> {
        let root = Rc::new(Scope::default());
        let known = |name: &str| {
            let names = self.tree.names.iter();
            names
                .zip(0..)
                .find(|(n, _)| ***n == *name)
                .map(|(_, id)| id)
        };
        for name in functions::NAMES {
            if let Some(id) = known(name) {
                root.set(id, Value::Object(Rc::new(Object::Function(name))));
            }
        }
        let mut size = 0;
        for (name, value) in vars {
            size += value.input_size();
            if self.tree.marks && value.has_char(|c| c == OPEN || c == CLOSE) {
                return fail(format!(
                    "{name} has the character U+10FFFE or U+10FFFF, which stands for generation blocks"
                ));
            }
            if let Some(id) = known(name) {
                root.set(id, value.clone());
            }
        }
        let text = Vm::new(&self.tree, Budget::new(size), Scope::within(&root), now).render();
        root.clear();
        let text = text?;
        match self.tree.marks {
            true => match unmark(&text) {
                Some((text, spans)) => Ok(Rendered { text, spans }),
                None => fail("a generation block within another, or a part of one"),
            },
            false => Ok(Rendered {
                text,
                spans: Vec::new(),
            }),
        }
    }
}

/// A text without marks, and what was between them; `None` where they do not pair.
fn unmark(marked: &str) -> Option<(String, Vec<Range<usize>>)> {
    let (mut text, mut spans, mut open) = (String::with_capacity(marked.len()), vec![], None);
    for c in marked.chars() {
        match (c, open) {
            (OPEN, None) => open = Some(text.len()),
            (CLOSE, Some(start)) => {
                spans.push(start..text.len());
                open = None;
            }
            (OPEN | CLOSE, _) => return None,
            (c, _) => text.push(c),
        }
    }
    open.is_none().then_some((text, spans))
}
