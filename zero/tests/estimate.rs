//! The estimator against published figures, and its formulas against each other for any size.

use crossweave_zero::ZeroStage::{self, One, Three, Two, Zero};
use crossweave_zero::estimate::*;
use proptest::prelude::*;

const STAGES: [ZeroStage; 4] = [Zero, One, Two, Three];
const GPT3: Shape = Shape {
    layers: 96,
    hidden: 12288,
    heads: 96,
    vocab: 50257,
    seq: 2048,
};

fn near(got: f64, want: f64, relative: f64) {
    let error = (got - want).abs() / want.abs();
    assert!(error <= relative, "{got} is not {want} ({error:e} off)");
}

#[test]
fn sixteen_bytes_a_parameter_in_five_components() {
    let s = states(1000, 1, Zero, Accounting::MIXED);
    let five = [s.param, s.grad, s.master, s.moment1, s.moment2];
    assert_eq!(five, [2000, 2000, 4000, 4000, 4000]);
    assert_eq!(Accounting::MIXED.total(), 16);
    // Adam's states are three quarters.
    assert_eq!(s.optimizer() * 4, s.total() * 3);
    assert_eq!(Accounting::FP32.total(), 16);
    assert_eq!(Accounting::MIXED_F32_GRADS.total(), 18);
}

#[test]
fn published_state_sizes() {
    let gb = |p: u64, n, stage, a| states(p, n, stage, a).total() as f64 / 1e9;
    let row = |p, n, a| STAGES.map(|s| gb(p, n, s, a));
    let mixed = Accounting::MIXED;
    for (got, want) in row(7_500_000_000, 64, mixed)
        .into_iter()
        .zip([120.0, 31.40625, 16.640625, 1.875])
    {
        near(got, want, 1e-12);
    }
    assert_eq!(row(1_500_000_000, 1, mixed), [24.0; 4]);
    let weights = states(1_500_000_000, 1, Zero, mixed).param;
    assert_eq!(weights, 3_000_000_000);
    for (got, want) in row(175_000_000_000, 1024, mixed)
        .into_iter()
        .zip([2800.0, 702.051, 352.393, 2.734])
    {
        near(got, want, 2e-4);
    }
    // Both accountings of 175B are 2.8 TB: 700 + 700 + 1400 in f32.
    let s = states(175_000_000_000, 1, Zero, Accounting::FP32);
    assert_eq!(
        (s.param, s.grad, s.optimizer()),
        (700_000_000_000, 700_000_000_000, 1_400_000_000_000)
    );
    assert_eq!(gb(175_000_000_000, 1, Zero, mixed), 2800.0);
}

#[test]
fn factors_for_64_ranks_and_their_limits() {
    let ratio = |n: f64, s| {
        closed(7.5e9, 1.0, Zero, Accounting::MIXED) / closed(7.5e9, n, s, Accounting::MIXED)
    };
    near(ratio(64.0, One), 3.821, 1e-4);
    near(ratio(64.0, Two), 7.211, 1e-4);
    near(ratio(64.0, Three), 64.0, 1e-12);
    near(ratio(1e12, One), 4.0, 1e-9);
    near(ratio(1e12, Two), 8.0, 1e-9);
}

#[test]
fn megatrons_table_of_its_distributed_optimizer() {
    // d = 1, 2, 4, 8, 64: 6 + 12/d.
    let a = Accounting::MIXED_F32_GRADS;
    for (d, want) in [
        (1.0, 18.0),
        (2.0, 12.0),
        (4.0, 9.0),
        (8.0, 7.5),
        (64.0, 6.1875),
    ] {
        near(closed(1.0, d, One, a), want, 1e-12);
    }
    near(closed(1.0, 8.0, One, Accounting::FP32), 9.0, 1e-12);
}

#[test]
fn the_largest_model_for_a_budget() {
    let p = |stage, n| largest_params(16_000_000_000, n, stage, Accounting::MIXED) as f64;
    assert_eq!(p(Zero, 1024), 1e9);
    // Stage 1 lifts 1B towards 4B, stage 2 towards 8B, stage 3 by the number of ranks.
    near(p(One, 1024), 3.98832e9, 1e-4);
    near(p(Two, 1024), 7.9454e9, 1e-4);
    near(p(Three, 1024), 1.024e12, 1e-9);
}

