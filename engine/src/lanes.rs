//! The streams of a rank by lane. Those of the host's thread are the host executor's, that of peers the pipeline's.

use crossweave_hal::{Device, Result, Stream};
use crossweave_plan::Lane;
use crossweave_planner::RankSpec;
use crossweave_tensor::shape_error;

/// One stream for each lane that the plan uses.
pub(crate) struct Lanes {
    /// Forward, backward, update.
    pub compute: Stream,
    reduce: Stream,
    /// Where the plan gathers anything.
    gather: Option<Stream>,
    /// Kept inputs leave and return on these.
    spill: Option<[Stream; 2]>,
    /// Reductions run beside the backward.
    overlap: bool,
}

impl Lanes {
    pub fn new(device: &Device, spec: &RankSpec, gathers: bool) -> Result<Lanes> {
        let spills = spec.offload.as_ref().is_some_and(|o| o.activations);
        Ok(Lanes {
            compute: device.stream("compute", 0)?,
            reduce: device.stream("reduce", 1)?,
            gather: match gathers {
                true => Some(device.stream("gather", 1)?),
                false => None,
            },
            spill: match spills {
                true => Some([device.stream("spill", 1)?, device.stream("fetch", 1)?]),
                false => None,
            },
            overlap: spec.zero.overlap,
        })
    }

    /// The stream of a lane of kernels and collectives.
    pub fn get(&self, lane: Lane) -> crossweave_tensor::Result<&Stream> {
        match (lane, &self.gather) {
            (Lane::Compute, _) => Ok(&self.compute),
            (Lane::Reduce, _) => Ok(&self.reduce),
            (Lane::Gather, Some(gather)) => Ok(gather),
            _ => shape_error(format!("no stream for {lane:?}")),
        }
    }

    /// The stream on which gradients are reduced, and on which messages outside the step travel.
    pub fn reductions(&self) -> &Stream {
        match self.overlap {
            true => &self.reduce,
            false => &self.compute,
        }
    }

    /// On which kept inputs leave, and on which they return.
    pub fn spill(&self) -> crossweave_tensor::Result<[&Stream; 2]> {
        match &self.spill {
            Some(both) => Ok(both.each_ref()),
            None => shape_error("the plan spills and nothing is offloaded"),
        }
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &Stream> {
        let always = [&self.compute, &self.reduce].into_iter();
        always
            .chain(&self.gather)
            .chain(self.spill.iter().flatten())
    }

    /// Waits between them so far, of those that a plan's edges imply.
    pub fn waits(&self) -> impl Iterator<Item = (Lane, u64)> {
        let always = [(Lane::Compute, &self.compute), (Lane::Reduce, &self.reduce)];
        let gather = self.gather.iter().map(|s| (Lane::Gather, s));
        always
            .into_iter()
            .chain(gather)
            .map(|(l, s)| (l, s.waits()))
    }
}
