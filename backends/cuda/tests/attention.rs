//! Attention by the simulator of cuDNN, which holds descriptors to their order and computes the graphs it is given: against attention written
//! out in f64. What the library does not take goes to our own kernels, which are written down there, not executed.

use crate::common;
use common::{Simulated, simulator, span};
use crossweave_backend_cuda::{
    ABOUT, Cuda, CudaGraphs, CudaOps, Device, Mem, Prepared, Settings, Stream,
};
use crossweave_plugin::abi::Layout;
use crossweave_plugin::abi::op::{self, AttentionParams, FLAG_CAUSAL};
use crossweave_plugin::{Backend, Code, DType, Dyn, Graphs, OpRequest, Ops, Plan, Result, abi};
use std::path::Path;
use std::time::Duration;

const LONG: Option<Duration> = Some(Duration::from_secs(120));
/// Bytes from one operand to the next in the test's memory.
const ROOM: u64 = 1 << 20;

fn layout(dtype: DType, shape: &[i64], stride: &[i64]) -> Layout {
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

#[derive(Clone, Copy)]
struct Case {
    what: &'static str,
    t: DType,
    b: usize,
    h: usize,
    hkv: usize,
    tq: usize,
    tk: usize,
    d: usize,
    causal: bool,
    window: usize,
    /// q, k and v are slices of one buffer.
    packed: bool,
    flags: u32,
}

const PLAIN: Case = Case {
    what: "plain",
    t: DType::Bf16,
    b: 2,
    h: 4,
    hkv: 4,
    tq: 16,
    tk: 16,
    d: 8,
    causal: true,
    window: 0,
    packed: false,
    flags: abi::MATH_DETERMINISTIC,
};

impl Case {
    fn params(&self) -> AttentionParams {
        AttentionParams {
            flags: if self.causal { FLAG_CAUSAL } else { 0 },
            window: self.window as i64,
            ..AttentionParams::default()
        }
    }
    /// `[B, T, heads, D]`: a slice of a packed buffer, or dense.
    fn four(&self, t: usize, heads: usize, sliced: bool) -> Layout {
        let row = match sliced && self.packed {
            true => (self.h + 2 * self.hkv) * self.d,
            false => heads * self.d,
        } as i64;
        let (b, t, heads, d) = (self.b as i64, t as i64, heads as i64, self.d as i64);
        layout(self.t, &[b, t, heads, d], &[t * row, row, d, 1])
    }
    fn lse(&self) -> Layout {
        let (b, h, t) = (self.b as i64, self.h as i64, self.tq as i64);
        layout(DType::F32, &[b, h, t], &[h * t, t, 1])
    }
    /// o, lse, q, k, v.
    fn forward(&self) -> [Layout; 5] {
        let (q, kv) = (
            self.four(self.tq, self.h, true),
            self.four(self.tk, self.hkv, true),
        );
        [self.four(self.tq, self.h, false), self.lse(), q, kv, kv]
    }
    /// dq, dk, dv, do, o, q, k, v, lse.
    fn backward(&self) -> [Layout; 9] {
        let [o, lse, q, k, v] = self.forward();
        [q, k, v, o, o, q, k, v, lse]
    }
    fn scale(&self) -> f64 {
        1.0 / (self.d as f64).sqrt()
    }
    fn sees(&self, i: usize, j: usize) -> bool {
        let at = (i + self.tk - self.tq) as i64;
        let j = j as i64;
        (!self.causal || j <= at) && (self.window == 0 || j > at - self.window as i64)
    }
}

fn of_bits(t: DType, h: u16) -> f64 {
    if t == DType::Bf16 {
        return f64::from(f32::from_bits(u32::from(h) << 16));
    }
    let (e, f) = (i32::from(h >> 10 & 31), f64::from(h & 1023));
    let v = match e {
        0 => f * 2f64.powi(-24),
        e => (f + 1024.0) * 2f64.powi(e - 25),
    };
    if h >> 15 == 1 { -v } else { v }
}

/// A number both types have.
fn bits_of(t: DType, x: f64) -> u16 {
    let r = (x * 64.0).round() / 64.0;
    if t == DType::Bf16 {
        return ((r as f32).to_bits() >> 16) as u16;
    }
    if r == 0.0 {
        return 0;
    }
    let e = r.abs().log2().floor() as i32;
    let f = ((r.abs() / 2f64.powi(e) - 1.0) * 1024.0) as u16;
    u16::from(r < 0.0) << 15 | ((e + 15) as u16) << 10 | f
}

/// The op's operands in pinned memory, `ROOM` apart; several slices of one buffer share its room.
struct World<'a> {
    s: &'a Simulated,
    p: &'a Mem,
    t: DType,
}

