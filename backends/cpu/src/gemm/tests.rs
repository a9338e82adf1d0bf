//! Products against f64 with the componentwise bound, over all instruction sets this machine can run or model.

use super::elem::Elem;
use super::tile::{self, Isa};
use super::{Gemm, Operands};
use crate::isa::Isas;
use crate::team::Team;
use crossweave_plugin::Host;

/// A buffer of one storage type.
#[derive(Clone, Debug, PartialEq)]
struct Buf {
    elem: Elem,
    bytes: Vec<u8>,
}

impl Buf {
    fn new(elem: Elem, values: &[f32]) -> Buf {
        let mut words = vec![0u32; values.len() + 1];
        // SAFETY: one word per value holds any element.
        unsafe { elem.narrow(values.as_ptr(), values.len(), words.as_mut_ptr().cast()) };
        let all: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        Buf {
            elem,
            bytes: all[..values.len() * elem.bytes()].to_vec(),
        }
    }
    fn values(&self) -> Vec<f32> {
        let n = self.bytes.len() / self.elem.bytes();
        let mut out = vec![0.0; n];
        // SAFETY: n elements in, n f32 out.
        unsafe { self.elem.widen(self.bytes.as_ptr(), n, out.as_mut_ptr()) };
        out
    }
}

/// Deterministic values in [-1, 1].
fn noise(seed: u64, n: usize) -> Vec<f32> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            (s >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}

struct Case {
    dims: [usize; 4],
    elem: Elem,
    out: Elem,
    ta: bool,
    tb: bool,
    bias: Option<Elem>,
    alpha: f32,
    accumulate: bool,
    threads: usize,
}

impl Case {
    fn new(dims: [usize; 4], elem: Elem) -> Case {
        Case {
            dims,
            elem,
            out: elem,
            ta: false,
            tb: false,
            bias: None,
            alpha: 1.0,
            accumulate: false,
            threads: 1,
        }
    }
    fn operands(&self) -> [Buf; 4] {
        let [batch, m, n, k] = self.dims;
        [
            Buf::new(self.out, &noise(1, batch * m * n)),
            Buf::new(self.elem, &noise(2, batch * m * k)),
            Buf::new(self.elem, &noise(3, batch * k * n)),
            Buf::new(self.bias.unwrap_or(Elem::F32), &noise(4, n)),
        ]
    }
    fn run(&self, isa: Isa, [c, a, b, bias]: &[Buf; 4]) -> Buf {
        let [batch, m, n, k] = self.dims;
        let (mi, ni, ki) = (m as isize, n as isize, k as isize);
        let g = Gemm::new(
            self.dims,
            self.elem,
            if self.ta {
                [1, mi, mi * ki]
            } else {
                [ki, 1, mi * ki]
            },
            if self.tb {
                [ki, 1, ki * ni]
            } else {
                [1, ni, ki * ni]
            },
            self.out,
            [ni, mi * ni],
            self.bias.map(|e| (e, 1)),
            self.alpha,
            self.accumulate,
            self.threads,
            isa,
        );
        let _ = batch;
        let mut c = c.clone();
        let mut work = vec![f32::NAN; g.workspace() / 4 + 64];
        let o = Operands {
            c: c.bytes.as_mut_ptr(),
            a: a.bytes.as_ptr(),
            b: b.bytes.as_ptr(),
            bias: bias.bytes.as_ptr(),
            workspace: work.as_mut_ptr().cast(),
        };
        // SAFETY: dense operands of the planned shapes; `isas` names only what is there.
        unsafe { g.run(o, &Team::new(self.threads, &Host::none())) };
        c
    }
    fn check(&self, isa: Isa) {
        let [batch, m, n, k] = self.dims;
        let bufs = self.operands();
        let got = self.run(isa, &bufs).values();
        let [c, a, b, bias] = bufs.map(|x| x.values());
        let unit = |e: Elem| match e {
            Elem::F32 => 2f64.powi(-24),
            Elem::F16 => 2f64.powi(-11),
            Elem::Bf16 => 2f64.powi(-8),
        };
        for t in 0..batch {
            for i in 0..m {
                for j in 0..n {
                    let (mut sum, mut size) = (0.0f64, 0.0f64);
                    for x in 0..k {
                        let p = t * m * k + if self.ta { x * m + i } else { i * k + x };
                        let q = t * k * n + if self.tb { j * k + x } else { x * n + j };
                        let v = f64::from(a[p]) * f64::from(b[q]) * f64::from(self.alpha);
                        sum += v;
                        size += v.abs();
                    }
                    let at = (t * m + i) * n + j;
                    if self.accumulate {
                        sum += f64::from(c[at]);
                        size += f64::from(c[at]).abs();
                    }
                    if self.bias.is_some() {
                        sum += f64::from(bias[j]);
                        size += f64::from(bias[j]).abs();
                    }
                    let bound = ((k + 4) as f64 * unit(Elem::F32) + unit(self.out)) * size + 1e-30;
                    let d = (f64::from(got[at]) - sum).abs();
                    assert!(
                        d <= bound,
                        "{} {:?} {:?}->{:?} ta {} tb {}: [{t},{i},{j}] = {}, want {sum}, off {d:e} > {bound:e}",
                        isa.name,
                        self.dims,
                        self.elem,
                        self.out,
                        self.ta,
                        self.tb,
                        got[at]
                    );
                }
            }
        }
    }
}

