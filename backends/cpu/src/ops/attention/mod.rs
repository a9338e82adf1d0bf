//! `attention_fwd`, `attention_bwd`: tiled online softmax. Scores are kept transposed (`S^T[key][query]`), so that the softmax runs down
//! columns without any horizontal sum and both products read what is there without repacking.
//!
//! Shapes: B batch, T positions, H heads, D head size; a query block is `BQ` rows, a key block `BK`. Every accumulator is owned by one
//! item of work and filled in a fixed order, so the bits depend neither on the threads nor on which items ran where.

mod beyond;
mod bwd;
pub mod ext;
mod fwd;
mod math;
pub mod selftest;
#[cfg(test)]
mod tests;
pub mod varlen;

use super::view::{F32, FLOATS, arity, output_strided};
use crate::gemm::each;
use crate::gemm::elem::Elem;
use crate::gemm::tile::Level;
use crate::isa::Isas;
use crate::kernel::{Kernel, Launch};
use crossweave_abi::Layout;
use crossweave_abi::op::{AttentionParams, FLAG_CAUSAL, class};
use crossweave_plugin::{Code, DType, OpRequest, Plan, Result, fail, unsupported};

/// Queries of a block: a multiple of every tile's rows and columns.
const BQ: usize = 96;
/// Keys of a block: a multiple of every tile's rows.
const BK: usize = 72;

/// A window that no two positions of a row exceed.
const FURTHEST: i64 = 1 << 42;

fn up(n: usize, to: usize) -> usize {
    n.div_ceil(to) * to
}

/// A `[B, T, H, D]` operand: storage and strides of the first three dims.
#[derive(Clone, Copy)]
struct View {
    elem: Elem,
    stride: [isize; 3],
}

impl View {
    /// Address of element (b, t, h, 0).
    #[inline(always)]
    fn at(&self, p: *mut u8, b: usize, t: usize, h: usize) -> *mut u8 {
        let [sb, st, sh] = self.stride;
        self.elem
            .at_mut(p, b as isize * sb + t as isize * st + h as isize * sh)
    }
}

/// What is computed, for both directions.
#[derive(Clone)]
struct Shape {
    b: usize,
    tq: usize,
    tk: usize,
    h: usize,
    hkv: usize,
    d: usize,
    /// `d` padded to whole vectors of the tile.
    dp: usize,
    scale: f32,
    causal: bool,
    /// Keys a query sees back from its own position, 0 for all.
    window: i64,
    /// Position of query 0 among the keys.
    ahead: i64,
    q: View,
    k: View,
    v: View,
    o: View,
    /// Strides of `lse[B, H, Tq]`.
    lse: [isize; 3],
    /// What there is beyond scale and mask.
    ext: Option<beyond::Ext>,
}

impl Shape {
    /// Keys `lo..hi` that some query of `i0 .. i0 + n` sees.
    fn keys(&self, i0: usize, n: usize) -> (usize, usize) {
        let tk = self.tk as i64;
        let first = i0 as i64 + self.ahead;
        let last = first + n as i64 - 1;
        let hi = if self.causal {
            (last + 1).clamp(0, tk)
        } else {
            tk
        };
        let lo = if self.window > 0 {
            (first - self.window + 1).clamp(0, hi)
        } else {
            0
        };
        (lo as usize, hi as usize)
    }
    /// Those of the block's queries (the first is `i0`) that see key `j`: `lo..hi` within `0..w`.
    #[inline(always)]
    fn queries(&self, i0: usize, w: usize, j: usize) -> (usize, usize) {
        // Query i (counted from i0) stands at position i + here; it sees j when j <= position and j > position - window.
        let here = i0 as i64 + self.ahead;
        let w = w as i64;
        let lo = if self.causal {
            (j as i64 - here).clamp(0, w)
        } else {
            0
        };
        let hi = if self.window > 0 {
            (j as i64 + self.window - here).clamp(lo, w)
        } else {
            w
        };
        (lo as usize, hi as usize)
    }
    /// Query c of a block that starts at `i0` sees keys up to `c + reach` of a block that starts at `j0`.
    fn reach(&self, i0: usize, j0: usize) -> i64 {
        if self.causal {
            i0 as i64 + self.ahead - j0 as i64
        } else {
            BK as i64
        }
    }
    fn q_blocks(&self) -> usize {
        self.tq.div_ceil(BQ)
    }
    fn k_blocks(&self) -> usize {
        self.tk.div_ceil(BK)
    }
}

