//! The bounded pool of page-aligned blocks of pinned memory: all memory the store ever has, taken when it is opened.

use crate::{ALIGN, Error, Result, lock};
use crossweave_hal::{Buffer, Device, HostBuffer, Tag};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

struct Free {
    blocks: Vec<(u32, HostBuffer)>,
    /// Blocks that will never come back: lent, and never given back whole.
    lost: usize,
}

pub(crate) struct Inner {
    free: Mutex<Free>,
    came: Condvar,
    count: usize,
    bytes: u64,
}

impl Inner {
    fn put(&self, index: u32, memory: HostBuffer) {
        lock(&self.free).blocks.push((index, memory));
        self.came.notify_one();
    }
    fn lose(&self) {
        lock(&self.free).lost += 1;
        self.came.notify_all();
    }
}

/// The pool. Clone shares it.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

impl Pool {
    /// `count` blocks of `bytes`, rounded up to [`ALIGN`], of `device`'s pinned memory.
    pub fn new(device: &Device, count: usize, bytes: u64, tag: Tag) -> Result<Pool> {
        let bytes = bytes.max(1).next_multiple_of(ALIGN);
        let blocks = (0..count)
            .map(|i| Ok((i as u32, device.alloc_host(bytes, tag)?)))
            .collect::<Result<Vec<_>>>()?;
        Ok(Pool(Arc::new(Inner {
            free: Mutex::new(Free { blocks, lost: 0 }),
            came: Condvar::new(),
            count,
            bytes,
        })))
    }
    /// Bytes of one block.
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }
    /// Blocks in all.
    pub fn count(&self) -> usize {
        self.0.count
    }
    /// A block if one is free.
    pub fn try_take(&self) -> Option<Block> {
        let (index, memory) = lock(&self.0.free).blocks.pop()?;
        Some(self.block(index, memory))
    }
    /// A block, as soon as one is free.
    ///
    /// # Errors
    /// [`Error::Exhausted`] when none comes free in `limit`, or none is left to come.
    pub fn take(&self, limit: Duration) -> Result<Block> {
        let until = Instant::now() + limit;
        let mut free = lock(&self.0.free);
        loop {
            if let Some((index, memory)) = free.blocks.pop() {
                return Ok(self.block(index, memory));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || free.lost == self.0.count {
                return Err(Error::Exhausted {
                    bytes: self.0.bytes,
                    count: self.0.count,
                    seconds: limit.as_secs(),
                });
            }
            let woken = self.0.came.wait_timeout(free, left);
            free = woken.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }
    fn block(&self, index: u32, memory: HostBuffer) -> Block {
        memory.hand_over();
        Block {
            memory: Some(memory),
            index,
            pool: self.0.clone(),
        }
    }
}

/// A block of pinned memory; dropping it puts it back into its pool.
pub struct Block {
    memory: Option<HostBuffer>,
    index: u32,
    pool: Arc<Inner>,
}

impl Block {
    /// Its place in the pool.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }
    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.pool.bytes
    }
    /// The memory, as an operand of copies; `None` never happens outside of `drop`.
    pub fn buffer(&self) -> Option<&Buffer> {
        self.memory.as_ref().map(HostBuffer::buffer)
    }
    fn memory(&mut self) -> Result<&mut HostBuffer> {
        self.memory
            .as_mut()
            .ok_or_else(|| Error::Closed("the block is empty".into()))
    }
    /// Waits for the device's writes, then gives the bytes.
    pub fn read(&mut self) -> Result<&[u8]> {
        Ok(self.memory()?.read()?)
    }
    /// Waits for the device's reads and writes, then gives the bytes.
    pub fn write(&mut self) -> Result<&mut [u8]> {
        Ok(self.memory()?.write()?)
    }
    /// Lends the block to a device, whose kernels then run on it in place.
    pub fn lend(mut self, device: &Device) -> Result<Lent> {
        let Some(memory) = self.memory.take() else {
            return Err(Error::Closed("the block is empty".into()));
        };
        match device.borrow_host(memory) {
            Ok(buffer) => Ok(Lent {
                buffer: Some(Arc::new(buffer)),
                index: self.index,
                pool: self.pool.clone(),
            }),
            Err(e) => {
                self.pool.lose();
                Err(e.into())
            }
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.pool.put(self.index, memory);
        }
    }
}

/// A block while a device has it.
pub struct Lent {
    buffer: Option<Arc<Buffer>>,
    index: u32,
    pool: Arc<Inner>,
}

impl Lent {
    /// The memory as the device's; a caller that clones the handle drops it before the block is given back.
    pub fn buffer(&self) -> Option<&Arc<Buffer>> {
        self.buffer.as_ref()
    }
    fn take(&mut self) -> Result<HostBuffer> {
        let buffer = self.buffer.take().and_then(Arc::into_inner);
        match buffer {
            Some(b) => Ok(b.take_back()?),
            None => Err(Error::Closed("a lent block is still held elsewhere".into())),
        }
    }
    /// Waits for the device and gives the block back.
    pub fn give_back(mut self) -> Result<Block> {
        let taken = self.take();
        if taken.is_err() {
            self.pool.lose();
        }
        Ok(Block {
            memory: Some(taken?),
            index: self.index,
            pool: self.pool.clone(),
        })
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.buffer.is_some() {
            match self.take() {
                Ok(memory) => self.pool.put(self.index, memory),
                Err(_) => self.pool.lose(),
            }
        }
    }
}
