//! ZeRO stages 1 to 3 on threads: the same bits as stage 0 on the same mesh whatever is sharded, recomputed, prefetched or bucketed, and
//! nearly the same on any other mesh.

mod common;

use common::*;
use crossweave_engine::{RankSpec, Recompute, ZeroSpec, ZeroStage};
use crossweave_hal::DType;
use crossweave_nn::ModelSpec;

fn staged(base: &RankSpec, stage: u32) -> RankSpec {
    RankSpec {
        zero: ZeroSpec {
            stage: ZeroStage::from_number(stage).unwrap(),
            ..base.zero
        },
        ..base.clone()
    }
}

/// Every variant of a mesh has the bits of its stage 0; every mesh is near the single rank.
fn matrix(model: &ModelSpec, ranks: &[u32]) {
    let w = world();
    let alone = train(&w, model, &spec(1, 1), 10);
    assert!(
        alone
            .metrics
            .iter()
            .all(|m| m.loss.is_finite() && m.grad_norm > 0.0)
    );
    for &n in ranks {
        for micro in [1, if n == 8 { 3 } else { 2 }] {
            let base = spec(n, micro);
            let zero = train(&w, model, &base, 10);
            let far = distance(&zero, &alone);
            assert!(
                far <= 1e-5,
                "{n} ranks, {micro} micro-batches: {far:e} from one rank"
            );
            for stage in 1..=3 {
                // The last kinds of recompute ride on other stages, so that each appears with each stage over the meshes.
                let recompute = [Recompute::None, Recompute::Full, Recompute::Selective];
                let recompute = recompute[((stage + n + micro) % 3) as usize];
                let s = RankSpec {
                    recompute,
                    ..staged(&base, stage)
                };
                let got = train(&w, model, &s, 10);
                let same = got.bits() == zero.bits();
                assert!(
                    same,
                    "stage {stage}, {n} ranks, {micro} micro-batches, {recompute:?}: {}",
                    got.plan
                );
            }
        }
    }
}

#[test]
fn gpt2_has_the_bits_of_stage_0_at_every_stage_and_is_near_one_rank() {
    matrix(&gpt2(2, 0.1), &[1, 2, 3, 4, 8]);
}

#[test]
fn llama_has_the_bits_of_stage_0_at_every_stage_and_is_near_one_rank() {
    matrix(&llama(2), &[1, 2, 3, 4, 8]);
}

#[test]
fn no_choice_of_buckets_prefetch_lanes_or_reuse_changes_a_bit() {
    let w = world();
    for (model, compute) in [
        (gpt2(3, 0.0), DType::F32),
        (gpt2(3, 0.0), DType::Bf16),
        (llama(3), DType::Bf16),
    ] {
        for clip in [0.0, 0.5] {
            let base = RankSpec {
                compute,
                clip,
                ..spec(2, 2)
            };
            let zero = train(&w, &model, &base, 4);
            let three = |change: &dyn Fn(&mut RankSpec)| {
                let mut s = staged(&base, 3);
                change(&mut s);
                let got = train(&w, &model, &s, 4);
                assert_eq!(
                    got.bits() == zero.bits(),
                    true,
                    "{compute:?}, clip {clip}: {}",
                    got.plan
                );
            };
            three(&|s| s.zero.prefetch = 0);
            three(&|s| s.zero.prefetch = 9);
            three(&|s| (s.zero.prefetch, s.zero.max_live) = (9, Some(4000)));
            three(&|s| (s.bucket_bytes, s.overlap) = (0, false));
            three(&|s| (s.bucket_bytes, s.recompute) = (1 << 30, Recompute::Full));
            three(&|s| s.zero.reuse_within = Some(5000));
            three(&|s| (s.zero.reshard, s.recompute) = (false, Recompute::Selective));
            three(&|s| s.zero.persist_below = 100);
            three(&|s| s.zero.persist_below = 1 << 40);
            for stage in [1, 2] {
                let mut s = staged(&base, stage);
                (s.bucket_bytes, s.overlap) = (0, false);
                assert!(
                    train(&w, &model, &s, 4).bits() == zero.bits(),
                    "stage {stage}"
                );
            }
        }
    }
}
