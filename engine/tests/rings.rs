//! Attention over keys that go around a ring of ranks: its results and gradients are those of one rank that has whole rows, whatever a mask hides
//! and whatever is added to the scores.

use crate::transitions::{on_axis, values};
use crossweave_engine::MeshGroups;
use crossweave_hal::abi::op;
use crossweave_hal::{DType, Device};
use crossweave_mesh::{Axis, AxisSet};
use crossweave_tensor::{
    AttentionExtras, AttentionSpec, Batch, Builder, Cx, Decompositions, Env, GradSink, Groups,
    Init, Keep, KernelCache, Layout, Meeting, NoGroups, Param, RngKey, RowCut, Run, Runs, Tensor,
};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const ROWS: u64 = 2;
const TOKENS: u64 = 24;
const HEADS: u64 = 4;
const KV_HEADS: u64 = 2;
const WIDTH: u64 = 4;

/// What attention is made of beside queries, keys and values.
#[derive(Clone, Copy, Debug, Default)]
struct Case {
    causal: bool,
    window: u64,
    cap: f64,
    dropout: f64,
    distances: bool,
    sinks: bool,
    documents: bool,
    dtype: Option<DType>,
}

impl Case {
    fn spec(&self) -> AttentionSpec {
        AttentionSpec {
            heads: HEADS,
            kv_heads: KV_HEADS,
            causal: self.causal,
            window: self.window,
            cap: self.cap,
            dropout: self.dropout,
            ..AttentionSpec::default()
        }
    }
    fn dtype(&self) -> DType {
        self.dtype.unwrap_or(DType::F32)
    }
}

/// The ends of the documents of each row.
const ENDS: [[i32; 4]; 2] = [[0, 5, 17, 24], [0, 11, 12, 24]];

/// Result, dq, dk, dv of the tokens that are here, and dsinks.
type Found = [Vec<f32>; 5];

/// The tokens of these runs of `[rows, tokens, width]`.
fn tokens_of(all: &[f32], runs: &Runs, width: u64) -> Vec<f32> {
    let row = |b: u64| {
        runs.iter().flat_map(move |[from, n]| {
            let at = (b * TOKENS + from) * width;
            at as usize..(at + n * width) as usize
        })
    };
    (0..ROWS).flat_map(row).map(|i| all[i]).collect()
}

