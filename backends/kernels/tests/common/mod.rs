//! Operands with any strides, storage and alignment; the CPU back end as the oracle; the kernels compiled for the host and run in emulation.

#![allow(dead_code)]

use crossweave_abi::{DType, Layout};
use crossweave_backend_cpu::CpuBackend;
use crossweave_kernels::{ArgBuffer, Dialect, Facts, Family, Kernel, Prepared, source};
use crossweave_plugin::{Backend, Dyn, Host, MemKind, OpRequest, Ops, Span};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, c_char};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A repeatable stream of numbers.
pub struct Rng(pub u64);
impl Rng {
    /// The next 32 bits.
    pub fn bits(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }
    /// Uniform in [-1, 1).
    pub fn unit(&mut self) -> f64 {
        self.bits() as f64 / (1u64 << 30) as f64 - 1.0
    }
    /// Below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.bits() as u64 % n.max(1)
    }
}

fn bf16(v: f32) -> u16 {
    let u = v.to_bits();
    if v.is_nan() {
        return (u >> 16) as u16 | 0x40;
    }
    ((u + 0x7fff + (u >> 16 & 1)) >> 16) as u16
}
fn f16(v: f32) -> u16 {
    // Test values stay in the normal range or are special; rounding to nearest even.
    let u = v.to_bits();
    let (sign, a) = ((u >> 16 & 0x8000) as u16, u & 0x7fff_ffff);
    match a {
        _ if v.is_nan() => sign | 0x7e00,
        0x477f_f000.. => sign | 0x7c00,
        ..0x3880_0000 => sign | (f32::from_bits(a) * 16_777_216.0).round_ties_even() as u16,
        _ => sign | ((a + 0xfff + (a >> 13 & 1) - (112 << 23)) >> 13) as u16,
    }
}
fn of_f16(h: u16) -> f64 {
    let (e, m) = ((h >> 10 & 31) as i32, (h & 0x3ff) as f64);
    let a = match e {
        31 if m > 0.0 => f64::NAN,
        31 => f64::INFINITY,
        0 => m * 2f64.powi(-24),
        _ => (1024.0 + m) * 2f64.powi(e - 25),
    };
    if h & 0x8000 != 0 { -a } else { a }
}

/// An operand with its memory. Around it lie guard bytes, and its first element lies `skew` elements from an aligned address.
#[derive(Clone)]
pub struct Tensor {
    pub layout: Layout,
    pub dtype: DType,
    pub skew: usize,
    pub data: Vec<u8>,
}

pub const ABSENT: Tensor = Tensor {
    layout: Layout::ABSENT,
    dtype: DType::F32,
    skew: 0,
    data: Vec::new(),
};

impl Tensor {
    fn put(&mut self, at: usize, v: f64) {
        let e = (self.dtype.bits() / 8) as usize;
        let b: Vec<u8> = match self.dtype {
            DType::F32 => (v as f32).to_ne_bytes().to_vec(),
            DType::F64 => v.to_ne_bytes().to_vec(),
            DType::Bf16 => bf16(v as f32).to_ne_bytes().to_vec(),
            DType::F16 => f16(v as f32).to_ne_bytes().to_vec(),
            DType::I8 => vec![v as i8 as u8],
            DType::U8 | DType::F8E4M3 => vec![v as u8],
            DType::I32 => (v as i32).to_ne_bytes().to_vec(),
            DType::U32 => (v as u32).to_ne_bytes().to_vec(),
            DType::I64 => (v as i64).to_ne_bytes().to_vec(),
            _ => (v as u64).to_ne_bytes().to_vec(),
        };
        self.data[at * e..][..e].copy_from_slice(&b);
    }

