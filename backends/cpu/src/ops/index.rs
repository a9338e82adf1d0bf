//! gather_rows, scatter_add_rows, embedding_*, histogram: sums run in order of position, parallel over columns, so they never depend on the team.

use super::view::*;
use crate::kernel::{Kernel, Launch};
use crate::simd::clones;
use crossweave_abi::op;
use crossweave_plugin::op::{self as request, Indices};
use crossweave_plugin::{DType, OpRequest, Plan, Result};

type Prepared = Result<(Box<dyn Kernel>, Plan)>;

clones! {
    fn grow(x: &[f32], y: &mut [f32]) { for (y, x) in y.iter_mut().zip(x) { *y += *x; } }
}

/// Columns of a task of the scatter ops.
const COLUMNS: usize = 128;

/// An index operand and which of its values mean a row.
struct Rows {
    index: Indices,
    limit: usize,
}

impl Rows {
    fn new(o: &OpRequest<'_>, i: usize, limit: usize) -> Result<Rows> {
        let index = Indices::read(o, i)?;
        Ok(Rows { index, limit })
    }

    /// # Safety
    /// `p` is the live operand, `i` in range.
    unsafe fn at(&self, p: Ptr, i: usize) -> Option<usize> {
        // SAFETY: forwarded.
        let v = unsafe { index_at(self.index.view.dtype, p, self.index.view.offset(i)) };
        if self.index.ignore == Some(v) {
            return None;
        }
        usize::try_from(v).ok().filter(|r| *r < self.limit)
    }
}

/// `[rows, ..]` split into the row count and the width of a row.
fn table_of(o: &OpRequest<'_>, i: usize, v: &View) -> Result<(usize, usize)> {
    match v.shape.split_first() {
        Some((&n, rest)) => Ok((n, rest.iter().product())),
        None => invalid(o, format!("operand {i}: rank 0, rows wanted")),
    }
}

struct Gather {
    dst: View,
    table: View,
    rows: Rows,
    width: usize,
}

/// `gather_rows`.
pub fn gather_rows(o: &OpRequest<'_>, _: usize) -> Prepared {
    arity(o, 3..=3)?;
    let any = WHOLE_BYTES;
    let (dst, table) = (output(o, 0, any)?, input(o, 1, any)?);
    same_dtype(o, 1, &table, &dst)?;
    let (n, width) = table_of(o, 1, &table)?;
    let rows = Rows::new(o, 2, n)?;
    shape(o, 0, &dst, &rows.index.rows(&table.shape[1..]))?;
    let k = Gather {
        dst,
        table,
        rows,
        width,
    };
    Ok((Box::new(k), plan(o, 0)))
}

impl Kernel for Gather {
    unsafe fn run(&self, l: &Launch<'_>) {
        let [y, x, ix] = [0, 1, 2].map(|i| Ptr(l.operands[i]));
        let (w, e) = (self.width, self.dst.elem());
        if self.dst.total == 0 {
            return;
        }
        let group = (CHUNK / w).max(1);
        chunks(l.team, self.rows.index.view.total, group, &|start, len| {
            for i in start..start + len {
                // SAFETY: the index was checked against the table; output rows are distinct. Bytes move, so any dtype does.
                unsafe {
                    let out = y.at::<u8>(i * w * e);
                    let Some(r) = self.rows.at(ix, i) else {
                        std::ptr::write_bytes(out, 0, w * e);
                        continue;
                    };
                    let mut done = 0;
                    self.table.rows(r * w, w, |off, stride, n| {
                        if stride == 1 {
                            std::ptr::copy_nonoverlapping(
                                x.at::<u8>(off * e),
                                out.add(done * e),
                                n * e,
                            );
                        } else {
                            for j in 0..n {
                                let s = x.at::<u8>((off + j * stride) * e);
                                std::ptr::copy_nonoverlapping(s, out.add((done + j) * e), e);
                            }
                        }
                        done += n;
                    });
                }
            }
        });
    }
}

