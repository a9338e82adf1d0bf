//! Ranks that hold boxes of parameters, dense and of experts: starting values, checkpoints on disk and reads have the bits of the whole, on any number of boxes and
//! owners; and a model that is split over the tensor axis trains as one that is not.

use crate::common::*;
use crate::tensor_parallel::{Deep, Mlp};
use crossweave_checkpoint::{Checkpoint, Dtype, Piece, Writer};
use crossweave_engine::optimizers::{Adafactor, Adam, Lamb, Optimizer, ParamGroups};
use crossweave_engine::{
    Engine, OffloadDevice, OffloadSpec, RankSpec, Rows, StateKind, ZeroSpec, ZeroStage, dry_run,
};
use crossweave_hal::{DType, LocalKv};
use crossweave_mesh::{Axis, Place};
use crossweave_tensor::{
    Block, Builder, Cx, Flow, Group, Init, Param, Pieces, Result, Split, UnitDecl,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

pub struct Embed(pub Param);
impl Block for Embed {
    fn forward(&self, cx: &mut Cx<'_>, _: Flow) -> Result<Flow> {
        Ok(Flow(vec![cx.embedding(self.0, None)?]))
    }
}

/// Holds parameters and computes nothing with them.
pub struct Holds;
impl Block for Holds {
    fn forward(&self, _: &mut Cx<'_>, flow: Flow) -> Result<Flow> {
        Ok(flow)
    }
}

pub struct Head(pub Param);
impl Block for Head {
    fn forward(&self, cx: &mut Cx<'_>, flow: Flow) -> Result<Flow> {
        let logits = cx.linear(flow.0[0], self.0, None)?;
        Ok(Flow(vec![match cx.has_targets() {
            true => cx.cross_entropy(logits)?,
            false => logits,
        }]))
    }
}

/// Parameters of every kind of split, some of sizes that nothing divides, in two units between a table and a head.
fn held() -> Vec<UnitDecl> {
    let mut b = Builder::default();
    b.unit("embed", |u| {
        Embed(u.param("weight", &[VOCAB, WIDTH], Init::Normal(0.5)))
    });
    let split = |dim, pieces| {
        vec![Split {
            axis: Axis::Tp,
            dim,
            pieces,
        }]
    };
    let one = |dim| split(dim, Pieces::One);
    let qkv = || Pieces::Fused(vec![8, 4, 4]);
    let drawn = Init::Normal(0.5);
    let all: [(&str, &[u64], Init, Vec<Split>, Group); 15] = [
        ("column", &[10, 6], drawn, one(0), Group::Decay),
        ("row", &[6, 10], Init::Uniform(0.3), one(1), Group::Decay),
        ("bias", &[10], drawn, one(0), Group::NoDecay),
        ("norm", &[7], drawn, vec![], Group::NoDecay),
        ("qkv", &[16, 5], drawn, split(0, qkv()), Group::Decay),
        ("conv", &[5, 16], drawn, split(1, qkv()), Group::Decay),
        ("odd", &[5, 3], drawn, one(0), Group::Decay),
        ("cube", &[3, 5, 4], drawn, one(1), Group::Decay),
        ("scale", &[3], Init::Ones, vec![], Group::NoDecay),
        ("batched", &[3, 4, 5], drawn, one(2), Group::Decay),
        ("zeros", &[6, 3], Init::Zeros, one(1), Group::Decay),
        ("ones", &[6, 3], Init::Ones, one(1), Group::Decay),
        ("frozen", &[4, 6], drawn, one(1), Group::Frozen),
        ("base", &[9, 4], drawn, one(0), Group::Base),
        ("under", &[4, 9], drawn, one(1), Group::Base),
    ];
    for unit in all.chunks(8) {
        b.unit_named(unit[0].0, "", |u| {
            for (name, shape, init, split, group) in unit.iter().cloned() {
                let p = u.param(name, shape, init);
                u.group(p, group);
                for Split { axis, dim, pieces } in split {
                    u.split(p, axis, dim, pieces);
                }
            }
            Holds
        });
    }
    b.unit("experts", |u| {
        for (name, shape) in [
            ("up", [8, 3, 5].as_slice()),
            ("down", &[8, 6]),
            ("odd", &[9, 2]),
        ] {
            let p = u.param(name, shape, drawn);
            u.group(p, Group::Expert);
            u.split(p, Axis::Ep, 0, Pieces::Each);
        }
        Holds
    });
    b.unit("head", |u| {
        Head(u.param("weight", &[VOCAB, WIDTH], Init::Normal(0.5)))
    });
    b.finish()
}

pub const VOCAB: u64 = 37;
pub const WIDTH: u64 = 24;

fn job([dp, tp]: [u32; 2], stage: u32, optimizer: Optimizer) -> RankSpec {
    expert_job([dp, tp, 1], stage, optimizer)
}

pub fn expert_job([dp, tp, ep]: [u32; 3], stage: u32, optimizer: Optimizer) -> RankSpec {
    let mesh = [(Axis::Dp, dp), (Axis::Tp, tp), (Axis::Ep, ep)];
    RankSpec {
        seed: 11,
        optim: ParamGroups::all(optimizer, 0.1),
        zero: ZeroSpec {
            stage: ZeroStage::from_number(stage).unwrap(),
            ..small_buckets()
        },
        place: Place::on(&mesh, 0).unwrap(),
        ..spec(1, 1)
    }
}

fn adafactor() -> Optimizer {
    Optimizer::Adafactor(Adafactor {
        eps: [1e-30, 1e-3],
        clip_threshold: 1.0,
        decay_rate: -0.8,
        beta1: Some(0.9),
        scale_parameter: true,
        relative_step: false,
        warmup_init: false,
    })
}

pub fn adam() -> Optimizer {
    Optimizer::Adam(Adam {
        eps: 1e-5,
        ..Adam::default()
    })
}

type State = BTreeMap<(String, &'static str), Vec<f32>>;

/// Bits, so that a zero and its negative differ.
fn bits(s: &State) -> BTreeMap<&(String, &'static str), Vec<u32>> {
    let each = s.iter();
    each.map(|(k, v)| (k, v.iter().map(|x| x.to_bits()).collect()))
        .collect()
}

/// Values of a state that no start gives.
fn made_up(name: &str, kind: StateKind, n: usize) -> Vec<f32> {
    let seed = name.bytes().chain(kind.name().bytes());
    let seed = seed.fold(7u32, |h, b| h.wrapping_mul(31).wrapping_add(u32::from(b)));
    let at = |i: usize| seed.wrapping_add((i as u32).wrapping_mul(2_654_435_761));
    (0..n)
        .map(|i| (at(i) >> 8) as f32 / (1 << 24) as f32)
        .collect()
}

fn blob(kind: &str, name: &str) -> String {
    format!("{kind}/{name}")
}

/// Writes what a rank saves, as the engine does.
fn save(t: &mut Engine, writer: &Writer, rank: usize) {
    let mut snapshot = t.snapshot(None).unwrap();
    let mut file = writer.rank(rank).unwrap();
    for (k, (shard, bytes)) in snapshot.read().unwrap().enumerate() {
        let tensor = format!("{k}");
        file.put(&tensor, Dtype::F32, &[shard.numel as usize], bytes);
        for p in &shard.parts {
            let piece = Piece {
                rank,
                tensor: tensor.clone(),
                offset: p.at,
                start: p.of_param.start,
                len: p.of_param.end - p.of_param.start,
                slice: p.slice.clone(),
            };
            let name = blob(shard.kind.name(), &p.param);
            file.owns_piece(&name, Dtype::F32, &p.shape, piece).unwrap();
        }
    }
    file.finish().unwrap();
}

/// Gives a rank what it wants of a checkpoint.
fn restore(t: &mut Engine, from: &Checkpoint) {
    for (kind, part) in t.wanted() {
        let name = blob(kind.name(), &part.param);
        // In two halves, as a reader in chunks does.
        let half = (part.of_param.start + part.of_param.end) / 2;
        for r in [part.of_param.start..half, half..part.of_param.end] {
            let at = part.at + r.start - part.of_param.start;
            let bytes = from.logical_slice(&name, &part.slice, r).unwrap();
            t.load_part(&part.param, kind, at, &bytes).unwrap();
        }
    }
    t.publish().unwrap();
}

/// A checkpoint's states.
fn on_disk(c: &Checkpoint) -> State {
    let floats = |bytes: Vec<u8>| {
        let words = bytes.as_chunks::<4>().0.iter();
        words.map(|b| f32::from_le_bytes(*b)).collect()
    };
    let mut out = State::new();
    for name in c.manifest().layout.keys() {
        let (kind, param) = name.split_once('/').unwrap();
        let kind = StateKind::ALL.into_iter().find(|k| k.name() == kind);
        let values = floats(c.logical(name).unwrap());
        out.insert((param.to_string(), kind.unwrap().name()), values);
    }
    out
}

/// Does something with every rank of a job, at one time.
pub fn ranks<T: Send>(s: &RankSpec, each: impl Fn(RankSpec) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let each = &each;
        let all: Vec<_> = (0..job_ranks(s))
            .map(|r| scope.spawn(move || each(ranked(s, r))))
            .collect();
        all.into_iter().map(|h| h.join().unwrap()).collect()
    })
}

