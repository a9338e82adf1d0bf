//! HCCL behind NCCL's functions, so that what watches, times out and gives up communicators is written once (`crossweave_gpu`).
//!
//! What HCCL does otherwise: ids have 4,108 bytes; forming a group blocks, so a thread does it, for one group of a device at a time; sends and
//! receives of a group are batches, in which each peer is sent to and received from once; it reduces fewer types, and has no average and no scaled
//! sum, which the host composes; there is no abort: the streams that a communicator used are ended instead. What its pages restrict is listed in
//! `tests/sim/PAGES.md`, whose simulator holds this to it.

use crate::driver::Acl;
use crate::runtime;
use crossweave_gpu::library::{self, Wanted};
use crossweave_gpu::{Config, Handle, Nccl, NcclTable, Other, Settings, UniqueId, lock};
use crossweave_plugin::{Code, DType, Result, abi, fail};
use std::ffi::{CStr, c_char, c_void};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const WANTED: Wanted = Wanted {
    what: "HCCL",
    key: "ascend.libhccl",
    names: &["libhccl.so"],
    fix: "install CANN's toolkit, of which it is a part",
};

/// Bytes of `HcclRootInfo`.
pub(crate) const ROOT_INFO: usize = 4108;
/// `HCCL_DETERMINISTIC`.
const CONFIG_DETERMINISTIC: i32 = 0;
/// `HCCL_E_PARA`, `HCCL_E_RUNTIME`, `HCCL_E_AGAIN`.
const E_PARA: i32 = 1;
const E_RUNTIME: i32 = 15;
const E_AGAIN: i32 = 20;
/// How long a communicator that is at work is asked to end.
const GIVE_UP: Duration = Duration::from_secs(10);
/// HCCL's answers (`hccl_types.h`).
pub(crate) const WORDS: [&CStr; 25] = [
    c"HCCL_SUCCESS",
    c"HCCL_E_PARA",
    c"HCCL_E_PTR",
    c"HCCL_E_MEMORY",
    c"HCCL_E_INTERNAL",
    c"HCCL_E_NOT_SUPPORT",
    c"HCCL_E_NOT_FOUND",
    c"HCCL_E_UNAVAIL",
    c"HCCL_E_SYSCALL",
    c"HCCL_E_TIMEOUT",
    c"HCCL_E_OPEN_FILE_FAILURE",
    c"HCCL_E_TCP_CONNECT",
    c"HCCL_E_ROCE_CONNECT",
    c"HCCL_E_TCP_TRANSFER",
    c"HCCL_E_ROCE_TRANSFER",
    c"HCCL_E_RUNTIME",
    c"HCCL_E_DRV",
    c"HCCL_E_PROFILING",
    c"HCCL_E_CCE",
    c"HCCL_E_NETWORK",
    c"HCCL_E_AGAIN",
    c"HCCL_E_REMOTE",
    c"HCCL_E_SUSPENDING",
    c"HCCL_E_OPRETRY_FAIL",
    c"HCCL_E_OOM",
];
/// Where HCCL's own numbers stand among those that NCCL's functions return.
const OWN: i32 = 1000;
/// `ncclInvalidArgument`.
const INVALID: i32 = 4;

/// `HcclSendRecvItem`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Item {
    /// `HCCL_SEND` 0, `HCCL_RECV` 1.
    kind: i32,
    at: *mut c_void,
    count: u64,
    dtype: i32,
    peer: u32,
}

crossweave_gpu::functions! {
    /// The library.
    Functions {
        fn HcclGetRootInfo(*mut c_void) -> i32;
        fn HcclCommInitRootInfo(u32, *const c_void, u32, *mut Handle) -> i32;
        fn HcclCommDestroy(Handle) -> i32;
        fn HcclGetCommAsyncError(Handle, *mut i32) -> i32;
        fn HcclAllReduce(*mut c_void, *mut c_void, u64, i32, i32, Handle, Handle) -> i32;
        fn HcclReduceScatter(*mut c_void, *mut c_void, u64, i32, i32, Handle, Handle) -> i32;
        fn HcclAllGather(*mut c_void, *mut c_void, u64, i32, Handle, Handle) -> i32;
        fn HcclBroadcast(*mut c_void, u64, i32, u32, Handle, Handle) -> i32;
        fn HcclReduce(*mut c_void, *mut c_void, u64, i32, i32, u32, Handle, Handle) -> i32;
        fn HcclBatchSendRecv(*mut c_void, u32, Handle, Handle) -> i32;
    } optional {
        fn HcclSetConfig(i32, i32) -> i32;
    }
}

