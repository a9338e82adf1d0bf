//! A block split over the tensor axis, written as a user writes it: on several ranks it equals itself on one, forward and gradients.

use crossweave_engine::{MeshGroups, dry_run};
use crossweave_hal::{Bootstrap, DType, Error, HostServices, KvStore, LocalKv, Plugin, RawPlugin};
use crossweave_mesh::{Axis, AxisSet, Mesh, MeshOptions, Place, Topology};
use crossweave_plan::{Facts, Moves, Plan, Said, check_world};
use crossweave_tensor::{
    Batch, Block, Builder, Check, Cx, Decompositions, Env, Flow, GradSink, Groups, Init, Keep,
    KernelCache, NoGroups, Param, Pieces, Result, RngKey, Run, Split, Tensor, Unit, UnitDecl,
    place_on,
};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const DIM: u64 = 24;
const FFN: u64 = 40;
const TOKENS: u64 = 6;

pub struct Mlp {
    norm: Param,
    up: Param,
    down: Param,
}

impl Mlp {
    /// Declares one that takes `dim` numbers to `ffn` and back.
    pub fn declare(u: &mut Unit<'_>, prefix: &str, [dim, ffn]: [u64; 2]) -> Mlp {
        let mut param =
            |name: &str, shape: &[u64], init| u.param(&format!("{prefix}{name}"), shape, init);
        let norm = param("norm", &[dim], Init::Ones);
        let up = param("up", &[ffn, dim], Init::Normal(0.02));
        let down = param("down", &[dim, ffn], Init::Normal(0.02));
        Mlp {
            norm,
            up: u.split(up, Axis::Tp, 0, Pieces::One),
            down: u.split(down, Axis::Tp, 1, Pieces::One),
        }
    }
}

impl Block for Mlp {
    fn forward(&self, cx: &mut Cx<'_>, f: Flow) -> Result<Flow> {
        let x = f.0[0];
        let n = cx.rms_norm(x, self.norm, 1e-5)?;
        let n = cx.enter(n, Axis::Tp)?;
        let h = cx.linear(n, self.up, None)?;
        let h = cx.silu(h)?;
        let d = cx.linear(h, self.down, None)?;
        let d = cx.reduce(d, Axis::Tp)?;
        Ok(Flow(vec![cx.add(x, d)?]))
    }
}

fn mlp() -> UnitDecl {
    let mut b = Builder::default();
    b.unit("model.layers.0", |u| Mlp::declare(u, "", [DIM, FFN]));
    b.finish().remove(0)
}

struct Boot(Arc<dyn KvStore>);
impl Bootstrap for Boot {
    fn set(&self, key: &str, value: &[u8]) -> std::result::Result<(), Error> {
        self.0.set(key, value)
    }
    fn get(&self, key: &str, timeout: Duration) -> std::result::Result<Vec<u8>, Error> {
        self.0.get(key, Some(timeout))
    }
}

