//! Graphs: the commands a stream was given, kept as a batch and played again as one command of a stream.
//!
//! A launch costs little on a CPU as it is; graphs of it make the whole path testable without a GPU.

use super::{Batch, Cmd, Queue, Shared, Stream, lock, step};
use crate::CpuBackend;
use crate::team::Team;
use crossweave_plugin::{Code, Graphs, Result, fail, unsupported};
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, Weak};

impl Cmd {
    /// The same once more, of what a graph may hold; operands stay where they are.
    fn again(&self) -> Option<Cmd> {
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
pub(crate) struct Kept(Batch);
// SAFETY: what such commands hold is `Arc`s of prepared ops, which are shared anyway, and addresses; there are no groups of collectives.
unsafe impl Sync for Kept {}

impl Kept {
    /// Runs them one by one as if each had been enqueued.
    pub(super) fn play(&self, s: &Shared, team: &Team, seq: u64) {
        for cmd in self.0.cmds.iter().filter_map(Cmd::again) {
            if let Some(t) = &s.turn {
                t.point();
            }
            step(s, team, seq, cmd, (&self.0.words, &self.0.bytes), &mut []);
        }
    }
}

impl Queue {
    /// Where to keep a command, while the stream captures. `Unsupported`: one that a graph does not hold.
    pub(super) fn captures(&mut self, keeps: bool) -> Result<Option<&mut Batch>> {
        if self.capture.is_some() && !keeps {
            return unsupported(
                "a graph holds launches, copies and fills, and the stream is capturing one",
            );
        }
        Ok(self.capture.as_mut())
    }
}

impl Stream {
    /// As [`Stream::push`], for what a graph may hold: while the stream captures, it is kept instead.
    pub(crate) fn push_or_keep(&self, build: impl FnOnce(&mut Batch) -> Cmd) -> Result<()> {
        if self.shared.failed.load(Acquire) {
            self.shared.sticky()?;
        }
        self.push_always(true, build).map(|_| ())
    }

    /// Refuses what a graph does not hold.
    pub(crate) fn not_captured(&self) -> Result<()> {
        lock(&self.shared.queue).captures(false).map(|_| ())
    }

    /// From here on the stream keeps what it is given.
    fn capture_begin(&self) -> Result<()> {
        self.shared.sticky()?;
        let mut q = lock(&self.shared.queue);
        if q.capture.is_some() {
            return fail(Code::Invalid, "capture_begin: the stream is capturing");
        }
        q.capture = Some(Batch::default());
        Ok(())
    }

    /// What was kept.
    fn capture_end(&self) -> Result<Kept> {
        match lock(&self.shared.queue).capture.take() {
            Some(kept) => Ok(Kept(kept)),
            None => fail(Code::Invalid, "capture_end: the stream is not capturing"),
        }
    }
}

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