impl World<'_> {
    fn place(&self, i: usize, l: &Layout, [b, t, h, d]: [usize; 4]) -> usize {
        let at = [b, t, h, d]
            .iter()
            .zip(&l.stride)
            .map(|(i, s)| *i as i64 * s)
            .sum::<i64>();
        i * ROOM as usize + at as usize * 2
    }
    fn get(&self, i: usize, l: &Layout, at: [usize; 4]) -> f64 {
        let o = self.place(i, l, at);
        let b = self.s.bytes(self.p, o + 2);
        of_bits(self.t, u16::from_le_bytes([b[o], b[o + 1]]))
    }
    fn fill(&self, i: usize, l: &Layout, seed: usize) {
        let n: Vec<usize> = l.shape[..4].iter().map(|n| *n as usize).collect();
        for b in 0..n[0] {
            for t in 0..n[1] {
                for h in 0..n[2] {
                    for d in 0..n[3] {
                        let x = (b * 7 + t * 13 + h * 5 + d * 3 + seed * 11) % 29;
                        let o = self.place(i, l, [b, t, h, d]);
                        let v = bits_of(self.t, (x as f64 - 14.0) / 16.0);
                        self.s.bytes(self.p, o + 2)[o..].copy_from_slice(&v.to_le_bytes());
                    }
                }
            }
        }
    }
    fn lse(&self, i: usize, at: usize) -> f64 {
        let o = i * ROOM as usize + at * 4;
        let b = &self.s.bytes(self.p, o + 4)[o..];
        f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }
}

fn near(got: f64, want: f64, what: &str) {
    assert!(
        (got - want).abs() <= 0.02 * (1.0 + want.abs()),
        "{what}: {got}, want {want}"
    );
}

struct Rig<'a> {
    s: &'a Simulated,
    d: &'a Device,
    stream: &'a Stream,
    p: &'a Mem,
    scratch: &'a Mem,
}

impl Rig<'_> {
    fn prepare(&self, c: &Case, id: u32, l: &[Layout]) -> Result<(Prepared, Plan)> {
        let p = c.params();
        CudaOps::prepare(
            &self.s.b,
            self.d,
            &OpRequest::new(id, l, p.as_bytes(), c.flags),
        )
    }
    /// Operand `i` starts `shift` bytes into its room.
    fn launch(&self, a: &Prepared, plan: &Plan, n: usize, shift: u64) -> Result<()> {
        let all: Vec<_> = (0..n as u64)
            .map(|i| Some(span(self.p, i * ROOM + shift, ROOM - 64)))
            .collect();
        let ws = (plan.workspace_bytes > 0).then(|| span(self.scratch, 0, plan.workspace_bytes));
        CudaOps::launch(&self.s.b, a, self.stream, &all, ws, Dyn(&[]))?;
        self.s.b.stream_sync(self.stream, LONG)
    }
    fn executed(&self) -> i64 {
        self.s.ask("sim_dnn_executed", 0) as i32 as i64
    }
    fn chosen(&self) -> String {
        let b: &Cuda = &self.s.b;
        String::from_utf8(b.attr(self.d, "kernels.chosen").unwrap()).unwrap()
    }
}

