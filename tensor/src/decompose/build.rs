//! A recipe under construction: views of operands and temporaries, one method per primitive, and temporaries that share memory in the end.

use crossweave_hal::abi::{Layout, op, read};
use crossweave_hal::{DType, DynMap, OpRequest, PatternMap, Recipe, RecipeStep, Slot};
use crossweave_program::{Ex, Prog};

/// Reads a params or dyn struct; `None` when the bytes are not one.
pub(super) fn read<P: read::Sized32>(bytes: &[u8]) -> Option<P> {
    let size = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    if size > bytes.len() {
        return None;
    }
    // SAFETY: the slice holds at least the stated size, which is all the reader looks at.
    unsafe { read::read_prefix(bytes.as_ptr().cast()) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Operand(usize),
    Temp(usize),
}

/// Elements of an operand or a temporary, as the ops see them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct View {
    home: Source,
    at: u64,
    pub dtype: DType,
    pub shape: Vec<u64>,
    stride: Vec<i64>,
}

fn dense(shape: &[u64]) -> Vec<i64> {
    let mut stride = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        stride[i - 1] = stride[i] * shape[i] as i64;
    }
    stride
}

impl View {
    fn layout(&self) -> Layout {
        Layout::strided(self.dtype, &self.shape, &self.stride)
    }
    fn slot(&self) -> Slot {
        let (at, bytes) = (self.at, self.layout().extent_bytes());
        match self.home {
            Source::Operand(i) => Slot::Operand { i, at, bytes },
            Source::Temp(i) => Slot::Temp { i, at, bytes },
        }
    }
    /// Sizes of a view that has exactly `N` dims.
    pub fn dims<const N: usize>(&self) -> Option<[u64; N]> {
        self.shape.as_slice().try_into().ok()
    }
    /// Does it show an operand (else a temporary)?
    pub fn is_operand(&self) -> bool {
        matches!(self.home, Source::Operand(_))
    }
    /// Elements.
    pub fn numel(&self) -> u64 {
        self.shape.iter().product()
    }
    pub fn is_dense(&self) -> bool {
        let d = dense(&self.shape);
        self.numel() == 0 || (0..d.len()).all(|i| self.shape[i] == 1 || self.stride[i] == d[i])
    }
    /// The same elements in another shape; only of dense views (others are refused where the result is used).
    pub fn reshape(&self, shape: &[u64]) -> View {
        View {
            shape: shape.to_vec(),
            stride: dense(shape),
            ..self.clone()
        }
    }
    /// An output whose leading dims are joined as those of an input of `n` rows.
    pub fn as_matrix(&self, n: u64, d: u64) -> View {
        if self.shape.len() == 2 {
            self.clone()
        } else {
            self.reshape(&[n, d])
        }
    }
    /// All elements in one dim; only of dense views.
    pub fn flat(&self) -> View {
        self.reshape(&[self.numel()])
    }
    /// Dims in another order.
    pub fn permute(&self, order: &[usize]) -> View {
        View {
            shape: order.iter().map(|i| self.shape[*i]).collect(),
            stride: order.iter().map(|i| self.stride[*i]).collect(),
            ..self.clone()
        }
    }
    /// Dim `i` seen as `[a, b]` (`a * b` elements).
    pub fn split(&self, i: usize, a: u64, b: u64) -> View {
        let mut v = self.clone();
        let step = v.stride[i];
        v.shape.splice(i..=i, [a, b]);
        v.stride.splice(i..=i, [step * b as i64, step]);
        v
    }
    /// A new dim of size `n` before dim `i` in which nothing moves.
    pub fn repeat(&self, i: usize, n: u64) -> View {
        let mut v = self.clone();
        v.shape.insert(i, n);
        v.stride.insert(i, 0);
        v
    }
    /// Every `step`-th of the elements from `start` of the last dim, `len` of them.
    pub fn slice_last(&self, start: u64, step: u64, len: u64) -> View {
        let mut v = self.clone();
        if let (Some(n), Some(s)) = (v.shape.last_mut(), v.stride.last_mut()) {
            v.at += v.dtype.bytes(start * *s as u64);
            *n = len;
            *s *= step as i64;
        }
        v
    }
    /// Element `k` of the first dim, which stays as a dim of one.
    pub fn at(&self, k: u64) -> View {
        let mut v = self.clone();
        if let (Some(n), Some(s)) = (v.shape.first_mut(), v.stride.first()) {
            v.at += v.dtype.bytes(k * *s as u64);
            *n = 1;
        }
        v
    }
    /// The first `n` of the first dim.
    pub fn first(&self, n: u64) -> View {
        let mut v = self.clone();
        if let Some(d) = v.shape.first_mut() {
            *d = n.min(*d);
        }
        v
    }
    /// Broadcast by stride 0 to a larger shape, aligned at the last dim.
    pub fn over(&self, shape: &[u64]) -> View {
        let mut v = self.clone();
        while v.shape.len() < shape.len() {
            v.shape.insert(0, 1);
            v.stride.insert(0, 0);
        }
        for (i, n) in shape.iter().enumerate() {
            if v.shape[i] == 1 && *n != 1 {
                v.shape[i] = *n;
                v.stride[i] = 0;
            }
        }
        v
    }
}

