//! Typed requests of ops: what the op table says of an op's operands and parameters, read and checked once for all back ends. A back end
//! adds what only its kernels cannot do.

mod adamw;
mod embedding;
mod lines;
mod norm;
mod operands;
mod program;
mod rope;

pub use adamw::Adamw;
pub use embedding::{Embedding, EmbeddingBackward, Indices};
pub use lines::{ArgReduce, Cumsum, NUMBERS};
pub use norm::{NormBackward, NormForward};
pub use operands::{Operands, spec};
pub use program::Program;
pub use rope::Rope;
