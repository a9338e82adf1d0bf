//! Launching ops on tensors: allocation from the pool, kernels found by position, parameters as the op table has them.
//!
//! A block runs the same ops in the same order every step, so a kernel is found by comparing the request with the one seen at
//! this position last time: no hashing, no allocation in the steady state.

use crate::error::Result;
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
}

impl KernelCache {
    /// Starts over: the next launch is the first of the block again.
    pub fn rewind(&mut self) {
        self.at = 0;
    }
}

/// A device, the stream to compute on, and the decompositions.
pub struct Run<'a> {
    stream: &'a Stream,
    decompose: &'a dyn Decompose,
    cache: &'a RefCell<KernelCache>,
}

const MAX_STACK: usize = 16;

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
        }
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
        if operands.len() > MAX_STACK {
            let layouts: Vec<Layout> = operands
                .iter()
                .map(|o| o.map_or(Layout::ABSENT, Tensor::layout))
                .collect();
            let regions: Vec<_> = operands.iter().map(|o| o.map(Tensor::region)).collect();
            let kernel = self.find(id, &layouts, params)?;
            return Ok(self.stream.launch(&kernel, &regions, dynamic)?);
        }
        let mut layouts = [Layout::ABSENT; MAX_STACK];
        let mut regions = [None; MAX_STACK];
        for (i, o) in operands.iter().enumerate() {
            if let Some(t) = o {
                layouts[i] = t.layout();
                regions[i] = Some(t.region());
            }
        }
        let n = operands.len();
        let kernel = self.find(id, &layouts[..n], params)?;
        Ok(self.stream.launch(&kernel, &regions[..n], dynamic)?)
    }

    fn find(&self, id: u32, layouts: &[Layout], params: &[u8]) -> Result<Kernel> {
        let mut c = self.cache.borrow_mut();
        let at = c.at;
        c.at += 1;
        if let Some(k) = c.seen.get(at) {
            let r = k.request();
            if r.id == id && r.operands == layouts && r.params == params {
                return Ok(k.clone());
            }
        }
        let kernel = self
            .device()
            .prepare(&OpRequest::new(id, layouts, params), self.decompose)?;
        if at < c.seen.len() {
            c.seen[at] = kernel.clone();
        } else {
            c.seen.push(kernel.clone());
        }
        Ok(kernel)
    }
}