/// Attention of the tokens that are here, forward and backward.
fn attend(device: &Device, groups: &dyn Groups, rows: Option<RowCut>, case: &Case) -> Found {
    let stream = device.stream("compute", 0).unwrap();
    let cache = RefCell::new(KernelCache::default());
    let run = Run::new(&stream, &Decompositions, &cache);
    let place = [groups.at(Axis::Cp), groups.size(Axis::Cp)].map(u64::from);
    let layout = rows.map_or(Layout::Contiguous, |r| r.layout);
    let runs = layout.runs(place, TOKENS);
    let here = TOKENS / place[1];
    let typed = |x: &[f32], shape: [u64; 3]| -> Tensor {
        let t = run.from_f32(shape, x).unwrap();
        if case.dtype() == DType::F32 {
            return t;
        }
        let y = run.empty(shape, case.dtype()).unwrap();
        let none = op::NoParams::default();
        run.launch(op::CAST, &[Some(&y), Some(&t)], none.as_bytes(), &[])
            .unwrap();
        y
    };
    let own = |seed: u64, heads: u64| {
        let width = heads * WIDTH;
        let all = values(seed, ROWS * TOKENS * width);
        let all: Vec<f32> = all.iter().map(|x| 3.0 * x).collect();
        typed(&tokens_of(&all, &runs, width), [ROWS, here, width])
    };
    let lengths = |[from, n]: [u64; 2]| {
        let clip = move |e: i32| (e - from as i32).clamp(0, n as i32);
        let words: Vec<u8> = ENDS
            .iter()
            .flatten()
            .flat_map(|e| clip(*e).to_le_bytes())
            .collect();
        let t = run.empty([ROWS, 4], DType::I32).unwrap();
        stream.write(t.region(), &words).unwrap();
        t
    };
    let mut batch = Batch::default();
    if let Some(rows) = rows {
        (batch.cut_over, batch.rows) = (Axis::Cp.into(), rows);
        let of = |p: u64| layout.runs([p, place[1]], TOKENS);
        if case.documents {
            let all = (0..place[1]).flat_map(|p| of(p).iter());
            batch.run_segments = all.map(lengths).collect();
        }
    }
    batch.segments = case.documents.then(|| lengths([0, TOKENS]));
    let params = [run.from_f32([HEADS], &[0.3, -0.7, 1.5, 0.0]).unwrap()];
    let grads = [run.zeros([HEADS], DType::F32).unwrap()];
    let written = [Rc::new(Cell::new(false))];
    let sink = GradSink::new(&grads, &written);
    let params = params.map(|p| match case.dtype() {
        DType::F32 => p,
        _ => typed(&run.to_f32(&p).unwrap(), [1, 1, HEADS]).view([HEADS]),
    });
    let env = Env {
        run: &run,
        groups,
        params: &params,
        consts: &[],
        grads: &sink,
        batch: &batch,
        key: RngKey {
            seed: 5,
            first_sequence: 3,
            ..RngKey::default()
        },
        training: true,
    };
    let mut declared = None;
    Builder::default().unit("sinks", |u| {
        declared = Some(u.param("sinks", &[HEADS], Init::Zeros));
        Nothing
    });
    let sinks: Option<Param> = declared.filter(|_| case.sinks);
    let line: Vec<f32> = (0..HEADS * (2 * TOKENS - 1))
        .map(|i| {
            let (h, at) = (i / (2 * TOKENS - 1), i % (2 * TOKENS - 1));
            0.1 * (h + 1) as f32 * (at as f32 - (TOKENS - 1) as f32)
        })
        .collect();
    let line = case
        .distances
        .then(|| run.from_f32([HEADS, 2 * TOKENS - 1], &line).unwrap());
    let mut cx = Cx::new(&env);
    let [q, k, v] = [own(1, HEADS), own(2, KV_HEADS), own(3, KV_HEADS)].map(|t| cx.input(t));
    let extras = AttentionExtras {
        sinks,
        fixed_bias: line,
        ..AttentionExtras::default()
    };
    let y = cx.attention_with(q, k, v, case.spec(), extras).unwrap();
    let out = run.to_f32(cx.val(y).unwrap()).unwrap();
    let dy = own(4, HEADS);
    let tape = cx.finish(Keep::All);
    let grads_of = tape
        .backward(&env, &[y], vec![Some(dy)], &[q, k, v])
        .unwrap();
    let mut of = grads_of
        .into_iter()
        .map(|d| run.to_f32(&d.unwrap()).unwrap());
    let mut next = || of.next().unwrap();
    let (dq, dk, dv) = (next(), next(), next());
    [out, dq, dk, dv, run.to_f32(&grads[0]).unwrap()]
}

/// A block that computes nothing, for a unit that only declares.
struct Nothing;
impl crossweave_tensor::Block for Nothing {
    fn forward(
        &self,
        _: &mut Cx<'_>,
        f: crossweave_tensor::Flow,
    ) -> crossweave_tensor::Result<crossweave_tensor::Flow> {
        Ok(f)
    }
}

