//! Measures matrix products and attention against the machine's multiply-add peak: `cargo run --release -p crossweave-backend-cpu --example gemm_bench`.

use crossweave_abi::Layout;
use crossweave_abi::op::{self, AttentionParams, FLAG_ACCUM, FLAG_CAUSAL, MatmulParams};
use crossweave_backend_cpu::isa::Isas;
use crossweave_backend_cpu::kernel::Launch;
use crossweave_backend_cpu::ops;
use crossweave_backend_cpu::team::Team;
use crossweave_plugin::{DType, Host, OpRequest};
use std::time::Instant;

fn layout<const R: usize>(d: DType, shape: [i64; R], stride: [i64; R]) -> Layout {
    let mut l = Layout {
        size: size_of::<Layout>() as u32,
        dtype: d.id(),
        rank: R as u32,
        flags: 0,
        shape: [0; 8],
        stride: [0; 8],
    };
    l.shape[..R].copy_from_slice(&shape);
    l.stride[..R].copy_from_slice(&stride);
    l
}

/// Best of some runs, in seconds of wall time and of processor time (all threads): on a busy machine the second is the more reliable.
#[derive(Clone, Copy)]
struct Best {
    wall: f64,
    cpu: f64,
}

fn best(n: usize, mut f: impl FnMut()) -> Best {
    f();
    let mut b = Best {
        wall: f64::MAX,
        cpu: f64::MAX,
    };
    for _ in 0..n {
        let (t, c) = (Instant::now(), cpu_seconds());
        f();
        b.cpu = b.cpu.min(cpu_seconds() - c);
        b.wall = b.wall.min(t.elapsed().as_secs_f64());
    }
    b
}

/// Processor time of this process so far.
#[cfg(unix)]
fn cpu_seconds() -> f64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `t` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}
#[cfg(not(unix))]
fn cpu_seconds() -> f64 {
    f64::NAN
}

/// Peak of one thread in GFLOP/s: independent multiply-adds in registers.
#[cfg(target_arch = "x86_64")]
fn peak() -> f64 {
    #[target_feature(enable = "avx2,fma")]
    fn spin(n: usize) -> f32 {
        use std::arch::x86_64::*;
        let mut acc = [_mm256_set1_ps(0.5); 12];
        let x = std::hint::black_box(_mm256_set1_ps(0.999));
        let y = std::hint::black_box(_mm256_set1_ps(0.001));
        for _ in 0..n {
            for a in &mut acc {
                *a = _mm256_fmadd_ps(*a, x, y);
            }
        }
        acc.iter().map(|a| _mm256_cvtss_f32(*a)).sum()
    }
    if !is_x86_feature_detected!("fma") {
        return f64::NAN;
    }
    let n = 20_000_000;
    // SAFETY: checked above.
    let s = best(3, || {
        std::hint::black_box(unsafe { spin(n) });
    });
    (n * 12 * 16) as f64 / s.cpu / 1e9
}
#[cfg(not(target_arch = "x86_64"))]
fn peak() -> f64 {
    f64::NAN
}

/// Seconds of one launch, best of `reps`, over buffers of the layouts.
fn measure(team: &Team, reps: usize, id: u32, layouts: &[Layout], params: &[u8]) -> Best {
    let o = OpRequest::new(id, layouts, params, 0);
    let (kernel, plan) = ops::prepare(&o, team.threads(), Isas::detect()).expect("supported");
    let mut bufs: Vec<Vec<u32>> = layouts
        .iter()
        .map(|l| vec![0x3d00_3d00; l.shape[..l.rank as usize].iter().product::<i64>() as usize])
        .collect();
    let mut work = vec![0u64; plan.workspace_bytes as usize / 8 + 8];
    let operands: Vec<*mut u8> = bufs.iter_mut().map(|b| b.as_mut_ptr().cast()).collect();
    let w = work.as_mut_ptr().cast::<u8>();
    let launch = Launch {
        operands: &operands,
        workspace: w.wrapping_add(w.align_offset(64)),
        dynamic: &[],
        team,
    };
    // SAFETY: four bytes per element of every layout.
    best(reps, || unsafe { kernel.run(&launch) })
}

