//! Graphs: what a stream is given between begin and end, captured by the driver and launched again as one.
//!
//! The driver captures on a stream of its own beside the stream that the host knows, which is never in the driver's capture mode: other
//! threads may ask it for its state, and record and wait for its events, without spoiling a capture. Everything that runs meanwhile is given
//! to that other stream; what a graph does not hold is refused before the driver sees it.

use crate::backend::OnGpu;
use crate::device::Dev;
use crate::lock;
use crate::runtime::*;
use crate::stream::{Lane, Line, Stream};
use crossweave_plugin::{Code, Error, Graphs, Result, fail, unsupported};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// A stream's side of capturing.
pub(crate) struct Capture {
    on: AtomicBool,
    /// Made by the first capture.
    side: Mutex<Handle>,
}

impl Default for Capture {
    fn default() -> Capture {
        Capture {
            on: AtomicBool::new(false),
            side: Mutex::new(Handle::NULL),
        }
    }
}

impl Line {
    /// Where launches, copies and fills go.
    pub(crate) fn lane(&self) -> Lane<'_> {
        match self.captures() {
            true => Lane {
                line: self,
                raw: *lock(&self.capture.side),
            },
            false => self.own_lane(),
        }
    }

    /// Where they go when no capture is meant.
    pub(crate) fn own_lane(&self) -> Lane<'_> {
        Lane {
            line: self,
            raw: self.raw,
        }
    }

    /// Is it capturing?
    pub(crate) fn captures(&self) -> bool {
        self.capture.on.load(Ordering::Acquire)
    }

    /// Refuses what a graph does not hold.
    pub(crate) fn not_captured(&self, what: &str) -> Result<()> {
        match self.captures() {
            true => unsupported(format!(
                "{what}: a graph holds launches, copies and fills, and the stream is capturing one"
            )),
            false => Ok(()),
        }
    }

    fn capture_begin(&self) -> Result<()> {
        if self.captures() {
            return fail(Code::Invalid, "capture_begin: the stream is capturing");
        }
        let dev = &self.dev;
        let _in = dev.enter()?;
        let mut side = lock(&self.capture.side);
        if *side == Handle::NULL {
            let mut raw = Handle::NULL;
            // SAFETY: the device is current.
            dev.check(unsafe { dev.rt().stream(&mut raw, STREAM_NON_BLOCKING, 0) })?;
            *side = raw;
        }
        // SAFETY: a stream of ours with nothing on it, used by the thread that captures alone.
        dev.check(unsafe { dev.rt().capture_begin(*side) })?;
        self.capture.on.store(true, Ordering::Release);
        Ok(())
    }

    fn capture_end(&self) -> Result<Graph> {
        if !self.capture.on.swap(false, Ordering::AcqRel) {
            return fail(Code::Invalid, "capture_end: the stream is not capturing");
        }
        let dev = &self.dev;
        let _in = dev.enter()?;
        let (mut graph, mut exec) = (Handle::NULL, Handle::NULL);
        // SAFETY: the stream is capturing since `capture_begin`; out pointers live for the calls; the template is destroyed once.
        unsafe {
            dev.check(dev.rt().capture_end(*lock(&self.capture.side), &mut graph))?;
            let made = dev.rt().graph_instantiate(&mut exec, graph);
            let _ = dev.rt().graph_destroy(graph);
            dev.check(made)?;
        }
        Ok(Graph(Arc::new(Exec {
            dev: dev.clone(),
            raw: exec,
        })))
    }

    /// Ends a capture that is left open, and destroys the other stream. The context is current.
    pub(crate) fn capture_drop(&self) {
        let side = std::mem::replace(&mut *lock(&self.capture.side), Handle::NULL);
        if side == Handle::NULL {
            return;
        }
        let rt = self.dev.rt();
        if self.capture.on.swap(false, Ordering::AcqRel) {
            let mut graph = Handle::NULL;
            // SAFETY: as in `capture_end`.
            unsafe {
                if rt.capture_end(side, &mut graph).done() && graph != Handle::NULL {
                    let _ = rt.graph_destroy(graph);
                }
            }
        }
        // SAFETY: created by us, destroyed once.
        let _ = unsafe { rt.stream_destroy(side) };
    }
}

/// A graph that can be launched.
pub struct Graph(Arc<Exec>);

struct Exec {
    dev: Arc<Dev>,
    raw: Handle,
}

impl Drop for Exec {
    fn drop(&mut self) {
        if let Ok(_in) = self.dev.enter_anyway() {
            // SAFETY: created by us, destroyed once; the driver frees it when launches under way are over.
            let _ = unsafe { self.dev.rt().graph_release(self.raw) };
        }
    }
}

/// The graphs of the GPU.
pub enum GpuGraphs {}

impl<B: OnGpu> Graphs<B> for GpuGraphs {
    type Graph = Graph;

    fn begin(_: &B, s: &Stream) -> Result<()> {
        s.capture_begin()
    }

    fn end(_: &B, s: &Stream) -> Result<Graph> {
        s.capture_end()
    }

    fn launch(_: &B, g: &Graph, s: &Stream) -> Result<()> {
        let g = g.0.clone();
        if !Arc::ptr_eq(&g.dev, &s.dev) {
            return Err(Error::new(
                Code::Invalid,
                format!(
                    "a graph of device {} on a stream of device {}",
                    g.dev.index, s.dev.index
                ),
            ));
        }
        s.not_captured("graph_launch")?;
        s.put(move |s| {
            let _in = g.dev.enter()?;
            // SAFETY: graph and stream are alive; the host keeps what the graph names until the stream has passed it.
            g.dev
                .check(unsafe { g.dev.rt().graph_launch(g.raw, s.raw) })
        })
    }
}
