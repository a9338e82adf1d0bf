//! Measures matrix products against the machine's multiply-add peak: `cargo run --release -p crossweave-backend-cpu --example gemm_bench`.

use crossweave_abi::Layout;
use crossweave_abi::op::{self, FLAG_ACCUM, MatmulParams};
use crossweave_backend_cpu::kernel::Launch;
use crossweave_backend_cpu::ops;
use crossweave_backend_cpu::team::Team;
use crossweave_plugin::{DType, Op};
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

/// Best of `n` runs, in seconds.
fn best(n: usize, mut f: impl FnMut()) -> f64 {
    f();
    let once = |f: &mut dyn FnMut()| {
        let t = Instant::now();
        f();
        t.elapsed().as_secs_f64()
    };
    (0..n).map(|_| once(&mut f)).fold(f64::MAX, f64::min)
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
    let s = best(3, || drop(std::hint::black_box(unsafe { spin(n) })));
    (n * 12 * 16) as f64 / s / 1e9
}
#[cfg(not(target_arch = "x86_64"))]
fn peak() -> f64 {
    f64::NAN
}

fn main() {
    let peak = peak();
    println!("peak of one thread (AVX2 FMA): {peak:.1} GFLOP/s");
    let team = Team::solo();
    let shapes: &[(&str, i64, i64, i64, bool, bool, bool)] = &[
        ("qkv fwd  A.W^T", 2048, 2304, 768, false, true, false),
        ("mlp fwd  A.W^T", 2048, 3072, 768, false, true, false),
        ("mlp fwd  A.W", 2048, 3072, 768, false, false, false),
        ("mlp down A.W", 2048, 768, 3072, false, false, false),
        ("dW dY^T.X +=", 768, 3072, 2048, true, false, true),
        ("small 256", 2048, 256, 256, false, true, false),
        ("square", 1024, 1024, 1024, false, false, false),
        ("llama 1536", 2048, 1536, 512, false, true, false),
        ("head A.W^T", 2048, 50304, 768, false, true, false),
        ("head dX", 2048, 768, 50304, false, false, false),
        ("one row A.W^T", 1, 3072, 768, false, true, false),
    ];
    for d in [DType::F32, DType::Bf16, DType::F16] {
        for &(name, m, n, k, ta, tb, acc) in shapes {
            let od = if acc { DType::F32 } else { d };
            let layouts = [
                layout(od, [m, n], [n, 1]),
                layout(d, [m, k], if ta { [1, m] } else { [k, 1] }),
                layout(d, [k, n], if tb { [1, k] } else { [n, 1] }),
            ];
            let params = MatmulParams {
                flags: if acc { FLAG_ACCUM } else { 0 },
                ..MatmulParams::default()
            };
            let o = Op::new(op::MATMUL, &layouts, params.as_bytes(), 0);
            let (kernel, plan) = ops::prepare(&o, team.threads()).expect("supported");
            let sizes = [m * n, m * k, k * n];
            let mut bufs: Vec<Vec<u32>> = sizes
                .iter()
                .map(|&s| vec![0x3d00_3d00; s as usize])
                .collect();
            let mut work = vec![0u64; plan.workspace_bytes as usize / 8 + 8];
            let ptrs: Vec<*mut u8> = bufs.iter_mut().map(|b| b.as_mut_ptr().cast()).collect();
            let w = work.as_mut_ptr().cast::<u8>();
            let launch = Launch {
                operands: &ptrs,
                workspace: w.wrapping_add(w.align_offset(64)),
                dynamic: &[],
                team: &team,
            };
            let reps = if m * n * k > 1 << 34 { 2 } else { 5 };
            // SAFETY: buffers of the sizes the layouts name.
            let s = best(reps, || unsafe { kernel.run(&launch) });
            let g = 2.0 * (m * n * k) as f64 / s / 1e9;
            println!(
                "{:5} {name:16} {m:5}x{n:5}x{k:5} {:9.3} ms {g:7.1} GFLOP/s {:5.1}%",
                d.name(),
                s * 1e3,
                100.0 * g / peak / team.threads() as f64
            );
        }
    }
}