fn load(params: u64, ranks: u64, stage: ZeroStage, offload: Offload, shape: &Shape) -> Load {
    Load {
        params,
        largest_unit: shape.largest_unit(),
        ranks,
        experts: Apart::default(),
        stage,
        accumulation: Accumulation::NONE,
        accounting: Accounting::MIXED,
        offload,
        slots: 1,
        bucket: 25 << 20,
        activations: activation_total(shape, 1, 1, false, ActivationCase::Recompute) as u64,
        teacher: 0,
    }
}

/// The counts of arXiv 2201.05596, which states two digits.
#[test]
fn experts_are_counted_as_published() {
    let of = |name: &str| PUBLISHED.iter().find(|p| p.0 == name).unwrap();
    for (name, model, published, _) in PUBLISHED {
        near(model.params() as f64, *published, 0.035);
        assert!(model.dense() < model.sparse(), "{name}");
    }
    let fewer = |name: &str| {
        let (_, model, _, standard) = of(name);
        of(standard).1.params() as f64 / model.params() as f64
    };
    // "Up to 3.7x" and "3x": the first is of the shortened model.
    assert!(fewer("350m+pr-moe-32/64") >= 3.0);
    near(fewer("350m+pr-moe-32/64+l21"), 3.7, 0.01);
    // An expert of a residual layer is one more than in a standard one.
    let (pyramid, standard) = (of("350m+pr-moe-32/64").1, of("350m+moe-128").1);
    assert!(pyramid.dense() > standard.dense());
}

/// A teacher is weights alone: whole on a rank, or its slice at stage 3.
#[test]
fn a_teacher_has_weights_and_nothing_else() {
    let shape = Shape::of_params(1_000_000);
    for (stage, held) in [(Zero, 3_000_001), (Two, 3_000_001), (Three, 750_001)] {
        let plain = load(1_000_000, 4, stage, Offload::NONE, &shape);
        let taught = Load {
            teacher: 3_000_001,
            ..plain
        };
        let more = ledger(&taught).total(Tier::Device) - ledger(&plain).total(Tier::Device);
        assert_eq!(more, 2 * held, "{stage:?}");
    }
}

#[test]
fn ten_billion_parameters_train_on_one_device_of_32_gb() {
    let offload = Offload {
        optimizer: Tier::Host,
        param: Tier::Device,
    };
    let shape = Shape::of_params(10_000_000_000);
    let l = ledger(&load(10_000_000_000, 1, Two, offload, &shape));
    assert!(l.total(Tier::Device) <= 32_000_000_000, "{l:?}");
    let weights = l.rows.iter().find(|r| r.what == "param").unwrap();
    assert_eq!(weights.bytes, 20_000_000_000);
    // The host keeps 12P of states and 2P of gradients.
    assert_eq!(l.total(Tier::Host), 140_000_000_000);
    let machine = Machine {
        device: 32_000_000_000,
        host: 1_500_000_000_000,
        nvme: 0,
    };
    let activations =
        |s: &Shape| activation_total(s, 1, 1, false, ActivationCase::Recompute) as u64;
    let none = largest(
        &load(1, 1, Zero, Offload::NONE, &shape),
        &machine,
        activations,
    );
    let host = largest(&load(1, 1, Two, offload, &shape), &machine, activations);
    let all = Offload {
        optimizer: Tier::Host,
        param: Tier::Host,
    };
    let host3 = largest(&load(1, 1, Three, all, &shape), &machine, activations);
    assert!(none < 2_000_000_000, "{none}");
    assert!(host >= 10_000_000_000, "{host}");
    assert!(host3 >= 8 * none, "{host3} against {none}");
}

