//! Defects of ops: parameters, layouts and launch structs changed on their way to the CPU back end, results changed after it or made in its
//! place, from copies of the operands in page-locked memory.

use crate::Seeded;
use crate::beyond::Beyond;
use crossweave_abi::op::{self, class};
use crossweave_abi::{DType, Layout};
use crossweave_backend_cpu::{CpuBackend, CpuOps, Device, Mem, Stream};
use crossweave_plugin::{Backend, Dyn, MemKind, OpRequest, Ops, Plan, Result, Span};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The ops of the CPU back end.
pub enum SeededOps {}

type Inner = <CpuOps as Ops<CpuBackend>>::Prepared;

/// An op of the CPU back end and what is wrong with it.
pub struct Wrong {
    inner: Inner,
    id: u32,
    layouts: Vec<Layout>,
    /// What changes the results, over copies of the operands.
    fix: Option<(Fix, Arc<Copies>)>,
    /// What goes wrong beyond a size, over a copy of the operand.
    beyond: Option<(Beyond, Arc<Copies>)>,
    first: Mutex<Option<Vec<u8>>>,
    launches: AtomicU64,
}

/// Copies of the operands; absent and empty ones have none.
struct Copies(Vec<Option<Mem>>);

type Run = fn(&[Host], u64);

/// A change of results: after the launch, or instead of it; and the operands it writes.
#[derive(Clone, Copy)]
struct Fix {
    instead: bool,
    writes: &'static [usize],
    run: Run,
}

/// An operand on the host.
pub struct Host {
    at: *mut u8,
    pub layout: Layout,
}
// SAFETY: an address whose memory goes along in `Copies`; one closure of one stream uses it.
unsafe impl Send for Host {}

impl Host {
    fn n(&self) -> usize {
        self.layout.numel() as usize
    }
    fn dim(&self, d: usize) -> usize {
        self.layout.shape[d] as usize
    }
    /// Dense and of this dtype?
    fn is(&self, t: DType) -> bool {
        self.layout.dtype == t.id() && self.layout.flags & crossweave_abi::LAYOUT_CONTIGUOUS != 0
    }
    pub fn get<T: Copy>(&self, i: usize) -> T {
        // SAFETY: callers stay below `n` of a dense operand whose elements are of T's size.
        unsafe { self.at.cast::<T>().add(i).read_unaligned() }
    }
    pub fn set<T: Copy>(&self, i: usize, v: T) {
        // SAFETY: as `get`.
        unsafe { self.at.cast::<T>().add(i).write_unaligned(v) }
    }
}

fn bf16(v: f32) -> f32 {
    let b = v.to_bits();
    f32::from_bits((b + 0x7FFF + (b >> 16 & 1)) & 0xFFFF_0000)
}

fn wide(b: u16) -> f32 {
    f32::from_bits(u32::from(b) << 16)
}

/// cast: dst, src.
fn truncate(x: &[Host], _: u64) {
    if x[0].is(DType::Bf16) && x[1].is(DType::F32) {
        (0..x[0].n()).for_each(|i| x[0].set(i, (x[1].get::<u32>(i) >> 16) as u16));
    }
}

/// matmul: c, a, b; rank 2 and nothing else.
fn narrow_sums(x: &[Host], _: u64) {
    if x.len() != 3 || x.iter().any(|h| !h.is(DType::Bf16) || h.layout.rank != 2) {
        return;
    }
    let (m, n, k) = (x[0].dim(0), x[0].dim(1), x[1].dim(1));
    for i in 0..m {
        for j in 0..n {
            let v = (0..k).fold(0.0, |s, l| {
                bf16(s + wide(x[1].get(i * k + l)) * wide(x[2].get(l * n + j)))
            });
            x[0].set(i * n + j, (v.to_bits() >> 16) as u16);
        }
    }
}

/// arg_reduce: index, src along the last of two dims.
fn last_of_equals(x: &[Host], _: u64) {
    if !x[1].is(DType::F32)
        || x[1].layout.rank != 2
        || x[0].layout.dtype != DType::I32.id()
        || x[0].dim(1) != 1
    {
        return;
    }
    let n = x[1].dim(1);
    for r in 0..x[1].dim(0) {
        let best = x[1].get::<f32>(r * n + x[0].get::<i32>(r) as usize);
        let at = (0..n).rev().find(|i| x[1].get::<f32>(r * n + i) == best);
        if let Some(i) = at {
            x[0].set(r, i as i32);
        }
    }
}

