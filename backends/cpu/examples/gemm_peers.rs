//! Our matrix product against the `gemm` crate and, where this machine has them, oneDNN and OpenBLAS: one thread each, ratios in one run.
//!
//! `cargo run --release -p crossweave-backend-cpu --features peers --example gemm_peers`
//!
//! The contenders take turns (A B C A B C), and the least time of each counts, so that a busy moment hits nobody in particular.

use crossweave_abi::Layout;
use crossweave_abi::op::{self, MatmulParams};
use crossweave_backend_cpu::isa::Isas;
use crossweave_backend_cpu::kernel::Launch;
use crossweave_backend_cpu::ops;
use crossweave_backend_cpu::team::Team;
use crossweave_plugin::{DType, OpRequest};
use libloading::Library;
use std::ffi::{c_char, c_int};
use std::time::Instant;

/// `C = op(A) op(B)`, row-major f32.
#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    m: usize,
    n: usize,
    k: usize,
    ta: bool,
    tb: bool,
}

#[rustfmt::skip]
const SHAPES: [Shape; 8] = [
    Shape { name: "square", m: 1024, n: 1024, k: 1024, ta: false, tb: false },
    Shape { name: "tiny up", m: 2048, n: 1024, k: 256, ta: false, tb: false },
    Shape { name: "tiny down", m: 2048, n: 256, k: 1024, ta: false, tb: false },
    Shape { name: "tiny dW", m: 256, n: 1024, k: 2048, ta: true, tb: false },
    Shape { name: "gpt2 up", m: 1024, n: 3072, k: 768, ta: false, tb: false },
    Shape { name: "gpt2 dX", m: 1024, n: 768, k: 3072, ta: false, tb: true },
    Shape { name: "gpt2 dW", m: 768, n: 3072, k: 1024, ta: true, tb: false },
    Shape { name: "head", m: 512, n: 50304, k: 768, ta: false, tb: true },
];

/// Runs one product.
type Contender = Box<dyn FnMut(&Shape, &[f32], &[f32], &mut [f32])>;

fn ours() -> Contender {
    let team = Team::solo();
    Box::new(move |s, a, b, c| {
        let mat = |rows: usize, cols: usize, t: bool| {
            let (r, c) = (rows as u64, cols as u64);
            let stride = if t { [1, r as i64] } else { [c as i64, 1] };
            Layout::strided(DType::F32, &[r, c], &stride)
        };
        let layouts = [
            mat(s.m, s.n, false),
            mat(s.m, s.k, s.ta),
            mat(s.k, s.n, s.tb),
        ];
        let params = MatmulParams::default();
        let o = OpRequest::new(op::MATMUL, &layouts, params.as_bytes(), 0);
        let (kernel, plan) =
            ops::prepare(&o, 1, Isas::detect()).expect("f32 products are supported");
        let mut work = vec![0u64; plan.workspace_bytes as usize / 8 + 8];
        let w = work.as_mut_ptr().cast::<u8>();
        let operands = [
            c.as_mut_ptr().cast::<u8>(),
            a.as_ptr().cast_mut().cast(),
            b.as_ptr().cast_mut().cast(),
        ];
        let launch = Launch {
            operands: &operands,
            workspace: w.wrapping_add(w.align_offset(64)),
            dynamic: &[],
            team: &team,
        };
        // SAFETY: the slices hold the elements of the layouts; only `c` is written.
        unsafe { kernel.run(&launch) };
    })
}

fn gemm_crate() -> Contender {
    Box::new(|s, a, b, c| {
        let (m, n, k) = (s.m as isize, s.n as isize, s.k as isize);
        let (ars, acs) = if s.ta { (1, m) } else { (k, 1) };
        let (brs, bcs) = if s.tb { (1, k) } else { (n, 1) };
        // SAFETY: the slices hold `m k`, `k n` and `m n` elements with these strides.
        unsafe {
            gemm::gemm(
                s.m,
                s.n,
                s.k,
                c.as_mut_ptr(),
                1,
                n,
                false,
                a.as_ptr(),
                acs,
                ars,
                b.as_ptr(),
                bcs,
                brs,
                0.0,
                1.0,
                false,
                false,
                false,
                gemm::Parallelism::None,
            )
        }
    })
}

