//! Memory of a device, page-locked memory of the host, memory that collectives can reach directly, and what is taken in from outside.

use crate::device::Dev;
use crate::driver::*;
use crossweave_abi as abi;
use crossweave_plugin::{Code, Error, MemKind, Result, Span, fail, unsupported};
use crossweave_words::Size;
use std::ffi::c_void;
use std::sync::Arc;

/// Native types of this plugin beside the header's `CW_NATIVE_HOST_POINTER`, in the half of the numbers that vendors use.
pub mod native {
    /// `value[0]` is an address of this process on the device; it outlives the import.
    pub const DEVICE_POINTER: u32 = 0x8000_0001;
    /// `value[0]` is a file descriptor of a physical allocation, whose `bytes` are whole granules.
    pub const POSIX_FD: u32 = 0x8000_0002;
}

/// How it is given back.
enum Owner {
    /// `cuMemFree` of this address.
    Device(Address),
    /// `cuMemFreeHost`.
    Host(*mut c_void),
    /// `cuMemHostUnregister`.
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
            // SAFETY: the out pointer lives for the call.
            let s = unsafe { (dev.driver().cuMemAlloc_v2)(&mut p, n) };
            dev.check("cuMemAlloc_v2", s)
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
            // SAFETY: the out pointer lives for the call.
            let s = unsafe {
                (dev.driver().cuMemHostAlloc)(&mut p, n, HOST_PORTABLE | HOST_DEVICE_MAP)
            };
            dev.check("cuMemHostAlloc", s)?;
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

    /// Was it made by NCCL, so that NCCL can take it as it is?
    pub(crate) fn of_nccl(&self) -> bool {
        matches!(self.owner, Owner::Library(_))
    }

