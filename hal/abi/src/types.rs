//! The structs that cross the boundary. Field order and types are the header's; R2 forbids ever changing them.

use crate::consts::Status;
use crate::read::Sized32;
use core::ffi::c_void;

/// An opaque handle (`cw_device`, `cw_mem`, …).
pub type Handle = *mut c_void;

/// UTF-8, not NUL-terminated, borrowed for the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Str {
    /// First byte, or NULL when empty.
    pub ptr: *const u8,
    /// Bytes.
    pub len: u64,
}
// SAFETY: a `Str` is a borrowed view; who reads it vouches for the pointee.
unsafe impl Send for Str {}
// SAFETY: as above.
unsafe impl Sync for Str {}

impl Str {
    /// The empty string.
    pub const EMPTY: Str = Str {
        ptr: core::ptr::null(),
        len: 0,
    };

    /// Borrows `s`; the caller keeps it alive for as long as the ABI function says.
    pub const fn new(s: &str) -> Str {
        Str {
            ptr: s.as_ptr(),
            len: s.len() as u64,
        }
    }

    /// The text, or `None` when it is not UTF-8.
    ///
    /// # Safety
    /// `ptr`/`len` describe live memory for `'a`, or `ptr` is NULL.
    pub unsafe fn as_str<'a>(self) -> Option<&'a str> {
        if self.ptr.is_null() || self.len == 0 {
            return Some("");
        }
        // SAFETY: promised by the caller.
        core::str::from_utf8(unsafe { core::slice::from_raw_parts(self.ptr, self.len as usize) })
            .ok()
    }
}

/// Caller-owned error record, 512 bytes; written only when the status is negative.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Error {
    /// Bytes the caller owns.
    pub size: u32,
    /// The status returned.
    pub code: Status,
    /// The vendor's own code, or 0.
    pub vendor_code: i64,
    /// `ERRF_*`.
    pub flags: u32,
    /// The rank that failed, or -1.
    pub peer_rank: i32,
    /// NUL-terminated name of the function that failed.
    pub where_: [u8; 48],
    /// NUL-terminated text.
    pub message: [u8; 440],
}

impl Error {
    /// An empty record.
    pub const fn new() -> Error {
        Error {
            size: 512,
            code: 0,
            vendor_code: 0,
            flags: 0,
            peer_rank: -1,
            where_: [0; 48],
            message: [0; 440],
        }
    }
}
impl Default for Error {
    fn default() -> Self {
        Error::new()
    }
}

/// An operand: never a bare pointer.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The memory, or NULL for "absent".
    pub mem: Handle,
    /// Bytes from its start.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl Span {
    /// "Not given".
    pub const NULL: Span = Span {
        mem: core::ptr::null_mut(),
        offset: 0,
        bytes: 0,
    };
}
// SAFETY: a handle is an opaque token; R7 says which calls may share it.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

/// A native object crossing by import or export.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Native {
    /// Bytes the writer knows (R1).
    pub size: u32,
    /// Native type id.
    pub type_: u32,
    /// Pointer, fd, handle… by type.
    pub value: [u64; 4],
    /// Length of the memory.
    pub bytes: u64,
}

/// What a device says of itself.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeviceInfo {
    /// Bytes the writer knows (R1).
    pub size: u32,
    /// Device kind: 1 cpu, 2 gpu, 3 npu, 0 other.
    pub kind: u32,
    /// Bytes.
    pub mem_total: u64,
    /// Bytes.
    pub mem_free: u64,
    /// `CAP_*`.
    pub caps: u64,
    /// NUMA node, or u32::MAX.
    pub numa_node: u32,
    /// Preferred alignment in bytes.
    pub align: u32,
    /// Stable id.
    pub uuid: [u8; 16],
    /// NUL-terminated.
    pub name: [u8; 64],
    /// NUL-terminated.
    pub pci_bus_id: [u8; 24],
    /// NUL-terminated.
    pub arch: [u8; 24],
}

/// Shape, strides (in elements) and dtype of one operand; rank 0 with dtype 0 means the operand is absent.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Bytes the writer knows (R1).
    pub size: u32,
    /// `DType::id`, or 0 for an absent operand.
    pub dtype: u32,
    /// At most 8.
    pub rank: u32,
    /// `LAYOUT_*`.
    pub flags: u32,
    /// Elements per dim; dims past `rank` are 0.
    pub shape: [i64; 8],
    /// Elements between neighbours; 0 broadcasts.
    pub stride: [i64; 8],
}

