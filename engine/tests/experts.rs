//! Experts that train: their parameters are shared over other ranks than the dense ones, also by one rank alone, which then reduces none of
//! its micro-batches.

use crate::boxes::{Embed, Head, Holds, VOCAB, WIDTH, adam, expert_job};
use crate::common::*;
use crossweave_engine::{OffloadDevice, Precision, RankSpec, ReduceGradients, Rows};
use crossweave_hal::DType;
use crossweave_mesh::{Axis, AxisSet};
use crossweave_plan::StepKind;
use crossweave_tensor::{
    Block, Builder, Cx, Flow, Group, Init, Param, Pieces, Result, Unit, UnitDecl,
};

/// A layer that borrows its experts' matrices. Every token goes through all of them: a router is not what is tried here.
struct Layer {
    norm: Param,
    up: Param,
    down: Param,
}

impl Block for Layer {
    fn forward(&self, cx: &mut Cx<'_>, f: Flow) -> Result<Flow> {
        let x = f.0[0];
        let n = cx.rms_norm(x, self.norm, 1e-5)?;
        let n = cx.enter(n, Axis::Ep)?;
        let h = cx.linear(n, self.up, None)?;
        let h = cx.silu(h)?;
        let d = cx.linear(h, self.down, None)?;
        let d = cx.reduce(d, Axis::Ep)?;
        Ok(Flow(vec![cx.add(x, d)?]))
    }
}

/// A table, two layers each behind a unit of its experts, and a head.
pub struct ExpertModel;

/// Width of all experts of a layer together.
const EXPERTS: u64 = 40;

impl Declares for ExpertModel {
    fn declare(&self) -> Vec<UnitDecl> {
        let mut b = Builder::default();
        b.unit("embed", |u| {
            Embed(u.param("weight", &[VOCAB, WIDTH], Init::Normal(0.5)))
        });
        for k in 0..2 {
            b.unit(&format!("experts.{k}"), |u| {
                let mut expert = |name: &str, shape: &[u64], dim| {
                    let p = u.param(name, shape, Init::Normal(0.2));
                    u.group(p, Group::Expert);
                    u.split(p, Axis::Ep, dim, Pieces::One);
                };
                expert("up", &[EXPERTS, WIDTH], 0);
                expert("down", &[WIDTH, EXPERTS], 1);
                Holds
            });
            b.unit(&format!("layers.{k}"), |u: &mut Unit<'_>| {
                let lent = |u: &mut Unit<'_>, name: &str| {
                    u.borrow(&format!("experts.{k}.{name}")).unwrap()
                };
                Layer {
                    norm: u.param("norm", &[WIDTH], Init::Ones),
                    up: lent(u, "up"),
                    down: lent(u, "down"),
                }
            });
        }
        b.unit("head", |u| {
            Head(u.param("weight", &[VOCAB, WIDTH], Init::Normal(0.5)))
        });
        b.finish()
    }
}

/// Each expert is on two of the data-parallel ranks, or on one alone: micro-batches are reduced where there is somebody to reduce them with.
#[test]
fn experts_reduce_each_micro_batch_with_the_ranks_that_have_them() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    for ([dp, ep], compute, accum) in [
        ([4, 2], DType::F32, DType::F32),
        ([2, 2], DType::F32, DType::F32),
        ([4, 4], DType::Bf16, DType::Bf16),
    ] {
        let of = |stage, reduce| {
            let mut s = RankSpec {
                rows: Rows::new(GLOBAL / u64::from(3 * dp), SEQ),
                micro_batches: 3,
                clip: 0.01,
                compute,
                precision: Precision {
                    accum,
                    ..Precision::default()
                },
                ..expert_job([dp, 1, ep], stage, adam())
            };
            (s.zero.reduce, s.zero.bucket_bytes) = (reduce, 1);
            s
        };
        let what = format!("dp {dp}, ep {ep}, {compute:?}");
        let two = train(&w, &ExpertModel, &of(2, ReduceGradients::MicroBatch), 3);
        let three = train(&w, &ExpertModel, &of(3, ReduceGradients::Auto), 3);
        assert!(two.bits() == three.bits(), "{what}: stages 2 and 3 differ");
        let once = train(&w, &ExpertModel, &of(2, ReduceGradients::Step), 3);
        let near = if compute == DType::F32 { 1e-5 } else { 2e-2 };
        let far = distance(&two, &once);
        assert!(far < near, "{what}: {far} from one reduction a step");
        // Experts of one rank are reduced once; all others each micro-batch.
        let alone = of(2, ReduceGradients::Auto)
            .place
            .size(AxisSet::EXPERT_DATA)
            == 1;
        let times = |unit: u32| {
            let each = two.plan.steps.iter().map(|s| &s.op);
            each.filter(|op| matches!(op, StepKind::ReduceGrad { units, .. } if units == &[unit]))
                .count()
        };
        assert_eq!(times(1), if alone { 1 } else { 3 }, "{what}: {}", two.plan);
        assert_eq!(times(2), 3, "{what}: {}", two.plan);
        let peak = |o: &Outcome| o.ledgers[0].memory.tags["grad"].peak;
        assert!(peak(&two) < peak(&once), "{what}");
        // Beside an offloaded optimizer those of one rank leave micro-batch by micro-batch too, and are rounded elsewhere.
        let mut away = of(1, ReduceGradients::Auto);
        away.offload = Some(offload(dir.path(), OffloadDevice::Host));
        let away = train(&w, &ExpertModel, &away, 3);
        let far = distance(&away, &two);
        assert!(if alone { far < near } else { far == 0.0 }, "{what}: {far}");
        assert!(peak(&away) < peak(&two), "{what}");
    }
}