/// A communicator, as NCCL's functions pass it round: a reference to it.
struct Group {
    lib: Arc<Functions>,
    acl: Arc<Acl>,
    rank: u32,
    raw: Handle,
    /// What the group of calls at hand sends and receives.
    batch: Mutex<Vec<Item>>,
}
// SAFETY: addresses of the device, which only HCCL reads.
unsafe impl Send for Item {}

impl Group {
    /// Names it among the communicators that used a stream.
    fn number(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }
}

/// Opens the library.
pub(crate) fn open(settings: &Settings) -> Result<Nccl> {
    let Some(acl) = runtime::running() else {
        return fail(Code::Internal, "HCCL before the run time has been started");
    };
    let opened = library::open(settings, &WANTED)?;
    let lib = Arc::new(Functions::of(&opened)?);
    if let Some(f) = lib.HcclSetConfig {
        // SAFETY: a plain call. A library that does not take it sums in whatever order it does.
        unsafe { f(CONFIG_DETERMINISTIC, 1) };
    }
    let (mut a, mut b, mut c) = (0, 0, 0);
    // SAFETY: the out pointers live for the call.
    unsafe { (acl.t.aclrtGetVersion)(&mut a, &mut b, &mut c) };
    let of_id = lib.clone();
    Ok(Nccl {
        t: TABLE,
        what: WANTED.what,
        version: format!("beside ACL {a}.{b}.{c}"),
        file: opened.name,
        waits: true,
        other: Some(Other {
            id_bytes: ROOT_INFO,
            id: Box::new(move |out| id(&of_id, out)),
            join: Box::new(move |out, n, id, rank| join(&lib, &acl, out, n, id, rank)),
            flush,
            reduces,
        }),
    })
}

/// NCCL's functions.
const TABLE: NcclTable = NcclTable {
    ncclGetVersion: version,
    ncclGetErrorString: words,
    ncclGetUniqueId: no_id,
    ncclCommInitRankConfig: no_join,
    ncclCommFinalize: finalize,
    ncclCommDestroy: destroy,
    ncclCommAbort: abort,
    ncclCommGetAsyncError: state,
    ncclGroupStart: begin,
    ncclGroupEnd: end,
    ncclAllReduce: all_reduce,
    ncclReduceScatter: reduce_scatter,
    ncclAllGather: all_gather,
    ncclBroadcast: broadcast,
    ncclReduce: reduce,
    ncclSend: send,
    ncclRecv: receive,
    ncclRedOpCreatePreMulSum: no_scaled_sum,
    ncclRedOpDestroy: no_reduction,
    ncclGetLastError: None,
    ncclCommSplit: None,
    ncclMemAlloc: None,
    ncclMemFree: None,
    ncclCommRegister: None,
    ncclCommDeregister: None,
};

/// By the pages of `HcclAllReduce`, `HcclReduceScatter` and `HcclReduce`, for training devices of A2 and A3.
fn reduces(d: DType, reduce: u32) -> bool {
    use DType::{Bf16, F16, F32, I8, I32, I64};
    match reduce {
        abi::RED_SUM | abi::RED_MAX | abi::RED_MIN => {
            matches!(d, I8 | I32 | I64 | F16 | F32 | Bf16)
        }
        abi::RED_PROD => matches!(d, I8 | I32 | I64 | F16 | F32),
        _ => false,
    }
}