/// Beside an offloaded optimizer the device holds as much for eight micro-batches as for two, and a bucket more than for one, at every stage that
/// has slices and on one rank at all; the host holds two landings more, and a sum that is kept whole takes `q P` of the device.
#[test]
fn micro_batches_are_added_up_where_the_optimizer_rests() {
    let shape = Shape::of_params(10_000_000_000);
    let host = Offload {
        optimizer: Tier::Host,
        param: Tier::Device,
    };
    let of = |stage, ranks, g, reduce_each| {
        ledger(&Load {
            accumulation: Accumulation {
                reduce_each,
                leaves: true,
                ..Accumulation::of(g)
            },
            ..load(10_000_000_000, ranks, stage, host, &shape)
        })
    };
    for (stage, ranks) in [
        (Zero, 1),
        (One, 1),
        (Two, 1),
        (Three, 1),
        (One, 4),
        (Two, 4),
        (Three, 4),
    ] {
        let (one, eight) = (of(stage, ranks, 1, true), of(stage, ranks, 8, true));
        let two = of(stage, ranks, 2, true).total(Tier::Device);
        let [a, b] = [&one, &eight].map(|l| l.total(Tier::Device));
        assert_eq!(two, b, "{stage:?} on {ranks} ranks: {eight:#?}");
        assert_eq!(
            b - a,
            2 * shape.largest_unit(),
            "{stage:?} on {ranks} ranks: {eight:#?}"
        );
        let more = eight.total(Tier::Host) - one.total(Tier::Host);
        assert_eq!(more, 4 * shape.largest_unit().div_ceil(ranks), "{stage:?}");
        let whole = of(stage, ranks, 8, false).total(Tier::Device);
        assert!(
            whole > b + 18_000_000_000,
            "{stage:?} on {ranks} ranks: {whole}"
        );
    }
    // Stage 1 then sends what stage 2 does.
    let how = Accumulation {
        leaves: true,
        ..Accumulation::of(4)
    };
    assert_eq!(traffic(One, 1 << 20, 8, how), traffic(Two, 1 << 20, 8, how));
    assert_eq!(how.wire_formula(One), "(1+g)P(N-1)/N");
}

#[test]
fn a_trillion_parameters_on_one_node_with_nvme() {
    let shape = Shape::of_params(1_000_000_000_000);
    let nvme = Offload {
        optimizer: Tier::Nvme,
        param: Tier::Nvme,
    };
    let l = ledger(&load(1_000_000_000_000, 16, Three, nvme, &shape));
    let node = Machine {
        device: 32 << 30,
        host: 1_500_000_000_000 / 16,
        nvme: 28_000_000_000_000 / 16,
    };
    assert_eq!(l.overflow(&node), None, "{l:#?}");
    // 16 bytes a parameter lie on storage.
    assert_eq!(l.total(Tier::Nvme) * 16, 16_000_000_000_000);
    let device = Offload::NONE;
    let l = ledger(&load(1_000_000_000_000, 16, Three, device, &shape));
    assert_eq!(l.overflow(&node), Some(Tier::Device));
}

#[test]
fn volumes_against_data_parallelism_are_one_one_and_one_and_a_half() {
    let p = 1_000_003;
    let once = |g| Accumulation {
        reduce_each: false,
        ..Accumulation::of(g)
    };
    let ratio = |s, how| traffic(s, p, 8, how).volume_vs_ddp(p);
    assert_eq!(STAGES.map(|s| ratio(s, once(1))), [1.0, 1.0, 1.0, 1.5]);
    // Accumulation costs stages 0 to 2 nothing where whole gradients are kept; stage 3 gathers for each micro-batch.
    assert_eq!(STAGES.map(|s| ratio(s, once(4))), [1.0, 1.0, 1.0, 4.5]);
    // Slices of gradients cost a reduction for each micro-batch.
    let each = Accumulation::of(4);
    assert_eq!(STAGES.map(|s| ratio(s, each)), [1.0, 1.0, 2.5, 6.0]);
    assert_eq!(each.wire_formula(Two), "(1+g)P(N-1)/N");
    assert_eq!(each.wire_formula(Three), "3gP(N-1)/N");
    let kept = Accumulation {
        keep_gathered: true,
        ..Accumulation::NONE
    };
    assert_eq!(traffic(Three, p, 8, kept).volume_vs_ddp(p), 1.0);
    near(
        traffic(Zero, p, 8, Accumulation::NONE).wire(8),
        all_reduce(p as f64, 8.0),
        1e-12,
    );
    let (server, other) = parameter_server(100.0, 8.0);
    assert_eq!((server, other), (1400.0, 200.0));
    near(8.0 * all_reduce(100.0, 8.0), server, 1e-12);
    assert_eq!(zeropp(1.0, false, false, false), 3.0);
    assert_eq!(zeropp(1.0, true, true, true), 0.75);
    near(hsdp(1e9, 8.0, 4.0), 2.625e9 + 0.1875e9, 1e-12);
}

