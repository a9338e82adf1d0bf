//! The `crossweave` binary.
fn main() {}