/// Operands of the op being decomposed.
pub(super) struct Given<'a>(pub &'a OpRequest);

impl Given<'_> {
    /// Operand `i`, `None` when absent or of an unknown dtype.
    pub fn view(&self, i: usize) -> Option<View> {
        let l = self.0.operands.get(i)?;
        let rank = l.rank as usize;
        Some(View {
            home: Source::Operand(i),
            at: 0,
            dtype: DType::from_id(l.dtype)?,
            shape: l.shape.get(..rank)?.iter().map(|d| *d as u64).collect(),
            stride: l.stride.get(..rank)?.to_vec(),
        })
    }
    /// The params struct.
    pub fn params<P: read::Sized32>(&self) -> Option<P> {
        read(&self.0.params)
    }
}

/// A recipe under construction.
#[derive(Default)]
pub(super) struct Build {
    temps: Vec<u64>,
    steps: Vec<RecipeStep>,
}

impl Build {
    /// A new temporary. Those that are not live together share memory in the finished recipe.
    pub fn temp(&mut self, dtype: DType, shape: &[u64]) -> View {
        let numel: u64 = shape.iter().product();
        self.temps.push(dtype.bytes(numel).max(1));
        View {
            home: Source::Temp(self.temps.len() - 1),
            at: 0,
            dtype,
            shape: shape.to_vec(),
            stride: dense(shape),
        }
    }
    /// Any op of the table.
    pub fn op(
        &mut self,
        id: u32,
        params: &[u8],
        operands: &[Option<&View>],
        dynamic: Option<DynMap>,
    ) {
        let layouts: Vec<Layout> = operands
            .iter()
            .map(|v| v.map_or(Layout::ABSENT, View::layout))
            .collect();
        self.steps.push(RecipeStep::Launch {
            op: OpRequest::new(id, &layouts, params),
            operands: operands
                .iter()
                .map(|v| v.map_or(Slot::Absent, View::slot))
                .collect(),
            dynamic,
        });
    }
    /// An op of two operands without parameters.
    fn plain(&mut self, id: u32, dst: &View, src: &View) {
        let p = op::NoParams::default();
        self.op(id, p.as_bytes(), &[Some(dst), Some(src)], None);
    }
    /// An op whose one parameter is a kind.
    pub fn kind(&mut self, id: u32, kind: u32, operands: &[&View]) {
        let p = op::KindParams {
            kind,
            ..Default::default()
        };
        let o: Vec<_> = operands.iter().map(|v| Some(*v)).collect();
        self.op(id, p.as_bytes(), &o, None);
    }
    /// One 4-byte element whose bits come from the launch-time parameters.
    pub fn dyn_word(&mut self, dtype: DType, pattern: PatternMap) -> View {
        let v = self.temp(dtype, &[1]);
        self.steps.push(RecipeStep::Fill {
            slot: v.slot(),
            pattern,
        });
        v
    }
    /// One f32.
    pub fn constant(&mut self, value: f32) -> View {
        self.dyn_word(
            DType::F32,
            std::sync::Arc::new(move |_: &[u8]| value.to_bits()),
        )
    }
    /// One index, exact whatever its size; `None` when the dtype cannot hold it.
    pub fn index(&mut self, dtype: DType, value: i64) -> Option<View> {
        let words = match dtype {
            DType::I32 => vec![i32::try_from(value).ok()? as u32],
            DType::I64 => vec![value as u32, (value >> 32) as u32],
            _ => return None,
        };
        let v = self.temp(dtype, &[1]);
        for (k, w) in words.into_iter().enumerate() {
            let half = View {
                at: 4 * k as u64,
                dtype: DType::F32,
                ..v.clone()
            };
            self.steps.push(RecipeStep::Fill {
                slot: half.slot(),
                pattern: std::sync::Arc::new(move |_: &[u8]| w),
            });
        }
        Some(v)
    }
    /// The numbers 0, 1, … n - 1.
    pub fn count(&mut self, dtype: DType, n: u64) -> View {
        let v = self.temp(dtype, &[n]);
        let p = op::IotaParams {
            step: 1.0,
            ..Default::default()
        };
        self.op(op::IOTA, p.as_bytes(), &[Some(&v)], None);
        v
    }
    /// `dst = src`, converted where the dtypes differ.
    pub fn copy(&mut self, dst: &View, src: &View) {
        if dst.dtype == src.dtype {
            self.plain(op::COPY_STRIDED, dst, src);
        } else if dst.is_dense() {
            self.plain(op::CAST, dst, src);
        } else {
            let t = self.temp(dst.dtype, &dst.shape);
            self.plain(op::CAST, &t, src);
            self.plain(op::COPY_STRIDED, dst, &t);
        }
    }
    /// The values as dense f32: `v` itself when it is that already.
    pub fn f32(&mut self, v: &View) -> View {
        if v.dtype == DType::F32 && v.is_dense() {
            return v.clone();
        }
        let t = self.temp(DType::F32, &v.shape);
        self.copy(&t, v);
        t
    }
    /// The values densely, dtype unchanged.
    pub fn packed(&mut self, v: &View) -> View {
        if v.is_dense() {
            return v.clone();
        }
        let t = self.temp(v.dtype, &v.shape);
        self.copy(&t, v);
        t
    }
    /// All dims but the last joined; strided ones of other than two dims are packed first.
    pub fn matrix(&mut self, v: &View) -> View {
        match v.shape.split_last() {
            Some((d, rows)) if rows.len() != 1 => {
                let shape = [rows.iter().product(), *d];
                self.packed(v).reshape(&shape)
            }
            _ => v.clone(),
        }
    }
    /// Reduces the dims of `axes` (bits) of `src` into `dst`, whose sizes there are 1.
    pub fn reduce(&mut self, kind: u32, axes: u32, dst: &View, src: &View, add: bool) {
        let p = op::ReduceParams {
            kind,
            axes,
            flags: if add { op::FLAG_ACCUM } else { 0 },
            ..Default::default()
        };
        self.op(op::REDUCE, p.as_bytes(), &[Some(dst), Some(src)], None);
    }
    /// Reduces the last dim into a new f32 of size 1 there.
    pub fn along(&mut self, kind: u32, src: &View) -> View {
        let mut shape = src.shape.clone();
        let last = shape.len().saturating_sub(1);
        if let Some(n) = shape.last_mut() {
            *n = 1;
        }
        let t = self.temp(DType::F32, &shape);
        self.reduce(kind, 1 << last, &t, src, false);
        t
    }
    /// `dst = a b`, or `dst = cond != 0 ? a : b` and the like: an op of the table without parameters.
    pub fn launch(&mut self, id: u32, operands: &[&View]) {
        let o: Vec<_> = operands.iter().map(|v| Some(*v)).collect();
        self.op(id, op::NoParams::default().as_bytes(), &o, None);
    }
    /// `alpha A B` as a new f32, batched over the first of three dims.
    pub fn matmul(&mut self, a: &View, b: &View, alpha: f64) -> View {
        let c = self.temp(DType::F32, &[a.shape[0], a.shape[1], b.shape[2]]);
        let p = op::MatmulParams {
            alpha,
            ..Default::default()
        };
        self.op(
            op::MATMUL,
            p.as_bytes(),
            &[Some(&c), Some(a), Some(b), None],
            None,
        );
        c
    }

