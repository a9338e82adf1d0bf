//! Memory of a device, page-locked memory of the host, memory that collectives can reach directly, and what is taken in from outside.

use crate::device::Dev;
use crate::runtime::*;
use crossweave_abi as abi;
use crossweave_plugin::{Code, Error, MemKind, Result, Span, fail, unsupported};
use crossweave_words::Size;
use std::ffi::c_void;
use std::sync::Arc;

/// Native types of GPUs beside the header's `CW_NATIVE_HOST_POINTER`, in the half of the numbers that vendors use.
pub mod native {
    /// `value[0]` is an address of this process on the device; it outlives the import.
    pub const DEVICE_POINTER: u32 = 0x8000_0001;
    /// `value[0]` is a file descriptor of a physical allocation, whose `bytes` are whole granules.
    pub const POSIX_FD: u32 = 0x8000_0002;
}

/// How it is given back.
enum Owner {
    /// Freed on the device.
    Device(Address),
    /// Page-locked by us: freed.
    Host(*mut c_void),
    /// Somebody else's, page-locked by us: let go.
    Registered(*mut c_void),
    /// Physical memory mapped at an address of ours: address and bytes of the range.
    Mapped(Address, usize),
    /// By the code that made it.
    Library(Box<dyn FnOnce() + Send + Sync>),
    /// Somebody else's.
    Nobody,
}

/// A piece of memory.
pub struct Mem {
    pub(crate) dev: Arc<Dev>,
    /// Where kernels and copies see it.
    pub(crate) at: Address,
    pub(crate) bytes: u64,
    pub(crate) kind: MemKind,
    /// Where the host sees it, or NULL.
    host: *mut u8,
    owner: Owner,
}
// SAFETY: the memory is owned; who reads and writes it is ordered by streams. This type never touches it.
unsafe impl Send for Mem {}
// SAFETY: as above.
unsafe impl Sync for Mem {}

/// Address of a span.
pub(crate) fn at(s: &Span<'_, Mem>) -> Address {
    s.mem.at + s.offset
}

/// The host checks that spans lie inside their memory; the device would not survive one that does not.
pub(crate) fn inside(what: &str, s: &Span<'_, Mem>) -> Result<()> {
    match s.offset.checked_add(s.bytes) {
        Some(end) if end <= s.mem.bytes => Ok(()),
        _ => fail(
            Code::Invalid,
            format!(
                "{what}: {} bytes from {} of memory of {} bytes",
                s.bytes, s.offset, s.mem.bytes
            ),
        ),
    }
}

pub(crate) fn power(align: u64) -> Result<()> {
    match align == 0 || align.is_power_of_two() {
        true => Ok(()),
        false => fail(
            Code::Invalid,
            format!("alignment {align} is not a power of two"),
        ),
    }
}

fn size(bytes: u64) -> Result<usize> {
    usize::try_from(bytes.max(1))
        .ok()
        .filter(|b| *b <= isize::MAX as usize)
        .ok_or_else(|| {
            Error::new(
                Code::Oom,
                format!("{bytes} bytes are more than addresses can say"),
            )
            .retryable()
        })
}

impl Mem {
    pub(crate) fn device(dev: &Arc<Dev>, kind: MemKind, bytes: u64, align: u64) -> Result<Mem> {
        power(align)?;
        let n = size(bytes)?;
        let take = |n: usize| {
            let _in = dev.enter()?;
            let mut p = 0;
            // SAFETY: the device is current.
            dev.check(unsafe { dev.rt().alloc(&mut p, n) })
                .map_err(|e| within(e, dev, bytes))?;
            Ok::<_, Error>(p)
        };
        let mut base = take(n)?;
        if align > 0 && !base.is_multiple_of(align) {
            // Rare: the driver aligns to 256 bytes and more.
            release_device(dev, base);
            base = take(size(bytes.max(1).saturating_add(align))?)?;
        }
        Ok(Mem {
            dev: dev.clone(),
            at: base.next_multiple_of(align.max(1)),
            bytes,
            kind,
            host: std::ptr::null_mut(),
            owner: Owner::Device(base),
        })
    }