fn matmuls(team: &Team, peak: f64) {
    let shapes: &[(&str, i64, i64, i64, bool, bool, bool)] = &[
        ("qkv fwd A.W^T", 2048, 2304, 768, false, true, false),
        ("mlp fwd A.W^T", 2048, 3072, 768, false, true, false),
        ("mlp fwd A.W", 2048, 3072, 768, false, false, false),
        ("mlp down A.W", 2048, 768, 3072, false, false, false),
        ("dW dY^T.X +=", 768, 3072, 2048, true, false, true),
        ("small 256", 2048, 256, 256, false, true, false),
        ("square", 1024, 1024, 1024, false, false, false),
        ("llama 1536", 2048, 1536, 512, false, true, false),
        ("head A.W^T", 512, 50304, 768, false, true, false),
        ("head dX", 512, 768, 50304, false, false, false),
        ("one row A.W^T", 1, 3072, 768, false, true, false),
    ];
    for d in [DType::F32, DType::Bf16, DType::F16] {
        for &(name, m, n, k, ta, tb, acc) in shapes {
            let layouts = [
                layout(if acc { DType::F32 } else { d }, [m, n], [n, 1]),
                layout(d, [m, k], if ta { [1, m] } else { [k, 1] }),
                layout(d, [k, n], if tb { [1, k] } else { [n, 1] }),
            ];
            let params = MatmulParams {
                flags: if acc { FLAG_ACCUM } else { 0 },
                ..MatmulParams::default()
            };
            let reps = if m * n * k > 1 << 34 { 2 } else { 6 };
            let s = measure(team, reps, op::MATMUL, &layouts, params.as_bytes());
            let what = format!("{:4} {name:14} {m}x{n}x{k}", d.name());
            report(&what, s, 2.0 * (m * n * k) as f64, team, peak);
        }
    }
}

fn attentions(team: &Team, peak: f64) {
    for (b, t, h, hkv, d, causal) in [
        (4, 512, 12, 12, 64, false),
        (4, 512, 12, 12, 64, true),
        (2, 1024, 12, 12, 64, true),
        (1, 2048, 16, 4, 128, true),
    ] {
        for dtype in [DType::F32, DType::Bf16] {
            let q = layout(dtype, [b, t, h, d], [t * h * d, h * d, d, 1]);
            let k = layout(dtype, [b, t, hkv, d], [t * hkv * d, hkv * d, d, 1]);
            let lse = layout(DType::F32, [b, h, t], [h * t, t, 1]);
            let flags = if causal { FLAG_CAUSAL } else { 0 };
            let params = AttentionParams {
                flags,
                ..AttentionParams::default()
            };
            let p = params.as_bytes();
            // Two products forward, five backward; a causal mask needs half of them (plus the diagonal).
            let seen = if causal {
                (t * (t + 1) / 2) as f64
            } else {
                (t * t) as f64
            };
            let flop = 4.0 * (b * h * d) as f64 * seen;
            let what = format!(
                "{:4} B{b} T{t} H{h}/{hkv} D{d}{}",
                dtype.name(),
                if causal { " causal" } else { "" }
            );
            let s = measure(team, 5, op::ATTENTION_FWD, &[q, lse, q, k, k], p);
            report(&format!("fwd {what}"), s, flop, team, peak);
            let s = measure(
                team,
                5,
                op::ATTENTION_BWD,
                &[q, k, k, q, q, q, k, k, lse],
                p,
            );
            report(&format!("bwd {what}"), s, 2.5 * flop, team, peak);
        }
    }
}

fn report(what: &str, s: Best, flop: f64, team: &Team, peak: f64) {
    let (wall, cpu) = (flop / s.wall / 1e9, flop / s.cpu / 1e9);
    println!(
        "{} threads  {what:40} {:9.3} ms {wall:6.1} GFLOP/s;  per processor {cpu:5.1}, {:5.1}% of peak",
        team.threads(),
        s.wall * 1e3,
        100.0 * cpu / peak
    );
}

fn main() {
    let peak = peak();
    println!("peak of one thread (AVX2 FMA): {peak:.1} GFLOP/s");
    for threads in [1, 2] {
        let team = Team::new(threads, &Host::none());
        matmuls(&team, peak);
        attentions(&team, peak);
    }
}