    /// May kernels of `dev` touch it? A device that touches memory of another it has no access to is lost.
    pub(crate) fn reached_by(&self, dev: &Dev) -> Result<()> {
        match self.kind == MemKind::HostPinned
            || self.dev.ordinal == dev.ordinal
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

    pub(crate) fn map(&self) -> Result<*mut u8> {
        match self.host.is_null() {
            false => Ok(self.host),
            true => {
                unsupported("memory of the device has no host address; copy it to pinned memory")
            }
        }
    }

    pub(crate) fn import(dev: &Arc<Dev>, n: &abi::Native) -> Result<Mem> {
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
        let s =
            unsafe { (dev.driver().cuMemHostRegister_v2)(p, n, HOST_PORTABLE | HOST_DEVICE_MAP) };
        let owner = match s {
            SUCCESS => Owner::Registered(p),
            // Pinned by an earlier import or by its maker: usable as it is, and theirs to release.
            ALREADY_REGISTERED => Owner::Nobody,
            s => return Err(dev.failed("cuMemHostRegister_v2", s)),
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
        let d = dev.driver();
        let import = dev.optional(
            d.cuMemImportFromShareableHandle,
            "cuMemImportFromShareableHandle",
        )?;
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
        // SAFETY: POSIX descriptors travel in the pointer itself; the driver takes a duplicate.
        let s = unsafe { import(&mut handle, fd as usize as *mut c_void, HANDLE_POSIX_FD) };
        dev.check("cuMemImportFromShareableHandle", s)?;
        Mem::mapped(dev, handle, n, bytes)
    }

    /// New physical memory that can be exported as a descriptor.
    pub(crate) fn shareable(dev: &Arc<Dev>, kind: MemKind, bytes: u64) -> Result<Mem> {
        if !dev.facts.posix_fd {
            return unsupported("this device has no memory that can be exported");
        }
        let create = dev.optional(dev.driver().cuMemCreate, "cuMemCreate")?;
        let n = size(bytes)?.next_multiple_of(granularity(dev)?);
        let _in = dev.enter()?;
        let mut handle = 0;
        // SAFETY: the property record lives for the call.
        let s = unsafe { create(&mut handle, n, &prop(dev), 0) };
        dev.check("cuMemCreate", s)
            .map_err(|e| within(e, dev, bytes))?;
        let mut mem = Mem::mapped(dev, handle, n, bytes)?;
        mem.kind = kind;
        Ok(mem)
    }

    /// Maps a physical allocation, which the mapping then keeps alive. Takes the handle, also on failure.
    fn mapped(dev: &Arc<Dev>, handle: u64, n: usize, bytes: u64) -> Result<Mem> {
        let d = dev.driver();
        let all = (
            d.cuMemAddressReserve,
            d.cuMemAddressFree,
            d.cuMemMap,
            d.cuMemUnmap,
            d.cuMemSetAccess,
            d.cuMemRelease,
        );
        let (Some(reserve), Some(free), Some(map), Some(unmap), Some(access), Some(release)) = all
        else {
            return unsupported("the CUDA driver has no virtual memory management");
        };
        let mut va = 0;
        // SAFETY: each step's result is the next one's argument; what was done is undone on failure.
        unsafe {
            let mut s = reserve(&mut va, n, 0, 0, 0);
            let mut f = "cuMemAddressReserve";
            if s == SUCCESS {
                f = "cuMemMap";
                s = map(va, n, 0, handle, 0);
                if s == SUCCESS {
                    let desc = AccessDesc {
                        location: Location {
                            kind: LOCATION_DEVICE,
                            id: dev.ordinal,
                        },
                        flags: ACCESS_READ_WRITE,
                    };
                    f = "cuMemSetAccess";
                    s = access(va, n, &desc, 1);
                    if s != SUCCESS {
                        unmap(va, n);
                    }
                }
                if s != SUCCESS {
                    free(va, n);
                }
            }
            release(handle);
            dev.check(f, s)?;
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

    pub(crate) fn export(&self, native_type: u32) -> Result<abi::Native> {
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
                return unsupported(
                    "mem_export: only symmetric memory of one MiB and more has a descriptor, where NCCL made it or cuda.exportable is on",
                );
            }
        };
        let d = self.dev.driver();
        let retain = self
            .dev
            .optional(d.cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle")?;
        let export = self.dev.optional(
            d.cuMemExportToShareableHandle,
            "cuMemExportToShareableHandle",
        )?;
        let release = self.dev.optional(d.cuMemRelease, "cuMemRelease")?;
        let _in = self.dev.enter()?;
        let (mut handle, mut fd) = (0, -1i32);
        // SAFETY: `va` is the start of a mapping; the descriptor is an int; the handle is given back.
        unsafe {
            let s = retain(&mut handle, va as usize as *mut c_void);
            self.dev.check("cuMemRetainAllocationHandle", s)?;
            let s = export((&raw mut fd).cast(), handle, HANDLE_POSIX_FD, 0);
            release(handle);
            self.dev.check("cuMemExportToShareableHandle", s)?;
        }
        Ok((fd as u64, n as u64))
    }
}

/// Smallest unit of physical memory.
fn granularity(dev: &Dev) -> Result<usize> {
    let ask = dev.optional(
        dev.driver().cuMemGetAllocationGranularity,
        "cuMemGetAllocationGranularity",
    )?;
    let _in = dev.enter()?;
    let mut n = 0;
    // SAFETY: the property record lives for the call; 0 asks for the smallest.
    let s = unsafe { ask(&mut n, &prop(dev), 0) };
    dev.check("cuMemGetAllocationGranularity", s)?;
    Ok(n.max(1))
}

fn prop(dev: &Dev) -> AllocationProp {
    AllocationProp {
        kind: ALLOCATION_PINNED,
        handle_types: HANDLE_POSIX_FD,
        location: Location {
            kind: LOCATION_DEVICE,
            id: dev.ordinal,
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
    let s = unsafe { (dev.driver().cuMemHostGetDevicePointer_v2)(&mut at, p, 0) };
    dev.check("cuMemHostGetDevicePointer_v2", s)?;
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
        unsafe { (dev.driver().cuMemFree_v2)(base) };
    }
}

fn release_host(dev: &Dev, base: *mut c_void) {
    if let Ok(_in) = dev.enter_anyway() {
        // SAFETY: allocated by us, freed once.
        unsafe { (dev.driver().cuMemFreeHost)(base) };
    }
}

impl Drop for Mem {
    fn drop(&mut self) {
        let d = self.dev.driver();
        match std::mem::replace(&mut self.owner, Owner::Nobody) {
            Owner::Device(base) => release_device(&self.dev, base),
            Owner::Host(base) => release_host(&self.dev, base),
            Owner::Registered(p) => {
                if let Ok(_in) = self.dev.enter_anyway() {
                    // SAFETY: registered by us, once.
                    unsafe { (d.cuMemHostUnregister)(p) };
                }
            }
            Owner::Mapped(va, n) => {
                if let (Ok(_in), Some(unmap), Some(free)) =
                    (self.dev.enter_anyway(), d.cuMemUnmap, d.cuMemAddressFree)
                {
                    // SAFETY: mapped and reserved by us, once.
                    unsafe {
                        unmap(va, n);
                        free(va, n);
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
