//! The steady state allocates nothing on the host: launches of kernels, of multi-tensor ops and of collectives, counted at the allocator on the
//! launching thread. On the simulator, whose own allocations are C's and not counted.

use crate::common::{Simulated, span};
use crossweave_backend_cuda::{CudaCollectives, CudaOps};
use crossweave_plugin::abi::Layout;
use crossweave_plugin::abi::op::{self, NoParams, ScaleDyn};
use crossweave_plugin::{
    Backend, Coll, Collectives, CommConfig, DType, Dyn, MemKind, OpRequest, Ops, abi,
};
use std::alloc::{GlobalAlloc, System};
use std::ffi::c_ulong;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const LONG: Option<Duration> = Some(Duration::from_secs(60));

/// Counts what one thread takes; 0 is no thread.
struct Counting {
    thread: AtomicU64,
    taken: AtomicU64,
}

unsafe extern "C" {
    fn pthread_self() -> c_ulong;
}

fn me() -> u64 {
    // SAFETY: a plain question of the C library.
    (unsafe { pthread_self() }) as u64
}

// SAFETY: the system's allocator, with a count beside.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: std::alloc::Layout) -> *mut u8 {
        if self.thread.load(SeqCst) == me() {
            self.taken.fetch_add(1, SeqCst);
        }
        // SAFETY: promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: std::alloc::Layout) {
        // SAFETY: promised by the caller.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting {
    thread: AtomicU64::new(0),
    taken: AtomicU64::new(0),
};

/// Runs `f` three times unobserved and thirty times counted.
fn steady(what: &str, mut f: impl FnMut()) {
    (0..3).for_each(|_| f());
    ALLOCATOR.taken.store(0, SeqCst);
    ALLOCATOR.thread.store(me(), SeqCst);
    (0..30).for_each(|_| f());
    ALLOCATOR.thread.store(0, SeqCst);
    assert_eq!(
        ALLOCATOR.taken.load(SeqCst),
        0,
        "{what}: allocations in 30 launches"
    );
}

fn layout(n: i64) -> Layout {
    let mut l = Layout {
        dtype: DType::F32.id(),
        rank: 1,
        ..Layout::ABSENT
    };
    (l.shape[0], l.stride[0]) = (n, 1);
    l
}

#[test]
fn launches_allocate_nothing() {
    let t = Simulated::new(
        "steady",
        &["cuda.libnvrtc", "cuda.libcublaslt", "cuda.libnccl"],
    );
    let d = t.b.open(0).unwrap();
    let s = t.b.stream(&d, 0).unwrap();
    let m = t.device_memory(&d, 65536);
    let x = |i: u64| Some(span(&m, i * 256, 256));

    // The count counts.
    ALLOCATOR.thread.store(me(), SeqCst);
    drop(std::hint::black_box(Box::new(7u8)));
    ALLOCATOR.thread.store(0, SeqCst);
    assert!(ALLOCATOR.taken.load(SeqCst) > 0);

    let three = [layout(64); 3];
    let params = NoParams::default();
    let o = OpRequest::new(op::ADD, &three, params.as_bytes(), 0);
    let (add, _) = CudaOps::prepare(&t.b, &d, &o).unwrap();
    steady("add", || {
        CudaOps::launch(&t.b, &add, &s, &[x(0), x(1), x(2)], None, Dyn(&[])).unwrap();
        t.b.stream_sync(&s, LONG).unwrap();
    });

    // More operands than fit the stack's list.
    let mut many = vec![Layout::ABSENT];
    many.extend([layout(64); 100]);
    let o = OpRequest::new(op::MULTI_SCALE, &many, params.as_bytes(), 0);
    let (scale, plan) = CudaOps::prepare(&t.b, &d, &o).unwrap();
    let mut operands = vec![None];
    operands.extend((0..100).map(x));
    let ws = (plan.workspace_bytes > 0).then(|| span(&m, 32768, plan.workspace_bytes));
    let dynamic = ScaleDyn {
        scale: 0.5,
        ..ScaleDyn::default()
    };
    steady("multi_scale", || {
        CudaOps::launch(&t.b, &scale, &s, &operands, ws, Dyn(dynamic.as_bytes())).unwrap();
        t.b.stream_sync(&s, LONG).unwrap();
    });

    let id = CudaCollectives::unique_id(&t.b, &d).unwrap();
    let config = CommConfig {
        rank: 0,
        nranks: 1,
        timeout: LONG,
        members: Default::default(),
        kv_prefix: "test/".into(),
        name: "dp".into(),
    };
    let c = CudaCollectives::init(&t.b, &d, &id, config).unwrap();
    let w = t.b.alloc(&d, MemKind::HostPinned, 4096, 0).unwrap();
    let words = |from: u64, n: u64| Some(span(&w, from * 4, n * 4));
    let coll = |kind, reduce| Coll {
        kind,
        dtype: DType::F32,
        reduce,
        root: 0,
        peer: 0,
        count: 16,
        send: words(0, 16),
        recv: words(64, 16),
        send_counts: &[],
        send_offsets: &[],
        recv_counts: &[],
        recv_offsets: &[],
        scale: 0.5,
        scale_dev: None,
        flags: 0,
        seq: 0,
    };
    let group = [
        coll(abi::COLL_ALL_REDUCE, abi::RED_SUM),
        coll(abi::COLL_ALL_GATHER, 0),
        coll(abi::COLL_REDUCE_SCATTER, abi::RED_PREMUL_SUM),
        coll(abi::COLL_ALL_TO_ALL, 0),
    ];
    steady("a group of collectives", || {
        CudaCollectives::launch(&t.b, &c, &s, &group).unwrap();
        t.b.stream_sync(&s, LONG).unwrap();
    });
}