/// HCCL's number of a type of NCCL's.
pub(crate) fn number(nccl: u32) -> i32 {
    // i8, u8, i32, u32, i64, u64, f16, f32, f64, bf16.
    const OF: [i32; 10] = [0, 7, 2, 9, 5, 6, 3, 4, 10, 11];
    OF.get(nccl as usize).copied().unwrap_or(-1)
}

/// HCCL's answer among NCCL's.
fn answer(r: i32) -> i32 {
    match r {
        0 => 0,
        E_PARA | 2 => INVALID,
        r => OWN + r,
    }
}

/// # Safety
/// A communicator that has not been given back.
unsafe fn group<'a>(c: Handle) -> &'a Group {
    // SAFETY: promised by the caller.
    unsafe { &*c.0.cast::<Group>() }
}

fn id(lib: &Functions, out: &mut [u8]) -> (&'static str, i32) {
    let status = match out.len() {
        // SAFETY: room for the whole struct.
        ROOT_INFO => unsafe { (lib.HcclGetRootInfo)(out.as_mut_ptr().cast()) },
        _ => E_PARA,
    };
    ("HcclGetRootInfo", answer(status))
}

/// Joins a group; waits for its ranks.
fn join(
    lib: &Arc<Functions>,
    acl: &Arc<Acl>,
    out: *mut Handle,
    nranks: u32,
    id: &[u8],
    rank: u32,
) -> (&'static str, i32) {
    let mut raw = Handle::NULL;
    // SAFETY: the id is a whole one, and the out pointer lives for the call.
    let r = unsafe { (lib.HcclCommInitRootInfo)(nranks, id.as_ptr().cast(), rank, &mut raw) };
    if r == 0 {
        let g = Arc::new(Group {
            lib: lib.clone(),
            acl: acl.clone(),
            rank,
            raw,
            batch: Mutex::default(),
        });
        // SAFETY: promised by the caller (`Nccl::join`).
        unsafe { *out = Handle(Arc::into_raw(g).cast_mut().cast()) };
    }
    ("HcclCommInitRootInfo", answer(r))
}

unsafe extern "C" fn version(v: *mut i32) -> i32 {
    // SAFETY: promised by the caller. HCCL does not say its version.
    unsafe { *v = 0 };
    0
}

unsafe extern "C" fn words(s: i32) -> *const c_char {
    let own = if s >= OWN { s - OWN } else { E_PARA };
    let known = WORDS.get(own as usize);
    known.copied().unwrap_or(c"unknown").as_ptr()
}

unsafe extern "C" fn no_id(_: *mut UniqueId) -> i32 {
    INVALID
}

unsafe extern "C" fn no_join(_: *mut Handle, _: i32, _: UniqueId, _: i32, _: *mut Config) -> i32 {
    INVALID
}

unsafe extern "C" fn finalize(_: Handle) -> i32 {
    0
}

/// Gives a communicator back. One that is at work says that it is, and is asked again.
///
/// # Safety
/// Once, with nobody inside.
unsafe fn leave(c: Handle) -> i32 {
    // SAFETY: the reference made in `join`.
    let g = unsafe { Arc::from_raw(c.0.cast_const().cast::<Group>()) };
    g.acl.unused(g.number());
    let end = Instant::now() + GIVE_UP;
    loop {
        // SAFETY: formed, and given back once: one that is at work has not been.
        match unsafe { (g.lib.HcclCommDestroy)(g.raw) } {
            E_AGAIN if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
            r => return answer(r),
        }
    }
}

unsafe extern "C" fn destroy(c: Handle) -> i32 {
    // SAFETY: promised by the caller.
    unsafe { leave(c) }
}

unsafe extern "C" fn abort(c: Handle) -> i32 {
    // SAFETY: promised by the caller.
    unsafe {
        let g = group(c);
        g.acl.give_up(g.number());
        leave(c)
    }
}

unsafe extern "C" fn state(c: Handle, s: *mut i32) -> i32 {
    // SAFETY: promised by the caller.
    unsafe {
        let g = group(c);
        let mut r = 0;
        let asked = (g.lib.HcclGetCommAsyncError)(g.raw, &mut r);
        *s = answer(r);
        answer(asked)
    }
}