/// Probabilities of a query over the keys, and the logarithm of their sum.
fn softmax(
    w: &World<'_>,
    c: &Case,
    q: (usize, &Layout),
    k: (usize, &Layout),
    at: [usize; 3],
) -> (Vec<f64>, f64) {
    let [b, h, i] = at;
    let hk = h / (c.h / c.hkv);
    let s: Vec<f64> = (0..c.tk)
        .map(|j| match c.sees(i, j) {
            false => f64::NEG_INFINITY,
            true => {
                (0..c.d)
                    .map(|x| w.get(q.0, q.1, [b, i, h, x]) * w.get(k.0, k.1, [b, j, hk, x]))
                    .sum::<f64>()
                    * c.scale()
            }
        })
        .collect();
    let top = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = s.iter().map(|x| (x - top).exp()).sum();
    (
        s.iter().map(|x| (x - top).exp() / sum).collect(),
        top + sum.ln(),
    )
}

fn forward(r: &Rig<'_>, c: &Case) {
    let l = c.forward();
    let w = World {
        s: r.s,
        p: r.p,
        t: c.t,
    };
    for i in 2..5 {
        w.fill(i, &l[i], i);
    }
    let (a, plan) = r.prepare(c, op::ATTENTION_FWD, &l).unwrap();
    assert_eq!(plan.tier, 2);
    r.launch(&a, &plan, 5, 0).unwrap();
    for b in 0..c.b {
        for h in 0..c.h {
            for i in 0..c.tq {
                let (p, lse) = softmax(&w, c, (2, &l[2]), (3, &l[3]), [b, h, i]);
                near(w.lse(1, (b * c.h + h) * c.tq + i), lse, c.what);
                for x in 0..c.d {
                    let hk = h / (c.h / c.hkv);
                    let o: f64 = (0..c.tk)
                        .map(|j| p[j] * w.get(4, &l[4], [b, j, hk, x]))
                        .sum();
                    near(w.get(0, &l[0], [b, i, h, x]), o, c.what);
                }
            }
        }
    }
}

fn backward(r: &Rig<'_>, c: &Case) {
    let l = c.backward();
    let w = World {
        s: r.s,
        p: r.p,
        t: c.t,
    };
    for i in 3..8 {
        w.fill(i, &l[i], i);
    }
    // o and the log-sum-exp are what a forward gave.
    let group = c.h / c.hkv;
    let size = |heads: usize, t: usize| vec![0f64; c.b * heads * t * c.d];
    let (mut dq, mut dk, mut dv) = (size(c.h, c.tq), size(c.hkv, c.tk), size(c.hkv, c.tk));
    for b in 0..c.b {
        for h in 0..c.h {
            let hk = h / group;
            let kv = |j: usize, x: usize| ((b * c.hkv + hk) * c.tk + j) * c.d + x;
            for i in 0..c.tq {
                let (p, lse) = softmax(&w, c, (5, &l[5]), (6, &l[6]), [b, h, i]);
                let o = 8 * ROOM as usize + ((b * c.h + h) * c.tq + i) * 4;
                r.s.bytes(r.p, o + 4)[o..].copy_from_slice(&(lse as f32).to_le_bytes());
                let go = |x: usize| w.get(3, &l[3], [b, i, h, x]);
                let delta: f64 = (0..c.d)
                    .map(|x| go(x) * w.get(4, &l[4], [b, i, h, x]))
                    .sum();
                for j in (0..c.tk).filter(|j| c.sees(i, *j)) {
                    let dp: f64 = (0..c.d)
                        .map(|x| go(x) * w.get(7, &l[7], [b, j, hk, x]))
                        .sum();
                    let ds = p[j] * (dp - delta) * c.scale();
                    for x in 0..c.d {
                        dv[kv(j, x)] += p[j] * go(x);
                        dk[kv(j, x)] += ds * w.get(5, &l[5], [b, i, h, x]);
                        dq[((b * c.h + h) * c.tq + i) * c.d + x] +=
                            ds * w.get(6, &l[6], [b, j, hk, x]);
                    }
                }
            }
        }
    }
    let (a, plan) = r.prepare(c, op::ATTENTION_BWD, &l).unwrap();
    r.launch(&a, &plan, 9, 0).unwrap();
    for (n, (want, heads, t)) in [(&dq, c.h, c.tq), (&dk, c.hkv, c.tk), (&dv, c.hkv, c.tk)]
        .into_iter()
        .enumerate()
    {
        for b in 0..c.b {
            for h in 0..heads {
                for i in 0..t {
                    for x in 0..c.d {
                        let want = want[((b * heads + h) * t + i) * c.d + x];
                        near(w.get(n, &l[n], [b, i, h, x]), want, c.what);
                    }
                }
            }
        }
    }
}

