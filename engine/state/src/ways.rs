//! What state is moved with: streams, the host's thread, other ranks.

use crate::error::Error;
use crate::peers::Peers;
use crate::words::{Tensors, floats};
use crossweave_hal::{Device, Stream};
use crossweave_mesh::Mesh;
use crossweave_offload::Executor;
use crossweave_tensor::{Decompositions, KernelCache, Run, Tensor};
use std::cell::RefCell;

/// What state is moved with: streams, the host's thread, other ranks.
#[derive(Clone, Copy)]
pub struct Ways<'a> {
    /// Forward, backward, update.
    pub compute: &'a Stream,
    /// On which messages outside the step travel.
    pub messages: &'a Stream,
    /// The way to the host's thread, where something rests off the device.
    pub host: Option<&'a Executor>,
    /// Other ranks.
    pub mesh: &'a RefCell<Mesh>,
    /// Other pipeline stages.
    pub peers: Option<&'a Peers>,
    /// This rank of the job, for errors.
    pub rank: u32,
    /// Optimizer steps taken, for errors.
    pub step: u64,
}

impl<'a> Ways<'a> {
    pub(crate) fn device(&self) -> &'a Device {
        self.compute.device()
    }
    pub(crate) fn host(&self) -> Tensors<&'a Executor> {
        match self.host {
            Some(host) => Ok(host),
            None => {
                crossweave_tensor::shape_error("state rests on the host, and nothing is offloaded")
            }
        }
    }
    /// Says where and when something failed.
    pub(crate) fn at<E: Into<crossweave_tensor::Error>>(
        &self,
        what: &str,
    ) -> impl Fn(E) -> Error + use<E> {
        let (rank, step, at) = (self.rank, self.step, what.to_string());
        move |e| Error::Run {
            rank,
            step,
            at: at.clone(),
            source: e.into(),
        }
    }
    /// Numbers of a tensor on the host.
    pub(crate) fn words(&self, t: &Tensor) -> Tensors<Vec<f32>> {
        let mut bytes = vec![0u8; t.extent() as usize];
        self.messages.read(t.region(), &mut bytes)?;
        Ok(floats(&bytes))
    }
    /// Does something with kernels that are prepared for this once.
    pub(crate) fn run<T>(&self, f: impl FnOnce(&Run<'_>) -> T) -> T {
        let cache = RefCell::new(KernelCache::default());
        f(&Run::new(self.compute, &Decompositions, &cache))
    }
}