/// A rank's engine with starting values.
pub fn start(w: &World, s: &RankSpec, units: Vec<UnitDecl>, kv: &Arc<LocalKv>) -> Engine {
    let units = placed(units, s);
    let null = w.null.open(0).unwrap();
    let dry = dry_run(&null, &units, s.compute, s.rows.batch, s.rows.seq_len).unwrap();
    let device = w.cpu.open(s.place.job_rank()).unwrap();
    let mut t = w.rank(&device, units, s, &dry, &Boot(kv.clone())).unwrap();
    t.init().unwrap();
    t
}

/// Every state as rank 0 reads it; nothing on the others.
fn read_all(t: &mut Engine) -> State {
    let mut out = State::new();
    if !t.spec().place.is_first() {
        t.serve_reads().unwrap();
        return out;
    }
    for p in t.params().iter().rev() {
        for kind in StateKind::ALL {
            let values = t.read(&p.name, kind).unwrap();
            if !values.is_empty() {
                out.insert((p.name.clone(), kind.name()), values);
            }
        }
    }
    t.done_reading().unwrap();
    out
}

/// Starts a job, saves it, gives it made-up states and saves these, then restores what `other` has saved: what is read and what is on
/// disk after each.
fn lifetime(w: &World, s: &RankSpec, dir: &Path, other: Option<&Path>) -> Vec<State> {
    let kv = Arc::new(LocalKv::default());
    let world = job_ranks(s) as usize;
    let writers: Vec<Writer> = ["start", "made-up"]
        .map(|name| Writer::begin(dir.join(name), 1, world).unwrap())
        .into();
    let other = other.map(|dir| Checkpoint::open(dir.join("made-up")).unwrap());
    let read = ranks(s, |s| {
        let rank = s.place.job_rank() as usize;
        let mut t = start(w, &s, held(), &kv);
        save(&mut t, &writers[0], rank);
        let started = read_all(&mut t);
        match &other {
            Some(saved) => restore(&mut t, saved),
            None => {
                for p in t.params() {
                    for kind in StateKind::ALL
                        .into_iter()
                        .filter(|_| p.group != Group::Base)
                    {
                        let n = p.shape.numel() as usize;
                        let known = started.get(&(p.name.clone(), kind.name()));
                        if let Some(n) = known.map(|v| v.len().min(n)) {
                            for (i, run) in made_up(&p.name, kind, n).chunks(37).enumerate() {
                                let from = 37 * i as u64;
                                t.load(&p.name, kind, from, run).unwrap();
                            }
                        }
                    }
                }
                t.publish().unwrap();
            }
        }
        save(&mut t, &writers[1], rank);
        [started, read_all(&mut t)]
    });
    let mut out: Vec<State> = read.into_iter().next().unwrap().into();
    for (writer, name) in writers.iter().zip(["start", "made-up"]) {
        writer.commit(serde_json::Value::Null).unwrap();
        out.push(on_disk(&Checkpoint::open(dir.join(name)).unwrap()));
    }
    out
}

