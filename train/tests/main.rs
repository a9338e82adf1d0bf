//! Training from a program, as users of the library do: each test speaks to `Trainer` and `Model` alone.

mod common;
mod end;
mod faulty;
mod many;
mod model;
mod steps;
