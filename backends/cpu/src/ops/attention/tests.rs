//! Both directions against a naive f64 reference, the reference's gradients against finite differences, and bits against team sizes.

use super::{Isa, Level, prepare_bwd_on, prepare_fwd_on, varlen};
use crate::kernel::Launch;
use crate::team::Team;
use crossweave_abi::Layout;
use crossweave_abi::op::{self, AttentionParams, FLAG_CAUSAL};
use crossweave_plugin::{DType, Host, OpRequest};
use half::{bf16, f16};

/// Deterministic values in [-1, 1].
fn noise(seed: u64, n: usize) -> Vec<f64> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            (s >> 40) as f64 / (1u64 << 23) as f64 - 1.0
        })
        .collect()
}

#[derive(Clone, Copy, Debug)]
struct Case {
    b: usize,
    tq: usize,
    tk: usize,
    h: usize,
    hkv: usize,
    d: usize,
    causal: bool,
    window: usize,
    dtype: DType,
}

const SMALL: Case = Case {
    b: 1,
    tq: 3,
    tk: 4,
    h: 2,
    hkv: 1,
    d: 3,
    causal: true,
    window: 0,
    dtype: DType::F32,
};

impl Case {
    fn sees(&self, i: usize, j: usize) -> bool {
        let at = i as i64 + self.tk as i64 - self.tq as i64;
        (!self.causal || j as i64 <= at) && (self.window == 0 || j as i64 > at - self.window as i64)
    }
    fn scale(&self) -> f64 {
        1.0 / (self.d as f64).sqrt()
    }
    fn q_len(&self) -> usize {
        self.b * self.tq * self.h * self.d
    }
    fn k_len(&self) -> usize {
        self.b * self.tk * self.hkv * self.d
    }
    fn q_at(&self, b: usize, i: usize, h: usize) -> usize {
        ((b * self.tq + i) * self.h + h) * self.d
    }
    fn k_at(&self, b: usize, j: usize, h: usize) -> usize {
        ((b * self.tk + j) * self.hkv + h * self.hkv / self.h) * self.d
    }
    /// The values the dtype can hold, as f64.
    fn input(&self, seed: u64, n: usize) -> Vec<f64> {
        noise(seed, n)
            .into_iter()
            .map(|x| self.round(2.0 * x))
            .collect()
    }
    fn round(&self, x: f64) -> f64 {
        match self.dtype {
            DType::Bf16 => bf16::from_f64(x).to_f64(),
            DType::F16 => f16::from_f64(x).to_f64(),
            _ => f64::from(x as f32),
        }
    }
    fn each_row(&self, mut f: impl FnMut(usize, usize, usize)) {
        for b in 0..self.b {
            for h in 0..self.h {
                for i in 0..self.tq {
                    f(b, h, i);
                }
            }
        }
    }
    /// Probabilities of a row and its log-sum-exp.
    fn row(&self, q: &[f64], k: &[f64], b: usize, h: usize, i: usize) -> (Vec<f64>, f64) {
        let dot = |j: usize| -> f64 {
            let (x, y) = (self.q_at(b, i, h), self.k_at(b, j, h));
            (0..self.d).map(|e| q[x + e] * k[y + e]).sum::<f64>() * self.scale()
        };
        let s: Vec<f64> = (0..self.tk)
            .map(|j| {
                if self.sees(i, j) {
                    dot(j)
                } else {
                    f64::NEG_INFINITY
                }
            })
            .collect();
        let m = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if m == f64::NEG_INFINITY {
            return (vec![0.0; self.tk], m);
        }
        let lse = m + s.iter().map(|x| (x - m).exp()).sum::<f64>().ln();
        (s.iter().map(|x| (x - lse).exp()).collect(), lse)
    }
    fn forward(&self, q: &[f64], k: &[f64], v: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let (mut o, mut l) = (vec![0.0; self.q_len()], vec![]);
        self.each_row(|b, h, i| {
            let (p, lse) = self.row(q, k, b, h, i);
            l.push(lse);
            for (j, p) in p.iter().enumerate() {
                for e in 0..self.d {
                    o[self.q_at(b, i, h) + e] += p * v[self.k_at(b, j, h) + e];
                }
            }
        });
        (o, l)
    }
    fn backward(&self, q: &[f64], k: &[f64], v: &[f64], g: &[f64]) -> [Vec<f64>; 3] {
        let (o, _) = self.forward(q, k, v);
        let (mut dq, mut dk, mut dv) = (
            vec![0.0; self.q_len()],
            vec![0.0; self.k_len()],
            vec![0.0; self.k_len()],
        );
        self.each_row(|b, h, i| {
            let (p, _) = self.row(q, k, b, h, i);
            let x = self.q_at(b, i, h);
            let delta: f64 = (0..self.d).map(|e| g[x + e] * o[x + e]).sum();
            for (j, p) in p.iter().enumerate() {
                let y = self.k_at(b, j, h);
                let dp: f64 = (0..self.d).map(|e| g[x + e] * v[y + e]).sum();
                let ds = p * (dp - delta) * self.scale();
                for e in 0..self.d {
                    dv[y + e] += p * g[x + e];
                    dq[x + e] += ds * k[y + e];
                    dk[y + e] += ds * q[x + e];
                }
            }
        });
        [dq, dk, dv]
    }