/// The largest difference between what ranks found and what one rank did, in parts of the largest value of its kind; of each kind.
fn apart(whole: &Found, ranks: &[Found], layout: Layout) -> [f32; 5] {
    let n = ranks.len() as u64;
    let widths = [HEADS, HEADS, KV_HEADS, KV_HEADS].map(|h| h * WIDTH);
    let most = |x: &[f32]| x.iter().fold(1e-6f32, |m, v| m.max(v.abs()));
    let far = |a: &[f32], b: &[f32]| {
        assert_eq!(a.len(), b.len());
        let each = a.iter().zip(b).map(|(a, b)| (a - b).abs());
        each.fold(
            0.0f32,
            |m, d| if d.is_nan() { f32::INFINITY } else { m.max(d) },
        )
    };
    let mut all = [0.0f32; 5];
    for (kind, width) in widths.into_iter().enumerate() {
        for (r, found) in ranks.iter().enumerate() {
            let runs = layout.runs([r as u64, n], TOKENS);
            let want = tokens_of(&whole[kind], &runs, width);
            all[kind] = all[kind].max(far(&found[kind], &want) / most(&whole[kind]));
        }
    }
    let sinks: Vec<f32> = (0..HEADS as usize)
        .map(|h| ranks.iter().map(|f| f[4][h]).sum())
        .collect();
    all[4] = far(&sinks, &whole[4]) / most(&whole[4]);
    all
}

fn on_a_ring(n: u32, layout: Layout, case: &Case) -> Vec<Found> {
    let rows = RowCut {
        layout,
        meeting: Meeting::Ring { inner: 1 },
        causal: case.causal,
    };
    let each = |device: &Device, groups: &MeshGroups, _| attend(device, groups, Some(rows), case);
    on_axis((Axis::Cp, n), each)
        .into_iter()
        .map(|(found, _)| found)
        .collect()
}

fn on_one(case: &Case) -> Found {
    let alone = on_axis((Axis::Cp, 1), |device, _, _| {
        attend(device, &NoGroups, None, case)
    });
    alone.into_iter().next().unwrap().0
}

fn cases() -> Vec<Case> {
    let causal = Case {
        causal: true,
        ..Case::default()
    };
    let all = Case {
        window: 7,
        cap: 2.0,
        dropout: 0.2,
        distances: true,
        sinks: true,
        documents: true,
        ..causal
    };
    let mut cases = vec![causal, Case::default(), all];
    cases.extend([1, 2, 7, 13, 40].map(|window| Case { window, ..causal }));
    cases.extend([3, 9].map(|window| Case {
        window,
        ..Case::default()
    }));
    for base in [causal, Case::default()] {
        cases.extend([
            Case { cap: 2.0, ..base },
            Case {
                dropout: 0.3,
                ..base
            },
            Case {
                distances: true,
                ..base
            },
            Case {
                sinks: true,
                ..base
            },
            Case {
                documents: true,
                ..base
            },
        ]);
    }
    cases
}

/// Every mask and every addition, over two, three and four ranks, in both layouts. Sums of so few terms in another order differ by a few
/// units in the last place.
#[test]
fn rings_attend_as_one_rank() {
    for case in cases() {
        let whole = on_one(&case);
        for (n, layout) in [2, 3, 4]
            .into_iter()
            .flat_map(|n| [Layout::Contiguous, Layout::ZigZag].map(|l| (n, l)))
        {
            let ranks = on_a_ring(n, layout, &case);
            let far = apart(&whole, &ranks, layout);
            assert!(
                far.iter().all(|f| *f < 2e-6),
                "{case:?} over {n} ranks, {layout:?}: {far:?}"
            );
        }
    }
}

/// dQ, dK and dV were wrong under a ring of causal rows (Megatron-LM#1465): each is that of one rank, for every key-value head.
#[test]
fn megatron_lm_1465_gradients_under_a_ring_are_those_of_one_rank() {
    let case = Case {
        causal: true,
        ..Case::default()
    };
    let whole = on_one(&case);
    for n in [2, 4] {
        let far = apart(&whole, &on_a_ring(n, Layout::ZigZag, &case), Layout::ZigZag);
        assert!(far[1..4].iter().all(|f| *f < 2e-6), "{n} ranks: {far:?}");
    }
}

