//! The one table of a vendor's run time: what its driver does, in one form for all vendors. A vendor implements it over its own functions,
//! whose names and numbers the outcomes carry, so that an error says what the vendor's documentation says.

use std::ffi::{c_char, c_void};

/// An object of the vendor's: an address inside its library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Handle(pub *mut c_void);
// SAFETY: opaque tokens; drivers are thread-safe, and the host serialises what must not race (R7).
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}
impl Handle {
    /// No object.
    pub const NULL: Handle = Handle(std::ptr::null_mut());
}

/// A number that a driver's function returns.
pub type Status = i32;
/// An address as the device sees it.
pub type Address = u64;

/// The call was done.
pub const SUCCESS: Status = 0;
/// There is no device.
pub const NO_DEVICE: Status = 100;
/// What was asked about has not ended.
pub const NOT_READY: Status = 600;
/// The two devices reach one another already.
pub const PEER_ALREADY_ENABLED: Status = 704;
/// The device reaches as many others as it can.
pub const TOO_MANY_PEERS: Status = 711;
/// The host's memory is page-locked already.
pub const ALREADY_REGISTERED: Status = 712;
/// This driver has no such function: a number of ours.
pub const MISSING: Status = Status::MIN;
/// What this version does here is not to be relied on, as [`Runtime::hint`] says: a number of ours.
pub const DISTRUSTED: Status = Status::MIN + 1;

/// A stream that does not wait for the default stream.
pub const STREAM_NON_BLOCKING: u32 = 1;
/// An event that takes no times.
pub const EVENT_NO_TIMES: u32 = 2;
/// Page-locked for all devices.
pub const HOST_PORTABLE: u32 = 1;
/// Page-locked memory that devices reach.
pub const HOST_DEVICE_MAP: u32 = 2;
/// Memory is exported as a file descriptor.
pub const HANDLE_POSIX_FD: u32 = 1;
/// Physical memory that stays where it is.
pub const ALLOCATION_PINNED: u32 = 1;
/// A place is a device.
pub const LOCATION_DEVICE: u32 = 1;
/// A mapping may be read and written.
pub const ACCESS_READ_WRITE: u32 = 3;

/// `CUmemLocation`, `hipMemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Location {
    pub kind: u32,
    pub id: i32,
}

/// `CUmemAllocationProp`, `hipMemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct AllocationProp {
    pub kind: u32,
    pub handle_types: u32,
    pub location: Location,
    pub win32: *mut c_void,
    pub compression: u8,
    pub rdma: u8,
    pub usage: u16,
    pub reserved: [u8; 4],
}

/// `CUmemAccessDesc`, `hipMemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct AccessDesc {
    pub location: Location,
    pub flags: u32,
}

/// What a status means for the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The device is dead for this process: every later call fails, and only a new process has it again.
    Lost,
    /// Memory ran out; the device works on.
    Memory,
    /// The driver or the device does not do this.
    Unsupported,
    /// The arguments were wrong.
    Invalid,
    /// Driver and machine do not fit together; nothing here can mend it.
    Environment,
    /// Anything else.
    Internal,
}

/// A device of the driver's: its number, and its context where the vendor has contexts.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The driver's number of it.
    pub ordinal: i32,
    /// `NULL` where the vendor has none.
    pub ctx: Handle,
}

/// What was current on a thread before a device was entered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Previous(pub i64);

/// What a device says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// `device_info.kind`: 2 a GPU, 3 an NPU.
    pub kind: u32,
    /// `sm_90`, `gfx90a:sramecc+:xnack-`.
    pub arch: String,
    /// Compute capability; 0 where the vendor counts otherwise.
    pub major: u32,
    /// The same below the point.
    pub minor: u32,
    /// Multiprocessors, compute units.
    pub sm_count: u32,
    /// Threads of a warp, of a wave.
    pub warp: u32,
    /// Most bytes of shared memory of a block, with asking.
    pub shared: u32,
    /// Most bytes between rows of a copy.
    pub max_pitch: u64,
    /// Streams can wait for and write words of memory.
    pub mem_ops: bool,
    /// Memory can be exported as a file descriptor.
    pub posix_fd: bool,
    /// The host's memory next to it.
    pub numa: Option<u32>,
}

/// What became of a call: the function's own name, and what it returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Outcome {
    /// The vendor's name of the function.
    pub name: &'static str,
    /// What it returned; [`MISSING`] where this driver lacks it.
    pub status: Status,
}

impl Outcome {
    /// Was it done?
    pub fn done(self) -> bool {
        self.status == SUCCESS
    }
}