/// What `op_prepare` is asked for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OpDesc {
    /// Bytes the writer knows (R1).
    pub size: u32,
    /// Op id (see `op`).
    pub op: u32,
    /// Revision of its meaning.
    pub op_revision: u32,
    /// Length of `operands`.
    pub n_operands: u32,
    /// Layouts, in the op table's order.
    pub operands: *const Layout,
    /// The op's own size-prefixed struct.
    pub params: *const c_void,
    /// Its length.
    pub params_bytes: u64,
    /// `MATH_*`.
    pub math_flags: u32,
    /// 0.
    pub reserved: u32,
}

/// What `op_prepare` answers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OpPlan {
    /// Bytes the writer knows (R1).
    pub size: u32,
    /// 0 reference, 1 native, 2 tuned.
    pub tier: u32,
    /// Scratch wanted at launch.
    pub workspace_bytes: u64,
    /// Estimate, or 0.
    pub est_ns: u64,
    /// `op::class`.
    pub error_class: u64,
}

/// One collective.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CollDesc {
    /// Bytes the writer knows (R1).
    pub size: u32,
    /// `COLL_*`.
    pub kind: u32,
    /// `DType::id`.
    pub dtype: u32,
    /// `RED_*`, or 0.
    pub reduce: u32,
    /// Root rank of broadcast and reduce.
    pub root: i32,
    /// Peer of send and recv.
    pub peer: i32,
    /// Elements: all-reduce/broadcast/reduce/send/recv = the buffer; reduce-scatter = per rank received; all-gather = per rank sent; all-to-all = per pair.
    pub count: u64,
    /// Input.
    pub send: Span,
    /// Output; equal spans = in place.
    pub recv: Span,
    /// One for each rank (`[nranks]`), `*_V` only.
    pub send_counts: *const u64,
    /// `[nranks]` elements.
    pub send_offsets: *const u64,
    /// `[nranks]`.
    pub recv_counts: *const u64,
    /// `[nranks]`.
    pub recv_offsets: *const u64,
    /// PREMUL_SUM's factor.
    pub scale: f64,
    /// Or a device scalar.
    pub scale_dev: Span,
    /// `COLLF_*`.
    pub flags: u32,
    /// 0.
    pub reserved: u32,
    /// The host's call number on this communicator.
    pub seq: u64,
}

/// One member of `launch_multi`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Bytes the writer knows (R1).
    pub size: u32,
    /// Length of `descs`.
    pub n: u32,
    /// Communicator.
    pub comm: Handle,
    /// Stream.
    pub stream: Handle,
    /// The group.
    pub descs: *const CollDesc,
}

/// Answer of `comm_query`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CollSupport {
    /// Bytes the writer knows (R1).
    pub size: u32,
    /// 0 reference, 1 native, 2 tuned.
    pub tier: u32,
    /// 0.
    pub flags: u64,
    /// Estimate, or 0.
    pub latency_ns: u64,
    /// Estimate, or 0.
    pub bytes_per_s: u64,
    /// 0 = no limit.
    pub max_bytes: u64,
}

/// How a communicator is formed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CommConfig {
    /// Bytes the writer knows (R1).
    pub size: u32,
    /// My rank.
    pub rank: i32,
    /// Ranks.
    pub nranks: i32,
    /// 0.
    pub flags: u32,
    /// For connecting and for each collective; <= 0: none.
    pub timeout_ns: i64,
    /// Prefix for the plugin's own key-value exchange.
    pub kv_prefix: Str,
    /// For messages.
    pub name: Str,
}

/// `Layout::flags`: the elements lie densely in row-major order.
pub const LAYOUT_CONTIGUOUS: u32 = 1;
/// `Layout::flags`: this output may share memory with an input (the op table says which).
pub const LAYOUT_MAY_ALIAS: u32 = 2;

impl Layout {
    /// The absent operand.
    pub const ABSENT: Layout = Layout {
        size: size_of::<Layout>() as u32,
        dtype: 0,
        rank: 0,
        flags: 0,
        shape: [0; 8],
        stride: [0; 8],
    };

