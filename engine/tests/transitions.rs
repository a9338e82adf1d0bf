//! What a block exchanges with the ranks of an axis: every transition gives what its definition says and its backward is its adjoint, on
//! one to four ranks; pieces of any lengths and messages arrive; a block whose rows are cut equals itself on one rank.

use crossweave_engine::MeshGroups;
use crossweave_hal::{
    Bootstrap, CollectiveLine, Counts, DType, Device, Error, HostServices, KvStore, LocalKv,
    Plugin, RawPlugin,
};
use crossweave_mesh::{Axis, AxisSet, Channel, GroupKey, Mesh, MeshOptions, Place, Topology};
use crossweave_tensor::{
    Batch, Block, Builder, Check, Cx, Decompositions, Env, Exchange, Flow, GradSink, Groups, Init,
    Keep, KernelCache, Lane, Link, NoGroups, Param, Pieces, Result, RngKey, Run, Shape, Tensor, Ty,
    Unit, UnitDecl, Var,
};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

struct Boot(Arc<dyn KvStore>);
impl Bootstrap for Boot {
    fn set(&self, key: &str, value: &[u8]) -> std::result::Result<(), Error> {
        self.0.set(key, value)
    }
    fn get(&self, key: &str, timeout: Duration) -> std::result::Result<Vec<u8>, Error> {
        self.0.get(key, Some(timeout))
    }
}

fn cpu() -> Plugin {
    let host = HostServices::builder().config("cpu.threads", "1").build();
    Plugin::new(RawPlugin::from_static::<crossweave_backend_cpu::CpuBackend>(&host).unwrap())
}

/// What each of `n` ranks along tp makes of its groups, in order, with its ledger of collectives.
pub fn on_ranks<T: Send>(
    n: u32,
    f: impl Fn(&Device, &MeshGroups, u32) -> T + Sync,
) -> Vec<(T, Vec<CollectiveLine>)> {
    on_axis((Axis::Tp, n), f)
}

/// The same along another axis.
pub fn on_axis<T: Send>(
    (axis, n): (Axis, u32),
    f: impl Fn(&Device, &MeshGroups, u32) -> T + Sync,
) -> Vec<(T, Vec<CollectiveLine>)> {
    let (plugin, topology) = (cpu(), Topology::new(&[(axis, n)]).unwrap());
    let boot = Boot(Arc::new(LocalKv::default()));
    let one = |rank: u32| {
        let device = plugin.open(0).unwrap();
        let options = MeshOptions {
            timeout: Some(Duration::from_secs(60)),
            islands: None,
        };
        let all = GroupKey::over(axis);
        let keys = [all.clone(), all.on(Channel::Blocks)];
        let place = Place::new(topology, rank).unwrap();
        let mesh = Mesh::new(&device, &boot, place, &keys, &options).unwrap();
        let groups = MeshGroups::with_beside(mesh, &device).unwrap();
        let out = f(&device, &groups, rank);
        (out, device.collectives())
    };
    std::thread::scope(|s| {
        let one = &one;
        let all: Vec<_> = (0..n).map(|r| s.spawn(move || one(r))).collect();
        all.into_iter().map(|h| h.join().unwrap()).collect()
    })
}