    fn layout(&self, t: usize, h: usize) -> Layout {
        // Rows are padded by three elements, as slices of a fused matrix would be.
        let row = (h * self.d + 3) as i64;
        layout(
            self.dtype,
            &[self.b as i64, t as i64, h as i64, self.d as i64],
            &[t as i64 * row, row, self.d as i64, 1],
        )
    }
    fn store(&self, t: usize, h: usize, x: &[f64]) -> Vec<u8> {
        let mut out = vec![];
        for row in x.chunks(h * self.d) {
            for &x in row.iter().chain(&[7.0; 3]) {
                match self.dtype {
                    DType::Bf16 => out.extend(bf16::from_f64(x).to_bits().to_ne_bytes()),
                    DType::F16 => out.extend(f16::from_f64(x).to_bits().to_ne_bytes()),
                    _ => out.extend((x as f32).to_ne_bytes()),
                }
            }
        }
        assert_eq!(
            out.len() as u64,
            self.dtype.bytes((self.b * t * (h * self.d + 3)) as u64)
        );
        out
    }
    fn load(&self, h: usize, x: &[u8]) -> Vec<f64> {
        let all: Vec<f64> = match self.dtype {
            DType::F32 => x
                .chunks(4)
                .map(|c| f64::from(f32::from_ne_bytes(c.try_into().unwrap())))
                .collect(),
            _ => x
                .chunks(2)
                .map(|c| {
                    let bits = u16::from_ne_bytes(c.try_into().unwrap());
                    if self.dtype == DType::F16 {
                        f16::from_bits(bits).to_f64()
                    } else {
                        bf16::from_bits(bits).to_f64()
                    }
                })
                .collect(),
        };
        for row in all.chunks(h * self.d + 3) {
            assert_eq!(row[h * self.d..], [7.0; 3], "wrote between the rows");
        }
        all.chunks(h * self.d + 3)
            .flat_map(|r| r[..h * self.d].to_vec())
            .collect()
    }