fn values(seed: u64, n: u64) -> Vec<f32> {
    let x = |i: u64| {
        let h = (i + 1 + seed * 7919).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((h ^ (h >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..n).map(x).collect()
}

/// Rank `at` of `of`'s part of a row-major matrix along `dim`.
fn part(whole: &[f32], shape: &[u64], split: &[Split], at: u64, of: u64) -> (Vec<f32>, Vec<u64>) {
    let [Split { dim, .. }] = split else {
        return (whole.to_vec(), shape.to_vec());
    };
    let mut mine = shape.to_vec();
    mine[*dim as usize] /= of;
    let (rows, cols) = (mine[0], mine[1]);
    let (r0, c0) = match dim {
        0 => (at * rows, 0),
        _ => (0, at * cols),
    };
    let row = |r: u64| {
        let from = ((r0 + r) * shape[1] + c0) as usize;
        whole[from..from + cols as usize].iter().copied()
    };
    ((0..rows).flat_map(row).collect(), mine)
}

struct Outcome {
    y: Vec<f32>,
    dx: Vec<f32>,
    grads: Vec<Vec<f32>>,
}

/// Forward and backward of the block on the part of rank `at` of `of`.
fn run(device: &crossweave_hal::Device, groups: &dyn Groups, at: u64, of: u64) -> Result<Outcome> {
    let unit = mlp();
    let stream = device.stream("compute", 0)?;
    let cache = RefCell::new(KernelCache::default());
    let run = Run::new(&stream, &Decompositions, &cache);
    let (mut params, mut grads, mut types) = (vec![], vec![], vec![]);
    for (i, p) in unit.params.iter().enumerate() {
        let whole = values(i as u64, p.shape.numel());
        let (mine, shape) = part(&whole, p.shape.dims(), &p.split, at, of);
        params.push(run.from_f32(crossweave_tensor::Shape::new(&shape), &mine)?);
        grads.push(run.zeros(crossweave_tensor::Shape::new(&shape), DType::F32)?);
        types.push(p.typed(AxisSet::NONE));
    }
    let written: Vec<_> = grads.iter().map(|_| Rc::new(Cell::new(false))).collect();
    let sink = GradSink::new(&grads, &written);
    let env = Env {
        run: &run,
        groups,
        params: &params,
        consts: &[],
        grads: &sink,
        batch: &Batch::default(),
        key: RngKey::default(),
        training: true,
    };
    let mut cx = Cx::checked(&env, Check::new(types));
    let x = cx.input(run.from_f32([TOKENS, DIM], &values(90, TOKENS * DIM))?);
    let out = unit.block.forward(&mut cx, Flow(vec![x]))?;
    assert_eq!(cx.notes().unwrap().faults(), [] as [String; 0]);
    let y = run.to_f32(cx.val(out.0[0])?)?;
    let dy: Tensor = run.from_f32([TOKENS, DIM], &values(91, TOKENS * DIM))?;
    let tape = cx.finish(Keep::All);
    let dins = tape.backward(&env, &out.0, vec![Some(dy)], &[x])?;
    let dx = match &dins[0] {
        Some(t) => run.to_f32(t)?,
        None => vec![],
    };
    let grads = grads.iter().map(|g| run.to_f32(g)).collect::<Result<_>>()?;
    Ok(Outcome { y, dx, grads })
}

fn close(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    let top = b.iter().fold(0f32, |m, x| m.max(x.abs()));
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert!((a - b).abs() <= 2e-6 * top, "{what}[{i}]: {a} against {b}");
    }
}

#[test]
fn a_split_mlp_equals_the_whole_one() {
    let kv: Arc<dyn KvStore> = Arc::new(LocalKv::default());
    let host = HostServices::builder()
        .config("cpu.threads", "1")
        .kv(kv.clone())
        .build();
    let raw = RawPlugin::from_static::<crossweave_backend_cpu::CpuBackend>(&host).unwrap();
    let plugin = Plugin::new(raw);
    let whole = run(&plugin.open(0).unwrap(), &NoGroups, 0, 1).unwrap();
    assert!(whole.dx.iter().any(|x| *x != 0.0));
    let unit = mlp();
    // Four ranks as dp 2 x tp 2 too: each pair is a group of its own.
    for (dp, tp) in [(1, 1), (1, 2), (1, 4), (2, 2)] {
        let topology = Topology::new(&[(Axis::Dp, dp), (Axis::Tp, tp)]).unwrap();
        let boot = Boot(Arc::new(LocalKv::default()));
        let one = |rank: u32| {
            let device = plugin.open(0).unwrap();
            let options = MeshOptions {
                timeout: Some(Duration::from_secs(60)),
                islands: None,
            };
            let place = Place::new(topology, rank).unwrap();
            let mesh = Mesh::new(&device, &boot, place, &[Axis::Tp], &options).unwrap();
            let at = u64::from(place.at(Axis::Tp));
            let groups = MeshGroups::new(mesh);
            let out = run(&device, &groups, at, u64::from(tp)).unwrap();
            (at, out, device.collectives())
        };
        let all: Vec<_> = std::thread::scope(|s| {
            let one = &one;
            let ranks: Vec<_> = (0..dp * tp).map(|r| s.spawn(move || one(r))).collect();
            ranks.into_iter().map(|h| h.join().unwrap()).collect()
        });
        for (at, out, ledger) in &all {
            let what = |w: &str| format!("{w} of tp rank {at}, dp {dp} x tp {tp}");
            close(&out.y, &whole.y, &what("output"));
            close(&out.dx, &whole.dx, &what("gradient of the input"));
            for (i, p) in unit.params.iter().enumerate() {
                let (want, _) = part(
                    &whole.grads[i],
                    p.shape.dims(),
                    &p.split,
                    *at,
                    u64::from(tp),
                );
                close(&out.grads[i], &want, &what(&p.name));
            }
            // What is replicated along the axis has the same bits on every rank of it.
            assert_eq!(
                (&out.y, &out.dx),
                (&all[0].1.y, &all[0].1.dx),
                "dp {dp} x tp {tp}"
            );
            // One all-reduce forward and one backward, of the hidden state.
            if tp > 1 {
                let lines: Vec<_> = ledger
                    .iter()
                    .map(|l| (l.group.as_str(), l.calls, l.elements))
                    .collect();
                assert_eq!(lines, [("tp", 2, 2 * TOKENS * DIM)]);
            } else {
                assert!(ledger.is_empty());
            }
        }
    }
}

#[test]
fn a_block_on_an_axis_without_a_group_says_what_to_ask_for() {
    let host = HostServices::builder().config("cpu.threads", "1").build();
    let raw = RawPlugin::from_static::<crossweave_backend_cpu::CpuBackend>(&host).unwrap();
    let device = Plugin::new(raw).open(0).unwrap();
    let boot = Boot(Arc::new(LocalKv::default()));
    let topology = Topology::new(&[(Axis::Tp, 2)]).unwrap();
    let place = Place::new(topology, 0).unwrap();
    let none: [Axis; 0] = [];
    let mesh = Mesh::new(&device, &boot, place, &none, &MeshOptions::default()).unwrap();
    let e = run(&device, &MeshGroups::new(mesh), 0, 2).err().unwrap();
    assert!(
        e.to_string().contains("rank 0 has no group tp") && e.to_string().contains("Mesh::new"),
        "{e}"
    );
}

/// A table of tokens before the split block.
struct Table(Param);

impl Block for Table {
    fn forward(&self, cx: &mut Cx<'_>, _: Flow) -> Result<Flow> {
        Ok(Flow(vec![cx.embedding(self.0, None)?]))
    }
}

/// The split block, `sums` of it one after another.
pub struct Deep(pub Vec<Mlp>);

impl Block for Deep {
    fn forward(&self, cx: &mut Cx<'_>, f: Flow) -> Result<Flow> {
        self.0.iter().try_fold(f, |f, b| b.forward(cx, f))
    }
}

fn deep(sums: usize) -> Vec<UnitDecl> {
    let mut b = Builder::default();
    b.unit("embed", |u| {
        Table(u.param("weight", &[32, DIM], Init::Normal(0.02)))
    });
    b.unit("model.layers.0", |u| {
        let one = |k: usize| Mlp::declare(u, &format!("{k}."), [DIM, FFN]);
        Deep((0..sums).map(one).collect())
    });
    b.finish()
}

/// The dry run notes what a block says, and plans of ranks whose blocks say different things are refused before anything runs.
#[test]
fn a_rank_that_would_wait_inside_a_block_is_named_before_the_run() {
    let host = HostServices::default();
    let raw = RawPlugin::from_static::<crossweave_backend_null::Null>(&host).unwrap();
    let null = Plugin::new(raw).open(0).unwrap();
    let facts = |sums: usize| {
        let mut units = deep(sums);
        place_on(&mut units, &Place::on(&[(Axis::Tp, 2)], 0).unwrap()).unwrap();
        let dry = dry_run(&null, &units, DType::F32, 2, TOKENS).unwrap();
        Facts {
            units: dry.units,
            micro_batches: 1,
            ranks: 1,
            ..Facts::default()
        }
    };
    let (two, one) = (facts(2), facts(1));
    let n = 2 * TOKENS * DIM;
    let says = |what: &str, beside: bool, sums: usize| {
        vec![
            Said {
                axes: Axis::Tp.into(),
                what: format!("{what} of {n} elements"),
                moves: Some(Moves {
                    kind: "all_reduce",
                    dtype: "f32",
                    elements: n,
                    ranks: 2,
                    beside,
                    ..Moves::default()
                }),
            };
            sums
        ]
    };
    assert_eq!(two.units[0].talk, Default::default());
    assert_eq!(two.units[1].talk.forward, says("reduce", false, 2));
    // Weights learn while the gradient of the input is summed.
    assert_eq!(two.units[1].talk.backward, says("enter", true, 2));
    let plan: Plan = "F0.0 F1.0 B1.0 B0.0".parse().unwrap();
    let mesh = Topology::new(&[(Axis::Tp, 2)]).unwrap();
    check_world(&mesh, &[(&plan, &two), (&plan, &two)]).unwrap();
    let e = check_world(&mesh, &[(&plan, &two), (&plan, &one)]).unwrap_err();
    let text = e.to_string();
    // Rank 0 is in its second sum when rank 1 has gone on to its backward.
    for part in ["F1.0", "over tp", "rank 0 says reduce", "enter of"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert_eq!(e.rank, Some(1));
}