pub fn values(seed: u64, n: u64) -> Vec<f32> {
    let x = |i: u64| {
        let h = (i + 1 + seed * 7919).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((h ^ (h >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..n).map(x).collect()
}

/// A block's function on one input: its output and, from `dy`, the gradient of the input.
fn both_ways(
    device: &Device,
    groups: &dyn Groups,
    (shape, x): (&[u64], &[f32]),
    dy: &dyn Fn(&[u64]) -> Vec<f32>,
    f: &dyn Fn(&mut Cx<'_>, Var) -> Result<Var>,
) -> Result<(Vec<u64>, Vec<f32>, Vec<f32>)> {
    let stream = device.stream("compute", 0)?;
    let cache = RefCell::new(KernelCache::default());
    let run = Run::new(&stream, &Decompositions, &cache);
    let (sink, batch) = (GradSink::none(), Batch::default());
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
    let mut cx = Cx::new(&env);
    let v = cx.input(run.from_f32(shape, x)?);
    let out = f(&mut cx, v)?;
    let y = cx.val(out)?.clone();
    let (dims, got) = (y.shape().dims().to_vec(), run.to_f32(&y)?);
    let d = run.from_f32(&dims[..], &dy(&dims))?;
    let dx = cx
        .finish(Keep::All)
        .backward(&env, &[out], vec![Some(d)], &[v])?;
    let dx = dx[0].as_ref().expect("a gradient flows");
    Ok((dims, got, run.to_f32(dx)?))
}

/// One transition: its types, and what each rank gets of the ranks' values, computed here.
struct Transition {
    name: String,
    from: Ty,
    to: Ty,
    run: Box<dyn Fn(&mut Cx<'_>, Var) -> Result<Var> + Sync>,
    /// The output of a rank, of the ranks' inputs of a shape.
    means: Box<dyn Fn(u64, &[u64], &[Vec<f64>]) -> Vec<f64> + Sync>,
}

/// `[first, first + len)` of a dim of a row-major tensor.
fn narrow(shape: &[u64], x: &[f64], dim: usize, [first, len]: [u64; 2]) -> Vec<f64> {
    let inner: u64 = shape[dim + 1..].iter().product();
    let row = shape[dim] * inner;
    let rows = x.chunks(row as usize);
    let part = (first * inner) as usize..((first + len) * inner) as usize;
    rows.flat_map(|r| r[part.clone()].to_vec()).collect()
}

/// Tensors one behind the other along a dim.
fn joined(shape: &[u64], all: &[Vec<f64>], dim: usize) -> Vec<f64> {
    let before: u64 = shape[..dim].iter().product();
    let row = (shape[dim..].iter().product::<u64>()) as usize;
    let rows = 0..before as usize;
    rows.flat_map(|r| {
        all.iter()
            .flat_map(move |x| x[r * row..(r + 1) * row].to_vec())
    })
    .collect()
}

fn sum(all: &[Vec<f64>]) -> Vec<f64> {
    (0..all[0].len())
        .map(|i| all.iter().map(|x| x[i]).sum())
        .collect()
}

fn transitions(n: u64) -> Vec<Transition> {
    type Run = Box<dyn Fn(&mut Cx<'_>, Var) -> Result<Var> + Sync>;
    type Means = Box<dyn Fn(u64, &[u64], &[Vec<f64>]) -> Vec<f64> + Sync>;
    let mut all = vec![];
    let mut add = |name: String, [from, to]: [Ty; 2], run: Run, means: Means| {
        all.push(Transition {
            name,
            from,
            to,
            run,
            means,
        });
    };
    add(
        "enter".into(),
        [Ty::I, Ty::R],
        Box::new(|cx, x| cx.enter(x, Axis::Tp)),
        Box::new(|r, _, all| all[r as usize].clone()),
    );
    add(
        "reduce".into(),
        [Ty::P, Ty::I],
        Box::new(|cx, x| cx.reduce(x, Axis::Tp)),
        Box::new(|_, _, all| sum(all)),
    );
    for dim in 0..3 {
        for again in [false, true] {
            add(
                format!("gather along {dim}, again {again}"),
                [Ty::V, Ty::R],
                Box::new(move |cx, x| match again {
                    true => cx.gather_again(x, Axis::Tp, dim),
                    false => cx.gather(x, Axis::Tp, dim),
                }),
                Box::new(move |_, shape, all| joined(shape, all, dim)),
            );
        }
        add(
            format!("scatter along {dim}"),
            [Ty::P, Ty::V],
            Box::new(move |cx, x| cx.scatter(x, Axis::Tp, dim)),
            Box::new(move |r, shape, all| {
                let len = shape[dim] / n;
                narrow(shape, &sum(all), dim, [r * len, len])
            }),
        );
        add(
            format!("slice along {dim}"),
            [Ty::I, Ty::V],
            Box::new(move |cx, x| cx.slice(x, Axis::Tp, dim)),
            Box::new(move |r, shape, all| {
                let len = shape[dim] / n;
                narrow(shape, &all[r as usize], dim, [r * len, len])
            }),
        );
        for join in 0..3 {
            add(
                format!("all_to_all of {dim} into {join}"),
                [Ty::V, Ty::V],
                Box::new(move |cx, x| cx.all_to_all(x, Axis::Tp, [dim, join])),
                Box::new(move |r, shape, all| {
                    let len = shape[dim] / n;
                    let mine = |x: &Vec<f64>| narrow(shape, x, dim, [r * len, len]);
                    let pieces: Vec<Vec<f64>> = all.iter().map(mine).collect();
                    let mut piece = shape.to_vec();
                    piece[dim] = len;
                    joined(&piece, &pieces, join)
                }),
            );
        }
    }
    for by in [-1, 0, 1, 3] {
        add(
            format!("shift by {by}"),
            [Ty::V, Ty::V],
            Box::new(move |cx, x| cx.shift(x, Axis::Tp, by)),
            Box::new(move |r, _, all| {
                all[(r as i64 - i64::from(by)).rem_euclid(n as i64) as usize].clone()
            }),
        );
    }
    all
}

/// Inner products of what the ranks have, in f64: once of what they have alike.
fn inner(ty: Ty, a: &[Vec<f64>], b: &[Vec<f64>]) -> f64 {
    let ranks = if ty == Ty::I { 1 } else { a.len() };
    let each = a.iter().zip(b).take(ranks);
    each.flat_map(|(a, b)| a.iter().zip(b))
        .map(|(a, b)| a * b)
        .sum()
}

/// Forward by its definition; backward by the identity that defines an adjoint, `<f(x), dy> = <x, f*(dy)>`, to the rounding of sums. What a
/// gradient is alike on every rank it is to the bit.
#[test]
fn every_transition_is_what_it_says_and_its_backward_its_adjoint() {
    for n in [1u32, 2, 3, 4] {
        let shape = [u64::from(n) * 2, u64::from(n) * 3, u64::from(n)];
        let count = shape.iter().product();
        let all = transitions(n.into());
        let seeds = |k: usize, ty: Ty, rank: u32| {
            let own = if ty == Ty::I { 0 } else { u64::from(rank) };
            k as u64 * 100 + own
        };
        // All transitions one after another on each rank: so many calls also meet in order.
        let ranks = on_ranks(n, |device, groups, rank| {
            let one = |(k, t): (usize, &Transition)| {
                let x = values(seeds(k, t.from, rank), count);
                let dy = |dims: &[u64]| values(50 + seeds(k, t.to, rank), dims.iter().product());
                both_ways(device, groups, (&shape, &x), &dy, &t.run).unwrap()
            };
            all.iter().enumerate().map(one).collect::<Vec<_>>()
        });
        let wide = |x: &[f32]| -> Vec<f64> { x.iter().map(|v| f64::from(*v)).collect() };
        for (k, t) in all.iter().enumerate() {
            let what = format!("{} on {n} ranks", t.name);
            let each = || ranks.iter().map(|(all, _)| &all[k]);
            let places = 0..n;
            let x: Vec<Vec<f64>> = places
                .clone()
                .map(|r| wide(&values(seeds(k, t.from, r), count)))
                .collect();
            let y: Vec<Vec<f64>> = each().map(|(_, y, _)| wide(y)).collect();
            let dx: Vec<Vec<f64>> = each().map(|(.., dx)| wide(dx)).collect();
            let dy: Vec<Vec<f64>> = places
                .map(|r| wide(&values(50 + seeds(k, t.to, r), y[0].len() as u64)))
                .collect();
            for (r, y) in y.iter().enumerate() {
                let want = (t.means)(r as u64, &shape, &x);
                assert_eq!(want.len(), y.len(), "{what}");
                let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-6;
                assert!(want.iter().zip(y).all(near), "{what}, rank {r}");
            }
            let (a, b) = (inner(t.to, &y, &dy), inner(t.from, &x, &dx));
            assert!(
                (a - b).abs() < 1e-5 * (count as f64).sqrt(),
                "{what}: {a} and {b}"
            );
            // The gradient of what ranks have alike, or summands of, is alike on all of them.
            if matches!(t.from, Ty::I | Ty::P) && t.to != Ty::I {
                assert!(dx.iter().all(|d| *d == dx[0]), "{what}");
            }
        }
    }
}

/// Pieces of any lengths, some of nothing, and several messages at once; on the block's own stream and beside it.
#[test]
fn pieces_and_messages_arrive_on_both_lanes() {
    let len = |from: u32, to: u32| u64::from((from + 2 * to) % 3) * 5;
    for n in [1u32, 2, 3, 4] {
        let starts = |lens: &[u64]| -> Vec<u64> {
            lens.iter()
                .scan(0, |at, l| Some(std::mem::replace(at, *at + l)))
                .collect()
        };
        let ranks = on_ranks(n, |device, groups, me| {
            let stream = device.stream("compute", 0).unwrap();
            let cache = RefCell::new(KernelCache::default());
            let run = Run::new(&stream, &Decompositions, &cache);
            let (out, into): (Vec<u64>, Vec<u64>) =
                (0..n).map(|r| (len(me, r), len(r, me))).unzip();
            let counts = Counts {
                send_at: starts(&out),
                recv_at: starts(&into),
                send: out.clone(),
                recv: into.clone(),
            };
            let mut found = vec![];
            for lane in [Lane::Compute, Lane::Beside] {
                let on = Link {
                    lane,
                    ..Link::new("dispatch", Axis::Tp)
                };
                // What is sent is written by a kernel just before, and what arrives is read by one right behind.
                let sent = values(me.into(), out.iter().sum::<u64>().max(1));
                let sent = run.from_f32([sent.len() as u64], &sent).unwrap();
                let came = run
                    .zeros([into.iter().sum::<u64>().max(1)], DType::F32)
                    .unwrap();
                let (send, recv, counts) = (&sent, &came, &counts);
                groups
                    .exchange(&run, &on, &[Exchange::AllToAllV { send, recv, counts }])
                    .unwrap();
                let (a, b) = (
                    run.from_f32([3], &values(7 + u64::from(me), 3)).unwrap(),
                    run.from_f32([2], &values(9 + u64::from(me), 2)).unwrap(),
                );
                let (c, d) = (
                    run.zeros([3], DType::F32).unwrap(),
                    run.zeros([2], DType::F32).unwrap(),
                );
                let (next, last) = ((me + 1) % n, (me + n - 1) % n);
                let messages = [
                    Exchange::Send { to: next, what: &a },
                    Exchange::Recv {
                        from: last,
                        what: &c,
                    },
                    Exchange::Send { to: last, what: &b },
                    Exchange::Recv {
                        from: next,
                        what: &d,
                    },
                ];
                if n > 2 {
                    groups.exchange(&run, &on, &messages).unwrap();
                }
                groups.settle(&run).unwrap();
                found.push([&came, &c, &d].map(|t| run.to_f32(t).unwrap()));
            }
            found
        });
        for (me, (found, ledger)) in ranks.iter().enumerate() {
            let me = me as u32;
            let want = (0..n).flat_map(|r| {
                let all = values(r.into(), (0..n).map(|t| len(r, t)).sum::<u64>().max(1));
                let at: u64 = (0..me).map(|t| len(r, t)).sum();
                all[at as usize..(at + len(r, me)) as usize].to_vec()
            });
            let mut want: Vec<f32> = want.collect();
            want.resize(want.len().max(1), 0.0);
            for lane in found {
                assert_eq!(lane[0], want, "rank {me} of {n}");
                if n > 2 {
                    assert_eq!(lane[1], values(7 + u64::from((me + n - 1) % n), 3));
                    assert_eq!(lane[2], values(9 + u64::from((me + 1) % n), 2));
                }
            }
            // What a rank keeps is not on the wire.
            let of = |l: &&CollectiveLine| l.kind == "all_to_all_v";
            let sent: u64 = ledger.iter().filter(of).map(|l| l.wire_elements).sum();
            let leaves: u64 = (0..n).filter(|r| *r != me).map(|r| len(me, r)).sum();
            assert_eq!(sent, 2 * leaves, "rank {me} of {n}");
        }
    }
}

pub const DIM: u64 = 12;
const FFN: u64 = 24;
pub const TOKENS: u64 = 12;

/// An MLP whose norm and residual run on each rank's own rows: their gather stands before the first product and a scatter behind the last.
pub struct Rows {
    norm: Param,
    pub up: Param,
    pub down: Param,
    pub again: bool,
}

impl Rows {
    pub fn declare(u: &mut Unit<'_>, again: bool) -> Rows {
        let norm = u.param("norm", &[DIM], Init::Ones);
        let up = u.param("up", &[FFN, DIM], Init::Normal(0.2));
        let down = u.param("down", &[DIM, FFN], Init::Normal(0.2));
        Rows {
            norm,
            up: u.split(up, Axis::Tp, 0, Pieces::One),
            down: u.split(down, Axis::Tp, 1, Pieces::One),
            again,
        }
    }
    fn unit(again: bool) -> UnitDecl {
        let mut b = Builder::default();
        b.unit("rows", |u| Rows::declare(u, again));
        b.finish().remove(0)
    }
}

impl Block for Rows {
    fn forward(&self, cx: &mut Cx<'_>, f: Flow) -> Result<Flow> {
        let x = cx.slice(f.0[0], Axis::Tp, 1)?;
        let n = cx.rms_norm(x, self.norm, 1e-5)?;
        let n = match self.again {
            true => cx.gather_again(n, Axis::Tp, 1)?,
            false => cx.gather(n, Axis::Tp, 1)?,
        };
        let h = cx.linear(n, self.up, None)?;
        let h = cx.silu(h)?;
        let d = cx.linear(h, self.down, None)?;
        let d = cx.scatter(d, Axis::Tp, 1)?;
        Ok(Flow(vec![cx.add(x, d)?]))
    }
}

/// What the block makes on one rank: its output, the gradients of its input and its parameters, and the bytes its tape keeps.
struct Made {
    y: Vec<f32>,
    dx: Vec<f32>,
    grads: Vec<Vec<f32>>,
    held: u64,
}

fn rows_on(device: &Device, groups: &dyn Groups, (again, keep): (bool, Keep)) -> Result<Made> {
    let unit = Rows::unit(again);
    let [at, of] = [groups.at(Axis::Tp), groups.size(Axis::Tp)].map(u64::from);
    let stream = device.stream("compute", 0)?;
    let cache = RefCell::new(KernelCache::default());
    let run = Run::new(&stream, &Decompositions, &cache);
    let (mut params, mut grads, mut types) = (vec![], vec![], vec![]);
    for (i, p) in unit.params.iter().enumerate() {
        let whole: Vec<f64> = values(i as u64, p.shape.numel())
            .iter()
            .map(|v| f64::from(*v))
            .collect();
        let (mine, dims) = match i {
            0 => (whole, p.shape.dims().to_vec()),
            _ => {
                let mut dims = p.shape.dims().to_vec();
                dims[i - 1] /= of;
                let len = dims[i - 1];
                (narrow(p.shape.dims(), &whole, i - 1, [at * len, len]), dims)
            }
        };
        let mine: Vec<f32> = mine.iter().map(|v| *v as f32).collect();
        params.push(run.from_f32(Shape::new(&dims), &mine)?);
        grads.push(run.zeros(Shape::new(&dims), DType::F32)?);
        // The plan of rows that are cut sums over tp what every rank has whole.
        types.push(p.typed(if i == 0 {
            Axis::Tp.into()
        } else {
            AxisSet::NONE
        }));
    }
    let written: Vec<_> = grads.iter().map(|_| Rc::new(Cell::new(false))).collect();
    let (sink, batch) = (GradSink::new(&grads, &written), Batch::default());
    let env = Env {
        run: &run,
        groups,
        params: &params,
        consts: &[],
        grads: &sink,
        batch: &batch,
        key: RngKey::default(),
        training: true,
    };
    let mut cx = Cx::checked(&env, Check::new(types));
    let x = cx.input(run.from_f32([1, TOKENS, DIM], &values(90, TOKENS * DIM))?);
    let out = unit.block.forward(&mut cx, Flow(vec![x]))?;
    assert_eq!(cx.notes().unwrap().faults(), [] as [String; 0]);
    let y = run.to_f32(cx.val(out.0[0])?)?;
    let rows = TOKENS / of;
    let dy =
        &values(91, TOKENS * DIM)[(at * rows * DIM) as usize..((at + 1) * rows * DIM) as usize];
    let dy: Tensor = run.from_f32([1, rows, DIM], dy)?;
    let tape = cx.finish(keep);
    let held = tape.held_bytes();
    let dins = tape.backward(&env, &out.0, vec![Some(dy)], &[x])?;
    Ok(Made {
        y,
        dx: run.to_f32(dins[0].as_ref().unwrap())?,
        grads: grads.iter().map(|g| run.to_f32(g)).collect::<Result<_>>()?,
        held,
    })
}

fn close(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    let top = b.iter().fold(0f32, |m, x| m.max(x.abs()));
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert!((a - b).abs() <= 2e-6 * top, "{what}[{i}]: {a} against {b}");
    }
}

/// Gathers and scatters around a cut MLP: its output, and every gradient, are those of one rank. A gathered value that is made again leaves
/// the tape smaller by it, costs one more gather where its backward comes later, and changes no bit.
#[test]
fn a_block_whose_rows_are_cut_equals_the_whole_one() {
    let device = cpu().open(0).unwrap();
    let whole = rows_on(&device, &NoGroups, (false, Keep::All)).unwrap();
    for n in [2u32, 3, 4] {
        let kept = on_ranks(n, |d, g, _| rows_on(d, g, (false, Keep::All)).unwrap());
        for (again, keep) in [
            (true, Keep::All),
            (true, Keep::Cheap),
            (true, Keep::Everything),
        ] {
            let ranks = on_ranks(n, |d, g, _| rows_on(d, g, (again, keep)).unwrap());
            let join = |f: fn(&Made) -> &Vec<f32>| -> Vec<f32> {
                ranks.iter().flat_map(|(m, _)| f(m).clone()).collect()
            };
            close(&join(|m| &m.y), &whole.y, "output");
            for (k, (m, ledger)) in ranks.iter().enumerate() {
                let (what, first) = (format!("rank {k} of {n}, {keep:?}"), &kept[k].0);
                close(&m.dx, &whole.dx, &what);
                assert_eq!(
                    (&m.y, &m.dx, &m.grads),
                    (&first.y, &first.dx, &first.grads),
                    "{what}"
                );
                let bytes = 4 * TOKENS * DIM;
                match keep {
                    Keep::Everything => assert_eq!(m.held, first.held, "{what}"),
                    Keep::All => {
                        assert_eq!(m.held, first.held - bytes + bytes / u64::from(n), "{what}")
                    }
                    Keep::Cheap => assert!(m.held < first.held - bytes, "{what}"),
                }
                let calls = |kind: &str| -> u64 {
                    ledger
                        .iter()
                        .filter(|l| l.kind == kind)
                        .map(|l| l.calls)
                        .sum()
                };
                // The gather, the gradient of the slice and of the scatter; and the gather once more.
                let gathers = if keep == Keep::Everything { 3 } else { 4 };
                assert_eq!(
                    (calls("all_gather"), calls("reduce_scatter")),
                    (gathers, 2),
                    "{what}"
                );
            }
            let norm: Vec<f32> = (0..DIM as usize)
                .map(|i| ranks.iter().map(|(m, _)| m.grads[0][i]).sum())
                .collect();
            close(
                &norm,
                &whole.grads[0],
                "gradient of the norm, summed over the ranks",
            );
            for (i, dim) in [(1usize, 0usize), (2, 1)] {
                let mut piece = Rows::unit(false).params[i].shape.dims().to_vec();
                piece[dim] /= u64::from(n);
                let wide = |m: &Made| m.grads[i].iter().map(|v| f64::from(*v)).collect();
                let all: Vec<Vec<f64>> = ranks.iter().map(|(m, _)| wide(m)).collect();
                let all: Vec<f32> = joined(&piece, &all, dim)
                    .iter()
                    .map(|v| *v as f32)
                    .collect();
                close(&all, &whole.grads[i], "gradient of a product");
            }
        }
    }
}
