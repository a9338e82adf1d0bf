//! Rows whose tokens are cut over ranks: losses and gradients are sums over these ranks, divided by the tokens of whole rows, so that a job
//! of them is the one of one rank; and the dry run types them so.

use crate::common::*;
use crossweave_engine::{MicroBatch, RankSpec, dry_run};
use crossweave_hal::{DType, LocalKv};
use crossweave_mesh::{Axis, AxisSet, Place};
use crossweave_tensor::{
    Block, Builder, Cx, Flow, Init, Param, Result, Unit, UnitDecl, Var, place_on,
};
use std::sync::Arc;

const VOCAB: u64 = 37;
const WIDTH: u64 = 12;
const TOKENS: u64 = 8;

/// A table, a layer that looks at each token by itself, and a head with the loss.
enum Part {
    Embed(Param),
    Layer(Param, Param, Param),
    Head(Param),
}

impl Part {
    fn layer(cx: &mut Cx<'_>, x: Var, [norm, w, b]: [Param; 3]) -> Result<Var> {
        let n = cx.rms_norm(x, norm, 1e-5)?;
        let h = cx.linear(n, w, Some(b))?;
        let h = cx.silu(h)?;
        cx.add(x, h)
    }
}

impl Block for Part {
    fn forward(&self, cx: &mut Cx<'_>, f: Flow) -> Result<Flow> {
        Ok(Flow(vec![match *self {
            Part::Embed(table) => cx.embedding(table, None)?,
            Part::Layer(norm, w, b) => Part::layer(cx, f.0[0], [norm, w, b])?,
            Part::Head(w) => {
                let logits = cx.linear(f.0[0], w, None)?;
                match cx.has_targets() {
                    true => cx.cross_entropy(logits)?,
                    false => logits,
                }
            }
        }]))
    }
}

struct ByToken;
impl Declares for ByToken {
    fn declare(&self) -> Vec<UnitDecl> {
        let mut b = Builder::default();
        let normal = Init::Normal(0.3);
        b.unit("embed", |u| {
            Part::Embed(u.param("weight", &[VOCAB, WIDTH], normal))
        });
        b.unit("layers.0", |u: &mut Unit<'_>| {
            let norm = u.param("norm", &[WIDTH], Init::Ones);
            let w = u.param("weight", &[WIDTH, WIDTH], normal);
            Part::Layer(norm, w, u.param("bias", &[WIDTH], Init::Zeros))
        });
        b.unit("head", |u| {
            Part::Head(u.param("weight", &[VOCAB, WIDTH], normal))
        });
        b.finish()
    }
}

/// Losses of four steps, and that of a batch behind them, of ranks that have a part of the tokens of each row along cp.
fn trained(w: &World, cp: u32, s: &RankSpec) -> Vec<Vec<f64>> {
    let kv = Arc::new(LocalKv::default());
    let one = |rank: u32| {
        let place = Place::on(&[(Axis::Dp, s.data_ranks()), (Axis::Cp, cp)], rank).unwrap();
        let s = RankSpec { place, ..s.clone() };
        let units = placed(units(&ByToken), &s);
        let null = w.null.open(0).unwrap();
        let dry = dry_run(&null, &units, DType::F32, s.rows.batch, TOKENS).unwrap();
        let device = w.cpu.open(rank).unwrap();
        let mut trainer = w.rank(&device, units, &s, &dry, &Boot(kv.clone())).unwrap();
        trainer.init().unwrap();
        // Some predictions do not count, and not as many on each rank.
        let ignored = |q: u64, i: usize| s.rows.labelled && (q as usize + i * i).is_multiple_of(3);
        let own = |step: u64, m: u64| {
            let (mut tokens, mut targets) = (vec![], vec![]);
            let micro = u64::from(place.at(Axis::Dp)) * u64::from(s.micro_batches) + m;
            for q in micro * s.rows.batch..(micro + 1) * s.rows.batch {
                let id = |i: usize| ((i * i) as u64 + 3 * q + 5 * step) as i32 % VOCAB as i32;
                let next = |i: usize| (id(i) * 7 + 5) % VOCAB as i32;
                let row = 0..TOKENS as usize;
                tokens.extend(row.clone().map(id));
                targets.extend(row.map(|i| if ignored(q, i) { -100 } else { next(i) }));
            }
            (tokens, targets)
        };
        let mut losses = vec![];
        for step in 0..4 {
            let data: Vec<_> = (0..u64::from(s.micro_batches))
                .map(|m| own(step, m))
                .collect();
            let batches: Vec<MicroBatch<'_>> = data
                .iter()
                .map(|(tokens, targets)| MicroBatch {
                    tokens,
                    targets,
                    ..MicroBatch::default()
                })
                .collect();
            if s.rows.labelled {
                let all = (0..GLOBAL).flat_map(|q| (0..TOKENS as usize).map(move |i| (q, i)));
                let counted = all.filter(|(q, i)| !ignored(*q, *i)).count() as u64;
                trainer.count_targets(counted, GLOBAL * TOKENS).unwrap();
            }
            trainer.step(&batches, 0.1).unwrap();
            losses.push(trainer.metrics().unwrap().unwrap().loss);
            if step == 3 {
                let own = trainer.evaluate(&batches[0]).unwrap();
                losses.push(trainer.mean_over_replicas(&[own]).unwrap());
            }
        }
        losses
    };
    std::thread::scope(|scope| {
        let (one, ranks) = (&one, s.data_ranks() * cp);
        let all: Vec<_> = (0..ranks).map(|r| scope.spawn(move || one(r))).collect();
        all.into_iter().map(|h| h.join().unwrap()).collect()
    })
}

#[test]
fn losses_and_gradients_are_sums_over_the_ranks_that_cut_rows() {
    let w = world();
    for labelled in [false, true] {
        for (dp, micro_batches) in [(1, 1), (2, 2)] {
            let mut s = spec(dp, micro_batches);
            s.rows.seq_len = TOKENS;
            s.rows.labelled = labelled;
            let whole = &trained(&w, 1, &s)[0];
            assert!(whole[3] < whole[0] - 0.01, "{whole:?}");
            for cp in [2u32, 4] {
                for (rank, losses) in trained(&w, cp, &s).iter().enumerate() {
                    let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-5 * b;
                    let what = format!("rank {rank} of dp {dp} x cp {cp}, labelled {labelled}");
                    assert!(
                        losses.iter().zip(whole).all(near),
                        "{what}: {losses:?} and {whole:?}"
                    );
                }
            }
        }
    }
}

/// Each parameter's gradient is pending over the ranks that have other tokens: the plan's sum over them is needed, once.
#[test]
fn a_sum_of_the_plan_over_cut_rows_is_needed() {
    let w = world();
    let null = w.null.open(0).unwrap();
    let dry = |units: &[UnitDecl]| dry_run(&null, units, DType::F32, 2, TOKENS);
    let mut units = ByToken.declare();
    place_on(&mut units, &Place::on(&[(Axis::Cp, 2)], 0).unwrap()).unwrap();
    dry(&units).unwrap();
    for (u, unit) in units.iter().enumerate() {
        for (i, p) in unit.params.iter().enumerate() {
            let mut less = units.clone();
            less[u].params[i].held.owners = AxisSet::of(&[Axis::Dp]);
            let e = dry(&less).map(|_| ()).unwrap_err().to_string();
            let says = format!("on cp: the gradient of {}", p.name);
            assert!(e.contains(&says) && e.contains("nothing sums them"), "{e}");
        }
    }
}