/// sort_pairs: keys and values out; runs of equal keys come in the other order.
fn unstable(x: &[Host], _: u64) {
    if !x[0].is(DType::I32) || !x[1].is(DType::I32) {
        return;
    }
    for i in 1..x[0].n() {
        if x[0].get::<i32>(i) == x[0].get::<i32>(i - 1) {
            let (a, b) = (x[1].get::<i32>(i - 1), x[1].get::<i32>(i));
            x[1].set(i - 1, b);
            x[1].set(i, a);
        }
    }
}

/// nonfinite_count: count, sources.
fn but_minus_infinity(x: &[Host], _: u64) {
    for s in x[1..].iter().filter(|s| s.is(DType::F32)) {
        let n = (0..s.n())
            .filter(|i| s.get::<f32>(*i) == f32::NEG_INFINITY)
            .count();
        x[0].set(0, x[0].get::<u32>(0) - n as u32);
    }
}

/// gather_rows: dst, table, index.
fn last_row(x: &[Host], _: u64) {
    if !x[1].is(DType::F32) || !x[2].is(DType::I32) || x[1].layout.rank != 2 {
        return;
    }
    let (rows, w) = (x[1].dim(0), x[1].dim(1));
    for i in 0..x[2].n() {
        if x[2].get::<i32>(i) >= rows as i32 {
            (0..w).for_each(|c| x[0].set(i * w + c, x[1].get::<f32>((rows - 1) * w + c)));
        }
    }
}

/// cross_entropy_fwd: loss, lse, logits, target.
fn no_maximum(x: &[Host], _: u64) {
    if !x[2].is(DType::F32) {
        return;
    }
    let d = x[2].dim(1);
    for r in 0..x[2].dim(0) {
        let s: f32 = (0..d).map(|c| x[2].get::<f32>(r * d + c).exp()).sum();
        x[1].set(r, s.ln());
    }
}

/// dropout: y, x, without a residual.
fn inverted(x: &[Host], _: u64) {
    if x.len() == 2 && x[0].is(DType::F32) && x[1].is(DType::F32) {
        for i in 0..x[0].n() {
            let y = if x[0].get::<f32>(i) == 0.0 {
                2.0 * x[1].get::<f32>(i)
            } else {
                0.0
            };
            x[0].set(i, y);
        }
    }
}

/// embedding_bwd: dtable, dpos?, dy, index; of rows that come twice only the last counts.
fn no_duplicates(x: &[Host], _: u64) {
    if !x[2].is(DType::F32) {
        return;
    }
    let (rows, d) = (x[0].dim(0), x[0].dim(1));
    let old: Vec<f32> = (0..rows * d).map(|i| x[0].get(i)).collect();
    for i in 0..x[3].n() {
        let r = x[3].get::<i32>(i);
        if (0..rows as i32).contains(&r) {
            let r = r as usize;
            (0..d).for_each(|c| x[0].set(r * d + c, old[r * d + c] + x[2].get::<f32>(i * d + c)));
        }
    }
}

/// clamp: dst, src.
fn nan_is_low(x: &[Host], _: u64) {
    if x[0].is(DType::F32) {
        for i in 0..x[0].n() {
            if x[0].get::<f32>(i).is_nan() {
                x[0].set(i, -0.5f32);
            }
        }
    }
}

/// multi_sumsq: the last bit of sums that are not whole comes and goes.
fn restless(x: &[Host], launch: u64) {
    let v = x[0].get::<f32>(0);
    if v.fract() != 0.0 && launch % 2 == 1 {
        x[0].set(0, f32::from_bits(v.to_bits() ^ 1));
    }
}

/// The change of results that a defect is, if it is one of this op.
fn fix(bug: &str, id: u32) -> Option<Fix> {
    let after = |writes: &'static [usize], run: Run| {
        Some(Fix {
            instead: false,
            writes,
            run,
        })
    };
    match (bug, id) {
        ("cast_truncates", op::CAST) => after(&[0], truncate),
        ("matmul_sums_in_bf16", op::MATMUL) => after(&[0], narrow_sums),
        ("last_of_equals", op::ARG_REDUCE) => after(&[0], last_of_equals),
        ("sort_is_unstable", op::SORT_PAIRS) => after(&[1], unstable),
        ("minus_infinity_not_counted", op::NONFINITE_COUNT) => after(&[0], but_minus_infinity),
        ("out_of_range_is_the_last_row", op::GATHER_ROWS) => after(&[0], last_row),
        ("lse_without_maximum", op::CROSS_ENTROPY_FWD) => after(&[1], no_maximum),
        ("dropout_keeps_what_it_drops", op::DROPOUT) => after(&[0], inverted),
        ("nan_is_clamped", op::CLAMP) => after(&[0], nan_is_low),
        ("sums_change_from_run_to_run", op::MULTI_SUMSQ) => after(&[0], restless),
        ("duplicates_overwrite", op::EMBEDDING_BWD) => Some(Fix {
            instead: true,
            writes: &[0],
            run: no_duplicates,
        }),
        _ => None,
    }
}

