//! Launching ops on tensors: allocation from the pool, kernels found by position, parameters as the op table has them.
//!
//! A block runs the same ops in the same order every step, so a kernel is found by comparing the request with the one seen at
//! this position last time: no hashing, no allocation in the steady state.

use crate::error::Result;
use crate::probe::Probe;
use crate::{Shape, Tensor};
use crossweave_hal::abi::{Layout, op};
use crossweave_hal::{DType, Decompose, Device, Kernel, OpRequest, Stream, Tag};
use std::cell::RefCell;
use std::sync::Arc;

/// Kernels of one block and phase, in the order they are launched.
#[derive(Default)]
pub struct KernelCache {
    seen: Vec<Kernel>,
    at: usize,
    probe: Option<Arc<Probe>>,
}

impl KernelCache {
    /// Starts over: the next launch is the first of the block again.
    pub fn rewind(&mut self) {
        self.at = 0;
    }
    /// From now on `probe` looks at the results of what is launched here; `None`: nobody does.
    pub fn watch(&mut self, probe: Option<&Arc<Probe>>) {
        self.probe = probe.cloned();
    }
}

/// A device, the stream to compute on, and the decompositions.
pub struct Run<'a> {
    stream: &'a Stream,
    decompose: &'a dyn Decompose,
    cache: &'a RefCell<KernelCache>,
    one_by_one: bool,
}

impl<'a> Run<'a> {
    /// Ops go to `stream`; `cache` remembers their kernels.
    pub fn new(
        stream: &'a Stream,
        decompose: &'a dyn Decompose,
        cache: &'a RefCell<KernelCache>,
    ) -> Run<'a> {
        cache.borrow_mut().rewind();
        Run {
            stream,
            decompose,
            cache,
            one_by_one: false,
        }
    }
    /// Sums over several weights take the weights one by one also where they lie end to end: where that depends on the number of
    /// ranks, and bits may not.
    pub fn one_by_one(self, one_by_one: bool) -> Run<'a> {
        Run { one_by_one, ..self }
    }
    pub(crate) fn takes_one_by_one(&self) -> bool {
        self.one_by_one
    }
    /// The stream.
    pub fn stream(&self) -> &'a Stream {
        self.stream
    }
    /// Its device.
    pub fn device(&self) -> &Device {
        self.stream.device()
    }

    /// A new tensor with unset contents, from the activation pool.
    pub fn empty(&self, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        self.empty_for(shape, dtype, Tag::Activation)
    }

    /// The same under another tag.
    pub fn empty_for(&self, shape: impl Into<Shape>, dtype: DType, tag: Tag) -> Result<Tensor> {
        let shape = shape.into();
        let buffer = self
            .device()
            .alloc(self.stream, dtype.bytes(shape.numel()), tag)?;
        Ok(Tensor::dense(Arc::new(buffer), 0, shape, dtype))
    }

    /// A new tensor of zeros.
    pub fn zeros(&self, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        let t = self.empty(shape, dtype)?;
        self.stream.fill(t.region(), 0, 1)?;
        Ok(t)
    }

    /// A tensor with these f32 values (set-up and tests; blocks the host).
    pub fn from_f32(&self, shape: impl Into<Shape>, values: &[f32]) -> Result<Tensor> {
        let t = self.empty(shape, DType::F32)?;
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.stream.write(t.region(), &bytes)?;
        Ok(t)
    }

    /// A tensor of indices.
    pub fn from_i64(&self, shape: impl Into<Shape>, values: &[i64]) -> Result<Tensor> {
        let t = self.empty(shape, DType::I64)?;
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.stream.write(t.region(), &bytes)?;
        Ok(t)
    }

    /// The values as f32 (dense tensors; blocks the host).
    pub fn to_f32(&self, t: &Tensor) -> Result<Vec<f32>> {
        let t = if t.dtype() == DType::F32 && t.is_dense() {
            t.clone()
        } else {
            let c = self.empty(*t.shape(), DType::F32)?;
            self.launch(
                op::CAST,
                &[Some(&c), Some(t)],
                op::NoParams::default().as_bytes(),
                &[],
            )?;
            c
        };
        let mut bytes = vec![0u8; t.extent() as usize];
        self.stream.read(t.region(), &mut bytes)?;
        Ok(bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect())
    }

    /// Launches op `id` on operands in the op table's order.
    pub fn launch(
        &self,
        id: u32,
        operands: &[Option<&Tensor>],
        params: &[u8],
        dynamic: &[u8],
    ) -> Result<()> {
        let mut c = self.cache.borrow_mut();
        let at = c.at;
        c.at += 1;
        if !c
            .seen
            .get(at)
            .is_some_and(|k| matches(k, id, operands, params))
        {
            let layouts: Vec<Layout> = operands
                .iter()
                .map(|o| o.map_or(Layout::ABSENT, Tensor::layout))
                .collect();
            let request = OpRequest::new(id, &layouts, params);
            let kernel = self.device().prepare(&request, self.decompose)?;
            if at < c.seen.len() {
                c.seen[at] = kernel;
            } else {
                c.seen.push(kernel);
            }
        }
        let kernel = &c.seen[at];
        // Few operands are the common case, and clearing room for many would cost more than the launch.
        match operands.len() {
            0..=4 => self.submit::<4>(kernel, operands, dynamic),
            5..=10 => self.submit::<10>(kernel, operands, dynamic),
            11..=16 => self.submit::<16>(kernel, operands, dynamic),
            _ => {
                let regions: Vec<_> = operands.iter().map(|o| o.map(Tensor::region)).collect();
                Ok(self.stream.launch(kernel, &regions, dynamic)?)
            }
        }?;
        match &c.probe {
            None => Ok(()),
            Some(p) => p.look(self, id, at, operands),
        }
    }

    /// A kernel that is no part of the block.
    pub(crate) fn prepare(&self, request: &OpRequest) -> Result<Kernel> {
        Ok(self.device().prepare(request, self.decompose)?)
    }

    #[inline]
    fn submit<const N: usize>(
        &self,
        kernel: &Kernel,
        operands: &[Option<&Tensor>],
        dynamic: &[u8],
    ) -> Result<()> {
        let mut regions = [None; N];
        for (r, o) in regions.iter_mut().zip(operands) {
            *r = o.map(Tensor::region);
        }
        Ok(self
            .stream
            .launch(kernel, &regions[..operands.len()], dynamic)?)
    }
}

/// Was the kernel prepared for this very request? Compares the tensors with its layouts where they lie.
#[inline]
fn matches(k: &Kernel, id: u32, operands: &[Option<&Tensor>], params: &[u8]) -> bool {
    let r = k.request();
    r.id == id
        && r.params == params
        && r.operands.len() == operands.len()
        && r.operands.iter().zip(operands).all(|(l, o)| match o {
            Some(t) => t.has_layout(l),
            None => !l.present(),
        })
}
