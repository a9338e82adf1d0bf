//! Offload on threads: the same bits wherever state, gradients, parameters and kept inputs rest; the ledgers say where that is and what
//! travelled; failures of the disk arrive as sentences.

use crate::common;
use common::*;
use crossweave_engine::optimizers::{GroupRule, Optimizer};
use crossweave_engine::{
    FaultLayer, FileEngine, Files, OffloadDevice, RankSpec, Recompute, Verdict, ZeroSpec, ZeroStage,
};
use crossweave_hal::DType;
use crossweave_tensor::{Block, Cx, Flow, UnitDecl, shape_error};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn staged(base: &RankSpec, stage: u32) -> RankSpec {
    RankSpec {
        zero: ZeroSpec {
            stage: ZeroStage::from_number(stage).unwrap(),
            ..base.zero
        },
        ..base.clone()
    }
}

#[test]
fn no_kind_of_offload_changes_a_bit() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    let mut left = 0;
    // Each mesh with what differs most from the others; within a mesh every stage and tier, the rest in turn.
    for (model, compute, n, clip) in [
        (gpt2(1, 0.1), DType::F32, 1, 0.0),
        (llama(1), DType::F32, 2, 0.5),
        (gpt2(1, 0.1), DType::Bf16, 3, 0.5),
        (llama(1), DType::Bf16, 1, 0.0),
    ] {
        let base = RankSpec {
            compute,
            clip,
            ..spec(n, 1 + n % 2)
        };
        let plain = train(&w, &model, &base, 3);
        for stage in 0..=3 {
            for tier in [OffloadDevice::Host, OffloadDevice::Nvme] {
                left += 1;
                let mut o = offload(dir.path(), tier);
                let how = o.optimizer.as_mut().unwrap();
                how.ratio = [1.0, 0.3, 0.0, 0.7][(left + left / 8 + stage as usize) % 4];
                o.params = stage == 3 && left % 3 != 1;
                if o.params {
                    o.optimizer.as_mut().unwrap().ratio = 1.0;
                }
                o.activations = left % 2 == 0;
                o.files.buffers = 1 + left % 4;
                o.files.engine = [FileEngine::Auto, FileEngine::Threads][left % 2];
                let mut s = staged(&base, stage);
                if o.activations {
                    s.recompute = Recompute::Full;
                }
                let what = format!(
                    "{compute:?}, {n} ranks, clip {clip}, stage {stage}, {tier:?}, {:?}, params {}, inputs {}",
                    o.optimizer.unwrap().ratio,
                    o.params,
                    o.activations
                );
                s.offload = Some(o);
                let got = train(&w, &model, &s, 3);
                assert!(got.bits() == plain.bits(), "{what}: {}", got.plan);
            }
        }
    }
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        0,
        "swap is left"
    );
}

/// Where a rank's part on the host is frozen and its part on the device is not, the host has no moments and the device has.
#[test]
fn a_part_on_the_host_that_is_frozen_has_no_moments_and_is_no_obstacle() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    for ranks in [1, 4] {
        let mut base = spec(ranks, 1);
        base.optim.rules.push(GroupRule {
            patterns: vec!["*wte*".into()],
            frozen: true,
            ..Default::default()
        });
        let plain = train(&w, &gpt2(1, 0.0), &base, 3);
        for tier in [OffloadDevice::Host, OffloadDevice::Nvme] {
            for ratio in [0.05, 0.13, 0.9] {
                let mut o = offload(dir.path(), tier);
                o.optimizer.as_mut().unwrap().ratio = ratio;
                let s = RankSpec {
                    offload: Some(o),
                    ..staged(&base, 2)
                };
                let got = train(&w, &gpt2(1, 0.0), &s, 3);
                assert!(
                    got.bits() == plain.bits(),
                    "{ranks} ranks, {tier:?}, {ratio}"
                );
            }
        }
    }
}

#[test]
fn updates_in_groups_change_no_bit() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    for (optimizer, compute) in [
        (spec(1, 1).optim.base.optimizer, DType::Bf16),
        (Optimizer::Lion { betas: [0.9, 0.99] }, DType::F32),
    ] {
        let mut base = RankSpec {
            compute,
            ..staged(&spec(2, 1), 2)
        };
        base.optim.base.optimizer = optimizer;
        let train_with = |tier, group| {
            let mut o = offload(dir.path(), tier);
            o.optimizer.as_mut().unwrap().group = group;
            let s = RankSpec {
                offload: Some(o),
                ..base.clone()
            };
            train(&w, &gpt2(1, 0.0), &s, 3)
        };
        let whole = train_with(OffloadDevice::Host, None);
        // Smaller than the least parameter, of no round size, and larger than a unit.
        for (tier, group) in [
            (OffloadDevice::Host, 7),
            (OffloadDevice::Nvme, 1000),
            (OffloadDevice::Host, 1 << 40),
        ] {
            let got = train_with(tier, Some(group));
            assert!(got.bits() == whole.bits(), "{tier:?}, groups of {group}");
        }
    }
}