/// What the back end is asked instead, when the defect lies there.
fn asked(bug: &str, o: &OpRequest<'_>) -> Result<Option<(Vec<Layout>, Vec<u8>)>> {
    let mut l = o.operands.to_vec();
    macro_rules! with {
        ($t:ident) => {
            o.params::<op::$t>()?.as_bytes().to_vec()
        };
        ($t:ident, $p:ident, $change:expr) => {{
            let mut $p = o.params::<op::$t>()?;
            $change;
            $p.as_bytes().to_vec()
        }};
    }
    let p = match (bug, o.id) {
        ("accum_flag_ignored", op::MATMUL) => with!(MatmulParams, p, p.flags &= !op::FLAG_ACCUM),
        ("causal_mask_ignored", op::ATTENTION_FWD) => {
            with!(AttentionParams, p, p.flags &= !op::FLAG_CAUSAL)
        }
        ("window_off_by_one", op::ATTENTION_BWD) => {
            with!(AttentionParams, p, p.window += i64::from(p.window > 0))
        }
        ("scale_ignored", op::ATTENTION_FWD) => with!(AttentionParams, p, p.scale = 0.0),
        ("one_key_head_for_all", op::ATTENTION_FWD) => {
            (l[3].stride[2], l[4].stride[2]) = (0, 0);
            with!(AttentionParams)
        }
        // From the first to the last length: one segment.
        ("segments_ignored", op::ATTENTION_VARLEN_FWD) if l[5].shape[1] > 2 => {
            l[5].stride[1] *= l[5].shape[1] - 1;
            l[5].shape[1] = 2;
            with!(AttentionParams)
        }
        ("lengths_of_the_first_row", op::ATTENTION_VARLEN_BWD) => {
            l[9].stride[0] = 0;
            with!(AttentionParams)
        }
        ("skip_ignored", op::ADAMW) => {
            l[1] = Layout::ABSENT;
            with!(AdamwParams)
        }
        ("factor_ignored", op::MULTI_SCALE) => {
            l[0] = Layout::ABSENT;
            with!(NoParams)
        }
        ("residual_gradient_ignored", op::RMS_NORM_BWD) if l.len() > 6 => {
            l[6] = Layout::ABSENT;
            with!(NormParams)
        }
        ("interleaved_ignored", op::ROPE) => with!(RopeParams, p, p.flags &= !op::FLAG_INTERLEAVED),
        ("inverse_ignored", op::ROPE) => with!(RopeParams, p, p.flags &= !op::FLAG_INVERSE),
        ("ignored_rows_count", op::CROSS_ENTROPY_FWD) => with!(XentParams, p, p.flags = 0),
        ("eps_ignored", op::LAYER_NORM_FWD) => with!(NormParams, p, p.eps = 0.0),
        ("descending_is_ascending", op::SORT_PAIRS) => {
            with!(DimParams, p, p.flags &= !op::FLAG_DESCENDING)
        }
        ("beta_0_reads_y", op::AXPBY) => with!(
            AxpbyParams,
            p,
            if p.beta == 0.0 {
                p.beta = 1e-38
            }
        ),
        ("unknown_flags_are_dropped", op::AXPBY) => with!(AxpbyParams, p, p.flags = 0),
        ("fnuz_read_as_ocp", op::CAST) => {
            for x in l.iter_mut().filter(|x| x.dtype == DType::F8E4M3Fnuz.id()) {
                x.dtype = DType::F8E4M3.id();
            }
            with!(NoParams)
        }
        ("transposed_is_read_as_dense", op::BINARY) if l.len() == 3 && l[2].rank == 2 => {
            if l[2].stride[0] == 1 {
                l[2].stride =
                    Layout::contiguous(DType::F32, &[l[2].shape[0] as u64, l[2].shape[1] as u64])
                        .stride;
            }
            with!(KindParams)
        }
        ("tails_are_dropped", op::UNARY) if l.iter().all(|x| x.rank == 1) => {
            l.iter_mut().for_each(|x| x.shape[0] &= !3);
            with!(KindParams)
        }
        ("revisions_are_ignored", op::SELECT) => with!(NoParams),
        _ => return Ok(None),
    };
    Ok(Some((l, p)))
}

