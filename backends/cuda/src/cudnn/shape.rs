//! Which attention ops the library is asked for, and how they look to it: [B, T, H, D] with strides becomes batch, heads, rows, columns. What it
//! cannot be asked for, or what its authors document as wrong, stays with our own kernels, each with its reason.

use super::graph::{Four, packed};
use super::id;
use crossweave_plugin::abi::Layout;
use crossweave_plugin::abi::op::{self, AttentionParams, FLAG_CAUSAL};
use crossweave_plugin::{DType, OpRequest, Result, abi};

/// What operands must be aligned to, in bytes.
pub(crate) const ALIGNED: u64 = 16;

/// Strides of batch, heads and rows of an operand, in elements; columns lie next to each other.
pub(crate) type Strides = [i64; 3];

/// One attention, as the library is asked for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Problem {
    pub backward: bool,
    /// `CUDNN_DATA_*` of every operand but the log-sum-exp.
    pub kind: i32,
    pub b: i64,
    pub h: i64,
    pub hkv: i64,
    pub tq: i64,
    pub tk: i64,
    pub d: i64,
    pub causal: bool,
    /// 0: none.
    pub window: i64,
    /// Bits of an f32.
    pub scale: u32,
    /// The same bits every time.
    pub deterministic: bool,
    /// Strides of the op's operands in its order; the log-sum-exp is dense.
    pub strides: Vec<Strides>,
}

/// Why our own kernels do it.
pub(crate) type Why = &'static str;

/// Where an operand of the op stands.
pub(crate) struct Places {
    pub lse: usize,
    pub q: usize,
    pub k: usize,
    pub v: usize,
}

pub(crate) const FORWARD: Places = Places {
    lse: 1,
    q: 2,
    k: 3,
    v: 4,
};
pub(crate) const BACKWARD: Places = Places {
    lse: 8,
    q: 5,
    k: 6,
    v: 7,
};

/// Strides of batch, heads and rows of `[B, T, H, D]`. A stride over a dimension of one element is never taken: a dense one stands for it.
fn strides(l: &Layout) -> std::result::Result<Strides, Why> {
    let [b, t, h, d] = [l.shape[0], l.shape[1], l.shape[2], l.shape[3]];
    let or = |n: i64, s: i64, dense: i64| if n == 1 { dense } else { s };
    let head = or(h, l.stride[2], d);
    let row = or(t, l.stride[1], h * d);
    let batch = or(b, l.stride[0], t * row.max(h * head));
    if [batch, head, row].iter().any(|s| *s < d) {
        return Err("rows that overlap");
    }
    let step = ALIGNED as i64 / 2;
    if [batch, head, row].iter().any(|s| s % step != 0) {
        return Err("strides that are no multiples of 16 bytes");
    }
    Ok([batch, head, row])
}

impl Problem {
    /// The problem of an op that has been checked, on a device of this compute capability and with this version of the library.
    pub(crate) fn of(
        o: &OpRequest<'_>,
        arch: u32,
        version: usize,
    ) -> Result<std::result::Result<Problem, Why>> {
        let p: AttentionParams = o.params()?;
        Ok(Problem::build(o, &p).and_then(|x| x.held(arch, version)))
    }

    fn build(o: &OpRequest<'_>, p: &AttentionParams) -> std::result::Result<Problem, Why> {
        let backward = o.id == op::ATTENTION_BWD;
        let at = if backward { BACKWARD } else { FORWARD };
        let count = if backward { 9 } else { 5 };
        let lacking = "operands that are not there";
        let layout = |i: usize| o.layout(i).ok_or(lacking);
        let (q, k, lse) = (layout(at.q)?, layout(at.k)?, layout(at.lse)?);
        let kind = match o.dtype(at.q) {
            Some(DType::F16) => id::HALF,
            Some(DType::Bf16) => id::BFLOAT16,
            _ => return Err("a type that is neither f16 nor bf16"),
        };
        if q.shape[3] % 8 != 0 {
            return Err("heads that are no multiple of 8");
        }
        let mut all = vec![];
        for i in 0..count {
            if i == at.lse {
                all.push([0; 3]);
                continue;
            }
            if o.dtype(i) != o.dtype(at.q) {
                return Err("operands of several types");
            }
            all.push(strides(layout(i)?)?);
        }
        let [b, tq, h, d] = [q.shape[0], q.shape[1], q.shape[2], q.shape[3]];
        let dense = packed([b, h, tq, 1]);
        let is = |i: usize| lse.shape[i] == 1 || lse.stride[i] == dense[i];
        if ![0, 1, 2].into_iter().all(is) {
            return Err("a log-sum-exp that is not dense");
        }
        let scale = match p.scale {
            0.0 => 1.0 / (d as f64).sqrt(),
            s => s,
        };
        Ok(Problem {
            backward,
            kind,
            b,
            h,
            hkv: k.shape[2],
            tq,
            tk: k.shape[1],
            d,
            causal: p.flags & FLAG_CAUSAL != 0,
            window: p.window,
            scale: (scale as f32).to_bits(),
            deterministic: o.math_flags & abi::MATH_DETERMINISTIC != 0,
            strides: all,
        })
    }