    fn params(&self) -> AttentionParams {
        AttentionParams {
            flags: if self.causal { FLAG_CAUSAL } else { 0 },
            window: self.window as i64,
            ..AttentionParams::default()
        }
    }
    /// Bytes of o and of lse.
    fn run_fwd(&self, isa: Isa, team: &Team, q: &[f64], k: &[f64], v: &[f64]) -> [Vec<u8>; 2] {
        let lse = [self.b as i64, self.h as i64, self.tq as i64];
        let (ql, kl) = (self.layout(self.tq, self.h), self.layout(self.tk, self.hkv));
        let layouts = [
            ql,
            layout(DType::F32, &lse, &[lse[1] * lse[2], lse[2], 1]),
            ql,
            kl,
            kl,
        ];
        let params = self.params();
        let o = OpRequest::new(op::ATTENTION_FWD, &layouts, params.as_bytes(), 0);
        let (kernel, plan) = prepare_fwd_on(&o, team.threads(), isa).unwrap();
        let mut bufs = [
            self.store(self.tq, self.h, &vec![f64::NAN; self.q_len()]),
            vec![0; self.b * self.h * self.tq * 4],
            self.store(self.tq, self.h, q),
            self.store(self.tk, self.hkv, k),
            self.store(self.tk, self.hkv, v),
        ];
        launch(&*kernel, plan.workspace_bytes, team, &mut bufs);
        let [o, lse, ..] = bufs;
        [o, lse]
    }
    /// Bytes of dq, dk, dv.
    #[allow(clippy::too_many_arguments)]
    fn run_bwd(
        &self,
        isa: Isa,
        team: &Team,
        q: &[f64],
        k: &[f64],
        v: &[f64],
        g: &[f64],
        o: &[u8],
        lse: &[u8],
    ) -> [Vec<u8>; 3] {
        let l = [self.b as i64, self.h as i64, self.tq as i64];
        let (ql, kl) = (self.layout(self.tq, self.h), self.layout(self.tk, self.hkv));
        let layouts = [
            ql,
            kl,
            kl,
            ql,
            ql,
            ql,
            kl,
            kl,
            layout(DType::F32, &l, &[l[1] * l[2], l[2], 1]),
        ];
        let params = self.params();
        let desc = OpRequest::new(op::ATTENTION_BWD, &layouts, params.as_bytes(), 0);
        let (kernel, plan) = prepare_bwd_on(&desc, team.threads(), isa).unwrap();
        let nan = |n| vec![f64::NAN; n];
        let mut bufs = [
            self.store(self.tq, self.h, &nan(self.q_len())),
            self.store(self.tk, self.hkv, &nan(self.k_len())),
            self.store(self.tk, self.hkv, &nan(self.k_len())),
            self.store(self.tq, self.h, g),
            o.to_vec(),
            self.store(self.tq, self.h, q),
            self.store(self.tk, self.hkv, k),
            self.store(self.tk, self.hkv, v),
            lse.to_vec(),
        ];
        launch(&*kernel, plan.workspace_bytes, team, &mut bufs);
        let [dq, dk, dv, ..] = bufs;
        [dq, dk, dv]
    }

    fn check(&self, isa: Isa) {
        let (q, k, v) = (
            self.input(1, self.q_len()),
            self.input(2, self.k_len()),
            self.input(3, self.k_len()),
        );
        let g = self.input(4, self.q_len());
        let team = Team::solo();
        let [o, lse] = self.run_fwd(isa, &team, &q, &k, &v);
        let (want, want_lse) = self.forward(&q, &k, &v);
        let tol = match self.dtype {
            DType::F32 => 2e-6,
            DType::F16 => 2e-3,
            _ => 1.6e-2,
        };
        near(self, "o", &self.load(self.h, &o), &want, tol);
        let got: Vec<f64> = lse
            .chunks(4)
            .map(|c| f64::from(f32::from_ne_bytes(c.try_into().unwrap())))
            .collect();
        near(self, "lse", &got, &want_lse, 2e-6);
        let d = self.run_bwd(isa, &team, &q, &k, &v, &g, &o, &lse);
        let want = self.backward(&q, &k, &v, &g);
        for ((d, w), (name, h)) in
            d.iter()
                .zip(&want)
                .zip([("dq", self.h), ("dk", self.hkv), ("dv", self.hkv)])
        {
            near(self, name, &self.load(h, d), w, 4.0 * tol);
        }
    }
}

