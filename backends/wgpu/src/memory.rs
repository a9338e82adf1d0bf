//! Memory: device memory is a wgpu buffer, page-locked memory is the host's, and copies between them are staged.

use crate::device::Shared;
use crossweave_plugin::{Code, Error, MemKind, Result, Span, fail, unsupported};
use crossweave_words::Size;
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use wgpu::BufferUsages;

/// A buffer of the device with a number no other ever has.
pub(crate) struct Block {
    pub buffer: wgpu::Buffer,
    /// At least [`FIRST_ID`], so that no offset is mistaken for it in a key.
    pub id: u64,
    /// Bytes of the buffer, at least what was asked for.
    pub bytes: u64,
    counted: u64,
    device: Arc<Shared>,
}

/// Beyond any offset or size.
pub(crate) const FIRST_ID: u64 = 1 << 60;

impl Drop for Block {
    fn drop(&mut self) {
        // Bind groups keep their buffers alive.
        self.device.forget(self.id);
        self.device.counts.bytes.fetch_sub(self.counted, Relaxed);
    }
}

impl Block {
    /// Storage that kernels and copies may use.
    pub fn new(device: &Arc<Shared>, bytes: u64) -> Result<Block> {
        Block::with(
            device,
            bytes,
            BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST,
        )
    }

    /// A buffer of given usages.
    pub fn with(device: &Arc<Shared>, bytes: u64, usage: BufferUsages) -> Result<Block> {
        let oom = |why: &str| {
            let given = device.counts.bytes.load(Relaxed);
            let text = format!(
                "mem_alloc: {}: {why} ({} are given out); free memory or ask for less",
                Size(bytes),
                Size(given)
            );
            Error::new(Code::Oom, text).retryable()
        };
        let size = bytes
            .max(16)
            .checked_next_multiple_of(16)
            .filter(|s| *s <= device.limits.max_buffer_size)
            .ok_or_else(|| {
                oom(&format!(
                    "a buffer of this adapter has at most {}",
                    Size(device.limits.max_buffer_size)
                ))
            })?;
        let counted = if usage.contains(BufferUsages::STORAGE) {
            size
        } else {
            0
        };
        let room = |b: u64| match device.mem_total {
            0 => b.checked_add(counted),
            total => b.checked_add(counted).filter(|b| *b <= total),
        };
        device
            .counts
            .bytes
            .fetch_update(Relaxed, Relaxed, room)
            .map_err(|_| oom(&format!("wgpu.mem_total is {}", Size(device.mem_total))))?;
        let made = device.buffer(&format_args!("mem_alloc: {}", Size(bytes)), size, usage);
        let buffer = made.inspect_err(|_| {
            device.counts.bytes.fetch_sub(counted, Relaxed);
        })?;
        Ok(Block {
            buffer,
            id: FIRST_ID + device.counts.ids.fetch_add(1, Relaxed),
            bytes: size,
            counted,
            device: device.clone(),
        })
    }
}

/// Host memory that an adapter's copies are staged through.
pub(crate) struct HostBlock {
    pub ptr: NonNull<u8>,
    layout: Layout,
}
// SAFETY: the pages are owned; who touches them when is ordered by streams (the host's duty).
unsafe impl Send for HostBlock {}
// SAFETY: as above.
unsafe impl Sync for HostBlock {}

impl Drop for HostBlock {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, freed once.
        unsafe { std::alloc::dealloc(self.ptr.as_ptr(), self.layout) }
    }
}

/// Where the bytes are.
#[derive(Clone)]
pub(crate) enum Place {
    Device(Arc<Block>),
    Host(Arc<HostBlock>),
}

/// An allocation.
pub struct Mem {
    pub(crate) place: Place,
    pub(crate) bytes: u64,
}

impl Mem {
    pub(crate) fn alloc(
        device: &Arc<Shared>,
        kind: MemKind,
        bytes: u64,
        align: u64,
    ) -> Result<Mem> {
        device.check()?;
        if align > 1 && !align.is_power_of_two() {
            return fail(
                Code::Invalid,
                format!("mem_alloc: alignment {align} is not a power of two"),
            );
        }
        let place = match kind {
            MemKind::Device | MemKind::Symmetric => {
                Place::Device(Arc::new(Block::new(device, bytes)?))
            }
            MemKind::HostPinned => {
                let oom = || {
                    Error::new(
                        Code::Oom,
                        format!("mem_alloc: {} of host memory", Size(bytes)),
                    )
                    .retryable()
                };
                let layout = usize::try_from(bytes.max(1))
                    .ok()
                    .and_then(|n| Layout::from_size_align(n, align.max(64) as usize).ok())
                    .ok_or_else(oom)?;
                // SAFETY: the size is at least one. Zeroed, because a copy may read what nobody wrote.
                let ptr = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) });
                Place::Host(Arc::new(HostBlock {
                    ptr: ptr.ok_or_else(oom)?,
                    layout,
                }))
            }
        };
        Ok(Mem { place, bytes })
    }

    pub(crate) fn map(&self) -> Result<*mut u8> {
        match &self.place {
            Place::Host(h) => Ok(h.ptr.as_ptr()),
            Place::Device(_) => unsupported(
                "mem_map of device memory: only pinned memory is host-visible, copy through a stream",
            ),
        }
    }
}

/// An operand as the queue keeps it: alive until the stream has passed it.
#[derive(Clone)]
pub(crate) struct Region {
    pub place: Place,
    pub offset: u64,
}

impl Region {
    /// The region of a span, checked against its memory.
    pub fn of(span: &Span<'_, Mem>, what: &str) -> Result<Region> {
        inside(span, &what)?;
        Ok(Region::unchecked(span))
    }

    /// The region of a span that was checked before.
    pub fn unchecked(span: &Span<'_, Mem>) -> Region {
        Region {
            place: span.mem.place.clone(),
            offset: span.offset,
        }
    }
}

/// Refuses a span that does not lie inside its memory.
pub(crate) fn inside(span: &Span<'_, Mem>, what: &dyn std::fmt::Display) -> Result<()> {
    let end = span.offset.checked_add(span.bytes);
    if end.is_none_or(|end| end > span.mem.bytes) {
        let (at, n, of) = (span.offset, span.bytes, span.mem.bytes);
        return fail(
            Code::Invalid,
            format!("{what}: bytes {at}+{n} of memory of {of}"),
        );
    }
    Ok(())
}