/// One rank that holds everything, then jobs of ranks that hold boxes: each starts with the same bits, and goes on with those that the job before it
/// has saved, whatever its boxes were.
#[test]
fn boxes_start_save_and_load_the_bits_of_the_whole() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    let meshes = [
        [1, 2, 1],
        [4, 1, 2],
        [2, 3, 1],
        [4, 1, 4],
        [2, 2, 2],
        [1, 4, 1],
        [4, 2, 2],
        [2, 1, 1],
        [2, 1, 2],
        [1, 1, 1],
    ];
    for (k, optimizer) in [adam(), adafactor()].into_iter().enumerate() {
        let at = |i: usize| dir.path().join(format!("{k}-{i}"));
        let alone = lifetime(&w, &job([1, 1], 0, optimizer), &at(0), None);
        assert!(
            alone[1][&("row".to_string(), "value")][3]
                != alone[0][&("row".to_string(), "value")][3]
        );
        for (i, mesh) in meshes.into_iter().enumerate() {
            for (of, stage) in [i as u32 % 2, 3].into_iter().enumerate() {
                let mut s = expert_job(mesh, stage, optimizer);
                // Moments and half of the values rest on the host.
                if k == 0 && (i + of).is_multiple_of(3) && mesh != [1, 1, 1] {
                    s.offload = Some(half_on_the_host(dir.path()));
                }
                let before = if i + of == 0 { at(0) } else { at(2 * i + of) };
                let got = lifetime(&w, &s, &at(2 * i + of + 1), Some(&before));
                for (got, want) in got.iter().zip(&alone) {
                    assert_eq!(
                        bits(got),
                        bits(want),
                        "{mesh:?}, stage {stage}, {}",
                        optimizer.name()
                    );
                }
            }
        }
    }
}

