//! Every optimizer against float64 (PyTorch, transformers, or written out: tests/oracles/optimizers.py), on one rank and on several, at
//! stage 0 and sharded.

use crossweave_hal::{
    Bootstrap, DType, Device, HostServices, KvStore, LocalKv, Plugin, RawPlugin, Tag,
};
use crossweave_machine::Machine;
use crossweave_mesh::{Axis, Mesh, MeshOptions, Place as RankPlace};
use crossweave_plan::Lane;
use crossweave_program::axes::TensorBox;
use crossweave_program::{
    Builder, CollectiveKind, Given, Life, MemId, Member, MemoryDecl, MemorySpace, Place, StateKind,
    StateRun, Traffic, View,
};
use crossweave_state::StateView;
use crossweave_tensor::{Decompositions, KernelCache, Run};
use crossweave_zero::lower::Optim;
use crossweave_zero::optim::update::{Flat, Part, StepParams, codec, groups, update};
use crossweave_zero::optim::*;
use crossweave_zero::{FlatLayout, Partition};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

const SHAPES: [&[u64]; 3] = [&[6, 4], &[3, 8], &[7]];
/// What gradients are divided by: the tests multiply theirs by its inverse, a power of two, so no bit changes.
const SCALE: f64 = 0.25;
const NAMES: [&str; 3] = ["tall", "wide", "vector"];

fn numel(dims: &[u64]) -> u64 {
    dims.iter().product()
}

fn start(shapes: &[&[u64]]) -> Vec<Vec<f32>> {
    let value = |c: usize, i: u64| (0.7 * i as f64 + c as f64).sin() as f32;
    shapes
        .iter()
        .enumerate()
        .map(|(c, s)| (0..numel(s)).map(|i| value(c + 1, i)).collect())
        .collect()
}

fn gradient(shapes: &[&[u64]], step: u64) -> Vec<Vec<f32>> {
    let value = |c: usize, i: u64| {
        let g = 0.1 * (0.37 * i as f64 + 1.3 * step as f64 + c as f64).sin();
        g as f32 / SCALE as f32
    };
    shapes
        .iter()
        .enumerate()
        .map(|(c, s)| (0..numel(s)).map(|i| value(c + 1, i)).collect())
        .collect()
}

fn cpu(kv: &Arc<dyn KvStore>) -> Plugin {
    let host = HostServices::builder()
        .config("cpu.devices", "4")
        .config("cpu.threads", "1")
        .kv(kv.clone())
        .build();
    Plugin::new(RawPlugin::from_static::<crossweave_backend_cpu::CpuBackend>(&host).unwrap())
}

fn store() -> Arc<dyn KvStore> {
    Arc::new(LocalKv::default())
}

/// Memory on the device that stays.
fn memory(b: &mut Builder, name: &str, dtype: DType, n: u64) -> MemId {
    b.memory(MemoryDecl {
        name: name.into(),
        bytes: dtype.bytes(n),
        dtype,
        tag: Tag::Param,
        home: MemorySpace::Device,
        life: Life::Always { turns: 1 },
    })
}