fn near(c: &Case, name: &str, got: &[f64], want: &[f64], tol: f64) {
    assert_eq!(got.len(), want.len());
    let size = want
        .iter()
        .filter(|x| x.is_finite())
        .fold(1.0, |m: f64, x| m.max(x.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(
            g == w || (g - w).abs() <= tol * size,
            "{c:?}: {name}[{i}] = {g}, want {w}"
        );
    }
}

fn layout(d: DType, shape: &[i64], stride: &[i64]) -> Layout {
    let mut l = Layout {
        size: size_of::<Layout>() as u32,
        dtype: d.id(),
        rank: shape.len() as u32,
        flags: 0,
        shape: [0; 8],
        stride: [0; 8],
    };
    l.shape[..shape.len()].copy_from_slice(shape);
    l.stride[..shape.len()].copy_from_slice(stride);
    l
}

fn launch(kernel: &dyn crate::kernel::Kernel, workspace: u64, team: &Team, bufs: &mut [Vec<u8>]) {
    // NaN everywhere: what is read before it is written shows.
    let mut work = vec![f32::NAN; workspace as usize / 4 + 16];
    let operands: Vec<*mut u8> = bufs.iter_mut().map(|b| b.as_mut_ptr()).collect();
    let w = work.as_mut_ptr().cast::<u8>();
    let l = Launch {
        operands: &operands,
        workspace: w.wrapping_add(w.align_offset(64)),
        dynamic: &[],
        team,
    };
    // SAFETY: buffers of the layouts prepared; `isas` names only what is there.
    unsafe { kernel.run(&l) }
}

/// The best this machine runs.
fn detected() -> Isa {
    Isa::of(Level::detect())
}

fn isas() -> Vec<Isa> {
    let mut v = vec![super::portable(), super::model512(), detected()];
    #[cfg(target_arch = "x86_64")]
    if Level::detect() != Level::Portable {
        v.push(super::avx2());
    }
    v
}

#[test]
fn the_reference_is_the_gradient() {
    for c in [
        SMALL,
        Case {
            causal: false,
            window: 2,
            tq: 4,
            ..SMALL
        },
    ] {
        let mut x = [
            c.input(1, c.q_len()),
            c.input(2, c.k_len()),
            c.input(3, c.k_len()),
        ];
        let g = c.input(4, c.q_len());
        let want = c.backward(&x[0], &x[1], &x[2], &g);
        let loss = |x: &[Vec<f64>; 3]| -> f64 {
            c.forward(&x[0], &x[1], &x[2])
                .0
                .iter()
                .zip(&g)
                .map(|(o, g)| o * g)
                .sum()
        };
        for t in 0..3 {
            for i in 0..x[t].len() {
                let old = x[t][i];
                x[t][i] = old + 1e-5;
                let hi = loss(&x);
                x[t][i] = old - 1e-5;
                let lo = loss(&x);
                x[t][i] = old;
                assert!(
                    ((hi - lo) / 2e-5 - want[t][i]).abs() < 1e-8,
                    "{c:?} {t} {i}"
                );
            }
        }
    }
}

#[test]
fn small_and_odd_shapes() {
    for isa in isas() {
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            for (tq, tk, h, hkv, d) in [
                (1, 1, 1, 1, 1),
                (3, 4, 2, 1, 3),
                (5, 5, 4, 2, 16),
                (17, 33, 3, 3, 20),
                (9, 4, 2, 2, 8),
                (1, 150, 2, 1, 64),
            ] {
                for (causal, window) in [(false, 0), (true, 0), (true, 3), (false, 2)] {
                    Case {
                        b: 2,
                        tq,
                        tk,
                        h,
                        hkv,
                        d,
                        causal,
                        window,
                        dtype,
                    }
                    .check(isa);
                }
            }
        }
    }
}

#[test]
fn many_blocks() {
    for isa in isas() {
        for (causal, window) in [(false, 0), (true, 0), (true, 90)] {
            for dtype in [DType::F32, DType::Bf16] {
                Case {
                    b: 1,
                    tq: 205,
                    tk: 310,
                    h: 2,
                    hkv: 1,
                    d: 40,
                    causal,
                    window,
                    dtype,
                }
                .check(isa);
                Case {
                    b: 1,
                    tq: 205,
                    tk: 205,
                    h: 2,
                    hkv: 2,
                    d: 64,
                    causal,
                    window,
                    dtype,
                }
                .check(isa);
            }
        }
    }
}

#[test]
fn rows_that_see_nothing_are_zero() {
    // More queries than keys: under the causal mask the first ones stand before the first key.
    let c = Case {
        tq: 120,
        tk: 10,
        h: 2,
        hkv: 2,
        d: 16,
        ..SMALL
    };
    c.check(detected());
    let zero = vec![0.5; c.q_len()];
    let kv = vec![0.5; c.k_len()];
    let [o, lse] = c.run_fwd(detected(), &Team::solo(), &zero, &kv, &kv);
    assert!(c.load(2, &o)[..110 * 2 * 16].iter().all(|&x| x == 0.0));
    assert_eq!(lse[..4], f32::NEG_INFINITY.to_ne_bytes());
    // No keys at all.
    let c = Case {
        tk: 0,
        causal: false,
        ..c
    };
    c.check(detected());
}

