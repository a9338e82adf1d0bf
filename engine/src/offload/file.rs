//! What of each unit rests in a file: one file per unit, `[parameters][values][moments][gradient]`, read and written whole
//! through the bounded pool of the store.
//!
//! Reads run ahead and writes behind as the plan orders them; what bounds them is the pool. A write's failure arrives at whoever
//! touches the unit next, or at the next idle moment.

use super::memory::Pieces;
use crate::state::StateKind;
use crossweave_hal::{Buffer, DType, Region};
use crossweave_store::{ALIGN, Block, BlockFile, Failed, Store, Ticket};
use crossweave_tensor::{Error, Result};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// How long a block may take to come free. Disks stall for seconds, not for minutes.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// The key of configs that names the folder.
const KEY: &str = "zero_optimization.offload_optimizer.nvme_path";

/// The store's failure as the engine's.
pub(super) fn failed(e: impl Into<crossweave_store::Error>) -> Error {
    let e: crossweave_store::Error = e.into();
    match e {
        crossweave_store::Error::Hal(e) => e.into(),
        e => Error::Storage(format!("{KEY}: {e}")),
    }
}

fn at_wait(f: Failed) -> Error {
    failed(f.error)
}

/// Where the parts of a unit begin, in its file and in a block alike.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Layout {
    /// 16-bit parameters; none where the values are the parameters.
    param: bool,
    value: u64,
    moment1: u64,
    moment2: u64,
    moments: usize,
    pub grad: u64,
    pub grad_bytes: u64,
    param_bytes: u64,
    pub end: u64,
}

impl Layout {
    pub fn new(numel: u64, compute: DType, grad: DType, moments: usize) -> Layout {
        let page = |b: u64| b.next_multiple_of(ALIGN);
        let param = compute != DType::F32;
        let value = if param { page(compute.bytes(numel)) } else { 0 };
        let moment1 = value + page(4 * numel);
        let moment = |n: usize| if moments > n { page(4 * numel) } else { 0 };
        let moment2 = moment1 + moment(0);
        let at = moment2 + moment(1);
        let grad_bytes = grad.bytes(numel);
        Layout {
            param,
            value,
            moment1,
            moment2,
            moments,
            grad: at,
            grad_bytes,
            param_bytes: compute.bytes(numel),
            end: at + page(grad_bytes),
        }
    }
    /// The layout of parameters that are never updated: nothing but them.
    pub fn of_base(numel: u64, compute: DType) -> Layout {
        let param_bytes = compute.bytes(numel);
        let end = param_bytes.next_multiple_of(ALIGN);
        Layout {
            param: true,
            param_bytes,
            grad: end,
            end,
            ..Layout::default()
        }
    }
    fn of(&self, kind: StateKind) -> u64 {
        match kind {
            StateKind::Value => self.value,
            StateKind::Moment1 => self.moment1,
            _ => self.moment2,
        }
    }
    pub fn pieces(&self, b: &Arc<Buffer>) -> Pieces {
        let at = |n: u64| (b.clone(), n);
        Pieces {
            param: self.param.then(|| at(0)),
            value: at(self.value),
            moment1: (self.moments > 0).then(|| at(self.moment1)),
            moment2: (self.moments > 1).then(|| at(self.moment2)),
            grad: Some(at(self.grad)),
        }
    }
}

/// A unit's file and what of it is on its way.
pub(super) struct Unit {
    pub layout: Layout,
    pub file: Option<BlockFile>,
    reading: Option<Ticket>,
    held: Option<Block>,
}

impl Unit {
    pub fn new(layout: Layout, file: Option<BlockFile>) -> Unit {
        Unit {
            layout,
            file,
            reading: None,
            held: None,
        }
    }
}

/// All files of a rank.
pub(super) struct Files {
    pub store: Arc<Store>,
    pub units: Vec<Unit>,
    /// Writes under way, oldest first.
    writing: VecDeque<(usize, Ticket)>,
    /// The block for the next read.
    reserved: Option<Block>,
}

impl Files {
    pub fn new(store: Arc<Store>, units: Vec<Unit>) -> Files {
        Files {
            store,
            units,
            writing: VecDeque::new(),
            reserved: None,
        }
    }