    /// Page-locked, for all devices of the process.
    pub(crate) fn pinned(dev: &Arc<Dev>, bytes: u64, align: u64) -> Result<Mem> {
        power(align)?;
        let take = |n: usize| {
            let _in = dev.enter()?;
            let mut p = std::ptr::null_mut();
            let flags = HOST_PORTABLE | HOST_DEVICE_MAP;
            // SAFETY: the device is current.
            dev.check(unsafe { dev.rt().host_alloc(&mut p, n, flags) })?;
            Ok::<_, Error>(p)
        };
        let mut base = take(size(bytes)?)?;
        if align > 0 && !(base as u64).is_multiple_of(align) {
            release_host(dev, base);
            base = take(size(bytes.max(1).saturating_add(align))?)?;
        }
        let host = (base as u64).next_multiple_of(align.max(1)) as *mut u8;
        // Owned from here on: a failure below gives it back.
        let mut mem = Mem {
            dev: dev.clone(),
            at: host as u64,
            bytes,
            kind: MemKind::HostPinned,
            host,
            owner: Owner::Host(base),
        };
        mem.at = seen_by_device(dev, host.cast())?;
        Ok(mem)
    }

    /// What a library allocated, with how to give it back.
    pub(crate) fn of_library(
        dev: &Arc<Dev>,
        at: Address,
        bytes: u64,
        release: Box<dyn FnOnce() + Send + Sync>,
    ) -> Mem {
        Mem {
            dev: dev.clone(),
            at,
            bytes,
            kind: MemKind::Symmetric,
            host: std::ptr::null_mut(),
            owner: Owner::Library(release),
        }
    }

    /// Was it made by the library of collectives, so that this can take it as it is?
    pub(crate) fn of_collectives(&self) -> bool {
        matches!(self.owner, Owner::Library(_))
    }

    /// May kernels of `dev` touch it? A device that touches memory of another it has no access to is lost.
    pub(crate) fn reached_by(&self, dev: &Dev) -> Result<()> {
        match self.kind == MemKind::HostPinned
            || self.dev.place.ordinal == dev.place.ordinal
            || dev.has_access(&self.dev)
        {
            true => Ok(()),
            false => fail(
                Code::Invalid,
                format!(
                    "memory of device {}, which device {} has not been given access to (peer_access)",
                    self.dev.index, dev.index
                ),
            ),
        }
    }

    /// Where the host sees it.
    ///
    /// # Errors
    /// `Unsupported`: memory of the device.
    pub fn map(&self) -> Result<*mut u8> {
        match self.host.is_null() {
            false => Ok(self.host),
            true => {
                unsupported("memory of the device has no host address; copy it to pinned memory")
            }
        }
    }

    /// Memory that is there already, by its native type.
    ///
    /// # Errors
    /// `Unsupported`: another type. `Invalid`: what is none. What the driver says.
    pub fn import(dev: &Arc<Dev>, n: &abi::Native) -> Result<Mem> {
        match n.type_ {
            abi::NATIVE_HOST_POINTER => Mem::register(dev, n.value[0] as *mut c_void, n.bytes),
            native::DEVICE_POINTER if n.value[0] == 0 => {
                fail(Code::Invalid, "mem_import: the device pointer is NULL")
            }
            native::DEVICE_POINTER => Ok(Mem {
                dev: dev.clone(),
                at: n.value[0],
                bytes: n.bytes,
                kind: MemKind::Device,
                host: std::ptr::null_mut(),
                owner: Owner::Nobody,
            }),
            native::POSIX_FD => Mem::from_fd(dev, n.value[0], n.bytes),
            t => unsupported(format!("mem_import: native type {t:#x}")),
        }
    }

