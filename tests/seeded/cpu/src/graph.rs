//! Graphs with one defect.

use crate::Seeded;
use crossweave_backend_cpu::{CpuGraphs, Graph, Stream};
use crossweave_plugin::{Backend, Code, Graphs, Result};
use std::sync::atomic::{AtomicBool, Ordering};

/// What was kept, where anything was.
pub struct Kept {
    graph: Option<Graph>,
    launched: AtomicBool,
}

/// The CPU's graphs and what is wrong with them.
pub enum SeededGraphs {}

impl Graphs<Seeded> for SeededGraphs {
    type Graph = Kept;

    fn begin(b: &Seeded, s: &Stream) -> Result<()> {
        if b.is("capture_runs_at_once") {
            return Ok(());
        }
        match CpuGraphs::begin(b.inner(), s) {
            Err(e) if b.is("capture_begins_twice") && e.code == Code::Invalid => Ok(()),
            other => other,
        }
    }

    fn end(b: &Seeded, s: &Stream) -> Result<Kept> {
        if b.is("leak_in_capture") {
            std::mem::forget(std::hint::black_box(vec![1u8; 512]));
        }
        let graph = match CpuGraphs::end(b.inner(), s) {
            Ok(g) => Some(g),
            Err(_) if b.is("capture_runs_at_once") || b.is("capture_ends_unbegun") => None,
            Err(e) => return Err(e),
        };
        Ok(Kept {
            graph,
            launched: AtomicBool::new(false),
        })
    }

    fn launch(b: &Seeded, g: &Kept, s: &Stream) -> Result<()> {
        let again = g.launched.swap(true, Ordering::Relaxed);
        let Some(graph) = g
            .graph
            .as_ref()
            .filter(|_| !(again && b.is("graph_runs_once")))
        else {
            return Ok(());
        };
        if let Some(ahead) = &*b.ahead() {
            CpuGraphs::launch(b.inner(), graph, ahead)?;
            return b.inner().stream_sync(ahead, None);
        }
        match CpuGraphs::launch(b.inner(), graph, s) {
            Err(e) if b.is("graph_takes_any_stream") && e.code == Code::Invalid => Ok(()),
            other => other,
        }
    }
}