struct Boot(Arc<dyn KvStore>);
impl Bootstrap for Boot {
    fn set(&self, key: &str, value: &[u8]) -> crossweave_hal::Result<()> {
        self.0.set(key, value)
    }
    fn get(&self, key: &str, timeout: Duration) -> crossweave_hal::Result<Vec<u8>> {
        self.0.get(key, Some(timeout))
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let word = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    bytes.chunks_exact(4).map(word).collect()
}

fn raw(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

#[derive(Clone)]
struct Job {
    shapes: Vec<&'static [u64]>,
    recipes: Vec<Recipe>,
    lr: f64,
    steps: u64,
    ranks: u32,
    sharded: bool,
    /// Compute dtype of the parameters beside f32 masters.
    copy: bool,
    /// Steps whose gradients overflowed.
    skipped: Vec<u64>,
}

impl Job {
    fn new(o: Optimizer, weight_decay: f64, lr: f64) -> Job {
        let recipe = Recipe {
            optimizer: o,
            lr_scale: 1.0,
            weight_decay,
            ema: None,
        };
        Job {
            shapes: SHAPES.to_vec(),
            recipes: vec![recipe; 3],
            lr,
            steps: 4,
            ranks: 1,
            sharded: false,
            copy: false,
            skipped: vec![],
        }
    }

    fn layout(&self) -> FlatLayout {
        let sizes: Vec<u64> = self.shapes.iter().map(|s| numel(s)).collect();
        let whole = self.recipes.iter().any(|r| r.optimizer.wants_whole());
        let deal = if whole {
            Partition::WholeParameter
        } else {
            Partition::Flat
        };
        FlatLayout::new(deal, &sizes, self.ranks)
    }

    /// Values of every parameter after the steps, by rank 0 at stage 0, by all ranks together when sharded.
    fn run(&self) -> Vec<Vec<f32>> {
        let kv = store();
        let plugin = cpu(&kv);
        let layout = self.layout();
        let flats: Vec<Vec<f32>> = std::thread::scope(|s| {
            let rank = |r| {
                s.spawn({
                    let (plugin, kv, layout) = (&plugin, &kv, &layout);
                    move || self.rank(&plugin.open(r).unwrap(), &Boot(kv.clone()), layout, r)
                })
            };
            let all: Vec<_> = (0..self.ranks).map(rank).collect();
            all.into_iter().map(|h| h.join().unwrap()).collect()
        });
        let flat = if self.sharded {
            flats.concat()
        } else {
            flats[0].clone()
        };
        let cut = |p| {
            let r = layout.range(p);
            flat[r.start as usize..r.end as usize].to_vec()
        };
        (0..self.shapes.len()).map(cut).collect()
    }

    fn rank(&self, device: &Device, boot: &Boot, layout: &FlatLayout, rank: u32) -> Vec<f32> {
        let stream = device.stream("compute", 0).unwrap();
        let mine = if self.sharded {
            layout.slice(rank)
        } else {
            0..layout.padded()
        };
        let mut parts = vec![];
        for param in 0..self.shapes.len() {
            for p in layout.pieces(param) {
                if self.sharded && p.rank != rank {
                    continue;
                }
                let at = layout.slice(p.rank).start + p.in_slice.start - mine.start;
                parts.push(Part {
                    param,
                    held: TensorBox::whole(self.shapes[param]),
                    first: p.of_param.start,
                    len: p.of_param.end - p.of_param.start,
                    at,
                    mine: p.rank == rank,
                    logical: 0,
                });
            }
        }
        let cut = |values: Vec<Vec<f32>>| -> Vec<f32> {
            let mut flat = vec![0f32; layout.padded() as usize];
            for (p, v) in values.iter().enumerate() {
                let r = layout.range(p);
                flat[r.start as usize..r.end as usize].copy_from_slice(v);
            }
            flat[mine.start as usize..mine.end as usize].to_vec()
        };
        let len = mine.end - mine.start;
        let mut b = Builder::default();
        let place = RankPlace::on(&[(Axis::Dp, self.ranks)], rank).unwrap();
        let group = b.group(place.group(&Axis::Dp.into()).unwrap());
        let mut memory = |name, dtype, n| memory(&mut b, name, dtype, n);
        let (value, grad) = (
            memory("value", DType::F32, len),
            memory("grad", DType::F32, len),
        );
        let (copy, skip) = (
            memory("copy", DType::Bf16, len),
            memory("skip", DType::U32, 1),
        );
        let params: Vec<_> = self
            .shapes
            .iter()
            .zip(&self.recipes)
            .map(|(s, r)| (s.to_vec(), Some(*r)))
            .collect();
        let optim = Optim {
            groups: groups(&mut b, 0, &params, &parts, 1),
        };
        let fixed = [value, grad, copy, skip].into_iter();
        let all = fixed.chain(optim.memory().map(|(m, _)| m));
        let args: Vec<Place> = all.map(Place::from).collect();
        b.call(None, "update", &args, |code| {
            let on = code.on(Lane::Compute);
            let flat = Flat {
                value: code.arg(0, [len], DType::F32),
                copy: self.copy.then(|| code.arg(2, [len], DType::Bf16)),
                grad: code.arg(1, [len], DType::F32),
            };
            let sum = |t: &View<'_>| {
                let member = Member {
                    kind: CollectiveKind::AllReduce,
                    dtype: DType::F32,
                    send: None,
                    recv: t.span(),
                };
                on.collective(group, Traffic::Optimizer, vec![member]);
            };
            let k = StepParams {
                scaled: true,
                coef: None,
                skip: (!self.skipped.is_empty()).then(|| code.arg(3, [1], DType::U32)),
                sum: &sum,
                matrices: None,
            };
            update(code, on, &optim.groups, 4, &flat, &k);
        });
        let mut machine = Machine::new(device, b.finish()).unwrap();
        let options = MeshOptions {
            timeout: Some(Duration::from_secs(60)),
            islands: None,
        };
        let mesh = Mesh::new(device, boot, place, &[Axis::Dp], &options).unwrap();
        machine.join(&mesh).unwrap();
        let mesh = RefCell::new(mesh);
        let held = |m: MemId| machine.buffer(m).unwrap().clone();
        let (value, grad, copy, skip) = (held(value), held(grad), held(copy), held(skip));
        for (m, zero) in optim.memory() {
            let m = held(m);
            if m.bytes() > 0 {
                stream.fill(m.all(), u64::from(zero), 1).unwrap();
            }
        }
        stream
            .write(value.all(), &raw(&cut(start(&self.shapes))))
            .unwrap();
        let mut taken = 0;
        for step in 1..=self.steps {
            let bad = self.skipped.contains(&step);
            let mut g = gradient(&self.shapes, taken + 1);
            if bad {
                g.iter_mut()
                    .flatten()
                    .step_by(3)
                    .for_each(|v| *v = f32::INFINITY);
            }
            stream.write(grad.all(), &raw(&cut(g))).unwrap();
            stream.fill(skip.all(), bad as u64, 4).unwrap();
            machine.decide(|given| match given {
                Given::Rate => self.lr,
                Given::Update => (taken + 1) as f64,
                Given::Beta { fixed, .. } => *fixed,
                Given::Unscale => SCALE,
                Given::Seed | Given::Beside => 1.0,
            });
            machine.run_alone(&stream, Some(&mesh)).unwrap();
            taken += u64::from(!bad);
        }
        let mut bytes = vec![0u8; 4 * len as usize];
        stream.read(value.all(), &mut bytes).unwrap();
        let out = floats(&bytes);
        if self.copy {
            let mut b = vec![0u8; 2 * len as usize];
            stream.read(copy.all(), &mut b).unwrap();
            for (b, v) in b.chunks_exact(2).zip(&out) {
                let near = f32::from_bits((u16::from_le_bytes([b[0], b[1]]) as u32) << 16);
                assert!(
                    (near - v).abs() <= v.abs() / 256.0,
                    "the copy is the value, rounded"
                );
            }
        }
        out
    }
}

fn adam(l2: bool) -> Adam {
    Adam {
        l2,
        ..Default::default()
    }
}

fn sgd(momentum: f64, dampening: f64, nesterov: bool) -> Optimizer {
    Optimizer::Sgd(Sgd {
        momentum,
        dampening,
        nesterov,
    })
}

fn lamb(max_coeff: f64, min_coeff: f64) -> Optimizer {
    let adam = Adam {
        eps: 1e-6,
        ..Default::default()
    };
    Optimizer::Lamb(Lamb {
        adam,
        max_coeff,
        min_coeff,
    })
}

const FACTOR: Adafactor = Adafactor {
    eps: [1e-30, 1e-3],
    clip_threshold: 1.0,
    decay_rate: -0.8,
    beta1: None,
    scale_parameter: true,
    relative_step: true,
    warmup_init: false,
};

fn muon(scale: MuonScale, extra_scale: f64, nesterov: bool) -> Job {
    let m = Muon {
        momentum: 0.95,
        nesterov,
        ns_steps: 5,
        scale,
        extra_scale,
    };
    let mut job = Job::new(Optimizer::Muon(m), 0.1, 0.02);
    job.recipes[2].optimizer = Optimizer::Adam(adam(false));
    job
}

/// The cases of tests/oracles/optimizers.py.
fn cases() -> Vec<(&'static str, Job)> {
    let warmup = Adafactor {
        warmup_init: true,
        clip_threshold: 0.7,
        ..FACTOR
    };
    let rate = Adafactor {
        beta1: Some(0.9),
        decay_rate: -0.7,
        scale_parameter: false,
        relative_step: false,
        ..FACTOR
    };
    let lion = Optimizer::Lion { betas: [0.9, 0.99] };
    vec![
        ("adamw", Job::new(Optimizer::Adam(adam(false)), 0.1, 1e-2)),
        ("adam_l2", Job::new(Optimizer::Adam(adam(true)), 0.1, 1e-2)),
        ("lion", Job::new(lion, 0.1, 1e-2)),
        ("lamb", Job::new(lamb(10.0, 0.01), 0.1, 1e-2)),
        ("lamb_clipped", Job::new(lamb(0.5, 0.3), 0.1, 1e-2)),
        ("sgd", Job::new(sgd(0.0, 0.0, false), 0.0, 0.1)),
        ("sgd_momentum", Job::new(sgd(0.9, 0.0, false), 0.05, 0.1)),
        ("sgd_dampened", Job::new(sgd(0.9, 0.3, false), 0.05, 0.1)),
        ("sgd_nesterov", Job::new(sgd(0.9, 0.0, true), 0.05, 0.1)),
        (
            "adafactor",
            Job::new(Optimizer::Adafactor(FACTOR), 0.0, 0.0),
        ),
        (
            "adafactor_warmup",
            Job::new(Optimizer::Adafactor(warmup), 0.1, 0.0),
        ),
        (
            "adafactor_rate",
            Job::new(Optimizer::Adafactor(rate), 0.0, 1e-2),
        ),
        ("muon", muon(MuonScale::Shape, 1.0, true)),
        ("muon_spectral", muon(MuonScale::Spectral, 0.2, false)),
    ]
}

#[test]
fn four_steps_follow_float64() {
    crossweave_tests::in_own_process!();
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/oracles/optimizers.json"
    );
    let text = std::fs::read_to_string(path).unwrap();
    let golden: serde_json::Value = serde_json::from_str(&text).unwrap();
    for (name, job) in cases() {
        for copy in [false, true] {
            let got = Job {
                copy,
                ..job.clone()
            }
            .run();
            for (i, v) in got.iter().enumerate() {
                let want = golden[name][NAMES[i]].as_array().unwrap();
                assert_eq!(want.len(), v.len());
                for (k, (a, e)) in v.iter().zip(want).enumerate() {
                    let e = e.as_f64().unwrap();
                    // Muon's iteration magnifies what is small; everything else stays within a few roundings.
                    let near = if name.starts_with("muon") { 2e-5 } else { 1e-6 };
                    assert!(
                        (*a as f64 - e).abs() < near * (1.0 + e.abs()),
                        "{name} {} [{k}]: {a} against {e}",
                        NAMES[i]
                    );
                }
            }
        }
    }
    assert_eq!(golden.as_object().unwrap().len(), cases().len());
}