/// The launch struct the back end gets instead.
fn told(bug: &str, w: &Wrong, given: &[u8]) -> Result<Vec<u8>> {
    let d = Dyn(given);
    macro_rules! with {
        ($t:ident, $p:ident, $change:expr) => {{
            let mut $p = d.read::<op::$t>()?;
            $change;
            $p.as_bytes().to_vec()
        }};
    }
    Ok(match (bug, w.id) {
        ("dyn_of_the_first_launch", _) => {
            let mut first = w.first.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert_with(|| given.to_vec()).clone()
        }
        ("bias_correction_a_step_late", op::ADAMW) => with!(AdamwDyn, p, p.step += 1),
        ("seed_of_32_bits", op::PHILOX) => with!(PhiloxDyn, p, p.seed &= 0xFFFF_FFFF),
        ("stream_ignored", op::PHILOX) => with!(PhiloxDyn, p, p.stream = 0),
        ("offset_counts_elements", op::DROPOUT) => with!(PhiloxDyn, p, p.offset /= 4),
        _ => given.to_vec(),
    })
}

impl Ops<Seeded> for SeededOps {
    type Prepared = Wrong;

    fn prepare(b: &Seeded, d: &Device, o: &OpRequest<'_>) -> Result<(Wrong, Plan)> {
        let bug = b.bug.as_str();
        let other = asked(bug, o)?;
        let (inner, mut plan) = match &other {
            Some((l, p)) => {
                CpuOps::prepare(b.inner(), d, &OpRequest::new(o.id, l, p, o.math_flags))?
            }
            None => CpuOps::prepare(b.inner(), d, o)?,
        };
        let layouts = other.map_or_else(|| o.operands.to_vec(), |x| x.0);
        let fix = match fix(bug, o.id) {
            None => None,
            Some(f) => {
                let copy = |l: &Layout| match l.extent_bytes() {
                    0 => Ok(None),
                    n => b.inner().alloc(d, MemKind::HostPinned, n, 0).map(Some),
                };
                Some((
                    f,
                    Arc::new(Copies(layouts.iter().map(copy).collect::<Result<_>>()?)),
                ))
            }
        };
        let beyond = match Beyond::parse(bug, o.id) {
            Some(x) if layouts.get(x.operand).is_some_and(|l| x.meets(l)) => {
                let bytes = layouts[x.operand].extent_bytes();
                let copy = b.inner().alloc(d, MemKind::HostPinned, bytes, 0)?;
                Some((x, Arc::new(Copies(vec![Some(copy)]))))
            }
            _ => None,
        };
        if b.is("class_overstated") {
            plan.error_class = class::FUSED;
        }
        if b.is("workspace_understated") {
            plan.workspace_bytes = plan.workspace_bytes.saturating_sub(64);
        }
        let w = Wrong {
            inner,
            id: o.id,
            layouts,
            fix,
            beyond,
            first: Mutex::default(),
            launches: AtomicU64::new(0),
        };
        Ok((w, plan))
    }

    fn launch(
        b: &Seeded,
        w: &Wrong,
        s: &Stream,
        operands: &[Option<Span<'_, Mem>>],
        workspace: Option<Span<'_, Mem>>,
        dynamic: Dyn<'_>,
    ) -> Result<()> {
        let given: Vec<_> = operands.iter().map(bare).collect();
        let at = |i: usize| given.get(i).copied().flatten();
        let there = |i: usize| w.layouts.get(i).is_none_or(Layout::present);
        let spans: Vec<_> = given
            .iter()
            .enumerate()
            .map(|(i, x)| x.filter(|_| there(i)).map(span))
            .collect();
        let dynamic = told(&b.bug, w, dynamic.0)?;
        if b.is("weight_gradient_overwritten")
            && let (op::LAYER_NORM_BWD, Some(dw)) = (w.id, at(1))
        {
            b.inner().fill(s, span(dw), 0, 4)?;
        }
        let more = if b.is("workspace_understated") { 64 } else { 0 };
        let workspace = bare(&workspace).map(|(m, o, n)| span((m, o, n + more)));
        if let Some((x, copies)) = &w.beyond {
            return beyond(b, w, s, &given, workspace, &dynamic, *x, copies);
        }
        if w.fix.as_ref().is_none_or(|f| !f.0.instead) {
            CpuOps::launch(b.inner(), &w.inner, s, &spans, workspace, Dyn(&dynamic))?;
        }
        if let Some((f, copies)) = &w.fix {
            change(b, w, s, &given, *f, copies)?;
        }
        if let (true, op::FILL_STRIDED, Some((m, o, n))) =
            (b.is("stores_past_the_end"), w.id, at(0))
        {
            b.inner().fill(s, span((m, o + n, 4)), 0, 1)?;
        }
        if let (true, op::SOFTMAX_FWD, Some((m, o, n))) = (b.is("op_input_is_scratch"), w.id, at(1))
            && n > 0
        {
            b.inner().fill(s, span((m, o, 1)), 0x55, 1)?;
        }
        Ok(())
    }
}

/// A span that can be given twice.
type Bare<'a> = (&'a Mem, u64, u64);