    /// Page-locks memory of the host that lies there already.
    fn register(dev: &Arc<Dev>, p: *mut c_void, bytes: u64) -> Result<Mem> {
        if p.is_null() || bytes == 0 {
            return fail(Code::Invalid, format!("mem_import: {bytes} bytes at {p:p}"));
        }
        let n = size(bytes)?;
        let entered = dev.enter()?;
        // SAFETY: the caller says that so many bytes lie there and outlive the import.
        let o = unsafe {
            dev.rt()
                .host_register(p, n, HOST_PORTABLE | HOST_DEVICE_MAP)
        };
        let owner = match o.status {
            SUCCESS => Owner::Registered(p),
            // Pinned by an earlier import or by its maker: usable as it is, and theirs to release.
            ALREADY_REGISTERED => Owner::Nobody,
            _ => return Err(dev.failed(o)),
        };
        drop(entered);
        let mut mem = Mem {
            dev: dev.clone(),
            at: p as u64,
            bytes,
            kind: MemKind::HostPinned,
            host: p.cast(),
            owner,
        };
        mem.at = seen_by_device(dev, p)?;
        Ok(mem)
    }

    /// Maps physical memory that another allocation, perhaps of another process, gave a descriptor of.
    fn from_fd(dev: &Arc<Dev>, fd: u64, bytes: u64) -> Result<Mem> {
        let n = size(bytes)?;
        let granule = granularity(dev)?;
        if bytes == 0 || !n.is_multiple_of(granule) {
            return fail(
                Code::Invalid,
                format!(
                    "mem_import: {bytes} bytes of a descriptor are not whole granules of {granule}"
                ),
            );
        }
        let _in = dev.enter()?;
        let mut handle = 0;
        // SAFETY: the driver takes a duplicate of the descriptor.
        dev.check(unsafe { dev.rt().shared(&mut handle, fd as i32) })?;
        Mem::mapped(dev, handle, n, bytes)
    }

    /// New physical memory that can be exported as a descriptor.
    pub(crate) fn shareable(dev: &Arc<Dev>, kind: MemKind, bytes: u64) -> Result<Mem> {
        if !dev.facts.posix_fd {
            return unsupported("this device has no memory that can be exported");
        }
        let n = size(bytes)?.next_multiple_of(granularity(dev)?);
        let _in = dev.enter()?;
        let mut handle = 0;
        // SAFETY: the property record lives for the call.
        dev.check(unsafe { dev.rt().physical(&mut handle, n, &prop(dev)) })
            .map_err(|e| within(e, dev, bytes))?;
        let mut mem = Mem::mapped(dev, handle, n, bytes)?;
        mem.kind = kind;
        Ok(mem)
    }

    /// Maps a physical allocation, which the mapping then keeps alive. Takes the handle, also on failure.
    fn mapped(dev: &Arc<Dev>, handle: u64, n: usize, bytes: u64) -> Result<Mem> {
        let rt = dev.rt();
        let mut va = 0;
        // SAFETY: each step's result is the next one's argument; what was done is undone on failure.
        unsafe {
            let mut o = rt.reserve(&mut va, n);
            if o.done() {
                o = rt.map(va, n, handle);
                if o.done() {
                    let who = AccessDesc {
                        location: Location {
                            kind: LOCATION_DEVICE,
                            id: dev.place.ordinal,
                        },
                        flags: ACCESS_READ_WRITE,
                    };
                    o = rt.access(va, n, &who);
                    if !o.done() {
                        let _ = rt.unmap(va, n);
                    }
                }
                if !o.done() {
                    let _ = rt.unreserve(va, n);
                }
            }
            // The mapping keeps the memory.
            let _ = rt.physical_release(handle);
            dev.check(o)?;
        }
        Ok(Mem {
            dev: dev.clone(),
            at: va,
            bytes,
            kind: MemKind::Device,
            host: std::ptr::null_mut(),
            owner: Owner::Mapped(va, n),
        })
    }

    /// What it is to the vendor.
    ///
    /// # Errors
    /// `Unsupported`: it is nothing of that type.
    pub fn export(&self, native_type: u32) -> Result<abi::Native> {
        let answer = |value: u64, bytes: u64| abi::Native {
            size: size_of::<abi::Native>() as u32,
            type_: native_type,
            value: [value, 0, 0, 0],
            bytes,
        };
        match native_type {
            abi::NATIVE_HOST_POINTER => Ok(answer(self.map()? as usize as u64, self.bytes)),
            native::DEVICE_POINTER => Ok(answer(self.at, self.bytes)),
            native::POSIX_FD => {
                let (fd, bytes) = self.descriptor()?;
                Ok(answer(fd, bytes))
            }
            t => unsupported(format!("mem_export: native type {t:#x}")),
        }
    }