    /// The limits that the library's authors name.
    fn held(self, arch: u32, version: usize) -> std::result::Result<Problem, Why> {
        let most = if self.backward && !(90..100).contains(&arch) {
            128
        } else {
            256
        };
        let masked = self.causal || self.window > 0;
        if arch < 80 {
            return Err("a device before sm_80");
        }
        if self.d > most {
            return Err("heads that are too wide");
        }
        if [self.b, self.h, self.hkv, self.tq, self.tk].contains(&0) {
            return Err("nothing to do");
        }
        if masked && self.tq > self.tk {
            return Err("a mask over more queries than keys");
        }
        // They need be no numbers, and the library multiplies them by weights of zero.
        if self.window > 0 && self.tk - self.tq >= self.window {
            return Err("keys that no query sees");
        }
        // Where a window ends is computed in f32 by the library.
        if self.window > 1 << 23 || self.tk > 1 << 23 {
            return Err("more positions than f32 counts");
        }
        if self.window > 0 && !self.causal && version / 100 == 914 {
            return Err("a window without a causal mask on cuDNN 9.14");
        }
        if self.backward {
            if self.tq == 1 && self.tk == 1 {
                return Err("one query and one key");
            }
            if self.tk % 128 != 0 && version <= 91500 {
                return Err("keys that are no multiple of 128 on cuDNN before 9.15.1");
            }
            if self.deterministic && arch >= 100 {
                return Err("gradients with fixed bits from sm_100 on");
            }
        }
        Ok(self)
    }

    /// Bytes that gradients with fixed bits keep of a batch: the gradients of the scores.
    pub(crate) fn scores(&self) -> u64 {
        let rows = |t: i64| (t as u64).next_multiple_of(64);
        match self.backward && self.deterministic {
            true => self.h as u64 * rows(self.tq) * rows(self.tk) * 2,
            false => 0,
        }
    }

    /// The same over fewer batches, and how many times it is to be done, so that the scores kept fit into `most` bytes. `None`: one batch is too much.
    pub(crate) fn parted(mut self, most: u64) -> Option<(Problem, i64)> {
        let each = self.scores();
        let fits = |n: i64| each.saturating_mul(n as u64) <= most;
        let n = (1..=self.b).rev().find(|n| self.b % n == 0 && fits(*n))?;
        let parts = self.b / n;
        self.b = n;
        Some((self, parts))
    }

    /// Bytes from one batch of operand `i` to the next.
    pub(crate) fn step(&self, i: usize) -> u64 {
        let lse = if self.backward {
            BACKWARD.lse
        } else {
            FORWARD.lse
        };
        match i == lse {
            true => (self.h * self.tq * 4) as u64,
            false => (self.strides[i][0] * 2) as u64,
        }
    }