#[test]
fn activations_of_the_175b_layer() {
    let mib = |tp, sp, case| activation_bytes(&GPT3, 1, tp, sp, case) / (1 << 20) as f64;
    use ActivationCase::*;
    let got = [
        mib(1, false, Full),
        mib(8, false, Full),
        mib(8, true, Full),
        mib(8, false, Selective),
        mib(8, true, Selective),
        mib(1, false, Recompute),
    ];
    assert_eq!(got, [2736.0, 552.0, 342.0, 312.0, 102.0, 48.0]);
    let gib = |mib: f64| (mib * 96.0 / 1024.0 * 100.0).round() / 100.0;
    assert_eq!(got.map(gib), [256.5, 51.75, 32.06, 29.25, 9.56, 4.5]);
    // Without stored scores the quadratic term is gone.
    let flash = activation_bytes(&GPT3, 1, 1, false, Flash);
    near(flash, activation_bytes(&GPT3, 1, 1, false, Selective), 1e-3);
}

#[test]
fn operations_time_and_utilisation() {
    // 300e9 tokens of 175B are 3.15e23 operations: 288 years of a device that sustains 34.5e12.
    near(sixpt(175e9, 300e9), 3.14e23, 0.005);
    near(years(3.14e23, 34.5e12), 288.0, 0.01);
    near(
        years(sixpt(175e9, 300e9), profile("v100").unwrap().sustained),
        288.0,
        0.01,
    );
    near(
        mfu(25e15, 1.0, 512.0, profile("v100").unwrap().peak),
        0.3906,
        1e-3,
    );
    let f = flops(&GPT3, 1536);
    // The 72-form is 6PT and the attention's share.
    let p = 12.0 * 96.0 * 12288f64.powi(2);
    let rough = sixpt(p, 1536.0 * 2048.0);
    assert!(f.model > rough && f.model < 1.06 * rough);
    // Recompute repeats the forward of the layers, not of the head.
    let head = 6.0 * 1536.0 * 2048.0 * 12288.0 * 50257.0;
    near(f.hardware, (f.model - head) * 4.0 / 3.0 + head, 1e-9);
}

#[test]
fn throughput_grows_faster_than_ranks_while_shards_shrink() {
    let shape = Shape {
        seq: 1024,
        ..Shape::of_params(100_000_000_000)
    };
    let v100 = profile("v100").unwrap();
    let points = scaling(
        100_000_000_000,
        &shape,
        (Accounting::MIXED, Accumulation::NONE),
        v100,
        &[64, 128, 256, 512],
    );
    for pair in points.windows(2) {
        let (a, b) = (pair[0], pair[1]);
        assert!(b.batch > a.batch, "{a:?} {b:?}");
        assert!(b.throughput > 2.0 * a.throughput, "{a:?} {b:?}");
    }
    // Once shards are small against the device, growth is linear and no more.
    let small = Shape::of_params(1_000_000_000);
    let curve = |how| {
        let accounting = (Accounting::MIXED, how);
        scaling(1_000_000_000, &small, accounting, v100, &[1024, 2048])
    };
    let many = curve(Accumulation::NONE);
    near(many[1].throughput / many[0].throughput, 2.0, 0.01);
    // Four micro-batches that are reduced each take four times as long; reduced once they send less and leave less room.
    let four = curve(Accumulation::of(4));
    assert_eq!(four[0].batch, many[0].batch);
    near(four[0].comm / many[0].comm, 4.0, 1e-9);
    near(four[0].compute / many[0].compute, 4.0, 1e-9);
    let once = curve(Accumulation {
        reduce_each: false,
        ..Accumulation::of(4)
    });
    near(once[0].comm / many[0].comm, 3.0, 1e-9);
    assert!(once[0].batch < many[0].batch, "{once:?} {many:?}");
}