/// The best this machine runs.
fn detected(elem: Elem) -> Isa {
    Isa::of(Isas::detect(), elem)
}

/// What this machine runs, and the models of what it may lack.
fn isas(elem: Elem) -> Vec<Isa> {
    let mut v = vec![tile::portable(), tile::model512(), detected(elem)];
    if elem == Elem::Bf16 {
        v.push(tile::model512bf16());
    }
    #[cfg(target_arch = "x86_64")]
    if tile::Level::detect() != tile::Level::Portable {
        v.push(tile::avx2());
    }
    v
}

const ELEMS: [Elem; 3] = [Elem::F32, Elem::Bf16, Elem::F16];

#[test]
fn every_odd_shape_and_transpose() {
    let sizes = [0, 1, 2, 3, 7, 16, 17, 33, 64, 100];
    let isa = detected(Elem::F32);
    for m in sizes {
        for n in sizes {
            for k in sizes {
                for t in 0..4 {
                    let mut c = Case::new([1, m, n, k], Elem::F32);
                    (c.ta, c.tb) = (t & 1 != 0, t & 2 != 0);
                    c.check(isa);
                }
            }
        }
    }
}

#[test]
fn every_storage_on_every_instruction_set() {
    for elem in ELEMS {
        for isa in isas(elem) {
            for dims in [
                [1, 1, 1, 1],
                [1, 13, 33, 7],
                [2, 25, 48, 64],
                [1, 7, 100, 401],
                [3, 5, 2, 0],
                [1, 100, 40, 1000],
            ] {
                for t in 0..8 {
                    let mut c = Case::new(dims, elem);
                    (c.ta, c.tb, c.accumulate) = (t & 1 != 0, t & 2 != 0, t & 4 != 0);
                    c.alpha = if t & 1 != 0 { 0.75 } else { 1.0 };
                    c.bias = (t & 2 != 0).then_some(elem);
                    c.check(isa);
                    c.out = Elem::F32;
                    c.bias = (t & 4 != 0).then_some(Elem::F32);
                    c.check(isa);
                }
            }
        }
    }
}

#[test]
fn many_blocks_in_every_direction() {
    for (elem, dims) in [
        (Elem::F32, [1, 2100, 70, 800]),
        (Elem::F32, [1, 50, 3200, 390]),
        (Elem::Bf16, [1, 60, 2100, 800]),
        (Elem::Bf16, [1, 2060, 40, 400]),
    ] {
        let mut c = Case::new(dims, elem);
        c.tb = true;
        c.accumulate = true;
        c.bias = Some(Elem::F32);
        c.check(detected(elem));
    }
}

#[test]
fn bits_do_not_depend_on_the_cut() {
    // Row and column blocks of a product, computed alone, are the bits of the whole: what makes results independent of threads.
    for elem in ELEMS {
        for isa in isas(elem) {
            let whole = Case::new([1, 37, 53, 900], elem);
            let bufs = whole.operands();
            let want = whole.run(isa, &bufs);
            let e = elem.bytes();
            for (i0, rows) in [(0, 1), (5, 13), (36, 1)] {
                let part = Case::new([1, rows, 53, 900], elem);
                let mut sub = bufs.clone();
                sub[0].bytes = want.bytes[i0 * 53 * e..][..rows * 53 * e].to_vec();
                sub[1].bytes = bufs[1].bytes[i0 * 900 * e..][..rows * 900 * e].to_vec();
                assert_eq!(part.run(isa, &sub), sub[0], "{} rows {i0}", isa.name);
            }
        }
    }
}

#[test]
fn any_team_gives_the_same_bits() {
    for dims in [[7, 20, 30, 500], [2, 300, 700, 410]] {
        let mut c = Case::new(dims, Elem::Bf16);
        c.bias = Some(Elem::Bf16);
        let bufs = c.operands();
        let isa = detected(Elem::Bf16);
        let want = c.run(isa, &bufs);
        for threads in [2, 3, 16] {
            c.threads = threads;
            assert!(c.run(isa, &bufs) == want, "{dims:?}, {threads} threads");
        }
    }
}

#[test]
fn nan_and_infinity_stay_in_their_row_and_column() {
    for isa in isas(Elem::Bf16) {
        let c = Case::new([1, 20, 35, 50], Elem::Bf16);
        let mut bufs = c.operands();
        let mut a = bufs[1].values();
        a[3 * 50 + 7] = f32::NAN;
        a[5 * 50 + 8] = f32::INFINITY;
        bufs[1] = Buf::new(Elem::Bf16, &a);
        let got = c.run(isa, &bufs).values();
        for i in 0..20 {
            for j in 0..35 {
                let x = got[i * 35 + j];
                match i {
                    3 => assert!(x.is_nan()),
                    5 => assert!(!x.is_finite()),
                    _ => assert!(x.is_finite()),
                }
            }
        }
    }
}