    /// Element `at` of the memory as a number.
    pub fn get(&self, at: usize) -> f64 {
        let e = (self.dtype.bits() / 8) as usize;
        let b = &self.data[at * e..][..e];
        let two = || u16::from_ne_bytes([b[0], b[1]]);
        let four = || [b[0], b[1], b[2], b[3]];
        let eight = || [b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]];
        match self.dtype {
            DType::F32 => f32::from_ne_bytes(four()) as f64,
            DType::F64 => f64::from_ne_bytes(eight()),
            DType::Bf16 => f32::from_bits((two() as u32) << 16) as f64,
            DType::F16 => of_f16(two()),
            DType::I8 => b[0] as i8 as f64,
            DType::U8 | DType::F8E4M3 => b[0] as f64,
            DType::I32 => i32::from_ne_bytes(four()) as f64,
            DType::U32 => u32::from_ne_bytes(four()) as f64,
            DType::I64 => i64::from_ne_bytes(eight()) as f64,
            _ => u64::from_ne_bytes(eight()) as f64,
        }
    }

    /// Elements of the memory, gaps included.
    pub fn len(&self) -> usize {
        self.data.len() / (self.dtype.bits() / 8).max(1) as usize
    }

    fn of(layout: Layout, dtype: DType, mut value: impl FnMut() -> f64) -> Tensor {
        let data = vec![0x5a; layout.extent_bytes() as usize];
        let mut t = Tensor {
            layout,
            dtype,
            skew: 0,
            data,
        };
        let rank = layout.rank as usize;
        for i in 0..layout.numel() {
            let (mut left, mut at) = (i as i64, 0);
            for d in (0..rank).rev() {
                at += left % layout.shape[d] * layout.stride[d];
                left /= layout.shape[d];
            }
            let v = value();
            t.put(at as usize, v);
        }
        t
    }
    /// Dense.
    pub fn new(dtype: DType, shape: &[u64], value: impl FnMut() -> f64) -> Tensor {
        Tensor::of(Layout::contiguous(dtype, shape), dtype, value)
    }
    /// With strides.
    pub fn strided(
        dtype: DType,
        shape: &[u64],
        stride: &[i64],
        value: impl FnMut() -> f64,
    ) -> Tensor {
        Tensor::of(Layout::strided(dtype, shape, stride), dtype, value)
    }
    /// Dense, holding what a correct op overwrites.
    pub fn poison(dtype: DType, shape: &[u64]) -> Tensor {
        let v = if dtype.is_float() { f64::NAN } else { 77.0 };
        Tensor::new(dtype, shape, || v)
    }
    /// Uniform numbers in [-scale, scale).
    pub fn random(rng: &mut Rng, dtype: DType, shape: &[u64], scale: f64) -> Tensor {
        Tensor::new(dtype, shape, || rng.unit() * scale)
    }
    /// The same, so many elements from an aligned address.
    pub fn skewed(mut self, elements: usize) -> Tensor {
        self.skew = elements;
        self
    }
}

/// One op on some operands.
pub struct Case {
    pub name: String,
    pub id: u32,
    pub params: Vec<u8>,
    pub dynamic: Vec<u8>,
    pub operands: Vec<Tensor>,
    /// `(i, j)`: operand i shares the memory of operand j.
    pub alias: Vec<(usize, usize)>,
    /// Allowed error: of the value, and flat. Integers must be equal.
    pub relative: f64,
    pub flat: f64,
}