#[test]
fn bits_do_not_depend_on_the_team() {
    let host = Host::none();
    for (b, h, hkv) in [(1, 2, 1), (2, 3, 3)] {
        let c = Case {
            b,
            h,
            hkv,
            tq: 200,
            tk: 230,
            d: 24,
            ..SMALL
        };
        let (q, k, v) = (
            c.input(1, c.q_len()),
            c.input(2, c.k_len()),
            c.input(3, c.k_len()),
        );
        let g = c.input(4, c.q_len());
        let run = |threads| {
            let team = Team::new(threads, &host);
            let [o, lse] = c.run_fwd(detected(), &team, &q, &k, &v);
            let d = c.run_bwd(detected(), &team, &q, &k, &v, &g, &o, &lse);
            (o, lse, d)
        };
        let want = run(1);
        // Two threads over one key head take the split backward, two over six the single pass.
        for threads in [2, 3] {
            assert!(run(threads) == want, "{threads} threads, {c:?}");
        }
    }
}

impl Case {
    /// Over `len` positions of one sequence.
    fn of(self, len: usize) -> Case {
        Case {
            b: 1,
            tq: len,
            tk: len,
            ..self
        }
    }
    /// Bytes of o, lse, dq, dk, dv of packed sequences (`x` = q, k, v, do).
    fn run_packed(&self, isa: Isa, team: &Team, cu: &[i32], x: &[Vec<f64>; 4]) -> Vec<Vec<u8>> {
        let (t, h, g) = (self.tq, self.h, self.hkv);
        let l = [self.b as i64, h as i64, t as i64];
        let (ql, kl) = (self.layout(t, h), self.layout(t, g));
        let lse = layout(DType::F32, &l, &[l[1] * l[2], l[2], 1]);
        // Every second number: strides are followed.
        let n = (cu.len() / self.b) as i64;
        let lengths = layout(DType::I32, &[l[0], n], &[2 * n, 2]);
        let numbers: Vec<u8> = cu
            .iter()
            .flat_map(|x| [*x, -7])
            .flat_map(i32::to_ne_bytes)
            .collect();
        let params = self.params();
        let q_nan = self.store(t, h, &vec![f64::NAN; self.q_len()]);
        let k_nan = self.store(t, g, &vec![f64::NAN; self.k_len()]);
        let [q, k, v, dout] =
            [(0, h), (1, g), (2, g), (3, h)].map(|(i, n)| self.store(t, n, &x[i]));
        let layouts = [ql, lse, ql, kl, kl, lengths];
        let op = OpRequest::new(op::ATTENTION_VARLEN_FWD, &layouts, params.as_bytes(), 0);
        let (kernel, plan) = varlen::prepare_fwd_on(&op, team.threads(), isa).unwrap();
        let mut bufs = [
            q_nan.clone(),
            vec![0xff; self.b * h * t * 4],
            q.clone(),
            k.clone(),
            v.clone(),
            numbers.clone(),
        ];
        launch(&*kernel, plan.workspace_bytes, team, &mut bufs);
        let [o, stats, ..] = bufs;
        let layouts = [ql, kl, kl, ql, ql, ql, kl, kl, lse, lengths];
        let op = OpRequest::new(op::ATTENTION_VARLEN_BWD, &layouts, params.as_bytes(), 0);
        let (kernel, plan) = varlen::prepare_bwd_on(&op, team.threads(), isa).unwrap();
        let mut bufs = [
            q_nan,
            k_nan.clone(),
            k_nan,
            dout,
            o.clone(),
            q,
            k,
            v,
            stats.clone(),
            numbers,
        ];
        launch(&*kernel, plan.workspace_bytes, team, &mut bufs);
        let [dq, dk, dv, ..] = bufs;
        vec![o, stats, dq, dk, dv]
    }
    /// Holds packed sequences to `attention_*` on each segment (`first, end`), bit for bit, and to zeros outside of them.
    fn check_packed(&self, isa: Isa, team: &Team, cu: &[i32], segments: &[(usize, usize)]) {
        let (h, g, d) = (self.h, self.hkv, self.d);
        let x = [(1, h), (2, g), (3, g), (4, h)].map(|(seed, n)| self.input(seed, self.tq * n * d));
        let got = self.run_packed(isa, team, cu, &x);
        let mut want: Vec<Vec<u8>> = [h, g, g]
            .iter()
            .map(|n| self.store(self.tq, *n, &vec![0.0; self.tq * n * d]))
            .collect();
        let mut o = want[0].clone();
        let mut stats = f32::NEG_INFINITY.to_ne_bytes().repeat(h * self.tq);
        let bytes = |n: usize| self.dtype.bytes((n * d + 3) as u64) as usize;
        for &(first, end) in segments {
            let one = self.of(end - first);
            let cut = |i: usize, n: usize| x[i][first * n * d..end * n * d].to_vec();
            let (q, k, v, dout) = (cut(0, h), cut(1, g), cut(2, g), cut(3, h));
            let [oo, lse] = one.run_fwd(isa, team, &q, &k, &v);
            let grads = one.run_bwd(isa, team, &q, &k, &v, &dout, &oo, &lse);
            o[first * bytes(h)..end * bytes(h)].copy_from_slice(&oo);
            for (head, row) in lse.chunks(4 * (end - first)).enumerate() {
                let at = 4 * (head * self.tq + first);
                stats[at..at + row.len()].copy_from_slice(row);
            }
            for ((all, part), n) in want.iter_mut().zip(&grads).zip([h, g, g]) {
                all[first * bytes(n)..end * bytes(n)].copy_from_slice(part);
            }
        }
        let want = [vec![o, stats], want].concat();
        for ((name, got), want) in ["o", "lse", "dq", "dk", "dv"].iter().zip(&got).zip(&want) {
            assert!(got == want, "{self:?}, cu {cu:?}: {name} differs");
        }
    }
}