/// A communicator keeps its own group of calls.
unsafe extern "C" fn begin() -> i32 {
    0
}

unsafe extern "C" fn end() -> i32 {
    0
}

/// Sends and receives of the group; what a rank sends itself is copied. A batch names a peer once in each direction, so that the n-th message to
/// each is of the n-th batch, on the peer's side too.
///
/// # Safety
/// Live handles, and operands that live until the stream has passed the group (R8).
unsafe fn flush(c: Handle, s: Handle) -> i32 {
    // SAFETY: promised by the caller.
    let g = unsafe { group(c) };
    let items = std::mem::take(&mut *lock(&g.batch));
    let (own, others): (Vec<Item>, Vec<Item>) = items.iter().partition(|i| i.peer == g.rank);
    let of = |kind: i32| own.iter().filter(move |i| i.kind == kind);
    for (from, to) in of(0).zip(of(1)) {
        if from.count != to.count {
            return INVALID;
        }
        // SAFETY: bytes of the operands.
        let r = unsafe { g.copy(to.at, from.at, from.count as usize, s) };
        if r != 0 {
            return answer(r);
        }
    }
    for mut batch in batches(&others) {
        let (at, n) = (batch.as_mut_ptr().cast(), batch.len() as u32);
        // SAFETY: as above.
        let r = unsafe { (g.lib.HcclBatchSendRecv)(at, n, g.raw, s) };
        if r != 0 {
            return answer(r);
        }
    }
    0
}

/// Each item in the first batch that has none for its peer and direction.
fn batches(items: &[Item]) -> Vec<Vec<Item>> {
    let mut all: Vec<Vec<Item>> = Vec::new();
    for i in items {
        let same = |k: &Item| (k.kind, k.peer) == (i.kind, i.peer);
        match all.iter_mut().find(|b| !b.iter().any(same)) {
            Some(b) => b.push(*i),
            None => all.push(vec![*i]),
        }
    }
    all
}

impl Group {
    /// Copies on the device.
    ///
    /// # Safety
    /// Both live until the stream has passed the copy.
    unsafe fn copy(&self, to: *mut c_void, from: *const c_void, n: usize, s: Handle) -> i32 {
        // SAFETY: promised by the caller.
        match unsafe { self.acl.copy(to as u64, from as u64, n, s) }.done() {
            true => 0,
            false => E_RUNTIME,
        }
    }
}

/// Calls HCCL with the communicator, remembering the stream; nothing is nothing.
///
/// # Safety
/// As NCCL's functions: live handles, operands that hold what the call names.
unsafe fn on(
    c: Handle,
    s: Handle,
    n: usize,
    f: impl FnOnce(&Functions, &Group, Handle) -> i32,
) -> i32 {
    // SAFETY: promised by the caller.
    let g = unsafe { group(c) };
    g.acl.used(s, g.number());
    match n {
        0 => 0,
        _ => answer(f(&g.lib, g, g.raw)),
    }
}

unsafe extern "C" fn all_reduce(
    a: *const c_void,
    b: *mut c_void,
    n: usize,
    t: u32,
    op: u32,
    c: Handle,
    s: Handle,
) -> i32 {
    // SAFETY: promised by the caller.
    unsafe {
        on(c, s, n, |l, _, raw| {
            (l.HcclAllReduce)(a.cast_mut(), b, n as u64, number(t), op as i32, raw, s)
        })
    }
}

unsafe extern "C" fn reduce_scatter(
    a: *const c_void,
    b: *mut c_void,
    n: usize,
    t: u32,
    op: u32,
    c: Handle,
    s: Handle,
) -> i32 {
    // SAFETY: promised by the caller.
    unsafe {
        on(c, s, n, |l, _, raw| {
            (l.HcclReduceScatter)(a.cast_mut(), b, n as u64, number(t), op as i32, raw, s)
        })
    }
}