#[test]
fn attention_on_the_simulator() {
    let settings = Settings::new(&ABOUT).with("cuda.cudnn_workspace", "1");
    let file = simulator("attention");
    let t = Simulated::with(&file, &["cuda.libnvrtc", "cuda.libcudnn"], settings);
    {
        let d = t.b.open(0).unwrap();
        let stream = t.b.stream(&d, 0).unwrap();
        let (p, scratch) = (t.pinned(&d, 9 * ROOM), t.device_memory(&d, 1 << 22));
        let r = Rig {
            s: &t,
            d: &d,
            stream: &stream,
            p: &p,
            scratch: &scratch,
        };
        graphs_compute_attention(&r);
        what_repeats_makes_nothing(&r);
        a_graph_holds_it(&r);
        the_rest_goes_to_own_kernels(&r);
        failures_say_what_the_library_says(&r);
    }
    assert_eq!(t.depth(), 0);
    assert_eq!(t.ask("sim_dnn_live", 0) as i32, 0, "descriptors are left");
    assert_eq!(t.ask("sim_dnn_broken", 0) as i32, 0);
    settings_are_held(&t, &file);
}

fn graphs_compute_attention(r: &Rig<'_>) {
    let before = r.executed();
    let cases = [
        PLAIN,
        Case {
            what: "heads that share keys, packed",
            hkv: 2,
            packed: true,
            ..PLAIN
        },
        Case {
            what: "fewer queries",
            tq: 8,
            ..PLAIN
        },
        Case {
            what: "a window",
            window: 5,
            ..PLAIN
        },
        Case {
            what: "a window over more keys, without a mask, f16",
            t: DType::F16,
            tq: 10,
            window: 7,
            causal: false,
            ..PLAIN
        },
        Case {
            what: "no mask, more queries",
            causal: false,
            tq: 20,
            ..PLAIN
        },
    ];
    for c in &cases {
        forward(r, c);
        backward(r, c);
        backward(r, &Case { flags: 0, ..*c });
    }
    assert_eq!(r.executed() - before, 3 * cases.len() as i64);
    assert!(r.s.launches().is_empty(), "no kernels of our own");
    // One MiB holds the scores of two batches: four are done in two parts of two.
    let parts = Case {
        what: "in parts",
        b: 4,
        h: 48,
        hkv: 48,
        tq: 4,
        tk: 4,
        ..PLAIN
    };
    let before = r.executed();
    backward(r, &parts);
    assert_eq!(r.executed() - before, 2);
}

fn what_repeats_makes_nothing(r: &Rig<'_>) {
    let l = PLAIN.forward();
    let (a, plan) = r.prepare(&PLAIN, op::ATTENTION_FWD, &l).unwrap();
    let built = r.s.ask("sim_dnn_built", 0) as i32;
    let (again, _) = r.prepare(&PLAIN, op::ATTENTION_FWD, &l).unwrap();
    assert_eq!(
        r.s.ask("sim_dnn_built", 0) as i32,
        built,
        "a shape is planned once"
    );
    r.launch(&a, &plan, 5, 0).unwrap();
    r.launch(&again, &plan, 5, 0).unwrap();
    let made = r.s.ask("sim_dnn_created", 0) as i32;
    for _ in 0..3 {
        r.launch(&a, &plan, 5, 0).unwrap();
        r.launch(&again, &plan, 5, 0).unwrap();
    }
    assert_eq!(r.s.ask("sim_dnn_created", 0) as i32, made);
    r.launch(&a, &plan, 5, 16).unwrap();
    assert_eq!(
        r.s.ask("sim_dnn_created", 0) as i32,
        made + 1,
        "other addresses are bound once"
    );
}

