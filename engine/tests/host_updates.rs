//! What looks at one element at a time updates on the host as on the device: Lion and SGD beside Adam, to the bit, wherever their states
//! rest, and with no memory for moments they do not keep.
#![forbid(unsafe_code)]

use crate::common;
use common::*;
use crossweave_engine::optimizers::{Adam, Lamb, Optimizer, ParamGroups, Sgd};
use crossweave_engine::{
    FileSettings, OffloadDevice, OffloadSpec, OptimizerOffload, RankSpec, ZeroSpec, ZeroStage,
};
use crossweave_hal::DType;
use std::path::Path;

fn away(dir: &Path, tier: OffloadDevice, ratio: f64, params: bool) -> OffloadSpec {
    OffloadSpec {
        optimizer: Some(OptimizerOffload {
            tier,
            ratio,
            delayed: false,
            grad_f32: true,
            pin: false,
            group: None,
        }),
        params,
        activations: false,
        folder: dir.to_path_buf(),
        files: FileSettings {
            block_size: 4096,
            buffers: 4,
            ..FileSettings::default()
        },
    }
}

fn sgd(momentum: f64, nesterov: bool) -> Optimizer {
    Optimizer::Sgd(Sgd {
        momentum,
        dampening: 0.0,
        nesterov,
    })
}

#[test]
fn lion_and_sgd_have_the_same_bits_on_the_host() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    let optimizers = [
        (Optimizer::Lion { betas: [0.9, 0.99] }, 1),
        (sgd(0.9, true), 1),
        (sgd(0.0, false), 0),
    ];
    let mut turn = 0;
    for (optimizer, moments) in optimizers {
        for compute in [DType::F32, DType::Bf16] {
            let base = RankSpec {
                compute,
                clip: if moments == 1 { 0.5 } else { 0.0 },
                optim: ParamGroups::all(optimizer, 0.1),
                ..spec(2, 2)
            };
            let plain = train(&w, &gpt2(1, 0.0), &base, 3);
            for stage in [0, 2, 3] {
                turn += 1;
                let tier = [OffloadDevice::Host, OffloadDevice::Nvme][turn % 2];
                let params = stage == 3 && turn % 4 < 2;
                let ratio = if params {
                    1.0
                } else {
                    [1.0, 0.4][turn / 2 % 2]
                };
                let s = RankSpec {
                    offload: Some(away(dir.path(), tier, ratio, params)),
                    zero: ZeroSpec {
                        stage: ZeroStage::from_number(stage).unwrap(),
                        ..base.zero
                    },
                    ..base.clone()
                };
                let got = train(&w, &gpt2(1, 0.0), &s, 3);
                let what = format!(
                    "{}, {compute:?}, stage {stage}, {tier:?}, {ratio}",
                    optimizer.name()
                );
                assert!(got.bits() == plain.bits(), "{what}: {}", got.plan);
                if tier == OffloadDevice::Host && ratio == 1.0 {
                    let sizes = units(&gpt2(1, 0.0)).into_iter();
                    let sizes =
                        sizes.map(|u| u.params.iter().map(|p| p.shape.numel()).sum::<u64>());
                    let owned: u64 = match stage {
                        0 => sizes.sum(),
                        _ => sizes.map(|n| n.div_ceil(2)).sum(),
                    };
                    let held = got.ledgers[0]
                        .memory
                        .host
                        .get("moment")
                        .map_or(0, |b| b.peak);
                    assert_eq!(held, 4 * moments * owned, "{what}: moments");
                }
            }
        }
    }
}

#[test]
fn what_needs_whole_parameters_is_refused_by_name() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    let lamb = Lamb {
        adam: Adam::default(),
        max_coeff: 10.0,
        min_coeff: 0.01,
    };
    let s = RankSpec {
        optim: ParamGroups::all(Optimizer::Lamb(lamb), 0.1),
        offload: Some(away(dir.path(), OffloadDevice::Host, 1.0, false)),
        ..spec(1, 1)
    };
    let said = train_until_error(&w, &gpt2(1, 0.0), &s, 1);
    for part in [
        "Lamb needs whole parameters",
        "Lion and SGD",
        "offload_optimizer.device",
    ] {
        assert!(said.contains(part), "{said}");
    }
}