/// Calls a function of a vendor's table: `call!(table, cuMemFree_v2(at))`, and `call!(table, optional cuMemRelease(h))` for one that may be
/// missing. Stands inside an `unsafe` block.
#[macro_export]
macro_rules! call {
    ($t:expr, optional $f:ident($($a:expr),* $(,)?)) => {
        $crate::Outcome {
            name: stringify!($f),
            status: $t.$f.map_or($crate::MISSING, |f| f($($a),*)),
        }
    };
    ($t:expr, $f:ident($($a:expr),* $(,)?)) => {
        $crate::Outcome { name: stringify!($f), status: ($t.$f)($($a),*) }
    };
}

/// The functions of a [`Runtime`] by a vendor's table of functions in `self.t`: `fn alloc(at: &mut Address, bytes: usize) = cuMemAlloc_v2(at,
/// bytes);`, `= optional f(…);` for one that this driver may lack, and `= missing f;` for one that the back end does not use.
#[macro_export]
macro_rules! by_table {
    () => {};
    (fn $f:ident($($a:tt: $t:ty),* $(,)?) = missing $g:ident; $($rest:tt)*) => {
        /// # Safety
        /// As the trait says.
        unsafe fn $f(&self, $($a: $t),*) -> $crate::Outcome {
            $crate::Outcome { name: stringify!($g), status: $crate::MISSING }
        }
        $crate::by_table! { $($rest)* }
    };
    (fn $f:ident($($a:tt: $t:ty),* $(,)?) = optional $g:ident($($e:expr),* $(,)?); $($rest:tt)*) => {
        /// # Safety
        /// As the trait says.
        unsafe fn $f(&self, $($a: $t),*) -> $crate::Outcome {
            // SAFETY: promised by the caller; references live for the call.
            unsafe { $crate::call!(self.t, optional $g($($e),*)) }
        }
        $crate::by_table! { $($rest)* }
    };
    (fn $f:ident($($a:tt: $t:ty),* $(,)?) = $g:ident($($e:expr),* $(,)?); $($rest:tt)*) => {
        /// # Safety
        /// As the trait says.
        unsafe fn $f(&self, $($a: $t),*) -> $crate::Outcome {
            // SAFETY: promised by the caller; references live for the call.
            unsafe { $crate::call!(self.t, $g($($e),*)) }
        }
        $crate::by_table! { $($rest)* }
    };
}