fn a_graph_holds_it(r: &Rig<'_>) {
    let l = PLAIN.forward();
    let (a, plan) = r.prepare(&PLAIN, op::ATTENTION_FWD, &l).unwrap();
    let bytes = PLAIN.b * PLAIN.tq * PLAIN.h * PLAIN.d * 2;
    r.launch(&a, &plan, 5, 0).unwrap();
    let called = r.s.bytes(r.p, bytes).to_vec();
    assert!(called.iter().any(|b| *b != 0));
    r.s.bytes(r.p, bytes).fill(0);
    CudaGraphs::begin(&r.s.b, r.stream).unwrap();
    r.launch(&a, &plan, 5, 0).unwrap();
    let graph = CudaGraphs::end(&r.s.b, r.stream).unwrap();
    r.s.b.stream_sync(r.stream, LONG).unwrap();
    assert!(
        r.s.bytes(r.p, bytes).iter().all(|b| *b == 0),
        "it ran when it was captured"
    );
    CudaGraphs::launch(&r.s.b, &graph, r.stream).unwrap();
    r.s.b.stream_sync(r.stream, LONG).unwrap();
    assert_eq!(r.s.bytes(r.p, bytes).to_vec(), called);
    // What comes after a capture runs at once again.
    r.s.bytes(r.p, bytes).fill(0);
    r.launch(&a, &plan, 5, 0).unwrap();
    assert_eq!(r.s.bytes(r.p, bytes).to_vec(), called);
}

fn the_rest_goes_to_own_kernels(r: &Rig<'_>) {
    r.s.launches();
    let before = r.executed();
    let l = PLAIN.forward();
    let (a, plan) = r.prepare(&PLAIN, op::ATTENTION_FWD, &l).unwrap();
    r.launch(&a, &plan, 5, 4).unwrap();
    assert_eq!(r.s.launches().len(), 1, "odd addresses");
    // A head the library does not take, and engines whose bits vary for an op whose bits must not.
    let odd = Case { d: 20, ..PLAIN };
    let (a, plan) = r.prepare(&odd, op::ATTENTION_FWD, &odd.forward()).unwrap();
    r.launch(&a, &plan, 5, 0).unwrap();
    r.s.ask("sim_dnn_varying", 1);
    let fresh = Case { tq: 12, ..PLAIN };
    let free = Case { flags: 0, ..fresh };
    let (a, plan) = r
        .prepare(&fresh, op::ATTENTION_FWD, &fresh.forward())
        .unwrap();
    r.launch(&a, &plan, 5, 0).unwrap();
    assert_eq!(r.s.launches().len(), 2);
    assert_eq!(r.executed(), before);
    let (a, plan) = r
        .prepare(&free, op::ATTENTION_FWD, &free.forward())
        .unwrap();
    r.launch(&a, &plan, 5, 0).unwrap();
    r.s.ask("sim_dnn_varying", 0);
    assert_eq!(r.executed(), before + 1);
    // No engine: asked for once, then remembered.
    r.s.ask("sim_dnn_engines", 0);
    let none = Case { tq: 10, ..PLAIN };
    let asked = r.s.ask("sim_dnn_asked", 0) as i32;
    for _ in 0..2 {
        r.prepare(&none, op::ATTENTION_FWD, &none.forward())
            .unwrap();
    }
    assert_eq!(
        r.s.ask("sim_dnn_asked", 0) as i32,
        asked + 2,
        "both heuristics, once"
    );
    r.s.ask("sim_dnn_engines", 1);
    // Scores of one batch alone are beyond a MiB.
    let large = Case {
        h: 8,
        hkv: 8,
        tq: 320,
        tk: 320,
        ..PLAIN
    };
    r.prepare(&large, op::ATTENTION_BWD, &large.backward())
        .unwrap();
    let chosen = r.chosen();
    for part in [
        " by cuDNN; ",
        "1 by own kernels (attention): heads that are no multiple of 8",
        "1 by own kernels (attention): the engine's bits vary",
        "2 by own kernels (attention): cudnnBackendFinalize of the heuristics: CUDNN_STATUS_NOT_SUPPORTED (3000): no engine of this simulator",
        "1 by own kernels (attention): scores of one sequence beyond cuda.cudnn_workspace",
    ] {
        assert!(chosen.contains(part), "{part} is not in: {chosen}");
    }
}