fn bare<'a>(x: &Option<Span<'a, Mem>>) -> Option<Bare<'a>> {
    x.as_ref().map(|x| (x.mem, x.offset, x.bytes))
}

fn span((mem, offset, bytes): Bare<'_>) -> Span<'_, Mem> {
    Span { mem, offset, bytes }
}

/// A launch whose operand goes wrong beyond a size: before it, in a copy that is read, or after it, on its way through one.
#[allow(clippy::too_many_arguments)]
fn beyond(
    b: &Seeded,
    w: &Wrong,
    s: &Stream,
    given: &[Option<Bare<'_>>],
    workspace: Option<Span<'_, Mem>>,
    dynamic: &[u8],
    x: Beyond,
    copies: &Arc<Copies>,
) -> Result<()> {
    let launch = |with: Option<Bare<'_>>| {
        let spans: Vec<_> = given
            .iter()
            .enumerate()
            .map(|(i, g)| (if i == x.operand { with } else { *g }).map(span))
            .collect();
        CpuOps::launch(b.inner(), &w.inner, s, &spans, workspace, Dyn(dynamic))
    };
    let (Some(copy), Some((mem, offset, _))) = (&copies.0[0], given[x.operand]) else {
        return launch(given[x.operand]);
    };
    let bytes = copy.bytes();
    let (there, here) = ((mem, offset, bytes), (copy, 0, bytes));
    let host = Host {
        at: b.inner().map(copy)?,
        layout: w.layouts[x.operand],
    };
    let spoil = |keep: Arc<Copies>| {
        b.inner().host_call(
            s,
            Box::new(move |_| {
                let host = host;
                x.spoil(&host);
                drop(keep);
            }),
        )
    };
    if x.gives {
        launch(given[x.operand])?;
        b.inner().copy(s, span(here), span(there))?;
        spoil(copies.clone())?;
        b.inner().copy(s, span(there), span(here))?;
    } else {
        b.inner().copy(s, span(here), span(there))?;
        spoil(copies.clone())?;
        launch(Some(here))?;
    }
    // The copy lives until the stream has passed.
    let keep = copies.clone();
    b.inner().host_call(s, Box::new(move |_| drop(keep)))
}

/// Operands to the host, the change, and what it writes back; all in stream order.
fn change(
    b: &Seeded,
    w: &Wrong,
    s: &Stream,
    given: &[Option<Bare<'_>>],
    f: Fix,
    copies: &Arc<Copies>,
) -> Result<()> {
    let part = |i: usize| -> Option<[Span<'_, Mem>; 2]> {
        let (copy, (mem, offset, _)) = (copies.0[i].as_ref()?, given[i]?);
        let bytes = copy.bytes();
        let here = Span {
            mem: copy,
            offset: 0,
            bytes,
        };
        Some([Span { mem, offset, bytes }, here])
    };
    let mut hosts = Vec::new();
    for i in 0..given.len() {
        let at = match part(i) {
            None => std::ptr::null_mut(),
            Some([there, here]) => {
                let at = b.inner().map(here.mem)?;
                b.inner().copy(s, here, there)?;
                at
            }
        };
        hosts.push(Host {
            at,
            layout: w.layouts[i],
        });
    }
    let n = w.launches.fetch_add(1, Ordering::Relaxed);
    b.inner().host_call(
        s,
        Box::new(move |_| {
            let hosts = hosts;
            if hosts
                .iter()
                .all(|h| h.layout.numel() > 0 || !h.layout.present())
            {
                (f.run)(&hosts, n);
            }
        }),
    )?;
    for i in f.writes {
        if let Some([there, here]) = part(*i) {
            b.inner().copy(s, there, here)?;
        }
    }
    // The copies live until the stream has passed.
    let keep = copies.clone();
    b.inner().host_call(s, Box::new(move |_| drop(keep)))
}
