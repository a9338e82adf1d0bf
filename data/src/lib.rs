//! Text to tokens to batches. A corpus is tokenised once into a Megatron-compatible dataset, shuffled by
//! a seed alone, and read by position.
//!
//! **Invariants** (`docs/invariants.md`). A sample is a function of seed and position: neither the number
//! of ranks nor a restart changes what a step trains on. A failed build of a dataset leaves nothing
//! behind, and a damaged file is an error that names the place.
#![forbid(unsafe_code)]

mod atomic;
mod batches;
mod build;
mod cache;
mod chat;
mod corpus;
mod cuts;
mod error;
mod example;
mod examples;
mod given;
mod gpt;
mod guard;
mod hf_file;
mod images;
mod index_file;
mod indexed;
mod mixture;
mod objective;
mod order;
mod order_store;
mod packing;
mod pairs;
mod philox;
mod progress;
mod report;
mod rng;
mod rows;
mod source;
mod spec;
mod special;
mod split;
mod task;
mod tensors;
mod tokenizer;
mod tokenizer_json;
mod workers;

pub use batches::{BatchShape, Batches, IGNORED, Remark, SequenceSource, TokenBatch, shares};
pub use corpus::{Corpus, Pass, check, of_rows, open, text_bytes};
pub use error::{DataError, Result};
pub use given::GivenTokens;
pub use gpt::GptDataset;
pub use guard::is_guarded;
pub use images::patches;
pub use index_file::TokenType;
pub use indexed::IndexedDataset;
pub use objective::{Ids, Masking, Objective, Pairs, Spans, decoded};
pub use order::Order;
pub use pairs::{Columns, Pair, paired};
pub use progress::{NoProgress, Phase, Progress};
pub use report::BuildReport;
pub use rows::DataSource;
pub use spec::{
    CargoSource, DataSpec, Examples, FilesSource, Images, Rows, Source, TokenizerKind,
    TokenizerSpec, Validation, Weighted,
};
pub use tokenizer::{Encoded, Tokenizer};
pub use tokenizer_json::{EOD_NAME, NamedFile};
