//! Graphs: what a stream is given between begin and end, captured by the driver and launched again as one.
//!
//! The driver captures on a stream of its own beside the stream that the host knows, which is never in the driver's capture mode: other
//! threads may ask it for its state, and record and wait for its events, without spoiling a capture. Everything that runs meanwhile is given
//! to that other stream; what a graph does not hold is refused before the driver sees it.

use crate::Cuda;
use crate::device::{Dev, lock};
use crate::driver::*;
use crate::stream::Stream;
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

impl Stream {
    /// Where launches, copies and fills go.
    pub(crate) fn lane(&self) -> Handle {
        match self.capture.on.load(Ordering::Acquire) {
            true => *lock(&self.capture.side),
            false => self.raw,
        }
    }

    /// Refuses what a graph does not hold.
    pub(crate) fn not_captured(&self, what: &str) -> Result<()> {
        match self.capture.on.load(Ordering::Acquire) {
            true => unsupported(format!(
                "{what}: a graph holds launches, copies and fills, and the stream is capturing one"
            )),
            false => Ok(()),
        }
    }

    fn capture_begin(&self) -> Result<()> {
        if self.capture.on.load(Ordering::Acquire) {
            return fail(Code::Invalid, "capture_begin: the stream is capturing");
        }
        let dev = &self.dev;
        let f = Functions::of(dev)?;
        let _in = dev.enter()?;
        let mut side = lock(&self.capture.side);
        if *side == Handle::NULL {
            let mut raw = Handle::NULL;
            // SAFETY: the out pointer lives for the call.
            let s = unsafe {
                (dev.driver().cuStreamCreateWithPriority)(&mut raw, STREAM_NON_BLOCKING, 0)
            };
            dev.check("cuStreamCreateWithPriority", s)?;
            *side = raw;
        }
        // SAFETY: a stream of ours with nothing on it, used by the thread that captures alone.
        let s = unsafe { (f.begin)(*side, CAPTURE_THREAD_LOCAL) };
        dev.check("cuStreamBeginCapture_v2", s)?;
        self.capture.on.store(true, Ordering::Release);
        Ok(())
    }

    fn capture_end(&self) -> Result<Graph> {
        if !self.capture.on.swap(false, Ordering::AcqRel) {
            return fail(Code::Invalid, "capture_end: the stream is not capturing");
        }
        let dev = &self.dev;
        let f = Functions::of(dev)?;
        let _in = dev.enter()?;
        let (mut graph, mut exec) = (Handle::NULL, Handle::NULL);
        // SAFETY: the stream is capturing since `capture_begin`; out pointers live for the calls; the template is destroyed once.
        unsafe {
            let s = (f.end)(*lock(&self.capture.side), &mut graph);
            dev.check("cuStreamEndCapture", s)?;
            let s = (f.instantiate)(&mut exec, graph, 0);
            (f.destroy)(graph);
            dev.check("cuGraphInstantiateWithFlags", s)?;
        }
        Ok(Graph {
            dev: dev.clone(),
            exec,
        })
    }

    /// Ends a capture that is left open, and destroys the other stream. The context is current.
    pub(crate) fn capture_drop(&self) {
        let side = std::mem::replace(&mut *lock(&self.capture.side), Handle::NULL);
        if side == Handle::NULL {
            return;
        }
        if let (true, Ok(f)) = (
            self.capture.on.swap(false, Ordering::AcqRel),
            Functions::of(&self.dev),
        ) {
            let mut graph = Handle::NULL;
            // SAFETY: as in `capture_end`.
            unsafe {
                if (f.end)(side, &mut graph) == SUCCESS && graph != Handle::NULL {
                    (f.destroy)(graph);
                }
            }
        }
        // SAFETY: created by us, destroyed once.
        unsafe { (self.dev.driver().cuStreamDestroy_v2)(side) };
    }
}

/// The driver's functions for graphs; drivers before 11.4 lack some.
struct Functions {
    begin: unsafe extern "C" fn(Handle, u32) -> Status,
    end: unsafe extern "C" fn(Handle, *mut Handle) -> Status,
    instantiate: unsafe extern "C" fn(*mut Handle, Handle, u64) -> Status,
    destroy: unsafe extern "C" fn(Handle) -> Status,
    launch: unsafe extern "C" fn(Handle, Handle) -> Status,
    release: unsafe extern "C" fn(Handle) -> Status,
}

impl Functions {
    fn of(dev: &Dev) -> Result<Functions> {
        let d = dev.driver();
        Ok(Functions {
            begin: dev.optional(d.cuStreamBeginCapture_v2, "cuStreamBeginCapture_v2")?,
            end: dev.optional(d.cuStreamEndCapture, "cuStreamEndCapture")?,
            instantiate: dev
                .optional(d.cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags")?,
            destroy: dev.optional(d.cuGraphDestroy, "cuGraphDestroy")?,
            launch: dev.optional(d.cuGraphLaunch, "cuGraphLaunch")?,
            release: dev.optional(d.cuGraphExecDestroy, "cuGraphExecDestroy")?,
        })
    }
}

/// A graph that can be launched.
pub struct Graph {
    dev: Arc<Dev>,
    exec: Handle,
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let (Ok(_in), Ok(f)) = (self.dev.enter_anyway(), Functions::of(&self.dev)) {
            // SAFETY: created by us, destroyed once; the driver frees it when launches under way are over.
            unsafe { (f.release)(self.exec) };
        }
    }
}

/// The graphs of the GPU.
pub enum CudaGraphs {}

impl Graphs<Cuda> for CudaGraphs {
    type Graph = Graph;

    fn begin(_: &Cuda, s: &Stream) -> Result<()> {
        s.capture_begin()
    }

    fn end(_: &Cuda, s: &Stream) -> Result<Graph> {
        s.capture_end()
    }

    fn launch(_: &Cuda, g: &Graph, s: &Stream) -> Result<()> {
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
        let f = Functions::of(&g.dev)?;
        let _in = g.dev.enter()?;
        // SAFETY: graph and stream are alive; the host keeps what the graph names until the stream has passed it.
        let status = unsafe { (f.launch)(g.exec, s.raw) };
        g.dev.check("cuGraphLaunch", status)
    }
}
