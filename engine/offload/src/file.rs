//! What of each room rests in a file: one file a room, its parts and behind them the gradient, read and written whole through the
//! bounded pool of the store.
//!
//! Reads run ahead and writes behind as the plan orders them; what bounds them is the pool. A write's failure arrives where the room
//! is touched next, or at the next idle moment.

use crate::room::Pieces;
use crossweave_hal::{Buffer, Device, Region};
use crossweave_program::Room;
use crossweave_store::{ALIGN, Block, BlockFile, Failed, Store, Ticket};
use crossweave_tensor::{Error, Result, shape_error};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// How long a block may take to come free. Disks stall for seconds, not for minutes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The key of configs that names the folder.
const KEY: &str = "zero_optimization.offload_optimizer.nvme_path";

/// The store's failure as that of an op.
pub(crate) fn failed(e: impl Into<crossweave_store::Error>) -> Error {
    let e: crossweave_store::Error = e.into();
    match e {
        crossweave_store::Error::Hal(e) => e.into(),
        e => Error::Storage(format!("{KEY}: {e}")),
    }
}

fn at_wait(f: Failed) -> Error {
    failed(f.error)
}

/// Where the parts of a room begin, in its file and in a block alike: each on a page of its own.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    parts: Vec<u64>,
    /// Bytes of what the device is given, which comes first.
    given: u64,
    pub grad: Range<u64>,
    /// Bytes of a file: up to the gradient's end.
    pub end: u64,
    /// Where a gradient arrives in a block: where it rests, or behind the sum to which it is added.
    pub arrives: u64,
    /// Bytes of a block.
    pub block: u64,
}

impl Layout {
    pub fn new(room: &Room) -> Layout {
        let page = |b: u64| b.next_multiple_of(ALIGN);
        let mut at = 0;
        let mut next = |bytes: u64| {
            let first = at;
            at += page(bytes);
            first
        };
        let bytes = |m| room.bytes(m);
        let parts = room.parts.iter().map(|m| next(bytes(*m))).collect();
        let grad = room.reads.map_or(0, |[_, grad]| bytes(grad));
        let first = next(grad);
        let landing = room.sums.as_ref().map_or(0, |s| bytes(s.landing));
        let end = next(landing);
        Layout {
            parts,
            given: room.parts.first().map_or(0, |m| bytes(*m)),
            grad: first..first + grad,
            arrives: if landing > 0 { end } else { first },
            end,
            block: at,
        }
    }
    fn pieces(&self, b: &Arc<Buffer>) -> Pieces {
        let at = |n: &u64| (b.clone(), *n);
        Pieces {
            parts: self.parts.iter().map(at).collect(),
            grad: Some(at(&self.grad.start)),
        }
    }
}

/// A room's file and what of it is on its way.
pub(crate) struct Unit {
    layout: Layout,
    file: Option<BlockFile>,
    reading: Option<Ticket>,
    held: Option<Block>,
}

impl Unit {
    /// A room of this layout; one without parts has no file.
    pub fn new(store: &Store, name: &str, layout: Layout) -> Result<Unit> {
        let file = match layout.parts.is_empty() {
            true => None,
            false => Some(store.file(name, layout.end).map_err(failed)?),
        };
        Ok(Unit {
            layout,
            file,
            reading: None,
            held: None,
        })
    }
}

fn missing<T>(u: usize) -> Result<T> {
    shape_error(format!("the state of room {u} is not in memory"))
}