    /// Row-major layout of `shape` (at most 8 dims).
    pub fn contiguous(dtype: crate::DType, shape: &[u64]) -> Layout {
        let mut l = Layout {
            dtype: dtype.id(),
            rank: shape.len() as u32,
            flags: LAYOUT_CONTIGUOUS,
            ..Layout::ABSENT
        };
        let mut step = 1i64;
        for i in (0..shape.len()).rev() {
            l.shape[i] = shape[i] as i64;
            l.stride[i] = step;
            step *= shape[i] as i64;
        }
        l
    }

    /// Layout with explicit strides; the contiguous flag is set when it is true.
    pub fn strided(dtype: crate::DType, shape: &[u64], stride: &[i64]) -> Layout {
        let dense = Layout::contiguous(dtype, shape);
        let mut l = dense;
        l.stride = [0; 8];
        l.stride[..stride.len()].copy_from_slice(stride);
        // A dim of size 1 never moves, so its stride does not decide density.
        let same = (0..shape.len()).all(|i| shape[i] == 1 || l.stride[i] == dense.stride[i]);
        if !same {
            l.flags = 0;
        }
        l
    }

    /// Is the operand there?
    pub fn present(&self) -> bool {
        self.dtype != 0
    }

    /// Elements.
    pub fn numel(&self) -> u64 {
        self.shape[..self.rank as usize]
            .iter()
            .map(|d| *d as u64)
            .product()
    }

    /// Bytes from the first to one past the last element touched (non-negative strides); 0 when empty.
    pub fn extent_bytes(&self) -> u64 {
        let Some(dt) = crate::DType::from_id(self.dtype) else {
            return 0;
        };
        if self.numel() == 0 {
            return 0;
        }
        let last: i64 = (0..self.rank as usize)
            .map(|i| (self.shape[i] - 1) * self.stride[i].max(0))
            .sum();
        dt.bytes(last as u64 + 1)
    }
}
// SAFETY: repr(C), size-prefixed, integers, floats and nullable pointers only.
unsafe impl Sized32 for Error {}
// SAFETY: repr(C), size-prefixed, integers, floats and nullable pointers only.
unsafe impl Sized32 for Native {}
// SAFETY: repr(C), size-prefixed, integers, floats and nullable pointers only.
unsafe impl Sized32 for DeviceInfo {}
// SAFETY: repr(C), size-prefixed, integers, floats and nullable pointers only.
unsafe impl Sized32 for Layout {}
// SAFETY: repr(C), size-prefixed, integers, floats and nullable pointers only.
unsafe impl Sized32 for OpDesc {}
// SAFETY: repr(C), size-prefixed, integers, floats and nullable pointers only.
unsafe impl Sized32 for OpPlan {}
// SAFETY: repr(C), size-prefixed, integers, floats and nullable pointers only.
unsafe impl Sized32 for CollDesc {}
// SAFETY: repr(C), size-prefixed, integers, floats and nullable pointers only.
unsafe impl Sized32 for Launch {}
// SAFETY: repr(C), size-prefixed, integers, floats and nullable pointers only.
unsafe impl Sized32 for CollSupport {}
// SAFETY: repr(C), size-prefixed, integers, floats and nullable pointers only.
unsafe impl Sized32 for CommConfig {}

const _: () = {
    use core::mem::offset_of;
    assert!(
        size_of::<Error>() == 512
            && offset_of!(Error, where_) == 24
            && offset_of!(Error, message) == 72
    );
    assert!(
        size_of::<DeviceInfo>() == 168
            && offset_of!(DeviceInfo, uuid) == 40
            && offset_of!(DeviceInfo, arch) == 144
    );
    assert!(size_of::<Native>() == 48 && size_of::<Span>() == 24 && size_of::<Str>() == 16);
    assert!(size_of::<Layout>() == 144 && offset_of!(Layout, stride) == 80);
    assert!(
        size_of::<OpDesc>() == 48
            && offset_of!(OpDesc, math_flags) == 40
            && size_of::<OpPlan>() == 32
    );
    assert!(
        size_of::<CollDesc>() == 160
            && offset_of!(CollDesc, scale) == 112
            && offset_of!(CollDesc, seq) == 152
    );
    assert!(
        size_of::<Launch>() == 32
            && size_of::<CollSupport>() == 40
            && size_of::<CommConfig>() == 56
    );
};