struct ScatterAdd {
    table: View,
    src: View,
    rows: Rows,
    width: usize,
}

/// `scatter_add_rows`.
pub fn scatter_add_rows(o: &OpRequest<'_>, _: usize) -> Prepared {
    arity(o, 3..=3)?;
    let (table, src) = (output(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
    if table.dtype != DType::F32 {
        same_dtype(o, 1, &src, &table)?;
    }
    let (n, width) = table_of(o, 0, &table)?;
    let rows = Rows::new(o, 2, n)?;
    shape(o, 1, &src, &rows.index.rows(&table.shape[1..]))?;
    let k = ScatterAdd {
        table,
        src,
        rows,
        width,
    };
    Ok((Box::new(k), plan(o, 0)))
}

/// Positions in order of `(row, position)`, with their rows.
///
/// # Safety
/// `ix` is the live index operand.
unsafe fn by_row(rows: &Rows, ix: Ptr) -> Vec<(usize, usize)> {
    let mut v: Vec<(usize, usize)> = (0..rows.index.view.total)
        // SAFETY: forwarded.
        .filter_map(|i| unsafe { rows.at(ix, i) }.map(|r| (r, i)))
        .collect();
    v.sort_unstable();
    v
}

/// `table[r, :] += sum of src[i, :]` over the sorted pairs, in f32, one rounding to the storage per row.
///
/// # Safety
/// The operands are live; the pairs are inside both.
unsafe fn add_rows(
    l: &Launch<'_>,
    table: (&View, Ptr),
    src: (&View, Ptr),
    width: usize,
    pairs: &[(usize, usize)],
) {
    chunks(l.team, width, COLUMNS, &|c, n| {
        let (mut acc, mut buf) = ([0f32; COLUMNS], [0f32; BLOCK]);
        for group in pairs.chunk_by(|a, b| a.0 == b.0) {
            let at = group[0].0 * width + c;
            // SAFETY: forwarded; tasks own disjoint columns.
            unsafe {
                table.0.load(table.1, at, &mut acc[..n]);
                for (_, i) in group {
                    grow(src.0.get(src.1, i * width + c, n, &mut buf), &mut acc[..n]);
                }
                table.0.store(table.1, at, &acc[..n]);
            }
        }
    });
}

impl Kernel for ScatterAdd {
    unsafe fn run(&self, l: &Launch<'_>) {
        let [t, s, ix] = [0, 1, 2].map(|i| Ptr(l.operands[i]));
        // SAFETY: forwarded from the launch's contract.
        unsafe {
            let pairs = by_row(&self.rows, ix);
            add_rows(l, (&self.table, t), (&self.src, s), self.width, &pairs);
        }
    }
}

struct Embedding {
    y: View,
    table: View,
    rows: Rows,
    pos: Option<View>,
    d: usize,
    /// Positions of a sequence.
    t: usize,
}

/// `embedding_fwd`.
pub fn embedding(o: &OpRequest<'_>, _: usize) -> Prepared {
    let r = request::Embedding::read(o)?;
    let rows = Rows {
        limit: r.table.shape[0],
        index: r.index,
    };
    let (y, table, pos, d, t) = (r.y, r.table, r.pos, r.d, r.t);
    let k = Embedding {
        y,
        table,
        rows,
        pos,
        d,
        t,
    };
    Ok((Box::new(k), plan(o, 0)))
}

impl Kernel for Embedding {
    unsafe fn run(&self, l: &Launch<'_>) {
        let [y, x, ix] = [0, 1, 2].map(|i| Ptr(l.operands[i]));
        if self.y.total == 0 {
            return;
        }
        let (d, args) = (self.d, Args::of(l));
        chunks(
            l.team,
            self.rows.index.view.total,
            (CHUNK / d).max(1),
            &|start, len| {
                let (mut a, mut b) = ([0f32; BLOCK], [0f32; BLOCK]);
                for i in start..start + len {
                    // SAFETY: the index was checked against the table; output rows are distinct.
                    unsafe {
                        let row = self.rows.at(ix, i);
                        blocks(0, d, |c, n| {
                            match row {
                                Some(r) => self.table.load(x, r * d + c, &mut a[..n]),
                                None => a[..n].fill(0.0),
                            }
                            if let Some(p) = &self.pos {
                                let at = i % self.t * d + c;
                                grow(p.get(args.at(3), at, n, &mut b), &mut a[..n]);
                            }
                            self.y.store(y, i * d + c, &a[..n]);
                        });
                    }
                }
            },
        );
    }
}

struct EmbeddingBackward {
    dtable: View,
    dpos: Option<View>,
    dy: View,
    rows: Rows,
    d: usize,
    t: usize,
}

/// `embedding_bwd`.
pub fn embedding_backward(o: &OpRequest<'_>, _: usize) -> Prepared {
    let r = request::EmbeddingBackward::read(o)?;
    let rows = Rows {
        limit: r.dtable.shape[0],
        index: r.index,
    };
    let (dtable, dpos, dy, d, t) = (r.dtable, r.dpos, r.dy, r.d, r.t);
    let k = EmbeddingBackward {
        dtable,
        dpos,
        dy,
        rows,
        d,
        t,
    };
    Ok((Box::new(k), plan(o, 0)))
}

impl Kernel for EmbeddingBackward {
    unsafe fn run(&self, l: &Launch<'_>) {
        let [dt, dp, dy, ix] = [0, 1, 2, 3].map(|i| Ptr(l.operands[i]));
        // SAFETY: forwarded from the launch's contract; positions are inside dpos by its shape check.
        unsafe {
            let pairs = by_row(&self.rows, ix);
            add_rows(l, (&self.dtable, dt), (&self.dy, dy), self.d, &pairs);
            if let Some(p) = &self.dpos {
                let n = self.rows.index.view.total;
                let mut pairs: Vec<_> = (0..n).map(|i| (i % self.t, i)).collect();
                pairs.sort_unstable();
                add_rows(l, (p, dp), (&self.dy, dy), self.d, &pairs);
            }
        }
    }
}

struct Histogram {
    bins: usize,
    index: View,
}

/// `histogram`.
pub fn histogram(o: &OpRequest<'_>, _: usize) -> Prepared {
    arity(o, 2..=2)?;
    flags(o, o.params::<op::NoParams>()?.flags, 0)?;
    let bins = output(o, 0, &[DType::I32, DType::U32])?.total;
    let index = input(o, 1, INDEX)?;
    Ok((Box::new(Histogram { bins, index }), plan(o, 0)))
}

impl Kernel for Histogram {
    unsafe fn run(&self, l: &Launch<'_>) {
        let ix = Ptr(l.operands[1]);
        // SAFETY: both counter types are 32 bits of the same range of interest.
        let out = unsafe { Ptr(l.operands[0]).slice_mut::<u32>(0, self.bins) };
        out.fill(0);
        self.index.rows(0, self.index.total, |off, stride, n| {
            for i in 0..n {
                // SAFETY: the walk stays inside the layout.
                let v = unsafe { index_at(self.index.dtype, ix, off + i * stride) };
                if let Some(c) = usize::try_from(v).ok().and_then(|v| out.get_mut(v)) {
                    *c += 1;
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crossweave_plugin::Code;

    fn ignore(v: i64) -> op::IndexParams {
        op::IndexParams {
            flags: op::FLAG_HAS_IGNORE,
            ignore: v,
            ..Default::default()
        }
    }

    /// Indices with repeats, some ignored (2), some out of range.
    fn indices(rng: &mut Rng, n: usize, v: usize) -> Vec<f64> {
        (0..n)
            .map(|_| match rng.below(12) {
                0 => -1.0,
                1 => v as f64,
                _ => rng.below(v) as f64,
            })
            .collect()
    }

    fn row(ix: f64, v: usize) -> Option<usize> {
        (ix >= 0.0 && ix < v as f64 && ix != 2.0).then_some(ix as usize)
    }

    #[test]
    fn gather_and_scatter() {
        let mut rng = Rng(18);
        for it in [DType::I32, DType::I64] {
            for (v, d, n) in [
                (5, 3, 0),
                (1, 1, 1),
                (9, 33, 40),
                (50, 1000, 77),
                (7, 4099, 5),
            ] {
                for t in [DType::U8, DType::I64, DType::F32, DType::Bf16, DType::F16] {
                    let table: Vec<f64> = (0..v * d).map(|_| rng.below(100) as f64).collect();
                    for stride in strides(v, d) {
                        let ix = indices(&mut rng, n, v);
                        let mut ops = [
                            Tensor::poison(t, &[n, d]),
                            Tensor::strided(t, &[v, d], &stride, &table),
                            Tensor::strided(it, &[n], &[2], &ix),
                        ];
                        run(op::GATHER_ROWS, ignore(2).as_bytes(), &[], &mut ops);
                        let want: Vec<f64> = (0..n * d)
                            .map(|i| row(ix[i / d], v).map_or(0.0, |r| table[r * d + i % d]))
                            .collect();
                        close("gather", &ops[0].values(), &want, |_| 0.0);
                    }
                    if !t.is_float() {
                        continue;
                    }
                    for table_t in [t, DType::F32] {
                        let ix = indices(&mut rng, n, v);
                        let src = Tensor::strided(t, &[n, d], &[d + 1, 1], &rng.floats(n * d, 1.0));
                        let sv = src.values();
                        let tab = Tensor::new(table_t, &[v, d], &rng.floats(v * d, 1.0));
                        let mut want = tab.values();
                        let mut mag: Vec<f64> = want.iter().map(|w| w.abs()).collect();
                        for i in 0..n * d {
                            if let Some(r) = row(ix[i / d], v) {
                                want[r * d + i % d] += sv[i];
                                mag[r * d + i % d] += sv[i].abs();
                            }
                        }
                        let mut ops = [tab, src, Tensor::new(it, &[n], &ix)];
                        run(op::SCATTER_ADD_ROWS, ignore(2).as_bytes(), &[], &mut ops);
                        close("scatter", &ops[0].values(), &want, |i| {
                            rounding(table_t, want[i], 0.0) + n as f64 * 6e-8 * mag[i]
                        });
                    }
                }
            }
        }
    }

    #[test]
    fn scatter_adds_in_order_of_position() {
        // In f32, (1e8 + 1) - 1e8 is 0 in this order and 1 in the other.
        let mut ops = [
            Tensor::new(DType::F32, &[2, 1], &[0.0, 0.0]),
            Tensor::new(DType::F32, &[6, 1], &[1e8, 1e8, 1.0, -1e8, -1e8, 1.0]),
            Tensor::new(DType::I32, &[6], &[0.0, 1.0, 0.0, 0.0, 1.0, 1.0]),
        ];
        run(
            op::SCATTER_ADD_ROWS,
            op::IndexParams::default().as_bytes(),
            &[],
            &mut ops,
        );
        assert_eq!(ops[0].values(), [0.0, 1.0]);
    }

    #[test]
    fn embedding_forward_and_backward() {
        let mut rng = Rng(19);
        for t in STORAGES {
            for (b, s, v, d) in [(0, 3, 4, 5), (1, 1, 1, 1), (3, 7, 11, 33), (2, 40, 5, 600)] {
                let ix = indices(&mut rng, b * s, v);
                let n = b * s * d;
                let index = Tensor::new(DType::I32, &[b, s], &ix);
                let table = Tensor::new(t, &[v, d], &rng.floats(v * d, 1.0));
                let pos = Tensor::new(t, &[s + 2, d], &rng.floats((s + 2) * d, 1.0));
                let (tv, pv) = (table.values(), pos.values());
                for with_pos in [false, true] {
                    let p = if with_pos {
                        pos.clone()
                    } else {
                        Tensor::absent()
                    };
                    let mut ops = [
                        Tensor::poison(t, &[b, s, d]),
                        table.clone(),
                        index.clone(),
                        p,
                    ];
                    run(op::EMBEDDING_FWD, ignore(2).as_bytes(), &[], &mut ops);
                    let want: Vec<f64> = (0..n)
                        .map(|i| {
                            let e = row(ix[i / d], v).map_or(0.0, |r| tv[r * d + i % d]);
                            e + if with_pos {
                                pv[i / d % s * d + i % d]
                            } else {
                                0.0
                            }
                        })
                        .collect();
                    close("embedding", &ops[0].values(), &want, |i| {
                        if with_pos {
                            rounding(t, want[i], 0.0)
                        } else {
                            0.0
                        }
                    });

                    let dy = Tensor::new(t, &[b, s, d], &rng.floats(n, 1.0));
                    let dv = dy.values();
                    let (mut wt, mut wp) = (vec![0.5; v * d], vec![0.25; (s + 2) * d]);
                    for i in 0..n {
                        if let Some(r) = row(ix[i / d], v) {
                            wt[r * d + i % d] += dv[i];
                        }
                        wp[i / d % s * d + i % d] += dv[i];
                    }
                    let dp = Tensor::new(DType::F32, &[s + 2, d], &vec![0.25; (s + 2) * d]);
                    let dp = if with_pos { dp } else { Tensor::absent() };
                    let mut ops = [
                        Tensor::new(DType::F32, &[v, d], &vec![0.5; v * d]),
                        dp,
                        dy,
                        index.clone(),
                    ];
                    run(op::EMBEDDING_BWD, ignore(2).as_bytes(), &[], &mut ops);
                    close("dtable", &ops[0].values(), &wt, |_| (b * s) as f64 * 1e-6);
                    if with_pos {
                        close("dpos", &ops[1].values(), &wp, |_| b as f64 * 1e-6);
                    }
                }
            }
        }
    }

    #[test]
    fn histogram_counts_and_ignores_the_rest() {
        let mut rng = Rng(20);
        for n in SIZES {
            let ix = indices(&mut rng, n, 9);
            let mut ops = [
                Tensor::poison(DType::U32, &[9]),
                Tensor::strided(DType::I64, &[n], &[3], &ix),
            ];
            run(
                op::HISTOGRAM,
                op::NoParams::default().as_bytes(),
                &[],
                &mut ops,
            );
            let want: Vec<f64> = (0..9)
                .map(|b| ix.iter().filter(|i| **i == b as f64).count() as f64)
                .collect();
            close("histogram", &ops[0].values(), &want, |_| 0.0);
        }
    }

    #[test]
    fn refusals() {
        let p = op::IndexParams::default();
        let t = Tensor::poison(DType::F32, &[5, 3]);
        let ix = Tensor::poison(DType::I32, &[2]);
        let ask = |y: Tensor, i: Tensor| refusal(op::GATHER_ROWS, p.as_bytes(), &[y, t.clone(), i]);
        assert_eq!(ask(Tensor::poison(DType::F32, &[2, 3]), ix.clone()), None);
        assert_eq!(
            ask(Tensor::poison(DType::F32, &[2, 4]), ix.clone()),
            Some(Code::Invalid)
        );
        assert_eq!(
            ask(Tensor::poison(DType::Bf16, &[2, 3]), ix),
            Some(Code::Unsupported)
        );
        assert_eq!(
            ask(
                Tensor::poison(DType::F32, &[2, 3]),
                Tensor::poison(DType::F32, &[2])
            ),
            Some(Code::Unsupported)
        );
    }
}