macro_rules! runtime {
    ($( $(#[$doc:meta])* fn $f:ident($($a:ident: $t:ty),* $(,)?); )*) => {
        /// A vendor's driver.
        pub trait Runtime: Send + Sync {
            /// What it is, for messages: `CUDA driver`.
            fn what(&self) -> &'static str;
            /// Its version, for messages: `12.8`.
            fn version(&self) -> String;
            /// Its own name of a number, and its words.
            fn words(&self, status: Status) -> (String, String);
            /// What a number means.
            fn meaning(&self, status: Status) -> Meaning;
            /// What to do about a number, where that is known: `; …`.
            fn hint(&self, status: Status) -> &'static str;
            /// Says that it sees no device, and what to look at.
            fn none_seen(&self) -> &'static str;
            /// Does it fill words that lie apart ([`Runtime::fill_words_apart`])?
            fn fills_words_apart(&self) -> bool;
            /// Asks the device for what the back end must know of it.
            fn facts(&self, place: &Place) -> Facts;
            $(
                $(#[$doc])*
                ///
                /// # Safety
                /// Handles are alive and of this driver, and addresses lie in memory that lives until the stream has passed the call.
                unsafe fn $f(&self, $($a: $t),*) -> Outcome;
            )*
        }
    };
}

runtime! {
    /// The device of an index.
    fn device(ordinal: &mut i32, index: i32);
    /// Takes hold of it; gives its context, where the vendor has contexts.
    fn retain(ctx: &mut Handle, ordinal: i32);
    /// Lets it go.
    fn release(ordinal: i32);
    /// Makes it current on this thread, and says what was.
    fn enter(place: &Place, previous: &mut Previous);
    /// What was current is so again.
    fn leave(previous: Previous);
    /// Writes its name, at most `n` bytes.
    fn name(text: *mut c_char, n: i32, ordinal: i32);
    /// Writes its address on the bus, at most `n` bytes.
    fn bus(text: *mut c_char, n: i32, ordinal: i32);
    /// Writes its own number, unique in the world.
    fn uuid(id: &mut [u8; 16], ordinal: i32);
    /// Can `a` reach the memory of `b`?
    fn can_reach(can: &mut i32, a: i32, b: i32);
    /// Lets the current device reach that one's memory.
    fn reach(other: &Place);
    /// Free and all bytes of the current device.
    fn room(free: &mut usize, total: &mut usize);
    /// Memory of the current device.
    fn alloc(at: &mut Address, bytes: usize);
    /// Gives it back.
    fn free(at: Address);
    /// Page-locked memory of the host.
    fn host_alloc(at: &mut *mut c_void, bytes: usize, flags: u32);
    /// Gives it back.
    fn host_free(at: *mut c_void);
    /// Page-locks memory of the host.
    fn host_register(at: *mut c_void, bytes: usize, flags: u32);
    /// Lets it be as it was.
    fn host_unregister(at: *mut c_void);
    /// Where the device sees page-locked memory.
    fn host_seen(at: &mut Address, host: *mut c_void);
    /// Copies on a stream, from and to anywhere.
    fn copy(to: Address, from: Address, bytes: usize, stream: Handle);
    /// Copies between devices.
    fn copy_peer(to: Address, there: &Place, from: Address, here: &Place, bytes: usize, stream: Handle);
    /// Copies rows of `width` bytes.
    fn copy_rows(to: Address, dpitch: usize, from: Address, spitch: usize, width: usize, height: usize, stream: Handle);
    /// Fills bytes.
    fn fill_bytes(to: Address, value: u8, n: usize, stream: Handle);
    /// Fills halves of words, at multiples of 2.
    fn fill_halves(to: Address, value: u16, n: usize, stream: Handle);
    /// Fills words of 32 bits, at multiples of 4.
    fn fill_words(to: Address, value: u32, n: usize, stream: Handle);
    /// Fills bytes that lie `pitch` apart.
    fn fill_bytes_apart(to: Address, pitch: usize, value: u8, n: usize, stream: Handle);
    /// Fills words of 32 bits that lie `pitch` apart.
    fn fill_words_apart(to: Address, pitch: usize, value: u32, n: usize, stream: Handle);
    /// The range of priorities: least urgent, most urgent.
    fn priorities(least: &mut i32, greatest: &mut i32);
    /// A stream of the current device.
    fn stream(stream: &mut Handle, flags: u32, priority: i32);
    /// Lets it go; what is queued is done.
    fn stream_destroy(stream: Handle);
    /// Has all of it ended?
    fn stream_query(stream: Handle);
    /// It waits for the event's last record.
    fn stream_wait(stream: Handle, event: Handle);
    /// It waits until a word, compared in a circle, is at least this.
    fn wait_value(stream: Handle, word: Address, value: u64);
    /// It writes a word.
    fn write_value(stream: Handle, word: Address, value: u64);
    /// An event of the current device.
    fn event(event: &mut Handle, flags: u32);
    /// Lets it go; waits for it stay.
    fn event_destroy(event: Handle);
    /// Marks a point of a stream.
    fn event_record(event: Handle, stream: Handle);
    /// Has it been passed?
    fn event_query(event: Handle);
    /// Milliseconds between two.
    fn event_elapsed(ms: &mut f32, from: Handle, to: Handle);
    /// Loads machine code on the current device.
    fn module(module: &mut Handle, image: *const c_void);
    /// Lets it go.
    fn module_unload(module: Handle);
    /// A function of it.
    fn function(function: &mut Handle, module: Handle, name: *const c_char);
    /// Lets a function's blocks have so much dynamic shared memory.
    fn allow_shared(function: Handle, bytes: i32);
    /// Launches a function; `params` are addresses of its parameters.
    fn launch(function: Handle, grid: [u32; 3], block: [u32; 3], shared: u32, stream: Handle, params: *mut *mut c_void);
    /// What a stream is given from now on is recorded, of this thread alone.
    fn capture_begin(stream: Handle);
    /// What was recorded.
    fn capture_end(stream: Handle, graph: &mut Handle);
    /// Makes a record something that can be launched.
    fn graph_instantiate(exec: &mut Handle, graph: Handle);
    /// Lets a record go.
    fn graph_destroy(graph: Handle);
    /// Launches.
    fn graph_launch(exec: Handle, stream: Handle);
    /// Lets go of what can be launched.
    fn graph_release(exec: Handle);
    /// Physical memory.
    fn physical(handle: &mut u64, bytes: usize, prop: &AllocationProp);
    /// Lets it go.
    fn physical_release(handle: u64);
    /// The physical memory behind an address.
    fn physical_of(handle: &mut u64, at: *mut c_void);
    /// Its smallest unit.
    fn granularity(bytes: &mut usize, prop: &AllocationProp);
    /// A range of addresses.
    fn reserve(at: &mut Address, bytes: usize);
    /// Gives it back.
    fn unreserve(at: Address, bytes: usize);
    /// Physical memory lies there from now on.
    fn map(at: Address, bytes: usize, handle: u64);
    /// No longer.
    fn unmap(at: Address, bytes: usize);
    /// Who may touch what is mapped.
    fn access(at: Address, bytes: usize, who: &AccessDesc);
    /// A file descriptor of physical memory.
    fn share(fd: &mut i32, handle: u64);
    /// The physical memory of a file descriptor.
    fn shared(handle: &mut u64, fd: i32);
}
