//! Graphs with one defect.

use crate::Seeded;
use crossweave_backend_cpu::{CpuGraphs, Graph, Stream};
use crossweave_plugin::{Backend, Code, Graphs, Result};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What was kept, where anything was.
pub struct Kept {
    graph: Option<Graph>,
    launched: AtomicBool,
    launches: AtomicU64,
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
            launches: AtomicU64::new(0),
        })
    }

    fn launch(b: &Seeded, g: &Kept, s: &Stream) -> Result<()> {
        let launches = g.launches.fetch_add(1, Ordering::Relaxed);
        if launches >= 16 && b.is("graphs_end_at_16_launches") {
            return Ok(());
        }
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