    /// A descriptor of the physical memory, and its bytes.
    fn descriptor(&self) -> Result<(u64, u64)> {
        let (va, n) = match self.owner {
            Owner::Mapped(va, n) => (va, n),
            // A library's symmetric memory is mapped too; from its start.
            Owner::Library(_) => (
                self.at,
                size(self.bytes)?.next_multiple_of(granularity(&self.dev)?),
            ),
            _ => {
                return unsupported(format!(
                    "mem_export: only symmetric memory of one MiB and more has a descriptor, where the library of collectives made it or {}.exportable is on",
                    self.dev.api.settings.vendor().name
                ));
            }
        };
        let rt = self.dev.rt();
        let _in = self.dev.enter()?;
        let (mut handle, mut fd) = (0, -1i32);
        // SAFETY: `va` is the start of a mapping; the descriptor is an int; the handle is given back.
        unsafe {
            self.dev
                .check(rt.physical_of(&mut handle, va as usize as *mut c_void))?;
            let o = rt.share(&mut fd, handle);
            let _ = rt.physical_release(handle);
            self.dev.check(o)?;
        }
        Ok((fd as u64, n as u64))
    }
}

/// Smallest unit of physical memory.
fn granularity(dev: &Dev) -> Result<usize> {
    let _in = dev.enter()?;
    let mut n = 0;
    // SAFETY: a plain question.
    dev.check(unsafe { dev.rt().granularity(&mut n, &prop(dev)) })?;
    Ok(n.max(1))
}

fn prop(dev: &Dev) -> AllocationProp {
    AllocationProp {
        kind: ALLOCATION_PINNED,
        handle_types: HANDLE_POSIX_FD,
        location: Location {
            kind: LOCATION_DEVICE,
            id: dev.place.ordinal,
        },
        win32: std::ptr::null_mut(),
        compression: 0,
        rdma: 0,
        usage: 0,
        reserved: [0; 4],
    }
}

/// The device's address of host memory it can reach.
fn seen_by_device(dev: &Dev, p: *mut c_void) -> Result<Address> {
    let _in = dev.enter()?;
    let mut at = 0;
    // SAFETY: `p` is page-locked.
    dev.check(unsafe { dev.rt().host_seen(&mut at, p) })?;
    Ok(at)
}

/// How much there was when it was not enough.
fn within(e: Error, dev: &Dev, bytes: u64) -> Error {
    if e.code != Code::Oom {
        return e;
    }
    let free = dev.memory().map_or(String::new(), |(free, total)| {
        format!(" ({} of {} free)", Size(free), Size(total))
    });
    let message = format!(
        "{} on device {}{free}: {}",
        Size(bytes),
        dev.index,
        e.message
    );
    Error { message, ..e }
}

fn release_device(dev: &Dev, base: Address) {
    if let Ok(_in) = dev.enter_anyway() {
        // SAFETY: allocated by us, freed once.
        let _ = unsafe { dev.rt().free(base) };
    }
}

fn release_host(dev: &Dev, base: *mut c_void) {
    if let Ok(_in) = dev.enter_anyway() {
        // SAFETY: allocated by us, freed once.
        let _ = unsafe { dev.rt().host_free(base) };
    }
}

impl Drop for Mem {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.owner, Owner::Nobody) {
            Owner::Device(base) => release_device(&self.dev, base),
            Owner::Host(base) => release_host(&self.dev, base),
            Owner::Registered(p) => {
                if let Ok(_in) = self.dev.enter_anyway() {
                    // SAFETY: registered by us, once.
                    let _ = unsafe { self.dev.rt().host_unregister(p) };
                }
            }
            Owner::Mapped(va, n) => {
                if let Ok(_in) = self.dev.enter_anyway() {
                    // SAFETY: mapped and reserved by us, once.
                    unsafe {
                        let _ = self.dev.rt().unmap(va, n);
                        let _ = self.dev.rt().unreserve(va, n);
                    }
                }
            }
            Owner::Library(release) => {
                if let Ok(_in) = self.dev.enter_anyway() {
                    release();
                }
            }
            Owner::Nobody => {}
        }
    }
}