/// Parameters of a model, and those of its largest unit.
fn sizes(model: &crossweave_nn::ModelSpec) -> Vec<u64> {
    let units = units(model).into_iter();
    units
        .map(|u| u.params.iter().map(|p| p.shape.numel()).sum())
        .collect()
}

#[test]
fn ledgers_say_what_rests_where_and_what_travelled_to_the_byte() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    let model = llama(3);
    let steps = 4;
    for (compute, grad_f32) in [
        (DType::F32, true),
        (DType::Bf16, false),
        (DType::Bf16, true),
    ] {
        for n in [1u32, 2] {
            // Slices are padded to equal lengths; what is owned is exact.
            let owned: u64 = sizes(&model).iter().map(|p| p.div_ceil(n.into())).sum();
            let width = compute.bytes(1);
            let grad = if grad_f32 { 4 } else { width };
            for stage in 1..=3 {
                let mut s = RankSpec {
                    compute,
                    ..staged(&spec(n, 2), stage)
                };
                let mut o = offload(dir.path(), OffloadDevice::Host);
                o.optimizer.as_mut().unwrap().grad_f32 = grad_f32;
                s.offload = Some(o);
                let got = train(&w, &model, &s, steps);
                for l in &got.ledgers {
                    let m = &l.memory;
                    let device = |tag: &str| m.tags[tag].peak;
                    assert_eq!(
                        (device("moment"), device("master")),
                        (0, 0),
                        "stage {stage}"
                    );
                    let host = |tag: &str| m.host.get(tag).map_or(0, |b| b.now);
                    assert_eq!(host("master") + host("moment"), 12 * owned, "stage {stage}");
                    let copies = if compute == DType::F32 {
                        0
                    } else {
                        width * owned
                    };
                    assert_eq!(host("param"), copies);
                    assert_eq!(host("grad"), grad * owned);
                    // Exactly the gradients down, and the parameters up; once more up for the starting values.
                    let down = m.to_host["grad"];
                    assert_eq!(down, steps * grad * owned, "stage {stage}, {compute:?}");
                    let tag = if compute == DType::F32 {
                        "master"
                    } else {
                        "param"
                    };
                    let up = m.from_host[tag];
                    assert_eq!(
                        up,
                        (steps + 1) * width * owned,
                        "stage {stage}, {compute:?}"
                    );
                    assert_eq!(l.device_allocs_after_step_2, 0);
                }
            }
        }
    }
}

#[test]
fn with_files_the_host_holds_no_more_than_the_pool() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    let model = llama(6);
    for params in [false, true] {
        let mut s = staged(&spec(1, 1), 3);
        let mut o = offload(dir.path(), OffloadDevice::Nvme);
        (o.params, o.files.buffers) = (params, 3);
        s.offload = Some(o);
        let got = train(&w, &model, &s, 3);
        let m = &got.ledgers[0].memory;
        let largest = *sizes(&model).iter().max().unwrap();
        // Four parts of a unit, each from a page's beginning.
        let block = 4 * (4 * largest).next_multiple_of(4096);
        let host: u64 = m
            .host
            .iter()
            .filter(|(t, _)| *t != "staging")
            .map(|(_, b)| b.peak)
            .sum();
        assert_eq!(host, 3 * block, "params {params}");
        assert_eq!((m.tags["moment"].peak, m.tags["master"].peak), (0, 0));
        if params {
            // What is on the device at once: the slots and slices of a few units, never all.
            let all: u64 = sizes(&model).iter().map(|p| 4 * p).sum();
            let live = m.tags["param"].peak + m.tags["comm"].peak;
            assert!(live < all / 2, "{live} of {all}");
        }
    }
}

#[test]
fn sixteen_bit_gradients_on_the_way_are_the_gradients_rounded_once() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    let base = RankSpec {
        compute: DType::Bf16,
        ..spec(2, 1)
    };
    let with = |tier, grad_f32| {
        let mut o = offload(dir.path(), tier);
        o.optimizer.as_mut().unwrap().grad_f32 = grad_f32;
        let s = RankSpec {
            offload: Some(o),
            ..staged(&base, 2)
        };
        train(&w, &llama(2), &s, 5)
    };
    let (small, wide) = (
        with(OffloadDevice::Host, false),
        with(OffloadDevice::Host, true),
    );
    assert!(small.bits() == with(OffloadDevice::Nvme, false).bits());
    assert!(small.bits() != wide.bits(), "nothing was rounded");
    let far = distance(&small, &wide);
    assert!(far < 2e-2, "{far:e}");
}