#[test]
fn advice_when_stage_3_does_not_pay() {
    let bytes = |d: u64| [16 * d, 8 * d, 4 * d, d];
    let advise = |asked, bytes, device, comm: [f64; 4], compute| {
        advise(asked, bytes, device, comm, Some(Speeds { comm, compute }))
    };
    let comm = [1.0, 1.0, 1.0, 1.5];
    let a = advise(Three, bytes(1), Some(8), comm, 1.0);
    assert_eq!(a.stage, One);
    let says = "stage 3 does not pay: stage 1 fits and sends 1.0x the elements of plain data parallelism instead of 1.5x";
    assert!(a.why.contains(says), "{}", a.why);
    // Four micro-batches: stage 2 reduces each, stage 3 gathers for each too.
    let four = [1.0, 1.0, 2.5, 6.0];
    let a = advise(Three, bytes(2), Some(8), four, 1.0);
    assert!(
        a.why
            .contains("sends 2.5x the elements of plain data parallelism instead of 6.0x"),
        "{}",
        a.why
    );
    let a = advise(Two, bytes(1), Some(8), four, 1.0);
    assert!(
        a.stage == One
            && a.why
                .contains("1.0x the elements of plain data parallelism instead of 2.5x"),
        "{}",
        a.why
    );
    let a = advise(Two, bytes(1), Some(8), comm, 1.0);
    assert!(a.stage == Two && a.why.contains("sends 1.0x"), "{}", a.why);
    let a = advise(Three, bytes(2), Some(8), comm, 1.0);
    assert!(
        a.stage == Two && a.why.contains("1.50 of the computation at stage 3"),
        "{}",
        a.why
    );
    let a = advise(Three, bytes(8), Some(8), comm, 1.0);
    assert!(a.stage == Three && a.why.contains("bound by communication"));
    let a = advise(Three, bytes(8), Some(8), comm, 10.0);
    assert!(a.stage == Three && a.why.contains("can hide"));
    let a = advise(Zero, bytes(8), Some(8), comm, 10.0);
    assert!(a.stage == Three && a.why.contains("does not fit"));
    // Of a device whose rates nobody knows no seconds are compared.
    let unknown = |d| crossweave_zero::estimate::advise(Three, bytes(d), Some(8), comm, None).why;
    assert_eq!(unknown(8), "only stage 3 fits");
    assert!(!unknown(2).contains("computation"), "{}", unknown(2));
    for asked in STAGES {
        let a = advise(asked, bytes(9), Some(8), comm, 10.0);
        assert!(a.why.contains("no stage fits"), "{}", a.why);
    }
}

#[test]
fn shapes_of_a_count() {
    let s = Shape::of_params(175_000_000_000);
    assert_eq!((s.layers, s.hidden, s.heads), (96, 12288, 96));
    for p in [
        1_000,
        1_000_000,
        124_000_000,
        10_000_000_000,
        100_000_000_000_000,
    ] {
        let s = Shape::of_params(p);
        let got = 12.0 * (s.layers * s.hidden * s.hidden) as f64;
        assert!(got > 0.5 * p as f64 && got < 2.0 * p as f64, "{p}: {s:?}");
    }
}

proptest! {
    #[test]
    fn rounded_and_closed_agree_within_the_padding(p in 1u64..100_000_000_000_000, n in 1u64..5000) {
        for a in [Accounting::MIXED, Accounting::FP32, Accounting::MIXED_F32_GRADS] {
            let mut before = u64::MAX;
            for stage in STAGES {
                let got = states(p, n, stage, a).total();
                let want = closed(p as f64, n as f64, stage, a);
                prop_assert!((got as f64 - want).abs() <= a.total() as f64 + 1e-6 * want);
                prop_assert!(got <= before, "a higher stage never needs more");
                before = got;
            }
        }
        let q = padded(p, n);
        prop_assert!(q.full >= p && q.full - p < n && q.shard * n == q.full);
    }

    #[test]
    fn the_inverse_is_exact(bytes in 0u64..1_000_000_000_000, n in 1u64..5000) {
        for stage in STAGES {
            let a = Accounting::MIXED;
            let p = largest_params(bytes, n, stage, a);
            prop_assert!(states(p, n, stage, a).total() <= bytes);
            // The next model that needs more does not fit.
            prop_assert!(states(p + 1, n, stage, a).total() > bytes);
        }
    }

    #[test]
    fn every_byte_of_state_lies_somewhere(p in 1u64..10_000_000_000_000, n in 1u64..3000, at in 0usize..9) {
        let offload = Offload { optimizer: Tier::ALL[at % 3], param: Tier::ALL[at / 3] };
        let shape = Shape::of_params(p);
        for stage in [One, Two, Three] {
            let l = ledger(&load(p, n, stage, offload, &shape));
            let s = states(p, n, stage, Accounting::MIXED);
            let of = |what| l.rows.iter().filter(|r| r.what == what).map(|r| r.bytes).sum::<u64>();
            prop_assert_eq!(of("param"), s.param);
            prop_assert_eq!(of("master") + of("moment1") + of("moment2"), s.optimizer());
            if offload.optimizer == Tier::Device {
                prop_assert_eq!(of("grad"), s.grad);
            } else {
                prop_assert_eq!(of("grad"), 2 * padded(p, n).shard);
            }
        }
    }
}