fn half_on_the_host(dir: &Path) -> OffloadSpec {
    let mut spec = offload(dir, OffloadDevice::Host);
    if let Some(o) = &mut spec.optimizer {
        o.ratio = 0.5;
    }
    spec
}

/// A parameter of more elements than are drawn at once: rows of the box lie in several windows of it.
#[test]
fn a_box_of_a_large_parameter_is_drawn_in_windows() {
    let units = || {
        let mut b = Builder::default();
        b.unit("embed", |u| {
            Embed(u.param("weight", &[VOCAB, WIDTH], Init::Normal(0.5)))
        });
        b.unit("large", |u| {
            let p = u.param("weight", &[3, (1 << 21) + 6], Init::Normal(0.5));
            u.split(p, Axis::Tp, 1, Pieces::One);
            Holds
        });
        b.unit("head", |u| {
            Head(u.param("weight", &[VOCAB, WIDTH], Init::Normal(0.5)))
        });
        b.finish()
    };
    let w = world();
    let values = |mesh: [u32; 2]| {
        let (s, kv) = (job(mesh, 1, adam()), Arc::new(LocalKv::default()));
        let all = ranks(&s, |s| {
            let mut t = start(&w, &s, units(), &kv);
            let read = t.spec().place.is_first();
            match read {
                true => {
                    let values = t.read("large.weight", StateKind::Value).unwrap();
                    t.done_reading().unwrap();
                    values
                }
                false => {
                    t.serve_reads().unwrap();
                    vec![]
                }
            }
        });
        all.into_iter().next().unwrap()
    };
    let alone = values([1, 1]);
    assert_eq!(alone.len(), 3 * ((1 << 21) + 6));
    assert!(values([1, 2]) == alone && values([2, 3]) == alone);
}

/// A table, blocks that are split over the tensor axis, and a head.
pub struct SplitModel;

impl Declares for SplitModel {
    fn declare(&self) -> Vec<UnitDecl> {
        let mut b = Builder::default();
        b.unit("embed", |u| {
            Embed(u.param("weight", &[VOCAB, WIDTH], Init::Normal(0.5)))
        });
        for layer in 0..2 {
            b.unit(&format!("layers.{layer}"), |u| {
                Deep(
                    (0..2)
                        .map(|k| Mlp::declare(u, &format!("{k}."), [WIDTH, 40]))
                        .collect(),
                )
            });
        }
        b.unit("head", |u| {
            Head(u.param("weight", &[VOCAB, WIDTH], Init::Normal(0.5)))
        });
        b.finish()
    }
}

/// Norms of the whole gradient, norms of whole parameters (LAMB) and means of rows and columns (Adafactor) go over boxes: losses and
/// parameters are those of one rank but for the order of sums.
#[test]
fn a_split_model_trains_as_the_whole_one() {
    let w = world();
    let lamb = Optimizer::Lamb(Lamb {
        adam: Adam {
            eps: 1e-5,
            ..Adam::default()
        },
        max_coeff: 10.0,
        min_coeff: 0.01,
    });
    for optimizer in [adam(), lamb, adafactor()] {
        let of = |[dp, tp]: [u32; 2], stage| RankSpec {
            rows: Rows::new(GLOBAL / u64::from(2 * dp), SEQ),
            micro_batches: 2,
            clip: 0.01,
            ..job([dp, tp], stage, optimizer)
        };
        let alone = train(&w, &SplitModel, &of([1, 1], 0), 4);
        let less = train(&w, &SplitModel, &of([1, 1], 0), 3);
        assert!(
            distance(&less, &alone) > 1e-3,
            "a step that is left out does not show"
        );
        // Gradients are clipped: a norm that counts something twice would show.
        assert!(alone.metrics.iter().all(|m| m.grad_norm > 0.01));
        for mesh in [[1, 2], [2, 2], [1, 3], [2, 4]] {
            for stage in [0, 1, 2, 3] {
                let got = train(&w, &SplitModel, &of(mesh, stage), 4);
                let what = format!("{mesh:?}, stage {stage}, {}", optimizer.name());
                let norm = |o: &Outcome| o.metrics.iter().map(|m| m.grad_norm).collect::<Vec<_>>();
                for (a, b) in norm(&got).iter().zip(norm(&alone)) {
                    assert!((a - b).abs() <= 1e-4 * b, "{what}: norm {a} against {b}");
                }
                let far = distance(&got, &alone);
                let losses = |o: &Outcome| o.metrics.iter().map(|m| m.loss).collect::<Vec<_>>();
                assert!(
                    far < 1e-4,
                    "{what}: {far}; losses {:?} against {:?}",
                    losses(&got),
                    losses(&alone)
                );
                // Of other numbers of data ranks it is of other samples.
                let apart = (got.validation[0] - alone.validation[0]).abs();
                assert!(mesh[0] > 1 || apart < 1e-4, "{what}: {apart}");
            }
        }
    }
}

