//! The register tile (`MR` rows by `NV` vectors), the block of tiles one task computes, and the instruction sets they are compiled for.

use super::elem::Elem;
use super::lane::{Lane, Portable};
use super::pack::{MAX_STRIP, Source, pack_f32, pack_pairs};
use crate::isa::Isas;

/// Most rows of a tile.
const MAX_MR: usize = 12;

/// `C[MR, NV*N] (+)= A B` over `k` words, A at `a[i*rs + k*ks]`, B rows of `NV*N` words `bs` apart. Every sum runs over k in order, so an
/// element's bits depend neither on where in the matrix nor in which tile it lies.
///
/// # Safety
/// The addresses the formula names are valid; the lane's instruction set is there.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub unsafe fn tile<L: Lane, const MR: usize, const NV: usize>(
    k: usize,
    mut a: *const u32,
    rs: usize,
    ks: usize,
    mut b: *const u32,
    bs: usize,
    c: *mut f32,
    cs: usize,
    add: bool,
) {
    // SAFETY: by contract; pointers only run one step past what is read.
    unsafe {
        let mut acc = [[L::zero(); NV]; MR];
        for _ in 0..k {
            let mut w = [L::words(b); NV];
            for j in 1..NV {
                w[j] = L::words(b.add(j * L::N));
            }
            for i in 0..MR {
                let x = L::splat(a.add(i * rs));
                for j in 0..NV {
                    acc[i][j] = acc[i][j].madd(x, w[j]);
                }
            }
            a = a.wrapping_add(ks);
            b = b.wrapping_add(bs);
        }
        for i in 0..MR {
            for j in 0..NV {
                let p = c.add(i * cs + j * L::N);
                let v = acc[i][j];
                if add {
                    v.add(L::load(p)).store(p)
                } else {
                    v.store(p)
                }
            }
        }
    }
}

/// Where a block's results go.
#[derive(Clone, Copy)]
pub struct Out {
    /// Element (0, 0) of the block.
    pub p: *mut u8,
    /// Storage.
    pub elem: Elem,
    /// Elements between rows (columns are neighbours).
    pub stride: isize,
}

/// A block of C: `m x n` from packed strips of A (`[strip][kw][mr]`) and B (`[strip][kw][nr]`).
pub struct Block {
    /// Rows of the block.
    pub m: usize,
    /// Columns.
    pub n: usize,
    /// Words along k.
    pub kw: usize,
    /// First packed strip of A.
    pub a: *const u32,
    /// First packed strip of B.
    pub b: *const u32,
    /// Factor of the product.
    pub alpha: f32,
    /// What is added (what `dst` holds, or a partial sum), if anything.
    pub prev: Option<Out>,
    /// Added to each row when not null: `n` f32.
    pub bias: *const f32,
    /// Where the sum goes.
    pub dst: Out,
}

/// Computes a block: B strips outside (one stays in L1), A strips inside (all stay in L2); the tile is finished while it is hot.
///
/// # Safety
/// The block's addresses are valid; the lane's instruction set is there.
#[inline(always)]
unsafe fn block<L: Lane, const MR: usize, const NV: usize>(t: &Block) {
    let nr = NV * L::N;
    let mut buf = [0.0f32; MAX_MR * MAX_STRIP];
    let mut old = [0.0f32; MAX_STRIP];
    // Only the plain full f32 tile skips the buffer; its arithmetic (product, then + what was there) is the buffer's.
    let direct = t.alpha == 1.0 && t.bias.is_null() && t.dst.elem == Elem::F32;
    let in_place = t.prev.is_none_or(|p| p.p == t.dst.p);
    // SAFETY: strips and rows stay inside the block.
    unsafe {
        for j in (0..t.n).step_by(nr) {
            let b = t.b.add(j * t.kw);
            let nv = nr.min(t.n - j);
            for i in (0..t.m).step_by(MR) {
                let a = t.a.add(i * t.kw);
                let mv = MR.min(t.m - i);
                if direct && in_place && nv == nr && mv == MR {
                    let d = t
                        .dst
                        .elem
                        .at_mut(t.dst.p, i as isize * t.dst.stride + j as isize);
                    tile::<L, MR, NV>(
                        t.kw,
                        a,
                        1,
                        MR,
                        b,
                        nr,
                        d.cast(),
                        t.dst.stride as usize,
                        t.prev.is_some(),
                    );
                    continue;
                }
                tile::<L, MR, NV>(t.kw, a, 1, MR, b, nr, buf.as_mut_ptr(), nr, false);
                for r in 0..mv {
                    let row = &mut buf[r * nr..r * nr + nr];
                    if t.alpha != 1.0 {
                        for x in row.iter_mut() {
                            *x *= t.alpha;
                        }
                    }
                    if let Some(p) = &t.prev {
                        let from = p.elem.at(p.p, (i + r) as isize * p.stride + j as isize);
                        p.elem.widen(from, nv, old.as_mut_ptr());
                        for (x, y) in row.iter_mut().zip(&old[..nv]) {
                            *x += y;
                        }
                    }
                    if !t.bias.is_null() {
                        for (c, x) in row[..nv].iter_mut().enumerate() {
                            *x += *t.bias.add(j + c);
                        }
                    }
                    let d = t
                        .dst
                        .elem
                        .at_mut(t.dst.p, (i + r) as isize * t.dst.stride + j as isize);
                    t.dst.elem.narrow(row.as_ptr(), nv, d);
                }
            }
        }
    }
}