fn bits(v: &[Vec<f32>]) -> Vec<u32> {
    v.iter().flatten().map(|x| x.to_bits()).collect()
}

#[test]
fn ranks_and_stages_agree() {
    crossweave_tests::in_own_process!();
    let mut all = cases();
    let eight = Optimizer::Adam8bit(adam(false));
    let mut big = Job::new(eight, 0.1, 1e-2);
    big.shapes = vec![&[70, 61], &[5000], &[7]];
    all.push(("adam8bit", big));
    for (name, job) in all {
        let one = job.run();
        for ranks in [2, 3, 4] {
            let shared = Job {
                ranks,
                ..job.clone()
            };
            let whole = shared.run();
            let sharded = Job {
                sharded: true,
                ..shared
            }
            .run();
            assert_eq!(
                bits(&whole),
                bits(&sharded),
                "{name}: stages differ on {ranks} ranks"
            );
            for (a, b) in one.iter().flatten().zip(whole.iter().flatten()) {
                // Blocks of 8-bit moments end where slices end.
                let near = if name == "adam8bit" { 2e-3 } else { 2e-6 };
                assert!(
                    (a - b).abs() < near * (1.0 + a.abs()),
                    "{name} on {ranks}: {a} {b}"
                );
            }
        }
    }
}

#[test]
fn a_skipped_step_changes_nothing() {
    crossweave_tests::in_own_process!();
    let mut all = cases();
    let mut big = Job::new(Optimizer::Adam8bit(adam(false)), 0.1, 1e-2);
    big.shapes = vec![&[70, 61], &[5000], &[7]];
    all.push(("adam8bit", big));
    for (name, job) in all {
        let plain = job.run();
        let skipping = Job {
            steps: job.steps + 2,
            skipped: vec![1, 4],
            ..job
        };
        assert_eq!(bits(&plain), bits(&skipping.run()), "{name}");
    }
}