/// One step late: the update of step t is of gradients taken at the parameters after step t - 2. The plain simulation keeps two
/// engines' worth of parameters by hand: it trains one step from the older parameters and applies Adam to the newer ones.
#[test]
fn a_delayed_update_is_the_reference_with_one_step_of_staleness() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    let model = llama(2);
    let mut o = offload(dir.path(), OffloadDevice::Host);
    o.optimizer.as_mut().unwrap().delayed = true;
    let base = spec(1, 1);
    let s = RankSpec {
        offload: Some(o),
        ..base.clone()
    };
    let steps = 6;
    let late = train(&w, &model, &s, steps);
    let want = stale(&w, &model, &base, steps);
    let losses: Vec<f64> = late.metrics.iter().map(|m| m.loss).collect();
    assert_eq!(losses.len(), want.len());
    for (got, want) in losses.iter().zip(&want) {
        assert!(
            (got - want).abs() <= 1e-6 * want.abs(),
            "{losses:?} {want:?}"
        );
    }
    // And it is stale: without delay the third loss is another.
    let prompt = train(&w, &model, &base, steps);
    assert_eq!(losses[0], prompt.metrics[0].loss);
    assert!((losses[1] - prompt.metrics[1].loss).abs() > 1e-4);
}

/// Fails writes with a full disk from the n-th on.
struct Full(AtomicU64, u64);
impl FaultLayer for Full {
    fn before(&self, write: bool, _: u64, _: u64) -> Verdict {
        let n = self.0.fetch_add(u64::from(write), Ordering::Relaxed);
        match write && n >= self.1 {
            true => Verdict::Fail(28),
            false => Verdict::Pass,
        }
    }
}

#[test]
fn a_disk_that_fills_up_during_training_is_a_sentence_and_no_hang() {
    let (mut w, dir) = (world(), tempfile::tempdir().unwrap());
    let model = llama(2);
    for after in [200, 260, 400] {
        let mut o = offload(dir.path(), OffloadDevice::Nvme);
        o.files.buffers = 2;
        w.files = Files::Behind(Arc::new(Full(AtomicU64::new(0), after)));
        let s = RankSpec {
            offload: Some(o),
            ..staged(&spec(1, 1), 2)
        };
        let error = train_until_error(&w, &model, &s, 200);
        for word in ["disk is full", "offset", "nvme_path", "resume", ".swap"] {
            assert!(error.contains(word), "{error}");
        }
    }
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        0,
        "swap is left"
    );
}

/// Fails a forward, once, when so many calls of it are left.
pub struct Trips(pub Arc<dyn Block>, pub Arc<AtomicU64>);
impl Block for Trips {
    fn forward(&self, cx: &mut Cx<'_>, flow: Flow) -> crossweave_tensor::Result<Flow> {
        let left = self.1.load(Ordering::Relaxed);
        self.1.store(left.saturating_sub(1), Ordering::Relaxed);
        match left {
            1 => shape_error("this block fails on purpose"),
            _ => self.0.forward(cx, flow),
        }
    }
}

/// The recomputation of the first unit fails when the gradients of the others have left, whose memory comes back with their updates.
#[test]
fn a_step_behind_one_that_failed_does_not_wait_for_the_host() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    for tier in [OffloadDevice::Host, OffloadDevice::Nvme] {
        let s = RankSpec {
            recompute: Recompute::Full,
            offload: Some(offload(dir.path(), tier)),
            ..staged(&spec(1, 1), 2)
        };
        let calls = Arc::new(AtomicU64::new(0));
        let mut all = units(&llama(2));
        let first = all.remove(0);
        let block = Arc::new(Trips(first.block, calls.clone()));
        all.insert(0, UnitDecl { block, ..first });
        let mut t = started(&w, all, &s).unwrap();
        one_step(&mut t, &s, 0).unwrap();
        t.metrics().unwrap();
        calls.store(2, Ordering::Relaxed);
        let error = one_step(&mut t, &s, 1).unwrap_err().to_string();
        assert!(
            error.contains("fails on purpose") && error.contains("R0.0"),
            "{error}"
        );
        for step in 2..5 {
            one_step(&mut t, &s, step).unwrap();
            assert!(t.metrics().unwrap().unwrap().loss.is_finite(), "{tier:?}");
        }
        t.settle_offload().unwrap();
    }
}
