//! The templates of this crate's tests, against Jinja2 and against hostile ones.

mod hostile;
mod oracle;
