//! Files in and out: Hugging Face model directories, and sharded checkpoints that a run resumes from
//! exactly.
//!
//! Two halves over one safetensors reader and writer. [`HfDir`] opens what transformers wrote,
//! [`Resolver`] finds which tensor is which parameter, [`export_hf`] writes a directory that
//! transformers loads. [`Writer`] lets the ranks of a run write their shards at once, [`Checkpoint`]
//! finds, verifies and reads them back, [`prune`] keeps the newest.
//!
//! **Invariants** (`docs/invariants.md`). This crate is host code over bytes, without devices. Nothing
//! read from a file is used before it was compared with the file's length, and nothing from a
//! checkpoint before it was compared with its hash; damage is a typed error that names file, tensor and
//! fix, never a panic. Whatever is written becomes visible by one
//! rename after it was synced, so that a process killed at any moment leaves the previous state.
#![forbid(unsafe_code)]

mod dtype;
mod error;
mod export;
mod files;
mod hash;
mod hf;
mod layout;
mod load;
mod manifest;
mod nearest;
mod render;
mod reshard;
mod resolve;
mod safefile;
mod safewrite;
mod save;
mod sign;

pub use dtype::{
    Dtype, abi_dtype, file_dtype, is_readable_float, num_bytes, num_elements, parse_dtype,
    widen_to_f32,
};
pub use error::{CheckpointError, Result};
pub use export::{
    ADAPTER, ADAPTER_CONFIG, DEFAULT_SHARD_BYTES, check_target, export_adapter, export_hf,
};
pub use hash::Tree;
pub use hf::{HfDir, TOKENIZER_FILES, named_files};
pub use layout::{Logical, Piece};
pub use load::{Checkpoint, Proof};
pub use manifest::{
    FORMAT_VERSION, FileRecord, Found, GENERATOR, MANIFEST, Manifest, list, run_and_step, step_dir,
};
pub use render::{Detail, Holds, inspect, inspect_json, verify, verify_by, verify_json_by};
pub use reshard::reshard;
pub use resolve::{NameReport, Resolved, Resolver, WrongShape, is_buffer};
pub use safefile::{MAX_HEADER_BYTES, SafeFile, TensorInfo};
pub use safewrite::{TensorOut, Written, write_f32, write_safetensors};
pub use save::{Patience, RankWriter, Writer, prune, session};
pub use sign::{PublicKey, SIGNATURE, SecretKey, keygen, sign};