/// The op on the CPU back end; the operands afterwards.
pub fn oracle(c: &Case) -> Vec<Tensor> {
    let b = CpuBackend::init(Host::none()).unwrap();
    let d = b.open(0).unwrap();
    let s = b.stream(&d, 0).unwrap();
    let layouts: Vec<Layout> = c.operands.iter().map(|t| t.layout).collect();
    let o = OpRequest::new(c.id, &layouts, &c.params, 0);
    let (p, plan) = <CpuBackend as Backend>::Ops::prepare(&b, &d, &o)
        .unwrap_or_else(|e| panic!("{}: the oracle refuses: {e}", c.name));
    let memory = |bytes: usize| {
        b.alloc(&d, MemKind::HostPinned, bytes.max(1) as u64, 0)
            .unwrap()
    };
    let mems: Vec<_> = c.operands.iter().map(|t| memory(t.data.len())).collect();
    for (t, m) in c.operands.iter().zip(&mems) {
        // SAFETY: pinned memory of at least that length, nothing runs yet.
        unsafe { std::ptr::copy_nonoverlapping(t.data.as_ptr(), b.map(m).unwrap(), t.data.len()) };
    }
    let home = |i: usize| {
        c.alias
            .iter()
            .find(|(a, _)| *a == i)
            .map_or(i, |(_, to)| *to)
    };
    let spans: Vec<_> = (0..mems.len())
        .map(|i| {
            layouts[i].present().then(|| Span {
                mem: &mems[home(i)],
                offset: 0,
                bytes: c.operands[i].data.len() as u64,
            })
        })
        .collect();
    let work = memory(plan.workspace_bytes as usize);
    let workspace = (plan.workspace_bytes > 0).then_some(Span {
        mem: &work,
        offset: 0,
        bytes: plan.workspace_bytes,
    });
    <CpuBackend as Backend>::Ops::launch(&b, &p, &s, &spans, workspace, Dyn(&c.dynamic)).unwrap();
    b.stream_sync(&s, None).unwrap();
    let mut out = c.operands.clone();
    for (i, t) in out.iter_mut().enumerate() {
        let m = &mems[home(i)];
        // SAFETY: the stream is idle.
        unsafe {
            std::ptr::copy_nonoverlapping(b.map(m).unwrap(), t.data.as_mut_ptr(), t.data.len())
        };
    }
    out
}

#[repr(C)]
struct Ctx {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    warp: u32,
    seed: u64,
    error: *const c_char,
}
type Entry = unsafe extern "C" fn(*const u8, *mut Ctx) -> i32;

/// The kernels of some cases, compiled for the host.
pub struct Emulation {
    modules: BTreeMap<Family, libloading::Library>,
}

/// The C++ compiler, where there is one.
pub fn compiler() -> Option<String> {
    ["c++", "g++", "clang++"]
        .into_iter()
        .find(|c| {
            Command::new(c)
                .arg("--version")
                .output()
                .is_ok_and(|o| o.status.success())
        })
        .map(String::from)
}

fn compile(cxx: &str, dir: &Path, family: Family, text: String) -> PathBuf {
    let (from, to) = (
        dir.join(format!("{}.cpp", family.name())),
        dir.join(format!("{}.so", family.name())),
    );
    std::fs::write(&from, text).unwrap();
    let out = Command::new(cxx)
        .args([
            "-std=c++17",
            "-O1",
            "-ffp-contract=off",
            "-fno-strict-aliasing",
            "-fPIC",
            "-shared",
            "-w",
            "-o",
        ])
        .args([&to, &from])
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{}:\n{}",
        family.name(),
        String::from_utf8_lossy(&out.stderr)
    );
    to
}

impl Emulation {
    /// Compiles what the prepared ops launch, families at once.
    pub fn new(cxx: &str, name: &str, prepared: &[&Prepared]) -> Emulation {
        Emulation::altered(cxx, name, prepared, |text| text)
    }

    /// The same of source that was altered.
    pub fn altered(
        cxx: &str,
        name: &str,
        prepared: &[&Prepared],
        alter: impl Fn(String) -> String,
    ) -> Emulation {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let mut families: BTreeMap<Family, BTreeSet<Kernel>> = BTreeMap::new();
        for l in prepared.iter().flat_map(|p| &p.launches) {
            families
                .entry(l.kernel.family)
                .or_default()
                .insert(l.kernel.clone());
        }
        let modules = std::thread::scope(|s| {
            let jobs: Vec<_> = families
                .iter()
                .map(|(f, k)| {
                    let (dir, text) = (&dir, alter(source(Dialect::Host, *f, k)));
                    (*f, s.spawn(move || compile(cxx, dir, *f, text)))
                })
                .collect();
            jobs.into_iter()
                .map(|(f, j)| {
                    // SAFETY: a library we just compiled, without constructors.
                    let lib = unsafe { libloading::Library::new(j.join().unwrap()) }.unwrap();
                    (f, lib)
                })
                .collect()
        });
        Emulation { modules }
    }

