//! Memory with an owner: device buffers that order streams by themselves, and pinned host buffers that know when the host may look.

use crate::device::{Device, Raw};
use crate::error::{Code, Error, Result};
use crate::ledger::Tag;
use crate::listing::ListedOperand;
use crate::pool::Block;
use crate::track::Track;
use crossweave_abi as abi;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard};

/// Where a buffer's bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// Memory of its own.
    State,
    /// A block of the caching pool.
    Pool(Block),
    /// Pinned host memory.
    Host,
    /// Pinned host memory of another buffer, for as long as it is lent; whether the handle is an import of its own.
    Lent { import: bool },
}

/// Device memory. Dropping it while work is queued is sound: pooled blocks keep their track, own memory is freed after its last use.
pub struct Buffer {
    device: Device,
    mem: Raw,
    offset: u64,
    bytes: u64,
    tag: Tag,
    home: Backing,
    /// Which of the device's buffers it is, in the order in which they were made.
    serial: u64,
    track: Mutex<Track>,
    /// What a lent buffer's bytes belong to.
    owner: Option<Box<HostBuffer>>,
}

impl Buffer {
    pub(crate) fn new(
        device: Device,
        mem: Raw,
        offset: u64,
        bytes: u64,
        tag: Tag,
        home: Backing,
        mut track: Track,
    ) -> Buffer {
        track.hand_over();
        match home {
            Backing::State | Backing::Pool(_) => device.0.memory.alloc(tag, bytes),
            Backing::Host => device.0.memory.alloc_host(tag, bytes),
            Backing::Lent { .. } => {}
        }
        let serial = device.0.account.made.fetch_add(1, Relaxed);
        Buffer {
            device,
            serial,
            mem,
            offset,
            bytes,
            tag,
            home,
            track: Mutex::new(track),
            owner: None,
        }
    }
    /// Pinned memory as a buffer of `device`; `import`: the handle it has there, where that is another device's.
    pub(crate) fn lent(device: Device, import: Option<Raw>, owner: HostBuffer) -> Buffer {
        let (of, bytes) = (&owner.buffer, owner.buffer.bytes);
        let (mem, home) = match import {
            Some(mem) => (mem, Backing::Lent { import: true }),
            None => (of.mem, Backing::Lent { import: false }),
        };
        let mut lent = Buffer::new(device, mem, 0, bytes, of.tag, home, Track::default());
        lent.serial = 1 << 63 | of.serial;
        lent.owner = Some(Box::new(owner));
        lent
    }
    /// Gives lent memory back to its owner, once the device it was lent to has finished with it.
    ///
    /// # Errors
    /// A failed stream, or a buffer that was not lent. The memory is then freed.
    pub fn take_back(mut self) -> Result<HostBuffer> {
        self.host_wait(true)?;
        self.owner.take().map(|b| *b).ok_or_else(|| {
            Error::new(
                Code::Invalid,
                "take_back",
                "this buffer was not lent by anybody",
            )
        })
    }
    /// Whether these bytes are pinned host memory.
    pub fn is_host(&self) -> bool {
        matches!(self.home, Backing::Host | Backing::Lent { .. })
    }
    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// What it is for.
    pub fn tag(&self) -> Tag {
        self.tag
    }
    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }
    /// As a listing of calls has it; `at` counts from the start of the memory that the buffer is a part of.
    pub(crate) fn listed(&self, at: u64, bytes: u64, writes: bool) -> ListedOperand {
        ListedOperand {
            buffer: self.serial,
            host: self.is_host(),
            tag: self.tag,
            size: self.bytes,
            offset: at - self.offset,
            bytes,
            writes,
        }
    }
    pub(crate) fn track(&self) -> MutexGuard<'_, Track> {
        self.track.lock().unwrap_or_else(|e| e.into_inner())
    }
    /// The span of a region, bounds checked.
    #[inline]
    pub(crate) fn span(&self, offset: u64, bytes: u64) -> Result<abi::Span> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(abi::Span {
                mem: self.mem.0,
                offset: self.offset + offset,
                bytes,
            }),
            _ => Err(Error::new(
                Code::Invalid,
                "span",
                format!(
                    "bytes {offset}..{} of a buffer of {} ({})",
                    offset.saturating_add(bytes),
                    self.bytes,
                    self.tag.name()
                ),
            )),
        }
    }
    /// The whole buffer as an operand.
    pub fn all(&self) -> Region<'_> {
        Region {
            buffer: self,
            offset: 0,
            bytes: self.bytes,
        }
    }
    /// A part of it.
    pub fn region(&self, offset: u64, bytes: u64) -> Region<'_> {
        Region {
            buffer: self,
            offset,
            bytes,
        }
    }
    /// Waits until the device has finished with these bytes (`writes`: also its reads).
    pub fn host_wait(&self, writes: bool) -> Result<()> {
        let uses: Vec<_> = {
            let t = self.track();
            if writes {
                t.uses().collect()
            } else {
                t.last_write().into_iter().collect()
            }
        };
        for u in uses {
            let core = self
                .device
                .0
                .streams
                .read()
                .unwrap_or_else(|e| e.into_inner())
                .get(u.stream as usize)
                .cloned();
            if let Some(core) = core {
                core.wait_passed(u.seq)?;
            }
        }
        Ok(())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let ledger = &self.device.0.memory;
        match self.home {
            Backing::Pool(b) => {
                ledger.free(self.tag, self.bytes);
                let track = std::mem::take(&mut *self.track());
                self.device.give_back(b, track);
            }
            Backing::State => {
                ledger.free(self.tag, self.bytes);
                // Own memory goes back to the plugin, which must not happen under queued work. A failed stream runs nothing more.
                let _ = self.host_wait(true);
                self.device.raw_free(self.mem, self.bytes);
            }
            Backing::Host => {
                ledger.free_host(self.tag, self.bytes);
                let _ = self.host_wait(true);
                self.device.raw_free(self.mem, 0);
            }
            Backing::Lent { import } => {
                let _ = self.host_wait(true);
                if import {
                    self.device.forget_import(self.mem);
                }
            }
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes, {})", self.bytes, self.tag.name())
    }
}