/// Packs a strip of `r` rows in the words of lane `L`.
///
/// # Safety
/// As [`pack_f32`].
#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn pack<L: Lane>(
    s: &Source,
    i0: usize,
    n: usize,
    r: usize,
    k0: usize,
    kc: usize,
    out: *mut u32,
) {
    // SAFETY: by contract.
    unsafe {
        if L::PAIR {
            pack_pairs(s, i0, n, r, k0, kc, out)
        } else {
            pack_f32(s, i0, n, r, k0, kc, out.cast())
        }
    }
}

/// Packs a strip: source, first row, rows, strip width, first k, number of k, target.
pub type PackFn = unsafe fn(&Source, usize, usize, usize, usize, usize, *mut u32);

/// The matrix code of one instruction set.
#[derive(Clone, Copy)]
pub struct Isa {
    /// For messages.
    pub name: &'static str,
    /// Rows of a tile.
    pub mr: usize,
    /// Columns of a tile.
    pub nr: usize,
    /// bf16 elements per word along k (1 or 2).
    pub per_word: usize,
    /// See [`Block`].
    pub block: unsafe fn(&Block),
    /// Packs a strip of rows.
    pub pack: PackFn,
}

macro_rules! isa {
    ($fn:ident, $name:literal, $lane:ty, $mr:literal, $nv:literal $(, $feature:literal)?) => {
        /// The entry points compiled for this instruction set.
        pub fn $fn() -> Isa {
            /// # Safety
            /// As `block`; the processor has the feature.
            $(#[target_feature(enable = $feature)])?
            unsafe fn run(t: &Block) {
                // SAFETY: the caller's contract; the features are enabled.
                unsafe { block::<$lane, $mr, $nv>(t) }
            }
            /// # Safety
            /// As `pack`; the processor has the feature.
            $(#[target_feature(enable = $feature)])?
            #[allow(clippy::too_many_arguments)]
            unsafe fn strip(s: &Source, i0: usize, n: usize, r: usize, k0: usize, kc: usize, out: *mut u32) {
                // SAFETY: the caller's contract; the strip widths are this tile's own constants, which lets the copies unroll.
                unsafe {
                    match (r, n == r) {
                        ($mr, true) => pack::<$lane>(s, i0, $mr, $mr, k0, kc, out),
                        ($mr, false) => pack::<$lane>(s, i0, n, $mr, k0, kc, out),
                        (_, true) => pack::<$lane>(s, i0, NR, NR, k0, kc, out),
                        (_, false) => pack::<$lane>(s, i0, n, NR, k0, kc, out),
                    }
                }
            }
            const NR: usize = $nv * <$lane as Lane>::N;
            const _: () = assert!($mr <= MAX_MR && NR <= MAX_STRIP && NR != $mr);
            Isa {
                name: $name,
                mr: $mr,
                nr: NR,
                per_word: if <$lane as Lane>::PAIR { 2 } else { 1 },
                block: run,
                pack: strip,
            }
        }
    };
}

isa!(portable, "portable", Portable<8>, 6, 2);
#[cfg(target_arch = "x86_64")]
isa!(avx2, "avx2", super::lane::Avx2, 6, 2, "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
isa!(
    avx512,
    "avx512",
    super::lane::Avx512,
    12,
    2,
    "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"
);
#[cfg(target_arch = "x86_64")]
isa!(
    avx512bf16,
    "avx512bf16",
    super::lane::Avx512Bf16,
    12,
    2,
    "avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"
);
// The control flow of the 512-bit tiles over emulated vectors: these machines test it without the instructions.
#[cfg(test)]
isa!(model512, "model of avx512", Portable<16>, 12, 2);
#[cfg(test)]
isa!(
    model512bf16,
    "model of avx512bf16",
    super::lane::PairModel,
    12,
    2
);

/// Vector extensions, rising.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What the compiler makes of plain loops.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL and DQ.
    Avx512,
}

impl Level {
    /// The word of the configuration (`cpu.simd`).
    pub fn name(self) -> &'static str {
        match self {
            Level::Portable => "scalar",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
        }
    }

    /// The best this machine has.
    pub fn detect() -> Level {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            let wide = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq");
            if avx2 && wide {
                return Level::Avx512;
            }
            if avx2 {
                return Level::Avx2;
            }
        }
        Level::Portable
    }
}

impl Isa {
    /// The code of the instruction sets in use, for operands of this storage.
    pub fn of(isas: Isas, operand: Elem) -> Isa {
        #[cfg(target_arch = "x86_64")]
        if isas.bf16 && operand == Elem::Bf16 {
            return avx512bf16();
        }
        let _ = operand;
        Isa::of_level(isas.level)
    }

    /// The code of a level, for every storage.
    pub fn of_level(level: Level) -> Isa {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => avx512(),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => avx2(),
            _ => portable(),
        }
    }
}