unsafe extern "C" fn all_gather(
    a: *const c_void,
    b: *mut c_void,
    n: usize,
    t: u32,
    c: Handle,
    s: Handle,
) -> i32 {
    // SAFETY: promised by the caller.
    unsafe {
        on(c, s, n, |l, _, raw| {
            (l.HcclAllGather)(a.cast_mut(), b, n as u64, number(t), raw, s)
        })
    }
}

unsafe extern "C" fn broadcast(
    a: *const c_void,
    b: *mut c_void,
    n: usize,
    t: u32,
    root: i32,
    c: Handle,
    s: Handle,
) -> i32 {
    let a = a.cast_mut();
    // SAFETY: promised by the caller. HCCL broadcasts in place; the root copies where its input lies elsewhere (data that moves is bytes).
    unsafe {
        on(c, s, n, |l, g, raw| {
            let from = g.rank == root as u32;
            let at = if from { a } else { b };
            let r = (l.HcclBroadcast)(at, n as u64, number(t), root as u32, raw, s);
            match r == 0 && from && a != b {
                true => g.copy(b, a, n, s),
                false => r,
            }
        })
    }
}

unsafe extern "C" fn reduce(
    a: *const c_void,
    b: *mut c_void,
    n: usize,
    t: u32,
    op: u32,
    root: i32,
    c: Handle,
    s: Handle,
) -> i32 {
    // SAFETY: promised by the caller.
    unsafe {
        on(c, s, n, |l, _, raw| {
            (l.HcclReduce)(
                a.cast_mut(),
                b,
                n as u64,
                number(t),
                op as i32,
                root as u32,
                raw,
                s,
            )
        })
    }
}

/// # Safety
/// As [`on`].
unsafe fn item(
    kind: i32,
    at: *mut c_void,
    n: usize,
    t: u32,
    peer: i32,
    c: Handle,
    s: Handle,
) -> i32 {
    // SAFETY: promised by the caller.
    unsafe {
        on(c, s, n, |_, g, _| {
            lock(&g.batch).push(Item {
                kind,
                at,
                count: n as u64,
                dtype: number(t),
                peer: peer as u32,
            });
            0
        })
    }
}

unsafe extern "C" fn send(
    a: *const c_void,
    n: usize,
    t: u32,
    peer: i32,
    c: Handle,
    s: Handle,
) -> i32 {
    // SAFETY: promised by the caller.
    unsafe { item(0, a.cast_mut(), n, t, peer, c, s) }
}

unsafe extern "C" fn receive(
    b: *mut c_void,
    n: usize,
    t: u32,
    peer: i32,
    c: Handle,
    s: Handle,
) -> i32 {
    // SAFETY: promised by the caller.
    unsafe { item(1, b, n, t, peer, c, s) }
}

unsafe extern "C" fn no_scaled_sum(_: *mut u32, _: *mut c_void, _: u32, _: u32, _: Handle) -> i32 {
    INVALID
}

unsafe extern "C" fn no_reduction(_: u32, _: Handle) -> i32 {
    INVALID
}

#[cfg(test)]
pub(crate) fn item_layout() -> (usize, [usize; 5]) {
    use std::mem::offset_of;
    let at = [
        offset_of!(Item, kind),
        offset_of!(Item, at),
        offset_of!(Item, count),
        offset_of!(Item, dtype),
        offset_of!(Item, peer),
    ];
    (size_of::<Item>(), at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_names_a_peer_once_in_each_direction() {
        let item = |kind: i32, peer: u32, count: u64| Item {
            kind,
            at: std::ptr::null_mut(),
            count,
            dtype: 7,
            peer,
        };
        let items = [(0, 1, 1), (0, 1, 2), (1, 1, 3), (0, 2, 4), (0, 1, 5)];
        let made = batches(&items.map(|(k, p, n)| item(k, p, n)));
        let counts: Vec<Vec<u64>> = made
            .iter()
            .map(|b| b.iter().map(|i| i.count).collect())
            .collect();
        assert_eq!(counts, [vec![1, 3, 4], vec![2], vec![5]]);
        assert!(batches(&[]).is_empty());
    }
}
