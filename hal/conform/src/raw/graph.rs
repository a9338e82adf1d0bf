//! Capturing on a stream, and launching what was kept.

use super::device::missing;
use super::handles::{Graph, Stream};
use super::{Raw, Refusal};
use crossweave_abi as abi;
use crossweave_abi::{GraphApi, Handle};

impl Stream {
    fn graphs(&self) -> Raw<&GraphApi> {
        let table = self.dev().0.p.graph.as_ref();
        table.ok_or_else(|| missing("crossweave.graph/1"))
    }

    /// From here on the stream keeps what it is given.
    ///
    /// # Errors
    /// The plugin's.
    pub fn capture(&self) -> Raw<()> {
        let f = slot!(self.graphs()?, capture_begin);
        let p = &self.dev().0.p;
        // SAFETY: a live stream.
        p.call("capture_begin", |e| unsafe { f(self.handle(), e) })
            .map(|_| ())
    }

    /// What it has kept.
    ///
    /// # Errors
    /// The plugin's.
    pub fn captured(&self) -> Raw<Graph> {
        let f = slot!(self.graphs()?, capture_end);
        let mut h: Handle = std::ptr::null_mut();
        let p = &self.dev().0.p;
        // SAFETY: a live stream and a live out pointer.
        p.call("capture_end", |e| unsafe { f(self.handle(), &mut h, e) })?;
        Ok(Graph::new(self.dev().clone(), h))
    }

    /// Launches a graph.
    ///
    /// # Errors
    /// The plugin's.
    pub fn replay(&self, g: &Graph) -> Raw<()> {
        let f = slot!(self.graphs()?, graph_launch);
        let p = &self.dev().0.p;
        // SAFETY: live handles; the kit keeps what the graph names until the stream has passed.
        p.call("graph_launch", |e| unsafe {
            f(g.handle(), self.handle(), e)
        })
        .map(|_| ())
    }
}
