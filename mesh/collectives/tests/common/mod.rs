//! Ranks as threads over the cpu plugin, whole or with cells hidden, and values that make a wrong order of sums visible.
#![allow(dead_code)]

use crossweave_collectives::Collectives;
use crossweave_hal::abi::*;
use crossweave_hal::{
    Bootstrap, Buffer, CollectiveCell, CommOptions, DType, Device, HostServices, KvStore, LocalKv,
    Plugin, RawPlugin, Reduce, Result, Stream, Tag,
};
use half::{bf16, f16};
use std::sync::Arc;
use std::time::Duration;

pub struct Boot(pub Arc<dyn KvStore>);
impl Bootstrap for Boot {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.0.set(key, value)
    }
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        self.0.get(key, Some(timeout))
    }
}

/// What vendors may lack: nothing; all but the mandatory cells; everything but sends and receives.
pub fn masks() -> Vec<(&'static str, Vec<CollectiveCell>)> {
    let any = CollectiveCell::kind;
    let optional = [
        COLL_REDUCE_SCATTER,
        COLL_REDUCE,
        COLL_ALL_TO_ALL,
        COLL_ALL_TO_ALL_V,
        COLL_ALL_GATHER_V,
        COLL_BARRIER,
    ];
    let mut mandatory: Vec<_> = optional.map(any).to_vec();
    for d in DType::ALL.into_iter().filter(|d| *d != DType::F32) {
        mandatory.push(CollectiveCell {
            dtype: Some(d),
            ..any(COLL_ALL_REDUCE)
        });
    }
    for r in [RED_PROD, RED_MIN, RED_MAX, RED_AVG, RED_PREMUL_SUM] {
        mandatory.push(CollectiveCell {
            reduce: Some(r),
            ..any(COLL_ALL_REDUCE)
        });
    }
    let mut bare: Vec<_> = optional.map(any).to_vec();
    bare.extend([COLL_ALL_REDUCE, COLL_ALL_GATHER, COLL_BROADCAST].map(any));
    vec![
        ("complete", vec![]),
        ("mandatory cells only", mandatory),
        ("sends and receives only", bare),
    ]
}

pub struct Rank {
    pub device: Device,
    pub s: Stream,
    pub comm: Collectives,
    pub rank: u32,
    pub n: u32,
}

/// Runs `body` on `n` threads that form one group; returns what each rank gives.
pub fn ranks<T: Send>(
    hidden: &[CollectiveCell],
    n: u32,
    body: impl Fn(&mut Rank) -> T + Sync,
) -> Vec<T> {
    let kv: Arc<dyn KvStore> = Arc::new(LocalKv::default());
    let host = HostServices::builder()
        .config("cpu.threads", "1")
        .kv(kv.clone())
        .build();
    let raw = RawPlugin::from_static::<crossweave_backend_cpu::CpuBackend>(&host).unwrap();
    let plugin = Plugin::new(raw).without_collectives(hidden);
    let one = |rank| {
        let device = plugin.open(0).unwrap();
        let options = CommOptions {
            name: "dp".into(),
            timeout: Some(Duration::from_secs(60)),
        };
        let comm = Collectives::new(&device, &Boot(kv.clone()), rank, n, &options).unwrap();
        let s = device.stream("test", 0).unwrap();
        body(&mut Rank {
            device,
            s,
            comm,
            rank,
            n,
        })
    };
    let one = &one;
    std::thread::scope(|t| {
        let running: Vec<_> = (0..n).map(|r| t.spawn(move || one(r))).collect();
        running.into_iter().map(|h| h.join().unwrap()).collect()
    })
}

impl Rank {
    pub fn upload(&self, bytes: &[u8]) -> Buffer {
        let b = self
            .device
            .alloc(&self.s, bytes.len() as u64, Tag::Grad)
            .unwrap();
        self.s.write(b.all(), bytes).unwrap();
        b
    }
    pub fn poisoned(&self, bytes: u64) -> Buffer {
        let b = self.device.alloc(&self.s, bytes, Tag::Grad).unwrap();
        if bytes > 0 {
            self.s.fill(b.all(), 0xff, 1).unwrap();
        }
        b
    }
    pub fn download(&self, b: &Buffer) -> Vec<u8> {
        let mut v = vec![0; b.bytes() as usize];
        self.s.read(b.all(), &mut v).unwrap();
        v
    }
}

/// A number of the tests: small, with values that cancel and swamp each other.
pub fn value(rank: u32, i: u64) -> f64 {
    let x = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (u64::from(rank) + 1).wrapping_mul(0xd1b5_4a32_d192_ed03);
    let x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16;
    let big = [1.0, 1.0, 300.0, -300.0][(x >> 8) as usize % 4];
    ((x % 2001) as f64 - 1000.0) / 1024.0 * big
}

pub fn encode(dtype: DType, x: f64) -> Vec<u8> {
    match dtype {
        DType::F64 => x.to_le_bytes().to_vec(),
        DType::F32 => (x as f32).to_le_bytes().to_vec(),
        DType::Bf16 => bf16::from_f32(x as f32).to_le_bytes().to_vec(),
        DType::F16 => f16::from_f32(x as f32).to_le_bytes().to_vec(),
        DType::I32 => (x as i32).to_le_bytes().to_vec(),
        DType::I64 => (x as i64).to_le_bytes().to_vec(),
        _ => vec![x as i64 as u8],
    }
}

pub fn vector(dtype: DType, rank: u32, n: u64) -> Vec<u8> {
    (0..n).flat_map(|i| encode(dtype, value(rank, i))).collect()
}

pub fn factor(rank: u32) -> f64 {
    0.5 + f64::from(rank) / 3.0
}

/// The exact reduction in rank order of element `i`: f32 for 16-bit floats with one rounding, integers wrapping.
pub fn folded(dtype: DType, op: Reduce, n: u32, i: u64) -> Vec<u8> {
    if dtype.is_float() {
        let up = |r: u32| -> f32 {
            let x = value(r, i) as f32;
            let x = match dtype {
                DType::Bf16 => bf16::from_f32(x).to_f32(),
                DType::F16 => f16::from_f32(x).to_f32(),
                _ => x,
            };
            match op {
                Reduce::PremulSum(_) => x * factor(r) as f32,
                _ => x,
            }
        };
        let mut a = up(0);
        for r in 1..n {
            let b = up(r);
            a = match op {
                Reduce::Prod => a * b,
                Reduce::Min => a.min(b),
                Reduce::Max => a.max(b),
                _ => a + b,
            };
        }
        if op == Reduce::Avg {
            a /= n as f32;
        }
        return encode(dtype, f64::from(a));
    }
    let wide = |r: u32| value(r, i) as i64;
    let mut a = match dtype {
        DType::U8 => i64::from(wide(0) as u8),
        _ => wide(0),
    };
    for r in 1..n {
        let b = match dtype {
            DType::U8 => i64::from(wide(r) as u8),
            _ => wide(r),
        };
        a = match op {
            Reduce::Prod => a.wrapping_mul(b),
            Reduce::Min => a.min(b),
            Reduce::Max => a.max(b),
            _ => a.wrapping_add(b),
        };
    }
    match dtype {
        DType::I32 => (a as i32).to_le_bytes().to_vec(),
        DType::I64 => a.to_le_bytes().to_vec(),
        _ => vec![a as u8],
    }
}