type Dnnl = unsafe extern "C" fn(
    c_char,
    c_char,
    i64,
    i64,
    i64,
    f32,
    *const f32,
    i64,
    *const f32,
    i64,
    f32,
    *mut f32,
    i64,
) -> c_int;
type Cblas = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    f32,
    *const f32,
    c_int,
    *const f32,
    c_int,
    f32,
    *mut f32,
    c_int,
);
type SetThreads = unsafe extern "C" fn(c_int);

/// Row lengths of the stored A and B.
fn leading(s: &Shape) -> (usize, usize) {
    (if s.ta { s.m } else { s.k }, if s.tb { s.k } else { s.n })
}

fn one_dnn() -> Option<Contender> {
    // SAFETY: well-known libraries whose initialisers have no preconditions; the signatures are those of their headers.
    let (lib, threads) = unsafe {
        let lib = Library::new("libdnnl.so.2").or_else(|_| Library::new("libdnnl.so.3"));
        (lib.ok()?, Library::new("libgomp.so.1").ok()?)
    };
    Some(Box::new(move |s, a, b, c| {
        let (lda, ldb) = leading(s);
        let t = |t: bool| if t { b'T' } else { b'N' } as c_char;
        // SAFETY: as above; the slices hold the matrices.
        unsafe {
            let one = threads
                .get::<SetThreads>(c"omp_set_num_threads")
                .expect("part of OpenMP");
            one(1);
            let f = lib.get::<Dnnl>(c"dnnl_sgemm").expect("part of oneDNN");
            f(
                t(s.ta),
                t(s.tb),
                s.m as i64,
                s.n as i64,
                s.k as i64,
                1.0,
                a.as_ptr(),
                lda as i64,
                b.as_ptr(),
                ldb as i64,
                0.0,
                c.as_mut_ptr(),
                s.n as i64,
            );
        }
    }))
}

fn open_blas() -> Option<Contender> {
    // SAFETY: as for oneDNN.
    let lib = unsafe { Library::new("libopenblas.so.0") }.ok()?;
    Some(Box::new(move |s, a, b, c| {
        let (lda, ldb) = leading(s);
        let t = |t: bool| if t { 112 } else { 111 };
        // SAFETY: as above; 101 is row-major, 111 and 112 are "as it is" and "transposed".
        unsafe {
            let one = lib
                .get::<SetThreads>(c"openblas_set_num_threads")
                .expect("part of OpenBLAS");
            one(1);
            let f = lib.get::<Cblas>(c"cblas_sgemm").expect("part of CBLAS");
            f(
                101,
                t(s.ta),
                t(s.tb),
                s.m as c_int,
                s.n as c_int,
                s.k as c_int,
                1.0,
                a.as_ptr(),
                lda as c_int,
                b.as_ptr(),
                ldb as c_int,
                0.0,
                c.as_mut_ptr(),
                s.n as c_int,
            );
        }
    }))
}

fn main() {
    let mut all: Vec<(&str, Contender)> = vec![("ours", ours()), ("gemm crate", gemm_crate())];
    for (name, c) in [("oneDNN", one_dnn()), ("OpenBLAS", open_blas())] {
        match c {
            Some(c) => all.push((name, c)),
            None => println!("{name}: not on this machine"),
        }
    }
    for s in &SHAPES {
        let fill = |n: usize| (0..n).map(|i| (i % 7) as f32 - 3.0).collect::<Vec<_>>();
        let (a, b) = (fill(s.m * s.k), fill(s.k * s.n));
        let mut results = vec![vec![0.0f32; s.m * s.n]; all.len()];
        let mut least = vec![f64::INFINITY; all.len()];
        let rounds = (20_000_000_000 / (2 * s.m * s.n * s.k)).clamp(4, 40);
        for _ in 0..rounds {
            for (i, (_, f)) in all.iter_mut().enumerate() {
                let start = Instant::now();
                f(s, &a, &b, &mut results[i]);
                least[i] = least[i].min(start.elapsed().as_secs_f64());
            }
        }
        for r in &results[1..] {
            // Small whole numbers: every order of the sums gives the same bits.
            assert!(*r == results[0], "{}: the contenders disagree", s.name);
        }
        let flop = 2.0 * (s.m * s.n * s.k) as f64;
        print!("{:10} {}x{}x{}:", s.name, s.m, s.n, s.k);
        for ((name, _), t) in all.iter().zip(&least) {
            print!(
                "  {name} {:.1} GFLOP/s ({:.2})",
                flop / t / 1e9,
                t / least[0]
            );
        }
        println!();
    }
}