/// 03 §4.8: three steps of AdamW and of L2 Adam; without bias correction as the formula with bc = 1.
#[test]
fn golden_values_of_adam() {
    crossweave_tests::in_own_process!();
    let p0 = [1.0, -2.0, 0.5, 3.0f64];
    let reference = |l2: bool, correct: bool| -> Vec<f64> {
        let g0 = [0.1, -0.2, 0.3, -0.4];
        let (mut p, mut m, mut v) = (p0.to_vec(), [0f64; 4], [0f64; 4]);
        for t in 1..=3 {
            for i in 0..4 {
                let mut g = g0[i] * t as f64;
                if l2 {
                    g += 0.1 * p[i];
                } else {
                    p[i] -= 1e-2 * 0.1 * p[i];
                }
                m[i] = 0.9 * m[i] + 0.1 * g;
                v[i] = 0.999 * v[i] + 0.001 * g * g;
                let bc = |b: f64| if correct { 1.0 - b.powi(t) } else { 1.0 };
                p[i] -= 1e-2 / bc(0.9) * m[i] / (v[i].sqrt() / bc(0.999).sqrt() + 1e-8);
            }
        }
        p
    };
    let adamw = [
        0.9678008103979174,
        -1.96480380837238,
        0.4692993095047496,
        3.020211187140389,
    ];
    let l2 = [0.9702142477, -1.9702168703, 0.4706109464, 3.0274517536];
    for (got, want) in reference(false, true).iter().zip(adamw) {
        assert!((got - want).abs() < 1e-10);
    }
    for (got, want) in reference(true, true).iter().zip(l2) {
        assert!((got - want).abs() < 1e-7);
    }
    let device = cpu(&store()).open(0).unwrap();
    let stream = device.stream("compute", 0).unwrap();
    for (l2, bias_correction) in [(false, true), (true, true), (false, false)] {
        let a = Adam {
            l2,
            bias_correction,
            ..Default::default()
        };
        let recipe = Recipe {
            optimizer: Optimizer::Adam(a),
            lr_scale: 2.0,
            weight_decay: 0.1,
            ema: None,
        };
        let part = Part {
            param: 0,
            held: TensorBox::whole(&[4]),
            first: 0,
            len: 4,
            at: 0,
            mine: true,
            logical: 0,
        };
        let mut b = Builder::default();
        let [value, grad] = ["value", "grad"].map(|name| memory(&mut b, name, DType::F32, 4));
        let optim = Optim {
            groups: groups(&mut b, 0, &[(vec![4], Some(recipe))], &[part], 1),
        };
        let fixed = [value, grad].into_iter();
        let all = fixed.chain(optim.memory().map(|(m, _)| m));
        let args: Vec<Place> = all.map(Place::from).collect();
        b.call(None, "update", &args, |code| {
            let flat = Flat {
                value: code.arg(0, [4], DType::F32),
                copy: None,
                grad: code.arg(1, [4], DType::F32),
            };
            let k = StepParams {
                scaled: true,
                coef: None,
                skip: None,
                sum: &|_| {},
                matrices: None,
            };
            update(code, code.on(Lane::Compute), &optim.groups, 2, &flat, &k);
        });
        let mut machine = Machine::new(&device, b.finish()).unwrap();
        let held = |m: MemId| machine.buffer(m).unwrap().clone();
        let (value, grad) = (held(value), held(grad));
        for (m, _) in optim.memory() {
            stream.fill(held(m).all(), 0, 1).unwrap();
        }
        stream
            .write(value.all(), &raw(&p0.map(|v| v as f32)))
            .unwrap();
        for t in 1..=3u64 {
            let g = [0.4, -0.8, 1.2, -1.6].map(|g: f32| g * t as f32);
            stream.write(grad.all(), &raw(&g)).unwrap();
            machine.decide(|given| match given {
                // The group doubles the schedule's rate.
                Given::Rate => 5e-3,
                Given::Update => t as f64,
                Given::Beta { fixed, .. } => *fixed,
                Given::Unscale => SCALE,
                Given::Seed | Given::Beside => 1.0,
            });
            machine.run_alone(&stream, None).unwrap();
        }
        let mut bytes = [0u8; 16];
        stream.read(value.all(), &mut bytes).unwrap();
        let got = floats(&bytes);
        for (a, e) in got.iter().zip(reference(l2, bias_correction)) {
            assert!(
                (*a as f64 - e).abs() < 3e-7,
                "{l2} {bias_correction}: {a} against {e}"
            );
        }
    }
}