/// Operand addresses of a launch and its scratch.
struct Ptrs<'a> {
    operands: &'a [*mut u8],
    scratch: *mut f32,
}
// SAFETY: items write disjoint rows; a scratch slot belongs to one thread at a time.
unsafe impl Sync for Ptrs<'_> {}

impl Ptrs<'_> {
    fn slot(&self, i: usize, floats: usize) -> *mut f32 {
        self.scratch.wrapping_add(i * floats)
    }
}

/// The attention code of one instruction set.
#[derive(Clone, Copy)]
pub struct Isa {
    /// Columns of a tile.
    nr: usize,
    portable: bool,
    fwd: unsafe fn(&Shape, &[*mut u8], fwd::Item, *mut f32),
    bwd: unsafe fn(&bwd::Bwd, &[*mut u8], bwd::Item, *mut f32),
}

macro_rules! isa {
    ($fn:ident, $lane:ty, $mr:literal, $nv:literal, $portable:literal $(, $feature:literal)?) => {
        /// The entry points compiled for this instruction set.
        pub fn $fn() -> Isa {
            use crate::gemm::lane::Lane;
            /// # Safety
            /// As `fwd::item`; the processor has the feature.
            $(#[target_feature(enable = $feature)])?
            unsafe fn forward(s: &Shape, p: &[*mut u8], item: fwd::Item, w: *mut f32) {
                // SAFETY: the caller's contract; the features are enabled.
                unsafe { fwd::item::<$lane, $mr, $nv>(s, p, item, w) }
            }
            /// # Safety
            /// As `bwd::item`; the processor has the feature.
            $(#[target_feature(enable = $feature)])?
            unsafe fn backward(s: &bwd::Bwd, p: &[*mut u8], item: bwd::Item, w: *mut f32) {
                // SAFETY: the caller's contract; the features are enabled.
                unsafe { bwd::item::<$lane, $mr, $nv>(s, p, item, w) }
            }
            const NR: usize = $nv * <$lane as Lane>::N;
            const _: () = assert!(BQ % $mr == 0 && BQ % NR == 0 && BK % $mr == 0);
            Isa { nr: NR, portable: $portable, fwd: forward, bwd: backward }
        }
    };
}
isa!(portable, crate::gemm::lane::Portable<8>, 6, 2, true);
#[cfg(target_arch = "x86_64")]
isa!(avx2, crate::gemm::lane::Avx2, 6, 2, false, "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
isa!(
    avx512,
    crate::gemm::lane::Avx512,
    12,
    2,
    false,
    "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"
);
// The control flow of the 512-bit tiles over emulated vectors.
#[cfg(test)]
isa!(model512, crate::gemm::lane::Portable<16>, 12, 2, true);

impl Isa {
    /// The code of a level.
    pub fn of(level: Level) -> Isa {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => avx512(),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => avx2(),
            _ => portable(),
        }
    }
}

/// [`shape`] of an op with `AttentionParams`.
fn plain_shape(op: &OpRequest<'_>, at: usize, o: usize, lse: usize, nr: usize) -> Result<Shape> {
    let p: AttentionParams = op.params()?;
    shape(op, at, o, lse, nr, [p.flags.into(), p.window], p.scale)
}

/// The view of operand `i`, which must be `want` (`[B, T, H, D]`).
fn view(op: &OpRequest<'_>, i: usize, name: &str, want: [usize; 4]) -> Result<View> {
    let Some(l) = op.layout(i) else {
        return fail(
            Code::Invalid,
            format!("attention: operand {name} is absent"),
        );
    };
    let Some(elem) = op.dtype(i).and_then(Elem::of) else {
        return unsupported(format!(
            "attention: dtype {} of {name}, supported are f32, bf16, f16",
            op.dtype(i).map_or("unknown", DType::name)
        ));
    };
    if l.rank != 4 || (0..4).any(|x| l.shape[x] != want[x] as i64) {
        return fail(
            Code::Invalid,
            format!(
                "attention: {name} is {:?}, want {want:?}",
                &l.shape[..l.rank.min(8) as usize]
            ),
        );
    }
    if l.stride[3] != 1 && want[3] > 1 {
        return unsupported(format!("attention: {name} must have unit stride in D"));
    }
    Ok(View {
        elem,
        stride: [
            l.stride[0] as isize,
            l.stride[1] as isize,
            l.stride[2] as isize,
        ],
    })
}

fn dims(l: Option<&Layout>) -> Result<[usize; 4]> {
    match l {
        Some(l) if l.rank == 4 && l.shape[..4].iter().all(|&x| x >= 0) => {
            Ok([0, 1, 2, 3].map(|i| l.shape[i] as usize))
        }
        _ => fail(Code::Invalid, "attention: q and k must be [B, T, H, D]"),
    }
}

/// Reads what both directions share; `at` is where q stands among the operands, `lse` the operand of that name.
fn shape(
    op: &OpRequest<'_>,
    at: usize,
    o: usize,
    lse: usize,
    nr: usize,
    [flags, window]: [i64; 2],
    scale: f64,
) -> Result<Shape> {
    let causal = i64::from(FLAG_CAUSAL);
    if flags & !causal != 0 {
        return unsupported(format!("attention: flags {flags:#x}"));
    }
    if window < 0 {
        return fail(
            Code::Invalid,
            format!("attention: window {window} is negative"),
        );
    }
    let [b, tq, h, d] = dims(op.layout(at))?;
    let [_, tk, hkv, _] = dims(op.layout(at + 1))?;
    if d == 0 || hkv == 0 || h % hkv != 0 {
        return fail(
            Code::Invalid,
            format!("attention: {h} heads over {hkv} key heads of size {d}"),
        );
    }
    let (qs, ks) = ([b, tq, h, d], [b, tk, hkv, d]);
    let l = match op.layout(lse) {
        Some(l)
            if l.rank == 3
                && l.dtype == DType::F32.id()
                && [b, h, tq].iter().zip(l.shape).all(|(&x, y)| x as i64 == y) =>
        {
            [
                l.stride[0] as isize,
                l.stride[1] as isize,
                l.stride[2] as isize,
            ]
        }
        _ => {
            return fail(
                Code::Invalid,
                format!("attention: lse must be f32 [{b}, {h}, {tq}]"),
            );
        }
    };
    Ok(Shape {
        b,
        tq,
        tk,
        h,
        hkv,
        d,
        dp: up(d, nr),
        scale: if scale == 0.0 {
            1.0 / (d as f64).sqrt()
        } else {
            scale
        } as f32,
        causal: flags & causal != 0,
        // No two positions are further apart, and positions are added to it.
        window: window.min(FURTHEST),
        ahead: tk as i64 - tq as i64,
        q: view(op, at, "q", qs)?,
        k: view(op, at + 1, "k", ks)?,
        v: view(op, at + 2, "v", ks)?,
        o: view(op, o, "o", qs)?,
        lse: l,
        ext: None,
    })
}

struct Forward {
    s: Shape,
    isa: Isa,
    slots: usize,
}

impl Kernel for Forward {
    unsafe fn run(&self, l: &Launch<'_>) {
        let blocks = self.s.q_blocks();
        let p = Ptrs {
            operands: l.operands,
            scratch: l.workspace.cast(),
        };
        each(
            l.team,
            self.slots,
            self.s.b * self.s.h * blocks,
            &|slot, i| {
                let head = i / blocks;
                let item = fwd::Item {
                    b: head / self.s.h,
                    h: head % self.s.h,
                    // Late blocks see most keys: they go first, so that the last items to run are short.
                    block: blocks - 1 - i % blocks,
                };
                let p = &p;
                // SAFETY: the caller's contract; the slot is this thread's, the item's outputs are its own.
                unsafe {
                    (self.isa.fwd)(
                        &self.s,
                        p.operands,
                        item,
                        p.slot(slot, fwd::floats(&self.s)),
                    )
                }
            },
        );
    }
}

/// Prepares `attention_fwd`: operands o, lse, q, k, v.
pub fn prepare_fwd(
    op: &OpRequest<'_>,
    threads: usize,
    isas: Isas,
) -> Result<(Box<dyn Kernel>, Plan)> {
    prepare_fwd_on(op, threads, Isa::of(isas.level))
}

fn prepare_fwd_on(op: &OpRequest<'_>, threads: usize, isa: Isa) -> Result<(Box<dyn Kernel>, Plan)> {
    arity(op, 5..=5)?;
    let s = plain_shape(op, 2, 0, 1, isa.nr)?;
    output_strided(op, 0, FLOATS)?;
    output_strided(op, 1, F32)?;
    let floats = fwd::floats(&s) * threads;
    Ok((
        Box::new(Forward {
            s,
            isa,
            slots: threads,
        }),
        plan(isa, floats),
    ))
}

fn plan(isa: Isa, floats: usize) -> Plan {
    Plan {
        tier: if isa.portable { 1 } else { 2 },
        workspace_bytes: floats as u64 * 4,
        est_ns: 0,
        error_class: class::FUSED,
    }
}

struct Backward {
    s: bwd::Bwd,
    isa: Isa,
    slots: usize,
}

impl Kernel for Backward {
    unsafe fn run(&self, l: &Launch<'_>) {
        let s = &self.s.s;
        let (nq, nk) = (s.q_blocks(), s.k_blocks());
        let group = s.h / s.hkv;
        let p = Ptrs {
            operands: l.operands,
            scratch: l.workspace.cast(),
        };
        let go = |slot: usize, item: bwd::Item| {
            // SAFETY: the caller's contract; the slot is this thread's, the item's outputs are its own.
            unsafe { (self.isa.bwd)(&self.s, p.operands, item, p.slot(slot, self.s.floats())) }
        };
        let heads = |g: usize| (g * group, (g + 1) * group);
        if !self.s.split {
            each(l.team, self.slots, s.b * s.hkv, &|slot, i| {
                let (b, g) = (i / s.hkv, i % s.hkv);
                go(
                    slot,
                    bwd::Item {
                        b,
                        g,
                        heads: heads(g),
                        q: (0, nq),
                        k: (0, nk),
                        dq: true,
                        dkv: true,
                    },
                );
            });
            return;
        }
        // Few heads for many threads: key blocks and query blocks apart, at the price of computing the scores twice. Every accumulator
        // still sees the same terms in the same order, so the bits are those of the single pass.
        each(l.team, self.slots, s.b * s.hkv * nk, &|slot, i| {
            let (b, g, j) = (i / nk / s.hkv, i / nk % s.hkv, i % nk);
            go(
                slot,
                bwd::Item {
                    b,
                    g,
                    heads: heads(g),
                    q: (0, nq),
                    k: (j, j + 1),
                    dq: false,
                    dkv: true,
                },
            );
        });
        each(l.team, self.slots, s.b * s.h * nq, &|slot, i| {
            let (b, h, j) = (i / nq / s.h, i / nq % s.h, nq - 1 - i % nq);
            let item = bwd::Item {
                b,
                g: h / group,
                heads: (h, h + 1),
                q: (j, j + 1),
                k: (0, nk),
                dq: true,
                dkv: false,
            };
            go(slot, item);
        });
    }
}

/// Prepares `attention_bwd`: operands dq, dk, dv, do, o, q, k, v, lse.
pub fn prepare_bwd(
    op: &OpRequest<'_>,
    threads: usize,
    isas: Isas,
) -> Result<(Box<dyn Kernel>, Plan)> {
    prepare_bwd_on(op, threads, Isa::of(isas.level))
}

fn prepare_bwd_on(op: &OpRequest<'_>, threads: usize, isa: Isa) -> Result<(Box<dyn Kernel>, Plan)> {
    arity(op, 9..=9)?;
    let s = plain_shape(op, 5, 4, 8, isa.nr)?;
    for i in 0..3 {
        output_strided(op, i, FLOATS)?;
    }
    let (qs, ks) = ([s.b, s.tq, s.h, s.d], [s.b, s.tk, s.hkv, s.d]);
    let split = s.b * s.hkv < threads;
    let s = bwd::Bwd {
        dq: view(op, 0, "dq", qs)?,
        dk: view(op, 1, "dk", ks)?,
        dv: view(op, 2, "dv", ks)?,
        dout: view(op, 3, "do", qs)?,
        s,
        split,
    };
    let floats = s.floats() * threads;
    Ok((
        Box::new(Backward {
            s,
            isa,
            slots: threads,
        }),
        plan(isa, floats),
    ))
}
