//! The safe face of a plugin: devices, streams, buffers, kernels, communicators.

pub mod error;
pub mod header;
pub mod host;
pub mod loader;
pub mod manifest;

pub use error::{Code, Error, Result};
pub use host::{HostServices, KvStore, LocalKv};
pub use loader::{LoadError, RawPlugin};