/// The dynamic map of bitsandbytes, with -1 in place of the smallest negative code.
fn table(signed: bool) -> Vec<f32> {
    let mut t = vec![0.0, 1.0];
    for i in 0..7 {
        let n = 1 << if signed { i } else { i + 1 };
        for k in 0..n {
            let mean = 0.1 + 0.9 * (k as f64 + 0.5) / n as f64;
            let v = (mean * 10f64.powi(i - 6)) as f32;
            t.push(v);
            if signed {
                t.push(-v);
            }
        }
    }
    t.sort_by(f32::total_cmp);
    if signed {
        let at = t.iter().position(|v| *v == 0.0).unwrap() - 1;
        t.remove(at);
        t.insert(0, -1.0);
    }
    t
}

#[test]
fn eight_bit_codes_are_the_nearest_of_the_dynamic_map_and_survive_a_round_trip() {
    crossweave_tests::in_own_process!();
    let device = cpu(&store()).open(0).unwrap();
    let stream = device.stream("compute", 0).unwrap();
    let n = 5000usize;
    for signed in [true, false] {
        let (name, kind) = match signed {
            true => (StateName::Moment1, StateKind::Moment1),
            false => (StateName::Moment2, StateKind::Moment2),
        };
        let map = table(signed);
        assert_eq!(map.len(), 256);
        let recipe = Recipe {
            optimizer: Optimizer::Adam8bit(Adam::default()),
            lr_scale: 1.0,
            weight_decay: 0.0,
            ema: None,
        };
        let part = Part {
            param: 0,
            held: TensorBox::whole(&[n as u64]),
            first: 0,
            len: n as u64,
            at: 0,
            mine: true,
            logical: 0,
        };
        let mut b = Builder::default();
        let params = [(vec![n as u64], Some(recipe))];
        let optim = Optim {
            groups: groups(&mut b, 0, &params, &[part], 1),
        };
        let machine = Machine::new(&device, b.finish()).unwrap();
        let clear = || {
            for (m, zero) in optim.memory() {
                let m = machine.buffer(m).unwrap();
                stream.fill(m.all(), u64::from(zero), 1).unwrap();
            }
        };
        clear();
        let cache = RefCell::new(KernelCache::default());
        let run = Run::new(&stream, &Decompositions, &cache);
        let kept = optim.slices(0);
        let slice = kept.iter().find(|s| s.name == name).unwrap();
        let run_of = StateRun {
            kind,
            range: slice.range(),
            values: slice.values,
            coded: slice.scales.map(|scales| (scales, codec(name))),
        };
        let view = StateView::of(&run_of, &machine).unwrap();
        assert!(
            run.to_f32(&view.read(&run).unwrap())
                .unwrap()
                .iter()
                .all(|v| *v == 0.0)
        );
        // Magnitudes over nine decades, blocks of zeros, and blocks whose extreme is negative.
        let x: Vec<f32> = (0..n)
            .map(|i| {
                let v = 10f64.powf(-9.0 * ((i * 7919) % n) as f64 / n as f64) as f32;
                let sign = if signed && i % 3 == 0 { -1.0 } else { 1.0 };
                if i / 256 == 2 {
                    0.0
                } else {
                    v * sign * (1.0 + (i / 256) as f32)
                }
            })
            .collect();
        let landed = view.read(&run).unwrap();
        stream.write(landed.region(), &raw(&x)).unwrap();
        view.keep(&run, &landed).unwrap();
        let once = run.to_f32(&view.read(&run).unwrap()).unwrap();
        for (b, (block, back)) in x.chunks(256).zip(once.chunks(256)).enumerate() {
            let scale = block.iter().fold(0f32, |m, v| m.max(v.abs()));
            for (v, got) in block.iter().zip(back) {
                let near = |c: &f32| (v / scale.max(f32::MIN_POSITIVE) - c).abs();
                let best = map.iter().map(near).fold(f32::MAX, f32::min);
                let error = (v - got).abs();
                assert!(
                    // What lies between 0 and the second smallest negative code has lost its own code to -1.
                    error <= best * scale * (1.0 + 1e-4) + scale * 7e-7,
                    "block {b}: {v} became {got}, nearest is {best} away"
                );
            }
        }
        // Put back into memory that held something else.
        clear();
        let landed = view.read(&run).unwrap();
        stream.write(landed.region(), &raw(&once)).unwrap();
        view.keep(&run, &landed).unwrap();
        let twice = run.to_f32(&view.read(&run).unwrap()).unwrap();
        assert_eq!(bits(&[once]), bits(&[twice]));
    }
}

#[test]
fn eight_bit_adam_follows_adam() {
    crossweave_tests::in_own_process!();
    let job = |o| {
        let mut j = Job::new(o, 0.1, 1e-2);
        j.shapes = vec![&[70, 61], &[5000], &[7]];
        j.steps = 8;
        j
    };
    let exact = job(Optimizer::Adam(adam(false))).run();
    let eight = job(Optimizer::Adam8bit(adam(false))).run();
    let (mut moved, mut apart) = (0f64, 0f64);
    for ((a, b), s) in exact[..2]
        .iter()
        .zip(&eight)
        .zip(start(&[&[70, 61], &[5000]]))
    {
        for ((a, b), s) in a.iter().zip(b).zip(s) {
            moved += ((a - s) as f64).powi(2);
            apart += ((a - b) as f64).powi(2);
        }
    }
    assert!(
        apart.sqrt() < 0.05 * moved.sqrt(),
        "{} of {}",
        apart.sqrt(),
        moved.sqrt()
    );
    assert!(apart > 0.0, "8-bit moments are not f32 moments");
    assert_eq!(exact[2], eight[2], "small parameters keep f32 moments");
}