    /// Sizes and strides of operand `i` with this many heads and rows.
    pub(crate) fn view(&self, i: usize, heads: i64, rows: i64) -> (Four, Four) {
        let [b, h, t] = self.strides[i];
        ([self.b, heads, rows, self.d], [b, h, t, 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn layout(dtype: DType, shape: &[i64], stride: &[i64]) -> Layout {
        let mut l = Layout {
            size: size_of::<Layout>() as u32,
            dtype: dtype.id(),
            rank: shape.len() as u32,
            flags: 0,
            shape: [0; 8],
            stride: [0; 8],
        };
        l.shape[..shape.len()].copy_from_slice(shape);
        l.stride[..stride.len()].copy_from_slice(stride);
        l
    }

    const T: DType = DType::Bf16;

    /// q, k, v as slices of one packed buffer `[B, T, (H + 2 Hkv) D]`.
    fn forward(b: i64, t: i64, h: i64, hkv: i64, d: i64) -> [Layout; 5] {
        let row = (h + 2 * hkv) * d;
        let q = layout(T, &[b, t, h, d], &[t * row, row, d, 1]);
        let kv = layout(T, &[b, t, hkv, d], &[t * row, row, d, 1]);
        let o = layout(T, &[b, t, h, d], &[t * h * d, h * d, d, 1]);
        let lse = layout(DType::F32, &[b, h, t], &[h * t, t, 1]);
        [o, lse, q, kv, kv]
    }

    fn ask(
        l: &[Layout],
        p: AttentionParams,
        arch: u32,
        version: usize,
    ) -> std::result::Result<Problem, Why> {
        let id = if l.len() == 5 {
            op::ATTENTION_FWD
        } else {
            op::ATTENTION_BWD
        };
        Problem::of(
            &OpRequest::new(id, l, p.as_bytes(), abi::MATH_DETERMINISTIC),
            arch,
            version,
        )
        .unwrap()
    }

    fn backward(b: i64, t: i64, h: i64, d: i64) -> [Layout; 9] {
        let [o, lse, q, k, v] = forward(b, t, h, h, d);
        [q, k, v, o, o, q, k, v, lse]
    }

    #[test]
    fn slices_of_a_packed_buffer_are_taken_as_they_lie() {
        let causal = AttentionParams {
            flags: FLAG_CAUSAL,
            ..AttentionParams::default()
        };
        let p = ask(&forward(4, 256, 8, 2, 64), causal, 90, 92800).unwrap();
        assert_eq!((p.b, p.h, p.hkv, p.tq, p.tk, p.d), (4, 8, 2, 256, 256, 64));
        assert_eq!(p.strides[2], [256 * 768, 64, 768]);
        assert_eq!(
            p.view(3, p.hkv, p.tk),
            ([4, 2, 256, 64], [256 * 768, 64, 768, 1])
        );
        assert_eq!(f32::from_bits(p.scale), 0.125);
        assert!(p.causal && p.deterministic && !p.backward);
        assert_eq!(p.step(2), 256 * 768 * 2);
        assert_eq!(p.step(1), 8 * 256 * 4);
        assert_eq!(
            p.clone().parted(0).unwrap(),
            (p, 1),
            "the forward keeps no scores"
        );
    }

    #[test]
    fn what_the_library_cannot_do_is_refused_with_its_reason() {
        let none = AttentionParams::default();
        let causal = AttentionParams {
            flags: FLAG_CAUSAL,
            ..none
        };
        let window = AttentionParams { window: 64, ..none };
        let refused = |l: &[Layout], p, arch, version, word: &str| {
            let why = ask(l, p, arch, version).expect_err(word);
            assert!(why.contains(word), "{why}");
        };
        refused(&forward(2, 64, 4, 4, 60), none, 90, 92800, "multiple of 8");
        refused(&forward(2, 64, 4, 4, 264), none, 90, 92800, "too wide");
        refused(&forward(2, 64, 4, 4, 64), none, 75, 92800, "sm_80");
        refused(&forward(2, 64, 4, 4, 64), window, 90, 91400, "9.14");
        let keys = |n: i64| {
            let mut all = forward(2, 64, 4, 4, 64);
            all[3..].iter_mut().for_each(|l| l.shape[1] = n);
            all
        };
        refused(&keys(128), window, 90, 92800, "no query sees");
        assert!(ask(&keys(127), window, 90, 92800).is_ok());
        refused(&backward(2, 64, 4, 64), none, 90, 91500, "128");
        refused(&backward(2, 64, 4, 64), none, 100, 92800, "sm_100");
        refused(&backward(2, 64, 4, 256), none, 80, 92800, "too wide");
        refused(&backward(2, 1, 4, 64), none, 90, 92800, "one query");
        assert!(ask(&backward(2, 64, 4, 256), none, 90, 92800).is_ok());
        let with = |i: usize, l: Layout| {
            let mut all = forward(2, 64, 4, 4, 64);
            all[i] = l;
            all
        };
        let odd = layout(T, &[2, 64, 4, 64], &[64 * 260, 260, 65, 1]);
        refused(&with(2, odd), none, 90, 92800, "16 bytes");
        let shared = layout(T, &[2, 64, 4, 64], &[0, 256, 64, 1]);
        refused(&with(3, shared), none, 90, 92800, "overlap");
        let wide = layout(DType::F32, &[2, 64, 4, 64], &[64 * 256, 256, 64, 1]);
        refused(&with(4, wide), none, 90, 92800, "several types");
        refused(&with(2, wide), none, 90, 92800, "neither");
        let sparse = layout(DType::F32, &[2, 4, 64], &[512, 128, 2]);
        refused(&with(1, sparse), none, 90, 92800, "log-sum-exp");
        let few = layout(T, &[2, 32, 4, 64], &[32 * 256, 256, 64, 1]);
        let mut more = forward(2, 64, 4, 4, 64);
        (more[3], more[4]) = (few, few);
        refused(&more, causal, 90, 92800, "more queries");
        assert!(ask(&more, none, 90, 92800).is_ok());
        // A batch of one may have any stride.
        let one = layout(T, &[1, 64, 4, 64], &[0, 256, 64, 1]);
        let mut single = forward(1, 64, 4, 4, 64);
        single[2] = one;
        assert_eq!(
            ask(&single, none, 90, 92800).unwrap().strides[2],
            [64 * 256, 64, 256]
        );
    }

    #[test]
    fn batches_are_done_in_parts_that_fit() {
        let p = ask(
            &backward(6, 128, 4, 64),
            AttentionParams::default(),
            90,
            92800,
        )
        .unwrap();
        let each = 4 * 128 * 128 * 2;
        assert_eq!(p.scores(), each);
        let parts = |most| p.clone().parted(most).map(|(q, n)| (q.b, n));
        assert_eq!(parts(6 * each), Some((6, 1)));
        assert_eq!(parts(5 * each), Some((3, 2)));
        assert_eq!(parts(2 * each), Some((2, 3)));
        assert_eq!(parts(each), Some((1, 6)));
        assert_eq!(parts(each - 1), None);
    }
}