/// All files of a rank.
pub(crate) struct Files {
    store: Arc<Store>,
    units: Vec<Unit>,
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
    /// Nothing written to the room's file is still on its way.
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
            None => shape_error(format!("room {u} has no file")),
        }
    }

    /// A gradient goes beside its state.
    pub fn grad(&mut self, u: usize, block: Block) -> Result<()> {
        let part = self.units[u].layout.grad.clone();
        let t = self
            .store
            .write_part(self.file(u)?, part.start, block, part);
        self.writing.push_back((u, t.map_err(failed)?));
        Ok(())
    }
    /// A gradient that has arrived in `block` is added to the sum in the room's file by `f`, which is given both; the first of a step
    /// becomes the sum.
    pub fn add(
        &mut self,
        u: usize,
        (mut block, first): (Block, bool),
        host: &Device,
        f: impl FnOnce(&(Arc<Buffer>, u64), &(Arc<Buffer>, u64)) -> Result<()>,
    ) -> Result<()> {
        let layout = &self.units[u].layout;
        let (grad, arrives) = (layout.grad.clone(), layout.arrives);
        if !first {
            self.settle(u)?;
            let file = self.file(u)?;
            let read = self.store.read_part(file, grad.start, block, grad.clone());
            block = read.map_err(failed)?.wait().map_err(at_wait)?;
        }
        let lent = block.lend(host).map_err(failed)?;
        let done = match lent.buffer() {
            Some(b) => f(&(b.clone(), arrives), &(b.clone(), grad.start)),
            None => Ok(()),
        };
        let block = lent.give_back().map_err(failed)?;
        done?;
        self.grad(u, block)
    }
    fn start(&mut self, u: usize, bytes: u64) -> Result<()> {
        self.settle(u)?;
        let block = self.block()?;
        let t = self.store.read(self.file(u)?, 0, block, bytes);
        self.units[u].reading = Some(t.map_err(failed)?);
        Ok(())
    }
    /// Begins to read a room's parts and gradient.
    pub fn state_in(&mut self, u: usize) -> Result<()> {
        self.start(u, self.units[u].layout.end)
    }
    /// Begins to write a room's parts.
    pub fn state_out(&mut self, u: usize) -> Result<()> {
        let block = self.take_held(u)?;
        let bytes = self.units[u].layout.grad.start;
        let t = self.store.write(self.file(u)?, 0, block, bytes);
        self.writing.push_back((u, t.map_err(failed)?));
        Ok(())
    }
    /// Reads now.
    pub fn read_all(&mut self, u: usize) -> Result<()> {
        self.state_in(u)?;
        self.arrive(u)
    }
    /// Reads what the device is given.
    pub fn read_given(&mut self, u: usize) -> Result<()> {
        self.start(u, self.units[u].layout.given)?;
        self.arrive(u)
    }
    fn arrive(&mut self, u: usize) -> Result<()> {
        if let Some(t) = self.units[u].reading.take() {
            self.units[u].held = Some(t.wait().map_err(at_wait)?);
        }
        Ok(())
    }
    /// Whether the room is in memory or on its way there.
    pub fn holds(&self, u: usize) -> bool {
        self.units[u].held.is_some() || self.units[u].reading.is_some()
    }
    /// The block of a room that is in memory, or soon is.
    fn take_held(&mut self, u: usize) -> Result<Block> {
        self.arrive(u)?;
        match self.units[u].held.take() {
            Some(b) => Ok(b),
            None => missing(u),
        }
    }
    /// Lends a room that is in memory to the host's device, and takes it back once the device has finished with what `f` ran.
    pub fn lend(
        &mut self,
        u: usize,
        host: &Device,
        f: impl FnOnce(&Pieces) -> Result<()>,
    ) -> Result<()> {
        let lent = self.take_held(u)?.lend(host).map_err(failed)?;
        let done = match lent.buffer() {
            Some(b) => f(&self.units[u].layout.pieces(b)),
            None => Ok(()),
        };
        self.units[u].held = Some(lent.give_back().map_err(failed)?);
        done
    }
    pub fn release(&mut self, u: usize) {
        self.units[u].held = None;
    }
    /// What was read and has not been written back is not needed: a step has failed.
    pub fn forget(&mut self) -> Result<()> {
        for u in 0..self.units.len() {
            self.arrive(u)?;
            self.release(u);
        }
        Ok(())
    }
    /// The bytes of one part of a room that is in memory.
    pub fn bytes(&mut self, u: usize, part: usize, r: Range<usize>) -> Result<&mut [u8]> {
        let unit = &mut self.units[u];
        let at = unit.layout.parts[part] as usize;
        match &mut unit.held {
            Some(b) => Ok(&mut b.write().map_err(failed)?[at + r.start..at + r.end]),
            None => missing(u),
        }
    }
    /// Copies what the device is given of a room that is in memory.
    pub fn copy_given(
        &self,
        u: usize,
        copy: impl FnOnce(Region<'_>) -> Result<()>,
        bytes: u64,
    ) -> Result<()> {
        match self.units[u].held.as_ref().and_then(Block::buffer) {
            Some(b) => copy(b.region(0, bytes)),
            None => missing(u),
        }
    }
}
