//! Graphs: the commands a stream was given, kept as a batch and played again as one command of a stream.
//!
//! Nothing is gained on a CPU, where to enqueue costs little; it makes the whole path testable without a GPU.

use crate::CpuBackend;
use crate::stream::{Batch, Cmd, Stream};
use crate::team::Team;
use crossweave_plugin::{Code, Graphs, Result, fail};
use std::sync::{Arc, Weak};

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
pub struct Graph {
    kept: Arc<Kept>,
    /// Whose they are: a device has one team.
    home: Weak<Team>,
}

/// The graphs of the CPU backend.
pub enum CpuGraphs {}

impl Graphs<CpuBackend> for CpuGraphs {
    type Graph = Graph;

    fn begin(_: &CpuBackend, s: &Stream) -> Result<()> {
        s.capture_begin()
    }

    fn end(_: &CpuBackend, s: &Stream) -> Result<Graph> {
        Ok(Graph {
            kept: Arc::new(s.capture_end()?),
            home: Arc::downgrade(&s.team),
        })
    }

    fn launch(_: &CpuBackend, g: &Graph, s: &Stream) -> Result<()> {
        if !std::ptr::eq(g.home.as_ptr(), Arc::as_ptr(&s.team)) {
            return fail(
                Code::Invalid,
                "graph_launch: the stream is another device's",
            );
        }
        s.push(|_| Cmd::Graph(g.kept.clone())).map(|_| ())
    }
}