/// A unit is one flat: all its parameters have the same owners.
#[test]
fn a_unit_with_two_sets_of_owners_is_refused() {
    let units = || {
        let mut units = SplitModel.declare();
        units[1].params[1].split = vec![Split {
            axis: Axis::Ep,
            dim: 0,
            pieces: Pieces::Each,
        }];
        units
    };
    let (w, s) = (world(), expert_job([2, 1, 2], 0, adam()));
    let e = planned(&w, placed(units(), &s), s);
    for part in ["0.up", "over edp", "over dp.cp", "unit of their own"] {
        assert!(e.contains(part), "{part:?} is not in {e}");
    }
}

/// Why an engine of these units is refused; what their blocks compute is not looked at.
fn planned(w: &World, units: Vec<UnitDecl>, s: RankSpec) -> String {
    let idle = |u: UnitDecl| UnitDecl {
        block: Arc::new(Holds),
        borrowed: vec![],
        ..u
    };
    let units: Vec<UnitDecl> = units.into_iter().map(idle).collect();
    let null = w.null.open(0).unwrap();
    let dry = dry_run(&null, &units, DType::F32, s.rows.batch, s.rows.seq_len).unwrap();
    let boot = Boot(Arc::new(LocalKv::default()));
    let t = w.rank(&w.cpu.open(0).unwrap(), units, &s, &dry, &boot);
    t.err().unwrap().to_string()
}

/// What must be seen whole to be updated is gathered of equal parts, and not of others.
#[test]
fn an_optimizer_of_whole_matrices_takes_equal_parts_only() {
    use crossweave_engine::optimizers::{Muon, MuonScale};
    let w = world();
    let s = job(
        [1, 3],
        0,
        Optimizer::Muon(Muon {
            momentum: 0.95,
            nesterov: true,
            ns_steps: 5,
            scale: MuonScale::Spectral,
            extra_scale: 0.2,
        }),
    );
    let units = placed(SplitModel.declare(), &s);
    let null = w.null.open(0).unwrap();
    let dry = dry_run(&null, &units, DType::F32, s.rows.batch, s.rows.seq_len).unwrap();
    let boot = Boot(Arc::new(LocalKv::default()));
    let e = w.rank(&w.cpu.open(0).unwrap(), units, &s, &dry, &boot);
    let e = e.err().unwrap().to_string();
    for part in [
        "0.up",
        "Muon",
        "tp3",
        "[14, 24] of [40, 24]",
        "param_groups",
    ] {
        assert!(e.contains(part), "{part:?} is not in {e}");
    }
}

/// The dry run that a plan is made from is of what the rank holds.
#[test]
fn a_dry_run_of_whole_parameters_is_refused_on_a_rank_that_holds_boxes() {
    let w = world();
    let s = job([1, 2], 0, adam());
    let null = w.null.open(0).unwrap();
    let dry = dry_run(
        &null,
        &SplitModel.declare(),
        DType::F32,
        s.rows.batch,
        s.rows.seq_len,
    )
    .unwrap();
    let boot = Boot(Arc::new(LocalKv::default()));
    let e = w.rank(
        &w.cpu.open(0).unwrap(),
        SplitModel.declare(),
        &s,
        &dry,
        &boot,
    );
    let e = e.err().unwrap().to_string();
    assert!(e.contains("layers.0") && e.contains("place_on"), "{e}");
}