    /// Waits for the oldest write; whether there was one.
    pub fn reap_one(&mut self) -> Result<bool> {
        match self.writing.pop_front() {
            Some((_, t)) => t.wait().map(|_| true).map_err(at_wait),
            None => Ok(false),
        }
    }
    pub fn finish(&mut self) -> Result<()> {
        while self.reap_one()? {}
        Ok(())
    }
    /// Nothing written to the unit's file is still on its way.
    fn settle(&mut self, u: usize) -> Result<()> {
        while self.writing.iter().any(|(w, _)| *w == u) {
            self.reap_one()?;
        }
        Ok(())
    }
    /// Sets a block aside for the next read, waiting for writes; `false`: none is free, and nothing here will free one.
    pub fn reserve(&mut self) -> Result<bool> {
        loop {
            if self.reserved.is_none() {
                self.reserved = self.store.pool().try_take();
            }
            if self.reserved.is_some() {
                return Ok(true);
            }
            if !self.reap_one()? {
                return Ok(false);
            }
        }
    }
    fn block(&mut self) -> Result<Block> {
        match self.reserved.take() {
            Some(b) => Ok(b),
            None => self.store.pool().take(PATIENCE).map_err(failed),
        }
    }
    fn file(&self, u: usize) -> Result<&BlockFile> {
        match &self.units[u].file {
            Some(f) => Ok(f),
            None => crossweave_tensor::shape_error(format!("unit {u} has no file")),
        }
    }
    fn missing<T>(&self, u: usize) -> Result<T> {
        crossweave_tensor::shape_error(format!("the state of unit {u} is not in memory"))
    }

    /// A gradient goes beside its state.
    pub fn grad(&mut self, u: usize, block: Block) -> Result<()> {
        let l = self.units[u].layout;
        let part = l.grad..l.grad + l.grad_bytes;
        let t = self.store.write_part(self.file(u)?, l.grad, block, part);
        self.writing.push_back((u, t.map_err(failed)?));
        Ok(())
    }
    fn start(&mut self, u: usize, bytes: u64) -> Result<()> {
        self.settle(u)?;
        let block = self.block()?;
        let t = self.store.read(self.file(u)?, 0, block, bytes);
        self.units[u].reading = Some(t.map_err(failed)?);
        Ok(())
    }
    /// Begins to read a unit's state and gradient.
    pub fn state_in(&mut self, u: usize) -> Result<()> {
        self.start(u, self.units[u].layout.end)
    }
    /// Begins to write a unit's parameters and state.
    pub fn state_out(&mut self, u: usize) -> Result<()> {
        let (block, layout) = self.take_held(u)?;
        let t = self.store.write(self.file(u)?, 0, block, layout.grad);
        self.writing.push_back((u, t.map_err(failed)?));
        Ok(())
    }
    /// Reads now.
    pub fn read_all(&mut self, u: usize) -> Result<()> {
        self.state_in(u)?;
        self.arrive(u)
    }
    /// Reads what the device is given.
    pub fn read_params(&mut self, u: usize) -> Result<()> {
        self.start(u, self.units[u].layout.param_bytes)?;
        self.arrive(u)
    }
    fn arrive(&mut self, u: usize) -> Result<()> {
        if let Some(t) = self.units[u].reading.take() {
            self.units[u].held = Some(t.wait().map_err(at_wait)?);
        }
        Ok(())
    }
    /// Whether the state is in memory or on its way there.
    pub fn holds(&self, u: usize) -> bool {
        self.units[u].held.is_some() || self.units[u].reading.is_some()
    }
    pub fn take_held(&mut self, u: usize) -> Result<(Block, Layout)> {
        self.arrive(u)?;
        match self.units[u].held.take() {
            Some(b) => Ok((b, self.units[u].layout)),
            None => self.missing(u),
        }
    }
    pub fn hold(&mut self, u: usize, block: Block) {
        self.units[u].held = Some(block);
    }
    pub fn release(&mut self, u: usize) {
        self.units[u].held = None;
    }
    /// The bytes of one state of a unit that is in memory.
    pub fn bytes(&mut self, u: usize, kind: StateKind, r: Range<usize>) -> Result<&mut [u8]> {
        let at = self.units[u].layout.of(kind) as usize;
        match &mut self.units[u].held {
            Some(b) => Ok(&mut b.write().map_err(failed)?[at + r.start..at + r.end]),
            None => {
                crossweave_tensor::shape_error(format!("the state of unit {u} is not in memory"))
            }
        }
    }
    /// The bytes that the device is given of a unit that is in memory.
    pub fn given(&mut self, u: usize) -> Result<&mut [u8]> {
        match &mut self.units[u].held {
            Some(b) => b.write().map_err(failed),
            None => crossweave_tensor::shape_error(format!("unit {u} is not in memory")),
        }
    }
    /// Copies what the device is given of a unit that is in memory.
    pub fn copy_params(
        &self,
        u: usize,
        copy: impl FnOnce(Region<'_>) -> Result<()>,
        bytes: u64,
    ) -> Result<()> {
        match self.units[u].held.as_ref().and_then(Block::buffer) {
            Some(b) => copy(b.region(0, bytes)),
            None => self.missing(u),
        }
    }
}
