//! What a vendor implements in safe Rust, and the macro that exports it.