/// Sinks were lost without a word (prime-rl#3397): they are in the sum of each query once, and have a gradient once.
#[test]
fn prime_rl_3397_sinks_are_counted_once() {
    let with = Case {
        causal: true,
        sinks: true,
        ..Case::default()
    };
    let without = Case {
        sinks: false,
        ..with
    };
    let (whole, other) = (on_one(&with), on_one(&without));
    for n in [2, 4] {
        for layout in [Layout::Contiguous, Layout::ZigZag] {
            let ranks = on_a_ring(n, layout, &with);
            let far = apart(&whole, &ranks, layout);
            assert!(far.iter().all(|f| *f < 2e-6), "{n} ranks: {far:?}");
            let lost = apart(&other, &ranks, layout);
            assert!(lost[0] > 1e-2 && lost[2] > 1e-2, "{n} ranks: {lost:?}");
        }
    }
}

/// Parts of 16 bits are merged in f32, so that a ring is as far from f32 as one rank is.
#[test]
fn rings_of_16_bits_are_as_near_as_one_rank() {
    for case in cases() {
        let exact = on_one(&case);
        let half = Case {
            dtype: Some(DType::Bf16),
            ..case
        };
        let own = apart(&exact, &[on_one(&half)], Layout::Contiguous);
        for layout in [Layout::Contiguous, Layout::ZigZag] {
            let far = apart(&exact, &on_a_ring(4, layout, &half), layout);
            let near = far
                .iter()
                .zip(&own)
                .all(|(far, own)| *far < 1.5 * own.max(4e-3));
            assert!(near, "{case:?}, {layout:?}: {far:?}, one rank {own:?}");
        }
    }
}

/// What attention of a ring cannot do is refused in a sentence with the way out.
#[test]
fn what_a_ring_cannot_do_is_refused() {
    on_axis((Axis::Cp, 2), |device, groups, _| {
        let stream = device.stream("compute", 0).unwrap();
        let cache = RefCell::new(KernelCache::default());
        let run = Run::new(&stream, &Decompositions, &cache);
        let (sink, batch) = (
            GradSink::none(),
            Batch {
                cut_over: AxisSet::from(Axis::Cp),
                rows: RowCut {
                    meeting: Meeting::Ring { inner: 1 },
                    causal: true,
                    ..RowCut::default()
                },
                ..Batch::default()
            },
        );
        let env = Env {
            run: &run,
            groups,
            params: &[],
            consts: &[],
            grads: &sink,
            batch: &batch,
            key: RngKey::default(),
            training: true,
        };
        let case = Case {
            causal: true,
            ..Case::default()
        };
        let mut cx = Cx::new(&env);
        let t = |shape: [u64; 3]| run.zeros(shape, DType::F32).unwrap();
        let q = cx.input(t([1, 4, HEADS * WIDTH]));
        let [k, v] = [(), ()].map(|()| cx.input(t([1, 4, KV_HEADS * WIDTH])));
        let short = cx.input(t([1, 2, KV_HEADS * WIDTH]));
        let line = cx.input(t([1, HEADS, 15]));
        let mut refused = |[k, v]: [_; 2], extras: AttentionExtras, words: &[&str]| {
            let e = cx.attention_with(q, k, v, case.spec(), extras);
            let e = e.unwrap_err().to_string();
            words
                .iter()
                .for_each(|w| assert!(e.contains(w), "{w} is not in {e}"));
        };
        refused(
            [short; 2],
            AttentionExtras::default(),
            &["ring", "q f32[1, 4, 16]", "k f32[1, 2, 8]"],
        );
        let learned = AttentionExtras {
            bias: Some(line),
            ..AttentionExtras::default()
        };
        refused([k, v], learned, &["learned bias", "mesh.cp_comm", "a2a"]);
        let wrong = AttentionExtras {
            fixed_bias: Some(t([1, HEADS, 14]).view([HEADS, 14])),
            ..AttentionExtras::default()
        };
        refused([k, v], wrong, &["bias", "[4, 15]"]);
    });
}