#[test]
fn a_segment_has_the_bits_of_attention_on_it_alone() {
    let host = Host::none();
    for isa in isas() {
        for dtype in [DType::F32, DType::Bf16] {
            for (causal, window) in [(true, 0), (true, 5), (false, 0)] {
                let c = Case {
                    h: 4,
                    hkv: 2,
                    d: 24,
                    causal,
                    window,
                    dtype,
                    ..SMALL
                }
                .of(320);
                // Positions of no segment on both sides, empty segments, one position, more than a block of queries and of keys.
                let cu = [3, 3, 4, 114, 114, 304, 311, 311];
                let parts = [(3, 4), (4, 114), (114, 304), (304, 311)];
                for threads in [1, 3] {
                    c.check_packed(isa, &Team::new(threads, &host), &cu, &parts);
                }
            }
        }
    }
    // Rows are apart: two give what each gives.
    let c = Case { d: 8, ..SMALL }.of(150);
    let x = [(1, 2), (2, 1), (3, 1), (4, 2)].map(|(seed, n)| c.input(seed, 2 * 150 * n * 8));
    let team = Team::new(3, &host);
    let cu = [0, 7, 120, 150, 10, 10, 140, 140];
    let got = Case { b: 2, ..c }.run_packed(detected(), &team, &cu, &x);
    let half = |row: usize| {
        let x = x
            .each_ref()
            .map(|x| x[row * x.len() / 2..][..x.len() / 2].to_vec());
        c.run_packed(detected(), &team, &cu[4 * row..][..4], &x)
    };
    for (got, (a, b)) in got.iter().zip(half(0).iter().zip(&half(1))) {
        assert!(*got == [&a[..], b].concat());
    }
    // One segment: whole sequences; and none at all.
    let c = Case { d: 8, ..SMALL }.of(130);
    c.check_packed(detected(), &Team::solo(), &[0, 130], &[(0, 130)]);
    c.check_packed(detected(), &Team::solo(), &[0], &[]);
    c.check_packed(detected(), &Team::solo(), &[0, 0, 0], &[]);
}

/// What the op's row calls wrong numbers: whatever they are, the kernel stays inside its operands and ends.
#[test]
fn lengths_out_of_order_stay_inside() {
    let c = Case { d: 8, ..SMALL }.of(40);
    let parts: &[(usize, usize)] = &[(0, 30), (30, 40)];
    c.check_packed(
        detected(),
        &Team::solo(),
        &[-9, 30, 20, i32::MAX, i32::MIN, 40],
        parts,
    );
    let host = Host::none();
    let x = [1, 2, 3, 4].map(|seed| c.input(seed, c.q_len().max(c.k_len())));
    let all: Vec<i32> = (0..200).map(|i| (i * 7919) % 61 - 10).collect();
    let one = Case { hkv: 2, ..c };
    for threads in [1, 3] {
        one.run_packed(detected(), &Team::new(threads, &host), &all, &x);
    }
}
