//! Chat templates: Jinja as transformers renders it, for templates that nobody vouches for.
//!
//! The language is Jinja 3.1 with trimmed blocks and loop controls, and the values are Python's: integers of any size, floats printed by
//! `repr`, methods of strings, lists and dicts. Every rendering has a budget of steps, of bytes and of depth, which holds by construction:
//! a value takes its bytes when it is made, nothing can hold itself, and every walk over a value counts its steps.

#![forbid(unsafe_code)]

mod args;
mod ast;
mod attrs;
mod budget;
mod cursor;
mod dict;
mod error;
mod eval;
mod expressions;
mod filters;
mod format;
mod functions;
mod json;
mod lexer;
mod looping;
mod methods;
mod number;
mod ops;
mod parser;
mod print;
mod rows;
mod scope;
mod sorting;
mod str_methods;
mod template;
mod testing;
mod text;
mod unicode;
mod unicode_table;
mod value;
mod vm;

pub use error::{Error, Result};
pub use json::{JsonError, read as read_json};
pub use rows::ValueKind;
pub use template::{Rendered, Template};
pub use value::Value;
pub use vm::Now;
