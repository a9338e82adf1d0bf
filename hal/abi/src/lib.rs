//! The Rust mirror of `hal/include/crossweave_plugin.h`: layouts, ids, names and the op table. It has no
//! logic except rule R1's reading of structs that carry their size and the reading of profiles.
//!
//! The header is the contract; this crate states the same in Rust. Sizes and offsets are asserted at
//! compile time here, and `hal/abi/v1.lock` freezes every field, signature and constant (see
//! `hal/tests/abi_lock/main.rs`). Function pointers are `Option`: NULL means "not provided".
#![no_std]

pub mod api;
pub mod consts;
pub mod dtype;
pub mod op;
pub mod profile;
pub mod read;
pub mod tag;
pub mod types;

pub use api::*;
pub use consts::*;
pub use dtype::DType;
pub use profile::Profile;
pub use read::{read_desc, read_prefix};
pub use tag::Tag;
pub use types::*;