fn failures_say_what_the_library_says(r: &Rig<'_>) {
    let (a, plan) = r
        .prepare(&PLAIN, op::ATTENTION_FWD, &PLAIN.forward())
        .unwrap();
    r.s.ask("sim_dnn_fails", 1);
    let e = r.launch(&a, &plan, 5, 0).unwrap_err();
    r.s.ask("sim_dnn_fails", 0);
    assert_eq!((e.code, e.vendor_code), (Code::Internal, 5000));
    for part in [
        "cudnnBackendExecute",
        "CUDNN_STATUS_EXECUTION_FAILED",
        "the simulator was set to fail",
    ] {
        assert!(e.message.contains(part), "{e}");
    }
    r.launch(&a, &plan, 5, 0).unwrap();
}

/// Off, unknown words, and no library: with what is there.
fn settings_are_held(t: &Simulated, file: &Path) {
    let of = |c: &Case, set: &[(&str, &str)], there: &[&str]| {
        let s = set
            .iter()
            .fold(Settings::new(&ABOUT), |s, (k, v)| s.with(k, *v));
        let t = Simulated::with(file, there, s);
        let d = t.b.open(1).unwrap();
        let p = c.params();
        let l = c.forward();
        let o = OpRequest::new(op::ATTENTION_FWD, &l, p.as_bytes(), c.flags);
        CudaOps::prepare(&t.b, &d, &o)?;
        Ok(String::from_utf8(t.b.attr(&d, "kernels.chosen")?).unwrap())
    };
    let chosen = |value: Option<&str>, there: &[&str]| {
        let set: Vec<_> = value.iter().map(|v| ("cuda.cudnn", *v)).collect();
        of(&PLAIN, &set, there)
    };
    let both = ["cuda.libnvrtc", "cuda.libcudnn"];
    let text: Result<String> = chosen(Some("off"), &both);
    assert_eq!(
        text.unwrap(),
        "attention: 0 by cuDNN; 1 by own kernels (attention): cuda.cudnn = off"
    );
    let text = chosen(None, &both[..1]).unwrap();
    assert!(
        text.contains("1 by own kernels (attention): no cuDNN: looked for at-all.so"),
        "{text}"
    );
    assert_eq!(
        chosen(Some("auto"), &both).unwrap(),
        "attention: 1 by cuDNN"
    );
    let e = chosen(Some("sometimes"), &both).unwrap_err();
    assert_eq!(
        (e.code, e.message.as_str()),
        (Code::Invalid, "cuda.cudnn = sometimes: auto or off")
    );
    // The simulated device is of 9.0: products of warpgroups, unless they are not wanted.
    let wide = Case {
        d: 64,
        tq: 65,
        tk: 65,
        ..PLAIN
    };
    for (wgmma, family) in [("auto", "attention_wgmma"), ("off", "attention_mma")] {
        let set = [("cuda.cudnn", "off"), ("cuda.wgmma", wgmma)];
        assert_eq!(
            of(&wide, &set, &both).unwrap(),
            format!("attention: 0 by cuDNN; 1 by own kernels ({family}): cuda.cudnn = off")
        );
    }
    let e = of(&wide, &[("cuda.wgmma", "maybe")], &both).unwrap_err();
    assert_eq!(
        (e.code, e.message.as_str()),
        (Code::Invalid, "cuda.wgmma = maybe: auto or off")
    );
    assert_eq!(t.ask("sim_dnn_live", 0) as i32, 0);
}
