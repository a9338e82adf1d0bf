//! `crossweave.graph/1` from the [`Graphs`] trait.

use super::Declared;
use super::wire::*;
use crate::Graphs;
use crossweave_abi as abi;
use crossweave_abi::Handle;

type G<B> = <B as Declared>::Graphs;
type Graph<B> = <G<B> as Graphs<B>>::Graph;

slot!(capture_begin(s: Handle) |b| <G<B>>::begin(b, obj(s, "stream")?)?);

slot!(capture_end(s: Handle, out: *mut Handle) |b| {
    let stream = obj(s, "stream")?;
    // The capture is over also where nobody can be given the graph.
    let graph = <G<B>>::end(b, stream)?;
    writable(out, "the graph")?;
    put(out, "the graph", boxed::<Graph<B>>(graph))?
});

slot!(graph_launch(g: Handle, s: Handle) |b| <G<B>>::launch(b, obj::<Graph<B>>(g, "graph")?, obj(s, "stream")?)?);

/// The table.
pub(super) const fn table<B: Declared>() -> abi::GraphApi {
    abi::GraphApi {
        size: size_of::<abi::GraphApi>() as u32,
        minor: 0,
        capture_begin: Some(capture_begin::<B>),
        capture_end: Some(capture_end::<B>),
        graph_launch: Some(graph_launch::<B>),
        graph_release: Some(drop_as::<Graph<B>>),
    }
}
