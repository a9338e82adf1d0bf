//! Ranks as threads over the backend's traits, and small helpers to move values in and out of pinned memory.

#![allow(dead_code)]

use crossweave_backend_cpu::{Comm, CpuBackend, CpuCollectives, Device, Mem, Stream};
use crossweave_plugin::abi::DType;
use crossweave_plugin::{Backend, Coll, Collectives, CommConfig, Host, MemKind, Result, Span};
use std::sync::{Barrier, mpsc};
use std::time::Duration;

pub fn backend() -> CpuBackend {
    CpuBackend::init(Host::none()).unwrap()
}

pub fn config(rank: usize, n: usize, name: &str, timeout: Duration) -> CommConfig {
    CommConfig {
        rank: rank as u32,
        nranks: n as u32,
        timeout: Some(timeout),
        members: Default::default(),
        kv_prefix: String::new(),
        name: name.into(),
    }
}

/// A rank: its device, stream and communicator.
pub struct Rank<'a> {
    pub b: &'a CpuBackend,
    pub d: Device,
    pub stream: Stream,
    pub comm: Comm,
    pub rank: usize,
    pub n: usize,
}

/// Runs `body` on `n` threads that form one communicator, when all have joined it: who comes after the others have left forms another.
/// A panic of one reaches the test.
pub fn ranks(b: &CpuBackend, n: usize, body: impl Fn(&Rank<'_>) + Sync) {
    ranks_within(b, n, Duration::from_secs(60), body);
}

pub fn ranks_within(b: &CpuBackend, n: usize, timeout: Duration, body: impl Fn(&Rank<'_>) + Sync) {
    let id = CpuCollectives::unique_id(b, &b.open(0).unwrap()).unwrap();
    let joined = Barrier::new(n);
    std::thread::scope(|s| {
        for rank in 0..n {
            let (id, body, joined) = (&id, &body, &joined);
            s.spawn(move || {
                let d = b.open(0).unwrap();
                let cfg = config(rank, n, "test", timeout);
                let comm = CpuCollectives::init(b, &d, id, cfg);
                joined.wait();
                let comm = comm.unwrap();
                let stream = b.stream(&d, 0).unwrap();
                body(&Rank {
                    b,
                    d,
                    stream,
                    comm,
                    rank,
                    n,
                });
            });
        }
    });
}

/// A collective without operands.
pub fn coll<'a>(kind: u32, dtype: DType, count: u64) -> Coll<'a, Mem> {
    Coll {
        kind,
        dtype,
        reduce: 0,
        root: 0,
        peer: 0,
        count,
        send: None,
        recv: None,
        send_counts: &[],
        send_offsets: &[],
        recv_counts: &[],
        recv_offsets: &[],
        scale: 1.0,
        scale_dev: None,
        flags: 0,
        seq: 0,
    }
}

/// The same collective once more.
pub fn c_like<'a>(c: &Coll<'a, Mem>) -> Coll<'a, Mem> {
    Coll {
        send: c.send,
        recv: c.recv,
        send_counts: c.send_counts,
        recv_counts: c.recv_counts,
        reduce: c.reduce,
        ..coll(c.kind, c.dtype, c.count)
    }
}

/// Equal as bytes, so that a NaN equals itself and -0 differs from 0.
pub fn same_bits<T: Copy>(a: &[T], b: &[T]) -> bool {
    // SAFETY: plain numbers without padding, viewed as bytes.
    let view = |x: &[T]| unsafe {
        std::slice::from_raw_parts(x.as_ptr().cast::<u8>(), size_of_val(x)).to_vec()
    };
    view(a) == view(b)
}

impl Rank<'_> {
    pub fn memory<T>(&self, n: usize) -> Mem {
        let bytes = (n * size_of::<T>()) as u64;
        self.b
            .alloc(&self.d, MemKind::HostPinned, bytes, 0)
            .unwrap()
    }

    pub fn part<'m, T>(&self, m: &'m Mem, at: usize, n: usize) -> Span<'m, Mem> {
        Span {
            mem: m,
            offset: (at * size_of::<T>()) as u64,
            bytes: (n * size_of::<T>()) as u64,
        }
    }

    pub fn write<T: Copy>(&self, m: &Mem, at: usize, x: &[T]) {
        assert!((at + x.len()) * size_of::<T>() <= m.bytes() as usize);
        // SAFETY: pinned memory long enough; the streams that use it are idle.
        unsafe {
            let to = self.b.map(m).unwrap().cast::<T>().add(at);
            std::ptr::copy_nonoverlapping(x.as_ptr(), to, x.len());
        }
    }

    pub fn read<T: Copy>(&self, s: &Span<'_, Mem>) -> Vec<T> {
        // SAFETY: pinned memory; the streams that use it are idle.
        unsafe {
            let from = self
                .b
                .map(s.mem)
                .unwrap()
                .add(s.offset as usize)
                .cast::<T>();
            std::slice::from_raw_parts(from, s.bytes as usize / size_of::<T>()).to_vec()
        }
    }

    pub fn launch(&self, group: &[Coll<'_, Mem>]) -> Result<()> {
        CpuCollectives::launch(self.b, &self.comm, &self.stream, group)
    }

    pub fn sync(&self) -> Result<()> {
        self.b
            .stream_sync(&self.stream, Some(Duration::from_secs(60)))
    }

    /// Holds the stream until the sender is dropped.
    pub fn stall(&self) -> mpsc::Sender<()> {
        let (open, gate) = mpsc::channel::<()>();
        let wait = Box::new(move |_| {
            let _ = gate.recv();
        });
        self.b.host_call(&self.stream, wait).unwrap();
        open
    }
}