    /// Runs a prepared op in emulation; the operands afterwards.
    pub fn run(&self, c: &Case, p: &Prepared, warp: u32, seed: u64) -> Vec<Tensor> {
        self.attempt(c, p, warp, seed)
            .unwrap_or_else(|e| panic!("{}: {e}", c.name))
    }

    /// The same, or what the emulation says is wrong with the kernel.
    pub fn attempt(
        &self,
        c: &Case,
        p: &Prepared,
        warp: u32,
        seed: u64,
    ) -> Result<Vec<Tensor>, String> {
        const GUARD: usize = 256;
        let home = |i: usize| {
            c.alias
                .iter()
                .find(|(a, _)| *a == i)
                .map_or(i, |(_, to)| *to)
        };
        // Operands between guard bytes, which are all ones: read as floats they are NaN.
        let mut memory: Vec<Vec<u64>> = Vec::new();
        let mut starts = Vec::new();
        for t in &c.operands {
            let skew = t.skew * (t.dtype.bits() / 8) as usize;
            let mut m = vec![u64::MAX; (t.data.len() + skew + 2 * GUARD).div_ceil(8) + 32];
            let base = m.as_mut_ptr() as usize;
            let at = (base + GUARD).next_multiple_of(256) + skew - base;
            bytes_mut(&mut m)[at..at + t.data.len()].copy_from_slice(&t.data);
            memory.push(m);
            starts.push(at);
        }
        let addresses: Vec<u64> = (0..memory.len())
            .map(|i| {
                if !c.operands[i].layout.present() {
                    return 0;
                }
                let h = home(i);
                memory[h].as_ptr() as u64 + starts[h] as u64
            })
            .collect();
        let mut work = vec![u64::MAX; p.plan.workspace_bytes.div_ceil(8) as usize + 64];
        let workspace = (work.as_mut_ptr() as u64).next_multiple_of(256);
        let values = p
            .values(Dyn(&c.dynamic))
            .unwrap_or_else(|e| panic!("{}: {e}", c.name));
        let mut buffer = ArgBuffer::default();
        for l in &p.launches {
            let lib = &self.modules[&l.kernel.family];
            let entry = l.kernel.entry.as_str();
            // SAFETY: the module exports the entry with this signature and its size beside it.
            let (f, bytes) = unsafe {
                let f = lib.get::<Entry>(entry.as_bytes()).unwrap();
                let n = lib
                    .get::<*const u32>(format!("{entry}_bytes").as_bytes())
                    .unwrap();
                (f, **n)
            };
            let args = l.fill(&addresses, workspace, &values, &mut buffer);
            assert_eq!(
                args.len(),
                bytes as usize,
                "{entry}: bytes of its arguments"
            );
            let mut ctx = Ctx {
                grid: l.grid,
                block: l.block,
                shared: l.shared,
                warp,
                seed,
                error: std::ptr::null(),
            };
            // SAFETY: the arguments point at operands and a workspace of the planned sizes.
            let rc = unsafe { f(args.as_ptr(), &mut ctx) };
            if rc != 0 {
                // SAFETY: a static string of the module.
                let why = unsafe { CStr::from_ptr(ctx.error) }.to_string_lossy();
                return Err(format!("{entry}: {why}"));
            }
        }
        let mut out = c.operands.clone();
        for (i, t) in out.iter_mut().enumerate() {
            let h = home(i);
            let m = bytes_mut(&mut memory[h]);
            let end = starts[h] + c.operands[h].data.len();
            assert!(
                m[..starts[h]].iter().chain(&m[end..]).all(|b| *b == 0xff),
                "{}: bytes outside operand {h} were written",
                c.name
            );
            let bytes = t.data.len();
            t.data.copy_from_slice(&m[starts[h]..starts[h] + bytes]);
        }
        let end = workspace as usize - work.as_ptr() as usize + p.plan.workspace_bytes as usize;
        assert!(
            bytes_mut(&mut work)[end..].iter().all(|b| *b == 0xff),
            "{}: bytes beyond the workspace were written",
            c.name
        );
        Ok(out)
    }
}

