//! From safe trait to C tables: every `unsafe` a Rust vendor needs is in this file.
