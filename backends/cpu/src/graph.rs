//! Graphs: the commands a stream was given, kept as a batch and played again as one command of a stream.
//!
//! Nothing is gained on a CPU, where to enqueue costs little; it makes the whole path testable without a GPU.

use crate::CpuBackend;
use crate::stream::{Batch, Cmd, Stream};
use crossweave_plugin::{Graphs, Result};
use std::sync::Arc;

impl Cmd {
    /// The same once more, of what a graph may hold; operands stay where they are.
    pub(crate) fn again(&self) -> Option<Cmd> {
        Some(match self {
            Cmd::Kernel {
                op,
                words,
                n,
                bytes,
                len,
                workspace,
            } => Cmd::Kernel {
                op: op.clone(),
                words: *words,
                n: *n,
                bytes: *bytes,
                len: *len,
                workspace: *workspace,
            },
            Cmd::Copy { dst, src, bytes } => Cmd::Copy {
                dst: *dst,
                src: *src,
                bytes: *bytes,
            },
            Cmd::Copy2d {
                dst,
                dpitch,
                src,
                spitch,
                width,
                height,
            } => Cmd::Copy2d {
                dst: *dst,
                dpitch: *dpitch,
                src: *src,
                spitch: *spitch,
                width: *width,
                height: *height,
            },
            Cmd::Fill {
                dst,
                bytes,
                pattern,
                size,
            } => Cmd::Fill {
                dst: *dst,
                bytes: *bytes,
                pattern: *pattern,
                size: *size,
            },
            _ => return None,
        })
    }
}

/// What a capture kept: launches, copies and fills, and nothing writes it any more.
pub(crate) struct Kept(pub(crate) Batch);
// SAFETY: what such commands hold is `Arc`s of prepared ops, which are shared anyway, and addresses as above.
unsafe impl Sync for Kept {}

/// Commands that were kept, with their operands and parameters.
pub struct Graph(Arc<Kept>);

/// The graphs of the CPU backend.
pub enum CpuGraphs {}

impl Graphs<CpuBackend> for CpuGraphs {
    type Graph = Graph;

    fn begin(_: &CpuBackend, s: &Stream) -> Result<()> {
        s.capture_begin()
    }

    fn end(_: &CpuBackend, s: &Stream) -> Result<Graph> {
        s.capture_end().map(|kept| Graph(Arc::new(kept)))
    }

    fn launch(_: &CpuBackend, g: &Graph, s: &Stream) -> Result<()> {
        // Addresses of host memory are the same for every CPU device, so any stream takes it.
        s.push(|_| Cmd::Graph(g.0.clone())).map(|_| ())
    }
}