/// A part of a buffer, as an operand.
#[derive(Clone, Copy)]
pub struct Region<'a> {
    /// The buffer.
    pub buffer: &'a Buffer,
    /// Bytes from its start.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl Region<'_> {
    /// Where it begins in the memory that its buffer is a part of, which is aligned.
    pub(crate) fn begin(&self) -> u64 {
        self.buffer.offset + self.offset
    }
}

/// Pinned host memory. The host looks only through [`HostBuffer::read`] and [`HostBuffer::write`], which wait for the device first.
pub struct HostBuffer {
    buffer: Buffer,
    ptr: *mut u8,
}
// SAFETY: the pointer belongs to `buffer`; access goes through `&self`/`&mut self` methods below.
unsafe impl Send for HostBuffer {}
// SAFETY: both accessors want `&mut`; a shared reference only names the memory.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// From here on the memory is somebody else's: what waits for its uses so far waits for the memory, not for what is in it.
    pub fn hand_over(&self) {
        self.buffer.track().hand_over();
    }
    pub(crate) fn new(buffer: Buffer, ptr: *mut u8) -> HostBuffer {
        HostBuffer { buffer, ptr }
    }
    /// The memory as an operand of copies.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }
    pub(crate) fn address(&self) -> *mut u8 {
        self.ptr
    }
    /// Waits for the device's writes, then gives the bytes. `&mut`, so that no transfer into them can be queued while they are borrowed.
    pub fn read(&mut self) -> Result<&[u8]> {
        self.buffer.host_wait(false)?;
        // SAFETY: mapped for `bytes`, initialised by the plugin (pinned memory is zeroed), and no write is in flight.
        Ok(unsafe { std::slice::from_raw_parts(self.ptr, self.buffer.bytes as usize) })
    }
    /// Waits for the device's reads and writes, then gives the bytes.
    pub fn write(&mut self) -> Result<&mut [u8]> {
        self.buffer.host_wait(true)?;
        // SAFETY: as in `read`; `&mut self` keeps others away.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.ptr, self.buffer.bytes as usize) })
    }
}