fn bytes_mut(v: &mut [u64]) -> &mut [u8] {
    // SAFETY: numbers as their bytes.
    unsafe { std::slice::from_raw_parts_mut(v.as_mut_ptr().cast(), v.len() * 8) }
}

/// The facts the emulation stands for.
pub fn facts(warp: u32) -> Facts {
    Facts {
        dialect: Dialect::Host,
        arch: if warp == 32 { 80 } else { 0 },
        sms: 2,
        warp,
        shared: 96 << 10,
        wgmma: false,
    }
}

/// Compares every operand, inputs and gaps included.
pub fn compare(c: &Case, got: &[Tensor], want: &[Tensor]) {
    if let Some(d) = difference(c, got, want) {
        panic!("{}: {d}", c.name);
    }
}

/// The first difference beyond what the case allows.
pub fn difference(c: &Case, got: &[Tensor], want: &[Tensor]) -> Option<String> {
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        if g.data == w.data {
            continue;
        }
        for at in 0..g.len() {
            let (x, y) = (g.get(at), w.get(at));
            let unit = match g.dtype {
                DType::Bf16 => 1.0 / 128.0,
                DType::F16 => 1.0 / 1024.0,
                t if t.is_float() => c.relative,
                _ => 0.0,
            };
            let flat = if g.dtype.is_float() { c.flat } else { 0.0 };
            let bound = unit.max(c.relative) * y.abs() + flat;
            let exact = !g.dtype.is_float();
            let fine = (x.is_nan() && y.is_nan()) || x == y || (!exact && (x - y).abs() <= bound);
            if !fine {
                return Some(format!(
                    "operand {i} element {at}: {x}, the oracle has {y} (off by {:.3e}, {bound:.3e} allowed)",
                    (x - y).abs()
                ));
            }
        }
    }
    None
}

/// Runs all cases with warps of 32 and 64 threads, in two orders of threads, against the oracle.
pub fn run_all(name: &str, cases: &[Case]) {
    run_on(name, cases, &[32, 64].map(facts));
}

/// The same on devices of these facts.
pub fn run_on(name: &str, cases: &[Case], devices: &[Facts]) {
    let Some(cxx) = compiler() else {
        println!("skipped: {name}: no C++ compiler");
        return;
    };
    let prepared: Vec<Vec<Prepared>> = cases
        .iter()
        .map(|c| {
            let layouts: Vec<Layout> = c.operands.iter().map(|t| t.layout).collect();
            let prepare = |f| {
                let o = OpRequest::new(c.id, &layouts, &c.params, 0);
                crossweave_kernels::prepare(&o, f).unwrap_or_else(|e| panic!("{}: {e}", c.name))
            };
            devices.iter().map(prepare).collect()
        })
        .collect();
    let all: Vec<&Prepared> = prepared.iter().flatten().collect();
    let e = Emulation::new(&cxx, name, &all);
    for (c, p) in cases.iter().zip(&prepared) {
        let want = oracle(c);
        let mut first = None;
        for (p, warp) in p.iter().zip(devices.iter().map(|d| d.warp)) {
            for seed in [0, 7] {
                let got = e.run(c, p, warp, seed);
                compare(c, &got, &want);
                // The order of threads decides nothing.
                if seed == 0 {
                    first = Some(got);
                } else if let Some(f) = &first {
                    for (i, (a, b)) in f.iter().zip(&got).enumerate() {
                        assert!(
                            a.data == b.data,
                            "{}: operand {i} depends on the order of threads",
                            c.name
                        );
                    }
                }
            }
        }
    }
    println!("{name}: {} cases in emulation", cases.len());
}