    /// A pointwise program: `outs = f(ins)`, each input broadcast to the shape of the outputs. An input that is also an output is read first.
    pub fn map<F>(&mut self, outs: &[&View], ins: &[&View], f: F)
    where
        F: for<'p> FnOnce(&[Ex<'p>]) -> Vec<Ex<'p>>,
    {
        self.map_dyn(outs, ins, None, f);
    }

    /// The same with launch-time scalars.
    pub fn map_dyn<F>(&mut self, outs: &[&View], ins: &[&View], dynamic: Option<DynMap>, f: F)
    where
        F: for<'p> FnOnce(&[Ex<'p>]) -> Vec<Ex<'p>>,
    {
        // Outputs of ops are dense; strided ones are written aside and copied.
        let aside: Vec<View> = outs
            .iter()
            .map(|v| {
                if v.is_dense() {
                    (*v).clone()
                } else {
                    self.temp(v.dtype, &v.shape)
                }
            })
            .collect();
        let shape = outs[0].shape.clone();
        let mut operands = aside.clone();
        let regs: Vec<u32> = ins
            .iter()
            .map(|v| {
                let v = v.over(&shape);
                let at = operands.iter().position(|o| *o == v).unwrap_or_else(|| {
                    operands.push(v);
                    operands.len() - 1
                });
                at as u32
            })
            .collect();
        let prog = Prog::new(operands.len() as u32);
        let given: Vec<Ex<'_>> = regs.iter().map(|r| prog.operand(*r)).collect();
        let results = f(&given);
        let params = prog.finish(&results);
        let o: Vec<_> = operands.iter().map(Some).collect();
        self.op(op::ELEMENTWISE_PROGRAM, params.as_bytes(), &o, dynamic);
        for (dst, t) in outs.iter().zip(&aside) {
            if *dst != t {
                self.copy(dst, t);
            }
        }
    }

    /// A program of one new f32 of the given shape.
    pub fn new_map<F>(&mut self, shape: &[u64], ins: &[&View], f: F) -> View
    where
        F: for<'p> FnOnce(&[Ex<'p>]) -> Ex<'p>,
    {
        let t = self.temp(DType::F32, shape);
        self.map(&[&t], ins, |x| vec![f(x)]);
        t
    }

    /// The recipe. Temporaries get memory at their first use and give it back after their last, so that the sum of those live
    /// together is what a launch needs, not the sum of all.
    pub fn finish(mut self) -> Recipe {
        fn slots(s: &mut RecipeStep) -> Vec<&mut Slot> {
            match s {
                RecipeStep::Launch { operands, .. } => operands.iter_mut().collect(),
                RecipeStep::Fill { slot, .. } => vec![slot],
            }
        }
        let mut last = vec![0; self.temps.len()];
        for (k, s) in self.steps.iter_mut().enumerate() {
            for slot in slots(s) {
                if let Slot::Temp { i, .. } = slot {
                    last[*i] = k;
                }
            }
        }
        let mut homes: Vec<Option<usize>> = vec![None; self.temps.len()];
        let (mut shared, mut free): (Vec<u64>, Vec<usize>) = (vec![], vec![]);
        for (k, s) in self.steps.iter_mut().enumerate() {
            let mut done = vec![];
            for slot in slots(s) {
                let Slot::Temp { i, .. } = slot else { continue };
                let old = *i;
                let home = homes[old].unwrap_or_else(|| {
                    let bytes = self.temps[old];
                    // The closest fit; else the largest free one grows.
                    let best = (0..free.len())
                        .filter(|f| shared[free[*f]] >= bytes)
                        .min_by_key(|f| shared[free[*f]])
                        .or_else(|| (0..free.len()).max_by_key(|f| shared[free[*f]]));
                    let h = match best {
                        Some(f) => free.swap_remove(f),
                        None => {
                            shared.push(0);
                            shared.len() - 1
                        }
                    };
                    shared[h] = shared[h].max(bytes);
                    h
                });
                homes[old] = Some(home);
                *i = home;
                if last[old] == k && !done.contains(&home) {
                    done.push(home);
                }
            }
            free.extend(done);
        }
        Recipe {
            temps: shared,
            steps: self.steps,
        }
    }
}
